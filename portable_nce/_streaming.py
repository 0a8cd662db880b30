"""Streamed row sums: some rows at a time, memory O(block · K), with the closed-form gradient.

The forward sweep computes a block's scores and adds them up; the backward sweep computes them again and hands their
cotangents to the similarity's pullback. The maxima are constants to differentiation, as in the dense execution; so the
sums, their gradients and the gradients of those are the same functions in both.
"""

from __future__ import annotations

from typing import NamedTuple

from ._core.autodiff import stop_gradient
from ._core.namespace import namespace_of, together
from ._core.numerics import ExpSum, exp_sum, shifted_exp, single_exp_sum
from ._core.protocol import Array
from ._rows import Block, Layout, closed_form, scan_pullbacks, scan_rows, source_of, sweep_of, tile_of
from ._statistics import RowSums, dense_sums
from .pairings import Pairing
from .similarities import Operands, Similarity

__all__ = ["streamed_sums"]


class _Plan(NamedTuple):
    layout: Layout
    single: bool  # at most one positive in a row


def streamed_sums(
    similarity: Similarity, operands: tuple[Operands, Operands], pairing: Pairing, mask: Array | None, block: int
) -> RowSums:
    """The sums of each row of the score matrix of the operands of rows and columns, `block` rows at a time."""
    layout, source = sweep_of([(similarity, operands)], pairing, mask, block)
    found = closed_form(_forward, _backward, _Plan(layout, pairing.one_per_row), *source.flat())
    negative = ExpSum(stop_gradient(found[0]), found[1])
    if pairing.one_per_row:
        xp = namespace_of(found[0])
        return RowSums(negative, single_exp_sum(xp, found[2], stop_gradient(found[3]) > 0))
    positive = ExpSum(stop_gradient(found[2]), found[3])
    return RowSums(negative, positive, found[4], stop_gradient(found[5]))


def _forward(plan: _Plan, *arrays: Array) -> tuple[Array, ...]:
    (arrays,) = together(arrays)
    xp = namespace_of(arrays[0])
    source = source_of(plan.layout, arrays)

    def step(carry: tuple[Array, ...], block: Block) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        (scores,), positives, negatives = tile_of(xp, plan.layout, source, block)
        if plan.single:
            score = xp.sum(xp.where(positives, scores, xp.zeros_like(scores)), axis=1)
            present = xp.astype(xp.any(positives, axis=1), scores.dtype)
            return carry, (*exp_sum(xp, scores, negatives), score, present)
        sums = dense_sums(scores, positives, negatives, single=False)
        return carry, (*sums.negative, *sums.positive, sums.centred, sums.number)

    return scan_rows(plan.layout, source, step)[1]


def _backward(
    plan: _Plan, arrays: tuple[Array, ...], outputs: tuple[Array, ...], cotangents: tuple[Array, ...]
) -> tuple[Array, ...]:
    arrays, outputs, cotangents = together(arrays, outputs, cotangents)
    xp = namespace_of(arrays[0])
    if plan.single:
        further = (stop_gradient(outputs[0]), cotangents[1], cotangents[2])
    else:
        further = (stop_gradient(outputs[0]), cotangents[1], stop_gradient(outputs[2]), *cotangents[3:5])

    def pull(
        block: Block, tile: tuple[Array, ...], positives: Array, negatives: Array
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        (scores,) = tile
        top, negative_pull, *of_positives = block.further
        found = shifted_exp(xp, scores, negatives, top) * xp.expand_dims(negative_pull, axis=1)
        if plan.single:
            return (xp.where(positives, xp.expand_dims(of_positives[0], axis=1), found),), ()
        positive_top, positive_pull, mean_pull = of_positives
        found = found + shifted_exp(xp, scores, positives, positive_top) * xp.expand_dims(positive_pull, axis=1)
        finite = xp.logical_and(positives, xp.logical_not(xp.isinf(scores)))
        return (found + xp.where(finite, xp.expand_dims(mean_pull, axis=1), xp.zeros_like(found)),), ()

    return scan_pullbacks(plan.layout, source_of(plan.layout, arrays), pull, further)
