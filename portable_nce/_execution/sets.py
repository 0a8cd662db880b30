"""Where the positives and negatives of a tile are: on lines, in classes of sorted labels, or as a rule says.

A row's positive on a line is found by its number, so that its score is the product of two vectors: the tile holds
negatives alone, but for the entries that a line of positives, or of own columns, crosses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .._core.namespace import device_of, namespace_of
from .._core.numerics import upcast
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..pairings import Members, Rule, Structure, Tile, split, undefined_rows
from .inputs import Inputs
from .row_losses import Exclude
from .tiling import Bounds


class Diagonals(NamedTuple):
    """Cyclic diagonals that hold the positives: those of row i are in columns ``i + distance`` modulo the columns.

    All other columns are negatives. Variants:

    `own`: column i is the row itself, and no negative. `by_index`: an array gives the column of each positive.
    `separate_queue`: the positives are another array, and all columns are negatives. `ids`: columns with the id of the
    row are no negatives. No distances: rows have no positive. `n_own_columns`: the diagonals are those of the first
    columns, so many (the shard of a rank, or a matrix with extra columns).
    """

    distances: tuple[int, ...] = (0,)
    own: bool = False
    by_index: bool = False
    separate_queue: bool = False
    ids: bool = False
    n_own_columns: int | None = None

    @property
    def given(self) -> bool:
        """Whether the positives are an operand of their own."""
        return self.by_index or self.separate_queue

    @property
    def in_tiles(self) -> bool:
        """Whether positives are entries of tiles whose other entries, but for own columns, are negatives."""
        return not (self.given or self.ids) and len(self.distances) > 0

    def negatives(self, n_columns: int) -> int:
        """How many negatives a row has among so many columns."""
        return n_columns - int(self.own) - (0 if self.separate_queue else len(self.distances))


class SortedClasses(NamedTuple):
    """Rows and columns sorted by labels, with tiles cut between classes: own columns are neither, or the positives."""

    own: bool = False
    ids: bool = False


class PairRule(NamedTuple):
    """The rule of a pairing, which is asked for each block; whether no row has several positives by it.

    `shape`: that of the matrix of which this is a part.
    """

    rule: Rule
    single: bool = False
    shape: tuple[int, int] | None = None


Sets = Diagonals | SortedClasses | PairRule
"""Where positives and negatives are, as static arguments of a sweep."""


class Place(NamedTuple):
    """Where a tile lies: its first row, its first column, the one after its last, and how many there are.

    If there is a window, these are its own.
    """

    start: Array | int
    low: int
    high: int
    n_columns: int


def diagonals_of(structure: Structure, n_rows: int, n_own_columns: int | None = None) -> Diagonals:
    """The lines of a pairing's structure."""
    if structure.absent or structure.given:
        return Diagonals(
            () if structure.absent else (0,), by_index=structure.by_index, separate_queue=structure.separate_queue
        )
    views = structure.views
    distances = tuple(k * (n_rows // views) for k in range(1, views)) or (0,)
    return Diagonals(distances, own=views > 1, ids=structure.ids, n_own_columns=n_own_columns)


def partners(xp: Namespace, diagonals: Diagonals, columns: Array, n_rows: int) -> tuple[Array, ...]:
    """The columns that are positive with each row, those of one distance in an array."""
    if diagonals.n_own_columns is not None:
        columns = columns[: diagonals.n_own_columns, ...]
    if not diagonals.distances:
        return ()
    if not diagonals.own:
        return (columns if n_rows == columns.shape[0] else columns[:n_rows, ...],)
    return tuple(xp.concat([columns[d:, ...], columns[:d, ...]], axis=0) for d in diagonals.distances)


def add_partners(xp: Namespace, diagonals: Diagonals, to_columns: Array, to_partners: Sequence[Array]) -> Array:
    """The cotangent of the columns, with those of the partners each in its place."""
    if diagonals.n_own_columns is not None:
        own, others = to_columns[: diagonals.n_own_columns, ...], to_columns[diagonals.n_own_columns :, ...]
        return xp.concat([add_partners(xp, diagonals._replace(n_own_columns=None), own, to_partners), others], axis=0)
    for distance, added in zip(diagonals.distances, to_partners, strict=True):
        n_rows = added.shape[0]
        if diagonals.own:
            back = n_rows - distance
            to_columns = to_columns + xp.concat([added[back:, ...], added[:back, ...]], axis=0)
        elif n_rows == to_columns.shape[0]:
            to_columns = to_columns + added
        else:
            to_columns = xp.concat([to_columns[:n_rows, ...] + added, to_columns[n_rows:, ...]], axis=0)
    return to_columns


def partner_scores(xp: Namespace, rows: Array, others: Sequence[Array]) -> Array:
    """The scores of rows with their partners: (n,), or (n, P) of several."""
    scores = [adapter_of(rows).row_dots(rows, other) for other in others]
    return scores[0] if len(scores) == 1 else xp.stack(scores, axis=1)


def diagonal_entries(xp: Namespace, x: Array, tile: Place) -> Array:
    """The entries of a tile of all columns in the column of the number of each row."""
    first = xp.arange(x.shape[0], device=device_of(x)) * x.shape[1]
    return xp.take(xp.reshape(x, (-1,)), first + _line(x, 0, tile), axis=0)


def of_each(numbers: Array, count: int) -> list[Array]:
    """Such numbers of rows, (n,) or (n, P), in an array (n,) for each partner."""
    return [numbers] if count == 1 else [numbers[:, k] for k in range(count)]


def put_diagonal(x: Array, distance: int, value: float | Array, tile: Place) -> Array:
    """A tile, which may be overwritten, with a number, or one for each row, at each row's column of that distance."""
    if adapter_of(x).mode != "eager":
        return adapter_of(x).fill_columns(x, _line(x, distance, tile) - tile.low, value)
    start, low, high, n_columns = tile
    assert isinstance(start, int)  # noqa: S101  (known where blocks are visited one by one)
    first, count = (start + distance) % n_columns, x.shape[0]
    # Along the diagonal through (start, first), and on from column 0 where it leaves the matrix.
    for shift in (0, n_columns) if first + count > n_columns else (0,):
        a, b = max(low, 0, first - shift), min(high, n_columns, first - shift + count)
        if a < b:
            x = adapter_of(x).fill_diagonal(x, a - first + shift, a - low, b - a, value)
    return x


def _line(x: Array, distance: int, tile: Place) -> Array:
    """The column of that distance for each row of a tile."""
    xp = namespace_of(x)
    number = xp.arange(x.shape[0], dtype=xp.int32, device=device_of(x)) + (tile.start + distance)
    return xp.where(number >= tile.n_columns, number - tile.n_columns, number)


# -------------------------------------------------------------------------------------------------- sets of all tiles


class DiagonalSets(NamedTuple):
    """Sets of tiles whose positives are known before: lines, and, of ids, the pieces of those of the columns."""

    diagonals: Diagonals
    bounds: Sequence[tuple[int, int]]
    n_columns: int
    ids: Sequence[Array] = ()

    def of(self, k: int, start: Array | int, here: Inputs) -> Exclude:
        """The function that puts a number where the rows of tile k have no negative."""
        diagonals, tile = self.diagonals, self._tile(k, start)

        def exclude(x: Array, value: float) -> Array:
            if self.ids:
                same = here.row_labels[0][:, None] == self.ids[k][None, :]
                x = namespace_of(x).where(same, value, x)
            if diagonals.by_index:
                return adapter_of(x).fill_columns(x, here.targets[0] - tile.low, value)
            for distance in () if diagonals.separate_queue else diagonals.distances:
                x = put_diagonal(x, distance, value, tile)
            return put_diagonal(x, 0, value, tile) if diagonals.own else x

        return exclude

    def put(self, x: Array, values: Array, k: int, start: Array | int) -> Array:
        """Tile k, which may be overwritten, with the cotangents of the positives' scores in their places."""
        distances = self.diagonals.distances
        for distance, value in zip(distances, of_each(values, len(distances)), strict=True):
            x = put_diagonal(x, distance, value, self._tile(k, start))
        return x

    def _tile(self, k: int, start: Array | int) -> Place:
        n_own_columns = self.diagonals.n_own_columns
        return Place(start, *self.bounds[k], self.n_columns if n_own_columns is None else n_own_columns)


class ClassSets(NamedTuple):
    """Sets of tiles between whose bounds classes of sorted labels end."""

    classes: SortedClasses
    blocks: Bounds
    labels: Sequence[Array]

    def of(self, k: int, start: Array | int, here: Inputs) -> Exclude | Members:
        """The members of the tile that holds the positives of a block; all pairs of any other tile are negatives."""
        if self.blocks[k][0] != start:
            return lambda x, _: x
        rows, columns = here.row_labels[0], self.labels[k]
        xp = namespace_of(rows)
        same = rows[:, None] == columns[None, :]
        negatives = xp.logical_not(same)
        if not (self.classes.own or self.classes.ids):
            return Members(same, negatives)
        number = xp.arange(rows.shape[0], device=device_of(rows))
        diagonal = number[:, None] == number[None, :]
        own = diagonal if self.classes.ids else xp.logical_and(same, xp.logical_not(diagonal))
        return Members(own, negatives)


class RuleSets:
    """Sets of tiles of all columns, as the rule of a pairing and a mask say."""

    def __init__(self, judged: PairRule, inputs: Inputs) -> None:
        first, shape = inputs.rows[0], inputs.shape
        xp = self.xp = namespace_of(first)
        self.rule, self.shape, self.device = judged.rule, judged.shape or shape, device_of(first)
        self.dtype = upcast(xp, first).dtype
        (numbers,) = inputs.column_numbers or (xp.arange(shape[1], device=self.device),)
        self.numbers, *self.labels = [xp.expand_dims(x, axis=0) for x in (numbers, *inputs.column_labels)]

    def of(self, k: int, start: Array | int, here: Inputs) -> Members:
        """The members of the tile of a block of rows."""
        del k
        xp, (mask,) = self.xp, here.mask or (None,)
        (numbers,) = here.row_numbers or (xp.arange(here.rows[0].shape[-2], device=self.device) + start,)
        numbers, *labels = [xp.expand_dims(x, axis=1) for x in (numbers, *here.row_labels)]
        both = tuple(labels), tuple(self.labels)
        return split(self.rule, Tile(numbers, self.numbers, *self.shape, *both, here.pairs, self.dtype, mask))


def with_undefined(members: Members, scores: tuple[Array, ...], *, counts: bool) -> tuple[Members, tuple[Array, ...]]:
    """NaN in the scores of rows where the weight of a pair is NaN; `counts`: the weights also count pairs."""
    undefined = undefined_rows(members)
    if undefined is None:
        return members, scores
    xp = namespace_of(*scores)
    added = xp.where(undefined[:, None], math.nan, xp.zeros_like(scores[0][:, :1]))
    if counts:
        ones = (x if x is None else xp.where(xp.isnan(x), xp.ones_like(x), x) for x in members[2:])
        members = Members(*members[:2], *ones)
    return members, tuple(x + added for x in scores)
