"""From embeddings to operands of inner products, within the node of a sweep.

A sweep is one differentiable node from embeddings to the loss: it computes unit rows, the scale and their pullbacks in
closed form. With ``u = x / |x|``, the operand ``s u`` of a row and its cotangent g:

    to x: s (g - u (u·g)) / |x|        to s: u·g, summed over the rows that share s
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

from .._core.namespace import lift_to_tape, namespace_of
from .._core.numerics import pulled_unit_rows, sum_to_scalar, unit_rows
from .._core.protocol import Array
from .inputs import Arrays, Inputs
from .layouts import Gradients, Layout, NeedGrad, NeedGradOf, SweepResult, reduced

Sweep = Callable[[Layout, Inputs, NeedGrad], SweepResult]


def takes_embeddings(sweep: Sweep) -> Callable[..., Arrays]:
    """A function for `Adapter.value_and_vjp`: makes operands of embeddings, runs the sweep, and reduces its losses."""

    @wraps(sweep)
    def function(layout: Layout, *arrays: Array, need_grad: NeedGradOf) -> Arrays:
        (arrays,) = lift_to_tape(arrays)
        inputs = Inputs.of(layout.counts, arrays)
        flags = _flags(layout, inputs, need_grad)
        sides = _sides(layout, inputs)
        result = sweep(layout, _operands(layout, inputs, sides), flags.operands)
        result = reduced(namespace_of(result.values), layout, result)
        if not need_grad:
            return result.values, result.counts
        return result.values, result.counts, *_input_gradients(layout, inputs, sides, result.gradients, flags)

    return function


class _Flags(NamedTuple):
    """Whether gradients of the rows and of the scale are needed, and of which operands."""

    rows: bool
    scale: bool
    operands: NeedGrad


def _flags(layout: Layout, inputs: Inputs, need_grad: NeedGradOf) -> _Flags:
    if isinstance(need_grad, bool):
        return _Flags(need_grad, need_grad, NeedGrad(need_grad, need_grad, need_grad, need_grad))
    rows, columns, partners, scale = map(any, Inputs.of(layout.counts, need_grad)[:4])
    columns = rows if layout.embedded and not inputs.columns else columns
    return _Flags(rows, scale, NeedGrad(gradients=True, rows=rows or scale, columns=columns, partners=partners))


class _Side(NamedTuple):
    """Unit rows and lengths, or unchanged rows and None; and the scale of the operand (None: 1)."""

    unit: Array
    length: Array | None
    scale: Any = None

    @property
    def operand(self) -> Array:
        return self.unit if self.scale is None else self.unit * self.scale

    def gradient(self, cotangent: Array | None) -> Array | None:
        """Cotangent of the embeddings, from that of their operand."""
        if cotangent is None or self.length is None:
            return cotangent if cotangent is None or self.scale is None else cotangent * self.scale
        return pulled_unit_rows(self.unit, self.length if self.scale is None else self.length / self.scale, cotangent)


def _sides(layout: Layout, inputs: Inputs) -> list[_Side]:
    """Sides of all embeddings, in the order of the inputs; none if the inputs are operands."""
    if not layout.embedded:
        return []
    arrays = (*inputs.rows, *inputs.columns, *inputs.partners)
    result: list[tuple[Array, Array | None]] = [*unit_rows(*arrays)] if layout.unit else [(x, None) for x in arrays]
    rows, *others = result
    return [_Side(*rows, inputs.scale[0] if inputs.scale else layout.scale), *[_Side(*x) for x in others]]


def _operands(layout: Layout, inputs: Inputs, sides: Sequence[_Side]) -> Inputs:
    """The operands, and one number per row. Only the sweep holds them, so their memory is free in the pullback."""
    xp, n_rows = namespace_of(*inputs.rows), inputs.rows[0].shape[-2]
    if inputs.by_row:
        spread = [xp.broadcast_to(x, (n_rows,)) if len(x.shape) == 0 else x for x in inputs.by_row]
        inputs = inputs._replace(by_row=tuple(spread))
    if not layout.embedded:
        return inputs.with_constants()
    row, *others = sides
    count = len(inputs.columns)
    columns = tuple([side.unit for side in others[:count]]) or (row.unit,)
    partners = tuple([side.unit for side in others[count:]])
    return inputs._replace(rows=(row.operand,), columns=columns, partners=partners, scale=())


def _input_gradients(
    layout: Layout, inputs: Inputs, sides: Sequence[_Side], gradients: Gradients, flags: _Flags
) -> list[Array | None]:
    """Gradients of the inputs, from those of the operands and of the numbers per row."""
    rows, columns, partners, by_row = gradients
    totals = [_total(g) if len(x.shape) == 0 else g for g, x in zip(by_row, inputs.by_row, strict=True)]
    if not layout.embedded:
        return [*rows, *columns, *partners, *totals]
    (to_rows,), (row, *others) = rows, sides
    to_scale: list[Array | None] = []
    if inputs.scale:
        to_scale = [_to_scale(row, to_rows) if flags.scale else None]
    if not flags.rows:
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
