"""Every loss against its oracle on NumPy, so that plain `pytest` notices a loss that computes something else.

The conformance suite, which plain `pytest` does not collect, does it on all libraries and in all formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portable_nce.testing import oracles
from portable_nce.testing.cases import CASES
from portable_nce.testing.suite.calls import TOLERANCE, wanted_of
from portable_nce.testing.variants import case_arrays, differentiate

if TYPE_CHECKING:
    from portable_nce.testing.cases import Case
    from portable_nce.testing.variants import Variant

EACH = list(
    {(case.loss, case.regime, last): case for last in (False, True) for case in CASES[:: 1 if last else -1]}.values()
)
"""First and last case of each loss and regime."""


@pytest.mark.parametrize("case", {case.name: case for case in EACH}.values(), ids=lambda case: case.name)
def test_a_loss_and_its_gradients_are_those_of_the_published_sum(variant: Variant, case: Case) -> None:
    result, gradients = differentiate(case.function, case_arrays(variant, case, "float64"), len(case.arguments))
    for found, exact in zip((result, *gradients), wanted_of(case), strict=True):
        assert oracles.error(variant.to_list(found), exact) <= TOLERANCE[case.regime]["float64"]
