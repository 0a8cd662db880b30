"""Losses of labelled embeddings, and of triples.

`supcon`, the plain formula, for rows that all have a positive:

>>> import numpy as np
>>> import portable_nce as pnce
>>> z, labels = np.random.default_rng(0).standard_normal((6, 4)), np.asarray([0, 0, 0, 1, 1, 1])
>>> unit, others = z / np.linalg.norm(z, axis=1, keepdims=True), 1 - np.eye(6)
>>> scores, same = unit @ unit.T / 0.2, (labels[:, None] == labels[None, :]) * others
>>> log_p = scores - np.log((np.exp(scores) * others).sum(axis=1, keepdims=True))
>>> loss = -((log_p * same).sum(axis=1) / same.sum(axis=1)).mean()
>>> bool(np.isclose(loss, pnce.supcon(z, labels, temperature=0.2)))
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import objectives
from .._call import (
    ColumnLayout,
    LossOptions,
    contrast_embeddings,
    enter_embeddings,
    pair_scores,
    same_width,
    scale_of,
    shards_of_rows,
)
from .._core.checks import (
    check_choice,
    check_integers,
    check_mask,
    check_number,
    scalar,
    shape_of,
    warn_of_number,
)
from .._core.namespace import common_namespace
from .._core.protocol import Array
from .._core.ranks import Ranks, propagates_errors
from .._core.types import (
    AnyArray,
    ArrayOf,
    ArrayT,
    Averaging,
    BlockSize,
    Mining,
    MultiPositive,
    Precision,
    ReductionName,
    TripletForm,
)
from .._execution.triples import excess
from ..objectives import AnyObjective
from ..objectives.pairwise import AVERAGES
from ..objectives.triplet import FORMS
from ..pairings import Pairing, equal_labels, overlap, valid_labels
from ..similarities import AnySimilarity
from .queue import Queue, columns_of, is_full

__all__ = ["contrastive", "nca", "soft_nearest_neighbor", "supcon", "triplet", "triplet_from_labels"]


@propagates_errors
def supcon(
    embeddings: ArrayOf[ArrayT],
    labels: AnyArray,
    /,
    *,
    keys: AnyArray | Queue | None = None,
    key_labels: AnyArray | None = None,
    ignore_index: int | None = None,
    temperature: float | AnyArray = 0.1,
    base_temperature: float | None = None,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    multi_positive: MultiPositive = "each",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the supervised contrastive loss: embeddings of the same label are positives.

    .. math:: \ell_i = \frac{-1}{|P(i)|} \sum_{p \in P(i)} \log \frac{e^{g_{ip}}}{\sum_{j \ne i} e^{g_{ij}}},
        \qquad g_{ij} = s(z_i, z_j) / \tau,

    over the rows with a positive; a row's pair with itself is excluded.

    Parameters
    ----------
    embeddings : array, shape (N, D)
        Embeddings.
    labels : array of int, shape (N,), or of bool, shape (N, C)
        Labels; or multi-hot labels among C, where positives are weighted by the Jaccard index of their labels with the
        row's (see `portable_nce.pairings.overlap`).
    keys : array, shape (K, D), or Queue, optional
        Embeddings to compare with in place of the batch: a cross-batch memory, or the rows of a larger batch. Keys with
        the label of a row are its positives, all others its negatives. If the batch is among the keys, exclude each
        row's pair with itself by a `mask`. A `Queue` has no gradient, and its empty slots are ignored. With `across`,
        an array holds the keys of this rank; a queue is the same on all ranks.
    key_labels : array of int, shape (K,), optional
        Labels of the keys; by default the labels of the `Queue`.
    ignore_index : int, optional
        Label of rows and keys to leave out: they are neither positives nor negatives, and may hold NaN. With None,
        every label is a class, also -1.
    temperature : float, or array of one entry or of shape (N,), default: 0.1
        Temperature τ > 0, shared or one per row; differentiable if an array.
    base_temperature : float, optional
        If given, the loss is multiplied by ``temperature / base_temperature``, as in the authors' code (0.07 there).
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), or (N, K) with `keys`, optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows. The number of positives of each row turns the mean over rows into one over positive pairs.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive (0 if none has), weighted sum, or the weighted losses of the
        rows.
    multi_positive : {"each", "pooled", "separate"}, default: "each"
        ``"each"`` is the paper's L_out, at least the logarithm of the number of positives; ``"pooled"`` its L_in, up to
        that logarithm; ``"separate"`` leaves the other positives out of the denominator (NT-Xent of labels in optax and
        pytorch-metric-learning). See `portable_nce.objectives.info_nce`.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `embeddings`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Khosla et al. (2020), "Supervised Contrastive Learning", arXiv:2004.11362, section 3.2.

    Examples
    --------
    PyTorch, with a learned temperature; then against a queue of earlier batches:

    >>> import torch
    >>> import portable_nce as pnce
    >>> embeddings = torch.randn(256, 128, requires_grad=True)
    >>> labels = torch.randint(10, (256,))
    >>> log_temperature = torch.nn.Parameter(torch.tensor(0.1).log())
    >>> pnce.supcon(embeddings, labels, temperature=log_temperature.exp()).backward()
    >>> embeddings.grad.shape, log_temperature.grad.shape
    (torch.Size([256, 128]), torch.Size([]))
    >>> queue = pnce.queue_init(embeddings, size=1024, labels=labels)
    >>> queue = pnce.queue_push(queue, embeddings, labels=labels)
    >>> loss = pnce.supcon(torch.randn(256, 128), labels, keys=queue)

    NumPy, with ten classes of embeddings around their centres:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(250) % 10
    >>> x = rng.standard_normal((10, 128))[y] + rng.standard_normal((250, 128))
    >>> value, gradient = pnce.value_and_grad(pnce.supcon)(x, y)
    >>> value, gradient.shape
    (array(3.40274...), (250, 128))
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    factor = None
    if base_temperature is not None:
        factor = partial(_over_base, base=check_number("base_temperature", base_temperature, above=0.0))
    objective = objectives.info_nce(multi_positive=multi_positive)
    return _of_labels(
        embeddings, labels, (keys, key_labels, ignore_index), objective, options, several=True, factor=factor
    )


@propagates_errors
def nca(
    embeddings: ArrayOf[ArrayT],
    labels: AnyArray,
    /,
    *,
    keys: AnyArray | Queue | None = None,
    key_labels: AnyArray | None = None,
    ignore_index: int | None = None,
    temperature: float | AnyArray = 1.0,
    similarity: AnySimilarity = "neg_sq_euclidean",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the loss of neighbourhood components analysis: a random neighbour should have the same label.

    .. math:: \ell_i = -\log \frac{\sum_{j \in P(i)} e^{-\lVert z_i - z_j \rVert^2 / \tau}}
        {\sum_{j \ne i} e^{-\lVert z_i - z_j \rVert^2 / \tau}}

    over the rows with a positive; the paper's logarithmic form.

    Parameters
    ----------
    embeddings : array, shape (N, D)
        Embeddings.
    labels : array of int, shape (N,)
        Labels.
    keys : array, shape (K, D), or Queue, optional
        Embeddings to compare with in place of the batch: a cross-batch memory, or the rows of a larger batch. Keys with
        the label of a row are its positives, all others its negatives. If the batch is among the keys, exclude each
        row's pair with itself by a `mask`. A `Queue` has no gradient, and its empty slots are ignored. With `across`,
        an array holds the keys of this rank; a queue is the same on all ranks.
    key_labels : array of int, shape (K,), optional
        Labels of the keys; by default the labels of the `Queue`.
    ignore_index : int, optional
        Label of rows and keys to leave out: they are neither positives nor negatives, and may hold NaN. With None,
        every label is a class, also -1.
    temperature : float, or array of one entry or of shape (N,), default: 1.0
        Temperature τ > 0, shared or one per row; differentiable if an array.
    similarity : str, Similarity or callable, default: "neg_sq_euclidean"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), or (N, K) with `keys`, optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive (0 if none has), weighted sum, or the weighted losses of the
        rows.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `embeddings`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    soft_nearest_neighbor : The same function under its later name.

    References
    ----------
    Goldberger, Roweis, Hinton and Salakhutdinov (2004), "Neighbourhood Components Analysis", NeurIPS 17.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> embeddings = np.asarray([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])
    >>> pnce.nca(embeddings, np.asarray([0, 0, 1, 1]))
    array(0.87071...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    objective = objectives.info_nce(multi_positive="pooled")
    return _of_labels(embeddings, labels, (keys, key_labels, ignore_index), objective, options)


@propagates_errors
def soft_nearest_neighbor(
    embeddings: ArrayOf[ArrayT],
    labels: AnyArray,
    /,
    *,
    keys: AnyArray | Queue | None = None,
    key_labels: AnyArray | None = None,
    ignore_index: int | None = None,
    temperature: float | AnyArray = 1.0,
    similarity: AnySimilarity = "neg_sq_euclidean",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the soft nearest neighbour loss, which measures how entangled the classes are.

    .. math:: \ell_i = -\log \frac{\sum_{j \in P(i)} e^{-\lVert z_i - z_j \rVert^2 / \tau}}
        {\sum_{j \ne i} e^{-\lVert z_i - z_j \rVert^2 / \tau}}

    over the rows with a positive. It equals `nca`; the temperature is usually learned.

    Parameters
    ----------
    embeddings : array, shape (N, D)
        Embeddings.
    labels : array of int, shape (N,)
        Labels.
    keys : array, shape (K, D), or Queue, optional
        Embeddings to compare with in place of the batch: a cross-batch memory, or the rows of a larger batch. Keys with
        the label of a row are its positives, all others its negatives. If the batch is among the keys, exclude each
        row's pair with itself by a `mask`. A `Queue` has no gradient, and its empty slots are ignored. With `across`,
        an array holds the keys of this rank; a queue is the same on all ranks.
    key_labels : array of int, shape (K,), optional
        Labels of the keys; by default the labels of the `Queue`.
    ignore_index : int, optional
        Label of rows and keys to leave out: they are neither positives nor negatives, and may hold NaN. With None,
        every label is a class, also -1.
    temperature : float, or array of one entry or of shape (N,), default: 1.0
        Temperature τ > 0, shared or one per row; differentiable if an array.
    similarity : str, Similarity or callable, default: "neg_sq_euclidean"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), or (N, K) with `keys`, optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive (0 if none has), weighted sum, or the weighted losses of the
        rows.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `embeddings`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    nca : The same function under its earlier name.

    References
    ----------
    Frosst, Papernot and Hinton (2019), "Analyzing and Improving Representations with the Soft Nearest Neighbor Loss",
    arXiv:1902.01889, equation 1.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> embeddings = np.asarray([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])
    >>> pnce.soft_nearest_neighbor(embeddings, np.asarray([0, 0, 1, 1]), temperature=2.0)
    array(0.95747...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    objective = objectives.info_nce(multi_positive="pooled")
    return _of_labels(embeddings, labels, (keys, key_labels, ignore_index), objective, options)


@propagates_errors
def contrastive(
    embeddings: ArrayOf[ArrayT],
    labels: AnyArray,
    /,
    *,
    keys: AnyArray | Queue | None = None,
    key_labels: AnyArray | None = None,
    ignore_index: int | None = None,
    margin: float | AnyArray = 1.0,
    positive_margin: float | AnyArray = 0.0,
    positive_power: int = 2,
    negative_power: int = 2,
    average: Averaging = "all",
    balance: bool = False,
    temperature: float | AnyArray = 1.0,
    similarity: AnySimilarity = "neg_euclidean",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the contrastive loss: equal labels attract, different labels repel up to a margin.

    .. math:: \ell_i = \sum_{j \in P(i)} \max(d_{ij} - m^+, 0)^a + \sum_{j \in Q(i)} \max(m - d_{ij}, 0)^b,
        \qquad d_{ij} = \lVert z_i - z_j \rVert / \tau

    The default is Hadsell's loss without the factor ½. pytorch-metric-learning's ``ContrastiveLoss`` is
    ``positive_power=1, negative_power=1, average="nonzero", balance=True`` on normalised embeddings.

    Parameters
    ----------
    embeddings : array, shape (N, D)
        Embeddings.
    labels : array of int, shape (N,)
        Labels.
    keys : array, shape (K, D), or Queue, optional
        Embeddings to compare with in place of the batch: a cross-batch memory, or the rows of a larger batch. Keys with
        the label of a row are its positives, all others its negatives. If the batch is among the keys, exclude each
        row's pair with itself by a `mask`. A `Queue` has no gradient, and its empty slots are ignored. With `across`,
        an array holds the keys of this rank; a queue is the same on all ranks.
    key_labels : array of int, shape (K,), optional
        Labels of the keys; by default the labels of the `Queue`.
    ignore_index : int, optional
        Label of rows and keys to leave out: they are neither positives nor negatives, and may hold NaN. With None,
        every label is a class, also -1.
    margin : float or array of one entry, default: 1.0
        Margin m; negatives farther apart have no loss.
    positive_margin : float or array of one entry, default: 0.0
        Margin m⁺; positives closer than this have no loss.
    positive_power, negative_power : {1, 2}, default: 2
        Powers a and b.
    average : {"all", "nonzero"}, default: "all"
        Whether the mean is over all pairs, or over those whose loss is not 0.
    balance : bool, default: False
        Whether the mean is the sum of the mean over positives and the mean over negatives.
    temperature : float, or array of one entry or of shape (N,), default: 1.0
        Divisor τ > 0 of the distances, shared or one per row; differentiable if an array.
    similarity : str, Similarity or callable, default: "neg_euclidean"
        Minus the distance d; see `portable_nce.similarities`. Embeddings are not normalised;
        ``similarities.normalized("neg_euclidean")`` compares unit vectors.
    mask : array of bool, shape (N, N), or (N, K) with `keys`, optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the pairs (each in both orders), weighted sum, or the weighted sums of the rows.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `embeddings`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Chopra, Hadsell and LeCun (2005), "Learning a Similarity Metric Discriminatively, with Application to Face
    Verification", CVPR. Hadsell, Chopra and LeCun (2006), "Dimensionality Reduction by Learning an Invariant Mapping",
    CVPR, equation 4.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> embeddings = np.asarray([[0.0, 0.0], [0.5, 0.0], [0.0, 0.75]])
    >>> pnce.contrastive(embeddings, np.asarray([0, 0, 1]))
    array(0.10...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    if isinstance(similarity, str) and similarity in {"neg_euclidean", "neg_sq_euclidean"}:
        warn_of_number("margin", margin, embeddings, least=0.0)
    objective = objectives.contrastive(
        margin=margin,
        positive_margin=positive_margin,
        positive_power=positive_power,
        negative_power=negative_power,
        average=average,
        balance=balance,
    )
    return _of_labels(embeddings, labels, (keys, key_labels, ignore_index), objective, options)


@propagates_errors
def triplet_from_labels(
    embeddings: ArrayOf[ArrayT],
    labels: AnyArray,
    /,
    *,
    keys: AnyArray | Queue | None = None,
    key_labels: AnyArray | None = None,
    ignore_index: int | None = None,
    margin: float | AnyArray = 0.2,
    mining: Mining = "batch_all",
    form: TripletForm = "margin",
    average: Averaging = "all",
    temperature: float | AnyArray = 1.0,
    similarity: AnySimilarity = "neg_euclidean",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the triplet loss of labelled embeddings: positives should be nearer than negatives by a margin.

    .. math:: \ell_i = \sum_{p \in P(i)} \sum_{n \in Q(i)} \max(d_{ip} - d_{in} + m, 0), \qquad
        d_{ij} = \lVert z_i - z_j \rVert / \tau

    Parameters
    ----------
    embeddings : array, shape (N, D)
        Embeddings.
    labels : array of int, shape (N,)
        Labels.
    keys : array, shape (K, D), or Queue, optional
        Embeddings to compare with in place of the batch: a cross-batch memory, or the rows of a larger batch. Keys with
        the label of a row are its positives, all others its negatives. If the batch is among the keys, exclude each
        row's pair with itself by a `mask`. A `Queue` has no gradient, and its empty slots are ignored. With `across`,
        an array holds the keys of this rank; a queue is the same on all ranks.
    key_labels : array of int, shape (K,), optional
        Labels of the keys; by default the labels of the `Queue`.
    ignore_index : int, optional
        Label of rows and keys to leave out: they are neither positives nor negatives, and may hold NaN. With None,
        every label is a class, also -1.
    margin : float or array of one entry, default: 0.2
        Margin m.
    mining : {"batch_all", "batch_hard", "semi_hard"} or pair of str, default: "batch_all"
        All triples of a row; the farthest positive with the nearest negative; or every positive with the nearest
        negative that is farther than it, else with the farthest negative (FaceNet's choice, as in TensorFlow Addons). A
        pair gives the rules for positives and negatives, as in ``("easy", "semi_hard")``. The rules are ``"all"``;
        ``"hard"``, the farthest positive or the nearest negative; ``"easy"``, the nearest positive or the farthest
        negative; and, on one side only, ``"semi_hard"``, the nearest negative that is farther than the positive (else
        the farthest), or the farthest positive that is nearer than the negative (else the nearest). With form "margin",
        a negative that is farther by the margin has no loss.
    form : {"margin", "soft"}, default: "margin"
        ``"soft"`` takes :math:`\log(1 + e^t)` in place of :math:`\max(t, 0)`.
    average : {"all", "nonzero"}, default: "all"
        Whether the mean is over all triples, or over those whose loss is not 0.
    temperature : float, or array of one entry or of shape (N,), default: 1.0
        Divisor τ > 0 of the distances, shared or one per row; differentiable if an array.
    similarity : str, Similarity or callable, default: "neg_euclidean"
        Minus the distance d; see `portable_nce.similarities`. Embeddings are not normalised;
        ``similarities.normalized("neg_euclidean")`` compares unit vectors.
    mask : array of bool, shape (N, N), or (N, K) with `keys`, optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the triples (0 if there are none), weighted sum, or the weighted sums of the rows.
    block_size : int, None or "auto", default: "auto"
        Rows per block of distances; None holds all distances; ``"auto"`` does so up to one million, or four million
        if the rules choose one triple of a row.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `embeddings`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Hermans, Beyer and Leibe (2017), "In Defense of the Triplet Loss for Person Re-Identification", arXiv:1703.07737,
    equations 5 and 6. Schroff, Kalenichenko and Philbin (2015), "FaceNet: A Unified Embedding for Face Recognition and
    Clustering", arXiv:1503.03832, section 3.2: semi-hard negatives.

    Examples
    --------
    PyTorch, with the hardest positive and negative of each row; then with semi-hard negatives of unit vectors:

    >>> import torch
    >>> import portable_nce as pnce
    >>> embeddings = torch.randn(128, 64, requires_grad=True)
    >>> labels = torch.randint(8, (128,))
    >>> loss = pnce.triplet_from_labels(embeddings, labels, margin=0.3, mining="batch_hard")
    >>> loss.backward()
    >>> embeddings.grad.shape
    torch.Size([128, 64])
    >>> unit = torch.nn.functional.normalize(embeddings)
    >>> loss = pnce.triplet_from_labels(unit, labels, mining="semi_hard", average="nonzero")

    NumPy, with eight classes of embeddings around their centres:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(64) % 8
    >>> x = rng.standard_normal((8, 32))[y] + rng.standard_normal((64, 32))
    >>> pnce.triplet_from_labels(x, y, margin=1.0, mining="batch_hard")
    array(1.37006...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    objective = objectives.triplet(margin=margin, mining=mining, form=form, average=average)
    return _of_labels(embeddings, labels, (keys, key_labels, ignore_index), objective, options)


def _over_base(parameters: dict[str, Any], *, base: float) -> Any:
    """Ratio of the temperature to the base temperature."""
    return parameters["temperature"] / base


def _of_labels(
    embeddings: Array,
    labels: Array,
    of_columns: tuple[Array | Queue | None, Array | None, int | None],
    objective: AnyObjective,
    options: LossOptions,
    *,
    several: bool = False,
    factor: Callable[[dict[str, Any]], Any] | None = None,
) -> Array:
    """Loss with the columns of the same label as positives and all others as negatives.

    The columns are the other rows, or keys; `of_columns` has the keys, their labels, and the label to ignore. `several`
    allows multi-hot labels (N, C).
    """
    xp, (embeddings, labels) = common_namespace(embeddings=embeddings, labels=labels)
    rows, _ = shape_of("embeddings", embeddings, "(N, D)")
    keys, key_labels, ignore_index = of_columns
    named, layout = {"embeddings": embeddings}, ColumnLayout(replicated=isinstance(keys, Queue))
    if several and len(labels.shape) > 1 and xp.isdtype(labels.dtype, "bool"):
        check_mask(xp, "labels", labels, (rows, shape_of("labels", labels, "(N, C)")[1]))
        if keys is not None:
            raise ValueError("keys: expected None with several labels of each row; use contrast with pairings.overlap")
        if ignore_index is not None:
            raise ValueError(
                f"ignore_index: expected None with several labels of each row, got {ignore_index!r}; use a mask"
            )
        _refuse_key_labels(key_labels)
        return contrast_embeddings(named, objective, overlap(labels), options, factor=factor)
    remedy = "labels != 0, if it is multi-hot" if several else "use contrast with pairings.overlap, if it is multi-hot"
    check_integers(xp, "labels", labels, (rows,), several=f"; {remedy}")
    if keys is not None:
        named["keys"], pairing = _keys_and_pairing(labels, keys, key_labels, ignore_index)
    else:
        _refuse_key_labels(key_labels)
        pairing = equal_labels(labels, None, ignore_index=ignore_index)
    return contrast_embeddings(named, objective, pairing, options, layout, factor=factor)


def _refuse_key_labels(key_labels: Array | None) -> None:
    if key_labels is not None:
        raise ValueError(f"key_labels: expected None without keys, got {type(key_labels).__name__}; pass keys=, too")


def _keys_and_pairing(
    labels: Array, keys: Array | Queue, key_labels: Array | None, ignore_index: int | None
) -> tuple[Array, Pairing]:
    """Embeddings of the keys, and the pairing of labels with key labels."""
    columns, valid = columns_of("keys", keys)
    name = "key_labels"
    if key_labels is None and isinstance(keys, Queue):
        key_labels, name = keys.labels, "keys.labels"
    if key_labels is None:
        raise ValueError(
            f"key_labels: expected integers of shape {columns.shape[:1]}, the labels of the keys, got None"
        )
    xp, (labels, _, key_labels) = common_namespace(labels=labels, keys=columns, **{name: key_labels})
    check_integers(xp, name, key_labels, (columns.shape[0],))
    if valid is None or is_full(valid):
        return columns, equal_labels(labels, key_labels, ignore_index=ignore_index)
    return columns, valid_labels(labels, key_labels, valid, ignore_index=ignore_index)


@propagates_errors
def triplet(
    anchor: ArrayOf[ArrayT],
    positive: AnyArray,
    negative: AnyArray,
    /,
    *,
    margin: float | AnyArray = 0.2,
    form: TripletForm = "margin",
    average: Averaging = "all",
    temperature: float | AnyArray = 1.0,
    similarity: AnySimilarity = "neg_euclidean",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the triplet loss: an anchor should be nearer to its positive than to its negative by a margin.

    .. math:: \ell_i = \max(d(a_i, p_i) - d(a_i, n_i) + m, 0), \qquad d(x, y) = \lVert x - y \rVert / \tau

    Parameters
    ----------
    anchor, positive, negative : array, shape (N, D)
        Embeddings of N triples.
    margin : float or array of one entry, default: 0.2
        Margin m.
    form : {"margin", "soft"}, default: "margin"
        ``"soft"`` takes :math:`\log(1 + e^t)` in place of :math:`\max(t, 0)`.
    average : {"all", "nonzero"}, default: "all"
        Whether the mean is over all triples, or over those whose loss is not 0.
    temperature : float, or array of one entry or of shape (N,), default: 1.0
        Divisor τ > 0 of the distances, shared or one per row; differentiable if an array.
    similarity : str, Similarity or callable, default: "neg_euclidean"
        Minus the distance d; see `portable_nce.similarities`. Embeddings are not normalised;
        ``similarities.normalized("neg_euclidean")`` compares unit vectors.
    mask : array of bool, shape (N,), optional
        Triples to include; all by default.
    weights : array, shape (N,), optional
        Weights of the triples.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean, weighted sum, or the weighted losses of the triples.
    block_size : int, None or "auto", default: "auto"
        Ignored, since there is no score matrix; accepted so that losses share one signature.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `anchor`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    triplet_from_labels : Makes the triples from labels.

    References
    ----------
    Weinberger and Saul (2009), "Distance Metric Learning for Large Margin Nearest Neighbor Classification", JMLR 10.
    Schroff, Kalenichenko and Philbin (2015), "FaceNet: A Unified Embedding for Face Recognition and Clustering",
    arXiv:1503.03832, equation 3, whose distance is ``similarities.normalized("neg_sq_euclidean")``.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> anchor, positive = np.asarray([[0.0, 0.0]]), np.asarray([[0.5, 0.0]])
    >>> pnce.triplet(anchor, positive, np.asarray([[0.0, 0.625]]))
    array(0.075)
    """
    warn_of_number("margin", margin, anchor, least=0.0)
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    check_choice("form", form, FORMS)
    check_choice("average", average, AVERAGES)
    named = {"anchor": anchor, "positive": positive, "negative": negative}
    if getattr(negative, "ndim", 0) == 3:  # noqa: PLR2004  (several negatives for each anchor)
        raise ValueError(
            f"negative: expected shape (N, D), got {tuple(negative.shape)}; for M negatives of each anchor, repeat "
            f"anchors and positives M times and merge the leading axes, or use info_nce(anchor, positive, negative)"
        )
    entered = enter_embeddings(named, options, numbers={"margin": margin})
    xp, options, (a, *others) = entered.xp, entered.options, entered.arrays
    for name, other in zip(("positive", "negative"), others, strict=True):
        same_width(similarity, "anchor", a, name, other)
    if options.mask is not None:
        check_mask(xp, "mask", options.mask, a.shape[:1])
    a, *others = entered.without_idle(options.mask).arrays
    margin = scalar(xp, "margin", entered.numbers["margin"], a)
    shards = shards_of_rows(across, a, options.temperature)
    scale = scale_of(xp, options.temperature, a, shards)
    near, far = (pair_scores(similarity, a, other, scale)[:, 0] for other in others)
    # A score of -inf (an overflowing distance, a critic's mask) excludes the triple.
    counted = xp.logical_and(near != -math.inf, far != -math.inf)
    counted = counted if options.mask is None else xp.logical_and(counted, options.mask)
    near, far = (xp.where(counted, score, xp.zeros_like(score)) for score in (near, far))
    difference = xp.where(counted, far - near + margin, xp.zeros_like(near))
    values = excess(xp, difference, soft=form == "soft")
    number = None if average == "all" else xp.astype(values != 0, values.dtype)
    return entered.reduced(values, counted, shards, number)
