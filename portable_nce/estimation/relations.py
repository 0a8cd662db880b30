"""Information given a third variable, and of many columns with correction for their number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._core.namespace import namespace_of
from .._core.protocol import Array
from .host import array_of, on_host
from .records import ResultRecord
from .result import FLAGS, MutualInformation
from .sample import entered
from .statistics import SLOWEST, holm, p_value, quantile

__all__ = ["ColumnInformation", "ColumnTable", "ConditionalInformation", "by_column", "conditional", "third_numbers"]

LEVEL = 0.05
"""Probability above which nothing was found."""
MUCH = math.log(2.0)
"""Nats that a third variable tells of x, above which what critics miss of them may be most of an estimate."""
MEANINGS = FLAGS | {
    "nothing found": "the test of independence given the third variable has p above 5 %",
    "biased upwards": "the third variable tells much of x: what critics miss of it counts as information of y",
}
"""Meanings of the flags."""
DIFFERENCE = (
    "The mutual information given the third variable z is the difference of that of x with y and z and of x with z, "
    "with the same folds; what critics miss of the second is added to it, so it has no lower limit."
)
"""How the estimate is made."""
TEST = (
    DIFFERENCE + " The test: x and y were regressed on z by kernels, each row by a regression without it, and the "
    "products of residuals, of their squares, and of residuals and z were compared with random multiples of them (Shah "
    "and Peters 2020, The hardness of conditional independence testing and the generalised covariance measure, Annals "
    "of Statistics 48, 1514-1538)."
)
"""How the estimate and the test are made."""


@dataclass(frozen=True, slots=True, eq=False)
class ConditionalInformation(ResultRecord):
    """Estimate of ``I(x; y | z) = I(x; y, z) - I(x; z)`` in nats, a difference of two bounds and no bound itself.

    It has no lower limit: what the critics miss of ``I(x; z)`` is added to it. `p` shows whether there is anything.

    Attributes
    ----------
    p : float
        Probability of `independence_test` given z; NaN if there are too few groups or blocks for it, or a flag says
        that the rows are not what it assumes.
    estimate : float
        Difference of the estimates; NaN if there is a flag.
    low, high : float
        Range from the low end of ``I(x; y, z)`` minus the high end of ``I(x; z)``, at least 0, to the high end of the
        first minus the lower limit of the second, if both learning curves go on as from N/2 to N. `low` is 0 and `high`
        is NaN where a flag of either withholds what they need.
    flags : tuple of str
        Flags of either estimate that withhold `estimate`, "nothing found" if p is above 5 %, and "biased upwards" if z
        tells more of x than y does given z, and more than log 2 nats.
    with_y, without_y : MutualInformation
        Estimates of ``I(x; y, z)`` and ``I(x; z)``, with the same folds.
    """

    p: float
    estimate: float
    low: float
    high: float
    flags: tuple[str, ...]
    with_y: MutualInformation
    without_y: MutualInformation

    @property
    def local(self) -> tuple[float, ...]:
        """Difference (N,) of the terms of each pair in both bounds: its pointwise information given z, in nats."""
        return tuple(a - b for a, b in zip(self.with_y.local, self.without_y.local, strict=True))

    def __repr__(self) -> str:
        """Readable summary."""
        lines = [f"mutual information given a third variable, {self.with_y.settings.pairs} pairs, in nats"]
        if not math.isnan(self.p):
            lines.append(f"  p         {self.p:.3g} (independent given the third variable)")
        if not math.isnan(self.estimate):
            lines.append(f"  estimate  {self.estimate:.3f} (a difference of estimates: no bound)")
        if not math.isnan(self.high):
            lines.append(f"  range     [{self.low:.3f}, {self.high:.3f}] if the curves go on as from N/2")
        elif self.low > 0.0:
            lines.append(f"  range     from {self.low:.3f} on, if the curves go on as from N/2")
        return "\n".join(
            [
                *lines,
                f"  with y    {self.with_y.bound:.3f} ± {self.with_y.error:.3f} (bound of x with y and z)",
                f"  without   {self.without_y.bound:.3f} ± {self.without_y.error:.3f} (bound of x with z)",
                *(f"  {flag}: {MEANINGS[flag]}" for flag in self.flags),
            ]
        )

    def sentence(self) -> str:
        """One sentence for a paper: test, estimate and range, pairs, version and seed."""
        made = self.with_y.settings
        seed = "" if made.seed is None else f", seed {made.seed}"
        notes = "".join(f"; {flag}" for flag in self.flags)
        return (
            f"{self._test()} {self._range()} ({made.described()}; differences of InfoNCE of held-out pairs, "
            f"{made.splits} x {made.folds} folds, portable_nce {made.version}{seed}{notes})."
        )

    def _test(self) -> str:
        if math.isnan(self.p):
            return "Independence given the third variable was not tested;"
        return f"Given the third variable, independence has p = {self.p:.2g} (products of residuals);"

    def _range(self) -> str:
        if math.isnan(self.estimate):
            known = f"at most about {self.high:.3f} nats" if not math.isnan(self.high) else "not estimated"
            return f"the mutual information given it is {known}"
        return (
            f"the mutual information given it is about {self.estimate:.3f} nats, in the range from {self.low:.3f} to "
            f"{self.high:.3f} nats if the learning curves go on, which is no confidence interval"
        )

    def report(self) -> str:
        """Paragraph for the methods section of a paper, about both estimates and the test, in nats."""
        apart = [
            f"For {name}: {found.report()}"
            for name, found in (("x with y and z", self.with_y), ("x with z", self.without_y))
        ]
        return "\n\n".join([self.sentence(), TEST if not math.isnan(self.p) else DIFFERENCE, *apart])


def third_numbers(given: Any, y: Any) -> Array:
    """Finite matrix of a third variable, with as many rows as y."""
    y, given = on_host("y", y), entered("given", given)
    if given.shape[0] != y.shape[0]:
        raise ValueError(f"given: expected {y.shape[0]} rows, as in y, got {given.shape[0]}")
    return given


def conditional(
    estimate: Callable[[Any, Any], MutualInformation],
    test: Callable[[], float],
    x: Any,
    y: Any,
    given: Any,
) -> ConditionalInformation:
    """Difference of two estimates, of x with y and z and of x with z, and the probability of a test given z."""
    given = third_numbers(given, y)
    first = estimate(x, namespace_of(given).concat([on_host("y", y), given], axis=1))
    second = estimate(x, given)
    known = not (math.isnan(first.lower) or math.isnan(second.lower))
    p = test() if known else math.nan
    flags = [flag for flag in dict.fromkeys((*first.flags, *second.flags)) if flag != "nothing found"]
    value = _likely(first) - _likely(second)
    if known and second.bound > max(value, MUCH):
        flags.append("biased upwards")
    if p > LEVEL:
        flags.append("nothing found")
    low = max(first.lower - _highest(second), 0.0) if known else 0.0
    high = first.high - max(second.lower, 0.0)
    shown = math.nan if flags else max(value, low)
    return ConditionalInformation(p, shown, low, high, tuple(flags), first, second)


def _likely(found: MutualInformation) -> float:
    """Estimate, or the bound if nothing was found."""
    return found.bound if math.isnan(found.estimate) else found.estimate


def _highest(found: MutualInformation) -> float:
    """High end of a range, also of one that a flag withholds, by the learning curve."""
    if not math.isnan(found.high):
        return found.high
    (_, half, of_half), (_, whole, of_whole) = found.curve[-2:]
    error = math.hypot((1.0 + SLOWEST) * of_whole, SLOWEST * of_half)
    return whole + SLOWEST * max(whole - half, 0.0) + quantile(math.inf) * error


@dataclass(frozen=True, slots=True, eq=False)
class ColumnInformation(ResultRecord):
    """Information of one column of x about y.

    Attributes
    ----------
    name : str
        Name or number of the column.
    p, corrected : float
        Probability of such a bound if there is no information, and the same with Holm's correction; NaN if withheld.
    result : MutualInformation
        The estimate.
    """

    name: str
    p: float
    corrected: float
    result: MutualInformation


class ColumnTable(tuple[ColumnInformation, ...]):
    """Rows of `by_column`, with a readable `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Table of the columns."""
        width = max(len(row.name) for row in self)
        head = f"{'column':<{max(width, 6)}}   lower   bound   error       p  p (Holm)  flags"
        return "\n".join(
            [head]
            + [
                f"{row.name:<{max(width, 6)}}  {row.result.lower:6.3f}  {row.result.bound:6.3f}  "
                f"{row.result.error:6.3f}  {row.p:6.4f}    {row.corrected:6.4f}  {', '.join(row.result.flags)}".rstrip()
                for row in self
            ]
        )


def by_column(
    estimate: Callable[[Any, Any], MutualInformation], x: Any, y: Any, names: Sequence[str] | None
) -> ColumnTable:
    """Estimates of each column of x with y, and probabilities corrected for the number of columns."""
    x = array_of("x", x)
    columns = [x] if len(x.shape) == 1 else [x[:, k : k + 1] for k in range(x.shape[1])]
    labels = [str(k) for k in range(len(columns))] if names is None else [str(name) for name in names]
    if len(labels) != len(columns):
        raise ValueError(f"names: expected a name of each of the {len(columns)} columns, got {len(labels)}")
    found = [estimate(column, y) for column in columns]
    withheld = [math.isnan(result.lower) for result in found]
    each = [
        1.0 if gone else p_value(result.bound, result.error, result.settings.groups - result.settings.folds)
        for result, gone in zip(found, withheld, strict=True)
    ]
    rows = zip(labels, each, holm(each), found, withheld, strict=True)
    return ColumnTable(
        ColumnInformation(name, *((math.nan, math.nan) if gone else (p, corrected)), result)
        for name, p, corrected, result, gone in rows
    )
