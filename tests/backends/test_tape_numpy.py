"""All of NumPy's API on recorded arrays: each call is differentiated correctly, constant, or rejected.

Calls are generated from NumPy: all functions of ``np`` and ``np.linalg`` by their signatures, all ufuncs with their
methods and keywords, all array methods, all operators. A call that NumPy accepts must give NumPy's value and the
gradient of finite differences, or raise an error of the tape.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.backends import numpy_functions  # pyright: ignore[reportMissingImports]

MATRIX = np.asarray([[0.31, -0.72, 0.23], [0.94, 0.16, -0.46]])
OTHER = np.asarray([[0.57, 0.68, -0.89], [-0.21, 0.42, 0.73]])
SQUARE = np.asarray([[1.1, 0.52, -0.33], [0.24, -0.85, 0.46], [0.67, 0.18, 0.79]])
VECTOR = np.asarray([0.29, -0.37, 0.98])
CUBE = 0.93 * np.cos(np.arange(24.0) * 1.7 + 0.3).reshape(2, 3, 4)
POSITIVE = np.abs(MATRIX) + 0.25
NUMBER = np.asarray(0.7)
DATA = (MATRIX, POSITIVE, SQUARE, VECTOR, CUBE, NUMBER)


@dataclass(frozen=True)
class Fixed:
    """Argument that is not differentiated."""

    value: Any


class Call(NamedTuple):
    """Function with arguments; its float64 arrays are differentiated."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any] = {}  # noqa: RUF012  (never changed)

    def __call__(self, arrays: Sequence[Any]) -> Any:
        supply = iter(arrays)
        arguments = [_filled(x, supply) for x in self.arguments]
        return self.function(*arguments, **{key: _filled(x, supply) for key, x in self.options.items()})

    @property
    def arrays(self) -> list[np.ndarray]:
        """Copies of the arrays to differentiate."""
        return [x.copy() for x in flattened([*self.arguments, *self.options.values()]) if _varies(x)]


def _varies(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.float64


def _filled(tree: Any, supply: Iterator[Any]) -> Any:
    if isinstance(tree, Fixed):
        return tree.value.copy() if isinstance(tree.value, np.ndarray) else tree.value
    if isinstance(tree, (list, tuple)):
        return type(tree)(_filled(item, supply) for item in tree)
    return next(supply) if _varies(tree) else tree


def flattened(result: Any) -> list[Any]:
    """Arrays and numbers in a result."""
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in flattened(item)]
    return [result]


def weighted(leaves: Sequence[Any], like: Sequence[np.ndarray]) -> Any:
    """Weighted sum of all floating-point results, with distinct weights."""
    total: Any = 0.0
    for k, (leaf, plain) in enumerate(zip(leaves, like, strict=True)):
        if plain.dtype.kind == "f":
            weights = np.cos(np.arange(plain.size, dtype=np.float64) + 0.5 + k).reshape(plain.shape)
            total = total + np.sum(leaf * weights)
    return total


def _with_out(call: Call) -> Call:
    """Call with an array like its result in place of ``...``."""
    options = dict(call.options)
    if "out" in options:
        given = options.pop("out")
        out = Fixed(np.zeros_like(call._replace(options=options)(call.arrays)))
        options["out"] = (out,) if isinstance(given, tuple) else out
    return call._replace(options=options)


def outcome(call: Call) -> str | None:
    """Classify a call: "right", "constant", "refused", a description of the fault, or None if NumPy rejects it."""
    arrays = call.arrays
    try:
        call = _with_out(call)
        plain = [np.asarray(leaf) for leaf in flattened(call(arrays))]
    except Exception:  # noqa: BLE001  (NumPy may raise anything for an invalid call)
        return None
    if any(not np.array_equal(a, b) for a, b in zip(arrays, call.arrays, strict=True)):
        return "refused" if refuses(call, call.arrays) else "wrong: it writes into a recorded array"
    if any(leaf.dtype.kind not in "fiub" for leaf in plain) or not all(np.all(np.isfinite(x)) for x in plain):
        return "refused" if refuses(call, arrays) else None

    def loss(*recorded: Any) -> Any:
        result = flattened(call(recorded))
        total = weighted(result, plain)
        return total if hasattr(total, "shape") else np.asarray(total), result

    try:
        (_, aux), gradients = pnce.value_and_grad(loss, argnums=tuple(range(len(arrays))), has_aux=True)(*arrays)
    except Exception as error:  # noqa: BLE001  (reported)
        return "refused" if _is_ours(error) else f"wrong: {type(error).__name__}: {error}"
    for got, expected in zip(aux, plain, strict=True):
        same = np.asarray(got).shape == expected.shape and np.asarray(got).dtype == expected.dtype
        if not (same and np.allclose(got, expected, rtol=1e-6 if expected.dtype == np.float32 else 1e-12, atol=1e-14)):
            return f"wrong value: {got}, not {expected}"
    return compared(call, arrays, plain, gradients)


def compared(call: Call, arrays: list[np.ndarray], plain: list[np.ndarray], gradients: Sequence[np.ndarray]) -> str:
    """Compare gradients with finite differences."""
    narrow = any(leaf.dtype.kind == "f" and leaf.dtype != np.float64 for leaf in plain)
    step, relative, absolute = (1e-3, 2e-2, 2e-2) if narrow else (1e-6, 1e-7, 1e-8)
    nothing = True
    for k, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
        if gradient.shape != array.shape or gradient.dtype != array.dtype:
            return f"wrong kind of gradient: {gradient.shape}, {gradient.dtype}"

        def total(moved: np.ndarray, k: int = k) -> float:
            return float(weighted(flattened(call([*arrays[:k], moved, *arrays[k + 1 :]])), plain))

        moves = step * np.eye(array.size).reshape(array.size, *array.shape)
        rises = [total(array + move) - total(array - move) for move in moves]
        numeric = np.reshape(rises, array.shape) / (2.0 * step)
        if not np.allclose(gradient, numeric, relative, absolute):
            return f"wrong gradient: {gradient}, not {numeric}, of array {k}"
        nothing = nothing and not numeric.any() and not gradient.any()
    return "constant" if nothing else "right"


def _is_ours(error: Exception) -> bool:
    """Whether an error is the tape's."""
    words = ("on the tape", "recorded array", "has no pullback", "that varies", "complex numbers")
    kinds = (NotImplementedError, TypeError, AttributeError)
    return isinstance(error, kinds) and any(word in str(error) for word in words)


def refuses(call: Call, arrays: Sequence[np.ndarray]) -> bool:
    """Check that a call that cannot be differentiated is rejected."""
    try:
        pnce.grad(lambda *x: np.sum(flattened(call(x))[0]) * 1.0, argnums=tuple(range(len(arrays))))(*arrays)
    except (NotImplementedError, TypeError, AttributeError) as error:
        return _is_ours(error) or "0-d array" in str(error)
    return False


# ---------------------------------------------------------------------------------------------------------- functions

MASK = Fixed(MATRIX > 0)
REQUIRED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("b", "x2", "y", "v", "values"), (OTHER, SQUARE, VECTOR, CUBE[0].T, [1, 2, 3])),
    **dict.fromkeys(
        ("arrays", "tup", "arys"),
        ([MATRIX, OTHER], (SQUARE, SQUARE.T), [VECTOR, Fixed(VECTOR)], [0.5, VECTOR[1:2][0:1].reshape(())]),
    ),
    **dict.fromkeys(("fill_value", "q", "val"), (0.5, np.asarray(0.25))),
    **dict.fromkeys(("kth", "n", "pad_width"), (1, 2)),
    **dict.fromkeys(("ar2", "fp", "test_elements", "vals"), (VECTOR, Fixed(VECTOR))),
    **dict.fromkeys(("condlist", "mask"), ([MASK], MASK)),
    **dict.fromkeys(("axis", "axis1", "axis2", "destination", "source"), (0, 1, -1, np.int64(1))),
    "axes": ((1, 0),),
    "bins": (Fixed(np.asarray([0.0, 0.5])),),
    "choicelist": ([MATRIX],),
    "choices": ([MATRIX, OTHER],),
    "dtype": (np.float32, np.int64, ">f8", ">c16"),
    "funclist": ([Fixed(np.sin)],),
    "ind": ([0, 1],),
    "indices": (Fixed(np.asarray([1, 0, 1])), 1, [1, 1], Fixed(np.asarray([[0, 1, 0], [1, 1, 0]]))),
    "indices_or_sections": (1, [1, 2], 2),
    "new_shape": ((4, 2), 5),
    "obj": (0, [1]),
    "repeats": (2, Fixed(np.asarray([2, 1]))),
    "reps": (2, (2, 1), (2, 1, 2)),
    "shape": ((3, 2), (2, 2, 3), -1, 6),
    "shift": (1, -1, (1, 1)),
    "xp": (Fixed(VECTOR.cumsum() ** 2),),
}
"""Values of required arguments by name; any other name means an array of data."""

OPTIONAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("aggregated", "like", "mean", "newshape"), ()),
    **dict.fromkeys(("assume_unique", "descending", "equal_nan", "include_initial", "invert", "returned"), (True,)),
    **dict.fromkeys(("keepdims", "right", "stable", "subok"), (True, False)),
    **dict.fromkeys(("atol", "correction", "ddof", "initial", "rtol"), (0.5, 1, 2.0)),
    **dict.fromkeys(("axis1", "axis2", "k", "max_work", "offset", "start"), (0, 1, -1)),
    **dict.fromkeys(("a_max", "a_min", "max", "min"), (0.4, -0.3, OTHER, Fixed(OTHER), Fixed(VECTOR))),
    **dict.fromkeys(("decimals", "edge_order", "n"), (2, 3, 0)),
    **dict.fromkeys(("x", "y"), (MATRIX, OTHER)),
    **dict.fromkeys(("append", "prepend"), (0.5, np.asarray(0.25), VECTOR[:2].reshape(2, 1))),
    "axes": ((1, 0), 1, ((0,), (0,)), [(1,), (0,)], (1, 2, 0), [(0,), (0,), ()]),
    "axis": (0, 1, -1, 2, np.int64(1), (0, 1), None, (1, -1)),
    "casting": ("unsafe",),
    "copy": (True, False, None),
    "device": ("cpu",),
    "dtype": (np.float64, np.float32, np.int64, np.complex128),
    "kind": ("stable",),
    "mode": ("wrap", "clip", "raise"),
    "optimize": (True, "greedy"),
    "ord": (1, 2, 3, 0, -1, math.inf, -math.inf, "fro", "nuc"),
    "order": ("F", "A", "C", "K"),
    "out": (..., (...,)),
    "shape": ((2, 3),),
    "side": ("right",),
    "sorter": (Fixed(np.argsort(VECTOR)),),
    "weights": (Fixed(OTHER**2), Fixed(VECTOR**2 + 1), VECTOR**2 + 1, OTHER**2, [1, 2, 3]),
    "where": (MASK, True, Fixed(np.asarray([True, False, True]))),
}
"""Values of optional arguments by name; ... is an array like the result."""

EXTRA: dict[str, tuple[tuple[Any, ...], ...]] = {
    "where": ((MASK, MATRIX, OTHER), (MASK, MATRIX, 0.0), (MASK, VECTOR, Fixed(OTHER)), (MATRIX,)),
    "einsum": (
        *[("ij,kj->ik", MATRIX, OTHER), ("ij,jk", MATRIX, SQUARE), ("ij,ij,j->i", MATRIX, OTHER, VECTOR)],
        *((subscripts, SQUARE) for subscripts in ("ii", "ii->i")),
        *((subscripts, MATRIX) for subscripts in ("ij->j", "ji", "...j->...")),
        *[("ijk,ji->k", CUBE, SQUARE[:, :2].copy()), ("ijk,ijk->", CUBE, CUBE + 1.0)],
        *[("i,j->ji", VECTOR, VECTOR + 1.0), ("ij,->ij", MATRIX, np.asarray(0.5)), ("i,ij", [1, 2], MATRIX)],
        ("iij,j->i", SQUARE[:, None, :] * SQUARE[None, :, :], VECTOR),
    ),
    "broadcast_arrays": ((MATRIX, VECTOR), (VECTOR,)),
    "take_along_axis": ((MATRIX, Fixed(np.argsort(MATRIX, axis=1)), 1), (MATRIX, Fixed(np.asarray([[0, 1, 0]])), 0)),
    "block": (([[MATRIX, OTHER]],), ([[MATRIX], [Fixed(OTHER)]],)),
    **dict.fromkeys(("atleast_1d", "atleast_3d"), ((MATRIX,), (VECTOR,), (np.asarray(0.5),))),
    "atleast_2d": ((VECTOR, MATRIX), (VECTOR,), (CUBE,)),
    **dict.fromkeys(("outer", "vdot"), (([1, 2, 3], VECTOR),)),
    "average": ((MATRIX, 1, Fixed(VECTOR**2 + 1)), (MATRIX, 0, Fixed(np.asarray([1.0, 3.0])))),
    "clip": ((MATRIX, -0.3, 0.4), (MATRIX, OTHER - 1.0, OTHER + 1.0)),
    "compress": (
        *[(Fixed(np.asarray([True, False])), MATRIX, 0), (Fixed(np.asarray([True, False, True])), MATRIX)],
        *[(Fixed(np.asarray([1, 0])), MATRIX, 1), (VECTOR > 0, VECTOR)],
    ),
    "stack": (([np.asarray(0.5), 1.0],), ([MATRIX, OTHER.tolist()],)),
    "full_like": ((MATRIX, VECTOR), (Fixed(MATRIX), np.asarray(0.5))),
    "tensordot": ((CUBE, CUBE + 1.0, ((0, 1), (0, 1))), (CUBE, CUBE + 1.0, 3), (MATRIX, OTHER, 0)),
    **dict.fromkeys(("dot", "inner"), ((MATRIX, 2.0), (CUBE, CUBE + 1.0), (CUBE, CUBE.transpose(1, 2, 0) + 1.0))),
    "linalg.norm": ((MATRIX, 2, 1), (MATRIX, "fro", (0, 1)), (CUBE, 1, (0, 1)), (CUBE, np.inf, (2, 0)), (np.zeros(3),)),
}
"""Calls whose arguments depend on one another."""

JOINED = ("arrays", "tup", "arys")
"""First arguments that are lists of arrays."""


def function_calls(name: str) -> Iterator[Call]:
    """Generate the calls of a function from its signature: required arguments, then each option."""
    function = FUNCTIONS[name]
    for arguments in EXTRA.get(name, ()):
        yield Call(function, arguments)
    parameters = inspect.signature(function).parameters
    plain = [Call(function, arguments) for arguments in itertools.product(*_required(parameters.values()))]
    yield from plain
    given = [call for call in plain if outcome(call) in {"right", "constant"}][:6]
    for parameter in parameters.values():
        for key in _keywords(parameter):
            assert key in OPTIONAL or not given, f"no value to try for {key}= of {name}"
            for value in OPTIONAL.get(key, ()):
                yield from (_with(call, parameter, key, value) for call in given)
                if "axis" in parameters and key not in {"axis", "keepdims", "out", "dtype"}:
                    yield from (call._replace(options={key: value, "axis": 1}) for call in given)


def _required(parameters: Iterable[inspect.Parameter]) -> list[tuple[Any, ...]]:
    """Values of each required argument; the first is an array or a list of arrays."""
    required = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.default is p.empty]
    return [REQUIRED.get(name, DATA) if k or name in JOINED else DATA for k, name in enumerate(required)]


def _keywords(parameter: inspect.Parameter) -> list[str]:
    if parameter.kind is parameter.VAR_KEYWORD:
        return ["dtype", "order", "casting", "where", "out"]
    return [] if parameter.default is parameter.empty else [parameter.name]


def _with(call: Call, parameter: inspect.Parameter, key: str, value: Any) -> Call:
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return call._replace(arguments=(*call.arguments, value))
    return call._replace(options={key: value})


FILES = {"file", "fname", "filename", "filename_or_obj", "iterable", "string", "buffer"}
NOT_CALLED = {"bmat", "empty_like", "fromiter", "info", "show_config", "test"}
"""Functions that print, return no defined value, or take no arrays."""


def functions() -> dict[str, Callable[..., Any]]:
    """All functions of ``np`` and ``np.linalg`` that take arrays."""
    found = {}
    for prefix, module in (("", np), ("linalg.", np.linalg)):
        for name in sorted(set(dir(module))):
            member = getattr(module, name)
            if name.startswith("_") or not callable(member) or isinstance(member, (type, np.ufunc)):
                continue
            with contextlib.suppress(ValueError):  # functions without a signature
                parameters = inspect.signature(member).parameters
                if parameters and not FILES & set(parameters) and name not in NOT_CALLED:
                    found[prefix + name] = member
    return found


FUNCTIONS = functions()


# ------------------------------------------------------------------------------------------------------------- ufuncs

UFUNCS = {name: getattr(np, name) for name in sorted(dir(np)) if isinstance(getattr(np, name), np.ufunc)}
UFUNC_OPTIONS = ("out", "where", "dtype", "casting", "order", "subok", "axis", "axes", "keepdims")
PAIRS = [
    *[(MATRIX, OTHER), (POSITIVE, OTHER), (VECTOR, SQUARE), (MATRIX, SQUARE), (CUBE, CUBE[0].T.copy())],
    *[(0.5, POSITIVE), (POSITIVE, 3.0), (POSITIVE, -0.5), (VECTOR, VECTOR[::-1] * 1.1), (MATRIX, Fixed(VECTOR))],
    *[(Fixed(OTHER), MATRIX), (MATRIX, [0.5, 1.5, 2.5]), (np.asarray(0.5), VECTOR)],
]


def ufunc_calls(name: str) -> Iterator[Call]:
    """Generate the calls of a ufunc and of its methods."""
    ufunc: Any = UFUNCS[name]
    ones = [(x,) for x in (*DATA, POSITIVE + 1.0)]
    if name == "heaviside":  # which depends on the second at 0 alone
        yield Call(ufunc, (Fixed(np.asarray([-1.0, 0.0, 2.0])), np.asarray([0.3, 0.4, 0.5])))
    plain = [Call(ufunc, arguments) for arguments in (ones if ufunc.nin == 1 else PAIRS)]
    yield from plain
    for key in UFUNC_OPTIONS:
        for value in OPTIONAL[key]:
            yield from (call._replace(options={key: value}) for call in plain[:2])
    if ufunc.nin == 2 and ufunc.nout == 1 and ufunc.signature is None:
        yield from (Call(method, (MATRIX,)) for method in (ufunc.reduce, ufunc.accumulate))
        yield Call(ufunc.outer, (VECTOR, VECTOR + 1.0))
        yield Call(ufunc.reduceat, (VECTOR, [0, 1]))
        yield Call(lambda x, y: ufunc.at(x, [0, 0], y), (Fixed(VECTOR), np.asarray(0.5)))
        yield Call(lambda x: ufunc.at(x, [0, 0], 0.5), (VECTOR,))


# ------------------------------------------------------------------------------------------------ methods, attributes

METHODS = sorted(name for name in dir(np.ndarray) if not name.startswith("_"))
METHOD_ARGUMENTS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "astype": ((np.float32,), (np.float64,), (np.int64,), (np.complex128,), (">f8",), (">c16",)),
    "choose": (([1, 2],),),
    "clip": ((-0.3, 0.4), (None, 0.4), (OTHER,)),
    "compress": (([True, False], 0), ([True, False, True], 1)),
    "dot": ((SQUARE,), (VECTOR,), (2.0,)),
    "getfield": ((np.float64,),),
    "put": (([0], [0.5]),),
    "repeat": ((2,), ([1, 2], 0)),
    **dict.fromkeys(("reshape", "resize"), ((3, 2), ((3, 2),), (-1,), ([6],))),
    "setfield": ((0.5, np.float64),),
    "swapaxes": ((0, 1),),
    "take": (([1, 0, 1],), ([[0, 1]],)),
    "transpose": ((), (1, 0), ((1, 0),), (None,)),
    "view": ((), (np.int64,)),
}
METHOD_OPTIONS = (
    *("axis", "dtype", "out", "keepdims", "initial", "where", "ddof", "correction", "order", "mode", "kind", "offset"),
    *("axis1", "axis2", "copy", "casting", "subok", "stable", "mean"),
)
"""Keywords of methods, with the values of `OPTIONAL`."""


def method_calls(name: str) -> Iterator[Call]:
    """Generate the calls of a method, or read an attribute."""

    def call(x: Any, *arguments: Any, **options: Any) -> Any:
        member = getattr(x, name)
        return member(*arguments, **options) if callable(member) else member

    for x in (MATRIX, CUBE, VECTOR, np.asarray([[0.7]])):
        if not callable(getattr(np.ndarray, name)):
            yield Call(call, (x,))
            continue
        for arguments in METHOD_ARGUMENTS.get(name, ((),)):
            yield Call(call, (x, *arguments))
            for key in METHOD_OPTIONS:
                yield from (Call(call, (x, *arguments), {key: value}) for value in OPTIONAL[key])
        yield from (Call(call, (x, axis)) for axis in (0, 1, (0, 1), -1))


# ---------------------------------------------------------------------------------------------------------- operators

BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)
UNARY = ("neg", "pos", "abs", "invert", "not_", "truth", "index")
BUILTINS = (sum, max, min, sorted, list, tuple, len, reversed, enumerate, any, all, hash, str, repr, bool, round)
OPERANDS = [
    *[(POSITIVE, OTHER), (MATRIX, 2.1), (2.1, POSITIVE), (MATRIX, 2), (POSITIVE, Fixed(OTHER))],
    *[(Fixed(POSITIVE), OTHER), (MATRIX, SQUARE), (VECTOR, VECTOR + 1.0), (CUBE, CUBE[0].T.copy())],
    *[(np.float64(1.5), POSITIVE), (MATRIX, np.float32(1.5)), (MATRIX, True), (MATRIX, 1j), (1j, MATRIX)],
    *[([1.0, 2.0, 3.0], MATRIX), (MATRIX, [1.0, 2.0, 3.0])],
]


def operator_calls(name: str) -> Iterator[Call]:
    """Generate the calls of an operator or a built-in function."""
    function: Any = getattr(operator, name, None) or getattr(builtins, name)
    if function in BUILTINS:
        yield Call(lambda x: _listed(function(x)), (VECTOR,))
    elif name in UNARY:
        yield from (Call(function, (x,)) for x in (MATRIX, VECTOR, NUMBER))
    else:
        yield from (Call(function, pair) for pair in OPERANDS)
        inplace: Any = getattr(operator, f"i{name.rstrip('_')}", None)
        if inplace is not None:
            yield Call(inplace, (Fixed(POSITIVE), OTHER))
            yield Call(lambda x, y: inplace(x + 0.0, y), (POSITIVE, OTHER))


def _listed(result: Any) -> Any:
    if isinstance(result, (str, bytes)):
        return len(result) * 0
    if isinstance(result, (builtins.reversed, enumerate)):
        return [x[1] if isinstance(x, tuple) else x for x in result]
    return result


# ------------------------------------------------------------------------------------------------------------- results


PAGE = (Path(__file__).parents[2] / "docs" / "tape.md").read_text(encoding="utf-8")
SPELLINGS = PAGE.partition("## NumPy's spellings")[2].partition("Functions that only move")[0]
LISTED = {
    line[2:].partition(":")[0]: set(re.findall(r"`([a-z0-9_.]+)`", line.partition(":")[2]))
    for line in re.sub(r"\n  ", " ", SPELLINGS).splitlines()
    if line.startswith("- ")
}
"""NumPy names that docs/tape.md lists as differentiated, by list."""


CALLS: dict[str, tuple[Iterable[str], Callable[[str], Iterator[Call]]]] = {
    "functions": (FUNCTIONS, function_calls),
    "ufuncs": (UFUNCS, ufunc_calls),
    "methods": (METHODS, method_calls),
    "operators": ((*BINARY, "divmod", *UNARY, *(function.__name__ for function in BUILTINS)), operator_calls),
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.filterwarnings("ignore")
@np.errstate(all="ignore")
def test_calls_on_the_tape_are_right_or_constant_or_refused(kind: str) -> None:
    """Names in docs/tape.md are differentiated in some call."""
    names, calls_of = CALLS[kind]
    found = [(name, call, outcome(call) or "") for name in names for call in calls_of(name)]
    wrong = [f"{what} of {call}" for _, call, what in found if what.startswith("wrong")]
    assert not wrong, "\n".join(wrong[:5])
    assert {name for name, _, what in found if what == "right"} >= LISTED.get(kind, set())


def test_the_page_names_what_is_differentiated() -> None:
    """docs/tape.md lists exactly the names of the tables."""
    assert LISTED["functions"] == set(numpy_functions.FUNCTIONS) | numpy_functions.MOVES
    assert LISTED["methods"] == set(numpy_functions.METHODS)


KEYS: list[Any] = [
    *(1, -1, np.int64(1), True, ()),
    *(slice(None, None, -1), (slice(None), slice(0, None, 2)), (None, slice(None), None, 0)),
    *((..., 1), [0, 0, 1], [[0, 1], [1, 1]], np.asarray([1, 1, 0]), (slice(None), np.asarray([-1, 0, -1]))),
    *((np.asarray([0, 1, 1]), np.asarray([2, 0, 0])), np.ix_([0, 1, 1], [2, 0]), np.asarray([], dtype=np.int64)),
    *(MATRIX > 0, np.asarray([True, False]), [True, False], (np.asarray([False, True]), slice(1, None))),
    *((None, np.asarray([1, 1])), (np.asarray([1, 0, 1]), slice(None, 2))),
]
"""Integers, slices, new axes, ellipses, index lists and arrays, masks, and combinations."""


DIFFERENTIATED: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "indexed by a comparison": (lambda x: x[x > 0.2] ** 2, MATRIX),
    "indexed by an order": (lambda x: x[np.argsort(x)] * np.arange(3.0), VECTOR),
    "indexed by a place": (lambda x: x[x.argmax()] ** 2, VECTOR),
    "an array named by keyword": (lambda x: np.roll(a=x, shift=1) * x, MATRIX),
    "arrays named by keyword": (lambda x: np.compress(condition=[True, False, True], a=x[0]) ** 2, MATRIX),
    "compressed by a list": (lambda x: np.compress([True, False, True], x[0]) ** 2, MATRIX),
    "full_like of an entry": (lambda x: np.full_like(x, x[0]) * x, VECTOR),
}

NAMESPACE: tuple[Callable[[Any, Any], Any], ...] = (
    *(lambda xp, x: xp.prod(x[:0, :], axis=0) * x[0], lambda xp, x: xp.full((2,), x[0, 0])),
    *(lambda xp, x: xp.full(2, x[0, 1]), lambda xp, x: xp.hypot(x, x + 1.0), lambda xp, x: xp.repeat(x, 2, axis=1)),
    lambda xp, x: xp.cumulative_sum(x[0, 1]),
)
"""Array-API functions of a recorded array's namespace, other than operators."""

SECOND_ORDER: tuple[Callable[[Any], Any], ...] = (
    *(lambda x: np.prod(x, axis=1), lambda x: np.sort(x, axis=0) ** 2, lambda x: x[[0, 0, 1]] ** 2),
    *(lambda x: np.einsum("ij,kj->ik", x, x), lambda x: np.linalg.norm(x, axis=1), lambda x: np.cumsum(x) ** 2),
    *(lambda x: np.take(x, [0, 3, 3]) ** 3, lambda x: np.diff(x, axis=1) ** 2, lambda x: np.remainder(x * x, 0.3)),
)


def test_indexing_and_further_calls_are_differentiated() -> None:
    for key in KEYS:
        for function in (lambda x, key=key: x[key], lambda x, key=key: (x * x)[key] * x[key]):
            assert outcome(Call(function, (MATRIX,))) in {"right", "constant"}, key
    for name, (differentiated, x) in DIFFERENTIATED.items():
        assert outcome(Call(differentiated, (x,))) == "right", name
    for k, of in enumerate(NAMESPACE):
        assert outcome(Call(lambda x, of=of: of(x.__array_namespace__(), x) ** 2, (MATRIX,))) == "right", k
    for k, f in enumerate(SECOND_ORDER):
        assert outcome(Call(lambda x, f=f: pnce.grad(lambda y: np.sum(f(y) ** 2))(x), (MATRIX,))) == "right", k


# ----------------------------------------------------------------------------------------------------- silent constants


def written(write: Callable[[Any, Any], Any]) -> Callable[[Any], np.ndarray]:
    """Give zeros after a write into them."""

    def leak(x: Any) -> np.ndarray:
        zeros = np.zeros(3)
        write(zeros, x)
        return zeros

    return leak


LEAKS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "written into an array": (
        *map(written, (lambda zeros, x: operator.setitem(zeros, 0, x[0]), operator.iadd, np.copyto)),
        *map(written, (lambda zeros, x: operator.setitem(zeros, slice(None), x), lambda zeros, x: zeros.fill(x[0]))),
        *(written(lambda zeros, x: zeros.put([0], x[0])), lambda x: np.add(x, x, out=np.zeros(3))),
        lambda x: np.add(x, x, where=[True, False, True], out=np.zeros(3)),
    ),
    "made a number": (
        *(lambda x: math.sqrt(x @ x), lambda x: float(x[0]), lambda x: abs(complex(x[0])), lambda x: x[0].item()),
        *(math.fsum, lambda x: np.float64(x[0]), lambda x: np.asarray(x.tolist())),
    ),
    "made an array": (
        *(np.array, np.asarray, np.ascontiguousarray, np.from_dlpack, lambda x: np.asarray(memoryview(x))),
        *(lambda x: x * np.asarray(x), lambda x: np.array([x[0], x[1]]), lambda x: np.array([x[0], 1.0])),
        *(lambda x: np.mean([x[0], x[1]]), lambda x: np.sum([x[0], x[1]]), lambda x: np.full(3, x[0])),
        *(lambda x: np.linspace(0.0, x[0], 3), lambda x: np.arange(0.0, x[2], 0.4), lambda x: np.fromiter(x, float)),
    ),
    "given to code that records nothing": (
        *(np.vectorize(math.sin), lambda x: np.apply_along_axis(lambda row: row[0], 0, x)),
        *(lambda x: np.random.default_rng(0).normal(x), lambda x: np.polyval(x, 0.5)),
        *(lambda x: np.interp(0.5, [0.0, 1.0, 2.0], x), lambda x: np.abs(np.fft.fft(x)), lambda x: np.abs(x * 1j)),
    ),
}


@pytest.mark.parametrize(("kind", "leak"), [(kind, leak) for kind, leaks in LEAKS.items() for leak in leaks])
def test_variables_of_the_tape_never_become_constants(kind: str, leak: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, NotImplementedError, AttributeError, ValueError)) as caught:
        pnce.grad(lambda x: np.sum(leak(x)) * 1.0)(VECTOR)
    assert "0-d array" not in str(caught.value), kind


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "an operand too few": (lambda x: np.einsum("ij,jk->ik", x), ValueError, "expected 2 operands"),
    "weights of another shape": (lambda x: np.average(x, weights=np.ones(2)), ValueError, "weights of another shape"),
    "two corrections": (lambda x: np.std(x, ddof=1, correction=1), ValueError, "ddof or correction, got both"),
    "an axis out of bounds": (lambda x: x.__array_namespace__().expand_dims(x, axis=5), IndexError, "out of bounds"),
    "sums along no axis": (lambda x: x.__array_namespace__().cumulative_sum(x), ValueError, "expected an axis"),
    "that of a method": (lambda x: x.swapaxes(0, second=1), TypeError, "keyword"),
    "the length of a number": (lambda x: len(x[0, 0]), TypeError, "without axes"),
}


@pytest.mark.parametrize(("function", "kind", "words"), REFUSED.values(), ids=REFUSED)
def test_wrong_arguments_are_named(function: Callable[[Any], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        pnce.grad(lambda x: np.sum(function(x)) * 1.0)(MATRIX)


def test_constants_of_the_tape_may_become_numbers() -> None:
    def loss(x: Any) -> Any:
        held = pnce.stop_gradient(x)
        assert math.sqrt(held @ held) == math.sqrt(VECTOR @ VECTOR)
        np.testing.assert_array_equal(np.asarray(held), VECTOR)
        np.testing.assert_array_equal(np.asarray(x > 0), VECTOR > 0)
        assert f"{x[0]:.2f}" == "0.29"
        assert [1.0, 2.0, 3.0][(x[0] > 0).astype(np.int64)] == 2.0
        return np.sum(x)

    np.testing.assert_array_equal(pnce.grad(loss)(VECTOR), np.ones(3))


# ------------------------------------------------------------------------------------------------------- awkward points


AWKWARD: dict[tuple[float, float], tuple[Callable[[Any], Any], ...]] = {
    (0.0, 0.0): (
        *(lambda x: x**0, lambda x: x**2, lambda x: x**2.0, lambda x: x ** np.asarray(0.0)),
        *(lambda x: x ** np.asarray(2.0), lambda x: np.hypot(x, 0.0), lambda x: np.hypot(x, x), np.abs, np.linalg.norm),
        lambda x: np.prod(np.stack([x, x, x + 1.0])),
    ),
    (0.0, 1.0): (lambda x: x**1,),
    (1.0, 0.0): (lambda x: 0.0**x,),
    (2.0, 0.0): (lambda x: np.zeros(()) ** x,),
    (0.0, 2.0): (lambda x: np.prod(np.stack([x, x + 2.0])),),
    (0.0, 0.5): (lambda x: np.maximum(x, 0.0),),
}
"""Functions, by a point and the derivative there."""


@pytest.mark.parametrize(("at", "wanted", "function"), [(*key, f) for key, many in AWKWARD.items() for f in many])
def test_derivatives_where_formulas_divide_by_zero(at: float, wanted: float, function: Callable[[Any], Any]) -> None:
    with np.errstate(all="raise"):
        gradient = pnce.grad(lambda x: np.sum(function(x)) * 1.0)(np.asarray(at))
    assert float(gradient) == wanted
