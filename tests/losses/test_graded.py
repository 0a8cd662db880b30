"""Losses of graded pairs: sums over all pairs, formulas of sentence-transformers, no comparable pairs, memory."""

from __future__ import annotations

import math
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from mpmath import mp, mpf

import portable_nce as pnce
from portable_nce.testing import oracles
from portable_nce.testing.cases import sixteenths
from portable_nce.testing.suite.calls import scaled
from portable_nce.testing.variants import EPS, differentiate, flatten

if TYPE_CHECKING:
    from portable_nce.testing.variants import Nested, Variant

EACH_DTYPE = pytest.mark.parametrize(
    ("variant", "dtype"), [("numpy", None), ("numpy", "float16"), ("torch", "bfloat16")], indirect=["variant"]
)
LOSSES = ["cosent", "angle"]
GRADES = [2, 0, 1, 1, 0]


def pairs(variant: Variant, dtype: str | None = None, rows: int = 5, width: int = 4) -> list[Any]:
    """Make embeddings of pairs, and a scale."""
    x, y = (variant.floats(sixteenths((rows, width), seed), dtype) for seed in (1, 2))
    return [x, y, variant.floats(2.0, dtype)]


def measured(variant: Variant, name: str, arrays: list[Any], grades: Any, **options: Any) -> list[Nested]:
    """Give value and gradients of a loss by embeddings and scale, or by similarities and scale."""
    function: Any = pnce.from_scores.cosent if len(arrays) == 2 else getattr(pnce, name)
    value, gradients = differentiate(lambda *a: function(*a[:-1], grades, scale=a[-1], **options), arrays)
    return [variant.to_list(value), *map(variant.to_list, gradients)]


def filled(like: Nested, number: float) -> Nested:
    """Repeat a number in the structure of another."""
    return [number] * len(like) if isinstance(like, list) else number


def close(found: list[Nested], wanted: list[Nested], tolerance: float) -> bool:
    """Whether results are within a tolerance, relative to the largest entry."""
    with mp.workdps(50):
        return all(oracles.error(a, oracles.exact(b)) <= tolerance for a, b in zip(found, wanted, strict=True))


# --- against the sum over all pairs ---------------------------------------------------------------------------------


def expected(scores: list[float], grades: list[int], scale: float) -> tuple[Any, list[Any], Any]:
    """The sum over all pairs, and its derivatives by the scores and by the scale, spelled out."""
    with mp.workdps(50):
        exact = [mpf(score) for score in scores]
        slopes, total, by_scale = [mpf(0)] * len(scores), mpf(0), mpf(0)
        for i, a in enumerate(exact):
            for j, b in enumerate(exact):
                if grades[i] > grades[j]:
                    term = mp.exp(mpf(scale) * (b - a))
                    total, by_scale = total + term, by_scale + (b - a) * term
                    slopes[i], slopes[j] = slopes[i] - scale * term, slopes[j] + scale * term
        return mp.log1p(total), [slope / (1 + total) for slope in slopes], by_scale / (1 + total)


@EACH_DTYPE
@pytest.mark.parametrize("magnitude", [2.0**-10, 1.0, 2.0**13], ids=["small", "usual", "large"])
@pytest.mark.parametrize("rows", [2, 3, 8, 17])
@pytest.mark.parametrize("order", ["any", "right", "wrong"])
def test_similarities_of_every_size(
    variant: Variant, rows: int, magnitude: float, order: str, dtype: str | None
) -> None:
    """Up to 1e4 times the scale, where sums of exponentials overflow; with ties, in every order."""
    grades = [(5 * k) % 7 // 2 for k in range(rows)]
    scores = scaled(magnitude, sixteenths((rows,), rows))
    if order != "any":
        places = sorted(range(rows), key=lambda k: grades[k], reverse=order == "wrong")
        scores = [sorted(scores)[places.index(k)] for k in range(rows)]
    value, slopes, by_scale = expected(scores, grades, 0.5)
    arrays = [variant.floats(scores, dtype), variant.floats(0.5, dtype)]
    found = measured(variant, "", arrays, variant.array(grades))
    smallest = 2.0**-14 if dtype == "float16" else 2.0**-126
    # Rounding an exponent costs half an ulp of the exponential per unit of the exponent.
    tolerance = EPS[dtype] if dtype else variant.eps() * (8 + abs(float(mp.log(max(value, mpf(smallest))))))
    assert oracles.error(found[0], value, smallest) <= tolerance
    assert oracles.error(found[1], slopes, smallest) <= tolerance
    assert abs(found[2] - by_scale) <= tolerance * max(max(map(abs, scores)) * max(map(abs, slopes)) * rows, smallest)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", ["floats", "integers", "truth values", "other floats"])
def test_grades_of_every_kind(variant: Variant, name: str, kind: str) -> None:
    """Only their order matters."""
    arrays = pairs(variant)
    listed: Nested = {
        "floats": [0.5, -2.0, 0.25, 0.25, -2.0],
        "integers": [7, -3, 2, 2, -3],
        "truth values": [True, False, True, True, False],
        "other floats": [math.inf, -math.inf, 0.0, -0.0, -math.inf],
    }[kind]
    grades = variant.floats(listed) if "floats" in kind else variant.array(listed)
    wanted = GRADES if kind != "truth values" else [1, 0, 1, 1, 0]
    assert measured(variant, name, arrays, grades) == measured(variant, name, arrays, variant.array(wanted))


@pytest.mark.parametrize("name", LOSSES)
def test_the_order_of_the_pairs_is_of_no_account(variant: Variant, name: str) -> None:
    arrays, order = pairs(variant), [3, 0, 4, 2, 1]
    value, x, y, scale = measured(variant, name, arrays, variant.array(GRADES))
    turned = [variant.floats([variant.to_list(z)[k] for k in order]) for z in arrays[:2]]
    found = measured(variant, name, [*turned, arrays[2]], variant.array([GRADES[k] for k in order]))
    wanted = [value, *([z[k] for k in order] for z in (x, y)), scale]
    assert close(found, wanted, 32 * variant.eps())


@pytest.mark.parametrize("name", LOSSES)
def test_a_weight_is_how_often_a_pair_counts(variant: Variant, name: str) -> None:
    arrays, times = pairs(variant), [2, 1, 0, 3, 1]
    repeated = [k for k, count in enumerate(times) for _ in range(count)]
    again = [variant.floats([variant.to_list(z)[k] for k in repeated]) for z in arrays[:2]]
    wanted = measured(variant, name, [*again, arrays[2]], variant.array([GRADES[k] for k in repeated]))
    found = measured(variant, name, arrays, variant.array(GRADES), weights=variant.floats([float(t) for t in times]))
    sums = [
        [[sum(row[d] for row, k in zip(z, repeated, strict=True) if k == own) for d in range(4)] for own in range(5)]
        for z in wanted[1:3]
    ]
    assert close(found, [wanted[0], *sums, wanted[3]], 64 * variant.eps())


def test_the_angle_of_an_odd_width_is_that_with_one_zero_more(variant: Variant) -> None:
    x, y, scale = pairs(variant, width=3)
    filled = [variant.floats([[*row, 0.0] for row in variant.to_list(z)]) for z in (x, y)]
    found, wanted = (measured(variant, "angle", [*z, scale], variant.array(GRADES)) for z in ((x, y), filled))
    assert found == [wanted[0], *([row[:3] for row in z] for z in wanted[1:3]), wanted[3]]


@pytest.mark.parametrize("name", LOSSES)
def test_the_length_of_embeddings_is_of_no_account(variant: Variant, name: str) -> None:
    """Scaling by a power of two rounds alike."""
    x, y, scale = pairs(variant)
    wanted, _, _, by_scale = measured(variant, name, [x, y, scale], variant.array(GRADES))
    for factor in (2.0**60, 2.0**-60):
        found = measured(variant, name, [x * factor, y / factor, scale], variant.array(GRADES))
        assert close([found[0], found[3]], [wanted, by_scale], 8 * variant.eps())


# --- no comparisons, and masked pairs -------------------------------------------------------------------------------


@EACH_DTYPE
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("what", ["one pair", "one grade", "NaN", "mask", "weights"])
def test_graded_pairs_without_comparisons_have_loss_0(
    variant: Variant, name: str, what: str, dtype: str | None
) -> None:
    rows = 1 if what == "one pair" else 5
    options = {
        "mask": {"mask": variant.array([False] * 5)},
        "weights": {"weights": variant.floats([0.0] * 5, dtype)},
    }.get(what, {})
    grades = {
        "one pair": variant.array([3]),
        "one grade": variant.array([3] * 5),
        "NaN": variant.floats([math.nan] * 5),
    }.get(what, variant.array(GRADES))
    arrays = pairs(variant, dtype, rows)
    value = getattr(pnce, name)(*arrays[:2], grades, scale=arrays[2], **options)
    assert (tuple(value.shape), value.dtype) == ((), arrays[0].dtype)
    for given in (arrays, [arrays[0][:, 0], arrays[2]]):
        assert {*flatten(measured(variant, name, given, grades, **options))} == {0}


@pytest.mark.parametrize("dirt", [math.inf, -math.inf, math.nan], ids=["inf", "-inf", "nan"])
@pytest.mark.parametrize("name", [*LOSSES, ""])
@pytest.mark.parametrize("how", ["mask", "weights", "grades"])
def test_pairs_that_take_no_part_may_hold_anything(variant: Variant, name: str, how: str, dirt: float) -> None:
    """As if absent: value and gradients of the others are equal to the last digit."""
    arrays = pairs(variant)
    arrays = arrays if name else [arrays[0][:, 0], arrays[2]]
    options = {
        "mask": {"mask": variant.array([True, False, True, True, True])},
        "weights": {"weights": variant.floats([1.0, 0.0, 1.0, 1.0, 1.0])},
    }.get(how, {})
    grades = variant.floats([2.0, math.nan, 1.0, 1.0, 0.0]) if how == "grades" else variant.array(GRADES)
    dirty = [
        variant.floats([(filled(row, dirt) if k == 1 else row) for k, row in enumerate(variant.to_list(z))])
        for z in arrays[:-1]
    ]
    found = measured(variant, name, [*dirty, arrays[-1]], grades, **options)
    assert found == measured(variant, name, arrays, grades, **options)
    kept = [variant.floats([row for k, row in enumerate(variant.to_list(z)) if k != 1]) for z in arrays[:-1]]
    wanted = measured(variant, name, [*kept, arrays[-1]], variant.array([2, 1, 1, 0]))
    slopes = ([z[0], filled(z[0], 0.0), *z[1:]] for z in wanted[1:-1])
    assert close(found, [wanted[0], *slopes, wanted[-1]], 8 * variant.eps())


@EACH_DTYPE
def test_a_similarity_of_minus_infinity_takes_no_part(variant: Variant, dtype: str | None) -> None:
    scores = [0.5, -math.inf, 0.25, 1.0, -math.inf]
    found = measured(variant, "", [variant.floats(scores, dtype), variant.floats(2.0, dtype)], variant.array(GRADES))
    kept = [variant.floats([0.5, 0.25, 1.0], dtype), variant.floats(2.0, dtype)]
    value, slopes, by_scale = measured(variant, "", kept, variant.array([2, 1, 1]))
    assert found == [value, [slopes[0], 0.0, slopes[1], slopes[2], 0.0], by_scale]


def test_similarities_of_infinity(variant: Variant) -> None:
    """In the right order, inf adds nothing; in the wrong order, the loss is infinite; two are equal."""
    grades = variant.array([2, 1, 0])
    for scores, wanted in (
        ([math.inf, 0.5, 0.25], math.log1p(math.exp(-0.5))),
        ([0.25, math.inf, 0.5], math.inf),
        ([math.inf, math.inf, 0.5], math.log(2.0)),
    ):
        value, slopes, _ = measured(variant, "", [variant.floats(scores), variant.floats(2.0)], grades)
        assert value == wanted or abs(float(value) - wanted) <= 8 * variant.eps()
        assert not any(math.isnan(slope) for slope in map(float, slopes))


def test_a_similarity_that_is_no_number_is_seen(variant: Variant) -> None:
    scores = variant.floats([0.5, math.nan, 0.25])
    for listed in ([2, 1, 0], [0, 1, 2], [0, 0, 1], [1, 2, 0]):
        assert math.isnan(float(pnce.from_scores.cosent(scores, variant.array(listed))))
    assert float(pnce.from_scores.cosent(scores, variant.floats([1.0, math.nan, 0.0]))) >= 0.0


@EACH_DTYPE
@pytest.mark.parametrize("fill", ["zero", "one zero row", "identical rows", "opposite rows"])
@pytest.mark.parametrize("name", LOSSES)
def test_zero_vectors_and_identical_rows(variant: Variant, name: str, fill: str, dtype: str | None) -> None:
    rows = sixteenths((5, 4), 3)
    first: Nested = {"zero": [[0.0] * 4] * 5, "one zero row": [[0.0] * 4, *rows[1:]]}.get(fill, rows)
    second = scaled(-1.0, rows) if fill == "opposite rows" else first
    arrays = [variant.floats(first, dtype), variant.floats(second, dtype), variant.floats(20.0, dtype)]
    found = measured(variant, name, arrays, variant.array(GRADES))
    assert all(math.isfinite(float(number)) for number in flatten(found))
    if fill == "zero":  # eight pairs with similarity 0
        assert oracles.error(found[0], mp.log(9)) <= variant.eps(dtype)


# --- sentence-transformers, and memory ------------------------------------------------------------------------------


def cosent(scores: torch.Tensor, grades: torch.Tensor, scale: float) -> torch.Tensor:
    """CoSENTLoss's formula over all pairs, with a large negative number for pairs without a comparison."""
    scores = scores * scale
    differences = scores[:, None] - scores[None, :]
    differences = differences - (1 - (grades[:, None] < grades[None, :]).to(scores.dtype)) * 1e12
    return torch.logsumexp(torch.cat([torch.zeros(1, dtype=scores.dtype), differences.reshape(-1)]), dim=0)


def angles(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Formula of pairwise_angle_sim: a quotient of complex numbers, without lengths."""
    (a, b), (c, d) = (torch.chunk(z, 2, dim=1) for z in (x, y))
    z = (c**2 + d**2).sum(dim=1, keepdim=True)
    ratio = ((a**2 + b**2).sum(dim=1, keepdim=True) / z) ** 0.5
    real, imaginary = (a * c + b * d) / z / ratio, (b * c - a * d) / z / ratio
    return torch.cat([real, imaginary], dim=1).sum(dim=1).abs()


@pytest.mark.parametrize("rows", [2, 5, 32, 100])
@pytest.mark.parametrize("kind", ["cosent", "angle"])
def test_the_formula_of_sentence_transformers(kind: str, rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    x, y = (torch.randn((rows, 6), generator=draw, dtype=torch.float64) for _ in range(2))
    grades = torch.randint(0, 4, (rows,), generator=draw)
    similarity: Any = torch.cosine_similarity if kind == "cosent" else angles
    results = []
    for loss in (
        lambda x, y: cosent(similarity(x, y), grades, 20.0),
        lambda x, y: getattr(pnce, kind)(x, y, grades, scale=20.0),
    ):
        leaves = [z.clone().requires_grad_() for z in (x, y)]
        value = loss(*leaves)
        value.backward()
        results.append([value.detach(), *(z.grad for z in leaves)])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_a_large_batch_takes_no_memory_of_all_pairs() -> None:
    """Value and gradient of 20000 rows, with 4e8 pairs; the sum is correct to the last digits."""
    rows = 20_000
    numbers = np.random.default_rng(0)
    scores, grades = numbers.normal(size=rows), numbers.integers(0, 5, size=rows)
    tracemalloc.start()
    value, slopes = pnce.value_and_grad(lambda s: pnce.from_scores.cosent(s, grades, scale=2.0))(scores)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * rows * 1000
    total, wanted = 0.0, np.zeros(rows)
    for low in range(5):
        for high in range(low + 1, 5):
            i, j = grades == high, grades == low
            falling, rising = np.exp(-2.0 * scores[i]), np.exp(2.0 * scores[j])
            total += falling.sum() * rising.sum()
            wanted[i] -= 2.0 * falling * rising.sum()
            wanted[j] += 2.0 * rising * falling.sum()
    assert float(value) == pytest.approx(np.log1p(total), rel=1e-14)
    np.testing.assert_allclose(slopes, wanted / (1.0 + total), rtol=1e-11, atol=1e-14 * np.abs(wanted).max() / total)
