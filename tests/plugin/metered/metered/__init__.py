"""Arrays that count what is computed on them: NumPy's, boxed, with the functions of the array API.

A miniature of a third party's array library. It knows nothing of portable_nce, and portable_nce nothing of it; the
adapter in ``metered.adapter`` introduces them, and is imported when the first of these arrays arrives.
"""

from __future__ import annotations

import operator
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

__version__ = "1.0"

COUNTS: Counter[str] = Counter()
"""How often each function and operator was called."""


class Array:
    """An array of the library."""

    __slots__ = ("data",)

    device = "cpu"

    def __init__(self, data: Any) -> None:
        self.data = np.asarray(data)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        del api_version
        return sys.modules[__name__]

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)
    ndim = property(lambda self: self.data.ndim)
    size = property(lambda self: self.data.size)
    T = property(lambda self: Array(self.data.T))
    mT = property(lambda self: Array(self.data.mT))  # noqa: N815  (the standard's name)

    def to_device(self, device: str, /, *, stream: object = None) -> Array:
        """Stay: there is one device."""
        del stream
        if device != "cpu":
            raise ValueError(f"metered arrays live on the device 'cpu', got {device!r}")
        return self

    def __getitem__(self, key: Any) -> Array:
        return Array(self.data[_open(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.data[_open(key)] = _open(value)

    def __bool__(self) -> bool:
        return bool(self.data)

    def __int__(self) -> int:
        return int(self.data)

    def __index__(self) -> int:
        return operator.index(self.data)

    def __float__(self) -> float:
        return float(self.data)

    def __repr__(self) -> str:
        return f"metered.{self.data!r}"

    __hash__ = None  # type: ignore[assignment]


def _open(x: Any) -> Any:
    """What is inside of arrays, also of those in tuples and lists."""
    if isinstance(x, Array):
        return x.data
    return type(x)(map(_open, x)) if isinstance(x, (tuple, list)) else x


def _box(x: Any) -> Any:
    """NumPy's arrays and scalars as arrays of the library."""
    if isinstance(x, tuple):
        return tuple(map(_box, x))
    return Array(x) if isinstance(x, (np.ndarray, np.generic)) else x


def _counted(name: str, function: Any) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        COUNTS[name] += 1
        return _box(function(*map(_open, arguments), **{key: _open(value) for key, value in options.items()}))

    call.__name__ = name
    return call


def _operator(name: str) -> Any:
    function = getattr(operator, name)

    def forward(self: Array, other: Any) -> Any:
        COUNTS[name] += 1
        return _box(function(self.data, _open(other)))

    return forward


def _reflected(name: str) -> Any:
    function = getattr(operator, name)

    def backward(self: Array, other: Any) -> Any:
        COUNTS[name] += 1
        return _box(function(_open(other), self.data))

    return backward


def _unary(name: str) -> Any:
    function = getattr(operator, name)

    def call(self: Array) -> Any:
        COUNTS[name] += 1
        return _box(function(self.data))

    return call


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"):
    setattr(Array, f"__{_name.rstrip('_')}__", _operator(_name))
    setattr(Array, f"__r{_name.rstrip('_')}__", _reflected(_name))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Array, f"__{_name}__", _operator(_name))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Array, f"__{_name}__", _unary(_name))

# The functions of the standard are those of NumPy, counted.
_FUNCTIONS = """
    abs acos acosh add arange asarray asin asinh astype atan atan2 atanh broadcast_to ceil clip concat cos cosh
    cumulative_sum divide empty equal exp expand_dims expm1 flip floor full full_like greater greater_equal isfinite
    isinf isnan less less_equal log log1p log2 logaddexp logical_and logical_not logical_or matmul matrix_transpose max
    maximum mean min minimum moveaxis multiply negative not_equal ones ones_like permute_dims pow prod reciprocal
    reshape roll round searchsorted sign sin sinh sqrt square squeeze stack subtract sum take tan tanh tensordot tile
    tril triu vecdot where zeros zeros_like all any argmax argmin argsort sort count_nonzero
"""
for _name in _FUNCTIONS.split():
    globals()[_name] = _counted(_name, getattr(np, _name))

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


bool = np.bool  # noqa: A001  (the standard's name)
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64 = np.float16, np.float32, np.float64
complex64, complex128 = np.complex64, np.complex128
e, inf, nan, newaxis, pi = np.e, np.inf, np.nan, np.newaxis, np.pi
finfo, iinfo, isdtype, result_type = np.finfo, np.iinfo, np.isdtype, np.result_type
