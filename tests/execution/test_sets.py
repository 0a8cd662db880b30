"""Sets of pairs in tiles: which pairs are left out, and the partners of rows."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from portable_nce._execution import sets, tiling
from portable_nce._execution.inputs import Inputs
from portable_nce._execution.sets import Diagonals, TilePosition

pytestmark = pytest.mark.usefixtures("jax_x64")

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("array", [np.array, jnp.asarray], ids=["eager", "traced"])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "lines",
    [
        *(Diagonals(), Diagonals((4,), self_pairs=True), Diagonals((2, 4, 6), self_pairs=True)),
        *(Diagonals(()), Diagonals((), indexed=True)),
    ],
    ids=str,
)
def test_pairs_that_are_no_negatives_are_excluded_in_every_tile(lines: Diagonals, size: int, array: Any) -> None:
    n = 8
    index = RNG.integers(0, n, n)
    whole = RNG.normal(size=(n, n))
    expected = whole.copy()
    for row in range(n):
        if lines.indexed:
            expected[row, index[row]] = -1.0
        else:
            expected[row, [(row + distance) % n for distance in lines.distances]] = -1.0
        if lines.self_pairs:
            expected[row, row] = -1.0
    targets = (array(index),) if lines.indexed else ()
    assert np.all(np.sum(expected == whole, axis=1) == lines.negatives(whole.shape[1]))
    tiles = sets.DiagonalSets(lines, tiling.cut(0, n, 3), n)
    for start, stop in tiling.cut(0, n, size):
        here = Inputs(targets=tuple(x[start:stop] for x in targets))
        for k, (low, high) in enumerate(tiles.bounds):
            found = tiles.of(k, start, here)(array(whole[start:stop, low:high]), -1.0)
            np.testing.assert_array_equal(found, expected[start:stop, low:high])


@pytest.mark.parametrize("array", [np.array, jnp.asarray], ids=["eager", "traced"])
def test_a_line_takes_a_number_for_each_row(array: Any) -> None:
    found = sets.put_diagonal(array(np.zeros((3, 4))), 2, array(np.arange(1.0, 4.0)), TilePosition(1, 0, 4, 4))
    np.testing.assert_array_equal(found, [[0, 0, 0, 1], [2, 0, 0, 0], [0, 3, 0, 0]])


@pytest.mark.parametrize(
    "lines",
    [Diagonals(), *(Diagonals(x, self_pairs=True) for x in ((3,), (2, 4))), Diagonals((), indexed=True)],
    ids=str,
)
def test_partners_and_their_cotangents_are_adjoint(lines: Diagonals) -> None:
    n = 6
    columns = RNG.normal(size=(n if lines.self_pairs else n + 4, 2))
    inputs, index = Inputs((np.empty((n, 2)),), (columns,)), np.asarray([9, 0, -1, 9, 7, 12])
    if lines.indexed:
        inputs = inputs._replace(targets=(index,), present=((index >= 0) & (index < n + 4),))
    found = sets.partners(np, lines, inputs)
    for distance, own in zip(lines.distances, found, strict=False):
        np.testing.assert_array_equal(own, columns[[(i + distance) % n for i in range(n)]])
    if lines.indexed:
        np.testing.assert_array_equal(found[0], columns[[9, 0, 0, 9, 7, 0]])
    cotangents = [RNG.normal(size=(n, 2)) for _ in found]
    back = sets.add_partners(np, lines, inputs, np.zeros_like(columns), cotangents)
    expected = sum(np.sum(x * cotangent) for x, cotangent in zip(found, cotangents, strict=True))
    np.testing.assert_allclose(np.sum(back * columns), expected)
