"""Row statistics: the one place where log-odds are formed, and where slopes by them become cotangents of scores."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._core.logsumexp import ExpSum, exponentials, of_one
from .._core.numerics import safe_quotient
from .._core.protocol import Array, Namespace
from ..objectives.base import RowStatistics


class Positives(NamedTuple):
    """The scores of the positives of some rows: one each, of shape (n,), or several among P columns, (n, P).

    `members` says which are there (None: all). Of several, `terms` are ``exp(g - top)``, `shares` the weights t of the
    finite ones, or flags unless they are `weighted`, `centred` is ``Σ t (g - top)``, `number` is ``Σ t``, and `count`
    is how many there are.
    """

    scores: Array
    members: Array | None
    sums: ExpSum
    terms: Array = None
    centred: Array = None
    number: Array = None
    count: Array = None
    shares: Array = None
    weighted: bool = False

    def shared(self, xp: Namespace, numbers: Array) -> Array:
        """A number of each row, times the weight of each finite positive."""
        if self.weighted:
            return self.shares * numbers[:, None]
        return xp.where(self.shares, numbers[:, None], 0.0)


class RowSums(NamedTuple):
    """All that the statistics of a row come from."""

    negative: ExpSum
    positive: Positives


def of_line(xp: Namespace, scores: Array, present: Array | None) -> Positives:
    """One positive a row, which every row has, or those that are `present`."""
    members = xp.ones_like(scores, dtype=xp.bool) if present is None else present
    return Positives(scores, present, of_one(xp, scores, xp.logical_and(members, scores != -math.inf)))


def of_members(
    xp: Namespace,
    scores: Array,
    members: Array,
    *,
    single: bool,
    weights: Array | None = None,
    terms: Array = None,
) -> Positives:
    """The positives that a boolean array marks in a tile; `single` where a row has one at most.

    `terms` are exponentials of scores of which none is large; those of others are computed with a shift.
    """
    if single:
        score = xp.sum(xp.where(members, scores, 0.0), axis=1)
        present = xp.any(members, axis=1)
        return Positives(score, present, of_one(xp, score, present))
    if terms is not None:
        finite, differences = members, scores
        terms = xp.where(members, terms, 0.0)
        sums = ExpSum(None, xp.sum(terms, axis=1))
    else:
        sums, terms = exponentials(xp, scores, members)
        finite = xp.logical_and(members, xp.logical_not(xp.isinf(scores)))
        differences = scores - xp.where(xp.isinf(sums.top), 0.0, sums.top)[:, None]
    differences = xp.where(finite, differences, 0.0)
    number = count = xp.sum(xp.astype(finite, scores.dtype), axis=1)
    shares = finite
    if weights is not None:
        # Divided by the largest of a row, weights of any magnitude add up to a number between 1 and P.
        shares = xp.where(finite, xp.astype(weights, scores.dtype), 0.0)
        largest = xp.max(shares, axis=1, keepdims=True)
        shares = shares / xp.where(largest > 0, largest, xp.ones_like(largest))
        differences, number = shares * differences, xp.sum(shares, axis=1)
    centred = xp.sum(differences, axis=1)
    return Positives(scores, members, sums, terms, centred, number, count, shares, weights is not None)


def row_statistics(xp: Namespace, sums: RowSums) -> RowStatistics:
    """The statistics of rows.

    The log-odds ``(top_n + log total_n) - (top_p + log total_p)`` are formed from the two shifts and the two logarithms
    apart, so that a constant added to a row cancels exactly; equal shifts cancel even where they are infinite.
    """
    negative, positive = sums.negative, sums.positive.sums
    nothing = xp.zeros_like(negative.total)
    top_negative, top_positive = (nothing if x.top is None else x.top for x in (negative, positive))
    has_negative, has_positive = negative.is_filled(), positive.is_filled()
    log_negative = negative.log_total(xp)
    log_positive = positive.log_total(xp)
    both = xp.logical_and(has_negative, has_positive)
    apart = xp.logical_and(both, top_negative != top_positive)
    difference = xp.where(apart, top_negative, nothing) - xp.where(apart, top_positive, nothing)
    spread = nothing
    if sums.positive.number is not None:
        # lse - mean = log Σ e^(g - top) - Σ (g - top) / n, of which the top has cancelled already
        several = sums.positive.count > 1
        number = xp.where(several, sums.positive.number, xp.ones_like(nothing))
        spread = xp.where(several, log_positive - sums.positive.centred / number, nothing)
    return RowStatistics(
        log_odds=xp.where(both, difference + (log_negative - log_positive), nothing),
        spread=spread,
        negative=xp.where(has_negative, top_negative + log_negative, nothing),
        positive=xp.where(has_positive, top_positive + log_positive, nothing),
        has_negative=has_negative,
        has_positive=has_positive,
    )


def each_positive(xp: Namespace, sums: RowSums) -> RowStatistics:
    """The statistics of each positive as if it were the only one of its row; arrays of shape (n, P)."""
    scores, members = sums.positive.scores, sums.positive.members
    assert members is not None  # noqa: S101  (of several)
    alone = Positives(scores, members, of_one(xp, scores, members))
    negative = sums.negative
    total = xp.broadcast_to(negative.total[:, None], tuple(scores.shape))
    top = None if negative.top is None else xp.broadcast_to(negative.top[:, None], tuple(scores.shape))
    return row_statistics(xp, RowSums(ExpSum(top, total), alone))


def score_cotangents(
    xp: Namespace, sums: RowSums, row: RowStatistics, slopes: tuple[Array | None, ...]
) -> tuple[Array, Array]:
    """What slopes by the statistics mean for the scores.

    Returns the coefficient (n,) of the terms ``exp(g - top)`` of the negatives, and the cotangents of the positives'
    scores, of their shape. With slopes o, s, a, b by log-odds, spread, lse of the negatives and lse of the positives:

        negatives: (o + a) e^(g - top) / total        positives: (s + b - o) e^(g - top) / total - s t / n

    where t is 1, or the weight of the positive, and n the sum of these.
    """
    nothing = xp.zeros_like(row.log_odds)
    of_odds, of_spread, of_negative, of_positive = (nothing if slope is None else slope for slope in slopes)
    of_odds = xp.where(xp.logical_and(row.has_negative, row.has_positive), of_odds, nothing)
    coefficient = safe_quotient(xp, of_odds + of_negative, sums.negative.total)
    positive = sums.positive
    if positive.number is None:
        return coefficient, xp.where(positive.sums.total == 0, nothing, of_positive - of_odds)
    several = positive.count > 1
    of_spread = xp.where(several, of_spread, nothing)
    of_each = of_spread / xp.where(several, positive.number, xp.ones_like(nothing))
    share = safe_quotient(xp, of_spread + of_positive - of_odds, positive.sums.total)
    return coefficient, positive.terms * share[:, None] - positive.shared(xp, of_each)
