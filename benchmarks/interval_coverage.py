"""Lower limits and ranges of `estimation.mutual_information` on distributions with known mutual information.

`python benchmarks/interval_coverage.py run` estimates `--repeats` times on each problem and each sample of dependent
rows of known_information.py, and adds the results to docs/coverage.json; recorded runs are skipped. `page` writes
docs/coverage.md and docs/coverage.png from that record. Without either, both run. `--only independent` runs those whose
name or class holds this word. `--quick` estimates once on small problems, prints the table and writes nothing. Needs
NumPy and matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import independence
import numpy as np
import relations
import transfer
from known_information import EXCEPTIONS, UNNOTICED, designs, gaussian, kraskov, problems
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import portable_nce as pnce

__all__ = ["gaussian", "percent"]

DOCS: Final = Path(__file__).parents[1] / "docs"
RECORD: Final = DOCS / "coverage.json"
REPEATS: Final = 200
DEPENDENT: Final = "dependent rows"
METHOD: Final = "limits that allow for exceptions"
"""What distinguishes the estimates from those of earlier records, whose runs are kept as sums alone."""
Record = dict[str, Any]


# The runs


def estimated(x: Any, y: Any, repeat: int, **options: Any) -> dict[str, Any]:
    """One estimate, next to that of the nearest neighbours; all withheld if the rows are refused as too dependent."""
    begin = time.process_time()
    numbers: dict[str, float] = dict.fromkeys(("lower", "estimate", "low", "high", "bound", "error", "null"), math.nan)
    try:
        found: Any = pnce.estimation.mutual_information(x, y, rng=repeat, progress=False, **options)
    except ValueError as refusal:
        if " independent blocks of " not in str(refusal):
            raise
        flags, critic = ["refused"], ""
    else:
        flags, critic = list(found.flags), found.settings.critic
        numbers = {name: getattr(found, name) for name in numbers}
    seconds = time.process_time() - begin
    numbers["neighbours"] = kraskov(x, y)
    rounded = {name: None if math.isnan(value) else round(value, 4) for name, value in numbers.items()}
    return {**rounded, "flags": flags, "critic": critic, "seconds": round(seconds, 1)}


def cases() -> Iterator[tuple[str, dict[str, Any], Callable[[int], dict[str, Any]]]]:
    """Name, facts and run of each problem and of each sample of dependent rows."""
    for number, problem in enumerate(problems()):

        def run(repeat: int, problem: Any = problem, number: int = number) -> dict[str, Any]:
            x, y = problem.draw(np.random.default_rng([repeat, number]), problem.pairs)
            return estimated(x, y, repeat)

        facts = {"kind": problem.kind, "held_out": problem.held_out, "truth": problem.truth, "pairs": problem.pairs}
        yield problem.name, facts, run
    for number, design in enumerate(designs()):

        def run_design(repeat: int, design: Any = design, number: int = number) -> dict[str, Any]:
            x, y, options = design.draw(np.random.default_rng([repeat, number, 9]))
            return estimated(x, y, repeat, splits=1, **options)

        yield (
            design.name,
            {"kind": f"{DEPENDENT}: {design.kind}", "held_out": False, "truth": lambda d=design: d.truth},
            run_design,
        )


def run(record: Record, repeats: int, only: str, save: Callable[[Record], None]) -> Record:
    """Add the missing repeats of each case."""
    known = [case for case in cases() if only in f"{case[0]} {case[1]['kind']}"]
    record["machine"] = f"{platform.machine()}, {platform.system()}, one thread; NumPy {np.__version__}"
    if "cases" in record and record.get("method") != METHOD:
        record["earlier"] = sums(record)
        record["cases"] = {}
    record["method"] = METHOD
    record.setdefault("cases", {})
    for repeat in range(repeats):
        for name, facts, estimate in known:
            entry = record["cases"].setdefault(name, {"runs": {}})
            entry.update(facts, truth=round(facts["truth"](), 5))
            if str(repeat) not in entry["runs"]:
                entry["runs"][str(repeat)] = estimate(repeat)
                save(record)
    order = {name: place for place, (name, _, _) in enumerate(cases())}
    record["cases"] = dict(sorted(record["cases"].items(), key=lambda item: order.get(item[0], len(order))))
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


def cell(hits: tuple[int, int]) -> str:
    """Table cell of a share."""
    return f"{hits[0]}/{hits[1]}" if hits[1] else "–"


def of(hits: tuple[int, int]) -> str:
    """Table cell of a share."""
    return f"{hits[0]} of {hits[1]}" if hits[1] else "–"


def summarised(runs: Sequence[tuple[float, Mapping[str, Any]]]) -> dict[str, Any]:
    """Shares and means of runs with their truths. Where the estimate is withheld, its error is that of the bound."""
    limits = [(truth, run["lower"]) for truth, run in runs if run["lower"] is not None]
    ranges = [(truth, run) for truth, run in runs if run["high"] is not None]
    judged = [(truth, run) for truth, run in runs if run["bound"] is not None]
    best = [(truth, run["bound"] if run["estimate"] is None else run["estimate"], run) for truth, run in judged]
    return {
        "runs": len(runs),
        "above": share(lower > truth for truth, lower in limits),
        "covered": share(run["low"] <= truth <= run["high"] for truth, run in ranges),
        "below": share(run["high"] < truth for truth, run in ranges),
        "error": float(np.mean([abs(value - truth) for truth, value, _ in best])),
        "neighbours": float(np.mean([abs(run["neighbours"] - truth) for truth, _, run in best])),
        "seconds": float(np.median([run["seconds"] for _, run in runs])),
    }


def classes(record: Record) -> dict[str, dict[str, Any]]:
    """Summaries by class, of problems of the development and of those kept out of it."""
    groups: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for entry in record["cases"].values():
        label = entry["kind"] + (", held out" if entry["held_out"] else "")
        groups.setdefault(label, []).extend((entry["truth"], run) for run in entry["runs"].values())
    return {label: summarised(runs) for label, runs in groups.items() if runs}


def table(record: Record) -> str:
    """One line per class."""
    lines = [
        "| class | runs | `lower` above the truth | range holds it | range below | error | neighbours | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for label, row in classes(record).items():
        errors = "– | –" if label.startswith(DEPENDENT) else f"{row['error']:.3f} | {row['neighbours']:.3f}"
        lines.append(
            f"| {label} | {row['runs']} | {cell(row['above'])} | {cell(row['covered'])} | {cell(row['below'])} "
            f"| {errors} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def total(record: Record, wanted: Callable[[Mapping[str, Any]], bool], name: str) -> tuple[int, int]:
    """Share over the cases of some kind."""
    runs = [(e["truth"], run) for e in record["cases"].values() if wanted(e) for run in e["runs"].values()]
    return summarised(runs)[name] if runs else (0, 0)


def has_independent_rows(entry: Mapping[str, Any]) -> bool:
    """Whether a case has independent rows."""
    return not entry["kind"].startswith(DEPENDENT)


def is_told(entry: Mapping[str, Any]) -> bool:
    """Whether a case has dependent rows that are noticed, or told by an option."""
    return entry["kind"].startswith(DEPENDENT) and UNNOTICED not in entry["kind"]


def sums(record: Record) -> dict[str, tuple[int, int]]:
    """Shares of the limits and ranges of independent rows, and of the limits of dependent rows."""
    return {
        "above": total(record, has_independent_rows, "above"),
        "covered": total(record, has_independent_rows, "covered"),
        "told": total(record, is_told, "above"),
        "untold": total(record, lambda entry: UNNOTICED in entry["kind"], "above"),
    }


def earlier_runs(before: Mapping[str, tuple[int, int]]) -> str:
    """What the runs of an earlier version gave."""
    return (
        f"**Earlier runs**, not in the tables, of a version whose limits were higher, without rare exceptions: `lower` "
        f"above the truth in {of(before['above'])}, ranges that hold it in {of(before['covered'])}; dependent rows "
        f"that are noticed or told, above in {of(before['told'])}; dependence that nothing tells, in "
        f"{of(before['untold'])}."
    )


def document(record: Record) -> str:
    """The page."""

    def apart(entry: Mapping[str, Any]) -> bool:
        return has_independent_rows(entry) and not entry["held_out"]

    def kept(entry: Mapping[str, Any]) -> bool:
        return bool(entry["held_out"])

    above, above_kept = total(record, apart, "above"), total(record, kept, "above")
    covered, covered_kept = total(record, apart, "covered"), total(record, kept, "covered")
    exceptional = total(record, lambda entry: entry["kind"] == EXCEPTIONS, "above")
    limits = (
        f"**`lower` is above the truth**, for independent rows, in {percent(*above)} of {above[1]} runs on problems of "
        f"the development, and in {percent(*above_kept)} of {above_kept[1]} on problems held out; at most 5 % "
        f"are promised. With rare exceptions: {of(exceptional)} of these."
    )
    ranges = (
        f"**The range [`low`, `high`]**, where no flag withholds it, holds the truth in {percent(*covered)} of "
        f"{covered[1]}, and in {percent(*covered_kept)} of {covered_kept[1]}. It goes on with the learning curve; "
        f"nothing is promised."
    )
    found = sums(record)
    told = found["told"]
    dependent = (
        f"**Dependent rows**: for copies, series, maps and subjects that are noticed or told by `order=` and "
        f"`groups=`, `lower` is above the truth in {percent(*told)} of {told[1]} runs that give one. [Dependence "
        f"that nothing tells](#dependence-that-nothing-tells): above the truth in {of(found['untold'])}."
    )
    earlier = [earlier_runs(record["earlier"])] if "earlier" in record else []
    facts = limits, ranges, dependent, *earlier
    listed = "\n".join(
        fill(f"- {fact}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) for fact in facts
    )
    made = fill(
        f"`python benchmarks/interval_coverage.py` makes these figures. Options are the defaults, with `splits=1` for "
        f"dependent rows. In brackets are 95 % Wilson intervals. Errors are of `estimate`, or of `bound` where it is "
        f"withheld, next to Kraskov's nearest neighbours "
        f"on the same samples. Seconds are processor time; other programs were running. {record['machine']}.",
        120,
    )
    return f"""# Coverage of the limits

{listed}

![Limits of each run relative to the truth, by problem](coverage.png)

{made}

## By class

{table(record)}

The limits and flags of each problem are in [coverage.json](coverage.json).

## Dependence that nothing tells

Independent arrays of dependent rows, without `groups=` and `order=`; the truth is 0.

{unnoticed(record)}
{third_variables()}{transfer_entropies()}{independence_tests()}"""


def unnoticed(record: Record) -> str:
    """Largest limit of each sample whose dependence nothing tells, if one was given."""
    lines = ["| sample | runs | `lower` above 0 | largest `lower` |", "|---|---:|---:|---:|"]
    for name, entry in record["cases"].items():
        if UNNOTICED in entry["kind"] and entry["runs"]:
            limits = [run["lower"] for run in entry["runs"].values() if run["lower"] is not None]
            largest = f"{max(limits):.2f}" if limits else "withheld"
            lines.append(f"| {name} | {len(entry['runs'])} | {cell(share(x > 0.0 for x in limits))} | {largest} |")
    return "\n".join(lines)


def third_variables() -> str:
    """Limits and ranges given a third variable, and differences, from the record of relations.py."""
    if not relations.RECORD.exists():
        return ""
    record = json.loads(relations.RECORD.read_text(encoding="utf-8"))
    made = fill(
        "`python benchmarks/relations.py` gives these figures of 300 pairs (400 for transfer entropy) with `splits=1` "
        "and seeds that tests do not use. Errors are of `estimate`, next to neighbours (Frenzel and Pompe 2007).",
        120,
    )
    above, below = relations.hits(record)
    seen = fill(
        f"Of all runs, `lower` is above the truth in {percent(*above)} of {above[1]}, and the range below it in "
        f"{percent(*below)} of {below[1]}: critics miss much of a sharp edge, as of the collider.",
        120,
    )
    numbers = relations.of_numbers(record)
    by_numbers = fill(
        f"Given numbers, `low` is above the truth in {of(numbers['above'])}, and above 0 in {of(numbers['shown'])} "
        f"where there is dependence. The test has p of at most 5 % in {of(numbers['false'])} where there is none, and "
        f"in {of(numbers['found'])} where there is; [its level](#test-of-independence).",
        120,
    )
    return f"""
## Given a third variable

{made}

{seen}

{by_numbers}

{relations.conditionals(record)}

## Differences

{relations.differences(record)}

The numbers are in [relations.json](relations.json).
"""


def transfer_entropies() -> str:
    """Errors of transfer entropy and of its local values, next to those of a peer, from the record of transfer.py."""
    if not transfer.RECORD.exists():
        return ""
    record = json.loads(transfer.RECORD.read_text(encoding="utf-8"))
    given, missed, runs = transfer.ranges(record)
    made = fill(
        f"`python benchmarks/transfer.py` gives these figures of {transfer.COUNT} times with `splits=1`, next to "
        f"{transfer.PEER} on the same series: nearest neighbours (`ksg`) of numbers, counts (`discrete`) of bits, and "
        f"a test by {transfer.PERMUTATIONS} permutations of the source. The truths have closed forms.",
        120,
    )
    read = fill(
        f"An error is the mean size of the errors of estimates, which are given in {given} of {runs} runs; {missed} of "
        "their ranges miss the truth. A local error is the root of the mean squared error of `local`. Dependence is "
        "shown by p of at most 5 %, or, of bits, by `lower` above 0. The test is withheld, and not counted, "
        "where the series have fewer than 30 blocks of a correlation time.",
        120,
    )
    return f"""
## Transfer entropy

{made}

{read}

{transfer.table(record)}

The numbers are in [transfer.json](transfer.json).
"""


def independence_tests() -> str:
    """Level and power of the test of independence, from the record of independence.py."""
    if not independence.RECORD.exists():
        return ""
    record = json.loads(independence.RECORD.read_text(encoding="utf-8"))
    made = fill(
        f"`python benchmarks/independence.py` tests arrays that are independent, the first {independence.PAIRS} pairs "
        f"of problems with known information, and {independence.WEAK} pairs of weak relations, next to permutation "
        f"tests ({independence.PERMUTATIONS} permutations) of Kraskov's nearest neighbours, of the distance "
        f"covariance, and of HSIC with Gaussian kernels as wide as the median distance. Seeds are not those of the "
        f"tests. Counted are probabilities of at most {100 * independence.LEVEL:.0f} %.",
        120,
    )
    return f"""
## Test of independence

{made}

{independence.levels(record)}

![Power of the tests by problem](independence.png)

{independence.powers(record)}

Given a third number, next to a partial correlation (residuals of lines in z):

{independence.given_numbers(record)}

The probabilities are in [independence.json](independence.json).
"""


def draw(record: Record, path: Path) -> None:
    """Draw the limits of each run relative to the truth, and their coverage by class."""
    found = {name: entry for name, entry in record["cases"].items() if entry["runs"]}
    figure = Figure(figsize=(8.0, 0.2 * len(found) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for place, entry in enumerate(found.values()):
        runs = sorted(entry["runs"].values(), key=lambda run: run["bound"] or 0.0)
        for offset, run_ in zip(np.linspace(-0.3, 0.3, len(runs)) if len(runs) > 1 else [0.0], runs, strict=True):
            at, truth = place + offset, entry["truth"]
            if run_["high"] is not None:
                left.plot([run_["low"] - truth, run_["high"] - truth], [at, at], color="#0072b2", linewidth=0.8)
            elif run_["lower"] is not None:
                left.plot([run_["lower"] - truth], [at], ".", color="#d55e00", markersize=3)
    left.axvline(0.0, color="0.2", linewidth=0.8)
    left.set_yticks(range(len(found)), list(found), fontsize=8)
    left.set_xlim(-1.5, 1.5)
    left.set_xlabel("minus the truth, in nats\n(blue: range; orange: lower alone)", fontsize=8)
    left.set_ylim(len(found) - 0.5, -0.5)
    by_class = classes(record)
    for place, row in enumerate(by_class.values()):
        for name, color in (("above", "#d55e00"), ("covered", "#0072b2")):
            hits, count = row[name]
            if count:
                right.plot([100 * hits / count], [place], "o", color=color)
    right.axvline(5.0, color="0.5", linestyle=":")
    right.set_yticks(range(len(by_class)), list(by_class), fontsize=8)
    right.set_xlabel("% of runs (orange: lower\nabove; blue: in the range)", fontsize=8)
    right.set_ylim(len(by_class) - 0.5, -0.5)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Estimate, and write or print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=("run", "page"), help="do this alone (default: both)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"runs of each problem (default: {REPEATS})")
    parser.add_argument("--only", default="", help="word in the names or classes of the problems")
    parser.add_argument("--quick", action="store_true", help="one run of two small problems; writes nothing")
    options = parser.parse_args()
    if options.quick:
        print(table(run({}, 1, "independent tables", lambda _: None)))
        return
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}

    def save(found: Record) -> None:
        RECORD.with_suffix(".new").write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
        RECORD.with_suffix(".new").replace(RECORD)

    if options.part in {None, "run"}:
        os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
        record = run(record, options.repeats, options.only, save)
    if options.part in {None, "page"}:
        (DOCS / "coverage.md").write_text(document(record), encoding="utf-8")
        draw(record, DOCS / "coverage.png")


if __name__ == "__main__":
    main()
