"""Everything that NumPy shows, on recorded arrays: each call is differentiated rightly, is a constant, or is refused.

What is called comes from NumPy itself: all functions of ``np`` and ``np.linalg`` by their signatures, all ufuncs with
their methods and keywords, all methods of an array, all operators. A call that NumPy accepts must give NumPy's value,
and the gradient that finite differences find, or raise an error of the tape's own. ``python
tests/backends/test_tape_numpy.py`` prints how many calls are which.
"""

from __future__ import annotations

import builtins
import inspect
import math
import operator
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
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
DATA = {
    "matrix": MATRIX,
    "positive": POSITIVE,
    "square": SQUARE,
    "vector": VECTOR,
    "cube": CUBE,
    "number": np.asarray(0.7),
}
STEP = 1e-6


class Call(NamedTuple):
    """A function with its arguments; the arrays of float64 among them are differentiated."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self, arrays: Sequence[Any]) -> Any:
        supply = iter(arrays)
        arguments = [_filled(x, supply) for x in self.arguments]
        return self.function(*arguments, **{key: _filled(x, supply) for key, x in self.options.items()})

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arrays to differentiate."""
        return [x for tree in (*self.arguments, *self.options.values()) for x in _variable(tree)]


class Fixed(NamedTuple):
    """An argument that is not differentiated."""

    value: Any


def _variable(tree: Any) -> Iterator[np.ndarray]:
    if isinstance(tree, np.ndarray) and tree.dtype == np.float64:
        yield tree
    elif isinstance(tree, (list, tuple)) and not isinstance(tree, Fixed):
        for item in tree:
            yield from _variable(item)


def _filled(tree: Any, supply: Iterator[Any]) -> Any:
    if isinstance(tree, Fixed):
        return tree.value.copy() if isinstance(tree.value, np.ndarray) else tree.value
    if isinstance(tree, np.ndarray) and tree.dtype == np.float64:
        return next(supply)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_filled(item, supply) for item in tree)
    return tree


def leaves_of(result: Any) -> list[np.ndarray]:
    """The arrays in a result."""
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in leaves_of(item)]
    return [np.asarray(result)]


def weighted(leaves: Sequence[Any], like: Sequence[np.ndarray]) -> Any:
    """A sum of all floating-point results, each entry with a weight of its own."""
    total: Any = 0.0
    for k, (leaf, plain) in enumerate(zip(leaves, like, strict=True)):
        if plain.dtype.kind == "f":
            weights = np.cos(np.arange(plain.size, dtype=np.float64) + 0.5 + k).reshape(plain.shape)
            total = total + np.sum(leaf * weights)
    return total


def _with_out(call: Call) -> Call:
    """The call with an array like its result in place of ``...``."""
    if "out" not in call.options:
        return call
    try:
        result = call._replace(options={key: x for key, x in call.options.items() if key != "out"})(
            [x.copy() for x in call.arrays]
        )
    except Exception:  # noqa: BLE001  (no call either way)
        return call
    out = Fixed(np.zeros_like(result))
    return call._replace(options={**call.options, "out": (out,) if isinstance(call.options["out"], tuple) else out})


def outcome(call: Call) -> str | None:
    """Tell what becomes of a call: "right", "constant", "refused", what is wrong, or None where NumPy refuses it."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _outcome(_with_out(call), [x.copy() for x in call.arrays])


def _outcome(call: Call, arrays: list[np.ndarray]) -> str | None:  # noqa: PLR0911  (one for each outcome)
    before = [x.copy() for x in arrays]
    try:
        plain = leaves_of(call(arrays))
    except Exception:  # noqa: BLE001  (whatever NumPy does with a call that makes no sense)
        return None
    if any(not np.array_equal(a, b) for a, b in zip(arrays, before, strict=True)):
        return "refused" if refuses(call, before) else "wrong: it writes into a recorded array"
    if any(leaf.dtype.kind not in "fiub" for leaf in plain) or not all(np.all(np.isfinite(x)) for x in plain):
        return "refused" if refuses(call, arrays) else None

    def loss(*recorded: Any) -> Any:
        result = flattened(call(recorded))
        total = weighted(result, plain)
        return total if hasattr(total, "shape") else np.asarray(total), result

    try:
        (_, aux), gradients = pnce.value_and_grad(loss, argnums=tuple(range(len(arrays))), has_aux=True)(*arrays)
    except (NotImplementedError, TypeError, AttributeError) as error:
        return "refused" if _is_ours(error) else f"wrong: {type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  (reported)
        return f"wrong: {type(error).__name__}: {error}"
    for got, expected in zip(aux, plain, strict=True):
        same = np.asarray(got).shape == expected.shape and np.asarray(got).dtype == expected.dtype
        if not (same and np.allclose(got, expected, rtol=1e-6 if expected.dtype == np.float32 else 1e-12, atol=1e-14)):
            return f"wrong value: {got}, not {expected}"
    return compared(call, arrays, plain, gradients)


def compared(call: Call, arrays: list[np.ndarray], plain: list[np.ndarray], gradients: Sequence[np.ndarray]) -> str:
    """Tell whether gradients are those that finite differences find."""
    narrow = any(leaf.dtype.kind == "f" and leaf.dtype != np.float64 for leaf in plain)
    tolerance, step = (2e-2, 1e-3) if narrow else (1e-5, STEP)
    nothing = True
    for k, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
        if gradient.shape != array.shape or gradient.dtype != array.dtype:
            return f"wrong kind of gradient: {gradient.shape}, {gradient.dtype}"
        for index in np.ndindex(*array.shape):
            values = []
            for sign in (1.0, -1.0):
                moved = [x.copy() for x in arrays]
                moved[k][index] += sign * step
                with np.errstate(all="ignore"):
                    values.append(float(weighted(leaves_of(call(moved)), plain)))
            numeric = (values[0] - values[1]) / (2.0 * step)
            nothing = nothing and numeric == 0.0 and gradient[index] == 0.0
            if not abs(gradient[index] - numeric) <= tolerance * (1.0 + abs(numeric)):
                return f"wrong gradient: {gradient[index]}, not {numeric}, at {index} of array {k}"
    return "constant" if nothing else "right"


def flattened(result: Any) -> list[Any]:
    """The arrays and numbers in a result, as they are."""
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in flattened(item)]
    return [result]


def _is_ours(error: Exception) -> bool:
    """Whether a refusal says what it is about."""
    words = ("on the tape", "recorded array", "has no pullback", "that varies", "complex numbers")
    return any(word in str(error) for word in words)


def refuses(call: Call, arrays: Sequence[np.ndarray]) -> bool:
    """Tell whether a call that cannot be differentiated is refused."""
    try:
        pnce.grad(lambda *recorded: np.sum(flattened(call(recorded))[0]) * 1.0, argnums=tuple(range(len(arrays))))(
            *arrays
        )
    except (NotImplementedError, TypeError, AttributeError) as error:
        return _is_ours(error) or "0-d array" in str(error)
    return False


# ---------------------------------------------------------------------------------------------------------- functions

MASK = Fixed(MATRIX > 0)
REQUIRED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("b", "x2", "y", "v", "values", "other"), (OTHER, SQUARE, VECTOR, CUBE[0].T, [1, 2, 3])),
    **dict.fromkeys(
        ("arrays", "tup", "arys", "seq"),
        ([MATRIX, OTHER], (SQUARE, SQUARE.T), [VECTOR, Fixed(VECTOR)], [0.5, VECTOR[1:2][0:1].reshape(())]),
    ),
    "axis": (0, 1, np.int64(1)),
    "axis1": (0, 1),
    "axis2": (1, 0),
    "axes": ((1, 0),),
    "condition": (Fixed(np.asarray([True, False])), MASK),
    "destination": (0, 1, -1),
    "dtype": (np.float32, np.int64, ">f8", ">c16"),
    "fill_value": (0.5, np.asarray(0.25)),
    "indices": (Fixed(np.asarray([1, 0, 1])), 1, [1, 1], Fixed(np.asarray([[0, 1, 0], [1, 1, 0]]))),
    "indices_or_sections": (1, [1, 2], 2),
    "k": (1,),
    "n": (2,),
    "num_rows": (3,),
    "obj": (0, [1]),
    "operands": (),
    "p": (2,),
    "pad_width": (1,),
    "q": (0.5,),
    "repeats": (2, Fixed(np.asarray([2, 1]))),
    "repetitions": ((2, 1),),
    "reps": (2, (2, 1), (2, 1, 2)),
    "shape": ((3, 2), (2, 2, 3), -1, 6),
    "new_shape": ((4, 2), 5),
    "shift": (1, -1, (1, 1)),
    "source": (0, 1, -1),
    "start": (0, 1),
    "xp": (Fixed(VECTOR.cumsum() ** 2),),
    "fp": (VECTOR,),
    "func": (Fixed(np.sum),),
    "func1d": (Fixed(np.sum),),
    "funclist": ([Fixed(np.sin)],),
    "condlist": ([MASK],),
    "choicelist": ([MATRIX],),
    "choices": ([MATRIX, OTHER],),
    "bins": (Fixed(np.asarray([0.0, 0.5])),),
    "mask": (MASK,),
    "vals": (VECTOR,),
    "val": (0.5, np.asarray(0.25)),
    "ind": ([0, 1],),
    "kth": (1,),
    "test_elements": (Fixed(VECTOR),),
    "ar2": (Fixed(VECTOR),),
    "x1": tuple(DATA.values()),
    "object": tuple(DATA.values()),
}
"""What a required argument may be, by its name; any other name means an array of data."""

OPTIONAL: dict[str, tuple[Any, ...]] = {
    "a_max": (0.4, Fixed(OTHER), OTHER),
    "a_min": (-0.3, OTHER),
    "aggregated": (),
    "append": (0.5, np.asarray(0.25)),
    "axes": ((1, 0), 1, ((0,), (0,)), [(1,), (0,)], (1, 2, 0)),
    "axis": (0, 1, -1, 2, np.int64(1), (0, 1), None, (1, -1)),
    "axis1": (1, -1),
    "axis2": (0, -1),
    "casting": ("unsafe",),
    "copy": (True, False, None),
    "correction": (1, 0.5),
    "ddof": (1, 0.5),
    "decimals": (3,),
    "descending": (True,),
    "device": ("cpu",),
    "dtype": (np.float64, np.float32, np.int64, np.complex128),
    "edge_order": (2,),
    "include_initial": (True,),
    "initial": (0.5, 2.0),
    "k": (1, -1),
    "keepdims": (True, False),
    "kind": ("stable",),
    "like": (),
    "max": (0.4, OTHER, Fixed(VECTOR)),
    "mean": (),
    "min": (-0.3, OTHER, Fixed(VECTOR)),
    "mode": ("wrap", "clip", "raise"),
    "n": (2, 0),
    "newshape": (),
    "offset": (1, -1),
    "optimize": (True, "greedy"),
    "ord": (1, 2, 3, 0, -1, math.inf, -math.inf, "fro", "nuc"),
    "order": ("F", "A", "C", "K"),
    "out": (...,),
    "prepend": (0.5, VECTOR[:2].reshape(2, 1)),
    "returned": (True,),
    "shape": ((2, 3),),
    "stable": (True,),
    "start": (1,),
    "subok": (True, False),
    "weights": (Fixed(OTHER**2), Fixed(VECTOR**2 + 1), VECTOR**2 + 1, OTHER**2, [1, 2, 3]),
    "where": (MASK, True, Fixed(np.asarray([True, False, True]))),
    "x": (MATRIX,),
    "y": (OTHER,),
}
"""What an optional argument may be, by its name; ... is an array like the result."""

OPTIONAL |= {
    "assume_unique": (True,),
    "atol": (0.5,),
    "equal_nan": (True,),
    "invert": (True,),
    "max_work": (1,),
    "right": (True,),
    "rtol": (0.5,),
    "side": ("right",),
    "sorter": (Fixed(np.argsort(VECTOR)),),
}
FILES = {"file", "fname", "filename", "filename_or_obj", "iterable", "string", "buffer"}
EXTRA: dict[str, tuple[tuple[Any, ...], ...]] = {
    "where": ((MASK, MATRIX, OTHER), (MASK, MATRIX, 0.0), (MASK, VECTOR, Fixed(OTHER)), (MATRIX,)),
    "einsum": tuple(
        (subscripts, *operands)
        for subscripts, operands in {
            "ij,kj->ik": (MATRIX, OTHER),
            "ij,jk": (MATRIX, SQUARE),
            "ii": (SQUARE,),
            "ii->i": (SQUARE,),
            "ij->j": (MATRIX,),
            "ji": (MATRIX,),
            "ij,ij,j->i": (MATRIX, OTHER, VECTOR),
            "ijk,ji->k": (CUBE, SQUARE[:, :2].copy()),
            "ijk,ijk->": (CUBE, CUBE + 1.0),
            "i,j->ji": (VECTOR, VECTOR + 1.0),
            "iij,j->i": (SQUARE[:, None, :] * SQUARE[None, :, :], VECTOR),
            "ij,->ij": (MATRIX, np.asarray(0.5)),
            "...j->...": (MATRIX,),
            "i,ij": ([1, 2], MATRIX),
        }.items()
    ),
    "broadcast_arrays": ((MATRIX, VECTOR), (VECTOR,)),
    "take_along_axis": ((MATRIX, Fixed(np.argsort(MATRIX, axis=1)), 1), (MATRIX, Fixed(np.asarray([[0, 1, 0]])), 0)),
    "block": (([[MATRIX, OTHER]],), ([[MATRIX], [Fixed(OTHER)]],)),
    "atleast_1d": ((MATRIX,), (np.asarray(0.5),)),
    "atleast_2d": ((VECTOR, MATRIX), (VECTOR,), (CUBE,)),
    "atleast_3d": ((MATRIX,), (VECTOR,)),
    **dict.fromkeys(("dot", "inner", "outer", "vdot"), (([1, 2, 3], VECTOR),)),
    "average": ((MATRIX, 1, Fixed(VECTOR**2 + 1)), (MATRIX, 0, Fixed(np.asarray([1.0, 3.0])))),
    "clip": ((MATRIX, -0.3, 0.4), (MATRIX, OTHER - 1.0, OTHER + 1.0)),
    "delete": ((MATRIX, [1], 1),),
    "compress": (
        (Fixed(np.asarray([True, False])), MATRIX, 0),
        (Fixed(np.asarray([True, False, True])), MATRIX),
        (Fixed(np.asarray([1, 0])), MATRIX, 1),
        (VECTOR > 0, VECTOR),
    ),
    "full_like": ((MATRIX, VECTOR), (Fixed(MATRIX), np.asarray(0.5))),
    "tensordot": ((CUBE, CUBE + 1.0, ((0, 1), (0, 1))), (CUBE, CUBE + 1.0, 3), (MATRIX, OTHER, 0)),
    "dot": ((CUBE, CUBE[0].T), (MATRIX, 2.0), (CUBE, np.transpose(CUBE + 1.0, (1, 2, 0)).copy()), (VECTOR, SQUARE)),
    "inner": ((CUBE, CUBE + 1.0), (MATRIX, 2.0), (VECTOR, MATRIX)),
    "diff": ((CUBE, 2, 1),),
    "linalg.norm": (
        (MATRIX, 2, 1),
        (MATRIX, "fro", (0, 1)),
        (CUBE, 1, (0, 1)),
        (CUBE, math.inf, (2, 0)),
        (np.zeros(3),),
    ),
}
"""Calls whose arguments must fit one another."""


JOINED = ("arrays", "tup", "arys", "seq")
"""First arguments that are lists of arrays."""


def function_calls(name: str, function: Callable[..., Any]) -> Iterator[Call]:
    """Make the calls of a function from its signature: those with what is required, then with each option."""
    for arguments in EXTRA.get(name, ()):
        yield Call(function, arguments, {})
    parameters = inspect.signature(function).parameters
    plain = [Call(function, arguments, {}) for arguments in _products(_required(parameters.values()))]
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
    """What each required argument may be; the first is an array, or a list of them."""
    required: list[tuple[Any, ...]] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD or parameter.default is not parameter.empty:
            continue
        known = bool(required) or parameter.name in JOINED
        required.append(REQUIRED.get(parameter.name, tuple(DATA.values())) if known else tuple(DATA.values()))
    return required


def _keywords(parameter: inspect.Parameter) -> list[str]:
    if parameter.kind is parameter.VAR_KEYWORD:
        return ["dtype", "order", "casting", "where", "out"]
    return [] if parameter.default is parameter.empty else [parameter.name]


def _with(call: Call, parameter: inspect.Parameter, key: str, value: Any) -> Call:
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return call._replace(arguments=(*call.arguments, value))
    return call._replace(options={key: value})


def _products(required: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    if not required:
        yield ()
        return
    for first in required[0]:
        for rest in _products(required[1:]):
            yield (first, *rest)


NOT_CALLED = {"bmat", "empty_like", "fromiter", "info", "show_config", "test"}
"""Functions without a value of their own, or that print, or that take no arrays."""


def functions() -> dict[str, Callable[..., Any]]:
    """All functions of ``np`` and ``np.linalg`` that take arrays."""
    found = {}
    for prefix, module in (("", np), ("linalg.", np.linalg)):
        for name in sorted(set(dir(module))):
            member = getattr(module, name)
            if name.startswith("_") or not callable(member) or isinstance(member, (type, np.ufunc)):
                continue
            try:
                parameters = inspect.signature(member).parameters
            except ValueError:
                continue
            if parameters and not FILES & set(parameters) and name not in NOT_CALLED:
                found[prefix + name] = member
    return found


FUNCTIONS = functions()


def verdicts(calls: Iterator[Call]) -> Counter[str]:
    """Count what becomes of calls; those that go wrong stand with their arguments."""
    counted: Counter[str] = Counter()
    for call in calls:
        found = outcome(call)
        if found is not None:
            counted[found if not found.startswith("wrong") else f"{found} of {call}"] += 1
    return counted


def assert_none_wrong(counted: Counter[str]) -> None:
    wrong = [verdict for verdict in counted if verdict.startswith("wrong")]
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    assert_none_wrong(verdicts(function_calls(name, FUNCTIONS[name])))


def listed() -> dict[str, set[str]]:
    """What docs/tape.md says is differentiated of NumPy's spellings, by the name of its list."""
    page = (Path(__file__).parents[2] / "docs" / "tape.md").read_text(encoding="utf-8")
    spellings = page.partition("## NumPy's spellings")[2].partition("Functions that only move")[0]
    return {
        line[2:].partition(":")[0]: set(re.findall(r"`([a-z0-9_.]+)`", line.partition(":")[2]))
        for line in re.sub(r"\n  ", " ", spellings).splitlines()
        if line.startswith("- ")
    }


LISTED = listed()


@pytest.mark.parametrize("name", sorted(LISTED["functions"]))
def test_the_functions_of_the_page_are_differentiated(name: str) -> None:
    assert verdicts(function_calls(name, FUNCTIONS[name]))["right"] > 0


# ------------------------------------------------------------------------------------------------------------- ufuncs

UFUNCS = {name: getattr(np, name) for name in sorted(dir(np)) if isinstance(getattr(np, name), np.ufunc)}
UFUNC_OPTIONS: dict[str, tuple[Any, ...]] = {
    "out": (..., (...,)),
    "where": (MASK, True),
    "dtype": (np.float32, np.float64),
    "casting": ("unsafe",),
    "order": ("F",),
    "subok": (False,),
    "axis": (0,),
    "axes": ([(0,), (0,), ()],),
    "keepdims": (True,),
}


def ufunc_calls(ufunc: Any) -> Iterator[Call]:
    one = [*DATA.values(), POSITIVE + 1.0]
    two = [
        (MATRIX, OTHER),
        (POSITIVE, OTHER),
        (VECTOR, SQUARE),
        (MATRIX, SQUARE),
        (CUBE, CUBE[0].T.copy()),
        (0.5, POSITIVE),
    ]
    two += [
        (POSITIVE, 3.0),
        (POSITIVE, -0.5),
        (VECTOR, VECTOR[::-1] * 1.1),
        (MATRIX, Fixed(VECTOR)),
    ]
    two += [(Fixed(OTHER), MATRIX), (MATRIX, [0.5, 1.5, 2.5]), (np.asarray(0.5), VECTOR)]
    plain = [Call(ufunc, (x,) if not isinstance(x, tuple) else x, {}) for x in (one if ufunc.nin == 1 else two)]
    yield from plain
    for key, values in UFUNC_OPTIONS.items():
        for value in values:
            yield from (call._replace(options={key: value}) for call in plain[:2])
    if ufunc.nin == 2 and ufunc.nout == 1 and ufunc.signature is None:
        yield Call(ufunc.reduce, (MATRIX,), {})
        yield Call(ufunc.accumulate, (MATRIX,), {})
        yield Call(ufunc.outer, (VECTOR, VECTOR + 1.0), {})
        yield Call(ufunc.reduceat, (VECTOR, [0, 1]), {})
        yield Call(lambda x, y: ufunc.at(x, [0, 0], y), (Fixed(VECTOR), np.asarray(0.5)), {})
        yield Call(lambda x: ufunc.at(x, [0, 0], 0.5), (VECTOR,), {})


@pytest.mark.parametrize("name", UFUNCS)
def test_ufuncs(name: str) -> None:
    assert_none_wrong(verdicts(ufunc_calls(UFUNCS[name])))


# ------------------------------------------------------------------------------------------------ methods, attributes

METHODS = sorted(name for name in dir(np.ndarray) if not name.startswith("_"))
METHOD_ARGUMENTS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "argpartition": ((1,),),
    "astype": ((np.float32,), (np.float64,), (np.int64,), (np.complex128,), (">f8",), (">c16",)),
    "choose": (([1, 2],),),
    "clip": ((-0.3, 0.4), (None, 0.4), (OTHER,)),
    "compress": (([True, False], 0), ([True, False, True], 1)),
    "dot": ((SQUARE,), (VECTOR,), (2.0,)),
    "fill": ((0.5,),),
    "getfield": ((np.float64,),),
    "item": ((), (0,)),
    "partition": ((1,),),
    "put": (([0], [0.5]),),
    "repeat": ((2,), ([1, 2], 0)),
    "reshape": ((3, 2), ((3, 2),), (-1,), ([6],)),
    "resize": ((3, 2),),
    "searchsorted": ((0.5,),),
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
"""The keywords of methods, whose values are those of `OPTIONAL`."""


def method_calls(name: str) -> Iterator[Call]:
    def call(x: Any, *arguments: Any, **options: Any) -> Any:
        member = getattr(x, name)
        return member(*arguments, **options) if callable(member) else member

    for x in (MATRIX, CUBE, VECTOR, np.asarray([[0.7]])):
        for arguments in METHOD_ARGUMENTS.get(name, ((),)):
            yield Call(call, (x, *arguments), {})
            for key in METHOD_OPTIONS:
                yield from (Call(call, (x, *arguments), {key: value}) for value in OPTIONAL[key])
        yield from (Call(call, (x, axis), {}) for axis in (0, 1, (0, 1), -1))


@pytest.mark.parametrize("name", METHODS)
def test_methods_and_attributes(name: str) -> None:
    assert_none_wrong(verdicts(method_calls(name)))


# ------------------------------------------------------------------------------------------------ operators, indexing

BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)
UNARY = ("neg", "pos", "abs", "invert", "not_", "truth", "index")


def operator_calls() -> Iterator[Call]:
    pairs = [
        (POSITIVE, OTHER),
        (MATRIX, 2.1),
        (2.1, POSITIVE),
        (MATRIX, 2),
        (POSITIVE, Fixed(OTHER)),
        (Fixed(POSITIVE), OTHER),
    ]
    pairs += [
        (MATRIX, SQUARE),
        (VECTOR, VECTOR + 1.0),
        (CUBE, CUBE[0].T.copy()),
        (np.float64(1.5), POSITIVE),
        (MATRIX, np.float32(1.5)),
    ]
    pairs += [(MATRIX, True), (MATRIX, 1j), (1j, MATRIX), ([1.0, 2.0, 3.0], MATRIX), (MATRIX, [1.0, 2.0, 3.0])]
    for name in BINARY:
        function = getattr(operator, name)
        yield from (Call(function, pair, {}) for pair in pairs)
        inplace = getattr(operator, f"i{name.rstrip('_')}", None)
        if inplace is not None:
            yield Call(inplace, (Fixed(POSITIVE), OTHER), {})
            yield Call(lambda x, y, inplace=inplace: inplace(x + 0.0, y), (POSITIVE, OTHER), {})
    yield from (Call(divmod, pair, {}) for pair in pairs)
    for name in UNARY:
        yield from (Call(getattr(operator, name), (x,), {}) for x in (MATRIX, VECTOR, np.asarray(0.7)))
    for function in (
        sum,
        max,
        min,
        sorted,
        list,
        tuple,
        len,
        reversed,
        enumerate,
        any,
        all,
        hash,
        str,
        repr,
        bool,
        round,
    ):
        yield Call(lambda x, function=function: _listed(function(x)), (VECTOR,), {})


def _listed(result: Any) -> Any:
    if isinstance(result, (str, bytes)):
        return len(result) * 0
    if isinstance(result, (builtins.reversed, enumerate)):
        return [x[1] if isinstance(x, tuple) else x for x in result]
    return result


def test_operators() -> None:
    assert_none_wrong(verdicts(operator_calls()))


KEYS: dict[str, Any] = {
    "integer": 1,
    "negative": -1,
    "numpy integer": np.int64(1),
    "slice": slice(None, None, -1),
    "step": (slice(None), slice(0, None, 2)),
    "new axis": (None, slice(None), None, 0),
    "ellipsis": (..., 1),
    "list": [0, 0, 1],
    "list of lists": [[0, 1], [1, 1]],
    "array": np.asarray([1, 1, 0]),
    "array of negative numbers": (slice(None), np.asarray([-1, 0, -1])),
    "two arrays": (np.asarray([0, 1, 1]), np.asarray([2, 0, 0])),
    "open mesh": np.ix_([0, 1, 1], [2, 0]),
    "mask": MATRIX > 0,
    "mask of rows": np.asarray([True, False]),
    "list mask": [True, False],
    "mask and slice": (np.asarray([False, True]), slice(1, None)),
    "array and new axis": (None, np.asarray([1, 1])),
    "array and slice": (np.asarray([1, 0, 1]), slice(None, 2)),
    "True": True,
    "empty": np.asarray([], dtype=np.int64),
    "nothing": (),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_indexing(key: Any) -> None:
    assert outcome(Call(lambda x: x[key], (MATRIX,), {})) in {"right", "constant"}
    assert outcome(Call(lambda x: (x * x)[key] * x[key], (MATRIX,), {})) in {"right", "constant"}


def test_indexing_by_what_is_compared_or_sorted() -> None:
    assert outcome(Call(lambda x: x[x > 0.2] ** 2, (MATRIX,), {})) == "right"
    assert outcome(Call(lambda x: x[np.argsort(x)] * np.arange(3.0), (VECTOR,), {})) == "right"
    assert outcome(Call(lambda x: x[x.argmax()] ** 2, (VECTOR,), {})) == "right"


# ---------------------------------------------------------------------- what would take a varying number for a constant


def assign(x: Any) -> Any:
    z = np.zeros(3)
    z[0] = x[0]
    return z


def assign_several(x: Any) -> Any:
    z = np.zeros(3)
    z[:] = x
    return z


def add_in_place(x: Any) -> Any:
    z = np.zeros(3)
    z += x
    return z


def copy_to(x: Any) -> Any:
    z = np.zeros(3)
    np.copyto(z, x)
    return z


def put(x: Any) -> Any:
    z = np.zeros(3)
    z.put([0], x[0])
    return z


def fill(x: Any) -> Any:
    z = np.zeros(3)
    z.fill(x[0])
    return z


LEAKS: dict[str, Callable[[Any], Any]] = {
    "assignment to an entry": assign,
    "assignment to a slice": assign_several,
    "in place": add_in_place,
    "copyto": copy_to,
    "put": put,
    "fill": fill,
    "out": lambda x: np.add(x, x, out=np.zeros(3)),
    "where and out": lambda x: np.add(x, x, where=[True, False, True], out=np.zeros(3)),
    "math.sqrt": lambda x: math.sqrt(x @ x),
    "math.fsum": math.fsum,
    "float": lambda x: float(x[0]),
    "complex": lambda x: abs(complex(x[0])),
    "item": lambda x: x[0].item(),
    "tolist": lambda x: np.asarray(x.tolist()),
    "np.float64": lambda x: np.float64(x[0]),
    "np.array": np.array,
    "np.asarray": np.asarray,
    "array times itself": lambda x: x * np.asarray(x),
    "array of entries": lambda x: np.array([x[0], x[1]]),
    "array of entries and numbers": lambda x: np.array([x[0], 1.0]),
    "mean of a list": lambda x: np.mean([x[0], x[1]]),
    "sum of a list": lambda x: np.sum([x[0], x[1]]),
    "full": lambda x: np.full(3, x[0]),
    "linspace": lambda x: np.linspace(0.0, x[0], 3),
    "arange": lambda x: np.arange(0.0, x[2], 0.4),
    "fromiter": lambda x: np.fromiter((v for v in x), dtype=np.float64),
    "vectorize": np.vectorize(math.sin),
    "apply_along_axis": lambda x: np.apply_along_axis(lambda row: row[0], 0, x),
    "ascontiguousarray": np.ascontiguousarray,
    "from_dlpack": np.from_dlpack,
    "memoryview": lambda x: np.asarray(memoryview(x)),
    "random": lambda x: np.random.default_rng(0).normal(x),
    "polyval": lambda x: np.polyval(x, 0.5),
    "interp": lambda x: np.interp(0.5, [0.0, 1.0, 2.0], x),
    "fft": lambda x: np.abs(np.fft.fft(x)),
    "complex number": lambda x: np.abs(x * 1j),
}


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
def test_nothing_that_varies_becomes_a_constant(leak: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, NotImplementedError, AttributeError, ValueError)) as caught:
        pnce.grad(lambda x: np.sum(leak(x)) * 1.0)(VECTOR)
    assert "0-d array" not in str(caught.value)


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


def test_the_functions_of_the_namespace_that_numpy_has_under_other_names() -> None:
    """What array-API code calls on a recorded array's own namespace, beside the operators."""
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "a product of nothing": lambda xp, x: xp.prod(x[:0, :], axis=0) * x[0],
        "full": lambda xp, x: xp.full((2,), x[0, 0]),
        "full by a number": lambda xp, x: xp.full(2, x[0, 1]),
        "a ufunc": lambda xp, x: xp.hypot(x, x + 1.0),
        "the sum of a number": lambda xp, x: xp.cumulative_sum(x[0, 1]),
        "repeat": lambda xp, x: xp.repeat(x, 2, axis=1),
    }
    for name, function in functions.items():
        gradient = pnce.grad(lambda x, f=function: np.sum(f(x.__array_namespace__(), x) ** 2))(MATRIX)
        for index in np.ndindex(*MATRIX.shape):
            step = np.zeros_like(MATRIX)
            step[index] = 1e-6
            ahead, behind = (np.sum(function(np, MATRIX + sign * step) ** 2) for sign in (1, -1))
            assert gradient[index] == pytest.approx((ahead - behind) / 2e-6, rel=1e-6, abs=1e-8), name


def test_arrays_named_by_keyword_are_differentiated() -> None:
    chosen = [True, False, True]
    for function in (
        lambda x: np.roll(a=x, shift=1) * x,
        lambda x: np.compress(condition=chosen, a=x[0]) ** 2,
        lambda x: np.compress(chosen, x[0]) ** 2,
    ):
        assert outcome(Call(function, (MATRIX,), {})) == "right"


def test_an_index_that_does_not_vary() -> None:
    numbers = [1.0, 2.0, 3.0]
    gradient = pnce.grad(lambda x: np.sum(x * numbers[(x[0] > 0).astype(np.int64)]))(VECTOR)
    np.testing.assert_array_equal(gradient, np.full(3, numbers[int(VECTOR[0] > 0)]))


def test_full_like_of_an_entry_is_differentiated() -> None:
    assert outcome(Call(lambda x: np.full_like(x, x[0]) * x, (VECTOR,), {})) == "right"


def test_what_is_constant_may_become_a_number() -> None:
    def loss(x: Any) -> Any:
        held = pnce.stop_gradient(x)
        assert float(held[0]) == VECTOR[0]
        assert held[0].item() == VECTOR[0]
        assert math.sqrt(held @ held) == math.sqrt(VECTOR @ VECTOR)
        np.testing.assert_array_equal(np.asarray(held), VECTOR)
        np.testing.assert_array_equal(np.asarray(x > 0), VECTOR > 0)
        assert f"{x[0]:.2f}" == "0.29"
        assert int(x[2] * 10) == 9
        return np.sum(x)

    np.testing.assert_array_equal(pnce.grad(loss)(VECTOR), np.ones(3))


# ------------------------------------------------------------------------------------------------------- awkward points


@pytest.mark.parametrize(
    ("function", "at", "wanted"),
    [
        (lambda x: x**0, 0.0, 0.0),
        (lambda x: x**2, 0.0, 0.0),
        (lambda x: x**1, 0.0, 1.0),
        (lambda x: x**2.0, 0.0, 0.0),
        (lambda x: x ** np.asarray(0.0), 0.0, 0.0),
        (lambda x: x ** np.asarray(2.0), 0.0, 0.0),
        (lambda x: 0.0**x, 1.0, 0.0),
        (lambda x: np.zeros(()) ** x, 2.0, 0.0),
        (lambda x: np.hypot(x, 0.0), 0.0, 0.0),
        (lambda x: np.hypot(x, x), 0.0, 0.0),
        (np.abs, 0.0, 0.0),
        (np.linalg.norm, 0.0, 0.0),
        (lambda x: np.prod(np.stack([x, x, x + 1.0])), 0.0, 0.0),
        (lambda x: np.prod(np.stack([x, x + 2.0])), 0.0, 2.0),
        (lambda x: np.maximum(x, 0.0), 0.0, 0.5),
    ],
)
def test_derivatives_where_formulas_divide_by_zero(function: Callable[[Any], Any], at: float, wanted: float) -> None:
    with np.errstate(all="raise"):
        gradient = pnce.grad(lambda x: np.sum(function(x)) * 1.0)(np.asarray(at))
    assert float(gradient) == wanted


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.prod(x, axis=1),
        lambda x: np.sort(x, axis=0) ** 2,
        lambda x: x[[0, 0, 1]] ** 2,
        lambda x: np.einsum("ij,kj->ik", x, x),
        lambda x: np.linalg.norm(x, axis=1),
        lambda x: np.take(x, [0, 3, 3]) ** 3,
        lambda x: np.diff(x, axis=1) ** 2,
        lambda x: np.cumsum(x) ** 2,
        lambda x: np.remainder(x * x, 0.3),
    ],
)
def test_second_order(function: Callable[[Any], Any]) -> None:
    def first(x: Any) -> Any:
        weights = np.cos(np.arange(MATRIX.size, dtype=np.float64)).reshape(MATRIX.shape)
        return np.sum(pnce.grad(lambda y: np.sum(function(y) ** 2))(x) * weights)

    gradient = pnce.grad(first)(MATRIX)
    for index in np.ndindex(*MATRIX.shape):
        ahead, behind = MATRIX.copy(), MATRIX.copy()
        ahead[index] += 1e-5
        behind[index] -= 1e-5
        assert gradient[index] == pytest.approx((first(ahead) - first(behind)) / 2e-5, rel=1e-5, abs=1e-6)


def test_the_page_names_what_is_differentiated() -> None:
    """docs/tape.md lists the names of the tables, no more and no fewer."""
    assert LISTED["functions"] == set(numpy_functions.FUNCTIONS) | numpy_functions.MOVES
    assert LISTED["methods"] == set(numpy_functions.METHODS) | numpy_functions.MOVING_METHODS


@pytest.mark.parametrize("name", sorted(LISTED["methods"]))
def test_the_methods_of_the_page_are_differentiated(name: str) -> None:
    assert verdicts(method_calls(name))["right"] > 0


@pytest.mark.parametrize("name", sorted(LISTED["ufuncs"]))
def test_the_ufuncs_of_the_page_are_differentiated(name: str) -> None:
    assert verdicts(ufunc_calls(UFUNCS[name]))["right"] > 0


def report() -> None:
    """Print how many calls are right, constant, and refused."""
    tables = {
        "functions": [function_calls(name, function) for name, function in FUNCTIONS.items()],
        "ufuncs": [ufunc_calls(ufunc) for ufunc in UFUNCS.values()],
        "methods": [method_calls(name) for name in METHODS],
        "operators": [operator_calls()],
    }
    for title, tables_of_calls in tables.items():
        counted: Counter[str] = Counter()
        for calls in tables_of_calls:
            counted += Counter({key.split(":")[0].split(" ")[0]: n for key, n in verdicts(calls).items()})
        sys.stdout.write(f"{title:10} {dict(counted)}\n")


if __name__ == "__main__":
    report()
