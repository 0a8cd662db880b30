"""Kernel critic: log density ratio by Gaussian kernels, in closed form, for few dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .._core.namespace import device_of, namespace_of
from .._core.protocol import Array
from .features import CriticInputs, Pairs, products
from .host import written
from .repeats import has_codes

__all__ = ["Kernels", "fitted_kernels"]

WIDTHS = (0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
"""Deviations of the kernels, of coordinates with a deviation of 1."""
SAME = 0.005
"""Deviation of kernels of equal values, also tried where values repeat: codes next to each other are not alike."""
PRIOR = 0.02
"""Pairs at a ratio of 1 that are added to the pairs around a place."""
ITERATIONS = 300
SMALLEST, CONSTANT = 0.01, 0.03
"""Smallest share of a component, and least share of the constant ratio 1, which bounds the losses."""
MOST_CENTRES = 1500
CHUNK = 2**16
"""Numbers of a matrix held at a time: 12 such matrices stay in a processor's cache."""
MOST_COLUMNS = 4


class Component(NamedTuple):
    """Share of a kernel estimate: a space, and widths of the kernels of x and of y."""

    share: float
    space: int
    left: float
    right: float


class Kernels(NamedTuple):
    """Mixture of kernel estimates of ``p(x, y) / (p(x) p(y))``.

    Around a pair, kernels count the training pairs J and those expected of independent arrays, E. The ratio is
    ``(J + PRIOR) / (E + PRIOR)``, the mean of its posterior distribution if J is Poisson distributed.
    """

    components: list[Component]
    centres: Pairs
    columns: list[int]

    def with_centres(self, pairs: Pairs) -> Kernels:
        """The same with kernels at the last of these pairs."""
        return self._replace(centres=pairs.select(range(max(0, pairs.number - MOST_CENTRES), pairs.number)))

    def scores(self, x: Pairs, y: Pairs) -> Array:
        """Log ratios of each row of x with each row of y."""
        shape = (x.number, y.number)
        xp, like = namespace_of(x.x.features), x.x.features
        total = xp.full(
            shape, 1.0 - math.fsum(c.share for c in self.components), dtype=like.dtype, device=device_of(like)
        )
        known: dict[tuple[str, int, float], tuple[Array, Array]] = {}

        def masses(side: str, space: int, width: float) -> tuple[Array, Array]:
            """Kernels at the centres, and their sums."""
            if (side, space, width) not in known:
                inputs, own = (x.x, self.centres.x) if side == "x" else (y.y, self.centres.y)
                found = _masses(_squares(*(_view(z, self.columns[space]) for z in (inputs, own))), width)
                known[side, space, width] = found, xp.sum(found, axis=1)
            return known[side, space, width]

        for share, space, left, right in self.components:
            (a, of_a), (b, of_b) = masses("x", space, left), masses("y", space, right)
            ratio = _ratio(a @ b.T, of_a[:, None], of_b[None, :], a.shape[1])
            ratio *= share
            total += ratio
        return xp.log(total)


def _view(inputs: CriticInputs, columns: int) -> Array:
    """Leading canonical coordinates, or all scores of the original columns (0)."""
    return inputs.coordinates[:, :columns] if columns else inputs.scores


def _squares(x: Array, y: Array) -> Array:
    xp = namespace_of(x)
    squares = xp.sum(x * x, axis=1)[:, None] + xp.sum(y * y, axis=1)[None, :]
    both = products(x, y)
    both *= 2.0
    squares -= both
    return written(xp.maximum, squares, xp.zeros_like(squares[:1, :]), out=squares)


def _masses(squares: Array, width: float) -> Array:
    scaled = squares * (-0.5 / width**2)
    return written(namespace_of(scaled).exp, scaled, out=scaled)


def _ratio(both: Array, left: Array, right: Array, count: int) -> Array:
    """Ratio of the kernels of both arrays to those expected; overwrites `both` if the library can."""
    expected = left * right
    expected /= count
    expected += PRIOR
    both += PRIOR
    both /= expected
    return both


def _widths(z: Array) -> tuple[float, ...]:
    """Widths to try for the rows of one array."""
    return (SAME, *WIDTHS) if has_codes(z) else WIDTHS


def _ratios(x: Array, y: Array, widths: Sequence[Sequence[float]]) -> list[Array]:
    """Ratios at some training pairs, for each width of x and each of y, from their squared distances to all."""
    xp, count = namespace_of(x), x.shape[1]
    masses = [[_masses(squares, width) for width in some] for squares, some in zip((x, y), widths, strict=True)]
    sums = [[xp.sum(mass, axis=1) for mass in of_side] for of_side in masses]
    spare = xp.empty_like(x)
    return [
        # Without others, the ratio is 1.
        _ratio(xp.sum(written(xp.multiply, left, right, out=spare), axis=1), of_left, of_right, max(count - 1, 1))
        for left, of_left in zip(masses[0], sums[0], strict=True)
        for right, of_right in zip(masses[1], sums[1], strict=True)
    ]


def fitted_kernels(train: Pairs, columns: Sequence[int]) -> Kernels:
    """Kernels at training pairs, with shares that are likely for each pair given the others (by EM)."""
    xp = namespace_of(train.x.features)
    centres = train.select(range(min(train.number, MOST_CENTRES)))
    count = centres.number
    rows = xp.arange(count, device=device_of(centres.x.features))
    own = rows[:, None] == rows[None, :]
    ratios: list[Array] = []
    kinds: list[tuple[int, float, float]] = []
    size = max(1, CHUNK // count)
    for space, k in enumerate(columns):
        views = _view(centres.x, k), _view(centres.y, k)
        # A pair that is infinitely far from itself has no kernel at its own place.
        of_x, of_y = (xp.where(own, xp.full_like(z[:1, :1], math.inf), _squares(z, z)) for z in views)
        widths = [_widths(z) for z in views]
        parts = [_ratios(of_x[a : a + size, :], of_y[a : a + size, :], widths) for a in range(0, count, size)]
        ratios += [xp.concat(each, axis=0) for each in zip(*parts, strict=True)]
        kinds += [(space, left, right) for left in widths[0] for right in widths[1]]
    table = xp.stack([xp.ones_like(ratios[0]), *ratios], axis=1)
    shares, joint = xp.full_like(table[0, :], 1.0 / table.shape[1]), xp.empty_like(table)
    for _ in range(ITERATIONS):
        joint = written(xp.multiply, table, shares, out=joint)
        joint /= xp.sum(joint, axis=1, keepdims=True)
        shares = xp.sum(joint, axis=0) / count
    numbers = [float(shares[k]) for k in range(1, table.shape[1])]
    kept = [(share, kind) for share, kind in zip(numbers, kinds, strict=True) if share > SMALLEST]
    total = math.fsum(share for share, _ in kept)
    scale = min(1.0, (1.0 - CONSTANT) / total) if kept else 1.0
    components = [Component(scale * share, *kind) for share, kind in kept]
    return Kernels(components, centres, list(columns))
