"""Value and gradients of functions of scores on NumPy, differentiated by hand.

Each function takes the arrays of its row and returns the value and then a gradient for each array that has one, as a
user without automatic differentiation writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log
from typing import Any, TypeAlias

import numpy as np

Result: TypeAlias = tuple[Any, ...]


def softmax(scores: Any) -> tuple[Any, Any]:
    """Log-sum-exp and softmax of each row."""
    largest = scores.max(1, keepdims=True)
    powers = np.exp(scores - largest)
    sums = powers.sum(1, keepdims=True)
    powers /= sums
    return (np.log(sums) + largest)[:, 0], powers


def softplus(scores: Any) -> tuple[Any, Any]:
    """Softplus and its derivative, from one exponential."""
    power = np.exp(-np.abs(scores))
    return np.log1p(power) + np.maximum(scores, 0), np.where(scores > 0, 1, power) / (1 + power)


def without_diagonal(scores: Any, value: float) -> Any:
    """Copy a matrix, with another diagonal."""
    found = scores.copy()
    np.fill_diagonal(found, value)
    return found


def on_diagonal(gradient: Any, number: Any) -> Any:
    """Add to the diagonal in place."""
    n = len(gradient)
    gradient.flat[:: n + 1] += number
    return gradient


# --- losses -----------------------------------------------------------------------------------------------------------


def info_nce(scores: Any) -> Result:
    total, gradient = softmax(scores)
    gradient /= len(scores)
    return (total - scores.diagonal()).mean(), on_diagonal(gradient, -1 / len(scores))


def masked_info_nce(scores: Any, mask: Any) -> Result:
    return info_nce(np.where(mask, scores, -inf))


def full_softmax(scores: Any, targets: Any) -> Result:
    rows = np.arange(len(scores))
    total, gradient = softmax(scores)
    gradient /= len(scores)
    value = (total - scores[rows, targets]).mean()
    gradient[rows, targets] -= 1 / len(scores)
    return value, gradient


def clip(scores: Any) -> Result:
    (value, gradient), (back, transposed) = info_nce(scores), info_nce(scores.T)
    return (value + back) / 2, (gradient + transposed.T) / 2


def flat_nce(scores: Any) -> Result:
    total, gradient = softmax(without_diagonal(scores, -inf))
    gradient /= len(scores)
    return (total - scores.diagonal()).mean(), on_diagonal(gradient, -1 / len(scores))


def dclw(scores: Any) -> Result:
    n, own = len(scores), scores.diagonal()
    total, gradient = softmax(without_diagonal(scores, -inf))
    shares = np.exp(2 * own - (2 * own).max())
    shares /= shares.sum()
    factors = 2 - n * shares
    by_own = factors - 2 * n * shares * (own - (shares * own).sum())
    return (total - factors * own).mean(), on_diagonal(gradient / n, -by_own / n)


def pooled(scores: Any, positives: Any) -> Result:
    total, gradient = softmax(scores)
    inside, shares = softmax(np.where(positives, scores, -inf))
    return (total - inside).mean(), (gradient - shares) / len(scores)


def each(scores: Any, positives: Any) -> Result:
    total, gradient = softmax(scores)
    shares = positives / positives.sum(1, keepdims=True, dtype=scores.dtype)
    return (total - (shares * scores).sum(1)).mean(), (gradient - shares) / len(scores)


def logistic(scores: Any) -> Result:
    values, slopes = softplus(scores)
    value = (values.sum() - scores.diagonal().sum()) / len(scores)
    return value, on_diagonal(slopes, -1) / len(scores)


def relic(scores: Any) -> Result:
    n = len(scores)
    (total_a, a), (total_b, b) = softmax(scores), softmax(scores.T)
    contrast = scores - total_a[:, None] - (scores.T - total_b[:, None])
    own = (a * contrast).sum(1, keepdims=True)
    by_rows = a * (contrast - own) + a
    value = (total_a - scores.diagonal()).mean() + own.mean()
    return value, on_diagonal(by_rows + (b - a).T, -1) / n


def margin_mse(scores: Any, teacher_scores: Any) -> Result:
    n = len(scores)
    differences = teacher_scores - scores
    differences = differences - differences.diagonal()[:, None]
    scale = 1 / (n * (n - 1))
    gradient = -2 * scale * differences
    return scale * (differences**2).sum(), on_diagonal(gradient, -gradient.sum(1))


def contrastive(scores: Any) -> Result:
    n = len(scores)
    far = np.maximum(without_diagonal(scores + 1, 0), 0)
    own = scores.diagonal()
    return ((far**2).sum() + (own**2).sum()) / n**2, on_diagonal(2 * far, 2 * own) / n**2


def triplet(scores: Any) -> Result:
    n = len(scores)
    excess = without_diagonal(scores - scores.diagonal()[:, None] + 0.2, 0)  # d_p - d_n + m
    active = (excess > 0).astype(scores.dtype) / (n * (n - 1))
    return np.maximum(excess, 0).sum() / (n * (n - 1)), on_diagonal(active, -active.sum(1))


def hard_triplet(scores: Any) -> Result:
    n = len(scores)
    rows, others = np.arange(n), without_diagonal(scores, -inf)
    nearest = others.argmax(1)
    excess = others[rows, nearest] - scores.diagonal() + 0.2
    gradient = np.zeros_like(scores)
    gradient[rows, nearest] = (excess > 0) / n
    return np.maximum(excess, 0).mean(), on_diagonal(gradient, -1 / n * (excess > 0))


def semi_hard_triplet(scores: Any) -> Result:
    n = len(scores)
    rows, others, own = np.arange(n), without_diagonal(scores, -inf), scores.diagonal()
    behind = np.where(others < own[:, None], others, -inf).argmax(1)
    farthest = without_diagonal(scores, inf).argmin(1)
    chosen = np.where((others < own[:, None]).sum(1) > 1, behind, farthest)
    excess = scores[rows, chosen] - own + 0.2
    gradient = np.zeros_like(scores)
    gradient[rows, chosen] = (excess > 0) / n
    return np.maximum(excess, 0).mean(), on_diagonal(gradient, -1 / n * (excess > 0))


def cosent(similarities: Any, grades: Any) -> Result:
    scores = 20 * similarities
    differences = np.where(grades[:, None] > grades, scores[None, :] - scores[:, None], -inf)
    largest = max(differences.max(), 0)
    powers = np.exp(differences - largest)
    total = powers.sum() + np.exp(-largest)
    powers /= total
    return np.log(total) + largest, 20 * (powers.sum(0) - powers.sum(1))


# --- bounds -----------------------------------------------------------------------------------------------------------


def bound(loss: Callable[..., Result]) -> Callable[..., Result]:
    """Make log N minus a loss."""

    def of_scores(scores: Any) -> Result:
        value, gradient = loss(scores)
        return log(len(scores)) - value, -gradient

    return of_scores


def fdv(scores: Any) -> Result:
    return log(len(scores)) - info_nce(scores)[0], -flat_nce(scores)[1]


def dual(scores: Any, u: Any) -> Result:
    n = len(scores)
    ratios = np.exp(without_diagonal(scores - (scores.diagonal() + u)[:, None], -inf))
    sums = ratios.sum(1) / (n - 1)
    by_u = (sums - 1) / n
    return (1 - u - sums).mean(), on_diagonal(-ratios / (n * (n - 1)), sums / n), by_u


def dual_critic(scores: Any) -> Result:
    value, gradient = flat_nce(scores)
    n = len(scores)
    return n * (value - log(n - 1)), n * gradient


def _mean_exp(scores: Any) -> tuple[Any, Any]:
    """Log of the mean exponential off the diagonal, and its gradient."""
    n = len(scores)
    largest = scores.max()
    powers = np.exp(without_diagonal(scores - largest, -inf))
    total = powers.sum()
    powers /= total
    return np.log(total / (n * (n - 1))) + largest, powers


def dv(scores: Any) -> Result:
    log_mean, shares = _mean_exp(scores)
    return scores.diagonal().mean() - log_mean, on_diagonal(-shares, 1 / len(scores))


def mine(scores: Any, old: Any) -> Result:
    log_mean, shares = _mean_exp(scores)
    factor = 1 / (0.99 * np.exp(old - log_mean) + 0.01)
    return scores.diagonal().mean() - log_mean, on_diagonal(-factor * shares, 1 / len(scores))


def tuba(scores: Any, log_baseline: Any) -> Result:
    n = len(scores)
    ratios = np.exp(without_diagonal(scores - log_baseline[:, None], -inf))
    ratios /= n * (n - 1)
    sums = ratios.sum(1)
    value = 1 + (scores.diagonal() - log_baseline).mean() - sums.sum()
    return value, on_diagonal(-ratios, 1 / n), sums - 1 / n


def nwj(scores: Any) -> Result:
    return tuba(scores, np.ones(len(scores), scores.dtype))[:2]


def js(scores: Any) -> Result:
    n = len(scores)
    values, slopes = softplus(scores)
    own = scores.diagonal()
    at_own, slopes_own = softplus(-own)
    value = -at_own.mean() - (values.sum() - values.diagonal().sum()) / (n * (n - 1))
    return value, on_diagonal(without_diagonal(-slopes, 0) / (n * (n - 1)), slopes_own / n)


def js_mi(scores: Any) -> Result:
    return nwj(scores + 1)[0], js(scores)[1]


def smile(scores: Any) -> Result:
    return scores.diagonal().mean() - _mean_exp(np.clip(scores, -5, 5))[0], js(scores)[1]


def club(scores: Any) -> Result:
    n = len(scores)
    own = scores.diagonal().sum()
    gradient = np.full_like(scores, -1 / (n * (n - 1)))
    return own / n - (scores.sum() - own) / (n * (n - 1)), on_diagonal(gradient, 1 / n + 1 / (n * (n - 1)))


def leave_one_out(scores: Any) -> Result:
    value, gradient = flat_nce(scores.T)
    return log(len(scores) - 1) - value, -gradient.T


def barber_agakov(scores: Any) -> Result:
    return 1.5 + scores.mean(), np.full_like(scores, 1 / len(scores))


def vub(scores: Any, log_marginal: Any) -> Result:
    return (scores - log_marginal).mean(), np.full_like(scores, 1 / len(scores))


def _anchored(own: Any, noise: Any, nu: float) -> tuple[Any, Any, Any]:
    """Mean of A + nu / k B over rows; noise of -inf does not count. Gradients by own and by noise scores."""
    rows, k = noise.shape
    k -= int(noise[0, 0] == -inf)
    every = np.concatenate([own[:, None], np.full_like(own[:, None], log(nu)), noise], 1)
    total, shares = softmax(every)
    rest = 1 - shares[:, 2:]  # what is left without one sample
    rest[noise == -inf] = 1
    paired = total + np.log(rest).sum(1) / k - own
    anchored, at_anchor = softmax(every[:, 1:])
    value = (paired + nu / k * (anchored - log(nu))).mean()
    inverse = np.where(noise == -inf, 0, 1 / rest)
    kept = inverse.sum(1, keepdims=True) / k  # each omission but one's own shares the total
    by_noise = shares[:, 2:] * (kept - inverse / k) + nu / k * at_anchor[:, 1:]
    return value, (shares[:, 0] * kept[:, 0] - 1) / rows, by_noise / rows


def info_nce_anchor(scores: Any) -> Result:
    n = len(scores) - 1
    value, by_own, by_noise = _anchored(scores.diagonal(), without_diagonal(scores, -inf), 1.0)
    return (1 + 1 / n) * log(n + 1) - value, on_diagonal(-by_noise, -by_own)


def interpolated(scores: Any, log_baseline: Any) -> Result:
    """With alpha of 1/2."""
    n = len(scores)
    own, m = scores.diagonal(), n * (n - 1)
    total, shares = softmax(scores)
    left = 1 - shares
    logs = np.log(left) + (total - log(n - 1) + log(0.5))[:, None]  # leave-one-out means
    baseline = (log_baseline + log(0.5))[:, None]
    mixed = np.logaddexp(logs, baseline)
    weight = np.exp(logs - mixed)  # slope of b by the leave-one-out mean
    at_own = mixed.diagonal()
    ratios = np.exp(without_diagonal(scores - at_own[:, None], -inf)) / m
    sums = ratios.sum(1)
    value = 1 + own.mean() - (mixed.sum() - at_own.sum()) / m - sums.sum()
    by_mixed = on_diagonal(without_diagonal(np.full_like(scores, -1 / m), 0), sums)
    slopes = by_mixed * weight / left
    gradient = shares * (slopes.sum(1, keepdims=True) - slopes) - ratios
    return value, on_diagonal(gradient, 1 / n), (by_mixed * (1 - weight)).sum(1)


# --- densities --------------------------------------------------------------------------------------------------------


def negative_sampling(data: Any, noise: Any) -> Result:
    n = len(data)
    (own, by_own), (others, by_noise) = softplus(-data), softplus(noise)
    return (own.sum() + others.sum()) / n, -by_own / n, by_noise / n


def local_nce(data: Any, noise: Any, data_log_q: Any, noise_log_q: Any) -> Result:
    shift = log(noise.shape[1])
    return negative_sampling(data - shift - data_log_q, noise - shift - noise_log_q)


def nre_a(data: Any, noise: Any) -> Result:
    n, k = noise.shape
    (own, by_own), (others, by_noise) = softplus(-data), softplus(noise)
    return (own.sum() + others.sum() / k) / (2 * n), -by_own / (2 * n), by_noise / (2 * n * k)


def nre_b(data: Any, noise: Any) -> Result:
    total, shares = softmax(np.concatenate([data[:, None], noise], 1))
    return (total - data).mean(), (shares[:, 0] - 1) / len(data), shares[:, 1:] / len(data)


def ranking_nce(data: Any, noise: Any, data_log_q: Any, noise_log_q: Any) -> Result:
    return nre_b(data - data_log_q, noise - noise_log_q)


def sampled_softmax(data: Any, noise: Any, data_log_q: Any, noise_log_q: Any) -> Result:
    value, *gradients = ranking_nce(data, noise, data_log_q, noise_log_q)
    return value - data_log_q.mean() - log(noise.shape[1] + 1), *gradients


def anchored(data: Any, noise: Any, data_log_q: Any, noise_log_q: Any) -> Result:
    return _anchored(data - data_log_q, noise - noise_log_q, 1.0)


def nre_c(data: Any, noise: Any) -> Result:
    value, *gradients = _anchored(data, noise, float(noise.shape[1]))
    return value / 2, *(gradient / 2 for gradient in gradients)


def balance_penalty(data: Any, noise: Any) -> Result:
    n, k = noise.shape
    own, others = 1 / (1 + np.exp(-data)), 1 / (1 + np.exp(-noise))
    excess = own.mean() + others.mean() - 1
    return excess**2, 2 * excess * own * (1 - own) / n, 2 * excess * others * (1 - others) / (n * k)


def log_partition(noise: Any, noise_log_q: Any) -> Result:
    total, shares = softmax(noise - noise_log_q)
    return total.sum() - len(noise) * log(noise.shape[1]), shares


def recover_log_prob(scores: Any, log_q: Any) -> Result:
    total, shares = softmax(scores + log_q)
    return (scores + log_q - total[:, None]).mean(), (1 - shares.shape[1] * shares) / scores.size


def self_normalization(scores: Any, log_q: Any) -> Result:
    """Mean plus standard deviation plus mean effective sample size."""
    n = len(scores)
    total, shares = softmax(scores - log_q)
    std, size = total.std(), 1 / (shares**2).sum(1, keepdims=True)
    by_total = 1 + (total - total.mean()) / std
    gradient = shares * (by_total[:, None] + 2 * size - 2 * size**2 * shares)
    return total.mean() - log(scores.shape[1]) + std + size.mean(), gradient / n
