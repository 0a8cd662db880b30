"""`joint_info_nce` of infinite scores."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce

RNG = np.random.default_rng(11)


@pytest.mark.parametrize(("column", "expected"), [(2, np.inf), (1, 0.0)], ids=["a negative", "the positive"])
@pytest.mark.parametrize("further", [("query_to_query",), ("key_to_query",), ()])
def test_joint_losses_of_infinite_scores(further: tuple[Any, ...], column: int, expected: float) -> None:
    """Infinite log-odds in one or both directions cause no inf - inf."""
    x, y, infinite = np.eye(4), RNG.normal(size=(4, 4)), np.arange(32).reshape(4, 8) == 8 + column
    loss = functools.partial(pnce.joint_info_nce, temperature=1.0, directions=("query_to_key", *further))
    found = loss(x, y, similarity=lambda a, b: np.where(infinite[:, : len(b)], np.inf, a @ b.T), reduction="none")
    assert found[1] == expected
    assert np.isfinite(found[[0, 2, 3]]).all()
