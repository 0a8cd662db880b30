"""Gradients of docs/mathematics.md that the page does not check itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import portable_nce as pnce

SCORES = np.random.default_rng(0).normal(size=(5, 5))
EXPONENTIALS = np.exp(SCORES)
POSITIVES = np.asarray(
    [[1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [1, 0, 1, 1, 0], [0, 0, 0, 1, 0], [1, 0, 0, 0, 1]], dtype=bool
)


def softmax(chosen: Any) -> Any:
    """Softmax of each row over the chosen entries."""
    return EXPONENTIALS * chosen / (EXPONENTIALS * chosen).sum(axis=1, keepdims=True)


def formulas() -> dict[str, Any]:
    """Gradients of the row losses, by convention for several positives."""
    n_positive = POSITIVES.sum(axis=1, keepdims=True)
    lse_negatives = np.log((EXPONENTIALS * ~POSITIVES).sum(axis=1, keepdims=True))
    odds = lse_negatives - np.log((EXPONENTIALS * POSITIVES).sum(axis=1, keepdims=True))
    separate = POSITIVES / (1.0 + np.exp(SCORES - lse_negatives)) / n_positive
    return {
        "each": softmax(np.ones_like(POSITIVES)) - POSITIVES / n_positive,
        "pooled": (softmax(~POSITIVES) - softmax(POSITIVES)) / (1.0 + np.exp(-odds)),
        "separate": separate.sum(axis=1, keepdims=True) * softmax(~POSITIVES) - separate,
    }


@pytest.mark.parametrize("convention", ["each", "pooled", "separate"])
def test_several_positives(convention: Any) -> None:
    def loss(scores: Any) -> Any:
        return pnce.from_scores.info_nce(scores, positives=POSITIVES, multi_positive=convention)

    np.testing.assert_allclose(pnce.grad(loss)(SCORES), formulas()[convention] / 5, rtol=1e-10, atol=1e-14)


def test_cosent() -> None:
    s = SCORES[0]
    slopes = pnce.grad(lambda s: pnce.from_scores.cosent(s, np.arange(5.0), scale=2.0))(s)
    share = np.exp(2.0 * (s[None, :] - s[:, None])) * (np.arange(5)[:, None] > np.arange(5)[None, :])
    share /= 1.0 + share.sum()
    np.testing.assert_allclose(slopes, 2.0 * (share.sum(axis=0) - share.sum(axis=1)))


def test_dclw() -> None:
    def loss(scores: Any) -> Any:
        return pnce.from_scores.dclw(scores, temperature=0.5, sigma=0.25)

    positive = np.diag(SCORES)
    pi = np.exp(2.0 * positive) / np.exp(2.0 * positive).sum()
    at_positive = (5.0 * pi - 2.0) / 5.0 + 2.0 * pi * (positive - pi @ positive)
    expected = softmax(1.0 - np.eye(5)) / 5.0 + np.diag(at_positive)
    np.testing.assert_allclose(pnce.grad(loss)(SCORES), expected, rtol=1e-10, atol=1e-14)


def test_local_nce_in_the_population() -> None:
    p, q, k = np.asarray([0.5, 0.3, 0.2]), np.asarray([0.2, 0.2, 0.6]), 4

    def population(s: Any) -> Any:
        total: Any = 0.0
        for x, n in np.ndindex(3, 3):
            noise = s[n : n + 1][None, :] + np.zeros((1, k))
            total = total + p[x] * q[n] * pnce.density.local_nce(s[x : x + 1], noise, np.log(q[x]), np.log(q[n]))
        return total

    s = np.asarray([0.3, -1.0, 0.5])
    np.testing.assert_allclose(pnce.grad(population)(s), k * q / (np.exp(s) + k * q) * (np.exp(s) - p))
