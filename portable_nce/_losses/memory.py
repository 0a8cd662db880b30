"""Losses with a memory, and the memory: queues of keys, supports of neighbours, prototypes. None carries a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._call import accumulated, add, contrast_embeddings, finish, same_width, zero_idle_rows
from .._core.autodiff import stop_gradient
from .._core.checks import (
    check_block_size,
    check_bool,
    check_choice,
    check_floating,
    check_indices,
    check_integers,
    check_mask,
    check_number,
    check_shape,
    check_whole_number,
    shape_of,
)
from .._core.namespace import device_of, enter, is_array, is_number, namespace_of
from .._core.numerics import safe_sqrt, upcast, zeros
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from .._execution.matrix import ScoreMatrix
from ..objectives import info_nce as info_nce_objective
from ..pairings import Pairing, Tile, diagonal, index, two_views, where_found
from ..pairings import queue as pairing_of_queue
from ..similarities import Similarity, operands, resolve, scaled_columns

__all__ = ["Queue", "concentrations", "moco", "moco_v3", "nnclr", "proto_nce", "queue_init", "queue_push"]


class Queue(NamedTuple):
    """A first-in, first-out memory of embeddings, made by `queue_init` and filled by `queue_push`.

    Attributes
    ----------
    rows : array
        The embeddings, oldest first; shape (M, D).
    valid : array
        Boolean, shape (M,): whether a slot was ever written. The others take no part in any loss.
    """

    rows: Array
    valid: Array


def queue_init(example: Array, /, size: int) -> Queue:
    """Return an empty queue for embeddings like those of an example.

    Parameters
    ----------
    example : array, shape (B, D)
        A batch of embeddings, which gives the width, dtype, library and device.
    size : int
        Number M of slots.

    Returns
    -------
    Queue
        Rows of zeros, none of them valid.

    Raises
    ------
    TypeError
        If `example` is not a real floating-point array, or `size` is no integer.
    ValueError
        If `example` is not a matrix, or `size` is not positive.

    References
    ----------
    He, Fan, Wu, Xie and Girshick (2020), "Momentum Contrast for Unsupervised Visual Representation Learning",
    arXiv:1911.05722, section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.queue_init(np.ones((2, 3)), size=4).valid
    array([False, False, False, False])
    """
    xp, _ = enter(example=example)
    check_floating(xp, example=example)
    _, width = shape_of("example", example, "(B, D)")
    size = check_whole_number("size", size)
    example = stop_gradient(example)
    empty = xp.zeros((size,), dtype=xp.bool, device=device_of(example))
    return Queue(zeros(xp, (size, width), example), empty)


def queue_push(queue: Queue, rows: Array, /) -> Queue:
    """Return the queue with further rows at its end, and as many of its oldest gone.

    Any number of rows may come at once; the queue always holds the last M. Nothing is changed in place, and shapes do
    not depend on values, so that it compiles.

    Parameters
    ----------
    queue : Queue
        The queue.
    rows : array, shape (B, D)
        What enters, the oldest first; without gradient.

    Returns
    -------
    Queue
        The new queue, of the same size.

    Raises
    ------
    TypeError
        If `queue` is no queue, or `rows` is of another library or dtype.
    ValueError
        If `rows` has another width, or is on another device.

    References
    ----------
    He, Fan, Wu, Xie and Girshick (2020), "Momentum Contrast for Unsupervised Visual Representation Learning",
    arXiv:1911.05722, section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> queue = pnce.queue_init(np.ones((1, 1)), size=3)
    >>> queue = pnce.queue_push(queue, np.asarray([[1.0], [2.0]]))
    >>> queue.rows[:, 0], queue.valid
    (array([0., 1., 2.]), array([False,  True,  True]))
    >>> pnce.queue_push(queue, np.asarray([[3.0], [4.0]])).rows[:, 0]
    array([2., 3., 4.])
    """
    if not isinstance(queue, Queue):
        message = f"queue: expected a Queue, as queue_init makes it, got {type(queue).__name__}"
        raise TypeError(message)
    xp, (held, valid, rows) = enter(queue=queue.rows, **{"queue.valid": queue.valid}, rows=rows)
    check_floating(xp, queue=held, rows=rows)
    slots, width = shape_of("queue", held, "(M, D)")
    check_mask(xp, "queue.valid", valid, (slots,))
    count, _ = shape_of("rows", rows, "(B, D)")
    check_shape("rows", rows, (count, width))
    written = xp.ones((count,), dtype=xp.bool, device=device_of(held))
    return Queue(
        xp.concat([stop_gradient(held), stop_gradient(rows)], axis=0)[count:, ...],
        xp.concat([valid, written], axis=0)[count:],
    )


def _slots(name: str, memory: Array | Queue) -> tuple[Array, Array | None]:
    """The rows of a memory, and which of them are valid, if not all."""
    if isinstance(memory, Queue):
        for part, array in (("rows", memory.rows), ("valid", memory.valid)):
            enter(**{f"{name}.{part}": array})
        return memory.rows, memory.valid
    if not is_array(memory):
        message = f"{name}: expected an array (M, D) or a Queue, got {type(memory).__name__}"
        raise TypeError(message)
    enter(**{name: memory})
    return memory, None


def _without_unwritten(xp: Namespace, name: str, slots: Array, valid: Array) -> Array:
    """The rows of a memory, 0 where they were never written: what took no part may hold anything, NaN too."""
    check_mask(xp, f"{name}.valid", valid, (slots.shape[0],))
    return xp.where(xp.expand_dims(valid, axis=1), slots, xp.zeros_like(slots))


def moco(
    query: Array,
    key: Array,
    queue: Array | Queue,
    /,
    *,
    temperature: float | Array = 0.07,
    similarity: str | Similarity | Callable[[Array, Array], Array] = "cosine",
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    block_size: int | str | None = "auto",
) -> Array:
    r"""Return the MoCo loss: InfoNCE of a query with its key, against a queue of earlier keys alone.

    .. math:: \ell_i = -\log \frac{e^{s(q_i, k_i) / \tau}}{e^{s(q_i, k_i) / \tau} + \sum_m e^{s(q_i, c_m) / \tau}}

    Parameters
    ----------
    query, key : array, shape (N, D)
        Embeddings; row i of one belongs to row i of the other. In MoCo the key comes from the momentum encoder, through
        which no gradient flows.
    queue : array, shape (M, D), or Queue
        Earlier keys c, without gradient. Slots of a `Queue` that were never written take no part.
    temperature : float or array of one entry, default: 0.07
        Temperature τ > 0; differentiable as an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, M), optional
        Pairs of query and queue that take part; all by default.
    weights : array, shape (N,), optional
        Weights of the queries.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the queries, weighted sum, or the weighted losses of the queries.
    block_size : int, None or "auto", default: "auto"
        Rows per block of the streamed execution; None holds the whole score matrix; ``"auto"`` streams where value and
        gradient come in one pass, and elsewhere from about four million entries on.

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
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> query = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> key = np.asarray([[0.8, 0.6], [0.6, 0.8]])
    >>> pnce.moco(query, key, np.asarray([[0.6, -0.8], [-1.0, 0.0]]), temperature=0.5)
    array(0.37324...)
    """
    slots, valid = _slots("queue", queue)
    xp, (query, key, slots, *written, mask) = enter(
        query=query, key=key, queue=slots, **({} if valid is None else {"queue.valid": valid}), mask=mask
    )
    check_floating(xp, query=query, key=key, queue=slots)
    n_rows, _ = shape_of("query", query, "(N, D)")
    _, width = shape_of("key", key, "(N, D)")
    check_shape("key", key, (n_rows, width))
    n_slots, _ = shape_of("queue", slots, "(M, D)")
    check_shape("queue", slots, (n_slots, width))
    if written:
        slots = _without_unwritten(xp, "queue", slots, *written)
    device = device_of(query)
    if mask is not None:
        check_mask(xp, "mask", mask, (n_rows, n_slots))
        among = xp.logical_and(mask, written[0][None, :]) if written else mask
        query, key = zero_idle_rows(xp, among, query, key)
        mask = xp.concat([xp.ones((n_rows, n_rows), dtype=xp.bool, device=device), mask], axis=1)
    own = xp.ones((n_rows,), dtype=xp.bool, device=device)
    dtype = query.dtype
    query, key, slots = (upcast(xp, x) for x in (query, key, slots))
    return contrast_embeddings(
        {"query": query, "keys": xp.concat([key, stop_gradient(slots)], axis=0)},
        dtype=dtype,
        objective=info_nce_objective(),
        pairing=pairing_of_queue(xp.concat([own, *written], axis=0)) if written else pairing_of_queue(),
        similarity=similarity,
        temperature=temperature,
        mask=mask,
        weights=weights,
        reduction=reduction,
        block_size=block_size,
    )


def moco_v3(
    query_a: Array,
    query_b: Array,
    key_a: Array,
    key_b: Array,
    /,
    *,
    temperature: float | Array = 0.2,
    similarity: str | Similarity | Callable[[Array, Array], Array] = "cosine",
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    block_size: int | str | None = "auto",
) -> Array:
    r"""Return the MoCo v3 loss: InfoNCE in the batch, of each view's queries with the other view's keys.

    .. math:: \ell_i = 2\tau \Big(-\log \mathrm{softmax}_j\big(s(q^a_i, k^b_j) / \tau\big)_i
        - \log \mathrm{softmax}_j\big(s(q^b_i, k^a_j) / \tau\big)_i\Big)

    Parameters
    ----------
    query_a, query_b : array, shape (N, D)
        Queries of two views of a batch.
    key_a, key_b : array, shape (N, D)
        Keys of the same views, without gradient.
    temperature : float or array of one entry, default: 0.2
        Temperature τ > 0; differentiable as an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), optional
        Pairs of query and key that take part, in both terms; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive, weighted sum, or the weighted losses of the rows.
    block_size : int, None or "auto", default: "auto"
        Rows per block of the streamed execution; None holds the whole score matrix; ``"auto"`` streams where value and
        gradient come in one pass, and elsewhere from about four million entries on.

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
    dtype = query_a.dtype
    temperature, weights = accumulated("temperature", temperature), accumulated("weights", weights)
    parts = []
    for name, query, other, key in (("query_a", query_a, "key_b", key_b), ("query_b", query_b, "key_a", key_a)):
        check_shape(other, key, (rows, *key.shape[1:]))
        part = contrast_embeddings(
            {name: upcast(xp, query), other: stop_gradient(upcast(xp, key))},
            objective=info_nce_objective(),
            factor=_twice_temperature,
            pairing=diagonal(),
            similarity=similarity,
            temperature=temperature,
            mask=mask,
            weights=weights,
            reduction=reduction,
            block_size=block_size,
        )
        parts.append(part)
    return add(parts, dtype, reduction)


def _twice_temperature(options: dict[str, Any]) -> Any:
    return 2.0 * options["temperature"]


def nnclr(
    view_a: Array,
    view_b: Array,
    support: Array | Queue,
    /,
    *,
    temperature: float | Array = 0.1,
    negatives: str = "batch",
    symmetric: bool = False,
    similarity: str | Similarity | Callable[[Array, Array], Array] = "cosine",
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    block_size: int | str | None = "auto",
) -> Array:
    r"""Return the NNCLR loss: the nearest neighbour of one view, in a support set, is contrasted with the other view.

    .. math:: \ell_i = -\log \frac{e^{s(n_i, b_i) / \tau}}{\sum_j e^{s(n_i, b_j) / \tau}}, \qquad
        n_i = \arg\max_{c \in \mathrm{support}} s(a_i, c)

    The neighbour is a constant, and so `view_a` has no gradient; train on the mean of this and of the same with the
    views exchanged.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other.
    support : array, shape (M, D), or Queue
        Embeddings to choose neighbours from, without gradient. Slots of a `Queue` that were never written are not
        chosen; while none is, no row counts.
    temperature : float or array of one entry, default: 0.1
        Temperature τ > 0; differentiable as an array.
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
        Rows per block of the streamed execution; None holds the whole score matrix; ``"auto"`` streams where value and
        gradient come in one pass, and elsewhere from about four million entries on.

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
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> view_a = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> view_b = np.asarray([[0.8, 0.6], [0.6, 0.8]])
    >>> pnce.nnclr(view_a, view_b, np.asarray([[0.96, 0.28], [0.28, 0.96], [-1.0, 0.0]]))
    array(0.22...)
    """
    check_choice("negatives", negatives, ("batch", "views"))
    symmetric = check_bool("symmetric", symmetric)
    if symmetric and negatives == "views":
        message = 'symmetric: expected False with negatives="views", which contrasts both ways already'
        raise ValueError(message)
    slots, valid = _slots("support", support)
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
        slots = _without_unwritten(xp, "support", slots, *written)
    block_size = check_block_size(block_size)
    if mask is not None:
        size = 2 * rows if negatives == "views" else rows
        check_mask(xp, "mask", mask, (size, size))
        takes_part = xp.logical_or(mask, xp.matrix_transpose(mask)) if negatives == "views" else mask
        (view_a,) = zero_idle_rows(xp, takes_part[:rows, :], view_a)
    dtype = view_a.dtype
    x, y, slots = (upcast(xp, z) for z in (view_a, view_b, slots))
    chosen = resolve(similarity)
    candidates = Pairing(_candidate_rule, columns=tuple(written)) if written else Pairing(_everything_rule)
    with adapter_of(x).full_precision(x):
        searching, searched = operands(chosen, stop_gradient(x), stop_gradient(slots), 1.0)
        search = ScoreMatrix(chosen, searching, searched, candidates, block_size=block_size)
        search = search.dense() if chosen.pullback is None else search
        nearest, found = search.argextreme(of_positives=False, largest=True)
    neighbors = stop_gradient(xp.take(stop_gradient(slots), nearest, axis=0))
    embeddings, pairing = {"neighbors": neighbors, "view_b": y}, diagonal()
    if negatives == "views":
        embeddings, pairing = {"views": xp.concat([neighbors, y], axis=0)}, two_views()
        found = xp.concat([found, found], axis=0)
        if weights is not None and tuple(weights.shape) == (rows,):
            weights = xp.concat([weights, weights], axis=0)
    return contrast_embeddings(
        embeddings,
        dtype=dtype,
        objective=info_nce_objective(),
        pairing=where_found(pairing, found) if written else pairing,
        similarity=similarity,
        temperature=temperature,
        symmetric=symmetric,
        mask=mask,
        weights=weights,
        reduction=reduction,
        block_size=block_size,
    )


def _everything_rule(tile: Tile) -> tuple[Array, Array]:
    xp = namespace_of(tile.i)
    everything = xp.logical_and(tile.i >= 0, tile.j >= 0)
    return xp.logical_not(everything), everything


def _candidate_rule(tile: Tile) -> tuple[Array, Array]:
    nothing, everything = _everything_rule(tile)
    return nothing, namespace_of(everything, *tile.columns).logical_and(everything, tile.columns[0])


def proto_nce(
    embeddings: Array,
    prototypes: Array | Sequence[Array],
    assignments: Array | Sequence[Array],
    concentrations: Array | Sequence[Array],
    /,
    *,
    key: Array | None = None,
    queue: Array | Queue | None = None,
    temperature: float | Array = 0.1,
    similarity: str | Similarity | Callable[[Array, Array], Array] = "cosine",
    mask: Array | Sequence[Array] | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    block_size: int | str | None = "auto",
) -> Array:
    r"""Return the ProtoNCE loss (PCL): embeddings are classified among the prototypes of one or more clusterings.

    .. math:: \ell_i = \ell^{\mathrm{InfoNCE}}_i + \frac1M \sum_{m=1}^M
        -\log \frac{e^{s(v_i, c^m_{a(i)}) / \phi^m_{a(i)}}}{\sum_j e^{s(v_i, c^m_j) / \phi^m_j}}

    with the InfoNCE term if `key` is given.

    Parameters
    ----------
    embeddings : array, shape (N, D)
        Embeddings v.
    prototypes : array, shape (R, D), or sequence of such
        Prototypes c of each clustering, without gradient.
    assignments : array of int, shape (N,), or sequence of such
        Number a of each embedding's prototype, from 0 to R - 1, in each clustering. Others are an error where the
        values are at hand (NumPy, PyTorch's CPU tensors outside of transforms); elsewhere such a row does not count.
        Leave rows out by `weights`.
    concentrations : array, shape (R,), or sequence of such
        Concentration φ > 0 of each prototype, its temperature, without gradient; see `concentrations`, which for
        clusters of equal embeddings may return 0. With a concentration of 0, the loss is NaN.
    key : array, shape (N, D), optional
        Keys for the InfoNCE term; row i belongs to embedding i.
    queue : array, shape (M, D), or Queue, optional
        Negatives of the InfoNCE term, as in `moco`; the other keys by default.
    temperature : float or array of one entry, default: 0.1
        Temperature τ > 0 of the InfoNCE term; differentiable as an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, R), or sequence of such, optional
        Pairs of embedding and prototype that take part; all by default.
    weights : array, shape (N,), optional
        Weights of the embeddings.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the embeddings that have a positive, weighted sum, or the weighted losses of the embeddings.
    block_size : int, None or "auto", default: "auto"
        Rows per block of the streamed execution; None holds the whole score matrix; ``"auto"`` streams where value and
        gradient come in one pass, and elsewhere from about four million entries on.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `embeddings`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit.

    See Also
    --------
    concentrations : The concentrations.

    References
    ----------
    Li, Zhou, Xiong and Hoi (2021), "Prototypical Contrastive Learning of Unsupervised Representations",
    arXiv:2005.04966, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> embeddings = np.asarray([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> prototypes, assignments = np.asarray([[0.9, 0.3], [0.0, 1.0]]), np.asarray([0, 0, 1])
    >>> pnce.proto_nce(embeddings, prototypes, assignments, np.asarray([0.2, 0.1]))
    array(0.50531...)
    """
    clusterings = _clusterings(
        {"prototypes": prototypes, "assignments": assignments, "concentrations": concentrations, "mask": mask}
    )
    xp, (embeddings,) = enter(embeddings=embeddings)
    check_floating(xp, embeddings=embeddings)
    dtype = embeddings.dtype
    embeddings = upcast(xp, embeddings)
    weights = accumulated("weights", weights)
    shared: dict[str, Any] = {"weights": weights, "reduction": reduction, "block_size": block_size}
    losses = [
        _prototype_loss(embeddings, *clustering, dtype=dtype, similarity=similarity, mask=part, **shared)
        for *clustering, part in clusterings
    ]
    total = add(losses, embeddings.dtype, reduction, divide_by=len(losses))
    if queue is not None and key is None:
        message = f"queue: expected None without key, got {type(queue).__name__}; give the keys too"
        raise ValueError(message)
    if key is None:
        return add((total,), dtype, reduction)
    instance = _instance_loss(
        embeddings, key, queue, dtype=dtype, temperature=temperature, similarity=similarity, **shared
    )
    return add((total, instance), dtype, reduction)


def _instance_loss(embeddings: Array, key: Array, queue: Array | Queue | None, *, dtype: Any, **options: Any) -> Array:
    """InfoNCE of the embeddings, which are accumulated and were of the given dtype, with their keys."""
    xp, (embeddings, key) = enter(embeddings=embeddings, key=key)
    if key.dtype != dtype:
        message = f"key: expected the dtype of embeddings, {dtype}, got {key.dtype}; convert one with astype"
        raise TypeError(message)
    key = upcast(xp, key)
    if queue is not None:
        slots, valid = _slots("queue", queue)
        slots = upcast(namespace_of(slots), slots)
        return moco(embeddings, key, slots if valid is None else Queue(slots, valid), **options)
    check_shape("key", key, (embeddings.shape[0], *key.shape[1:]))
    return contrast_embeddings(
        {"embeddings": embeddings, "key": key},
        objective=info_nce_objective(),
        pairing=diagonal(),
        mask=None,
        **options,
    )


def _clusterings(arguments: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The prototypes, assignments, concentrations and mask of each clustering."""
    count = len(arguments["prototypes"]) if isinstance(arguments["prototypes"], (tuple, list)) else None
    columns = []
    for name, argument in arguments.items():
        if argument is None and name == "mask":
            columns.append([None] * (count or 1))
        elif count is None:
            columns.append([argument])
        elif not isinstance(argument, (tuple, list)) or len(argument) != count:
            got = f"{len(argument)}" if isinstance(argument, (tuple, list)) else type(argument).__name__
            message = f"{name}: expected a sequence of {count} arrays, one for each array of prototypes, got {got}"
            raise ValueError(message)
        else:
            columns.append(list(argument))
    if not columns[0]:
        message = "prototypes: expected at least one clustering, got none"
        raise ValueError(message)
    return list(zip(*columns, strict=True))


def _prototype_loss(
    embeddings: Array,
    prototypes: Array,
    assignments: Array,
    concentrations: Array,
    *,
    dtype: Any,
    similarity: str | Similarity | Callable[[Array, Array], Array],
    **options: Any,
) -> Array:
    """The cross-entropy of one clustering; the embeddings are accumulated, and were of the given dtype."""
    xp, (embeddings, prototypes, assignments, phi) = enter(
        embeddings=embeddings, prototypes=prototypes, assignments=assignments, concentrations=concentrations
    )
    rows, _ = shape_of("embeddings", embeddings, "(N, D)")
    check_floating(xp, prototypes=prototypes, concentrations=phi)
    if prototypes.dtype != dtype:
        message = (
            f"prototypes: expected the dtype of embeddings, {dtype}, got {prototypes.dtype}; convert one with astype"
        )
        raise TypeError(message)
    number, _ = shape_of("prototypes", prototypes, "(R, D)")
    same_width(similarity, "embeddings", embeddings, "prototypes", prototypes)
    check_integers(xp, "assignments", assignments, (rows,))
    check_indices(xp, "assignments", assignments, number, "prototypes")
    check_shape("concentrations", phi, (number,))
    prototypes, phi = (stop_gradient(upcast(xp, x)) for x in (prototypes, phi))
    return contrast_embeddings(
        {"embeddings": embeddings, "prototypes": prototypes},
        objective=info_nce_objective(),
        pairing=index(assignments),
        similarity=scaled_columns(similarity, 1.0 / phi),
        temperature=1.0,
        **options,
    )


def concentrations(
    embeddings: Array,
    prototypes: Array,
    assignments: Array,
    /,
    *,
    temperature: float = 0.1,
    smoothing: float = 10.0,
    percentiles: tuple[float, float] = (10.0, 90.0),
) -> Array:
    r"""Return the concentration of each prototype's cluster, for `proto_nce`.

    .. math:: \phi_r = \frac{\sum_{i \in r} \lVert v_i - c_r \rVert}{Z_r \log(Z_r + \alpha)}

    with the number Z of embeddings in the cluster. Clusters of one embedding or none get the largest φ; all are clipped
    to two percentiles, and scaled so that their mean is the temperature.

    A cluster of several embeddings that all equal the prototype has φ = 0. Where the lower percentile is 0 too, φ is
    clipped to the smallest φ that is not 0 (and to the upper percentile), so that no result is 0. If the upper
    percentile is 0, or no cluster has two embeddings, all results are the temperature.

    Parameters
    ----------
    embeddings : array, shape (N, D)
        Embeddings v, taken as they are.
    prototypes : array, shape (R, D)
        Prototypes c.
    assignments : array of int, shape (N,)
        Number of each embedding's prototype, from 0 to R - 1. Others are an error where the values are at hand, as in
        `proto_nce`; elsewhere such a row belongs to no prototype.
    temperature : float, default: 0.1
        Mean of the concentrations.
    smoothing : float, default: 10.0
        The number α, which keeps small clusters from too small a φ.
    percentiles : tuple of two floats, default: (10.0, 90.0)
        Percentiles to which the concentrations are clipped, interpolated linearly.

    Returns
    -------
    array
        Concentrations, shape (R,), without gradient, of the library, dtype and device of `embeddings`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit.

    References
    ----------
    Li, Zhou, Xiong and Hoi (2021), "Prototypical Contrastive Learning of Unsupervised Representations",
    arXiv:2005.04966, section 3, and the authors' code.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> embeddings = np.asarray([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.0, 1.0], [0.6, 0.8]])
    >>> prototypes, assignments = np.asarray([[0.9, 0.3], [0.0, 1.0]]), np.asarray([0, 0, 1, 1, 1])
    >>> pnce.concentrations(embeddings, prototypes, assignments).round(4)
    array([0.1172, 0.0828])
    """
    temperature = check_number("temperature", temperature, above=0.0)
    smoothing = check_number("smoothing", smoothing, above=0.0)
    low, high = _two_percentiles(percentiles)
    xp, (embeddings, prototypes, assignments) = enter(
        embeddings=embeddings, prototypes=prototypes, assignments=assignments
    )
    check_floating(xp, embeddings=embeddings, prototypes=prototypes)
    rows, width = shape_of("embeddings", embeddings, "(N, D)")
    number, _ = shape_of("prototypes", prototypes, "(R, D)")
    check_shape("prototypes", prototypes, (number, width))
    check_integers(xp, "assignments", assignments, (rows,))
    check_indices(xp, "assignments", assignments, number, "prototypes")
    dtype = embeddings.dtype
    x, centres = (stop_gradient(upcast(xp, z)) for z in (embeddings, prototypes))
    totals, sizes = _cluster_sums(xp, x, centres, assignments)
    several = sizes > 1
    safe = xp.where(several, sizes, xp.ones_like(sizes) + 1.0)
    phi = xp.where(several, totals / (safe * xp.log(safe + smoothing)), xp.zeros_like(totals))
    phi = xp.where(several, phi, xp.max(phi, axis=0, keepdims=True))
    ordered = xp.sort(phi, axis=0)
    lowest, highest = (_percentile(ordered, q) for q in (low, high))
    smallest = xp.min(xp.where(phi > 0, phi, xp.max(phi, axis=0, keepdims=True)), axis=0, keepdims=True)
    lowest = xp.where(lowest > 0, lowest, xp.where(smallest < highest, smallest, highest))
    phi = xp.where(phi < lowest, lowest, xp.where(phi > highest, highest, phi))
    mean = xp.mean(phi, axis=0, keepdims=True)
    # Clusters of identical points alone: all alike.
    phi = xp.where(mean == 0, xp.ones_like(phi), phi) / xp.where(mean == 0, xp.ones_like(mean), mean)
    return finish(xp, temperature * phi, dtype, "none")


def _two_percentiles(percentiles: Any) -> tuple[float, float]:
    if not isinstance(percentiles, (tuple, list)):
        message = f"percentiles: expected a pair of numbers, got {type(percentiles).__name__}"
        raise TypeError(message)
    if [is_number(percent) for percent in percentiles] == [True, True]:
        low, high = percentiles
        if 0 <= low <= high <= 100:  # noqa: PLR2004  (percent)
            return low, high
    message = f"percentiles: expected two numbers between 0 and 100, the lower first, got {percentiles}"
    raise ValueError(message)


_LIMIT = 2**20  # entries of the largest array


def _cluster_sums(xp: Namespace, x: Array, centres: Array, assignments: Array) -> tuple[Array, Array]:
    """The sum of the distances of each cluster's members from its centre, and their number."""
    number = centres.shape[0]
    inside = xp.logical_and(assignments >= 0, assignments < number)
    own = xp.where(inside, assignments, xp.zeros_like(assignments))
    differences = x - xp.take(centres, own, axis=0)
    distances = safe_sqrt(xp, xp.sum(differences * differences, axis=1))
    clusters = xp.arange(number, dtype=assignments.dtype, device=device_of(x))

    def step(
        carry: tuple[Array, ...], block: tuple[Array, ...], _start: Array | int
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        member = xp.expand_dims(block[0], axis=1) == xp.expand_dims(assignments, axis=0)
        own = xp.where(member, xp.expand_dims(distances, axis=0), zeros(xp, (1, 1), x))
        return carry, (xp.sum(own, axis=1), xp.sum(xp.astype(member, x.dtype), axis=1))

    _, (totals, sizes) = adapter_of(x).scan(step, (), (clusters,), max(1, _LIMIT // x.shape[0]))
    return totals, sizes


def _percentile(ordered: Array, percent: float) -> Array:
    """The percentile of an array in ascending order, interpolated linearly; shape (1,)."""
    position = percent / 100.0 * (ordered.shape[0] - 1)
    below = min(int(position), ordered.shape[0] - 1)
    above = min(below + 1, ordered.shape[0] - 1)
    part = position - below
    return ordered[below : below + 1] * (1.0 - part) + ordered[above : above + 1] * part
