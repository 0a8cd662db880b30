"""Row statistics: the only place that forms log-odds, and that turns their slopes into cotangents of scores."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._core.logsumexp import ExpSum, exponentials, of_one
from .._core.namespace import cast
from .._core.numerics import safe_quotient
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..objectives.base import RowStatistics


class PositiveFactors(NamedTuple):
    """Row factors of the cotangents ``of_terms e^(g - top) - of_weights t`` of the scores of several positives."""

    of_terms: Array
    of_weights: Array


class PositiveSums(NamedTuple):
    """Scores of the positives: one per row, of shape (n,), or several among P columns, (n, P).

    `members`: Boolean array of the present scores (None: all). `sums`: exponential sum of each row. The other fields
    are for several positives: `terms` are ``exp(g - top)``; `weights` are t for finite scores and 0 for others (flags
    unless `weighted`); `centred` is ``Σ t (g - top)``; `weight_sum` is ``Σ t``; `count` is the number of finite scores.
    """

    scores: Array
    members: Array | None
    sums: ExpSum
    terms: Array = None
    centred: Array = None
    weight_sum: Array = None
    count: Array = None
    weights: Array = None
    weighted: bool = False

    def with_exponentials(self, xp: Namespace, terms: Array) -> PositiveSums:
        """Several positives with the sums of their exponentials, entries of `terms`, which may be overwritten."""
        terms = adapter_of(terms).where_in_place(self.members, terms, 0.0)
        return self._replace(sums=ExpSum(None, xp.sum(terms, axis=1)), terms=terms)

    def cotangents(self, xp: Namespace, factors: PositiveFactors) -> Array | PositiveFactors:
        """Cotangents of the scores of several; of the members of a tile, to whose negatives they are added, factors."""
        return factors if self.members is not None else self.added(xp.zeros_like(self.terms), factors)

    def added(self, x: Array, factors: PositiveFactors) -> Array:
        """A tile, which may be overwritten as the exponentials may, plus the cotangents of these factors."""
        plus_product = adapter_of(x).plus_product
        with_terms = plus_product(x, self.terms, factors.of_terms[:, None])
        return plus_product(with_terms, self.weights, -factors.of_weights[:, None])


class RowSums(NamedTuple):
    """The sums that determine the statistics of a row."""

    negative: ExpSum
    positive: PositiveSums


def one_per_row(xp: Namespace, scores: Array, present: Array | None) -> PositiveSums:
    """One positive per row, in all rows or in those `present`."""
    members = xp.ones_like(scores, dtype=xp.bool) if present is None else present
    return PositiveSums(scores, present, of_one(xp, scores, xp.logical_and(members, scores != -math.inf)))


def from_mask(
    xp: Namespace,
    scores: Array,
    members: Array,
    *,
    single: bool,
    weights: Array | None = None,
    unshifted: bool = False,
    all_finite: bool = False,
) -> PositiveSums:
    """The positives marked by a boolean array; `single`: at most one per row; `all_finite`: so are all scores.

    `unshifted`: all scores are small, and the exponentials of several positives follow, by `with_exponentials`.
    """
    if single:
        score = xp.sum(xp.where(members, scores, 0.0), axis=1)
        present = xp.any(members, axis=1)
        return PositiveSums(score, present, of_one(xp, score, present))
    sums, terms, finite, differences = ExpSum(None, None), None, members, scores
    if not unshifted:
        sums, terms = exponentials(xp, scores, members)
        finite = xp.logical_and(members, xp.logical_not(xp.isinf(scores)))
        differences = scores - xp.where(xp.isinf(sums.top), 0.0, sums.top)[:, None]
    elif not all_finite:
        finite = xp.logical_and(members, scores != -math.inf)
    if weights is None or not all_finite:
        differences = xp.where(finite, differences, 0.0)
    weight_sum = count = adapter_of(finite).count_along(finite, 1, scores.dtype)
    relative = finite
    if weights is not None:
        # Divided by the largest of a row, weights of any magnitude sum to between 1 and P: no overflow.
        weights = cast(weights, scores.dtype)
        relative = xp.where(finite, weights, 0.0)
        largest = xp.max(relative, axis=1, keepdims=True)
        relative = relative / xp.where(largest > 0, largest, xp.ones_like(largest))
        differences, weight_sum = relative * differences, xp.sum(relative, axis=1)
    centred = xp.sum(differences, axis=1)
    return PositiveSums(scores, members, sums, terms, centred, weight_sum, count, relative, weights is not None)


def row_statistics(xp: Namespace, sums: RowSums) -> RowStatistics:
    """The statistics of rows.

    The log-odds ``(top_n + log total_n) - (top_p + log total_p)`` are the difference of the shifts plus the difference
    of the logarithms: a constant added to a row cancels exactly, and equal shifts cancel even if they are infinite.
    """
    negative, positive = sums.negative, sums.positive.sums
    zero = xp.zeros_like(negative.total)
    top_negative, top_positive = (zero if x.top is None else x.top for x in (negative, positive))
    has_negative, has_positive = negative.is_filled(), positive.is_filled()
    log_negative = negative.log_total(xp)
    log_positive = positive.log_total(xp)
    both = xp.logical_and(has_negative, has_positive)
    differ = xp.logical_and(both, xp.not_equal(top_negative, top_positive))
    difference = xp.where(differ, top_negative, zero) - xp.where(differ, top_positive, zero)
    spread = zero
    if sums.positive.weight_sum is not None:
        # lse - mean = log Σ e^(g - top) - Σ (g - top) / n; the top cancels
        several = sums.positive.count > 1
        weight_sum = xp.where(several, sums.positive.weight_sum, xp.ones_like(zero))
        spread = xp.where(several, log_positive - sums.positive.centred / weight_sum, zero)
    return RowStatistics(
        log_odds=xp.where(both, difference + (log_negative - log_positive), zero),
        spread=spread,
        negative=xp.where(has_negative, top_negative + log_negative, zero),
        positive=xp.where(has_positive, top_positive + log_positive, zero),
        has_negative=has_negative,
        has_positive=has_positive,
    )


def each_positive(xp: Namespace, sums: RowSums) -> RowStatistics:
    """Row statistics with each positive in turn as the only one; arrays of shape (n, P)."""
    scores, members = sums.positive.scores, sums.positive.members
    members = xp.ones_like(scores, dtype=xp.bool) if members is None else members
    alone = PositiveSums(scores, members, of_one(xp, scores, members))
    negative = sums.negative
    total = xp.broadcast_to(negative.total[:, None], tuple(scores.shape))
    top = None if negative.top is None else xp.broadcast_to(negative.top[:, None], tuple(scores.shape))
    return row_statistics(xp, RowSums(ExpSum(top, total), alone))


def score_cotangents(
    xp: Namespace, sums: RowSums, row: RowStatistics, slopes: tuple[Array | None, ...]
) -> tuple[Array, Array | PositiveFactors]:
    """Coefficient (n,) of the terms ``exp(g - top)`` of the negatives, and the cotangents of the positives' scores.

    With slopes o, s, a, b by log-odds, spread, lse of the negatives and lse of the positives:

        negatives: (o + a) e^(g - top) / total        positives: (s + b - o) e^(g - top) / total - s t / n

    where t is 1 or the weight of the positive, and n the sum of these. With one positive in a row: b - o.
    """
    zero = xp.zeros_like(row.log_odds)
    slope_odds, slope_spread, slope_negative, slope_positive = (zero if slope is None else slope for slope in slopes)
    slope_odds = xp.where(xp.logical_and(row.has_negative, row.has_positive), slope_odds, zero)
    coefficient = safe_quotient(xp, slope_odds + slope_negative, sums.negative.total)
    positive = sums.positive
    if positive.weight_sum is None:
        return coefficient, xp.where(positive.sums.total == 0, zero, slope_positive - slope_odds)
    several = positive.count > 1
    slope_spread = xp.where(several, slope_spread, zero)
    mean_factor = slope_spread / xp.where(several, positive.weight_sum, xp.ones_like(zero))
    positive_factor = safe_quotient(xp, slope_spread + slope_positive - slope_odds, positive.sums.total)
    return coefficient, positive.cotangents(xp, PositiveFactors(positive_factor, mean_factor))
