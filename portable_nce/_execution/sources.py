"""From embeddings to the operands of inner products, inside the node that a sweep is.

A sweep is one differentiable step from what the user gave to the loss: unit rows and the scale are computed in it, and
so are their pullbacks, in closed form. With ``u = x / |x|``, the operand ``s u`` of a row and its cotangent g:

    to x: s (g - u (u·g)) / |x|        to s: Σ u·g        to a number that all rows share: the sum over them
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
    """A function for `Adapter.value_and_vjp`, of a sweep over operands: it makes these of embeddings, and reduces."""

    @wraps(sweep)
    def entered(layout: Layout, *arrays: Array, need_grad: NeedGradOf) -> Arrays:
        (arrays,) = lift_to_tape(arrays)
        inputs = Inputs.of(layout.counts, arrays)
        flags = _flags(layout, inputs, need_grad)
        sides = _sides(layout, inputs)
        found = sweep(layout, _operands(layout, inputs, sides), flags.wanted)
        found = reduced(namespace_of(found.values), layout, found)
        if not need_grad:
            return found.values, found.counts
        return found.values, found.counts, *_pulled(layout, inputs, sides, found.gradients, flags)

    return entered


class _Flags(NamedTuple):
    """Whether gradients of the rows that were given, and of the scale, are wanted; and of which operands."""

    rows: bool
    scale: bool
    wanted: NeedGrad


def _flags(layout: Layout, inputs: Inputs, need_grad: NeedGradOf) -> _Flags:
    if isinstance(need_grad, bool):
        return _Flags(need_grad, need_grad, NeedGrad(need_grad, need_grad, need_grad, need_grad))
    rows, columns, partners, scale = map(any, Inputs.of(layout.counts, need_grad)[:4])
    columns = rows if layout.embedded and not inputs.columns else columns
    return _Flags(rows, scale, NeedGrad(gradients=True, rows=rows or scale, columns=columns, partners=partners))


class _Side(NamedTuple):
    """Unit rows and the lengths of the rows, or rows as they are and None; and the scale of the operand (None: 1)."""

    unit: Array
    length: Array | None
    scale: Any = None

    @property
    def operand(self) -> Array:
        return self.unit if self.scale is None else self.unit * self.scale

    def pulled(self, cotangent: Array | None) -> Array | None:
        """The cotangent of the embeddings, from that of their operand."""
        if cotangent is None or self.length is None:
            return cotangent if cotangent is None or self.scale is None else cotangent * self.scale
        return pulled_unit_rows(self.unit, self.length if self.scale is None else self.length / self.scale, cotangent)


def _sides(layout: Layout, inputs: Inputs) -> list[_Side]:
    """Unit rows of all embeddings, or these, in the order of the inputs; none where operands are given."""
    if not layout.embedded:
        return []
    given = (*inputs.rows, *inputs.columns, *inputs.partners)
    found: list[tuple[Array, Array | None]] = [*unit_rows(*given)] if layout.unit else [(x, None) for x in given]
    rows, *others = found
    return [_Side(*rows, inputs.scale[0] if inputs.scale else layout.scale), *[_Side(*x) for x in others]]


def _operands(layout: Layout, inputs: Inputs, sides: Sequence[_Side]) -> Inputs:
    """The operands and one number for each row. Only the sweep holds them: their memory is free on the way back."""
    xp, n_rows = namespace_of(*inputs.rows), inputs.rows[0].shape[-2]
    if inputs.by_row:
        spread = [xp.broadcast_to(x, (n_rows,)) if len(x.shape) == 0 else x for x in inputs.by_row]
        inputs = inputs._replace(by_row=tuple(spread))
    if not layout.embedded:
        return inputs.joined()
    own, *others = sides
    count = len(inputs.columns)
    columns = tuple([side.unit for side in others[:count]]) or (own.unit,)
    partners = tuple([side.unit for side in others[count:]])
    return inputs._replace(rows=(own.operand,), columns=columns, partners=partners, scale=())


def _pulled(
    layout: Layout, inputs: Inputs, sides: Sequence[_Side], gradients: Gradients, flags: _Flags
) -> list[Array | None]:
    """The gradients of what was given, from those of the operands and of the numbers of rows."""
    rows, columns, partners, by_row = gradients
    totals = [_total(g) if len(x.shape) == 0 else g for g, x in zip(by_row, inputs.by_row, strict=True)]
    if not layout.embedded:
        return [*rows, *columns, *partners, *totals]
    (to_rows,), (own, *others) = rows, sides
    to_scale: list[Array | None] = []
    if inputs.scale:
        to_scale = [_to_scale(own, to_rows) if flags.scale else None]
    if not flags.rows:
        to_rows = None
    if not inputs.columns:  # the rows, without the scale, are the columns too
        to_rows = None if to_rows is None else to_rows * own.scale + columns[0]
        own, columns = own._replace(scale=None), ()
    given = zip(others, (*columns, *partners), strict=True)
    return [own.pulled(to_rows), *[side.pulled(g) for side, g in given], *to_scale, *totals]


def _to_scale(own: _Side, to_rows: Array) -> Array:
    along = namespace_of(to_rows).sum(own.unit * to_rows, axis=-1, keepdims=True)
    return along if len(own.scale.shape) > 0 else _total(along)


def _total(x: Array | None) -> Array | None:
    if x is None:
        return None
    xp = namespace_of(x)
    return xp.reshape(sum_to_scalar(xp, x), ())
