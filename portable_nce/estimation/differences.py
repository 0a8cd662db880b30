"""Difference of the mutual information of two results."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .._core.checks import check_bool
from .records import ResultRecord
from .result import MutualInformation
from .statistics import quantile

__all__ = ["InformationDifference", "difference"]

TRAINING = 0.5
"""Deviation of a bound of one split over divisions of the same rows, relative to its error; seen were 0.3 to 0.6."""


@dataclass(frozen=True, slots=True, eq=False)
class InformationDifference(ResultRecord):
    """Difference of two estimates of mutual information in nats.

    Attributes
    ----------
    estimate, low, high : float
        Difference of the estimates, and an interval of nominally 90 %, if both learning curves go on as from N/2 to N;
        NaN if a flag withholds the range of either.
    bound, error : float
        Difference of the bounds, of what critics found, and its standard error; NaN if a flag withholds either limit.
    correlation : float
        Correlation of the errors of the two bounds by their rows; 0 for independent samples.
    flags : tuple of str
        Flags of either result.
    """

    estimate: float
    low: float
    high: float
    bound: float
    error: float
    correlation: float
    flags: tuple[str, ...]

    def __repr__(self) -> str:
        """Readable summary."""
        lines = ["difference of mutual information, in nats"]
        if not math.isnan(self.estimate):
            lines.append(
                f"  estimate  {self.estimate:.3f}  [{self.low:.3f}, {self.high:.3f}] if the curves go on as from N/2"
            )
        lines.append(f"  bounds    {self.bound:.3f} ± {self.error:.3f}, correlation {self.correlation:.2f}")
        return "\n".join([*lines, *(f"  {flag}" for flag in self.flags)])


def difference(first: MutualInformation, second: MutualInformation, /, *, paired: bool) -> InformationDifference:
    r"""Return the difference of the mutual information of two results, with an interval.

    With estimates a, b, their ranges [l, u], and the correlation r of the errors of the bounds (0 unless `paired`), the
    low end is

    .. math:: a - b - \sqrt{(a - l_a)^2 + (u_b - b)^2 - 2 r (a - l_a)(u_b - b)} ,

    and the high end likewise with the other ends. Two lower limits alone tell nothing about a difference: the result
    with the larger limit may be that with less information.

    With different seeds, only the rows are shared, not divisions and training: the correlation is that of the standard
    errors alone, and both bounds have a deviation of half of theirs, for one split, besides. The same `rng` gives
    shorter intervals.

    Parameters
    ----------
    first, second : MutualInformation
        Results to compare, with the same options.
    paired : bool
        Whether both are of the same rows, or of groups with the same labels: a subject in two conditions, or two
        columns of one table. False for independent samples.

    Returns
    -------
    InformationDifference
        Record in nats, with a readable `repr`.

    Raises
    ------
    TypeError
        If an argument is no `MutualInformation`, or `paired` is no truth value.
    ValueError
        If `paired` and the rows or groups differ, or one result is given categories and the other is not.

    References
    ----------
    Zou and Donner (2008), "Construction of confidence limits about effect measures: a general approach", Statistics in
    Medicine 27, 1693-1702; with a correlation, Zou (2007), "Toward using confidence intervals to compare correlations",
    Psychological Methods 12, 399-413.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, first, second = np.random.default_rng(0).normal(size=(3, 200))
    >>> clear, noisy = (
    ...     pnce.estimation.mutual_information(x, x + noise, rng=0, splits=1) for noise in (0.3 * first, second)
    ... )
    >>> pnce.estimation.difference(clear, noisy, paired=True).low > 0
    True
    """
    paired = check_bool("paired", paired)
    for name, result in (("first", first), ("second", second)):
        if not isinstance(result, MutualInformation):
            raise TypeError(
                f"{name}: expected a result of mutual_information with a limit, got {type(result).__name__}"
            )
    if bool(first.settings.categories) != bool(second.settings.categories):
        raise ValueError("second: expected both results with given= or both without, got one of each")
    r = _correlation(first, second) if paired else 0.0
    a, b = first, second

    alike = not paired or _are_divided_alike(a, b)
    trained = 0.0 if alike else TRAINING**2 * sum(each.error**2 / each.settings.splits for each in (a, b))
    z = quantile(math.inf)

    def apart(of_a: float, of_b: float, deviations: float) -> float:
        """Width from both widths, of so many deviations as far as they are of the rows."""
        shared = of_a * of_b
        if not alike:
            shared = min(of_a, deviations * a.error) * min(of_b, deviations * b.error)
        return math.sqrt(max(of_a * of_a + of_b * of_b - 2.0 * r * shared + deviations**2 * trained, 0.0))

    estimate = a.estimate - b.estimate
    low = estimate - apart(a.estimate - a.low, b.high - b.estimate, z)
    high = estimate + apart(a.high - a.estimate, b.estimate - b.low, z)
    withheld = math.isnan(a.lower) or math.isnan(b.lower)
    bound, error = (math.nan, math.nan) if withheld else (a.bound - b.bound, apart(a.error, b.error, 1.0))
    return InformationDifference(estimate, low, high, bound, error, r, tuple(dict.fromkeys((*a.flags, *b.flags))))


def _are_divided_alike(first: MutualInformation, second: MutualInformation) -> bool:
    """Whether the same seed divided the rows, and started the training."""
    a, b = first.settings, second.settings
    return a.seed is not None and (a.seed, a.folds, a.splits) == (b.seed, b.folds, b.splits)


def _correlation(first: MutualInformation, second: MutualInformation) -> float:
    """Correlation of the influences of the same rows or groups on two bounds."""
    of_first, of_second = dict(first.influences), dict(second.influences)
    if of_first.keys() != of_second.keys():
        common = len(of_first.keys() & of_second.keys())
        raise ValueError(
            f"paired: expected results of the same rows, or groups of the same labels, got {len(of_first)} and "
            f"{len(of_second)}, of which {common} are the same; leave out rows or groups that one of them lacks"
        )
    products = [
        math.fsum(u[k] * v[k] for k in of_first)
        for u, v in ((of_first, of_second), (of_first, of_first), (of_second, of_second))
    ]
    size = math.sqrt(products[1] * products[2])
    return products[0] / size if size > 0.0 else 0.0
