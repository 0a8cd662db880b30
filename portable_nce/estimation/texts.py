"""Texts about results: a paragraph for the methods section of a paper, and a table of several results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from .._core.checks import check_choice
from .records import ResultRecord
from .statistics import p_value

if TYPE_CHECKING:
    from .result import MutualInformation, Settings

__all__ = ["ResultTable", "TableRow", "Units", "report", "sentence", "table"]

Units: TypeAlias = Literal["nats", "bits"]

SIZES = {"nats": 1.0, "bits": math.log(2.0)}
"""Nats of each unit."""
OF_CATEGORIES = (
    "Each pair was compared with pairs of its own category, values were centred and scaled by category among the "
    "training pairs, and the shares of the categories count as drawn."
)
"""What is done with categories of a third variable."""
SOURCES = (
    "Chernozhukov et al. (2018), Double/debiased machine learning, The Econometrics Journal 21, C1-C68.",
    (
        "Gaffke (2005), Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative "
        "variable, Mathematical Methods of Statistics 14, 451-467."
    ),
    "van den Oord et al. (2018), Representation learning with contrastive predictive coding, arXiv:1807.03748.",
)
"""References of a report."""


def sentence(result: MutualInformation, withholding: set[str], *, short: bool) -> str:
    """Limit, or why there is none, with what it was made of."""
    made = result.settings
    how = (
        f"InfoNCE of held-out pairs, {made.critic}, {made.splits} x {made.folds} folds, portable_nce {made.version}"
        + ("" if made.seed is None else f", seed {made.seed}")
    )
    notes = "".join(f"; {flag}" for flag in result.flags if flag not in withholding)
    reasons = ", ".join(flag for flag in result.flags if flag in withholding)
    kept = f"N = {made.pairs}" if short else f"{made.described()}; {how}"
    if math.isnan(result.lower):
        return f"No lower limit of the {made.quantity()} can be given ({reasons}; {kept})."
    if result.lower <= 0.0:
        return f"No {made.quantity()} was shown: its lower limit (95 %) is below 0 ({kept}{'' if short else notes})."
    bits = result.lower / math.log(2.0)
    if short:
        return f"The {made.quantity()} is at least {result.lower:.2f} nats ({bits:.2f} bits; 95 %, {kept})."
    return (
        f"The {made.quantity()} is at least {result.lower:.3f} nats ({bits:.3f} bits) with 95 % confidence "
        f"({kept}{notes})."
    )


def report(result: MutualInformation, units: Units, withholding: set[str], meanings: Mapping[str, str]) -> str:
    """Paragraph and references; flags of `withholding` rule out the limit, all flags the range."""
    check_choice("units", units, SIZES)
    made, unit = result.settings, result.settings.unit.partition("s")[0]
    inside = " within each category" if made.categories else ""

    def number(value: float) -> str:
        return f"{value / SIZES[units]:.3f}"

    seed = "" if made.seed is None else f", seed {made.seed}"
    divisions = f" in each of {made.splits} divisions" if made.splits > 1 else ""
    sentences = (
        (
            f"The {made.quantity()} of {made.described()} was estimated by InfoNCE (van den Oord et al. 2018) with "
            f"portable_nce {made.version} ({made.library}{seed}). {_of_columns(made)}"
        ),
        _of_independence(made),
        _of_critics(made),
        (
            f"Each {unit} was evaluated once{divisions}, in {made.folds} folds, by critics fitted to others "
            f"(Chernozhukov et al. 2018){', and bounds were averaged' if made.splits > 1 else ''}."
        ),
        (
            f"The bound on held-out pairs was {number(result.bound)} ± {number(result.error)} {units} (standard error "
            f"by the influence of each {unit}), where at most {number(result.ceiling)} {units} could have been found."
        ),
        *([OF_CATEGORIES] if made.categories else []),
        _of_limit(result, units, number, {flag: meanings[flag] for flag in result.flags if flag in withholding}),
        _of_range(result, units, number, meanings),
        f"With y shifted against x{inside}, the bound was {number(result.null)} {units}.",
    )
    sources = [SOURCES[0], *([SOURCES[1]] if "Gaffke" in " ".join(sentences) else []), SOURCES[2]]
    return "\n\n".join([" ".join(sentences), "\n".join(sources)])


def _of_critics(made: Settings) -> str:
    inputs = "normal scores of ranks" if made.transform == "ranks" else "standardised values"
    training = "" if made.critic.startswith("own") else f", {made.networks} network{'s' * (made.networks > 1)} per fold"
    return (
        f"Critics ({made.critic}{training}, at most {made.steps} training steps with {made.batch} pairs each) saw "
        f"{inputs} among the training pairs, and separate pairs chose among them; the loss allowed for a share of "
        f"{made.exceptions:.2g} of exceptions."
    )


def _of_columns(made: Settings) -> str:
    each = [
        f"{name} has {columns} column{'s' * (columns > 1)}"
        + (f", given as {inputs} with an indicator of each value of categories" if inputs != columns else "")
        for name, columns, inputs in zip("xy", made.columns, made.inputs, strict=True)
    ]
    return f"{each[0][0].upper()}{each[0][1:]}; {each[1]}."


def _of_independence(made: Settings) -> str:
    """What has to be independent, the one condition of the limit."""
    if made.unit == "pairs":
        return "Pairs have to be independent draws."
    if made.unit == "blocks":
        return (
            f"Blocks of up to {made.block} consecutive rows, at least a correlation time, count as independent draws; "
            f"a block between training and report was left out."
        )
    return f"{made.unit.capitalize()} have to be independent draws, rows of a group do not; no group was divided."


def _of_limit(result: MutualInformation, units: str, number: Callable[[float], str], reasons: Mapping[str, str]) -> str:
    if math.isnan(result.lower):
        return f"No lower limit is given ({'; '.join(_statement(meaning) for meaning in reasons.values())})."
    made = result.settings
    how = (
        "95 % confidence (one-sided; the larger of Student's margin and that of Gaffke (2005), which allows for pairs "
        "that the sample does not have)"
    )
    if result.lower <= 0.0:
        p = p_value(result.bound, result.error, made.groups - made.folds)
        return (
            f"No mutual information was shown: its lower limit is below 0 with {how}, and the bound has p = {p:.2g} by "
            f"its standard error. A test of independence asks whether there is any."
        )
    return f"The mutual information is at least {number(result.lower)} {units} with {how}."


def _statement(meaning: str) -> str:
    """What a flag says about the rows, without the remedy."""
    return meaning.partition(":")[0]


def _of_range(
    result: MutualInformation, units: str, number: Callable[[float], str], meanings: Mapping[str, str]
) -> str:
    if math.isnan(result.estimate):
        return f"No range is given ({'; '.join(_statement(meanings[flag]) for flag in result.flags)})."
    return (
        f"If the learning curve goes on as from {result.curve[-2][0]} to {result.curve[-1][0]} pairs, the mutual "
        f"information is {number(result.estimate)} {units}, in the range from {number(result.low)} to "
        f"{number(result.high)} {units}, which is no confidence interval."
    )


@dataclass(frozen=True, slots=True, eq=False)
class TableRow(ResultRecord):
    """Numbers of one result, in the units of the table; NaN if withheld."""

    name: str
    lower: float
    bound: float
    error: float
    estimate: float
    low: float
    high: float
    pairs: int
    groups: int
    flags: str


class ResultTable(tuple[TableRow, ...]):
    """Rows of `table`, with a readable `repr`; `pandas.DataFrame(rows)` makes a data frame of them."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Table of the results."""
        width = max(6, *(len(row.name) for row in self)) if self else 6
        head = f"{'name':<{width}}   lower   bound   error  estimate     low    high    pairs  flags"
        return "\n".join(
            [head]
            + [
                f"{row.name:<{width}}  {row.lower:6.3f}  {row.bound:6.3f}  {row.error:6.3f}    {row.estimate:6.3f}  "
                f"{row.low:6.3f}  {row.high:6.3f}  {row.pairs:7d}  {row.flags}".rstrip()
                for row in self
            ]
        )


def table(results: Mapping[str, MutualInformation], *, units: Units = "nats") -> ResultTable:
    """Return a table of several results.

    Parameters
    ----------
    results : mapping of str to MutualInformation
        Results by name.
    units : {"nats", "bits"}, default: "nats"
        Units of the numbers.

    Returns
    -------
    ResultTable
        Tuple of `TableRow`, with a readable `repr`; `pandas.DataFrame(rows)` makes a data frame of it.

    Raises
    ------
    TypeError
        If `results` is no mapping.
    ValueError
        If `units` is another word.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.random.default_rng(0).normal(size=(60, 2))
    >>> found = pnce.estimation.mutual_information(x[:, 0], x[:, 1], rng=0, splits=1, steps=25)
    >>> [row.name for row in pnce.estimation.table({"noise": found})]
    ['noise']
    """
    check_choice("units", units, SIZES)
    if not isinstance(results, Mapping):
        raise TypeError(f"results: expected a mapping of names to results, got {type(results).__name__}")
    rows = []
    for name, found in results.items():
        if not hasattr(found, "settings"):
            raise TypeError(f"results: expected results of mutual_information, got {type(found).__name__} for {name!r}")
        made, size = found.settings, SIZES[units]
        rows.append(
            TableRow(
                name=str(name),
                lower=found.lower / size,
                bound=found.bound / size,
                error=found.error / size,
                estimate=found.estimate / size,
                low=found.low / size,
                high=found.high / size,
                pairs=made.pairs,
                groups=made.groups,
                flags=", ".join(found.flags),
            )
        )
    return ResultTable(rows)
