"""Properties of adapters beyond the values compared by the conformance suite."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import portable_nce as pnce
from portable_nce._core.numerics import clipped
from portable_nce._core.registry import adapter_of
from portable_nce.backends import torch as torch_backend
from portable_nce.testing.variants import Jax, assert_belongs, differentiate

mx.set_default_device(mx.cpu)  # where it has float64
pytestmark = pytest.mark.usefixtures("jax_x64")

A = np.asarray([[0.3, -0.7, 0.2], [0.9, 0.1, -0.4]])
B = np.asarray([[0.5, 0.6], [-0.2, 0.4], [0.25, -0.75]])

# NumPy methods of recorded arrays, which JAX arrays have too.
METHODS: dict[str, Callable[[Any], Any]] = {
    "astype": lambda x: x.astype(np.float32).astype(np.float64),
    "clip": lambda x: x.clip(-0.5, 0.5),
    "clip by keyword": lambda x: x.clip(min=-0.5, max=0.25),
    "dot": lambda x: x.dot(B),
    "flatten": lambda x: x.flatten(),
    "max": lambda x: x.max(axis=0),
    "mean": lambda x: x.mean(axis=1),
    "mean of all": lambda x: x.mean(),
    "min": lambda x: x.min(axis=1, keepdims=True),
    "ravel": lambda x: x.ravel(),
    "reshape": lambda x: x.reshape(3, 2),
    "reshape to a tuple": lambda x: x.reshape((3, 2)),
    "reshape to a list": lambda x: x.reshape([6]),
    "reshape to one axis": lambda x: x.reshape(-1),
    "squeeze": lambda x: x[None, ...].squeeze(axis=0),
    "std": lambda x: x.std(axis=1),
    "sum": lambda x: x.sum(axis=1),
    "transpose": lambda x: x.transpose(),
    "transpose by axes": lambda x: x[None, ...].transpose(2, 0, 1),
    "transpose by a tuple": lambda x: x[None, ...].transpose((2, 0, 1)),
    "var": lambda x: x.var(axis=0),
}


def weighted(method: Callable[[Any], Any], x: Any) -> tuple[Any, tuple[int, ...]]:
    """Weighted sum of the entries of a result, with distinct weights; and the shape."""
    result, plain = method(x), method(A)
    return (result * np.cos(np.arange(plain.size, dtype=np.float64)).reshape(plain.shape)).sum(), result.shape


def test_the_methods_of_a_recorded_array_have_values_and_gradients() -> None:
    losses = {name: functools.partial(weighted, method) for name, method in METHODS.items()}
    expected: Any = jax.jit(lambda x: {key: jax.value_and_grad(f, has_aux=True)(x) for key, f in losses.items()})(A)
    for name, loss in losses.items():
        (value, shape), gradient = pnce.value_and_grad(loss, has_aux=True)(A)
        (number, _), slope = expected[name]
        assert shape == METHODS[name](A).shape, name
        np.testing.assert_allclose(value, number, rtol=1e-14, err_msg=name)
        np.testing.assert_allclose(gradient, slope, rtol=1e-13, atol=1e-15, err_msg=name)


def test_the_methods_of_a_recorded_array_that_give_constants() -> None:
    def loss(x: Any) -> Any:
        assert [int(k) for k in x.argmax(axis=1)] == [0, 0]
        assert [int(k) for k in x.argmin(axis=0)] == [0, 0, 1]
        assert not bool((x > 0).all())
        assert bool((x > 0).any())
        assert pnce.stop_gradient(x).sum().item() == pytest.approx(A.sum())
        assert isinstance(pnce.stop_gradient(x).sum().item(), float)
        return x.sum()

    np.testing.assert_array_equal(pnce.grad(loss)(A), np.ones_like(A))


def test_a_recorded_array_taken_as_an_array_keeps_its_gradient() -> None:
    def loss(x: Any) -> Any:
        xp = x.__array_namespace__()
        assert xp.asarray(x) is x
        assert xp.asarray(x, dtype=np.float64) is x
        single = xp.asarray(x, dtype=np.float32)
        assert single.dtype == np.float32
        return xp.sum(xp.astype(single, np.float64) * A)

    np.testing.assert_allclose(pnce.grad(loss)(A), A, rtol=1e-7)


@pytest.mark.parametrize("shape", [(2, 3), (3,), (1, 3), (2, 1), (1, 1)])
def test_a_gradient_has_shape_and_dtype_of_its_argument_whatever_it_met(shape: tuple[int, ...]) -> None:
    for loss in (
        lambda x: np.sum(x * A),
        lambda x: np.sum(A - x),
        lambda x: np.sum(np.matmul(np.broadcast_to(x, (2, 3)), B)),
        lambda x: np.sum(np.sum(x, dtype=np.float64) * A),
    ):
        gradient = pnce.grad(loss)(np.ones(shape, dtype=np.float32))
        assert (gradient.dtype, gradient.shape) == (np.float32, shape)


def test_the_adapters_know_their_dtypes() -> None:
    for library in (np, torch, jnp, mx):
        sixteen = {"float16"} if library is np else {"float16", "bfloat16"}
        assert set(adapter_of(library.ones(2)).dtypes) == {"float64", "float32"} | sixteen


CONVERT: dict[str, Callable[[Any], Any]] = {
    "numpy": np.asarray,
    "torch": torch.asarray,
    "jax": jnp.asarray,
    "mlx": lambda x: mx.array(x, dtype=mx.float64),
}


@pytest.mark.parametrize("convert", CONVERT.values(), ids=CONVERT)
def test_auxiliary_results_come_back_unchanged(convert: Any) -> None:
    def loss(x: Any, y: Any) -> Any:
        return (x * y * y).sum(), {"twice": 2.0 * x, "rest": (y, "name", 3)}

    (value, aux), gradients = pnce.value_and_grad(loss, argnums=(1, 0), has_aux=True)(convert(A), convert(A + 1.0))
    np.testing.assert_allclose(np.asarray(value), np.sum(A * (A + 1.0) ** 2))
    np.testing.assert_allclose(np.asarray(gradients[0]), 2.0 * A * (A + 1.0))
    np.testing.assert_allclose(np.asarray(gradients[1]), (A + 1.0) ** 2)
    np.testing.assert_allclose(np.asarray(aux["twice"]), 2.0 * A)
    np.testing.assert_allclose(np.asarray(aux["rest"][0]), A + 1.0)
    assert aux["rest"][1:] == ("name", 3)
    both, one = (pnce.grad(lambda x, y: loss(x, y)[0], k)(convert(A), convert(A + 1.0)) for k in ((-1, 0), (1,)))
    for ours, wanted in ((both, gradients), (one, gradients[:1])):  # negative numbers count from the end
        for gradient, same in zip(ours, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(gradient), np.asarray(same))
    gradient, again = pnce.grad(loss, has_aux=True)(convert(A), convert(A + 1.0))
    np.testing.assert_allclose(np.asarray(gradient), (A + 1.0) ** 2)
    assert again["rest"][1] == "name"


@pytest.mark.parametrize("shape", [(3, 5), (1, 40_000), (40_000, 1), (300, 4096)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("asarray", [np.asarray, torch.from_numpy, jnp.asarray, mx.array])
def test_sums_of_rows_and_columns_are_exact_to_some_roundings(
    asarray: Callable[[Any], Any], shape: tuple[int, int], *, turned: bool
) -> None:
    """In either memory order, where the error of numpy.sum differs by forty roundings."""
    x = np.exp(3 * np.random.default_rng(1).normal(size=shape)).astype(np.float32)
    ours = asarray(x.T.copy()).T if turned else asarray(x)
    for axis in (0, 1):
        found = np.asarray(adapter_of(ours).sum_along(ours, axis))
        assert found.shape == (shape[1 - axis],)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, x.astype(np.float64).sum(axis=axis), rtol=3e-6)


def test_an_infinite_entry_stays_in_its_row_of_a_sum() -> None:
    x = np.ones((300, 200), dtype=np.float32)
    x[1, 3], x[2, 4], x[5, 5] = np.nan, np.inf, -np.inf
    for axis in (0, 1):
        np.testing.assert_array_equal(adapter_of(x).sum_along(x, axis), np.sum(x, axis=axis))


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("asarray", [np.asarray, torch.from_numpy, jnp.asarray, mx.array])
def test_steps_of_masked_tiles_are_what_they_say(asarray: Callable[[Any], Any], *, recorded: bool) -> None:
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(2, 130, 90)).astype(np.float32)
    x[3, 4], y[5, 6] = np.inf, np.nan
    flags, factor = rng.uniform(size=x.shape) < 0.3, rng.normal(size=(130, 1)).astype(np.float32)
    flags[3, 4] = flags[5, 6] = False
    of_columns = rng.normal(size=(1, 90)).astype(np.float32)
    wanted = (
        *(np.where(flags, y, 0.0), x + np.where(flags, factor, 0.0), x + y * factor, flags.sum(axis=1), y * factor),
        y * (factor + of_columns),
    )

    def steps(factor: Any) -> list[Any]:
        ours = [asarray(z.copy()) for z in (x, y, x, x, y, y, y)]
        adapter, chosen = adapter_of(ours[0]), asarray(flags)
        return [
            adapter.where_in_place(chosen, ours[1], 0.0),
            adapter.plus_product(ours[0], chosen, factor),
            adapter.plus_product(ours[2], ours[4], factor),
            adapter.count_along(chosen, 1, ours[3].dtype),
            adapter.times_in_place(ours[5], factor),
            adapter.times_sum(ours[6], factor, asarray(of_columns)),
        ]

    if not recorded:
        for found, expected in zip(steps(asarray(factor)), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6, atol=1e-6)  # some round once
        return
    live = np.isfinite(x + y)
    x, y = np.where(live, x, 0.0), np.where(live, y, 0.0)
    slope = pnce.grad(lambda factor: (steps(factor)[1] + steps(factor)[2]).sum())(asarray(factor))
    np.testing.assert_allclose(np.asarray(slope)[:, 0], np.sum(flags + y, axis=1), rtol=1e-5, atol=1e-5)


def test_a_large_matrix_is_multiplied_by_sums_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "_LARGE", 11)
    x, y, z = torch.arange(1.0, 16.0).reshape(5, 3), torch.arange(5.0)[:, None], torch.arange(3.0)[None, :]
    wanted = x * (y + z)
    with CountedProducts() as products:
        found = adapter_of(x).times_sum(x, y, z)
    assert products.shapes == [(3, 3), (2, 3)]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


class CountedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shapes of what is multiplied in place."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name == "aten::mul_":  # noqa: SLF001  (public nowhere)
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


def test_sums_are_recorded() -> None:
    x = np.arange(6.0).reshape(2, 3)
    for axis in (0, 1):
        value, slope = pnce.value_and_grad(lambda x, a=axis: (adapter_of(x).sum_along(x, a) ** 2).sum())(x)
        assert value == (x.sum(axis=axis) ** 2).sum()
        np.testing.assert_array_equal(slope, np.broadcast_to(2 * x.sum(axis=axis, keepdims=True), x.shape))


@pytest.mark.parametrize("turned", [False, True])
def test_strips_of_rows_have_the_numbers_of_the_whole(*, turned: bool) -> None:
    """In either memory order, and with rows that the strips do not divide evenly."""
    rng = np.random.default_rng(8)
    x = rng.uniform(-30.0, 30.0, size=(1001, 401)).astype(np.float32)
    x[3, 5] = np.nan
    ours, before = x.T if turned else x, x.copy()
    odds = np.exp(ours)
    found = adapter_of(ours).softplus_and_sigmoid(ours, bounded=True, need_slope=True)
    assert found is not None
    for own, wanted in zip(found, (np.log1p(odds), odds / (odds + 1.0)), strict=True):
        np.testing.assert_array_equal(own, wanted)
        assert own.strides == ours.strides
    np.testing.assert_array_equal(x, before)
    unbounded: Any = functools.partial(adapter_of(ours).softplus_and_sigmoid, ours, bounded=False)
    value, slope = unbounded()
    wide: Any = ours.astype(np.float64)
    np.testing.assert_allclose(value, np.log1p(np.exp(wide)), rtol=5e-7)
    np.testing.assert_allclose(slope, 1.0 / (1.0 + np.exp(-wide)), rtol=5e-7)
    _, alone = unbounded(need_value=False)
    np.testing.assert_allclose(alone, slope, rtol=5e-7)


@pytest.mark.parametrize("asarray", [np.asarray, torch.from_numpy, jnp.asarray, mx.array])
def test_the_derivative_at_a_limit_is_the_one_between_the_limits(asarray: Callable[[Any], Any]) -> None:
    """Releases of libraries differ in that of their own functions."""

    def total(x: Any) -> Any:
        xp = x.__array_namespace__() if hasattr(x, "__array_namespace__") else torch
        return xp.sum(clipped(xp, x, -1.0, 1.0))

    found = pnce.grad(total)(asarray(np.asarray([-2.0, -1.0, 0.0, 1.0, 2.0])))
    assert found.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_sigmoids_and_softplus_of_infinite_numbers(library: str) -> None:
    x = np.full((128, 128), -math.inf, dtype=np.float32)
    x[0] = math.inf
    ours = torch.asarray(x) if library == "torch" else x
    value, slope = adapter_of(ours).softplus_and_sigmoid(ours, bounded=False) or (None, None)
    wanted = np.where(x > 0, np.float32(math.inf), np.float32(0.0)), (x > 0).astype(np.float32)
    for found, exact in zip((value, slope), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(found), exact)


def test_kernels_of_jax_and_their_derivatives() -> None:
    """A sigmoid exact on both sides, entries of rows in a column each, and a transpose made alone."""
    x = jnp.asarray([-math.inf, -80.0, -1.0, 0.0, 3.0, 60.0, math.inf])
    adapter, wide = adapter_of(x), np.asarray(x, dtype=np.float64)

    def sigmoid(z: Any) -> Any:
        _, slope = adapter.softplus_and_sigmoid(z, bounded=False, need_value=False) or (None, None)
        return slope

    small = np.exp(-np.abs(wide))
    np.testing.assert_allclose(sigmoid(x), np.where(wide > 0, 1.0, small) / (1.0 + small), rtol=1e-6)
    slopes = jax.vmap(jax.grad(sigmoid))(x)
    np.testing.assert_allclose(slopes, small / (1.0 + small) ** 2, rtol=1e-6)
    matrix, columns = jnp.arange(12.0).reshape(3, 4), jnp.asarray([[2], [0], [3]])
    found, pull = jax.vjp(lambda z: (adapter.entries_at(z, columns), jax.jit(adapter.turned)(z)), matrix)
    np.testing.assert_array_equal(found[0], [[2.0], [4.0], [11.0]])
    np.testing.assert_array_equal(found[1], matrix.T)
    (gradient,) = pull((jnp.ones((3, 1)), matrix.T))
    expected = np.array(matrix)
    expected[np.arange(3), [2, 0, 3]] += 1.0
    np.testing.assert_array_equal(gradient, expected)
    flags = matrix > 5.0
    np.testing.assert_array_equal(jax.jit(adapter.turned)(flags), flags.T)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_softmax_of_rows(library: str, dtype: str) -> None:
    """Also of entries that count as 0, of far ones, and not of a row without a finite entry."""
    x = np.random.default_rng(9).normal(size=(300, 401)).astype(dtype) * 40.0
    np.fill_diagonal(x, -math.inf)
    ours = torch.asarray(x) if library == "torch" else x
    top, total, shares, factor = map(np.asarray, adapter_of(ours).softmax(ours) or ())
    wide = x.astype(np.longdouble)
    terms = np.exp(wide - wide.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(top, x.max(axis=1))
    np.testing.assert_allclose(total.astype(np.float64), terms.sum(axis=1).astype(np.float64), rtol=1e-6)
    found = shares.astype(np.float64) * factor[:, None]
    np.testing.assert_allclose(found, terms.astype(np.float64), rtol=3e-5 if dtype == "float32" else 3e-14, atol=1e-37)
    assert np.all(shares[np.diag_indices(300)] == 0.0)
    ours[1] = -math.inf
    assert adapter_of(ours).softmax(ours) is None


class _OnDefaultDevice(Jax):
    """JAX on its default device, as on a machine with one GPU."""

    @property
    def device(self) -> Any:
        return self.xp.devices()[0]


def test_zeros_that_jax_makes_may_be_free_of_the_device_of_an_argument() -> None:
    variant = _OnDefaultDevice(name="jax-default", module="jax", library="jax")
    tied = variant.floats([[1.0, 2.0], [3.0, 0.5]])
    _, (slope,) = differentiate(pnce.diagnostics.top_k_accuracy, [tied])
    assert tied.committed
    assert not slope.committed
    assert_belongs(variant, slope, tied, (2, 2))
    free = jnp.asarray([[1.0, 2.0], [3.0, 0.5]])
    assert not free.committed
    with pytest.raises(AssertionError, match="tied to a device: expected False, got True"):
        assert_belongs(variant, tied, free, (2, 2))


@pytest.mark.internals
def test_rocm_is_asked_once_whether_it_multiplies_16_bits_into_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its device is called cuda, too; there PyTorch 2.8 and 2.9 raise, as every release does on a CPU."""
    from portable_nce.backends import torch as backend

    asked: Any = backend.multiplies_halves
    for hip, wanted in ((None, True), ("6.4", False)):
        asked.cache_clear()
        monkeypatch.setattr(torch.version, "hip", hip)
        assert asked("cpu") == wanted
    monkeypatch.setattr(torch, "mm", lambda *_, **__: None)
    assert not asked("cpu")
    asked.cache_clear()
    assert asked("cpu")
    asked.cache_clear()
