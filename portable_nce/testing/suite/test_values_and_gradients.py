"""Every case, value and every gradient, against the independent oracles and against the core in fifty digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .. import oracles
from ..cases import CASES
from ..variants import case_named, differentiate_case, started

if TYPE_CHECKING:
    from ..variants import Variant

NAMES = [case.name for case in CASES]
TOLERANCE = {
    "normal": {"float64": 5e-15, "float32": 3e-6, "exact": 1e-47},
    "saturated": {"float64": 2e-14, "float32": 1e-5, "exact": 1e-47},
}
"""Largest error relative to the largest magnitude of the value, or of the gradient of one argument.

Measured, the worst of all variants on one machine: 2e-15, 1.2e-6 and 5e-50; saturated 8e-15, 3e-6 and 3e-49. Saturated
scores are far from 0, where the numbers of a dtype lie further apart.
"""


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_independent_oracle(variant: Variant, name: str, dtype: str) -> None:
    """The published sum, in mpmath."""
    value, gradients = oracles.case_value_and_gradients(case_named(name))
    wanted = [sum(value) if isinstance(value, list) else value, *gradients.values()]
    compare(variant, name, dtype, wanted)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_exact_core(variant: Variant, name: str, dtype: str) -> None:
    """The very same core, run in fifty digits."""
    exact = started("mparray")
    value, gradients = differentiate_case(exact, name, exact.dtypes[0])
    wanted = [exact.to_list(value), *map(exact.to_list, gradients)]
    compare(variant, name, dtype, wanted)


def compare(variant: Variant, name: str, dtype: str, wanted: list[oracles.Nested]) -> None:
    """Compare value and gradients of a case with what is wanted."""
    case = case_named(name)
    tolerance = TOLERANCE[case.regime]["exact" if variant.module == "mparray" else dtype]
    value, gradients = differentiate_case(variant, name, dtype)
    results = dict(zip(["value", *case.arguments], [value, *gradients], strict=True))
    errors = {
        key: oracles.error(variant.to_list(got), want) for (key, got), want in zip(results.items(), wanted, strict=True)
    }
    assert max(errors.values()) <= tolerance, errors
