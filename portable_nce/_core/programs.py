"""Programs: the array operations of a function, traced once and replayed without the function's Python code.

For arrays of given shapes a function calls the same array operations each time. A *trace* calls it with arrays that
record these operations, and compiles the recorded instructions to a function. A check of entries ("is the largest below
30?") is recorded as a *guard*: if its answer differs in a run, the program does not apply, and returns None. A function
has no program if it uses an array that is not an argument, branches on an entry in another way, or scans several
blocks.
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
from .protocol import KERNELS, Array, Namespace
from .registry import adapter_of, adapters

Arrays = tuple[Array, ...]
Program = Callable[..., Arrays | None]
"""Takes the numbers and arrays of the function; returns its results, or None if a guard fails."""

LARGE = 2**14
"""Number of entries from which an array is freed after its last use."""


class NotTraceableError(Exception):
    """A function cannot be traced."""


def traced(
    function: Callable[..., Arrays], numbers: Sequence[float | None], arrays: Sequence[Array]
) -> tuple[Program | None, Arrays]:
    """Program of a function without derivatives (None if it cannot be traced), and its results for these arguments."""
    trace, before = _Trace(), getattr(_current, "trace", None)
    _current.trace = trace
    try:
        inputs = [trace.new_value(x) for x in (*numbers, *arrays)]
        outputs = function(*[x if x.value is not None else None for x in inputs])
        return trace.program(len(inputs), outputs), tuple(map(_value, outputs))
    except (NotTraceableError, AttributeError, TypeError, ValueError):  # libraries refuse traced arrays
        pass
    finally:
        _current.trace = before
    return None, function(*numbers, *arrays)


_current = local()
"""The active trace of this thread."""


class _Instruction(NamedTuple):
    """Call of a function, with the slots of its arguments and its result.

    An instruction without a result is a guard: its function raises an error if the program does not apply.
    """

    function: Callable[..., Any]
    arguments: tuple[int, ...]
    result: int | None


class _Trace:
    """Instructions recorded so far, the values of all slots that are literals, and the slots of large arrays."""

    def __init__(self) -> None:
        self.instructions: list[_Instruction] = []
        self.values: list[Any] = []
        self.large: set[int] = set()
        self.literals: dict[tuple[type, str], int] = {}

    def add(self, value: Any) -> int:
        """Slot of a new value."""
        self.values.append(value)
        return len(self.values) - 1

    def new_value(self, value: Any) -> Any:
        """Traced value, in a new slot, that may differ between runs; all arrays of a trace are plain."""
        slot = self.add(None)
        if not is_array(value):
            return TracedNumber(self, slot, value)
        if not adapter_of(value).is_plain((value,)):
            raise NotTraceableError("an array that stands for something else")
        if math.prod(value.shape) >= LARGE:
            self.large.add(slot)
        return _traced_kind(value)(self, slot, value)

    def slot(self, value: Any) -> int:
        """Slot of an argument."""
        if isinstance(value, _Traced):
            return value.slot
        if type(value) in {list, tuple} and any(isinstance(x, _Traced) for x in value):
            kind = type(value)
            return int(self.record(0, lambda *items: kind(items), *value).slot)
        if is_array(value):
            raise NotTraceableError("an array that is not an argument")
        key = type(value), repr(value)
        if key not in self.literals:
            self.literals[key] = self.add(value)
        return self.literals[key]

    def record(self, result: Any, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Record a call and its result; the items of a tuple are further instructions."""
        slots = tuple([self.slot(x) for x in arguments])
        traced_result = self.new_value(0 if isinstance(result, tuple) else result)
        function = partial(function, **options) if options else function
        self.instructions.append(_Instruction(function, slots, traced_result.slot))
        if isinstance(result, tuple):
            return tuple([self.record(x, itemgetter(k), traced_result) for k, x in enumerate(result)])
        return traced_result

    def call(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Result of a function; recorded if it consists of arrays."""
        if any(isinstance(x, _Traced) for x in options.values()):
            raise NotTraceableError("an array as an option")
        result = function(*map(_value, args), **options)
        if not is_array(result) and not isinstance(result, tuple):
            return result  # a property of a dtype
        return self.record(result, function, *args, **options)

    def guard(self, function: Callable[..., Any], *arguments: Any) -> bool:
        """Answer of a guard, which is recorded."""
        answer = bool(function(*map(_value, arguments)))
        slots = tuple([self.slot(x) for x in arguments])
        self.instructions.append(_Instruction(partial(_check_guard, answer, function), slots, None))
        return answer

    def program(self, inputs: int, outputs: Sequence[Any]) -> Program:
        """Function that runs the instructions, and releases each large array after its last use."""
        results = [self.slot(x) for x in outputs]
        used = {*results}
        steps: list[tuple[Callable[..., Any], int, int | None, Sequence[int], int]] = []
        for op in reversed(self.instructions):
            large = self.large & {*op.arguments, -1 if op.result is None else op.result}
            steps += [(_released, slot, None, (), slot) for slot in sorted(large - used)]
            used |= large
            first, second, *rest = (*op.arguments, None) if len(op.arguments) == 1 else op.arguments
            steps.append((op.function, first, second, rest, first if op.result is None else op.result))
        steps.reverse()
        literals = self.values[inputs:]

        def program(*arguments: Any) -> Arrays | None:
            values = [*arguments, *literals]
            try:
                for function, first, second, rest, result in steps:  # no function per step: calls dominate the run time
                    if second is None:
                        values[result] = function(values[first])
                    elif rest:
                        values[result] = function(values[first], values[second], *[values[k] for k in rest])
                    else:
                        values[result] = function(values[first], values[second])
            except _GuardError:
                return None
            return tuple([values[k] for k in results])

        return program


class _GuardError(Exception):
    """A guard has another answer than in the trace."""


def _check_guard(answer: bool, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: FBT001
    """First argument, if the function has the answer of the trace."""
    if bool(function(*arguments)) is not answer:
        raise _GuardError
    return arguments[0]


def _released(_: Array) -> None:
    """None, which replaces an array after its last use."""


def _value(x: Any) -> Any:
    """Array or number behind a traced argument."""
    if isinstance(x, _Traced):
        return x.value
    return type(x)(map(_value, x)) if type(x) in {list, tuple} else x


def _refused(*_: Any) -> NoReturn:
    raise NotTraceableError("a branch on an entry")


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
    T = property(lambda self: self.trace.record(self.value.T, attrgetter("T"), self))

    def __getitem__(self, index: Any) -> Any:
        return self.trace.record(self.value[_value(index)], operator.getitem, self, index)


class TracedNumber(_Traced):
    """A number, an argument or a read entry, that records operations and comparisons."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return bool(self.trace.guard(bool, self))


def _operation(function: Callable[..., Any], *, reflected: bool = False) -> Callable[..., Any]:
    def apply(*operands: Any) -> Any:
        ordered = operands[::-1] if reflected else operands
        return operands[0].trace.record(function(*map(_value, ordered)), function, *ordered)

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
    setattr(TracedArray, f"__{_name}__", _operation(getattr(operator, _name)))
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
        return lambda *args, **options: _current.trace.call(function, args, options)


def _is_known(x: Any) -> bool:
    return x is not None


class _TracedAdapter:
    """An adapter for traced arrays."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    mode = property(lambda self: self._adapter.mode)
    reads_values = property(lambda self: self._adapter.reads_values)

    def is_plain(self, _: Any) -> bool:
        return True  # only plain arrays are traced

    def is_widened(self, x: Any) -> Any:
        return self._adapter.is_widened(x.value)

    def stop_gradient(self, x: Any) -> Any:
        return x  # nothing is differentiated

    def concrete_value(self, x: Any) -> Any:
        number = self._adapter.concrete_value(x.value)
        if number is None:
            return None
        read = x.trace.record(number, self._adapter.concrete_value, x)
        x.trace.guard(_is_known, read)  # torch reads None while another thread compiles
        return read

    def scan(self, step: Callable[..., Any], init: Any, xs: Any, block: Any) -> Any:
        if block != xs[0].shape[0]:
            raise NotTraceableError("several blocks")
        return step(init, xs, 0)

    def __getattr__(self, name: str) -> Any:
        if name not in KERNELS:
            raise NotTraceableError(name)
        kernel = getattr(self._adapter, name)
        return lambda *args, **options: _current.trace.call(kernel, args, options)


_kinds: dict[type, type[TracedArray]] = {}


def _traced_kind(x: Array) -> type[TracedArray]:
    """Type of traced arrays for arrays of the type of `x`."""
    kind = _kinds.get(type(x)) or _kinds.setdefault(type(x), type("TracedArray", (TracedArray,), {"__slots__": ()}))
    if kind not in adapters:  # `register_backend` forgets all
        traced: Any = _TracedAdapter(adapter_of(x))  # of an adapter's members, those that programs replay
        namespaces[kind], adapters[kind] = _TracedNamespace(namespace_of(x)), traced
    return kind
