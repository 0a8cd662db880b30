"""Ranks as processes, for variants on whose device threads would block one another.

PyTorch runs all backward passes of a CUDA device in one thread: a rank that waits for another within its backward pass
would keep it from running. Here every rank is a process, which runs the whole test, side by side with pytest's own.
`run_ranks` then runs its function on the rank of each process, and returns in all of them the results of all ranks,
which pass through pytest's process. So functions need not be sent, and assertions are pytest's.
"""

from __future__ import annotations

import faulthandler
import importlib
import inspect
import multiprocessing
import shutil
import tempfile
import traceback
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .ranks import LIMIT, TIMEOUT, Rank, RankGoneError, results_of, running_by
from .variants import started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["MOST", "ProcessRank", "RankProcesses"]

Array = Any

MOST = 5
"""Number of processes, and the largest number of ranks."""

START = 600.0
"""Seconds within which the processes have to start."""


@dataclass(eq=False)
class ProcessRank(Rank):
    """A rank that is a process; `group` has the methods of `portable_nce.Communicator`."""

    group: Any
    timeout: float = TIMEOUT

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "group": None}

    def _all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        with self._waiting():
            return self.group.all_gather(x, counts)

    def _reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        with self._waiting():
            return self.group.reduce_scatter(x, counts)

    def _all_reduce(self, x: Array, *, largest: bool) -> Array:
        with self._waiting():
            return self.group.all_reduce(x, largest=largest)

    def _tell(self, numbers: Sequence[int]) -> list[list[int]]:
        with self._waiting():
            return [list(part) for part in self.group.tell(numbers)]

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # the group's, after its timeout or the end of a process
            raise RankGoneError(
                f"rank {self.rank} waits for the others in {self.log[-1].kind}, its collective {len(self.log)}, for "
                f"{self.timeout:g} s, or one has gone: {error}"
            ) from error


class RankProcesses:
    """Processes of the ranks of a variant, which run tests side by side with this one.

    Parameters
    ----------
    variant : str
        Name of the variant, or its module and attribute.
    timeout : float, default: 60
        Seconds that a rank waits for the others.
    limit : float, default: 300
        Seconds within which each process has to answer.
    size : int, default: 5
        Number of processes, the largest number of ranks.
    """

    def __init__(self, variant: str, *, timeout: float = TIMEOUT, limit: float = LIMIT, size: int = MOST) -> None:
        self.limit, self.size = limit, size
        self.folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self.connections: list[Any] = []
        self.processes: list[Any] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = theirs, variant, rank, size, str(self.folder), timeout, limit
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)
        self.works = True
        """Whether the processes can run another test."""
        self.ready = False

    def close(self) -> None:
        """Stop the processes."""
        self.works = False
        for process in self.processes:
            process.kill()
            process.join()
        for connection in self.connections:
            connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, test: Callable[..., Any], own: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
        """Run a test here, with its own arguments, and in the processes, with arguments that can be sent.

        The processes make the fixtures `variant` and `monkeypatch` themselves.
        """
        try:
            for rank in range(0 if self.ready else self.size):
                self._received(rank, START)
            self.ready = True
            for connection in self.connections:
                connection.send(((test.__module__, test.__qualname__), dict(sent)))
            with running_by(self._together):
                test(**own)
            for rank in range(self.size):
                kind, content = self._received(rank)
                results_of((), [content if kind == "ended" else RankGoneError(f"rank {rank} calls `run_ranks` again")])
        except BaseException:
            self.close()  # processes may wait for one another
            raise

    def _together(self, size: int, function: Callable[[Rank], Any]) -> list[Any]:
        """Results of a function that runs in the processes."""
        del function
        if size > self.size:
            raise ValueError(f"size: expected at most {self.size} ranks that are processes, got {size}")
        outcomes = []
        for rank in range(self.size):
            kind, content = self._received(rank)
            if kind == "ended":
                raise content or RankGoneError(f"rank {rank} has ended the test before its function ran")
            outcomes.append(content)
        for connection in self.connections:
            connection.send(outcomes[:size])
        return results_of(*zip(*outcomes[:size], strict=True))

    def _received(self, rank: int, limit: float | None = None) -> tuple[str, Any]:
        """Next message of a process, within the limit."""
        connection, limit = self.connections[rank], limit or self.limit
        try:
            if connection.poll(limit):
                message: tuple[str, Any] = connection.recv()
                return message
        except (EOFError, ConnectionError):
            raise RankGoneError(f"the process of rank {rank} has ended:\n{self._log(rank)}") from None
        raise RankGoneError(f"rank {rank} has not answered for {limit:g} s; it is at:\n{self._log(rank)}")

    def _log(self, rank: int) -> str:
        path = _log_of(self.folder, rank)
        return path.read_text(encoding="utf-8", errors="replace")[-3000:] if path.exists() else "an unknown place"


def _log_of(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.log"


def _serve(connection: Any, name: str, rank: int, size: int, folder: str, *seconds: float) -> None:
    """Run tests in a process, until pytest's process closes the connection; `seconds`: timeout and limit."""
    timeout, limit = seconds
    with _log_of(Path(folder), rank).open("w", encoding="utf-8") as log:

        def watch(seconds: float = 0.8 * limit) -> None:
            """Write into the log where this process is, if it does not come here again for a time."""
            faulthandler.cancel_dump_traceback_later()
            faulthandler.dump_traceback_later(seconds, file=log)

        def on_this_rank(count: int, function: Callable[[Rank], Any]) -> list[Any]:
            outcome: tuple[Any, Any] = None, None
            if rank < count:
                try:
                    outcome = function(ProcessRank(rank, count, group_of(count), timeout)), None
                    ForkingPickler.dumps(outcome)
                except Exception as error:  # noqa: BLE001  (handed to all processes)
                    outcome = None, _sendable(error, rank)
            connection.send(("outcome", outcome))
            outcomes = connection.recv()
            watch()
            return results_of(*zip(*outcomes, strict=True))

        try:
            watch(0.8 * START)
            group_of = started(name).rank_groups(rank, size, Path(folder) / "store", timeout)
        except Exception:
            traceback.print_exc(file=log)
            raise
        connection.send(("ready", None))
        while True:
            faulthandler.cancel_dump_traceback_later()
            try:
                (module, test), arguments = connection.recv()
            except EOFError:  # the end of pytest's process
                return
            watch()
            failure = _failure_of(getattr(importlib.import_module(module), test), arguments, on_this_rank, name, rank)
            connection.send(("ended", failure))


def _failure_of(test: Any, arguments: dict[str, Any], runner: Any, name: str, rank: int) -> Exception | None:
    """Error of a test in this process, or None."""
    import pytest

    variant = started(name)
    try:
        with ExitStack() as stack:
            if "variant" in inspect.signature(test).parameters:
                stack.enter_context(variant.active())
                arguments = {**arguments, "variant": variant}
            if "monkeypatch" in inspect.signature(test).parameters:
                arguments = {**arguments, "monkeypatch": stack.enter_context(pytest.MonkeyPatch.context())}
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("error")
            stack.enter_context(running_by(runner))
            test(**arguments)
    except Exception as error:  # noqa: BLE001  (handed to pytest's process)
        return _sendable(error, rank)
    return None


def _sendable(error: Exception, rank: int) -> Exception:
    """Error that can be sent, with its traceback as a note."""
    text = "".join(traceback.format_exception(error))
    pickler: Any = ForkingPickler  # `loads` has a wrong type
    try:
        pickler.loads(pickler.dumps(error))
    except Exception:  # noqa: BLE001  (whatever pickling raises)
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"on rank {rank}:\n{text}")
    return error
