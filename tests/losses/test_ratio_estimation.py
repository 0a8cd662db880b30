"""Losses of neural ratio estimation: relations between them, and limits."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce import density

RNG = np.random.default_rng(0)
DATA, NOISE = 2.0 * RNG.normal(size=6), 2.0 * RNG.normal(size=(6, 4))
SAMPLES = NOISE.shape[1]


def outcome(loss: Any, data: Any = DATA, noise: Any = NOISE) -> list[Any]:
    value, slopes = pnce.value_and_grad(loss, argnums=(0, 1))(data, noise)
    return [value, *slopes]


def assert_same(ours: list[Any], theirs: list[Any], rtol: float = 1e-12) -> None:
    for got, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=1e-15)


def test_nre_of_one_sample_and_even_odds() -> None:
    one = NOISE[:, :1]
    assert_same(outcome(density.nre_c, DATA, one), outcome(density.nre_a, DATA, one))
    assert_same(outcome(density.nre_a, DATA, one), [0.5 * x for x in outcome(density.negative_sampling, DATA, one)])


def test_nre_b_is_ranking_nce() -> None:
    assert_same(outcome(density.nre_b), outcome(density.ranking_nce))


def test_an_infinite_gamma_leaves_out_the_anchor() -> None:
    def mean_of_nre_b(data: Any, noise: Any) -> Any:
        kept = [np.arange(SAMPLES) != m for m in range(SAMPLES)]
        return sum(density.nre_b(data, noise, mask=np.tile(mask, (6, 1))) for mask in kept) / SAMPLES

    found = outcome(partial(density.nre_c, gamma=math.inf))
    assert_same(found, outcome(mean_of_nre_b))
    assert_same(outcome(partial(density.nre_c, gamma=1e30)), found)
    wide = outcome(partial(density.nre_c, gamma=math.inf), DATA.astype(np.float32), NOISE.astype(np.float32))
    assert_same(wide, found, rtol=1e-5)


@pytest.mark.parametrize("gamma", [1e-30, 1.0, 1e30, math.inf])
def test_samples_of_probability_0_have_finite_slopes(gamma: float) -> None:
    value, by_data, by_noise = outcome(partial(density.nre_c, gamma=gamma), DATA, np.full((6, 4), -math.inf))
    assert np.isfinite(value)
    assert np.all(np.isfinite(by_data))
    assert np.all(by_noise == 0.0)


def nre_c_of_torch(data: Any, noise: Any, gamma: float) -> Any:
    """The paper's algorithm with K - 1 samples and the data, averaged over the omitted sample."""
    k = SAMPLES
    log_k = torch.full((6, 1), math.log(k), dtype=torch.float64)
    marginal = log_k[:, 0] - torch.cat([math.log(gamma) + noise, log_k], dim=1).logsumexp(1)
    joint = torch.zeros(6, dtype=torch.float64)
    for m in range(k):
        others = torch.cat([data[:, None], noise[:, torch.arange(k) != m]], dim=1)
        denominator = torch.cat([math.log(gamma) + others, log_k], dim=1).logsumexp(1)
        joint = joint + (math.log(gamma) + data - denominator) / k
    return -(marginal / (1 + gamma) + joint * gamma / (1 + gamma)).mean()


def bnre_of_torch(data: Any, noise: Any) -> Any:
    """Binary cross-entropy of both classes, and its penalty."""
    logits = torch.cat([data, noise[:, 0]])
    labels = torch.cat([torch.ones_like(data), torch.zeros_like(data)])
    excess = (torch.sigmoid(data) + torch.sigmoid(noise[:, 0]) - 1).mean()
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels) + 100.0 * excess.square()


def bnre(data: Any, noise: Any) -> Any:
    return density.nre_a(data, noise[:, :1]) + 100.0 * density.balance_penalty(data, noise[:, :1])


def test_the_formulas_of_the_papers_in_torch() -> None:
    pairs: list[tuple[Any, Any]] = [
        (partial(density.nre_c, gamma=g), partial(nre_c_of_torch, gamma=g)) for g in (0.1, 1.0, 50.0)
    ]
    for ours, theirs in [*pairs, (bnre, bnre_of_torch)]:
        results = []
        for loss in (ours, theirs):
            data, noise = (torch.tensor(x, requires_grad=True) for x in (DATA, NOISE))
            value = loss(data, noise)
            value.backward()
            results.append([value.detach(), data.grad, noise.grad])
        assert_same(results[0], results[1])


def test_the_penalty_of_balanced_scores_is_0() -> None:
    assert density.balance_penalty(DATA, -DATA[:, None]) < 1e-30
    far = density.balance_penalty(np.asarray([60.0]), np.asarray([[-50.0]]))
    np.testing.assert_allclose(far, (math.exp(-50.0) - math.exp(-60.0)) ** 2)


def test_the_penalty_is_of_the_weighted_batch() -> None:
    weights = np.asarray([1.0, 0.0, 2.0, 0.0, 0.0, 1.0])
    chosen = [0, 2, 2, 5]
    found = density.balance_penalty(DATA, NOISE, weights=weights)
    np.testing.assert_allclose(found, density.balance_penalty(DATA[chosen], NOISE[chosen]))
