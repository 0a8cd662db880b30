"""Level and power of `estimation.independence_test`, next to permutation tests of three other statistics.

`python benchmarks/independence.py` tests independent arrays (`--levels` runs of each kind), the samples of problems
with known information, and weak relations (`--powers` runs of each), and adds the probabilities to
docs/independence.json; recorded runs are skipped, unless the test has another `METHOD`. `--only 200` runs those whose
name holds this word. It draws docs/independence.png; interval_coverage.py writes the tables into docs/coverage.md.
Needs NumPy and matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from known_information import Numbers, kraskov, problems

import portable_nce as pnce

__all__ = ["RECORD", "given_numbers", "levels", "powers"]

RECORD: Final = Path(__file__).parents[1] / "docs" / "independence.json"
LEVEL, PAIRS, PERMUTATIONS = 0.05, 60, 199
POWER_OF: Final = (
    "Gaussian, 0.1 nats",
    "Gaussian, 0.5 nats",
    "parabola",
    "sine of two periods",
    "checkerboard steps",
    "band, 0.4",
    "table, 2 × 2",
    "XOR of 2 signs",
    "Gaussian, 5 × 5",
    "mixture of four",
)
METHOD: Final = "four statistics of all pairs"
"""What distinguishes the test from that of earlier records."""
WEAK: Final = 100
"""Pairs of the weak relations."""
GIVEN: Final = 200
"""Rows of the relations given a third number."""
Record = dict[str, Any]
Given = tuple[Numbers, Numbers, Numbers]
Sample = tuple[Numbers, Numbers, dict[str, Any]]


# Independent arrays


def normal(rng: np.random.Generator, count: int) -> Sample:
    """Normal numbers."""
    x, y = rng.normal(size=(2, count))
    return x, y, {}


def several(rng: np.random.Generator, count: int) -> Sample:
    """Five columns with heavy tails."""
    x, y = rng.standard_t(2, size=(2, count, 5))
    return x, y, {}


def counts(rng: np.random.Generator, count: int) -> Sample:
    """Counts and a rare event."""
    return rng.poisson(1.0, size=count).astype(np.float64), (rng.uniform(size=count) < 0.1).astype(np.float64), {}  # noqa: PLR2004


def subjects(rng: np.random.Generator, count: int) -> Sample:
    """Thirty subjects of equal numbers of rows, with means of their own in x and in y."""
    label = np.repeat(np.arange(30), -(-count // 30))[:count]
    x, y = (rng.normal(size=30)[label] + 0.5 * rng.normal(size=count) for _ in range(2))
    return x, y, {"groups": label}


def unequal(rng: np.random.Generator, count: int) -> Sample:
    """Forty subjects of unequal numbers of rows, with one number of each subject as y."""
    label = np.concatenate([np.arange(40), rng.choice(40, size=count - 40, p=np.arange(1, 41) / 820)])
    return rng.normal(size=40)[label] + 0.5 * rng.normal(size=count), rng.normal(size=40)[label], {"groups": label}


def autoregressive(rng: np.random.Generator, count: int) -> Sample:
    """Two series with a memory of 0.9."""
    z = rng.normal(size=(count, 2))
    for i in range(1, count):
        z[i] = 0.9 * z[i - 1] + math.sqrt(1.0 - 0.9**2) * z[i]
    return z[:, 0], z[:, 1], {"order": range(count)}


def windows(rng: np.random.Generator, count: int) -> Sample:
    """Means of sliding windows of ten numbers."""
    x, y = (np.convolve(rng.normal(size=count + 9), np.ones(10), mode="valid") for _ in range(2))
    return x, y, {"order": range(count)}


def memory(share: float) -> Callable[[np.random.Generator, int], Sample]:
    """Two autoregressive series with this memory."""

    def draw(rng: np.random.Generator, count: int) -> Sample:
        x, y = filtered(rng.normal(size=(2, count + 200)), share)[:, 200:]
        return x, y, {"order": range(count)}

    return draw


def filtered(z: Numbers, *shares: float) -> Numbers:
    """Autoregressive series of some noise."""
    z = z.copy()
    for i in range(len(shares), z.shape[1]):
        for lag, share in enumerate(shares, 1):
            z[:, i] += share * z[:, i - lag]
    return z


def volatile(rng: np.random.Generator, count: int) -> Sample:
    """Two series of noise, whose logarithmic scales have a memory of 0.95."""
    scales = np.exp(0.5 * filtered(rng.normal(size=(2, count + 200)), 0.95)[:, 200:])
    x, y = scales * rng.normal(size=(2, count))
    return x, y, {"order": range(count)}


def garch(rng: np.random.Generator, count: int) -> Sample:
    """Two GARCH(1, 1) series: each variance is 0.05 + 0.15 of the last square + 0.8 of the last variance."""
    z = rng.normal(size=(2, count + 300))
    variance = np.ones(2)
    for i in range(z.shape[1]):
        z[:, i] *= np.sqrt(variance)
        variance = 0.05 + 0.15 * z[:, i] ** 2 + 0.8 * variance
    return z[0, 300:], z[1, 300:], {"order": range(count)}


def cycles(rng: np.random.Generator, count: int) -> Sample:
    """Two series with a period of about 25 and a memory of 0.97, and phases of their own."""
    shares = 2.0 * 0.97 * math.cos(2.0 * math.pi / 25.0), -(0.97**2)
    x, y = filtered(rng.normal(size=(2, count + 300)), *shares)[:, 300:]
    return x, y, {"order": range(count)}


def confounded(function: Callable[[Numbers], Numbers], noise: float) -> Callable[[np.random.Generator, int], Sample]:
    """A function of a third number, uniform on [0, 6], with independent noise in x and in y."""

    def draw(rng: np.random.Generator, count: int) -> Sample:
        z = rng.uniform(0.0, 6.0, size=count)
        x, y = function(z) + noise * rng.normal(size=(2, count))
        return x, y, {"given": z}

    return draw


def common_scale(rng: np.random.Generator, count: int) -> Sample:
    """Noise in x and in y, with a scale that is a function of a third number."""
    z = rng.normal(size=count)
    x, y = np.exp(z) * rng.normal(size=(2, count))
    return x, y, {"given": z}


KINDS: Final[dict[str, Callable[[np.random.Generator, int], Sample]]] = {
    "independent rows": normal,
    "independent rows, 5 × 5, heavy tails": several,
    "independent counts and rare events": counts,
    "30 subjects, groups=": subjects,
    "40 unequal subjects, a number of each, groups=": unequal,
    "AR(1) 0.9, order=": autoregressive,
    "sliding windows of 10, order=": windows,
    "AR(1) 0.5, order=": memory(0.5),
    "AR(1) 0.98, order=": memory(0.98),
    "volatility, order=": volatile,
    "GARCH(1, 1), order=": garch,
    "cycles, order=": cycles,
    "a line, given=": confounded(lambda z: z, 0.2),
    "a strong wave, given=": confounded(lambda z: np.sin(4.0 * z), 0.05),
    "a weak wave, given=": confounded(lambda z: np.sin(4.0 * z), 1.0),
    "a scale, given=": common_scale,
}
SIZES: Final = (60, 200, 800)


# Weak relations


def linear(rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """A correlation of 0.3."""
    x, noise = rng.normal(size=(2, WEAK))
    return x, 0.3 * x + math.sqrt(1.0 - 0.3**2) * noise


def quadratic(rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """A weak parabola."""
    x, noise = rng.normal(size=(2, WEAK))
    return x, 0.35 * x**2 + noise


def scale(rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """A scale that grows with x."""
    x, noise = rng.normal(size=(2, WEAK))
    return x, np.exp(0.5 * x) * noise


def one_of_many(rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """One of 20 columns tells something."""
    x = rng.normal(size=(WEAK, 20))
    return x, 0.5 * x[:, 0] + rng.normal(size=WEAK)


def noisy_circle(rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Points near a circle."""
    turn = rng.uniform(0.0, 2.0 * math.pi, size=WEAK)
    a, b = 0.3 * rng.normal(size=(2, WEAK))
    return np.cos(turn) + a, np.sin(turn) + b


def checkerboard(rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Points on the black fields of a board of four by four."""
    x = rng.uniform(0.0, 4.0, size=WEAK)
    return x, 2.0 * rng.integers(2, size=WEAK) + np.floor(x) % 2 + rng.uniform(size=WEAK)


def two_signs(rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """The product of two signs, with a quarter of exceptions."""
    x = rng.normal(size=(WEAK, 2))
    return x, np.sign(x[:, 0] * x[:, 1]) * np.where(rng.uniform(size=WEAK) < 0.25, -1.0, 1.0)  # noqa: PLR2004


def wide(rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """One of 60 columns is correlated by 0.6 with one of 100."""
    x, y = rng.normal(size=(WEAK, 60)), rng.normal(size=(WEAK, 100))
    y[:, 0] = 0.6 * x[:, 0] + 0.8 * y[:, 0]
    return x, y


def given_line(rng: np.random.Generator) -> Given:
    """Lines of z, and a correlation of 0.3 of the rest."""
    z, x, noise = rng.normal(size=(3, GIVEN))
    return z + x, z + 0.3 * x + math.sqrt(1.0 - 0.3**2) * noise, z


def given_wave(rng: np.random.Generator) -> Given:
    """Waves of z, and a correlation of 0.3 of the rest."""
    z = rng.uniform(0.0, 6.0, size=GIVEN)
    x, noise = rng.normal(size=(2, GIVEN))
    wave = np.sin(2.0 * z)
    return wave + 0.5 * x, wave + 0.5 * (0.3 * x + math.sqrt(1.0 - 0.3**2) * noise), z


def given_parabola(rng: np.random.Generator) -> Given:
    """Lines of z, and a parabola of the rest."""
    z, x, noise = rng.normal(size=(3, GIVEN))
    return z + x, z + 0.5 * x**2 + noise, z


def given_sign(rng: np.random.Generator) -> Given:
    """A correlation of 0.6 whose sign is that of z."""
    z, x, noise = rng.normal(size=(3, GIVEN))
    return x, 0.6 * np.sign(z) * x + 0.8 * noise, z


def given_nothing(rng: np.random.Generator) -> Given:
    """Waves of z, and independent noise: nothing is to be found."""
    z = rng.uniform(0.0, 6.0, size=GIVEN)
    x, y = np.sin(2.0 * z) + 0.5 * rng.normal(size=(2, GIVEN))
    return x, y, z


GIVEN_Z: Final = (given_line, given_wave, given_parabola, given_sign, given_nothing)


def partial_correlation(x: Numbers, y: Numbers, z: Numbers, rng: np.random.Generator) -> float:
    """Correlation of the residuals of lines in z, by permutations."""
    lines = np.stack([np.ones_like(z), z], axis=1)
    left, right = (v - lines @ np.linalg.lstsq(lines, v, rcond=None)[0] for v in (x, y))
    return permuted(lambda order: abs(float(left @ right[order])), len(z), rng)


WEAKLY: Final = (linear, quadratic, scale, one_of_many, noisy_circle, checkerboard, two_signs, wide)


# Other statistics


def permuted(statistic: Callable[[Any], float], count: int, rng: np.random.Generator) -> float:
    """Probability of a statistic of a permutation of y."""
    own = statistic(np.arange(count))
    return (1 + sum(statistic(rng.permutation(count)) >= own for _ in range(PERMUTATIONS))) / (1 + PERMUTATIONS)


def distances(z: Numbers) -> Numbers:
    """Distances of standardised rows."""
    z = z.reshape(len(z), -1)
    z = (z - z.mean(axis=0)) / np.where(z.std(axis=0) > 0, z.std(axis=0), 1.0)
    return np.asarray(np.sqrt(((z[:, None, :] - z[None, :, :]) ** 2).sum(axis=2)))


def centred(matrix: Numbers) -> Numbers:
    """Matrix with row and column means 0."""
    return np.asarray(matrix - matrix.mean(axis=0) - matrix.mean(axis=1)[:, None] + matrix.mean())


def distance_correlation(x: Numbers, y: Numbers, rng: np.random.Generator) -> float:
    """Distance covariance (Székely et al. 2007)."""
    a, b = (centred(distances(z)) for z in (x, y))
    return permuted(lambda order: float((a * b[np.ix_(order, order)]).sum()), len(x), rng)


def hsic(x: Numbers, y: Numbers, rng: np.random.Generator) -> float:
    """Hilbert-Schmidt criterion (Gretton et al. 2005), Gaussian kernels as wide as the median distance."""
    kernels = []
    for z in (x, y):
        d = distances(z)
        width = np.median(d[d > 0])
        kernels.append(np.exp(-0.5 * (d / width) ** 2))
    a, b = centred(kernels[0]), kernels[1]
    return permuted(lambda order: float((a * b[np.ix_(order, order)]).sum()), len(x), rng)


def neighbours(x: Numbers, y: Numbers, rng: np.random.Generator) -> float:
    """Nearest neighbours (Kraskov et al. 2004)."""
    x, y = (z.reshape(len(z), -1) for z in (x, y))
    return permuted(lambda order: kraskov(x, y[order]), len(x), rng)


OTHERS: Final = {"distance correlation": distance_correlation, "HSIC": hsic, "neighbours": neighbours}
OWN, PARTIAL = "portable_nce", "partial correlation"


# The runs


def tested(x: Any, y: Any, seed: int, options: dict[str, Any]) -> float | None:
    """Probability, or None if the rows are refused."""
    try:
        p = pnce.estimation.independence_test(x, y, rng=seed, **options).p
    except ValueError as refusal:
        if " for a test, got " not in str(refusal) and " independent blocks of " not in str(refusal):
            raise
        return None
    return None if math.isnan(p) else round(p, 6)


def beside_others(x: Numbers, y: Numbers, seed: int, rng: np.random.Generator) -> dict[str, float | None]:
    """Probabilities by all tests."""
    others = {name: other(x, y, rng) for name, other in OTHERS.items()}
    return {OWN: tested(x, y, seed, {"groups": range(len(x))}), **others}


def runs(levels_of: int, powers_of: int) -> Iterator[tuple[str, str, int, Callable[[int], Any]]]:
    """Table, row, number of runs, and the run of each row."""
    for place, (name, draw) in enumerate(KINDS.items()):
        for count in SIZES:

            def level(k: int, draw: Any = draw, count: int = count, place: int = place) -> Any:
                x, y, options = draw(np.random.default_rng([k, count, place, 31]), count)
                return tested(x, y, k, options)

            yield "levels", f"{name}, {count}", levels_of, level
    for place, problem in enumerate(problem for problem in problems() if problem.name in POWER_OF):

        def power(k: int, problem: Any = problem, place: int = place) -> Any:
            rng = np.random.default_rng([k, place, 32])
            x, y = problem.draw(rng, PAIRS)
            return beside_others(x, y, k, rng)

        yield "powers", problem.name, powers_of, power
    for place, relation in enumerate(WEAKLY):

        def weak(k: int, relation: Any = relation, place: int = place) -> Any:
            rng = np.random.default_rng([k, place, 33])
            x, y = relation(rng)
            return beside_others(x, y, k, rng)

        yield "powers", f"{relation.__name__.replace('_', ' ')}, {WEAK} pairs", powers_of, weak
    for place, with_z in enumerate(GIVEN_Z):

        def given(k: int, with_z: Any = with_z, place: int = place) -> Any:
            rng = np.random.default_rng([k, place, 34])
            x, y, z = with_z(rng)
            return {OWN: tested(x, y, k, {"given": z}), PARTIAL: partial_correlation(x, y, z, rng)}

        yield "given", with_z.__name__.replace("_", " "), powers_of, given


def run(record: Record, levels_of: int, powers_of: int, only: str, save: Callable[[Record], None]) -> Record:
    """Add missing runs, a few of each row at a time."""
    if record.get("method") != METHOD:
        record.clear()
        record["method"] = METHOD
    cases = [case for case in runs(levels_of, powers_of) if only in case[1]]
    for share in (1, 2, 4, 8):
        for table, name, count, each in cases:
            found = record.setdefault(table, {}).setdefault(name, [])
            while len(found) < count * share // 8:
                found.append(each(len(found)))
            save(record)
    return record


# Tables and picture


def levels(record: Record) -> str:
    """Rejections of independent arrays, one line per kind."""
    lines = ["| independent arrays | " + " | ".join(f"{n} rows" for n in SIZES) + " |", "|---|" + "---:|" * len(SIZES)]
    for name in KINDS:
        cells = []
        for count in SIZES:
            found = record["levels"].get(f"{name}, {count}", [])
            known = [p for p in found if p is not None]
            hits = sum(p <= LEVEL for p in known)
            cells.append(f"{hits}/{len(known)}" if known else "refused" if found else "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def powers(record: Record) -> str:
    """Rejections of dependent arrays, one line per problem."""
    names = [OWN, *OTHERS]
    lines = [f"| {PAIRS} pairs, or {WEAK} | runs | " + " | ".join(names) + " |", "|---|---:|" + "---:|" * len(names)]
    for name, found in record["powers"].items():
        hits = [sum(p[each] is not None and p[each] <= LEVEL for p in found) for each in names]
        lines.append(f"| {name} | {len(found)} | " + " | ".join(f"{100 * k / len(found):.0f} %" for k in hits) + " |")
    return "\n".join(lines)


def given_numbers(record: Record) -> str:
    """Rejections given a third number, one line per relation."""
    lines = [f"| {GIVEN} rows, given z | runs | {OWN} | {PARTIAL} |", "|---|---:|---:|---:|"]
    for relation in GIVEN_Z:
        found = record.get("given", {}).get(relation.__name__.replace("_", " "), [])
        if found:
            said = (relation.__doc__ or "").rstrip(".").replace(": nothing is to be found", "")
            shares = [100 * sum(p[n] is not None and p[n] <= LEVEL for p in found) / len(found) for n in (OWN, PARTIAL)]
            lines.append(f"| {said} | {len(found)} | " + " | ".join(f"{share:.0f} %" for share in shares) + " |")
    return "\n".join(lines)


def draw(record: Record, path: Path) -> None:
    """Draw the power of each test by problem."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (for the picture alone)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7.0, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, marker, color in zip((OWN, *OTHERS), "os^v", ("#0072b2", "#d55e00", "#009e73", "#999999"), strict=True):
        shares = [
            100 * sum(p[name] is not None and p[name] <= LEVEL for p in found) / len(found)
            for found in record["powers"].values()
        ]
        axes.plot(shares, range(len(shares)), marker, color=color, label=name, alpha=0.8)
    axes.axvline(100 * LEVEL, color="0.6", linestyle=":")
    axes.set_yticks(range(len(record["powers"])), list(record["powers"]))
    axes.invert_yaxis()
    axes.set_xlabel(f"% of runs rejected at {100 * LEVEL:.0f} %, {PAIRS} pairs, or {WEAK}")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Test, record and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--levels", type=int, default=400, help="runs of each kind of independent arrays")
    parser.add_argument("--powers", type=int, default=48, help="runs of each problem")
    parser.add_argument("--only", default="", help="word in the names of the rows")
    parser.add_argument("--quick", action="store_true", help="few runs; prints the tables and writes nothing")
    options = parser.parse_args()
    if options.quick:
        record = run({}, 8, 8, options.only, lambda _: None)
        print(levels(record), powers(record), sep="\n\n")
        return
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}

    def save(found: Record) -> None:
        RECORD.with_suffix(".new").write_text(json.dumps(found) + "\n", encoding="utf-8")
        RECORD.with_suffix(".new").replace(RECORD)

    record = run(record, options.levels, options.powers, options.only, save)
    draw(record, RECORD.with_suffix(".png"))


if __name__ == "__main__":
    main()
