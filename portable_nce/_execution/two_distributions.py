"""RELIC's family: InfoNCE of each row, and the divergence of its distributions in two score matrices.

With the scores g and h of a row, p and q are their softmax over the same columns. A tile holds all columns, so that one
pass has the sums of both and the terms that need them. With ``r = log p - log q``,

    KL(p || q) = Σ (p r + q - p)        to g: p (r - Σ p r)        to h: q - p

The terms are not negative: nothing cancels if the distributions are almost equal, and an error of r that all columns
share has no effect. Nor does ``p - q = (p + q) tanh(r / 2)`` cancel or overflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from .._core.autodiff import stop_gradient
from .._core.logsumexp import ExpSum
from .._core.numerics import safe_quotient, sigmoid, softplus
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from .._core.trees import mapped
from ..objectives.base import RowStatistics
from ..objectives.relic import Relic
from ..pairings import Members
from .inputs import Arrays, Inputs, only
from .row_losses import Exclude, Family, RowLosses, ScoreFacts, weigh, with_positives
from .statistics import PositiveFactors, PositiveSums, RowSums, from_mask, one_per_row, row_statistics, score_cotangents


class Distribution(NamedTuple):
    """A distribution of each row: its sums and statistics, and log-probabilities.

    That of the positives is `log_p`; of a negative, ``(g - top) - rest``, and its probability ``factor e^(g - top)``.
    `certain`: rows with a score of +inf.
    """

    sums: RowSums
    row: RowStatistics
    rest: Array
    factor: Array
    log_p: Array
    certain: Array


class BothDistributions(NamedTuple):
    """Both distributions of each row, and sums over its negatives: of p - q, and of each ``e^(g - top) r / 2``."""

    sides: Sequence[Distribution]
    gap: Array
    halves: Sequence[Array]


class _Divergence(NamedTuple):
    """Divergence of `first` (0 or 1) from the other distribution, and its terms ``p r`` and ``p - q`` of the positives.

    `moved`: the sum of p r over the negatives. `infinite`: rows whose divergence is.
    """

    first: int
    value: Array
    infinite: Array
    moved: Array
    own: Array
    own_gap: Array


class TwoDistributions(Family):
    """InfoNCE, and the divergence of two distributions; the parameter is its weight α.

    A tile must hold all columns. Its residual are p - q; of each matrix, ``e^(g - top)``; and these times r / 2.
    """

    relative = True

    def __init__(self, xp: Namespace, spec: Relic, facts: ScoreFacts) -> None:
        super().__init__(xp, spec, facts)
        self.unshifted = facts.small

    def against(self, scores: Array, block: Inputs) -> Inputs:
        """The block with the scores of the positives in both matrices, (n, 2), ahead of its parameter."""
        return block._replace(parameters=(scores, *block.parameters))

    def partner_positives(self, scores: Array, block: Inputs) -> None:
        """None: the sums of a tile include the positives."""

    def add_negatives(self, scores: Arrays, exclude: Exclude, block: Inputs) -> tuple[BothDistributions, Arrays]:
        """Sums over the columns of rows whose positives are known."""
        own, present = block.parameters[0], only(block.present)
        positives = [one_per_row(self.xp, own[:, k], present) for k in range(len(scores))]
        if self.facts.finite:
            return self._compared(scores, exclude, positives)
        return self._among(exclude(self._are_there(scores), False), scores, positives)  # noqa: FBT003  (an entry)

    def add_masked(
        self, scores: Arrays, members: Members, block: Inputs
    ) -> tuple[BothDistributions, Arrays, Sequence[PositiveSums]]:
        """Sums over a masked tile. A score of -inf leaves its pair out of both distributions."""
        del block
        xp, (positives, taken, weights, of_negatives) = self.xp, members.exclusive()
        if of_negatives is None:
            members.refuse_weights()
        own = [from_mask(xp, x, positives, single=self.facts.single, weights=weights) for x in scores]
        if of_negatives is not None:
            logs = xp.log(xp.where(taken, of_negatives, xp.ones_like(scores[0])))
            scores = tuple([x + logs for x in scores])
        if not self.facts.finite:
            taken = xp.logical_and(taken, self._are_there(scores))
        return (*self._among(taken, scores, own), own)

    def _are_there(self, scores: Arrays) -> Array:
        first, second = (x != -math.inf for x in scores)
        return self.xp.logical_and(first, second)

    def _among(
        self, taken: Array, scores: Arrays, positives: Sequence[PositiveSums]
    ) -> tuple[BothDistributions, Arrays]:
        """Sums over the pairs that are `taken`; what others hold may be NaN."""
        xp, kept = self.xp, adapter_of(scores[0]).where_in_place
        scores = tuple([xp.where(taken, x, 0.0) for x in scores])
        if not self.facts.finite:
            scores = tuple([xp.where(x == math.inf, _stand_in(xp, x), x) for x in scores])
        return self._compared(scores, lambda x, value: kept(taken, x, value), positives)

    def _compared(
        self, scores: Arrays, exclude: Exclude, positives: Sequence[PositiveSums]
    ) -> tuple[BothDistributions, Arrays]:
        """Sums over the negatives, of scores that are not overwritten."""
        xp, adapter = self.xp, adapter_of(scores[0])
        tops, terms = zip(*[self._exponentials(x, exclude) for x in scores], strict=True)
        terms = adapter.computed_once(*terms)
        totals = [adapter.sum_along(x, 1) for x in terms]
        first, second = sides = [self._distribution(*each) for each in zip(tops, totals, positives, strict=True)]
        if not (self.unshifted or self.facts.finite):  # a stand-in has no digits for a difference
            scores = tuple([x - top[:, None] for x, top in zip(scores, tops, strict=True)])
        half = scores[0] - scores[1]
        if self.facts.finite and not self.unshifted:
            half -= (tops[0] - tops[1])[:, None]
        half -= (first.rest - second.rest)[:, None]
        half = adapter.times_in_place(half, 0.5)
        gap = terms[0] * first.factor[:, None]
        gap += terms[1] * second.factor[:, None]
        gap = adapter.times_in_place(gap, xp.tanh(half))
        gap, *halves = adapter.computed_once(gap, *[x * half for x in terms])
        of_gap, *of_halves = (adapter.sum_along(x, 1) for x in (gap, *halves))
        return BothDistributions(sides, of_gap, of_halves), (gap, *terms, *halves)

    def _exponentials(self, scores: Array, exclude: Exclude) -> tuple[Array | None, Array]:
        """Shift of each row (None: 0), and ``exp(g - top)`` of the negatives, 0 elsewhere."""
        xp, adapter = self.xp, adapter_of(scores)
        if self.unshifted:
            return None, exclude(adapter.exp_bounded(scores), 0.0)
        below = exclude(scores + 0.0, -math.inf)
        top = stop_gradient(xp.max(below, axis=1))
        top = xp.where(top == -math.inf, xp.zeros_like(top), top)
        below -= top[:, None]
        return top, adapter.exp_in_place(below, bounded=False)

    def _distribution(self, top: Array | None, total: Array, positive: PositiveSums) -> Distribution:
        """The distribution of each row, from the shift and the sum of its negatives' exponentials.

        With the log-odds u, the log-probability of the positives is -softplus(u), and the negatives have σ(u) in all.
        """
        xp = self.xp
        zero, one = xp.zeros_like(total), xp.ones_like(total)
        sums = ExpSum(top, total)
        certain = xp.zeros_like(total, dtype=xp.bool)
        if top is not None:
            sums = ExpSum(xp.where(total == 0, -math.inf, top), total)
            if not self.facts.finite:
                certain = top == _stand_in(xp, total)
                sums = ExpSum(xp.where(certain, math.inf, sums.top), xp.where(certain, zero, total))
        every = RowSums(sums, positive)
        row = row_statistics(xp, every)
        rest, share, log_p = xp.log(xp.where(total == 0, one, total)), one, zero
        if self.spec.include_positive:
            both = xp.logical_and(row.has_positive, row.has_negative)
            rest = rest + xp.where(row.has_positive, softplus(xp, -row.log_odds), zero)
            share = xp.where(row.has_positive, sigmoid(xp, row.log_odds), one)
            log_p = xp.where(both, -softplus(xp, row.log_odds), zero)
            certain = xp.logical_or(certain, rest == math.inf)
            rest = xp.where(rest == math.inf, _stand_in(xp, rest), rest)
            log_p = xp.where(log_p == -math.inf, -_stand_in(xp, rest), log_p)
        return Distribution(every, row, rest, safe_quotient(xp, share, total), log_p, certain)

    def merge(self, parts: list[BothDistributions]) -> tuple[BothDistributions, list[None]]:
        (part,) = parts
        return part, [None]

    def _divergences(self, total: BothDistributions) -> list[_Divergence]:
        """The divergence of each direction of the loss."""
        xp, sides = self.xp, total.sides
        half = 0.5 * (sides[0].log_p - sides[1].log_p)
        own = [xp.exp(side.log_p) for side in sides]
        own_gap = (own[0] + own[1]) * xp.tanh(half)
        found = []
        for anchor in range(1 + self.spec.symmetric):
            first = anchor if self.spec.direction == "a_to_b" else 1 - anchor
            sign = 1.0 - 2.0 * first
            moved = (2.0 * sign) * (sides[first].factor * total.halves[first])
            value, of_own, of_gap = moved - sign * total.gap, xp.zeros_like(moved), xp.zeros_like(moved)
            if self.spec.include_positive:
                of_own, of_gap = (2.0 * sign) * (own[first] * half), sign * own_gap
                value = value + (of_own - of_gap)
            # If p is not 0 where q is.
            infinite = xp.logical_and(sides[1 - first].certain, value > math.sqrt(_stand_in(xp, value)))
            found.append(_Divergence(first, value, infinite, moved, of_own, of_gap))
        return found

    def finish(self, total: BothDistributions, positive: Any, block: Inputs) -> RowLosses:
        del positive
        xp, spec, alpha, sides = self.xp, self.spec, block.parameters[-1], total.sides
        share = 0.5 if spec.symmetric else 1.0
        divergences = self._divergences(total)
        values = xp.zeros_like(alpha)
        for side, one in zip(sides, divergences, strict=False):
            infinite = xp.logical_and(one.infinite, alpha != 0)
            values = values + share * (alpha * xp.where(infinite, math.inf, one.value))
            if spec.base is not None:
                values = values + share * spec.base.values(side.row)
        counted = sides[0].row.has_positive
        values, factor, weight_slopes = weigh(xp, values, only(block.weights), counted)
        counts = xp.astype(counted, values.dtype)
        if not self.need_grad:
            return RowLosses(values, counts)
        factor = share * self.divided(counts if factor is None else factor)
        coefficients, to_positive = self._factors(sides, divergences, factor, alpha)
        of_alpha = [xp.where(factor == 0, xp.zeros_like(factor), factor * one.value) for one in divergences]
        to_alpha = sum(of_alpha[1:], of_alpha[0])
        return RowLosses(values, counts, coefficients, to_positive, (to_alpha, *self.to_weights(weight_slopes)))

    def _factors(
        self, sides: Sequence[Distribution], divergences: Sequence[_Divergence], factor: Array, alpha: Array
    ) -> tuple[Array, Array | PositiveFactors]:
        """Factors of the residuals, (n, 6), and of the positives of both matrices.

        With f the factor of the row's divergence, and ``w = Σ p r`` over the negatives, the derivative of ``log p`` by
        the log-odds u of p is σ(-u) for a negative, -σ(u) for the positives, and by the lse of the negatives -1 for a
        negative. The terms q - p sum to 0.
        """
        xp, zero = self.xp, self.xp.zeros_like(factor)
        slopes = [[zero] * 4 for _ in sides]
        of_half, of_gap = [zero] * 2, [zero] * 2
        for anchor, one in enumerate(divergences):
            if self.spec.base is not None:
                of_base = self.spec.base.pulled(sides[anchor].row, factor)
                slopes[anchor] = [x if y is None else x + y for x, y in zip(slopes[anchor], of_base, strict=True)]
            f = xp.where(one.infinite, zero, factor * alpha)
            first, second, sign = one.first, 1 - one.first, 1.0 - 2.0 * one.first
            odds = sides[first].row.log_odds
            by_odds = zero
            if self.spec.include_positive:
                by_odds = sigmoid(xp, -odds) * one.moved - sigmoid(xp, odds) * one.own
            slopes[first][0] = slopes[first][0] + f * by_odds
            slopes[first][2] = slopes[first][2] - f * one.moved
            of_half[first] = of_half[first] + (2.0 * sign) * (f * sides[first].factor)
            slopes[second][0] = slopes[second][0] + f * one.own_gap
            slopes[second][2] = slopes[second][2] - f * one.own_gap
            of_gap[second] = of_gap[second] - sign * f
        both = [score_cotangents(xp, side.sums, side.row, tuple(x)) for side, x in zip(sides, slopes, strict=True)]
        of_terms, to_positive = zip(*both, strict=True)
        coefficients = xp.stack([x for each in zip(of_terms, of_half, of_gap, strict=True) for x in each], axis=1)
        return coefficients, mapped(lambda *x: xp.stack(x, axis=1), *to_positive)

    def cotangents(self, residual: Arrays, losses: RowLosses) -> Arrays:
        """The cotangents of an only tile's scores, of both matrices; the residual may be overwritten."""
        gap, *others = residual
        adapter, spec = adapter_of(gap), self.spec
        anchors = range(1 + spec.symmetric)
        firsts = [k if spec.direction == "a_to_b" else 1 - k for k in anchors]
        found = []
        for k in range(2):
            used = {
                1: (others[2 + k], k in firsts),
                0: (others[k], k in anchors or k in firsts),
                2: (gap, 1 - k in firsts),
            }
            total: Array = None
            for place, (x, is_used) in used.items():
                factor = losses.coefficient[:, 3 * k + place, None]
                if is_used and total is None:
                    total = adapter.times_in_place(x, factor)
                elif is_used and (spec.symmetric and x is gap):  # of both matrices
                    total += x * factor
                elif is_used:
                    total = adapter.plus_product(total, x, factor)
            found.append(total)
        return tuple(found)

    def masked_cotangents(
        self, residual: Any, positive: Any, losses: RowLosses, members: Members, rescale: None = None
    ) -> Arrays:
        """The cotangents of a masked tile's scores, of both matrices."""
        del rescale
        to_positives = [mapped(itemgetter((slice(None), k)), losses.to_positive) for k in range(2)]
        each = zip(self.cotangents(residual, losses), positive, to_positives, strict=True)
        return tuple([with_positives(*own, members) for own in each])


def _stand_in(xp: Namespace, like: Array) -> float:
    """Finite stand-in for infinity, of which the square is finite."""
    return math.sqrt(float(xp.finfo(like.dtype).max))
