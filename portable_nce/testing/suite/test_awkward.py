"""Inputs at the edge: every one has a finite value and finite gradients, and where mathematics says which, those.

The published traps come first: a mask that multiplies leaves exp(0) in the sum, the log-sum-exp of nothing has no
gradient, neither has a norm at zero, infinity times zero is no number, and so on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp, mpf

from .. import oracles
from .._package import pnce
from ..variants import EPS, differentiate, flatten, generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..variants import Nested, Variant

INF, NAN = math.inf, math.nan
DTYPES = [None, "float16"]
"""The widest dtype of the variant, and the one with the narrowest range."""

SCORE_LOSSES: dict[str, Callable[..., Any]] = {
    "info_nce": pnce.from_scores.info_nce,
    "info_nce pooled": lambda s, **options: pnce.from_scores.info_nce(s, multi_positive="pooled", **options),
    "flat_nce": pnce.from_scores.flat_nce,
    "flat_nce detach": lambda s, **options: pnce.from_scores.flat_nce(s, form="detach", **options),
    "flat_nce include_positive": lambda s, **options: pnce.from_scores.flat_nce(s, include_positive=True, **options),
    "dcl": pnce.from_scores.dcl,
    "dcl pooled": lambda s, **options: pnce.from_scores.dcl(s, multi_positive="pooled", **options),
}


def oracle_of(loss: str) -> tuple[str, dict[str, Any]]:
    """Name the oracle of a loss of scores, and the options that make it this one."""
    special: dict[str, tuple[str, Any]] = {
        "pooled": ("multi_positive", "pooled"),
        "detach": ("form", "detach"),
        "include_positive": ("include_positive", True),
    }
    name, *words = loss.split()
    return f"from_scores.{name}", dict(special[word] for word in words)


SIMILARITIES = ["dot", "cosine", "neg_sq_euclidean", "neg_euclidean"]
EMBEDDING_LOSSES: dict[str, Callable[..., Any]] = {
    "info_nce": lambda a, b, **options: pnce.info_nce(a, b, temperature=0.5, **options),
    "info_nce symmetric": lambda a, b, **options: pnce.info_nce(a, b, temperature=0.5, symmetric=True, **options),
    "info_nce shared": lambda a, b, **options: pnce.info_nce(a, b, b, temperature=0.5, **options),
    "flat_nce": lambda a, b, **options: pnce.flat_nce(a, b, temperature=0.5, **options),
    "flat_nce detach": lambda a, b, **options: pnce.flat_nce(a, b, temperature=0.5, form="detach", **options),
    "nt_xent": lambda a, b, **options: pnce.nt_xent(a, b, temperature=0.5, **options),
    "dcl": lambda a, b, **options: pnce.dcl(a, b, temperature=0.5, **options),
    "clip": lambda a, b, **options: pnce.clip(a, b, logit_scale=2.0, **options),
}
BLOCKS = [None, 2]
EMBEDDING_CALLS = [
    *((loss, name, None, dtype) for loss in ("info_nce", "nt_xent") for name in SIMILARITIES for dtype in DTYPES),
    *((loss, name, 2, None) for loss in ("info_nce", "nt_xent") for name in SIMILARITIES),
    *(
        pytest.param(loss, name, block, None, marks=pytest.mark.exhaustive)
        for loss in EMBEDDING_LOSSES
        for name in SIMILARITIES
        for block in BLOCKS
        if loss not in {"info_nce", "nt_xent"}
    ),
]


def vectors(rows: int, columns: int, seed: int = 5) -> list[list[float]]:
    """Draw numbers that every dtype holds."""
    numbers = generator(seed)
    return [[numbers.randint(-24, 24) / 16 for _ in range(columns)] for _ in range(rows)]


def assert_finite(variant: Variant, *arrays: Any) -> None:
    """Every number is finite."""
    for array in arrays:
        listed = flatten(variant.to_list(array))
        assert all(mp.isfinite(number) for number in listed), listed


def assert_loss(
    variant: Variant, loss: str, scores: Nested, dtype: str | None, *, clean: Nested = None, **options: Nested
) -> None:
    """Compare a loss of scores with its oracle at clean scores, where the gradient of what was cleaned is 0."""
    clean = scores if clean is None else clean
    arrays = {key: variant.array(nested, dtype) for key, nested in options.items()}
    value, (gradient,) = differentiate(lambda s: SCORE_LOSSES[loss](s, **arrays), [variant.floats(scores, dtype)])
    assert_finite(variant, value, gradient)
    name, special = oracle_of(loss)
    wanted, slopes = oracles.value_and_gradients(name, {"scores": clean}, {**options, **special})
    tolerance = 8 * variant.eps(dtype)
    assert oracles.error(variant.to_list(value), wanted) <= tolerance
    assert oracles.error(variant.to_list(gradient), slopes["scores"]) <= max(tolerance, 1e-48)


# --- masks and empty sets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", list(SCORE_LOSSES))
def test_masked_entries_leave_nothing(variant: Variant, loss: str, dtype: str | None) -> None:
    """Scores far below zero: an exp(0) left behind by a mask that multiplies would outweigh them all."""
    scores = [[s - 24.0 for s in row] for row in vectors(3, 3)]
    mask = [[True, False, True], [True, True, False], [True, True, True]]
    assert_loss(variant, loss, scores, dtype, mask=mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dirt", [INF, -INF, NAN], ids=["inf", "-inf", "nan"])
@pytest.mark.parametrize("loss", list(SCORE_LOSSES))
def test_masked_entries_may_hold_anything(variant: Variant, loss: str, dirt: float, dtype: str | None) -> None:
    """Infinities and NaN that take no part reach neither the value nor the gradient."""
    clean = vectors(3, 3)
    mask = [[(i, j) not in {(0, 1), (1, 2), (2, 0)} for j in range(3)] for i in range(3)]
    scores = [[s if m else dirt for s, m in zip(row, bits, strict=True)] for row, bits in zip(clean, mask, strict=True)]
    assert_loss(variant, loss, scores, dtype, clean=clean, mask=mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", list(SCORE_LOSSES))
def test_minus_infinity_as_mask(variant: Variant, loss: str, dtype: str | None) -> None:
    """A score of minus infinity takes no part, and has gradient 0."""
    clean = vectors(3, 3)
    mask = [[(i, j) not in {(0, 1), (1, 2), (2, 0)} for j in range(3)] for i in range(3)]
    scores = [[s if m else -INF for s, m in zip(row, bits, strict=True)] for row, bits in zip(clean, mask, strict=True)]
    value, (gradient,) = differentiate(SCORE_LOSSES[loss], [variant.floats(scores, dtype)])
    masked = variant.array(mask)
    wanted, (slope,) = differentiate(lambda s: SCORE_LOSSES[loss](s, mask=masked), [variant.floats(clean, dtype)])
    assert variant.to_list(value) == variant.to_list(wanted)
    assert variant.to_list(gradient) == variant.to_list(slope)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", list(SCORE_LOSSES))
@pytest.mark.parametrize("kept", ["nothing", "negatives", "positives"])
def test_no_row_counts(variant: Variant, kept: str, loss: str, dtype: str | None) -> None:
    """All masked, no positive anywhere, or no negative anywhere: loss 0, gradient 0."""
    mask = [[{"nothing": False, "negatives": i != j, "positives": i == j}[kept] for j in range(3)] for i in range(3)]
    masked = variant.array(mask)
    value, (gradient,) = differentiate(
        lambda s: SCORE_LOSSES[loss](s, mask=masked), [variant.floats(vectors(3, 3), dtype)]
    )
    assert variant.to_list(value) == 0.0
    assert variant.to_list(gradient) == [[0.0] * 3] * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", list(SCORE_LOSSES))
def test_rows_without_positives(variant: Variant, loss: str, reduction: str, dtype: str | None) -> None:
    """They contribute neither to the sum nor to the count."""
    nested = vectors(3, 3)
    mask = [[i != j or i != 1 for j in range(3)] for i in range(3)]
    got = SCORE_LOSSES[loss](variant.floats(nested, dtype), mask=variant.array(mask), reduction=reduction)
    name, special = oracle_of(loss)
    wanted = oracles.evaluate(name, {"scores": nested}, {"mask": mask, "reduction": reduction, **special})
    assert oracles.error(variant.to_list(got), wanted) <= 8 * variant.eps(dtype)
    if reduction == "none":
        assert variant.to_list(got)[1] == 0.0
    else:
        weights = [1.0, 0.5, 2.0]
        assert_loss(variant, loss, nested, dtype, mask=mask, weights=weights)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", list(SCORE_LOSSES))
def test_one_column(variant: Variant, loss: str, dtype: str | None) -> None:
    """One column, all positives: no negatives, so nothing to learn."""
    scores = variant.floats([[1.0], [-2.0], [3.0]], dtype)
    positives = variant.array([0, 0, 0])
    value, (gradient,) = differentiate(lambda s: SCORE_LOSSES[loss](s, positives=positives), [scores])
    assert variant.to_list(value) == 0.0
    assert variant.to_list(gradient) == [[0.0]] * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("multi_positive", ["each", "pooled"])
def test_every_column_positive(variant: Variant, multi_positive: pnce.typing.MultiPositive, dtype: str | None) -> None:
    """Positives only: the pooled loss is 0, the mean over each is the entropy-like spread; all is finite."""
    nested = vectors(3, 3)
    positives = variant.array([[True] * 3] * 3)
    value, (gradient,) = differentiate(
        lambda s: pnce.from_scores.info_nce(s, positives=positives, multi_positive=multi_positive),
        [variant.floats(nested, dtype)],
    )
    wanted, slopes = oracles.value_and_gradients(
        "from_scores.info_nce", {"scores": nested}, {"positives": [[True] * 3] * 3, "multi_positive": multi_positive}
    )
    assert_finite(variant, value, gradient)
    if multi_positive == "pooled":
        assert variant.to_list(value) == 0.0
        assert variant.to_list(gradient) == [[0.0] * 3] * 3
    else:
        assert oracles.error(variant.to_list(value), wanted) <= 8 * variant.eps(dtype)
        assert oracles.error(variant.to_list(gradient), slopes["scores"]) <= max(8 * variant.eps(dtype), 1e-48)


@pytest.mark.parametrize("kept", ["nothing", "negatives", "positives"])
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize(
    "loss",
    [
        *("info_nce symmetric", "dcl"),
        *(pytest.param(loss, marks=pytest.mark.exhaustive) for loss in ("info_nce", "nt_xent", "flat_nce", "clip")),
    ],
)
def test_no_row_counts_among_embeddings(variant: Variant, loss: str, kept: str, block_size: int | None) -> None:
    """The same for embeddings, for their temperature too, dense and streamed."""
    two_views = loss in {"nt_xent", "dcl", "flat_nce"}
    n, size = 3, 6 if two_views else 3

    def takes_part(i: int, j: int) -> bool:
        positive = (i + n) % size == j if two_views else i == j
        return {"nothing": False, "negatives": not positive, "positives": positive}[kept]

    mask = variant.array([[takes_part(i, j) for j in range(size)] for i in range(size)])
    a, b = variant.floats(vectors(n, 3, 1)), variant.floats(vectors(n, 3, 2))
    value, gradients = differentiate(
        lambda x, y: EMBEDDING_LOSSES[loss](x, y, mask=mask, block_size=block_size), [a, b]
    )
    assert variant.to_list(value) == 0.0
    for gradient in gradients:
        assert variant.to_list(gradient) == [[0.0] * 3] * n


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", BLOCKS)
def test_learned_temperature_under_a_mask(variant: Variant, block_size: int | None, dtype: str | None) -> None:
    """Minus infinity divided by a learned temperature would make its gradient NaN."""
    nested_a, nested_b = vectors(3, 3, 1), vectors(3, 3, 2)
    mask = [[i == j or i % 2 == 0 for j in range(3)] for i in range(3)]
    masked = variant.array(mask)
    arrays = [variant.floats(nested_a, dtype), variant.floats(nested_b, dtype), variant.floats(0.5, dtype)]
    value, gradients = differentiate(
        lambda a, b, t: pnce.info_nce(a, b, temperature=t, mask=masked, block_size=block_size), arrays
    )
    assert_finite(variant, value, *gradients)
    wanted, slopes = oracles.value_and_gradients(
        "info_nce", {"query": nested_a, "positive_key": nested_b, "temperature": 0.5}, {"mask": mask}
    )
    tolerance = max(16 * variant.eps(dtype), 1e-45)
    assert oracles.error(variant.to_list(value), wanted) <= tolerance
    for gradient, slope in zip(gradients, slopes.values(), strict=True):
        assert oracles.error(variant.to_list(gradient), slope) <= tolerance


@pytest.mark.parametrize("dirt", [INF, NAN], ids=["inf", "nan"])
@pytest.mark.parametrize("block_size", BLOCKS)
def test_masked_keys_may_hold_anything(variant: Variant, block_size: int | None, dirt: float) -> None:
    """A key that no query looks at does not reach the value."""
    query, key = vectors(3, 3, 1), vectors(3, 3, 2)
    mask = variant.array([[j != 2 for j in range(3)] for _ in range(3)])
    values = [
        pnce.info_nce(
            variant.floats(query),
            variant.floats([*key[:2], last]),
            similarity="neg_sq_euclidean",
            temperature=0.5,
            mask=mask,
            block_size=block_size,
        )
        for last in ([dirt, 1.0, 0.5], key[2])
    ]
    assert variant.to_list(values[0]) == variant.to_list(values[1])


# --- awkward vectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "similarity", "block_size", "dtype"), EMBEDDING_CALLS)
def test_zero_vectors(variant: Variant, loss: str, similarity: str, block_size: int | None, dtype: str | None) -> None:
    """A vector of length 0 has no direction: cosine 0, gradient finite; likewise where every vector is 0."""
    for zero in ({1}, {0, 1, 2}):
        a = [[0.0] * 3 if i in zero else row for i, row in enumerate(vectors(3, 3, 1))]
        b = [[0.0] * 3 if i in zero else row for i, row in enumerate(vectors(3, 3, 2))]
        value, gradients = differentiate(
            lambda x, y: EMBEDDING_LOSSES[loss](x, y, similarity=similarity, block_size=block_size),
            [variant.floats(a, dtype), variant.floats(b, dtype)],
        )
        assert_finite(variant, value, *gradients)
        if loss == "info_nce":
            options = {"similarity": similarity, "temperature": 0.5}
            wanted = oracles.evaluate("info_nce", {"query": a, "positive_key": b}, options)
            assert oracles.error(variant.to_list(value), wanted) <= 8 * variant.eps(dtype)
        if similarity == "cosine":
            assert all(variant.to_list(gradient)[i] == [0.0] * 3 for gradient in gradients for i in zero)


@pytest.mark.parametrize(("loss", "similarity", "block_size", "dtype"), EMBEDDING_CALLS)
def test_identical_rows(
    variant: Variant, loss: str, similarity: str, block_size: int | None, dtype: str | None
) -> None:
    """Distance 0, where the distance has a kink: finite gradients. Log 3 where all scores are the same."""
    rows = [[0.5, -1.25, 0.75]] * 3
    value, gradients = differentiate(
        lambda x, y: EMBEDDING_LOSSES[loss](x, y, similarity=similarity, block_size=block_size),
        [variant.floats(rows, dtype), variant.floats(rows, dtype)],
    )
    assert_finite(variant, value, *gradients)
    if loss in {"info_nce", "info_nce symmetric", "clip"}:
        assert oracles.error(variant.to_list(value), mp.log(3)) <= 4 * variant.eps(dtype)
    if similarity == "neg_euclidean":
        assert all(number == 0 for gradient in gradients for number in flatten(variant.to_list(gradient)))


@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("similarity", ["neg_euclidean", "neg_sq_euclidean"])
def test_positives_at_distance_zero(
    variant: Variant, similarity: pnce.typing.SimilarityName, block_size: int | None
) -> None:
    """Every query is its key: value exact, gradients finite."""
    nested = vectors(3, 3)
    x = variant.floats(nested)
    value, gradients = differentiate(
        lambda a, b: pnce.info_nce(a, b, similarity=similarity, temperature=0.5, block_size=block_size), [x, x]
    )
    assert_finite(variant, value, *gradients)
    options = {"similarity": similarity, "temperature": 0.5}
    wanted = oracles.evaluate("info_nce", {"query": nested, "positive_key": nested}, options)
    assert oracles.error(variant.to_list(value), wanted) <= 16 * variant.eps()


@pytest.mark.parametrize("dtype", ["float32"])
@pytest.mark.parametrize("magnitude", [1e-30, 1e30])
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("loss", ["info_nce", "nt_xent", "clip"])
def test_extreme_lengths(variant: Variant, loss: str, block_size: int | None, magnitude: float, dtype: str) -> None:
    """The cosine does not care for the length of a vector, and its gradient is divided by it."""
    power = 2.0 ** round(math.log2(magnitude))  # scaling by a power of two rounds nothing
    a, b = vectors(3, 3, 1), vectors(3, 3, 2)

    def run(scale: float) -> tuple[Nested, list[list[Any]]]:
        arrays = [variant.floats([[scale * x for x in row] for row in nested], dtype) for nested in (a, b)]
        value, gradients = differentiate(lambda x, y: EMBEDDING_LOSSES[loss](x, y, block_size=block_size), arrays)
        return variant.to_list(value), [variant.to_list(gradient) for gradient in gradients]

    value, gradients = run(power)
    wanted, slopes = run(1.0)
    tolerance = 8 * variant.eps(dtype)
    assert oracles.error(value, oracles.exact(wanted)) <= tolerance
    for gradient, slope in zip(gradients, slopes, strict=True):
        rescaled = [[mpf(x) * power for x in row] for row in gradient]
        assert oracles.error(rescaled, oracles.exact(slope)) <= tolerance


@pytest.mark.parametrize("dtype", ["float32"])
@pytest.mark.parametrize("similarity", ["neg_euclidean", "neg_sq_euclidean"])
@pytest.mark.parametrize("block_size", BLOCKS)
def test_tiny_distances(
    variant: Variant, block_size: int | None, similarity: pnce.typing.SimilarityName, dtype: str
) -> None:
    """Distances whose squares underflow in float32: finite, and the loss that of equal scores."""
    a, b = ([[x * 2.0**-100 for x in row] for row in vectors(3, 3, seed)] for seed in (1, 2))
    value, gradients = differentiate(
        lambda x, y: pnce.info_nce(x, y, similarity=similarity, temperature=0.5, block_size=block_size),
        [variant.floats(a, dtype), variant.floats(b, dtype)],
    )
    assert_finite(variant, value, *gradients)
    assert oracles.error(float(value), mp.log(3)) <= 4 * EPS[dtype]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tiny_vectors_in_sixteen_bits(variant: Variant, dtype: str) -> None:
    """An epsilon of 1e-12 would be 0 here, and one of 1e-3 would drown these."""
    a, b = ([[x * 2.0**-12 for x in row] for row in vectors(3, 3, seed)] for seed in (1, 2))
    value, gradients = differentiate(
        lambda x, y: pnce.info_nce(x, y, temperature=0.5), [variant.floats(a, dtype), variant.floats(b, dtype)]
    )
    wanted, slopes = oracles.value_and_gradients("info_nce", {"query": a, "positive_key": b}, {"temperature": 0.5})
    assert oracles.error(variant.to_list(value), wanted) <= EPS[dtype]
    for gradient, slope in zip(gradients, slopes.values(), strict=True):
        assert oracles.error(variant.to_list(gradient), slope) <= EPS[dtype]


# --- extreme scores -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("loss", list(SCORE_LOSSES))
def test_extreme_scores(variant: Variant, loss: str, dtype: str | None) -> None:
    """Plus and minus 1e4: rows that are won, lost, and tied by far more than the exponential can hold."""
    high, low = 1e4, -1e4
    scores = [[high, low, 0.0], [high, low, 0.0], [high, high, high]]
    assert_loss(variant, loss, scores, dtype, positives=[0, 1, 2])


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_extreme_bounds(variant: Variant, dtype: str | None) -> None:
    """The bound of lost and won rows, and its gradient."""
    nested = [[1e4, -1e4, 0.0], [1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]]
    value, (gradient,) = differentiate(pnce.bounds.info_nce, [variant.floats(nested, dtype)])
    assert_finite(variant, value, gradient)
    wanted = oracles.evaluate("bounds.info_nce", {"scores": nested}, {})
    assert oracles.error(variant.to_list(value), wanted) <= 8 * variant.eps(dtype)
    slopes = [[-entry for entry in row] for row in oracles.info_nce_score_gradient(nested)]
    assert oracles.error(variant.to_list(gradient), slopes) <= 8 * variant.eps(dtype)
    assert_finite(variant, pnce.bounds.dual_critic(variant.floats(nested, dtype)))
    assert_finite(variant, pnce.diagnostics.effective_sample_size(variant.floats(nested, dtype)))


@pytest.mark.parametrize("dtype", ["float16"])
def test_many_columns_in_sixteen_bits(variant: Variant, dtype: str) -> None:
    """Seventy thousand ones overflow a sum in float16; their logarithm is small."""
    count = 70_000
    scores = variant.floats([[0.0] * count], dtype)
    value, (gradient,) = differentiate(pnce.from_scores.info_nce, [scores])
    assert oracles.error(variant.to_list(value), mp.log(count)) <= EPS[dtype]
    assert oracles.error(variant.to_list(gradient)[0][0], mpf(1) / count - 1) <= EPS[dtype]


@pytest.mark.parametrize("dtype", ["float16"])
def test_many_rows_in_sixteen_bits(variant: Variant, dtype: str) -> None:
    """The mean over seventy thousand rows, whose count overflows in float16."""
    count = 70_000
    scores = variant.floats([[0.0, 0.0]] * count, dtype)
    positives = variant.array([0] * count)
    weights = variant.floats([1.0] * count, dtype)
    for options in ({}, {"weights": weights}):
        value = pnce.from_scores.info_nce(scores, positives=positives, **options)
        assert oracles.error(variant.to_list(value), mp.log(2)) <= EPS[dtype]


def test_logit_scale_at_its_largest(variant: Variant) -> None:
    """Beyond the largest scale the loss stays, and of the gradient what leads back passes; below, all of it."""
    a, b = variant.floats(vectors(3, 3, 1)), variant.floats(vectors(3, 3, 2))

    def at(text: Any, scale: float, largest: float | None) -> tuple[float, float]:
        value, slope = pnce.value_and_grad(lambda s: pnce.clip(a, text, logit_scale=s, max_logit_scale=largest))(
            variant.floats(scale)
        )
        return float(value), float(slope)

    # Of unrelated pairs a smaller scale has the smaller loss, of equal ones a larger.
    for text, passes in ((b, True), (a, False)):
        value, slope = at(text, 8.0, 4.0)
        plain, plain_slope = at(text, 4.0, None)
        assert (plain_slope > 0.0) == passes
        assert value == pytest.approx(plain, rel=4 * variant.eps())
        assert slope == (pytest.approx(plain_slope, rel=8 * variant.eps()) if passes else 0.0)
        assert at(text, 3.0, 4.0)[1] == pytest.approx(at(text, 3.0, None)[1], rel=8 * variant.eps())


def test_swapping_the_views_changes_nothing(variant: Variant) -> None:
    """An anchor's own score is left out in both directions, however large it is."""
    a, b = variant.floats([[30.0, 1.0], [0.5, -20.0]]), variant.floats([[0.25, 1.0], [0.5, 0.75]])
    for loss in (pnce.nt_xent, pnce.dcl, pnce.flat_nce):
        forward, turned = (loss(*views, similarity="dot", temperature=8.0) for views in ((a, b), (b, a)))
        wanted = oracles.exact(variant.to_list(turned))
        assert oracles.error(variant.to_list(forward), wanted) <= 8 * variant.eps(variant.dtypes[0])


def test_rows_are_not_columns(variant: Variant) -> None:
    """A critic that returned the transposed orientation would give the loss of the columns."""
    nested = vectors(3, 3)
    forward = oracles.evaluate("from_scores.info_nce", {"scores": nested}, {})
    turned = oracles.evaluate("from_scores.info_nce", {"scores": oracles.transpose(nested)}, {})
    assert abs(forward - turned) > 0.01
    query, key = vectors(3, 3, 1), vectors(3, 3, 2)
    wanted = oracles.evaluate("info_nce", {"query": query, "positive_key": key}, {"temperature": 0.5})
    got = pnce.info_nce(variant.floats(query), variant.floats(key), temperature=0.5)
    assert oracles.error(variant.to_list(got), wanted) <= 8 * variant.eps(variant.dtypes[0])


# --- every loss: what takes no part, what overflows, what is out of range -------------------------------------------

CLASSES = [0, 0, 1, 1, 2, 2]
MININGS: tuple[Any, ...] = ("semi_hard", ("semi_hard", "easy"), ("hard", "all"))
FURTHER = vectors(4, 3, 3)


def _square(n: int, idle: set[int]) -> Nested:
    return [[not {i, j} & idle for j in range(n)] for i in range(n)]


def _of_rows(n: int, columns: int) -> Nested:
    return [[i != 2 for _ in range(columns)] for i in range(n)]


MASKS: dict[str, Nested] = {
    "pairs": _square(6, {2}),
    "views": _square(12, {2, 8}),
    "rows": [i != 2 for i in range(6)],
    "further": _of_rows(6, 4),
    "own": _square(6, {2}),
    "queue": _of_rows(6, 5),
    "prototypes": _of_rows(6, 3),
    "pairs and slots": [[*row, *[i != 2] * 5] for i, row in enumerate(_square(6, {2}))],
    "views and keys": [[*row, *[i not in {2, 8}] * 4] for i, row in enumerate(_square(12, {2, 8}))],
}
"""A mask for each shape, which leaves row 2 of the six no pair."""


def _queue_of(variant: Variant, x: Any) -> Any:
    """Make a queue whose first slot was never written, and holds what is no number."""
    rows = variant.floats([[NAN, INF, NAN], *FURTHER], str(x.dtype).rpartition(".")[2])
    return pnce.Queue(rows, variant.array([k > 0 for k in range(5)]))


def _like(variant: Variant, x: Any, nested: Nested) -> Any:
    return variant.floats(nested, str(x.dtype).rpartition(".")[2])


MASKED_LOSSES: dict[str, tuple[str, Callable[..., Any]]] = {
    "info_nce": ("pairs", lambda _, x, y, **o: pnce.info_nce(x, y, **o)),
    "info_nce symmetric": ("pairs", lambda _, x, y, **o: pnce.info_nce(x, y, symmetric=True, **o)),
    "info_nce index": ("pairs", lambda v, x, y, **o: pnce.info_nce(x, y, positives=v.array([1, 0, 3, 2, 5, 4]), **o)),
    "info_nce matrix": (
        "pairs",
        lambda v, x, y, **o: pnce.info_nce(
            x, y, positives=v.array([[a == b for a in CLASSES] for b in CLASSES]), multi_positive="separate", **o
        ),
    ),
    "info_nce shared": ("further", lambda v, x, y, **o: pnce.info_nce(x, y, _like(v, x, FURTHER), **o)),
    "info_nce own": ("own", lambda _, x, y, **o: pnce.info_nce(x, y, x[:, None, :] + y[None, :, :] * 0.5, **o)),
    "flat_nce": ("views", lambda _, x, y, **o: pnce.flat_nce(x, y, **o)),
    "flat_nce detach": ("views", lambda _, x, y, **o: pnce.flat_nce(x, y, form="detach", **o)),
    "nt_xent": ("views", lambda _, x, y, **o: pnce.nt_xent(x, y, **o)),
    "dcl": ("views", lambda _, x, y, **o: pnce.dcl(x, y, **o)),
    "dclw": ("views", lambda _, x, y, **o: pnce.dclw(x, y, **o)),
    "clip": ("pairs", lambda _, x, y, temperature, **o: pnce.clip(x, y, logit_scale=1 / temperature, **o)),
    "siglip": (
        "pairs",
        lambda _, x, y, temperature, **o: pnce.siglip(x, y, logit_scale=1 / temperature, logit_bias=-1.0, **o),
    ),
    "siglip negative_only": (
        "pairs",
        lambda _, x, y, temperature, **o: pnce.siglip(
            x, y, logit_scale=1 / temperature, logit_bias=-1.0, negative_only=True, **o
        ),
    ),
    "relic": ("pairs", lambda _, x, y, **o: pnce.relic(x, y, symmetric=True, **o)),
    "relic keys": ("pairs and slots", lambda v, x, y, **o: pnce.relic(x, y, keys=_queue_of(v, x), **o)),
    "cpc": (
        "pairs",
        lambda v, x, y, **o: pnce.cpc(
            x, y[None, ...], _like(v, x, [[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]), **o
        ),
    ),
    "n_tuple": ("pairs", lambda _, x, y, **o: pnce.n_tuple(x, y, l2=0.125, **o)),
    "nt_xent keys": ("views and keys", lambda v, x, y, **o: pnce.nt_xent(x, y, keys=_like(v, x, FURTHER), **o)),
    "supcon keys": (
        "further",
        lambda v, x, _, **o: pnce.supcon(
            x, v.array(CLASSES), keys=_like(v, x, FURTHER), key_labels=v.array(CLASSES[:4]), **o
        ),
    ),
    "supcon queue": (
        "queue",
        lambda v, x, _, **o: pnce.supcon(
            x, v.array(CLASSES), keys=_queue_of(v, x), key_labels=v.array(CLASSES[:5]), **o
        ),
    ),
    "supcon": ("pairs", lambda v, x, _, **o: pnce.supcon(x, v.array(CLASSES), **o)),
    "nca": ("pairs", lambda v, x, _, **o: pnce.nca(x, v.array(CLASSES), **o)),
    "soft_nearest_neighbor": ("pairs", lambda v, x, _, **o: pnce.soft_nearest_neighbor(x, v.array(CLASSES), **o)),
    "contrastive": ("pairs", lambda v, x, _, **o: pnce.contrastive(x, v.array(CLASSES), margin=3.0, **o)),
    "contrastive balance": (
        "pairs",
        lambda v, x, _, **o: pnce.contrastive(x, v.array(CLASSES), margin=3.0, average="nonzero", balance=True, **o),
    ),
    "triplet": ("rows", lambda _, x, y, **o: pnce.triplet(x, y, y * -0.5, **o)),
    "triplet_from_labels": ("pairs", lambda v, x, _, **o: pnce.triplet_from_labels(x, v.array(CLASSES), **o)),
    "triplet_from_labels hard": (
        "pairs",
        lambda v, x, _, **o: pnce.triplet_from_labels(x, v.array(CLASSES), mining="batch_hard", form="soft", **o),
    ),
    **{
        f"triplet_from_labels {mining}": (
            "pairs",
            lambda v, x, _, m=mining, **o: pnce.triplet_from_labels(x, v.array(CLASSES), mining=m, **o),
        )
        for mining in MININGS
    },
    "moco": ("queue", lambda v, x, y, **o: pnce.moco(x, y, _queue_of(v, x), **o)),
    "nnclr": ("pairs", lambda v, x, y, **o: pnce.nnclr(x, y, _queue_of(v, x), **o)),
    "proto_nce": (
        "prototypes",
        lambda v, x, _, temperature, **o: pnce.proto_nce(
            x, _like(v, x, FURTHER[:3]), v.array(CLASSES), _like(v, x, [temperature, 0.75, 1.0]), **o
        ),
    ),
}


def _total(values: Any) -> Any:
    """Sum the losses of the rows, as every library can."""
    total = values[0, ...]
    for k in range(1, values.shape[0]):
        total = total + values[k, ...]
    return total


FEW_MASKED = ("info_nce", "info_nce symmetric", "nt_xent", "siglip", "relic", "triplet_from_labels hard", "moco")
"""One for each way through the package."""
masked_losses = pytest.mark.parametrize(
    ("name", "block_size"),
    [
        *((name, "auto") for name in MASKED_LOSSES),
        *((name, 2) for name in FEW_MASKED),
        *(pytest.param(name, block, marks=pytest.mark.exhaustive) for name in MASKED_LOSSES for block in (None, 3)),
    ],
)


@pytest.mark.parametrize(
    "similarity", ["cosine", *(pytest.param(s, marks=pytest.mark.exhaustive) for s in SIMILARITIES if s != "cosine")]
)
@masked_losses
def test_masked_rows_may_hold_anything(
    variant: Variant, name: str, block_size: int | str | None, similarity: str
) -> None:
    """A row whose pairs are all masked reaches neither the value nor the gradient of any row; its own gradient is 0."""
    shape, loss = MASKED_LOSSES[name]
    mask = variant.array(MASKS[shape])
    for reduction in ("mean", "none"):
        results = []
        for dirt in (NAN, INF, 0.25):
            a, b = vectors(6, 3, 1), vectors(6, 3, 2)
            for rows in (a, b):
                rows[2] = [0.5, dirt, 1.0]

            def total(x: Any, y: Any, reduction: str = reduction) -> Any:
                options = {"temperature": 0.5, "similarity": similarity, "mask": mask, "block_size": block_size}
                values = loss(variant, x, y, reduction=reduction, **options)
                return values if reduction == "mean" else _total(values)

            value, gradients = differentiate(total, [variant.floats(a), variant.floats(b)])
            assert_finite(variant, value, *gradients)
            assert all(variant.to_list(gradient)[2] == [0.0] * 3 for gradient in gradients)
            results.append([variant.to_list(value), *(variant.to_list(gradient) for gradient in gradients)])
        for ours in results[:2]:
            for array, wanted in zip(ours, results[2], strict=True):
                assert oracles.error(array, oracles.exact(wanted)) <= 4 * variant.eps()


@pytest.mark.parametrize(
    "similarity", ["dot", *(pytest.param(s, marks=pytest.mark.exhaustive) for s in SIMILARITIES[1:])]
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
@masked_losses
@pytest.mark.parametrize("dtype", ["float32"])
def test_scores_that_overflow(
    variant: Variant, name: str, block_size: int | str | None, similarity: str, dtype: str
) -> None:
    """Of finite embeddings, whose scores may be beyond all numbers, neither the value nor the gradient is NaN."""
    if similarity == "dot" and name.partition(" ")[0] in {"relic", "contrastive"}:
        return  # the gradient itself is a score times an embedding, or the value the square of a score
    _, loss = MASKED_LOSSES[name]
    for magnitude in (2.0**66, 2.0**100):
        a, b = ([[magnitude * x for x in row] for row in vectors(6, 3, seed)] for seed in (1, 2))
        for reduction in ("mean", "none"):

            def total(x: Any, y: Any, size: int | str | None, reduction: str = reduction) -> Any:
                values = loss(
                    variant, x, y, temperature=0.5, similarity=similarity, reduction=reduction, block_size=size
                )
                return values if reduction == "mean" else _total(values)

            arrays = [variant.floats(a, dtype), variant.floats(b, dtype)]
            results = [differentiate(lambda x, y, s=s: total(x, y, s), arrays) for s in (block_size, None)]
            flat = [
                [x for array in (value, *gradients) for x in flatten(variant.to_list(array))]
                for value, gradients in results
            ]
            for ours, dense in zip(*flat, strict=True):
                assert ours == dense or abs(ours - dense) <= 1e-3 * max(abs(x) for x in flat[1])


# --- parameters of the parts, as arrays -----------------------------------------------------------------------------

MATRIX = [[1.0, 0.25, -0.5], [0.5, 0.75, 0.0], [-0.25, 0.5, 1.25]]


def _squared(score: Any, shift: Any) -> Any:
    return (score + shift) * (score + shift)


def _contrast(x: Any, y: Any, objective: Any, **options: Any) -> Any:
    return pnce.contrast(x, y, objective=objective, pairing="diagonal", **options)


PARAMETERS: dict[str, tuple[Nested, Callable[..., Any]]] = {
    "bilinear": (MATRIX, lambda _, x, y, p, **o: pnce.info_nce(x, y, similarity=pnce.similarities.bilinear(p), **o)),
    "scaled_columns": (
        [0.5, 1.0, 1.5, 2.0, 0.75, 1.25],
        lambda _, x, y, p, **o: pnce.info_nce(x, y, similarity=pnce.similarities.scaled_columns("dot", p), **o),
    ),
    "scaled_columns of distances": (
        [0.5, 1.0, 1.5, 2.0, 0.75, 1.25],
        lambda _, x, y, p, **o: pnce.info_nce(
            x, y, similarity=pnce.similarities.scaled_columns("neg_euclidean", p), **o
        ),
    ),
    "shifted_columns": (
        [0.5, -1.0, 1.5, 2.0, 0.75, -1.25],
        lambda _, x, y, p, **o: pnce.info_nce(x, y, similarity=pnce.similarities.shifted_columns("dot", p), **o),
    ),
    "shifted_columns of distances": (
        [0.5, -1.0, 1.5, 2.0, 0.75, -1.25],
        lambda _, x, y, p, **o: pnce.info_nce(
            x, y, similarity=pnce.similarities.shifted_columns("neg_euclidean", p), **o
        ),
    ),
    "logistic bias": (-0.5, lambda _, x, y, p, **o: _contrast(x, y, pnce.objectives.logistic(bias=p), **o)),
    "siglip bias": (-0.5, lambda _, x, y, p, **o: pnce.siglip(x, y, logit_scale=2.0, logit_bias=p, **o)),
    "dclw temperature": (0.5, lambda _, x, y, p, **o: _contrast(x, y, pnce.objectives.dclw(temperature=p), **o)),
    "dclw sigma": (0.75, lambda _, x, y, p, **o: pnce.dclw(x, y, sigma=p, **o)),
    "contrastive margin": (3.0, lambda v, x, _, p, **o: pnce.contrastive(x, v.array(CLASSES), margin=p, **o)),
    "contrastive positive_margin": (
        0.5,
        lambda v, x, _, p, **o: pnce.contrastive(x, v.array(CLASSES), margin=3.0, positive_margin=p, **o),
    ),
    "triplet margin": (1.0, lambda _, x, y, p, **o: pnce.triplet(x, y, y * -0.5, margin=p, form="soft", **o)),
    "triplets margin": (1.0, lambda v, x, _, p, **o: pnce.triplet_from_labels(x, v.array(CLASSES), margin=p, **o)),
    "relic alpha": (0.5, lambda _, x, y, p, **o: pnce.relic(x, y, alpha=p, **o)),
    "n_tuple l2": (0.25, lambda _, x, y, p, **o: pnce.n_tuple(x, y, l2=p, **o)),
    "Pairwise": (
        0.5,
        lambda _, x, y, p, **o: _contrast(x, y, pnce.objectives.Pairwise(_squared, _squared, parameters=(p,)), **o),
    ),
    "Pairwise of rows": (
        [0.5, 1.0, 1.5, 2.0, 0.75, 1.25],
        lambda _, x, y, p, **o: _contrast(x, y, pnce.objectives.Pairwise(_squared, None, parameters=(p,)), **o),
    ),
}


@pytest.mark.parametrize("block_size", [None, 2, "auto"])
@pytest.mark.parametrize("name", list(PARAMETERS))
def test_parameters_of_parts(variant: Variant, name: str, block_size: int | str | None) -> None:
    """A parameter is an array of the library, or on its tape: the gradient is the slope of the loss, to a shift."""
    nested, loss = PARAMETERS[name]
    a, b = vectors(6, 3, 1), vectors(6, 3, 2)
    x, y = variant.floats(a), variant.floats(b)

    def at(parameter: Any) -> Any:
        return loss(variant, x, y, parameter, block_size=block_size)

    value, (gradient,) = differentiate(at, [variant.floats(nested)])
    assert_finite(variant, value, gradient)
    joint, gradients = differentiate(
        lambda u, w, p: loss(variant, u, w, p, block_size=block_size), [x, y, variant.floats(nested)]
    )
    assert oracles.error(variant.to_list(joint), oracles.exact(variant.to_list(value))) <= 8 * variant.eps()
    wanted = oracles.exact(variant.to_list(gradient))
    assert oracles.error(variant.to_list(gradients[2]), wanted) <= 32 * variant.eps()
    # The gradient along the all-ones direction against a central difference, which is right to the square of its step.
    step = 2.0**-10
    high, low = (variant.floats(_shifted(nested, sign * step)) for sign in (1.0, -1.0))
    slope = (mpf(variant.to_list(at(high))) - mpf(variant.to_list(at(low)))) / (2.0 * step)
    total = sum(mpf(number) for number in flatten(variant.to_list(gradient)))
    tolerance = 1e-5 + 100.0 * variant.eps() / step
    assert abs(total - slope) <= tolerance * (1 + abs(slope))


def _shifted(nested: Nested, by: float) -> Nested:
    return [_shifted(item, by) for item in nested] if isinstance(nested, list) else nested + by


# --- indices out of range -------------------------------------------------------------------------------------------

INDEXED: dict[str, Callable[..., Any]] = {
    "positives": lambda x, y, at: pnce.info_nce(x, y, positives=at, reduction="none"),
    "pairings.index": lambda x, y, at: pnce.contrast(
        x, y, objective="info_nce", pairing=pnce.pairings.index(at), reduction="none"
    ),
    "from_scores": lambda x, y, at: pnce.from_scores.info_nce(x @ y.T, positives=at, reduction="none"),
    "from_scores dclw": lambda x, y, at: pnce.from_scores.dclw(x @ y.T, positives=at, reduction="none"),
    "from_scores logistic": lambda x, y, at: pnce.from_scores.logistic(x @ y.T, positives=at, reduction="none"),
    "from_scores triplet": lambda x, y, at: pnce.from_scores.triplet(x @ y.T, positives=at, reduction="none"),
    "proto_nce": lambda x, y, at: pnce.proto_nce(x, y[:3, :], at, y[:3, 0] * 0 + 0.5, reduction="none"),
    "concentrations": lambda x, y, at: pnce.concentrations(x, y[:3, :], at),
}


@pytest.mark.parametrize("outside", [-1, 6, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("name", list(INDEXED))
def test_indices_out_of_range(variant: Variant, name: str, outside: int) -> None:
    """They are refused by name where values are at hand; elsewhere such a row is like one that is left out."""
    x, y = variant.floats(vectors(6, 3, 1)), variant.floats(vectors(6, 3, 2))
    index = [0, 1, outside, 2, 1, 0]
    words = "assignments" if name in {"proto_nce", "concentrations"} else "positives"
    message, values = "", None
    try:
        values = INDEXED[name](x, y, variant.array(index))
    except ValueError as error:
        message = str(error)
    if message:
        assert message.startswith(f"{words}: expected indices from 0 to")
        assert str(outside) in message
        return
    assert_finite(variant, values)
    if name != "concentrations" and "logistic" not in name:
        assert variant.to_list(values)[2] == 0.0


# --- scores of minus infinity in both directions, and weights of nothing ---------------------------------------------


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("direction", ["a_to_b", "b_to_a"])
def test_relic_takes_minus_infinity_for_a_mask_of_both_directions(
    variant: Variant, direction: pnce.typing.RelicDirection, *, symmetric: bool
) -> None:
    scores = vectors(4, 4, 3)
    without = [[-math.inf if (i, j) == (0, 2) else x for j, x in enumerate(row)] for i, row in enumerate(scores)]
    mask = variant.array([[(i, j) not in {(0, 2), (2, 0)} for j in range(4)] for i in range(4)])
    results = [
        differentiate(
            lambda g, options=options: pnce.from_scores.relic(
                g, alpha=0.5, direction=direction, symmetric=symmetric, **options
            ),
            [variant.floats(given)],
        )
        for given, options in ((without, {}), (scores, {"mask": mask}))
    ]
    for ours, theirs in zip(*(flatten([variant.to_list(v), variant.to_list(g)]) for v, (g,) in results), strict=True):
        assert abs(ours - theirs) <= 64 * variant.eps()


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
    """Of a critic, in losses that count negatives or rows themselves."""
    loss, blocks = MASKED_BY_SCORES[name], 2 if name.startswith("joint") else 1
    mask = variant.array([[(i, j) not in out for j in range(4)] for i in range(4)])
    bias = variant.floats([[-INF if (i, j) in out else 0.0 for j in range(4)] * blocks for i in range(4)])
    weights = variant.floats([1.0, 2.0, 0.5, 4.0])
    ways: list[dict[str, Any]] = [
        {"similarity": lambda a, b: a @ b.T, "mask": mask},
        {"similarity": lambda a, b: a @ b.T + bias},
    ]
    results = []
    for way in ways:

        def total(x: Any, y: Any, way: dict[str, Any] = way) -> Any:
            return loss(x, y, temperature=1.0, weights=weights, reduction=reduction, **way)

        results.append(differentiate(total, [variant.floats(vectors(4, 3, seed)) for seed in (3, 4)]))
    for ours, theirs in zip(
        *(flatten([variant.to_list(value), *map(variant.to_list, slopes)]) for value, slopes in results), strict=True
    ):
        assert abs(ours - theirs) <= 256 * variant.eps()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("block_size", [None, 2, "auto"])
@pytest.mark.parametrize("name", ["info_nce", "clip", "nt_xent", "flat_nce", "siglip", "dclw", "relic", "n_tuple"])
def test_weights_of_zero_leave_nothing(
    variant: Variant, name: str, block_size: int | str | None, reduction: str
) -> None:
    options: dict[str, Any] = {"clip": {"logit_scale": 2.0}, "siglip": {"logit_scale": 2.0, "logit_bias": -1.0}}.get(
        name, {}
    )

    def loss(x: Any, y: Any, weights: Any) -> Any:
        return getattr(pnce, name)(x, y, weights=weights, block_size=block_size, reduction=reduction, **options)

    arrays = [variant.floats(vectors(5, 3, 1)), variant.floats(vectors(5, 3, 2)), variant.floats([0.0] * 5)]
    value, gradients = differentiate(loss, arrays)
    assert variant.to_list(value) == 0.0
    assert not any(flatten([variant.to_list(g) for g in gradients[:2]]))
    if reduction == "mean":
        assert not any(flatten(variant.to_list(gradients[2])))
