"""Result of an estimate: numbers that may be reported, flags, and how they were made."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .display import draw
from .records import ResultRecord
from .texts import Units, report, sentence

__all__ = ["FLAGS", "WITHHOLDING", "MutualInformation", "Settings"]

FLAGS = {
    "too few pairs": "fewer than 10 independent rows or groups of equal size: add groups, or groups=range(N) for draws",
    "one group dominates": "a group has half of the rows: add groups, or pass groups=range(N) if its rows are draws",
    "serial dependence": "neighbouring rows are alike in x and in y: pass order= for a series, or groups=",
    "null above zero": "y shifted along x seems to know x: pass groups= or order=",
    "near copies": "rows seem to be noisy copies of others: pass groups=, labels of originals, or range(N) for draws",
    "repeated rows": "equal rows were counted once: leave copies out, or pass groups=range(N) if they are draws",
    "many categories": "each of more than 20 categories may mean anything: pass floats if they have an order, or merge",
    "at the ceiling": "more pairs would show more: read `lower` alone",
    "nothing found": "the bound is within two errors of 0: little dependence, or one that these critics do not find",
    "still growing": "half of the pairs show much less: read `lower` alone",
    "not converged": "the training used all steps: pass a larger steps= (--steps)",
}
"""Flags and their meanings."""

WITHHOLDING = {"too few pairs", "one group dominates", "serial dependence", "null above zero", "near copies"}
"""Flags that rule out `lower`, too."""


@dataclass(frozen=True, slots=True)
class Settings(ResultRecord):
    """How an estimate was made.

    Attributes
    ----------
    pairs, groups : int
        Number of rows, and of groups of rows that were never divided.
    folds, splits : int
        Number of folds, and of random divisions into folds whose bounds were averaged.
    unit : {"pairs", "groups", "groups of equal rows", "blocks"}
        What counts as one independent draw: rows, the groups of `groups=`, equal rows, or blocks of a series.
    critic : str
        Kinds of critics, and the number of reports by each.
    transform : str
        Inputs of the critics.
    networks, steps, batch : int
        Options of the training.
    exceptions : float
        Share of pairs that the loss expects to be anything.
    seed : int or None
        Seed of the random numbers; None if a `random.Random` was passed.
    version, library : str
        Version of this package, and name and version of the library that computed.
    categories : int
        Number of categories of `given=`, 0 without it.
    columns, inputs : (int, int)
        Numbers of columns of x and of y, and the same after categories have become indicators.
    block : int
        Most rows of a block of a series, 0 without `order=`.
    """

    pairs: int
    groups: int
    folds: int
    splits: int
    unit: str
    critic: str
    transform: str
    networks: int
    steps: int
    batch: int
    exceptions: float
    seed: int | None
    version: str
    library: str
    categories: int = 0
    columns: tuple[int, int] = (0, 0)
    inputs: tuple[int, int] = (0, 0)
    block: int = 0

    def quantity(self) -> str:
        """Mutual information, and how many categories it is given."""
        return "mutual information" + (f" given {self.categories} categories" if self.categories else "")

    def described(self) -> str:
        """Number of pairs, and of the groups or blocks that they are in."""
        return f"{self.pairs} pairs" + ("" if self.unit == "pairs" else f" in {self.groups} {self.unit}")


@dataclass(frozen=True, slots=True, eq=False)
class MutualInformation(ResultRecord):
    """Estimate of mutual information in nats.

    Attributes
    ----------
    lower : float
        Exceeds the mutual information with a probability of at most 5 % for independent rows, also if there are
        exceptions that the sample does not have; for groups, as far as the mean of groups is about normal.
    estimate, low, high : float
        The bound extrapolated to more pairs, and a range, if the learning curve goes on as from N/2 to N. No method
        has an upper limit that holds for all distributions.
    bound, error : float
        InfoNCE of the held-out pairs, a lower bound in expectation, and its standard error.
    ceiling : float
        Logarithm of the number of held-out pairs of a fold, the largest possible bound; given categories, the mean
        logarithm of the numbers of pairs of each.
    null : float
        The bound after shifting the rows of y against x by at least a quarter of the rows.
    curve : tuple of (int, float, float)
        Numbers of pairs N/4 (if at least 100), N/2 and N, with the bound and the standard error of each.
    flags : tuple of str
        Warnings, with their meanings in the `repr`. Values invalidated by a flag are NaN.
    settings : Settings
        Numbers of rows and groups, options, seed and version.
    influences : tuple of (label, float)
        Influence on the bound of each independent row, group or block, named by its first row or by its group's label.
    local : tuple of float, (N,)
        Term of each pair in the bound, their mean: its pointwise mutual information ``log p(y | x) / p(y)`` by critics
        that have not seen it, between log(3/N) and the ceiling. A single term is noisy; means of many rows are not.
    """

    lower: float
    estimate: float
    low: float
    high: float
    bound: float
    error: float
    ceiling: float
    null: float
    curve: tuple[tuple[int, float, float], ...]
    flags: tuple[str, ...]
    settings: Settings
    influences: tuple[tuple[Hashable, float], ...] = ()
    local: tuple[float, ...] = ()

    def __repr__(self) -> str:
        """Readable summary."""
        lines = [
            f"{self.settings.quantity()} of {self.settings.pairs} pairs, in nats",
            f"  at least  {self.lower:.3f}  (95 %{_bits(self.lower)})",
        ]
        if not math.isnan(self.estimate):
            lines.append(
                f"  estimate  {self.estimate:.3f}  [{self.low:.3f}, {self.high:.3f}] if the curve goes on as from N/2"
            )
        lines += [
            f"  bound     {self.bound:.3f} ± {self.error:.3f}, at most {self.ceiling:.2f}",
            f"  null      {self.null:.3f}",
            "  curve     " + ", ".join(f"{value:.3f} of {count}" for count, value, _ in self.curve),
            *(f"  {flag}: {FLAGS[flag]}" for flag in self.flags),
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Fields by name, but `influences` and `local`, and those of `settings`, as JSON takes them: None for NaN."""
        known = ResultRecord.to_dict(
            self
        )  # super() fails in a class with slots: github.com/python/cpython/issues/90562
        del known["influences"], known["local"]  # as many as rows
        return known

    def sentence(self, *, short: bool = False) -> str:
        """One sentence for a paper: number, confidence, pairs, critic, version and seed; if short, number and pairs."""
        return sentence(self, WITHHOLDING, short=short)

    def report(self, *, units: Units = "nats") -> str:
        """Paragraph for the methods section of a paper, with its references; numbers in nats or bits."""
        return report(self, units, WITHHOLDING, FLAGS)

    def plot(self, axes: Any = None) -> Any:
        """Draw the learning curve, the extrapolation, the ceiling and the flags with Matplotlib; return the axes."""
        return draw(self, axes)


def _bits(nats: float) -> str:
    return "" if math.isnan(nats) else f"; {nats / math.log(2.0):.3f} bits"
