"""Row statistics: the one place where log-odds are formed, and where slopes by them become cotangents of scores."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._core.logsumexp import ExpSum, exponentials, of_one
from .._core.protocol import Array, Namespace
from ..objectives.base import RowStatistics

__all__ = [
    "Positives",
    "RowSums",
    "each_positive",
    "of_line",
    "of_members",
    "row_statistics",
    "score_cotangents",
]


class Positives(NamedTuple):
    """The scores of the positives of some rows: one each, of shape (n,), or several among P columns, (n, P).

    `members` says which are there (None: all); of several, `terms` are ``exp(g - top)``, `centred` is ``Σ (g - top)``
    and `number` how many they are. With `weights` t > 0, `centred` is ``Σ t (g - top)``, `number` is ``Σ t``, and
    `n_members` how many they are.
    """

    scores: Array
    members: Array | None
    sums: ExpSum
    terms: Array | None = None
    centred: Array | None = None
    number: Array | None = None
    weights: Array | None = None
    n_members: Array | None = None

    def several(self) -> Array:
        """Whether a row has more than one positive."""
        number: Array = self.number if self.n_members is None else self.n_members
        return number > 1


class RowSums(NamedTuple):
    """All that the statistics of a row come from."""

    negative: ExpSum
    positive: Positives


def of_line(xp: Namespace, scores: Array, present: Array | None) -> Positives:
    """One positive a row, which every row has, or those that are `present`."""
    members = xp.ones_like(scores, dtype=xp.bool) if present is None else present
    return Positives(scores, present, of_one(xp, scores, xp.logical_and(members, scores != -math.inf)))


def of_members(
    xp: Namespace, scores: Array, members: Array, *, single: bool, weights: Array | None = None
) -> Positives:
    """The positives that a boolean array marks in a tile; `single` where a row has one at most."""
    if single:
        score = xp.sum(xp.where(members, scores, xp.zeros_like(scores)), axis=1)
        present = xp.any(members, axis=1)
        return Positives(score, present, of_one(xp, score, present))
    sums, terms = exponentials(xp, scores, members)
    assert sums.top is not None  # noqa: S101  (it is shifted)
    shift = xp.where(xp.isinf(sums.top), xp.zeros_like(sums.top), sums.top)[:, None]
    finite = xp.logical_and(members, xp.logical_not(xp.isinf(scores)))
    differences = xp.where(finite, scores - shift, xp.zeros_like(scores))
    count = xp.sum(xp.astype(finite, scores.dtype), axis=1)
    if weights is None:
        return Positives(scores, members, sums, terms, xp.sum(differences, axis=1), count)
    # Divided by the largest of a row, weights of any magnitude add up to a number between 1 and P.
    weights = xp.where(finite, xp.astype(weights, scores.dtype), xp.zeros_like(scores))
    largest = xp.max(weights, axis=1, keepdims=True)
    weights = weights / xp.where(largest > 0, largest, xp.ones_like(largest))
    centred, number = xp.sum(weights * differences, axis=1), xp.sum(weights, axis=1)
    return Positives(scores, members, sums, terms, centred, number, weights, count)


def row_statistics(xp: Namespace, sums: RowSums) -> RowStatistics:
    """The statistics of rows.

    The log-odds ``(top_n + log total_n) - (top_p + log total_p)`` are formed from the two shifts and the two logarithms
    apart, so that a constant added to a row cancels exactly; equal shifts cancel even where they are infinite.
    """
    negative, positive = sums.negative, sums.positive.sums
    nothing = xp.zeros_like(negative.total)
    assert positive.top is not None  # noqa: S101  (positives are shifted)
    shift = nothing if negative.top is None else negative.top
    has_negative = negative.total != 0 if negative.top is None else shift != -math.inf
    has_positive = positive.top != -math.inf
    log_negative = negative.log_total(xp)
    log_positive = positive.log_total(xp)
    both = xp.logical_and(has_negative, has_positive)
    apart = xp.logical_and(both, shift != positive.top)
    difference = xp.where(apart, shift, nothing) - xp.where(apart, positive.top, nothing)
    spread = nothing
    if sums.positive.centred is not None and sums.positive.number is not None:
        # lse - mean = log Σ e^(g - top) - Σ (g - top) / n, of which the top has cancelled already
        several = sums.positive.several()
        number = xp.where(several, sums.positive.number, xp.ones_like(nothing))
        spread = xp.where(several, log_positive - sums.positive.centred / number, nothing)
    return RowStatistics(
        log_odds=xp.where(both, difference + (log_negative - log_positive), nothing),
        spread=spread,
        negative=xp.where(has_negative, shift + log_negative, nothing),
        positive=xp.where(has_positive, positive.top + log_positive, nothing),
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
    coefficient = _divided(xp, of_odds + of_negative, sums.negative.total)
    positive = sums.positive
    if positive.terms is None or positive.number is None or positive.members is None:
        return coefficient, xp.where(positive.sums.total == 0, nothing, of_positive - of_odds)
    several = positive.several()
    of_spread = xp.where(several, of_spread, nothing)
    of_each = of_spread / xp.where(several, positive.number, xp.ones_like(nothing))
    share = _divided(xp, of_spread + of_positive - of_odds, positive.sums.total)
    finite = xp.logical_and(positive.members, xp.logical_not(xp.isinf(positive.scores)))
    each = of_each[:, None] if positive.weights is None else of_each[:, None] * positive.weights
    mean = xp.where(finite, each, xp.zeros_like(positive.scores))
    return coefficient, positive.terms * share[:, None] - mean


def _divided(xp: Namespace, slope: Array, total: Array) -> Array:
    """The slope of a sum's logarithm, divided by the sum; 0 where that is empty."""
    empty = total == 0
    return xp.where(empty, xp.zeros_like(slope), slope) / xp.where(empty, xp.ones_like(slope), total)
