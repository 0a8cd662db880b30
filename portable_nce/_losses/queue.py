"""A first-in, first-out memory of embeddings, which carries no gradient."""

from __future__ import annotations

from typing import NamedTuple

from .._core.autodiff import stop_gradient
from .._core.checks import (
    check_floating,
    check_mask,
    check_shape,
    check_whole_number,
    shape_of,
)
from .._core.namespace import device_of, enter, is_array
from .._core.numerics import zeros
from .._core.protocol import Array, Namespace
from .._core.ranks import Notes, Ranks, agree, finished, told_to_others

__all__ = ["Queue", "queue_init", "queue_push", "slots_of", "without_unwritten"]


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


@told_to_others
def queue_push(queue: Queue, rows: Array, /, *, across: Ranks | None = None) -> Queue:
    """Return the queue with further rows at its end, and as many of its oldest gone.

    Any number of rows may come at once; the queue always holds the last M. Nothing is changed in place, and shapes do
    not depend on values, so that it compiles.

    Parameters
    ----------
    queue : Queue
        The queue.
    rows : array, shape (B, D)
        What enters, the oldest first; without gradient.
    across : Ranks, optional
        Ranks whose rows enter too, in their order, so that the queues of all stay equal; see `portable_nce.across`.

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
    rows = stop_gradient(rows)
    if across is not None:
        notes = Notes(count, count, width, rows.dtype, ("queue_push", slots), {})
        rows = agree(across, notes, rows).replicated(rows)
        count = rows.shape[0]
        finished(across)
    written = xp.ones((count,), dtype=xp.bool, device=device_of(held))
    return Queue(
        xp.concat([stop_gradient(held), rows], axis=0)[count:, ...],
        xp.concat([valid, written], axis=0)[count:],
    )


def slots_of(name: str, memory: Array | Queue) -> tuple[Array, Array | None]:
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


def without_unwritten(xp: Namespace, name: str, slots: Array, valid: Array) -> Array:
    """The rows of a memory, 0 where they were never written: what took no part may hold anything, NaN too."""
    check_mask(xp, f"{name}.valid", valid, (slots.shape[0],))
    return xp.where(xp.expand_dims(valid, axis=1), slots, xp.zeros_like(slots))
