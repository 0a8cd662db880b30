"""Scores of -inf, rows without negatives and degenerate clusters, as documented."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce import density

INF = math.inf

SCORES = np.asarray([[0.5, -1.0, 0.25, 2.0], [1.5, 0.75, -0.5, 0.0], [-0.25, 1.0, 1.25, 0.5]])

POSITIVE = {(1, 1)}
NEGATIVES = {(0, 1), (1, 3)}
ALL_NEGATIVES_OF_A_ROW = {(1, 0), (1, 2), (1, 3)}
A_ROW = ALL_NEGATIVES_OF_A_ROW | POSITIVE
ALL_NEGATIVES = {(i, j) for i in range(3) for j in range(4) if i != j}
POSITIVE_AND_ALL_NEGATIVES = ALL_NEGATIVES | POSITIVE
POSITIVE_AND_NEGATIVE = {(1, 1), (1, 0)}

BOUNDS: dict[str, Callable[[Any], Any]] = {
    "info_nce": pnce.bounds.info_nce,
    "info_nce_anchor": pnce.bounds.info_nce_anchor,
    "info_nce_anchor, plug-in": lambda scores: pnce.bounds.info_nce_anchor(scores, form="plug_in"),
    "dual": lambda scores: pnce.bounds.dual(scores, np.full(3, 0.5)),
    "flo": lambda scores: pnce.bounds.flo(scores, np.full(3, 0.5)),
    "fdv": pnce.bounds.fdv,
    "dv": pnce.bounds.dv,
    "mine": lambda scores: pnce.bounds.mine(scores)[0],
    "nwj": pnce.bounds.nwj,
    "tuba": lambda scores: pnce.bounds.tuba(scores, 0.5),
    "interpolated": lambda scores: pnce.bounds.interpolated(scores, 0.5, 0.5),
    "interpolated, 1": lambda scores: pnce.bounds.interpolated(scores, 1.0, 0.5),
    "js": pnce.bounds.js,
    "js_mi": pnce.bounds.js_mi,
    "smile": pnce.bounds.smile,
    "smile, no clip": lambda scores: pnce.bounds.smile(scores, None),
    "club": pnce.bounds.club,
    "leave_one_out": lambda scores: pnce.bounds.leave_one_out(scores[:, :3]),
    "barber_agakov": lambda scores: pnce.bounds.barber_agakov(scores, 1.0),
    "vub": lambda scores: pnce.bounds.vub(scores, np.zeros(3)),
}
GRADIENT_OF_ANOTHER = {"fdv", "mine", "js_mi", "smile", "smile, no clip", "info_nce_anchor, plug-in"}
ADDS_ZERO = set(BOUNDS) - {"club", "smile"}


def without(places: set[tuple[int, int]], value: float = -INF) -> Any:
    """Scores with some entries replaced."""
    scores = SCORES.copy()
    for place in places:
        scores[place] = value
    return scores


@pytest.mark.parametrize("name", sorted(ADDS_ZERO))
def test_a_negative_of_minus_infinity_adds_zero_to_a_bound_and_stays_in_its_count(name: str) -> None:
    """Like a score of -800, whose exponential is 0."""
    assert BOUNDS[name](without(NEGATIVES)) == pytest.approx(BOUNDS[name](without(NEGATIVES, -800.0)), rel=1e-12)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_positive_of_minus_infinity_makes_a_bound_minus_infinity(name: str) -> None:
    value, gradient = pnce.value_and_grad(BOUNDS[name])(without(POSITIVE))
    assert value == -INF
    assert np.all(np.isfinite(gradient)) == (name not in {"dual", "flo"})
    assert not np.any(np.isnan(gradient))
    assert np.all(gradient == 0.0) == (name in GRADIENT_OF_ANOTHER)


@pytest.mark.parametrize(
    ("name", "places", "expected"),
    [
        ("info_nce", POSITIVE_AND_ALL_NEGATIVES, math.log(4.0)),
        *((name, POSITIVE_AND_NEGATIVE, math.nan) for name in ("dual", "flo", "club")),
        *((name, ALL_NEGATIVES, INF) for name in ("dv", "mine", "smile, no clip")),
        *((name, POSITIVE_AND_ALL_NEGATIVES, math.nan) for name in ("dv", "mine", "smile, no clip")),
        ("interpolated", A_ROW, -INF),
        ("interpolated, 1", ALL_NEGATIVES_OF_A_ROW, math.nan),
        ("smile", ALL_NEGATIVES, float(np.mean(np.diag(SCORES[:, :3]))) + 5.0),
        ("club", NEGATIVES, INF),
        ("leave_one_out", {(0, 1), (2, 1)}, INF),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_bounds_of_infinite_scores_are_what_their_docstrings_say(
    name: str, places: set[tuple[int, int]], expected: float
) -> None:
    assert float(BOUNDS[name](without(places))) == pytest.approx(expected, nan_ok=True)


def test_the_critic_of_rows_with_scores_of_minus_infinity() -> None:
    assert pnce.bounds.dual_critic(without(POSITIVE))[1] == INF
    assert pnce.bounds.dual_critic(without(A_ROW))[1] == -INF
    assert float(pnce.bounds.dual_critic(without(A_ROW), include_positive=True)[1]) == pytest.approx(-math.log(4.0))


def test_the_estimate_of_the_paper_is_a_multiple_of_club() -> None:
    equation_8 = np.mean(np.diag(SCORES[:, :3])) - np.mean(SCORES)
    assert float(pnce.bounds.club(SCORES)) * 3.0 / 4.0 == pytest.approx(equation_8)


def test_flo_is_the_information_only_with_both_of_its_critics_at_the_optimum() -> None:
    """Exact, by summation over a pair and a negative of a discrete joint distribution."""
    joint = np.asarray([[0.3, 0.1], [0.05, 0.15], [0.1, 0.3]])
    x, y = joint.sum(axis=1), joint.sum(axis=0)
    pmi = np.log(joint / x[:, None] / y[None, :])

    def expected(scores: Any, critic: Any) -> float:
        total = 0.0
        for i, j, k in np.ndindex(3, 2, 2):
            total += float(joint[i, j] * y[k] * pnce.bounds.flo(scores[i : i + 1, [j, k]], critic[i, j : j + 1]))
        return total

    information = float(np.sum(joint * pmi))
    offset = np.asarray([[0.5], [-1.0], [2.0]])
    assert expected(pmi + offset, -pmi) == pytest.approx(information)
    assert expected(pmi + offset[:2, 0], -pmi) < information - 0.01
    assert expected(pmi, -pmi + 0.5) < information - 0.01


@pytest.mark.parametrize("name", [name for name in pnce.from_scores.__all__ if name not in {"cosent", "relic"}])
def test_a_score_of_minus_infinity_masks_its_pair_in_a_loss(name: str) -> None:
    function, scores = getattr(pnce.from_scores, name), without({(1, 1), (0, 2)})[:, :3]
    teacher = (np.sin(SCORES[:, :3]),) if name == "margin_mse" else ()

    def loss(scores: Any, **options: Any) -> Any:
        return function(scores, *teacher, **options)

    mask = np.isfinite(scores)
    value, gradient = pnce.value_and_grad(loss)(scores)
    masked, slopes = pnce.value_and_grad(lambda scores: loss(scores, mask=mask))(np.where(mask, scores, 0.0))
    assert value == masked
    np.testing.assert_array_equal(gradient, np.where(mask, slopes, 0.0))
    single = loss(scores, reduction="none")[1]
    assert (single == 0.0) == (name not in {"logistic", "contrastive"})  # the others have lost their only positive


def test_several_positives_without_a_negative() -> None:
    every = np.ones((3, 4), dtype=bool)
    spread = np.log(np.exp(SCORES).sum(axis=1)) - SCORES.mean(axis=1)
    for loss in (pnce.from_scores.info_nce, pnce.from_scores.supcon):
        np.testing.assert_allclose(loss(SCORES, positives=every, reduction="none"), spread)
        for convention in ("pooled", "separate"):
            assert loss(SCORES, positives=every, multi_positive=convention) == 0.0
    assert np.all(spread > math.log(4.0))
    assert float(pnce.from_scores.info_nce(np.ones((3, 4)), positives=every)) == pytest.approx(math.log(4.0))


def test_dclw_of_several_positives_takes_their_log_sum_exp() -> None:
    positives = np.asarray([[True, True, False, False], [False, True, True, False], [True, False, False, False]])
    exponentials = np.exp(SCORES)
    positive = np.log(np.where(positives, exponentials, 0.0).sum(axis=1))
    negative = np.log(np.where(positives, 0.0, exponentials).sum(axis=1))
    shares = np.exp(positive * 0.5 / 0.25)
    weights = 2.0 - 3.0 * shares / shares.sum()
    found = pnce.from_scores.dclw(SCORES, positives=positives, temperature=0.5, sigma=0.25, reduction="none")
    np.testing.assert_allclose(found, negative - weights * positive)


def test_noise_and_data_of_minus_infinity() -> None:
    data, nothing = np.asarray([[-1.0, -0.5], [-INF, -0.5]])
    noise, alone = np.asarray([[-2.0, -INF, -0.5], [0.0, 1.0, -1.0]]), np.full((2, 3), -INF)
    low = np.where(np.isinf(noise), -800.0, noise)
    each: Any = {"reduction": "none"}
    samples: dict[str, Callable[..., Any]] = {
        "local_nce": lambda data, noise: density.local_nce(data, noise, -1.5, -1.5, **each),
        "negative_sampling": lambda data, noise: density.negative_sampling(data, noise, **each),
        "ranking_nce": lambda data, noise: density.ranking_nce(data, noise, -1.5, -1.5, **each),
        "sampled_softmax": lambda data, noise: density.sampled_softmax(data, noise, -1.5, -1.5, **each),
        "nre_a": lambda data, noise: density.nre_a(data, noise, **each),
        "nre_b": lambda data, noise: density.nre_b(data, noise, **each),
        "nre_c": lambda data, noise: density.nre_c(data, noise, **each),
        "nre_c, no anchor": lambda data, noise: density.nre_c(data, noise, gamma=INF, **each),
        "noise alone": lambda x, y: density.sampled_softmax(x, y, None, -1.5, include_positive=False, **each),
    }
    for name, loss in samples.items():
        np.testing.assert_allclose(loss(data, noise), loss(data, low), err_msg=name)
        assert loss(nothing, noise)[0] == INF, name
    assert np.all(samples["ranking_nce"](nothing, alone) == 0.0)
    np.testing.assert_allclose(samples["sampled_softmax"](nothing, alone), 1.5 - math.log(4.0))
    assert np.all(samples["noise alone"](data, alone) == 0.0)
    assert np.all(samples["nre_b"](nothing, alone) == 0.0)
    for name in ("nre_a", "nre_c", "nre_c, no anchor"):
        np.testing.assert_allclose(
            samples[name](data, alone), samples[name](data, np.full((2, 3), -800.0)), err_msg=name
        )
    np.testing.assert_allclose(density.balance_penalty(data, noise), density.balance_penalty(data, low))
    np.testing.assert_allclose(density.log_partition(noise, -1.5), density.log_partition(low, -1.5))
    assert np.all(density.log_partition(alone, -1.5) == -INF)
    assert np.all(density.recover_log_prob(alone, 0.0) == -INF)
    assert density.recover_log_prob(noise, 0.0)[0, 1] == -INF
    np.testing.assert_array_equal(density.full_softmax(noise, np.asarray([1, 1]), **each) == 0.0, [True, False])
    normalized = density.self_normalization
    np.testing.assert_allclose(normalized(noise), normalized(low))
    np.testing.assert_allclose(normalized(noise, -1.5), normalized(low, -1.5))
    np.testing.assert_allclose(normalized(np.concatenate([noise, alone])), normalized(noise))


def test_concentrations_of_clusters_of_equal_members() -> None:
    rng = np.random.default_rng(0)
    assignments = np.repeat(np.arange(20), 3)
    points, prototypes = rng.normal(size=(60, 2)), rng.normal(size=(20, 2))

    def found(equal: int, **options: Any) -> Any:
        members = np.where((assignments < equal)[:, None], prototypes[assignments], points)
        return members, pnce.concentrations(members, prototypes, assignments, **options)

    for equal in (1, 2, 3, 10, 17, 18, 19, 20):
        for options in ({}, {"percentiles": (0.0, 90.0)}, {"percentiles": (0.0, 100.0)}):
            members, values = found(equal, **options)
            assert np.all(values > 0.0)
            np.testing.assert_allclose(np.mean(values), 0.1)
            np.testing.assert_array_equal(values[:equal], values.min())
            assert np.isfinite(pnce.proto_nce(members, prototypes, assignments, values))
    assert found(3)[1][3:].min() == found(3)[1].min()
    # Those of other clusters keep their ratios; clusters of equal members have the smallest of them.
    none, some = (found(equal, percentiles=(0.0, 100.0))[1] for equal in (0, 3))
    np.testing.assert_allclose(some / some[3:].min(), [1.0, 1.0, 1.0, *none[3:] / none[3:].min()])
    np.testing.assert_allclose([found(19)[1], found(20)[1]], 0.1)
    np.testing.assert_allclose(pnce.concentrations(points[:20], prototypes, np.arange(20)), 0.1)
    few = np.where(assignments == 0, 1, assignments)  # cluster 0 is empty; cluster 2 has one member
    few = np.where((assignments == 2) & (np.arange(60) > 6), 1, few)
    values = pnce.concentrations(points, prototypes, few, percentiles=(0.0, 100.0))
    assert values[0] == values[2] == values.max()
