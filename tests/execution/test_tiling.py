"""Sizes of blocks and tiles, on the host and on accelerators."""

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


def tiled(  # noqa: PLR0917
    function: Any,
    n_rows: int,
    n_columns: int,
    block_size: Any = "auto",
    mode: str = "eager",
    far: int | None = None,
    **options: Any,
) -> Any:
    """Tiling by a function of the module."""
    return tiling.Sizes(function, block_size, mode, far, tuple(options.items())).of(n_rows, n_columns)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SWEEPS)
def test_blocks_of_an_accelerator_are_whole_rows_of_nearly_equal_number(name: str, shape: tuple[int, int]) -> None:
    """Few launches: at least 512 rows, and 2048 of 32768 columns. Compiled steps never see a small last block."""
    function, options, entries = SWEEPS[name]
    n_rows, n_columns = shape
    found = tiled(function, n_rows, n_columns, far=2**27, **options)
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
    assert tiled(function, 4096, 4096, 100, far=2**27, **options).block == 100


@pytest.mark.parametrize("name", SWEEPS)
def test_a_compiled_batch_is_held_whole_on_an_accelerator_up_to_256_mib_of_scores(name: str) -> None:
    function, options, _ = SWEEPS[name]
    assert tiled(function, 8192, 8192, mode="compiled", far=2**27, **options).block == 8192
    assert len(tiled(function, 32768, 32768, mode="compiled", far=2**27, **options).block) == 16


@pytest.mark.parametrize("name", SWEEPS)
def test_a_block_takes_a_64th_of_the_memory_of_a_card(name: str) -> None:
    """Of 512 MiB at most; half, where several arrays of its size are held."""
    function, options, entries = SWEEPS[name]

    def entries_of(gib: int | None) -> int:
        memory = None if gib is None else gib * 2**30
        found = tiled(function, 16384, 16384, far=tiling.far_entries(memory), **options)
        return int(found.block * found.tile)

    assert entries_of(141) == entries_of(32) == entries_of(None) == entries
    assert [entries_of(gib) for gib in (16, 8, 4)] == [entries // 2, entries // 4, entries // 8]


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


@pytest.mark.parametrize("block_size", [None, "auto", 1, 7, 100])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (600, 5000), (5000, 600)])
@pytest.mark.parametrize("mode", ["eager", "traced", "compiled", "whole"])
@pytest.mark.parametrize("far", [None, 2**27])
def test_blocks_and_tiles_are_within_the_matrix(
    mode: str, shape: tuple[int, int], block_size: Any, far: int | None
) -> None:
    rows, columns = shape
    widths: list[dict[str, Any]] = [{}, {"width": 64}, {"width": 64, "tokens": True}]
    for found in (
        tiled(tiling.one_sided, rows, columns, block_size, mode=mode, far=far),
        tiled(tiling.two_sided, rows, rows, block_size, mode=mode, far=far, symmetric=False),
        *([] if far else [tiled(tiling.two_sided, rows, rows, block_size, mode=mode, far=far, symmetric=True)]),
        *(tiled(tiling.masked, rows, columns, block_size, mode=mode, **width) for width in widths),
    ):
        if isinstance(found.block, tuple):
            assert mode == "compiled"
            assert [low for low, _ in found.block] == [0, *(high for _, high in found.block[:-1])]
            assert found.block[-1][1] == rows
        else:
            assert 1 <= found.block <= rows
        assert isinstance(found.tile, int)
        assert 1 <= found.tile <= max(rows, columns)
        if block_size is None or mode == "whole":
            assert found.block == rows
        elif isinstance(block_size, int) and mode != "compiled":
            assert found.block == min(block_size, rows)
            assert not found.keep


@pytest.mark.parametrize("n", [1, 4096, 4097, 8192, 32768, 65536, 65537, 200_000])
def test_a_symmetric_matrix_is_cut_into_strips_of_the_same_size(n: int) -> None:
    """From the diagonal on; at most 512 MiB of scores in each, and few."""
    found = tiled(tiling.two_sided, n, n, far=2**27, symmetric=True)
    blocks = found.block if isinstance(found.block, tuple) else ((0, found.block),)
    assert [low for low, _ in blocks] == [0, *(high for _, high in blocks[:-1])]
    assert blocks[-1][1] == n
    assert (len(blocks) > 1) == (n > 4096)
    entries = [(high - low) * (n - low) for low, high in blocks]
    assert max(entries) <= 2**27
    assert len(blocks) <= 2 + n * n / 2**27 / 2 * 1.1 / 0.9 or n <= 8192
    assert sum(entries) <= 0.68 * n * n or n <= 4097


def test_the_number_of_blocks_that_are_compiled_does_not_depend_on_the_batch() -> None:
    blocks = {len(tiled(tiling.one_sided, n, n, mode="compiled").block) for n in (2100, 4096, 10007)}
    assert len(blocks) == 1
    assert tiled(tiling.one_sided, 2048, 2048, mode="compiled").block == 2048


def test_tiles_are_kept_up_to_a_size_and_never_where_a_block_size_is_given() -> None:
    kept: set[tuple[int, Any, Any]] = {(8192, "auto", "eager"), (1448, "auto", "traced")}
    left: set[tuple[int, Any, Any]] = {(8193, "auto", "eager"), (64, 32, "eager"), (1449, "auto", "traced")}
    for n, block_size, mode in kept | left:
        found = tiled(tiling.two_sided, n, n, block_size, mode=mode, symmetric=False)
        assert found.keep == ((n, block_size, mode) in kept), (n, block_size, mode)


def test_a_range_is_cut_into_pieces() -> None:
    for start, stop, size in ((0, 10, 3), (0, 9, 3), (4, 10, 6), (4, 11, 2), (0, 3, 5)):
        bounds = tiling.cut(start, stop, size)
        assert [k for low, high in bounds for k in range(low, high)] == list(range(start, stop))
        assert all(0 < high - low <= size for low, high in bounds)


def test_triples_fit_into_memory() -> None:
    assert tiling.triples(10, 10, 4, mode="eager") == (10, None)
    assert tiling.triples(1024, 1024, 16, mode="eager") == (16, None)
    assert tiling.triples(1024, 1024, 16, mode="traced") == (16, None)
    assert tiling.triples(512, 512, 512, mode="eager") == (1, None)
    assert tiling.triples(200, 5000, 5000, mode="eager") == (200, 4)
    assert tiling.triples(512, 512, 512, mode="whole") == (512, 512)
