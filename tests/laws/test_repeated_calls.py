"""Repeated calls, which use cached plans and programs, give the result of a first call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from portable_nce._execution import plans, replay
from portable_nce.testing.cases import CASES
from portable_nce.testing.suite.calls import arrays_of
from portable_nce.testing.variants import differentiate, started

from calls import options_of

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


DENSE = [case for case in CASES if "streamed" not in case.name]


@pytest.mark.parametrize("case", DENSE, ids=lambda case: case.name)
def test_batched_backward_passes_equal_single_ones_and_leave_nothing_behind(case: Case) -> None:
    """PyTorch batches them by its older vmap, whose tensors must not enter programs."""
    arrays = arrays_of(started("torch"), case, "float64")
    function = case.bound(**{"reduction": "none"} if "reduction" in options_of(case.loss) else {})

    def passes(*, batched: bool = False) -> list[torch.Tensor]:
        given = {name: arrays[name].clone().requires_grad_() for name in case.arguments}
        value = function({**arrays, **given})
        if not value.requires_grad:
            return [value]
        units = torch.eye(value.numel(), dtype=value.dtype).reshape(-1, *value.shape)
        grad = functools.partial(torch.autograd.grad, value, [*given.values()], retain_graph=True, allow_unused=True)
        if batched:
            slopes = grad(units, is_grads_batched=True)
        else:
            single = zip(*map(grad, units), strict=True)
            slopes = [None if column[0] is None else torch.stack(column) for column in single]
        return [value.detach(), *(x for x in slopes if x is not None)]

    forget()
    wanted = passes()
    forget()
    for _ in range(2):
        torch.testing.assert_close(passes(batched=True), wanted, rtol=1e-12, atol=1e-12, equal_nan=True)
    found = passes()
    assert repr([x.tolist() for x in found]) == repr([x.tolist() for x in wanted])  # NaN is not equal to NaN
