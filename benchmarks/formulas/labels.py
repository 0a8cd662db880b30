"""Losses of labelled embeddings, triplets with every mining among them, and their formulas."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any, Final

import portable_nce as pnce

from . import peers
from .rows import LARGE_CLASS, TAU, Row

MARGIN: Final = 0.2


def same_and_different(t: Any, labels: Any) -> tuple[Any, Any]:
    """Masks of the positives and of the negatives."""
    equal = labels[:, None] == labels
    return equal & ~t.eye(len(labels)), ~equal


def supcon(t: Any, x: Any, labels: Any) -> Any:
    x = t.unit(x)
    scores, (same, _) = x @ x.T / TAU, same_and_different(t, labels)
    log_p = scores - t.logsumexp(t.where(t.eye(len(x)), -inf, scores), 1)[:, None]
    return -(t.where(same, log_p, 0.0).sum(1) / same.sum(1)).mean()


def nca(t: Any, x: Any, labels: Any) -> Any:
    scores, (same, _) = -t.squares(x, x), same_and_different(t, labels)
    others = t.logsumexp(t.where(t.eye(len(x)), -inf, scores), 1)
    return (others - t.logsumexp(t.where(same, scores, -inf), 1)).mean()


def contrastive(t: Any, x: Any, labels: Any) -> Any:
    distances, (same, different) = t.distances(x, x), same_and_different(t, labels)
    terms = t.where(same, distances**2, t.where(different, t.relu(1 - distances) ** 2, 0.0))
    return terms.sum() / (len(x) * (len(x) - 1))


def balanced_contrastive(t: Any, x: Any, labels: Any) -> Any:
    """As pytorch-metric-learning has it: means over nonzero terms."""
    distances, (same, different) = t.distances(x, x), same_and_different(t, labels)
    near, far = t.where(same, distances, 0.0), t.where(different, t.relu(1 - distances), 0.0)
    return near.sum() / (near > 0).sum() + far.sum() / t.clip((far > 0).sum(), 1, inf)


def triplet(t: Any, anchor: Any, positive: Any, negative: Any) -> Any:
    return t.relu(t.norm(anchor - positive, 1) - t.norm(anchor - negative, 1) + MARGIN).mean()


def mined(t: Any, x: Any, labels: Any, partners: Any, *, positives: str, negatives: str, term: str = "relu") -> Any:
    """Triplet loss; `partners` are the places of the other rows of a row's class, so that all triplets fit memory."""
    distances, different = t.distances(x, x), labels[:, None] != labels
    near, far = t.take(distances, partners), t.where(different, distances, inf)
    number = len(x) - 1 - partners.shape[1] if negatives == "all" else 1
    if negatives in {"hard", "easy"}:
        far = (t.min(far, 1) if negatives == "hard" else t.max(t.where(different, distances, -inf), 1))[:, None]
    if positives in {"hard", "easy"}:
        near = (t.max if positives == "hard" else t.min)(near, 1)[:, None]
    if positives == "semi_hard":
        nearer = t.max(t.where(near < far, near, -inf), 1)
        near = t.where(nearer == -inf, t.min(near, 1), nearer)[:, None]
    if negatives == "semi_hard":
        behind = t.min(t.where(far[:, None, :] > near[:, :, None], far[:, None, :], inf), 2)
        farthest = t.max(t.where(different, distances, -inf), 1)[:, None]
        excess = near - t.where(behind == inf, farthest, behind)
    else:
        excess = near[:, :, None] - far[:, None, :]
    return getattr(t, term)(excess + MARGIN).sum() / (len(x) * near.shape[1] * number)


def mining(positives: str, negatives: str, name: str = "", **options: Any) -> Row:
    """Make the row of a mining; `options` of `Row`."""
    rules: Any = name or (positives, negatives)
    ours: Any = partial(pnce.triplet_from_labels, margin=MARGIN, mining=rules)
    described = {"way": name or f"({positives}, {negatives})", "given": "x | labels partners", **options}
    return Row(
        name="triplet_from_labels",
        ours=lambda x, labels, _: ours(x, labels),
        formula=partial(mined, positives=positives, negatives=negatives),
        **described,
    )


LARGE: Final = "x | labels_large partners_large"

ROWS: Final = (
    Row(
        name="supcon",
        given="x | labels",
        ours=partial(pnce.supcon, temperature=TAU),
        formula=supcon,
        peers=peers.SUPCON,
    ),
    Row(name="nca", given="x | labels", ours=pnce.nca, formula=nca, peers=peers.NCA),
    Row(name="soft_nearest_neighbor", given="x | labels", ours=pnce.soft_nearest_neighbor, formula=nca),
    Row(name="contrastive", given="x | labels", ours=pnce.contrastive, formula=contrastive),
    Row(
        name="contrastive",
        way="balanced",
        given="x | labels",
        ours=partial(pnce.contrastive, positive_power=1, negative_power=1, average="nonzero", balance=True),
        formula=balanced_contrastive,
        peers=peers.CONTRASTIVE,
    ),
    Row(name="triplet", given="x y z", ours=partial(pnce.triplet, margin=MARGIN), formula=triplet),
    mining("all", "all", "batch_all", peers=peers.ALL_TRIPLETS),
    mining("hard", "hard", "batch_hard", peers=peers.HARD_TRIPLETS),
    mining("all", "semi_hard", "semi_hard"),
    mining(
        "all", "all", "batch_all", way=f"batch_all, classes of {LARGE_CLASS}", given=LARGE, peers=peers.ALL_TRIPLETS
    ),
    mining(
        "hard",
        "hard",
        "batch_hard",
        way=f"batch_hard, classes of {LARGE_CLASS}",
        given=LARGE,
        peers=peers.HARD_TRIPLETS,
    ),
    mining("all", "semi_hard", "semi_hard", way=f"semi_hard, classes of {LARGE_CLASS}", given=LARGE),
    mining("hard", "all"),
    mining("hard", "semi_hard"),
    mining("easy", "hard"),
    mining("semi_hard", "hard"),
    mining("all", "easy"),
    Row(
        name="triplet_from_labels",
        way="batch_all, soft",
        given="x | labels partners",
        ours=lambda x, labels, _: pnce.triplet_from_labels(x, labels, margin=MARGIN, form="soft"),
        formula=partial(mined, positives="all", negatives="all", term="softplus"),
    ),
)
"""Classes have `CLASS` rows, unless a row says otherwise."""
