"""Mutation testing of the core and of the adapters: find the small changes of the code that no test notices.

In one process the frameworks are imported and the tests collected. For each mutant it forks, the functions that are
alive get the mutant's code, and the tests that run the changed line go on until one fails. Where the change is in what
has run by then (tables, classes, defaults), the package is imported afresh with the mutant's source instead. No file
is changed.

``python -P -m mutation.run WORK --sample 1500``, with tools/ on the path, goes on with the results in
the folder WORK.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .mutants import FILES, Mutant, mutants_of, sample
from .patches import alive, import_instead, patch
from .stages import STAGES, Plugin, Profile, import_all, profiled, run_pytest, run_tests, state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pytest

FRAMEWORKS: Final = ("numpy", "torch", "jax", "jax.numpy", "array_api_strict", "mparray", "mpmath")
GIGABYTES: Final = 6
BROKEN: Final = 70
"""How a process ends in which something is wrong with these tests of tests."""


def forked(
    jobs: Iterable[Any], work: Callable[[Any], dict[str, Any]], processes: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Give each job with what work gives for it in a process of its own."""
    running: dict[int, tuple[Any, int, float]] = {}

    def ended() -> tuple[Any, dict[str, Any]]:
        pid, status = os.wait()
        job, reader, start = running.pop(pid)
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read()
        if answer:
            result = json.loads(answer)
        elif os.waitstatus_to_exitcode(status) == BROKEN:
            raise SystemExit(BROKEN)
        else:
            late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
            result = {"status": "timeout" if late else "killed", "by": f"the process ended: {status}"}
        return job, {**result, "seconds": round(time.monotonic() - start, 2)}

    for job in jobs:
        if len(running) == processes:
            yield ended()
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of JAX, about forks; none of its threads has started
            pid = os.fork()
        if pid:
            os.close(writer)
            running[pid] = job, reader, time.monotonic()
            continue
        try:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            resource.setrlimit(resource.RLIMIT_DATA, (GIGABYTES << 30, GIGABYTES << 30))
            answer = json.dumps(work(job))
            with os.fdopen(writer, "w", encoding="utf-8") as pipe:
                pipe.write(answer)
        except BaseException:  # noqa: BLE001  whatever it is, it must not get out of this process
            traceback.print_exc()
            os._exit(BROKEN)
        os._exit(0)
    while running:
        yield ended()


def verdict(plugin: Plugin, number: int, of: int) -> dict[str, Any]:
    """Say what became of a mutant."""
    return {"status": "killed" if plugin.failed else "survived", "by": plugin.failed, "tests": number, "of": of}


class Run:
    """The mutants of one stage, and the file that takes the results."""

    def __init__(self, work: Path, stage: str, *, budget: float, processes: int) -> None:
        self.results = work / "results.jsonl"
        self.stage = stage
        self.budget = budget
        self.processes = processes
        self.kills: dict[str, Counter[str]] = defaultdict(Counter)
        path = work / f"{stage}-{state()}.json"
        if not path.exists():

            def profile(path: Path) -> dict[str, Any]:
                profiled(stage).write(path)
                return {"status": "written"}

            list(forked([path], profile, 1))
        self.profile = Profile.read(path)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Give the tests to run for a mutant."""
        return self.profile.order(self.profile.tests_of(mutant), self.kills[mutant.file], self.budget)

    def note(self, outcomes: Iterable[tuple[Mutant, dict[str, Any]]]) -> None:
        """Write results."""
        with self.results.open("a", encoding="utf-8") as file:
            for mutant, result in outcomes:
                if result["status"] == "again":
                    continue
                if result["status"] == "killed":
                    self.kills[mutant.file][result["by"].partition(": ")[0]] += 1
                line = {"name": mutant.name, "file": mutant.file, "stage": self.stage, "budget": self.budget, **result}
                file.write(json.dumps(line) + "\n")
                file.flush()

    def covered(self, mutants: Sequence[Mutant]) -> list[Mutant]:
        """List those that a test of this stage runs."""
        return [mutant for mutant in mutants if self.profile.tests_of(mutant)]

    def uncovered(self, mutants: Sequence[Mutant]) -> dict[str, Any]:
        """Write which mutants no test of this stage runs."""
        covered = {mutant.name for mutant in self.covered(mutants)}
        bare = (mutant for mutant in mutants if mutant.name not in covered)
        self.note((mutant, {"status": "not covered", "by": "", "tests": 0, "of": 0, "seconds": 0.0}) for mutant in bare)
        return {}

    def warm(self, mutants: Sequence[Mutant]) -> dict[str, Any]:
        """Test the mutants by new code for functions that are alive."""

        def loop(session: pytest.Session) -> None:
            import_all()
            functions = alive()
            gc.freeze()

            def work(mutant: Mutant) -> dict[str, Any]:
                if not patch(mutant, functions, self.profile.ran):
                    return {"status": "again"}
                tests = self.tests_of(mutant)
                run_tests(session, tests, self.profile.seconds)
                return verdict(plugin, len(tests), len(self.profile.tests_of(mutant)))

            self.note(forked(self.covered(mutants), work, self.processes))

        plugin = Plugin(loop)
        run_pytest(STAGES[self.stage], plugin)
        if plugin.failed:
            raise SystemExit(plugin.failed)
        return {}

    def cold(self, mutants: Sequence[Mutant]) -> dict[str, Any]:
        """Test the mutants by importing them."""

        def work(mutant: Mutant) -> dict[str, Any]:
            import_instead(mutant)
            signal.setitimer(signal.ITIMER_REAL, 120.0)
            tests = self.tests_of(mutant)
            plugin = Plugin(lambda session: run_tests(session, tests, self.profile.seconds))
            run_pytest(STAGES[self.stage], plugin)
            return verdict(plugin, len(tests), len(self.profile.tests_of(mutant)))

        self.note(forked(self.covered(mutants), work, self.processes))
        return {}


def done(work: Path, stage: str, budget: float) -> set[str]:
    """List the mutants that need no more tests of a stage."""
    path = work / "results.jsonl"
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines()) if path.exists() else ()
    return {
        line["name"]
        for line in lines
        if line["status"] in {"killed", "timeout"}
        or (line["stage"] == stage and line["tests"] and (line["tests"] == line["of"] or line["budget"] >= budget))
    }


def main() -> None:
    """Test the mutants of a sample, stage after stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="the folder for results")
    parser.add_argument("--sample", type=int, default=1500, help="how many mutants, in proportion to each file's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", nargs="*", default=FILES, help="these files only")
    parser.add_argument("--stages", nargs="*", default=list(STAGES), choices=STAGES)
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds of tests for a mutant in a stage")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for name in FRAMEWORKS:
        importlib.import_module(name)
    drawn = sample([mutant for file in FILES for mutant in mutants_of(file)], options.sample, options.seed)
    drawn = [mutant for mutant in drawn if mutant.file in options.files]
    for stage in options.stages:
        run = Run(options.work, stage, budget=options.budget, processes=options.processes)
        for way in (run.uncovered, run.warm, run.cold):
            finished = done(options.work, stage, options.budget)
            mutants = [mutant for mutant in drawn if mutant.name not in finished]
            sys.stderr.write(f"{stage}, {way.__name__}: {len(mutants)} mutants\n")
            list(forked([mutants], way, 1))


if __name__ == "__main__":
    main()
