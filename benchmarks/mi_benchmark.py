"""`estimation.mutual_information` on the tasks of benchmark-mi (Czyż et al. 2023), next to the estimators there.

`python benchmarks/mi_benchmark.py run --bmi PYTHON` adds missing estimates to docs/mi-benchmark.json; PYTHON is the
interpreter of an environment with benchmark-mi, which runs `bmi_worker.py`. Without `--bmi` only this package
estimates, on existing samples. `page` writes docs/mi-benchmark.md and docs/mi-benchmark.png from the record. Without
either, both run. `--quick` estimates on a small sample, prints the table and writes nothing.
`python -m nox -s mi_benchmark` makes both environments. Needs NumPy, JAX and matplotlib.

Their critic, `mutual_information` with benchmark-mi's network: 16 and 8 hidden units, ReLU, of x and y together,
batches of 256, at most 10 000 steps, half of the pairs for the report (`folds=2`, `networks=1`,
`transform="standardize"`). Differences: Adam starts at a rate of 0.005, not 0.1; 3/8 of the pairs are for training and
1/8 for stopping, whereas benchmark-mi trains on half and stops on the half that it reports; coordinates are clipped at
4 standard deviations; the estimate extrapolates to more pairs.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path
from subprocess import PIPE, Popen
from textwrap import fill
from threading import Lock
from typing import Any, Final

import jax
import numpy as np
from interval_coverage import gaussian, percent
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

import portable_nce as pnce

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
RECORD: Final = DOCS / "mi-benchmark.json"
PAIRS: Final = 10_000
QUICK_PAIRS: Final = 1000
QUICK_TASK: Final = "1v1-normal-0.75"

Numbers = NDArray[np.float64]
Record = dict[str, Any]


# Our estimates


def by_default(x: Numbers, y: Numbers, seed: int) -> pnce.estimation.MutualInformation:
    """As a user calls it."""
    return pnce.estimation.mutual_information(x, y, rng=seed, progress=False)


def their_critic(x: Numbers, y: Numbers, seed: int) -> pnce.estimation.MutualInformation:
    """With the critic, the batch and the largest number of steps of benchmark-mi's neural estimators, on JAX."""
    rng = np.random.default_rng(seed)
    sizes = (x.shape[1] + y.shape[1], 16, 8, 1)
    bounds = [1.0 / math.sqrt(size) for size in sizes]
    layers = [
        tuple(jax.numpy.asarray(rng.uniform(-b, b, shape), "float32") for shape in ((m, n), n))
        for b, (m, n) in zip(bounds, pairwise(sizes), strict=False)
    ]

    def critic(parameters: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        (first, a), (second, b), (third, c) = parameters
        columns = x.shape[1]
        hidden = jax.nn.relu((x @ first[:columns])[:, None, :] + (y @ first[columns:])[None, :, :] + a)
        scores: jax.Array = (jax.nn.relu(hidden @ second + b) @ third + c)[..., 0]
        return scores

    return pnce.estimation.mutual_information(
        *(jax.numpy.asarray(z, "float32") for z in (x, y)),
        rng=seed,
        critic=(critic, layers),
        transform="standardize",
        folds=2,
        splits=1,
        networks=1,
        steps=10_000,
        progress=False,
    )


DEFAULTS, THEIR_CRITIC = "`mutual_information`", "`mutual_information`, their critic"
OURS: Final = {DEFAULTS: by_default, THEIR_CRITIC: their_critic}


def ours(path: str, method: str) -> dict[str, Any]:
    """An estimate with its interval in nats, and its processor time in seconds."""
    with np.load(path) as sample:
        x, y = sample["x"], sample["y"]
    begin = time.process_time()
    found = OURS[method](x, y, int(path.removesuffix(".npz").rpartition("-")[2]))
    seconds = time.process_time() - begin
    fields = "lower", "estimate", "low", "high", "bound", "error", "null"
    numbers = {name: float(getattr(found, name)) for name in fields}
    rounded = {name: None if math.isnan(value) else round(value, 4) for name, value in numbers.items()}
    return {**rounded, "flags": list(found.flags), "seconds": round(seconds, 2)}


# The runs


class Theirs:
    """Process with benchmark-mi that lists tasks and computes estimates on request."""

    def __init__(self, python: str, folder: Path, pairs: int, seeds: int) -> None:
        """Start the process, which writes missing samples."""
        command = [python, str(Path(__file__).with_name("bmi_worker.py")), str(folder), str(pairs), str(seeds)]
        self.process = Popen(command, stdin=PIPE, stdout=PIPE, text=True)  # noqa: S603  (the interpreter of the option)
        self.facts = self.answer()

    def answer(self) -> dict[str, Any]:
        """The next line."""
        assert self.process.stdout is not None  # noqa: S101
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def __call__(self, path: str, method: str) -> dict[str, Any]:
        """An estimate in nats, and its processor time in seconds."""
        assert self.process.stdin is not None  # noqa: S101
        print(json.dumps([path, method]), file=self.process.stdin, flush=True)
        return self.answer()


def in_strides(tasks: Iterable[str]) -> list[str]:
    """Tasks in strides of four, so that a stopped run covers all kinds."""
    listed = list(tasks)
    return [task for start in range(4) for task in listed[start::4]]


def run(record: Record, folder: Path, theirs: Theirs | None, *, seeds: int, save: Callable[[Record], None]) -> None:
    """Add the missing estimates; both sides run in parallel."""
    lock = Lock()

    def work(estimate: Callable[[str, str], dict[str, Any]], methods: Collection[str]) -> None:
        for seed, task, method in product(range(seeds), in_strides(record["tasks"]), methods):
            with lock:
                runs = record["runs"].setdefault(method, {}).setdefault(task, {})
            if str(seed) not in runs:
                found = estimate(str(folder / f"{task}-{seed}.npz"), method)
                with lock:
                    runs[str(seed)] = found
                    save(record)

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(work, ours, OURS)]
        if theirs is not None:
            jobs.append(pool.submit(work, theirs, theirs.facts["estimators"]))
        for job in jobs:
            job.result()


# The page


def value(found: Mapping[str, Any]) -> float:
    """The estimate; the bound if a flag invalidates it; NaN if not finite."""
    number = found["estimate"] if found["estimate"] is not None else found.get("bound")
    return math.nan if number is None else float(number)


def of_tasks(record: Record, method: str) -> dict[str, list[dict[str, Any]]]:
    """Runs of an estimator by task, in the order of the benchmark."""
    runs = record["runs"].get(method, {})
    return {task: list(runs[task].values()) for task in record["tasks"] if runs.get(task)}


def errors(record: Record, method: str) -> dict[str, float]:
    """Mean absolute error of an estimator on each task with a finite estimate."""
    found = {
        task: np.asarray([abs(value(run) - record["tasks"][task][1]) for run in runs])
        for task, runs in of_tasks(record, method).items()
    }
    return {task: float(np.nanmean(sizes)) for task, sizes in found.items() if not np.isnan(sizes).all()}


def seconds(record: Record, method: str) -> float:
    """Median processor time in seconds."""
    return float(np.median([found["seconds"] for runs in of_tasks(record, method).values() for found in runs]))


def methods_of(record: Record) -> list[str]:
    """Estimators with at least one run, ours first."""
    known = [*OURS, *(method for method in record["runs"] if method not in OURS)]
    return [method for method in known if of_tasks(record, method)]


def summary(record: Record) -> str:
    """One line per estimator."""
    lines = [
        "| estimator | tasks | mean absolute error | largest error | seconds |",
        "|---|---:|---:|---:|---:|",
    ]
    for method in methods_of(record):
        found = errors(record, method)
        lines.append(
            f"| {method} | {len(found)} | {np.mean([*found.values()]):.3f} | {max(found.values()):.2f} "
            f"| {seconds(record, method):.1f} |"
        )
    return "\n".join(lines)


def estimates(record: Record) -> str:
    """One line per task: mean estimates, the nearest in bold."""
    methods = methods_of(record)
    lines = [f"| task | truth | {' | '.join(methods)} |", "|---|---:|" + "---:|" * len(methods)]
    for task, (name, truth) in record["tasks"].items():
        cells = {}
        for method in methods:
            runs = of_tasks(record, method).get(task, [])
            cells[method] = float(np.mean([value(found) for found in runs])) if runs else math.nan
        nearest = min((abs(x - truth) for x in cells.values() if not math.isnan(x)), default=math.nan)
        shown = [
            "–" if math.isnan(x) else f"**{x:.3f}**" if abs(x - truth) == nearest else f"{x:.3f}"
            for x in cells.values()
        ]
        lines.append(f"| {name} | {truth:.3f} | {' | '.join(shown)} |")
    return "\n".join(lines)


def losses(record: Record) -> str:
    """Tasks whose interval misses the truth, and tasks on which another estimator is much nearer."""
    missed, beaten = [], []
    best = errors(record, DEFAULTS)
    others = {m: errors(record, m) for m in methods_of(record) if m not in OURS}
    for task, runs in of_tasks(record, DEFAULTS).items():
        name, truth = record["tasks"][task]
        if any(found["high"] is not None and not found["low"] <= truth <= found["high"] for found in runs):
            missed.append(name)
        rivals = [(found[task], method) for method, found in others.items() if task in found]
        error, method = min(rivals, default=(math.inf, ""))
        if best[task] - error > NEARER:
            beaten.append(f"{name} ({method}, {error:.2f} instead of {best[task]:.2f})")
    return (
        f"**Where it loses.** [`low`, `high`] misses the truth on {listed(missed)}. Another estimator is nearer by "
        f"more than {NEARER} nats on {listed(beaten)}. Additive uniform noise gives a density ratio with sharp edges, "
        f"which a network smooths."
    )


NEARER: Final = 0.02


def listed(names: Sequence[str]) -> str:
    """Names with commas."""
    return "; ".join(names) or "no task"


def held_by(record: Record, method: str) -> str:
    """Share of the ranges without a flag that hold the truth."""
    runs = [(found, record["tasks"][task][1]) for task, runs in of_tasks(record, method).items() for found in runs]
    plain = [(found["low"], found["high"], truth) for found, truth in runs if found["high"] is not None]
    held = sum(low <= truth <= high for low, high, truth in plain)
    return f"{held} of {len(plain)}, {percent(held, len(plain))}"


def document(record: Record) -> str:
    """The page."""
    reports = [(found, record["tasks"][task][1]) for task, runs in of_tasks(record, DEFAULTS).items() for found in runs]
    lower = [(found["lower"], truth) for found, truth in reports if found["lower"] is not None]
    above = sum(x > truth for x, truth in lower)
    plain = [(found["low"], found["high"], truth) for found, truth in reports if found["high"] is not None]
    held = sum(low <= truth <= high for low, high, truth in plain)
    best = np.mean([*errors(record, DEFAULTS).values()])
    neural = [np.mean([*errors(record, method).values()]) for method in NEURAL if of_tasks(record, method)]
    error = f"**Mean absolute error**: {best:.3f} nats"
    if neural:
        error += f"; benchmark-mi's neural estimators {min(neural):.3f} to {max(neural):.3f}"
    error += "."
    promises = (
        f"**`lower` is above the truth** in {above} of {len(lower)} runs, {percent(above, len(lower))}; at most 5 % "
        f"are promised. **[`low`, `high`] holds the truth** in {held} of {len(plain)} runs without a flag, "
        f"{percent(held, len(plain))}, and with their critic in {held_by(record, THEIR_CRITIC)}; nothing is promised: "
        f"it goes on with the learning curve."
    )
    developed = (
        "**A development set.** Features of the critics (a distance column, the start from canonical correlations) "
        "were found on these forty tasks. [Coverage](coverage.md) has problems that were kept out of development."
    )
    paragraphs = "\n".join(
        fill(f"- {fact}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for fact in (error, promises, developed, losses(record))
    )
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    made = fill(
        f"`python -m nox -s mi_benchmark` writes this page. {record['pairs']} pairs of each task, default options. "
        f"The estimates of `mutual_information` are of an earlier version, whose `lower` did not allow for exceptions: "
        f"some 0.003 nats at most with so many pairs. benchmark-mi's neural estimators train on half of the pairs, KSG "
        f"and CCA use all. In brackets are 95 % Wilson intervals. Seconds are processor time, compilation included "
        f"(medians): of 12 trainings for `mutual_information`, of one for benchmark-mi. "
        f"{record['machine']}; {versions}; one thread for each of two "
        f"processes; other programs were running.",
        120,
        break_on_hyphens=False,
    )
    return f"""# Mutual-information benchmark

[`estimation.mutual_information`](two-arrays.md) and the estimators of [benchmark-mi](https://github.com/cbg-ethz/bmi)
(Czyż et al. 2023, [arXiv:2306.11078](https://arxiv.org/abs/2306.11078)) on its forty tasks, whose mutual information is
known.

{paragraphs}

![Error of each estimator by task, and the interval of mutual_information](mi-benchmark.png)

{made}

{summary(record)}

**Their critic**: `mutual_information` with benchmark-mi's network, batches and number of steps; the differences are
listed in `benchmarks/mi_benchmark.py`. If a flag rules out the estimate, the bound is compared.

The estimates, limits and flags of each task are in [mi-benchmark.json](mi-benchmark.json).
"""


NEURAL: Final = ("InfoNCE", "NWJ", "Donsker–Varadhan", "MINE")
COLOURS: Final = {"InfoNCE": "#d55e00", "NWJ": "#cc79a7", "Donsker–Varadhan": "#e69f00", "MINE": "#009e73"}
EDGES: Final = -0.75, 0.4


def marker(method: str) -> str:
    """Dots for neural estimators."""
    return "." if method in NEURAL else "+" if method == "CCA" else "x"


def colour(method: str) -> str:
    """Grey for estimators without a network."""
    return COLOURS.get(method, "0.5")


def draw(record: Record, path: Path) -> None:
    """Draw the error of each estimator by task, and our interval."""
    shown = of_tasks(record, DEFAULTS)
    figure = Figure(figsize=(7.0, 0.22 * len(shown) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, (task, runs) in enumerate(shown.items()):
        truth = record["tasks"][task][1]
        for found in runs:
            if found["high"] is not None:
                ends = np.clip([found["low"] - truth, found["high"] - truth], *EDGES)
                axes.plot(ends, [place, place], color="#0072b2", linewidth=5, alpha=0.35, solid_capstyle="butt")
            axes.plot([np.clip(value(found) - truth, *EDGES)], [place], "o", color="#0072b2", markersize=4, zorder=3)
        for method in methods_of(record):
            if method in OURS:
                continue
            for found in of_tasks(record, method).get(task, []):
                axes.plot([np.clip(value(found) - truth, *EDGES)], [place], marker(method), color=colour(method))
    axes.axvline(0.0, color="0.2", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(shown)), [record["tasks"][task][0] for task in shown], fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(EDGES[0] - 0.02, EDGES[1] + 0.02)
    axes.set_xlabel("estimate minus the truth, in nats;\npoints at the edges lie beyond", fontsize=9)
    axes.plot([], [], "o-", color="#0072b2", markersize=4, label="mutual_information, low to high")
    for method in methods_of(record):
        if method not in OURS:
            axes.plot([], [], marker(method), color=colour(method), label=method)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    figure.savefig(path, dpi=110)


# The command


def save(record: Record) -> None:
    """Write the record."""
    RECORD.with_suffix(".new").write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    RECORD.with_suffix(".new").replace(RECORD)


def quick(python: str | None) -> None:
    """Print the table of estimates on a small sample, Gaussian without benchmark-mi."""
    record: Record = {"runs": {}}
    with tempfile.TemporaryDirectory() as name:
        folder, theirs = Path(name), None
        if python is not None:
            theirs = Theirs(python, folder, QUICK_PAIRS, 1)
            record["tasks"] = {QUICK_TASK: theirs.facts["tasks"][QUICK_TASK]}
        else:
            x, y = gaussian(2, 0.5)(np.random.default_rng(0), QUICK_PAIRS)
            np.savez(folder / "gaussian-0.npz", x=x, y=y)
            record["tasks"] = {"gaussian": ["Gaussian 2 × 2", 0.5]}
        run(record, folder, theirs, seeds=1, save=lambda _: None)
        if theirs is not None:
            theirs.process.communicate()
    print(estimates(record))


def main() -> None:
    """Estimate, and write or print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=("run", "page"), help="only this (default: both)")
    parser.add_argument("--bmi", help="interpreter of an environment with benchmark-mi")
    parser.add_argument("--seeds", type=int, default=1, help="samples of each task (default: 1)")
    parser.add_argument("--samples", type=Path, default=ROOT / ".nox" / "mi-benchmark", help="folder of the samples")
    parser.add_argument("--quick", action="store_true", help="one small sample; writes nothing")
    options = parser.parse_args()
    if options.quick:
        quick(options.bmi)
        return
    record: Record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"runs": {}}
    if options.part in {None, "run"}:
        record["pairs"], theirs = PAIRS, None
        record["machine"] = f"{platform.machine()}, {platform.system()}"
        if options.bmi is not None:
            theirs = Theirs(options.bmi, options.samples, PAIRS, options.seeds)
            record["tasks"] = theirs.facts["tasks"]
            versions = {"benchmark-mi": theirs.facts["version"], "NumPy": np.__version__, "JAX": jax.__version__}
            record["versions"] = versions
        run(record, options.samples, theirs, seeds=options.seeds, save=save)
        if theirs is not None:
            theirs.process.communicate()
    if options.part in {None, "page"}:
        (DOCS / "mi-benchmark.md").write_text(document(record), encoding="utf-8")
        draw(record, DOCS / "mi-benchmark.png")


if __name__ == "__main__":
    main()
