"""Other array-API libraries (array-api-strict, mparray, ...), differentiated by the tape."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .tape import TapeAdapter


def adapter(namespace_of: Callable[[Any], Any], library: str) -> TapeAdapter:
    """Adapter for the arrays of the importable array-API module `library`."""
    module = import_module(library)
    info = getattr(module, "__array_namespace_info__", None)
    devices = tuple(map(str, info().devices())) if info else ()
    return TapeAdapter(library, namespace_of, version=getattr(module, "__version__", "unknown"), devices=devices)
