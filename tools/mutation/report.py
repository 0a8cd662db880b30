"""Write docs/mutation.md: what came of the mutants of a sample; print each survivor.

``python -P -m mutation.report WORK PAGE --sample 1500``, with tools/ on the path and the
sample that run.py was given.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections import Counter, defaultdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .mutants import FILES, Mutant, mutants_of, sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DETECTED: Final = ("killed", "timeout")
FOUND: Final = (*DETECTED, "survived", "not covered")
INTRODUCTION: Final = """\
# Mutation testing

`python -m nox -s mutation` makes one small change to the code at a time (a mutant) and runs the tests that execute this
place, until one fails. `python -P -m mutation.report WORK PAGE`, with `tools/` on the path, prints the survivors.

- **Changes**: the operators of [mutmut](https://mutmut.readthedocs.io), also in tables, classes and defaults, but not
  in docstrings, annotations, `__all__`, decorators, error messages, the command line, the conformance suite, and the
  adapters of CuPy and MLX.
- **Tests**: those of single modules, the suite on NumPy, array-api-strict and PyTorch, most laws of all losses, counts
  of launches and passes, and compiled steps; none that start processes. Each mutant has some seconds in a stage
  (`--budget`).
- **Detected**: a test fails, the import fails, or a test takes 15 seconds more than 30 times as long as usual.
- **Score**: from a sample of each file, weighted by its number of mutants. Mutants that change no behaviour, such as a
  tile size, count as survivors.
"""


def outcomes(work: Path) -> dict[str, dict[str, Any]]:
    """Give what became of each mutant over all stages."""
    found: dict[str, dict[str, Any]] = {}
    for text in (work / "results.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        last = found.setdefault(line["name"], {"status": "not covered", "seconds": 0.0, "stages": []})
        if FOUND.index(line["status"]) < FOUND.index(last["status"]):
            last["status"] = line["status"]
        last["seconds"] += line["seconds"]
        last["stages"].append(line["stage"])
    return found


def score(strata: Mapping[str, tuple[int, int, int]]) -> str:
    """Estimate the share that is detected, from (mutants, drawn, detected) of each file, with its 95 % interval."""
    total = sum(number for number, _, _ in strata.values())
    share = variance = 0.0
    for number, drawn, detected in strata.values():
        weight, part = number / total, detected / drawn
        spread = (detected + 1) / (drawn + 2)  # not 0 where all or none are detected
        share += weight * part
        variance += weight**2 * spread * (1 - spread) / drawn * (1 - drawn / number)
    margin = 1.96 * math.sqrt(variance)
    return (
        f"{100 * share:.1f} % (95 % interval: {100 * (share - margin):.1f} to {100 * min(1.0, share + margin):.1f} %)"
    )


def page(everything: Iterable[Mutant], tested: list[Mutant], came: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """Write the page."""
    numbers = Counter(mutant.file for mutant in everything)
    by_file: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in tested:
        by_file[mutant.file][came[mutant.name]["status"]] += 1
    strata = {f: (numbers[f], c.total(), sum(c[s] for s in DETECTED)) for f, c in by_file.items()}
    by_folder: dict[str, Counter[str]] = defaultdict(Counter)
    for file, counts in by_file.items():
        by_folder[file.rpartition("/")[0]].update(counts, mutants=numbers[file])
    stages = list(dict.fromkeys(stage for mutant in tested for stage in came[mutant.name]["stages"]))
    versions = ", ".join(f"{name} {version(name)}" for name in ("mutmut", "numpy", "torch", "jax", "array-api-strict"))
    seconds = sum(came[mutant.name]["seconds"] for mutant in tested)
    yield f"**{score(strata)} detected**, of {len(tested)} mutants drawn from {numbers.total()}.\n"
    yield f"Stages: {', '.join(stages)}; {seconds:.0f} seconds of processes. {datetime.now(UTC):%Y-%m-%d}, Python"
    yield f"{platform.python_version()}, {versions}.\n"
    yield "| folder | mutants | drawn | killed | timeout | survived | not covered | detected |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for folder, counts in sorted(by_folder.items()):
        drawn, cells = sum(counts[s] for s in FOUND), " | ".join(str(counts[s]) for s in FOUND)
        share = 100 * sum(counts[s] for s in DETECTED) / drawn
        yield f"| `{folder}/` | {counts['mutants']} | {drawn} | {cells} | {share:.0f} % |"


def survivors(tested: Iterable[Mutant], came: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """Describe each mutant that no test has noticed."""
    for mutant in tested:
        if came[mutant.name]["status"] not in DETECTED:
            lines = [line[1:].strip() for line in mutant.difference()]
            if len(lines) == 2:
                lines = list(shortened(lines[0], lines[1]))
            yield f"{mutant.name} {mutant.file}, {mutant.scope or 'at import'}: {' → '.join(lines)}"


def shortened(before: str, after: str, around: int = 25) -> tuple[str, str]:
    """Cut two lines down to where they differ and some letters around it."""
    first = next((k for k, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
    last = next((k for k, (a, b) in enumerate(zip(before[::-1], after[::-1], strict=False)) if a != b), 0)
    last = min(last, len(before) - first, len(after) - first)
    start = max(0, first - around)
    cut = (text[start : len(text) - max(0, last - around)] for text in (before, after))
    one, other = (f"{'…' if start else ''}{text}{'…' if last > around else ''}" for text in cut)
    return one, other


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="the folder with the results")
    parser.add_argument("page", type=Path, help="the file to write")
    parser.add_argument("--sample", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    everything = [mutant for file in FILES for mutant in mutants_of(file)]
    came = outcomes(options.work)
    tested = [mutant for mutant in sample(everything, options.sample, options.seed) if mutant.name in came]
    text = "\n".join(page(everything, tested, came))
    options.page.write_text(f"{INTRODUCTION}\n{text}\n", encoding="utf-8")
    sys.stdout.writelines(f"{line}\n" for line in survivors(tested, came))


if __name__ == "__main__":
    main()
