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
from .._core.namespace import common_namespace, is_array, namespace_of
from .._core.numerics import upcast
from .._core.protocol import Array

__all__ = [
    "MOST_INDICATORS",
    "array_of",
    "columns_of",
    "has_numbered_categories",
    "is_missing",
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
    try:
        import numpy as np  # noqa: PLC0415  (optional)
    except ImportError:
        return _in_its_library(name, values)
    x = _read(np, name, values)
    if x.dtype.kind in "cmMV":
        raise TypeError(f"{name}: expected real numbers or categories, got {x.dtype}; pass real columns")
    if x.ndim not in {1, 2} or 0 in x.shape:
        raise ValueError(f"{name}: expected shape (N, D) or (N,), got {x.shape}")
    if _holds_numbers(x):
        return x.reshape(len(x), -1).astype(np.float64)
    parts = [
        column[:, None].astype(np.float64) if _holds_numbers(column, x.ndim) else _indicators(np, column)
        for column in _columns(np, name, x)
    ]
    return np.concatenate(parts, axis=1)


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
        values = _read(np, name, values)
    if not is_array(values):
        raise TypeError(f"{name}: expected an array or a sequence, got {type(values).__name__}")
    if len(values.shape) not in {1, 2} or 0 in tuple(values.shape):
        raise ValueError(f"{name}: expected shape (N, D) or (N,), got {tuple(values.shape)}")
    return values


def labels_of(name: str, values: Any) -> list[Any]:
    """Rows of an array or of a sequence as Python's values; rows of a matrix are lists of them."""
    try:
        import numpy as np  # noqa: PLC0415  (optional)
    except ImportError:
        return list(values.tolist()) if hasattr(values, "tolist") else list(values)
    return list(np.atleast_1d(_read(np, name, values)).tolist())


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or what tables have in their place."""
    if value is None:
        return True
    try:
        return bool(value != value)  # noqa: PLR0124  (NaN)
    except TypeError:  # that of pandas has no truth value
        return True
    except ValueError:  # an array in a cell
        return False


def has_numbered_categories(name: str, values: Any) -> bool:
    """Whether a column of integers or names has more values than get an indicator each."""
    try:
        import numpy as np  # noqa: PLC0415  (optional)
    except ImportError:
        return False
    x = _read(np, name, values)
    each = [] if _holds_numbers(x) else _columns(np, name, x)
    return any(len(np.unique(column)) > MOST_INDICATORS for column in each if not _holds_numbers(column, x.ndim))


def columns_of(name: str, values: Any) -> int:
    """Number of columns of what a user passes, before categories become indicators."""
    shape = getattr(values, "shape", None)
    if shape is None:
        first = labels_of(name, values)[0]
        return len(first) if isinstance(first, (list, tuple)) else 1
    return int(shape[1]) if len(shape) > 1 else 1


def _read(np: Any, name: str, values: Any) -> Any:
    """NumPy array of what a user passes; of Python's values if it holds names, or names and numbers."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    of_objects = getattr(getattr(values, "dtype", None), "kind", "f") == "O"
    if isinstance(values, np.ma.MaskedArray) or (is_array(values) and not of_objects):
        common_namespace(**{name: values})  # refuses masked arrays, sparse tensors and the like
    x = _entries(np, name, values)
    if x.dtype.kind == "O":
        pythons = np.frompyfunc(lambda cell: cell.item() if isinstance(cell, np.generic) else cell, 1, 1)
        x = np.asarray(pythons(x), dtype=object)
        if any(map(is_missing, x.ravel().tolist())):
            raise ValueError(f"{name}: expected a value in each row, got some that are missing; leave these rows out")
    return x


def _entries(np: Any, name: str, values: Any) -> Any:
    """NumPy array of the entries of what a user passes."""
    if "Tracer" in type(values).__name__:
        raise TypeError(_unreadable(name, "a traced one"))
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
        if is_array(values) and "float" in str(values.dtype):
            values = upcast(namespace_of(values), values)
        x = np.asarray(values)
        # As text, numbers and missing values are names.
        return np.asarray(values, dtype=object) if x.dtype.kind in "US" and not is_array(values) else x
    except ValueError:
        raise ValueError(f"{name}: expected rows of one length, got rows of several") from None
    except RuntimeError as error:  # PyTorch's for tensors without storage
        raise TypeError(_unreadable(name, f"one without ({error})")) from error


def _unreadable(name: str, got: str) -> str:
    return f"{name}: expected an array whose entries can be read, got {got}; call this outside of jit, vmap and grad"


def _holds_numbers(x: Any, axes: int | None = None) -> bool:
    """Whether an array of so many axes, by default its own, holds numbers that are no categories: floats, or a matrix.

    A column of integers alone is one of categories if it has few values.
    """
    return x.dtype.kind == "f" or (x.dtype.kind in "iu" and (x.ndim if axes is None else axes) > 1)


def _columns(np: Any, name: str, x: Any) -> list[Any]:
    """Columns as arrays of numbers, truth values or names."""
    return [_typed(np, name, column) if column.dtype.kind == "O" else column for column in x.reshape(len(x), -1).T]


def _typed(np: Any, name: str, column: Any) -> Any:
    """Column of Python's values as an array of numbers or of names."""
    kinds = {type(value) for value in column.tolist()}
    if kinds <= {int, float, bool}:
        return np.asarray(column.tolist())
    others = kinds - {int, float, bool, str, bytes}
    if not others:
        return column.astype(str)
    names = ", ".join(sorted(kind.__name__ for kind in others))
    raise TypeError(f"{name}: expected numbers or names, got {names}; convert them")


def _indicators(np: Any, column: Any) -> Any:
    """An indicator of each value, one left out if there are two; many integers as they are, codes of many names."""
    values, codes = np.unique(column, return_inverse=True)
    codes = codes.reshape(-1).astype(np.float64)
    if len(values) > MOST_INDICATORS and column.dtype.kind in "iu":
        return column[:, None].astype(np.float64)
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
