"""Base classes of objectives: data that an execution reads, and that knows no execution.

An `Objective` of the softmax family is a function of the statistics of a row, with its slopes; a `Pairwise` one is a
pair of elementwise functions of a score, with theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, get_args

from .._core.autodiff import grad, value_and_grad
from .._core.checks import check_bool, check_callable, check_choice, check_floating, check_shape, misfit
from .._core.equality import EqualByContents, Record
from .._core.namespace import common_namespace, is_array, namespace_of
from .._core.numerics import sum_to_scalar
from .._core.protocol import Array
from .._core.types import DivideBy

__all__ = ["Labelled", "Objective", "Pairwise", "RowStatistics", "Slopes", "Term", "Weighted", "with_slopes"]

DIVISORS: tuple[DivideBy, ...] = get_args(DivideBy)


class RowStatistics(NamedTuple):
    """Statistics of each row ``i``, for objectives; arrays of shape (N,).

    Attributes
    ----------
    log_odds : array
        ``u = lse(negatives) - lse(positives)``; 0 where either set is empty.
    spread : array
        ``lse(positives) - mean(positives)``; 0 where there is at most one positive.
    negative : array
        ``lse(negatives)``; 0 where there is none.
    positive : array
        ``lse(positives)``; 0 where there is none.
    has_negative : array
        Boolean: whether the row has a negative. A score of -inf takes no part.
    has_positive : array
        Boolean: whether the row has a positive. A score of -inf takes no part.
    """

    log_odds: Array
    spread: Array
    negative: Array
    positive: Array
    has_negative: Array
    has_positive: Array


Slopes: TypeAlias = tuple[Array | None, Array | None, Array | None, Array | None]
"""The derivatives of each row's loss by `log_odds`, `spread`, `negative` and `positive`; None is 0."""


class Labelled(Record):
    """Base of objectives: fields, and a name for representations."""

    __slots__ = ()
    label: str

    def __repr__(self) -> str:
        return f"<objective {self.label}>"


class Objective(Labelled):
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
        Array-API code, so that it can be differentiated again. Without it, `rows` is differentiated by the library.
    couples_rows : bool, optional
        Whether the loss of a row depends on the statistics of others. Then these are computed for all rows first, which
        takes a second pass over the scores; otherwise `rows` sees some of the rows at a time. None tries `rows` on some
        rows, together and apart, before the scores are streamed; where numbers cannot be looked at (under tracing), it
        is taken for granted. On PyTorch, parameters that `rows` uses beside the statistics, such as a learned margin,
        get a gradient only with True.
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

    __slots__ = ("couples_rows", "label", "needs_negative", "of_odds", "rows", "separate", "slopes", "spreads")

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
        # Of the objectives that come with the package: loss and slope by the log-odds, where these are all that counts
        # in rows with one positive and some negatives; whether that of several positives adds their spread; and whether
        # each of them is a row of its own.
        self.of_odds: Callable[..., tuple[Array, Array | None]] | None = None
        self.spreads = False
        self.separate = False

    def values(self, row: RowStatistics, *parameters: Array) -> Array:
        """Return the losses of the rows, checked to be arrays like the statistics.

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
        if not is_array(values):
            raise TypeError(f"objective: expected a function that returns an array, got {type(values).__name__}")
        odds = row.log_odds
        if type(values) is not type(odds) or values.dtype != odds.dtype:
            xp, _ = common_namespace(statistics=odds, objective=values)
            check_floating(xp, objective=values)
        check_shape("objective", values, tuple(odds.shape))
        return values

    def counted(self, row: RowStatistics) -> Array:
        """Return which rows count.

        Parameters
        ----------
        row : RowStatistics
            The statistics.

        Returns
        -------
        array of bool
            Whether each row has a positive, and a negative if the objective needs one.
        """
        xp = namespace_of(row.log_odds)
        return xp.logical_and(row.has_positive, row.has_negative) if self.needs_negative else row.has_positive

    def pulled(self, row: RowStatistics, factor: Array, *parameters: Array) -> tuple[Array | None, ...]:
        """Return the slopes of the losses, each times its factor, by the statistics and by the parameters.

        Parameters
        ----------
        row : RowStatistics
            The statistics.
        factor : array
            What the losses are multiplied by before they are added up.
        *parameters : array
            Further arguments of `rows`.

        Returns
        -------
        tuple of array or None
            The slopes; None is 0.
        """
        if self.slopes is not None:
            return tuple(None if slope is None else slope * factor for slope in self.slopes(row, *parameters))
        flags = row[4:]

        def total(*varying: Array) -> Array:
            statistics = RowStatistics._make((*varying[:4], *flags))
            values = self.values(statistics, *varying[4:])
            xp = namespace_of(values, factor)
            return xp.reshape(sum_to_scalar(xp, values * factor), ())

        varying = (*row[:4], *parameters)
        slopes: tuple[Array, ...] = grad(total, tuple(range(len(varying))))(*varying)
        return slopes


class _SlopesOf(Record):
    """The slopes of losses of rows, of the record that computes both."""

    losses: Any

    def __call__(self, row: RowStatistics, *parameters: Array) -> Any:
        return self.losses.slopes(row, *parameters)


def with_slopes(losses: Any, *, label: str, needs_negative: bool = False) -> Objective:
    """The objective of a record: its `__call__` gives the losses of rows, its `slopes` their slopes."""
    slopes = _SlopesOf(losses)
    return Objective(losses, slopes=slopes, needs_negative=needs_negative, couples_rows=False, label=label)


class Weighted(Objective):
    """An objective of rows with a parameter each, which is a function of the positives' scores of all rows.

    ``rows(statistics, parameter)``, and ``parameter(positive, counted)`` from arrays of shape (N,). It couples rows;
    but where each row has one positive, whose score is known before the others are, one pass is enough. If the
    parameters are `known`, they are those of the rows at hand, whatever the positives are.
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
        return (self.inner, self.parameter, self.known)  # `rows` is a method of the object itself


class Term(EqualByContents):
    """An elementwise function of the score of a pair, with its derivatives.

    Parameters
    ----------
    value : callable
        ``value(score, *parameters) -> array``, elementwise; it must be finite, with finite derivatives, for every
        finite score.
    slopes : callable, optional
        ``slopes(score, *parameters) -> tuple of array``: the derivative with respect to each argument. Array-API code,
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
        # Of built-in terms, both at once: ``fused(score, *parameters, bounded=..., need_grad=...)``.
        self.fused: Callable[..., tuple[Array, tuple[Array, ...]]] | None = None

    def value_and_slopes(
        self, *arguments: Array, bounded: bool = False, need_grad: bool = True
    ) -> tuple[Array, tuple[Array, ...]]:
        """Return the values and the slopes by each argument.

        Parameters
        ----------
        *arguments : array
            The scores, and the parameters.
        bounded : bool, default: False
            Whether no sum of a score and the parameters is beyond 30 in magnitude.
        need_grad : bool, default: True
            Whether slopes are wanted at all.

        Returns
        -------
        tuple
            The values and a tuple of slopes, arrays of the shape of the scores or that broadcast to it.
        """
        if self.fused is not None:
            return self.fused(*arguments, bounded=bounded, need_grad=need_grad)
        if not need_grad:
            return self._values(*arguments), ()
        if self.slopes is not None:
            return self._values(*arguments), tuple(self.slopes(*arguments))

        def total(*varying: Array) -> tuple[Array, Array]:
            values = self._values(*varying)
            xp = namespace_of(values)
            return xp.reshape(sum_to_scalar(xp, values), ()), values

        xp = namespace_of(*arguments)
        whole = tuple(xp.broadcast_to(x, tuple(arguments[0].shape)) for x in arguments)  # a slope for each pair
        (_, values), slopes = value_and_grad(total, tuple(range(len(whole))), has_aux=True)(*whole)
        return values, slopes

    def _values(self, *arguments: Array) -> Array:
        """The values, checked to be one for each score."""
        values, shape = self.value(*arguments), tuple(arguments[0].shape)
        if not is_array(values) or tuple(values.shape) != shape:
            got = f"shape {tuple(values.shape)}" if is_array(values) else type(values).__name__
            raise ValueError(f"objective: expected an elementwise function of scores, of shape {shape} here, got {got}")
        return values


class Pairwise(Labelled):
    r"""A sum over the pairs of a row: one function of the scores of positives, another of those of negatives.

    .. math:: \ell_i = \sum_{j \in P(i)} a(g_{ij}) + \sum_{j \in Q(i)} b(g_{ij})

    Parameters
    ----------
    positive, negative : Term, callable or None
        The functions a and b. A plain function is differentiated by the library; None is 0.
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

    __slots__ = ("balance", "divide_by", "label", "names", "parameters", "terms")

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
        self.names = tuple(f"parameters[{k}]" for k in range(len(parameters)))  # for messages
        self.divide_by = divide_by
        self.balance = check_bool("balance", balance)
        self.label = label or "pairwise"
