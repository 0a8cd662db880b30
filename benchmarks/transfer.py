"""Transfer entropy of series with known values, next to the estimators of infomeasure.

`python benchmarks/transfer.py` estimates `--repeats` times on each problem and adds the results to docs/transfer.json;
recorded runs are skipped. `--only name` runs problems whose name holds this word; `--quick` prints the table of one run
of two problems, without the peer if it is not installed, and writes nothing. interval_coverage.py writes the table into
docs/coverage.md. Needs NumPy, and infomeasure 0.6.3, which is under the AGPL.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from relations import Record, flipped, of, rounded

import portable_nce as pnce

__all__ = ["PEER", "PROBLEMS", "RECORD", "peer", "ranges", "table"]

RECORD: Final = Path(__file__).parents[1] / "docs" / "transfer.json"
PEER: Final = "infomeasure 0.6.3"
COUNT: Final = 401
"""Times of each series: 400 pairs of lag 1."""
LEVEL: Final = 0.05
PERMUTATIONS: Final = 199
Numbers = NDArray[Any]


class Problem(NamedTuple):
    """Name, draw of source and target, transfer entropy in nats, its local values, lag, and the peer's approach."""

    name: str
    draw: Callable[[np.random.Generator], tuple[Numbers, Numbers]]
    truth: float
    local: Callable[[Numbers, Numbers], Numbers]
    lag: int = 1
    approach: str = "ksg"


# Linear autoregressions with Gaussian noise


def autoregression(rng: np.random.Generator, matrix: Numbers, lag: int = 1) -> tuple[Numbers, Numbers]:
    """Source and target z[t] = A z[t - 1] + noise, where the target may follow the source by a longer lag."""
    own, coupling = np.diag(matrix), float(matrix[1, 0])
    z = rng.normal(size=(COUNT + 200, 2))
    for t in range(lag, len(z)):
        z[t] += own * z[t - 1]
        z[t, 0] += matrix[0, 1] * z[t - 1, 1]
        z[t, 1] += coupling * z[t - lag, 0]
    return z[200:, 0], z[200:, 1]


def stationary(matrix: Numbers) -> Numbers:
    """Covariance C of one time, the solution of C = A C A' + 1."""
    flat = np.linalg.solve(np.eye(4) - np.kron(matrix, matrix), np.eye(2).reshape(-1))
    return np.asarray(flat.reshape(2, 2))


def without_source(matrix: Numbers) -> tuple[float, float]:
    """Slope and variance of the next target given the last one alone."""
    covariance = stationary(matrix)
    slope = float((matrix @ covariance)[1, 1] / covariance[1, 1])
    return slope, float(covariance[1, 1] - slope**2 * covariance[1, 1])


def of_numbers(matrix: Numbers) -> float:
    """Half the logarithm of the variance of the next target given its past, over the 1 that the noise has."""
    return 0.5 * math.log(without_source(matrix)[1])


def local_of_numbers(x: Numbers, y: Numbers, matrix: Numbers, lag: int = 1) -> Numbers:
    """Log-density of each next target given both pasts, minus that given its own past."""
    first = max(lag, 1)
    later, last, cause = y[first:], y[first - 1 : -1], x[: len(x) - lag]
    slope, variance = without_source(matrix)
    full = later - matrix[1, 1] * last - matrix[1, 0] * cause
    own = later - slope * last
    return np.asarray(0.5 * (math.log(variance) - full**2 + own**2 / variance))


def linear(name: str, rows: tuple[tuple[float, float], tuple[float, float]], lag: int = 1) -> Problem:
    """One problem. A lag above 1 is for a source without memory, which leaves the values of lag 1."""
    matrix = np.asarray(rows)
    return Problem(
        name,
        partial(autoregression, matrix=matrix, lag=lag),
        of_numbers(matrix),
        partial(local_of_numbers, matrix=matrix, lag=lag),
        lag,
    )


# Binary channels


def channel(rng: np.random.Generator, ones: float, wrong: float) -> tuple[Numbers, Numbers]:
    """Independent bits with a share of ones, and their copy one time later with a share of errors."""
    x = (rng.uniform(size=COUNT) < ones).astype(np.int64)
    y = np.concatenate([[0], x[:-1]]) ^ (rng.uniform(size=COUNT) < wrong)
    return x, y


def local_of_channel(x: Numbers, y: Numbers, ones: float, wrong: float) -> Numbers:
    """Log-probability of each bit given the one that was sent, minus the one without: the own past tells nothing."""
    arrives = ones * (1.0 - wrong) + (1.0 - ones) * wrong
    given = np.where(y[1:] == x[:-1], 1.0 - wrong, wrong)
    return np.asarray(np.log(given) - np.log(np.where(y[1:] == 1, arrives, 1.0 - arrives)))


def of_channel(ones: float, wrong: float) -> float:
    """Entropy of a bit that arrives, minus that of an error."""
    return flipped(wrong) - flipped(ones * (1.0 - wrong) + (1.0 - ones) * wrong)


def copies(name: str, ones: float, wrong: float) -> Problem:
    """One problem."""
    draw, local = partial(channel, ones=ones, wrong=wrong), partial(local_of_channel, ones=ones, wrong=wrong)
    return Problem(name, draw, of_channel(ones, wrong), local, approach="discrete")


def sticky_bits(rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Two independent series of bits, each of which changes one time in ten."""
    changes = rng.uniform(size=(2, COUNT)) < 0.1  # noqa: PLR2004
    x, y = np.cumsum(changes, axis=1) % 2
    return x, y


def nothing(x: Numbers, y: Numbers) -> Numbers:
    """Local values of independent series."""
    return np.zeros(min(len(x), len(y)) - 1)


PROBLEMS: Final = (
    linear("white source, coupling 0.3", ((0.0, 0.0), (0.3, 0.5))),
    linear("white source, coupling 0.7", ((0.0, 0.0), (0.7, 0.5))),
    linear("white source, coupling 1.5", ((0.0, 0.0), (1.5, 0.5))),
    linear("coupling 0.7, lag 2", ((0.0, 0.0), (0.7, 0.5)), lag=2),
    linear("source with memory 0.9", ((0.9, 0.0), (0.7, 0.5))),
    linear("both drive each other", ((0.5, 0.3), (0.5, 0.3))),
    linear("independent, memory 0.9", ((0.9, 0.0), (0.0, 0.9))),
    copies("copied bits, a tenth wrong", 0.5, 0.1),
    copies("copied bits, a fifth ones, a tenth wrong", 0.2, 0.1),
    Problem("independent bits with memory", sticky_bits, 0.0, nothing, approach="discrete"),
)


# The runs


def peer(problem: Problem, x: Numbers, y: Numbers) -> tuple[float, float, Numbers]:
    """Return the peer's estimate in nats, p of its permutation test, and its local values."""
    library: Any = importlib.import_module("infomeasure")
    options = {"measure": "te", "approach": problem.approach, "prop_time": problem.lag - 1, "base": "e", "seed": 0}
    found = library.estimator(x, y, **options)
    test = found.statistical_test(n_tests=PERMUTATIONS, method="permutation_test")
    return float(found.global_val()), float(test.p_value), np.asarray(found.local_vals())


def distance(local: Any, exact: Numbers) -> float:
    """Root of the mean squared error of local values."""
    return float(np.sqrt(np.mean((np.asarray(local) - exact) ** 2)))


def estimated(place: int, k: int) -> dict[str, Any]:
    """One run of a problem by both; None where withheld."""
    problem = PROBLEMS[place]
    x, y = problem.draw(np.random.default_rng([k, place, 43]))
    exact = problem.local(x, y)
    found = pnce.estimation.transfer_entropy(x, y, lag=problem.lag, rng=k, splits=1, progress=False)
    numbers = {name: getattr(found, name, math.nan) for name in ("estimate", "low", "high", "lower", "p")}
    run: dict[str, Any] = rounded(numbers | {"local": distance(found.local, exact)})
    if importlib.util.find_spec("infomeasure") is not None:
        value, p, local = peer(problem, x, y)
        run["peer"] = rounded({"estimate": value, "p": p, "local": distance(local, exact)})
    return run


def run(record: Record, repeats: int, only: str, save: Callable[[Record], None]) -> Record:
    """Add missing runs."""
    for k in range(repeats):
        for place, problem in enumerate(PROBLEMS):
            if only in problem.name:
                runs = record.setdefault(problem.name, [])
                if len(runs) == k:
                    runs.append(estimated(place, k))
                    save(record)
    return record


# The table


def mean(values: list[float]) -> str:
    """Table cell of a mean."""
    return f"{np.mean(values):.2f}" if values else "–"


def shows(run: Record) -> bool:
    """Whether a run shows dependence: of numbers by p, of categories by the lower limit."""
    return bool(run["lower"] > 0.0 if run["p"] is None else run["p"] <= LEVEL)


def ranges(record: Record) -> tuple[int, int, int]:
    """Numbers of runs with an estimate, of those whose range does not hold the truth, and of all runs."""
    runs = [(problem.truth, run) for problem in PROBLEMS for run in record.get(problem.name, [])]
    given = [(truth, run) for truth, run in runs if run["estimate"] is not None]
    missed = [truth for truth, run in given if run["high"] is not None and not run["low"] <= truth <= run["high"]]
    return len(given), len(missed), len(runs)


def table(record: Record) -> str:
    """Both estimators, one line per problem."""
    lines = [
        "| series | truth | runs | error | peer's | local error | peer's | shown | peer's |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for problem in PROBLEMS:
        runs, truth = record.get(problem.name, []), problem.truth
        if not runs:
            continue
        peers = [r["peer"] for r in runs if "peer" in r]
        cells = (
            mean([abs(r["estimate"] - truth) for r in runs if r["estimate"] is not None]),
            mean([abs(r["estimate"] - truth) for r in peers]),
            mean([r["local"] for r in runs]),
            mean([r["local"] for r in peers]),
            of([shows(r) for r in runs if r["lower"] is not None or r["p"] is not None]),
            of([r["p"] <= LEVEL for r in peers]),
        )
        lines.append(f"| {problem.name} | {truth:.2f} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Estimate and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10, help="runs of each problem")
    parser.add_argument("--only", default="", help="word in the names of the problems")
    parser.add_argument("--quick", action="store_true", help="one run of two problems; writes nothing")
    options = parser.parse_args()
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    if options.quick:
        print(table(run({}, 1, "tenth wrong", lambda _: None)))
        return
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}

    def save(found: Record) -> None:
        RECORD.with_suffix(".new").write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
        RECORD.with_suffix(".new").replace(RECORD)

    run(record, options.repeats, options.only, save)


if __name__ == "__main__":
    main()
