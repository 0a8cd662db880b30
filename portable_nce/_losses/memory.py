"""Losses with a memory, which carries no gradient: queues of keys, supports of neighbours."""

from __future__ import annotations

from typing import Any, get_args

from .._call import accumulated, add, contrast_embeddings, same_width, zero_idle_rows
from .._core.autodiff import stop_gradient
from .._core.checks import (
    check_block_size,
    check_bool,
    check_choice,
    check_floating,
    check_mask,
    check_precision,
    check_shape,
    check_width,
    common_dtype,
    shape_of,
)
from .._core.namespace import device_of, enter
from .._core.numerics import nan_of, upcast
from .._core.protocol import Array
from .._core.ranks import Ranks, told_to_others
from .._core.registry import adapter_of
from .._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, NegativesOfViews, Precision, ReductionName
from .._execution.halves import Exact
from .._execution.halves import of_matrix as halves_of_matrix
from .._execution.matrix import ScoreMatrix
from ..objectives import info_nce as info_nce_objective
from ..pairings import candidates, diagonal, two_views, where_found
from ..pairings import queue as pairing_of_queue
from ..similarities import AnySimilarity, operands, resolve
from .queue import Queue, slots_of, without_unwritten

__all__ = ["against_queue", "moco", "moco_v3", "nnclr"]

NEGATIVES: tuple[NegativesOfViews, ...] = get_args(NegativesOfViews)


@told_to_others
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
    r"""Return the MoCo loss: InfoNCE of a query with its key, against a queue of earlier keys alone.

    .. math:: \ell_i = -\log \frac{e^{s(q_i, k_i) / \tau}}{e^{s(q_i, k_i) / \tau} + \sum_m e^{s(q_i, c_m) / \tau}}

    Parameters
    ----------
    query, key : array, shape (N, D)
        Embeddings; row i of one belongs to row i of the other. In MoCo the key comes from the momentum encoder, through
        which no gradient flows.
    queue : array, shape (M, D), or Queue
        Earlier keys c, without gradient. Slots of a `Queue` that were never written take no part.
    temperature : float, or array of one entry or of shape (N,), default: 0.07
        Temperature τ > 0, or that of each row; differentiable as an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, M), optional
        Pairs of query and queue that take part; all by default.
    weights : array, shape (N,), optional
        Weights of the queries.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the queries, weighted sum, or the weighted losses of the queries.
    block_size : int, None or "auto", default: "auto"
        Rows at a time, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        How matrices are multiplied; see :doc:`/options`.
    across : Ranks, optional
        Ranks that have other rows of the same batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `query`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit.

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
    return against_queue(
        query,
        key,
        queue,
        temperature=temperature,
        similarity=similarity,
        mask=mask,
        weights=weights,
        reduction=reduction,
        block_size=block_size,
        precision=precision,
        across=across,
    )


def against_queue(
    query: Array,
    key: Array,
    queue: Array | Queue,
    *,
    mask: Array | None = None,
    dtypes: tuple[Any, ...] = (),
    **options: Any,
) -> Array:
    """The loss of `moco`; of queries and keys that have been widened, from `dtypes`."""
    slots, valid = slots_of("queue", queue)
    xp, (query, key, slots, *written, mask) = enter(
        query=query, key=key, queue=slots, **({} if valid is None else {"queue.valid": valid}), mask=mask
    )
    check_floating(xp, query=query, key=key, queue=slots)
    n_rows, _ = shape_of("query", query, "(N, D)")
    _, width = shape_of("key", key, "(N, D)")
    check_shape("key", key, (n_rows, width))
    n_slots, _ = shape_of("queue", slots, "(M, D)")
    check_width("queue", slots, width)
    if written:
        slots = without_unwritten(xp, "queue", slots, *written)
    device = device_of(query)
    if mask is not None:
        check_mask(xp, "mask", mask, (n_rows, n_slots))
        among = xp.logical_and(mask, written[0][None, :]) if written else mask
        query, key = zero_idle_rows(xp, among, query, key)
        mask = xp.concat([xp.ones((n_rows, n_rows), dtype=xp.bool, device=device), mask], axis=1)
    own = xp.ones((n_rows,), dtype=xp.bool, device=device)
    dtype, dtypes = common_dtype(xp, query, key, slots), (*(dtypes or (query.dtype, key.dtype)), slots.dtype)
    query, key, slots = (upcast(xp, x) for x in (query, key, slots))
    return contrast_embeddings(
        {"query": query, "key": key, "queue": stop_gradient(slots)},
        replicated=True,
        dtype=dtype,
        dtypes=dtypes,
        objective=info_nce_objective(),
        pairing=pairing_of_queue(xp.concat([own, *written], axis=0)) if written else pairing_of_queue(),
        mask=mask,
        **options,
    )


@told_to_others
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
    r"""Return the MoCo v3 loss: InfoNCE in the batch, of each view's queries with the other view's keys.

    .. math:: \ell_i = 2\tau \Big(-\log \mathrm{softmax}_j\big(s(q^a_i, k^b_j) / \tau\big)_i
        - \log \mathrm{softmax}_j\big(s(q^b_i, k^a_j) / \tau\big)_i\Big)

    Parameters
    ----------
    query_a, query_b : array, shape (N, D)
        Queries of two views of a batch.
    key_a, key_b : array, shape (N, D)
        Keys of the same views, without gradient.
    temperature : float, or array of one entry or of shape (N,), default: 0.2
        Temperature τ > 0, or that of each row; differentiable as an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), optional
        Pairs of query and key that take part, in both terms; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive, weighted sum, or the weighted losses of the rows.
    block_size : int, None or "auto", default: "auto"
        Rows at a time, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        How matrices are multiplied; see :doc:`/options`.
    across : Ranks, optional
        Ranks that have other rows of the same batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `query_a`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit.

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
    xp, (query_a, query_b, key_a, key_b) = enter(query_a=query_a, query_b=query_b, key_a=key_a, key_b=key_b)
    check_floating(xp, query_a=query_a, query_b=query_b, key_a=key_a, key_b=key_b)
    rows, _ = shape_of("query_a", query_a, "(N, D)")
    check_shape("query_b", query_b, tuple(query_a.shape))
    dtype = common_dtype(xp, query_a, query_b, key_a, key_b)
    temperature, weights = accumulated("temperature", temperature), accumulated("weights", weights)
    parts = []
    for name, query, other, key in (("query_a", query_a, "key_b", key_b), ("query_b", query_b, "key_a", key_a)):
        check_shape(other, key, (rows, *key.shape[1:]))
        part = contrast_embeddings(
            {name: upcast(xp, query), other: stop_gradient(upcast(xp, key))},
            dtypes=(query.dtype, key.dtype),
            objective=info_nce_objective(),
            factor=_twice_temperature,
            pairing=diagonal(),
            similarity=similarity,
            temperature=temperature,
            mask=mask,
            weights=weights,
            reduction=reduction,
            block_size=block_size,
            precision=precision,
            across=across,
        )
        parts.append(part)
    return add(parts, dtype, reduction)


def _twice_temperature(options: dict[str, Any]) -> Any:
    return 2.0 * options["temperature"]


@told_to_others
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
    r"""Return the NNCLR loss: the nearest neighbour of one view, in a support set, is contrasted with the other view.

    .. math:: \ell_i = -\log \frac{e^{s(n_i, b_i) / \tau}}{\sum_j e^{s(n_i, b_j) / \tau}}, \qquad
        n_i = \arg\max_{c \in \mathrm{support}} s(a_i, c)

    The neighbour is a constant, and so `view_a` has no gradient; train on the mean of this and of the same with the
    views exchanged.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other. A row of `view_a` that holds NaN
        makes the loss NaN, though only its neighbour is compared.
    support : array, shape (M, D), or Queue
        Embeddings to choose neighbours from, without gradient. Slots of a `Queue` that were never written are not
        chosen; while none is, no row counts.
    temperature : float, or array of one entry or of shape (N,), default: 0.1
        Temperature τ > 0, or that of each row; differentiable as an array.
    negatives : {"batch", "views"}, default: "batch"
        What a neighbour is contrasted with: the other rows of `view_b` (the paper), or all other neighbours too, as the
        2N views of `nt_xent` (lightly).
    symmetric : bool, default: False
        Whether to average the losses of neighbours against `view_b` and of `view_b` against neighbours, as in the
        paper's appendix; with negatives "views" both are there already.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), or (2N, 2N) with negatives "views", optional
        Pairs of neighbour and row of `view_b` (or of views) that take part; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive, weighted sum, or the weighted losses of the rows.
    block_size : int, None or "auto", default: "auto"
        Rows at a time, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        How matrices are multiplied; see :doc:`/options`.
    across : Ranks, optional
        Ranks that have other rows of the same batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none" ((2N,) with negatives "views"), of the library, dtype and
        device of `view_a`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit.

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
        message = 'symmetric: expected False with negatives="views", which contrasts both ways already'
        raise ValueError(message)
    slots, valid = slots_of("support", support)
    xp, (view_a, view_b, slots, *written, weights, mask) = enter(
        view_a=view_a,
        view_b=view_b,
        support=slots,
        **({} if valid is None else {"support.valid": valid}),
        weights=weights,
        mask=mask,
    )
    check_floating(xp, view_a=view_a, view_b=view_b, support=slots)
    rows, _ = shape_of("view_a", view_a, "(N, D)")
    _, width = shape_of("support", slots, "(M, D)")
    check_shape("view_b", view_b, (rows, width if negatives == "views" else shape_of("view_b", view_b, "(N, D)")[1]))
    same_width(similarity, "view_a", view_a, "support", slots)
    if written:
        slots = without_unwritten(xp, "support", slots, *written)
    block_size = check_block_size(block_size)
    check_precision(precision)
    if mask is not None:
        size = 2 * rows if negatives == "views" else rows
        check_mask(xp, "mask", mask, (size, size if across is None else mask.shape[1]))
        if negatives == "batch":
            (view_a,) = zero_idle_rows(xp, mask, view_a)
        elif across is None:  # with ranks, whether a row takes part as a column is known elsewhere
            (view_a,) = zero_idle_rows(xp, xp.logical_or(mask, xp.matrix_transpose(mask))[:rows, :], view_a)
    dtype, dtypes = common_dtype(xp, view_a, view_b, slots), (slots.dtype, view_b.dtype)
    sought = view_a.dtype
    x, y, slots = (upcast(xp, z) for z in (view_a, view_b, slots))
    chosen = resolve(similarity)
    with adapter_of(x).full_precision(x):
        searching, searched = operands(chosen, stop_gradient(x), stop_gradient(slots), 1.0)
        exact_in = Exact((sought,), dtypes[:1])
        halves = halves_of_matrix(chosen, (x, slots), (searching, searched), exact_in, precision)
        search = ScoreMatrix(chosen, searching, searched, candidates(*written), block_size=block_size, halves=halves)
        search = search.dense() if chosen.pullback is None else search
        nearest, found = search.argextreme(of_positives=False, largest=True)
    neighbors = stop_gradient(xp.take(stop_gradient(slots), nearest, axis=0))
    neighbors = nan_of(searching[0], neighbors)
    embeddings, pairing = {"neighbors": neighbors, "view_b": y}, diagonal()
    if negatives == "views":
        embeddings, pairing = {"views": xp.concat([neighbors, y], axis=0)}, two_views()
        found = xp.concat([found, found], axis=0)
        if weights is not None and tuple(weights.shape) == (rows,):
            weights = xp.concat([weights, weights], axis=0)
    return contrast_embeddings(
        embeddings,
        dtype=dtype,
        dtypes=dtypes,
        views=1 if negatives == "batch" else 2,
        objective=info_nce_objective(),
        pairing=where_found(pairing, found) if written else pairing,
        similarity=similarity,
        temperature=temperature,
        symmetric=symmetric,
        mask=mask,
        weights=weights,
        reduction=reduction,
        block_size=block_size,
        precision=precision,
        across=across,
    )
