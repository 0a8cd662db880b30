"""Results: dtype, shape, and sums of several losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core.checks import (
    is_half,
)
from .._core.namespace import common_namespace, namespace_of
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from .._core.types import ReductionName


def finish(xp: Namespace, result: Array, dtype: Any, reduction: ReductionName) -> Array:
    """Result in the dtype of the input, and 0-d unless it is one value per row."""
    if hasattr(result, "__recorded__"):
        xp = namespace_of(result)  # a parameter of a similarity or objective can be on the tape without the embeddings
    if is_half(dtype):
        dtype = adapter_of(result).loss_dtype(result, dtype)
    result = result if result.dtype == dtype else xp.astype(result, dtype)
    return result if reduction == "none" else xp.reshape(result, ())


def add(parts: Sequence[Array], dtype: Any, reduction: ReductionName, *, divide_by: int = 1) -> Array:
    """Sum of finished results divided by `divide_by`, in the dtype of the input."""
    xp, entered = common_namespace(**{f"part {k}": part for k, part in enumerate(parts)})
    total, *others = (xp.reshape(part, (-1,)) for part in entered)  # NumPy's sum of two 0-d arrays is a scalar
    for other in others:
        total = total + other
    return finish(xp, total / divide_by if divide_by > 1 else total, dtype, reduction)
