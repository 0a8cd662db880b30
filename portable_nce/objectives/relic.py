"""RELIC's objective: InfoNCE, and the divergence of two views' distributions over the batch."""

from __future__ import annotations

from typing import Any, get_args

from .._core.checks import check_bool, check_choice, check_scalar
from .._core.namespace import namespace_of
from .._core.protocol import Array, Namespace
from .._core.types import AnyArray, RelicDirection, StoppedSide
from .base import Labelled, Objective, Term
from .softmax import info_nce

__all__ = ["DIVERGENCE", "Relic", "divergence", "relic"]

DIRECTIONS: tuple[RelicDirection, ...] = get_args(RelicDirection)
SIDES: tuple[StoppedSide, ...] = get_args(StoppedSide)


class Relic(Labelled):
    """InfoNCE and the divergence of the distributions over the columns, of a row and of the same row transposed."""

    label = "relic"
    alpha: Any
    direction: str
    constant: str | None
    symmetric: bool
    base: Objective
    include_positive: bool


def divergence(xp: Namespace, log_p: Array, log_q: Array) -> Array:
    """``p log(p / q) - p + q``, which adds up to the divergence and of which no part cancels against another.

    With r = log p - log q it is ``p (r + expm1(-r))``; where r is large, ``p (r - 1) + q``.
    """
    ratio = log_p - log_q
    p = xp.exp(log_p)
    near = xp.abs(ratio) < 1
    small = xp.where(near, ratio, xp.zeros_like(ratio))
    large = xp.where(near, xp.zeros_like(ratio), ratio)
    return xp.where(near, p * (small + xp.expm1(-small)), p * (large - 1.0) + xp.exp(log_q))


def _log_share(score: Array, top: Array, rest: Array) -> Array:
    """The logarithm of a negative's share, at most 0; so too of what takes no part, whose score is 0 here."""
    share = (score - top) - rest
    xp = namespace_of(share)
    return xp.where(share > 0, xp.zeros_like(share), share)


def _divergence(score: Array, other: Array, *shares: Array) -> Array:
    xp = namespace_of(score, other, *shares)
    return divergence(xp, _log_share(score, *shares[:2]), _log_share(other, *shares[2:]))


def _divergence_slopes(score: Array, other: Array, *shares: Array) -> tuple[Array, ...]:
    """By log p: ``p r``; by log q: ``q - p``, as ``p expm1(-r)`` where p and q are near."""
    xp = namespace_of(score, other, *shares)
    log_p, log_q = _log_share(score, *shares[:2]), _log_share(other, *shares[2:])
    ratio, p = log_p - log_q, xp.exp(log_p)
    near = xp.abs(ratio) < 1
    difference = xp.where(near, p * xp.expm1(-xp.where(near, ratio, xp.zeros_like(ratio))), xp.exp(log_q) - p)
    by_p = p * ratio
    return by_p, difference, -by_p, -by_p, -difference, -difference


DIVERGENCE = Term(_divergence, _divergence_slopes)
"""The divergence of a negative's two shares, of its score and its transposed, and of two numbers for each: what is to
be taken from the score for the logarithm of the share."""


def relic(
    *,
    alpha: float | AnyArray = 1.0,
    direction: RelicDirection = "a_to_b",
    stop_gradient: StoppedSide | None = None,
    symmetric: bool = False,
    include_positive: bool = True,
) -> Relic:
    r"""Return RELIC's objective: InfoNCE, and how far the two views' distributions over the batch are apart.

    .. math:: \ell_i = -\log p^a_{ii} + \alpha\, \mathrm{KL}(p^a_i \,\Vert\, p^b_i), \qquad
        p^a_{ij} = \mathrm{softmax}_j(g_{ij}), \quad p^b_{ij} = \mathrm{softmax}_j(g_{ji})

    Parameters
    ----------
    alpha : float or array of one entry, default: 1.0
        Weight α of the divergence.
    direction : {"a_to_b", "b_to_a"}, default: "a_to_b"
        ``"b_to_a"`` takes :math:`\mathrm{KL}(p^b_i \,\Vert\, p^a_i)`.
    stop_gradient : {None, "first", "second"}, default: None
        Which of the divergence's two distributions is a constant.
    symmetric : bool, default: False
        Whether to average with the same of the transposed scores.
    include_positive : bool, default: True
        Whether the divergence is that of distributions over all columns, or over the negatives alone (CO2).

    Returns
    -------
    Relic
        The objective, for `contrast` with as many rows as columns. A mask's entry (i, j) holds for both distributions.

    Raises
    ------
    ValueError
        If an option is none of the values named.

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
