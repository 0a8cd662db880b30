"""Traces: a function is called with arrays that record their operations, and its pullback with the tape over them.

For arrays of given shapes a function calls the same array operations each time. A check of entries ("is the largest
below 30?") is recorded as a *guard*: if its answer differs in a run, the program does not apply. A function has no
program if it uses an array that is not an argument, branches on an entry in another way, warns, or scans many blocks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from operator import attrgetter, itemgetter
from threading import local
from typing import Any, NoReturn

from .namespace import is_array, is_number, namespace_of, namespaces
from .programs import GuardError, Instruction, Program, Recorded, compiled
from .protocol import KERNELS, Array, Namespace
from .registry import adapter_of, adapters, recorder

LARGE = 2**14
"""Number of entries from which an array is freed after its last use."""

MOST_ENTRIES = 2**22
"""Largest number of entries of an array of a program; for larger ones, the operations take nearly all of the time."""


_OF_SHAPES = frozenset(["full_like", "ones_like", "zeros_like"])
"""Functions that do not depend on the entries of their first argument."""


class NotTraceableError(Exception):
    """A function cannot be traced."""


_current = local()
"""The active trace of this thread."""


def is_tracing() -> bool:
    """Whether a function is being traced in this thread."""
    return getattr(_current, "trace", None) is not None


def refuse_trace(reason: str) -> None:
    """Give up the active trace, if there is one: a program would leave out what follows."""
    if is_tracing():
        raise NotTraceableError(reason)


def traced(function: Callable[..., Any], arrays: Sequence[Array], states: Sequence[int]) -> Program | None:
    """Program of a function of plain arrays; None if it cannot be traced.

    The function returns an array, or a tuple of arrays and None, of which at most one needs a gradient. States: 0 for a
    plain array, 1 for one to be a constant of the tape, 2 for one that needs a gradient.
    """
    trace = _Trace(adapter_of(arrays[0]))
    _current.trace = trace
    try:
        inputs = [trace.new_value(x) for x in arrays]
        recorder: Any = adapter_of(inputs[0])
        result, pull, main = recorder.call(function, inputs, states)
        parts = result if isinstance(result, tuple) else (result,)
        if not all(x is None or isinstance(x, TracedArray) for x in parts):
            return None
        outputs = [trace.slot(x) for x in parts if x is not None]
        if isinstance(result, tuple) and any(k < len(inputs) for k in outputs):
            return None  # an argument, which is no result of an operation
        end, place = len(trace.instructions), sum(x is not None for x in parts[:main])
        cotangents: list[int | None] = []
        cotangent = None
        if pull is not None:
            value = parts[main].value
            given = trace.new_value(namespace_of(value).ones_like(value))
            cotangent = given.slot
            cotangents = [None if g is None else trace.slot(g) for g in pull(given)]
            cotangent = None if cotangents.count(None) == len(cotangents) else cotangent
        for k in trace.shaped.intersection([*outputs, *cotangents]):
            del trace.constants[k]  # callers may write into results
        if not trace.constants.keys().isdisjoint({*outputs, *cotangents}):
            return None  # likewise
        facts = trace.values, trace.constants, trace.numbers, trace.large
        return compiled(Recorded(trace.instructions, *facts, len(inputs), end, outputs, place, cotangent, cotangents))
    except (NotTraceableError, AttributeError, TypeError, ValueError):  # libraries refuse traced arrays
        return None
    finally:
        _current.trace = None


def of_number(function: Callable[[float], float], x: float) -> float:
    """Function of a number, which may be traced."""
    if isinstance(x, TracedNumber):
        return x.trace.record(function(x.value), function, x)
    return function(x)


class _Trace:
    """Instructions recorded so far, the values of all slots that are literals, and the slots of large arrays."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.instructions: list[Instruction] = []
        self.values: list[Any] = []
        self.large: set[int] = set()
        self.literals: dict[tuple[Any, ...], int] = {}
        self.numbers: set[int] = set()
        self.constants: dict[int, Any] = {}
        self.shaped: set[int] = set()  # constants that are made of an array's shape, and can be made again

    def add(self, value: Any) -> int:
        """Slot of a new value."""
        self.values.append(value)
        return len(self.values) - 1

    def new_value(self, value: Any) -> Any:
        """Traced value, in a new slot, that may differ between runs; all arrays of a trace are plain."""
        slot = self.add(None)
        if not is_array(value):
            self.numbers.add(slot)
            return TracedNumber(self, slot, value)
        if not adapter_of(value).is_plain((value,)):
            raise NotTraceableError("an array that stands for something else")
        size = math.prod(value.shape)
        if size > MOST_ENTRIES:
            raise NotTraceableError("a large array")
        if size >= LARGE:
            self.large.add(slot)
        return _traced_kind(value)(self, slot, value)

    def slot(self, value: Any) -> int:
        """Slot of an argument."""
        if isinstance(value, _Traced):
            return value.slot
        if type(value) in {list, tuple} and any(isinstance(x, _Traced) for x in value):
            made = int(self.record(0, _as_list if type(value) is list else _as_tuple, *value).slot)
            if made in self.constants:
                self.constants[made] = _value(value)
            return made
        if is_array(value) and not (isinstance(value, type) or is_number(value)):  # np.float32 has a shape
            raise NotTraceableError("an array that is not an argument")
        return self.constant(value, (type(value), repr(value)))

    def constant(self, value: Any, key: tuple[Any, ...]) -> int:
        """Slot of a value that is the same in all runs, one for equal keys."""
        if key not in self.literals:
            self.literals[key] = self.add(value)
            self.constants[self.literals[key]] = value
        return self.literals[key]

    def as_array(self, number: Any, array: Any) -> int:
        """Slot of a number as an array."""
        return self.constant(array, (type(array), repr(number), repr(array.dtype)))

    def record(
        self,
        result: Any,
        function: Callable[..., Any],
        *arguments: Any,
        overwrites: tuple[int, ...] = (),
        **options: Any,
    ) -> Any:
        """Record a call and its result; the items of a tuple are further instructions."""
        key = function, tuple(sorted((name, repr(x)) for name, x in options.items()))
        is_shaped = getattr(function, "__name__", "") in _OF_SHAPES
        values = [*map(_value, arguments)]
        function, options, repeated = self.adapter.repeated(function, options, values)
        pairs = zip(arguments, values, repeated, strict=True)
        slots = tuple([self.slot(x) if y is z else self.as_array(y, z) for x, y, z in pairs])
        traced_result = self.new_value(0 if isinstance(result, tuple) else result)
        function = partial(function, **options) if options else function
        self.instructions.append(Instruction(function, slots, traced_result.slot, key, overwrites))
        if not self.large.isdisjoint(slots) and (self.instructions[-1].is_view or not is_array(result)):
            self.large.add(traced_result.slot)  # a view, or a list or tuple, may hold the memory of a large array
        if traced_result.slot not in self.large and all(k in self.constants for k in slots[is_shaped:]):
            self.constants[traced_result.slot] = result
            if is_shaped:
                self.shaped.add(traced_result.slot)
        if isinstance(result, tuple):
            return tuple([self.record(x, _item(k), traced_result) for k, x in enumerate(result)])
        return traced_result

    def call(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Result of a function; recorded if it consists of arrays."""
        if any(isinstance(x, _Traced) for x in options.values()):
            raise NotTraceableError("an array as an option")
        result = function(*map(_value, args), **options)
        if not is_array(result) and not isinstance(result, tuple):
            return result  # a property of a dtype
        return self.record(result, function, *args, **options)

    def kernel(self, adapter: Any, name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Result of a kernel of an adapter; whether it declines, which may depend on entries, is a guard."""
        function, facts = getattr(adapter, name), KERNELS[name]
        result = function(*map(_value, args), **options)
        if not facts.may_decline:
            return self.record(result, function, *args, overwrites=facts.overwrites, **options)
        whole = self.record(0, function, *args, **options)
        if whole.slot in self.constants:
            self.constants[whole.slot] = result
        self.guard(_is_known, whole, answer=result is not None)
        if isinstance(result, tuple):
            return tuple([x if x is None else self.record(x, _item(k), whole) for k, x in enumerate(result)])
        return None if result is None else self.record(result, _itself, whole)

    def guard(self, function: Callable[..., Any], *arguments: Any, answer: bool | None = None) -> bool:
        """Answer of a guard, which is recorded."""
        given = bool(function(*map(_value, arguments))) if answer is None else answer
        slots = tuple([self.slot(x) for x in arguments])
        check = partial(_check_guard, given, function)
        self.instructions.append(Instruction(check, slots, None, (function, given)))
        return given


def _check_guard(answer: bool, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: FBT001
    """First argument, if the function has the answer of the trace."""
    if bool(function(*arguments)) is not answer:
        raise GuardError
    return arguments[0]


def _value(x: Any) -> Any:
    """Array or number behind a traced argument."""
    if isinstance(x, _Traced):
        return x.value
    return type(x)(map(_value, x)) if type(x) in {list, tuple} else x


def _refused(*_: Any) -> NoReturn:
    raise NotTraceableError("a branch on an entry")


_TRANSPOSED: Any = attrgetter("T")
_item: Any = cache(itemgetter)


class _Traced:
    """A value with a slot in a trace."""

    __slots__ = ("slot", "trace", "value")
    __float__ = __int__ = __index__ = __len__ = __iter__ = _refused

    def __init__(self, trace: _Trace, slot: int, value: Any) -> None:
        self.trace, self.slot, self.value = trace, slot, value


class TracedArray(_Traced):
    """An array that records operations."""

    __slots__ = ()
    __bool__ = _refused

    shape = property(lambda self: self.value.shape)
    dtype = property(lambda self: self.value.dtype)
    device = property(lambda self: self.value.device)
    T = property(lambda self: self.trace.record(self.value.T, _TRANSPOSED, self))

    def __getitem__(self, index: Any) -> Any:
        return self.trace.record(self.value[_value(index)], operator.getitem, self, index)

    def recorded_put(self, key: Any, x: Any) -> Any:
        """Copy with some entries replaced."""

        def put(out: Any, x: Any) -> Any:
            out = out.copy() if hasattr(out, "copy") else namespace_of(out).asarray(out, copy=True)
            out[key] = x
            return out

        return self.trace.record(put(self.value, x.value), put, self, x)


class TracedNumber(_Traced):
    """A number, an argument or a read entry, that records operations and comparisons."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return bool(self.trace.guard(bool, self))


def _operation(
    function: Callable[..., Any], *, reflected: bool = False, overwrites: tuple[int, ...] = ()
) -> Callable[..., Any]:
    def apply(*operands: Any) -> Any:
        if hasattr(operands[-1], "__recorded__"):
            return NotImplemented  # the tape's operator
        ordered = operands[::-1] if reflected else operands
        return operands[0].trace.record(function(*map(_value, ordered)), function, *ordered, overwrites=overwrites)

    return apply


def _guard(function: Callable[..., Any]) -> Callable[..., bool]:
    return lambda *operands: operands[0].trace.guard(function, *operands)


for _kind in (TracedArray, TracedNumber):
    for _name in ("add", "sub", "mul", "truediv", "matmul", "pow"):
        setattr(_kind, f"__{_name}__", _operation(getattr(operator, _name)))
        setattr(_kind, f"__r{_name}__", _operation(getattr(operator, _name), reflected=True))
    for _name in ("neg", "abs"):
        setattr(_kind, f"__{_name}__", _operation(getattr(operator, _name)))
for _name in ("iadd", "isub", "imul", "itruediv"):  # the result has another slot, and may share memory
    setattr(TracedArray, f"__{_name}__", _operation(getattr(operator, _name), overwrites=(0,)))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(TracedArray, f"__{_name}__", _operation(getattr(operator, _name)))
    setattr(TracedNumber, f"__{_name}__", _guard(getattr(operator, _name)))


class _TracedNamespace:
    """A namespace that records calls."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._namespace, name)
        if isinstance(function, type) or not callable(function):
            return function

        def recorded(*args: Any, **options: Any) -> Any:
            on_tape = next(_on_tape(args), None)
            if on_tape is not None:  # PyTorch has one namespace for constants and variables
                return getattr(on_tape.__array_namespace__(), name)(*args, **options)
            return _current.trace.call(function, args, options)

        return recorded


def _on_tape(args: Iterable[Any]) -> Iterator[Any]:
    """Arrays on the tape among arguments."""
    for x in args:
        if hasattr(x, "__recorded__"):
            yield x
        elif type(x) in {list, tuple}:
            yield from _on_tape(x)


def _is_known(x: Any) -> bool:
    return x is not None


def _itself(x: Any) -> Any:
    return x


def _as_list(*items: Any) -> list[Any]:
    return [*items]


def _as_tuple(*items: Any) -> tuple[Any, ...]:
    return items


class _Recording:
    """What the adapter of traced arrays records in the active trace."""

    @staticmethod
    def call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Result of a function of arrays."""
        return _current.trace.call(function, args, options)

    @staticmethod
    def kernel(adapter: Any, name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Result of a kernel of an adapter."""
        return _current.trace.kernel(adapter, name, args, options)

    @staticmethod
    def entry(adapter: Any, x: TracedArray) -> TracedNumber | None:
        """Entry of an array of one entry."""
        number = adapter.concrete_value(x.value)
        if number is None:
            return None
        read: TracedNumber = x.trace.record(number, adapter.concrete_value, x)
        x.trace.guard(_is_known, read)  # torch reads None while another thread compiles
        return read

    @staticmethod
    def refuse(reason: str, *_: Any) -> NoReturn:
        """Give up the trace."""
        raise NotTraceableError(reason)


_kinds: dict[type, type[TracedArray]] = {}


def _traced_kind(x: Array) -> type[TracedArray]:
    """Type of traced arrays for arrays of the type of `x`."""
    kind = _kinds.get(type(x)) or _kinds.setdefault(type(x), type("TracedArray", (TracedArray,), {"__slots__": ()}))
    if kind not in adapters:  # `register_backend` forgets all
        namespaces[kind] = _TracedNamespace(namespace_of(x))
        adapters[kind] = recorder(adapter_of(x), KERNELS, _Recording())
    return kind
