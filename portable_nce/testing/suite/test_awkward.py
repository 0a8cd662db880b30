"""Edge cases: finite values and gradients, and the exact ones if mathematics defines them.

Known traps come first: a multiplied mask leaves exp(0) in the sum; the log-sum-exp of an empty set and a norm at zero
have no gradient; infinity times zero is NaN; and so on.
"""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp, mpf

from .. import oracles
from .._package import pnce
from ..cases import AXES, CASES, LOSSES, Case, example, lengths, sixteenths
from ..variants import EPS, case_arrays, case_named, differentiate, flatten
from .calls import FEW, arrays_of, assert_finite, filled, of_halves, scaled, value_and_gradients
from .left_out import filled_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..variants import Nested, Variant

INF, NAN = math.inf, math.nan
DTYPES = [None, "float16"]
"""The widest dtype of the variant, and the dtype with the narrowest range."""
BLOCKS = [None, 2]


def assert_exact(variant: Variant, found: list[Any], wanted: tuple[Nested, dict[str, Nested]], within: float) -> None:
    """Compare value and gradients with an oracle: all finite, and exactly 0 where the oracle's are all 0."""
    for k, (got, exact) in enumerate(zip(found, [wanted[0], *wanted[1].values()], strict=True)):
        assert oracles.error(variant.to_list(got), exact) <= (max(within, 1e-48) if k else within), k


def results_of(
    variant: Variant, name: str, arrays: dict[str, Any], *, differentiated: bool = True, **options: Any
) -> dict[str, Nested]:
    """Value of a loss, and gradients by name."""
    if not differentiated:
        return {"value": variant.to_list(example(name).call(arrays, **options))}
    value, gradients = value_and_gradients(name, arrays, **options)
    return {key: variant.to_list(x) for key, x in {"value": value, **gradients}.items()}


# --- scores: masks, empty sets, extreme numbers -----------------------------------------------------------------------

FORMS: list[dict[str, Any]] = [{}, {"form": "detach"}, {"include_positive": True}]
SCORE_LOSSES: list[tuple[str, dict[str, Any]]] = [
    *product(("info_nce", "dcl"), ({}, {"multi_positive": "pooled"})),
    *product(("flat_nce",), FORMS),
]


def all_but(*out: tuple[int, int]) -> list[list[bool]]:
    """Make a mask of three rows and three columns."""
    return [[(i, j) not in out for j in range(3)] for i in range(3)]


CLEAN, HOLES = sixteenths((3, 3), 5), all_but((0, 1), (1, 2), (2, 0))


def with_holes(dirt: float) -> Nested:
    """Replace masked scores by a given number."""
    return [[s if m else dirt for s, m in zip(row, bits, strict=True)] for row, bits in zip(CLEAN, HOLES, strict=True)]


def of_scores(nested: Nested, **arrays: Nested) -> dict[str, Any]:
    """Arrays of a case."""
    return {"arguments": {"scores": nested}, "constants": arrays}


PLAIN = of_scores(CLEAN, mask=HOLES)
AWKWARD_SCORES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # An exp(0) from a multiplied mask would outweigh them all.
    "far below zero": (of_scores([[s - 24.0 for s in row] for row in CLEAN], mask=all_but((0, 1), (1, 2))), {}),
    **{f"{dirt} under a mask": (of_scores(with_holes(dirt), mask=HOLES), PLAIN) for dirt in (INF, -INF, NAN)},
    "-inf as mask": (of_scores(with_holes(-INF)), PLAIN),
    "a row without a positive": (of_scores(CLEAN, mask=all_but((1, 1)), weights=[1.0, 0.5, 2.0]), {}),
    # Far beyond the range of the exponential.
    "won, lost and tied": (of_scores([*[[1e4, -1e4, 0.0]] * 2, [1e4] * 3], positives=[0, 1, 2]), {}),
    "positives only": (of_scores(CLEAN, positives=filled(True, 3, 3)), {}),
    # No positive or no negative in any row: loss 0.
    "everything masked": (of_scores(CLEAN, mask=filled(False, 3, 3)), {}),
    "no positive": (of_scores(CLEAN, mask=all_but((0, 0), (1, 1), (2, 2))), {}),
    "no negative": (of_scores(CLEAN, mask=[[i == j for j in range(3)] for i in range(3)]), {}),
    "one column": (of_scores([[1.0], [-2.0], [3.0]], positives=[0, 0, 0]), {}),
}
"""Arrays, and if different those of a plain call with the same loss."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", AWKWARD_SCORES)
def test_awkward_scores(variant: Variant, kind: str, dtype: str | None) -> None:
    """Masked scores affect neither the value nor the gradient, whatever they are."""
    arrays, plain = AWKWARD_SCORES[kind]
    for loss, options in SCORE_LOSSES:
        case = Case(name=kind, loss=f"from_scores.{loss}", options=options, **arrays)
        exact, by_row = replace(case, **plain), {**options, "reduction": "none"}
        given, within = case_arrays(variant, case, dtype or variant.dtypes[0]), 8 * variant.eps(dtype)
        value, gradients = differentiate(case.function, given, 1)
        assert_exact(variant, [value, *gradients], oracles.case_value_and_gradients(exact), within)
        rows = variant.to_list(replace(case, options=by_row).function(*given))
        wanted = oracles.evaluate(exact.loss, exact.arguments, {**exact.constants, **by_row})
        assert oracles.error(rows, wanted) <= within
        assert rows[1] == 0.0 or kind != "a row without a positive"


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_extreme_bounds(variant: Variant, dtype: str | None) -> None:
    """The InfoNCE bound and its gradient if all rows are far lost or far won."""
    nested = [[1e4, -1e4, 0.0], [1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]]
    value, gradients = differentiate(pnce.bounds.info_nce, [variant.floats(nested, dtype)])
    wanted = oracles.value_and_gradients("bounds.info_nce", {"scores": nested}, {})
    assert_exact(variant, [value, *gradients], wanted, 8 * variant.eps(dtype))
    for function in (pnce.bounds.dual_critic, pnce.diagnostics.effective_sample_size):
        assert_finite(variant, function(variant.floats(nested, dtype)), {}, function)


@pytest.mark.parametrize("dtype", ["float16"])
def test_many_columns_and_rows_in_sixteen_bits(variant: Variant, dtype: str) -> None:
    """70 000 columns overflow a float16 sum, and as many rows their count; logarithm and mean are small."""
    count = 70_000
    value, (gradient,) = differentiate(pnce.from_scores.info_nce, [variant.floats([[0.0] * count], dtype)])
    assert oracles.error(variant.to_list(value), mp.log(count)) <= EPS[dtype]
    assert oracles.error(variant.to_list(gradient)[0][0], mpf(1) / count - 1) <= EPS[dtype]
    scores, positives = variant.floats([[0.0, 0.0]] * count, dtype), variant.array([0] * count)
    for options in ({}, {"weights": variant.floats([1.0] * count, dtype)}):
        value = pnce.from_scores.info_nce(scores, positives=positives, **options)
        assert oracles.error(variant.to_list(value), mp.log(2)) <= EPS[dtype]


# --- embeddings -------------------------------------------------------------------------------------------------------


def marked(*values: Any) -> list[Any]:
    """Mark values that are skipped if every operation is compiled."""
    return [pytest.param(value, marks=pytest.mark.exhaustive) for value in values]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("loss", ["info_nce symmetric", "dcl", *marked("info_nce", "nt_xent", "flat_nce", "clip")])
def test_embeddings_without_pairs(variant: Variant, loss: str, block_size: int | None, dtype: str | None) -> None:
    """Rows without positives or negatives: -inf divided by a learned temperature would give NaN."""
    case = example(loss, 3)
    size = 3 * LOSSES[loss].views
    positive = [[i % 3 == j % 3 and (i != j or size == 3) for j in range(size)] for i in range(size)]
    for kept in ({True}, {False}, {True, None}):
        mask = [[bit in kept or (None in kept and i % 2 == 0) for bit in row] for i, row in enumerate(positive)]
        arrays = {**arrays_of(variant, case, dtype), "mask": variant.array(mask)}
        value, gradients = value_and_gradients(loss, arrays, block_size=block_size)
        wanted = oracles.case_value_and_gradients(replace(case, constants={"mask": mask}))
        assert_exact(variant, [value, *gradients.values()], wanted, max(16 * variant.eps(dtype), 1e-45))


@pytest.mark.parametrize("block_size", BLOCKS)
def test_masked_keys_may_hold_anything(variant: Variant, block_size: int | None) -> None:
    """A key that is masked for every query does not affect the value."""
    query, key = variant.floats(sixteenths((3, 3), 1)), sixteenths((3, 3), 2)
    options: dict[str, Any] = {"similarity": "neg_sq_euclidean", "temperature": 0.5, "block_size": block_size}
    options["mask"] = variant.array([[True, True, False]] * 3)
    keys = [variant.floats([*key[:2], last]) for last in (key[2], [INF, 1.0, 0.5], [NAN, 1.0, 0.5])]
    clean, *dirty = (variant.to_list(pnce.info_nce(query, x, **options)) for x in keys)
    assert dirty == [clean] * 2


KINKS: dict[str, tuple[Callable[[tuple[int, ...], int], Nested], int]] = {
    "a row of zeros": (lambda shape, seed: [[0.0] * shape[1], *sixteenths(shape, seed)[1:]], 8),
    "zeros": (lambda shape, _: filled(0.0, *shape), 8),
    "all rows the same": (lambda shape, _: [[0.5, -1.25, 0.75]] * shape[0], 4),
    "queries are their keys": (lambda shape, _: sixteenths(shape, 3), 16),
}
"""Embeddings at which a similarity has no gradient (length or distance 0), and the tolerance of the loss in ulp."""
OTHERS = marked("info_nce symmetric", "info_nce shared", "flat_nce", "flat_nce detach", "dcl")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("similarity", pnce.similarities.NAMES)
@pytest.mark.parametrize("loss", ["info_nce", "nt_xent", *OTHERS])
def test_kinks(variant: Variant, loss: str, similarity: str, block_size: int | None, dtype: str | None) -> None:
    """The value is exact, the gradient finite, and 0 where it is undefined."""
    for kind, (fill, roundings) in KINKS.items():
        case = example(loss, 3, fill=fill)
        options = {"similarity": similarity, "block_size": block_size}
        value, gradients = value_and_gradients(loss, arrays_of(variant, case, dtype), **options)
        assert_finite(variant, value, gradients, kind)
        wanted = oracles.evaluate(case.loss, case.arguments, {**case.options, **options})
        assert oracles.error(variant.to_list(value), wanted) <= roundings * variant.eps(dtype), kind
        of_rows = [variant.to_list(gradient) for gradient in gradients.values() if gradient.shape]
        if similarity == "cosine" and "zeros" in kind:
            assert all(rows[0] == [0.0] * 3 for rows in of_rows), kind
        if (similarity, kind) in {("cosine", "zeros"), ("neg_euclidean", "all rows the same")}:
            assert not any(flatten(of_rows)), kind


def moved(seed: int, origin: float = 0.0, unit: float = 1.0, centres: float = 0.0, copies: int = 1) -> Nested:
    """Six rows around an origin, or around two centres, some of them copies of one another."""
    rows = [row for row in sixteenths((6, 3), seed) for _ in range(copies)][:6]
    return [[origin + centres * (-1) ** (k // 2) + unit * a for a in row] for k, row in enumerate(rows)]


def near(rows: Nested, unit: float) -> Nested:
    """Rows moved by a small amount each."""
    return [
        [a + unit * b for a, b in zip(*both, strict=True)] for both in zip(rows, sixteenths((6, 3), 9), strict=True)
    ]


CLOSE: dict[str, tuple[Nested, Nested]] = {
    "far from the origin": (moved(1, origin=1024.0), moved(2, origin=1024.0)),
    "pairs close together": (moved(1), near(moved(1), 2.0**-10)),
    "pairs of one row": (moved(1, copies=3), moved(1, copies=3)),
    "clusters far apart": (moved(1, centres=256.0, unit=0.125), near(moved(1, centres=256.0, unit=0.125), 2.0**-4)),
}
"""Rows much closer together than they are long: distances by products of matrices would cancel."""


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("similarity", ["neg_sq_euclidean", "neg_euclidean", "cauchy"])
@pytest.mark.parametrize("kind", CLOSE)
def test_distances_of_close_rows(
    variant: Variant, kind: str, similarity: str, block_size: int | None, dtype: str | None
) -> None:
    """Value and gradients keep the digits of float32 where a library has float64, and most of those of float64."""
    within = 2.0**-19 if variant.eps(dtype) > 1e-9 else 2.0**-23  # float32, or float64
    within = 2.0**-3 if variant.library == "mlx" else within  # products in float32
    rows, columns = CLOSE[kind]
    arguments, options = {"query": rows, "positive_key": columns}, {"similarity": similarity, "temperature": 0.5}
    case = replace(example("info_nce", 6), arguments=arguments, constants={}, options=options)
    wanted = oracles.case_value_and_gradients(case)
    value, gradients = value_and_gradients(
        "info_nce", arrays_of(variant, case, dtype), block_size=block_size, **options
    )
    assert_finite(variant, value, gradients, kind)
    assert oracles.error(variant.to_list(value), wanted[0], 1e-3) <= within
    for name, exact in wanted[1].items():
        assert oracles.error(variant.to_list(gradients[name]), exact) <= within, name


@pytest.mark.parametrize("dtype", ["float32"])
@pytest.mark.parametrize("power", [2.0**-100, 2.0**100])
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("loss", ["info_nce", "nt_xent", "clip"])
def test_extreme_lengths(variant: Variant, loss: str, block_size: int | None, power: float, dtype: str) -> None:
    """Cosine is independent of the length of a vector; its gradient is divided by the length."""
    arrays = arrays_of(variant, example(loss, 3), dtype)
    longer = {key: x * power if x.shape else x for key, x in arrays.items()}
    wanted, found = (results_of(variant, loss, given, block_size=block_size) for given in (arrays, longer))
    for key, numbers in wanted.items():
        rescaled = scaled(mpf(power if isinstance(numbers, list) else 1.0), found[key])
        assert oracles.error(rescaled, numbers) <= 8 * variant.eps(dtype), key


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("similarity", ["cosine", "neg_euclidean", "neg_sq_euclidean"])
def test_tiny_vectors_in_sixteen_bits(variant: Variant, similarity: str, block_size: int | None, dtype: str) -> None:
    """Distances whose squares underflow; an epsilon of 1e-12 would be 0 here, one of 1e-3 larger than the vectors."""
    size, options = 2.0**-100 if dtype == "float32" else 2.0**-12, {"similarity": similarity, "block_size": block_size}
    case = example("info_nce", 3, fill=lambda shape, place: scaled(size, sixteenths(shape, place)))
    value, gradients = value_and_gradients("info_nce", arrays_of(variant, case, dtype), **options)
    assert_finite(variant, value, gradients)
    case = replace(case, options=options)
    wanted = oracles.case_value_and_gradients(case)
    assert oracles.error(variant.to_list(value), wanted[0]) <= 4 * EPS[dtype]
    if similarity == "cosine" and "16" in dtype:
        assert oracles.error(variant.to_list(value), wanted[0]) <= EPS[dtype]
        for argument, gradient in gradients.items():
            within = of_halves(case, dtype, argument) if variant.half_products else EPS[dtype]
            assert oracles.error(variant.to_list(gradient), wanted[1][argument]) <= within, argument


def test_logit_scale_at_its_largest(variant: Variant) -> None:
    """Above the largest scale the loss is constant, and only a gradient that decreases the scale passes."""
    a, b = (variant.floats(sixteenths((3, 3), seed)) for seed in (1, 2))

    def at(text: Any, scale: float, largest: float | None) -> list[float]:
        loss = partial(pnce.clip, a, text, max_logit_scale=largest)
        value, (slope,) = differentiate(lambda s: loss(logit_scale=s), [variant.floats(scale)])
        return [float(value), float(slope)]

    # A smaller scale decreases the loss of unrelated pairs, a larger one that of equal pairs.
    for text, passes in ((b, True), (a, False)):
        value, slope = at(text, 16.0, 8.0)
        plain, plain_slope = at(text, 8.0, None)
        assert (plain_slope > 0.0) == passes
        assert value == pytest.approx(plain, rel=4 * variant.eps())
        assert slope == (pytest.approx(plain_slope, rel=8 * variant.eps()) if passes else 0.0)
        assert at(text, 6.0, 8.0)[1] == pytest.approx(at(text, 6.0, None)[1], rel=8 * variant.eps())


def test_swapping_the_views_changes_nothing(variant: Variant) -> None:
    """The score of a row with itself is excluded in both directions, however large it is."""
    a, b = variant.floats([[30.0, 1.0], [0.5, -20.0]]), variant.floats([[0.25, 1.0], [0.5, 0.75]])
    for loss in (pnce.nt_xent, pnce.dcl, pnce.flat_nce):
        both = [loss(*views, similarity="dot", temperature=8.0) for views in ((a, b), (b, a))]
        assert oracles.error(*map(variant.to_list, both)) <= 8 * variant.eps()


# --- every loss: masked rows, overflow, indices out of range ----------------------------------------------------------

ROWS, OUT = 6, 2
"""Six rows; the third is masked."""
MASKED: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {})
        for name, loss in LOSSES.items()
        if {"mask", "reduction", "block_size"}
        <= {*inspect.signature(getattr(pnce, name.split(maxsplit=1)[0], len)).parameters}
        and "slots" not in loss.options
        and not (loss.mask == "NC" and loss.keywords)  # the mask of ProtoNCE does not apply to its InfoNCE term
        and loss.options.get("similarity") not in pnce.similarities.NAMES
    },
    "info_nce, several positives": ("info_nce", {"multi_positive": "separate"}),
    "contrastive balance, nonzero": ("contrastive balance", {"average": "nonzero"}),
    "triplet_from_labels easy": ("triplet_from_labels", {"mining": ("semi_hard", "easy")}),
    "triplet_from_labels hard": ("triplet_from_labels", {"mining": ("hard", "all")}),
}
"""Losses of embeddings with a mask, and their options."""
MASK_AXES = sorted({LOSSES[name].mask for name, _ in MASKED.values()})


def inputs_of(variant: Variant, kind: str, dtype: str | None = None, *, factor: float = 1.0) -> dict[str, Any]:
    """Make the arrays of a loss; the first row of a memory is unwritten and holds NaN."""
    case = example(MASKED[kind][0], ROWS)
    long = {key: x if key in {"projections", "bilinear"} else scaled(factor, x) for key, x in case.arguments.items()}
    case = replace(case, arguments={**long, **LOSSES[case.name].parameters})
    arrays = arrays_of(variant, case, dtype)
    for key in {"queue", "support", "keys"} & {*arrays}:
        rows = variant.floats([[NAN, INF, NAN], *case.arguments[key][1:]], dtype)
        arrays[key] = pnce.Queue(rows, variant.array([k > 0 for k in range(rows.shape[0])]))
    if kind == "info_nce, several positives":
        arrays["positives"] = variant.array([[i // 2 == j // 2 for j in range(ROWS)] for i in range(ROWS)])
    return arrays


def calls_of(variant: Variant, axes: str, turn: int) -> dict[str, dict[str, Any]]:
    """Losses whose mask has these axes (few if every operation is compiled), with a similarity each."""
    few, names = [kind for kind in MASKED if not variant.compiles or kind in FEW], pnce.similarities.NAMES
    return {
        kind: {"similarity": names[(place + turn) % 4], **LOSSES[MASKED[kind][0]].options, **MASKED[kind][1]}
        for place, kind in enumerate(few)
        if LOSSES[MASKED[kind][0]].mask == axes
    }


def mask_of(name: str) -> Nested:
    """Mask all pairs of one sample."""
    axes = {"info_nce own": "NM", "supcon keys": "NM"}.get(name, LOSSES[name].mask)
    sizes = lengths(ROWS, 3, LOSSES[name].views)
    if axes == "N":
        return [i != OUT for i in range(ROWS)]
    live = [axes[0] != axes[1] or j % ROWS != OUT for j in range(sizes[axes[1]])]
    live += [True] * sizes["M"] * (name in {"nt_xent keys", "relic keys"})
    return [[bit and i % ROWS != OUT for bit in live] for i in range(sizes[axes[0]])]


def axes_of_samples(name: str) -> dict[str, str]:
    """Axes of the arrays with a vector per sample."""
    loss = LOSSES[name]
    axes = {key: loss.shapes.get(key, AXES.get(key, "ND")) for key in (*loss.arguments, *loss.keywords)}
    return {key: letters for key, letters in axes.items() if "N" in letters and len(letters) > 1}


def with_dirt(axes: str, nested: Nested, dirt: float) -> Nested:
    """Replace the vectors of the masked sample by NaN or infinity."""
    if not axes:
        return dirt
    chosen = [OUT] if axes[0] == "N" else range(len(nested))
    return [with_dirt(axes[1:], item, dirt) if i in chosen else item for i, item in enumerate(nested)]


NAMES = [case.name for case in CASES if case.regime == "normal"]


@pytest.mark.parametrize(
    "case_name", [pytest.param(name, marks=() if name in FEW else pytest.mark.exhaustive) for name in NAMES]
)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy's, inside other libraries
def test_nan_in_a_row_that_counts_makes_the_loss_nan(variant: Variant, case_name: str) -> None:
    """A maximum that leaves NaN out, and is then subtracted, would hide it."""
    case, number = case_named(case_name), variant.floats([1.0, math.nan])
    is_mined = "hard" in case_name or "easy" in case_name
    if is_mined and variant.to_list(variant.xp.argmax(number)) != 1:
        pytest.skip("the standard leaves open which place `argmax` gives among NaN; this library's is not that of NaN")
    arrays = case_arrays(variant, case, variant.dtypes[0])
    _, gradients = differentiate(case.function, arrays, len(case.arguments))
    for k, gradient in enumerate(gradients):
        slopes, rows = variant.to_list(gradient), variant.to_list(arrays[k])
        places = range(len(slopes)) if isinstance(slopes, list) else ()
        counted = [place for place in places if any(flatten(slopes[place]))]
        for place in counted[-1:]:
            dirty = [filled_with(math.nan, x) if i == place else x for i, x in enumerate(rows)]
            given = [variant.floats(dirty) if j == k else x for j, x in enumerate(arrays)]
            found = variant.to_list(case.function(*given))
            assert math.isnan(found), (k, place, found)


turns = pytest.mark.parametrize("turn", [0, *marked(1, 2, 3)])
"""Offset of the similarity that each loss gets."""


@turns
@pytest.mark.parametrize("block_size", ["auto", 2, *marked(None, 3)])
@pytest.mark.parametrize("axes", MASK_AXES)
@pytest.mark.filterwarnings("error:invalid value encountered in matmul:RuntimeWarning")
def test_masked_rows_may_hold_anything(variant: Variant, axes: str, block_size: int | str | None, turn: int) -> None:
    """A row whose pairs are all masked affects no value and no other gradient; its own gradient is 0."""
    for kind, options in calls_of(variant, axes, turn).items():
        name = MASKED[kind][0]
        samples = axes_of_samples(name)
        options |= {"mask": variant.array(mask_of(name)), "block_size": block_size}
        for reduction in ("mean", "none"):
            clean: dict[str, Nested] = {}
            for dirt in (0.25, NAN, INF):
                arrays, of = inputs_of(variant, kind), (kind, reduction, dirt)
                for key, letters in samples.items():
                    arrays[key] = variant.floats(with_dirt(letters, variant.to_list(arrays[key]), dirt))
                found = results_of(variant, name, arrays, reduction=reduction, **options)
                for key, letters in samples.items():
                    assert found[key] == with_dirt(letters, found[key], 0.0), (of, key)
                clean = clean or found
                for key, wanted in clean.items():
                    assert oracles.error(found[key], oracles.exact(wanted)) <= 4 * variant.eps(), (of, key)


IGNORED: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("supcon", "nca", "soft_nearest_neighbor", "contrastive", "supcon keys")},
    **{name: (name, {}) for name in LOSSES if name.startswith("triplet_from_labels")},
    "contrastive balance, nonzero": ("contrastive balance", {"average": "nonzero"}),
    "triplet_from_labels easy": ("triplet_from_labels", {"mining": ("semi_hard", "easy")}),
}
"""Losses with `ignore_index`, and their options."""


@turns
@pytest.mark.parametrize("block_size", ["auto", 2, *marked(None, 3)])
def test_rows_of_an_ignored_label_may_hold_anything(variant: Variant, block_size: int | str | None, turn: int) -> None:
    """They, and keys of that label, affect no value and no other gradient; their own gradient is 0."""
    for place, (kind, (name, options)) in enumerate(IGNORED.items()):
        case, names = example(name, 6), pnce.similarities.NAMES
        out = {key: 1 for key in ("embeddings", "keys") if key in case.arguments}
        labels = {
            key: variant.array([-1 if k == 1 else label for k, label in enumerate(nested)])
            for key, nested in case.constants.items()
        }
        chosen: dict[str, Any] = {"similarity": names[(place + turn) % 4], "ignore_index": -1, "block_size": block_size}
        for reduction in ("mean", "none"):
            clean: dict[str, Nested] = {}
            for dirt in (0.25, NAN, INF):
                arrays, of = {**arrays_of(variant, case), **labels}, (kind, reduction, dirt)
                for key, row in out.items():
                    nested = variant.to_list(arrays[key])
                    arrays[key] = variant.floats([*nested[:row], [dirt] * 3, *nested[row + 1 :]])
                found = results_of(variant, name, arrays, reduction=reduction, **case.options, **options, **chosen)
                for key, row in out.items():
                    assert flatten(found[key][row]) == [0.0] * 3, (of, key)
                clean = clean or found
                for key, wanted in clean.items():
                    assert oracles.error(found[key], oracles.exact(wanted)) <= 4 * variant.eps(), (of, key)


@turns
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("block_size", ["auto", 2, *marked(3)])
@pytest.mark.parametrize("axes", MASK_AXES)
@pytest.mark.parametrize("dtype", ["float32"])
def test_scores_that_overflow(variant: Variant, axes: str, block_size: int | str | None, turn: int, dtype: str) -> None:
    """For finite embeddings whose scores overflow, neither the value nor the gradient is NaN."""
    for kind, options in calls_of(variant, axes, turn).items():
        name = MASKED[kind][0]
        if name == "siglip max_sim":
            continue  # its score is a sum of infinite scores of both signs
        # Their gradient is a score, or its square, times an embedding: a sum of infinities of both signs.
        undefined = options["similarity"] == "dot" and name.split(maxsplit=1)[0] in {"relic", "contrastive"}
        for factor, reduction in product((2.0**66, 2.0**100), ("mean", "none")):
            arrays = {**inputs_of(variant, kind, dtype, factor=factor), **LOSSES[name].parameters}
            results = partial(results_of, variant, name, arrays, differentiated=not undefined, reduction=reduction)
            streamed, dense = (results(block_size=size, **options) for size in (block_size, None))
            # If rows share their neighbour, the gradient of a distance is a difference of equal embeddings.
            rounded = 0.0 if options["similarity"] == "cosine" else 2.0**-20 * factor
            # The gradient of projections is a sum of products of two embeddings, infinities of both signs.
            for key, wanted in [(key, x) for key, x in dense.items() if key != "projections"]:
                largest = max(map(abs, flatten(wanted)))
                for x, y in zip(flatten(streamed[key]), flatten(wanted), strict=True):
                    assert x == y or abs(x - y) <= max(1e-3 * largest, rounded), (kind, factor, reduction, key)


# --- parameters of parts, as arrays -----------------------------------------------------------------------------------

COLUMNS = [0.5, -1.0, 1.5, 2.0, 0.75, -1.25]
SCALED, SHIFTED = pnce.similarities.scaled_columns, pnce.similarities.shifted_columns


def _squared(score: Any, shift: Any) -> Any:
    return (score + shift) * (score + shift)


PAIRWISE = partial(pnce.objectives.Pairwise, _squared)
PARAMETERS: dict[str, tuple[Nested, str, Callable[[Any], dict[str, Any]]]] = {
    "scaled_columns": (COLUMNS, "info_nce", lambda p: {"similarity": SCALED("dot", p)}),
    "scaled_columns of distances": (COLUMNS, "info_nce", lambda p: {"similarity": SCALED("neg_euclidean", p)}),
    "shifted_columns": (COLUMNS, "info_nce", lambda p: {"similarity": SHIFTED("dot", p)}),
    "shifted_columns of distances": (COLUMNS, "info_nce", lambda p: {"similarity": SHIFTED("neg_euclidean", p)}),
    "logistic bias": (-0.5, "contrast", lambda p: {"objective": pnce.objectives.logistic(bias=p)}),
    "dclw temperature": (0.5, "contrast", lambda p: {"objective": pnce.objectives.dclw(temperature=p)}),
    "dclw sigma": (0.75, "dclw", lambda p: {"sigma": p}),
    "contrastive margin": (3.5, "contrastive", lambda p: {"margin": p}),
    "contrastive positive_margin": (0.5, "contrastive", lambda p: {"margin": 3.0, "positive_margin": p}),
    "triplet margin": (1.0, "triplet", lambda p: {"margin": p, "form": "soft"}),
    "triplets margin": (1.0, "triplet_from_labels", lambda p: {"margin": p}),
    "relic alpha": (0.5, "relic", lambda p: {"alpha": p}),
    "n_tuple l2": (0.25, "n_tuple", lambda p: {"l2": p}),
    "Pairwise": (0.5, "contrast", lambda p: {"objective": PAIRWISE(_squared, parameters=(p,))}),
    "Pairwise of rows": (COLUMNS, "contrast", lambda p: {"objective": PAIRWISE(None, parameters=(p,))}),
}
"""Values (one, or one per column); the loss that learns them; and its options, from their array."""


@pytest.mark.parametrize("block_size", [None, 2, "auto"])
@pytest.mark.parametrize("name", list(PARAMETERS))
def test_parameters_of_parts(variant: Variant, name: str, block_size: int | str | None) -> None:
    """A parameter may be an array; its gradient is the derivative of the loss in the all-ones direction."""
    nested, loss, options = PARAMETERS[name]
    case = example(loss, ROWS)
    arrays, parameter = arrays_of(variant, case), variant.floats(nested)

    def at(p: Any, *moved: Any) -> Any:
        given = {**arrays, **dict(zip(case.arguments, moved, strict=False))}
        return case.call(given, block_size=block_size, **options(p))

    value, (gradient,) = differentiate(at, [parameter])
    of_all, (slopes, *_) = differentiate(at, [parameter, *(arrays[key] for key in case.arguments)])
    for found, wanted, roundings in ((of_all, value, 8), (slopes, gradient, 32)):
        assert oracles.error(variant.to_list(found), variant.to_list(wanted)) <= roundings * variant.eps()
    # Against a central difference, whose error is of the order of the squared step.
    step = 2.0**-10
    high, low = (mpf(variant.to_list(at(parameter + sign * step))) for sign in (1.0, -1.0))
    slope, total = (high - low) / (2.0 * step), sum(map(mpf, flatten(variant.to_list(gradient))))
    assert abs(total - slope) <= (1e-5 + 100.0 * variant.eps() / step) * (1 + abs(slope))


# --- indices out of range ---------------------------------------------------------------------------------------------


_contrast = partial(pnce.contrast, objective="info_nce")


def _scored(loss: str) -> Callable[..., Any]:
    return lambda x, y, at: getattr(pnce.from_scores, loss)(x @ y.T, positives=at, reduction="none")


INDEXED: dict[str, Callable[..., Any]] = {
    "positives": lambda x, y, at: pnce.info_nce(x, y, positives=at, reduction="none"),
    "pairings.index": lambda x, y, at: _contrast(x, y, pairing=pnce.pairings.index(at), reduction="none"),
    **{f"from_scores {loss}": _scored(loss) for loss in ("info_nce", "dclw", "logistic", "triplet")},
    "proto_nce": lambda x, y, at: pnce.proto_nce(x, y[:3, :], at, y[:3, 0] * 0 + 0.5, reduction="none"),
    "concentrations": lambda x, y, at: pnce.concentrations(x, y[:3, :], at),
}


@pytest.mark.parametrize("outside", [-1, 6, 2**31 - 1, -(2**31)])
def test_indices_out_of_range(variant: Variant, outside: int) -> None:
    """An error names the argument if values can be read; otherwise such a row is ignored."""
    x, y = (variant.floats(sixteenths((6, 3), seed)) for seed in (1, 2))
    for name, function in INDEXED.items():
        words = "assignments" if name in {"proto_nce", "concentrations"} else "positives"
        try:
            values = function(x, y, variant.array([0, 1, outside, 2, 1, 0]))
        except ValueError as error:
            assert re.match(rf"{words}: expected indices from 0 to .* got {outside};", str(error)), name  # noqa: PT017  (many calls)
            continue
        assert_finite(variant, values, {}, name)
        if name != "concentrations" and "logistic" not in name:
            assert variant.to_list(values)[2] == 0.0, name


OBJECTIVES: dict[str, Any] = {
    "info_nce": "info_nce",
    "hard_negatives": pnce.objectives.hard_negatives(beta=0.5, tau_plus=0.05),
    "logistic": "logistic",
    **{by: pnce.objectives.contrastive(margin=1.0, average=by) for by in ("all", "nonzero")},
    "balanced": pnce.objectives.contrastive(margin=1.0, balance=True),
    "triplet": pnce.objectives.triplet(margin=0.5),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_row_whose_index_is_out_of_range_has_no_positive(variant: Variant, objective: str) -> None:
    """Its pairs are negatives, as with a boolean matrix of positives."""
    embeddings = [variant.floats(sixteenths((6, 3), seed)) for seed in (1, 2)]
    columns = [0, 1, -1, 2, 7, 0]
    matrix = variant.array([[column == j for j in range(6)] for column in columns])

    def loss(*embeddings: Any, pairing: Any) -> Any:
        return pnce.contrast(*embeddings, objective=OBJECTIVES[objective], pairing=pairing, similarity="dot")

    try:
        result = differentiate(partial(loss, pairing=pnce.pairings.index(variant.array(columns))), embeddings)
    except ValueError:
        return  # the variant reads values: see the test above
    wanted = differentiate(partial(loss, pairing=pnce.pairings.explicit(matrix)), embeddings)
    for ours, theirs in zip((result[0], *result[1]), (wanted[0], *wanted[1]), strict=True):
        assert oracles.error(variant.to_list(ours), variant.to_list(theirs)) <= 64 * variant.eps()


# --- scores of minus infinity -----------------------------------------------------------------------------------------


def assert_same(variant: Variant, function: Callable[..., Any], calls: Any, roundings: int) -> None:
    """Compare values and gradients of two calls, each given by arrays and options."""
    first, second = (differentiate(partial(function, **options), arrays) for arrays, options in calls)
    for ours, theirs in zip((first[0], *first[1]), (second[0], *second[1]), strict=True):
        pairs = zip(flatten(variant.to_list(ours)), flatten(variant.to_list(theirs)), strict=True)
        assert all(abs(x - y) <= roundings * variant.eps() for x, y in pairs)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("direction", ["a_to_b", "b_to_a"])
def test_relic_takes_minus_infinity_for_a_mask_of_both_directions(
    variant: Variant, direction: pnce.typing.RelicDirection, *, symmetric: bool
) -> None:
    scores = sixteenths((4, 4), 3)
    without = [[-INF if (i, j) == (0, 2) else x for j, x in enumerate(row)] for i, row in enumerate(scores)]
    mask = variant.array([[(i, j) not in {(0, 2), (2, 0)} for j in range(4)] for i in range(4)])
    options = {"alpha": 0.5, "direction": direction, "symmetric": symmetric}
    calls = ([variant.floats(without)], options), ([variant.floats(scores)], {**options, "mask": mask})
    assert_same(variant, pnce.from_scores.relic, calls, 64)


MASKED_BY_SCORES: dict[str, Callable[..., Any]] = {
    "info_nce": pnce.info_nce,
    "joint_info_nce": pnce.joint_info_nce,
    "joint_info_nce to keys": lambda x, y, **options: pnce.joint_info_nce(x, y, directions="query_to_key", **options),
    "sogclr": lambda x, y, **options: pnce.sogclr(x, y, 0 * x[:, 0], gamma=0.5, **options)[0],
    "sogclr each new": lambda x, y, **options: pnce.sogclr(x, y, 0 * x[:, 0] - INF, **options)[0],
}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("out", [[(0, 2), (2, 0)], [(1, 1)], [(1, 0), (1, 2), (1, 3)]], ids=["pair", "own", "row"])
@pytest.mark.parametrize("name", MASKED_BY_SCORES)
def test_scores_of_minus_infinity_are_a_mask(
    variant: Variant, name: str, out: list[tuple[int, int]], reduction: str
) -> None:
    """Also in losses that count negatives or rows themselves."""
    blocks = 2 if name.startswith("joint") else 1
    mask = variant.array([[(i, j) not in out for j in range(4)] for i in range(4)])
    bias = variant.floats([[-INF if (i, j) in out else 0.0 for j in range(4)] * blocks for i in range(4)])
    arrays = [variant.floats(sixteenths((4, 3), seed)) for seed in (3, 4)]
    options = {"temperature": 1.0, "weights": variant.floats([1.0, 2.0, 0.5, 4.0]), "reduction": reduction}
    by_mask = {**options, "similarity": lambda a, b: a @ b.T, "mask": mask}
    by_scores = {**options, "similarity": lambda a, b: a @ b.T + bias}
    assert_same(variant, MASKED_BY_SCORES[name], ((arrays, by_mask), (arrays, by_scores)), 256)
