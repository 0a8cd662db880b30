"""Laws that hold for any scores, on numbers that Hypothesis chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from .. import oracles
from .._package import pnce
from ..variants import differentiate

if TYPE_CHECKING:
    from ..variants import Nested, Variant

ROWS, COLUMNS = 3, 5

# Multiples of 1/64, so that shifting a row by another one rounds nothing, in float32 either.
numbers = st.integers(-640, 640).map(lambda k: k / 64)
matrices = st.lists(st.lists(numbers, min_size=COLUMNS, max_size=COLUMNS), min_size=ROWS, max_size=ROWS)
shifts = st.lists(numbers, min_size=ROWS, max_size=ROWS)
views = st.lists(
    st.lists(st.integers(-32, 32).map(lambda k: k / 16), min_size=3, max_size=3), min_size=ROWS, max_size=ROWS
)
LOSSES = (pnce.from_scores.info_nce, pnce.from_scores.flat_nce, pnce.from_scores.dcl)


def run(variant: Variant, function: Any, *nested: Nested) -> tuple[Any, list[Nested]]:
    """Give value and gradients as lists."""
    value, gradients = differentiate(function, [variant.floats(n) for n in nested])
    return oracles.exact(variant.to_list(value)), [oracles.exact(variant.to_list(g)) for g in gradients]


def close(variant: Variant, got: Nested, wanted: Nested, *, scale: float = 1.0, eps: float = 16.0) -> bool:
    """Compare up to a few roundings of numbers of that scale."""
    flat_got, flat_wanted = oracles.numbers_of(got), oracles.numbers_of(wanted)
    largest = max([scale, *(abs(w) for w in flat_wanted)])
    bound = eps * variant.eps(variant.dtypes[0]) * largest
    return all(abs(a - b) <= bound for a, b in zip(flat_got, flat_wanted, strict=True))


@given(scores=matrices, shift=shifts)
def test_adding_a_constant_to_a_row_changes_nothing(variant: Variant, scores: Nested, shift: list[float]) -> None:
    shifted = [[s + c for s in row] for row, c in zip(scores, shift, strict=True)]
    for loss in LOSSES:
        assert close(variant, run(variant, loss, shifted), run(variant, loss, scores))


@given(scores=matrices, rows=st.permutations(range(ROWS)), columns=st.permutations(range(COLUMNS)))
def test_order_does_not_matter(variant: Variant, scores: Nested, rows: list[int], columns: list[int]) -> None:
    """Rows and columns in another order, the positives with them: the same loss, the gradient in that order."""
    permuted = [[scores[i][j] for j in columns] for i in rows]
    positives = variant.array([columns.index(i) for i in rows])
    for loss in LOSSES:
        value, (gradient,) = run(variant, lambda s, loss=loss: loss(s, positives=positives), permuted)
        wanted, (slope,) = run(variant, loss, scores)
        assert close(variant, value, wanted)
        assert close(variant, gradient, [[slope[i][j] for j in columns] for i in rows])


@given(scores=matrices, a=views, b=views)
def test_flat_nce_is_dcl(variant: Variant, scores: Nested, a: Nested, b: Nested) -> None:
    assert close(
        variant, run(variant, pnce.from_scores.flat_nce, scores), run(variant, pnce.from_scores.dcl, scores), eps=2
    )
    assert close(variant, run(variant, pnce.flat_nce, a, b), run(variant, pnce.dcl, a, b), eps=2)


@given(scores=matrices)
def test_gradient_of_info_nce_is_flat_nce_times_sigma(variant: Variant, scores: Nested) -> None:
    _, (info,) = run(variant, pnce.from_scores.info_nce, scores)
    _, (flat,) = run(variant, pnce.from_scores.flat_nce, scores)
    odds = variant.to_list(pnce.from_scores.flat_nce(variant.floats(scores), reduction="none"))
    with mp.workdps(oracles.DIGITS):
        wanted = [[g / (1 + mp.exp(-mpf(u))) for g in row] for row, u in zip(flat, odds, strict=True)]
    for got_row, wanted_row, u in zip(info, wanted, odds, strict=True):
        # Entry by entry: the rounding of u is that of sigma(u).
        bound = (16 + 2 * abs(u)) * variant.eps(variant.dtypes[0])
        assert all(abs(g - w) <= bound * abs(w) for g, w in zip(got_row, wanted_row, strict=True))


@given(scores=matrices)
def test_detached_forms_are_one(variant: Variant, scores: Nested) -> None:
    for include_positive in (False, True):

        def loss(s: Any, form: pnce.typing.FlatForm, *, include: bool = include_positive) -> Any:
            return pnce.from_scores.flat_nce(s, form=form, include_positive=include)

        value, gradient = run(variant, lambda s, loss=loss: loss(s, "detach"), scores)
        _, slope = run(variant, lambda s, loss=loss: loss(s, "log"), scores)
        assert close(variant, value, mpf(1), eps=2)
        assert close(variant, gradient, slope, eps=4)


@given(scores=matrices)
def test_bound_stays_below_its_ceiling(variant: Variant, scores: Nested) -> None:
    bound = float(pnce.bounds.info_nce(variant.floats(scores)))
    assert bound <= float(pnce.bounds.log_n_ceiling(COLUMNS)) * (1 + variant.eps(variant.dtypes[0]))


@given(scores=matrices)
def test_effective_sample_size_lies_between_one_and_all(variant: Variant, scores: Nested) -> None:
    sizes = variant.to_list(pnce.diagnostics.effective_sample_size(variant.floats(scores), reduction="none"))
    slack = 8 * variant.eps(variant.dtypes[0])
    assert all(1 - slack <= size <= (COLUMNS - 1) * (1 + slack) for size in sizes)


@given(
    scores=matrices,
    weights=st.lists(st.integers(1, 64).map(lambda k: k / 16), min_size=ROWS, max_size=ROWS),
    factor=st.sampled_from([0.125, 3.0, 1000.0]),
)
def test_scale_of_the_weights_does_not_matter(
    variant: Variant, scores: Nested, weights: list[float], factor: float
) -> None:
    for loss in LOSSES:
        results = [
            run(variant, lambda s, loss=loss, w=w: loss(s, weights=variant.floats(w)), scores)
            for w in (weights, [factor * w for w in weights])
        ]
        assert close(variant, *results)


@given(scores=matrices)
def test_equal_weights_are_no_weights(variant: Variant, scores: Nested) -> None:
    weights = variant.floats([0.5] * ROWS)
    for loss in LOSSES:
        assert close(
            variant, run(variant, lambda s, loss=loss: loss(s, weights=weights), scores), run(variant, loss, scores)
        )


@given(scores=matrices)
def test_gradient_of_every_row_adds_up_to_zero(variant: Variant, scores: Nested) -> None:
    """What invariance under shifts says of the gradient."""
    for loss in LOSSES:
        _, (gradient,) = run(variant, loss, scores)
        assert all(abs(sum(row)) <= 8 * variant.eps(variant.dtypes[0]) * max(map(abs, row)) for row in gradient)
