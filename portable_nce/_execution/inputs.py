"""The arrays of a sweep in a record, which is flattened here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .._core.protocol import Array

Arrays = tuple[Array, ...]
Counts = Sequence[tuple[int, int]]
"""Numbers of operands of each channel: of those that have a gradient, and of the constants after these."""


class Inputs(NamedTuple):
    """The arrays of a sweep, by their role. Gradients are by those up to `by_row`; all others are constants.

    Attributes
    ----------
    rows, columns : tuple of array
        Operands of each channel in turn, those that have a gradient first; or embeddings, where no columns are the rows
        themselves.
    partners : tuple of array
        The positive of each row, (N, D), of an index or a queue.
    scale : tuple of array
        Factor of the rows, if embeddings are given and it is an array: of one entry, or (N, 1).
    by_row : tuple of array
        Numbers of each row, (N,), or of all: sharpness, parameters, weights, in this order.
    targets : tuple of array
        Column of the positive of each row.
    present : tuple of array
        Rows that have a positive, if not all have one.
    added : tuple of array
        Numbers that are added to the scores of each column.
    row_labels, column_labels, pairs, mask : tuple of array
        Arrays of the pairing, and the pairs that take part.
    row_numbers, column_numbers : tuple of array
        Places of rows and columns in the matrix of which this is a part.
    row_constants, column_constants : tuple of array
        Operands without a gradient, while they are `apart` from the others.
    """

    rows: Arrays = ()
    columns: Arrays = ()
    partners: Arrays = ()
    scale: Arrays = ()
    by_row: Arrays = ()
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
        """Numbers of rows and of columns; without operands of columns, that of the rows is the score matrix."""
        first = self.rows[0]
        return first.shape[-2], self.columns[0].shape[-2] if self.columns else first.shape[-1]

    def apart(self, of_rows: Counts, of_columns: Counts) -> Inputs:
        """The same with the constant operands of all channels apart from those that have a gradient."""
        if sum(count for _, count in (*of_rows, *of_columns)) == 0:
            return self
        rows, row_constants = _apart(self.rows, of_rows)
        columns, column_constants = _apart(self.columns, of_columns)
        constants = {"row_constants": row_constants, "column_constants": column_constants}
        return self._replace(rows=rows, columns=columns, **constants)

    def joined(self) -> Inputs:
        """The same with constant operands after the others."""
        if not (self.row_constants or self.column_constants):
            return self
        rows, columns = (*self.rows, *self.row_constants), (*self.columns, *self.column_constants)
        return self._replace(rows=rows, columns=columns, row_constants=(), column_constants=())

    @property
    def flat(self) -> Arrays:
        """All arrays, in the order in which adapters take them."""
        return tuple([x for group in self for x in group])

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of arrays in each group."""
        return tuple([len(group) for group in self])

    @staticmethod
    def of(counts: tuple[int, ...], arrays: Sequence[Array]) -> Inputs:
        """The arrays of a flat sequence in their groups."""
        groups: list[Arrays] = []
        start = 0
        for count in counts:
            groups.append(tuple(arrays[start : start + count]) if count else ())
            start += count
        return Inputs(*groups)


def _apart(operands: Arrays, counts: Counts) -> tuple[Arrays, Arrays]:
    """The operands of all channels that have a gradient, and those that are constant."""
    learned: Arrays = ()
    constants: Arrays = ()
    for own, further in counts:
        learned, constants = (*learned, *operands[:own]), (*constants, *operands[own : own + further])
        operands = operands[own + further :]
    return learned, constants


def of_each(operands: Arrays, counts: Counts) -> list[Arrays]:
    """The operands of each channel, of `joined` ones."""
    found, total = [], sum(own for own, _ in counts)
    learned, constants = operands[:total], operands[total:]
    for own, further in counts:
        found.append((*learned[:own], *constants[:further]))
        learned, constants = learned[own:], constants[further:]
    return found
