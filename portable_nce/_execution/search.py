"""Search: the highest scores of each row, or what is measured of its scores, in blocks of whole rows.

The score matrix is never held, and nothing has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from .._core.autodiff import stop_gradient
from .._core.namespace import device_of, is_far, namespace_of
from .._core.numerics import entries_at, upcast
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..pairings import Members, Pairing, Rule, split
from ..similarities import AnySimilarity, Scores, operands, resolve
from .halves import Exact
from .halves import of_matrix as halves_of_matrix
from .layouts import Arrays, Form
from .matrix import NO_HALVES
from .scored import Side, held, scored
from .tiling import searched

__all__ = ["Measure", "highest", "measured", "search", "taken"]

Measure: TypeAlias = Callable[[Array, Members, int], tuple[Array, Array]]
"""What gives two numbers of each row, of its scores, its sets and a number k."""

_MOST_PASSES = 32
"""Of more places, a sort takes less time than so many passes."""


class SearchLayout(NamedTuple):
    """Everything about a search that is not an array.

    The arrays are the operands of rows and of columns, what these are made of in 16 bits, and then which columns are
    valid, if there are `flags`; or, for a `measure`, those of the rule, of rows, columns and pairs, and the mask.
    """

    number: int
    scores: Scores
    operands: tuple[int, int]
    halves: Form
    wide: bool
    block_size: int | str | None
    flags: bool = False
    measure: Measure | None = None
    rule: Rule | None = None
    rule_arrays: tuple[int, int, int] = (0, 0, 0)
    masked: bool = False


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
    flags: Arrays = () if valid is None else (valid,)
    told = {"number": count, "flags": valid is not None, "block_size": block_size}
    return _run((x, y), flags, told, similarity=similarity, exact_in=exact_in)


def measured(
    x: Array,
    y: Array,
    measure: Measure,
    k: int,
    *,
    similarity: AnySimilarity,
    exact_in: Exact,
    pairing: Pairing,
    mask: Array | None,
    block_size: int | str | None,
) -> tuple[Array, Array]:
    """What is measured of the scores of each row; constants."""
    counts = (len(pairing.rows), len(pairing.columns), len(pairing.pairs))
    told = {
        "number": k,
        "block_size": block_size,
        "measure": measure,
        "rule": pairing.rule,
        "rule_arrays": counts,
        "masked": mask is not None,
    }
    arrays = (*pairing.rows, *pairing.columns, *pairing.pairs, *(() if mask is None else (mask,)))
    return _run((x, y), arrays, told, similarity=similarity, exact_in=exact_in)


def _run(
    both: tuple[Array, Array],
    constants: Arrays,
    told: dict[str, Any],
    *,
    similarity: AnySimilarity,
    exact_in: Exact,
) -> tuple[Array, Array]:
    x, y = map(stop_gradient, both)
    chosen, adapter = resolve(similarity), adapter_of(x)
    with adapter.full_precision(x):
        rows, columns = (tuple(map(stop_gradient, side)) for side in operands(chosen, x, y, 1.0))
        halves = halves_of_matrix(chosen, (x, y), (rows, columns), exact_in) or NO_HALVES
        layout = SearchLayout(
            scores=chosen.scores,
            operands=(len(rows), len(columns)),
            halves=halves.form,
            wide=chosen.wide,
            **told,
        )
        arrays = (*rows, *columns, *halves.arrays, *constants)
        if chosen.pullback is None:  # a plain function, which may be another in each call, and hold arrays on the tape
            return _search(layout, *arrays)
        best, where = adapter.custom_vjp(_search, _no_gradient)(layout, *arrays)  # off the tape; compiled once
        return stop_gradient(best), where


def _search(layout: SearchLayout, *arrays: Array) -> tuple[Array, Array]:
    groups, first = [], 0
    for size in (*layout.operands, *layout.halves.sizes, *layout.rule_arrays):
        groups.append(tuple(arrays[first : first + size]))
        first += size
    rows, columns = Side(groups[0], groups[2]), Side(groups[1], groups[3])
    of_rows, of_columns, pairs = groups[4:]
    pairs = (*pairs, *arrays[first:]) if layout.masked else pairs
    adapter, shape = adapter_of(arrays[0]), (rows.operands[0].shape[-2], columns.operands[0].shape[-2])
    per_row = (*rows.operands, *rows.halves)

    def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        own = Side(block[: layout.operands[0]], block[layout.operands[0] : len(per_row)])
        scores = stop_gradient(scored(layout.scores, own, columns)[0])
        xp = namespace_of(scores)
        scores = upcast(xp, scores)
        if layout.flags:
            scores = xp.where(arrays[-1], scores, -math.inf)
        if layout.measure is None or layout.rule is None:
            return carry, highest(scores, layout.number)
        labels, here = block[len(per_row) : len(per_row) + len(of_rows)], block[len(per_row) + len(of_rows) :]
        i, j = (xp.arange(n, device=device_of(scores)) for n in scores.shape)
        members = split(
            xp,
            layout.rule,
            numbers=(i + start, j),
            shape=shape,
            labels=(labels, of_columns),
            pairs=here[: layout.rule_arrays[2]],
            mask=here[-1] if layout.masked else None,
            dtype=scores.dtype,
        )
        members.refuse_weights()
        return carry, layout.measure(scores, members, layout.number)

    each = held(layout.scores, *groups[:2], wide=layout.wide)
    block = searched(*shape, layout.block_size, mode=adapter.mode, far=is_far(arrays[0]), **each)
    _, (first_numbers, second_numbers) = adapter.scan(step, (), (*per_row, *of_rows, *pairs), block)
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
