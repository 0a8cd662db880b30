"""What rows add up to for the objective of hard negatives: two sums of exponentials, and how many there are."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._core.autodiff import stop_gradient
from .._core.logsumexp import ExpSum
from .._core.numerics import softplus_and_sigmoid
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..pairings import Members
from .inputs import Arrays
from .row_losses import Exclude, Family, Known, RowLosses, weigh
from .statistics import Positives, RowSums, of_members, row_statistics, score_cotangents
from .tiling import MAX_UNSHIFTED_LOGIT

_LEAST = -80.0
"""Below that, all negatives are thought to be positives, whatever there are; and the exponential would overflow."""


class ReweightedPlan(NamedTuple):
    """The objective of hard negatives. The first number of each row is the least score that there is."""

    beta: float
    tau_plus: float
    parameters: int = 1
    weighted: bool = False


class HardSums(NamedTuple):
    """``Σ e^((1 + β) (g - top))``, ``Σ e^(β (g - top))`` and the number of the negatives of some rows."""

    top: Array
    hard: Array
    soft: Array
    number: Array


class Reweighted(Family):
    """Sums of the negatives as they are, and as they are weighted."""

    def __init__(self, xp: Namespace, plan: ReweightedPlan, known: Known) -> None:
        super().__init__(xp, plan, known)
        # No score times 1 + β is large. Infinity times a symbol is NaN to torch.compile.
        self.unshifted = known.bound <= MAX_UNSHIFTED_LOGIT / (1.0 + plan.beta)
        self.negatives = known.negatives if known.complete else None

    def add_negatives(
        self, scores: Array, exclude: Exclude, by_row: Arrays
    ) -> tuple[HardSums, tuple[Array, Array | None]]:
        """The sums of a tile of negatives, and its exponentials."""
        del by_row
        scores = exclude(scores, -math.inf)
        if self.known.absent is not None:
            scores = self.xp.where(scores <= self.known.absent, -math.inf, scores)
        return self._summed(scores, bounded=self.unshifted)

    def _summed(self, scores: Array, *, bounded: bool) -> tuple[HardSums, tuple[Array, Array | None]]:
        xp, beta, total_of = self.xp, self.plan.beta, adapter_of(scores).sum_along
        number = xp.zeros_like(scores[:, 0])  # of all tiles together, where that is known
        if self.negatives is None:
            number = xp.sum(xp.astype(scores != -math.inf, scores.dtype), axis=1)
        top = xp.zeros_like(number)
        if not self.unshifted:
            top = stop_gradient(xp.max(scores, axis=1))
            scores = scores - xp.where(xp.isinf(top), xp.zeros_like(top), top)[:, None]
        terms = adapter_of(scores).exp_in_place(scores if beta in {0.0, 1.0} else scores + 0.0, bounded=bounded)
        if beta == 0:
            return HardSums(top, total_of(terms, 1), number, number), (terms, None)
        soft = terms if beta == 1 else xp.exp(beta * scores)
        hard = terms * soft
        return HardSums(top, total_of(hard, 1), total_of(soft, 1), number), (hard, soft)

    def add_masked(
        self, scores: Arrays, members: Members, by_row: Arrays
    ) -> tuple[HardSums, tuple[Array, Array | None], Positives]:
        """The sums of the negatives of a tile, its exponentials, and the positives."""
        del by_row
        members.refuse_weights(of_positives=False)
        total, residual = self._summed(self.xp.where(members.negatives, scores[0], -math.inf), bounded=False)
        single, weights = self.known.single, members.weights
        return total, residual, of_members(self.xp, scores[0], members.positives, single=single, weights=weights)

    def merge(self, parts: list[HardSums]) -> tuple[HardSums, list[tuple[Array, ...] | None]]:
        """The sums of a row, and the factors of the parts."""
        if len(parts) == 1:
            return parts[0], [None]
        xp, beta = self.xp, self.plan.beta
        top = parts[0].top
        for part in parts[1:]:
            top = xp.where(part.top > top, part.top, top)
        shift = xp.where(xp.isinf(top), xp.zeros_like(top), top)
        rescales: list[tuple[Array, ...] | None] = []
        hard = soft = number = xp.zeros_like(top)
        for part in parts:
            difference = xp.where(xp.isinf(part.top), xp.zeros_like(top), part.top - shift)
            rescale = xp.exp((1.0 + beta) * difference), xp.exp(beta * difference), xp.exp(difference)
            hard, soft, number = hard + part.hard * rescale[0], soft + part.soft * rescale[1], number + part.number
            rescales.append(rescale)
        return HardSums(top, hard, soft, number), rescales

    def finish(self, total: HardSums, positive: Positives, by_row: Arrays, *, need_grad: bool) -> RowLosses:
        """The losses of rows.

        With ``w = log M + lse((1 + β) g) - lse(β g) - g⁺`` and ``q = τ⁺ M e^-w``, the loss is the softplus of

            v = max(w - log(1 - τ⁺) + log(1 - q), log M + f - g⁺),

        whose first branch has the derivative ``1 / (1 - q)`` by w.
        """
        xp, (beta, tau_plus) = self.xp, self.plan[:2]
        if self.negatives is not None:
            total = total._replace(number=xp.zeros_like(total.number) + self.negatives)  # which may be a symbol
        one, nothing = xp.ones_like(total.number), xp.zeros_like(total.number)
        has_negative = total.number > 0
        of_soft = total.number if beta == 0 else total.soft
        number, hard, soft = (xp.where(has_negative, x, one) for x in (total.number, total.hard, of_soft))
        sums = RowSums(ExpSum(total.top, total.hard), positive)
        row = row_statistics(xp, sums)
        both = xp.logical_and(has_negative, row.has_positive)
        lead = xp.where(both, xp.where(both, total.top, nothing) - row.positive, nothing)
        log_number = xp.log(number)
        w = log_number + lead + xp.log(hard) - xp.log(soft)
        false = tau_plus * number * xp.exp(-xp.where(w < _LEAST, _LEAST * one, w))
        unknown = xp.isnan(w)
        enough = xp.logical_or(false < 1.0, unknown)
        kept = xp.where(enough, -false + 1.0, one)
        first = xp.where(enough, w - self._log_rest(one) + xp.log(kept), -math.inf)
        least = log_number + by_row[0] - row.positive
        above = xp.logical_and(enough, xp.logical_or(first >= least, unknown))
        v = xp.where(above, xp.where(above, first, nothing), least)
        live = xp.logical_and(both, v != -math.inf)
        value, slope = softplus_and_sigmoid(xp, xp.where(live, v, nothing))
        weights = by_row[1] if self.plan.weighted else None
        values, factor, to_weights = weigh(xp, xp.where(live, value, nothing), weights, row.has_positive)
        count = xp.astype(row.has_positive, values.dtype)
        if not need_grad:
            return RowLosses(values, count)
        slope = self.scaled(xp.where(live, slope, nothing) * factor)
        of_w = xp.where(above, slope / kept, nothing)
        coefficient, quotient = of_w / hard, None
        if beta != 0:
            coefficient, quotient = beta * of_w / soft, (1.0 + 1.0 / beta) * soft / hard
        _, to_positive = score_cotangents(xp, sums, row, (None, None, None, xp.where(above, -of_w, -slope)))
        return RowLosses(values, count, coefficient, to_positive, (nothing, *self.of_weights(to_weights)), quotient)

    def _log_rest(self, one: Array) -> Array:
        """``log(1 - τ⁺)``, in the precision of an array, which may be more than a Python float's."""
        tau_plus = self.plan.tau_plus  # a difference of floats is exact from 1 / 2 on
        xp, half = self.xp, 0.5
        return xp.log(one * (1.0 - tau_plus)) if tau_plus >= half else xp.log1p(one * -tau_plus)

    def tile_cotangent(
        self, residual: tuple[Array, Array | None], done: RowLosses, rescale: tuple[Array, ...] | None
    ) -> tuple[Array, Array]:
        """The cotangents of a tile of negatives, as a matrix and a factor of each row.

        With the total sums h and s, ``β w' / s ((1 + 1 / β) (s / h) e^((1 + β) g) - e^(β g))``; of parts, each
        exponential has its own share, and the quotient of the shares is at most 1. The exponentials are overwritten.
        """
        hard, soft = residual
        if soft is None:
            return hard, done.coefficient if rescale is None else done.coefficient * rescale[0]
        factor, quotient = done.coefficient, done.quotient
        if rescale is not None:
            factor, quotient = factor * rescale[1], quotient * rescale[2]
        hard *= quotient[:, None]
        hard -= soft
        return hard, factor
