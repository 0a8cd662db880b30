"""Operands of a similarity, also in 16 bits: their products are exact in float32, and fast on accelerators.

16-bit embeddings are multiplied unchanged; inverse lengths, scales and inverse temperatures are factors of the rows and
columns of the product. Operands computed from embeddings, such as the rows of a bilinear similarity, are sums of as
many 16-bit numbers as necessary. On request, float32 operands are sums of two bfloat16 numbers.
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
    """Dtypes of the embeddings that rows and columns come from, and the `precision` option.

    Products are 16-bit if all dtypes are. `multiplied_in`: dtype of 16-bit products in parts.
    """

    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    multiplied_in: Any = None
    precision: str | None = None


def operands_of(
    similarity: Similarity, x: Array, y: Array, scale: Any, source_dtypes: SourceDtypes
) -> tuple[Similarity, Operands, Operands, float]:
    """A similarity, its row and column operands, and a bound of their inner products (infinite if unknown).

    For 16-bit products, a factor of each row and the parts follow the operands; both are constants.
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
        sides = [[scores.of_each_row(z, operand) for z in side] for side, operand in zip(sides, operands, strict=True)]
    unit = is_of_unit_tokens(similarity) if of_tokens else similarity.unit
    even = of_ones or (unit and (is_number(scale) or len(scale.shape) == 0))
    return similarity._replace(even=even), (*rows, *sides[0]), (*columns, *sides[1]), bound


def multiplies_halves(similarity: Similarity, source_dtypes: SourceDtypes, like: Array) -> bool:
    """Whether embeddings of these dtypes may use 16-bit products."""
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
    """Factors and parts of rows and columns, or none where they do not pay; and whether all factors are 1."""
    xp = namespace_of(*operands)
    half = source_dtypes.multiplied_in
    half = _dtype_of_products(xp, (*source_dtypes.rows, *source_dtypes.columns)) if half is None else half
    sides: list[Any] = []
    if half is not None:
        counts = [
            _n_parts(half, dtypes if embedded else ())
            for embedded, dtypes in zip(similarity.embedded, source_dtypes[:2], strict=True)
        ]
        if min(counts) == 1:
            sides = [
                in_parts(x if embedded else operand, operand, half, count)
                for x, operand, embedded, count in zip(
                    embeddings, _drop_last(similarity.beyond, *operands), similarity.embedded, counts, strict=True
                )
            ]
    of_ones = not sides and source_dtypes.precision == "high" and operands[0].dtype == xp.float32
    if of_ones:
        sides = [*map(in_two, operands)]
    return [(factor[:, None], *parts) for factor, *parts in sides], of_ones


def _drop_last(count: int, *operands: Array) -> Arrays:
    return tuple(x[:, : x.shape[1] - count] if count else x for x in operands)


def _dtype_of_products(xp: Namespace, dtypes: Sequence[Any]) -> Any:
    """16-bit dtype of products of these embeddings; None if some have more bits."""
    if not dtypes or not all(map(is_half, dtypes)):
        return None
    return dtypes[0] if all(dtype == dtypes[0] for dtype in dtypes) else xp.bfloat16


def _n_parts(half: Any, dtypes: Sequence[Any]) -> int:
    """Number of 16-bit parts of an operand from embeddings of these dtypes, or (none) in float32.

    The 11 bits of float16 are two bfloat16 numbers of 8 bits. The 24 bits of float32 are three bfloat16 numbers, or two
    float16 ones except for a relative remainder of 2^-23.
    """
    if dtypes and all(dtype == half for dtype in dtypes):
        return 1
    if dtypes and all(map(is_half, dtypes)):
        return 2
    return 3 if "bfloat16" in str(half) else 2
