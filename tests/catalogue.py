"""The catalogue of losses, made from the code and from what the last run of nox has passed.

``python tests/catalogue.py .nox/results > docs/catalogue.md`` writes the page. What a loss is made of is watched while
it runs; its source is the reference in its docstring; what it passed is read from the reports that pytest left.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce import _call, from_scores, testing
from portable_nce._execution import evaluate, masked, matrix, one_sided, two_sided
from portable_nce.testing import CASES, VARIANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


PAGE = Path(__file__).parents[1] / "docs" / "catalogue.md"

NO_LOSSES = {
    "Communicator",
    "Ranks",
    "across",
    "Adapter",
    "Queue",
    "backends_available",
    "concentrations",
    "contrast",
    "grad",
    "matryoshka",
    "queue_init",
    "queue_push",
    "register_backend",
    "stop_gradient",
    "value_and_grad",
}
"""Public names at the top level that are no published loss."""

TRANSFORMS: Mapping[str, tuple[str, ...]] = {
    "torch: backward": ("test_torch_backward",),
    "gradcheck, twice": ("test_torch_gradcheck_to_second_order",),
    "torch.func: grad, vmap, jvp, Hessian": ("test_torch_func",),
    "torch.compile": ("test_torch_compile_serves_every_batch_size", "test_torch_compile_with_its_gradient"),
    "JAX: jit": ("test_jax_jit",),
    "JAX: forward mode, vmap, second order": ("test_jax_vmap_jvp_and_second_order", "test_jax_jvp_of_scores"),
}
"""The columns of the table of transforms, and the tests that fill them."""


@dataclass(frozen=True)
class Row:
    """What a loss is made of."""

    name: str
    similarity: str
    pairing: str
    objective: str
    source: str


def losses() -> list[str]:
    """List the public losses, by their dotted names: of embeddings first, then of scores."""
    embeddings = [name for name in pnce.__all__ if name not in NO_LOSSES and inspect.isfunction(getattr(pnce, name))]
    return [*embeddings, *(f"from_scores.{name}" for name in from_scores.__all__)]


def function_of(name: str) -> Callable[..., Any]:
    """Give the function of a dotted name."""
    found: Any = pnce
    for part in name.split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


def source_of(name: str) -> str:
    """Give the first reference of the docstring, on one line."""
    doc = inspect.getdoc(function_of(name)) or ""
    references = doc.split("References\n----------\n")[1].split("\n\n")[0]
    line = " ".join(references.split())
    return re.sub(
        r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", re.split(r"\. (?=[A-Z])", line)[0].rstrip(".")
    )


class Watch:
    """Notes of the pairings and objectives that a loss uses and of the sweeps that it takes, made while it runs."""

    def __init__(self) -> None:
        self.pairings: list[str] = []
        self.objectives: list[str] = []
        self.roads: list[str] = []

    def note(self, notes: list[str], thing: object) -> None:
        """Write down what a thing calls itself, once."""
        name = re.sub(r"^<\w+ |>$", "", repr(thing))
        if name not in notes:
            notes.append(name)

    def evaluated(self, objective: Any, matrix: Any, *arguments: Any, **options: Any) -> Any:
        """Evaluate an objective on a matrix, and note both."""
        self.note(self.objectives, objective)
        self.note(self.pairings, matrix.pairing)
        return evaluate.evaluate(objective, matrix, *arguments, **options)

    def passed(self, passes: str, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap a function that runs a sweep, and note which."""

        def noted(prepared: Any) -> Any:
            road = f"{passes}, {ROADS[prepared.function]}"
            if road not in self.roads:
                self.roads.append(road)
            return run(prepared)

        return noted

    def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a loss under observation."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_call, "evaluate", self.evaluated)
            patch.setattr(evaluate, "in_one_pass", self.passed("one pass", matrix.in_one_pass))
            patch.setattr(matrix, "in_two_passes", self.passed("two passes", matrix.in_two_passes))
            return function(*arguments, **options)


ROADS: dict[Any, str] = {
    one_sided.product_sweep: "products",
    two_sided.square_sweep: "products of both sides",
    masked.masked_sweep: "masks",
}
"""What the sweeps go by."""


WITHOUT_A_MATRIX: Mapping[str, tuple[str, str]] = {
    "triplet": ("triples", "margin"),
    **dict.fromkeys(("angle", "cosent", "from_scores.cosent"), ("graded pairs", "cosent")),
}
"""The pairing and objective of losses that no sweep computes."""


def row_of(name: str) -> Row:
    """Watch the first case of a loss, with its defaults as far as it has them."""
    case = next(case for case in CASES if case.loss == name)
    watch = Watch()
    watch.run(case.function, *(np.asarray(x) for x in (*case.arguments.values(), *case.constants.values())))
    parameters = inspect.signature(function_of(name)).parameters
    similarity = str(parameters["similarity"].default) if "similarity" in parameters else "angle" * (name == "angle")
    pairing, objective = WITHOUT_A_MATRIX.get(name, ("", ""))
    return Row(
        name=name,
        similarity=similarity,
        pairing=" and ".join(watch.pairings) or pairing,
        objective=" and ".join(watch.objectives) or objective,
        source=source_of(name),
    )


def composition() -> str:
    """Write the tables of what each loss is made of."""
    rows = [row_of(name) for name in losses()]
    lines = ["| loss | similarity | pairing | objective | source |", "|---|---|---|---|---|"]
    lines += [
        f"| `{row.name}` | {row.similarity} | {row.pairing} | {row.objective} | {row.source} |"
        for row in rows
        if row.similarity
    ]
    lines += ["", "| loss of scores | positives | objective | source |", "|---|---|---|---|"]
    lines += [
        f"| `{row.name}` | {row.pairing} | {row.objective} | {row.source} |" for row in rows if not row.similarity
    ]
    return "\n".join(lines)


# What the last run has passed.


VARIANTS_BY_LENGTH = sorted(VARIANTS, key=len, reverse=True)


def loss_of(test: str) -> str | None:
    """Tell which loss the parameters of a test speak of: the longest public name that they begin with."""
    match = re.match(r"\w+\[(.*)\]$", test)
    if match is None:
        return None
    label = match[1].removeprefix(next((f"{name}-" for name in VARIANTS_BY_LENGTH if match[1].startswith(name)), ""))
    label = re.sub(r"^(?:None-|\d+-)?(scores )?", lambda found: "from_scores." if found[1] else "", label)
    found = [name for name in losses() if re.match(rf"{re.escape(name)}(\W|$)", label)]
    return max(found, key=len, default=None)


def outcomes(report: Path) -> Iterator[tuple[str, bool]]:
    """Read the tests of a report, and whether each passed."""
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314  written by our own pytest
        yield str(case.get("name")), not any(child.tag in {"failure", "error", "skipped"} for child in case)


def cell(passed: int, failed: int) -> str:
    """Word a cell: how many tests passed, or how many did not."""
    if failed:
        return f"**{failed} failed**"
    return str(passed) if passed else "–"


def counted(report: Path, chosen: Callable[[str], bool]) -> dict[str, tuple[int, int]]:
    """Count, for each loss, the tests of a report that passed and that did not."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for test, passed in outcomes(report) if report.exists() else ():
        if chosen(test) and (loss := loss_of(test)) is not None:
            counts[loss][0 if passed else 1] += 1
    return {loss: (passed, failed) for loss, (passed, failed) in counts.items()}


def lacking(results: Path) -> list[str]:
    """Say which reports are missing and what others lack; variants for GPUs may be without one."""
    suite = {path.stem for path in (Path(str(testing.__file__)).parent / "suite").glob("test_*.py")}
    wanted = {f"conformance-{name}": (suite, variant.gpu) for name, variant in VARIANTS.items()}
    wanted["tests"] = ({test for tests in TRANSFORMS.values() for test in tests}, False)
    reasons = []
    for name, (parts, optional) in wanted.items():
        report = results / name / "junit.xml"
        if not report.exists():
            reasons += [] if optional else [f"{name}: no report"]
            continue
        cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314  written by our own pytest
        there = {str(case.get("classname")).rpartition(".")[2] for case in cases}
        there |= {str(case.get("name")).partition("[")[0] for case in cases}
        if parts - there:
            reasons.append(f"{name}: a partial run, without {', '.join(sorted(parts - there))}")
    return reasons


def conformance(results: Path) -> str:
    """Write the table of the conformance suite: how many tests of each loss passed on each variant."""
    reports = {name: results / f"conformance-{name}" / "junit.xml" for name in VARIANTS}
    found = {name: counted(path, lambda _: True) for name, path in reports.items() if path.exists()}
    lines = ["| loss | " + " | ".join(VARIANTS) + " |", "|---" * (len(VARIANTS) + 1) + "|"]
    for loss in losses():
        cells = (cell(*found[name].get(loss, (0, 0))) if name in found else "not run" for name in VARIANTS)
        lines.append(f"| `{loss}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def transforms(results: Path) -> str:
    """Write the table of what PyTorch's and JAX's transformations do with each loss."""
    report = results / "tests" / "junit.xml"
    found = {
        title: counted(report, lambda test, tests=tests: test.split("[")[0] in tests)  # type: ignore[misc]
        for title, tests in TRANSFORMS.items()
    }
    lines = ["| loss | " + " | ".join(TRANSFORMS) + " |", "|---" * (len(TRANSFORMS) + 1) + "|"]
    for loss in losses():
        cells = (cell(*counts.get(loss, (0, 0))) for counts in found.values())
        lines.append(f"| `{loss}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


HEAD = """# The catalogue

Every loss is one choice on each of three axes; how it is executed, dense or streamed, is a fourth that changes no
number. This page is made from the code and from the reports of the last full run: `python -m nox -s catalogue`.
Variants for GPUs, which not every machine can run, may be "not run".

## What each loss is made of

A pairing says which columns are positive and negative; of what the objectives do with several positives, `each`,
`pooled` and `separate` are explained in `portable_nce.objectives.info_nce`. `n_tuple` adds the squared lengths of its
embeddings, `supcon` a factor if asked for, `moco_v3` the factor 2τ; `cpc` averages over steps and `proto_nce` over
clusterings.
"""

RUN = """
## What each has passed

The number of conformance tests of each loss that passed, by variant: framework, device, mode and dtypes. Checks of
values and gradients are against independent oracles in 120 digits.
"""

AGAIN = """
What PyTorch's and JAX's transformations do with each loss, dense and streamed: the number of tests that passed. A dash
stands where a loss runs through the same functions as another that is tested: `nca` and `soft_nearest_neighbor` are
`supcon` with another option, the losses of scores are what those of embeddings end in.
"""


def page(results: Path) -> str:
    """Write the page."""
    return f"{HEAD}\n{composition()}\n{RUN}\n{conformance(results)}\n{AGAIN}\n{transforms(results)}\n"


def main(results: Path) -> None:
    """Print the page, or end with what keeps it from being true."""
    if reasons := lacking(results):
        first = "the catalogue needs the reports of a full run, from `python -m nox -t full`:"
        sys.exit("\n  ".join([first, *reasons]))
    sys.stdout.write(page(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
