"""Families of row sums: exponentials for objectives of the softmax family; others have modules of their own.

For each tile, a family returns what the tile adds to its rows and a *residual* of the tile's shape. `merge` combines
the parts of a row. `finish` returns losses, and the coefficients that turn residuals into cotangents of scores:
``(coefficient * factor of the part)[:, None] * residual``. The factor of each row can be multiplied into operands of D
columns instead of the tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .._core.autodiff import stop_gradient
from .._core.checks import all_entries, least, readable_entry
from .._core.logsumexp import ExpSum, exponentials, largest_along, merge
from .._core.namespace import namespace_of
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..objectives.base import Objective, RowStatistics
from ..objectives.hard import HardNegatives
from ..objectives.relic import Relic
from ..objectives.triplet import Triplet
from ..pairings import Members
from .inputs import Arrays, Inputs, only
from .pair_terms import PairsSpec, PairTerms
from .reweighted import Reweighted
from .row_losses import Exclude, Family, RowLosses, ScoreFacts, weigh
from .statistics import (
    PositiveFactors,
    PositiveSums,
    RowSums,
    each_positive,
    from_mask,
    one_per_row,
    row_statistics,
    score_cotangents,
)
from .tiling import MAX_UNSHIFTED_LOGIT
from .triplets import Triplets
from .two_distributions import TwoDistributions


def are_small(spec: FamilySpec, bound: float) -> bool:
    """Whether exponentials of scores up to a bound need no shift, with those of the scores times 1 + β.

    The limit is divided: under torch.compile, an infinite bound times a symbolic β is NaN.
    """
    return bound <= MAX_UNSHIFTED_LOGIT / (1.0 + spec.beta)


# ------------------------------------------------------------------------------------------------------------ softmax


def _no_losses(row: RowStatistics) -> Array:
    return row.log_odds


STATISTICS = Objective(_no_losses, couples_rows=False, label="statistics")
"""Stands for the statistics of the rows, in place of losses: arrays (n, 6), see `RowStatistics.stacked`. The parameters
are then the cotangents of its numbers."""


def are_statistics(family: FamilySpec) -> bool:
    """Whether a sweep returns the statistics of the rows."""
    return isinstance(family, Objective) and family.rows is _no_losses


def sharpened(scores: Array, sharpness: Array | None) -> Array:
    """Scores g times a factor c of each row, in value alone: ``g + sg((c - 1) g)``, whose derivative is 1."""
    if sharpness is None:
        return scores
    xp = namespace_of(scores, sharpness)
    constant = stop_gradient(scores)
    present = xp.abs(constant) < 2.0**-10 * xp.finfo(scores.dtype).max  # not -inf, nor `absent`
    added = xp.where(present, constant, xp.zeros_like(constant)) * (sharpness - 1.0)[:, None]
    return scores + added


class Softmax(Family):
    """Sums of exponentials."""

    def __init__(self, xp: Namespace, spec: Objective, facts: ScoreFacts) -> None:
        super().__init__(xp, spec, facts)
        self.unshifted = facts.small
        # Whether finite log-odds are enough for the objective.
        self.may_use_odds = facts.complete and spec.of_odds is not None and not are_statistics(spec)

    def add_negatives(self, scores: Arrays, exclude: Exclude, block: Inputs) -> tuple[ExpSum, Array]:
        """Exponentials of a tile of negatives, and their sums."""
        del block
        (given,) = scores
        if not self.facts.given:
            return self.accumulate(exclude(given, -math.inf))
        if not self.unshifted:
            return self.accumulate(exclude(given + 0.0, -math.inf))
        terms = exclude(self.terms(given, None, spare=False), 0.0)
        return ExpSum(None, adapter_of(terms).sum_along(terms, 1)), terms

    def accumulate(self, scores: Array, axis: int = 1, *, spare: bool = True) -> tuple[ExpSum, Array]:
        """Exponentials of a tile and their sums along an axis; `spare` scores may be overwritten."""
        xp = self.xp
        top = None if self.unshifted else largest_along(scores, axis)
        if top is not None and self.facts.absent is not None:
            top = xp.where(top <= self.facts.absent, -math.inf, top)
        terms = self.terms(scores, top, axis, spare=spare)
        total = adapter_of(terms).sum_along(terms, axis)
        return ExpSum(top, total), terms

    def terms(self, scores: Array, top: Array | None, axis: int = 1, *, spare: bool = True) -> Array:
        """``exp(g - top)``, and 0 in rows whose `top` is infinite."""
        xp, adapter = self.xp, adapter_of(scores)
        if top is None:
            return adapter.exp_in_place(scores, bounded=True) if spare else adapter.exp_bounded(scores)
        infinite = xp.isinf(top)
        shift = xp.expand_dims(xp.where(infinite, xp.zeros_like(top), top), axis=axis)
        if spare:
            scores -= shift
        else:
            scores = scores - shift
        if not self.facts.finite:
            scores = xp.where(xp.expand_dims(infinite, axis=axis), -math.inf, scores)
        return adapter.exp_in_place(scores, bounded=False)

    def add_masked(self, scores: Arrays, members: Members, block: Inputs) -> tuple[ExpSum, Array, PositiveSums]:
        """Sums and exponentials of the negatives of a masked tile, and its positives.

        The sharpness multiplies the negatives' scores; a weight w adds log w to them.
        """
        xp, single = self.xp, self.facts.single
        sharpness = only(block.sharpness)
        positives, negatives, weights, negative_weights = members.exclusive()
        if self.unshifted and negative_weights is None and sharpness is None:
            all_finite = self.facts.finite or not self.facts.given  # products of a known bound are finite
            options: dict[str, Any] = {"single": single, "weights": weights, "all_finite": all_finite}
            positive = from_mask(xp, scores[0], positives, unshifted=True, **options)
            exps = self.terms(scores[0], None, spare=not (self.facts.given or self.spec.separate))
            terms = xp.where(negatives, exps, 0.0)
            positive = positive if single else positive.with_exponentials(xp, exps)
            return ExpSum(None, xp.sum(terms, axis=1)), terms, positive
        of_negatives = sharpened(scores[0], sharpness)
        if negative_weights is not None:
            of_negatives = of_negatives + xp.log(xp.where(negatives, negative_weights, xp.ones_like(of_negatives)))
        sums, terms = exponentials(xp, of_negatives, negatives)
        return sums, terms, from_mask(xp, scores[0], positives, single=single, weights=weights)

    def partner_positives(self, scores: Array, block: Inputs) -> Array | PositiveSums:
        """The positives; their plain scores if the log-odds alone decide the loss."""
        may_use_odds = self.may_use_odds and len(block.present) == 0 and len(scores.shape) == 1
        return scores if may_use_odds else super().partner_positives(scores, block)

    def merge(self, parts: list[ExpSum]) -> tuple[ExpSum, list[Array | None]]:
        shifted = [part.top is not None for part in parts]
        if any(shifted) and not all(shifted):
            zero = self.xp.zeros_like(parts[0].total)
            parts = [part if part.top is not None else ExpSum(zero, part.total) for part in parts]
        return merge(self.xp, parts)

    def finish(self, total: ExpSum, positive: Array | PositiveSums, block: Inputs) -> RowLosses:
        xp, spec, parameters, weights = self.xp, self.spec, block.parameters, only(block.weights)
        if self._uses_odds(total, positive):
            return self._finish_from_odds(total, positive, weights)
        if not isinstance(positive, PositiveSums):
            positive = one_per_row(xp, positive, None)
        sums = RowSums(total, positive)
        row = row_statistics(xp, sums)
        if are_statistics(spec):
            return self._finish_statistics(sums, row, parameters)
        counted = spec.counted(row)
        if spec.separate and positive.weight_sum is not None:
            return self._finish_separate(sums, counted, weights)
        values, factor, weight_slopes = weigh(xp, spec.values(row, *parameters), weights, counted)
        counts = xp.astype(counted, values.dtype)
        if not self.need_grad:
            return RowLosses(values, counts)
        slopes = spec.pulled(row, self.divided(counts if factor is None else factor), *parameters)
        of_row, of_parameters = slopes[: len(row.numbers)], slopes[len(row.numbers) :]
        coefficient, to_positive = score_cotangents(xp, sums, row, of_row)
        extra = [xp.zeros_like(values) if x is None else x for x in of_parameters]
        return RowLosses(values, counts, coefficient, to_positive, (*extra, *self.to_weights(weight_slopes)))

    def _uses_odds(self, total: ExpSum, positive: Array | PositiveSums) -> bool:
        """Whether every row is known to have positives and negatives, and finite sums."""
        xp, objective = self.xp, self.spec
        if not isinstance(positive, PositiveSums):
            if self.facts.finite:
                return True
            # All negatives of a row may have the score -inf.
            of_negatives = total.total > 0 if total.top is None else xp.isfinite(total.top)
            finite = xp.logical_and(xp.isfinite(positive), of_negatives)
            return bool(readable_entry(finite, all_entries))
        of_odds = objective.of_odds is not None and not objective.separate and not are_statistics(objective)
        if not of_odds or positive.weight_sum is None or total.top is not None or positive.sums.top is not None:
            return False
        smallest = readable_entry(total.total * positive.sums.total, least)
        return smallest is not None and smallest > 0

    def _finish_from_odds(self, total: ExpSum, positive: Array | PositiveSums, weights: Array | None) -> RowLosses:
        """Losses from the log-odds u; with several positives, some objectives add the spread s.

        With the slopes u' = dl/du and s' (1 or 0), the weight w of the row, the weight t of a positive among several,
        and the sum n of these, the cotangents of the scores are

            negatives: w u' e^(g - top) / total    one positive: -w u'    several: w (s' - u') e^g / total - w s' t / n
        """
        xp, of_odds = self.xp, self.spec.of_odds
        several, spread = isinstance(positive, PositiveSums), None
        log_positive = xp.log(positive.sums.total) if several else positive
        log_negative = xp.log(total.total)
        odds = log_negative - log_positive if total.top is None else (total.top - log_positive) + log_negative
        # Where -inf masks given scores, the digits are those of the rows that `finish` computes with a mask.
        bounded = self.unshifted and (self.facts.finite or not self.facts.given)
        values, slope = of_odds(odds, bounded=bounded, need_grad=self.need_grad)
        if several and self.spec.spreads:
            spread = xp.astype(positive.count > 1, values.dtype)
            values = values + spread * (log_positive - positive.centred / positive.weight_sum)
        values, factor, weight_slopes = weigh(xp, values, weights, None)
        counts = self._counts_of_all(values)
        if not self.need_grad:
            return RowLosses(values, counts)
        slope, spread = [x if x is None or factor is None else x * factor for x in (slope, spread)]
        slope = self.divided(slope)
        to_positive = -slope
        if several:
            of_spread = xp.zeros_like(slope) if spread is None else self.divided(spread)
            factors = PositiveFactors((of_spread - slope) / positive.sums.total, of_spread / positive.weight_sum)
            to_positive = positive.cotangents(xp, factors)
        return RowLosses(values, counts, slope / total.total, to_positive, self.to_weights(weight_slopes))

    def _finish_separate(self, sums: RowSums, counted: Array, weights: Array | None) -> RowLosses:
        """Losses that are means over the positives, each contrasted with the negatives alone.

        With p the log-odds slope of a positive, times its share of the mean and the row's weight, the cotangents of the
        scores are

            negatives: Σ_positives p e^(g - top) / total        positives: -p
        """
        xp, objective = self.xp, self.spec
        each = each_positive(xp, sums)
        zero = xp.zeros_like(each.log_odds)
        live = xp.logical_and(each.has_positive, each.has_negative)
        weight = xp.astype(each.has_positive, zero.dtype)
        if sums.positive.weighted:
            weight = weight * sums.positive.weights
        weight_sum = xp.sum(weight, axis=1)
        weight_sum = xp.where(weight_sum > 0, weight_sum, xp.ones_like(weight_sum))
        values = xp.sum(xp.where(live, objective.values(each), zero) * weight, axis=1) / weight_sum
        values, factor, weight_slopes = weigh(xp, values, weights, counted)
        counts = xp.astype(counted, values.dtype)
        if not self.need_grad:
            return RowLosses(values, counts)
        rescale = self.divided(counts if factor is None else factor) / weight_sum
        slope = objective.pulled(each, xp.where(live, rescale[:, None] * weight, zero))[0]
        to_each = xp.where(live, slope, zero)
        empty = sums.negative.total == 0
        slope_odds = xp.where(empty, xp.zeros_like(weight_sum), xp.sum(to_each, axis=1))
        coefficient = slope_odds / xp.where(empty, xp.ones_like(weight_sum), sums.negative.total)
        return RowLosses(values, counts, coefficient, -to_each, self.to_weights(weight_slopes))

    def _finish_statistics(self, sums: RowSums, row: RowStatistics, slopes: Arrays) -> RowLosses:
        if not self.need_grad:
            return RowLosses(row.stacked(), row.log_odds)
        coefficient, to_positive = score_cotangents(self.xp, sums, row, slopes)
        extra = tuple(self.xp.zeros_like(x) for x in slopes)
        return RowLosses(row.stacked(), row.log_odds, coefficient, to_positive, extra)


FamilySpec = Objective | PairsSpec | HardNegatives | Triplet | Relic
"""The facts of the objective of a sweep; its arrays are the parameters of `Inputs`."""

_FAMILIES: dict[type, Callable[[Namespace, Any, ScoreFacts], Family]] = {
    HardNegatives: Reweighted,
    PairsSpec: PairTerms,
    Triplet: Triplets,
    Relic: TwoDistributions,
}


def family_of(xp: Namespace, spec: FamilySpec, facts: ScoreFacts) -> Family:
    """The family of a sweep."""
    return _FAMILIES.get(type(spec), Softmax)(xp, spec, facts)
