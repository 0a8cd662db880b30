"""A test of independence: critics of earlier parts of the pairs, and permutations of the next part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from .._core.namespace import namespace_of
from .._core.protocol import Array
from .categories import PairedRows
from .critics import gaussian, mean_loss, row_losses
from .features import canonical, indices
from .folds import Clusters, by_label
from .kernels import fitted_kernels
from .models import scaling, spaces_of
from .records import ResultRecord
from .result import FLAGS, WITHHOLDING
from .sample import Sample
from .training import RIDGES, SHRINKING

__all__ = ["LEAST_CLUSTERS", "IndependenceTest", "fisher", "tested"]

SHARES = (0.4, 0.7, 1.0)
"""Ends of the parts: the first trains alone, the others are tested by critics of all pairs before them."""
LEAST_CLUSTERS = 20
"""Fewest groups, so that a tested part has at least six."""
KEPT = 0.1
"""Least share of squared correlations that shrinking leaves: scores of 0 would tell nothing."""
STRATUM, ALIKE = 6, 0.7
"""Fewest groups that are permuted among themselves, and the least size of a group relative to the largest."""
MOST_FITTED, MOST_TESTED = 1000, 1000
"""Pairs that kernels are fitted to, and pairs of a part that are tested: more of them show what these show."""
CHUNK = 2**21
"""Numbers held at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class IndependenceTest(ResultRecord):
    """Test of the independence of two arrays.

    Attributes
    ----------
    p : float
        Probability of at least this evidence if the arrays are independent; NaN if a flag says that the rows are not
        what the test assumes.
    parts : tuple of (int, int, float)
        Of each tested part: pairs that its critic was fitted to, pairs tested, and its own probability.
    pairs, groups : int
        Numbers of rows, and of groups of rows that were permuted as a whole; of a series, blocks.
    flags : tuple of str
        Signs of rows that are no independent draws, with their meanings in the `repr`.
    permutations : int or None
        Number of permutations of each part; None for a series, whose shifts are all taken.
    seed : int or None
        Seed of the random numbers; None if a `random.Random` was passed.
    version : str
        Version of this package.
    categories : int
        Number of categories of `given=`, 0 without it.
    """

    p: float
    parts: tuple[tuple[int, int, float], ...]
    pairs: int
    groups: int
    flags: tuple[str, ...]
    permutations: int | None
    seed: int | None
    version: str
    categories: int = 0

    def __repr__(self) -> str:
        """Readable summary."""
        lines = [f"test of independence{self._given()} of {self.pairs} pairs", f"  p  {self.p:.4g}"]
        lines += [f"     {p:.4g} of {some} pairs, by a critic of {before}" for before, some, p in self.parts]
        return "\n".join([*lines, *(f"  {flag}: {FLAGS[flag]}" for flag in self.flags)])

    def _given(self) -> str:
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
        return (
            f"Independence{given}: p = {self.p:.2g} ({units}; rank of held-out pairs among {others}, under "
            f"critics of the pairs before, {len(self.parts)} parts combined by Fisher's method, portable_nce "
            f"{self.version}{seed})."
        )


def tested(sample: Sample, permutations: int, random: Random) -> list[tuple[int, int, float]]:
    """Numbers of pairs that each critic was fitted to and that were tested, and their probability.

    Given the pairs before it, each part's rank among its permutations is uniform or larger if x and y are independent.
    So the probabilities of the parts count as independent.
    """
    clusters = sample.clusters
    parts = _divided(clusters, random)
    found: list[tuple[int, int, float]] = []
    for number in range(1, len(parts)):
        before = [c for part in parts[:number] for c in part]
        if clusters.ordered:
            before = before[:-1]  # a block between training and test
        scores = _critic(sample, clusters.members(before), random)
        part = _at_most(clusters, parts[number])
        if clusters.ordered:
            rows, others = _shifts(clusters, part)
        elif sample.categories is not None:
            rows, others = _within(sample, clusters.members(part), permutations, random)
        else:
            rows, others = _permutations(clusters, part, permutations, random)
        found.append((len(clusters.members(before)), len(rows), _rank(scores, sample, rows, others)))
    return found


def fisher(probabilities: Sequence[float]) -> float:
    """Probability of a product of independent uniform numbers at most that of these."""
    evidence = -math.fsum(math.log(p) for p in probabilities)
    terms, term = [1.0], 1.0
    for k in range(1, len(probabilities)):
        term *= evidence / k
        terms.append(term)
    return min(1.0, math.exp(-evidence) * math.fsum(terms))


def _divided(clusters: Clusters, random: Random) -> list[list[int]]:
    """Parts of about these shares of the rows: of random clusters, or in the order of a series."""
    count = len(clusters.rows)
    order = list(range(count)) if clusters.ordered else random.sample(range(count), count)
    total, done = sum(len(rows) for rows in clusters.rows), 0
    parts: list[list[int]] = [[] for _ in SHARES]
    for c in order:
        size = len(clusters.rows[c])
        place = next((k for k, share in enumerate(SHARES) if done + 0.5 * size <= share * total), len(SHARES) - 1)
        parts[place].append(c)
        done += size
    return parts


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


def _shifts(clusters: Clusters, part: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Rows of a part of a series, and the same shifted around by each number of rows from a block on."""
    rows = clusters.members(part)
    block = max(len(clusters.rows[c]) for c in part)
    return rows, [rows[shift:] + rows[:shift] for shift in range(block, len(rows) - block + 1)]


def _critic(sample: Sample, rows: Sequence[int], random: Random) -> Callable[[PairedRows], list[Array]]:
    """Score matrices of Gaussians and of kernels, both in closed form, fitted to some rows."""
    xp = namespace_of(sample.x)
    ordered = sample.clusters.ordered
    chosen = list(rows) if ordered else random.sample(rows, len(rows))
    cut = max(2, len(chosen) // 4)
    train, stop = sample.rows(chosen[cut:]), sample.rows(chosen[:cut])
    scaled = scaling(train, sample.number_of_categories, "ranks", products=True, indicators=True)
    both = scaled(train), scaled(stop)
    starts = []
    for analysis in canonical(both[0].x.coordinates, both[0].y.coordinates, RIDGES):
        for multiple in SHRINKING:
            shrunk = analysis.shrunk(multiple)
            starts.append(shrunk._replace(squares=xp.maximum(shrunk.squares, KEPT * analysis.shrunk(0.0).squares)))
    exceptions, same = 3.0 / sample.pairs, both[1].same_category()
    start = min(starts, key=lambda s: mean_loss(gaussian(s.squares, s.applied(both[1])), exceptions, same))
    of_train, of_stop = (start.applied(pairs) for pairs in both)
    last, centres = (
        pairs.select(range(max(0, pairs.number - MOST_FITTED), pairs.number))
        for pairs in (of_train, of_stop.joined(of_train))
    )
    kernels = fitted_kernels(last, spaces_of(last)).with_centres(centres)

    def found(rows: PairedRows) -> list[Array]:
        pairs = start.applied(scaled(rows))
        exceptions, same = 3.0 / sample.pairs, pairs.same_category()
        result = []
        for scores in (gaussian(start.squares, pairs), kernels.scores(pairs, pairs)):
            losses = row_losses(scores, exceptions, same=same)
            even = exceptions / (losses.counts if same is None else losses.counts[:, None])
            result.append(xp.log((1.0 - exceptions) * losses.softmax + even))
        return result

    return found


def _rank(
    critic: Callable[[PairedRows], list[Array]], sample: Sample, rows: Sequence[int], others: Sequence[Sequence[int]]
) -> float:
    """Share of the permutations with at least the bound of the pairs, which count as one of them."""
    xp, count = namespace_of(sample.x), len(rows)
    chosen_rows = sample.rows(rows)
    total = xp.zeros_like(chosen_rows.x[:, :1])
    for values in critic(chosen_rows):
        total = total + values
    flat = xp.reshape(total, (-1,))
    place = {row: k for k, row in enumerate(rows)}
    own = float(xp.sum(xp.take(flat, indices((k * count + k for k in range(count)), flat))))
    above, step = 0, max(1, CHUNK // count)
    for start in range(0, len(others), step):
        some = others[start : start + step]
        chosen = [k * count + place[row] for other in some for k, row in enumerate(other)]
        sums = xp.sum(xp.reshape(xp.take(flat, indices(chosen, flat)), (len(some), count)), axis=1)
        above += int(xp.sum(xp.astype(sums >= own - 1e-9 * (1.0 + abs(own)), xp.int32)))
    return (1 + above) / (1 + len(others))
