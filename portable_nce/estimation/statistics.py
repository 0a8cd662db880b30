"""Means of bounds over folds, with standard errors by the influence of each pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Fold", "Summary", "quantile", "summary"]

Z = 1.6449  # of the normal distribution at 95 %


class Fold(NamedTuple):
    """A bound on the reporting pairs of one fold, and the influence of each pair on it.

    The bound is ``log n`` minus the mean of n losses. A pair counts as a row, by its loss, and as a column, by the
    shares that it has of all rows: its influence is the sum of both, as of the infinitesimal jackknife. A bootstrap
    would be wrong: a pair that is drawn twice is its own negative.
    """

    bound: float
    influence: Sequence[float]
    clusters: Sequence[int]


class Summary(NamedTuple):
    """A mean over folds, its standard error, and how many independent clusters of pairs there are."""

    value: float
    error: float
    clusters: int

    @property
    def margin(self) -> float:
        """How far below the value its expectation may be, with a probability of 5 %."""
        return quantile(self.clusters - 1) * self.error


def quantile(freedom: float) -> float:
    """The quantile of Student's distribution at 95 % (Cornish and Fisher 1938)."""
    return Z + (Z**3 + Z) / (4.0 * max(freedom, 1.0))


def summary(folds: Sequence[Fold], *, subtracted: Sequence[Fold] = (), share: float = 0.0) -> Summary:
    """The mean of the bounds, or of ``(1 + share)`` times these minus `share` times others of the same pairs."""
    others = subtracted or folds
    values = [(1.0 + share) * a.bound - share * b.bound for a, b in zip(folds, others, strict=True)]
    variance, number = 0.0, 0
    for a, b in zip(folds, others, strict=True):
        sums: dict[int, float] = {}
        for cluster, p, q in zip(a.clusters, a.influence, b.influence, strict=True):
            sums[cluster] = sums.get(cluster, 0.0) + (1.0 + share) * p - share * q
        count, number = len(sums), number + len(sums)
        scale = count / max(count - 1, 1) / (len(a.influence) * len(folds)) ** 2
        variance += scale * math.fsum(x * x for x in sums.values())
    if share:  # a critic that is trained again is another one
        steps = [a.bound - b.bound for a, b in zip(folds, others, strict=True)]
        mean = math.fsum(steps) / len(steps)
        variance += share**2 * math.fsum((x - mean) ** 2 for x in steps) / max(len(steps) - 1, 1) / len(steps)
    return Summary(math.fsum(values) / len(values), math.sqrt(variance), number)
