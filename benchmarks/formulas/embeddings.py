"""Losses of two arrays of embeddings, and their formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import e, inf
from typing import Any, Final

import portable_nce as pnce

from . import peers
from .rows import TAU, Row


def cosines(t: Any, x: Any, y: Any) -> Any:
    return t.unit(x) @ t.unit(y).T


def in_turn(t: Any, scores: Any) -> Any:
    """Cross-entropy with targets on the diagonal."""
    return t.cross_entropy(scores, t.arange(len(scores)))


def both_ways(t: Any, scores: Any) -> Any:
    return (in_turn(t, scores) + in_turn(t, scores.T)) / 2


def shared_negatives(t: Any, x: Any, y: Any, negatives: Any) -> Any:
    x, y, negatives = t.unit(x), t.unit(y), t.unit(negatives)
    scores = t.concat([(x * y).sum(1)[:, None], x @ negatives.T], 1) / TAU
    return t.cross_entropy(scores, t.zeros(len(x)))


def own_negatives(t: Any, x: Any, y: Any, negatives: Any) -> Any:
    x, y, negatives = t.unit(x), t.unit(y), t.unit(negatives)
    scores = t.concat([(x * y).sum(1)[:, None], (negatives @ x[:, :, None])[:, :, 0]], 1) / TAU
    return t.cross_entropy(scores, t.zeros(len(x)))


def max_sim(t: Any, x: Any, y: Any) -> Any:
    n, tokens, width = x.shape
    products = t.unit(x).reshape(-1, width) @ t.unit(y).reshape(-1, width).T
    return in_turn(t, t.max(products.reshape(n, tokens, n, tokens), 3).sum(1))


def siglip(t: Any, x: Any, y: Any) -> Any:
    signs = t.where(t.eye(len(x)), 1.0, -1.0)
    return t.softplus(-signs * (cosines(t, x, y) / TAU - 10)).sum() / len(x)


def n_tuple(t: Any, x: Any, y: Any) -> Any:
    return in_turn(t, x @ y.T) + 0.01 * ((x * x).sum(1) + (y * y).sum(1)).mean()


def cpc(t: Any, context: Any, targets: Any, projections: Any) -> Any:
    losses = [in_turn(t, (context @ w.T) @ z.T) for w, z in zip(projections, targets, strict=True)]
    return sum(losses) / len(losses)


def relic(t: Any, x: Any, y: Any) -> Any:
    return relic_of_scores(t, cosines(t, x, y) / TAU)


def relic_of_scores(t: Any, scores: Any) -> Any:
    log_a, log_b = t.log_softmax(scores, 1), t.log_softmax(scores.T, 1)
    return (t.exp(log_a) * (log_a - log_b)).sum(1).mean() - log_a.diagonal().mean()


def joint_info_nce(t: Any, x: Any, y: Any) -> Any:
    x, y = t.unit(x), t.unit(y)
    oneself, queries, keys = t.eye(len(x)), x @ x.T / TAU, y @ y.T / TAU
    scores = x @ y.T / TAU
    parts = [scores, *(t.where(oneself, -inf, part) for part in (queries, scores.T, keys))]
    return in_turn(t, t.concat(parts, 1))


def views(t: Any, x: Any, y: Any, tau: float) -> tuple[Any, Any, Any]:
    """Scores of all views, positive scores, and the mask of a view with itself."""
    z = t.unit(t.concat([x, y]))
    positive = (z[: len(x)] * z[len(x) :]).sum(1) / tau
    return z @ z.T / tau, t.concat([positive, positive]), t.eye(len(z))


def partners(t: Any, n: int) -> Any:
    """Mask of a view with its partner and with itself."""
    own = t.eye(n)
    return t.concat([t.concat([own, own], 1), t.concat([own, own], 1)])


def nt_xent(t: Any, x: Any, y: Any) -> Any:
    scores, positive, oneself = views(t, x, y, TAU)
    return (t.logsumexp(t.where(oneself, -inf, scores), 1) - positive).mean()


def dcl(t: Any, x: Any, y: Any) -> Any:
    scores, positive, _ = views(t, x, y, TAU)
    return (t.logsumexp(t.where(partners(t, len(x)), -inf, scores), 1) - positive).mean()


def dclw(t: Any, x: Any, y: Any) -> Any:
    scores, positive, _ = views(t, x, y, TAU)
    factors = 2 - len(scores) * t.softmax(TAU * positive / 0.5, 0)
    return (t.logsumexp(t.where(partners(t, len(x)), -inf, scores), 1) - factors * positive).mean()


def hcl(t: Any, x: Any, y: Any) -> Any:
    scores, positive, _ = views(t, x, y, 0.5)
    m, own = len(scores) - 2, t.exp(positive)
    ratios = t.where(partners(t, len(x)), 0.0, t.exp(scores))
    hard = m * (ratios * ratios).sum(1) / ratios.sum(1)
    negatives = t.clip((hard - 0.1 * m * own) / 0.9, m * e**-2, inf)
    return t.log1p(negatives / own).mean()


def moco_v3(t: Any, query_a: Any, query_b: Any, key_a: Any, key_b: Any) -> Any:
    return 2 * TAU * sum(in_turn(t, cosines(t, *pair) / TAU) for pair in ((query_a, key_b), (query_b, key_a)))


def nnclr(t: Any, view_b: Any, view_a: Any, support: Any) -> Any:
    nearest = support[t.argmax(cosines(t, view_a, support), 1)]
    return in_turn(t, cosines(t, nearest, view_b) / TAU)


def proto_nce(t: Any, x: Any, prototypes: Any, assignments: Any, concentrations: Any) -> Any:
    return t.cross_entropy(cosines(t, x, prototypes) / concentrations, assignments)


def concentrations(t: Any, x: Any, prototypes: Any, assignments: Any) -> Any:
    distances = t.norm(x - prototypes[assignments], 1)
    size = t.sum_by(distances * 0 + 1, assignments, len(prototypes))
    phi = t.sum_by(distances, assignments, len(prototypes)) / (size * t.log(size + 10))
    phi = t.clip(phi, t.quantile(phi, 0.1), t.quantile(phi, 0.9))
    return TAU * phi / phi.mean()


def distillation(t: Any, x: Any, y: Any, teacher_x: Any, teacher_y: Any) -> Any:
    targets = t.softmax(cosines(t, teacher_x, teacher_y) / 0.07, 1)
    return -(targets * t.log_softmax(cosines(t, x, y) / TAU, 1)).sum(1).mean()


def gist_embed(t: Any, x: Any, y: Any, guide_x: Any, guide_y: Any) -> Any:
    guide = cosines(t, guide_x, guide_y)
    return in_turn(t, t.where(guide > guide.diagonal()[:, None], -inf, cosines(t, x, y) / TAU))


def sogclr(t: Any, x: Any, y: Any, log_u: Any) -> Any:
    scores = cosines(t, x, y) / TAU
    ratios = t.exp(scores - scores.diagonal()[:, None])
    now = t.where(t.eye(len(x)), 0.0, ratios).sum(1) / (len(x) - 1)
    average = t.stop(0.1 * t.exp(log_u) + 0.9 * now)
    return (t.log(average) + (now - t.stop(now)) / average).mean()


def matryoshka(t: Any, x: Any, y: Any) -> Any:
    widths = (x.shape[1], x.shape[1] // 2, x.shape[1] // 4)
    return sum(both_ways(t, cosines(t, x[:, :d], y[:, :d]) / TAU) for d in widths)


def nested_clip(x: Any, y: Any) -> Any:
    widths = (x.shape[1], x.shape[1] // 2, x.shape[1] // 4)
    return pnce.matryoshka(pnce.clip, widths)(x, y, logit_scale=1 / TAU)


def soft_positives(t: Any, x: Any, y: Any, targets: Any) -> Any:
    return -(targets * t.log_softmax(cosines(t, x, y) / TAU, 1)).sum(1).mean()


def cosent_of(t: Any, similarities: Any, grades: Any) -> Any:
    scores = 20 * similarities
    differences = scores[None, :] - scores[:, None]
    differences = t.where(grades[:, None] > grades[None, :], differences, -inf).reshape(-1)
    return t.logsumexp(t.concat([0 * scores[:1], differences]), 0)


def cosent(t: Any, x: Any, y: Any, grades: Any) -> Any:
    return cosent_of(t, (t.unit(x) * t.unit(y)).sum(1), grades)


def angle(t: Any, x: Any, y: Any, grades: Any) -> Any:
    half = x.shape[1] // 2
    a, b, c, d = x[:, :half], x[:, half:], y[:, :half], y[:, half:]
    real, imaginary = (a * c + b * d).sum(1), (b * c - a * d).sum(1)
    return cosent_of(t, t.abs(real + imaginary) / (t.norm(x, 1) * t.norm(y, 1)), grades)


def info_nce(**options: Any) -> Any:
    return partial(pnce.info_nce, temperature=TAU, **options)


SIMILARITIES: Final[Mapping[str, Callable[..., Any]]] = {
    "cosine": cosines,
    "dot": lambda _, x, y: x @ y.T,
    "neg_sq_euclidean": lambda t, x, y: -t.squares(x, y),
    "neg_euclidean": lambda t, x, y: -t.distances(x, y),
    "cauchy": lambda t, x, y: -t.log1p(t.squares(x, y)),
}


def by(similarity: str) -> Any:
    """InfoNCE by a similarity, as a formula."""
    return lambda t, x, y: in_turn(t, SIMILARITIES[similarity](t, x, y) / TAU)


ROWS: Final = (
    Row(name="info_nce", given="x y", ours=info_nce(), formula=by("cosine"), peers=peers.IN_BATCH),
    *(
        Row(name="info_nce", way=name, given="x y", ours=info_nce(similarity=name), formula=by(name))
        for name in SIMILARITIES
        if name != "cosine"
    ),
    Row(
        name="info_nce",
        way="bilinear",
        given="x y matrix",
        ours=lambda x, y, w: pnce.info_nce(x, y, temperature=TAU, similarity=pnce.similarities.bilinear(w)),
        formula=lambda t, x, y, w: in_turn(t, x @ w @ y.T / TAU),
    ),
    Row(
        name="info_nce",
        way="max_sim",
        given="tokens document",
        ours=lambda x, y: pnce.info_nce(x, y, temperature=1.0, similarity=pnce.similarities.max_sim()),
        formula=max_sim,
    ),
    Row(
        name="info_nce",
        way="normalized",
        given="x y",
        ours=lambda x, y: pnce.info_nce(
            x, y, temperature=TAU, similarity=pnce.similarities.normalized("neg_sq_euclidean")
        ),
        formula=lambda t, x, y: by("neg_sq_euclidean")(t, t.unit(x), t.unit(y)),
    ),
    Row(
        name="info_nce",
        way="elementwise",
        given="x y",
        ours=info_nce(
            similarity=pnce.similarities.elementwise(
                "neg_sq_euclidean", lambda g: 1.0 / (1.0 - g), lambda g: 1.0 / ((1.0 - g) * (1.0 - g))
            )
        ),
        formula=lambda t, x, y: in_turn(t, 1 / (1 + t.squares(x, y)) / TAU),
    ),
    Row(
        name="info_nce",
        way="scaled_columns",
        given="x y | row_weights",
        ours=lambda x, y, w: pnce.info_nce(
            x, y, temperature=TAU, similarity=pnce.similarities.scaled_columns("cosine", w)
        ),
        formula=lambda t, x, y, w: in_turn(t, cosines(t, x, y) * w / TAU),
    ),
    Row(
        name="info_nce",
        way="shifted_columns",
        given="x y | log_q",
        ours=lambda x, y, q: pnce.info_nce(
            x, y, temperature=TAU, similarity=pnce.similarities.shifted_columns("cosine", q)
        ),
        formula=lambda t, x, y, q: in_turn(t, cosines(t, x, y) / TAU + q),
    ),
    Row(
        name="info_nce",
        way="symmetric",
        given="x y",
        ours=info_nce(symmetric=True),
        formula=lambda t, x, y: both_ways(t, cosines(t, x, y) / TAU),
    ),
    Row(
        name="info_nce",
        way='reduction="none"',
        given="x y | row_weights",
        ours=lambda x, y, w: (info_nce(reduction="none")(x, y) * w).sum(),
        formula=lambda t, x, y, w: (
            t.cross_entropy(cosines(t, x, y) / TAU, t.arange(len(x)), reduction="none") * w
        ).sum(),
    ),
    Row(
        name="info_nce",
        way="mask",
        given="x y | mask",
        ours=lambda x, y, mask: pnce.info_nce(x, y, temperature=TAU, mask=mask),
        formula=lambda t, x, y, mask: in_turn(t, t.where(mask, cosines(t, x, y) / TAU, -inf)),
    ),
    Row(
        name="info_nce",
        way="shared negatives",
        given="x y z",
        ours=info_nce(),
        formula=shared_negatives,
        peers=peers.IN_BATCH,
    ),
    Row(
        name="info_nce",
        way="own negatives",
        given="x y own",
        ours=info_nce(),
        formula=own_negatives,
        peers=peers.PAIRED,
    ),
    Row(
        name="clip",
        given="x y",
        ours=partial(pnce.clip, logit_scale=1 / TAU),
        formula=lambda t, x, y: both_ways(t, cosines(t, x, y) / TAU),
    ),
    Row(name="siglip", given="x y", ours=partial(pnce.siglip, logit_scale=1 / TAU, logit_bias=-10.0), formula=siglip),
    Row(name="n_tuple", given="x y", ours=partial(pnce.n_tuple, l2=0.01), formula=n_tuple),
    Row(name="cpc", given="x future projections", ours=pnce.cpc, formula=cpc),
    Row(name="relic", given="x y", ours=pnce.relic, formula=relic),
    Row(name="joint_info_nce", given="x y", ours=partial(pnce.joint_info_nce, temperature=TAU), formula=joint_info_nce),
    Row(name="nt_xent", given="x y", ours=pnce.nt_xent, formula=nt_xent, peers=peers.NT_XENT),
    Row(name="dcl", given="x y", ours=pnce.dcl, formula=dcl),
    Row(name="dclw", given="x y", ours=pnce.dclw, formula=dclw),
    Row(name="flat_nce", given="x y", ours=pnce.flat_nce, formula=dcl),
    Row(name="hcl", given="x y", ours=pnce.hcl, formula=hcl),
    Row(name="moco", given="x y | queue", ours=partial(pnce.moco, temperature=TAU), formula=shared_negatives),
    Row(
        name="moco_v3",
        given="x y | key_x key_y",
        ours=partial(pnce.moco_v3, temperature=TAU),
        formula=moco_v3,
    ),
    Row(
        name="nnclr",
        given="y | x queue",
        ours=lambda view_b, view_a, support: pnce.nnclr(view_a, view_b, support),
        formula=nnclr,
    ),
    Row(name="proto_nce", given="x | prototypes assignments concentrations", ours=pnce.proto_nce, formula=proto_nce),
    Row(name="concentrations", given="| x prototypes assignments", ours=pnce.concentrations, formula=concentrations),
    Row(
        name="two_tower",
        given="x y | log_q",
        ours=lambda x, y, log_q: pnce.two_tower(x, y, log_q=log_q, temperature=TAU),
        formula=lambda t, x, y, log_q: in_turn(t, x @ y.T / TAU - log_q),
    ),
    Row(
        name="distillation",
        given="x y | teacher_x teacher_y",
        ours=partial(pnce.distillation, temperature=TAU),
        formula=distillation,
    ),
    Row(
        name="gist_embed",
        given="x y | teacher_x teacher_y",
        ours=partial(pnce.gist_embed, temperature=TAU),
        formula=gist_embed,
    ),
    Row(name="sogclr", given="x y | log_u", ours=lambda x, y, u: pnce.sogclr(x, y, u)[0], formula=sogclr),
    Row(name="matryoshka", way="clip, 3 widths", given="x y", ours=nested_clip, formula=matryoshka),
    Row(
        name="contrast",
        way="soft positives",
        given="x y | soft",
        ours=lambda x, y, targets: pnce.contrast(
            x, y, objective="info_nce", pairing=pnce.pairings.soft(targets), temperature=TAU
        ),
        formula=soft_positives,
    ),
    Row(name="cosent", given="x y | grades", ours=pnce.cosent, formula=cosent),
    Row(name="angle", given="x y | grades", ours=pnce.angle, formula=angle),
)
