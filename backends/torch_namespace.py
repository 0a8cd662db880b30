"""PyTorch's functions as array-api-compat has them, with faster ways on the processor.

PyTorch takes truth values one by one there. Of a matrix of 512 × 512, `any` along an axis takes up to seventy times as
long as the largest of the same bytes, a conversion to numbers three times as long as one of the bytes, and zeros for
what a condition leaves out take up to six times as long as products of all entries' bits with 0 and 1.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch._C._functorch import get_dynamic_layer_stack_depth
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from array_api_compat import torch as compat
else:
    try:  # beside this package, in one that has taken both over
        from ...array_api_compat import torch as compat
    except ImportError:
        from array_api_compat import torch as compat

__all__ = ["namespace"]

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""Integers of the size of floating-point numbers."""

_ZERO = (0.0).hex()
"""Not that of -0.0."""

_FEWEST = 2**13
"""Of fewer entries, more calls cost more than they save."""


def _is_plain(*tensors: Any) -> bool:
    """Whether these are large tensors of the processor, of which nobody sees what is done with them."""
    if torch.compiler.is_compiling() or get_dynamic_layer_stack_depth() or forward_ad._current_level >= 0:  # noqa: SLF001
        return False
    first, recorded = tensors[0], torch.is_grad_enabled()
    if first.device.type != "cpu" or first.numel() < _FEWEST:
        return False
    return all(type(x) is torch.Tensor and not (recorded and x.requires_grad) for x in tensors)


def any(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001  (the standard's name)
    """Whether any entry along an axis is True."""
    if x.dtype == torch.bool and axis is not None and _is_plain(x):
        return torch.amax(x.view(torch.uint8), dim=axis, keepdim=keepdims).view(torch.bool)
    return compat.any(x, axis=axis, keepdims=keepdims)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """The entries in another dtype."""
    if x.dtype == torch.bool and dtype != torch.bool and device is None and _is_plain(x):
        return x.view(torch.uint8).to(dtype)
    return compat.astype(x, dtype, copy=copy, device=device)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """The entries of `x1` where a condition holds, else those of `x2`; of 0, by products of the bits as integers."""
    if type(x2) is float and x2.hex() == _ZERO and isinstance(x1, torch.Tensor) and x1.dtype in _INTEGERS:
        fits = x1.shape == condition.shape or torch.broadcast_shapes(x1.shape, condition.shape) == condition.shape  # type: ignore[no-untyped-call]
        if fits and _is_plain(condition, x1):
            integers = _INTEGERS[x1.dtype]
            return condition.view(torch.uint8).to(integers).mul_(x1.view(integers)).view(x1.dtype)
    return compat.where(condition, x1, x2)


def exp(x: Any, /) -> Any:
    """The exponential; of numbers below -87, where the usual one takes 200 times as long, in two factors."""
    if x.dtype == torch.float32 and _is_plain(x) and torch.amin(x).item() < _LEAST:
        return torch.exp(torch.clamp(x, min=_LEAST)).mul_(exp_by_2(torch.clamp(x, max=_LEAST).sub_(_LEAST)))
    return torch.exp(x)


def exp_by_2(x: Any) -> Any:
    """The exponential in place by powers of 2, whose time is the same of all numbers of float32, at most 0."""
    return x.mul_(1.0 / math.log(2.0)).exp2_()


_LEAST = -87.0
"""Exponentials of less are no normal numbers of float32."""


def _completed() -> Any:
    made = ModuleType(compat.__name__)
    vars(made).update(vars(compat), any=any, astype=astype, exp=exp, where=where)
    return made


namespace: Any = _completed()
"""The namespace."""
