"""Laws that hold for any scores, on numbers that Hypothesis chooses."""

from __future__ import annotations

from functools import partial
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

# Multiples of 1/64, so that shifting a row is exact in float32.
numbers = st.integers(-640, 640).map(lambda k: k / 64)
matrices = st.lists(st.lists(numbers, min_size=COLUMNS, max_size=COLUMNS), min_size=ROWS, max_size=ROWS)
shifts = st.lists(numbers, min_size=ROWS, max_size=ROWS)
positive = st.lists(st.integers(1, 64).map(lambda k: k / 16), min_size=ROWS, max_size=ROWS)
views = st.lists(
    st.lists(st.integers(-32, 32).map(lambda k: k / 16), min_size=3, max_size=3), min_size=ROWS, max_size=ROWS
)
LOSSES = (pnce.from_scores.info_nce, pnce.from_scores.flat_nce, pnce.from_scores.dcl)


def run(variant: Variant, function: Any, *nested: Nested) -> list[Nested]:
    """Value and gradients as lists."""
    value, gradients = differentiate(function, [variant.floats(n) for n in nested])
    return [oracles.exact(variant.to_list(x)) for x in (value, *gradients)]


def close(variant: Variant, got: Nested, wanted: Nested, *, eps: float = 16.0) -> bool:
    """Compare up to a few roundings relative to 1 or the largest number."""
    flat_got, flat_wanted = oracles.numbers_of(got), oracles.numbers_of(wanted)
    bound = eps * variant.eps() * max([1.0, *map(abs, flat_wanted)])
    return all(abs(a - b) <= bound for a, b in zip(flat_got, flat_wanted, strict=True))


@given(
    scores=matrices,
    shift=shifts,
    rows=st.permutations(range(ROWS)),
    columns=st.permutations(range(COLUMNS)),
    weights=positive,
    factor=st.sampled_from([0.125, 3.0, 1000.0]),
)
def test_losses_of_scores_are_invariant(
    variant: Variant,
    *,
    scores: Nested,
    shift: list[float],
    rows: list[int],
    columns: list[int],
    weights: list[float],
    factor: float,
) -> None:
    """Invariance under a constant per row, a permutation, and a scale of the weights."""
    shifted = [[s + c for s in row] for row, c in zip(scores, shift, strict=True)]
    permuted = [[scores[i][j] for j in columns] for i in rows]
    positives = variant.array([columns.index(i) for i in rows])
    equal, weighted, scaled = (variant.floats(w) for w in ([0.5] * ROWS, weights, [factor * w for w in weights]))
    for loss in LOSSES:
        wanted = value, slope = run(variant, loss, scores)
        assert close(variant, run(variant, loss, shifted), wanted), loss
        # Permuted with its positives, the loss is equal and the gradient permuted.
        reordered = [value, [[slope[i][j] for j in columns] for i in rows]]
        assert close(variant, run(variant, partial(loss, positives=positives), permuted), reordered), loss
        assert close(variant, run(variant, partial(loss, weights=equal), scores), wanted), loss
        results = [run(variant, partial(loss, weights=w), scores) for w in (weighted, scaled)]
        assert close(variant, *results), loss
        # Invariance under shifts: each row of the gradient sums to 0.
        assert all(abs(sum(row)) <= 8 * variant.eps() * max(map(abs, row)) for row in slope), loss


@given(scores=matrices, a=views, b=views)
def test_losses_are_related(variant: Variant, scores: Nested, a: Nested, b: Nested) -> None:
    flat_nce, dcl = pnce.from_scores.flat_nce, pnce.from_scores.dcl
    info, flat = run(variant, pnce.from_scores.info_nce, scores), run(variant, flat_nce, scores)
    assert close(variant, flat, run(variant, dcl, scores), eps=2)
    assert close(variant, run(variant, pnce.flat_nce, a, b), run(variant, pnce.dcl, a, b), eps=2)
    # The gradient of InfoNCE is that of FlatNCE times sigma(u); rounding u rounds sigma(u).
    odds = variant.to_list(flat_nce(variant.floats(scores), reduction="none"))
    for got, slopes, u in zip(info[1], flat[1], odds, strict=True):
        with mp.workdps(oracles.DIGITS):
            wanted = [g / (1 + mp.exp(-mpf(u))) for g in slopes]
        bound = (16 + 2 * abs(u)) * variant.eps()
        assert all(abs(g - w) <= bound * abs(w) for g, w in zip(got, wanted, strict=True))
    # The detached forms have value 1 and the gradients of the others.
    forms: tuple[pnce.typing.FlatForm, ...] = ("detach", "log")
    for include in (False, True):
        losses = [partial(flat_nce, form=form, include_positive=include) for form in forms]
        detached, log = (run(variant, loss, scores) for loss in losses)
        assert close(variant, detached[0], mpf(1), eps=2)
        assert close(variant, detached[1], log[1], eps=4)


@given(scores=matrices)
def test_limits(variant: Variant, scores: Nested) -> None:
    """The bound is at most its ceiling; the effective sample size is between 1 and the number of negatives."""
    array = variant.floats(scores)
    ceiling = float(pnce.bounds.log_n_ceiling(COLUMNS))
    assert float(pnce.bounds.info_nce(array)) <= ceiling * (1 + variant.eps())
    sizes = variant.to_list(pnce.diagnostics.effective_sample_size(array, reduction="none"))
    slack = 8 * variant.eps()
    assert all(1 - slack <= size <= (COLUMNS - 1) * (1 + slack) for size in sizes)
