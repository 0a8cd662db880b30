"""Statistics of dependence in closed form, of pairs and of many reassignments of y at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from random import Random
from typing import NamedTuple

from .._core.namespace import namespace_of
from .._core.protocol import Array
from .features import indices

__all__ = ["STATISTICS", "Statistic", "combined", "evidence"]

WIDTH = 0.3
"""Deviation of the Gaussian kernels, of normal scores, for one column."""
LANDMARKS, RANK = 300, 40
"""Rows whose kernels span the features of all, and most features."""
MOST_PRODUCTS, LONGEST_PRODUCT = 500, 4
"""Most products of columns, and factors."""
WORK, FEWEST = 3e10, 100
"""Multiplications of the correlations of columns, beyond which fewer rows are used, and fewest rows."""
CHUNK = 2**21
"""Numbers held at a time."""
TIE = 1e-9
"""Relative rounding error of a statistic."""


class Statistic(NamedTuple):
    """Name and weight of a statistic of dependence."""

    name: str
    weight: float


STATISTICS = (
    Statistic("distance covariance", 3.0),
    Statistic("Gaussian kernels", 1.0),
    Statistic("largest correlation of columns, squares and products", 1.0),
)
"""What the test combines: the first finds weak smooth relations, the second local ones, the third single columns."""


def evidence(x: Array, y: Array, assignments: Sequence[Sequence[int]], random: Random) -> list[Array]:
    """Values (b,) of each statistic of normal scores x with rows of y, for each assignment of rows of y to rows of x.

    Each is a function of x, of y, and of the assignment: of pairs that are independent, all assignments are alike.
    """
    xp = namespace_of(x)
    places = xp.reshape(indices((row for assignment in assignments for row in assignment), x), (len(assignments), -1))
    covariances = [_covariance(kernel, x, y, places, random) for kernel in (_distances, _gaussians)]
    return [*covariances, _largest_correlation(x, y, places, random)]


def combined(statistics: Sequence[Statistic], values: Sequence[Array]) -> tuple[float, list[float]]:
    """Probability of the first assignment by all statistics together, and by each of them.

    The weighted sum of the inverse probabilities by each is a statistic, too, of which the first assignment has a rank.
    So the probability is exact, whatever the statistics have in common.
    """
    xp, count = namespace_of(values[0]), values[0].shape[0]
    total, each = xp.zeros_like(values[0]), []
    for statistic, found in zip(statistics, values, strict=True):
        below = xp.searchsorted(xp.sort(found), found - TIE * (1.0 + xp.abs(found)), side="left")
        shares = (count - xp.astype(below, found.dtype)) / count
        total = total + statistic.weight / shares
        each.append(float(shares[0]))
    own = float(total[0])
    return int(xp.sum(xp.astype(total >= own * (1.0 - TIE), xp.int64))) / count, each


# ------------------------------------------------------------------------------------------------------- whole matrices


def _squares(x: Array, y: Array) -> Array:
    """Squared distances (n, k) of rows."""
    xp = namespace_of(x)
    squares = xp.sum(x * x, axis=1)[:, None] + xp.sum(y * y, axis=1)[None, :] - 2.0 * (x @ y.T)
    return xp.maximum(squares, xp.zeros_like(squares[:1, :1]))


def _distances(x: Array, y: Array) -> Array:
    """Kernel of the distance covariance (Székely et al. 2007; Sejdinovic et al. 2013), relative to the origin."""
    xp = namespace_of(x)
    sizes = [xp.sqrt(xp.sum(z * z, axis=1)) for z in (x, y)]
    return sizes[0][:, None] + sizes[1][None, :] - xp.sqrt(_squares(x, y))


def _gaussians(x: Array, y: Array) -> Array:
    """Gaussian kernels."""
    return namespace_of(x).exp(_squares(x, y) * (-0.5 / (WIDTH**2 * x.shape[1])))


def _features(kernel: Callable[[Array, Array], Array], z: Array, random: Random) -> Array:
    """Centred features (n, r) whose inner products are about the kernel (Nyström 1930), from random rows."""
    xp, count = namespace_of(z), z.shape[0]
    some = xp.take(z, indices(random.sample(range(count), min(count, LANDMARKS)), z), axis=0)
    between = kernel(some, some)
    between = between - xp.mean(between, axis=0)[None, :] - xp.mean(between, axis=1)[:, None] + xp.mean(between)
    sizes, directions = xp.linalg.eigh(between)
    sizes, directions = sizes[-RANK:], directions[:, -RANK:]
    roots = xp.where(sizes > TIE * sizes[-1], xp.sqrt(xp.maximum(sizes, xp.zeros_like(sizes))), xp.zeros_like(sizes))
    found = kernel(z, some) @ (directions / xp.where(roots > 0, roots, xp.ones_like(roots)))
    return xp.where(roots > 0, found - xp.mean(found, axis=0), xp.zeros_like(found))


def _products(left: Array, right: Array, places: Array) -> Iterator[Array]:
    """Products (k, b, m) of features of rows with those of their partners, for some assignments at a time."""
    xp, (count, width) = namespace_of(left), left.shape[0:2]
    step = max(1, CHUNK // max(count * right.shape[1], width * right.shape[1]))
    for start in range(0, places.shape[0], step):
        some = places[start : min(start + step, places.shape[0]), :]
        taken = xp.take(right, xp.reshape(some.T, (-1,)), axis=0)
        found = left.T @ xp.reshape(taken, (count, -1))
        yield xp.reshape(found, (width, some.shape[0], right.shape[1]))


def _covariance(kernel: Callable[[Array, Array], Array], x: Array, y: Array, places: Array, random: Random) -> Array:
    """Covariance of a kernel of x with one of y (Gretton et al. 2005)."""
    xp = namespace_of(x)
    left, right = (_features(kernel, z, random) for z in (x, y))
    return xp.concat([xp.sum(found * found, axis=(0, 2)) for found in _products(left, right, places)])


# -------------------------------------------------------------------------------------------------------------- columns


def _standard(columns: Iterable[Array], like: Array) -> Array:
    """Columns (n, k) with mean 0 and mean square 1; constant columns are 0."""
    xp = namespace_of(like)
    z = xp.stack([*columns], axis=1)
    z = z - xp.mean(z, axis=0)
    deviations = xp.sqrt(xp.mean(z * z, axis=0))
    return xp.where(deviations > TIE, z / xp.where(deviations > TIE, deviations, xp.ones_like(deviations)), 0.0 * z)


def _single(z: Array, *, squares: bool) -> Array:
    """Columns and, optionally, their squares."""
    columns = [z[:, k] for k in range(z.shape[1])]
    return _standard([*columns, *([c * c for c in columns] if squares else [])], z)


def _interactions(z: Array) -> Array | None:
    """Products of up to four columns and their signs, for the numbers of factors that have few products."""
    xp, width = namespace_of(z), z.shape[1]
    found = []
    for m in range(2, LONGEST_PRODUCT + 1):
        if m <= width and math.comb(width, m) <= MOST_PRODUCTS:
            for columns in combinations(range(width), m):
                product = z[:, columns[0]]
                for k in columns[1:]:
                    product = product * z[:, k]
                found += [product, xp.sign(product)]
    return _standard(found, z) if found else None


def _largest_correlation(x: Array, y: Array, places: Array, random: Random) -> Array:
    """Largest correlation of a column or its square, or of a product of columns, with a column or its square."""
    xp = namespace_of(x)
    squares = 4.0 * x.shape[1] * y.shape[1] * x.shape[0] * places.shape[0] <= WORK
    left, right = _single(x, squares=squares), _single(y, squares=squares)
    couples = [(left, right)]
    for first, second in ((_interactions(x), right), (left, _interactions(y))):
        if first is not None and second is not None:
            couples.append((first, second))
    work = sum(float(a.shape[1] * b.shape[1]) for a, b in couples) * places.shape[0]
    rows = min(x.shape[0], max(FEWEST, int(WORK / work)))
    if rows < x.shape[0]:
        some = indices(random.sample(range(x.shape[0]), rows), x)
        couples = [(xp.take(a, some, axis=0), b) for a, b in couples]
        places = xp.take(places, some, axis=1)
    result = xp.zeros_like(x[:1, 0])
    for a, b in couples:
        found = xp.concat([xp.max(xp.abs(each), axis=(0, 2)) for each in _products(a, b, places)])
        result = xp.maximum(result, found)
    return result / rows
