"""Signs that rows are not independent draws: near copies, and dependence on the order of rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from random import Random

from .._core.namespace import namespace_of
from .._core.protocol import Array
from .features import indices, own_normal_scores
from .repeats import row_keys

__all__ = ["correlation_time", "has_near_copies", "is_serial"]

NEIGHBOURS, QUERIES = 12, 600
"""Fewest neighbours of a row that are looked at, and most rows whose neighbours are."""
CHUNK = 2**21
"""Numbers held at a time."""
JUMP = 6.0
"""Standard errors by which the spacings of one neighbour may exceed those of the others."""
LATTICE = 4
"""Values of a column, relative to the root of the number of rows, up to which it is a lattice."""
FEW = 20
"""Values up to which a column tells nothing of copies."""
MOST_ROWS = 0.5
"""Share of rows with the largest gap at the same neighbour that is a sign of as many copies of each."""
GAP = 0.1
"""Smallest excess that is a sign of copies; in many dimensions, spacings of first neighbours are a little larger."""
SERIAL = 3.0
"""Standard errors of a lag correlation of independent rows that are a sign of dependence."""


def _nearest(z: Array, rows: Sequence[int], count: int) -> Array:
    """Squared distances of some rows to so many nearest others, in order."""
    xp = namespace_of(z)
    some = xp.take(z, indices(rows, z), axis=0)
    squares = xp.sum(some * some, axis=1)[:, None] + xp.sum(z * z, axis=1)[None, :] - 2.0 * (some @ z.T)
    return xp.sort(xp.maximum(squares, xp.zeros_like(squares[:1, :1])), axis=1)[:, 1 : count + 1]


def has_near_copies(x: Array, y: Array, rows: Sequence[int], random: Random) -> bool:
    """Whether the distances of pairs to their neighbours have a jump, as noisy copies have.

    Noise makes all values differ, unless they are rounded. Beside continuous columns, the next line of a lattice, a
    column of few values, is a jump, too. So it is looked for among columns that are no lattices, then among all but
    those of very few values, with ties in random order.
    """
    if len(rows) < 4 * NEIGHBOURS:
        return False
    xp = namespace_of(x)
    z = xp.take(xp.concat([x, y], axis=1), indices(random.sample(rows, len(rows)), x), axis=0)
    ordered = xp.sort(z, axis=0)
    found = xp.sum(xp.astype(ordered[1:, :] != ordered[:-1, :], xp.int64), axis=0) + 1
    values = [int(found[k]) for k in range(z.shape[1])]
    continuous, many = (
        [k for k, count in enumerate(values) if count > least] for least in (LATTICE * math.isqrt(len(rows)), FEW)
    )
    if continuous and _have_a_jump(xp.take(z, indices(continuous, z), axis=1), random):
        return True
    if len(many) == len(continuous):
        return False
    z = xp.take(z, indices(many, z), axis=1)
    if 2 * len({*row_keys(z)}) < len(rows):  # codes, or tables, whose rows repeat by nature
        return False
    ranks = xp.argsort(xp.argsort(z, axis=0, stable=True), axis=0)
    return _have_a_jump(xp.astype(ranks, z.dtype), random)


def _have_a_jump(z: Array, random: Random) -> bool:
    """Whether distances of normal scores to their neighbours have a jump.

    If the density is smooth at the scale of k neighbours, ``k log(d[k+1] / d[k])`` of their distances d is exponential
    with mean 1/D in D dimensions, for every k (Facco et al. 2017). In m noisy copies, it is larger at m - 1. Up to √N
    neighbours are looked at: beyond 12, m copies have to be the rule, with the largest gap of most rows at m - 1, since
    clusters of different sizes are draws of a mixture. Tied distances are left out.
    """
    xp, rows = namespace_of(z), z.shape[0]
    z, most = own_normal_scores(z), max(NEIGHBOURS, math.isqrt(rows))
    chosen = random.sample(range(rows), min(QUERIES, rows))
    step = max(1, CHUNK // rows)
    near = xp.concat([_nearest(z, chosen[k : k + step], most + 1) for k in range(0, len(chosen), step)], axis=0)
    first = near[:, : NEIGHBOURS + 1]
    smooth = xp.all(first[:, 1:] - first[:, :-1] > 1e-12 * (1.0 + first[:, 1:]), axis=1)
    smooth = xp.logical_and(smooth, near[:, 0] > 1e-10)  # noqa: PLR2004  (rounding)
    count = int(xp.sum(xp.astype(smooth, xp.int64)))
    if 2 * count < len(chosen):
        return False
    logs = xp.log(near[xp.astype(xp.nonzero(smooth)[0], xp.int64), :])
    steps = xp.stack([0.5 * (k + 1) * (logs[:, k + 1] - logs[:, k]) for k in range(most)], axis=1)
    means = [float(z) for z in xp.mean(steps[:, :NEIGHBOURS], axis=0)]
    typical = sorted(means)[len(means) // 2]
    if max(means[:-1]) > typical * (1.0 + JUMP / math.sqrt(count)) + GAP:
        return True
    places = Counter(int(place) for place in xp.argmax(steps, axis=1))
    return max(places.values()) > MOST_ROWS * count


def _lag(z: Array, lag: int) -> Array:
    """Correlations of the columns with themselves some rows later."""
    xp = namespace_of(z)
    z = z - xp.mean(z, axis=0)
    total = xp.sum(z * z, axis=0)
    total = xp.where(total > 0, total, xp.ones_like(total))
    return xp.sum(z[lag:, :] * z[:-lag, :], axis=0) / total


def is_serial(x: Array, y: Array) -> bool:
    """Whether the order of the rows tells about both x and y: neighbouring rows are alike in both."""
    xp, count = namespace_of(x), x.shape[0]
    found = []
    for z in (x, y):
        limit = math.sqrt(SERIAL**2 + 2.0 * math.log(z.shape[1]))
        scores = own_normal_scores(z)
        found.append(max(float(xp.max(_lag(scores, lag))) * math.sqrt(count) / limit for lag in (1, 2)))
    return min(found) > 1.0


def correlation_time(x: Array, y: Array) -> float:
    """Rows as informative as one independent row: 1 plus twice the correlations of all lags until they are noise.

    The larger of the times of x and of y, or twice that of their products, which decides for independent series.
    """
    xp, count = namespace_of(x), x.shape[0]
    scores = [own_normal_scores(z) for z in (x, y)]
    longest = 1.0
    for chosen, factor in ((scores[:1], 1.0), (scores[1:], 1.0), (scores, 2.0)):
        total, lag = 1.0, 1
        while lag < count // 4:
            most = math.prod(float(xp.max(_lag(z, lag))) for z in chosen)
            if most < (2.0 / math.sqrt(count)) ** len(chosen):
                break
            total, lag = total + 2.0 * most, lag + 1
        longest = max(longest, factor * total)
    return longest
