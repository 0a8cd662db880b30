"""A channel of a sweep: scores of a tile by one similarity, and the cotangents of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.distances import is_small_tile
from .._core.equality import is_fixed
from .._core.namespace import cast, is_array, namespace_of
from .._core.pair_functions import PairFunction
from .._core.protocol import Array
from .._core.registry import adapter_of
from .._core.returned import as_floating, shape_or_type
from ..similarities import Pullback, Scores, Similarity, TokenScores, TransposedScores
from .inputs import Arrays
from .products import Operand, product, pullback, with_divisor

Route = Callable[[Array], Array]
"""Map from the cotangent of the scores of documents to the cotangent of the products of all tokens."""

Residual = Any
"""What the pullback of a tile needs of its scores: for tokens a `Route`, for functions of products these."""


class Channel(NamedTuple):
    """A similarity in the static arguments of a sweep.

    `rows`, `columns`: numbers of operands with a gradient, and of constants after them. `wide`: the similarity holds D
    differences of features for each pair. `given`: the row operand is the score matrix. `products`: numbers of matrix
    products for the scores and for their pullback.
    """

    scores: Scores
    pullback: Pullback | None
    rows: tuple[int, int]
    columns: tuple[int, int]
    inner_product: bool = False
    wide: bool = False
    given: bool = False
    products: tuple[int, int] = (1, 2)

    def held(self, rows: Arrays, columns: Arrays) -> dict[str, Any]:
        """Numbers held per score, as arguments of `tiling.masked`: differences of features, or products of tokens."""
        if _of_tokens(self.scores) is not None:
            return {"width": rows[1].shape[-1] * columns[1].shape[-1], "tokens": True}
        return {"width": columns[0].shape[-1] if self.wide else 1}

    @property
    def in_halves(self) -> bool:
        """Whether products are 16-bit."""
        return self.inner_product and self.rows[1] > 0

    @property
    def by_rows(self) -> bool:
        """Whether the scores are inner products of the rows of two matrices."""
        return self.inner_product and self.rows[1] == 0

    @property
    def by_products(self) -> bool:
        """Whether the scores have a form, and are computed in a new array."""
        return self.inner_product or isinstance(self.scores, PairFunction)

    def relative(self, n_rows: int, n_columns: int, width: int) -> tuple[float, float]:
        """Lengths of the rows in products for the scores of a tile and for each cotangent, relative to embeddings.

        Both are 0 for given scores, and for tiles so small that distances take differences.
        """
        if not width or not isinstance(self.scores, PairFunction) or not self.scores.distance:
            return float(width > 0), float(width > 0)
        return (0.0, 0.0) if is_small_tile(n_rows, n_columns, width) else (1.0 + 2.0 / width, 1.0 + 1.0 / width)

    @property
    def numbers_held(self) -> int:
        """Numbers held for each score: functions of products also hold these, and distances some in float64."""
        return 3 if isinstance(self.scores, PairFunction) else 1

    def scored(self, rows: Arrays, columns: Arrays) -> tuple[Array, Residual]:
        """Scores of a tile, and what `pull` needs of them."""
        if self.in_halves:
            return product(Operand(*rows), Operand(*columns)), None
        if isinstance(self.scores, PairFunction):
            return self.scores.scored(rows, columns, often=True)
        return _scored(self.scores, rows, columns)

    def pull(
        self,
        rows: Arrays,
        columns: Arrays,
        cotangent: Array,
        residual: Residual,
        *,
        weighted: Operand | None = None,
        turned: bool = False,
        need_scale: bool = True,
    ) -> tuple[Arrays, Arrays]:
        """Cotangents of the operands with a gradient, from the scores' cotangent.

        `weighted`: the columns `with_weights`; `turned` and the columns of 16-bit products: see `products.pullback`.
        """
        if isinstance(self.scores, PairFunction):
            return self.scores.pulled(
                residual, cotangent, None, rows, columns, need_grad=(True, True), need_scale=need_scale, turned=turned
            )
        if residual is not None:
            return _token_cotangents(self.scores, rows, columns, cotangent, residual)
        if self.inner_product:
            operands = Operand(*rows), weighted or Operand(*columns)
            to_rows, to_columns = pullback(cotangent, None, *operands, need_grad=(True, True), turned=turned)
            return (to_rows,), (to_columns,)
        pull: Any = self.pullback
        result: tuple[Arrays, Arrays] = pull(rows, columns, cotangent)
        is_ours = adapter_of(cotangent).mode != "compiled" and is_fixed(pull)
        return result if is_ours else _own(result, rows, columns)


def channel_of(similarity: Similarity, rows: Arrays, columns: Arrays) -> Channel:
    counts = len(rows), len(columns)
    # In products of rows or tokens only the first operand has a gradient: token flags and parts are constants.
    of_products = similarity.inner_product or _of_tokens(similarity.scores) is not None
    n_rows, n_columns = (1, 1) if of_products else counts
    return Channel(
        similarity.scores,
        similarity.pullback,
        (n_rows, counts[0] - n_rows),
        (n_columns, counts[1] - n_columns),
        similarity.inner_product,
        similarity.wide,
        len(columns) == 0,
        similarity.products,
    )


def _scored(scores: Scores, rows: Arrays, columns: Arrays) -> tuple[Array, Route | None]:
    if isinstance(scores, TokenScores):
        left, right = _tokens(scores, rows), _tokens(scores, columns)
        # Row-major for the argmax over each row; `product` may return the transpose of a tall product.
        products = left.x @ right.x.T if left.part is None else product(left, right)
        return scores.of_products(products, rows, columns)
    if isinstance(scores, TransposedScores) and _of_tokens(scores) is not None:
        result, route = _scored(scores.inner, columns, rows)
        return namespace_of(result).matrix_transpose(result), route
    if not columns:  # they are given
        return rows[0], None
    result, shape = scores(rows, columns), (rows[0].shape[-2:][0], columns[0].shape[-2:][0])
    if not is_array(result) or tuple(result.shape) != shape:
        got = shape_or_type(result)
        raise ValueError(f"scores: expected a function that returns scores of shape {shape}, got {got}")
    return as_floating("scores", result, rows[0]), None


def _own(pulled: Any, rows: Arrays, columns: Arrays) -> tuple[Arrays, Arrays]:
    """Cotangents of a user's pullback, checked, in memory that may be overwritten: they may share theirs. None is 0."""
    both = rows, columns
    wanted = [[tuple(x.shape) for x in side] for side in both]
    try:
        found = [list(zip(side, operands, strict=True)) for side, operands in zip(pulled, both, strict=True)]
    except (TypeError, ValueError):  # other numbers of them
        found = []
    if [[tuple(getattr(x if g is None else g, "shape", ())) for g, x in side] for side in found] != wanted:
        raise ValueError(f"pullback: expected cotangents of the operands of rows and columns, of shapes {wanted}")

    def cotangent(g: Array | None, x: Array) -> Array:
        return namespace_of(x).zeros_like(x) if g is None else cast(as_floating("pullback", g, x), x.dtype) * 1.0

    of_rows, of_columns = (tuple([cotangent(g, x) for g, x in side]) for side in found)
    return of_rows, of_columns


def _token_cotangents(
    scores: Scores, rows: Arrays, columns: Arrays, cotangent: Array, route: Route
) -> tuple[Arrays, Arrays]:
    if isinstance(scores, TransposedScores):
        transposed = namespace_of(cotangent).matrix_transpose(cotangent)
        to_columns, to_rows = _token_cotangents(scores.inner, columns, rows, transposed, route)
        return to_rows, to_columns
    assert isinstance(scores, TokenScores)  # noqa: S101  (only these have a route)
    both = _tokens(scores, rows), _tokens(scores, columns)
    first, sums = pullback(route(cotangent), None, *both, need_grad=(True, True))
    return (scores.of_each_row(first, rows),), (scores.of_each_row(with_divisor(sums, both[1]), columns),)


def _of_tokens(scores: Scores) -> TokenScores | None:
    """The `TokenScores` in these scores or in their transpose; None for others."""
    inner = scores.inner if isinstance(scores, TransposedScores) else scores
    return inner if isinstance(inner, TokenScores) else None


def _tokens(scores: TokenScores, operands: Arrays) -> Operand:
    """The operand of a product of all tokens."""
    x, flags, *halves = operands
    flat, n_tokens = scores.tokens(x, operands), flags.shape[-1]
    # The width by division: libraries do not find it for a rank without rows.
    shapes = [(flat.shape[0], x.shape[-1] // n_tokens) for x in halves]
    return Operand(flat, *[namespace_of(x).reshape(x, shape) for x, shape in zip(halves, shapes, strict=True)])
