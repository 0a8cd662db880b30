"""Squared distances of all pairs of rows by matrix products, and their pullback.

A squared distance is an inner product of longer rows, and does not change if all rows are shifted:

    -|x - y|² = 2 x·y - |x|² - |y|²,  the product of (2x, -|x|², -1) and (y, 1, |y|²),  x and y less the mean of y

The difference cancels where rows are much closer than they are long; so does the gradient, a sum of multiples of x - y.
What is done about it:

1. Products are in float64, where float32 and 16-bit rows are exact and a library has it, and are rounded once.
2. *Near* pairs, if there are any, are found where entries can be read, and computed again from differences.
3. Too many of them, or entries that cannot be read: products of the pullback are in float64, too.
4. Without near pairs, those of the pullback stay in float32.

Small tiles take the differences of all pairs.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

from .autodiff import stop_gradient
from .checks import all_entries, is_empty, is_readable, largest, readable_entry
from .namespace import namespace_of
from .numerics import LARGEST_SQUARE, SMALLEST_SQUARE, products_of_rows
from .protocol import Array, Namespace
from .registry import adapter_of

_NEAR, _NEAR_OF_DOUBLE = 2.0**-2, 2.0**-4
"""A pair is near if its squared distance is below this part of both squared lengths: for float32, and for float64.

Products in float32 serve the pullback alone, whose sums have rounding errors of many times the last digit.
"""

_NOISE, _NOISE_OF_SINGLE = 2.0**-46, 2.0**-20
"""Part of both squared lengths that is all rounding error, in products of float64 and of float32."""

_MOST_PAIRS = 1.0 / 16.0
"""Part of the pairs of a tile up to which near pairs are computed one by one, if products in float64 would do."""

_CHUNK = 2**20
"""Differences of features that are held at once."""


_SMALL = 2**16
"""Number of differences of features up to which those of all pairs take less time than products."""


def is_small_tile(*sizes: Any) -> bool:
    """Whether all pairs are computed from differences; False for numbers that a compiler knows as symbols."""
    return all(isinstance(size, int) for size in sizes) and 0 < math.prod(sizes) <= _SMALL


class Near(NamedTuple):
    """Near pairs of a tile: their rows and columns, if they were computed from differences.

    `exact`: whether products of the pullback need the digits of float64. `apart`: whether the tile is small or some
    rows are not finite, so that the caller computes all pairs from differences. `unit` (1, 1): of rows times it are the
    squares; then `longest` (1, 1) is the magnitude of the largest entry. `own`: whether the rows are the columns, so
    that pairs on the diagonal are near, and are known.
    """

    rows: Array | None = None
    columns: Array | None = None
    exact: bool = False
    apart: bool = False
    unit: Array | None = None
    longest: Array | None = None
    own: bool = False


def negative_squares(x: Array, y: Array, *, scaled: bool = False, apart: bool = False) -> tuple[Array, Near]:
    """Squared distances (N, K) of the rows of x (N, D) and y (K, D), times -1; 0 for equal rows.

    Squares out of range are those of rows times a `unit`; with `scaled`, also where entries cannot be read. With
    `apart`, the caller computes pairs that overflow from differences; squares that are `apart` are not to be used.
    """
    if is_small_tile(x.shape[0], y.shape[0], x.shape[1]):
        return x, Near(apart=True)
    adapter, xp = adapter_of(x), namespace_of(x, y)
    if is_empty(x) or is_empty(y) or not (is_readable(x) and adapter.is_plain((x, y))):
        return _blindly(xp, x, y, scaled=scaled)
    shift = _centre(xp, y)
    of_x, of_y = (adapter.row_dots(z, z) for z in (x - shift, y - shift))
    most_of_x, most_of_y = readable_entry(of_x, largest), readable_entry(of_y, largest)
    if most_of_x is None or most_of_y is None:  # batched by a transform
        return _blindly(xp, x, y, scaled=scaled)
    most = max(most_of_x, most_of_y)
    if most < LARGEST_SQUARE and (apart or most > SMALLEST_SQUARE):
        return _with_near(xp, x, y, of_x, of_y)
    if apart or not all(readable_entry(xp.isfinite(z), all_entries) for z in (x, y)):
        return x, Near(apart=True)
    unit, longest = _unit(xp, x, y)
    scaled_x = x * unit
    scaled_y = scaled_x if y is x else y * unit
    shift = _centre(xp, scaled_y)
    of_x, of_y = (adapter.row_dots(z, z) for z in (scaled_x - shift, scaled_y - shift))
    squares, near = _with_near(xp, scaled_x, scaled_y, of_x, of_y)
    return squares, near._replace(unit=unit, longest=longest)


def _with_near(xp: Namespace, x: Array, y: Array, of_x: Array, of_y: Array) -> tuple[Array, Near]:
    """Squares of plain rows, with these squared lengths from the centre."""
    adapter = adapter_of(x)
    squares, own, count = _products(x, y, zeroed=False), x is y, x.shape[0]
    if own:
        squares = adapter.fill_diagonal(squares, 0, 0, count, -math.inf)
    part = _NEAR if adapter.is_widened(x) else _NEAR_OF_DOUBLE
    nearest = readable_entry(xp.max(squares, axis=1) + part * (of_x + xp.max(of_y)), largest)
    squares = adapter.fill_diagonal(squares, 0, 0, count, 0.0) if own else squares
    if nearest is not None and nearest < 0:
        return squares, Near(own=own)
    # Their squares are at least ``-part (|x|² + |y|²)``.
    rows, columns = adapter.places(squares + (of_x * part)[:, None] > (of_y * -part)[None, :])
    if adapter.is_widened(x) and rows.shape[0] > _MOST_PAIRS * x.shape[0] * y.shape[0]:
        sums = of_x[:, None] + of_y[None, :]
        return xp.where(squares > sums * -_NOISE, xp.zeros_like(squares), squares), Near(exact=True)
    return _with_exact(xp, squares, x, y, rows, columns), Near(rows, columns)


def _blindly(xp: Namespace, x: Array, y: Array, *, scaled: bool) -> tuple[Array, Near]:
    """Squares of rows whose entries cannot be read."""
    if not scaled and adapter_of(x).is_widened(x):  # squares of float32 do not overflow in float64
        return _products(x, y, zeroed=True), Near(exact=True)
    unit, longest = _unit(xp, x, y)
    squares = _products(x, y, zeroed=True, unit=unit)
    if scaled:
        return squares, Near(exact=True, unit=unit, longest=longest)
    return squares / unit / unit, Near(exact=True)


def pull_squares(
    near: Near,
    cotangent: Array,
    x: Array,
    y: Array,
    *,
    factor: Array | None,
    need_grad: tuple[bool, bool],
    turned: bool = False,
) -> tuple[Array | None, Array | None]:
    """Cotangents of x and y; None where `need_grad` is False. The cotangent of the tile may be overwritten.

    With g the cotangent times the factor (N, 1) of each row (None: 1),

        to x: 2 (Σ_j g y - (Σ_j g) x)        to y: 2 (Σ_i g x - (Σ_i g) y), transposed if `turned`
    """
    adapter, xp, (places, others) = adapter_of(cotangent), namespace_of(cotangent), near[:2]
    of_pairs = None
    if near.own:  # equal rows
        cotangent = adapter.fill_diagonal(cotangent, 0, 0, cotangent.shape[0], 0.0)
    if not (places is None or others is None or is_empty(places)):
        if adapter.is_plain((cotangent,)):
            of_pairs = cotangent[places, others]
            cotangent = adapter.put_entries(cotangent, (places, others), 0.0)
        else:  # differentiated by the cotangent
            near = Near(exact=True)
    factors = () if factor is None else (factor,)
    pulled = partial(_pulled_products, need_grad=need_grad, turned=turned)
    arrays = (cotangent, x, y, *factors)
    result = iter(adapter.in_wide(pulled, *arrays) if near.exact else pulled(*arrays))
    to_x, to_y = (next(result) if flag else None for flag in need_grad)
    if of_pairs is None or places is None or others is None:
        return to_x, to_y
    to_y = to_y.T if turned and to_y is not None else to_y
    weights = of_pairs if factor is None else of_pairs * xp.take(factor[:, 0], places, axis=0)
    for chunk in _chunks(places.shape[0], x.shape[1]):
        rows, columns = places[chunk], others[chunk]
        pull = weights[chunk][:, None] * (xp.take(x, rows, axis=0) - xp.take(y, columns, axis=0)) * 2.0
        if to_x is not None:
            to_x = adapter.add_rows(to_x, rows, -pull)
        if to_y is not None:
            to_y = adapter.add_rows(to_y, columns, pull)
    return to_x, to_y.T if turned and to_y is not None else to_y


def _products(x: Array, y: Array, *, zeroed: bool, unit: Array | None = None) -> Array:
    """Negative squared distances by products, in float64 where that is fast, of rows times the unit (1, 1).

    `zeroed`: with 0 in place of rounding errors.
    """
    function, units = partial(_expanded, zeroed=zeroed), () if unit is None else (unit,)
    result: Array = adapter_of(x).in_wide(function, x, y, *units, maps=_MAPS)
    return result


def _along_x(tangent: Array, x: Array, y: Array, unit: Array | None = None) -> Array:
    """Derivative along a tangent t of x: ``2 t·(y - x)``."""
    shift = _centre(namespace_of(y), y)
    along = products_of_rows(tangent, y - shift) - adapter_of(x).row_dots(tangent, x - shift)[:, None]
    return along * 2.0 if unit is None else along * 2.0 * unit * unit


def _along_y(tangent: Array, x: Array, y: Array, unit: Array | None = None) -> Array:
    """Derivative along a tangent t of y: ``2 t·(x - y)``."""
    shift = _centre(namespace_of(y), y)
    along = products_of_rows(x - shift, tangent) - adapter_of(y).row_dots(tangent, y - shift)[None, :]
    return along * 2.0 if unit is None else along * 2.0 * unit * unit


def _back_to_x(cotangent: Array, x: Array, y: Array, unit: Array | None = None) -> Array:
    (result,) = _pulled_products(cotangent, x, y, need_grad=(True, False))
    return result if unit is None else result * unit * unit


def _back_to_y(cotangent: Array, x: Array, y: Array, unit: Array | None = None) -> Array:
    (result,) = _pulled_products(cotangent, x, y, need_grad=(False, True))
    return result if unit is None else result * unit * unit


_MAPS = {0: (_along_x, _back_to_x), 1: (_along_y, _back_to_y)}


def _expanded(x: Array, y: Array, unit: Array | None = None, *, zeroed: bool) -> Array:
    xp, adapter = namespace_of(x, y), adapter_of(x)
    shift = _centre(xp, y)
    x, y = x - shift, y - shift
    if unit is not None:
        x, y = x * unit, y * unit
    of_x, of_y = (adapter.row_dots(z, z)[:, None] for z in (x, y))
    one_x, one_y = (stop_gradient(xp.ones_like(z)) for z in (of_x, of_y))
    rows, columns = xp.concat([x * 2.0, -of_x, -one_x], axis=1), xp.concat([y, one_y, of_y], axis=1)
    squares = products_of_rows(rows, columns)
    if not zeroed:
        return squares
    noise = _NOISE if xp.finfo(x.dtype).bits > 32 else _NOISE_OF_SINGLE  # noqa: PLR2004
    return xp.where(squares > stop_gradient(of_x + of_y.T) * -noise, xp.zeros_like(squares), squares)


def _unit(xp: Namespace, x: Array, y: Array) -> tuple[Array, Array]:
    """Factor (1, 1) with which no square overflows, nor are all subnormal, and the largest entry; 1 unless it matters.

    Infinite entries and NaN are ignored.
    """
    limit = float(xp.finfo(x.dtype).max) ** 0.5 / (8.0 * x.shape[1] + 8.0)
    finite = [xp.where(xp.isfinite(z), xp.abs(z), xp.zeros_like(z)) for z in map(stop_gradient, (x, y))]
    most = [xp.sum(z) if is_empty(z) else xp.max(z) for z in finite]
    largest_entry = xp.reshape(xp.maximum(*most), (1, 1))
    tiny = xp.logical_and(largest_entry > 0, largest_entry < SMALLEST_SQUARE**0.5)
    wanted = xp.where(tiny, xp.ones_like(largest_entry), limit)
    outside = xp.logical_or(largest_entry > limit, tiny)
    one = xp.ones_like(largest_entry)
    return xp.where(outside, wanted / largest_entry, one), xp.where(outside, largest_entry, one)


def _pulled_products(
    cotangent: Array,
    x: Array,
    y: Array,
    factor: Array | None = None,
    *,
    need_grad: tuple[bool, bool],
    turned: bool = False,
) -> tuple[Array, ...]:
    xp, shift, width = namespace_of(cotangent), _centre(namespace_of(y), y), x.shape[1]
    x, y, result = x - shift, y - shift, []
    one = xp.ones_like
    if need_grad[0]:
        sums = cotangent @ xp.concat([y, one(y[:, :1])], axis=1)
        to_x = (sums[:, :width] - sums[:, width:] * x) * 2.0
        result.append(to_x if factor is None else to_x * factor)
    if need_grad[1]:
        own = xp.concat([x, one(x[:, :1])], axis=1)
        own = own if factor is None else own * factor
        if turned:
            sums = own.T @ cotangent
            result.append((sums[:width, :] - sums[width:, :] * y.T) * 2.0)
        else:
            sums = cotangent.T @ own
            result.append((sums[:, :width] - sums[:, width:] * y) * 2.0)
    return tuple(result)


def _centre(xp: Namespace, y: Array) -> Array:
    """Mean of the rows over their lengths, divided by that of the inverse lengths: a constant, far from no row.

    A row far from the others would move a plain mean to where the others lose digits. 0 in features that are not
    finite, and without rows.
    """
    y = stop_gradient(y)
    squares = adapter_of(y).row_dots(y, y)
    weights = 1.0 / xp.sqrt(squares + xp.finfo(y.dtype).smallest_normal)
    total = xp.sum(weights, axis=0, keepdims=True)
    mean = weights[None, :] @ y / (total + xp.finfo(y.dtype).smallest_normal)[None, :]
    return xp.where(xp.isfinite(mean), mean, xp.zeros_like(mean))


def _with_exact(xp: Namespace, squares: Array, x: Array, y: Array, rows: Array, columns: Array) -> Array:  # noqa: PLR0917
    """Tile with the entries of pairs computed again from differences."""
    parts = []
    for chunk in _chunks(rows.shape[0], x.shape[1]):
        differences = xp.take(x, rows[chunk], axis=0) - xp.take(y, columns[chunk], axis=0)
        parts.append(-adapter_of(x).row_dots(differences, differences))
    if not parts:
        return squares
    return adapter_of(squares).put_entries(squares, (rows, columns), xp.concat(parts))


def _chunks(count: int, width: int) -> list[slice]:
    size = max(1, _CHUNK // max(width, 1))
    return [slice(start, start + size) for start in range(0, count, size)]
