"""What the rows of a block are worth, whatever family adds them up."""

from __future__ import annotations

from typing import NamedTuple

from .._core.protocol import Array, Namespace
from .statistics import Positives

__all__ = ["Finished", "divided", "weigh", "with_positives"]


class Finished(NamedTuple):
    """What some rows are worth: weighted losses, how often each row counts in a mean, and what goes back.

    `coefficient` (n,) belongs to the residuals, `to_positive` to the positives' scores, `to_rows` to the
    parameters and weights of the rows, in their order.
    """

    values: Array
    number: Array
    coefficient: Array = None
    to_positive: Array = None
    to_rows: tuple[Array, ...] = ()


def divided(x: Array, divisor: int) -> Array:
    """`x` divided by a whole number, which is exact in any dtype where its inverse is not."""
    return x / divisor if divisor != 1 else x


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


def with_positives(xp: Namespace, negative: Array, positive: Positives, to_positive: Array, members: Array) -> Array:
    """The cotangent of a tile: that of its negatives, with the positives', of which rows have one each or several."""
    if positive.number is None:
        return xp.where(members, to_positive[:, None], negative)
    return negative + to_positive
