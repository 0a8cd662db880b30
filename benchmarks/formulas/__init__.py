"""Every public function that computes something of scores, beside its plain formula."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Final, get_args

import portable_nce as pnce

from . import bounds, density, diagnostics, embeddings, labels, scores
from .kits import kit
from .rows import Peer, Row

__all__ = ["ROWS", "SECTIONS", "WITHOUT_FORMULA", "Peer", "Row", "kit", "missing", "names"]

SECTIONS: Final[Mapping[str, tuple[Row, ...]]] = {
    "Losses of embeddings": embeddings.ROWS,
    "Labels and triplets": labels.ROWS,
    "Losses of scores": scores.ROWS,
    "Bounds": bounds.ROWS,
    "Densities": density.ROWS,
    "Diagnostics": diagnostics.ROWS,
}
"""Rows by topic."""

ROWS: Final = tuple(row for rows in SECTIONS.values() for row in rows)

NOT_NUMERICAL: Final = "computes nothing of scores"
WITHOUT_FORMULA: Final[Mapping[str, str]] = {
    **dict.fromkeys(("across", "backends_available", "explain", "fuse_steps", "register_backend"), NOT_NUMERICAL),
    **dict.fromkeys(("grad", "stop_gradient", "value_and_grad"), "differentiates any function"),
    **dict.fromkeys(("queue_init", "queue_push"), "copies rows; `moco` has the loss"),
    "prepare": "normalises the columns of later calls, which are rows of their own",
    "bounds.log_n_ceiling": "reads a shape",
}
"""Public functions without a row, and the reason."""


def names() -> set[str]:
    """List what needs a row: public functions, and options that choose how they compare embeddings or triplets."""
    modules = {"": pnce, **{f"{m}.": getattr(pnce, m) for m in ("from_scores", "bounds", "density", "diagnostics")}}
    functions = {
        f"{prefix}{name}"
        for prefix, module in modules.items()
        for name in module.__all__
        if inspect.isfunction(getattr(module, name))
    }
    made = {
        name
        for name in pnce.similarities.__all__
        if inspect.isfunction(getattr(pnce.similarities, name)) and name != "resolve"
    }
    similarities = {f"info_nce, {name}" for name in (made | set(pnce.similarities.NAMES)) - {"cosine"}}
    minings = {f"triplet_from_labels, {name}" for name in get_args(pnce.typing.MiningName)}
    return functions | similarities | minings


def missing() -> set[str]:
    """List what has neither a row nor a reason; each rule of mining is wanted on each side."""
    there = {row.name for row in ROWS} | {row.title for row in ROWS}
    rules = get_args(pnce.typing.MiningRule)
    mined = {item for row in ROWS if isinstance(row.formula, partial) for item in row.formula.keywords.items()}
    return (names() - there - WITHOUT_FORMULA.keys()) | {
        f"mining of {side} by {rule!r}"
        for side in ("positives", "negatives")
        for rule in rules
        if (side, rule) not in mined
    }
