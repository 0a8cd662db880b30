"""Coordinates of the arrays that critics see, fitted to the training pairs alone."""

from __future__ import annotations

from typing import NamedTuple

from .._core.namespace import namespace_of
from .._core.protocol import Array, Namespace

__all__ = ["Canonical", "Scaler", "canonical", "fitted"]

LIMIT = 4.0
"""Largest standardised coordinate: one outlier must not set the scale of a network's input."""
SMALLEST = 1e-6
"""Smallest variance of a direction, as a share of the largest, that is divided by."""


class Scaler(NamedTuple):
    """Location, scale and sorted columns of the training pairs."""

    transform: str
    mean: Array
    deviation: Array
    middle: Array
    columns: Array

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """The coordinates in which linear critics start, and all inputs of the networks."""
        xp = namespace_of(x)
        standard = xp.clip((x - self.mean) / self.deviation, -LIMIT, LIMIT)
        if self.transform == "standardize":
            return standard, standard
        if x.shape[1] > 1:
            x = xp.concat([x, _radius(xp, x, self.mean, self.middle)], axis=1)
        scores = xp.stack([_normal_scores(xp, self.columns[:, k], x[:, k]) for k in range(x.shape[1])], axis=1)
        return scores, xp.concat([scores, standard], axis=1)


def fitted(x: Array, transform: str) -> Scaler:
    """The scaler of the training pairs."""
    xp = namespace_of(x)
    mean, deviation = xp.mean(x, axis=0), xp.std(x, axis=0)
    deviation = xp.where(deviation > 0, deviation, xp.ones_like(deviation))
    # The median of the distances is not moved by heavy tails, as the deviation is.
    middle = xp.sort(xp.abs(x - mean), axis=0)[x.shape[0] // 2, :]
    middle = xp.where(middle > 0, middle, deviation)
    columns = x
    if transform == "ranks" and x.shape[1] > 1:
        columns = xp.concat([x, _radius(xp, x, mean, middle)], axis=1)
    return Scaler(transform, mean, deviation, middle, xp.sort(columns, axis=0))


def _radius(xp: Namespace, x: Array, mean: Array, middle: Array) -> Array:
    """A number that grows with the distance from the mean: common scales, as of Student's distribution, show in it."""
    return xp.log1p(xp.mean(((x - mean) / middle) ** 2, axis=1, keepdims=True))


def _normal_scores(xp: Namespace, column: Array, x: Array) -> Array:
    """The normal quantile of each value's place among the sorted training values, interpolated between neighbours.

    Mutual information does not change, and neither units nor tails matter. Tukey's lambda distribution serves for the
    normal one.
    """
    count = column.shape[0]
    low = xp.astype(xp.searchsorted(column, x, side="left"), x.dtype)
    high = xp.astype(xp.searchsorted(column, x, side="right"), x.dtype)
    below = xp.take(column, xp.astype(xp.clip(low - 1, 0, count - 1), xp.int32))
    above = xp.take(column, xp.astype(xp.clip(low, 0, count - 1), xp.int32))
    step = above - below
    share = xp.where(step > 0, (x - below) / xp.where(step > 0, step, xp.ones_like(step)), xp.zeros_like(step))
    between = xp.logical_and(low == high, xp.logical_and(low > 0, low < count))
    place = xp.where(between, low - 0.5 + share, 0.5 * (low + high))
    p = xp.clip(place / count, 0.5 / count, 1.0 - 0.5 / count)
    return 4.91 * (p**0.14 - (1.0 - p) ** 0.14)


class Canonical(NamedTuple):
    """Canonical coordinates of two arrays, ``(x - mean) @ matrix``, and their squared correlations.

    `noise`: the squared correlation that independent arrays of as many pairs and columns would show.
    """

    means: tuple[Array, Array]
    matrices: tuple[Array, Array]
    squares: Array
    noise: float

    def applied(self, x: Array, y: Array) -> tuple[Array, Array]:
        """The canonical coordinates of some rows."""
        return (x - self.means[0]) @ self.matrices[0], (y - self.means[1]) @ self.matrices[1]

    def shrunk(self, multiple: float) -> Array:
        """The squared correlations without a multiple of the noise."""
        xp = namespace_of(self.squares)
        noise = multiple * self.noise
        if noise >= 1.0:
            return xp.zeros_like(self.squares)
        return xp.clip((self.squares - noise) / (1.0 - noise), 0.0, 1.0 - SMALLEST)


def canonical(x: Array, y: Array, ridge: float) -> Canonical:
    """Canonical correlations (Hotelling 1936), with a multiple of the mean variance added to each (Vinod 1976)."""
    xp, count = namespace_of(x), x.shape[0]
    means = xp.mean(x, axis=0), xp.mean(y, axis=0)
    x, y = x - means[0], y - means[1]
    whitening = []
    for z in (x, y):
        variances, directions = xp.linalg.eigh(z.T @ z / count)
        floor = xp.maximum(SMALLEST * variances[-1:], xp.full_like(variances[-1:], 1e-30))
        variances = xp.maximum(variances, floor) + ridge * xp.mean(variances)
        whitening.append(directions / xp.sqrt(variances))
    left, correlations, right = xp.linalg.svd(whitening[0].T @ (x.T @ y / count) @ whitening[1], full_matrices=False)
    matrices = whitening[0] @ left, whitening[1] @ right.T
    return Canonical(means, matrices, xp.clip(correlations, 0.0, 1.0) ** 2, (x.shape[1] + y.shape[1]) / count)
