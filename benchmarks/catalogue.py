"""Every loss, similarity, mining, bound, estimator and diagnostic beside its plain formula.

    python benchmarks/catalogue.py                                            everything, less than ten minutes
    python benchmarks/catalogue.py --only info_nce,nca --rows 128,1024 --libraries torch
    python benchmarks/catalogue.py --record                                   also write the record and its tables
    python benchmarks/catalogue.py --report                                   write the tables from the record

The rows are records in benchmarks/formulas: a call, and the same as a user writes it in eager PyTorch, in jitted JAX,
and for functions of scores by hand on NumPy; other libraries stand beside them where they are installed. Value and
gradients (of diagnostics, values) are compared before they are timed. Numbers are times in units of the formula's, the
median over rounds in which both take turns; each library has a process of its own on one core, whose processor time is
measured. `--only` takes names, or parts of titles such as `neg_sq`. A `*` marks fewer than three rounds; `-` what
would take longer than the limit of a row, or than `--minutes`.

`--record` keeps what is not measured again, with its day; delete the record to begin anew. It writes
benchmarks/catalogue.json, a table in docs/speed.md, and by `readme.py` two rows of README.md. Needs torch and JAX;
optional are tqdm, pytorch-metric-learning, info-nce-pytorch and optax.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import SimpleQueue
from textwrap import fill
from typing import Any, Final

import readme
from formulas import ROWS, SECTIONS, Row
from formulas.timing import FORMULA, OURS

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = ROOT / "benchmarks" / "catalogue.json"
PAGE: Final = ROOT / "docs" / "speed.md"
BEGIN: Final = "<!-- catalogue:begin, written by benchmarks/catalogue.py -->\n"
END: Final = "<!-- catalogue:end -->\n"

LIBRARIES: Final[Mapping[str, str]] = {"torch": "PyTorch", "jax": "JAX", "numpy": "NumPy"}
SIZES: Final = (128, 1024, 4096)
WIDTH: Final = 128
PACKAGES: Final = ("numpy", "torch", "jax", "optax", "pytorch-metric-learning", "info-nce-pytorch")
MINUTES: Final = 9.5
LIMIT: Final = 6.0
"""Seconds of four calls of a row's contestants: one that shows the memory, one that warms up, and two rounds."""
SECONDS: Final[Mapping[int, float]] = {128: 0.15, 1024: 0.35}
"""Seconds of the rounds at a size; at larger ones those of two calls."""
PATIENCE: Final = 60.0
"""Seconds after which a row is given up."""
GRACE: Final = 15.0
"""Seconds that the last rows have when the minutes are over."""
FEW: Final = 3
"""Fewer rounds are marked."""
ONE_THREAD: Final = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".nox" / "results" / "catalogue-jax"),  # later runs compile what is new
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
}

Cell = dict[str, Any]
Key = tuple[str, str, int]
"""Title, library, rows."""


class Worker:
    """A process that measures rows on one library, bound to a core."""

    def __init__(self, library: str, core: int) -> None:
        env = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(Path(__file__).parent)}
        command = [sys.executable, "-m", "formulas.timing", library, str(core)]
        self.process = subprocess.Popen(  # noqa: S603  (our own)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        )

    def ask(self, patience: float, **request: Any) -> Cell:
        """Measure a row; a process that takes too long is ended."""
        assert self.process.stdin is not None  # noqa: S101  (pipes were requested)
        assert self.process.stdout is not None  # noqa: S101
        too_late = threading.Event()

        def end() -> None:
            too_late.set()
            self.process.kill()

        timer = threading.Timer(patience, end)
        timer.start()
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            answer: Cell = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            return {"skipped": True} if too_late.is_set() else {"failed": "the process ended"}
        finally:
            timer.cancel()
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


class Bar:
    """A progress bar, if tqdm is installed; threads share it."""

    def __init__(self, total: int) -> None:
        try:
            from tqdm import tqdm  # noqa: PLC0415
        except ImportError:
            self.bar, self.write = None, print
        else:
            self.bar, self.write = tqdm(total=total, unit="row", smoothing=0.05, mininterval=0.5), tqdm.write
        self.lock = threading.Lock()

    def step(self, text: str, line: str = "") -> None:
        """Advance by one row, and print a line above."""
        with self.lock:
            if line:
                self.write(line)
            if self.bar is not None:
                self.bar.set_description(f"{text:42.42}", refresh=False)
                self.bar.update()


def expected_seconds(cells: Mapping[Key, Cell], key: Key) -> float:
    """Predict the time of our call and the formula's from a smaller size: it grows with the square of the rows."""
    title, library, rows = key
    known = [size for size in SIZES if size < rows and "seconds" in cells.get((title, library, size), {})]
    if not known:
        return 0.0
    seconds = cells[title, library, known[-1]]["seconds"]
    total: float = seconds[OURS] + seconds[FORMULA]
    return total * (rows / known[-1]) ** 2


def measure(
    rows: Sequence[Row], sizes: Sequence[int], libraries: Sequence[str], minutes: float, limit: float = LIMIT
) -> dict[Key, Cell]:
    """Measure all rows at a size before the next size, the libraries side by side on different cores."""
    wanted = {
        library: [(row.title, library, size) for size in sizes for row in rows if row.has(library)]
        for library in libraries
    }
    bar, ends = Bar(sum(map(len, wanted.values()))), time.monotonic() + 60 * minutes
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    cells: dict[Key, Cell] = {}

    def of_library(library: str) -> None:
        core = cores.get()
        worker = Worker(library, core)
        for key in wanted[library]:
            title, _, size = key
            once = expected_seconds(cells, key)
            if time.monotonic() > ends or (size == SIZES[-1] and 4 * once > limit):
                cells[key] = {"skipped": True}
                bar.step(title, of_cell(key, cells[key]))
                continue
            seconds = SECONDS.get(size, 1.5 * once)
            patience = min(max(PATIENCE, 10 * limit), ends + GRACE - time.monotonic())
            cell = worker.ask(patience, row=title, rows=size, width=WIDTH, seconds=seconds, memory=size == SIZES[-1])
            cells[key] = rounded(cell)
            if "seconds" not in cell:
                worker.close()
                worker = Worker(library, core)
            bar.step(f"{LIBRARIES[library]} {size} {title}", of_cell(key, cell))
        worker.close()
        cores.put(core)

    with ThreadPoolExecutor(max_workers=cores.qsize()) as pool:
        for done in [pool.submit(of_library, library) for library in libraries]:
            done.result()
    if bar.bar is not None:
        bar.bar.close()
    return cells


def rounded(found: Any) -> Any:
    """Keep four digits of all numbers."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    return float(f"{found:.4g}") if isinstance(found, float) else found


def of_cell(key: Key, cell: Cell) -> str:
    """Describe a measurement by a line."""
    title, library, size = key
    start = f"{LIBRARIES[library]:8}{size:5}  {title:58.58}"
    if "failed" in cell:
        return f"{start} FAILED: {cell['failed']}"
    if "skipped" in cell:
        return f"{start}       -"
    seconds = cell["seconds"]
    times = f"{1000 * seconds[OURS]:9.2f} ms, formula {1000 * seconds[FORMULA]:9.2f} ms"
    others = "".join(f", {name} {ratio:.2f}" for name, ratio in cell["ratio"].items() if name != OURS)
    peak = cell.get("memory")
    memory = f", {mebibytes(peak[OURS])} MiB, formula {mebibytes(peak[FORMULA])}" if peak else ""
    return f"{start}{ratio_of(cell):>8} {times}{memory}{others}"


def ratio_of(cell: Mapping[str, Any] | None, name: str = OURS) -> str:
    """Write a time relative to the formula's."""
    if cell is None:
        return ""
    if "ratio" not in cell or name not in cell["ratio"]:
        return "-" if name == OURS else ""
    ratio: float = cell["ratio"][name]
    digits = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"  # noqa: PLR2004
    return f"{digits}*" if cell["rounds"] < FEW else digits


def of_peer(cell: Mapping[str, Any] | None, name: str) -> str:
    """Write the time of a peer, if it is installed."""
    return "fails" if cell and name in cell.get("failed peers", ()) else ratio_of(cell, name)


def mebibytes(count: float) -> str:
    """Write an amount of memory."""
    return f"{count / 2**20:.0f}"


# ---------------------------------------------------------------------------------------------------- record and tables


def versions() -> dict[str, str]:
    """Give the versions of the installed packages."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def with_cells(record: Mapping[str, Any], cells: Mapping[Key, Cell]) -> dict[str, Any]:
    """Put measurements into a record, whose other cells of known rows stay."""
    today = datetime.now(UTC).date().isoformat()
    kept = {tuple(cell["key"]): cell for cell in record.get("cells", ())}
    for key, cell in cells.items():
        if "seconds" in cell or ("skipped" in cell and key not in kept):
            kept[key] = {"key": list(key), "date": today, **cell}
    order = {row.title: place for place, row in enumerate(ROWS)}
    known = [key for key in kept if key[0] in order]
    known.sort(key=lambda key: (order[key[0]], [*LIBRARIES].index(key[1]), key[2]))
    about = {
        "date": today,
        "processor": readme.processor(),
        "python": platform.python_version(),
        "versions": versions(),
    }
    return {**about, "width": WIDTH, "cells": [kept[key] for key in known]}


def recorded(path: Path = RECORD) -> dict[str, Any]:
    """Read the record."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write_record(record: Mapping[str, Any], path: Path = RECORD) -> None:
    """Write the record, a line for each cell."""
    about = json.dumps({key: value for key, value in record.items() if key != "cells"}, indent=1)
    lines = ",\n".join(f"  {json.dumps(cell)}" for cell in record["cells"])
    path.write_text(f'{about.removesuffix("}").rstrip()},\n "cells": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def cells_of(record: Mapping[str, Any]) -> dict[Key, Cell]:
    """Give the measurements of a record."""
    return {tuple(cell["key"]): cell for cell in record["cells"]}


def table(rows: Iterable[Row], cells: Mapping[Key, Cell]) -> str:
    """Make a table of ratios, of memory on PyTorch at the largest size, and of peers."""
    titles = [f"{LIBRARIES[library]}, {size}" for library in LIBRARIES for size in SIZES]
    title = ("", *titles, f"MiB, {SIZES[-1]}", "formula's", "peers")
    lines = [title, ("---", *("---:" for _ in title[1:-1]), "---")]
    for row in rows:
        ratios = [ratio_of(cells.get((row.title, library, size))) for library in LIBRARIES for size in SIZES]
        peak = cells.get((row.title, "torch", SIZES[-1]), {}).get("memory", {})
        memory = [mebibytes(peak[name]) if name in peak else "" for name in (OURS, FORMULA)]
        found = [(peer.name, cells.get((row.title, peer.library, SIZES[1]))) for peer in row.peers]
        peers = "; ".join(f"{name} {text}" for name, cell in found if (text := of_peer(cell, name)))
        way = f", {row.way}" if row.way else ""
        lines.append((f"`{row.name}`{way}", *ratios, *memory, peers))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def above(cells: Mapping[Key, Cell], rows: Iterable[Row], library: str, size: int, gate: float) -> list[str]:
    """List the rows whose ratio is above a gate, the worst first."""
    found = [(cells.get((row.title, library, size), {}).get("ratio", {}).get(OURS, 0.0), row.title) for row in rows]
    return [f"`{name}` {ratio:.1f}" for ratio, name in sorted(found, reverse=True) if ratio > gate]


GATES: Final = ((128, 3.0), (1024, 1.5))
"""Sizes, and the ratio above which rows are listed."""
MOST: Final = 12
"""Maximum number of rows in such a list."""


def summary(cells: Mapping[Key, Cell]) -> str:
    """List the slowest rows."""
    lines = []
    for library, name in LIBRARIES.items():
        for size, gate in GATES:
            own = [row for row in ROWS if "ratio" in cells.get((row.title, library, size), {})]
            slow = above(cells, own, library, size, gate)
            if own:
                rest = [f"and {len(slow) - MOST} more"] if len(slow) > MOST else []
                listed = f": {', '.join([*slow[:MOST], *rest])}" if slow else ""
                lines.append(f"- {name}, {size} rows: {len(slow)} of {len(own)} above {gate:g}{listed}.")
    filled = (fill(line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) for line in lines)
    return "\n".join(filled) + "\n"


def page(record: Mapping[str, Any]) -> str:
    """Make the generated part of the page."""
    cells = cells_of(record)
    days = sorted({cell["date"] for cell in record["cells"]})
    when = days[-1] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    named = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    machine = f"Measured on {when}: one core of {record['processor']}, Python {record['python']}, {named}."
    tables = [f"**{name}**\n\n{table(rows, cells)}" for name, rows in SECTIONS.items()]
    folded = "\n".join(["<details>\n<summary>Show the tables</summary>\n", *tables, "</details>\n"])
    return f"{fill(machine, 120, break_long_words=False, break_on_hyphens=False)}\n\n{summary(cells)}\n{folded}"


def write(record: Mapping[str, Any]) -> None:
    """Write the table of docs/speed.md, and the numbers of the front pages."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(readme.with_numbers(text, page(record), BEGIN, END), encoding="utf-8")
    readme.write()


def listed(text: str) -> list[str]:
    """Split a list of the command line."""
    return [part.strip() for part in text.split(",") if part.strip()]


def chosen(only: Sequence[str]) -> list[Row]:
    """Rows by their names, or else by parts of their titles."""
    names = {row.name for row in ROWS} & {*only}
    parts = {*only} - names
    return [row for row in ROWS if not only or row.name in names or any(part in row.title for part in parts)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and record; returns the number of failed rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--only", type=listed, default=[], metavar="NAMES", help="names or parts of titles, by commas")
    parser.add_argument("--rows", type=listed, default=[*map(str, SIZES)], help="numbers of rows, by commas")
    parser.add_argument("--libraries", type=listed, default=[*LIBRARIES], help=f"some of {','.join(LIBRARIES)}")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="rows that would start later are left out")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="seconds of four calls of a row at 4096 rows, at most"
    )
    parser.add_argument("--record", action="store_true", help="write the measurements into the record and its tables")
    parser.add_argument("--report", action="store_true", help="write the tables from the record")
    options = parser.parse_args(arguments)
    if options.report:
        write(recorded())
        return 0
    rows = chosen(options.only)
    cells = measure(rows, [*map(int, options.rows)], options.libraries, options.minutes, options.limit)
    print(f"\n{summary(cells)}")
    failed = [of_cell(key, cell) for key, cell in cells.items() if "failed" in cell]
    print(*failed, sep="\n")
    if options.record:
        record = with_cells(recorded(), cells)
        write_record(record)
        write(record)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
