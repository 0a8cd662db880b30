"""A reverse-mode tape over the array API, for arrays that have no autodiff of their own.

A `TapeArray` holds an array of any array-API library and remembers how it was made. Its `__array_namespace__` is a
`TapeNamespace`, which offers the functions of the library's own namespace: differentiable ones record a pullback,
functions whose derivative is zero or undefined (comparisons, `isfinite`, `argmax`, ...) return constants, and
anything else refuses a recorded array with an error, so that a derivative is never silently lost.

Three rules make it small:

* A *primitive* is a forward function and one pullback per argument, all of them array-API code.
* Pullbacks call the namespace too, so a value that is itself recorded by an outer `value_and_grad` records the
  pullback: derivatives of derivatives need no further code. Each call of `value_and_grad` has a *level*; an operation
  belongs to the highest level among its arguments, and everything of a lower level is a constant to it.
* The graph is held by the arrays alone. There is no global state besides two counters.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

__all__ = [
    "TapeAdapter",
    "TapeArray",
    "TapeNamespace",
    "flatten",
    "restore",
]

Array = Any
Namespace = Any

_orders = itertools.count()
_levels = itertools.count(1)


# ---------------------------------------------------------------------------------------------------------- the graph


class Node:
    """One recorded operation: where its inputs came from, and how a cotangent of its outputs travels back to them."""

    __slots__ = ("order", "outputs", "parents", "pullback")

    def __init__(
        self,
        parents: Sequence[TapeArray | None] = (),
        pullback: Callable[..., Sequence[Array | None]] | None = None,
        outputs: int = 1,
    ) -> None:
        self.order = next(_orders)
        self.parents = parents
        self.pullback = pullback
        self.outputs = outputs


class TapeArray:
    """An array that remembers how it was computed; it behaves like the array it holds."""

    __slots__ = ("index", "level", "namespace", "node", "value")

    def __init__(
        self, value: Array, namespace: TapeNamespace, level: int, node: Node | None = None, index: int = 0
    ) -> None:
        self.value = value
        self.namespace = namespace
        self.level = level
        self.node = node
        self.index = index

    # The protocol.
    def __array_namespace__(self, *, api_version: str | None = None) -> TapeNamespace:
        del api_version
        return self.namespace

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    @property
    def device(self) -> Any:
        return self.value.device

    @property
    def T(self) -> Any:  # noqa: N802  (the standard's name)
        return self.namespace.matrix_transpose(self)

    @property
    def mT(self) -> Any:  # noqa: N802  (the standard's name)
        return self.namespace.matrix_transpose(self)

    @property
    def __recorded__(self) -> Array:
        """The plain array, by which the registry knows the library."""
        return strip(self)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Any:
        return self.namespace.apply(_TO_DEVICE, self, device=device, stream=stream)

    def __repr__(self) -> str:
        return f"TapeArray({self.value!r})"

    def __len__(self) -> int:
        return int(self.shape[0])

    def __bool__(self) -> bool:
        return bool(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __getitem__(self, key: Any) -> Any:
        plain = tuple(map(strip, key)) if isinstance(key, tuple) else (strip(key),)
        taken = self.namespace.apply(_GETITEM, self, key=tuple(k for k in plain if k is not None))
        if None not in plain:
            return taken
        return self.namespace.reshape(taken, tuple(strip(self)[plain].shape))

    def __getattr__(self, name: str) -> Any:
        """Return the methods by which NumPy's and CuPy's users call functions, if the array inside has them."""
        method = _METHODS.get(name)
        if method is None or not hasattr(strip(self), name):
            message = f"a recorded array has no attribute {name!r}; use the functions of its __array_namespace__()"
            raise AttributeError(message)
        return lambda *arguments, **options: method(self.namespace, self, *arguments, **options)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __setitem__(self, key: Any, value: Any) -> None:
        message = "a recorded array cannot be assigned to in place; build a new one with where, concat or stack"
        raise TypeError(message)

    # Operators. NumPy and CuPy hand theirs over through `__array_ufunc__`, the same door as np.tanh(x) and the like.
    def __neg__(self) -> Any:
        return self.namespace.negative(self)

    def __pos__(self) -> TapeArray:
        return self

    def __abs__(self) -> Any:
        return self.namespace.abs(self)

    def __invert__(self) -> Any:
        return self.namespace.bitwise_invert(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        name = str(_UFUNCS.get(ufunc.__name__, ufunc.__name__))
        return getattr(self.namespace, name)(*inputs)

    def __array_function__(self, function: Any, types: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        del types
        name = str(_FUNCTIONS.get(function.__name__, function.__name__))
        if not hasattr(self.namespace, name):
            raise NotImplementedError(_no_pullback(name))
        return getattr(self.namespace, name)(*arguments, **options)


def _install_operators() -> None:
    def forward(name: str) -> Callable[[Any, Any], Any]:
        return lambda self, other: getattr(self.namespace, name)(self, other)

    def reflected(name: str) -> Callable[[Any, Any], Any]:
        return lambda self, other: getattr(self.namespace, name)(other, self)

    for symbol, name in {
        "add": "add",
        "sub": "subtract",
        "mul": "multiply",
        "truediv": "divide",
        "pow": "pow",
        "matmul": "matmul",
    }.items():
        setattr(TapeArray, f"__{symbol}__", forward(name))
        setattr(TapeArray, f"__r{symbol}__", reflected(name))
    for symbol, name in {
        "lt": "less",
        "le": "less_equal",
        "gt": "greater",
        "ge": "greater_equal",
        "eq": "equal",
        "ne": "not_equal",
        "and": "bitwise_and",
        "or": "bitwise_or",
        "xor": "bitwise_xor",
    }.items():
        setattr(TapeArray, f"__{symbol}__", forward(name))
    TapeArray.__hash__ = object.__hash__  # type: ignore[method-assign]  # elementwise == must not cost hashability


_install_operators()

_UFUNCS = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "power": "pow",
    "true_divide": "divide",
}
_FUNCTIONS = {"concatenate": "concat", "transpose": "permute_dims", "amax": "max", "amin": "min", "dot": "matmul"}


def _reduction(name: str) -> Callable[..., Any]:
    return lambda xp, x, axis=None, **options: getattr(xp, name)(x, axis=axis, **options)


def _shape(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape in both spellings, x.reshape(2, 3) and x.reshape((2, 3))."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes


_METHODS: dict[str, Callable[..., Any]] = {
    **{
        name: _reduction(name)
        for name in ("sum", "mean", "max", "min", "std", "var", "all", "any", "argmax", "argmin", "squeeze")
    },
    "astype": lambda xp, x, dtype: xp.astype(x, dtype),
    "clip": lambda xp, x, *bounds, **options: xp.clip(x, *bounds, **options),
    "dot": lambda xp, x, other: xp.matmul(x, other),
    "flatten": lambda xp, x: xp.reshape(x, (-1,)),
    "item": lambda xp, x: strip(x).item(),
    "ravel": lambda xp, x: xp.reshape(x, (-1,)),
    "reshape": lambda xp, x, *sizes: xp.reshape(x, _shape(sizes)),
    "transpose": lambda xp, x, *axes: xp.permute_dims(x, _shape(axes) or tuple(range(x.ndim))[::-1]),
}


def _no_pullback(name: str) -> str:
    return (
        f"{name} has no pullback on the tape, so its derivative cannot be computed here; write it with other "
        f"array-API functions, or apply it to portable_nce.stop_gradient(x)"
    )


def opened(arrays: Sequence[Any]) -> tuple[int, Sequence[Any], Sequence[TapeArray | None]]:
    """The highest level among the arrays, the arrays with those of that level opened, and the variables among these."""
    level = 0
    for a in arrays:
        if isinstance(a, TapeArray) and a.level > level:
            level = a.level
    if not level:
        return 0, arrays, ()
    values: list[Any] = []
    parents: list[TapeArray | None] = []
    for a in arrays:
        if isinstance(a, TapeArray) and a.level == level:
            values.append(a.value)
            parents.append(None if a.node is None else a)
        else:
            values.append(a)
            parents.append(None)
    return level, values, parents


def varies(x: Any) -> bool:
    """Whether a derivative with respect to something passes through `x`."""
    while isinstance(x, TapeArray):
        if x.node is not None:
            return True
        x = x.value
    return hasattr(x, "__recorded__")  # another copy of this tape knows


def strip(x: Any) -> Any:
    """The plain array inside, whatever the number of levels around it."""
    while isinstance(x, TapeArray):
        x = x.value
    return getattr(x, "__recorded__", x)  # of another copy of this tape, in a package that has taken it over


# ------------------------------------------------------------------------------------------------------ the primitives


class Primitive(NamedTuple):
    """`forward(xp, *arrays, **options)` in the library; `pullbacks[k](xp, g, out, *arrays, **options)` on the tape."""

    forward: Callable[..., Array]
    pullbacks: Sequence[Callable[..., Array]]


def _fit(xp: TapeNamespace, g: Array, like: Array) -> Array:
    """Undo broadcasting and promotion: sum `g` down to the shape of `like`, in its dtype."""
    shape = like.shape
    if g.shape != shape:
        extra = len(g.shape) - len(shape)
        axes = tuple(range(extra)) + tuple(k + extra for k, n in enumerate(shape) if n == 1 and g.shape[k + extra] != 1)
        if axes:
            g = xp.sum(g, axis=axes, keepdims=True)
        if extra:
            g = xp.reshape(g, tuple(shape))
    return g if g.dtype == like.dtype else xp.astype(g, like.dtype)


def _unary(name: str, derivative: Callable[..., Array]) -> Primitive:
    """Elementwise f(x), from the function (xp, y, x) -> f'(x)."""
    return Primitive(
        lambda xp, x: getattr(xp, name)(x),
        (lambda xp, g, y, x: xp.multiply(g, derivative(xp, y, x)),),
    )


def _binary(forward: Callable[..., Array], left: Callable[..., Array], right: Callable[..., Array]) -> Primitive:
    """Elementwise f(a, b) with broadcasting, from the products g ∂f/∂a and g ∂f/∂b."""
    return Primitive(
        forward,
        (
            lambda xp, g, y, a, b: _fit(xp, left(xp, g, y, a, b), a),
            lambda xp, g, y, a, b: _fit(xp, right(xp, g, y, a, b), b),
        ),
    )


def _linear(forward: Callable[..., Array], transpose: Callable[..., Array]) -> Primitive:
    """A linear function of one array; `transpose(xp, g, x, **options)` is its adjoint."""
    return Primitive(forward, (lambda xp, g, y, x, **options: transpose(xp, g, x, **options),))


def _share(xp: TapeNamespace, mask: Array, g: Array) -> Array:
    return xp.where(mask, g, xp.zeros_like(g))


_half = 0.5
_UNARY: dict[str, Primitive] = {
    name: _unary(name, derivative)
    for name, derivative in {
        "abs": lambda xp, y, x: xp.sign(x),
        "exp": lambda xp, y, x: y,
        "exp2": lambda xp, y, x: xp.multiply(math.log(2.0), y),
        "expm1": lambda xp, y, x: xp.add(y, 1.0),
        "log": lambda xp, y, x: xp.divide(1.0, x),
        "log1p": lambda xp, y, x: xp.divide(1.0, xp.add(x, 1.0)),
        "log2": lambda xp, y, x: xp.divide(1.0 / math.log(2.0), x),
        "log10": lambda xp, y, x: xp.divide(1.0 / math.log(10.0), x),
        "sqrt": lambda xp, y, x: xp.divide(_half, y),
        "reciprocal": lambda xp, y, x: xp.negative(xp.multiply(y, y)),
        "negative": lambda xp, y, x: xp.full_like(x, -1.0),
        "square": lambda xp, y, x: xp.multiply(2.0, x),
        "sin": lambda xp, y, x: xp.cos(x),
        "cos": lambda xp, y, x: xp.negative(xp.sin(x)),
        "tan": lambda xp, y, x: xp.add(1.0, xp.multiply(y, y)),
        "asin": lambda xp, y, x: xp.divide(1.0, xp.sqrt(xp.subtract(1.0, xp.multiply(x, x)))),
        "acos": lambda xp, y, x: xp.divide(-1.0, xp.sqrt(xp.subtract(1.0, xp.multiply(x, x)))),
        "atan": lambda xp, y, x: xp.divide(1.0, xp.add(1.0, xp.multiply(x, x))),
        "sinh": lambda xp, y, x: xp.cosh(x),
        "cosh": lambda xp, y, x: xp.sinh(x),
        "tanh": lambda xp, y, x: xp.subtract(1.0, xp.multiply(y, y)),
        "asinh": lambda xp, y, x: xp.divide(1.0, xp.sqrt(xp.add(xp.multiply(x, x), 1.0))),
        "acosh": lambda xp, y, x: xp.divide(1.0, xp.sqrt(xp.subtract(xp.multiply(x, x), 1.0))),
        "atanh": lambda xp, y, x: xp.divide(1.0, xp.subtract(1.0, xp.multiply(x, x))),
    }.items()
}
# Some libraries lack these; they are cheap to spell out.
_UNARY["square"] = _UNARY["square"]._replace(forward=lambda xp, x: x * x)
_UNARY["reciprocal"] = _UNARY["reciprocal"]._replace(forward=lambda xp, x: 1.0 / x)


def _select(better: str) -> Primitive:
    """`maximum` and `minimum`; a tie shares the cotangent, as in JAX and torch."""

    def left(xp: TapeNamespace, g: Array, y: Array, a: Array, b: Array) -> Array:
        weight = xp.where(xp.equal(a, b), xp.full_like(g, _half), xp.ones_like(g))
        return _share(xp, xp.equal(a, y), xp.multiply(g, weight))

    def right(xp: TapeNamespace, g: Array, y: Array, a: Array, b: Array) -> Array:
        return left(xp, g, y, b, a)

    return _binary(lambda xp, a, b: getattr(xp, better)(a, b), left, right)


_BINARY: dict[str, Primitive] = {
    "add": _binary(lambda xp, a, b: operator.add(a, b), lambda xp, g, y, a, b: g, lambda xp, g, y, a, b: g),
    "subtract": _binary(
        lambda xp, a, b: operator.sub(a, b), lambda xp, g, y, a, b: g, lambda xp, g, y, a, b: xp.negative(g)
    ),
    "multiply": _binary(
        lambda xp, a, b: operator.mul(a, b),
        lambda xp, g, y, a, b: xp.multiply(g, b),
        lambda xp, g, y, a, b: xp.multiply(g, a),
    ),
    "divide": _binary(
        lambda xp, a, b: operator.truediv(a, b),
        lambda xp, g, y, a, b: xp.divide(g, b),
        lambda xp, g, y, a, b: xp.negative(xp.divide(xp.multiply(g, y), b)),
    ),
    "pow": _binary(
        lambda xp, a, b: operator.pow(a, b),
        lambda xp, g, y, a, b: xp.multiply(g, xp.multiply(b, xp.pow(a, xp.subtract(b, 1.0)))),
        lambda xp, g, y, a, b: xp.multiply(g, xp.multiply(y, xp.log(a) if hasattr(a, "dtype") else math.log(a))),
    ),
    "atan2": _binary(
        lambda xp, a, b: xp.atan2(a, b),
        lambda xp, g, y, a, b: xp.multiply(g, xp.divide(b, xp.add(xp.multiply(a, a), xp.multiply(b, b)))),
        lambda xp, g, y, a, b: xp.multiply(g, xp.divide(xp.negative(a), xp.add(xp.multiply(a, a), xp.multiply(b, b)))),
    ),
    "hypot": _binary(
        lambda xp, a, b: xp.hypot(a, b),
        lambda xp, g, y, a, b: xp.multiply(g, xp.divide(a, y)),
        lambda xp, g, y, a, b: xp.multiply(g, xp.divide(b, y)),
    ),
    "logaddexp": _binary(
        lambda xp, a, b: xp.logaddexp(a, b),
        lambda xp, g, y, a, b: xp.multiply(g, xp.exp(xp.subtract(a, y))),
        lambda xp, g, y, a, b: xp.multiply(g, xp.exp(xp.subtract(b, y))),
    ),
    "maximum": _select("maximum"),
    "minimum": _select("minimum"),
}


def _axes(axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    return tuple(a % ndim for a in ((axis,) if isinstance(axis, int) else axis))


def _keep(xp: TapeNamespace, y: Array, x: Array, axis: int | tuple[int, ...] | None) -> Array:
    """A reduced array with its reduced axes put back, of length one."""
    gone = _axes(axis, len(x.shape))
    return xp.reshape(y, tuple(1 if k in gone else n for k, n in enumerate(x.shape)))


def _sum_back(xp: TapeNamespace, g: Array, x: Array, axis: Any = None, **_: Any) -> Array:
    g = g if g.dtype == x.dtype else xp.astype(g, x.dtype)
    return xp.broadcast_to(_keep(xp, g, x, axis), tuple(x.shape))


def _extreme(name: str) -> Primitive:
    """`max` and `min`; a tie shares the cotangent evenly, as in JAX and torch.amax."""

    def back(xp: TapeNamespace, g: Array, y: Array, x: Array, axis: Any = None, **_: Any) -> Array:
        hit = xp.astype(xp.equal(x, _keep(xp, strip(y), x, axis)), x.dtype)
        return xp.multiply(xp.divide(hit, xp.sum(hit, axis=axis, keepdims=True)), _keep(xp, g, x, axis))

    return Primitive(lambda xp, x, **options: getattr(xp, name)(x, **options), (back,))


def _matmul_left(xp: TapeNamespace, g: Array, _y: Array, a: Array, b: Array) -> Array:
    g, a2, b2 = _as_matrices(xp, g, a, b)
    return xp.reshape(_fit(xp, xp.matmul(g, xp.matrix_transpose(b2)), a2), tuple(a.shape))


def _matmul_right(xp: TapeNamespace, g: Array, _y: Array, a: Array, b: Array) -> Array:
    g, a2, b2 = _as_matrices(xp, g, a, b)
    return xp.reshape(_fit(xp, xp.matmul(xp.matrix_transpose(a2), g), b2), tuple(b.shape))


def _as_matrices(xp: TapeNamespace, g: Array, a: Array, b: Array) -> tuple[Array, Array, Array]:
    if len(b.shape) == 1:
        g = xp.expand_dims(g, axis=-1)
    if len(a.shape) == 1:
        g = xp.expand_dims(g, axis=-2)
    a2 = xp.expand_dims(a, axis=0) if len(a.shape) == 1 else a
    b2 = xp.expand_dims(b, axis=1) if len(b.shape) == 1 else b
    return g, a2, b2


def _inverse(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(axes)), key=lambda k: axes[k] % len(axes)))


def _permute_back(xp: TapeNamespace, g: Array, _x: Array, axes: Sequence[int]) -> Array:
    return xp.permute_dims(g, _inverse(axes))


def _device_of(x: Array) -> Any:
    """The device of an array, or None where its library knows of none (Dask)."""
    return getattr(x, "device", None)


def _scatter(xp: Namespace, g: Array, key: Any, shape: tuple[int, ...]) -> Array:
    out = xp.zeros(shape, dtype=g.dtype, device=_device_of(g))
    out[key] = g
    return out


_SCATTER = _linear(_scatter, lambda xp, g, _x, key, shape: g[key])
_GETITEM = _linear(
    lambda xp, x, key: x[key],
    lambda xp, g, x, key: xp.scatter(g, key, tuple(x.shape)),
)


def _take_back(xp: TapeNamespace, g: Array, x: Array, indices: Array, axis: int) -> Array:
    """The adjoint of `take`: a product with the one-hot matrix of the indices, so that repeated ones add up."""
    n = x.shape[axis]
    columns = xp.expand_dims(xp.arange(n, dtype=indices.dtype, device=_device_of(indices)), axis=1)
    wrapped = xp.where(xp.less(indices, 0), xp.add(indices, n), indices)
    one_hot = xp.astype(xp.equal(columns, xp.expand_dims(wrapped, axis=0)), g.dtype)
    return xp.moveaxis(xp.tensor_first(one_hot, xp.moveaxis(g, axis, 0)), 0, axis)


def _to_device_back(xp: TapeNamespace, g: Array, x: Array, **_: Any) -> Array:
    return g.to_device(x.device)


_TO_DEVICE = _linear(lambda xp, x, device, stream: x.to_device(device, stream=stream), _to_device_back)

_STRUCTURAL: dict[str, Primitive] = {
    "sum": _linear(lambda xp, x, **options: xp.sum(x, **options), _sum_back),
    "max": _extreme("max"),
    "min": _extreme("min"),
    "matmul": Primitive(lambda xp, a, b: operator.matmul(a, b), (_matmul_left, _matmul_right)),
    "astype": _linear(
        lambda xp, x, dtype, **options: xp.astype(x, dtype, **options),
        lambda xp, g, x, dtype, **_: xp.astype(g, x.dtype),
    ),
    "reshape": _linear(
        lambda xp, x, shape, **options: xp.reshape(x, shape, **options),
        lambda xp, g, x, shape, **_: xp.reshape(g, tuple(x.shape)),
    ),
    "permute_dims": _linear(lambda xp, x, axes: xp.permute_dims(x, axes), _permute_back),
    "matrix_transpose": _linear(lambda xp, x: xp.matrix_transpose(x), lambda xp, g, x: xp.matrix_transpose(g)),
    "broadcast_to": _linear(lambda xp, x, shape: xp.broadcast_to(x, shape), lambda xp, g, x, shape: _fit(xp, g, x)),
    "flip": _linear(lambda xp, x, **options: xp.flip(x, **options), lambda xp, g, x, **options: xp.flip(g, **options)),
    "cumulative_sum": _linear(
        lambda xp, x, axis: xp.cumulative_sum(x, axis=axis),
        lambda xp, g, x, axis: xp.flip(xp.cumulative_sum(xp.flip(g, axis=axis), axis=axis), axis=axis),
    ),
    "tril": _linear(lambda xp, x, **options: xp.tril(x, **options), lambda xp, g, x, **options: xp.tril(g, **options)),
    "triu": _linear(lambda xp, x, **options: xp.triu(x, **options), lambda xp, g, x, **options: xp.triu(g, **options)),
}
_TAKE = _linear(lambda xp, x, indices, axis: xp.take(x, indices, axis=axis), _take_back)

_WHERE = Primitive(
    lambda xp, a, b, condition: xp.where(condition, a, b),
    (
        lambda xp, g, y, a, b, condition: _fit(xp, _share(xp, condition, g), a),
        lambda xp, g, y, a, b, condition: _fit(xp, xp.where(condition, xp.zeros_like(g), g), b),
    ),
)


def _concat(axis: int, sizes: Sequence[int]) -> Primitive:
    starts = [0, *itertools.accumulate(sizes)]

    def piece(k: int) -> Callable[..., Array]:
        def back(_xp: TapeNamespace, g: Array, _y: Array, *arrays: Array) -> Array:
            ahead = (slice(None),) * (axis % len(arrays[0].shape))
            return g[(*ahead, slice(starts[k], starts[k + 1]), ...)]

        return back

    return Primitive(lambda xp, *arrays: xp.concat(arrays, axis=axis), [piece(k) for k in range(len(sizes))])


# Functions whose derivative is zero almost everywhere or has no meaning: their results are constants.
_CONSTANT = frozenset(
    {
        "all",
        "any",
        "argmax",
        "argmin",
        "argsort",
        "bitwise_and",
        "bitwise_invert",
        "bitwise_or",
        "bitwise_xor",
        "can_cast",
        "ceil",
        "count_nonzero",
        "empty_like",
        "equal",
        "finfo",
        "floor",
        "floor_divide",
        "full_like",
        "greater",
        "greater_equal",
        "iinfo",
        "isdtype",
        "isfinite",
        "isinf",
        "isnan",
        "less",
        "less_equal",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "nonzero",
        "not_equal",
        "ones_like",
        "result_type",
        "round",
        "searchsorted",
        "sign",
        "signbit",
        "trunc",
        "zeros_like",
    }
)


# ------------------------------------------------------------------------------------------------------- the namespace


class TapeNamespace:
    """The array namespace of recorded arrays over one library; `base_namespace` is that library's own."""

    def __init__(self, base: Namespace) -> None:
        self.base_namespace = base
        self.__name__ = f"{__name__}[{base.__name__}]"
        for table in (_UNARY, _BINARY, _STRUCTURAL):
            for name, primitive in table.items():
                setattr(self, name, self._bind(primitive))
        self.power = self.pow
        self.linalg = self

    def _bind(self, primitive: Primitive) -> Callable[..., Any]:
        arity = len(primitive.pullbacks)
        if arity == 1:

            def one(x: Any, /, *arguments: Any, **options: Any) -> Any:
                if arguments:
                    options = {**self._named(primitive, arguments), **options}
                return self.apply(primitive, x, **options)

            return one
        return lambda a, b, /: self.apply(primitive, a, b)

    @staticmethod
    def _named(primitive: Primitive, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """Positional options (`reshape(x, shape)`, `sum(x, 0)`) under the names the pullbacks know."""
        for name, options in (
            ("astype", ("dtype",)),
            ("reshape", ("shape",)),
            ("permute_dims", ("axes",)),
            ("broadcast_to", ("shape",)),
        ):
            if _STRUCTURAL[name] is primitive:
                return dict(zip(options, arguments, strict=True))
        return dict(zip(("axis",), arguments, strict=True))

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.base_namespace, name)
        if isinstance(member, type) or not callable(member):
            return member  # dtypes and constants
        if name in _CONSTANT:
            return lambda *arguments, **options: self._constant(member, arguments, options)

        def refuse_recorded(*arguments: Any, **options: Any) -> Any:
            leaves, _ = flatten((arguments, tuple(options.values())))
            if any(map(varies, leaves)):
                raise NotImplementedError(_no_pullback(name))
            return self._constant(member, arguments, options)

        return refuse_recorded

    def _constant(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        level = max((a.level for a in arguments if isinstance(a, TapeArray)), default=0)
        result = function(*map(strip, arguments), **options)
        return self.lift(result, level) if level and hasattr(result, "shape") else result

    # Recording.
    def lift(self, x: Array, level: int, node: Node | None = None) -> TapeArray:
        """`x` as a constant (or, with a node, a variable) of the given level."""
        return TapeArray(x, self, level, node)

    def lift_like(self, *arrays: Any) -> list[Any]:
        """The arguments, with plain arrays lifted to constants of the highest level among them."""
        level = max((a.level for a in arrays if isinstance(a, TapeArray)), default=0)
        return [
            self.lift(a, level) if hasattr(a, "dtype") and not isinstance(a, TapeArray) and level else a for a in arrays
        ]

    def apply(self, primitive: Primitive, *arrays: Any, **options: Any) -> Any:
        """Compute, and record at the highest level among the arguments."""
        level, values, parents = opened(arrays)
        if not level:
            return primitive.forward(self.base_namespace, *arrays, **options)
        out = self.apply(primitive, *values, **options)
        if not any(p is not None for p in parents):
            return TapeArray(out, self, level)

        def pullback(cotangents: Sequence[Array]) -> list[Array | None]:
            return [
                None if parent is None else back(self, cotangents[0], out, *values, **options)
                for parent, back in zip(parents, primitive.pullbacks, strict=True)
            ]

        return TapeArray(out, self, level, Node(parents, pullback))

    def scatter(self, g: Array, key: Any, shape: tuple[int, ...]) -> Array:
        """Zeros of `shape` with `g` at `key`: the adjoint of indexing."""
        return self.apply(_SCATTER, g, key=key, shape=shape)

    # Functions that take their arrays in another order, or are made of others.
    def asarray(self, x: Any, /, **options: Any) -> Any:
        if isinstance(x, TapeArray):
            dtype = options.get("dtype")
            return x if dtype is None or dtype == x.dtype else self.astype(x, dtype)
        return self.base_namespace.asarray(x, **options)

    def where(self, condition: Array, a: Any, b: Any, /) -> Any:
        return self.apply(_WHERE, a, b, condition=strip(condition))

    def take(self, x: Array, indices: Array, /, *, axis: int | None = None) -> Any:
        return self.apply(_TAKE, x, indices=strip(indices), axis=0 if axis is None else axis)

    def concat(self, arrays: Sequence[Array], /, *, axis: int | None = 0) -> Any:
        if axis is None:
            arrays, axis = [self.reshape(a, (-1,)) for a in arrays], 0
        return self.apply(_concat(axis, [a.shape[axis] for a in arrays]), *arrays)

    def stack(self, arrays: Sequence[Array], /, *, axis: int = 0) -> Any:
        return self.concat([self.expand_dims(a, axis=axis) for a in arrays], axis=axis)

    def unstack(self, x: Array, /, *, axis: int = 0) -> tuple[Any, ...]:
        moved = self.moveaxis(x, axis, 0)
        return tuple(moved[k, ...] for k in range(moved.shape[0]))

    def expand_dims(self, x: Array, /, axis: int = 0) -> Any:
        shape = list(x.shape)
        shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
        return self.reshape(x, tuple(shape))

    def squeeze(self, x: Array, /, axis: int | tuple[int, ...] | None) -> Any:
        ones = tuple(k for k, n in enumerate(x.shape) if n == 1)
        gone = ones if axis is None else _axes(axis, len(x.shape))
        if any(x.shape[k] != 1 for k in gone):
            message = f"squeeze: expected axes of length 1, got axis={axis} of an array of shape {tuple(x.shape)}"
            raise ValueError(message)
        return self.reshape(x, tuple(n for k, n in enumerate(x.shape) if k not in gone))

    def moveaxis(self, x: Array, source: int, destination: int, /) -> Any:
        ndim = len(x.shape)
        axes = [k for k in range(ndim) if k != source % ndim]
        axes.insert(destination % ndim, source % ndim)
        return self.permute_dims(x, tuple(axes))

    def broadcast_arrays(self, *arrays: Array) -> list[Any]:
        template = self.base_namespace.broadcast_arrays(*map(strip, arrays))
        return [self.broadcast_to(a, tuple(t.shape)) for a, t in zip(arrays, template, strict=True)]

    def tensor_first(self, a: Array, b: Array) -> Any:
        """Contract the last axis of the matrix `a` with the first of `b`."""
        flat = self.matmul(a, self.reshape(b, (b.shape[0], -1)))
        return self.reshape(flat, (a.shape[0], *b.shape[1:]))

    def tensordot(self, a: Array, b: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Any:
        left, right = (
            (tuple(range(len(a.shape) - axes, len(a.shape))), tuple(range(axes)))
            if isinstance(axes, int)
            else (_axes(tuple(axes[0]), len(a.shape)), _axes(tuple(axes[1]), len(b.shape)))
        )
        free_a = tuple(k for k in range(len(a.shape)) if k not in left)
        free_b = tuple(k for k in range(len(b.shape)) if k not in right)
        inner = math.prod(a.shape[k] for k in left)
        flat = self.matmul(
            self.reshape(self.permute_dims(a, free_a + left), (-1, inner)),
            self.reshape(self.permute_dims(b, right + free_b), (inner, -1)),
        )
        return self.reshape(flat, tuple(a.shape[k] for k in free_a) + tuple(b.shape[k] for k in free_b))

    def vecdot(self, a: Array, b: Array, /, *, axis: int = -1) -> Any:
        return self.sum(self.multiply(a, b), axis=axis)

    def positive(self, x: Array, /) -> Any:
        return x

    def mean(self, x: Array, /, axis: Any = None, *, keepdims: bool = False) -> Any:
        count = math.prod(x.shape[k] for k in _axes(axis, len(x.shape)))
        return self.divide(self.sum(x, axis=axis, keepdims=keepdims), float(count))

    def var(self, x: Array, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
        count = math.prod(x.shape[k] for k in _axes(axis, len(x.shape)))
        centred = self.subtract(x, self.mean(x, axis=axis, keepdims=True))
        return self.divide(self.sum(self.square(centred), axis=axis, keepdims=keepdims), count - correction)

    def std(self, x: Array, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
        return self.sqrt(self.var(x, axis=axis, correction=correction, keepdims=keepdims))

    def vector_norm(self, x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Any:
        return self.sqrt(self.sum(self.square(x), axis=axis, keepdims=keepdims))

    def clip(self, x: Array, /, min: Any = None, max: Any = None) -> Any:  # noqa: A002  (the standard's names)
        if min is not None:
            x = self.where(self.less(x, min), self.add(self.zeros_like(x), strip(min)), x)
        if max is not None:
            x = self.where(self.greater(x, max), self.add(self.zeros_like(x), strip(max)), x)
        return x


# -------------------------------------------------------------------------------------------------- nested containers


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of nested tuples, named tuples, lists and dicts, in order, and the shape to put them back into."""
    if isinstance(tree, dict):
        parts = [flatten(tree[key]) for key in sorted(tree)]
        return [leaf for leaves, _ in parts for leaf in leaves], (type(tree), sorted(tree), [s for _, s in parts])
    if isinstance(tree, (tuple, list)):
        parts = [flatten(item) for item in tree]
        return [leaf for leaves, _ in parts for leaf in leaves], (type(tree), None, [s for _, s in parts])
    return ([], None) if tree is None else ([tree], ...)


def restore(leaves: Sequence[Any], shape: Any) -> Any:
    """The inverse of `flatten`."""
    return _restore(iter(leaves), shape)


def _restore(leaves: Any, shape: Any) -> Any:
    if shape is None:
        return None
    if shape is ...:
        return next(leaves)
    kind, keys, parts = shape
    items = [_restore(leaves, part) for part in parts]
    if keys is not None:
        return kind(zip(keys, items, strict=True))
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


# ---------------------------------------------------------------------------------------------------------- the verbs


def _backward(namespace: TapeNamespace, output: TapeArray, wanted: Sequence[Node]) -> list[Array | None]:
    """Cotangents of the wanted leaves, for cotangent one of the scalar output."""
    cotangents: dict[Node, list[Array | None]] = {}
    reachable: set[Node] = set()
    stack = [output.node]
    while stack:
        node = stack.pop()
        if node is not None and node not in reachable:
            reachable.add(node)
            stack.extend(parent.node for parent in node.parents if parent is not None)
    if output.node is not None:
        cotangents[output.node] = [None] * output.node.outputs
        cotangents[output.node][output.index] = namespace.ones_like(output.value)
    for node in sorted(reachable, key=operator.attrgetter("order"), reverse=True):
        if node.pullback is None or node not in cotangents:
            continue
        incoming = cotangents.pop(node)
        for parent, g in zip(node.parents, node.pullback(incoming), strict=True):
            if parent is None or parent.node is None or g is None:
                continue
            slots = cotangents.setdefault(parent.node, [None] * parent.node.outputs)
            present = slots[parent.index]
            slots[parent.index] = g if present is None else namespace.add(present, g)
    return [cotangents.get(node, [None])[0] for node in wanted]


class TapeAdapter:
    """The adapter of a library without autodiff, given the function that finds an array's own namespace."""

    unrolled = True

    def __init__(
        self,
        name: str,
        namespace_of: Callable[[Array], Namespace],
        *,
        version: str,
        devices: tuple[str, ...],
        half_precision: tuple[str, ...] = (),
        at_hand: bool = False,
        fill: Callable[[Array, float], None] | None = None,
        copy: Callable[[Array], Array] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.at_hand = at_hand  # whether it costs nothing to look at a number in an array
        self.fill = fill  # the diagonal of a matrix, in place
        self.copy = copy  # as asarray(x, copy=True) does, but faster
        self.devices = devices
        self.dtypes = ("float64", "float32", *half_precision)
        self._namespace_of = namespace_of
        self._namespaces: dict[Namespace, TapeNamespace] = {}

    def namespace(self, array: Array) -> TapeNamespace:
        """The recording namespace over the library of `array`."""
        if isinstance(array, TapeArray):
            return array.namespace
        base = self._namespace_of(array)
        if base not in self._namespaces:
            self._namespaces.setdefault(base, TapeNamespace(base))
        return self._namespaces[base]

    def stop_gradient(self, x: Array) -> Array:
        return type(x)(x.__recorded__, x.namespace, x.level) if hasattr(x, "__recorded__") else x

    def full_precision(self, x: Array) -> AbstractContextManager[Any]:
        del x
        return nullcontext()

    def value_and_grad(
        self, fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
    ) -> Callable[..., Any]:
        chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)

        def value_and_gradient(*arguments: Any, **options: Any) -> Any:
            level = next(_levels)
            positions = [n + len(arguments) if n < 0 else n for n in chosen]
            lifted, trees = [], []
            for position, argument in enumerate(arguments):
                leaves, shape = flatten(argument)
                boxed = [self._box(leaf, level, variable=position in positions) for leaf in leaves]
                lifted.append(restore(boxed, shape))
                trees.append((boxed, shape))
            result = fn(*lifted, **options)
            output, aux = result if has_aux else (result, None)
            space = self.namespace(trees[positions[0]][0][0])
            wanted = [leaf for position in positions for leaf in trees[position][0]]
            if isinstance(output, TapeArray) and output.level == level:
                found = _backward(space, output, [leaf.node for leaf in wanted])
                output = output.value
            else:
                found = [None] * len(wanted)
            gradients = [
                self._own(space, space.zeros_like(leaf.value) if g is None else g)
                for leaf, g in zip(wanted, found, strict=True)
            ]
            value = self._own(space, output)
            supply = iter(gradients)
            gradient = tuple(_restore(supply, trees[position][1]) for position in positions)
            gradient = gradient[0] if isinstance(argnums, int) else gradient
            if not has_aux:
                return value, gradient
            aux_leaves, aux_shape = flatten(aux)
            aux = restore([self._unbox(leaf, level) for leaf in aux_leaves], aux_shape)
            return (value, aux), gradient

        return value_and_gradient

    def _box(self, leaf: Any, level: int, *, variable: bool) -> Any:
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            return leaf
        return self.namespace(leaf).lift(leaf, level, Node() if variable else None)

    @staticmethod
    def _unbox(leaf: Any, level: int) -> Any:
        return leaf.value if isinstance(leaf, TapeArray) and leaf.level == level else leaf

    def _own(self, space: TapeNamespace, x: Array) -> Array:
        """An array that shares no memory with another result and is not a NumPy scalar."""
        if hasattr(x, "__recorded__"):
            return x
        return space.base_namespace.asarray(x, copy=True) if self.copy is None else self.copy(x)

    def custom_vjp(
        self,
        forward: Callable[..., tuple[Array, ...]],
        backward: Callable[..., tuple[Array | None, ...]],
    ) -> Callable[..., tuple[Array, ...]]:
        def bound(static: Any, *arrays: Array) -> tuple[Array, ...]:
            level, values, parents = opened(arrays)
            if not level:
                return forward(static, *arrays)
            space = next(a.namespace for a in arrays if isinstance(a, TapeArray))
            outputs = bound(static, *values)

            def pullback(cotangents: Sequence[Array | None]) -> list[Array | None]:
                filled = [space.zeros_like(out) if g is None else g for g, out in zip(cotangents, outputs, strict=True)]
                arguments = space.lift_like(*values, *outputs, *filled)
                n, m = len(values), len(outputs)
                found = backward(static, tuple(arguments[:n]), tuple(arguments[n : n + m]), tuple(arguments[n + m :]))
                return [*found, *[None] * (n - len(found))]

            node = Node(parents, pullback, len(outputs)) if any(p is not None for p in parents) else None
            return tuple(TapeArray(out, space, level, node, k) for k, out in enumerate(outputs))

        return bound

    def with_gradient(self, function: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, Array]]:
        def run(static: Any, arrays: Sequence[Array], *, wanted: bool) -> tuple[Array, ...]:
            level, values, parents = opened(arrays)
            if not level:
                return function(static, *arrays, wanted=wanted)
            space = next(a.namespace for a in arrays if isinstance(a, TapeArray))
            variable = any(p is not None for p in parents)
            outputs = run(static, values, wanted=wanted or variable)
            gradients = outputs[2:]

            def pullback(cotangents: Sequence[Array | None]) -> list[Array | None]:
                first, _, *second = cotangents
                found: list[Array | None] = [None] * len(values)
                if first is not None:
                    found[: len(gradients)] = [space.multiply(first, g) for g in gradients]
                if any(g is not None for g in second):
                    products = self._products(space, functools.partial(function, static, wanted=True), values, second)
                    found[: len(products)] = [
                        a if b is None else space.add(a, b) for a, b in zip(products, found, strict=False)
                    ]
                return found

            node = Node(parents, pullback, len(outputs)) if variable else None
            kept = outputs if wanted else outputs[:2]
            return tuple(TapeArray(out, space, level, node, k) for k, out in enumerate(kept))

        def bound(static: Any, *arrays: Array) -> tuple[Array, Array]:
            value, constant = run(static, arrays, wanted=False)
            return value, self.stop_gradient(constant)

        return bound

    def _products(
        self,
        space: TapeNamespace,
        function: Callable[..., tuple[Array, ...]],
        values: Sequence[Array],
        vectors: Sequence[Array | None],
    ) -> tuple[Array, ...]:
        """The products of the Hessian with vectors: the gradient of the gradients' products with them."""

        def total(*arrays: Array) -> Array:
            found = function(*arrays)[2:]
            terms = [
                space.sum(space.reshape(space.multiply(g, v), (-1,)), axis=0, keepdims=True)
                for g, v in zip(found, vectors, strict=True)
                if v is not None
            ]
            return functools.reduce(space.add, terms)

        products: tuple[Array, ...] = self.value_and_grad(total, argnums=tuple(range(len(vectors))))(*values)[1]
        return products

    def known(self, x: Array) -> float | None:
        return float(strip(x)) if self.at_hand else None

    def fill_diagonal(self, x: Array, row: int, column: int, count: int, value: float | Array) -> Array:
        recorded: list[Any] = [a for a in (x, value) if hasattr(a, "__recorded__")]
        if self.fill is not None and not recorded:
            self.fill(x[row : row + count, column : column + count], value)
            return x
        plain, space = strip(x), recorded[0].namespace if recorded else self.namespace(x)
        xp = space.base_namespace
        i, j = (xp.arange(n, device=_device_of(plain)) for n in plain.shape)
        away = xp.expand_dims(i - row, axis=1) - xp.expand_dims(j - column, axis=0)
        inside = xp.logical_and(i >= row, i < row + count)
        chosen = xp.logical_and(away == 0, xp.expand_dims(inside, axis=1))
        filling = space.expand_dims(value, axis=1) if hasattr(value, "shape") else xp.full_like(plain, value)
        return space.where(chosen, filling, x)

    def scan(
        self,
        step: Callable[[tuple[Array, ...], tuple[Array, ...], int], tuple[tuple[Array, ...], tuple[Array, ...]]],
        init: tuple[Array, ...],
        xs: tuple[Array, ...],
        block: int,
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        length = xs[0].shape[0]
        if length <= block:
            return step(init, xs, 0)
        carry, emitted = init, []
        for start in range(0, length, block):
            stop = min(start + block, length)
            carry, out = step(carry, tuple(x[start:stop, ...] for x in xs), start)
            emitted.append(out)
        return carry, tuple(self.namespace(column[0]).concat(list(column)) for column in zip(*emitted, strict=True))
