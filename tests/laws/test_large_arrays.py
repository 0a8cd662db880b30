"""Large arrays, for which libraries use other algorithms, give the same results as small ones."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from portable_nce._execution import plans, replay
from portable_nce.testing.cases import CASES
from portable_nce.testing.suite.calls import arrays_of
from portable_nce.testing.variants import differentiate

if TYPE_CHECKING:
    from portable_nce.testing.cases import Case
    from portable_nce.testing.variants import Variant


def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("numpy", "torch"):
        monkeypatch.setattr(import_module(f"portable_nce.backends.{name}_namespace"), "_FEWEST", 0)


@pytest.mark.parametrize("variant", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_and_gradients(variant: Variant, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = arrays_of(variant, case, "float64")

    def results() -> list[Any]:
        plans.PLANS.clear()
        replay.SWEEPS.clear()
        value, gradients = differentiate(case.function, [*arrays.values()], len(case.arguments))
        return [variant.to_list(x) for x in (value, *gradients)]

    wanted = results()
    all_are_large(monkeypatch)
    assert repr(results()) == repr(wanted)  # repr, because NaN is not equal to NaN


@pytest.mark.parametrize("variant", ["torch"], indirect=True)
@pytest.mark.parametrize("case", [case for case in CASES if "mask" in case.name], ids=lambda case: case.name)
def test_modes_that_see_each_operation(variant: Variant, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are not read from tensors that a mode has replaced."""
    all_are_large(monkeypatch)
    arrays = [*arrays_of(variant, case, "float64").values()]
    graph = make_fx(case.function)(*arrays)
    torch.testing.assert_close(graph(*arrays), case.function(*arrays), equal_nan=True)
