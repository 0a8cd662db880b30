"""Programs: the array operations of a function, written down once and run from then on without the function.

A function of arrays of some shapes calls the same array operations each time; all else that it does is Python. A
*trace* calls it with arrays that write down what is done with them, and makes a function of these lines alone. What is
asked of entries ("is the largest below 30?") is a line too: where the answer is another one, the program does not
serve, and returns None. A function that does what cannot be written down has no program: it takes an array that it was
not given, makes a decision by an entry in another way, or visits several blocks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from threading import local
from typing import Any, NoReturn

from .namespace import namespace_of, namespaces
from .protocol import Array, Namespace
from .registry import adapter_of, adapters

Arrays = tuple[Array, ...]
Program = Callable[..., Arrays | None]
"""Of the numbers and arrays of the function to what it returns, or None."""

KERNELS = frozenset({"row_dots", "sum_along", "fill_diagonal", "fill_columns"})
"""Functions of adapters that can be written down."""


class NotTraceableError(Exception):
    """A function does what cannot be written down."""


def traced(
    function: Callable[..., Arrays], numbers: Sequence[float | None], arrays: Sequence[Array]
) -> tuple[Program | None, Arrays]:
    """The program of a function of numbers and arrays without derivatives, or None; and what it returns for these."""
    trace = _Trace()
    names = [f"x{k}" for k in range(len(numbers) + len(arrays))]
    given = [x if x is None else trace.wrapped(x, name) for name, x in zip(names, (*numbers, *arrays), strict=True)]
    _current.trace = trace
    try:
        outputs = function(*given)
        program = trace.program(names, outputs)
    except Exception:  # noqa: BLE001  (whatever a library says of arrays that are not its own)
        return None, function(*numbers, *arrays)
    finally:
        del _current.trace
    return program, tuple(map(_value, outputs))


_current = local()
"""Holds the trace of this thread."""


class _Trace:
    """The lines of a program so far, with the names that each uses, and constants by name."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, set[str]]] = []
        self.constants: dict[str, Any] = {}

    def constant(self, value: Any) -> str:
        """The name of what is the same in each run."""
        if _is_array(value):
            message = "an array that was not given"
            raise NotTraceableError(message)
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def written(self, value: Any, used: set[str]) -> str:
        """An argument as an expression; the names in it are added to the `used` ones."""
        if isinstance(value, _Named):
            used.add(value.name)
            return value.name
        if type(value) in {list, tuple} and any(isinstance(x, _Named) for x in value):
            items = "".join(f"{self.written(x, used)}, " for x in value)
            return f"[{items}]" if isinstance(value, list) else f"({items})"
        return self.constant(value)

    def add(self, form: str, *arguments: Any, name: str = "") -> str:
        """Add a line in which arguments fill the braces; with a name, it assigns to that."""
        used = {name} if name else set[str]()
        line = form.format(*[self.written(x, used) for x in arguments])
        self.lines.append((f"{name} = {line}" if name else line, used))
        return name

    def assigned(self, result: Any, form: str, *arguments: Any) -> Any:
        """Add a line that assigns an expression, whose value now is the result."""
        return self.wrapped(result, self.add(form, *arguments, name=f"v{len(self.lines)}"))

    def wrapped(self, result: Any, name: str) -> Any:
        """What has a name: an array, a number, or a tuple of some."""
        if isinstance(result, tuple):
            return tuple([self.assigned(x, f"{name}[{k}]") for k, x in enumerate(result)])
        return _kind_of(result)(self, name, result) if _is_array(result) else TracedNumber(self, name, result)

    def called(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """The result of a function; a call that returns arrays is a line."""
        result = function(*map(_value, args), **{key: _value(x) for key, x in options.items()})
        if not _is_array(result) and not isinstance(result, tuple):
            return result  # a fact about a dtype
        places = ", ".join([*["{}"] * len(args), *(f"{key}={{}}" for key in options)])
        return self.assigned(result, f"{{}}({places})", function, *args, *options.values())

    def program(self, names: Sequence[str], outputs: Sequence[Any]) -> Program:
        """The function of the inputs with these names, which lets go of every array after its last use."""
        used: set[str] = set()
        lines = [f"return ({''.join(f'{self.written(x, used)}, ' for x in outputs)})"]
        for line, own in reversed(self.lines):
            last = sorted(own - used)
            if last and not line.startswith("if "):
                lines.append(f"del {', '.join(last)}")
            used |= own
            lines.append(line)
        source = "\n ".join([f"def program({', '.join(names)}):", *reversed(lines)])
        exec(source, self.constants)  # noqa: S102  (nothing of it comes from outside)
        made: Program = self.constants["program"]
        return made


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _value(x: Any) -> Any:
    """What stands behind a traced argument."""
    if isinstance(x, _Named):
        return x.value
    return type(x)(map(_value, x)) if type(x) in {list, tuple} else x


def _refused(*_: Any) -> NoReturn:
    message = "a decision by an entry"
    raise NotTraceableError(message)


class _Named:
    """A value with a name in a program."""

    __slots__ = ("name", "trace", "value")
    __float__ = __int__ = __index__ = __len__ = __iter__ = _refused

    def __init__(self, trace: _Trace, name: str, value: Any) -> None:
        self.trace, self.name, self.value = trace, name, value


class TracedArray(_Named):
    """An array that writes down what is done with it."""

    __slots__ = ()
    __bool__ = _refused

    shape = property(lambda self: self.value.shape)
    dtype = property(lambda self: self.value.dtype)
    device = property(lambda self: self.value.device)
    T = property(lambda self: self.trace.assigned(self.value.T, "{}.T", self))

    def __getitem__(self, index: Any) -> Any:
        return self.trace.assigned(self.value[_value(index)], "{}[{}]", self, index)


class TracedNumber(_Named):
    """A number that is given or read, and writes down what is asked of it."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return _question(bool, "{}")(self)


def _operation(function: Callable[..., Any], form: str) -> Callable[..., Any]:
    def apply(*operands: Any) -> Any:
        return operands[0].trace.assigned(function(*map(_value, operands)), form, *operands)

    return apply


def _in_place(function: Callable[..., Any], form: str) -> Callable[..., Any]:
    def apply(x: Any, y: Any) -> Any:
        result = function(x.value, _value(y))
        return type(x)(x.trace, x.trace.add(form, x, y) or x.name, result)

    return apply


def _question(function: Callable[..., Any], form: str) -> Callable[..., bool]:
    def ask(*operands: Any) -> bool:
        answer = bool(function(*map(_value, operands)))
        operands[0].trace.add(f"if {'not ' if answer else ''}({form}): return None", *operands)
        return answer

    return ask


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "matmul": "@", "pow": "**"}.items():
    for _kind in (TracedArray, TracedNumber):
        _function = getattr(operator, _name)
        setattr(_kind, f"__{_name}__", _operation(_function, f"{{}} {_sign} {{}}"))
        setattr(
            _kind, f"__r{_name}__", _operation(lambda x, y, function=_function: function(y, x), f"{{1}} {_sign} {{0}}")
        )
    setattr(TracedArray, f"__i{_name}__", _in_place(getattr(operator, f"i{_name}"), f"{{}} {_sign}= {{}}"))
for _name, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(TracedArray, f"__{_name}__", _operation(getattr(operator, _name), f"{{}} {_sign} {{}}"))
    setattr(TracedNumber, f"__{_name}__", _question(getattr(operator, _name), f"{{}} {_sign} {{}}"))
for _kind in (TracedArray, TracedNumber):
    setattr(_kind, "__neg__", _operation(operator.neg, "-{}"))  # noqa: B010
    setattr(_kind, "__abs__", _operation(operator.abs, "abs({})"))  # noqa: B010


class _TracedNamespace:
    """The functions of a namespace, whose calls are written down."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._namespace, name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *args, **options: _current.trace.called(found, args, options)


class _TracedAdapter:
    """What an adapter can do with traced arrays."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    @property
    def mode(self) -> Any:
        return self._adapter.mode

    @property
    def reads_values(self) -> Any:
        return self._adapter.reads_values

    def stop_gradient(self, x: Any) -> Any:
        return x  # nothing is differentiated

    def concrete_value(self, x: Any) -> Any:
        number = self._adapter.concrete_value(x.value)
        if number is None:
            return None
        read = x.trace.assigned(number, "{}({})", self._adapter.concrete_value, x)
        x.trace.add("if {} is None: return None", read)  # as torch answers while another thread compiles
        return read

    def exponential(self, x: Any) -> tuple[Callable[[Any], Any], bool]:
        function, binary = self._adapter.exponential(x.value)
        return lambda y: y.trace.called(function, (y,), {}), binary

    def scan(self, step: Callable[..., Any], init: Any, xs: Any, block: Any) -> Any:
        if block != xs[0].shape[0]:
            message = "several blocks"
            raise NotTraceableError(message)
        return step(init, xs, 0)

    def __getattr__(self, name: str) -> Any:
        if name not in KERNELS:
            raise NotTraceableError(name)
        kernel = getattr(self._adapter, name)
        return lambda *args: _current.trace.called(kernel, args, {})


_kinds: dict[type, type[TracedArray]] = {}


def _kind_of(x: Array) -> type[TracedArray]:
    """The type of traced arrays that stand for those of the type of `x`."""
    kind = _kinds.setdefault(type(x), type("TracedArray", (TracedArray,), {"__slots__": ()}))
    namespaces[kind] = _TracedNamespace(namespace_of(x))
    adapters[kind] = _TracedAdapter(adapter_of(x))
    return kind
