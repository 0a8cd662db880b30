"""Losses that bring their gradient: value and gradient in one sweep over blocks of rows.

The statistics of a block of rows are final as soon as its scores are there; then the objective says what the rows are
worth and with what slopes, and the cotangents of the scores follow before the block is left. Nothing is computed twice,
and nothing of the size of the score matrix is kept. The loss of all rows, weighted and summed, is what is
differentiated; what a mean divides by is a constant but for the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ._core.namespace import namespace_of, together
from ._core.numerics import ExpSum, sum_to_scalar
from ._core.protocol import Array, Namespace
from ._pairs import Term, add_terms, pull_terms
from ._rows import (
    Block,
    Layout,
    no_cotangents,
    pulled_back,
    scan_rows,
    source_of,
    sweep_of,
    tile_of,
    with_gradient,
)
from ._statistics import RowStatistics, RowSums, row_statistics, sums_and_exponentials
from .pairings import Pairing
from .similarities import Operands, Similarity

__all__ = ["Slopes", "fused_pairs", "fused_rows", "weighted_rows"]

Slopes = tuple[Array | None, Array | None, Array | None, Array | None]


class RowLoss(NamedTuple):
    """An objective whose rows are each on their own: losses, slopes, and which rows count.

    ``of_odds(log_odds, small=...)`` gives the loss and its slope by the log-odds, where these are all that it asks for,
    for rows that have one positive and some negatives; with `small`, their exponentials are in range.
    """

    rows: Callable[[RowStatistics], Array]
    slopes: Callable[[RowStatistics], Slopes]
    needs_negative: bool
    of_odds: Callable[..., tuple[Array, Array]] | None = None


class _RowPlan(NamedTuple):
    layout: Layout
    single: bool
    loss: RowLoss
    weighted: bool


class _PairPlan(NamedTuple):
    layout: Layout
    terms: tuple[Term | None, Term | None]
    divide_by: str
    weighted: bool


def fused_rows(
    loss: RowLoss,
    similarity: Similarity,
    operands: tuple[Operands, Operands],
    pairing: Pairing,
    mask: Array | None,
    *,
    weights: Array | None,
    block: int,
) -> tuple[Array, Array]:
    """The weighted sum of the losses of the rows, of shape (1,), and which rows count, as numbers."""
    layout, source = sweep_of([(similarity, operands)], pairing, mask, block, () if weights is None else (weights,))
    return with_gradient(
        _rows_with_gradient, _RowPlan(layout, pairing.one_per_row, loss, weights is not None), *source.flat()
    )


def fused_pairs(
    terms: tuple[Term | None, Term | None],
    similarity: Similarity,
    operands: tuple[Operands, Operands],
    pairing: Pairing,
    mask: Array | None,
    *,
    parameters: tuple[Array, ...],
    divide_by: str,
    weights: Array | None,
    block: int,
) -> tuple[Array, Array]:
    """The weighted sum of the terms of all pairs, of shape (1,), and how often each row counts in a mean."""
    further = parameters if weights is None else (*parameters, weights)
    layout, source = sweep_of([(similarity, operands)], pairing, mask, block, further)
    return with_gradient(_pairs_with_gradient, _PairPlan(layout, terms, divide_by, weights is not None), *source.flat())


def weighted_rows(
    xp: Namespace, values: Array, weights: Array | None, counted: Array | None = None
) -> tuple[Array, Array | None, Array | None]:
    """The values of the rows that count times their weights, the factor of their slopes, and the slopes of the weights.

    Without `counted` all rows count; a factor of None is 1. An infinite value without weight is no contribution, not
    NaN.
    """
    if weights is None:
        if counted is None:
            return values, None, None
        return xp.where(counted, values, xp.zeros_like(values)), xp.astype(counted, values.dtype), None
    dead = xp.logical_and(xp.isinf(values), weights == 0)
    if counted is not None:
        dead = xp.logical_or(xp.logical_not(counted), dead)
    nothing = xp.zeros_like(values)
    values = xp.where(dead, nothing, values)
    return values * weights, xp.where(dead, nothing, weights), values


def _rows_with_gradient(plan: _RowPlan, *arrays: Array, wanted: bool) -> tuple[Array, ...]:
    (arrays,) = together(arrays)
    xp = namespace_of(arrays[0])
    layout, loss = plan.layout, plan.loss
    source = source_of(layout, arrays)

    def step(carry: tuple[Array, ...], block: Block) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        (scores,), positives, negatives = tile_of(xp, layout, source, block)
        found_sums = sums_and_exponentials(scores, positives, negatives, single=plan.single)
        row = row_statistics(found_sums[0])
        counted = xp.logical_and(row.has_positive, row.has_negative) if loss.needs_negative else row.has_positive
        weights = block.parameters[0] if plan.weighted else None
        values, factor, to_weights = weighted_rows(xp, loss.rows(row), weights, counted)
        found = (values, xp.astype(counted, values.dtype))
        if not wanted:
            return carry, found
        cotangent = score_cotangents(xp, scores, positives, found_sums, row, slopes=loss.slopes(row), factor=factor)
        to_rows, to_columns = pulled_back(layout, source, block, (cotangent,))
        carry = tuple(a + b for a, b in zip(carry, to_columns, strict=True))
        return carry, (*found, *to_rows, *(() if to_weights is None else (to_weights,)))

    return _finished(xp, layout, *scan_rows(layout, source, step, no_cotangents(source) if wanted else ()))


def _finished(
    xp: Namespace, layout: Layout, to_columns: tuple[Array, ...], found: tuple[Array, ...]
) -> tuple[Array, ...]:
    """The sum of the values, the constants, and the gradients in the order of the arrays."""
    values, counts, *gradients = found
    n_rows = sum(channel.rows for channel in layout.channels)
    return (sum_to_scalar(xp, values), counts, *gradients[:n_rows], *to_columns, *gradients[n_rows:])


def score_cotangents(
    xp: Namespace,
    scores: Array,
    positives: Array,
    found: tuple[RowSums, tuple[Array, Array | None]],
    row: RowStatistics,
    *,
    slopes: Slopes,
    factor: Array,
) -> Array:
    """The cotangents of the scores, for the slopes of the losses with respect to the row statistics.

    `found` is what `sums_and_exponentials` gives.
    """
    sums, (cotangent, of_each_positive) = found
    nothing = xp.zeros_like(factor)
    of_odds, of_spread, of_negative, of_positive = (nothing if s is None else s * factor for s in slopes)
    of_odds = xp.where(xp.logical_and(row.has_negative, row.has_positive), of_odds, nothing)
    cotangent = cotangent * xp.expand_dims(share(xp, of_odds + of_negative, sums.negative), axis=1)
    if of_each_positive is None or sums.number is None:
        to_positive = xp.where(sums.positive.total == 0, nothing, of_positive - of_odds)
        return xp.where(positives, xp.expand_dims(to_positive, axis=1), cotangent)
    several = sums.number > 1
    of_spread = xp.where(several, of_spread, nothing)
    of_each = of_spread / xp.where(several, sums.number, xp.ones_like(factor))
    to_positive = share(xp, of_spread + of_positive - of_odds, sums.positive)
    cotangent += of_each_positive * xp.expand_dims(to_positive, axis=1)
    finite = xp.logical_and(positives, xp.logical_not(xp.isinf(scores)))
    return cotangent - xp.where(finite, xp.expand_dims(of_each, axis=1), xp.zeros_like(scores))


def share(xp: Namespace, slope: Array, total: ExpSum) -> Array:
    """The slope of a sum's logarithm, divided by the sum; 0 where it is empty."""
    empty = total.total == 0
    slope = xp.where(empty, xp.zeros_like(slope), slope)
    return slope / xp.where(empty, xp.ones_like(slope), total.total)


def _pairs_with_gradient(plan: _PairPlan, *arrays: Array, wanted: bool) -> tuple[Array, ...]:
    (arrays,) = together(arrays)
    xp = namespace_of(arrays[0])
    layout = plan.layout
    source = source_of(layout, arrays)

    def step(carry: tuple[Array, ...], block: Block) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        scores, positives, negatives = tile_of(xp, layout, source, block)
        parameters, weights = block.parameters, None
        if plan.weighted:
            parameters, weights = parameters[:-1], parameters[-1]
        columns = tuple(xp.expand_dims(x, axis=1) for x in parameters)
        sums = add_terms(xp, plan.terms, scores, (positives, negatives), columns)
        number = sums[2] + sums[3]
        counted = number > 0
        if plan.divide_by == "rows":
            number = xp.astype(counted, number.dtype)
        elif plan.divide_by == "active":
            number = sums[4] + sums[5]
        values, factor, to_weights = weighted_rows(xp, sums[0] + sums[1], weights, counted)
        if not wanted:
            return carry, (values, number)
        cotangents, to_parameters = pull_terms(
            xp, plan.terms, scores, (positives, negatives), columns, cotangents=(factor, factor)
        )
        to_rows, to_columns = pulled_back(layout, source, block, cotangents)
        carry = tuple(a + b for a, b in zip(carry, to_columns, strict=True))
        further = to_parameters if to_weights is None else (*to_parameters, to_weights)
        return carry, (values, number, *to_rows, *further)

    return _finished(xp, layout, *scan_rows(layout, source, step, no_cotangents(source) if wanted else ()))
