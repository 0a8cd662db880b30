"""Mutual information of two arrays: results, libraries and errors."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.estimation import MutualInformation, critics, features, mutual_information
from portable_nce.estimation.statistics import Fold, extrapolated, quantile, summary

NATS = 0.6
RHO = math.sqrt(-math.expm1(-2.0 * NATS))


def correlated(count: int, seed: int = 0) -> tuple[Any, Any]:
    """Gaussian pairs with NATS of mutual information."""
    x, noise = np.random.default_rng(seed).normal(size=(2, count))
    return x, RHO * x + math.sqrt(1.0 - RHO**2) * noise


def estimate(x: Any, y: Any, **options: Any) -> MutualInformation:
    """A short estimate without a progress bar."""
    return mutual_information(x, y, **{"rng": 0, "progress": False, "seeds": 1, "steps": 100, **options})


def test_the_interval_holds_the_truth_and_the_repr_says_what_is_reported() -> None:
    found = mutual_information(*correlated(600), rng=0, progress=False)
    assert found.flags == ()
    assert found.lower < NATS < found.high
    assert found.lower == found.low < found.estimate < found.high
    assert abs(found.null) < 0.1
    assert found.ceiling == pytest.approx(math.log(200))
    assert [count for count, _, _ in found.curve] == [150, 300, 600]
    assert found.curve[-1][1:] == (found.bound, found.error)
    for words in ("600 pairs, in nats", f"at least  {found.lower:.3f}", f"[{found.low:.3f}, {found.high:.3f}]"):
        assert words in repr(found)


def test_independent_arrays_share_nothing() -> None:
    rng = np.random.default_rng(1)
    for columns in (1, 6):
        found = estimate(*rng.normal(size=(2, 300, columns)), steps=1000)
        assert found.lower <= 0.0 <= found.high


@pytest.mark.parametrize("transform", ["ranks", "standardize"])
def test_units_and_offsets_do_not_matter(transform: Any) -> None:
    x, y = correlated(300)
    first, second = estimate(x, y, transform=transform), estimate(1e6 * x - 3.0, 1e-4 * y, transform=transform)
    assert second.bound == pytest.approx(first.bound, abs=1e-6)


def test_ranks_do_not_see_monotone_functions() -> None:
    x, y = correlated(300)
    plain, bent = estimate(x, y, critic="separable"), estimate(np.exp(2.0 * x), y**3)
    assert bent.bound == pytest.approx(plain.bound, abs=0.1)


@pytest.mark.parametrize("library", ["torch", "array_api_strict", "mlx.core"])
def test_the_libraries_agree(library: str) -> None:
    xp = pytest.importorskip(library)
    x, y = correlated(240)
    expected = estimate(x, y, steps=50)
    if library != "mlx.core":  # float64 is CPU-only and incomplete
        found = estimate(xp.asarray(x), xp.asarray(y), steps=50)
        assert all(isinstance(value, float) for value in found[:8])
        np.testing.assert_allclose(found[:8], expected[:8], rtol=1e-6)
    single = estimate(*(xp.asarray(z.astype(np.float32)) for z in (x, y)), steps=50)
    np.testing.assert_allclose(single[:8], expected[:8], atol=1e-2)


def test_jax_compiles_the_steps() -> None:
    jnp = pytest.importorskip("jax.numpy")
    x, y = correlated(240)
    found = estimate(jnp.asarray(x), jnp.asarray(y), steps=50)
    np.testing.assert_allclose(found[:8], estimate(x, y, steps=50)[:8], atol=1e-2)


def test_a_seed_gives_the_same_numbers_and_a_generator_gives_seeds() -> None:
    x, y = correlated(120)
    same = [estimate(x, y, rng=rng, steps=25) for rng in (5, np.int64(5), Random(5))]
    assert same[0] == same[1] == same[2]
    first, second = (estimate(x, y, rng=np.random.default_rng(seed), steps=25) for seed in (0, 1))
    assert first.bound != second.bound
    assert math.isfinite(estimate(x, y, rng=None, steps=25).bound)


def test_groups_are_never_divided() -> None:
    rng = np.random.default_rng(3)
    x, y = np.cumsum(rng.normal(size=(2, 600)), axis=1)  # two independent random walks
    alone = estimate(x, y)
    assert "null above zero" in alone.flags
    assert math.isnan(alone.lower)
    few = estimate(x, y, groups=np.arange(600) // 10)
    assert "too few pairs" in few.flags
    assert math.isnan(few.lower)


def test_pairs_that_come_twice_count_once_in_the_error() -> None:
    x, y = correlated(200)
    once = estimate(x, y)
    twice = estimate(np.repeat(x, 2), np.repeat(y, 2), groups=np.repeat(np.arange(200), 2))
    assert twice.error > 0.7 * once.error


def test_a_ceiling_is_flagged() -> None:
    x = np.random.default_rng(0).normal(size=300)
    found = estimate(x, x)
    assert "at the ceiling" in found.flags
    assert found.lower <= found.ceiling
    assert math.isnan(found.estimate)
    assert "at least" in repr(found)


def test_training_that_ends_too_soon_is_flagged() -> None:
    assert "not converged" in estimate(*correlated(120), steps=10).flags


def test_an_own_critic() -> None:
    def scores(parameters: dict[str, Any], x: Any, y: Any) -> Any:
        return parameters["slope"] * x @ y.T - parameters["bend"] * (y * y).T

    start = {"slope": np.asarray(0.1), "bend": np.asarray(0.0)}
    found = estimate(*correlated(400), critic=(scores, start), steps=300, batch=64)
    assert found.lower < NATS
    assert found.bound > 0.8 * NATS


def test_the_joint_critic_follows_sharp_edges() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=300)
    y = x + rng.uniform(-0.2, 0.2, size=300)
    separable, joint = (estimate(x, y, critic=critic, batch=64) for critic in ("separable", "joint"))
    assert joint.bound > separable.bound - 0.05
    assert joint.lower < 0.2 - math.log(0.4)


def test_the_picture() -> None:
    pytest.importorskip("matplotlib")
    found = estimate(*correlated(300), steps=1000)
    axes = found.plot()
    assert axes.get_xlabel() == "pairs"
    assert found.plot(axes) is axes


def test_the_error_is_that_of_a_jackknife() -> None:
    rng = np.random.default_rng(0)
    squares = np.asarray([0.4])
    scores = features.Canonical((np.zeros(1), np.zeros(1)), (np.eye(1), np.eye(1)), squares, 0.0)
    x, y = scores.applied(features.Pairs(*(features.Inputs(z, z) for z in rng.normal(size=(2, 60, 1)))))
    parameters, _ = critics.SEPARABLE.initial(Random(0), squares, (1, 1))

    def bound(chosen: Any) -> tuple[float, Any]:
        losses, shares = critics.SEPARABLE.judged([parameters], x.select(chosen), y.select(chosen))
        influence = losses.mean() - losses - shares
        return math.log(len(chosen)) - float(losses.mean()), influence

    value, influence = bound(np.arange(60))
    left_out = np.asarray([bound(np.delete(np.arange(60), k))[0] for k in range(60)])
    jackknife = math.sqrt(59 / 60 * ((left_out - left_out.mean()) ** 2).sum())
    assert influence.sum() == pytest.approx(0.0, abs=1e-12)
    found = summary([Fold(value, influence.tolist(), range(60))])
    assert found.error == pytest.approx(jackknife, rel=0.05)


def test_quantiles() -> None:
    assert quantile(1e9) == pytest.approx(1.6449, abs=1e-3)
    assert quantile(30) == pytest.approx(1.6973, abs=2e-3)  # Student's distribution, from a table


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (([1.0, 2.0], np.ones(2)), {}, TypeError, "x"),
        ((np.ones(9), np.ones(8)), {}, ValueError, "y: expected"),
        ((np.ones(9), np.ones((9, 2, 2))), {}, ValueError, "y: expected shape"),
        ((np.ones(9, dtype=np.int64), np.ones(9)), {}, TypeError, "x"),
        ((np.full(9, np.nan), np.ones(9)), {}, ValueError, "x: expected finite numbers"),
        ((np.ones(47), np.ones(47)), {}, ValueError, "at least 48 independent rows for 3 folds, got 47"),
        ((np.ones(9), np.ones(9)), {"folds": 1}, ValueError, "folds: expected at least 2"),
        ((np.ones(9), np.ones(9)), {"critic": "seperable"}, ValueError, "did you mean 'separable'"),
        ((np.ones(9), np.ones(9)), {"critic": 3}, TypeError, "critic: expected a name or"),
        ((np.ones(9), np.ones(9)), {"transform": "rank"}, ValueError, "did you mean 'ranks'"),
        ((np.ones(9), np.ones(9)), {"groups": [1, 2]}, ValueError, "groups: expected a label of each of the 9 rows"),
        ((np.ones(9), np.ones(9)), {"rng": "0"}, TypeError, "rng: expected an integer"),
        ((np.ones(9), np.ones(9)), {"progress": 1}, TypeError, "progress: expected True or False"),
    ],
)
def test_refusals(arguments: Any, options: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        pnce.estimation.mutual_information(*arguments, **{"progress": False, **options})


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_numbers_whose_squares_overflow(dtype: Any) -> None:
    x, y = (z.astype(dtype) for z in correlated(100))
    largest = 2.0 ** (500 if dtype == "float64" else 60)
    found, expected = (estimate(a, b, steps=25) for a, b in ((x * largest, y / largest), (x, y)))
    assert found == expected


def test_more_columns_than_pairs() -> None:
    x = np.random.default_rng(0).normal(size=(300, 200))
    found = estimate(x, x[:, :5] + 0.3 * np.random.default_rng(1).normal(size=(300, 5)))
    assert found.bound > 0.3
    assert "shrinks with N" in found.flags


def test_constant_columns_tell_nothing() -> None:
    found = estimate(np.ones(300), np.random.default_rng(0).normal(size=300))
    assert found.lower <= 0.0
    assert math.isfinite(found.bound)


def test_what_more_pairs_would_add_has_an_error_of_its_own() -> None:
    def folds(*bounds: float) -> list[Fold]:
        return [Fold(bound, [0.5, -0.5] * 20, range(40)) for bound in bounds]

    whole, half = folds(1.0, 1.0), folds(0.9, 0.7)
    error = summary(whole).error
    assert error == pytest.approx(0.5 / math.sqrt(2 * 39))
    found = extrapolated(whole, whole, half, 2.0)
    assert found.value == pytest.approx(1.4)
    assert found.error == pytest.approx(math.sqrt((9.0 + 4.0) * error**2 + 4.0 * 0.02 / 2))
    assert extrapolated(half, half, whole, 2.0).value == summary(half).value  # no gain
