"""Fused losses of matrix products: scores that are products of operands, one positive a row, at a fixed distance.

This is what in-batch losses of cosines and dot products are made of. A row's positive is found by its number, so that
its score is a product of two vectors, and a tile of the matrix has negatives alone, but for those tiles that the line
of the positives crosses. A tile costs a product and an exponential, and two products more for the gradients; whatever
is one number for each row is multiplied into operands of D columns instead of tiles of a thousand.

*One-sided* losses take three products. *Two-sided* ones, of rows and of columns (CLIP), share the scores and, where
these are small, the exponentials, and need four, or three if the exponentials are kept. A matrix of *own* scores
(NT-Xent) is symmetric: a tile above its diagonal serves its rows as well as, transposed, its columns; half as many
tiles do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ._core.autodiff import stop_gradient
from ._core.namespace import device_of, namespace_of, together
from ._core.numerics import sum_to_scalar
from ._core.protocol import Array, Namespace
from ._core.registry import adapter_of
from ._fused import RowLoss, weighted_rows
from ._pairs import Term
from ._rows import with_gradient
from ._statistics import RowStatistics
from .pairings import Shifts

__all__ = ["Frame", "product_pairs", "product_rows", "product_sides"]


class Frame(NamedTuple):
    """How a matrix of products is cut."""

    shifts: Shifts
    block: int
    tile: int


class Place(NamedTuple):
    """Where a tile lies: its first row, its first column and the one after its last, and how many columns there are."""

    start: Array | int
    bounds: tuple[int, int]
    n_columns: int


class Sum(NamedTuple):
    """A sum of powers for each row of a tile: that of `top` times `total`; no `top` is one of 0."""

    top: Array | None
    total: Array


class Powers(NamedTuple):
    """Powers of e, or of 2, which take half the time: then scores, and the `top` of sums, are in its `unit`."""

    of: Callable[[Array], Array]
    unit: float = 1.0

    def operand(self, x: Array) -> Array:
        """Scale an operand, so that its products with others are scores in the unit."""
        return x if self.unit == 1.0 else x * self.unit

    def in_nats(self, total: Sum) -> Sum:
        """Give a sum whose `top` is a score as it is."""
        return total if total.top is None or self.unit == 1.0 else Sum(total.top / self.unit, total.total)


def powers_of(xp: Namespace, x: Array) -> Powers:
    """The powers to use: those of 2 in float32, where the library has them; in float64 they are not as exact.

    A compiler that traces knows best.
    """
    if x.dtype == xp.float32 and adapter_of(x).unrolled and hasattr(getattr(xp, "base_namespace", xp), "exp2"):
        return Powers(xp.exp2, 1.0 / math.log(2.0))
    return Powers(xp.exp)


# ----------------------------------------------------------------------------------------------------------- the tiles


def cuts(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """The bounds of pieces of a range."""
    return [(a, min(a + size, stop)) for a in range(start, stop, size)]


def pieces(x: Array, bounds: list[tuple[int, int]]) -> list[Array]:
    """The rows of `x` in pieces."""
    if len(bounds) == 1 and bounds[0] == (0, x.shape[0]):
        return [x]
    return [x[a:b, ...] for a, b in bounds]


def partners(xp: Namespace, shifts: Shifts, columns: Array, n_rows: int) -> Array:
    """The column that is positive with each row."""
    if not shifts.positive:
        return columns if n_rows == columns.shape[0] else columns[:n_rows, ...]
    return xp.concat([columns[shifts.positive :, ...], columns[: shifts.positive, ...]], axis=0)


def add_partners(xp: Namespace, shifts: Shifts, to_columns: Array, to_partners: Array) -> Array:
    """The cotangent of the columns, with that of the partners each in its place."""
    if shifts.positive:
        back = to_partners.shape[0] - shifts.positive
        to_partners = xp.concat([to_partners[back:, ...], to_partners[:back, ...]], axis=0)
    n_rows = to_partners.shape[0]
    if n_rows == to_columns.shape[0]:
        return to_columns + to_partners
    return xp.concat([to_columns[:n_rows, ...] + to_partners, to_columns[n_rows:, ...]], axis=0)


def columns_of(xp: Namespace, shifts: Shifts, parts: tuple[Array, ...], to_partners: Array) -> Array:
    """The cotangent of the columns, of those of its tiles and that of the partners."""
    to_columns = one(xp, parts)
    if shifts.first:
        return xp.concat([to_partners, to_columns], axis=0)
    return add_partners(xp, shifts, to_columns, to_partners)


def one(xp: Namespace, parts: Sequence[Array]) -> Array:
    """The parts of an array in one."""
    return parts[0] if len(parts) == 1 else xp.concat(list(parts), axis=0)


def filled(distance: int, x: Array, place: Place, value: float) -> Array:
    """A tile with `value` at each row's column of that distance; it may be overwritten."""
    start, bounds, n_columns = place
    count = x.shape[0]
    if isinstance(start, int):
        # Along the diagonal through (start, first), and on from column 0 where it leaves the matrix.
        first = (start + distance) % n_columns
        for shift in (0, n_columns) if first + count > n_columns else (0,):
            low, high = max(bounds[0], first - shift), min(bounds[1], first - shift + count)
            if low < high:
                x = adapter_of(x).fill_diagonal(x, low - first + shift, low - bounds[0], high - low, value)
        return x
    xp, device = namespace_of(x), device_of(x)
    number = xp.arange(count, dtype=xp.int32, device=device) + (start + distance)
    number = xp.where(number >= n_columns, number - n_columns, number)[:, None]
    own = number == xp.arange(*bounds, dtype=number.dtype, device=device)[None, :]
    return xp.where(own, value, x)


def without_others(shifts: Shifts, x: Array, place: Place, value: float) -> Array:
    """A tile with `value` where no negative is; it may be overwritten."""
    if shifts.first:
        return x
    x = filled(shifts.positive, x, place, value)
    return filled(0, x, place, value) if shifts.own else x


def products(frame: Frame, own: Array, columns: Array, place: Place) -> Array:
    """The scores of a tile, -inf for what is no negative."""
    return without_others(frame.shifts, product(own, columns), place, -math.inf)


def product(own: Array, columns: Array) -> Array:
    """The scores of a tile; of a wide one as the transpose of a tall one, which takes OpenBLAS up to half the time."""
    return own @ columns.T if own.shape[0] >= columns.shape[0] else (columns @ own.T).T


def outer_sum(of_rows: Array, of_columns: Array) -> Array:
    """The sum of a number of each row and one of each column of a tile, in the order in memory that a product has."""
    if of_rows.shape[0] >= of_columns.shape[0]:
        return of_rows[:, None] + of_columns[None, :]
    return (of_columns[:, None] + of_rows[None, :]).T


SMALL = 30.0
"""The exponentials of what is between -30 and 30 add up without loss, in float32 too."""


LENGTHS = 1e9
"""Numbers up to here can be squared, and some squares added up, in any dtype that is computed in."""


def are_small(xp: Namespace, rows: Array, columns: Array, parameters: Sequence[Array] = ()) -> bool:
    """Whether it is known that no score, nor its sum with parameters, is so large that exponentials need a shift.

    By the inequality of Cauchy and Schwarz; it costs two products of D columns, and saves two passes over the matrix.
    """
    known = adapter_of(rows).known
    rows, columns = stop_gradient(rows), stop_gradient(columns)
    for x in (rows, columns):
        largest = known(xp.max(xp.abs(x)))
        if largest is None or not largest <= LENGTHS:
            return False
    longest = known(xp.max(xp.sum(rows * rows, axis=1)) * xp.max(xp.sum(columns * columns, axis=1)))
    bound = math.inf if longest is None else math.sqrt(longest)
    for x in parameters:
        largest = known(xp.max(xp.abs(stop_gradient(x))))
        bound += math.inf if largest is None else largest
    return bound <= SMALL


def exponentials(powers: Powers, scores: Array, axis: int = 1, *, small: bool, spare: bool = True) -> tuple[Array, Sum]:
    """The exponentials of a tile's scores, and their sums along an axis; `spare` scores may be overwritten."""
    xp = namespace_of(scores)
    if small:
        weights = powers.of(scores)
        return weights, Sum(None, xp.sum(weights, axis=axis))
    top = stop_gradient(xp.max(scores, axis=axis))
    weights = powers.of(shifted(xp, scores, top, axis, spare=spare))
    return weights, Sum(top, xp.sum(weights, axis=axis))


def shifted(xp: Namespace, scores: Array, top: Array, axis: int, *, spare: bool) -> Array:
    """The scores minus their largest, if that is finite."""
    shift = xp.where(xp.isinf(top), xp.zeros_like(top), top)
    shift = shift[:, None] if axis == 1 else shift[None, :]
    if not spare:
        return scores - shift
    scores -= shift
    return scores


def merged(xp: Namespace, powers: Powers, parts: list[Sum]) -> tuple[Sum, list[Array | None]]:
    """The sum of several sums, and the factors that bring the exponentials of each to the common shift."""
    if len(parts) == 1:
        return parts[0], [None]
    tops = [part.top for part in parts if part.top is not None]
    total = parts[0].total
    if not tops:
        for part in parts[1:]:
            total = total + part.total
        return Sum(None, total), [None] * len(parts)
    top = tops[0]
    for other in tops[1:]:
        top = xp.maximum(top, other)
    factors = [powers.of(own - top) for own in tops]
    total = total * factors[0]
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        total = total + part.total * factor
    return Sum(top, total), list(factors)


def statistics(xp: Namespace, total: Sum, positive: Array) -> RowStatistics:
    """The row statistics, of the sum over the negatives and of the positive's score; there is one of each."""
    logarithm = xp.log(total.total)
    there = xp.ones_like(positive, dtype=xp.bool)
    if total.top is None:
        odds, negative = logarithm - positive, logarithm
    else:
        odds, negative = (total.top - positive) + logarithm, total.top + logarithm
    return RowStatistics(odds, xp.zeros_like(positive), negative, positive, there, there)


class Worth(NamedTuple):
    """What some rows are worth: losses, and coefficients of the exponentials, the positives and the weights."""

    values: Array
    of_negatives: Array = None
    of_positive: Array = None
    to_weights: Array | None = None


def worth(xp: Namespace, loss: RowLoss, total: Sum, positive: Array, weights: Array | None, *, wanted: bool) -> Worth:
    """Let the objective say what the rows are worth."""
    of_negative = of_positive = None
    if loss.of_odds is not None:
        logarithm = xp.log(total.total)
        odds = logarithm - positive if total.top is None else (total.top - positive) + logarithm
        values, of_odds = loss.of_odds(odds, small=total.top is None)
    else:
        row = statistics(xp, total, positive)
        values = loss.rows(row)
        of_odds, _, of_negative, of_positive = loss.slopes(row)
        of_odds = xp.zeros_like(positive) if of_odds is None else of_odds
    values, factor, to_weights = weighted_rows(xp, values, weights)
    if not wanted:
        return Worth(values)
    to_negatives = of_odds if of_negative is None else of_odds + of_negative
    to_positive = -of_odds if of_positive is None else of_positive - of_odds
    if factor is not None:
        to_negatives, to_positive = to_negatives * factor, to_positive * factor
    return Worth(values, to_negatives / total.total, to_positive, to_weights)


def grown(total: Array, part: Array) -> Array:
    """A sum that grows in place where the library has that."""
    total += part
    return total


# -------------------------------------------------------------------------------------------------------- one-sided


class _RowsPlan(NamedTuple):
    frame: Frame
    loss: RowLoss


def product_rows(loss: RowLoss, frame: Frame, rows: Array, columns: Array, weights: Array | None) -> tuple[Array, int]:
    """The weighted sum of the losses of the rows, of shape (1,), and their number."""
    arrays = (rows, columns) if weights is None else (rows, columns, weights)
    return with_gradient(_rows_with_gradient, _RowsPlan(frame, loss), *arrays)[0], rows.shape[0]


def _rows_with_gradient(plan: _RowsPlan, *arrays: Array, wanted: bool) -> tuple[Array, ...]:
    (arrays,) = together(arrays)
    rows, columns, *weights = arrays
    xp = namespace_of(rows)
    frame, loss = plan.frame, plan.loss
    shape = (rows.shape[0], columns.shape[0])
    if frame == Frame(Shifts(), *shape):
        return _whole(xp, loss, rows, columns, *weights, wanted=wanted)
    bounds = cuts(frame.shifts.first, shape[1], frame.tile)
    tiles = pieces(columns, bounds)
    small, powers = are_small(xp, rows, columns), powers_of(xp, rows)

    def step(
        carry: tuple[Array, ...], block: tuple[Array, ...], start: Array | int
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        own, partner, *weight = block
        operand, found = powers.operand(own), []
        for own_columns, ends in zip(tiles, bounds, strict=True):
            scores = products(frame, operand, own_columns, Place(start, ends, shape[1]))
            found.append(exponentials(powers, scores, small=small))
        total, factors = merged(xp, powers, [part for _, part in found])
        positive = xp.sum(own * partner, axis=1)
        of = worth(xp, loss, powers.in_nats(total), positive, weight[0] if weight else None, wanted=wanted)
        if not wanted:
            return carry, (of.values,)
        attracted = of.of_positive[:, None]
        to_rows, to_columns = attracted * partner, []
        for sum_so_far, own_columns, (exponential, _), factor in zip(carry, tiles, found, factors, strict=True):
            share = (of.of_negatives if factor is None else of.of_negatives * factor)[:, None]
            to_rows = grown(to_rows, share * (exponential @ own_columns))
            to_columns.append(grown(sum_so_far, exponential.T @ (share * own)))
        further = () if of.to_weights is None else (of.to_weights,)
        return tuple(to_columns), (of.values, to_rows, attracted * own, *further)

    init = tuple(xp.zeros_like(x) for x in tiles) if wanted else ()
    xs = (rows, partners(xp, frame.shifts, columns, shape[0]), *weights)
    carry, found = adapter_of(rows).scan(step, init, xs, frame.block)
    values, *gradients = found
    total = sum_to_scalar(xp, values)
    if not wanted:
        return total, values
    to_rows, to_partners, *further = gradients
    to_columns = columns_of(xp, frame.shifts, carry, to_partners)
    return total, values, to_rows, to_columns, *further


def _whole(
    xp: Namespace, loss: RowLoss, rows: Array, columns: Array, weights: Array | None = None, *, wanted: bool
) -> tuple[Array, ...]:
    """The same in one tile, with the fewest calls: the positives' share stands on its diagonal."""
    number = rows.shape[0]
    put, powers = adapter_of(rows).fill_diagonal, powers_of(xp, rows)
    positive = xp.sum(rows * partners(xp, Shifts(), columns, number), axis=1)
    scores = put(product(powers.operand(rows), columns), 0, 0, number, -math.inf)
    exponential, total = exponentials(powers, scores, small=False)
    of = worth(xp, loss, powers.in_nats(total), positive, weights, wanted=wanted)
    value = sum_to_scalar(xp, of.values)
    if not wanted:
        return value, of.values
    pull = put(exponential * of.of_negatives[:, None], 0, 0, number, of.of_positive)
    further = () if of.to_weights is None else (of.to_weights,)
    return value, of.values, pull @ columns, pull.T @ rows, *further


# ---------------------------------------------------------------------------------------------------------- two-sided


class _SidesPlan(NamedTuple):
    frame: Frame
    loss: RowLoss
    own: bool
    kept: bool


def product_sides(
    loss: RowLoss, frame: Frame, rows: Array, columns: Array, weights: Array | None, *, own: bool, kept: bool
) -> tuple[Array, int]:
    """The weighted losses of a square matrix, of shape (1,), and their number: the mean of rows and columns.

    With `own` scores, which are symmetric, the two are the same. `kept` exponentials take N² numbers of memory. Neither
    is of use where blocks are traced.
    """
    arrays = (rows, columns) if weights is None else (rows, columns, weights)
    plan = _SidesPlan(frame, loss, own, kept)
    return with_gradient(_sides_with_gradient, plan, *arrays)[0], rows.shape[0]


class _Square(NamedTuple):
    """A square matrix cut along both axes, columns into pieces of several of rows.

    With `own` scores the tiles below the diagonal are left out. Those that it crosses hold each pair both ways.
    """

    frame: Frame
    powers: Powers
    row_bounds: list[tuple[int, int]]
    column_bounds: list[tuple[int, int]]
    rows: list[Array]
    operands: list[Array]  # the rows, scaled for the powers
    columns: list[Array]
    own: bool

    def places(self) -> list[tuple[int, int]]:
        """Give the tiles by the numbers of their rows' and their columns' pieces."""
        return [(i, j) for i in range(len(self.rows)) for j in range(self.first(i), len(self.columns))]

    def first(self, i: int) -> int:
        """Give the first piece of columns that some rows need."""
        return self.row_bounds[i][0] // self.frame.tile if self.own else 0

    def serves_columns(self, i: int, j: int) -> bool:
        """Tell whether a tile's sums over its rows are wanted too: not if it holds each pair both ways."""
        return not self.own or j != self.first(i)

    def scores(self, i: int, j: int) -> Array:
        """Compute a tile."""
        place = Place(self.row_bounds[i][0], self.column_bounds[j], self.column_bounds[-1][1])
        return products(self.frame, self.operands[i], self.columns[j], place)


def _sides_with_gradient(plan: _SidesPlan, *arrays: Array, wanted: bool) -> tuple[Array, ...]:
    (arrays,) = together(arrays)
    rows, columns, *weights = arrays
    xp = namespace_of(rows)
    row_bounds = cuts(0, rows.shape[0], plan.frame.block)
    column_bounds = cuts(0, rows.shape[0], plan.frame.tile)
    powers = powers_of(xp, rows)
    square = _Square(
        plan.frame,
        powers,
        row_bounds,
        column_bounds,
        pieces(rows, row_bounds),
        pieces(powers.operand(rows), row_bounds),
        pieces(columns, column_bounds),
        plan.own,
    )
    small = are_small(xp, rows, columns)
    kept: dict[tuple[int, int], Array] | None = {} if plan.kept and small and wanted else None
    traced = not adapter_of(rows).unrolled
    sides = _traced_sums(xp, powers, plan, rows, columns) if traced else _sums(xp, square, small=small, kept=kept)
    partner = partners(xp, plan.frame.shifts, columns, rows.shape[0])
    positive = xp.sum(rows * partner, axis=1)
    weight = weights[0] if weights else None
    found = [worth(xp, plan.loss, powers.in_nats(side), positive, weight, wanted=wanted) for side in sides]
    values = mean_of(found, "values")
    if not wanted:
        return sum_to_scalar(xp, values), values
    coefficients = [of.of_negatives for of in found]
    if traced:
        to_rows, to_columns = _traced_gradients(plan, rows, columns, sides, coefficients, powers=powers)
    else:
        to_rows, to_columns = _gradients(xp, square, sides, coefficients, kept=kept)
    attracted = mean_of(found, "of_positive")[:, None]
    to_columns = add_partners(xp, plan.frame.shifts, to_columns, attracted * rows)
    further = (mean_of(found, "to_weights"),) if weights else ()
    return sum_to_scalar(xp, values), values, grown(to_rows, attracted * partner), to_columns, *further


def _sums(xp: Namespace, square: _Square, *, small: bool, kept: dict[tuple[int, int], Array] | None) -> list[Sum]:
    """The sums of the rows, and those of the columns; with own scores they are the same, and both parts of one."""
    powers = square.powers
    of_rows = [_nothing(xp, x, small=small) for x in square.rows]
    of_columns = [_nothing(xp, x, small=small) for x in square.columns]
    for i, j in square.places():
        scores, both_ways = square.scores(i, j), square.serves_columns(i, j)
        exponential, part = exponentials(powers, scores, small=small, spare=not both_ways)
        of_rows[i] = _added(xp, powers, of_rows[i], part)
        if both_ways and small:
            of_columns[j] = _added(xp, powers, of_columns[j], Sum(None, xp.sum(exponential, axis=0)))
        elif both_ways:
            of_columns[j] = _added(xp, powers, of_columns[j], exponentials(powers, scores, axis=0, small=False)[1])
        if kept is not None:
            kept[i, j] = exponential
    sides = [joined(xp, side) for side in (of_rows, of_columns)]
    return [_added(xp, powers, *sides)] if square.own else sides


def _nothing(xp: Namespace, piece: Array, *, small: bool) -> Sum:
    """The sums of no tile yet: made before the first, so that they do not lie between those in memory."""
    zeros = xp.zeros_like(piece[:, 0])
    return Sum(None if small else zeros - math.inf, zeros)


def _added(xp: Namespace, powers: Powers, total: Sum, part: Sum) -> Sum:
    """The sum of two."""
    if total.top is None or part.top is None:
        return Sum(None, grown(total.total, part.total))
    top = xp.maximum(total.top, part.top)
    shift = xp.where(xp.isinf(top), xp.zeros_like(top), top)
    return Sum(top, total.total * powers.of(total.top - shift) + part.total * powers.of(part.top - shift))


def _gradients(
    xp: Namespace,
    square: _Square,
    sides: list[Sum],
    coefficients: list[Array],
    *,
    kept: dict[tuple[int, int], Array] | None,
) -> tuple[Array, Array]:
    """The cotangents of rows and columns, for the coefficients of the exponentials of each side."""
    powers, half = square.powers, 1.0 if square.own else 0.5
    by_row = [half * coefficients[0][a:b] for a, b in square.row_bounds]
    by_column = [half * coefficients[-1][a:b] for a, b in square.column_bounds]
    row_top, column_top = sides[0].top, sides[-1].top
    to_rows, to_columns = ([xp.zeros_like(x) for x in side] for side in (square.rows, square.columns))
    for i, j in square.places():
        both_ways = square.serves_columns(i, j)
        if row_top is None or column_top is None:
            exponential = powers.of(square.scores(i, j)) if kept is None else kept.pop((i, j))
            if both_ways:
                pull = outer_sum(by_row[i], by_column[j])
                pull *= exponential
            else:
                pull = exponential * by_row[i][:, None]
        else:
            scores, (a, b), (c, d) = square.scores(i, j), square.row_bounds[i], square.column_bounds[j]
            pull = powers.of(shifted(xp, scores, row_top[a:b], 1, spare=not both_ways)) * by_row[i][:, None]
            if both_ways:
                pull = pull + powers.of(shifted(xp, scores, column_top[c:d], 0, spare=True)) * by_column[j][None, :]
        to_rows[i] = grown(to_rows[i], pull @ square.columns[j])
        to_columns[j] = grown(to_columns[j], pull.T @ square.rows[i])
    return one(xp, to_rows), one(xp, to_columns)


def _traced_sums(xp: Namespace, powers: Powers, plan: _SidesPlan, rows: Array, columns: Array) -> list[Sum]:
    """The same where the number of a block is traced, so that all blocks must be alike, with all columns."""
    whole = (0, columns.shape[0])

    def step(
        carry: tuple[Array, ...], block: tuple[Array, ...], start: Array | int
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        scores = products(plan.frame, block[0], columns, Place(start, whole, whole[1]))
        _, part = exponentials(powers, scores, axis=0, small=False, spare=False)
        total = _added(xp, powers, Sum(*carry), part)
        _, own = exponentials(powers, scores, small=False)
        return (total.top, total.total), (own.top, own.total)

    nothing = _nothing(xp, columns, small=False)
    of_columns, of_rows = adapter_of(rows).scan(step, (nothing.top, nothing.total), (rows,), plan.frame.block)
    return [Sum(*of_rows), Sum(*of_columns)]


def _traced_gradients(
    plan: _SidesPlan, rows: Array, columns: Array, sides: list[Sum], coefficients: list[Array], *, powers: Powers
) -> tuple[Array, Array]:
    """The same for the gradients."""
    xp = namespace_of(rows)
    whole = (0, columns.shape[0])

    def step(
        carry: tuple[Array, ...], block: tuple[Array, ...], start: Array | int
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        own, top, coefficient = block
        scores = products(plan.frame, own, columns, Place(start, whole, whole[1]))
        pull = powers.of(shifted(xp, scores, top, 1, spare=False)) * (0.5 * coefficient[:, None])
        pull = pull + powers.of(shifted(xp, scores, sides[1].top, 0, spare=True)) * (0.5 * coefficients[1][None, :])
        return (grown(carry[0], pull.T @ own),), (pull @ columns,)

    xs = (rows, sides[0].top, coefficients[0])
    (to_columns,), (to_rows,) = adapter_of(rows).scan(step, (xp.zeros_like(columns),), xs, plan.frame.block)
    return to_rows, to_columns


def joined(xp: Namespace, sums: list[Sum]) -> Sum:
    """The sums of all blocks in one."""
    tops = [part.top for part in sums if part.top is not None]
    return Sum(one(xp, tops) if tops else None, one(xp, [part.total for part in sums]))


def mean_of(found: list[Worth], field: str) -> Array:
    """The mean over the directions."""
    first, *second = (getattr(one, field) for one in found)
    return 0.5 * first + 0.5 * second[0] if second else first


# -------------------------------------------------------------------------------------------------------------- pairs


class _PairsPlan(NamedTuple):
    frame: Frame
    terms: tuple[Term | None, Term | None]
    divide_by: str
    weighted: bool


def product_pairs(
    terms: tuple[Term | None, Term | None],
    frame: Frame,
    rows: Array,
    columns: Array,
    *,
    parameters: tuple[Array, ...],
    divide_by: str,
    weights: Array | None,
) -> tuple[Array, Array]:
    """The weighted sum of the terms of all pairs, of shape (1,), and how often each row counts in a mean."""
    arrays = (rows, columns, *parameters, *(() if weights is None else (weights,)))
    return with_gradient(_pairs_with_gradient, _PairsPlan(frame, terms, divide_by, weights is not None), *arrays)


def _pairs_with_gradient(plan: _PairsPlan, *arrays: Array, wanted: bool) -> tuple[Array, ...]:
    (arrays,) = together(arrays)
    rows, columns, *by_row = arrays
    xp = namespace_of(rows)
    frame, shape = plan.frame, (rows.shape[0], columns.shape[0])
    bounds = cuts(frame.shifts.first, shape[1], frame.tile)
    tiles = pieces(columns, bounds)
    small = are_small(xp, rows, columns, by_row[:-1] if plan.weighted else by_row)

    def step(
        carry: tuple[Array, ...], block: tuple[Array, ...], start: Array | int
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        own, partner, *parameters = block
        weight = parameters.pop() if plan.weighted else None
        scaled = own if weight is None else own * weight[:, None]
        value, slope, to_parameters = _attracted(xp, plan.terms[0], xp.sum(own * partner, axis=1), parameters)
        active = xp.astype(value != 0, value.dtype)
        to_rows, to_columns = slope[:, None] * partner, []
        for k, (own_columns, ends) in enumerate(zip(tiles, bounds, strict=True)):
            place = Place(start, ends, shape[1])
            repelled, slopes = _repelled(plan, product(own, own_columns), place, parameters, small=small)
            value = value + xp.sum(repelled, axis=1)
            if plan.divide_by == "active":
                active = active + xp.sum(xp.astype(repelled != 0, value.dtype), axis=1)
            if wanted:
                sums = {id(x): xp.sum(x, axis=1) for x in slopes[1:]}
                to_parameters = [a + sums[id(x)] for a, x in zip(to_parameters, slopes[1:], strict=True)]
                to_rows = grown(to_rows, slopes[0] @ own_columns)
                to_columns.append(grown(carry[k], slopes[0].T @ scaled))
        value, factor, to_weight = weighted_rows(xp, value, weight)
        if not wanted:
            return carry, (value, active)
        to_partner = slope[:, None] * scaled
        if factor is not None:
            to_rows = to_rows * factor[:, None]
            to_parameters = [*(x * factor for x in to_parameters), to_weight]
        return tuple(to_columns), (value, active, to_rows, to_partner, *to_parameters)

    init = tuple(xp.zeros_like(x) for x in tiles) if wanted else ()
    xs = (rows, partners(xp, frame.shifts, columns, shape[0]), *by_row)
    carry, (values, active, *gradients) = adapter_of(rows).scan(step, init, xs, frame.block)
    number = active
    if plan.divide_by != "active":
        pairs = shape[1] - frame.shifts.first + (1 if frame.shifts.first else 0) - (1 if frame.shifts.own else 0)
        number = xp.ones_like(active) * float(pairs if plan.divide_by == "pairs" else 1)
    if not wanted:
        return sum_to_scalar(xp, values), number
    to_rows, to_partners, *further = gradients
    to_columns = columns_of(xp, frame.shifts, carry, to_partners)
    return sum_to_scalar(xp, values), number, to_rows, to_columns, *further


def _attracted(
    xp: Namespace, term: Term | None, scores: Array, parameters: list[Array]
) -> tuple[Array, Array, list[Array]]:
    """The term of the positives, its slope, and those of its parameters."""
    if term is None or term.slopes is None:
        nothing = xp.zeros_like(scores)
        return nothing, nothing, [nothing for _ in parameters]
    slope, *to_parameters = term.slopes(scores, *parameters)
    return term.value(scores, *parameters), slope, to_parameters


def _repelled(
    plan: _PairsPlan, scores: Array, place: Place, parameters: list[Array], *, small: bool
) -> tuple[Array, tuple[Array, ...]]:
    """The term of the negatives and its slopes, 0 where there is none."""
    term, shifts = plan.terms[1], plan.frame.shifts
    assert term is not None  # noqa: S101  (others have no use for this way of computing)
    assert term.both is not None  # noqa: S101
    scores = without_others(shifts, scores, place, 0.0)
    value, slopes = term.both(scores, *(x[:, None] for x in parameters), small=small)
    cleared = {id(x): without_others(shifts, x, place, 0.0) for x in (value, *slopes)}
    return cleared[id(value)], tuple(cleared[id(x)] for x in slopes)
