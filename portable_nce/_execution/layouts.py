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
from .channels import Channel
from .families import Plan
from .row_losses import divided
from .sets import Sets
from .tiling import Sizes, Tiling

NeedGradOf = bool | tuple[bool, ...]
"""Whether gradients are wanted, or of which arrays."""


class NeedGrad(NamedTuple):
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


class SweepResult(NamedTuple):
    """Losses of the rows, how often each counts in a mean, and the gradients.

    `divisor`: the number of the mean, if the layout asks for it, and gradients have been divided by it.
    """

    values: Array
    counts: Array
    gradients: Gradients
    divisor: int | None = None


class Layout(NamedTuple):
    """Static arguments of a sweep; hashable.

    Attributes
    ----------
    plan : Plan
        What the rows add up.
    sets : Lines, Classes or Judged
        Where the positives and negatives of a tile are.
    sizes : Sizes or Tiling
        How blocks and tiles are chosen, or chosen already.
    channels : tuple of Channel
        Similarities whose scores of each pair are compared; one for all losses but RELIC's divergence.
    counts : tuple of int
        Number of arrays in each group of `Inputs`.
    unit : bool
        Whether operands are unit rows times the scale, so that no score overflows.
    bound : float
        Largest magnitude of the scores, if it is known.
    mean, values : bool
        Whether the sum is divided by the number of rows; whether losses of rows are returned instead.
    own : bool
        Whether rows and columns are the same, in a two-sided sweep.
    shards : Shards, optional
        Ranks that have the other rows, for a sweep that adds up columns.
    embedded : bool
        Whether rows, columns and partners are embeddings, of which unit rows are made first.
    scale : float, optional
        Factor of the unit rows, unless it is an array.
    """

    plan: Plan
    sets: Sets
    sizes: Sizes | Tiling
    channels: tuple[Channel, ...] = ()
    counts: tuple[int, ...] = ()
    unit: bool = False
    bound: float = math.inf
    mean: bool = False
    values: bool = False
    own: bool = False
    shards: Shards | None = None
    embedded: bool = False
    scale: float | None = None


def reduced(xp: Namespace, layout: Layout, found: SweepResult) -> SweepResult:
    """The sum of the losses, or their mean over the rows that count, with its gradients."""
    if layout.values:
        return found
    values, counts, gradients, divisor = found
    total = divided(sum_to_scalar(xp, values), divisor)  # once: a loss divided by N is another rounding of each row
    if not layout.mean or divisor is not None:
        return SweepResult(total, counts, gradients)
    count = sum_to_scalar(xp, counts)
    count = xp.where(count == 0, xp.ones_like(count), count)  # without rows, all that is divided is 0

    def shared(x: Array | None) -> Array | None:
        return x if x is None else x / xp.reshape(count, (1,) * len(x.shape))

    return SweepResult(total / count, counts, Gradients(*([shared(x) for x in group] for group in gradients)))
