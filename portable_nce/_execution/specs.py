"""Static arguments of a sweep, its results, and their reduction.

A sweep is a function for `Adapter.value_and_vjp`: it returns a sum of losses, the counts of the rows, and the gradients
of the sum. With `values` in its spec it returns the losses of the rows instead, for losses in two passes: the
gradient of ``Σ c_i l_i`` comes from a second sweep with the cotangents c as weights.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .._core.checks import is_readable
from .._core.numerics import sum_to_scalar
from .._core.protocol import Array, Namespace
from .._core.ranks import Shards
from .._core.registry import adapter_of
from .channels import Channel
from .families import FamilySpec
from .inputs import Inputs
from .row_losses import divided
from .sets import PairRule, Sets
from .tiling import Sizes, Tiling

NeedGradOf = bool | tuple[bool, ...]
"""Whether all gradients are needed, or a flag for each array."""


class SweepResult(NamedTuple):
    """Losses of the rows, their counts in a mean, and the gradients by each array of `Inputs`, None if not needed.

    `divisor`: divisor of the mean, if the gradients have been divided by it. `averaged`: they have been divided by the
    sum of the counts, in the only block.
    """

    values: Array
    row_counts: Array
    gradients: Inputs | None = None
    divisor: int | None = None
    averaged: bool = False


class SweepSpec(NamedTuple):
    """Static arguments of a sweep; hashable.

    Attributes
    ----------
    family : FamilySpec
        The objective, as data.
    sets : Diagonals, SortedClasses or PairRule
        Positions of positives and negatives.
    sizes : Sizes or Tiling
        How to choose blocks and tiles, or the choice.
    channels : tuple of Channel
        Similarities whose scores of each pair are compared; one for all losses but RELIC's divergence.
    group_sizes : tuple of int
        Number of arrays in each group of `Inputs`.
    unit : bool
        Whether operands are unit rows times the scale, so that no score overflows.
    bound : float
        Largest magnitude of the scores, if it is known; of given ones, of those that take part.
    given_finite : bool
        Whether all scores are given and known to be finite.
    mean, values : bool
        Whether the sum is divided by the number of rows; whether losses of rows are returned instead.
    self_contrast : bool
        Whether rows and columns are the same, in a two-sided sweep.
    shards : Shards, optional
        Ranks with the other rows, for a sweep that sums over columns.
    embedded : bool
        Whether rows, columns and partners are embeddings, not operands.
    scale : float, optional
        Factor of the rows, unless it is an array.
    half : dtype, optional
        16-bit dtype of the embeddings, if they are multiplied as they are.
    high : bool
        Whether the library may compute float32 products faster, with fewer digits.
    fused : bool
        Whether steps are compiled, if gradients are needed.
    """

    family: FamilySpec
    sets: Sets
    sizes: Sizes | Tiling
    channels: tuple[Channel, ...] = ()
    group_sizes: tuple[int, ...] = ()
    unit: bool = False
    bound: float = math.inf
    mean: bool = False
    values: bool = False
    self_contrast: bool = False
    shards: Shards | None = None
    embedded: bool = False
    scale: float | None = None
    half: Any = None
    high: bool = False
    fused: bool = False
    given_finite: bool = False

    @property
    def by_rule(self) -> bool:
        """Whether the rule of a pairing gives the pairs of each tile."""
        return isinstance(self.sets, PairRule)

    def finite(self, rows: Array) -> bool:
        """Whether the scores of finite embeddings are finite, and infinite ones need no care.

        Inner products are `in_range`. Where entries can be read, an infinite bound means that some may be infinite.
        """
        if self.channels[0].given:
            return self.given_finite
        if self.unit or self.bound < math.inf:
            return True
        return self.channels[0].inner_product and adapter_of(rows).mode == "eager" and not is_readable(rows)


class NeedGrad(NamedTuple):
    """Which gradients are needed: any at all, and which of the operands.

    `scale`: those of row operands after the first, the factors of scores.
    """

    gradients: bool
    rows: bool
    columns: bool
    partners: bool
    scale: bool = False

    @staticmethod
    def of(spec: SweepSpec, flags: Inputs) -> NeedGrad:
        """Gradients of the operands that the gradients of the arrays take."""
        rows, columns, partners, scale = map(any, flags[:4])
        columns = rows if spec.embedded and not flags.columns else columns
        return NeedGrad(any(flags.flat), rows or scale, columns, partners, any(flags.rows[1:]))


def divisor_by(xp: Namespace, count: Array) -> Array:
    """Divisor of a mean; 1 without rows, where the sums are 0."""
    return xp.where(count == 0, xp.ones_like(count), count)


def reduced(xp: Namespace, spec: SweepSpec, result: SweepResult) -> SweepResult:
    """The sum of the losses, or their mean over the rows that count, with its gradients."""
    if spec.values:
        return result
    values, counts, gradients, divisor, has_means = result
    total = divided(sum_to_scalar(xp, values), divisor)  # once: dividing each loss would round each row
    if not spec.mean or divisor is not None:
        return SweepResult(total, counts, gradients)
    count = sum_to_scalar(xp, counts)
    if gradients is None:
        # `where`: in forward mode within forward mode, PyTorch returns no entries for second derivatives of a quotient
        # that are all 0, as those of triplets are.
        return SweepResult(xp.where(count == 0, total, total / divisor_by(xp, count)), counts, gradients)
    count = divisor_by(xp, count)
    if has_means:
        return SweepResult(total / count, counts, gradients)

    def averaged(x: Array | None) -> Array | None:
        return x if x is None else x / xp.reshape(count, (1,) * len(x.shape))

    return SweepResult(total / count, counts, Inputs(*(tuple(map(averaged, group)) for group in gradients)))
