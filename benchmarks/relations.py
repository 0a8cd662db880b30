"""Information given a third variable, and differences of information, on distributions with known values.

`python benchmarks/relations.py` estimates `--repeats` times on each problem, and adds the results to
docs/relations.json; recorded runs are skipped. `--only name` runs problems whose name holds this word; `--quick` prints
the tables of a few runs and writes nothing. interval_coverage.py writes the tables into docs/coverage.md. Needs NumPy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import portable_nce as pnce

__all__ = ["RECORD", "conditionals", "differences", "hits", "of_numbers"]

RECORD: Final = Path(__file__).parents[1] / "docs" / "relations.json"
Numbers = NDArray[Any]
Record = dict[str, Any]


def normal_information(rho: float) -> float:
    """Mutual information of two normal numbers of correlation `rho`."""
    return -0.5 * math.log1p(-rho * rho)


def flipped(share: float) -> float:
    """Mutual information of two even bits that differ in a share of the cases."""
    return math.log(2.0) + share * math.log(share) + (1.0 - share) * math.log1p(-share)


def correlated(rng: np.random.Generator, rho: Any, count: int) -> tuple[Numbers, Numbers]:
    """Normal pairs with these correlations."""
    x, noise = rng.normal(size=(2, count))
    return x, rho * x + np.sqrt(1.0 - np.square(rho)) * noise


# Given a third variable


class Conditional(NamedTuple):
    """Name, draw of x, y, z and options, and conditional information in nats."""

    name: str
    draw: Callable[[np.random.Generator], tuple[Numbers, Numbers, Numbers, dict[str, Any]]]
    truth: float


def confounder(rng: np.random.Generator) -> Any:
    """Four categories move x and y, which have nothing else in common."""
    z = rng.integers(4, size=300)
    x, y = 2.0 * z + rng.normal(size=(2, 300))
    return x, y, z, {}


def chain(rng: np.random.Generator) -> Any:
    """Y follows the category of x."""
    x = rng.normal(size=300)
    z = np.digitize(x, (-0.7, 0.0, 0.7))
    return x, z + rng.normal(size=300), z, {}


def collider(rng: np.random.Generator) -> Any:
    """Independent x and y, and the sign of their sum: 2 H(z | x) - H(z), where H(z | x) is 1/2 on average."""
    x, y = rng.normal(size=(2, 300))
    return x, y, x + y > 0.0, {}


def exclusive_or(rng: np.random.Generator) -> Any:
    """Y is x or its opposite by the category, with a tenth of exceptions."""
    x, z = rng.integers(2, size=(2, 300))
    return x, x ^ z ^ (rng.uniform(size=300) < 0.1), z, {}  # noqa: PLR2004


SHARES, RHOS = np.asarray([0.7, 0.2, 0.1]), np.asarray([0.0, 0.6, 0.9])


def unequal(rng: np.random.Generator) -> Any:
    """Three categories of unequal shares, scales and correlations."""
    z = np.concatenate([np.repeat([0, 1, 2], 12), rng.choice(3, size=264, p=(300 * SHARES - 12) / 264)])
    x, y = correlated(rng, RHOS[z], 300)
    return (1.0 + 3.0 * z) * x, y, z, {}


def subjects(rng: np.random.Generator) -> Any:
    """Twenty subjects with means of their own, and a correlation of 0.8 within each."""
    z = np.repeat(np.arange(20), 15)
    x, y = correlated(rng, 0.8, 300)
    return x + 3.0 * rng.normal(size=20)[z], y + 3.0 * rng.normal(size=20)[z], z, {}


def signs(rng: np.random.Generator) -> Any:
    """The sign of a correlation of 0.8 is that of the category."""
    z = rng.integers(2, size=300)
    x, y = correlated(rng, 0.8 * (2.0 * z - 1.0), 300)
    return x, y, z, {}


def delayed_bits(rng: np.random.Generator) -> Any:
    """Transfer entropy of bits: the next y is x, or the last y if x is 0, with a tenth of exceptions."""
    x = rng.integers(2, size=401)
    y = np.zeros(401, dtype=np.int64)
    for t in range(400):
        y[t + 1] = (x[t] | y[t]) ^ (rng.uniform() < 0.1)  # noqa: PLR2004
    return x[:-1], y[1:], y[:-1], {"order": range(400)}


def delayed_bits_truth() -> float:
    """If y is 0, x decides the next; if it is 1, x tells nothing. P(y = 0) is q = 0.9 q / 2 + 0.1 (1 - q / 2)."""
    return 0.1 / (1.0 - 0.4) * flipped(0.1)


def partial(rng: np.random.Generator) -> Any:
    """Normal numbers with a partial correlation of 0.6."""
    x, y = correlated(rng, 0.6, 300)
    z = rng.normal(size=300)
    return x + z, y + z, z, {}


def normal_chain(rng: np.random.Generator) -> Any:
    """Z follows x, and y follows z."""
    x, a, b = rng.normal(size=(3, 300))
    return x, x + a + b, x + a, {}


def normal_collider(rng: np.random.Generator) -> Any:
    """Independent x and y, and their sum with noise: a partial correlation of -1/2."""
    x, y, noise = rng.normal(size=(3, 300))
    return x, y, x + y + noise, {}


def transfer(rng: np.random.Generator) -> Any:
    """Transfer entropy of numbers: the next y is 0.5 y + 0.7 x + noise."""
    x, noise = rng.normal(size=(2, 401))
    y = noise.copy()
    for t in range(400):
        y[t + 1] += 0.5 * y[t] + 0.7 * x[t]
    return x[:-1], y[1:], y[:-1], {"order": range(400)}


def strong_wave(rng: np.random.Generator) -> Any:
    """X and y are waves of z with little noise, and have nothing else in common."""
    z = rng.uniform(0.0, 6.0, size=300)
    x, y = np.sin(4.0 * z) + 0.05 * rng.normal(size=(2, 300))
    return x, y, z, {}


def apart_from_z(rng: np.random.Generator) -> Any:
    """Normal numbers with a correlation of 0.8, and others."""
    return *correlated(rng, 0.8, 300), rng.normal(size=300), {}


CONDITIONALS: Final = (
    Conditional("confounder alone", confounder, 0.0),
    Conditional("chain", chain, 0.0),
    Conditional("collider", collider, 1.0 - math.log(2.0)),
    Conditional("XOR, a tenth of exceptions", exclusive_or, flipped(0.1)),
    Conditional("unequal categories", unequal, float(SHARES @ [normal_information(r) for r in RHOS])),
    Conditional("20 subjects of 15 rows", subjects, normal_information(0.8)),
    Conditional("a sign by category", signs, normal_information(0.8)),
    Conditional("transfer entropy of bits, order=", delayed_bits, delayed_bits_truth()),
    Conditional("partial correlation of 0.6", partial, normal_information(0.6)),
    Conditional("chain of numbers", normal_chain, 0.0),
    Conditional("collider of numbers", normal_collider, normal_information(0.5)),
    Conditional("transfer entropy of numbers, order=", transfer, 0.5 * math.log1p(0.49)),
    Conditional("a strong wave of numbers", strong_wave, 0.0),
    Conditional("numbers that tell nothing", apart_from_z, normal_information(0.8)),
)


def neighbours(x: Numbers, y: Numbers, z: Numbers, k: int = 3) -> float:
    """Conditional information by nearest neighbours of standardised columns (Frenzel and Pompe 2007)."""
    rng = np.random.default_rng(0)
    columns = []
    for values in (x, y, z):
        column = np.asarray(values, dtype=np.float64)
        column = (column - column.mean()) / (column.std() or 1.0) + 1e-10 * rng.normal(size=len(column))
        columns.append(np.abs(column[:, None] - column[None, :]))
    of_x, of_y, of_z = columns
    both, other = np.maximum(of_x, of_z), np.maximum(of_y, of_z)
    joint = np.maximum(both, of_y)
    for distances in (both, other, of_z, joint):
        np.fill_diagonal(distances, np.inf)
    radius = np.partition(joint, k - 1, axis=1)[:, k - 1 : k]
    digamma = np.concatenate([[-0.5772156649015329], -0.5772156649015329 + np.cumsum(1.0 / np.arange(1, len(x) + 1))])
    a, b, c = (digamma[(distances < radius).sum(axis=1)].mean() for distances in (both, other, of_z))
    return float(digamma[k - 1] - a - b + c)


def conditional_run(problem: Conditional, place: int, k: int) -> dict[str, Any]:
    """One estimate; None where withheld."""
    x, y, z, options = problem.draw(np.random.default_rng([k, place, 41]))
    found = pnce.estimation.mutual_information(x, y, given=z, rng=k, progress=False, splits=1, **options)
    lower = getattr(found, "lower", math.nan)
    numbers = {"lower": lower, "estimate": found.estimate, "low": found.low, "high": found.high}
    p = getattr(found, "p", math.nan)
    return {**rounded(numbers | {"p": p}), "neighbours": round(neighbours(x, y, z), 4)}


# Differences


class Difference(NamedTuple):
    """Name, draw of two pairs of arrays with their options, difference in nats, and whether they are paired."""

    name: str
    draw: Callable[[np.random.Generator], tuple[Any, Any]]
    truth: float
    paired: bool = False


def apart(left: float, right: float) -> Callable[[np.random.Generator], Any]:
    """Independent samples of normal pairs with these correlations."""
    return lambda rng: tuple((*correlated(rng, rho, 300), {}) for rho in (left, right))


def together(left: float, right: float) -> Callable[[np.random.Generator], Any]:
    """One x with two y, whose noises have a correlation of 0.7."""

    def draw(rng: np.random.Generator) -> Any:
        x = rng.normal(size=300)
        noises = correlated(rng, 0.7, 300)
        each = zip((left, right), noises, strict=True)
        return tuple((x, rho * x + math.sqrt(1.0 - rho * rho) * noise, {}) for rho, noise in each)

    return draw


def same_subjects(rng: np.random.Generator) -> Any:
    """Sixty subjects of five rows in two conditions, with noise of a scale of their own in both."""
    label = np.repeat(np.arange(60), 5)
    scale = np.exp(0.5 * rng.normal(size=60))[label]
    result: list[Any] = []
    for _ in range(2):
        x, noise = rng.normal(size=(2, 300))
        result.append((x, x + scale * noise, {"groups": label}))
    return tuple(result)


def channels(rng: np.random.Generator) -> Any:
    """Independent samples of bits with 5 % and with 20 % of exceptions."""
    result: list[Any] = []
    for share in (0.05, 0.2):
        x = rng.integers(2, size=300)
        result.append((x, x ^ (rng.uniform(size=300) < share), {}))
    return tuple(result)


OF_RHOS: Final = normal_information(0.8) - normal_information(0.6)
DIFFERENCES: Final = (
    Difference("correlations 0.8, 0.8", apart(0.8, 0.8), 0.0),
    Difference("correlations 0.8, 0.6", apart(0.8, 0.6), OF_RHOS),
    Difference("bits, 5 % and 20 % of exceptions", channels, flipped(0.05) - flipped(0.2)),
    Difference("correlations 0.8, 0.8, paired", together(0.8, 0.8), 0.0, paired=True),
    Difference("correlations 0.8, 0.6, paired", together(0.8, 0.6), OF_RHOS, paired=True),
    Difference("60 subjects twice, paired, groups=", same_subjects, 0.0, paired=True),
)


def difference_run(problem: Difference, place: int, k: int) -> dict[str, Any]:
    """One difference; None where withheld."""
    samples = problem.draw(np.random.default_rng([k, place, 42]))
    results: list[Any] = [
        pnce.estimation.mutual_information(x, y, rng=k, progress=False, splits=1, **options)
        for x, y, options in samples
    ]
    found = pnce.estimation.difference(*results, paired=problem.paired)
    return rounded({name: getattr(found, name) for name in ("estimate", "low", "high", "bound", "error")})


# The runs


def rounded(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers for the record."""
    return {name: None if math.isnan(value) else round(value, 4) for name, value in numbers.items()}


def run(record: Record, repeats: int, only: str, save: Callable[[Record], None]) -> Record:
    """Add missing runs."""
    cases: list[tuple[str, Any, Callable[[int], Any]]] = [
        *(("conditional", p, lambda k, p=p, i=i: conditional_run(p, i, k)) for i, p in enumerate(CONDITIONALS)),
        *(("difference", p, lambda k, p=p, i=i: difference_run(p, i, k)) for i, p in enumerate(DIFFERENCES)),
    ]
    for k in range(repeats):
        for table, problem, estimate in cases:
            if only in problem.name:
                runs = record.setdefault(table, {}).setdefault(problem.name, [])
                if len(runs) == k:
                    runs.append(estimate(k))
                    save(record)
    return record


# Tables


def of(hits: list[bool]) -> str:
    """Table cell of a share."""
    return f"{sum(hits)}/{len(hits)}" if hits else "–"


def conditionals(record: Record) -> str:
    """Limits and ranges given a third variable, one line per problem."""
    lines = [
        (
            "| given | truth | runs | `lower` above | range below | median `lower` | estimates | error | neighbours "
            "| `low` above 0 | p at most 5 % |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for problem in CONDITIONALS:
        runs, truth = record.get("conditional", {}).get(problem.name, []), problem.truth
        if not runs:
            continue
        limits = [r["lower"] for r in runs if r["lower"] is not None]
        values = [r["estimate"] for r in runs if r["estimate"] is not None]
        cells = (
            of([x > truth for x in limits]),
            of([r["high"] < truth for r in runs if r["high"] is not None]),
            f"{np.median(limits):.2f}" if limits else "–",
            f"{len(values)}",
            f"{np.mean([abs(x - truth) for x in values]):.2f}" if values else "–",
            f"{np.mean([abs(r['neighbours'] - truth) for r in runs]):.2f}",
            of([] if limits else [r["low"] > 0.0 for r in runs]),
            of([r["p"] <= 0.05 for r in runs if r.get("p") is not None]),  # noqa: PLR2004
        )
        lines.append(f"| {problem.name} | {truth:.2f} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def hits(record: Record) -> tuple[tuple[int, int], tuple[int, int]]:
    """Limits above the truth, and ranges below it, each with the number of runs that give one."""
    runs = [(p.truth, r) for p in CONDITIONALS for r in record.get("conditional", {}).get(p.name, [])]
    above = [r["lower"] > truth for truth, r in runs if r["lower"] is not None]
    below = [r["high"] < truth for truth, r in runs if r["high"] is not None]
    return (sum(above), len(above)), (sum(below), len(below))


def of_numbers(record: Record) -> dict[str, tuple[int, int]]:
    """Given numbers: low ends above the truth, low ends above 0, and small p, each of the runs it is asked of."""
    runs = [(p.truth, r) for p in CONDITIONALS for r in record.get("conditional", {}).get(p.name, []) if "p" in r]
    runs = [(truth, r) for truth, r in runs if r["lower"] is None and r["p"] is not None]
    shown = [truth > 0.0 for truth, r in runs if r["low"] > 0.0]
    small = [(truth, r["p"] <= 0.05) for truth, r in runs]  # noqa: PLR2004
    return {
        "above": (sum(r["low"] > truth for truth, r in runs), len(runs)),
        "shown": (sum(shown), sum(truth > 0.0 for truth, _ in runs)),
        "false": (sum(hit for truth, hit in small if truth == 0.0), sum(truth == 0.0 for truth, _ in small)),
        "found": (sum(hit for truth, hit in small if truth > 0.0), sum(truth > 0.0 for truth, _ in small)),
    }


def differences(record: Record) -> str:
    """Intervals of differences, one line per problem."""
    lines = [
        "| difference | truth | runs | interval holds it | excludes 0 | median width |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for problem in DIFFERENCES:
        runs = record.get("difference", {}).get(problem.name, [])
        ends = [(r["low"], r["high"]) for r in runs if r["low"] is not None]
        if not ends:
            continue
        cells = (
            of([low <= problem.truth <= high for low, high in ends]),
            of([not low <= 0.0 <= high for low, high in ends]),
            f"{np.median([high - low for low, high in ends]):.2f}",
        )
        lines.append(f"| {problem.name} | {problem.truth:.2f} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Estimate and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=200, help="runs of each problem")
    parser.add_argument("--only", default="", help="word in the names of the problems")
    parser.add_argument("--quick", action="store_true", help="one run of each; prints the tables and writes nothing")
    options = parser.parse_args()
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    if options.quick:
        record = run({}, 1, options.only, lambda _: None)
        print(conditionals(record), differences(record), sep="\n\n")
        return
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}

    def save(found: Record) -> None:
        RECORD.with_suffix(".new").write_text(json.dumps(found) + "\n", encoding="utf-8")
        RECORD.with_suffix(".new").replace(RECORD)

    run(record, options.repeats, options.only, save)


if __name__ == "__main__":
    main()
