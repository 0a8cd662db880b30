"""Other array-API libraries (array-api-strict, mparray, ...), differentiated by the tape."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from .defaults import Array
from .tape import TapeAdapter


class _Generic(TapeAdapter):
    """The tape's adapter, for a library whose arrays may hold NumPy's."""

    def row_dots(self, x: Array, y: Array) -> Array:
        """Products of rows, also of masked ones, which may overflow: only NumPy would warn of it."""
        numpy: Any = sys.modules.get("numpy")
        with nullcontext() if numpy is None else numpy.errstate(over="ignore"):
            return super().row_dots(x, y)


def adapter(namespace_of: Callable[[Any], Any], library: str) -> TapeAdapter:
    """Adapter for the arrays of the importable array-API module `library`."""
    module = import_module(library)
    info = getattr(module, "__array_namespace_info__", None)
    devices = tuple(map(str, info().devices())) if info else ()
    return _Generic(library, namespace_of, version=getattr(module, "__version__", "unknown"), devices=devices)
