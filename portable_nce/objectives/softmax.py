"""Objectives of the softmax family: functions of the log-odds and of the spread of the positives."""

from __future__ import annotations

import math
from typing import Any, get_args

from .._core.autodiff import stop_gradient
from .._core.checks import (
    check_bool,
    check_choice,
    check_number,
    check_scalar,
    check_scalar_or_rows,
    check_shape,
    check_whole_number,
    explained,
)
from .._core.equality import Record
from .._core.namespace import common_namespace, device_of, is_number, namespace_of
from .._core.numerics import as_scores, sigmoid, softplus, softplus_and_sigmoid
from .._core.protocol import Array
from .._core.types import AnyArray, FlatForm, MultiPositive
from .base import Objective, RowStatistics, Weighted, with_slopes

__all__ = ["MULTI_POSITIVE", "dclw", "flat_nce", "info_nce", "info_nce_anchor"]

MULTI_POSITIVE: tuple[MultiPositive, ...] = get_args(MultiPositive)
FORMS: tuple[FlatForm, ...] = get_args(FlatForm)


@explained
def info_nce(*, multi_positive: MultiPositive = "each") -> Objective:
    r"""Return the InfoNCE objective: the softplus of the log-odds.

    With one positive per row, :math:`\ell_i = \log(1 + e^{u_i})`, :math:`u_i = \mathrm{lse}_{Q(i)} g_{ij} - g_{ii}`;
    a row without negatives has loss 0.

    Parameters
    ----------
    multi_positive : {"each", "pooled", "separate"}, default: "each"
        With several positives, ``"each"`` is the mean over the positives of the negative log-softmax over all columns
        (SupCon's L_out), :math:`\mathrm{lse}_{P \cup Q} - \mathrm{mean}_P`; without negatives it is
        :math:`\mathrm{lse}_P - \mathrm{mean}_P \ge \log |P|`, not 0. ``"pooled"`` adds their probabilities (L_in up to
        a constant, NCA), :math:`\log(1 + e^{u_i})` with :math:`u_i = \mathrm{lse}_Q - \mathrm{lse}_P`. ``"separate"``
        is the mean over the positives, each against the negatives alone (NT-Xent with several views),
        :math:`\mathrm{mean}_p \log(1 + e^{\mathrm{lse}_Q - g_{ip}})`.

    Returns
    -------
    Objective
        The objective, for `contrast`.

    Raises
    ------
    ValueError
        If `multi_positive` is not one of the listed values.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> round(float(pnce.contrast(x, x, objective=pnce.objectives.info_nce(), temperature=0.5)), 6)
    0.239545
    """
    check_choice("multi_positive", multi_positive, MULTI_POSITIVE)
    return _INFO_NCE[multi_positive]


@explained
def flat_nce(
    *, include_positive: bool = False, form: FlatForm = "log", multi_positive: MultiPositive = "each"
) -> Objective:
    r"""Return the FlatNCE objective: the log-odds, or a constant with their gradient.

    Without the positive (FlatNCE⊖, DCL) :math:`\ell_i = u_i`; with it (FlatNCE⊕) the gradient is InfoNCE's. The
    detached forms divide by a constant: :math:`e^{u_i - \mathrm{sg}\,u_i}` and
    :math:`(1 + e^{u_i}) / (1 + \mathrm{sg}\,e^{u_i})` are always 1, with the gradient of the log forms :math:`u_i` and
    :math:`\log(1 + e^{u_i})`.

    Parameters
    ----------
    include_positive : bool, default: False
        Whether the positive is in the denominator.
    form : {"log", "detach"}, default: "log"
        Form of the loss; both have the same gradient.
    multi_positive : {"each", "pooled", "separate"}, default: "each"
        With several positives, ``"each"`` contrasts the negatives with the mean of the positives, ``"pooled"`` with
        their log-sum-exp; ``"separate"`` differs from ``"each"`` only with `include_positive`, as in `info_nce`.

    Returns
    -------
    Objective
        The objective, for `contrast`. Rows without a negative do not count.

    Raises
    ------
    ValueError
        If `form` or `multi_positive` is not one of the listed values.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> round(float(pnce.contrast(x, x, objective=pnce.objectives.flat_nce(), temperature=0.5)), 6)
    -1.306853
    """
    include_positive = check_bool("include_positive", include_positive)
    check_choice("form", form, FORMS)
    check_choice("multi_positive", multi_positive, MULTI_POSITIVE)
    return _FLAT_NCE[include_positive, form, multi_positive]


class _Rows(Record):
    """``f(u)``, or ``s + f(u)``, of the log-odds u and the spread ``s = lse(positives) - mean(positives)``.

    f is softplus with the positive in the denominator, the identity without. With one positive s is 0, so that the tiny
    loss of a saturated row keeps its digits.
    """

    include: bool
    spread: bool

    def __call__(self, row: RowStatistics) -> Any:
        values = row.log_odds
        if self.include:
            xp = namespace_of(values)
            values = xp.where(row.has_negative, softplus(xp, values), xp.zeros_like(values))
        return row.spread + values if self.spread else values

    def slopes(self, row: RowStatistics) -> Any:
        """By u: ``sigmoid(u)``, or 1. By s: 1."""
        xp = namespace_of(row.log_odds)
        one = xp.ones_like(row.log_odds)
        return sigmoid(xp, row.log_odds) if self.include else one, one if self.spread else None, None, None


def _softplus_of_odds(odds: Array, *, bounded: bool, need_grad: bool) -> tuple[Array, Array | None]:
    return softplus_and_sigmoid(namespace_of(odds), odds, bounded=bounded, need_slope=need_grad)


def _odds_of_odds(odds: Array, *, bounded: bool, need_grad: bool) -> tuple[Array, Array | None]:
    del bounded
    return odds, namespace_of(odds).ones_like(odds) if need_grad else None


class _Detached(Record):
    """``exp(f - sg f)``: 1, with the gradient of f."""

    losses: _Rows

    def __call__(self, row: RowStatistics) -> Any:
        value = self.losses(row)
        xp = namespace_of(value)
        constant = stop_gradient(value)
        # inf - inf is NaN; the value of such a row is 1.
        infinite, nothing = xp.isinf(constant), xp.zeros_like(value)
        return xp.exp(xp.where(infinite, nothing, value) - xp.where(infinite, nothing, constant))

    def slopes(self, row: RowStatistics) -> Any:
        """Slopes of f times the value, which is 1 but has second derivatives."""
        one = self(row)
        return tuple(None if slope is None else one * slope for slope in self.losses.slopes(row))


class _OfEveryRow(Record):
    """The losses of rows whose log-odds are infinite where a set is empty: inf without positives, -inf without others.

    A sweep uses no slope by the log-odds of such a row.
    """

    losses: _Rows

    def __call__(self, row: RowStatistics) -> Any:
        xp = namespace_of(row.log_odds)
        odds = xp.where(row.has_positive, row.log_odds, math.inf)
        return self.losses(row._replace(log_odds=xp.where(row.has_negative, odds, -math.inf)))

    def slopes(self, row: RowStatistics) -> Any:
        return self.losses.slopes(row)


def _made(multi_positive: str, *, flat: bool, include: bool, detach: bool = False) -> Objective:
    # Without the positive in the denominator, "separate" equals "each".
    spread = multi_positive == "each" or (multi_positive == "separate" and not include)
    losses: Any = _Rows(include, spread)
    of_odds: Any = _softplus_of_odds if include else _odds_of_odds
    label = "flat_nce" + " with the positive" * include if flat else "info_nce"
    if detach:
        losses, of_odds, label = _Detached(losses), None, f"{label}, detached"
    made = with_slopes(losses, needs_negative=flat, label=f"{label}, {multi_positive}")
    return made._replace(of_odds=of_odds, spreads=spread, separate=include and multi_positive == "separate")


# Built once, so that equal objectives are the same object.
_INFO_NCE = {multi: _made(multi, flat=False, include=True) for multi in MULTI_POSITIVE}
_FLAT_NCE = {
    (include, form, multi): _made(multi, flat=True, include=include, detach=form == "detach")
    for include in (False, True)
    for form in FORMS
    for multi in MULTI_POSITIVE
}
EVERY_INFO_NCE, EVERY_FLAT_NCE = (
    with_slopes(_OfEveryRow(objective.rows), label=f"{name}, every row")._replace(
        of_odds=objective.of_odds, every_row=True
    )
    for name, objective in (("info_nce", _INFO_NCE["pooled"]), ("flat_nce", _FLAT_NCE[False, "log", "pooled"]))
)
"""InfoNCE and FlatNCE for bounds, in which a score of -inf is no mask: every row counts."""


@explained
def dclw(*, temperature: float | AnyArray, sigma: float | AnyArray = 0.5, detach_weights: bool = False) -> Objective:
    r"""Return the weighted decoupled objective (DCLW), with larger weights for hard positives.

    .. math:: \ell_i = \mathrm{lse}_{Q(i)}\, g_{ij} - w_i\, g_{ii}, \qquad
        w_i = 2 - n\, \mathrm{softmax}_i(\tau g_{ii} / \sigma)

    over the n rows that count. With several positives, the log-sum-exp of their scores replaces :math:`g_{ii}`.

    Parameters
    ----------
    temperature : float, or array of one entry or of shape (N,)
        Temperature τ by which the scores were divided, shared or one per row.
    sigma : float or array of one entry, default: 0.5
        Concentration σ > 0 of the weights.
    detach_weights : bool, default: False
        Whether the weights are constants.

    Returns
    -------
    Objective
        The objective, for `contrast`. Rows without a negative do not count.

    Raises
    ------
    ValueError
        If `sigma` is not a positive finite number.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> weighted = pnce.objectives.dclw(temperature=0.5)
    >>> round(float(pnce.contrast(np.eye(3), np.eye(3), objective=weighted, temperature=0.5)), 6)
    -1.306853
    """
    check_scalar_or_rows("temperature", temperature, above=0.0)
    check_scalar("sigma", sigma, above=0.0)
    detach_weights = check_bool("detach_weights", detach_weights)
    given: Any = (temperature, sigma)
    numbers = [float(x) if is_number(x) else x for x in given]  # arrays take no fraction
    return Weighted(_WEIGHTED, _DclwWeights(*numbers, detach_weights), label="dclw")


def _weighted(row: RowStatistics, weight: Array) -> Array:
    """``lse - w s`` as ``u + (1 - w) s``: no cancellation of large scores, since u is their difference."""
    return row.log_odds + (-weight + 1.0) * row.positive


def _weighted_slopes(row: RowStatistics, weight: Array) -> Any:
    return namespace_of(weight).ones_like(weight), None, None, -weight + 1.0, -row.positive


_WEIGHTED = Objective(_weighted, slopes=_weighted_slopes, needs_negative=True, couples_rows=False, label="dclw")


def _smoothed(row: RowStatistics, added: Array) -> Array:
    xp, odds = namespace_of(row.log_odds), row.log_odds
    return softplus(xp, odds) * namespace_of(added).astype(row.has_negative, odds.dtype) + added


def _smoothed_slopes(row: RowStatistics, added: Array) -> Any:
    xp = namespace_of(row.log_odds)
    slope = sigmoid(xp, row.log_odds)
    return xp.where(row.has_negative, slope, xp.zeros_like(slope)), None, None, None, xp.ones_like(added)


SMOOTHED = Objective(_smoothed, slopes=_smoothed_slopes, couples_rows=False, label="info_nce, smoothed")
"""InfoNCE of one positive plus a term per row."""


class _DclwWeights(Record):
    """``w = 2 - n softmax(τ s / σ)`` over the n rows that count."""

    temperature: Any
    sigma: Any
    detach: bool

    def __call__(self, positive: Array, counted: Array) -> Array:
        options = {"temperature": self.temperature, "sigma": self.sigma}
        arrays = {name: value for name, value in options.items() if not is_number(value)}
        xp, (positive, counted, *entered) = common_namespace(scores=positive, counted=counted, **arrays)
        for name, array in zip(arrays, entered, strict=True):
            if len(array.shape) == 1 and array.shape[0] != 1:
                check_shape(name, array, tuple(positive.shape))
            options[name] = xp.astype(xp.reshape(array, (-1,)), positive.dtype)
        logits = as_scores(xp, positive * (options["temperature"] / options["sigma"]))
        logits = xp.where(counted, logits, -math.inf)
        top = stop_gradient(xp.max(logits, axis=0, keepdims=True))
        shares = xp.exp(logits - xp.where(xp.isinf(top), xp.zeros_like(top), top))
        total = xp.sum(shares, axis=0, keepdims=True)
        number = xp.sum(xp.astype(counted, positive.dtype), axis=0, keepdims=True)
        total = xp.where(total == 0, xp.ones_like(total), total)
        # 2 - n p as (2 - n) + n (1 - p): for p near 1, 1 - p is the sum of the other shares, without cancellation.
        places = xp.arange(shares.shape[0], device=device_of(shares))
        largest = xp.argmax(stop_gradient(logits), axis=0, keepdims=True) == places
        others = xp.sum(xp.where(largest, xp.zeros_like(shares), shares), axis=0, keepdims=True)
        most = xp.logical_and(largest, others < shares)
        weight = xp.where(most, (-number + 2.0) + number * (others / total), -number * (shares / total) + 2.0)
        return stop_gradient(weight) if self.detach else weight


@explained
def info_nce_anchor(*, n_columns: int, nu: float = 1.0) -> Objective:
    r"""Return the objective of InfoNCE with an anchor, which learns log ratios without an unknown row offset.

    .. math:: \ell_i = \log\Big(1 + \frac{\nu + \sum_{j \in Q(i)} e^{g_{ij}}}{e^{g_{ii}}}\Big)
        + \frac\nu N \log\Big(1 + \frac1\nu \sum_{j \in Q(i)} e^{g_{ij}}\Big)

    It is the cross-entropy of N + 1 classes, "column j is the positive" and "none is" (the anchor, of prior weight ν
    relative to each other class), times :math:`1 + \nu / N` and up to a constant. The first term is InfoNCE with an
    additional negative of constant score log ν; the second, of the anchor, pushes all scores down. InfoNCE is invariant
    to a function of the row added to its scores; here the optimal scores are :math:`g(x, y) = \log p(y \mid x) / p(y)`.
    Their mean over the positives estimates the mutual information, as in `portable_nce.bounds.info_nce_anchor`.

    The anchor term needs N negatives, but a row has N - 1. The learned log ratios are therefore too large, by about
    1 / N at most, and by far less below log N. `portable_nce.bounds.info_nce_anchor` leaves a negative out of the first
    term instead, and has no such bias.

    Parameters
    ----------
    n_columns : int
        Number N of columns of a row, the positive included; with `across`, of all ranks.
    nu : float, default: 1.0
        Prior weight ν > 0 of the anchor. Towards 0 the objective becomes InfoNCE.

    Returns
    -------
    Objective
        The objective, for `contrast`, with unbounded scores such as ``similarity="dot"``. With several positives it is
        the mean over them, as in `info_nce` with ``"each"``; a row without negatives counts.

    Raises
    ------
    TypeError
        If `n_columns` is not an integer, or `nu` not a number.
    ValueError
        If `n_columns` is less than 1, or `nu` not a positive finite float32 number.

    References
    ----------
    Ryu, Yeddanapudi, Xu and Wornell (2025), "Contrastive Predictive Coding Done Right for Mutual Information
    Estimation", arXiv:2510.25983.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> anchored = pnce.objectives.info_nce_anchor(n_columns=3)
    >>> round(float(pnce.contrast(x, x, objective=anchored, temperature=0.5)), 6)
    0.706957
    """
    columns = check_whole_number("n_columns", n_columns)
    nu = check_number("nu", nu, above=0.0)
    return with_slopes(_Anchored(columns, nu), label="info_nce_anchor")


class _Anchored(Record):
    """``softplus(odds) + ν / N softplus(d)`` with ``odds = log(e^u + ν e^-positive)``, ``d = negative - log ν``.

    The odds are ``u + softplus(-d) = log ν - positive + softplus(d)``; the form with the smaller softplus is used.
    """

    columns: int
    nu: float

    def odds(self, row: RowStatistics) -> tuple[Array, Array, Array]:
        """Log-odds against the positive, against the anchor, and their softplus."""
        xp = namespace_of(row.log_odds)
        nothing = xp.zeros_like(row.log_odds)
        log_nu = xp.log(nothing + self.nu)
        against = xp.where(row.has_negative, row.negative - log_nu, nothing)
        many = xp.logical_and(row.has_negative, against > 0)
        small = xp.where(row.has_negative, xp.log1p(xp.exp(xp.where(many, -against, against))), nothing)
        odds = xp.where(many, row.log_odds, log_nu - row.positive) + small
        return odds, against, xp.where(many, against, nothing) + small

    def __call__(self, row: RowStatistics) -> Any:
        odds, _, anchored = self.odds(row)
        return row.spread + softplus(namespace_of(odds), odds) + anchored * self.nu / self.columns

    def slopes(self, row: RowStatistics) -> Any:
        """With ``s = sigmoid(odds)`` and ``p = sigmoid(d)``: ``s p``, 1, ``p ν / N`` and ``-s (1 - p)``."""
        odds, against, _ = self.odds(row)
        xp = namespace_of(odds)
        one, nothing = xp.ones_like(odds), xp.zeros_like(odds)
        slope = sigmoid(xp, odds)
        of_negatives = xp.where(row.has_negative, sigmoid(xp, against), nothing)
        of_anchor = xp.where(row.has_negative, sigmoid(xp, -against), one)
        return slope * of_negatives, one, of_negatives * self.nu / self.columns, -slope * of_anchor


def with_z_loss(factor: float) -> Objective:
    """Cross-entropy of one positive plus a factor times the squared log-sum-exp."""
    return with_slopes(_WithSquare(factor), label="info_nce, z_loss")


def of_all_scores(row: RowStatistics) -> tuple[Array, Array, Array]:
    """Mask of u > 0, the cross-entropy ``softplus(u)``, and the log-sum-exp L.

    L is ``positive + softplus(u)``, or ``negative + softplus(-u)`` where u > 0, so that the softplus is at most log 2.
    """
    xp = namespace_of(row.log_odds)
    nothing = xp.zeros_like(row.log_odds)
    many = xp.logical_and(row.has_negative, row.log_odds > 0)
    small = xp.where(row.has_negative, softplus(xp, xp.where(many, -row.log_odds, row.log_odds)), nothing)
    entropy = xp.where(many, row.log_odds, nothing) + small
    return many, entropy, xp.where(many, row.negative, row.positive) + small


class _WithSquare(Record):
    """``softplus(u) + ζ L²`` with the log-sum-exp L of all scores."""

    factor: float

    def __call__(self, row: RowStatistics) -> Any:
        _, entropy, log_sum = of_all_scores(row)
        return entropy + log_sum * log_sum * self.factor

    def slopes(self, row: RowStatistics) -> Any:
        """With ``s = sigmoid(u)``: L has slope s by u, or -(1 - s) where it is computed from the negatives."""
        many, _, log_sum = of_all_scores(row)
        xp = namespace_of(log_sum)
        nothing = xp.zeros_like(log_sum)
        slope = xp.where(row.has_negative, sigmoid(xp, row.log_odds), nothing)
        by_sum = log_sum * (2.0 * self.factor)
        by_odds = slope + by_sum * xp.where(many, -sigmoid(xp, -row.log_odds), slope)
        return by_odds, None, xp.where(many, by_sum, nothing), xp.where(many, nothing, by_sum)
