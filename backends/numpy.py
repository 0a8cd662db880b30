"""NumPy, differentiated by the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .tape import TapeAdapter


def adapter(namespace_of: Callable[[Any], Any]) -> TapeAdapter:
    """The adapter for NumPy arrays."""
    return TapeAdapter(
        "numpy", namespace_of, version=np.__version__, devices=("cpu",), half_precision=("float16",), at_hand=True
    )
