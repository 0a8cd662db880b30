"""What every loss promises whatever its value: the kind of its result, and what differentiation accepts and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp, mpf

from ..._core.namespace import library_namespace
from .. import oracles
from .._package import pnce
from ..cases import CASES
from ..variants import (
    EPS,
    SMALLEST_NORMAL,
    assert_belongs,
    case_arrays,
    case_named,
    differentiate,
    flatten,
    generator,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..variants import Variant

ROWS, FEATURES = 3, 3
NAMES = [case.name for case in CASES]
FEW = {"info_nce", "info_nce mask", "nt_xent bilinear", "clip", "dcl streamed", "from_scores.info_nce", "bounds.dual"}
"""Cases for a second look, where looking costs."""

OWN_ARITHMETIC = ("bounds.dual_critic", "density.log_partition", "density.recover_log_prob")
"""The cases of these functions sum their results themselves, in the dtype of the result."""
DTYPES = ["float64", "float32", "float16", "bfloat16"]


def draw_vectors(variant: Variant, dtype: str | None = None, rows: int = ROWS, seed: int = 0) -> Any:
    """Draw an array of vectors."""
    numbers = generator(seed)
    return variant.floats([[numbers.gauss(0.0, 1.0) for _ in range(FEATURES)] for _ in range(rows)], dtype)


# --- what comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if name in FEW else [pytest.mark.exhaustive])
        for dtype in ("float16", "bfloat16")
        for name in NAMES
        if not name.startswith(OWN_ARITHMETIC)
    ],
)
def test_sixteen_bits_are_computed_in_thirty_two(variant: Variant, name: str, dtype: str) -> None:
    """The result of 16-bit inputs is the result of the same numbers in float32, rounded once."""
    case = case_named(name)
    narrow = case_arrays(variant, case, dtype)
    wide = [
        variant.floats(variant.to_list(array), "float32") if array.dtype == narrow[0].dtype else array
        for array in narrow
    ]
    results, wanted = (differentiate(case.function, arrays, len(case.arguments)) for arrays in (narrow, wide))
    assert_belongs(variant, results[0], narrow[0], ())
    for got, want in zip([results[0], *results[1]], [wanted[0], *wanted[1]], strict=True):
        assert got.dtype == narrow[0].dtype
        rounded = variant.to_list(variant.floats(variant.to_list(want), dtype))
        if not variant.half_products:
            assert variant.to_list(got) == rounded
            continue
        # Or the other neighbour; and where terms cancel, what float32 leaves of them.
        entries = list(zip(flatten(variant.to_list(got)), flatten(rounded), strict=True))
        left = EPS["float32"] * max(abs(y) for _, y in entries)
        for x, y in entries:
            assert x == y or abs(x - y) <= left + EPS[dtype] * max(abs(x), abs(y), SMALLEST_NORMAL[dtype])


@pytest.mark.parametrize("name", ["info_nce mask", "dcl streamed", "from_scores.info_nce", "bounds.dual"])
def test_every_dtype_stays_what_it_is(variant: Variant, name: str) -> None:
    """Also the dtypes that another variant of the same library is there for."""
    case = case_named(name)
    for dtype in (*variant.dtypes, *variant.further_dtypes):
        arrays = case_arrays(variant, case, dtype)
        value, gradients = differentiate(case.function, arrays, len(case.arguments))
        assert_belongs(variant, value, arrays[0], ())
        for gradient, argument in zip(gradients, arrays, strict=False):
            assert_belongs(variant, gradient, argument, tuple(argument.shape))


LOSSES_OF_EMBEDDINGS: dict[str, tuple[Callable[..., Any], int]] = {
    "info_nce": (pnce.info_nce, ROWS),
    "info_nce symmetric": (lambda a, b, **options: pnce.info_nce(a, b, symmetric=True, **options), ROWS),
    "flat_nce": (pnce.flat_nce, 2 * ROWS),
    "nt_xent": (pnce.nt_xent, 2 * ROWS),
    "dcl": (pnce.dcl, 2 * ROWS),
    "clip": (lambda a, b, **options: pnce.clip(a, b, logit_scale=5.0, **options), ROWS),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("loss", list(LOSSES_OF_EMBEDDINGS))
def test_reduction_none_gives_the_rows(variant: Variant, loss: str, block_size: int | None, dtype: str) -> None:
    function, rows = LOSSES_OF_EMBEDDINGS[loss]
    a, b = draw_vectors(variant, dtype, seed=1), draw_vectors(variant, dtype, seed=2)
    weights = variant.floats([0.5, 0.0, 2.0], dtype)
    results = function(a, b, weights=weights, reduction="none", block_size=block_size)
    assert_belongs(variant, results, a, (rows,))
    total = function(a, b, weights=weights, reduction="sum", block_size=block_size)
    mean = function(a, b, weights=weights, reduction="mean", block_size=block_size)
    listed = [mpf(x) for x in variant.to_list(results)]
    assert listed[1] == 0
    scale = sum(variant.to_list(weights)) * (rows // ROWS)
    assert oracles.error(variant.to_list(total), sum(listed)) <= 8 * variant.eps(dtype)
    assert oracles.error(variant.to_list(mean), sum(listed) / scale) <= 8 * variant.eps(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", ["info_nce", "flat_nce", "dcl"])
def test_reduction_none_of_scores(variant: Variant, loss: str, dtype: str) -> None:
    scores = draw_vectors(variant, dtype, rows=FEATURES)
    results = getattr(pnce.from_scores, loss)(scores, reduction="none")
    assert_belongs(variant, results, scores, (FEATURES,))
    wanted = oracles.evaluate(f"from_scores.{loss}", {"scores": variant.to_list(scores)}, {"reduction": "none"})
    assert oracles.error(variant.to_list(results), wanted) <= 8 * variant.eps(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bounds_and_diagnostics_belong_to_the_input(variant: Variant, dtype: str) -> None:
    scores = draw_vectors(variant, dtype, rows=FEATURES)
    critic = pnce.bounds.dual_critic(scores)
    assert_belongs(variant, critic, scores, (FEATURES,))
    assert_belongs(variant, pnce.bounds.dual(scores, critic), scores, ())
    assert_belongs(variant, pnce.bounds.info_nce(scores), scores, ())
    size = pnce.diagnostics.effective_sample_size(scores, reduction="none")
    assert_belongs(variant, size, scores, (FEATURES,))
    wanted = oracles.evaluate("bounds.dual_critic", {"scores": variant.to_list(scores)}, {})
    assert oracles.error(variant.to_list(critic), wanted) <= 8 * variant.eps(dtype)


def test_log_n_ceiling(variant: Variant) -> None:
    """The ceiling of a bound, by the number of candidates or by a score matrix."""
    scores = variant.floats([[0.0] * 5] * 3)
    ceiling = pnce.bounds.log_n_ceiling(scores)
    assert oracles.error(float(ceiling), mp.log(5)) <= 2 * EPS["float64" if "float64" in variant.dtypes else "float32"]
    assert oracles.error(float(pnce.bounds.log_n_ceiling(5)), mp.log(5)) <= 2 * EPS["float64"]


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


# --- differentiation: JAX's conventions everywhere ------------------------------------------------------------------


def product(x: Any, y: Any) -> Any:
    """Sum of x squared times y."""
    xp = library_namespace(x) if not hasattr(x, "__array_namespace__") else x.__array_namespace__()
    return xp.sum(x * x * y)


def two_arrays(variant: Variant) -> tuple[Any, Any]:
    """Arguments for product."""
    return variant.floats([1.0, 2.0, 3.0]), variant.floats([4.0, 5.0, 6.0])


BY_X, BY_Y = [8.0, 20.0, 36.0], [1.0, 4.0, 9.0]


@pytest.mark.parametrize(
    ("argnums", "wanted"),
    [(0, BY_X), (1, BY_Y), (-1, BY_Y), (-2, BY_X)],
    ids=["first", "second", "last", "last but one"],
)
def test_one_argument(variant: Variant, argnums: int, wanted: list[float]) -> None:
    x, y = two_arrays(variant)
    value, gradient = pnce.value_and_grad(product, argnums=argnums)(x, y)
    assert_belongs(variant, value, x, ())
    assert_belongs(variant, gradient, x, (3,))
    assert float(value) == 78.0
    assert variant.to_list(gradient) == wanted
    assert variant.to_list(pnce.grad(product, argnums=argnums)(x, y)) == wanted


@pytest.mark.parametrize(
    ("argnums", "wanted"),
    [((0, 1), [BY_X, BY_Y]), ((1, 0), [BY_Y, BY_X]), ((1,), [BY_Y]), ([0, -1], [BY_X, BY_Y])],
    ids=["both", "turned", "tuple of one", "list"],
)
def test_several_arguments(variant: Variant, argnums: Any, wanted: list[list[float]]) -> None:
    x, y = two_arrays(variant)
    value, gradients = pnce.value_and_grad(product, argnums=argnums)(x, y)
    assert float(value) == 78.0
    assert type(gradients) is tuple
    assert [variant.to_list(gradient) for gradient in gradients] == wanted
    alone = pnce.grad(product, argnums=argnums)(x, y)
    assert type(alone) is tuple
    assert [variant.to_list(gradient) for gradient in alone] == wanted


@pytest.mark.parametrize("argnums", [2, -3, (0, 2)])
def test_argnums_out_of_range(variant: Variant, argnums: Any) -> None:
    with pytest.raises(ValueError, match=r"argnums.*2"):
        pnce.value_and_grad(product, argnums=argnums)(*two_arrays(variant))


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

    value, gradient = pnce.value_and_grad(function)({"x": x, "rest": [y, (x,)]})
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


@pytest.mark.parametrize("wrong", ["vector", "number", "pair"])
def test_result_must_be_one_number(variant: Variant, wrong: str) -> None:
    x, y = two_arrays(variant)
    function = {"vector": lambda a, b: a * b, "number": lambda _a, _b: 1.0, "pair": lambda a, b: (product(a, b), a)}[
        wrong
    ]
    with pytest.raises(TypeError, match=r"(?s)expected.*got"):
        pnce.value_and_grad(function)(x, y)


def test_integers_have_no_gradient(variant: Variant) -> None:
    with pytest.raises(TypeError, match=r"(?s)expected.*float.*got.*int"):
        pnce.value_and_grad(product)(variant.array([1, 2, 3]), variant.floats([4.0, 5.0, 6.0]))


@pytest.mark.parametrize("name", ["numbers", "text"])
def test_arguments_must_be_arrays(variant: Variant, name: str) -> None:
    wrong: Any = {"numbers": 1.0, "text": "x"}[name]
    with pytest.raises(TypeError, match=r"(?s)expected arrays.*got"):
        pnce.value_and_grad(product)(wrong, variant.floats([1.0]))
