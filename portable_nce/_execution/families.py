"""What rows add up to: exponentials for an objective of the softmax family, or the terms of pairs.

A family is asked for each tile (what it adds to its rows, and a *residual* of its shape), for all tiles of a row
(`merge`), and for the row (`finish`: losses, and the numbers with which residuals and positives go back to the
scores). The cotangent of a tile is ``(coefficient × factor of the part)[:, None] * residual``: a matrix times a
number for each row, which can be multiplied into operands of D columns instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.autodiff import stop_gradient
from .._core.checks import all_entries, entry_at_hand, least
from .._core.logsumexp import ExpSum, exponentials, merge
from .._core.namespace import namespace_of
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..objectives.base import Objective, RowStatistics, Term
from ..pairings import Members
from .inputs import Arrays
from .reweighted import Reweighted, ReweightedPlan
from .row_losses import Exclude, Family, Known, RowLosses, weigh
from .statistics import Positives, RowSums, each_positive, of_line, of_members, row_statistics, score_cotangents
from .tiling import MAX_UNSHIFTED_LOGIT


def family_of(xp: Namespace, plan: Plan, known: Known, *, need_grad: bool) -> Family:
    """The family of a plan."""
    if isinstance(plan, ReweightedPlan):
        return Reweighted(xp, plan, known)
    if isinstance(plan, PairsPlan):
        return Pairs(xp, plan, known, need_grad=need_grad)
    return Softmax(xp, plan, known)


def divisor_of(plan: Plan, n_rows: int, negatives: int) -> int | None:
    """What the mean of all rows divides by, where each has one positive and so many negatives; None: not known yet."""
    if not isinstance(plan, PairsPlan) or plan.divide_by == "rows":
        return n_rows
    if plan.divide_by == "active":
        return None
    return n_rows * (int(plan.counts[0]) + (negatives if plan.counts[1] else 0))


# ------------------------------------------------------------------------------------------------------------ softmax


class SoftmaxPlan(NamedTuple):
    """An objective of the softmax family, how many parameters each row has, and whether a weight comes after them.

    With `statistics`, the values are the row statistics themselves, in an array (n, 7): the log-odds, the spread, the
    lse of the negatives without its shift, that of the positives, the shift, and which rows have negatives and
    positives. The arrays of a number for each row are then the cotangents of the first four.

    `sharpened`: before all other numbers of a row comes one that the scores of its negatives are multiplied by, in
    value alone: they count ``e^((c - 1) g)`` times as much, with a constant g.
    """

    objective: Objective
    parameters: int = 0
    weighted: bool = False
    statistics: bool = False
    sharpened: bool = False


def split_sharpness(plan: Plan, by_row: Arrays) -> tuple[Array | None, Arrays]:
    """What the scores of negatives are multiplied by, or None, and the other numbers of rows."""
    if isinstance(plan, SoftmaxPlan) and plan.sharpened:
        return by_row[0], by_row[1:]
    return None, by_row


def sharpened(scores: Array, sharpness: Array | None) -> Array:
    """The scores g, in value times a number c of each row: ``g + sg((c - 1) g)``, whose derivative is 1."""
    if sharpness is None:
        return scores
    xp = namespace_of(scores, sharpness)
    constant = stop_gradient(scores)
    present = xp.abs(constant) < 2.0**-10 * xp.finfo(scores.dtype).max  # neither -inf nor what says that it is absent
    added = xp.where(present, constant, xp.zeros_like(constant)) * (sharpness - 1.0)[:, None]
    return scores + added


class Softmax(Family):
    """Sums of exponentials."""

    def __init__(self, xp: Namespace, plan: SoftmaxPlan, known: Known) -> None:
        super().__init__(xp, plan, known)
        self.unshifted = known.bound <= MAX_UNSHIFTED_LOGIT
        self.skips_idle = not plan.statistics
        # Whether the log-odds are all that the objective needs, where these are finite.
        self.simple = known.complete and plan.objective.of_odds is not None and not plan.statistics

    def add_negatives(self, scores: Array, exclude: Exclude, by_row: Arrays) -> tuple[ExpSum, Array]:
        """The exponentials of a tile of negatives and their sums."""
        del by_row
        return self.accumulate(exclude(scores, -math.inf))

    def accumulate(self, scores: Array, axis: int = 1, *, spare: bool = True) -> tuple[ExpSum, Array]:
        """The same along any axis; `spare` scores may be overwritten."""
        xp = self.xp
        top = None if self.unshifted else stop_gradient(xp.max(scores, axis=axis))
        if top is not None and self.known.absent is not None:
            top = xp.where(top <= self.known.absent, -math.inf, top)
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
        if not self.known.finite:
            scores = xp.where(xp.expand_dims(infinite, axis=axis), -math.inf, scores)
        return exp_in_place(scores, bounded=False)

    def add_masked(self, scores: Arrays, members: Members, by_row: Arrays) -> tuple[ExpSum, Array, Positives]:
        """The exponentials of the negatives of a tile, their sums, and the positives; scores are as they are.

        The scores of negatives may be multiplied by a number of each row; a weight w adds log w to them.
        """
        xp, single = self.xp, self.known.single
        sharpness, _ = split_sharpness(self.plan, by_row)
        positives, negatives, weights, negative_weights = members
        if self.unshifted and negative_weights is None and sharpness is None:
            exps = adapter_of(scores[0]).exp_in_place(scores[0] + 0.0, bounded=True)
            terms = xp.where(negatives, exps, 0.0)
            sums = ExpSum(None, xp.sum(terms, axis=1))
            return sums, terms, of_members(xp, scores[0], positives, single=single, weights=weights, terms=exps)
        of_negatives = sharpened(scores[0], sharpness)
        if negative_weights is not None:
            of_negatives = of_negatives + xp.log(xp.where(negatives, negative_weights, xp.ones_like(of_negatives)))
        sums, terms = exponentials(xp, of_negatives, negatives)
        return sums, terms, of_members(xp, scores[0], positives, single=single, weights=weights)

    def partner_positives(self, scores: Array, present: Array | None, by_row: Arrays) -> Array | Positives:
        """The positives; where the log-odds are all that counts, the scores."""
        simple = self.simple and present is None and len(scores.shape) == 1
        return scores if simple else super().partner_positives(scores, present, by_row)

    def merge(self, parts: list[ExpSum]) -> tuple[ExpSum, list[Array | None]]:
        """The sums of a row, and the factors of the parts."""
        if any(part.top is None for part in parts) and any(part.top is not None for part in parts):
            nothing = self.xp.zeros_like(parts[0].total)
            parts = [part if part.top is not None else ExpSum(nothing, part.total) for part in parts]
        return merge(self.xp, parts)

    def finish(self, total: ExpSum, positive: Array | Positives, by_row: Arrays, *, need_grad: bool) -> RowLosses:
        """The losses of rows."""
        xp, plan = self.xp, self.plan
        if self._is_plain(total, positive):
            return self._finish_plain(total, positive, by_row[0] if plan.weighted else None, need_grad=need_grad)
        if not isinstance(positive, Positives):
            positive = of_line(xp, positive, None)
        sums = RowSums(total, positive)
        row = row_statistics(xp, sums)
        if plan.statistics:
            return self._finish_statistics(sums, row, by_row, need_grad=need_grad)
        objective = plan.objective
        parameters, weights = by_row[: plan.parameters], by_row[plan.parameters] if plan.weighted else None
        counted = objective.counted(row)
        if objective.separate and positive.number is not None:
            return self._finish_separate(sums, counted, weights, need_grad=need_grad)
        values, factor, to_weights = weigh(xp, objective.values(row, *parameters), weights, counted)
        number = xp.astype(counted, values.dtype)
        if not need_grad:
            return RowLosses(values, number)
        slopes = objective.pulled(row, self.scaled(number if factor is None else factor), *parameters)
        coefficient, to_positive = score_cotangents(xp, sums, row, slopes[:4])
        further = [xp.zeros_like(values) if x is None else x for x in slopes[4:]]
        return RowLosses(values, number, coefficient, to_positive, (*further, *self.of_weights(to_weights)))

    def _is_plain(self, total: ExpSum, positive: Array | Positives) -> bool:
        """Whether it is seen that all rows have positives and negatives, and no sum is infinite or undefined."""
        xp, objective = self.xp, self.plan.objective
        if not isinstance(positive, Positives):
            if self.known.finite:
                return True
            finite = xp.isfinite(positive)
            if total.top is not None:
                finite = xp.logical_and(finite, xp.isfinite(total.top))
            return bool(entry_at_hand(finite, all_entries))
        of_odds = objective.of_odds is not None and not objective.separate and not self.plan.statistics
        if not of_odds or positive.number is None or total.top is not None or positive.sums.top is not None:
            return False
        smallest = entry_at_hand(total.total * positive.sums.total, least)
        return smallest is not None and smallest > 0

    def _finish_plain(
        self, total: ExpSum, positive: Array | Positives, weights: Array | None, *, need_grad: bool
    ) -> RowLosses:
        """From the log-odds u alone, to which some objectives add the spread s of several positives.

        With the slopes u' = dl/du and s' (1 or 0), the weight w of the row, the weight t of a positive among several,
        and the sum n of these, the cotangents of the scores are

            negatives: w u' e^(g - top) / total    one positive: -w u'    several: w (s' - u') e^g / total - w s' t / n
        """
        xp, of_odds = self.xp, self.plan.objective.of_odds
        several, spread = isinstance(positive, Positives), None
        log_positive = xp.log(positive.sums.total) if several else positive
        log_negative = xp.log(total.total)
        odds = log_negative - log_positive if total.top is None else (total.top - log_positive) + log_negative
        values, slope = of_odds(odds, bounded=self.unshifted, need_grad=need_grad)
        if several and self.plan.objective.spreads:
            spread = xp.astype(positive.count > 1, values.dtype)
            values = values + spread * (log_positive - positive.centred / positive.number)
        values, factor, to_weights = weigh(xp, values, weights, None)
        number = xp.ones_like(values)
        if not need_grad:
            return RowLosses(values, number)
        slope, spread = (x if x is None or factor is None else x * factor for x in (slope, spread))
        slope = self.scaled(slope)
        to_positive = -slope
        if several:
            of_spread = 0.0 if spread is None else self.scaled(spread)
            to_positive = positive.terms * ((of_spread - slope) / positive.sums.total)[:, None]
            if spread is not None:
                to_positive = to_positive - positive.shared(xp, of_spread / positive.number)
        return RowLosses(values, number, slope / total.total, to_positive, self.of_weights(to_weights))

    def _finish_separate(self, sums: RowSums, counted: Array, weights: Array | None, *, need_grad: bool) -> RowLosses:
        """The mean over the positives of what each is worth against the negatives alone."""
        xp, objective = self.xp, self.plan.objective
        each = each_positive(xp, sums)
        nothing = xp.zeros_like(each.log_odds)
        live = xp.logical_and(each.has_positive, each.has_negative)
        weight = xp.astype(each.has_positive, nothing.dtype)
        if sums.positive.weighted:
            weight = weight * sums.positive.shares
        number = xp.sum(weight, axis=1)
        number = xp.where(number > 0, number, xp.ones_like(number))
        values = xp.sum(xp.where(live, objective.values(each), nothing) * weight, axis=1) / number
        values, factor, to_weights = weigh(xp, values, weights, counted)
        count = xp.astype(counted, values.dtype)
        if not need_grad:
            return RowLosses(values, count)
        rescale = self.scaled(count if factor is None else factor) / number
        slope = objective.pulled(each, xp.where(live, rescale[:, None] * weight, nothing))[0]
        to_each = xp.where(live, slope, nothing)
        empty = sums.negative.total == 0
        of_odds = xp.where(empty, xp.zeros_like(number), xp.sum(to_each, axis=1))
        coefficient = of_odds / xp.where(empty, xp.ones_like(number), sums.negative.total)
        return RowLosses(values, count, coefficient, -to_each, self.of_weights(to_weights))

    def _finish_statistics(self, sums: RowSums, row: RowStatistics, by_row: Arrays, *, need_grad: bool) -> RowLosses:
        xp = self.xp
        flags = (xp.astype(x, row.log_odds.dtype) for x in row[4:])
        top = xp.zeros_like(row.log_odds) if sums.negative.top is None else sums.negative.top
        top = xp.where(row.has_negative, stop_gradient(top), xp.zeros_like(top))
        rest = xp.where(row.has_negative, sums.negative.log_total(xp), xp.zeros_like(top))
        values = xp.stack([row.log_odds, row.spread, rest, row.positive, top, *flags], axis=1)
        if not need_grad:
            return RowLosses(values, row.log_odds)
        coefficient, to_positive = score_cotangents(xp, sums, row, by_row[:4])
        return RowLosses(values, row.log_odds, coefficient, to_positive, tuple(xp.zeros_like(x) for x in by_row))


# -------------------------------------------------------------------------------------------------------------- pairs


class PairsPlan(NamedTuple):
    """The terms of positives and of negatives, what a mean divides by, and the arrays of a number for each row.

    `counts` says whether positives, and whether negatives, count as pairs.
    """

    terms: tuple[Term | None, Term | None]
    divide_by: str = "rows"
    parameters: int = 0
    weighted: bool = False
    counts: tuple[bool, bool] = (True, True)


class PairSum(NamedTuple):
    """What pairs add to their rows: terms, pairs, terms that are not 0 if anybody asks, and slopes of parameters."""

    value: Array
    number: Array
    active: Array | None
    to_parameters: Arrays = ()


class Pairs(Family):
    """Sums of elementwise terms. Several matrices of scores may be given, of whose entries a term is a function."""

    counts_pairs = True
    skips_idle = False

    def __init__(self, xp: Namespace, plan: PairsPlan, known: Known, *, need_grad: bool) -> None:
        super().__init__(xp, plan, known)
        self.bounded = known.bound <= MAX_UNSHIFTED_LOGIT
        self.need_grad = need_grad

    def add_negatives(self, scores: Array, exclude: Exclude, by_row: Arrays) -> tuple[PairSum, Array]:
        """The terms of a tile of negatives, and their slopes."""
        term = self.plan.terms[1]
        assert term is not None  # noqa: S101  (without, a tile is not asked for)
        sums, residual = self._summed(term, (exclude(scores, 0.0),), by_row, lambda x: exclude(x, 0.0))
        return sums, residual[0] if residual else scores

    def _summed(
        self,
        term: Term,
        scores: Arrays,
        by_row: Arrays,
        clear: Callable[[Array], Array],
        often: Array | None = None,
    ) -> Any:
        """The sums of a term over the entries that are not cleared, and the slopes by the scores of each matrix.

        `often`: the weights of the entries, by which those are counted whose term is not 0.
        """
        xp = self.xp
        value, slopes = self._term(term, scores, tuple(x[:, None] for x in by_row[: self.plan.parameters]))
        done: dict[int, tuple[Array, Array]] = {}  # what is the same array is cleared and added up once
        for x in (value, *slopes):
            if id(x) not in done:
                whole = clear(x)
                done[id(x)] = whole, adapter_of(whole).sum_along(whole, 1)
        active = None
        if self.plan.divide_by == "active":
            active = xp.astype(done[id(value)][0] != 0, value.dtype)
            active = xp.sum(active if often is None else active * often, axis=1)
        total = done[id(value)][1]
        sums = PairSum(total, xp.zeros_like(total), active, tuple(done[id(x)][1] for x in slopes[len(scores) :]))
        return sums, tuple(done[id(x)][0] for x in slopes[: len(scores)])

    def _term(self, term: Term, scores: Arrays, parameters: Arrays) -> tuple[Array, Arrays]:
        """A term of scores, and its slopes if these are wanted, all of the shape of the scores."""
        xp, shape = self.xp, tuple(scores[0].shape)
        value, slopes = term.value_and_slopes(*scores, *parameters, bounded=self.bounded, need_grad=self.need_grad)

        def whole(x: Array) -> Array:
            return x if tuple(x.shape) == shape else xp.broadcast_to(x, shape) + xp.zeros_like(scores[0])

        found = {id(x): whole(x) for x in (value, *slopes)}  # what is the same array stays one
        return found[id(value)], tuple(found[id(x)] for x in slopes) if self.need_grad else ()

    def add_masked(self, scores: Arrays, members: Members, by_row: Arrays) -> tuple[PairSum, Any, None]:
        """The terms of the positives and negatives of a tile, and their slopes. A score of -inf takes no part."""
        if members.negative_weights is None:
            members.refuse_weights()
        xp = self.xp
        first = scores[0]
        sums, residuals = [], []
        for term, own, weights, counts in zip(self.plan.terms, members[:2], members[2:], self.plan.counts, strict=True):
            taken = own
            for score in scores:
                taken = xp.logical_and(taken, score != -math.inf)
            inputs = tuple(xp.where(taken, score, 0.0) for score in scores)
            often = xp.astype(taken, first.dtype) if weights is None else xp.where(taken, weights, 0.0)
            number = xp.sum(often, axis=1)
            zero = xp.zeros_like(number)
            if term is None:
                part = self._no_term(zero, by_row)
            else:

                def clear(x: Array, taken: Array = taken, weights: Array | None = weights) -> Array:
                    return xp.where(taken, x if weights is None else x * weights, 0.0)

                part, residual = self._summed(term, inputs, by_row, clear, None if weights is None else often)
                residuals.append(residual)
            sums.append(part._replace(number=number if counts else zero))
        added: Arrays = ()
        if self.need_grad and residuals:
            added = tuple(a + b for a, b in zip(*residuals, strict=True)) if len(residuals) > 1 else tuple(residuals[0])
        elif self.need_grad:
            added = tuple(xp.zeros_like(score) for score in scores)
        return self.merge(sums)[0], added, None

    def partner_positives(self, scores: Array, present: Array | None, by_row: Arrays) -> tuple[PairSum, Array]:
        """The terms of rows that have one positive each, and their slopes."""
        del present
        xp, term = self.xp, self.plan.terms[0]
        zero = xp.zeros_like(scores)
        part, slope = self._no_term(zero, by_row), zero
        if term is not None:
            value, slopes = self._term(term, (scores,), by_row[: self.plan.parameters])
            active = part.active if part.active is None else xp.astype(value != 0, value.dtype)
            slope, *to_parameters = slopes if self.need_grad else (zero,)
            part = PairSum(value, zero, active, tuple(to_parameters))
        return part._replace(number=zero + self._pairs()), slope

    def _pairs(self) -> int:
        """How many pairs each row has, where that is known, of those that count."""
        return int(self.plan.counts[0]) + (self.known.negatives if self.plan.counts[1] else 0)

    def _no_term(self, zero: Array, by_row: Arrays) -> PairSum:
        slopes = tuple(zero for _ in by_row[: self.plan.parameters]) if self.need_grad else ()
        return PairSum(zero, zero, zero if self.plan.divide_by == "active" else None, slopes)

    def merge(self, parts: list[PairSum]) -> tuple[PairSum, list[None]]:
        """The sums of a row."""
        total = parts[0]
        for part in parts[1:]:
            active = None if total.active is None or part.active is None else total.active + part.active
            further = tuple(a + b for a, b in zip(total.to_parameters, part.to_parameters, strict=True))
            total = PairSum(total.value + part.value, total.number + part.number, active, further)
        return total, [None] * len(parts)

    def finish(self, total: PairSum, positive: Any, by_row: Arrays, *, need_grad: bool) -> RowLosses:
        """The sums of rows."""
        xp, plan = self.xp, self.plan
        slope = None
        if positive is not None:
            part, slope = positive
            total = self.merge([part, total])[0]
        elif self.known.negatives and plan.counts[1]:  # no tile has counted them
            total = total._replace(number=total.number + self.known.negatives)
        weights = by_row[plan.parameters] if plan.weighted else None
        # Where all rows have pairs, all count.
        counted = None if self.known.complete and self._pairs() > 0 else total.number > 0
        values, factor, to_weights = weigh(xp, total.value, weights, counted)
        number: Array | None = xp.ones_like(values) if counted is None else xp.astype(counted, values.dtype)
        if plan.divide_by != "rows":
            number = total.number if plan.divide_by == "pairs" else total.active
        if not need_grad:
            return RowLosses(values, number)
        factor = self.scaled(xp.ones_like(values) if factor is None else factor)
        to_positive = None if slope is None else slope * factor
        to_rows = (*(x * factor for x in total.to_parameters), *self.of_weights(to_weights))
        return RowLosses(values, number, factor, to_positive, to_rows)

    def masked_cotangents(
        self, residual: Any, positive: Any, done: RowLosses, members: Members, rescale: None = None
    ) -> Arrays:
        """The cotangents of a masked tile's scores, of each matrix."""
        del positive, members, rescale
        return tuple(x * done.coefficient[:, None] for x in residual)


Plan = SoftmaxPlan | PairsPlan | ReweightedPlan
"""What a sweep adds up."""
