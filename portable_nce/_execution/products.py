"""Products of operands, in 16 bits where the library is faster with them, and their pullbacks.

A factor of each row is multiplied into operands of D columns instead of tiles of a thousand columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._core.autodiff import stop_gradient
from .._core.checks import is_empty, largest, least, readable_entries
from .._core.namespace import namespace_of
from .._core.numerics import clipped, is_wide, products_of_rows
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from .inputs import Arrays
from .tiling import Bounds


class Operand(NamedTuple):
    """Rows of a product in float32 or float64; and, for 16-bit products, as 16-bit parts and divisors.

    ``x = part / divisor``, with a divisor (n, 1), None if it is 1; columns of `x` beyond those of `part` are multiplied
    in float32. Derivatives are by `x` alone. `weighted`: the part, followed by three columns whose sum is the divisor,
    and by a padding. `scale` (n, 1): factors of the scores of rows, if these are functions of products. `added` (n,):
    numbers added to the scores of columns. `mean` (1, D): the mean of all columns, also of those of other tiles.
    """

    x: Array
    part: Array = None
    divisor: Array = None
    weighted: Array = None
    scale: Array = None
    added: Array = None
    mean: Array = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The fields that are there, without `added` and `mean`."""
        return tuple([x for x in self[:5] if x is not None])

    def with_arrays(self, arrays: Sequence[Array]) -> Operand:
        """The operand of other arrays, in the order of `arrays`, with the same mean."""
        given = iter(arrays)
        return Operand(*[x if x is None else next(given) for x in self[:5]])._replace(mean=self.mean)

    @property
    def extra(self) -> Array | None:
        """The columns of `x` beyond the columns of the part, or None."""
        width = self.part.shape[1]
        return None if self.x.shape[1] == width else self.x[:, width:]


def pieces(x: Array, bounds: Sequence[tuple[int, int]]) -> list[Array]:
    """The rows of `x`, cut at the bounds."""
    if len(bounds) == 1 and bounds[0] == (0, x.shape[0]):
        return [x]
    return [x[a:b, ...] for a, b in bounds]


def with_added(columns: Operand, numbers: Array, *, apart: bool = False) -> Operand:
    """Columns with numbers added to their scores, `apart` or by a product with rows `with_ones`."""
    apart = apart or columns.part is not None
    return columns._replace(added=numbers) if apart else Operand(_with_column(columns.x, numbers))


def with_ones(rows: Operand) -> Operand:
    """Rows for columns `with_added` numbers: ``[x, 1]·[y, b] = x·y + b``."""
    ones = namespace_of(rows.x).ones_like(rows.x[:, 0])
    return rows if rows.part is not None or rows.scale is not None else Operand(_with_column(rows.x, ones))


def operand_pieces(operand: Operand, bounds: Sequence[tuple[int, int]]) -> list[Operand]:
    cuts = zip(*(pieces(x, bounds) for x in operand.arrays), strict=True)
    return [operand.with_arrays(arrays) for arrays in cuts]


def with_weights(columns: Operand, *, mean: bool = True) -> Operand:
    """Columns whose 16-bit products also give sums of cotangents, weighted by the divisors.

    `mean`: with their mean, which a pullback takes that does not know the sums of its cotangents.
    """
    if columns.part is None:
        return columns
    xp, part, rest = namespace_of(columns.x), columns.part, columns.divisor
    if rest is None:
        weights = [xp.ones_like(part[:, :1]), *[xp.zeros_like(part[:, :1])] * (_N_WEIGHTS - 1)]
    else:
        if "bfloat16" not in str(part.dtype):  # divisors of columns with tiny factors may be out of its range
            rest = clipped(xp, rest, -2.0 * _ROOM, 2.0 * _ROOM)
        weights = [xp.astype(rest, part.dtype)]
        while len(weights) < _N_WEIGHTS:  # 24 bits: an error of these sums would be one of the derivative by the scale
            rest = rest - xp.astype(weights[-1], rest.dtype)
            weights.append(xp.astype(rest, part.dtype))
    padded = [*weights, *weights, *weights[:2]]  # products of a width that is a multiple of 8 are fast
    of_all = xp.mean(columns.x[:, : part.shape[1]], axis=0, keepdims=True) if mean else None
    return columns._replace(weighted=xp.concat([part, *padded], axis=1), mean=of_all)


_N_WEIGHTS = 3


def concat_rows(xp: Namespace, parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else xp.concat(list(parts), axis=0)


def product(rows: Operand, columns: Operand) -> Array:
    """The scores of a tile: ``rows @ columns.T + added``."""
    if rows.part is None:
        return products_of_rows(rows.x, columns.x)
    count = len(rows.arrays)

    def of_halves(*arrays: Array) -> Array:
        left, right = rows.with_arrays(arrays[:count]), columns.with_arrays(arrays[count:])
        scores = adapter_of(left.part).half_product(left.part, right.part.T)
        for divisor in (left.divisor, None if right.divisor is None else right.divisor.T):
            if divisor is not None:
                scores /= divisor
        if left.extra is not None:
            scores += products_of_rows(left.extra, right.extra)
        return scores

    def pull(side: int) -> Callable[..., Array]:
        def of_side(cotangent: Array, *arrays: Array) -> Array:
            both = rows.with_arrays(arrays[:count]), columns.with_arrays(arrays[count:])
            result = pullback(cotangent, None, *both, need_grad=(side == 0, side == 1))[side]
            return with_divisor(result, both[1]) if side == 1 else result

        return of_side

    result = adapter_of(rows.x).by_halves(
        of_halves,
        lambda *arrays: products_of_rows(arrays[0], arrays[count]),
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
    if rows.scale is not None:
        return rows._replace(scale=rows.scale * sharpness), None
    if rows.part is None:
        return rows._replace(x=rows.x * sharpness), None
    return rows._replace(x=rows.x * sharpness, divisor=rows.divisor / sharpness), None


def pullback(
    residual: Array,
    coefficient: Array | None,
    rows: Operand,
    columns: Operand,
    *,
    need_grad: tuple[bool, bool],
    sums: Array | None = None,
    turned: bool = False,
) -> tuple[Array | None, Array | None]:
    """Cotangents of the rows and columns of a tile; None where `need_grad` is False. The residual may be overwritten.

    The cotangent of the scores is ``c = coefficient[:, None] * residual`` (None: 1). The coefficient is multiplied into
    operands of D columns, not into the tile:

        to rows: coefficient * (residual @ columns)        to columns: residual.T @ (coefficient * rows)

    For 16-bit products see `_cotangents_of_halves`, and `with_divisor` for the columns; `sums`: row sums of the
    residual, if they are known, and no entry is negative. `turned`: the cotangent of the columns is transposed (see
    `sums_are_turned`).
    """
    factors = () if coefficient is None else (coefficient,)
    mean = () if columns.mean is None else (columns.mean,)

    def plainly(*arrays: Array) -> Arrays:
        factor, y = arrays[-1] if factors else None, arrays[1 + len(rows.arrays)]
        return _plain_cotangents(arrays[0], factor, arrays[1], y, need_grad, turned=turned)

    def of_halves(*arrays: Array) -> Arrays:
        middle = 1 + len(rows.arrays)
        stop = middle + len(columns.arrays)
        both = rows.with_arrays(arrays[1:middle]), columns.with_arrays(arrays[middle:stop])
        both = both[0], both[1]._replace(mean=arrays[stop] if mean else None)
        factor, own_sums = arrays[-1] if factors else None, None if sums is None else arrays[stop + len(mean)]
        extra: Arrays = ()
        if both[0].extra is not None:
            extra = _plain_cotangents(arrays[0], factor, both[0].extra, both[1].extra, need_grad)
        result = _cotangents_of_halves(arrays[0], factor, both, need_grad, own_sums)
        if not extra:
            return result
        return tuple(namespace_of(*pair).concat(list(pair), axis=1) for pair in zip(result, extra, strict=True))

    if rows.part is None:
        result = iter(_plain_cotangents(residual, coefficient, rows.x, columns.x, need_grad, turned=turned))
    else:
        known = () if sums is None else (sums,)
        arrays = (residual, *rows.arrays, *columns.arrays, *mean, *known, *factors)
        result = iter(adapter_of(rows.x).by_halves(of_halves, plainly, *arrays))
    to_rows, to_columns = [next(result) if flag else None for flag in need_grad]
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
        """Multiply a result of divided coefficients by the unit."""
        return x if x is None or self.unit == 1 else x * self.unit

    def cleared(self, tile: Array) -> Array:
        """Replace subnormal numbers in the cotangent of a tile by 0, if there may be some."""
        return cleared(tile) if self.clears else tile


def cleared(tile: Array) -> Array:
    """Replace subnormal numbers by 0."""
    xp = namespace_of(tile)
    small = xp.abs(tile) < float(xp.finfo(tile.dtype).smallest_normal)
    return xp.where(xp.logical_not(small), tile, 0.0)  # NaN stays


def scaling_of(coefficient: Array, *, bounded: bool) -> Scaling:
    """The scaling for coefficients, if their values are available. Only `bounded` operands allow a unit."""
    low, high = readable_entries(coefficient, least, largest)
    if low is None or high is None:
        return Scaling()
    unit = math.sqrt(float(namespace_of(coefficient).finfo(coefficient.dtype).smallest_normal))
    small = math.sqrt(unit)
    unit = unit if bounded and 0 < max(-low, high) < small else 1.0
    return Scaling(unit, low < small * unit)


def _plain_cotangents(
    residual: Array,
    coefficient: Array | None,
    rows: Array,
    columns: Array,
    need_grad: tuple[bool, bool],
    *,
    turned: bool = False,
) -> Arrays:
    factor = None if coefficient is None else coefficient[:, None]
    result = []
    if need_grad[0]:
        back = residual @ columns
        result.append(back if factor is None else factor * back)
    if need_grad[1]:
        own = rows if factor is None else factor * rows
        result.append(own.T @ residual if turned else residual.T @ own)
    return tuple(result)


_ROUNDING = 2.0**-8
"""Largest relative error of a number rounded to 16 bits."""
_ROOM = 2.0**14
"""Magnitude to which float16 numbers are scaled: far from its largest number and from its smallest."""
_LEAST = 2.0**-126
"""Smallest divisor: a library that flushes subnormal numbers to 0 would divide by 0."""


def _cotangents_of_halves(
    residual: Array,
    coefficient: Array | None,
    operands: tuple[Operand, Operand],
    need_grad: tuple[bool, bool],
    sums: Array | None,
) -> Arrays:
    """Cotangents by the cotangent c of the scores, divided by the divisors and rounded to 16 bits.

    With the divisors d of rows and columns, their 16-bit numbers p, and ``r = c / (d_rows d_columns)`` rounded:

        to rows: (r @ p_columns) d_rows        to columns: (r.T @ p_rows) d_columns, with d_columns after all blocks

    Rounding changes the sum of c over the columns. If columns are almost equal, this error would decide the derivative
    by the scale. It is restored: by a factor of the row if no entry is negative, so that a row with one large entry has
    no error at all; or by a multiple of the mean column.

    Rows have another r, without the coefficient and ``d_rows``, where more digits are needed: if the columns have no
    divisors, so that their lengths differ, and in float16, which lacks the range of float32.
    """
    rows, columns = operands
    adapter, columns = adapter_of(residual), columns if columns.weighted is not None else with_weights(columns)
    xp, multiply, dtype = namespace_of(residual), adapter.half_product, rows.part.dtype
    factor = 1.0 / rows.divisor if coefficient is None else coefficient[:, None] / rows.divisor
    known, result = sums is not None, []
    row_sums: Array = sums
    if need_grad[0]:
        row_sums = (sums if sums is not None else adapter.sum_along(residual, 1))[:, None]
    if columns.divisor is not None:
        residual /= columns.divisor.T
    shared = None
    if columns.divisor is not None and "bfloat16" in str(dtype):
        shared = _rounded(residual, dtype, 1, factor)
    if need_grad[0]:
        (part, unit), scale = shared or _rounded(residual, dtype, 1), rows.divisor
        if shared is None:
            scale = None if coefficient is None else coefficient[:, None]
        else:
            row_sums = row_sums * factor
        width, products = columns.part.shape[1], multiply(part, columns.weighted)
        products = products if unit is None else products * unit
        back, found = products[:, :width], xp.sum(products[:, width : width + _N_WEIGHTS], axis=1, keepdims=True)
        if known:
            quotient = clipped(xp, row_sums / (found + _LEAST), 1.0 - _ROUNDING, 1.0 + _ROUNDING)
            scale = quotient if scale is None else quotient * scale
        else:
            mean = columns.mean
            mean = xp.mean(columns.x[:, :width], axis=0, keepdims=True) if mean is None else mean
            back = adapter.plus_product(back, row_sums - found, mean)
        result.append(back if scale is None else adapter.times_in_place(back, scale))
    if need_grad[1]:
        part, unit = shared or _rounded(residual, dtype, 0, factor)
        back = multiply(part.T, rows.part)
        result.append(back if unit is None else back * unit.T)
    return tuple(result)


def with_divisor(total: Array, columns: Operand) -> Array:
    """The cotangent of columns from the sum of those of all blocks, which for 16-bit products are over the divisors."""
    if columns.divisor is None:
        return total

    width, whole = columns.part.shape[1], columns.extra is None

    def of_halves(total: Array, divisor: Array) -> Arrays:
        if whole:
            return (total * divisor,)
        return (namespace_of(total).concat([total[:, :width] * divisor, total[:, width:]], axis=1),)

    return adapter_of(total).by_halves(of_halves, lambda total, _: (total,), total, columns.divisor)[0]


def _rounded(x: Array, dtype: Any, axis: int, factor: Array | None = None) -> tuple[Array, Array | None]:
    """A matrix times a factor in 16 bits; for float16 over units, of rows (axis 1) or columns (axis 0)."""
    xp = namespace_of(x)
    if "bfloat16" in str(dtype):
        return xp.astype(x, dtype) if factor is None else adapter_of(x).rounded_product(x, factor, dtype), None
    x = x if factor is None else x * factor
    if is_empty(x):  # a rank without rows has no largest entry
        return xp.astype(x, dtype), None
    largest = xp.max(xp.abs(x), axis=axis, keepdims=True)
    unit = clipped(xp, largest, _LEAST * _ROOM * _ROOM, math.inf) / _ROOM
    return adapter_of(x).rounded_product(x, 1.0 / unit, dtype), unit


def times_sum(tile: Array, of_rows: Array, of_columns: Array, *, halves: bool) -> Array:
    """A product, of 16 bits or not, times a number per row plus a number per column; it may be overwritten."""
    times = adapter_of(tile).times_sum
    if not halves and is_wide(of_rows, of_columns):  # the memory order of `products_of_rows`
        return times(tile.T, of_columns[:, None], of_rows[None, :]).T
    return times(tile, of_rows[:, None], of_columns[None, :])


def plus(total: Array, part: Array) -> Array:
    """``total + part``, in place where the library supports it; `part` if the total is None."""
    if total is None:
        return part
    if adapter_of(part).mode == "compiled":  # which would copy the sum into an array that it was given
        return total + part
    total += part
    return total


def empty_sums(arrays: Sequence[Array], *, turned: bool = False, filled: bool = False) -> tuple[Array, ...]:
    """Initial sums in the shapes of arrays: None, or zeros if `filled` or for a traced scan, which needs arrays."""
    if len(arrays) == 0 or not (filled or adapter_of(arrays[0]).mode == "traced"):
        return (None,) * len(arrays)
    return tuple(namespace_of(x).zeros_like(x.T if turned else x) for x in arrays)


def sums_are_turned(columns: Operand, block: int | Bounds, n_rows: int) -> bool:
    """Whether cotangents of columns are summed as (D, n): in a traced loop over blocks of rows.

    XLA's library for products on processors takes row-major operands: `rows.T @ residual`, not `residual.T @ rows`.
    """
    return adapter_of(columns.x).mode == "traced" and columns.part is None and block != n_rows


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
