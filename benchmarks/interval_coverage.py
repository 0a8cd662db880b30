"""Interval coverage of `estimation.mutual_information` on problems with known mutual information.

`python benchmarks/interval_coverage.py run` estimates `--repeats` times on each problem and adds the results to
docs/coverage.json; recorded repeats are skipped. `page` writes docs/coverage.md and docs/coverage.png from that record.
Without either, both run. `--quick` estimates once on small problems, prints the table and writes nothing. Needs NumPy
and matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

import portable_nce as pnce

DOCS: Final = Path(__file__).parents[1] / "docs"
RECORD: Final = DOCS / "coverage.json"
REPEATS: Final = 200

Numbers = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Numbers, Numbers]]


# The problems


def gaussian(dimension: int, nats: float) -> Draw:
    """Gaussians, each coordinate of y correlated with one of x."""
    rho = math.sqrt(-math.expm1(-2.0 * nats / dimension))

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        x, noise = rng.normal(size=(2, count, dimension))
        return x, rho * x + math.sqrt(1.0 - rho * rho) * noise

    return draw


def cubed(dimension: int, nats: float) -> Draw:
    """`gaussian` with cubed coordinates, of equal information."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        x, y = gaussian(dimension, nats)(rng, count)
        return x**3, y**3

    return draw


def student(dimension: int, nats: float, freedom: float) -> Draw:
    """Joint Student's distribution: Gaussians of `nats`, divided by one number per pair."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
        x, y = gaussian(dimension, nats)(rng, count)
        scale = np.sqrt(freedom / rng.chisquare(freedom, size=(count, 1)))
        return x * scale, y * scale

    return draw


def student_nats(dimension: int, nats: float, freedom: float) -> float:
    """Mutual information of `student`: entropies of x and y minus the joint entropy."""

    def digamma(x: float) -> float:
        total = 0.0
        while x < 10.0:  # noqa: PLR2004  (the series is accurate to 1e-12 beyond)
            total, x = total - 1.0 / x, x + 1.0
        return total + math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6)

    def entropy(columns: int) -> float:
        half = 0.5 * (freedom + columns)
        digammas = half * (digamma(half) - digamma(0.5 * freedom))
        return math.lgamma(0.5 * freedom) - math.lgamma(half) + 0.5 * columns * math.log(freedom * math.pi) + digammas

    return nats + 2.0 * entropy(dimension) - entropy(2 * dimension)


def swiss_roll(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
    """A Gaussian pair with one nat, with x rolled up in the plane."""
    x, y = gaussian(1, 1.0)(rng, count)
    turn = 1.5 * math.pi * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)) + 1.0)
    return np.concatenate([turn * np.cos(turn), turn * np.sin(turn)], axis=1), y


CORNERS: Final = np.asarray([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
WIDTH: Final = 0.4


def mixture(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
    """Four clusters in the plane; y is in the cluster after x's, or with probability 0.1 in a random one."""
    of_x = rng.integers(4, size=count)
    of_y = np.where(rng.uniform(size=count) < 0.9, (of_x + 1) % 4, rng.integers(4, size=count))  # noqa: PLR2004
    x, y = (CORNERS[k] + WIDTH * rng.normal(size=(count, 2)) for k in (of_x, of_y))
    return x, y


def mixture_nats() -> float:
    """Mutual information of `mixture`, the mean of four million log density ratios (error 0.0004)."""
    x, y = mixture(np.random.default_rng(0), 4_000_000)
    near_x, near_y = (np.exp(-((z[:, None, :] - CORNERS) ** 2).sum(axis=2) / (2.0 * WIDTH**2)) for z in (x, y))
    joint = 0.25 * (0.9 * np.roll(np.eye(4), 1, axis=1) + 0.1 * np.full((4, 4), 0.25))
    both = ((near_x @ joint) * near_y).sum(axis=1)
    return float(np.log(both / (near_x.mean(axis=1) * near_y.mean(axis=1))).mean())


def parabola(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
    """The square of x plus noise, without correlation."""
    x = rng.normal(size=(count, 1))
    return x, x * x + 0.3 * rng.normal(size=(count, 1))


def parabola_nats() -> float:
    """Mutual information of `parabola`, by sums over grids."""
    x, y = np.linspace(-9.0, 9.0, 9001), np.linspace(-3.0, 60.0, 12601)
    weights = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi) * (x[1] - x[0])
    density = np.concatenate(
        [np.exp(-0.5 * ((part[:, None] - x * x) / 0.3) ** 2) @ weights for part in np.array_split(y, 40)]
    ) / (0.3 * math.sqrt(2.0 * math.pi))
    logs = np.log(np.maximum(density, 1e-300))
    return float(-(density * logs).sum() * (y[1] - y[0]) - 0.5 * math.log(2.0 * math.pi * math.e * 0.09))


def band(rng: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
    """Uniform noise of width 0.2 on a uniform x: a density ratio with sharp edges."""
    x = rng.uniform(size=(count, 1))
    return x, x + rng.uniform(-0.1, 0.1, size=(count, 1))


@dataclass(frozen=True)
class Problem:
    """Distribution, number of pairs, and mutual information in nats."""

    name: str
    draw: Draw
    pairs: int
    truth: float


def problems() -> tuple[Problem, ...]:
    """All problems in table order."""
    return (
        Problem("independent, 1 dimension", gaussian(1, 0.0), 300, 0.0),
        Problem("independent, 5 dimensions", gaussian(5, 0.0), 1000, 0.0),
        Problem("independent, 20 dimensions", gaussian(20, 0.0), 1000, 0.0),
        Problem("Gaussian, 1 dimension", gaussian(1, 0.5), 300, 0.5),
        Problem("Gaussian, 1 dimension", gaussian(1, 3.0), 1000, 3.0),
        Problem("Gaussian, 5 dimensions", gaussian(5, 2.0), 1000, 2.0),
        Problem("Gaussian, 20 dimensions", gaussian(20, 1.0), 3000, 1.0),
        Problem("Gaussian, 20 dimensions", gaussian(20, 5.0), 3000, 5.0),
        Problem("Gaussian, 20 dimensions", gaussian(20, 10.0), 10000, 10.0),
        Problem("cubed Gaussian, 3 dimensions", cubed(3, 1.0), 1000, 1.0),
        Problem("Student (ν = 3), 2 dimensions", student(2, 0.5, 3.0), 1000, student_nats(2, 0.5, 3.0)),
        Problem("Student (ν = 2), 5 dimensions", student(5, 1.0, 2.0), 3000, student_nats(5, 1.0, 2.0)),
        Problem("swiss roll", swiss_roll, 1000, 1.0),
        Problem("mixture of four", mixture, 1000, mixture_nats()),
        Problem("parabola", parabola, 1000, parabola_nats()),
        Problem("uniform band", band, 1000, 0.1 - math.log(0.2)),
    )


# The runs


def key(problem: Problem) -> str:
    """Name of a problem in the record."""
    return f"{problem.name}, {problem.truth:.3g} nats, {problem.pairs} pairs"


def estimated(number: int, repeat: int) -> tuple[int, int, list[Any]]:
    """One estimate: lower, estimate, low, high, bound, error, null, flags, seconds."""
    problem = problems_once()[number]
    x, y = problem.draw(np.random.default_rng([repeat, number]), problem.pairs)
    begin = time.perf_counter()
    found = pnce.estimation.mutual_information(x, y, rng=repeat, progress=False)
    seconds = time.perf_counter() - begin
    numbers = (found.lower, found.estimate, found.low, found.high, found.bound, found.error, found.null)
    rounded = [None if math.isnan(value) else round(value, 4) for value in numbers]
    return number, repeat, [*rounded, list(found.flags), round(seconds, 1)]


_KNOWN: list[tuple[Problem, ...]] = []


def problems_once() -> tuple[Problem, ...]:
    """The problems, with truths computed once per process."""
    if not _KNOWN:
        _KNOWN.append(problems())
    return _KNOWN[0]


def run(record: dict[str, Any], repeats: int, jobs: int, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Add the missing repeats of each problem."""
    runs: dict[str, dict[str, Any]] = record.setdefault("runs", {})
    known = problems_once()
    missing = [
        (number, repeat)
        for repeat in range(repeats)
        for number, problem in enumerate(known)
        if str(repeat) not in runs.setdefault(key(problem), {})
    ]
    record["truths"] = {key(problem): round(problem.truth, 5) for problem in known}
    record["machine"] = f"{platform.machine()}, {platform.system()}, one thread; NumPy {np.__version__}"
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(estimated, *pair) for pair in missing]):
            number, repeat, found = future.result()
            runs[key(known[number])][str(repeat)] = found
            save(record)
    return record


# The page


def share(hits: Iterable[bool]) -> tuple[int, int]:
    """Number of true values, and number of values."""
    found = list(hits)
    return sum(found), len(found)


def percent(hits: int, count: int) -> str:
    """Share in percent with its 95 % interval (Wilson 1927)."""
    if count == 0:
        return "–"
    z, p = 1.96, hits / count
    centre, half = p + z * z / (2 * count), z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    low, high = ((centre + sign * half) / (1 + z * z / count) for sign in (-1, 1))
    return f"{100 * p:.0f} % ({100 * max(low, 0.0):.0f} to {100 * high:.0f})"


def rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table cells of each problem."""
    found = []
    for name, truth in record["truths"].items():
        runs = list(record["runs"].get(name, {}).values())
        if not runs:
            continue
        lower = [r[0] for r in runs if r[0] is not None]
        plain = [r for r in runs if r[3] is not None]
        found.append(
            {
                "name": name,
                "truth": truth,
                "runs": len(runs),
                "lower": float(np.mean(lower)),
                "spread": float(np.std(lower)),
                "above": share(x > truth for x in lower),
                "flagged": share(bool(r[7]) for r in runs),
                "flags": sorted({flag for r in runs for flag in r[7]}),
                "covered": share(r[2] <= truth <= r[3] for r in plain),
                "estimate": float(np.mean([r[1] for r in plain])) if plain else math.nan,
                "width": float(np.mean([r[3] - r[2] for r in plain])) if plain else math.nan,
                "seconds": float(np.median([r[8] for r in runs])),
            }
        )
    return found


def table(record: Mapping[str, Any]) -> str:
    """One line per problem, and totals."""
    lines = [
        "| problem | runs | `lower` | above the truth | flagged | estimate | `low` to `high` holds it | its width |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    found = rows(record)
    for row in found:
        hit = "–" if not row["covered"][1] else f"{row['covered'][0]} of {row['covered'][1]}"
        lines.append(
            f"| {row['name']} | {row['runs']} | {row['lower']:.2f} ± {row['spread']:.2f} "
            f"| {row['above'][0]} of {row['above'][1]} | {row['flagged'][0]} "
            f"| {'–' if math.isnan(row['estimate']) else format(row['estimate'], '.2f')} | {hit} "
            f"| {'–' if math.isnan(row['width']) else format(row['width'], '.2f')} |"
        )
    return "\n".join(lines)


def totals(found: Sequence[Mapping[str, Any]], name: str) -> tuple[int, int]:
    """Total of a share over problems."""
    return sum(row[name][0] for row in found), sum(row[name][1] for row in found)


def document(record: Mapping[str, Any]) -> str:
    """The page."""
    found = rows(record)
    independent = [row for row in found if row["truth"] == 0.0]
    smooth = [row for row in found if "band" not in row["name"]]
    edged = [row for row in found if "band" in row["name"]]
    times = [row["seconds"] for row in found]
    all_above, none_above = percent(*totals(found, "above")), percent(*totals(independent, "above"))
    held, held_of_edges = percent(*totals(smooth, "covered")), percent(*totals(edged, "covered"))
    above = (
        f"**`lower` is above the truth** in {all_above} of {totals(found, 'above')[1]} runs; at most 5 % are promised. "
        f"For independent arrays, it is above 0 in {none_above}."
    )
    holds = (
        f"**[`low`, `high`] holds the truth** in {held} of {totals(smooth, 'covered')[1]} runs without a flag, "
        f"except on the uniform band; 90 % are promised. On the band, whose density ratio has sharp edges, it does in "
        f"{held_of_edges}: the interval assumes that the critic can represent the ratio."
    )
    takes = (
        f"**A run takes** {min(times):.0f} to {max(times):.0f} seconds in one thread (medians of the problems; other "
        f"programs were running)."
    )
    listed = "\n".join(
        fill(f"- {fact}", 120, subsequent_indent="  ", break_long_words=False) for fact in (above, holds, takes)
    )
    made = fill(
        f"`python benchmarks/interval_coverage.py` writes this page, with default options. In brackets are "
        f"95 % Wilson intervals. {record['machine']}.",
        120,
    )
    return f"""# Coverage of the mutual-information interval

{listed}

![Interval of each run, by problem](coverage.png)

{made}

{table(record)}
"""


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Draw each run's interval relative to the truth."""
    found = rows(record)
    figure = Figure(figsize=(8.0, 0.42 * len(found) + 1.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, row in enumerate(found):
        runs = list(record["runs"][row["name"]].values())
        offsets = np.linspace(-0.3, 0.3, len(runs)) if len(runs) > 1 else [0.0]
        for offset, run_ in zip(offsets, sorted(runs, key=lambda r: r[4]), strict=True):
            at, truth = place + offset, row["truth"]
            if run_[3] is not None:
                axes.plot([run_[2] - truth, run_[3] - truth], [at, at], color="#0072b2", linewidth=0.6)
            elif run_[0] is not None:
                axes.plot([run_[0] - truth], [at], ".", color="#d55e00", markersize=2)
    axes.axvline(0.0, color="0.2", linewidth=0.8)
    axes.set_yticks(range(len(found)), [row["name"] for row in found], fontsize=8)
    figure.supxlabel(
        "minus the truth, in nats (blue: low to high; orange: lower where a flag forbids the rest)", fontsize=9
    )
    axes.set_xlim(-3.0, 1.5)
    axes.invert_yaxis()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Estimate, and write or print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=("run", "page"), help="only this (default: both)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"of each problem (default: {REPEATS})")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each (default: 2)")
    parser.add_argument("--quick", action="store_true", help="one run of the small problems; writes nothing")
    options = parser.parse_args()
    if options.quick:
        record: dict[str, Any] = {"runs": {}, "truths": {}, "machine": "this machine"}
        for number, problem in enumerate(problems_once()[:2]):
            _, repeat, found = estimated(number, 0)
            record["truths"][key(problem)] = problem.truth
            record["runs"][key(problem)] = {str(repeat): found}
        print(table(record))
        return
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}

    def save(found: dict[str, Any]) -> None:
        RECORD.with_suffix(".new").write_text(json.dumps(found) + "\n", encoding="utf-8")
        RECORD.with_suffix(".new").replace(RECORD)

    if options.part in {None, "run"}:
        os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
        record = run(record, options.repeats, options.jobs, save)
    if options.part in {None, "page"}:
        (DOCS / "coverage.md").write_text(document(record), encoding="utf-8")
        draw(record, DOCS / "coverage.png")


if __name__ == "__main__":
    main()
