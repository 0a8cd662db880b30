"""What users of PyTorch and JAX do with a loss beside differentiating it: checkpoint, shard, call it in a loop."""

from __future__ import annotations

import functools
import gc
import weakref
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

jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]  # noqa: FBT003  (JAX's interface)

# Parts of torch itself are compiled by torch.jit.script, which warns of its own deprecation.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

CLASSES = [0, 0, 1, 1, 2, 2]

Loss = Callable[..., Any]


def _labels(x: Any) -> Any:
    return torch.tensor(CLASSES) if isinstance(x, torch.Tensor) else jnp.asarray(CLASSES)


def _queue(x: Any) -> pnce.Queue:
    return pnce.queue_push(pnce.queue_init(x, 8), x)


LOSSES: dict[str, Loss] = {
    "info_nce": lambda x, y, t, **o: pnce.info_nce(x, y, temperature=t, **o),
    "info_nce symmetric": lambda x, y, t, **o: pnce.info_nce(x, y, temperature=t, symmetric=True, **o),
    "info_nce shared": lambda x, y, t, **o: pnce.info_nce(x, y, x + y, temperature=t, **o),
    "info_nce own": lambda x, y, t, **o: pnce.info_nce(x, y, x[:, None, :] + y, temperature=t, **o),
    "info_nce index": lambda x, y, t, **o: pnce.info_nce(x, y, positives=_labels(x), temperature=t, **o),
    "info_nce max_sim": lambda x, y, t, **o: pnce.info_nce(
        x[:, None, :] * x[:, :, None],
        y[:, None, :] + y[:, :, None],
        similarity=pnce.similarities.max_sim(),
        temperature=t,
        **o,
    ),
    "info_nce bilinear": lambda x, y, t, **o: pnce.info_nce(
        x, y, similarity=pnce.similarities.bilinear(x[:3, :]), temperature=t, **o
    ),
    "flat_nce": lambda x, y, t, **o: pnce.flat_nce(x, y, temperature=t, form="detach", **o),
    "nt_xent": lambda x, y, t, **o: pnce.nt_xent(x, y, temperature=t, **o),
    "nt_xent three views": lambda x, y, t, **o: pnce.nt_xent(x, y, x + y, temperature=t, **o),
    "dcl": lambda x, y, t, **o: pnce.dcl(x, y, temperature=t, **o),
    "dclw": lambda x, y, t, **o: pnce.dclw(x, y, temperature=t, sigma=t, **o),
    "clip": lambda x, y, t, **o: pnce.clip(x, y, logit_scale=t, **o),
    "siglip": lambda x, y, t, **o: pnce.siglip(x, y, logit_scale=t, logit_bias=t, **o),
    "relic": lambda x, y, t, **o: pnce.relic(x, y, temperature=t, alpha=t, symmetric=True, **o),
    "cpc": lambda x, y, t, **o: pnce.cpc(x, y[None, :, :], x[None, :3, :], temperature=t, **o),
    "n_tuple": lambda x, y, t, **o: pnce.n_tuple(x, y, temperature=t, l2=t, **o),
    "supcon": lambda x, y, t, **o: pnce.supcon(x + y, _labels(x), temperature=t, **o),
    "nca": lambda x, y, t, **o: pnce.nca(x + y, _labels(x), temperature=t, **o),
    "soft_nearest_neighbor": lambda x, y, t, **o: pnce.soft_nearest_neighbor(x + y, _labels(x), temperature=t, **o),
    "contrastive": lambda x, y, t, **o: pnce.contrastive(x + y, _labels(x), margin=9.0 * t, **o),
    "triplet": lambda x, y, t, **o: pnce.triplet(x, y, x - y, margin=t, **o),
    "supcon keys": lambda x, y, t, **o: pnce.supcon(x, _labels(x), keys=y, key_labels=_labels(y), temperature=t, **o),
    "nt_xent keys": lambda x, y, t, **o: pnce.nt_xent(x, y, keys=_queue(y), temperature=t, **o),
    "triplet_from_labels": lambda x, y, t, **o: pnce.triplet_from_labels(x + y, _labels(x), margin=t, **o),
    "triplet_from_labels hard": lambda x, y, t, **o: pnce.triplet_from_labels(
        x + y, _labels(x), margin=t, mining="batch_hard", form="soft", **o
    ),
    "moco": lambda x, y, t, **o: pnce.moco(x, y, _queue(y), temperature=t, **o),
    "two_tower": lambda x, y, t, **o: pnce.two_tower(x, y, log_q=x[:, 0], temperature=t, **o),
    "hcl": lambda x, y, t, **o: pnce.hcl(x, y, temperature=t, **o),
    "distillation": lambda x, y, t, **o: pnce.distillation(x, y, y, x, temperature=t, symmetric=True, **o),
    "gist_embed": lambda x, y, t, **o: pnce.gist_embed(x, y, y, x, temperature=t, margin=-0.5, **o),
    "joint_info_nce": lambda x, y, t, **o: pnce.joint_info_nce(x, y, temperature=t, **o),
    "sogclr": lambda x, y, t, **o: pnce.sogclr(x, y, x[:, 0], temperature=t, rho=1.0, **o)[0],
    "info_nce hardness": lambda x, y, t, **o: pnce.info_nce(x, y, temperature=t, hardness=2.0, **o),
    "cosent": lambda x, y, t, **_: pnce.cosent(x, y, _labels(x), scale=1 / t),
    "angle": lambda x, y, t, **_: pnce.angle(x, y, _labels(x), scale=1 / t),
    "moco_v3": lambda x, y, t, **o: pnce.moco_v3(x, y, x + y, x - y, temperature=t, **o),
    "nnclr": lambda x, y, t, **o: pnce.nnclr(x, y, _queue(y), temperature=t, **o),
    "proto_nce": lambda x, y, t, **o: pnce.proto_nce(
        x, y[:3, :], _labels(x), y[:3, 0] ** 2 + 0.5, key=y, temperature=t, **o
    ),
    "contrast": lambda x, y, t, **o: pnce.contrast(
        x, y, objective="flat_nce", pairing=pnce.pairings.labels(_labels(x), _labels(x)), temperature=t, **o
    ),
}
losses = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
blocks = pytest.mark.parametrize("block_size", [None, 2])


def _numbers() -> list[np.ndarray]:
    return [*np.random.default_rng(13).normal(size=(2, 6, 3)), np.asarray(0.5)]


# ------------------------------------------------------------------------------------------------------------- torch


def _with_gradients(
    loss: Loss, options: dict[str, Any], *, reentrant: bool | None, second: bool, **how: Any
) -> list[torch.Tensor | None]:
    """The loss, its gradients, and those of the sum of their squares; checkpointed, but where `reentrant` is None."""
    arguments = [torch.tensor(x, requires_grad=True) for x in _numbers()]

    def function(*arrays: Any) -> Any:
        return loss(*arrays, **options).sum()

    value = function(*arguments)
    if reentrant is not None:
        value = checkpoint(function, *arguments, use_reentrant=reentrant, **how)
    assert isinstance(value, torch.Tensor)
    if not second:
        value.backward()  # type: ignore[no-untyped-call]
        return [value.detach(), *(x.grad for x in arguments)]
    gradients: Any = torch.autograd.grad(value, arguments, create_graph=True, allow_unused=True)
    found: list[Any] = [g for g in gradients if g is not None]
    squares: Any = sum((g * g).sum() for g in found)
    return [value.detach(), *torch.autograd.grad(squares, arguments, allow_unused=True)]


@losses
@blocks
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_torch_checkpointing(loss: Loss, block_size: int | None, reduction: str) -> None:
    """What is computed again on the way back has the same gradients, to second order where torch has that."""
    options = {"block_size": block_size, "reduction": reduction}
    for second, ways in ((False, (False, True)), (True, (False,))):
        expected = _with_gradients(loss, options, reentrant=None, second=second)
        for reentrant in ways:
            found = _with_gradients(loss, options, reentrant=reentrant, second=second)
            for ours, theirs in zip(found, expected, strict=True):
                assert (ours is None) == (theirs is None)
                if ours is not None and theirs is not None:
                    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@losses
@blocks
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_torch_selective_checkpointing(loss: Loss, block_size: int | None, reduction: str) -> None:
    """With results kept from the first pass, in which torch refuses changes, the gradients are the same."""
    options = {"block_size": block_size, "reduction": reduction}
    aten = torch.ops.aten
    for saved in ([aten.mm.default], [aten.mm.default, aten.exp.default, aten.mul.Tensor]):
        contexts = functools.partial(create_selective_checkpoint_contexts, saved)
        found = _with_gradients(loss, options, reentrant=False, second=False, context_fn=contexts)
        for ours, theirs in zip(found, _with_gradients(loss, options, reentrant=None, second=False), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def test_torch_sharded_tensors_are_refused(mesh: Any) -> None:
    """The rows of one process alone would be taken for all; what to do is said instead."""
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


@losses
@blocks
def test_jax_compiles_a_loss_once(loss: Loss, block_size: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """Without jit, in a loop: parts that are made for each call are found to be those of the last."""

    def run(*arrays: jax.Array) -> None:
        pnce.value_and_grad(lambda x, y, t: loss(x, y, t, block_size=block_size), argnums=(0, 1, 2))(*arrays)

    arrays = [jnp.asarray(x) for x in _numbers()]
    for _ in range(2):
        run(*arrays)
    caplog.clear()
    with jax.log_compiles():
        for _ in range(3):
            run(*arrays)
    assert not [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("block_size", [None, 2])
def test_jax_distances_of_duplicates_are_zero(block_size: int | None, dtype: str) -> None:
    """A compiler fuses the normalisation into the difference of equal rows, which is to be 0 all the same."""
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
    """Coordinates that are equal have a slope all the same."""
    x = np.asarray([[1.0, 2.0, 3.0], [1.0, 0.5, -1.0]])
    y = np.asarray([[1.0, 0.5, 3.0], [0.0, 0.5, 1.0]])

    def loss(z: Any, others: Any) -> Any:
        return pnce.info_nce(z, others, similarity=name, temperature=0.5)

    hessian = jax.hessian(loss)(jnp.asarray(x), jnp.asarray(y))
    expected = torch.func.hessian(lambda z: loss(z, torch.tensor(y)))(torch.tensor(x))
    np.testing.assert_allclose(hessian, expected, rtol=1e-10, atol=1e-10)


@losses
def test_jax_differentiates_by_a_python_number(loss: Loss) -> None:
    """JAX passes a rule for a derivative its own class of numbers instead of an array."""
    x, y, _ = map(jnp.asarray, _numbers())
    gradient = jax.grad(loss, argnums=2)
    np.testing.assert_allclose(gradient(x, y, 0.5), gradient(x, y, jnp.asarray(0.5)), rtol=1e-12)


def test_jax_keeps_nothing_of_a_call() -> None:
    """Of the statics of equal calls, JAX's caches hold one."""
    x, y = (jnp.asarray(np.random.default_rng(k).normal(size=(6, 3))) for k in (1, 2))

    def held() -> int:
        gc.collect()
        return sum(type(thing).__name__.endswith(("Layout", "Plan")) for thing in gc.get_objects())

    for loss in (
        lambda a, b: pnce.info_nce(a, b, temperature=0.5),
        lambda a, b: pnce.dclw(a, b, temperature=0.5),
        lambda a, b: pnce.siglip(a, b, logit_scale=jnp.asarray(2.0), logit_bias=jnp.asarray(-1.0)),
        lambda a, b: pnce.contrast(a, b, objective=lambda row: row.log_odds**2),
    ):
        gradient = pnce.value_and_grad(loss, argnums=(0, 1))
        for _ in range(5):
            gradient(x, y)
        before = held()
        for _ in range(30):
            gradient(x, y)
        assert held() <= before


@pytest.mark.parametrize("name", ["info_nce", "nt_xent", "clip", "siglip", "supcon", "hcl"])
def test_jax_keeps_no_derivative(name: str) -> None:
    """JAX's caches tell calls apart by the derivative that they are in, of which they keep a dead reference."""
    arrays = [jnp.asarray(x) for x in _numbers()]
    gradient = jax.grad(LOSSES[name], argnums=(0, 1, 2))

    def dead() -> int:
        gc.collect()
        return sum(type(thing) is weakref.ref and thing() is None for thing in gc.get_objects())

    for _ in range(3):
        gradient(*arrays)
    before = dead()
    for _ in range(20):
        gradient(*arrays)
    assert dead() < before + 10
