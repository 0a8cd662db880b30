"""Start, watch and stop the processes of a group together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")
TESTS = Path(__file__).parents[1]
TIMEOUT = 420.0
"""Seconds after which processes are stopped."""


def launch(size: int, topic: str, directory: Path, *, timeout: float = TIMEOUT) -> list[dict[str, Any]]:
    """Return the reports of the processes of a group on a topic.

    If a process dies, the others, which may wait for it forever, are stopped after five seconds.
    """
    directory.mkdir(parents=True, exist_ok=True)
    store = directory / "store"
    reports = [directory / f"{rank}.json" for rank in range(size)]
    for path in (store, *reports):
        path.unlink(missing_ok=True)
    modules = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": modules, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    logs = [(directory / f"{rank}.log").open("w") for rank in range(size)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), topic, str(rank), str(size), str(store), str(reports[rank])],
            env=environment,
            stdout=logs[rank],
            stderr=subprocess.STDOUT,
        )
        for rank in range(size)
    ]
    try:
        _wait(processes, timeout)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for log in logs:
            log.close()
    missing = [rank for rank, path in enumerate(reports) if not path.exists()]
    if missing:
        text = (directory / f"{missing[0]}.log").read_text()[-4000:]
        raise RuntimeError(f"rank {missing[0]} of {size} left no report on {topic}:\n{text}")
    return [json.loads(path.read_text()) for path in reports]


def _wait(processes: list[subprocess.Popen[bytes]], timeout: float) -> None:
    end = time.monotonic() + timeout
    while any(process.poll() is None for process in processes) and time.monotonic() < end:
        if any(process.poll() not in {None, 0} for process in processes):
            end = min(end, time.monotonic() + 5.0)
        time.sleep(0.02)
