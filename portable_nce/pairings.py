"""Pairings: which entries of the score matrix are positive, negative or excluded.

A pairing is a rule for a tile of the matrix and the arrays that the rule reads. There is no N × K mask, unless the rule
reads one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, cast, get_args

from ._core.autodiff import stop_gradient
from ._core.checks import (
    as_integer,
    cast_hint,
    check_bool,
    check_callable,
    check_choice,
    check_floating,
    check_indices,
    check_integers,
    check_mask,
    check_number,
    check_pair_weights,
    check_shape,
    explained,
    indices_of,
    is_floating,
    is_half,
    least,
    readable_entry,
    refuses_other_names,
    shape_of,
)
from ._core.equality import EqualByContents, Record
from ._core.half_precision import in_halves, product_of_flags, product_of_rows
from ._core.namespace import common_namespace, is_array, namespace_of
from ._core.numerics import normalize, upcast
from ._core.protocol import Array, Namespace
from ._core.ranks import widened
from ._core.registry import adapter_of
from ._core.types import AnyArray, ArrayOf, MarginStrategy

__all__ = [
    "Pairing",
    "Tile",
    "diagonal",
    "explicit",
    "guided",
    "ids",
    "index",
    "kernel",
    "labels",
    "overlap",
    "queue",
    "smoothed",
    "soft",
    "teacher",
    "two_views",
    "weighted",
]

__dir__ = __all__.copy  # what completion offers

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = refuses_other_names(__name__)

STRATEGIES: tuple[MarginStrategy, ...] = get_args(MarginStrategy)


class Tile(NamedTuple):
    """Tile of the score matrix, the argument of a rule.

    Arrays broadcast to the tile: those of rows have shape (n, 1) or (n, 1, C), those of columns (1, k) or (1, k, C),
    those of pairs (n, k). Symmetric losses call the same rule for columns against rows, with tiles of all rows and some
    columns. The result for a pair must not depend on other pairs of the tile.

    Attributes
    ----------
    i, j : array
        Row and column indices.
    n_rows, n_columns : int
        Shape of the whole matrix.
    rows, columns, pairs : tuple of array
        The tile's part of the pairing's arrays.
    dtype : dtype
        Dtype of the scores, in which weights should be returned.
    mask : array of bool, or None
        Pairs (n, k) that are included, None for all. A rule may ignore it: its result for other pairs has no effect.
    """

    i: Array
    j: Array
    n_rows: int
    n_columns: int
    rows: tuple[Array, ...] = ()
    columns: tuple[Array, ...] = ()
    pairs: tuple[Array, ...] = ()
    dtype: Any = None
    mask: Array | None = None

    def transposed(self) -> Tile:
        """Return the tile of the transposed matrix: its rows are this one's columns, of shape (k, 1)."""
        rows, columns, pairs = (tuple(map(_exchanged, x)) for x in (self.columns, self.rows, self.pairs))
        i, j, mask = (None if x is None else _exchanged(x) for x in (self.j, self.i, self.mask))
        return Tile(i, j, self.n_columns, self.n_rows, rows, columns, pairs, self.dtype, mask)


def _exchanged(x: Array) -> Array:
    """Array with its first two axes exchanged."""
    return namespace_of(x).permute_dims(x, (1, 0, *range(2, len(x.shape))))


class Members(NamedTuple):
    """Positives and negatives of a tile, and their weights (None if all are 1)."""

    positives: Array
    negatives: Array
    weights: Array | None = None
    negative_weights: Array | None = None

    def graded(self, dtype: Any) -> Members:
        """Members of a sum over pairs: a positive of weight t alone is also a negative, of weight ``1 - t``."""
        positives, negatives, weights, of_negatives = self
        if weights is None or of_negatives is not None:
            return self
        xp = namespace_of(weights)
        weights = xp.astype(weights, dtype)
        rest = xp.where(positives, 1.0 - weights, xp.ones_like(weights))
        return Members(positives, _or(negatives, _and(positives, weights < 1)), weights, rest)

    def exclusive(self) -> Members:
        """Members without the negatives that are also positives, see `graded`."""
        if self.weights is None or self.negative_weights is None:
            return self
        return self._replace(negatives=_and(self.negatives, _not(self.positives)))

    def refuse_weights(self, *, of_positives: bool = True) -> None:
        """Raise an error if negatives, or by default any pairs, have weights."""
        if self.negative_weights is not None:
            raise ValueError("pairing: expected pairs without weights, which triplets and hard_negatives do not take")
        if of_positives and self.weights is not None:
            raise ValueError("pairing: expected positives without weights, which triplets and relic do not take")


Arrays: TypeAlias = tuple[Array, ...]
Rule: TypeAlias = Callable[[Tile], tuple[Array, ...]]


class Positives(Record):
    """Where the positives are: one of the kinds below.

    `known`: the columns of the positives are known without evaluating the rule of the pairing. `views`: number of rows
    per sample. `index`: an array (N,) with the column of each. `has_labels`: labels or ids of rows and columns are
    compared; `by_id`: column i is the only positive of row i; `own`: it is neither positive nor negative.
    """

    known, exist, views = True, True, 1
    index = cast("Array", None)  # an annotation would make it a field
    on_diagonals = ahead_of_queue = elsewhere = within = has_labels = by_id = own = False

    @property
    def fixed(self) -> tuple[Any, ...]:
        """The kind, and its fields except arrays."""
        return (type(self), *[x for x in self._contents() if type(x) in {bool, int}])

    @property
    def arrays(self) -> tuple[Arrays, Arrays, Arrays]:
        """Arrays of rows, of columns and of pairs, in the order in which the rule reads them."""
        return (), (), ()

    def with_arrays(self, rows: Arrays, columns: Arrays, pairs: Arrays) -> Self:
        """Return the same kind with other arrays."""
        del rows, columns, pairs
        return self


class OnDiagonals(Positives):
    """Column i is the positive of row i, and all other columns are negatives.

    With several views, the positives are the columns ``i + k N / views``, and column i is neither.
    """

    views: int
    on_diagonals = True


class ByIndex(Positives):
    """The column of each row's positive is in an array (N,), and all other columns are negatives.

    `elsewhere`: an index out of range may be a positive on another rank; `within`: no index is out of range.
    """

    index: Array
    elsewhere: bool
    within: bool

    @property
    def arrays(self) -> tuple[Arrays, Arrays, Arrays]:
        """The index, as an array of rows."""
        return (self.index,), (), ()

    def with_arrays(self, rows: Arrays, columns: Arrays, pairs: Arrays) -> Self:
        """Return the kind with another index."""
        del columns, pairs
        return self._replace(index=rows[0])


class AheadOfQueue(Positives):
    """The first N columns are the positives; the columns after them are negatives of all rows."""

    ahead_of_queue = True


class NoPositives(Positives):
    """All columns are negatives."""

    exist = False


class _Compared(Positives):
    """Integers of rows (N,) and of columns (K,) are compared."""

    rows: Array
    columns: Array
    has_labels = True

    @property
    def arrays(self) -> tuple[Arrays, Arrays, Arrays]:
        """The integers of rows and of columns."""
        return (self.rows,), (self.columns,), ()

    def with_arrays(self, rows: Arrays, columns: Arrays, pairs: Arrays) -> Self:
        """Return the kind with other integers."""
        del pairs
        return self._replace(rows=rows[0], columns=columns[0])


class SameLabel(_Compared):
    """Columns with the label of the row are positives, all others negatives; `own`: column i of row i is neither."""

    own: bool


class SameId(_Compared):
    """Column i is the positive of row i; other columns with the id of the row are no negatives."""

    by_id = True


class ByRule(Positives):
    """Only the rule knows, from its arrays of rows, of columns and of pairs."""

    rows: Arrays
    columns: Arrays
    pairs: Arrays
    known = False

    @property
    def arrays(self) -> tuple[Arrays, Arrays, Arrays]:
        """All arrays of the rule."""
        return self.rows, self.columns, self.pairs

    def with_arrays(self, rows: Arrays, columns: Arrays, pairs: Arrays) -> Self:
        """Return other arrays."""
        return self._replace(rows=rows, columns=columns, pairs=pairs)


class Pairing(EqualByContents):
    """Rule and its arrays.

    Parameters
    ----------
    rule : callable
        Takes a `Tile` and returns two boolean arrays, positives and negatives, of its shape (n, k), or (n, 1) or (1, k)
        to broadcast. An optional third array (n, k) has floating-point weights ≥ 0 of the positives, which are
        normalised in each row; sums over pairs take them as degrees (see `soft`). An optional fourth has weights of the
        negatives, which act as multiplicities (see `weighted`). A NaN weight makes the loss of its row NaN.
    rows, columns, pairs : tuple of array, default: ()
        Arrays that the rule reads, of shapes (N,) or (N, C), (K,) or (K, C), and (N, K).
    one_per_row, one_per_column : bool, default: False
        Whether each row, or each column, has at most one positive.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> frame = np.arange(6)
    >>> def near_in_time(tile):
    ...     gap = abs(tile.rows[0] - tile.columns[0])
    ...     return gap == 1, gap > 2
    >>> pairing = pnce.pairings.Pairing(near_in_time, rows=(frame,), columns=(frame,))
    >>> round(float(pnce.contrast(np.eye(6), objective="info_nce", pairing=pairing)), 6)
    1.2904
    """

    __slots__ = (
        "exchangeable",
        "extra_columns",
        "one_per_column",
        "one_per_row",
        "outline",
        "paired",
        "positives",
        "rule",
        "valid_columns",
        "valid_rows",
        "without_negatives",
    )

    def __init__(
        self,
        rule: Rule,
        *,
        rows: tuple[Array, ...] = (),
        columns: tuple[Array, ...] = (),
        pairs: tuple[Array, ...] = (),
        one_per_row: bool = False,
        one_per_column: bool = False,
    ) -> None:
        check_callable("rule", rule)
        for name, given in (("rows", rows), ("columns", columns), ("pairs", pairs)):
            if not isinstance(given, tuple):
                raise TypeError(f"{name}: expected a tuple of arrays, got {type(given).__name__}; write ({name},)")
        self.rule = rule
        self.positives: Positives = ByRule(rows, columns, pairs)
        # At most one boolean array each: rows that have positives, and columns to include.
        self.valid_rows: Arrays = ()
        self.valid_columns: Arrays = ()
        self.one_per_row = check_bool("one_per_row", one_per_row)
        self.one_per_column = check_bool("one_per_column", one_per_column)
        # Whether columns beyond the rows are negatives of all rows; `positives` then describes the others.
        self.extra_columns = False
        # Whether the rule with exchanged arrays also describes columns against rows.
        self.exchangeable = False
        # Whether all columns are positives, up to those whose weight underflows.
        self.without_negatives = False
        # Whether each row has a positive and negatives, unless a mask or flags of rows take these away.
        self.paired = False
        # A rule without products, whose positives and negatives include those of the rule: enough to say which rows
        # count, where those of the rule would cost as much as the scores.
        self.outline: Rule | None = None

    @property
    def fixed(self) -> tuple[Any, ...]:
        """All fields except arrays."""
        return (*_fixed(self), *self.positives.fixed)

    def __repr__(self) -> str:
        name = getattr(self.rule, "__name__", type(self.rule).__name__)
        return f"<pairing {name.removesuffix('_rule').strip('_').replace('_', ' ')}>"

    def with_arrays(self, **arrays: tuple[Array, ...]) -> Pairing:
        """Return the same rule with other `rows`, `columns` or `pairs`.

        Parameters
        ----------
        **arrays : tuple of array
            Arrays to replace.

        Returns
        -------
        Pairing
            The pairing.

        Raises
        ------
        TypeError
            If a value is not a tuple.
        ValueError
            If the rule of a pairing of this module reads another number of arrays.
        """
        given: dict[str, Any] = {"rows": self.rows, "columns": self.columns, "pairs": self.pairs, **arrays}
        checked = Pairing(self.rule, **given).arrays
        for name, own, other in zip(given, self.arrays, checked, strict=False) if self.positives.known else ():
            if len(own) != len(other):
                raise ValueError(f"{name}: expected a tuple of {len(own)} arrays for {self}, got {len(other)}")
        return self._replace(
            positives=self.positives.with_arrays(*checked),
            valid_rows=checked[0][-1:] if self.valid_rows else (),
            valid_columns=checked[1][-1:] if self.valid_columns else (),
        )

    @property
    def arrays(self) -> tuple[Arrays, Arrays, Arrays]:
        """Arrays of rows, of columns and of pairs that the rule reads."""
        rows, columns, pairs = self.positives.arrays
        return (*rows, *self.valid_rows), (*columns, *self.valid_columns), pairs

    @property
    def rows(self) -> Arrays:
        """Arrays of rows that the rule reads."""
        return self.arrays[0]

    @property
    def columns(self) -> Arrays:
        """Arrays of columns that the rule reads."""
        return self.arrays[1]

    @property
    def pairs(self) -> Arrays:
        """Arrays of pairs that the rule reads."""
        return self.arrays[2]

    @property
    def has_flags(self) -> bool:
        """Whether flags leave out rows or columns."""
        return len(self.valid_rows) + len(self.valid_columns) > 0

    @property
    def is_diagonal(self) -> bool:
        """Whether row i is positive with column i, and all other columns are negatives."""
        return self.positives.on_diagonals and self.positives.views == 1 and not self.has_flags

    def flags(self, n_rows: int) -> tuple[Arrays, Arrays]:
        """Flags of rows that have positives, and of columns; ahead of a queue, the columns are those of the queue."""
        if not self.positives.ahead_of_queue:
            return self.valid_rows, self.valid_columns
        return tuple([x[:n_rows] for x in self.valid_columns]), tuple([x[n_rows:] for x in self.valid_columns])

    def transposed(self) -> Pairing:
        """Return the pairing of columns with rows.

        Returns
        -------
        Pairing
            The pairing.
        """
        columns, rows, pairs = self.arrays
        pairs = tuple(map(_exchanged, pairs))
        fields: dict[str, Any] = {"one_per_row": self.one_per_column, "one_per_column": self.one_per_row}
        if self.exchangeable:
            fields |= {"valid_rows": self.valid_columns, "valid_columns": self.valid_rows}
            return self._replace(positives=self.positives.with_arrays(rows, columns, pairs), **fields)
        rule = self.rule.rule if isinstance(self.rule, _Transposed) else _Transposed(self.rule)
        return self._replace(rule=rule, positives=ByRule(rows, columns, pairs), **fields, **_DERIVED)


_fixed = attrgetter(*[x for x in Pairing._fields if x not in {"positives", "valid_rows", "valid_columns"}])

_DERIVED: dict[str, Any] = {
    "valid_rows": (),
    "valid_columns": (),
    "extra_columns": False,
    "paired": False,
    "outline": None,
}
"""Fields of a pairing with a derived rule, which alone knows the positives."""


class _RuleOf(Record):
    """Rule derived from another."""

    rule: Rule


class _Transposed(_RuleOf):
    """Transposed rule."""

    def __call__(self, tile: Tile) -> tuple[Array, ...]:
        result: Any = self.rule(tile.transposed())
        if not isinstance(result, (tuple, list)):
            return result  # type: ignore[no-any-return]  # rejected by `members_of`
        return tuple(_copied(_exchanged(x)) if len(getattr(x, "shape", ())) == 2 else x for x in result)  # noqa: PLR2004  (a matrix)


def _copied(x: Array) -> Array:
    """Row-major copy: mixing memory orders in elementwise operations is slower than the copy."""
    xp = namespace_of(x)
    return xp.reshape(xp.reshape(x, (-1,)), tuple(x.shape))


def members_of(rule: Rule, tile: Tile) -> Members:
    """Positives, negatives and weights of a tile by a rule, with the mask applied."""
    xp, mask = namespace_of(tile.i), tile.mask
    result: Any = rule(tile)
    if not isinstance(result, (tuple, list)) or len(result) not in {2, 3, 4}:
        got = type(result).__name__
        raise TypeError(f"pairing: expected a rule that returns a pair of boolean arrays, or also weights, got {got}")
    whole = (tile.i.shape[0], tile.j.shape[1])
    for members in result[:2]:
        if type(members) is not type(tile.i) or members.dtype != xp.bool or tuple(members.shape) != whole:
            _check_members(members, whole)
    for whose, weights in zip(("positives", "negatives"), result[2:], strict=False):
        _check_weights(xp, whose, weights, whole)
    members = _with_weights(*result)
    if mask is None:
        return members
    return members._replace(positives=_and(members.positives, mask), negatives=_and(members.negatives, mask))


def _with_weights(
    positives: Array, negatives: Array, weights: Array | None = None, of_negatives: Array | None = None
) -> Members:
    """Members of a tile without pairs of weight 0; NaN weights stay, see `undefined_rows`."""
    if of_negatives is not None:
        negatives = _and(negatives, _not(of_negatives <= 0))
    if weights is not None:
        absent = namespace_of(weights).less_equal(weights, 0.0)
        if of_negatives is None:
            # A positive of weight 0 becomes a negative.
            negatives = _or(negatives, _and(positives, absent))
        positives = _and(positives, _not(absent))
    return Members(positives, negatives, weights, of_negatives)


def undefined_rows(members: Members) -> Array | None:
    """Boolean array (n,) of rows of a tile with a NaN weight on an included pair; None without weights.

    Their losses become NaN. Otherwise a diverged teacher would pass unnoticed, since comparisons with NaN are False.
    """
    undefined: Array | None = None
    for among, weights in zip(members[:2], members[2:], strict=True):
        if weights is not None and not _is_known_number(weights):
            xp = namespace_of(weights)
            rows = xp.any(xp.logical_and(among, xp.isnan(weights)), axis=1)
            undefined = rows if undefined is None else xp.logical_or(undefined, rows)
    return undefined


def _is_known_number(weights: Array) -> bool:
    """Whether no entry is known to be NaN, which the smallest entry would be."""
    low = readable_entry(weights, least)
    return low is not None and low <= math.inf


def _check_weights(xp: Namespace, whose: str, weights: Array, shape: tuple[int, int]) -> None:
    """Check that weights are floating-point and have the shape of the tile."""
    if not xp.isdtype(getattr(weights, "dtype", None), "real floating") or tuple(weights.shape) != shape:
        got = f"{getattr(weights, 'dtype', type(weights).__name__)} {tuple(getattr(weights, 'shape', ()))}"
        raise ValueError(f"pairing: expected weights of {whose}, floating-point numbers of shape {shape}, got {got}")


def _check_members(members: Array, shape: tuple[int, int]) -> None:
    """Check that members are boolean arrays of the shape (n, k) of the tile, (n, 1) or (1, k)."""
    xp, _ = common_namespace(pairing=members)
    if not xp.isdtype(members.dtype, "bool"):
        raise TypeError(f"pairing: expected a rule that returns boolean arrays, got dtype {members.dtype}")
    result = tuple(members.shape)  # may be symbolic; a set would make them numbers
    fits = len(result) == 2 and any(result == wanted for wanted in (shape, (shape[0], 1), (1, shape[1])))  # noqa: PLR2004  (a matrix)
    if not fits:
        raise ValueError(f"pairing: expected a rule that returns arrays of shape {shape}, got {tuple(members.shape)}")


@explained
def diagonal() -> Pairing:
    """Row i is positive with column i; every other column is its negative.

    Columns beyond the rows are negatives of all rows.

    Returns
    -------
    Pairing
        The pairing of in-batch negatives.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> round(float(pnce.contrast(x, x, objective="info_nce", pairing=pnce.pairings.diagonal(), temperature=0.5)), 6)
    0.239545
    """
    return _DIAGONAL


@explained
def queue(valid: AnyArray | None = None) -> Pairing:
    """Row i is positive with column i; the columns beyond the rows are negatives of all rows.

    The other in-batch columns are excluded.

    Parameters
    ----------
    valid : array of bool, shape (K,), optional
        Columns to include; all by default.

    Returns
    -------
    Pairing
        The pairing of shared negatives.

    Raises
    ------
    TypeError
        If `valid` is not a boolean array.
    ValueError
        If `valid` is not one-dimensional.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> queries, keys = np.eye(2), np.concatenate([np.eye(2), -np.eye(2)])
    >>> round(float(pnce.contrast(queries, keys, objective="info_nce", pairing=pnce.pairings.queue())), 6)
    0.407606
    """
    if valid is None:
        return _QUEUE
    xp, (valid,) = common_namespace(valid=valid)
    check_mask(xp, "valid", valid, shape_of("valid", valid, "(K)", may_be_empty=True))
    return _QUEUE._replace(rule=_VALID_QUEUE, valid_columns=(valid,))


@explained
def two_views() -> Pairing:
    """Rows are two stacked views of a batch: i is positive with i + N/2; its pair with itself is excluded.

    Returns
    -------
    Pairing
        NT-Xent's pairing of 2N views.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> views = np.concatenate([np.eye(2), np.eye(2)])
    >>> round(float(pnce.contrast(views, objective="info_nce", pairing=pnce.pairings.two_views())), 6)
    0.551445
    """
    return _TWO_VIEWS


def several_views(number: int) -> Pairing:
    """Rows are `number` stacked views of a batch: i is positive with ``i + k N / number``."""
    return Pairing(_Views(number))._replace(positives=OnDiagonals(number), paired=True)


@explained
def index(positives: AnyArray, /) -> Pairing:
    """Row i is positive with column ``positives[i]``; every other column is its negative.

    Parameters
    ----------
    positives : array of int, shape (N,)
        Column index of each row's positive, from 0 to K - 1. Out-of-range indices raise for NumPy and eager PyTorch CPU
        tensors; elsewhere such a row has no positive.

    Returns
    -------
    Pairing
        The pairing.

    Raises
    ------
    TypeError
        If `positives` is not an integer array.
    ValueError
        If `positives` is not one-dimensional.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> pairing = pnce.pairings.index(np.asarray([2, 0, 1]))
    >>> round(float(pnce.contrast(x, x[np.asarray([1, 2, 0])], objective="info_nce", pairing=pairing)), 6)
    0.551445
    """
    xp, (positives,) = common_namespace(positives=positives)
    positives = indices_of(xp, "positives", positives, shape_of("positives", positives, "(N)", may_be_empty=True))
    return indexed(positives)


def indexed(positives: Array, *, elsewhere: bool = False, within: bool = False) -> Pairing:
    """Pairing of checked indices.

    `elsewhere`: positives may be on another rank, at an index out of range; `within`: no index is out of range.
    """
    return Pairing(_index_rule, one_per_row=True)._replace(positives=ByIndex(positives, elsewhere, within))


@explained
def labels(rows: AnyArray, /, columns: AnyArray | None = None, *, ignore_index: int | None = None) -> Pairing:
    """Equal labels are positives, different labels negatives.

    Parameters
    ----------
    rows : array of int, shape (N,)
        Labels of the rows.
    columns : array of int, shape (K,), optional
        Labels of the columns. None uses the rows' labels and excludes each row's pair with itself.
    ignore_index : int, optional
        Label of rows and columns to leave out. They are neither positives nor negatives, and may hold NaN. With None,
        every label is a class, also -1.

    Returns
    -------
    Pairing
        The pairing.

    Raises
    ------
    TypeError
        If the labels are not integer arrays, or `ignore_index` is not an integer.
    ValueError
        If the labels are not one-dimensional.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(4)
    >>> same_class = pnce.pairings.labels(np.asarray([0, 0, 1, 1]))
    >>> round(float(pnce.contrast(x, objective="info_nce", pairing=same_class)), 6)
    1.098612
    """
    of_rows, of_columns = _checked_labels(rows, columns)
    return equal_labels(of_rows, None if columns is None else of_columns, ignore_index=ignore_index)


def equal_labels(rows: Array, columns: Array | None, *, ignore_index: int | None) -> Pairing:
    """Pairing of `labels` for checked arrays."""
    own = columns is None
    positives = SameLabel(rows, rows, own) if own else SameLabel(*comparable(rows, columns), own)
    made = Pairing(_OWN_LABELS if own else _labels_rule)._replace(positives=positives, exchangeable=True)
    return _without_label(made, ignore_index)


def _checked_labels(rows: AnyArray, columns: AnyArray | None) -> tuple[Array, Array]:
    """Checked labels of rows (N,) and columns (K,), by default the rows' labels."""
    xp, (own, others) = common_namespace(rows=rows, columns=columns)
    # Labels in a matrix have a remedy.
    expected = tuple(own.shape[:1]) if len(own.shape) == 2 else shape_of("rows", own, "(N)", may_be_empty=True)  # noqa: PLR2004
    check_integers(xp, "rows", own, expected, several="; use pairings.overlap, if it is multi-hot")
    if others is None:
        return own, own
    check_integers(xp, "columns", others, shape_of("columns", others, "(K)", may_be_empty=True))
    return own, others


def comparable(rows: Array, columns: Array) -> tuple[Array, Array]:
    """Labels in dtypes that every library compares: PyTorch has no operations of unsigned integers and others.

    As int64, unsigned ones from 2^63 on are negative: beside negative ones they are refused where entries can be read.
    """
    if rows.dtype == columns.dtype:
        return rows, columns
    both, xp = (widened(rows), widened(columns)), namespace_of(rows)
    if len({bool(xp.isdtype(x.dtype, "unsigned integer")) for x in (rows, columns)}) > 1:
        lowest = [readable_entry(x, least) for x in both]
        if all(number is not None and number < 0 for number in lowest):
            raise ValueError(
                f"labels: expected none from 2^63 on beside negative ones, got {rows.dtype} and {columns.dtype}; "
                f"convert both to one dtype"
            )
    return both


def valid_labels(rows: Array, columns: Array, valid: Array, *, ignore_index: int | None) -> Pairing:
    """Equal labels are positives, different labels negatives, among the valid columns (K,)."""
    rows, columns = comparable(rows, columns)
    return _without_label(Pairing(_VALID_LABELS, rows=(rows,), columns=(columns, valid)), ignore_index)


def _without_label(pairing: Pairing, ignore_index: Any) -> Pairing:
    """Pairing of labels without the rows and columns of one label; the same pairing for None."""
    if ignore_index is None:
        return pairing
    number = as_integer(ignore_index)
    if number is None:
        raise TypeError(f"ignore_index: expected an integer or None, got {type(ignore_index).__name__}")
    rule = _Among(pairing.rule, _HaveOtherLabel(number))
    return pairing._replace(rule=rule, positives=ByRule(pairing.rows, pairing.columns, ()))


def _other_than(labels: Array, number: int) -> Array:
    """Boolean array of labels other than a number, which their dtype may not hold."""
    xp = namespace_of(labels)
    limits = xp.iinfo(labels.dtype)
    return labels != number if limits.min <= number <= limits.max else xp.ones_like(labels, dtype=xp.bool)


def with_negatives(pairing: Pairing, *valid: Array) -> Pairing:
    """Pairing of views, with extra columns that are negatives of all rows.

    An optional boolean array (N + K,) marks the columns to include; the views' entries are True.
    """
    fields: dict[str, Any] = {"valid_columns": valid, "one_per_column": False, "extra_columns": True}
    return pairing._replace(rule=_WithNegatives(pairing.rule), **fields)


def of_positives(xp: Namespace, positives: Array | None, shape: tuple[int, ...], *, weighted: bool = True) -> Pairing:
    """Pairing of a `positives` argument, for a score matrix of the given shape; `weighted`: with weights as well."""
    if positives is None:
        return diagonal()
    if xp.isdtype(positives.dtype, "bool"):
        check_mask(xp, "positives", positives, shape)
        return explicit(positives)
    if weighted and is_floating(xp, positives.dtype) and len(positives.shape) > 1:
        check_shape("positives", positives, shape)
        return soft(positives)
    if not xp.isdtype(positives.dtype, "integral"):
        got = f"{positives.dtype} of shape {tuple(positives.shape)}"
        wanted = "integers (N,), booleans (N, K) or weights (N, K)" if weighted else "integers (N,) or booleans (N, K)"
        matrix = len(positives.shape) > 1
        remedy = (
            "compare, as in positives > 0"
            if matrix
            else f"convert it with positives.{cast_hint(positives, integers=True)}"
        )
        raise TypeError(f"positives: expected {wanted}, got dtype {got}; {remedy}")
    columns = indices_of(xp, "positives", positives, shape[:1])
    # Across ranks the number of columns is not known yet, and 2^31 stands for it: later, all ranks check the indices.
    within = check_indices("positives", columns, shape[1], "columns") and shape[1] < 2**31
    return indexed(columns, within=within)


@explained
def ids(rows: AnyArray, /, columns: AnyArray | None = None) -> Pairing:
    """Row i is positive with column i; other columns with the same id are excluded.

    Such accidental hits are the same item, drawn twice. All other columns, also those beyond the rows, are negatives.

    Parameters
    ----------
    rows : array of int, shape (N,)
        Id of each row's positive.
    columns : array of int, shape (K,), optional
        Ids of the columns, the first N equal to `rows`; None uses `rows`.

    Returns
    -------
    Pairing
        The pairing of in-batch negatives without accidental hits.

    Raises
    ------
    TypeError
        If the ids are not integer arrays.
    ValueError
        If the ids are not one-dimensional.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> users, items = np.eye(3), np.eye(3)
    >>> bought = pnce.pairings.ids(np.asarray([7, 7, 4]))
    >>> round(float(pnce.contrast(users, items, objective="info_nce", pairing=bought)), 6)
    0.392656
    """
    positives = SameId(*comparable(*_checked_labels(rows, columns)))
    made = Pairing(_ids_rule, one_per_row=True, one_per_column=True)
    return made._replace(positives=positives, exchangeable=True)


@explained
def explicit(positives: AnyArray, /) -> Pairing:
    """Positives are where a boolean matrix is True, negatives where it is False.

    Parameters
    ----------
    positives : array of bool, shape (N, K)
        True for positives. Use a `mask` to exclude pairs.

    Returns
    -------
    Pairing
        The pairing.

    Raises
    ------
    TypeError
        If `positives` is not a boolean array.
    ValueError
        If `positives` is not a matrix.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> pairing = pnce.pairings.explicit(np.asarray([[1, 1, 0], [0, 1, 0], [0, 0, 1]]) > 0)
    >>> round(float(pnce.contrast(x, x, objective="info_nce", pairing=pairing)), 6)
    0.718111
    """
    xp, _ = common_namespace(positives=positives)
    check_mask(xp, "positives", positives, shape_of("positives", positives, "(N, K)", may_be_empty=True))
    return Pairing(_explicit_rule, pairs=(positives,))


@explained
def soft(targets: ArrayOf[Any], /) -> Pairing:
    r"""Positives have weights: the target distribution of each row over the columns.

    With the objective "info_nce" the loss of a row is the cross-entropy with soft targets,

    .. math:: -\sum_j \frac{t_{ij}}{\sum_k t_{ik}} \log \mathrm{softmax}(g_i)_j,

    whose gradient by the scores is the softmax minus the normalised targets. With "pooled" positives, the weights only
    mark the positives.

    In sums over pairs, as of "logistic", `portable_nce.objectives.contrastive` and
    `portable_nce.objectives.Pairwise`, t in [0, 1] is the degree to which a pair is positive. With the terms a of
    positives and b of negatives,

    .. math:: \ell_i = \sum_j t_{ij}\, a(g_{ij}) + (1 - t_{ij})\, b(g_{ij}).

    Parameters
    ----------
    targets : array, shape (N, K)
        Weights t ≥ 0, without gradient. Columns of weight 0 are negatives; a row of zeros does not count in a softmax.
        NaN makes the loss of its row NaN, unless the pair is masked.

    Returns
    -------
    Pairing
        The pairing.

    Raises
    ------
    TypeError
        If `targets` is not a real floating-point array.
    ValueError
        If `targets` is not a matrix.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, targets = np.eye(3), np.asarray([[0.75, 0.25, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]])
    >>> round(float(pnce.contrast(x, x, objective="info_nce", pairing=pnce.pairings.soft(targets))), 6)
    0.801445
    """
    xp, (targets,) = common_namespace(targets=targets)
    check_floating(xp, targets=targets)
    shape_of("targets", targets, "(N, K)", may_be_empty=True)
    return Pairing(_soft_rule, pairs=(stop_gradient(targets),))


@explained
def weighted(pairing: Pairing, weights: ArrayOf[Any], /) -> Pairing:
    r"""Add a weight to each pair of a pairing.

    A negative of weight w counts w times: as :math:`w_{ij} e^{g_{ij}}` in a sum of exponentials, that is, with
    :math:`\log w_{ij}` added to its score. Positives are weighted by :math:`w_{ij} / \sum_k w_{ik}` (see `soft`), so
    the weight of a single positive has no effect. Sums over pairs, as in `siglip`, multiply each term by w, and means
    over pairs divide by the sum of the weights. Degrees of pairs keep their meaning. Pairs of weight 0 are excluded.

    Parameters
    ----------
    pairing : Pairing
        Pairing to weight; any weights that it has are multiplied by these.
    weights : array, shape (N, K)
        Weights w ≥ 0, without gradient. NaN makes the loss of its row NaN, unless the pair is masked. To weight whole
        rows, use the argument `weights` of the loss.

    Returns
    -------
    Pairing
        The pairing, for softmax and pairwise objectives and RELIC; not for triplets or
        `portable_nce.objectives.hard_negatives`.

    Raises
    ------
    TypeError
        If `pairing` is not a pairing, or `weights` not a real floating-point array.
    ValueError
        If `weights` is not a matrix.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> twice = pnce.pairings.weighted(pnce.pairings.diagonal(), np.full((3, 3), 2.0))
    >>> round(float(pnce.contrast(x, x, objective="info_nce", pairing=twice)), 6)
    0.904832
    >>> round(float(pnce.contrast(x, x, objective="flat_nce", pairing=twice)), 6)
    0.386294
    """
    if not isinstance(pairing, Pairing):
        raise TypeError(f"pairing: expected a Pairing, got {type(pairing).__name__}")
    xp, (weights,) = common_namespace(weights=weights)
    check_pair_weights(xp, "weights", weights, shape_of("weights", weights, "(N, K)", may_be_empty=True))
    return with_pair_weights(pairing, weights)


def with_pair_weights(pairing: Pairing, weights: Array) -> Pairing:
    """Pairing with checked weights (N, K) of its pairs."""
    pairs = (stop_gradient(weights), *pairing.pairs)
    positives = ByRule(pairing.rows, pairing.columns, pairs)
    return pairing._replace(rule=_WeightedRule(pairing.rule), positives=positives, **_DERIVED)


@explained
def overlap(rows: AnyArray, /, columns: AnyArray | None = None) -> Pairing:
    r"""Rows and columns with common labels are positives, weighted by the Jaccard index of their labels.

    .. math:: t_{ij} = \frac{|A_i \cap B_j|}{|A_i \cup B_j|}

    Parameters
    ----------
    rows : array of bool, shape (N, C)
        Multi-hot labels of the rows.
    columns : array of bool, shape (K, C), optional
        Those of the columns. None uses `rows` and excludes each row's pair with itself.

    Returns
    -------
    Pairing
        The pairing; see `soft` for the effect of the weights.

    Raises
    ------
    TypeError
        If the labels are not boolean arrays.
    ValueError
        If the labels are not matrices of one width.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> labels = np.asarray([[True, True], [True, False], [False, True]])
    >>> pairing = pnce.pairings.overlap(labels)
    >>> round(float(pnce.contrast(np.eye(3), objective="info_nce", pairing=pairing)), 6)
    0.693147
    """
    xp, (rows, columns) = common_namespace(rows=rows, columns=columns)
    width = shape_of("rows", rows, "(N, C)", may_be_empty=True)[1]
    check_mask(xp, "rows", rows, tuple(rows.shape))
    if columns is not None:
        check_mask(xp, "columns", columns, (shape_of("columns", columns, "(K, C)", may_be_empty=True)[0], width))
    rule, columns = (_OWN_OVERLAP, rows) if columns is None else (_overlap_rule, columns)
    made = Pairing(rule, rows=(rows,), columns=(columns,))
    return made._replace(exchangeable=True, outline=_OTHERS if rule is _OWN_OVERLAP else None)


@explained
def kernel(rows: AnyArray, /, columns: AnyArray | None = None, *, bandwidth: float) -> Pairing:
    r"""All columns are positives, weighted by a Gaussian kernel of the distance between continuous labels y.

    .. math:: t_{ij} = \exp\Big(-\frac{\lVert y_i - y_j \rVert^2}{2 h^2}\Big)

    With the objective "info_nce", it is y-aware InfoNCE: samples of similar age, pose or dose attract each other more.
    Weights are divided by the largest of their row among the included columns, so that they cannot all underflow. In
    sums over pairs ("logistic", "contrastive"), where a weight is a degree, the nearest included column has degree 1;
    for the values of the kernel themselves, pass them to `soft`.

    Parameters
    ----------
    rows : array of float, shape (N,) or (N, C)
        Labels of the rows, numbers or vectors, without gradient. For two views, of both.
    columns : array of float, shape (K,) or (K, C), optional
        Those of the columns. None uses `rows` and excludes each row's pair with itself.
    bandwidth : float
        Width h > 0 of the kernel, in the unit of the labels.

    Returns
    -------
    Pairing
        The pairing; see `soft` for the effect of the weights. It has no negatives: objectives that need some, such as
        FlatNCE, are refused.

    Raises
    ------
    TypeError
        If the labels are not real floating-point arrays.
    ValueError
        If the labels of rows and columns differ in their features, or the bandwidth is not a positive finite number.

    References
    ----------
    Dufumier et al. (2021), "Contrastive Learning with Continuous Proxy Meta-Data for 3D MRI Classification",
    arXiv:2106.08808, equation 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> age = np.asarray([20.0, 22.0, 60.0])
    >>> pairing = pnce.pairings.kernel(age, bandwidth=5.0)
    >>> round(float(pnce.contrast(np.eye(3), objective="info_nce", pairing=pairing)), 6)
    0.693147
    """
    bandwidth = check_number("bandwidth", bandwidth, above=0.0)
    xp, entered = common_namespace(rows=rows, columns=columns)
    given = {name: x for name, x in zip(("rows", "columns"), entered, strict=True) if x is not None}
    check_floating(xp, **given)
    rows, *others = labels = list(given.values())
    features = tuple(rows.shape[1:]) if len(rows.shape) == 2 else ()  # noqa: PLR2004  (vectors)
    if len(rows.shape) > 2:  # noqa: PLR2004
        got = tuple(rows.shape)
        raise ValueError(
            f"rows: expected shape (N,) or (N, C), got {got}; pass one vector of labels for each row, as in "
            f"rows.reshape(({got[0]}, -1))"
        )
    shape_of("rows", rows, "(N, C)" if features else "(N)", may_be_empty=True)
    for x in others:
        if len(x.shape) != len(rows.shape):
            raise ValueError(
                f"columns: expected labels like those of rows, (N,) and (K,) or (N, C) and (K, C), got shapes "
                f"{tuple(rows.shape)} and {tuple(x.shape)}"
            )
        check_shape(
            "columns", x, (shape_of("columns", x, "(K, C)" if features else "(K)", may_be_empty=True)[0], *features)
        )
    # Dividing the labels by h, not the squared differences by h², avoids early overflow.
    of_rows, *of_columns = (upcast(xp, stop_gradient(x)) / bandwidth for x in labels)
    made = Pairing(_KernelRule(not others), rows=(of_rows,), columns=(of_columns[0] if others else of_rows,))
    return made._replace(exchangeable=True, without_negatives=True, paired=True)


@explained
def teacher(rows: AnyArray, /, columns: AnyArray | None = None, *, temperature: float | None = 0.05) -> Pairing:
    r"""All columns are positives, weighted by cosine similarities c of a teacher's embeddings.

    With a temperature the weights are the teacher's softmax over the included columns, up to a factor of the row: the
    largest is 1, :math:`t_{ij} = e^{(c_{ij} - \max_k c_{ik}) / \tau}`. The objective "info_nce", which normalises them,
    is then the cross-entropy, with the gradient of the KL divergence from teacher to student (distillation). In sums
    over pairs ("logistic", "contrastive"), where a weight is a degree, the factor matters; pass other degrees to
    `soft`. Without a temperature, :math:`t_{ij} = (1 + c_{ij}) / 2`, the weights of continuously weighted contrastive
    learning (CWCL).

    Parameters
    ----------
    rows : array, shape (N, E)
        The teacher's embeddings of the rows, without gradient.
    columns : array, shape (K, E), optional
        Those of the columns. None uses `rows` and excludes each row's pair with itself.
    temperature : float or None, default: 0.05
        Temperature τ > 0 of the teacher, or None.

    Returns
    -------
    Pairing
        The pairing; see `soft` for the effect of the weights. Transposed, it has the teacher's softmax over the rows.
        It has no negatives: objectives that need some, such as FlatNCE, are refused.

    Raises
    ------
    TypeError
        If the embeddings are not real floating-point arrays.
    ValueError
        If the embeddings are not matrices of one width, or the temperature is not a positive finite number.

    References
    ----------
    Hinton, Vinyals and Dean (2015), "Distilling the Knowledge in a Neural Network", arXiv:1503.02531; Srinivasa, Cho,
    Yang et al. (2023), "CWCL: Cross-Modal Transfer with Continuously Weighted Contrastive Loss", arXiv:2309.14580.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> student, frozen = np.eye(3), np.asarray([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> pairing = pnce.pairings.teacher(frozen, frozen, temperature=0.5)
    >>> round(float(pnce.contrast(student, student, objective="info_nce", pairing=pairing)), 6)
    0.999231
    """
    if temperature is not None:
        temperature = check_number("temperature", temperature, above=0.0)
    (_, of_rows), (_, of_columns) = _unit_embeddings(rows=rows, columns=columns)
    rule = _TeacherRule(temperature, columns is None)
    outline = _PositivesOf(_OTHERS if columns is None else _everything)
    made = Pairing(rule, rows=of_rows, columns=of_columns)
    return made._replace(exchangeable=True, without_negatives=True, paired=True, outline=outline)


@explained
def smoothed(smoothing: float, /) -> Pairing:
    r"""Label smoothing: row i is positive with column i; a share of the weight is spread over all columns.

    .. math:: t_{ij} = (1 - \varepsilon)\, [i = j] + \varepsilon / K

    Parameters
    ----------
    smoothing : float
        Share ε in [0, 1).

    Returns
    -------
    Pairing
        The pairing; see `soft` for the effect of the weights. It has no negatives, unless the share is 0: objectives
        that need some, such as FlatNCE, are refused.

    Raises
    ------
    ValueError
        If the share is out of range.

    References
    ----------
    Szegedy, Vanhoucke, Ioffe, Shlens and Wojna (2016), "Rethinking the Inception Architecture for Computer Vision",
    arXiv:1512.00567, section 7.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.eye(3)
    >>> round(float(pnce.contrast(x, x, objective="info_nce", pairing=pnce.pairings.smoothed(0.1))), 6)
    0.618111
    """
    smoothing = check_number("smoothing", smoothing)
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing: expected a number from 0 to less than 1, got {smoothing}")
    if not smoothing:
        return _DIAGONAL
    return Pairing(SmoothedRule(smoothing))._replace(exchangeable=True, without_negatives=True, paired=True)


@explained
def guided(
    rows: AnyArray, columns: AnyArray, /, *, margin: float = 0.0, strategy: MarginStrategy = "absolute"
) -> Pairing:
    r"""Row i is positive with column i; negatives that a guide considers positives are excluded.

    With cosine similarities c of the guide's embeddings, the negative j is excluded if

    .. math:: c_{ij} > c_{ii} - m \quad \text{(absolute)}, \qquad c_{ij} > c_{ii} - m |c_{ii}| \quad \text{(relative)}.

    A similarity equal to the limit up to rounding is not above it: without a margin, a duplicate of the positive is a
    negative. NaN similarities leave the column a negative in this pairing; `portable_nce.gist_embed` returns NaN.

    Parameters
    ----------
    rows : array, shape (N, E)
        The guide's embeddings of the rows, without gradient.
    columns : array, shape (K, E)
        The guide's embeddings of the columns; the first N belong to the rows.
    margin : float, default: 0.0
        Margin m; a larger one excludes more negatives.
    strategy : {"absolute", "relative"}, default: "absolute"
        Kind of margin.

    Returns
    -------
    Pairing
        The pairing.

    Raises
    ------
    TypeError
        If the embeddings are not real floating-point arrays.
    ValueError
        If the embeddings are not matrices of one width, there are fewer columns than rows, or an option does not fit.

    References
    ----------
    Solatorio (2024), "GISTEmbed: Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning",
    arXiv:2402.16829; Moreira et al. (2024), "NV-Retriever: Improving text embedding models with effective hard-negative
    mining", arXiv:2407.15831, whose TopK-MarginPos is the absolute and TopK-PercPos the relative margin.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> query, guide = np.eye(3), np.asarray([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> pairing = pnce.pairings.guided(guide, guide, margin=0.3)
    >>> round(float(pnce.contrast(query, query, objective="info_nce", pairing=pairing)), 6)
    0.392656
    """
    check_choice("strategy", strategy, STRATEGIES)
    if not is_array(columns):
        raise TypeError(f"columns: expected the guide's embeddings, got {type(columns).__name__}")
    margin = check_number("margin", margin)
    (unit_rows, of_rows), (unit_columns, of_columns) = _unit_embeddings(rows=rows, columns=columns)
    n_rows, n_columns = unit_rows.shape[0], unit_columns.shape[0]
    if n_columns < n_rows:
        raise ValueError(f"columns: expected one for each row, and further ones, got {n_columns} for {n_rows}")
    xp = namespace_of(unit_rows)
    limits = xp.sum(unit_rows * unit_columns[:n_rows, ...], axis=1)
    limits = limits - margin if strategy == "absolute" else limits - margin * xp.abs(limits)
    # Tolerance for rounding: a duplicate of the positive equals the limit and is not above it.
    limits = limits + (8.0 + math.sqrt(unit_rows.shape[1])) * float(xp.finfo(limits.dtype).eps)
    # Padding: extra columns have no limit, but the transposed rule reads one per column.
    padding = xp.ones_like(unit_columns[n_rows:, 0])
    columns_limits = xp.concat([limits, padding], axis=0)
    of_both = {"rows": (limits, *of_rows), "columns": (columns_limits, *of_columns)}
    made = Pairing(_guided_rule, **of_both, one_per_row=True, one_per_column=True)
    return made._replace(exchangeable=True, paired=True, outline=_diagonal_rule)


def _unit_embeddings(**embeddings: Array | None) -> tuple[tuple[Array, Arrays], tuple[Array, Arrays]]:
    """Upcast unit embeddings of rows and columns, without gradient.

    Also the operands of their inner products: these, or 16-bit embeddings with a factor per row.
    """
    xp, entered = common_namespace(**embeddings)
    rows, columns = entered
    check_floating(xp, **{name: x for name, x in zip(embeddings, entered, strict=True) if x is not None})
    _, width = shape_of("rows", rows, "(N, E)", may_be_empty=True)
    if columns is not None:
        check_shape("columns", columns, (shape_of("columns", columns, "(K, E)", may_be_empty=True)[0], width))
    given = [rows] if columns is None else [rows, columns]
    half = is_half(rows.dtype) and rows.dtype == given[-1].dtype and adapter_of(rows).has_half_products(rows)
    result = [_unit_rows(xp, x, half=half) for x in given]
    return result[0], result[-1]


def _unit_rows(xp: Namespace, x: Array, *, half: bool) -> tuple[Array, Arrays]:
    # Rows with infinity become NaN here, since NumPy would warn of inf / inf even if the row is masked.
    dtype, x = x.dtype, upcast(xp, stop_gradient(x))
    x = xp.where(xp.isinf(x), math.nan, x)
    unit = normalize(x)
    if not half:
        return unit, (unit,)
    return unit, in_halves(x, unit, dtype)


def _inner_products(rows: Arrays, columns: Arrays) -> Array:
    """Inner products of rows (n, 1, E) and columns (1, k, E), or of 16-bit operands over divisors."""
    x, y = rows[0][:, 0, :], columns[0][0, ...]
    if len(rows) > 1:
        return product_of_rows((x, rows[1][:, 0, :]), (y, columns[1][0, ...]))
    return namespace_of(x, y).matmul(x, namespace_of(y).matrix_transpose(y))


def _not(x: Array) -> Array:
    return namespace_of(x).logical_not(x)


def _or(a: Array, b: Array) -> Array:
    return namespace_of(a, b).logical_or(a, b)


def _and(a: Array, b: Array) -> Array:
    return namespace_of(a, b).logical_and(a, b)


def _differ(a: Array, b: Array) -> Array:
    return namespace_of(a, b).not_equal(a, b)


def _diagonal_rule(tile: Tile) -> tuple[Array, Array]:
    own = tile.i == tile.j
    return own, _not(own)


def _queue_rule(tile: Tile) -> tuple[Array, Array]:
    own = tile.i == tile.j
    return own, _and(_not(own), tile.j >= tile.n_rows)


def half(n_rows: int, n_columns: int) -> int:
    """Number of rows per view; checks that the matrix is square and has an even number of rows."""
    rows = n_rows // 2
    if 2 * rows != n_rows or n_rows != n_columns:
        raise ValueError(
            "pairing: two views: expected a square matrix of an even number of rows (the first view, then the second), "
            f"got shape {(n_rows, n_columns)}"
        )
    return rows


class _Among(_RuleOf):
    """Rule restricted to the pairs that `marked` returns for a tile."""

    marked: Callable[[Tile], Array]

    @property
    def __name__(self) -> str:
        return getattr(self.rule, "__name__", "")

    def __call__(self, tile: Tile) -> tuple[Array, ...]:
        positives, negatives, *weights = self.rule(tile)
        marked = self.marked(tile)
        return _and(positives, marked), _and(negatives, marked), *weights


def _off_diagonal(tile: Tile) -> Array:
    return _differ(tile.i, tile.j)


def with_own(rule: Rule) -> Rule | None:
    """Rule that becomes `rule` when the pairs of each row with itself are left out; None if there is no such rule."""
    return rule.rule if isinstance(rule, _Among) and rule.marked is _off_diagonal else None


def is_own(rule: Rule) -> bool:
    """Whether the pairs of each row with itself are the positives, and all others negatives."""
    return rule is _diagonal_rule


def _marked_rows(tile: Tile) -> Array:
    return tile.rows[-1]


def _marked_columns(tile: Tile) -> Array:
    return tile.columns[-1]


class _HaveOtherLabel(Record):
    """Pairs of a tile of labels whose row and column have a label other than `ignored`."""

    ignored: int

    def __call__(self, tile: Tile) -> Array:
        return _and(_other_than(tile.rows[0], self.ignored), _other_than(tile.columns[0], self.ignored))


class _Views(Record):
    """Rule of `two_views` and `several_views`."""

    __name__ = "views"
    number: int

    def __call__(self, tile: Tile) -> tuple[Array, Array]:
        two = self.number == 2  # noqa: PLR2004  (more views are stacked by the package)
        samples = half(tile.n_rows, tile.n_columns) if two else tile.n_rows // self.number
        xp = namespace_of(tile.i)
        apart = xp.abs(tile.i - tile.j)
        partner = apart == samples
        for k in range(2, self.number):
            partner = xp.logical_or(partner, apart == k * samples)
        return partner, _and(_not(partner), apart != 0)


class _WithNegatives(_RuleOf):
    """Rule of `with_negatives`."""

    __name__ = "views with further negatives"

    def __call__(self, tile: Tile) -> tuple[Array, Array]:
        extra = tile.j >= tile.n_rows
        among = _not(extra)
        positives, negatives = self.rule(tile._replace(n_columns=tile.n_rows))
        extra = _and(extra, tile.columns[0]) if tile.columns else extra
        return _and(positives, among), namespace_of(extra).logical_or(_and(negatives, among), extra)


def candidates() -> Pairing:
    """All columns are negatives."""
    return Pairing(_candidates_rule)._replace(positives=NoPositives())


def _candidates_rule(tile: Tile) -> tuple[Array, Array]:
    everything = _and(tile.i >= 0, tile.j >= 0)
    return _not(everything), everything


def for_marked_rows(pairing: Pairing, marked: Array) -> Pairing:
    """Diagonal or two-view pairing, restricted to the rows that a boolean array (N,) marks."""
    return pairing._replace(rule=_Among(pairing.rule, _marked_rows), valid_rows=(marked,), exchangeable=False)


def _index_rule(tile: Tile) -> tuple[Array, Array]:
    own = tile.rows[0] == tile.j
    return own, _not(own)


def _labels_rule(tile: Tile) -> tuple[Array, Array]:
    return tile.rows[0] == tile.columns[0], _differ(tile.rows[0], tile.columns[0])


def _ids_rule(tile: Tile) -> tuple[Array, Array]:
    return tile.i == tile.j, _and(_differ(tile.rows[0], tile.columns[0]), _differ(tile.i, tile.j))


def _soft_rule(tile: Tile) -> tuple[Array, ...]:
    targets = tile.pairs[0]
    absent = namespace_of(targets).less_equal(targets, 0.0)
    return _not(absent), absent, targets


class _WeightedRule(_RuleOf):
    """Rule of `weighted`."""

    __name__ = "weighted"

    def __call__(self, tile: Tile) -> tuple[Array, ...]:
        weights, *pairs = tile.pairs
        absent = weights <= 0
        mask = _not(absent) if tile.mask is None else _and(tile.mask, _not(absent))
        members = _with_weights(*self.rule(tile._replace(pairs=tuple(pairs), mask=mask))).graded(tile.dtype)
        xp = namespace_of(weights)
        weights = xp.astype(weights, tile.dtype)
        # The other weight of an excluded pair may be NaN.
        of_both = (weights if x is None else xp.where(absent, weights, weights * x) for x in members[2:])
        return (*members[:2], *of_both)


def _overlap_rule(tile: Tile) -> tuple[Array, ...]:
    rows, columns = tile.rows[0], tile.columns[0]
    xp = namespace_of(rows)
    common = product_of_flags(rows[:, 0, :], columns[0, ...], tile.dtype)
    of_rows, of_columns = (xp.sum(xp.astype(x, tile.dtype), axis=-1) for x in (rows, columns))  # (n, 1), (1, k)
    either = of_rows + of_columns - common
    share = common / xp.where(either > 0, either, xp.ones_like(either))
    return common > 0, _not(common > 0), share


class _TeacherRule(Record):
    """Rule of `teacher`."""

    __name__ = "teacher"
    temperature: float | None
    own: bool  # rows and columns are the same samples; pairs with themselves are excluded

    def __call__(self, tile: Tile) -> tuple[Array, ...]:
        scores = _inner_products(tile.rows, tile.columns)
        xp = namespace_of(scores)
        among = tile.mask
        if self.own:
            others = _differ(tile.i, tile.j)
            among = others if among is None else xp.logical_and(among, others)
        if self.temperature is None:
            weights = 0.5 + 0.5 * scores
            weights = weights if among is None else xp.where(among, weights, xp.zeros_like(weights))
        else:
            # Maximum over included pairs only: a larger excluded score could make all weights underflow.
            scores = scores if among is None else xp.where(among, scores, -math.inf)
            largest = xp.max(scores, axis=1, keepdims=True)
            largest = xp.where(largest == -math.inf, xp.zeros_like(largest), largest)
            weights = xp.exp((scores - largest) / self.temperature)
        return (tile.i >= 0 if among is None else among), tile.i < 0, weights


_FARTHEST = 1e17
"""Largest difference of labels, in bandwidths; its square is finite in float32."""


class _KernelRule(Record):
    """Rule of `kernel`, for labels in units of the bandwidth."""

    __name__ = "kernel"
    own: bool  # rows and columns are the same samples; pairs with themselves are excluded

    def __call__(self, tile: Tile) -> tuple[Array, ...]:
        apart = tile.rows[0] - tile.columns[0]
        xp = namespace_of(apart)
        apart = xp.where(xp.abs(apart) > _FARTHEST, _FARTHEST, apart)  # whose square does not overflow
        exponents = -0.5 * apart * apart
        exponents = exponents if len(exponents.shape) == 2 else xp.sum(exponents, axis=-1)  # noqa: PLR2004  (numbers)
        among = tile.mask
        if self.own:
            others = _differ(tile.i, tile.j)
            among = others if among is None else xp.logical_and(among, others)
        # Weights relative to the nearest included column, so that they cannot all underflow.
        exponents = exponents if among is None else xp.where(among, exponents, -math.inf)
        largest = xp.max(exponents, axis=1, keepdims=True)
        largest = xp.where(largest == -math.inf, xp.zeros_like(largest), largest)
        weights = xp.astype(xp.exp(exponents - largest), tile.dtype)
        return (tile.i >= 0 if among is None else among), tile.i < 0, weights


class SmoothedRule(Record):
    """Rule of `smoothed`."""

    __name__ = "smoothed"
    smoothing: float

    def __call__(self, tile: Tile) -> tuple[Array, ...]:
        own, others = _diagonal_rule(tile)
        xp = namespace_of(own)
        zero = xp.astype(tile.i - tile.i, tile.dtype)
        share = (zero + self.smoothing) / tile.n_columns  # in the scores' dtype, which may exceed a Python float
        weight = xp.where(own, 1.0 - (zero + self.smoothing) + share, share)
        return _or(own, others), _and(own, others), weight


def _guided_rule(tile: Tile) -> tuple[Array, Array]:
    own, others = _diagonal_rule(tile)
    # A comparison with NaN is False, so the column stays a negative.
    return own, _and(others, _not(_inner_products(tile.rows[1:], tile.columns[1:]) > tile.rows[0]))


def takes_products(rule: Rule) -> bool:
    """Whether a rule takes the inner product of each pair, for `explain`; False for users' rules."""
    while isinstance(rule, _RuleOf):
        rule = rule.rule
    return isinstance(rule, _TeacherRule) or rule is _guided_rule or rule is _overlap_rule


def _everything(tile: Tile) -> tuple[Array, Array]:
    every = _or(tile.i >= 0, tile.j >= 0)
    return every, every


class _PositivesOf(_RuleOf):
    """Rule whose pairs are all positives."""

    def __call__(self, tile: Tile) -> tuple[Array, ...]:
        positives = self.rule(tile)[0]
        return positives, _and(positives, _not(positives))


def _explicit_rule(tile: Tile) -> tuple[Array, Array]:
    return tile.pairs[0], _not(tile.pairs[0])


_VALID_QUEUE = _Among(_queue_rule, _marked_columns)
_OWN_LABELS, _VALID_LABELS = _Among(_labels_rule, _off_diagonal), _Among(_labels_rule, _marked_columns)
_OWN_OVERLAP, _OTHERS = _Among(_overlap_rule, _off_diagonal), _Among(_everything, _off_diagonal)

_DIAGONAL = Pairing(_diagonal_rule, one_per_row=True, one_per_column=True)._replace(
    positives=OnDiagonals(1), exchangeable=True, paired=True
)
_QUEUE = _DIAGONAL._replace(rule=_queue_rule, positives=AheadOfQueue(), exchangeable=False)
_TWO_VIEWS = _QUEUE._replace(rule=_Views(2), positives=OnDiagonals(2))
