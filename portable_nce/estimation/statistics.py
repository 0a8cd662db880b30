"""Means of bounds over folds, with standard errors by the influence of each pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Fold", "Summary", "extrapolated", "quantile", "summary"]

Z = 1.6449  # 95 % quantile of the normal distribution


class Fold(NamedTuple):
    """Bound on the reporting pairs of one fold, and the influence of each pair on it.

    The bound is ``log n`` minus the mean of n losses. The influence of a pair (infinitesimal jackknife) is the sum of
    its effects as a row, by its loss, and as a column, by its softmax shares of all rows. A bootstrap would be wrong,
    since a pair drawn twice is its own negative.
    """

    bound: float
    influence: Sequence[float]
    clusters: Sequence[int]


class Summary(NamedTuple):
    """Mean over folds, its standard error, and the number of independent clusters."""

    value: float
    error: float
    clusters: int

    @property
    def margin(self) -> float:
        """One-sided 5 % margin below the value."""
        return quantile(self.clusters - 1) * self.error


def quantile(freedom: float) -> float:
    """95 % quantile of Student's distribution (Cornish and Fisher 1938)."""
    return Z + (Z**3 + Z) / (4.0 * max(freedom, 1.0))


def summary(folds: Sequence[Fold]) -> Summary:
    """Mean of the bounds, with the error of independent folds."""
    variance, number = 0.0, 0
    for fold in folds:
        sums: dict[int, float] = {}
        for cluster, influence in zip(fold.clusters, fold.influence, strict=True):
            sums[cluster] = sums.get(cluster, 0.0) + influence
        count, number = len(sums), number + len(sums)
        scale = count / max(count - 1, 1) / (len(fold.influence) * len(folds)) ** 2
        variance += scale * math.fsum(x * x for x in sums.values())
    return Summary(math.fsum(fold.bound for fold in folds) / len(folds), math.sqrt(variance), number)


def extrapolated(whole: Sequence[Fold], single: Sequence[Fold], half: Sequence[Fold], rate: float) -> Summary:
    """Mean of the bounds plus `rate` times the gain, if positive, of single critics over those of half the pairs.

    Errors are added as if independent, though they are of the same pairs: this is conservative, to allow for the
    unknown rate. The spread of the gain over folds covers the randomness of training.
    """
    all_pairs, some = summary(whole), summary(half)
    gains = [a.bound - b.bound for a, b in zip(single, half, strict=True)]
    mean = math.fsum(gains) / len(gains)
    spread = math.fsum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1) / len(gains)
    error = math.sqrt(((1.0 + rate) * all_pairs.error) ** 2 + (rate * some.error) ** 2 + rate**2 * spread)
    return Summary(all_pairs.value + rate * max(mean, 0.0), error, all_pairs.clusters)
