"""Speed and memory of the losses on this machine, against a roofline and other implementations.

Each figure is a ratio within one interleaved run: contestants run in separate processes and take turns over several
rounds; the figure is the median over rounds of the time relative to the roofline in the same round. The roofline is
three matrix products and the exponentials of a square matrix, or of N x V over a vocabulary, in preallocated memory:
the minimum for InfoNCE with all gradients. Memory is the peak above inputs and gradients.

`python benchmarks/speed.py` measures everything (nearly an hour) and writes benchmarks/speed.md, docs/speed.png and the
output of `readme.py`; `--only info_nce` measures some losses again and keeps the other sections of the page; `--quick`
measures small sizes once and writes nothing; `--device cuda` measures torch, JAX and CuPy on a GPU, and writes
benchmarks/speed-cuda.md. Needs torch, JAX, optax, pytorch-metric-learning and matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import readme
from contestants import CONTESTANTS, LINEAR, NORMALIZED, TRAINED, Contestant, Setting

HERE: Final = Path(__file__).parent
DOCS: Final = HERE.parent / "docs"
WORK: Final = HERE.parent / ".nox" / "results" / "bench"
RECORDS: Final = HERE
"""Folder of the tables."""

TITLE: Final = "# Measurements of speed and memory\n\n<!-- Written by benchmarks/speed.py. -->\n\n"

PACKAGES: Final = ("portable_nce", "numpy", "torch", "jax", "optax", "pytorch-metric-learning", "array-api-compat")
ROOF: Final = "roofline"
"""Name of the reference contestants, of the same library or torch's."""
WHOLE_MATRIX: Final = ("formula, torch", "formula, jax.jit", "optax, jax.jit", "pytorch-metric-learning")
"""Contestants that hold several N x N matrices, too large from 32768 rows on."""
LARGE: Final = 32768
LARGEST: Final = 131072
MILLION: Final = 1000000
"""Number of items of a large catalogue."""
OF_A_MILLION: Final = ("roofline, torch", "portable_nce, torch", "formula, torch")
"""Contestants there."""
TIMEOUT: Final = 3600.0


@dataclass(frozen=True)
class Grid:
    """Sizes of a loss: rows, width, number of rounds, and classes of a vocabulary, if any."""

    loss: str
    sizes: tuple[tuple[int, ...], ...]


GRID: Final = (
    Grid(
        "info_nce",
        (
            (128, 128, 15),
            (512, 128, 15),
            (2048, 128, 11),
            (8192, 128, 7),
            (32768, 128, 3),
            (131072, 128, 1),
            (512, 512, 15),
            (2048, 512, 9),
            (8192, 512, 5),
        ),
    ),
    Grid(NORMALIZED, ((128, 128, 15), (512, 128, 15), (2048, 128, 11))),
    *(Grid(loss, ((8192, 128, 7), (8192, 512, 5))) for loss in ("nt_xent", "clip", "siglip")),
    *(Grid(loss, ((8192, 128, 5),)) for loss in ("supcon", "moco", "dcl", "flat_nce")),
    Grid(TRAINED, ((512, 128, 9), (2048, 128, 5))),
    Grid(LINEAR, ((512, 64, 9, 32768), (4096, 256, 3, 32768), (1024, 64, 3, 262144), (512, 64, 3, MILLION))),
)
QUICK: Final = tuple(Grid(grid.loss, ((64, 16, 1, *([96] if grid.loss == LINEAR else [])),)) for grid in GRID)


def entered(loss: str, setting: Setting) -> list[Contestant]:
    """Give the available contestants of a loss."""
    found = []
    for (own, name), contestant in CONTESTANTS.items():
        if own != loss:
            continue
        if setting.device == "cpu" and contestant.library == "cupy":
            continue
        if setting.device != "cpu" and contestant.library == "numpy":
            continue
        if setting.rows >= LARGE and name in WHOLE_MATRIX:
            continue
        if setting.columns >= MILLION and name not in OF_A_MILLION:
            continue
        if setting.rows >= LARGEST and not name.startswith(("portable_nce", "roofline")):
            continue
        found.append(contestant)
    return found


@contextmanager
def process(contestant: Contestant, setting: Setting) -> Iterator[subprocess.Popen[str] | None]:
    """Start the process of a contestant and wait until it is ready; None if it fails."""
    command = [sys.executable, str(HERE / "contestants.py"), contestant.loss, contestant.name]
    command += [str(setting.rows), str(setting.width), setting.device, str(setting.columns)]
    env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    env["JAX_PLATFORMS"] = "cpu" if setting.device == "cpu" else "cuda"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as started:  # noqa: S603  (our own)
        try:
            assert started.stdout is not None  # noqa: S101  (a pipe was requested)
            yield started if started.stdout.readline().strip() == "ready" else None
        finally:
            started.kill()


def ask(started: subprocess.Popen[str] | None, what: str) -> list[float]:
    """Request a measurement of a process; None if it fails."""
    if started is None or started.poll() is not None:
        return []
    assert started.stdin is not None  # noqa: S101
    assert started.stdout is not None  # noqa: S101
    started.send_signal(signal.SIGCONT)
    print(what, file=started.stdin, flush=True)
    answer = [float(word) for word in started.stdout.readline().split()]
    started.send_signal(signal.SIGSTOP)  # spinning threads would take processors from the others
    return answer


def measure(loss: str, setting: Setting, rounds: int) -> dict[str, Any]:
    """Let the contestants take turns."""
    contestants = entered(loss, setting)
    seconds: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    memory: dict[str, float] = {}
    if setting.rows >= LARGEST:
        for contestant in contestants:
            with process(contestant, setting) as started:
                memory[contestant.name], took = ask(started, "both")
                seconds[contestant.name].append(took)
    else:
        with ExitStack() as stack:
            running = {c.name: stack.enter_context(process(c, setting)) for c in contestants}
            for _ in range(rounds):
                for name, started in running.items():
                    seconds[name] += ask(started, "time")
                    time.sleep(0.02)  # let the threads of one library idle before the next one starts
            for name, started in running.items():
                memory.update((name, found) for found in ask(started, "memory"))
    return {
        "loss": loss,
        "rows": setting.rows,
        "width": setting.width,
        "columns": setting.columns,
        "device": setting.device,
        "seconds": seconds,  # empty for failed contestants
        "memory": memory,
        "library": {contestant.name: contestant.library for contestant in contestants},
    }


def roof_of(result: Mapping[str, Any], name: str) -> list[float]:
    """Find the times to compare a contestant with."""
    library = "numpy" if result["library"][name] == "numpy" else "torch"
    times: dict[str, list[float]] = result["seconds"]
    return next(times[own] for own, of in result["library"].items() if own.startswith(ROOF) and of == library)


def ratio(result: Mapping[str, Any], name: str) -> float:
    """Divide a contestant's times by the roofline's, round by round."""
    pairs = zip(result["seconds"][name], roof_of(result, name), strict=True)
    return float(statistics.median(own / roof for own, roof in pairs))


def milliseconds(seconds: float) -> str:
    """Write a time with three digits."""
    value = seconds * 1000
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"  # noqa: PLR2004


def mebibytes(count: float) -> str:
    """Write an amount of memory."""
    return f"{max(0.0, count) / 2**20:.0f}"


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Write the times: a row for each contestant, a column for each result."""
    names = list(dict.fromkeys(name for result in results for name in result["seconds"]))
    names.sort(key=lambda name: (not name.startswith(ROOF), not name.startswith("portable_nce")))
    lines = [f"| | {' | '.join(columns(results))} |", f"|---|{'---:|' * len(results)}"]
    for name in names:
        cells = []
        for result in results:
            if not result["seconds"].get(name):
                cells.append("does not fit" if name in result["seconds"] else "")
                continue
            time_of = milliseconds(statistics.median(result["seconds"][name]))
            cells.append(time_of if name.startswith(ROOF) else f"{time_of} ({ratio(result, name):.2f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def memory_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Write the peak memory, likewise."""
    names = [name for name in dict.fromkeys(n for r in results for n in r["memory"]) if not name.startswith(ROOF)]
    names.sort(key=lambda name: not name.startswith("portable_nce"))
    lines = [f"| MiB | {' | '.join(columns(results))} |", f"|---|{'---:|' * len(results)}"]
    for name in names:
        cells = [mebibytes(result["memory"][name]) if name in result["memory"] else "" for result in results]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


TITLES: Final = {
    "info_nce": "InfoNCE",
    NORMALIZED: "InfoNCE with normalisation",
    "nt_xent": "NT-Xent",
    "clip": "CLIP",
    TRAINED: "CLIP of trained embeddings",
    "siglip": "SigLIP",
    "supcon": "SupCon",
    "moco": "MoCo",
    "dcl": "DCL",
    "flat_nce": "FlatNCE",
    LINEAR: "linear_softmax",
}


MILLION_ITEMS: Final = "a million items"
ALONE: Final = {"info_nce", NORMALIZED, TRAINED, LINEAR}
"""Losses that have a section of their own."""


def columns(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the columns of a table: the size, and the loss in tables of several."""
    names = []
    for result in results:
        classes = [result["columns"]] if result.get("columns") else []
        size = " × ".join(map(str, (result["rows"], *classes, result["width"])))
        names.append(size if result["loss"] in ALONE else f"{TITLES[result['loss']]}, {size}")
    return names


def versions() -> str:
    """Write the versions of all contestants."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def gpu() -> str:
    """Describe the GPU, and the precision of matrix products on it."""
    import torch  # noqa: PLC0415  (for a GPU alone)

    precision = torch.get_float32_matmul_precision()
    return f"{torch.cuda.get_device_name()}, float32 products in torch's precision `{precision}`"


READING: Final = (
    "Times are milliseconds for value and all gradients in float32, the median of the rounds. In parentheses is the"
    " ratio to the roofline of the same library, the median over the rounds; for JAX to torch's, the faster one. Memory"
    " is the peak above inputs and gradients.\n"
)
SECTIONS: Final = {
    "### InfoNCE\n": ("info_nce",),
    "### With normalisation\n": (NORMALIZED,),
    "### Other losses\n": tuple(loss for loss in TITLES if loss not in ALONE),
    "### Trained embeddings\n": (TRAINED,),
    "### Over a vocabulary\n": (LINEAR,),
    "### Over a million items\n": (MILLION_ITEMS,),
}
"""Losses of each section of the page."""
ABOUT: Final = {
    "### With normalisation\n": "InfoNCE as in a training: each implementation normalises the embeddings.\n",
    "### Other losses\n": (
        "N counts the views in NT-Xent, DCL and FlatNCE. SupCon has 1000 classes, MoCo a queue of 4 N keys.\n"
    ),
    "### Trained embeddings\n": (
        "CLIP at a scale of 100; the cosine of a pair is 0.87. Nearly all gradients of scores are then subnormal"
        " numbers, with which processors compute slowly. `torch.set_flush_denormal(True)`, once per process, replaces"
        " them by 0 in eager code as well; portable_nce needs no setting.\n"
    ),
    "### Over a vocabulary\n": "`density.linear_softmax` of N rows, V classes and D features: N × V × D.\n",
    "### Over a million items\n": (
        "`density.linear_softmax` on PyTorch, likewise. The formula is `cross_entropy(x @ weight.T, labels)`.\n"
    ),
}


def topic(result: Mapping[str, Any]) -> str:
    """Give the loss of a result, by which its section is found; a million items have a section of their own."""
    loss: str = result["loss"]
    return MILLION_ITEMS if result.get("columns", 0) >= MILLION else loss


def page(results: Sequence[Mapping[str, Any]], device: str, before: str = "") -> str:
    """Write the measured part of the page; other sections are kept."""
    parts = [READING]
    for heading, losses in SECTIONS.items():
        own = [result for result in results if topic(result) in losses]
        own.sort(key=lambda r: (losses.index(topic(r)), r["width"], r["rows"]))
        if own:
            parts += [heading, section(own, device, ABOUT.get(heading, "")), ""]
        elif heading in before:
            kept = before.partition(heading)[2].partition("\n### ")[0]
            parts += [heading, kept.strip("\n"), ""]
    return "\n".join(parts)


def section(results: Sequence[Mapping[str, Any]], device: str, about: str) -> str:
    """Write the measurements of some losses, with date and machine."""
    cores = len(os.sched_getaffinity(0))
    machine = f"{readme.processor()}, {cores} core{'s' * (cores > 1)}" if device == "cpu" else gpu()
    last = max(result["day"] for result in results)
    parts = [about] if about else []
    parts.append(f"Measured on {last}: {machine}, Python {platform.python_version()}, {versions()}.\n")
    earlier = [result for result in results if result["day"] != last]
    if earlier:
        listed = ", ".join(f"{TITLES[r['loss']]} {size}" for r, size in zip(earlier, columns(earlier), strict=True))
        parts.append(f"Measured on earlier days, with the code and the roofline of then: {listed}.\n")
    return "\n".join([*parts, folded(f"{table(results)}\n\n{memory_table(results)}")])


def folded(tables: str) -> str:
    """Fold tables behind a summary line."""
    return f"<details>\n<summary>Show the tables</summary>\n\n{tables}\n\n</details>"


def kept(device: str) -> list[dict[str, Any]]:
    """Read the recorded measurements and their dates."""
    return [
        {
            **json.loads(path.read_text(encoding="utf-8")),
            "day": datetime.fromtimestamp(path.stat().st_mtime, UTC).date(),
        }
        for path in sorted((WORK / device).glob("*.json"))
    ]


def run(grids: Iterable[Grid], device: str, *, keep: bool) -> list[dict[str, Any]]:
    """Measure, and print as it goes."""
    results = []
    for grid in grids:
        for rows, width, rounds, *classes in grid.sizes:
            result = measure(grid.loss, Setting(rows, width, device, *classes), rounds)
            results.append(result)
            print(f"\n{TITLES[grid.loss]}\n{table([result])}\n\n{memory_table([result])}", flush=True)
            if keep:
                (WORK / device).mkdir(parents=True, exist_ok=True)
                path = WORK / device / f"{'-'.join(map(str, (grid.loss, rows, width, *classes)))}.json"
                path.write_text(json.dumps(result), encoding="utf-8")
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, once; nothing is written")
    parser.add_argument("--only", nargs="*", default=[], metavar="LOSS", help="measure these losses, keep the others")
    parser.add_argument("--sizes", nargs="*", default=[], metavar="NxD[xV]", help="measure these sizes alone")
    parser.add_argument("--report", action="store_true", help="write the page from what has been measured")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args(arguments)
    if options.quick:
        run(QUICK, options.device, keep=False)
        return
    if not options.report:
        wanted = {tuple(map(int, size.split("x"))) for size in options.sizes}
        run(
            (
                Grid(grid.loss, tuple(size for size in grid.sizes if not wanted or (*size[:2], *size[3:]) in wanted))
                for grid in GRID
                if not options.only or grid.loss in options.only
            ),
            options.device,
            keep=True,
        )
    results = [result for result in kept(options.device) if result["loss"] in TITLES]  # skip removed losses
    name = "speed" if options.device == "cpu" else f"speed-{options.device}"
    path = RECORDS / f"{name}.md"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(TITLE + page(results, options.device, before), encoding="utf-8")
    if options.device == "cpu":
        readme.main(DOCS.parent)
    if any(result["loss"] == "info_nce" for result in results):
        readme.draw_sizes(path.read_text(encoding="utf-8"), DOCS / f"{name}.png")


if __name__ == "__main__":
    main()
