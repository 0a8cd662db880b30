"""RELIC's objective: InfoNCE plus the divergence of two views' distributions over the batch."""

from __future__ import annotations

import math
import sys
from typing import Any, get_args

from .._core.checks import (
    check_bool,
    check_choice,
    check_scalar,
    explained,
)
from .._core.namespace import namespace_of
from .._core.numerics import clipped, softplus
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from .._core.types import AnyArray, RelicDirection, StoppedSide
from .base import Labelled, Objective, RowStatistics
from .pairwise import fused_term
from .softmax import info_nce

__all__ = ["DIVERGENCES", "Relic", "log_probabilities", "relic"]

DIRECTIONS: tuple[RelicDirection, ...] = get_args(RelicDirection)
SIDES: tuple[StoppedSide, ...] = get_args(StoppedSide)


class Relic(Labelled):
    """InfoNCE plus the divergence between the distributions of row i and of column i."""

    label = "relic"
    alpha: Any
    direction: str
    constant: str | None
    symmetric: bool
    base: Objective
    include_positive: bool

    def combined(  # noqa: PLR0917  (all that a row's loss depends on)
        self, base: Array, kl: Array, alpha: Array, log_p: Array, log_q: Array, certain: Array
    ) -> Array:
        """Losses of rows: InfoNCE, and α times the divergence of the negatives, by `kl`, and of the positive.

        `log_p`, `log_q`: log-probabilities of the positive; `certain`: rows with a score of +inf in the
        second distribution, whose other q are then 0: the divergence is infinite unless p is equal, or α is 0.
        """
        xp = namespace_of(base, kl)
        kl = divergence(xp, log_p, log_q) + kl if self.include_positive else kl
        infinite = xp.logical_and(certain, kl > math.sqrt(_log_of_zero(xp, kl)))
        return base + alpha * xp.where(xp.logical_and(infinite, alpha != 0), math.inf, kl)


def divergence(xp: Namespace, log_p: Array, log_q: Array) -> Array:
    """``p log(p / q) - p + q``, non-negative terms that sum to the divergence without cancellation.

    With r = log p - log q it is ``p (r + expm1(-r))``; for large r, ``p (r - 1) + q``.
    """
    ratio = log_p - log_q
    p = xp.exp(log_p)
    near = xp.abs(ratio) < 1
    small = xp.where(near, ratio, xp.zeros_like(ratio))
    large = xp.where(near, xp.zeros_like(ratio), ratio)
    return xp.where(near, p * (small + xp.expm1(-small)), p * (large - 1.0) + xp.exp(log_q))


def log_probabilities(
    row: RowStatistics, top: Array, rest: Array, *, include_positive: bool
) -> tuple[Array, Array, Array, Array]:
    """Log-probability of each row's positive, and two terms to subtract from a negative's score g for its own.

    ``top + rest`` is the lse of the negatives. With the log-odds u, log p of the positive is -softplus(u), which does
    not cancel; that of a negative is ``g - lse(negatives) - softplus(-u)``. The last array marks rows with a score of
    +inf, which has probability 1.
    """
    xp = namespace_of(row.log_odds)
    both = xp.logical_and(row.has_positive, row.has_negative)
    zero = xp.zeros_like(row.log_odds)
    finite = xp.where(xp.isinf(top), xp.zeros_like(top), top)
    log_p = xp.where(both, softplus(xp, row.log_odds), zero)
    rest = xp.where(top == math.inf, math.inf, rest)
    if include_positive:
        rest = rest + xp.where(row.has_positive, softplus(xp, -row.log_odds), zero)
    certain = rest == math.inf
    log_p, rest = (xp.where(x == math.inf, _log_of_zero(xp, x), x) for x in (log_p, rest))
    return -log_p, finite, rest, certain


def _log_of_zero(xp: Namespace, like: Array) -> float:
    """Finite stand-in for ``-log 0``: two of them have the difference 0, and the square is finite."""
    return math.sqrt(float(xp.finfo(like.dtype).max))


def _log_share(score: Array, top: Array, rest: Array, *, finite: bool) -> Array:
    """Log-probability ``(score + top) + rest`` of a negative, without its weight; 0 for a score of +inf.

    That of a pair of weight w is up to ``-log w``; of a masked pair, of score 0 here, it is any number, and limited so
    that nothing overflows: the power 0.4 of the largest number times a stand-in for log 0, the power 0.5, is finite.
    """
    share = score + top
    share += rest
    xp = namespace_of(share)
    most = 0.4 * math.log(min(float(xp.finfo(share.dtype).max), sys.float_info.max))
    share = share if finite else xp.where(share == math.inf, 0.0, share)
    if adapter_of(share).is_plain((share,)):
        return clipped(xp, share, -math.inf, most)
    return xp.where(share > most, most, share)


def _divergence(
    score: Array, other: Array, *shares: Array, bounded: bool, need_grad: bool, finite: bool = False
) -> tuple[Array, tuple[Array, ...]]:
    """``p r + d`` with ``r = log p - log q`` and ``d = q - p``. The slope by log p is ``p r``, by log q ``d``.

    With the sign s of r, d is ``s max(p, q) expm1(-s r)``: no cancellation, and no overflow.
    """
    del bounded
    xp = namespace_of(score, other, *shares)
    log_p, log_q = (_log_share(*x, finite=finite) for x in ((score, *shares[:2]), (other, *shares[2:])))
    adapter, ratio = adapter_of(log_p), log_p - log_q
    p, q = (adapter.exp_in_place(x, bounded=False) for x in (log_p, log_q))
    sign = adapter.times_in_place(xp.astype(xp.less(ratio, 0.0), ratio.dtype), 2.0)
    sign -= 1.0  # that of -r
    difference = adapter.times_in_place(xp.expm1(ratio * sign), xp.maximum(p, q))
    difference = adapter.times_in_place(difference, adapter.times_in_place(sign, -1.0))
    by_p, difference = adapter.computed_once(adapter.times_in_place(p, ratio), difference)
    return by_p + difference, (by_p, difference, by_p, by_p, difference, difference) if need_grad else ()


def _divergence_of_finite(
    score: Array, other: Array, *shares: Array, bounded: bool, need_grad: bool
) -> tuple[Array, tuple[Array, ...]]:
    return _divergence(score, other, *shares, bounded=bounded, need_grad=need_grad, finite=True)


DIVERGENCES = {False: fused_term(_divergence), True: fused_term(_divergence_of_finite)}
"""Divergence term of a negative, from its score and its transposed score, each with two numbers that are added to turn
the score into a log-probability; by whether all scores are known to be finite."""


@explained
def relic(
    *,
    alpha: float | AnyArray = 1.0,
    direction: RelicDirection = "a_to_b",
    stop_gradient: StoppedSide | None = None,
    symmetric: bool = False,
    include_positive: bool = True,
) -> Relic:
    r"""Return RELIC's objective: InfoNCE plus the divergence of the two views' distributions over the batch.

    .. math:: \ell_i = -\log p^a_{ii} + \alpha\, \mathrm{KL}(p^a_i \,\Vert\, p^b_i), \qquad
        p^a_{ij} = \mathrm{softmax}_j(g_{ij}), \quad p^b_{ij} = \mathrm{softmax}_j(g_{ji})

    Parameters
    ----------
    alpha : float or array of one entry, default: 1.0
        Weight α of the divergence.
    direction : {"a_to_b", "b_to_a"}, default: "a_to_b"
        ``"b_to_a"`` takes :math:`\mathrm{KL}(p^b_i \,\Vert\, p^a_i)`.
    stop_gradient : {None, "first", "second"}, default: None
        Distribution of the divergence that is treated as a constant.
    symmetric : bool, default: False
        Whether to average the losses of the scores and of their transpose.
    include_positive : bool, default: True
        Whether the divergence is over all columns, or over the negatives alone (CO2).

    Returns
    -------
    Relic
        The objective, for `contrast` with as many rows as columns. Entry (i, j) of a mask applies to both
        distributions.

    Raises
    ------
    ValueError
        If an option is not one of the listed values.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, y = np.asarray([[1.0, 0.0], [0.0, 1.0]]), np.asarray([[0.8, 0.6], [0.0, 1.0]])
    >>> round(float(pnce.contrast(x, y, objective=pnce.objectives.relic())), 6)
    0.483086
    """
    check_scalar("alpha", alpha)
    check_choice("direction", direction, DIRECTIONS)
    symmetric = check_bool("symmetric", symmetric)
    if stop_gradient is not None:
        check_choice("stop_gradient", stop_gradient, SIDES)
    include_positive = check_bool("include_positive", include_positive)
    return Relic(alpha, direction, stop_gradient, symmetric, info_nce(), include_positive)
