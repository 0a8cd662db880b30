"""Repeated calls, which use cached plans and programs, give the result of a first call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from portable_nce._execution import plans, replay
from portable_nce.testing.cases import CASES
from portable_nce.testing.suite.calls import arrays_of
from portable_nce.testing.variants import differentiate

if TYPE_CHECKING:
    from portable_nce.testing.cases import Case
    from portable_nce.testing.variants import Variant


def forget() -> None:
    """Clear the caches of calls."""
    plans.PLANS.clear()
    replay.SWEEPS.clear()


@pytest.mark.parametrize("variant", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_call_is_a_first(variant: Variant, case: Case) -> None:
    """Calls are planned, recorded, and replayed; values, and so recorded branches, differ."""
    arrays = arrays_of(variant, case, "float64")
    others = {key: x * 1.25 if key in case.arguments else x for key, x in arrays.items()}

    def results(given: dict[str, Any]) -> list[Any]:
        value, gradients = differentiate(case.function, [*given.values()], len(case.arguments))
        return [variant.to_list(x) for x in (value, *gradients)]

    wanted = []
    for given in (arrays, others):
        forget()
        wanted.append(results(given))
    forget()
    for k in (0, 0, 0, 1, 1, 0):
        assert repr(results((arrays, others)[k])) == repr(wanted[k])  # repr, because NaN is not equal to NaN
