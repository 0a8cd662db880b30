"""Diagnostics, of which only the values are compared, and their formulas."""

from __future__ import annotations

from functools import partial
from math import log
from typing import Any, Final

from portable_nce import diagnostics

from .embeddings import cosines, in_turn
from .rows import Row
from .scores import others

K: Final = 10


def better(t: Any, scores: Any) -> Any:
    """Number of other scores of a row that are at least its positive's."""
    return (scores >= scores.diagonal()[:, None]).sum(1) - 1


def recall_of_several(t: Any, scores: Any, positives: Any) -> Any:
    """Share of the positives that reach the k-th largest score."""
    least = t.top_k(scores, K)[0][:, -1:]
    return ((positives & (scores >= least)).sum(1) / positives.sum(1)).mean()


def effective_sample_size(t: Any, scores: Any) -> Any:
    return (1 / (t.softmax(others(t, scores), 1) ** 2).sum(1)).mean()


def uniformity(t: Any, x: Any) -> Any:
    n, x = len(x), t.unit(x)
    return t.logsumexp(others(t, -2 * t.squares(x, x)), (0, 1)) - log(n * (n - 1))


def row(name: str, formula: Any, given: str = "scores", **options: Any) -> Row:
    """Make the row of a diagnostic."""
    ours = options.pop("ours", getattr(diagnostics, name))
    return Row(name=f"diagnostics.{name}", given=f"| {given}", ours=ours, formula=formula, **options)


ROWS: Final = (
    row("alignment", lambda t, x, y: ((t.unit(x) - t.unit(y)) ** 2).sum(1).mean(), "x y"),
    row("uniformity", uniformity, "x"),
    row("effective_sample_size", effective_sample_size),
    row("headroom", in_turn),
    row("mean_reciprocal_rank", lambda t, scores: (1 / (1 + better(t, scores))).mean()),
    row(
        "mean_reciprocal_rank",
        lambda t, x, y: (1 / (1 + better(t, cosines(t, x, y)))).mean(),
        "x y",
        way="of embeddings",
    ),
    row(
        "recall_at",
        lambda t, scores: 1.0 * (better(t, scores) < K).sum() / len(scores),
        ours=partial(diagnostics.recall_at, k=K),
    ),
    row(
        "recall_at",
        recall_of_several,
        "scores same",
        way="boolean positives",
        ours=lambda scores, positives: diagnostics.recall_at(scores, k=K, positives=positives),
    ),
    row(
        "recall_at",
        lambda t, x, y: 1.0 * (better(t, -t.squares(x, y)) < K).sum() / len(x),
        "x y",
        way="of embeddings, neg_sq_euclidean",
        ours=partial(diagnostics.recall_at, k=K, similarity="neg_sq_euclidean"),
    ),
    row(
        "top_k_accuracy",
        lambda t, scores: 1.0 * (better(t, scores) < K).sum() / len(scores),
        ours=partial(diagnostics.top_k_accuracy, k=K),
    ),
    row(
        "top_k",
        lambda t, x, z: t.top_k(cosines(t, x, z), K)[0],
        "x z",
        ours=lambda x, z: diagnostics.top_k(x, z, K).scores,
    ),
    row(
        "top_k",
        lambda t, x, z: t.top_k(-t.squares(x, z), K)[0],
        "x z",
        way="neg_sq_euclidean",
        ours=lambda x, z: diagnostics.top_k(x, z, K, similarity="neg_sq_euclidean").scores,
    ),
)
