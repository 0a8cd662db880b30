"""Products of operands, in 16 bits where the library is faster with them, and their pullbacks.

A factor of each row is multiplied into operands of D columns instead of tiles of a thousand columns.
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
    """Rows of a product in float32 or float64; and, for 16-bit products, as a factor and parts.

    ``x = factor * Σ parts``, with a factor (n, 1) and up to three 16-bit parts. Columns of `x` beyond those of the
    parts are multiplied in float32. Derivatives are by `x` alone. Rows that do not count are 0 in all arrays. `added`
    (n,): numbers added to the scores of columns.
    """

    x: Array
    factor: Array = None
    parts: tuple[Array, ...] = ()
    added: Array = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Arguments of `operand_of`, without `added`."""
        return (self.x, self.factor, *self.parts) if self.parts else (self.x,)

    @property
    def extra(self) -> Array | None:
        """The columns of `x` beyond those of the parts, or None."""
        width = self.parts[0].shape[1]
        return None if self.x.shape[1] == width else self.x[:, width:]


def operand_of(arrays: Sequence[Array]) -> Operand:
    """The operand of arrays `x`, `factor` and parts, or of `x` alone."""
    return Operand(arrays[0], arrays[1], tuple(arrays[2:])) if len(arrays) > 1 else Operand(arrays[0])


def pieces(x: Array, bounds: Sequence[tuple[int, int]]) -> list[Array]:
    """The rows of `x`, cut at the bounds."""
    if len(bounds) == 1 and bounds[0] == (0, x.shape[0]):
        return [x]
    return [x[a:b, ...] for a, b in bounds]


def with_added(columns: Operand, numbers: Array) -> Operand:
    """Columns with numbers added to their scores; without parts, the rows must be `with_ones`."""
    return columns._replace(added=numbers) if columns.parts else Operand(_with_column(columns.x, numbers))


def with_ones(rows: Operand) -> Operand:
    """Rows for columns `with_added` numbers: ``[x, 1]·[y, b] = x·y + b``."""
    return rows if rows.parts else Operand(_with_column(rows.x, namespace_of(rows.x).ones_like(rows.x[:, 0])))


def operand_pieces(operand: Operand, bounds: Sequence[tuple[int, int]]) -> list[Operand]:
    return [operand_of(arrays) for arrays in zip(*(pieces(x, bounds) for x in operand.arrays), strict=True)]


def concat_rows(xp: Namespace, parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else xp.concat(list(parts), axis=0)


def product(rows: Operand, columns: Operand) -> Array:
    """The scores of a tile: ``rows @ columns.T + added``."""
    if not rows.parts:
        return _product(rows.x, columns.x)
    count = len(rows.arrays)

    def of_halves(*arrays: Array) -> Array:
        left, right = (operand_of(x) for x in (arrays[:count], arrays[count:]))
        scores = _scores_of_parts(left.parts, right.parts)
        scores *= left.factor
        scores *= right.factor.T
        if left.extra is not None:
            scores += _product(left.extra, right.extra)
        return scores

    def pull(side: int) -> Callable[..., Array]:
        def of_side(cotangent: Array, *arrays: Array) -> Array:
            both = operand_of(arrays[:count]), operand_of(arrays[count:])
            return pullback(cotangent, None, *both, need_grad=(side == 0, side == 1))[side]

        return of_side

    result = adapter_of(rows.x).by_halves(
        of_halves,
        lambda *arrays: _product(arrays[0], arrays[count]),
        *rows.arrays,
        *columns.arrays,
        pulls={0: pull(0), count: pull(1)},
    )
    return result if columns.added is None else result + columns.added[None, :]


def sharpened_rows(rows: Operand, columns: Operand, sharpness: Array | None) -> tuple[Operand, Array | None]:
    """Rows multiplied by the sharpness, and None; or both unchanged, if traced or differentiated."""
    adapter = adapter_of(rows.x)
    if sharpness is None or adapter.mode != "eager" or any(map(adapter.needs_gradient, (rows.x, columns.x))):
        return rows, sharpness
    sharpness = sharpness[:, None]
    return rows._replace(x=rows.x * sharpness, factor=rows.factor * sharpness if rows.parts else None), None


def _product(rows: Array, columns: Array) -> Array:
    """Product of a tile; a wide tile is the transpose of a tall product: up to twice as fast in OpenBLAS."""
    return (columns @ rows.T).T if _is_wide(rows, columns) else rows @ columns.T


def pullback(
    residual: Array,
    coefficient: Array | None,
    rows: Operand,
    columns: Operand,
    *,
    need_grad: tuple[bool, bool],
    even: bool = False,
) -> tuple[Array | None, Array | None]:
    """Cotangents of the rows and columns of a tile; None where `need_grad` is False.

    The cotangent of the scores is ``c = coefficient[:, None] * residual`` (None: 1). The coefficient is multiplied into
    operands of D columns, not into the tile:

        to rows: coefficient * (residual @ columns)        to columns: residual.T @ (coefficient * rows)

    For 16-bit products, c is split into two or three 16-bit parts and a remainder. If factors are `even`, of one order
    of magnitude, one split serves rows and columns.
    """
    count, factors = len(rows.arrays), () if coefficient is None else (coefficient,)
    stop = 1 + count + len(columns.arrays)

    def plainly(*arrays: Array) -> Arrays:
        return _plain_cotangents(arrays[0], arrays[-1] if factors else None, arrays[1], arrays[1 + count], need_grad)

    def of_halves(*arrays: Array) -> Arrays:
        rows, columns = operand_of(arrays[1 : 1 + count]), operand_of(arrays[1 + count : stop])
        residual, factor = arrays[0], arrays[-1] if factors else None
        pull = _cotangents_of_one_split if even else _cotangents_of_two_splits
        result = pull(residual, factor, rows, columns, need_grad)
        if rows.extra is None:
            return result
        extra = _plain_cotangents(residual, factor, rows.extra, columns.extra, need_grad)
        xp = namespace_of(residual)
        return tuple(xp.concat(both, axis=1) for both in zip(result, extra, strict=True))

    arrays = (residual, *rows.arrays, *columns.arrays, *factors)
    result = iter(adapter_of(rows.x).by_halves(of_halves, plainly, *arrays) if rows.parts else plainly(*arrays))
    to_rows, to_columns = (next(result) if flag else None for flag in need_grad)
    return to_rows, to_columns


class Scaling(NamedTuple):
    """Scaling of cotangents, against subnormal numbers: these lose digits, and slow processors down a hundred times.

    `unit`: power of 2 that divides the coefficients, if all are far below 1. `clears`: whether some are still far below
    1, so that a tile multiplied by them may contain subnormal numbers.
    """

    unit: float = 1.0
    clears: bool = False

    def divided(self, x: Array) -> Array:
        return x / self.unit if self.unit < 1 else x

    def restored(self, x: Array | None) -> Array | None:
        """A result of divided coefficients, times the unit."""
        return x if x is None or self.unit == 1 else x * self.unit

    def cleared(self, tile: Array) -> Array:
        """The cotangent of a tile, with 0 for subnormal numbers."""
        if not self.clears:
            return tile
        xp = namespace_of(tile)
        small = xp.abs(tile) < float(xp.finfo(tile.dtype).smallest_normal)
        return xp.where(xp.logical_not(small), tile, 0.0)  # NaN stays


def scaling_of(coefficient: Array, *, bounded: bool) -> Scaling:
    """The scaling for coefficients, if their values are available. Only `bounded` operands allow a unit."""
    low, high = entries_at_hand(coefficient, least, largest)
    if low is None or high is None:
        return Scaling()
    unit = math.sqrt(float(namespace_of(coefficient).finfo(coefficient.dtype).smallest_normal))
    small = math.sqrt(unit)
    unit = unit if bounded and 0 < max(-low, high) < small else 1.0
    return Scaling(unit, low < small * unit)


def _plain_cotangents(
    residual: Array, coefficient: Array | None, rows: Array, columns: Array, need_grad: tuple[bool, bool]
) -> Arrays:
    factor = None if coefficient is None else coefficient[:, None]
    result = []
    if need_grad[0]:
        back = residual @ columns
        result.append(back if factor is None else factor * back)
    if need_grad[1]:
        result.append(residual.T @ (rows if factor is None else factor * rows))
    return tuple(result)


def _cotangents_of_one_split(
    residual: Array, coefficient: Array | None, rows: Operand, columns: Operand, need_grad: tuple[bool, bool]
) -> Arrays:
    """Cotangents by one split of c into 16-bit parts, which rows and columns share.

    With the factors f of rows and columns, and p their parts, c' = f_rows c f_columns is split:

        to rows: (c' @ p_columns) / f_rows        to columns: (c'.T @ p_rows) / f_columns
    """
    cotangent = residual * (rows.factor if coefficient is None else rows.factor * coefficient[:, None])
    cotangent *= columns.factor.T
    counts = [_parts_for(x) if flag else 0 for x, flag in zip((rows, columns), need_grad, strict=True)]
    parts = _split(cotangent, rows.parts[0].dtype, max(counts), axis=None)
    result = []
    if need_grad[0]:
        result.append(parts.truncated(counts[0]).times(columns) * _quotient(parts.unit, rows.factor))
    if need_grad[1]:
        result.append(parts.truncated(counts[1]).transposed().times(rows) * _quotient(parts.unit, columns.factor))
    return tuple(result)


def _quotient(unit: Any, factor: Array) -> Array:
    """``unit / factor``; 0 for rows that do not count, whose factor is 0."""
    return namespace_of(factor).where(factor == 0, 0.0, unit / factor)


def _cotangents_of_two_splits(
    residual: Array, coefficient: Array | None, rows: Operand, columns: Operand, need_grad: tuple[bool, bool]
) -> Arrays:
    """Cotangents by a split of c for rows and another for columns, for factors of different magnitudes.

    With the factors f of rows and columns, and p their parts, c f_columns and f_rows c are split:

        to rows: (c f_columns) @ p_columns        to columns: (f_rows c).T @ p_rows
    """
    dtype, result = rows.parts[0].dtype, []
    if need_grad[0]:
        parts = _split(residual * columns.factor.T, dtype, _parts_for(rows), axis=1)
        back = parts.times(columns) * parts.unit
        result.append(back if coefficient is None else back * coefficient[:, None])
    if need_grad[1]:
        factor = rows.factor if coefficient is None else rows.factor * coefficient[:, None]
        parts = _split((residual * factor).T, dtype, _parts_for(columns), axis=1)
        result.append(parts.times(rows) * parts.unit)
    return tuple(result)


def _parts_for(operand: Operand) -> int:
    """Number of 16-bit parts of the cotangent, for the gradient of an operand.

    Two; three for operands of three parts, computed from embeddings: their gradient is summed over all rows, into that
    of a matrix that may be float32.
    """
    return max(2, len(operand.parts))


class _SplitMatrix(NamedTuple):
    """A matrix divided by `unit`, as a sum of 16-bit parts and a remainder `rest`."""

    parts: Arrays
    rest: Array
    unit: Any

    def times(self, operand: Operand) -> Array:
        """Product with the parts of an operand.

        The remainder contributes its row sums times the mean row of the operand. If rows are almost equal, the products
        cancel, and this term decides the derivative by the scale.
        """
        xp, products = namespace_of(self.rest), _sum_of_products(self.parts, operand.parts, len(self.parts))
        mean: Array = None
        for part in operand.parts:
            mean = plus(mean, xp.mean(xp.astype(part, self.rest.dtype), axis=0))
        products += xp.sum(self.rest, axis=1)[:, None] * mean[None, :]
        return products

    def truncated(self, count: int) -> _SplitMatrix:
        """The first `count` parts; the others are added to the remainder."""
        rest = self.rest
        for part in self.parts[count:]:
            rest = rest + namespace_of(rest).astype(part, rest.dtype)
        return self._replace(parts=self.parts[:count], rest=rest)

    def transposed(self) -> _SplitMatrix:
        """The transpose, if the unit is one number."""
        return self._replace(parts=tuple(x.T for x in self.parts), rest=self.rest.T)


_ROOM = 2.0**14
"""Magnitude to which float16 parts are scaled: far from its largest number and from its smallest."""
_LEAST = 2.0**-100
"""Smallest divisor: a library that flushes subnormal numbers to 0 would divide by 0."""


def _split(x: Array, dtype: Any, count: int, *, axis: int | None) -> _SplitMatrix:
    """A matrix split into `count` parts, with a unit per row or (axis None) one unit."""
    xp, unit = namespace_of(x), 1.0
    if "bfloat16" not in str(dtype):  # float16 lacks the range of float32
        largest = xp.max(xp.abs(x), axis=1, keepdims=True)
        if axis is None:  # ignore rows with NaN or infinity when choosing the common unit
            largest = xp.where(largest < math.inf, largest, xp.zeros_like(largest))
            largest = xp.max(largest[:, 0], axis=0, keepdims=True)
        unit = xp.where(largest > _LEAST, largest, xp.full_like(largest, _LEAST)) / _ROOM
        x = x / unit
    parts = [xp.astype(x, dtype)]
    rest = x - xp.astype(parts[0], x.dtype)
    for _ in range(count - 1):
        parts.append(xp.astype(rest, dtype))
        rest -= xp.astype(parts[-1], x.dtype)
    return _SplitMatrix(tuple(parts), rest, unit)


def _scores_of_parts(rows: Arrays, columns: Arrays) -> Array:
    """Product of rows and columns; each part of one side is multiplied by the first part of the other."""
    order = max(len(rows), len(columns))
    if order > 1 and len(rows) + len(columns) == order + 1:
        # One product of concatenated parts, which saves the sum of tiles.
        rows, columns = ((_side_by_side(x if len(x) > 1 else x * order),) for x in (rows, columns))
    return _sum_of_products(rows, [x.T for x in columns], order)


def _side_by_side(parts: Arrays) -> Array:
    return namespace_of(*parts).concat(list(parts), axis=1)


def _sum_of_products(first: Sequence[Array], second: Sequence[Array], order: int) -> Array:
    """Product of two matrices in parts, each at most 2^-8 of the previous one, up to an order."""
    multiply, total = adapter_of(first[0]).half_product, None
    for k, x in enumerate(first):
        for y in second[: order - k]:
            total = plus(total, multiply(x, y))
    return total


def outer_sum(of_rows: Array, of_columns: Array) -> Array:
    """Sums of a number per row and a number per column, in the memory order of a product."""
    if _is_wide(of_rows, of_columns):
        return (of_columns[:, None] + of_rows[None, :]).T
    return of_rows[:, None] + of_columns[None, :]


def _is_wide(rows: Array, columns: Array) -> bool:
    """Whether a tile has more columns than rows; False unless eager, since a compiler chooses the memory order."""
    return adapter_of(rows).mode == "eager" and bool(rows.shape[0] < columns.shape[0])


def plus(total: Array, part: Array) -> Array:
    """``total + part``, in place where the library supports it; `part` if the total is None."""
    if total is None:
        return part
    total += part
    return total


def empty_sums(arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Initial sums in the shapes of arrays: None, or zeros for a traced scan, which needs arrays."""
    if len(arrays) == 0 or adapter_of(arrays[0]).mode != "traced":
        return (None,) * len(arrays)
    return tuple(namespace_of(x).zeros_like(x) for x in arrays)


ABSENT = -0.5
"""Added to the scores of a column left out, relative to the largest number of the dtype.

Not -inf: a product would compute 0 times it, and warn of the NaN.
"""


def absence(valid: Array, columns: Array) -> Array:
    """Numbers added to the scores of columns: 0 for valid ones, `ABSENT` for the others."""
    xp = namespace_of(valid, columns)
    zero = stop_gradient(xp.zeros_like(columns[:, 0]))
    return xp.where(valid, zero, zero + ABSENT * xp.finfo(zero.dtype).max)


def _with_column(x: Array, numbers: Array) -> Array:
    return namespace_of(x, numbers).concat([x, numbers[:, None]], axis=1)
