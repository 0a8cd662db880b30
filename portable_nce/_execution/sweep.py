"""The one-sided sweep: value and gradient of a sum of row losses, in one pass over blocks of rows.

The sums of a block of rows are final as soon as its scores are computed; the family turns them into losses and slopes,
and the cotangents go back to the operands before the next block. Nothing is computed twice, and nothing of the size of
the matrix is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core.checks import all_entries, entry_at_hand
from .._core.namespace import namespace_of
from .._core.numerics import largest_entry, rows_where, safe_quotient, upcast
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..pairings import Members
from . import products as p
from . import sets as s
from .channels import Spread
from .families import PairsPlan, SoftmaxPlan, divisor_of, family_of, sharpened, split_sharpness
from .inputs import Arrays, Inputs, of_each
from .layouts import Gradients, Layout, NeedGrad, SweepResult
from .row_losses import Exclude, Known, RowLosses
from .sources import takes_embeddings


@takes_embeddings
def sweep(layout: Layout, inputs: Inputs, wanted: NeedGrad) -> SweepResult:
    """The losses of the rows of a score matrix, and their gradients."""
    return _Sweep(layout, inputs, wanted).run()


class _Products:
    """Tiles of an inner product."""

    learned = (1, 1)
    """Numbers of operands of rows and of columns that have a gradient."""

    def __init__(self, layout: Layout, inputs: Inputs, wanted: NeedGrad, bounds: Sequence[tuple[int, int]]) -> None:
        self.wanted, self.even = (wanted.rows, wanted.columns), layout.channels[0].even
        self.whole = p.operand_of(inputs.columns)
        self.tiles = self.factors = p.operand_pieces(self.whole, bounds)
        self.adds = len(inputs.added) > 0
        if self.adds:
            added = p.pieces(inputs.added[0], bounds)
            self.factors = [p.with_added(tile, own) for tile, own in zip(self.tiles, added, strict=True)]

    def opened(self, here: Inputs, sharpness: Array | None) -> tuple[p.Operand, p.Operand, Array | None]:
        """The rows of a block; those for negatives, and the sharpness of scores that is not in them."""
        own = p.operand_of(here.rows)
        scaled, rest = p.sharpened_rows(own, self.whole, sharpness)
        return own, p.with_ones(scaled) if self.adds else scaled, rest

    def positives(self, here: Inputs, _: Array | int) -> Array | None:
        """The scores of the positives of a block, where these are known before its tiles."""
        return s.partner_scores(namespace_of(*here.rows), here.rows[0], here.partners) if here.partners else None

    def negatives(self, rows: Any, k: int) -> Array:
        """The scores of a tile of negatives alone."""
        _, scaled, rest = rows
        return sharpened(p.product(scaled, self.factors[k]), rest)

    def scores(self, rows: Any, k: int) -> tuple[Arrays, tuple[None]]:
        """The scores of a tile as they are."""
        return (p.product(rows[0], self.factors[k]),), (None,)

    def pulled(self, rows: Any, k: int, cotangents: Arrays, factor: Array | None, _: Any) -> tuple[Arrays, Arrays]:
        """The cotangents of rows and columns, from that of a tile's scores as a matrix and a factor of each row."""
        back, forth = p.pulled(cotangents[0], factor, rows[0], self.tiles[k], wanted=self.wanted, even=self.even)
        return (back,) if self.wanted[0] else (), (forth,) if self.wanted[1] else ()


class _Checked:
    """The one tile of all columns of a score matrix that is given."""

    learned = (1, 0)

    def __init__(self, n_columns: int) -> None:
        self.tiles: list[Arrays] = [()]
        self.n_columns = n_columns

    def positives(self, here: Inputs, start: Array | int) -> Array:
        """The scores of the positives of a block, on the diagonal."""
        scores, tile = here.rows[0], s.Place(start, 0, self.n_columns, self.n_columns)
        return s.diagonal_entries(namespace_of(scores), scores, tile)

    def opened(self, here: Inputs, sharpness: Array | None) -> tuple[Array, Array | None]:
        """The scores of a block, and the sharpness of those of negatives."""
        return here.rows[0], sharpness

    def negatives(self, rows: tuple[Array, Array | None], _: int) -> Array:
        """The scores of the tile, in memory of their own."""
        return sharpened(rows[0] + 0.0, rows[1])

    def pulled(self, _: Any, __: int, cotangents: Arrays, ___: None, ____: Any) -> tuple[Arrays, Arrays]:
        """The cotangents of the scores."""
        return cotangents, ()


class _Channels:
    """One tile of all columns, scored by any similarities."""

    def __init__(self, layout: Layout, inputs: Inputs) -> None:
        self.channels = layout.channels
        self.counts = [channel.rows for channel in self.channels]
        of_columns = [channel.columns for channel in self.channels]
        self.learned = sum(count for count, _ in self.counts), sum(count for count, _ in of_columns)
        self.columns = of_each(inputs.columns, of_columns)
        self.tiles = [inputs.columns]

    def positives(self, _: Inputs, __: Array | int) -> None:
        """None: a rule says where they are in the tile."""

    def opened(self, here: Inputs, _: Array | None) -> list[Arrays]:
        """The rows of a block in each channel."""
        return of_each(here.rows, self.counts)

    def scores(self, rows: list[Arrays], _: int) -> tuple[Arrays, tuple[Spread | None, ...]]:
        """The scores of all columns in each channel, and what tokens need on the way back."""
        each = [channel.scored(*both) for channel, *both in zip(self.channels, rows, self.columns, strict=True)]
        return tuple(upcast(namespace_of(x), x) for x, _ in each), tuple(spread for _, spread in each)

    def pulled(
        self, rows: list[Arrays], _: int, cotangents: Arrays, __: None, spreads: tuple[Spread | None, ...]
    ) -> tuple[Arrays, Arrays]:
        """The cotangents of the operands of rows and columns."""
        to_rows: Arrays = ()
        to_columns: Arrays = ()
        for channel, own, others, *rest in zip(self.channels, rows, self.columns, cotangents, spreads, strict=True):
            back, forth = channel.pulled(own, others, *rest)
            to_rows, to_columns = (*to_rows, *back), (*to_columns, *forth)
        return to_rows, to_columns


class _Seen(NamedTuple):
    """A tile whose sums are known: its sets, part of the sums, and residual; and what tokens need on the way back."""

    sets: Members | Exclude
    part: Any
    residual: Any
    spreads: Any = ()


class _Block(NamedTuple):
    """A block of rows whose losses are known: its first row, arrays, operands, positives, and losses with slopes."""

    start: Array | int
    here: Inputs
    rows: Any
    positive: Any
    done: RowLosses


class _Sweep:
    """The arrays of a sweep, its source of scores, its sets and its family."""

    def __init__(self, layout: Layout, inputs: Inputs, wanted: NeedGrad) -> None:
        sets, first = layout.sets, inputs.rows[0]
        self.judged = isinstance(sets, s.PairRule)
        if self.judged and wanted.gradients:  # a pullback gives all gradients
            wanted = NeedGrad(gradients=True, rows=True, columns=True, partners=True)
        self.layout, self.wanted = layout, wanted
        self.xp, self.adapter = namespace_of(first), adapter_of(first)
        n_rows, n_columns = inputs.shape
        self.tiling = layout.sizes.of(n_rows, n_columns)
        self.diagonals: s.Diagonals | None = None
        self.in_tile = False  # whether cotangents of positives are put into that of the only tile
        self.source: Any
        self.sets: Any
        if isinstance(sets, s.PairRule):
            self.source, self.sets = _Channels(layout, inputs), s.RuleSets(sets, inputs)
        else:
            bounds, block = self.tiling.tiles(n_columns), self.tiling.block
            labels = p.pieces(inputs.column_labels[0], bounds) if inputs.column_labels else []
            given = layout.channels[0].given
            self.source = _Checked(n_columns) if given else _Products(layout, inputs, wanted, bounds)
            if isinstance(sets, s.SortedClasses):
                assert isinstance(block, tuple)  # noqa: S101  (blocks end where classes end)
                self.sets = s.ClassSets(sets, block, labels)
            else:
                self.diagonals = sets
                self.sets = s.DiagonalSets(sets, bounds, n_columns, labels)
                self.in_tile = given or (sets.in_tiles and len(bounds) == 1 and block == n_rows)
                self.in_tile = self.in_tile and isinstance(layout.plan, SoftmaxPlan)
                if not (sets.given or given):
                    partners = s.partners(self.xp, sets, inputs.columns[0], n_rows)
                    inputs = inputs._replace(partners=partners)
        self.inputs = inputs
        known = self._known(n_rows, n_columns)
        self.family: Any = family_of(self.xp, layout.plan, known, need_grad=wanted.gradients)
        # Whether operands are multiplied by coefficients that may be far below 1, of which nothing is a derivative.
        self.scales = not (self.family.unshifted or layout.channels[0].given) and self.adapter.is_plain(inputs.flat)
        # Only tiles of rules have rows without a positive whose operands must not reach others.
        self.skips = self.judged and self.family.skips_idle and not layout.channels[0].given
        self.by_block = inputs._replace(columns=(), added=(), column_labels=(), column_numbers=())

    def _bound(self) -> float:
        """The largest magnitude of the scores, sharpened or with parameters added, if it is known."""
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

    def _known(self, n_rows: int, n_columns: int) -> Known:
        """What is known of the scores."""
        layout, plan, inputs = self.layout, self.layout.plan, self.inputs
        if isinstance(layout.sets, s.PairRule):
            of_sums = isinstance(plan, SoftmaxPlan) and not plan.statistics
            return Known(self._bound() if of_sums else math.inf, single=layout.sets.single)
        bound = self._bound()
        finite = layout.unit or bound < math.inf
        complete, negatives = False, 0
        if self.diagonals is not None:
            complete = len(inputs.added) + len(inputs.present) == 0 and not self.diagonals.ids
            negatives = self.diagonals.negatives(n_columns)
        # Where all rows count, the number of the mean goes into their slopes.
        divisor = divisor_of(plan, n_rows, negatives) if layout.mean and finite and complete else None
        absent = p.ABSENT * self.xp.finfo(inputs.rows[0].dtype).max if inputs.added else None
        return Known(bound, finite, complete, absent, negatives, divisor)

    def run(self) -> SweepResult:
        """The losses of all rows and their gradients."""
        wanted, (n_rows, n_columns) = self.wanted, self.source.learned
        count = n_rows if wanted.rows else 0
        tiles = [x for tile in self.source.tiles for x in tile[:n_columns]]
        init = p.empty_sums(tiles) if wanted.columns else ()
        blocks = self.tiling.block
        carry, (values, number, *gradients) = self.adapter.scan(self._step, init, self.by_block.flat, blocks)
        found = SweepResult(values, number, Gradients(), self.family.known.divisor)
        if not wanted.gradients:
            return found
        to_rows, gradients = gradients[:count], gradients[count:]
        to_columns: list[Array | None] = [None] * n_columns
        if wanted.columns:
            to_columns = [p.concat_rows(self.xp, carry[k::n_columns]) for k in range(n_columns)]
        to_partners: list[Array | None] = [None] * len(self.inputs.partners)
        if self._returns_positives():
            of_each = s.of_each(gradients.pop(0), len(to_partners))
            to_partners = [x[:, None] * self.inputs.rows[0] for x in of_each]
        if self.diagonals is not None and not self.diagonals.given:  # partners are columns
            if self._returns_positives():
                to_columns = [s.add_partners(self.xp, self.diagonals, to_columns[0], to_partners)]
            to_partners = []
        to_rows = to_rows or [None] * n_rows
        return found._replace(gradients=Gradients(to_rows, to_columns, to_partners, gradients))

    def _returns_positives(self) -> bool:
        """Whether blocks return the cotangents of the positives' scores, for the gradients of partners."""
        if self.diagonals is None or self.in_tile or not self.inputs.partners:
            return False
        return self.wanted.partners if self.diagonals.given else self.wanted.columns

    def _step(self, carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        family, need_grad = self.family, self.wanted.gradients
        here = Inputs.of(self.by_block.counts, block)
        sharpness, numbers = split_sharpness(self.layout.plan, here.by_row)
        rows = self.source.opened(here, sharpness)
        seen, positive = [], None
        for k in range(len(self.source.tiles)):
            sets = self.sets.of(k, start, here)
            if not isinstance(sets, Members):
                seen.append(_Seen(sets, *family.add_negatives(self.source.negatives(rows, k), sets, numbers)))
                continue
            scores, spreads = self.source.scores(rows, k)
            sets, scores = s.with_undefined(sets, scores, counts=family.counts_pairs)
            if self.skips:
                sets, rows = self._without_idle(sets, rows)
            part, residual, positive = family.add_masked(scores, sets, here.by_row)
            seen.append(_Seen(sets, part, residual, spreads))
        scores = self.source.positives(here, start)
        if scores is not None:
            positive = family.partner_positives(scores, here.present[0] if here.present else None, numbers)
        total, rescales = family.merge([tile.part for tile in seen])
        done = family.finish(total, positive, numbers, need_grad=need_grad)
        if not need_grad:
            return carry, (done.values, done.counts)
        to_rows, to_columns = self._pulled(carry, _Block(start, here, rows, positive, done), seen, rescales)
        of_positives = (done.to_positive,) if self._returns_positives() else ()
        of_sharpness = () if sharpness is None else (self.xp.zeros_like(sharpness),)  # a constant
        return to_columns, (done.values, done.counts, *to_rows, *of_positives, *of_sharpness, *done.row_cotangents)

    def _pulled(
        self, carry: Arrays, block: _Block, seen: Sequence[_Seen], rescales: Sequence[Any]
    ) -> tuple[Arrays, Arrays]:
        """The cotangents of the rows of a block, and those of the columns so far."""
        done, scaling = block.done, p.Scaling()
        if self.scales:
            bounded = self.layout.unit or self.layout.bound < math.inf
            scaling = p.scaling_of(done.coefficient, bounded=bounded)
            coefficient, to_positive = map(scaling.divided, (done.coefficient, done.to_positive))
            done = done._replace(coefficient=coefficient, to_positive=to_positive)
            block = block._replace(done=done)
        to_rows: Arrays = ()
        if block.here.partners and self.wanted.rows and not self.in_tile:
            partners, own = block.here.partners, None
            for partner, cotangent in zip(partners, s.of_each(done.to_positive, len(partners)), strict=True):
                own = p.plus(own, cotangent[:, None] * partner)
            to_rows = (own,)
        to_columns: list[Array] = []
        for k, (tile, rescale) in enumerate(zip(seen, rescales, strict=True)):
            cotangents, factor = self._cotangent(block, k, tile, rescale, scaling)
            back, forth = self.source.pulled(block.rows, k, cotangents, factor, tile.spreads)
            to_rows = tuple(map(p.plus, to_rows, back)) if to_rows else back
            to_columns += map(p.plus, carry[len(to_columns) :], map(scaling.back, forth))
        return tuple(map(scaling.back, to_rows)), tuple(to_columns)

    def _cotangent(
        self, block: _Block, k: int, tile: _Seen, rescale: Any, scaling: p.Scaling
    ) -> tuple[Arrays, Array | None]:
        """The cotangents of a tile's scores in each channel, as matrices and a factor of each row (None: 1)."""
        done = block.done
        if isinstance(tile.sets, Members):
            found = self.family.masked_cotangents(tile.residual, block.positive, done, tile.sets, rescale)
            return tuple(map(scaling.cleared, found)), None
        matrix, factor = self.family.tile_cotangent(tile.residual, done, rescale)
        if not self.in_tile:
            return (matrix,), factor
        positive = done.to_positive
        if self.scales:
            positive = safe_quotient(self.xp, positive, factor if len(positive.shape) == 1 else factor[:, None])
        else:
            matrix, factor = matrix * factor[:, None], None
        return (self.sets.put(matrix, positive, k, block.start),), factor

    def _without_idle(self, sets: Members, rows: list[Arrays]) -> tuple[Members, list[Arrays]]:
        """Rows without a positive do not count: zero their operands, so that a NaN there cannot reach columns."""
        live = self.xp.any(sets.positives, axis=1)
        if entry_at_hand(live, all_entries):
            return sets, rows
        sets = sets._replace(negatives=self.xp.logical_and(sets.negatives, live[:, None]))
        return sets, [tuple(rows_where(self.xp, live, *operands)) for operands in rows]
