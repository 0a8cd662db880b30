"""A test of independence: statistics of all pairs, among those of pairs whose partners have changed places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from .._core.namespace import namespace_of
from .._core.protocol import Array
from .dependence import is_serial
from .evidence import STATISTICS, combined, evidence
from .features import indices
from .folds import Clusters, by_label
from .models import scaling
from .records import ResultRecord
from .residuals import RESIDUALS, residual_evidence, residuals_of
from .result import FLAGS, WITHHOLDING
from .sample import Sample

__all__ = ["LEAST_BLOCKS", "LEAST_CLUSTERS", "IndependenceTest", "Tested", "tested", "tested_given"]

LEAST_CLUSTERS, LEAST_BLOCKS = 20, 30
"""Fewest rows or groups, and fewest blocks of a series, whose ends do not meet."""
STRATUM, ALIKE = 6, 0.7
"""Fewest groups that are permuted among themselves, and the least size of a group relative to the largest."""
MOST_TESTED = 2000
"""Most pairs that are tested: more of them show what these show. Of a longer series, every second, third... row."""


@dataclass(frozen=True, slots=True, eq=False)
class IndependenceTest(ResultRecord):
    """Test of the independence of two arrays.

    Attributes
    ----------
    p : float
        Probability of at least this evidence if the arrays are independent; NaN if a flag says that the rows are not
        what the test assumes.
    statistics : tuple of (str, float)
        Name of each statistic, and its own probability, not corrected for the number of statistics; `p` is.
    tested : int
        Number of rows that were tested: up to 2000, without what is cut off groups.
    pairs, groups : int
        Numbers of rows, and of groups of rows that were permuted as a whole; of a series, blocks.
    flags : tuple of str
        Signs of rows that are no independent draws, with their meanings in the `repr`.
    permutations : int or None
        Number of permutations, or of random multiples given numbers; None for a series, whose shifts are all taken.
    seed : int or None
        Seed of the random numbers; None if a `random.Random` was passed.
    version : str
        Version of this package.
    categories : int
        Number of categories of `given=`, 0 without it.
    numbers : int
        Number of columns of numbers of `given=`, 0 without them.
    """

    p: float
    statistics: tuple[tuple[str, float], ...]
    tested: int
    pairs: int
    groups: int
    flags: tuple[str, ...]
    permutations: int | None
    seed: int | None
    version: str
    categories: int = 0
    numbers: int = 0

    def __repr__(self) -> str:
        """Readable summary."""
        lines = [f"test of independence{self._given()} of {self.pairs} pairs", f"  p  {self.p:.4g}"]
        lines += [f"     {p:.4g} by {name}" for name, p in self.statistics]
        return "\n".join([*lines, *(f"  {flag}: {FLAGS[flag]}" for flag in self.flags)])

    def _given(self) -> str:
        if self.numbers:
            return f" given {self.numbers} column{'s' * (self.numbers > 1)} of numbers"
        return f" given {self.categories} categories" if self.categories else ""

    def sentence(self) -> str:
        """One sentence for a paper."""
        units = f"{self.pairs} pairs" if self.groups == self.pairs else f"{self.pairs} pairs in {self.groups} groups"
        seed, given = "" if self.seed is None else f", seed {self.seed}", self._given()
        if math.isnan(self.p):
            reasons = ", ".join(flag for flag in self.flags if flag in WITHHOLDING)
            return f"Independence{given} cannot be tested ({reasons}; {units}; portable_nce {self.version}{seed})."
        others = "all shifts" if self.permutations is None else f"{self.permutations} permutations"
        others += " within categories" if self.categories else ""
        if self.numbers:
            others = f"{self.permutations} random multiples of their terms"
        names = [name for name, _ in self.statistics]
        return (
            f"Independence{given}: p = {self.p:.2g} ({units}; {', '.join(names[:-1])} and {names[-1]}, combined by "
            f"their ranks among {others}, portable_nce {self.version}{seed})."
        )


class Tested(NamedTuple):
    """Probability, that of each statistic by name, number of rows, and whether what is left of them is a series."""

    p: float
    statistics: tuple[tuple[str, float], ...]
    rows: int
    serial: bool = False


def tested(sample: Sample, permutations: int, random: Random) -> Tested:
    """Probability of the pairs among assignments of y to x that are as likely if they are independent.

    Normal scores are of all tested rows, so no assignment changes them.
    """
    clusters = sample.clusters
    if clusters.ordered:
        rows, others = _shifts(clusters)
    else:
        part = _at_most(clusters, random.sample(range(len(clusters.rows)), len(clusters.rows)))
        if sample.categories is not None:
            rows, others = _within(sample, clusters.members(part), permutations, random)
        else:
            rows, others = _permutations(clusters, part, permutations, random)
    chosen = sample.rows(rows)
    scaled = scaling(chosen, sample.number_of_categories, "ranks", products=False, indicators=True)(chosen)
    place = {row: k for k, row in enumerate(rows)}
    assignments = [range(len(rows)), *([place[row] for row in other] for other in others)]
    p, each = combined(STATISTICS, evidence(scaled.x.scores, scaled.y.scores, assignments, random))
    names = (statistic.name for statistic in STATISTICS)
    return Tested(p, tuple(zip(names, each, strict=True)), len(rows))


def tested_given(sample: Sample, z: Array, draws: int, random: Random) -> Tested:
    """Probability of the products of residuals of x and y after regressions on z."""
    whole = sample.clusters
    chosen: Sequence[int] = range(len(whole.rows))
    if not whole.ordered:
        chosen = sorted(_at_most(whole, random.sample(chosen, len(chosen))))
    rows = sorted(whole.members(chosen))
    place = {row: k for k, row in enumerate(rows)}
    clusters = Clusters([[place[row] for row in whole.rows[c]] for c in chosen], whole.ordered)
    some = sample.rows(rows)
    left = residuals_of(some.x, some.y, namespace_of(z).take(z, indices(rows, z), axis=0), clusters, random)
    p, each = combined(RESIDUALS, residual_evidence(left, clusters, draws, random))
    names = (statistic.name for statistic in RESIDUALS)
    return Tested(p, tuple(zip(names, each, strict=True)), len(rows), sample.ungrouped and is_serial(left.x, left.y))


def _at_most(clusters: Clusters, part: Sequence[int]) -> list[int]:
    """First clusters of a part with at most `MOST_TESTED` rows, or one."""
    kept, rows = [part[0]], len(clusters.rows[part[0]])
    for c in part[1:]:
        rows += len(clusters.rows[c])
        if rows > MOST_TESTED:
            break
        kept.append(c)
    return kept


def _permutations(
    clusters: Clusters, part: Sequence[int], number: int, random: Random
) -> tuple[list[int], list[list[int]]]:
    """Rows of a part, and for each permutation the rows whose y is taken.

    Clusters of like sizes change places, cut to the smallest of them; what is cut off is not tested.
    """
    strata: list[list[int]] = []
    for c in sorted(part, key=lambda c: -len(clusters.rows[c])):
        last = strata[-1] if strata else []
        if not last or (len(last) >= STRATUM and len(clusters.rows[c]) < ALIKE * len(clusters.rows[last[0]])):
            strata.append([c])
        else:
            last.append(c)
    if len(strata) > 1 and len(strata[-1]) < STRATUM:
        strata[-2:] = [strata[-2] + strata[-1]]
    cut = [[clusters.rows[c][: len(clusters.rows[stratum[-1]])] for c in stratum] for stratum in strata]
    rows = [row for stratum in cut for each in stratum for row in each]
    return rows, [
        [row for stratum in cut for each in random.sample(stratum, len(stratum)) for row in each] for _ in range(number)
    ]


def _within(sample: Sample, rows: Sequence[int], number: int, random: Random) -> tuple[list[int], list[list[int]]]:
    """Rows of a part by category, and for each permutation the rows of the same categories whose y is taken."""
    strata = [[rows[k] for k in places] for places in by_label(sample.codes(rows))]
    return [row for stratum in strata for row in stratum], [
        [row for stratum in strata for row in random.sample(stratum, len(stratum))] for _ in range(number)
    ]


def _shifts(clusters: Clusters) -> tuple[list[int], list[list[int]]]:
    """Rows of a series, every so many of a long one, and the same shifted around by each other number of rows.

    Shifts that are short count, too: a series shifted by less than its memory is no independent assignment, but on a
    circle each shift has the same chance of the largest value. Without short shifts, the own one would win too often.
    """
    rows = clusters.members(range(len(clusters.rows)))
    rows = rows[:: -(-len(rows) // MOST_TESTED)]
    return rows, [rows[shift:] + rows[:shift] for shift in range(1, len(rows))]
