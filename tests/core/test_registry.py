"""Registry of adapters: built-in table, registrations, entry points."""

from __future__ import annotations

import importlib.metadata
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import array_api_strict
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce._core import namespace as _namespace
from portable_nce._core import registry as _registry
from portable_nce.testing import Rank, run_ranks
from portable_nce.testing.cases import CASES, LOSSES
from portable_nce.testing.variants import case_arrays, differentiate, find_variant

from calls import FIRST_OF_ITS_FORM, Call


class Foreign:
    """An array of an unknown library, which wraps a NumPy array."""

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value)
        self.shape, self.dtype = self.value.shape, self.value.dtype

    device = "cpu"

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        del api_version
        return np

    def __getitem__(self, key: Any) -> Foreign:
        return Foreign(self.value[key])


class Adapter:
    """An adapter with few methods, whose `stop_gradient` does nothing."""

    name = "foreign"
    version = "1"

    def stop_gradient(self, x: Any) -> Any:
        return x.value

    def value_and_grad(self, fn: Any, argnums: Any = 0, *, has_aux: bool = False) -> Any:
        del argnums, has_aux
        return lambda *arguments: (fn(*arguments), "its gradient")

    def custom_vjp(self, forward: Any, backward: Any, *, exact: bool = True, kept: int = 0) -> Any:
        del backward, exact, kept
        return forward

    def value_and_vjp(self, function: Any) -> Any:
        return lambda static, *arrays: function(static, *arrays, need_grad=False)[:2]


class Plain(Adapter):
    """A minimal adapter for NumPy arrays: the required members for a library without gradients."""

    def stop_gradient(self, x: Any) -> Any:
        return x


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_registered", "_loaded", "adapters"):
        monkeypatch.setattr(_registry, name, {})
    monkeypatch.setattr(_namespace, "namespaces", {})
    monkeypatch.setattr(Foreign, "__module__", "foreign_arrays.core")


def test_an_unknown_library_is_refused_with_the_line_that_registers_it() -> None:
    with pytest.raises(TypeError, match=r'foreign_arrays.*register_backend\("foreign_arrays"\)'):
        pnce.stop_gradient(Foreign([1.0]))


def test_a_registered_adapter_is_used_even_for_a_library_that_has_one() -> None:
    pnce.register_backend("foreign_arrays", Adapter())
    np.testing.assert_array_equal(pnce.stop_gradient(Foreign([1.0])), [1.0])
    total: Any = lambda x: np.sum(x.value)  # noqa: E731
    assert pnce.value_and_grad(total)(Foreign([1.0, 2.0])) == (3.0, "its gradient")
    assert _registry.adapter_of(np.ones(1)).name == "numpy"
    pnce.register_backend("numpy", Adapter())
    assert _registry.adapter_of(np.ones(1)).name == "foreign"


def shared_loss(group: Rank, x: Any, y: Any, block_size: Any) -> float:
    """Return CLIP's loss on one of two ranks."""
    rows = slice(0, 2) if group.rank == 0 else slice(2, None)
    ranks = pnce.across(group, gradients="summed")
    return float(pnce.clip(x[rows], y[rows], logit_scale=10.0, block_size=block_size, across=ranks))


@pytest.mark.parametrize("block_size", [None, 2, "auto"])
def test_four_verbs_are_enough_for_every_loss(block_size: Any) -> None:
    """The defaults of the others agree with the built-in adapters of the same arrays."""
    x, y = np.random.default_rng(5).normal(size=(2, 5, 3))
    calls = {name: Call(name, block_size=block_size) for name in LOSSES}

    def losses() -> dict[str, float]:
        return {name: float(call(*call.numbers)) for name, call in calls.items()}

    expected, whole = losses(), pnce.clip(x, y, logit_scale=10.0, block_size=block_size)
    pnce.register_backend("numpy", Plain())
    assert losses() == pytest.approx(expected, rel=1e-13)
    adapter = _registry.adapter_of(x)
    assert isinstance(adapter, pnce.Adapter)
    assert (adapter.name, adapter.version, adapter.mode, tuple(adapter.devices)) == ("foreign", "1", "eager", ())
    shared = run_ranks(2, lambda group: shared_loss(group, x, y, block_size))
    np.testing.assert_allclose(shared, whole, rtol=1e-13)
    filled = adapter.fill_diagonal(np.zeros((3, 4)), 1, 2, 2, np.asarray([5.0, 6.0, 7.0]))
    np.testing.assert_array_equal(filled, [[0, 0, 0, 0], [0, 0, 6, 0], [0, 0, 0, 7]])
    columns, values = np.asarray([1, -1, 3, 4]), np.asarray([5.0, 6.0, 7.0, 8.0])
    wanted = np.asarray([[0, 5, 0, 0], [0, 0, 0, 0], [0, 0, 0, 7], [0, 0, 0, 0]])  # no columns -1 and 4
    np.testing.assert_array_equal(adapter.fill_columns(np.zeros((4, 4)), columns, values), wanted)
    tensors = [torch.tensor(z) for z in (np.zeros((4, 4)), columns, values)]
    np.testing.assert_array_equal(_registry.adapter_of(tensors[0]).fill_columns(*tensors), wanted)
    product = adapter.half_product(x.astype(np.float16), y.T.astype(np.float16))
    np.testing.assert_array_equal(product, x.astype(np.float16).astype(np.float32) @ y.T.astype(np.float16))
    assert product.dtype == np.float32
    assert adapter.by_halves(lambda *_: "halves", lambda *arrays: arrays, x, y) == (x, y)
    assert adapter.concrete_value(x[0, :1]) is None
    assert adapter.concrete_values(x[0]) is None
    assert not hasattr(adapter, "_no_verb")


def test_a_registered_library_can_have_the_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "foreign_arrays", ModuleType("foreign_arrays"))
    pnce.register_backend("foreign_arrays")
    adapter = _registry.adapter_of(Foreign([1.0]))
    assert (adapter.name, adapter.version, tuple(adapter.devices)) == ("foreign_arrays", "unknown", ())


def test_a_subclass_is_served_like_its_base() -> None:
    class Matrix(np.ndarray):
        pass

    Matrix.__module__ = "somewhere.else"
    assert _registry.adapter_of(np.ones((2, 2)).view(Matrix)).name == "numpy"


def test_register_backend_refuses_other_objects_and_names() -> None:
    for bad in (object(), "tape", Foreign([1.0])):
        with pytest.raises(TypeError, match="custom_vjp"):
            pnce.register_backend("foreign_arrays", bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name of a module"):
        pnce.register_backend(np)  # type: ignore[arg-type]


def point(name: str, loaded: Any) -> Any:
    """Make an entry point, as of importlib.metadata, that can be loaded once."""
    return SimpleNamespace(name=name, load=Mock(side_effect=[loaded]))


def announce(monkeypatch: pytest.MonkeyPatch, *points: Any) -> None:
    def entry_points(*, group: str) -> tuple[Any, ...]:
        assert group == "portable_nce.backends"
        return points

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


@pytest.mark.parametrize("announced", [Adapter, Adapter()])
def test_an_entry_point_is_loaded_when_its_module_matches(monkeypatch: pytest.MonkeyPatch, announced: Any) -> None:
    ours, other = point("foreign_arrays", announced), point("other_arrays", announced)
    announce(monkeypatch, ours, other)
    assert _registry.adapter_of(np.ones(1)).name == "numpy"
    assert (ours.load.call_count, other.load.call_count) == (0, 0)
    assert _registry.adapter_of(Foreign([1.0])).name == "foreign"
    assert _registry.adapter_of(Foreign([2.0])).name == "foreign"
    assert (ours.load.call_count, other.load.call_count) == (1, 0)


def test_a_broken_entry_point_warns_and_leaves_the_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "foreign_arrays", ModuleType("foreign_arrays"))
    announce(monkeypatch, point("foreign_arrays", ImportError("no such file")))
    with pytest.warns(RuntimeWarning, match="does not load.*no such file"):
        assert _registry.adapter_of(Foreign([1.0])).name == "foreign_arrays"


def test_backends_available_names_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, point("no_such_library", Adapter))
    available = pnce.backends_available()
    assert {"numpy", "torch", "jax", "array_api_strict"} <= set(available)
    assert not {"jaxlib", "no_such_library"} & set(available)


def test_the_adapters_describe_themselves() -> None:
    for name in ("numpy", "torch", "jax", "mlx", "array_api_strict", "mparray"):
        adapter = _registry.load_backend(name)
        assert isinstance(adapter, pnce.Adapter)
        assert adapter.version[0].isdigit()
        assert {"float32"} <= set(adapter.dtypes)
        assert isinstance(tuple(adapter.devices), tuple)
    assert _registry.adapter_of(array_api_strict.ones(2)).name == "array_api_strict"


def test_a_numpy_scalar_is_a_number_to_every_library() -> None:
    import torch

    x = torch.eye(3, dtype=torch.float64)
    expected = pnce.info_nce(x, x, temperature=0.5)
    assert torch.equal(pnce.info_nce(x, x, temperature=np.float64(0.5)), expected)
    assert pnce.info_nce(x, x, x[:, None, :] * x, temperature=np.float64(0.5)).isfinite()
    assert torch.equal(pnce.clip(x, x, logit_scale=np.float64(2.0)), expected)


def test_ranks_print_what_they_are() -> None:
    def printed(group: Any) -> list[str]:
        summed = pnce.across(group, gradients="summed")
        return [repr(summed), repr(pnce.across(group, gradients="averaged", check=False))]

    assert run_ranks(2, printed) == [
        [f"<rank {rank} of 2, gradients summed>", f"<rank {rank} of 2, gradients averaged, not checked>"]
        for rank in range(2)
    ]
    assert repr(pnce.across("data")) == "<ranks along the axis 'data' of JAX>"


@pytest.mark.filterwarnings("ignore::UserWarning")  # of small scales
def test_a_library_is_asked_for_what_losses_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more, no less: what it lacks is told when it is registered, and not by an AttributeError in a loss."""
    used: set[str] = set()

    class Recording(ModuleType):
        def __getattr__(self, name: str) -> Any:
            used.add(name)
            return getattr(array_api_strict, name)

    recording, variant = Recording("array_api_strict"), find_variant("array-api-strict")
    monkeypatch.setitem(_namespace._provided, "array_api_strict", lambda: recording)  # noqa: SLF001
    monkeypatch.setattr(_namespace, "namespaces", {})
    for case in CASES:
        if case.name in FIRST_OF_ITS_FORM:
            differentiate(case.function, case_arrays(variant, case, "float64"), len(case.arguments))
    assert used - {"base_namespace"} == {*_registry._FUNCTIONS}  # noqa: SLF001
