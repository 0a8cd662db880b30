"""Pairwise objectives: elementwise functions of a score, with slopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from .._core.checks import (
    check_choice,
    check_scalar,
    explained,
)
from .._core.equality import Record
from .._core.namespace import is_number, namespace_of
from .._core.numerics import relu, relu_slope, softplus_and_sigmoid
from .._core.protocol import Array
from .._core.registry import adapter_of
from .._core.types import AnyArray, Averaging, DivideBy
from .base import Pairwise, Term

__all__ = ["AVERAGES", "contrastive", "logistic"]

AVERAGES: tuple[Averaging, ...] = get_args(Averaging)

Fused = Callable[..., tuple[Array, tuple[Array | None, ...]]]
"""Value and slopes of a term; a slope of None, by a parameter, is 0."""


def fused_term(fused: Fused) -> Term:
    """Term whose value and slopes are computed together."""
    return Term(_Value(fused))._replace(fused=fused)


class _Value(Record):
    """Values of a function that also returns slopes."""

    fused: Fused

    def __call__(self, *arguments: Array) -> Array:
        return self.fused(*arguments, bounded=False, need_grad=False)[0]


@explained
def logistic(*, bias: float | AnyArray = 0.0, divide_by: DivideBy = "rows", balance: bool = False) -> Pairwise:
    r"""Return the logistic objective: an independent binary classification of every pair.

    .. math:: \ell_i = \sum_{j \in P(i)} \log(1 + e^{-z_{ij}}) + \sum_{j \in Q(i)} \log(1 + e^{z_{ij}}),
        \qquad z_{ij} = g_{ij} + b

    Parameters
    ----------
    bias : float or array of one entry, default: 0.0
        Bias b; differentiable if an array.
    divide_by : {"rows", "pairs", "active"}, default: "rows"
        Divisor of a mean: the number of rows (SigLIP), of pairs, or of pairs whose loss is not 0.
    balance : bool, default: False
        Whether the mean is the sum of the mean over positives and the mean over negatives.

    Returns
    -------
    Pairwise
        The objective, for `contrast`.

    Raises
    ------
    ValueError
        If `divide_by` is not one of the listed values.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.contrast(np.eye(3), np.eye(3), objective=pnce.objectives.logistic(bias=-1.0), temperature=0.5)
    array(0.93978...)
    """
    check_scalar("bias", bias)
    return Pairwise(
        _LOGISTIC[0], _LOGISTIC[1], parameters=(bias,), divide_by=divide_by, balance=balance, label="logistic"
    )


# With z = g + b: log(1 + e^-z) with slope -sigmoid(-z) for positives, log(1 + e^z) with slope sigmoid(z) for negatives.


Slopes = tuple[Array | None, ...]


def _logistic_positive(score: Array, bias: Array, *, bounded: bool, need_grad: bool) -> tuple[Array, Slopes]:
    z = score + bias
    value, slope = softplus_and_sigmoid(namespace_of(z), -z, bounded=bounded, need_slope=need_grad)
    return value, (-slope,) * 2 if need_grad else ()


def _logistic_negative(score: Array, bias: Array, *, bounded: bool, need_grad: bool) -> tuple[Array, Slopes]:
    z = score + bias
    value, slope = softplus_and_sigmoid(namespace_of(z), z, bounded=bounded, need_slope=need_grad)
    return value, (slope, slope) if need_grad else ()


_LOGISTIC = (fused_term(_logistic_positive), fused_term(_logistic_negative))


@explained
def contrastive(
    *,
    margin: float | AnyArray = 1.0,
    positive_margin: float | AnyArray = 0.0,
    positive_power: int = 2,
    negative_power: int = 2,
    average: Averaging = "all",
    balance: bool = False,
) -> Pairwise:
    r"""Return the contrastive objective: positives attract, negatives repel up to a margin.

    .. math:: \ell_i = \sum_{j \in P(i)} \max(d_{ij} - m^+, 0)^a + \sum_{j \in Q(i)} \max(m - d_{ij}, 0)^b,
        \qquad d_{ij} = -g_{ij}

    Parameters
    ----------
    margin : float or array of one entry, default: 1.0
        Margin m; negatives farther apart have no loss.
    positive_margin : float or array of one entry, default: 0.0
        Margin m⁺; positives closer than this have no loss.
    positive_power, negative_power : {1, 2}, default: 2
        Powers a and b.
    average : {"all", "nonzero"}, default: "all"
        Whether the mean is over all pairs, or over those whose loss is not 0.
    balance : bool, default: False
        Whether the mean is the sum of the mean over positives and the mean over negatives.

    Returns
    -------
    Pairwise
        The objective, for `contrast` with a similarity that is minus a distance.

    Raises
    ------
    ValueError
        If an option is not one of the listed values.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, y = np.asarray([[0.0, 0.0], [1.0, 0.0]]), np.asarray([[0.5, 0.0], [1.0, 0.5]])
    >>> apart = pnce.objectives.contrastive(margin=1.0)
    >>> pnce.contrast(x, y, objective=apart, similarity="neg_euclidean")
    array(0.1875)
    """
    check_scalar("margin", margin)
    check_scalar("positive_margin", positive_margin)
    for name, power in (("positive_power", positive_power), ("negative_power", negative_power)):
        if not is_number(power) or power not in {1, 2}:
            raise ValueError(f"{name}: expected 1 or 2, got {power!r}")
    check_choice("average", average, AVERAGES)
    objective = Pairwise(
        _ATTRACT[int(positive_power)],
        _REPEL[int(negative_power)],
        parameters=(positive_margin, margin),
        divide_by="pairs" if average == "all" else "active",
        balance=balance,
        label="contrastive",
    )
    objective.names = ("positive_margin", "margin")
    return objective


class _Hinge(Record):
    """Power of a hinge of the distance d = -g: ``max(d - m+, 0)^a`` for positives, ``max(m - d, 0)^b`` for negatives.

    Both terms take both margins. Hadsell, Chopra and LeCun (2006), equation 4, has a = b = 2.
    """

    attracts: bool
    power: int

    def __call__(
        self, score: Array, positive_margin: Array, margin: Array, *, bounded: bool, need_grad: bool
    ) -> tuple[Array, tuple[Array, ...]]:
        del bounded
        limit, sign = (-positive_margin, -1.0) if self.attracts else (margin, 1.0)
        xp = namespace_of(score, limit)
        hinge = limit - score if self.attracts else limit + score
        value, slope = relu(xp, hinge), None
        # The slope of max(t, 0)² by t is 2 max(t, 0); by the score and the margin, the sign is opposite for positives.
        if need_grad:
            slope = value * (2.0 * sign) if self.power > 1 else relu_slope(xp, hinge) * sign
        if self.power > 1:
            value = adapter_of(value).times_in_place(value, value)
        slopes = (slope, slope, None) if self.attracts else (slope, None, slope)
        return value, slopes if need_grad else ()


_ATTRACT, _REPEL = ({power: fused_term(_Hinge(attracts, power)) for power in (1, 2)} for attracts in (True, False))
