"""NumPy's functions, ufuncs and methods on the tape, with NumPy's semantics.

NumPy and CuPy dispatch calls such as ``np.sum(x, keepdims=True)`` to the tape by the protocols `__array_function__` and
`__array_ufunc__`. Names in the tables below are differentiated, with the keywords of their entries; any other name or
keyword raises an error that names it, so that a derivative is never silently wrong.

Each entry takes the recording namespace first. Functions in `MOVES` only move, repeat or drop entries: the same call on
the indices of the entries gives their derivative, for all keywords.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from .defaults import Array, Function

__all__ = ["CONSTANT", "FUNCTIONS", "METHODS", "MOVES", "UFUNCS", "call_function", "call_method", "call_ufunc"]

Namespace = Any
Arguments = Sequence[Any]
Options = Mapping[str, Any]
Entry = Function | str | None

MOVES: AbstractSet[str] = {
    *("array_split", "atleast_1d", "atleast_2d", "atleast_3d", "block", "broadcast_to", "column_stack", "concatenate"),
    *("copy", "delete", "diag", "diagflat", "diagonal", "dsplit", "dstack", "expand_dims", "flip", "fliplr", "flipud"),
    *("hsplit", "hstack", "linalg.diagonal", "linalg.matrix_transpose", "matrix_transpose", "moveaxis", "ravel"),
    *("repeat", "reshape", "resize", "roll", "rollaxis", "rot90", "split", "squeeze", "stack", "swapaxes", "take"),
    *("take_along_axis", "tile", "transpose", "tril", "triu", "unstack", "vsplit", "vstack"),
}
"""Functions that move, repeat or drop the entries of their first argument, or pad with 0."""

CONSTANT: AbstractSet[str] = {
    *("all", "allclose", "any", "argmax", "argmin", "argpartition", "argsort", "argwhere", "around", "array2string"),
    *("array_equal", "array_equiv", "array_repr", "array_str", "bitwise_and", "bitwise_invert", "bitwise_left_shift"),
    *("bitwise_or", "bitwise_right_shift", "bitwise_xor", "can_cast", "ceil", "common_type", "count_nonzero"),
    *("digitize", "empty_like", "equal", "finfo", "fix", "flatnonzero", "floor", "floor_divide", "greater"),
    *("greater_equal", "iinfo", "invert", "isclose", "iscomplex", "iscomplexobj", "isdtype", "isfinite"),
    *("isin", "isinf", "isnan", "isneginf", "isposinf", "isreal", "isrealobj", "left_shift", "less", "less_equal"),
    *("logical_and", "logical_not", "logical_or", "logical_xor", "may_share_memory", "min_scalar_type", "ndim"),
    *("nonzero", "not_equal", "ones_like", "result_type", "right_shift", "rint", "round", "searchsorted", "shape"),
    *("shares_memory", "sign", "signbit", "size", "trunc", "zeros_like"),
}
"""Functions and methods with constant results: the derivative is zero almost everywhere, or undefined."""

STANDARD_NAMES = {"absolute": "abs", "power": "pow", "true_divide": "divide"}
"""Standard names of ufuncs that NumPy names differently, apart from arccos and the like."""


def _step(xp: Namespace, x: Array, h: Array) -> Array:
    """`heaviside`: h at 0, and NaN at NaN."""
    at_or_below = xp.where(x < 0, 0.0, xp.where(x == 0, h, x))
    return xp.where(x > 0, 1.0, at_or_below)


def _beside_nan(name: str) -> Function:
    """`fmax` or `fmin`: the standard's function, with the other argument in place of NaN."""
    return lambda xp, a, b: getattr(xp, name)(xp.where(xp.isnan(a), b, a), xp.where(xp.isnan(b), a, b))


UFUNCS: dict[str, Function] = {
    "conjugate": lambda xp, x: xp.positive(x),
    **dict.fromkeys(("deg2rad", "radians"), lambda xp, x: xp.multiply(x, math.pi / 180.0)),
    **dict.fromkeys(("rad2deg", "degrees"), lambda xp, x: xp.multiply(x, 180.0 / math.pi)),
    "fabs": lambda xp, x: xp.abs(x),
    "fmax": _beside_nan("maximum"),
    "fmin": _beside_nan("minimum"),
    "fmod": lambda xp, a, b: xp.subtract(a, xp.multiply(xp.trunc(xp.divide(a, b)), b)),
    "heaviside": _step,
    "divmod": lambda xp, a, b: (xp.floor_divide(a, b), xp.remainder(a, b)),
}
"""Ufuncs that are not in the standard."""


# Functions that differ from the standard's, with NumPy's order of arguments and names of options.


def _arrays(xp: Namespace, values: Sequence[Any]) -> list[Any]:
    """Values, with lists converted to arrays."""
    return [xp.asarray(x) if isinstance(x, (list, tuple)) else x for x in values]


def _deviation(name: str) -> Function:
    def deviation(
        xp: Namespace, a: Array, axis: Any = None, *, ddof: float = 0, correction: float = 0, keepdims: bool = False
    ) -> Any:
        if ddof and correction:
            raise ValueError(f"{name}: expected ddof or correction, got both")
        return getattr(xp, name)(a, axis=axis, correction=ddof or correction, keepdims=keepdims)

    return deviation


def _average(xp: Namespace, a: Array, axis: Any = None, weights: Array | None = None, *, keepdims: bool = False) -> Any:
    if weights is None:
        return xp.mean(a, axis=axis, keepdims=keepdims)
    a, w = _arrays(xp, [a, weights])
    if tuple(w.shape) != tuple(a.shape):
        if axis is None or isinstance(axis, tuple) or len(w.shape) != 1:
            raise ValueError("average: weights of another shape than the array take one axis")
        where = int(axis) % len(a.shape)
        w = xp.reshape(w, tuple(n if k == where else 1 for k, n in enumerate(a.shape)))
    total = xp.sum(xp.multiply(a, w), axis=axis, keepdims=keepdims)
    return xp.divide(total, xp.sum(w, axis=axis, keepdims=keepdims))


def _ptp(xp: Namespace, a: Array, axis: Any = None, *, keepdims: bool = False) -> Any:
    return xp.subtract(xp.max(a, axis=axis, keepdims=keepdims), xp.min(a, axis=axis, keepdims=keepdims))


def _cumsum(xp: Namespace, a: Array, axis: int | None = None) -> Any:
    return xp.cumulative_sum(xp.reshape(a, (-1,)) if axis is None else a, axis=0 if axis is None else axis)


def _sort(xp: Namespace, a: Array, axis: int | None = -1, *, kind: Any = None, stable: Any = None) -> Any:
    # `kind` and `stable` have no effect on values.
    return xp.sort(xp.reshape(a, (-1,)) if axis is None else a, axis=-1 if axis is None else axis)


def _diff(xp: Namespace, a: Array, n: int = 1, axis: int = -1, *, prepend: Any = None, append: Any = None) -> Any:
    return xp.diff(a, n=n, axis=axis, prepend=_end(xp, a, prepend, axis), append=_end(xp, a, append, axis))


def _end(xp: Namespace, a: Array, end: Any, axis: int) -> Any:
    """`prepend` or `append` of `diff`; a number is broadcast to a slice."""
    if end is None or len(getattr(end, "shape", ())):
        return end
    shape = tuple(1 if k == axis % len(a.shape) else n for k, n in enumerate(a.shape))
    return xp.broadcast_to(end, shape) if hasattr(end, "shape") else xp.full(shape, end, dtype=a.dtype)


def _trace(xp: Namespace, a: Array, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    diagonal = xp.rearranged(lambda plain: plain.diagonal(offset, axis1, axis2), a)
    return xp.sum(diagonal, axis=-1)


def _clip(xp: Namespace, a: Array, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:  # noqa: A002  (NumPy's names)
    return xp.clip(a, a_min if min is None else min, a_max if max is None else max)


def _dot(xp: Namespace, a: Array, b: Array, *, axis: int = -2) -> Any:
    """Sum over the last axis of `a` and the given axis of `b`, or its only axis."""
    if not (len(getattr(a, "shape", ())) and len(getattr(b, "shape", ()))):
        return xp.multiply(a, b)
    return xp.tensordot(a, b, axes=((-1,), (axis if len(b.shape) > 1 else -1,)))


def _where(xp: Namespace, condition: Array, x: Any = None, y: Any = None) -> Any:
    return xp.nonzero(condition) if x is None or y is None else xp.where(condition, x, y)


def _order(a: Array, axes: Any) -> tuple[int, ...]:
    return tuple(range(len(a.shape)))[::-1] if axes is None else tuple(axes)


def _compress(xp: Namespace, condition: Any, a: Array, axis: Any = None) -> Any:
    chosen = xp.stripped(condition)
    return xp.rearranged(lambda plain: xp.base_namespace.compress(chosen, plain, axis=axis), a)


def _norm(xp: Namespace, x: Array, ord: Any = None, axis: Any = None, *, keepdims: bool = False) -> Any:  # noqa: A002  (NumPy's name)
    matrix = len(axis) == 2 if isinstance(axis, tuple) else axis is None and ord is not None and len(x.shape) == 2  # noqa: PLR2004  (a matrix)
    if matrix:
        return xp.linalg.matrix_norm(x, axis=axis or (-2, -1), ord="fro" if ord is None else ord, keepdims=keepdims)
    return xp.linalg.vector_norm(x, axis=axis, ord=2 if ord is None else ord, keepdims=keepdims)


def _einsum(xp: Namespace, *operands: Any, optimize: Any = False) -> Any:
    """Contract operands pairwise, each pair by one matrix product."""
    subscripts, *arrays = operands
    if not isinstance(subscripts, str) or "." in subscripts:
        raise NotImplementedError(
            "einsum is differentiated on the tape with subscripts in letters alone, such as 'ij,jk->ik'"
        )
    left, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(arrays):
        raise ValueError(f"einsum: expected {len(terms)} operands for {subscripts!r}, got {len(arrays)}")
    if not arrow:
        result = "".join(sorted(letter for letter, times in Counter(left.replace(",", "")).items() if times == 1))
    pairs = [_without_repeats(xp, array, term) for array, term in zip(arrays, terms, strict=True)]
    x, letters = pairs[0]
    for k, (other, term) in enumerate(pairs[1:], 1):
        later = set(result).union(*(t for _, t in pairs[k + 1 :]))
        x, letters = _contracted(xp, x, letters, other, term, later)
    x, letters = _summed(xp, x, letters, set(result))
    return xp.permute_dims(x, tuple(letters.index(letter) for letter in result)) if len(result) > 1 else x


def _without_repeats(xp: Namespace, x: Array, letters: str) -> tuple[Array, str]:
    """Diagonals of an operand with repeated letters, and its remaining letters."""
    repeated = next((letter for letter in letters if letters.count(letter) > 1), None)
    if repeated is None:
        return x, letters
    first, second, *_ = (k for k, letter in enumerate(letters) if letter == repeated)
    x = xp.rearranged(lambda plain: plain.diagonal(0, first, second), x)
    rest = "".join(letter for k, letter in enumerate(letters) if k not in {first, second})
    return _without_repeats(xp, x, rest + repeated)


def _summed(xp: Namespace, x: Array, letters: str, kept: set[str]) -> tuple[Array, str]:
    gone = tuple(k for k, letter in enumerate(letters) if letter not in kept)
    if gone:
        x = xp.sum(x, axis=gone)
    return x, "".join(letter for letter in letters if letter in kept)


def _contracted(xp: Namespace, x: Array, s: str, y: Array, t: str, later: set[str]) -> tuple[Array, str]:  # noqa: PLR0917  (two operands with their letters)
    x, s = _summed(xp, x, s, later.union(t))
    y, t = _summed(xp, y, t, later.union(s))
    batch = [letter for letter in s if letter in t and letter in later]
    gone = [letter for letter in s if letter in t and letter not in later]
    own, others = ([letter for letter in a if letter not in b] for a, b in ((s, t), (t, s)))
    sizes = dict(zip(s, x.shape, strict=True)) | dict(zip(t, y.shape, strict=True))
    count = [math.prod(sizes[letter] for letter in group) for group in (own, gone, others)]
    shape = [sizes[letter] for letter in batch]
    x = xp.permute_dims(x, tuple(s.index(letter) for letter in (*batch, *own, *gone))) if len(s) > 1 else x
    y = xp.permute_dims(y, tuple(t.index(letter) for letter in (*batch, *gone, *others))) if len(t) > 1 else y
    product = xp.matmul(xp.reshape(x, (*shape, count[0], count[1])), xp.reshape(y, (*shape, count[1], count[2])))
    letters = (*batch, *own, *others)
    return xp.reshape(product, tuple(sizes[letter] for letter in letters)), "".join(letters)


def _joined(name: str) -> Function:
    """Standard function of that name, for arrays alone."""

    def join(xp: Namespace, arrays: Sequence[Any], axis: int | None = 0) -> Any:
        if not (isinstance(arrays, (list, tuple)) and all(hasattr(x, "shape") for x in arrays)):
            raise NotImplementedError(f"{name}: expected arrays")
        return getattr(xp, name)(list(arrays), axis=axis)

    return join


FUNCTIONS: dict[str, Function | str] = {
    **{
        name: name
        for name in (
            *("astype", "broadcast_to", "cumulative_sum", "expand_dims", "full_like", "linalg.matrix_norm"),
            *("linalg.outer", "linalg.trace", "linalg.vector_norm", "max", "mean", "min", "prod", "reshape", "sum"),
            "tensordot",
        )
    },
    **{f"linalg.{name}": name for name in ("matmul", "tensordot", "vecdot")},
    "amax": "max",
    "amin": "min",
    "average": _average,
    "broadcast_arrays": lambda xp, *arrays: tuple(xp.broadcast_arrays(*arrays)),
    "clip": _clip,
    "compress": _compress,
    "concatenate": _joined("concat"),
    "cumsum": _cumsum,
    "diff": _diff,
    "dot": _dot,
    "einsum": _einsum,
    "inner": lambda xp, a, b: _dot(xp, a, b, axis=-1),
    "linalg.norm": _norm,
    "outer": lambda xp, a, b: xp.linalg.outer(xp.reshape(a, (-1,)), xp.reshape(b, (-1,))),
    "ptp": _ptp,
    "ravel": lambda xp, a: xp.reshape(a, (-1,)),
    "real": "positive",
    "sort": _sort,
    "stack": _joined("stack"),
    "std": _deviation("std"),
    "trace": _trace,
    "transpose": lambda xp, a, axes=None: xp.permute_dims(a, _order(a, axes)),
    "var": _deviation("var"),
    "vdot": lambda xp, a, b: xp.tensordot(xp.reshape(a, (-1,)), xp.reshape(b, (-1,)), axes=1),
    "where": _where,
}
"""Functions by name, with ``linalg.`` for those of `linalg`. A string names the standard's function."""

METHODS: dict[str, Function | str | None] = {
    **dict.fromkeys(("compress", "copy", "diagonal", "flatten", "repeat", "squeeze", "swapaxes", "take")),
    **{name: FUNCTIONS[name] for name in ("astype", "cumsum", "dot", "max", "mean", "min", "prod", "ravel", "std")},
    **{name: FUNCTIONS[name] for name in ("sum", "trace", "var")},
    "clip": "clip",
    "conj": "positive",
    "conjugate": "positive",
    "reshape": lambda xp, a, *shape: xp.reshape(a, shape[0] if len(shape) == 1 else shape),
    "transpose": lambda xp, a, *axes: xp.permute_dims(a, _order(a, axes[0] if len(axes) == 1 else axes or None)),
}
"""Methods by name, with the array as first argument; None for those that only move entries."""

_PRODUCTS: AbstractSet[str] = {
    *("dot", "einsum", "inner", "linalg.matmul", "linalg.outer", "linalg.tensordot", "linalg.vecdot", "outer"),
    *("tensordot", "vdot"),
}
"""Functions whose required arguments are arrays, so that lists are converted."""


# Calls.


def call_function(space: Namespace, function: Function, arguments: Arguments, options: Options) -> Any:
    """Result for `__array_function__`."""
    name = _qualified(function)
    return _call(space, name, function, FUNCTIONS.get(name), arguments, options, moves=name in MOVES)


def call_method(space: Namespace, x: Array, name: str, arguments: Arguments, options: Options) -> Any:
    """Result of a method of a recorded array."""
    entry = METHODS.get(name)
    moves = entry is None or name in MOVES
    return _call(space, name, _method(name), entry, (x, *arguments), options, moves=moves)


@functools.cache
def _method(name: str) -> Function:
    """Method of that name as a function."""
    return lambda x, *arguments, **options: getattr(x, name)(*arguments, **options)


def call_ufunc(space: Namespace, ufunc: Any, method: str, inputs: Arguments, options: Options) -> Any:
    """Result for `__array_ufunc__`."""
    function = ufunc if method == "__call__" else getattr(ufunc, method)
    name = str(ufunc.__name__) if method == "__call__" else f"{ufunc.__name__}.{method}"
    inputs = _arrays(space, inputs)
    options = {key: value for key, value in options.items() if not _is_usual(key, value)}
    _refuse_out(name, options)
    _refuse(name, options.keys() & {"where"})
    if name in CONSTANT or not space.varies((inputs, options)):
        return space.constant(function, inputs, options)
    standard = STANDARD_NAMES.get(name, name.replace("arc", "a"))
    if name not in UFUNCS and standard not in space.elementwise:
        raise NotImplementedError(_no_pullback(name))
    _refuse(name, options)
    return UFUNCS[name](space, *inputs) if name in UFUNCS else getattr(space, standard)(*inputs)


def _call(  # noqa: PLR0917  (the call and its table entry)
    space: Any, name: str, function: Function, entry: Entry, arguments: Arguments, options: Options, *, moves: bool
) -> Any:
    if name in CONSTANT or not space.varies((arguments, options)):
        _refuse_out(name, options)
        return space.constant(function, arguments, options)
    if entry is None and not moves:
        raise NotImplementedError(_no_pullback(name))
    if entry is not None:
        try:
            spelled, taken = _spelled(space, entry)
            positional, named = _matched(name, function, taken, arguments, options)
            positional = _arrays(space, positional) if name in _PRODUCTS else positional
            return spelled(*positional, **named)
        except (NotImplementedError, TypeError):
            if not moves:
                raise
    return _move(space, name, function, arguments, options)


@functools.cache
def _spelled(space: Namespace, entry: Function | str) -> tuple[Function, inspect.Signature]:
    """Function of a table entry, bound to a recording namespace, and its signature."""
    bound = operator.attrgetter(entry)(space) if isinstance(entry, str) else functools.partial(entry, space)
    return bound, inspect.signature(bound)


def _matched(
    name: str, function: Function, taken: inspect.Signature, arguments: Arguments, options: Options
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a NumPy call, matched to the entry's signature: required ones by position, others by name."""
    known = {key for key, parameter in taken.parameters.items() if parameter.kind is not parameter.VAR_POSITIONAL}
    options = {key: value for key, value in options.items() if not _is_usual(key, value)}
    signature = _signature(function)
    if signature is None:
        _refuse(name, options, known)
        signature = taken
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for key, value in _bound(name, signature, arguments, options).arguments.items():
        parameter = signature.parameters[key]
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += value
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= value
        elif parameter.default is parameter.empty:
            positional.append(value)
        elif not _is_default(value, parameter.default):
            named[key] = value
    _refuse(name, named, known)
    return positional, named


def _bound(name: str, signature: inspect.Signature, arguments: Arguments, options: Options) -> inspect.BoundArguments:
    try:
        return signature.bind(*arguments, **options)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def _move(space: Namespace, name: str, function: Function, arguments: Arguments, options: Options) -> Any:
    """Result of a function that moves entries of its first argument, traced by the entries' indices."""
    signature = _signature(function)
    if signature is not None:
        call = _bound(name, signature, arguments, options)
        _refuse_out(name, call.arguments)
        arguments, options = call.args, call.kwargs
    _refuse(name, options.keys() & {"casting", "dtype", "out"})
    data, *others = arguments
    if space.varies((others, options)):
        raise NotImplementedError(
            f"{name}: expected constants beside the array whose entries it moves, got an array that varies"
        )
    given, named = space.stripped((others, options))
    return space.rearranged(lambda plain: function(plain, *given, **named), data)


@functools.cache
def _signature(function: Function) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have no signature
        return None


def _no_pullback(name: str) -> str:
    return (
        f"{name} has no pullback on the tape, so its derivative cannot be computed here; write it with other "
        f"array-API functions, or apply it to portable_nce.stop_gradient(x)"
    )


def _refuse(name: str, options: Collection[str], known: Collection[str] = ()) -> None:
    """Raise an error that names an unknown option."""
    for key in options:
        if key not in known:
            raise NotImplementedError(
                f"{name}: {key}= is not differentiated on the tape; write it with other array functions"
            )


def _refuse_out(name: str, options: Mapping[str, Any]) -> None:
    if options.get("out") is not None:
        raise TypeError(
            f"{name}: out= would write a recorded array into a plain one, which has no derivative; leave it out"
        )


def _is_usual(key: str, value: Any) -> bool:
    """Whether an option has its default value."""
    return (key == "out" and value is None) or (key == "where" and value is True)


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (
        isinstance(value, (bool, int, str)) and type(value) is type(default) and value == default
    )


def _qualified(function: Function) -> str:
    """Name of a NumPy function, with ``linalg.`` if it is from there."""
    name = str(function.__name__)
    return f"linalg.{name}" if str(function.__module__).rpartition(".")[2] in {"linalg", "_linalg"} else name
