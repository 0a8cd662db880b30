"""The tape against torch's autodiff, function by function; and its errors."""

from __future__ import annotations

import enum
import functools
import math
import operator
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import array_api_compat
import array_api_strict
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce

pytestmark = pytest.mark.usefixtures("jax_x64")

Function = Callable[..., Any]

A = np.asarray([[0.3, -0.7, 0.2], [0.9, 0.1, -0.4]])
B = np.asarray([[0.5, 0.6, -0.8], [-0.2, 0.4, 0.7]])
COLUMN = np.asarray([[0.4], [-0.6]])
ROW = np.asarray([0.2, -0.3, 0.9])
SQUARE = np.asarray([[1.0, 0.5, -0.3], [0.2, -0.8, 0.4], [0.6, 0.1, 0.7]])
BATCH = np.arange(24.0).reshape(4, 2, 3) / 10 - 1
POSITIVE = np.abs(A) + 0.5
TIES = np.asarray([[1.0, 1.0, 0.0], [2.0, -1.0, 2.0]])

# name -> (function of the namespace and arrays, arrays)
FUNCTIONS: dict[str, tuple[Function, tuple[np.ndarray, ...]]] = {
    **{name: (lambda xp, x, name=name: getattr(xp, name)(x), (A,)) for name in (
        "abs", "exp", "expm1", "negative", "square", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
        "tanh", "asinh", "atanh", "positive", "floor", "sign", "exp2", "sum", "min",
    )},
    **{name: (lambda xp, x, name=name: getattr(xp, name)(x), (POSITIVE,)) for name in (
        "log", "log1p", "log2", "log10", "sqrt", "reciprocal",
    )},
    "acosh": (lambda xp, x: xp.acosh(x + 1), (POSITIVE,)),
    **{f"{name} {label}": (lambda xp, x, y, name=name: getattr(xp, name)(x, y), pair) for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "hypot", "atan2", "logaddexp",
    ) for label, pair in (("same", (A, B)), ("column", (A, COLUMN)), ("row", (ROW, A)))},
    "pow": (lambda xp, x, y: xp.pow(x, y), (POSITIVE, B)),
    "pow scalar": (lambda xp, x: x**3 + 2.0**x, (A,)),
    "scalars": (lambda xp, x: 2.0 * x - x / 3.0 + (1.0 - x) + 1.0 / (x + 2.0) - -x + +x + abs(x), (A,)),
    "maximum ties": (lambda xp, x, y: xp.maximum(x, y), (TIES, np.ones((2, 3)))),
    "matmul": (lambda xp, x, y: x @ y, (A, SQUARE)),
    **{name: (lambda xp, x, y: xp.matmul(x, y), pair) for name, pair in {
        "matmul vector": (A, ROW), "matmul vector matrix": (ROW, SQUARE), "matmul vectors": (ROW, ROW + 1),
        "matmul batch": (BATCH, SQUARE),
    }.items()},
    "matmul batches": (lambda xp, x, y: xp.matmul(x, xp.matrix_transpose(y)), (BATCH, A)),
    "matrix_transpose": (lambda xp, x: x.mT, (BATCH,)),
    "tensordot": (lambda xp, x, y: xp.tensordot(x, y, axes=1), (BATCH, SQUARE)),
    "tensordot axes": (lambda xp, x, y: xp.tensordot(x, y, axes=((1, 2), (0, 1))), (BATCH, A)),
    "vecdot": (lambda xp, x, y: xp.vecdot(x, y), (A, B)),
    "sum axis": (lambda xp, x: xp.sum(x, axis=0), (A,)),
    "sum axes": (lambda xp, x: xp.sum(x, axis=(0, -1), keepdims=True), (BATCH,)),
    **{name: (lambda xp, x, name=name: getattr(xp, name)(x, axis=1), (A,)) for name in (
        "mean", "max", "prod", "cumulative_sum",
    )},
    "var": (lambda xp, x: xp.var(x, axis=1, correction=1), (A,)),
    "std": (lambda xp, x: xp.std(x, axis=0), (A,)),
    "max ties": (lambda xp, x: xp.max(x, axis=1, keepdims=True), (TIES,)),
    "reshape": (lambda xp, x: xp.reshape(x, (3, -1)), (A,)),
    "permute_dims": (lambda xp, x: xp.permute_dims(x, (2, 0, 1)), (BATCH,)),
    "moveaxis": (lambda xp, x: xp.moveaxis(x, 0, -1), (BATCH,)),
    "expand_dims": (lambda xp, x: xp.expand_dims(x, axis=-1), (A,)),
    "squeeze": (lambda xp, x: xp.squeeze(x, axis=1), (COLUMN,)),
    "broadcast_to": (lambda xp, x: xp.broadcast_to(x, (4, 2, 3)), (COLUMN,)),
    "broadcast_arrays": (lambda xp, x, y: xp.broadcast_arrays(x, y)[0], (COLUMN, ROW)),
    "concat": (lambda xp, x, y: xp.concat([x, y, x], axis=1), (A, COLUMN)),
    "concat flat": (lambda xp, x, y: xp.concat([x, y], axis=None), (A, ROW)),
    "stack": (lambda xp, x, y: xp.stack([x, y], axis=-1), (A, B)),
    "unstack": (lambda xp, x: xp.unstack(x, axis=1)[2], (A,)),
    "flip": (lambda xp, x: xp.flip(x, axis=0), (A,)),
    "tril": (lambda xp, x: xp.tril(x, k=-1), (SQUARE,)),
    "triu": (lambda xp, x: xp.triu(x), (SQUARE,)),
    "take": (lambda xp, x: xp.take(x, xp.asarray([2, 0, 2]), axis=1), (A,)),
    "where": (lambda xp, x, y: xp.where(x > 0, x * 2, y), (A, B)),
    "where scalar": (lambda xp, x: xp.where(x > 0, x, 0.0) + xp.where(x > 0, 1.0, x), (A,)),
    "clip": (lambda xp, x: xp.clip(x, -0.5, 0.25), (A,)),
    "clip below": (lambda xp, x: xp.clip(x, min=-0.1), (A,)),
    "slice": (lambda xp, x: x[1:, ::2], (A,)),
    "index": (lambda xp, x: x[1, ...], (A,)),
    "prod of zeros": (lambda xp, x: xp.prod(x), (TIES,)),
    "sort": (lambda xp, x: xp.sort(x, axis=0), (A,)),
    "take_along_axis": (lambda xp, x: xp.take_along_axis(x, xp.argsort(x, axis=1), axis=1), (A,)),
    "roll": (lambda xp, x: xp.roll(x, 1, axis=1), (A,)),
    "tile": (lambda xp, x: xp.tile(x, (2, 1)), (A,)),
    "diff": (lambda xp, x: xp.diff(x, axis=1, n=2), (A,)),
    "remainder": (lambda xp, x, y: xp.remainder(x, y), (A, B)),
    "vector_norm": (lambda xp, x: xp.linalg.vector_norm(x, axis=1), (A,)),
    "vector_norm of all": (lambda xp, x: xp.linalg.vector_norm(x), (A,)),
    "matrix_norm": (lambda xp, x: xp.linalg.matrix_norm(x), (BATCH,)),
    "outer": (lambda xp, x, y: xp.linalg.outer(x, y), (ROW, ROW + 1)),
    "trace": (lambda xp, x: xp.linalg.trace(x), (SQUARE,)),
    "integers": (lambda xp, x: x[xp.asarray([0, 1, 1, 0]), xp.asarray([2, 0, 0, 2])], (A,)),
    "newaxis": (lambda xp, x: x[:, None, 1], (A,)),
    "astype": (lambda xp, x: xp.astype(xp.astype(x, xp.float32), xp.float64), (A,)),
    "comparison": (lambda xp, x, y: xp.astype(x < y, xp.float64) * x + xp.astype(~(x >= y), xp.float64), (A, B)),
}  # fmt: skip


def _scalar(function: Function, arrays: tuple[Any, ...]) -> Any:
    xp = array_api_compat.array_namespace(*arrays)
    out = function(xp, *arrays)
    # Distinct weights, so that a misplaced cotangent shows.
    weight = xp.reshape(xp.cos(xp.arange(math.prod(out.shape), dtype=xp.float64)), out.shape)
    return xp.sum(out * weight) + xp.sum(xp.tanh(out) ** 2)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_first_and_second_order_are_those_of_torch(name: str) -> None:
    """Strict arrays take the same path as NumPy arrays."""
    function, arrays = FUNCTIONS[name]
    where = tuple(range(len(arrays)))

    def first(differentiate: Function, convert: Function) -> Any:
        return differentiate(lambda *x: _scalar(function, x), where)(*map(convert, arrays))

    def second(differentiate: Function, convert: Function) -> Any:
        def squares(*x: Any) -> Any:
            return sum((slope**2).sum() for slope in differentiate(lambda *y: _scalar(function, y), where)(*x))

        return differentiate(squares, where)(*map(convert, arrays))

    slopes = first(pnce.grad, np.asarray)
    for ours, theirs in zip(slopes, first(torch.func.grad, torch.asarray), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(second(pnce.grad, np.asarray), second(torch.func.grad, torch.asarray), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)
    if name != "exp2":  # not in the standard
        for ours, strict in zip(slopes, first(pnce.grad, array_api_strict.asarray), strict=True):
            np.testing.assert_array_equal(np.asarray(strict), ours)


def test_a_users_own_critic() -> None:
    def critic(parameters: dict[str, Any], x: Any, y: Any) -> Any:
        xp = array_api_compat.array_namespace(x, parameters["first"])
        shape = (x.shape[0], y.shape[0], x.shape[1])
        pairs = xp.concat([xp.broadcast_to(x[:, None, :], shape), xp.broadcast_to(y[None, :, :], shape)], axis=2)
        hidden = xp.tanh(pairs @ parameters["first"] + parameters["bias"])
        gated = xp.where(hidden > 0, hidden, 0.1 * hidden)
        return pnce.from_scores.info_nce(xp.sum(gated * parameters["last"][None, None, :], axis=2))

    rng = np.random.default_rng(0)
    parameters = {"first": rng.normal(size=(6, 5)), "bias": rng.normal(size=5), "last": rng.normal(size=5)}
    x, y = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    results: list[list[Any]] = []
    for convert in (np.asarray, torch.asarray, jnp.asarray, array_api_strict.asarray):
        given = {key: convert(p) for key, p in parameters.items()}
        value, gradient = pnce.value_and_grad(critic)(given, convert(x), convert(y))
        assert sorted(gradient) == sorted(parameters)
        results.append([float(value), *(np.asarray(gradient[key]) for key in sorted(parameters))])
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-14)


def test_hessian_vector_product_on_numpy() -> None:
    rng = np.random.default_rng(1)
    x, y, v = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), rng.normal(size=(5, 3))
    for block_size in (None, 2):

        def loss(a: Any, block_size: int | None = block_size) -> Any:
            return pnce.info_nce(a, y, temperature=0.5, block_size=block_size)

        product = pnce.grad(lambda a: (pnce.grad(loss)(a) * v).sum())(x)
        step = 1e-6
        numeric = (pnce.grad(loss)(x + step * v) - pnce.grad(loss)(x - step * v)) / (2 * step)
        np.testing.assert_allclose(product, numeric, rtol=1e-6, atol=1e-8)


def test_results_share_no_memory() -> None:
    x, y = np.ones(3), np.ones(3)
    _, (first, second) = pnce.value_and_grad(lambda a, b: (a + b).sum(), argnums=(0, 1))(x, y)
    first += 1.0
    np.testing.assert_array_equal(second, np.ones(3))
    np.testing.assert_array_equal(x, np.ones(3))


@pytest.mark.parametrize("loss", [pnce.bounds.club, pnce.bounds.dv, pnce.from_scores.info_nce])
def test_a_gradient_belongs_to_its_caller(loss: Any) -> None:
    """Also of a call that runs as a program, which keeps arrays."""
    scores = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    transformed, before = pnce.value_and_grad(loss), scores.copy()
    gradients = [transformed(scores)[1] for _ in range(5)]
    for k, gradient in enumerate(gradients):
        np.testing.assert_array_equal(gradient, transformed(scores)[1])
        gradient[...] = float(k)
        assert not np.shares_memory(gradient, transformed(scores)[1])
    np.testing.assert_array_equal(scores, before)


def test_aux_structures_and_unused_arguments() -> None:
    def function(parameters: dict[str, Any], unused: Any) -> Any:
        value = (parameters["a"] * parameters["b"][0]).sum()
        return value, {"double": 2 * value, "name": "kept", "none": None}

    parameters = {"a": np.asarray([1.0, 2.0]), "b": (np.asarray(3.0), None)}
    transformed = pnce.value_and_grad(function, argnums=(0, -1), has_aux=True)
    (value, aux), (gradient, nothing) = transformed(parameters, np.ones(2))
    assert float(value) == 9.0
    assert float(aux["double"]) == 18.0
    assert isinstance(aux["double"], np.ndarray | np.floating)
    assert aux["name"] == "kept"
    np.testing.assert_array_equal(gradient["a"], [3.0, 3.0])
    assert gradient["b"][1] is None
    assert float(gradient["b"][0]) == 3.0
    np.testing.assert_array_equal(nothing, np.zeros(2))


class Bunch(dict[str, Any]):
    """Keys as attributes, with a constructor that takes keywords alone, as scikit-learn's."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Versioned(list[Any]):
    version = 0


class Marked(tuple[Any, ...]):  # noqa: SLOT001  (with attributes)
    """A tuple with attributes."""


class Layer(NamedTuple):
    weight: Any
    bias: Any


class Place(enum.Enum):
    LAST = 2
    FIRST = 1


def with_attribute(tree: Any, name: str, value: Any) -> Any:
    setattr(tree, name, value)
    return tree


FIRST, SECOND = np.asarray([[1.0, 2.0], [0.0, 1.0]]), np.asarray([[1.0, 0.0], [3.0, 1.0]])
CONTAINERS: dict[str, Any] = {
    "dict": {"b": FIRST, "a": SECOND},
    "dict of keys of several types": {"b": FIRST, None: SECOND, 3: FIRST, (1, 2): SECOND},
    "dict of an Enum": {Place.LAST: FIRST, Place.FIRST: SECOND},
    "OrderedDict": with_attribute(OrderedDict(b=FIRST, a=SECOND), "version", 3),
    "defaultdict": defaultdict(list, b=FIRST, a=SECOND),
    "Bunch": Bunch(b=FIRST, a=SECOND),
    "list": [FIRST, SECOND],
    "subclass of list": with_attribute(Versioned([FIRST, SECOND]), "version", 3),
    "subclass of tuple": with_attribute(Marked([FIRST, SECOND]), "version", 3),
    "NamedTuple": Layer(SECOND, FIRST),
    "nested": {"z": [FIRST, None, {"y": SECOND, "x": Layer(FIRST, ())}], "a": OrderedDict(b=SECOND, a=[])},
}


def arrays_in(tree: Any) -> list[Any]:
    """Arrays in the order in which a function meets them."""
    if isinstance(tree, (dict, list, tuple)):
        return [x for item in (tree.values() if isinstance(tree, dict) else tree) for x in arrays_in(item)]
    return [] if tree is None else [tree]


def assert_same_containers(found: Any, wanted: Any) -> None:
    """Compare types, keys, their order, and attributes."""
    if not isinstance(wanted, (dict, list, tuple)):
        assert (found is None) == (wanted is None)
        return
    assert type(found) is type(wanted)
    assert getattr(found, "__dict__", None) == getattr(wanted, "__dict__", None)
    assert getattr(found, "default_factory", None) is getattr(wanted, "default_factory", None)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
    items = (tree.values() if isinstance(tree, dict) else tree for tree in (found, wanted))
    for a, b in zip(*items, strict=True):
        assert_same_containers(a, b)


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_comes_back_as_it_was(name: str) -> None:
    """As an argument, differentiated or not, as the gradient and in `aux`: type, keys, their order, attributes."""
    tree = CONTAINERS[name]

    def product(tree: Any, constants: Any) -> Any:
        assert_same_containers(tree, CONTAINERS[name])
        assert_same_containers(constants, CONTAINERS[name])
        factors, others = arrays_in(tree), arrays_in(constants)
        # Products of matrices, and other factors, that depend on the order.
        total = functools.reduce(operator.matmul, [(k + 1.0) * x for k, x in enumerate(factors)])
        return (total * others[0]).sum() + total[0, 1] * others[1][1, 0], {"tree": tree, "constants": constants}

    (value, aux), gradient = pnce.value_and_grad(product, has_aux=True)(tree, tree)
    assert float(value) == pytest.approx(float(product(tree, tree)[0]))
    for found in (gradient, aux["tree"], aux["constants"]):
        assert_same_containers(found, tree)
    for kept in (aux["tree"], aux["constants"]):
        for a, b in zip(arrays_in(kept), arrays_in(tree), strict=True):
            assert type(a) is np.ndarray
            np.testing.assert_array_equal(a, b)
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays_in(tree)]
    total = functools.reduce(operator.matmul, [(k + 1.0) * x for k, x in enumerate(tensors)])
    wanted = (total * torch.tensor(arrays_in(tree)[0])).sum() + total[0, 1] * float(arrays_in(tree)[1][1, 0])
    for a, b in zip(arrays_in(gradient), torch.autograd.grad(wanted, tensors), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-14)


def test_other_arguments_are_passed_as_they_are() -> None:
    numbers, steps, masked = Counter(k=3), [1, {"b": 2, "a": (None, "c")}], np.ma.array([1.0, 2.0], mask=[False, True])

    def function(x: Any, *constants: Any) -> Any:
        for found, wanted in zip(constants, (numbers, steps, np.float32, masked), strict=True):
            assert found is wanted
        return (x * numbers["k"]).sum(), {"steps": steps}

    gradient, aux = pnce.grad(function, has_aux=True)(A, numbers, steps, np.float32, masked)
    np.testing.assert_array_equal(gradient, np.full((2, 3), 3.0))
    assert aux["steps"] is steps


def test_a_function_that_changes_its_container_leaves_the_callers() -> None:
    parameters: dict[str, Any] = {"b": A, "a": {}}

    def function(parameters: dict[str, Any]) -> Any:
        parameters["a"]["kept"] = 1
        return parameters.pop("b").sum()

    gradient = pnce.grad(function)(parameters)
    np.testing.assert_array_equal(gradient["b"], np.ones((2, 3)))
    assert list(gradient) == list(parameters) == ["b", "a"]
    assert gradient["a"] == parameters["a"] == {}


def test_numbers_are_allowed_as_further_arguments() -> None:
    def function(x: Any, factor: float, constant: Any) -> Any:
        return (x.ravel() @ constant + x.argmax() * 0) * factor + pnce.stop_gradient(x[0, 0]).item()

    constant = np.arange(6.0)
    np.testing.assert_array_equal(pnce.grad(function)(A, 2.0, constant), 2.0 * constant.reshape(2, 3))


def test_a_function_that_does_not_depend_on_its_argument() -> None:
    for function, wanted in ((lambda x: pnce.stop_gradient(x).sum(), A.sum()), (lambda _: np.asarray(3.0), 3.0)):
        value, gradient = pnce.value_and_grad(function)(A)
        assert float(value) == pytest.approx(wanted)
        np.testing.assert_array_equal(gradient, np.zeros((2, 3)))


def assigns(x: Any) -> Any:
    x[0] = 1.0
    return x.sum()


REFUSED: list[tuple[type[Exception], str, Function]] = [
    (AttributeError, "no attribute 'cumprod'", lambda x: x.cumprod()),
    (NotImplementedError, "cumprod has no pullback", lambda x: np.cumprod(x).sum()),
    (NotImplementedError, "where= is not differentiated", lambda x: np.sum(x, where=x > 0)),
    (NotImplementedError, "nanmean has no pullback", lambda x: np.nanmean(x + 1)),
    (NotImplementedError, "no pullback", lambda x: x.__array_namespace__().linalg.det(x * np.eye(3))),
    (TypeError, "in place", assigns),
    (TypeError, "0-d array", lambda x: x),
    (TypeError, "expected the function to return a floating-point number, got bool", lambda x: x.sum() > 0),
    (ValueError, "axes of length 1", lambda x: x.__array_namespace__().squeeze(x, axis=0).sum()),
    (TypeError, "out= would write", lambda x: np.add(x, x, out=np.ones(3)).sum()),
]


@pytest.mark.parametrize("sign", ["+", "-", "*", "/", "//", "%", "**"])
@pytest.mark.parametrize("view", ["b", "b[...]", "b.T", "b[0]", "b.reshape(-1)"])
def test_operators_in_place_are_refused(sign: str, view: str) -> None:
    """Other names of the memory would keep the old numbers; a sum of losses, without axes, has no other."""
    space: dict[str, Any] = {}
    exec(f"def f(a):\n    b = a * 1\n    c = {view}\n    c {sign}= 2\n    return b.sum()\n", space)  # noqa: S102
    with pytest.raises(TypeError, match=rf"in place by \{sign[0]}.*=; write a new one, as in x = x"):
        pnce.grad(space["f"])(np.ones((2, 3)))

    def accumulated(x: Any) -> Any:
        total: Any = 0.0
        for row in x:
            total += row.sum()
        total *= 2.0
        return total

    np.testing.assert_array_equal(pnce.grad(accumulated)(np.ones((2, 3))), np.full((2, 3), 2.0))


def test_refusals() -> None:
    for kind, words, function in REFUSED:
        with pytest.raises(kind, match=words):
            pnce.grad(function)(np.ones(3))
    add: Any = np.sum
    calls: list[tuple[type[Exception], str, Function]] = [
        (TypeError, "real floating-point", lambda: pnce.grad(add)(np.ones(3, dtype=np.int64))),
        (TypeError, "expected arrays", lambda: pnce.grad(add)(1.0)),
        (TypeError, "got none", lambda: pnce.grad(add)({})),
        (ValueError, "argnums=3", lambda: pnce.grad(add, argnums=3)(np.ones(3))),
        (TypeError, "expected a function", lambda: pnce.grad(3)),  # type: ignore[arg-type]
        (TypeError, "pair", lambda: pnce.grad(add, has_aux=True)(np.ones(3))),
    ]
    for kind, words, call in calls:
        with pytest.raises(kind, match=words):
            call()


def test_a_recorded_array_behaves_like_an_array() -> None:
    def function(x: Any) -> Any:
        assert x.ndim == 2
        assert x.size == 6
        assert len(x) == 2
        assert x.T.shape == (3, 2)
        assert "TapeArray" in repr(x)
        assert {x: "found"}[x] == "found"  # although == is elementwise
        assert float(pnce.stop_gradient(x)[0, 0]) == A[0, 0]
        assert int(x[0, 0] * 10) == 3
        assert bool(x[0, 0] > 0)
        assert bool(((x > 0) | (x <= 0)).all())
        first, second = x
        moved = x.to_device(x.device) if hasattr(A, "to_device") else x
        return (first * second).sum() + (moved * 0).sum()

    np.testing.assert_allclose(pnce.grad(function)(A), A[::-1])


def test_a_constant_goes_through_what_has_no_pullback() -> None:
    """Only varying arrays are rejected; `concentrations` sorts distances, and has no gradient."""
    x, centres, members = np.random.default_rng(0).normal(size=(6, 2)), np.eye(2), np.asarray([0, 1, 0, 1, 0, 1])

    def loss(x: Any) -> Any:
        widths = pnce.concentrations(x, centres, members)
        assert widths.shape == (2,)
        return (x * x).sum() + widths.sum()

    value, gradient = pnce.value_and_grad(loss)(x)
    np.testing.assert_allclose(value, np.sum(x * x) + np.sum(pnce.concentrations(x, centres, members)))
    np.testing.assert_allclose(gradient, 2 * x)
    with pytest.raises(NotImplementedError, match="quantile has no pullback"):
        pnce.grad(lambda x: np.quantile(x, 0.5))(x)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_rows_that_are_taken_several_times(dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    rows = np.asarray([0, 127, 127, 5, 127], dtype=dtype)
    weights = np.arange(15.0, dtype=np.float32).reshape(5, 3)

    def total(x: Any) -> Any:
        xp = x.__array_namespace__()
        return xp.sum(xp.take(x, rows, axis=0) ** 3 * weights)

    expected = np.zeros_like(x)
    np.add.at(expected, rows, 3.0 * x[rows] ** 2 * weights)
    found = pnce.grad(total)(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    second = pnce.grad(lambda x: (pnce.grad(total)(x) * x).sum())(x)
    np.testing.assert_allclose(second, 3.0 * expected, rtol=1e-5)


def test_rows_from_the_end_and_no_rows() -> None:
    x = np.ones((4, 2))
    taken = pnce.grad(lambda x: x.__array_namespace__().take(x, np.asarray([-1, 0, -1]), axis=0).sum())(x)
    np.testing.assert_array_equal(taken, [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [2.0, 2.0]])
    none = np.zeros((0,), dtype=np.int64)
    assert not pnce.grad(lambda x: x.__array_namespace__().take(x, none, axis=0).sum())(x).any()
