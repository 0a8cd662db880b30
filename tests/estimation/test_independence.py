"""Test of independence: its level, its power, and what it refuses."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest

from portable_nce.estimation import independence_test
from portable_nce.estimation.folds import Clusters
from portable_nce.estimation.independence import _divided, _permutations, _shifts, fisher


def test_dependent_arrays_are_told_from_independent_ones() -> None:
    x, noise = np.random.default_rng(0).normal(size=(2, 150))
    for y in (0.6 * x + noise, x**2 + noise, np.sin(4.0 * x) + 0.5 * noise):
        assert independence_test(x, y, rng=0).p < 0.02
    assert independence_test(x, noise, rng=0).p > 0.05


def test_interactions_and_many_columns_are_found() -> None:
    x, noise = np.random.default_rng(0).normal(size=(2, 200, 8))
    assert independence_test(x, np.sign(x[:, 0] * x[:, 1]), rng=0).p < 0.01
    assert independence_test(x, x + noise, rng=0).p < 0.01


def test_the_level_holds_with_few_pairs() -> None:
    rng = np.random.default_rng(5)
    found = [independence_test(*rng.normal(size=(2, 48)), rng=k, permutations=99).p for k in range(60)]
    assert sum(p <= 0.05 for p in found) <= 8  # above 8 in one of 300 tests of that level
    assert 0.3 < np.mean(found) < 0.75


def test_fisher_combines_uniform_numbers() -> None:
    assert fisher([0.2]) == pytest.approx(0.2)
    assert fisher([0.1, 0.5]) == pytest.approx(0.05 * (1.0 - math.log(0.05)))
    u = np.random.default_rng(0).uniform(size=(20_000, 3)).tolist()
    assert np.mean([fisher(three) <= 0.1 for three in u]) == pytest.approx(0.1, abs=0.01)
    assert fisher([1.0, 1.0]) == 1.0


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


def test_a_series_is_tested_by_shifts_of_what_follows() -> None:
    clusters = Clusters([[2 * k, 2 * k + 1] for k in range(20)], ordered=True)
    parts = _divided(clusters, Random(0))
    assert [c for part in parts for c in part] == list(range(20))
    rows, others = _shifts(clusters, parts[1])
    assert rows == list(range(16, 28))
    assert others[0] == [*range(18, 28), 16, 17]
    assert len(others) == 9
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
    monkeypatch.setattr("portable_nce.estimation.independence.MOST_FITTED", 100)
    x, noise = np.random.default_rng(0).normal(size=(2, 600))
    found = independence_test(x, x**2 + noise, rng=0)
    assert [(before, some) for before, some, _ in found.parts] == [(240, 100), (420, 100)]
    assert found.p < 0.01


def test_arrays_that_tell_nothing_are_independent() -> None:
    assert independence_test(np.ones(60), np.random.default_rng(0).normal(size=60), rng=0).p == 1.0


def test_a_seed_gives_the_same_probability() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 60))
    first, second = (independence_test(x, y, rng=7) for _ in range(2))
    assert first.to_dict() == second.to_dict()
    assert (first.seed, first.pairs, first.groups) == (7, 60, 60)
    assert [some for _, some, _ in first.parts] == [18, 18]
    for words in ("p = ", "60 pairs", "999 permutations", "seed 7"):
        assert words in first.sentence()
    assert "test of independence of 60 pairs" in repr(first)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"groups": np.arange(60) % 12},
            ValueError,
            "groups: expected at least 20 independent rows or groups for a test",
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
