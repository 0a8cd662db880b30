"""Bounds on mutual information by rows, their standard errors, and rows that do not count."""

from __future__ import annotations

import inspect
import math
import sys
from typing import Any

import jax
import numpy as np
import pytest

import portable_nce as pnce
from portable_nce import bounds
from portable_nce._execution.matrix import ScoreMatrix

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "dual": (np.linspace(-1.0, 1.0, 5),),
    "flo": (np.linspace(-1.0, 1.0, 5),),
    "tuba": (0.3,),
    "interpolated": (0.4, 0.3),
    "vub": (np.linspace(-2.0, -1.0, 5),),
}
SCORES = np.random.default_rng(0).normal(size=(5, 5))
OF_PAIRS = [  # functions from a matrix to one number
    name
    for name in bounds.__all__
    if "mask" in inspect.signature(getattr(bounds, name)).parameters
    and name not in {"dual_critic", "log_n_ceiling", "mine"}
]
BY_ROWS = [name for name in bounds.__all__ if "reduction" in inspect.signature(getattr(bounds, name)).parameters]


def test_the_bounds_that_are_means_have_terms() -> None:
    assert set(bounds.__all__) - set(BY_ROWS) == {
        "barber_agakov", "dual_critic", "dv", "log_n_ceiling", "mine", "smile", "standard_error",
    }  # fmt: skip


TAKES_MASK = [name for name in BY_ROWS if "mask" in inspect.signature(getattr(bounds, name)).parameters]


@pytest.mark.parametrize("name", [*BY_ROWS, *(f"{name}, masked" for name in TAKES_MASK)])
def test_a_bound_is_the_mean_of_its_terms(name: str) -> None:
    options: dict[str, Any] = {}
    name, _, masked = name.partition(", ")
    if masked:
        options["mask"] = ~np.eye(5, k=1, dtype=bool)
        options["mask"][3, 3] = False  # a row that does not count

    def reduced(scores: Any, reduction: Any) -> Any:
        found = getattr(bounds, name)(scores, *ARGUMENTS.get(name, ()), reduction=reduction, **options)
        return found if found.shape == () else np.sum(found)

    number = 4 if options else 5
    assert getattr(bounds, name)(SCORES, *ARGUMENTS.get(name, ()), reduction="none", **options).shape == (5,)
    (mean, slopes), (total, of_total), (terms, of_terms) = (
        pnce.value_and_grad(reduced)(SCORES, reduction) for reduction in ("mean", "sum", "none")
    )
    np.testing.assert_allclose([total, terms], number * mean, rtol=1e-12)
    np.testing.assert_allclose(of_total, number * slopes, rtol=1e-12)
    np.testing.assert_allclose(of_terms, number * slopes, rtol=1e-12)


OF_STATISTICS: dict[str, Any] = {
    "info_nce": bounds.info_nce,
    "leave_one_out": bounds.leave_one_out,
    "fdv": bounds.fdv,
    "dual_critic": bounds.dual_critic,
    "headroom": pnce.diagnostics.headroom,
}


@pytest.mark.parametrize("name", OF_STATISTICS)
def test_a_bound_of_row_statistics_reads_no_masks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Any) -> Any:
        raise AssertionError("masks of pairs that nobody needs")

    monkeypatch.setattr(ScoreMatrix, "sets", refused)
    told = pnce.explain(OF_STATISTICS[name], SCORES)
    passes = {"fdv": [1, 1]}.get(name, [1])  # fdv: of its gradient, and of its value
    assert [sweep.passes for sweep in told.sweeps] == passes
    assert {sweep.name for sweep in told.sweeps} == {"one-sided sweep of scores"}
    info_nce, flat_nce = "info_nce, every row", "flat_nce, every row"
    named = {"info_nce": {info_nce}, "headroom": {info_nce}, "fdv": {info_nce, flat_nce}}
    assert {*told.objectives} == named.get(name, {flat_nce})


def calls(function: Any, *arrays: Any) -> int:
    """Number of calls of Python functions."""
    found: list[str] = []

    def watching(_: Any, event: str, __: Any) -> None:
        found.append(event)

    for _ in range(4):
        function(*arrays)
    before = sys.getprofile()
    sys.setprofile(watching)
    try:
        function(*arrays)
    finally:
        sys.setprofile(before)
    return found.count("call")


def test_a_bound_takes_little_more_than_the_loss_that_it_is_up_to_a_constant() -> None:
    scores = np.random.default_rng(0).normal(size=(128, 128))
    loss = calls(pnce.value_and_grad(pnce.from_scores.info_nce), scores)
    assert calls(pnce.value_and_grad(bounds.info_nce), scores) < loss + 80  # it was four times the number


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'mean'"):
        bounds.nwj(SCORES, reduction="meen")  # type: ignore[arg-type]


def jackknife(name: str, scores: Any, sizes: list[int]) -> float:
    """Standard error by definition, from matrices without the rows and columns of neighbouring pairs."""

    def value(kept: Any) -> float:
        given = [x[kept] if np.ndim(x) else x for x in ARGUMENTS.get(name, ())]
        return float(getattr(bounds, name)(scores[np.ix_(kept, kept)], *given))

    influence: list[float] = []
    everything, whole = np.arange(len(scores)), value(np.arange(len(scores)))
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        kept = np.delete(everything, np.s_[end - size : end])
        influence.append(len(kept) * (whole - value(kept)))
    return float(np.sqrt(len(sizes) ** 2 / (len(sizes) - 1) * np.var(influence)) / len(scores))


@pytest.mark.parametrize("name", OF_PAIRS)
def test_the_standard_error_is_that_of_matrices_without_the_pairs(name: str) -> None:
    def bound(scores: Any, **mask: Any) -> Any:
        return getattr(bounds, name)(scores, *ARGUMENTS.get(name, ()), **mask)

    assert float(bounds.standard_error(bound, SCORES)) == pytest.approx(jackknife(name, SCORES, [1] * 5), rel=1e-9)
    of_two = float(bounds.standard_error(bound, SCORES, groups=2))
    assert of_two == pytest.approx(jackknife(name, SCORES, [2, 3]), rel=1e-9)


def test_standard_error_is_the_jackknife_of_the_textbook() -> None:
    left_out = [float(bounds.nwj(np.delete(np.delete(SCORES, k, 0), k, 1))) for k in range(5)]
    wanted = np.sqrt(4 * np.var(left_out))
    assert float(bounds.standard_error(bounds.nwj, SCORES)) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    "name", ["info_nce", "js", pytest.param("club", marks=pytest.mark.full), pytest.param("dv", marks=pytest.mark.full)]
)
def test_the_standard_error_is_the_deviation_of_repeated_draws(name: str) -> None:
    rng, bound, rho = np.random.default_rng(3), getattr(bounds, name), 0.8
    found = []
    for _ in range(300):
        x, noise = rng.normal(size=(2, 64))
        y = rho * x + np.sqrt(1.0 - rho**2) * noise
        scores = -0.25 * (y[None, :] - rho * x[:, None]) ** 2 / (1.0 - rho**2)  # half of log p(y | x)
        naive = np.std(bound(scores, reduction="none"), ddof=1) / 8.0 if name in BY_ROWS else np.nan
        found.append((float(bound(scores)), float(bounds.standard_error(bound, scores, groups=16)), naive))
    values, errors, by_rows = np.asarray(found).T
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.12)  # of 300 draws, known to 4 %
    if name in {"info_nce", "club"}:
        assert np.mean(by_rows) < 0.85 * np.std(values)


def test_the_standard_error_of_neighbours_that_depend_on_each_other() -> None:
    """Each pair occurs four times: the error is that of a quarter of the pairs, which deleting single pairs misses."""
    few = np.random.default_rng(0).normal(size=(40, 40))
    scores = np.repeat(np.repeat(few, 4, axis=0), 4, axis=1)
    wanted = float(bounds.standard_error(bounds.js, few, groups=40))
    assert float(bounds.standard_error(bounds.js, scores, groups=40)) == pytest.approx(wanted, rel=0.1)
    assert float(bounds.standard_error(bounds.js, scores, groups=160)) < 0.6 * wanted


def test_the_standard_error_where_a_bound_is_infinite() -> None:
    scores = SCORES.copy()
    scores[2, 2] = -np.inf
    assert float(bounds.standard_error(bounds.nwj, scores)) == np.inf
    assert np.isnan(float(bounds.standard_error(bounds.nwj, np.where(scores > 0.0, scores, np.nan))))


def test_the_standard_error_of_constant_scores_has_a_gradient() -> None:
    value, slopes = pnce.value_and_grad(lambda scores: bounds.standard_error(bounds.nwj, scores))(np.zeros((5, 5)))
    assert float(value) == 0.0
    assert not slopes.any()


@pytest.mark.parametrize(
    ("bound", "scores", "words"),
    [
        (bounds.nwj, np.zeros((3, 3)), r"scores: expected a square matrix of at least 4 pairs, got shape \(3, 3\)"),
        (bounds.nwj, np.zeros((4, 5)), r"scores: expected a square matrix of at least 4 pairs, got shape \(4, 5\)"),
        (bounds.mine, SCORES, "bound: expected a function of scores and mask to one number, got tuple"),
        (bounds.dual_critic, SCORES, r"bound: expected a function .* got shape \(5,\)"),
    ],
)
def test_standard_error_refuses_bounds_without_one(bound: Any, scores: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bounds.standard_error(bound, scores)


def test_a_positive_out_of_range_is_none_where_nobody_looks() -> None:
    """Under tracing it is not an error: its row does not count."""
    bounds = [getattr(pnce.bounds, name) for name in ("info_nce", "fdv", "dv", "nwj", "js", "club")]
    scores = np.random.default_rng(7).normal(size=(3, 4)).astype(np.float32)
    found = jax.jit(lambda g, p: [bound(g, positives=p) for bound in bounds])(scores, np.asarray([1, 4, 0]))
    wanted = [bound(scores[[0, 2]].astype(np.float64), positives=np.asarray([1, 0])) for bound in bounds]
    np.testing.assert_allclose(found, wanted, rtol=2e-6)


def test_a_negative_at_infinity_is_no_information() -> None:
    scores = np.asarray([[1.0, math.inf, 0.0], [0.0, 1.0, 2.0], [0.5, 0.0, 1.0]])
    value, gradient = pnce.value_and_grad(pnce.bounds.dv)(scores)
    assert value == -math.inf
    assert not np.isnan(gradient).any()


def test_no_critic_of_a_row_that_does_not_count() -> None:
    """Row 2 has no negative, row 0 no positive; in the others it is the log-odds minus log 3."""
    scores, mask = np.arange(12.0).reshape(3, 4) / 4, np.ones((3, 4), dtype=bool)
    mask[0, 0], mask[2] = False, [False, False, True, False]
    wanted = np.log(np.exp(scores[1, [0, 2, 3]] - scores[1, 1]).sum()) - math.log(3.0)
    np.testing.assert_allclose(pnce.bounds.dual_critic(scores, mask=mask), [0.0, wanted, 0.0], rtol=1e-14)
