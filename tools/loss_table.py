"""The catalogue of losses, made from the code.

``python tools/loss_table.py > docs/catalogue.md`` writes the page. `portable_nce.explain` tells the parts of a loss;
its source is the reference in its docstring.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

import portable_nce as pnce
from portable_nce import from_scores
from portable_nce.testing import CASES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


PAGE = Path(__file__).parents[1] / "docs" / "catalogue.md"

NO_LOSSES = {
    "Communicator",
    "Ranks",
    "across",
    "prepare",
    "Adapter",
    "Queue",
    "backends_available",
    "concentrations",
    "contrast",
    "explain",
    "fuse_steps",
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


WITHOUT_A_MATRIX: Mapping[str, tuple[str, str]] = {
    "triplet": ("triples", "margin"),
    **dict.fromkeys(("angle", "cosent", "from_scores.cosent"), ("graded pairs", "cosent")),
    "from_scores.margin_mse": ("diagonal", "margin_mse"),
}
"""The pairing and objective of losses that no sweep computes."""


def row_of(name: str) -> Row:
    """Watch the first case of a loss, with its defaults as far as it has them."""
    case = next(case for case in CASES if case.loss == name)
    found = pnce.explain(case.function, *map(np.asarray, (*case.arguments.values(), *case.constants.values())))
    parameters = inspect.signature(function_of(name)).parameters
    similarity = str(parameters["similarity"].default) if "similarity" in parameters else "angle" * (name == "angle")
    pairing, objective = WITHOUT_A_MATRIX.get(name, ("", ""))
    return Row(
        name=name,
        similarity=similarity,
        pairing=" and ".join(found.pairings) or pairing,
        objective=" and ".join(found.objectives) or objective,
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
    scores = ", ".join(f"`{row.name}` ({row.objective})" for row in rows if not row.similarity)
    return "\n".join([*lines, "", fill(f"Losses of scores, with their objectives: {scores}.", 120)])


HEAD = """# Catalogue of contrastive losses

Each loss is a choice of similarity, pairing (which columns are positive and negative) and objective. `python -m nox -s
catalogue` writes this page.

`each`, `pooled` and `separate` are conventions for [several positives](options.md#several-positives). `n_tuple` adds
the squared lengths of its embeddings; `supcon` has an optional factor, `moco_v3` the factor 2τ; `cpc` averages over
steps, `proto_nce` over clusterings.
"""


def page() -> str:
    """Write the page."""
    return f"{HEAD}\n{composition()}\n"


if __name__ == "__main__":
    sys.stdout.write(page())
