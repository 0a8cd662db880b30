"""Shifted sums of exponentials over sets that may be empty."""

from __future__ import annotations

import math
from typing import NamedTuple

from .autodiff import stop_gradient
from .checks import is_empty
from .namespace import namespace_of
from .protocol import Array, Namespace
from .registry import adapter_of


class ExpSum(NamedTuple):
    """``Σ exp(g)`` over a set of scores for each row, as ``exp(top) * total``.

    `top`: largest score, a constant, or None for a shift of 0. `total`: sum of ``exp(g - top)``, with gradient. If the
    set is empty or its largest score infinite, `total` is 0 and `top` is -inf or +inf.
    """

    top: Array | None
    total: Array

    def is_filled(self) -> Array:
        """Boolean array of the rows whose set is not empty; without a shift, no exponential is 0."""
        return self.total != 0 if self.top is None else self.top != -math.inf

    def log_total(self, xp: Namespace) -> Array:
        """Logarithm of `total`, 0 where it is 0."""
        return xp.log(xp.where(self.total == 0, xp.ones_like(self.total), self.total))  # NaN stays NaN

    def log(self, xp: Namespace) -> Array:
        """Logarithm of a sum with a shift, -inf or inf if its largest term is."""
        top: Array = self.top
        return top + self.log_total(xp)


def largest_along(scores: Array, axis: int) -> Array:
    """Largest scores along an axis, a constant; -inf if it has none, as in a tile of a rank without rows."""
    xp, scores = namespace_of(scores), stop_gradient(scores)
    return xp.sum(scores, axis=axis) - math.inf if is_empty(scores) else xp.max(scores, axis=axis)


def exponentials(xp: Namespace, scores: Array, members: Array) -> tuple[ExpSum, Array]:
    """Exponential sum of each row over its members, and the terms.

    These are ``exp(g - top)`` at the members, 0 elsewhere and in rows whose `top` is infinite. Other entries are
    replaced before and after the exponential, so that their derivatives are 0 even for NaN.
    """
    top = stop_gradient(xp.max(xp.where(members, scores, -math.inf), axis=1))
    infinite = xp.isinf(top)
    shift = xp.where(infinite, xp.zeros_like(top), top)[:, None]
    live = xp.logical_and(members, xp.logical_not(infinite)[:, None])
    terms = adapter_of(scores).exp_in_place(xp.where(live, scores - shift, 0.0), bounded=False)
    terms = xp.where(live, terms, 0.0)
    return ExpSum(top, xp.sum(terms, axis=1)), terms


def of_one(xp: Namespace, score: Array, present: Array) -> ExpSum:
    """Exponential sum of one score per row; of an empty set where it is not present."""
    top = xp.where(present, stop_gradient(score), xp.full_like(score, -math.inf))
    infinite = xp.isinf(top)
    zero = xp.zeros_like(score)
    difference = xp.where(infinite, zero, score) - xp.where(infinite, zero, top)
    return ExpSum(top, xp.where(infinite, zero, xp.exp(difference)))


def merge(xp: Namespace, parts: list[ExpSum]) -> tuple[ExpSum, list[Array | None]]:
    """Sum of several exponential sums, and the factors that rescale the terms of each to the common shift (None: 1).

    Either all parts have a shift, or none.
    """
    if len(parts) == 1:
        return parts[0], [None]
    tops = [part.top for part in parts if part.top is not None]
    total = parts[0].total
    if not tops:
        for part in parts[1:]:
            total = total + part.total
        return ExpSum(None, total), [None] * len(parts)
    top = tops[0]
    for other in tops[1:]:
        top = xp.maximum(top, other)
    rescale = factors(xp, tops, top)
    total = total * rescale[0]
    for part, factor in zip(parts[1:], rescale[1:], strict=True):
        total = total + part.total * factor
    return ExpSum(top, total), list(rescale)


def factors(xp: Namespace, tops: list[Array], top: Array) -> list[Array]:
    """Factors ``exp(t - top)`` that rescale exponentials from the shifts `tops` to `top`, the largest."""
    infinite = xp.isinf(top)
    shift = xp.where(infinite, xp.zeros_like(top), top)
    return [xp.exp(xp.where(infinite, -math.inf, t) - shift) for t in tops]
