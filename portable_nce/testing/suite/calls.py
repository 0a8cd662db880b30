"""Calls of the losses in `LOSSES` with a variant's arrays, and assertions about their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpmath import mp

from ..._core.namespace import namespace_of
from ..cases import LOSSES, example
from ..variants import differentiate, flatten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..cases import Case
    from ..variants import Nested, Variant

FEW = ("info_nce", "info_nce symmetric", "nt_xent", "siglip", "relic", "triplet_from_labels batch_hard", "moco")
"""One loss for each code path, for variants that compile every operation."""


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
