"""PyTorch's compiler, which is loaded with this file: what it runs while it traces, and does not trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def untraced(function: Callable[..., Any], *constants: Any) -> Any:
    """Return ``function(*constants)``, a constant for the graph, whatever Python the function is made of."""
    return function(*constants)
