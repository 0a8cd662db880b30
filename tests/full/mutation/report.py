"""Write docs/mutation.md: what came of the mutants of a sample, and each survivor with what it means.

``python -P -m mutation.report WORK PAGE --sample 1500``, with tests/full/ on the path and the
sample that run.py was given.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tomllib
from collections import Counter, defaultdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .mutants import FILES, Mutant, mutants_of, sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CLASSES: Final = {
    "missing": "A test is missing",
    "message": "The wording of an error alone",
    "speed": "Speed or memory alone",
    "equivalent": "The same behaviour",
    "unread": "Not judged yet",
}
DETECTED: Final = ("killed", "timeout")
FOUND: Final = (*DETECTED, "survived", "not covered")
FORGIVEN: Final = ("message", "speed", "equivalent")
INTRODUCTION: Final = """\
# Mutation testing

`nox -s mutation` changes the code in one small place at a time and runs the tests that execute this place, until one
fails. A change that no test notices has survived: either it changes no behaviour, or a test is missing.

The changes are those of [mutmut](https://mutmut.readthedocs.io)'s operators: other operators, numbers, truth values,
strings and conditions, assignments of None, arguments that are None (by position) or left out (by keyword). Its own
runner is not used, since it changes functions alone and here tables, classes and defaults are code too. Left out are
docstrings, annotations, names of types, `__all__`, decorators, what is raised and the sentences in it, f-strings
(all of them messages or representations), and `strict` of zip; the modules `__init__` and `protocol`, the command line,
the conformance suite, and the adapters of CuPy, which needs a GPU, and of MLX.

A mutant counts as killed if a test fails or the package cannot be imported, and as timed out if a test takes 30 times
as long as usual and 15 seconds more. The tests pass on the code as it is, under the same driver. The score is
estimated from a sample, for each file by itself, weighted by the files' numbers of mutants.

The tests come in stages, and what one does not kill goes on to the next: the tests of the engine, own parts, registry,
tape, edges and adapters; the conformance suite on NumPy, array-api-strict and PyTorch; the modules; the laws that hold
for any combination of options and for any argument; and some losses under the transformations of PyTorch and JAX. A
survivor of this sample may still be killed by what is left out for its cost: the suite on JAX, `torch.compile`, and the
examples of the docstrings. In a stage a mutant gets tests for some seconds; `--budget` sets how many.
"""

VERDICTS: Final = Path(__file__).parent / "verdicts.toml"


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


def page(everything: Iterable[Mutant], drawn: list[Mutant], work: Path) -> Iterable[str]:
    """Write the page."""
    came, verdicts = outcomes(work), tomllib.loads(VERDICTS.read_text(encoding="utf-8"))
    tested = [mutant for mutant in drawn if mutant.name in came]
    numbers = Counter(mutant.file for mutant in everything)
    by_file: dict[str, Counter[str]] = defaultdict(Counter)
    by_class: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in tested:
        status = came[mutant.name]["status"]
        by_file[mutant.file][status] += 1
        if status not in DETECTED:
            kind = verdicts.get(mutant.name, {}).get("class", "unread")
            by_class[kind].append(mutant)
            by_file[mutant.file]["forgiven"] += kind in FORGIVEN
    raw = {f: (numbers[f], sum(c[s] for s in FOUND), sum(c[s] for s in DETECTED)) for f, c in by_file.items()}
    fair = {
        f: (round(n * (1 - by_file[f]["forgiven"] / d)), d - by_file[f]["forgiven"], k) for f, (n, d, k) in raw.items()
    }
    stages = sorted({stage for mutant in tested for stage in came[mutant.name]["stages"]})
    versions = ", ".join(f"{name} {version(name)}" for name in ("mutmut", "numpy", "torch", "jax", "array-api-strict"))
    seconds = sum(came[mutant.name]["seconds"] for mutant in tested)
    yield f"Date: {datetime.now(UTC):%Y-%m-%d}. Python {platform.python_version()}, {versions}.\n"
    yield (
        f"A sample of {len(tested)} of {numbers.total()} mutants, drawn from each file in proportion; {seconds:.0f} "
        f"seconds of processes. Stages: {', '.join(stages)}.\n"
    )
    yield f"* Score, raw: **{score(raw)}**"
    yield f"* Score without mutants that change no behaviour: **{score(fair)}**\n"
    yield "| File | Mutants | Drawn | Killed | Timeout | Survived | Not covered | Detected |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for file, counts in sorted(by_file.items()):
        number, count, detected = raw[file]
        cells = " | ".join(str(counts[status]) for status in FOUND)
        yield f"| `{file}` | {number} | {count} | {cells} | {100 * detected / count:.0f} % |"
    for kind, title in CLASSES.items():
        if not by_class[kind]:
            continue
        yield f"\n## {title}: {len(by_class[kind])}\n"
        for mutant in by_class[kind]:
            lines = [line[1:].strip().replace("`", "'") for line in mutant.difference()]
            if len(lines) == 2:
                lines = list(shortened(lines[0], lines[1]))
            change = " → ".join(f"`{line}`" for line in lines)
            place = f"{mutant.file}, {mutant.scope or 'at import'}"
            yield f"* {place}: {change}. {verdicts.get(mutant.name, {}).get('why', '')}".rstrip()


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
    text = "\n".join(page(everything, sample(everything, options.sample, options.seed), options.work))
    options.page.write_text(f"{INTRODUCTION}\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
