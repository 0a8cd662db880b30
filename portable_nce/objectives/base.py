"""Base classes of objectives, independent of the execution.

An `Objective` is a function of row statistics, with slopes; a `Pairwise` is two elementwise functions of a score, with
slopes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, get_args

from .._core.autodiff import grad, stop_gradient
from .._core.checks import check_bool, check_callable, check_choice, misfit
from .._core.equality import EqualByContents, Record
from .._core.namespace import is_array, is_number, namespace_of
from .._core.numerics import sum_to_scalar
from .._core.protocol import Array
from .._core.returned import as_slope, returned
from .._core.types import DivideBy

__all__ = ["Labelled", "Objective", "Pairwise", "RowStatistics", "Slopes", "Term", "Weighted", "with_slopes"]

DIVISORS: tuple[DivideBy, ...] = get_args(DivideBy)


class RowStatistics(NamedTuple):
    """Statistics of each row, for objectives; arrays of shape (N,).

    Attributes
    ----------
    log_odds : array
        ``u = lse(negatives) - lse(positives)``; 0 where either set is empty.
    spread : array
        ``lse(positives) - mean(positives)``; 0 with at most one positive.
    negative : array
        ``lse(negatives)``; 0 without negatives.
    positive : array
        ``lse(positives)``; 0 without positives.
    has_negative : array
        Boolean: whether the row has a negative with a score above -inf.
    has_positive : array
        Boolean: whether the row has a positive with a score above -inf.
    """

    log_odds: Array
    spread: Array
    negative: Array
    positive: Array
    has_negative: Array
    has_positive: Array

    @property
    def numbers(self) -> tuple[Array, Array, Array, Array]:
        """The differentiable statistics, in the order of `Slopes`."""
        return self.log_odds, self.spread, self.negative, self.positive

    @property
    def flags(self) -> tuple[Array, Array]:
        """The boolean statistics."""
        return self.has_negative, self.has_positive

    def stacked(self) -> Array:
        """All statistics in one array (N, 6), with flags as 0 and 1."""
        xp = namespace_of(*self.numbers)
        flags = [xp.astype(x, self.log_odds.dtype) for x in self.flags]
        return xp.stack([*self.numbers, *flags], axis=1)

    @staticmethod
    def unstacked(table: Array) -> RowStatistics:
        """The statistics in an array that `stacked` made."""
        row = RowStatistics._make(table[:, k] for k in range(len(RowStatistics._fields)))
        return RowStatistics(*row.numbers, *(stop_gradient(x) > 0 for x in row.flags))


Slopes: TypeAlias = tuple[Array | None, Array | None, Array | None, Array | None]
"""The derivatives of each row's loss by `log_odds`, `spread`, `negative` and `positive`; None is 0."""


class Needs(NamedTuple):
    """What a row must have to count.

    `pairs`: which of positives and negatives have a term, of which a row needs one. `positive`: a positive. `negative`:
    also a negative, or with `spread` several positives; without, its loss is constant.
    """

    pairs: tuple[bool, bool] = (True, True)
    positive: bool = True
    negative: bool = True
    spread: bool = False


class Labelled(Record):
    """Base of objectives: fields, a label for `repr`, and what the execution asks of an objective.

    `of_statistics`: a function of `RowStatistics`; `of_pairs`: a sum over pairs; `of_triples`; `crossed`: rows are
    compared with columns; `by_mask`: even positives at known places take a mask. `shifted`: exponentials may have a
    shift; `beta`: concentration on hard negatives.
    """

    __slots__ = ()
    label: str
    of_statistics = of_pairs = of_triples = crossed = by_mask = False
    shifted, beta = True, 0.0

    @property
    def needs(self) -> Needs:
        """What a row must have to count."""
        return Needs()

    def divisor(self, n_rows: int, n_negatives: int) -> int | None:
        """Divisor of the mean over rows with one positive and so many negatives; None if it depends on scores."""
        del n_negatives
        return n_rows

    def __repr__(self) -> str:
        return f"<objective {self.label}>"


class Objective(Labelled):
    """Loss per row, and which rows count.

    Parameters
    ----------
    rows : callable
        Takes `RowStatistics`, returns the losses of the rows, shape (N,).
    needs_negative : bool, default: False
        Whether rows without a negative are excluded, as rows without a positive always are.
    slopes : callable, optional
        Takes `RowStatistics` and returns the derivatives of each row's loss by its `log_odds`, `spread`, `negative` and
        `positive`, each of shape (N,), or None for 0. Write it in array-API code, so that it can be differentiated
        again. Without it, `rows` is differentiated by the library.
    couples_rows : bool, optional
        Whether the loss of a row depends on the statistics of other rows. If True, the statistics of all rows are
        computed first, which takes a second pass over the scores; if False, `rows` gets blocks of rows. None tests
        `rows` on a few rows, together and separately, and assumes True under tracing. On JAX, False is an error if
        `rows` uses traced arrays, such as a learned margin.
    label : str, optional
        Name in `repr`; by default the name of `rows`.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> hinge = pnce.objectives.Objective(lambda row: np.maximum(row.log_odds + 1.0, 0.0), needs_negative=True)
    >>> pnce.contrast(np.eye(3), np.eye(3), objective=hinge, temperature=0.5)
    array(0.)
    """

    __slots__ = (
        "couples_rows", "every_row", "label", "needs_negative", "of_odds", "rows", "separate", "slopes", "spreads",
    )  # fmt: skip
    of_statistics = True
    known = False  # whether a weight of each row is, without the positives

    def __init__(
        self,
        rows: Callable[..., Array],
        *,
        needs_negative: bool = False,
        slopes: Callable[..., Slopes] | None = None,
        couples_rows: bool | None = None,
        label: str | None = None,
    ) -> None:
        check_callable("rows", rows)
        if slopes is not None:
            check_callable("slopes", slopes)
        self.rows = rows
        self.needs_negative = check_bool("needs_negative", needs_negative)
        self.slopes = slopes
        self.couples_rows = None if couples_rows is None else check_bool("couples_rows", couples_rows)
        self.label = str(label or getattr(rows, "__name__", type(rows).__name__))
        # For built-in objectives: loss and slope as functions of the log-odds, if those suffice for rows with one
        # positive and a negative; whether several positives add their spread; whether each positive is a separate row;
        # whether every row counts, also one without a score above -inf.
        self.of_odds: Callable[..., tuple[Array, Array | None]] | None = None
        self.spreads = False
        self.separate = False
        self.every_row = False

    @property
    def needs(self) -> Needs:
        """What a row must have to count."""
        negative = self.needs_negative or self.of_odds is not None
        spread = self.spreads and not self.needs_negative
        return Needs(positive=not self.every_row, negative=negative, spread=spread)

    def values(self, row: RowStatistics, *parameters: Array) -> Array:
        """Return the losses of the rows, checked to match the statistics.

        Parameters
        ----------
        row : RowStatistics
            The statistics.
        *parameters : array
            Further arguments of `rows`.

        Returns
        -------
        array
            The losses.
        """
        try:
            values = self.rows(row, *parameters)
        except TypeError:
            reason = misfit(getattr(self.rows, "forward", self.rows), (row, *parameters), {})
            if reason is None:
                raise
            raise TypeError(f"objective: expected a function of RowStatistics, got {self.label}: {reason}") from None
        odds = row.log_odds
        return returned("objective", values, tuple(odds.shape), odds, "a function of each row's statistics,")

    def counted(self, row: RowStatistics) -> Array:
        """Return the mask of rows that count.

        Parameters
        ----------
        row : RowStatistics
            The statistics.

        Returns
        -------
        array of bool
            Whether each row has a positive, and a negative if the objective needs one.
        """
        if self.every_row:
            return namespace_of(row.has_positive).ones_like(row.has_positive)
        xp = namespace_of(row.log_odds)
        return xp.logical_and(row.has_positive, row.has_negative) if self.needs_negative else row.has_positive

    def pulled(self, row: RowStatistics, factor: Array, *parameters: Array) -> tuple[Array | None, ...]:
        """Return the slopes of the losses by the statistics and the parameters, times a factor per row.

        Parameters
        ----------
        row : RowStatistics
            The statistics.
        factor : array
            Factor of each row's loss in the sum.
        *parameters : array
            Further arguments of `rows`.

        Returns
        -------
        tuple of array or None
            The slopes; None is 0.
        """
        n_numbers = len(row.numbers)
        if self.slopes is not None:
            found = _checked_slopes(self.slopes(row, *parameters), n_numbers + len(parameters), row.log_odds)
            return tuple(None if slope is None else slope * factor for slope in found)

        def total(*varying: Array) -> Array:
            statistics = RowStatistics._make((*varying[:n_numbers], *row.flags))
            values = self.values(statistics, *varying[n_numbers:])
            xp = namespace_of(values, factor)
            return xp.reshape(sum_to_scalar(xp, values * factor), ())

        varying = (*row.numbers, *parameters)
        slopes: tuple[Array, ...] = grad(total, tuple(range(len(varying))))(*varying)
        return slopes


def _checked_slopes(found: Any, count: int, like: Array) -> tuple[Any, ...]:
    """Slopes that a function returned, of so many arguments: None, numbers, or arrays with the axes of `like`."""
    if not isinstance(found, (tuple, list)) or len(found) != count:
        got = f"{len(found)}" if isinstance(found, (tuple, list)) else type(found).__name__
        raise ValueError(f"slopes: expected a tuple of {count}, one by each argument, got {got}")
    shape = tuple(like.shape)
    for slope in found:
        along = is_array(slope) and not is_number(slope)
        if along and (len(slope.shape) != len(shape) or slope.shape[0] != shape[0]):
            raise ValueError(f"slopes: expected numbers, or arrays of shape {shape}, got shape {tuple(slope.shape)}")
    return tuple([None if slope is None else as_slope("slopes", slope, like) for slope in found])


class _SlopesOf(Record):
    """Slopes of a record that computes losses and slopes."""

    losses: Any

    def __call__(self, row: RowStatistics, *parameters: Array) -> Any:
        return self.losses.slopes(row, *parameters)


def with_slopes(losses: Any, *, label: str, needs_negative: bool = False) -> Objective:
    """Objective of a record with losses (`__call__`) and `slopes`."""
    slopes = _SlopesOf(losses)
    return Objective(losses, slopes=slopes, needs_negative=needs_negative, couples_rows=False, label=label)


class Weighted(Objective):
    """Objective with a parameter per row that depends on the positive scores of all rows.

    The losses are ``inner(statistics, parameter)`` with ``parameter(positive, counted)``, from arrays of shape (N,). It
    couples rows, but with one positive per row, whose score is computed first, one pass is enough. `known` parameters
    do not depend on the positives.
    """

    __slots__ = ("inner", "known", "parameter")

    def __init__(
        self, inner: Objective, parameter: Callable[[Array, Array], Array], *, label: str, known: bool = False
    ) -> None:
        super().__init__(self._rows, needs_negative=inner.needs_negative, couples_rows=True, label=label)
        self.inner = inner
        self.parameter = parameter
        self.known = known

    def _rows(self, row: RowStatistics) -> Array:
        return self.inner.rows(row, self.parameter(row.positive, self.counted(row)))

    def _contents(self) -> tuple[Any, ...]:
        return (self.inner, self.parameter, self.known)  # `rows` is a bound method of this object


class Term(EqualByContents):
    """Elementwise function of the score of a pair, with its derivatives.

    Parameters
    ----------
    value : callable
        ``value(score, *parameters) -> array``, elementwise, finite and with finite derivatives for every finite score.
    slopes : callable, optional
        ``slopes(score, *parameters) -> tuple of array``: the derivative by each argument. Write it in array-API code,
        so that it can be differentiated again. Without it, `value` is differentiated by the library.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> square = pnce.objectives.Term(lambda s: s * s, lambda s: (2.0 * s,))
    >>> apart = pnce.objectives.Pairwise(None, square, divide_by="pairs")
    >>> pnce.contrast(np.eye(3), np.eye(3)[::-1], objective=apart, similarity="dot")
    array(0.22222222)
    """

    __slots__ = ("fused", "slopes", "value")

    def __init__(self, value: Callable[..., Array], slopes: Callable[..., tuple[Array, ...]] | None = None) -> None:
        check_callable("value", value)
        if slopes is not None:
            check_callable("slopes", slopes)
        self.value = value
        self.slopes = slopes
        # For built-in terms, value and slopes at once: ``fused(score, *parameters, bounded=..., need_grad=...)``.
        # A slope of None, by a parameter, is 0.
        self.fused: Callable[..., tuple[Array, tuple[Array | None, ...]]] | None = None

    def value_and_slopes(
        self, *arguments: Array, bounded: bool = False, need_grad: bool = True
    ) -> tuple[Array, tuple[Array, ...]]:
        """Return the values and the slopes by each argument.

        Parameters
        ----------
        *arguments : array
            The scores, and the parameters.
        bounded : bool, default: False
            Whether all sums of a score and the parameters are at most 30 in magnitude.
        need_grad : bool, default: True
            Whether slopes are needed.

        Returns
        -------
        tuple
            The values and a tuple of slopes, which broadcast to the shape of the scores.
        """
        if self.fused is not None:
            return self.fused(*arguments, bounded=bounded, need_grad=need_grad)
        if not need_grad:
            return self._values(*arguments), ()
        if self.slopes is not None:
            found = _checked_slopes(self.slopes(*arguments), len(arguments), arguments[0])
            zero = as_slope("slopes", 0.0, arguments[0])
            return self._values(*arguments), tuple([zero if slope is None else slope for slope in found])

        def total(*varying: Array) -> Array:
            values = self._values(*varying)
            xp = namespace_of(values)
            return xp.reshape(sum_to_scalar(xp, values), ())

        xp = namespace_of(*arguments)
        whole = tuple(xp.broadcast_to(x, tuple(arguments[0].shape)) for x in arguments)  # one slope per pair
        slopes: tuple[Array, ...] = grad(total, tuple(range(len(whole))))(*whole)
        return self._values(*whole), slopes  # MLX's forward mode takes no auxiliary results

    def _values(self, *arguments: Array) -> Array:
        """Values, checked to have the shape of the scores."""
        values, shape = self.value(*arguments), tuple(arguments[0].shape)
        return returned("objective", values, shape, arguments[0], "an elementwise function of scores,")


class Pairwise(Labelled):
    r"""Sum over the pairs of a row: one function of positive scores, another of negative scores.

    .. math:: \ell_i = \sum_{j \in P(i)} a(g_{ij}) + \sum_{j \in Q(i)} b(g_{ij})

    Parameters
    ----------
    positive, negative : Term, callable or None
        The functions a and b. A plain function is differentiated by the library; None is 0.
    parameters : tuple of float or array, default: ()
        Further arguments of both functions: numbers, or arrays of one entry or of shape (N,); differentiable if arrays.
    divide_by : {"rows", "pairs", "active"}, default: "rows"
        Divisor of a mean: the number of rows with a pair, of pairs, or of pairs whose loss is not 0.
    balance : bool, default: False
        Whether the mean is the sum of the mean over positives and the mean over negatives.
    label : str, optional
        Name in `repr`.

    Raises
    ------
    ValueError
        If `divide_by` is not one of the listed values.

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

    __slots__ = ("balance", "divide_by", "label", "names", "parameters", "terms")
    of_pairs = True

    @property
    def needs(self) -> Needs:
        """What a row must have to count."""
        positive, negative = (term is not None for term in self.terms)
        return Needs((positive, negative), positive=False, negative=False)

    def __init__(
        self,
        positive: Term | Callable[..., Array] | None,
        negative: Term | Callable[..., Array] | None,
        *,
        parameters: tuple[Any, ...] = (),
        divide_by: DivideBy = "rows",
        balance: bool = False,
        label: str | None = None,
    ) -> None:
        check_choice("divide_by", divide_by, DIVISORS)
        if not isinstance(parameters, tuple):
            raise TypeError(f"parameters: expected a tuple, got {type(parameters).__name__}; write (parameter,)")
        for name, term in (("positive", positive), ("negative", negative)):
            if term is not None and not isinstance(term, Term):
                check_callable(name, term)
        self.terms = tuple(
            term if term is None or isinstance(term, Term) else Term(term) for term in (positive, negative)
        )
        self.parameters = parameters
        self.names = tuple(f"parameters[{k}]" for k in range(len(parameters)))  # for error messages
        self.divide_by = divide_by
        self.balance = check_bool("balance", balance)
        self.label = label or "pairwise"
