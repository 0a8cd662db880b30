"""Estimators of densities and ratios, and their formulas."""

from __future__ import annotations

from math import log
from typing import Any, Final

from portable_nce import density

from . import by_hand, peers
from .bounds import anchored
from .rows import Row


def negative_sampling(t: Any, data: Any, noise: Any) -> Any:
    return (t.softplus(-data) + t.softplus(noise).sum(1)).mean()


def local_nce(t: Any, data: Any, noise: Any, data_log_q: Any, noise_log_q: Any) -> Any:
    shift = log(noise.shape[1])
    return negative_sampling(t, data - shift - data_log_q, noise - shift - noise_log_q)


def nre_a(t: Any, data: Any, noise: Any) -> Any:
    return (t.softplus(-data).mean() + t.softplus(noise).mean()) / 2


def nre_b(t: Any, data: Any, noise: Any) -> Any:
    return t.cross_entropy(t.concat([data[:, None], noise], 1), t.zeros(len(data)))


def ranking_nce(t: Any, data: Any, noise: Any, data_log_q: Any, noise_log_q: Any) -> Any:
    return nre_b(t, data - data_log_q, noise - noise_log_q)


def sampled_softmax(t: Any, data: Any, noise: Any, data_log_q: Any, noise_log_q: Any) -> Any:
    ratios = t.concat([(data - data_log_q)[:, None], noise - noise_log_q], 1)
    return (t.logsumexp(ratios, 1) - log(ratios.shape[1]) - data).mean()


def info_nce_anchor(t: Any, data: Any, noise: Any, data_log_q: Any, noise_log_q: Any) -> Any:
    return anchored(t, data - data_log_q, noise - noise_log_q).mean()


def nre_c(t: Any, data: Any, noise: Any) -> Any:
    return anchored(t, data, noise, float(noise.shape[1])).mean() / 2


def balance_penalty(t: Any, data: Any, noise: Any) -> Any:
    return (t.sigmoid(data).mean() + t.sigmoid(noise).mean() - 1) ** 2


def log_partition(t: Any, noise: Any, noise_log_q: Any) -> Any:
    return (t.logsumexp(noise - noise_log_q, 1) - log(noise.shape[1])).sum()


def self_normalization(t: Any, scores: Any, log_q: Any) -> Any:
    log_z = t.logsumexp(scores - log_q, 1) - log(scores.shape[1])
    size = 1 / (t.softmax(scores - log_q, 1) ** 2).sum(1)
    return log_z.mean() + t.std(log_z) + size.mean()


def sum_of_fields(scores: Any, log_q: Any) -> Any:
    found: Any = density.self_normalization(scores, log_q)
    return found.mean + found.std + found.effective_sample_size


def row(name: str, formula: Any, hand: Any, given: str = "data_scores noise_scores", **options: Any) -> Row:
    """Make the row of an estimator."""
    ours = options.pop("ours", getattr(density, name))
    return Row(name=f"density.{name}", given=given, ours=ours, formula=formula, by_hand=hand, **options)


CORRECTED: Final = "data_scores noise_scores | data_log_q log_q"

ROWS: Final = (
    row("local_nce", local_nce, by_hand.local_nce, CORRECTED),
    row("negative_sampling", negative_sampling, by_hand.negative_sampling),
    row("ranking_nce", ranking_nce, by_hand.ranking_nce, CORRECTED),
    row("sampled_softmax", sampled_softmax, by_hand.sampled_softmax, CORRECTED),
    row("info_nce_anchor", info_nce_anchor, by_hand.anchored, CORRECTED),
    row(
        "full_softmax",
        lambda t, scores, targets: t.cross_entropy(scores, targets),
        by_hand.full_softmax,
        "scores | targets",
        peers=peers.TARGETS,
    ),
    row(
        "linear_softmax",
        lambda t, x, weight, targets: t.cross_entropy(x @ weight.T, targets),
        None,
        "x weight | targets",
    ),
    row("nre_a", nre_a, by_hand.nre_a),
    row("nre_b", nre_b, by_hand.nre_b),
    row("nre_c", nre_c, by_hand.nre_c),
    row("balance_penalty", balance_penalty, by_hand.balance_penalty),
    row(
        "log_partition",
        log_partition,
        by_hand.log_partition,
        "noise_scores | log_q",
        ours=lambda scores, log_q: density.log_partition(scores, log_q).sum(),
    ),
    row(
        "recover_log_prob",
        lambda t, scores, log_q: t.log_softmax(scores + log_q, 1).mean(),
        by_hand.recover_log_prob,
        "scores | log_q",
        ours=lambda scores, log_q: density.recover_log_prob(scores, log_q).mean(),
    ),
    row("self_normalization", self_normalization, by_hand.self_normalization, "scores | log_q", ours=sum_of_fields),
)
