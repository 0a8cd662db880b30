"""Objectives: what the scores of a row are worth.

An objective asks an execution for what it needs to know of a score matrix, and says what each row is worth. Most are an
`Objective`: a function of `RowStatistics` that returns the loss of each row, of shape (N,). A `Pairwise` sums one
function over the positives and another over the negatives. The execution, the similarity and the pairing are none of
their business.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from ._core.autodiff import stop_gradient
from ._core.checks import (
    check_bool,
    check_callable,
    check_choice,
    check_floating,
    check_number,
    check_scalar,
    check_shape,
)
from ._core.namespace import device_of, enter, is_array, is_number, namespace_of, together
from ._core.numerics import relu, relu_slope, sigmoid, softplus, softplus_and_sigmoid
from ._core.protocol import Array, Namespace
from ._core.reduction import Losses
from ._execution import Execution, Streamed, Sums
from ._fused import RowLoss, Slopes
from ._pairs import Term
from ._statistics import RowStatistics, RowSums, row_statistics
from ._triples import excess, triple_sums

__all__ = [
    "Objective",
    "Pairwise",
    "RowStatistics",
    "Term",
    "contrastive",
    "dclw",
    "flat_nce",
    "info_nce",
    "logistic",
    "relic",
    "resolve",
    "triplet",
]


_OF_ODDS: dict[Callable[[RowStatistics], Array], Callable[..., tuple[Array, Array]]] = {}


class Objective:
    """A loss per row, and which rows count.

    Parameters
    ----------
    rows : callable
        Takes `RowStatistics`, returns the losses of the rows, shape (N,).
    needs_negative : bool, default: False
        Whether a row without a negative is left out, like every row without a positive, rather than counted.
    slopes : callable, optional
        The derivatives of each row's loss with respect to its own statistics: takes `RowStatistics`, returns those by
        `log_odds`, `spread`, `negative` and `positive`, each of shape (N,), or None for one that is 0 everywhere.
        Array-API code, so that it can be differentiated again. With it, a streamed loss computes its gradient along
        with its value, in one pass instead of two.
    label : str, optional
        What it is called in a representation; the name of `rows` by default.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> hinge = pnce.objectives.Objective(lambda row: np.maximum(row.log_odds + 1.0, 0.0), needs_negative=True)
    >>> pnce.contrast(np.eye(3), np.eye(3), objective=hinge, temperature=0.5)
    array(0.)
    """

    __slots__ = ("label", "needs_negative", "of_odds", "rows", "slopes")

    def __init__(
        self,
        rows: Callable[[RowStatistics], Array],
        *,
        needs_negative: bool = False,
        slopes: Callable[[RowStatistics], Slopes] | None = None,
        label: str | None = None,
    ) -> None:
        check_callable("rows", rows)
        needs_negative = check_bool("needs_negative", needs_negative)
        if slopes is not None:
            check_callable("slopes", slopes)
        self.rows = rows
        self.needs_negative = needs_negative
        self.slopes = slopes
        self.of_odds = None if slopes is None else _OF_ODDS.get(rows)
        self.label = label or getattr(rows, "__name__", type(rows).__name__)

    def __repr__(self) -> str:
        return f"<objective {self.label}>"

    def losses(self, execution: Execution) -> tuple[Losses, ...]:
        """Return the losses of the rows.

        Parameters
        ----------
        execution : Execution
            The score matrix and its pairing, as an execution knows them.

        Returns
        -------
        tuple of Losses
            The values, which rows count, and how often each counts in a mean.
        """
        statistics = execution.statistics()
        values = self.rows(statistics)
        if not is_array(values):
            message = f"objective: expected a function that returns an array, got {type(values).__name__}"
            raise TypeError(message)
        odds = statistics.log_odds
        if type(values) is not type(odds) or values.dtype != odds.dtype:
            xp, _ = enter(statistics=odds, objective=values)
            check_floating(xp, objective=values)
        check_shape("objective", values, tuple(odds.shape))
        return (Losses(values, self.counted(statistics)),)

    def fused(self, execution: Streamed, weights: Array | None, *, symmetric: bool) -> Sums | None:
        """Return the weighted sums of the losses of the rows, computed along with their gradients.

        Parameters
        ----------
        execution : Streamed
            The score matrix and its pairing.
        weights : array, shape (N,), optional
            Weights of the rows.
        symmetric : bool
            Whether the sum over the columns is wanted too.

        Returns
        -------
        tuple of pair of array, or None
            For each direction the sum, and how often each row counts in a mean; None if the objective cannot.
        """
        if (
            self.slopes is None
            or type(self).losses is not Objective.losses
            or type(self).counted is not Objective.counted
        ):
            return None
        return execution.fused_rows(
            RowLoss(self.rows, self.slopes, self.needs_negative, self.of_odds), weights, symmetric=symmetric
        )

    def counted(self, statistics: RowStatistics) -> Array:
        """Return the boolean array (N,) of the rows that count.

        Parameters
        ----------
        statistics : RowStatistics
            The statistics of the rows.

        Returns
        -------
        array
            Boolean, shape (N,).
        """
        if not self.needs_negative:
            return statistics.has_positive
        xp = namespace_of(statistics.log_odds)
        return xp.logical_and(statistics.has_positive, statistics.has_negative)


class Pairwise:
    r"""A sum over the pairs of a row: one function of the scores of positives, another of those of negatives.

    .. math:: \ell_i = \sum_{j \in P(i)} a(g_{ij}) + \sum_{j \in Q(i)} b(g_{ij})

    Parameters
    ----------
    positive, negative : Term, callable or None
        The functions a and b. A plain function has no slopes, and does not stream; None is 0.
    parameters : tuple of float or array, default: ()
        Further arguments of both functions: numbers, or arrays of one entry or of shape (N,); differentiable as arrays.
    divide_by : {"rows", "pairs", "active"}, default: "rows"
        What a mean divides the sum of all rows by: the number of rows that have a pair, of pairs, or of pairs whose
        term is not 0.
    balance : bool, default: False
        Whether a mean is that over the positives plus that over the negatives.
    label : str, optional
        What it is called in a representation.

    Raises
    ------
    ValueError
        If `divide_by` is none of these.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> hinge = pnce.objectives.Pairwise(
    ...     lambda score: np.maximum(1.0 - score, 0.0), lambda score: np.maximum(1.0 + score, 0.0), divide_by="pairs"
    ... )
    >>> pnce.contrast(np.eye(2), np.eye(2), objective=hinge, temperature=0.5)
    array(0.5)
    """

    __slots__ = ("balance", "divide_by", "label", "parameters", "terms")

    def __init__(
        self,
        positive: Term | Callable[..., Array] | None,
        negative: Term | Callable[..., Array] | None,
        *,
        parameters: tuple[Any, ...] = (),
        divide_by: str = "rows",
        balance: bool = False,
        label: str | None = None,
    ) -> None:
        check_choice("divide_by", divide_by, ("rows", "pairs", "active"))
        balance = check_bool("balance", balance)
        if not isinstance(parameters, tuple):
            message = f"parameters: expected a tuple, got {type(parameters).__name__}; write (parameter,)"
            raise TypeError(message)
        for name, term in (("positive", positive), ("negative", negative)):
            if term is not None and not isinstance(term, Term):
                check_callable(name, term)
        self.terms = (_term(positive), _term(negative))
        self.parameters = parameters
        self.divide_by = divide_by
        self.balance = balance
        self.label = label or "pairwise"

    def __repr__(self) -> str:
        return f"<objective {self.label}>"

    def losses(self, execution: Execution) -> tuple[Losses, ...]:
        """Return the sums of the rows.

        Parameters
        ----------
        execution : Execution
            The score matrix and its pairing, as an execution knows them.

        Returns
        -------
        tuple of Losses
            The values, which rows count, and how often each counts in a mean.
        """
        sums = execution.pair_sums(self.terms, _per_row(execution, self.parameters))
        pairs = (sums.number_positive, sums.number_negative)
        numbers = (sums.active_positive, sums.active_negative) if self.divide_by == "active" else pairs
        if self.balance:
            if self.divide_by == "rows":
                xp = namespace_of(sums.positive)
                numbers = tuple(xp.astype(number > 0, number.dtype) for number in pairs)
            return (
                Losses(sums.positive, pairs[0] > 0, numbers[0]),
                Losses(sums.negative, pairs[1] > 0, numbers[1]),
            )
        number = None if self.divide_by == "rows" else numbers[0] + numbers[1]
        return (Losses(sums.positive + sums.negative, pairs[0] + pairs[1] > 0, number),)

    def fused(self, execution: Streamed, weights: Array | None, *, symmetric: bool) -> Sums | None:
        """Return the weighted sums of the rows, computed along with their gradients.

        Parameters
        ----------
        execution : Streamed
            The score matrix and its pairing.
        weights : array, shape (N,), optional
            Weights of the rows.
        symmetric : bool
            Whether the sum over the columns is wanted too.

        Returns
        -------
        tuple of pair of array, or None
            For each direction the sum, and how often each row counts in a mean; None if the objective cannot.
        """
        without = any(term is not None and term.slopes is None for term in self.terms)
        if without or self.balance or type(self).losses is not Pairwise.losses:
            return None
        parameters = _per_row(execution, self.parameters)
        return execution.fused_pairs(self.terms, parameters, self.divide_by, weights, symmetric=symmetric)


class Derived(Objective):
    """An objective whose values are changed, each in its place."""

    __slots__ = ("base", "change")

    def __init__(self, base: AnyObjective, change: Callable[[Array], Array]) -> None:
        super().__init__(change, label=base.label)
        self.base = base
        self.change = change

    def losses(self, execution: Execution) -> tuple[Losses, ...]:
        return tuple(part._replace(values=self.change(part.values)) for part in self.base.losses(execution))


AnyObjective: TypeAlias = Objective | Pairwise


def _term(term: Term | Callable[..., Array] | None) -> Term | None:
    return term if term is None or isinstance(term, Term) else Term(term)


def _per_row(execution: Execution, parameters: tuple[Any, ...]) -> tuple[Array, ...]:
    """The parameters as arrays of one number a row, in the dtype of the scores."""
    nothing = execution.zeros()
    if not parameters:
        return ()
    arrays = {f"parameters[{k}]": p for k, p in enumerate(parameters) if not is_number(p)}
    xp, (nothing, *entered) = enter(scores=nothing, **arrays)
    for name, array in arrays.items():
        if tuple(array.shape) != tuple(nothing.shape):
            check_scalar(name, array)
    supply = iter(entered)
    rows = (p if is_number(p) else xp.astype(next(supply), nothing.dtype) for p in parameters)
    return tuple(nothing + (p if is_number(p) or len(p.shape) == 1 else xp.reshape(p, (1,))) for p in rows)


def info_nce(*, multi_positive: str = "each") -> Objective:
    r"""Return the InfoNCE objective: the softplus of the log-odds.

    With one positive per row, :math:`\ell_i = \log(1 + e^{u_i})`, :math:`u_i = \mathrm{lse}_{Q(i)} g_{ij} - g_{ii}`;
    a row without negatives is worth 0.

    Parameters
    ----------
    multi_positive : {"each", "pooled", "separate"}, default: "each"
        With several positives, ``"each"`` is the mean over the positives of the negative log-softmax over all
        (SupCon's L_out), :math:`\mathrm{lse}_{P \cup Q} - \mathrm{mean}_P`; ``"pooled"`` takes their probabilities
        together (L_in up to a constant, NCA), :math:`\log(1 + e^{u_i})` with
        :math:`u_i = \mathrm{lse}_Q - \mathrm{lse}_P`; ``"separate"`` is the mean over the positives, each against the
        negatives alone (NT-Xent with several views), :math:`\mathrm{mean}_p \log(1 + e^{\mathrm{lse}_Q - g_{ip}})`.

    Returns
    -------
    Objective
        The objective, for `contrast`.

    Raises
    ------
    ValueError
        If `multi_positive` is none of these.

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


def flat_nce(*, include_positive: bool = False, form: str = "log", multi_positive: str = "each") -> Objective:
    r"""Return the FlatNCE objective: the log-odds themselves, or a constant with their gradient.

    Without the positive (FlatNCE⊖) :math:`\ell_i = u_i`, also DCL's; with it (FlatNCE⊕) the gradient is InfoNCE's. The
    detached forms divide by a constant: :math:`e^{u_i - \mathrm{sg}\,u_i}` and
    :math:`(1 + e^{u_i}) / (1 + \mathrm{sg}\,e^{u_i})` are always 1, with the gradient of the log forms :math:`u_i` and
    :math:`\log(1 + e^{u_i})`.

    Parameters
    ----------
    include_positive : bool, default: False
        Whether the positive stands in the denominator.
    form : {"log", "detach"}, default: "log"
        Which of two functions with the same gradient.
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
        If `form` or `multi_positive` is not one of the values named.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> round(float(pnce.contrast(x, x, objective=pnce.objectives.flat_nce(), temperature=0.5)), 6)
    -1.306853
    """
    include_positive = check_bool("include_positive", include_positive)
    check_choice("form", form, ("log", "detach"))
    check_choice("multi_positive", multi_positive, MULTI_POSITIVE)
    return _FLAT_NCE[include_positive, form, multi_positive]


def _pooled(row: RowStatistics) -> Array:
    xp = namespace_of(row.log_odds)
    return xp.where(row.has_negative, softplus(xp, row.log_odds), xp.zeros_like(row.log_odds))


def _each(row: RowStatistics) -> Array:
    # The spread first: with one positive it is 0, and the tiny gradient of a saturated row is added to nothing.
    return row.spread + _pooled(row)


def _log_odds(row: RowStatistics) -> Array:
    return row.log_odds


def _log_odds_each(row: RowStatistics) -> Array:
    return row.log_odds + row.spread


def _pooled_slopes(row: RowStatistics) -> Slopes:
    xp = namespace_of(row.log_odds)
    return sigmoid(xp, row.log_odds), None, None, None


def _each_slopes(row: RowStatistics) -> Slopes:
    xp = namespace_of(row.log_odds)
    return sigmoid(xp, row.log_odds), xp.ones_like(row.log_odds), None, None


def _log_odds_slopes(row: RowStatistics) -> Slopes:
    return namespace_of(row.log_odds).ones_like(row.log_odds), None, None, None


def _log_odds_each_slopes(row: RowStatistics) -> Slopes:
    one = namespace_of(row.log_odds).ones_like(row.log_odds)
    return one, one, None, None


def _softplus_of_odds(odds: Array, *, small: bool) -> tuple[Array, Array]:
    return softplus_and_sigmoid(namespace_of(odds), odds, small=small)


def _odds_of_odds(odds: Array, *, small: bool) -> tuple[Array, Array]:
    del small
    return odds, namespace_of(odds).ones_like(odds)


# With one positive a row and negatives, these need the log-odds alone.
_OF_ODDS.update(
    {_pooled: _softplus_of_odds, _each: _softplus_of_odds, _log_odds: _odds_of_odds, _log_odds_each: _odds_of_odds}
)
_SLOPES: dict[Callable[[RowStatistics], Array], Callable[[RowStatistics], Slopes]] = {
    _pooled: _pooled_slopes,
    _each: _each_slopes,
    _log_odds: _log_odds_slopes,
    _log_odds_each: _log_odds_each_slopes,
}


def _detached_slopes(loss: Callable[[RowStatistics], Array]) -> Callable[[RowStatistics], Slopes]:
    """The slopes times the value, which is 1, but for the derivative of second order."""
    value, slopes = _detached(loss), _SLOPES[loss]

    def rows(row: RowStatistics) -> Slopes:
        one = value(row)
        of_odds, of_spread, _, _ = slopes(row)
        return one * of_odds, None if of_spread is None else one * of_spread, None, None

    return rows


def _detached(loss: Callable[[RowStatistics], Array]) -> Callable[[RowStatistics], Array]:
    def rows(row: RowStatistics) -> Array:
        return _one(loss(row))

    return rows


def _one(value: Array) -> Array:
    """1, with the gradient of the value."""
    xp = namespace_of(value)
    constant = stop_gradient(value)
    # The difference of two infinities is no number; the value of such a row is 1 all the same.
    infinite, nothing = xp.isinf(constant), xp.zeros_like(value)
    return xp.exp(xp.where(infinite, nothing, value) - xp.where(infinite, nothing, constant))


def _separate(xp: Namespace, sums: RowSums, execution: Execution) -> Array:
    """The mean over the positives of the softplus of the negatives' log-sum-exp minus the positive's score.

    The maximum and the logarithm of the rest are handed over apart, so that a constant added to a row cancels exactly.
    """
    top = sums.negative.top
    finite = xp.where(xp.isinf(top), xp.zeros_like(top), top)
    found = execution.pair_sums((_ONE_AGAINST_NEGATIVES, None), (finite, sums.negative.log_total(xp)))
    number = found.number_positive
    mean = found.positive / xp.where(number > 0, number, xp.ones_like(number))
    return xp.where(top == math.inf, xp.full_like(mean, math.inf), mean)


def _against(score: Array, top: Array, rest: Array) -> Array:
    return softplus(namespace_of(score), (top - score) + rest)


def _against_slopes(score: Array, top: Array, rest: Array) -> tuple[Array, ...]:
    slope = sigmoid(namespace_of(score), (top - score) + rest)
    return -slope, slope, slope


_ONE_AGAINST_NEGATIVES = Term(_against, _against_slopes)


class _Separate(Objective):
    """Each positive against the negatives alone; where there is one at most, the other objective is the same."""

    __slots__ = ("detach", "one")

    def __init__(self, one: Objective, *, detach: bool) -> None:
        super().__init__(one.rows, needs_negative=one.needs_negative, label=str(one.label).replace("each", "separate"))
        self.one = one
        self.detach = detach

    def fused(self, execution: Streamed, weights: Array | None, *, symmetric: bool) -> Sums | None:
        single = execution.pairing.one_per_row and (execution.pairing.one_per_column or not symmetric)
        return self.one.fused(execution, weights, symmetric=symmetric) if single else None

    def losses(self, execution: Execution) -> tuple[Losses, ...]:
        sums = execution.sums()
        if sums.number is None:
            return self.one.losses(execution)
        statistics = row_statistics(sums)
        xp = namespace_of(statistics.log_odds)
        values = _separate(xp, sums, execution)
        if self.detach:
            values = _one(values)
        values = xp.where(statistics.has_negative, values, xp.zeros_like(values))
        return (Losses(values, self.counted(statistics)),)


MULTI_POSITIVE = ("each", "pooled", "separate")

# Built once, so that equal objectives are the same object and compiled code is found again.
_INFO_NCE = {
    "each": Objective(_each, slopes=_each_slopes, label="info_nce, each"),
    "pooled": Objective(_pooled, slopes=_pooled_slopes, label="info_nce, pooled"),
}
_INFO_NCE["separate"] = _Separate(_INFO_NCE["each"], detach=False)
_LOG_FORMS = {
    (False, "each"): _log_odds_each,
    (False, "pooled"): _log_odds,
    (True, "each"): _each,
    (True, "pooled"): _pooled,
}
_FLAT_NCE = {
    (include, form, multi): Objective(
        rows if form == "log" else _detached(rows),
        needs_negative=True,
        slopes=_SLOPES[rows] if form == "log" else _detached_slopes(rows),
        label=f"flat_nce{' with the positive' if include else ''}{', detached' if form == 'detach' else ''}, {multi}",
    )
    for (include, multi), rows in _LOG_FORMS.items()
    for form in ("log", "detach")
}
_FLAT_NCE |= {
    (True, form, "separate"): _Separate(_FLAT_NCE[True, form, "each"], detach=form == "detach")
    for form in ("log", "detach")
} | {(False, form, "separate"): _FLAT_NCE[False, form, "each"] for form in ("log", "detach")}


def dclw(*, temperature: float | Array, sigma: float = 0.5, detach_weights: bool = False) -> Objective:
    r"""Return the weighted decoupled objective: positives that are hard to find count more.

    .. math:: \ell_i = \mathrm{lse}_{Q(i)}\, g_{ij} - w_i\, g_{ii}, \qquad
        w_i = 2 - n\, \mathrm{softmax}_i(\tau g_{ii} / \sigma)

    over the n rows that count.

    Parameters
    ----------
    temperature : float or array of one entry
        Temperature τ by which the scores were divided.
    sigma : float, default: 0.5
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
        If `sigma` is not a finite number greater than 0.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> weighted = pnce.objectives.dclw(temperature=0.5)
    >>> round(float(pnce.contrast(np.eye(3), np.eye(3), objective=weighted, temperature=0.5)), 6)
    -1.306853
    """
    check_scalar("temperature", temperature, above=0.0)
    sigma = check_number("sigma", sigma, above=0.0)
    detach_weights = check_bool("detach_weights", detach_weights)

    def rows(row: RowStatistics) -> Array:
        xp, (positive, ratio) = enter(scores=row.positive, temperature=_like(row.positive, temperature))
        counted = xp.logical_and(row.has_positive, row.has_negative)
        logits = positive * (ratio / sigma)
        logits_or_none = xp.where(counted, logits, -math.inf)
        top = stop_gradient(xp.max(logits_or_none, axis=0, keepdims=True))
        top = xp.where(xp.isinf(top), xp.zeros_like(top), top)
        shares = xp.exp(logits_or_none - top)
        total = xp.sum(shares, axis=0, keepdims=True)
        number = xp.sum(xp.astype(counted, positive.dtype), axis=0, keepdims=True)
        # 2 - n p is (2 - n) + n (1 - p): of a share p near 1, what the others have is summed, not subtracted from 1.
        largest = xp.argmax(logits_or_none, axis=0, keepdims=True) == xp.arange(
            shares.shape[0], device=device_of(shares)
        )
        others = xp.sum(xp.where(largest, xp.zeros_like(shares), shares), axis=0, keepdims=True)
        rest = xp.where(largest, others, total - shares) / xp.where(total == 0, xp.ones_like(total), total)
        weight = (2.0 - number) + number * rest
        weight = stop_gradient(weight) if detach_weights else weight
        # lse - w s as w u + (1 - w) lse, so that the slopes by the positive's score do not cancel either.
        return weight * row.log_odds + (1.0 - weight) * row.negative

    return Objective(rows, needs_negative=True, label="dclw")


def _like(example: Array, value: Any) -> Array:
    """A number or an array of one entry as an array of one entry, in the dtype of the example."""
    xp = namespace_of(example)
    if is_number(value):
        return xp.full_like(example[0:1], value)
    return namespace_of(value).astype(namespace_of(value).reshape(value, (1,)), example.dtype)


def logistic(*, bias: float | Array = 0.0, divide_by: str = "rows", balance: bool = False) -> Pairwise:
    r"""Return the logistic objective: every pair is a decision of its own, positive or not.

    .. math:: \ell_i = \sum_{j \in P(i)} \log(1 + e^{-z_{ij}}) + \sum_{j \in Q(i)} \log(1 + e^{z_{ij}}),
        \qquad z_{ij} = g_{ij} + b

    Parameters
    ----------
    bias : float or array of one entry, default: 0.0
        Bias b; differentiable as an array.
    divide_by : {"rows", "pairs", "active"}, default: "rows"
        What a mean divides by: the rows (SigLIP), the pairs, or the pairs whose term is not 0.
    balance : bool, default: False
        Whether a mean is that over the positives plus that over the negatives.

    Returns
    -------
    Pairwise
        The objective, for `contrast`.

    Raises
    ------
    ValueError
        If `divide_by` is none of these.

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


def _logistic_positive(score: Array, bias: Array) -> Array:
    return softplus(namespace_of(score), -(score + bias))


def _logistic_positive_slopes(score: Array, bias: Array) -> tuple[Array, ...]:
    slope = -sigmoid(namespace_of(score), -(score + bias))
    return slope, slope


def _logistic_negative(score: Array, bias: Array) -> Array:
    return softplus(namespace_of(score), score + bias)


def _logistic_negative_both(score: Array, bias: Array, *, small: bool) -> tuple[Array, tuple[Array, ...]]:
    xp = namespace_of(score)
    logit = score + bias
    value, slope = softplus_and_sigmoid(xp, logit, small=small)
    return value, (slope, slope)


def _logistic_negative_slopes(score: Array, bias: Array) -> tuple[Array, ...]:
    slope = sigmoid(namespace_of(score), score + bias)
    return slope, slope


_LOGISTIC = (
    Term(_logistic_positive, _logistic_positive_slopes),
    Term(_logistic_negative, _logistic_negative_slopes, _logistic_negative_both),
)


def contrastive(
    *,
    margin: float = 1.0,
    positive_margin: float = 0.0,
    positive_power: int = 2,
    negative_power: int = 2,
    average: str = "all",
    balance: bool = False,
) -> Pairwise:
    r"""Return the contrastive objective with a margin: positives attract, negatives repel within reach.

    .. math:: \ell_i = \sum_{j \in P(i)} \max(d_{ij} - m^+, 0)^a + \sum_{j \in Q(i)} \max(m - d_{ij}, 0)^b,
        \qquad d_{ij} = -g_{ij}

    Parameters
    ----------
    margin : float, default: 1.0
        Margin m beyond which negatives are left alone.
    positive_margin : float, default: 0.0
        Margin m⁺ within which positives are left alone.
    positive_power, negative_power : {1, 2}, default: 2
        Powers a and b.
    average : {"all", "nonzero"}, default: "all"
        Whether a mean is over all pairs, or over those whose term is not 0.
    balance : bool, default: False
        Whether a mean is that over the positives plus that over the negatives.

    Returns
    -------
    Pairwise
        The objective, for `contrast` with a similarity that is minus a distance.

    Raises
    ------
    ValueError
        If an option is none of the values named.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, y = np.asarray([[0.0, 0.0], [1.0, 0.0]]), np.asarray([[0.5, 0.0], [1.0, 0.5]])
    >>> apart = pnce.objectives.contrastive(margin=1.0)
    >>> pnce.contrast(x, y, objective=apart, similarity="neg_euclidean")
    array(0.1875)
    """
    margin = check_number("margin", margin)
    positive_margin = check_number("positive_margin", positive_margin)
    for name, power in (("positive_power", positive_power), ("negative_power", negative_power)):
        if not is_number(power) or power not in {1, 2}:
            message = f"{name}: expected 1 or 2, got {power!r}"
            raise ValueError(message)
    check_choice("average", average, AVERAGES)
    return Pairwise(
        _ATTRACT[positive_power],
        _REPEL[negative_power],
        parameters=(float(positive_margin), float(margin)),
        divide_by="pairs" if average == "all" else "active",
        balance=balance,
        label="contrastive",
    )


AVERAGES = ("all", "nonzero")


def _attract(score: Array, positive_margin: Array, margin: Array) -> Array:
    del margin
    return relu(namespace_of(score), -score - positive_margin)


def _attract_slopes(score: Array, positive_margin: Array, margin: Array) -> tuple[Array, ...]:
    slope = -relu_slope(namespace_of(score), -score - positive_margin)
    return slope, slope, namespace_of(margin).zeros_like(margin)


def _attract_squared(score: Array, positive_margin: Array, margin: Array) -> Array:
    excess = _attract(score, positive_margin, margin)
    return excess * excess


def _attract_squared_slopes(score: Array, positive_margin: Array, margin: Array) -> tuple[Array, ...]:
    slope = -2.0 * _attract(score, positive_margin, margin)
    return slope, slope, namespace_of(margin).zeros_like(margin)


def _repel(score: Array, positive_margin: Array, margin: Array) -> Array:
    del positive_margin
    return relu(namespace_of(score), margin + score)


def _repel_slopes(score: Array, positive_margin: Array, margin: Array) -> tuple[Array, ...]:
    slope = relu_slope(namespace_of(score), margin + score)
    return slope, namespace_of(margin).zeros_like(positive_margin), slope


def _repel_squared(score: Array, positive_margin: Array, margin: Array) -> Array:
    excess = _repel(score, positive_margin, margin)
    return excess * excess


def _repel_squared_slopes(score: Array, positive_margin: Array, margin: Array) -> tuple[Array, ...]:
    slope = 2.0 * _repel(score, positive_margin, margin)
    return slope, namespace_of(margin).zeros_like(positive_margin), slope


_ATTRACT = {1: Term(_attract, _attract_slopes), 2: Term(_attract_squared, _attract_squared_slopes)}
_REPEL = {1: Term(_repel, _repel_slopes), 2: Term(_repel_squared, _repel_squared_slopes)}


class _Triplet(Objective):
    """All triples of a row, or its hardest one."""

    __slots__ = ("average", "margin", "mining", "soft")

    def __init__(self, *, margin: float, mining: str, soft: bool, average: str) -> None:
        super().__init__(_log_odds, label=f"triplet, {mining}")
        self.margin = margin
        self.mining = mining
        self.soft = soft
        self.average = average

    def losses(self, execution: Execution) -> tuple[Losses, ...]:
        (margin,) = _per_row(execution, (self.margin,))
        xp = namespace_of(margin)
        if self.mining == "batch_all":
            matrix = execution.dense()
            live = matrix.scores != -math.inf
            xp = namespace_of(matrix.scores)
            positives, negatives = (xp.logical_and(members, live) for members in (matrix.positives, matrix.negatives))
            # What takes part in no triple may hold anything; the difference of two infinities would be no number.
            scores = xp.where(xp.logical_or(positives, negatives), matrix.scores, xp.zeros_like(matrix.scores))
            sums = triple_sums(scores, positives, negatives, margin[0:1], soft=self.soft)
            number = sums.number if self.average == "all" else sums.active
            return (Losses(sums.total, sums.number > 0, number),)
        farthest, has_positive = execution.extreme(of_positives=True, largest=False)
        nearest, has_negative = execution.extreme(of_positives=False, largest=True)
        counted = namespace_of(has_positive, has_negative).logical_and(has_positive, has_negative)
        picked = (execution.pick(nearest), execution.pick(farthest))
        xp = namespace_of(*picked)
        # Of a row that does not count, anything may have been picked; the difference of two infinities is no number.
        near, far = (xp.where(counted, score, xp.zeros_like(score)) for score in picked)
        difference = xp.where(counted, near - far + margin, xp.zeros_like(near))
        values = excess(xp, difference, soft=self.soft)
        number = None if self.average == "all" else xp.astype(stop_gradient(values) != 0, values.dtype)
        return (Losses(values, counted, number),)


def triplet(*, margin: float = 0.2, mining: str = "batch_all", form: str = "margin", average: str = "all") -> Objective:
    r"""Return the triplet objective: a positive is to be nearer than a negative, by a margin.

    .. math:: \ell_i = \sum_{p \in P(i)} \sum_{n \in Q(i)} \max(d_{ip} - d_{in} + m, 0), \qquad d_{ij} = -g_{ij}

    Parameters
    ----------
    margin : float, default: 0.2
        Margin m.
    mining : {"batch_all", "batch_hard"}, default: "batch_all"
        All triples of a row, or only that of its farthest positive and its nearest negative.
    form : {"margin", "soft"}, default: "margin"
        ``"soft"`` takes :math:`\log(1 + e^t)` in place of :math:`\max(t, 0)`.
    average : {"all", "nonzero"}, default: "all"
        Whether a mean is over all triples, or over those whose loss is not 0.

    Returns
    -------
    Objective
        The objective, for `contrast` with a similarity that is minus a distance. Rows without a triple do not count.

    Raises
    ------
    ValueError
        If an option is none of the values named.

    References
    ----------
    Hermans, Beyer and Leibe (2017), "In Defense of the Triplet Loss for Person Re-Identification", arXiv:1703.07737.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, y = np.asarray([[0.0, 0.0], [1.0, 0.0]]), np.asarray([[0.5, 0.0], [1.0, 0.5]])
    >>> hinge = pnce.objectives.triplet(margin=0.75)
    >>> round(float(pnce.contrast(x, y, objective=hinge, similarity="neg_euclidean")), 6)
    0.440983
    """
    margin = check_number("margin", margin)
    check_choice("mining", mining, ("batch_all", "batch_hard"))
    check_choice("form", form, ("margin", "soft"))
    check_choice("average", average, AVERAGES)
    return _Triplet(margin=float(margin), mining=mining, soft=form == "soft", average=average)


class _Relic(Objective):
    """InfoNCE and the divergence of the distributions over the columns, of a row and of the same row mirrored."""

    __slots__ = ("alpha", "direction", "held", "symmetric")

    def __init__(self, *, alpha: float, direction: str, held: str | None, symmetric: bool) -> None:
        super().__init__(_each, label="relic")
        self.alpha = alpha
        self.direction = direction
        self.held = held
        self.symmetric = symmetric

    def losses(self, execution: Execution) -> tuple[Losses, ...]:
        other = execution.mirrored()
        (first,) = self._one(execution, other)
        if not self.symmetric:
            return (first,)
        (second,) = self._one(other, execution)
        return (Losses(0.5 * first.values + 0.5 * second.values, first.counted),)

    def _one(self, own: Execution, other: Execution) -> tuple[Losses, ...]:
        (plain,) = super().losses(own)
        first, second = (own, other) if self.direction == "a_to_b" else (other, own)
        if self.held == "first":
            first = first.constant()
        if self.held == "second":
            second = second.constant()
        return (Losses(plain.values + self.alpha * _divergence(first, second), plain.counted),)


def _divergence(first: Execution, second: Execution) -> Array:
    """The Kullback-Leibler divergence of the softmax distributions of two score matrices, row by row.

    The positive's share comes from the log-odds, which do not cancel; those of the negatives from the pairs.
    """
    (p, q) = together(_log_shares(first), _log_shares(second))
    of_negatives = first.pair_sums((None, _DIVERGENCE), (*p[1:], *q[1:]), beside=second).negative
    return _divergence_of(namespace_of(p[0]), p[0], q[0]) + of_negatives


def _log_shares(execution: Execution) -> tuple[Array, Array, Array]:
    """Of each row: the log-probability of the positive, and two numbers to be taken from a negative's score for its."""
    sums = execution.sums()
    row = row_statistics(sums)
    xp = namespace_of(row.log_odds)
    both = xp.logical_and(row.has_positive, row.has_negative)
    top = sums.negative.top
    finite = xp.where(xp.isinf(top), xp.zeros_like(top), top)
    rest = sums.negative.log_total(xp) + xp.where(row.has_positive, softplus(xp, -row.log_odds), 0.0 * row.log_odds)
    return -xp.where(both, softplus(xp, row.log_odds), 0.0 * row.log_odds), finite, rest


def _divergence_of(xp: Namespace, log_p: Array, log_q: Array) -> Array:
    """``p log(p / q) - p + q``, which adds up to the divergence and of which no part cancels against another."""
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


def _divergence_value(score: Array, other: Array, *shares: Array) -> Array:
    return _divergence_of(namespace_of(score), _log_share(score, *shares[:2]), _log_share(other, *shares[2:]))


def _divergence_slopes(score: Array, other: Array, *shares: Array) -> tuple[Array, ...]:
    xp = namespace_of(score)
    log_p, log_q = _log_share(score, *shares[:2]), _log_share(other, *shares[2:])
    ratio, p = log_p - log_q, xp.exp(log_p)
    near = xp.abs(ratio) < 1
    difference = xp.where(near, p * xp.expm1(-xp.where(near, ratio, xp.zeros_like(ratio))), xp.exp(log_q) - p)
    by_p = p * ratio
    return by_p, difference, -by_p, -by_p, -difference, -difference


_DIVERGENCE = Term(_divergence_value, _divergence_slopes)


def relic(
    *,
    alpha: float = 1.0,
    direction: str = "a_to_b",
    stop_gradient: str | None = None,
    symmetric: bool = False,
) -> Objective:
    r"""Return RELIC's objective: InfoNCE, and how far the two views' distributions over the batch are apart.

    .. math:: \ell_i = -\log p^a_{ii} + \alpha\, \mathrm{KL}(p^a_i \,\Vert\, p^b_i), \qquad
        p^a_{ij} = \mathrm{softmax}_j(g_{ij}), \quad p^b_{ij} = \mathrm{softmax}_j(g_{ji})

    Parameters
    ----------
    alpha : float, default: 1.0
        Weight α of the divergence.
    direction : {"a_to_b", "b_to_a"}, default: "a_to_b"
        ``"b_to_a"`` takes :math:`\mathrm{KL}(p^b_i \,\Vert\, p^a_i)`.
    stop_gradient : {None, "first", "second"}, default: None
        Which of the divergence's two distributions is a constant.
    symmetric : bool, default: False
        Whether to average with the same of the transposed scores.

    Returns
    -------
    Objective
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
    alpha = check_number("alpha", alpha)
    check_choice("direction", direction, ("a_to_b", "b_to_a"))
    symmetric = check_bool("symmetric", symmetric)
    if stop_gradient is not None:
        check_choice("stop_gradient", stop_gradient, ("first", "second"))
    return _Relic(alpha=float(alpha), direction=direction, held=stop_gradient, symmetric=symmetric)


_NAMED: dict[str, AnyObjective] = {
    "info_nce": _INFO_NCE["each"],
    "flat_nce": _FLAT_NCE[False, "log", "each"],
    "logistic": logistic(),
}


def resolve(objective: str | AnyObjective | Callable[[RowStatistics], Array]) -> AnyObjective:
    """Return the objective that an `objective` argument means.

    Parameters
    ----------
    objective : str, Objective, Pairwise or callable
        ``"info_nce"``, ``"flat_nce"``, ``"logistic"``, an objective, or a function from `RowStatistics` to the losses
        (N,).

    Returns
    -------
    Objective or Pairwise
        The objective.

    Raises
    ------
    ValueError
        If the name is unknown.

    Examples
    --------
    >>> import portable_nce as pnce
    >>> pnce.objectives.resolve("flat_nce") is pnce.objectives.flat_nce()
    True
    """
    if isinstance(objective, (Objective, Pairwise)):
        return objective
    if callable(objective) and not isinstance(objective, str):
        return Objective(objective)
    check_choice("objective", objective, tuple(_NAMED))
    return _NAMED[str(objective)]
