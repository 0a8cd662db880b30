"""Statistics of dependence in closed form, of pairs and of many reassignments of y at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from random import Random
from typing import NamedTuple, TypeAlias

from .._core.namespace import device_of, namespace_of
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


Couple: TypeAlias = tuple[Array, Array]
"""Standardised columns (n, j) of x and (n, k) of y."""


class Statistic(NamedTuple):
    """Name and weight of a statistic of dependence."""

    name: str
    weight: float


STATISTICS = (
    Statistic("distance covariance", 3.0),
    Statistic("largest correlation of columns", 3.0),
    Statistic("Gaussian kernels", 2.0),
    Statistic("largest correlation of squares and products of columns", 2.0),
)
"""What the test combines: weak smooth relations, single columns among many, local relations, scales and interactions.

Apart from the others, correlations of columns alone are not compared with the many of squares and products."""


def evidence(x: Array, y: Array, assignments: Sequence[Sequence[int]], random: Random) -> list[Array]:
    """Values (b,) of each statistic of normal scores x with rows of y, for each assignment of rows of y to rows of x.

    Each is a function of x, of y, and of the assignment: of pairs that are independent, all assignments are alike.
    """
    xp = namespace_of(x)
    places = xp.reshape(indices((row for assignment in assignments for row in assignment), x), (len(assignments), -1))
    distances, gaussians = (_covariance(kernel, x, y, places, random) for kernel in (_distances, _gaussians))
    columns, others = (_largest_correlation(couples, places, random) for couples in _couples(x, y, len(assignments)))
    return [distances, columns, gaussians, others]


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


def _interactions(z: Array) -> list[Array]:
    """Products of up to four columns and their signs, for the numbers of factors that have few products; or none."""
    xp, width = namespace_of(z), z.shape[1]
    found = []
    for m in range(2, LONGEST_PRODUCT + 1):
        if m <= width and math.comb(width, m) <= MOST_PRODUCTS:
            for columns in combinations(range(width), m):
                product = z[:, columns[0]]
                for k in columns[1:]:
                    product = product * z[:, k]
                found += [product, xp.sign(product)]
    return [_standard(found, z)] if found else []


def _couples(x: Array, y: Array, assignments: int) -> tuple[list[Couple], list[Couple]]:
    """Columns of x and of y; and the other couples of their columns, squares and products, if these are few."""
    left, right = (_standard((z[:, k] for k in range(z.shape[1])), z) for z in (x, y))
    others: list[Couple] = []
    of_x, of_y = [left], [right]
    if 4.0 * x.shape[1] * y.shape[1] * x.shape[0] * assignments <= WORK:
        squares = [_standard((z[:, k] ** 2 for k in range(z.shape[1])), z) for z in (x, y)]
        of_x.append(squares[0])
        of_y.append(squares[1])
        others += [(squares[0], right), (left, squares[1]), (squares[0], squares[1])]
    others += [(products, each) for products in _interactions(x) for each in of_y]
    others += [(each, products) for products in _interactions(y) for each in of_x]
    return [(left, right)], others


def _largest_correlation(couples: Sequence[Couple], places: Array, random: Random) -> Array:
    """Largest absolute correlation of a column of x with one of y, for each assignment; 0 if there are no couples."""
    xp = namespace_of(places)
    if not couples:
        return xp.zeros(places.shape[0], dtype=xp.float64, device=device_of(places))
    count = int(places.shape[1])
    work = sum(float(a.shape[1] * b.shape[1]) for a, b in couples) * places.shape[0]
    rows = min(count, max(FEWEST, int(WORK / work)))
    if rows < count:
        some = indices(random.sample(range(count), rows), places)
        couples = [(xp.take(a, some, axis=0), b) for a, b in couples]
        places = xp.take(places, some, axis=1)
    largest = []
    for a, b in couples:
        found = [xp.max(xp.abs(each), axis=(0, 2)) for each in _products(a, b, places)]
        largest.append(xp.concat(found))
    return xp.max(xp.stack(largest, axis=0), axis=0) / rows
