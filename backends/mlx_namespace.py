"""Array-API namespace of MLX: replacements for functions, arguments and dtypes that `mlx.core` lacks.

`mlx.core` nearly follows the standard. The deviations below were found on MLX 0.32.4; all other functions are MLX's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import mlx.core as mx

from .defaults import Array, Function

__all__ = ["is_traced", "namespace", "not_differentiated", "ruled"]

_INDEX = mx.int32
"""Index dtype of `mlx.core.__array_namespace_info__`; MLX's functions return uint32."""


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """`astype` with `copy` and `device`, which MLX's lacks."""
    # `copy` is ignored: MLX arrays are values.
    return mx.astype(x, dtype, stream=device)


def is_traced(x: Array) -> bool:
    """Whether a transformation traces `x`.

    MLX has no query, but `async_eval` raises for a traced array. Other arrays are evaluated by it.
    """
    try:
        mx.async_eval(mx.stop_gradient(x))
    except ValueError:
        return True
    return False


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Array:
    """`asarray` with `device`, which MLX's lacks.

    A copy has no graph, so that other threads can read it; cotangents do not pass through it. MLX evaluates an array
    only in the thread that made it ("There is no Stream(cpu, 1) in current thread"). Within a derivative it keeps the
    graphs of evaluated arrays, and concurrent frees of such a graph end in a segmentation fault.
    """
    with nullcontext() if device is None else mx.stream(device):
        x = mx.asarray(obj, dtype)
        if not copy:
            return x
        if not x.size:  # there are no empty buffers
            x = mx.zeros(x.shape, x.dtype)
            mx.eval(x)
            return x
        if x.dtype in (mx.float64, mx.bfloat16):  # MLX reads float64 buffers as float32; Python has no bfloat16 buffers
            return mx.array(x.tolist(), dtype=x.dtype)
        buffer: Any = x
        copied: Any = memoryview(buffer)
        return mx.array(copied)


def _on_device(name: str) -> Function:
    """Creation function with the argument `device` in place of MLX's `stream`."""
    function = getattr(mx, name)

    @functools.wraps(function)
    def create(*arguments: Any, dtype: Any = None, device: Any = None, **options: Any) -> Array:
        given = {} if dtype is None else {"dtype": dtype}
        return function(*arguments, **given, **options, stream=device)

    return create


def _reduction(name: str) -> Function:
    """Sum or product with the argument `dtype`, which MLX's lacks."""
    function = getattr(mx, name)

    @functools.wraps(function)
    def reduce(x: Array, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
        return function(x if dtype is None else mx.astype(x, dtype), axis=axis, keepdims=keepdims)

    return reduce


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """The fill value is `vals` in MLX."""
    return mx.full(shape, fill_value, dtype, stream=device)


def full_like(x: Array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """The fill value is `vals` in MLX."""
    return mx.full_like(x, fill_value, dtype, stream=device)


def _indices(result: Array) -> Array:
    """Constant indices of the index dtype.

    For indices computed from a differentiated array, MLX raises "[gather] Cannot calculate VJP with respect to indices.
    Use stop_gradient on indices".
    """
    return mx.stop_gradient(result.astype(_INDEX))


def _place(name: str) -> Function:
    """`argmax` or `argmin`."""
    function = getattr(mx, name)

    @functools.wraps(function)
    def find(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
        if axis is not None and x.size == 0 and x.shape[axis] > 0:  # MLX refuses arrays without rows as well
            return _indices(mx.max(x, axis=axis, keepdims=keepdims))
        return _indices(function(x, axis=axis, keepdims=keepdims))

    return find


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """`argsort` with `descending` and `stable`, which MLX's lacks.

    MLX's sort is stable: a merge sort, on the CPU `std::stable_sort`. For a descending order, reverse before and after.
    """
    if not descending:
        return _indices(mx.argsort(x, axis=axis))
    order = mx.flip(mx.argsort(mx.flip(x, axis=axis), axis=axis), axis=axis)
    return x.shape[axis] - 1 - _indices(order)


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """`take` with constant indices (see `_indices`).

    Its derivative with respect to an array without entries raises "[scatter] Updates with shape (0,1) are too large".
    """
    if axis is not None and indices.size == 0 and indices.ndim == 1:
        nothing = [slice(None)] * x.ndim
        nothing[axis] = slice(0)
        return x[tuple(nothing)]
    return mx.take(x, mx.stop_gradient(indices), axis=axis)


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """`sort` with `descending` and `stable`, which MLX's lacks."""
    result = mx.sort(x, axis=axis)
    return mx.flip(result, axis=axis) if descending else result


def searchsorted(x1: Array, x2: Array, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    """`searchsorted` that returns the index dtype, and in a transformation counts: `vmap` refuses MLX's."""
    ordered = x1 if sorter is None else mx.take(x1, sorter, axis=0)
    if not is_traced(ordered):
        return _indices(mx.searchsorted(ordered, x2, side=side))
    precedes = mx.less if side == "left" else mx.less_equal
    return _indices(mx.sum(precedes(ordered, mx.expand_dims(x2, -1)), axis=-1))


def not_equal(x1: Any, x2: Any, /) -> Array:
    """``x1 != x2``; if `vmap` maps the second alone, the axes of MLX's result change places."""
    return mx.logical_not(mx.equal(x1, x2))


def cumulative_sum(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """`cumulative_sum` with `include_initial`, which MLX's lacks."""
    axis = 0 if axis is None else axis
    result = mx.cumsum(x if dtype is None else mx.astype(x, dtype), axis=axis)
    if not include_initial:
        return result
    first = mx.zeros_like(mx.take(result, mx.array([0]), axis=axis))
    return mx.concat([first, result], axis=axis)


def eigh(x: Array, /) -> tuple[Array, Array]:
    """`eigh` on the CPU, the only device that MLX supports."""
    values, vectors = mx.linalg.eigh(x, stream=mx.cpu)
    return values, vectors


def svd(x: Array, /, *, full_matrices: bool = True) -> tuple[Array, Array, Array]:
    """`svd` with `full_matrices`, which MLX's lacks, on the CPU, the only device that MLX supports."""
    u, s, vh = mx.linalg.svd(x, stream=mx.cpu)
    count = s.shape[-1]
    return (u, s, vh) if full_matrices else (u[..., :count], s, vh[..., :count, :])


def ruled(function: Function, **rules: Function) -> Any:
    """Function with custom `vjp`, `jvp` and `vmap` rules."""
    bound: Any = mx.custom_function(function)
    for transformation, rule in rules.items():
        getattr(bound, transformation)(rule)
    return bound


def _by_its_rule(function: Function, slope: Function) -> Function:
    """Function of one array with derivative ``slope(argument, result)``."""

    def pull(primal: Array, cotangent: Array, output: Array) -> Array:
        return cotangent * slope(primal, output)

    def push(primal: Array, tangent: Array) -> Array:
        return tangent * slope(primal, bound(primal))

    bound: Function = ruled(function, vjp=pull, jvp=push, vmap=lambda primal, axis: (bound(primal), axis))
    return bound


def _exact_exp(x: Array) -> Array:
    """``exp(x)`` from the C library's ``expm1``; ``1 / exp(-x)`` for negative x."""
    growth = mx.expm1(mx.abs(x)) + 1.0
    return mx.where(x < 0, 1.0 / growth, growth)


_exp = _by_its_rule(_exact_exp, lambda _, y: y)
_expm1 = _by_its_rule(mx.expm1, lambda _, y: y + 1.0)


def _is_mended(x: Array) -> bool:
    return bool(mx.default_device().type == mx.cpu and x.dtype in (mx.float32, mx.float64))


def exp(x: Array, /) -> Array:
    """Exponential with an error of at most two units in the last place, also on the CPU.

    On the CPU, MLX multiplies by log2(e) with one rounding, for every dtype
    (https://github.com/ml-explore/mlx/issues/3047, https://github.com/ml-explore/mlx/issues/1341): the relative error
    of ``mx.exp(x)`` is about ``1e-7 |x|``: in float32, 7 units in the last place for x = -9 and 60 for x = -75. float64
    is no more precise, and ``mx.exp(mx.array(100.0, dtype=mx.float64))`` is infinite.
    """
    return _exp(x) if _is_mended(x) else mx.exp(x)


def expm1(x: Array, /) -> Array:
    """``exp(x) - 1`` with exact tangents; MLX's uses its `exp`."""
    return _expm1(x) if _is_mended(x) else mx.expm1(x)


_closed = ContextVar("_closed", default=False)
"""Whether this thread is inside a function with custom rules."""


@contextmanager
def not_differentiated() -> Iterator[None]:
    """Use MLX's `where` inside a function with custom rules, where MLX differentiates nothing.

    The custom rule of `where` costs about 10 µs.
    """
    before = _closed.set(True)
    try:
        yield
    finally:
        _closed.reset(before)


def _pull_choice(primals: tuple[Array, Array, Array], cotangent: Array, output: Array) -> tuple[Array, ...]:
    condition, *_ = primals
    return mx.zeros_like(condition), mx.where(condition, cotangent, 0.0), mx.where(condition, 0.0, cotangent)


def _push_choice(primals: tuple[Array, Array, Array], tangents: tuple[Any, Any, Any]) -> Array:
    _, *tangents_of_both = tangents
    condition, *both = primals
    x, y = (mx.zeros_like(z) if t is None else t for z, t in zip(both, tangents_of_both, strict=True))
    return mx.where(condition, x, y)


def _vectorise_choice(primals: tuple[Array, ...], axes: tuple[int | None, ...]) -> tuple[Array, int]:
    pairs = zip(primals, axes, strict=True)
    moved = [x[None] if axis is None else mx.moveaxis(x, axis, 0) for x, axis in pairs]
    return _where(*mx.broadcast_arrays(*moved)), 0


_where = ruled(mx.where, vjp=_pull_choice, jvp=_push_choice, vmap=_vectorise_choice)


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    """`where` with derivative 0 for the entry that is not selected, even for an infinite cotangent.

    MLX multiplies the cotangent by the condition (`Select::vjp` in its ``primitives.cpp``), which turns inf into NaN:
    ``mx.vjp(lambda x: mx.where(x > 0, x, 0.0), [mx.array([-1.0])], [mx.array([mx.inf])])``.
    """
    if _closed.get():
        return mx.where(condition, x1, x2)
    dtype = next((x.dtype for x in (x1, x2) if isinstance(x, mx.array)), None)
    both = [x if isinstance(x, mx.array) else mx.array(x, dtype) for x in (x1, x2)]
    if not mx.issubdtype(both[0].dtype, mx.floating) or both[0].dtype != both[1].dtype:
        return mx.where(condition, x1, x2)
    return _where(*mx.broadcast_arrays(condition, *both))


def _mended() -> ModuleType:
    """Module of MLX's functions with those above; named as MLX, for error messages."""
    mended = ModuleType(mx.__name__, __doc__)
    vars(mended).update({name: value for name, value in vars(mx).items() if not name.startswith("__")})
    vars(mended).update({"__version__": vars(mx)["__version__"], "bool": mx.bool_})
    # MLX's `linspace` and `eye` differ from the standard only in `stream`.
    for name in (*("arange", "empty", "empty_like", "eye", "linspace"), *("ones", "ones_like", "zeros", "zeros_like")):
        setattr(mended, name, _on_device(name))
    for name in ("prod", "sum"):
        setattr(mended, name, _reduction(name))
    for name in ("argmax", "argmin"):
        setattr(mended, name, _place(name))
    for function in (
        *(argsort, asarray, astype, cumulative_sum, exp, expm1, full, full_like),
        *(not_equal, searchsorted, sort, take, where),
    ):
        setattr(mended, function.__name__, function)
    linalg = ModuleType(f"{mx.__name__}.linalg")
    vars(linalg).update({**vars(mx.linalg), "eigh": eigh, "svd": svd})
    vars(mended)["linalg"] = linalg
    return mended


namespace: Any = _mended()
"""Namespace to compute with."""
