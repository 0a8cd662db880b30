"""Gradients of 16 bits are rounded once, also where a loss is a sum of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce

SUMS: dict[str, Callable[..., Any]] = {
    "moco_v3, temperature": lambda a, b, option: pnce.moco_v3(a, b, b, a, temperature=option[0] / 2),
    "moco_v3, weights": lambda a, b, option: pnce.moco_v3(a, b, b, a, weights=option, reduction="sum"),
    "proto_nce, weights": lambda a, b, option: pnce.proto_nce(
        *(a, [b[:3], b[2:]], [np.arange(8) % 3, np.arange(8) % 6], [0.0 * b[:3, 0] + 0.5, 0.0 * b[2:, 0] + 0.5]),
        key=b,
        weights=option,
        reduction="sum",
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_gradient_of_an_option_in_several_terms_is_rounded_once(name: str) -> None:
    """In 16 bits a sum of rounded terms would be off by more than half a unit."""
    for seed in range(20):
        a, b = np.random.default_rng(seed).normal(size=(2, 8, 4)).astype(np.float16)
        option = np.random.default_rng(seed).uniform(0.5, 1.5, size=(8,)).astype(np.float16)
        found = pnce.grad(SUMS[name], argnums=2)(a, b, option)
        wanted = pnce.grad(SUMS[name], argnums=2)(*(x.astype(np.float64) for x in (a, b, option)))
        assert found.dtype == np.float16
        unit = np.spacing(np.abs(wanted).astype(np.float16)).astype(np.float64)
        assert (np.abs(found.astype(np.float64) - wanted) <= 0.51 * unit).all()
