"""Uses of a loss in PyTorch and JAX besides differentiation: checkpointing, sharding, loops."""

from __future__ import annotations

import functools
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import portable_nce as pnce
from portable_nce.testing.cases import LOSSES

from calls import EACH, WAYS, Call, mostly_full

pytestmark = [
    pytest.mark.usefixtures("jax_x64"),
]

losses = pytest.mark.parametrize("name", [name for name in LOSSES if not name.startswith("from_scores.")])
blocks = pytest.mark.parametrize("block_size", [None, 2])
reductions = pytest.mark.parametrize("reduction", ["mean", "none"])


# ------------------------------------------------------------------------------------------------------------- torch


def _with_gradients(call: Call, *, second: bool, how: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """Loss and gradients, or those of the sum of squared gradients; optionally checkpointed."""
    arguments: Any = call.torch(requires_grad=True)

    def function(*arrays: Any) -> Any:
        return call(*arrays).sum()

    value: Any = function(*arguments) if how is None else checkpoint(function, *arguments, **how)
    if second:
        gradients: Any = torch.autograd.grad(value, arguments, create_graph=True, allow_unused=True)
        value = torch.stack([(g * g).sum() for g in gradients if g is not None]).sum()
    value.backward()
    return {"value": value.detach(), **{str(k): x.grad for k, x in enumerate(arguments) if x.grad is not None}}


def _keeping(*kept: Any) -> dict[str, Any]:
    """Selective checkpointing: saved results must not be modified."""
    return {"use_reentrant": False, "context_fn": functools.partial(create_selective_checkpoint_contexts, [*kept])}


@losses
@blocks
@reductions
def test_torch_checkpointing(name: str, block_size: int | None, reduction: str) -> None:
    """Recomputed losses have the same gradients, to second order where torch supports it."""
    call = Call(name, rows=6, block_size=block_size, reduction=reduction)
    aten = torch.ops.aten
    plain, reentrant = {"use_reentrant": False}, {"use_reentrant": True}
    selective = _keeping(aten.mm.default), _keeping(aten.mm.default, aten.exp.default, aten.mul.Tensor)
    for second, ways in ((False, (plain, reentrant, *selective)), (True, (plain,))):
        expected = _with_gradients(call, second=second)
        for how in ways:
            torch.testing.assert_close(_with_gradients(call, second=second, how=how), expected, rtol=1e-12, atol=1e-12)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    """A mesh of one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def test_torch_sharded_tensors_are_refused(mesh: Any) -> None:
    """A DTensor would give the loss of the rows of one process; the error names the remedy."""
    plain = torch.randn(4, 3)
    sharded = distribute_tensor(plain, mesh, [Shard(0)])
    calls: dict[str, Callable[[], Any]] = {
        "query": lambda: pnce.info_nce(sharded, sharded),
        "positive_key": lambda: pnce.info_nce(plain, sharded),
        "scores": lambda: pnce.from_scores.info_nce(sharded),
        "temperature": lambda: pnce.info_nce(plain, plain, temperature=sharded[0, 0]),
        "example": lambda: pnce.queue_init(sharded, 4),
        "rows": lambda: pnce.pairings.labels(sharded[:, 0].to(torch.int64)),
        "weight": lambda: pnce.similarities.bilinear(sharded),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=rf"^{name}: .*DTensor.*to_local\(\).*full_tensor\(\)"):
            call()
    with pytest.raises(TypeError, match="DTensor"):
        pnce.value_and_grad(pnce.info_nce)(sharded, sharded)
    assert torch.equal(pnce.info_nce(sharded.full_tensor(), plain), pnce.info_nce(plain, plain))


# --------------------------------------------------------------------------------------------------------------- JAX


@pytest.mark.parametrize("name", mostly_full(LOSSES, ["info_nce", "relic", "siglip", "moco queue", "triplet"]))
@pytest.mark.parametrize("block_size", [2, pytest.param(None, marks=pytest.mark.full)])
def test_jax_compiles_a_loss_once(name: str, block_size: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """In a loop without jit, parts that are made for each call equal those of the last call."""
    call = Call(name, block_size=block_size)
    arrays, others = call.jax(), call.others(jnp.asarray)

    def run(*arrays: jax.Array) -> None:
        def loss(*given: jax.Array) -> Any:  # a new function each time
            return call(*given, *others)

        pnce.value_and_grad(loss, argnums=tuple(range(len(arrays))))(*arrays)

    for _ in range(2):
        run(*arrays)
    caplog.clear()
    with jax.log_compiles():
        run(*arrays)
    assert not [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("block_size", [None, 2])
def test_jax_distances_of_duplicates_are_zero(block_size: int | None, dtype: str) -> None:
    """The difference of equal rows is 0 although a compiler fuses the normalisation into it."""
    similarity = pnce.similarities.normalized("neg_euclidean")
    attract = pnce.objectives.Pairwise(lambda score: -score, None)

    def loss(x: Any, y: Any) -> Any:
        return pnce.contrast(x, y, objective=attract, similarity=similarity, reduction="sum", block_size=block_size)

    for seed in range(5):
        x = jnp.asarray(np.random.default_rng(seed).normal(size=(6, 3 + seed)), dtype=dtype)
        value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, x + 0.0)
        assert value == 0.0
        assert all(bool(jnp.all(gradient == 0.0)) for gradient in gradients)
        shared = jax.jit(jax.value_and_grad(lambda z: loss(z, z)))(x)
        assert shared[0] == 0.0
        assert bool(jnp.all(shared[1] == 0.0))


@pytest.mark.parametrize("name", ["neg_sq_euclidean", "neg_euclidean"])
def test_jax_second_derivatives_of_distances(name: pnce.typing.SimilarityName) -> None:
    """Equal coordinates have the correct derivatives."""
    x = np.asarray([[1.0, 2.0, 3.0], [1.0, 0.5, -1.0]])
    y = np.asarray([[1.0, 0.5, 3.0], [0.0, 0.5, 1.0]])

    def loss(z: Any, others: Any) -> Any:
        return pnce.info_nce(z, others, similarity=name, temperature=0.5)

    hessian = jax.hessian(loss)(jnp.asarray(x), jnp.asarray(y))
    expected = torch.func.hessian(lambda z: loss(z, torch.tensor(y)))(torch.tensor(x))
    np.testing.assert_allclose(hessian, expected, rtol=1e-10, atol=1e-10)


LEARNED = [name for name in dict.fromkeys((*WAYS, *EACH)) if name in LOSSES and LOSSES[name].parameters]


@pytest.mark.parametrize("name", mostly_full(LEARNED, [*WAYS, "clip"]))
def test_jax_differentiates_by_a_python_number(name: str) -> None:
    """JAX passes its own class of numbers, not arrays, to derivative rules."""
    call = Call(name, block_size="auto")
    *arrays, number = call.jax()
    gradient = jax.grad(call, argnums=len(arrays))
    np.testing.assert_allclose(gradient(*arrays, float(number)), gradient(*arrays, number), rtol=1e-12)


def test_jax_keeps_nothing_of_a_call() -> None:
    """JAX's caches keep one set of static arguments for equal calls."""
    x, y = (jnp.asarray(np.random.default_rng(k).normal(size=(6, 3))) for k in (1, 2))

    def held() -> int:
        gc.collect()
        kinds = Counter(map(type, gc.get_objects()))
        return sum(count for kind, count in kinds.items() if kind.__name__.endswith(("SweepSpec", "Plan")))

    for loss in (
        lambda a, b: pnce.dclw(a, b, temperature=0.5),
        lambda a, b: pnce.siglip(a, b, logit_scale=jnp.asarray(8.0), logit_bias=jnp.asarray(-1.0)),
        lambda a, b: pnce.contrast(a, b, objective=lambda row: row.log_odds**2),
    ):
        gradient = pnce.value_and_grad(loss, argnums=(0, 1))
        for _ in range(3):
            gradient(x, y)
        before = held()
        for _ in range(4):
            gradient(x, y)
        assert held() <= before


@pytest.mark.parametrize("name", mostly_full(["info_nce", "clip", "siglip", "supcon", "hcl"]))
def test_jax_keeps_no_derivative(name: str) -> None:
    """JAX's caches distinguish calls by the surrounding derivative, to which they keep a dead reference."""
    call = Call(name, rows=6, block_size="auto")
    arrays = call.jax()
    gradient = jax.grad(call, argnums=tuple(range(len(arrays))))

    def dead() -> int:
        gc.collect()
        return sum(type(thing) is weakref.ref and thing() is None for thing in gc.get_objects())

    for _ in range(3):
        gradient(*arrays)
    before = dead()
    for _ in range(20):
        gradient(*arrays)
    assert dead() < before + 10
