"""Gradients of docs/mathematics.md that the page itself does not check."""

from __future__ import annotations

import math
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


def test_derivatives_of_scores_give_derivatives_of_embeddings() -> None:
    x, y = np.random.default_rng(1).normal(size=(2, 5, 3))
    c = pnce.grad(pnce.from_scores.info_nce)(x @ y.T / 0.5)

    def loss(x: Any, y: Any, temperature: Any) -> Any:
        return pnce.info_nce(x, y, temperature=temperature, similarity="dot")

    by_x, by_y, by_temperature = pnce.grad(loss, argnums=(0, 1, 2))(x, y, np.asarray(0.5))
    np.testing.assert_allclose(by_x, c @ y / 0.5)
    np.testing.assert_allclose(by_y, c.T @ x / 0.5)
    np.testing.assert_allclose(by_temperature, -np.sum(c * (x @ y.T / 0.5)) / 0.5)


def bounds() -> dict[str, tuple[Any, Any]]:
    """Each bound, and its gradient by the scores."""
    eye = np.eye(5)
    off = 1.0 - eye
    weights = softmax(off)
    u = np.log((EXPONENTIALS * off).sum(axis=1)) - np.diag(SCORES)
    ratio = np.exp(u - 0.4) / 4
    by_js = eye / (1 + EXPONENTIALS) / 5 - off * EXPONENTIALS / (1 + EXPONENTIALS) / 20
    module = pnce.bounds
    return {
        "info_nce": (module.info_nce, (eye - weights) / (1 + np.exp(-u))[:, None] / 5),
        "fdv": (module.fdv, (eye - weights) / 5),
        "dv": (module.dv, eye / 5 - EXPONENTIALS * off / (EXPONENTIALS * off).sum()),
        "nwj": (module.nwj, eye / 5 - EXPONENTIALS * off / math.e / 20),
        "tuba": (lambda g: module.tuba(g, 0.7), eye / 5 - EXPONENTIALS * off * np.exp(-0.7) / 20),
        "js": (module.js, by_js),
        "js_mi": (module.js_mi, by_js),
        "smile": (module.smile, by_js),
        "flo": (lambda g: module.flo(g, np.full(5, 0.4)), ratio[:, None] * (eye - weights) / 5),
        "club": (module.club, eye / 5 - off / 20),
        "leave_one_out": (module.leave_one_out, (eye - EXPONENTIALS * off / (EXPONENTIALS * off).sum(axis=0)) / 5),
    }


@pytest.mark.parametrize("name", list(bounds()))
def test_a_bound(name: str) -> None:
    bound, gradient = bounds()[name]
    np.testing.assert_allclose(pnce.grad(bound)(SCORES), gradient, rtol=1e-10, atol=1e-14)
