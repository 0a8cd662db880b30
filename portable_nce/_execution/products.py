"""Products of operands, in 16 bits where the library is faster with these, and the cotangents of both sides.

A number of each row is multiplied into operands of D columns instead of tiles of a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._core.autodiff import stop_gradient
from .._core.checks import entries_at_hand, largest, least
from .._core.namespace import namespace_of
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from .inputs import Arrays


class Operand(NamedTuple):
    """Rows of a product, float32 or float64; and, for products of 16 bits, what they are made of.

    ``x = factor * Σ parts``, a factor (n, 1) for each row and up to three parts of 16 bits. What `x` has beyond the
    columns of the parts is multiplied in float32. Derivatives are by `x` alone. Rows that do not count are 0 in all of
    these. Of columns, `added` is added to their scores.
    """

    x: Array
    factor: Array = None
    parts: tuple[Array, ...] = ()
    added: Array = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What `operand_of` makes an operand of."""
        return (self.x, self.factor, *self.parts) if self.parts else (self.x,)

    @property
    def beyond(self) -> Array | None:
        """The columns of `x` that the parts do not have, if there are any."""
        width = self.parts[0].shape[1]
        return None if self.x.shape[1] == width else self.x[:, width:]


def operand_of(arrays: Sequence[Array]) -> Operand:
    """The operand that has these arrays."""
    return Operand(arrays[0], arrays[1], tuple(arrays[2:])) if len(arrays) > 1 else Operand(arrays[0])


def pieces(x: Array, bounds: Sequence[tuple[int, int]]) -> list[Array]:
    """The rows of `x` in pieces."""
    if len(bounds) == 1 and bounds[0] == (0, x.shape[0]):
        return [x]
    return [x[a:b, ...] for a, b in bounds]


def with_added(columns: Operand, numbers: Array) -> Operand:
    """Columns to whose scores numbers are added; without parts, the rows must be `with_ones`."""
    return columns._replace(added=numbers) if columns.parts else Operand(_with_column(columns.x, numbers))


def with_ones(rows: Operand) -> Operand:
    """Rows for columns `with_added` numbers: ``[x, 1]·[y, b] = x·y + b``."""
    return rows if rows.parts else Operand(_with_column(rows.x, namespace_of(rows.x).ones_like(rows.x[:, 0])))


def operand_pieces(operand: Operand, bounds: Sequence[tuple[int, int]]) -> list[Operand]:
    """The rows of an operand in pieces."""
    return [operand_of(arrays) for arrays in zip(*(pieces(x, bounds) for x in operand.arrays), strict=True)]


def concat_rows(xp: Namespace, parts: Sequence[Array]) -> Array:
    """The pieces of an array in one."""
    return parts[0] if len(parts) == 1 else xp.concat(list(parts), axis=0)


def product(rows: Operand, columns: Operand) -> Array:
    """The scores of a tile, and what is added to each column."""
    if not rows.parts:
        return _product(rows.x, columns.x)
    count = len(rows.arrays)

    def of_halves(*arrays: Array) -> Array:
        own, other = (operand_of(x) for x in (arrays[:count], arrays[count:]))
        scores = _scores_of_parts(own.parts, other.parts)
        scores *= own.factor
        scores *= other.factor.T
        if own.beyond is not None:
            scores += _product(own.beyond, other.beyond)
        return scores

    def pull(side: int) -> Callable[..., Array]:
        def of_side(cotangent: Array, *arrays: Array) -> Array:
            both = operand_of(arrays[:count]), operand_of(arrays[count:])
            return pulled(cotangent, None, *both, wanted=(side == 0, side == 1))[side]

        return of_side

    found = adapter_of(rows.x).by_halves(
        of_halves,
        lambda *arrays: _product(arrays[0], arrays[count]),
        *rows.arrays,
        *columns.arrays,
        pulls={0: pull(0), count: pull(1)},
    )
    return found if columns.added is None else found + columns.added[None, :]


def sharpened_rows(rows: Operand, columns: Operand, sharpness: Array | None) -> tuple[Operand, Array | None]:
    """Rows times a number each, and None, where nothing is differentiated; else both as they are."""
    adapter = adapter_of(rows.x)
    if sharpness is None or adapter.mode != "eager" or any(map(adapter.needs_gradient, (rows.x, columns.x))):
        return rows, sharpness
    sharpness = sharpness[:, None]
    return rows._replace(x=rows.x * sharpness, factor=rows.factor * sharpness if rows.parts else None), None


def _product(rows: Array, columns: Array) -> Array:
    """The product of a tile; of a wide one as the transpose of a tall one, which takes OpenBLAS up to half the time."""
    return (columns @ rows.T).T if _is_wide(rows, columns) else rows @ columns.T


def pulled(
    residual: Array,
    coefficient: Array | None,
    own: Operand,
    tile: Operand,
    *,
    wanted: tuple[bool, bool],
    even: bool = False,
) -> tuple[Array | None, Array | None]:
    """The cotangents of the rows and columns of a tile, of which the `wanted` ones are computed.

    That of the scores is the residual times a coefficient for each row (None: 1), which goes into operands of D
    columns, not into the tile; or, of 16 bits, the sum of two numbers of 16 bits. With factors that are `even`, of one
    order of magnitude, these serve rows and columns.
    """
    count, given = len(own.arrays), () if coefficient is None else (coefficient,)
    stop = 1 + count + len(tile.arrays)

    def plainly(*arrays: Array) -> Arrays:
        return _pulled_plainly(arrays[0], arrays[-1] if given else None, arrays[1], arrays[1 + count], wanted)

    def of_halves(*arrays: Array) -> Arrays:
        rows, columns = operand_of(arrays[1 : 1 + count]), operand_of(arrays[1 + count : stop])
        residual, factor = arrays[0], arrays[-1] if given else None
        pull = _pulled_together if even else _pulled_apart
        found = pull(residual, factor, rows, columns, wanted)
        if rows.beyond is None:
            return found
        further = _pulled_plainly(residual, factor, rows.beyond, columns.beyond, wanted)
        xp = namespace_of(residual)
        return tuple(xp.concat(both, axis=1) for both in zip(found, further, strict=True))

    arrays = (residual, *own.arrays, *tile.arrays, *given)
    found = iter(adapter_of(own.x).by_halves(of_halves, plainly, *arrays) if own.parts else plainly(*arrays))
    to_rows, to_columns = (next(found) if flag else None for flag in wanted)
    return to_rows, to_columns


class Scaling(NamedTuple):
    """How cotangents are kept from being subnormal, which costs digits, and a hundred times the time on processors.

    `unit`: a power of 2 by which coefficients are divided, if all are seen to be far below 1. `clears`: whether some
    are far below 1 then, so that tiles that these have been multiplied into may hold subnormal numbers.
    """

    unit: float = 1.0
    clears: bool = False

    def divided(self, x: Array) -> Array:
        """A coefficient, divided."""
        return x / self.unit if self.unit < 1 else x

    def back(self, x: Array | None) -> Array | None:
        """What has been computed with divided coefficients."""
        return x if x is None or self.unit == 1 else x * self.unit

    def cleared(self, tile: Array) -> Array:
        """The cotangents of a tile, 0 where they are subnormal."""
        if not self.clears:
            return tile
        xp = namespace_of(tile)
        small = xp.abs(tile) < float(xp.finfo(tile.dtype).smallest_normal)
        return xp.where(xp.logical_not(small), tile, 0.0)  # NaN stays


def scaling_of(coefficient: Array, *, bounded: bool) -> Scaling:
    """The scaling of what is multiplied by coefficients, as far as these are seen, and by `bounded` operands."""
    low, high = entries_at_hand(coefficient, least, largest)
    if low is None or high is None:
        return Scaling()
    unit = math.sqrt(float(namespace_of(coefficient).finfo(coefficient.dtype).smallest_normal))
    small = math.sqrt(unit)
    unit = unit if bounded and 0 < max(-low, high) < small else 1.0
    return Scaling(unit, low < small * unit)


def _pulled_plainly(
    residual: Array, coefficient: Array | None, rows: Array, columns: Array, wanted: tuple[bool, bool]
) -> Arrays:
    """The cotangents by products of the dtype of the operands."""
    factor = None if coefficient is None else coefficient[:, None]
    found = []
    if wanted[0]:
        back = residual @ columns
        found.append(back if factor is None else factor * back)
    if wanted[1]:
        found.append(residual.T @ (rows if factor is None else factor * rows))
    return tuple(found)


def _pulled_together(
    residual: Array, coefficient: Array | None, rows: Operand, columns: Operand, wanted: tuple[bool, bool]
) -> Arrays:
    """The cotangents by two numbers of 16 bits for each pair, of the cotangent of the product of the parts."""
    cotangent = residual * (rows.factor if coefficient is None else rows.factor * coefficient[:, None])
    cotangent *= columns.factor.T
    counts = [_parts_for(x) if flag else 0 for x, flag in zip((rows, columns), wanted, strict=True)]
    parts = _in_parts(cotangent, rows.parts[0].dtype, max(counts), axis=None)
    found = []
    if wanted[0]:
        found.append(parts.first(counts[0]).times(columns) * _quotient(parts.unit, rows.factor))
    if wanted[1]:
        found.append(parts.first(counts[1]).turned().times(rows) * _quotient(parts.unit, columns.factor))
    return tuple(found)


def _quotient(unit: Any, factor: Array) -> Array:
    """A number divided by factors of rows; 0 for rows that do not count, whose factor is 0."""
    return namespace_of(factor).where(factor == 0, 0.0, unit / factor)


def _pulled_apart(
    residual: Array, coefficient: Array | None, rows: Operand, columns: Operand, wanted: tuple[bool, bool]
) -> Arrays:
    """The same by two for rows and two for columns: a factor that is far smaller than others is to weigh as little."""
    dtype, found = rows.parts[0].dtype, []
    if wanted[0]:
        parts = _in_parts(residual * columns.factor.T, dtype, _parts_for(rows), axis=1)
        back = parts.times(columns) * parts.unit
        found.append(back if coefficient is None else back * coefficient[:, None])
    if wanted[1]:
        factor = rows.factor if coefficient is None else rows.factor * coefficient[:, None]
        parts = _in_parts((residual * factor).T, dtype, _parts_for(columns), axis=1)
        found.append(parts.times(rows) * parts.unit)
    return tuple(found)


def _parts_for(operand: Operand) -> int:
    """Of how many numbers a cotangent is the sum, for the gradient of an operand.

    Two; but the gradient of what is computed of embeddings goes on to a sum over all rows, that of a matrix, which may
    have float32.
    """
    return max(2, len(operand.parts))


class _Parts(NamedTuple):
    """A matrix, divided by a unit, as the sum of some of 16 bits and a rest."""

    parts: Arrays
    rest: Array
    unit: Any

    def times(self, operand: Operand) -> Array:
        """The product with the parts of an operand.

        Of the rest, the sum of each row is multiplied by the mean of the operand: where its rows are almost the same,
        products with them cancel, and a derivative by the scale is what is left.
        """
        xp, products = namespace_of(self.rest), _sum_of_products(self.parts, operand.parts, len(self.parts))
        mean: Array = None
        for part in operand.parts:
            mean = plus(mean, xp.mean(xp.astype(part, self.rest.dtype), axis=0))
        products += xp.sum(self.rest, axis=1)[:, None] * mean[None, :]
        return products

    def first(self, count: int) -> _Parts:
        """The same with so many parts, and a larger rest."""
        rest = self.rest
        for part in self.parts[count:]:
            rest = rest + namespace_of(rest).astype(part, rest.dtype)
        return self._replace(parts=self.parts[:count], rest=rest)

    def turned(self) -> _Parts:
        """The transpose, which has one unit."""
        return self._replace(parts=tuple(x.T for x in self.parts), rest=self.rest.T)


_ROOM = 2.0**14
"""The largest of the numbers of float16 that are multiplied: far from its largest, and from its smallest."""
_LEAST = 2.0**-100
"""What is smaller is not divided by: a library that flushes small numbers to 0 would divide by 0."""


def _in_parts(x: Array, dtype: Any, count: int, *, axis: int | None) -> _Parts:
    """The parts of a matrix, so many, with a unit for each row, or (None) one for all."""
    xp, unit = namespace_of(x), 1.0
    if "bfloat16" not in str(dtype):  # float16 has not the range of float32
        largest = xp.max(xp.abs(x), axis=1, keepdims=True)
        if axis is None:  # a row of no number is to leave the others as they are
            largest = xp.where(largest < math.inf, largest, xp.zeros_like(largest))
            largest = xp.max(largest[:, 0], axis=0, keepdims=True)
        unit = xp.where(largest > _LEAST, largest, xp.full_like(largest, _LEAST)) / _ROOM
        x = x / unit
    parts = [xp.astype(x, dtype)]
    rest = x - xp.astype(parts[0], x.dtype)
    for _ in range(count - 1):
        parts.append(xp.astype(rest, dtype))
        rest -= xp.astype(parts[-1], x.dtype)
    return _Parts(tuple(parts), rest, unit)


def _scores_of_parts(rows: Arrays, columns: Arrays) -> Array:
    """The product of rows and columns, whose parts of either side are all multiplied by the first of the other."""
    most = max(len(rows), len(columns))
    if most > 1 and len(rows) + len(columns) == most + 1:
        # One product of wider rows, so that no tile is added to another.
        rows, columns = ((_side_by_side(x if len(x) > 1 else x * most),) for x in (rows, columns))
    return _sum_of_products(rows, [x.T for x in columns], most)


def _side_by_side(parts: Arrays) -> Array:
    return namespace_of(*parts).concat(list(parts), axis=1)


def _sum_of_products(first: Sequence[Array], second: Sequence[Array], order: int) -> Array:
    """The product of two matrices in parts, each of which is 2^-8 of the one before or less, up to that order."""
    multiply, total = adapter_of(first[0]).half_product, None
    for k, x in enumerate(first):
        for y in second[: order - k]:
            total = plus(total, multiply(x, y))
    return total


def outer_sum(of_rows: Array, of_columns: Array) -> Array:
    """The sum of a number of each row and one of each column of a tile, in the order in memory that a product has."""
    if _is_wide(of_rows, of_columns):
        return (of_columns[:, None] + of_rows[None, :]).T
    return of_rows[:, None] + of_columns[None, :]


def _is_wide(rows: Array, columns: Array) -> bool:
    """Whether a tile is wide, where that is known and of interest: a compiler chooses its own order."""
    return adapter_of(rows).mode == "eager" and bool(rows.shape[0] < columns.shape[0])


def plus(total: Array, part: Array) -> Array:
    """A sum that begins with its first part, and grows in place where the library has that."""
    if total is None:
        return part
    total += part
    return total


def empty_sums(arrays: Sequence[Array]) -> tuple[Array, ...]:
    """What sums of the shapes of these arrays begin with: zeros for a scan that is traced, which has no first block."""
    if len(arrays) == 0 or adapter_of(arrays[0]).mode != "traced":
        return (None,) * len(arrays)
    return tuple(namespace_of(x).zeros_like(x) for x in arrays)


ABSENT = -0.5
"""What is added to the scores of a column that takes no part, as a share of the largest number.

Not -inf: a product computes 0 times it, in places that nobody looks at, and warns of the result."""


def absence(valid: Array, columns: Array) -> Array:
    """What is added to the scores of columns of which some take no part."""
    xp = namespace_of(valid, columns)
    zero = stop_gradient(xp.zeros_like(columns[:, 0]))
    return xp.where(valid, zero, zero + ABSENT * xp.finfo(zero.dtype).max)


def _with_column(x: Array, numbers: Array) -> Array:
    """An array with one more column."""
    return namespace_of(x, numbers).concat([x, numbers[:, None]], axis=1)
