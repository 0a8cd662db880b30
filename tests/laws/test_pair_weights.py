"""Weights of pairs of given scores: every function that takes them."""

from __future__ import annotations

import inspect
import math
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce.testing.cases import LOSSES, example

TAKERS = [name for name in LOSSES if name.endswith(" pair_weights")]
SOFTMAX = [name for name in TAKERS if not any(other in name for other in ("logistic", "contrastive", "relic"))]
N = 5
RANDOM = np.random.default_rng(7)
SCORES, WEIGHTS = RANDOM.normal(size=(N, N)), RANDOM.uniform(0.25, 2.0, size=(N, N))
DATA, NOISE, OF_NOISE = RANDOM.normal(size=N), RANDOM.normal(size=(N, 3)), RANDOM.uniform(0.25, 2.0, size=(N, 3))
DROPPED = np.asarray([[(2 * i + j) % 5 == 3 for j in range(N)] for i in range(N)]) & ~np.eye(N, dtype=bool)


def function_of(name: str) -> Any:
    """Loss of scores, with the options of the table."""
    case, function = example(name, N), attrgetter(name.split(maxsplit=1)[0])(pnce)
    return lambda scores, **options: function(scores, **case.options, **options)


def value_and_gradient(name: str, scores: Any, **options: Any) -> tuple[Any, Any]:
    """Value and gradient by the scores."""
    loss = function_of(name)
    return pnce.value_and_grad(lambda x: loss(x, **options))(scores)


def assert_equal(found: Any, wanted: Any, rtol: float = 1e-12) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=rtol, atol=rtol / 100)


def test_every_loss_of_scores_that_pairs_can_weight_is_in_the_table() -> None:
    takers = {
        f"from_scores.{name}"
        for name in pnce.from_scores.__all__
        if "pair_weights" in inspect.signature(getattr(pnce.from_scores, name)).parameters
    }
    assert takers == {name.split()[0] for name in TAKERS}
    assert {f"from_scores.{name}" for name in pnce.from_scores.__all__} - takers == {
        "from_scores.cosent",  # weights are those of pairs
        "from_scores.margin_mse",
        "from_scores.triplet",  # a term has two pairs
    }


@pytest.mark.parametrize("name", TAKERS)
def test_ones_change_nothing_and_zeros_are_a_mask(name: str) -> None:
    assert_equal(value_and_gradient(name, SCORES, pair_weights=np.ones((N, N))), value_and_gradient(name, SCORES))
    masked = value_and_gradient(name, SCORES, mask=~DROPPED)
    assert_equal(value_and_gradient(name, SCORES, pair_weights=np.where(DROPPED, 0.0, 1.0)), masked)
    both = {"pair_weights": np.where(DROPPED, math.nan, WEIGHTS), "mask": ~DROPPED}
    weighted = value_and_gradient(name, SCORES, pair_weights=np.where(DROPPED, 0.0, WEIGHTS))
    assert_equal(value_and_gradient(name, SCORES, **both), weighted)
    dirty = np.where(DROPPED & DROPPED.T if "relic" in name else DROPPED, math.nan, SCORES)
    assert_equal(value_and_gradient(name, dirty, pair_weights=np.where(DROPPED, 0.0, WEIGHTS)), weighted)


@pytest.mark.parametrize("name", SOFTMAX)
def test_the_logarithm_of_a_weight_is_added_to_the_score_of_a_negative(name: str) -> None:
    """Of one positive in a row, the weight has no effect."""
    moved = SCORES + np.where(np.eye(N) > 0, 0.0, np.log(WEIGHTS))
    assert_equal(value_and_gradient(name, SCORES, pair_weights=WEIGHTS), value_and_gradient(name, moved))


@pytest.mark.parametrize("way", ["each", "separate", "pooled"])
@pytest.mark.parametrize("factor", [1e-3, 10.0])
def test_a_factor_of_the_weights_of_positives_has_no_effect(way: Any, factor: float) -> None:
    members = np.arange(N)[:, None] // 3 == np.arange(N)[None, :] // 3

    def found(weights: Any) -> Any:
        options = {"positives": members & ~np.eye(N, dtype=bool), "mask": ~np.eye(N, dtype=bool)}
        of_scores = pnce.from_scores.supcon
        return pnce.value_and_grad(lambda x: of_scores(x, **options, pair_weights=weights, multi_positive=way))(SCORES)

    assert_equal(found(np.where(members, WEIGHTS * factor, WEIGHTS)), found(WEIGHTS))


@pytest.mark.parametrize("least", [1.0, 1e-6, 1e-12])
@pytest.mark.parametrize("direction", ["a_to_b", "b_to_a"])
def test_the_distributions_of_relic_are_weighted(direction: Any, least: float) -> None:
    """An exponential without its weight may be larger than the sum of all weighted ones."""
    weights = torch.tensor(np.where(np.eye(N) > 0, 1.0, least * WEIGHTS))
    scores = torch.tensor(SCORES * 4.0, requires_grad=True)
    log_p, log_q = (torch.log_softmax(x + torch.log(weights), dim=1) for x in (scores, scores.T))
    first, second = (log_p, log_q) if direction == "a_to_b" else (log_q, log_p)
    wanted = ((first.exp() * (first - second)).sum(dim=1) - torch.diagonal(log_p)).mean()
    (slopes,) = torch.autograd.grad(wanted, scores)
    options: Any = {"direction": direction, "pair_weights": weights.numpy()}
    found = pnce.value_and_grad(lambda x: pnce.from_scores.relic(x, **options))(SCORES * 4.0)
    assert_equal(found, (wanted.detach(), slopes), rtol=1e-10)


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("name", ["from_scores.logistic pair_weights", "from_scores.contrastive pair_weights"])
def test_a_sum_over_pairs_is_linear_in_the_weights(name: str, reduction: str) -> None:
    loss, other = function_of(name), WEIGHTS[::-1].copy()
    parts = [loss(SCORES, pair_weights=w, reduction=reduction) for w in (WEIGHTS, other)]
    both = loss(SCORES, pair_weights=WEIGHTS + other, reduction=reduction)
    np.testing.assert_allclose(both, parts[0] + parts[1], rtol=1e-12)


@pytest.mark.parametrize("name", TAKERS)
def test_libraries_and_compilers_agree(name: str) -> None:
    loss, wanted = function_of(name), value_and_gradient(name, SCORES, pair_weights=WEIGHTS)
    scores = torch.tensor(SCORES, requires_grad=True)
    value = loss(scores, pair_weights=torch.tensor(WEIGHTS))
    (gradient,) = torch.autograd.grad(value, scores)
    assert_equal((value.detach(), gradient), wanted)
    differentiated = jax.value_and_grad(lambda s, w: loss(s, pair_weights=w))
    for function in (differentiated, jax.jit(differentiated)):  # in float32
        assert_equal(function(jnp.asarray(SCORES), jnp.asarray(WEIGHTS)), wanted, rtol=3e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", TAKERS)
def test_16_bits_are_rounded_once(name: str, dtype: torch.dtype) -> None:
    """Weights may have another dtype than the scores."""
    scores, weights = torch.tensor(SCORES).to(dtype), torch.tensor(WEIGHTS, dtype=torch.float32)
    found, wanted = (value_and_gradient(name, x, pair_weights=weights) for x in (scores, scores.double()))
    eps = torch.finfo(dtype).eps
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        assert float((one.double() - other).abs().max()) <= 0.51 * eps * float(other.abs().max())


@pytest.mark.parametrize("name", TAKERS)
def test_weights_are_constant_and_a_nan_is_not_lost(name: str) -> None:
    loss, weights = function_of(name), torch.tensor(WEIGHTS, requires_grad=True)
    scores = torch.tensor(SCORES, requires_grad=True)
    loss(scores, pair_weights=weights).backward()
    assert weights.grad is None or float(weights.grad.abs().max()) == 0.0
    lost = WEIGHTS.copy()
    lost[1, 3] = math.nan
    assert math.isnan(float(loss(SCORES, pair_weights=lost)))


@pytest.mark.parametrize("name", [*TAKERS, "density.negative_sampling"])
def test_wrong_weights_have_a_message(name: str) -> None:
    def loss(pair_weights: Any) -> Any:
        if name == "density.negative_sampling":
            return pnce.density.negative_sampling(DATA, SCORES, pair_weights=pair_weights)
        return function_of(name)(SCORES, pair_weights=pair_weights)

    for bad, message in (
        (-WEIGHTS, r"^pair_weights: expected numbers of at least 0, got -1"),
        (WEIGHTS[:, :2], r"^pair_weights: expected shape \(5, 5\), got \(5, 2\)"),
        (WEIGHTS[0], r"^pair_weights: expected shape \(5, 5\), got \(5,\)"),
        (WEIGHTS > 1, "^pair_weights: expected a real floating-point dtype"),
        (torch.tensor(WEIGHTS), "^pair_weights: expected an array of the same library"),
        (2.0, "^pair_weights: expected an array"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            loss(bad)


def test_negative_sampling() -> None:
    """Self-adversarial weights; a weight of 0 leaves a sample out, whatever its score."""
    weights = np.exp(NOISE) / np.exp(NOISE).sum(axis=1, keepdims=True)
    data, noise = (torch.tensor(x, requires_grad=True) for x in (DATA, NOISE))
    log_sigmoid = torch.nn.functional.logsigmoid
    wanted = (-log_sigmoid(data) - (torch.softmax(noise, dim=1).detach() * log_sigmoid(-noise)).sum(dim=1)).mean()
    slopes = torch.autograd.grad(wanted, (data, noise))
    loss = pnce.density.negative_sampling
    found, gradients = pnce.value_and_grad(lambda d, n: loss(d, n, pair_weights=weights), argnums=(0, 1))(DATA, NOISE)
    assert_equal((found, *gradients), (wanted.detach(), *slopes))
    jitted = jax.jit(loss)(jnp.asarray(DATA), jnp.asarray(NOISE), pair_weights=jnp.asarray(weights))
    np.testing.assert_allclose(jitted, found, rtol=3e-6)  # in float32
    kept = OF_NOISE * (np.arange(3) != 1)
    dirty = np.where(np.arange(3) == 1, math.nan, NOISE)
    without = loss(DATA, NOISE[:, [0, 2]], pair_weights=OF_NOISE[:, [0, 2]])
    np.testing.assert_allclose(loss(DATA, dirty, pair_weights=kept), without, rtol=1e-12)
    masked = loss(DATA, NOISE, pair_weights=np.where(kept == 0, math.nan, kept), mask=kept > 0)
    np.testing.assert_allclose(masked, without, rtol=1e-12)
    assert math.isnan(float(loss(DATA, NOISE, pair_weights=np.where(kept == 0, math.nan, kept))))
    infinite = np.where(np.arange(3) == 1, -math.inf, NOISE)
    np.testing.assert_allclose(loss(DATA, infinite, pair_weights=OF_NOISE), without, rtol=1e-12)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("objective", ["info_nce", "flat_nce", "logistic"])
def test_embeddings_have_a_pairing_of_the_same_weights(objective: Any, *, symmetric: bool) -> None:
    """The call that messages name."""
    with pytest.raises(TypeError, match=r"use contrast with pairings\.weighted\(\.\.\.\)"):
        pnce.info_nce(SCORES, SCORES, pair_weights=WEIGHTS)  # type: ignore[call-arg]
    x, y = np.random.default_rng(8).normal(size=(2, N, 3))
    loss = getattr(pnce.from_scores, objective)
    wanted = loss(x @ y.T, pair_weights=WEIGHTS)
    if symmetric:
        wanted = (wanted + loss(y @ x.T, pair_weights=WEIGHTS.T.copy())) / 2
    pairing = pnce.pairings.weighted(pnce.pairings.diagonal(), WEIGHTS)
    options: Any = {"objective": objective, "similarity": "dot", "symmetric": symmetric}
    np.testing.assert_allclose(pnce.contrast(x, y, pairing=pairing, **options), wanted, rtol=1e-12)
