"""Equality by contents: compiled code is found again by objects that are equal, made anew or read from a file."""

from __future__ import annotations

from types import FunctionType
from typing import Any, ClassVar, Self

from .namespace import is_array, is_number


class EqualByContents:
    """Base of objects that are equal if their types and contents are; arrays are equal if they are the same object.

    Arrays have no equality that is True or False, and may be tracers, which have no values.
    """

    __slots__ = ("_hash",)
    _fields: ClassVar[tuple[str, ...]] = ()
    _hash: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        cls._fields = (*cls._fields, *own.get("__slots__", own.get("__annotations__", ())))

    def _contents(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self._fields])

    def _replace(self, **fields: Any) -> Self:
        """A copy with other values of some fields, which are not checked."""
        made = object.__new__(type(self))
        for name, value in {**{name: getattr(self, name) for name in self._fields}, **fields}.items():
            setattr(made, name, value)
        return made

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _key(self._contents()) == _key(other._contents())

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = hash((type(self), _key(self._contents())))
            return self._hash

    def __getstate__(self) -> Any:
        state: Any = object.__getstate__(self)
        if isinstance(state, tuple):  # strings, and arrays, have another hash in another process
            state[1].pop("_hash", None)
        return state


class Record(EqualByContents):
    """Base of internal objects that are their fields, which are annotated in the order of their values."""

    __slots__ = ()

    def __init__(self, *values: Any) -> None:
        for name, value in zip(self._fields, values, strict=True):
            setattr(self, name, value)


def is_fixed(x: Any) -> bool:
    """Whether an object is made of numbers, names, and functions and records of this package that close over nothing.

    What a function of a user depends on may change, or be large.
    """
    if type(x) in {bool, int, float, str, type(None)}:
        return True
    if isinstance(x, FunctionType):  # whose `__module__` may be another's, by functools.wraps
        return x.__closure__ is None and _is_ours(x.__globals__.get("__name__"))
    if type(x) is not tuple and not _is_ours(type(x).__module__):
        return False
    contents = x._contents() if isinstance(x, EqualByContents) else x  # noqa: SLF001  (of this module)
    return isinstance(contents, tuple) and all(map(is_fixed, contents))


_PACKAGE = __name__.removesuffix("_core.equality")


def _is_ours(module: Any) -> bool:
    return isinstance(module, str) and module.startswith(_PACKAGE)


def _key(contents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The contents, with the identity in place of each array; it stays that of the array, which the object holds."""
    return tuple(_key(x) if type(x) is tuple else (id(x),) if is_array(x) and not is_number(x) else x for x in contents)
