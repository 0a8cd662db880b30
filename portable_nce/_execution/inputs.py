"""The arrays of a sweep as a record; the only place that flattens it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._core.protocol import Array

Arrays = tuple[Array, ...]
Counts = Sequence[tuple[int, int]]
"""Numbers of operands of each channel: operands with a gradient, and the constants after them."""


class Inputs(NamedTuple):
    """Arrays of a sweep by role. The groups up to `weights` have gradients; the others are constants.

    Attributes
    ----------
    rows, columns : tuple of array
        Operands of each channel in turn, those with a gradient first; or embeddings. Without columns, the rows of
        embeddings are the columns too.
    partners : tuple of array
        The positive of each row, (N, D), separate from a queue; within a sweep, also taken from the columns.
    scale : tuple of array
        Factor of the rows, if embeddings are given and it is an array: one entry, or (N, 1).
    parameters, weights : tuple of array
        Numbers of each row, (N,), or one for all rows: the parameters of the objective, and the weight in the sum.
    sharpness : tuple of array
        Factor c of the scores of a row's negatives, in value alone: they count ``e^((c - 1) g)`` times as much, with g
        constant.
    positives : tuple of array
        Scores of the partners of each row, (N,) or (N, P), within a sweep.
    targets : tuple of array
        Column of the positive of each row.
    present : tuple of array
        Boolean array of rows with a positive, unless all have one.
    added : tuple of array
        Numbers added to the scores of each column.
    row_labels, column_labels, pairs, mask : tuple of array
        Arrays of the pairing, and the mask.
    row_numbers, column_numbers : tuple of array
        Indices of rows and columns in the whole matrix, if this is a shard.
    row_constants, column_constants : tuple of array
        Operands without a gradient, after `split`.
    """

    rows: Arrays = ()
    columns: Arrays = ()
    partners: Arrays = ()
    scale: Arrays = ()
    parameters: Arrays = ()
    weights: Arrays = ()
    sharpness: Arrays = ()
    positives: Arrays = ()
    targets: Arrays = ()
    present: Arrays = ()
    added: Arrays = ()
    row_labels: Arrays = ()
    column_labels: Arrays = ()
    pairs: Arrays = ()
    mask: Arrays = ()
    row_numbers: Arrays = ()
    column_numbers: Arrays = ()
    row_constants: Arrays = ()
    column_constants: Arrays = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and of columns. Without column operands, the row operand is the score matrix."""
        first = self.rows[0]
        return first.shape[-2], self.columns[0].shape[-2] if self.columns else first.shape[-1]

    def split(self, of_rows: Counts, of_columns: Counts) -> Inputs:
        """Inputs with the constant operands of all channels in separate groups."""
        if sum(count for _, count in (*of_rows, *of_columns)) == 0:
            return self
        rows, row_constants = _separated(self.rows, of_rows)
        columns, column_constants = _separated(self.columns, of_columns)
        constants = {"row_constants": row_constants, "column_constants": column_constants}
        return self._replace(rows=rows, columns=columns, **constants)

    def with_numbers(self, function: Callable[[Arrays], Arrays]) -> Inputs:
        """Inputs with a function of each group of numbers of rows."""
        numbers = {"parameters": function(self.parameters), "weights": function(self.weights)}
        return self._replace(**numbers, sharpness=function(self.sharpness))

    def without_columns(self) -> Inputs:
        """Inputs without the arrays of columns, to be cut into blocks of rows."""
        return self._replace(columns=(), added=(), column_labels=(), column_numbers=())

    def with_constants(self) -> Inputs:
        """Inputs with the constant operands after the others."""
        if not (self.row_constants or self.column_constants):
            return self
        rows, columns = (*self.rows, *self.row_constants), (*self.columns, *self.column_constants)
        return self._replace(rows=rows, columns=columns, row_constants=(), column_constants=())

    @property
    def flat(self) -> Arrays:
        """All arrays, in the order of an adapter's arguments."""
        return tuple([x for group in self for x in group])

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Number of arrays in each group."""
        return tuple([len(group) for group in self])

    @staticmethod
    def of(group_sizes: tuple[int, ...], arrays: Sequence[Array]) -> Inputs:
        """Inputs from a flat sequence and the number of arrays in each group."""
        groups: list[Arrays] = []
        start = 0
        for count in group_sizes:
            groups.append(tuple(arrays[start : start + count]) if count else ())
            start += count
        return Inputs(*groups)


def only(group: Arrays) -> Array | None:
    """The array of a group that has at most one."""
    return group[0] if group else None


def number_of_varying(group_sizes: tuple[int, ...]) -> int:
    """Number of arrays in the groups that have gradients."""
    return sum(group_sizes[: Inputs._fields.index("weights") + 1])


def _separated(operands: Arrays, counts: Counts) -> tuple[Arrays, Arrays]:
    """Split the operands of all channels into operands with a gradient and constants."""
    learned: Arrays = ()
    constants: Arrays = ()
    for k, n in counts:
        learned, constants = (*learned, *operands[:k]), (*constants, *operands[k : k + n])
        operands = operands[k + n :]
    return learned, constants


def by_channel(operands: Arrays, counts: Counts) -> list[Arrays]:
    """Operands of each channel, from the operands of all channels `with_constants`."""
    channels, total = [], sum(k for k, _ in counts)
    learned, constants = operands[:total], operands[total:]
    for k, n in counts:
        channels.append((*learned[:k], *constants[:n]))
        learned, constants = learned[k:], constants[n:]
    return channels
