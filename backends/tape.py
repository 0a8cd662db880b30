"""Reverse-mode tape over the array API, for libraries without autodiff.

A `TapeArray` holds an array of an array-API library and records how it was computed. Its `__array_namespace__` is a
`TapeNamespace` with the library's functions. Differentiable functions record a pullback; functions whose derivative is
zero or undefined (comparisons, `isfinite`, `argmax`, ...) return constants. Other functions and keywords, and
conversions of varying arrays to plain numbers, raise an error, so that a derivative is never silently lost. NumPy's
functions are in `numpy_functions`.

Three rules keep it small:

* A *primitive* is a forward function and one pullback per argument, all in array-API code.
* Pullbacks call the namespace too, so a value that is itself recorded by an outer `value_and_grad` records the
  pullback: higher derivatives need no further code. Each call of `value_and_grad` has a *level*; an operation belongs
  to the highest level among its arguments, and arrays of lower levels are constants to it.
* The graph is held by the arrays alone. There is no global state except two counters.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy as shallow_copy
from typing import Any, NamedTuple

from .defaults import ON_TAPE, PLAIN, VARIES, Array, Arrays, Defaults, Function
from .numpy_functions import CONSTANT, METHODS, call_function, call_method, call_ufunc

__all__ = ["TapeAdapter", "TapeArray", "TapeNamespace"]

Namespace = Any
Names = tuple[str, ...]
Variables = Mapping[int, "TapeArray"]

_orders = itertools.count(0, -1)  # later operations first
levels = itertools.count(1)


# ---------------------------------------------------------------------------------------------------------- the graph


class Node:
    """Recorded operation: its variables by position, and a pullback from output cotangents to theirs."""

    __slots__ = ("order", "outputs", "pullback", "variables")

    def __init__(self, variables: Variables | None = None, pullback: Function | None = None, outputs: int = 1) -> None:
        self.order = next(_orders)
        self.variables = variables or {}
        self.pullback = pullback
        self.outputs = outputs


class TapeArray:
    """Array that records how it was computed; it behaves like the array it holds."""

    __slots__ = ("index", "level", "namespace", "node", "value")

    committed = True
    """Whether the array is tied to its device, as on JAX. The engine asks often, and a search in `value` is slow."""

    def __init__(self, value: Array, namespace: Any, level: int, node: Node | None = None, index: int = 0) -> None:
        self.value = value
        self.namespace: TapeNamespace = namespace
        self.level = level
        self.node = node
        self.index = index

    # The protocol.
    def __array_namespace__(self, *, api_version: str | None = None) -> TapeNamespace:
        return self.namespace

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    @property
    def T(self) -> Any:  # noqa: N802  (the standard's name)
        if len(self.shape) == 2:  # noqa: PLR2004  (a matrix)
            return self.namespace.matrix_transpose(self)
        return self.namespace.rearranged(operator.attrgetter("T"), self)  # with the library's meaning

    @property
    def mT(self) -> Any:  # noqa: N802  (the standard's name)
        return self.namespace.matrix_transpose(self)

    @property
    def __recorded__(self) -> Array:
        """The plain array, by which the registry identifies the library."""
        x = self.value
        while isinstance(x, TapeArray):
            x = x.value
        return x

    def to_device(self, device: Any, /, *, stream: Any = None) -> Any:
        return self.namespace.apply(_TO_DEVICE, self, device=device, stream=stream)

    def __repr__(self) -> str:
        return f"TapeArray({self.value!r})"

    def __format__(self, specification: str) -> str:
        return format(strip(self), specification)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return int(self.shape[0])

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(_as_constant(self, "a Python number"))

    def __complex__(self) -> complex:
        return complex(_as_constant(self, "a Python number"))

    def item(self, *index: Any) -> Any:
        """Return an entry of the array, which must be a constant."""
        return _as_constant(self, "a Python number").item(*index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001  (NumPy's protocol)
        plain = _as_constant(self, "a plain array")
        result = plain.__array__() if dtype is None else plain.__array__(dtype)
        return result.copy() if copy else result

    @property
    def ndim(self) -> int:
        return len(self.value.shape)

    def __getitem__(self, key: Any) -> Any:
        if not all(map(_is_basic, key if isinstance(key, tuple) else (key,))):
            plain = self.namespace.stripped(key)
            return self.namespace.rearranged(lambda x: x[plain], self)
        plain = tuple(map(strip, key)) if isinstance(key, tuple) else (strip(key),)
        taken = self.namespace.apply(_GETITEM, self, key=tuple(k for k in plain if k is not None))
        if None not in plain:
            return taken
        return self.namespace.reshape(taken, tuple(strip(self)[plain].shape))

    def __getattr__(self, name: str) -> Any:
        """Return a method or attribute of NumPy or CuPy arrays that the array inside has."""
        if not name.startswith("_") and hasattr(strip(self), name):
            if name in {"device", "itemsize", "nbytes", "size"}:
                return getattr(strip(self), name)
            if name in METHODS or name in CONSTANT:
                return lambda *arguments, **options: call_method(self.namespace, self, name, arguments, options)
            if name == "real":
                return self
        raise AttributeError(
            f"a recorded array has no attribute {name!r}; use the functions of its __array_namespace__(), or "
            f"portable_nce.stop_gradient(x) for what is to be a constant"
        )

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("a recorded array cannot be assigned to in place; build a new one with where, concat or stack")

    # Operators. NumPy and CuPy dispatch theirs through `__array_ufunc__`, like np.tanh(x).
    def __neg__(self) -> Any:
        return self.namespace.negative(self)

    def __pos__(self) -> TapeArray:
        return self

    def __abs__(self) -> Any:
        return self.namespace.abs(self)

    def __invert__(self) -> Any:
        return self.namespace.bitwise_invert(self)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return call_ufunc(self.namespace, ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return call_function(self.namespace, function, arguments, options)


def _operand(x: TapeArray, other: Any) -> Any:
    """Other operand of an operator; nested lists are converted."""
    return x.namespace.asarray(other) if isinstance(other, (list, tuple)) else other


_ARITHMETIC = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_SIGNS = dict(zip(_ARITHMETIC, ["+", "-", "*", "/", "//", "%", "**", "@", "&", "|", "^", "<<", ">>"], strict=True))
_PACKAGE = __name__.rpartition(".backends.")[0].rpartition(".")[2]
_COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}


def _install_operators() -> None:
    def forward(name: str) -> Callable[[Any, Any], Any]:
        return lambda self, other: getattr(self.namespace, name)(self, _operand(self, other))

    def reflected(name: str) -> Callable[[Any, Any], Any]:
        return lambda self, other: getattr(self.namespace, name)(_operand(self, other), self)

    def in_place(symbol: str) -> Callable[[Any, Any], Any]:
        def assign(self: TapeArray, other: Any) -> Any:
            # Other names of this memory would have to change, too. The package writes into what nothing else names, and
            # a sum of losses has no axes.
            caller = str(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001
            if self.shape and _PACKAGE not in caller.split("."):  # a copy in another library has this name, too
                raise TypeError(
                    f"a recorded array cannot be assigned to in place by {symbol}=; "
                    f"write a new one, as in x = x {symbol} y"
                )
            return NotImplemented  # Python takes the operator and a new array

        return assign

    for symbol, name in (_ARITHMETIC | _COMPARISONS).items():
        setattr(TapeArray, f"__{symbol}__", forward(name))
    for symbol, sign in _SIGNS.items():
        setattr(TapeArray, f"__i{symbol}__", in_place(sign))
    for symbol, name in _ARITHMETIC.items():
        setattr(TapeArray, f"__r{symbol}__", reflected(name))
    TapeArray.__hash__ = object.__hash__  # type: ignore[method-assign]  # elementwise == would remove the hash


_install_operators()


def _is_basic(key: Any) -> bool:
    """Whether an index selects no entry twice and supports assignment in every library."""
    if key is None or key is ... or isinstance(key, slice):
        return True
    return not isinstance(key, bool) and hasattr(key, "__index__") and not getattr(key, "shape", ())


def _may_be_recorded(x: Any) -> bool:
    """Whether an argument is a recorded array, or a container that may hold one."""
    return isinstance(x, (TapeArray, *CONTAINERS)) or hasattr(x, "__recorded__")


def _as_constant(x: TapeArray, what: str) -> Array:
    """Plain array inside; raises if a derivative passes through it."""
    if varies(x):
        raise TypeError(
            f"a recorded array cannot be made into {what}: its derivative would be lost. Compute with array functions "
            f"(np.sqrt for math.sqrt, np.stack for np.array), or take portable_nce.stop_gradient(x) for a constant"
        )
    return strip(x)


def opened(arrays: Sequence[Any]) -> tuple[TapeArray | None, Sequence[Any], Variables]:
    """An array of the highest level, the arrays unwrapped by that level, and the variables among them."""
    top: TapeArray | None = None
    level = 0
    for a in arrays:
        if isinstance(a, TapeArray) and a.level > level:
            top, level = a, a.level
    values: list[Any] = []
    variables: dict[int, TapeArray] = {}
    for k, a in enumerate(arrays if level else ()):
        inside = isinstance(a, TapeArray) and a.level == level
        values.append(a.value if inside else a)
        if inside and a.node is not None:
            variables[k] = a
    return top, values, variables


def recorded(top: TapeArray, outputs: Sequence[Array | None], variables: Variables, pullback: Function) -> Arrays:
    """Recorded outputs of an operation, at the level of `top`; None stays None."""
    node = Node(variables, pullback, len(outputs)) if variables else None
    space, level = top.namespace, top.level
    return tuple([out if out is None else TapeArray(out, space, level, node, k) for k, out in enumerate(outputs)])


def _is_differentiable(dtype: Any) -> bool:
    """Whether arrays of this dtype have derivatives: real floating-point dtypes; integers are constants."""
    name = getattr(dtype, "name", str(dtype))  # str() of NumPy's >f8 does not contain "float"
    if "complex" in name:
        raise NotImplementedError(
            f"complex numbers ({name}) are not differentiated on the tape; compute with real and imaginary parts"
        )
    return "float" in name


def varies(x: Any) -> bool:
    """Whether a derivative passes through `x`."""
    while isinstance(x, TapeArray):
        if x.node is not None:
            return True
        x = x.value
    return hasattr(x, "__recorded__")  # recorded by another copy of this tape


def strip(x: Any) -> Any:
    """Plain array inside all levels."""
    while isinstance(x, TapeArray):
        x = x.value
    return getattr(x, "__recorded__", x)  # of another copy of this tape, in a package that vendors it


# ------------------------------------------------------------------------------------------------------ the primitives


class Primitive(NamedTuple):
    """`forward(xp, *arrays, **options)` in the library, `pullbacks[k](xp, g, out, *arrays, **options)` on the tape."""

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


_OPERATORS = {name: getattr(operator, f"__{symbol}__") for symbol, name in _ARITHMETIC.items()}
"""Operators, since the standard's functions need not accept Python numbers."""


def _named(name: str) -> Callable[..., Array]:
    """Operator or library function of that name."""
    if name in _OPERATORS:
        return lambda xp, a, b: _OPERATORS[name](a, b)
    return lambda xp, *arrays, **options: getattr(xp, name)(*arrays, **options)


def _unary(name: str, derivative: Callable[..., Array]) -> Primitive:
    """Elementwise f(x), from the derivative (xp, y, x) -> f'(x)."""
    return Primitive(_named(name), (lambda xp, g, y, x: xp.multiply(g, derivative(xp, y, x)),))


def _binary(name: str, left: Callable[..., Array], right: Callable[..., Array]) -> Primitive:
    """Elementwise f(a, b) with broadcasting, from the products g ∂f/∂a and g ∂f/∂b."""
    return Primitive(
        _named(name),
        (
            lambda xp, g, y, a, b: _fit(xp, left(xp, g, y, a, b), a),
            lambda xp, g, y, a, b: _fit(xp, right(xp, g, y, a, b), b),
        ),
    )


def _linear(forward: Callable[..., Array], transpose: Callable[..., Array]) -> Primitive:
    """Linear function of one array; `transpose(xp, g, x, **options)` is its adjoint."""
    return Primitive(forward, (lambda xp, g, y, x, **options: transpose(xp, g, x, **options),))


def _share(xp: TapeNamespace, mask: Array, g: Array) -> Array:
    return xp.where(mask, g, 0.0)


def _sign(xp: TapeNamespace, x: Array) -> Array:
    """-1, 0 or 1; NaN for NaN.

    array-api-compat's `sign` assigns NaN through a mask on CuPy (array-api-compat issue 136), which waits for the
    device.
    """
    ones = xp.ones_like(x)
    not_above = xp.where(xp.less(x, 0.0), xp.negative(ones), xp.where(xp.equal(x, 0.0), xp.zeros_like(x), x))
    return xp.where(xp.greater(x, 0.0), ones, not_above)


_UNARY: dict[str, Primitive] = {
    name: _unary(name, derivative)
    for name, derivative in {
        "abs": lambda xp, y, x: _sign(xp, x),
        "exp": lambda xp, y, x: y,
        "exp2": lambda xp, y, x: xp.multiply(math.log(2.0), y),
        "expm1": lambda xp, y, x: xp.add(y, 1.0),
        "log2": lambda xp, y, x: xp.divide(1.0 / math.log(2.0), x),
        "log10": lambda xp, y, x: xp.divide(1.0 / math.log(10.0), x),
        "reciprocal": lambda xp, y, x: xp.negative(xp.multiply(y, y)),
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
# Quotients, rounded once.
_UNARY |= {
    name: Primitive(_named(name), (lambda xp, g, y, x, of=divisor: xp.divide(g, of(xp, y, x)),))
    for name, divisor in {
        "log": lambda xp, y, x: x,
        "log1p": lambda xp, y, x: xp.add(x, 1.0),
        "sqrt": lambda xp, y, x: xp.multiply(2.0, y),
    }.items()
}
_UNARY["negative"] = _linear(_named("negative"), lambda xp, g, x: xp.negative(g))
# Some libraries lack these.
_UNARY["square"] = _UNARY["square"]._replace(forward=lambda xp, x: x * x)
_UNARY["reciprocal"] = _UNARY["reciprocal"]._replace(forward=lambda xp, x: 1.0 / x)


def _selected(xp: TapeNamespace, g: Array, y: Array, a: Array, b: Array) -> Array:
    """Cotangent of `a` in `maximum` or `minimum`; ties share it, as in JAX and torch."""
    weight = xp.where(xp.equal(a, b), xp.full_like(g, 0.5), xp.ones_like(g))
    return _share(xp, xp.equal(a, y), xp.multiply(g, weight))


def _nonzero(xp: TapeNamespace, x: Array) -> Array:
    """Array with 1 in place of 0, as a safe divisor."""
    return xp.where(xp.equal(x, 0.0), xp.ones_like(x), x)


def _root(xp: TapeNamespace, x: Array, degree: float = 2.0) -> Array:
    """Root of non-negative numbers, with derivative 0 at 0."""
    safe = _nonzero(xp, x)
    root = xp.sqrt(safe) if degree == 2.0 else xp.pow(safe, 1.0 / degree)  # noqa: PLR2004  (a square root)
    return xp.where(xp.equal(x, 0.0), xp.zeros_like(x), root)


def _squares(xp: TapeNamespace, a: Array, b: Array) -> Array:
    return xp.add(xp.multiply(a, a), xp.multiply(b, b))


def _divide_right(xp: TapeNamespace, g: Array, y: Array, a: Array, b: Array) -> Array:
    """``-g a / b²``, as for ``reciprocal`` if `a` is 1."""
    inverse = not hasattr(a, "dtype") and a == 1
    return xp.multiply(g, xp.negative(xp.multiply(y, y) if inverse else xp.divide(y, b)))


def _pow_left(xp: TapeNamespace, g: Array, _y: Array, a: Array, b: Array) -> Array:
    """``g b a^(b - 1)``; 0 for b = 0, where a^(b - 1) may be infinite."""
    if not hasattr(b, "dtype"):
        return xp.multiply(g, xp.multiply(b, xp.pow(a, b - 1.0))) if b else xp.zeros_like(g)
    safe = _nonzero(xp, b)
    slope = xp.multiply(safe, xp.pow(a, xp.subtract(safe, 1)))
    return _share(xp, xp.not_equal(b, 0), xp.multiply(g, slope))


def _pow_right(xp: TapeNamespace, g: Array, y: Array, a: Array, _b: Array) -> Array:
    """``g a^b log a``; 0 for a = 0."""
    if not hasattr(a, "dtype"):
        return xp.multiply(g, xp.multiply(y, math.log(a))) if a else xp.zeros_like(g)
    return xp.multiply(g, xp.multiply(y, xp.log(_nonzero(xp, a))))


_BINARY: dict[str, Primitive] = {
    name: _binary(name, left, right)
    for name, (left, right) in {
        "add": (lambda xp, g, y, a, b: g, lambda xp, g, y, a, b: g),
        "subtract": (lambda xp, g, y, a, b: g, lambda xp, g, y, a, b: xp.negative(g)),
        "multiply": (lambda xp, g, y, a, b: xp.multiply(g, b), lambda xp, g, y, a, b: xp.multiply(g, a)),
        "divide": (
            lambda xp, g, y, a, b: xp.divide(g, b),
            _divide_right,
        ),
        "pow": (_pow_left, _pow_right),
        "remainder": (
            lambda xp, g, y, a, b: g,
            lambda xp, g, y, a, b: xp.negative(xp.multiply(g, xp.floor_divide(a, b))),
        ),
        "copysign": (
            lambda xp, g, y, a, b: xp.multiply(g, xp.where(xp.equal(_sign(xp, a), _sign(xp, y)), 1.0, -1.0)),
            lambda xp, g, y, a, b: xp.zeros_like(g),
        ),
        "atan2": (
            lambda xp, g, y, a, b: xp.multiply(g, xp.divide(b, _squares(xp, a, b))),
            lambda xp, g, y, a, b: xp.multiply(g, xp.divide(xp.negative(a), _squares(xp, a, b))),
        ),
        "hypot": (
            lambda xp, g, y, a, b: xp.multiply(g, xp.divide(a, _nonzero(xp, y))),
            lambda xp, g, y, a, b: xp.multiply(g, xp.divide(b, _nonzero(xp, y))),
        ),
        "logaddexp": (
            lambda xp, g, y, a, b: xp.multiply(g, xp.exp(xp.subtract(a, y))),
            lambda xp, g, y, a, b: xp.multiply(g, xp.exp(xp.subtract(b, y))),
        ),
        **dict.fromkeys(("maximum", "minimum"), (_selected, lambda xp, g, y, a, b: _selected(xp, g, y, b, a))),
    }.items()
}


def _axis(axis: Any) -> Any:
    """`axis` argument as Python integers."""
    if axis is None or isinstance(axis, int):
        return axis
    return operator.index(axis) if hasattr(axis, "__index__") else tuple(map(operator.index, axis))


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Axes of an `axis` argument, counted from 0."""
    if axis is None or not ndim:
        return tuple(range(ndim))
    return tuple(operator.index(a) % ndim for a in ((axis,) if hasattr(axis, "__index__") else axis))


def _keep(xp: TapeNamespace, y: Array, x: Array, axis: int | tuple[int, ...] | None) -> Array:
    """Reduced array with its reduced axes restored at length one."""
    gone = _axes(axis, len(x.shape))
    return xp.reshape(y, tuple(1 if k in gone else n for k, n in enumerate(x.shape)))


def _sum_back(xp: TapeNamespace, g: Array, x: Array, axis: Any = None, **_: Any) -> Array:
    g = g if g.dtype == x.dtype else xp.astype(g, x.dtype)
    return xp.broadcast_to(_keep(xp, g, x, axis), tuple(x.shape))


def _mean_back(xp: TapeNamespace, g: Array, x: Array, axis: Any, **options: Any) -> Array:
    count = math.prod(x.shape[k] for k in _axes(axis, len(x.shape)))
    return xp.divide(_sum_back(xp, g, x, axis=axis, **options), float(count))


def _extreme_back(xp: TapeNamespace, g: Array, y: Array, x: Array, axis: Any = None, **_: Any) -> Array:
    """Cotangent of `max` or `min`; ties share it evenly, as in JAX and torch.amax."""
    hit = xp.astype(xp.equal(x, _keep(xp, strip(y), x, axis)), x.dtype)
    return xp.multiply(xp.divide(hit, xp.sum(hit, axis=axis, keepdims=True)), _keep(xp, g, x, axis))


def _matmul_left(xp: TapeNamespace, g: Array, _y: Array, a: Array, b: Array) -> Array:
    g, a2, b2 = _as_matrices(xp, g, a, b)
    return xp.reshape(_fit(xp, xp.matmul(g, xp.matrix_transpose(b2)), a2), tuple(a.shape))


def _matmul_right(xp: TapeNamespace, g: Array, _y: Array, a: Array, b: Array) -> Array:
    g, a2, b2 = _as_matrices(xp, g, a, b)
    if len(b2.shape) == 2 < len(a2.shape):  # noqa: PLR2004  (all rows of a batch at once)
        a2, g = (xp.reshape(x, (-1, x.shape[-1])) if 0 not in x.shape else x for x in (a2, g))
    return xp.reshape(_fit(xp, xp.matmul(xp.matrix_transpose(a2), g), b2), tuple(b.shape))


def _as_matrices(xp: TapeNamespace, g: Array, a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Cotangent and arguments of a matrix product, with vectors as matrices of one row or column."""
    if len(b.shape) == 1:
        g, b = xp.expand_dims(g, axis=-1), xp.expand_dims(b, axis=1)
    if len(a.shape) == 1:
        g, a = xp.expand_dims(g, axis=-2), xp.expand_dims(a, axis=0)
    return g, a, b


def _permute_back(xp: TapeNamespace, g: Array, _x: Array, axes: Sequence[int]) -> Array:
    return xp.permute_dims(g, tuple(sorted(range(len(axes)), key=lambda k: axes[k] % len(axes))))


def _device_of(x: Array) -> Any:
    """Device of an array; None if its library has none (Dask)."""
    return getattr(x, "device", None)


def _scatter(xp: Namespace, g: Array, key: Any, shape: tuple[int, ...]) -> Array:
    out = xp.zeros(shape, dtype=g.dtype, device=_device_of(g))
    if hasattr(out, "recorded_put"):  # a program has no assignments
        return out.recorded_put(key, g)
    out[key] = g
    return out


_SCATTER = _linear(_scatter, lambda xp, g, _x, key, shape: g[key])
_GETITEM = _linear(
    lambda xp, x, key: x[key],
    lambda xp, g, x, key: xp.apply(_SCATTER, g, key=key, shape=tuple(x.shape)),
)


def _add_at(xp: Namespace, g: Array, numbers: Array, size: int) -> Array:
    """Segment sum of the entries or rows of `g` by `numbers` from 1 to `size`; number 0 is dropped.

    A product with a one-hot matrix; adapters can provide a faster function.
    """
    columns = xp.expand_dims(xp.arange(1, size + 1, dtype=numbers.dtype, device=_device_of(numbers)), axis=1)
    return xp.matmul(xp.astype(columns == xp.expand_dims(numbers, axis=0), g.dtype), g)


def _gather(xp: Namespace, x: Array, numbers: Array) -> Array:
    """Entries or rows by numbers counted from 1, 0 for number 0: the adjoint of `_add_at`."""
    zero = xp.zeros((1, *x.shape[1:]), dtype=x.dtype, device=_device_of(x))
    return xp.take(xp.concat([zero, x]), numbers, axis=0)


_GATHER = _linear(_gather, lambda xp, g, x, numbers: xp.add_at(g, numbers, x.shape[0]))


def _row_numbers(xp: Namespace, rows: Array, count: int) -> Array:
    """Row numbers counted from 1; negative indices count from the end."""
    rows = xp.astype(rows, xp.int64)
    return xp.where(rows < 0, rows + count, rows) + 1


_TAKE_ROWS = _linear(
    lambda xp, x, rows: xp.take(x, rows, axis=0),
    lambda xp, g, x, rows: xp.add_at(g, _row_numbers(xp.base_namespace, rows, x.shape[0]), x.shape[0]),
)


def _rearrangement(function: Callable[[Sequence[Any]], Array], count: int) -> Primitive:
    """Primitive of a function of `count` arrays that moves, repeats or drops entries, or pads with 0.

    Its derivative follows from the function's result on the entry numbers.
    """

    def back(k: int) -> Function:
        def pullback(xp: TapeNamespace, g: Array, _y: Array, *leaves: Any) -> Array:
            base, shape = xp.base_namespace, tuple(leaves[k].shape)
            size = math.prod(shape)

            numbers = [base.zeros_like(strip(x), dtype=base.int64) if hasattr(x, "shape") else 0 for x in leaves]
            own = base.arange(1, size + 1, dtype=base.int64, device=_device_of(strip(leaves[k])))
            numbers[k] = base.reshape(own, shape)
            moved = base.reshape(function(numbers), (-1,))
            return _fit(xp, xp.reshape(xp.add_at(xp.reshape(g, (-1,)), moved, size), shape), leaves[k])

        return pullback

    return Primitive(lambda xp, *leaves: function(leaves), [back(k) for k in range(count)])


_TO_DEVICE = _linear(
    lambda xp, x, device, stream: x.to_device(device, stream=stream),
    lambda xp, g, x, **_: g.to_device(x.device),
)
_SUM, _MEAN = _linear(_named("sum"), _sum_back), _linear(_named("mean"), _mean_back)
_MAX, _MIN = Primitive(_named("max"), (_extreme_back,)), Primitive(_named("min"), (_extreme_back,))
_MATMUL = Primitive(_named("matmul"), (_matmul_left, _matmul_right))
_ASTYPE = _linear(lambda xp, x, dtype: xp.astype(x, dtype), lambda xp, g, x, dtype: xp.astype(g, x.dtype))
_RESHAPE = _linear(lambda xp, x, shape: xp.reshape(x, shape), lambda xp, g, x, shape: xp.reshape(g, tuple(x.shape)))
_PERMUTE_DIMS = _linear(lambda xp, x, axes: xp.permute_dims(x, axes), _permute_back)
_TRANSPOSE = _linear(_named("matrix_transpose"), lambda xp, g, x: xp.matrix_transpose(g))
_BROADCAST_TO = _linear(lambda xp, x, shape: xp.broadcast_to(x, shape), lambda xp, g, x, shape: _fit(xp, g, x))
_FLIP = _linear(_named("flip"), lambda xp, g, x, axis: xp.flip(g, axis=axis))
_CUMULATIVE_SUM = _linear(
    _named("cumulative_sum"),
    lambda xp, g, x, axis: xp.flip(xp.cumulative_sum(xp.flip(g, axis=axis), axis=axis), axis=axis),
)
_WHERE = Primitive(
    lambda xp, a, b, condition: xp.where(condition, a, b),
    (
        lambda xp, g, y, a, b, condition: _fit(xp, _share(xp, condition, g), a),
        lambda xp, g, y, a, b, condition: _fit(xp, xp.where(condition, 0.0, g), b),
    ),
)


def _cut(x: Array, axis: int, start: int | None, stop: int | None) -> Array:
    """Slice along one axis."""
    return x[(*(slice(None),) * (axis % len(x.shape)), slice(start, stop), ...)]


def _concat(axis: int, sizes: Sequence[int]) -> Primitive:
    starts = [0, *itertools.accumulate(sizes)]

    def piece(k: int) -> Function:
        return lambda xp, g, y, *arrays: _cut(g, axis, starts[k], starts[k + 1])

    return Primitive(lambda xp, *arrays: xp.concat(arrays, axis=axis), [piece(k) for k in range(len(sizes))])


# ------------------------------------------------------------------------------------------------------- the namespace


def _reduction(primitive: Primitive) -> Function:
    def reduce(self: TapeNamespace, x: Array, /, axis: Any = None, *, keepdims: bool = False) -> Any:
        return self.apply(primitive, x, axis=_axis(axis), keepdims=keepdims)

    return reduce


def _moving(name: str) -> Function:
    """Method that moves, repeats or drops entries of an array; other arguments are constants."""

    def move(self: TapeNamespace, x: Array, /, *arguments: Any, **options: Any) -> Any:
        function = getattr(self.base_namespace, name)
        given, named = self.stripped((arguments, options))
        return self.rearranged(lambda plain: function(plain, *given, **named), x)

    return move


class TapeNamespace:
    """Array namespace of recorded arrays over one library, `base_namespace`.

    Functions take the standard's arguments. `axis`, and `dtype` of sums and products, may also be positional.
    """

    elementwise = frozenset({*_UNARY, *_BINARY, "matmul", "positive", "vecdot"})
    """Functions that are ufuncs in NumPy."""

    def __init__(self, base: Namespace, add_at: Callable[..., Array] = _add_at) -> None:
        self.base_namespace = base
        self.__name__ = f"{__name__}[{base.__name__}]"
        for name, primitive in (_UNARY | _BINARY | {"matmul": _MATMUL, "matrix_transpose": _TRANSPOSE}).items():
            setattr(self, name, self._bind(primitive))
        self.power = self.pow
        self.linalg = TapeLinalg(self)
        # One cache per library: comparing dtypes of two libraries may raise.
        self._is_differentiable = functools.cache(_is_differentiable)
        self._add_at = _linear(add_at, lambda xp, g, x, numbers, size: xp.apply(_GATHER, g, numbers=numbers))

    def _bind(self, primitive: Primitive) -> Function:
        if len(primitive.pullbacks) == 1:
            return lambda x, /: self.apply(primitive, x)
        return lambda a, b, /: self.apply(primitive, a, b)

    def __getattr__(self, name: str) -> Any:
        member = self._member(self.base_namespace, name)
        setattr(self, name, member)  # so that it is looked up once
        return member

    def _member(self, module: Any, name: str) -> Any:
        """Library member that is not defined here, guarded against losing a derivative."""
        member = getattr(module, name)
        if isinstance(member, type) or not callable(member):
            return member  # dtypes and constants

        def guarded(*arguments: Any, **options: Any) -> Any:
            if not any(map(_may_be_recorded, arguments)) and not any(map(_may_be_recorded, options.values())):
                return member(*arguments, **options)
            if name in CONSTANT or not self.varies((arguments, options)):
                return self.constant(member, arguments, options)
            if hasattr(member, "reduce"):
                return call_ufunc(self, member, "__call__", arguments, options)
            return call_function(self, member, arguments, options)

        return guarded

    # Constants.
    @staticmethod
    def varies(tree: Any) -> bool:
        """Whether a derivative passes through an array in a nested container."""
        return any(map(varies, leaves_of(tree)))

    @staticmethod
    def stripped(tree: Any) -> Any:
        """Nested container with plain arrays."""
        return mapped(strip, tree)

    def constant(self, function: Function, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Results of a function as constants."""
        level = 0

        def plain(x: Any) -> Any:
            nonlocal level
            if isinstance(x, TapeArray):
                level = max(level, x.level)
            return strip(x)

        given, named = mapped(plain, (tuple(arguments), dict(options)))
        return mapped(functools.partial(self._lifted, level), function(*given, **named))

    # Recording.
    def lift_like(self, *arrays: Any) -> list[Any]:
        """Arguments, with plain arrays lifted to constants of the highest level among them."""
        level = max((a.level for a in arrays if isinstance(a, TapeArray)), default=0)
        return [self._lifted(level, a) for a in arrays]

    def _lifted(self, level: int, x: Any) -> Any:
        """Plain array as a constant of a level above 0; other objects unchanged."""
        plain = level and hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, TapeArray)
        return TapeArray(x, self, level) if plain else x

    def apply(self, primitive: Primitive, *arrays: Any, **options: Any) -> Any:
        """Compute and record at the highest level among the arguments."""
        top, values, variables = opened(arrays)
        if top is None:
            return primitive.forward(self.base_namespace, *arrays, **options)
        if TapeArray in map(type, values):  # recorded at an outer level too
            out = self.apply(primitive, *values, **options)
        else:
            out = primitive.forward(self.base_namespace, *values, **options)
        if not (variables and self._is_differentiable(out.dtype)):
            return TapeArray(out, self, top.level)

        def pullback(cotangents: Sequence[Array]) -> list[Array]:
            return [primitive.pullbacks[k](self, cotangents[0], out, *values, **options) for k in variables]

        return TapeArray(out, self, top.level, Node(variables, pullback))

    def rearranged(self, function: Callable[[Any], Any], data: Any) -> Any:
        """Result of a function of plain arrays that moves, repeats or drops entries of a container of arrays."""
        leaves, template = leaves_of(data), function(self.stripped(data))

        def output(k: int) -> Array:
            of_leaves = _rearrangement(lambda leaves: leaves_of(function(restored(leaves, data)))[k], len(leaves))
            return self.apply(of_leaves, *leaves)

        return restored(map(output, range(len(leaves_of(template)))), template)

    def add_at(self, g: Array, numbers: Array, size: int) -> Array:
        """Segment sum of the entries or rows of `g` by `numbers` from 1 to `size`."""
        return self.apply(self._add_at, g, numbers=numbers, size=size)

    def take(self, x: Array, indices: Array, /, axis: int | None = None) -> Any:
        """`take`; for rows of a matrix, with a derivative by row numbers."""
        rows = strip(indices)
        if axis == 0 and isinstance(x, TapeArray) and (len(x.shape), len(getattr(rows, "shape", ()))) == (2, 1):
            return self.apply(_TAKE_ROWS, x, rows=rows)
        return self._take(x, indices, axis=axis)

    # The standard's functions, except the elementwise ones above.
    def asarray(self, x: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
        if isinstance(x, TapeArray):
            return self._cast(x, dtype, device)
        given = {"dtype": dtype, "device": device, "copy": copy}
        return self.base_namespace.asarray(x, **{key: value for key, value in given.items() if value is not None})

    def astype(self, x: Array, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
        return self._cast(x, dtype, device)

    def _cast(self, x: Array, dtype: Any, device: Any = None) -> Array:
        x = x if dtype is None or dtype == x.dtype else self.apply(_ASTYPE, x, dtype=dtype)
        return x if device is None or device == x.device else x.to_device(device)

    def full(self, shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
        if varies(fill_value):
            return self.broadcast_to(self._cast(fill_value, dtype), shape)
        return self.base_namespace.full(shape, strip(fill_value), dtype=dtype, device=device)

    def full_like(self, x: Array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
        if varies(fill_value):
            return self.broadcast_to(self._cast(fill_value, dtype or x.dtype), tuple(x.shape))
        options = {key: value for key, value in (("dtype", dtype), ("device", device)) if value is not None}
        return self.constant(self.base_namespace.full_like, (x, fill_value), options)

    def where(self, condition: Array, a: Any, b: Any, /) -> Any:
        return self.apply(_WHERE, a, b, condition=strip(condition))

    def clip(self, x: Array, /, min: Any = None, max: Any = None) -> Any:  # noqa: A002  (the standard's names)
        for bound, better in ((min, self.maximum), (max, self.minimum)):
            if bound is not None:
                x = better(x, bound if hasattr(bound, "dtype") else self._bound(x, bound))
        return x

    def _bound(self, x: Array, bound: Any) -> Array:
        return self.asarray(bound) if isinstance(bound, (list, tuple)) else self.full_like(x, bound)

    def positive(self, x: Array, /) -> Any:
        return x

    # Reductions.
    def sum(self, x: Array, /, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        return self.apply(_SUM, self._cast(x, dtype), axis=_axis(axis), keepdims=keepdims)

    max, min, mean = _reduction(_MAX), _reduction(_MIN), _reduction(_MEAN)

    def var(self, x: Array, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
        count = math.prod(x.shape[k] for k in _axes(axis, len(x.shape)))
        centred = self.subtract(x, self.mean(x, axis=axis, keepdims=True))
        return self.divide(self.sum(self.square(centred), axis=axis, keepdims=keepdims), count - correction)

    def std(self, x: Array, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
        return _root(self, self.var(x, axis=axis, correction=correction, keepdims=keepdims))

    def prod(self, x: Array, /, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        """Product by recursive halving, so that derivatives of any order are correct for zero factors."""
        x = self._cast(x, dtype)
        gone = _axes(axis, len(x.shape))
        kept = tuple(k for k in range(len(x.shape)) if k not in gone)
        shape = tuple(x.shape[k] for k in kept)
        y = self.reshape(self.permute_dims(x, kept + gone), (*shape, math.prod(x.shape[k] for k in gone)))
        if not y.shape[-1]:
            y = self.ones_like(self.sum(y, axis=-1, keepdims=True))
        while (count := y.shape[-1]) > 1:
            half = count // 2
            halves = [self.multiply(y[..., :half], y[..., half : 2 * half])]
            y = self.concat([*halves, y[..., 2 * half :]] if count % 2 else halves, axis=-1)
        return _keep(self, y, x, axis) if keepdims else self.reshape(y, shape)

    def cumulative_sum(self, x: Array, /, axis: Any = None, *, dtype: Any = None, include_initial: bool = False) -> Any:
        if not x.shape:
            x, axis = self.reshape(x, (1,)), 0
        if axis is None and len(x.shape) != 1:
            raise ValueError(f"cumulative_sum: expected an axis for an array of shape {tuple(x.shape)}")
        x, axis = self._cast(x, dtype), axis or 0
        if include_initial:
            x = self.concat([self.zeros_like(self.sum(x, axis=axis, keepdims=True)), x], axis=axis)
        return self.apply(_CUMULATIVE_SUM, x, axis=axis)

    def vecdot(self, a: Array, b: Array, /, *, axis: int = -1) -> Any:
        return self.sum(self.multiply(self.moveaxis(a, axis, -1), self.moveaxis(b, axis, -1)), axis=-1)

    def tensordot(self, a: Array, b: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Any:
        left, right = (range(-axes, 0), range(axes)) if isinstance(axes, int) else axes
        left, right = _axes(left, len(a.shape)), _axes(right, len(b.shape))
        count = len(left)
        a = self.moveaxis(a, left, tuple(range(-count, 0)))
        b = self.moveaxis(b, right, tuple(range(count)))
        rows, columns = tuple(a.shape[: len(a.shape) - count]), tuple(b.shape[count:])
        inner = math.prod(b.shape[:count])
        flat = self.matmul(self.reshape(a, (math.prod(rows), inner)), self.reshape(b, (inner, math.prod(columns))))
        return self.reshape(flat, rows + columns)

    # Shapes and indexing.
    def reshape(self, x: Array, /, shape: Any, *, copy: bool | None = None) -> Any:
        sizes = (shape,) if hasattr(shape, "__index__") else shape
        return self.apply(_RESHAPE, x, shape=tuple(map(operator.index, sizes)))

    def permute_dims(self, x: Array, /, axes: Sequence[int]) -> Any:
        return self.apply(_PERMUTE_DIMS, x, axes=tuple(map(operator.index, axes)))

    def broadcast_to(self, x: Array, /, shape: Any) -> Any:
        return self.apply(_BROADCAST_TO, x, shape=(shape,) if isinstance(shape, int) else tuple(shape))

    def broadcast_arrays(self, *arrays: Array) -> list[Any]:
        template = self.base_namespace.broadcast_arrays(*map(strip, arrays))
        return [self.broadcast_to(a, tuple(t.shape)) for a, t in zip(arrays, template, strict=True)]

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
        return self.reshape(x, tuple(self.base_namespace.expand_dims(strip(x), axis=axis).shape))

    def squeeze(self, x: Array, /, axis: int | tuple[int, ...] | None = None) -> Any:
        ones = tuple(k for k, n in enumerate(x.shape) if n == 1)
        gone = ones if axis is None else _axes(axis, len(x.shape))
        if any(x.shape[k] != 1 for k in gone):
            raise ValueError(
                f"squeeze: expected axes of length 1, got axis={axis} of an array of shape {tuple(x.shape)}"
            )
        return self.reshape(x, tuple(n for k, n in enumerate(x.shape) if k not in gone))

    def moveaxis(self, x: Array, source: int | Sequence[int], destination: int | Sequence[int], /) -> Any:
        # The resulting shape of an array of shape (0, 1, 2, ...) is the order of the axes.
        numbered = self.base_namespace.empty(tuple(range(len(x.shape))))
        return self.permute_dims(x, self.base_namespace.moveaxis(numbered, source, destination).shape)

    def flip(self, x: Array, /, axis: Any = None) -> Any:
        return self.apply(_FLIP, x, axis=_axis(axis))

    repeat, roll, take_along_axis, tile = map(_moving, ("repeat", "roll", "take_along_axis", "tile"))
    _take, tril, triu = map(_moving, ("take", "tril", "triu"))

    def sort(self, x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
        order = self.base_namespace.argsort(strip(x), axis=axis, descending=descending, stable=stable)
        return self.take_along_axis(x, order, axis=axis)

    def diff(self, x: Array, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
        parts = [part for part in (prepend, x, append) if part is not None]
        x = self.concat(parts, axis=axis) if len(parts) > 1 else x
        for _ in range(n):
            x = self.subtract(_cut(x, axis, 1, None), _cut(x, axis, None, -1))
        return x


class TapeLinalg:
    """The extension `linalg` of recorded arrays: norms and products; factorizations raise."""

    def __init__(self, space: TapeNamespace) -> None:
        self._space = space

    def __getattr__(self, name: str) -> Any:
        space = self._space
        if name in {"matmul", "matrix_transpose", "tensordot", "vecdot"}:
            return getattr(space, name)
        return space._member(space.base_namespace.linalg, name)  # noqa: SLF001  (same module)

    def outer(self, a: Array, b: Array, /) -> Any:
        return self._space.multiply(self._space.expand_dims(a, axis=1), self._space.expand_dims(b, axis=0))

    def diagonal(self, x: Array, /, *, offset: int = 0) -> Any:
        diagonal = self._space.base_namespace.linalg.diagonal
        return self._space.rearranged(lambda plain: diagonal(plain, offset=offset), x)

    def trace(self, x: Array, /, *, offset: int = 0, dtype: Any = None) -> Any:
        return self._space.sum(self.diagonal(x, offset=offset), axis=-1, dtype=dtype)

    def vector_norm(self, x: Array, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:  # noqa: A002  (the standard's name)
        """Vector norm, with derivative 0 at 0."""
        xp, over = self._space, {"axis": axis, "keepdims": keepdims}
        if abs(ord) == math.inf:
            return (xp.max if ord > 0 else xp.min)(xp.abs(x), **over)
        if ord == 0:
            return xp.sum(xp.astype(xp.not_equal(x, 0.0), x.dtype), **over)
        if ord == 1:
            return xp.sum(xp.abs(x), **over)
        total = xp.sum(xp.square(x) if ord == 2 else xp.pow(xp.abs(x), float(ord)), **over)  # noqa: PLR2004  (Euclid's)
        return _root(xp, total, float(ord))

    def matrix_norm(self, x: Array, /, *, axis: Any = (-2, -1), keepdims: bool = False, ord: Any = "fro") -> Any:  # noqa: A002  (the standard's name)
        if ord == "fro":
            return self.vector_norm(x, axis=axis, keepdims=keepdims)
        if ord not in {1, -1, math.inf, -math.inf}:
            raise NotImplementedError(
                f"matrix_norm: ord={ord!r} is not differentiated on the tape; 'fro', 1, -1, inf and -inf are"
            )
        xp, rows, columns = self._space, *_axes(axis, len(x.shape))
        inner, outer = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = xp.sum(xp.abs(x), axis=inner, keepdims=True)
        out = (xp.max if ord > 0 else xp.min)(sums, axis=outer, keepdims=True)
        return out if keepdims else xp.squeeze(out, axis=(rows, columns))


# -------------------------------------------------------------------------------------------------- nested containers


CONTAINERS = (tuple, list, dict)


def leaves_of(tree: Any) -> list[Any]:
    """Leaves of nested tuples, lists and dicts, in order; None is none."""
    if not isinstance(tree, CONTAINERS):
        return [] if tree is None else [tree]
    return [leaf for item in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves_of(item)]


def restored(leaves: Iterable[Any], tree: Any) -> Any:
    """Nested container like another one, with leaves in the order of `leaves_of`."""
    remaining = iter(leaves)
    return mapped(lambda _: next(remaining), tree, copied=True)


def mapped(function: Callable[[Any], Any], tree: Any, *, copied: bool = False) -> Any:
    """Nested container with a function applied to its leaves, in their order; types, keys and attributes stay.

    Unless it is to be `copied`, a container without a leaf that the function changes is returned itself.
    """
    if not isinstance(tree, CONTAINERS):
        return None if tree is None else function(tree)
    items = list(tree.values() if isinstance(tree, dict) else tree)
    results = [mapped(function, item, copied=copied) for item in items]
    if not copied and all(map(operator.is_, items, results)):
        return tree
    return _rebuilt(tree, results)


def _rebuilt(tree: Any, items: list[Any]) -> Any:
    """Container like another one, with other items.

    A subclass may have any constructor: its object is copied, and the items are replaced.
    """
    kind = type(tree)
    if kind is dict:
        return dict(zip(tree, items, strict=True))
    if kind is list:
        return items
    if isinstance(tree, tuple):
        result = tuple.__new__(kind, items)
        if hasattr(tree, "__dict__"):
            result.__dict__.update(tree.__dict__)
        return result
    result = shallow_copy(tree)
    if isinstance(tree, dict):
        for key, item in zip(tree, items, strict=True):
            dict.__setitem__(result, key, item)
    else:
        list.__setitem__(result, slice(None), items)
    return result


# ---------------------------------------------------------------------------------------------------------- the verbs


def backward(
    namespace: TapeNamespace, output: TapeArray, leaves: Sequence[TapeArray], cotangent: Array | None = None
) -> list[Array | None]:
    """Cotangents of the leaves for a cotangent of the output, or 1 for a scalar output; None if it does not depend."""
    cotangents: dict[Any, list[Array | None]] = {}  # by node
    waiting: list[tuple[int, Node]] = []  # heap, latest operation first

    def add(x: TapeArray, g: Array) -> None:
        node: Any = x.node
        if node not in cotangents:
            cotangents[node] = [None] * node.outputs
            heapq.heappush(waiting, (node.order, node))
        present = cotangents[node][x.index]
        cotangents[node][x.index] = g if present is None else namespace.add(present, g)

    if output.node is not None:
        space = namespace if isinstance(output.value, TapeArray) else namespace.base_namespace
        add(output, space.ones_like(output.value) if cotangent is None else cotangent)
    while waiting:
        _, node = heapq.heappop(waiting)
        if node.pullback is not None:
            for x, g in zip(node.variables.values(), node.pullback(cotangents.pop(node)), strict=True):
                if g is not None:
                    add(x, g)
    return [cotangents.get(leaf.node, [None])[0] for leaf in leaves]


def _times(space: Any, cotangent: Array, gradient: Array) -> Array:
    """Gradient times the cotangent of the value (1,), or of the values (N,) of its rows, in its own shape."""
    dimension = len(gradient.shape)
    factor = cotangent if dimension < 2 else space.reshape(cotangent, (-1,) + (1,) * (dimension - 1))  # noqa: PLR2004
    product = space.multiply(factor, gradient)
    return product if product.shape == gradient.shape else space.reshape(product, gradient.shape)  # no view of all


class TapeAdapter(Defaults):
    """Adapter of a library without autodiff."""

    mode = "eager"
    add_at = staticmethod(_add_at)

    def __init__(
        self, name: str, namespace_of: Function, *, version: str, devices: Names, half_precision: Names = ()
    ) -> None:
        super().__init__(namespace_of)
        self.name = name
        self.version = version
        self.devices = devices
        self.dtypes = ("float64", "float32", *half_precision)
        self._namespaces: dict[Namespace, TapeNamespace] = {}
        self._types: set[type] = set()

    def add_rows(self, x: Array, numbers: Array, rows: Array) -> Array:
        xp = self.namespace(rows if hasattr(rows, "__recorded__") else x)
        return x + xp.add_at(rows, strip(numbers) + 1, x.shape[0])

    def add_columns(self, x: Array, columns: Array, values: Array) -> Array:
        if self.add_at is TapeAdapter.add_at:  # a product with a one-hot matrix, here in strips of rows
            return super().add_columns(x, columns, values)
        xp = self.namespace(values if hasattr(values, "__recorded__") else x)
        (n_rows, n_columns), columns = x.shape, strip(columns)
        base = xp.base_namespace
        first = base.arange(1, n_rows * n_columns + 1, n_columns, dtype=columns.dtype, device=_device_of(columns))
        places = base.reshape(columns + first[:, None], (-1,))
        added = xp.add_at(xp.reshape(values, (-1,)), places, n_rows * n_columns)
        return x + xp.reshape(added, (n_rows, n_columns))

    def namespace(self, array: Array) -> TapeNamespace:
        """Recording namespace over the library of `array`."""
        if isinstance(array, TapeArray):
            return array.namespace
        base = self._namespace_of(array)
        return self._namespaces.get(base) or self._namespaces.setdefault(base, TapeNamespace(base, self.add_at))

    def stop_gradient(self, x: Array) -> Array:
        inside = getattr(x, "__recorded__", None)
        return x if inside is None else type(x)(inside, x.namespace, x.level)

    def value_and_grad(self, fn: Function, argnums: int | Sequence[int] = 0, *, has_aux: bool = False) -> Function:
        chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)

        def value_and_gradient(*arguments: Any, **options: Any) -> Any:
            level = next(levels)
            positions = [n + len(arguments) if n < 0 else n for n in chosen]
            leaves: list[TapeArray] = []

            def variable(leaf: Array) -> TapeArray:
                leaves.append(self._boxed(level, leaf, Node()))
                return leaves[-1]

            boxed = {n: mapped(variable, arguments[n], copied=True) for n in positions}
            constant = functools.partial(self._constant, level)
            given = [boxed[n] if n in boxed else mapped(constant, x) for n, x in enumerate(arguments)]
            result = fn(*given, **options)
            output, aux = result if has_aux else (result, None)
            space = leaves[0].namespace
            if not (isinstance(output, TapeArray) and output.level == level):
                output = TapeArray(output, space, level)
            found = backward(space, output, leaves)
            for k, leaf in enumerate(leaves):
                if found[k] is None:
                    found[k] = space.zeros_like(leaf.value)
                elif not self.is_alone(found, k):  # results share no memory with other arrays
                    found[k] = self._copied(space, found[k])
            slopes = iter(found)
            value = self._copied(space, output.value)
            gradients = [restored(slopes, arguments[n]) for n in positions]
            gradient = gradients[0] if isinstance(argnums, int) else tuple(gradients)
            if not has_aux:
                return value, gradient
            unboxed = mapped(lambda x: x.value if isinstance(x, TapeArray) and x.level == level else x, aux)
            return (value, unboxed), gradient

        return value_and_gradient

    def _boxed(self, level: int, leaf: Array, node: Node | None) -> TapeArray:
        space = self.namespace(leaf)
        if not getattr(leaf.dtype, "isnative", True):  # native byte order, as in NumPy's results
            leaf = space.astype(leaf, leaf.dtype.newbyteorder("="))
        return TapeArray(leaf, space, level, node)

    def _constant(self, level: int, leaf: Any) -> Any:
        """Array whose namespace records, if it is an array; any other object itself."""
        if isinstance(leaf, type) or not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):  # np.float32 has both
            return leaf
        try:
            return self._boxed(level, leaf, None)
        except TypeError:  # such as a pandas.Series, a masked array
            return leaf

    def is_alone(self, arrays: list[Array | None], k: int) -> bool:
        """Return whether an array is known to share no memory with any other object than this list."""
        return False

    @staticmethod
    def _copied(space: TapeNamespace, x: Array) -> Array:
        """Copy of an array; an array, not a NumPy scalar."""
        return x if hasattr(x, "__recorded__") else space.base_namespace.asarray(x, copy=True)

    def needs_gradient(self, x: Array) -> bool:
        return varies(x)

    def is_plain(self, arrays: Arrays) -> bool:
        for x in arrays:
            kind = type(x)
            if kind not in self._types:  # neither recorded nor of a subclass, which may hold more than its entries
                if kind.__module__.partition(".")[0] != self.name:
                    return False
                self._types.add(kind)
        return True

    def observed(self, arrays: Arrays) -> tuple[Any, tuple[int, ...]] | None:
        level, kinds, states = 0, [], []
        for array in arrays:
            x, state = array, PLAIN
            if isinstance(array, TapeArray):
                if level and array.level != level:
                    return None
                level, x, state = array.level, array.value, ON_TAPE if array.node is None else VARIES
            if not self.is_plain((x,)):
                return None
            kinds.append((type(x), x.shape, x.dtype, str(getattr(x, "device", None))))
            states.append(state)
        return tuple(kinds), tuple(states)

    def custom_vjp(
        self, forward: Function, backward: Function, *, exact: bool = True, kept: int = 0
    ) -> Callable[..., Arrays]:
        def run(static: Any, arrays: Sequence[Array]) -> tuple[Arrays, Arrays]:
            """Outputs, and what is kept for the backward pass of plain arrays."""
            top, values, variables = opened(arrays)
            if top is None:
                every: Arrays = forward(static, *arrays)
                return every[: len(every) - kept], every[len(every) - kept :]
            space = top.namespace
            outputs, held = run(static, values)

            def pullback(cotangents: Sequence[Array | None]) -> list[Array | None]:
                filled = [space.zeros_like(out) if g is None else g for g, out in zip(cotangents, outputs, strict=True)]
                lifted = space.lift_like(*values, *outputs, *held, *filled)
                n, m = len(values), len(values) + len(outputs) + len(held)
                result = backward(static, tuple(lifted[:n]), tuple(lifted[n:m]), tuple(lifted[m:]))
                return [result[k] if k < len(result) else None for k in variables]

            return recorded(top, outputs, variables, pullback), ()

        def bound(static: Any, *arrays: Array) -> Arrays:
            return run(static, arrays)[0]

        return bound

    def value_and_vjp(self, function: Callable[..., Arrays]) -> Callable[..., tuple[Array, Array]]:
        def run(static: Any, arrays: Sequence[Array], *, need_grad: tuple[bool, ...]) -> tuple[Array | None, ...]:
            top, values, variables = opened(arrays)
            if top is None:
                return function(static, *arrays, need_grad=any(need_grad) and need_grad)
            space = top.namespace
            outputs = run(static, values, need_grad=tuple([own or k in variables for k, own in enumerate(need_grad)]))
            gradients = outputs[2:]

            def pullback(cotangents: Sequence[Array | None]) -> list[Array | None]:
                first, _, *second = cotangents
                result: list[Array | None] = [None] * len(values)
                if first is not None:
                    # Skip the product with cotangent 1, that of a loss that is differentiated itself.
                    plainly = first.shape == (1,) and not isinstance(first, TapeArray) and self.is_one(first)
                    result[: len(gradients)] = [
                        g if plainly or g is None else _times(space, first, g) for g in gradients
                    ]
                if any(g is not None for g in second):
                    of_gradients = functools.partial(function, static, need_grad=True)
                    products = self._products(space, of_gradients, values, second)
                    result[: len(products)] = [
                        a if b is None else space.add(a, b) for a, b in zip(products, result, strict=False)
                    ]
                return [result[k] for k in variables]

            return recorded(top, outputs if any(need_grad) else outputs[:2], variables, pullback)

        def bound(static: Any, *arrays: Array) -> tuple[Array, Array]:
            value, constant = run(static, arrays, need_grad=(False,) * len(arrays))
            return value, self.stop_gradient(constant)

        return bound

    def is_one(self, x: Array) -> bool:
        """Whether the entry of a plain array of one entry can be read, and is 1."""
        return self.reads_values and float(x[0]) == 1.0

    def _products(self, space: Any, function: Function, values: Sequence[Any], vectors: Sequence[Any]) -> Arrays:
        """Hessian-vector products: the gradient of the inner products of gradients and vectors."""

        def total(*arrays: Array) -> Array:
            result = function(*arrays)[2:]
            terms = [space.sum(space.multiply(g, v)) for g, v in zip(result, vectors, strict=True) if v is not None]
            return functools.reduce(space.add, terms)

        products: Arrays = self.value_and_grad(total, argnums=tuple(range(len(vectors))))(*values)[1]
        return products

    def concrete_value(self, x: Array) -> float | None:
        return float(strip(x)) if self.reads_values else None

    def concrete_values(self, x: Array) -> Sequence[float] | None:
        return strip(x).tolist() if self.reads_values else None
