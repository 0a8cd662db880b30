"""Information given a third variable, and of many columns with correction for their number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._core.namespace import namespace_of
from .host import on_host
from .records import ResultRecord
from .result import MutualInformation
from .statistics import holm, p_value

__all__ = ["ColumnInformation", "ColumnTable", "ConditionalInformation", "by_column", "conditional"]


@dataclass(frozen=True, slots=True, eq=False)
class ConditionalInformation(ResultRecord):
    """Estimate of ``I(x; y | z) = I(x; y, z) - I(x; z)`` in nats, a difference of two bounds and no bound itself.

    It has no lower limit: what the critics miss of ``I(x; z)`` is added to it.

    Attributes
    ----------
    estimate, error : float
        Difference of the bounds and its standard error, as if they were independent. NaN if a flag withholds a bound.
    low, high : float
        Range from the low end of ``I(x; y, z)`` minus the high end of ``I(x; z)``, at least 0, to the high end of the
        first minus the lower limit of the second, if both learning curves go on as from N/2 to N. `low` is 0 and `high`
        is NaN where a flag withholds what they need.
    with_y, without_y : MutualInformation
        Estimates of ``I(x; y, z)`` and ``I(x; z)``, with the same folds.
    """

    estimate: float
    error: float
    low: float
    high: float
    with_y: MutualInformation
    without_y: MutualInformation

    def __repr__(self) -> str:
        """Readable summary."""
        flags = sorted({*self.with_y.flags, *self.without_y.flags})
        return "\n".join(
            [
                f"mutual information given a third variable, {self.with_y.settings.pairs} pairs, in nats",
                f"  estimate  {self.estimate:.3f} ± {self.error:.3f} (a difference of bounds: no bound)",
                f"  range     [{self.low:.3f}, {self.high:.3f}] if the curves go on as from N/2",
                f"  with y    {self.with_y.bound:.3f} ± {self.with_y.error:.3f}",
                f"  without   {self.without_y.bound:.3f} ± {self.without_y.error:.3f}",
                *(f"  {flag}" for flag in flags),
            ]
        )


def conditional(
    estimate: Callable[[Any, Any], MutualInformation], x: Any, y: Any, given: Any
) -> ConditionalInformation:
    """Difference of two estimates, of x with y and z, and of x with z."""
    y, given = on_host("y", y), on_host("given", given)
    if given.shape[0] != y.shape[0]:
        raise ValueError(f"given: expected {y.shape[0]} rows, as in y, got {given.shape[0]}")
    xp = namespace_of(y)
    if not bool(xp.all(xp.isfinite(given))):
        raise ValueError("given: expected finite numbers, got some that are infinite; leave these rows out")
    both = xp.concat([y, given], axis=1)
    first, second = estimate(x, both), estimate(x, given)
    known = not (math.isnan(first.lower) or math.isnan(second.lower))
    value = first.bound - second.bound if known else math.nan
    error = math.hypot(first.error, second.error) if known else math.nan
    low = first.low - second.high
    high = first.high - max(second.lower, 0.0)
    return ConditionalInformation(value, error, 0.0 if math.isnan(low) else max(low, 0.0), high, first, second)


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
    x = on_host("x", x)
    labels = [str(k) for k in range(x.shape[1])] if names is None else [str(name) for name in names]
    if len(labels) != x.shape[1]:
        raise ValueError(f"names: expected a name of each of the {x.shape[1]} columns, got {len(labels)}")
    found = [estimate(x[:, k], y) for k in range(x.shape[1])]
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
