"""torch.compile on releases that cannot trace losses, and facts that it takes from outside of the graph."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounter

import portable_nce as pnce
from portable_nce._core.equality import Record
from portable_nce._core.registry import load_backend, outside_of_compiler
from portable_nce.backends import torch_compiler  # pyright: ignore[reportMissingImports]


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as on a release that cannot trace losses."""
    torch.compiler.reset()
    outside: Any = torch.compiler.disable(torch_compiler._called)  # type: ignore[no-untyped-call]  # noqa: SLF001
    monkeypatch.setattr(torch_compiler, "outside", outside)


def step(x: torch.Tensor) -> torch.Tensor:
    """Compute before and after a loss."""
    loss: torch.Tensor = pnce.info_nce(torch.sin(x), torch.cos(x), temperature=0.5)
    return torch.exp(loss)


# Dynamo looks at `grad` of a loss that enters the second compiled part.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.usefixtures("older")
def test_older_releases_compile_around_a_loss() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    graphs = CompileCounter()
    found, wanted = torch.compile(step, backend=graphs)(x), step(x)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(value, x)[0] for value in (found, wanted)))
    assert graphs.frame_count == 2  # before and after the loss


@pytest.mark.usefixtures("older")
def test_older_releases_say_what_fullgraph_needs() -> None:
    with pytest.raises(Unsupported, match=r"portable_nce; fullgraph=True needs torch 2\.11 or later"):
        torch.compile(step, backend="eager", fullgraph=True)(torch.randn(4, 3))


@pytest.mark.usefixtures("older")
def test_messages_of_calls_outside_of_the_compiler_are_the_same() -> None:
    with pytest.raises(TypeError, match="tau: expected temperature in info_nce, got tau"):
        pnce.info_nce(torch.randn(4, 3), torch.randn(4, 3), tau=0.5)  # type: ignore[call-arg]


def test_this_release_compiles_losses_whole() -> None:
    assert outside_of_compiler() is None


def test_a_copy_without_the_adapter_of_torch_asks_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = sys.modules["portable_nce.backends"]
    monkeypatch.delattr(package, "torch_compiler")
    monkeypatch.setitem(sys.modules, "portable_nce.backends.torch_compiler", None)
    assert outside_of_compiler() is None


def test_a_file_that_another_thread_is_importing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "portable_nce.backends.torch_compiler"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))  # begun, without what it will define
    assert outside_of_compiler() is None


def test_a_device_without_autocast_is_not_under_autocast() -> None:
    x = torch.empty(4, 3, device="meta", dtype=torch.bfloat16)
    adapter = load_backend("torch")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert adapter.loss_dtype(x, x.dtype) is torch.bfloat16
        assert adapter.loss_dtype(torch.empty(4, 3), torch.bfloat16) is torch.float32


def test_a_record_that_is_not_filled_has_a_hash() -> None:
    class Pair(Record):
        first: int
        second: int

    empty: Any = object.__new__(Pair)
    assert hash(empty) == hash(object.__new__(Pair))
    empty.first, empty.second = 1, 2
    assert hash(empty) == hash(Pair(1, 2))  # not kept from before


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_compiled_scores_on_a_device_are_rounded(device: str) -> None:
    """Triton contracts a product and a difference into one operation, which leaves out a rounding; not behind a choice.

    Inductor asks the compiler of a CPU for none.
    """
    torch.compiler.reset()
    adapter: Any = load_backend("torch")
    targets: list[Any] = []

    def kept(graph: Any, _: Any) -> Any:
        targets.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    compiled = torch.compile(lambda x: adapter.rounded(x * 0.3) - 1.0, backend=kept)
    compiled(torch.ones(2, device=device))
    assert (torch.where in targets) is (device != "cpu")
