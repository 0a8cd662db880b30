"""A pytest plugin for short runs: of the parameter sets of each test, some that hold every value of every parameter.

``-p portable_nce.testing.covering``. A test that is parametrized several times runs the product of its values, of which
few can fail alone. With this plugin it runs a covering array: each value at least once. Values of ``case_name``, which
are names in `portable_nce.testing.CASES`, count as one if their cases call the same loss in the same regime. The
variant is a parameter like any other: the variants of a run share the work. Tests marked ``each_variant`` have a
covering array for each of them, and all cases in float64 on NumPy. A variant with a `slice` runs the tests that it
names.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from .cases import CASES
from .plugin import params_of
from .variants import VARIANTS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

CLASSES = {case.name: (case.loss, case.regime) for case in CASES}
"""What each case is an example of."""


@pytest.hookimpl(trylast=True)  # after other plugins have left out what cannot run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a covering array of the parameter sets of each test."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        test, variant = item.nodeid.partition("[")[0], str(params_of(item).get("variant", ""))
        words = VARIANTS[variant].slice if variant in VARIANTS else ()
        if not words or any(word in test for word in words):
            own = variant if item.get_closest_marker("each_variant") else ""
            tests.setdefault(f"{test.rpartition('/')[2]}, {own}", []).append(item)  # wherever the file is
    kept = {id(alike[k]) for test, alike in tests.items() for k in covering([*map(values_of, alike)], test)}
    left = [item for item in items if id(item) not in kept]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if id(item) in kept]


def values_of(item: pytest.Item) -> dict[str, Hashable]:
    """Give the parameters of a test, with a case as the class that it belongs to."""
    params = params_of(item)
    every = item.get_closest_marker("each_variant") and params["dtype"] == "float64" and "numpy" in params["variant"]
    values: dict[str, Hashable] = {}
    for name, value in params.items():
        text = repr(value)
        # An address is the same for the same object; equal tuples may be one object in one process, and two in another.
        values[name] = id(value) if " at 0x" in text else text
        if name == "case_name" and not every:
            values[name] = CLASSES[value]
    return values


def covering(sets: Sequence[Mapping[str, Hashable]], seed: str) -> Iterator[int]:
    """Give the numbers of some of the sets that hold all values of each name.

    Greedy: sets that hold many values that no other has come first, in an order that the seed decides on.
    """
    order = [*range(len(sets))]
    random.Random(seed).shuffle(order)
    found: set[tuple[str, Hashable]] = set()
    for wanted in range(max(map(len, sets)), 0, -1):
        for k in order:
            if len(sets[k].items() - found) >= wanted:
                found |= sets[k].items()
                yield k
    if not found:  # a test without parameters
        yield 0
