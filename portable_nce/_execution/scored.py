"""The scores of any similarity, and the cotangents of its operands: in 16 bits where there are operands of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.namespace import namespace_of
from .._core.protocol import Array
from ..similarities import Pullback, Scores, TokenScores, TransposedScores
from .layouts import Arrays
from .products import Operand, operand_of, product
from .products import pulled as pulled_of_products

__all__ = ["Side", "Spread", "held", "pulled", "scored"]

Spread = Callable[[Array], Array]


class Side(NamedTuple):
    """The operands of rows or of columns, and what these are made of in 16 bits, if they are."""

    operands: Arrays
    halves: Arrays = ()


def held(scores: Scores, rows: Arrays, columns: Arrays, *, wide: bool) -> dict[str, Any]:
    """What is held for each score, as tilings are told: a difference of columns, or products of tokens."""
    if _of_tokens(scores) is not None:
        return {"width": rows[1].shape[-1] * columns[1].shape[-1], "tokens": True}
    return {"width": columns[0].shape[-1] if wide else 1}


def scored(scores: Scores, rows: Side, columns: Side) -> tuple[Array, Spread | None]:
    """The scores; and, of tokens, what gives the cotangent of their products, that `pulled` wants."""
    if isinstance(scores, TokenScores):
        own, other = _tokens(scores, rows), _tokens(scores, columns)
        # In the order in memory in which each row is searched; a plain product of few rows would have the other.
        products = product(own, other) if own.parts else own.x @ other.x.T
        return scores.of_products(products, rows.operands, columns.operands)
    if isinstance(scores, TransposedScores) and _of_tokens(scores) is not None:
        found, spread = scored(scores.inner, columns, rows)
        return namespace_of(found).matrix_transpose(found), spread
    if rows.halves:
        return product(_rows(rows), _rows(columns)), None
    return scores(rows.operands, columns.operands), None


def pulled(
    similarity: tuple[Scores, Pullback],
    rows: Side,
    columns: Side,
    cotangent: Array,
    spread: Spread | None,
    *,
    even: bool,
) -> tuple[Arrays, Arrays]:
    """The cotangents of the operands of rows and of columns, of that of the scores."""
    scores, pullback = similarity
    if spread is None:
        if not rows.halves:
            return pullback(rows.operands, columns.operands, cotangent)
        back, forth = pulled_of_products(cotangent, None, _rows(rows), _rows(columns), wanted=(True, True), even=even)
        return (back,), (forth,)
    if isinstance(scores, TransposedScores):
        turned = namespace_of(cotangent).matrix_transpose(cotangent)
        to_columns, to_rows = pulled((scores.inner, pullback), columns, rows, turned, spread, even=even)
        return to_rows, to_columns
    assert isinstance(scores, TokenScores)  # noqa: S101  (no others are spread)
    both = _tokens(scores, rows), _tokens(scores, columns)
    back, forth = pulled_of_products(spread(cotangent), None, *both, wanted=(True, True), even=even)
    return scores.cotangents(back, rows.operands), scores.cotangents(forth, columns.operands)


def _of_tokens(scores: Scores) -> TokenScores | None:
    """The scores of tokens that these are, or the transpose of."""
    inner = scores.inner if isinstance(scores, TransposedScores) else scores
    return inner if isinstance(inner, TokenScores) else None


def _rows(side: Side) -> Operand:
    return operand_of((*side.operands, *side.halves))


def _tokens(scores: TokenScores, side: Side) -> Operand:
    """The operand of a product of all tokens."""
    x = scores.tokens(side.operands[0], side.operands)
    if not side.halves:
        return Operand(x)
    factor, *parts = side.halves
    flat = namespace_of(factor).reshape(factor, (x.shape[0],))
    return operand_of((x, flat, *(scores.tokens(part, side.operands) for part in parts)))
