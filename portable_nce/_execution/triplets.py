"""The triplet family: sums over the triples of whole rows of scores."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from .._core.checks import is_empty, largest, least, readable_entries
from .._core.equality import Record
from .._core.namespace import namespace_of
from .._core.numerics import relu, relu_slope, softplus_and_sigmoid
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..objectives.pairwise import fused_term
from ..objectives.triplet import Triplet
from ..pairings import Members
from .inputs import Arrays, Inputs, only
from .mining import mined_sums
from .pair_terms import PairsSpec
from .row_losses import Exclude, Family, RowLosses, ScoreFacts, weigh
from .triples import TripleSums, triple_sums, visit


def of_one_positive(spec: Triplet, *, finite: bool) -> PairsSpec:
    """All triples of rows with one positive each, at a known place: a term of negatives. `finite`: no score is NaN."""
    divide_by = "pairs" if spec.average == "all" else "active"
    return PairsSpec((None, _EXCESSES[spec.soft, finite]), divide_by, counts=(False, True), relative=True)


class _Excess(Record):
    """Excess of a negative, from its score, minus the score of the positive, and the margin."""

    soft: bool
    finite: bool

    def __call__(
        self, score: Array, away: Array, margin: Array, *, bounded: bool, need_grad: bool
    ) -> tuple[Array, tuple[Array, ...]]:
        difference = score + away
        difference += margin
        xp = namespace_of(difference)
        if self.soft:
            value, slope = softplus_and_sigmoid(xp, difference, bounded=bounded, need_slope=need_grad)
        else:
            value, slope = relu(xp, difference), None
            if need_grad:
                slope = xp.astype(difference > 0, value.dtype) if self.finite else relu_slope(xp, difference)
        return value, (slope,) * 3 if need_grad else ()


_EXCESSES = {(soft, finite): fused_term(_Excess(soft, finite)) for soft in (False, True) for finite in (False, True)}


class Triplets(Family):
    """Sums over triples, of rules with "all"; the parameter is the margin.

    A tile must hold all columns; its residual are the slopes of a row's sum by its scores.
    """

    def __init__(self, xp: Namespace, spec: Triplet, facts: ScoreFacts) -> None:
        super().__init__(xp, spec, facts)

    def add_negatives(self, scores: Array, exclude: Exclude, block: Inputs) -> tuple[Any, Any]:
        """Not implemented: a tile of negatives alone has no triples."""
        raise NotImplementedError

    def add_masked(self, scores: Arrays, members: Members, block: Inputs) -> tuple[TripleSums, Array | None, None]:
        """Sums of each row, and their slopes. Scores of -inf are left out; a NaN makes the loss of its row NaN."""
        xp, (score,), (margin,) = self.xp, scores, block.parameters
        members.refuse_weights()
        shape = tuple(score.shape)
        if is_empty(score):  # of a rank without rows
            nothing = xp.sum(score, axis=1)
            return TripleSums(nothing, nothing, nothing, None, nothing), score, None
        positives, negatives = (xp.broadcast_to(x, shape) for x in members[:2])
        low, high = readable_entries(score, least, largest)
        finite = low is not None and high is not None and low > -math.inf and high < math.inf
        undefined = None
        if not finite:
            live = score != -math.inf
            positives, negatives = (xp.logical_and(x, live) for x in (positives, negatives))
            used = xp.logical_or(positives, negatives)
            undefined = xp.logical_and(used, xp.isnan(score))
            # Scores outside all triples may be infinite, and inf - inf is NaN.
            score = xp.where(xp.logical_and(used, xp.logical_not(undefined)), score, 0.0)
        spec, single = self.spec, self.facts.single
        if not spec.by_mask:
            of_all = partial(triple_sums, soft=spec.soft, need_grad=self.need_grad, finite=finite)
            sums = visit(of_all, score, positives, negatives, margin, single=single)
        else:
            sums = mined_sums(score, positives, negatives, margin, spec.mining, soft=spec.soft, single=single)
        if undefined is not None:
            rows = xp.logical_and(xp.any(undefined, axis=1), sums.number > 0)
            sums = sums._replace(total=xp.where(rows, math.nan, sums.total))
            if sums.to_scores is not None:
                spread = xp.logical_and(rows[:, None], xp.logical_or(positives, negatives))
                sums = sums._replace(to_scores=xp.where(spread, math.nan, sums.to_scores))
        return sums._replace(to_scores=None), sums.to_scores, None

    def merge(self, parts: list[TripleSums]) -> tuple[TripleSums, list[None]]:
        (part,) = parts
        return part, [None]

    def finish(self, total: TripleSums, positive: Any, block: Inputs) -> RowLosses:
        del positive
        xp, spec = self.xp, self.spec
        values, factor, weight_slopes = weigh(xp, total.total, only(block.weights), total.number > 0)
        counts = total.number if spec.average == "all" else total.active
        if not self.need_grad:
            return RowLosses(values, counts)
        factor = self.divided(factor)
        return RowLosses(
            values, counts, factor, row_cotangents=(total.to_margin * factor, *self.to_weights(weight_slopes))
        )

    def masked_cotangents(
        self, residual: Any, positive: Any, losses: RowLosses, members: Members, rescale: None = None
    ) -> Arrays:
        """The cotangents of a tile's scores."""
        del positive, members, rescale
        return (adapter_of(residual).times_in_place(residual, losses.coefficient[:, None]),)
