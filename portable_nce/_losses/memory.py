"""Losses with a memory without gradient: queues of keys, support sets of neighbours.

`moco`, the plain formula: the key of the query against the queue alone.

>>> import numpy as np
>>> import portable_nce as pnce
>>> x, y, queue = np.random.default_rng(0).standard_normal((3, 6, 4))
>>> q, k, m = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y, queue))
>>> own, others = np.exp((q * k).sum(axis=1) / 0.2), np.exp(q @ m.T / 0.2).sum(axis=1)
>>> bool(np.isclose(-np.log(own / (own + others)).mean(), pnce.moco(x, y, queue, temperature=0.2)))
True
"""

from __future__ import annotations

from typing import Any, get_args

from .. import objectives, pairings
from .._call import ColumnLayout, Embedding, LossOptions, contrast_embeddings, enter_embeddings, same_width
from .._core.autodiff import stop_gradient
from .._core.checks import check_bool, check_choice, check_mask, check_shape, shape_of
from .._core.namespace import namespace_of
from .._core.numerics import nan_of
from .._core.protocol import Array
from .._core.ranks import Ranks, propagates_errors
from .._core.reduction import add
from .._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, NegativesOfViews, Precision, ReductionName
from .._execution.live import zeroed
from .._execution.search import search
from ..similarities import AnySimilarity
from .in_batch import with_negatives
from .queue import Queue, columns_of

__all__ = ["against_queue", "moco", "moco_v3", "nnclr"]

NEGATIVES: tuple[NegativesOfViews, ...] = get_args(NegativesOfViews)


@propagates_errors
def moco(
    query: ArrayOf[ArrayT],
    key: AnyArray,
    queue: AnyArray | Queue,
    /,
    *,
    temperature: float | AnyArray = 0.07,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the MoCo loss: InfoNCE of queries and keys with a queue of earlier keys as negatives.

    .. math:: \ell_i = -\log \frac{e^{s(q_i, k_i) / \tau}}{e^{s(q_i, k_i) / \tau} + \sum_m e^{s(q_i, c_m) / \tau}}

    Parameters
    ----------
    query, key : array, shape (N, D)
        Embeddings; row i of one belongs to row i of the other. In MoCo the keys come from the momentum encoder, without
        gradient.
    queue : array, shape (M, D), or Queue
        Earlier keys c, without gradient. Empty slots of a `Queue` are ignored.
    temperature : float, or array of one entry or of shape (N,), default: 0.07
        Temperature τ > 0, shared or one per row; differentiable if an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, M), optional
        Pairs of query and queue to include; all by default.
    weights : array, shape (N,), optional
        Weights of the queries.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the queries, weighted sum, or the weighted losses of the queries.
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
    queue_init, queue_push : The queue.

    References
    ----------
    He, Fan, Wu, Xie and Girshick (2020), "Momentum Contrast for Unsupervised Visual Representation Learning",
    arXiv:1911.05722, equation 1.

    Examples
    --------
    PyTorch, with a queue to which each step appends the keys of the momentum encoder:

    >>> import torch
    >>> import portable_nce as pnce
    >>> query, key = torch.randn(256, 128, requires_grad=True), torch.randn(256, 128)
    >>> queue = pnce.queue_init(key, size=4096)
    >>> queue = pnce.queue_push(queue, torch.randn(256, 128))  # of an earlier step
    >>> loss = pnce.moco(query, key, queue, temperature=0.2)
    >>> loss.backward()
    >>> queue = pnce.queue_push(queue, key)
    >>> query.grad.shape, int(queue.valid.sum())
    (torch.Size([256, 128]), 512)

    NumPy, with an array of earlier keys:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> q, noise = rng.standard_normal((2, 256, 128))
    >>> value, gradient = pnce.value_and_grad(pnce.moco)(q, q + noise, rng.standard_normal((1024, 128)))
    >>> value, gradient.shape
    (array(0.12103...), (256, 128))
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    return against_queue(query, key, queue, options)


def against_queue(query: Array | Embedding, key: Array, queue: Array | Queue, options: LossOptions) -> Array:
    """Loss of `moco`, also for queries that are already upcast."""
    slots, valid = columns_of("queue", queue)
    x = query.array if isinstance(query, Embedding) else query
    entered = enter_embeddings({"query": x, "key": key, "queue": slots}, options, axes=None)
    constant = entered.embeddings["queue"]
    entered.embeddings["queue"] = constant._replace(array=stop_gradient(constant.array))
    if isinstance(query, Embedding):
        entered.embeddings["query"] = entered.embeddings["query"]._replace(dtypes=query.dtypes)
    return with_negatives(entered, objectives.info_nce(), valid, ColumnLayout(replicated=True))


@propagates_errors
def moco_v3(
    query_a: ArrayOf[ArrayT],
    query_b: AnyArray,
    key_a: AnyArray,
    key_b: AnyArray,
    /,
    *,
    temperature: float | AnyArray = 0.2,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the MoCo v3 loss: in-batch InfoNCE of each view's queries with the other view's keys.

    .. math:: \ell_i = 2\tau \Big(-\log \mathrm{softmax}_j\big(s(q^a_i, k^b_j) / \tau\big)_i
        - \log \mathrm{softmax}_j\big(s(q^b_i, k^a_j) / \tau\big)_i\Big)

    Parameters
    ----------
    query_a, query_b : array, shape (N, D)
        Queries of two views of a batch.
    key_a, key_b : array, shape (N, D)
        Keys of the same views, without gradient.
    temperature : float, or array of one entry or of shape (N,), default: 0.2
        Temperature τ > 0, shared or one per row; differentiable if an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), optional
        Pairs of query and key to include, in both terms; all by default.
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
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `query_a`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Chen, Xie and He (2021), "An Empirical Study of Training Self-Supervised Vision Transformers", arXiv:2104.02057,
    algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> view_a = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> view_b = np.asarray([[0.8, 0.6], [0.6, 0.8]])
    >>> pnce.moco_v3(view_a, view_b, view_a, view_b, temperature=0.5)
    array(1.02603...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    named = {"query_a": query_a, "query_b": query_b, "key_a": key_a, "key_b": key_b}
    entered = enter_embeddings(named, options)
    a, b, *keys = entered.arrays
    check_shape("query_b", b, tuple(a.shape))
    pairing, embeddings = pairings.diagonal(), entered.with_arrays(a, b, *map(stop_gradient, keys)).embeddings
    parts = []
    for names in (("query_a", "key_b"), ("query_b", "key_a")):
        pair = {name: embeddings[name] for name in names}
        part = contrast_embeddings(pair, objectives.info_nce(), pairing, entered.options, factor=_twice_temperature)
        parts.append(part)
    return add(parts, entered.dtype, reduction)


def _twice_temperature(options: dict[str, Any]) -> Any:
    return 2.0 * options["temperature"]


@propagates_errors
def nnclr(
    view_a: ArrayOf[ArrayT],
    view_b: AnyArray,
    support: AnyArray | Queue,
    /,
    *,
    temperature: float | AnyArray = 0.1,
    negatives: NegativesOfViews = "batch",
    symmetric: bool = False,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the NNCLR loss: the nearest neighbour of one view in a support set is contrasted with the other view.

    .. math:: \ell_i = -\log \frac{e^{s(n_i, b_i) / \tau}}{\sum_j e^{s(n_i, b_j) / \tau}}, \qquad
        n_i = \arg\max_{c \in \mathrm{support}} s(a_i, c)

    The neighbour is a constant, so `view_a` has no gradient; train on the mean of the losses with both orders of the
    views.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other. NaN in `view_a` makes the loss
        NaN.
    support : array, shape (M, D), or Queue
        Candidate neighbours, without gradient. Empty slots of a `Queue` are not chosen; with an empty queue no row
        counts.
    temperature : float, or array of one entry or of shape (N,), default: 0.1
        Temperature τ > 0, shared or one per row; differentiable if an array.
    negatives : {"batch", "views"}, default: "batch"
        Negatives of a neighbour: the other rows of `view_b` (the paper), or also the other neighbours, as in `nt_xent`
        (lightly).
    symmetric : bool, default: False
        Whether to average the losses of neighbours against `view_b` and of `view_b` against neighbours, as in the
        paper's appendix; negatives "views" include both directions already.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), or (2N, 2N) with negatives "views", optional
        Pairs of neighbour and row of `view_b` (or of views) to include; all by default.
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
        Loss in nats: 0-d, or shape (N,) for reduction "none" ((2N,) with negatives "views"), of the library, dtype and
        device of `view_a`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Dwibedi, Aytar, Tompson, Sermanet and Zisserman (2021), "With a Little Help from My Friends: Nearest-Neighbor
    Contrastive Learning of Visual Representations", arXiv:2104.14548, section 3.

    Examples
    --------
    PyTorch, with a queue as the support set, and each view contrasted with neighbours of the other:

    >>> import torch
    >>> import portable_nce as pnce
    >>> view_a = torch.randn(256, 128, requires_grad=True)
    >>> view_b = torch.randn(256, 128, requires_grad=True)
    >>> support = pnce.queue_push(pnce.queue_init(view_a, size=4096), torch.randn(1024, 128))
    >>> loss = (pnce.nnclr(view_a, view_b, support) + pnce.nnclr(view_b, view_a, support)) / 2
    >>> loss.backward()
    >>> support = pnce.queue_push(support, view_a)
    >>> view_a.grad.shape, int(support.valid.sum())
    (torch.Size([256, 128]), 1280)

    NumPy, with an array as the support set, and the gradient to the second view:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> a, b, c = rng.standard_normal((64, 32)) + 0.5 * rng.standard_normal((3, 64, 32))
    >>> value, gradient = pnce.value_and_grad(pnce.nnclr, argnums=1)(a, b, c)
    >>> value, gradient.shape
    (array(0.13327...), (64, 32))
    """
    check_choice("negatives", negatives, NEGATIVES)
    symmetric = check_bool("symmetric", symmetric)
    if symmetric and negatives == "views":
        raise ValueError('symmetric: expected False with negatives="views", which contrasts both ways already')
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across, symmetric)
    slots, valid = columns_of("support", support)
    entered = enter_embeddings({"view_a": view_a, "view_b": view_b, "support": slots}, options, axes=None)
    xp, options, (x, y, z) = entered.xp, entered.options, entered.arrays
    rows, _ = shape_of("view_a", x, "(N, D)")
    _, width = shape_of("support", z, "(M, D)", may_be_empty=False)
    check_shape("view_b", y, (rows, width if negatives == "views" else shape_of("view_b", y, "(N, D)")[1]))
    same_width(similarity, "view_a", x, "support", z)
    if options.mask is not None:
        size = 2 * rows if negatives == "views" else rows
        _, of_all = shape_of("mask", options.mask, "(N, K)")
        check_mask(xp, "mask", options.mask, (size, size if across is None else of_all))
        present = xp.any(options.mask, axis=1)
        if negatives == "views":  # with ranks, the mask of a row as a column is on other ranks
            columns = None if across is not None else xp.any(options.mask, axis=0)
            present = None if columns is None else xp.logical_or(present, columns)[:rows]
        x = zeroed(x, present)
    anchors, other, candidates = entered.with_arrays(x, y, z).embeddings.values()
    neighbors, has_neighbor = _nearest(anchors, candidates, options, valid)
    embeddings, pairing, layout = {"neighbors": neighbors, "view_b": other}, pairings.diagonal(), ColumnLayout()
    if negatives == "views":
        embeddings, pairing, layout = {"views": neighbors.joined(other)}, pairings.two_views(), ColumnLayout(views=2)
        has_neighbor = xp.concat([has_neighbor, has_neighbor], axis=0)
        if options.weights is not None and tuple(options.weights.shape) == (rows,):
            options = options._replace(weights=xp.concat([options.weights] * 2, axis=0))
    pairing = pairings.for_marked_rows(pairing, has_neighbor) if valid is not None else pairing
    return contrast_embeddings(embeddings, objectives.info_nce(), pairing, options, layout, dtype=entered.dtype)


def _nearest(x: Embedding, columns: Embedding, options: LossOptions, valid: Array | None) -> tuple[Embedding, Array]:
    """Nearest valid column of each row, without gradient, and a mask of rows that have one; NaN for rows with NaN."""
    _, indices = search(
        x.array,
        columns.array,
        1,
        similarity=options.similarity,
        dtypes=x.dtypes + columns.dtypes,
        precision=options.precision,
        valid=valid,
        block_size=options.block_size,
    )
    xp, among, index = namespace_of(indices), stop_gradient(columns.array), indices[:, 0]
    has_neighbor = index >= 0
    neighbors = namespace_of(among).take(among, xp.where(has_neighbor, index, xp.zeros_like(index)), axis=0)
    return columns._replace(array=nan_of(stop_gradient(x.array), neighbors)), has_neighbor
