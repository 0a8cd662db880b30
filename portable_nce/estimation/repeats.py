"""Equal rows: copies of other rows, or independent draws with equal values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from .._core.protocol import Array
from .folds import by_label
from .host import MOST_INDICATORS

__all__ = ["EqualRows", "equal_rows", "has_codes", "row_keys"]

CHANCE = 1e-3
"""Largest probability of what draws, or copies, would hardly show."""
MIXED = 0.1
"""Share of rows of values with several partners, of those whose values repeat, from which the values are a table."""
MOST_ATOMS = 4
"""Most pairs that are far more frequent than others; more of them are copies of a part of the rows."""
TIES = 1.5
"""Ties of rounded values, relative to those expected from values one step apart."""
STEP = 1e-6
"""Rounding error of a distance on a grid, relative to its step."""

Pair = tuple[Hashable, Hashable]


def row_keys(z: Array) -> list[Hashable]:
    """Key of each row: its bytes if the library gives them, which take less memory than Python's numbers."""
    z = z + 0.0  # no negative zeros
    return [z[i, :].tobytes() if hasattr(z, "tobytes") else tuple(z[i, :].tolist()) for i in range(z.shape[0])]


def has_codes(z: Array) -> bool:
    """Whether rows have more values than categories get indicators, and few enough to repeat."""
    number = len({*row_keys(z)})
    return MOST_INDICATORS < number <= int(z.shape[0]) // 2


class EqualRows(NamedTuple):
    """Rows of each group of equal pairs, and the number of rows that repeat another."""

    clusters: list[list[int]]
    repeated: int


def equal_rows(x: Array, y: Array) -> EqualRows:
    """Group equal pairs that draws do not explain.

    Draws repeat where x and y have atoms, values of positive probability:

    - values of a table: at most √N values, or values that repeat with several partners, or rounded numbers, whose ties
      are about as many as pairs of rows one step apart; and functions of these;
    - a value that occurs with other partners more often than with this one;
    - a few pairs, such as (0, 0) of dropouts or two limits of detection, that are far more frequent than others. Copies
      of rows are of many rows. If other rows were copied m times on average, the rows of such a pair are grouped by m.

    Copies of continuous rows meet their own partners alone. If all numbers of repeats have a common divisor, which
    draws with these values of x and y would hardly have, the table was copied as a whole, that many times.
    """
    left, right = (row_keys(z) for z in (x, y))
    pairs = list(zip(left, right, strict=True))
    of_x, of_y, of_both = Counter(left), Counter(right), Counter(pairs)
    if len(of_both) == len(pairs):
        return EqualRows([[i] for i in range(len(pairs))], 0)
    divisor, free = math.gcd(*of_both.values()), len(of_both) - max(len(of_x), len(of_y))
    if divisor > 1 and free * math.log(divisor) > -math.log(CHANCE):
        return _grouped(pairs, dict.fromkeys(of_both, divisor))
    tabled = _tabled((of_x, of_y), of_both, (x, y))
    sides = list(zip((of_x, of_y), tabled, strict=True))

    def is_atom(pair: Pair) -> bool:
        number = of_both[pair]
        return all(known or table[z] > number for (table, known), z in zip(sides, pair, strict=True))

    sizes = {pair: 1 if number == 1 or is_atom(pair) else number for pair, number in of_both.items()}
    others = Counter({pair: of_both[pair] for pair in of_both if sizes[pair] > 1 or of_both[pair] == 1})
    frequent = _far_more_frequent(others)
    copied = [number for pair, number in others.items() if pair not in frequent]
    usual = math.ceil(sum(number * number for number in copied) / sum(copied)) if max(copied, default=1) > 1 else 1
    return _grouped(pairs, sizes | dict.fromkeys(frequent, usual))


def _grouped(pairs: Sequence[Pair], sizes: dict[Pair, int]) -> EqualRows:
    """Groups of so many equal rows each."""
    seen: Counter[Pair] = Counter()
    labels = []
    for pair in pairs:
        labels.append((pair, seen[pair] // sizes[pair]))
        seen[pair] += 1
    clusters = by_label(labels)
    return EqualRows(clusters, len(pairs) - len(clusters))


def _far_more_frequent(numbers: Counter[Pair]) -> list[Pair]:
    """Few pairs with more rows than copies at the mean number of the other pairs (Poisson) would have."""
    ranked = numbers.most_common()
    found = 0
    total, count = numbers.total(), len(ranked)
    while found <= MOST_ATOMS and found + 1 < count:
        number = ranked[found][1]
        mean = (total - number) / (count - found - 1)
        if count * _poisson_tail(mean, number) > CHANCE:
            break
        found, total = found + 1, total - number
    return [pair for pair, _ in ranked[:found]] if found <= MOST_ATOMS else []


def _poisson_tail(mean: float, number: int) -> float:
    """Bound on the probability of at least so many events (Chernoff)."""
    return math.exp(number - mean - number * math.log(number / mean)) if number > mean else 1.0


# --------------------------------------------------------------------------------------------------------------- tables


def _tabled(
    values: tuple[Counter[Hashable], Counter[Hashable]], both: Counter[Pair], arrays: tuple[Array, Array]
) -> list[bool]:
    """Whether the values of x and of y are those of a table."""
    few = math.isqrt(both.total())
    partners = [Counter(pair[side] for pair in both) for side in range(2)]
    found = [
        len(table) <= few or _is_mixed(table, number) or _is_rounded(array)
        for table, number, array in zip(values, partners, arrays, strict=True)
    ]
    # The partner of each value that repeats is a function of it.
    determines = [
        all(of[z] == 1 for z, n in table.items() if n > 1) for table, of in zip(values, partners, strict=True)
    ]
    return [found[side] or (found[1 - side] and determines[1 - side]) for side in range(2)]


def _is_mixed(values: Counter[Hashable], partners: Counter[Hashable]) -> bool:
    """Whether a tenth or more of the rows whose value repeats are of values with several partners.

    More frequent values than √N rows are left out: a continuous column may have a few, such as 0.
    """
    most = math.isqrt(values.total())
    repeated = [(value, number) for value, number in values.items() if 1 < number <= most]
    mixed = sum(number for value, number in repeated if partners[value] > 1)
    return mixed > MIXED * sum(number for _, number in repeated)


def _is_rounded(z: Array) -> bool:
    """Whether values are on a grid, with about as many ties as a smooth density on it has.

    Such a density has nearly the same mass one step away: pairs of rows with equal values are half as many as ordered
    pairs of rows that are one step apart in one column. Copies have more.
    """
    columns = []
    for k in range(z.shape[1]):
        numbers = [float(value) for value in z[:, k].tolist()]
        step, start = _step(numbers), min(numbers)
        if step is None:
            return False
        columns.append([round((value - start) / step) for value in numbers])
    counts = Counter(zip(*columns, strict=True))
    ties = sum(n * (n - 1) for n in counts.values()) / 2
    apart = sum(n * counts[place] for key, n in counts.items() for place in _neighbours(key)) / (2 * len(columns))
    return ties <= TIES * apart


def _neighbours(key: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Places one step up."""
    for k, number in enumerate(key):
        yield (*key[:k], number + 1, *key[k + 1 :])


def _step(numbers: Sequence[float]) -> float | None:
    """Step of the grid of all numbers; None if there is none."""
    ordered = sorted({*numbers})
    gaps = [b - a for a, b in pairwise(ordered)]
    if not gaps:
        return 1.0
    step = min(gaps)
    return step if all(abs(gap / step - round(gap / step)) <= STEP * gap / step + STEP for gap in gaps) else None
