"""Dtypes: results have those of their arrays, 16 bits are computed in 32, and temperatures may be numbers or arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .. import oracles
from .._package import pnce
from ..cases import CASES, NOT_REDUCED, sixteenths
from ..variants import EPS, SMALLEST_NORMAL, assert_belongs, case_arrays, case_named, differentiate, flatten

if TYPE_CHECKING:
    from ..variants import Variant

FEW = ["info_nce", "info_nce mask", "nt_xent bilinear", "clip", "dcl streamed", "from_scores.info_nce", "bounds.dual"]
"""Cases for expensive tests."""

DTYPES = ["float64", "float32", "float16", "bfloat16"]


def names_by_topic() -> dict[str, list[str]]:
    """Last case of each loss and regime, which mostly has the most options, by module.

    Without losses whose results are summed by the case, in their own dtype.
    """
    last = {(case.loss, case.regime): case.name for case in CASES if case.loss not in NOT_REDUCED}
    topics: dict[str, list[str]] = {}
    for (loss, _), name in last.items():
        topics.setdefault(loss.rpartition(".")[0] or "embeddings", []).append(name)
    return topics


TOPICS = names_by_topic()


def draw_vectors(variant: Variant, dtype: str, seed: int) -> Any:
    """Draw an array of three vectors."""
    return variant.floats(sixteenths((3, 3), seed), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("topic", ["few", *(pytest.param(topic, marks=pytest.mark.exhaustive) for topic in TOPICS)])
def test_sixteen_bits_are_computed_in_thirty_two(variant: Variant, topic: str, dtype: str) -> None:
    """The result for 16-bit inputs is the float32 result, rounded once."""
    for name in TOPICS.get(topic, FEW):
        case = case_named(name)
        narrow = case_arrays(variant, case, dtype)
        wide = [
            variant.floats(variant.to_list(array), "float32") if array.dtype == narrow[0].dtype else array
            for array in narrow
        ]
        results, wanted = (differentiate(case.function, arrays, len(case.arguments)) for arrays in (narrow, wide))
        assert_belongs(variant, results[0], narrow[0], ())
        for got, want in zip([results[0], *results[1]], [wanted[0], *wanted[1]], strict=True):
            assert got.dtype == narrow[0].dtype, name
            rounded = variant.to_list(variant.floats(variant.to_list(want), dtype))
            if not variant.half_products:
                assert variant.to_list(got) == rounded, name
                continue
            # One ulp of the largest entry is allowed.
            entries = list(zip(flatten(variant.to_list(got)), flatten(rounded), strict=True))
            unit = EPS[dtype] * max(SMALLEST_NORMAL[dtype], *(abs(y) for _, y in entries))
            for x, y in entries:
                assert x == y or abs(x - y) <= unit, name


@pytest.mark.parametrize("name", ["info_nce mask", "dcl streamed", "from_scores.info_nce", "bounds.dual"])
def test_every_dtype_stays_what_it_is(variant: Variant, name: str) -> None:
    """Results have the dtype of the input, also for dtypes of another variant of the library."""
    case = case_named(name)
    for dtype in (*variant.dtypes, *variant.further_dtypes):
        arrays = case_arrays(variant, case, dtype)
        value, gradients = differentiate(case.function, arrays, len(case.arguments))
        assert_belongs(variant, value, arrays[0], ())
        for gradient, argument in zip(gradients, arrays, strict=False):
            assert_belongs(variant, gradient, argument, tuple(argument.shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.07, 0.5, 1.25])
def test_temperature_as_float_and_as_array(variant: Variant, temperature: float, dtype: str) -> None:
    """A Python number and a 0-d array of the same value give the same loss."""
    a, b = draw_vectors(variant, dtype, seed=1), draw_vectors(variant, dtype, seed=2)
    array = variant.floats(temperature, dtype)
    number = float(array)
    for loss in (pnce.info_nce, pnce.nt_xent, pnce.dcl, pnce.flat_nce):
        by_number, by_array = loss(a, b, temperature=number), loss(a, b, temperature=array)
        assert_belongs(variant, by_array, a, ())
        wanted = oracles.exact(variant.to_list(by_number))
        assert oracles.error(variant.to_list(by_array), wanted) <= 4 * variant.eps(dtype)
