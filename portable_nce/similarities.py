r"""Similarities: from embeddings to scores.

A similarity is a name, a `Similarity` made by a function of this module, or a critic: any function from arrays (N, D)
and (K, D') to scores (N, K). Only a `Similarity` with a pullback streams without an N × K matrix.

================== ===================================================
name               score of rows x, y at temperature τ
================== ===================================================
"dot"              :math:`x^\top y / \tau`
"cosine"           :math:`x^\top y / (\lVert x \rVert \lVert y \rVert \tau)`; 0 if either is zero
"neg_sq_euclidean" :math:`-\lVert x - y \rVert^2 / \tau`
"neg_euclidean"    :math:`-\lVert x - y \rVert / \tau`, with gradient 0 at distance 0
"cauchy"           :math:`-\log(1 + \lVert x - y \rVert^2) / \tau`
================== ===================================================

With ``"cauchy"`` InfoNCE is t-SimCNE's loss (Böhm, Berens and Kobak 2023, "Unsupervised visualization of image datasets
using contrastive learning", arXiv:2210.09879), whose embeddings in two dimensions can be plotted.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ._core.autodiff import stop_gradient
from ._core.checks import (
    check_bool,
    check_callable,
    check_called,
    check_choice,
    check_floating,
    check_mask,
    check_shape,
    explained,
    is_empty,
    readable_entry,
    refuses_other_names,
    shape_of,
)
from ._core.equality import EqualByContents, Record
from ._core.namespace import common_namespace, device_of, is_array, is_number, namespace_of
from ._core.numerics import in_range, normalize, upcast
from ._core.pair_functions import CAUCHY, EUCLIDEAN, Elementwise, OwnFunction, PairFunction, guarded_products
from ._core.protocol import Array, Namespace
from ._core.registry import adapter_of
from ._core.returned import as_floating, of_library, shape_or_type
from ._core.types import AnyArray, ArrayOf, ArrayT, Parameters, Result, SimilarityName

__all__ = [
    "NAMES",
    "Operands",
    "Pullback",
    "Scores",
    "Similarity",
    "bilinear",
    "elementwise",
    "max_sim",
    "normalized",
    "resolve",
    "scaled_columns",
    "shifted_columns",
]

__dir__ = __all__.copy  # what completion offers

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = refuses_other_names(__name__)

Operands: TypeAlias = tuple[Array, ...]
Prepare: TypeAlias = Callable[[Array, Array, Any], tuple[Operands, Operands]]
Scores: TypeAlias = Callable[[Operands, Operands], Array]
Pullback: TypeAlias = Callable[[Operands, Operands, Array], tuple[Operands, Operands]]


class Similarity(EqualByContents):
    """Scores of rows against columns in two steps, `prepare` and `scores`, with a closed-form pullback of the second.

    Parameters
    ----------
    prepare : callable
        ``prepare(x, y, scale) -> (rows, columns)``: everything of cost O(N D), such as normalisation and projection,
        and multiplication of the rows by the scale (inverse temperature: a Python float, a 0-d array, or an array (N,
        1)). Differentiated by the library. Both results are tuples of arrays whose second-to-last axis runs over the
        rows, or columns, of the score matrix.
    scores : callable, optional
        ``scores(rows, columns) -> array``: the scores, shape (..., N, K), a function of the operands alone.
    pullback : callable, optional
        ``pullback(rows, columns, cotangent) -> (rows, columns)``: the cotangents of the operands (2-D), for the
        cotangent (N, K) of the scores. Write it in array-API code, so that it can be differentiated again. Without it,
        the whole score matrix is held.
    wide : bool, default: False
        Whether `scores` holds an intermediate array of shape (N, K, D); tiles are chosen smaller.
    inner_product : bool, default: False
        Whether the scores are inner products of the operands, one array (N, D) and one array (K, D). Then `scores` and
        `pullback` are not needed, and losses are as fast as with ``"dot"``.

    See Also
    --------
    bilinear : A similarity with a learned matrix.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> def prepare(x, y, scale):
    ...     return (x * scale,), (y,)
    >>> dot = pnce.similarities.Similarity(prepare, inner_product=True)
    >>> x = np.eye(3)
    >>> own = pnce.info_nce(x, x, temperature=1.0, similarity=dot, block_size=2)
    >>> bool(abs(own - pnce.info_nce(x, x, temperature=1.0, similarity="dot")) < 1e-15)
    True
    """

    __slots__ = (
        "beyond",
        "embedded",
        "inner_product",
        "prepare",
        "products",
        "pullback",
        "scores",
        "symmetric",
        "unit",
        "wide",
    )

    def __init__(
        self,
        prepare: Prepare,
        scores: Scores | None = None,
        pullback: Pullback | None = None,
        *,
        wide: bool = False,
        inner_product: bool = False,
    ) -> None:
        check_callable("prepare", prepare)
        self.inner_product = check_bool("inner_product", inner_product)
        if self.inner_product and scores is None:
            scores, pullback = _dot_scores, _dot_pullback
        check_callable("scores", scores)
        if pullback is not None:
            check_callable("pullback", pullback)
        self.prepare = prepare
        self.scores: Any = scores
        self.pullback = pullback
        self.wide = check_bool("wide", wide)
        self.symmetric = False  # s(x, y) = s(y, x)
        self.unit = False  # the operands are unit rows, up to the scale
        # Whether the operands of rows and of columns are the embeddings times a factor per row.
        self.embedded: tuple[bool, bool] = (False, False)
        self.beyond = 0  # number of operand columns beyond the embedding width
        # Numbers of matrix products for the scores and for their pullback, for `explain`; differences of features: 0.
        self.products: tuple[int, int] = (0, 0) if self.wide else (1, 2)

    @property
    def by_products(self) -> bool:
        """Whether the scores are inner products of operands, or elementwise functions of them or of distances."""
        return self.inner_product or isinstance(self.scores, PairFunction)

    def __repr__(self) -> str:
        how = "scores with a pullback" if self.pullback is not None else "a plain function"
        words = [*_words_of(self.prepare), *([] if self.inner_product else _words_of(self.scores))]
        return f"<similarity {' '.join(dict.fromkeys(words))}: {'inner products' if self.inner_product else how}>"

    def transposed(self) -> Similarity:
        """Return the similarity of columns with rows, whose scores are the transpose.

        Returns
        -------
        Similarity
            The transposed similarity. `prepare` is unchanged.
        """
        if self.inner_product:
            return self
        scores = TransposedScores(self.scores, self.pullback)
        return self._replace(scores=scores, pullback=None if self.pullback is None else _PullbackOf(scores))


AnySimilarity: TypeAlias = SimilarityName | Similarity | Callable[[Array, Array], Array]
"""Type of a `similarity` argument."""


_WORDS = {
    "_dot": "dot",
    "_dot_scores": "",
    "_cosine": "cosine",
    "_scale_apart": "",
    "_Bilinear": "bilinear",
    "_Normalized": "normalized",
    "_OfTokens": "max_sim",
    "_Tokens": "max_sim",
    "TokenScores": "",
    "_OfColumns": "scaled or shifted",
    "_ColumnScores": "",
    "_OfPrepared": "prepared",
    "_Capped": "soft-capped",
    "Apart": "",
    "TransposedScores": "transposed",
    "_CriticScores": "",
}
"""Words for the functions and records of this module in the `repr` of a similarity."""


def _words_of(function: Any) -> Iterator[str]:
    """Words for a function, and for those that it is built from."""
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, PairFunction):
        yield function.name
    elif _WORDS.get(name, name):
        yield _WORDS.get(name, name)
    inner = next((getattr(function, part) for part in ("prepare", "scores", "inner") if hasattr(function, part)), None)
    if inner is not None and callable(inner):
        yield from _words_of(inner)


class _Around(Record):
    """Function built from another or from an array."""

    inner: Any


class TransposedScores(Record):
    """Scores with rows and columns exchanged."""

    inner: Scores
    pullback: Any

    def __call__(self, rows: Operands, columns: Operands) -> Array:
        """Transpose of the inner scores."""
        scores = self.inner(columns, rows)
        return namespace_of(scores).matrix_transpose(scores)

    def pull(self, rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
        """Pullback of the transposed scores."""
        to_columns, to_rows = self.pullback(columns, rows, namespace_of(cotangent).matrix_transpose(cotangent))
        return to_rows, to_columns


class _PullbackOf(_Around):
    """Pullback of a record that computes scores and pullback."""

    def __call__(self, rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
        pulled: tuple[Operands, Operands] = self.inner.pull(rows, columns, cotangent)
        return pulled


class _ColumnScores(Record):
    """Scores times, or plus, the last operand of the columns."""

    scores: Scores
    pullback: Pullback
    scaled: bool

    def __call__(self, rows: Operands, columns: Operands) -> Array:
        scores = self.scores(rows, columns[:-1])
        numbers = namespace_of(scores).matrix_transpose(columns[-1])
        return scores * numbers if self.scaled else scores + numbers

    def pull(self, rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
        """With cotangent g. For s + o: g by s, Σ_i g by o. For s f: g f by s, Σ_i g s by f."""
        xp = namespace_of(cotangent)
        others, by_numbers = columns[:-1], cotangent
        if self.scaled:
            by_numbers = guarded_products(xp, self.scores(rows, others), cotangent)
            cotangent = cotangent * xp.matrix_transpose(columns[-1])
        to_rows, to_columns = self.pullback(rows, others, cotangent)
        return to_rows, (*to_columns, xp.expand_dims(xp.sum(by_numbers, axis=0), axis=1))


class _Capped(Record):
    """Soft-capped scores ``κ tanh(s / κ)``."""

    scores: Scores
    pullback: Pullback
    cap: float

    def __call__(self, rows: Operands, columns: Operands) -> Array:
        scores = self.scores(rows, columns)
        return namespace_of(scores).tanh(scores / self.cap) * self.cap

    def pull(self, rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
        """The slope ``1 - tanh²(t)`` is ``4 e / (1 + e)²`` with ``e = exp(-2 |t|)``."""
        scores = self.scores(rows, columns)
        xp = namespace_of(scores, cotangent)
        small = xp.exp(xp.abs(scores / self.cap) * -2.0)
        factor = small * 4.0 / ((small + 1.0) * (small + 1.0))
        return self.pullback(rows, columns, factor * cotangent)


def soft_capped(similarity: AnySimilarity, cap: float) -> Similarity:
    """A similarity with a pullback, with scores soft-capped to ``(-cap, cap)``."""
    inner = resolve(similarity)
    scores = _Capped(inner.scores, inner.pullback, cap)
    of_scores, of_pullback = inner.products
    capped = Similarity(inner.prepare, scores, _PullbackOf(scores), wide=inner.wide)
    return capped._replace(products=(of_scores, of_scores + of_pullback))


class _Bilinear(_Around):
    """Preparation ``(x W / τ, y)``."""

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        xp, (x, y, matrix) = common_namespace(x=x, y=y, weight=self.inner)
        check_shape("weight", matrix, (x.shape[-1], y.shape[-1]))
        return (xp.matmul(x, xp.astype(matrix, x.dtype)) * scale,), (y,)


class _Normalized(Record):
    """Preparation applied to unit rows."""

    prepare: Prepare

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        return self.prepare(*_unit_rows(x, y), scale)


class _OfColumns(Record):
    """Preparation with factors or offsets of the columns.

    They are an additional operand of the columns. For inner products, factors are multiplied into the operand, and
    offsets become an additional operand column, against ones.
    """

    prepare: Prepare
    name: str
    numbers: Array
    inner_product: bool

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        xp, (x, y, numbers) = common_namespace(x=x, y=y, **{self.name: self.numbers})
        check_shape(self.name, numbers, (y.shape[-2],))
        rows, columns = self.prepare(x, y, scale)
        numbers = xp.expand_dims(xp.astype(numbers, x.dtype), axis=1)
        if not self.inner_product:
            return rows, (*columns, numbers)
        if self.name == "factors":
            return rows, (columns[0] * numbers,)
        xp = namespace_of(rows[0], numbers)
        one = stop_gradient(xp.ones_like(rows[0][..., :1]))
        return (xp.concat([rows[0], one], axis=-1),), (xp.concat([columns[0], numbers], axis=-1),)


def _with_columns(similarity: AnySimilarity, name: str, numbers: AnyArray) -> Similarity:
    """Similarity with factors or offsets of the columns."""
    inner, scaled = resolve(similarity), name == "factors"
    xp, (numbers,) = common_namespace(**{name: numbers})
    check_floating(xp, **{name: numbers})
    shape_of(name, numbers, "(K)")
    prepare = _OfColumns(inner.prepare, name, upcast(xp, numbers), inner.inner_product)
    if inner.inner_product:
        beyond = inner.beyond + (not scaled)
        return Similarity(prepare, inner_product=True)._replace(embedded=inner.embedded, beyond=beyond)
    scores = _ColumnScores(inner.scores, inner.pullback, scaled)
    of_scores, of_pullback = inner.products
    made = Similarity(prepare, scores, None if inner.pullback is None else _PullbackOf(scores), wide=inner.wide)
    return made._replace(products=(of_scores, of_pullback + of_scores * scaled))


def numbers_of_columns(similarity: Similarity) -> tuple[tuple[str, Array], ...]:
    """Names and arrays of the factors and offsets of the columns."""
    layers = _layers(similarity)
    return tuple((layer.name, layer.numbers) for layer in layers if isinstance(layer, _OfColumns))


def is_of_prepared(similarity: Similarity) -> bool:
    """Whether the columns are expected to be those of `prepare`, and the rows not."""
    return isinstance(_layers(similarity)[-1], _OfPrepared)


def _layers(similarity: Similarity) -> list[Any]:
    """Preparations around one another, the innermost last."""
    layers: list[Any] = [similarity.prepare]
    while isinstance(layers[-1], (_Normalized, _OfColumns)):
        layers.append(layers[-1].prepare)
    return layers


def with_numbers(similarity: Similarity, change: Callable[[Array], Array]) -> Similarity:
    """Similarity with `change` applied to its factors and offsets."""

    def changed(prepare: Any) -> Any:
        if isinstance(prepare, _OfColumns):
            return prepare._replace(prepare=changed(prepare.prepare), numbers=change(prepare.numbers))
        return _Normalized(changed(prepare.prepare)) if isinstance(prepare, _Normalized) else prepare

    return similarity._replace(prepare=changed(similarity.prepare)) if numbers_of_columns(similarity) else similarity


class _OfTokens(Record):
    """Preparation of `max_sim` before the number of features per token is known."""

    masks: tuple[Array | None, Array | None, Array | None]
    unit: bool

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        del scale
        raise ValueError(
            f"similarity: expected another than max_sim here, got arrays of shapes {tuple(x.shape)} and "
            f"{tuple(y.shape)}; it is for contrast, info_nce, clip, siglip and two_tower, and in no other similarity"
        )

    def flattened(self, named: dict[str, Any]) -> tuple[Similarity, list[Any]]:
        """Similarity of token embeddings, and the token arrays flattened to one row per query or document.

        The tokens (..., T, D) become a row (..., T D + T): the features, then a validity flag (1 or 0) per token, so
        that masks travel with the embeddings.
        """
        given = _given_masks(self.masks)
        xp, entered = common_namespace(**named, **given)
        arrays, masks = entered[: len(named)], dict(zip(given, entered[len(named) :], strict=True))
        check_floating(xp, **dict(zip(named, arrays, strict=True)))
        own = len(arrays[-1].shape) == 4  # noqa: PLR2004  (separate negatives for each query)
        axes = ("(N, T, D)", "(K, U, D)", "(N, M, U, D)" if own else "(M, U, D)")
        shapes = [shape_of(name, x, of_array) for name, x, of_array in zip(named, arrays, axes, strict=False)]
        flat: list[Array] = []
        features = shapes[0][-1]
        for name, tokens, shape, mask_name in zip(named, arrays, shapes, _TOKEN_MASKS, strict=False):
            if shape[-1] != features:
                raise ValueError(f"{name}: expected tokens of {features} features, got shape {shape}")
            if len(flat) == 2 and shape[-2] != shapes[1][-2]:  # noqa: PLR2004  (negatives, after the documents)
                raise ValueError(
                    f"{name}: expected {shapes[1][-2]} tokens, as the documents have, got shape {shape}; pad the "
                    f"shorter ones, and mark their valid tokens by document_mask and negative_mask"
                )
            mask = masks.pop(mask_name, None)
            if mask is not None:
                check_mask(xp, mask_name, mask, shape[:-1])
            flat.append(_with_valid(xp, tokens, mask))
        for mask_name in masks:
            raise ValueError(f"{mask_name}: expected None for a loss of {', '.join(named)}, got an array")
        scores = TokenScores(features)
        made = Similarity(_Tokens(features, self.unit), scores, _PullbackOf(scores), wide=True)
        return made._replace(embedded=(True, True), products=(1, 2)), flat


_TOKEN_MASKS = {"query_mask": "(N, T)", "document_mask": "(K, U)", "negative_mask": "(M, U)"}
"""Masks of the arrays of tokens, in the order of the arrays, with their axes."""


def _given_masks(masks: tuple[Array | None, ...]) -> dict[str, Array]:
    """Masks that are not None, by name."""
    return {name: mask for name, mask in zip(_TOKEN_MASKS, masks, strict=True) if mask is not None}


def _with_valid(xp: Namespace, tokens: Array, mask: Array | None) -> Array:
    """Tokens (..., T, D) as one row, followed by validity flags."""
    *leading, count, features = tokens.shape
    valid = xp.ones_like(tokens[..., 0]) if mask is None else xp.astype(mask, tokens.dtype)
    with adapter_of(tokens).full_precision(tokens):
        return xp.concat([xp.reshape(tokens, (*leading, count * features)), stop_gradient(valid)], axis=-1)


class _Tokens(Record):
    """Preparation of flattened tokens: tokens, 0 where invalid, and validity flags."""

    features: int
    unit: bool

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        rows, columns = self.split(x), self.split(y)
        return (rows[0] * scale, rows[1]), columns

    def split(self, x: Array) -> tuple[Array, Array]:
        """Tokens of each row, normalised if `unit`, and validity flags."""
        tokens, valid = self.valid_tokens(x)
        if not self.unit:
            return tokens, valid
        xp, shape = namespace_of(x), (*valid.shape, self.features)
        return xp.reshape(normalize(xp.reshape(tokens, shape)), tuple(tokens.shape)), valid

    def valid_tokens(self, x: Array) -> tuple[Array, Array]:
        """Tokens of each row, 0 where invalid, and validity flags."""
        xp, features = namespace_of(x), self.features
        count = x.shape[-1] // (features + 1)
        tokens = xp.reshape(x[..., : count * features], (*x.shape[:-1], count, features))
        valid = stop_gradient(x[..., count * features :])
        tokens = xp.where(xp.expand_dims(valid != 0, axis=-1), tokens, xp.zeros_like(tokens))
        return xp.reshape(tokens, (*x.shape[:-1], count * features)), valid


class TokenScores(_Around):
    """``Σ_t max_u q_t · d_u``; -inf if either side has no tokens. The first of equal maxima has the gradient.

    `inner` is the number of features per token. Products of tokens may be computed elsewhere (`of_products`).
    """

    def __call__(self, rows: Operands, columns: Operands) -> Array:
        """Scores of all rows against all columns."""
        q, d = (self.tokens(x, operands) for x, operands in ((rows[0], rows), (columns[0], columns)))
        xp = namespace_of(q, d)
        return self.of_products(xp.matmul(q, xp.matrix_transpose(d)), rows, columns)[0]

    def pull(self, rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
        """Cotangents of the operands."""
        q, d = (self.tokens(operands[0], operands) for operands in (rows, columns))
        xp = namespace_of(q, d)
        _, route_cotangent = self.of_products(xp.matmul(q, xp.matrix_transpose(d)), rows, columns)
        pull = route_cotangent(cotangent)
        to_q, to_d = xp.matmul(pull, d), xp.matmul(xp.matrix_transpose(pull), q)
        return self.cotangents(to_q, rows), self.cotangents(to_d, columns)

    def tokens(self, x: Array, operands: Operands) -> Array:
        """Rows (..., N, T D), of an operand or alike, as rows of tokens (..., N T, D)."""
        xp, shape, features = namespace_of(x), operands[1].shape, self.inner
        # Two reshapes: Dask's can merge or split axes, not both at once.
        apart = xp.reshape(x, (*shape, features))
        return xp.reshape(apart, (*shape[:-2], shape[-2] * shape[-1], features))

    def of_products(self, products: Array, rows: Operands, columns: Operands) -> tuple[Array, Callable[[Array], Array]]:
        """Scores from the products (..., N T, K U) of all tokens, and the pullback to the products.

        The cotangent of a product is c_nk where token u of document k is the first maximum for token t of query n, else
        0.
        """
        of_query, of_document = rows[1], columns[1]
        xp = namespace_of(products)
        flat = tuple(products.shape)
        (n, t), (k, u) = (x.shape[-2:] for x in (of_query, of_document))
        products = xp.reshape(products, (*flat[:-2], n, t, k, u))
        valid = xp.expand_dims(xp.expand_dims(of_document != 0, axis=-3), axis=-4)
        candidates = xp.where(valid, stop_gradient(products), -math.inf)
        where = xp.expand_dims(xp.argmax(candidates, axis=-1), axis=-1)
        tokens = xp.reshape(xp.arange(u, device=device_of(products)), (*(1,) * (len(flat) + 1), u))
        first = where == xp.astype(tokens, where.dtype)
        first = xp.logical_and(first, valid)
        live_rows, live_columns = (xp.any(x != 0, axis=-1) for x in (of_query, of_document))
        live = xp.logical_and(xp.expand_dims(live_rows, axis=-1), xp.expand_dims(live_columns, axis=-2))
        best = xp.sum(xp.where(first, products, xp.zeros_like(products)), axis=-1)  # (..., N, T, K)

        def route_cotangent(cotangent: Array) -> Array:
            cotangent = xp.where(live, cotangent, xp.zeros_like(cotangent))
            each = xp.expand_dims(xp.expand_dims(cotangent, axis=-1), axis=-3)
            return xp.reshape(xp.where(first, each, xp.zeros_like(each)), flat)

        return xp.where(live, xp.sum(best, axis=-2), -math.inf), route_cotangent

    def of_each_row(self, x: Array, operands: Operands) -> Array:
        """Rows of tokens (..., N T, E) as rows (..., N, T E)."""
        xp, shape = namespace_of(x), tuple(operands[1].shape)
        return xp.reshape(xp.reshape(x, (*shape, x.shape[-1])), (*shape[:-1], shape[-1] * x.shape[-1]))

    def cotangents(self, of_tokens: Array, operands: Operands) -> Operands:
        """Cotangents of the operands of one side, from the cotangent of its tokens."""
        return self.of_each_row(of_tokens, operands), namespace_of(of_tokens).zeros_like(operands[1])


def tokens_of(similarity: Similarity, x: Array) -> Array:
    """Flattened tokens of embeddings under `max_sim`, 0 where invalid."""
    prepare: Any = similarity.prepare
    return prepare.valid_tokens(x)[0]


def number_of_flags(similarity: Any, x: Array) -> int:
    """Number of trailing validity flags of embeddings; 0 without tokens."""
    prepare = getattr(similarity, "prepare", None)
    return int(x.shape[-1]) // (prepare.features + 1) if isinstance(prepare, _Tokens) else 0


def takes_tokens(loss: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a loss whose positional arrays are embeddings, so that `max_sim` can pass arrays of tokens."""
    names = inspect.getfullargspec(loss).args

    @wraps(loss)
    def flattening(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        similarity: Any = options.get("similarity")
        if not isinstance(similarity, Similarity) or not isinstance(similarity.prepare, _OfTokens):
            second = args[1] if len(args) > 1 else options.get(names[1])
            if args and getattr(args[0], "ndim", 0) == getattr(second, "ndim", 0) == 3:  # noqa: PLR2004  (tokens)
                _refuse_tokens(names[0], args[0], similarity)
            return loss(*args, **options)
        given: dict[str, Any] = {**options, **dict(zip(names, args, strict=False))}
        named = {name: x for name in names if is_array(x := given.get(name)) and not is_number(x)}
        given["similarity"], arrays = similarity.prepare.flattened(named)
        given |= dict(zip(named, arrays, strict=True))
        flat = [given.pop(name) for name in names[: len(args)]]
        return loss(*flat, **given)  # pyright: ignore[reportCallIssue]  (the loss's own parameters)

    return flattening


def _refuse_tokens(name: str, x: Any, similarity: Any) -> None:
    """Raise an error for arrays of tokens, with the remedy for named similarities or for functions."""
    n_rows, tokens, features = x.shape
    remedy = f"pass similarity=similarities.max_sim(), or merge the leading axes by {name}.reshape((-1, {features}))"
    if callable(similarity) or isinstance(similarity, Similarity):
        remedy = f"flatten each row by {name}.reshape(({n_rows}, {tokens * features})), which the similarity can undo"
    raise ValueError(f"{name}: expected shape (N, D), got {tuple(x.shape)}; for tokens, {remedy}")


class _CriticScores(_Around):
    """Scores of a user's critic, checked."""

    def __call__(self, rows: Operands, columns: Operands) -> Array:
        scores = self.inner(rows[0], columns[0])
        expected = (*rows[0].shape[:-1], columns[0].shape[-2])
        if not is_array(scores) or tuple(scores.shape) != expected:
            raise ValueError(
                f"similarity: expected a function that returns scores of shape {expected}, got "
                f"{shape_or_type(scores)}; compare each row with each column, as x @ y.T does"
            )
        _, (scale, scores) = common_namespace(scale=rows[1], similarity=as_floating("similarity", scores, rows[0]))
        return scores * scale


@explained
def bilinear(weight: AnyArray, /) -> Similarity:
    r"""Return the bilinear similarity :math:`x^\top W y / \tau`.

    Parameters
    ----------
    weight : array, shape (D, D')
        The matrix W; differentiable.

    Returns
    -------
    Similarity
        The similarity, for the `similarity` argument of any loss.

    Raises
    ------
    TypeError
        If `weight` is not a real floating-point array.
    ValueError
        If `weight` is not a matrix, or (when called) does not fit the embeddings.

    References
    ----------
    van den Oord, Li and Vinyals (2018), "Representation Learning with Contrastive Predictive Coding",
    arXiv:1807.03748, equation 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> round(float(pnce.info_nce(x, x, similarity=pnce.similarities.bilinear(5 * np.eye(3)), temperature=1.0)), 6)
    0.013386
    """
    xp, (weight,) = common_namespace(weight=weight)
    check_floating(xp, weight=weight)
    shape_of("weight", weight, "(D, D')")
    weight = upcast(xp, weight)
    return Similarity(_Bilinear(weight), inner_product=True)._replace(embedded=(False, True))


@explained
def elementwise(
    similarity: Literal["dot", "cosine", "neg_sq_euclidean"] | Similarity,
    value: Callable[[Any], Any],
    slope: Callable[[Any], Any],
    /,
) -> Similarity:
    r"""Return the similarity :math:`f(g_{xy}) / \tau`, a function of each score g of another similarity.

    Losses take about as long as with the other similarity, however many features the embeddings have. The angle between
    embeddings is a function of their cosine; a Gaussian kernel is one of ``"neg_sq_euclidean"``.

    Parameters
    ----------
    similarity : {"dot", "cosine", "neg_sq_euclidean"} or Similarity
        Similarity of the scores g: one of these names, `bilinear`, `normalized` with one of them, or another
        `Similarity` of inner products.
    value : callable
        ``value(g) -> array``: f of an array of scores, in functions of the array API, entry by entry.
    slope : callable
        ``slope(g) -> array``: the derivative f'. For a distance of 0 it may be infinite: return 0 there.

    Returns
    -------
    Similarity
        The similarity, for the `similarity` argument of any loss.

    Raises
    ------
    TypeError
        If `value` or `slope` is not callable.
    ValueError
        If `similarity` has other scores.

    Examples
    --------
    The Gaussian kernel :math:`\exp(-|x - y|^2 / 2)`:

    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> gaussian = pnce.similarities.elementwise(
    ...     "neg_sq_euclidean", lambda g: np.exp(0.5 * g), lambda g: 0.5 * np.exp(0.5 * g)
    ... )
    >>> x = np.eye(3)
    >>> round(float(pnce.info_nce(x, x, similarity=gaussian, temperature=0.5)), 6)
    0.447826
    """
    inner = resolve(similarity)
    check_callable("value", value)
    check_callable("slope", slope)
    plain = isinstance(inner.scores, PairFunction) and inner.scores.function is None
    if not (inner.inner_product or plain):
        raise ValueError(
            f"similarity: expected 'dot', 'cosine', 'neg_sq_euclidean' or one of inner products, got {similarity!r}; "
            f"compose the functions: those of distances are elementwise functions of 'neg_sq_euclidean', too"
        )
    prepare = Apart(inner.prepare) if inner.inner_product else inner.prepare
    functions = OwnFunction("value", value), OwnFunction("slope", slope)
    made = _of_pairs(prepare, Elementwise(*functions, "", None), distance=not inner.inner_product)
    return made._replace(symmetric=inner.symmetric)


@explained
def max_sim(
    *,
    query_mask: AnyArray | None = None,
    document_mask: AnyArray | None = None,
    negative_mask: AnyArray | None = None,
    normalize: bool = True,
) -> Similarity:
    r"""Return ColBERT's late-interaction similarity of token embeddings: the best match of each query token, summed.

    .. math:: s(q, d) = \frac1\tau \sum_{t} \max_{u}\, q_t^\top d_u

    over the valid tokens t of the query and u of the document. `contrast`, `info_nce`, `clip`, `siglip` and `two_tower`
    accept it, with token arrays (N, T, D) and (K, U, D) in place of (N, D) and (K, D); rows are queries, columns
    documents. It is not symmetric: with ``symmetric=True`` both directions use these scores, with the maximum over
    document tokens.

    If several tokens of a document are the best match, the first gets the gradient. A query or document without valid
    tokens has scores of -inf, which mask its pairs: such a query does not count, nor does a query whose positive
    document is empty.

    Parameters
    ----------
    query_mask : array of bool, shape (N, T), optional
        Valid tokens of the queries, the first array of the loss; all by default. Other tokens have no effect. For a
        loss of one array, it applies to both sides.
    document_mask : array of bool, shape (K, U), optional
        Valid tokens of the documents, the second array.
    negative_mask : array of bool, shape (M, U) or (N, M, U), optional
        Valid tokens of the negatives, the third array of `info_nce` and `two_tower`, of shape (M, U, D), or (N, M, U,
        D) if each query has its own. They have as many tokens as the documents; pad the shorter ones.
    normalize : bool, default: True
        Whether tokens are normalised first, as in ColBERT, so that :math:`q_t^\top d_u` is a cosine.

    Returns
    -------
    Similarity
        The similarity, for the `similarity` argument of these losses.

    Raises
    ------
    TypeError
        If a mask is not a boolean array.
    ValueError
        If a mask has the wrong number of axes, or (when called) does not fit the tokens, or the widths of query and
        document tokens differ.

    Notes
    -----
    Block sizes assume U · D numbers per pair; the actual number is T · U. A block has at least one query against all
    documents, which takes a few copies of K · T · U numbers.

    References
    ----------
    Khattab and Zaharia (2020), "ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction
    over BERT", arXiv:2004.12832, equation 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> query, document = np.eye(4)[:, None, :], np.stack([np.eye(4), np.eye(4)[::-1]], axis=1)
    >>> round(float(pnce.info_nce(query, document, similarity=pnce.similarities.max_sim(), temperature=0.5)), 6)
    0.820075

    One negative document for each query, whose second token is padding:

    >>> negatives, valid = document[::-1, None], np.asarray([[[True, False]]] * 4)
    >>> similarity = pnce.similarities.max_sim(negative_mask=valid)
    >>> round(float(pnce.info_nce(query, document, negatives, similarity=similarity, temperature=0.5)), 6)
    0.126928
    """
    normalize = check_bool("normalize", normalize)
    masks = (query_mask, document_mask, negative_mask)
    given = _given_masks(masks)
    xp = common_namespace(**given)[0] if given else None
    for name, mask in given.items():
        own = name == "negative_mask" and len(mask.shape) == 3  # noqa: PLR2004  (separate negatives for each query)
        axes = "(N, M, U)" if own else _TOKEN_MASKS[name]
        check_mask(xp, name, mask, shape_of(name, mask, axes, may_be_empty=True))
    return Similarity(_OfTokens(masks, normalize), TokenScores(0), wide=True)


@explained
def normalized(similarity: AnySimilarity, /) -> Similarity:
    r"""Return a similarity of embeddings scaled to unit length.

    .. math:: s\Big(\frac{x}{\lVert x \rVert}, \frac{y}{\lVert y \rVert}\Big)

    FaceNet uses ``normalized("neg_sq_euclidean")``, most metric-learning code ``normalized("neg_euclidean")``. A zero
    vector stays zero.

    Parameters
    ----------
    similarity : str, Similarity or callable
        A name, a similarity, or a function from (N, D), (K, D') to scores (N, K).

    Returns
    -------
    Similarity
        The similarity, for the `similarity` argument of any loss.

    Raises
    ------
    ValueError
        If the name is unknown.

    References
    ----------
    Schroff, Kalenichenko and Philbin (2015), "FaceNet: A Unified Embedding for Face Recognition and Clustering",
    arXiv:1503.03832, section 3.1.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, y, z = np.asarray([[3.0, 4.0]]), np.asarray([[0.6, 0.8]]), np.asarray([[0.0, 2.0]])
    >>> chordal = pnce.similarities.normalized("neg_sq_euclidean")
    >>> round(float(pnce.triplet(x, y, z, similarity=chordal, margin=0.5)), 6)
    0.1
    """
    inner = resolve(similarity)
    return inner._replace(prepare=_Normalized(inner.prepare), unit=inner.unit or inner.prepare is _dot)


@explained
def scaled_columns(similarity: AnySimilarity, factors: AnyArray, /) -> Similarity:
    r"""Return a similarity whose scores are multiplied by a factor per column.

    .. math:: s(x_i, y_j)\, f_j

    A factor is the inverse of a temperature per column, such as ProtoNCE's concentrations.

    Parameters
    ----------
    similarity : str, Similarity or callable
        A name, a similarity, or a function from (N, D), (K, D') to scores (N, K).
    factors : array, shape (K,)
        Factor of each column; differentiable.

    Returns
    -------
    Similarity
        The similarity, for the `similarity` argument of any loss.

    Raises
    ------
    TypeError
        If `factors` is not a real floating-point array.
    ValueError
        If the name is unknown, `factors` is not one-dimensional, or (when called) does not fit the columns.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> twice = pnce.similarities.scaled_columns("dot", np.asarray([2.0, 2.0, 2.0]))
    >>> round(float(pnce.info_nce(x, x, similarity=twice, temperature=1.0)), 6)
    0.239545
    """
    return _with_columns(similarity, "factors", factors)


@explained
def shifted_columns(similarity: AnySimilarity, offsets: AnyArray, /) -> Similarity:
    r"""Return a similarity with an offset per column added to its scores.

    .. math:: s(x_i, y_j) / \tau + o_j

    The offset is not divided by the temperature. An offset of :math:`-\log q_j`, with the sampling probability q of a
    candidate, corrects for popular candidates, which are negatives more often.

    Parameters
    ----------
    similarity : str, Similarity or callable
        A name, a similarity, or a function from (N, D), (K, D') to scores (N, K).
    offsets : array, shape (K,)
        Finite offset of each column, in nats; differentiable.

    Returns
    -------
    Similarity
        The similarity, for the `similarity` argument of any loss.

    Raises
    ------
    TypeError
        If `offsets` is not a real floating-point array.
    ValueError
        If the name is unknown, `offsets` is not one-dimensional, or (when called) does not fit the columns.

    See Also
    --------
    scaled_columns : Multiplies the scores.

    References
    ----------
    Yi et al. (2019), "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys 2019,
    equation 4.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, q = np.eye(3), np.asarray([0.5, 0.25, 0.25])
    >>> corrected = pnce.similarities.shifted_columns("dot", -np.log(q))
    >>> round(float(pnce.info_nce(x, x, similarity=corrected, temperature=1.0)), 6)
    0.594563
    """
    return _with_columns(similarity, "offsets", offsets)


class _OfPrepared(Record):
    """Preparation of rows only, for prepared columns; `unit`: the columns are unit vectors."""

    prepare: Prepare
    unit: bool

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        # The first column, of positives before a queue, and the last, in a queue the newest, stand for all.
        for end in (0, -1) if self.unit and not is_empty(y) else ():
            square = readable_entry(y[(*(end,) * (len(y.shape) - 1), ...)], _square_sum)
            if square is not None and square != 0 and abs(square - 1.0) > 0.05:  # noqa: PLR2004  (bfloat16 has 0.01)
                raise ValueError(
                    f"similarity: expected the columns that prepare returned with it, got a column of length "
                    f"{math.sqrt(square):.3g}; pass those, all of them prepared, or similarity='cosine'"
                )
        return self.prepare(x, y[:1, ...], scale)[0], (y,)


def _square_sum(xp: Namespace, x: Array) -> Array:
    return xp.sum(x * x)


@explained
def prepare(
    columns: ArrayOf[ArrayT], /, *, similarity: Literal["cosine", "dot"] | Similarity = "cosine"
) -> tuple[ArrayT, Similarity]:
    r"""Return columns prepared for repeated calls, and the similarity for them.

    Each call with the cosine similarity normalises all columns and upcasts 16-bit ones, a large part of the time if
    rows are few. For a fixed catalogue, this can be done once. The returned similarity expects all columns to be
    prepared, and rows not: losses whose rows are columns too, such as `nt_xent`, refuse it.

    Parameters
    ----------
    columns : array, shape (K, D)
        Embeddings of the columns, such as the keys of a frozen encoder; constants.
    similarity : {"cosine", "dot"} or Similarity, default: "cosine"
        One of these, or ``normalized("dot")``; see :doc:`/options`. Add offsets and factors of columns to the returned
        similarity by `similarities.shifted_columns` and `similarities.scaled_columns`.

    Returns
    -------
    array, shape (K, D)
        The prepared columns, without gradient, of the library and device of `columns`, in float32 or float64.
    Similarity
        Similarity of unprepared rows with prepared columns.

    Raises
    ------
    TypeError
        If `columns` is not a real floating-point array.
    ValueError
        If `columns` is not a matrix, or the similarity is not supported.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> rng = np.random.default_rng(0)
    >>> keys, query = rng.normal(size=(1000, 16)), rng.normal(size=(8, 16))
    >>> catalogue, cosine = pnce.prepare(keys)
    >>> loss = pnce.info_nce(query, catalogue, positives=np.arange(8), similarity=cosine)
    >>> bool(abs(loss - pnce.info_nce(query, keys, positives=np.arange(8))) < 1e-13)
    True
    >>> nearest = pnce.diagnostics.top_k(query, catalogue, 3, similarity=cosine)
    """
    chosen = resolve(similarity)
    xp, (columns,) = common_namespace(columns=columns)
    check_floating(xp, columns=columns)
    shape_of("columns", columns, "(K, D)")
    if not (chosen.inner_product and all(chosen.embedded)) or numbers_of_columns(chosen):
        raise ValueError(
            f'similarity: expected "cosine" or "dot", got {similarity!r}; offsets of columns come afterwards'
        )
    wide = upcast(xp, stop_gradient(columns))
    (prepared,) = chosen.prepare(wide[:1, ...], wide, 1.0)[1]
    return prepared, chosen._replace(prepare=_OfPrepared(chosen.prepare, chosen.unit), symmetric=False)


def resolve(similarity: AnySimilarity) -> Similarity:
    """Resolve a `similarity` argument.

    Parameters
    ----------
    similarity : str, Similarity or callable
        A name, a similarity, or a function from (N, D), (K, D') to scores (N, K).

    Returns
    -------
    Similarity
        The similarity.

    Raises
    ------
    TypeError
        If it is a factory that was not called.
    ValueError
        If it is neither a known name nor callable.

    Examples
    --------
    >>> import portable_nce as pnce
    >>> pnce.similarities.resolve("neg_euclidean")
    <similarity neg_euclidean: scores with a pullback>
    """
    if isinstance(similarity, Similarity):
        return similarity
    check_called("similarity", similarity, "similarities")
    if callable(similarity) and not isinstance(similarity, str):
        return Similarity(_scale_apart, _CriticScores(similarity))
    check_choice("similarity", similarity, NAMES)
    return _NAMED[str(similarity)]


def operands(similarity: Similarity, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
    """Operands of the scores. Their inner products do not overflow for finite embeddings."""
    return measured_operands(similarity, x, y, scale)[:2]


def measured_operands(similarity: Similarity, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands, float]:
    """Operands, and a bound of their inner products; infinite if unknown or for unit rows."""
    rows, columns = _prepared(similarity, x, y, scale)
    if isinstance(similarity.scores, PairFunction):
        return rows, columns, similarity.scores.bound(rows, columns, scale)
    if not similarity.inner_product or similarity.unit:
        return rows, columns, math.inf
    (x,), (y,) = rows, columns
    factors, bound = in_range(namespace_of(x, y), x, y)
    if factors is not None:
        x, y = x * factors[0], y * factors[1]
    return (x,), (y,), bound


def _prepared(similarity: Similarity, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
    """Operands of rows and columns: two tuples, of one array each for inner products."""
    made: Any = similarity.prepare(x, y, scale)
    both = made if isinstance(made, tuple) and len(made) == 2 else ()  # noqa: PLR2004
    if both and all(isinstance(side, tuple) and (len(side) == 1 or not similarity.inner_product) for side in both):
        for name, embeddings, side in zip(("rows", "columns"), (x, y), both, strict=True):
            count = embeddings.shape[-2]
            if any(not is_array(operand) or operand.shape[-2:][:1] != (count,) for operand in side):
                got = ", ".join(shape_or_type(operand) for operand in side)
                raise ValueError(f"prepare: expected arrays with {count} {name}, got {name} of {got}")
        checked = as_floating if similarity.inner_product else of_library
        rows, columns = (tuple([checked("prepare", operand, x) for operand in side]) for side in both)
        if similarity.inner_product:
            check_floating(namespace_of(x), rows=rows[0], columns=columns[0])
        return rows, columns
    wanted = "one array each" if similarity.inner_product else "arrays"
    got = f"({', '.join(type(side).__name__ for side in made)})" if isinstance(made, tuple) else type(made).__name__
    raise TypeError(f"prepare: expected two tuples of {wanted}, as in (x,), (y,), got {got}")


def _per_row(x: Array, scale: Any) -> Array:
    """Scale as a column (N, 1), so that it is sliced, and its gradient summed, with the rows."""
    xp = namespace_of(x)
    shape = (*x.shape[:-1], 1)
    if is_array(scale):
        own = len(scale.shape) == len(shape)  # one entry per row
        return xp.broadcast_to(scale if own else xp.reshape(scale, (1,) * len(shape)), shape)
    return xp.full(shape, scale, dtype=x.dtype, device=device_of(x))


def _dot(x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
    return (x * scale,), (y,)


def _cosine(x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
    return _dot(*_unit_rows(x, y), scale)


def _unit_rows(x: Array, y: Array) -> tuple[Array, Array]:
    """Normalised x and y; computed once if they are the same array."""
    unit = normalize(x)
    return unit, unit if y is x else normalize(y)


def _dot_scores(rows: Operands, columns: Operands) -> Array:
    xp = namespace_of(rows[0])
    return xp.matmul(rows[0], xp.matrix_transpose(columns[0]))


def _dot_pullback(rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
    xp = namespace_of(cotangent)
    return (xp.matmul(cotangent, columns[0]),), (xp.matmul(xp.matrix_transpose(cotangent), rows[0]),)


def _scale_apart(x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
    return (x, _per_row(x, scale)), (y,)


class Apart(Record):
    """Preparation whose rows are followed by the scale, as factors of the scores."""

    prepare: Prepare

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        rows, columns = self.prepare(x, y, 1.0)
        return (*rows, _per_row(x, scale)), columns


def _of_pairs(prepare: Prepare, function: Elementwise | None, *, distance: bool) -> Similarity:
    """Similarity whose scores are a `PairFunction`."""
    scores = PairFunction(function, distance)
    return Similarity(prepare, scores, _PullbackOf(scores))._replace(symmetric=True)


_DOT = Similarity(_dot, inner_product=True)._replace(symmetric=True, embedded=(True, True))
_NAMED: dict[str, Similarity] = {
    "dot": _DOT,
    "cosine": _DOT._replace(prepare=_cosine, unit=True),
    "neg_sq_euclidean": _of_pairs(_scale_apart, None, distance=True),
    "neg_euclidean": _of_pairs(_scale_apart, EUCLIDEAN, distance=True),
    "cauchy": _of_pairs(_scale_apart, CAUCHY, distance=True),
}
NAMES: tuple[SimilarityName, ...] = get_args(SimilarityName)
UNIT = _DOT._replace(unit=True, embedded=(False, False))
"""Similarity of rows that are already unit vectors."""


def is_cosine(similarity: Similarity) -> bool:
    """Whether a similarity is the inner product of normalised rows, which sweeps differentiate in closed form."""
    return similarity.prepare is _cosine


def is_dot(similarity: Similarity) -> bool:
    """Whether a similarity is the plain inner product of the embeddings."""
    return similarity.prepare is _dot and similarity.inner_product and not similarity.unit


def normalized_here(similarity: Similarity, x: Array, y: Array) -> tuple[Similarity, Array, Array]:
    """For cosines, unit rows and their similarity, so that each rank normalises its rows; else the arguments."""
    if not is_cosine(similarity):
        return similarity, x, y
    return UNIT, *_unit_rows(x, y)
