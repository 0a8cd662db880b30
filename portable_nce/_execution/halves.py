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
from .._core.namespace import namespace_of
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..similarities import Operands, Similarity
from .layouts import Arrays
from .matrix import Halves
from .products import halves_of

__all__ = ["of_matrix"]


def of_matrix(
    similarity: Similarity,
    embeddings: tuple[Array, Array],
    operands: tuple[Operands, Operands],
    dtype: Any,
    precision: str | None,
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
        found = (_as_they_are(x, operand, dtype) for x, operand in zip(embeddings, (rows, columns), strict=True))
    elif precision == "high" and rows.dtype == xp.float32:
        found = (_in_two(x) for x in (rows, columns))
    else:
        return None
    return Halves(*found)


def _in_two(x: Array) -> Arrays:
    """Numbers of float32 as sums of two of bfloat16, with factors of 1."""
    xp, x = namespace_of(x), stop_gradient(x)
    return xp.ones_like(x[:, 0]), *halves_of(xp, x, xp.bfloat16)


_LARGE, _STEP = 2.0**40, 2.0**88
"""Products of rows with largest entries between the inverse of the first and itself are within range."""


def _as_they_are(x: Array, operand: Array, dtype: Any) -> Arrays:
    """The factors that make rows of an operand of those of an array, and these in 16 bits."""
    xp = namespace_of(x, operand)
    x, operand = stop_gradient(x), stop_gradient(operand)
    if "bfloat16" in str(dtype):  # whose range is that of float32; a power of 2 changes nothing but the exponent
        largest = xp.max(xp.abs(x), axis=1, keepdims=True)
        one = xp.ones_like(largest)
        x = x * xp.where(largest > _LARGE, one / _STEP, xp.where(largest < 1.0 / _LARGE, one * _STEP, one))
    largest = xp.max(xp.abs(x), axis=1, keepdims=True)
    at = xp.logical_and(xp.abs(x) == largest, x != 0)
    ratio = xp.where(at, operand, -math.inf) / xp.where(at, x, xp.ones_like(x))
    return _without_zeros(xp, xp.max(ratio, axis=1), xp.astype(x, dtype))


def _without_zeros(xp: Namespace, factor: Array, part: Array) -> Arrays:
    """Factors that can be divided by; a row that is multiplied by 0 is 0."""
    zero = factor == 0
    usable = xp.logical_and(xp.isfinite(factor), xp.logical_not(zero))
    return xp.where(usable, factor, xp.ones_like(factor)), xp.where(zero[:, None], xp.zeros_like(part), part)
