"""CuPy, differentiated by the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from .tape import TapeAdapter


def add_at(xp: Any, g: Any, numbers: Any, size: int) -> Any:
    """Add up the entries of `g` by their numbers, from 1 to `size`; those of number 0 go nowhere."""
    del xp
    return cupy.bincount(numbers, weights=g, minlength=size + 1)[1:].astype(g.dtype)  # added up in float64


def adapter(namespace_of: Callable[[Any], Any]) -> TapeAdapter:
    """The adapter for CuPy arrays."""
    devices = tuple(f"cuda:{k}" for k in range(cupy.cuda.runtime.getDeviceCount()))
    return TapeAdapter(
        "cupy",
        namespace_of,
        version=cupy.__version__,
        devices=devices,
        half_precision=("float16",),
        fill=cupy.fill_diagonal,
        add_at=add_at,
    )
