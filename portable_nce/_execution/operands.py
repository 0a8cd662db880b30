"""Operands of a similarity, also in 16 bits: their products are exact in float32, and fast on accelerators.

16-bit embeddings are multiplied unchanged; the rows and columns of the product are divided by lengths and temperatures.
Operands computed from embeddings, such as the rows of a bilinear similarity, have more bits: they are multiplied in
float32.
"""

from __future__ import annotations

from typing import Any

from .._core.checks import is_half
from .._core.half_precision import in_halves
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..similarities import Operands, Similarity, TokenScores, measured_operands, tokens_of


def half_of(similarity: Similarity, like: Array, dtypes: tuple[Any, ...], precision: str | None = None) -> Any:
    """The 16-bit dtype in which embeddings of these dtypes are multiplied; None for products in float32 or float64."""
    first, *others = dtypes
    of_halves = is_half(first) and all(x == first for x in others) and precision != "highest"
    of_products = similarity.inner_product or isinstance(similarity.scores, TokenScores)
    exact = of_halves and of_products and all(similarity.embedded)
    return first if exact and adapter_of(like).has_half_products(like) else None


def operands_of(
    similarity: Similarity, x: Array, y: Array, scale: Any, half: Any = None
) -> tuple[Similarity, Operands, Operands, float]:
    """A similarity, its row and column operands, and a bound of their inner products (infinite if unknown).

    For products in a 16-bit dtype, `half`, the 16-bit rows and their divisors follow the operands; both are constants.
    """
    rows, columns, bound = measured_operands(similarity, x, y, scale)
    if half is None:
        return similarity, rows, columns, bound
    scores = similarity.scores
    sides: list[Operands] = []
    for z, operands in ((x, rows), (y, columns)):
        operand = operands[0]
        if isinstance(scores, TokenScores):
            tokens = scores.tokens(tokens_of(similarity, z), operands), scores.tokens(operand, operands)
            sides.append((*operands, *(scores.of_each_row(own, operands) for own in in_halves(*tokens, half))))
        else:
            width = operand.shape[1] - similarity.beyond
            sides.append((*operands, *in_halves(z, operand[:, :width], half)))
    return similarity, sides[0], sides[1], bound
