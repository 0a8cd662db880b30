"""PyTorch's functions as array-api-compat has them, with faster ways on the processor.

PyTorch takes truth values one by one there. Of a matrix of 512 × 512, `any` along an axis takes forty times as long as
the largest of the same bytes, a conversion to numbers ten times as long as one of the bytes, and `where` two to six
times as long as operations with all bits of the entries.
"""

from __future__ import annotations

import math
from functools import lru_cache
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
    """The entries of `x1` where a condition holds, else those of `x2`."""
    entries = [x for x in (x1, x2) if isinstance(x, torch.Tensor)]
    dtype = entries[0].dtype if entries else None
    if dtype in _INTEGERS and _is_plain(condition, *entries) and all(_fits(x, condition) for x in entries):
        first, second = _bits(x1, dtype), _bits(x2, dtype)
        if first is not None and second is not None:
            chosen = condition.view(torch.uint8).to(_INTEGERS[dtype])
            if isinstance(second, int) and second == 0:
                return chosen.mul_(first).view(dtype)
            return chosen.neg_().bitwise_and_(first ^ second).bitwise_xor_(second).view(dtype)
    return compat.where(condition, x1, x2)


def _fits(x: Any, condition: Any) -> bool:
    """Whether what is computed with both has the shape of the condition."""
    if x.dim() != condition.dim():
        return False
    return all(length in {1, wanted} for length, wanted in zip(x.shape, condition.shape, strict=True))


def _bits(x: Any, dtype: Any) -> Any:
    """A tensor, or a number, of a dtype as integers; None of another."""
    if isinstance(x, torch.Tensor):
        return x.view(_INTEGERS[dtype]) if x.dtype == dtype else None
    return _bits_of_number(x.hex(), dtype) if type(x) is float else None


@lru_cache
def _bits_of_number(text: str, dtype: Any) -> int:
    return int(torch.tensor(float.fromhex(text), dtype=dtype).view(_INTEGERS[dtype]).item())


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
