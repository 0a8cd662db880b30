"""Test of independence: its level, its power, and what it refuses."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest

from portable_nce.estimation import independence_test
from portable_nce.estimation.evidence import STATISTICS, combined, evidence
from portable_nce.estimation.folds import Clusters
from portable_nce.estimation.independence import _permutations, _shifts


def test_dependent_arrays_are_told_from_independent_ones() -> None:
    x, noise = np.random.default_rng(0).normal(size=(2, 150))
    for y in (0.6 * x + noise, x**2 + noise, np.sin(4.0 * x) + 0.5 * noise):
        assert independence_test(x, y, rng=0).p < 0.02
    assert independence_test(x, noise, rng=0).p > 0.01


def test_interactions_and_many_columns_are_found() -> None:
    x, noise = np.random.default_rng(0).normal(size=(2, 200, 8))
    assert independence_test(x, np.sign(x[:, 0] * x[:, 1]), rng=0).p < 0.01
    assert independence_test(x, x + noise, rng=0).p < 0.01


@pytest.mark.parametrize("count", [20, 48])
def test_the_level_holds_with_few_pairs(count: int) -> None:
    rng = np.random.default_rng(5)
    found = [independence_test(*rng.normal(size=(2, count)), rng=k, permutations=99).p for k in range(60)]
    assert sum(p <= 0.05 for p in found) <= 8  # above 8 in one of 300 tests of that level
    assert 0.3 < np.mean(found) < 0.75


def test_one_pair_of_many_columns_is_found() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(150, 60)), rng.normal(size=(150, 100))
    assert independence_test(x, y, rng=0).p > 0.05
    y[:, 7] = 0.7 * x[:, 3] + 0.7 * y[:, 7]
    assert independence_test(x, y, rng=0).p < 0.01


def test_local_and_weak_relations_are_found() -> None:
    rng = np.random.default_rng(1)
    x, noise = rng.normal(size=(2, 200))
    turn = rng.uniform(0.0, 2.0 * math.pi, size=200)
    circle = [f(turn) + 0.3 * z for f, z in ((np.cos, x), (np.sin, noise))]
    steps = rng.uniform(0.0, 4.0, size=200)
    tiles = 2.0 * rng.integers(2, size=200) + np.floor(steps) % 2 + rng.uniform(size=200)
    for a, b in ((x, 0.3 * x + noise), (x, np.exp(0.5 * x) * noise), circle, (steps, tiles)):
        assert independence_test(a, b, rng=0).p < 0.02


def test_the_statistics_are_those_of_whole_matrices() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 30, 2))
    orders = [list(range(30)), *(Random(k).sample(range(30), 30) for k in range(5))]
    covariances, largest, kernels, others = evidence(x, y, orders, Random(0))

    def centred(matrix: Any) -> Any:
        return matrix - matrix.mean(axis=0) - matrix.mean(axis=1)[:, None] + matrix.mean()

    a, b = (np.sqrt(((z[:, None] - z[None]) ** 2).sum(axis=2)) for z in (x, y))
    expected = [(centred(a) * b[np.ix_(o, o)]).sum() for o in orders]
    np.testing.assert_allclose(covariances, expected, rtol=1e-6)  # all 30 rows are landmarks
    c, d = (np.exp(-0.5 * (z / 0.3) ** 2 / 2.0) for z in (a, b))
    np.testing.assert_allclose(kernels, [(centred(c) * d[np.ix_(o, o)]).sum() for o in orders], rtol=1e-6)
    for order, *values in zip(orders, largest, others, strict=True):
        columns = [[z[:, 0], z[:, 1]] for z in (x, y[order])]
        squares = [[z[:, 0] ** 2, z[:, 1] ** 2] for z in (x, y[order])]
        products = [[z[:, 0] * z[:, 1], np.sign(z[:, 0] * z[:, 1])] for z in (x, y[order])]
        couples = [(squares[0], columns[1]), (columns[0], squares[1]), (squares[0], squares[1])]
        couples += [(products[0], [*columns[1], *squares[1]]), ([*columns[0], *squares[0]], products[1])]
        for value, some in zip(values, ([(columns[0], columns[1])], couples), strict=True):
            assert value == pytest.approx(max(abs(np.corrcoef(u, v)[0, 1]) for p, q in some for u in p for v in q))


def test_the_combination_has_its_rank_among_all_assignments() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        values = list(rng.normal(size=(len(STATISTICS), 100)))
        p, each = combined(STATISTICS, values)
        assert each == [pytest.approx((z >= z[0]).mean()) for z in values]
        found.append(p)
    assert np.mean(np.asarray(found) <= 0.05) == pytest.approx(0.05, abs=0.035)
    assert np.mean(found) == pytest.approx(0.5, abs=0.06)
    # Equal values count as at least as large.
    assert combined(STATISTICS, [np.zeros(20)] * len(STATISTICS)) == (1.0, [1.0] * len(STATISTICS))


def test_subjects_change_places_as_a_whole() -> None:
    rows = [[3 * k, 3 * k + 1, 3 * k + 2] for k in range(8)] + [[24]]
    clusters = Clusters(rows)
    tested, others = _permutations(clusters, range(8), 50, Random(0))
    assert tested == list(range(24))
    for other in others:
        starts = other[::3]
        assert sorted(starts) == list(range(0, 24, 3))
        assert other == [start + k for start in starts for k in range(3)]
    # With a smaller one among them, all are cut to its size.
    tested, others = _permutations(clusters, range(9), 5, Random(0))
    assert tested == [*range(0, 24, 3), 24]
    assert all(sorted(other) == sorted(tested) for other in others)


def test_means_of_subjects_are_no_dependence() -> None:
    def p(k: int, **options: Any) -> float:
        rng = np.random.default_rng(k)
        label = np.repeat(np.arange(30), 4)
        x, y = (rng.normal(size=30)[label] + 0.2 * rng.normal(size=120) for _ in range(2))
        return independence_test(x, y, rng=k, permutations=99, **({"groups": label} | options)).p

    assert sum(p(k) <= 0.05 for k in range(12)) <= 3
    assert sum(p(k, groups=range(120)) <= 0.05 for k in range(12)) >= 6


def test_a_series_is_tested_by_shifts(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters([[2 * k, 2 * k + 1] for k in range(20)], ordered=True)
    rows, others = _shifts(clusters)
    assert rows == list(range(40))
    assert others == [[*range(k, 40), *range(k)] for k in range(1, 40)]
    monkeypatch.setattr("portable_nce.estimation.independence.MOST_TESTED", 10)
    assert _shifts(clusters)[0] == list(range(0, 40, 4))
    monkeypatch.undo()
    z = np.random.default_rng(0).normal(size=(2, 600))
    for i in range(1, 600):
        z[:, i] += 0.8 * z[:, i - 1]
    assert independence_test(*z, order=range(600), rng=0).p > 0.05
    found = independence_test(z[0], z[0] + z[1], order=range(600), rng=0)
    assert found.p < 0.05
    assert found.permutations is None
    assert "all shifts" in found.sentence()


def test_rows_that_are_no_draws_have_no_probability() -> None:
    z = np.cumsum(np.random.default_rng(0).normal(size=(2, 100)), axis=1)
    found = independence_test(*z, rng=0)
    assert math.isnan(found.p)
    assert "serial dependence" in found.flags
    assert "serial dependence: " in repr(found)
    assert "cannot be tested (serial dependence" in found.sentence()


def test_many_pairs_are_tested_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portable_nce.estimation.independence.MOST_TESTED", 100)
    x, noise = np.random.default_rng(0).normal(size=(2, 600))
    found = independence_test(x, x**2 + noise, rng=0)
    assert (found.tested, found.pairs) == (100, 600)
    assert found.p < 0.01
    monkeypatch.setattr("portable_nce.estimation.evidence.WORK", 1e5)
    assert independence_test(x, x**2 + noise, rng=0).p < 0.01


def test_arrays_that_tell_nothing_are_independent() -> None:
    assert independence_test(np.ones(60), np.random.default_rng(0).normal(size=60), rng=0).p == 1.0


def test_a_seed_gives_the_same_probability() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 60))
    first, second = (independence_test(x, y, rng=7) for _ in range(2))
    assert first.to_dict() == second.to_dict()
    assert (first.seed, first.pairs, first.groups) == (7, 60, 60)
    assert [name for name, _ in first.statistics] == [statistic.name for statistic in STATISTICS]
    for words in (
        "p = ",
        "60 pairs",
        "distance covariance, largest correlation of columns, Gaussian",
        "999 permutations",
        "seed 7",
    ):
        assert words in first.sentence()
    assert all(f"{p:.4g} by {name}" in repr(first) for name, p in first.statistics)
    assert "test of independence of 60 pairs" in repr(first)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"groups": np.arange(60) % 12},
            ValueError,
            "groups: expected at least 20 independent rows or groups for a test",
        ),
        (
            {"groups": np.arange(60) % 19},
            ValueError,
            "at least 20 independent rows or groups for a test, got 19",
        ),
        ({"permutations": 5}, ValueError, "permutations: expected at least 19, got 5"),
        ({"seed": 5}, TypeError, "did you mean 'rng'"),
        ({"order": range(59)}, ValueError, "order: expected a label of each of the 60 rows, got 59"),
    ],
)
def test_refusals(options: Any, error: Any, words: str) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 60))
    with pytest.raises(error, match=words):
        independence_test(x, y, **options)
