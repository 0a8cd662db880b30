"""A pytest plugin for short runs: each test runs a covering array of its parameters instead of their product.

``-p portable_nce.testing.covering``. In a covering array every value of every parameter occurs at least once. Values of
``case_name`` (names in `portable_nce.testing.CASES`) are equivalent if their cases call the same loss in the same
regime. The variant is a parameter like any other, so the variants of a run share the work. Tests marked
``each_variant`` have a covering array per variant; in float64, or if they name no dtype, they have all cases on a
variant whose `cases` are ``"all"`` (NumPy), and one of each form of call if they are ``"forms"``. On a variant whose
`cases` are ``"modules"``, cases are equivalent if their losses are of one module and in the same regime. A variant with
a `slice` runs only the tests that it names.
"""

from __future__ import annotations

import random
from operator import attrgetter
from typing import TYPE_CHECKING

import pytest

from ._package import pnce
from .cases import CASES
from .plugin import params_of
from .variants import find_variant

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

CLASSES = {case.name: (case.loss, case.regime) for case in CASES}
"""Loss and regime of each case."""

MODULES = {case.name: (attrgetter(case.loss)(pnce).__module__, case.regime) for case in CASES}
"""Module of the loss, and regime, of each case."""

FORMS = {
    case.name: (
        *(case.loss, case.regime, "block_size" in case.options, "slots" in case.options),
        frozenset({*case.arguments, *case.constants}),
    )
    for case in CASES
}
"""Form of call of each case: loss, regime, whether in blocks, whether with a queue that is not full, and its arrays."""


@pytest.hookimpl(trylast=True)  # after other plugins have deselected tests that cannot run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a covering array of the parameters of each test."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        test, variant = item.nodeid.partition("[")[0], str(params_of(item).get("variant", ""))
        words = find_variant(variant).slice if variant else ()
        if not words or any(word in test for word in words):
            own = variant if item.get_closest_marker("each_variant") else ""
            tests.setdefault(f"{test.rpartition('/')[2]}, {own}", []).append(item)  # independent of the folder
    kept = {id(alike[k]) for test, alike in tests.items() for k in covering([*map(values_of, alike)], test)}
    left = [item for item in items if id(item) not in kept]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if id(item) in kept]


def values_of(item: pytest.Item) -> dict[str, Hashable]:
    """Parameters of a test, a case being replaced by its class."""
    params = params_of(item)
    variant = params.get("variant")
    cases = find_variant(str(variant)).cases if variant else "losses"
    if cases != "modules" and not (
        item.get_closest_marker("each_variant") and params.get("dtype", "float64") == "float64"
    ):
        cases = "losses"
    values: dict[str, Hashable] = {}
    for name, value in params.items():
        text = repr(value)
        # By identity only if the text has an address: equal tuples may be one object here and two in another process.
        values[name] = id(value) if " at 0x" in text else text
        if name == "case_name" and cases != "all":
            kinds: dict[str, Mapping[str, Hashable]] = {"forms": FORMS, "modules": MODULES}
            values[name] = kinds.get(cases, CLASSES)[value]
    return values


def covering(sets: Sequence[Mapping[str, Hashable]], seed: str) -> Iterator[int]:
    """Indices of parameter sets that together contain all values of each name.

    Greedy: sets with the most values not covered yet come first; the seed breaks ties.
    """
    left = [(k, frozenset(values.items())) for k, values in enumerate(sets)]
    random.Random(seed).shuffle(left)
    found: set[tuple[str, Hashable]] = set()
    wanted = max(map(len, sets))
    while wanted:
        most, later = 0, []
        for k, values in left:
            new = len(values - found)
            if new >= wanted:
                found |= values
                yield k
            elif new:
                most = max(most, new)
                later.append((k, values))
        left, wanted = later, most
    if not found:  # a test without parameters
        yield 0
