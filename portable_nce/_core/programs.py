"""Programs: the array operations of a function, written down once and run from then on without the function.

A function of arrays of some shapes calls the same array operations each time; all else that it does is Python. A
*trace* calls it with arrays that write down what is done with them, and makes a function of these lines alone. What is
asked of entries ("is the largest below 30?") is a line too: where the answer is another one, the program does not
serve, and returns None. A function that does what cannot be written down has no program: it takes an array that it was
not given, makes a decision by an entry in another way, or visits several blocks.

Of the lines, those are left that a run needs: what depends on shapes alone is computed once, what stands twice is
computed once in a run, and what nobody uses is not computed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from threading import local
from typing import Any, NamedTuple, NoReturn

from .namespace import is_array, namespace_of, namespaces
from .numerics import itemsize
from .protocol import Array, Namespace
from .registry import adapter_of, adapters

Arrays = tuple[Array, ...]
Program = Callable[..., Arrays | None]
"""Of the numbers and arrays of the function to what it returns, or None."""

KERNELS = frozenset({"exp_in_place", "row_dots", "sum_along", "fill_diagonal", "fill_columns"})
"""Functions of adapters that can be written down."""

LARGE = 2**14
"""Entries of an array that is not kept until a program ends."""

_KEPT = 2**16
"""Bytes of an array that is kept with a program at most."""

_IN_PLACE = frozenset({"iadd", "isub", "imul", "itruediv", "exp_in_place", "fill_diagonal", "fill_columns"})
"""Calls that may write into their first argument, and return it."""
_VIEWS = frozenset({"T", "getitem", "reshape", "expand_dims", "squeeze", "permute_dims", "matrix_transpose"})
_VIEWS |= {"broadcast_to", "astype", "flip", "moveaxis"}
"""Calls whose result may have the memory of their first argument."""
_OF_SHAPES = frozenset({"zeros_like", "ones_like", "full_like"})
"""Calls whose result does not depend on the entries of their first argument."""


class NotTraceableError(Exception):
    """A function does what cannot be written down."""


def traced(
    function: Callable[..., Arrays], numbers: Sequence[float | None], arrays: Sequence[Array]
) -> tuple[Program | None, Arrays]:
    """The program of a function of numbers and arrays without derivatives, or None; and what it returns for these."""
    trace, before = _Trace(), getattr(_current, "trace", None)
    given = [trace.named(x) for x in (*numbers, *arrays)]
    _current.trace = trace
    try:
        outputs = function(*[x if x.value is not None else None for x in given])
        return trace.program(len(given), outputs), tuple(map(_value, outputs))
    except (NotTraceableError, AttributeError, TypeError, ValueError):  # libraries refuse arrays that are not theirs
        pass
    finally:
        _current.trace = before
    return None, function(*numbers, *arrays)


_current = local()
"""Holds the trace of this thread."""


class _Line(NamedTuple):
    """One call: a function and its name, the places of its arguments among all values, and that of its result.

    Without one, the function raises an error where the program does not serve.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[int, ...]
    result: int | None


class _Trace:
    """The lines of a program so far, and all values that are the same in each run, in their places.

    Attributes
    ----------
    large : set of int
        Places of large arrays.
    fixed : set of int
        Places of what is the same in each run: what is no array, and small arrays that are made of it.
    memory : list of int
        Of each place, the first whose memory it may share.
    written : set of int
        First places of memory that is written.
    """

    def __init__(self) -> None:
        self.lines: list[_Line] = []
        self.values: list[Any] = []
        self.large: set[int] = set()
        self.fixed: set[int] = set()
        self.memory: list[int] = []
        self.written: set[int] = set()
        self.literals: dict[tuple[type, str], int] = {}

    def added(self, value: Any) -> int:
        """The place of another value."""
        self.values.append(value)
        self.memory.append(len(self.memory))
        return len(self.values) - 1

    def named(self, value: Any) -> Any:
        """A value that differs from run to run, with a place of its own."""
        place = self.added(None)
        if not is_array(value):
            return TracedNumber(self, place, value)
        if math.prod(value.shape) >= LARGE:
            self.large.add(place)
        return _kind_of(value)(self, place, value)

    def place(self, value: Any) -> int:
        """The place of an argument."""
        if isinstance(value, _Named):
            return value.place
        if type(value) in {list, tuple} and any(isinstance(x, _Named) for x in value):
            kind = type(value)
            return int(self.assigned(0, kind.__name__, lambda *items: kind(items), *value).place)
        if is_array(value):
            raise NotTraceableError("an array that was not given")
        key = type(value), repr(value)
        if key not in self.literals:
            self.literals[key] = self.added(value)
            self.fixed.add(self.literals[key])
        return self.literals[key]

    def assigned(self, result: Any, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Add the line of a call whose result has been computed; of several arrays, a line takes each."""
        places = tuple([self.place(x) for x in arguments])
        found = self.named(0 if isinstance(result, tuple) else result)
        function, text = (partial(function, **options), f"{name} {options}") if options else (function, name)
        self.lines.append(_Line(text, function, places, found.place))
        if name in _IN_PLACE:
            self.written.add(self.memory[places[0]])
        if name in _IN_PLACE or name in _VIEWS or isinstance(result, tuple) or isinstance(function, itemgetter):
            self.memory[found.place] = self.memory[places[0]]
        if isinstance(result, tuple):
            return tuple([self.assigned(x, f"item {k}", itemgetter(k), found) for k, x in enumerate(result)])
        if self.fixed.issuperset(places[1:] if name in _OF_SHAPES else places) and _can_be_kept(result):
            self.values[found.place] = result
            self.fixed.add(found.place)
        return found

    def called(self, name: str, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """The result of a function; a call that returns arrays is a line."""
        if any(isinstance(x, _Named) for x in options.values()):
            raise NotTraceableError("an array as an option")
        result = function(*map(_value, args), **options)
        if not is_array(result) and not isinstance(result, tuple):
            return result  # a fact about a dtype
        return self.assigned(result, name, function, *args, **options)

    def asked(self, function: Callable[..., Any], *arguments: Any) -> bool:
        """The answer to a question, which is a line."""
        answer = bool(function(*map(_value, arguments)))
        places = tuple([self.place(x) for x in arguments])
        self.lines.append(_Line(function.__name__, partial(_expecting, answer, function), places, None))
        return answer

    def needed(self, results: Sequence[int]) -> list[_Line]:
        """The lines that a run needs for its results."""
        written = self.written | {self.memory[k] for k in results}  # a result belongs to the caller, who may write
        same: dict[int, int] = {}
        first: dict[Any, int] = {}
        lines = []
        for line in self.lines:
            places = tuple([same.get(k, k) for k in line.arguments])
            made = () if line.result is None else (line.result,)
            shared = any(self.memory[k] in written for k in (*places, *made))
            if line.result is None or shared or line.result in self.large - self.fixed:
                lines.append(line._replace(arguments=places))
            elif (line.name, places) in first:
                same[line.result] = first[line.name, places]
            else:
                first[line.name, places] = line.result
                if line.result not in self.fixed:
                    lines.append(line._replace(arguments=places))
        used, found = {*results}, []
        for line in reversed(lines):
            if line.result is None or line.result in used or self.memory[line.result] in self.written:
                used.update(line.arguments)
                found.append(line)
        return found[::-1]

    def program(self, inputs: int, outputs: Sequence[Any]) -> Program:
        """The function that runs the lines, and releases each large array after its last use."""
        results = [self.place(x) for x in outputs]
        used, lines = {*results}, self.needed(results)
        steps: list[tuple[Callable[..., Any], int, int | None, Sequence[int], int]] = []
        for line in reversed(lines):
            own = self.large & {*line.arguments, -1 if line.result is None else line.result}
            steps += [(_released, place, None, (), place) for place in sorted(own - used)]
            used |= own
            first, second, *rest = (*line.arguments, None) if len(line.arguments) == 1 else line.arguments
            steps.append((line.function, first, second, rest, first if line.result is None else line.result))
        steps.reverse()
        taken = {*results}.union(*(line.arguments for line in lines)) - {line.result for line in lines}
        fixed = [value if k in taken else None for k, value in enumerate(self.values)][inputs:]

        def program(*given: Any) -> Arrays | None:
            values = [*given, *fixed]
            try:
                for function, first, second, rest, result in steps:  # no function for each: calls are most of the time
                    if second is None:
                        values[result] = function(values[first])
                    elif rest:
                        values[result] = function(values[first], values[second], *[values[k] for k in rest])
                    else:
                        values[result] = function(values[first], values[second])
            except _OtherAnswerError:
                return None
            return tuple([values[k] for k in results])

        return program


class _OtherAnswerError(Exception):
    """An entry answers a question otherwise than when the program was traced."""


def _expecting(answer: bool, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: FBT001
    """The first argument, if the function answers as expected."""
    if bool(function(*arguments)) is not answer:
        raise _OtherAnswerError
    return arguments[0]


def _released(_: Array) -> None:
    """Nothing, in the place of an array."""


def _can_be_kept(x: Any) -> bool:
    return is_array(x) and math.prod(x.shape) * itemsize(x) <= _KEPT


def _value(x: Any) -> Any:
    """What stands behind a traced argument."""
    if isinstance(x, _Named):
        return x.value
    return type(x)(map(_value, x)) if type(x) in {list, tuple} else x


def _refused(*_: Any) -> NoReturn:
    raise NotTraceableError("a decision by an entry")


class _Named:
    """A value with a place in a program."""

    __slots__ = ("place", "trace", "value")
    __float__ = __int__ = __index__ = __len__ = __iter__ = _refused

    def __init__(self, trace: _Trace, place: int, value: Any) -> None:
        self.trace, self.place, self.value = trace, place, value


class TracedArray(_Named):
    """An array that writes down what is done with it."""

    __slots__ = ()
    __bool__ = _refused

    shape = property(lambda self: self.value.shape)
    dtype = property(lambda self: self.value.dtype)
    device = property(lambda self: self.value.device)
    T = property(lambda self: self.trace.assigned(self.value.T, "T", attrgetter("T"), self))

    def __getitem__(self, index: Any) -> Any:
        return self.trace.assigned(self.value[_value(index)], "getitem", operator.getitem, self, index)


class TracedNumber(_Named):
    """A number that is given or read, and writes down what is asked of it."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return bool(self.trace.asked(bool, self))


def _operation(function: Callable[..., Any], *, turned: bool = False) -> Callable[..., Any]:
    def apply(*operands: Any) -> Any:
        ordered = operands[::-1] if turned else operands
        return operands[0].trace.assigned(function(*map(_value, ordered)), function.__name__, function, *ordered)

    return apply


def _question(function: Callable[..., Any]) -> Callable[..., bool]:
    return lambda *operands: operands[0].trace.asked(function, *operands)


for _kind in (TracedArray, TracedNumber):
    for _name in ("add", "sub", "mul", "truediv", "matmul", "pow"):
        setattr(_kind, f"__{_name}__", _operation(getattr(operator, _name)))
        setattr(_kind, f"__r{_name}__", _operation(getattr(operator, _name), turned=True))
    for _name in ("neg", "abs"):
        setattr(_kind, f"__{_name}__", _operation(getattr(operator, _name)))
for _name in ("iadd", "isub", "imul", "itruediv"):  # the result has another place, and may have the same memory
    setattr(TracedArray, f"__{_name}__", _operation(getattr(operator, _name)))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(TracedArray, f"__{_name}__", _operation(getattr(operator, _name)))
    setattr(TracedNumber, f"__{_name}__", _question(getattr(operator, _name)))


class _TracedNamespace:
    """The functions of a namespace, whose calls are written down."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._namespace, name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *args, **options: _current.trace.called(name, found, args, options)


def _is_known(x: Any) -> bool:
    return x is not None


class _TracedAdapter:
    """What an adapter can do with traced arrays."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def is_plain(self, _: Any) -> bool:
        return True  # no others are traced

    def stop_gradient(self, x: Any) -> Any:
        return x  # nothing is differentiated

    def concrete_value(self, x: Any) -> Any:
        number = self._adapter.concrete_value(x.value)
        if number is None:
            return None
        read = x.trace.assigned(number, "concrete_value", self._adapter.concrete_value, x)
        x.trace.asked(_is_known, read)  # not of torch, while another thread compiles
        return read

    def scan(self, step: Callable[..., Any], init: Any, xs: Any, block: Any) -> Any:
        if block != xs[0].shape[0]:
            raise NotTraceableError("several blocks")
        return step(init, xs, 0)

    def __getattr__(self, name: str) -> Any:
        if name in {"mode", "reads_values"}:
            return getattr(self._adapter, name)
        if name not in KERNELS:
            raise NotTraceableError(name)
        kernel = getattr(self._adapter, name)
        return lambda *args, **options: _current.trace.called(name, kernel, args, options)


_kinds: dict[type, type[TracedArray]] = {}


def _kind_of(x: Array) -> type[TracedArray]:
    """The type of traced arrays that stand for those of the type of `x`."""
    kind = _kinds.setdefault(type(x), type("TracedArray", (TracedArray,), {"__slots__": ()}))
    namespaces[kind] = _TracedNamespace(namespace_of(x))
    adapters[kind] = _TracedAdapter(adapter_of(x))
    return kind
