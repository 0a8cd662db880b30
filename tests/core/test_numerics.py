"""Bounds of the magnitude of scores."""

from __future__ import annotations

import math

import numpy as np
import pytest

from portable_nce._core.numerics import in_range, largest_score

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5, 1e300])
def test_the_bound_of_the_scores_is_one(scale: float) -> None:
    x, y = RNG.normal(size=(5, 3)) * scale, RNG.normal(size=(7, 3))
    factors, bound = in_range(np, x, y)
    assert factors is None
    assert bound == largest_score(x, y)
    assert np.max(np.abs(x @ y.T)) <= bound
    assert math.isinf(bound) == (scale > 1e9)
    assert largest_score(x, y, x, factor=3.0) == pytest.approx(3.0 * bound)
    assert largest_score(x, y, 2.0 * x) == max(largest_score(x, y), largest_score(x, 2.0 * x))


def test_scores_with_nan_have_no_bound() -> None:
    nan, one = np.asarray([[math.nan]]), np.ones((1, 1))
    assert math.isinf(largest_score(nan, one))
    assert math.isinf(largest_score(one, nan))
    assert math.isinf(in_range(np, nan, one)[1])
