"""Row sums of the hard-negative objective: two sums of exponentials, and the number of negatives."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._core.autodiff import stop_gradient
from .._core.logsumexp import ExpSum
from .._core.numerics import softplus_and_sigmoid
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..objectives.hard import HardNegatives
from ..pairings import Members
from .inputs import Arrays, Inputs, only
from .row_losses import Exclude, Family, RowLosses, ScoreFacts, weigh
from .statistics import PositiveSums, RowSums, from_mask, row_statistics, score_cotangents

_LEAST = -80.0
"""Lower limit of w in ``e^-w``, which would overflow. Below it, all negatives count as false, unless τ⁺ is 0."""


class HardSums(NamedTuple):
    """``Σ e^((1 + β) (g - top))``, ``Σ e^(β (g - top))`` and the number of negatives of each row."""

    top: Array
    hard: Array
    soft: Array
    count: Array


class Reweighted(Family):
    """Sums of the exponentials of negatives, with and without importance weights; the parameter is the floor f."""

    def __init__(self, xp: Namespace, spec: HardNegatives, facts: ScoreFacts) -> None:
        super().__init__(xp, spec, facts)
        self.unshifted = facts.small
        self.n_negatives = facts.n_negatives if facts.complete else None

    def add_negatives(
        self, scores: Arrays, exclude: Exclude, block: Inputs
    ) -> tuple[HardSums, tuple[Array, Array | None]]:
        del block
        negatives = exclude(scores[0], -math.inf)
        if self.facts.absent is not None:
            negatives = self.xp.where(negatives <= self.facts.absent, -math.inf, negatives)
        return self._summed(negatives, bounded=self.unshifted)

    def _summed(self, scores: Array, *, bounded: bool) -> tuple[HardSums, tuple[Array, Array | None]]:
        xp, beta, total_of = self.xp, self.spec.beta, adapter_of(scores).sum_along
        count = xp.zeros_like(scores[:, 0])  # a known number is set in `finish`
        if self.n_negatives is None:
            count = xp.sum(xp.astype(scores != -math.inf, scores.dtype), axis=1)
        top = xp.zeros_like(count)
        if not self.unshifted:
            top = stop_gradient(xp.max(scores, axis=1))
            scores = scores - xp.where(xp.isinf(top), xp.zeros_like(top), top)[:, None]
        exp_in_place = adapter_of(scores).exp_in_place
        if beta == 0:
            terms = exp_in_place(scores, bounded=bounded)
            return HardSums(top, total_of(terms, 1), count, count), (terms, None)
        powers = None if beta == 1 else xp.exp(beta * scores)
        terms = exp_in_place(scores, bounded=bounded)
        soft = terms if powers is None else powers
        hard = terms * soft
        return HardSums(top, total_of(hard, 1), total_of(soft, 1), count), (hard, soft)

    def add_masked(
        self, scores: Arrays, members: Members, block: Inputs
    ) -> tuple[HardSums, tuple[Array, Array | None], PositiveSums]:
        del block
        members.refuse_weights(of_positives=False)
        total, (hard, soft) = self._summed(self.xp.where(members.negatives, scores[0], -math.inf), bounded=False)
        if soft is None:  # the derivative of an exponential is itself, and must not be overwritten
            hard = adapter_of(hard).where_in_place(members.negatives, hard, 0.0)
        single, weights = self.facts.single, members.weights
        return total, (hard, soft), from_mask(self.xp, scores[0], members.positives, single=single, weights=weights)

    def merge(self, parts: list[HardSums]) -> tuple[HardSums, list[tuple[Array, ...] | None]]:
        if len(parts) == 1:
            return parts[0], [None]
        xp, beta = self.xp, self.spec.beta
        top = parts[0].top
        for part in parts[1:]:
            top = xp.where(part.top > top, part.top, top)
        shift = xp.where(xp.isinf(top), xp.zeros_like(top), top)
        rescales: list[tuple[Array, ...] | None] = []
        hard = soft = count = xp.zeros_like(top)
        for part in parts:
            difference = xp.where(xp.isinf(part.top), xp.zeros_like(top), part.top - shift)
            rescale = xp.exp((1.0 + beta) * difference), xp.exp(beta * difference), xp.exp(difference)
            hard, soft, count = hard + part.hard * rescale[0], soft + part.soft * rescale[1], count + part.count
            rescales.append(rescale)
        return HardSums(top, hard, soft, count), rescales

    def finish(self, total: HardSums, positive: PositiveSums, block: Inputs) -> RowLosses:
        """The losses of rows.

        With M negatives, ``w = log M + lse((1 + β) g) - lse(β g) - g⁺`` and ``q = τ⁺ M e^-w``, the loss is the softplus
        of

            v = max(w - log(1 - τ⁺) + log(1 - q), log M + f - g⁺)

        The first branch has the derivative ``1 / (1 - q)`` by w; the second depends on g⁺ alone.
        """
        xp, beta, tau_plus, (floor,) = self.xp, self.spec.beta, self.spec.tau_plus, block.parameters
        if self.n_negatives is not None:
            total = total._replace(count=xp.zeros_like(total.count) + self.n_negatives)  # maybe symbolic
        one, zero = xp.ones_like(total.count), xp.zeros_like(total.count)
        has_negative = total.count > 0
        soft_total = total.count if beta == 0 else total.soft
        count, hard, soft = (xp.where(has_negative, x, one) for x in (total.count, total.hard, soft_total))
        sums = RowSums(ExpSum(total.top, total.hard), positive)
        row = row_statistics(xp, sums)
        both = xp.logical_and(has_negative, row.has_positive)
        lead = xp.where(both, xp.where(both, total.top, zero) - row.positive, zero)
        log_count = xp.log(count)
        w = log_count + lead + xp.log(hard) - xp.log(soft)
        false_negatives = tau_plus * count * xp.exp(-xp.where(w < _LEAST, _LEAST * one, w))
        unknown = xp.isnan(w)
        enough = xp.logical_or(false_negatives < 1.0, unknown)
        kept = xp.where(enough, -false_negatives + 1.0, one)
        first = xp.where(enough, w - self._log_rest(one) + xp.log(kept), -math.inf)
        least = log_count + floor - row.positive
        above = xp.logical_and(enough, xp.logical_or(first >= least, unknown))
        v = xp.where(above, xp.where(above, first, zero), least)
        live = xp.logical_and(both, v != -math.inf)
        value, slope = softplus_and_sigmoid(xp, xp.where(live, v, zero))
        values, factor, weight_slopes = weigh(xp, xp.where(live, value, zero), only(block.weights), row.has_positive)
        counts = xp.astype(row.has_positive, values.dtype)
        if not self.need_grad:
            return RowLosses(values, counts)
        slope = self.divided(xp.where(live, slope, zero) * factor)
        slope_w = xp.where(above, slope / kept, zero)
        coefficient, quotient = slope_w / hard, None
        if beta != 0:
            coefficient, quotient = beta * slope_w / soft, (1.0 + 1.0 / beta) * soft / hard
        _, to_positive = score_cotangents(xp, sums, row, (None, None, None, xp.where(above, -slope_w, -slope)))
        return RowLosses(values, counts, coefficient, to_positive, (zero, *self.to_weights(weight_slopes)), quotient)

    def _log_rest(self, one: Array) -> Array:
        """``log(1 - τ⁺)`` in the precision of the arrays, which may exceed the precision of a Python float."""
        tau_plus = self.spec.tau_plus  # 1 - τ⁺ is exact from 1 / 2 on
        xp, half = self.xp, 0.5
        return xp.log(one * (1.0 - tau_plus)) if tau_plus >= half else xp.log1p(one * -tau_plus)

    def tile_cotangent(
        self, residual: tuple[Array, Array | None], losses: RowLosses, rescale: tuple[Array, ...] | None
    ) -> tuple[Array, Array]:
        """Cotangent of a tile of negatives, as a matrix and a factor of each row; overwrites the exponentials.

        With the total sums h and s of a row, and the slope w' of its loss by w:

            (β w' / s) ((1 + 1 / β) (s / h) e^((1 + β) g) - e^(β g))        β = 0: (w' / h) e^g

        The exponentials of a part have different factors; their quotient is at most 1.
        """
        hard, soft = residual
        if soft is None:
            return hard, losses.coefficient if rescale is None else losses.coefficient * rescale[0]
        factor, quotient = losses.coefficient, losses.quotient
        if rescale is not None:
            factor, quotient = factor * rescale[1], quotient * rescale[2]
        hard = adapter_of(hard).times_in_place(hard, quotient[:, None])
        hard -= soft
        return hard, factor
