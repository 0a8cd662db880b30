"""The general entry: similarity, pairing, objective and execution, each chosen freely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._namespace import device_of, enter, is_array, is_number
from ._numerics import accumulate
from ._protocol import Array, Namespace
from ._reduction import REDUCTIONS, average, reduce_rows
from ._registry import adapter_of
from ._statistics import RowStatistics, dense_sums, row_statistics
from ._streaming import streamed_sums
from ._validate import block_size_of, boolean, floating, one_of, positive_scalar, row_weights, same_shape, shape_of
from .objectives import Objective
from .objectives import resolve as resolve_objective
from .pairings import Pairing, diagonal, split, two_views
from .similarities import Operands, Similarity
from .similarities import resolve as resolve_similarity

__all__ = ["contrast", "contrast_embeddings", "contrast_scores", "finish", "inverse", "same_width", "whole_tile"]

# Entries of the largest array that the dense execution, or a tile of the streamed one, holds under block_size="auto".
_DENSE_LIMIT = 2**22
_TILE_LIMIT = 2**20


def contrast(
    x: Array,
    y: Array | None = None,
    /,
    *,
    objective: str | Objective | Callable[[RowStatistics], Array],
    pairing: str | Pairing = "diagonal",
    similarity: str | Similarity | Callable[[Array, Array], Array] = "cosine",
    temperature: float | Array = 1.0,
    symmetric: bool = False,
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    block_size: int | str | None = "auto",
) -> Array:
    r"""Return a contrastive loss made of a similarity, a pairing and an objective.

    .. math:: \frac{1}{\sum_i w_i} \sum_i w_i\, \ell\big(\{g_{ij}\}_{j \in P(i)}, \{g_{ij}\}_{j \in Q(i)}\big),
        \qquad g_{ij} = s(x_i, y_j) / \tau

    over the rows i that count; the similarity s makes the scores, the pairing the sets of positives P(i) and negatives
    Q(i), and the objective the loss of a row.

    Parameters
    ----------
    x : array, shape (N, D)
        Embeddings of the rows.
    y : array, shape (K, D), optional
        Embeddings of the columns; None contrasts `x` with itself.
    objective : {"info_nce", "flat_nce"}, Objective or callable
        A name, an objective of `portable_nce.objectives`, or a function from `RowStatistics` to losses (N,).
    pairing : {"diagonal", "two_views"} or Pairing, default: "diagonal"
        A name, or a pairing of `portable_nce.pairings`.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        A name, a similarity of `portable_nce.similarities`, or a function from (N, D), (K, D) to scores (N, K).
    temperature : float or array of one entry, default: 1.0
        Temperature τ > 0; differentiable as an array.
    symmetric : bool, default: False
        Whether to average the loss of the rows and the loss of the columns.
    mask : array of bool, shape (N, K), optional
        Pairs that take part; all by default.
    weights : array, shape (N,), optional
        Weights of the rows (with `symmetric`, of the columns too).
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that count, weighted sum, or the weighted losses of the rows.
    block_size : int, None or "auto", default: "auto"
        Columns per tile of the streamed execution, which holds no N × K matrix; None computes the whole matrix;
        ``"auto"`` does so up to about four million entries.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `x`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.asarray([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> round(float(pnce.contrast(x, x, objective="info_nce", similarity="neg_sq_euclidean")), 6)
    0.175136
    """
    if isinstance(pairing, str):
        one_of("pairing", pairing, ("diagonal", "two_views"))
        pairing = diagonal() if pairing == "diagonal" else two_views()
    elif not isinstance(pairing, Pairing):
        message = f"pairing: expected a name or a portable_nce.pairings.Pairing, got {type(pairing).__name__}"
        raise TypeError(message)
    return contrast_embeddings(
        {"x": x} if y is None else {"x": x, "y": y},
        objective=resolve_objective(objective),
        pairing=pairing,
        similarity=similarity,
        temperature=temperature,
        symmetric=symmetric,
        mask=mask,
        weights=weights,
        reduction=reduction,
        block_size=block_size,
    )


def contrast_embeddings(
    embeddings: dict[str, Array],
    *,
    dtype: Any = None,
    objective: Objective,
    pairing: Pairing,
    similarity: str | Similarity | Callable[[Array, Array], Array],
    temperature: Any = None,
    scale: Any = None,
    symmetric: bool,
    mask: Array | None,
    weights: Array | None,
    reduction: str,
    block_size: int | str | None,
) -> Array:
    """The loss of two named arrays of embeddings, or of one with itself: checked, computed and finished.

    The result has the dtype of the rows, or `dtype`.
    """
    one_of("reduction", reduction, REDUCTIONS)
    block_size_of(block_size)
    chosen = resolve_similarity(similarity)
    row_name, column_name = next(iter(embeddings)), next(reversed(embeddings))
    option = {"temperature": temperature} if scale is None else {"logit_scale": scale}
    parameters = {name: value for name, value in option.items() if is_array(value) and not is_number(value)}
    xp, (*entered, mask, weights) = enter(**embeddings, **parameters, mask=mask, weights=weights)
    x, y = entered[0], entered[len(embeddings) - 1]
    floating(xp, **dict(zip(embeddings, entered, strict=False)))
    n_rows, _ = shape_of(row_name, x, "(N, D)")
    n_columns, _ = shape_of(column_name, y, "(K, D)")
    same_width(similarity, row_name, x, column_name, y)
    _check_pairing(pairing, n_rows, n_columns, row_name, column_name)
    if mask is not None:
        boolean(xp, "mask", mask, (n_rows, n_columns))
    if symmetric and n_rows != n_columns:
        message = f"symmetric: expected as many rows as columns, got {row_name} {n_rows} and {column_name} {n_columns}"
        raise ValueError(message)

    dtype = x.dtype if dtype is None else dtype
    x = accumulate(xp, x)
    y = x if len(embeddings) == 1 else accumulate(xp, y)  # once: a 16-bit gradient is rounded once
    ((name, value),) = option.items()
    factor = positive_scalar(xp, name, entered[-1] if parameters else value, x)
    weights = row_weights(xp, weights, n_rows, x)
    with adapter_of(x).full_precision(x):
        operands = chosen.prepare(x, y, inverse(xp, factor, x) if scale is None else factor)
        directions = _statistics(xp, chosen, operands, pairing, mask, symmetric=symmetric, block_size=block_size)
    results = [reduce_rows(statistics, objective, weights, reduction) for statistics in directions]
    return finish(xp, average(*results) if symmetric else results[0], dtype, reduction)


def contrast_scores(
    xp: Namespace,
    scores: Array,
    *,
    objective: Objective,
    pairing: Pairing,
    mask: Array | None,
    weights: Array | None,
    reduction: str,
) -> Array:
    """The loss of a score matrix whose arguments have been checked."""
    one_of("reduction", reduction, REDUCTIONS)
    dtype = scores.dtype
    scores = accumulate(xp, scores)
    positives, negatives = whole_tile(xp, pairing, scores, mask)
    statistics = row_statistics(dense_sums(scores, positives, negatives, single=pairing.one_per_row))
    weights = row_weights(xp, weights, scores.shape[0], scores)
    return finish(xp, reduce_rows(statistics, objective, weights, reduction), dtype, reduction)


def inverse(xp: Namespace, temperature: Any, like: Array) -> Array:
    """The factor that a temperature means, in the precision of `like`, which may be more than a Python float's."""
    if is_number(temperature):
        temperature = xp.full((), temperature, dtype=like.dtype, device=device_of(like))
    return 1.0 / temperature


def finish(xp: Namespace, result: Array, dtype: Any, reduction: str) -> Array:
    """The result in the dtype of the input, and 0-d unless it is one value per row."""
    result = result if result.dtype == dtype else xp.astype(result, dtype)
    return result if reduction == "none" else xp.reshape(result, ())


def same_width(similarity: object, row_name: str, x: Array, column_name: str, y: Array) -> None:
    """The named similarities compare embeddings of the same width; others check for themselves."""
    if isinstance(similarity, str) and x.shape[-1] != y.shape[-1]:
        message = (
            f"{column_name}: expected {x.shape[-1]} features as in {row_name}, got shape {tuple(y.shape)}; project one "
            f"of them, or use similarity=bilinear(weight)"
        )
        raise ValueError(message)


def _check_pairing(pairing: Pairing, n_rows: int, n_columns: int, row_name: str, column_name: str) -> None:
    """The pairing's arrays must fit the matrix, and a row must be able to have a negative."""
    if n_columns < pairing.least:
        message = (
            f"{column_name}: expected at least {pairing.least} rows, got {n_columns}: with fewer, {row_name} has no "
            f"negatives to be contrasted with; use a larger batch, or give negatives"
        )
        raise ValueError(message)
    if pairing.one_per_column and n_columns < n_rows:
        message = (
            f"{column_name}: expected at least as many rows as {row_name}, {n_rows}, got {n_columns}: row i is paired "
            f"with row i; name the pairs by positives or another pairing"
        )
        raise ValueError(message)
    for part, arrays, shape in (
        ("rows", pairing.rows, (n_rows,)),
        ("columns", pairing.columns, (n_columns,)),
        ("pairs", pairing.pairs, (n_rows, n_columns)),
    ):
        for array in arrays:
            same_shape(f"pairing.{part}", array, shape)


def whole_tile(xp: Namespace, pairing: Pairing, scores: Array, mask: Array | None) -> tuple[Array, Array]:
    """The positives and negatives of the whole matrix."""
    n_rows, n_columns = scores.shape
    return split(
        xp,
        pairing.rule,
        numbers=(xp.arange(n_rows, device=device_of(scores)), xp.arange(n_columns, device=device_of(scores))),
        shape=(n_rows, n_columns),
        labels=(pairing.rows, pairing.columns),
        pairs=pairing.pairs,
        mask=mask,
    )


def _statistics(
    xp: Namespace,
    similarity: Similarity,
    operands: tuple[Operands, Operands],
    pairing: Pairing,
    mask: Array | None,
    *,
    symmetric: bool,
    block_size: int | str | None,
) -> list[RowStatistics]:
    """The row statistics, and with `symmetric` those of the columns, by the execution that `block_size` asks for."""
    rows, columns = operands
    block = _block(similarity, rows, columns, block_size)
    if block is None:
        scores = accumulate(xp, similarity.scores(rows, columns))
        positives, negatives = whole_tile(xp, pairing, scores, mask)
        found = [dense_sums(scores, positives, negatives, single=pairing.one_per_row)]
        if symmetric:
            transposed = (xp.matrix_transpose(m) for m in (scores, positives, negatives))
            found.append(dense_sums(*transposed, single=pairing.one_per_column))
    else:
        found = [streamed_sums(similarity, operands, pairing, mask, block)]
        if symmetric:
            mask = None if mask is None else xp.matrix_transpose(mask)
            found.append(streamed_sums(similarity.transposed(), (columns, rows), pairing.transposed(), mask, block))
    return [row_statistics(sums) for sums in found]


def _block(similarity: Similarity, rows: Operands, columns: Operands, block_size: int | str | None) -> int | None:
    """Columns per tile, or None for the dense execution."""
    if block_size is None:
        return None
    if similarity.pullback is None:
        if block_size == "auto":
            return None
        message = (
            f"block_size: expected None or 'auto' with a similarity that is a plain function, got {block_size}; to "
            f"stream it, make it a portable_nce.similarities.Similarity with a pullback, or pass block_size=None"
        )
        raise ValueError(message)
    if isinstance(block_size, int):
        return block_size
    per_column: int = rows[0].shape[0] * (rows[0].shape[1] if similarity.wide else 1)
    if per_column * columns[0].shape[0] <= _DENSE_LIMIT:
        return None
    return max(1, _TILE_LIMIT // per_column)
