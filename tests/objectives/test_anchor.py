"""InfoNCE with an anchor as an objective: precision at extreme scores, and its optimum."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from mpmath import mp

import portable_nce as pnce

RNG = np.random.default_rng(11)
COLUMNS = 6


def anchored(scores: Any, **options: Any) -> Any:
    """Loss of given scores: unit vectors against the columns."""
    objective = pnce.objectives.info_nce_anchor(n_columns=COLUMNS, nu=0.5)
    rows = np.eye(len(scores), dtype=scores.dtype)
    return pnce.contrast(rows, scores.T, objective=objective, similarity="dot", **options)


def exactly(scores: np.ndarray, mask: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean loss and its gradient, without cancellation."""
    nu, n_rows = mp.mpf(0.5), sum(mask[i, i] for i in range(len(scores)))
    value, slopes = mp.mpf(0), np.zeros_like(scores)
    for i, row in enumerate(scores):
        if not mask[i, i]:
            continue
        ratios = [mp.exp(mp.mpf(s)) for s in row.tolist()]
        negatives = [j for j in range(COLUMNS) if j != i and mask[i, j]]
        noise = mp.fsum(ratios[j] for j in negatives)
        total = nu + noise + ratios[i]
        value += mp.log1p((nu + noise) / ratios[i]) + nu * mp.log1p(noise / nu) / COLUMNS
        slopes[i, i] = float(-(nu + noise) / total / n_rows)
        for j in negatives:
            slopes[i, j] = float(ratios[j] * (1 / total + nu / (nu + noise) / COLUMNS) / n_rows)
    return float(value / n_rows), slopes


def assert_exact(scores: np.ndarray, mask: np.ndarray | None = None, **options: Any) -> None:
    value, slopes = pnce.value_and_grad(lambda g: anchored(g, mask=mask, **options))(scores)
    wanted, expected = exactly(scores, np.ones_like(scores, dtype=bool) if mask is None else mask)
    np.testing.assert_allclose(value, wanted, rtol=1e-12)
    np.testing.assert_allclose(slopes, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("shift", [-300.0, -30.0, 0.0, 30.0, 300.0])
@pytest.mark.parametrize("margin", [-60.0, 0.0, 60.0, 600.0])
def test_extreme_scores(margin: float, shift: float, block_size: int | None) -> None:
    """Relative errors of the loss and of each gradient entry, where cross-entropies would lose all digits."""
    scores = RNG.normal(size=(4, COLUMNS)) + shift + margin * np.eye(4, COLUMNS)
    assert_exact(scores, block_size=block_size)


@pytest.mark.parametrize("block_size", [None, 2])
def test_rows_without_negatives_and_without_positives(block_size: int | None) -> None:
    """A row without negatives competes with the anchor; a row without a positive does not count."""
    mask = RNG.random((4, COLUMNS)) < 0.7
    mask[0] = np.arange(COLUMNS) == 0
    mask[1, 1] = False
    mask[2] = False
    mask[3, 3] = True
    scores = RNG.normal(size=(4, COLUMNS))
    assert_exact(scores, mask, block_size=block_size)
    alone = float(anchored(scores, mask=mask, weights=np.asarray([1.0, 0.0, 0.0, 0.0])))
    assert alone == pytest.approx(math.log1p(0.5 * math.exp(-scores[0, 0])), rel=1e-12)


@pytest.mark.parametrize("n_columns", [3, 5])
@pytest.mark.parametrize("ratios", [(0.25, 1.75), (0.1, 9.1)])
def test_the_anchor_learns_almost_normalised_ratios(ratios: tuple[float, float], n_columns: int) -> None:
    """The expected loss of two values has its minimum between the log ratios and 1 / N above."""
    noise = np.asarray([ratios[1] - 1.0, 1.0 - ratios[0]]) / (ratios[1] - ratios[0])
    data = noise * ratios
    assert data.sum() == pytest.approx(1.0)
    objective = pnce.objectives.info_nce_anchor(n_columns=n_columns)

    def loss(table: Any) -> Any:
        total = 0.0
        for drawn in itertools.product(range(2), repeat=n_columns):
            probability = data[drawn[0]] * math.prod(noise[j] for j in drawn[1:])
            columns = np.eye(2)[list(drawn)] @ table[:, None]
            total = total + probability * pnce.contrast(np.ones((1, 1)), columns, objective=objective, similarity="dot")
        return total

    best = np.log(ratios)
    for _ in range(8):  # Newton's method
        gradient = pnce.grad(loss)(best)
        step = 1e-5
        curvature = [
            (pnce.grad(loss)(best + step * e) - pnce.grad(loss)(best - step * e)) / (2 * step) for e in np.eye(2)
        ]
        best = best - np.linalg.solve(np.asarray(curvature), gradient)
    assert np.all(np.abs(pnce.grad(loss)(best)) < 1e-9)
    above = (best - np.log(ratios)) * n_columns
    assert np.all(above > 0.0)
    assert np.all(above < 1.05)
