"""Diagnostics of contrastive learning, cheap enough for every step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ._call import same_width
from ._core.autodiff import stop_gradient
from ._core.calls import programmed
from ._core.checks import (
    all_entries,
    check_block_size,
    check_bool,
    check_choice,
    check_floating,
    check_indices,
    check_mask,
    check_number,
    check_shape,
    check_whole_number,
    indices_of,
    least,
    readable_entry,
    refuses_other_names,
    row_weights,
    shape_of,
    warn,
    warn_of_negative,
)
from ._core.logsumexp import exponentials
from ._core.namespace import common_namespace, device_of, namespace_of
from ._core.numerics import normalize, sum_to_scalar, upcast
from ._core.protocol import Array
from ._core.ranks import RankReport, Ranks, Shards, agree, end_exchange, propagates_errors
from ._core.reduction import REDUCTIONS, Reduction, finish
from ._core.registry import adapter_of
from ._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, ReductionName
from ._execution.choice import statistics
from ._execution.inputs import Inputs
from ._execution.live import counted_by, zeroed
from ._execution.matrix import ScoreMatrix, matrix_of_scores
from ._execution.search import Measure, highest, search, taken
from ._execution.sets import OnePositive
from .from_scores import ScorePairs, enter_scores
from .objectives.softmax import EVERY_INFO_NCE
from .pairings import Members, Pairing, Tile, of_positives
from .similarities import AnySimilarity, resolve, takes_tokens

__all__ = [
    "TopK",
    "alignment",
    "effective_sample_size",
    "headroom",
    "mean_reciprocal_rank",
    "recall_at",
    "top_k",
    "top_k_accuracy",
    "uniformity",
]

__dir__ = __all__.copy  # what completion offers

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = refuses_other_names(__name__)


@programmed
def effective_sample_size(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    normalized: bool = False,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the effective number of negatives that carry the gradient of a row.

    .. math:: \mathrm{ESS}_i = \frac{1}{\sum_{j \in Q(i)} W_{ij}^2}, \qquad
        W_{ij} = \frac{e^{g_{ij}}}{\sum_{l \in Q(i)} e^{g_{il}}},

    between 1 (one negative has all the weight) and the number of negatives (equal weights).

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, temperature included. A score of -inf masks its pair, positives included.
    positives : array of int (N,) or of bool (N, K), optional
        Positives of each row; the diagonal by default, which requires K ≥ N. Out-of-range indices raise for NumPy and
        eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    normalized : bool, default: False
        Whether to divide by the number of negatives of the row.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a negative, weighted sum, or the weighted values of the rows, 0 for rows
        without negatives.

    Returns
    -------
    array
        Effective sample size (a count; with `normalized` a fraction): 0-d, or shape (N,) for reduction "none", of the
        library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Chen et al. (2021), "Simpler, Faster, Stronger: Breaking The log-K Curse On Contrastive Learners With FlatNCE",
    arXiv:2107.01152.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.diagnostics.effective_sample_size(np.eye(5))
    array(4.)
    """
    check_choice("reduction", reduction, REDUCTIONS)
    normalized = check_bool("normalized", normalized)
    xp, matrix, pairing, mask, weights = enter_scores(scores, positives, mask, weights, weighted=False)
    dtype = matrix.dtype
    matrix = upcast(xp, matrix)
    weights = row_weights(xp, weights, matrix.shape[0], matrix)
    whole = matrix_of_scores(matrix, pairing, mask)
    known = whole.one_positive()
    if known is None:
        negatives = xp.where(whole.sets()[1], matrix, -math.inf)
    else:
        negatives = OnePositive.of(Inputs((matrix,), **known)).negatives(matrix)
    found = adapter_of(negatives).softmax(negatives)
    if found is None:
        sums, terms = exponentials(xp, negatives, negatives != -math.inf)
        total = sums.total
    else:
        _, total, terms, factor = found
        total = total / factor  # the sum of the terms
    squares = adapter_of(terms).row_dots(terms, terms)
    counted = squares != 0
    size = total * total / xp.where(counted, squares, xp.ones_like(squares))
    if normalized:
        number = adapter_of(negatives).count_along(negatives != -math.inf, 1, matrix.dtype)
        size = size / xp.where(number > 0, number, xp.ones_like(number))
    return finish(xp, Reduction(reduction, weights).of_values(size, counted), dtype, reduction)


@programmed
def headroom(scores: ArrayOf[ArrayT], /, *, positives: AnyArray | None = None, mask: AnyArray | None = None) -> ArrayT:
    r"""Return the distance of the InfoNCE bound to its ceiling.

    .. math:: \log N - \hat I_{\mathrm{InfoNCE}}

    Near 0 the bound is saturated, and a larger batch is needed.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. Rows without a positive or without a negative do not count. The ceiling of a
        row is the logarithm of its number of included columns.

    Returns
    -------
    array
        Headroom in nats, 0-d, of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with N ≥ K.

    References
    ----------
    van den Oord, Li and Vinyals (2018), "Representation Learning with Contrastive Predictive Coding",
    arXiv:1807.03748, appendix A.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.diagnostics.headroom(8.0 * np.eye(4))
    array(0.00100...)
    """
    pairs = ScorePairs.of(scores, positives, mask, least=1)
    # The difference, simplified: the logarithms of N cancel.
    return pairs.finish(pairs.loss(EVERY_INFO_NCE, "mean"))


@programmed
def alignment(x: ArrayOf[ArrayT], y: AnyArray, /, *, power: float = 2.0, weights: AnyArray | None = None) -> ArrayT:
    r"""Return the mean power of the distances of positive pairs on the unit sphere.

    .. math:: \frac1N \sum_i \lVert \hat x_i - \hat y_i \rVert^\alpha, \qquad \hat x = x / \lVert x \rVert

    Parameters
    ----------
    x, y : array, shape (N, D)
        Embeddings; row i of one belongs to row i of the other.
    power : float, default: 2.0
        Power α > 0 of the distance.
    weights : array, shape (N,), optional
        Weights of the pairs.

    Returns
    -------
    array
        Alignment, 0-d, of the library, dtype and device of `x`; 0 is best.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Wang and Isola (2020), "Understanding Contrastive Representation Learning through Alignment and Uniformity on the
    Hypersphere", arXiv:2005.10242, section 4.1.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.diagnostics.alignment(np.eye(2), np.asarray([[0.8, 0.6], [0.0, 2.0]]))
    array(0.2)
    """
    power = check_number("power", power, above=0.0)
    xp, (x, y, weights) = common_namespace(x=x, y=y, weights=weights)
    check_floating(xp, x=x, y=y)
    rows, _ = shape_of("x", x, "(N, D)")
    check_shape("y", y, tuple(x.shape))
    dtype, x, y = x.dtype, upcast(xp, x), upcast(xp, y)
    weights = row_weights(xp, weights, rows, x)
    warn_of_negative("weights", weights)
    unit_x, unit_y = (normalize(zeroed(z, counted_by(weights))) for z in (x, y))
    differences = unit_x - unit_y
    squares = xp.sum(differences * differences, axis=1)
    values = squares
    if power != 2.0:  # noqa: PLR2004  (squares need no root)
        together = squares == 0
        safe = xp.where(together, xp.ones_like(squares), squares)
        values = xp.where(together, xp.zeros_like(squares), xp.exp(0.5 * power * xp.log(safe)))
    counted = xp.ones((rows,), dtype=xp.bool, device=device_of(x))
    return finish(xp, Reduction("mean", weights).of_values(values, counted), dtype, "mean")


@programmed
def uniformity(x: ArrayOf[ArrayT], /, *, t: float = 2.0, block_size: BlockSize = "auto") -> ArrayT:
    r"""Return the uniformity of embeddings on the unit sphere.

    .. math:: \log \frac{1}{N (N - 1)} \sum_i \sum_{j \ne i} e^{-t \lVert \hat x_i - \hat x_j \rVert^2}, \qquad
        \hat x = x / \lVert x \rVert

    Parameters
    ----------
    x : array, shape (N, D)
        Embeddings. A zero vector stays zero, as in `alignment`: its squared distance to a unit vector is 1.
    t : float, default: 2.0
        Sharpness t > 0 of the kernel.
    block_size : int, None or "auto", default: "auto"
        Rows per block of the streamed execution; None holds the whole matrix; ``"auto"`` does so up to about four
        million entries.

    Returns
    -------
    array
        Uniformity, 0-d, of the library, dtype and device of `x`: 0 if all embeddings coincide, lower if they spread.

    Raises
    ------
    TypeError
        If `x` is not a real floating-point array.
    ValueError
        If `x` has fewer than two rows, or an option is invalid.

    References
    ----------
    Wang and Isola (2020), "Understanding Contrastive Representation Learning through Alignment and Uniformity on the
    Hypersphere", arXiv:2005.10242, section 4.1.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.diagnostics.uniformity(np.asarray([[1.0, 0.0], [-1.0, 0.0]]))
    array(-8.)
    """
    t = check_number("t", t, above=0.0)
    block_size = check_block_size(block_size)
    xp, (x,) = common_namespace(x=x)
    check_floating(xp, x=x)
    number, _ = shape_of("x", x, "(N, D)")
    if number < 2:  # noqa: PLR2004  (a pair)
        raise ValueError(f"x: expected at least 2 rows, got {number}: there is no pair")
    dtype = x.dtype
    x = upcast(xp, x)
    # The squared distance is |x|² + |y|² - 2 x·y, with |x|² = 1, or 0 for a zero row. |y|² is an extra column of the
    # product; |x|² is added to the log-sums of the rows. (Cancellation for close pairs is harmless, since exp is 1
    # there.)
    with adapter_of(x).full_precision(x):
        unit = normalize(x)
        square = xp.astype(xp.max(xp.abs(x), axis=1, keepdims=True) > 0, x.dtype)
        dot = resolve("dot")
        rows, columns = dot.prepare(
            xp.concat([2.0 * t * unit, xp.ones_like(square)], axis=1), xp.concat([unit, -t * square], axis=1), 1.0
        )
        matrix = ScoreMatrix(dot, rows, columns, Pairing(_others_rule, one_per_row=True), block_size=block_size)
        logarithms = statistics(matrix).negative - t * square[:, 0]
    top = stop_gradient(xp.max(logarithms, axis=0, keepdims=True))
    total = sum_to_scalar(xp, xp.exp(logarithms - top))
    pairs = xp.zeros_like(total) + number * (number - 1)
    return finish(xp, top + (xp.log(total) - xp.log(pairs)), dtype, "mean")


def _others_rule(tile: Tile) -> tuple[Array, Array]:
    differ = namespace_of(tile.i).not_equal
    return differ(tile.j, tile.j), differ(tile.i, tile.j)


@programmed
@takes_tokens
def top_k_accuracy(
    scores: ArrayOf[ArrayT],
    key: AnyArray | None = None,
    /,
    *,
    k: int = 1,
    similarity: AnySimilarity | None = None,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
) -> ArrayT:
    r"""Return the top-k accuracy: how often the positive is among the k highest scores of its row.

    .. math:: \mathrm{acc}_i = \big[\, |\{j \in Q(i) : g_{ij} \ge \max_{p \in P(i)} g_{ip}\}| < k \,\big]

    A tie with a negative counts against the row, so that collapsed embeddings have accuracy 0.

    Parameters
    ----------
    scores : array, shape (N, K), or (N, D) with `key`
        Scores g, or embeddings of the queries. A score of -inf masks its pair, positives included.
    key : array, shape (K, D), optional
        Embeddings of the keys: their scores are computed in blocks, without the N × K matrix.
    k : int, default: 1
        Number of highest scores.
    similarity : str, Similarity or callable, optional
        How embeddings are compared, "cosine" by default; see `portable_nce.similarities`. Only with `key`.
    positives : array of int (N,) or of bool (N, K), optional
        Positives of each row; the diagonal by default, which requires K ≥ N, or with `key` K = N. Out-of-range indices
        raise for NumPy and eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive, weighted sum, or the weighted values of the rows.
    block_size : int, None or "auto", default: "auto"
        Queries per block, with `key`; None takes all at once.

    Returns
    -------
    array
        Accuracy between 0 and 1: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `scores`;
        without gradient.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    recall_at : For rows with several positives, the share that is retrieved.
    mean_reciprocal_rank : The rank of the best positive.

    References
    ----------
    Chen, Kornblith, Norouzi and Hinton (2020), "A Simple Framework for Contrastive Learning of Visual
    Representations", arXiv:2002.05709.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> scores = np.asarray([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    >>> round(float(pnce.diagnostics.top_k_accuracy(scores, k=2)), 6)
    0.666667

    From embeddings:

    >>> query, key = np.eye(3), np.asarray([[1.0, 0.0, 0.1], [0.0, 1.0, 0.0], [1.0, 0.0, 0.05]])
    >>> round(float(pnce.diagnostics.top_k_accuracy(query, key)), 6)
    0.333333
    """
    options = _OfRows(similarity, positives, mask, weights, reduction, block_size)
    return _of_rows(scores, key, k, _is_ahead, options)


@programmed
@takes_tokens
def recall_at(
    scores: ArrayOf[ArrayT],
    key: AnyArray | None = None,
    /,
    *,
    k: int = 1,
    similarity: AnySimilarity | None = None,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
) -> ArrayT:
    r"""Return the share of a row's positives that are among its k highest scores.

    .. math:: \mathrm{recall}_i = \frac{1}{|P(i)|} \sum_{p \in P(i)}
        \big[\, |\{j \in P(i) \cup Q(i) \setminus p : g_{ij} \ge g_{ip}\}| < k \,\big]

    Ties count against a positive. With one positive per row it equals `top_k_accuracy`.

    Parameters
    ----------
    scores : array, shape (N, K), or (N, D) with `key`
        Scores g, or embeddings of the queries. A score of -inf masks its pair, positives included.
    key : array, shape (K, D), optional
        Embeddings of the keys: their scores are computed in blocks, without the N × K matrix.
    k : int, default: 1
        Number of highest scores.
    similarity : str, Similarity or callable, optional
        How embeddings are compared, "cosine" by default; see `portable_nce.similarities`. Only with `key`.
    positives : array of int (N,) or of bool (N, K), optional
        Positives of each row; the diagonal by default, which requires K ≥ N, or with `key` K = N. Out-of-range indices
        raise for NumPy and eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive, weighted sum, or the weighted values of the rows.
    block_size : int, None or "auto", default: "auto"
        Queries per block, with `key`; None takes all at once.

    Returns
    -------
    array
        Recall between 0 and 1: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `scores`;
        without gradient.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Jégou, Douze and Schmid (2011), "Product Quantization for Nearest Neighbor Search", IEEE TPAMI 33(1), section V.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> query, key = np.asarray([[1.0, 0.0]]), np.asarray([[1.0, 0.1], [0.0, 1.0], [1.0, 0.2]])
    >>> relevant = np.asarray([[True, True, False]])
    >>> pnce.diagnostics.recall_at(query, key, k=2, positives=relevant)
    array(0.5)
    """
    options = _OfRows(similarity, positives, mask, weights, reduction, block_size)
    return _of_rows(scores, key, k, _share_found, options)


@programmed
@takes_tokens
def mean_reciprocal_rank(
    scores: ArrayOf[ArrayT],
    key: AnyArray | None = None,
    /,
    *,
    similarity: AnySimilarity | None = None,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
) -> ArrayT:
    r"""Return the mean reciprocal rank (MRR) of the best positive of each row.

    .. math:: \mathrm{MRR} = \frac{1}{N} \sum_i \frac{1}{r_i}, \qquad
        r_i = 1 + |\{j \in Q(i) : g_{ij} \ge \max_{p \in P(i)} g_{ip}\}|

    A negative with the same score as the positive comes before it, so that collapsed embeddings have the lowest rank.

    Parameters
    ----------
    scores : array, shape (N, K), or (N, D) with `key`
        Scores g, or embeddings of the queries. A score of -inf masks its pair, positives included.
    key : array, shape (K, D), optional
        Embeddings of the keys: their scores are computed in blocks, without the N × K matrix.
    similarity : str, Similarity or callable, optional
        How embeddings are compared, "cosine" by default; see `portable_nce.similarities`. Only with `key`.
    positives : array of int (N,) or of bool (N, K), optional
        Positives of each row; the diagonal by default, which requires K ≥ N, or with `key` K = N. Out-of-range indices
        raise for NumPy and eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive, weighted sum, or the weighted values of the rows.
    block_size : int, None or "auto", default: "auto"
        Queries per block, with `key`; None takes all at once.

    Returns
    -------
    array
        Reciprocal rank, above 0 and at most 1: 0-d, or shape (N,) for reduction "none", where rows without a positive
        have 0. It has the library, dtype and device of `scores`, and no gradient.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    top_k_accuracy : How often the best positive has a rank of at most k.
    recall_at : For rows with several positives, the share that is retrieved.

    References
    ----------
    Voorhees (1999), "The TREC-8 Question Answering Track Report", TREC-8, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> scores = np.asarray([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    >>> pnce.diagnostics.mean_reciprocal_rank(scores, reduction="none").round(3)
    array([1.   , 0.5  , 0.333])

    From embeddings:

    >>> query, key = np.eye(3), np.asarray([[1.0, 0.0, 0.1], [0.0, 1.0, 0.0], [1.0, 0.0, 0.05]])
    >>> round(float(pnce.diagnostics.mean_reciprocal_rank(query, key)), 6)
    0.666667
    """
    options = _OfRows(similarity, positives, mask, weights, reduction, block_size)
    return _of_rows(scores, key, 1, _reciprocal_rank, options)


class _OfRows(NamedTuple):
    """Options of a measure of rows."""

    similarity: AnySimilarity | None
    positives: Array | None
    mask: Array | None
    weights: Array | None
    reduction: ReductionName
    block_size: BlockSize


def _of_rows(scores: Array, key: Array | None, k: int, measure: Measure, options: _OfRows) -> Array:
    """Reduced measure of the rows of a score matrix, given or computed in blocks."""
    k = check_whole_number("k", k)
    similarity, positives, mask, weights, reduction, block_size = options
    check_choice("reduction", reduction, REDUCTIONS)
    block_size = check_block_size(block_size)
    if key is None:
        if similarity is not None:
            raise ValueError("key: expected embeddings, got None; scores come without a similarity, queries with keys")
        xp, scores, pairing, mask, weights = enter_scores(scores, positives, mask, weights, weighted=False)
        x = stop_gradient(upcast(xp, scores))
        _check_k(k, x.shape[1])
        measure, matrix = _of_one(measure, pairing), matrix_of_scores(x, pairing, mask)
        known = matrix.one_positive()
        members = Members(*matrix.sets()) if known is None else OnePositive.of(Inputs((x,), **known))
        values, counted = measure(x, members, k)
    else:
        similarity = "cosine" if similarity is None else similarity
        xp, (x, y, positives, mask, weights) = common_namespace(
            scores=scores, key=key, positives=positives, mask=mask, weights=weights
        )
        if len(y.shape) == 1 and xp.isdtype(y.dtype, "integral"):
            raise TypeError(
                f"key: expected embeddings (K, D), got {y.dtype} of shape {tuple(y.shape)}; for scores and the columns "
                f"of the positives, pass positives=..."
            )
        check_floating(xp, scores=x, key=y)
        shape = (shape_of("scores", x, "(N, D)")[0], shape_of("key", y, "(K, D)")[0])
        same_width(similarity, "scores", x, "key", y)
        pairing = of_positives(xp, positives, shape, weighted=False)
        if positives is None and shape[0] != shape[1]:
            paired = f"; if key i belongs to query i, pass positives=arange({shape[0]})" if shape[0] < shape[1] else ""
            raise ValueError(
                f"positives: expected the keys of each query, since {shape[0]} queries and {shape[1]} keys are not "
                f"pairs, got None{paired}"
            )
        if mask is not None:
            check_mask(xp, "mask", mask, shape)
        _check_k(k, shape[1])
        if weights is not None:
            check_shape("weights", weights, (shape[0],))
            warn_of_negative("weights", weights)
        dtypes, scores = (x.dtype, y.dtype), x
        x, y = upcast(xp, x), upcast(xp, y)
        values, counted = search(
            *(x, y, min(k, shape[1])),
            similarity=similarity,
            dtypes=dtypes,
            measure=_of_one(measure, pairing),
            pairing=pairing,
            mask=mask,
            block_size=block_size,
        )
    weights = row_weights(xp, weights, x.shape[0], x)
    return finish(xp, Reduction(reduction, weights).of_values(values, counted), scores.dtype, reduction)


def _check_k(k: int, n_columns: int) -> None:
    """Warn if every positive is among the first k, so that the measure is 1."""
    if k > n_columns:
        warn(f"k: expected at most {n_columns}, the number of columns, got {k}, of which the measure is always 1")


def _of_one(measure: Measure, pairing: Pairing) -> Measure:
    """The measure, or one of equal results for rows with one positive: of these, a count of scores ahead is enough."""
    return _is_ahead if measure is _share_found and pairing.one_per_row else measure


def _number_ahead(scores: Array, members: Members | OnePositive) -> tuple[Array, Array]:
    """Number of negatives that reach the best positive of each row, NaN included; and the mask of rows with one."""
    if isinstance(members, OnePositive):
        xp, best = namespace_of(scores), members.scores(scores)
        behind = adapter_of(scores).count_along(xp.less(scores, best[:, None]), 1, scores.dtype)
        return (scores.shape[1] - 1) - behind, best != -math.inf  # a score does not reach itself
    xp, (own, negatives) = namespace_of(scores), members[:2]
    best = xp.max(xp.where(own, scores, -math.inf), axis=1, keepdims=True)
    ahead = xp.logical_and(negatives, xp.logical_not(xp.less(scores, best)))
    return xp.sum(xp.astype(ahead, scores.dtype), axis=1), xp.reshape(best, (-1,)) != -math.inf


def _is_ahead(scores: Array, members: Members | OnePositive, k: int) -> tuple[Array, Array]:
    """1 if fewer than k negatives reach the best positive, else 0; and the mask of rows with a positive."""
    ahead, counted = _number_ahead(scores, members)
    return namespace_of(scores).astype(ahead < min(k, scores.shape[1]), scores.dtype), counted


def _reciprocal_rank(scores: Array, members: Members | OnePositive, k: int) -> tuple[Array, Array]:
    """Inverse of the rank of the best positive; and the mask of rows with a positive."""
    del k
    ahead, counted = _number_ahead(scores, members)
    return 1.0 / (1.0 + ahead), counted


def _share_found(scores: Array, members: Any, k: int) -> tuple[Array, Array]:
    """Share of positives with fewer than k other scores at or above them; and the mask of rows with a positive."""
    xp, (own, negatives), candidates = namespace_of(scores), members[:2], scores
    taken, low = xp.logical_or(own, negatives), readable_entry(scores, least)
    if not readable_entry(taken, all_entries):
        candidates = xp.where(taken, scores, -math.inf)
    if low is None or not low > -math.inf:
        own = xp.logical_and(own, xp.not_equal(scores, -math.inf))
    result = own
    if k < scores.shape[1]:
        result = xp.logical_and(own, scores > highest(candidates, k + 1)[0][:, k:])
    result, number = (adapter_of(scores).count_along(x, 1, scores.dtype) for x in (result, own))
    return result / xp.where(number > 0, number, xp.ones_like(number)), number > 0


class TopK(NamedTuple):
    """Highest-scoring keys of each query, best first.

    Attributes
    ----------
    scores : array, shape (N, k)
        Scores; -inf where fewer than k keys are left after exclusion.
    indices : array of int, shape (N, k)
        Indices of the keys; -1 where fewer than k keys are left.
    """

    scores: Array
    indices: Array


@propagates_errors
@takes_tokens
def top_k(
    query: AnyArray,
    key: AnyArray,
    /,
    k: int,
    *,
    similarity: AnySimilarity = "cosine",
    exclude: AnyArray | None = None,
    block_size: BlockSize = "auto",
    across: Ranks | None = None,
) -> TopK:
    r"""Return the k keys with the highest scores for each query, in blocks of queries, without the score matrix.

    Among equal scores, the key of lower index comes first, on every library. NaN counts as the highest score.

    Parameters
    ----------
    query : array, shape (N, D)
        Embeddings of the queries.
    key : array, shape (K, D)
        Embeddings of the keys.
    k : int
        Number of keys to return, at most K.
    similarity : str, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    exclude : array of int, shape (N,) or (N, M), optional
        Indices of keys to exclude for each query, such as itself or known ones. Negative indices exclude nothing. Too
        large ones raise for NumPy and eager PyTorch CPU tensors; elsewhere they exclude nothing.
    block_size : int, None or "auto", default: "auto"
        Queries per block; None takes all at once; ``"auto"`` limits blocks to about four million scores, at least 64
        queries.
    across : Ranks, optional
        Ranks that hold other queries and keys; see `portable_nce.across`. Indices refer to the concatenated keys of all
        ranks. Each rank gets the result of its queries. Queries are communicated, keys are not.

    Returns
    -------
    TopK
        Scores and indices, of the library and device of `query`; without gradient. Scores have its dtype. Keys with a
        score of -inf are not returned.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid, or there are fewer than k keys.

    References
    ----------
    Johnson, Douze and Jégou (2017), "Billion-scale Similarity Search with GPUs", arXiv:1702.08734, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.asarray([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> pnce.diagnostics.top_k(x, x, 1, exclude=np.arange(3)).indices[:, 0]
    array([1, 0, 1])
    """
    k = check_whole_number("k", k)
    block_size = check_block_size(block_size)
    xp, (x, y, left_out) = common_namespace(query=query, key=key, exclude=exclude)
    check_floating(xp, query=x, key=y)
    n_queries, width = shape_of("query", x, "(N, D)")
    n_keys, _ = shape_of("key", y, "(K, D)", may_be_empty=False)
    same_width(similarity, "query", x, "key", y)
    extra = 0
    if left_out is not None:
        left_out = xp.expand_dims(left_out, axis=1) if len(left_out.shape) == 1 else left_out
        extra = shape_of("exclude", left_out, "(N, M)")[1]
        left_out = indices_of(xp, "exclude", left_out, (n_queries, extra))
    dtype, dtypes, shards = x.dtype, (x.dtype, y.dtype), None
    if across is not None:
        shards = agree(across, RankReport(n_queries, n_keys, {"features": width, "keys to exclude": extra}), x)
    total = n_keys if shards is None else sum(shards.columns)
    if k > total:
        raise ValueError(f"k: expected at most the number of keys, {total}, got {k}")
    if left_out is not None:
        pad = "negative indices exclude nothing"
        check_indices("exclude", left_out, total, "the keys", smallest=-math.inf, remedy=pad)
    # Among k + M keys, at least k are not excluded.
    count = min(k + extra, total)
    x, y = (upcast(xp, stop_gradient(z)) for z in (x, y))
    if shards is not None:
        x = shards.gather(x, sent_as=dtype, own_first=False)
    result: Any = search(x, y, min(count, n_keys), similarity=similarity, dtypes=dtypes, block_size=block_size)
    if shards is not None:
        result = _of_all_ranks(shards, result, n_queries, count)
        end_exchange(across)
    scores, indices = result
    xp = namespace_of(scores)
    if left_out is not None:
        known = xp.astype(left_out, indices.dtype)
        excluded = xp.any(xp.expand_dims(indices, axis=2) == xp.expand_dims(known, axis=1), axis=2)
        scores = xp.where(excluded, -math.inf, scores)
    if left_out is not None or shards is not None:
        scores, places = highest(scores, k)
        indices = taken(indices, places, -1)
    return TopK(finish(xp, scores, dtype, "none"), indices)


def _of_all_ranks(shards: Shards, result: tuple[Array, Array], n_queries: int, count: int) -> list[Array]:
    """Highest scores and indices of this rank's queries over the keys of all ranks, merged from each rank's.

    `result`: highest scores and indices of the queries of all ranks over this rank's keys.
    """
    scores, indices = result
    xp = namespace_of(scores)
    indices = xp.where(indices < 0, indices, indices + shards.first_row(of_columns=True))
    total, size = scores.shape[0], len(shards.rows)
    own = xp.arange(n_queries, device=device_of(scores)) + shards.first_row()
    whole = shards._replace(rows=(total,) * size)
    parts: list[Array] = []
    for x, otherwise in ((scores, -math.inf), (indices, -1)):
        missing = xp.full((total, count - x.shape[1]), otherwise, dtype=x.dtype, device=device_of(x))
        of_all = whole.gather(xp.concat([x, missing], axis=1), own_first=False)
        of_own = xp.take(xp.reshape(of_all, (size, total, count)), own, axis=1)
        parts.append(xp.reshape(xp.permute_dims(of_own, (1, 0, 2)), (n_queries, size * count)))
    return parts
