"""Reduction of row losses, and the dtype and shape of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from .autodiff import stop_gradient
from .checks import is_half, readable_entry
from .namespace import common_namespace, lift_to_tape, namespace_of
from .notes import listens, note
from .numerics import continued, safe_quotient, sum_to_scalar
from .protocol import Array, Namespace
from .ranks import Shards
from .registry import adapter_of
from .types import ReductionName

_USUAL = 1e-6, 1e6
"""Range of the largest weight in which weights keep their unit."""


def _largest_magnitude(xp: Namespace, x: Array) -> Array:
    return xp.max(xp.abs(x), axis=0)


REDUCTIONS: tuple[ReductionName, ...] = get_args(ReductionName)


class Reduction(NamedTuple):
    """Weighted mean, weighted sum or none, over all ranks of a batch.

    `factor` multiplies each rank's part of the sum. `factors` multiply the row losses; unlike the weights, they are not
    in the divisor of a mean. `unit` (None: 1) is a divisor of the given weights; see `in_units`.
    """

    kind: ReductionName
    weights: Array | None = None
    shards: Shards | None = None
    factor: Array | float | None = None
    factors: Array | None = None
    unit: Array | float | None = None

    def in_units(self) -> Reduction:
        """Same mean, with the weights divided by a unit of the order of the largest, a constant.

        A sweep multiplies gradients by the weights, and the mean divides them by the sum of the weights: with weights
        of 1e-15, the product of a saturated row would underflow to 0 before the division.
        """
        # Ranks would have to agree on a unit, since they exchange coefficients of rows.
        if self.kind != "mean" or self.weights is None or self.unit is not None or self.shards is not None:
            return self
        number = readable_entry(self.weights, _largest_magnitude)
        if number is not None and (_USUAL[0] <= number <= _USUAL[1] or not 0 < number < math.inf):
            return self
        unit: Any = 1.0
        if number is not None:
            unit = 2.0 ** math.floor(math.log2(number))  # a power of 2 rounds no weight
        else:
            xp = namespace_of(self.weights)
            unit = _largest_magnitude(xp, stop_gradient(self.weights))
            unit = xp.where(xp.logical_and(unit > 0, unit < math.inf), unit, xp.ones_like(unit))
        return self._replace(weights=self.weights / unit, unit=unit)

    @property
    def is_plain_mean(self) -> bool:
        """Whether a sweep can compute the mean itself: one process, no weights, no factors."""
        return self.kind == "mean" and self.weights is None and self.shards is None and self.factors is None

    @property
    def multipliers(self) -> Array | None:
        """Weights times factors, by which a sweep multiplies the row losses."""
        if self.weights is None or self.factors is None:
            return self.factors if self.weights is None else self.weights
        ((weights, factors),) = lift_to_tape((self.weights, self.factors))
        return weights * factors

    def of_columns(self, count: int) -> Reduction:
        """Reduction of the columns, of which column i has the numbers of row i; further columns do not count."""
        weights, factors = (None if x is None else continued(x, count) for x in (self.weights, self.factors))
        return self._replace(weights=weights, factors=factors)

    def of_values(self, values: Array, counted: Array, number: Array | None = None) -> Array:
        """Weighted mean or sum of the values that count, of shape (1,), or the weighted values (N,).

        The mean divides by ``Σ weight · number`` of the values that count; if that is 0, the mean is 0.
        """
        scaled = self.in_units()
        if scaled is not self:
            return scaled.of_values(values, counted, number)
        arrays = (values, counted, *(x for x in (self.factors, self.weights, number) if x is not None))
        ((values, counted, *rest),) = lift_to_tape(arrays)
        xp = namespace_of(values)
        weight = xp.astype(counted, values.dtype)
        if self.factors is not None:
            values = values * rest.pop(0)
        if self.weights is not None:
            weight = weight * rest.pop(0)
        # 0 times inf or NaN would be NaN.
        dead = xp.logical_or(xp.logical_not(counted), xp.logical_and(xp.logical_not(xp.isfinite(values)), weight == 0))
        weighted = xp.where(dead, xp.zeros_like(values), values) * weight
        if listens():
            note(counted=weight if number is None else weight * rest[0])
        if self.kind == "none":
            return weighted
        total = sum_to_scalar(xp, weighted)
        return self._of_totals(total, weight * rest[0] if rest else weight)

    def of_sum(self, total: Array, number: Array) -> Array:
        """Mean or sum from the weighted sum of the values, of shape (1,), and their counts."""
        if self.kind == "sum" and not listens():
            return self._of_totals(total, number)
        arrays = (total, number) if self.weights is None else (total, number, self.weights)
        ((total, norm, *weights),) = lift_to_tape(arrays)
        norm = norm * weights[0] if weights else norm
        note(counted=norm)
        return self._of_totals(total, norm)

    def _of_totals(self, total: Array, norm: Array) -> Array:
        total = total if self.factor is None else total * self.factor
        if self.kind == "sum":
            return total if self.shards is None else self.shards.total(total)
        xp = namespace_of(norm)
        norm = sum_to_scalar(xp, norm)
        if self.shards is not None:
            ((total, norm),) = lift_to_tape((total, norm))
            both = self.shards.total(namespace_of(total).concat([total, norm]))
            total, norm = both[0:1], both[1:2]
        return safe_quotient(namespace_of(norm), total, norm)


def average(first: Array, second: Array) -> Array:
    """Mean of the two directions of a symmetric loss."""
    return 0.5 * first + 0.5 * second


def finish(xp: Namespace, result: Array, dtype: Any, reduction: ReductionName) -> Array:
    """Result in the dtype of the input, and 0-d unless it is one value per row."""
    if hasattr(result, "__recorded__"):
        xp = namespace_of(result)  # a parameter of a similarity or objective can be on the tape without the embeddings
    if result.dtype != dtype and is_half(dtype):
        dtype = adapter_of(result).loss_dtype(result, dtype)
    result = result if result.dtype == dtype else xp.astype(result, dtype)
    return result if reduction == "none" else xp.reshape(result, ())


def add(parts: Sequence[Array], dtype: Any, reduction: ReductionName, *, divide_by: int = 1) -> Array:
    """Sum of finished results divided by `divide_by`, in the dtype of the input."""
    xp, entered = common_namespace(**{f"part {k}": part for k, part in enumerate(parts)})
    total, *others = (xp.reshape(part, (-1,)) for part in entered)  # NumPy's sum of two 0-d arrays is a scalar
    for other in others:
        total = total + other
    return finish(xp, total / divide_by if divide_by > 1 else total, dtype, reduction)
