"""Operands in 16 bits: products of these are exact in float32, and take a fraction of the time on an accelerator.

Embeddings of 16 bits are multiplied as they are; what their rows are multiplied by, inverse lengths, a scale, the
inverse of a temperature, is a factor of the rows and columns of the product. What is computed of embeddings, as the
rows of a bilinear similarity are, is the sum of as many numbers of 16 bits as it takes. Numbers of float32 are, on
request, the sum of two of bfloat16 and of a rest below 2^-16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core.autodiff import stop_gradient
from .._core.checks import is_half
from .._core.namespace import is_number, namespace_of
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..similarities import Operands, Similarity, TokenScores, is_of_unit_tokens, tokens_of
from .layouts import Arrays
from .matrix import Halves

__all__ = ["Exact", "of_matrix"]


class Exact(NamedTuple):
    """Dtypes in which embeddings are exact, those of the rows and those of the columns.

    They are multiplied in 16 bits if all have as many, or where `multiplied_in` says in which, in parts.
    """

    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    multiplied_in: Any = None


def of_matrix(
    similarity: Similarity,
    embeddings: tuple[Array, Array],
    operands: tuple[Operands, Operands],
    exact_in: Exact,
    precision: str | None,
    *,
    scale: Any = 1.0,
) -> Halves | None:
    """The operands of an inner product in 16 bits, where the library is faster with these, or None."""
    (first, *_), _ = operands
    of_tokens = isinstance(similarity.scores, TokenScores)
    if precision == "highest" or not (similarity.inner_product or of_tokens):
        return None
    if not adapter_of(first).has_half_products(first):
        return None
    one_scale = is_number(scale) or len(scale.shape) == 0
    if of_tokens:
        even = is_of_unit_tokens(similarity) and one_scale
        return _of_tokens(similarity, embeddings, operands, exact_in, precision, even=even)
    (rows,), (columns,) = operands
    return _of_rows(similarity, embeddings, (rows, columns), exact_in, precision, even=similarity.unit and one_scale)


def _of_rows(
    similarity: Similarity,
    embeddings: tuple[Array, Array],
    operands: tuple[Array, Array],
    exact_in: Exact,
    precision: str | None,
    *,
    even: bool,
) -> Halves | None:
    """The operands of products of all rows."""
    xp = namespace_of(*operands)
    half = exact_in.multiplied_in
    half = _dtype_of_products(xp, (*exact_in.rows, *exact_in.columns)) if half is None else half
    if half is not None:
        counts = [
            _count(half, own if embedded else ())
            for embedded, own in zip(similarity.embedded, exact_in[:2], strict=True)
        ]
        if min(counts) == 1:
            of_rows, of_columns = [
                _in_parts(x if embedded else operand, operand, half, count)
                for x, operand, embedded, count in zip(
                    embeddings, _without(similarity.beyond, *operands), similarity.embedded, counts, strict=True
                )
            ]
            return Halves(of_rows, of_columns, even)
    if precision == "high" and operands[0].dtype == xp.float32:
        of_rows, of_columns = map(_in_two, operands)
        return Halves(of_rows, of_columns, even=True)
    return None


def _of_tokens(
    similarity: Similarity,
    embeddings: tuple[Array, Array],
    operands: tuple[Operands, Operands],
    exact_in: Exact,
    precision: str | None,
    *,
    even: bool,
) -> Halves | None:
    """The same of all tokens: of each row, the factors (N, T) and the parts (N, T D)."""
    scores: TokenScores = similarity.scores
    tokens = [tokens_of(similarity, x) for x in embeddings]
    exact, multiplied = (
        tuple(scores.tokens(x, operand) for x, operand in zip(given, operands, strict=True))
        for given in (tokens, [x[0] for x in operands])
    )
    found = _of_rows(similarity, exact, multiplied, exact_in, precision, even=even)
    if found is None:
        return None
    of_rows, of_columns = (
        tuple(scores.of_each_row(x, operand) for x in arrays)
        for arrays, operand in zip(found[:2], operands, strict=True)
    )
    return Halves(of_rows, of_columns, found.even)


def _without(beyond: int, *operands: Array) -> Arrays:
    """Operands without so many of their last columns."""
    return tuple(x[:, : x.shape[1] - beyond] if beyond else x for x in operands)


def _dtype_of_products(xp: Namespace, dtypes: Sequence[Any]) -> Any:
    """The dtype in which embeddings of these dtypes are multiplied, or None if some have more than 16 bits."""
    if not dtypes or not all(map(is_half, dtypes)):
        return None
    return dtypes[0] if all(dtype == dtypes[0] for dtype in dtypes) else xp.bfloat16


def _count(half: Any, dtypes: Sequence[Any]) -> int:
    """Of how many numbers of 16 bits a number is the sum: one of embeddings that have these dtypes, or of float32.

    The 11 bits of float16 are two numbers of bfloat16, which has 8; the 24 of float32 are three of bfloat16, or but for
    a share of 2^-23 two of float16.
    """
    if dtypes and all(dtype == half for dtype in dtypes):
        return 1
    if dtypes and all(map(is_half, dtypes)):
        return 2
    return 3 if "bfloat16" in str(half) else 2


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
_ROOM = 2.0**14  # of float16: far from its largest number, and from its smallest
_MOST = 126.0  # of an exponent whose power of 2, and its inverse, are normal numbers


def _in_parts(x: Array, operand: Array, dtype: Any, count: int) -> Arrays:
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
