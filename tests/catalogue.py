"""The catalogue of losses, made from the code.

``python tests/catalogue.py > docs/catalogue.md`` writes the page. What a loss is made of is watched while it runs; its
source is the reference in its docstring.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce import _call, from_scores
from portable_nce._execution import evaluate, masked, matrix, one_sided, two_sided
from portable_nce.testing import CASES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
    """Return the first reference of the docstring on one line, without titles and with at most two authors."""
    doc = inspect.getdoc(function_of(name)) or ""
    references = doc.split("References\n----------\n")[1].split("\n\n")[0]
    line = re.split(r"\. (?=[A-Z])", " ".join(references.split()))[0].rstrip(".")
    line = re.sub(r'(first as )?"[^"]*",? ?| \(which [^)]*\)|, whose [^;]*', "", line)
    line = re.sub(r"(^|; )([^,;(]+), [^;(]*(?:and [^;(]*|et al\.) \(", r"\1\2 et al. (", line)
    line = re.sub(r"\), [^;]*, doi:", "), doi:", line)
    line = re.sub(r"doi:(\S+)", r"[doi:\1](https://doi.org/\1)", line)
    return re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", line)


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
    lines += ["", "| loss of scores | positives | objective |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {row.pairing} | {row.objective} |" for row in rows if not row.similarity]
    return "\n".join(lines)


HEAD = """# Catalogue of contrastive losses

Each loss is a choice of similarity, pairing and objective. The conformance suite compares value and gradients of each
loss with an independent oracle in 120 digits on every library. `python -m nox -s catalogue` makes this page.

The pairing says which columns are positive and negative; `each`, `pooled` and `separate` are conventions for [several
positives](options.md#several-positives). `n_tuple` adds the squared lengths of its embeddings, `supcon` an optional
factor, `moco_v3` the factor 2τ; `cpc` averages over steps, `proto_nce` over clusterings.
"""


def page() -> str:
    """Write the page."""
    return f"{HEAD}\n{composition()}\n"


if __name__ == "__main__":
    sys.stdout.write(page())
