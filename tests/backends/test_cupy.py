"""The adapter of CuPy, on a stand-in for machines without a GPU; the conformance suite runs on it too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import cupy_stand_in
import numpy as np
import pytest

import portable_nce as pnce
from portable_nce._core import calls
from portable_nce._core.registry import adapter_of
from portable_nce.testing.cases import CASES
from portable_nce.testing.covering import FORMS
from portable_nce.testing.variants import case_arrays, case_named, differentiate

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIANT = cupy_stand_in.VARIANT


@pytest.fixture(autouse=True)
def cupy() -> Iterator[Any]:
    """The stand-in, which other tests do not see."""
    cupy_stand_in.install()
    yield sys.modules["cupy"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupy"]:
        del sys.modules[name]


def test_the_adapter_describes_itself(cupy: Any) -> None:
    adapter: Any = adapter_of(cupy.ones(2))
    assert isinstance(adapter, pnce.Adapter)
    assert (adapter.name, adapter.version) == ("cupy", cupy.__version__)
    assert (adapter.dtypes, adapter.devices) == (("float64", "float32", "float16"), ("cuda:0",))


@pytest.mark.parametrize("case_name", list({FORMS[case.name]: case.name for case in CASES}.values()))
def test_a_loss_does_not_wait_for_the_device(case_name: str) -> None:
    """Each form of call, with gradients; the second call may run by a kept plan, the third as a program."""
    case = case_named(case_name)
    arrays = case_arrays(VARIANT, case, "float32")
    cupy_stand_in.WAITS.clear()
    for _ in range(3):
        differentiate(case.function, arrays, len(case.arguments))
    assert not cupy_stand_in.WAITS


def test_programs_are_kept_for_devices_without_a_hash() -> None:
    x, y = (VARIANT.floats(np.random.default_rng(k).normal(size=(6, 4)).tolist()) for k in range(2))
    calls.KINDS.clear()
    found = [VARIANT.to_list(pnce.info_nce(x, y)) for _ in range(3)]
    assert found[0] == found[1] == found[2]
    ((_, kind),) = calls.KINDS.items()
    assert len(kind.programs) == 1


@pytest.mark.parametrize("number", [7.0, [10.0, 11.0, 12.0, 13.0]], ids=["number", "array"])
def test_a_diagonal_is_filled(number: Any, cupy: Any) -> None:
    x = VARIANT.floats([[float(3 * i + j) for j in range(3)] for i in range(4)])
    value = VARIANT.floats(number) if isinstance(number, list) else number
    wanted = np.arange(12.0).reshape(4, 3)
    wanted[[1, 2], [0, 1]] = number[1:3] if isinstance(number, list) else number
    cupy_stand_in.WAITS.clear()
    filled = adapter_of(cupy.ones(2)).fill_diagonal(x, 1, 0, 2, value)
    assert not cupy_stand_in.WAITS
    assert VARIANT.to_list(filled) == wanted.tolist()


@pytest.mark.parametrize("shape", [(4,), (4, 2)])
def test_rows_are_added_by_their_numbers(shape: tuple[int, ...], cupy: Any) -> None:
    """Number 0 is left out: it stands for rows out of range."""
    g = np.arange(float(np.prod(shape)), dtype=np.float32).reshape(shape)
    adapter: Any = adapter_of(cupy.ones(2))
    cupy_stand_in.WAITS.clear()
    found = adapter.add_at(cupy, cupy.asarray(g), cupy.asarray([2, 0, 2, 3]), 3)
    assert not cupy_stand_in.WAITS
    assert found.dtype == np.float32
    assert VARIANT.to_list(found) == [(0.0 * g[0]).tolist(), (g[0] + g[2]).tolist(), g[3].tolist()]


def test_the_stand_in_refuses_what_cupy_refuses(cupy: Any) -> None:
    x = cupy.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert type(x[0, 0]) is type(x.sum()) is cupy.ndarray
    assert not (x * x - x).T.ndim - 2
    for refused in (
        lambda: np.asarray(x),
        lambda: cupy.add(x, np.ones((2, 2))),
        lambda: x + np.ones((2, 2)),
        lambda: cupy.sum(x, where=x > 1),
        lambda: cupy.concatenate([x, [[1.0, 2.0]]]),
        lambda: hash(x.device),
        lambda: cupy.add.at(cupy.asarray([1, 2]), cupy.asarray([0]), cupy.asarray([1])),
    ):
        with pytest.raises(TypeError):
            refused()
    for function in (cupy.sort, lambda x, kind: x.argsort(kind=kind)):
        with pytest.raises(ValueError, match="kind can only be"):
            function(x, kind="quicksort")
    with pytest.raises(ValueError, match="could not broadcast"):
        cupy.fill_diagonal(x, cupy.asarray([1.0, 2.0, 3.0]))
    with pytest.raises(AttributeError):
        x.to_device("cpu")
    with pytest.raises(IndexError):
        x[[0, 1]]


def test_the_stand_in_counts_waits(cupy: Any) -> None:
    x = cupy.asarray([1.0, 2.0])
    cupy_stand_in.WAITS.clear()
    x[x > 5.0] = 0.0
    assert sum(cupy_stand_in.WAITS.values()) == 1
    assert (float(x[0]), x.tolist(), bool(x[1] > 1), x.get().tolist()) == (1.0, [1.0, 2.0], True, [1.0, 2.0])
    assert x[x > 1.0].shape == (1,)
    assert len(cupy.nonzero(x)) == 1
    assert sum(cupy_stand_in.WAITS.values()) == 7
    assert all(__file__ in place for place in cupy_stand_in.WAITS)
