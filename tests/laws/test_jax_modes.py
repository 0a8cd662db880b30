"""Every loss under the modes of JAX that make errors of promotions, leaks, transfers and NaN; and in forward mode."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.testing.cases import CASES, WITHOUT_GRADIENT, Case
from portable_nce.testing.covering import covering

from calls import EACH, Call, mostly_full

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

HALVES = {"info_nce", "nt_xent", "siglip", "supcon", "relic", "moco", "triplet", "density.linear_softmax"}
"""Losses that are also traced in bfloat16, with float32 arrays among the 16-bit ones."""


def form_of(case: Case) -> dict[str, Hashable]:
    """Number of axes of each array of a call, and whether the call is in blocks."""
    arrays = {**case.arguments, **case.constants}
    form: dict[str, Hashable] = {f"{case.loss}: {name}": np.ndim(x) for name, x in arrays.items()}
    return form | {f"{case.loss}: blocks": "block_size" in case.options}


FORMS = [CASES[k] for k in covering([form_of(case) for case in CASES], "modes of JAX")]
"""Calls with every array of every loss, of each number of axes, whole and in blocks."""

FIRST = {*{case.loss: case.name for case in reversed(FORMS)}.values()}
SHARES = [
    pytest.param([case for case in FORMS if case.name in FIRST], id="each loss"),
    pytest.param([case for case in FORMS if case.name not in FIRST], id="other calls", marks=pytest.mark.full),
]
"""One call of each loss, and the others for the full run."""


@pytest.fixture
def strict() -> Iterator[None]:
    """Let JAX refuse arrays of different numbers of axes in one operation, and dtypes that would be promoted."""
    with ExitStack() as stack:
        modes: list[Any] = [jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict")]
        for mode in modes:
            stack.enter_context(mode)
        yield


def arrays_of(case: Case, dtype: str) -> list[jax.Array]:
    """Arrays of a case."""
    arrays = [np.asarray(x) for x in (*case.arguments.values(), *case.constants.values())]
    return [jnp.asarray(x, dtype=dtype if x.dtype.kind == "f" and x.ndim > 1 else None) for x in arrays]


def gradient_of(case: Case) -> Callable[..., Any]:
    """Value and gradients of a case, or the value of a measure."""
    if case.loss in WITHOUT_GRADIENT:
        return case.function
    return pnce.value_and_grad(case.function, tuple(range(len(case.arguments))))


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("cases", SHARES)
@pytest.mark.parametrize("dtype", mostly_full(["float32", "bfloat16"], ["float32"]))
def test_every_call_is_traced_without_promotions_and_transfers(dtype: str, cases: list[Case]) -> None:
    failed: list[str] = []
    for case in cases:
        if dtype == "bfloat16" and case.loss not in HALVES:
            continue
        arrays = arrays_of(case, dtype)
        try:
            with jax.transfer_guard("disallow"):
                jax.eval_shape(gradient_of(case), *arrays)
        except Exception as error:  # noqa: BLE001  (all of them are reported)
            failed.append(f"{case.name}: {error}")
    assert not failed


@pytest.mark.parametrize("cases", SHARES)
def test_every_call_has_derivatives_in_forward_mode(cases: list[Case]) -> None:
    """By all arrays at once; JAX says no earlier than it lowers a function that it has only a reverse mode."""
    failed: list[str] = []
    for case in cases:
        count = len(case.arguments)

        def along_itself(*arrays: Any, case: Case = case, count: int = count) -> Any:
            learned, others = arrays[:count], arrays[count:]
            return jax.jvp(lambda *given: case.function(*given, *others), learned, learned)

        try:
            jax.jit(along_itself).lower(*arrays_of(case, "float32"))
        except Exception as error:  # noqa: BLE001  (all of them are reported)
            failed.append(f"{case.name}: {error}")
    assert not failed


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("name", mostly_full(EACH))
def test_no_tracer_outlives_its_trace(name: str) -> None:
    call = Call(name)
    with jax.checking_leaks():
        jax.eval_shape(pnce.value_and_grad(lambda *x: jnp.sum(call(*x)), (0,)), *call.jax(), *call.others(jnp.asarray))


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("name", mostly_full(EACH, ("info_nce", "triplet_from_labels")))
def test_a_compiled_call_transfers_nothing(name: str) -> None:
    call = Call(name)
    arrays = [*call.jax(), *call.others(jnp.asarray)]
    with jax.transfer_guard("disallow"):
        jax.block_until_ready(jax.jit(pnce.value_and_grad(call, tuple(range(len(call.numbers)))))(*arrays))


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    "name", mostly_full(EACH, ("info_nce", "gist_embed", "clip", "bounds.flo", "density.local_nce"))
)
def test_an_eager_call_computes_no_nan(name: str) -> None:
    """Without jit, JAX looks for NaN after every operation."""
    call = Call(name)
    with jax.debug_nans(True):  # noqa: FBT003  (JAX's interface)
        pnce.value_and_grad(call, tuple(range(len(call.numbers))))(*call.jax(), *call.others(jnp.asarray))
