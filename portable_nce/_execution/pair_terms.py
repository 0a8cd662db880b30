"""Sums over pairs: elementwise terms of the scores of positives and of negatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.numerics import sum_to_scalar
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..objectives.base import Labelled, Term
from ..pairings import Members
from .inputs import Arrays, Inputs, only
from .row_losses import Exclude, Family, RowLosses, ScoreFacts, weigh
from .tiling import pays_to_branch


class PairsSpec(Labelled):
    """Terms of positives and negatives, and the divisor of a mean.

    `counts`: whether positives, and whether negatives, count as pairs. `graded`: whether weights of positives are the
    degrees to which they are positive. `balance`: the sum of the losses is the mean over positives plus the mean over
    negatives; the sweep has a single block. `relative`: rows have one positive each, without a term; minus its score is
    the first parameter of the term of negatives, before those of the block.
    """

    __slots__ = ("balance", "counts", "divide_by", "graded", "relative", "terms")
    label = "pairs"
    of_pairs, shifted = True, False

    def __init__(
        self,
        terms: tuple[Term | None, Term | None],
        divide_by: str = "rows",
        counts: tuple[bool, bool] = (True, True),
        *,
        graded: bool = False,
        balance: bool = False,
        relative: bool = False,
    ) -> None:
        self.terms, self.divide_by, self.counts = terms, divide_by, counts
        self.graded, self.balance, self.relative = graded, balance, relative

    def divisor(self, n_rows: int, n_negatives: int) -> int | None:
        if self.divide_by == "rows":
            return n_rows
        if self.divide_by == "active" or self.relative:
            return None
        return n_rows * (int(self.counts[0]) + (n_negatives if self.counts[1] else 0))


class PairSum(NamedTuple):
    """Sums over the pairs of each row: terms, pairs (unless known), nonzero terms (if needed), slopes by parameters."""

    value: Array
    n_pairs: Array | None
    n_active: Array | None
    to_parameters: Arrays = ()


class BalancedSum(NamedTuple):
    """Sums over the positives, and sums over the negatives, of each row."""

    positive: PairSum
    negative: PairSum


class PairTerms(Family):
    """Sums of elementwise terms.

    The cotangent of a score is the slope of its term, times the weights of the pair and of the row.
    """

    counts_pairs = True

    def __init__(self, xp: Namespace, spec: PairsSpec, facts: ScoreFacts) -> None:
        super().__init__(xp, spec, facts)
        self.relative = self.subtracts = spec.relative
        self.bounded = facts.small
        self.leaves_out = facts.given and not facts.finite  # scores of -inf
        # Excesses are counted, too: a `where` makes zeros of the second derivatives that PyTorch leaves out.
        self.complete = facts.complete and not (self.leaves_out or spec.relative)
        self.n_pairs = int(spec.counts[0]) + (facts.n_negatives if spec.counts[1] else 0)  # of each row, if complete

    def add_negatives(self, scores: Arrays, exclude: Exclude, block: Inputs) -> tuple[PairSum, Array]:
        """Sums over a tile of negatives, and the slopes of its terms."""
        (score,), term = scores, self.spec.terms[1]
        assert term is not None  # noqa: S101  (without, no tile is computed)
        if self.leaves_out:
            return self._add_some(term, score, exclude, block)
        if not self.facts.finite:
            score = exclude(score, 0.0)
        return self._summed(term, score, block, lambda x: exclude(x, 0.0))

    def _add_some(self, term: Term, score: Array, exclude: Exclude, block: Inputs) -> tuple[PairSum, Array]:
        """Sums over the negatives whose scores are not -inf, and their number, which takes no pass if all are there."""
        xp, adapter = self.xp, adapter_of(score)
        taken = exclude(score != -math.inf, False)  # noqa: FBT003  (an entry)

        def of_all(score: Array) -> Array:
            return xp.full_like(score[:, 0], self.facts.n_negatives)

        def of_some(score: Array) -> Array:
            return adapter.count_along(exclude(score != -math.inf, False), 1, score.dtype)  # noqa: FBT003

        for there in block.present:
            taken = xp.logical_and(taken, there[:, None])

        number: Array | None = None
        if adapter.mode == "traced" and not block.mask and pays_to_branch(score.shape[1]):
            some = xp.any(xp.logical_not(xp.min(score, axis=1) > -math.inf))  # NaN may hide -inf
            number = adapter.branch(xp.astype(some, xp.int32), (of_all, of_some), score)
            for there in block.present if number is not None else ():
                number = xp.where(there, number, 0.0)
        number = adapter.count_along(taken, 1, score.dtype) if number is None else number
        sums, slope = self._summed(
            term, xp.where(taken, score, 0.0), block, lambda x: adapter.where_in_place(taken, x, 0.0)
        )
        return sums._replace(n_pairs=number), slope

    def _summed(
        self,
        term: Term,
        score: Array,
        block: Inputs,
        clear: Callable[[Array], Array],
        entry_weights: Array | None = None,
    ) -> tuple[PairSum, Array]:
        """Sums of a term over the entries that `clear` leaves, and its slopes by the scores.

        `entry_weights`: weights of the entries in the number of nonzero terms.
        """
        xp = self.xp
        value, slopes = self._term(term, score, tuple(x[:, None] for x in block.parameters))

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
        to_parameters = tuple([x for _, x in of_slopes[1:]])
        sums = PairSum(total, self._counted(total, 0), active, to_parameters)
        return sums, of_slopes[0][0] if of_slopes else None

    def _term(self, term: Term, score: Array, parameters: Arrays) -> tuple[Array, Arrays]:
        """A term of scores, and its slopes if needed, in the shape of the scores and in memory that may be overwritten.

        A user's function may return its argument, an array of its own, or one entry expanded to this shape.
        """
        xp, shape = self.xp, tuple(score.shape)
        value, slopes = term.value_and_slopes(score, *parameters, bounded=self.bounded, need_grad=self.need_grad)

        def whole(x: Array | None) -> Array | None:
            if x is None or (term.fused is not None and tuple(x.shape) == shape):
                return x
            return xp.broadcast_to(x, shape) + xp.zeros_like(score)

        value, *whole_slopes = _once_each(whole, (value, *slopes))
        return value, tuple(whole_slopes) if self.need_grad else ()

    def add_masked(self, scores: Arrays, members: Members, block: Inputs) -> tuple[Any, Any, None]:
        """Sums over the pairs of a masked tile, and the slopes of its terms. Scores of -inf are left out."""
        xp, (score,) = self.xp, scores
        members = members.graded(score.dtype) if self.spec.graded else members.exclusive()
        if members.negative_weights is None:
            members.refuse_weights()
        sums, residuals = [], []
        for term, mask, weights, count in zip(self.spec.terms, members[:2], members[2:], self.spec.counts, strict=True):
            taken, entries = mask, score
            if not self.facts.finite:
                taken = xp.logical_and(taken, xp.not_equal(score, -math.inf))
                entries = xp.where(taken, score, 0.0)
            entry_weights = xp.astype(taken, score.dtype) if weights is None else xp.where(taken, weights, 0.0)
            number = adapter_of(entry_weights).sum_along(entry_weights, 1)
            zero = xp.zeros_like(number)
            if term is None:
                part = self._no_term(zero, block)
            else:

                def clear(x: Array, taken: Array = taken, by: Array | None = weights) -> Array:
                    x = adapter_of(x).where_in_place(taken, x, 0.0)  # 0 times an infinite term would be NaN
                    return x if by is None else x * xp.where(taken, by, 0.0)

                part, residual = self._summed(term, entries, block, clear, None if weights is None else entry_weights)
                residuals.append(residual)
            sums.append(part._replace(n_pairs=number if count else zero))
        if self.spec.balance:
            return BalancedSum(*sums), residuals, None
        added: Array = None
        if self.need_grad:
            added = sum(residuals[1:], residuals[0]) if residuals else xp.zeros_like(score)
        return self.merge(sums)[0], added, None

    def against(self, scores: Array, block: Inputs) -> Inputs:
        """The block with minus the scores of the positives ahead of its parameters, and the rows that have one."""
        if self.leaves_out:
            there = scores != -math.inf
            block, scores = block._replace(present=(there,)), self.xp.where(there, scores, 0.0)
        return block._replace(parameters=(-scores, *block.parameters))

    def partner_positives(self, scores: Array, block: Inputs) -> tuple[PairSum, Array]:
        """Terms of rows with one positive each, and their slopes."""
        xp, term, there = self.xp, self.spec.terms[0], None
        number = self._counted(scores, self.n_pairs)
        if self.leaves_out:  # the negatives are counted in their tile
            there = scores != -math.inf
            scores = xp.where(there, scores, 0.0)
            number = xp.astype(there, scores.dtype) * float(self.spec.counts[0])
        if term is None:
            zero = xp.zeros_like(scores)
            return self._no_term(zero, block)._replace(n_pairs=number), zero
        value, slopes = self._term(term, scores, block.parameters)
        if there is not None:
            value, *rest = _once_each(lambda x: x if x is None else xp.where(there, x, 0.0), (value, *slopes))
            slopes = tuple(rest)
        active = xp.astype(value != 0, value.dtype) if self.spec.divide_by == "active" else None
        slope, *to_parameters = slopes if self.need_grad else (None,)
        to_parameters = [xp.zeros_like(value) if x is None else x for x in to_parameters]
        return PairSum(value, number, active, tuple(to_parameters)), slope

    def _counted(self, like: Array, number: int) -> Array | None:
        """Number of pairs of each row, or None if all rows are known to have `n_pairs`."""
        return None if self.complete else self.xp.full_like(like, number)

    def _no_term(self, zero: Array, block: Inputs) -> PairSum:
        slopes = tuple(zero for _ in block.parameters) if self.need_grad else ()
        return PairSum(zero, self._counted(zero, 0), zero if self.spec.divide_by == "active" else None, slopes)

    def merge(self, parts: list[Any]) -> tuple[Any, list[None]]:
        if isinstance(parts[0], BalancedSum):
            return BalancedSum(*[self.merge([*each])[0] for each in zip(*parts, strict=True)]), [None] * len(parts)
        total = parts[0]
        for part in parts[1:]:
            pairs, active = (
                None if a is None or b is None else a + b for a, b in zip(total[1:3], part[1:3], strict=True)
            )
            extra = tuple(a + b for a, b in zip(total.to_parameters, part.to_parameters, strict=True))
            total = PairSum(total.value + part.value, pairs, active, extra)
        return total, [None] * len(parts)

    def finish(self, total: Any, positive: Any, block: Inputs) -> RowLosses:
        xp, spec, weights = self.xp, self.spec, only(block.weights)
        if spec.balance:
            return self._finish_balanced(total, positive, weights)
        slope = None
        if positive is not None:
            part, slope = positive
            total = self.merge([part, total])[0]
        elif total.n_pairs is not None and self.facts.n_negatives and spec.counts[1]:  # no tile counts them
            total = total._replace(n_pairs=total.n_pairs + self.facts.n_negatives)
        # If all rows have pairs, all count.
        counted = None if total.n_pairs is None and self.n_pairs > 0 else self._pairs_of(total) > 0
        values, factor, weight_slopes = weigh(xp, total.value, weights, counted)
        counts: Array | None = total.n_active
        if spec.divide_by == "pairs":
            counts = self._pairs_of(total)
        elif spec.divide_by == "rows":
            counts = self._counts_of_all(values) if counted is None else xp.astype(counted, values.dtype)
        if not self.need_grad:
            return RowLosses(values, counts)
        to_positive, *to_parameters = (
            x if x is None else self.divided(x if factor is None else x * factor) for x in (slope, *total.to_parameters)
        )
        if self.relative:
            to_away, *to_parameters = to_parameters
            to_positive = -1.0 * to_away  # type: ignore[operator]
        factor = self.divided(xp.ones_like(values) if factor is None else factor)
        to_rows = (*to_parameters, *self.to_weights(weight_slopes))
        return RowLosses(values, counts, factor, to_positive, to_rows)

    def _finish_balanced(self, total: Any, positive: Any, weights: Array | None) -> RowLosses:
        """Losses whose sum is a mean over positives plus a mean over negatives.

        With the sum s and the number n of a row, its weight w, and the mean ``m = Σ w s / Σ w n``, all of the positives
        and all of the negatives,

            loss: w s / Σ w n        to the score: w / Σ w n, times the slope        to the weight: (s - n m) / Σ w n
        """
        xp, spec, slope = self.xp, self.spec, None
        if positive is not None:
            part, slope = positive
            if not self.leaves_out:
                one, n_negatives = xp.ones_like(part.value), xp.full_like(part.value, self.facts.n_negatives)
                part, total = part._replace(n_pairs=one), total._replace(n_pairs=n_negatives)
            total = BalancedSum(part, total)
        sides = [_mean_of(xp, part, spec.divide_by, weights) for part in total]
        (of_positives, of_negatives), counts = sides, sides[0].number + sides[1].number
        values = of_positives.values + of_negatives.values
        if not self.need_grad:
            return RowLosses(values, counts)
        each = [side.cotangents(part) for side, part in zip(sides, total, strict=True)]
        to_rows = tuple([a + b for a, b in zip(*each, strict=True)])
        to_positive = of_positives.factor if slope is None else of_positives.factor * slope
        return RowLosses(values, counts, of_negatives.factor, to_positive, to_rows)

    def _pairs_of(self, total: PairSum) -> Array:
        return self.xp.full_like(total.value, self.n_pairs) if total.n_pairs is None else total.n_pairs

    def tile_cotangent(self, residual: Array, losses: RowLosses, rescale: None) -> tuple[Array, Array]:
        """The slopes of the terms, and the factor of each row."""
        del rescale
        return residual, losses.coefficient

    def masked_cotangents(
        self, residual: Any, positive: Any, losses: RowLosses, members: Members, rescale: None = None
    ) -> Arrays:
        """The cotangents of a masked tile's scores."""
        del positive, members, rescale
        if not self.spec.balance:
            return self.cotangents(residual, losses)
        factors = losses.to_positive, losses.coefficient
        first, second = (
            self.cotangents(x, losses._replace(coefficient=c))[0] for x, c in zip(residual, factors, strict=True)
        )
        return (first + second,)


class _OneMean(NamedTuple):
    """Weighted values of rows divided by a norm, their numbers, the factor of their slopes, and slopes of weights."""

    values: Array
    number: Array
    factor: Array
    to_weights: Arrays

    def cotangents(self, part: PairSum) -> Arrays:
        """Cotangents of the parameters and the weights of the rows."""
        return (*[x * self.factor for x in part.to_parameters], *self.to_weights)


def _mean_of(xp: Namespace, part: PairSum, divide_by: str, weights: Array | None) -> _OneMean:
    """Mean of the positives or of the negatives of all rows."""
    pairs: Array = part.n_pairs
    counted = pairs > 0
    values, factor, to_weights = weigh(xp, part.value, weights, counted)
    number = part.n_active if divide_by == "active" else pairs
    number = xp.astype(counted, values.dtype) if divide_by == "rows" else number
    norm = sum_to_scalar(xp, number if weights is None else number * weights)
    norm = xp.where(norm == 0, math.inf, norm)  # such a mean is 0, and constant
    if to_weights is None:
        return _OneMean(values / norm, number, factor / norm, ())
    mean = sum_to_scalar(xp, values) / norm
    return _OneMean(values / norm, number, factor / norm, ((to_weights - number * mean) / norm,))


def _once_each(function: Callable[[Array], Any], arrays: Arrays) -> list[Any]:
    """Results of a function, called once for arrays that are one object: a value and its slope may be."""
    results: list[Any] = []
    for k, x in enumerate(arrays):
        same = [result for y, result in zip(arrays[:k], results, strict=True) if y is x]
        results.append(same[0] if same else function(x))
    return results
