"""The arrays of a sweep, its static arguments, and the reduction of its results.

A sweep is a function for `Adapter.value_and_vjp`: it returns a sum of losses, how often each row counts, and the
gradients of the sum. With `values` in its layout it returns the losses of the rows instead, for callers that need two
passes: the gradient of ``Σ c_i l_i`` is that of the same sweep with the cotangents c for weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .._core.numerics import sum_to_scalar
from .._core.protocol import Array, Namespace
from .._core.ranks import Shards
from ..pairings import Rule, Structure
from .channels import Channel
from .families import Plan
from .finished import divided
from .products import Arrays
from .tiling import Bounds

__all__ = ["Arrays", "Found", "Gradients", "Inputs", "Layout", "Wanted", "reduced"]


class Inputs(NamedTuple):
    """The arrays of a sweep, by their role. Gradients are by those up to `by_row`; all others are constants.

    Attributes
    ----------
    rows, columns : tuple of array
        Operands of each channel in turn; or embeddings, where no columns are the rows themselves.
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
    row_halves, column_halves : tuple of array
        Factors and 16-bit parts of the operands of each channel in turn.
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
    row_halves: Arrays = ()
    column_halves: Arrays = ()

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


class Wanted(NamedTuple):
    """Which gradients are wanted: any at all, and those of the operands."""

    gradients: bool
    rows: bool
    columns: bool
    partners: bool


class Gradients(NamedTuple):
    """Gradients of a sum of losses by the groups of `Inputs`; None where one is not wanted."""

    rows: Sequence[Array | None] = ()
    columns: Sequence[Array | None] = ()
    partners: Sequence[Array | None] = ()
    by_row: Sequence[Array | None] = ()


class Found(NamedTuple):
    """Losses of the rows, how often each counts in a mean, the gradients, and what all have been divided by.

    `is_mean`: the divisor is the number of the mean, for which the layout asks.
    """

    values: Array
    number: Array
    gradients: Gradients
    divisor: int = 1
    is_mean: bool = False


class Layout(NamedTuple):
    """Static arguments of a sweep; hashable.

    Attributes
    ----------
    plan : Plan
        What the rows add up.
    channels : tuple of Channel
        Similarities whose scores of each pair are compared; one for all losses but RELIC's divergence.
    counts : tuple of int
        Number of arrays in each group of `Inputs`.
    structure : Structure
        Where the positives of each row are, if there is no rule.
    rule : callable, optional
        Rule of the pairing, which is asked for each tile.
    single : bool
        Whether no row has several positives by the rule.
    shape : tuple of int, optional
        Shape of the matrix of which this is a part.
    unit : bool
        Whether operands are unit rows times the scale, so that no score overflows.
    bound : float
        Largest magnitude of the scores, if it is known.
    squarable : bool
        Whether no square of an operand overflows.
    mean, values : bool
        Whether the sum is divided by the number of rows; whether losses of rows are returned instead.
    own : bool
        Whether rows and columns are the same, in a two-sided sweep.
    block_size : int, "auto" or None
        As the user gave it.
    blocks, tiles : tuple of (int, int)
        Bounds of rows and columns that are sorted by labels, cut between classes: the positives of a block are in the
        tile of its number.
    window : int, optional
        Number of leading columns that belong to the rows, of a part of a larger matrix.
    shards : Shards, optional
        Ranks that have the other rows, for a sweep that adds up columns.
    embedded : bool
        Whether rows, columns and partners are embeddings, of which unit rows are made first.
    scale : float, optional
        Factor of the unit rows, unless it is an array.
    """

    plan: Plan
    channels: tuple[Channel, ...]
    counts: tuple[int, ...] = ()
    structure: Structure = Structure()
    rule: Rule | None = None
    single: bool = False
    shape: tuple[int, int] | None = None
    unit: bool = False
    bound: float = math.inf
    squarable: bool = False
    mean: bool = False
    values: bool = False
    own: bool = False
    block_size: int | str | None = None
    blocks: Bounds = ()
    tiles: Bounds = ()
    window: int | None = None
    shards: Shards | None = None
    embedded: bool = False
    scale: float | None = None


def reduced(xp: Namespace, layout: Layout, found: Found) -> Found:
    """The sum of the losses, or their mean over the rows that count, with its gradients."""
    if layout.values:
        return found
    values, number, gradients, divisor, is_mean = found
    total = divided(sum_to_scalar(xp, values), divisor)  # once: a loss divided by N is another rounding of each row
    if not layout.mean or is_mean:
        return Found(total, number, gradients)
    count = sum_to_scalar(xp, number)
    count = xp.where(count == 0, xp.ones_like(count), count)  # without rows, all that is divided is 0

    def shared(x: Array | None) -> Array | None:
        return x if x is None else x / xp.reshape(count, (1,) * len(x.shape))

    return Found(total / count, number, Gradients(*([shared(x) for x in group] for group in gradients)))
