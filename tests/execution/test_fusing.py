"""Steps of sweeps as pure functions, and compiled: `fuse_steps`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce._core.registry import adapter_of
from portable_nce._execution import fusing
from portable_nce._execution.two_sided import TileSpec
from portable_nce.testing.variants import started

D = 5
LOSSES: dict[str, Any] = {
    "info_nce": lambda x, y, t: pnce.info_nce(x, y, temperature=t, block_size=16),
    "clip": lambda x, y, t: pnce.clip(x, y, logit_scale=1.0 / t, block_size=16),
    "supcon": lambda x, _, t: pnce.supcon(x, torch.arange(x.shape[0]) % 5, temperature=t, block_size=16),
    "siglip": lambda x, y, t: pnce.siglip(x, y, logit_scale=1.0 / t, logit_bias=-3.0, block_size=16),
    "nt_xent": lambda x, y, t: pnce.nt_xent(x, y, temperature=t, block_size=16),
    "moco": lambda x, y, t: pnce.moco(x, x.detach() + 0.1, y.detach(), temperature=t, block_size=16),
    "linear_softmax": lambda x, y, t: pnce.density.linear_softmax(x / t, y, torch.arange(x.shape[0]), block_size=16),
    "neg_sq_euclidean": lambda x, y, t: pnce.info_nce(
        x, y, temperature=t, similarity="neg_sq_euclidean", block_size=16
    ),
}
IN_THE_DEFAULT_RUN = {("info_nce", "float32"), ("clip", "bfloat16"), ("supcon", "float32"), ("nt_xent", "float32")}


@pytest.fixture
def fused() -> Iterator[None]:
    """Arrays on the CPU as on a GPU, and all steps compiled."""
    with started("portable_nce.testing.variants:FUSED").active():
        yield


def arrays(n: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(n, D, generator=generator).to(dtype).requires_grad_() for _ in range(2)]


def differentiated(loss: Any, *given: torch.Tensor) -> list[torch.Tensor]:
    """Value and gradients of a loss."""
    for x in given:
        x.grad = None
    value = loss(*given)
    value.backward()
    return [value.detach(), *(x.grad.clone() for x in given if x.grad is not None)]


def graphs() -> int:
    """Number of graphs that were compiled in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])  # noqa: SLF001  (public nowhere)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype) if (name, dtype) in IN_THE_DEFAULT_RUN else pytest.param(name, dtype, marks=pytest.mark.full)
        for name in LOSSES
        for dtype in ("float32", "bfloat16")
    ],
)
def test_compiled_steps_equal_uncompiled_ones_and_serve_every_size_and_temperature(name: str, dtype: str) -> None:
    """One graph of each step, for blocks of any number of rows, another batch size and another temperature."""
    eps = {"float32": 2.0**-18, "bfloat16": 2.0**-7}[dtype]
    before, made = graphs(), 0
    for n, temperature in ((40, 0.5), (54, 0.2), (40, 0.5)):
        given, loss = arrays(n, getattr(torch, dtype)), partial(LOSSES[name], t=temperature)
        found = differentiated(loss, *given)
        made = made or graphs() - before
        assert 0 < graphs() - before == made <= 4, "graphs"
        fusing.fuse_steps(enabled=False)
        wanted = differentiated(loss, *given)
        fusing.fuse_steps(enabled=True)
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=eps, atol=eps * float(y.abs().max()))


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("loss", [pnce.info_nce, pnce.clip, lambda x, _: pnce.supcon(x, torch.arange(len(x)) % 5)])
def test_the_fourth_call_is_the_first(loss: Any) -> None:
    """In one block of rows, where other calls of a kind are recorded and replayed from the second on."""
    options = {"logit_scale": 10.0} if loss is pnce.clip else {}
    given = arrays(40)
    first, made = differentiated(partial(loss, **options), *given), graphs()
    for _ in range(3):
        for x, y in zip(first, differentiated(partial(loss, **options), *given), strict=True):
            assert torch.equal(x, y)
    assert graphs() == made


@pytest.mark.usefixtures("fused")
def test_equal_calls_are_equal_whatever_came_in_between() -> None:
    loss, given = partial(LOSSES["info_nce"], t=0.3), arrays(40)
    first = differentiated(loss, *given)
    differentiated(loss, *arrays(54))
    with torch.no_grad():
        loss(*given)
    for x, y in zip(first, differentiated(loss, *given), strict=True):
        assert torch.equal(x, y)


@pytest.mark.internals
@pytest.mark.parametrize("name", LOSSES)
def test_a_step_is_pure(name: str) -> None:
    """Equal arguments give equal results, and none is overwritten but the carry and a kept tile."""
    calls: list[tuple[Any, Any, Any]] = []

    def recorded(pure: Any, spec: Any, _: Any) -> Any:
        assert hash(spec) == hash(type(spec)(*spec))
        step = pure(spec)

        def twice(*arguments: Any) -> Any:
            *others, position = copied(arguments)
            # As arrays, as a compiled step has them.
            at = tuple(x if x is None else torch.full((), x, dtype=torch.int32) for x in position)
            given = copied(arguments)
            result = step(*given)
            calls.append((arguments, given, (copied(result), step(*others, at))))
            return result

        return twice

    with (
        started("torch-blind").active(),
        mock.patch("portable_nce._execution.sweep.fused", recorded),
        mock.patch("portable_nce._execution.two_sided.fused", recorded),
        mock.patch("portable_nce._execution.choice.is_fusible", return_value=True),
        mock.patch("portable_nce._execution.choice.pays_to_fuse", return_value=True),
    ):
        differentiated(partial(LOSSES[name], t=0.5), *arrays(40))
    assert calls
    for arguments, given, (first, second) in calls:
        for x, y in zip(leaves(first), leaves(second), strict=True):
            torch.testing.assert_close(x, y)
        overwritable = 2 if len(arguments) == 5 else 3  # the carry; of a tile, what was kept
        for place, (x, y) in enumerate(zip(arguments, given, strict=True)):
            if place != overwritable:
                assert all(map(torch.equal, leaves(x), leaves(y)))


def copied(tree: Any) -> Any:
    """A nested tuple with new tensors."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    if isinstance(tree, (tuple, list)):
        items = [copied(x) for x in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return tree


def leaves(tree: Any) -> list[torch.Tensor]:
    """The tensors of a nested tuple."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for x in tree for leaf in leaves(x)] if isinstance(tree, (tuple, list)) else []


@pytest.mark.usefixtures("fused")
def test_explain_says_which_steps_are_compiled_and_why_others_are_not() -> None:
    x, y = arrays(8)
    assert pnce.explain(pnce.info_nce, x, y).sweeps[0].steps == "compiled once for all batch sizes"
    own = pnce.objectives.Objective(lambda row: row.log_odds, couples_rows=False)
    told = pnce.explain(pnce.contrast, x, y, objective=own).sweeps[0]
    assert told.steps == "not compiled: they contain a function of yours"
    assert "  steps     not compiled" in repr(told)
    fusing.fuse_steps(enabled=False)
    assert "fuse_steps()" in pnce.explain(pnce.info_nce, x, y).sweeps[0].steps
    fusing.fuse_steps(enabled=True)


@pytest.mark.parametrize(("obstacle", "whole", "triton"), [("2.11", False, True), ("Triton", True, False)])
def test_what_a_machine_lacks_is_told(
    monkeypatch: pytest.MonkeyPatch, obstacle: str, *, whole: bool, triton: bool
) -> None:
    compiler: Any = pytest.importorskip("portable_nce.backends.torch_fused")
    monkeypatch.setattr(compiler, "WHOLE", whole)
    monkeypatch.setattr(compiler, "has_triton", lambda: triton)
    compiler.obstacle_to_compiling.cache_clear()
    assert obstacle in compiler.obstacle_to_compiling("cuda")
    compiler.obstacle_to_compiling.cache_clear()


@pytest.mark.usefixtures("fused")
def test_without_a_working_compiler_a_step_warns_once_and_runs_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no such compiler")

    from portable_nce.backends import torch_fused

    monkeypatch.setattr(torch_fused, "BACKEND", broken)
    loss, given = partial(LOSSES["info_nce"], t=0.3), arrays(40)
    with pytest.warns(UserWarning, match="no such compiler"):
        found = differentiated(loss, *given)
    again = differentiated(loss, *given)  # a second warning would be an error
    fusing.fuse_steps(enabled=False)
    for x, y, z in zip(found, again, differentiated(loss, *given), strict=True):
        torch.testing.assert_close(x, z)
        assert torch.equal(x, y)


@pytest.mark.usefixtures("fused")
def test_each_kind_is_logged_once_and_kinds_are_limited(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusing, "MOST_KINDS", 1)
    with caplog.at_level(logging.INFO, "portable_nce"):
        for name in ("info_nce", "info_nce", "siglip"):
            differentiated(partial(LOSSES[name], t=0.3), *arrays(40))
    assert len(caplog.messages) == len(fusing.STEPS) == 1


def test_nothing_is_compiled_unless_asked_for() -> None:
    """Nor on libraries that compile nothing, on processors, or for arrays that are transformed."""
    assert not fusing.is_fusible(torch.zeros(1))
    before = pnce.fuse_steps()
    try:
        assert not before
        assert not fusing.is_fusible(torch.zeros(1))
        assert not fusing.is_fusible(np.zeros(1))
        assert "CUDA" in str(adapter_of(torch.zeros(1)).obstacle_to_fusing(torch.zeros(1)))
    finally:
        assert pnce.fuse_steps(enabled=False)
    with pytest.raises(TypeError, match="enabled: expected True or False"):
        pnce.fuse_steps("yes")  # type: ignore[arg-type]


def test_a_setting_of_the_compiler_is_changed_while_a_step_compiles_and_not_while_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread may compile meanwhile; steps of several threads run at the same time."""
    from portable_nce.backends import torch_fused

    held: list[dict[str, Any]] = []
    changed: Any = torch_fused.patched

    def patched(**settings: Any) -> Any:
        held.append(settings)
        return changed(**settings)

    monkeypatch.setattr(torch_fused, "patched", patched)
    monkeypatch.setattr(torch_fused, "BACKEND", "aot_eager")
    step = torch_fused.compiled_step(lambda numbers, x: x * numbers[0] if len(numbers) == 1 else x)
    before = graphs()
    for shape in ((4, 4), (5, 7), (7, 5)):
        assert step((3,), torch.ones(shape)).shape == shape
    assert len(held) == graphs() - before == 1
    step((3,), torch.ones(4, 4).double())
    step((1,), torch.ones(1, 4))  # lengths and numbers of 1 have a graph of their own
    assert len(held) == graphs() - before == 3


@pytest.mark.usefixtures("fused")
def test_each_device_has_its_own_step() -> None:
    spec = TileSpec(pnce.objectives.info_nce(), *[None] * 6)  # type: ignore[arg-type]
    for device in ("cpu", "meta", "cpu"):
        x = torch.ones(3, device=device)
        step = fusing.fused(step_of_any, spec, (x,))
        assert step is not None
        assert step(x, (0,)).device.type == device
    assert ["meta" in str(key) for key in fusing.STEPS] == [False, True]


def step_of_any(_: TileSpec) -> Any:
    return lambda x, _: x + x


def test_a_compiled_function_asks_what_its_arguments_are_and_not_what_it_closes_over() -> None:
    """Kinds of arguments make graphs of their own: dtypes, flags, and None in place of an array."""
    from portable_nce.backends import torch_fused

    closed = {"sign": 1.0}

    def step_of(closed: dict[str, float]) -> Any:
        def step(carry: Any, x: Any, flag: Any) -> Any:
            total = x * closed["sign"] if flag else -x
            return total if carry is None else carry + total

        return step

    with started("portable_nce.testing.variants:FUSED").active():
        step = torch_fused.compiled_step(step_of(closed))
    x, before = torch.ones(4), graphs()
    assert step(None, x, "on").tolist() == [1.0] * 4
    assert step(None, x, "").tolist() == [-1.0] * 4
    assert step(x, x, "on").tolist() == [2.0] * 4
    assert step(None, x.double(), "on").dtype == torch.float64
    made = graphs() - before
    closed["further"] = 2.0
    assert step(None, torch.ones(7), "on").tolist() == [1.0] * 7
    assert graphs() - before == made == 4
