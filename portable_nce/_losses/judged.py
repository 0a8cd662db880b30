"""Losses guided by a second model: soft targets of a teacher, false negatives removed by a guide.

`distillation`, the plain formula: cross-entropy with the teacher's softmax as targets.

>>> import numpy as np
>>> import portable_nce as pnce
>>> arrays = np.random.default_rng(0).standard_normal((4, 6, 3))
>>> a, b, c, d = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in arrays)
>>> p, t = (e / e.sum(axis=1, keepdims=True) for e in (np.exp(a @ b.T / 0.2), np.exp(c @ d.T / 0.1)))
>>> loss = pnce.distillation(*arrays, temperature=0.2, teacher_temperature=0.1)
>>> bool(np.isclose(-(t * np.log(p)).sum(axis=1).mean(), loss))
True
"""

from __future__ import annotations

from typing import Any

from .._call import LossOptions, contrast_embeddings
from .._core.checks import check_choice, check_floating, check_number, check_shape, shape_of
from .._core.namespace import common_namespace
from .._core.numerics import nan_of
from .._core.protocol import Array
from .._core.ranks import Ranks, propagates_errors
from .._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, MarginStrategy, Precision, ReductionName
from ..objectives import info_nce
from ..pairings import STRATEGIES, guided, teacher
from ..similarities import AnySimilarity
from .nested import left_whole

__all__ = ["distillation", "gist_embed"]


@left_whole("teacher_query", "teacher_key")
@propagates_errors
def distillation(
    query: ArrayOf[ArrayT],
    key: AnyArray,
    teacher_query: AnyArray,
    teacher_key: AnyArray,
    /,
    *,
    temperature: float | AnyArray = 0.07,
    teacher_temperature: float | None = 0.07,
    symmetric: bool = False,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the cross-entropy of a student's similarities with a teacher's similarities as targets.

    .. math:: \ell_i = -\sum_j t_{ij} \log \mathrm{softmax}_j\, s(q_i, k_j) / \tau, \qquad
        t_{ij} = \mathrm{softmax}_j\, \cos(q'_i, k'_j) / \tau'

    Its gradient equals that of the KL divergence from teacher to student. With ``teacher_temperature=None``, the
    weights :math:`t_{ij} \propto 1 + \cos(q'_i, k'_j)` are those of continuously weighted contrastive learning (CWCL),
    whose teacher is a frozen model of one modality: :math:`k' = q'`.

    Parameters
    ----------
    query : array, shape (N, D)
        The student's embeddings of the queries.
    key : array, shape (K, D)
        The student's embeddings of the keys.
    teacher_query : array, shape (N, E)
        The teacher's embeddings of the queries, without gradient.
    teacher_key : array, shape (K, E)
        The teacher's embeddings of the keys, without gradient.
    temperature : float, or array of one entry or of shape (N,), default: 0.07
        Temperature τ > 0, shared or one per row; differentiable if an array.
    teacher_temperature : float or None, default: 0.07
        Temperature τ' > 0 of the teacher, or None.
    symmetric : bool, default: False
        Whether to average the losses of queries against keys and of keys against queries.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the queries.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the queries that count (0 if none counts), weighted sum, or the weighted losses of the
        queries.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `query`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    portable_nce.pairings.teacher : The pairing, for any objective.

    References
    ----------
    Hinton, Vinyals and Dean (2015), "Distilling the Knowledge in a Neural Network", arXiv:1503.02531; Srinivasa, Cho,
    Yang et al. (2023), "CWCL: Cross-Modal Transfer with Continuously Weighted Contrastive Loss", arXiv:2309.14580.

    Examples
    --------
    PyTorch, where a student of 128 features learns from a teacher of 768:

    >>> import torch
    >>> import portable_nce as pnce
    >>> query = torch.randn(256, 128, requires_grad=True)
    >>> key = torch.randn(256, 128, requires_grad=True)
    >>> teacher_query, teacher_key = torch.randn(2, 256, 768)
    >>> loss = pnce.distillation(query, key, teacher_query, teacher_key, temperature=0.05, symmetric=True)
    >>> loss.backward()
    >>> query.grad.shape
    torch.Size([256, 128])

    NumPy, with the weights of continuously weighted contrastive learning:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.standard_normal((2, 64, 32))
    >>> teacher = rng.standard_normal((64, 128))
    >>> pnce.distillation(q, k, teacher, teacher, temperature=0.1, teacher_temperature=None)
    array(5.63367...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across, symmetric)
    if teacher_temperature is not None:
        teacher_temperature = check_number("teacher_temperature", teacher_temperature, above=0.0)
    _check_judged({"teacher_query": teacher_query, "teacher_key": teacher_key}, query=query, key=key)
    pairing = teacher(teacher_query, teacher_key, temperature=teacher_temperature)
    return contrast_embeddings({"query": query, "key": key}, info_nce(), pairing, options)


@left_whole("guide_query", "guide_key")
@propagates_errors
def gist_embed(
    query: ArrayOf[ArrayT],
    key: AnyArray,
    guide_query: AnyArray,
    guide_key: AnyArray,
    /,
    *,
    margin: float = 0.0,
    margin_strategy: MarginStrategy = "absolute",
    temperature: float | AnyArray = 0.01,
    symmetric: bool = False,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the GIST loss: InfoNCE without the negatives that a guide model considers positives.

    .. math:: \ell_i = -\log \frac{e^{g_{ii}}}{e^{g_{ii}} + \sum_{j \in Q(i)} e^{g_{ij}}}, \qquad
        Q(i) = \{j \ne i : c_{ij} \le c_{ii} - m\},

    with the student's scores :math:`g_{ij} = s(q_i, k_j) / \tau` and the cosine similarities c of the guide's
    embeddings; with a relative margin the limit is :math:`c_{ii} - m |c_{ii}|`.

    Parameters
    ----------
    query : array, shape (N, D)
        Embeddings of the queries.
    key : array, shape (K, D)
        Embeddings of the keys; key i belongs to query i. Keys beyond N are negatives of all queries, such as mined hard
        negatives.
    guide_query : array, shape (N, E)
        The guide's embeddings of the queries, without gradient.
    guide_key : array, shape (K, E)
        The guide's embeddings of the keys, without gradient. NaN in either makes the loss NaN.
    margin : float, default: 0.0
        Margin m; a larger one excludes more negatives.
    margin_strategy : {"absolute", "relative"}, default: "absolute"
        Kind of margin.
    temperature : float, or array of one entry or of shape (N,), default: 0.01
        Temperature τ > 0, shared or one per row; differentiable if an array.
    symmetric : bool, default: False
        Whether to average the losses of queries against keys and of keys against queries.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the queries.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the queries that have a positive (0 if none has), weighted sum, or the weighted losses of the
        queries.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `query`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    portable_nce.pairings.guided : The pairing, for any objective.

    References
    ----------
    Solatorio (2024), "GISTEmbed: Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning",
    arXiv:2402.16829 (which also takes the scores among queries, and among keys, for negatives); Moreira et al. (2024),
    "NV-Retriever: Improving text embedding models with effective hard-negative mining", arXiv:2407.15831, section 3,
    whose TopK-MarginPos is the absolute and TopK-PercPos the relative margin.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> query, guide = np.eye(3), np.asarray([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> pnce.gist_embed(query, query, guide, guide, margin=0.3, temperature=1.0)
    array(0.39265...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across, symmetric)
    check_choice("margin_strategy", margin_strategy, STRATEGIES)
    _check_judged({"guide_query": guide_query, "guide_key": guide_key}, query=query, key=key)
    embeddings = {"query": nan_of(guide_query, query), "key": nan_of(guide_key, key)}
    pairing = guided(guide_query, guide_key, margin=margin, strategy=margin_strategy)
    return contrast_embeddings(embeddings, info_nce(), pairing, options)


def _check_judged(judged: dict[str, Array], **embeddings: Any) -> None:
    """Check that the embeddings of the second model have matching rows and one width."""
    arrays = embeddings | judged
    xp, entered = common_namespace(**arrays)
    check_floating(xp, **dict(zip(arrays, entered, strict=True)))
    first = next(iter(judged))
    width = shape_of(first, judged[first], "(N, E)")[1]
    for (name, x), (judged_name, other) in zip(embeddings.items(), judged.items(), strict=True):
        check_shape(judged_name, other, (shape_of(name, x, "(N, D)")[0], width))
