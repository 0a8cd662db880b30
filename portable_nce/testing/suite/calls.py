"""Calls of the losses in `LOSSES` with a variant's arrays, and assertions about their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpmath import mp

from ..._core.namespace import namespace_of
from .. import oracles
from ..cases import LOSSES, example
from ..variants import EPS, differentiate, flatten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..cases import Case
    from ..variants import Nested, Variant

FEW = ("info_nce", "info_nce symmetric", "nt_xent", "siglip", "relic", "triplet_from_labels batch_hard", "moco")
"""One loss for each code path, for variants that compile every operation."""


_ROUNDED_ONCE = {name: 0.51 * EPS[name] for name in ("float16", "bfloat16")}

TOLERANCE = {
    "normal": {"float64": 5e-15, "float32": 3e-6, "exact": 1e-47, **_ROUNDED_ONCE},
    "saturated": {"float64": 2e-14, "float32": 1e-5, "exact": 1e-47, **_ROUNDED_ONCE},
}
"""Largest error relative to the largest magnitude of the value, or of the gradient of one argument.

The worst measured on all variants: 2e-15, 1.2e-6 and 5e-50; saturated 8e-15, 3e-6 and 3e-49, since large scores have a
larger spacing.
"""


def filled(value: Nested, *shape: int) -> Nested:
    """Repeat a number or a row of numbers."""
    for length in reversed(shape):
        value = [value] * length
    return value


def scaled(factor: float, nested: Nested) -> Nested:
    """Multiply all numbers."""
    return [scaled(factor, x) for x in nested] if isinstance(nested, list) else factor * nested


def arrays_of(variant: Variant, case: Case, dtype: str | None = None) -> dict[str, Any]:
    """Make the arrays of a case, by name."""
    floats = {key: variant.floats(nested, dtype) for key, nested in case.arguments.items()}
    return floats | {key: variant.array(nested) for key, nested in case.constants.items()}


def wanted_of(case: Case) -> list[oracles.Nested]:
    """Value and gradients of a case by the published sum, in mpmath."""
    value, gradients = oracles.case_value_and_gradients(case)
    return [sum(value) if isinstance(value, list) else value, *gradients.values()]


def of_halves(case: Case, dtype: str, argument: str) -> float:
    """Largest error of the gradient by an argument, from 16-bit products.

    One unit for arrays. A number's gradient is a difference of terms, some as large as the loss divided by the number:
    two units if they do not cancel, else up to four, a few percent.
    """
    number = case.arguments[argument]
    if isinstance(number, list):
        return EPS[dtype]
    value, *gradients = wanted_of(case)
    slope = dict(zip(case.arguments, gradients, strict=True))[argument]
    cancelled = abs(value) / abs(slope * number) if slope * number else 1.0
    return 2.0 * EPS[dtype] * float(min(max(cancelled, 1.0), 2.0))


def value_and_gradients(name: str, arrays: Mapping[str, Any], **options: Any) -> tuple[Any, dict[str, Any]]:
    """Value of a loss and gradients by name; row losses are summed.

    Differentiated are the float arrays of the table and weights, not queues and masks.
    """
    case = example(name)
    floats = [key for key in arrays if key in {*case.arguments, "weights"} and hasattr(arrays[key], "dtype")]

    def function(*given: Any) -> Any:
        value = case.call({**arrays, **dict(zip(floats, given, strict=True))}, **options)
        return namespace_of(value).sum(value) if value.shape else value

    value, gradients = differentiate(function, [arrays[key] for key in floats])
    return value, dict(zip(floats, gradients, strict=True))


def options_of(name: str, block_size: int | str | None) -> dict[str, Any]:
    """The option `block_size`, if the loss has it."""
    return {} if "scores" in LOSSES[name].arguments else {"block_size": block_size}


def assert_finite(variant: Variant, value: Any, gradients: Mapping[str, Any], of: object = "") -> None:
    """Assert that every number is finite."""
    for key, array in {"value": value, **gradients}.items():
        listed = flatten(variant.to_list(array))
        assert all(mp.isfinite(number) for number in listed), (of, key, listed)


def assert_nothing(variant: Variant, value: Any, gradients: Mapping[str, Any], of: object = "") -> None:
    """Assert that the loss and all gradients are exactly 0."""
    for key, array in {"value": value, **gradients}.items():
        listed = flatten(variant.to_list(array))
        assert all(number == 0 for number in listed), (of, key, listed)
