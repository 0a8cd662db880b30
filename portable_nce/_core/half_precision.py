"""Rows as 16-bit numbers over a divisor, whose products accelerators compute fast."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .autodiff import stop_gradient
from .namespace import namespace_of
from .numerics import unit_rows
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


class _Range(NamedTuple):
    """Lengths of rows that are multiplied as they are, the powers of 2 that bring others near them, the longest row."""

    low: float
    high: float
    raise_by: float
    lower_by: float
    longest: float


_RANGES = {
    "float16": _Range(2.0**-14, 2.0**14, 2.0**10, 2.0**-9, 2.0**24),
    "bfloat16": _Range(2.0**-40, 2.0**40, 2.0**90, 2.0**-88, 2.0**127),
}
"""Products of such rows are in the range of float32; their lengths, up to 2^16 features, in that of the dtype."""


def half_rows(arrays: Sequence[Array], lengths: Sequence[Array], dtype: Any) -> list[tuple[Array, Array]]:
    """16-bit rows and positive divisors (n, 1) of each array x, with quotient ``x / length`` (0 if that is infinite).

    The 16-bit rows of `x` are returned themselves, or times a power of 2: any other factor would round them again.
    """
    lengths, adapter = list(map(stop_gradient, lengths)), adapter_of(arrays[0])
    if (
        len(arrays) > 1 and adapter.mode == "eager" and adapter.is_plain(tuple(lengths))
    ):  # a third of the launches on a GPU
        stops = list(itertools.accumulate(x.shape[0] for x in lengths))
        factors, divisors = _power_factors(namespace_of(*lengths).concat(lengths, axis=0), dtype)
        cuts = [slice(stop - x.shape[0], stop) for stop, x in zip(stops, lengths, strict=True)]
        pairs = [(factors[cut, :], divisors[cut, :]) for cut in cuts]
    else:
        pairs = [_power_factors(length, dtype) for length in lengths]
    return [
        (adapter.rounded_product(stop_gradient(x), factor, dtype), divisor)
        for x, (factor, divisor) in zip(arrays, pairs, strict=True)
    ]


def _power_factors(length: Array, dtype: Any) -> tuple[Array, Array]:
    """Powers of 2 (0 for an infinite length), and finite lengths of the rows times these."""
    xp, span = namespace_of(length), _RANGES["bfloat16" if "bfloat16" in str(dtype) else "float16"]
    factor = xp.where(length > span.high, span.lower_by, xp.ones_like(length))
    factor = xp.where(length < span.low, span.raise_by, factor)
    # No where of a where: Inductor inlines these operations into kernels of tiles, up to 30 of them.
    own = factor * xp.minimum(length, xp.full_like(length, span.longest))
    return own / length, own


def in_halves(x: Array, operand: Array, dtype: Any) -> tuple[Array, Array]:
    """16-bit rows and divisors (n, 1), whose quotient is the operand; its rows are multiples of the rows of `x`."""
    x, operand = stop_gradient(x), stop_gradient(operand)
    ((unit, length),) = unit_rows(x)
    xp, size = namespace_of(unit, operand), adapter_of(unit).row_dots(operand, unit)[:, None]
    one, zero = xp.ones_like(size), size == 0
    infinite = xp.logical_or(length == math.inf, xp.max(xp.abs(x), axis=1, keepdims=True) == math.inf)  # or all zeros
    ((part, own),) = half_rows([x], [xp.where(infinite, one, xp.where(zero, math.inf, length))], dtype)
    return part, own / xp.where(xp.logical_or(infinite, zero), one, size)
