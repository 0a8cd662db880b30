"""Streamed row sums: tile by tile, memory O(N · block), with the closed-form gradient.

The columns pass by in blocks. The forward sweep keeps a running maximum and rescales the sums when it grows; the
backward sweep computes each tile again and hands its cotangent to the similarity's pullback. The maxima are constants
to differentiation, as in the dense execution, also inside the forward sweep, which JAX differentiates for derivatives
of second order; so the sums, their gradients and the gradients of those are the same functions in both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ._autodiff import stop_gradient
from ._namespace import namespace_of, together
from ._numerics import ExpSum, accumulate, shifted_exp, single_exp_sum, zeros
from ._protocol import Array, Namespace
from ._statistics import RowSums, centred_sum
from ._tiles import ClosedForm, Layout, Tiles, scan_pullbacks, scan_tiles, source_of, sweep_of
from .pairings import Pairing
from .similarities import Operands, Similarity

__all__ = ["streamed_sums"]


class _Plan(NamedTuple):
    layout: Layout
    single: bool  # at most one positive in a row


def streamed_sums(
    similarity: Similarity, operands: tuple[Operands, Operands], pairing: Pairing, mask: Array | None, block: int
) -> RowSums:
    """The sums of each row of the score matrix of the operands of rows and columns, `block` columns at a time."""
    layout, source = sweep_of([(similarity, operands)], pairing, mask, block)
    found = _sums(_Plan(layout, pairing.one_per_row), *source.flat())
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

    def step(
        carry: tuple[Array, ...], _tiles: Tiles, tile: tuple[Array, ...], positives: Array, negatives: Array
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        (scores,) = tile
        top, factor = _raise(xp, carry[0], scores, negatives)
        total = carry[1] * factor + xp.sum(shifted_exp(xp, scores, negatives, top), axis=1)
        if plan.single:
            score = xp.sum(xp.where(positives, scores, xp.zeros_like(scores)), axis=1)
            present = xp.astype(xp.any(positives, axis=1), scores.dtype)
            return (top, total, carry[2] + score, carry[3] + present), ()
        positive_top, factor = _raise(xp, carry[2], scores, positives)
        positive_total = carry[3] * factor + xp.sum(shifted_exp(xp, scores, positives, positive_top), axis=1)
        centred, count = centred_sum(xp, scores, positives, positive_top)
        moved = xp.where(carry[5] > 0, carry[5] * _difference(xp, carry[2], positive_top), carry[4] * 0)
        return (top, total, positive_top, positive_total, carry[4] + moved + centred, carry[5] + count), ()

    nothing = zeros(xp, source.shape[:1], accumulate(xp, arrays[0]))
    empty = nothing - math.inf
    init = (empty, nothing, nothing, nothing) if plan.single else (empty, nothing, empty, nothing, nothing, nothing)
    carry, _ = scan_tiles(plan.layout, source, step, init)
    return carry


def _difference(xp: Namespace, a: Array, b: Array) -> Array:
    """``a - b``, 0 where either is infinite."""
    infinite = xp.logical_or(xp.isinf(a), xp.isinf(b))
    nothing = xp.zeros_like(a)
    return xp.where(infinite, nothing, xp.where(infinite, nothing, a) - xp.where(infinite, nothing, b))


def _raise(xp: Namespace, top: Array, scores: Array, members: Array) -> tuple[Array, Array]:
    """The maximum so far, and the factor that brings sums relative to the old one to the new one."""
    new = stop_gradient(xp.maximum(top, xp.max(xp.where(members, scores, -math.inf), axis=1)))
    gone = xp.logical_or(xp.isinf(top), xp.isinf(new))
    factor = xp.exp(_difference(xp, top, new))
    return new, xp.where(gone, xp.zeros_like(factor), factor)


def _backward(
    plan: _Plan, arrays: tuple[Array, ...], outputs: tuple[Array, ...], cotangents: tuple[Array, ...]
) -> tuple[Array, ...]:
    arrays, outputs, cotangents = together(arrays, outputs, cotangents)
    xp = namespace_of(arrays[0])
    top, positive_top = stop_gradient(outputs[0]), stop_gradient(outputs[2])  # the latter without `plan.single`
    negative_pull = xp.expand_dims(cotangents[1], axis=1)
    positive_pull = xp.expand_dims(cotangents[2 if plan.single else 3], axis=1)
    mean_pull = None if plan.single else xp.expand_dims(cotangents[4], axis=1)

    def pull(
        tile: tuple[Array, ...], positives: Array, negatives: Array
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        (scores,) = tile
        found = shifted_exp(xp, scores, negatives, top) * negative_pull
        if plan.single:
            return (xp.where(positives, positive_pull, found),), ()
        found = found + shifted_exp(xp, scores, positives, positive_top) * positive_pull
        finite = xp.logical_and(positives, xp.logical_not(xp.isinf(scores)))
        return (found + xp.where(finite, mean_pull, xp.zeros_like(found)),), ()

    return scan_pullbacks(plan.layout, source_of(plan.layout, arrays), pull)


_sums = ClosedForm(_forward, _backward)
