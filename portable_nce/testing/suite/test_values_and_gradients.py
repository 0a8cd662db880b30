"""Value and all gradients of every case against the independent oracles."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pytest

from .. import oracles
from .._package import pnce
from ..cases import CASES, NOT_REDUCED, example
from ..variants import (
    EPS,
    SMALLEST_NORMAL,
    assert_belongs,
    case_arrays,
    case_named,
    differentiate,
)
from .calls import FEW, TOLERANCE, of_halves, wanted_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..cases import Case
    from ..variants import Variant

NAMES = [case.name for case in CASES]
ONE_OF_EACH = list(
    {(case.loss, case.regime): case.name for case in reversed(CASES) if case.loss not in NOT_REDUCED}.values()
)
"""First case of each loss and regime, without cases that sum the result and so round twice."""


@pytest.mark.each_variant
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case_name", NAMES)
def test_case(variant: Variant, case_name: str, dtype: str, record_property: Callable[[str, object], None]) -> None:
    """Value and gradients equal those of the published sum and are of the input's kind; inputs are not modified."""
    case = case_named(case_name)
    arrays = case_arrays(variant, case, dtype)
    before = [variant.to_list(array) for array in arrays]
    value, gradients = differentiate(case.function, arrays, len(case.arguments))
    assert [variant.to_list(array) for array in arrays] == before
    assert_belongs(variant, value, arrays[0], ())
    for gradient, argument in zip(gradients, arrays, strict=False):
        assert_belongs(variant, gradient, argument, tuple(argument.shape))
    errors = errors_of(variant, case, dtype, [value, *gradients], wanted_of(case))
    assert max(errors.values()) <= TOLERANCE[case.regime]["exact" if variant.module == "mparray" else dtype], errors
    record(record_property, variant, case, dtype, errors)
    if not variant.compiles:
        plain = case.function(*arrays)
        assert_belongs(variant, plain, arrays[0], ())
        assert oracles.error(variant.to_list(plain), oracles.exact(variant.to_list(value))) <= 4 * variant.eps(dtype)


@pytest.mark.parametrize(
    "case_name", [name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.exhaustive) for name in NAMES]
)
def test_gradient_of_one_argument_alone(variant: Variant, case_name: str) -> None:
    """A gradient of one argument alone equals the one computed with all others."""
    case, dtype = case_named(case_name), variant.dtypes[0]
    arrays = case_arrays(variant, case, dtype)
    value, gradients = differentiate(case.function, arrays, len(case.arguments))
    tolerance = TOLERANCE[case.regime]["exact" if variant.module == "mparray" else dtype]
    for k, together in enumerate(gradients):
        own, alone = pnce.value_and_grad(case.function, argnums=k)(*arrays)
        wanted = [oracles.exact(variant.to_list(x)) for x in (value, together)]
        for got, exact in zip((own, alone), wanted, strict=True):
            assert oracles.error(variant.to_list(got), exact) <= tolerance


FEW_LOSSES = {name.partition(" ")[0] for name in FEW} | {"contrast", "from_scores.info_nce", "bounds.nwj"}


@pytest.mark.each_variant
@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.exhaustive), "bfloat16"])
@pytest.mark.parametrize(
    "case_name",
    [pytest.param(k, marks=() if case_named(k).loss in FEW_LOSSES else pytest.mark.exhaustive) for k in ONE_OF_EACH],
)
def test_sixteen_bits(
    variant: Variant, case_name: str, dtype: str, record_property: Callable[[str, object], None]
) -> None:
    """For 16-bit inputs, the result is the published sum, rounded once, at the end; or twice, by 16-bit products."""
    case, errors = errors_in_sixteen_bits(variant, case_name, dtype)
    limit = TOLERANCE[case.regime][dtype]
    assert errors["value"] <= limit, errors
    for argument in case.arguments:
        assert errors[argument] <= (of_halves(case, dtype, argument) if variant.half_products else limit), errors
    record(record_property, variant, case, dtype, errors)


@pytest.mark.each_variant
@pytest.mark.half_products
@pytest.mark.parametrize("case_name", [name for name in NAMES if case_named(name).loss not in NOT_REDUCED])
def test_products_of_sixteen_bits(variant: Variant, case_name: str) -> None:
    """So it is for every form of call where 16-bit products are taken."""
    case, errors = errors_in_sixteen_bits(variant, case_name, "bfloat16")
    assert errors["value"] <= TOLERANCE[case.regime]["bfloat16"], errors
    for argument in case.arguments:
        assert errors[argument] <= of_halves(case, "bfloat16", argument), errors


def errors_in_sixteen_bits(variant: Variant, case_name: str, dtype: str) -> tuple[Case, dict[str, float]]:
    """A case, and the errors of its value and gradients for inputs that are rounded to a 16-bit dtype."""
    case = case_named(case_name)
    arrays = case_arrays(variant, case, dtype)
    value, gradients = differentiate(case.function, arrays, len(case.arguments))
    rounded = dict(zip([*case.arguments, *case.constants], map(variant.to_list, arrays), strict=True))
    held = replace(
        case,
        arguments={key: rounded[key] for key in case.arguments},
        constants={
            key: rounded[key] if dtype in str(x.dtype) else case.constants[key]
            for key, x in zip(case.constants, arrays[len(case.arguments) :], strict=True)
        },
    )
    return case, errors_of(variant, case, dtype, [value, *gradients], wanted_of(held))


@pytest.mark.parametrize("name", ["info_nce", "nt_xent", "siglip", "moco"])
def test_high_precision_is_that_of_float32_on_a_cpu(variant: Variant, name: str) -> None:
    """Only accelerators compute float32 products faster with fewer digits."""
    case = example(name)
    high = replace(case, options={**case.options, "precision": "high"})
    arrays = case_arrays(variant, case, "float32")
    found = (differentiate(of.function, arrays, len(case.arguments)) for of in (case, high))
    plain, other = ([variant.to_list(x) for x in (value, *gradients)] for value, gradients in found)
    assert plain == other or variant.gpu


def errors_of(
    variant: Variant, case: Case, dtype: str, results: list[Any], wanted: list[oracles.Nested]
) -> dict[str, float]:
    """Errors of value and gradients, relative to the largest magnitude of each."""
    smallest = SMALLEST_NORMAL[dtype] if dtype in {"float16", "bfloat16"} else 0.0
    return {
        key: oracles.error(variant.to_list(got), want, smallest)
        for key, got, want in zip(["value", *case.arguments], results, wanted, strict=True)
    }


def record(
    record_property: Callable[[str, object], None],
    variant: Variant,
    case: Case,
    dtype: str,
    errors: dict[str, float],
) -> None:
    """Record the errors in units in the last place for the report on agreement."""
    if variant.module == "mparray":
        return
    value, *gradients = (error / EPS[dtype] for error in errors.values())
    try:
        release = version(variant.library)
    except PackageNotFoundError:  # a library on the path without metadata
        release = "not installed"
    found = {
        "variant": variant.name,
        "library": f"{variant.library} {release}",
        "device": "default" if variant.device is None else str(variant.device),
        "loss": case.loss,
        "regime": case.regime,
        "dtype": dtype,
        "value": value,
        "gradient": max(gradients, default=0.0),
    }
    record_property("agreement", json.dumps(found))
