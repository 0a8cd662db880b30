"""Losses of paired queries and keys, with in-batch or explicit negatives.

`info_nce`, the plain formula, which loses its digits where p is near 1:

>>> import numpy as np
>>> import portable_nce as pnce
>>> x, y = np.random.default_rng(0).standard_normal((2, 6, 4))
>>> a, b = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
>>> scores = a @ b.T / 0.2
>>> p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
>>> bool(np.isclose(-np.log(p.diagonal()).mean(), pnce.info_nce(x, y, temperature=0.2)))
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import objectives, pairings
from .._call import (
    ANY,
    PAIRED,
    Call,
    ColumnLayout,
    Embedding,
    LossOptions,
    check_hardness,
    contrast_embeddings,
    contrast_scores,
    enter_embeddings,
    has_own_column,
    pair_scores,
    result_dtype,
    same_width,
    scale_of,
    shards_of_rows,
    sharpness_of,
)
from .._core.checks import (
    check_bool,
    check_floating,
    check_library,
    check_mask,
    check_number,
    check_scalar,
    check_shape,
    check_width,
    largest,
    readable_entry,
    row_weights,
    scalar,
    shape_of,
    temperature_of,
)
from .._core.namespace import common_namespace, device_of, is_array, is_number, namespace_of
from .._core.protocol import Array
from .._core.ranks import Ranks, end_exchange, propagates_errors
from .._core.reduction import Reduction, add, finish
from .._core.registry import adapter_of
from .._core.types import (
    AnyArray,
    ArrayOf,
    ArrayT,
    BlockSize,
    MultiPositive,
    Precision,
    ReductionName,
    RelicDirection,
    StoppedSide,
)
from .._execution.live import counted_by, zeroed, zeroed_entries
from ..objectives import AnyObjective, Objective
from ..pairings import Tile, of_positives
from ..similarities import AnySimilarity, takes_tokens
from .queue import Queue, extra_columns, with_batch_columns

__all__ = ["at_most", "clip", "cpc", "info_nce", "n_tuple", "relic", "siglip", "with_negatives"]


@propagates_errors
@takes_tokens
def info_nce(
    query: ArrayOf[ArrayT],
    positive_key: AnyArray,
    /,
    negative_keys: AnyArray | None = None,
    *,
    temperature: float | AnyArray = 0.07,
    symmetric: bool = False,
    similarity: AnySimilarity = "cosine",
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    multi_positive: MultiPositive = "each",
    hardness: float = 0.0,
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the InfoNCE loss of queries and keys.

    .. math:: \ell_i = \log(1 + e^{u_i}), \qquad u_i = \mathrm{lse}_{j \in Q(i)}\, g_{ij} - g_{ii},
        \qquad g_{ij} = s(q_i, k_j) / \tau,

    the cross-entropy :math:`-\log \mathrm{softmax}(g_i)_i`, computed without cancellation in value or gradient when the
    positive leads by far.

    Parameters
    ----------
    query : array, shape (N, D)
        Embeddings of the queries.
    positive_key : array, shape (N, D), or (K, D) with `positives`
        Embeddings of the keys; key i belongs to query i.
    negative_keys : array, shape (M, D) or (N, M, D), optional
        Negatives shared by all queries, or separate for each query. None uses the other rows of `positive_key`.
    temperature : float, or array of one entry or of shape (N,), default: 0.07
        Temperature τ > 0, shared or one per row; differentiable if an array.
    symmetric : bool, default: False
        Whether to average the losses of queries against keys and of keys against queries. With `positives`, there may
        be more keys or more queries, such as several captions of an image; keys without a query do not count.
        `weights`, temperatures of rows and reduction "none" need as many keys as queries.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`. With separate negatives for each query, a callable
        maps (N, 1, D) and (N, M, D) to (N, 1, M).
    positives : array of int (N,), of bool (N, K) or of float (N, K), optional
        Rows of `positive_key` that belong to each query (index or mask), or their weights (soft targets; see
        `portable_nce.pairings.soft`); row i by default. Out-of-range indices raise for NumPy and eager PyTorch CPU
        tensors; elsewhere such a query has no positive.
    mask : array of bool, shape (N, K), or (N, M) with `negative_keys`, optional
        Pairs (with `negative_keys`: negatives) to include; all by default.
    weights : array, shape (N,), optional
        Weights of the queries.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the queries that have a positive (0 if none has), weighted sum, or the weighted losses of the
        queries.
    multi_positive : {"each", "pooled", "separate"}, default: "each"
        Treatment of several positives; see `portable_nce.objectives.info_nce`.
    hardness : float, default: 0.0
        Strength α ≥ 0 of the emphasis on hard negatives: the constant :math:`\alpha\, \mathrm{sg}(s_{ij})` is added to
        their scores :math:`g_{ij}` (EmbeddingGemma has α = 5).
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`. Separate negatives are not streamed,
        since they take more memory than their scores.
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

    References
    ----------
    van den Oord, Li and Vinyals (2018), "Representation Learning with Contrastive Predictive Coding",
    arXiv:1807.03748, equation 4. Hardness: Lan et al. (2025), "LLaVE: Large Language and Vision Embedding
    Models with Hardness-Weighted Contrastive Learning", arXiv:2503.04812, equation 5; Vera et al. (2025),
    "EmbeddingGemma: Powerful and Lightweight Text Representations", arXiv:2509.20354.

    Examples
    --------
    PyTorch, with a learned temperature:

    >>> import torch
    >>> import portable_nce as pnce
    >>> query = torch.randn(256, 128, requires_grad=True)
    >>> key = torch.randn(256, 128, requires_grad=True)
    >>> log_temperature = torch.nn.Parameter(torch.tensor(0.07).log())
    >>> loss = pnce.info_nce(query, key, temperature=log_temperature.exp(), symmetric=True)
    >>> loss.backward()
    >>> query.grad.shape, log_temperature.grad.shape
    (torch.Size([256, 128]), torch.Size([]))

    Seven hard negatives per query in place of the other keys; then 512 hard negatives in addition to them:

    >>> loss = pnce.info_nce(query, key, torch.randn(256, 7, 128))
    >>> loss = pnce.info_nce(query, torch.cat([key, torch.randn(512, 128)]), positives=torch.arange(256))

    NumPy, with both gradients:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> q, noise = rng.standard_normal((2, 256, 128))
    >>> value, (dq, dk) = pnce.value_and_grad(pnce.info_nce, argnums=(0, 1))(q, q + noise, temperature=0.1)
    >>> value, dq.shape
    (array(0.31793...), (256, 128))
    """
    objective = objectives.info_nce(multi_positive=multi_positive)
    options = LossOptions(
        temperature, similarity, mask, weights, reduction, block_size, precision, across, symmetric, hardness
    )
    if negative_keys is None:
        embeddings = {"query": query, "positive_key": positive_key}
        if positives is None:
            return contrast_embeddings(embeddings, objective, pairings.diagonal(), options, _NAMED)
        xp, (query, positive_key, positives) = common_namespace(**embeddings, positives=positives)
        shape = (shape_of("query", query, "(N, D)")[0], shape_of("positive_key", positive_key, "(K, D)")[0])
        pairing = of_positives(xp, positives, shape if across is None else (shape[0], _columns_of_all(positives)))
        return contrast_embeddings(embeddings, objective, pairing, options)
    for name, value, default in (("symmetric", symmetric, False), ("positives", positives, None)):
        if value is not default:
            raise ValueError(
                f"{name}: expected {default} with negative_keys, got {value!r}; it needs in-batch negatives"
            )
    embeddings = {"query": query, "positive_key": positive_key, "negative_keys": negative_keys}
    return with_negatives(enter_embeddings(embeddings, options, axes=None), objective)


@propagates_errors
def n_tuple(
    query: ArrayOf[ArrayT],
    key: AnyArray,
    /,
    *,
    l2: float | AnyArray = 0.0,
    temperature: float | AnyArray = 1.0,
    similarity: AnySimilarity = "dot",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the (N+1)-tuple loss (multi-class N-pair loss): InfoNCE of unnormalised embeddings with an L2 penalty.

    .. math:: \ell_i = \log\Big(1 + \sum_{j \ne i} e^{q_i^\top k_j - q_i^\top k_i}\Big)
        + \beta\, (\lVert q_i \rVert^2 + \lVert k_i \rVert^2)

    Parameters
    ----------
    query, key : array, shape (N, D)
        Embeddings; row i of one belongs to row i of the other.
    l2 : float or array of one entry, default: 0.0
        Factor β of the squared norms. TensorFlow's ``npairs_loss(reg_lambda=λ)`` has β = λ / 4.
    temperature : float, or array of one entry or of shape (N,), default: 1.0
        Temperature τ > 0, shared or one per row; differentiable if an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "dot"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the pairs.
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

    References
    ----------
    Sohn (2016), "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", NeurIPS 29, equation 6 and
    section 3.2.2.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> query = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> key = np.asarray([[0.8, 0.6], [0.6, 0.8]])
    >>> pnce.n_tuple(query, key, l2=0.01)
    array(0.61813...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    check_scalar("l2", l2)
    entered = enter_embeddings({"query": query, "key": key}, options, numbers={"l2": l2})
    xp, options, (x, y) = entered.xp, entered.options, entered.arrays
    loss = contrast_embeddings(entered.embeddings, objectives.info_nce(), pairings.diagonal(), options)
    if is_number(l2) and not l2:
        return add((loss,), entered.dtype, reduction)
    shards = shards_of_rows(across, x)
    counted = xp.ones(x.shape[:1], dtype=xp.bool, device=device_of(x))
    if options.mask is not None:
        counted = has_own_column(xp, options.mask, 0 if shards is None else shards.first_row())
    x, y = entered.without_idle(None if options.mask is None else counted).arrays
    lengths = xp.sum(x * x, axis=-1) + xp.sum(y * y, axis=-1)
    penalty = lengths * scalar(xp, "l2", entered.numbers["l2"], x)
    penalty = Reduction(reduction, options.weights, shards).of_values(penalty, counted)
    end_exchange(across)
    return add((loss, penalty), entered.dtype, reduction)


@propagates_errors
def cpc(
    context: ArrayOf[ArrayT],
    targets: AnyArray,
    projections: AnyArray,
    /,
    *,
    temperature: float | AnyArray = 1.0,
    similarity: AnySimilarity = "dot",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the loss of contrastive predictive coding (CPC): each context predicts targets several steps ahead.

    .. math:: \frac1S \sum_{s=1}^S -\log \mathrm{softmax}_j\big(g^s_{ij}\big)_i, \qquad
        g^s_{ij} = z_{sj}^\top W_s\, c_i / \tau

    Parameters
    ----------
    context : array, shape (N, D)
        Contexts c.
    targets : array, shape (S, N, E)
        Targets z of each step; row i of each belongs to context i.
    projections : array, shape (S, E, D)
        Matrix W of each step.
    temperature : float, or array of one entry or of shape (N,), default: 1.0
        Temperature τ > 0, shared or one per row; differentiable if an array.
    similarity : {"dot", "cosine", "neg_sq_euclidean", ...}, Similarity or callable, default: "dot"
        How a target is compared with its prediction :math:`W_s\, c_i`; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), optional
        Pairs of context and target to include, at every step; all by default.
    weights : array, shape (N,), optional
        Weights of the contexts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the contexts that have a positive (0 if none has), weighted sum, or the weighted losses of
        the contexts; a loss is the mean over the steps.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `context`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    van den Oord, Li and Vinyals (2018), "Representation Learning with Contrastive Predictive Coding",
    arXiv:1807.03748, equations 3 and 4.

    Examples
    --------
    PyTorch, with contexts of a recurrent network that predict four steps, by learned projections:

    >>> import torch
    >>> import portable_nce as pnce
    >>> context = torch.randn(128, 256, requires_grad=True)
    >>> targets = torch.randn(4, 128, 64, requires_grad=True)
    >>> projections = torch.nn.Parameter(torch.randn(4, 64, 256) / 16)
    >>> loss = pnce.cpc(context, targets, projections)
    >>> loss.backward()
    >>> context.grad.shape, projections.grad.shape
    (torch.Size([128, 256]), torch.Size([4, 64, 256]))

    NumPy, where the targets are the contexts plus noise, and cosines replace inner products:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> c = rng.standard_normal((128, 64))
    >>> z, identity = c + rng.standard_normal((4, 128, 64)), np.stack([np.eye(64)] * 4)
    >>> pnce.cpc(c, z, identity, similarity="cosine", temperature=0.1)
    array(0.24403...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    named = {"context": context, "targets": targets, "projections": projections}
    entered = enter_embeddings(named, options, axes=None)
    xp, options, (x, y, matrices), dtype = entered.xp, entered.options, entered.arrays, entered.dtype
    rows, width = shape_of("context", x, "(N, D)")
    steps, _, target_width = shape_of("targets", y, "(S, N, E)")
    check_shape("targets", y, (steps, rows, target_width), "steps are the first axis, contexts the second")
    check_shape("projections", matrices, (steps, target_width, width))
    present = None
    if options.mask is not None:
        check_mask(xp, "mask", options.mask, (rows, rows if across is None else _columns_of_all(options.mask)))
        present = has_own_column(xp, options.mask) if across is None else xp.any(options.mask, axis=1)
    weights = row_weights(xp, options.weights, rows, x)
    x = zeroed(x, counted_by(weights, present))  # the predictions are the product of all contexts
    layout = ColumnLayout(agreed_on={"steps": steps})
    parts = []
    for step in range(steps):
        (prediction,) = adapter_of(x).custom_vjp(_projected, _pull_projected)(None, x, matrices[step, ...])
        embeddings = {
            "context": Embedding(prediction, (prediction.dtype,)),
            "targets": entered.embeddings["targets"]._replace(array=y[step, ...]),
        }
        part = contrast_embeddings(embeddings, objectives.info_nce(), pairings.diagonal(), options, layout)
        parts.append(part)
    return add(parts, dtype, reduction, divide_by=steps)


def _projected(_: None, x: Array, matrix: Array) -> tuple[Array]:
    """Products (N, E) of rows (N, D) and a matrix (E, D)."""
    with adapter_of(x).full_precision(x):
        return (x @ matrix.T,)


def _pull_projected(
    _: None, arrays: Sequence[Array], outputs: Sequence[Array], cotangents: Sequence[Array]
) -> tuple[Array, Array]:
    # PyTorch's own rule takes another product for a transposed matrix, whose last digit may differ from the tape's.
    (x, matrix), (cotangent,) = arrays, cotangents
    del outputs
    with adapter_of(x).full_precision(x):
        return cotangent @ matrix, cotangent.T @ x


@propagates_errors
@takes_tokens
def clip(
    image: ArrayOf[ArrayT],
    text: AnyArray,
    /,
    *,
    logit_scale: float | AnyArray,
    max_logit_scale: float | None = 100.0,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the CLIP loss of images and texts: symmetric InfoNCE with a learned scale.

    .. math:: \tfrac12 \Big(\frac1N \sum_i -\log \mathrm{softmax}_j(g_{ij})_i
        + \frac1N \sum_{j \le N} -\log \mathrm{softmax}_i(g_{ij})_j\Big), \qquad
        g_{ij} = \mathrm{scale} \cdot s(x_i, y_j).

    Parameters
    ----------
    image : array, shape (N, D)
        Embeddings of the images.
    text : array, shape (K, D)
        Embeddings of the texts; text i belongs to image i. Texts beyond N are negatives of all images, such as
        NegCLIP's hard negative captions. For several captions of an image, use
        ``info_nce(image, text, positives=, symmetric=True)``.
    logit_scale : float or array of one entry
        Factor of the similarities, the inverse temperature. Models learn its logarithm, starting at a scale of
        ``1 / 0.07``. Differentiable if an array.
    max_logit_scale : float or None, default: 100.0
        Larger scales are clipped to this one; None disables the limit. The gradient of a clipped scale is the gradient
        at the limit if descent makes the scale smaller, and 0 otherwise, so that the scale can return. (open_clip clips
        the parameter itself after each step.) An infinite scale, such as the exponential of 89 in float32, is an error,
        or makes the loss NaN where entries cannot be read. In forward mode, the derivative by a clipped scale is 0.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the pairs.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean, weighted sum, or the weighted losses of the pairs; a loss is the mean of both directions. "none"
        needs as many texts as images.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `image`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Radford et al. (2021), "Learning Transferable Visual Models From Natural Language Supervision",
    arXiv:2103.00020, figure 3. Further texts: Yuksekgonul et al. (2023), "When and Why Vision-Language Models Behave
    like Bags-of-Words, and What to Do About It?", arXiv:2210.01936, section 4 (NegCLIP).

    Examples
    --------
    PyTorch, with a learned scale:

    >>> import torch
    >>> import portable_nce as pnce
    >>> image = torch.randn(256, 512, requires_grad=True)
    >>> text = torch.randn(256, 512, requires_grad=True)
    >>> log_scale = torch.nn.Parameter(torch.tensor(1 / 0.07).log())
    >>> loss = pnce.clip(image, text, logit_scale=log_scale.exp())
    >>> loss.backward()
    >>> image.grad.shape, log_scale.grad.shape
    (torch.Size([256, 512]), torch.Size([]))

    NumPy, with both gradients:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, noise = rng.standard_normal((2, 256, 128))
    >>> value, (dx, dy) = pnce.value_and_grad(pnce.clip, argnums=(0, 1))(x, x + noise, logit_scale=10.0)
    >>> value, dx.shape
    (array(0.31817...), (256, 128))
    """
    if max_logit_scale is not None:
        logit_scale = at_most(logit_scale, check_number("max_logit_scale", max_logit_scale, above=0.0))
    options = LossOptions(
        logit_scale, similarity, mask, weights, reduction, block_size, precision, across, symmetric=True
    )
    options, embeddings = options._replace(scaled_by="logit_scale"), {"image": image, "text": text}
    return contrast_embeddings(embeddings, objectives.info_nce(), pairings.diagonal(), options)


@propagates_errors
@takes_tokens
def siglip(
    image: ArrayOf[ArrayT],
    text: AnyArray,
    /,
    *,
    logit_scale: float | AnyArray,
    logit_bias: float | AnyArray,
    negative_only: bool = False,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the SigLIP loss of images and texts: an independent binary classification of every pair.

    .. math:: \frac1N \sum_i \Big(\log(1 + e^{-z_{ii}}) + \sum_{j \ne i} \log(1 + e^{z_{ij}})\Big), \qquad
        z_{ij} = \mathrm{scale} \cdot s(x_i, y_j) + \mathrm{bias}

    Parameters
    ----------
    image, text : array, shape (N, D)
        Embeddings; row i of one belongs to row i of the other. With `negative_only`, any number K of texts.
    logit_scale : float or array of one entry
        Factor of the similarities. Models learn its logarithm, starting at a scale of 10. Differentiable if an array.
    logit_bias : float or array of one entry
        Bias added to the scaled similarities. Models start at -10. Differentiable if an array.
    negative_only : bool, default: False
        Whether all pairs are negatives: the loss is the sum of :math:`\log(1 + e^{z_{ij}})` over all pairs, for a block
        of other texts such as those of another rank. The losses of the blocks of a batch add up.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), or (N, K) with `negative_only`, optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the images.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the images that have a pair (without a mask, the sum over all pairs divided by N, not by N²),
        weighted sum, or the weighted losses of the images.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `image`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Zhai, Mustafa, Kolesnikov and Beyer (2023), "Sigmoid Loss for Language Image Pre-Training", arXiv:2303.15343,
    equation 1 and algorithm 1.

    Examples
    --------
    PyTorch, with a learned scale and bias:

    >>> import torch
    >>> import portable_nce as pnce
    >>> image = torch.randn(256, 512, requires_grad=True)
    >>> text = torch.randn(256, 512, requires_grad=True)
    >>> log_scale = torch.nn.Parameter(torch.tensor(10.0).log())
    >>> bias = torch.nn.Parameter(torch.tensor(-10.0))
    >>> loss = pnce.siglip(image, text, logit_scale=log_scale.exp(), logit_bias=bias)
    >>> loss.backward()
    >>> image.grad.shape, log_scale.grad.shape, bias.grad.shape
    (torch.Size([256, 512]), torch.Size([]), torch.Size([]))

    NumPy, for 64 images against their texts, and against 192 texts of other images; the two losses add up:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, other = rng.standard_normal((64, 128)), rng.standard_normal((192, 128))
    >>> pnce.siglip(x, x + rng.standard_normal((64, 128)), logit_scale=10.0, logit_bias=-10.0)
    array(3.03623...)
    >>> pnce.siglip(x, other, logit_scale=10.0, logit_bias=-10.0, negative_only=True)
    array(0.01322...)
    """
    negative_only = check_bool("negative_only", negative_only)
    options = LossOptions(logit_scale, similarity, mask, weights, reduction, block_size, precision, across)
    return contrast_embeddings(
        {"image": image, "text": text},
        _logistic,
        pairings.candidates() if negative_only else pairings.diagonal(),
        options._replace(scaled_by="logit_scale"),
        ColumnLayout(paired=not negative_only),
        parameters={"logit_bias": logit_bias},
    )


@propagates_errors
def relic(
    view_a: ArrayOf[ArrayT],
    view_b: AnyArray,
    /,
    *,
    keys: AnyArray | Queue | None = None,
    temperature: float | AnyArray = 0.1,
    alpha: float | AnyArray = 1.0,
    direction: RelicDirection = "a_to_b",
    stop_gradient: StoppedSide | None = None,
    symmetric: bool = False,
    include_positive: bool = True,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the RELIC loss of two views: InfoNCE plus a divergence between the views' distributions over the batch.

    .. math:: \ell_i = -\log p^a_{ii} + \alpha\, \mathrm{KL}(p^a_i \,\Vert\, p^b_i), \qquad
        p^a_{ij} = \mathrm{softmax}_j\, s(a_i, b_j) / \tau, \quad p^b_{ij} = \mathrm{softmax}_j\, s(a_j, b_i) / \tau

    With K `keys` m, a memory bank, both distributions are over N + K columns; the last K have the scores
    :math:`s(a_i, m_k) / \tau` and :math:`s(b_i, m_k) / \tau`. With ``symmetric=True`` and ``include_positive=False``,
    the divergence is CO2's consistency term.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other.
    keys : array, shape (K, D), or Queue, optional
        Further negatives, shared by all rows of both views: a memory bank. A `Queue` has no gradient, and its empty
        slots are ignored. With `across`, an array holds the keys of this rank; a queue is the same on all ranks.
    temperature : float, or array of one entry or of shape (N,), default: 0.1
        Temperature τ > 0, shared or one per row; differentiable if an array.
    alpha : float or array of one entry, default: 1.0
        Weight α of the divergence.
    direction : {"a_to_b", "b_to_a"}, default: "a_to_b"
        ``"b_to_a"`` takes :math:`\mathrm{KL}(p^b_i \,\Vert\, p^a_i)`.
    stop_gradient : {None, "first", "second"}, default: None
        Distribution of the divergence that is treated as a constant.
    symmetric : bool, default: False
        Whether to average the loss over both orders of the views.
    include_positive : bool, default: True
        Whether the divergence is over all columns, or over the negatives alone (CO2).
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), or (N, N + K) with `keys`, optional
        Pairs to include; all by default. Entry (i, j) includes sample j, or key j - N, in both distributions of row i.
    weights : array, shape (N,), optional
        Weights of the pairs.
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
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `view_a`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Mitrovic, McWilliams, Walker, Buesing and Blundell (2021), "Representation Learning via Invariant Causal
    Mechanisms", arXiv:2010.07922, section 3. Wei, Wang, Shen and Yuille (2021), "CO2: Consistent Contrast for
    Unsupervised Visual Representation Learning", arXiv:2010.02217, for the memory bank.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> view_a = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> view_b = np.asarray([[0.8, 0.6], [0.0, 1.0]])
    >>> pnce.relic(view_a, view_b, temperature=1.0)
    array(0.48308...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    objective = objectives.relic(
        alpha=alpha,
        direction=direction,
        stop_gradient=stop_gradient,
        symmetric=symmetric,
        include_positive=include_positive,
    )
    named, pairing = {"view_a": view_a, "view_b": view_b}, pairings.diagonal()
    if keys is None:
        return contrast_embeddings(named, objective, pairing, options, PAIRED)
    # Upcast before concatenation, so that a 16-bit gradient is rounded once and not once per use.
    entered = enter_embeddings(named, options)
    first, second = entered.embeddings.values()
    check_shape("view_b", second.array, tuple(first.array.shape))
    columns, valid = extra_columns(first.array, first.array.shape[0], keys)
    layout = ColumnLayout(replicated=isinstance(keys, Queue), opposite=(second, first.joined(columns)))
    return contrast_embeddings(
        {"view_a": first, "view_b and keys": second.joined(columns)},
        objective,
        pairings.with_negatives(pairing, *valid),
        entered.options,
        layout,
        dtype=result_dtype(entered.xp, first, second, columns),
    )


_NAMED = PAIRED._replace(remedy="with further keys, pass the key of each query, as in positives=arange(N)")


def _logistic(parameters: dict[str, Any]) -> AnyObjective:
    return objectives.logistic(bias=parameters["logit_bias"])


def _columns_of_all(pairs: Array) -> int:
    """Number of columns on all ranks by an array of pairs; for indices, an upper bound."""
    return int(pairs.shape[1]) if len(pairs.shape) > 1 else 2**31


def _first_column(tile: Tile) -> tuple[Array, Array]:
    return tile.j == 0, tile.j > 0


def with_negatives(
    entered: Call, objective: Objective, valid: Array | None = None, layout: ColumnLayout = ANY
) -> Array:
    """Softmax loss of queries and keys with shared negatives (M, D), optionally masked, or separate ones (N, M, D)."""
    xp, options, (x, y, z), (query, key, negatives) = entered.xp, entered.options, entered.arrays, entered.embeddings
    n_rows, _ = shape_of(query, x, "(N, D)")
    _, width = shape_of(key, y, "(N, D)")
    check_shape(key, y, (n_rows, width))
    if len(z.shape) not in {2, 3}:
        raise ValueError(f"{negatives}: expected shape (M, D) or (N, M, D), got {tuple(z.shape)}")
    of_each = len(z.shape) == 3  # noqa: PLR2004  (separate for each query)
    own = False if layout.replicated else None  # a queue is the same on all ranks
    *_, n_negatives, _ = shape_of(negatives, z, "(N, M, D)" if of_each else "(M, D)", may_be_empty=own)
    check_width(negatives, z, width)
    check_shape(negatives, z, (*([n_rows] if of_each else []), n_negatives, width), "queries are the first axis")
    if options.mask is not None:
        alone = options.across is None or of_each or layout.replicated
        check_mask(xp, "mask", options.mask, (n_rows, n_negatives if alone else _columns_of_all(options.mask)))
        own = xp.ones((n_rows, 1 if of_each else n_rows), dtype=xp.bool, device=device_of(x))
        options = options._replace(mask=xp.concat([own, options.mask], axis=1))
    if not of_each:
        pairing = pairings.queue(None if valid is None else with_batch_columns(valid, n_rows))
        return contrast_embeddings(entered.embeddings, objective, pairing, options, layout, dtype=entered.dtype)
    options = options._replace(weights=row_weights(xp, options.weights, n_rows, x))
    # A score matrix (N, 1 + M) with the positives in front.
    members = None if options.mask is None else options.mask[:, 1:]
    live = counted_by(options.weights, None if members is None else xp.any(members, axis=1))
    x, y = zeroed(x, live), zeroed(y, live)
    z = zeroed_entries(z, counted_by(None, members, None if live is None else live[:, None]))
    temperature = temperature_of(xp, options.temperature, n_rows, x, shared=options.across is not None)
    same_width(options.similarity, query, x, key, y)
    hardness = check_hardness(options.hardness, objective)
    shards = shards_of_rows(options.across, x, temperature)
    scale = scale_of(xp, temperature, x, shards)
    result = contrast_scores(
        xp.concat([pair_scores(options.similarity, x, keys, scale) for keys in (y, z)], axis=1),
        objective,
        pairings.Pairing(_first_column, one_per_row=True),
        Reduction(options.reduction, options.weights, shards),
        mask=options.mask,
        sharpness=sharpness_of(hardness, scale, x),
    )
    end_exchange(options.across)
    return finish(xp, result, entered.dtype, options.reduction)


def at_most(value: Any, limit: float) -> Any:
    """Minimum of `value` and `limit`; other types than numbers and arrays pass unchecked.

    For larger values, only a positive gradient passes, so that descent can make the value smaller.
    """
    if is_number(value):
        if limit < value < math.inf:  # not `min`, which torch.compile makes a constant
            return limit
        return value  # NaN and infinity stay, and are rejected later
    if not is_array(value):
        return value
    xp, (value,) = common_namespace(logit_scale=value)
    check_floating(xp, logit_scale=value)
    check_library("logit_scale", value)
    most = readable_entry(value, largest) if math.prod(value.shape) == 1 else None
    if most is not None and (most <= limit or most == math.inf):
        return value  # an infinite scale is rejected later: its gradient by a logarithm would be 0 times infinity
    return adapter_of(value).custom_vjp(_clamp, _pull_clamp, exact=False)(limit, value)[0]


def _clamp(limit: float, value: Array) -> tuple[Array, ...]:
    xp = namespace_of(value)
    clipped = xp.where(value > limit, xp.full_like(value, limit), value)
    return (xp.where(value == math.inf, math.nan, clipped),)


def _pull_clamp(
    limit: float, arrays: tuple[Array, ...], outputs: tuple[Array, ...], cotangents: tuple[Array, ...]
) -> tuple[Array, ...]:
    del outputs
    (value,), (cotangent,) = arrays, cotangents
    xp = namespace_of(value, cotangent)
    outward = xp.logical_and(value > limit, cotangent < 0)
    return (xp.where(outward, xp.zeros_like(cotangent), cotangent),)
