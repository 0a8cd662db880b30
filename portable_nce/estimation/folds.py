"""Clusters of dependent rows, and their division into parts for training, stopping and report."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

from .._core.namespace import device_of, namespace_of
from .._core.protocol import Array

__all__ = ["Clusters", "Parts", "blocks", "by_label"]

MOST_BLOCKS = 60
PAIR = 2
"""Fewest clusters that can be divided, into one to train on and one to stop by."""
MANY = 48
"""Clusters with which three folds are enough."""


class Parts(NamedTuple):
    """Clusters of a fold: those of the report, and the others in order."""

    report: list[int]
    rest: list[int]


class Clusters(NamedTuple):
    """Rows of each cluster. Clusters are independent, or consecutive blocks of a series (`ordered`)."""

    rows: list[list[int]]
    ordered: bool = False

    @property
    def effective(self) -> float:
        """Number of clusters of equal size that would be as informative."""
        sizes = [len(rows) for rows in self.rows]
        return sum(sizes) ** 2 / sum(size * size for size in sizes)

    @property
    def largest_share(self) -> float:
        """Share of the rows in the largest cluster."""
        sizes = [len(rows) for rows in self.rows]
        return max(sizes) / sum(sizes)

    def folds(self, number: int, random: Random) -> list[Parts]:
        """Folds of about equal numbers of rows; each cluster is in one report, and two or more are in the rest.

        The blocks of a series are divided at a random place, and a block at each side of a report is left out.
        """
        count = len(self.rows)
        if self.ordered:
            start = random.randrange(count)
            turned = [(start + k) % count for k in range(count)]
            bounds = [k * count // number for k in range(number + 1)]
            circle = [turned[a:b] for a, b in pairwise(bounds)]
            whole = [turned[b:] + turned[:a] for a, b in pairwise(bounds)]
            return [Parts(part, rest[1:-1]) for part, rest in zip(circle, whole, strict=True)]
        order = random.sample(range(count), count)
        order.sort(key=lambda c: -len(self.rows[c]))
        parts: list[list[int]] = [[] for _ in range(number)]
        sizes = [0] * number
        for position, c in enumerate(order):
            short = [k for k, part in enumerate(parts) if len(part) < PAIR]
            wanted = sum(PAIR - len(parts[k]) for k in short)
            smallest = min(short if count - position <= wanted else range(number), key=sizes.__getitem__)
            parts[smallest].append(c)
            sizes[smallest] += len(self.rows[c])
        result = []
        for k, part in enumerate(parts):
            rest = [c for j, other in enumerate(parts) if j != k for c in other]
            random.shuffle(part)
            random.shuffle(rest)
            result.append(Parts(part, rest))
        return result

    def possible_folds(self) -> range:
        """Numbers of folds that leave a cluster to train on and one to stop by."""
        count = len(self.rows)
        left_out = 2 if self.ordered else 0
        return range(
            next(k for k in range(2, count + 1) if count - -(-count // k) >= PAIR + left_out), count // PAIR + 1
        )

    def divided(self, clusters: Sequence[int], share: float) -> tuple[list[int], list[int]]:
        """First clusters with about this share of the rows, and the others; none is empty."""
        wanted = share * sum(len(self.rows[c]) for c in clusters)
        cut, taken = 1, len(self.rows[clusters[0]])
        while cut < len(clusters) - 1 and taken + 0.5 * len(self.rows[clusters[cut]]) <= wanted:
            taken, cut = taken + len(self.rows[clusters[cut]]), cut + 1
        return list(clusters[:cut]), list(clusters[cut:])

    def members(self, clusters: Sequence[int]) -> list[int]:
        """Rows of some clusters."""
        return [row for c in clusters for row in self.rows[c]]

    def sums(self, values: Array) -> Array:
        """Sums of rows (n, k) over each cluster."""
        if all(rows == [k] for k, rows in enumerate(self.rows)):
            return values
        xp = namespace_of(values)
        labels = [0] * values.shape[0]
        for c, rows in enumerate(self.rows):
            for row in rows:
                labels[row] = c
        of_row = xp.asarray(labels, dtype=xp.int32, device=device_of(values))
        known = xp.arange(len(self.rows), dtype=xp.int32, device=device_of(values))
        return xp.astype(known[:, None] == of_row[None, :], values.dtype) @ values

    def labels(self, clusters: Sequence[int]) -> list[int]:
        """Cluster of each of the rows of some clusters."""
        return [c for c in clusters for _ in self.rows[c]]

    def shifted(self, random: Random, strata: Sequence[Sequence[int]] | None) -> list[int]:
        """Row of y for each row, shifted along the clusters by at least a quarter of them.

        This keeps dependence on the order of rows, as in a time series. `strata`: rows of each category, which are
        shifted among themselves, by the same share of their number.
        """
        count = len(self.rows)
        shift = random.randint(max(1, count // 4), max(1, count - count // 4))
        source = [row for k in range(count) for row in self.rows[(k + shift) % count]]
        target = [row for cluster in self.rows for row in cluster]
        if strata is not None:
            order = {row: k for k, row in enumerate(target)}
            each = [sorted(rows, key=order.__getitem__) for rows in strata]
            target = [row for rows in each for row in rows]
            places = [shift * len(rows) // count for rows in each]
            source = [row for rows, k in zip(each, places, strict=True) for row in rows[k:] + rows[:k]]
        place = dict(zip(target, source, strict=True))
        return [place[i] for i in range(len(source))]


def by_label(labels: Sequence[Hashable]) -> list[list[int]]:
    """Rows of each label, ordered by first row."""
    result: dict[Hashable, list[int]] = {}
    for i, label in enumerate(labels):
        result.setdefault(label, []).append(i)
    return list(result.values())


def blocks(order: Sequence[int], time: float) -> Clusters:
    """Consecutive blocks of rows in this order, of at least a correlation time."""
    length = max(math.ceil(time), -(-len(order) // MOST_BLOCKS))
    number = max(1, len(order) // length)
    bounds = [k * len(order) // number for k in range(number + 1)]
    return Clusters([list(order[a:b]) for a, b in pairwise(bounds)], ordered=True)
