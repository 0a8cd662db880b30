"""Checks of arguments. They look at shapes, dtypes and Python numbers, never at the values in an array."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from typing import Any

from .namespace import enter, is_array, is_number
from .protocol import Array, Namespace

__all__ = [
    "block_size_of",
    "boolean",
    "flag",
    "floating",
    "function",
    "integer",
    "number_of",
    "one_of",
    "positive_scalar",
    "row_weights",
    "same_shape",
    "scalar",
    "scalar_like",
    "shape_of",
]


def one_of(name: str, value: object, allowed: Collection[str]) -> None:
    """`value` must be one of the strings `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        message = f"{name}: expected one of {choices}, got {value!r}"
        raise ValueError(message)


def flag(name: str, value: object) -> None:
    """`value` must be True or False."""
    if not isinstance(value, bool):
        message = f"{name}: expected True or False, got {value!r}"
        raise TypeError(message)


def function(name: str, value: object) -> None:
    """`value` must be callable."""
    if not callable(value):
        message = f"{name}: expected a function, got {type(value).__name__}"
        raise TypeError(message)


def floating(xp: Namespace, **arrays: Array) -> None:
    """The arrays must have a real floating-point dtype, and all the same."""
    first_name, first = next(iter(arrays.items()))
    for name, x in arrays.items():
        if x.dtype != xp.float32 and not xp.isdtype(x.dtype, "real floating"):
            message = f"{name}: expected a real floating-point dtype, got {x.dtype}; convert it with astype"
            raise TypeError(message)
        if x.dtype != first.dtype:
            message = (
                f"{name}: expected the dtype of {first_name}, {first.dtype}, got {x.dtype}; convert one with astype"
            )
            raise TypeError(message)


def boolean(xp: Namespace, name: str, x: Array, shape: tuple[int, ...]) -> None:
    """`x` must be a boolean array of the given shape."""
    if not xp.isdtype(x.dtype, "bool"):
        message = f"{name}: expected a boolean array (True takes part), got dtype {x.dtype}; compare, as in {name} != 0"
        raise TypeError(message)
    same_shape(name, x, shape)


def integer(xp: Namespace, name: str, x: Array, shape: tuple[int, ...]) -> None:
    """`x` must be an integer array of the given shape."""
    if not xp.isdtype(x.dtype, "integral"):
        message = f"{name}: expected an integer dtype, got {x.dtype}; convert it with astype"
        raise TypeError(message)
    same_shape(name, x, shape)


def same_shape(name: str, x: Array, shape: tuple[int, ...]) -> None:
    """`x` must have the given shape."""
    if tuple(x.shape) != shape:
        message = f"{name}: expected shape {shape}, got {tuple(x.shape)}"
        raise ValueError(message)


def shape_of(name: str, x: Array, axes: str) -> tuple[int, ...]:
    """The shape of `x`, which must have as many axes as `axes` names, as in "(N, D)", and none of length 0."""
    shape = tuple(x.shape)
    if any(length is None or length != length for length in shape):  # noqa: PLR0124  (None by the standard, NaN in Dask)
        message = f"{name}: expected known lengths of {axes}, got shape {shape}; let the library find them out first"
        raise ValueError(message)
    if len(shape) != axes.count(",") + 1:
        remedy = "; add the axis of rows with x[None, :]" if len(shape) == axes.count(",") else ""
        message = f"{name}: expected shape {axes}, got {shape}{remedy}"
        raise ValueError(message)
    if 0 in shape:
        message = f"{name}: expected at least one entry along every axis of {axes}, got shape {shape}"
        raise ValueError(message)
    return shape


_DOUBLE = (sys.float_info.min, sys.float_info.max)
_SINGLE = (2.0**-126, (2.0 - 2.0**-23) * 2.0**127)
"""The least positive number of full precision, whose inverse is finite, and the largest, of float64 and of float32."""


def number_of(name: str, value: Any, *, above: float = -math.inf, limits: tuple[float, float] = _DOUBLE) -> None:
    """`value` must be a finite Python number greater than `above`, and within the limits of a dtype."""
    if not is_number(value):
        message = f"{name}: expected a number, got {type(value).__name__}"
        raise TypeError(message)
    low, high = limits if above == 0 else (-limits[1], limits[1])
    if not (above < value and low <= value <= high):
        got = value if isinstance(value, float) or abs(value) < 2**64 else "a longer integer"
        limit = "" if above == -math.inf else f" greater than {above:g}"
        message = f"{name}: expected a finite number{limit}, got {got}"
        if above < value and abs(value) < math.inf:
            message = f"{name}: expected a number between {low:.3g} and {high:.3g}, got {got}"
        raise ValueError(message)


def positive_scalar(xp: Namespace, name: str, value: Any, like: Array) -> Any:
    """A Python number greater than zero as it is, or an array of one entry as a 0-d array of the dtype of `like`."""
    return scalar(xp, name, value, like, above=0.0)


def scalar(xp: Namespace, name: str, value: Any, like: Array, *, above: float = -math.inf) -> Any:
    """A Python number as it is, or an array of one entry as a 0-d array of the dtype of `like`."""
    scalar_like(name, value, above=above, limits=_SINGLE if like.dtype == xp.float32 else _DOUBLE)
    return float(value) if is_number(value) else xp.astype(xp.reshape(value, ()), like.dtype)


def scalar_like(name: str, value: Any, *, above: float = -math.inf, limits: tuple[float, float] = _DOUBLE) -> None:
    """`value` must be a Python number greater than `above`, or a real floating-point array of one entry."""
    if is_number(value):
        number_of(name, value, above=above, limits=limits)
        return
    if not is_array(value):
        message = f"{name}: expected a number or an array of one entry, got {type(value).__name__}"
        raise TypeError(message)
    xp, _ = enter(**{name: value})
    if math.prod(value.shape) != 1:
        message = f"{name}: expected a number or an array of one entry, got shape {tuple(value.shape)}"
        raise ValueError(message)
    floating(xp, **{name: value})


def row_weights(xp: Namespace, weights: Array | None, rows: int, like: Array) -> Array | None:
    """The weights of the rows in the dtype of `like`, or None."""
    if weights is None:
        return None
    if not xp.isdtype(weights.dtype, ("real floating", "integral", "bool")):
        message = f"weights: expected a real dtype, got {weights.dtype}; convert it with astype"
        raise TypeError(message)
    same_shape("weights", weights, (rows,))
    return xp.astype(weights, like.dtype)


def block_size_of(block_size: Any) -> None:
    """`block_size` must be "auto", None, or a positive integer."""
    if block_size is None or (isinstance(block_size, str) and block_size == "auto"):
        return
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        message = f'block_size: expected a positive integer, "auto" or None, got {block_size!r}'
        raise ValueError(message)
