"""Equality by contents: compiled code is found again by objects that are equal, made anew or read from a file."""

from __future__ import annotations

from typing import Any

from .namespace import is_array, is_number

__all__ = ["EqualByContents"]


class EqualByContents:
    """Base of objects that are equal if their types and contents are; arrays are equal if they are the same object.

    Arrays have no equality that is True or False, and may be tracers, which have no values.
    """

    __slots__ = ()

    def _contents(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _key(self._contents()) == _key(other._contents())

    def __hash__(self) -> int:
        return hash((type(self), _key(self._contents())))


def _key(contents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The contents, with the identity in place of each array; it stays that of the array, which the object holds."""
    return tuple(_key(x) if type(x) is tuple else (id(x),) if is_array(x) and not is_number(x) else x for x in contents)
