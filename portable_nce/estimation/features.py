"""Inputs of critics, fitted to the training pairs alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from .._core.namespace import device_of, namespace_of
from .._core.protocol import Array, Namespace

__all__ = [
    "Canonical",
    "CriticInputs",
    "Pairs",
    "Product",
    "Scaler",
    "canonical",
    "canonical_of_pairs",
    "fitted",
    "indices",
    "normal_scores",
    "own_normal_scores",
    "products",
    "same_category",
    "telling_products",
]

LIMIT = 4.0
"""Largest standardised coordinate, so that an outlier does not set the scale of a network's input."""
SMALLEST = 1e-6
"""Smallest variance used as a divisor, relative to the largest."""
PAIR_COUNTS, COLUMNS_OF_PAIR = (1, 2, 4, 8, 16), 8
"""Candidate numbers of pairs of columns, and fewest columns of the wider array for each pair."""

MOST_PRODUCTS, MOST_CANDIDATES, LONGEST_PRODUCT = 6, 2000, 4
"""Products of columns kept, candidates, and factors."""


class CriticInputs(NamedTuple):
    """Inputs of critics: canonical coordinates, features for networks, and the columns' own scores for kernels.

    `categories`: codes of the categories within which pairs are compared, if a third variable has categories.
    """

    coordinates: Array
    features: Array
    scores: Array
    categories: Array | None = None

    def mapped(self, function: Callable[..., Array], *others: CriticInputs) -> CriticInputs:
        """Inputs with a function of each array, and of the same arrays of other inputs."""
        columns = zip(self, *others, strict=True)
        return CriticInputs(*(None if arrays[0] is None else function(*arrays) for arrays in columns))

    def select(self, numbers: Array) -> CriticInputs:
        """Selected rows."""
        return self.mapped(lambda x: namespace_of(x).take(x, numbers, axis=0))


class Pairs(NamedTuple):
    """Inputs of x and of y."""

    x: CriticInputs
    y: CriticInputs

    @property
    def number(self) -> int:
        """Number of pairs."""
        return int(self.x.coordinates.shape[0])

    def select(self, numbers: Iterable[int]) -> Pairs:
        """Selected pairs."""
        return self.taken(indices(numbers, self.x.coordinates))

    def taken(self, numbers: Array) -> Pairs:
        """Pairs of an array of numbers."""
        return Pairs(self.x.select(numbers), self.y.select(numbers))

    def joined(self, other: Pairs) -> Pairs:
        """These pairs, then the others."""
        xp = namespace_of(self.x.coordinates)
        both = zip(self, other, strict=True)
        return Pairs(*(a.mapped(lambda *two: xp.concat(two, axis=0), b) for a, b in both))

    def single(self) -> Pairs:
        """The same in float32, in which training is faster."""
        xp = namespace_of(self.x.coordinates)
        return Pairs(*(inputs.mapped(lambda z: xp.astype(z, xp.float32)) for inputs in self))

    def same_category(self) -> Array | None:
        """Pairs (n, n) of rows of the same category; None without categories."""
        return same_category(self.x, self.y)


def same_category(x: CriticInputs, y: CriticInputs) -> Array | None:
    """Pairs (n, k) of rows of x and of y of the same category; None without categories."""
    if x.categories is None or y.categories is None:
        return None
    return x.categories[:, None] == y.categories[None, :]


def products(x: Array, y: Array) -> Array:
    """Inner products (n, k) of the rows of x and of y; of one column without BLAS, which takes five times as long."""
    return x * y.T if x.shape[1] == 1 else x @ y.T


def indices(numbers: Iterable[int], like: Array) -> Array:
    """Row indices as an array of the library and device of another."""
    xp = namespace_of(like)
    return xp.asarray(list(numbers), dtype=xp.int32, device=device_of(like))


def _limited(x: Array, low: float, high: float) -> Array:
    """Array between two numbers, without `clip`, whose first call on NumPy imports all of NumPy's modules."""
    xp, some = namespace_of(x), x[:1, ...]
    return xp.minimum(xp.maximum(x, xp.full_like(some, low)), xp.full_like(some, high))


class Product(NamedTuple):
    """Product of the scores of some columns, or of their signs."""

    columns: tuple[int, ...]
    signs: bool

    def of(self, scores: Array) -> Array:
        """Products (n,) of the scores (n, D)."""
        result = scores[:, self.columns[0]]
        for k in self.columns[1:]:
            result = result * scores[:, k]
        return namespace_of(scores).sign(result) if self.signs else result


class Scaler(NamedTuple):
    """Location, scale, sorted columns and sorted products of the training pairs."""

    transform: str
    mean: Array
    deviation: Array
    middle: Array
    columns: Array
    products: tuple[tuple[Product, Array], ...] = ()

    def __call__(self, x: Array) -> CriticInputs:
        """Coordinates for linear critics, and features for networks."""
        xp, width = namespace_of(x), x.shape[1]
        standard = _limited((x - self.mean) / self.deviation, -LIMIT, LIMIT)
        if self.transform == "standardize":
            return CriticInputs(standard, standard, standard)
        x = _ranked(xp, x, self.mean, self.middle)
        scores = normal_scores(xp, self.columns, x)
        own = scores[:, :width]
        if self.products:
            made, ordered = zip(*((product.of(own), ordered) for product, ordered in self.products), strict=True)
            of_products = normal_scores(xp, xp.stack(ordered, axis=1), xp.stack(made, axis=1))
            scores = xp.concat([scores, of_products], axis=1)
        return CriticInputs(scores, xp.concat([scores, standard], axis=1), own)

    def extended(self, products: Sequence[Product], scores: Array) -> Scaler:
        """Scaler with products of the scores of the training pairs as further columns."""
        xp = namespace_of(scores)
        return self._replace(products=tuple((product, xp.sort(product.of(scores))) for product in products))


def telling_products(scores: Array, others: Array) -> list[Product]:
    """Products of columns with the largest correlations with columns of the other array, beyond chance.

    Sums of functions of single columns miss them: the sign of y may be the product of the signs of four columns. The
    numbers of factors are those for which the candidates can all be tried.
    """
    xp, (count, width) = namespace_of(scores), scores.shape
    numbers = [m for m in range(2, LONGEST_PRODUCT + 1) if m <= width and math.comb(width, m) <= MOST_CANDIDATES]
    candidates = [
        Product(columns, signs) for m in numbers for columns in combinations(range(width), m) for signs in (True, False)
    ]
    if not candidates:
        return []
    others = others - xp.mean(others, axis=0)
    others = others / _deviations(others)
    strongest: list[tuple[float, Product]] = []
    for start in range(0, len(candidates), 256):
        some = candidates[start : start + 256]
        z = xp.stack([product.of(scores) for product in some], axis=1)
        z = z - xp.mean(z, axis=0)
        found = xp.max(xp.abs((z / _deviations(z)).T @ others), axis=1) / count
        strongest += [(float(found[k]), product) for k, product in enumerate(some)]
    chance = math.sqrt(2.0 * math.log(2.0 * len(candidates) * others.shape[1]) / count)
    strongest.sort(key=lambda pair: -pair[0])
    return [product for size, product in strongest[:MOST_PRODUCTS] if size > 1.2 * chance]


def _deviations(z: Array) -> Array:
    xp = namespace_of(z)
    found = xp.sqrt(xp.mean(z * z, axis=0))
    return xp.where(found > 0, found, xp.ones_like(found))


def fitted(x: Array, transform: str) -> Scaler:
    """Scaler fitted to the training pairs."""
    xp = namespace_of(x)
    mean, deviation = xp.mean(x, axis=0), xp.std(x, axis=0)
    deviation = xp.where(deviation > 0, deviation, xp.ones_like(deviation))
    # The median distance is robust to heavy tails, unlike the deviation.
    middle = xp.sort(xp.abs(x - mean), axis=0)[x.shape[0] // 2, :]
    middle = xp.where(middle > 0, middle, deviation)
    return Scaler(transform, mean, deviation, middle, xp.sort(_ranked(xp, x, mean, middle), axis=0))


def _ranked(xp: Namespace, x: Array, mean: Array, middle: Array) -> Array:
    """Columns to rank: x and, if it has several columns, one that grows with the distance from the mean.

    The distance reveals a scale shared by all columns, as in Student's distribution.
    """
    if x.shape[1] == 1:
        return x
    return xp.concat([x, xp.log1p(xp.mean(((x - mean) / middle) ** 2, axis=1, keepdims=True))], axis=1)


def normal_scores(xp: Namespace, ordered: Array, x: Array) -> Array:
    """Normal quantile of each value's rank among the sorted training values of its column, interpolated linearly.

    Mutual information is invariant to it. Tukey's lambda distribution approximates the normal quantile.
    """
    count, width = ordered.shape

    def places(side: str) -> Array:
        """Places of the values in the order of their columns, which are contiguous, as PyTorch asks."""
        found = [xp.searchsorted(ordered[:, k] + 0.0, x[:, k] + 0.0, side=side) for k in range(width)]
        return xp.stack(found, axis=1)

    def values(place: Array) -> Array:
        """Sorted values at places of their columns, or the nearest ones."""
        columns = xp.arange(width, dtype=place.dtype, device=device_of(place))
        entries = _limited(place, 0, count - 1) * width + columns
        return xp.reshape(xp.take(xp.reshape(ordered, (-1,)), xp.reshape(entries, (-1,))), x.shape)

    before, through = places("left"), places("right")
    below, above = values(before - 1), values(before)
    low, high = xp.astype(before, x.dtype), xp.astype(through, x.dtype)
    step = above - below
    share = xp.where(step > 0, (x - below) / xp.where(step > 0, step, xp.ones_like(step)), xp.zeros_like(step))
    between = xp.logical_and(low == high, xp.logical_and(low > 0, low < count))
    place = xp.where(between, low - 0.5 + share, 0.5 * (low + high))
    p = _limited(place / count, 0.5 / count, 1.0 - 0.5 / count)
    return 4.91 * (p**0.14 - (1.0 - p) ** 0.14)


def own_normal_scores(x: Array) -> Array:
    """Normal scores of the columns among their own values."""
    xp = namespace_of(x)
    return normal_scores(xp, xp.sort(x, axis=0), x)


class Canonical(NamedTuple):
    """Canonical coordinates of two arrays, ``(x - mean) @ matrix``, and the squared correlations.

    `noise`: squared correlation expected of independent arrays of this size.
    """

    means: tuple[Array, Array]
    matrices: tuple[Array, Array]
    squares: Array
    noise: float

    def applied(self, pairs: Pairs) -> Pairs:
        """Pairs in canonical coordinates."""
        each = zip(pairs, self.means, self.matrices, strict=True)
        return Pairs(*(z._replace(coordinates=(z.coordinates - mean) @ matrix) for z, mean, matrix in each))

    def shrunk(self, multiple: float) -> Canonical:
        """Squared correlations shrunk by a multiple of the noise."""
        xp, noise = namespace_of(self.squares), multiple * self.noise
        if noise >= 1.0:
            return self._replace(squares=xp.zeros_like(self.squares))
        return self._replace(squares=_limited((self.squares - noise) / (1.0 - noise), 0.0, 1.0 - SMALLEST))


def canonical(x: Array, y: Array, ridges: Sequence[float]) -> list[Canonical]:
    """Canonical correlations (Hotelling 1936), one per ridge, a multiple of the mean variance (Vinod 1976)."""
    xp, count = namespace_of(x), x.shape[0]
    means = xp.mean(x, axis=0), xp.mean(y, axis=0)
    x, y = x - means[0], y - means[1]
    spectra = [_spectrum(xp, z) for z in (x, y)]
    between, noise = x.T @ y / count, (x.shape[1] + y.shape[1]) / count
    result = []
    for ridge in ridges:
        first, second = (_whitening(xp, spectrum, ridge) for spectrum in spectra)
        left, correlations, right = xp.linalg.svd(first.T @ between @ second, full_matrices=False)
        squares = _limited(correlations, 0.0, 1.0) ** 2
        result.append(Canonical(means, (first @ left, second @ right.T), squares, noise))
    return result


def _spectrum(xp: Namespace, x: Array) -> tuple[Array, Array]:
    """Variances of centred rows, ascending, and their directions (D, n); beyond the space of the rows, all are 0."""
    if x.shape[1] <= x.shape[0]:
        variances, directions = xp.linalg.eigh(x.T @ x / x.shape[0])
        return variances, directions
    _, scales, basis = xp.linalg.svd(x, full_matrices=False)
    return xp.flip(scales, axis=0) ** 2 / x.shape[0], xp.flip(basis, axis=0).T


def canonical_of_pairs(x: Array, y: Array) -> list[Canonical]:
    """Canonical correlations of the 1, 2, 4, ... pairs of columns with the largest correlations, if there are many.

    Among so many columns, all combinations together have too much noise. No column is in two pairs.
    """
    xp, width, others = namespace_of(x), int(x.shape[1]), int(y.shape[1])
    most = min(width, others, max(width, others) // COLUMNS_OF_PAIR)
    sizes = [size for size in PAIR_COUNTS if size <= most]
    if not sizes:
        return []
    means = xp.mean(x, axis=0), xp.mean(y, axis=0)
    standard = [(z - mean) / _deviations(z - mean) for z, mean in zip((x, y), means, strict=True)]
    strengths = xp.abs(standard[0].T @ standard[1])
    columns: tuple[list[int], list[int]] = ([], [])
    rows, places = (xp.arange(k, device=device_of(x)) for k in (width, others))
    for _ in range(sizes[-1]):
        place = int(xp.argmax(xp.reshape(strengths, (-1,))))
        i, j = divmod(place, others)
        columns[0].append(i)
        columns[1].append(j)
        free = xp.logical_and(rows[:, None] != i, places[None, :] != j)
        strengths = xp.where(free, strengths, -xp.ones_like(strengths))
    result = []
    for size in sizes:
        chosen = [indices(of_side[:size], x) for of_side in columns]
        left, right = (xp.take(z, some, axis=1) for z, some in zip((x, y), chosen, strict=True))
        found = canonical(left, right, (0.0,))[0]
        picked = [
            xp.astype(numbers[:, None] == xp.astype(some, numbers.dtype)[None, :], x.dtype)
            for numbers, some in zip((rows, places), chosen, strict=True)
        ]
        left, right = (pick @ matrix for pick, matrix in zip(picked, found.matrices, strict=True))
        result.append(found._replace(means=means, matrices=(left, right)))
    return result


def _whitening(xp: Namespace, spectrum: tuple[Array, Array], ridge: float) -> Array:
    """Directions of a spectrum divided by their deviations."""
    variances, directions = spectrum
    floor = xp.maximum(SMALLEST * variances[-1:], xp.full_like(variances[-1:], 1e-30))
    mean = xp.sum(variances) / directions.shape[0]  # also over directions without variance
    return directions / xp.sqrt(xp.maximum(variances, floor) + ridge * mean)
