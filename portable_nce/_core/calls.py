"""Calls of losses that are programs: after a few calls of a kind, only recorded array operations run.

The kind of a call is everything on which its operations depend, except the entries of arrays: function, options, which
arrays are the same, and what an adapter says of them. The first call of a kind runs as it is written. The second, of
large arrays the eighth, is recorded as well, and the program is kept if its results are those of the call, bit for bit.
A later call whose entries fail a guard runs as it is written, and a further program is recorded.

Calls that something observes (a compiler, a transform, `explain`), calls of ranks and of functions of users, and higher
derivatives run as they are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import wraps
from operator import itemgetter
from types import FunctionType
from typing import Any, NamedTuple

from .autodiff import stop_gradient, value_and_grad
from .checks import all_entries, explained, readable_entry
from .equality import EqualByContents, is_fixed
from .namespace import is_array, is_compiling, is_number, namespace_of
from .notes import listens
from .programs import GuardError, Program
from .protocol import VARIES, Array
from .registry import adapter_of
from .tracing import is_tracing, traced
from .types import Parameters, Result

Arrays = tuple[Array, ...]

MOST, MOST_PROGRAMS = 512, 4
"""Largest numbers of kinds, and of programs of one kind, which differ in the answers of their guards."""

SMALL, TRIAL_OF_SMALL, TRIAL = 2**17, 2, 8
"""Number of entries below which arrays are small; the call of a kind that is recorded, of small arrays and of others.

Recording takes the time of two calls, which a size that comes a few times would not repay.
"""

KINDS: dict[Hashable, Kind] = {}
"""At most `MOST` kinds of calls."""

enabled = True
"""Whether calls may be programs."""


def programmed(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Function of arrays whose calls may be programs, and that raises helpful errors for arguments that do not fit."""

    @wraps(function)
    def call(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        if is_compiling() or is_tracing() or listens() or not enabled:
            return function(*args, **options)
        found = _kind_of(function, args, options)
        if found is None:
            return function(*args, **options)
        key, arrays, states = found
        kind = KINDS.get(key)
        if kind is None:
            if len(KINDS) >= MOST:
                KINDS.clear()
            KINDS[key] = kind = Kind(function, args, options, arrays, states)
        result: Result = kind(arrays)
        return result

    return explained(call)


class _NoKindError(Exception):
    """An argument that no program has."""


_FIXED = frozenset({str, bool, type(None)})
_ways: dict[type, str] = {}


def _way(x: Any) -> str:
    """How an argument enters the kind of a call."""
    if is_number(x):
        return "number"
    if is_array(x):
        return "array"
    if type(x) in {list, tuple}:
        return "sequence"
    named = isinstance(x, EqualByContents) or (isinstance(x, tuple) and hasattr(x, "_fields"))
    return "record" if named and type(x).__module__.startswith(_PACKAGE) else "other"


def _describe(x: Any, facts: list[Any], arrays: list[Array]) -> None:
    """Append the facts of an argument, and its arrays; of each array that occurs several times, only the first."""
    kind = type(x)
    if kind in _FIXED:
        facts += (x, kind)
        return
    way = _ways.get(kind)
    if way is None:
        way = _ways[kind] = _way(x)
    if way == "array":
        _describe_array(x, facts, arrays)
        return
    facts.append(kind)
    if way == "number":
        facts.append(x or repr(x))  # 0.0 == -0.0
    elif way == "sequence":
        facts.append(len(x))
        for item in x:
            _describe(item, facts, arrays)
    elif way == "record":
        for name in x._fields:
            _describe(getattr(x, name), facts, arrays)
    elif isinstance(x, FunctionType) and is_fixed(x):
        facts.append(x)
    else:
        raise _NoKindError


def _describe_array(x: Array, facts: list[Any], arrays: list[Array]) -> None:
    for k, other in enumerate(arrays):
        if other is x:
            facts.append(k)
            return
    facts.append(len(arrays))
    arrays.append(x)


_PACKAGE = __name__.removesuffix("_core.calls")


def _kind_of(
    function: Any, args: Sequence[Any], options: dict[str, Any]
) -> tuple[Hashable, list[Array], tuple[int, ...]] | None:
    """Key of the kind of a call, its arrays, and their states; None if it cannot be a program."""
    facts: list[Any] = [function, len(args)]
    arrays: list[Array] = []
    try:
        for x in args:
            _describe(x, facts, arrays)
        for name, x in options.items():
            facts.append(name)
            _describe(x, facts, arrays)
        if not arrays:
            return None
        adapter = adapter_of(arrays[0])
        observed = adapter.observed(tuple(arrays)) if adapter.mode == "eager" else None
        if observed is None:
            return None
        key = (adapter, observed, *facts)
        hash(key)
    except (_NoKindError, AttributeError, RuntimeError, TypeError, ValueError):  # the call raises a better error
        return None
    return key, arrays, observed[1]


def _with_arrays(x: Any, function: Callable[[Any], Any]) -> Any:
    """Argument with a function applied to its arrays, or their places; a copy of what its owner could change."""
    way = "array" if type(x) is _Place else _ways.get(type(x))
    if way == "array":
        return function(x)
    if way == "sequence":
        items = [_with_arrays(item, function) for item in x]
        return items if type(x) is list else tuple(items)
    if way == "record":
        fields = [(name, getattr(x, name)) for name in x._fields]
        changed = {name: new for name, item in fields if (new := _with_arrays(item, function)) is not item}
        return x._replace(**changed) if changed or isinstance(x, EqualByContents) else x
    return x


class _Place(NamedTuple):
    """Place of an array in a call."""

    number: int


class Kind:
    """Calls of one kind, and their programs."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        options: dict[str, Any],
        arrays: Sequence[Array],
        states: tuple[int, ...],
    ) -> None:
        def place(x: Array) -> _Place:
            return _Place(next(k for k, y in enumerate(arrays) if y is x))

        self.function, self.states, self.adapter = function, states, adapter_of(arrays[0])
        self.args = [_with_arrays(x, place) for x in args]
        self.options = {name: _with_arrays(x, place) for name, x in options.items()}
        self.programs: list[tuple[Program, Callable[..., Arrays], Callable[[Arrays], Any]]] = []
        is_small = sum(math.prod(x.shape) for x in arrays) < SMALL
        self.is_refused, self.number, self.next_trial = False, 0, TRIAL_OF_SMALL if is_small else TRIAL
        self.order = sorted(range(len(arrays)), key=lambda k: -states[k])
        self.place = [self.order.index(k) for k in range(len(arrays))]

    def __call__(self, arrays: Sequence[Array]) -> Any:
        """Result of a call, by a program if one applies."""
        with self.adapter.full_precision(arrays[0]):
            for k, (program, bound, formed) in enumerate(self.programs):
                try:
                    if any(self.states):
                        result = formed(bound(_Run(self, program), *[arrays[k] for k in self.order]))
                    else:
                        result = formed(program.forward(*arrays)[0])
                except GuardError:
                    continue
                if k:
                    self.programs[:] = [self.programs[k], *self.programs[:k], *self.programs[k + 1 :]]
                return result
        if VARIES in self.states:
            result = self.as_written(self.adapter.entering(arrays, self.states))
            result = _each(lambda x: self.adapter.leaving(x, arrays), result)
        else:
            result = self.as_written(arrays)
        self.number += 1
        if self.number >= self.next_trial and len(self.programs) < MOST_PROGRAMS:
            self.record(arrays, result)
            if self.is_refused:  # it may have warned of entries
                self.next_trial = 8 * self.number
        return result

    def as_written(self, arrays: Sequence[Array]) -> Any:
        """Result of the function itself."""

        def array(place: _Place) -> Array:
            return arrays[place.number]

        args = [_with_arrays(x, array) for x in self.args]
        return self.function(*args, **{name: _with_arrays(x, array) for name, x in self.options.items()})

    def record(self, arrays: Sequence[Array], result: Any) -> None:
        """Keep a program if it gives the result of the function itself."""
        plain: list[Any] = [x.__recorded__ if hasattr(x, "__recorded__") else stop_gradient(x) for x in arrays]
        program = None
        with suppress(Exception), self.adapter.full_precision(arrays[0]):  # the call itself has its result
            program = traced(lambda *arrays: self.as_written(arrays), plain, self.states)
            if program is not None and not all(map(_are_equal, program.forward(*plain)[0], _parts(result))):
                program = None
        self.is_refused = program is None
        if program is not None:
            self.programs.insert(0, (program, self._bound(program, len(_parts(result))), _rebuilt(result)))

    def _bound(self, program: Program, count: int) -> Callable[..., Arrays]:
        """Differentiable function of a run and arrays: the results, constants but for the one that has a gradient."""
        bound, stop = self.adapter.replayed(_forth, _back, kept=program.n_kept), self.adapter.stop_gradient
        varying = () if program.backward is None else (program.main,)
        if len(varying) == count:
            return bound
        return lambda run, *arrays: tuple([x if k in varying else stop(x) for k, x in enumerate(bound(run, *arrays))])

    def pulled(self, arrays: Sequence[Array], main: int, cotangent: Array) -> Sequence[Array]:
        """Cotangents of the arrays that need one, by differentiating the function itself."""
        taken = [k for k, state in enumerate(self.states) if state]
        varying = [k for k in self.order if self.states[k] == VARIES]

        def product(*values: Array) -> Array:
            given = dict(zip(taken, values, strict=True))
            result = _parts(self.as_written([given.get(k, x) for k, x in enumerate(arrays)]))[main]
            return namespace_of(result).sum(result * cotangent)

        of_varying = value_and_grad(product, argnums=tuple([taken.index(k) for k in varying]))
        gradients: Sequence[Array] = of_varying(*[arrays[k] for k in taken])[1]
        return gradients


class _Run:
    """A run of a program, with the numbers that its pullback needs."""

    __slots__ = ("kind", "numbers", "program")

    def __init__(self, kind: Kind, program: Program) -> None:
        self.kind, self.program, self.numbers = kind, program, ()


def _forth(run: _Run, *ordered: Array) -> Arrays:
    results, kept, run.numbers = run.program.forward(*[ordered[k] for k in run.kind.place])
    return (*results, *kept)


def _back(run: _Run, ordered: Arrays, outputs: Arrays, cotangents: Arrays) -> Sequence[Array | None]:
    kind, program, count = run.kind, run.program, len(cotangents)
    cotangent = cotangents[program.main]
    arrays, is_whole = [ordered[k] for k in kind.place], len(outputs) == count + program.n_kept
    if is_whole and program.backward is not None and kind.adapter.is_plain((*ordered, *outputs, cotangent)):
        try:
            found = program.backward(arrays, outputs[:count], outputs[count:], run.numbers, cotangent)
        except GuardError:
            pass
        else:
            of_varying = [found[k] for k in kind.order if kind.states[k] == VARIES]
            # PyTorch refuses results that are an argument itself; they share no memory with it either.
            return [x if x is None or x is not cotangent else x * 1 for x in of_varying]
    return kind.pulled(arrays, program.main, cotangent)


def _parts(result: Any) -> list[Array]:
    """The arrays of a result."""
    return [x for x in result if x is not None] if isinstance(result, tuple) else [result]


def _each(function: Callable[[Array], Array], result: Any) -> Any:
    """Result with a function applied to its arrays, also to those of records among its items."""
    if isinstance(result, tuple):
        return getattr(type(result), "_make", tuple)([_each(function, x) for x in result])
    return function(result) if is_array(result) else result


def _rebuilt(result: Any) -> Callable[[Arrays], Any]:
    """Function that makes such a result of its arrays."""
    if not isinstance(result, tuple):
        return itemgetter(0)
    made: Callable[..., Any] = getattr(type(result), "_make", tuple)
    places = [None if x is None else sum(y is not None for y in result[:k]) for k, x in enumerate(result)]
    return lambda arrays: made([None if k is None else arrays[k] for k in places])


def _are_equal(found: Array, wanted: Array) -> bool:
    """Whether two results are equal where they can be read; NaN equals itself."""
    plain: Any = getattr(wanted, "__recorded__", wanted)
    wanted = stop_gradient(plain)
    xp = namespace_of(wanted)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    same = xp.logical_or(found == wanted, xp.logical_and(found != found, wanted != wanted))  # noqa: PLR0124  (NaN)
    return readable_entry(xp.reshape(xp.all(same), ()), all_entries) in {None, 1.0}
