"""Losses of a score matrix, and their formulas."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any, Final

from portable_nce import from_scores

from . import by_hand, peers
from .embeddings import both_ways, cosent_of, in_turn, relic_of_scores
from .rows import Row


def others(t: Any, scores: Any, value: float = -inf) -> Any:
    """Scores with another diagonal."""
    return t.where(t.eye(len(scores)), value, scores)


def flat_nce(t: Any, scores: Any) -> Any:
    return (t.logsumexp(others(t, scores), 1) - scores.diagonal()).mean()


def dclw(t: Any, scores: Any) -> Any:
    own = scores.diagonal()
    factors = 2 - len(scores) * t.softmax(own / 0.5, 0)
    return (t.logsumexp(others(t, scores), 1) - factors * own).mean()


def pooled(t: Any, scores: Any, positives: Any) -> Any:
    return (t.logsumexp(scores, 1) - t.logsumexp(t.where(positives, scores, -inf), 1)).mean()


def each(t: Any, scores: Any, positives: Any) -> Any:
    return -(t.where(positives, t.log_softmax(scores, 1), 0.0).sum(1) / positives.sum(1)).mean()


def logistic(t: Any, scores: Any) -> Any:
    return t.softplus(t.where(t.eye(len(scores)), -scores, scores)).sum() / len(scores)


def margin_mse(t: Any, scores: Any, teacher_scores: Any) -> Any:
    n, differences = len(scores), teacher_scores - scores
    return ((differences.diagonal()[:, None] - differences) ** 2).sum() / (n * (n - 1))


def contrastive(t: Any, scores: Any) -> Any:
    return (t.where(t.eye(len(scores)), scores, t.relu(1 + scores)) ** 2).mean()


def triplet(t: Any, scores: Any) -> Any:
    n, excess = len(scores), scores - scores.diagonal()[:, None] + 0.2
    return t.relu(others(t, excess)).sum() / (n * (n - 1))


def hard_triplet(t: Any, scores: Any) -> Any:
    return t.relu(t.max(others(t, scores), 1) - scores.diagonal() + 0.2).mean()


def semi_hard_triplet(t: Any, scores: Any) -> Any:
    own = scores.diagonal()
    behind = t.max(t.where(scores < own[:, None], scores, -inf), 1)
    found = t.where(behind == -inf, t.min(others(t, scores, inf), 1), behind)
    return t.relu(found - own + 0.2).mean()


def row(name: str, formula: Any, hand: Any, given: str = "scores", **options: Any) -> Row:
    """Make a row; the array after the bar of `given` is a keyword argument, `positives` unless it is a mask."""
    function, _, constant = getattr(from_scores, name), *given.partition(" | ")[1:]
    further = options.pop("further", {})
    keyword = {"mask": "mask", "same": "positives", "targets": "positives"}.get(constant)
    ours = partial(function, **further)
    return Row(
        name=f"from_scores.{name}",
        given=given,
        ours=(lambda scores, found: ours(scores, **{keyword: found})) if keyword else ours,
        formula=formula,
        by_hand=hand,
        **options,
    )


DISTANCES: Final = "negative_distances"

ROWS: Final = (
    row("info_nce", in_turn, by_hand.info_nce, peers=peers.DIAGONAL),
    row(
        "info_nce",
        lambda t, scores, mask: in_turn(t, t.where(mask, scores, -inf)),
        by_hand.masked_info_nce,
        "scores | mask",
        way="mask",
    ),
    row(
        "info_nce",
        lambda t, scores, targets: t.cross_entropy(scores, targets),
        by_hand.full_softmax,
        "scores | targets",
        way="positives by index",
        peers=peers.TARGETS,
    ),
    row("clip", both_ways, by_hand.clip),
    row("flat_nce", flat_nce, by_hand.flat_nce),
    row("dcl", flat_nce, by_hand.flat_nce),
    row("dclw", dclw, by_hand.dclw),
    row("nca", pooled, by_hand.pooled, "scores | same", way="boolean positives"),
    row("supcon", each, by_hand.each, "scores | same", way="boolean positives"),
    row("logistic", logistic, by_hand.logistic, peers=peers.PAIRWISE),
    row("relic", relic_of_scores, by_hand.relic),
    row("margin_mse", margin_mse, by_hand.margin_mse, "scores | teacher_scores"),
    row("contrastive", contrastive, by_hand.contrastive, DISTANCES),
    row("triplet", triplet, by_hand.triplet, DISTANCES),
    row("triplet", hard_triplet, by_hand.hard_triplet, DISTANCES, way="batch_hard", further={"mining": "batch_hard"}),
    row(
        "triplet",
        semi_hard_triplet,
        by_hand.semi_hard_triplet,
        DISTANCES,
        way="semi_hard",
        further={"mining": "semi_hard"},
    ),
    row("cosent", cosent_of, by_hand.cosent, "similarities | grades"),
)
