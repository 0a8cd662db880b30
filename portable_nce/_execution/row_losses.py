"""Losses of the rows of a block, and what all families share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.protocol import Array, Namespace
from ..pairings import Members
from .inputs import Arrays
from .statistics import Positives, of_line, of_members

Exclude = Callable[[Array, float], Array]
"""Puts a number where a tile has no negative; the tile may be overwritten."""


class Known(NamedTuple):
    """Facts about the scores of a sweep, and the divisor of its losses.

    `bound`: largest magnitude of a score; `finite`: no score overflows; `complete`: every row has the same pairs, a
    positive and `negatives`; `absent`: score of a column that takes no part; `single`: no row has several positives.
    """

    bound: float = math.inf
    finite: bool = False
    complete: bool = False
    absent: float | None = None
    negatives: int = 0
    divisor: int | None = None
    single: bool = False


class RowLosses(NamedTuple):
    """What some rows are worth: weighted losses, how often each row counts in a mean, and what goes back.

    `coefficient` (n,) belongs to the residuals, `to_positive` to the positives' scores, `row_cotangents` to the
    parameters and weights of the rows, in their order. `quotient` (n,): of two residuals, that of the first to the
    second.
    """

    values: Array
    counts: Array
    coefficient: Array = None
    to_positive: Array = None
    row_cotangents: Arrays = ()
    quotient: Array = None


def divided(x: Array, divisor: int | None) -> Array:
    """`x` divided by a whole number, which is exact in any dtype where its inverse is not; by none or 0, as it is."""
    return x if not divisor or divisor == 1 else x / divisor


def weigh(
    xp: Namespace, values: Array, weights: Array | None, counted: Array | None
) -> tuple[Array, Array | None, Array | None]:
    """The weighted values of the rows that count, the factor of their slopes, and the slopes of the weights.

    Without `counted` all rows count; a factor of None is 1. A value without weight is no contribution, whatever it is.
    """
    if weights is None:
        if counted is None:
            return values, None, None
        return xp.where(counted, values, xp.zeros_like(values)), xp.astype(counted, values.dtype), None
    dead = xp.logical_and(xp.logical_not(xp.isfinite(values)), weights == 0)
    if counted is not None:
        dead = xp.logical_or(xp.logical_not(counted), dead)
    nothing = xp.zeros_like(values)
    values = xp.where(dead, nothing, values)
    return values * weights, xp.where(dead, nothing, weights), values


class Family:
    """Sums of some kind over the rows of tiles, and the cotangents of these.

    `counts_pairs`: the weights of pairs also say how many there are. `skips_idle`: a row without a positive does not
    count, whatever its negatives are. `unshifted`: residuals and coefficients are not far
    below 1.
    """

    counts_pairs = False
    skips_idle = True
    unshifted = True

    def __init__(self, xp: Namespace, plan: Any, known: Known) -> None:
        self.xp = xp
        self.plan = plan
        self.known = known

    def scaled(self, slope: Array) -> Array:
        """A slope by the losses, by that of their sum divided by the divisor."""
        return divided(slope, self.known.divisor)

    def of_weights(self, slopes: Array | None) -> Arrays:
        """The slopes by the weights of rows, if these have any."""
        return () if slopes is None else (self.scaled(slopes),)

    def partner_positives(self, scores: Array, present: Array | None, by_row: Arrays) -> Any:
        """The positives of rows that have one each, (n,), or some, (n, P)."""
        del by_row
        if len(scores.shape) > 1:
            return of_members(self.xp, scores, self.xp.ones_like(scores, dtype=self.xp.bool), single=False)
        return of_line(self.xp, scores, present)

    def tile_cotangent(self, residual: Any, done: RowLosses, rescale: Any) -> tuple[Array, Array]:
        """The cotangents of a tile of negatives, as a matrix and a factor of each row."""
        return residual, done.coefficient if rescale is None else done.coefficient * rescale

    def masked_cotangents(
        self, residual: Any, positive: Positives, done: RowLosses, members: Members, rescale: Any = None
    ) -> Arrays:
        """The cotangents of a masked tile's scores, whose rows have one positive each or several."""
        negative, coefficient = self.tile_cotangent(residual, done, rescale)
        negative = negative * coefficient[:, None]
        if positive.number is None:
            return (self.xp.where(members.positives, done.to_positive[:, None], negative),)
        return (negative + done.to_positive,)
