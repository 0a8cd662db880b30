"""Sums of exponentials, and merging them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from portable_nce._core.logsumexp import ExpSum, exponentials, merge

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("cuts", [(8,), (1, 8), (3, 5, 8), (0, 8)])
def test_sums_of_parts_are_merged_to_that_of_the_whole(cuts: tuple[int, ...]) -> None:
    scores = RNG.normal(size=(5, 8)) * 500.0
    members = RNG.random((5, 8)) < 0.6
    members[1] = False
    members[2, 3:] = False
    bounds = [slice(a, b) for a, b in zip((0, *cuts[:-1]), cuts, strict=True) if a < b]
    parts = [exponentials(np, scores[:, cut], members[:, cut]) for cut in bounds]
    total, factors = merge(np, [part for part, _ in parts])
    whole, terms = exponentials(np, scores, members)
    assert whole.top is not None
    assert total.top is not None
    found, wanted = total.top + total.log_total(np), whole.top + whole.log_total(np)
    assert wanted[1] == -math.inf
    np.testing.assert_allclose(found, wanted, rtol=1e-15)
    merged = [t if f is None else t * f[:, None] for (_, t), f in zip(parts, factors, strict=True)]
    np.testing.assert_allclose(np.concatenate(merged, axis=1), terms, rtol=1e-13, atol=1e-300)


def test_sums_without_a_shift_are_added() -> None:
    total, factors = merge(np, [ExpSum(None, np.asarray([number])) for number in (1.0, 2.0)])
    assert total.top is None
    assert total.total == 3.0
    assert factors == [None, None]


def test_an_infinite_score_keeps_its_row_apart() -> None:
    scores = np.asarray([[math.inf, 1.0], [0.0, 1.0], [-math.inf, -math.inf]])
    found, terms = exponentials(np, scores, np.ones((3, 2), dtype=bool))
    np.testing.assert_array_equal(found.top, [math.inf, 1.0, -math.inf])
    np.testing.assert_array_equal(found.total == 0, [True, False, True])
    np.testing.assert_array_equal(terms[[0, 2]], 0.0)
