"""Clusterings of `proto_nce` and the concentrations of their clusters."""

from __future__ import annotations

import itertools
from typing import Any

import array_api_strict
import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.testing import oracles

RNG = np.random.default_rng(11)
SEVERAL, ONE, NONE = [0, 1, 2, 3] * 3 + [3, 3], [0] * 5 + [1] + [2] * 4 + [3] * 4, [0] * 7 + [2] * 4 + [3] * 3
PERCENTILES = [(10.0, 90.0), (0.0, 100.0), (30.0, 35.0), (50.0, 50.0), (0.0, 0.0)]


@pytest.mark.parametrize("members", [SEVERAL, ONE, NONE], ids=["of several", "of one", "of none"])
def test_concentrations_are_those_of_the_definition(members: list[int]) -> None:
    points, centres = RNG.normal(size=(14, 3)), RNG.normal(size=(4, 3))
    pairs = itertools.product((10.0, 0.5), PERCENTILES)
    given = [{"temperature": 0.3, "smoothing": smoothing, "percentiles": p} for smoothing, p in pairs]
    for options in [dict[str, Any](), *given]:
        found = pnce.concentrations(points, centres, np.asarray(members), **options)
        expected = oracles.concentrations(points.tolist(), centres.tolist(), members, **options)
        np.testing.assert_allclose(found, [float(number) for number in expected], rtol=1e-13, err_msg=str(options))
        assert found.mean() == pytest.approx(options.get("temperature", 0.1), rel=1e-13)


def test_concentrations_of_more_clusters_than_a_block_holds() -> None:
    number = 1100  # squared, more than 2**20
    points, members = RNG.normal(size=(2 * number, 2)), np.concatenate([np.arange(number)] * 2)
    found = pnce.concentrations(points, np.zeros((number, 2)), members, percentiles=(0.0, 100.0))
    sums = np.linalg.norm(points, axis=1).reshape(2, number).sum(axis=0)
    np.testing.assert_allclose(found, 0.1 * sums / sums.mean(), rtol=1e-12)


def test_concentrations_of_clusters_of_identical_points_are_all_alike() -> None:
    points, members = np.asarray([[1.0, 2.0], [3.0, 4.0]] * 2), np.asarray([0, 1, 0, 1])
    assert pnce.concentrations(points, points[:2], members, temperature=0.25).tolist() == [0.25, 0.25]


def test_concentrations_within_a_loss_are_constants() -> None:
    """Also for a library whose arrays refuse a recorded right operand."""
    points, centres, members = (
        array_api_strict.asarray(x) for x in (RNG.normal(size=(6, 2)), np.eye(2), np.asarray([0, 1, 0, 1, 0, 1]))
    )
    phi = pnce.concentrations(points, centres, members)
    within = pnce.grad(lambda x: pnce.proto_nce(x, centres, members, pnce.concentrations(x, centres, members)))(points)
    beforehand = pnce.grad(pnce.proto_nce)(points, centres, members, phi)
    np.testing.assert_array_equal(np.asarray(within), np.asarray(beforehand))


def test_concentrations_refuse_an_assignment_to_no_cluster_and_have_the_dtype_of_the_embeddings() -> None:
    points, members = RNG.normal(size=(5, 3)), np.asarray([0, 1, 0, 1, 0])
    for dtype in (np.float16, np.float32, np.float64):
        assert pnce.concentrations(points.astype(dtype), points[:2].astype(dtype), members).dtype == dtype
    for outside in (-1, 2, 7):
        with pytest.raises(ValueError, match="assignments"):
            pnce.concentrations(points, points[:2], np.asarray([0, 1, 0, 1, outside]))


@pytest.mark.parametrize("name", ["assignments", "concentrations", "mask"])
@pytest.mark.parametrize("count", [1, 3])
def test_clusterings_come_in_equal_numbers(name: str, count: int) -> None:
    arrays = {"assignments": np.asarray([0, 1]), "concentrations": np.ones(2), "mask": np.ones((2, 2), dtype=bool)}
    given = {key: [array] * (count if key == name else 2) for key, array in arrays.items()}
    with pytest.raises(ValueError, match=rf"^{name}: expected a sequence of 2 arrays, .*, got {count}$"):
        pnce.proto_nce(np.eye(2), [np.eye(2)] * 2, *list(given.values())[:2], mask=given["mask"])


@pytest.mark.parametrize("least", [0.0, -1.0])
def test_concentrations_are_positive(least: float) -> None:
    """They divide the scores, as a temperature does."""
    with pytest.raises(ValueError, match=rf"^concentrations: expected a finite number greater than 0, got {least}"):
        pnce.proto_nce(np.eye(2), np.eye(2), np.asarray([0, 1]), np.asarray([1.0, least]))
