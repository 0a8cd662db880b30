"""Ranks as threads of one process: a communicator for tests, for arrays that are not traced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .._core.autodiff import stop_gradient
from .._core.namespace import namespace_of

__all__ = ["RankGoneError", "Sent", "ThreadRank", "run_ranks"]

Array = Any
Result = TypeVar("Result")

TIMEOUT = 60.0
"""Seconds that a rank waits for the others."""


@dataclass(frozen=True)
class Sent:
    """One collective: its name, and the number of entries of a rank (for reduce_scatter, of the whole)."""

    kind: str
    entries: int
    bytes_each: int


class RankGoneError(RuntimeError):
    """Another rank raised an exception or did not arrive."""


class _Meeting:
    """Exchanges objects between threads, round by round."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.rounds: dict[int, dict[int, Any]] = {}
        self.taken: dict[int, int] = {}
        self.gone: set[int] = set()

    def exchange(self, rank: int, number: int, thing: Any) -> list[Any]:
        """Contribute an object to a round; return those of all ranks."""
        with self.changed:
            table = self.rounds.setdefault(number, {})
            table[rank] = thing
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(table) == self.size or self.gone - table.keys(), TIMEOUT)
            if len(table) < self.size:
                raise RankGoneError(
                    f"rank {rank} waits for {sorted(set(range(self.size)) - table.keys())} in round {number}"
                )
            self.taken[number] = self.taken.get(number, 0) + 1
            if self.taken[number] == self.size:
                del self.rounds[number], self.taken[number]
            return [table[other] for other in range(self.size)]

    def leave(self, rank: int) -> None:
        """Release the other ranks, which must not wait for this one."""
        with self.changed:
            self.gone.add(rank)
            self.changed.notify_all()


@dataclass(eq=False)
class ThreadRank:
    """A rank that is a thread, with a log of its collectives."""

    meeting: _Meeting
    rank: int
    log: list[Sent] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.meeting.size

    def all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        """Return the rows of all ranks."""
        _check_rows(x, counts[self.rank])
        parts = self._exchange("all_gather", x)
        return namespace_of(x).concat(parts, axis=0)

    def reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        """Return this rank's rows of the sum."""
        _check_rows(x, sum(counts))
        first = sum(counts[: self.rank])
        total: Array = None
        for part in self._exchange("reduce_scatter", x):
            own = part[first : first + counts[self.rank], ...]
            total = own if total is None else total + own
        return total

    def all_reduce(self, x: Array, *, largest: bool = False) -> Array:
        """Return the sum or the maximum over the ranks."""
        total: Array = None
        for part in self._exchange("largest" if largest else "all_reduce", x):
            if total is None:
                total = part
                continue
            total = namespace_of(x).maximum(total, part) if largest else total + part
        return total

    def tell(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return the integers of each rank."""
        found: list[list[int]] = self._exchange("tell", list(numbers))
        return found

    def _exchange(self, kind: str, thing: Any) -> list[Any]:
        entries, width = len(thing) if kind == "tell" else 1, 8
        if kind != "tell":
            for length in thing.shape:
                entries *= int(length)
            width = 2 if "16" in str(thing.dtype) else 4 if "32" in str(thing.dtype) else 8
            thing = stop_gradient(thing)  # torch warns when a tensor that needs a gradient is copied
            thing = namespace_of(thing).asarray(thing, copy=True)  # the owner may modify it while others read
        self.log.append(Sent(kind, entries, width))
        found = self.meeting.exchange(self.rank, len(self.log), (kind, thing))
        kinds = {other for other, _ in found}
        if len(kinds) > 1:
            raise RuntimeError(f"ranks met in different collectives: {sorted(kinds)}")
        return [other for _, other in found]


def _check_rows(x: Array, count: int) -> None:
    if x.shape[0] != count:
        raise ValueError(f"expected {count} rows, got shape {tuple(x.shape)}")


def run_ranks(size: int, function: Callable[[ThreadRank], Result], /) -> list[Result]:
    """Return the results of a function on ranks that run as threads.

    Parameters
    ----------
    size : int
        Number of ranks.
    function : callable
        Function of a `ThreadRank`, which can be passed to `portable_nce.across`.

    Returns
    -------
    list
        The result of each rank.

    Raises
    ------
    Exception
        The exception of the first rank that raised one, other than because another rank had failed.

    Examples
    --------
    >>> import numpy as np
    >>> from portable_nce.testing import run_ranks
    >>> run_ranks(2, lambda group: group.all_reduce(np.asarray([group.rank + 1.0])).tolist())
    [[3.0], [3.0]]
    """
    meeting = _Meeting(size)
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadRank(meeting, rank))
        except BaseException as error:  # noqa: BLE001  (handed to the caller)
            errors[rank] = error
        finally:
            meeting.leave(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raised = [error for error in errors if error is not None]
    for error in raised:
        if not isinstance(error, RankGoneError):
            raise error
    if raised:
        raise raised[0]
    return results
