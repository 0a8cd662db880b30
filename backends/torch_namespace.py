"""array-api-compat's namespace of PyTorch, with faster functions on the CPU.

PyTorch processes booleans one by one on the CPU. For a 512 × 512 matrix, `any` along an axis takes up to seventy times
as long as the maximum of the same bytes, a conversion to numbers three times as long as from bytes, `where` up to eight
times as long as operations on the bits, a conjunction with flags of rows thirty times as long as one of bytes, and a
comparison four times as long as one with numbers as results. Small arrays gain nothing, and get PyTorch's functions in
as few calls as possible.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]  (no stub)
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from .defaults import Arrays, Function
from .repeated import OPERATORS, with_arrays

if TYPE_CHECKING:
    from array_api_compat import torch as compat
else:
    try:  # vendored next to this package
        from ...array_api_compat import torch as compat
    except ImportError:
        from array_api_compat import torch as compat

__all__ = ["namespace"]

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""Integer dtypes of the size of floating-point dtypes."""

_FEWEST, _MANY = 2**13, 2**15
"""With fewer entries, one or two additional calls, and several, cost more than they save."""


def transformed(arrays: Arrays) -> bool:
    """Whether a torch.func transform or forward mode tracks these tensors."""
    if functorch.get_dynamic_layer_stack_depth() == 0 and forward_ad._current_level < 0:  # noqa: SLF001  (fast path)
        return False
    return bool(any(functorch.is_functorch_wrapped_tensor(x) or unpack_dual(x).tangent is not None for x in arrays))  # type: ignore[no-untyped-call]


def recorded(arrays: Arrays) -> bool:
    """Whether operations on these tensors are recorded for a backward pass."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in arrays)


def is_traced() -> bool:
    """Whether `torch.jit.trace`, `make_fx` or `torch.func.linearize` record operations, for entries that may differ."""
    return torch._C._is_tracing() or torch._C._get_dispatch_mode(_PROXY) is not None  # noqa: SLF001  (`torch.jit.is_tracing`)


_PROXY = torch._C._TorchDispatchModeKey.PROXY  # noqa: SLF001


_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


def is_plain(tensors: Arrays) -> bool:
    """Whether operations on these tensors are torch's own, and nothing observes them."""
    return not recorded(tensors) and is_unobserved(tensors)


def is_unobserved(tensors: Arrays) -> bool:
    """Whether nothing but autograd, for a single backward pass, observes operations on these tensors.

    The type is exactly that of a tensor or parameter, and none stands for something else: a batch of the older vmap, by
    which `torch.autograd` batches backward passes, or a functional tensor. No transform (torch.func wraps results of
    plain tensors as well), mode, trace or CUDA graph (whose memory is not to be kept) is active.
    """
    if torch.compiler.is_compiling() or is_traced():
        return False
    if functorch.get_dynamic_layer_stack_depth() or _len_torch_dispatch_stack():
        return False
    if _len_torch_function_stack() and not _only_devices():
        return False
    for x in tensors:
        if type(x) not in _TYPES or functorch.is_legacy_batchedtensor(x) or torch._is_functional_tensor(x):  # noqa: SLF001
            return False
    if forward_ad._current_level >= 0 and transformed(tensors):  # noqa: SLF001
        return False
    return not (tensors[0].is_cuda and torch.cuda.is_current_stream_capturing())


def _only_devices() -> bool:
    """Whether the active function modes only set the default device, which the engine does not use."""
    return all(type(mode) is DeviceContext for mode in _get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def _is_open(*tensors: Any, fewest: int = _FEWEST) -> bool:
    """Whether the bits of these tensors can be used: on CPUs, with a large result, outside of torch.compile.

    A compiler must not be asked about sizes: it would make a graph for each answer.
    """
    if torch.compiler.is_compiling() or not tensors[0].is_cpu:
        return False
    large = math.prod(_joint_shape(*[x.shape for x in tensors])) >= fewest
    return large and is_plain(tensors) and not any(x.is_neg() for x in tensors)  # a negative yet to be computed


def any_along(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """`any` along an axis."""
    if x.dtype == torch.bool and axis is not None and _is_open(x):
        return torch.amax(x.view(torch.uint8), dim=axis, keepdim=keepdims).view(torch.bool)
    return compat.any(x, axis=axis, keepdims=keepdims)


def all_along(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """`all` along an axis, or of all entries."""
    if x.dtype == torch.bool and _is_open(x):
        return torch.amin(x.view(torch.uint8), dim=() if axis is None else axis, keepdim=keepdims).view(torch.bool)
    return compat.all(x, axis=axis, keepdims=keepdims)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """`astype`, from booleans by way of bytes."""
    if x.dtype == torch.bool and dtype != torch.bool and device is None and _is_open(x):
        return x.view(torch.uint8).to(dtype)
    return compat.astype(x, dtype, copy=copy, device=device)


# Of each number that `torch.full` takes, torch.compile makes a graph, but not of numbers that are added to arrays.


def full(shape: Any, fill_value: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """`full`; of numbers in compiled code, by a sum."""
    if type(fill_value) is float and torch.compiler.is_compiling():
        return torch.zeros(shape, dtype=dtype, device=device) + fill_value
    return torch.full((shape,) if isinstance(shape, int) else shape, fill_value, dtype=dtype, device=device)


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """`full_like`; of numbers in compiled code, by a sum."""
    if type(fill_value) is float and torch.compiler.is_compiling():
        return torch.zeros_like(x, dtype=dtype, device=device) + fill_value
    return torch.full_like(x, fill_value, dtype=dtype, device=device)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """`where`, by operations on the bits of the numbers; exact, also for NaN and signed zeros.

    With a flag beside an array of flags, by a comparison: `torch.jit.trace` knows no such `where`.
    """
    if x1.__class__ is bool and getattr(x2, "dtype", None) == torch.bool:
        return torch.logical_or(condition, x2) if x1 else torch.gt(x2, condition)
    if x2.__class__ is bool and getattr(x1, "dtype", None) == torch.bool:
        return torch.ge(x1, condition) if x2 else torch.logical_and(x1, condition)
    tensors = (x1,) if type(x2) is float else (x2,) if type(x1) is float else (x1, x2)
    dtype = getattr(tensors[0], "dtype", None)
    if dtype not in _INTEGERS or getattr(tensors[-1], "dtype", None) != dtype or condition.dtype != torch.bool:
        return compat.where(condition, x1, x2)
    or_zero = type(x2) is float and repr(x2) == "0.0"
    if not _is_open(condition, *tensors, fewest=_FEWEST if or_zero else _MANY):
        return torch.where(condition, x1, x2)
    shape = _joint_shape(condition.shape, *[x.shape for x in tensors])
    integers = _INTEGERS[dtype]
    chosen = condition.view(torch.uint8).to(integers)
    if or_zero:
        bits = tensors[0].view(integers)
        chosen = chosen.mul_(bits) if chosen.shape == shape else chosen * bits
        return chosen.view(dtype)
    chosen.neg_()  # all bits
    a, b = (x.view(integers) if isinstance(x, torch.Tensor) else _bits(repr(x), dtype) for x in (x1, x2))
    differing: Any = a ^ b
    fits = [x for x in (chosen, differing) if x.shape == shape]
    result = fits[0].bitwise_and_(differing if fits[0] is chosen else chosen) if fits else chosen & differing
    return result.bitwise_xor_(b).view(dtype)


@lru_cache
def _bits(number: str, dtype: torch.dtype) -> int:
    """The bits of a number in a dtype, as a signed integer; of its text, since ``-0.0 == 0.0``."""
    return int(torch.tensor(float(number), dtype=dtype).view(_INTEGERS[dtype]))


def _joint_shape(first: Any, *others: Any) -> Any:
    """Shape to which all broadcast."""
    for shape in others:
        if shape != first:
            fits = len(shape) == len(first) and 0 not in shape and 0 not in first
            first = torch.Size(map(max, first, shape)) if fits else torch.broadcast_shapes(first, shape)  # type: ignore[no-untyped-call]
    return first


def _joined_flags(function: Any, of_bytes: Any) -> Any:
    """Function of booleans, of the bytes of those of different shapes."""

    def join(x1: Any, x2: Any, /) -> Any:
        of_flags = x1.dtype == x2.dtype == torch.bool
        if of_flags and not torch.compiler.is_compiling() and x1.shape != x2.shape and _is_open(x1, x2):
            return of_bytes(x1.view(torch.uint8), x2.view(torch.uint8)).view(torch.bool)
        return function(x1, x2)

    return join


logical_and = _joined_flags(torch.logical_and, torch.bitwise_and)
logical_or = _joined_flags(torch.logical_or, torch.bitwise_or)

# Comparisons of floating-point numbers take a sixth of the time if their results are such numbers.


def _compared(function: Any) -> Any:
    def compare(x1: Any, x2: Any, /) -> Any:
        tensors = (x1, x2) if isinstance(x2, torch.Tensor) else (x1,)
        if getattr(x1, "dtype", None) not in _INTEGERS or tensors[-1].dtype != x1.dtype:
            return function(x1, x2)
        if not _is_open(*tensors, fewest=_MANY):
            return function(x1, x2)
        return function(x1, x2, out=x1.new_empty(_joint_shape(*[x.shape for x in tensors]))).to(torch.bool)

    return compare


less, less_equal, greater, greater_equal, equal, not_equal = map(
    _compared, (torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne)
)


def cumulative_sum(x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """`cumulative_sum`; torch.compile cannot trace array-api-compat's."""
    if axis is None or include_initial:
        return compat.cumulative_sum(x, axis=axis, dtype=dtype, include_initial=include_initial)
    return torch.cumsum(x, dim=axis, dtype=dtype)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    """`take` along an axis, without two passes for negative indices, which the engine does not have."""
    return torch.index_select(x, 0 if axis is None else axis, indices)


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Any:
    """`reshape`, which is called often."""
    return torch.reshape(x, shape) if copy is None else compat.reshape(x, shape, copy=copy)


def exp(x: Any, /) -> Any:
    """Exponential; below -87, where torch's takes 200 times as long (subnormal results), by two factors."""
    if x.dtype == torch.float32 and _is_open(x) and torch.amin(x).item() < _LEAST:
        return torch.exp(torch.clamp(x, min=_LEAST)).mul_(exp_by_2(torch.clamp(x, max=_LEAST).sub_(_LEAST)))
    return torch.exp(x)


def exp_by_2(x: Any) -> Any:
    """In-place exponential of float32 numbers at most 0 by powers of 2, whose time does not depend on the values."""
    return x.mul_(1.0 / math.log(2.0)).exp2_()


_LEAST = -87.0
"""Exponentials of smaller numbers are subnormal in float32."""


def _completed() -> Any:
    made = ModuleType(compat.__name__)
    own = {
        "all": all_along,
        "any": any_along,
        "astype": astype,
        "cumulative_sum": cumulative_sum,
        "exp": exp,
        "full": full,
    }
    vars(made).update({**vars(compat), **own, "full_like": full_like, "where": where})
    vars(made).update(logical_and=logical_and, logical_or=logical_or, reshape=reshape, take=take)
    compared = less, less_equal, greater, greater_equal, equal, not_equal
    names = "less", "less_equal", "greater", "greater_equal", "equal", "not_equal"
    vars(made).update(zip(names, compared, strict=True))
    return made


namespace: Any = _completed()
"""Namespace to compute with."""

_OF_SMALL = {
    where: torch.where,
    logical_and: torch.logical_and,
    logical_or: torch.logical_or,
    less: torch.lt,
    less_equal: torch.le,
    greater: torch.gt,
    greater_equal: torch.ge,
    equal: torch.eq,
    not_equal: torch.ne,
    exp: torch.exp,
}
"""PyTorch's own functions, which are as fast for small tensors."""

_ALONG = {compat.sum: torch.sum, compat.max: torch.amax, compat.min: torch.amin, compat.any: torch.any}
_OF_NUMBERS = OPERATORS | {torch.Tensor.mul_, torch.where, torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne}


def repeated(function: Function, options: dict[str, Any], values: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The function, options and values by which programs compute a result: PyTorch's own, in as few calls as possible.

    In float16 and bfloat16 a number is not rounded before it enters an operation, but a tensor of it is.
    """
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    if all(x.is_cpu for x in tensors):
        function, options = _own(function, options, tensors)
        given = tensors[1:] if function is torch.where else tensors
        if function in _OF_NUMBERS and given and len(tensors) < len(values):
            number, values = values[0], with_arrays(values, given, _NUMBERS, _as_tensor)
            if function is operator.truediv and values[0] is not number:
                function = _divided
    return function, options, values


def _own(function: Function, options: dict[str, Any], tensors: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """PyTorch's own function and its options."""
    if function in _OF_SMALL and not options:
        chosen = tensors[1:] if function is where else tensors
        if math.prod(_joint_shape(*[x.shape for x in tensors])) < _FEWEST and len({x.dtype for x in chosen}) == 1:
            return _OF_SMALL[function], options
    if function in _ALONG and options.keys() <= {"axis", "keepdims"} and options.get("axis", ()) not in {(), None}:
        return _ALONG[function], {"dim": options["axis"], "keepdim": options.get("keepdims", False)}
    return torch.reshape if function is reshape and not options else function, options


_NUMBERS = frozenset({*_INTEGERS, *_INTEGERS.values()})


def _as_tensor(number: Any, dtype: Any) -> Any:
    return torch.tensor(number, dtype=dtype, device="cpu")


def _divided(number: Any, x: Any) -> Any:
    """A number over a tensor, as PyTorch computes it."""
    return torch.reciprocal(x).mul_(number)
