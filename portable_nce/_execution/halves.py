"""Operands in 16 bits: products of these are exact in float32, and take a fraction of the time on an accelerator.

Embeddings of 16 bits are multiplied as they are; what their rows are multiplied by, inverse lengths, a scale, the
inverse of a temperature, is a factor of the rows and columns of the product. What is computed of embeddings, as the
rows of a bilinear similarity are, is the sum of as many numbers of 16 bits as it takes. Numbers of float32 are, on
request, the sum of two of bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core.checks import is_half
from .._core.halves import in_parts, in_two
from .._core.namespace import is_number, namespace_of
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..similarities import Operands, Similarity, TokenScores, is_of_unit_tokens, tokens_of
from .inputs import Arrays
from .matrix import Halves


class Exact(NamedTuple):
    """Dtypes in which embeddings are exact, those of the rows and those of the columns, and the `precision` asked for.

    They are multiplied in 16 bits if all have as many, or where `multiplied_in` says in which, in parts.
    """

    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    multiplied_in: Any = None
    precision: str | None = None


def of_matrix(
    similarity: Similarity,
    embeddings: tuple[Array, Array],
    operands: tuple[Operands, Operands],
    exact_in: Exact,
    *,
    scale: Any = 1.0,
) -> Halves | None:
    """The operands of an inner product in 16 bits, where the library is faster with these, or None."""
    (first, *_), _ = operands
    if not multiplies_halves(similarity, exact_in, first):
        return None
    of_tokens = isinstance(similarity.scores, TokenScores)
    one_scale = is_number(scale) or len(scale.shape) == 0
    if of_tokens:
        even = is_of_unit_tokens(similarity) and one_scale
        return _of_tokens(similarity, embeddings, operands, exact_in, even=even)
    (rows,), (columns,) = operands
    return _of_rows(similarity, embeddings, (rows, columns), exact_in, even=similarity.unit and one_scale)


def multiplies_halves(similarity: Similarity, exact_in: Exact, like: Array) -> bool:
    """Whether products of 16 bits may serve for embeddings of these dtypes."""
    if exact_in.precision == "highest" or not (similarity.inner_product or isinstance(similarity.scores, TokenScores)):
        return False
    all_halves = exact_in.multiplied_in is not None or all(map(is_half, (*exact_in.rows, *exact_in.columns)))
    return (all_halves or exact_in.precision == "high") and adapter_of(like).has_half_products(like)


def _of_rows(
    similarity: Similarity,
    embeddings: tuple[Array, Array],
    operands: tuple[Array, Array],
    exact_in: Exact,
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
                in_parts(x if embedded else operand, operand, half, count)
                for x, operand, embedded, count in zip(
                    embeddings, _without(similarity.beyond, *operands), similarity.embedded, counts, strict=True
                )
            ]
            return Halves(of_rows, of_columns, even)
    if exact_in.precision == "high" and operands[0].dtype == xp.float32:
        of_rows, of_columns = map(in_two, operands)
        return Halves(of_rows, of_columns, even=True)
    return None


def _of_tokens(
    similarity: Similarity,
    embeddings: tuple[Array, Array],
    operands: tuple[Operands, Operands],
    exact_in: Exact,
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
    found = _of_rows(similarity, exact, multiplied, exact_in, even=even)
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
