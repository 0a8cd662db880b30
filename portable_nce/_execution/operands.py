"""Operands of a similarity, also in 16 bits: their products are exact in float32, and fast on an accelerator.

Embeddings of 16 bits are multiplied as they are; what their rows are multiplied by, inverse lengths, a scale, the
inverse of a temperature, is a factor of the rows and columns of the product. What is computed of embeddings, as the
rows of a bilinear similarity are, is the sum of as many numbers of 16 bits as it takes. Numbers of float32 are, on
request, the sum of two of bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core.checks import is_half
from .._core.half_precision import in_parts, in_two
from .._core.namespace import is_number, namespace_of
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..similarities import Operands, Similarity, TokenScores, is_of_unit_tokens, measured_operands, tokens_of
from .inputs import Arrays


class SourceDtypes(NamedTuple):
    """Dtypes in which embeddings are exact, those of the rows and those of the columns, and the `precision` asked for.

    They are multiplied in 16 bits if all have as many, or where `multiplied_in` says in which, in parts.
    """

    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    multiplied_in: Any = None
    precision: str | None = None


def operands_of(
    similarity: Similarity, x: Array, y: Array, scale: Any, source_dtypes: SourceDtypes
) -> tuple[Similarity, Operands, Operands, float]:
    """A similarity and its operands, and a bound of their inner products, infinite where none is seen.

    Where the library is faster with products of 16 bits, a factor of each row and parts, whose sum it multiplies, come
    after the operands that are multiplied; both are constants.
    """
    rows, columns, bound = measured_operands(similarity, x, y, scale)
    if not multiplies_halves(similarity, source_dtypes, rows[0]):
        return similarity, rows, columns, bound
    scores, operands = similarity.scores, (rows, columns)
    of_tokens = isinstance(scores, TokenScores)
    exact, multiplied = (x, y), (rows[0], columns[0])
    if of_tokens:
        exact = tuple(tokens_of(similarity, z) for z in exact)
        exact, multiplied = (tuple(map(scores.tokens, given, operands)) for given in (exact, multiplied))
    sides, of_ones = _in_parts(similarity, exact, multiplied, source_dtypes)
    if not sides:
        return similarity, rows, columns, bound
    if of_tokens:
        sides = [[scores.of_each_row(z, own) for z in side] for side, own in zip(sides, operands, strict=True)]
    unit = is_of_unit_tokens(similarity) if of_tokens else similarity.unit
    even = of_ones or (unit and (is_number(scale) or len(scale.shape) == 0))
    return similarity._replace(even=even), (*rows, *sides[0]), (*columns, *sides[1]), bound


def multiplies_halves(similarity: Similarity, source_dtypes: SourceDtypes, like: Array) -> bool:
    """Whether products of 16 bits may serve for embeddings of these dtypes."""
    if source_dtypes.precision == "highest" or not (
        similarity.inner_product or isinstance(similarity.scores, TokenScores)
    ):
        return False
    all_halves = source_dtypes.multiplied_in is not None or all(
        map(is_half, (*source_dtypes.rows, *source_dtypes.columns))
    )
    return (all_halves or source_dtypes.precision == "high") and adapter_of(like).has_half_products(like)


def _in_parts(
    similarity: Similarity, embeddings: tuple[Array, Array], operands: tuple[Array, Array], source_dtypes: SourceDtypes
) -> tuple[list[Sequence[Array]], bool]:
    """The factors and parts of rows and of columns, or none where these do not pay; and whether all factors are 1."""
    xp = namespace_of(*operands)
    half = source_dtypes.multiplied_in
    half = _dtype_of_products(xp, (*source_dtypes.rows, *source_dtypes.columns)) if half is None else half
    sides: list[Any] = []
    if half is not None:
        counts = [
            _count(half, own if embedded else ())
            for embedded, own in zip(similarity.embedded, source_dtypes[:2], strict=True)
        ]
        if min(counts) == 1:
            sides = [
                in_parts(x if embedded else operand, operand, half, count)
                for x, operand, embedded, count in zip(
                    embeddings, _without(similarity.beyond, *operands), similarity.embedded, counts, strict=True
                )
            ]
    of_ones = not sides and source_dtypes.precision == "high" and operands[0].dtype == xp.float32
    if of_ones:
        sides = [*map(in_two, operands)]
    return [(factor[:, None], *parts) for factor, *parts in sides], of_ones


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
