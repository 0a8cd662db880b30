"""Function that torch.compile runs but does not trace; importing this file loads the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def untraced(function: Callable[..., Any], *constants: Any) -> Any:
    """Return ``function(*constants)`` as a constant of the graph; the function may be any Python code."""
    return function(*constants)
