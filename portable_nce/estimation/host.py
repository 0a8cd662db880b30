"""Values on the host: NumPy arrays of what users pass, and one thread for small products."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from .._core.checks import check_floating
from .._core.namespace import is_array, namespace_of
from .._core.numerics import upcast
from .._core.protocol import Array

__all__ = [
    "MOST_INDICATORS",
    "array_of",
    "columns_of",
    "has_numbered_categories",
    "labels_of",
    "library_name",
    "numpy_of",
    "on_host",
    "one_thread",
    "written",
]

MOST_INDICATORS = 20
"""Most values of a column of categories that get an indicator each; more values are numbered in sorted order."""

_SETTERS = ("scipy_openblas{}_num_threads64_", "openblas{}_num_threads64_", "openblas{}_num_threads")


def on_host(name: str, values: Any) -> Array:
    """Matrix of one row per entry: numbers in float64, and categories as indicators or codes.

    It is a NumPy array, since training small critics gains nothing from a device or a compiler. Without NumPy it stays
    in its library.
    """
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if is_array(values) and getattr(getattr(values, "dtype", None), "kind", "f") != "O":
        namespace_of(values)  # refuses masked arrays, sparse tensors and the like
    try:
        import numpy as np  # noqa: PLC0415  (optional)
    except ImportError:
        return _in_its_library(name, values)
    x = np.asarray(_plain(values))
    if x.dtype.kind in "cmMV":
        raise TypeError(f"{name}: expected real numbers or categories, got {x.dtype}; pass real columns")
    if x.ndim not in {1, 2} or 0 in x.shape:
        raise ValueError(f"{name}: expected shape (N, D) or (N,), got {x.shape}")
    if x.dtype.kind in "iuf":
        columns = x.reshape(len(x), -1).astype(np.float64)
        is_categorical = x.dtype.kind in "iu" and x.ndim == 1 and len(np.unique(x)) <= MOST_INDICATORS
        return _indicators(np, columns[:, 0]) if is_categorical else columns
    columns = x.reshape(len(x), -1)
    cells: list[Any] = columns.ravel().tolist()
    if any(value is None or value != value for value in cells):  # noqa: PLR0124  (NaN)
        raise ValueError(f"{name}: expected a value in each row, got some that are missing; leave these rows out")
    if x.dtype.kind == "O":
        columns = _numbers_or_names(np, name, columns)
    if columns.dtype.kind == "f":
        return columns
    return np.concatenate([_indicators(np, columns[:, k]) for k in range(columns.shape[1])], axis=1)


def array_of(name: str, values: Any) -> Any:
    """Array of one row per entry, of the library of `values`, or of NumPy if they are a sequence or a table."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if not is_array(values) and hasattr(values, "__len__") and not issubclass(type(values), str):
        try:
            import numpy as np  # noqa: PLC0415  (optional)
        except ImportError:
            raise TypeError(
                f"{name}: expected an array, got {type(values).__name__}; install NumPy to pass lists"
            ) from None
        values = np.asarray(values)
    if not is_array(values):
        raise TypeError(f"{name}: expected an array or a sequence, got {type(values).__name__}")
    if len(values.shape) not in {1, 2} or 0 in tuple(values.shape):
        raise ValueError(f"{name}: expected shape (N, D) or (N,), got {tuple(values.shape)}")
    return values


def labels_of(values: Any) -> list[Any]:
    """Rows of an array or of a sequence as Python's values; rows of a matrix are lists of them."""
    try:
        import numpy as np  # noqa: PLC0415  (optional)
    except ImportError:
        return list(values.tolist()) if hasattr(values, "tolist") else list(values)
    return list(np.atleast_1d(np.asarray(_plain(values))).tolist())


def has_numbered_categories(values: Any) -> bool:
    """Whether a column of integers or names has more values than get an indicator each."""
    values = getattr(values, "to_numpy", lambda: values)()
    try:
        import numpy as np  # noqa: PLC0415  (optional)
    except ImportError:
        return False
    x = np.asarray(_plain(values))
    if x.dtype.kind == "f" or (x.dtype.kind in "iu" and x.ndim > 1):
        return False
    columns = x.reshape(len(x), -1)
    return any(len({*columns[:, k].tolist()}) > MOST_INDICATORS for k in range(columns.shape[1]))


def columns_of(values: Any) -> int:
    """Number of columns of what a user passes, before categories become indicators."""
    shape = getattr(values, "shape", None)
    if shape is None:
        first = labels_of(values)[0]
        return len(first) if isinstance(first, (list, tuple)) else 1
    return int(shape[1]) if len(shape) > 1 else 1


def _plain(values: Any) -> Any:
    """Array of any library as one that NumPy reads."""
    if "Tracer" in type(values).__name__:
        raise TypeError(
            "expected arrays whose entries can be read, got a traced one; call this outside of jit and grad"
        )
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if is_array(values) and "float" in str(values.dtype):
        values = upcast(namespace_of(values), values)
    return values


def _numbers_or_names(np: Any, name: str, columns: Any) -> Any:
    """Columns of objects as numbers, or as text if there are names."""
    kinds = {type(value) for value in columns.ravel().tolist()}
    others = {kind for kind in kinds - {int, float, bool} if not issubclass(kind, (np.bool, np.integer, np.floating))}
    if not others:
        return columns.astype(np.float64)
    if others <= {str, np.str_}:
        return columns.astype(str)
    names = ", ".join(sorted(kind.__name__ for kind in others - {str, np.str_}))
    raise TypeError(f"{name}: expected numbers or names, got {names}; convert them")


def _indicators(np: Any, column: Any) -> Any:
    """An indicator of each value, one value left out if there are two, or codes of many values."""
    values, codes = np.unique(column, return_inverse=True)
    codes = codes.reshape(-1).astype(np.float64)
    if len(values) <= 2 or len(values) > MOST_INDICATORS:  # noqa: PLR2004  (one indicator tells two values)
        return codes[:, None]
    return (codes[:, None] == np.arange(len(values))).astype(np.float64)


def _in_its_library(name: str, values: Any) -> Array:
    if not is_array(values):
        raise TypeError(f"{name}: expected an array, got {type(values).__name__}; install NumPy to pass lists")
    xp = namespace_of(values)
    check_floating(xp, **{name: values})
    if len(values.shape) not in {1, 2} or 0 in tuple(values.shape):
        raise ValueError(f"{name}: expected shape (N, D) or (N,), got {tuple(values.shape)}")
    return xp.reshape(upcast(xp, values), (values.shape[0], -1))


def library_name(x: Array) -> str:
    """Name and version of the library of an array."""
    name = type(x).__module__.partition(".")[0]
    known = {"numpy": "NumPy", "torch": "PyTorch", "jaxlib": "JAX", "mlx": "MLX", "cupy": "CuPy"}.get(name, name)
    found = getattr(sys.modules.get(name), "__version__", "")
    return f"{known} {found}".rstrip()


def numpy_of(x: Array) -> Any:
    """NumPy if the array is one of its own, else None."""
    np = sys.modules.get("numpy")
    return np if np is not None and type(x) is np.ndarray else None


def written(function: Callable[..., Array], *operands: Any, out: Array) -> Array:
    """Result of an elementwise function: in the memory of `out` if NumPy computes, in a new array otherwise.

    New arrays of some 100 kB and more cost as much as the operation: NumPy's allocator returns them to the system.
    """
    return function(*operands) if numpy_of(out) is None else function(*operands, out=out)


# -------------------------------------------------------------------------------------------------------------- threads


@contextmanager
def one_thread() -> Iterator[None]:
    """Context in which the libraries multiply in one thread: more threads would only wait for each other."""
    restored: list[tuple[Callable[[int], Any], int]] = []
    try:
        for get, put in _thread_counts():
            restored.append((put, get()))
            put(1)
        yield
    finally:
        for put, count in restored:
            put(count)


def _thread_counts() -> list[tuple[Callable[[], int], Callable[[int], Any]]]:
    torch = sys.modules.get("torch")
    found = [] if torch is None else [(torch.get_num_threads, torch.set_num_threads)]
    return found + _openblas()


@cache
def _openblas() -> list[tuple[Callable[[], int], Callable[[int], Any]]]:
    """Functions that read and set the number of threads of NumPy's OpenBLAS, if it has its own."""
    module = sys.modules.get("numpy")
    if module is None or module.__file__ is None:
        return []
    folder = Path(module.__file__).parent
    for path in (*folder.parent.glob("numpy.libs/*openblas*"), *folder.glob(".dylibs/*openblas*")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for pattern in _SETTERS:
            if hasattr(library, pattern.format("_set")):
                return [(getattr(library, pattern.format("_get")), getattr(library, pattern.format("_set")))]
    return []
