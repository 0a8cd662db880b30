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
from torch._C import _functorch as functorch
from torch._C import _len_torch_dispatch_stack
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual

from .defaults import Arrays

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

_FEWEST = 2**13
"""Of fewer entries, more calls cost more than they save."""


def transformed(arrays: Arrays) -> bool:
    """Whether a transform of torch.func or forward mode sees these tensors."""
    if functorch.get_dynamic_layer_stack_depth() == 0 and forward_ad._current_level < 0:  # noqa: SLF001  (nothing is asked of any)
        return False
    return bool(any(functorch.is_functorch_wrapped_tensor(x) or unpack_dual(x).tangent is not None for x in arrays))  # type: ignore[no-untyped-call]


def recorded(arrays: Arrays) -> bool:
    """Whether what is done with these tensors is recorded for a backward pass."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in arrays)


def is_plain(tensors: Arrays) -> bool:
    """Whether nobody sees what is done with these tensors.

    Modes see each operation: those of checkpointing expect the same ones in each call.
    """
    return not (recorded(tensors) or transformed(tensors) or _len_torch_dispatch_stack())


def _is_open(*tensors: Any) -> bool:
    """Whether the bits of these tensors can be used: those of large ones of the processor, outside of a compiler."""
    if torch.compiler.is_compiling() or tensors[0].numel() < _FEWEST or tensors[0].device.type != "cpu":
        return False
    return all(type(x) is torch.Tensor for x in tensors) and is_plain(tensors)


def any_along(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether any entry along an axis is True."""
    if x.dtype == torch.bool and axis is not None and _is_open(x):
        return torch.amax(x.view(torch.uint8), dim=axis, keepdim=keepdims).view(torch.bool)
    return compat.any(x, axis=axis, keepdims=keepdims)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """The entries in another dtype."""
    if x.dtype == torch.bool and dtype != torch.bool and device is None and _is_open(x):
        return x.view(torch.uint8).to(dtype)
    return compat.astype(x, dtype, copy=copy, device=device)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """The entries of `x1` where a condition holds, else those of `x2`; of 0, by products of the bits as integers."""
    of_zero = type(x2) is float and repr(x2) == "0.0" and isinstance(x1, torch.Tensor) and x1.dtype in _INTEGERS
    if of_zero and _is_open(condition, x1) and _covers(condition.shape, x1.shape):
        integers = _INTEGERS[x1.dtype]
        return condition.view(torch.uint8).to(integers).mul_(x1.view(integers)).view(x1.dtype)
    return compat.where(condition, x1, x2)


def _covers(shape: Any, other: Any) -> bool:
    """Whether arrays of both shapes make one of the first."""
    return bool(shape == other or torch.broadcast_shapes(shape, other) == shape)  # type: ignore[no-untyped-call]


def exp(x: Any, /) -> Any:
    """The exponential; of numbers below -87, where the usual one takes 200 times as long, in two factors."""
    if x.dtype == torch.float32 and _is_open(x) and torch.amin(x).item() < _LEAST:
        return torch.exp(torch.clamp(x, min=_LEAST)).mul_(exp_by_2(torch.clamp(x, max=_LEAST).sub_(_LEAST)))
    return torch.exp(x)


def exp_by_2(x: Any) -> Any:
    """The exponential in place by powers of 2, whose time is the same of all numbers of float32, at most 0."""
    return x.mul_(1.0 / math.log(2.0)).exp2_()


_LEAST = -87.0
"""Exponentials of less are subnormal in float32."""


def _completed() -> Any:
    made = ModuleType(compat.__name__)
    vars(made).update(vars(compat), any=any_along, astype=astype, exp=exp, where=where)
    return made


namespace: Any = _completed()
"""The namespace."""
