"""A channel of a sweep: the scores of a tile by one similarity, and the cotangents of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.namespace import namespace_of
from .._core.protocol import Array
from ..similarities import Pullback, Scores, Similarity, TokenScores, TransposedScores
from .inputs import Arrays
from .products import Operand, operand_of, product, pulled

Spread = Callable[[Array], Array]
"""Cotangent of the products of all tokens, from that of the scores of documents."""


class Channel(NamedTuple):
    """A similarity in the static arguments of a sweep.

    `rows`, `columns`: numbers of operands that have a gradient, and of constants after these. `wide`: whether a
    difference of D features is held for each pair. `given`: whether the operand of the rows is the score matrix.
    """

    scores: Scores
    pullback: Pullback | None
    rows: tuple[int, int]
    columns: tuple[int, int]
    even: bool = False
    inner_product: bool = False
    wide: bool = False
    given: bool = False

    def held(self, rows: Arrays, columns: Arrays) -> dict[str, Any]:
        """Numbers held for each score, as arguments of a tiling: a difference of features, or products of tokens."""
        if _of_tokens(self.scores) is not None:
            return {"width": rows[1].shape[-1] * columns[1].shape[-1], "tokens": True}
        return {"width": columns[0].shape[-1] if self.wide else 1}

    @property
    def in_parts(self) -> bool:
        """Whether rows are multiplied as sums of parts."""
        return self.inner_product and self.rows[1] > 0

    def scored(self, rows: Arrays, columns: Arrays) -> tuple[Array, Spread | None]:
        """The scores of a tile; and, of tokens, what `pulled` needs."""
        if self.in_parts:
            return product(operand_of(rows), operand_of(columns)), None
        return _scored(self.scores, rows, columns)

    def pulled(self, rows: Arrays, columns: Arrays, cotangent: Array, spread: Spread | None) -> tuple[Arrays, Arrays]:
        """The cotangents of the operands of rows and of columns that have a gradient, from that of the scores."""
        if spread is not None:
            return _pulled(self.scores, rows, columns, cotangent, spread, even=self.even)
        if self.in_parts:
            return _pulled_products(operand_of(rows), operand_of(columns), cotangent, even=self.even)
        pullback: Any = self.pullback
        found: tuple[Arrays, Arrays] = pullback(rows, columns, cotangent)
        return found


def channel_of(similarity: Similarity, rows: Arrays, columns: Arrays) -> Channel:
    """The channel of a similarity and of the operands of rows and columns."""
    counts = len(rows), len(columns)
    # Of products of rows or tokens, the first operand has a gradient: flags of tokens, and parts, are constants.
    of_products = similarity.inner_product or _of_tokens(similarity.scores) is not None
    own, other = (1, 1) if of_products else counts
    return Channel(
        similarity.scores,
        similarity.pullback,
        (own, counts[0] - own),
        (other, counts[1] - other),
        similarity.even,
        similarity.inner_product,
        similarity.wide,
        len(columns) == 0,
    )


def _scored(scores: Scores, rows: Arrays, columns: Arrays) -> tuple[Array, Spread | None]:
    if isinstance(scores, TokenScores):
        own, other = _tokens(scores, rows), _tokens(scores, columns)
        # In the order in memory in which each row is searched; a plain product of few rows would have the other.
        products = product(own, other) if own.parts else own.x @ other.x.T
        return scores.of_products(products, rows, columns)
    if isinstance(scores, TransposedScores) and _of_tokens(scores) is not None:
        found, spread = _scored(scores.inner, columns, rows)
        return namespace_of(found).matrix_transpose(found), spread
    return scores(rows, columns), None


def _pulled(
    scores: Scores, rows: Arrays, columns: Arrays, cotangent: Array, spread: Spread, *, even: bool
) -> tuple[Arrays, Arrays]:
    """The cotangents of the tokens."""
    if isinstance(scores, TransposedScores):
        turned = namespace_of(cotangent).matrix_transpose(cotangent)
        to_columns, to_rows = _pulled(scores.inner, columns, rows, turned, spread, even=even)
        return to_rows, to_columns
    assert isinstance(scores, TokenScores)  # noqa: S101  (no others are spread)
    both = _tokens(scores, rows), _tokens(scores, columns)
    (back,), (forth,) = _pulled_products(*both, spread(cotangent), even=even)
    return (scores.of_each_row(back, rows),), (scores.of_each_row(forth, columns),)


def _pulled_products(rows: Operand, columns: Operand, cotangent: Array, *, even: bool) -> tuple[Arrays, Arrays]:
    back, forth = pulled(cotangent, None, rows, columns, wanted=(True, True), even=even)
    return (back,), (forth,)


def _of_tokens(scores: Scores) -> TokenScores | None:
    """The scores of tokens that these are, or the transpose of."""
    inner = scores.inner if isinstance(scores, TransposedScores) else scores
    return inner if isinstance(inner, TokenScores) else None


def _tokens(scores: TokenScores, operands: Arrays) -> Operand:
    """The operand of a product of all tokens."""
    x, _, *split = operands
    arrays = [scores.tokens(x, operands)]
    if split:
        factor, *parts = split
        flat = namespace_of(factor).reshape(factor, (arrays[0].shape[0], 1))
        arrays += [flat, *(scores.tokens(part, operands) for part in parts)]
    return operand_of(arrays)
