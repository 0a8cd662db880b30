"""NumPy, differentiated by the tape."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .numpy_namespace import repeated, where
from .tape import TapeAdapter

LARGE = 2**15
"""Number of matrix entries from which a product with ones is faster than a sum."""

FEWEST = 2**13
"""Number of entries of a matrix from which one kernel of several steps is faster than the core's formula."""

MOST_PASSES = 16
"""Largest number of entries of a row that are found one by one; more take a partition less time."""

STRIP = 2**16
"""Number of entries of the rows of a matrix that are computed at once, step by step: they stay in the cache."""


def keep_memory() -> None:
    """Make the C library reuse the memory of tiles.

    It returns large freed blocks to the system, which zeroes new ones page by page, at a higher cost than the
    computation. Freeing one block of the largest size that it manages itself raises that threshold.
    """
    np.empty(2**25 - 2**14, dtype=np.uint8)


_SMALLEST: dict[Any, float] = {
    np.dtype(dtype): math.log(1.01 * np.finfo(dtype).tiny) for dtype in (np.float32, np.float64)
}
"""Smallest exponent whose exponential is not subnormal."""

_FEW = {dtype: np.asarray(1.02 * np.finfo(dtype).tiny, dtype) for dtype in _SMALLEST}
"""A number slightly above that exponential."""


def _add_rows(x: Any, numbers: Any, rows: Any) -> None:
    """Add rows in place; those with equal numbers are summed in float64 first."""
    order = np.argsort(numbers, kind="stable")
    places, starts = np.unique(numbers[order], return_index=True)
    if places.size:
        x[places] += np.add.reduceat(rows[order].astype(np.float64), starts, axis=0)


def _softplus_and_sigmoid(x: Any, value: Any, slope: Any, *, bounded: bool) -> None:
    """Write softplus and sigmoid of a strip of rows, from the exponential of x, or of -|x| unless it is bounded."""
    if value is None:
        with np.errstate(over="ignore"):  # 1 / inf is 0
            odds = np.exp(np.negative(x, out=slope), out=slope)
        np.reciprocal(np.add(odds, 1.0, out=slope), out=slope)
        return
    odds = np.exp(x) if bounded else np.abs(x)
    if not bounded:
        np.exp(np.negative(odds, out=odds), out=odds)
    if value is not None:
        np.log1p(odds, out=value)
        if not bounded:
            value += np.clip(x, 0.0, np.inf)
    if slope is not None:
        np.divide(odds, odds + 1.0, out=slope)
        if not bounded:  # of a positive number, 1 minus that of its negative
            np.abs(np.subtract(x > 0, slope, out=slope), out=slope)


def _turned(x: Any, *, turned: bool) -> Any:
    return x.T if turned and x is not None else x


_references: Any = getattr(sys, "getrefcount", None)  # CPython's
_HELD = [np.empty(1)]
_OF_ONE = _references(_HELD[0]) if _references else None
"""References to an array that a list alone holds, as they are counted. A view of an array holds one, too."""


class NumpyAdapter(TapeAdapter):
    """Adapter for NumPy arrays, with faster kernels for unrecorded arrays."""

    reads_values = True

    def is_alone(self, arrays: list[Any], k: int) -> bool:
        if _references is None or type(arrays[k]) is not np.ndarray or arrays[k].base is not None:
            return False
        return bool(arrays[k].flags.carray and _references(arrays[k]) == _OF_ONE)

    def repeated(self, function: Any, options: dict[str, Any], values: Sequence[Any]) -> tuple[Any, Any, Any]:
        return repeated(function, options, values)

    @staticmethod
    def add_at(xp: Any, g: Any, numbers: Any, size: int) -> Any:
        # bincount accumulates in float64.
        if g.ndim == 1:
            return np.bincount(numbers, weights=g, minlength=size + 1)[1:].astype(g.dtype)
        total = np.zeros((size + 1, *g.shape[1:]), dtype=g.dtype)
        _add_rows(total, numbers, g)
        return total[1:]

    def add_rows(self, x: Any, numbers: Any, rows: Any) -> Any:
        if hasattr(x, "__recorded__") or hasattr(rows, "__recorded__"):
            return super().add_rows(x, numbers, rows)
        _add_rows(x, numbers, rows)
        return x

    def add_columns(self, x: Any, columns: Any, values: Any) -> Any:
        few = columns.shape[1] <= 2  # noqa: PLR2004  (sums of more entries take float64)
        if not few or any(hasattr(z, "__recorded__") for z in (x, columns, values)):
            return super().add_columns(x, columns, values)
        rows = np.arange(x.shape[0])
        for column, value in zip(columns.T, values.T, strict=True):
            x[rows, column] += value
        return x

    def clipped(self, x: Any, low: float, high: float) -> Any:
        if hasattr(x, "__recorded__"):
            return super().clipped(x, low, high)
        x = x if low == -math.inf else np.maximum(x, x.dtype.type(low))
        return x if high == math.inf else np.minimum(x, x.dtype.type(high))

    def order_of_rows(self, x: Any) -> Any:
        if x.dtype != np.float32 or hasattr(x, "__recorded__"):
            return super().order_of_rows(x)
        # Numbers as integers in the same order, and the columns behind them: a third of the time of a stable sort.
        bits = (x + np.float32(0.0)).view(np.int32)  # -0.0 + 0.0 is 0.0
        bits ^= (bits >> 31) & 0x7FFFFFFF
        keys = bits.astype(np.int64)
        keys <<= 32
        keys |= np.arange(x.shape[1])
        keys.sort(axis=1)
        keys &= 0xFFFFFFFF
        return keys

    def exp_in_place(self, x: Any, *, bounded: bool) -> Any:
        if hasattr(x, "__recorded__"):
            return super().exp_in_place(x, bounded=bounded)
        if bounded or x.dtype not in _SMALLEST:
            return np.exp(x, out=x)
        least = _SMALLEST[x.dtype]
        if x.size and x.min() >= least:
            return np.exp(x, out=x)
        kept = np.logical_not(x < least)  # keeps NaN
        return where(kept, np.exp(np.clip(x, least, np.inf, out=x), out=x), 0.0)

    def sum_along(self, x: Any, axis: int) -> Any:
        """Sums of a matrix; for a large one, by a product with ones.

        BLAS takes a fifth of the time, on all threads. `numpy.sum` is pairwise only along the contiguous axis; along
        the other, a float32 sum of 2048 numbers has ten times the rounding error.
        """
        if hasattr(x, "__recorded__"):
            return super().sum_along(x, axis)
        if x.size < LARGE:
            return x.sum(axis=axis)
        ones = np.empty(x.shape[axis], dtype=x.dtype)  # np.ones calls Python code, for each block
        ones.fill(1.0)
        return x @ ones if axis == 1 else ones @ x

    def plus_product(self, x: Any, y: Any, z: Any) -> Any:
        if any(hasattr(a, "__recorded__") for a in (x, y, z)):
            return super().plus_product(x, y, z)
        x += where(y, z, 0.0) if y.dtype == np.bool_ else np.multiply(y, z, out=y)
        return x

    def times_in_place(self, x: Any, y: Any) -> Any:
        if hasattr(x, "__recorded__") or hasattr(y, "__recorded__"):
            return x * y
        return np.multiply(x, y, out=x)

    def turned(self, x: Any) -> Any:
        if hasattr(x, "__recorded__"):
            return super().turned(x)
        result = np.empty(x.shape[::-1], dtype=x.dtype)
        rows = 8 if x.size >= LARGE else x.shape[0]  # a fifth of the time of a large copy at once
        for start in range(0, x.shape[0], max(1, rows)):
            result[:, start : start + rows] = x[start : start + rows].T
        return result

    def row_dots(self, x: Any, y: Any) -> Any:
        if hasattr(x, "__recorded__") or hasattr(y, "__recorded__"):
            return super().row_dots(x, y)
        return np.einsum("...i,...i->...", x, y)  # three times as fast as a product and a sum

    def softplus_and_sigmoid(
        self, x: Any, *, bounded: bool, need_value: bool = True, need_slope: bool = True
    ) -> tuple[Any, Any] | None:
        """Both in strips of rows that stay in the cache, for large matrices; else None."""
        if hasattr(x, "__recorded__") or x.ndim != 2 or x.size < FEWEST:  # noqa: PLR2004
            return None
        turned = not x.flags.c_contiguous  # the transpose of a tall product
        given = x.T if turned else x
        value, slope = (np.empty(given.shape, x.dtype) if need else None for need in (need_value, need_slope))
        rows = max(1, STRIP // given.shape[1])
        for start in range(0, given.shape[0], rows):
            strip = slice(start, start + rows)
            parts = (None if y is None else y[strip] for y in (value, slope))
            _softplus_and_sigmoid(given[strip], *parts, bounded=bounded)
        return _turned(value, turned=turned), _turned(slope, turned=turned)

    def softmax(self, x: Any) -> tuple[Any, Any, Any, Any] | None:
        """In strips of rows that stay in the cache; subnormal exponentials are 0."""
        if hasattr(x, "__recorded__") or x.dtype not in _SMALLEST or 0 in x.shape:
            return None
        largest = x.max(axis=1)
        if not np.isfinite(largest).all():
            return None
        total, terms = np.empty_like(largest), np.empty(x.shape, x.dtype)
        rows, ones = max(1, STRIP // x.shape[1]), np.ones(x.shape[1], x.dtype)
        for start in range(0, x.shape[0], rows):
            strip = slice(start, start + rows)
            own = np.subtract(x[strip], largest[strip, None], out=terms[strip])
            np.exp(own, out=own)
            np.multiply(own, own >= _FEW[x.dtype], out=own)
            np.matmul(own, ones, out=total[strip])
        return largest, total, terms, np.ones_like(total)

    def fill_diagonal(self, x: Any, row: int, column: int, count: int, value: Any) -> Any:
        if hasattr(x, "__recorded__") or hasattr(value, "__recorded__"):
            return super().fill_diagonal(x, row, column, count, value)
        given = value[row : row + count] if hasattr(value, "shape") else value
        diagonal = x[row : row + count, column : column + count].diagonal()
        diagonal.setflags(write=True)  # NumPy makes the view read-only; one by einsum takes twice the time
        diagonal[...] = given
        return x

    def fill_columns(self, x: Any, columns: Any, value: Any, *, inside: bool = False) -> Any:
        if any(hasattr(z, "__recorded__") for z in (x, columns, value)):
            return super().fill_columns(x, columns, value, inside=inside)
        if inside:
            x[np.arange(columns.shape[0]), columns] = value
            return x
        rows = np.flatnonzero((columns >= 0) & (columns < x.shape[1]))
        x[rows, columns[rows]] = value[rows] if hasattr(value, "shape") else value
        return x

    def highest_of_rows(self, x: Any, count: int) -> Any:
        """By repeated `argmax`, which takes half the time of a maximum; many by a partition.

        None for equal entries or infinities that need more care, and for NaN.
        """
        if hasattr(x, "__recorded__") or 0 in x.shape or count > x.shape[1]:
            return None
        return (_highest_in_turn if count <= MOST_PASSES else _highest_at_once)(x, count)


def _highest_in_turn(x: Any, count: int) -> Any:
    left, rows, places = x.copy(), np.arange(x.shape[0]), np.empty((x.shape[0], count), np.intp)
    for k in range(count):
        places[:, k] = left.argmax(axis=1)
        if not (left[rows, places[:, k]] > -np.inf).all():
            return None
        left[rows, places[:, k]] = -np.inf
    return places


def _highest_at_once(x: Any, count: int) -> Any:
    least = np.partition(x, x.shape[1] - count, axis=1)[:, -count, None]
    found = np.flatnonzero(x >= least)
    if (np.bincount(found // x.shape[1], minlength=len(x)) != count).any():  # NaN, or several equal to the last
        return None
    columns = (found % x.shape[1]).reshape(-1, count)
    order = np.argsort(-np.take_along_axis(x, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


def adapter(namespace_of: Callable[[Any], Any]) -> NumpyAdapter:
    """Adapter for NumPy arrays."""
    keep_memory()
    return NumpyAdapter("numpy", namespace_of, version=np.__version__, devices=("cpu",), half_precision=("float16",))
