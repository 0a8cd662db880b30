"""The general entry: similarity, pairing, objective and execution, each chosen freely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._core.autodiff import stop_gradient
from ._core.checks import (
    check_block_size,
    check_bool,
    check_choice,
    check_floating,
    check_indices,
    check_mask,
    check_shape,
    common_dtype,
    is_half,
    positive_scalar,
    row_weights,
    scalar,
    shape_of,
)
from ._core.namespace import device_of, enter, is_array, is_number, namespace_of
from ._core.numerics import rows_where, upcast
from ._core.protocol import Array, Namespace
from ._core.reduction import REDUCTIONS
from ._core.registry import adapter_of
from ._execution.evaluate import evaluate
from ._execution.matrix import ScoreMatrix, given
from ._execution.tiling import MAX_UNSHIFTED_LOGIT, is_positive
from .objectives import AnyObjective, Objective, Pairwise, RowStatistics
from .objectives import resolve as resolve_objective
from .objectives.relic import Relic
from .objectives.triplet import Triplet
from .pairings import Pairing, diagonal, half, two_views
from .similarities import Operands, Similarity, measured_operands
from .similarities import resolve as resolve_similarity

__all__ = [
    "accumulated",
    "add",
    "contrast",
    "contrast_embeddings",
    "contrast_scores",
    "finish",
    "inverse",
    "same_width",
    "zero_idle_rows",
]


def contrast(
    x: Array,
    y: Array | None = None,
    /,
    *,
    objective: str | AnyObjective | Callable[[RowStatistics], Array],
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
    objective : {"info_nce", "flat_nce", "logistic"}, Objective, Pairwise or callable
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
        Rows per block of the streamed execution; None holds the whole score matrix; ``"auto"`` streams where value and
        gradient come in one pass, and elsewhere from about four million entries on.

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
        check_choice("pairing", pairing, ("diagonal", "two_views"))
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


_NONE: Any = object()  # where None is what the caller was given


def contrast_embeddings(
    embeddings: dict[str, Array],
    *,
    dtype: Any = None,
    objective: AnyObjective | Callable[[dict[str, Any]], AnyObjective],
    pairing: Pairing,
    similarity: str | Similarity | Callable[[Array, Array], Array],
    temperature: Any = None,
    scale: Any = _NONE,
    further: dict[str, Any] | None = None,
    factor: Callable[[dict[str, Any]], Any] | None = None,
    symmetric: bool = False,
    mask: Array | None,
    weights: Array | None,
    reduction: str,
    block_size: int | str | None,
) -> Array:
    """The loss of two named arrays of embeddings, or of one with itself: checked, computed and finished.

    Three are rows, their positives and the columns beyond, of the pairing of a queue. The objective may be a function
    of the temperature (or scale) and of the `further` numbers or arrays of one entry, by name; so is the `factor` of
    the loss. The result has the dtype of the embeddings, or `dtype`.
    """
    check_choice("reduction", reduction, REDUCTIONS)
    symmetric = check_bool("symmetric", symmetric)
    block_size = check_block_size(block_size)
    chosen = resolve_similarity(similarity)
    row_name, column_name = next(iter(embeddings)), next(reversed(embeddings))
    scaled = scale is not _NONE
    options = {**({"logit_scale": scale} if scaled else {"temperature": temperature}), **(further or {})}
    arrays = {name: value for name, value in options.items() if is_array(value) and not is_number(value)}
    xp, (*entered, mask, weights) = enter(**embeddings, **arrays, mask=mask, weights=weights)
    x, y = entered[0], entered[len(embeddings) - 1]
    keys = entered[1 : len(embeddings) - 1]  # the positives of a queue, if they are apart
    options.update(zip(arrays, entered[len(embeddings) :], strict=True))
    check_floating(xp, **dict(zip(embeddings, entered, strict=False)))
    n_rows, _ = shape_of(row_name, x, "(N, D)")
    n_columns, _ = shape_of(column_name, y, "(K, D)")
    n_columns += n_rows * len(keys)
    same_width(similarity, row_name, x, column_name, y)
    if mask is not None:
        check_mask(xp, "mask", mask, (n_rows, n_columns))
    if symmetric and n_rows != n_columns:
        message = f"symmetric: expected as many rows as columns, got {row_name} {n_rows} and {column_name} {n_columns}"
        raise ValueError(message)

    dtype = common_dtype(xp, x, *keys, y) if dtype is None else dtype
    alone = len(embeddings) == 1
    x = upcast(xp, x)
    y = x if alone else upcast(xp, y)  # once: a 16-bit gradient is rounded once
    keys, y = _apart_or_joined(xp, chosen, keys, y, mask)
    factor_name = "logit_scale" if scaled else "temperature"
    for name, value in options.items():
        options[name] = (positive_scalar if name == factor_name else scalar)(xp, name, value, x)
    scale = options[factor_name] if scaled else inverse(xp, options[factor_name], x)
    weights = row_weights(xp, weights, n_rows, x)
    if not isinstance(objective, (Objective, Pairwise, Relic, Triplet)):
        objective = objective(options)
    checked = _check_pairing(pairing, row_name, x, column_name, n_columns)
    if not keys:  # apart, there is no mask, and what a queue holds in slots that are not valid is 0
        x, y = _without_idle(xp, x, y, pairing, mask, alone=alone, both=isinstance(objective, Relic))
    with adapter_of(x).full_precision(x):
        rows, columns, partners, squarable = _operands(chosen, x, keys, y, scale)
        bounded = chosen.unit and _is_small(scale, x)
        matrix = ScoreMatrix(
            chosen,
            rows,
            columns,
            pairing,
            mask,
            block_size,
            self_contrast=alone,
            indices_checked=checked,
            bounded=bounded,
            squarable=squarable or bounded,
            partners=partners,
        )
        if chosen.pullback is None:
            if isinstance(block_size, int):
                message = (
                    f"block_size: expected None or 'auto' with a similarity that is a plain function, got {block_size};"
                    f" to stream it, make it a portable_nce.similarities.Similarity with a pullback, or pass None"
                )
                raise ValueError(message)
            matrix = matrix.dense()
        result = evaluate(objective, matrix, weights, reduction, symmetric=symmetric)
    if factor is not None:
        result = result * factor(options)
    return finish(xp, result, dtype, reduction)


def _apart_or_joined(
    xp: Namespace, similarity: Similarity, keys: list[Array], y: Array, mask: Array | None
) -> tuple[list[Array], Array]:
    """The positives of a queue apart from what it holds, where both are operands of inner products, or joined."""
    keys = [upcast(xp, key) for key in keys]
    if mask is None and similarity.inner_product and similarity.symmetric and is_positive(y.shape[0]):
        return keys, y
    return [], xp.concat([*keys, y], axis=0) if keys else y


def _operands(
    similarity: Similarity, x: Array, keys: list[Array], y: Array, scale: Any
) -> tuple[Operands, Operands, Operands, bool]:
    """The operands of rows and columns; of a queue also those of positives, apart where nothing can overflow.

    Apart, nothing is computed for a queue that is constant, nor is it copied. The last of what is returned says whether
    squares are known not to overflow.
    """
    rows, columns, squarable = measured_operands(similarity, x, y, scale)
    if not keys:
        return rows, columns, (), squarable
    _, partners, also = measured_operands(similarity, x, keys[0], scale)
    if similarity.unit or (squarable and also):
        return rows, columns, partners, squarable
    return _operands(similarity, x, [], namespace_of(*keys, y).concat([*keys, y], axis=0), scale)


def _without_idle(
    xp: Namespace, x: Array, y: Array, pairing: Pairing, mask: Array | None, *, alone: bool, both: bool
) -> tuple[Array, Array]:
    """The embeddings, 0 where a mask leaves no pair: what takes no part may hold anything, NaN too.

    With `both`, the score of a pair is looked at in both directions.
    """
    if mask is not None:
        rows, columns = (xp.any(mask, axis=axis) for axis in (1, 0))
        if alone or both:
            rows = columns = xp.logical_or(rows, columns)
        (x,) = rows_where(xp, rows, x)
        y = x if alone else rows_where(xp, columns, y)[0]
    if pairing.structure == "queue" and pairing.columns and not alone:
        (y,) = rows_where(xp, pairing.columns[0], y)
    return x, y


def _is_small(scale: Any, like: Array) -> bool:
    """Whether a scale is known to be small enough for the scores of unit rows to need no shift.

    Where steps are traced, a shift costs little, and log-odds are exact to one more digit with it.
    """
    if adapter_of(like).mode == "traced":
        return False
    number = scale if is_number(scale) else adapter_of(scale).concrete_value(stop_gradient(scale))
    return number is not None and abs(number) <= MAX_UNSHIFTED_LOGIT


def zero_idle_rows(xp: Namespace, members: Array, *embeddings: Array) -> list[Array]:
    """Embeddings (N, D), 0 where a boolean array (N, M) marks nothing in their row.

    A row without a pair takes no part. Nor does a row without negatives, of the InfoNCE of one positive: its loss is 0,
    whatever the embeddings are, NaN too.
    """
    return rows_where(xp, xp.any(members, axis=1), *embeddings)


def contrast_scores(
    xp: Namespace,
    scores: Array,
    *,
    objective: AnyObjective,
    pairing: Pairing,
    mask: Array | None,
    weights: Array | None,
    reduction: str,
    symmetric: bool = False,
) -> Array:
    """The loss of a score matrix whose arguments have been checked."""
    check_choice("reduction", reduction, REDUCTIONS)
    dtype = scores.dtype
    scores = upcast(xp, scores)
    weights = row_weights(xp, weights, scores.shape[0], scores)
    result = evaluate(objective, given(scores, pairing, mask), weights, reduction, symmetric=symmetric)
    return finish(xp, result, dtype, reduction)


def inverse(xp: Namespace, temperature: Any, like: Array) -> Array:
    """The factor that a temperature means, in the precision of `like`, which may be more than a Python float's."""
    if is_number(temperature):
        if like.dtype == xp.float32:
            return 1.0 / float(temperature)
        temperature = xp.full((), temperature, dtype=like.dtype, device=device_of(like))
    return 1.0 / temperature


def finish(xp: Namespace, result: Array, dtype: Any, reduction: str) -> Array:
    """The result in the dtype of the input, and 0-d unless it is one value per row."""
    if hasattr(result, "__recorded__"):
        xp = namespace_of(result)  # on the tape by a parameter of a part, where the embeddings are not
    if is_half(dtype):
        dtype = adapter_of(result).loss_dtype(result, dtype)
    result = result if result.dtype == dtype else xp.astype(result, dtype)
    return result if reduction == "none" else xp.reshape(result, ())


def accumulated(name: str, option: Any) -> Any:
    """A number as it is, and an array in the dtype to compute in: its 16-bit gradient is rounded once for all uses."""
    if is_number(option) or not is_array(option):
        return option
    xp, (option,) = enter(**{name: option})
    return upcast(xp, option)


def add(parts: Sequence[Array], dtype: Any, reduction: str, *, divide_by: int = 1) -> Array:
    """The sum of finished results, or their mean, in the dtype of the input."""
    xp, entered = enter(**{f"part {k}": part for k, part in enumerate(parts)})
    total, *others = (xp.reshape(part, (-1,)) for part in entered)  # the sum of two 0-d arrays would be a NumPy scalar
    for other in others:
        total = total + other
    return finish(xp, total / divide_by if divide_by > 1 else total, dtype, reduction)


def same_width(similarity: object, row_name: str, x: Array, column_name: str, y: Array) -> None:
    """The named similarities compare embeddings of the same width; others check for themselves."""
    if isinstance(similarity, str) and x.shape[-1] != y.shape[-1]:
        message = (
            f"{column_name}: expected {x.shape[-1]} features as in {row_name}, got shape {tuple(y.shape)}; project one "
            f"of them, or use similarity=bilinear(weight)"
        )
        raise ValueError(message)


def _check_pairing(pairing: Pairing, row_name: str, x: Array, column_name: str, n_columns: int) -> bool:
    """Check that the pairing fits the matrix and its library; tell whether its indices are known to be in range."""
    n_rows = x.shape[0]
    if pairing.structure == "views" and pairing.views == 2:  # noqa: PLR2004  (others are stacked here)
        half(n_rows, n_columns)
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
            enter(**{row_name: x, f"pairing.{part}": array})
            check_shape(f"pairing.{part}", array, shape)
    if pairing.structure != "index":
        return False
    (index,) = pairing.rows
    return check_indices(namespace_of(index), "positives", index, n_columns, f"the rows of {column_name}")
