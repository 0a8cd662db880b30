"""Objectives: what a row's statistics are worth.

An objective is a function of `RowStatistics` that returns the loss of each row, of shape (N,). The execution that
produced the statistics, the similarity and the pairing are none of its business. `Objective` adds which rows count.
"""

from __future__ import annotations

from collections.abc import Callable

from ._autodiff import stop_gradient
from ._namespace import namespace_of
from ._numerics import softplus
from ._protocol import Array
from ._statistics import RowStatistics
from ._validate import one_of

__all__ = ["Objective", "RowStatistics", "flat_nce", "info_nce", "resolve"]


class Objective:
    """A loss per row, and which rows count.

    Parameters
    ----------
    rows : callable
        Takes `RowStatistics`, returns the losses of the rows, shape (N,).
    needs_negative : bool, default: False
        Whether a row without a negative is left out, like every row without a positive, rather than counted.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> hinge = pnce.objectives.Objective(lambda row: np.maximum(row.log_odds + 1.0, 0.0), needs_negative=True)
    >>> pnce.contrast(np.eye(3), np.eye(3), objective=hinge, temperature=0.5)
    array(0.)
    """

    __slots__ = ("needs_negative", "rows")

    def __init__(self, rows: Callable[[RowStatistics], Array], *, needs_negative: bool = False) -> None:
        self.rows = rows
        self.needs_negative = needs_negative

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


def info_nce(*, multi_positive: str = "each") -> Objective:
    r"""Return the InfoNCE objective: the softplus of the log-odds.

    With one positive per row, :math:`\ell_i = \log(1 + e^{u_i})`, :math:`u_i = \mathrm{lse}_{Q(i)} g_{ij} - g_{ii}`;
    a row without negatives is worth 0.

    Parameters
    ----------
    multi_positive : {"each", "pooled"}, default: "each"
        With several positives, ``"each"`` is the mean over the positives of the negative log-softmax over all
        (SupCon's L_out), :math:`\mathrm{lse}_{P \cup Q} - \mathrm{mean}_P`; ``"pooled"`` takes their probabilities
        together, :math:`\log(1 + e^{u_i})` with :math:`u_i = \mathrm{lse}_Q - \mathrm{lse}_P`.

    Returns
    -------
    Objective
        The objective, for `contrast`.

    Raises
    ------
    ValueError
        If `multi_positive` is neither.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> round(float(pnce.contrast(x, x, objective=pnce.objectives.info_nce(), temperature=0.5)), 6)
    0.239545
    """
    one_of("multi_positive", multi_positive, ("each", "pooled"))
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
    multi_positive : {"each", "pooled"}, default: "each"
        With several positives, ``"each"`` contrasts the negatives with the mean of the positives, ``"pooled"`` with
        their log-sum-exp.

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
    one_of("form", form, ("log", "detach"))
    one_of("multi_positive", multi_positive, ("each", "pooled"))
    return _FLAT_NCE[bool(include_positive), form, multi_positive]


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


def _detached(loss: Callable[[RowStatistics], Array]) -> Callable[[RowStatistics], Array]:
    def rows(row: RowStatistics) -> Array:
        value = loss(row)
        xp = namespace_of(value)
        constant = stop_gradient(value)
        # The difference of two infinities is no number; the value of such a row is 1 all the same.
        return xp.exp(xp.where(xp.isinf(constant), xp.zeros_like(value), value - constant))

    return rows


# Built once, so that equal objectives are the same object and compiled code is found again.
_INFO_NCE = {"each": Objective(_each), "pooled": Objective(_pooled)}
_LOG_FORMS = {
    (False, "each"): _log_odds_each,
    (False, "pooled"): _log_odds,
    (True, "each"): _each,
    (True, "pooled"): _pooled,
}
_FLAT_NCE = {
    (include, form, multi): Objective(rows if form == "log" else _detached(rows), needs_negative=True)
    for (include, multi), rows in _LOG_FORMS.items()
    for form in ("log", "detach")
}
_NAMED = {"info_nce": _INFO_NCE["each"], "flat_nce": _FLAT_NCE[False, "log", "each"]}


def resolve(objective: str | Objective | Callable[[RowStatistics], Array]) -> Objective:
    """Return the objective that an `objective` argument means.

    Parameters
    ----------
    objective : str, Objective or callable
        ``"info_nce"``, ``"flat_nce"``, an objective, or a function from `RowStatistics` to the losses (N,).

    Returns
    -------
    Objective
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
    if isinstance(objective, Objective):
        return objective
    if callable(objective) and not isinstance(objective, str):
        return Objective(objective)
    one_of("objective", objective, tuple(_NAMED))
    return _NAMED[str(objective)]
