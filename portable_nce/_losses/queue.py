"""First-in, first-out queue of embeddings, without gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._call import Embedding
from .._core.autodiff import stop_gradient
from .._core.checks import (
    cast_hint,
    check_floating,
    check_integers,
    check_mask,
    check_shape,
    check_whole_number,
    check_width,
    explained,
    shape_of,
)
from .._core.namespace import common_namespace, device_of, is_array, namespace_of
from .._core.numerics import upcast, zeros
from .._core.protocol import Array
from .._core.ranks import RankReport, Ranks, agree, end_exchange, propagates_errors, widened
from .._core.registry import adapter_of
from .._core.types import AnyArray, ArrayOf
from .._execution.live import zeroed

__all__ = ["Queue", "columns_of", "extra_columns", "is_full", "queue_init", "queue_push", "with_batch_columns"]


class Queue(NamedTuple):
    """First-in, first-out queue of embeddings, made by `queue_init` and filled by `queue_push`.

    Attributes
    ----------
    rows : array
        The embeddings, oldest first; shape (M, D).
    valid : array
        Boolean, shape (M,): slots that have been written. Losses ignore the others.
    labels : array, optional
        Integers, shape (M,): label (or id) of each embedding, or None.
    """

    rows: Array
    valid: Array
    labels: Array | None = None


@explained
def queue_init(example: ArrayOf[Any], /, size: int, *, labels: AnyArray | None = None) -> Queue:
    """Return an empty queue for embeddings like an example.

    Parameters
    ----------
    example : array, shape (B, D)
        Batch of embeddings that sets the width, dtype, library and device.
    size : int
        Number M of slots.
    labels : array of int, shape (B,), optional
        Labels (or ids) of that batch, which set the dtype. None makes a queue without labels.

    Returns
    -------
    Queue
        Rows of zeros, none of them valid.

    Raises
    ------
    TypeError
        If `example` is not a real floating-point array, or `labels` or `size` are not integers.
    ValueError
        If `example` is not a matrix, `labels` have another length, or `size` is not positive.

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
    xp, (example, *_) = common_namespace(example=example, **({} if labels is None else {"labels": labels}))
    check_floating(xp, example=example)
    count, width = shape_of("example", example, "(B, D)")
    size = check_whole_number("size", size)
    example = stop_gradient(example)
    device = device_of(example)
    empty = xp.zeros((size,), dtype=xp.bool, device=device)
    if labels is not None:
        check_integers(xp, "labels", labels, (count,))
        labels = xp.zeros((size,), dtype=labels.dtype, device=device)
    return Queue(zeros(xp, (size, width), example), empty, labels)


@propagates_errors
def queue_push(
    queue: Queue, rows: ArrayOf[Any], /, *, labels: AnyArray | None = None, across: Ranks | None = None
) -> Queue:
    """Return the queue with rows appended and the oldest ones dropped.

    The queue always holds the last M rows, however many are pushed at once. Nothing changes in place, and shapes do not
    depend on values, so it compiles.

    Parameters
    ----------
    queue : Queue
        The queue.
    rows : array, shape (B, D)
        Embeddings to append, oldest first; without gradient. There may be none. 16- and 32-bit dtypes are converted to
        the queue's.
    labels : array of int, shape (B,), optional
        Labels (or ids) of these rows, if and only if the queue has labels. Their dtype must fit the queue's.
    across : Ranks, optional
        Ranks whose rows are appended too, in rank order, so that all ranks keep the same queue; see
        `portable_nce.across`.

    Returns
    -------
    Queue
        The new queue, of the same size and dtype.

    Raises
    ------
    TypeError
        If `queue` is not a Queue, or `rows` or `labels` belong to another library or have an incompatible dtype
        (float64 with a narrower one).
    ValueError
        If `rows` has another width, `labels` another length, or either is on another device; if `labels` are missing,
        or the queue has none.

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

    With labels, a queue is a cross-batch memory for the losses of labelled embeddings. Empty slots are ignored:

    >>> embeddings, labels = np.asarray([[1.0, 0.0], [0.0, 1.0]]), np.asarray([0, 1])
    >>> memory = pnce.queue_init(embeddings, size=4, labels=labels)
    >>> memory = pnce.queue_push(memory, np.asarray([[0.8, 0.6], [0.6, 0.8]]), labels=np.asarray([0, 1]))
    >>> memory.labels, memory.valid
    (array([0, 0, 0, 1]), array([False, False,  True,  True]))
    >>> pnce.supcon(embeddings, labels, keys=memory, temperature=0.5)
    array(0.51301...)
    """
    if not isinstance(queue, Queue):
        raise TypeError(f"queue: expected a Queue, as queue_init makes it, got {type(queue).__name__}")
    xp, (held, valid, rows) = common_namespace(queue=queue.rows, **{"queue.valid": queue.valid}, rows=rows)
    check_floating(xp, queue=held, rows=rows)
    slots, width = shape_of("queue", held, "(M, D)")
    check_mask(xp, "queue.valid", valid, (slots,))
    count, _ = shape_of("rows", rows, "(B, D)", may_be_empty=True)
    check_shape("rows", rows, (count, width))
    _check_labels(queue, rows, labels, slots)
    rows = stop_gradient(rows)
    if rows.dtype != held.dtype:
        rows = xp.astype(rows, held.dtype)
    if across is not None:
        notes = RankReport(count, count, {"features": width, "slots": slots})
        shards = agree(across, notes, rows)
        rows = shards.replicated(rows)
        count = rows.shape[0]
        if labels is not None:
            labels = shards.replicated(widened(labels))
        end_exchange(across)
    written = xp.ones((count,), dtype=xp.bool, device=device_of(held))
    if queue.labels is not None and labels is not None:
        space = namespace_of(labels)
        labels = space.concat([queue.labels, space.astype(labels, queue.labels.dtype)], axis=0)[count:]
    with adapter_of(held).full_precision(held):
        rows = xp.concat([stop_gradient(held), rows], axis=0)[count:, ...]
    return Queue(rows, xp.concat([valid, written], axis=0)[count:], labels)


def _check_labels(queue: Queue, rows: Array, labels: Array | None, slots: int) -> None:
    """Check that labels are given if and only if the queue has labels, and that they fit."""
    held, shape = queue.labels, (rows.shape[0],)
    if held is None and labels is None:
        return
    if held is None:
        raise ValueError(
            f"labels: expected None for a queue without labels, got {type(labels).__name__}; make it by "
            f"queue_init(..., labels=labels)"
        )
    if labels is None:
        raise ValueError(f"labels: expected integers of shape {shape} for a queue with labels, got None")
    xp, _ = common_namespace(queue=queue.rows, **{"queue.labels": held}, labels=labels)
    check_integers(xp, "queue.labels", held, (slots,))
    check_integers(xp, "labels", labels, shape)
    queue_limits, label_limits = xp.iinfo(held.dtype), xp.iinfo(labels.dtype)
    if label_limits.min < queue_limits.min or label_limits.max > queue_limits.max:
        raise TypeError(
            f"labels: expected labels that fit the queue's dtype {held.dtype}, got {labels.dtype}; convert them with "
            f"labels.{cast_hint(labels, held.dtype)}"
        )


def columns_of(name: str, memory: Array | Queue) -> tuple[Array, Array | None]:
    """Extra columns (K, D) of a loss, and the mask of valid ones for a queue.

    An array keeps its gradient. A queue has none; its empty slots may hold NaN.
    """
    if not isinstance(memory, Queue):
        if not is_array(memory):
            remedy = f"; if it is a module that holds one, pass {name}()" if callable(memory) else ""
            raise TypeError(f"{name}: expected an array (M, D) or a Queue, got {type(memory).__name__}{remedy}")
        _, (columns,) = common_namespace(**{name: memory})
        shape_of(name, columns, "(K, D)")
        return columns, None
    xp, (columns, valid) = common_namespace(**{f"{name}.rows": memory.rows, f"{name}.valid": memory.valid})
    check_mask(xp, f"{name}.valid", valid, shape_of(name, columns, "(K, D)")[:1])
    return zeroed(stop_gradient(columns), valid), valid


def is_full(valid: Array) -> bool:
    """Whether all columns are known to be valid."""
    adapter = adapter_of(valid)
    return adapter.mode == "eager" and bool(adapter.concrete_value(namespace_of(valid).all(valid)))


def with_batch_columns(valid: Array, n_rows: int) -> Array:
    """Mask of valid columns: in-batch columns, one per row, and extra ones."""
    xp = namespace_of(valid)
    return xp.concat([xp.ones((n_rows,), dtype=xp.bool, device=device_of(valid)), valid], axis=0)


def extra_columns(view_a: Array, n_rows: int, keys: Array | Queue) -> tuple[Embedding, tuple[Array, ...]]:
    """Extra columns of a loss of views, and the mask of all valid columns, unless all are valid."""
    columns, valid = columns_of("keys", keys)
    xp, (view_a, columns) = common_namespace(view_a=view_a, keys=columns)
    check_floating(xp, view_a=view_a, keys=columns)
    check_width("keys", columns, view_a.shape[1])
    extra = Embedding(upcast(xp, columns), (columns.dtype,))
    return extra, () if valid is None or is_full(valid) else (with_batch_columns(valid, n_rows),)
