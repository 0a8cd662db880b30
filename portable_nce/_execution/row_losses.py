"""Losses of the rows of a block, and the base class of the families."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._core.notes import listens
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..pairings import Members
from .inputs import Arrays, Inputs, only
from .statistics import PositiveFactors, PositiveSums, from_mask, one_per_row

Exclude = Callable[[Array, float], Array]
"""Replaces the entries of a tile that are not negatives by a number; may overwrite the tile."""


class ScoreFacts(NamedTuple):
    """Facts about the scores of a sweep, and the divisor of its losses.

    `small`: exponentials of scores need no shift; `finite`: no score overflows; `complete`: every row has a positive
    and `n_negatives`; `absent`: a score up to this belongs to a column left out; `single`: no row has several
    positives; `given`: tiles are the caller's scores, and not to be overwritten; `need_grad`: cotangents are needed.
    """

    small: bool = False
    finite: bool = False
    complete: bool = False
    absent: float | None = None
    n_negatives: int = 0
    divisor: int | None = None
    single: bool = False
    given: bool = False
    need_grad: bool = True


class RowLosses(NamedTuple):
    """Weighted losses of some rows, their counts in a mean, and the row factors of the cotangents.

    `coefficient` (n,) multiplies the residuals. `to_positive` are the cotangents of the positives' scores, or their
    factors; `row_cotangents` those of the parameters and weights of the rows, in this order. `quotient` (n,): of two
    residuals, the coefficient multiplies the first times this, minus the second.
    """

    values: Array
    row_counts: Array
    coefficient: Array = None
    to_positive: Array | PositiveFactors = None
    row_cotangents: Arrays = ()
    quotient: Array = None

    def averaged(self, count: Array) -> RowLosses:
        """The losses with all cotangents divided by a number (1,)."""

        def by(x: Array) -> Array:
            return x if x is None else x / (count if len(x.shape) == 1 else count[:, None])

        return self.rescaled(by)._replace(row_cotangents=tuple(map(by, self.row_cotangents)))

    def rescaled(self, by: Callable[[Array], Array]) -> RowLosses:
        """The losses with `by` applied to the factors of the scores' cotangents."""
        positive = self.to_positive
        positive = PositiveFactors(*map(by, positive)) if isinstance(positive, PositiveFactors) else by(positive)
        return self._replace(coefficient=by(self.coefficient), to_positive=positive)


def divided(x: Array, divisor: int | None) -> Array:
    """`x` divided by a whole number, exact in every dtype, unlike its inverse. None or 0: no division."""
    return x if not divisor or divisor == 1 else x / divisor


def weigh(
    xp: Namespace, values: Array, weights: Array | None, counted: Array | None
) -> tuple[Array, Array | None, Array | None]:
    """The weighted values of the rows that count, the factor of their slopes, and the slopes of the weights.

    Without `counted` all rows count; a factor of None is 1. A row of weight 0 contributes 0, even if its value is not
    finite.
    """
    if weights is None:
        if counted is None:
            return values, None, None
        return xp.where(counted, values, xp.zeros_like(values)), xp.astype(counted, values.dtype), None
    dead = xp.logical_and(xp.logical_not(xp.isfinite(values)), weights == 0)
    if counted is not None:
        dead = xp.logical_or(xp.logical_not(counted), dead)
    zero = xp.zeros_like(values)
    values = xp.where(dead, zero, values)
    return values * weights, xp.where(dead, zero, weights), values


class Family(ABC):
    """Row sums over tiles, the losses of rows, and the cotangents of their scores.

    The laws of all: `merge` is associative, so that the losses do not depend on the cut into tiles; a tile without
    negatives changes nothing. Arrays of rows have n entries, tiles have the shape (n, k). Of a `block`, a family reads
    what belongs to its rows: parameters, weights, sharpness and flags.

    `counts_pairs`: weights of pairs also count the pairs.
    `unshifted`: exponentials need no shift, so that residuals and coefficients are not far below 1.
    `subtracts`: scores are subtracted from one another.
    `relative`: negatives are compared with the positive of the row, whose score `against` puts into the block.
    """

    counts_pairs = False
    unshifted = True
    subtracts = True
    relative = False

    def __init__(self, xp: Namespace, spec: Any, facts: ScoreFacts) -> None:
        self.xp = xp
        self.spec = spec
        self.facts = facts
        self.need_grad = facts.need_grad

    def rounded(self, scores: Arrays) -> Arrays:
        """Scores of a tile as they would be read from memory, if the family subtracts large ones from one another."""
        if self.facts.small or not self.subtracts:
            return scores
        return tuple([adapter_of(x).rounded(x) for x in scores])

    @abstractmethod
    def add_negatives(self, scores: Arrays, exclude: Exclude, block: Inputs) -> tuple[Any, Any]:
        """What a tile of negatives adds to its rows, and its residual; scores that are not given may be overwritten."""

    @abstractmethod
    def add_masked(self, scores: Arrays, members: Members, block: Inputs) -> tuple[Any, Any, Any]:
        """What a masked tile adds to its rows, its residual, and its positives.

        Scores of a known bound that are not given may be overwritten: they are inner products, in a new array.
        """

    @abstractmethod
    def merge(self, parts: list[Any]) -> tuple[Any, Sequence[Any]]:
        """The sum of the parts of a row, and for each part the factors of its residual (None: 1)."""

    @abstractmethod
    def finish(self, total: Any, positive: Any, block: Inputs) -> RowLosses:
        """The losses of rows, and the coefficients that turn residuals into cotangents of scores."""

    def divided(self, slope: Array) -> Array:
        """A slope of the row losses, divided as their mean is."""
        return divided(slope, self.facts.divisor)

    def _counts_of_all(self, values: Array) -> Array:
        """Counts of rows that all count: ones; any array if the divisor is known and nobody reads them."""
        return values if self.facts.divisor and not listens() else self.xp.ones_like(values)

    def to_weights(self, slopes: Array | None) -> Arrays:
        """Cotangents of the row weights, if there are any."""
        return () if slopes is None else (self.divided(slopes),)

    def partner_positives(self, scores: Array, block: Inputs) -> Any:
        """Positives from their scores, (n,) or (n, P)."""
        if len(scores.shape) > 1:
            every = self.xp.ones_like(scores, dtype=self.xp.bool)
            return from_mask(self.xp, scores, every, single=False)._replace(members=None)
        return one_per_row(self.xp, scores, only(block.present))

    def against(self, scores: Array, block: Inputs) -> Inputs:
        """The block with the scores of the positives, (n,), with which negatives are compared."""
        raise NotImplementedError

    def tile_cotangent(self, residual: Any, losses: RowLosses, rescale: Any) -> tuple[Array, Array]:
        """Cotangent of a tile of negatives, as a matrix and a factor of each row; the residual may be overwritten."""
        return residual, losses.coefficient if rescale is None else losses.coefficient * rescale

    def cotangents(self, residual: Any, losses: RowLosses) -> Arrays:
        """The cotangents of an only tile's scores, of each matrix; the residual may be overwritten."""
        matrix, factor = self.tile_cotangent(residual, losses, None)
        return (adapter_of(matrix).times_in_place(matrix, factor[:, None]),)

    def masked_cotangents(
        self, residual: Any, positive: PositiveSums, losses: RowLosses, members: Members, rescale: Any = None
    ) -> Arrays:
        """The cotangents of a masked tile's scores, with one positive or several per row; a pair may be both."""
        negative, coefficient = self.tile_cotangent(residual, losses, rescale)
        negative = adapter_of(negative).times_in_place(negative, coefficient[:, None])
        return (with_positives(negative, positive, losses.to_positive, members),)


def with_positives(
    tile: Array, positive: PositiveSums, to_positive: Array | PositiveFactors, members: Members
) -> Array:
    """Cotangents of the negatives of a tile, which may be overwritten, plus those of its positives."""
    if isinstance(to_positive, PositiveFactors):
        return positive.added(tile, to_positive)
    if positive.weight_sum is None:
        return adapter_of(tile).plus_product(tile, members.positives, to_positive[:, None])
    return tile + to_positive
