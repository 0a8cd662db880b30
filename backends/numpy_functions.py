"""NumPy's spellings of what the tape differentiates: functions, ufuncs and methods, with NumPy's own meanings.

NumPy and CuPy hand calls such as ``np.sum(x, keepdims=True)`` to the tape by two protocols, `__array_function__` and
`__array_ufunc__`. A name that stands in a table here is differentiated, with the keywords that its entry takes; any
other name, and any other keyword, is refused by name, so that a derivative is never wrong without a word.

Each entry takes the recording namespace first. `MOVES` names functions that only move, repeat or drop entries: their
derivative follows from the same call on the numbers of the entries, with whatever keywords.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

__all__ = ["CONSTANT", "FUNCTIONS", "METHODS", "MOVES", "UFUNCS", "call_function", "call_method", "call_ufunc"]

Array = Any
Namespace = Any

MOVES = frozenset(
    {
        *("array_split", "atleast_1d", "atleast_2d", "atleast_3d", "block", "broadcast_to", "column_stack", "compress"),
        *("concatenate", "copy", "delete", "diag", "diagflat", "diagonal", "dsplit", "dstack", "expand_dims", "flip"),
        *("fliplr", "flipud", "hsplit", "hstack", "linalg.diagonal", "linalg.matrix_transpose", "matrix_transpose"),
        *("moveaxis", "ravel", "repeat", "reshape", "resize", "roll", "rollaxis", "rot90", "split", "squeeze", "stack"),
        *("swapaxes", "take", "take_along_axis", "tile", "transpose", "tril", "triu", "unstack", "vsplit", "vstack"),
    }
)
"""Functions that move, repeat or drop the entries of their first argument; what they add of their own is 0."""

MOVING_METHODS = frozenset(
    {
        *("compress", "copy", "diagonal", "flatten", "ravel", "repeat", "reshape", "squeeze", "swapaxes", "take"),
        *("transpose",),
    }
)
"""The same among the methods of an array."""

CONSTANT = frozenset(
    {
        *(
            "all",
            "allclose",
            "any",
            "argmax",
            "argmin",
            "argpartition",
            "argsort",
            "argwhere",
            "around",
            "array2string",
        ),
        *("array_equal", "array_equiv", "array_repr", "array_str", "bitwise_and", "bitwise_invert", "bitwise_or"),
        *("bitwise_left_shift", "bitwise_right_shift", "bitwise_xor", "can_cast", "ceil", "common_type", "equal"),
        *("count_nonzero", "digitize", "empty_like", "finfo", "fix", "flatnonzero", "floor", "floor_divide", "greater"),
        *("greater_equal", "heaviside", "iinfo", "invert", "isclose", "iscomplex", "iscomplexobj", "isdtype"),
        *("isfinite", "isin", "isinf", "isnan", "isneginf", "isposinf", "isreal", "isrealobj", "left_shift", "less"),
        *("less_equal", "logical_and", "logical_not", "logical_or", "logical_xor", "may_share_memory", "ndim"),
        *("min_scalar_type", "nonzero", "not_equal", "ones_like", "result_type", "right_shift", "rint", "round"),
        *("searchsorted", "shape", "shares_memory", "sign", "signbit", "size", "trunc", "zeros_like"),
    }
)
"""Functions whose derivative is zero almost everywhere, or has no meaning: their results are constants."""

STANDARD_NAMES: Mapping[str, str] = {
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
"""The standard's names of ufuncs with an older name in NumPy; those of the same name need no entry."""


def _fmod(xp: Namespace, a: Array, b: Array) -> Array:
    return xp.subtract(a, xp.multiply(xp.trunc(xp.divide(a, b)), b))


def _larger(xp: Namespace, a: Array, b: Array) -> Array:
    """What fmax does with NaN: the other argument."""
    return xp.maximum(xp.where(xp.isnan(a), b, a), xp.where(xp.isnan(b), a, b))


def _smaller(xp: Namespace, a: Array, b: Array) -> Array:
    return xp.negative(_larger(xp, xp.negative(a), xp.negative(b)))


UFUNCS: dict[str, Callable[..., Any]] = {
    "conjugate": lambda xp, x: xp.positive(x),
    **dict.fromkeys(("deg2rad", "radians"), lambda xp, x: xp.multiply(x, math.pi / 180.0)),
    **dict.fromkeys(("rad2deg", "degrees"), lambda xp, x: xp.multiply(x, 180.0 / math.pi)),
    "fabs": lambda xp, x: xp.abs(x),
    "fmax": _larger,
    "fmin": _smaller,
    "fmod": _fmod,
    "divmod": lambda xp, a, b: (xp.floor_divide(a, b), xp.remainder(a, b)),
}
"""Ufuncs that are no functions of the standard."""


# Functions that compute and differ from the standard's. Order of arguments and names of options are NumPy's.


def _arrays(xp: Namespace, values: Sequence[Any]) -> list[Any]:
    """The values, of which lists are arrays."""
    return [xp.asarray(x) if isinstance(x, (list, tuple)) else x for x in values]


def _deviation(name: str) -> Callable[..., Any]:
    def deviation(
        xp: Namespace, a: Array, axis: Any = None, *, ddof: float = 0, correction: float = 0, keepdims: bool = False
    ) -> Any:
        if ddof and correction:
            message = f"{name}: expected ddof or correction, got both"
            raise ValueError(message)
        return getattr(xp, name)(a, axis=axis, correction=ddof or correction, keepdims=keepdims)

    return deviation


def _average(xp: Namespace, a: Array, axis: Any = None, weights: Array | None = None, *, keepdims: bool = False) -> Any:
    if weights is None:
        return xp.mean(a, axis=axis, keepdims=keepdims)
    a, w = _arrays(xp, [a, weights])
    if tuple(w.shape) != tuple(a.shape):
        if axis is None or isinstance(axis, tuple) or len(w.shape) != 1:
            message = "average: weights of another shape than the array take one axis"
            raise ValueError(message)
        where = int(axis) % len(a.shape)
        w = xp.reshape(w, tuple(n if k == where else 1 for k, n in enumerate(a.shape)))
        w = xp.broadcast_to(w, tuple(a.shape))
    total = xp.sum(xp.multiply(a, w), axis=axis, keepdims=keepdims)
    return xp.divide(total, xp.sum(w, axis=axis, keepdims=keepdims))


def _ptp(xp: Namespace, a: Array, axis: Any = None, *, keepdims: bool = False) -> Any:
    return xp.subtract(xp.max(a, axis=axis, keepdims=keepdims), xp.min(a, axis=axis, keepdims=keepdims))


def _cumsum(xp: Namespace, a: Array, axis: int | None = None) -> Any:
    return xp.cumulative_sum(xp.reshape(a, (-1,)) if axis is None else a, axis=0 if axis is None else axis)


def _sort(xp: Namespace, a: Array, axis: int | None = -1, *, kind: Any = None, stable: Any = None) -> Any:
    del kind, stable  # ties have the same value
    return xp.sort(xp.reshape(a, (-1,)) if axis is None else a, axis=-1 if axis is None else axis)


def _diff(xp: Namespace, a: Array, n: int = 1, axis: int = -1, *, prepend: Any = None, append: Any = None) -> Any:
    ends = [None if end is None else _end(xp, a, end, axis) for end in (prepend, append)]
    return xp.diff(a, n=n, axis=axis, prepend=ends[0], append=ends[1])


def _end(xp: Namespace, a: Array, end: Any, axis: int) -> Any:
    """What stands before or after an array: a number stands for a slice of it."""
    if len(getattr(end, "shape", ())):
        return end
    shape = tuple(1 if k == axis % len(a.shape) else n for k, n in enumerate(a.shape))
    return xp.broadcast_to(end, shape) if hasattr(end, "shape") else xp.full(shape, end, dtype=a.dtype)


def _trace(xp: Namespace, a: Array, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    diagonal = xp.rearranged(lambda plain: plain.diagonal(offset, axis1, axis2), a)
    return xp.sum(diagonal, axis=-1)


def _clip(xp: Namespace, a: Array, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:  # noqa: A002  (NumPy's names)
    return xp.clip(a, a_min if min is None else min, a_max if max is None else max)


def _dot(xp: Namespace, a: Array, b: Array) -> Any:
    """The sum over the last axis of `a` and the last but one of `b`."""
    dimensions = [len(getattr(x, "shape", ())) for x in (a, b)]
    if not all(dimensions):
        return xp.multiply(a, b)
    return xp.tensordot(a, b, axes=((-1,), (-1 if dimensions[1] == 1 else -2,)))


def _inner(xp: Namespace, a: Array, b: Array) -> Any:
    if not (len(getattr(a, "shape", ())) and len(getattr(b, "shape", ()))):
        return xp.multiply(a, b)
    return xp.tensordot(a, b, axes=((-1,), (-1,)))


def _vdot(xp: Namespace, a: Array, b: Array) -> Any:
    return xp.tensordot(xp.reshape(a, (-1,)), xp.reshape(b, (-1,)), axes=1)


def _outer(xp: Namespace, a: Array, b: Array) -> Any:
    return xp.linalg.outer(xp.reshape(a, (-1,)), xp.reshape(b, (-1,)))


def _where(xp: Namespace, condition: Array, x: Any = None, y: Any = None) -> Any:
    if x is None or y is None:
        return xp.nonzero(condition)
    return xp.where(condition, x, y)


def _order(a: Array, axes: Any) -> tuple[int, ...]:
    return tuple(range(len(a.shape)))[::-1] if axes is None else tuple(axes)


def _norm(xp: Namespace, x: Array, ord: Any = None, axis: Any = None, *, keepdims: bool = False) -> Any:  # noqa: A002  (NumPy's name)
    matrix = len(axis) == 2 if isinstance(axis, tuple) else axis is None and ord is not None and len(x.shape) == 2  # noqa: PLR2004  (a matrix)
    if matrix:
        return xp.linalg.matrix_norm(x, axis=axis or (-2, -1), ord="fro" if ord is None else ord, keepdims=keepdims)
    return xp.linalg.vector_norm(x, axis=axis, ord=2 if ord is None else ord, keepdims=keepdims)


def _einsum(xp: Namespace, *operands: Any, optimize: Any = False) -> Any:
    """Contract two operands at a time, each by one matrix product."""
    del optimize
    subscripts, *arrays = operands
    if not isinstance(subscripts, str) or "." in subscripts:
        message = "einsum is differentiated on the tape with subscripts in letters alone, such as 'ij,jk->ik'"
        raise NotImplementedError(message)
    left, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(arrays):
        message = f"einsum: expected {len(terms)} operands for {subscripts!r}, got {len(arrays)}"
        raise ValueError(message)
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
    """The diagonals of an operand with a repeated letter, and its letters."""
    repeated = next((letter for letter in letters if letters.count(letter) > 1), None)
    if repeated is None:
        return x, letters
    first = letters.index(repeated)
    second = letters.index(repeated, first + 1)
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


def _joined(name: str) -> Callable[..., Any]:
    """The standard's function of the same meaning, for arrays alone."""

    def join(xp: Namespace, arrays: Sequence[Any], axis: int | None = 0) -> Any:
        if not (isinstance(arrays, (list, tuple)) and all(hasattr(x, "shape") for x in arrays)):
            message = f"{name}: expected arrays"
            raise NotImplementedError(message)
        return getattr(xp, name)(list(arrays), axis=axis)

    return join


FUNCTIONS: dict[str, Callable[..., Any] | str] = {
    **{
        name: name
        for name in (
            *("astype", "broadcast_to", "cumulative_sum", "expand_dims", "full_like", "max", "mean", "min", "prod"),
            *(
                "linalg.matrix_norm",
                "linalg.outer",
                "linalg.trace",
                "linalg.vector_norm",
                "reshape",
                "sum",
                "tensordot",
            ),
        )
    },
    **{f"linalg.{name}": name for name in ("matmul", "tensordot", "vecdot")},
    "amax": "max",
    "amin": "min",
    "average": _average,
    "broadcast_arrays": lambda xp, *arrays: tuple(xp.broadcast_arrays(*arrays)),
    "clip": _clip,
    "concatenate": _joined("concat"),
    "cumsum": _cumsum,
    "diff": _diff,
    "dot": _dot,
    "einsum": _einsum,
    "inner": _inner,
    "linalg.norm": _norm,
    "outer": _outer,
    "ptp": _ptp,
    "ravel": lambda xp, a: xp.reshape(a, (-1,)),
    "real": "positive",
    "sort": _sort,
    "stack": _joined("stack"),
    "std": _deviation("std"),
    "trace": _trace,
    "transpose": lambda xp, a, axes=None: xp.permute_dims(a, _order(a, axes)),
    "var": _deviation("var"),
    "vdot": _vdot,
    "where": _where,
}
"""Functions that compute, by name; those of `linalg` with that in front. A string names the standard's."""

METHODS: dict[str, Callable[..., Any] | str] = {
    **{name: FUNCTIONS[name] for name in ("astype", "cumsum", "dot", "max", "mean", "min", "prod", "ravel", "std")},
    **{name: FUNCTIONS[name] for name in ("sum", "trace", "var")},
    "clip": "clip",
    "conj": "positive",
    "conjugate": "positive",
    "reshape": lambda xp, a, *shape: xp.reshape(a, shape[0] if len(shape) == 1 else shape),
    "transpose": lambda xp, a, *axes: xp.permute_dims(a, _order(a, axes[0] if len(axes) == 1 else axes or None)),
}
"""Methods that compute, by name; the array itself comes first."""

_PRODUCTS = frozenset(
    {
        *("dot", "einsum", "inner", "linalg.matmul", "linalg.outer", "linalg.tensordot", "linalg.vecdot", "outer"),
        *("tensordot", "vdot"),
    }
)
"""Functions whose required arguments are all arrays, so that a list is one too."""

CONSTANT_METHODS = frozenset(
    {"all", "any", "argmax", "argmin", "argpartition", "argsort", "nonzero", "round", "searchsorted"}
)
"""Methods whose results are constants."""


# Calls.


def call_function(
    space: Namespace, function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """The result for `__array_function__`."""
    name = _qualified(function)
    if name in CONSTANT or not space.varies((arguments, options)):
        _refuse_out(name, options)
        return space.constant(function, arguments, options)
    return _call(space, name, function, FUNCTIONS.get(name), name in MOVES, arguments, options)


def call_method(space: Namespace, x: Array, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The result of a method of a recorded array."""
    function: Callable[..., Any] = functools.partial(_method, name)
    if name in CONSTANT_METHODS or not space.varies((x, arguments, options)):
        _refuse_out(name, options)
        return space.constant(function, (x, *arguments), options)
    return _call(space, name, function, METHODS.get(name), name in MOVING_METHODS, (x, *arguments), options)


def _method(name: str, x: Array, *arguments: Any, **options: Any) -> Any:
    return getattr(x, name)(*arguments, **options)


def call_ufunc(space: Namespace, ufunc: Any, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The result for `__array_ufunc__`."""
    function = ufunc if method == "__call__" else getattr(ufunc, method)
    name = str(ufunc.__name__) if method == "__call__" else f"{ufunc.__name__}.{method}"
    inputs = _arrays(space, inputs)
    options = {key: value for key, value in options.items() if not _is_usual(key, value)}
    _refuse_out(name, options)
    _refuse(name, {key: value for key, value in options.items() if key == "where"})
    if name in CONSTANT or not space.varies((inputs, options)):
        return space.constant(function, inputs, options)
    standard = STANDARD_NAMES.get(name, name)
    if name not in UFUNCS and standard not in space.elementwise:
        raise NotImplementedError(space.no_pullback(name))
    _refuse(name, options)
    return UFUNCS[name](space, *inputs) if name in UFUNCS else getattr(space, standard)(*inputs)


def _call(  # noqa: PLR0917  (what is called, by which entry, with what)
    space: Namespace,
    name: str,
    function: Callable[..., Any],
    entry: Callable[..., Any] | str | None,
    moves: bool,  # noqa: FBT001  (passed on)
    arguments: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:
    if entry is None and not moves:
        raise NotImplementedError(space.no_pullback(name))
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
def _spelled(space: Namespace, entry: Callable[..., Any] | str) -> tuple[Callable[..., Any], inspect.Signature]:
    """The function of an entry of a table, for recorded arrays of a namespace, and its signature."""
    bound = operator.attrgetter(entry)(space) if isinstance(entry, str) else functools.partial(entry, space)
    return bound, inspect.signature(bound)


def _matched(
    name: str,
    function: Callable[..., Any],
    taken: inspect.Signature,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """A call of NumPy's function as one of the entry's signature: required arguments by position, others by name."""
    signature = _signature(function)
    known = {key for key, parameter in taken.parameters.items() if parameter.kind is not parameter.VAR_POSITIONAL}
    if signature is None:
        _refuse(name, {key: value for key, value in options.items() if not _is_usual(key, value)}, known)
        options = {key: value for key, value in options.items() if key in known}
        signature = taken
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for key, value in _bound(name, signature, arguments, options).items():
        parameter = signature.parameters[key]
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += value
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= value
        elif parameter.default is parameter.empty:
            positional.append(value)
        elif not (_is_usual(key, value) or _is_default(value, parameter.default)):
            named[key] = value
    _refuse(name, named, known)
    return positional, named


def _bound(
    name: str, signature: inspect.Signature, arguments: Sequence[Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        return signature.bind(*arguments, **options).arguments
    except TypeError as error:
        message = f"{name}: {error}"
        raise TypeError(message) from None


def _move(
    space: Namespace,
    name: str,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:
    """A function that moves entries of its first argument, as the same on their numbers shows."""
    options = dict(options)
    signature = _signature(function)
    if signature is not None:
        call = _bound(name, signature, arguments, options)
        if name == "compress" and "a" in call:  # its condition comes first
            options = dict(call)
            arguments = (options.pop("a"),)
            function = _with_array_named("a", function)
        first = next(iter(signature.parameters))
        if not arguments:
            arguments = (options.pop(first),)
        _refuse_out(name, call)
    _refuse(name, {key: value for key, value in options.items() if key in {"casting", "dtype", "out"}})
    if space.varies((arguments[1:], options)):
        message = f"{name}: expected constants beside the array whose entries it moves, got an array that varies"
        raise NotImplementedError(message)
    rest, named = space.stripped((tuple(arguments[1:]), options))
    return space.rearranged(lambda data: function(data, *rest, **named), arguments[0])


def _with_array_named(key: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda data, **named: function(**{key: data}, **named)


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    if isinstance(function, functools.partial):  # a method: those of arrays have none everywhere
        return None
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C have none
        return None


def _refuse(name: str, options: Mapping[str, Any], known: Collection[str] = ()) -> None:
    """Raise an error with the name of an option that is not known."""
    for key in options:
        if key not in known:
            message = f"{name}: {key}= is not differentiated on the tape; write it with other array functions"
            raise NotImplementedError(message)


def _refuse_out(name: str, options: Mapping[str, Any]) -> None:
    if options.get("out") is not None:
        message = f"{name}: out= would write a recorded array into a plain one, which has no derivative; leave it out"
        raise TypeError(message)


def _is_usual(key: str, value: Any) -> bool:
    """Whether an option says what holds without it."""
    return (key == "out" and value is None) or (key == "where" and value is True)


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (
        isinstance(value, (bool, int, str)) and type(value) is type(default) and value == default
    )


def _qualified(function: Callable[..., Any]) -> str:
    """The name of a NumPy function, with ``linalg.`` where it is one of those."""
    name = str(function.__name__)
    return f"linalg.{name}" if str(function.__module__).rpartition(".")[2] in {"linalg", "_linalg"} else name
