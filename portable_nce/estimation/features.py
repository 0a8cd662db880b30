"""Coordinates of the arrays that critics see, fitted to the training pairs alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .._core.namespace import device_of, namespace_of
from .._core.protocol import Array, Namespace

__all__ = ["Canonical", "Inputs", "Pairs", "Scaler", "canonical", "fitted", "indices"]

LIMIT = 4.0
"""Largest standardised coordinate: one outlier must not set the scale of a network's input."""
SMALLEST = 1e-6
"""Smallest variance of a direction, as a share of the largest, that is divided by."""


class Inputs(NamedTuple):
    """What critics see of some values: canonical coordinates, and the features that networks take."""

    coordinates: Array
    features: Array

    def taken(self, numbers: Array) -> Inputs:
        """Some of the rows."""
        return Inputs(*(namespace_of(x).take(x, numbers, axis=0) for x in self))


class Pairs(NamedTuple):
    """Inputs of x and of y."""

    x: Inputs
    y: Inputs

    @property
    def number(self) -> int:
        """The number of pairs."""
        return int(self.x.coordinates.shape[0])

    def taken(self, numbers: Iterable[int]) -> Pairs:
        """Some of the pairs."""
        chosen = indices(numbers, self.x.coordinates)
        return Pairs(self.x.taken(chosen), self.y.taken(chosen))


def indices(numbers: Iterable[int], like: Array) -> Array:
    """Row numbers as an array beside another."""
    xp = namespace_of(like)
    return xp.asarray(list(numbers), dtype=xp.int32, device=device_of(like))


class Scaler(NamedTuple):
    """Location, scale and sorted columns of the training pairs."""

    transform: str
    mean: Array
    deviation: Array
    middle: Array
    columns: Array

    def __call__(self, x: Array) -> Inputs:
        """The coordinates in which linear critics start, and all inputs of the networks."""
        xp = namespace_of(x)
        standard = xp.clip((x - self.mean) / self.deviation, -LIMIT, LIMIT)
        if self.transform == "standardize":
            return Inputs(standard, standard)
        x = _ranked(xp, x, self.mean, self.middle)
        scores = xp.stack([_normal_scores(xp, self.columns[:, k], x[:, k]) for k in range(x.shape[1])], axis=1)
        return Inputs(scores, xp.concat([scores, standard], axis=1))


def fitted(x: Array, transform: str) -> Scaler:
    """The scaler of the training pairs."""
    xp = namespace_of(x)
    mean, deviation = xp.mean(x, axis=0), xp.std(x, axis=0)
    deviation = xp.where(deviation > 0, deviation, xp.ones_like(deviation))
    # The median of the distances is not moved by heavy tails, as the deviation is.
    middle = xp.sort(xp.abs(x - mean), axis=0)[x.shape[0] // 2, :]
    middle = xp.where(middle > 0, middle, deviation)
    return Scaler(transform, mean, deviation, middle, xp.sort(_ranked(xp, x, mean, middle), axis=0))


def _ranked(xp: Namespace, x: Array, mean: Array, middle: Array) -> Array:
    """The columns that are ranked: those of x and, of several, one that grows with the distance from the mean.

    A scale that all columns share, as of Student's distribution, shows in the distance.
    """
    if x.shape[1] == 1:
        return x
    return xp.concat([x, xp.log1p(xp.mean(((x - mean) / middle) ** 2, axis=1, keepdims=True))], axis=1)


def _normal_scores(xp: Namespace, column: Array, x: Array) -> Array:
    """The normal quantile of each value's place among the sorted training values, interpolated between neighbours.

    Mutual information does not change, and neither units nor tails matter. Tukey's lambda distribution serves for the
    normal one.
    """
    count = column.shape[0]
    column, x = column + 0.0, x + 0.0  # contiguous, as PyTorch asks
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
    """Canonical coordinates of two arrays, ``(x - mean) @ matrix``, and the squared correlations to start with.

    `noise`: the squared correlation that independent arrays of as many pairs and columns would show.
    """

    means: tuple[Array, Array]
    matrices: tuple[Array, Array]
    squares: Array
    noise: float

    def applied(self, pairs: Pairs) -> Pairs:
        """Some pairs in canonical coordinates."""
        each = zip(pairs, self.means, self.matrices, strict=True)
        return Pairs(*(z._replace(coordinates=(z.coordinates - mean) @ matrix) for z, mean, matrix in each))

    def shrunk(self, multiple: float) -> Canonical:
        """The squared correlations without a multiple of the noise."""
        xp, noise = namespace_of(self.squares), multiple * self.noise
        if noise >= 1.0:
            return self._replace(squares=xp.zeros_like(self.squares))
        return self._replace(squares=xp.clip((self.squares - noise) / (1.0 - noise), 0.0, 1.0 - SMALLEST))


def canonical(x: Array, y: Array, ridges: Sequence[float]) -> list[Canonical]:
    """Canonical correlations (Hotelling 1936), with multiples of the mean variance added to each (Vinod 1976)."""
    xp, count = namespace_of(x), x.shape[0]
    means = xp.mean(x, axis=0), xp.mean(y, axis=0)
    x, y = x - means[0], y - means[1]
    spectra = [xp.linalg.eigh(z.T @ z / count) for z in (x, y)]
    between, noise = x.T @ y / count, (x.shape[1] + y.shape[1]) / count
    found = []
    for ridge in ridges:
        first, second = (_whitening(xp, spectrum, ridge) for spectrum in spectra)
        left, correlations, right = xp.linalg.svd(first.T @ between @ second, full_matrices=False)
        squares = xp.clip(correlations, 0.0, 1.0) ** 2
        found.append(Canonical(means, (first @ left, second @ right.T), squares, noise))
    return found


def _whitening(xp: Namespace, spectrum: tuple[Array, Array], ridge: float) -> Array:
    """The directions of a spectrum, divided by their deviations."""
    variances, directions = spectrum
    floor = xp.maximum(SMALLEST * variances[-1:], xp.full_like(variances[-1:], 1e-30))
    return directions / xp.sqrt(xp.maximum(variances, floor) + ridge * xp.mean(variances))
