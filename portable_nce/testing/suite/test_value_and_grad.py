"""Arguments and results of `value_and_grad`, `grad` and `stop_gradient`, which follow the conventions of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ..._core.namespace import namespace_of
from .._package import pnce
from ..variants import assert_belongs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..variants import Variant


def product(x: Any, y: Any) -> Any:
    """Sum of x squared times y."""
    return namespace_of(x).sum(x * x * y)


def two_arrays(variant: Variant) -> tuple[Any, Any]:
    """Arguments for product."""
    return variant.floats([1.0, 2.0, 3.0]), variant.floats([4.0, 5.0, 6.0])


BY_X, BY_Y = [8.0, 20.0, 36.0], [1.0, 4.0, 9.0]


def test_argnums(variant: Variant) -> None:
    """One gradient for an integer; a tuple of gradients for a tuple of integers, in order."""
    x, y = two_arrays(variant)
    one = [(0, BY_X), (1, BY_Y), (-1, BY_Y), (-2, BY_X)]
    several: list[Any] = [((0, 1), [BY_X, BY_Y]), ((1, 0), [BY_Y, BY_X]), ((1,), [BY_Y]), ([0, -1], [BY_X, BY_Y])]
    for argnums, wanted in [*one, *several]:
        value, together = pnce.value_and_grad(product, argnums=argnums)(x, y)
        assert_belongs(variant, value, x, ())
        assert float(value) == 78.0, argnums
        for found in (together, pnce.grad(product, argnums=argnums)(x, y)):
            if isinstance(argnums, int):
                assert_belongs(variant, found, x, (3,))
                assert variant.to_list(found) == wanted, argnums
            else:
                assert type(found) is tuple, argnums
                assert [variant.to_list(gradient) for gradient in found] == wanted, argnums


def test_auxiliary_result(variant: Variant) -> None:
    x, y = two_arrays(variant)

    def function(a: Any, b: Any) -> Any:
        return product(a, b), {"double": 2 * a, "name": "aux"}

    (value, aux), gradient = pnce.value_and_grad(function, has_aux=True)(x, y)
    assert float(value) == 78.0
    assert variant.to_list(gradient) == BY_X
    assert aux["name"] == "aux"
    assert_belongs(variant, aux["double"], x, (3,))
    assert variant.to_list(aux["double"]) == [2.0, 4.0, 6.0]
    gradient, aux = pnce.grad(function, has_aux=True)(x, y)
    assert variant.to_list(gradient) == BY_X
    assert aux["name"] == "aux"


def test_nested_containers(variant: Variant) -> None:
    """Dictionaries, lists and tuples of arrays as one argument; the gradient has the same structure."""
    x, y = two_arrays(variant)

    def function(parameters: Any) -> Any:
        return product(parameters["x"], parameters["rest"][0]) + 3 * product(parameters["rest"][1][0], parameters["x"])

    both: Any = pnce.value_and_grad(function)
    value, gradient = both({"x": x, "rest": [y, (x,)]})
    assert float(value) == 78.0 + 3 * 36.0
    assert isinstance(gradient, dict)
    assert isinstance(gradient["rest"], list)
    assert isinstance(gradient["rest"][1], tuple)
    assert variant.to_list(gradient["rest"][0]) == BY_Y
    assert variant.to_list(gradient["x"]) == [8.0 + 3.0, 20.0 + 12.0, 36.0 + 27.0]
    assert variant.to_list(gradient["rest"][1][0]) == [6.0, 24.0, 54.0]
    assert_belongs(variant, gradient["x"], x, (3,))


def test_keywords_are_passed_on(variant: Variant) -> None:
    x, y = two_arrays(variant)

    def function(a: Any, *, factor: float, other: Any) -> Any:
        return factor * product(a, other)

    value, gradient = pnce.value_and_grad(function)(x, factor=2.0, other=y)
    assert float(value) == 156.0
    assert variant.to_list(gradient) == [2 * g for g in BY_X]


def test_unused_argument_has_gradient_zero(variant: Variant) -> None:
    x, y = two_arrays(variant)
    value, (by_x, by_y) = pnce.value_and_grad(lambda a, b: product(a, a) + 0 * float(b.shape[0]), argnums=(0, 1))(x, y)
    assert float(value) == 36.0
    assert variant.to_list(by_x) == [3.0, 12.0, 27.0]
    assert by_y.dtype == y.dtype
    assert variant.to_list(by_y) == [0.0, 0.0, 0.0]


def test_stop_gradient(variant: Variant) -> None:
    x, y = two_arrays(variant)
    stopped = pnce.stop_gradient(x)
    assert_belongs(variant, stopped, x, (3,))
    assert variant.to_list(stopped) == [1.0, 2.0, 3.0]
    value, gradient = pnce.value_and_grad(lambda a: product(a, pnce.stop_gradient(a) * y))(x)
    assert float(value) == 1.0 * 4 + 8.0 * 5 + 27.0 * 6
    assert variant.to_list(gradient) == [2.0 * 4, 8.0 * 5, 18.0 * 6]
    value, gradient = pnce.value_and_grad(lambda a: product(pnce.stop_gradient(a), y))(x)
    assert float(value) == 78.0
    assert variant.to_list(gradient) == [0.0, 0.0, 0.0]


def test_gradient_of_a_gradient(variant: Variant) -> None:
    x, y = two_arrays(variant)

    def slope(a: Any, b: Any) -> Any:
        return product(pnce.grad(product)(a, b), b)

    # product(2xy, y) = sum of 4 x^2 y^3, whose slope is 8 x y^3.
    assert variant.to_list(pnce.grad(slope)(x, y)) == [8.0 * 64, 16.0 * 125, 24.0 * 216]


def test_wrong_calls_of_value_and_grad_are_refused(variant: Variant) -> None:
    """Errors for missing arguments, results that are not scalars, and arguments without a gradient."""
    x, y = two_arrays(variant)
    calls: list[tuple[type[Exception], str, Callable[..., Any], Any, tuple[Any, Any]]] = [
        *((ValueError, r"argnums.*2", product, argnums, (x, y)) for argnums in (2, -3, (0, 2))),
        (TypeError, r"(?s)expected.*got", lambda a, b: a * b, 0, (x, y)),
        (TypeError, r"(?s)expected.*got", lambda _a, _b: 1.0, 0, (x, y)),
        (TypeError, r"(?s)expected.*got", lambda a, b: (product(a, b), a), 0, (x, y)),
        (TypeError, r"(?s)expected.*float.*got.*int", product, 0, (variant.array([1, 2, 3]), y)),
        (TypeError, r"(?s)expected arrays.*got", product, 0, (1.0, variant.floats([1.0]))),
        (TypeError, r"(?s)expected arrays.*got", product, 0, ("x", variant.floats([1.0]))),
    ]
    for error, words, function, argnums, arrays in calls:
        with pytest.raises(error, match=words):
            pnce.value_and_grad(function, argnums=argnums)(*arrays)
