"""Saturated rows: the positive leads by up to 80 nats, and neither value nor gradient loses digits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp, mpf

from ..._core.namespace import library_namespace
from .. import oracles
from .._package import pnce
from ..variants import EPS, EXACT_DIGITS, SMALLEST_NORMAL, differentiate, generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..variants import Nested, Variant

MARGINS = [0.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0]
GRID = [(rows, margin) for rows in (2, 8) for margin in MARGINS] + [(64, margin) for margin in (0.0, 40.0, 80.0)]

INFO_NCE_TOLERANCE = {"float64": 2e-14, "float32": 1e-5, "bfloat16": 8e-3, "float16": 2e-3}
FLAT_NCE_TOLERANCE = {"float64": 2e-14, "float32": 2e-6, "bfloat16": 8e-3, "float16": 2e-3}


def make_scores(variant: Variant, rows: int, margin: float, dtype: str) -> tuple[Any, list[list[float]]]:
    """Scores whose diagonal leads by the margin: as an array, and as the exact numbers in the array."""
    draw = generator(rows)
    nested = [[draw.uniform(-1.0, 1.0) + margin * (i == j) for j in range(rows)] for i in range(rows)]
    scores = variant.floats(nested, dtype)
    return scores, variant.to_list(scores)


Form = tuple["Callable[[Any], Any]", Any, "Nested", dict[str, float]]


def closed_forms(nested: list[list[float]], critic: Any, u: list[float]) -> dict[str, Form]:
    """Losses of scores with values, gradients and tolerances; u is the critic."""
    flat_nce = pnce.from_scores.flat_nce
    info, flat = oracles.diagonal_info_nce(nested), oracles.diagonal_flat_nce(nested)
    info_slope, flat_slope = oracles.info_nce_score_gradient(nested), oracles.flat_nce_score_gradient(nested)
    bound, bound_slope = mp.log(len(nested)) - info, [[-entry for entry in row] for row in info_slope]
    dual = oracles.evaluate("bounds.dual", {"scores": nested, "u": u}, {})
    dual_slope = oracles.dual_score_gradient(nested, u)
    with_positive = partial(flat_nce, include_positive=True)
    return {
        "info_nce: sp(u), sigma(u) (W - 1_pos) / N": (pnce.from_scores.info_nce, info, info_slope, INFO_NCE_TOLERANCE),
        "bound: log K - InfoNCE": (pnce.bounds.info_nce, bound, bound_slope, INFO_NCE_TOLERANCE),
        "flat_nce: u, (W - 1_pos) / N": (flat_nce, flat, flat_slope, FLAT_NCE_TOLERANCE),
        "dcl: the same": (pnce.from_scores.dcl, flat, flat_slope, FLAT_NCE_TOLERANCE),
        "flat_nce, detach: 1": (partial(flat_nce, form="detach"), mpf(1), flat_slope, FLAT_NCE_TOLERANCE),
        "flat_nce with the positive: InfoNCE": (with_positive, info, info_slope, INFO_NCE_TOLERANCE),
        "flat_nce with the positive, detach: 1": (
            partial(with_positive, form="detach"),
            mpf(1),
            info_slope,
            INFO_NCE_TOLERANCE,
        ),
        "dual: R (1_pos - W) / K": (lambda s: pnce.bounds.dual(s, critic), dual, dual_slope, INFO_NCE_TOLERANCE),
    }


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("rows", "margin"), GRID)
def test_value_and_gradient(variant: Variant, rows: int, margin: float, dtype: str) -> None:
    """Every representable entry of the gradient is accurate; the dual bound uses the optimal critic, rounded."""
    scores, nested = make_scores(variant, rows, margin, dtype)
    critic = pnce.bounds.dual_critic(scores)
    smallest = SMALLEST_NORMAL[dtype]
    for name, (loss, value, gradient, tolerances) in closed_forms(nested, critic, variant.to_list(critic)).items():
        got, (slope,) = differentiate(loss, [scores])
        errors = [
            oracles.entrywise_error(variant.to_list(x), wanted, smallest)
            for x, wanted in ((got, value), (slope, gradient))
        ]
        # A separate tolerance for fifty digits.
        tolerance = 10.0 ** (4 - EXACT_DIGITS) if variant.module == "mparray" else tolerances[dtype]
        assert max(errors) <= tolerance, (name, errors)


@pytest.mark.parametrize("dtype", ["float32"])
def test_cross_entropy_would_fail(variant: Variant, dtype: str) -> None:
    """The textbook gradient, softmax minus one-hot, has no correct digit: these tests can fail."""
    assert EPS[dtype] < INFO_NCE_TOLERANCE[dtype]
    one_hot = variant.floats([[float(i == j) for j in range(8)] for i in range(8)], dtype)
    for margin in (40.0, 60.0, 80.0):
        scores, nested = make_scores(variant, 8, margin, dtype)
        xp = library_namespace(scores)
        exponentials = xp.exp(scores - xp.max(scores, axis=1, keepdims=True))
        textbook = variant.to_list((exponentials / xp.sum(exponentials, axis=1, keepdims=True) - one_hot) / 8)
        gradient = oracles.info_nce_score_gradient(nested)
        found, wanted = ([row[i] for i, row in enumerate(matrix)] for matrix in (textbook, gradient))
        error = oracles.entrywise_error(found, wanted, SMALLEST_NORMAL[dtype])
        assert error == pytest.approx(1.0, abs=1e-3), margin


def test_closed_forms() -> None:
    """Closed forms agree with the oracles: log-odds with quotients of sums, gradients with differences."""
    draw = generator(7)
    nested, u = [[draw.gauss(0.0, 1.5) for _ in range(3)] for _ in range(3)], [0.5, -1.0, 0.25]
    forms: dict[str, tuple[dict[str, Nested], Any, Nested]] = {
        "from_scores.info_nce": ({}, oracles.diagonal_info_nce(nested), oracles.info_nce_score_gradient(nested)),
        "from_scores.flat_nce": ({}, oracles.diagonal_flat_nce(nested), oracles.flat_nce_score_gradient(nested)),
        "bounds.dual": ({"u": u}, None, oracles.dual_score_gradient(nested, u)),
    }
    for loss, (further, closed, slope) in forms.items():
        value, gradients = oracles.value_and_gradients(loss, {"scores": nested, **further}, {})
        assert closed is None or oracles.error(closed, value) <= 1e-60, loss
        assert oracles.error(slope, gradients["scores"]) <= 1e-48, loss


@pytest.mark.parametrize("dtype", ["float64"])
def test_dual_critics_give_the_losses(variant: Variant, dtype: str) -> None:
    """D(g, u) at the critic without the positive is minus FlatNCE + log(K - 1), with it the InfoNCE bound."""
    scores, nested = make_scores(variant, 8, 0.0, dtype)
    flat = pnce.bounds.dual(scores, pnce.bounds.dual_critic(scores))
    wanted = mp.log(7) - oracles.diagonal_flat_nce(nested)
    assert oracles.error(variant.to_list(flat), wanted) <= 10 * variant.eps(dtype)
    critic = variant.to_list(pnce.bounds.dual_critic(scores, include_positive=True))
    bound = variant.to_list(pnce.bounds.info_nce(scores))
    assert oracles.error(-sum(critic) / 8, bound) <= 10 * variant.eps(dtype)
