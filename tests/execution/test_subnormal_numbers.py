"""Subnormal numbers: they are slow, so sweeps avoid them without losing gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce._core.calls import KINDS
from portable_nce._core.registry import adapter_of
from portable_nce._execution import products
from portable_nce._execution.products import Scaling, scaling_of

LIBRARIES = [np.asarray, torch.as_tensor]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 40, 5000])
def test_no_exponential_is_subnormal(library: Any, dtype: Any, size: int) -> None:
    least = math.log(np.finfo(dtype).tiny)
    x = np.linspace(1.2 * least, 0.0, size, dtype=dtype)
    x[size // 2] = -np.inf
    given = library(x.copy())
    found = np.asarray(adapter_of(given).exp_in_place(given, bounded=False))
    np.testing.assert_array_equal(found[x < least], 0.0)
    normal = x > least + 0.02
    np.testing.assert_allclose(found[normal], np.exp(x[normal].astype(np.longdouble)), rtol=4 * np.finfo(dtype).eps)
    assert not np.any((found > 0) & (found < np.finfo(dtype).tiny))


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_exponential_of_no_number_is_none(library: Any) -> None:
    x = library(np.asarray([[np.nan, 0.0], [-1e30, np.nan]], dtype=np.float32))
    found = np.asarray(adapter_of(x).exp_in_place(x, bounded=False))
    np.testing.assert_array_equal(found, [[np.nan, 1.0], [0.0, np.nan]])


@pytest.mark.parametrize(
    ("coefficients", "scaling"),
    [
        ((1e-3, 1.0), Scaling()),
        ((0.0, 0.0), Scaling(clears=True)),
        ((1e-30, 1.0), Scaling(clears=True)),
        ((1e-25, 3e-26), Scaling(2.0**-63)),
        ((1e-35, 1e-25), Scaling(2.0**-63, clears=True)),
        ((-1.0, 1e-30), Scaling(clears=True)),
        ((math.nan, 1e-30), Scaling()),
    ],
)
def test_small_coefficients_are_seen(coefficients: tuple[float, ...], scaling: Scaling) -> None:
    found = scaling_of(np.asarray(coefficients, dtype=np.float32), bounded=True)
    assert found == scaling
    assert scaling_of(np.asarray(coefficients, dtype=np.float32), bounded=False).unit == 1.0


LOSSES: dict[str, Any] = {
    "info_nce": lambda x, y, tau, _: pnce.info_nce(x, y, temperature=tau),
    "info_nce in blocks": lambda x, y, tau, _: pnce.info_nce(x, y, temperature=tau, block_size=16),
    "info_nce with a mask": lambda x, y, tau, mask: pnce.info_nce(x, y, temperature=tau, mask=mask),
    "clip": lambda x, y, tau, _: pnce.clip(x, y, logit_scale=1.0 / tau),
    "nt_xent": lambda x, y, tau, _: pnce.nt_xent(x, y, temperature=tau),
    "dcl": lambda x, y, tau, _: pnce.dcl(x, y, temperature=tau),
    "flat_nce": lambda x, y, tau, _: pnce.flat_nce(x, y, temperature=tau),
    "hard negatives": lambda x, y, tau, _: pnce.hcl(x, y, temperature=tau, beta=0.5),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("trained", ["all rows", "most rows"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_trained_rows_are_exact(name: str, trained: str, library: Any) -> None:
    """Also if those of one row are 1e-30, and those of others are not."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((48, 32)).astype(np.float32)
    y = (x + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)
    if trained == "most rows":
        y[:6] = rng.standard_normal((6, 32))
    mask = rng.random((48, 48)) < 0.9
    mask |= np.eye(48, dtype=np.bool_)
    for tau in (0.05, 0.01, 0.0075):
        gradient = pnce.grad(lambda a, b, m, tau=tau: LOSSES[name](a, b, tau, m), (0, 1))
        exact = gradient(x.astype(np.float64), y.astype(np.float64), mask)
        # The last of three runs by a program.
        *_, last = (gradient(library(x), library(y), library(mask)) for _ in range(3))
        found = [np.asarray(g, dtype=np.float64) for g in last]
        for own, wanted in zip(found, exact, strict=True):
            length = np.linalg.norm(wanted, axis=1)
            assert np.all(np.isfinite(own))
            error = np.linalg.norm(own - wanted, axis=1)[length > 1e-34] / length[length > 1e-34]
            assert np.max(error, initial=0.0) < 1.5e-6 / tau  # scores of 1 / tau, rounded by 6e-8


@pytest.mark.parametrize("name", LOSSES)
def test_no_subnormal_tile_is_multiplied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles: list[np.ndarray] = []
    multiply = products._plain_cotangents  # noqa: SLF001  (all products of cotangents)

    def watched(residual: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(residual, np.ndarray):  # not a placeholder of a program
            tiles.append(np.abs(residual))
        return multiply(residual, *arguments, **options)

    monkeypatch.setattr(products, "_plain_cotangents", watched)
    KINDS.clear()  # no call runs by a program
    rng = np.random.default_rng(1)
    x = rng.standard_normal((50, 32)).astype(np.float32)
    noise = rng.random((50, 1)).astype(np.float32) * rng.standard_normal(x.shape).astype(np.float32)
    pnce.grad(lambda a: LOSSES[name](a, x + noise, 0.006, np.ones((50, 50), dtype=np.bool_)))(x)
    if "mask" not in name:  # a similarity's pullback multiplies those
        assert tiles
    for tile in tiles:
        assert not np.any((tile > 0) & (tile < np.finfo(np.float32).tiny))


def test_gradients_of_large_inner_products_are_finite() -> None:
    """Scaling coefficients by a power of 2 must not overflow products with large operands."""
    large = np.eye(20, dtype=np.float32) * np.float32(5e29)
    small = np.eye(20, dtype=np.float32) * np.float32(22.0 / 5e29)
    for loss in (
        lambda a, b: pnce.info_nce(a, b, similarity="dot", temperature=1.0),
        lambda a, b: pnce.clip(a, b, similarity="dot", logit_scale=1.0),
    ):
        gradient = pnce.grad(loss, (0, 1))
        exact = gradient(large.astype(np.float64), small.astype(np.float64))
        for own, wanted in zip(gradient(large, small), exact, strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-6 * np.max(np.abs(wanted)))
