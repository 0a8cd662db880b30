"""Compiled losses with gradients, on the installed release of PyTorch or JAX."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce._core.registry import load_backend
from portable_nce._execution import tiling
from portable_nce.testing.cases import LOSSES, example
from portable_nce.testing.variants import started

pytestmark = [
    # Compilers use what their libraries have deprecated.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

WITH_TORCH = importlib.util.find_spec("torch") is not None
"""Whether PyTorch is installed; otherwise JAX is."""

NAMES = [
    *(name for name in LOSSES if " " not in name and "." not in name),
    *("contrast labels", "info_nce max_sim", "info_nce own", "moco queue", "nt_xent three views"),
    *("triplet_from_labels batch_hard", "from_scores.clip", "from_scores.relic", "from_scores.triplet"),
]
"""Losses of embeddings, and some other code paths."""

NESTED = "matryoshka, made in compiled code"


def drawn(shape: tuple[int, ...], place: int) -> Any:
    """Draw normal numbers."""
    return np.random.default_rng((7, place)).normal(size=shape).tolist()


def call_of(name: str, rows: int, dtype: str = "float64") -> tuple[Callable[..., Any], list[Any], list[Any]]:
    """Return a loss as a function of arrays, those that need a gradient, and the others."""
    case = example("info_nce" if name == NESTED else name, rows, fill=drawn)
    constant = frozenset() if name == NESTED else LOSSES[name].constant
    given = {key: np.asarray(value) for key, value in {**case.arguments, **case.constants}.items()}
    given = {key: x.astype(dtype) if x.dtype.kind == "f" else x for key, x in given.items()}
    learned = [key for key in case.arguments if key not in constant]
    names = [*learned, *(key for key in given if key not in learned)]
    bound = case.bound()

    def function(*arrays: Any) -> Any:
        if name == NESTED:
            return pnce.matryoshka(pnce.info_nce, [3, 2])(*arrays[:2], temperature=arrays[2])
        return bound(dict(zip(names, arrays, strict=True)))

    return function, [given[key] for key in learned], [given[key] for key in names[len(learned) :]]


def release() -> tuple[int, ...]:
    """Return the release of PyTorch."""
    import torch

    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def torch_results(function: Any, learned: list[Any], others: list[Any], context: Any = None) -> list[Any]:
    """Value and gradients by PyTorch."""
    import torch

    tensors = [torch.tensor(x, requires_grad=True) for x in learned]
    with context or nullcontext():
        value = function(*tensors, *map(torch.asarray, others))
    slopes: Any = torch.autograd.grad(value, tensors, allow_unused=True)
    return [value.detach().double().numpy(), *(0.0 if x is None else x.numpy() for x in slopes)]  # no bfloat16 there


def close(ours: list[Any], theirs: list[Any], tolerance: float = 1e-12) -> None:
    """Compare values and gradients."""
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    """Let no test reuse a graph."""
    if WITH_TORCH:
        import torch

        torch.compiler.reset()


def compiled_by_torch(function: Any) -> Any:
    """Compile a function, whole if this release traces losses."""
    import torch

    return torch.compile(function, backend="aot_eager", fullgraph=release() >= (2, 11))


@pytest.mark.parametrize("name", [*NAMES, NESTED])
def test_a_compiled_loss_is_the_eager_one(name: str) -> None:
    function, learned, others = call_of(name, 4)
    if WITH_TORCH:
        compiled = compiled_by_torch(function)
        close(torch_results(compiled, learned, others), torch_results(function, learned, others))
        return
    import jax

    assert jax.config.jax_enable_x64, "set JAX_ENABLE_X64=1"  # type: ignore[attr-defined]
    places = tuple(range(len(learned)))
    arrays = [*map(jax.numpy.asarray, (*learned, *others))]
    value, slopes = jax.jit(jax.value_and_grad(function, argnums=places))(*arrays)
    expected, gradients = pnce.value_and_grad(function, argnums=places)(*map(np.asarray, (*learned, *others)))
    close([value, *slopes], [expected, *gradients])


@pytest.fixture
def emulated() -> Iterator[None]:
    """Emulate 16-bit products on the CPU."""
    devices = load_backend("torch").half_devices  # type: ignore[attr-defined]
    devices.add("cpu")
    yield
    devices.discard("cpu")


if not WITH_TORCH:

    @pytest.mark.parametrize("mining", ["all", "semi_hard", "batch_hard"])
    def test_many_float32_triplets(mining: str) -> None:
        """More than the rows of the table: programs sort integers of 64 bits."""
        import jax

        x, labels = np.random.default_rng(0).normal(size=(48, 3)).astype("float32"), np.arange(48) // 2
        options: dict[str, Any] = {} if mining == "all" else {"mining": mining}
        found = jax.jit(lambda x, labels: pnce.triplet_from_labels(x, labels, **options))(x, labels)
        close([found], [pnce.triplet_from_labels(x, labels, **options)], 1e-6)


WAYS = ["info_nce", "siglip", "supcon", "moco queue"]

if WITH_TORCH:

    @pytest.mark.parametrize("name", WAYS)
    def test_a_second_batch_size_under_autocast(name: str) -> None:
        import torch

        function, *_ = call_of(name, 4, "float32")
        compiled = compiled_by_torch(function)
        for rows in (4, 6):
            _, learned, others = call_of(name, rows, "float32")
            context = torch.autocast("cpu", dtype=torch.bfloat16)
            close(torch_results(compiled, learned, others, context), torch_results(function, learned, others), 1e-5)

    @pytest.mark.skipif(release() < (2, 11), reason="older releases do not trace losses")
    def test_a_large_compiled_batch_is_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
        """No tensor of the graph has the size of the score matrix."""
        import torch
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch._aot_autograd.utils import make_boxed_func

        monkeypatch.setattr(tiling, "_COMPILED_ENTRIES", 2**10)
        sizes: list[int] = []

        def counted(graph: Any, _: Any) -> Any:
            made = [node.meta.get("val") for node in graph.graph.nodes]
            sizes.extend(int(x.numel()) for x in made if isinstance(x, torch.Tensor))
            return make_boxed_func(graph.forward)

        x, y = (torch.randn(64, 5, requires_grad=True) for _ in range(2))
        loss: Any = torch.compile(pnce.info_nce, backend=aot_autograd(fw_compiler=counted), dynamic=False)
        loss(x, y).backward()
        assert 64 * 64 // 16 <= max(sizes) < 64 * 64 // 2

    @pytest.mark.skipif(release() < (2, 11), reason="older releases do not trace steps")
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("name", ["info_nce", "clip", "nt_xent", "supcon", "siglip", "moco queue"])
    def test_compiled_steps_of_an_uncompiled_loss(name: str, dtype: str) -> None:
        import torch

        found = []
        for variant in ("torch-halves", "portable_nce.testing.variants:FUSED"):
            with started(variant).active():
                for rows in (6, 8):
                    function, learned, others = call_of(name, rows, "float32")
                    tensors = [torch.tensor(x, requires_grad=True) for x in learned]
                    value = function(*(x.to(getattr(torch, dtype)) for x in tensors), *map(torch.asarray, others))
                    value.backward()
                    found.append([value.detach().double().numpy(), *(x.grad.numpy() for x in tensors)])  # type: ignore[union-attr]
        for uncompiled, compiled in zip(found[:2], found[2:], strict=True):
            close(compiled, uncompiled, 1e-5 if dtype == "float32" else 2e-2)

    @pytest.mark.usefixtures("emulated")
    @pytest.mark.parametrize("name", WAYS)
    def test_products_of_16_bits(name: str) -> None:
        import torch

        function, learned, others = call_of(name, 4, "float32")

        def of_halves(*arrays: Any) -> Any:
            return function(*(x.to(torch.bfloat16) if x.ndim > 1 and x.is_floating_point() else x for x in arrays))

        compiled = compiled_by_torch(of_halves)
        close(torch_results(compiled, learned, others), torch_results(of_halves, learned, others), 1e-2)

    def test_a_compiled_training_step() -> None:
        """Forward pass, loss, backward pass and the step of the optimiser, for a temperature that is annealed."""
        import torch

        def trained(wrap: Callable[[Any], Any]) -> torch.Tensor:
            torch.manual_seed(0)
            tower = torch.nn.Linear(5, 3, dtype=torch.float64)
            optimizer = torch.optim.SGD(tower.parameters(), lr=0.1)

            @wrap
            def loss_of(x: torch.Tensor, y: torch.Tensor, temperature: float) -> torch.Tensor:
                loss: torch.Tensor = pnce.info_nce(tower(x), tower(y), temperature=temperature)
                return loss

            for k in range(12):
                optimizer.zero_grad()
                x, y = torch.randn(2, 6, 5, dtype=torch.float64)
                loss_of(x, y, 0.5 - k / 32).backward()
                optimizer.step()
            return tower.weight.detach()

        close([trained(compiled_by_torch)], [trained(lambda function: function)])

    def test_what_fullgraph_needs_on_older_releases() -> None:
        import torch

        x = torch.randn(4, 3)
        compiled = torch.compile(lambda x: pnce.info_nce(x, x.flip(0)), backend="eager", fullgraph=True)
        if release() >= (2, 11):
            assert compiled(x) == pnce.info_nce(x, x.flip(0))
        else:
            with pytest.raises(Exception, match=r"needs torch 2\.11"):
                compiled(x)
