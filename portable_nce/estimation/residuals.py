"""A test of independence given numbers: products of what is left of x and of y after regressions on z."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from .._core.namespace import device_of, namespace_of
from .._core.protocol import Array
from .evidence import Statistic
from .features import indices, own_normal_scores
from .folds import Clusters

__all__ = ["RESIDUALS", "RIDGES", "Regression", "Residuals", "residual_evidence", "residuals_of"]

FOLDS = 20
"""Parts of the rows; residuals of each are those of a regression on the others."""
LANDMARKS = 300
"""Most rows of z whose kernels a regression takes."""
WIDTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Deviations of these kernels, of normal scores, for one column."""
RIDGES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Candidate penalties."""
NEARLY = 1.03
"""Error, relative to the least, of a regression that may be taken."""
STEEP = 10.0
"""Factor of the columns of z among the features, so that a linear function is hardly penalised; twice of the mean."""
LIMIT = 4.0
"""Deviations at which values are cut off."""
MOST_PRODUCTS = 2000
"""Most products of columns with squares and weights."""
BETTER = 0.99
"""Relative error of a regression of values, relative to that of normal scores, below which values are taken."""
SMALLEST = 1e-12
"""Smallest deviation of residuals that are not rounding errors, and smallest share of a kernel's features."""
ROUNDING = 2.0**-46
"""Smallest deviation of a column that is not constant, relative to its largest value."""
RESIDUALS = (
    Statistic("covariance of residuals", 3.0),
    Statistic("covariance of squared residuals, and of residuals weighted by the third variable", 1.0),
)
"""What the test combines: the first is a partial correlation, the second is for other relations."""


class Residuals(NamedTuple):
    """Standardised residuals of functions of x and of y, and the regressions on z."""

    x: Array
    y: Array
    regression: Regression


def residuals_of(x: Array, y: Array, z: Array, clusters: Clusters, random: Random) -> Residuals:
    """What is left of x and of y after regressions on z, each cluster by a regression without it."""
    regression = Regression.of(z, clusters, random)
    return Residuals(regression.residuals(x), regression.residuals(y), regression)


def residual_evidence(left: Residuals, clusters: Clusters, draws: int, random: Random) -> list[Array]:
    """Values (1 + draws,) of both statistics: of the rows, then of their sums multiplied by normal numbers.

    If x and y are independent given z, the residual of a function of x times that of a function of y, also times a
    function of z, has mean 0. Errors of the two regressions are multiplied, too, so they matter little (Shah and Peters
    2020). A statistic is the largest standardised sum of such products. Normal multipliers of the sums over clusters
    give its distribution (Chernozhukov, Chetverikov and Kato 2013).
    """
    xp, z = namespace_of(left.x), left.regression.scores
    signs = [[1.0] * len(clusters.rows), *([random.gauss(0.0, 1.0) for _ in clusters.rows] for _ in range(draws))]
    multipliers = xp.asarray(signs, dtype=left.x.dtype, device=device_of(left.x))
    first = _products(left.x, left.y)
    values = [_largest(clusters.sums(first), multipliers)]
    if first.shape[1] * (3 + z.shape[1]) > MOST_PRODUCTS:
        return [values[0], xp.ones_like(values[0])]
    squares = [left.regression.residuals(residuals * residuals, cut=False) for residuals in (left.x, left.y)]
    others = [_products(left.x, squares[1]), _products(squares[0], left.y), _products(*squares)]
    others += [first * z[:, k : k + 1] for k in range(z.shape[1])]
    return [*values, _largest(clusters.sums(xp.concat(others, axis=1)), multipliers)]


def _products(left: Array, right: Array) -> Array:
    """Products (n, j k) of each column with each column."""
    return namespace_of(left).reshape(left[:, :, None] * right[:, None, :], (left.shape[0], -1))


def _largest(sums: Array, multipliers: Array) -> Array:
    """Largest absolute sum (b,) of the centred columns times each row of multipliers; the first row is of ones."""
    xp = namespace_of(sums)
    centred = sums - xp.mean(sums, axis=0)
    sizes = xp.sqrt(xp.sum(centred * centred, axis=0))
    scale = xp.where(sizes > 0, sizes, xp.ones_like(sizes))
    own = xp.max(xp.abs(xp.sum(sums, axis=0) / scale) * xp.astype(sizes > 0, sums.dtype))
    others = xp.max(xp.abs(multipliers[1:, :] @ (centred / scale)), axis=1)
    return xp.concat([xp.reshape(own, (1,)), others])


def _standard_columns(x: Array) -> Array:
    """Columns with mean 0 and deviation 1, cut off; constant columns are 0."""
    xp = namespace_of(x)
    return _standardised(x, ROUNDING * xp.max(xp.abs(x), axis=0))


def _standardised(x: Array, smallest: Array | float) -> Array:
    """Columns with mean 0 and deviation 1, cut off; those with deviations up to the smallest are 0."""
    xp = namespace_of(x)
    x = x - xp.mean(x, axis=0)
    deviations = xp.sqrt(xp.mean(x * x, axis=0))
    known = deviations > smallest
    x = xp.where(known, x / xp.where(known, deviations, xp.ones_like(deviations)), xp.zeros_like(x))
    return xp.minimum(xp.maximum(x, xp.full_like(x[:1, :1], -LIMIT)), xp.full_like(x[:1, :1], LIMIT))


class Regression(NamedTuple):
    """Ridge regressions on z by kernels of several widths, and normal scores of z.

    `parts`: rows whose residuals are taken, and rows that the regression for them leaves out.
    """

    scores: Array
    parts: list[tuple[list[int], list[int]]]
    features: list[Array]

    @classmethod
    def of(cls, z: Array, clusters: Clusters, random: Random) -> Regression:
        """Features of all rows, by values and by normal scores of z: either may be smoother."""
        xp, count = namespace_of(z), z.shape[0]
        values, scores = _standard_columns(z), own_normal_scores(z)
        chosen = indices(random.sample(range(count), min(count, LANDMARKS)), z)
        steep = xp.concat([STEEP * xp.ones_like(z[:, :1]), values, scores], axis=1) * STEEP
        features = [
            xp.concat([steep, _spanned(places, xp.take(places, chosen, axis=0), width)], axis=1)
            for places in (values, scores)
            for width in WIDTHS
        ]
        parts = []
        for fold in clusters.folds(min(FOLDS, clusters.possible_folds()[-1]), random):
            kept = {*fold.rest}
            left_out = [c for c in range(len(clusters.rows)) if c not in kept]
            parts.append((clusters.members(fold.report), clusters.members(left_out)))
        return cls(scores, parts, features)

    def residuals(self, x: Array, *, cut: bool = True) -> Array:
        """Standardised residuals of columns, of values or of normal scores, whichever z explains better."""
        xp, width = namespace_of(x), x.shape[1]
        if not cut:
            return _standardised(self._left(_standard_columns(x))[0], SMALLEST)
        found, errors = self._left(xp.concat([_standard_columns(x), own_normal_scores(x)], axis=1))
        values, scores = found[:, :width], found[:, width:]
        return _standardised(xp.where(errors[:width] < BETTER * errors[width:], values, scores), SMALLEST)

    def _left(self, targets: Array) -> tuple[Array, Array]:
        """Residuals of each column and their mean squares, by the most flexible regression of nearly the least error.

        A stiffer one has the same error by bias, which x and y may have in common.
        """
        xp = namespace_of(targets)
        tried = [each for features in self.features for each in self.penalised(features, targets)]
        errors = xp.stack([xp.mean(residuals * residuals, axis=0) for _, residuals in tried], axis=0)
        limit = xp.min(errors, axis=0) * NEARLY
        kept, found = targets, xp.min(errors, axis=0)
        order = sorted(range(len(tried)), key=lambda k: tried[k][0])
        for k in order:  # from the stiffest on
            good = errors[k, :] <= limit
            kept, found = xp.where(good, tried[k][1], kept), xp.where(good, errors[k, :], found)
        return kept, found

    def penalised(self, features: Array, targets: Array) -> Iterator[tuple[float, Array]]:
        """Degrees of freedom, and residuals of regressions without each part, for each penalty.

        Without some rows, residuals of them are those of the regression on all rows, divided by one minus its matrix.
        """
        xp, count = namespace_of(targets), targets.shape[0]
        sizes, directions = xp.linalg.eigh(features.T @ features / count)
        sizes = xp.maximum(sizes, xp.zeros_like(sizes))
        turned = features @ directions
        weights = turned.T @ targets / count
        places = indices(_inverse([row for part, _ in self.parts for row in part]), targets)
        for ridge in RIDGES:
            left = targets - (turned / (sizes + ridge)) @ weights
            pieces = []
            for part, gone in self.parts:
                chosen = indices(gone, targets)
                some = xp.take(turned, chosen, axis=0)
                own = (some / (sizes + ridge)) @ some.T / count
                one = xp.eye(len(gone), dtype=own.dtype, device=device_of(own))
                found = xp.linalg.solve(one - own, xp.take(left, chosen, axis=0))
                place = {row: k for k, row in enumerate(gone)}
                pieces.append(xp.take(found, indices((place[row] for row in part), targets), axis=0))
            yield float(xp.sum(sizes / (sizes + ridge))), xp.take(xp.concat(pieces, axis=0), places, axis=0)


def _inverse(order: Sequence[int]) -> list[int]:
    """Place of each number in a permutation."""
    return sorted(range(len(order)), key=order.__getitem__)


def _spanned(z: Array, some: Array, width: float) -> Array:
    """Features (n, r) whose inner products are about Gaussian kernels, spanned by those at some rows."""
    xp = namespace_of(z)

    def kernel(a: Array, b: Array) -> Array:
        squares = xp.sum(a * a, axis=1)[:, None] + xp.sum(b * b, axis=1)[None, :] - 2.0 * (a @ b.T)
        return xp.exp(squares * (-0.5 / (width**2 * z.shape[1])))

    sizes, directions = xp.linalg.eigh(kernel(some, some))
    roots = xp.sqrt(xp.maximum(sizes, SMALLEST * sizes[-1:] + 0.0 * sizes))
    kept = sizes > SMALLEST * sizes[-1]
    return xp.where(kept, kernel(z, some) @ (directions / roots), xp.zeros_like(z[:, :1]))
