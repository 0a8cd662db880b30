"""What users' functions return: checked, and in the library and the precision that the losses compute in."""

from __future__ import annotations

from typing import Any

from .checks import check_floating
from .namespace import cast, common_namespace, is_array, is_number, namespace_of
from .numerics import upcast
from .protocol import Array


def shape_or_type(found: Any) -> str:
    """What a user's function returned, in an error."""
    return f"shape {tuple(found.shape)}" if is_array(found) else type(found).__name__


def of_library(name: str, found: Array, like: Array) -> Array:
    """An array in the library of `like`, without 16-bit entries; else an error."""
    common_namespace(embeddings=like, **{name: found})
    return upcast(namespace_of(found), found)


def as_floating(name: str, found: Array, like: Array) -> Array:
    """A floating-point array in the library of `like`, without 16-bit entries; else an error."""
    found = of_library(name, found, like)
    check_floating(namespace_of(found), **{name: found})
    return found


def as_slope(name: str, found: Any, like: Array) -> Array:
    """A derivative in the library and dtype of `like`: a number, or an array, also of integers or flags."""
    if is_number(found):
        return namespace_of(like).full_like(like, float(found))
    found = of_library(name, found, like)
    xp = namespace_of(found)
    if not xp.isdtype(found.dtype, ("bool", "integral")):
        check_floating(xp, **{name: found})
    return cast(found, like.dtype)


def returned(name: str, found: Any, shape: tuple[int, ...], like: Array, what: str) -> Array:
    """A result of this shape, in the library and dtype of `like`; else an error that says what was expected."""
    if not is_array(found) or tuple(found.shape) != shape:
        raise ValueError(f"{name}: expected {what} of shape {shape}, got {shape_or_type(found)}")
    return cast(as_floating(name, found, like), like.dtype)
