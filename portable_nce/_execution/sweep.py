"""The one-sided sweep: value and gradient of a sum of row losses, in one pass over blocks of rows.

The sums of a block of rows are final once its scores are computed. The family turns them into losses and slopes, and
the cotangents reach the operands before the next block. No tile is computed twice, and no array of the size of the
matrix is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core.checks import is_at_hand
from .._core.logsumexp import ExpSum
from .._core.namespace import namespace_of
from .._core.numerics import largest_entry
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..pairings import Members
from . import products as p
from . import sets as s
from .families import PairsPlan, SoftmaxPlan, divisor_of, family_of, split_sharpness
from .inputs import Arrays, Inputs
from .layouts import Gradients, Layout, NeedGrad, SweepResult
from .row_losses import Exclude, Family, RowLosses, ScoreFacts
from .scores import Channels, GivenScores, Products, Source
from .sources import takes_embeddings


@takes_embeddings
def sweep(layout: Layout, inputs: Inputs, need_grad: NeedGrad) -> SweepResult:
    """The losses of the rows of a score matrix, and their gradients."""
    return _OneSided(layout, inputs, need_grad).run()


class _FilledTile(NamedTuple):
    """A tile after the forward pass: its sets, part of the row sums, residual, and what the source needs of it."""

    sets: Members | Exclude
    part: Any
    residual: Any
    kept: Any = None


class _Block(NamedTuple):
    """A block of rows after the forward pass: first row, arrays, operands, positives and losses."""

    start: Array | int
    inputs: Inputs
    rows: Any
    positives: Any
    losses: RowLosses


class _OneSided:
    """State of a one-sided sweep: arrays, source of scores, sets and family."""

    def __init__(self, layout: Layout, inputs: Inputs, need_grad: NeedGrad) -> None:
        sets, first, given = layout.sets, inputs.rows[0], layout.channels[0].given
        if isinstance(sets, s.PairRule) and need_grad.gradients:  # a similarity's pullback returns all gradients
            need_grad = NeedGrad(gradients=True, rows=True, columns=True, partners=True)
        self.layout, self.need_grad = layout, need_grad
        self.xp, self.adapter = namespace_of(first), adapter_of(first)
        n_rows, n_columns = inputs.shape
        self.tiling = layout.sizes.of(n_rows, n_columns)
        self.diagonals: s.Diagonals | None = None
        self.apart = len(inputs.partners) > 0  # the positives are an operand of their own
        self.positives_in_tile = False  # the cotangent of the only tile includes those of positives
        self.source: Source
        self.sets: s.TileSets
        if isinstance(sets, s.PairRule):
            self.source, self.sets = Channels(layout, inputs, self.tiling), s.RuleSets(sets, inputs)
        else:
            bounds, block = self.tiling.tiles(n_columns), self.tiling.block
            labels = p.pieces(inputs.column_labels[0], bounds) if inputs.column_labels else []
            self.source = GivenScores(n_columns) if given else Products(inputs, need_grad, self.tiling)
            if isinstance(sets, s.SortedClasses):
                assert isinstance(block, tuple)  # noqa: S101  (blocks end where classes end)
                self.sets = s.ClassSets(sets, block, labels)
            else:
                self.diagonals = sets
                self.sets = s.DiagonalSets(sets, bounds, n_columns, labels)
                if not (self.apart or given):
                    partners = s.partners(self.xp, sets, inputs.columns[0], n_rows)
                    inputs = inputs._replace(partners=partners)
        self.inputs = inputs
        facts = self._facts(n_rows)
        self.family: Family = family_of(self.xp, layout.plan, facts, need_grad=need_grad.gradients)
        # Only shifted exponentials give coefficients far below 1; scaling is for arrays that no library differentiates.
        self.scaled = not (self.family.unshifted or given) and is_at_hand(first) and self.adapter.is_plain(inputs.flat)
        if self.diagonals is not None and isinstance(layout.plan, SoftmaxPlan):
            # The factor of a row would have to divide the cotangent of its positive, and can be 0: then it stays apart.
            whole = len(self.diagonals.distances) > 0 and len(inputs.row_labels) == 0
            whole = whole and self.tiling.block == n_rows and len(self.source.tiles) == 1
            of_halves = isinstance(self.source, Products) and self.source.columns.part is not None
            # With 16-bit products, the cotangents of positives have more bits.
            self.positives_in_tile = given or (whole and not (self.scaled or of_halves))
        self.by_block = inputs._replace(columns=(), added=(), column_labels=(), column_numbers=())

    def _bound(self) -> float:
        """Largest magnitude of the scores, with sharpness or pairwise parameters included; infinity if unknown."""
        plan, bound, by_row = self.layout.plan, self.layout.bound, self.inputs.by_row
        if bound == math.inf:
            return bound
        sharpness, _ = split_sharpness(plan, by_row)
        if sharpness is not None:
            largest = largest_entry(sharpness)
            bound = math.inf if largest is None else bound * largest
        for parameter in by_row[: plan.parameters] if isinstance(plan, PairsPlan) else ():
            largest = largest_entry(parameter)
            bound += math.inf if largest is None else largest
        return bound

    def _facts(self, n_rows: int) -> ScoreFacts:
        """Facts about the scores that the family uses."""
        layout, plan, inputs = self.layout, self.layout.plan, self.inputs
        if isinstance(layout.sets, s.PairRule):
            of_sums = isinstance(plan, SoftmaxPlan) and not plan.statistics
            return ScoreFacts(self._bound() if of_sums else math.inf, single=layout.sets.single)
        bound = self._bound()
        finite = layout.finite(inputs.rows[0])
        complete, negatives = False, 0
        if self.diagonals is not None:
            complete = len(inputs.added) + len(inputs.present) + len(inputs.row_labels) == 0
            negatives = self.diagonals.negatives(inputs)
        # If all rows count, the slopes are divided by their number.
        divisor = divisor_of(plan, n_rows, negatives) if layout.mean and finite and complete else None
        absent = p.ABSENT * self.xp.finfo(inputs.rows[0].dtype).max if inputs.added else None
        return ScoreFacts(bound, finite, complete, absent, negatives, divisor)

    def run(self) -> SweepResult:
        need_grad, (n_rows, n_columns) = self.need_grad, self.source.n_differentiated
        count = n_rows if need_grad.rows else 0
        tiles = [x for tile in self.source.tiles for x in tile[:n_columns]]
        turned = self.source.turned
        init = p.empty_sums(tiles, turned=turned) if need_grad.columns else ()
        blocks = self.tiling.block
        carry, (values, counts, *rest) = self.adapter.scan(self._step, init, self.by_block.flat, blocks)
        gradients = [*rest]  # for torch.compile before 2.13, the rest of a tuple is a tuple
        result = SweepResult(values, counts, Gradients(), self.family.facts.divisor)
        if not need_grad.gradients:
            return result
        to_rows, gradients = gradients[:count], gradients[count:]
        to_columns: list[Array | None] = [None] * n_columns
        if need_grad.columns:
            carry = tuple(x.T for x in carry) if turned else carry
            to_columns = [p.concat_rows(self.xp, carry[k::n_columns]) for k in range(n_columns)]
        to_partners: list[Array | None] = [None] * len(self.inputs.partners)
        if self._returns_positives():
            cotangents = s.by_partner(gradients.pop(0), len(to_partners))
            to_partners = [x[:, None] * self.inputs.rows[0] for x in cotangents]
        if self.diagonals is not None and not self.apart:  # partners are columns
            if self._returns_positives():
                to_columns = [s.add_partners(self.xp, self.diagonals, to_columns[0], to_partners)]
            to_partners = []
        to_rows = to_rows or [None] * n_rows
        return result._replace(gradients=Gradients(to_rows, to_columns, to_partners, gradients))

    def _returns_positives(self) -> bool:
        """Whether blocks return the cotangents of the positives' scores, for the gradients of partners."""
        if self.diagonals is None or self.positives_in_tile or not self.inputs.partners:
            return False
        return self.need_grad.partners if self.apart else self.need_grad.columns

    def _step(self, carry: Arrays, arrays: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        family, need_grad = self.family, self.need_grad.gradients
        block = Inputs.of(self.by_block.counts, arrays)
        sharpness, by_row = split_sharpness(self.layout.plan, block.by_row)
        rows = self.source.block_operands(block, sharpness)
        tiles, positives = [], None
        for k in range(len(self.source.tiles)):
            sets = self.sets.of(k, start, block)
            if not isinstance(sets, Members):
                tiles.append(
                    _FilledTile(sets, *family.add_negatives(self.source.negative_scores(rows, k), sets, by_row))
                )
                continue
            scores, kept = self.source.scores(rows, k)
            sets, scores = s.with_undefined(sets, scores, counts=family.counts_pairs)
            part, residual, positives = family.add_masked(scores, sets, block.by_row)
            tiles.append(_FilledTile(sets, part, residual, kept))
        apart = self.source.positive_scores(block, start)
        if apart is not None:
            positives = family.partner_positives(apart, block.present[0] if block.present else None, by_row)
        total, rescales = family.merge([tile.part for tile in tiles])
        losses = family.finish(total, positives, by_row, need_grad=need_grad)
        if not need_grad:
            return carry, (losses.values, losses.counts)
        to_rows, to_columns = self._backward(carry, _Block(start, block, rows, positives, losses), tiles, rescales)
        of_positives = (losses.to_positive,) if self._returns_positives() else ()
        of_sharpness = () if sharpness is None else (self.xp.zeros_like(sharpness),)  # not differentiated
        cotangents = (*to_rows, *of_positives, *of_sharpness, *losses.row_cotangents)
        return to_columns, (losses.values, losses.counts, *cotangents)

    def _backward(
        self, carry: Arrays, block: _Block, tiles: Sequence[_FilledTile], rescales: Sequence[Any]
    ) -> tuple[Arrays, Arrays]:
        """Cotangents of the rows of a block, and of the columns up to this block.

        For inner products, with c the cotangent of a tile of scores and c⁺ that of the score of the positive y⁺ (0 here
        if c includes it):

            to rows: c⁺ y⁺ + Σ_tiles c @ columns        to columns: Σ_blocks c.T @ rows

        The cotangent of y⁺, c⁺ times the row, is computed in `run`.
        """
        losses, scaling = block.losses, p.Scaling()
        if self.scaled:
            bounded = self.layout.unit or self.layout.bound < math.inf
            scaling = p.scaling_of(losses.coefficient, bounded=bounded)
            coefficient, to_positive = map(scaling.divided, (losses.coefficient, losses.to_positive))
            losses = losses._replace(coefficient=coefficient, to_positive=to_positive)
            block = block._replace(losses=losses)
        to_rows: Arrays = ()
        if block.inputs.partners and self.need_grad.rows and not self.positives_in_tile:
            partners, total = block.inputs.partners, None
            for partner, cotangent in zip(partners, s.by_partner(losses.to_positive, len(partners)), strict=True):
                total = p.plus(total, cotangent[:, None] * partner)
            to_rows = (total,)
        to_columns: list[Array] = []
        for k, (tile, rescale) in enumerate(zip(tiles, rescales, strict=True)):
            cotangents, factor = self._score_cotangents(block, k, tile, rescale, scaling)
            sums = tile.part.total if factor is not None and isinstance(tile.part, ExpSum) else None
            row_part, column_part = self.source.pullback(block.rows, k, cotangents, factor, tile.kept, sums)
            to_rows = tuple(map(p.plus, to_rows, row_part)) if to_rows else row_part
            to_columns += [*map(p.plus, carry[len(to_columns) :], map(scaling.restored, column_part))]
        return tuple(map(scaling.restored, to_rows)), tuple(to_columns)

    def _score_cotangents(
        self, block: _Block, k: int, tile: _FilledTile, rescale: Any, scaling: p.Scaling
    ) -> tuple[Arrays, Array | None]:
        """The cotangents of a tile's scores in each channel, as matrices and a factor of each row (None: 1)."""
        losses = block.losses
        if isinstance(tile.sets, Members):
            result = self.family.masked_cotangents(tile.residual, block.positives, losses, tile.sets, rescale)
            return tuple(map(scaling.cleared, result)), None
        matrix, factor = self.family.tile_cotangent(tile.residual, losses, rescale)
        if not self.positives_in_tile:
            return (matrix,), factor
        assert isinstance(self.sets, s.DiagonalSets)  # noqa: S101  (positives on diagonals)
        return (self.sets.put(matrix * factor[:, None], losses.to_positive, k, block.start),), None
