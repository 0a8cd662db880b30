"""A channel of a sweep: the scores of a tile by one similarity, and the cotangents of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.namespace import namespace_of
from .._core.numerics import rows_where
from .._core.protocol import Array, Namespace
from ..similarities import Pullback, Scores, Similarity, TokenScores, TransposedScores
from .inputs import Arrays
from .products import Operand, operand_of, product
from .products import pulled as pulled_of_products

Spread = Callable[[Array], Array]
"""Cotangent of the products of all tokens, from that of the scores of documents."""


class Side(NamedTuple):
    """Operands of the rows or columns of a tile, and their factors and 16-bit parts, if there are any."""

    operands: Arrays
    halves: Arrays = ()

    @property
    def of_product(self) -> Operand:
        """The operand of an inner product."""
        return operand_of((*self.operands, *self.halves))


class Channel(NamedTuple):
    """A similarity in the static arguments of a sweep.

    `operands`, `halves`: numbers of arrays of rows and of columns. `even`: whether the factors of the 16-bit parts of
    rows, and those of columns, are of one order of magnitude. `wide`: whether a difference of D features is held for
    each pair. `given`: whether the operand of the rows is the score matrix.
    """

    scores: Scores
    pullback: Pullback | None
    operands: tuple[int, int]
    halves: tuple[int, int] = (0, 0)
    even: bool = False
    inner_product: bool = False
    wide: bool = False
    given: bool = False

    def held(self, rows: Arrays, columns: Arrays) -> dict[str, Any]:
        """Numbers held for each score, as arguments of a tiling: a difference of features, or products of tokens."""
        if _of_tokens(self.scores) is not None:
            return {"width": rows[1].shape[-1] * columns[1].shape[-1], "tokens": True}
        return {"width": columns[0].shape[-1] if self.wide else 1}

    def scored(self, rows: Side, columns: Side) -> tuple[Array, Spread | None]:
        """The scores of a tile; and, of tokens, what `pulled` needs."""
        return _scored(self.scores, rows, columns)

    def pulled(self, rows: Side, columns: Side, cotangent: Array, spread: Spread | None) -> tuple[Arrays, Arrays]:
        """The cotangents of the operands of rows and of columns, from that of the scores."""
        return _pulled((self.scores, self.pullback), rows, columns, cotangent, spread, even=self.even)


def channel_of(
    similarity: Similarity, operands: tuple[Arrays, Arrays], halves: tuple[Arrays, Arrays], *, even: bool
) -> Channel:
    """The channel of a similarity and of the operands of rows and columns."""
    (rows, columns), (row_halves, column_halves) = operands, halves
    return Channel(
        similarity.scores,
        similarity.pullback,
        (len(rows), len(columns)),
        (len(row_halves), len(column_halves)),
        even,
        similarity.inner_product,
        similarity.wide,
        len(columns) == 0,
    )


def where_live(xp: Namespace, live: Array, side: Side) -> Side:
    """Operands and 16-bit parts, 0 in rows that do not count."""
    return Side(tuple(rows_where(xp, live, *side.operands)), halves_where(xp, live, side.halves))


def halves_where(xp: Namespace, live: Array, halves: Arrays) -> Arrays:
    """The factors of rows and their 16-bit parts; the parts are 0 in rows that do not count."""
    if not halves:
        return ()
    factor, *parts = halves
    flags = xp.reshape(live, (live.shape[0], *[1] * (len(factor.shape) - 1)))
    return xp.where(flags, factor, xp.ones_like(factor)), *rows_where(xp, live, *parts)


def _scored(scores: Scores, rows: Side, columns: Side) -> tuple[Array, Spread | None]:
    if isinstance(scores, TokenScores):
        own, other = _tokens(scores, rows), _tokens(scores, columns)
        # In the order in memory in which each row is searched; a plain product of few rows would have the other.
        products = product(own, other) if own.parts else own.x @ other.x.T
        return scores.of_products(products, rows.operands, columns.operands)
    if isinstance(scores, TransposedScores) and _of_tokens(scores) is not None:
        found, spread = _scored(scores.inner, columns, rows)
        return namespace_of(found).matrix_transpose(found), spread
    if rows.halves:
        return product(rows.of_product, columns.of_product), None
    return scores(rows.operands, columns.operands), None


def _pulled(
    similarity: tuple[Scores, Any], rows: Side, columns: Side, cotangent: Array, spread: Spread | None, *, even: bool
) -> tuple[Arrays, Arrays]:
    scores, pullback = similarity
    if spread is None:
        if not rows.halves:
            found: tuple[Arrays, Arrays] = pullback(rows.operands, columns.operands, cotangent)
            return found
        both = rows.of_product, columns.of_product
        back, forth = pulled_of_products(cotangent, None, *both, wanted=(True, True), even=even)
        return (back,), (forth,)
    if isinstance(scores, TransposedScores):
        turned = namespace_of(cotangent).matrix_transpose(cotangent)
        to_columns, to_rows = _pulled((scores.inner, pullback), columns, rows, turned, spread, even=even)
        return to_rows, to_columns
    assert isinstance(scores, TokenScores)  # noqa: S101  (no others are spread)
    both = _tokens(scores, rows), _tokens(scores, columns)
    back, forth = pulled_of_products(spread(cotangent), None, *both, wanted=(True, True), even=even)
    return scores.cotangents(back, rows.operands), scores.cotangents(forth, columns.operands)


def _of_tokens(scores: Scores) -> TokenScores | None:
    """The scores of tokens that these are, or the transpose of."""
    inner = scores.inner if isinstance(scores, TransposedScores) else scores
    return inner if isinstance(inner, TokenScores) else None


def _tokens(scores: TokenScores, side: Side) -> Operand:
    """The operand of a product of all tokens."""
    x = scores.tokens(side.operands[0], side.operands)
    if not side.halves:
        return Operand(x)
    factor, *parts = side.halves
    flat = namespace_of(factor).reshape(factor, (x.shape[0],))
    return operand_of((x, flat, *(scores.tokens(part, side.operands) for part in parts)))
