"""Well-trained rows: the positive leads by up to 80 nats, and neither value nor gradient loses a digit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp, mpf

from ..._core.namespace import library_namespace
from .. import oracles
from .._package import pnce
from ..variants import EPS, EXACT_DIGITS, SMALLEST_NORMAL, differentiate, generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..variants import Variant

MARGINS = [0.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0]
GRID = [(rows, margin) for rows in (2, 8) for margin in MARGINS] + [(64, margin) for margin in (0.0, 40.0, 80.0)]
FULL = ["float64", "float32"]
HALF = ["bfloat16", "float16"]

INFO_NCE_TOLERANCE = {"float64": 2e-14, "float32": 1e-5, "bfloat16": 8e-3, "float16": 2e-3}
FLAT_NCE_TOLERANCE = {"float64": 2e-14, "float32": 2e-6, "bfloat16": 8e-3, "float16": 2e-3}


def tolerance_of(variant: Variant, table: dict[str, float], dtype: str) -> float:
    """Look the tolerance up; fifty digits deserve their own."""
    return 10.0 ** (4 - EXACT_DIGITS) if variant.module == "mparray" else table[dtype]


def make_scores(variant: Variant, rows: int, margin: float, dtype: str) -> tuple[Any, list[list[float]]]:
    """Scores around 0, the diagonal ahead by the margin: as an array, and as the numbers that the array holds."""
    draw = generator(rows)
    nested = [[draw.uniform(-1.0, 1.0) + margin * (i == j) for j in range(rows)] for i in range(rows)]
    scores = variant.floats(nested, dtype)
    return scores, variant.to_list(scores)


def check(
    variant: Variant,
    dtype: str,
    loss: Callable[[Any], Any],
    scores: Any,
    *,
    value: Any,
    gradient: list[list[Any]],
    tolerance: float,
) -> None:
    """Compare value and every representable entry of the gradient."""
    got, (slope,) = differentiate(loss, [scores])
    smallest = SMALLEST_NORMAL[dtype]
    errors = {
        "value": oracles.entrywise_error(variant.to_list(got), value, smallest),
        "gradient": oracles.entrywise_error(variant.to_list(slope), gradient, smallest),
    }
    assert max(errors.values()) <= tolerance, errors


@pytest.mark.parametrize("dtype", FULL + HALF)
@pytest.mark.parametrize(("rows", "margin"), GRID)
def test_info_nce(variant: Variant, rows: int, margin: float, dtype: str) -> None:
    """Value sp(u), gradient sigma(u) (W - 1_pos) / N."""
    scores, nested = make_scores(variant, rows, margin, dtype)
    value = oracles.diagonal_info_nce(nested)
    gradient = oracles.info_nce_score_gradient(nested)
    tolerance = tolerance_of(variant, INFO_NCE_TOLERANCE, dtype)
    check(variant, dtype, pnce.from_scores.info_nce, scores, value=value, gradient=gradient, tolerance=tolerance)


@pytest.mark.parametrize("dtype", FULL + HALF)
@pytest.mark.parametrize(("rows", "margin"), GRID)
def test_info_nce_bound(variant: Variant, rows: int, margin: float, dtype: str) -> None:
    """Value log K - InfoNCE, gradient minus InfoNCE's."""
    scores, nested = make_scores(variant, rows, margin, dtype)
    value = mp.log(rows) - oracles.diagonal_info_nce(nested)
    gradient = [[-entry for entry in row] for row in oracles.info_nce_score_gradient(nested)]
    tolerance = tolerance_of(variant, INFO_NCE_TOLERANCE, dtype)
    check(variant, dtype, pnce.bounds.info_nce, scores, value=value, gradient=gradient, tolerance=tolerance)


@pytest.mark.parametrize("dtype", FULL + HALF)
@pytest.mark.parametrize(("rows", "margin"), GRID)
@pytest.mark.parametrize("loss", ["flat_nce", "dcl"])
def test_flat_nce(variant: Variant, rows: int, margin: float, dtype: str, loss: str) -> None:
    """Value u, gradient (W - 1_pos) / N."""
    scores, nested = make_scores(variant, rows, margin, dtype)
    value = oracles.diagonal_flat_nce(nested)
    gradient = oracles.flat_nce_score_gradient(nested)
    tolerance = tolerance_of(variant, FLAT_NCE_TOLERANCE, dtype)
    check(variant, dtype, getattr(pnce.from_scores, loss), scores, value=value, gradient=gradient, tolerance=tolerance)


@pytest.mark.parametrize("dtype", FULL + HALF)
@pytest.mark.parametrize(("rows", "margin"), GRID)
@pytest.mark.parametrize("include_positive", [False, True])
def test_flat_nce_detach(variant: Variant, rows: int, margin: float, dtype: str, *, include_positive: bool) -> None:
    """Value 1; the gradient of the log form, or with the positive included InfoNCE's."""
    scores, nested = make_scores(variant, rows, margin, dtype)
    gradient = (oracles.info_nce_score_gradient if include_positive else oracles.flat_nce_score_gradient)(nested)
    tolerance = tolerance_of(variant, INFO_NCE_TOLERANCE if include_positive else FLAT_NCE_TOLERANCE, dtype)

    def loss(s: Any) -> Any:
        return pnce.from_scores.flat_nce(s, form="detach", include_positive=include_positive)

    check(variant, dtype, loss, scores, value=mpf(1), gradient=gradient, tolerance=tolerance)


@pytest.mark.parametrize("dtype", FULL)
@pytest.mark.parametrize(("rows", "margin"), GRID)
def test_dual_bound(variant: Variant, rows: int, margin: float, dtype: str) -> None:
    """At its best critic the dual bound has FlatNCE's gradient, to the rounding of the critic itself."""
    scores, nested = make_scores(variant, rows, margin, dtype)
    critic = pnce.bounds.dual_critic(scores)
    gradient = oracles.dual_score_gradient(nested, variant.to_list(critic))
    value = oracles.evaluate("bounds.dual", {"scores": nested, "u": variant.to_list(critic)}, {})
    tolerance = tolerance_of(variant, INFO_NCE_TOLERANCE, dtype)
    check(
        variant,
        dtype,
        lambda s: pnce.bounds.dual(s, critic),
        scores,
        value=value,
        gradient=gradient,
        tolerance=tolerance,
    )


@pytest.mark.parametrize("dtype", ["float32"])
@pytest.mark.parametrize("margin", [40.0, 60.0, 80.0])
def test_cross_entropy_would_fail(variant: Variant, margin: float, dtype: str) -> None:
    """The textbook gradient, softmax minus one-hot, has lost every digit: these tests can fail."""
    scores, nested = make_scores(variant, 8, margin, dtype)
    xp = library_namespace(scores)
    exponentials = xp.exp(scores - xp.max(scores, axis=1, keepdims=True))
    probabilities = exponentials / xp.sum(exponentials, axis=1, keepdims=True)
    textbook = (probabilities - variant.floats([[float(i == j) for j in range(8)] for i in range(8)], dtype)) / 8
    gradient = oracles.info_nce_score_gradient(nested)
    diagonal = [row[i] for i, row in enumerate(variant.to_list(textbook))]
    wanted = [row[i] for i, row in enumerate(gradient)]
    assert oracles.entrywise_error(diagonal, wanted, SMALLEST_NORMAL[dtype]) == pytest.approx(1.0, abs=1e-3)
    assert EPS[dtype] < INFO_NCE_TOLERANCE[dtype]
