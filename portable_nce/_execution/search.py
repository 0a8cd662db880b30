"""Search: the highest scores of each row, or measures of its scores, in blocks of rows and without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from .._core.autodiff import no_gradient, stop_gradient
from .._core.namespace import device_of, namespace_of
from .._core.notes import note
from .._core.numerics import entries_at, place_of_largest, upcast
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..pairings import Members, Pairing, candidates
from ..similarities import AnySimilarity, resolve
from .channels import Channel
from .inputs import Arrays, Inputs
from .matrix import ScoreMatrix
from .operands import half_of, operands_of
from .sets import OnePositive, PairRule, RuleSets
from .tiling import Bounds, masked, sizes_of

Measure: TypeAlias = Callable[[Array, Members | OnePositive, int], tuple[Array, Array]]
"""Function of the scores of rows, their positives and negatives, and a number k, to two numbers per row."""

_MOST_PASSES = 32
"""For more columns per row, a sort is faster than repeated argmax."""


class Searched(NamedTuple):
    """Note of a search."""

    spec: SearchSpec
    inputs: Inputs


class SearchSpec(NamedTuple):
    """Static arguments of a search; without a `measure`, the column labels mark valid columns."""

    channel: Channel
    rule: PairRule
    group_sizes: tuple[int, ...]
    number: int
    block_size: int | str | None
    measure: Measure | None


def search(
    x: Array,
    y: Array,
    count: int,
    *,
    similarity: AnySimilarity,
    dtypes: tuple[Any, ...],
    precision: str | None = None,
    valid: Array | None = None,
    measure: Measure | None = None,
    pairing: Pairing | None = None,
    mask: Array | None = None,
    block_size: int | str | None = "auto",
) -> tuple[Array, Array]:
    """Highest scores of each row among valid columns, and these columns, as by `highest`; constants.

    `dtypes`: of the embeddings before they were upcast.

    With a `measure`, its results for the scores of each row, with pairs from the pairing and the mask.
    """
    x, y = map(stop_gradient, (x, y))
    with adapter_of(x).full_precision(x):
        chosen = resolve(similarity)
        chosen, *sides, _ = operands_of(chosen, x, y, 1.0, half_of(chosen, x, dtypes, precision))
        rows, columns = (tuple(map(stop_gradient, side)) for side in sides)
        matrix = ScoreMatrix(chosen, rows, columns, candidates() if pairing is None else pairing, mask, block_size)
        return _run_search(matrix, count, measure, valid)


def measured(matrix: ScoreMatrix, measure: Measure) -> tuple[Array, Array]:
    """Results of a measure of each row of a matrix, which are constants."""
    return _run_search(matrix.constant(), 1, measure)


def _run_search(
    matrix: ScoreMatrix, number: int, measure: Measure | None, valid: Array | None = None
) -> tuple[Array, Array]:
    """Results of a search, which an adapter may compile."""
    rule, inputs = matrix.pair_rule()
    if valid is not None:
        inputs = inputs._replace(column_labels=(valid,))
    elif measure is not None:
        inputs = inputs._replace(**(matrix.one_positive() or {}))
    spec = SearchSpec(matrix.channel, rule, inputs.group_sizes, number, matrix.block_size, measure)
    note(computed=Searched(spec, inputs))
    if matrix.similarity.pullback is None:  # a user's function may differ in each call, and close over recorded arrays
        return _search(spec, *inputs.flat)
    best, columns = adapter_of(inputs.rows[0]).custom_vjp(_search, no_gradient)(spec, *inputs.flat)
    return stop_gradient(best), columns


def _search(spec: SearchSpec, *arrays: Array) -> tuple[Array, Array]:
    inputs, channel = Inputs.of(spec.group_sizes, arrays), spec.channel
    first = inputs.rows[0]
    adapter = adapter_of(first)
    sets = None if spec.measure is None or inputs.targets else RuleSets(spec.rule, inputs)
    by_block = inputs.without_columns()

    def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        block_inputs = Inputs.of(by_block.group_sizes, block)
        scores = stop_gradient(channel.scored(block_inputs.rows, inputs.columns)[0])
        xp = namespace_of(scores)
        scores = upcast(xp, scores)
        if spec.measure is not None and sets is None:
            return carry, spec.measure(scores, OnePositive.of(block_inputs), spec.number)
        if spec.measure is not None and sets is not None:
            members = sets.of(0, start, block_inputs)
            members.refuse_weights()
            return carry, spec.measure(scores, members, spec.number)
        if inputs.column_labels:
            scores = xp.where(inputs.column_labels[0], scores, -math.inf)
        return carry, highest(scores, spec.number)

    _, (first_numbers, second_numbers) = adapter.scan(step, (), by_block.flat, block_of(spec, inputs))
    return first_numbers, second_numbers


def block_of(spec: SearchSpec, inputs: Inputs) -> int | Bounds:
    """Rows of a block of a search."""
    held = spec.channel.held(inputs.rows, inputs.columns)
    return sizes_of(masked, inputs.rows[0], spec.block_size, **held, searched=True).of(*inputs.shape).block


def highest(scores: Array, count: int) -> tuple[Array, Array]:
    """The `count` highest scores of each row, in descending order, and their columns; ties in order of the columns.

    NaN counts as +inf. A score of -inf has the column -1.

    Where a library has no function for them: all of them lie in the `count` groups of columns with the highest maxima.
    With n columns in groups of g, the search visits n / g maxima and then count · g scores; the sum is smallest if both
    are equal.
    """
    xp, device, (n_rows, n_columns) = namespace_of(scores), device_of(scores), scores.shape
    found = adapter_of(scores).highest_of_rows(scores, count)
    if found is not None:
        values = entries_at(scores, found)
        return values, xp.where(values == -math.inf, -1, found)
    mode = adapter_of(scores).mode
    # No groups if the number of columns may be symbolic: it has no square root.
    size = 1 if mode in {"whole", "compiled"} or not isinstance(n_columns, int) else math.isqrt(n_columns // count)
    columns = None
    if size > 1:
        whole = n_columns - n_columns % size
        grouped = xp.reshape(scores[:, :whole], (n_rows, whole // size, size))
        if mode == "traced":  # XLA's maxima ignore NaN: openxla/xla#21461
            grouped = _without_nan(grouped)
        maxima = xp.max(grouped, axis=2)
        groups = xp.sort(_first_places(maxima, count), axis=1)
        inside = groups[:, :, None] * size + xp.arange(size, dtype=groups.dtype, device=device)[None, None, :]
        rest = xp.arange(whole, n_columns, dtype=groups.dtype, device=device)[None, :]
        rest = xp.broadcast_to(rest, (n_rows, n_columns - whole))
        columns = xp.concat([xp.reshape(inside, (n_rows, count * size)), rest], axis=1)
        scores = taken(scores, columns, -math.inf)
    places = _first_places(scores, count)
    return taken(scores, places, -math.inf), places if columns is None else taken(columns, places, -1)


def _first_places(scores: Array, count: int) -> Array:
    """Columns of the highest scores of each row, the first of equal ones; -1 for a score of -inf."""
    xp = namespace_of(scores)
    scores = _without_nan(scores)
    if count > _MOST_PASSES:
        places = xp.argsort(-scores, axis=1, stable=True)[:, :count]
        return xp.where(entries_at(scores, places) == -math.inf, -1, places)
    places, fill_columns = [], adapter_of(scores).fill_columns
    for _ in range(count):
        place = place_of_largest(scores)
        places.append(xp.where(entries_at(scores, place) == -math.inf, -1, place))
        scores = fill_columns(scores, place[:, 0], -math.inf, inside=True)
    return xp.concat(places, axis=1)


def _without_nan(scores: Array) -> Array:
    xp = namespace_of(scores)
    return xp.where(xp.isnan(scores), math.inf, scores)


def taken(x: Array, places: Array, otherwise: float) -> Array:
    """Entries of each row in some columns; `otherwise` where a column is negative."""
    xp = namespace_of(x, places)
    entries = entries_at(x, xp.where(places < 0, 0, places))
    return xp.where(places < 0, otherwise, entries)
