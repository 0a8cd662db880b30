"""Bad input is refused with what was expected, what came, and how to mend it, by the name of the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from .._package import pnce as package
from ..variants import Variant, foreign_array

pnce: Any = package  # wrong calls, which type checkers would refuse

N, D = 4, 3


def embeddings(variant: Variant, rows: int = N, features: int = D, dtype: str | None = None) -> Any:
    return variant.floats([[float((3 * i + j) % 5) for j in range(features)] for i in range(rows)], dtype)


def integers(variant: Variant, rows: int = N, columns: int = D) -> Any:
    return variant.array([[(3 * i + j) % 5 for j in range(columns)] for i in range(rows)])


def truths(variant: Variant, rows: int, columns: int) -> Any:
    return variant.array([[True] * columns] * rows)


def two(variant: Variant) -> tuple[Any, Any]:
    return embeddings(variant), embeddings(variant)


def classes(variant: Variant, rows: int = N) -> Any:
    return variant.array([i // 2 for i in range(rows)])


def queued(variant: Variant, features: int = D, dtype: str | None = None) -> Any:
    return pnce.queue_init(embeddings(variant, 2, features, dtype), size=5)


def clustered(variant: Variant, prototypes: int = 2) -> tuple[Any, Any, Any]:
    concentrations = variant.floats([0.5] * prototypes)
    return embeddings(variant, prototypes), variant.array([0] * N), concentrations


def predicted(variant: Variant) -> tuple[Any, Any]:
    """Targets of two steps, of two features, and the projections on them."""
    return variant.floats([[[1.0, 0.5]] * N] * 2), variant.floats([[[1.0] * D] * 2] * 2)


Call = Callable[[Variant], Any]
Make = Callable[[Variant], Any]


def labelled(loss: Any, labels: Make = classes, rows: Make = embeddings, /, **options: Any) -> Call:
    """Call a loss of labelled embeddings."""
    return lambda v: loss(rows(v), labels(v), **options)


def paired(loss: Any, **options: Any) -> Call:
    """Call a loss of two arrays of embeddings."""
    return lambda v: loss(*two(v), **options)


def scored(name: str, scores: Make = lambda v: embeddings(v, 3, 3), /, **options: Any) -> Call:
    """Call a loss of scores."""
    return lambda v: getattr(pnce.from_scores, name)(scores(v), **options)


def thrice(**options: Any) -> Call:
    """Call the triplet loss."""
    return lambda v: pnce.triplet(*two(v), embeddings(v), **options)


def concentrated(**options: Any) -> Call:
    """Call the function that makes concentrations."""
    return lambda v: pnce.concentrations(embeddings(v), *clustered(v)[:2], **options)


def keyed(loss: Any, labels: Make | None = lambda v: classes(v, 5), keys: Make = lambda v: embeddings(v, 5)) -> Call:
    """Call a loss of labelled embeddings with keys."""
    return lambda v: loss(embeddings(v), classes(v), keys=keys(v), key_labels=None if labels is None else labels(v))


def viewed(loss: Any, **made: Make) -> Call:
    """Call a loss of two views with further arrays."""
    return lambda v: loss(*two(v), **{name: make(v) for name, make in made.items()})


def labelled_queue(variant: Variant) -> Any:
    return pnce.queue_init(embeddings(variant, 2), size=5, labels=classes(variant, 2))


LABEL_LOSSES = (pnce.supcon, pnce.nca, pnce.soft_nearest_neighbor, pnce.contrastive, pnce.triplet_from_labels)

SHAPES: dict[str, tuple[str, Call]] = {
    "query is a vector": ("query", lambda v: pnce.info_nce(v.floats([1.0, 2.0]), embeddings(v))),
    "query is a stack": ("query", lambda v: pnce.info_nce(v.floats([[[1.0, 2.0, 3.0]]]), embeddings(v))),
    "positive_key is a vector": ("positive_key", lambda v: pnce.info_nce(embeddings(v), v.floats([1.0, 2.0]))),
    "other feature count": ("positive_key", lambda v: pnce.info_nce(embeddings(v), embeddings(v, N, D + 1))),
    "fewer keys than queries": ("positive_key", lambda v: pnce.info_nce(embeddings(v), embeddings(v, N - 1))),
    "no rows": ("query", lambda v: pnce.info_nce(embeddings(v)[:0, :], embeddings(v))),
    "negatives of other width": (
        "negative_keys",
        lambda v: pnce.info_nce(*two(v), embeddings(v, 5, D + 1)),
    ),
    "negatives for too few rows": (
        "negative_keys",
        lambda v: pnce.info_nce(*two(v), v.floats([[[1.0] * D]] * (N - 1))),
    ),
    "negatives a vector": ("negative_keys", lambda v: pnce.info_nce(*two(v), v.floats([1.0] * D))),
    "keys that are not the queries' with shared negatives": (
        "positive_key",
        lambda v: pnce.info_nce(embeddings(v), embeddings(v, N + 1), embeddings(v, 5)),
    ),
    "symmetric but not square": (
        "positive_key",
        lambda v: pnce.info_nce(embeddings(v), embeddings(v, N + 1), symmetric=True),
    ),
    "views of unequal size": ("view_b", lambda v: pnce.nt_xent(embeddings(v), embeddings(v, N + 1))),
    "image and text of unequal size": (
        "text",
        lambda v: pnce.clip(embeddings(v), embeddings(v, N + 1), logit_scale=1.0),
    ),
    "scores are a vector": ("scores", lambda v: pnce.from_scores.info_nce(v.floats([1.0, 2.0]))),
    "fewer columns than rows": ("scores", lambda v: pnce.from_scores.info_nce(embeddings(v, 4, 3))),
    "fewer columns than rows, flat_nce": ("scores", lambda v: pnce.from_scores.flat_nce(embeddings(v, 4, 3))),
    "fewer columns than rows, dcl": ("scores", lambda v: pnce.from_scores.dcl(embeddings(v, 4, 3))),
    "fewer columns than rows, bound": ("scores", lambda v: pnce.bounds.info_nce(embeddings(v, 4, 3))),
    "one column, bound": ("scores", lambda v: pnce.bounds.dual_critic(embeddings(v, 1, 1))),
    "critic of other length": ("u", lambda v: pnce.bounds.dual(embeddings(v, 3, 3), v.floats([1.0, 2.0]))),
    "mask of other shape": ("mask", lambda v: pnce.from_scores.info_nce(embeddings(v, 3, 3), mask=truths(v, 3, 4))),
    "mask of other shape, embeddings": ("mask", lambda v: pnce.info_nce(*two(v), mask=truths(v, N, N + 1))),
    "mask of the positives' shape": (
        "mask",
        lambda v: pnce.info_nce(*two(v), embeddings(v, 5), mask=truths(v, N, N)),
    ),
    "mask of pairs, nt_xent": ("mask", lambda v: pnce.nt_xent(*two(v), mask=truths(v, N, N))),
    "weights of other length": ("weights", lambda v: pnce.info_nce(*two(v), weights=v.floats([1.0] * (N + 1)))),
    "weights a matrix": ("weights", lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), weights=embeddings(v, 3, 1))),
    "weights of other length, dcl": ("weights", lambda v: pnce.dcl(*two(v), weights=v.floats([1.0] * (N + 1)))),
    "positives of other length": (
        "positives",
        lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), positives=v.array([0])),
    ),
    "positives of other shape": (
        "positives",
        lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), positives=truths(v, 3, 2)),
    ),
    "temperature a vector": ("temperature", lambda v: pnce.info_nce(*two(v), temperature=v.floats([1.0, 2.0]))),
    "logit_scale a vector": ("logit_scale", lambda v: pnce.clip(*two(v), logit_scale=v.floats([1.0, 2.0]))),
    "bilinear of other shape": (
        "weight",
        lambda v: pnce.info_nce(*two(v), similarity=pnce.similarities.bilinear(embeddings(v, D + 1, D))),
    ),
    "labels of other length": (
        r"pairing\.rows",
        lambda v: pnce.contrast(embeddings(v), objective="info_nce", pairing=pnce.pairings.labels(v.array([0, 1, 0]))),
    ),
    **{
        f"labels of other length, {loss.__name__}": (
            "labels",
            labelled(loss, lambda v: classes(v, N + 1)),
        )
        for loss in LABEL_LOSSES
    },
    **{f"labels a matrix, {loss.__name__}": ("labels", labelled(loss, integers)) for loss in LABEL_LOSSES},
    **{
        f"embeddings a vector, {loss.__name__}": (
            "embeddings",
            labelled(loss, classes, lambda v: v.floats([1.0] * N)),
        )
        for loss in LABEL_LOSSES
    },
    "mask of other shape, supcon": ("mask", lambda v: pnce.supcon(embeddings(v), classes(v), mask=truths(v, N, D))),
    "weights of other length, triplet_from_labels": (
        "weights",
        lambda v: pnce.triplet_from_labels(embeddings(v), classes(v), weights=v.floats([1.0])),
    ),
    "further view of other size": (
        r"further_views\[1\]",
        lambda v: pnce.nt_xent(*two(v), embeddings(v), embeddings(v, N + 1)),
    ),
    "weights of neither samples nor views": (
        "weights",
        lambda v: pnce.nt_xent(*two(v), embeddings(v), weights=v.floats([1.0] * 2 * N)),
    ),
    "mask of two views of three": (
        "mask",
        lambda v: pnce.nt_xent(*two(v), embeddings(v), mask=truths(v, 2 * N, 2 * N)),
    ),
    "views of unequal size, dclw": ("view_b", lambda v: pnce.dclw(embeddings(v), embeddings(v, N + 1))),
    "views of unequal size, relic": ("view_b", lambda v: pnce.relic(embeddings(v), embeddings(v, N + 1))),
    "views of unequal width, relic": ("view_b", lambda v: pnce.relic(embeddings(v), embeddings(v, N, D + 1))),
    "text of other width, siglip": (
        "text",
        lambda v: pnce.siglip(
            embeddings(v), embeddings(v, 5, D + 1), logit_scale=1.0, logit_bias=0.0, negative_only=True
        ),
    ),
    "mask of the batch, siglip": (
        "mask",
        lambda v: pnce.siglip(
            *(embeddings(v), embeddings(v, 5)),
            logit_scale=1.0,
            logit_bias=0.0,
            negative_only=True,
            mask=truths(v, N, N),
        ),
    ),
    "image and text of unequal size, siglip": (
        "text",
        lambda v: pnce.siglip(embeddings(v), embeddings(v, N - 1), logit_scale=1.0, logit_bias=0.0),
    ),
    "logit_bias a vector": (
        "logit_bias",
        lambda v: pnce.siglip(*two(v), logit_scale=1.0, logit_bias=v.floats([1.0, 2.0])),
    ),
    "query and key of unequal size, n_tuple": ("key", lambda v: pnce.n_tuple(embeddings(v), embeddings(v, N + 1))),
    "targets of one step": ("targets", lambda v: pnce.cpc(embeddings(v), embeddings(v, N, 2), predicted(v)[1])),
    "targets of other samples": (
        "targets",
        lambda v: pnce.cpc(embeddings(v, N + 1), *predicted(v)),
    ),
    "projections of other steps": (
        "projections",
        lambda v: pnce.cpc(embeddings(v), predicted(v)[0], predicted(v)[1][:1, :, :]),
    ),
    "projections the other way round": (
        "projections",
        lambda v: pnce.cpc(embeddings(v), predicted(v)[0], v.floats([[[1.0, 2.0]] * D] * 2)),
    ),
    "projections a matrix": ("projections", lambda v: pnce.cpc(embeddings(v), predicted(v)[0], embeddings(v, 2))),
    "key of other size, moco": ("key", lambda v: pnce.moco(embeddings(v), embeddings(v, N - 1), embeddings(v, 5))),
    "queue of other width": ("queue", lambda v: pnce.moco(*two(v), embeddings(v, 5, D + 1))),
    "queue of other width, a Queue": ("queue", lambda v: pnce.moco(*two(v), queued(v, D + 1))),
    "queue a vector": ("queue", lambda v: pnce.moco(*two(v), v.floats([1.0] * D))),
    "queue of other width than its slots are valid": (
        "queue",
        lambda v: pnce.moco(*two(v), pnce.Queue(embeddings(v, 5), v.array([True] * 4))),
    ),
    "support and its valid slots": (
        "support",
        lambda v: pnce.nnclr(*two(v), pnce.Queue(embeddings(v, 5), v.array([True] * 4))),
    ),
    **{
        f"{what}, {loss.__name__}": (name, call)
        for loss in LABEL_LOSSES
        for what, name, call in (
            ("keys without labels", "key_labels", keyed(loss, None)),
            ("queue without labels", "key_labels", keyed(loss, None, queued)),
            ("labels without keys", "key_labels", labelled(loss, key_labels=0)),
            ("labels of fewer keys", "key_labels", keyed(loss, classes)),
            ("keys of other width", "keys", keyed(loss, keys=lambda v: embeddings(v, 5, D + 1))),
            ("keys a vector", "keys", keyed(loss, keys=lambda v: v.floats([1.0] * D))),
            ("no keys", "keys", keyed(loss, keys=lambda v: embeddings(v)[:0, :])),
        )
    },
    "mask of the batch, beside keys": (
        "mask",
        lambda v: pnce.supcon(
            embeddings(v), classes(v), keys=embeddings(v, 5), key_labels=classes(v, 5), mask=truths(v, N, N)
        ),
    ),
    "labels of a queue of other length": (
        "keys.labels",
        lambda v: pnce.supcon(
            embeddings(v), classes(v), keys=pnce.Queue(embeddings(v, 5), v.array([True] * 5), classes(v, 3))
        ),
    ),
    "slots of keys": (
        "keys",
        lambda v: pnce.supcon(
            embeddings(v), classes(v), keys=pnce.Queue(embeddings(v, 5), v.array([True] * 4), classes(v, 5))
        ),
    ),
    **{
        f"{what}, {loss.__name__}": (name, viewed(loss, **made))
        for loss in (pnce.nt_xent, pnce.dcl, pnce.flat_nce, pnce.dclw, pnce.relic)
        for what, name, made in (
            ("keys of other width", "keys", {"keys": lambda v: embeddings(v, 5, D + 1)}),
            ("keys a vector", "keys", {"keys": lambda v: v.floats([1.0] * D)}),
            ("slots of keys", "keys", {"keys": lambda v: pnce.Queue(embeddings(v, 5), v.array([True] * 4))}),
            (
                "mask without the keys",
                "mask",
                {"keys": lambda v: embeddings(v, 5), "mask": lambda v: truths(v, 2 * N, 2 * N)},
            ),
        )
    },
    "mask of the batch, moco": ("mask", lambda v: pnce.moco(*two(v), embeddings(v, 5), mask=truths(v, N, N))),
    "queries of unequal size, moco_v3": (
        "query_b",
        lambda v: pnce.moco_v3(embeddings(v), embeddings(v, N + 1), *two(v)),
    ),
    "first keys of other size, moco_v3": ("key_a", lambda v: pnce.moco_v3(*two(v), embeddings(v, 5), embeddings(v))),
    "second keys of other size, moco_v3": ("key_b", lambda v: pnce.moco_v3(*two(v), embeddings(v), embeddings(v, 5))),
    "support of other width": ("support", lambda v: pnce.nnclr(*two(v), embeddings(v, 5, D + 1))),
    "support a vector": ("support", lambda v: pnce.nnclr(*two(v), v.floats([1.0] * D))),
    "support without rows": ("support", lambda v: pnce.nnclr(*two(v), embeddings(v)[:0, :])),
    "views of unequal size, nnclr": (
        "view_b",
        lambda v: pnce.nnclr(embeddings(v), embeddings(v, N + 1), embeddings(v, 5)),
    ),
    "mask of the support": ("mask", lambda v: pnce.nnclr(*two(v), embeddings(v, 5), mask=truths(v, N, 5))),
    "prototypes of other width": (
        "prototypes",
        lambda v: pnce.proto_nce(embeddings(v), embeddings(v, 2, D + 1), *clustered(v)[1:]),
    ),
    "prototypes a vector": (
        "prototypes",
        lambda v: pnce.proto_nce(embeddings(v), v.floats([1.0] * D), *clustered(v)[1:]),
    ),
    "embeddings a vector, proto_nce": ("embeddings", lambda v: pnce.proto_nce(v.floats([1.0] * N), *clustered(v))),
    "assignments of other length": (
        "assignments",
        lambda v: pnce.proto_nce(embeddings(v, N + 1), *clustered(v)),
    ),
    "concentrations of other length": (
        "concentrations",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v)[:2], v.floats([0.5] * 3)),
    ),
    "concentration a number of no axes": (
        "concentrations",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v)[:2], v.floats(0.5)),
    ),
    "mask of other prototypes": (
        "mask",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v), mask=truths(v, N, N)),
    ),
    "key of other size, proto_nce": (
        "key",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v), key=embeddings(v, N + 1)),
    ),
    "key of other size, proto_nce with queue": (
        "key",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v), key=embeddings(v, N + 1), queue=queued(v)),
    ),
    "queue of other width, proto_nce": (
        "queue",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v), key=embeddings(v), queue=embeddings(v, 5, D + 1)),
    ),
    "queue without key": (
        "queue",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v), queue=embeddings(v, 5)),
    ),
    "fewer assignments than prototypes": (
        "assignments",
        lambda v: pnce.proto_nce(embeddings(v), [clustered(v)[0]] * 2, [clustered(v)[1]], [clustered(v)[2]] * 2),
    ),
    "one array of concentrations for two of prototypes": (
        "concentrations",
        lambda v: pnce.proto_nce(embeddings(v), [clustered(v)[0]] * 2, [clustered(v)[1]] * 2, clustered(v)[2]),
    ),
    "one mask for two clusterings": (
        "mask",
        lambda v: pnce.proto_nce(embeddings(v), *([x] * 2 for x in clustered(v)), mask=truths(v, N, 2)),
    ),
    "no clustering": ("prototypes", lambda v: pnce.proto_nce(embeddings(v), [], [], [])),
    "prototypes of other width, concentrations": (
        "prototypes",
        lambda v: pnce.concentrations(embeddings(v), embeddings(v, 2, D + 1), clustered(v)[1]),
    ),
    "assignments of other length, concentrations": (
        "assignments",
        lambda v: pnce.concentrations(embeddings(v, N + 1), *clustered(v)[:2]),
    ),
    "triples of unequal size": (
        "negative",
        lambda v: pnce.triplet(*two(v), embeddings(v, N + 1)),
    ),
    "triples of unequal width": ("positive", lambda v: pnce.triplet(embeddings(v), embeddings(v, N, 2), embeddings(v))),
    "anchor a vector": ("anchor", lambda v: pnce.triplet(v.floats([1.0]), *two(v))),
    "mask of pairs, triplet": ("mask", lambda v: pnce.triplet(*two(v), embeddings(v), mask=truths(v, N, N))),
    "weights of other length, triplet": (
        "weights",
        lambda v: pnce.triplet(*two(v), embeddings(v), weights=v.floats([1.0])),
    ),
    "example a vector": ("example", lambda v: pnce.queue_init(v.floats([1.0, 2.0]), size=3)),
    "labels of another batch": (
        "labels",
        lambda v: pnce.queue_init(embeddings(v), size=3, labels=classes(v, N + 1)),
    ),
    "labels for a queue without": (
        "labels",
        lambda v: pnce.queue_push(queued(v), embeddings(v, 2), labels=classes(v, 2)),
    ),
    "no labels for a queue with": ("labels", lambda v: pnce.queue_push(labelled_queue(v), embeddings(v, 2))),
    "fewer labels than rows": (
        "labels",
        lambda v: pnce.queue_push(labelled_queue(v), embeddings(v, 2), labels=classes(v, 1)),
    ),
    "pushed rows of other width": ("rows", lambda v: pnce.queue_push(queued(v), embeddings(v, 2, D + 1))),
    "pushed row a vector": ("rows", lambda v: pnce.queue_push(queued(v), v.floats([1.0] * D))),
    "no rows pushed": ("rows", lambda v: pnce.queue_push(queued(v), embeddings(v)[:0, :])),
    "scores that are not square, clip": ("scores", lambda v: pnce.from_scores.clip(embeddings(v, 3, 4))),
    "scores that are not square, relic": ("scores", lambda v: pnce.from_scores.relic(embeddings(v, 3, 4))),
    **{
        f"fewer columns than rows, {name}": (
            "scores",
            scored(name, lambda v: embeddings(v, 4, 3)),
        )
        for name in ("clip", "contrastive", "dclw", "logistic", "nca", "relic", "supcon", "triplet")
    },
    "temperatures of fewer rows, streamed": (
        "temperature",
        lambda v: pnce.nt_xent(*two(v), temperature=v.floats([1.0] * (N - 1)), block_size=2),
    ),
    "temperatures of fewer rows, own negatives": (
        "temperature",
        lambda v: pnce.triplet(*two(v), embeddings(v), temperature=v.floats([1.0] * (N - 1))),
    ),
    "temperature a vector, from_scores.dclw": (
        "temperature",
        lambda v: pnce.from_scores.dclw(embeddings(v, 3, 3), temperature=v.floats([1.0, 2.0])),
    ),
    "offsets a matrix": ("offsets", lambda v: pnce.similarities.shifted_columns("dot", embeddings(v))),
    "negatives of another width, two_tower": (
        "negative_candidates",
        lambda v: pnce.two_tower(*two(v), v.floats([[1.0]])),
    ),
    "ids of another length": ("ids", lambda v: pnce.two_tower(*two(v), ids=v.array([1] * (N + 1)))),
    "ids without those of the negatives": (
        "negative_ids",
        lambda v: pnce.two_tower(*two(v), embeddings(v), ids=v.array([1] * N)),
    ),
    "log_q of negatives that are not there": (
        "negative_log_q",
        lambda v: pnce.two_tower(*two(v), log_q=v.floats([0.5] * N), negative_log_q=v.floats([0.5] * N)),
    ),
    "log_q of another length": ("log_q", lambda v: pnce.two_tower(*two(v), log_q=v.floats([0.5] * (N + 1)))),
    "pairs of unequal number": ("y", lambda v: pnce.cosent(embeddings(v), embeddings(v, N + 1), classes(v))),
    "pairs of unequal width": ("y", lambda v: pnce.cosent(embeddings(v), embeddings(v, N, D + 1), classes(v))),
    "pairs of unequal width, angle": ("y", lambda v: pnce.angle(embeddings(v), embeddings(v, N, D + 1), classes(v))),
    "grades of another length": ("grades", lambda v: pnce.cosent(*two(v), classes(v, N + 1))),
    "grades a matrix": ("grades", lambda v: pnce.angle(*two(v), embeddings(v))),
    "similarities a matrix": ("scores", lambda v: pnce.from_scores.cosent(embeddings(v, 3, 3), classes(v, 3))),
    "mask of pairs, cosent": ("mask", lambda v: pnce.cosent(*two(v), classes(v), mask=truths(v, N, N))),
    "scale of two entries": ("scale", lambda v: pnce.cosent(*two(v), classes(v), scale=v.floats([1.0, 2.0]))),
    "factors a matrix": ("factors", lambda v: pnce.similarities.scaled_columns("dot", embeddings(v))),
    "factors of other length": (
        "factors",
        lambda v: pnce.info_nce(*two(v), similarity=pnce.similarities.scaled_columns("dot", v.floats([1.0] * (N + 1)))),
    ),
}

CHOICES: dict[str, tuple[str, Call]] = {
    "scale zero": ("scale", lambda v: pnce.cosent(*two(v), classes(v), scale=0.0)),
    "scale negative, angle": ("scale", lambda v: pnce.angle(*two(v), classes(v), scale=-1.0)),
    "scale infinite, similarities": (
        "scale",
        lambda v: pnce.from_scores.cosent(v.floats([0.5, 1.0]), v.array([1, 2]), scale=math.inf),
    ),
    "similarity": ("similarity", lambda v: pnce.info_nce(*two(v), similarity="cosin")),
    "reduction": ("reduction", lambda v: pnce.info_nce(*two(v), reduction="average")),
    "reduction of scores": ("reduction", lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), reduction="average")),
    "multi_positive": ("multi_positive", lambda v: pnce.info_nce(*two(v), multi_positive="all")),
    "multi_positive of scores": (
        "multi_positive",
        lambda v: pnce.from_scores.info_nce(embeddings(v, 3, 3), multi_positive="all"),
    ),
    "form": ("form", lambda v: pnce.flat_nce(*two(v), form="exp")),
    "block_size 0": ("block_size", lambda v: pnce.info_nce(*two(v), block_size=0)),
    "block_size negative": ("block_size", lambda v: pnce.nt_xent(*two(v), block_size=-1)),
    "block_size text": ("block_size", lambda v: pnce.clip(*two(v), logit_scale=1.0, block_size="large")),
    "temperature 0": ("temperature", lambda v: pnce.info_nce(*two(v), temperature=0.0)),
    "temperature negative": ("temperature", lambda v: pnce.nt_xent(*two(v), temperature=-0.1)),
    "temperature NaN": ("temperature", lambda v: pnce.dcl(*two(v), temperature=float("nan"))),
    "temperature infinite": ("temperature", lambda v: pnce.flat_nce(*two(v), temperature=float("inf"))),
    "logit_scale 0": ("logit_scale", lambda v: pnce.clip(*two(v), logit_scale=0.0)),
    "objective": ("objective", lambda v: pnce.contrast(*two(v), objective="infonce")),
    "pairing": ("pairing", lambda v: pnce.contrast(*two(v), objective="info_nce", pairing="diag")),
    **{
        f"{option} {value!r}, {loss.__name__}": (
            option,
            labelled(loss, **{option: value}),
        )
        for loss, option, value in (
            *((pnce.supcon, "base_temperature", value) for value in (0.0, -1.0, math.nan, math.inf)),
            (pnce.supcon, "multi_positive", "out"),
            (pnce.supcon, "similarity", "euclidean"),
            (pnce.nca, "temperature", 0.0),
            (pnce.soft_nearest_neighbor, "block_size", 0),
            (pnce.contrastive, "margin", math.inf),
            (pnce.contrastive, "positive_margin", math.nan),
            (pnce.contrastive, "positive_power", 3),
            (pnce.contrastive, "negative_power", 0),
            (pnce.contrastive, "negative_power", 1.5),
            (pnce.contrastive, "average", "active"),
            (pnce.contrastive, "reduction", "average"),
            (pnce.triplet_from_labels, "mining", "batch_semihard"),
            (pnce.triplet_from_labels, "mining", ("hard", "semihard")),
            (pnce.triplet_from_labels, "mining", ("semi_hard", "semi_hard")),
            (pnce.triplet_from_labels, "mining", ("hard",)),
            (pnce.triplet_from_labels, "mining", ["hard", "easy"]),
            (pnce.triplet_from_labels, "mining", None),
            (pnce.triplet_from_labels, "form", "hinge"),
            (pnce.triplet_from_labels, "average", "some"),
            (pnce.triplet_from_labels, "margin", math.nan),
            (pnce.triplet_from_labels, "block_size", "small"),
        )
    },
    **{
        f"{option} {value!r}, {loss.__name__}": (
            option,
            paired(loss, **{option: value}),
        )
        for loss, option, value in (
            *((pnce.dclw, "sigma", value) for value in (0.0, -0.5, math.nan, math.inf)),
            (pnce.relic, "direction", "both"),
            (pnce.relic, "stop_gradient", "third"),
            (pnce.relic, "alpha", math.inf),
            (pnce.nt_xent, "multi_positive", "all"),
            (pnce.n_tuple, "l2", math.nan),
            (pnce.n_tuple, "temperature", -1.0),
        )
    },
    **{
        f"{option} {value!r}, triplet": (
            option,
            thrice(**{option: value}),
        )
        for option, value in (
            ("form", "hinge"),
            ("average", "some"),
            ("margin", math.inf),
            ("reduction", "average"),
            ("block_size", 0),
            ("similarity", "euclidean"),
            ("temperature", 0.0),
        )
    },
    **{
        f"{option} {value!r}, from_scores.{name}": (
            option,
            scored(name, **{option: value}),
        )
        for name, option, value in (
            ("dclw", "sigma", 0.0),
            ("dclw", "temperature", 0.0),
            ("supcon", "multi_positive", "out"),
            ("relic", "direction", "both"),
            ("relic", "stop_gradient", "third"),
            ("contrastive", "positive_power", 3),
            ("contrastive", "average", "some"),
            ("triplet", "mining", "hard"),
            ("triplet", "form", "hinge"),
            ("triplet", "average", "some"),
            ("clip", "reduction", "average"),
            ("logistic", "reduction", "average"),
            ("nca", "reduction", "average"),
        )
    },
    "logit_scale 0, siglip": ("logit_scale", lambda v: pnce.siglip(*two(v), logit_scale=0.0, logit_bias=0.0)),
    "logit_bias NaN": ("logit_bias", lambda v: pnce.siglip(*two(v), logit_scale=1.0, logit_bias=math.nan)),
    "temperature 0, moco": ("temperature", lambda v: pnce.moco(*two(v), embeddings(v, 5), temperature=0.0)),
    "temperature 0, moco_v3": ("temperature", lambda v: pnce.moco_v3(*two(v), *two(v), temperature=0.0)),
    "block_size 0, nnclr": ("block_size", lambda v: pnce.nnclr(*two(v), embeddings(v, 5), block_size=0)),
    "similarity, nnclr": ("similarity", lambda v: pnce.nnclr(*two(v), embeddings(v, 5), similarity="near")),
    "reduction, cpc": ("reduction", lambda v: pnce.cpc(embeddings(v), *predicted(v), reduction="average")),
    "reduction, proto_nce": (
        "reduction",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v), reduction="average"),
    ),
    "similarity, proto_nce": (
        "similarity",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v), similarity="near"),
    ),
    "temperature 0, proto_nce with key": (
        "temperature",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v), key=embeddings(v), temperature=0.0),
    ),
    "size 0": ("size", lambda v: pnce.queue_init(embeddings(v), size=0)),
    "size negative": ("size", lambda v: pnce.queue_init(embeddings(v), size=-3)),
    **{
        f"percentiles {value!r}": (
            "percentiles",
            concentrated(percentiles=value),
        )
        for value in ((90.0, 10.0), (-1.0, 50.0), (10.0, 101.0), (math.nan, 90.0))
    },
    **{
        f"{option} {value!r}, concentrations": (
            option,
            concentrated(**{option: value}),
        )
        for option, value in (("temperature", 0.0), ("smoothing", 0.0), ("smoothing", math.nan))
    },
    "similarity to be normalized": ("similarity", lambda _: pnce.similarities.normalized("cosin")),
    "similarity of scaled columns": (
        "similarity",
        lambda v: pnce.similarities.scaled_columns("cosin", v.floats([1.0])),
    ),
    "divide_by": ("divide_by", lambda _: pnce.objectives.Pairwise(None, None, divide_by="columns")),
    "divide_by of logistic": ("divide_by", lambda _: pnce.objectives.logistic(divide_by="columns")),
}

KINDS: dict[str, tuple[str, Call]] = {
    "integer embeddings": ("query", lambda v: pnce.info_nce(integers(v), integers(v))),
    "integer key": ("positive_key", lambda v: pnce.info_nce(embeddings(v), integers(v))),
    "integer scores": ("scores", lambda v: pnce.from_scores.info_nce(integers(v, 3, 3))),
    "integer scores, bound": ("scores", lambda v: pnce.bounds.info_nce(integers(v, 3, 3))),
    "integer scores, diagnostics": ("scores", lambda v: pnce.diagnostics.effective_sample_size(integers(v, 3, 3))),
    "boolean scores": ("scores", lambda v: pnce.from_scores.dcl(truths(v, 3, 3))),
    "float labels": ("rows", lambda v: pnce.pairings.labels(v.floats([0.0, 1.0]))),
    "float index": (
        "positives",
        lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), positives=v.floats([0.0, 1.0, 2.0])),
    ),
    "float index, embeddings": ("positives", lambda v: pnce.info_nce(*two(v), positives=v.floats([0.0] * N))),
    "float mask": ("mask", lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), mask=embeddings(v, 3, 3))),
    "integer mask": ("mask", lambda v: pnce.info_nce(*two(v), mask=integers(v, N, N))),
    "integer matrix of positives": (
        "positives",
        lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), positives=integers(v, 3, 3)),
    ),
    "text temperature": ("temperature", lambda v: pnce.info_nce(*two(v), temperature="warm")),
    "integer temperature array": ("temperature", lambda v: pnce.info_nce(*two(v), temperature=v.array(1))),
    "boolean temperature": ("temperature", lambda v: pnce.info_nce(*two(v), temperature=True)),
    "list of embeddings": ("positive_key", lambda v: pnce.info_nce(embeddings(v), [[1.0] * D] * N)),
    "list of queries": ("query", lambda v: pnce.info_nce([[1.0] * D] * N, embeddings(v))),
    "list of scores": ("scores", lambda _: pnce.from_scores.info_nce([[1.0, 2.0], [3.0, 4.0]])),
    "number as scores": ("scores", lambda _: pnce.bounds.info_nce(1.0)),
    "list of weights": ("weights", lambda v: pnce.info_nce(*two(v), weights=[1.0] * N)),
    "list as mask": ("mask", lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), mask=[[True] * 3] * 3)),
    "list as positives": ("positives", lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), positives=[0, 1, 2])),
    "list of negatives": ("negative_keys", lambda v: pnce.info_nce(*two(v), [[1.0] * D] * 5)),
    "None as key": ("positive_key", lambda v: pnce.info_nce(embeddings(v), None)),
    "positives with own negatives": (
        "positives",
        lambda v: pnce.info_nce(*two(v), embeddings(v, 5), positives=v.array([0] * N)),
    ),
    "foreign key": ("positive_key", lambda v: pnce.info_nce(embeddings(v), foreign_array(v, [[1.0] * D] * N))),
    "foreign negatives": ("negative_keys", lambda v: pnce.info_nce(*two(v), foreign_array(v, [[1.0] * D] * 5))),
    "foreign text": ("text", lambda v: pnce.clip(embeddings(v), foreign_array(v, [[1.0] * D] * N), logit_scale=1.0)),
    "foreign weights": ("weights", lambda v: pnce.nt_xent(*two(v), weights=foreign_array(v, [1.0] * N))),
    "foreign critic": ("u", lambda v: pnce.bounds.dual(embeddings(v, 3, 3), foreign_array(v, [1.0] * 3))),
    "foreign temperature": ("temperature", lambda v: pnce.info_nce(*two(v), temperature=foreign_array(v, 1.0))),
    **{
        f"float labels, {loss.__name__}": (
            "labels",
            labelled(loss, lambda v: v.floats([0.0, 0.0, 1.0, 1.0])),
        )
        for loss in LABEL_LOSSES
    },
    **{f"list of labels, {loss.__name__}": ("labels", labelled(loss, lambda _: [0, 0, 1, 1])) for loss in LABEL_LOSSES},
    **{
        f"integer embeddings, {loss.__name__}": ("embeddings", labelled(loss, classes, integers))
        for loss in LABEL_LOSSES
    },
    "boolean labels": ("labels", lambda v: pnce.supcon(embeddings(v), v.array([True, False, True, False]))),
    "foreign labels": ("labels", lambda v: pnce.nca(embeddings(v), foreign_array(v, [0.0] * N))),
    "text base_temperature": (
        "base_temperature",
        labelled(pnce.supcon, base_temperature="warm"),
    ),
    "array as base_temperature": (
        "base_temperature",
        lambda v: pnce.supcon(embeddings(v), classes(v), base_temperature=v.floats([1.0])),
    ),
    "two margins": ("margin", lambda v: pnce.contrastive(embeddings(v), classes(v), margin=v.floats([1.0, 2.0]))),
    "text margin": ("margin", thrice(margin="wide")),
    "boolean sigma": ("sigma", lambda v: pnce.dclw(*two(v), sigma=True)),
    "text alpha": ("alpha", paired(pnce.relic, alpha="much")),
    "text l2": ("l2", paired(pnce.n_tuple, l2="much")),
    "text logit_bias": ("logit_bias", lambda v: pnce.siglip(*two(v), logit_scale=1.0, logit_bias="low")),
    "integer further view": (r"further_views\[0\]", lambda v: pnce.nt_xent(*two(v), integers(v))),
    "list as further view": (r"further_views\[0\]", lambda v: pnce.nt_xent(*two(v), [[1.0] * D] * N)),
    "None as further view": (r"further_views\[0\]", lambda v: pnce.nt_xent(*two(v), None)),
    "integer targets": ("targets", lambda v: pnce.cpc(embeddings(v), v.array([[[1, 2]] * N] * 2), predicted(v)[1])),
    "list of projections": ("projections", lambda v: pnce.cpc(embeddings(v), predicted(v)[0], [embeddings(v, 2)] * 2)),
    "queue a list": ("queue", lambda v: pnce.moco(*two(v), [[1.0] * D] * 5)),
    "queue a pair": ("queue", lambda v: pnce.moco(*two(v), tuple(queued(v)))),
    "queue None": ("queue", lambda v: pnce.moco(*two(v), None)),
    "integer queue": ("queue", lambda v: pnce.moco(*two(v), integers(v, 5))),
    "foreign queue": ("queue", lambda v: pnce.moco(*two(v), foreign_array(v, [[1.0] * D] * 5))),
    "queue whose slots are numbers": (
        "queue",
        lambda v: pnce.moco(*two(v), pnce.Queue(embeddings(v, 5), v.array([1] * 5))),
    ),
    "support a list": ("support", lambda v: pnce.nnclr(*two(v), [[1.0] * D] * 5)),
    "support whose slots are numbers": (
        "support",
        lambda v: pnce.nnclr(*two(v), pnce.Queue(embeddings(v, 5), v.array([1] * 5))),
    ),
    "integer support": ("support", lambda v: pnce.nnclr(*two(v), integers(v, 5))),
    "integer key, moco_v3": ("key_b", lambda v: pnce.moco_v3(*two(v), embeddings(v), integers(v))),
    "float assignments": (
        "assignments",
        lambda v: pnce.proto_nce(embeddings(v), clustered(v)[0], v.floats([0.0] * N), clustered(v)[2]),
    ),
    "float assignments, concentrations": (
        "assignments",
        lambda v: pnce.concentrations(embeddings(v), clustered(v)[0], v.floats([0.0] * N)),
    ),
    "integer concentrations": (
        "concentrations",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v)[:2], v.array([1, 1])),
    ),
    "integer prototypes": (
        "prototypes",
        lambda v: pnce.proto_nce(embeddings(v), integers(v, 2), *clustered(v)[1:]),
    ),
    "integer embeddings, proto_nce": ("embeddings", lambda v: pnce.proto_nce(integers(v), *clustered(v))),
    "integer key, proto_nce": (
        "key",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v), key=integers(v)),
    ),
    "queue a list, proto_nce": (
        "queue",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v), key=embeddings(v), queue=[[1.0] * D] * 5),
    ),
    "mask of prototypes, numbers": (
        "mask",
        lambda v: pnce.proto_nce(embeddings(v), *clustered(v), mask=integers(v, N, 2)),
    ),
    "percentiles a number": (
        "percentiles",
        concentrated(percentiles=10.0),
    ),
    "percentiles of text": ("percentiles", concentrated(percentiles=("low", "high"))),
    "percentiles of three": (
        "percentiles",
        concentrated(percentiles=(0.0, 50.0, 100.0)),
    ),
    "integer negative": ("negative", lambda v: pnce.triplet(*two(v), integers(v))),
    "list of anchors": ("anchor", lambda v: pnce.triplet([[1.0] * D] * N, *two(v))),
    "foreign positive": (
        "positive",
        lambda v: pnce.triplet(embeddings(v), foreign_array(v, [[1.0] * D] * N), embeddings(v)),
    ),
    "size a float": ("size", lambda v: pnce.queue_init(embeddings(v), size=3.0)),
    "size a truth value": ("size", lambda v: pnce.queue_init(embeddings(v), size=True)),
    "integer example": ("example", lambda v: pnce.queue_init(integers(v), size=3)),
    "labels of a queue that are floats": (
        "labels",
        lambda v: pnce.queue_init(embeddings(v), size=3, labels=v.floats([1.0] * N)),
    ),
    "push labels that are floats": (
        "labels",
        lambda v: pnce.queue_push(labelled_queue(v), embeddings(v, 2), labels=v.floats([1.0] * 2)),
    ),
    "push labels of a longer dtype": (
        "labels",
        lambda v: pnce.queue_push(
            pnce.queue_init(embeddings(v, 2), size=3, labels=v.array([1, 2], "int8")),
            embeddings(v, 2),
            labels=v.array([1, 2], "int32"),
        ),
    ),
    "push foreign labels": (
        "labels",
        lambda v: pnce.queue_push(labelled_queue(v), embeddings(v, 2), labels=foreign_array(v, [1, 2])),
    ),
    "integer keys": ("keys", keyed(pnce.supcon, keys=lambda v: integers(v, 5))),
    "keys a list": ("keys", keyed(pnce.supcon, keys=lambda _: [[1.0] * D] * 5)),
    "foreign keys": ("keys", keyed(pnce.supcon, keys=lambda v: foreign_array(v, [[1.0] * D] * 5))),
    "labels of keys that are floats": ("key_labels", keyed(pnce.supcon, lambda v: v.floats([1.0] * 5))),
    "labels of keys in a list": ("key_labels", keyed(pnce.supcon, lambda _: [1] * 5)),
    "labels of a queue of keys that are floats": (
        "keys.labels",
        keyed(pnce.supcon, None, lambda v: queued(v)._replace(labels=v.floats([1.0] * 5))),
    ),
    "integer keys of views": ("keys", lambda v: pnce.nt_xent(*two(v), keys=integers(v, 5))),
    "foreign keys of views": ("keys", lambda v: pnce.nt_xent(*two(v), keys=foreign_array(v, [[1.0] * D] * 5))),
    "keys of views that are a list": ("keys", lambda v: pnce.nt_xent(*two(v), keys=[[1.0] * D] * 5)),
    "push to an array": ("queue", lambda v: pnce.queue_push(embeddings(v), embeddings(v))),
    "push to a list": ("queue", lambda v: pnce.queue_push([], embeddings(v))),
    "push integers": ("rows", lambda v: pnce.queue_push(queued(v), integers(v))),
    "push a list": ("rows", lambda v: pnce.queue_push(queued(v), [[1.0] * D])),
    "push foreign rows": ("rows", lambda v: pnce.queue_push(queued(v), foreign_array(v, [[1.0] * D]))),
    **{
        f"integer scores, {name}": (
            "scores",
            scored(name, lambda v: integers(v, 3, 3)),
        )
        for name in ("clip", "contrastive", "dclw", "logistic", "nca", "relic", "supcon", "triplet")
    },
    "integer offsets": ("offsets", lambda v: pnce.similarities.shifted_columns("dot", v.array([1, 2]))),
    "temperatures that are integers": ("temperature", lambda v: pnce.info_nce(*two(v), temperature=v.array([1] * N))),
    "integer log_q": ("log_q", lambda v: pnce.two_tower(*two(v), log_q=v.array([1] * N))),
    "ids that are no integers": ("ids", lambda v: pnce.two_tower(*two(v), ids=v.floats([1.0] * N))),
    "integer pairs": ("x", lambda v: pnce.cosent(integers(v), integers(v), classes(v))),
    "integer similarities": ("scores", lambda v: pnce.from_scores.cosent(v.array([1, 2]), v.array([1, 2]))),
    "mask that is no truth values, cosent": ("mask", lambda v: pnce.cosent(*two(v), classes(v), mask=classes(v))),
    "grades that are no array": ("grades", lambda v: pnce.cosent(*two(v), [1, 2, 3, 4])),
    "integer factors": ("factors", lambda v: pnce.similarities.scaled_columns("dot", v.array([1, 2]))),
}


@pytest.mark.parametrize("what", list(SHAPES))
def test_shapes(variant: Variant, what: str) -> None:
    name, call = SHAPES[what]
    with pytest.raises(ValueError, match=rf"(?s)\A({name})(\.valid)?: .*expected.*got"):
        call(variant)


@pytest.mark.parametrize("what", list(CHOICES))
def test_choices(variant: Variant, what: str) -> None:
    name, call = CHOICES[what]
    with pytest.raises(ValueError, match=rf"(?s)\A({name})(\.valid)?: .*expected.*got"):
        call(variant)


@pytest.mark.parametrize("what", list(KINDS))
def test_kinds(variant: Variant, what: str) -> None:
    name, call = KINDS[what]
    with pytest.raises((TypeError, ValueError), match=rf"(?s)\A({name})(\.valid)?: .*expected.*got"):
        call(variant)


@pytest.mark.parametrize("dtype", ["float64"])
def test_mixed_precision(variant: Variant, dtype: str) -> None:
    """Two floating-point dtypes: which one was meant is the caller's to say."""
    if "float32" not in (*variant.dtypes, *variant.further_dtypes):
        assert variant.dtypes == (dtype,)
        return
    with pytest.raises(TypeError, match=r"(?s)positive_key.*expected.*float64.*got.*float32"):
        pnce.info_nce(embeddings(variant), embeddings(variant, dtype="float32"))


@pytest.mark.two_devices
def test_two_devices(variant: Variant) -> None:
    """Arrays on two devices are not moved behind the caller's back."""
    key = variant.array([[1.0] * D] * N, device=variant.other_device)
    weights = variant.array([1.0] * N, device=variant.other_device)
    with pytest.raises(ValueError, match=r"(?s)positive_key.*expected.*device.*got"):
        pnce.info_nce(embeddings(variant), key)
    with pytest.raises(ValueError, match=r"(?s)(weights.*expected.*device|expected.*device of weights).*got"):
        pnce.info_nce(*two(variant), weights=weights)
    with pytest.raises(ValueError, match=r"(?s)u.*expected.*device.*got"):
        pnce.bounds.dual(embeddings(variant, N, N), weights)


def test_options_are_keywords(variant: Variant) -> None:
    """Arrays by position, options by keyword."""
    with pytest.raises(TypeError):
        pnce.info_nce(*two(variant), None, 0.5)
    with pytest.raises(TypeError):
        pnce.info_nce(query=embeddings(variant), positive_key=embeddings(variant))
