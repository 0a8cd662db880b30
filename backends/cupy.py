"""CuPy, differentiated by the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from .tape import TapeAdapter


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
    )
