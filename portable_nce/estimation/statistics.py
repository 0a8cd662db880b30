"""Means of bounds over folds and splits, with standard errors by the influence of each pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "SLOWEST",
    "Fold",
    "Summary",
    "averaged",
    "extrapolated",
    "holm",
    "influences",
    "limit_of_mean",
    "local_values",
    "margin_of_exceptions",
    "p_value",
    "quantile",
    "summary",
]

Z = 1.6449  # 95 % quantile of the normal distribution
SLOWEST = 1.0 + math.sqrt(2.0)
"""Remaining gap of a bound relative to the gain of the last doubling of N, if the gap falls as 1/√N."""


class Fold(NamedTuple):
    """Bound on the reporting pairs of one fold, and the influence of each pair on it.

    The bound is ``log n`` minus the mean of n losses. The influence of a pair (infinitesimal jackknife) is the sum of
    its effects as a row, by its loss, and as a column, by its softmax shares of all rows. A bootstrap would be wrong,
    since a pair drawn twice is its own negative. `fall`: by how much a pair that the sample does not have may be below
    the bound, the least value of any x of the report with any of its y. `ceiling`: largest possible bound. `values`:
    terms of the bound, of the pairs with the numbers `rows`.
    """

    bound: float
    influence: Sequence[float]
    clusters: Sequence[int]
    fall: float = 0.0
    ceiling: float = math.inf
    rows: Sequence[int] = ()
    values: Sequence[float] = ()


class Summary(NamedTuple):
    """Mean over folds, its standard error, and the degrees of freedom of the error."""

    value: float
    error: float
    freedom: float

    @property
    def margin(self) -> float:
        """One-sided 5 % margin below the value, if the mean is normal."""
        return quantile(self.freedom) * self.error


def quantile(freedom: float) -> float:
    """95 % quantile of Student's distribution (Cornish and Fisher 1938)."""
    n = max(freedom, 1.0)
    second = (5.0 * Z**5 + 16.0 * Z**3 + 3.0 * Z) / (96.0 * n * n)
    return Z + (Z**3 + Z) / (4.0 * n) + second


def p_value(value: float, error: float, freedom: float) -> float:
    """Probability of at least this value over its error if the mean is 0 (Wallace 1959)."""
    if error <= 0.0:
        return 1.0 if value <= 0.0 else 0.0
    n, t = max(freedom, 1.0), value / error
    size = (8.0 * n + 1.0) / (8.0 * n + 3.0) * math.sqrt(n * math.log1p(t * t / n))
    return 0.5 * math.erfc(math.copysign(size, t) / math.sqrt(2.0))


def holm(probabilities: Sequence[float]) -> list[float]:
    """Probabilities corrected for their number (Holm 1979)."""
    order = sorted(range(len(probabilities)), key=lambda k: probabilities[k])
    result, largest = [1.0] * len(order), 0.0
    for place, k in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * probabilities[k]))
        result[k] = largest
    return result


def summary(folds: Sequence[Fold]) -> Summary:
    """Mean of the bounds over folds, weighted by their pairs, with the error of independent clusters."""
    total = sum(len(fold.influence) for fold in folds)
    variance, squares = 0.0, 0
    for fold in folds:
        sums: dict[int, float] = {}
        sizes: dict[int, int] = {}
        for cluster, influence in zip(fold.clusters, fold.influence, strict=True):
            sums[cluster] = sums.get(cluster, 0.0) + influence
            sizes[cluster] = sizes.get(cluster, 0) + 1
        count = len(sums)
        variance += count / max(count - 1, 1) / total**2 * math.fsum(x * x for x in sums.values())
        squares += sum(size * size for size in sizes.values())
    value = math.fsum(fold.bound * len(fold.influence) for fold in folds) / total
    return Summary(value, math.sqrt(variance), total**2 / squares - len(folds))


def influences(splits: Sequence[Sequence[Fold]], count: int) -> list[float]:
    """Influence of each of `count` clusters on the mean bound of the splits."""
    result = [0.0] * count
    for folds in splits:
        total = sum(len(fold.influence) for fold in folds) * len(splits)
        for fold in folds:
            for cluster, influence in zip(fold.clusters, fold.influence, strict=True):
                result[cluster] += influence / total
    return result


def local_values(splits: Sequence[Sequence[Fold]], count: int) -> tuple[float, ...]:
    """Term of each of `count` pairs in the mean bound of the splits, each of which reports all pairs."""
    result = [0.0] * count
    for folds in splits:
        for fold in folds:
            for row, value in zip(fold.rows, fold.values, strict=True):
                result[row] += value / len(splits)
    return tuple(result)


def margin_of_exceptions(splits: Sequence[Sequence[Fold]], *, whole: bool) -> float:
    """One-sided 5 % margin below the mean of splits that allows for pairs that the sample does not have.

    `whole`: an exception is a whole cluster, as of equal rows, and not one pair of a cluster.
    """
    squares = []
    for folds in splits:
        sums: dict[tuple[int, int], float] = {}
        for number, fold in enumerate(folds):
            for cluster, influence in zip(fold.clusters, fold.influence, strict=True):
                sums[number, cluster] = sums.get((number, cluster), 0.0) - influence
        factor = len(sums) / sum(len(fold.influence) for fold in folds)
        falls = [factor * each for each in sums.values()]
        fall = max(fold.fall for fold in folds) * (1.0 if whole else factor)
        squares.append(limit_of_mean(falls, fall) ** 2)
    return math.sqrt(math.fsum(squares) / len(squares))


def limit_of_mean(deviations: Sequence[float], fall: float) -> float:
    """95 % quantile of the mean of deviations and one unseen `fall`, by weights from a uniform Dirichlet distribution.

    This is Gaffke's (2005) limit of the mean of a bounded variable: for k deviations 1 and others 0, it is the exact
    limit of a share of which k were seen; with k = 0, about 3 in the number of deviations. The quantile is that of a
    sum of exponential variables, by Lugannani and Rice (1980): for ``a`` above all numbers d, the saddlepoint
    ``s = mean(1 / (a - d))`` belongs to the quantile ``a - 1/s``.
    """
    numbers = [*deviations, fall]
    largest, smallest, count = max(numbers), min(numbers), len(numbers)
    scale = largest - smallest
    if scale <= 0.0:
        return max(largest, 0.0)
    low, high = -30.0, math.log(100.0 * count)
    t = largest
    for _ in range(22):
        middle = 0.5 * (low + high)
        a = largest + scale * math.exp(middle)
        s = math.fsum(1.0 / (a - d) for d in numbers) / count
        t = a - 1.0 / s
        logs = math.fsum(math.log(s * (a - d)) for d in numbers)
        curvature = math.fsum(((d - t) / (a - d)) ** 2 for d in numbers)
        root, other = math.sqrt(2.0 * max(logs, 0.0)), math.sqrt(curvature)
        if root < 1e-6:  # noqa: PLR2004  (the median)
            high = middle
            continue
        density = math.exp(-0.5 * root * root) / math.sqrt(2.0 * math.pi)
        tail = 0.5 * math.erfc(root / math.sqrt(2.0)) + density * (1.0 / other - 1.0 / root)
        low, high = (low, middle) if tail > 0.05 else (middle, high)  # noqa: PLR2004
    return max(t, 0.0)


def averaged(summaries: Sequence[Summary]) -> Summary:
    """Mean of estimates from several splits of the same pairs.

    The deviation of a mean is at most the root mean square of the deviations, whatever the correlations.
    """
    count = len(summaries)
    value = math.fsum(each.value for each in summaries) / count
    error = math.sqrt(math.fsum(each.error**2 for each in summaries) / count)
    return Summary(value, error, min(each.freedom for each in summaries))


def extrapolated(whole: Sequence[Fold], half: Sequence[Fold], rate: float) -> Summary:
    """Mean of the bounds plus `rate` times the gain, if positive, over those of half the pairs.

    Errors are added as if independent, though they are of the same pairs: this is conservative, to allow for the
    unknown rate. The spread of the gain over folds covers the randomness of training.
    """
    all_pairs, some = summary(whole), summary(half)
    gains = [a.bound - b.bound for a, b in zip(whole, half, strict=True)]
    mean = math.fsum(gains) / len(gains)
    spread = math.fsum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1) / len(gains)
    error = math.sqrt(((1.0 + rate) * all_pairs.error) ** 2 + (rate * some.error) ** 2 + rate**2 * spread)
    return Summary(all_pairs.value + rate * max(mean, 0.0), error, all_pairs.freedom)
