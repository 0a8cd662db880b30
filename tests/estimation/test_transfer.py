"""Transfer entropy of series whose value is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from portable_nce.estimation import ConditionalInformation, MutualInformation, mutual_information, transfer_entropy

MATRIX = np.asarray([[0.5, 0.0], [0.7, 0.3]])
"""A first-order autoregression of (x, y), with noise of variance 1: y is driven by x, and x by nothing."""


def series(count: int, seed: int = 0) -> Any:
    """Both series."""
    z = np.random.default_rng(seed).normal(size=(count + 100, 2))
    for t in range(1, len(z)):
        z[t] += MATRIX @ z[t - 1]
    return z[100:].T


def gaussian_transfer() -> float:
    """Half the logarithm of the variance of y given its own last value, over that of the noise.

    The covariance C of a time solves C = A C A' + 1.
    """
    covariance = np.linalg.solve(np.eye(4) - np.kron(MATRIX, MATRIX), np.eye(2).reshape(-1)).reshape(2, 2)
    later = MATRIX @ covariance
    return 0.5 * math.log(covariance[1, 1] - later[1, 1] ** 2 / covariance[1, 1])


def estimate(source: Any, target: Any, **options: Any) -> Any:
    """A short estimate without a progress bar."""
    return transfer_entropy(source, target, **{"rng": 0, "progress": False, "splits": 1, "steps": 200, **options})


def test_transfer_of_a_linear_autoregression() -> None:
    truth = gaussian_transfer()
    assert 0.15 < truth < 0.35
    x, y = series(600)
    found = estimate(x, y, steps=1000)
    assert isinstance(found, ConditionalInformation)
    assert found.p < 0.01
    assert found.low < truth < found.high
    assert np.mean(found.local) == pytest.approx(truth, abs=0.1)
    back = estimate(y, x, steps=50)
    assert back.p > 0.01
    assert back.low <= 0.05


def test_it_is_the_information_given_the_past() -> None:
    x, y = series(200)
    found = estimate(x, y, lag=(1, 3), past=2, steps=25)
    sources = np.stack([x[2:-1], x[:-3]], axis=1)
    past = np.stack([y[2:-1], y[1:-2]], axis=1)
    same: Any = mutual_information(
        sources, y[3:], given=past, order=range(197), rng=0, progress=False, splits=1, steps=25
    )
    assert found.to_dict() == same.to_dict()
    assert found.with_y.settings.columns == (2, 3)
    assert found.with_y.settings.unit == "blocks"
    one = estimate(x, y, steps=25)
    for source, target in ((x.tolist(), y.tolist()), (x[:, None], y[:, None])):
        assert estimate(source, target, steps=25, lag=np.asarray([1])).to_dict() == one.to_dict()
    torch = pytest.importorskip("torch")
    assert estimate(torch.asarray(x), torch.asarray(y), steps=25).to_dict() == one.to_dict()


def test_series_of_several_columns() -> None:
    both = series(120).T
    short: Any = {"steps": 1, "critic": "separable"}
    found = estimate(both, both, lag=(1, 3), past=2, **short)
    sources, past = (np.concatenate([both[2:-1], rows], axis=1) for rows in (both[:-3], both[1:-2]))
    same: Any = mutual_information(
        sources, both[3:], given=past, order=range(117), rng=0, progress=False, splits=1, **short
    )
    assert found.to_dict() == same.to_dict()


def test_categories_have_a_limit() -> None:
    x = np.random.default_rng(0).integers(2, size=401)
    y = np.concatenate([[0], x[:-1]])
    names = np.asarray(["off", "on"])[y]
    for target in (y, names, names.tolist()):
        found = estimate(x, target, steps=50)
        assert isinstance(found, MutualInformation)
        assert found.settings.categories == 2
        assert 0.4 < found.lower < math.log(2.0)
    assert estimate(x, y, steps=25, past=2).settings.categories == 4


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"given": np.zeros(60)}, TypeError, "given: expected none for a series, got one; the past of the target"),
        ({"order": range(60)}, TypeError, "order: expected none for a series, got one; rows are times"),
        ({"groups": range(60)}, TypeError, "groups: expected none .*; a series has blocks"),
        ({"seed": 0}, TypeError, "did you mean 'rng'"),
        ({"lag": 0}, ValueError, "lag: expected at least 1, got 0"),
        ({"lag": (1, 0)}, ValueError, "lag: expected at least 1, got 0"),
        ({"lag": "1"}, TypeError, "lag: expected an integer, got str"),
        ({"lag": (1, 1)}, ValueError, r"lag: expected one or more different lags, got \[1, 1\]"),
        ({"lag": np.array(2)}, TypeError, "lag: expected an integer, got ndarray"),
        ({"lag": 60}, ValueError, "lag: expected lags and a past that leave 48 of 60 rows, got 60"),
        ({"lag": 20}, ValueError, "lag: expected lags and a past that leave 48 of 60 rows, got 20"),
        ({"past": 0}, ValueError, "past: expected at least 1, got 0"),
    ],
)
def test_refusals(options: Any, error: Any, words: str) -> None:
    x, y = series(60)
    with pytest.raises(error, match=words):
        transfer_entropy(x, y, **options)


def test_arguments_that_are_no_series() -> None:
    wrong: Any = 5
    with pytest.raises(ValueError, match="target: expected 60 rows, as in source, got 59"):
        transfer_entropy(np.zeros(60), np.zeros(59))
    with pytest.raises(TypeError, match="source: expected an array or a sequence, got int"):
        transfer_entropy(wrong, np.zeros(60))
    with pytest.raises(ValueError, match=r"source: expected shape \(N, D\) or \(N,\), got \(3, 4, 5\)"):
        transfer_entropy(np.zeros((3, 4, 5)), np.zeros(60))
