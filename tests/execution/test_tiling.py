"""Sizes of blocks and tiles on accelerators."""

from __future__ import annotations

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from portable_nce._core.registry import adapter_of, on_accelerator
from portable_nce._execution import tiling

SHAPES = [(32768, 32768), (32768, 65536), (8192, 65536), (8192, 8192), (8193, 8193), (5, 2**20), (1, 7), (0, 3), (3, 0)]
SWEEPS: dict[str, Any] = {
    "one-sided": (tiling.one_sided, {}, 2**27),
    "two-sided": (tiling.two_sided, {"symmetric": False}, 2**26),
    "masked": (tiling.masked, {}, 2**26),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SWEEPS)
def test_blocks_of_an_accelerator_are_whole_rows_of_nearly_equal_number(name: str, shape: tuple[int, int]) -> None:
    """Few launches: at least 512 rows, and 2048 of 32768 columns. Compiled steps never see a small last block."""
    function, options, entries = SWEEPS[name]
    n_rows, n_columns = shape
    found = function(n_rows, n_columns, "auto", mode="eager", far=True, **options)
    assert found.tile == n_columns
    assert found.block <= max(512, min(8192, entries // max(n_columns, 1)))
    assert found.block >= min(n_rows, 512) // 2
    sizes = [high - low for low, high in tiling.cut(0, n_rows, max(found.block, 1))]
    assert not sizes or max(sizes) - min(sizes) < len(sizes)
    if n_columns <= 32768:
        assert found.block >= min(n_rows, 2048)


@pytest.mark.parametrize("name", SWEEPS)
def test_a_number_of_rows_that_is_asked_for_is_taken(name: str) -> None:
    function, options, _ = SWEEPS[name]
    assert function(4096, 4096, 100, mode="eager", far=True, **options).block == 100


@pytest.mark.parametrize("name", SWEEPS)
def test_a_compiled_batch_is_held_whole_on_an_accelerator_up_to_256_mib_of_scores(name: str) -> None:
    function, options, _ = SWEEPS[name]
    assert function(8192, 8192, "auto", mode="compiled", far=True, **options).block == 8192
    assert len(function(32768, 32768, "auto", mode="compiled", far=True, **options).block) == 16


def test_an_array_without_a_device_is_on_the_default_device() -> None:
    """Such as JAX's under jit: their blocks depend on it."""
    assert not any(map(on_accelerator, (np.zeros(1), torch.zeros(1), jnp.zeros(1))))
    assert on_accelerator(torch.zeros(1, device="meta"))
    found = []

    def noted(x: Any) -> Any:
        found.append(on_accelerator(x))
        return x

    jax.jit(noted)(jnp.zeros(1))
    with mock.patch.object(type(adapter_of(jnp.zeros(1))), "devices", ("cuda:0",)):
        jax.jit(lambda x: noted(x) + 1)(jnp.zeros(1))
    assert found == [False, True]
