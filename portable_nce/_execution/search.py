"""Search: the highest scores of each row, in blocks of whole rows, without the score matrix."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._core.autodiff import stop_gradient
from .._core.namespace import device_of, is_far, namespace_of
from .._core.numerics import entries_at, upcast
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..similarities import AnySimilarity, operands, resolve
from .channels import Channel, Side, channel_of
from .halves import Exact
from .halves import of_matrix as halves_of_matrix
from .inputs import Arrays, Inputs
from .matrix import NO_HALVES
from .tiling import searched

_MOST_PASSES = 32
"""Of more places, a sort takes less time than so many passes."""


class SearchLayout(NamedTuple):
    """Static arguments of a search. Of its `Inputs`, the labels of columns say which are valid."""

    number: int
    channel: Channel
    counts: tuple[int, ...]
    block_size: int | str | None


def search(
    x: Array,
    y: Array,
    count: int,
    *,
    similarity: AnySimilarity,
    exact_in: Exact,
    valid: Array | None = None,
    block_size: int | str | None = "auto",
) -> tuple[Array, Array]:
    """The highest scores of each row with valid columns, and the numbers of these, as `highest` has them; constants."""
    chosen, adapter = resolve(similarity), adapter_of(x)
    x, y = stop_gradient(x), stop_gradient(y)
    with adapter.full_precision(x):
        rows, columns = (tuple(map(stop_gradient, side)) for side in operands(chosen, x, y, 1.0))
        halves = halves_of_matrix(chosen, (x, y), (rows, columns), exact_in) or NO_HALVES
        inputs = Inputs(rows, columns, row_halves=halves.rows, column_halves=halves.columns)
        inputs = inputs if valid is None else inputs._replace(column_labels=(valid,))
        channel = channel_of(chosen, (rows, columns), halves[:2], even=halves.even)
        layout, arrays = SearchLayout(count, channel, inputs.counts, block_size), inputs.flat
        if chosen.pullback is None:  # a plain function, which may be another in each call, and hold arrays on the tape
            return _search(layout, *arrays)
        best, where = adapter.custom_vjp(_search, _no_gradient)(layout, *arrays)  # off the tape; compiled once
        return stop_gradient(best), where


def _search(layout: SearchLayout, *arrays: Array) -> tuple[Array, Array]:
    inputs, channel = Inputs.of(layout.counts, arrays), layout.channel
    columns = Side(inputs.columns, inputs.column_halves)
    adapter, first = adapter_of(arrays[0]), inputs.rows[0]

    def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        del start
        own = Side(block[: len(inputs.rows)], block[len(inputs.rows) :])
        scores = stop_gradient(channel.scored(own, columns)[0])
        xp = namespace_of(scores)
        scores = upcast(xp, scores)
        if inputs.column_labels:
            scores = xp.where(inputs.column_labels[0], scores, -math.inf)
        return carry, highest(scores, layout.number)

    shape, held = (first.shape[-2], columns.operands[0].shape[-2]), channel.held(inputs.rows, inputs.columns)
    block = searched(*shape, layout.block_size, mode=adapter.mode, far=is_far(first), **held)
    _, (best, where) = adapter.scan(step, (), (*inputs.rows, *inputs.row_halves), block)
    return best, where


def _no_gradient(static: object, arrays: Arrays, outputs: Arrays, cotangents: Arrays) -> Arrays:
    del static, arrays, outputs, cotangents
    return ()


def highest(scores: Array, count: int) -> tuple[Array, Array]:
    """The `count` highest scores of each row, the highest first, and their columns: of equal scores the first column.

    NaN is taken for +inf. A score of -inf has the column -1.

    They are in the `count` groups of columns with the highest maxima, of equal ones in the first of these: any other
    group has `count` scores ahead of all of its own. With n columns in groups of g, after one pass for the maxima
    n / g of these are searched, and count · g scores; both are fewest where they are alike.
    """
    xp, device, (n_rows, n_columns) = namespace_of(scores), device_of(scores), scores.shape
    mode = adapter_of(scores).mode
    # No groups where the number of columns may be a symbol, of which there is no root.
    size = 1 if mode in {"whole", "compiled"} or not isinstance(n_columns, int) else math.isqrt(n_columns // count)
    columns = None
    if size > 1:
        whole = n_columns - n_columns % size
        grouped = xp.reshape(scores[:, :whole], (n_rows, whole // size, size))
        if mode == "traced":  # by XLA, whose maxima leave out NaN: openxla/xla#21461
            grouped = _without_nan(grouped)
        maxima = xp.max(grouped, axis=2)
        groups = xp.sort(_first_places(maxima, count), axis=1)
        inside = groups[:, :, None] * size + xp.arange(size, dtype=groups.dtype, device=device)
        rest = xp.arange(whole, n_columns, dtype=groups.dtype, device=device)[None, :]
        rest = xp.broadcast_to(rest, (n_rows, n_columns - whole))
        columns = xp.concat([xp.reshape(inside, (n_rows, count * size)), rest], axis=1)
        scores = taken(scores, columns, -math.inf)
    places = _first_places(scores, count)
    return taken(scores, places, -math.inf), places if columns is None else taken(columns, places, -1)


def _first_places(scores: Array, count: int) -> Array:
    """Where the highest scores of each row are, of equal ones the first; -1 of a score of -inf."""
    xp = namespace_of(scores)
    scores = _without_nan(scores)
    if count > _MOST_PASSES:
        places = xp.argsort(-scores, axis=1, stable=True)[:, :count]
        return xp.where(entries_at(scores, places) == -math.inf, -1, places)
    numbers, found = xp.arange(scores.shape[1], device=device_of(scores))[None, :], []
    for _ in range(count):
        place = xp.argmax(scores, axis=1, keepdims=True)
        found.append(xp.where(entries_at(scores, place) == -math.inf, -1, place))
        scores = xp.where(place == numbers, -math.inf, scores)
    return xp.concat(found, axis=1)


def _without_nan(scores: Array) -> Array:
    xp = namespace_of(scores)
    return xp.where(xp.isnan(scores), math.inf, scores)


def taken(x: Array, places: Array, otherwise: float) -> Array:
    """The entries of each row at some places, and a number where a place is negative."""
    xp = namespace_of(x, places)
    found = entries_at(x, xp.where(places < 0, 0, places))
    return xp.where(places < 0, otherwise, found)
