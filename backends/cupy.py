"""CuPy, differentiated by the tape."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cupy

from .tape import TapeAdapter


class CupyAdapter(TapeAdapter):
    """Adapter for CuPy arrays."""

    @staticmethod
    def add_at(xp: Any, g: Any, numbers: Any, size: int) -> Any:
        total = cupy.zeros((size + 1, *g.shape[1:]), dtype=cupy.float64)
        cupy.add.at(total, numbers, g.astype(cupy.float64))  # `bincount` would wait for the device
        return total[1:].astype(g.dtype)

    def memory(self, x: Any) -> int | None:
        return _memory_of(int(x.device.id))

    def fill_diagonal(self, x: Any, row: int, column: int, count: int, value: Any) -> Any:
        if hasattr(x, "__recorded__") or hasattr(value, "__recorded__"):
            return super().fill_diagonal(x, row, column, count, value)
        given = value[row : row + count] if hasattr(value, "shape") else value
        # A view; `cupy.fill_diagonal` would copy a number to the device.
        x[row : row + count, column : column + count].diagonal()[...] = given
        return x


@cache
def _memory_of(index: int) -> int:
    """Bytes of memory of a GPU."""
    return int(cupy.cuda.runtime.getDeviceProperties(index)["totalGlobalMem"])


def adapter(namespace_of: Callable[[Any], Any]) -> CupyAdapter:
    """Adapter for CuPy arrays."""
    devices = tuple(f"cuda:{k}" for k in range(cupy.cuda.runtime.getDeviceCount()))
    version: str = cupy.__version__
    return CupyAdapter("cupy", namespace_of, version=version, devices=devices, half_precision=("float16",))
