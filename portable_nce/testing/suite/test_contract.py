"""Contracts of every loss: kind of the result, and arguments and results of differentiation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp

from ..._core.namespace import namespace_of
from .. import oracles
from .._package import pnce
from ..cases import CASES, NOT_REDUCED, sixteenths
from ..variants import EPS, SMALLEST_NORMAL, assert_belongs, case_arrays, case_named, differentiate, flatten

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..variants import Variant

ROWS, FEATURES = 3, 3
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


def draw_vectors(variant: Variant, dtype: str | None = None, rows: int = ROWS, seed: int = 0) -> Any:
    """Draw an array of vectors."""
    return variant.floats(sixteenths((rows, FEATURES), seed), dtype)


# --- results ----------------------------------------------------------------------------------------------------------


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
def test_dual_critic(variant: Variant, dtype: str) -> None:
    scores = draw_vectors(variant, dtype, rows=FEATURES)
    critic = pnce.bounds.dual_critic(scores)
    assert_belongs(variant, critic, scores, (FEATURES,))
    wanted = oracles.evaluate("bounds.dual_critic", {"scores": variant.to_list(scores)}, {})
    assert oracles.error(variant.to_list(critic), wanted) <= 8 * variant.eps(dtype)


def test_log_n_ceiling(variant: Variant) -> None:
    """The ceiling of a bound, by the number of candidates or by a score matrix."""
    scores = variant.floats([[0.0] * 5] * 3)
    ceiling = pnce.bounds.log_n_ceiling(scores)
    assert oracles.error(float(ceiling), mp.log(5)) <= 2 * EPS["float64" if "float64" in variant.dtypes else "float32"]
    assert oracles.error(float(pnce.bounds.log_n_ceiling(5)), mp.log(5)) <= 2 * EPS["float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_standard_error(variant: Variant, dtype: str) -> None:
    """The jackknife over four pairs; 16-bit scores are computed in float32."""
    scores = variant.floats(sixteenths((4, 4), 5), dtype)
    error = pnce.bounds.standard_error(pnce.bounds.info_nce, scores)
    assert_belongs(variant, error, scores, ())
    rows = variant.to_list(scores)

    def bound(kept: list[int]) -> Any:
        return oracles.evaluate("bounds.info_nce", {"scores": [[rows[i][j] for j in kept] for i in kept]}, {})

    with mp.workdps(oracles.DIGITS):
        left = [bound([i for i in range(4) if i != deleted]) for deleted in range(4)]
        mean = sum(left) / 4
        wanted = mp.sqrt(mp.mpf(3) / 4 * sum((value - mean) ** 2 for value in left))
    tolerance = variant.eps(dtype) if "16" in dtype else 64 * variant.eps(dtype)
    assert oracles.error(variant.to_list(error), wanted) <= tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
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


# --- differentiation: JAX's conventions -------------------------------------------------------------------------------


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
