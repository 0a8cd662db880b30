"""Graded pairs: as in sentence-transformers, and without memory for all pairs."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

import portable_nce as pnce


def cosent(scores: torch.Tensor, grades: torch.Tensor, scale: float) -> torch.Tensor:
    """CoSENTLoss's formula over all pairs, with a large negative number for pairs without a comparison."""
    scores = scores * scale
    differences = scores[:, None] - scores[None, :]
    differences = differences - (1 - (grades[:, None] < grades[None, :]).to(scores.dtype)) * 1e12
    return torch.logsumexp(torch.cat([torch.zeros(1, dtype=scores.dtype), differences.reshape(-1)]), dim=0)


def angles(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Formula of pairwise_angle_sim: a quotient of complex numbers, without lengths."""
    (a, b), (c, d) = (torch.chunk(z, 2, dim=1) for z in (x, y))
    z = (c**2 + d**2).sum(dim=1, keepdim=True)
    ratio = ((a**2 + b**2).sum(dim=1, keepdim=True) / z) ** 0.5
    real, imaginary = (a * c + b * d) / z / ratio, (b * c - a * d) / z / ratio
    return torch.cat([real, imaginary], dim=1).sum(dim=1).abs()


@pytest.mark.parametrize("rows", [2, 5, 32, 100])
@pytest.mark.parametrize("kind", ["cosent", "angle"])
def test_the_formula_of_sentence_transformers(kind: str, rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    x, y = (torch.randn((rows, 6), generator=draw, dtype=torch.float64) for _ in range(2))
    grades = torch.randint(0, 4, (rows,), generator=draw)
    similarity: Any = torch.cosine_similarity if kind == "cosent" else angles
    results = []
    for loss in (
        lambda x, y: cosent(similarity(x, y), grades, 20.0),
        lambda x, y: getattr(pnce, kind)(x, y, grades, scale=20.0),
    ):
        leaves = [z.clone().requires_grad_() for z in (x, y)]
        value = loss(*leaves)
        value.backward()
        results.append([value.detach(), *(z.grad for z in leaves)])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_a_large_batch_takes_no_memory_of_all_pairs() -> None:
    """Value and gradient of 20000 rows, with 4e8 pairs; the sum is correct to the last digits."""
    rows = 20_000
    numbers = np.random.default_rng(0)
    scores, grades = numbers.normal(size=rows), numbers.integers(0, 5, size=rows)
    tracemalloc.start()
    value, slopes = pnce.value_and_grad(lambda s: pnce.from_scores.cosent(s, grades, scale=2.0))(scores)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * rows * 1000
    total, wanted = 0.0, np.zeros(rows)
    for low in range(5):
        for high in range(low + 1, 5):
            i, j = grades == high, grades == low
            falling, rising = np.exp(-2.0 * scores[i]), np.exp(2.0 * scores[j])
            total += falling.sum() * rising.sum()
            wanted[i] -= 2.0 * falling * rising.sum()
            wanted[j] += 2.0 * rising * falling.sum()
    assert float(value) == pytest.approx(np.log1p(total), rel=1e-14)
    np.testing.assert_allclose(slopes, wanted / (1.0 + total), rtol=1e-11, atol=1e-14 * np.abs(wanted).max() / total)
