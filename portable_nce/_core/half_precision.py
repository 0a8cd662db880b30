"""Rows as a factor times a sum of 16-bit parts, whose products accelerators compute fast."""

from __future__ import annotations

import math
from typing import Any

from .autodiff import stop_gradient
from .namespace import namespace_of
from .protocol import Array, Namespace
from .registry import adapter_of


def product_of_rows(rows: tuple[Array, Array], columns: tuple[Array, Array]) -> Array:
    """Inner products of 16-bit rows (n, E) with factors (n,), and 16-bit columns with factors; no derivative."""

    def of_halves(x: Array, y: Array, row_factor: Array, column_factor: Array) -> tuple[Array]:
        return (adapter_of(x).half_product(x, y.T) * row_factor[:, None] * column_factor[None, :],)

    def plainly(x: Array, y: Array, row_factor: Array, column_factor: Array) -> tuple[Array]:
        x, y = (
            namespace_of(part).astype(part, factor.dtype) * factor[:, None]
            for part, factor in ((x, row_factor), (y, column_factor))
        )
        return (x @ y.T,)

    arrays = (rows[0], columns[0], rows[1], columns[1])
    (products,) = adapter_of(rows[0]).by_halves(of_halves, plainly, *arrays)
    return products


def product_of_flags(rows: Array, columns: Array, dtype: Any) -> Array:
    """Numbers (n, k) of common flags of rows (n, C) and columns (k, C), in a dtype; exact up to 2^24 in float32."""
    xp = namespace_of(rows, columns)
    adapter = adapter_of(rows)

    def plainly(x: Array, y: Array) -> tuple[Array]:
        return (xp.astype(x, dtype) @ xp.astype(y, dtype).T,)

    def of_halves(x: Array, y: Array) -> tuple[Array]:
        return (adapter.half_product(xp.astype(x, xp.bfloat16), xp.astype(y, xp.bfloat16).T),)

    if dtype != xp.float32 or not adapter.has_half_products(rows):
        return plainly(rows, columns)[0]
    (products,) = adapter.by_halves(of_halves, plainly, rows, columns)
    return products


def in_two(x: Array) -> tuple[Array, ...]:
    """Factors of 1, and two bfloat16 parts whose sum is a float32 array up to 2^-16."""
    xp, x = namespace_of(x), stop_gradient(x)
    most = float(xp.finfo(xp.bfloat16).max)
    within = xp.where(x > most, xp.full_like(x, most), xp.where(x < -most, xp.full_like(x, -most), x))
    finite = xp.isfinite(x)
    high = xp.astype(xp.where(finite, within, x), xp.bfloat16)
    low = xp.where(finite, x - xp.astype(high, x.dtype), xp.zeros_like(x))
    return xp.ones_like(x[:, 0]), high, xp.astype(low, xp.bfloat16)


_LN2 = math.log(2.0)
_FLOAT16_SCALE = 2.0**14  # puts the low parts far from the limits of float16
_MAX_EXPONENT = 126.0  # 2^126 and 2^-126 are normal numbers


def in_parts(x: Array, operand: Array, dtype: Any, count: int) -> tuple[Array, ...]:
    """Factors and 16-bit parts of rows: the operand is the factor times the sum of the `count` parts.

    Rows of `x`, to which those of the operand are proportional, are scaled near 1 by a power of 2, which is exact and
    keeps products in range. The part that float16 cannot represent is below 2^-24 of the largest entry of a row; with
    several parts, which are scaled near 2^14, below 2^-38.
    """
    xp = namespace_of(x, operand)
    x, operand = stop_gradient(x), stop_gradient(operand)
    largest = xp.max(xp.abs(x), axis=1, keepdims=True)
    known = xp.logical_and(xp.isfinite(largest), largest > 0)
    exponent = xp.round(xp.log(xp.where(known, largest, xp.ones_like(largest))) / -_LN2)
    exponent = xp.where(exponent > _MAX_EXPONENT, xp.full_like(exponent, _MAX_EXPONENT), exponent)
    # exp is not exact; rounded to 8 bits, it is a power of 2.
    x = x * xp.astype(xp.astype(xp.exp(exponent * _LN2), xp.bfloat16), x.dtype)
    if count > 1 and "bfloat16" not in str(dtype):
        x = x * _FLOAT16_SCALE
    largest = xp.max(xp.abs(x), axis=1, keepdims=True)
    at = xp.logical_and(xp.abs(x) == largest, x != 0)
    ratio = operand / xp.where(at, x, xp.ones_like(x))
    both_infinite = xp.logical_and(xp.isinf(operand), xp.isinf(x))  # so is the product
    ratio = xp.where(both_infinite, xp.ones_like(ratio), xp.where(at, ratio, -math.inf))
    factor, parts = xp.max(ratio, axis=1), _split(xp, x, dtype, count)
    factor = xp.where(xp.isnan(largest[:, 0]), largest[:, 0], factor)  # a row with NaN stays NaN
    empty = xp.logical_or(factor == 0, factor == -math.inf)  # rows of zeros
    factor = xp.where(empty, xp.ones_like(factor), factor)
    return factor, *(xp.where(empty[:, None], xp.zeros_like(part), part) for part in parts)


def _split(xp: Namespace, x: Array, dtype: Any, count: int) -> list[Array]:
    """`count` 16-bit parts whose sum approximates `x`; entries that are not finite are in the first."""
    parts = [xp.astype(x, dtype)]
    for _ in range(count - 1):
        rest = xp.where(xp.isfinite(x), x - xp.astype(parts[-1], x.dtype), xp.zeros_like(x))
        parts, x = [*parts, xp.astype(rest, dtype)], rest
    return parts
