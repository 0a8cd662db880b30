"""Ranks of the conformance suite as threads and as processes: results, and errors within a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ranks import on_processes

from portable_nce.testing.processes import RankProcesses
from portable_nce.testing.ranks import RankGoneError, as_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = "ranks.on_processes:VARIANT"
CASES = (
    "test_ranks_agree_with_one_process and (siglip or supcon or nt_xent)",
    "test_each_pair_of_own_scores and dcl",
    *("test_queues_of_all_ranks", "test_arguments_that_differ", "test_half_precision_travels", "test_one_rank_is"),
)


@pytest.fixture
def processes() -> Iterator[Callable[..., RankProcesses]]:
    """Start processes, and stop them at the end."""
    made: list[RankProcesses] = []

    def start(**options: Any) -> RankProcesses:
        made.append(RankProcesses(NAME, size=2, **options))
        return made[-1]

    yield start
    for one in made:
        if one.works:
            one.close()


@pytest.mark.full
def test_a_part_of_the_suite_runs_on_processes() -> None:
    """On CPU tensors, by gloo, as on a GPU."""
    plugins = "-p", "portable_nce.testing.plugin", "-p", "portable_nce.testing.covering", "-p", "no:cacheprovider"
    suite = "--pyargs", "portable_nce.testing.suite", "--variant", NAME, "-k", " or ".join(f"({x})" for x in CASES)
    command = [sys.executable, "-P", "-m", "pytest", *plugins, *suite, "-q", "-p", "no:xdist"]
    tests = str(Path(on_processes.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": tests, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(result.stdout.rpartition(" passed")[0].split()[-1]) >= 12, result.stdout


def test_processes_run_one_test_after_another(processes: Any) -> None:
    group, variant = processes(), on_processes.VARIANT
    for number in (1.0, 3.0):
        group.run(on_processes.total, {"variant": variant, "of": number}, {"of": number})
    with pytest.raises(LookupError, match="of one rank") as caught:
        group.run(on_processes.disagree, {"variant": variant}, {})
    assert "on rank 1:" in caught.value.__notes__[0]
    assert "in on_a_rank" in caught.value.__notes__[0]
    assert not group.works


def test_a_process_that_misses_a_collective_is_an_error(processes: Any) -> None:
    with pytest.raises(RankGoneError, match=r"rank 1 waits for the others in all_reduce, its collective 1, for 2 s"):
        processes(timeout=2.0).run(on_processes.stay_away, {"variant": on_processes.VARIANT}, {})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (on_processes.die, r"^the process of rank 1 has ended"),
        (on_processes.stand_still, r"(?s)^rank 1 has not answered for 4 s; it is at:.* in stand_still"),
    ],
)
def test_a_process_that_does_not_answer_is_an_error(processes: Any, function: Any, message: str) -> None:
    group = processes(limit=4.0)
    with pytest.raises(RankGoneError, match=message):
        group.run(function, {}, {})
    assert not any(process.is_alive() for process in group.processes)


def test_a_thread_that_misses_a_collective_is_an_error() -> None:
    def miss(group: Any) -> None:
        if group.rank:
            group.all_reduce(np.ones(2))
        time.sleep(1.0)

    words = r"^rank 1 waits for \[0\] in all_reduce, its collective 1; rank 0 is at test_runners.py:\d+, in miss$"
    with pytest.raises(RankGoneError, match=words):
        as_threads(2, miss, timeout=0.2)


def test_a_thread_that_has_ended_is_told_from_one_that_is_late() -> None:
    with pytest.raises(RankGoneError, match=r"^rank 1 waits for \[0\] in tell, its collective 1; rank 0 has ended$"):
        as_threads(2, lambda group: group.tell([1]) if group.rank else None)


def test_threads_that_stand_still_are_an_error() -> None:
    with pytest.raises(RankGoneError, match=r"^no rank met another or ended within 0.2 s: rank 0 is at .*; rank 1 is"):
        as_threads(2, lambda _: time.sleep(5.0), limit=0.2)
