"""Bounds on mutual information, and their formulas."""

from __future__ import annotations

from functools import partial
from math import log
from typing import Any, Final

from portable_nce import bounds

from . import by_hand
from .embeddings import in_turn
from .rows import Row
from .scores import flat_nce, others


def info_nce(t: Any, scores: Any) -> Any:
    return log(len(scores)) - in_turn(t, scores)


def off_diagonal(t: Any, scores: Any) -> Any:
    """Mean off the diagonal."""
    n = len(scores)
    return others(t, scores, 0.0).sum() / (n * (n - 1))


def log_mean_exp(t: Any, scores: Any) -> Any:
    """Log of the mean exponential off the diagonal."""
    n = len(scores)
    return t.logsumexp(others(t, scores), (0, 1)) - log(n * (n - 1))


def instead(t: Any, value: Any, surrogate: Any) -> Any:
    """Value of one, gradient of the other."""
    return t.stop(value) + surrogate - t.stop(surrogate)


def anchored(t: Any, own: Any, noise: Any, nu: float = 1.0, number: int | None = None) -> Any:
    """Losses of rows with an anchor: the data among all noise but one, in turn, and the anchor among all."""
    k = number or noise.shape[1]
    anchor = 0 * own[:, None] + log(nu)
    total = t.logsumexp(t.concat([own[:, None], anchor, noise], 1), 1)
    paired = total + t.log1p(-t.exp(noise - total[:, None])).sum(1) / k - own
    return paired + nu / k * (t.logsumexp(t.concat([anchor, noise], 1), 1) - log(nu))


def info_nce_anchor(t: Any, scores: Any) -> Any:
    n = len(scores) - 1
    return (1 + 1 / n) * log(n + 1) - anchored(t, scores.diagonal(), others(t, scores), 1.0, n).mean()


def dual(t: Any, scores: Any, u: Any) -> Any:
    ratios = t.exp(t.logsumexp(others(t, scores), 1) - scores.diagonal() - u) / (len(scores) - 1)
    return (1 - u - ratios).mean()


def dual_critic(t: Any, scores: Any) -> Any:
    return (t.logsumexp(others(t, scores), 1) - scores.diagonal() - log(len(scores) - 1)).sum()


def dv(t: Any, scores: Any) -> Any:
    return scores.diagonal().mean() - log_mean_exp(t, scores)


def mine(t: Any, scores: Any, old: Any) -> Any:
    now = t.exp(log_mean_exp(t, scores))
    average = t.stop(0.99 * t.exp(old) + 0.01 * now)
    return instead(t, dv(t, scores), scores.diagonal().mean() - now / average)


def nwj(t: Any, scores: Any) -> Any:
    return scores.diagonal().mean() - off_diagonal(t, t.exp(scores - 1))


def tuba(t: Any, scores: Any, log_baseline: Any) -> Any:
    ratios = t.exp(scores - log_baseline[:, None])
    return 1 + (scores.diagonal() - log_baseline).mean() - off_diagonal(t, ratios)


def interpolated(t: Any, scores: Any, log_baseline: Any) -> Any:
    total = t.logsumexp(scores, 1)[:, None]
    left = total + t.log1p(-t.exp(scores - total)) - log(len(scores) - 1)  # means that leave out one column each
    mixed = t.logaddexp(left + log(0.5), log_baseline[:, None] + log(0.5))
    first = off_diagonal(t, scores.diagonal()[:, None] - mixed)
    return 1 + first - off_diagonal(t, t.exp(scores - mixed.diagonal()[:, None]))


def js(t: Any, scores: Any) -> Any:
    return -t.softplus(-scores.diagonal()).mean() - off_diagonal(t, t.softplus(scores))


def js_mi(t: Any, scores: Any) -> Any:
    return instead(t, nwj(t, scores + 1), js(t, scores))


def smile(t: Any, scores: Any) -> Any:
    value = scores.diagonal().mean() - log_mean_exp(t, t.clip(scores, -5, 5))
    return instead(t, value, js(t, scores))


def club(t: Any, scores: Any) -> Any:
    return scores.diagonal().mean() - off_diagonal(t, scores)


def standard_error(t: Any, scores: Any) -> Any:
    """Jackknife of the NWJ bound over 16 groups of pairs."""
    n, groups, whole = len(scores), 16, nwj(t, scores)
    terms = []
    for group in range(groups):
        first, end = group * n // groups, (group + 1) * n // groups
        left = t.concat([t.arange(first), t.arange(end, n)])
        terms.append((n - end + first) * (whole - nwj(t, scores[left][:, left])))
    return t.sqrt(((t.stack(terms) - sum(terms) / groups) ** 2).sum() * groups / (groups - 1)) / n


def row(name: str, formula: Any, hand: Any, given: str = "scores", **options: Any) -> Row:
    """Make the row of a bound."""
    ours = options.pop("ours", getattr(bounds, name))
    return Row(name=f"bounds.{name}", given=given, ours=ours, formula=formula, by_hand=hand, **options)


ROWS: Final = (
    row("info_nce", info_nce, by_hand.bound(by_hand.info_nce)),
    row("info_nce_anchor", info_nce_anchor, by_hand.info_nce_anchor),
    row("dual", dual, by_hand.dual, "scores u"),
    row("flo", dual, by_hand.dual, "scores u"),
    row("dual_critic", dual_critic, by_hand.dual_critic, ours=lambda scores: bounds.dual_critic(scores).sum()),
    row(
        "fdv",
        lambda t, scores: instead(t, info_nce(t, scores), -flat_nce(t, scores)),
        by_hand.fdv,
    ),
    row("dv", dv, by_hand.dv),
    row("mine", mine, by_hand.mine, "scores | log_mean", ours=lambda scores, old: bounds.mine(scores, old)[0]),
    row("nwj", nwj, by_hand.nwj),
    row("tuba", tuba, by_hand.tuba, "scores log_baseline"),
    row(
        "interpolated",
        interpolated,
        by_hand.interpolated,
        "scores log_baseline",
        ours=lambda scores, log_baseline: bounds.interpolated(scores, 0.5, log_baseline),
    ),
    row("js", js, by_hand.js),
    row("js_mi", js_mi, by_hand.js_mi),
    row("smile", smile, by_hand.smile),
    row("club", club, by_hand.club),
    row(
        "leave_one_out",
        lambda t, scores: log(len(scores) - 1) - flat_nce(t, scores.T),
        by_hand.leave_one_out,
    ),
    row(
        "barber_agakov",
        lambda t, scores: 1.5 + scores.mean(),
        by_hand.barber_agakov,
        "data_scores",
        ours=partial(bounds.barber_agakov, entropy=1.5),
    ),
    row("vub", lambda t, scores, marginal: (scores - marginal).mean(), by_hand.vub, "data_scores | log_marginal"),
    row(
        "standard_error",
        standard_error,
        None,
        "| scores",
        way="of nwj, 16 groups",
        ours=lambda scores: bounds.standard_error(bounds.nwj, scores, groups=16),
    ),
)
