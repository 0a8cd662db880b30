"""JAX's axes and torch's groups of one process: what needs no second one. tests/ranks starts those."""

from __future__ import annotations

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

P: Any = PartitionSpec
RNG = np.random.default_rng(4)
A, B = (RNG.normal(size=(6, 3)).astype(np.float32) for _ in range(2))


def mesh_of(kind: Any) -> Any:
    return jax.make_mesh((1,), ("data",), axis_types=(kind,), devices=jax.devices()[:1])


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "neg_sq_euclidean"])
@pytest.mark.parametrize("loss", ["clip", "info_nce", "nt_xent"])
def test_an_axis_of_one_device_is_one_process(loss: str, similarity: str, *, vma: bool) -> None:
    options: dict[str, Any] = {"clip": {"logit_scale": 2.0}}.get(loss, {"temperature": 0.5})
    options |= {"similarity": similarity, "block_size": 4}
    function = getattr(pnce, loss)
    mapped = jax.shard_map(
        lambda a, b: function(a, b, across=pnce.across("data"), **options),
        mesh=mesh_of(AxisType.Auto),
        in_specs=(P("data"), P("data")),
        out_specs=P(),
        check_vma=vma,
    )
    value, slopes = jax.jit(jax.value_and_grad(mapped, (0, 1)))(A, B)
    wanted, whole = jax.value_and_grad(lambda a, b: function(a, b, **options), (0, 1))(A, B)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    for x, y in zip(slopes, whole, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)


def test_half_precision_keeps_its_gradient() -> None:
    """It travels in 16 bits, but cotangents and tangents do not."""
    a, b = (jnp.asarray(x, dtype=jnp.bfloat16) for x in (A, B))
    mapped = jax.shard_map(
        lambda a, b: pnce.info_nce(a, b, across=pnce.across(("data",))),
        mesh=mesh_of(AxisType.Auto),
        in_specs=(P("data"), P("data")),
        out_specs=P(),
    )
    np.testing.assert_array_equal(jax.jit(jax.grad(mapped))(a, b), jax.grad(pnce.info_nce)(a, b))


@pytest.mark.parametrize("vma", [True, False])
def test_a_queue_is_the_same_on_all_devices(*, vma: bool) -> None:
    queue = pnce.queue_init(jnp.asarray(A), 8)
    push = jax.shard_map(
        lambda queue, rows: pnce.queue_push(queue, rows, across=pnce.across("data")),
        mesh=mesh_of(AxisType.Auto),
        in_specs=(P(), P("data")),
        out_specs=P(),
        check_vma=vma,
    )
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
    """Give a group of this process alone."""
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
