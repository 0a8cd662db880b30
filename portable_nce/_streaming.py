"""Streamed execution: the row sums tile by tile, memory O(N · block), with the closed-form gradient.

The columns pass by in blocks. The forward sweep keeps a running maximum and rescales the sums when it grows; the
backward sweep computes each tile again and hands its cotangent to the similarity's pullback. The maxima are constants
to differentiation, as in the dense execution, also inside the forward sweep, which JAX differentiates for derivatives
of second order; so the sums, their gradients and the gradients of those are the same functions in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ._autodiff import stop_gradient
from ._namespace import device_of, namespace_of
from ._numerics import ExpSum, accumulate, shifted_exp, single_exp_sum, zeros
from ._protocol import Array, Namespace
from ._registry import adapter_of
from ._statistics import RowSums, centred_sum
from .pairings import Pairing, Tile, split
from .similarities import Operands, Similarity

__all__ = ["streamed_sums"]

_bound: dict[object, Callable[..., tuple[Array, ...]]] = {}


class _Plan(NamedTuple):
    """Everything about a sweep that is not an array; equal plans compile once."""

    scores: Callable[[Operands, Operands], Array]
    pullback: Callable[[Operands, Operands, Array], tuple[Operands, Operands]]
    rule: Callable[[Tile], tuple[Array, Array]]
    single: bool
    masked: bool
    block: int
    counts: tuple[int, int, int, int, int]  # arrays of: rows, columns, pairing rows, pairing columns, pairs


class _Tiles(NamedTuple):
    """One block of columns: the operands, the pairing's arrays, the column numbers."""

    columns: Operands
    labels: tuple[Array, ...]
    pairs: tuple[Array, ...]
    j: Array


def streamed_sums(
    similarity: Similarity, operands: tuple[Operands, Operands], pairing: Pairing, mask: Array | None, block: int
) -> RowSums:
    """The sums of each row of the score matrix of the operands of rows and columns, `block` columns at a time."""
    rows, columns = operands
    adapter = adapter_of(rows[0])
    if adapter not in _bound:
        _bound[adapter] = adapter.custom_vjp(_forward, _backward)
    pairs = pairing.pairs if mask is None else (*pairing.pairs, mask)
    arrays = (rows, columns, pairing.rows, pairing.columns, pairs)
    plan = _Plan(
        similarity.scores,
        similarity.pullback,  # type: ignore[arg-type]  # checked by the caller
        pairing.rule,
        pairing.one_per_row,
        mask is not None,
        min(block, columns[0].shape[-2]),
        (len(rows), len(columns), len(pairing.rows), len(pairing.columns), len(pairs)),
    )
    found = _bound[adapter](plan, *(x for group in arrays for x in group))
    negative = ExpSum(stop_gradient(found[0]), found[1])
    if pairing.one_per_row:
        xp = namespace_of(found[0])
        return RowSums(negative, single_exp_sum(xp, found[2], stop_gradient(found[3]) > 0))
    positive = ExpSum(stop_gradient(found[2]), found[3])
    return RowSums(negative, positive, found[4], stop_gradient(found[5]))


def _split(plan: _Plan, arrays: tuple[Array, ...]) -> list[tuple[Array, ...]]:
    groups, start = [], 0
    for count in plan.counts:
        groups.append(arrays[start : start + count])
        start += count
    return groups


def _blocks(xp: Namespace, plan: _Plan, x: Array, axis: int) -> Array:
    """`x` with its column axis cut into blocks, stacked on a new first axis; the last is filled up with zeros."""
    short = -x.shape[axis] % plan.block
    if short:
        shape = tuple(short if k == axis else n for k, n in enumerate(x.shape))
        x = xp.concat([x, zeros(xp, shape, x)], axis=axis)
    count = x.shape[axis] // plan.block
    x = xp.reshape(x, (*x.shape[:axis], count, plan.block, *x.shape[axis + 1 :]))
    return x if axis == 0 else xp.permute_dims(x, (1, 0, 2))


def _tiles(xp: Namespace, plan: _Plan, arrays: tuple[Array, ...]) -> tuple[tuple[Array, ...], int]:
    """The blocks of columns as one flat tuple of stacked arrays, and the number of columns."""
    _, columns, _, labels, pairs = _split(plan, arrays)
    n_columns = columns[0].shape[0]
    flat = [_blocks(xp, plan, x, 0) for x in (*columns, *labels)]
    flat += [_blocks(xp, plan, x, 1) for x in pairs]
    # The columns that fill up the last block have numbers beyond the end.
    blocks = -(-n_columns // plan.block)
    j = xp.reshape(xp.arange(blocks * plan.block, device=device_of(columns[0])), (blocks, plan.block))
    return (*flat, j), n_columns


def _unpack(plan: _Plan, flat: tuple[Array, ...]) -> _Tiles:
    _, n_columns, _, n_labels, n_pairs = plan.counts
    cuts = (n_columns, n_columns + n_labels, n_columns + n_labels + n_pairs)
    return _Tiles(flat[: cuts[0]], flat[cuts[0] : cuts[1]], flat[cuts[1] : cuts[2]], flat[-1])


def _tile(
    plan: _Plan, rows: Operands, row_labels: tuple[Array, ...], tiles: _Tiles, n_columns: int
) -> tuple[Array, Array, Array]:
    """The scores of one tile, its positives and its negatives."""
    xp = namespace_of(rows[0])
    scores = accumulate(xp, plan.scores(rows, tiles.columns))
    n_rows = rows[0].shape[0]
    positives, negatives = split(
        xp,
        plan.rule,
        numbers=(xp.arange(n_rows, device=device_of(rows[0])), tiles.j),
        shape=(n_rows, n_columns),
        labels=(row_labels, tiles.labels),
        pairs=tiles.pairs[:-1] if plan.masked else tiles.pairs,
        mask=tiles.pairs[-1] if plan.masked else None,
    )
    if n_columns % plan.block:
        within = xp.expand_dims(tiles.j < n_columns, axis=0)
        positives, negatives = xp.logical_and(positives, within), xp.logical_and(negatives, within)
    return scores, positives, negatives


def _forward(plan: _Plan, *arrays: Array) -> tuple[Array, ...]:
    xp = namespace_of(arrays[0])
    rows, _, row_labels, _, _ = _split(plan, arrays)
    xs, n_columns = _tiles(xp, plan, arrays)

    def step(carry: tuple[Array, ...], flat: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        scores, positives, negatives = _tile(plan, rows, row_labels, _unpack(plan, flat), n_columns)
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

    nothing = zeros(xp, (rows[0].shape[0],), accumulate(xp, rows[0]))
    empty = nothing - math.inf
    init = (empty, nothing, nothing, nothing) if plan.single else (empty, nothing, empty, nothing, nothing, nothing)
    carry, _ = adapter_of(arrays[0]).scan(step, init, xs)
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
    xp = namespace_of(arrays[0])
    rows, _, row_labels, _, _ = _split(plan, arrays)
    xs, n_columns = _tiles(xp, plan, arrays)
    top, positive_top = stop_gradient(outputs[0]), stop_gradient(outputs[2])  # the latter without `plan.single`
    negative_pull = xp.expand_dims(cotangents[1], axis=1)
    positive_pull = xp.expand_dims(cotangents[2 if plan.single else 3], axis=1)
    mean_pull = None if plan.single else xp.expand_dims(cotangents[4], axis=1)

    def step(carry: tuple[Array, ...], flat: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        tiles = _unpack(plan, flat)
        scores, positives, negatives = _tile(plan, rows, row_labels, tiles, n_columns)
        pull = shifted_exp(xp, scores, negatives, top) * negative_pull
        if plan.single:
            pull = xp.where(positives, positive_pull, pull)
        else:
            pull = pull + shifted_exp(xp, scores, positives, positive_top) * positive_pull
            finite = xp.logical_and(positives, xp.logical_not(xp.isinf(scores)))
            pull = pull + xp.where(finite, mean_pull, xp.zeros_like(pull))
        to_rows, to_columns = plan.pullback(rows, tiles.columns, pull)
        return tuple(a + b for a, b in zip(carry, to_rows, strict=True)), to_columns

    carry, stacked = adapter_of(arrays[0]).scan(step, tuple(xp.zeros_like(x) for x in rows), xs)
    merged = (xp.reshape(x, (-1, *x.shape[2:])) for x in stacked)
    return (*carry, *(x[:n_columns, ...] for x in merged))
