"""Rows of numbers as a factor of each and a sum of numbers of 16 bits, whose products an accelerator computes fast."""

from __future__ import annotations

import math
from typing import Any

from .autodiff import stop_gradient
from .namespace import namespace_of
from .protocol import Array, Namespace
from .registry import adapter_of


def product_of_rows(rows: tuple[Array, Array], columns: tuple[Array, Array]) -> Array:
    """The inner products of rows (n, E) of 16 bits, with a factor (n,) each, and such columns; without a derivative."""

    def of_halves(x: Array, y: Array, of_rows: Array, of_columns: Array) -> tuple[Array]:
        return (adapter_of(x).half_product(x, y.T) * of_rows[:, None] * of_columns[None, :],)

    def plainly(x: Array, y: Array, of_rows: Array, of_columns: Array) -> tuple[Array]:
        own, other = (
            namespace_of(part).astype(part, factor.dtype) * factor[:, None]
            for part, factor in ((x, of_rows), (y, of_columns))
        )
        return (own @ other.T,)

    arrays = (rows[0], columns[0], rows[1], columns[1])
    (found,) = adapter_of(rows[0]).by_halves(of_halves, plainly, *arrays)
    return found


def product_of_flags(rows: Array, columns: Array, dtype: Any) -> Array:
    """How many flags rows (n, C) and columns (k, C) have in common, in a dtype; up to 2^24 are exact in float32."""
    xp = namespace_of(rows, columns)
    adapter = adapter_of(rows)

    def plainly(x: Array, y: Array) -> tuple[Array]:
        return (xp.astype(x, dtype) @ xp.astype(y, dtype).T,)

    def of_halves(x: Array, y: Array) -> tuple[Array]:
        return (adapter.half_product(xp.astype(x, xp.bfloat16), xp.astype(y, xp.bfloat16).T),)

    if dtype != xp.float32 or not adapter.has_half_products(rows):
        return plainly(rows, columns)[0]
    (found,) = adapter.by_halves(of_halves, plainly, rows, columns)
    return found


def in_two(x: Array) -> tuple[Array, ...]:
    """Numbers of float32 as sums of two of bfloat16 and a rest below 2^-16, with factors of 1."""
    xp, x = namespace_of(x), stop_gradient(x)
    most = float(xp.finfo(xp.bfloat16).max)
    within = xp.where(x > most, xp.full_like(x, most), xp.where(x < -most, xp.full_like(x, -most), x))
    finite = xp.isfinite(x)
    high = xp.astype(xp.where(finite, within, x), xp.bfloat16)
    low = xp.where(finite, x - xp.astype(high, x.dtype), xp.zeros_like(x))
    return xp.ones_like(x[:, 0]), high, xp.astype(low, xp.bfloat16)


_LN2 = math.log(2.0)
_ROOM = 2.0**14  # of float16: far from its largest number, and from its smallest
_MOST = 126.0  # of an exponent whose power of 2, and its inverse, are normal numbers


def in_parts(x: Array, operand: Array, dtype: Any, count: int) -> tuple[Array, ...]:
    """The factors that make rows of an operand of those of an array, and these as sums of numbers of 16 bits.

    The rows are brought near 1 by a power of 2, which changes nothing but exponents: products are within range then,
    and factors say which rows weigh more. What float16 cannot hold of a row is below 2^-24 of its largest entry; of
    numbers with more bits, which are brought near 2^14, below 2^-38.
    """
    xp = namespace_of(x, operand)
    x, operand = stop_gradient(x), stop_gradient(operand)
    largest = xp.max(xp.abs(x), axis=1, keepdims=True)
    known = xp.logical_and(xp.isfinite(largest), largest > 0)
    exponent = xp.round(xp.log(xp.where(known, largest, xp.ones_like(largest))) / -_LN2)
    exponent = xp.where(exponent > _MOST, xp.full_like(exponent, _MOST), exponent)
    # Rounded to 8 bits, what is almost a power of 2 is one.
    x = x * xp.astype(xp.astype(xp.exp(exponent * _LN2), xp.bfloat16), x.dtype)
    if count > 1 and "bfloat16" not in str(dtype):
        x = x * _ROOM
    largest = xp.max(xp.abs(x), axis=1, keepdims=True)
    at = xp.logical_and(xp.abs(x) == largest, x != 0)
    ratio = operand / xp.where(at, x, xp.ones_like(x))
    both_infinite = xp.logical_and(xp.isinf(operand), xp.isinf(x))  # the product is, too
    ratio = xp.where(both_infinite, xp.ones_like(ratio), xp.where(at, ratio, -math.inf))
    factor, parts = xp.max(ratio, axis=1), _split(xp, x, dtype, count)
    factor = xp.where(xp.isnan(largest[:, 0]), largest[:, 0], factor)  # of no number there is no largest
    empty = xp.logical_or(factor == 0, factor == -math.inf)  # a row that is multiplied by 0 is 0
    factor = xp.where(empty, xp.ones_like(factor), factor)
    return factor, *(xp.where(empty[:, None], xp.zeros_like(part), part) for part in parts)


def _split(xp: Namespace, x: Array, dtype: Any, count: int) -> list[Array]:
    """Numbers as sums of so many of 16 bits; what is not finite is the first of them."""
    parts = [xp.astype(x, dtype)]
    for _ in range(count - 1):
        rest = xp.where(xp.isfinite(x), x - xp.astype(parts[-1], x.dtype), xp.zeros_like(x))
        parts, x = [*parts, xp.astype(rest, dtype)], rest
    return parts
