"""The streamed execution gives what the dense one gives, whatever the size of its tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ..._core.namespace import library_namespace
from .. import oracles
from .._package import pnce
from ..variants import case_arrays, case_named, differentiate, generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..variants import Variant

FEATURES = 3
TOLERANCE = {"float64": 1e-12, "float32": 2e-6}
EXACT_TOLERANCE = 1e-44

CASES = [
    "info_nce bilinear",
    "info_nce neg_sq_euclidean",
    "info_nce symmetric, weights, mask",
    "info_nce positives pooled",
    "info_nce shared negatives, neg_euclidean",
    "flat_nce detach, weights",
    "nt_xent weights of rows, mask",
    "dcl dot",
    "clip weights, mask",
    "contrast info_nce, labels",
]
"""One of every loss, similarity and kind of pairing; the tables of cases hold all of them, in tiles of two columns."""


def compare(variant: Variant, name: str, rows: int, block_size: int, dtype: str) -> None:
    """Compare value and gradients of the dense and the streamed form of a case."""
    case = case_named(name, rows)
    arrays = case_arrays(variant, case, dtype)
    dense = replace(case, options={**case.options, "block_size": None})
    streamed = replace(case, options={**case.options, "block_size": block_size})
    wanted_value, wanted = differentiate(dense.function, arrays, len(case.arguments))
    got_value, got = differentiate(streamed.function, arrays, len(case.arguments))
    errors = {
        key: oracles.error(variant.to_list(a), oracles.exact(variant.to_list(b)))
        for key, a, b in zip(["value", *case.arguments], [got_value, *got], [wanted_value, *wanted], strict=True)
    }
    assert max(errors.values()) <= tolerance_of(variant, dtype), errors


def tolerance_of(variant: Variant, dtype: str) -> float:
    """Look the tolerance up; fifty digits deserve their own."""
    return EXACT_TOLERANCE if variant.module == "mparray" else TOLERANCE[dtype]


SIZES = [(5, 1, None), (5, 5, None), (65, 1, None), (65, 7, None), (65, 64, None), (65, 65, None), (65, 7, "float32")]
"""Rows, columns in a tile, dtype: one column, tiles that do and do not divide the columns, one tile of all."""


def is_exhaustive(name: str, size: tuple[int, int, str | None]) -> bool:
    """Tell whether a combination can be spared: one case has every size, and another one of them."""
    return (name != "info_nce symmetric, weights, mask" or size[0] < 65) and (name, size) != (
        "nt_xent weights of rows, mask",
        (65, 7, None),
    )


@pytest.mark.parametrize(
    ("name", "rows", "block_size", "dtype"),
    [
        pytest.param(name, *size, marks=[pytest.mark.exhaustive] if is_exhaustive(name, size) else [])
        for name in CASES
        for size in SIZES
    ],
)
def test_tiles(variant: Variant, name: str, rows: int, block_size: int, dtype: str | None) -> None:
    """Value and gradients, those of the temperature and the bilinear matrix among them."""
    compare(variant, name, rows, block_size, dtype or variant.dtypes[0])


ROW_LOSSES: dict[str, Callable[..., Any]] = {
    "info_nce": pnce.info_nce,
    "info_nce symmetric": lambda a, b, **options: pnce.info_nce(a, b, symmetric=True, **options),
    "flat_nce": pnce.flat_nce,
    "flat_nce detach": lambda a, b, **options: pnce.flat_nce(a, b, form="detach", **options),
    "nt_xent": pnce.nt_xent,
    "dcl": pnce.dcl,
    "clip": lambda a, b, *, temperature, **options: pnce.clip(a, b, logit_scale=1 / temperature, **options),
}


@pytest.mark.parametrize(
    "loss",
    [
        *("info_nce symmetric", "flat_nce detach"),
        *(
            pytest.param(loss, marks=pytest.mark.exhaustive)
            for loss in ("info_nce", "flat_nce", "nt_xent", "dcl", "clip")
        ),
    ],
)
def test_reduction_none(variant: Variant, loss: str) -> None:
    """Rows, and the gradient that a user's own combination of them sends back."""
    rows, block_size, dtype = 3, 2, variant.dtypes[0]
    numbers = generator(rows)
    a, b = (
        variant.floats([[numbers.gauss(0.0, 1.0) for _ in range(FEATURES)] for _ in range(rows)], dtype) for _ in "ab"
    )
    weights = variant.floats([numbers.uniform(0.5, 2.0) for _ in range(rows)], dtype)
    temperature = variant.floats(0.5, dtype)

    def square_sum(size: int | None) -> Callable[..., Any]:
        def function(x: Any, y: Any, t: Any) -> tuple[Any, Any]:
            rows_ = ROW_LOSSES[loss](x, y, temperature=t, weights=weights, reduction="none", block_size=size)
            xp = rows_.__array_namespace__() if hasattr(rows_, "__array_namespace__") else library_namespace(rows_)
            return xp.sum(rows_ * rows_), rows_

        return function

    results = []
    for size in (block_size, None):
        (total, rows_), gradients = pnce.value_and_grad(square_sum(size), argnums=(0, 1, 2), has_aux=True)(
            a, b, temperature
        )
        results.append([variant.to_list(x) for x in (total, rows_, *gradients)])
    errors = [oracles.error(got, oracles.exact(wanted)) for got, wanted in zip(*results, strict=True)]
    assert max(errors) <= tolerance_of(variant, dtype), errors


ANY_LOSS: dict[str, Callable[..., Any]] = {
    **ROW_LOSSES,
    "info_nce weights": lambda a, b, *, weights, **options: pnce.info_nce(a, b, weights=weights, **options),
    "info_nce shared": lambda a, b, **options: pnce.info_nce(a, b, a * b, **options),
    "clip weights": lambda a, b, *, weights, temperature, **options: pnce.clip(
        a, b, logit_scale=1 / temperature, max_logit_scale=None, weights=weights, **options
    ),
    "siglip": lambda a, b, *, temperature, **options: pnce.siglip(
        a, b, logit_scale=1 / temperature, logit_bias=-1.0, **options
    ),
}


@pytest.mark.exhaustive
@given(
    loss=st.sampled_from(sorted(ANY_LOSS)),
    rows=st.integers(2, 9),
    block_size=st.one_of(st.integers(1, 10), st.just("auto")),
    temperature=st.sampled_from([0.01, 0.3, 5.0]),
    similarity=st.sampled_from(["cosine", "dot", "neg_sq_euclidean"]),
    seed=st.integers(0, 2**16),
)
def test_any_block_size(
    variant: Variant,
    loss: str,
    *,
    rows: int,
    block_size: int | str,
    temperature: float,
    similarity: str,
    seed: int,
) -> None:
    """Value and gradients are those of the dense execution, with scores small, large and saturated."""
    numbers = generator(seed)
    dtype = variant.dtypes[0]
    a, b = (
        variant.floats([[numbers.gauss(0.0, 1.0) for _ in range(FEATURES)] for _ in range(rows)], dtype) for _ in "ab"
    )
    options: dict[str, Any] = {"similarity": similarity}
    if loss.endswith("weights"):
        options["weights"] = variant.floats([numbers.uniform(0.0, 2.0) for _ in range(rows)], dtype)
    t = variant.floats(temperature, dtype)
    (value, got), (wanted_value, wanted) = (
        differentiate(
            lambda x, y, tau, size=size: ANY_LOSS[loss](x, y, temperature=tau, block_size=size, **options), [a, b, t]
        )
        for size in (block_size, None)
    )
    for ours, dense in zip([value, *got], [wanted_value, *wanted], strict=True):
        expected = oracles.exact(variant.to_list(dense))
        # The rounding of scores of that size, which a saturated loss does not show.
        scale = max([1.0, *(abs(float(x)) for x in oracles.numbers_of(expected))]) / min(1.0, temperature)
        flat = zip(oracles.numbers_of(oracles.exact(variant.to_list(ours))), oracles.numbers_of(expected), strict=True)
        assert max(abs(x - y) for x, y in flat) <= 200 * variant.eps(dtype) * scale / min(1.0, temperature)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("rows", [65])
@pytest.mark.parametrize("block_size", ["auto", 16])
def test_saturated(variant: Variant, rows: int, block_size: pnce.typing.BlockSize, dtype: str) -> None:
    """Every row far ahead of its negatives: tile by tile nothing underflows that the whole row would keep."""
    numbers = generator(rows)
    nested = [[numbers.gauss(0.0, 1.0) for _ in range(FEATURES)] for _ in range(rows)]
    x = variant.floats(nested, dtype)
    options: dict[str, Any] = {"similarity": "neg_sq_euclidean", "temperature": 2.0**-6}
    wanted_value, (wanted,) = differentiate(lambda q: pnce.info_nce(q, x, block_size=None, **options), [x])
    got_value, (got,) = differentiate(lambda q: pnce.info_nce(q, x, block_size=block_size, **options), [x])
    tolerance = 20 * tolerance_of(variant, dtype)
    assert oracles.error(variant.to_list(got_value), oracles.exact(variant.to_list(wanted_value))) <= tolerance
    assert oracles.error(variant.to_list(got), oracles.exact(variant.to_list(wanted))) <= tolerance
