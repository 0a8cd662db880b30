"""Evaluation of an objective on a score matrix: choice of the sweep, and reduction of the row losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .._core.autodiff import stop_gradient
from .._core.checks import check_scalar
from .._core.equality import is_fixed
from .._core.namespace import cast, common_namespace, is_array, is_number, lift_to_tape, namespace_of
from .._core.notes import note
from .._core.numerics import upcast, zeros
from .._core.protocol import Array
from .._core.reduction import Reduction, average
from .._core.registry import adapter_of
from ..objectives.base import Objective, Pairwise, RowStatistics, Weighted
from ..objectives.hard import HardNegatives
from ..objectives.relic import Relic
from ..objectives.softmax import SMOOTHED, info_nce
from ..objectives.triplet import Triplet
from ..pairings import Pairing, SmoothedRule, diagonal
from ..similarities import Similarity
from .choice import (
    Prepared,
    Wanted,
    as_arrays,
    by_both_sides,
    by_products,
    in_one_pass,
    is_one_block,
    is_symmetric,
    one_sided_over,
    row_losses,
    statistics,
)
from .families import FamilySpec
from .forms import form_of
from .inputs import Arrays, Inputs
from .matrix import ScoreMatrix
from .mining import Mined, is_of_one
from .pair_terms import PairsSpec
from .search import measured
from .sets import diagonals_of, partners
from .triples import excess


def evaluate(objective: Any, matrix: ScoreMatrix, reduction: Reduction, *, symmetric: bool = False) -> Array:
    """Loss of a score matrix, of shape (1,), or the row losses (N,)."""
    note(objective=objective, pairing=matrix.pairing)
    _check_scores_constant(matrix)
    coupled = couples_rows(objective, matrix.rows[0], matrix)
    if objective.of_statistics and not coupled and symmetric and reduction.kind != "none":
        both = _by_shared_tiles(objective, matrix, reduction, symmetric=True)
        if both is not None:
            return both
    rows = _evaluate(objective, matrix, reduction, coupled=coupled)
    if not symmetric:
        return rows
    turned = matrix.transposed()
    columns = _evaluate(objective, turned, reduction.of_columns(turned.shape[0]), coupled=coupled)
    return average(rows, columns)


def _check_scores_constant(matrix: ScoreMatrix) -> None:
    """Refuse a similarity that closes over learned arrays: they would get no gradient."""
    similarity, first = matrix.similarity, matrix.rows[0]
    if similarity.inner_product or similarity.pullback is None or len(matrix.columns) == 0:
        return
    xp, adapter = namespace_of(first), adapter_of(first)
    if adapter.mode == "traced":
        return  # JAX refuses them itself
    # A function that torch.compile makes says nothing of itself.
    if adapter.mode != "compiled" and is_fixed(similarity.scores):  # a function of this package
        return
    # Zeros, not the operands: torch.func wraps everything computed from operands.
    rows, columns = (
        tuple(zeros(xp, (*x.shape[:-2], 1, x.shape[-1]), x) for x in both) for both in (matrix.rows, matrix.columns)
    )
    scores = similarity.scores(rows, columns)
    if adapter.needs_gradient(scores) and not adapter.needs_gradient(rows[0]):  # as all do in MLX's checkpointing
        raise TypeError(
            "similarity: expected learned arrays in the operands of Similarity, got scores that close over one, which "
            "would get no gradient; multiply it into the rows or columns in prepare, or leave out the pullback"
        )


def _evaluate(objective: Any, matrix: ScoreMatrix, reduction: Reduction, *, coupled: bool) -> Array:
    if not objective.of_statistics:
        return _OTHERS[type(objective)](objective, matrix, reduction)
    inner, one_sided, parameters = _with_parameters(objective, matrix)
    if coupled and inner is objective:
        return reduction.of_values(*_coupled(objective, matrix))
    if not parameters and reduction.kind != "none":
        both = _by_shared_tiles(objective, matrix, reduction, symmetric=False)
        if both is not None:
            return both
    return _evaluated(inner, one_sided, parameters, reduction)


def _evaluated(
    family: FamilySpec, matrix: ScoreMatrix, parameters: Arrays, reduction: Reduction, *others: ScoreMatrix
) -> Array:
    """Reduced row losses; in one pass, unless the row losses are returned."""
    if reduction.kind == "none":
        values, number = row_losses(matrix.dense_if_small(), family, parameters, *others)
        return reduction.of_values(values, number > 0)
    return summed(one_sided_over(matrix, _wanted(family, parameters, reduction), *others), reduction)


def _wanted(family: FamilySpec, parameters: Arrays, reduction: Reduction) -> Wanted:
    """The sum of the row losses that a reduction needs, or their mean."""
    weights = reduction.multipliers
    return Wanted(family, parameters, () if weights is None else (weights,), mean=reduction.is_plain_mean)


def summed(prepared: Prepared, reduction: Reduction, *, of_columns: bool = False) -> Array:
    """Reduced row losses of a one-pass sweep, which computes a plain mean itself; `of_columns`: and of the columns."""
    value, number = in_one_pass(prepared)
    if of_columns:
        note(counted=number)
    if prepared.spec.mean:
        note(counted=number)
        return value
    if prepared.inverse is not None:
        number = namespace_of(number).take(number, prepared.inverse, axis=0)
    return reduction.of_sum(value, number)


def sums_both_sides(
    objective: Any, similarity: Similarity, pairing: Pairing, mask: Array | None, like: Array, *, reduction: str
) -> bool:
    """Whether a symmetric loss across ranks takes one two-sided sweep, which does not gather the rows."""
    if not objective.of_statistics or couples_rows(objective, like):
        return False
    return reduction != "none" and is_symmetric(similarity, pairing, mask)


def couples_rows(objective: Any, like: Array, matrix: ScoreMatrix | None = None) -> bool:
    """Whether the objective needs the statistics of all rows at once, of a `matrix` that may have a single block.

    It does if a row's loss depends on other rows, or if it closes over a learned array: a sweep has no gradient for
    that, so the library must differentiate the objective.
    """
    if not objective.of_statistics:
        return False
    if objective.couples_rows or (objective.couples_rows is not None and objective.slopes is not None):
        return bool(objective.couples_rows)
    if adapter_of(like).mode == "traced":
        return objective.couples_rows is None  # a lambda created each step would retrace the scan
    if _is_learned(objective, like):
        return True
    if objective.couples_rows is not None or (matrix is not None and matrix.shards is None and is_one_block(matrix)):
        return False
    return not _is_row_by_row(objective, like)


def is_row_by_row(objective: Any, like: Array) -> bool:
    """Whether the loss of a row is known not to depend on other rows."""
    if not objective.of_statistics or objective.known:
        return True
    return _is_row_by_row(objective, like) if objective.couples_rows is None else not objective.couples_rows


def _is_learned(objective: Objective, like: Array) -> bool:
    """Whether an objective closes over learned arrays: row losses of constant statistics have a gradient."""
    xp = namespace_of(like)
    zero = zeros(xp, like.shape[:1], upcast(xp, like))
    flags = xp.ones_like(zero, dtype=xp.bool)
    values = objective.values(RowStatistics(zero, zero, zero, zero, flags, flags))
    return adapter_of(values).needs_gradient(values)


def _coupled(objective: Objective, matrix: ScoreMatrix) -> tuple[Array, Array]:
    """Row losses, each a function of the statistics of all rows, and the rows that count."""
    row = statistics(matrix)
    if matrix.shard is None or matrix.shards is None or objective.known:
        return objective.values(row), objective.counted(row)
    xp = namespace_of(row.log_odds)
    stacked = row.stacked()
    indices = matrix.shards.gather(matrix.shard.rows)
    table = xp.take(matrix.shards.gather(stacked), xp.argsort(indices), axis=0)  # in the order of one process
    values = objective.values(RowStatistics.unstacked(table))
    return xp.take(values, matrix.shard.rows, axis=0), objective.counted(row)


_PROBE = ((-2.5, -0.5, 0.25, 0.75, 1.5, 3.0), (0.0, 0.5, 0.125, 0.0, 1.0, 0.25), (1.0, -2.0, 3.0, 0.5, 0.0, -1.0))


def _is_row_by_row(objective: Objective, like: Array) -> bool:
    """Whether a function gives probe rows the same losses in one call as in several; False if it cannot be tested."""
    xp, adapter = namespace_of(like), adapter_of(like)
    dtype = upcast(xp, like).dtype
    if adapter.mode != "eager":
        return False
    odds, spread, negative = (xp.asarray(list(numbers), dtype=dtype) for numbers in _PROBE)
    flags = xp.ones_like(odds, dtype=xp.bool)
    rows = (odds, spread, negative, negative - odds, flags, flags)
    losses: list[float] = []
    try:
        for low, high in ((0, 6), (0, 1), (1, 3), (3, 6)):
            values = objective.values(RowStatistics(*(x[low:high] for x in rows)))
            losses.extend(adapter.concrete_values(stop_gradient(values)) or ())
    except Exception:  # noqa: BLE001  (a user's function may fail on six rows and be right for the batch)
        return False
    return len(losses) == 2 * len(_PROBE[0]) and all(
        a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-4 * (1 + abs(b))
        for a, b in zip(losses[:6], losses[6:], strict=True)
    )


def _by_shared_tiles(
    objective: Objective, matrix: ScoreMatrix, reduction: Reduction, *, symmetric: bool
) -> Array | None:
    """Loss by a two-sided sweep; None if rows and columns cannot share tiles."""
    prepared = by_both_sides(matrix, _wanted(objective, (), reduction), symmetric=symmetric)
    return None if prepared is None else summed(prepared, reduction, of_columns=symmetric)


def _with_parameters(objective: Objective, matrix: ScoreMatrix) -> tuple[Objective, ScoreMatrix, Arrays]:
    """An equal objective and matrix, with a parameter of each row that is known before the sweep, if there is one."""
    rule, found = matrix.pairing.rule, None
    if isinstance(objective, Weighted):
        found = _with_row_weights(objective, matrix)
    elif isinstance(rule, SmoothedRule) and objective == info_nce():
        found = _with_smoothing(rule.smoothing, matrix._replace(pairing=diagonal()))
    return found or (objective, matrix, ())


def _with_row_weights(objective: Weighted, matrix: ScoreMatrix) -> tuple[Objective, ScoreMatrix, Arrays] | None:
    """With the weight of each row, a function of the scores of the positives."""
    inner, pairing = objective.inner, matrix.pairing
    in_order = pairing.positives.on_diagonals or pairing.positives.ahead_of_queue
    if not (in_order and pairing.one_per_row) or pairing.has_flags or by_products(matrix, Wanted(inner)) is None:
        return None
    matrix = matrix.with_operands()
    rows, columns = matrix.rows[0], matrix.columns[0]
    xp, form = namespace_of(rows, columns), form_of(matrix.similarity.scores)
    diagonals = diagonals_of(pairing.positives, rows.shape[0], matrix.n_own_columns)
    (positives,) = matrix.partners or partners(xp, diagonals, Inputs((rows,), (columns,)))
    if matrix.similarity.inner_product:  # a sum has the same digits if it is recorded
        scores = xp.sum(rows * positives, axis=1)
    else:
        scores = form.of_partner(form.rows(matrix.rows), positives)
    scores = scores if matrix.shards is None or objective.known else matrix.shards.gather(scores)
    return inner, matrix, (objective.parameter(scores, xp.ones_like(scores, dtype=xp.bool))[: rows.shape[0]],)


def _with_smoothing(smoothing: float, matrix: ScoreMatrix) -> tuple[Objective, ScoreMatrix, Arrays] | None:
    """With what smoothed labels ``t = (1 - ε) [i = j] + ε / K`` add to InfoNCE: ``ε (g_ii - mean_j g_ij)``.

    For inner products, ``mean_j g_ij = x_i·mean_j y_j`` needs no matrix.
    """
    fits = matrix.similarity.inner_product and matrix.shape[0] <= matrix.shape[1]
    if not fits or by_products(matrix, Wanted(SMOOTHED)) is None:
        return None
    matrix = matrix.with_operands()
    rows, columns = matrix.rows[0], matrix.columns[0]
    xp = namespace_of(rows, columns)
    difference = columns[: rows.shape[0], ...] - xp.mean(columns, axis=0, keepdims=True)
    return SMOOTHED, matrix, (smoothing * xp.sum(rows * difference, axis=1),)


# -------------------------------------------------------------------------------------------------------------- pairs


def _pairwise(objective: Pairwise, matrix: ScoreMatrix, reduction: Reduction) -> Array:
    parameters = _numbers(matrix, **dict(zip(objective.names, objective.parameters, strict=True)))
    positive, negative = objective.terms
    _check_constant(matrix, objective, parameters)
    family = PairsSpec((positive, negative), objective.divide_by, graded=True)
    if not objective.balance or reduction.kind != "mean":
        return _evaluated(family, matrix, parameters, reduction)
    # Mean over the positives plus mean over the negatives.
    if None not in objective.terms:
        whole = _balanced(family._replace(balance=True), matrix, parameters, reduction)
        if whole is not None:
            return whole
    plans = (
        family._replace(terms=(positive, None), counts=(True, False)),
        family._replace(terms=(None, negative), counts=(False, True)),
    )
    first, second = (_evaluated(one, matrix, parameters, reduction) for one in plans)
    return first + second


def _balanced(family: PairsSpec, matrix: ScoreMatrix, parameters: Arrays, reduction: Reduction) -> Array | None:
    """Sum of two means by one sweep, which divides by the numbers of pairs itself; None if it has several blocks."""
    if matrix.shards is not None or matrix.shard is not None or reduction.shards is not None:
        return None
    weights = reduction.weights
    prepared = one_sided_over(matrix, Wanted(family, parameters, () if weights is None else (weights,)))
    if reduction.factors is not None or not is_one_block(matrix, prepared.spec.sizes):
        return None
    value, number = in_one_pass(prepared)
    note(counted=number)
    return value if reduction.factor is None else value * reduction.factor


def _check_constant(matrix: ScoreMatrix, objective: Pairwise, parameters: Arrays) -> None:
    """Refuse terms that close over learned arrays: these would get no gradient."""
    first = matrix.rows[0]
    adapter = adapter_of(first)
    terms = [term for term in objective.terms if term is not None and term.fused is None]
    if not terms or adapter.mode == "traced":
        return  # JAX refuses them itself
    zero = zeros(namespace_of(first), (1, 1), upcast(namespace_of(first), first))
    scalars = [zero] * len(parameters)
    for term in terms:
        values = term.value(zero, *scalars)
        if not is_array(values) or adapter_of(values) is not adapter:
            continue
        if adapter.needs_gradient(values) and not adapter.needs_gradient(zero):  # as all do in MLX's checkpointing
            raise TypeError(
                "objective: expected learned arrays among the parameters of Pairwise, got a function that closes over "
                "one, which would get no gradient; write Pairwise(..., parameters=(array,))"
            )


def _hard(objective: HardNegatives, matrix: ScoreMatrix, reduction: Reduction) -> Array:
    (floor,) = _numbers(matrix, floor=objective.floor)
    return _evaluated(objective.facts, matrix, (stop_gradient(floor) if is_array(floor) else floor,), reduction)


def _numbers(matrix: ScoreMatrix, **parameters: Any) -> tuple[Any, ...]:
    """Parameters as Python floats, 0-d arrays or arrays (N,) in the dtype of the scores."""
    first = matrix.rows[0]
    shape, dtype = tuple(first.shape[:1]), upcast(namespace_of(first), first).dtype
    arrays = {name: value for name, value in parameters.items() if not is_number(value)}
    result: dict[str, Any] = {name: float(value) for name, value in parameters.items() if name not in arrays}
    _, (_, *converted) = common_namespace(scores=first, **arrays)
    for name, array in zip(arrays, converted, strict=True):
        is_shared = tuple(array.shape) != shape
        if is_shared:
            check_scalar(name, arrays[name])
        result[name] = cast(array, dtype)
        if is_shared and len(array.shape) > 0:
            result[name] = namespace_of(array).reshape(result[name], ())
    return tuple([result[name] for name in parameters])


def _per_row(matrix: ScoreMatrix, **parameter: Any) -> Array:
    """One parameter as an array (N,) in the dtype of the scores."""
    first = matrix.rows[0]
    (array,) = as_arrays(_numbers(matrix, **parameter), upcast(namespace_of(first), first))
    return namespace_of(array).broadcast_to(array, first.shape[:1]) if len(array.shape) == 0 else array


# ------------------------------------------------------------------------------------------------------------ triplets


def _triplets(objective: Triplet, matrix: ScoreMatrix, reduction: Reduction) -> Array:
    """Loss of all or mined triples: a sweep over whole rows, or a search for one triple of each."""
    if not is_of_one(objective.mining):
        return _evaluated(objective.facts, matrix, _numbers(matrix, margin=objective.margin), reduction)
    margin = _per_row(matrix, margin=objective.margin)
    matrix = matrix.with_operands()
    columns = measured(matrix, Mined(objective.mining))
    positive, negative = matrix.gather(*[namespace_of(x).where(x < 0, 0, x) for x in columns])
    ((positive, negative, margin, chosen),) = lift_to_tape((positive, negative, margin, columns[0]))
    xp = namespace_of(positive)
    counted = chosen >= 0
    # Rows that do not count may have infinite scores, and inf - inf is NaN.
    negative, positive = (xp.where(counted, score, xp.zeros_like(score)) for score in (negative, positive))
    difference = xp.where(counted, negative - positive + margin, xp.zeros_like(negative))
    values = excess(xp, difference, soft=objective.soft)
    number = None if objective.average == "all" else xp.astype(stop_gradient(values) != 0, values.dtype)
    return reduction.of_values(values, counted, number)


# --------------------------------------------------------------------------------------------------------------- RELIC


def _relic(objective: Relic, matrix: ScoreMatrix, reduction: Reduction) -> Array:
    """InfoNCE and the divergence of the distributions of row i and column i, of which one may be a constant."""
    matrix = matrix.with_operands().dense_if_small(crossed=True)
    other, alpha = matrix.transposed_scores().with_operands(), _numbers(matrix, alpha=objective.alpha)
    if objective.constant is None:
        return _evaluated(objective.facts, matrix, alpha, reduction, other)
    loss = _evaluated(objective.facts, matrix, _numbers(matrix, alpha=0.0), reduction, other)
    family, found = objective.facts._replace(base=None, symmetric=False, direction="a_to_b"), []
    for both in ((matrix, other), (other, matrix))[: 1 + objective.symmetric]:
        first, second = both if objective.direction == "a_to_b" else both[::-1]
        if objective.constant == "first":
            first = first.constant()
        else:
            second = second.constant()
        found.append(_evaluated(family, first, alpha, reduction, second))
    return loss + (average(*found) if objective.symmetric else found[0])


_OTHERS: dict[type, Callable[[Any, ScoreMatrix, Reduction], Array]] = {
    Pairwise: _pairwise,
    HardNegatives: _hard,
    Triplet: _triplets,
    Relic: _relic,
}
"""Evaluation of the objectives that need more than row statistics."""
