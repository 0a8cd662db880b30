"""The one-sided sweep: value and gradient of a sum of row losses, in one pass over blocks of rows.

The sums of a block of rows are final once its scores are computed. The family turns them into losses and slopes, and
the cotangents reach the operands before the next block. No tile is computed twice, and no array of the size of the
matrix is kept.

A sweep has two parts. `_OneSided` decides: it reads values, computes arrays for all blocks, and runs the blocks. `Step`
computes one block: a pure function of a `StepSpec`, which is hashable, of `Numbers`, and of arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._core.checks import is_readable
from .._core.logsumexp import ExpSum
from .._core.namespace import namespace_of
from .._core.numerics import largest_entry, sum_to_scalar
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..pairings import Members
from . import products as p
from . import sets as s
from .channels import Channel
from .families import FamilySpec, are_small, are_statistics, family_of
from .forms import form_of, partner_scores, pull_partners
from .fusing import fused
from .inputs import Arrays, Inputs
from .pair_terms import PairsSpec
from .row_losses import Exclude, Family, RowLosses, ScoreFacts
from .scores import Channels, Products, Source
from .sources import takes_embeddings
from .specs import NeedGrad, SweepResult, SweepSpec, divisor_by
from .tiling import Bounds


@takes_embeddings
def sweep(spec: SweepSpec, inputs: Inputs, need_grad: NeedGrad) -> SweepResult:
    """The losses of the rows of a score matrix, and their gradients."""
    return _OneSided(spec, inputs, need_grad).run()


class StepSpec(NamedTuple):
    """What a step depends on, besides arrays and `Numbers`; hashable. Nothing in it changes with the size of a batch.

    Attributes
    ----------
    family : FamilySpec
        The objective.
    sets : Diagonals, SortedClasses or PairRule
        Positions of positives and negatives, without their numbers.
    channels : tuple of Channel
        The similarities.
    need_grad : NeedGrad
        Which gradients are needed.
    facts : ScoreFacts
        Facts about the scores, without numbers of rows and columns.
    averaged : bool
        Whether slopes are divided by the number of rows.
    by_counts : bool
        Whether slopes are divided by the sum of the counts of all rows, which are one block, unless `averaged`.
    excluded : int, optional
        Number of columns that are no negatives of a row, if all rows have as many.
    group_sizes : tuple of int
        Number of arrays in each group of the `Inputs` of a block.
    blocks, bounds : tuple of (int, int), optional
        Bounds of the blocks, for sorted classes, and of the tiles. None: one tile of all columns.
    whole, apart, positives_in_tile : bool
        Whether an only tile has all scores of a row, also of the positives; whether the positives are operands of their
        own; whether the cotangent of the only tile includes theirs.
    turned : bool
        Whether cotangents of columns are transposed.
    scaled, bounded : bool
        Whether cotangents far below 1 are scaled, and whether by a unit.
    """

    family: FamilySpec
    sets: s.Sets
    channels: tuple[Channel, ...]
    need_grad: NeedGrad
    facts: ScoreFacts
    averaged: bool
    by_counts: bool
    excluded: int | None
    group_sizes: tuple[int, ...]
    blocks: Bounds | None
    bounds: Bounds | None
    whole: bool
    apart: bool
    positives_in_tile: bool
    turned: bool
    scaled: bool
    bounded: bool

    @property
    def returns_positives(self) -> bool:
        """Whether blocks return the cotangents of the positives' scores, for the gradients of rows and partners."""
        if not isinstance(self.sets, s.Diagonals) or self.positives_in_tile:
            return False
        of_partners = self.need_grad.partners if self.apart else self.need_grad.columns
        return (self.need_grad.rows or of_partners) and (self.apart or self.sets.n_positives > 0)


class Constants(NamedTuple):
    """Arrays of all blocks: operands of the tiles, with added numbers if there are any, and labels of the columns."""

    tiles: Sequence[Any]
    scored: Sequence[p.Operand] = ()
    labels: Arrays = ()
    numbers: Arrays = ()
    weighted: Sequence[p.Operand | None] = ()


Pulled = Callable[[RowLosses, Any, p.Scaling], tuple[Arrays, Arrays]]
"""Pullback of a tile: cotangents of its rows and columns, by the losses of the rows and the factors of its residual."""


class Step:
    """The step of a sweep: from a block of rows to its losses and cotangents.

    The law of all: results are functions of the arguments alone, none of which is overwritten but the carry.
    """

    def __init__(self, spec: StepSpec, numbers: s.Numbers, constants: Constants, like: Array) -> None:
        """Set up the parts of a sweep; `like` is an array of the rows."""
        self.spec, self.xp, (n_rows, n_columns) = spec, namespace_of(like), numbers.shape
        self.returns_positives = spec.returns_positives
        self.source: Source
        self.sets: s.TileSets
        self.put: Any = None  # puts the cotangents of positives on diagonals
        negatives = 0
        placed = spec.whole and spec.excluded is not None
        if spec.whole:
            options = {"turned": spec.turned, "need_scale": spec.need_grad.scale, "placed": placed}
            self.source = Channels(spec.channels, constants.tiles[0], constants.weighted, **options)
        else:
            form = form_of(spec.channels[0].scores)
            self.source = Products(form, constants.tiles, constants.scored, spec.need_grad, turned=spec.turned)
        if isinstance(spec.sets, s.PairRule):
            inputs = Inputs((like,), column_labels=constants.labels, column_numbers=constants.numbers)
            self.sets = s.RuleSets(spec.sets._replace(shape=numbers.whole), inputs, numbers.shape)
        elif isinstance(spec.sets, s.SortedClasses):
            assert spec.blocks is not None  # noqa: S101  (blocks end where classes end)
            self.sets = s.ClassSets(spec.sets, spec.blocks, constants.labels)
        else:
            diagonals = spec.sets.with_numbers(numbers)
            on_diagonals = s.DiagonalSets(diagonals, spec.bounds or ((0, n_columns),), n_columns, constants.labels)
            self.sets, self.put = on_diagonals, on_diagonals.put
            negatives = n_columns - (spec.excluded or 0)
        divisor = spec.family.divisor(n_rows, negatives) if spec.averaged else None
        self.by_counts = spec.by_counts and divisor is None
        facts = spec.facts._replace(n_negatives=negatives, divisor=divisor, need_grad=spec.need_grad.gradients)
        self.family: Family = family_of(self.xp, spec.family, facts)

    def __call__(self, carry: Arrays, arrays: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        """Carry with the cotangents of the columns added, and losses, counts and cotangents of a block."""
        family, need_grad = self.family, self.spec.need_grad.gradients
        block = Inputs.of(self.spec.group_sizes, arrays)
        rows = self.source.block_operands(block)
        apart = self.source.positive_scores(rows, block, start)
        own = family.against(apart, block) if family.relative and apart is not None else block
        parts, pulls, positives = [], [], None
        for k in range(len(self.source.tiles)):
            sets = self.sets.of(k, start, block)
            if isinstance(sets, Members):
                part, positives, pulled = self._masked(sets, rows, k, block)
            else:
                part, pulled = self._of_negatives(sets, rows, k, (start, block, own))
            parts.append(part)
            pulls.append(pulled)
        if apart is not None:
            positives = family.partner_positives(apart, own)
        total, rescales = family.merge(parts)
        losses = family.finish(total, positives, own)
        if not need_grad:
            return carry, (losses.values, losses.row_counts)
        if self.by_counts:
            losses = losses.averaged(divisor_by(self.xp, sum_to_scalar(self.xp, losses.row_counts)))
        to_rows, to_columns = self._backward(carry, losses, [*zip(pulls, rescales, strict=True)])
        of_positives = (losses.to_positive,) if self.returns_positives else ()
        cotangents = (*to_rows, *of_positives, *losses.row_cotangents)
        return to_columns, (losses.values, losses.row_counts, *cotangents)

    def _masked(self, members: Members, rows: Any, k: int, block: Inputs) -> tuple[Any, Any, Pulled]:
        """Part of the row sums of a masked tile, its positives, and its pullback."""
        family, source = self.family, self.source
        scores, kept = source.scores(rows, k)
        members, scores = s.with_undefined(members, family.rounded(scores), counts=family.counts_pairs)
        part, residual, positives = family.add_masked(scores, members, block)

        def pulled(losses: RowLosses, rescale: Any, scaling: p.Scaling) -> tuple[Arrays, Arrays]:
            cotangents = family.masked_cotangents(residual, positives, losses, members, rescale)
            return source.pullback(rows, k, tuple(map(scaling.cleared, cotangents)), None, kept, None)

        return part, positives, pulled

    def _of_negatives(
        self, exclude: Exclude, rows: Any, k: int, place: tuple[Array | int, Inputs, Inputs]
    ) -> tuple[Any, Pulled]:
        """Part of the row sums of a tile of negatives, and its pullback."""
        family, source, (start, block, own) = self.family, self.source, place
        scores, kept = source.negative_scores(rows, k)
        part, residual = family.add_negatives(family.rounded(scores), exclude, own)

        def pulled(losses: RowLosses, rescale: Any, _: p.Scaling) -> tuple[Arrays, Arrays]:
            if self.spec.positives_in_tile:
                each = family.cotangents(residual, losses)
                values = s.by_partner(losses.to_positive, len(each))
                put = [self.put(*both, k, start, block) for both in zip(each, values, strict=True)]
                return source.pullback(rows, k, tuple(put), None, kept, None)
            matrix, factor = family.tile_cotangent(residual, losses, rescale)
            return source.pullback(rows, k, (matrix,), factor, kept, part.total if isinstance(part, ExpSum) else None)

        return part, pulled

    def _backward(self, carry: Arrays, losses: RowLosses, pulls: Sequence[tuple[Pulled, Any]]) -> tuple[Arrays, Arrays]:
        """Cotangents of the rows of a block, and of the columns up to this block.

        For inner products, with c the cotangent of a tile of scores and c⁺ that of the score of the positive y⁺ (0 here
        if c includes it):

            to rows: c⁺ y⁺ + Σ_tiles c @ columns        to columns: Σ_blocks c.T @ rows

        The terms of the positives, to rows c⁺ y⁺ and to y⁺ c⁺ times the row, are added after all blocks.
        """
        scaling = p.Scaling()
        if self.spec.scaled:
            scaling = p.scaling_of(losses.coefficient, bounded=self.spec.bounded)
            losses = losses.rescaled(scaling.divided)
        to_rows: Arrays = ()
        to_columns: list[Array] = []
        for pulled, rescale in pulls:
            row_part, column_part = pulled(losses, rescale, scaling)
            to_rows = tuple(map(p.plus, to_rows, row_part)) if to_rows else row_part
            to_columns += [*map(p.plus, carry[len(to_columns) :], map(scaling.restored, column_part))]
        return tuple(map(scaling.restored, to_rows)), tuple(to_columns)


def step_of_rows(spec: StepSpec) -> Callable[..., tuple[Arrays, Arrays]]:
    """The step of a spec as a function of arrays and numbers alone, which an adapter may compile."""

    def step(
        constants: Constants, numbers: s.Numbers, carry: Arrays, arrays: Arrays, position: tuple[Array | int]
    ) -> tuple[Arrays, Arrays]:
        return Step(spec, numbers, constants, arrays[0])(carry, arrays, *position)

    return step


class _OneSided:
    """A one-sided sweep: what is decided before its first block, and its run."""

    def __init__(self, spec: SweepSpec, inputs: Inputs, need_grad: NeedGrad) -> None:
        sets, first = spec.sets, inputs.rows[0]
        given = all(channel.given for channel in spec.channels)
        whole = given or len(spec.channels) != 1 or spec.by_rule
        if whole and need_grad.gradients:  # a similarity's pullback returns all gradients
            need_grad = need_grad._replace(rows=True, columns=True, partners=True)
        self.spec, self.need_grad = spec, need_grad
        self.xp, self.adapter = namespace_of(first), adapter_of(first)
        n_rows, n_columns = inputs.shape
        tiling = spec.sizes.of(n_rows, n_columns)
        self.blocks, bounds = tiling.block, tuple(tiling.tiles(n_columns))
        apart = len(inputs.partners) > 0  # the positives are an operand of their own
        of_halves = turned = False
        if whole:
            weighted = Channels.with_weights(spec.channels, inputs.columns) if need_grad.gradients else ()
            self.constants = Constants([inputs.columns], (), inputs.column_labels, inputs.column_numbers, weighted)
            turned = Channels.are_turned(spec.channels, inputs.columns, self.blocks, n_rows)
        else:
            # Tiles of negatives alone know the sums of their cotangents.
            mean = not (spec.family.of_statistics and isinstance(sets, s.Diagonals))
            tiles, scored = Products.cut(form_of(spec.channels[0].scores), inputs, need_grad, bounds, mean=mean)
            labels = p.pieces(inputs.column_labels[0], bounds) if inputs.column_labels else ()
            self.constants = Constants(tiles, scored, tuple(labels))
            of_halves, turned = tiles[0].part is not None, p.sums_are_turned(tiles[0], self.blocks, n_rows)
        self.diagonals: s.Diagonals | None = sets if isinstance(sets, s.Diagonals) else None
        if self.diagonals is not None and not (apart or whole):
            inputs = inputs._replace(partners=s.partners(self.xp, self.diagonals, inputs))
        sets, self.numbers = s.without_numbers(sets, (n_rows, n_columns))
        self.inputs = inputs
        facts = self._facts()
        # Only shifted exponentials give coefficients far below 1; scaling is for arrays that no library differentiates.
        unshifted = facts.small or not spec.family.shifted
        scaled = not (unshifted or given) and is_readable(first) and self.adapter.is_plain(inputs.flat)
        positives_in_tile = whole and self.diagonals is not None
        if self.diagonals is not None and not whole and spec.family.of_statistics:
            # The factor of a row would have to divide the cotangent of its positive, and can be 0: then it stays apart.
            are_there = self.diagonals.n_positives > 0 and len(inputs.row_labels) == 0
            one_tile = self.blocks == n_rows and len(self.constants.tiles) == 1
            # With 16-bit products, the cotangents of positives have more bits.
            positives_in_tile = are_there and one_tile and not (scaled or of_halves)
        positives: Arrays = ()
        if inputs.partners:
            form = form_of(spec.channels[0].scores)
            positives = (partner_scores(form, form.rows(inputs.rows), inputs.partners),)
        self.by_block = inputs.without_columns()._replace(partners=(), positives=positives)
        self.step_spec = StepSpec(
            spec.family,
            sets,
            spec.channels,
            need_grad,
            facts,
            averaged=spec.mean and facts.finite and facts.complete,
            # Of given scores, the gradients are as large as the scores.
            by_counts=spec.mean and facts.given and self.adapter.mode == "eager" and self.blocks == n_rows,
            excluded=None if self.diagonals is None else -self.diagonals.negatives(0),
            group_sizes=self.by_block.group_sizes,
            blocks=self.blocks if isinstance(sets, s.SortedClasses) else None,  # type: ignore[arg-type]
            bounds=bounds if len(bounds) > 1 else None,
            whole=whole,
            apart=apart,
            positives_in_tile=positives_in_tile,
            turned=turned,
            scaled=scaled,
            bounded=spec.unit or spec.bound < math.inf,
        )
        self.step = Step(self.step_spec, self.numbers, self.constants, first)

    def _bound(self) -> float:
        """Largest magnitude of the scores, with sharpness or pairwise parameters included; infinity if unknown."""
        family, bound, inputs = self.spec.family, self.spec.bound, self.inputs
        if bound == math.inf:
            return bound
        for sharpness in inputs.sharpness:
            largest = largest_entry(sharpness)
            bound = math.inf if largest is None else bound * largest
        if isinstance(family, PairsSpec):
            bound *= 2.0 if family.relative else 1.0
            for parameter in inputs.parameters:
                largest = largest_entry(parameter)
                bound += math.inf if largest is None else largest
        return bound

    def _facts(self) -> ScoreFacts:
        """Facts about the scores that the family uses, without numbers of rows and columns."""
        spec, family, inputs = self.spec, self.spec.family, self.inputs
        small = are_small(family, self._bound())
        given = all(channel.given for channel in spec.channels)
        if isinstance(spec.sets, s.PairRule):
            of_sums = (family.of_statistics or family.crossed) and not are_statistics(family)
            # A bound of unit rows is known without their entries, which may be NaN.
            finite = spec.given_finite if given else spec.bound < math.inf and not spec.unit
            return ScoreFacts(small and of_sums, finite, single=spec.sets.single, given=given)
        finite = spec.finite(inputs.rows[0])
        complete = len(inputs.added) + len(inputs.present) + len(inputs.row_labels) == 0
        absent = p.ABSENT * self.xp.finfo(inputs.rows[0].dtype).max if inputs.added else None
        return ScoreFacts(small, finite, complete and self.diagonals is not None, absent, given=given)

    def run(self) -> SweepResult:
        need_grad, (n_rows, n_columns) = self.need_grad, self.step.source.n_differentiated
        count = n_rows if need_grad.rows else 0
        tiles = [x for tile in self.step.source.tiles for x in tile[:n_columns]]
        turned = self.step.source.turned
        step, filled = self._steps()
        init = p.empty_sums(tiles, turned=turned, filled=filled) if need_grad.columns else ()
        carry, (values, counts, *rest) = self.adapter.scan(step, init, self.by_block.flat, self.blocks)
        gradients = [*rest]  # for torch.compile before 2.13, the rest of a tuple is a tuple
        result = SweepResult(values, counts, None, self.step.family.facts.divisor)
        if not need_grad.gradients:
            return result
        to_rows, gradients = gradients[:count], gradients[count:]
        to_columns: list[Array | None] = [None] * n_columns
        if need_grad.columns:
            carry = self.step.source.of_columns(tuple(x.T for x in carry) if turned else carry)
            to_columns = [p.concat_rows(self.xp, carry[k::n_columns]) for k in range(n_columns)]
        to_partners: list[Array | None] = [None] * len(self.inputs.partners)
        if self.step.returns_positives:
            cotangents = s.by_partner(gradients.pop(0), len(to_partners))
            assert isinstance(self.step.source, Products)  # noqa: S101  (others have no partners)
            form, of_partners = self.step.source.form, need_grad.partners if self.step_spec.apart else need_grad.columns
            own, flags = form.rows(self.inputs.rows), (need_grad.rows, of_partners)
            both = pull_partners(form, own, self.inputs.partners, cotangents, tuple(to_rows), need_grad=flags)
            to_rows, to_partners = list(both[0]), both[1]
        if self.diagonals is not None and not self.step_spec.apart:  # partners are columns
            if self.step.returns_positives and need_grad.columns:
                to_columns = [s.add_partners(self.xp, self.diagonals, self.inputs, to_columns[0], to_partners)]
            to_partners = []
        groups = to_rows or [None] * n_rows, to_columns, to_partners, gradients
        (rows, columns, partners, numbers), count = map(tuple, groups), len(self.inputs.parameters)
        found = Inputs(rows, columns, partners, parameters=numbers[:count], weights=numbers[count:])
        return result._replace(gradients=found, averaged=self.step.by_counts)

    def _steps(self) -> tuple[Callable[..., tuple[Arrays, Arrays]], bool]:
        """The step of all blocks, and whether it is compiled."""
        compiled = None
        if self.spec.fused and self.need_grad.gradients and self.step_spec.blocks is None:
            compiled = fused(step_of_rows, self.step_spec, self.inputs.flat)
        if compiled is None:
            return self.step, False

        def step(carry: Arrays, arrays: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
            result: tuple[Arrays, Arrays] = compiled(self.constants, self.numbers, carry, arrays, (start,))
            return result

        return step, True
