"""Notes of the engine for `explain`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple


class Counted(NamedTuple):
    """Note of a reduction: its row weights, 0 where a row does not count; or how many terms each row has."""

    numbers: Any


_listeners: list[tuple[int, list[Any]]] = []


def note(*things: Any) -> None:
    """Append notes to the lists that listen in this thread."""
    for thread, notes in _listeners:
        if thread == get_ident():
            notes.extend(things)


def listens() -> bool:
    """Whether any thread listens."""
    return len(_listeners) > 0


@contextmanager
def listening() -> Iterator[list[Any]]:
    """List of the notes made in this thread while the context is open."""
    entry: tuple[int, list[Any]] = (get_ident(), [])
    _listeners.append(entry)
    try:
        yield entry[1]
    finally:
        _listeners[:] = [other for other in _listeners if other is not entry]
