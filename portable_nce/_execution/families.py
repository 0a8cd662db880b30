"""Families of row sums: exponentials for objectives of the softmax family, terms for pairwise ones.

For each tile, a family returns what the tile adds to its rows and a *residual* of the tile's shape. `merge` combines
the parts of a row. `finish` returns losses, and the coefficients that turn residuals into cotangents of scores:
``(coefficient * factor of the part)[:, None] * residual``. The factor of each row can be multiplied into operands of D
columns instead of the tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.autodiff import stop_gradient
from .._core.checks import all_entries, least, readable_entry
from .._core.logsumexp import ExpSum, exponentials, merge
from .._core.namespace import namespace_of
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..objectives.base import Objective, RowStatistics, Term
from ..pairings import Members
from .inputs import Arrays
from .reweighted import Reweighted, ReweightedSpec
from .row_losses import Exclude, Family, RowLosses, ScoreFacts, weigh
from .statistics import (
    PositiveFactors,
    PositiveSums,
    RowSums,
    Statistics,
    each_positive,
    from_mask,
    one_per_row,
    row_statistics,
    score_cotangents,
)
from .tiling import MAX_UNSHIFTED_LOGIT
from .triplets import Triplets, TripletSpec


def family_of(xp: Namespace, spec: FamilySpec, facts: ScoreFacts, *, need_grad: bool) -> Family:
    if isinstance(spec, ReweightedSpec):
        return Reweighted(xp, spec, facts)
    if isinstance(spec, PairsSpec):
        return PairTerms(xp, spec, facts, need_grad=need_grad)
    if isinstance(spec, TripletSpec):
        return Triplets(xp, spec, facts, need_grad=need_grad)
    return Softmax(xp, spec, facts)


def are_small(spec: FamilySpec, bound: float) -> bool:
    """Whether exponentials of scores up to a bound need no shift, with those of the scores times 1 + β."""
    if isinstance(spec, ReweightedSpec):
        # Divide the limit: under torch.compile, an infinite bound times a symbolic β is NaN.
        return bound <= MAX_UNSHIFTED_LOGIT / (1.0 + spec.beta)
    return bound <= MAX_UNSHIFTED_LOGIT


def divisor_of(spec: FamilySpec, n_rows: int, n_negatives: int) -> int | None:
    """Divisor of the mean over rows with one positive and `n_negatives` each; None if it depends on scores."""
    if not isinstance(spec, PairsSpec) or spec.divide_by == "rows":
        return n_rows
    if spec.divide_by == "active":
        return None
    return n_rows * (int(spec.counts[0]) + (n_negatives if spec.counts[1] else 0))


# ------------------------------------------------------------------------------------------------------------ softmax


class SoftmaxSpec(NamedTuple):
    """A softmax objective. `by_row` holds its `parameters` arrays, then the row weights if `weighted`.

    With `statistics`, the values are an array (n, 7) of row statistics: log-odds, spread, lse of the negatives minus
    its shift, lse of the positives, the shift, and flags for rows that have negatives and positives. The arrays
    `by_row` are then the cotangents of the first four.

    With `sharpened`, the first array `by_row` is a factor c of the negatives' scores, in value alone: negatives count
    ``e^((c - 1) g)`` times as much, with g constant.
    """

    objective: Objective
    parameters: int = 0
    weighted: bool = False
    statistics: bool = False
    sharpened: bool = False


def split_sharpness(spec: FamilySpec, by_row: Arrays) -> tuple[Array | None, Arrays]:
    """The factor of the negatives' scores, or None, and the other arrays of the rows."""
    if isinstance(spec, SoftmaxSpec) and spec.sharpened:
        return by_row[0], by_row[1:]
    return None, by_row


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

    def __init__(self, xp: Namespace, spec: SoftmaxSpec, facts: ScoreFacts) -> None:
        super().__init__(xp, spec, facts)
        self.unshifted = facts.small
        # Whether finite log-odds are enough for the objective.
        self.may_use_odds = facts.complete and spec.objective.of_odds is not None and not spec.statistics

    def add_negatives(self, scores: Arrays, exclude: Exclude, by_row: Arrays) -> tuple[ExpSum, Array]:
        """Exponentials of a tile of negatives, and their sums."""
        del by_row
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
        top = None if self.unshifted else stop_gradient(xp.max(scores, axis=axis))
        if top is not None and self.facts.absent is not None:
            top = xp.where(top <= self.facts.absent, -math.inf, top)
        terms = self.terms(scores, top, axis, spare=spare)
        total = adapter_of(terms).sum_along(terms, axis)
        return ExpSum(top, total), terms

    def terms(self, scores: Array, top: Array | None, axis: int = 1, *, spare: bool = True) -> Array:
        """``exp(g - top)``, and 0 in rows whose `top` is infinite."""
        xp, exp_in_place = self.xp, adapter_of(scores).exp_in_place
        if top is None:
            return exp_in_place(scores, bounded=True) if spare else xp.exp(scores)
        infinite = xp.isinf(top)
        shift = xp.expand_dims(xp.where(infinite, xp.zeros_like(top), top), axis=axis)
        if spare:
            scores -= shift
        else:
            scores = scores - shift
        if not self.facts.finite:
            scores = xp.where(xp.expand_dims(infinite, axis=axis), -math.inf, scores)
        return exp_in_place(scores, bounded=False)

    def add_masked(self, scores: Arrays, members: Members, by_row: Arrays) -> tuple[ExpSum, Array, PositiveSums]:
        """Sums and exponentials of the negatives of a masked tile, and its positives.

        The sharpness multiplies the negatives' scores; a weight w adds log w to them.
        """
        xp, single = self.xp, self.facts.single
        sharpness, _ = split_sharpness(self.spec, by_row)
        positives, negatives, weights, negative_weights = members.exclusive()
        if self.unshifted and negative_weights is None and sharpness is None:
            all_finite = self.facts.finite or not self.facts.given  # products of a known bound are finite
            options: dict[str, Any] = {"single": single, "weights": weights, "all_finite": all_finite}
            positive = from_mask(xp, scores[0], positives, unshifted=True, **options)
            exps = self.terms(scores[0], None, spare=not (self.facts.given or self.spec.objective.separate))
            terms = xp.where(negatives, exps, 0.0)
            positive = positive if single else positive.with_exponentials(xp, exps)
            return ExpSum(None, xp.sum(terms, axis=1)), terms, positive
        of_negatives = sharpened(scores[0], sharpness)
        if negative_weights is not None:
            of_negatives = of_negatives + xp.log(xp.where(negatives, negative_weights, xp.ones_like(of_negatives)))
        sums, terms = exponentials(xp, of_negatives, negatives)
        return sums, terms, from_mask(xp, scores[0], positives, single=single, weights=weights)

    def partner_positives(self, scores: Array, present: Array | None, by_row: Arrays) -> Array | PositiveSums:
        """The positives; their plain scores if the log-odds alone decide the loss."""
        may_use_odds = self.may_use_odds and present is None and len(scores.shape) == 1
        return scores if may_use_odds else super().partner_positives(scores, present, by_row)

    def merge(self, parts: list[ExpSum]) -> tuple[ExpSum, list[Array | None]]:
        shifted = [part.top is not None for part in parts]
        if any(shifted) and not all(shifted):
            zero = self.xp.zeros_like(parts[0].total)
            parts = [part if part.top is not None else ExpSum(zero, part.total) for part in parts]
        return merge(self.xp, parts)

    def finish(self, total: ExpSum, positive: Array | PositiveSums, by_row: Arrays, *, need_grad: bool) -> RowLosses:
        xp, spec = self.xp, self.spec
        if self._uses_odds(total, positive):
            return self._finish_from_odds(total, positive, by_row[0] if spec.weighted else None, need_grad=need_grad)
        if not isinstance(positive, PositiveSums):
            positive = one_per_row(xp, positive, None)
        sums = RowSums(total, positive)
        row = row_statistics(xp, sums)
        if spec.statistics:
            return self._finish_statistics(sums, row, by_row, need_grad=need_grad)
        objective = spec.objective
        parameters, weights = by_row[: spec.parameters], by_row[spec.parameters] if spec.weighted else None
        counted = objective.counted(row)
        if objective.separate and positive.weight_sum is not None:
            return self._finish_separate(sums, counted, weights, need_grad=need_grad)
        values, factor, weight_slopes = weigh(xp, objective.values(row, *parameters), weights, counted)
        counts = xp.astype(counted, values.dtype)
        if not need_grad:
            return RowLosses(values, counts)
        slopes = objective.pulled(row, self.divided(counts if factor is None else factor), *parameters)
        of_row, of_parameters = slopes[: len(row.numbers)], slopes[len(row.numbers) :]
        coefficient, to_positive = score_cotangents(xp, sums, row, of_row)
        extra = [xp.zeros_like(values) if x is None else x for x in of_parameters]
        return RowLosses(values, counts, coefficient, to_positive, (*extra, *self.to_weights(weight_slopes)))

    def _uses_odds(self, total: ExpSum, positive: Array | PositiveSums) -> bool:
        """Whether every row is known to have positives and negatives, and finite sums."""
        xp, objective = self.xp, self.spec.objective
        if not isinstance(positive, PositiveSums):
            if self.facts.finite:
                return True
            # All negatives of a row may have the score -inf.
            of_negatives = total.total > 0 if total.top is None else xp.isfinite(total.top)
            finite = xp.logical_and(xp.isfinite(positive), of_negatives)
            return bool(readable_entry(finite, all_entries))
        of_odds = objective.of_odds is not None and not objective.separate and not self.spec.statistics
        if not of_odds or positive.weight_sum is None or total.top is not None or positive.sums.top is not None:
            return False
        smallest = readable_entry(total.total * positive.sums.total, least)
        return smallest is not None and smallest > 0

    def _finish_from_odds(
        self, total: ExpSum, positive: Array | PositiveSums, weights: Array | None, *, need_grad: bool
    ) -> RowLosses:
        """Losses from the log-odds u; with several positives, some objectives add the spread s.

        With the slopes u' = dl/du and s' (1 or 0), the weight w of the row, the weight t of a positive among several,
        and the sum n of these, the cotangents of the scores are

            negatives: w u' e^(g - top) / total    one positive: -w u'    several: w (s' - u') e^g / total - w s' t / n
        """
        xp, of_odds = self.xp, self.spec.objective.of_odds
        several, spread = isinstance(positive, PositiveSums), None
        log_positive = xp.log(positive.sums.total) if several else positive
        log_negative = xp.log(total.total)
        odds = log_negative - log_positive if total.top is None else (total.top - log_positive) + log_negative
        # Where -inf masks given scores, the digits are those of the rows that `finish` computes with a mask.
        bounded = self.unshifted and (self.facts.finite or not self.facts.given)
        values, slope = of_odds(odds, bounded=bounded, need_grad=need_grad)
        if several and self.spec.objective.spreads:
            spread = xp.astype(positive.count > 1, values.dtype)
            values = values + spread * (log_positive - positive.centred / positive.weight_sum)
        values, factor, weight_slopes = weigh(xp, values, weights, None)
        counts = self._counts_of_all(values)
        if not need_grad:
            return RowLosses(values, counts)
        slope, spread = [x if x is None or factor is None else x * factor for x in (slope, spread)]
        slope = self.divided(slope)
        to_positive = -slope
        if several:
            of_spread = xp.zeros_like(slope) if spread is None else self.divided(spread)
            factors = PositiveFactors((of_spread - slope) / positive.sums.total, of_spread / positive.weight_sum)
            to_positive = positive.cotangents(xp, factors)
        return RowLosses(values, counts, slope / total.total, to_positive, self.to_weights(weight_slopes))

    def _finish_separate(self, sums: RowSums, counted: Array, weights: Array | None, *, need_grad: bool) -> RowLosses:
        """Losses that are means over the positives, each contrasted with the negatives alone.

        With p the log-odds slope of a positive, times its share of the mean and the row's weight, the cotangents of the
        scores are

            negatives: Σ_positives p e^(g - top) / total        positives: -p
        """
        xp, objective = self.xp, self.spec.objective
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
        if not need_grad:
            return RowLosses(values, counts)
        rescale = self.divided(counts if factor is None else factor) / weight_sum
        slope = objective.pulled(each, xp.where(live, rescale[:, None] * weight, zero))[0]
        to_each = xp.where(live, slope, zero)
        empty = sums.negative.total == 0
        slope_odds = xp.where(empty, xp.zeros_like(weight_sum), xp.sum(to_each, axis=1))
        coefficient = slope_odds / xp.where(empty, xp.ones_like(weight_sum), sums.negative.total)
        return RowLosses(values, counts, coefficient, -to_each, self.to_weights(weight_slopes))

    def _finish_statistics(self, sums: RowSums, row: RowStatistics, by_row: Arrays, *, need_grad: bool) -> RowLosses:
        xp = self.xp
        top = xp.zeros_like(row.log_odds) if sums.negative.top is None else sums.negative.top
        top = xp.where(row.has_negative, stop_gradient(top), xp.zeros_like(top))
        rest = xp.where(row.has_negative, sums.negative.log_total(xp), xp.zeros_like(top))
        values = Statistics(row, top, rest).stacked()
        if not need_grad:
            return RowLosses(values, row.log_odds)
        coefficient, to_positive = score_cotangents(xp, sums, row, by_row)
        return RowLosses(values, row.log_odds, coefficient, to_positive, tuple(xp.zeros_like(x) for x in by_row))


# -------------------------------------------------------------------------------------------------------------- pairs


class PairsSpec(NamedTuple):
    """Terms of positives and negatives, the divisor of a mean, and the numbers of parameters and weights per row.

    `counts`: whether positives, and whether negatives, count as pairs. `graded`: whether weights of positives are the
    degrees to which they are positive.
    """

    terms: tuple[Term | None, Term | None]
    divide_by: str = "rows"
    parameters: int = 0
    weighted: bool = False
    counts: tuple[bool, bool] = (True, True)
    graded: bool = False


class PairSum(NamedTuple):
    """Sums over the pairs of each row: terms, pairs (unless known), nonzero terms (if needed), slopes by parameters."""

    value: Array
    n_pairs: Array | None
    n_active: Array | None
    to_parameters: Arrays = ()


class PairTerms(Family):
    """Sums of elementwise terms. With several score matrices, a term is a function of an entry of each.

    The cotangent of a score is the slope of its term, times the weights of the pair and of the row.
    """

    counts_pairs = True

    def __init__(self, xp: Namespace, spec: PairsSpec, facts: ScoreFacts, *, need_grad: bool) -> None:
        super().__init__(xp, spec, facts)
        self.bounded = facts.small
        self.need_grad = need_grad
        self.n_pairs = int(spec.counts[0]) + (facts.n_negatives if spec.counts[1] else 0)  # of each row, if complete

    def add_negatives(self, scores: Arrays, exclude: Exclude, by_row: Arrays) -> tuple[PairSum, Arrays]:
        """Sums over a tile of negatives, and the slopes of its terms by the scores of each matrix."""
        term = self.spec.terms[1]
        assert term is not None  # noqa: S101  (without, no tile is computed)
        if not self.facts.finite:
            scores = tuple([exclude(x, 0.0) for x in scores])
        elif self.facts.given and term.fused is None:
            scores = tuple([x + 0.0 for x in scores])  # a user's function may return them, and results are overwritten
        summed: tuple[PairSum, Arrays] = self._summed(term, scores, by_row, lambda x: exclude(x, 0.0))
        return summed

    def _summed(
        self,
        term: Term,
        scores: Arrays,
        by_row: Arrays,
        clear: Callable[[Array], Array],
        entry_weights: Array | None = None,
    ) -> Any:
        """Sums of a term over the entries that `clear` leaves, and its slopes by the scores of each matrix.

        `entry_weights`: weights of the entries in the number of nonzero terms.
        """
        xp = self.xp
        value, slopes = self._term(term, scores, tuple(x[:, None] for x in by_row[: self.spec.parameters]))

        def cleared(x: Array | None) -> tuple[Array | None, Array]:
            if x is None:
                return None, xp.zeros_like(value[:, 0])
            whole = clear(x)
            return whole, adapter_of(whole).sum_along(whole, 1)

        (whole, total), *of_slopes = _once_each(cleared, (value, *slopes))
        active = None
        if self.spec.divide_by == "active":
            active = xp.astype(xp.not_equal(whole, 0.0), value.dtype)
            active = xp.sum(active if entry_weights is None else active * entry_weights, axis=1)
        to_parameters = tuple([x for _, x in of_slopes[len(scores) :]])
        sums = PairSum(total, self._counted(total, 0), active, to_parameters)
        return sums, tuple([x for x, _ in of_slopes[: len(scores)]])

    def _term(self, term: Term, scores: Arrays, parameters: Arrays) -> tuple[Array, Arrays]:
        """A term of scores, and its slopes if needed, in the shape of the scores."""
        xp, shape = self.xp, tuple(scores[0].shape)
        value, slopes = term.value_and_slopes(*scores, *parameters, bounded=self.bounded, need_grad=self.need_grad)

        def whole(x: Array | None) -> Array | None:
            if x is None or tuple(x.shape) == shape:
                return x
            return xp.broadcast_to(x, shape) + xp.zeros_like(scores[0])

        value, *whole_slopes = _once_each(whole, (value, *slopes))
        return value, tuple(whole_slopes) if self.need_grad else ()

    def add_masked(self, scores: Arrays, members: Members, by_row: Arrays) -> tuple[PairSum, Any, None]:
        """Sums over the pairs of a masked tile, and the slopes of its terms. Scores of -inf are left out."""
        xp, first = self.xp, scores[0]
        members = members.graded(first.dtype) if self.spec.graded else members.exclusive()
        if members.negative_weights is None:
            members.refuse_weights()
        sums, residuals = [], []
        for term, mask, weights, count in zip(self.spec.terms, members[:2], members[2:], self.spec.counts, strict=True):
            taken, inputs = mask, scores
            if not self.facts.finite:
                for score in scores:
                    taken = xp.logical_and(taken, xp.not_equal(score, -math.inf))
                inputs = tuple([xp.where(taken, score, 0.0) for score in scores])
            factors = None if weights is None else xp.where(taken, weights, 0.0)
            number = xp.sum(xp.astype(taken, first.dtype) if factors is None else factors, axis=1)
            zero = xp.zeros_like(number)
            if term is None:
                part = self._no_term(zero, by_row)
            else:

                def clear(x: Array, taken: Array = taken, factors: Array | None = factors) -> Array:
                    kept = xp.where(taken, x, 0.0)
                    return kept if factors is None else kept * factors

                part, residual = self._summed(term, inputs, by_row, clear, factors)
                residuals.append(residual)
            sums.append(part._replace(n_pairs=number if count else zero))
        added: Arrays = ()
        if self.need_grad and residuals:
            added = tuple(a + b for a, b in zip(*residuals, strict=True)) if len(residuals) > 1 else tuple(residuals[0])
        elif self.need_grad:
            added = tuple(xp.zeros_like(score) for score in scores)
        return self.merge(sums)[0], added, None

    def partner_positives(self, scores: Array, present: Array | None, by_row: Arrays) -> tuple[PairSum, Array]:
        """Terms of rows with one positive each, and their slopes."""
        del present
        xp, term = self.xp, self.spec.terms[0]
        if term is None:
            zero = xp.zeros_like(scores)
            return self._no_term(zero, by_row)._replace(n_pairs=self._counted(zero, self.n_pairs)), zero
        value, slopes = self._term(term, (scores,), by_row[: self.spec.parameters])
        active = xp.astype(value != 0, value.dtype) if self.spec.divide_by == "active" else None
        slope, *to_parameters = slopes if self.need_grad else (None,)
        to_parameters = [xp.zeros_like(value) if x is None else x for x in to_parameters]
        return PairSum(value, self._counted(value, self.n_pairs), active, tuple(to_parameters)), slope

    def _counted(self, like: Array, number: int) -> Array | None:
        """Number of pairs of each row, or None if all rows are known to have `n_pairs`."""
        return None if self.facts.complete else self.xp.full_like(like, number)

    def _no_term(self, zero: Array, by_row: Arrays) -> PairSum:
        slopes = tuple(zero for _ in by_row[: self.spec.parameters]) if self.need_grad else ()
        return PairSum(zero, self._counted(zero, 0), zero if self.spec.divide_by == "active" else None, slopes)

    def merge(self, parts: list[PairSum]) -> tuple[PairSum, list[None]]:
        total = parts[0]
        for part in parts[1:]:
            pairs, active = (
                None if a is None or b is None else a + b for a, b in zip(total[1:3], part[1:3], strict=True)
            )
            extra = tuple(a + b for a, b in zip(total.to_parameters, part.to_parameters, strict=True))
            total = PairSum(total.value + part.value, pairs, active, extra)
        return total, [None] * len(parts)

    def finish(self, total: PairSum, positive: Any, by_row: Arrays, *, need_grad: bool) -> RowLosses:
        xp, spec = self.xp, self.spec
        slope = None
        if positive is not None:
            part, slope = positive
            total = self.merge([part, total])[0]
        elif total.n_pairs is not None and self.facts.n_negatives and spec.counts[1]:  # no tile counts them
            total = total._replace(n_pairs=total.n_pairs + self.facts.n_negatives)
        weights = by_row[spec.parameters] if spec.weighted else None
        # If all rows have pairs, all count.
        counted = None if total.n_pairs is None and self.n_pairs > 0 else self._pairs_of(total) > 0
        values, factor, weight_slopes = weigh(xp, total.value, weights, counted)
        counts: Array | None = total.n_active
        if spec.divide_by == "pairs":
            counts = self._pairs_of(total)
        elif spec.divide_by == "rows":
            counts = self._counts_of_all(values) if counted is None else xp.astype(counted, values.dtype)
        if not need_grad:
            return RowLosses(values, counts)
        to_positive, *to_parameters = (
            x if x is None else self.divided(x if factor is None else x * factor) for x in (slope, *total.to_parameters)
        )
        factor = self.divided(xp.ones_like(values) if factor is None else factor)
        to_rows = (*to_parameters, *self.to_weights(weight_slopes))
        return RowLosses(values, counts, factor, to_positive, to_rows)

    def _pairs_of(self, total: PairSum) -> Array:
        return self.xp.full_like(total.value, self.n_pairs) if total.n_pairs is None else total.n_pairs

    def tile_cotangent(self, residual: Arrays, losses: RowLosses, rescale: None) -> tuple[Array, Array]:
        """The slopes of the terms, and the factor of each row."""
        del rescale
        (slope,) = residual
        return slope, losses.coefficient

    def cotangents(self, residual: Arrays, losses: RowLosses) -> Arrays:
        """The cotangents of the scores of an only tile, of each matrix."""
        factor = losses.coefficient[:, None]
        return tuple([adapter_of(x).times_in_place(x, factor) for x in residual])

    def masked_cotangents(
        self, residual: Any, positive: Any, losses: RowLosses, members: Members, rescale: None = None
    ) -> Arrays:
        """The cotangents of a masked tile's scores, of each matrix."""
        del positive, members, rescale
        return tuple(x * losses.coefficient[:, None] for x in residual)


def _once_each(function: Callable[[Array], Any], arrays: Arrays) -> list[Any]:
    """Results of a function, called once for arrays that are one object: a value and its slope may be."""
    results: list[Any] = []
    for k, x in enumerate(arrays):
        same = [result for y, result in zip(arrays[:k], results, strict=True) if y is x]
        results.append(same[0] if same else function(x))
    return results


FamilySpec = SoftmaxSpec | PairsSpec | ReweightedSpec | TripletSpec
"""The objective of a sweep, as data."""
