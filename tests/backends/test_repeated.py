"""What programs compute in place of a recorded operation has its bits."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
import torch
from array_api_compat import torch as compat

from portable_nce._core.registry import adapter_of
from portable_nce.backends import numpy_namespace, torch_namespace
from portable_nce.backends.repeated import OPERATORS

NUMBERS = (0.1, -0.0, 0.0, 1.0, 3.0, 7, 0, 2**24 + 1, True, math.inf, -math.inf, math.nan, 1e300, 1e-300)
SHAPES = ((5,), (3, 4), (), (130, 130))
DTYPES = ("float16", "bfloat16", "float32", "float64", "int64")
PAIRS = [
    (library, dtype) for library in ("numpy", "torch") for dtype in DTYPES if (library, dtype) != ("numpy", "bfloat16")
]
NAMESPACES: dict[str, Any] = {"numpy": numpy_namespace.namespace, "torch": torch_namespace.namespace}
TORCH = NAMESPACES["torch"]
COMPARED = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")


def made(library: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Numbers of both signs, with zeros."""
    entries = np.random.default_rng(0).integers(-6, 7, size=shape) * (1 if dtype == "int64" else 0.37)
    if library == "numpy":
        return entries.astype(dtype)
    return torch.asarray(entries).to(getattr(torch, dtype))


def bits(x: Any) -> tuple[Any, ...]:
    """Dtype, shape and entries of a result; of a tuple, those of its items."""
    if isinstance(x, tuple):
        return tuple(map(bits, x))
    entries = x.tolist() if hasattr(x, "tolist") else x
    return str(getattr(x, "dtype", type(x))), tuple(getattr(x, "shape", ())), repr(entries)


def result(function: Any, options: dict[str, Any], values: Any) -> Any:
    """Result, or the type of the error; of copies, since kernels write into their arguments."""
    copied = [
        x.clone() if isinstance(x, torch.Tensor) else x.copy() if isinstance(x, np.ndarray) else x for x in values
    ]
    try:
        with np.errstate(all="ignore"):
            return bits(function(*copied, **options))
    except (ArithmeticError, RuntimeError, TypeError) as error:
        return type(error)


def check(function: Any, options: dict[str, Any], values: list[Any]) -> Any:
    """The function that programs call, after its result was compared."""
    array = next(x for x in values if hasattr(x, "shape"))
    other = adapter_of(array).repeated(function, options, values)
    assert len(other[2]) == len(values)
    assert result(*other) == result(function, options, values)
    return other[0]


@pytest.mark.parametrize(("library", "dtype"), PAIRS)
def test_numbers_beside_arrays(library: str, dtype: str) -> None:
    """Operators and selections with numbers of all kinds, on both sides."""
    xp = NAMESPACES[library]
    changed = 0
    for shape in SHAPES:
        x = made(library, shape, dtype)
        for number in NUMBERS:
            for values in ([x, number], [number, x]):
                for function in OPERATORS:
                    if not (function.__name__.startswith("i") and values[0] is number):
                        other = adapter_of(x).repeated(function, {}, values)
                        changed += any(a is not b for a, b in zip(other[2], values, strict=True))
                        check(function, {}, values)
            for name in COMPARED:
                check(getattr(xp, name), {}, [x, number])
            for values in ([x > 0, x, number], [x > 0, number, x]):
                check(xp.where, {}, values)
            if library == "torch":
                check(adapter_of(x).times_in_place, {}, [x, number])
    assert (changed > 0) == (dtype in {"float32", "float64", "int64"})


@pytest.mark.parametrize(("library", "dtype"), PAIRS)
def test_functions_of_arrays(library: str, dtype: str) -> None:
    """Functions of the namespaces."""
    xp = NAMESPACES[library]
    for shape in ((3, 4), (130, 130)):
        x = made(library, shape, dtype)
        row = x[0, ...]
        for function in (xp.sum, xp.max, xp.min, xp.any):
            for axis in (None, 0, 1, -1, (0,), (0, 1), ()):
                for keepdims in (False, True):
                    check(function, {"axis": axis, "keepdims": keepdims}, [x > 0 if function is xp.any else x])
            check(function, {}, [x])
        check(xp.sum, {"axis": 1}, [x > 0])
        for shaped in ((-1,), (1, *x.shape)):
            check(xp.reshape, {}, [x, shaped])
        check(xp.take, {"axis": 0}, [x, xp.asarray([2, 0])])
        check(xp.astype, {}, [x, xp.float64])
        for name in ("logical_and", "logical_or"):
            check(getattr(xp, name), {}, [x > 0, row > 0])
        for name in COMPARED:
            check(getattr(xp, name), {}, [x, row])
        check(xp.where, {}, [row > 0, x, row])


@pytest.mark.parametrize(("library", "dtype"), [pair for pair in PAIRS if "float" in pair[1]])
def test_kernels(library: str, dtype: str) -> None:
    """Kernels of adapters, which write into what nothing observes."""
    for shape in ((3, 4), (130, 130)):
        x = made(library, shape, dtype)
        adapter, row = adapter_of(x), x[0, ...]
        check(NAMESPACES[library].exp, {}, [x])
        for bounded in (False, True):
            check(adapter.exp_in_place, {"bounded": bounded}, [x])
            check(adapter.softplus_and_sigmoid, {"bounded": bounded}, [-abs(x) if bounded else x])
        check(adapter.extremes, {}, [x])
        check(adapter.sum_along, {}, [x, 1])
        check(adapter.times_in_place, {}, [x, row])
        check(adapter.plus_product, {}, [x, x > 0, row])
        check(adapter.count_along, {}, [x > 0, 1, x.dtype])
        for value in (0.5, x[:, 0]):
            check(adapter.fill_diagonal, {}, [x, 0, 0, 3, value])
            check(adapter.fill_diagonal, {}, [x, 1, 1, 2, value])


def test_what_becomes_of_functions() -> None:
    """Small results are PyTorch's and NumPy's own, large ones those of the faster namespaces; division is PyTorch's."""
    small, large = torch.ones(4), torch.ones(200, 200)
    assert check(TORCH.where, {}, [small > 0, small, 0.0]) is torch.where
    assert check(TORCH.where, {}, [large > 0, large, 0.0]) is TORCH.where
    assert check(compat.sum, {"axis": 0}, [small]) is torch.sum
    assert check(operator.truediv, {}, [3.0, small * 7]) is not operator.truediv
    assert check(np.sum, {}, [np.ones(3)]) == np.add.reduce
    assert (
        check(numpy_namespace.where, {}, [np.ones((200, 200)) > 0, np.ones((200, 200)), 0.0]) is numpy_namespace.where
    )


def test_an_array_without_axes_may_be_a_scalar_in_a_run() -> None:
    """NumPy's results without axes are scalars, such as a loss that is differentiated further."""
    x = np.asarray(0.7)
    calls: list[tuple[Any, dict[str, Any], list[Any]]] = [(operator.mul, {}, [x, 2.0]), (np.where, {}, [x > 0, x, 0.0])]
    calls += [(np.reshape, {}, [x, (1,)]), (np.astype, {}, [x, np.float32])]
    calls += [(function, {}, [x]) for function in (np.sum, np.max, np.min)]
    for function, options, values in calls:
        other, others, given = adapter_of(x).repeated(function, options, values)
        scalars = [x[()] if y is x else y for y in given]
        assert bits(other(*scalars, **others)) == bits(function(*values, **options))
