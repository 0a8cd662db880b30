"""The gradient column of the tables of formulas, against autodiff and against finite differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp

from .. import oracles
from .._package import pnce
from ..variants import differentiate, generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..variants import Nested, Variant

ROWS = 3


def draw(*shape: int) -> Nested:
    """Draw normal numbers, always the same."""
    numbers = generator(7)

    def nested(sizes: tuple[int, ...]) -> Nested:
        return [nested(sizes[1:]) for _ in range(sizes[0])] if sizes else numbers.gauss(0.0, 1.5)

    return nested(shape)


def minus(gradient: list[list[Any]]) -> list[list[Any]]:
    """Turn the sign of every entry."""
    return [[-entry for entry in row] for row in gradient]


FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Nested], Nested]]] = {
    "InfoNCE: sigma(u) (W - 1_pos)": (pnce.from_scores.info_nce, oracles.info_nce_score_gradient),
    "FlatNCE, log: W - 1_pos": (pnce.from_scores.flat_nce, oracles.flat_nce_score_gradient),
    "FlatNCE with positive, log: InfoNCE's": (
        lambda s: pnce.from_scores.flat_nce(s, include_positive=True),
        oracles.info_nce_score_gradient,
    ),
    "DCL: W - 1_pos": (pnce.from_scores.dcl, oracles.flat_nce_score_gradient),
    "InfoNCE bound: (I - Pr) / K": (pnce.bounds.info_nce, lambda s: minus(oracles.info_nce_score_gradient(s))),
}
DETACHED: dict[str, tuple[Callable[[Any], Any], Callable[[Nested], Nested]]] = {
    "FlatNCE, detach: the log form's": (
        lambda s: pnce.from_scores.flat_nce(s, form="detach"),
        oracles.flat_nce_score_gradient,
    ),
    "FlatNCE with positive, detach: InfoNCE's": (
        lambda s: pnce.from_scores.flat_nce(s, form="detach", include_positive=True),
        oracles.info_nce_score_gradient,
    ),
}


def finite_differences(variant: Variant, function: Callable[[Any], Any], nested: Nested) -> Nested:
    """Differentiate a function of one matrix or vector by central differences in the variant's own arithmetic."""
    step = variant.eps("float64") ** (1 / 3)
    nested = variant.to_list(variant.floats(nested, "float64"))  # in as many digits as the variant has

    def at(position: tuple[int, ...], change: float) -> Any:
        def moved(part: Nested, here: tuple[int, ...]) -> Nested:
            return (
                [moved(item, (*here, i)) for i, item in enumerate(part)]
                if isinstance(part, list)
                else part + change * (here == position)
            )

        return variant.to_list(function(variant.floats(moved(nested, ()), "float64")))

    def slopes(part: Nested, here: tuple[int, ...]) -> Nested:
        if isinstance(part, list):
            return [slopes(item, (*here, i)) for i, item in enumerate(part)]
        return (at(here, step) - at(here, -step)) / (2 * step)

    return slopes(nested, ())


def difference_tolerance(variant: Variant) -> float:
    """The error of central differences at their best step."""
    return 20 * float(variant.eps("float64") ** (2 / 3))


@pytest.mark.parametrize("dtype", ["float64"])
@pytest.mark.parametrize("name", [*FORMS, *DETACHED])
def test_against_autodiff(variant: Variant, name: str, dtype: str) -> None:
    """The closed form is what autodiff gives."""
    function, closed = {**FORMS, **DETACHED}[name]
    nested = draw(ROWS, ROWS)
    _, (gradient,) = differentiate(function, [variant.floats(nested, dtype)])
    assert oracles.error(variant.to_list(gradient), closed(nested)) <= 10 * variant.eps(dtype)


@pytest.mark.parametrize("dtype", ["float64"])
@pytest.mark.parametrize("name", list(FORMS))
def test_against_finite_differences(variant: Variant, name: str, dtype: str) -> None:
    """The closed form is the slope of the value."""
    del dtype
    function, closed = FORMS[name]
    nested = draw(ROWS, ROWS)
    slopes = finite_differences(variant, function, nested)
    assert oracles.error(slopes, closed(nested)) <= difference_tolerance(variant)


def test_closed_forms_of_the_values() -> None:
    """The oracles agree among themselves: log-odds against the quotients of sums."""
    nested = draw(ROWS, ROWS)
    for loss, closed in (("info_nce", oracles.diagonal_info_nce), ("flat_nce", oracles.diagonal_flat_nce)):
        value, gradients = oracles.value_and_gradients(f"from_scores.{loss}", {"scores": nested}, {})
        assert oracles.error(closed(nested), value) <= 1e-60
        slope = {"info_nce": oracles.info_nce_score_gradient, "flat_nce": oracles.flat_nce_score_gradient}[loss]
        assert oracles.error(slope(nested), gradients["scores"]) <= 1e-48


@pytest.mark.parametrize("dtype", ["float64"])
def test_dual_bound(variant: Variant, dtype: str) -> None:
    """Scores: R (1_pos - W) / K; critic: -(1 - R) / K."""
    scores, critic = draw(ROWS, ROWS), draw(ROWS)
    arrays = [variant.floats(scores, dtype), variant.floats(critic, dtype)]
    _, (by_scores, by_critic) = differentiate(pnce.bounds.dual, arrays)
    closed_scores = oracles.dual_score_gradient(scores, critic)
    # The diagonal entry is R / K.
    closed_critic = [-(1 - ROWS * row[i]) / ROWS for i, row in enumerate(closed_scores)]
    assert oracles.error(variant.to_list(by_scores), closed_scores) <= 10 * variant.eps(dtype)
    assert oracles.error(variant.to_list(by_critic), closed_critic) <= 10 * variant.eps(dtype)
    slopes = finite_differences(variant, lambda s: pnce.bounds.dual(s, arrays[1]), scores)
    assert oracles.error(slopes, closed_scores) <= difference_tolerance(variant)
    slopes = finite_differences(variant, lambda u: pnce.bounds.dual(arrays[0], u), critic)
    assert oracles.error(slopes, closed_critic) <= difference_tolerance(variant)


@pytest.mark.parametrize("dtype", ["float64"])
def test_dual_critics_give_the_losses(variant: Variant, dtype: str) -> None:
    """D(g, u) at the critic without the positive is minus FlatNCE + log(K - 1), with it the InfoNCE bound."""
    nested = draw(ROWS, ROWS)
    scores = variant.floats(nested, dtype)
    flat = pnce.bounds.dual(scores, pnce.bounds.dual_critic(scores))
    wanted = mp.log(ROWS - 1) - oracles.evaluate("from_scores.flat_nce", {"scores": nested}, {})
    assert oracles.error(variant.to_list(flat), wanted) <= 10 * variant.eps(dtype)
    critic = variant.to_list(pnce.bounds.dual_critic(scores, include_positive=True))
    bound = variant.to_list(pnce.bounds.info_nce(scores))
    assert oracles.error(-sum(critic) / ROWS, bound) <= 10 * variant.eps(dtype)


@pytest.mark.parametrize("block_size", [None, 2])
def test_blocks_of_siglip_add_up(variant: Variant, block_size: int | None) -> None:
    """A batch in two blocks of rows: that of its own texts, and that of the other's, without positives."""
    numbers = generator(5)
    image, text = ([[numbers.gauss(0.0, 1.0) for _ in range(3)] for _ in range(5)] for _ in range(2))
    options: dict[str, Any] = {"logit_scale": 3.0, "logit_bias": -2.0, "reduction": "sum", "block_size": block_size}

    def whole(x: Any, y: Any) -> Any:
        return pnce.siglip(x, y, **options)

    def in_blocks(x: Any, y: Any) -> Any:
        parts = slice(0, 2), slice(2, 5)
        total = sum(pnce.siglip(x[part, ...], y[part, ...], **options) for part in parts)
        for rows, columns in (parts, parts[::-1]):
            total = total + pnce.siglip(x[rows, ...], y[columns, ...], negative_only=True, **options)
        return total

    arrays = [variant.floats(image), variant.floats(text)]
    wanted, slopes = differentiate(whole, arrays)
    value, gradients = differentiate(in_blocks, arrays)
    for got, exact in zip((value, *gradients), (wanted, *slopes), strict=True):
        assert oracles.error(variant.to_list(got), oracles.exact(variant.to_list(exact))) <= 64 * variant.eps()
