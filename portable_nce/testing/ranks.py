"""Ranks of a group for tests, for arrays that are not traced: threads of one process, unless a runner replaces them."""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .._core.autodiff import stop_gradient
from .._core.namespace import namespace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Rank", "RankGoneError", "Sent", "ThreadRank", "as_threads", "results_of", "run_ranks", "running_by"]

Array = Any
Result = TypeVar("Result")

TIMEOUT = 60.0
"""Seconds that a rank waits for the others."""

LIMIT = 300.0
"""Seconds within which some rank has to meet the others or to end."""


@dataclass(frozen=True)
class Sent:
    """One collective: its name, and the number of entries of a rank (for reduce_scatter, of the whole)."""

    kind: str
    entries: int
    bytes_each: int


class RankGoneError(RuntimeError):
    """Another rank raised an exception or did not arrive."""


@dataclass(eq=False)
class Rank(ABC):
    """A rank with a log of its collectives, and marks of a test; it can be passed to `portable_nce.across`."""

    rank: int
    size: int
    log: list[Sent] = field(default_factory=list, kw_only=True)
    marks: list[str] = field(default_factory=list, kw_only=True)

    def all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        """Return the rows of all ranks."""
        _check_rows(x, counts[self.rank])
        self._note("all_gather", x)
        return self._all_gather(x, counts)

    def reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        """Return this rank's rows of the sum."""
        _check_rows(x, sum(counts))
        self._note("reduce_scatter", x)
        return self._reduce_scatter(x, counts)

    def all_reduce(self, x: Array, *, largest: bool = False) -> Array:
        """Return the sum or the maximum over the ranks."""
        self._note("largest" if largest else "all_reduce", x)
        return self._all_reduce(x, largest=largest)

    def tell(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return the integers of each rank."""
        self.log.append(Sent("tell", len(numbers), 8))
        return self._tell(numbers)

    def _note(self, kind: str, x: Array) -> None:
        entries = 1
        for length in x.shape:
            entries *= int(length)
        width = 2 if "16" in str(x.dtype) else 4 if "32" in str(x.dtype) else 8
        self.log.append(Sent(kind, entries, width))

    @abstractmethod
    def _all_gather(self, x: Array, counts: Sequence[int]) -> Array: ...

    @abstractmethod
    def _reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array: ...

    @abstractmethod
    def _all_reduce(self, x: Array, *, largest: bool) -> Array: ...

    @abstractmethod
    def _tell(self, numbers: Sequence[int]) -> list[list[int]]: ...


def _check_rows(x: Array, count: int) -> None:
    if x.shape[0] != count:
        raise ValueError(f"expected {count} rows, got shape {tuple(x.shape)}")


class _Meeting:
    """Exchanges objects between threads, round by round."""

    def __init__(self, size: int, timeout: float = TIMEOUT) -> None:
        self.size, self.timeout = size, timeout
        self.changed = threading.Condition()
        self.rounds: dict[int, dict[int, Any]] = {}
        self.taken: dict[int, int] = {}
        self.gone: set[int] = set()
        self.threads: list[threading.Thread] = []
        self.last = time.monotonic()
        """When a rank last met the others or ended."""

    def exchange(self, rank: int, number: int, kind: str, thing: Any) -> list[tuple[str, Any]]:
        """Contribute an object to a round; return those of all ranks, and the collectives that they are in."""
        with self.changed:
            table = self.rounds.setdefault(number, {})
            table[rank] = kind, thing
            self.last = time.monotonic()
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(table) == self.size or self.gone - table.keys(), self.timeout)
            if len(table) < self.size:
                missing = sorted(set(range(self.size)) - table.keys())
                places = "; ".join(f"rank {other} {self.place(other)}" for other in missing)
                raise RankGoneError(f"rank {rank} waits for {missing} in {kind}, its collective {number}; {places}")
            self.taken[number] = self.taken.get(number, 0) + 1
            if self.taken[number] == self.size:
                del self.rounds[number], self.taken[number]
            return [table[other] for other in range(self.size)]

    def leave(self, rank: int) -> None:
        """Release the other ranks, which must not wait for this one."""
        with self.changed:
            self.gone.add(rank)
            self.last = time.monotonic()
            self.changed.notify_all()

    def place(self, rank: int) -> str:
        """Where a rank is in the code."""
        ident = self.threads[rank].ident if rank < len(self.threads) else None
        frame = sys._current_frames().get(ident or 0)  # noqa: SLF001  (its documented name)
        if rank in self.gone or frame is None:
            return "has ended"
        return f"is at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}, in {frame.f_code.co_name}"

    def join(self, limit: float) -> None:
        """Wait until all ranks have ended; for the whole limit without any change, raise an error."""
        with self.changed:
            while len(self.gone) < self.size:
                left = self.last + limit - time.monotonic()
                if left <= 0.0:
                    places = "; ".join(f"rank {rank} {self.place(rank)}" for rank in range(self.size))
                    raise RankGoneError(f"no rank met another or ended within {limit:g} s: {places}")
                self.changed.wait(left)


@dataclass(eq=False)
class ThreadRank(Rank):
    """A rank that is a thread."""

    meeting: _Meeting

    def _all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        del counts
        return namespace_of(x).concat(self._exchange(x), axis=0)

    def _reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        first = sum(counts[: self.rank])
        total: Array = None
        for part in self._exchange(x):
            own = part[first : first + counts[self.rank], ...]
            total = own if total is None else total + own
        return total

    def _all_reduce(self, x: Array, *, largest: bool) -> Array:
        total: Array = None
        for part in self._exchange(x):
            if total is None:
                total = part
                continue
            total = namespace_of(x).maximum(total, part) if largest else total + part
        return total

    def _tell(self, numbers: Sequence[int]) -> list[list[int]]:
        found: list[list[int]] = self._met(list(numbers))
        return found

    def _exchange(self, x: Array) -> list[Any]:
        x = stop_gradient(x)  # torch warns when a tensor that needs a gradient is copied
        return self._met(namespace_of(x).asarray(x, copy=True))  # the owner may modify it while others read

    def _met(self, thing: Any) -> list[Any]:
        found = self.meeting.exchange(self.rank, len(self.log), self.log[-1].kind, thing)
        kinds = {kind for kind, _ in found}
        if len(kinds) > 1:
            raise RuntimeError(f"ranks met in different collectives: {sorted(kinds)}")
        return [other for _, other in found]


_runners: list[Any] = []


@contextmanager
def running_by(runner: Callable[[int, Callable[[Rank], Any]], list[Any]]) -> Iterator[None]:
    """Run the ranks of `run_ranks` by this function instead of as threads."""
    _runners.append(runner)
    try:
        yield
    finally:
        _runners.pop()


def results_of(results: Sequence[Any], errors: Sequence[BaseException | None]) -> list[Any]:
    """Return the results of the ranks, or raise the error of the first rank that is to blame."""
    raised = [error for error in errors if error is not None]
    for error in raised:
        if not isinstance(error, RankGoneError):
            raise error
    if raised:
        raise RankGoneError("\n".join(map(str, raised)))
    return list(results)


def run_ranks(size: int, function: Callable[[Rank], Result], /) -> list[Result]:
    """Return the results of a function on ranks that run as threads.

    Parameters
    ----------
    size : int
        Number of ranks.
    function : callable
        Function of a `Rank`, which can be passed to `portable_nce.across`. A rank waits a minute for the others.

    Returns
    -------
    list
        The result of each rank.

    Raises
    ------
    Exception
        The exception of the first rank that raised one, other than because another rank had failed.
    RankGoneError
        If a rank does not arrive; says which rank waits where, and for whom.

    Examples
    --------
    >>> import numpy as np
    >>> from portable_nce.testing import run_ranks
    >>> run_ranks(2, lambda group: group.all_reduce(np.asarray([group.rank + 1.0])).tolist())
    [[3.0], [3.0]]
    """
    runner = _runners[-1] if _runners else as_threads
    found: list[Result] = runner(size, function)
    return found


def as_threads(size: int, function: Callable[[Rank], Any], *, timeout: float = TIMEOUT, limit: float = LIMIT) -> Any:
    """Run ranks as threads, with other limits; see `TIMEOUT` and `LIMIT`."""
    meeting = _Meeting(size, timeout)
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadRank(rank, size, meeting))
        except BaseException as error:  # noqa: BLE001  (handed to the caller)
            errors[rank] = error
        finally:
            meeting.leave(rank)

    meeting.threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in meeting.threads:
        thread.start()
    meeting.join(limit)
    return results_of(results, errors)
