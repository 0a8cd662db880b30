"""From the losses of the rows to the result."""

from __future__ import annotations

from ._namespace import is_array, namespace_of
from ._numerics import sum_to_scalar
from ._protocol import Array
from ._statistics import RowStatistics
from ._validate import same_shape
from .objectives import Objective

__all__ = ["REDUCTIONS", "average", "reduce_rows", "reduce_values"]

REDUCTIONS = ("mean", "sum", "none")


def reduce_rows(statistics: RowStatistics, objective: Objective, weights: Array | None, reduction: str) -> Array:
    """The losses of the rows by an objective, reduced over the rows that count."""
    losses = objective.rows(statistics)
    if not is_array(losses):
        message = f"objective: expected a function that returns an array, got {type(losses).__name__}"
        raise TypeError(message)
    same_shape("objective", losses, tuple(statistics.log_odds.shape))
    return reduce_values(losses, objective.counted(statistics), weights, reduction)


def reduce_values(values: Array, counted: Array, weights: Array | None, reduction: str) -> Array:
    """The weighted mean or sum of the values that count, of shape (1,), or the weighted values (N,).

    The mean divides by the weights of the values that count; without any, it is 0.
    """
    xp = namespace_of(values)
    weight = xp.astype(counted, values.dtype)
    if weights is not None:
        weight = weight * weights
    # An infinite value without weight is no contribution, not NaN.
    dead = xp.logical_or(xp.logical_not(counted), xp.logical_and(xp.isinf(values), weight == 0))
    weighted = xp.where(dead, xp.zeros_like(values), values) * weight
    if reduction == "none":
        return weighted
    total = sum_to_scalar(xp, weighted)
    if reduction == "sum":
        return total
    norm = sum_to_scalar(xp, weight)
    return total / xp.where(norm == 0, xp.ones_like(norm), norm)


def average(first: Array, second: Array) -> Array:
    """The mean of the two directions of a symmetric loss."""
    return 0.5 * first + 0.5 * second
