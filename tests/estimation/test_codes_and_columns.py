"""Few relations among many columns, and codes without an order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from portable_nce.estimation import mutual_information
from portable_nce.estimation.features import canonical, canonical_of_pairs
from portable_nce.estimation.repeats import has_codes
from portable_nce.estimation.sample import sample_of


def estimate(x: Any, y: Any, **options: Any) -> Any:
    """A short estimate without a progress bar."""
    return mutual_information(x, y, **{"rng": 0, "progress": False, "splits": 1, "steps": 75, **options})


def test_few_pairs_of_many_columns_are_found() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 50)), rng.normal(size=(300, 60))
    assert estimate(x, y).lower <= 0.0
    for i in range(3):
        y[:, 2 * i + 1] = 0.7 * x[:, i] + math.sqrt(0.51) * y[:, 2 * i + 1]
    assert 0.5 < estimate(x, y).lower < -1.5 * math.log(0.51)


def test_the_best_pairs_of_columns_are_canonical_coordinates() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 16)), rng.normal(size=(200, 3))
    y[:, 1] += x[:, 9]
    y[:, 0] += 2.0 * x[:, 4]
    one, two = canonical_of_pairs(x, y)  # two columns of x for each pair
    assert one.squares == pytest.approx([np.corrcoef(x[:, 4], y[:, 0])[0, 1] ** 2])
    assert np.flatnonzero(one.matrices[0][:, 0]).tolist() == [4]
    assert np.flatnonzero(one.matrices[1][:, 0]).tolist() == [0]
    alone = canonical(x[:, [4, 9]], y[:, [0, 1]], (0.0,))[0]
    np.testing.assert_allclose(two.squares, alone.squares)
    for z, mean, matrix in zip((x, y), two.means, two.matrices, strict=True):
        found = (z - mean) @ matrix
        np.testing.assert_allclose(found.T @ found / 200, np.eye(2), atol=1e-9)
    assert canonical_of_pairs(x[:, :7], y) == []


@pytest.mark.parametrize("ridge", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("width", [30, 31, 90])
def test_columns_beyond_the_rows_have_no_further_correlations(width: int, ridge: float) -> None:
    """Further directions without variance only lower the mean of the variances, of which the ridge is a multiple."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=(30, 3))
    y[:, 0] += x[:, 1]
    turns = [np.linalg.qr(rng.normal(size=(width, width)))[0][:3] for _ in range(2)]
    wide = [z @ turn for z, turn in zip((x, y), turns, strict=True)]
    wanted, found = canonical(x, y, (ridge,))[0], canonical(wide[0], wide[1], (ridge * width / 3,))[0]
    np.testing.assert_allclose(found.squares[:3], wanted.squares, rtol=1e-9)
    np.testing.assert_allclose(found.squares[3:], 0.0, atol=1e-9)
    for k, (narrow, z) in enumerate(zip((x, y), wide, strict=True)):
        coordinates = ((z - found.means[k]) @ found.matrices[k])[:, :3]
        expected = (narrow - wanted.means[k]) @ wanted.matrices[k]
        np.testing.assert_allclose(np.abs(coordinates), np.abs(expected), rtol=1e-6, atol=1e-7)


def permuted_codes(number: int, pairs: int, exceptions: float) -> Any:
    """Codes, those of a permutation but for a share of other codes, and the mutual information."""
    rng = np.random.default_rng(0)
    x = rng.integers(number, size=pairs)
    y = np.where(rng.uniform(size=pairs) < exceptions, rng.integers(number, size=pairs), rng.permutation(number)[x])
    off = exceptions * (number - 1) / number
    return x, y, math.log(number) + (1.0 - off) * math.log(1.0 - off) + off * math.log(off / (number - 1))


def test_codes_without_an_order_are_compared_one_by_one() -> None:
    x, y, truth = permuted_codes(60, 600, 0.15)
    found = estimate(x, y, steps=1000)
    assert truth == pytest.approx(3.075, abs=1e-3)
    assert truth - 0.6 < found.lower < truth
    assert not found.high < truth
    assert has_codes(x[:, None])
    assert not has_codes(x[:, None] % 20)  # these have indicators
    assert not has_codes(np.random.default_rng(0).normal(size=(600, 1)))


def test_many_categories_without_kernels_have_no_range() -> None:
    x, y, _ = permuted_codes(30, 300, 0.15)
    names = np.asarray([f"code {k}" for k in x])
    for codes in (x, names, names.tolist()):
        assert "many categories" in estimate(codes, y, critic="separable", steps=25).flags
    assert "many categories" not in estimate(x, y, steps=25).flags
    for numbers in (x.astype(float), np.stack([x, y], axis=1)):
        assert "many categories" not in estimate(numbers, y % 20, critic="separable", steps=25).flags


def test_kernels_are_tried_for_more_pairs_of_codes() -> None:
    x, y, _ = permuted_codes(60, 3000, 0.15)
    assert sample_of(x, y, None, None, None).takes_kernels
    assert not sample_of(x % 10, y % 10, None, None, None).takes_kernels
    u, v = np.random.default_rng(0).normal(size=(2, 3000))
    assert not sample_of(u, v, None, None, None).takes_kernels
