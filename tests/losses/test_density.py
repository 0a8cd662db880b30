"""Densities: contexts without samples, and targets out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import portable_nce as pnce

OF_NO_SAMPLES: dict[str, tuple[tuple[float, ...], int]] = {
    "local_nce": ((-1.0, -1.0), 3),
    "negative_sampling": ((), 3),
    "ranking_nce": ((-1.0, -1.0), 3),
    "info_nce_anchor": ((-1.0, -1.0), 2),
    "sampled_softmax": ((-1.0, -1.0), 2),
}
"""Log-probabilities, and how many of three contexts count: not one for which the formula for k = 0 has no value."""


@pytest.mark.parametrize("name", OF_NO_SAMPLES)
def test_a_context_without_samples_counts_where_its_loss_is_defined(name: str) -> None:
    log_probabilities, counted = OF_NO_SAMPLES[name]
    options = {"include_positive": False} if name == "sampled_softmax" else {}
    rng = np.random.default_rng(8)
    data, noise, mask = rng.normal(size=3), rng.normal(size=(3, 4)), np.asarray([[True], [False], [True]]).repeat(4, 1)

    def loss(data: Any, noise: Any, **how: Any) -> Any:
        return getattr(pnce.density, name)(data, noise, *log_probabilities, **options, **how)

    losses = loss(data, noise, mask=mask, reduction="none")
    np.testing.assert_allclose(losses[[0, 2]], loss(data[[0, 2]], noise[[0, 2]], reduction="none"), rtol=1e-13)
    assert losses[1] == pytest.approx(np.log1p(np.exp(-data[1])) if name == "negative_sampling" else 0.0, rel=1e-14)
    assert float(loss(data, noise, mask=mask)) == pytest.approx(float(np.sum(losses)) / counted, rel=1e-13)


def test_targets_out_of_range_have_their_name() -> None:
    with pytest.raises(ValueError, match=r"^targets: expected indices from 0 to 2, of the columns of scores, got 3"):
        pnce.density.full_softmax(np.zeros((2, 3)), np.asarray([0, 3]))
