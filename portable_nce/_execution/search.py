"""Search: the highest scores of each row, or what is measured of its scores, in blocks of whole rows.

The score matrix is never held, and nothing has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from .._core.autodiff import stop_gradient
from .._core.equality import Record
from .._core.namespace import device_of, namespace_of, on_accelerator
from .._core.numerics import entries_at, upcast
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..pairings import Members, Pairing, candidates
from ..similarities import AnySimilarity, resolve
from .channels import Channel
from .inputs import Arrays, Inputs
from .matrix import ScoreMatrix
from .operands import SourceDtypes, operands_of
from .sets import PairRule, RuleSets
from .tiling import searched

Measure: TypeAlias = Callable[[Array, Members, int], tuple[Array, Array]]
"""What gives two numbers of each row, of its scores, its sets and a number k."""

_MOST_PASSES = 32
"""Of more places, a sort takes less time than so many passes."""


class SearchLayout(NamedTuple):
    """Static arguments of a search; without a `measure`, the labels of columns say which are valid."""

    channel: Channel
    judged: PairRule
    counts: tuple[int, ...]
    number: int
    block_size: int | str | None
    measure: Measure | None


def search(
    x: Array,
    y: Array,
    count: int,
    *,
    similarity: AnySimilarity,
    source_dtypes: SourceDtypes,
    valid: Array | None = None,
    measure: Measure | None = None,
    pairing: Pairing | None = None,
    mask: Array | None = None,
    block_size: int | str | None = "auto",
) -> tuple[Array, Array]:
    """The highest scores of each row with valid columns, and the numbers of these, as `highest` has them; constants.

    With a `measure`, what it gives of the scores of each row and of its pairs by the pairing and the mask.
    """
    x, y = map(stop_gradient, (x, y))
    with adapter_of(x).full_precision(x):
        chosen, *sides, _ = operands_of(resolve(similarity), x, y, 1.0, source_dtypes)
        rows, columns = (tuple(map(stop_gradient, side)) for side in sides)
        matrix = ScoreMatrix(chosen, rows, columns, candidates() if pairing is None else pairing, mask, block_size)
        return _searched(matrix, count, measure, valid)


def extreme(matrix: ScoreMatrix, *, of_positives: bool, largest: bool) -> tuple[Array, Array]:
    """The column of each row's largest or smallest score, and whether there is one; constants.

    The search is among the positives or among the negatives. A score of -inf takes no part.
    """
    best, where = _searched(matrix.constant(), 1, _Extreme(of_positives, largest))
    return where, best != -math.inf


def _searched(
    matrix: ScoreMatrix, number: int, measure: Measure | None, valid: Array | None = None
) -> tuple[Array, Array]:
    """A search off the tape, which an adapter that compiles keeps."""
    judged, inputs = matrix.judged()
    if valid is not None:
        inputs = inputs._replace(column_labels=(valid,))
    layout = SearchLayout(matrix.channel, judged, inputs.counts, number, matrix.block_size, measure)
    if matrix.similarity.pullback is None:  # a function, which may be another in each call, and hold arrays on the tape
        return _search(layout, *inputs.flat)
    best, where = adapter_of(inputs.rows[0]).custom_vjp(_search, _no_gradient)(layout, *inputs.flat)
    return stop_gradient(best), where


class _Extreme(Record):
    """The measure of `extreme`: the best score and its column."""

    of_positives: bool
    largest: bool

    def __call__(self, scores: Array, members: Members, k: int) -> tuple[Array, Array]:
        del k
        xp = namespace_of(scores)
        among = members.positives if self.of_positives else members.negatives
        if not self.largest:
            among = xp.logical_and(among, scores != -math.inf)
        candidates = xp.where(among, scores if self.largest else -scores, -math.inf)
        return xp.max(candidates, axis=1), xp.argmax(candidates, axis=1)


def _search(layout: SearchLayout, *arrays: Array) -> tuple[Array, Array]:
    inputs, channel = Inputs.of(layout.counts, arrays), layout.channel
    first = inputs.rows[0]
    adapter = adapter_of(first)
    sets = None if layout.measure is None else RuleSets(layout.judged, inputs)
    by_block = inputs._replace(columns=(), column_labels=())

    def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        here = Inputs.of(by_block.counts, block)
        scores = stop_gradient(channel.scored(here.rows, inputs.columns)[0])
        xp = namespace_of(scores)
        scores = upcast(xp, scores)
        if layout.measure is not None and sets is not None:
            members = sets.of(0, start, here)
            members.refuse_weights()
            return carry, layout.measure(scores, members, layout.number)
        if inputs.column_labels:
            scores = xp.where(inputs.column_labels[0], scores, -math.inf)
        return carry, highest(scores, layout.number)

    held = channel.held(inputs.rows, inputs.columns)
    block = searched(*inputs.shape, layout.block_size, mode=adapter.mode, far=on_accelerator(first), **held)
    _, (first_numbers, second_numbers) = adapter.scan(step, (), by_block.flat, block)
    return first_numbers, second_numbers


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
