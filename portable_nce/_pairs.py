"""Pair sums: functions of the scores of a pair, summed over the positives and over the negatives of each row.

The losses of the pairwise family are such sums, and so is whatever a loss of the softmax family needs to know of every
pair once the row statistics are known; those are handed over as parameters, one number for each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ._core.autodiff import stop_gradient
from ._core.namespace import namespace_of, together
from ._core.protocol import Array, Namespace
from ._rows import Block, Layout, closed_form, scan_pullbacks, scan_rows, source_of, sweep_of, tile_of
from .pairings import Pairing
from .similarities import Operands, Similarity

__all__ = ["PairSums", "Term", "add_terms", "dense_pair_sums", "pull_terms", "streamed_pair_sums"]


class Term(NamedTuple):
    """An elementwise function of the scores of a pair, with its derivatives.

    Attributes
    ----------
    value : callable
        ``value(score, *parameters) -> array``, elementwise. Differentiated as it stands where the whole score matrix is
        held; it must be finite, with finite derivatives, for every finite score.
    slopes : callable, optional
        ``slopes(score, *parameters) -> tuple of array``: the derivative with respect to each argument. Array-API code,
        so that it can be differentiated again. Without it, the term does not stream.
    both : callable, optional
        ``both(score, *parameters, small=...) -> (value, slopes)``: the two together, where they have parts in common,
        as arrays of the shape of the scores, of which no part of the caller's is one. With `small`, no sum of a score
        and the parameters is beyond 30 in magnitude.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> square = pnce.objectives.Term(lambda s: s * s, lambda s: (2.0 * s,))
    >>> apart = pnce.objectives.Pairwise(None, square, divide_by="pairs")
    >>> pnce.contrast(np.eye(3), np.eye(3)[::-1], objective=apart, similarity="dot")
    array(0.22222222)
    """

    value: Callable[..., Array]
    slopes: Callable[..., tuple[Array, ...]] | None = None
    both: Callable[..., tuple[Array, tuple[Array, ...]]] | None = None


class PairSums(NamedTuple):
    """Sums over the positives and over the negatives of each row; arrays of shape (N,).

    `number` counts the pairs, and `active` those whose term is not 0; both are constants. A score of -inf takes
    no part.
    """

    positive: Array
    negative: Array
    number_positive: Array
    number_negative: Array
    active_positive: Array
    active_negative: Array


def dense_pair_sums(
    scores: tuple[Array, ...],
    positives: Array,
    negatives: Array,
    terms: tuple[Term | None, Term | None],
    parameters: tuple[Array, ...],
) -> PairSums:
    """The sums of the terms over the positives and over the negatives, from whole score matrices."""
    scores, parameters = together(scores, parameters)
    xp = namespace_of(scores[0])
    return PairSums(*add_terms(xp, terms, scores, (positives, negatives), _columns(xp, parameters)))


def streamed_pair_sums(
    channels: list[tuple[Similarity, tuple[Operands, Operands]]],
    pairing: Pairing,
    mask: Array | None,
    block: int,
    *,
    terms: tuple[Term | None, Term | None],
    parameters: tuple[Array, ...],
) -> PairSums:
    """The same some rows at a time, memory O(block · K), with the closed-form gradient."""
    layout, source = sweep_of(channels, pairing, mask, block, parameters)
    found = closed_form(_forward, _backward, _Plan(layout, terms), *source.flat())
    return PairSums(*found[:2], *(stop_gradient(x) for x in found[2:]))


class _Plan(NamedTuple):
    layout: Layout
    terms: tuple[Term | None, Term | None]


def _columns(xp: Namespace, parameters: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(xp.expand_dims(x, axis=1) for x in parameters)


def _live(xp: Namespace, scores: tuple[Array, ...], members: Array) -> Array:
    """The members of which no score is -inf."""
    for score in scores:
        members = xp.logical_and(members, score != -math.inf)
    return members


def _inputs(
    xp: Namespace, scores: tuple[Array, ...], members: Array, parameters: tuple[Array, ...]
) -> tuple[Array, ...]:
    """The arguments of a term, with 0 for the scores of what takes no part, whatever they held."""
    return (*(xp.where(members, score, xp.zeros_like(score)) for score in scores), *parameters)


def add_terms(
    xp: Namespace,
    terms: tuple[Term | None, Term | None],
    scores: tuple[Array, ...],
    sets: tuple[Array, Array],
    parameters: tuple[Array, ...],
) -> tuple[Array, ...]:
    """The sums over the positives and the negatives of a tile, in the order of `PairSums`."""
    sums, numbers, active = [], [], []
    for term, chosen in zip(terms, sets, strict=True):
        members = _live(xp, scores, chosen)
        numbers.append(xp.sum(xp.astype(members, scores[0].dtype), axis=1))
        if term is None:
            sums.append(xp.zeros_like(numbers[-1]))
            active.append(xp.zeros_like(numbers[-1]))
            continue
        value = term.value(*_inputs(xp, scores, members, parameters))
        value = xp.where(members, value, xp.zeros_like(value))
        sums.append(xp.sum(value, axis=1))
        active.append(xp.sum(xp.astype(value != 0, value.dtype), axis=1))
    return (*sums, *numbers, *active)


def pull_terms(
    xp: Namespace,
    terms: tuple[Term | None, Term | None],
    scores: tuple[Array, ...],
    sets: tuple[Array, Array],
    parameters: tuple[Array, ...],
    *,
    cotangents: tuple[Array, ...],
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The cotangents of the scores and of the parameters, for those of the sums over positives and negatives."""
    found = [xp.zeros_like(scores[0]) for _ in (*scores, *parameters)]
    for term, chosen, cotangent in zip(terms, sets, cotangents, strict=True):
        if term is None or term.slopes is None:
            continue
        members = _live(xp, scores, chosen)
        slopes = term.slopes(*_inputs(xp, scores, members, parameters))
        factor = xp.where(members, xp.expand_dims(cotangent, axis=1), xp.zeros_like(scores[0]))
        found = [a + factor * slope for a, slope in zip(found, slopes, strict=True)]
    return tuple(found[: len(scores)]), tuple(xp.sum(x, axis=1) for x in found[len(scores) :])


def _forward(plan: _Plan, *arrays: Array) -> tuple[Array, ...]:
    (arrays,) = together(arrays)
    xp = namespace_of(arrays[0])
    source = source_of(plan.layout, arrays)

    def step(carry: tuple[Array, ...], block: Block) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        scores, positives, negatives = tile_of(xp, plan.layout, source, block)
        return carry, add_terms(xp, plan.terms, scores, (positives, negatives), _columns(xp, block.parameters))

    return scan_rows(plan.layout, source, step)[1]


def _backward(
    plan: _Plan, arrays: tuple[Array, ...], outputs: tuple[Array, ...], cotangents: tuple[Array, ...]
) -> tuple[Array, ...]:
    del outputs
    arrays, cotangents = together(arrays, cotangents)
    xp = namespace_of(arrays[0])

    def pull(
        block: Block, scores: tuple[Array, ...], positives: Array, negatives: Array
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        columns = _columns(xp, block.parameters)
        return pull_terms(xp, plan.terms, scores, (positives, negatives), columns, cotangents=block.further)

    return scan_pullbacks(plan.layout, source_of(plan.layout, arrays), pull, tuple(cotangents[:2]))
