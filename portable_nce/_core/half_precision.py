"""Rows as 16-bit numbers over a divisor, whose products accelerators compute fast."""

from __future__ import annotations

import math
from typing import Any

from .autodiff import stop_gradient
from .namespace import namespace_of
from .numerics import clipped, unit_rows
from .protocol import Array
from .registry import adapter_of


def product_of_rows(rows: tuple[Array, Array], columns: tuple[Array, Array]) -> Array:
    """Inner products of 16-bit rows (n, E) over divisors (n, 1), and of such columns; no derivative."""

    def of_halves(x: Array, y: Array, row_divisor: Array, column_divisor: Array) -> tuple[Array]:
        return (adapter_of(x).half_product(x, y.T) / row_divisor / column_divisor.T,)

    def plainly(x: Array, y: Array, row_divisor: Array, column_divisor: Array) -> tuple[Array]:
        x, y = (
            namespace_of(part).astype(part, divisor.dtype) / divisor
            for part, divisor in ((x, row_divisor), (y, column_divisor))
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


_NORMAL = {False: 2.0**14, True: 2.0**40}
"""Lengths of rows, and their inverses, up to which rows of float16 and bfloat16 are multiplied unscaled.

Their products are then in the range of float32, and their lengths in that of the dtype.
"""


def half_rows(x: Array, length: Array, dtype: Any) -> tuple[Array, Array]:
    """16-bit rows and positive divisors (n, 1), whose quotient is ``x / length`` (0 if the length is infinite).

    If the 16-bit rows of `x` are neither extremely long nor extremely short, they are returned themselves.
    """
    xp, length = namespace_of(x, length), stop_gradient(length)
    most = _NORMAL["bfloat16" in str(dtype)]
    own = clipped(xp, length, 1.0 / most, most)
    return adapter_of(x).rounded_product(stop_gradient(x), own / length, dtype), own


def in_halves(x: Array, operand: Array, dtype: Any) -> tuple[Array, Array]:
    """16-bit rows and divisors (n, 1), whose quotient is the operand; its rows are multiples of the rows of `x`."""
    x, operand = stop_gradient(x), stop_gradient(operand)
    ((unit, length),) = unit_rows(x)
    xp, size = namespace_of(unit, operand), adapter_of(unit).row_dots(operand, unit)[:, None]
    one, zero = xp.ones_like(size), size == 0
    infinite = xp.logical_or(length == math.inf, xp.max(xp.abs(x), axis=1, keepdims=True) == math.inf)  # or all zeros
    part, own = half_rows(x, xp.where(infinite, one, xp.where(zero, math.inf, length)), dtype)
    return part, own / xp.where(xp.logical_or(infinite, zero), one, size)
