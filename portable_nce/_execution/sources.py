"""From embeddings to operands of inner products, within the node of a sweep.

A sweep is one differentiable node from embeddings to the loss: it computes unit rows, the scale and their pullbacks in
closed form. With ``u = x / |x|``, the operand ``s u`` of a row and its cotangent g:

    to x: s (g - u (u·g)) / |x|        to s: u·g, summed over the rows that share s
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any, NamedTuple

from .._core.half_precision import half_rows
from .._core.namespace import device_of, is_number, lift_to_tape, namespace_of
from .._core.numerics import clipped, in_range, pulled_unit_rows, sum_to_scalar, unit_rows
from .._core.protocol import Array
from .._core.registry import adapter_of
from .inputs import Arrays, Inputs
from .specs import NeedGrad, NeedGradOf, SweepResult, SweepSpec, reduced

Sweep = Callable[[SweepSpec, Inputs, NeedGrad], SweepResult]


def takes_embeddings(sweep: Sweep) -> Callable[..., Arrays]:
    """A function for `Adapter.value_and_vjp`: makes operands of embeddings, runs the sweep, and reduces its losses."""

    @wraps(sweep)
    def function(spec: SweepSpec, *arrays: Array, need_grad: NeedGradOf) -> Arrays:
        (arrays,) = lift_to_tape(arrays)
        inputs = Inputs.of(spec.group_sizes, arrays)
        flags = flags_of(spec, need_grad)
        with adapter_of(arrays[0]).full_precision(arrays[0], high=True) if spec.high else nullcontext():
            sides = _sides(spec, inputs)
            result = sweep(spec, _operands(spec, inputs, sides), NeedGrad.of(spec, flags))
        result = reduced(namespace_of(result.values), spec, result)
        if not need_grad:
            return result.values, result.row_counts
        return (
            result.values,
            result.row_counts,
            *_input_gradients(spec, inputs, sides, result.gradients or Inputs(), flags),
        )

    return function


def flags_of(spec: SweepSpec, need_grad: NeedGradOf) -> Inputs:
    """Whether the gradient of each array is needed, by role."""
    each = [need_grad] * sum(spec.group_sizes) if isinstance(need_grad, bool) else need_grad
    return Inputs.of(spec.group_sizes, each)


class _Side(NamedTuple):
    """Unit rows and lengths, or rows times a factor (None: 1) without a length; and the scale of the operand (None: 1).

    `halves`: for 16-bit products, 16-bit rows and divisors (n, 1) whose quotient are the rows; or these rows alone.
    """

    unit: Array
    length: Array | None
    factor: Array | None = None
    halves: Arrays = ()
    scale: Any = None

    @property
    def operand(self) -> Array:
        return self.unit if self.scale is None else self.unit * self.scale

    @property
    def operands(self) -> Arrays:
        """The operand; and for 16-bit products the 16-bit rows, and their divisor if there is one."""
        if not self.halves or self.scale is None:
            return self.operand, *self.halves
        part, *own = self.halves
        xp, shape = namespace_of(self.unit), (self.unit.shape[0], 1)
        if is_number(self.scale):
            divisor = own[0] / self.scale if own else _filled(self.unit, shape, 1.0 / self.scale)
        else:  # a scale of 0 has an infinite inverse
            divisor = (own[0] if own else _filled(self.unit, shape, 1.0)) / self.scale
            divisor = clipped(xp, divisor, -_MOST, _MOST)
        return self.operand, part, divisor

    def gradient(self, cotangent: Array | None) -> Array | None:
        """Cotangent of the embeddings, from the cotangent of their operand."""
        if cotangent is None:
            return None
        if self.length is None:
            for factor in (self.factor, self.scale):
                cotangent = cotangent if factor is None else cotangent * factor
            return cotangent
        return pulled_unit_rows(self.unit, self.length if self.scale is None else self.length / self.scale, cotangent)


_MOST = 1e37
"""Largest divisor."""


def _filled(like: Array, shape: tuple[int, ...], number: float) -> Array:
    return namespace_of(like).full(shape, number, dtype=like.dtype, device=device_of(like))


def _sides(spec: SweepSpec, inputs: Inputs) -> list[_Side]:
    """Sides of all embeddings, in the order of the inputs; none if the inputs are operands."""
    if not spec.embedded:
        return []
    arrays, half = (*inputs.rows, *inputs.columns, *inputs.partners), spec.half
    xp = namespace_of(*arrays)
    if spec.unit:
        sides = [_Side(*pair) for pair in unit_rows(*arrays)]
    else:
        factors: Sequence[Array | None] | None = None
        if spec.bound == math.inf:
            scale = inputs.scale[0] if inputs.scale else spec.scale
            factors, _ = in_range(xp, arrays[0], *arrays[1:] or arrays, scale=scale)
        pairs = zip(arrays, factors or [None] * len(arrays), strict=False)
        sides = [_Side(x if factor is None else x * factor, None, factor) for x, factor in pairs]
    if half is not None:
        halves: Sequence[Arrays] = [(xp.astype(side.unit, half),) for side in sides if side.length is None]
        halves = halves or half_rows(arrays, [side.length for side in sides], half)
        sides = [side._replace(halves=own) for side, own in zip(sides, halves, strict=True)]
    rows, *others = sides
    return [rows._replace(scale=inputs.scale[0] if inputs.scale else spec.scale), *others]


def _operands(spec: SweepSpec, inputs: Inputs, sides: Sequence[_Side]) -> Inputs:
    """The operands, and one number per row. Only the sweep holds them, so their memory is free in the pullback."""
    xp, n_rows = namespace_of(*inputs.rows), inputs.rows[0].shape[-2]

    def of_each_row(group: Arrays) -> Arrays:
        return tuple([xp.broadcast_to(x, (n_rows,)) if len(x.shape) == 0 else x for x in group])

    inputs = inputs.with_numbers(of_each_row)
    if not spec.embedded:
        return inputs.with_constants()
    row, *others = sides
    count = len(inputs.columns)
    columns = others[0].operands if count else row._replace(scale=None).operands
    partners = tuple([side.unit for side in others[count:]])
    return inputs._replace(rows=row.operands, columns=columns, partners=partners, scale=())


def _input_gradients(
    spec: SweepSpec, inputs: Inputs, sides: Sequence[_Side], gradients: Inputs, flags: Inputs
) -> list[Array | None]:
    """Gradients of the inputs, from the gradients of the operands and of the numbers per row."""
    rows, columns, partners = gradients[:3]
    numbers, of_numbers = (*gradients.parameters, *gradients.weights), (*inputs.parameters, *inputs.weights)
    totals = [_total(g) if len(x.shape) == 0 else g for g, x in zip(numbers, of_numbers, strict=True)]
    if not spec.embedded:
        return [*rows, *columns, *partners, *totals]
    (to_rows,), (row, *others) = rows, sides
    to_scale: list[Array | None] = []
    if inputs.scale:
        to_scale = [_to_scale(row, to_rows) if any(flags.scale) else None]
    if not any(flags.rows):
        to_rows = None
    if not inputs.columns:  # the unscaled rows are also the columns
        to_rows = None if to_rows is None else to_rows * row.scale + columns[0]
        row, columns = row._replace(scale=None), ()
    pairs = zip(others, (*columns, *partners), strict=True)
    return [row.gradient(to_rows), *[side.gradient(g) for side, g in pairs], *to_scale, *totals]


def _to_scale(row: _Side, to_rows: Array) -> Array:
    along = namespace_of(to_rows).sum(row.unit * to_rows, axis=-1, keepdims=True)
    return along if len(row.scale.shape) > 0 else _total(along)


def _total(x: Array | None) -> Array | None:
    if x is None:
        return None
    xp = namespace_of(x)
    return xp.reshape(sum_to_scalar(xp, x), ())
