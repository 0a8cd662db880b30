"""Notes that the engine makes while `explain` listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

_listeners: list[tuple[int, list[Any]]] = []


def note(*things: Any) -> None:
    """Tell things to those that listen in this thread; without any, the cost is that of a call."""
    for thread, notes in _listeners:
        if thread == get_ident():
            notes.extend(things)


def listens() -> bool:
    """Whether anybody listens, in any thread."""
    return len(_listeners) > 0


@contextmanager
def listening() -> Iterator[list[Any]]:
    """The notes made in this thread, in their order, as long as the context is open."""
    entry: tuple[int, list[Any]] = (get_ident(), [])
    _listeners.append(entry)
    try:
        yield entry[1]
    finally:
        _listeners[:] = [other for other in _listeners if other is not entry]
