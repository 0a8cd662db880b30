"""Notes of the engine for `explain`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

_listeners: list[tuple[int, dict[str, list[Any]]]] = []


def note(**things: Any) -> None:
    """Note things for those who listen in this thread.

    `objective`, `pairing`; `computed`: a sweep, a search, or a matrix that is held; `traffic`: the kind of an exchange
    of ranks, and how many bytes this rank sends; `counted`: the row weights of a reduction, 0 where a row does not
    count, or how many terms each row has.
    """
    for thread, notes in _listeners:
        if thread == get_ident():
            for kind, thing in things.items():
                notes.setdefault(kind, []).append(thing)


def listens() -> bool:
    """Whether any thread listens."""
    return len(_listeners) > 0


@contextmanager
def listening() -> Iterator[dict[str, list[Any]]]:
    """Lists by kind of what is noted in this thread while the context is open."""
    entry: tuple[int, dict[str, list[Any]]] = (get_ident(), {})
    _listeners.append(entry)
    try:
        yield entry[1]
    finally:
        _listeners[:] = [other for other in _listeners if other is not entry]
