"""Operands in 16 bits: products of these are exact in float32, and take a fraction of the time on an accelerator.

Embeddings of 16 bits are multiplied as they are; what their rows are multiplied by, inverse lengths, a scale, the
inverse of a temperature, is a factor of the rows and columns of the product. Numbers of float32 are, on request, the
sum of two of bfloat16 and of a rest below 2^-16.
"""

from __future__ import annotations

import math
from typing import Any

from .._core.autodiff import stop_gradient
from .._core.checks import is_half
from .._core.namespace import is_number, namespace_of
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..similarities import Operands, Similarity
from .layouts import Arrays
from .matrix import Halves

__all__ = ["of_matrix"]


def of_matrix(
    similarity: Similarity,
    embeddings: tuple[Array, Array],
    operands: tuple[Operands, Operands],
    dtype: Any,
    precision: str | None,
    *,
    scale: Any = 1.0,
) -> Halves | None:
    """The operands of an inner product in 16 bits, where the library is faster with these, or None.

    They are made of embeddings that are exact in a dtype, if that is not None.
    """
    if precision == "highest" or not similarity.inner_product:
        return None
    (rows,), (columns,) = operands
    if not adapter_of(rows).has_half_products(rows):
        return None
    xp = namespace_of(rows, columns)
    if dtype is not None and is_half(dtype) and similarity.scales:
        x, y = embeddings
        even = similarity.unit and (is_number(scale) or len(scale.shape) == 0)
        return Halves(_as_they_are(x, rows, dtype), _as_they_are(y, columns, dtype), even=even)
    if precision == "high" and rows.dtype == xp.float32:
        return Halves(_in_two(rows), _in_two(columns), even=True)
    return None


def _in_two(x: Array) -> Arrays:
    """Numbers of float32 as sums of two of bfloat16, with factors of 1."""
    xp, x = namespace_of(x), stop_gradient(x)
    most = float(xp.finfo(xp.bfloat16).max)
    within = xp.where(x > most, xp.full_like(x, most), xp.where(x < -most, xp.full_like(x, -most), x))
    finite = xp.isfinite(x)
    high = xp.astype(xp.where(finite, within, x), xp.bfloat16)
    low = xp.where(finite, x - xp.astype(high, x.dtype), xp.zeros_like(x))
    return xp.ones_like(x[:, 0]), high, xp.astype(low, xp.bfloat16)


_LN2 = math.log(2.0)
_MOST = 126.0  # of an exponent whose power of 2, and its inverse, are normal numbers


def _as_they_are(x: Array, operand: Array, dtype: Any) -> Arrays:
    """The factors that make rows of an operand of those of an array, and these in 16 bits.

    The rows are brought near 1 by a power of 2, which changes nothing but exponents: products are within range then,
    and factors say which rows weigh more. What float16 cannot hold of a row is below 2^-24 of its largest entry.
    """
    xp = namespace_of(x, operand)
    x, operand = stop_gradient(x), stop_gradient(operand)
    largest = xp.max(xp.abs(x), axis=1, keepdims=True)
    known = xp.logical_and(xp.isfinite(largest), largest > 0)
    exponent = xp.round(xp.log(xp.where(known, largest, xp.ones_like(largest))) / -_LN2)
    exponent = xp.where(exponent > _MOST, xp.full_like(exponent, _MOST), exponent)
    # Rounded to 8 bits, what is almost a power of 2 is one.
    x = x * xp.astype(xp.astype(xp.exp(exponent * _LN2), xp.bfloat16), x.dtype)
    largest = xp.max(xp.abs(x), axis=1, keepdims=True)
    at = xp.logical_and(xp.abs(x) == largest, x != 0)
    ratio = operand / xp.where(at, x, xp.ones_like(x))
    both_infinite = xp.logical_and(xp.isinf(operand), xp.isinf(x))  # the product is, too
    ratio = xp.where(both_infinite, xp.ones_like(ratio), xp.where(at, ratio, -math.inf))
    factor, part = xp.max(ratio, axis=1), xp.astype(x, dtype)
    factor = xp.where(xp.isnan(largest[:, 0]), largest[:, 0], factor)  # of no number there is no largest
    empty = xp.logical_or(factor == 0, factor == -math.inf)  # a row that is multiplied by 0 is 0
    factor = xp.where(empty, xp.ones_like(factor), factor)
    return factor, xp.where(empty[:, None], xp.zeros_like(part), part)
