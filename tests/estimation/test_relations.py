"""Information given a third variable, and differences of information."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.estimation import critics, difference, features, independence_test, mutual_information
from portable_nce.estimation.categories import Within
from portable_nce.estimation.folds import Clusters
from portable_nce.estimation.relations import conditional
from portable_nce.estimation.residuals import RIDGES, Regression
from portable_nce.estimation.statistics import SLOWEST, Fold, influences, summary

RHO = 0.8
NATS = -0.5 * math.log1p(-(RHO**2))
RNG = np.random.default_rng(11)
LABEL = RNG.integers(4, size=300)
A, B = RNG.normal(size=(2, 300))
Y = RHO * A + math.sqrt(1.0 - RHO**2) * B


def estimate(x: Any, y: Any, **options: Any) -> Any:
    """A short estimate without a progress bar."""
    return mutual_information(x, y, **{"rng": 0, "progress": False, "splits": 1, "steps": 75, **options})


# ----------------------------------------------------------------------------------------------------------- categories


def test_what_categories_explain_is_no_information_given_them() -> None:
    x, y = 3.0 * LABEL + A, 3.0 * LABEL + B
    assert estimate(x, y).lower > 0.5
    found = estimate(x, y, given=LABEL)
    assert found.lower <= 0.0
    assert "nothing found" in found.flags


def test_a_relation_within_categories_has_a_limit_and_is_described() -> None:
    found = estimate(3.0 * LABEL + A, Y - 2.0 * LABEL, given=LABEL, steps=400)
    assert 0.25 < found.lower < NATS
    assert abs(found.null) < 0.1
    assert found.ceiling < math.log(100) - 1.0
    assert found.settings.categories == 4
    assert repr(found).startswith("mutual information given 4 categories of 300 pairs, in nats")
    assert "The mutual information given 4 categories is at least" in found.sentence()
    for words in (
        "The mutual information given 4 categories of 300 pairs was estimated",
        "compared with pairs of its own category",
        "With y shifted against x within each category, the bound was",
        "with 95 % confidence",
        "\nGaffke (2005)",
    ):
        assert words in found.report()
    assert "category" not in estimate(A, Y, steps=25).report()


def test_relations_that_differ_between_categories_are_found() -> None:
    sign = 2.0 * (LABEL % 2) - 1.0
    assert estimate(A, sign * Y, given=LABEL % 2, steps=400).lower > 0.25
    bits = (A > 0.0).astype(int)
    assert estimate(bits, bits ^ (LABEL % 2), given=LABEL % 2).lower > 0.5
    assert estimate(bits, bits ^ (LABEL % 2)).lower < 0.05


def test_units_of_a_category_do_not_matter() -> None:
    first = estimate(A, Y, given=LABEL)
    second = estimate((1.0 + LABEL) * A - 5.0 * LABEL, Y * 4.0**LABEL, given=LABEL)
    assert second.bound == pytest.approx(first.bound, abs=0.05)


def test_categories_have_many_forms() -> None:
    torch = pytest.importorskip("torch")
    first = estimate(A, Y, given=LABEL, steps=25)
    names = np.asarray(["a", "b", "c", "d"])[LABEL]
    for given in (names, names.tolist(), LABEL.tolist(), list(LABEL), LABEL[:, None], torch.asarray(LABEL)):
        assert estimate(A, Y, given=given, steps=25).to_dict() == first.to_dict()
    two_columns = np.stack([LABEL // 2, LABEL % 2], axis=1)
    assert estimate(A, Y, given=two_columns, steps=25).to_dict() == first.to_dict()
    assert estimate(A, Y, given=LABEL > 1, steps=25).settings.categories == 2
    assert estimate(A, Y, given=np.zeros(300, dtype=int), steps=25).bound == pytest.approx(
        estimate(A, Y, steps=25).bound, abs=0.1
    )


def test_rows_sorted_by_category_are_no_series() -> None:
    order = np.argsort(LABEL, kind="stable")
    x, y = (5.0 * LABEL + A)[order], (5.0 * LABEL + B)[order]
    assert "serial dependence" in estimate(x, y, steps=5).flags
    assert "serial dependence" not in estimate(x, y, given=LABEL[order], steps=5).flags
    z = RNG.normal(size=(2, 300))
    for i in range(1, 300):
        z[:, i] += 0.9 * z[:, i - 1]
    assert "serial dependence" in estimate(*z, given=LABEL, steps=5).flags


def test_groups_and_order_go_with_categories() -> None:
    subject = np.repeat(np.arange(60), 5)
    found = estimate(A, Y, given=LABEL, groups=subject)
    assert (found.settings.groups, found.settings.categories) == (60, 4)
    assert 0.1 < found.lower < NATS
    assert estimate(A, Y, given=LABEL, order=range(300), steps=25).settings.unit == "blocks"


@pytest.mark.parametrize("critic", ["own", "joint"])
def test_other_critics_compare_within_categories(critic: str) -> None:
    def scores(slope: Any, x: Any, y: Any) -> Any:
        return slope * x @ y.T

    chosen: Any = (scores, np.asarray(0.1)) if critic == "own" else critic
    found = estimate(3.0 * LABEL + A, 3.0 * LABEL + Y, given=LABEL, critic=chosen, steps=100, batch=32)
    assert 0.15 < found.bound < NATS + 0.15
    assert estimate(3.0 * LABEL + A, 3.0 * LABEL + B, given=LABEL, critic=chosen, steps=25, batch=32).lower <= 0.0


CODES = np.asarray([0.0, 1.0, 0.0, 2.0, 1.0, 0.0, 1.0, 1.0])


def test_losses_within_categories_are_those_of_each_category() -> None:
    scores = np.random.default_rng(0).normal(size=(8, 8))
    same = CODES[:, None] == CODES[None, :]
    found = critics.row_losses(scores, 0.1, same=same)
    for code in (0.0, 1.0, 2.0):
        rows = np.flatnonzero(code == CODES)
        alone = critics.row_losses(scores[np.ix_(rows, rows)], 0.1)
        np.testing.assert_allclose(found.losses[rows], alone.losses, rtol=1e-12)
        np.testing.assert_allclose(found.softmax[np.ix_(rows, rows)], alone.softmax, rtol=1e-12)
        assert found.counts[rows].tolist() == [len(rows)] * len(rows)
    assert (found.softmax[~same] == 0.0).all()


def categorical_pairs(x: Any, y: Any, codes: Any) -> features.Pairs:
    """Inputs with categories."""
    return features.Pairs(*(features.CriticInputs(z, z, z, codes) for z in (x, y)))


def test_the_gradient_within_categories_is_the_derivative_of_the_loss() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 8, 2))
    pairs = categorical_pairs(x, y, CODES)
    parameters, _ = critics.SEPARABLE.initial(Random(0), np.asarray([0.4, 0.2]), (2, 2))
    own = critics.own(lambda p, *_: critics.SEPARABLE.scores(p, *pairs), parameters)
    expected = own.gradient(parameters, *pairs, 0.1)
    np.testing.assert_allclose(critics.SEPARABLE.gradient(parameters, *pairs, 0.1), expected, atol=1e-12)


def test_the_error_given_categories_is_that_of_a_jackknife() -> None:
    # Categories of unlike information: the error has to count the chance of their shares.
    codes = np.repeat([0.0, 1.0], [40, 20])
    x, noise = np.random.default_rng(0).normal(size=(2, 60, 1))
    pairs = categorical_pairs(x, np.where(codes[:, None] == 0.0, x, 0.0) + 0.5 * noise, codes)

    def bound(chosen: Any) -> tuple[float, Any]:
        some = pairs.select(chosen)
        same = some.same_category()
        assert same is not None
        found = critics.row_losses(critics.gaussian(np.asarray([0.7]), some), 0.05, same=same)
        values = np.log(found.counts) - found.losses
        slopes = (found.share[:, None] * (found.softmax - same / found.counts[:, None])).sum(axis=0)
        return float(values.mean()), values - values.mean() - slopes

    value, influence = bound(np.arange(60))
    left_out = np.asarray([bound(np.delete(np.arange(60), k))[0] for k in range(60)])
    jackknife = math.sqrt(59 / 60 * ((left_out - left_out.mean()) ** 2).sum())
    assert summary([Fold(value, influence.tolist(), range(60))]).error == pytest.approx(jackknife, rel=0.05)


def test_shifts_stay_within_categories() -> None:
    clusters = Clusters([[k] for k in range(60)])
    strata = [[*range(0, 60, 2)], [*range(1, 60, 2)]]
    for seed in range(20):
        found = clusters.shifted(Random(seed), strata)
        assert sorted(found) == list(range(60))
        assert all(a % 2 == b % 2 for a, b in enumerate(found))
        assert min(min(abs(a - b), 60 - abs(a - b)) for a, b in enumerate(found)) >= 12


def test_centres_and_scales_of_categories() -> None:
    codes = np.repeat([0.0, 1.0], [200, 100])
    x = np.random.default_rng(0).normal(size=(300, 1)) * np.where(codes == 0.0, 1.0, 4.0)[:, None] + 7.0
    x[:3] = 1e6  # outliers move neither much
    found = Within.fitted(x, codes, 3)
    np.testing.assert_allclose(found.centres[:2], 7.0, atol=1.0)
    np.testing.assert_allclose(found.scales[:2, 0], [1.0, 4.0], rtol=0.25)
    assert np.isfinite(found.centres[2]).all()  # no rows: those of all
    wide = Within.fitted(np.concatenate([x, 3.0 * x - 50.0], axis=1), codes, 3)  # each column by itself
    np.testing.assert_allclose(wide.centres, np.concatenate([found.centres, 3.0 * found.centres - 50.0], axis=1))
    np.testing.assert_allclose(wide.scales, np.concatenate([found.scales, 3.0 * found.scales], axis=1))
    assert found.indicators(codes).shape == (300, 3)
    assert Within.fitted(np.ones((300, 1)), codes, 2)(np.ones((300, 1)), codes).tolist() == [[0.0]] * 300


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (LABEL[:299], ValueError, "given: expected 300 rows, as in x, got 299"),
        (np.append(LABEL[:299], 9), ValueError, "given: expected at least 12 rows of each category, got 1 of 9; merge"),
        (range(300), ValueError, "numbers that are no categories are passed as floats"),
        ([None, *LABEL[1:]], ValueError, "given: expected a value in each row, got some that are missing"),
        ("subject", TypeError, "given: expected a value of each row, got str"),
        ([], ValueError, "given: expected a value of each row, got none"),
        (A[:299], ValueError, "given: expected 300 rows, as in y, got 299"),
        ([math.inf, *A[1:]], ValueError, "given: expected finite numbers, got some that are NaN or infinite"),
    ],
)
def test_third_variables_that_are_refused(given: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        estimate(A, Y, given=given)


def test_columns_given_categories() -> None:
    table = pnce.estimation.information_by_column(
        np.stack([LABEL + A, LABEL + B], axis=1), LABEL + Y, given=LABEL, rng=0, splits=1, steps=25, progress=False
    )
    assert [row.result.settings.categories for row in table] == [4, 4]
    with pytest.raises(ValueError, match="given: expected categories for a table of columns, got floats"):
        pnce.estimation.information_by_column(A[:, None], Y, given=B)


def test_independence_given_categories() -> None:
    x, y = 3.0 * LABEL + A, 3.0 * LABEL + B
    assert independence_test(x, y, rng=0).p < 0.01
    found = independence_test(x, y, given=LABEL, rng=0)
    assert found.p > 0.05
    assert "given 4 categories: p = " in found.sentence()
    assert "999 permutations within categories" in found.sentence()
    assert "test of independence given 4 categories of 300 pairs" in repr(found)
    assert independence_test(x, y + 0.7 * A, given=LABEL, rng=0).p < 0.01
    assert independence_test(A, (2.0 * (LABEL % 2) - 1.0) * Y, given=LABEL, rng=0).p < 0.01


def test_the_level_given_categories_holds() -> None:
    def p(k: int) -> float:
        rng = np.random.default_rng([k, 3])
        z = np.repeat([0, 1, 2], [30, 20, 14])
        x, y = 2.0 * z + rng.normal(size=(2, 64))
        return independence_test(x, y, given=z, rng=k, permutations=99).p

    assert sum(p(k) <= 0.05 for k in range(40)) <= 6  # above 6 in one of 200 tests of that level


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"given": LABEL, "groups": LABEL}, "given: expected neither groups= nor order= with it in a test"),
    ],
)
def test_third_variables_that_a_test_refuses(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        independence_test(A, Y, **options)


# -------------------------------------------------------------------------------------------------------------- numbers


SHORT = estimate(A, Y, steps=25)
WITH_Y = replace(SHORT, lower=0.5, estimate=0.7, low=0.5, high=1.0, bound=0.65, error=0.04, flags=())
WITHOUT = replace(SHORT, lower=0.1, estimate=0.2, low=0.1, high=0.3, bound=0.18, error=0.03, flags=())


def difference_of(first: Any, second: Any, p: float) -> Any:
    """Conditional information of two results and the probability of a test."""
    results = iter([first, second])
    return conditional(lambda *_: next(results), lambda: p, A, Y, B)


def test_a_difference_of_two_estimates_has_a_test_and_a_range_and_no_limit() -> None:
    found = difference_of(WITH_Y, WITHOUT, 0.004)
    assert not hasattr(found, "lower")
    assert not hasattr(found, "error")
    assert (found.p, found.flags) == (0.004, ())
    assert (found.estimate, found.low, found.high) == (pytest.approx(0.5), pytest.approx(0.2), pytest.approx(0.9))
    assert "[0.200, 0.900] if the curves go on" in repr(found)
    for words in ("independence has p = 0.004", "about 0.500 nats", "300 pairs", "seed 0"):
        assert words in found.sentence()
    for words in (found.sentence(), "Shah and Peters 2020", "For x with y and z: The", "For x with z: The"):
        assert words in found.report()
    assert found.to_dict()["without_y"]["lower"] == 0.1


def test_the_low_end_leaves_0_where_the_third_variable_tells_nothing_of_x() -> None:
    nothing = replace(
        WITHOUT, lower=-0.05, estimate=math.nan, low=math.nan, high=math.nan, bound=-0.01, flags=("nothing found",),
        curve=((150, -0.02, 0.02), (300, -0.01, 0.01)),
    )  # fmt: skip
    found = difference_of(WITH_Y, nothing, 0.01)
    most = -0.01 + SLOWEST * 0.01 + 1.6449 * math.hypot((1.0 + SLOWEST) * 0.01, SLOWEST * 0.02)
    assert found.low == pytest.approx(0.5 - most)
    assert found.high == 1.0
    assert found.estimate == pytest.approx(0.71)
    assert found.flags == ()


def test_estimates_given_numbers_are_withheld() -> None:
    much = replace(WITHOUT, lower=0.9, estimate=1.2, low=0.9, high=1.4, bound=1.0)
    upwards = difference_of(replace(WITH_Y, lower=1.5, estimate=1.9, low=1.5, high=2.2, bound=1.7), much, 0.4)
    assert upwards.flags == ("biased upwards", "nothing found")
    assert math.isnan(upwards.estimate)
    assert upwards.low == pytest.approx(0.1)
    assert "what critics miss of it" in repr(upwards)
    assert "at most about 1.300 nats" in upwards.sentence()
    assert difference_of(WITH_Y, WITHOUT, 0.06).flags == ("nothing found",)
    growing = replace(WITH_Y, estimate=math.nan, low=math.nan, high=math.nan, flags=("still growing",))
    found = difference_of(growing, WITHOUT, 0.001)
    assert found.flags == ("still growing",)
    assert math.isnan(found.estimate)
    assert found.low == pytest.approx(0.2)
    assert "range     from 0.200 on" in repr(found)
    assert "is not estimated (" in found.sentence()
    gone = replace(growing, lower=math.nan, flags=("near copies",))
    found = difference_of(gone, WITHOUT, 0.001)
    assert math.isnan(found.p)
    assert found.low == 0.0
    assert "nan" not in repr(found).replace("near", "")


def test_estimates_given_numbers_hold_the_truth() -> None:
    found = estimate(A, Y, given=RNG.normal(size=300), steps=400)
    assert found.p < 0.01
    assert 0.0 < found.low < NATS < found.high
    z = np.random.default_rng(1).uniform(0.0, 6.0, size=300)
    x, y = (np.sin(4.0 * z) + 0.05 * noise for noise in (A, B))
    assert independence_test(x, y, rng=0, permutations=99).p < 0.02
    assert independence_test(x, y, given=z, rng=0, permutations=99).p > 0.02


def test_few_groups_have_no_test_given_numbers() -> None:
    found = estimate(A, Y, given=B.astype(float), groups=np.arange(300) % 15, steps=25)
    assert math.isnan(found.p)
    assert "was not tested" in found.sentence()
    assert "Shah" not in found.report()
    with pytest.raises(ValueError, match="given: expected 300 rows, as in y, got 299"):
        independence_test(A, Y, given=A[:299])


def test_independence_given_numbers() -> None:
    rng = np.random.default_rng(3)
    z = rng.normal(size=(300, 2))
    both = np.sin(2.0 * z[:, 0]) + z[:, 1]
    x, y = (both + 0.3 * noise for noise in rng.normal(size=(2, 300)))
    assert independence_test(x, y, rng=0).p < 0.01
    found = independence_test(x, y, given=z, rng=0)
    assert found.p > 0.01
    assert "given 2 columns of numbers: p = " in found.sentence()
    assert "random multiples" in found.sentence()
    left = x - both
    for other in (left, 3.0 * left**2, left * np.sign(z[:, 0])):
        assert independence_test(x, y + other, given=z, rng=0).p < 0.02
    label = np.repeat(np.arange(60), 5)
    assert independence_test(x, y + left, given=z, groups=label, rng=0).p < 0.02


def test_what_numbers_explain_is_no_series() -> None:
    z = np.cumsum(np.random.default_rng(0).normal(size=300))
    assert "serial dependence" in independence_test(z + A, z + B, rng=0).flags
    assert independence_test(z + A, z + B, given=z, rng=0).flags == ()
    series = np.random.default_rng(1).normal(size=(2, 300))
    for i in range(1, 300):
        series[:, i] += 0.9 * series[:, i - 1]
    found = independence_test(*series, given=B.astype(float), rng=0)
    assert "serial dependence" in found.flags
    assert math.isnan(found.p)


def test_transfer_entropy_has_a_test() -> None:
    rng = np.random.default_rng(0)
    cause, effect = rng.normal(size=(2, 401))
    for i in range(400):
        effect[i + 1] += 0.5 * effect[i] + 0.5 * cause[i]
    order = range(400)
    assert independence_test(cause[:-1], effect[1:], given=effect[:-1], order=order, rng=0).p < 0.01
    assert independence_test(effect[:-1], cause[1:], given=cause[:-1], order=order, rng=0).p > 0.02


def test_residuals_are_those_of_regressions_on_other_rows() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(40, 1))
    clusters = Clusters([[k] for k in range(40)])
    regression = Regression.of(z, clusters, Random(0))
    targets = rng.normal(size=(40, 2))
    features = regression.features[2]
    found = [residuals for _, residuals in regression.penalised(features, targets)]
    for part, gone in regression.parts:
        kept = np.setdiff1d(np.arange(40), gone)
        for ridge, residuals in zip(RIDGES[3:], found[3:], strict=True):
            gram = features[kept].T @ features[kept] / 40 + ridge * np.eye(features.shape[1])
            weights = np.linalg.solve(gram, features[kept].T @ targets[kept] / 40)
            np.testing.assert_allclose(residuals[part], targets[part] - features[part] @ weights, atol=1e-6)


def test_sums_over_clusters() -> None:
    values = np.arange(10.0).reshape(5, 2)
    clusters = Clusters([[0, 2], [1], [3, 4]])
    assert clusters.sums(values).tolist() == [[4.0, 6.0], [2.0, 3.0], [14.0, 16.0]]
    assert Clusters([[k] for k in range(5)]).sums(values) is values


@pytest.mark.parametrize(("size", "freedom"), [(1, 12 - 2), (2, 6 - 2), (3, 4 - 2)])
def test_the_degrees_of_freedom_are_those_of_the_clusters_of_two_folds(size: int, freedom: int) -> None:
    folds = [Fold(0.5, [0.1, -0.1] * 3, [(6 * k + i) // size for i in range(6)]) for k in range(2)]
    assert summary(folds).freedom == freedom


# ---------------------------------------------------------------------------------------------------------- differences


def test_a_difference_of_independent_samples() -> None:
    rng = np.random.default_rng(5)
    u, v = rng.normal(size=(2, 300))
    first, second = estimate(A, Y, steps=400), estimate(u, 0.6 * u + 0.8 * v, steps=400)
    found = difference(first, second, paired=False)
    assert found.low < NATS + 0.5 * math.log1p(-(0.6**2)) < found.high
    assert found.estimate == first.estimate - second.estimate
    assert found.bound == first.bound - second.bound
    assert found.error == pytest.approx(math.hypot(first.error, second.error))
    assert found.estimate - found.low == pytest.approx(
        math.hypot(first.estimate - first.low, second.high - second.estimate)
    )
    turned = difference(second, first, paired=False)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))
    assert f"[{found.low:.3f}, {found.high:.3f}] if the curves go on" in repr(found)


def test_a_paired_difference_has_the_error_of_the_pairs() -> None:
    first = estimate(A, Y, steps=400)
    itself = difference(first, first, paired=True)
    assert itself.correlation == pytest.approx(1.0)
    assert (itself.estimate, itself.bound) == (0.0, 0.0)
    assert itself.error == pytest.approx(0.0, abs=1e-6)
    second = estimate(A, Y + 0.1 * np.random.default_rng(2).normal(size=300), steps=400)
    paired, apart = (difference(first, second, paired=together) for together in (True, False))
    assert paired.correlation > 0.5
    assert paired.error < 0.8 * apart.error
    assert paired.high - paired.low < apart.high - apart.low


def test_two_seeds_do_not_share_the_training() -> None:
    def result(seed: int, bound: float) -> Any:
        settings = replace(WITH_Y.settings, seed=seed, splits=1)
        return replace(
            WITH_Y, settings=settings, bound=bound, error=0.1, lower=bound - 0.2, low=bound - 0.2, estimate=bound + 0.1,
            high=bound + 0.5, influences=tuple((k, float(k % 3) - 1.0) for k in range(300)), flags=(),
        )  # fmt: skip

    alike, apart = (difference(result(0, 0.9), result(seed, 0.7), paired=True) for seed in (0, 1))
    assert alike.correlation == apart.correlation == pytest.approx(1.0)
    assert alike.estimate - alike.low == pytest.approx(0.1)
    assert alike.error == pytest.approx(0.0, abs=1e-6)
    z = 1.6449
    trained = 2.0 * (0.5 * 0.1) ** 2
    assert apart.error == pytest.approx(math.sqrt(trained))
    width = math.sqrt(0.3**2 + 0.4**2 - 2.0 * (z * 0.1) ** 2 + z**2 * trained)
    assert apart.estimate - apart.low == pytest.approx(width)
    assert apart.high - apart.estimate == pytest.approx(width)
    # Independent samples share nothing, whatever their seeds.
    one, other = (difference(result(0, 0.9), result(seed, 0.7), paired=False) for seed in (0, 1))
    assert (one.low, one.error) == (other.low, other.error)


def test_groups_are_paired_by_their_labels() -> None:
    subject = np.repeat(np.arange(60), 5)
    order = np.random.default_rng(0).permutation(300)
    options = {"critic": "separable", "steps": 25}
    first = estimate(A, Y, groups=subject, **options)
    second = estimate(A[order], Y[order], groups=subject[order], **options)
    assert difference(first, second, paired=True).correlation > 0.5
    others = estimate(A, Y, groups=subject + 1, **options)
    with pytest.raises(ValueError, match=r"paired: expected results of the same rows, .* got 60 and 60, of which 59"):
        difference(first, others, paired=True)


def test_influences_are_means_over_splits() -> None:
    folds = [Fold(0.0, [1.0, 3.0], [0, 1]), Fold(0.0, [-2.0, -2.0], [2, 2])]
    others = [Fold(0.0, [2.0, 0.0], [2, 1]), Fold(0.0, [-4.0, 2.0], [0, 2])]
    assert influences([folds, others], 3) == [-3 / 8, 3 / 8, 0.0]
    found = estimate(A, Y, steps=25, splits=2)
    assert math.fsum(value for _, value in found.influences) == pytest.approx(0.0, abs=1e-5)
    assert [label for label, _ in found.influences] == list(range(300))


def test_a_difference_is_withheld_as_its_results_are() -> None:
    first, nothing = estimate(A, Y, steps=400), estimate(A, B)
    found = difference(first, nothing, paired=True)
    assert math.isnan(found.low)
    assert "nothing found" in found.flags
    assert found.bound > 0.2
    assert "estimate" not in repr(found)
    few = estimate(A, Y, groups=np.arange(300) % 6, steps=25)
    assert math.isnan(difference(first, few, paired=False).error)


def test_differences_that_are_refused() -> None:
    first, given = estimate(A, Y, steps=5), estimate(A, Y, given=LABEL, steps=5)
    numbers: Any = estimate(A, Y, given=B, steps=5)
    with pytest.raises(
        TypeError, match="second: expected a result of mutual_information with a limit, got Conditional"
    ):
        difference(first, numbers, paired=False)
    with pytest.raises(ValueError, match="second: expected both results with given= or both without"):
        difference(first, given, paired=True)
    wrong: Any = "yes"
    with pytest.raises(TypeError, match="paired: expected"):
        difference(first, first, paired=wrong)
