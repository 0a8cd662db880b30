"""Code search trained with our loss and those of other libraries: quality, time and memory.

`python benchmarks/training.py quality` trains, `cost` measures time and memory (on Linux), and both record their
numbers in docs/training.json. `page` writes docs/training.md, docs/training.png and benchmarks/training.md from that
record. Without any, all three run. `--quick` prints the tables of short runs and writes nothing. `code_search.py` has
the data, the encoder and the losses. Needs torch, networkx and matplotlib. Losses of libraries that are not installed
are left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from statistics import mean, median, stdev
from textwrap import fill
from typing import Any, Final

import code_search
import torch
from code_search import CACHED, EAGER, FLAT, LENGTHS, OURS, VOCABULARY, Encoder, corpus, losses
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from portable_nce.diagnostics import mean_reciprocal_rank, top_k_accuracy

DOCS: Final = Path(__file__).parents[1] / "docs"
RECORD: Final = DOCS / "training.json"
TASK: Any = code_search
LEARNING_RATE: Final = 3e-3
UNTRAINED: Final = "before training"
GIVEN_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Make the C library return freed memory, so that only memory in use is measured."""


@dataclass(frozen=True)
class Plan:
    """Extent of the runs: `sizes` are batch sizes with rounds of timing, `limit` is in MiB."""

    libraries: tuple[str, ...] = ("torch", "scipy", "matplotlib", "numpy", "stdlib")
    held_out: str = "networkx"
    batches: tuple[int, int] = (256, 1024)
    epochs: int = 2
    seeds: int = 3
    sizes: tuple[tuple[int, int], ...] = ((512, 9), (4096, 3))
    limit: int = 512
    largest: int = 8192
    grain: int = 256


QUICK: Final = Plan(("numpy",), batches=(64, 256), seeds=2, sizes=((256, 1),), limit=64, largest=512, grain=64)


@torch.no_grad()
def retrieval(encoder: Encoder, held_out: list[Any]) -> tuple[float, float]:
    """Give the mean reciprocal rank of the right functions, and the share ranked first, in percent."""
    query, code = (encoder(torch.from_numpy(side)) for side in held_out)
    return 100 * mean_reciprocal_rank(query, code).item(), 100 * top_k_accuracy(query, code).item()


def train(data: list[Any], held_out: list[Any], epochs: int, task: tuple[str, int, int]) -> tuple[float, float]:
    """Train with a loss, batch size and seed in one thread; give the quality."""
    name, batch, seed = task
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    encoder = Encoder()
    loss, optimiser = losses(encoder, name)[name], torch.optim.Adam(encoder.parameters(), LEARNING_RATE)
    query, code = (torch.from_numpy(side) for side in data)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(query)), batch)[:-1]:
            optimiser.zero_grad()
            loss(query[rows], code[rows]).backward()
            optimiser.step()
    return retrieval(encoder, held_out)


def quality(plan: Plan, jobs: int) -> dict[str, Any]:
    """Train with each loss from each seed."""
    counts, data, held_out = corpus(plan.libraries, plan.held_out)
    names = [name for name in losses(Encoder()) if not name.endswith(CACHED)]
    arms = {name: (name, plan.batches[0]) for name in names}
    arms[f"{OURS + CACHED}, batches of {plan.batches[1]}"] = OURS + CACHED, plan.batches[1]
    tasks = [(*arm, seed) for arm in arms.values() for seed in range(plan.seeds)]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = [*pool.map(partial(train, data, held_out, plan.epochs), tasks)]
        start = [*pool.map(partial(train, data, held_out, 0), tasks[: plan.seeds])]
    by_arm = {name: found[k * plan.seeds :][: plan.seeds] for k, name in enumerate(arms)}
    packages = packages_distributions()  # by imported module
    used = [name for name in (*counts, "open_clip", "sentence_transformers") if name in packages]
    versions = {packages[name][0]: version(packages[name][0]) for name in used}
    versions["Python"] = platform.python_version()
    return {"pairs": counts, "versions": versions, "percent": {UNTRAINED: start, **by_arm}}


def step_of(name: str, rows: int) -> Callable[[int], list[Any]]:
    """Give a training step on random tokens that returns the gradients."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = Encoder()
    loss, optimiser = losses(encoder, name)[name], torch.optim.Adam(encoder.parameters(), LEARNING_RATE)
    tokens = [torch.randint(1, VOCABULARY, (rows, length), dtype=torch.int32) for length in LENGTHS]

    def step(count: int) -> list[Any]:
        optimiser.zero_grad()
        loss(*(side[:count] for side in tokens)).backward()
        optimiser.step()
        return [parameter.grad for parameter in encoder.parameters()]

    return step


def times(plan: Plan) -> dict[str, Any]:
    """Time the losses in turns; give the seconds of each step, and the largest gradient error of the first."""
    steps = {name: step_of(name, plan.sizes[-1][0]) for name in losses(Encoder()) if name != FLAT}
    gradients = {name: torch.cat([one.flatten() for one in step(plan.sizes[0][0])]) for name, step in steps.items()}
    error = max(float((one - gradients[EAGER]).norm() / gradients[EAGER].norm()) for one in gradients.values())
    found: dict[str, Any] = {name: {str(rows): [] for rows, _ in plan.sizes} for name in steps}
    for rows, rounds in plan.sizes:
        for _ in range(rounds):
            for name, step in steps.items():
                start = time.process_time()
                step(rows)
                found[name][str(rows)].append(time.process_time() - start)
    return {"error": error, "seconds": found}


def memory(plan: Plan, name: str) -> dict[str, Any]:
    """Give the memory of a step above weights and optimiser in MiB, by batch size, and the largest batch that fits."""
    step, found = step_of(name, plan.largest), dict[str, float]()
    step(16)  # one-time loading and allocation

    def resident(field: str) -> int:
        return int(re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))[0])

    def fits(rows: int) -> bool:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = resident("VmRSS")
        step(rows)
        found[str(rows)] = (resident("VmHWM") - before) / 2**10
        return found[str(rows)] <= plan.limit

    low, high = 0, plan.grain
    while high <= plan.largest and fits(high):
        low, high = high, 2 * high
    while high <= plan.largest and high - low > plan.grain:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return {"MiB": found, "fits": low}


def cost(plan: Plan) -> dict[str, Any]:
    """Measure time, then memory, of each loss in a separate process."""
    found = {**times(plan), "limit": plan.limit, "largest": plan.largest}
    os.environ.update(GIVEN_BACK)  # inherited by the processes started below
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        found["memory"] = dict(zip(found["seconds"], pool.map(partial(memory, plan), found["seconds"]), strict=True))
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    (found["machine"],) = re.findall(r"^model name\s*:\s*(.*)$", cpuinfo, re.MULTILINE)[:1] or [platform.machine()]
    return found


def spread(values: Iterable[float]) -> str:
    """Write a mean and a standard deviation over seeds."""
    found = [*values]
    return f"{mean(found):.1f} ± {stdev(found):.1f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(record: Mapping[str, Any]) -> str:
    """Write quality, time and memory."""
    seconds, sizes, rows = record["seconds"], [*record["seconds"][EAGER]], []
    for name, found in record["percent"].items():
        first = spread(share for _, share in found)
        rows.append([name, quality_of(record, name), first, f"{apart(record, name):.2f}"])
    parts = ["## Quality, %\n", table(["loss", "MRR", "right one first", "MRR, furthest from cross_entropy's"], rows)]
    rows = []
    for name in seconds:
        time_of = (f"{1000 * median(seconds[name][n]):.0f} ({ratio(record, name, n):.2f})" for n in sizes)
        room = record["memory"][name]["MiB"]
        fits = record["memory"][name]["fits"]
        space_of = (f"{room[n]:.0f}" if n in room else "does not fit" * (int(n) > fits) for n in sizes)
        rows.append([name, *time_of, *space_of, most(record, name)])
    head = [f"{what}, {n} pairs" for what in ("ms (ratio)", "MiB") for n in sizes]
    parts += ["\n## Cost of a step\n", table(["loss", *head, f"pairs in {record['limit']} MiB"], rows)]
    return "\n".join(parts)


def quality_of(record: Mapping[str, Any], name: str) -> str:
    """Write the mean reciprocal rank."""
    return spread(rank for rank, _ in record["percent"][name])


def apart(record: Mapping[str, Any], name: str) -> float:
    """Give the largest difference in mean reciprocal rank from the handwritten loss, by seed."""
    pairs = zip(record["percent"][name], record["percent"][EAGER], strict=True)
    return max(abs(float(rank - usual)) for (rank, _), (usual, _) in pairs)


def ratio(record: Mapping[str, Any], name: str, rows: str) -> float:
    """Divide the times of a loss by those of the handwritten loss, round by round."""
    pairs = zip(record["seconds"][name][rows], record["seconds"][EAGER][rows], strict=True)
    return median(float(seconds / usual) for seconds, usual in pairs)


def most(record: Mapping[str, Any], name: str) -> str:
    """Write the largest batch that fits."""
    fits = record["memory"][name]["fits"]
    return f"{fits} or more" if fits == record["largest"] else str(fits)


def details(record: Mapping[str, Any]) -> str:
    """Write setting and tables."""
    return DETAILS.format(
        plan=Plan(),
        task=TASK,
        record=record,
        rate=LEARNING_RATE,
        seeds=len(record["percent"][EAGER]),
        pairs=", ".join(f"{library} {count}" for library, count in record["pairs"].items()),
        tables=tables(record),
    )


def document(record: Mapping[str, Any]) -> str:
    """Write the page."""
    percent, (small, large) = record["percent"], record["seconds"][EAGER]
    usual = quality_of(record, EAGER)
    chunked = [name for name in record["seconds"] if name.endswith(CACHED)]
    whole = [name for name in record["seconds"] if name not in chunked]
    (larger,) = (name for name in percent if name.startswith(OURS + CACHED))

    def listed(names: Iterable[str], write: Callable[[str], str]) -> str:
        found = {f"`{name.removesuffix(CACHED)}`": write(name) for name in names}
        if len(same := set(found.values())) == 1:
            return f"{same.pop()} with each loss"
        return ", ".join(f"{name} {number}" for name, number in found.items())

    def times_of(name: str) -> str:
        return " and ".join(f"{ratio(record, name, n):.2f}" for n in (small, large))

    results = RESULTS.format(
        plan=Plan(),
        record=record,
        small=small,
        large=large,
        usual=usual,
        before=quality_of(record, UNTRAINED),
        apart=max(apart(record, name) for name in whole),
        flat=quality_of(record, FLAT),
        larger=quality_of(record, larger),
        times=listed((name for name in whole if name != EAGER), times_of),
        slower=listed(chunked, times_of),
        most=listed(chunked, partial(most, record)),
        most_whole=listed(whole, partial(most, record)),
    )
    return DOCUMENT.format(
        results="\n".join(
            fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in results.splitlines()
        ),
        record=record,
        versions=", ".join(f"{name} {number}" for name, number in record["versions"].items()),
    )


RESULTS: Final = """\
- **Quality equals that of `cross_entropy`.** All libraries compute the same formula: from the same seed, mean reciprocal ranks (MRR) differ by at most {apart:.2f} points from its {usual} % ({before} % before training). FlatNCE has {flat} %, InfoNCE in chunks, in batches of {plan.batches[1]} for as many epochs, {larger} %.
- **Time of a step of {small} and of {large} pairs, divided by the time of `cross_entropy`:** {times}; in chunks, which encode each pair twice, {slower}.
- **Largest batch in {record[limit]} MiB:** in chunks {most}; whole {most_whole}.
"""  # noqa: E501  (long lines)

DOCUMENT: Final = """\
# Comparison with other libraries

{results}

![Time of a step, and the largest batch in a given memory](training.png)

`python benchmarks/training.py` writes this page, its picture, and [setting and tables](../benchmarks/training.md).
Docstrings search for their functions in a library that is not in the training data, as in
[CodeSearchNet](https://arxiv.org/abs/1909.09436). All losses have the same encoder, data and budget.

Limits: a short training of one small encoder on a CPU, one temperature, one learning rate. In larger encoders, time and
memory of the loss matter less.

On {record[machine]}: {versions}.
"""


DETAILS: Final = """\
# Measurements of trainings

<!-- Written by benchmarks/training.py. -->

## Setting

| | |
|---|---|
| data | first paragraphs of docstrings, and functions without their docstrings |
| pairs | {pairs} |
| held out | {plan.held_out}; a query ranks all its functions |
| encoder | shared by both sides: embeddings ({task.VOCABULARY} × {task.WIDTH}), convolution, attention, perceptron |
| words | {task.LENGTHS[0]} per query, {task.LENGTHS[1]} per function |
| losses | InfoNCE in both directions, cosine similarity, temperature {task.TEMPERATURE} |
| `cross_entropy` | the usual formula on PyTorch |
| training | epochs: {plan.epochs}; batches of {plan.batches[0]}; Adam at {rate}; seeds: {seeds} (± deviation) |
| time | processor time of a step in one thread; losses take turns; medians over rounds |
| gradients | relative difference from `cross_entropy` in the first step: at most {record[error]:.0e} |
| memory | peak above weights and optimiser, each loss in its process |
| in chunks | of {task.CHUNK} pairs |

{tables}
"""


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Draw ratios of time and the largest batches."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    times_axes, batch_axes = figure.subplots(1, 2, sharey=True)
    names = [*record["seconds"]]
    colours = ["#1f77b4" if name.startswith(OURS) else "#9e9e9e" for name in names]
    for rows, marker in zip(record["seconds"][EAGER], "ov", strict=True):
        ratios = [ratio(record, name, rows) for name in names]
        times_axes.scatter(ratios, names, c=colours, marker=marker, zorder=3)
        times_axes.scatter([], [], c="black", marker=marker, label=f"{rows} pairs")
    times_axes.axvline(1, color="0.5", linewidth=0.8)
    times_axes.set(xlabel="time / time of cross_entropy on whole batches", title="Time of a step")
    times_axes.legend(frameon=False)
    fits = [record["memory"][name]["fits"] for name in names]
    bars = batch_axes.barh(names, fits, color=colours, height=0.6)
    batch_axes.bar_label(bars, [most(record, name) for name in names], padding=3)
    batch_axes.set(xlabel="pairs", title=f"Largest batch in {record['limit']} MiB", xlim=(0, 1.5 * max(fits)))
    batch_axes.invert_yaxis()
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=110, pil_kwargs={"optimize": True})


def main() -> None:
    """Train, measure, and print or write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=("quality", "cost", "page"), help="only this (default: all three)")
    parser.add_argument("--quick", action="store_true", help="short forms; prints the tables and writes nothing")
    parser.add_argument(
        "--jobs", type=int, default=2, help="processes of one thread each, for the quality (default: 2)"
    )
    options = parser.parse_args()
    if options.quick:
        print(tables({**quality(QUICK, options.jobs), **cost(QUICK)}))
        return
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if options.part in {None, "quality"}:
        record |= quality(Plan(), options.jobs)
    if options.part in {None, "cost"}:
        record |= cost(Plan())
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.part in {None, "page"}:
        (DOCS / "training.md").write_text(document(record), encoding="utf-8")
        Path(__file__).with_suffix(".md").write_text(details(record), encoding="utf-8")
        draw(record, DOCS / "training.png")


if __name__ == "__main__":
    main()
