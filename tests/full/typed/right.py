"""Calls that type checkers must accept; the comment beside `reveal_type` is what they must say."""

from __future__ import annotations

from functools import partial
from typing import Any, assert_type, reveal_type

import array_api_strict as strict
import jax
import jax.numpy as jnp
import numpy as np
import torch

import portable_nce as pnce
from portable_nce.modules.torch import CLIP, SupCon

TENSOR = torch.eye(4, 3)
PARAMETER = torch.nn.Parameter(torch.eye(4, 3))
ARRAY = jnp.eye(4, 3)
NDARRAY = np.eye(4, 3)
HALF = np.eye(4, 3, dtype=np.float16)
SINGLE = np.eye(4, 3, dtype=np.float32)
COLUMN = np.linspace(0.0, 1.0, 60)
STRICT = strict.eye(4, 3)
UNKNOWN: Any = np.eye(4, 3)  # what a library without annotations returns


def every_library() -> None:
    reveal_type(pnce.info_nce(TENSOR, TENSOR))  # Tensor
    reveal_type(pnce.info_nce(PARAMETER, TENSOR))  # Tensor
    reveal_type(pnce.info_nce(ARRAY, ARRAY))  # Array
    reveal_type(pnce.info_nce(NDARRAY, NDARRAY))  # ndarray
    reveal_type(pnce.info_nce(STRICT, STRICT))  # Array
    reveal_type(pnce.info_nce(UNKNOWN, UNKNOWN))  # Any
    assert_type(pnce.nt_xent(TENSOR, TENSOR, TENSOR, multi_positive="each"), torch.Tensor)
    assert_type(pnce.contrast(ARRAY, objective="info_nce", pairing="two_views"), jax.Array)
    assert_type(pnce.from_scores.dcl(TENSOR @ TENSOR.T), torch.Tensor)
    assert_type(pnce.bounds.js(ARRAY @ ARRAY.T), jax.Array)
    assert_type(pnce.density.local_nce(TENSOR[:, 0], TENSOR, -1.0, TENSOR), torch.Tensor)
    assert_type(pnce.diagnostics.uniformity(ARRAY), jax.Array)
    assert_type(pnce.stop_gradient(TENSOR), torch.Tensor)


def results() -> None:
    assert pnce.info_nce(NDARRAY, NDARRAY).shape == ()  # that of the loss, not that of the embeddings
    assert float(pnce.info_nce(NDARRAY, NDARRAY)) > 0.0
    loss, log_u = pnce.sogclr(TENSOR, TENSOR, torch.zeros(4))
    assert_type(loss, torch.Tensor)
    assert_type(log_u, torch.Tensor)
    reveal_type(pnce.bounds.mine(NDARRAY @ NDARRAY.T)[0])  # ndarray
    assert_type(pnce.bounds.log_n_ceiling(512), float)
    assert_type(pnce.bounds.log_n_ceiling(ARRAY @ ARRAY.T), jax.Array)


def dtypes() -> None:
    reveal_type(pnce.info_nce(HALF, SINGLE))  # ndarray
    reveal_type(pnce.info_nce(SINGLE, HALF, temperature=np.float32(0.1)))  # ndarray
    mask, weights = np.ones((4, 4), dtype=bool), np.ones(4, dtype=np.int64)
    reveal_type(pnce.dcl(SINGLE, SINGLE, mask=np.ones((8, 8), dtype=bool), temperature=np.asarray(0.1)))  # ndarray
    reveal_type(pnce.info_nce(SINGLE, SINGLE, mask=mask, weights=weights, positives=np.arange(4)))  # ndarray
    reveal_type(pnce.supcon(TENSOR, torch.tensor([0, 0, 1, 1]), temperature=torch.tensor(0.1)))  # Tensor
    reveal_type(pnce.cosent(ARRAY, ARRAY, jnp.arange(4), weights=jnp.asarray([True] * 4)))  # Array


def options(reduction: pnce.typing.ReductionName = "sum", block_size: pnce.typing.BlockSize = 2) -> None:
    def critic(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y.T

    pnce.info_nce(TENSOR, TENSOR, None, similarity=critic, reduction=reduction)
    pnce.info_nce(TENSOR, TENSOR, TENSOR, similarity=pnce.similarities.bilinear(torch.eye(3)))
    pnce.info_nce(TENSOR, TENSOR, similarity="dot", reduction="none", block_size=block_size, precision="highest")
    pnce.info_nce(ARRAY, ARRAY, block_size=None, precision=None, symmetric=True, temperature=1)
    pnce.contrast(NDARRAY, NDARRAY, objective=lambda row: row.log_odds, pairing=pnce.pairings.diagonal())
    pnce.contrast(NDARRAY, NDARRAY, objective=pnce.objectives.logistic(bias=NDARRAY[0, 0], divide_by="pairs"))
    pnce.triplet_from_labels(NDARRAY, np.asarray([0, 0, 1, 1]), mining=("easy", "semi_hard"), form="soft")
    pnce.moco(TENSOR, TENSOR, pnce.queue_init(TENSOR, size=8))
    pnce.proto_nce(TENSOR, [TENSOR], [torch.arange(4)], [torch.ones(4)])
    pnce.joint_info_nce(TENSOR, TENSOR, directions=("query_to_key", "key_to_query"))
    pnce.relic(TENSOR, TENSOR, direction="b_to_a", stop_gradient="first")


def transformations() -> None:
    reveal_type(pnce.value_and_grad(pnce.info_nce)(NDARRAY, NDARRAY, temperature=0.1)[0])  # ndarray
    reveal_type(pnce.value_and_grad(pnce.info_nce)(NDARRAY, NDARRAY, temperature=0.1)[1])  # ndarray
    reveal_type(pnce.value_and_grad(pnce.info_nce, argnums=(0, 1))(TENSOR, TENSOR, reduction="sum")[0])  # Tensor
    pnce.value_and_grad(partial(pnce.info_nce, temperature=0.1))(TENSOR, TENSOR)
    reveal_type(pnce.matryoshka(pnce.info_nce, [2, 3])(TENSOR, TENSOR, temperature=0.5))  # Tensor
    pnce.grad(lambda x: pnce.info_nce(x, NDARRAY))(NDARRAY)
    pnce.value_and_grad(lambda x, y: pnce.info_nce(x, y, symmetric=True), argnums=(0, 1))(NDARRAY, NDARRAY)

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).sum()

    assert_type(pnce.value_and_grad(product)(TENSOR, TENSOR), tuple[torch.Tensor, torch.Tensor])

    def energy(weights: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, str]:
        return jnp.sum(weights["w"] * x), "aux"

    (value, aux), gradient = pnce.value_and_grad(energy, has_aux=True)({"w": ARRAY}, ARRAY)
    assert_type(value, jax.Array)
    assert_type(aux, str)
    assert_type(gradient, dict[str, jax.Array])
    jax.jit(jax.grad(lambda x: pnce.info_nce(x, ARRAY)))(gradient["w"])


def modules() -> None:
    assert_type(CLIP()(TENSOR, TENSOR), torch.Tensor)
    assert_type(SupCon(temperature=0.5)(TENSOR, torch.tensor([0, 0, 1, 1])), torch.Tensor)


def estimates() -> None:
    found = pnce.estimation.mutual_information(COLUMN, COLUMN, rng=0, splits=1, steps=1, progress=False)
    assert_type(found.lower, float)
    assert_type(found.flags, tuple[str, ...])
    assert_type(found.curve[0][0], int)
    assert_type(found.settings.seed, int | None)
    assert_type(found.to_dict(), dict[str, Any])
    assert_type(pnce.estimation.independence_test(COLUMN, COLUMN, rng=0).p, float)
    assert_type(pnce.estimation.difference(found, found, paired=True).low, float)
    assert_type(pnce.estimation.table({"one": found})[0].pairs, int)


ALL = (every_library, results, dtypes, options, transformations, modules, estimates)
