"""Mined triples: the pairs of a positive and a negative of each row that are compared.

The choice is constant to differentiation: gradients reach the chosen scores alone. Rules that choose one triple of a
row are a measure of a search. Under the others, each positive of a row is compared with one negative, or each negative
with one positive: a row has up to K triples.
"""

from __future__ import annotations

import math
from functools import partial

from .._core.autodiff import stop_gradient
from .._core.equality import Record
from .._core.namespace import namespace_of
from .._core.numerics import entries_at, place_of_largest, zeros
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..pairings import Members
from .inputs import Arrays
from .sets import OnePositive
from .tiling import pays_to_rank, triples
from .triples import TripleSums, Visited, excess, number_before, ranked, sigmoid_or_step, visit


def is_of_one(mining: tuple[str, str]) -> bool:
    """Whether rules for positives and negatives choose one triple of a row."""
    return "all" not in mining


class Mined(Record):
    """The measure of a search for one triple of each row: the columns of its positive and negative, or -1 twice."""

    mining: tuple[str, str]

    def __call__(self, scores: Array, members: Members | OnePositive, k: int) -> tuple[Array, Array]:
        del k
        if isinstance(members, OnePositive):
            return _with_positive(scores, members, self.mining)
        xp, live = namespace_of(scores), scores != -math.inf
        positives, negatives = (xp.logical_and(x, live) for x in members[:2])
        columns = _one_of_each(xp, scores, positives, negatives, self.mining)
        counted = xp.logical_and(xp.any(positives, axis=1), xp.any(negatives, axis=1))
        first, second = (xp.where(counted, x[:, 0], -1) for x in columns)
        return first, second


def _with_positive(scores: Array, members: OnePositive, mining: tuple[str, str]) -> tuple[Array, Array]:
    """Columns of the only positive and of a negative of each row, or -1 twice: any rule takes this positive."""
    xp, rule = namespace_of(scores), mining[1]
    own, negatives = members.scores(scores), members.negatives(scores)
    candidates = negatives
    if rule == "semi_hard":
        candidates = xp.where(negatives < own[:, None], negatives, -math.inf)
    place = place_of_largest(candidates)
    some = entries_at(candidates, place)[:, 0] != -math.inf
    if rule != "hard":
        farthest = place_of_largest(xp.where(negatives == -math.inf, -math.inf, -negatives))
        place = farthest if rule == "easy" else xp.where(some[:, None], place, farthest)
        some = xp.logical_or(some, entries_at(negatives, farthest)[:, 0] != -math.inf)
    counted = xp.logical_and(own != -math.inf, some)
    columns = xp.astype(members.columns, place.dtype)
    return xp.where(counted, columns, -1), xp.where(counted, place[:, 0], -1)


def _one_of_each(
    xp: Namespace, scores: Array, positives: Array, negatives: Array, mining: tuple[str, str]
) -> tuple[Array, Array]:
    """Columns (n, 1) of a positive and a negative of each row."""
    of_positives, of_negatives = mining
    if of_positives == "semi_hard":
        # Negating scores swaps positives with negatives, and max with min.
        return _one_of_each(xp, -scores, negatives, positives, (of_negatives, of_positives))[::-1]
    positive = _extreme(xp, scores, positives, largest=of_positives == "easy")
    if of_negatives == "semi_hard":
        farther = xp.logical_and(negatives, scores < entries_at(scores, positive))
        nearest = _extreme(xp, scores, farther, largest=True)
        farthest = _extreme(xp, scores, negatives, largest=False)
        return positive, xp.where(xp.any(farther, axis=1, keepdims=True), nearest, farthest)
    return positive, _extreme(xp, scores, negatives, largest=of_negatives == "hard")


def _extreme(xp: Namespace, scores: Array, members: Array, *, largest: bool) -> Array:
    """Column of the largest or smallest score among the members of each row, of shape (n, 1)."""
    candidates = xp.where(members, scores if largest else -scores, -math.inf)
    return place_of_largest(candidates)


def mined_sums(
    scores: Array,
    positives: Array,
    negatives: Array,
    margin: Array,
    mining: tuple[str, str],
    *,
    soft: bool,
    single: bool,
) -> TripleSums:
    """Sums over the mined triples of each row, of rules with "all" on one side; `margin` (n,).

    `single`: at most one positive in a row.
    """
    xp, sign = namespace_of(scores, margin), 1.0
    of_positives, of_negatives = mining
    each, opposite, rule = positives, negatives, of_negatives
    if of_positives != "all":  # with scores negated, as if the negatives were positives
        each, opposite, rule, sign, single = negatives, positives, of_positives, -1.0, False
        scores = -scores
    some = xp.any(opposite, axis=1, keepdims=True)
    if rule == "semi_hard":
        of_each = partial(_with_farther, sign=sign, soft=soft)
        return visit(of_each, scores, each, opposite, some, margin, single=single)
    chosen = _extreme(xp, stop_gradient(scores), opposite, largest=rule == "hard")
    return _with_chosen(Visited(scores, each, None), scores, chosen, some, margin, sign=sign, soft=soft)


def _with_farther(
    visited: Visited, scores: Array, opposite: Array, some: Array, margin: Array, *, sign: float, soft: bool
) -> TripleSums:
    """Sums over the visited scores, each with the largest opposite one below it, else with the smallest."""
    chosen = _farther(stop_gradient(scores), opposite, stop_gradient(visited.scores))
    return _with_chosen(visited, scores, chosen, some, margin, sign=sign, soft=soft)


def _with_chosen(
    visited: Visited, scores: Array, chosen: Array, some: Array, margin: Array, *, sign: float, soft: bool
) -> TripleSums:
    """Sums over the visited scores, each with that of the chosen column (n, P) or (n, 1), if a row has `some`."""
    xp, adapter = namespace_of(scores, margin), adapter_of(scores)
    triples_of_row = xp.logical_and(visited.present, some)
    difference = entries_at(scores, chosen) - visited.scores
    difference += margin[:, None]
    difference = adapter.where_in_place(triples_of_row, difference, 0.0)
    losses, slopes = excess(xp, difference, soft=soft), sigmoid_or_step(xp, difference, soft=soft)
    if soft:  # the others are 0 where the difference is
        losses, slopes = (xp.where(triples_of_row, x, 0.0) for x in (losses, slopes))
    number, to_margin = adapter.count_along(triples_of_row, 1, losses.dtype), xp.sum(slopes, axis=1)
    # The positive part is nonzero where its slope is.
    active = xp.sum(xp.astype(stop_gradient(losses) != 0, losses.dtype), axis=1) if soft else to_margin
    to_chosen = to_margin[:, None] if chosen.shape[1] == 1 and slopes.shape[1] != 1 else slopes
    to_chosen = sign * to_chosen
    if visited.places is None:
        to_scores = adapter.add_columns(adapter.times_in_place(slopes, -sign), chosen, to_chosen)
    else:
        nothing = zeros(xp, tuple(scores.shape), slopes)
        to_scores = visited.put(adapter.add_columns(nothing, chosen, to_chosen), -sign * slopes)
    return TripleSums(xp.sum(losses, axis=1), number, active, to_scores, to_margin)


def _farther(scores: Array, members: Array, thresholds: Array) -> Array:
    """For each threshold (n, P), the column of the largest member below it, else of the smallest; constants."""
    xp = namespace_of(scores)
    smallest = _extreme(xp, scores, members, largest=False)
    if pays_to_rank(thresholds.shape[1]):
        return _next_ranked(xp, scores, members, thresholds, smallest)
    n_rows, n_columns = scores.shape
    rows, _ = triples(n_rows, n_columns, thresholds.shape[1], mode=adapter_of(scores).mode)

    def of_rows(carry: Arrays, block: Arrays, _: Array | int) -> tuple[Arrays, Arrays]:
        scores, members, thresholds, smallest = block
        farther = xp.logical_and(members[:, None, :], scores[:, None, :] < thresholds[:, :, None])
        candidates = xp.where(farther, scores[:, None, :], -math.inf)
        nearest = place_of_largest(xp.reshape(candidates, (-1, n_columns)))
        some = xp.any(farther, axis=2)
        return carry, (xp.where(some, xp.reshape(nearest, tuple(some.shape)), smallest),)

    _, (chosen,) = adapter_of(scores).scan(of_rows, (), (scores, members, thresholds, smallest), rows)
    return chosen


def _next_ranked(xp: Namespace, scores: Array, members: Array, thresholds: Array, smallest: Array) -> Array:
    """The next member behind each threshold, in the descending order of the scores of its row."""
    order = ranked(scores, members)
    place = number_before(order.scores, thresholds, lambda score, threshold: score >= threshold)
    count = xp.sum(xp.astype(members, place.dtype), axis=1, keepdims=True)
    found = place < count
    return xp.where(found, entries_at(order.columns, xp.where(found, place, xp.zeros_like(place))), smallest)
