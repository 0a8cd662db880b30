"""Positives and negatives of a tile: on diagonals, in classes of sorted labels, or by the rule of a pairing.

On diagonals, the column of each positive is known before the sweep, and its score is the product of two vectors. Tiles
then hold negatives alone, except for the entries on diagonals of positives or self-pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .._core.namespace import device_of, namespace_of
from .._core.numerics import entries_at, upcast
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..pairings import (
    ByIndex,
    Members,
    NoPositives,
    Positives,
    Rule,
    Tile,
    is_own,
    members_of,
    undefined_rows,
    with_own,
)
from .inputs import Inputs
from .row_losses import Exclude
from .tiling import Bounds


class TileSets(Protocol):
    """Positives and negatives of the tiles of a matrix. The law of all: the tiles partition the pairs of the matrix."""

    def of(self, k: int, start: Array | int, block: Inputs) -> Exclude | Members:
        """Pairs of tile k of the block that begins at row `start`.

        Either the members, or a function that replaces the entries that are not negatives: then the tile has no
        positives.
        """
        raise NotImplementedError


class Diagonals(NamedTuple):
    """Cyclic diagonals of positives: row i has positives in columns ``i + distance`` modulo the number of columns.

    All other columns are negatives, but for columns whose label is that of the row. `self_pairs`: column i is row i
    itself, not a negative. `n_own_columns`: the diagonals are confined to the first columns (the shard of a rank, or a
    matrix with extra columns). `indexed`: the positives are the columns in `targets` of `Inputs` instead. Neither
    distances nor an index: the positives are the partners in `Inputs`, or there are none.
    """

    distances: tuple[int, ...] = (0,)
    self_pairs: bool = False
    n_own_columns: int | None = None
    indexed: bool = False

    @property
    def n_positives(self) -> int:
        """Number of columns of the tiles that are positives of a row."""
        return len(self.distances) + int(self.indexed)

    def negatives(self, n_columns: int) -> int:
        """Number of negatives of a row, the ones that labels exclude included."""
        return n_columns - int(self.self_pairs) - self.n_positives

    def with_numbers(self, numbers: Numbers) -> Diagonals:
        """Diagonals with the numbers that `without_numbers` took away."""
        return self._replace(distances=numbers.distances, n_own_columns=numbers.n_own_columns)


NO_DIAGONALS = Diagonals(())
"""All columns are negatives."""


class SortedClasses(NamedTuple):
    """Rows and columns sorted by label, with tiles cut between classes.

    `self_pairs`: a row with itself is neither positive nor negative. `ids`: it is the only positive.
    """

    self_pairs: bool = False
    ids: bool = False


class PairRule(NamedTuple):
    """The rule of a pairing, applied to each block; `single`: no row has several positives.

    `shape`: shape of the whole matrix, if this is a shard.
    """

    rule: Rule
    single: bool = False
    shape: tuple[int, int] | None = None


Sets = Diagonals | SortedClasses | PairRule
"""Positions of positives and negatives, as static arguments of a sweep."""


class Numbers(NamedTuple):
    """Numbers of a matrix and of its sets that change with the size of a batch.

    `shape` of the matrix; `distances` and `n_own_columns` of `Diagonals`; `whole`: shape of the matrix of which this is
    a shard.
    """

    shape: tuple[int, int]
    distances: tuple[int, ...] = ()
    n_own_columns: int | None = None
    whole: tuple[int, int] | None = None


def without_numbers(sets: Sets, shape: tuple[int, int]) -> tuple[Sets, Numbers]:
    """Sets without their numbers, and the numbers."""
    if isinstance(sets, Diagonals):
        numbers = Numbers(shape, sets.distances, sets.n_own_columns)
        return sets._replace(distances=(0,) * len(sets.distances), n_own_columns=None), numbers
    if isinstance(sets, PairRule):
        return sets._replace(shape=None), Numbers(shape, whole=sets.shape)
    return sets, Numbers(shape)


class TilePosition(NamedTuple):
    """First row of a tile, its first column, the column after its last, and the number of columns of the diagonals."""

    start: Array | int
    low: Array | int
    high: Array | int
    n_columns: int


def diagonals_of(positives: Positives, n_rows: int, n_own_columns: int | None = None) -> Diagonals:
    """Diagonals of positives that are columns."""
    if isinstance(positives, (NoPositives, ByIndex)):
        return Diagonals((), indexed=isinstance(positives, ByIndex))
    views = positives.views
    distances = tuple(k * (n_rows // views) for k in range(1, views)) or (0,)
    return Diagonals(distances, self_pairs=views > 1, n_own_columns=n_own_columns)


def partners(xp: Namespace, diagonals: Diagonals, inputs: Inputs) -> tuple[Array, ...]:
    """The positive columns of each row: one array per distance, or one by index (arbitrary in rows without one)."""
    columns, n_rows = inputs.columns[0], inputs.shape[0]
    if diagonals.indexed:
        return (xp.take(columns, places_of(inputs), axis=0),)
    if diagonals.n_own_columns is not None:
        columns = columns[: diagonals.n_own_columns, ...]
    if not diagonals.distances:
        return ()
    if not diagonals.self_pairs:
        return (columns if n_rows == columns.shape[0] else columns[:n_rows, ...],)
    return tuple(xp.concat([columns[d:, ...], columns[:d, ...]], axis=0) for d in diagonals.distances)


def places_of(inputs: Inputs) -> Array:
    """Column of the positive of each row, 0 in rows without one."""
    (index,) = inputs.targets
    for present in inputs.present:
        index = namespace_of(index).where(present, index, namespace_of(index).zeros_like(index))
    return index


def partner_entries(xp: Namespace, x: Array, places: Array | None, tile: TilePosition) -> Array:
    """The entries of a tile of all columns at the places (n,) of the positives, or on its diagonal."""
    return diagonal_entries(xp, x, tile) if places is None else entries_at(x, places[:, None])[:, 0]


def present_at(mask: Array, inputs: Inputs) -> Array:
    """Rows whose positive, on the diagonal or by index, is included by a mask."""
    xp, n_columns = namespace_of(mask), inputs.shape[1]
    tile = TilePosition(0, 0, n_columns, n_columns)
    result = partner_entries(xp, mask, places_of(inputs) if inputs.targets else None, tile)
    for present in inputs.present:
        result = xp.logical_and(result, present)
    return result


def add_partners(
    xp: Namespace, diagonals: Diagonals, inputs: Inputs, to_columns: Array, to_partners: Sequence[Array]
) -> Array:
    """Add the cotangents of the partners to the cotangent of their columns, which may be overwritten."""
    if diagonals.indexed:
        (added,) = to_partners
        return adapter_of(to_columns).add_rows(to_columns, places_of(inputs), added)
    if diagonals.n_own_columns is not None:
        first, others = to_columns[: diagonals.n_own_columns, ...], to_columns[diagonals.n_own_columns :, ...]
        whole = diagonals._replace(n_own_columns=None)
        return xp.concat([add_partners(xp, whole, inputs, first, to_partners), others], axis=0)
    for distance, added in zip(diagonals.distances, to_partners, strict=True):
        n_rows = added.shape[0]
        if diagonals.self_pairs:
            back = n_rows - distance
            to_columns = to_columns + xp.concat([added[back:, ...], added[:back, ...]], axis=0)
        elif n_rows == to_columns.shape[0]:
            to_columns = to_columns + added
        else:
            to_columns = xp.concat([to_columns[:n_rows, ...] + added, to_columns[n_rows:, ...]], axis=0)
    return to_columns


def diagonal_entries(xp: Namespace, x: Array, tile: TilePosition) -> Array:
    """The diagonal entries of a tile of all columns."""
    if adapter_of(x).mode == "traced":
        return entries_at(x, _diagonal_columns(x, 0, tile)[:, None])[:, 0]
    first = xp.arange(x.shape[0], device=device_of(x)) * x.shape[1]
    return xp.take(xp.reshape(x, (-1,)), first + _diagonal_columns(x, 0, tile), axis=0)


def by_partner(numbers: Array, count: int) -> list[Array]:
    """Numbers of rows, (n,) or (n, P), as one array (n,) per partner."""
    return [numbers] if count == 1 else [numbers[:, k] for k in range(count)]


def put_diagonal(x: Array, distance: int, value: float | Array, tile: TilePosition) -> Array:
    """Put a number, or one per row, on the diagonal of a tile at a distance; the tile may be overwritten."""
    start, low, high, n_columns = tile
    known = isinstance(start, int) and isinstance(low, int) and isinstance(high, int)
    if not known or adapter_of(x).mode != "eager":
        return adapter_of(x).fill_columns(x, _diagonal_columns(x, distance, tile) - low, value)
    if 0 in x.shape:  # of a rank without rows or columns
        return x
    first, count = (start + distance) % n_columns, x.shape[0]
    # The diagonal through (start, first) continues from column 0 beyond the last column.
    for shift in (0, n_columns) if first + count > n_columns else (0,):
        a, b = max(low, 0, first - shift), min(high, n_columns, first - shift + count)
        if a < b:
            x = adapter_of(x).fill_diagonal(x, a - first + shift, a - low, b - a, value)
    return x


def _diagonal_columns(x: Array, distance: int, tile: TilePosition) -> Array:
    """Column of each row of a tile on the diagonal at a distance."""
    xp = namespace_of(x)
    number = xp.arange(x.shape[0], dtype=xp.int32, device=device_of(x)) + (tile.start + distance)
    return xp.where(number >= tile.n_columns, number - tile.n_columns, number)


# -------------------------------------------------------------------------------------------------- sets of all tiles


class DiagonalSets(NamedTuple):
    """Sets of tiles with diagonals of positives; `ids`: ids of the columns of each tile."""

    diagonals: Diagonals
    bounds: Sequence[tuple[Array | int, Array | int]]
    n_columns: int
    ids: Sequence[Array] = ()

    def of(self, k: int, start: Array | int, block: Inputs) -> Exclude:
        """Function that replaces the entries of tile k that are not negatives."""
        diagonals, tile = self.diagonals, self._position(k, start)

        def exclude(x: Array, value: float) -> Array:
            if self.ids:
                same = block.row_labels[0][:, None] == self.ids[k][None, :]
                x = namespace_of(x).where(same, value, x)
            for mask in block.mask:  # of all columns, as the tile
                x = adapter_of(x).where_in_place(mask, x, value)
            if diagonals.indexed:
                return self._fill(x, k, start, block, value)
            for distance in diagonals.distances:
                x = put_diagonal(x, distance, value, tile)
            return put_diagonal(x, 0, value, tile) if diagonals.self_pairs else x

        return exclude

    def put(self, x: Array, values: Array, k: int, start: Array | int, block: Inputs) -> Array:
        """Put the cotangents of the positives' scores at their entries of tile k, which may be overwritten."""
        distances = self.diagonals.distances
        if self.diagonals.indexed:
            return self._fill(x, k, start, block, values)
        for distance, value in zip(distances, by_partner(values, len(distances)), strict=True):
            x = put_diagonal(x, distance, value, self._position(k, start))
        return x

    def _fill(self, x: Array, k: int, start: Array | int, block: Inputs, value: float | Array) -> Array:
        """Put a number, or one per row, into the columns of the index that tile k has."""
        columns, inside = block.targets[0], len(self.bounds) == 1 and len(block.present) == 0
        columns = columns if inside else columns - self._position(k, start).low
        return adapter_of(x).fill_columns(x, columns, value, inside=inside)

    def _position(self, k: int, start: Array | int) -> TilePosition:
        n_own_columns = self.diagonals.n_own_columns
        return TilePosition(start, *self.bounds[k], self.n_columns if n_own_columns is None else n_own_columns)


class ClassSets(NamedTuple):
    """Sets of tiles of sorted labels, cut between classes."""

    classes: SortedClasses
    blocks: Bounds
    labels: Sequence[Array]

    def of(self, k: int, start: Array | int, block: Inputs) -> Exclude | Members:
        """Members of the tile that holds the positives of a block; all pairs of any other tile are negatives."""
        if self.blocks[k][0] != start:
            return lambda x, _: x
        rows, columns = block.row_labels[0], self.labels[k]
        xp = namespace_of(rows)
        same = rows[:, None] == columns[None, :]
        negatives = xp.logical_not(same)
        if not (self.classes.self_pairs or self.classes.ids):
            return Members(same, negatives)
        number = xp.arange(rows.shape[0], device=device_of(rows))
        diagonal = number[:, None] == number[None, :]
        positives = diagonal if self.classes.ids else xp.logical_and(same, xp.logical_not(diagonal))
        return Members(positives, negatives)


class RuleSets(TileSets):
    """Sets of tiles of all columns, by the rule of a pairing and a mask; `shape`: of the matrix, if not of `inputs`."""

    def __init__(self, pair_rule: PairRule, inputs: Inputs, shape: tuple[int, int] | None = None) -> None:
        first, shape = inputs.rows[0], shape or inputs.shape
        xp = self.xp = namespace_of(first)
        self.rule, self.shape, self.device = pair_rule.rule, pair_rule.shape or shape, device_of(first)
        # Clearing a diagonal takes less than a mask of it.
        in_order = adapter_of(first).mode == "eager" and not inputs.column_numbers and shape[0] == shape[1]
        self.with_own = with_own(self.rule) if in_order else None
        self.is_own = in_order and is_own(self.rule)
        self.dtype = upcast(xp, first).dtype
        (numbers,) = inputs.column_numbers or (xp.arange(shape[1], device=self.device),)
        self.numbers, *self.labels = [x[None, ...] for x in (numbers, *inputs.column_labels)]

    def of(self, k: int, start: Array | int, block: Inputs) -> Members:
        del k
        xp, (mask,) = self.xp, block.mask or (None,)
        if self.is_own:
            return self._own(block.rows[0].shape[-2], start, mask)
        (numbers,) = block.row_numbers or (xp.arange(block.rows[0].shape[-2], device=self.device) + start,)
        numbers, *labels = [x[:, None, ...] for x in (numbers, *block.row_labels)]
        both = tuple(labels), tuple(self.labels)
        tile = Tile(numbers, self.numbers, *self.shape, *both, block.pairs, self.dtype, mask)
        if self.with_own is None:
            return members_of(self.rule, tile)
        members, place = members_of(self.with_own, tile), TilePosition(start, 0, self.shape[1], self.shape[1])
        return Members(*[put_diagonal(x, 0, value=False, tile=place) for x in members[:2]], *members[2:])  # type: ignore[call-arg]

    def _own(self, n_rows: int, start: Array | int, mask: Array | None) -> Members:
        """Members of a tile whose positives are the pairs of each row with itself."""
        xp, shape, place = self.xp, (n_rows, self.shape[1]), TilePosition(start, 0, self.shape[1], self.shape[1])
        own = put_diagonal(xp.zeros(shape, dtype=xp.bool, device=self.device), 0, value=True, tile=place)
        others = put_diagonal(xp.ones(shape, dtype=xp.bool, device=self.device), 0, value=False, tile=place)
        if mask is not None:
            own, others = xp.logical_and(own, mask), xp.logical_and(others, mask)
        return Members(own, others)


class OnePositive(NamedTuple):
    """Pairs of rows with one positive each, at a known column; all other columns are negatives.

    `columns` (n,), of which those of rows that are not `present` are arbitrary; None: all are.
    """

    columns: Array
    present: Array | None = None

    @staticmethod
    def of(block: Inputs) -> OnePositive:
        """The pairs of a block with `targets`."""
        return OnePositive(places_of(block), block.present[0] if block.present else None)

    def scores(self, scores: Array) -> Array:
        """Scores (n,) of the positives; -inf without one."""
        found = entries_at(scores, self.columns[:, None])[:, 0]
        return found if self.present is None else namespace_of(found).where(self.present, found, -math.inf)

    def negatives(self, scores: Array) -> Array:
        """The scores, in a new array, with -inf at the positives."""
        columns = self.columns
        if self.present is not None:
            columns = namespace_of(columns).where(self.present, columns, -1)
        inside = self.present is None
        return adapter_of(scores).fill_columns(scores + 0.0, columns, -math.inf, inside=inside)


def with_undefined(members: Members, scores: tuple[Array, ...], *, counts: bool) -> tuple[Members, tuple[Array, ...]]:
    """Put NaN into the scores of rows with a weight of NaN; `counts`: weights also count pairs, and NaN counts 1."""
    undefined = undefined_rows(members)
    if undefined is None:
        return members, scores
    xp = namespace_of(*scores)
    added = xp.where(undefined[:, None], math.nan, xp.zeros_like(scores[0][:, :1]))
    if counts:
        ones = (x if x is None else xp.where(xp.isnan(x), xp.ones_like(x), x) for x in members[2:])
        members = Members(*members[:2], *ones)
    return members, tuple(x + added for x in scores)
