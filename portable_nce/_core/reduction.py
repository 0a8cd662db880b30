"""From the losses of the rows to the result."""

from __future__ import annotations

from .namespace import lift_to_tape, namespace_of
from .numerics import sum_to_scalar
from .protocol import Array

__all__ = ["REDUCTIONS", "average", "divided", "reduce_sum", "reduce_values"]

REDUCTIONS = ("mean", "sum", "none")


def reduce_values(
    values: Array, counted: Array, weights: Array | None, reduction: str, number: Array | None = None
) -> Array:
    """The weighted mean or sum of the values that count, of shape (1,), or the weighted values (N,).

    The mean divides by the weights of the values that count, each times its number; without any, it is 0.
    """
    given = (values, counted, *(x for x in (weights, number) if x is not None))
    ((values, counted, *further),) = lift_to_tape(given)
    xp = namespace_of(values)
    weight = xp.astype(counted, values.dtype)
    if weights is not None:
        weights = further.pop(0)
        weight = weight * weights
    # A value without weight is no contribution, whatever it is.
    dead = xp.logical_or(xp.logical_not(counted), xp.logical_and(xp.logical_not(xp.isfinite(values)), weight == 0))
    weighted = xp.where(dead, xp.zeros_like(values), values) * weight
    if reduction == "none":
        return weighted
    total = sum_to_scalar(xp, weighted)
    if reduction == "sum":
        return total
    return divided(total, sum_to_scalar(xp, weight * further[0] if further else weight))


def reduce_sum(total: Array, number: Array | int, weights: Array | None, reduction: str) -> Array:
    """A weighted sum of losses, or their mean.

    `number` says how often each row counts; a Python number says how many rows there are, each of which counts once.
    """
    if reduction == "sum":
        return total
    if isinstance(number, int):
        if weights is None:
            return total / float(number)
        ((total, norm),) = lift_to_tape((total, weights))
    else:
        given = (total, number) if weights is None else (total, number, weights)
        ((total, norm, *further),) = lift_to_tape(given)
        norm = norm * further[0] if further else norm
    return divided(total, sum_to_scalar(namespace_of(norm), norm))


def divided(total: Array, norm: Array) -> Array:
    """The total divided by the norm; 0, with gradient 0, where that is 0."""
    xp = namespace_of(norm)
    nothing = norm == 0
    return xp.where(nothing, xp.zeros_like(total), total) / xp.where(nothing, xp.ones_like(norm), norm)


def average(first: Array, second: Array) -> Array:
    """The mean of the two directions of a symmetric loss."""
    return 0.5 * first + 0.5 * second
