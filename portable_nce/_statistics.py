"""Row statistics: all that an objective of the softmax family needs to know of a row of scores."""

from __future__ import annotations

import math
from typing import NamedTuple

from ._core.namespace import namespace_of
from ._core.numerics import ExpSum, exponentials_summed, single_exp_sum
from ._core.protocol import Array, Namespace

__all__ = ["RowStatistics", "RowSums", "dense_sums", "row_statistics", "sums_and_exponentials"]


class RowSums(NamedTuple):
    """The sums that an execution produces for each row, dense or streamed.

    `centred` is ``Σ (g - top)`` over the positives, `number` how many they are; both are None where the pairing has at
    most one positive in a row.
    """

    negative: ExpSum
    positive: ExpSum
    centred: Array | None = None
    number: Array | None = None


class RowStatistics(NamedTuple):
    """What an objective may use of each row ``i``; arrays of shape (N,).

    Attributes
    ----------
    log_odds : array
        ``u = lse(negatives) - lse(positives)``; 0 where either set is empty.
    spread : array
        ``lse(positives) - mean(positives)``; 0 where there is at most one positive.
    negative : array
        ``lse(negatives)``; 0 where there is none.
    positive : array
        ``lse(positives)``; 0 where there is none.
    has_negative : array
        Boolean: whether the row has a negative. A score of -inf takes no part.
    has_positive : array
        Boolean: whether the row has a positive. A score of -inf takes no part.
    """

    log_odds: Array
    spread: Array
    negative: Array
    positive: Array
    has_negative: Array
    has_positive: Array


def dense_sums(scores: Array, positives: Array, negatives: Array, *, single: bool) -> RowSums:
    """The sums of each row of a score matrix, given boolean matrices of positives and negatives."""
    return sums_and_exponentials(scores, positives, negatives, single=single)[0]


def sums_and_exponentials(
    scores: Array, positives: Array, negatives: Array, *, single: bool
) -> tuple[RowSums, tuple[Array, Array | None]]:
    """The same, and the exponentials of the negatives and of the positives; None for these if they are `single`."""
    xp = namespace_of(scores)
    negative, of_negatives = exponentials_summed(xp, scores, negatives)
    if single:
        score = xp.sum(xp.where(positives, scores, xp.zeros_like(scores)), axis=1)
        return RowSums(negative, single_exp_sum(xp, score, xp.any(positives, axis=1))), (of_negatives, None)
    positive, of_positives = exponentials_summed(xp, scores, positives)
    sums = RowSums(negative, positive, *centred_sum(xp, scores, positives, positive.top))
    return sums, (of_negatives, of_positives)


def centred_sum(xp: Namespace, scores: Array, positives: Array, top: Array) -> tuple[Array, Array]:
    """``Σ (g - top)`` over the finite positives of each row, and their number."""
    infinite = xp.isinf(top)
    shift = xp.expand_dims(xp.where(infinite, xp.zeros_like(top), top), axis=1)
    members = xp.logical_and(positives, xp.logical_not(xp.isinf(scores)))
    differences = xp.where(members, scores - shift, xp.zeros_like(scores))
    return xp.sum(differences, axis=1), xp.sum(xp.astype(members, scores.dtype), axis=1)


def row_statistics(sums: RowSums) -> RowStatistics:
    """The statistics, from sums of either execution.

    The log-odds are formed from the two shifts and the two logarithms apart, so that a constant added to a row cancels
    exactly; equal shifts cancel even where they are infinite.
    """
    xp = namespace_of(sums.negative.total)
    nothing = xp.zeros_like(sums.negative.total)
    has_negative = sums.negative.top != -math.inf
    has_positive = sums.positive.top != -math.inf
    log_negative = sums.negative.log_total(xp)
    log_positive = sums.positive.log_total(xp)
    both = xp.logical_and(has_negative, has_positive)
    apart = xp.logical_and(both, sums.negative.top != sums.positive.top)
    shift = xp.where(apart, sums.negative.top, nothing) - xp.where(apart, sums.positive.top, nothing)
    spread = nothing
    if sums.centred is not None and sums.number is not None:
        several = sums.number > 1
        mean = sums.centred / xp.where(several, sums.number, xp.ones_like(sums.number))
        spread = xp.where(several, log_positive - mean, nothing)
    return RowStatistics(
        log_odds=xp.where(both, shift + (log_negative - log_positive), nothing),
        spread=spread,
        negative=xp.where(has_negative, sums.negative.top + log_negative, nothing),
        positive=xp.where(has_positive, sums.positive.top + log_positive, nothing),
        has_negative=has_negative,
        has_positive=has_positive,
    )
