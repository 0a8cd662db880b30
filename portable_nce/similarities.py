r"""Similarities: from embeddings to scores.

A similarity is named by a string, made by a function of this module, or is any function of two arrays (N, D) and
(K, D') that returns the scores (N, K): a critic. What streams without an N × K matrix is a `Similarity`, which knows
its own pullback.

================== ===================================================
name               score of rows x, y at temperature τ
================== ===================================================
"dot"              :math:`x^\top y / \tau`
"cosine"           :math:`x^\top y / (\lVert x \rVert \lVert y \rVert \tau)`; 0 if either is zero
"neg_sq_euclidean" :math:`-\lVert x - y \rVert^2 / \tau`
"neg_euclidean"    :math:`-\lVert x - y \rVert / \tau`, with gradient 0 at distance 0
================== ===================================================
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias, get_args

from ._core.autodiff import stop_gradient
from ._core.checks import (
    check_bool,
    check_callable,
    check_called,
    check_choice,
    check_floating,
    check_mask,
    check_shape,
    shape_of,
)
from ._core.equality import EqualByContents
from ._core.namespace import device_of, enter, is_array, is_number, namespace_of
from ._core.numerics import in_range, normalize, normalize_both, safe_sqrt, upcast
from ._core.protocol import Array, Namespace
from ._core.registry import adapter_of
from ._core.types import AnyArray, Parameters, Result, SimilarityName

__all__ = [
    "NAMES",
    "Operands",
    "Pullback",
    "Scores",
    "Similarity",
    "bilinear",
    "max_sim",
    "normalized",
    "resolve",
    "scaled_columns",
    "shifted_columns",
]

Operands: TypeAlias = tuple[Array, ...]
Prepare: TypeAlias = Callable[[Array, Array, Any], tuple[Operands, Operands]]
Scores: TypeAlias = Callable[[Operands, Operands], Array]
Pullback: TypeAlias = Callable[[Operands, Operands, Array], tuple[Operands, Operands]]


class Similarity(EqualByContents):
    """Scores of rows against columns, in two steps, with the closed-form pullback of the second.

    Parameters
    ----------
    prepare : callable
        ``prepare(x, y, scale) -> (rows, columns)``: everything that costs O(N D): normalisation, projection, the scale
        (the inverse of the temperature: a Python float, a 0-d array, or an array (N, 1) where each row has its own, and
        to be multiplied into the rows). Differentiated as it stands. Each of the two
        tuples holds arrays whose second axis from the end runs over the rows, or over the columns, of the score matrix.
    scores : callable, optional
        ``scores(rows, columns) -> array``: the scores, shape (..., N, K). A function of the operands alone.
    pullback : callable, optional
        ``pullback(rows, columns, cotangent) -> (rows, columns)``: the cotangents of the operands (2-D), for the
        cotangent (N, K) of the scores. Array-API code, so that it can be differentiated again. Without it, the whole
        score matrix is held.
    wide : bool, default: False
        Whether `scores` holds an intermediate array of shape (N, K, D); tiles are chosen smaller.
    inner_product : bool, default: False
        Whether the scores are the inner products of the operands, one array (N, D) of the rows with one (K, D) of the
        columns. Then `scores` and `pullback` are known, and the losses are as fast as those of ``"dot"``.

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
        inner_product = check_bool("inner_product", inner_product)
        if inner_product and scores is None:
            scores, pullback = _dot_scores, _dot_pullback
        check_callable("scores", scores)
        if pullback is not None:
            check_callable("pullback", pullback)
        self.prepare = prepare
        self.scores: Any = scores
        self.pullback = pullback
        self.wide = check_bool("wide", wide)
        self.inner_product = inner_product
        self.symmetric = False  # whether the score of x with y is that of y with x
        self.unit = False  # whether the operands are unit rows, but for the scale
        # Whether the operand of rows, and that of columns, has the rows of the embeddings, each times a number; and how
        # many columns both have beyond these.
        self.embedded: tuple[bool, bool] = (False, False)
        self.beyond = 0

    def _contents(self) -> tuple[Any, ...]:
        return (self.prepare, self.scores, self.pullback, self.wide, self.inner_product)

    def transposed(self) -> Similarity:
        """Return the similarity of columns with rows, whose scores are the transpose.

        Returns
        -------
        Similarity
            The similarity, with the same preparation; its rows are the columns of this one.
        """
        if self.inner_product:
            return self
        pullback = None if self.pullback is None else _TransposedPullback(self.pullback)
        return Similarity(self.prepare, TransposedScores(self.scores), pullback, wide=self.wide)


AnySimilarity: TypeAlias = SimilarityName | Similarity | Callable[[Array, Array], Array]
"""What a `similarity` argument may be."""


class _Around(EqualByContents):
    """A function made of others."""

    __slots__ = ("inner",)

    def __init__(self, *inner: Any) -> None:
        self.inner = inner

    def _contents(self) -> tuple[Any, ...]:
        return self.inner


class TransposedScores(_Around):
    """Scores with rows and columns exchanged."""

    def __call__(self, rows: Operands, columns: Operands) -> Array:
        """The transpose of the scores."""
        scores = self.inner[0](columns, rows)
        return namespace_of(scores).matrix_transpose(scores)


class _TransposedPullback(_Around):
    """The pullback of `TransposedScores`."""

    def __call__(self, rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
        to_columns, to_rows = self.inner[0](columns, rows, namespace_of(cotangent).matrix_transpose(cotangent))
        return to_rows, to_columns


class _ScaledScores(_Around):
    """Scores times the last operand of the columns."""

    def __call__(self, rows: Operands, columns: Operands) -> Array:
        scores = self.inner[0](rows, columns[:-1])
        return scores * namespace_of(scores).matrix_transpose(columns[-1])


class _ScaledPullback(_Around):
    """The pullback of `_ScaledScores`, of the scores and their pullback."""

    def __call__(self, rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
        xp = namespace_of(cotangent)
        scores, pullback = self.inner
        own, factors = columns[:-1], xp.matrix_transpose(columns[-1])
        to_rows, to_columns = pullback(rows, own, cotangent * factors)
        to_factors = xp.sum(_products(xp, scores(rows, own), cotangent), axis=0)
        return to_rows, (*to_columns, xp.expand_dims(to_factors, axis=1))


class _ShiftedScores(_Around):
    """Scores plus the last operand of the columns."""

    def __call__(self, rows: Operands, columns: Operands) -> Array:
        scores = self.inner[0](rows, columns[:-1])
        return scores + namespace_of(scores).matrix_transpose(columns[-1])


class _ShiftedPullback(_Around):
    """The pullback of `_ShiftedScores`, of the pullback of the scores."""

    def __call__(self, rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
        to_rows, to_columns = self.inner[0](rows, columns[:-1], cotangent)
        to_offsets = namespace_of(cotangent).sum(cotangent, axis=0)
        return to_rows, (*to_columns, namespace_of(to_offsets).expand_dims(to_offsets, axis=1))


class _Bilinear(_Around):
    """The preparation ``(x W / τ, y)``."""

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        xp, (x, y, matrix) = enter(x=x, y=y, weight=self.inner[0])
        if (x.shape[-1], y.shape[-1]) != tuple(matrix.shape):
            message = (
                f"weight: expected shape {(x.shape[-1], y.shape[-1])} for embeddings of these widths, got "
                f"{tuple(matrix.shape)}"
            )
            raise ValueError(message)
        return (xp.matmul(x, xp.astype(matrix, x.dtype)) * scale,), (y,)


class _Normalized(_Around):
    """A preparation, of unit rows."""

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        prepared: tuple[Operands, Operands] = self.inner[0](*_unit_rows(x, y), scale)
        return prepared


class _OfColumns(_Around):
    """A preparation, and a number of each column; of an inner product or not."""

    name = ""

    def prepared(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands, Array]:
        """The operands, and the numbers as a column."""
        prepare, numbers, _ = self.inner
        xp, (x, y, own) = enter(x=x, y=y, **{self.name: numbers})
        check_shape(self.name, own, (y.shape[-2],))
        rows, columns = prepare(x, y, scale)
        return rows, columns, xp.expand_dims(xp.astype(own, x.dtype), axis=1)


class _Scaled(_OfColumns):
    """A preparation, with the factors of the columns as one operand more, or multiplied into the only one."""

    name = "factors"

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        rows, columns, own = self.prepared(x, y, scale)
        return rows, (columns[0] * own,) if self.inner[2] else (*columns, own)


class _Shifted(_OfColumns):
    """A preparation, with the offsets of the columns as one operand more, or one column more of the only one."""

    name = "offsets"

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        rows, columns, own = self.prepared(x, y, scale)
        if not self.inner[2]:
            return rows, (*columns, own)
        xp = namespace_of(rows[0], own)
        one = stop_gradient(xp.ones_like(rows[0][..., :1]))
        return (xp.concat([rows[0], one], axis=-1),), (xp.concat([columns[0], own], axis=-1),)


def _checked_numbers(name: str, numbers: Array) -> Array:
    """Numbers of columns, in the dtype to compute in."""
    xp, (numbers,) = enter(**{name: numbers})
    check_floating(xp, **{name: numbers})
    shape_of(name, numbers, "(K)")
    return upcast(xp, numbers)


def numbers_of_columns(similarity: Similarity) -> tuple[tuple[str, Array], ...]:
    """The factors and offsets that a similarity has for each column, each with its name."""
    found: list[tuple[str, Array]] = []
    prepare: Any = similarity.prepare
    while isinstance(prepare, (_Normalized, _OfColumns)):
        found.extend([(prepare.name, prepare.inner[1])] if isinstance(prepare, _OfColumns) else [])
        prepare = prepare.inner[0]
    return tuple(found)


def with_numbers(similarity: Similarity, change: Callable[[Array], Array]) -> Similarity:
    """The similarity with other numbers of the columns, if it has any."""
    if not numbers_of_columns(similarity):
        return similarity
    made = Similarity(
        _with_numbers(similarity.prepare, change),
        None if similarity.inner_product else similarity.scores,
        None if similarity.inner_product else similarity.pullback,
        wide=similarity.wide,
        inner_product=similarity.inner_product,
    )
    made.symmetric, made.unit = similarity.symmetric, similarity.unit
    made.embedded, made.beyond = similarity.embedded, similarity.beyond
    return made


def _with_numbers(prepare: Prepare, change: Callable[[Array], Array]) -> Prepare:
    if isinstance(prepare, _Normalized):
        return _Normalized(_with_numbers(prepare.inner[0], change))
    if isinstance(prepare, _OfColumns):
        inner, numbers, inner_product = prepare.inner
        made: Any = type(prepare)(_with_numbers(inner, change), change(numbers), inner_product)
        changed: Prepare = made
        return changed
    return prepare


class _OfTokens(_Around):
    """The preparation of `max_sim`, before it is known how many features a token has."""

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        del scale
        message = (
            f"similarity: expected another than max_sim here, got arrays of shapes {tuple(x.shape)} and "
            f"{tuple(y.shape)}; it is for contrast, info_nce, clip, siglip and two_tower, and in no other similarity"
        )
        raise ValueError(message)

    def flattened(self, named: dict[str, Any]) -> tuple[Similarity, list[Any]]:
        """The similarity of token embeddings of one width, and the arrays of tokens as arrays of rows.

        The tokens (..., T, D) of a row become one row (..., T D + T): their features, and a 1 or 0 for each that says
        whether it is valid, so that masks go with the embeddings wherever these go.
        """
        *given, unit = self.inner
        masks = _given_masks(*given)
        xp, entered = enter(**named, **masks)
        arrays, masks = entered[: len(named)], dict(zip(masks, entered[len(named) :], strict=True))
        query_mask, document_mask = masks.get("query_mask"), masks.get("document_mask")
        check_floating(xp, **dict(zip(named, arrays, strict=True)))
        (name, query), *documents = zip(named, arrays, strict=True)
        _, tokens, features = shape_of(name, query, "(N, T, D)")
        if query_mask is not None:
            check_mask(xp, "query_mask", query_mask, (query.shape[0], tokens))
        flat = [_with_valid(xp, query, query_mask)]
        rows = 0
        for k, (name, document) in enumerate(documents):
            each = k > 0 and len(document.shape) == 4  # noqa: PLR2004  (negatives of each query)
            *_, tokens, width = shape_of(name, document, "(N, M, U, D)" if each else "(K, U, D)")
            if width != features:
                message = f"{name}: expected tokens of {features} features, got shape {tuple(document.shape)}"
                raise ValueError(message)
            if each and document_mask is not None:
                message = f"document_mask: expected None with {name} of each query, got an array"
                raise ValueError(message)
            mask = None
            if document_mask is not None:
                mask = document_mask[rows : rows + document.shape[0], ...]
                check_shape("document_mask", mask, (document.shape[0], tokens))
                rows += document.shape[0]
            flat.append(_with_valid(xp, document, mask))
        if document_mask is not None:
            check_mask(xp, "document_mask", document_mask, (rows, document_mask.shape[1]))
        scores = TokenScores(features)
        made = Similarity(_Tokens(features, unit), scores, _TokenPullback(scores), wide=True)
        made.embedded = (True, True)
        return made, flat


def _given_masks(query_mask: Array | None, document_mask: Array | None) -> dict[str, Array]:
    """The masks that are not None, by name."""
    masks = {"query_mask": query_mask, "document_mask": document_mask}
    return {name: mask for name, mask in masks.items() if mask is not None}


def _with_valid(xp: Namespace, tokens: Array, mask: Array | None) -> Array:
    """Tokens (..., T, D) in one row, and which of them are valid."""
    *leading, count, features = tokens.shape
    valid = xp.ones_like(tokens[..., 0]) if mask is None else xp.astype(mask, tokens.dtype)
    with adapter_of(tokens).full_precision(tokens):
        return xp.concat([xp.reshape(tokens, (*leading, count * features)), stop_gradient(valid)], axis=-1)


class _Tokens(_Around):
    """The preparation of rows that hold tokens: these, 0 where they are not valid, and which are valid."""

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        rows, columns = self.split(x), self.split(y)
        return (rows[0] * scale, rows[1]), columns

    def split(self, x: Array) -> tuple[Array, Array]:
        """The features that are compared of the tokens of each row, and 1 or 0 for each token."""
        features, unit = self.inner
        tokens, valid = self.valid_tokens(x)
        if not unit:
            return tokens, valid
        xp, shape = namespace_of(x), (*valid.shape, features)
        return xp.reshape(normalize(xp.reshape(tokens, shape)), tuple(tokens.shape)), valid

    def valid_tokens(self, x: Array) -> tuple[Array, Array]:
        """The features of the tokens of each row, 0 of those that are not valid, and 1 or 0 for each token."""
        features, _ = self.inner
        xp = namespace_of(x)
        count = x.shape[-1] // (features + 1)
        tokens = xp.reshape(x[..., : count * features], (*x.shape[:-1], count, features))
        valid = stop_gradient(x[..., count * features :])
        tokens = xp.where(xp.expand_dims(valid != 0, axis=-1), tokens, xp.zeros_like(tokens))
        return xp.reshape(tokens, (*x.shape[:-1], count * features)), valid


class TokenScores(_Around):
    """``Σ_t max_u q_t · d_u``, -inf where either side has no tokens; of equal maxima the first, in derivatives too.

    The products of the tokens may be computed by others. The number of features of a token is inside.
    """

    def __call__(self, rows: Operands, columns: Operands) -> Array:
        """The scores of all rows against all columns."""
        q, d = (self.tokens(x, operands) for x, operands in ((rows[0], rows), (columns[0], columns)))
        xp = namespace_of(q, d)
        return self.of_products(xp.matmul(q, xp.matrix_transpose(d)), rows, columns)[0]

    def tokens(self, x: Array, operands: Operands) -> Array:
        """The rows (..., N, T D) of an operand, or of an array like it, in rows of tokens (..., N T, D)."""
        xp, shape, features = namespace_of(x), operands[1].shape, self.inner[0]
        # By way of (N, T, D): Dask's reshape merges or splits axes, and (N, T D) to (N T, D) is both.
        apart = xp.reshape(x, (*shape, features))
        return xp.reshape(apart, (*shape[:-2], shape[-2] * shape[-1], features))

    def of_products(self, products: Array, rows: Operands, columns: Operands) -> tuple[Array, Callable[[Array], Array]]:
        """The scores, of the products (..., N T, K U) of all tokens; and what gives the cotangent of the products.

        That is c_nk where document k's token u is the first maximum of token t of query n, and 0 elsewhere.
        """
        of_query, of_document = rows[1], columns[1]
        xp = namespace_of(products)
        flat = tuple(products.shape)
        (n, t), (k, u) = (x.shape[-2:] for x in (of_query, of_document))
        products = xp.reshape(products, (*flat[:-2], n, t, k, u))
        valid = xp.expand_dims(xp.expand_dims(of_document != 0, axis=-3), axis=-4)
        candidates = xp.where(valid, stop_gradient(products), -math.inf)
        where = xp.expand_dims(xp.argmax(candidates, axis=-1), axis=-1)
        first = where == xp.astype(xp.arange(u, device=device_of(products)), where.dtype)
        first = xp.logical_and(first, valid)
        live_rows, live_columns = (xp.any(x != 0, axis=-1) for x in (of_query, of_document))
        live = xp.logical_and(xp.expand_dims(live_rows, axis=-1), xp.expand_dims(live_columns, axis=-2))
        best = xp.sum(xp.where(first, products, xp.zeros_like(products)), axis=-1)  # (..., N, T, K)

        def spread(cotangent: Array) -> Array:
            cotangent = xp.where(live, cotangent, xp.zeros_like(cotangent))
            each = xp.expand_dims(xp.expand_dims(cotangent, axis=-1), axis=-3)
            return xp.reshape(xp.where(first, each, xp.zeros_like(each)), flat)

        return xp.where(live, xp.sum(best, axis=-2), -math.inf), spread

    def of_each_row(self, x: Array, operands: Operands) -> Array:
        """Such rows of tokens, or one number of each, as an array (..., N, T D) or (..., N, T)."""
        xp, shape = namespace_of(x), tuple(operands[1].shape)
        if len(x.shape) < len(shape):
            return xp.reshape(x, shape)
        return xp.reshape(xp.reshape(x, (*shape, x.shape[-1])), (*shape[:-1], shape[-1] * x.shape[-1]))

    def cotangents(self, of_tokens: Array, operands: Operands) -> Operands:
        """The cotangents of the operands of one side, of those of its tokens."""
        return self.of_each_row(of_tokens, operands), namespace_of(of_tokens).zeros_like(operands[1])


def tokens_of(similarity: Similarity, x: Array) -> Array:
    """The tokens of the embeddings of a similarity that `TokenScores` are of, 0 where they are not valid."""
    prepare: Any = similarity.prepare
    tokens, _ = prepare.valid_tokens(x)
    return tokens


def number_of_flags(similarity: Any, x: Array) -> int:
    """How many of the last columns of embeddings say which tokens are valid, 0 for embeddings without tokens."""
    prepare = getattr(similarity, "prepare", None)
    return int(x.shape[-1]) // (prepare.inner[0] + 1) if isinstance(prepare, _Tokens) else 0


def is_of_unit_tokens(similarity: Similarity) -> bool:
    """Whether those tokens are compared by their cosines."""
    prepare: Any = similarity.prepare
    return bool(prepare.inner[1])


class _TokenPullback(_Around):
    """The pullback of `TokenScores`, which are inside."""

    def __call__(self, rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
        scores: TokenScores = self.inner[0]
        q, d = (scores.tokens(operands[0], operands) for operands in (rows, columns))
        xp = namespace_of(q, d)
        spread = scores.of_products(xp.matmul(q, xp.matrix_transpose(d)), rows, columns)[1]
        pull = spread(cotangent)
        to_q, to_d = xp.matmul(pull, d), xp.matmul(xp.matrix_transpose(pull), q)
        return scores.cotangents(to_q, rows), scores.cotangents(to_d, columns)


def takes_tokens(loss: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A loss whose arrays before the options are embeddings, and may be arrays of tokens with `max_sim`."""
    names = inspect.getfullargspec(loss).args

    @wraps(loss)
    def flattening(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        similarity: Any = options.get("similarity")
        if not isinstance(similarity, Similarity) or not isinstance(similarity.prepare, _OfTokens):
            return loss(*args, **options)
        given: dict[str, Any] = {**options, **dict(zip(names, args, strict=False))}
        named = {name: given[name] for name in names if given.get(name) is not None}
        given["similarity"], arrays = similarity.prepare.flattened(named)
        given |= dict(zip(named, arrays, strict=True))
        flat = [given.pop(name) for name in names[: len(args)]]
        untyped: Any = loss
        result: Result = untyped(*flat, **given)
        return result

    return flattening


class _Critic(_Around):
    """The preparation of embeddings for a function of two arrays."""

    def __call__(self, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
        return (x, _per_row(x, scale)), (y,)


class _CriticScores(_Around):
    """The scores that a function of two arrays gives, checked."""

    def __call__(self, rows: Operands, columns: Operands) -> Array:
        scores = self.inner[0](rows[0], columns[0])
        expected = (*rows[0].shape[:-1], columns[0].shape[-2])
        if not is_array(scores) or tuple(scores.shape) != expected:
            got = f"shape {tuple(scores.shape)}" if is_array(scores) else type(scores).__name__
            message = f"similarity: expected a function that returns scores of shape {expected}, got {got}"
            raise ValueError(message)
        xp, (_, scale, scores) = enter(embeddings=rows[0], scale=rows[1], similarity=scores)
        check_floating(xp, similarity=scores)
        return upcast(xp, scores) * scale


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
    xp, (weight,) = enter(weight=weight)
    check_floating(xp, weight=weight)
    shape_of("weight", weight, "(D, D')")
    weight = upcast(xp, weight)

    made = Similarity(_Bilinear(weight), inner_product=True)
    made.embedded = (False, True)
    return made


def max_sim(
    *, query_mask: AnyArray | None = None, document_mask: AnyArray | None = None, normalize: bool = True
) -> Similarity:
    r"""Return ColBERT's similarity of token embeddings, late interaction: each query token finds its best match.

    .. math:: s(q, d) = \frac1\tau \sum_{t} \max_{u}\, q_t^\top d_u

    over the valid tokens t of the query and u of the document. It is for `contrast`, `info_nce`, `clip`, `siglip` and
    `two_tower`, which then take arrays of tokens, (N, T, D) for (N, D) and (K, U, D) for (K, D); the rows are queries
    and the columns documents. It is not symmetric: with ``symmetric=True`` both directions use the same
    scores, whose maximum is over the tokens of the document.

    Where several tokens of a document are the best match, the first has all of the gradient. A query or document
    without valid tokens has scores of -inf, which take no part: such a query does not count, nor does one whose own
    document is empty.

    Parameters
    ----------
    query_mask : array of bool, shape (N, T), optional
        Valid tokens of the queries, the first array of the loss; all by default. What others hold has no effect. Where
        a loss has one array alone, it marks the tokens on both sides.
    document_mask : array of bool, shape (K, U), optional
        Valid tokens of the documents. With further negatives (of `info_nce` and `two_tower`, with as many tokens each),
        K counts the positives and then these. Negatives of each query, (N, M, U, D), cannot be masked.
    normalize : bool, default: True
        Whether tokens are scaled to unit length first, as ColBERT's are, so that :math:`q_t^\top d_u` is a cosine.

    Returns
    -------
    Similarity
        The similarity, for the `similarity` argument of the losses named.

    Raises
    ------
    TypeError
        If a mask is not a boolean array.
    ValueError
        If a mask is not a matrix, or (when called) does not fit the tokens, or tokens of queries and documents differ
        in their features.

    Notes
    -----
    Blocks of rows are chosen as if a pair took U · D numbers; it takes T · U. At least one query is compared with all
    documents at once, which takes some copies of K · T · U numbers.

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
    """
    normalize = check_bool("normalize", normalize)
    masks = _given_masks(query_mask, document_mask)
    xp = enter(**masks)[0] if masks else None
    for name, mask in masks.items():
        check_mask(xp, name, mask, shape_of(name, mask, "(N, T)" if name == "query_mask" else "(K, U)"))
    return Similarity(_OfTokens(query_mask, document_mask, normalize), TokenScores(0), wide=True)


def normalized(similarity: AnySimilarity, /) -> Similarity:
    r"""Return a similarity of the directions alone: embeddings are scaled to unit length before it sees them.

    .. math:: s\Big(\frac{x}{\lVert x \rVert}, \frac{y}{\lVert y \rVert}\Big)

    FaceNet's distance is ``normalized("neg_sq_euclidean")``, that of most metric-learning code
    ``normalized("neg_euclidean")``. A zero vector stays zero.

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

    made = Similarity(
        _Normalized(inner.prepare), inner.scores, inner.pullback, wide=inner.wide, inner_product=inner.inner_product
    )
    made.symmetric = inner.symmetric
    made.unit = inner.unit or inner.prepare is _dot
    made.embedded, made.beyond = inner.embedded, inner.beyond
    return made


def scaled_columns(similarity: AnySimilarity, factors: AnyArray, /) -> Similarity:
    r"""Return a similarity whose score against column j is multiplied by a factor of that column.

    .. math:: s(x_i, y_j)\, f_j

    A factor is the inverse of a temperature of the column's own, as ProtoNCE's concentrations are.

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
    inner = resolve(similarity)
    prepare = _Scaled(inner.prepare, _checked_numbers("factors", factors), inner.inner_product)
    if inner.inner_product:
        made = Similarity(prepare, inner_product=True)
        made.embedded, made.beyond = inner.embedded, inner.beyond
        return made
    pullback = None if inner.pullback is None else _ScaledPullback(inner.scores, inner.pullback)
    return Similarity(prepare, _ScaledScores(inner.scores), pullback, wide=inner.wide)


def shifted_columns(similarity: AnySimilarity, offsets: AnyArray, /) -> Similarity:
    r"""Return a similarity to whose score against column j an offset of that column is added.

    .. math:: s(x_i, y_j) / \tau + o_j

    The offset is not divided by the temperature. With :math:`-\log q_j`, the logarithm of the probability with which a
    candidate comes into a batch, it makes up for popular candidates being negatives more often.

    Parameters
    ----------
    similarity : str, Similarity or callable
        A name, a similarity, or a function from (N, D), (K, D') to scores (N, K).
    offsets : array, shape (K,)
        Offset of each column, in nats; differentiable. They have to be finite.

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
    scaled_columns : Multiplies instead.

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
    inner = resolve(similarity)
    prepare = _Shifted(inner.prepare, _checked_numbers("offsets", offsets), inner.inner_product)
    if inner.inner_product:
        made = Similarity(prepare, inner_product=True)
        made.embedded, made.beyond = inner.embedded, inner.beyond + 1
        return made
    pullback = None if inner.pullback is None else _ShiftedPullback(inner.pullback)
    return Similarity(prepare, _ShiftedScores(inner.scores), pullback, wide=inner.wide)


def resolve(similarity: AnySimilarity) -> Similarity:
    """The similarity that a `similarity` argument means.

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
        If it is a function that makes one of these, or no function.
    ValueError
        If the name is unknown.

    Examples
    --------
    >>> import portable_nce as pnce
    >>> pnce.similarities.resolve("neg_euclidean").wide
    True
    """
    if isinstance(similarity, Similarity):
        return similarity
    check_called("similarity", similarity, "similarities")
    if callable(similarity) and not isinstance(similarity, str):
        return Similarity(_Critic(similarity), _CriticScores(similarity))
    check_choice("similarity", similarity, NAMES)
    return _NAMED[str(similarity)]


def operands(similarity: Similarity, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
    """What the scores are a function of; inner products of these do not overflow where the embeddings are finite."""
    return measured_operands(similarity, x, y, scale)[:2]


def measured_operands(similarity: Similarity, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands, bool]:
    """The same, and whether squares of the operands are known not to overflow either."""
    rows, columns = _prepared(similarity, x, y, scale)
    if not similarity.inner_product or similarity.unit:
        return rows, columns, False
    (x,), (y,) = rows, columns
    x, y, squarable = in_range(namespace_of(x, y), x, y)
    return (x,), (y,), squarable


def _prepared(similarity: Similarity, x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
    """The operands of rows and columns, checked to be two tuples, of one array each for inner products."""
    made: Any = similarity.prepare(x, y, scale)
    both = made if isinstance(made, tuple) and len(made) == 2 else ()  # noqa: PLR2004
    if both and all(isinstance(side, tuple) and (len(side) == 1 or not similarity.inner_product) for side in both):
        return made
    wanted = "one array each" if similarity.inner_product else "arrays"
    got = f"({', '.join(type(side).__name__ for side in made)})" if isinstance(made, tuple) else type(made).__name__
    message = f"prepare: expected two tuples of {wanted}, as in (x,), (y,), got {got}"
    raise TypeError(message)


def _per_row(x: Array, scale: Any) -> Array:
    """The scale as a column, so that each row of a tile brings its own and its gradient is summed with the rows'."""
    xp = namespace_of(x)
    shape = (*x.shape[:-1], 1)
    if is_array(scale):
        own = len(scale.shape) == len(shape)  # a number for each row
        return xp.broadcast_to(scale if own else xp.reshape(scale, (1,) * len(shape)), shape)
    return xp.full(shape, scale, dtype=x.dtype, device=device_of(x))


def _dot(x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
    return (x * scale,), (y,)


def _cosine(x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
    both, needs_gradient = y is not x and adapter_of(x).mode == "eager", adapter_of(x).needs_gradient
    # One node of a tape, for small batches; but a constant queue is to need no gradient as `x` does.
    if both and x.shape == y.shape and is_number(scale) and needs_gradient(x) == needs_gradient(y):
        rows, columns = normalize_both(x, y, float(scale))
        return (rows,), (columns,)
    return _dot(*_unit_rows(x, y), scale)


def _unit_rows(x: Array, y: Array) -> tuple[Array, Array]:
    """Both normalized, and what is contrasted with itself once."""
    unit = normalize(x)
    return unit, unit if y is x else normalize(y)


def _dot_scores(rows: Operands, columns: Operands) -> Array:
    xp = namespace_of(rows[0])
    return xp.matmul(rows[0], xp.matrix_transpose(columns[0]))


def _dot_pullback(rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
    xp = namespace_of(cotangent)
    return (xp.matmul(cotangent, columns[0]),), (xp.matmul(xp.matrix_transpose(cotangent), rows[0]),)


def _euclidean(x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
    return (x, _per_row(x, scale)), (y,)


def _differences(rows: Operands, columns: Operands) -> Array:
    """``x - y`` for every pair. The expansion 2xy - x² - y² would cancel for close pairs and miss zero distances."""
    xp = namespace_of(rows[0])
    x, y = xp.expand_dims(rows[0], axis=-2), xp.expand_dims(columns[0], axis=-3)
    differences = x - y
    if adapter_of(x).mode == "eager":
        return differences
    # A compiler may fuse the last product of x or y into the difference, as fma(a, b, -y), which rounds once instead of
    # twice: the difference of equal numbers is then the rounding of y. (XLA does, on CPUs, through its barriers too.)
    return differences - stop_gradient(xp.where(x == y, differences, xp.zeros_like(differences)))


def _sq_euclidean_scores(rows: Operands, columns: Operands) -> Array:
    xp = namespace_of(rows[0])
    differences = _differences(rows, columns)
    return -xp.sum(differences * differences, axis=-1) * rows[1]


def _sq_euclidean_pullback(rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
    xp = namespace_of(cotangent)
    differences = _differences(rows, columns)
    squares = xp.sum(differences * differences, axis=-1)
    pull = xp.expand_dims(cotangent * rows[1] * -2.0, axis=-1) * differences
    scale = _sum_of_products(xp, -squares, cotangent)
    return (xp.sum(pull, axis=1), scale), (-xp.sum(pull, axis=0),)


def _euclidean_scores(rows: Operands, columns: Operands) -> Array:
    xp = namespace_of(rows[0])
    differences = _differences(rows, columns)
    return -safe_sqrt(xp, xp.sum(differences * differences, axis=-1)) * rows[1]


def _euclidean_pullback(rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
    xp = namespace_of(cotangent)
    differences = _differences(rows, columns)
    distances = safe_sqrt(xp, xp.sum(differences * differences, axis=-1))
    apart = xp.where(distances == 0, xp.ones_like(distances), distances)
    pull = xp.expand_dims(-cotangent * rows[1] / apart, axis=-1) * differences
    scale = _sum_of_products(xp, -distances, cotangent)
    return (xp.sum(pull, axis=1), scale), (-xp.sum(pull, axis=0),)


def _sum_of_products(xp: Namespace, scores: Array, cotangent: Array) -> Array:
    """The cotangent of each row's scale."""
    return xp.sum(_products(xp, scores, cotangent), axis=1, keepdims=True)


def _products(xp: Namespace, scores: Array, cotangent: Array) -> Array:
    """Scores times their cotangents; one that overflowed takes no part, and brings no 0 times infinity.

    A finite score stays even where its cotangent is 0: it is the derivative by the cotangent.
    """
    dead = xp.logical_and(cotangent == 0, xp.logical_not(xp.isfinite(scores)))
    return xp.where(dead, xp.zeros_like(scores), scores) * cotangent


_NAMED: dict[str, Similarity] = {
    "dot": Similarity(_dot, inner_product=True),
    "cosine": Similarity(_cosine, inner_product=True),
    "neg_sq_euclidean": Similarity(_euclidean, _sq_euclidean_scores, _sq_euclidean_pullback, wide=True),
    "neg_euclidean": Similarity(_euclidean, _euclidean_scores, _euclidean_pullback, wide=True),
}
for _name in ("dot", "cosine"):
    _NAMED[_name].symmetric, _NAMED[_name].embedded = True, (True, True)
_NAMED["cosine"].unit = True
NAMES: tuple[SimilarityName, ...] = get_args(SimilarityName)
UNIT = Similarity(_dot, inner_product=True)
"""That of rows which are unit vectors already."""
UNIT.symmetric = UNIT.unit = True


def normalized_here(similarity: Similarity, x: Array, y: Array) -> tuple[Similarity, Array, Array]:
    """Rows that need no more than their inner products, so that each is normalized where it is; others as they are."""
    if similarity is not _NAMED["cosine"]:
        return similarity, x, y
    return UNIT, *_unit_rows(x, y)
