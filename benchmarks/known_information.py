"""Distributions with known mutual information, estimators to compare with, and samples whose rows are dependent.

Truths follow from closed forms, quadrature, exact tables or invariance. `HELD_OUT` problems were not used to develop
`estimation.mutual_information`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Numbers, Numbers]]


@dataclass(frozen=True)
class Problem:
    """Distribution, number of pairs, mutual information in nats, class, and whether it was kept out of development."""

    name: str
    kind: str
    draw: Draw
    pairs: int
    truth: Callable[[], float]
    held_out: bool = False


# Parts of problems


def gaussian(dimension: int, nats: float) -> Draw:
    """Gaussians, each coordinate of y correlated with one of x."""
    rho = math.sqrt(-math.expm1(-2.0 * nats / dimension))

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        x, noise = rng.normal(size=(2, count, dimension))
        return x, rho * x + math.sqrt(1.0 - rho * rho) * noise

    return draw


def mapped(draw: Draw, left: Callable[[Numbers], Numbers], right: Callable[[Numbers], Numbers] | None = None) -> Draw:
    """The same with invertible functions of x and of y, which leave the information as it is."""

    def drawn(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        x, y = draw(rng, count)
        return left(x), (right or left)(y)

    return drawn


def student(dimension: int, nats: float, freedom: float) -> Draw:
    """Joint Student's distribution: Gaussians of `nats`, divided by one number per pair."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        x, y = gaussian(dimension, nats)(rng, count)
        scale = np.sqrt(freedom / rng.chisquare(freedom, size=(count, 1)))
        return x * scale, y * scale

    return draw


def student_nats(dimension: int, nats: float, freedom: float) -> float:
    """Mutual information of `student`: entropies of x and y minus the joint entropy."""

    def digamma(x: float) -> float:
        total = 0.0
        while x < 10.0:  # noqa: PLR2004  (the series is accurate to 1e-12 beyond)
            total, x = total - 1.0 / x, x + 1.0
        return total + math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6)

    def entropy(columns: int) -> float:
        half = 0.5 * (freedom + columns)
        digammas = half * (digamma(half) - digamma(0.5 * freedom))
        return math.lgamma(0.5 * freedom) - math.lgamma(half) + 0.5 * columns * math.log(freedom * math.pi) + digammas

    return nats + 2.0 * entropy(dimension) - entropy(2 * dimension)


def swiss_roll(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
    """A Gaussian pair with one nat, with x rolled up in the plane."""
    x, y = gaussian(1, 1.0)(rng, count)
    turn = 1.5 * math.pi * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)) + 1.0)
    return np.concatenate([turn * np.cos(turn), turn * np.sin(turn)], axis=1), y


def spiral(x: Numbers) -> Numbers:
    """Turn the first two coordinates by an angle that grows with their distance from 0."""
    angle = 2.0 * np.sqrt((x[:, :2] ** 2).sum(axis=1))
    turned = np.stack(
        [np.cos(angle) * x[:, 0] - np.sin(angle) * x[:, 1], np.sin(angle) * x[:, 0] + np.cos(angle) * x[:, 1]], axis=1
    )
    return np.concatenate([turned, x[:, 2:]], axis=1)


def with_noise(
    function: Callable[[Numbers], Numbers], deviation: float, *, uniform: bool = False, columns: int = 1
) -> Draw:
    """A function of x plus Gaussian noise; x is normal or uniform on [0, 1]."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        x = rng.uniform(size=(count, columns)) if uniform else rng.normal(size=(count, columns))
        return x, function(x) + deviation * rng.normal(size=(count, 1))

    return draw


def noise_nats(values: Numbers, weights: Numbers, deviation: float) -> float:
    """Information of a function's values plus Gaussian noise: entropy of a mixture, by sums, minus the noise's."""
    places = np.linspace(values.min() - 9 * deviation, values.max() + 9 * deviation, 4001)
    width, centres = places[1] - places[0], np.histogram(values, 4000, weights=weights)
    middle, mass = 0.5 * (centres[1][1:] + centres[1][:-1]), centres[0] / centres[0].sum()
    density = np.zeros_like(places)
    for part, shares in zip(np.array_split(middle, 40), np.array_split(mass, 40), strict=True):
        density += np.exp(-0.5 * ((places[:, None] - part) / deviation) ** 2) @ shares
    density /= deviation * math.sqrt(2.0 * math.pi)
    logs = np.log(np.maximum(density, 1e-300))
    return float(-(density * logs).sum() * width - 0.5 * math.log(2.0 * math.pi * math.e * deviation**2))


def of_normal(function: Callable[[Numbers], Numbers], deviation: float) -> float:
    """Information of `with_noise` for normal x."""
    x = np.linspace(-9.0, 9.0, 400_001)
    return noise_nats(function(x), np.exp(-0.5 * x * x), deviation)


def of_uniform(function: Callable[[Numbers], Numbers], deviation: float) -> float:
    """Information of `with_noise` for uniform x."""
    x = (np.arange(400_000) + 0.5) / 400_000
    return noise_nats(function(x), np.ones_like(x), deviation)


def band(half: float) -> Draw:
    """Uniform noise on a uniform x: a density ratio with sharp edges."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        x = rng.uniform(size=(count, 1))
        return x, x + rng.uniform(-half, half, size=(count, 1))

    return draw


def band_nats(half: float) -> float:
    """Information of `band`, for a half width of at most 1/2: the entropy of a trapezium minus that of the noise."""
    return half - math.log(2.0 * half)


def signs(factors: int, columns: int, flipped: float) -> Draw:
    """Y is the product of the signs of some columns of x, flipped with some probability."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        x = rng.normal(size=(count, columns))
        y = np.sign(x[:, :factors]).prod(axis=1) * np.where(rng.uniform(size=count) < flipped, -1.0, 1.0)
        return x, y[:, None]

    return draw


def signs_nats(flipped: float) -> float:
    """Information of a binary channel."""
    return math.log(2.0) + sum(p * math.log(p) for p in (flipped, 1.0 - flipped) if p)


def product(columns: int, deviation: float) -> Draw:
    """Y is the product of two columns of x, plus noise."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        x = rng.normal(size=(count, columns))
        return x, (x[:, :1] * x[:, 1:2]) + deviation * rng.normal(size=(count, 1))

    return draw


def product_nats(deviation: float) -> float:
    """Information of `product`, by sums over the distribution of the product of two normal numbers."""
    x = np.linspace(-8.0, 8.0, 2001)
    weights = np.exp(-0.5 * x * x)
    return noise_nats((x[:, None] * x).ravel(), (weights[:, None] * weights).ravel(), deviation)


def table(matrix: Any) -> Draw:
    """Row and column numbers of a table of probabilities."""
    probabilities = np.asarray(matrix, dtype=np.float64)
    probabilities = probabilities / probabilities.sum()

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        cells = rng.choice(probabilities.size, size=count, p=probabilities.ravel())
        x, y = np.unravel_index(cells, probabilities.shape)
        return x[:, None].astype(np.float64), y[:, None].astype(np.float64)

    return draw


def table_nats(matrix: Any) -> float:
    """Information of a table."""
    p = np.asarray(matrix, dtype=np.float64)
    p = p / p.sum()
    independent = p.sum(axis=1, keepdims=True) * p.sum(axis=0, keepdims=True)
    return float((p[p > 0] * np.log(p[p > 0] / independent[p > 0])).sum())


def circulant(count: int, shares: tuple[float, ...]) -> Numbers:
    """Table whose rows are shifted copies of some shares."""
    return np.asarray(
        [
            [shares[(j - i) % count] if (j - i) % count < len(shares) else 0.0 for j in range(count)]
            for i in range(count)
        ]
    )


def excepted(count: int, share: float) -> Numbers:
    """Table of x and y equal, but for a share of the pairs, whose y is any other value."""
    return np.where(np.eye(count) > 0, 1.0 - share, share / (count - 1))


def poisson(mean: float, scale: float) -> Draw:
    """A count with a mean that grows with a binary x: mean or scale times the mean."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        x = rng.integers(2, size=(count, 1)).astype(np.float64)
        return x, rng.poisson(mean * scale**x).astype(np.float64)

    return draw


def poisson_nats(mean: float, scale: float) -> float:
    """Information of `poisson`, as a table."""
    k = np.arange(200)
    logs = np.cumsum(np.log(np.maximum(k, 1)))
    return table_nats([np.exp(k * math.log(m) - m - logs) for m in (mean, mean * scale)])


def excepted_ring(share: float, deviation: float) -> Draw:
    """Angles of y near those of x, but for a share of the pairs, whose y is any angle; as points on circles."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        angle = rng.uniform(0.0, 2.0 * math.pi, size=count)
        other = angle + deviation * rng.normal(size=count)
        other = np.where(rng.uniform(size=count) < share, rng.uniform(0.0, 2.0 * math.pi, size=count), other)
        x, y = (np.stack([np.cos(t), np.sin(t)], axis=1) for t in (angle, other))
        return x, y

    return draw


def excepted_ring_nats(share: float, deviation: float) -> float:
    """Mean log ratio of `excepted_ring`, for a deviation far below π."""
    t = np.linspace(-math.pi, math.pi, 400_001)[:-1]
    normal = np.exp(-0.5 * (t / deviation) ** 2) * math.sqrt(2.0 * math.pi) / deviation
    ratio = (1.0 - share) * normal + share
    return float((ratio * np.log(ratio)).mean())


def ring(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
    """Angles of y near those of x, given as points on circles of random radius."""
    angle = rng.uniform(0.0, 2.0 * math.pi, size=count)
    other = angle + 0.4 * rng.normal(size=count)
    x, y = (
        np.stack([np.cos(t), np.sin(t)], axis=1) * (1.0 + 0.1 * rng.uniform(size=(count, 1))) for t in (angle, other)
    )
    return x, y


def ring_nats() -> float:
    """Log 2π minus the entropy of a wrapped normal angle."""
    t = np.linspace(-math.pi, math.pi, 20_001)[:-1]
    density = sum(np.exp(-0.5 * ((t + 2 * math.pi * k) / 0.4) ** 2) for k in range(-3, 4)) / (
        0.4 * math.sqrt(2 * math.pi)
    )
    return float(math.log(2 * math.pi) + (density * np.log(density)).mean() * 2 * math.pi)


CORNERS: Final = np.asarray([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
WIDTH: Final = 0.4


def mixture(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
    """Four clusters in the plane; y is in the cluster after x's, or with probability 0.1 in a random one."""
    of_x = rng.integers(4, size=count)
    of_y = np.where(rng.uniform(size=count) < 0.9, (of_x + 1) % 4, rng.integers(4, size=count))  # noqa: PLR2004
    x, y = (CORNERS[k] + WIDTH * rng.normal(size=(count, 2)) for k in (of_x, of_y))
    return x, y


def mixture_nats() -> float:
    """Mutual information of `mixture`, the mean of two million log density ratios (error 0.0006)."""
    x, y = mixture(np.random.default_rng(0), 2_000_000)
    near_x, near_y = (np.exp(-((z[:, None, :] - CORNERS) ** 2).sum(axis=2) / (2.0 * WIDTH**2)) for z in (x, y))
    joint = 0.25 * (0.9 * np.roll(np.eye(4), 1, axis=1) + 0.1 * np.full((4, 4), 0.25))
    both = ((near_x @ joint) * near_y).sum(axis=1)
    return float(np.log(both / (near_x.mean(axis=1) * near_y.mean(axis=1))).mean())


def pictures(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
    """Noisy 8 × 8 pictures of one of ten random patterns each; a second picture of the same pattern for y."""
    patterns = np.random.default_rng(7).normal(size=(10, 64))
    label = rng.integers(10, size=count)
    x, y = (patterns[label] + 0.5 * rng.normal(size=(count, 64)) for _ in range(2))
    return x, y


def shared_zeros(share: float, nats: float) -> Draw:
    """Gaussians, both 0 in the same share of the rows: dropouts, or days without rain."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        gone = rng.uniform(size=(count, 1)) < share
        x, y = (np.where(gone, 0.0, z) for z in gaussian(1, nats)(rng, count))
        return x, y

    return draw


def shared_zeros_nats(share: float, nats: float) -> float:
    """Entropy of the bit that both share, and the information of the other rows."""
    return signs_nats(0.0) - signs_nats(share) + (1.0 - share) * nats


def cell_nats(nats: float, of_x: Callable[[Numbers], Numbers], of_y: Callable[[Numbers], Numbers]) -> float:
    """Information of monotone functions of a Gaussian pair that map it to cells: steps, limits; by sums."""
    rho, z = math.sqrt(-math.expm1(-2.0 * nats)), np.linspace(-5.0, 5.0, 2001)
    density = np.exp(-0.5 * (z[:, None] ** 2 - 2.0 * rho * z[:, None] * z + z * z) / (1.0 - rho * rho))
    for axis, function in enumerate((of_x, of_y)):
        _, starts = np.unique(function(z), return_index=True)
        density = np.add.reduceat(density, np.sort(starts), axis=axis)
    return table_nats(density)


def rounded(step: float) -> Callable[[Numbers], Numbers]:
    """Rounding to multiples of a step."""
    return lambda x: step * np.round(x / step)


def limited(low: float, high: float) -> Callable[[Numbers], Numbers]:
    """Limits of detection."""
    return lambda x: np.clip(x, low, high)


def permuted_codes(count: int, share: float = 0.0) -> Draw:
    """One of some codes, and the code that a fixed permutation gives it, but for a share, which have any other."""
    other = np.random.default_rng(0).permutation(count)

    def draw(rng: np.random.Generator, pairs: int) -> tuple[Numbers, Numbers]:
        x = rng.integers(count, size=(pairs, 1))
        moved = np.where(rng.uniform(size=(pairs, 1)) < share, rng.integers(1, count, size=(pairs, 1)), 0)
        return x.astype(np.float64), ((other[x] + moved) % count).astype(np.float64)

    return draw


def some_pairs(left: int, right: int, correlations: tuple[float, ...]) -> Draw:
    """Normal columns; the first of y are correlated with the first of x."""

    def draw(rng: np.random.Generator, pairs: int) -> tuple[Numbers, Numbers]:
        x, y = rng.normal(size=(pairs, left)), rng.normal(size=(pairs, right))
        for k, rho in enumerate(correlations):
            y[:, k] = rho * x[:, k] + math.sqrt(1.0 - rho * rho) * y[:, k]
        return x, y

    return draw


def exponential(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
    """A rate x with one observation y: exponential with rate x, where x has a gamma distribution of shape 2."""
    x = rng.gamma(2.0, size=(count, 1))
    return x, rng.exponential(size=(count, 1)) / x


def exponential_nats() -> float:
    """Information of `exponential`: entropy of y, (Lomax with shape 2), minus the mean entropy given x."""
    lomax = 1.0 + 1.0 / 2.0 - math.log(2.0)
    digamma = 1.0 - 0.5772156649015329
    return lomax - (1.0 - digamma)


def sine(periods: float) -> Callable[[Numbers], Numbers]:
    """Sine of x."""
    return lambda x: np.sin(2.0 * math.pi * periods * x)


def steps(x: Numbers) -> Numbers:
    """Four steps between 0 and 1."""
    return np.floor(4.0 * x) % 2


def bent(x: Numbers) -> Numbers:
    """A cubic that is not monotone."""
    return x**3 - 2.0 * x


def heavy(x: Numbers) -> Numbers:
    """Heavy tails."""
    return np.tan(1.5 * np.tanh(x))


def same(x: Numbers) -> Numbers:
    """The identity."""
    return x


def angle(x: Numbers) -> Numbers:
    """Angles of points on a circle, as numbers."""
    return np.arctan2(x[:, 1:], x[:, :1])


def known(value: float) -> Callable[[], float]:
    """A truth in closed form."""
    return lambda: value


def normal_noise(name: str, kind: str, function: Callable[[Numbers], Numbers], noise: float) -> Problem:
    """A function of a normal x plus noise."""
    return Problem(name, kind, with_noise(function, noise), 300, lambda: of_normal(function, noise))


def uniform_noise(name: str, kind: str, function: Callable[[Numbers], Numbers], noise: float) -> Problem:
    """A function of a uniform x plus noise."""
    draw = with_noise(function, noise, uniform=True)
    return Problem(name, kind, draw, 500, lambda: of_uniform(function, noise))


def cells(name: str, matrix: Any, pairs: int) -> Problem:
    """Rows and columns of a table."""
    return Problem(name, "tables", table(matrix), pairs, lambda: table_nats(matrix))


EXCEPTIONS: Final = "rare exceptions"
ANGLES: Final = "angles as numbers", "angles as cosine and sine"
NONE, SMOOTH, WIGGLY, EDGES = "independent", "1 × 1 smooth", "1 × 1 wiggly", "1 × 1 edges"
ZEROS, ROUNDED, CENSORED, CODES = "shared zeros", "rounded", "limits of detection", "codes"
WIDE: Final = "few pairs of many columns"
TABLES, PRODUCTS, SEVERAL, THIN, PICTURES = "tables", "interactions", "several columns", "thin", "pictures"


def exceptions(name: str, count: int, share: float, pairs: int) -> Problem:
    """Codes that are equal but for a share of the pairs."""
    matrix = excepted(count, share)
    return Problem(name, EXCEPTIONS, table(matrix), pairs, lambda: table_nats(matrix))


def in_cells(name: str, kind: str, nats: float, left: Any, right: Any) -> Problem:
    """A Gaussian pair, rounded or with limits."""
    return Problem(name, kind, mapped(gaussian(1, nats), left, right), 300, lambda: cell_nats(nats, left, right))


@cache
def with_atoms() -> tuple[Problem, ...]:
    """Problems with equal rows that are draws."""
    half = 0.5

    def zeros(share: float, nats: float) -> Problem:
        name = f"{100 * share:.0f} % shared zeros{', rest independent' if nats == 0.0 else ''}"
        return Problem(name, ZEROS, shared_zeros(share, nats), 300, lambda: shared_zeros_nats(share, nats))

    return (
        *(zeros(share, nats) for nats in (half, 0.0) for share in (0.1, half, 0.8)),
        in_cells("rounded to 0.1, 2 nats", ROUNDED, 2.0, rounded(0.1), rounded(0.1)),
        in_cells("rounded to 1, 2 nats", ROUNDED, 2.0, rounded(1.0), rounded(1.0)),
        in_cells("rounded to 0.1, independent", ROUNDED, 0.0, rounded(0.1), rounded(0.1)),
        in_cells("rounded to 0.1, 0.5 nats", ROUNDED, half, rounded(0.1), rounded(0.2)),
        in_cells("low values at a limit", CENSORED, half, limited(-0.5, 9.0), limited(-0.5, 9.0)),
        in_cells("both ends at limits, 2 nats", CENSORED, 2.0, limited(-1.0, 1.0), limited(-half, 1.5)),
        in_cells("limits, independent", CENSORED, 0.0, limited(0.0, 9.0), limited(-1.0, 1.0)),
        Problem("60 codes permuted", CODES, permuted_codes(60), 600, known(math.log(60.0))),
    )


@cache
def many_columns_and_codes() -> tuple[Problem, ...]:
    """Few relations among many columns, and codes without an order."""

    def columns(name: str, left: int, right: int, *correlations: float) -> Problem:
        nats = -0.5 * math.fsum(math.log1p(-rho * rho) for rho in correlations)
        return Problem(name, WIDE, some_pairs(left, right, correlations), 300, known(nats))

    def codes(count: int, share: float, pairs: int) -> Problem:
        name = f"{count} codes permuted, {100 * share:.0f} % others"
        return Problem(name, CODES, permuted_codes(count, share), pairs, lambda: table_nats(excepted(count, share)))

    return (
        columns("one pair of 60 × 100", 60, 100, 0.95),
        columns("three pairs of 50 × 50", 50, 50, 0.7, 0.7, 0.7),
        columns("independent, 60 × 100", 60, 100),
        codes(60, 0.15, 600),
        codes(30, 0.3, 300),
        codes(100, 0.15, 1000),
    )


@cache
def problems() -> tuple[Problem, ...]:
    """All problems: those of the development, those kept out of it, and those added later, so that seeds stay."""
    p, zero = Problem, known(0.0)
    developed = (
        p("independent, 1 × 1", NONE, gaussian(1, 0.0), 200, zero),
        p("independent, 5 × 5", NONE, gaussian(5, 0.0), 300, zero),
        p("independent, 20 × 20", NONE, gaussian(20, 0.0), 300, zero),
        p("independent heavy tails", NONE, mapped(gaussian(1, 0.0), heavy), 300, zero),
        p("independent tables", NONE, table(np.ones((4, 6))), 200, zero),
        p("Gaussian, 0.1 nats", SMOOTH, gaussian(1, 0.1), 300, known(0.1)),
        p("Gaussian, 0.5 nats", SMOOTH, gaussian(1, 0.5), 300, known(0.5)),
        p("Gaussian, 2 nats", SMOOTH, gaussian(1, 2.0), 300, known(2.0)),
        p("Student (ν = 1)", SMOOTH, student(1, 0.3, 1.0), 500, lambda: student_nats(1, 0.3, 1.0)),
        normal_noise("parabola", SMOOTH, np.square, 0.3),
        uniform_noise("sine of two periods", WIGGLY, sine(2), 0.3),
        uniform_noise("sine of eight periods", WIGGLY, sine(8), 0.3),
        uniform_noise("checkerboard steps", EDGES, steps, 0.3),
        p("band, 0.1", EDGES, band(0.1), 500, lambda: band_nats(0.1)),
        p("band, 0.4", EDGES, band(0.4), 500, lambda: band_nats(0.4)),
        cells("table, 5 × 5", circulant(5, (0.6, 0.2, 0.1, 0.05, 0.05)), 300),
        cells("table, 2 × 2", [[3, 1], [1, 3]], 300),
        p("XOR of 2 signs", PRODUCTS, signs(2, 2, 0.05), 500, lambda: signs_nats(0.05)),
        p("XOR of 3 signs", PRODUCTS, signs(3, 3, 0.05), 500, lambda: signs_nats(0.05)),
        p("XOR of 4 signs", PRODUCTS, signs(4, 4, 0.05), 500, lambda: signs_nats(0.05)),
        p("product of 2 of 50", PRODUCTS, product(50, 0.4), 500, lambda: product_nats(0.4)),
        p("Gaussian, 5 × 5", SEVERAL, gaussian(5, 1.0), 500, known(1.0)),
        p("Gaussian, 20 × 20", THIN, gaussian(20, 1.0), 500, known(1.0)),
        p("cubed Gaussian, 3 × 3", SEVERAL, mapped(gaussian(3, 1.0), lambda x: x**3), 500, known(1.0)),
        p("Student (ν = 3), 2 × 2", SEVERAL, student(2, 0.5, 3.0), 500, lambda: student_nats(2, 0.5, 3.0)),
        p("swiss roll", SEVERAL, swiss_roll, 500, known(1.0)),
        p("mixture of four", SEVERAL, mixture, 500, mixture_nats),
        p("patterns, 64 × 64", PICTURES, pictures, 500, known(math.log(10.0))),
        *(
            p(name, name, mapped(excepted_ring(0.0, 0.5), function), 300, lambda: excepted_ring_nats(0.0, 0.5))
            for name, function in zip(ANGLES, (angle, same), strict=True)
        ),
        exceptions("bits, 2 % exceptions of 60", 2, 0.02, 60),
        exceptions("bits, 0.5 % exceptions of 300", 2, 0.005, 300),
        exceptions("five codes, 1 % exceptions of 150", 5, 0.01, 150),
    )
    kept = (
        p("independent counts and numbers", NONE, mapped(gaussian(1, 0.0), np.round, np.exp), 300, zero),
        p("independent, 3 × 1, heavy tails", NONE, mapped(gaussian(3, 0.0), heavy, lambda y: y[:, :1]), 300, zero),
        p("Gaussian, exponentials", SMOOTH, mapped(gaussian(1, 1.0), np.exp), 300, known(1.0)),
        normal_noise("cubic", SMOOTH, bent, 0.5),
        p("gamma rate and exponential", SMOOTH, exponential, 300, exponential_nats),
        uniform_noise("sine of five periods", WIGGLY, sine(5), 0.2),
        p("band, 0.2", EDGES, band(0.2), 500, lambda: band_nats(0.2)),
        p("binary and count", TABLES, poisson(2.0, 4.0), 300, lambda: poisson_nats(2.0, 4.0)),
        cells("table, 12 × 12", circulant(12, (6, 2, 1, 1)), 500),
        p("XOR of 4 of 6 signs", PRODUCTS, signs(4, 6, 0.1), 500, lambda: signs_nats(0.1)),
        p("product of 2 of 8", PRODUCTS, product(8, 0.7), 500, lambda: product_nats(0.7)),
        p("Gaussian, 50 × 50", THIN, gaussian(50, 2.0), 1000, known(2.0)),
        p("Student (ν = 2), 5 × 5", SEVERAL, student(5, 1.0, 2.0), 500, lambda: student_nats(5, 1.0, 2.0)),
        p("spiral, 3 × 3", SEVERAL, mapped(gaussian(3, 1.0), spiral, same), 500, known(1.0)),
        p("ring", SEVERAL, ring, 500, ring_nats),
        exceptions("bits, 5 % exceptions of 100", 2, 0.05, 100),
        p("ring, 2 % exceptions", EXCEPTIONS, excepted_ring(0.02, 0.1), 150, lambda: excepted_ring_nats(0.02, 0.1)),
    )
    return (
        *developed,
        *(replace(problem, held_out=True) for problem in kept),
        *with_atoms(),
        *many_columns_and_codes(),
    )


# Rows that are not independent

COPIES, SERIES, IN_ORDER, SUBJECTS, MAPS, UNNOTICED = (
    "copies",
    "series with order=",
    "series in order",
    "subjects with groups=",
    "maps with order=",
    "dependence that nothing tells",
)


@dataclass(frozen=True)
class Design:
    """Sample with dependent rows: x, y and the options that say so, and the mutual information of a pair."""

    name: str
    kind: str
    draw: Callable[[np.random.Generator], tuple[Numbers, Numbers, dict[str, Any]]]
    truth: float


def copied(count: int, times: int, jitter: float, nats: float, *, bootstrap: bool = False) -> Callable[..., Any]:
    """Each row several times, or drawn with replacement, with noise, shuffled."""

    def draw(rng: np.random.Generator) -> tuple[Numbers, Numbers, dict[str, Any]]:
        x, y = gaussian(1, nats)(rng, count)
        chosen = rng.integers(count, size=count * times) if bootstrap else np.tile(np.arange(count), times)
        chosen = rng.permutation(chosen)
        x, y = (z[chosen] + jitter * rng.normal(size=(len(chosen), 1)) for z in (x, y))
        return x, y, {}

    return draw


def series(count: int, memory: float, *, shuffled: bool, told: bool) -> Callable[..., Any]:
    """Two independent autoregressive series, in order or shuffled, with or without order=."""

    def draw(rng: np.random.Generator) -> tuple[Numbers, Numbers, dict[str, Any]]:
        z = rng.normal(size=(count, 2))
        for i in range(1, count):
            z[i] = memory * z[i - 1] + math.sqrt(1.0 - memory**2) * z[i]
        order = rng.permutation(count) if shuffled else np.arange(count)
        return z[order, :1], z[order, 1:], {"order": order} if told else {}

    return draw


def subjects(groups: int, rows: int, share: float, nats: float, *, told: bool) -> Callable[..., Any]:
    """Rows of some subjects, whose means in x and y are independent or carry the information of a Gaussian."""

    def draw(rng: np.random.Generator) -> tuple[Numbers, Numbers, dict[str, Any]]:
        means = gaussian(1, nats)(rng, groups)
        label = np.repeat(np.arange(groups), rows)
        x, y = (math.sqrt(share) * m[label] + math.sqrt(1 - share) * rng.normal(size=(len(label), 1)) for m in means)
        return x, y, {"groups": label} if told else {}

    return draw


def numbers_of_subjects(groups: int, rows: int, *, told: bool) -> Callable[..., Any]:
    """One number of each subject, as its age, for all its rows, next to measurements with a mean of each subject."""

    def draw(rng: np.random.Generator) -> tuple[Numbers, Numbers, dict[str, Any]]:
        means, ages = rng.normal(size=(2, groups, 1))
        label = rng.permutation(np.repeat(np.arange(groups), rows))
        x = math.sqrt(0.8) * means[label] + math.sqrt(0.2) * rng.normal(size=(len(label), 1))
        return x, ages[label], {"groups": label} if told else {}

    return draw


def maps(side: int, reach: float, *, shuffled: bool, told: bool) -> Callable[..., Any]:
    """Two independent smooth maps, cell by cell, with the number of the cell along the rows of the map as order=."""

    def draw(rng: np.random.Generator) -> tuple[Numbers, Numbers, dict[str, Any]]:
        distance = np.arange(-3 * math.ceil(reach), 3 * math.ceil(reach) + 1)
        kernel = np.exp(-0.5 * (distance / reach) ** 2)
        kernel /= np.sqrt((kernel**2).sum())
        noise = rng.normal(size=(2, side + len(kernel) - 1, side + len(kernel) - 1))
        for axis in (1, 2):
            noise = np.apply_along_axis(lambda row: np.convolve(row, kernel, mode="valid"), axis, noise)
        order = rng.permutation(side * side) if shuffled else np.arange(side * side)
        x, y = (z.reshape(-1, 1)[order] for z in noise)
        return x, y, {"order": order} if told else {}

    return draw


def designs() -> tuple[Design, ...]:
    """All designs in table order."""
    found = [
        Design("copies × 2", COPIES, copied(150, 2, 0.0, 0.0), 0.0),
        Design("copies × 5", COPIES, copied(100, 5, 0.0, 0.0), 0.0),
        Design("copies × 4 of dependent rows", COPIES, copied(150, 4, 0.0, 0.22), 0.22),
        Design("bootstrap", COPIES, copied(300, 1, 0.0, 0.0, bootstrap=True), 0.0),
        Design("near copies × 2, 0.001", COPIES, copied(150, 2, 1e-3, 0.0), 0.0),
        Design("near copies × 5, 0.01", COPIES, copied(100, 5, 1e-2, 0.0), 0.0),
        Design("near copies × 5, 0.1", UNNOTICED, copied(100, 5, 1e-1, 0.0), 0.0),
    ]
    for memory, shuffled, told in itertools.product((0.5, 0.8, 0.95), (False, True), (False, True)):
        how = ("shuffled" if shuffled else "in order") + (", order=" if told else "")
        kind = SERIES if told else UNNOTICED if shuffled else IN_ORDER
        found.append(Design(f"AR(1) {memory}, {how}", kind, series(500, memory, shuffled=shuffled, told=told), 0.0))
    found += [
        Design(f"{n} subjects of 10, groups=", SUBJECTS, subjects(n, 10, 0.8, 0.0, told=True), 0.0)
        for n in (20, 40, 60)
    ]
    rho = 0.8 * math.sqrt(-math.expm1(-2.0))
    found.append(
        Design(
            "40 dependent subjects of 10, groups=",
            SUBJECTS,
            subjects(40, 10, 0.8, 1.0, told=True),
            -0.5 * math.log1p(-(rho**2)),
        )
    )
    found.append(Design("40 subjects of 10, not told", UNNOTICED, subjects(40, 10, 0.8, 0.0, told=False), 0.0))
    found += [
        Design("near copies × 20, 0.02", COPIES, copied(40, 20, 2e-2, 0.0), 0.0),
        Design("a number of each of 30 subjects, groups=", SUBJECTS, numbers_of_subjects(30, 10, told=True), 0.0),
        Design("a number of each of 30 subjects, not told", UNNOTICED, numbers_of_subjects(30, 10, told=False), 0.0),
        Design("smooth maps of 20 × 20, order=", MAPS, maps(20, 3.0, shuffled=False, told=True), 0.0),
        Design("smooth maps of 20 × 20, shuffled", UNNOTICED, maps(20, 3.0, shuffled=True, told=False), 0.0),
    ]
    return tuple(found)


# Neighbours


def kraskov(x: Numbers, y: Numbers, k: int = 3) -> float:
    """Estimate by nearest neighbours (Kraskov et al. 2004, the first algorithm) of standardised columns."""
    x, y = ((z - z.mean(axis=0)) / np.where(z.std(axis=0) > 0, z.std(axis=0), 1.0) for z in (x, y))
    rng = np.random.default_rng(0)
    x, y = (z + 1e-10 * rng.normal(size=z.shape) for z in (x, y))
    of_x, of_y = (np.abs(z[:, None, :] - z[None, :, :]).max(axis=2) for z in (x, y))
    joint = np.maximum(of_x, of_y)
    for distances in (of_x, of_y, joint):
        np.fill_diagonal(distances, np.inf)
    radius = np.partition(joint, k - 1, axis=1)[:, k - 1 : k]
    digamma = np.concatenate([[-0.5772156649015329], -0.5772156649015329 + np.cumsum(1.0 / np.arange(1, len(x) + 1))])
    inside = [digamma[(distances < radius).sum(axis=1)].mean() for distances in (of_x, of_y)]
    return float(digamma[k - 1] + digamma[len(x) - 1] - sum(inside))
