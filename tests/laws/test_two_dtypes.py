"""Embeddings of two dtypes, as towers under autocast make them: the wider decides, and each gradient has its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce.testing import run_ranks

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")

ROWS, WIDTH = 6, 8
rng = np.random.default_rng(0)
A = rng.normal(size=(ROWS, WIDTH))
B = A / 2 + rng.normal(size=(ROWS, WIDTH))
LABELS = np.asarray([0, 1, 2, 0, 1, 2])
CONCENTRATIONS = np.asarray([0.5, 0.25, 0.75, 0.5, 0.25, 0.5])
PROJECTION = np.eye(WIDTH)[None] / 4


def alike(x: Any, array: np.ndarray) -> Any:
    """An array of the library of x; numbers are of its dtype."""
    if isinstance(x, torch.Tensor):
        return torch.tensor(array, dtype=x.dtype if array.dtype.kind == "f" else None)
    library = jnp if isinstance(x, jax.Array) else np
    return library.asarray(array, dtype=x.dtype if array.dtype.kind == "f" else None)


Loss: TypeAlias = Callable[..., Any]

# What stands beside x and y has the dtype of one of them, and is of powers of two of its numbers.
LOSSES: dict[str, Loss] = {
    "info_nce": pnce.info_nce,
    "info_nce symmetric": lambda x, y, **o: pnce.info_nce(x, y, symmetric=True, **o),
    "info_nce shared": lambda x, y, **o: pnce.info_nce(x, x / 2, y, **o),
    "info_nce own": lambda x, y, **o: pnce.info_nce(x, x / 2, y[:, None, ...], **o),
    "clip": lambda x, y, **o: pnce.clip(x, y, logit_scale=8.0, **o),
    "siglip": lambda x, y, **o: pnce.siglip(x, y, logit_scale=8.0, logit_bias=-4.0, **o),
    "siglip negative_only": lambda x, y, **o: pnce.siglip(
        x, y, logit_scale=8.0, logit_bias=-4.0, negative_only=True, **o
    ),
    "two_tower": lambda x, y, **o: pnce.two_tower(x, y, similarity="cosine", temperature=0.25, **o),
    "moco": lambda x, y, **o: pnce.moco(x, y, y / 2, **o),
    "moco queue": lambda x, y, **o: pnce.moco(x, x / 2, y, **o),
    "moco_v3": lambda x, y, **o: pnce.moco_v3(x, x / 2, y, y * 2, **o),
    "moco_v3 queries": lambda x, y, **o: pnce.moco_v3(x, y, x / 2, y / 2, **o),
    "nnclr": lambda x, y, **o: pnce.nnclr(x, y, y, **o),
    "nnclr views": lambda x, y, **o: pnce.nnclr(x, y, x, negatives="views", **o),
    "nt_xent": pnce.nt_xent,
    "nt_xent three views": lambda x, y, **o: pnce.nt_xent(x, x / 2, y, **o),
    "nt_xent keys": lambda x, y, **o: pnce.nt_xent(x, x / 2, keys=y, **o),
    **{name: getattr(pnce, name) for name in ("dcl", "dclw", "flat_nce", "relic")},
    "cpc": lambda x, y, **o: pnce.cpc(x, y[None, ...], alike(x, PROJECTION), **o),
    "cpc projections": lambda x, y, **o: pnce.cpc(x, x[None, ...] / 2, alike(y, PROJECTION), **o),
    "n_tuple": lambda x, y, **o: pnce.n_tuple(x / 4, y, l2=0.125, **o),
    "supcon keys": lambda x, y, **o: pnce.supcon(x, alike(x, LABELS), keys=y, key_labels=alike(y, LABELS), **o),
    "nca keys": lambda x, y, **o: pnce.nca(
        x, alike(x, LABELS), keys=y, key_labels=alike(y, LABELS), temperature=4.0, **o
    ),
    "contrastive keys": lambda x, y, **o: pnce.contrastive(
        x, alike(x, LABELS), keys=y, key_labels=alike(y, LABELS), margin=4.0, **o
    ),
    "triplet_from_labels keys": lambda x, y, **o: pnce.triplet_from_labels(
        x, alike(x, LABELS), keys=y, key_labels=alike(y, LABELS), mining="semi_hard", **o
    ),
    "triplet": lambda x, y, **o: pnce.triplet(x, y, x / 2, **o),
    "proto_nce": lambda x, y, **o: pnce.proto_nce(x, y, alike(x, LABELS), alike(x, CONCENTRATIONS), **o),
    "proto_nce key": lambda x, y, **o: pnce.proto_nce(x, x / 2, alike(x, LABELS), alike(x, CONCENTRATIONS), key=y, **o),
    "hcl": pnce.hcl,
    "relic keys": lambda x, y, **o: pnce.relic(x, y, keys=y / 2, temperature=0.25, **o),
    "joint_info_nce": lambda x, y, **o: pnce.joint_info_nce(x, y, temperature=0.25, **o),
    "sogclr": lambda x, y, **o: pnce.sogclr(x, y, x[:, 0], temperature=0.25, **o)[0],
    "distillation": lambda x, y, **o: pnce.distillation(x, y, x[:, :2], y[:, :2], temperature=0.25, **o),
    "gist_embed": lambda x, y, **o: pnce.gist_embed(x, y, y[:, :2], x[:, :2], temperature=0.25, **o),
    "contrast logistic": lambda x, y, **o: pnce.contrast(
        x, y, objective="logistic", symmetric=True, temperature=0.25, **o
    ),
}
EPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}

losses = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
blocks = pytest.mark.parametrize("block_size", [None, 2])
pairs = pytest.mark.parametrize(
    ("first", "second"), [("bfloat16", "float32"), ("float32", "bfloat16"), ("float16", "float32")]
)


def total(values: Any) -> Any:
    return values.sum() if len(values.shape) else values


def exact(loss: Loss, x: np.ndarray, y: np.ndarray, reduction: str) -> list[Any]:
    """Value and gradients of the same numbers in float64."""

    def function(a: Any, b: Any) -> Any:
        return total(loss(a, b, block_size=None, reduction=reduction))

    value, gradients = pnce.value_and_grad(function, (0, 1))(x, y)
    return [value, *gradients]


def check(found: list[Any], wanted: list[Any], dtypes: list[str]) -> None:
    for got, want, dtype in zip(found, wanted, dtypes, strict=True):
        error = np.abs(np.asarray(got, dtype=np.float64) - want).max()
        # Where x stands in two places, its gradient is the sum of two that were rounded, rounded.
        assert error <= max(3 * EPS[dtype], 1e-5) * np.abs(want).max()


@losses
@pairs
@pytest.mark.parametrize("autocast", ["", "autocast"])
@pytest.mark.parametrize("form", [(None, "mean"), (2, "none")], ids=["dense", "streamed"])
def test_torch(loss: Loss, first: str, second: str, autocast: str, form: tuple[int | None, str]) -> None:
    x, y = (
        torch.tensor(array, dtype=getattr(torch, dtype), requires_grad=True)
        for array, dtype in ((A, first), (B, second))
    )
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(autocast)):
        value = loss(x, y, block_size=form[0], reduction=form[1])
    assert value.dtype == torch.float32
    gradients = torch.autograd.grad(value.sum(), (x, y), allow_unused=True, materialize_grads=True)
    assert [gradient.dtype for gradient in gradients] == [x.dtype, y.dtype]
    a, b = (z.detach().double().numpy() for z in (x, y))
    wanted = exact(loss, a, b, form[1])
    check([z.detach().double().numpy() for z in (value.sum(), *gradients)], wanted, ["float32", first, second])


@losses
@blocks
@pytest.mark.parametrize(("first", "second"), [("float16", "float32"), ("float32", "float16")])
def test_numpy(loss: Loss, block_size: int | None, first: str, second: str) -> None:
    x, y = A.astype(first), B.astype(second)
    value, gradients = pnce.value_and_grad(lambda a, b: loss(a, b, block_size=block_size), (0, 1))(x, y)
    assert [z.dtype.name for z in (value, *gradients)] == ["float32", first, second]
    wanted = exact(loss, x.astype(np.float64), y.astype(np.float64), "mean")
    check([value, *gradients], wanted, ["float32", first, second])


@losses
def test_jax(loss: Loss) -> None:
    x, y = jnp.asarray(A, dtype=jnp.bfloat16), jnp.asarray(B, dtype=jnp.float32)
    value, gradients = pnce.value_and_grad(loss, (0, 1))(x, y)
    assert [z.dtype.name for z in (value, *gradients)] == ["float32", "bfloat16", "float32"]
    wanted = exact(loss, np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64), "mean")
    check([value, *gradients], wanted, ["float32", "bfloat16", "float32"])


@pytest.mark.parametrize("name", ["nt_xent", "nt_xent three views", "nt_xent keys", "joint_info_nce", "relic keys"])
@pairs
def test_ranks(name: str, first: str, second: str) -> None:
    """Arrays that a loss joins travel in a dtype that holds the numbers of all."""
    cuts = [slice(2), slice(2, ROWS)]
    x, y = (torch.tensor(array, dtype=getattr(torch, dtype)) for array, dtype in ((A, first), (B, second)))

    def on_a_rank(group: Any) -> tuple[Any, ...]:
        own = [z[cuts[group.rank]].clone().requires_grad_() for z in (x, y)]
        value = LOSSES[name](*own, across=pnce.across(group, gradients="summed"))
        return value.detach(), *torch.autograd.grad(value, own)

    (value, *slopes), (other, *others) = run_ranks(2, on_a_rank)
    assert value == other
    found = [value, *(torch.cat(pair) for pair in zip(slopes, others, strict=True))]
    wanted = exact(LOSSES[name], x.double().numpy(), y.double().numpy(), "mean")
    check([z.double().numpy() for z in found], wanted, ["float32", first, second])


def test_two_forms_of_sixteen_bits_meet_in_float32() -> None:
    x, y = torch.tensor(A).half(), torch.tensor(B).bfloat16()
    for name, loss in LOSSES.items():
        assert loss(x, y).dtype == torch.float32, name
