"""Rows that are not independent draws: what is noticed, and lower limits that hold."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

from portable_nce.estimation import mutual_information
from portable_nce.estimation.dependence import correlation_time, has_near_copies, is_serial
from portable_nce.estimation.folds import Clusters, blocks, by_label
from portable_nce.estimation.repeats import equal_rows, row_keys


def normal(*shape: int, seed: int = 0) -> Any:
    """Independent normal numbers."""
    return np.random.default_rng(seed).normal(size=shape)


def series(count: int, memory: float, seed: int = 0) -> Any:
    """Two independent autoregressive series, as columns."""
    z = normal(count, 2, seed=seed)
    for i in range(1, count):
        z[i] = memory * z[i - 1] + math.sqrt(1.0 - memory**2) * z[i]
    return z[:, :1], z[:, 1:]


def estimate(x: Any, y: Any, **options: Any) -> Any:
    """A short estimate."""
    return mutual_information(x, y, **{"rng": 0, "progress": False, "splits": 1, "steps": 50, "batch": 100, **options})


@pytest.mark.parametrize("copies", ["twice", "five times", "bootstrap"])
def test_equal_rows_are_grouped(copies: str) -> None:
    x, y = normal(2, 60, 1)
    rng = np.random.default_rng(1)
    drawn = {"twice": np.tile(np.arange(60), 2), "five times": np.tile(np.arange(60), 5)}
    chosen = rng.permutation(drawn.get(copies, rng.integers(60, size=100)))
    found = equal_rows(x[chosen], y[chosen])
    assert len(found.clusters) == len({*chosen.tolist()})
    assert found.repeated == len(chosen) - len(found.clusters)


def test_equal_rows_of_tables_are_draws() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.poisson(4.0, size=(2, 300, 1)).astype(float)
    assert equal_rows(x, y).repeated <= 6  # rare large counts
    label = rng.integers(10, size=(300, 1)).astype(float)
    assert equal_rows(label, label).repeated == 0
    assert equal_rows(label, normal(300, 1)).repeated == 0
    often_zero = np.where(rng.uniform(size=(300, 1)) < 0.5, 0.0, normal(300, 1))
    assert equal_rows(often_zero, np.roll(often_zero, 7)).repeated == 0


def test_codes_with_exceptions_are_draws() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(60, size=(300, 1)).astype(float)
    y = np.where(rng.uniform(size=(300, 1)) < 0.2, rng.integers(60, size=(300, 1)), x)
    assert equal_rows(x, y).repeated == 0


def test_a_small_table_with_even_counts_is_no_copy() -> None:
    x, y = np.repeat([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [20, 6, 4, 20], axis=0).T[:, :, None]
    assert equal_rows(x, y).repeated == 0


def test_copies_within_two_classes_are_grouped() -> None:
    y = normal(100, 1)
    x = (y > 0).astype(float)
    assert equal_rows(np.tile(x, (2, 1)), np.tile(y, (2, 1))).repeated == 100


def test_a_table_copied_as_a_whole_is_grouped() -> None:
    x, y = np.random.default_rng(0).poisson(4.0, size=(2, 100, 1)).astype(float)
    found = equal_rows(np.tile(x, (3, 1)), np.tile(y, (3, 1)))
    assert [len(rows) for rows in found.clusters] == [3] * 100


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_shared_zeros_are_draws(share: float) -> None:
    gone = np.random.default_rng(1).uniform(size=(300, 1)) < share
    x, y = (np.where(gone, 0.0, z) for z in normal(2, 300, 1))
    assert equal_rows(x, y).repeated == 0
    # Some of the zeros of y have other partners, none of those of x.
    y[:20] = 0.0
    assert equal_rows(x, y).repeated == 0
    # Rows of copies are grouped, those of zeros by the same number.
    chosen = np.random.default_rng(2).permutation(np.tile(np.arange(300), 4))
    assert {len(rows) for rows in equal_rows(x[chosen], y[chosen]).clusters} == {4}


@pytest.mark.parametrize("correlation", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("digits", [0, 1, 2])
def test_ties_of_rounded_numbers_are_draws(correlation: float, digits: int) -> None:
    x, noise = normal(2, 300, 1)
    y = np.round(correlation * x + math.sqrt(1.0 - correlation**2) * noise, digits)
    assert equal_rows(np.round(x, digits), y).repeated == 0


def test_ties_at_limits_of_detection_are_draws() -> None:
    x, noise = normal(2, 300, 1)
    for y in (x, x + 0.1 * noise):
        assert equal_rows(np.clip(x, -1.0, 1.2), np.clip(y, -0.6, 0.7)).repeated == 0


def test_functions_of_rounded_numbers_are_draws() -> None:
    age = np.random.default_rng(0).integers(20, 80, size=(300, 1)).astype(float)
    for y in (age > 50.0, np.sin(age)):
        assert equal_rows(age, y.astype(float)).repeated == 0
    copied = normal(150, 1)
    assert equal_rows(np.tile(age[:150], (2, 1)), np.tile(copied, (2, 1))).repeated == 150


def test_a_part_of_the_rows_copied_many_times_is_grouped() -> None:
    x, y = normal(2, 220, 1)
    chosen = np.concatenate([np.arange(200), np.repeat(np.arange(200, 220), 10)])
    assert equal_rows(x[chosen], y[chosen]).repeated == 180


def test_nothing_found_never_stands_where_rows_were_left_out() -> None:
    x, y = (np.repeat(z, 3) for z in normal(2, 60))
    flags = estimate(x, y, steps=5).flags
    assert "repeated rows" in flags
    assert "nothing found" not in flags
    one = np.concatenate([np.zeros(60), normal(60)])
    found = estimate(one, one, groups=(one != 0.0) * np.arange(120), steps=5)
    assert "pass" not in found.sentence()
    assert "groups=range(N)" in repr(found)


def test_copies_do_not_raise_the_lower_limit() -> None:
    x, y = normal(2, 60)
    order = np.random.default_rng(2).permutation(np.tile(np.arange(60), 5))
    found = estimate(x[order], y[order])
    assert found.flags[0] == "repeated rows"
    assert found.lower <= 0.0
    assert found.settings.groups == 60
    # The user says that each row is a draw of its own.
    assert "repeated rows" not in estimate(x[order], y[order], groups=range(300)).flags


def test_copies_next_to_each_other_are_no_series() -> None:
    x, y = (np.repeat(z, 3) for z in normal(2, 60))
    found = estimate(x, y, steps=5)
    assert "repeated rows" in found.flags
    assert "serial dependence" not in found.flags


@pytest.mark.parametrize(("times", "noise"), [(2, 1e-3), (5, 1e-2)])
@pytest.mark.parametrize("rows", [100, 450])
def test_near_copies_are_noticed(rows: int, times: int, noise: float) -> None:
    z = np.tile(normal(rows, 2), (times, 1)) + noise * normal(rows * times, 2, seed=1)
    assert has_near_copies(z[:, :1], z[:, 1:], range(len(z)), Random(0))
    found = estimate(z[:, :1], z[:, 1:], steps=25)
    assert "near copies" in found.flags
    assert math.isnan(found.lower)


def test_many_near_copies_of_each_row_are_noticed() -> None:
    z = np.tile(normal(40, 2), (20, 1)) + 0.02 * normal(800, 2, seed=1)
    assert has_near_copies(z[:, :1], z[:, 1:], range(800), Random(0))


def test_classes_of_equal_size_are_no_copies() -> None:
    label = np.repeat(np.arange(10), 30)
    x, y = (normal(10, 5, seed=k)[label] + 0.1 * normal(300, 5, seed=k + 2) for k in range(2))
    assert not has_near_copies(x, y, range(300), Random(0))


@pytest.mark.parametrize(("values", "columns"), [(2, 9), (3, 6), (18, 2), (30, 2)])
def test_designs_of_all_combinations_are_no_copies(values: int, columns: int) -> None:
    """The distances to neighbours jump, or are tied."""
    design = np.random.default_rng(0).permutation(np.indices((values,) * columns).reshape(columns, -1).T.astype(float))
    x, y = design[:, : columns // 2], design[:, columns // 2 :]
    assert not has_near_copies(x, y, range(len(design)), Random(0))


@pytest.mark.parametrize("columns", [1, 5, 60])
@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_independent_draws_are_no_copies(columns: int, noise: float) -> None:
    clusters = np.random.default_rng(0).integers(5, size=300)
    x = normal(300, columns) + 4.0 * normal(5, columns, seed=2)[clusters]
    assert not has_near_copies(x, x + noise * normal(300, columns, seed=1), range(300), Random(0))


@pytest.mark.parametrize("memory", [0.5, 0.95])
def test_a_series_is_noticed(memory: float) -> None:
    x, y = series(300, memory)
    assert is_serial(x, y)
    assert not is_serial(x, normal(300, 1))
    assert not is_serial(*normal(2, 300, 20))


def test_a_series_without_its_order_has_no_lower_limit() -> None:
    found = estimate(*series(200, 0.9), steps=25)
    assert "serial dependence" in found.flags
    assert math.isnan(found.lower)
    assert "No lower limit" in found.sentence()
    assert "shuffle" not in repr(found)


def test_a_series_with_its_order_has_a_lower_limit() -> None:
    x, y = series(400, 0.8)
    order = np.random.default_rng(1).permutation(400)
    found = estimate(x[order], y[order], order=order)
    assert found.lower <= 0.0
    assert found.settings.groups < 60


def test_blocks_are_as_long_as_the_correlation() -> None:
    assert correlation_time(*normal(2, 500, 1)) < 3.0
    assert correlation_time(*series(2000, 0.8)) == pytest.approx(9.0, rel=0.4)  # (1 + φ) / (1 - φ)
    assert {len(rows) for rows in blocks(range(100), 10.0).rows} == {10}


def test_the_report_of_a_series_is_apart_from_its_training() -> None:
    clusters = blocks(range(300), 5.0)
    for report, rest in clusters.folds(5, Random(0)):
        used = sorted({*clusters.members(report)})
        gap = min(min(abs(i - j), 300 - abs(i - j)) for i in used for j in clusters.members(rest))
        assert gap > 5


def test_folds_have_equal_numbers_of_rows() -> None:
    sizes = np.random.default_rng(0).integers(1, 30, size=40)
    clusters = Clusters(by_label(np.repeat(np.arange(40), sizes).tolist()))
    folds = clusters.folds(5, Random(0))
    rows = [len(clusters.members(fold.report)) for fold in folds]
    assert sum(rows) == sizes.sum()
    assert max(rows) - min(rows) <= sizes.max()
    assert sorted(c for fold in folds for c in fold.report) == list(range(40))
    bounds = np.cumsum([0, 10, 4, 3, 2, 1, 1]).tolist()
    clusters = Clusters([list(range(a, b)) for a, b in pairwise(bounds)])
    assert sorted(len(clusters.members(fold.report)) for fold in clusters.folds(2, Random(0))) == [10, 11]


@pytest.mark.parametrize("kind", ["groups", "blocks"])
def test_each_fold_has_clusters_to_train_on_and_to_stop_by(kind: str) -> None:
    ordered = kind == "blocks"
    for count in range(6 if ordered else 4, 24):
        for sizes in ([1] * count, [500] + [1] * (count - 1), [30, 20, *range(1, count - 1)]):
            bounds = np.cumsum([0, *sizes]).tolist()
            clusters = Clusters([list(range(a, b)) for a, b in pairwise(bounds)], ordered)
            for number in clusters.possible_folds():
                for report, rest in clusters.folds(number, Random(count)):
                    assert report
                    assert len(rest) >= 2
                    assert not {*report} & {*rest}
                    stop, train = clusters.divided(rest[:2], 0.25)
                    assert stop
                    assert train


def test_two_folds_of_seven_blocks_leave_one_block() -> None:
    seven = Clusters([[k] for k in range(7)], ordered=True)
    assert seven.possible_folds() == range(3, 4)


@pytest.mark.parametrize("phi", [0.97, 0.98])
def test_a_series_of_few_correlation_times(phi: float) -> None:
    found = set()
    for seed in range(12):
        try:
            settings = estimate(*series(250, phi, seed=seed), order=range(250), steps=1).settings
        except ValueError as error:
            found.add(re.sub(r"\d+$", "", str(error)))
        else:
            found.add(settings.folds)
    few = "order: expected at least 6 independent blocks of a correlation time, got "
    assert few in found
    assert found - {few} <= {3, 4, 5}


def test_some_subjects_have_a_lower_limit() -> None:
    means, noise = normal(2, 30, 1), normal(2, 300, 1, seed=1)
    label = np.repeat(np.arange(30), 10)
    x, y = means[0][label] + noise[0], means[1][label] + noise[1]
    found = estimate(x, y, groups=label)
    assert (found.settings.groups, found.settings.folds) == (30, 5)
    assert found.lower <= 0.0


def test_groups_that_allow_no_error_are_flagged() -> None:
    x, y = normal(2, 100)
    assert "one group dominates" in estimate(x, y, groups=[0] * 55 + list(range(1, 46)), steps=10).flags
    one_row_to_train_on = estimate(x, y, groups=[0, 1, 2] + [3] * 97, splits=3, steps=1)
    assert {"too few pairs", "one group dominates"} <= {*one_row_to_train_on.flags}
    few = estimate(x, y, groups=np.arange(100) % 6, steps=10)
    assert "too few pairs" in few.flags
    assert math.isnan(few.lower)


def test_negative_zeros_are_zeros() -> None:
    first, second, third = row_keys(np.asarray([[0.0, 1.0], [-0.0, 1.0], [0.0, -1.0]]))
    assert first == second != third
