"""NumPy's namespace: `where` by bits equals NumPy's, and the functions that NumPy lacks are array-api-compat's."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import array_api_compat.numpy
import numpy as np
import pytest

import portable_nce as pnce
from portable_nce._core.namespace import namespace_of
from portable_nce._core.registry import adapter_of
from portable_nce.backends.numpy_namespace import namespace

SHAPE = (96, 128)

compat: Any = array_api_compat.numpy


def numbers(dtype: str, shape: tuple[int, ...]) -> Any:
    x = np.random.default_rng(1).normal(size=shape).astype(dtype)
    for k, number in enumerate((math.nan, math.inf, -math.inf, -0.0, 1e-42)):
        x.reshape(-1)[k::11] = number
    return x


def test_arrays_of_numpy_have_this_namespace() -> None:
    x = np.ones(1)
    assert adapter_of(x).name == "numpy"
    assert namespace_of(x) is namespace
    assert namespace.__name__ in {"numpy", "array_api_compat.numpy"}
    assert namespace.float32 is np.float32


def test_the_functions_that_numpy_lacks_are_those_of_the_standard() -> None:
    x = np.asarray([[3.0, 1.0, math.nan, 1.0], [0.0, -1.0, 2.0, 2.0]])
    for descending in (False, True):
        order, sorted_ = (function(x, descending=descending) for function in (namespace.argsort, namespace.sort))
        np.testing.assert_array_equal(order, compat.argsort(x, descending=descending))
        np.testing.assert_array_equal(sorted_, compat.sort(x, descending=descending))
        np.testing.assert_array_equal(namespace.take_along_axis(x, order), sorted_)
    ties = np.asarray([2, 0, 1] * 40)
    np.testing.assert_array_equal(namespace.argsort(ties), np.argsort(ties, kind="stable"))
    small = namespace.clip(np.asarray([-1.0, 3.0], dtype=np.float32), np.float64(0.0), 2.0)
    assert small.dtype == np.float32
    np.testing.assert_array_equal(small, [0.0, 2.0])
    assert not hasattr(namespace, "base_namespace")
    assert namespace.fft is np.fft


def test_a_first_loss_imports_no_tools_of_numpy() -> None:
    """Nor array-api-compat's namespace, which imports them."""
    code = """if True:
        import sys, numpy, portable_nce
        known = {*sys.modules}
        x = numpy.ones((4, 2))
        portable_nce.value_and_grad(portable_nce.info_nce)(x, x)
        portable_nce.supcon(x, numpy.arange(4) % 2)
        print(*({*sys.modules} - known))
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    tools = {"numpy.testing", "numpy.f2py", "numpy.random", "array_api_compat.numpy"}
    follows = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
    assert bool(tools & set(run.stdout.split())) != follows


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_where(dtype: str) -> None:
    condition = np.random.default_rng(0).random(SHAPE) < 0.3
    x, column, row = (numbers(dtype, shape) for shape in (SHAPE, (SHAPE[0], 1), SHAPE[1:]))
    x.setflags(write=False)
    condition.setflags(write=False)
    turned = numbers(dtype, SHAPE[::-1]).T
    pairs = [
        *[(x, number) for number in (0.0, -0.0, 1.5, -math.inf, math.nan, 1)],
        *[(number, x) for number in (0.0, -math.inf)],
        *[(x, other) for other in (turned, column, row, x[0, 0], np.zeros(1, dtype), np.ones(SHAPE, "float64"))],
        *[(other, x) for other in (turned, column, row)],
        *[(other, 0.0) for other in (turned, column, row)],
        (column, row),
    ]
    for first, second in pairs:
        for chosen in (condition, condition[::-1], np.asfortranarray(condition)):
            found, wanted = namespace.where(chosen, first, second), np.where(chosen, first, second)
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
            assert found.flags.writeable
    small = np.asarray([True, False])
    np.testing.assert_array_equal(namespace.where(small, np.ones(2), 0.0), [1.0, 0.0])


def test_the_numpy_namespace_is_differentiated() -> None:
    condition = np.random.default_rng(0).random(SHAPE) < 0.3
    x = np.random.default_rng(1).normal(size=SHAPE)
    value, gradient = pnce.value_and_grad(lambda x: (namespace_of(x).where(condition, x, 0.0) ** 2).sum())(x)
    np.testing.assert_allclose(value, (x[condition] ** 2).sum())
    np.testing.assert_allclose(gradient, np.where(condition, 2 * x, 0.0))
