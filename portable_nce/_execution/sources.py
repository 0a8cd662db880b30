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
from .layouts import Arrays, MaskedLayout, ProductLayout, Source, Wanted, is_wanted

__all__ = ["opened", "takes_embeddings"]

Layout = Any  # ProductLayout | MaskedLayout


def takes_embeddings(sweep: Callable[..., Arrays]) -> Callable[..., Arrays]:
    """A sweep that takes embeddings, and makes operands of them, as the source in its layout says."""

    @wraps(sweep)
    def entered(layout: Layout, *arrays: Array, need_grad: Wanted) -> Arrays:
        (arrays,) = lift_to_tape(arrays)
        entry = _Entry(layout, arrays)
        found = sweep(entry.layout, *entry.arrays(), need_grad=entry.wanted(need_grad))
        return (*found[:2], *entry.pulled(found[2:], need_grad)) if need_grad else found

    return entered


def opened(layout: Layout, arrays: Arrays) -> tuple[Layout, Arrays]:
    """The layout without its source, and the operands that this makes of embeddings."""
    entry = _Entry(layout, arrays)
    return entry.layout, entry.arrays()


class _Side(NamedTuple):
    """Unit rows, the lengths of the rows, and the scale of the operand (None: 1)."""

    unit: Array
    length: Array
    scale: Any = None

    @property
    def operand(self) -> Array:
        return self.unit if self.scale is None else self.unit * self.scale


class _Entry:
    """What a sweep is given, made of embeddings, and the way back."""

    def __init__(self, layout: ProductLayout | MaskedLayout, arrays: Arrays) -> None:
        source: Source | None = layout.source
        self.source, self.layout = source, layout if source is None else layout._replace(source=None)
        count = layout.operand_count
        self.given, self.numbers = arrays[:count], arrays[count : count + layout.by_row]
        self.constants = arrays[count + layout.by_row :]
        self.shared = [len(x.shape) == 0 for x in self.numbers]
        self.sides: list[_Side] = []
        self.n_operands = count
        if source is not None:
            self.scale: Any = self.given[-1] if source.scale is None else source.scale
            rows, *others = (unit_rows(x) for x in self.given[: source.embeddings])
            self.sides = [_Side(*rows, self.scale), *(_Side(*other) for other in others)]
            self.n_operands = source.embeddings + source.alone

    def arrays(self) -> Arrays:
        """The arrays of the sweep. The sweep alone is to hold them, so that their memory is free for the way back."""
        operands = self.given
        if self.source is not None:
            operands = tuple(side.operand for side in self.sides)
            if self.source.alone:
                operands = (operands[0], self.sides[0].unit, *operands[1:])
        n_rows = operands[0].shape[-2]
        spread = (
            namespace_of(x).broadcast_to(x, (n_rows,)) if shared else x
            for x, shared in zip(self.numbers, self.shared, strict=True)
        )
        return (*operands, *spread, *self.constants)

    def wanted(self, need_grad: Wanted) -> Wanted:
        """Of which operands the gradient is needed for that of the arrays that are wanted."""
        if isinstance(need_grad, bool) or self.source is None:
            return need_grad
        of_scale = self.source.scale is None and need_grad[len(self.given) - 1]
        rows, *others = need_grad[: self.source.embeddings]
        columns = (rows,) if self.source.alone else ()
        return (rows or of_scale, *columns, *others, *need_grad[len(self.given) :])

    def pulled(self, found: Sequence[Array | None], need_grad: Wanted) -> list[Array | None]:
        """The gradients of what was given, from those of the operands and of the numbers of rows."""
        of_operands, of_numbers = list(found[: self.n_operands]), found[self.n_operands :]
        if self.source is not None:
            of_operands = self._to_given(self.source, of_operands, need_grad)
        totals = (_total(g) if shared else g for g, shared in zip(of_numbers, self.shared, strict=True))
        return [*of_operands, *totals]

    def _to_given(self, source: Source, cotangents: list[Array | None], need_grad: Wanted) -> list[Array | None]:
        """The gradients of embeddings, and of the scale if it is an array."""
        sides, of_scale = self.sides, len(self.given) - 1
        to_rows, *others = cotangents
        to_scale = self._to_scale(to_rows) if source.scale is None and is_wanted(need_grad, of_scale) else None
        if source.alone:  # of the unit rows, which are both operands, but for the scale
            to_columns, *others = others
            if to_rows is not None and to_columns is not None:
                to_rows = to_rows * self.scale + to_columns
            sides = [sides[0]._replace(scale=None), *sides[1:]]
        each = enumerate(zip(sides, (to_rows, *others), strict=True))
        found = [_to_embeddings(side, g) if is_wanted(need_grad, k) else None for k, (side, g) in each]
        return [*found, *([to_scale] if source.scale is None else [])]

    def _to_scale(self, to_rows: Array) -> Array:
        along = namespace_of(to_rows).sum(self.sides[0].unit * to_rows, axis=-1, keepdims=True)
        return along if len(self.scale.shape) > 0 else _total(along)


def _to_embeddings(side: _Side, cotangent: Array | None) -> Array | None:
    """The cotangent of embeddings, of that of their operand."""
    if cotangent is None:
        return None
    return pulled_unit_rows(side.unit, side.length if side.scale is None else side.length / side.scale, cotangent)


def _total(x: Array | None) -> Array | None:
    if x is None:
        return None
    xp = namespace_of(x)
    return xp.reshape(sum_to_scalar(xp, x), ())
