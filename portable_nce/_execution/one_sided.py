"""The sweep over inner products that adds up rows: each block is summed up, judged and pulled back before the next.

The sums of a block of rows are final as soon as its scores are there; the objective says what the rows are worth and
with what slopes, and the cotangents go back to the operands before the block is left. Nothing is computed twice, and
nothing of the size of the matrix is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._core.namespace import device_of, is_far, namespace_of
from .._core.numerics import largest_entry
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..pairings import Members, Structure
from . import products as p
from .families import PairsPlan, SoftmaxPlan, divisor_of, family_of, sharpened, split_sharpness
from .finished import Known, exp_base
from .layouts import Arrays, ProductLayout, Wanted, is_wanted, reduced
from .products import ABSENT
from .sources import takes_embeddings
from .tiling import MAX_UNSHIFTED_LOGIT, Tiling, one_sided

__all__ = ["label_members", "product_sweep", "tiling_of"]


@takes_embeddings
def product_sweep(layout: ProductLayout, *arrays: Array, need_grad: Wanted) -> Arrays:
    """A one-sided sweep over a matrix of inner products."""
    sweep = _OneSided(layout, arrays, need_grad=need_grad)
    return sweep.as_one_tile() if sweep.is_one_tile() else sweep.by_tiles()


def tiling_of(layout: ProductLayout, rows: Array, columns: Array) -> Tiling:
    """Sizes of the blocks and tiles of a sweep whose labels are not sorted."""
    mode = adapter_of(rows).mode
    return one_sided(rows.shape[0], columns.shape[0], layout.block_size, mode=mode, far=is_far(rows))


def label_members(xp: Namespace, rows: Array, columns: Array, structure: Structure) -> Members:
    """Positives and negatives by labels; own columns, on the diagonal, are neither, or of ids the only positives."""
    same = rows[:, None] == columns[None, :]
    negatives = xp.logical_not(same)
    if not (structure.own or structure.ids):
        return Members(same, negatives)
    number = xp.arange(rows.shape[0], device=device_of(rows))
    diagonal = number[:, None] == number[None, :]
    return Members(diagonal if structure.ids else xp.logical_and(same, xp.logical_not(diagonal)), negatives)


def _no_slopes(xp: Namespace, sharpness: Array | None) -> Arrays:
    """The cotangent of what is a constant."""
    return () if sharpness is None else (xp.zeros_like(sharpness),)


class _OneSided:
    """The arrays of a sweep in their places, and the family that sums them up."""

    def __init__(self, layout: ProductLayout, arrays: Arrays, *, need_grad: Wanted) -> None:
        self.need_grad = bool(need_grad)
        self.to_rows = is_wanted(need_grad, 0)
        rows, columns, *further = arrays
        self.rows, self.columns = rows, columns
        self.xp, self.adapter = xp, adapter = namespace_of(rows), adapter_of(rows)
        self.mode = adapter.mode
        n_rows = rows.shape[0]
        self.lines = lines = p.lines_of(layout.structure, n_rows, layout.window)
        self.to_columns = is_wanted(need_grad, 1)
        self.to_partners = is_wanted(need_grad, 2) if lines.given else self.to_columns
        self.partners: Arrays = ()
        if lines.given:
            self.partners = (further.pop(0),)
        elif not layout.blocks:
            self.partners = p.partners(xp, lines, columns, n_rows)
        self.by_row = tuple(further[: layout.by_row])
        constants = further[layout.by_row :]
        (self.own, self.others), constants = p.with_parts((rows, columns), constants, layout.halves)
        self.index = (constants.pop(0),) if lines.by_index else ()
        self.present = (constants.pop(0),) if layout.present else ()
        self.bias = constants.pop(0) if layout.biased else None
        self.labels = tuple(constants)

        self.layout = layout
        self.tiling = tiling_of(layout, rows, columns)
        self.base = exp_base(rows)

    def family_for(self, bound: float) -> Any:
        """The family that sums up scores of a known bound; it decides who divides for a mean."""
        layout, plan, lines = self.layout, self.layout.plan, self.lines
        finite = layout.unit or bound < math.inf
        complete = not (layout.biased or layout.present or layout.blocks or lines.ids)
        negatives = lines.negatives(self.columns.shape[0])
        divisor = None
        if layout.mean and finite and complete:
            # Where all rows count, what the mean divides by goes into their slopes.
            divisor = divisor_of(plan, self.rows.shape[0], negatives)
            self.layout = layout._replace(mean=divisor is None)
        absent = ABSENT * self.xp.finfo(self.rows.dtype).max if layout.biased else None
        known = Known(bound, finite, complete, absent, negatives, divisor or 1)
        return family_of(self.xp, plan, self.base, known, need_grad=self.need_grad)

    # A small matrix.

    def is_one_tile(self) -> bool:
        """Whether the matrix is one tile of exponentials, with its positives on lines."""
        whole = self.tiling == (self.rows.shape[0], self.columns.shape[0], False) and not self.layout.biased
        return whole and isinstance(self.layout.plan, SoftmaxPlan) and self.layout.structure.on_lines

    def as_one_tile(self) -> Arrays:
        """The sweep in the fewest calls: the positives' cotangents stand in that of the tile."""
        xp, rows, columns, unit = self.xp, self.rows, self.columns, self.base.unit
        eager, n_columns = self.mode == "eager", columns.shape[0]
        tile = p.tile_of(self.lines, 0, (0, n_columns), n_columns)
        sharpness, by_row = split_sharpness(self.layout.plan, self.by_row)
        scaled, rest = p.sharpened_rows(self.own.times(unit), self.others, sharpness)
        scores = sharpened(p.product(scaled, self.others), rest)
        bound = self.layout.bound
        if bound > MAX_UNSHIFTED_LOGIT and (largest := largest_entry(scores)) is not None:
            bound = largest / unit
        family = self.family_for(bound)
        total, residual = family.plain(
            scores, lambda x, value: p.exclude(self.lines, x, value, tile, None, eager=eager), by_row
        )
        of_positives = p.line_scores(xp, rows, self.partners)
        positive = family.line(of_positives, self.present[0] if self.present else None, by_row)
        done = family.finish(total, positive, by_row, need_grad=self.need_grad)
        values, number, divisor = done.values, done.number, family.known.divisor
        if not self.need_grad:
            return reduced(xp, self.layout, values, number, (), divisor=divisor)
        residual = residual * done.coefficient[:, None]
        cotangent = p.put_lines(self.lines, residual, done.to_positive, tile, eager=eager)
        wanted, even = (self.to_rows, self.to_columns), self.layout.halves.even
        to_rows, to_columns = p.pulled(cotangent, None, self.own, self.others, wanted=wanted, even=even)
        further = (*_no_slopes(xp, sharpness), *done.to_rows)
        return reduced(xp, self.layout, values, number, (to_rows, to_columns, *further), divisor=divisor)

    # Any other.

    def by_tiles(self) -> Arrays:
        """The sweep over blocks of rows and tiles of columns."""
        xp, plan = self.xp, self.layout.plan
        parameters = self.by_row[: plan.parameters] if isinstance(plan, PairsPlan) else ()
        bound = p.largest_score(self.layout, self.rows, self.columns, parameters)
        sharpness, _ = split_sharpness(plan, self.by_row)
        if sharpness is not None:
            largest = largest_entry(sharpness)
            bound = math.inf if largest is None else bound * largest
        self.family = self.family_for(bound)
        self.unit: float = self.family.base.unit
        layout = self.layout
        self.bounds = layout.tiles or p.cut(0, self.columns.shape[0], self.tiling.tile)
        self.tiles = self.factors = p.operand_pieces(self.others, self.bounds)
        self.tile_labels = p.pieces(self.labels[1], self.bounds) if self.labels else []
        if self.bias is not None:
            added = p.pieces(self.bias * self.unit, self.bounds)
            self.factors = [p.with_added(tile, own) for tile, own in zip(self.tiles, added, strict=True)]
        init = p.empty_sums([tile.x for tile in self.tiles]) if self.to_columns else ()
        xs = (*self.own.arrays, *self.partners, *self.by_row, *self.index, *self.present, *self.labels[:1])
        carry, (values, number, *gradients) = self.adapter.scan(
            self._step, init, xs, layout.blocks or self.tiling.block
        )
        divisor = self.family.known.divisor
        if not self.need_grad:
            return reduced(xp, layout, values, number, (), divisor=divisor)
        to_rows = gradients.pop(0) if self.to_rows else None
        to_columns = p.concat_rows(xp, carry) if self.to_columns else None
        to_partners: list[Array | None] = [None] * len(self.partners)
        if self.partners and self.to_partners:
            to_positive = gradients.pop(0)
            to_partners = [x[:, None] * self.rows for x in p.of_each(to_positive, len(self.partners))]
            if not self.lines.given:
                to_columns = p.add_partners(xp, self.lines, to_columns, to_partners)
        if self.lines.given:
            gradients = [*to_partners, *gradients]
        return reduced(xp, layout, values, number, (to_rows, to_columns, *gradients), divisor=divisor)

    def _step(self, carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        xp, family, layout = self.xp, self.family, self.layout
        count = len(self.own.arrays)
        own, numbers = p.operand_of(block[:count]), block[count:]
        partners, numbers = numbers[: len(self.partners)], numbers[len(self.partners) :]
        here = tuple(numbers[: layout.by_row])
        at = numbers[layout.by_row] if self.lines.by_index else None
        sharpness, here = split_sharpness(layout.plan, here)
        scaled, rest = p.sharpened_rows(own.times(self.unit), self.others, sharpness)
        if self.bias is not None and not layout.halves.row_parts:
            scaled = p.Operand(p.beside(scaled.x, xp.ones_like(own.x[:, 0])))
        own_tile = next((k for k, (low, _) in enumerate(layout.blocks) if low == start), -1)
        positive: Any = None
        members: Any = None
        parts, residuals = [], []
        for k, factor in enumerate(self.factors):
            if k == own_tile:
                members = label_members(xp, numbers[-1], self.tile_labels[k], layout.structure)
                part, residual, positive = family.masked(
                    (p.product(own, factor),), members, here, single=False, sharpness=sharpness
                )
            else:
                own_ids = numbers[-1] if self.lines.ids else None
                part, residual = family.plain(
                    sharpened(p.product(scaled, factor), rest), self._exclude(start, k, at, own_ids), here
                )
            parts.append(part)
            residuals.append(residual)
        total, shares = family.merge(parts)
        if partners:
            scores = p.line_scores(xp, own.x, partners)
            positive = family.line(scores, numbers[-1] if layout.present else None, here)
        done = family.finish(total, positive, here, need_grad=self.need_grad)
        if not self.need_grad:
            return carry, (done.values, done.number)
        cotangents: list[tuple[Array, Array | None]] = []
        for k, (residual, share) in enumerate(zip(residuals, shares, strict=True)):
            if k == own_tile:
                cotangents.append((*family.cotangents(residual, positive, done, members, share), None))
            else:
                cotangents.append(family.factored(residual, done, share))
        carry, gradients = self._pull(carry, (own, partners, done.to_positive), cotangents)
        return carry, (done.values, done.number, *gradients, *_no_slopes(xp, sharpness), *done.to_rows)

    def _pull(
        self,
        carry: Arrays,
        block: tuple[p.Operand, Sequence[Array], Array],
        cotangents: Sequence[tuple[Array, Array | None]],
    ) -> tuple[Arrays, Arrays]:
        """The cotangents of the columns so far, and those of a block's rows and of their scores with their partners.

        The block is its rows, their partners and the cotangents of these scores.
        """
        own, partners, to_positive = block
        to_rows: Array = None
        to_columns = []
        if self.to_rows and partners:
            for partner, cotangent in zip(partners, p.of_each(to_positive, len(partners)), strict=True):
                to_rows = p.plus(to_rows, cotangent[:, None] * partner)
        wanted, even = (self.to_rows, self.to_columns), self.layout.halves.even
        for k, (residual, factor) in enumerate(cotangents):
            back, forth = p.pulled(residual, factor, own, self.tiles[k], wanted=wanted, even=even)
            if self.to_rows:
                to_rows = p.plus(to_rows, back)
            if self.to_columns:
                to_columns.append(p.plus(carry[k], forth))
        further = (to_positive,) if partners and self.to_partners else ()
        return tuple(to_columns), (*((to_rows,) if self.to_rows else ()), *further)

    def _exclude(self, start: Array | int, k: int, index: Array | None, ids: Array | None) -> Any:
        """The function that puts a number where rows of a tile have no negative; by labels, all are negatives."""
        if self.layout.blocks:
            return lambda x, _: x
        tile = p.tile_of(self.lines, start, self.bounds[k], self.columns.shape[0])

        def exclude(x: Array, value: float) -> Array:
            if ids is not None:
                x = p.exclude_ids(x, value, ids, self.tile_labels[k])
            return p.exclude(self.lines, x, value, tile, index, eager=self.mode == "eager")

        return exclude
