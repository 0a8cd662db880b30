"""Mutual information of two arrays: results, libraries and errors."""

from __future__ import annotations

import html
import io
import json
import math
import pickle
from dataclasses import FrozenInstanceError, asdict, fields, replace
from random import Random
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.estimation import critics, display, features, mutual_information
from portable_nce.estimation.host import on_host
from portable_nce.estimation.reporting import reported
from portable_nce.estimation.result import Settings
from portable_nce.estimation.statistics import (
    Fold,
    averaged,
    extrapolated,
    holm,
    limit_of_mean,
    margin_of_exceptions,
    p_value,
    quantile,
    summary,
)
from portable_nce.estimation.study import Found

NATS = 0.6
RHO = math.sqrt(-math.expm1(-2.0 * NATS))


X = np.random.default_rng(9).normal(size=48)


def correlated(count: int, seed: int = 0) -> tuple[Any, Any]:
    """Gaussian pairs with NATS of mutual information."""
    x, noise = np.random.default_rng(seed).normal(size=(2, count))
    return x, RHO * x + math.sqrt(1.0 - RHO**2) * noise


def estimate(x: Any, y: Any, **options: Any) -> Any:
    """A short estimate without a progress bar."""
    return mutual_information(x, y, **{"rng": 0, "progress": False, "splits": 1, "steps": 75, **options})


def values(found: Any) -> dict[str, Any]:
    """Fields of a result by name, with None in place of NaN."""
    return {**found.to_dict(), "influences": found.influences, "local": found.local}


def test_the_interval_holds_the_truth_and_the_repr_says_what_is_reported() -> None:
    found = mutual_information(*correlated(400), rng=0, progress=False, splits=2, batch=128)
    assert found.flags == ()
    assert found.lower < NATS < found.high
    assert found.lower == found.low < found.estimate < found.high
    assert abs(found.null) < 0.1
    assert found.ceiling == pytest.approx(sum(n * math.log(n) for n in (134, 133, 133)) / 400)
    assert [count for count, _, _ in found.curve] == [100, 200, 400]
    assert found.curve[-1][1:] == (found.bound, found.error)
    for words in ("400 pairs, in nats", f"at least  {found.lower:.3f}", f"[{found.low:.3f}, {found.high:.3f}]"):
        assert words in repr(found)
    made = found.settings
    assert (made.pairs, made.groups, made.folds, made.splits, made.seed) == (400, 400, 3, 2, 0)
    assert made.version == pnce.__version__
    for words in (f"{found.lower:.3f} nats ({found.lower / math.log(2):.3f} bits)", "95 %", "400 pairs", "seed 0"):
        assert words in found.sentence()


def test_independent_arrays_share_nothing() -> None:
    rng = np.random.default_rng(1)
    for columns in (1, 6):
        found = estimate(*rng.normal(size=(2, 200, columns)), steps=400)
        assert found.lower <= 0.0
        assert "nothing found" in found.flags
        assert math.isnan(found.high)


@pytest.mark.parametrize("transform", ["ranks", "standardize"])
def test_units_and_offsets_do_not_matter(transform: Any) -> None:
    x, y = correlated(300)
    first, second = estimate(x, y, transform=transform), estimate(1e6 * x - 3.0, 1e-4 * y, transform=transform)
    assert second.bound == pytest.approx(first.bound, abs=1e-6)


def test_ranks_do_not_see_monotone_functions() -> None:
    x, y = correlated(300)
    plain, bent = estimate(x, y, critic="separable"), estimate(np.exp(2.0 * x), y**3)
    assert bent.bound == pytest.approx(plain.bound, abs=0.1)


@pytest.mark.parametrize("library", ["torch", "array_api_strict", "mlx.core", "jax.numpy"])
def test_the_libraries_agree(library: str) -> None:
    xp = pytest.importorskip(library)
    x, y = (z.astype(np.float32) for z in correlated(120))
    assert values(estimate(xp.asarray(x), xp.asarray(y), steps=25)) == values(estimate(x, y, steps=25))


def test_jax_compiles_little() -> None:
    jax = pytest.importorskip("jax")
    names: list[str] = []

    def count(name: str, *_: Any, **__: Any) -> None:
        if "backend_compile" in name:
            names.append(name)

    jax.monitoring.register_event_duration_secs_listener(count)
    x, y = (jax.numpy.asarray(z) for z in correlated(120))
    before = len(names)
    estimate(x, y, steps=25)
    assert len(names) - before <= 15


def test_a_seed_gives_the_same_numbers_and_a_generator_gives_seeds() -> None:
    x, y = correlated(120)
    same = [estimate(x, y, rng=rng, steps=25) for rng in (5, np.int64(5), Random(5))]
    assert [found.settings.seed for found in same] == [5, 5, None]
    first, *others = ({**values(found), "settings": None} for found in same)
    assert others == [first, first]
    bounds = [estimate(x, y, rng=np.random.default_rng(seed), steps=25).bound for seed in (0, 1)]
    assert bounds[0] != bounds[1]
    fresh = estimate(x, y, rng=None, steps=25)
    assert values(fresh) == values(estimate(x, y, rng=fresh.settings.seed, steps=25))


@pytest.mark.parametrize(
    "options", [{}, {"given": np.arange(120) % 2}, {"transform": "standardize", "batch": 16}], ids=repr
)
@pytest.mark.parametrize("columns", [1, 2])
def test_arrays_that_are_kept_give_the_same_numbers(
    options: Any, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, noise = np.random.default_rng(2).normal(size=(2, 120, columns))
    found = values(estimate(x, x + noise, **options))
    for module in ("host", "training"):  # as in libraries whose functions take no `out`
        monkeypatch.setattr(f"portable_nce.estimation.{module}.numpy_of", lambda _: None)
    assert values(estimate(x, x + noise, **options)) == found


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
    found = estimate(*correlated(300), critic=(scores, start), steps=300, batch=32)
    assert found.lower < NATS
    assert found.bound > 0.8 * NATS


def test_an_own_critic_runs_in_the_library_of_the_arrays() -> None:
    torch = pytest.importorskip("torch")

    def scores(slope: Any, x: Any, y: Any) -> Any:
        assert isinstance(x, torch.Tensor)
        return slope * x @ y.T

    x, y = (torch.asarray(z) for z in correlated(90))
    assert math.isfinite(estimate(x, y, critic=(scores, torch.asarray(0.1)), steps=5).bound)


def test_kernels_follow_what_networks_miss() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=300)
    y = np.sin(16.0 * np.pi * x) + 0.1 * rng.normal(size=300)
    separable, best = (estimate(x, y, critic=critic, steps=50) for critic in ("separable", "best"))
    assert separable.lower < 0.1
    assert 0.3 < best.lower < 1.87  # by quadrature
    assert "kernels" in best.settings.critic


def test_kernels_are_tried_on_samples_whose_squares_are_fast() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=2001)
    y = np.sin(16.0 * np.pi * x) + 0.1 * rng.normal(size=2001)
    found = {n: estimate(x[:n], y[:n], steps=1, splits=1).settings.critic for n in (300, 2001)}
    assert "kernels" in found[300]
    assert "kernels" not in found[2001]


def channel(pairs: int, exceptions: int) -> Any:
    """Bits that are equal but in some rows."""
    rng = np.random.default_rng(0)
    x = rng.integers(2, size=pairs)
    y = x.copy()
    y[rng.choice(pairs, exceptions, replace=False)] ^= 1
    return x, y


def test_one_exception_does_not_hide_a_relation() -> None:
    found = estimate(*channel(300, 1), steps=25)
    assert found.bound > 0.6
    assert found.lower > 0.5
    assert "nothing found" not in found.flags


def test_the_limit_allows_for_exceptions_that_the_sample_does_not_have() -> None:
    # Two exceptions in a hundred pairs leave 0.595 nats, and 30 % of the samples of 60 pairs have none.
    found = estimate(*channel(60, 0), steps=25)
    assert found.bound > 0.6
    assert found.lower < 0.595
    assert found.lower > 0.3


def test_a_range_holds_the_truth_of_a_relation_without_exceptions() -> None:
    x, y = channel(300, 0)
    found = estimate(x, y, steps=400)
    assert found.lower < math.log(2.0)
    assert math.isnan(found.high) or found.high >= math.log(2.0)


def test_pairs_that_scores_rule_out_cost_a_known_number() -> None:
    scores = 1e4 * np.eye(5)[[1, 1, 2, 3, 4]]
    losses, _, share, _ = critics.row_losses(scores, 0.1)
    assert losses[0] == pytest.approx(math.log(5 / 0.1))
    assert losses[1:] == pytest.approx(-math.log(0.9 + 0.1 / 5))
    assert share[0] == 0.0


def test_the_limit_of_a_mean() -> None:
    assert limit_of_mean([0.0] * 300, 1.0) == pytest.approx(1.0 - 0.05 ** (1 / 300), rel=5e-3)  # exact if none was seen
    # Three of 300: near the limit of a Poisson mean of which 3 were seen, 7.75.
    assert limit_of_mean([0.0] * 297 + [1.0] * 3, 1.0) == pytest.approx(7.75 / 300, rel=0.02)
    rng = np.random.default_rng(0)
    deviations = [*rng.normal(size=40).tolist(), 3.0]
    weights = rng.exponential(size=(100_000, 41))
    means = weights @ deviations / weights.sum(axis=1)
    assert limit_of_mean(deviations[:-1], 3.0) == pytest.approx(np.quantile(means, 0.95), abs=0.01)
    assert limit_of_mean([0.0, 0.0], 0.0) == 0.0


def test_an_unseen_exception_is_a_row_or_a_whole_group_of_copies() -> None:
    folds = [Fold(0.5, [0.0] * 60, [k // 6 for k in range(60)], fall) for fall in (1.0, 2.0, 1.5)]
    of_copies = 2.0 * (1.0 - 0.05 ** (1 / 30))  # one of 30 groups, at the largest fall
    assert margin_of_exceptions([folds, folds], whole=True) == pytest.approx(of_copies, rel=0.01)
    assert margin_of_exceptions([folds], whole=False) == pytest.approx(of_copies / 6.0, rel=0.01)


def test_options_of_other_libraries_are_named() -> None:
    call: Any = mutual_information
    for name, words in (
        ("seed", "did you mean 'rng'"),
        ("seeds", "did you mean 'networks'"),
        ("random_state", "did you mean 'rng'"),
        ("n_splits", "did you mean 'folds'"),
        ("cv", "did you mean 'folds'"),
        ("subjects", "did you mean 'groups'"),
        ("times", "did you mean 'order'"),
        ("z", "did you mean 'given'"),
        ("units", "pass nothing: results are in nats"),
        ("group", "did you mean 'groups'"),
    ):
        with pytest.raises(
            TypeError, match=f"{name}: expected an option of mutual_information, got '{name}'; .*{words}"
        ):
            call(X, X, **{name: 3})
    with pytest.raises(TypeError, match="mutual_information: expected x, y, got too few"):
        call(X)


def test_a_column_of_a_table_gives_its_numbers() -> None:
    class Column:
        def to_numpy(self) -> Any:
            return X[:4]

    np.testing.assert_array_equal(on_host("x", Column()), on_host("x", X[:4]))


FEW = np.arange(40.0)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"groups": 12}, TypeError, "groups: expected a label of each of the 40 rows, got int"),
        ({"groups": FEW[1:]}, ValueError, "groups: expected a label of each of the 40 rows, got 39"),
        ({"groups": [0] * 20 + [1] * 20}, ValueError, "groups: expected at least 4 independent groups of rows, got 2"),
        ({"groups": [[0]] * 40}, TypeError, "groups: expected a number, a name or a time for each row"),
        (
            {"groups": [math.nan, *FEW[1:]]},
            ValueError,
            "groups: expected a label of each row, got some that are missing",
        ),
        ({"order": [None, *FEW[1:]]}, ValueError, "order: expected a label of each row, got some that are missing"),
        ({"order": ["a", *range(39)]}, TypeError, "order: expected numbers or times that can be sorted"),
        ({"folds": 30}, ValueError, "folds: expected 2 to 20 for these groups, got 30"),
        ({"folds": 0}, ValueError, "folds: expected at least 2, got 0"),
        ({"splits": 0}, ValueError, "splits: expected at least 1, got 0"),
        ({}, ValueError, "x: expected at least 48 rows, got 40"),
    ],
)
def test_faults_of_options_come_before_too_few_rows(options: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        mutual_information(FEW, FEW, progress=False, **options)


def test_the_joint_critic_is_a_network_of_pairs() -> None:
    found = estimate(*correlated(120), critic="joint", batch=16, steps=5)
    assert found.lower < NATS


@pytest.mark.parametrize("factors", [2, 4])
def test_products_of_signs_are_found(factors: int) -> None:
    x = np.random.default_rng(0).normal(size=(400, 4))
    found = estimate(x, np.sign(x[:, :factors]).prod(axis=1))
    assert 0.3 < found.lower < math.log(2.0)


def test_progress_is_shown_after_two_seconds(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    now = 0.0
    monkeypatch.setattr("portable_nce.estimation.display.time.monotonic", lambda: now)
    lines = []
    with display.progress_bar(100) as bar:
        for second in range(60):
            now = float(second)
            bar.update()
            lines += capsys.readouterr().err.splitlines()
    assert lines == ["critics: 4 of 100, 3 s", "critics: 35 of 100, 34 s"]
    with display.progress_bar(0) as bar:
        bar.update()
    assert capsys.readouterr().err == ""


def test_the_picture() -> None:
    pytest.importorskip("matplotlib")
    found = estimate(*correlated(120), steps=400)
    axes = found.plot()
    assert axes.get_xlabel() == "pairs"
    assert found.plot(axes) is axes
    axes.figure.savefig(picture := io.BytesIO())
    assert picture.getvalue().startswith(b"\x89PNG")


def test_the_picture_shows_the_flags() -> None:
    pytest.importorskip("matplotlib")
    found = estimate(*correlated(60), steps=10)
    axes = found.plot()
    assert any("not converged" in text.get_text() for text in axes.texts)


def test_the_error_is_that_of_a_jackknife() -> None:
    squares = np.asarray([0.4])
    z = np.random.default_rng(0).normal(size=(2, 60, 1))
    pairs = features.Pairs(*(features.CriticInputs(part, part, part) for part in z))

    def bound(chosen: Any) -> tuple[float, Any]:
        losses, softmax, share, _ = critics.row_losses(critics.gaussian(squares, pairs.select(chosen)), 0.05)
        slopes = (share[:, None] * (softmax - 1.0 / len(chosen))).sum(axis=0)
        return math.log(len(chosen)) - float(losses.mean()), losses.mean() - losses - slopes

    value, influence = bound(np.arange(60))
    left_out = np.asarray([bound(np.delete(np.arange(60), k))[0] for k in range(60)])
    jackknife = math.sqrt(59 / 60 * ((left_out - left_out.mean()) ** 2).sum())
    assert influence.sum() == pytest.approx(0.0, abs=1e-12)
    found = summary([Fold(value, influence.tolist(), range(60))])
    assert found.error == pytest.approx(jackknife, rel=0.05)


def test_the_gradient_in_closed_form_is_the_derivative_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    pairs = features.Pairs(
        *(
            features.CriticInputs(rng.normal(size=(9, 2)), rng.normal(size=(9, 3)), rng.normal(size=(9, 1)))
            for _ in range(2)
        )
    )
    parameters, kept = critics.SEPARABLE.initial(Random(0), np.asarray([0.4, 0.2]), (3, 3))
    own = critics.own(lambda p, *_: critics.SEPARABLE.scores(p, *pairs), parameters)
    for given in (parameters, kept):
        expected = pnce.grad(lambda p: pnce.from_scores.info_nce(critics.SEPARABLE.scores(p, *pairs)))(given)
        np.testing.assert_allclose(critics.SEPARABLE.gradient(given, *pairs, 0.0), expected, atol=1e-12)
        expected = own.gradient(given, *pairs, 0.1)  # with a tenth of exceptions, by differentiation
        np.testing.assert_allclose(critics.SEPARABLE.gradient(given, *pairs, 0.1), expected, atol=1e-12)


def study_of(bound: float, **changed: Any) -> Any:
    """Result of two folds with this bound, whose standard error is 0.0071, and of changed parts of the study."""
    settings = Settings(200, 200, 2, 1, "pairs", "own", "ranks", 1, 1, 1, 0.0, 0, "0", "NumPy")
    given, ceiling = changed.pop("given", ()), changed.pop("ceiling", 9.0)
    values = {"half": bound, "quarter": bound, "null": 0.0, **changed}
    converged = values.pop("converged", True)
    parts = {
        name: [Fold(value, [0.1, -0.1] * 50, range(100 * k, 100 * k + 100), 0.0, ceiling) for k in range(2)]
        for name, value in {"whole": bound, **values}.items()
        if value is not None
    }
    study = Found([parts["whole"]], [parts["half"]], parts.get("quarter", []), parts["null"], [], converged)
    return reported(study, given, settings, range(200))


@pytest.mark.parametrize(
    ("flag", "flagged", "not_flagged"),
    [
        ("nothing found", {"bound": 0.0150}, {"bound": 0.0154}),  # two errors and 0.001
        ("nothing found", {"bound": 0.0}, {"bound": 0.0, "given": ("repeated rows",)}),
        ("at the ceiling", {"bound": 1.0, "ceiling": 1.99}, {"bound": 1.0, "ceiling": 2.01}),
        ("null above zero", {"bound": 1.0, "null": 0.0129}, {"bound": 1.0, "null": 0.0126}),
        ("still growing", {"bound": 1.0, "half": 0.75, "quarter": 0.5}, {"bound": 1.0, "half": 0.76, "quarter": 0.5}),
        ("still growing", {"bound": 1.0, "half": 0.9, "quarter": 0.81}, {"bound": 1.0, "half": 0.9, "quarter": 0.8}),
        ("still growing", {"bound": 1.0, "half": 0.9, "quarter": 0.81}, {"bound": 1.0, "half": 0.9, "quarter": None}),
        ("still growing", {"bound": 1.0, "half": 0.9, "quarter": 0.992}, {"bound": 1.0, "half": 0.9, "quarter": 0.994}),
        ("not converged", {"bound": 1.0, "converged": False}, {"bound": 1.0}),
    ],
)
def test_a_flag_has_a_limit(flag: str, flagged: Any, not_flagged: Any) -> None:
    assert flag in study_of(**flagged).flags
    assert flag not in study_of(**not_flagged).flags


def test_what_is_reported_of_a_study() -> None:
    found = study_of(1.0, half=0.98, quarter=0.95)
    error = 0.1 / math.sqrt(198.0)
    assert found.flags == ()
    assert found.curve == tuple((n, x, pytest.approx(error)) for n, x in ((50, 0.95), (100, 0.98), (200, 1.0)))
    assert (found.bound, found.error, found.ceiling, found.null) == (1.0, pytest.approx(error), 9.0, 0.0)
    assert found.lower == found.low == pytest.approx(1.0 - quantile(198) * error, abs=1e-5)
    assert found.estimate == pytest.approx(1.0 + (1.0 + math.sqrt(0.5)) * 0.02)  # between 1/N and 1/√N
    fastest = 1.0 + math.sqrt(2.0)
    width = quantile(198) * math.hypot((1.0 + fastest) * error, fastest * error)
    assert found.high == pytest.approx(1.0 + fastest * 0.02 + width, abs=1e-5)
    growing = study_of(1.0, half=0.5)
    assert growing.lower == found.lower
    assert all(map(math.isnan, (growing.estimate, growing.low, growing.high)))
    assert math.isnan(study_of(1.0, null=0.1).lower)


def test_normal_scores_are_quantiles_of_ranks_between_those_of_the_training() -> None:
    training = np.asarray([[1.0], [2.0], [2.0], [4.0]])
    ranks = {0.0: 0.5, 1.0: 0.5, 1.25: 0.75, 1.5: 1.0, 2.0: 2.0, 3.0: 3.0, 3.5: 3.25, 4.0: 3.5, 5.0: 3.5}
    found = features.normal_scores(np, training, np.asarray([*ranks])[:, None])
    np.testing.assert_allclose(found[:, 0], [NormalDist().inv_cdf(rank / 4.0) for rank in ranks.values()], atol=0.01)


def test_an_outlier_leaves_each_column_its_part_in_the_distances_of_other_rows() -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    x[0, 0] = 200.0
    distances = features.fitted(x, "ranks")(x).coordinates[1:, 2]
    for k in range(2):
        assert np.corrcoef(distances, (x[1:, k] - x[:, k].mean()) ** 2)[0, 1] > 0.4


def test_quantiles() -> None:
    assert quantile(1e9) == pytest.approx(1.6449, abs=1e-3)
    assert quantile(30) == pytest.approx(1.6973, abs=1e-3)  # Student's distribution, from a table
    assert quantile(4) == pytest.approx(2.132, abs=0.03)


def test_probabilities_and_their_correction() -> None:
    assert p_value(1.6449, 1.0, 1e9) == pytest.approx(0.05, abs=1e-4)
    assert p_value(2.132, 1.0, 4) == pytest.approx(0.05, abs=2e-3)
    assert p_value(0.0, 0.0, 4) == 1.0
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # Holm (1979), by hand


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (([1.0, 2.0], np.ones(2)), {}, ValueError, "x: expected at least 48 rows, got 2"),
        ((np.ones(9), np.ones(8)), {}, ValueError, "y: expected 9 rows, as in x, got 8"),
        ((np.ones(9), np.ones((9, 2, 2))), {}, ValueError, "y: expected shape"),
        ((np.ones(9) * 1j, np.ones(9)), {}, TypeError, "x: expected real numbers or categories, got complex128"),
        (([1.0, None] * 5, np.ones(10)), {}, ValueError, "x: expected a value in each row, got some that are missing"),
        ((np.full(9, np.nan), np.ones(9)), {}, ValueError, "x: expected finite numbers"),
        (
            (X, X),
            {"groups": [0, 1, 2] * 16},
            ValueError,
            "groups: expected at least 4 independent groups of rows, got 3",
        ),
        ((X, X), {"groups": X, "order": X}, ValueError, "order: expected groups= or order=, got both"),
        ((X, X), {"order": X[1:]}, ValueError, "order: expected a label of each of the 48 rows, got 47"),
        ((X, X), {"folds": 40}, ValueError, "folds: expected 2 to 24 for these groups, got 40"),
        ((X, X), {"given": X[1:]}, ValueError, "given: expected 48 rows, as in y, got 47"),
        ((X, X), {"folds": 1}, ValueError, "folds: expected at least 2"),
        ((np.ones(9), np.ones(9)), {"critic": "seperable"}, ValueError, "did you mean 'separable'"),
        ((np.ones(9), np.ones(9)), {"critic": 3}, TypeError, "critic: expected a name or"),
        ((np.ones(9), np.ones(9)), {"transform": "rank"}, ValueError, "did you mean 'ranks'"),
        ((X, X), {"groups": [1, 2]}, ValueError, "groups: expected a label of each of the 48 rows, got 2"),
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
    assert values(found) == values(expected)


def test_information_of_more_columns_than_pairs() -> None:
    x = np.random.default_rng(0).normal(size=(150, 200))
    found = estimate(x, x[:, :5] + 0.3 * np.random.default_rng(1).normal(size=(150, 5)), steps=25)
    assert found.lower < 5 * 0.5 * math.log1p(1 / 0.09)
    assert found.lower > 1.0
    assert {"still growing", "nothing found", "at the ceiling"} & {*found.flags}


def test_constant_columns_tell_nothing() -> None:
    found = estimate(np.ones(300), np.random.default_rng(0).normal(size=300))
    assert found.lower <= 0.0
    assert math.isfinite(found.bound)


def test_the_extrapolation_to_more_pairs_has_an_error_of_its_own() -> None:
    def folds(*bounds: float) -> list[Fold]:
        return [Fold(bound, [0.5, -0.5] * 20, range(40)) for bound in bounds]

    whole, half = folds(1.0, 1.0), folds(0.9, 0.7)
    error = summary(whole).error
    assert error == pytest.approx(0.5 / math.sqrt(2 * 39))
    found = extrapolated(whole, half, 2.0)
    assert found.value == pytest.approx(1.4)
    assert found.error == pytest.approx(math.sqrt((9.0 + 4.0) * error**2 + 4.0 * 0.02 / 2))
    assert extrapolated(half, whole, 2.0).value == summary(half).value  # no gain
    assert averaged([summary(whole), summary(half)]).value == pytest.approx(0.9)


def test_integers_names_and_lists_are_accepted() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(3, size=150)
    y = np.where(rng.uniform(size=150) < 0.8, x, rng.integers(3, size=150))
    numbers = estimate(x, y, steps=25)
    names = [np.asarray(["a", "b", "c"])[z] for z in (x, y)]
    for columns in ([x.tolist(), y.tolist()], names, [z.tolist() for z in names]):
        assert values(estimate(*columns, steps=25)) == values(numbers)
    assert numbers.bound > 0.1
    assert numbers.lower < math.log(3.0)
    assert math.isfinite(estimate(rng.normal(size=150) > 0, rng.integers(90, size=150), steps=25).bound)
    objects = np.empty(150, dtype=object)
    objects[:] = [np.float64(z) for z in x]  # as in a column of a table
    assert values(estimate(objects, y, steps=25)) == values(estimate(x.astype(float), y, steps=25))
    objects[0] = 1j
    with pytest.raises(TypeError, match="x: expected numbers or names, got complex; convert them"):
        estimate(objects, y, steps=25)


def test_information_given_a_third_array() -> None:
    rng = np.random.default_rng(0)
    z, first, second = rng.normal(size=(3, 300))
    found = estimate(z + first, z + second, given=z)
    assert found.p > 0.02  # independent given z
    assert found.low == 0.0
    assert found.with_y.bound > 0.2
    assert "independent given the third variable" in repr(found)


def test_a_table_of_columns_is_corrected_for_their_number() -> None:
    x = np.random.default_rng(0).normal(size=(150, 3))
    table = pnce.estimation.information_by_column(x, x[:, 1], rng=0, splits=1, steps=25, progress=False)
    assert [row.name for row in table if row.corrected < 0.01] == ["1"]
    assert all(row.corrected >= row.p for row in table)
    assert "p (Holm)" in repr(table)
    with pytest.raises(ValueError, match="names: expected a name of each of the 3 columns, got 1"):
        pnce.estimation.information_by_column(x, x[:, 1], names=["a"])


def test_threads_are_set_to_one_and_restored() -> None:
    torch = pytest.importorskip("torch")
    before, seen = torch.get_num_threads(), []

    def scores(slope: Any, x: Any, y: Any) -> Any:
        seen.append(torch.get_num_threads())
        return slope * x @ y.T

    torch.set_num_threads(2)
    try:
        x, y = (torch.asarray(z) for z in correlated(60))
        estimate(x, y, critic=(scores, torch.asarray(0.1)), steps=2)
        assert (set(seen), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


def test_a_result_can_be_shown_in_a_notebook_and_written_as_json() -> None:
    x = np.random.default_rng(0).normal(size=60)
    found = mutual_information(x, np.sin(x), rng=0, progress=False, splits=1, steps=5)
    assert found._repr_html_() == f"<pre>{html.escape(repr(found))}</pre>"  # as notebooks call it
    for result in (found, replace(found, lower=math.nan)):
        again = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert again.keys() == {field.name for field in fields(found)} - {"influences", "local"}
        assert again["lower"] == (None if math.isnan(result.lower) else result.lower)
        assert again["settings"] == json.loads(json.dumps(asdict(found.settings)))
        assert again["curve"] == [list(point) for point in found.curve]


def test_results_are_records_and_not_tuples() -> None:
    x, y = correlated(60)
    found: Any = mutual_information(x, y, rng=0, progress=False, splits=1, steps=5)
    test: Any = pnce.estimation.independence_test(x, y, rng=0)
    numbers: Any = mutual_information(x, y, given=y[::-1], rng=0, progress=False, splits=1, steps=5)
    apart: Any = pnce.estimation.difference(found, found, paired=True)
    row: Any = pnce.estimation.table({"one": found})[0]
    for result in (found, test, numbers, apart, row, found.settings):
        assert not isinstance(result, tuple)
        assert result == result  # noqa: PLR0124
        assert hash(result) == hash(result)
        assert result != tuple(getattr(result, field.name) for field in fields(result))
        with pytest.raises(TypeError):
            len(result)
        with pytest.raises(TypeError):
            _first, *_others = result
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(result, fields(result)[0].name, 0)
        copied = pickle.loads(pickle.dumps(result))  # noqa: S301  (what was just written)
        assert (repr(copied), copied.to_dict()) == (repr(result), result.to_dict())
        assert json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert result._repr_html_().startswith("<pre>")
    assert replace(found.settings) == found.settings
    assert numbers.to_dict()["with_y"] == numbers.with_y.to_dict()


def test_local_values_are_the_terms_of_the_bound() -> None:
    x, noise = np.random.default_rng(0).normal(size=(2, 300))
    y = 0.8 * x + 0.6 * noise
    found = estimate(x, y, splits=2, steps=200)
    assert len(found.local) == 300
    assert np.mean(found.local) == pytest.approx(found.bound, abs=1e-9)
    assert math.log(3.0 / 300.0) - 1e-6 <= min(found.local) <= max(found.local) <= found.ceiling + 1e-6
    truth = -math.log(0.6) + 0.5 * y**2 - 0.5 * (y - 0.8 * x) ** 2 / 0.36
    assert np.corrcoef(found.local, truth)[0, 1] > 0.9
    series = estimate(x, y, order=range(300), steps=25)
    assert np.mean(series.local) == pytest.approx(series.bound, abs=1e-9)
    whole = estimate(np.repeat(x, 2), np.repeat(y, 2), steps=25)
    assert np.mean(whole.local) == pytest.approx(whole.bound, abs=1e-9)
    given = estimate(x, y, given=noise, steps=25)
    assert np.mean(given.local) == pytest.approx(given.with_y.bound - given.without_y.bound, abs=1e-9)
