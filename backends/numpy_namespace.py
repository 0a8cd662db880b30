"""array-api-compat's namespace of NumPy with a faster `where`.

NumPy branches on each condition, which processors mispredict. If the other entries are 0, integer products of the bits
with 0 and 1 take a seventh of the time.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from array_api_compat import numpy as compat
else:
    try:  # vendored next to this package
        from ...array_api_compat import numpy as compat
    except ImportError:
        from array_api_compat import numpy as compat

__all__ = ["namespace"]

_INTEGERS: dict[Any, Any] = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}
"""Integer dtypes of the size of floating-point dtypes."""

_FEWEST = 2**13
"""With fewer entries, the additional calls cost more than they save."""


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """`where`; if `x2` is 0, by integer products of the bits."""
    if type(x2) is float and repr(x2) == "0.0" and type(x1) is np.ndarray and x1.dtype in _INTEGERS:
        large = type(condition) is np.ndarray and condition.size >= _FEWEST
        if large and (x1.shape == condition.shape or np.broadcast_shapes(x1.shape, condition.shape) == condition.shape):
            integers = _INTEGERS[x1.dtype]
            chosen = condition.view(np.uint8).astype(integers)
            return np.multiply(chosen, x1.view(integers), out=chosen).view(x1.dtype)
    return np.where(condition, x1, x2)


def _completed() -> Any:
    made = ModuleType(compat.__name__)
    vars(made).update(vars(compat), where=where)
    return made


namespace: Any = _completed()
"""Namespace to compute with."""
