"""JAX axes and torch groups of one process; tests/ranks starts several."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from torch.distributed.device_mesh import init_device_mesh

import portable_nce as pnce
from portable_nce._core.registry import load_backend

P: Any = PartitionSpec
RNG = np.random.default_rng(4)
A, B = (RNG.normal(size=(6, 3)).astype(np.float32) for _ in range(2))


def mesh_of(kind: Any) -> Any:
    return jax.make_mesh((1,), ("data",), axis_types=(kind,), devices=jax.devices()[:1])


def mapped(function: Any, *specs: Any, vma: bool = True) -> Any:
    """Map a function of arrays over an axis of one device."""
    mesh = mesh_of(AxisType.Auto)
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=vma)


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "neg_sq_euclidean"])
@pytest.mark.parametrize("loss", ["clip", "info_nce", "nt_xent"])
def test_an_axis_of_one_device_is_one_process(loss: str, similarity: str, *, vma: bool) -> None:
    scale = {"logit_scale": 2.0} if loss == "clip" else {"temperature": 0.5}
    function = functools.partial(getattr(pnce, loss), similarity=similarity, block_size=4, **scale)
    shared = mapped(functools.partial(function, across=pnce.across("data")), P("data"), P("data"), vma=vma)
    value, slopes = jax.jit(jax.value_and_grad(shared, (0, 1)))(A, B)
    wanted, whole = jax.jit(jax.value_and_grad(function, (0, 1)))(A, B)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    for x, y in zip(slopes, whole, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)


def test_half_precision_keeps_its_gradient() -> None:
    """Values are communicated in 16 bits, cotangents and tangents are not."""
    a, b = (jnp.asarray(x, dtype=jnp.bfloat16) for x in (A, B))
    shared = mapped(functools.partial(pnce.info_nce, across=pnce.across(("data",))), P("data"), P("data"))
    np.testing.assert_array_equal(jax.jit(jax.grad(shared))(a, b), jax.grad(pnce.info_nce)(a, b))


@pytest.mark.parametrize("vma", [True, False])
def test_a_queue_is_the_same_on_all_devices(*, vma: bool) -> None:
    queue = pnce.queue_init(jnp.asarray(A), 8)
    push = mapped(functools.partial(pnce.queue_push, across=pnce.across("data")), P(), P("data"), vma=vma)
    found, wanted = jax.jit(push)(queue, jnp.asarray(A)), pnce.queue_push(queue, jnp.asarray(A))
    np.testing.assert_array_equal(found.rows, wanted.rows)
    np.testing.assert_array_equal(found.valid, wanted.valid)


def test_an_axis_must_be_there() -> None:
    with pytest.raises(ValueError, match=r"inside of jax\.shard_map over the axis 'data'"):
        pnce.info_nce(jnp.asarray(A), jnp.asarray(B), across=pnce.across("data"))
    with pytest.raises(ValueError, match=r"^gradients: expected None with an axis of JAX"):
        pnce.across("data", gradients="summed")
    with pytest.raises(TypeError, match=r"^group: expected"):
        pnce.across((), gradients="summed")


def test_explicit_axes_are_refused_by_the_name_of_the_remedy() -> None:
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(A[:3], NamedSharding(mesh, P("data")))
        for loss in (pnce.info_nce, lambda a, _: pnce.from_scores.info_nce(a)):
            with pytest.raises(TypeError, match="auto_axes"):
                jax.jit(loss)(sharded, sharded)


@pytest.fixture
def group(tmp_path: Path) -> Any:
    """Give a group of this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_group_of_one_process_is_one_process(group: Any) -> None:
    a, b = (torch.tensor(x) for x in (A, B))
    for ranks in (group, init_device_mesh("cpu", (1,))):
        found = pnce.clip(a, b, logit_scale=2.0, across=pnce.across(ranks, gradients="averaged"))
        assert found == pnce.clip(a, b, logit_scale=2.0)
    with pytest.raises(ValueError, match=r"^group: expected a device mesh of one dimension, got 2"):
        pnce.across(init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "model")), gradients="averaged")
    with pytest.raises(TypeError, match=r"^group: expected a process group"):
        pnce.across(torch.device("cpu"), gradients="averaged")
    with pytest.raises(ValueError, match=r"^gradients: expected 'averaged'"):
        pnce.across(group)


def test_the_collectives_of_a_group_of_one(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager and compiled collectives."""
    torch_ranks = importlib.import_module("portable_nce.backends.torch_ranks")
    ranks: Any = torch_ranks.communicator(group)
    x = torch.tensor(A)
    assert ranks.tell([1, 2]) == [[1, 2]]
    for compiling in (False, True):
        monkeypatch.setattr(torch_ranks, "_compiling", lambda compiling=compiling: compiling)
        for found in (ranks.all_gather(x, (6,)), ranks.reduce_scatter(x, (6,)), ranks.all_reduce(x)):
            torch.testing.assert_close(found + 0, x)
        torch.testing.assert_close(ranks.all_reduce(x, largest=True) + 0, x)
    monkeypatch.setattr(dist, "get_rank", lambda _: -1)
    with pytest.raises(ValueError, match=r"^group: expected a group to which this process belongs"):
        torch_ranks.communicator(group)
    monkeypatch.setattr(dist, "is_available", lambda: False)
    assert torch_ranks.communicator(group) is None


class Doubled:
    """A linear map that is its own derivative, and its own transpose."""

    def __call__(self, x: Any) -> Any:
        return 2.0 * x.detach()

    def derivative(self) -> Doubled:
        return self

    def transposed(self) -> Doubled:
        return self


def test_a_linear_map_is_differentiated_on_torch() -> None:
    adapter = load_backend("torch")
    x = torch.tensor([1.0, 3.0], dtype=torch.float64)

    def energy(x: Any) -> Any:
        return (adapter.linear_map(Doubled(), x) ** 2).sum()

    torch.testing.assert_close(torch.func.grad(energy)(x), 8.0 * x)
    forward: Any = torch.func.jvp(energy, (x,), (x,))
    torch.testing.assert_close(forward[1], (8.0 * x * x).sum())
    over_reverse: Any = torch.func.jvp(torch.func.grad(energy), (x,), (x,))
    torch.testing.assert_close(over_reverse[1], 8.0 * x)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(energy(leaf), leaf, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(slope.sum(), leaf)[0], torch.full_like(x, 8.0))

    def directional(x: Any) -> Any:
        found: Any = torch.func.jvp(energy, (x,), (x,))
        return found[1]

    with pytest.raises(RuntimeError, match="Nested forward mode is not supported between ranks"):
        torch.func.jvp(directional, (x,), (x,))
