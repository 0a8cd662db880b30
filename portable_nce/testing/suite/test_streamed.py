"""Streamed execution agrees with dense execution for every tile size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ..._core.namespace import namespace_of
from .. import oracles
from .._package import pnce
from ..cases import Case, example
from ..variants import case_named, differentiate, generator

if TYPE_CHECKING:
    from ..variants import Nested, Variant

TOLERANCE = {"float64": 1e-12, "float32": 2e-6}
EXACT_TOLERANCE = 1e-44


def tolerance_of(variant: Variant, dtype: str) -> float:
    """Tolerance of a dtype, with a separate one for fifty digits."""
    return EXACT_TOLERANCE if variant.module == "mparray" else TOLERANCE[dtype]


def normal(seed: int) -> Callable[[tuple[int, ...], int], Nested]:
    """Fill arrays with normal numbers."""

    def filled(shape: tuple[int, ...], place: int) -> Nested:
        numbers = generator(100 * seed + place)

        def nested(sizes: tuple[int, ...]) -> Nested:
            return [nested(sizes[1:]) for _ in range(sizes[0])] if sizes else numbers.gauss(0.0, 1.0)

        return nested(shape)

    return filled


def results_of(
    variant: Variant, case: Case, dtype: str, total: Callable[[Any], Any] = lambda x: x, **options: Any
) -> list[Any]:
    """Value and gradients of a case, or of a function of its result."""
    arrays = [variant.floats(x, dtype) for x in case.arguments.values()]
    constants = {key: variant.array(x, dtype) for key, x in case.constants.items()}
    call = case.bound(**options)

    def function(*given: Any) -> Any:
        return total(call({**dict(zip(case.arguments, given, strict=True)), **constants}))

    value, gradients = differentiate(function, arrays)
    return [oracles.exact(variant.to_list(x)) for x in (value, *gradients)]


SIZES = [(5, 1, None), (5, 5, None), (65, 1, None), (65, 7, None), (65, 64, None), (65, 65, None), (65, 7, "float32")]
"""Rows, columns of a tile, dtype: one column, tiles that do and do not divide the columns, a single tile."""

ALL_SIZES = "info_nce symmetric, weights, mask"
"""The case that runs all sizes even if every shape is compiled."""

CASES = [
    *("info_nce bilinear", "info_nce neg_sq_euclidean", "info_nce positives pooled", "clip weights, mask", "dcl dot"),
    *("info_nce shared negatives, neg_euclidean", "flat_nce detach, weights", "nt_xent weights of rows, mask"),
    *("contrast info_nce, labels", ALL_SIZES),
]
"""One case of every loss, similarity and kind of pairing; `CASES` has all, in tiles of two columns."""


@pytest.mark.parametrize(("rows", "block_size", "dtype"), SIZES)
@pytest.mark.parametrize(
    "name", [name if name == ALL_SIZES else pytest.param(name, marks=pytest.mark.exhaustive) for name in CASES]
)
def test_tiles(variant: Variant, name: str, rows: int, block_size: int, dtype: str | None) -> None:
    """Value and all gradients, including temperature and bilinear matrix."""
    dtype = dtype or variant.dtypes[0]
    case = case_named(name, rows)
    streamed, dense = (results_of(variant, case, dtype, block_size=size) for size in (block_size, None))
    errors = [oracles.error(got, wanted) for got, wanted in zip(streamed, dense, strict=True)]
    assert max(errors) <= tolerance_of(variant, dtype), errors


OF_ROWS = ["info_nce symmetric", "flat_nce detach", "info_nce", "flat_nce", "nt_xent", "dcl", "clip"]


@pytest.mark.parametrize(
    "names", [OF_ROWS[:2], pytest.param(OF_ROWS[2:], marks=pytest.mark.exhaustive)], ids=["two", "others"]
)
def test_reduction_none(variant: Variant, names: list[str]) -> None:
    """The gradient of a user's function of the row losses."""
    dtype = variant.dtypes[0]
    options: dict[str, Any] = {"weights": variant.floats([0.75, 1.5, 1.25], dtype), "reduction": "none"}

    def squares(rows: Any) -> Any:
        return namespace_of(rows).sum(rows * rows)

    for name in names:
        case = example(name, rows=3, fill=normal(3))
        streamed, dense = (results_of(variant, case, dtype, squares, block_size=size, **options) for size in (2, None))
        errors = [oracles.error(got, wanted) for got, wanted in zip(streamed, dense, strict=True)]
        assert max(errors) <= tolerance_of(variant, dtype), (name, errors)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:(temperature|logit_scale). expected")
@given(
    name=st.sampled_from([*OF_ROWS, "info_nce shared", "siglip"]),
    rows=st.integers(2, 9),
    block_size=st.one_of(st.integers(1, 10), st.just("auto")),
    temperature=st.sampled_from([0.01, 0.3, 5.0]),
    similarity=st.sampled_from(["cosine", "dot", "neg_sq_euclidean"]),
    weighted=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_block_size(
    variant: Variant,
    name: str,
    *,
    rows: int,
    block_size: int | str,
    temperature: float,
    similarity: str,
    weighted: bool,
    seed: int,
) -> None:
    """Value and gradients equal those of dense execution, for small, large and saturated scores."""
    dtype = variant.dtypes[0]
    case = example(name, rows, fill=normal(seed))
    scale = {"temperature": temperature, "logit_scale": 1 / temperature}
    case = replace(case, arguments={key: scale.get(key, x) for key, x in case.arguments.items()})
    options: dict[str, Any] = {"similarity": similarity}
    if weighted:
        numbers = generator(seed)
        options["weights"] = variant.floats([numbers.uniform(0.0, 2.0) for _ in range(rows)], dtype)
    if name == "clip":
        options["max_logit_scale"] = None
    streamed, dense = (results_of(variant, case, dtype, block_size=size, **options) for size in (block_size, None))
    for got, wanted in zip(streamed, dense, strict=True):
        # The rounding error of scores of that size, which a saturated loss does not show.
        size = max([1.0, *(abs(float(x)) for x in oracles.numbers_of(wanted))]) / min(1.0, temperature)
        flat = zip(oracles.numbers_of(got), oracles.numbers_of(wanted), strict=True)
        assert max(abs(x - y) for x, y in flat) <= 200 * variant.eps(dtype) * size / min(1.0, temperature)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("rows", [65])
def test_saturated(variant: Variant, rows: int, dtype: str) -> None:
    """Positives lead by far: no tile underflows where the whole row would not."""
    vectors = normal(rows)((rows, 3), 0)
    case = Case(name="the same", loss="info_nce", arguments={"query": vectors}, constants={"positive_key": vectors})
    options: dict[str, Any] = {"similarity": "neg_sq_euclidean", "temperature": 2.0**-6}
    streamed, dense = (results_of(variant, case, dtype, block_size=size, **options) for size in (16, None))
    errors = [oracles.error(got, wanted) for got, wanted in zip(streamed, dense, strict=True)]
    assert max(errors) <= 20 * tolerance_of(variant, dtype), errors


@pytest.mark.parametrize("block_size", [None, 2])
def test_blocks_of_siglip_add_up(variant: Variant, block_size: int | None) -> None:
    """A batch in two blocks of rows: each against its own texts, and against the others, without positives."""
    arrays = [variant.floats(normal(5)((5, 3), place)) for place in range(2)]
    options: dict[str, Any] = {"logit_scale": 3.0, "logit_bias": -2.0, "reduction": "sum", "block_size": block_size}
    parts = slice(0, 2), slice(2, 5)

    def in_blocks(x: Any, y: Any) -> Any:
        total = sum(pnce.siglip(x[part, ...], y[part, ...], **options) for part in parts)
        for rows, columns in (parts, parts[::-1]):
            total = total + pnce.siglip(x[rows, ...], y[columns, ...], negative_only=True, **options)
        return total

    wanted, slopes = differentiate(lambda x, y: pnce.siglip(x, y, **options), arrays)
    value, gradients = differentiate(in_blocks, arrays)
    for got, exact in zip((value, *gradients), (wanted, *slopes), strict=True):
        assert oracles.error(variant.to_list(got), oracles.exact(variant.to_list(exact))) <= 64 * variant.eps()
