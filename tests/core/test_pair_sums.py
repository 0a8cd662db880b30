"""Sums over the pairs of rows: values, gradients and second derivatives of matrices with and without masks."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce._core.left_out import left_out
from portable_nce._core.pair_sums import (
    EXP,
    SCORE,
    SIGMOID,
    SOFTPLUS,
    SOFTPLUS_SLOPE,
    PairSets,
    PairTerm,
    exp_sum,
    pair_sums,
)

RNG = np.random.default_rng(5)
SCORES = RNG.normal(size=(4, 6))
OFF = RNG.random((4, 6)) < 0.7
OWN = np.zeros((4, 6), dtype=bool)
OWN[[0, 1, 3], [2, 0, 5]] = True
OFF &= ~OWN
SHIFT = np.asarray([0.3, -0.2, 1.0, 0.0])
OF_TERMS: dict[str, tuple[PairTerm, Any]] = {
    "exp": (EXP, np.exp),
    "softplus": (SOFTPLUS, lambda t: np.logaddexp(0.0, t)),
    "sigmoid": (SIGMOID, lambda t: 1.0 / (1.0 + np.exp(-t))),
    "score": (SCORE, lambda t: t),
}
KINDS: dict[str, tuple[PairSets, Any, Any]] = {
    "diagonal": (PairSets(diagonal=True), ~np.eye(4, 6, dtype=bool), np.eye(4, 6, dtype=bool)),
    "masked": (PairSets(off=OFF, own=OWN), OFF, OWN),
    "masked, without positives": (PairSets(off=OFF), OFF, None),
    "all": (PairSets(), np.ones((4, 6), dtype=bool), None),
}


def in_library(library: str, pairs: PairSets) -> tuple[Any, PairSets]:
    """A function from NumPy arrays to those of a library, and the pairs with its masks."""
    if library == "numpy":
        return np.asarray, pairs
    off, own = (None if mask is None else torch.asarray(mask) for mask in (pairs.off, pairs.own))
    return torch.asarray, pairs._replace(off=off, own=own)


def slopes(function: Any, x: Any, step: float = 1e-6) -> Any:
    """Central differences of a function of an array to a number."""
    result = np.zeros_like(x)
    for k in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[k] += step
        down[k] -= step
        result[k] = (function(up) - function(down)) / (2.0 * step)
    return result


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OF_TERMS)
def test_sums_of_terms(name: str, kind: str, library: str) -> None:
    (term, exact), (pairs, off, own) = OF_TERMS[name], KINDS[kind]
    made, ours = in_library(library, pairs)
    weights, of_positive = np.arange(1.0, 5.0), np.asarray([2.0, -1.0, 0.5, 3.0]) * (own is not None)

    def wanted(scores: Any) -> Any:
        found = np.sum(np.where(off, exact(scores), 0.0), axis=1) @ weights
        return found + (0.0 if own is None else np.sum(np.where(own, scores, 0.0), axis=1) @ of_positive)

    def found(scores: Any) -> Any:
        positive, sums = pair_sums(term, scores, ours)
        return (sums * made(weights)).sum() + (positive * made(of_positive)).sum()

    value, gradient = pnce.value_and_grad(found)(made(SCORES))
    assert float(value) == pytest.approx(wanted(SCORES), rel=1e-12)
    np.testing.assert_allclose(np.asarray(gradient), slopes(wanted, SCORES), atol=1e-8)
    direction = made(RNG.normal(size=SCORES.shape))
    second = pnce.grad(lambda x: (pnce.grad(found)(x) * direction).sum())(made(SCORES))

    def along(step: float) -> Any:
        return np.asarray(pnce.grad(found)(made(SCORES) + step * direction))

    np.testing.assert_allclose(np.asarray(second), (along(1e-5) - along(-1e-5)) / 2e-5, atol=1e-7)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ["diagonal", "masked"])
def test_shifts_relative_to_the_positive_have_gradients(kind: str, library: str) -> None:
    pairs, off, own = KINDS[kind]
    made, ours = in_library(library, pairs)

    def wanted(scores: Any, shift: Any) -> Any:
        positive = np.sum(np.where(own, scores, 0.0), axis=1)
        return np.sum(np.where(off, np.exp(scores - (positive + shift)[:, None]), 0.0))

    value, (of_scores, of_shift) = pnce.value_and_grad(
        lambda scores, shift: pair_sums(EXP, scores, ours, shift=shift, relative=True)[1].sum(), argnums=(0, 1)
    )(made(SCORES), made(SHIFT))
    assert float(value) == pytest.approx(wanted(SCORES, SHIFT), rel=1e-13)
    np.testing.assert_allclose(np.asarray(of_scores), slopes(lambda x: wanted(x, SHIFT), SCORES), atol=1e-8)
    np.testing.assert_allclose(np.asarray(of_shift), slopes(lambda x: wanted(SCORES, x), SHIFT), atol=1e-8)


def test_a_value_that_nobody_reads_is_infinite_where_the_softplus_is() -> None:
    scores = np.asarray([[0.0, 700.0, -3.0], [1.0, 2.0, math.inf]])
    found, slope = pnce.value_and_grad(lambda x: pair_sums(SOFTPLUS_SLOPE, x, PairSets())[1][0])(scores)
    assert found == 0.0
    np.testing.assert_allclose(slope[0], 1.0 / (1.0 + np.exp(-scores[0])), rtol=1e-14)
    assert pair_sums(SOFTPLUS_SLOPE, scores, PairSets())[1][1] == math.inf


@pytest.mark.parametrize("term", [EXP, SOFTPLUS])
def test_arrays_are_not_overwritten(term: PairTerm) -> None:
    scores = SCORES.copy()
    for pairs in (PairSets(), PairSets(diagonal=True)):
        pnce.grad(lambda x, of=pairs: pair_sums(term, x, of)[1].sum() + exp_sum(x, of)[1].total.sum())(scores)
    np.testing.assert_array_equal(scores, SCORES)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_is_kept_serves_several_backward_passes(library: str) -> None:
    if library == "numpy":
        first, second = (pnce.grad(pnce.bounds.dv)(SCORES) for _ in range(2))
        np.testing.assert_array_equal(first, second)
        return
    scores = torch.asarray(SCORES).requires_grad_()
    value = pnce.bounds.dv(scores)
    grads = [torch.autograd.grad(value, scores, retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(*grads)
    recorded = torch.autograd.grad(value, scores, create_graph=True)[0]
    assert torch.equal(recorded, grads[0])


DOMINATED = np.asarray([0.0, -1.0, 0.5, 500.0])
OF_ROWS = {
    "ordinary": np.asarray([0.3, -1.0, 0.5, 0.2]),
    "one far ahead": DOMINATED,
    "one farther ahead than exponentials reach": np.asarray([0.0, -1.0, 0.5, 900.0]),
    "two equal ones far ahead": np.asarray([0.0, 500.0, 0.5, 500.0]),
    "all equal": np.full(4, -300.0),
    "all but one left out": np.asarray([-math.inf, -math.inf, 2.0, -math.inf]),
    "far behind": np.full(4, -700.0) + np.arange(4.0),
}


def left_out_exactly(row: Any, positive: float, weight: float) -> tuple[Any, Any, Any, Any]:
    """Mean log-odds by sums without an entry; slopes by the scores, the positive and the weight, in long double."""
    g, p, w, n = row.astype(np.longdouble), np.longdouble(positive), np.longdouble(weight), len(row)
    others = np.asarray([np.logaddexp.reduce([*np.delete(g, k), w]) for k in range(n)])
    odds = others - p
    slopes = 1.0 / (1.0 + np.exp(-odds))
    within = np.exp(g[None, :] - others[:, None]) * slopes[:, None]
    within[np.diag_indices(n)] = 0.0
    return np.logaddexp(0.0, odds).mean(), within.mean(axis=0), -slopes.mean(), (slopes * np.exp(w - others)).mean()


@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("positive", [0.25, 30.0, -400.0])
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_means_of_left_out_sums(library: str, positive: float, name: str) -> None:
    row, weight = OF_ROWS[name], -0.4
    made: Any = {"numpy": np.asarray, "torch": torch.asarray, "jax": jax.numpy.asarray}[library]
    scores, number = made(row[None, :]), made(np.asarray([4.0]))
    rows = [made(np.asarray([number])) for number in (positive, weight)]
    value, found = pnce.value_and_grad(
        lambda x, p, w: left_out(x, PairSets(), w, number, p).mean.sum(), argnums=(0, 1, 2)
    )(scores, *rows)
    wanted, *slopes = left_out_exactly(row, positive, weight)
    eps = float(np.finfo(np.asarray(value).dtype).eps)
    assert float(value) == pytest.approx(float(wanted), rel=64 * eps, abs=1e-100)
    for slope, exact in zip(found, slopes, strict=True):
        np.testing.assert_allclose(np.asarray(slope)[0], exact.astype(float), rtol=1e3 * eps, atol=1e-100)


@pytest.mark.parametrize("positive", [0.25, 30.0, -math.inf])
def test_one_negative_is_left_out_of_its_only_sum(positive: float) -> None:
    of_row = np.asarray([[700.0], [-3.0]]), np.full(2, positive), np.full(2, -0.4)
    value, found = pnce.value_and_grad(
        lambda x, p, w: left_out(x, PairSets(), w, np.ones(2), p).mean[1], argnums=(0, 1, 2)
    )(*of_row)
    assert value == pytest.approx(math.inf if positive == -math.inf else math.log1p(math.exp(-0.4 - positive)))
    by_score, by_positive, by_weight = found
    assert not by_score.any()
    assert by_positive[1] == -by_weight[1] == pytest.approx(-1.0 / (1.0 + math.exp(0.4 + positive)), rel=1e-13)
