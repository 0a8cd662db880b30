"""Samples as matrices on the host, with clusters of dependent rows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from random import Random
from typing import Any, NamedTuple

from .._core.namespace import device_of, is_array, namespace_of
from .._core.protocol import Array
from .categories import PairedRows, Within, category_codes
from .dependence import correlation_time, has_near_copies, is_serial
from .features import indices
from .folds import MANY, Clusters, blocks, by_label
from .host import is_missing, on_host
from .repeats import equal_rows, has_codes

__all__ = ["LEAST_ROWS", "Sample", "entered", "sample_of"]

LEAST_ROWS, FEWEST = 48, 10
"""Fewest rows, and fewest groups of equal size for a reliable error."""
LEASTS = {
    "x": (4, "rows of different values"),
    "groups": (4, "groups of rows"),
    "order": (6, "blocks of a correlation time"),
}
"""Fewest clusters by the argument that makes them."""
FEW_PAIRS = 2000
"""Pairs up to which four divisions and kernels, whose time grows with the square of the rows, are fast."""
MOST_CODED = 6000
"""Most pairs for which kernels are tried if values repeat."""
REPEATED = 0.02
"""Share of repeated rows that is flagged."""


class Sample(NamedTuple):
    """Paired samples as matrices on the host, clusters of dependent rows, and flags that the rows raise.

    `categories`: codes of a third variable. `groups`: labels that the user gave.
    """

    x: Array
    y: Array
    clusters: Clusters
    flags: tuple[str, ...]
    ungrouped: bool
    categories: Array | None = None
    groups: Sequence[Hashable] | None = None

    def labels(self) -> list[Hashable]:
        """Name of each cluster: its first row, or its group's label."""
        first = [rows[0] for rows in self.clusters.rows]
        return [row if self.groups is None else self.groups[row] for row in first]

    @property
    def pairs(self) -> int:
        """Number of rows."""
        return int(self.x.shape[0])

    @property
    def unit(self) -> str:
        """What counts as one independent draw."""
        if self.clusters.ordered:
            return "blocks"
        if len(self.clusters.rows) == self.pairs:
            return "pairs"
        return "groups of equal rows" if self.ungrouped else "groups"

    @property
    def folds(self) -> int:
        """Default number of folds: more for few clusters, so that more of them train."""
        return 3 if len(self.clusters.rows) >= MANY else min(5, len(self.clusters.rows) // 2)

    @property
    def splits(self) -> int:
        """Default number of splits: chance of the division matters less with more rows."""
        return 4 if self.pairs <= FEW_PAIRS else 2 if self.pairs <= 6000 else 1  # noqa: PLR2004

    @property
    def takes_kernels(self) -> bool:
        """Whether kernels are tried: more pairs need them less, but for codes, of which each may mean anything."""
        if self.pairs <= FEW_PAIRS:
            return True
        return self.pairs <= MOST_CODED and any(has_codes(z) for z in (self.x, self.y))

    def rows(self, numbers: Sequence[int]) -> PairedRows:
        """Some rows."""
        chosen = indices(numbers, self.x)
        return PairedRows(
            *(None if z is None else namespace_of(z).take(z, chosen, axis=0) for z in (self.x, self.y, self.categories))
        )

    def codes(self, numbers: Sequence[int]) -> list[float]:
        """Codes of the categories of some rows, of which there are some."""
        codes: Any = self.categories
        return [float(codes[k]) for k in numbers]

    def strata(self) -> list[list[int]] | None:
        """Rows of each category; None without a third variable."""
        return None if self.categories is None else by_label(self.codes(range(self.pairs)))

    @property
    def number_of_categories(self) -> int:
        """Number of categories of a third variable, 0 without one."""
        return len(self.strata() or ())

    def has_near_copies(self, random: Random) -> bool:
        """Whether rows that nobody grouped are noisy copies of others."""
        first = [rows[0] for rows in self.clusters.rows]
        return self.ungrouped and has_near_copies(self.x, self.y, first, random)


def sample_of(
    x: Any,
    y: Any,
    groups: Any,
    order: Any,
    folds: int | None,
    *,
    given: Sequence[Any] | None = None,
    least: int = LEAST_ROWS,
) -> Sample:
    """Checked samples with their clusters; faults of options are refused before too few rows.

    `given`: label of each row's category of a third variable. What it explains of both arrays is no sign of a series.
    `least`: fewest rows.
    """
    x, y = (entered(name, z) for name, z in (("x", x), ("y", y)))
    xp = namespace_of(x, y)
    x, y = (xp.astype(z, xp.result_type(x, y), copy=False) for z in (x, y))  # libraries beside NumPy have several
    count = int(x.shape[0])
    _check_axes(x, y, least)
    if int(y.shape[0]) != count:
        raise ValueError(f"y: expected {count} rows, as in x, got {y.shape[0]}")
    if groups is not None and order is not None:
        raise ValueError("order: expected groups= or order=, got both; groups of a series are its blocks")
    categories = None if given is None else category_codes(given, x)
    a, b = x, y
    if categories is not None:
        number = len({*map(float, categories)})
        a, b = (Within.fitted(z, categories, number)(z, categories) for z in (x, y))
    labels = None
    name, clusters = "x", Clusters([[i] for i in range(count)])
    flags: list[str] = []
    if order is not None:
        name, clusters = "order", _blocks(a, b, order)
    elif groups is not None:
        labels = _labels("groups", groups, count)
        name, clusters = "groups", Clusters(by_label(labels))
    elif count >= least:
        clusters, flags = _unlabelled(x, y, a, b)
    _check_clusters(name, clusters, count, folds, least)
    if clusters.effective < FEWEST:
        flags.append("too few pairs")
    if clusters.largest_share >= 0.5:  # noqa: PLR2004
        flags.append("one group dominates")
    return Sample(x, y, clusters, tuple(flags), groups is None and order is None, categories, labels)


def _check_axes(x: Array, y: Array, fewest: int) -> None:
    """Refuse samples along the second axis: too few rows, and as many columns in both as there are pairs."""
    (rows, columns), (others, pairs) = tuple(x.shape), tuple(y.shape)
    if max(rows, others) < fewest <= columns == pairs:
        raise ValueError(
            f"x: expected at least {fewest} rows, got shapes {(rows, columns)} and {(others, pairs)}; rows are "
            f"samples: pass x.T and y.T"
        )


def _check_clusters(name: str, clusters: Clusters, count: int, folds: int | None, fewest: int) -> None:
    """Refuse too few clusters, then folds that they do not allow, then too few rows."""
    number = len(clusters.rows)
    least, what = LEASTS[name]
    if number < least and (name != "x" or count >= fewest):
        raise ValueError(f"{name}: expected at least {least} independent {what}, got {number}")
    if folds is not None and number >= least and folds not in clusters.possible_folds():
        possible = clusters.possible_folds()
        numbers = " to ".join(map(str, dict.fromkeys((possible[0], possible[-1]))))
        raise ValueError(
            f"folds: expected {numbers} for these {'blocks' if name == 'order' else 'groups'}, got {folds}"
        )
    if count < fewest:
        raise ValueError(f"x: expected at least {fewest} rows, got {count}")


def _blocks(x: Array, y: Array, order: Any) -> Clusters:
    """Blocks of a series."""
    times = _labels("order", order, int(x.shape[0]))
    try:
        numbers = sorted(range(len(times)), key=times.__getitem__)
    except TypeError as error:
        raise TypeError(f"order: expected numbers or times that can be sorted, got others: {error}") from error
    there = indices(numbers, x)
    return blocks(numbers, correlation_time(*(namespace_of(z).take(z, there, axis=0) for z in (x, y))))


def _unlabelled(x: Array, y: Array, a: Array, b: Array) -> tuple[Clusters, list[str]]:
    """Clusters of equal rows of x and y, and flags of rows without labels, by the order of rows of a and b."""
    found = equal_rows(x, y)
    flags = ["repeated rows"] if found.repeated > REPEATED * int(x.shape[0]) else []
    first = indices((rows[0] for rows in found.clusters), x)
    is_ordered = is_serial(*(namespace_of(z).take(z, first, axis=0) for z in (a, b)))
    return Clusters(found.clusters), flags + (["serial dependence"] if is_ordered else [])


def entered(name: str, z: Any) -> Array:
    """Finite matrix whose squares neither overflow nor underflow."""
    z = on_host(name, z)
    xp = namespace_of(z)
    if not bool(xp.all(xp.isfinite(z))):
        raise ValueError(f"{name}: expected finite numbers, got some that are NaN or infinite; leave these rows out")
    exponents = [math.frexp(float(size))[1] for size in xp.max(xp.abs(z), axis=0)]
    limit = math.frexp(float(xp.finfo(z.dtype).max))[1] // 4
    if max(map(abs, exponents)) < limit:
        return z
    halves = [(-e // 2, -e - (-e // 2)) for e in exponents]  # one power might overflow itself
    for factors in zip(*halves, strict=True):
        z = z * xp.asarray([2.0**k for k in factors], dtype=z.dtype, device=device_of(z))
    return z


def _labels(name: str, labels: Any, count: int) -> list[Any]:
    """Label of each row."""
    if isinstance(labels, str) or not (is_array(labels) or hasattr(labels, "__iter__")):
        folds = "; for a number of parts, pass folds" if name == "groups" and isinstance(labels, int) else ""
        raise TypeError(f"{name}: expected a label of each of the {count} rows, got {type(labels).__name__}{folds}")
    if is_array(labels) and len(labels.shape) != 1:
        raise ValueError(f"{name}: expected a label of each of the {count} rows, got shape {tuple(labels.shape)}")
    result = list(labels.tolist()) if hasattr(labels, "tolist") else list(labels)
    if len(result) != count:
        raise ValueError(f"{name}: expected a label of each of the {count} rows, got {len(result)}")
    result = [z.item() if getattr(z, "shape", None) == () else z for z in result]  # of sequences of NumPy's values
    if any(not isinstance(z, Hashable) for z in result):
        raise TypeError(f"{name}: expected a number, a name or a time for each row, got lists or the like")
    if any(map(is_missing, result)):
        raise ValueError(f"{name}: expected a label of each row, got some that are missing; leave these rows out")
    return result
