"""Evaluation of an objective on a score matrix: choice of the sweep, and reduction of the row losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.autodiff import stop_gradient
from .._core.checks import check_scalar
from .._core.equality import is_fixed
from .._core.namespace import cast, common_namespace, is_array, is_number, lift_to_tape, namespace_of
from .._core.notes import Counted, note
from .._core.numerics import softplus, upcast, zeros
from .._core.protocol import Array
from .._core.reduction import Reduction, average
from .._core.registry import adapter_of
from ..objectives.base import Objective, Pairwise, RowStatistics, Weighted
from ..objectives.hard import HardNegatives
from ..objectives.relic import DIVERGENCES, Relic, divergence
from ..objectives.softmax import SMOOTHED, info_nce
from ..objectives.triplet import Triplet
from ..pairings import AheadOfQueue, OnDiagonals, Pairing, SmoothedRule, diagonal
from ..similarities import Similarity
from .families import FamilySpec, SoftmaxSpec
from .forms import form_of
from .inputs import Arrays, Inputs
from .matrix import Prepared, ScoreMatrix, as_arrays, in_one_pass, is_symmetric
from .mining import Mined, is_of_one
from .pair_terms import PairsSpec
from .reweighted import ReweightedSpec
from .search import measured
from .sets import diagonals_of, partners
from .statistics import Statistics
from .triples import excess
from .triplets import TripletSpec


def evaluate(objective: Any, matrix: ScoreMatrix, reduction: Reduction, *, symmetric: bool = False) -> Array:
    """Loss of a score matrix, of shape (1,), or the row losses (N,)."""
    note(objective, matrix.pairing)
    _check_scores_constant(matrix)
    coupled = isinstance(objective, Objective) and couples_rows(
        objective, matrix.rows[0], in_one_block=lambda: matrix.shards is None and matrix.is_one_block()
    )
    if isinstance(objective, Objective) and not coupled and symmetric and reduction.kind != "none":
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
    if is_fixed(similarity.scores):  # a function of this package
        return
    xp, adapter = namespace_of(first), adapter_of(first)
    if adapter.mode == "traced":
        return  # JAX refuses them itself
    # Zeros, not the operands: torch.func wraps everything computed from operands.
    rows, columns = (
        tuple(zeros(xp, (*x.shape[:-2], 1, x.shape[-1]), x) for x in both) for both in (matrix.rows, matrix.columns)
    )
    if adapter.needs_gradient(similarity.scores(rows, columns)):
        raise TypeError(
            "similarity: expected learned arrays in the operands of Similarity, got scores that close over one, which "
            "would get no gradient; multiply it into the rows or columns in prepare, or leave out the pullback"
        )


def _evaluate(objective: Any, matrix: ScoreMatrix, reduction: Reduction, *, coupled: bool) -> Array:
    if not isinstance(objective, Objective):
        return _evaluate_other(objective, matrix, reduction)
    smoothing = _smoothing(objective, matrix)
    if smoothing:
        return _smoothed(smoothing, matrix, reduction)
    if isinstance(objective, Weighted) and _positives_are_known(objective, matrix):
        return _weighted(objective, matrix, reduction)
    if coupled:
        return reduction.of_values(*_coupled(objective, matrix))
    both = None if reduction.kind == "none" else _by_shared_tiles(objective, matrix, reduction, symmetric=False)
    return _evaluated(SoftmaxSpec(objective), matrix, (), reduction) if both is None else both


def _evaluate_other(objective: Any, matrix: ScoreMatrix, reduction: Reduction) -> Array:
    """Objectives that need more than row statistics: pairwise, hard negatives, triplet, RELIC."""
    if isinstance(objective, Pairwise):
        return _pairwise(objective, matrix, reduction)
    if isinstance(objective, HardNegatives):
        return _hard(objective, matrix, reduction)
    if isinstance(objective, Triplet):
        return _triplets(objective, matrix, reduction)
    return reduction.of_values(*_relic(objective, matrix))


def _evaluated(family: FamilySpec, matrix: ScoreMatrix, parameters: Arrays, reduction: Reduction) -> Array:
    """Reduced row losses; in one pass, unless the row losses are returned."""
    family = family._replace(parameters=len(parameters))
    if reduction.kind == "none":
        values, number = matrix.dense_if_small().row_losses(family, parameters)
        return reduction.of_values(values, number > 0)
    weights = reduction.multipliers
    by_row = parameters if weights is None else (*parameters, weights)
    family = family._replace(weighted=weights is not None)
    return summed(matrix.prepared(family, by_row, mean=reduction.is_plain_mean), reduction)


def summed(prepared: Prepared, reduction: Reduction) -> Array:
    """Reduced row losses of a one-pass sweep, which computes a plain mean itself."""
    value, number = in_one_pass(prepared)
    if prepared.spec.mean:
        note(Counted(number))
        return value
    if prepared.inverse is not None:
        number = namespace_of(number).take(number, prepared.inverse, axis=0)
    return reduction.of_sum(value, number)


def sums_both_sides(
    objective: Any, similarity: Similarity, pairing: Pairing, mask: Array | None, like: Array, *, reduction: str
) -> bool:
    """Whether a symmetric loss across ranks takes one two-sided sweep, which does not gather the rows."""
    if not isinstance(objective, Objective) or couples_rows(objective, like, in_one_block=lambda: False):
        return False
    return reduction != "none" and is_symmetric(similarity, pairing, mask)


def couples_rows(objective: Objective, like: Array, *, in_one_block: Callable[[], bool]) -> bool:
    """Whether the objective needs the statistics of all rows at once.

    It does if a row's loss depends on other rows, or if it closes over a learned array: a sweep has no gradient for
    that, so the library must differentiate the objective.
    """
    if objective.couples_rows or (objective.couples_rows is not None and objective.slopes is not None):
        return objective.couples_rows
    if adapter_of(like).mode == "traced":
        return objective.couples_rows is None  # a lambda created each step would retrace the scan
    if _is_learned(objective, like):
        return True
    return objective.couples_rows is None and not in_one_block() and not _is_row_by_row(objective, like)


def is_row_by_row(objective: Any, like: Array) -> bool:
    """Whether the loss of a row is known not to depend on other rows."""
    if not isinstance(objective, Objective) or (isinstance(objective, Weighted) and objective.known):
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
    row = matrix.statistics().row
    known = isinstance(objective, Weighted) and objective.known
    if matrix.shard is None or matrix.shards is None or known:
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
    weights = reduction.multipliers
    by_row = () if weights is None else (weights,)
    family = SoftmaxSpec(objective, weighted=weights is not None)
    prepared = matrix.two_sided(family, by_row, symmetric=symmetric, mean=reduction.is_plain_mean)
    return None if prepared is None else summed(prepared, reduction)


def _positives_are_known(objective: Weighted, matrix: ScoreMatrix) -> bool:
    """Whether each row has one positive, whose score can be computed before the sweep."""
    pairing = matrix.pairing
    return (
        isinstance(pairing.positives, (OnDiagonals, AheadOfQueue))
        and pairing.one_per_row
        and not pairing.has_flags
        and matrix.by_products(SoftmaxSpec(objective.inner), (), {}) is not None
    )


def _smoothing(objective: Objective, matrix: ScoreMatrix) -> float:
    """Label smoothing ε of the pairing, or 0 if `_smoothed` does not apply."""
    rule = matrix.pairing.rule
    if not isinstance(rule, SmoothedRule) or objective is not info_nce() or matrix.shape[0] > matrix.shape[1]:
        return 0.0
    plain = matrix._replace(pairing=diagonal())
    if not matrix.similarity.inner_product:
        return 0.0
    return rule.smoothing if plain.by_products(SoftmaxSpec(SMOOTHED), (), {}) is not None else 0.0


def _smoothed(smoothing: float, matrix: ScoreMatrix, reduction: Reduction) -> Array:
    """Cross-entropy with smoothed labels, for inner products: ``mean_j g_ij = x_i·mean_j y_j`` needs no matrix.

    With targets ``t = (1 - ε) [i = j] + ε / K`` it is the InfoNCE loss plus ``ε (g_ii - mean_j g_ij)``.
    """
    matrix = matrix.with_operands()
    rows, columns = matrix.rows[0], matrix.columns[0]
    xp = namespace_of(rows, columns)
    difference = columns[: rows.shape[0], ...] - xp.mean(columns, axis=0, keepdims=True)
    added = smoothing * xp.sum(rows * difference, axis=1)
    return _evaluated(SoftmaxSpec(SMOOTHED), matrix._replace(pairing=diagonal()), (added,), reduction)


def _weighted(objective: Weighted, matrix: ScoreMatrix, reduction: Reduction) -> Array:
    """Loss by an objective whose parameter of each row is a function of all positive scores."""
    matrix = matrix.with_operands()
    rows, columns = matrix.rows[0], matrix.columns[0]
    xp, form = namespace_of(rows, columns), form_of(matrix.similarity.scores)
    diagonals = diagonals_of(matrix.pairing.positives, rows.shape[0], matrix.n_own_columns)
    (positives,) = matrix.partners or partners(xp, diagonals, Inputs((rows,), (columns,)))
    if matrix.similarity.inner_product:  # a sum has the same digits if it is recorded
        scores = xp.sum(rows * positives, axis=1)
    else:
        scores = form.of_partner(form.rows(matrix.rows), positives)
    scores = scores if matrix.shards is None or objective.known else matrix.shards.gather(scores)
    parameter = objective.parameter(scores, xp.ones_like(scores, dtype=xp.bool))[: rows.shape[0]]
    return _evaluated(SoftmaxSpec(objective.inner), matrix, (parameter,), reduction)


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
    by_row = parameters if weights is None else (*parameters, weights)
    family = family._replace(parameters=len(parameters), weighted=weights is not None)
    prepared = matrix.prepared(family, by_row)
    if reduction.factors is not None or not matrix.is_one_block_of(prepared):
        return None
    value, number = in_one_pass(prepared)
    note(Counted(number))
    return value if reduction.factor is None else value * reduction.factor


def _check_constant(matrix: ScoreMatrix, objective: Pairwise, parameters: Arrays) -> None:
    """Refuse terms that close over learned arrays: these would get no gradient."""
    first = matrix.rows[0]
    terms = [term for term in objective.terms if term is not None and term.fused is None]
    if not terms or adapter_of(first).mode == "traced":
        return  # JAX refuses them itself
    zero = zeros(namespace_of(first), (1, 1), upcast(namespace_of(first), first))
    scalars = [zero] * len(parameters)
    for term in terms:
        values = term.value(zero, *scalars)
        if is_array(values) and adapter_of(values).needs_gradient(values):
            raise TypeError(
                "objective: expected learned arrays among the parameters of Pairwise, got a function that closes over "
                "one, which would get no gradient; write Pairwise(..., parameters=(array,))"
            )


def _hard(objective: HardNegatives, matrix: ScoreMatrix, reduction: Reduction) -> Array:
    (floor,) = _numbers(matrix, floor=objective.floor)
    family = ReweightedSpec(objective.beta, objective.tau_plus)
    return _evaluated(family, matrix, (stop_gradient(floor) if is_array(floor) else floor,), reduction)


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
        spec = TripletSpec(objective.mining, objective.soft, objective.average)
        return _evaluated(spec, matrix, _numbers(matrix, margin=objective.margin), reduction)
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


def _relic(objective: Relic, matrix: ScoreMatrix) -> tuple[Array, Array]:
    """Row losses, and the rows that count."""
    matrix = matrix.with_operands().dense_if_small()
    other = matrix.transposed_scores()
    alpha = _per_row(matrix, alpha=objective.alpha)
    first, second = (_OneSide(x, x.statistics(same_scores=True)) for x in (matrix, other))
    values, counted = _relic_one_sided(objective, alpha, first, second)
    if objective.symmetric:
        values = average(values, _relic_one_sided(objective, alpha, second, first)[0])
    return values, counted


class _OneSide(NamedTuple):
    """A distribution of each row, with the statistics of its scores; RELIC compares two."""

    matrix: ScoreMatrix
    statistics: Statistics

    def constant(self) -> _OneSide:
        """Constant copy."""
        row, top, rest = self.statistics
        row = RowStatistics._make((*map(stop_gradient, row.numbers), *row.flags))
        return _OneSide(self.matrix.constant(), Statistics(row, stop_gradient(top), stop_gradient(rest)))


def _relic_one_sided(objective: Relic, alpha: Array, anchor: _OneSide, other: _OneSide) -> tuple[Array, Array]:
    first, second = (anchor, other) if objective.direction == "a_to_b" else (other, anchor)
    first = first.constant() if objective.constant == "first" else first
    second = second.constant() if objective.constant == "second" else second
    include_positive = objective.include_positive
    p, q = (_log_probabilities(one.statistics, include_positive=include_positive) for one in (first, second))
    finite = all(one.matrix.finite or one.matrix.bound < math.inf for one in (first, second))
    term = DIVERGENCES[finite]
    family = PairsSpec((None, term), parameters=4, counts=(False, True))
    kl, _ = first.matrix.row_losses(family, tuple([-x for x in (*p[1:3], *q[1:3])]), other=second.matrix)
    row = anchor.statistics.row
    base, kl, alpha, log_p, log_q = lift_to_tape((objective.base.values(row), kl, alpha, p[0], q[0]))[0]
    xp = namespace_of(base)
    kl = divergence(xp, log_p, log_q) + kl if include_positive else kl
    # A score of +inf makes all other q 0: the divergence is infinite unless p is equal. With alpha = 0 it is ignored.
    infinite = xp.logical_and(q[3], kl > math.sqrt(_log_of_zero(xp, kl)))
    kl = xp.where(xp.logical_and(infinite, alpha != 0), math.inf, kl)
    return base + alpha * kl, row.has_positive


def _log_of_zero(xp: Any, like: Array) -> float:
    """Finite stand-in for ``-log 0``: two of them have the difference 0, and the square is finite."""
    return math.sqrt(float(xp.finfo(like.dtype).max))


def _log_probabilities(statistics: Statistics, *, include_positive: bool) -> tuple[Array, Array, Array, Array]:
    """Log-probability of each row's positive, and two terms to subtract from a negative's score g for its own.

    With the log-odds u, log p of the positive is -softplus(u), which does not cancel; that of a negative is
    ``g - lse(negatives) - softplus(-u)``. The last array marks rows with a score of +inf, which has probability 1.
    """
    row, top, rest = statistics
    xp = namespace_of(row.log_odds)
    both = xp.logical_and(row.has_positive, row.has_negative)
    zero = xp.zeros_like(row.log_odds)
    finite = xp.where(xp.isinf(top), xp.zeros_like(top), top)
    log_p = xp.where(both, softplus(xp, row.log_odds), zero)
    rest = xp.where(top == math.inf, math.inf, rest)
    if include_positive:
        rest = rest + xp.where(row.has_positive, softplus(xp, -row.log_odds), zero)
    certain = rest == math.inf
    log_p, rest = (xp.where(x == math.inf, _log_of_zero(xp, x), x) for x in (log_p, rest))
    return -log_p, finite, rest, certain
