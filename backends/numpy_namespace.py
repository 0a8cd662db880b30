"""NumPy's own namespace, with a faster `where`; of NumPy 2.0, array-api-compat's.

From 2.1 on, NumPy has what losses use, as the array API says, up to the functions here. Importing array-api-compat's
namespace takes longer than a first loss, since it imports all of NumPy's names, and with them `numpy.testing`,
`numpy.f2py` and `numpy.random`.

NumPy's `where` branches on each condition, which processors mispredict. If the other entries are 0, integer products of
the bits with 0 and 1 take a seventh of the time.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from .repeated import OPERATORS, with_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["namespace"]

_INTEGERS: dict[Any, Any] = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}
"""Integer dtypes of the size of floating-point dtypes."""

_FEWEST = 2**13
"""With fewer entries, the additional calls cost more than they save."""


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """`where`; if `x2` is 0, by integer products of the bits."""
    if type(x2) is float and repr(x2) == "0.0" and type(x1) is np.ndarray and x1.dtype in _INTEGERS:
        large = type(condition) is np.ndarray and condition.size >= _FEWEST
        if large and (x1.shape == condition.shape or np.broadcast_shapes(x1.shape, condition.shape) == condition.shape):
            integers = _INTEGERS[x1.dtype]
            chosen = condition.view(np.uint8).astype(integers)
            return np.multiply(chosen, x1.view(integers), out=chosen).view(x1.dtype)
    return np.where(condition, x1, x2)


def _compat() -> Any:
    """array-api-compat's namespace."""
    if TYPE_CHECKING:
        from array_api_compat import numpy as compat  # noqa: PLC0415
    else:
        try:  # vendored next to this package
            from ...array_api_compat import numpy as compat  # noqa: PLC0415
        except ImportError:
            from array_api_compat import numpy as compat  # noqa: PLC0415
    return compat


def _of_compat(name: str) -> Callable[..., Any]:
    """A function of array-api-compat, which is imported at the first call."""

    def function(*args: Any, **options: Any) -> Any:
        return getattr(_compat(), name)(*args, **options)

    return function


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """`argsort` with `descending`; stable unless said otherwise."""
    if descending:
        return _compat().argsort(x, axis=axis, descending=True, stable=stable)
    return np.argsort(x, axis=axis, stable=stable)


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """`sort` with `descending`; stable unless said otherwise."""
    result = np.sort(x, axis=axis, stable=stable)
    return np.flip(result, axis=axis) if descending else result


def _completed() -> Any:
    follows = np.lib.NumpyVersion(np.__version__) >= "2.1.0.dev0"
    library: Any = np if follows else _compat()
    made = ModuleType(library.__name__)
    # What is not here yet is a submodule that NumPy imports at its first use.
    vars(made).update({name: x for name, x in vars(library).items() if not name.startswith("__")})
    vars(made).update(where=where, __getattr__=lambda name: getattr(library, name))
    if follows:
        names = ("clip", "take_along_axis")  # which promotes its bounds; which has no default axis before 2.3
        vars(made).update(argsort=argsort, sort=sort, **{name: _of_compat(name) for name in names})
    return made


namespace: Any = _completed()
"""Namespace to compute with."""

_ALONG: dict[Any, Any] = {
    np.sum: np.add.reduce,
    np.max: np.maximum.reduce,
    np.min: np.minimum.reduce,
    np.any: np.logical_or.reduce,
}
_METHODS: dict[Any, Any] = {np.reshape: np.ndarray.reshape, np.take: np.ndarray.take, np.astype: np.ndarray.astype}
_COMPARISONS = {np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal}
_OF_NUMBERS = OPERATORS | _COMPARISONS | {np.where}
_NUMBERS = frozenset({*_INTEGERS, *map(np.dtype, _INTEGERS.values())})


def repeated(function: Any, options: dict[str, Any], values: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The function, options and values by which programs compute a result: without NumPy's functions in Python."""
    arrays = [x for x in values if isinstance(x, np.ndarray)]
    if not arrays:
        return function, options, values
    if function in _ALONG and options.keys() <= {"axis", "keepdims"}:
        return _ALONG[function], {"axis": None, **options}, values
    if function in _METHODS and arrays[0] is values[0] and arrays[0].ndim:  # without axes, it may be a scalar in a run
        return _METHODS[function], options, values
    if function is where and max(x.size for x in arrays) < _FEWEST:
        function = np.where
    given = arrays[1:] if function is np.where else arrays
    if function in _OF_NUMBERS and given:
        return function, options, with_arrays(values, given, _NUMBERS, np.asarray)
    return function, options, values
