"""Equality by contents: compiled code is reused for equal objects, also for new or unpickled ones."""

from __future__ import annotations

from types import FunctionType
from typing import Any, ClassVar, Self

from .namespace import is_array, is_number


class EqualByContents:
    """Base of objects that are equal if their types and contents are; arrays are compared by identity.

    ``==`` of arrays is an array, and tracers have no values. Hashes are not kept: users may set an attribute.
    """

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        members = vars(cls)
        cls._fields = (*cls._fields, *members.get("__slots__", members.get("__annotations__", ())))

    def _contents(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self._fields])

    def _replace(self, **fields: Any) -> Self:
        """Copy with some fields replaced, without checks."""
        copy = object.__new__(type(self))
        for name, value in {**{name: getattr(self, name) for name in self._fields}, **fields}.items():
            setattr(copy, name, value)
        return copy

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _key(self._contents()) == _key(other._contents())

    def __hash__(self) -> int:
        try:
            contents = self._contents()
        except AttributeError:  # torch.compile before 2.13 hashes objects before it fills them
            return hash(type(self))
        return hash((type(self), _key(contents)))


class Record(EqualByContents):
    """Base of internal records, whose values are passed in the order of the annotated fields."""

    __slots__ = ()

    def __init__(self, *values: Any) -> None:
        for name, value in zip(self._fields, values, strict=True):
            setattr(self, name, value)


def is_fixed(x: Any, *, arrays: bool = False) -> bool:
    """Whether an object consists of numbers, strings, and functions and records of this package, without closures.

    Other objects are not kept: a user function may depend on values that change, or hold large arrays. `arrays`:
    whether it may hold arrays.
    """
    if type(x) in {bool, int, float, str, type(None)} or (arrays and is_array(x)):
        return True
    if isinstance(x, FunctionType):  # functools.wraps changes `__module__`, not `__globals__`
        return x.__closure__ is None and _is_ours(x.__globals__.get("__name__"))
    if type(x) is not tuple and not _is_ours(type(x).__module__):
        return False
    contents = x._contents() if isinstance(x, EqualByContents) else x  # noqa: SLF001  (of this module)
    return isinstance(contents, tuple) and all(is_fixed(part, arrays=arrays) for part in contents)


_PACKAGE = __name__.removesuffix("_core.equality")


def _is_ours(module: Any) -> bool:
    return isinstance(module, str) and module.startswith(_PACKAGE)


def _key(contents: tuple[Any, ...]) -> tuple[Any, ...]:
    """Contents with arrays replaced by their ids, which stay valid while the object holds them."""
    return tuple(_key(x) if type(x) is tuple else (id(x),) if is_array(x) and not is_number(x) else x for x in contents)
