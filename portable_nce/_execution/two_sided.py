"""The sweep over inner products that adds up rows and columns from the same tiles.

It visits the tiles again, kept or computed anew, once both sums are final.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._core.logsumexp import ExpSum, factors, merge
from .._core.namespace import namespace_of
from .._core.protocol import Array, Namespace
from .._core.ranks import Shards
from .._core.registry import adapter_of
from . import products as p
from . import sets as s
from .families import Softmax, family_of
from .inputs import Arrays, Inputs
from .layouts import Gradients, Layout, NeedGrad, SweepResult
from .row_losses import Known, RowLosses
from .sources import takes_embeddings
from .tiling import Bounds, Tiling, cut


@takes_embeddings
def square_sweep(layout: Layout, inputs: Inputs, wanted: NeedGrad) -> SweepResult:
    """A two-sided sweep over a square matrix of inner products; its plan is of the softmax family.

    Of `own` scores, which are symmetric, rows and columns have the same sums: tiles above the diagonal serve both, and
    those that it crosses hold each pair both ways. Otherwise the loss is the mean of both directions.

    A rank sees its rows of the matrix. What it has added up of the columns is added to what the others have, and the
    losses that it returns are those of its rows and of their columns; the gradients are those of the losses of all. Of
    `own` scores, each pair is seen by one rank.
    """
    square = _Square(layout, inputs, wanted)
    square.add_up()
    values, number, to_by_row = square.finish()
    gradients = Gradients()
    if wanted.gradients:
        to_rows, to_columns = square.pull()
        gradients = Gradients((to_rows,), (to_columns,), (), to_by_row)
    return SweepResult(values, number, gradients, square.family.known.divisor)


class _Square:
    """The state of a two-sided sweep over some rows and all columns, of which those of these rows come first."""

    def __init__(self, layout: Layout, inputs: Inputs, wanted: NeedGrad) -> None:
        self.need_grad, self.to_rows, self.to_columns, _ = wanted
        self.rows, self.columns = inputs.rows[0], inputs.columns[0]
        self.own = p.operand_of(inputs.rows)
        self.by_row = inputs.by_row
        self.xp, self.adapter = namespace_of(self.rows), adapter_of(self.rows)
        self.n: int = self.rows.shape[0]
        self.n_columns: int = self.columns.shape[0]
        self.shards = layout.shards
        assert isinstance(layout.sets, s.Diagonals)  # noqa: S101  (only these serve both sides)
        self.diagonals, tiling = layout.sets, layout.sizes.of(self.n, self.n_columns)
        bound = self._agreed(layout, layout.bound)
        finite = layout.unit or bound < math.inf
        self.layout = layout
        known = Known(bound, finite, complete=True, divisor=self.n if layout.mean and finite else None)
        family = family_of(self.xp, layout.plan, known, need_grad=self.need_grad)
        assert isinstance(family, Softmax)  # noqa: S101  (its plan is one)
        self.family = family
        self.blocks: int | Bounds = tiling.block
        self.bounds: Sequence[tuple[int, int]] = tiling.tiles(self.n_columns)
        self.stops: dict[Array | int, int] = {}
        if layout.own and self.shards is not None:
            self.blocks, self.bounds, self.stops = _share_of_pairs(self.shards, tiling)
        self.sets = s.DiagonalSets(self.diagonals, self.bounds, self.n_columns)
        self.tiles = p.operand_pieces(p.operand_of(inputs.columns), self.bounds)
        self.keep = tiling.keep and self.need_grad
        self.kept: dict[tuple[Array | int, int], Array] = {}  # exponentials, or the scores where these are shifted
        self.sides: list[ExpSum] = []
        self.done: list[RowLosses] = []
        self.to_positive: Array = None

    def _agreed(self, layout: Layout, bound: float) -> float:
        """A bound of the scores of all ranks: it decides what these add up."""
        if self.shards is None or layout.unit or self.adapter.mode != "eager":
            return bound
        agreed = self.shards.largest(self.xp.full_like(self.rows[:1, 0], bound))
        number = self.adapter.concrete_value(self.xp.reshape(agreed, ()))
        return math.inf if number is None else number

    def is_one_tile(self) -> bool:
        """Whether the matrix is one tile."""
        whole = not isinstance(self.blocks, tuple) and self.blocks == self.n
        return whole and len(self.bounds) == 1

    def visited(self, start: Array | int) -> range:
        """The tiles that a block of rows is to see."""
        first = next(k for k, (low, _) in enumerate(self.bounds) if low == start) if self.layout.own else 0
        return range(first, self.stops[start] if self.stops else len(self.bounds))

    def serves_columns(self, start: Array | int, k: int) -> bool:
        """Whether a tile's sums over its rows are wanted too: not if it holds each pair both ways."""
        return not self.layout.own or self.bounds[k][0] != start

    def scores(self, own: p.Operand, start: Array | int, k: int) -> Array:
        """The scores of a tile."""
        scores = p.product(own, self.tiles[k])
        return self.sets.of(k, start, Inputs())(scores, -math.inf)

    # The sums.

    def add_up(self) -> None:
        """Add up rows and columns."""
        xp, unshifted = self.xp, self.family.unshifted

        def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
            own = p.operand_of(block)
            so_far, parts = self._sums(carry), []
            for k in self.visited(start):
                both = self.serves_columns(start, k)
                scores = self.scores(own, start, k)
                if both and not unshifted:
                    so_far[k] = merge(xp, [so_far[k], self.family.accumulate(scores, 0, spare=False)[0]])[0]
                part, terms = self.family.accumulate(scores, spare=unshifted or not self.keep)
                parts.append(part)
                if both and unshifted:
                    so_far[k] = ExpSum(None, so_far[k].total + self.adapter.sum_along(terms, 0))
                if self.keep:
                    self.kept[start, k] = terms if unshifted else scores
            return _flat(so_far), _flat([merge(xp, parts)[0]])

        empty = [_empty_sum(xp, tile.x, unshifted=unshifted) for tile in self.tiles]
        carry, found = self.adapter.scan(step, _flat(empty), self.own.arrays, self.blocks)
        (of_rows,) = self._sums(found)
        by_tile = self._sums(carry)
        tops = [part.top for part in by_tile if part.top is not None]
        top = p.concat_rows(xp, tops) if tops else None
        of_columns = ExpSum(top, p.concat_rows(xp, [part.total for part in by_tile]))
        if self.layout.own:
            of_columns = self._over_ranks(_with_first(xp, of_columns, of_rows))
            of_rows = _first(of_columns, self.n)
        else:
            of_columns = self._over_ranks(of_columns)
        self.sides = [of_rows, of_columns]

    def _over_ranks(self, of_columns: ExpSum) -> ExpSum:
        """The sums of the columns over the rows of all ranks."""
        if self.shards is None:
            return of_columns
        top, total = of_columns
        if top is None:
            return ExpSum(None, self.shards.sum_of_columns(total))
        largest = self.shards.largest(top, of_columns=True)
        return ExpSum(largest, self.shards.sum_of_columns(total * factors(self.xp, [top], largest)[0]))

    def _sums(self, flat: Arrays) -> list[ExpSum]:
        if self.family.unshifted:
            return [ExpSum(None, total) for total in flat]
        return [ExpSum(top, total) for top, total in zip(flat[::2], flat[1::2], strict=True)]

    # The losses.

    def finish(self) -> tuple[Array, Array, Arrays]:
        """The losses of the rows, how often each counts, and the cotangents of what belongs to rows."""
        xp = self.xp
        partners = s.partners(xp, self.diagonals, self.columns, self.n)
        scores = s.partner_scores(xp, self.rows, partners)
        self.done = [self._finish_side(self.sides[0], scores, self.by_row)]
        if not self.layout.own:
            of_all = (scores, *self.by_row)
            if self.shards is not None:  # positives and weights of their columns are on other ranks
                of_all = tuple(self.shards.gather(x) for x in of_all)
            self.done.append(self._finish_side(self.sides[1], of_all[0], of_all[1:]))
        if self.need_grad:
            self.to_positive = self._mean_of_own([done.to_positive for done in self.done])
        values = self._mean_of_own([done.values for done in self.done])
        to_by_row = tuple(map(self._mean_of_own, zip(*(done.row_cotangents for done in self.done), strict=True)))
        return values, self.done[0].counts, to_by_row

    def _finish_side(self, side: ExpSum, positives: Array, by_row: Arrays) -> RowLosses:
        return self.family.finish(
            side, self.family.partner_positives(positives, None, by_row), by_row, need_grad=self.need_grad
        )

    def _mean_of_own(self, parts: Sequence[Array]) -> Array:
        """The mean over the directions of numbers of rows, and of the columns that are theirs."""
        if len(parts) == 1:
            return parts[0]
        of_rows, of_columns = parts
        own = of_columns if self.shards is None else of_columns[: self.n]
        return 0.5 * of_rows + 0.5 * own

    # The gradients.

    def pull(self) -> tuple[Array | None, Array | None]:
        """The cotangents of rows and columns. A tile's are ``a_i e^(g_ij - top_i) + b_j e^(g_ij - top_j)``."""
        xp, family, half = self.xp, self.family, 1.0 if self.layout.own else 0.5
        of_rows, of_columns = (half * self.done[k].coefficient for k in (0, -1))
        if self.layout.own and self.shards is not None:
            of_columns = self.shards.gather(of_rows)
        scaling = p.Scaling()
        if not family.unshifted and self.adapter.is_plain((of_rows, of_columns)):
            scaling = p.scaling_of(xp.concat([of_rows, of_columns]), bounded=family.known.finite)
        of_rows, of_columns, self.to_positive = map(scaling.divided, (of_rows, of_columns, self.to_positive))
        by_tile = p.pieces(of_columns, self.bounds)
        tops = () if family.unshifted else (self.sides[0].top,)
        top_by_tile = [] if family.unshifted else p.pieces(self.sides[-1].top, self.bounds)
        wanted, even, count = (self.to_rows, self.to_columns), self.layout.channels[0].even, len(self.own.arrays)

        def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
            own, (coefficient, *top_of_rows) = p.operand_of(block[:count]), block[count:]
            top = top_of_rows[0] if tops else None
            to_rows: Array = None
            to_columns = list(carry)
            for k in self.visited(start):
                both = self.serves_columns(start, k)
                top_k = top_by_tile[k] if tops else None
                cotangent = self._of_negatives(own, start, k, (coefficient, by_tile[k] if both else None), (top, top_k))
                cotangent = scaling.cleared(cotangent)
                if self.is_one_tile():  # in which the cotangents of positives can stand
                    cotangent = self.sets.put(cotangent, self.to_positive, k, start)
                back, forth = p.pulled(cotangent, None, own, self.tiles[k], wanted=wanted, even=even)
                if self.to_rows:
                    to_rows = p.plus(to_rows, back)
                if self.to_columns:
                    to_columns[k] = p.plus(to_columns[k], forth)
            return tuple(to_columns), (to_rows,) if self.to_rows else ()

        init = p.empty_sums([tile.x for tile in self.tiles]) if self.to_columns else ()
        xs = (*self.own.arrays, of_rows, *tops)
        carry, found = self.adapter.scan(step, init, xs, self.blocks)
        to_rows = found[0] if self.to_rows else None
        to_columns: Array = None
        if self.to_columns:
            seen = [xp.zeros_like(tile.x) if x is None else x for x, tile in zip(carry, self.tiles, strict=True)]
            to_columns = p.concat_rows(xp, seen)
        if not self.is_one_tile():
            to_rows, to_columns = self._with_positives(to_rows, to_columns)
        return scaling.back(to_rows), scaling.back(to_columns)

    def _with_positives(self, to_rows: Array | None, to_columns: Array | None) -> tuple[Array | None, Array | None]:
        """The cotangents of rows and columns with those that come by the positives."""
        each = s.of_each(self.to_positive, len(self.diagonals.distances))
        if self.to_rows:
            for partner, to_positive in zip(
                s.partners(self.xp, self.diagonals, self.columns, self.n), each, strict=True
            ):
                to_rows = p.plus(to_rows, to_positive[:, None] * partner)
        if self.to_columns:
            to_columns = s.add_partners(self.xp, self.diagonals, to_columns, [x[:, None] * self.rows for x in each])
        return to_rows, to_columns

    def _of_negatives(
        self,
        own: p.Operand,
        start: Array | int,
        k: int,
        coefficients: tuple[Array, Array | None],
        tops: tuple[Array | None, Array | None],
    ) -> Array:
        """The cotangent of a tile, for the sums of its rows and, with a second coefficient, of its columns."""
        family = self.family
        of_rows, of_columns = coefficients
        kept = self.kept.pop((start, k)) if self.keep else None
        if family.unshifted:
            terms = kept if self.keep else family.terms(self.scores(own, start, k), None)
            if of_columns is None:
                return terms * of_rows[:, None]
            cotangent = p.outer_sum(of_rows, of_columns)
            cotangent *= terms
            return cotangent
        scores = kept if self.keep else self.scores(own, start, k)
        cotangent = family.terms(scores, tops[0], 1, spare=of_columns is None) * of_rows[:, None]
        return cotangent if of_columns is None else cotangent + family.terms(scores, tops[1], 0) * of_columns[None, :]


def _share_of_pairs(shards: Shards, tiling: Tiling) -> tuple[Bounds, Bounds, dict[Array | int, int]]:
    """The pairs that a rank sees of own scores, so that each is seen once: blocks, tiles, and the stops of rows.

    Of the columns, its own come first, then those of the ranks after it. It takes its own and those of the next half of
    the ranks. Where the number of ranks is even, two ranks would take the last of these: the lower one takes half of
    the columns there, and the other, as rows, the rest. What it does not see is one tile more.
    """
    rank, size = shards.communicator.rank, shards.communicator.size
    counts = [*shards.rows[rank:], *shards.rows[:rank]]
    n, half, odd = counts[0], size // 2, size % 2 == 1
    lower = odd or rank < half
    first = 0 if lower else n // 2  # of the rows that see the last of these ranks
    whole = sum(counts[: half + 1 if odd else half])
    last = whole if odd else whole + (counts[half] // 2 if lower else counts[half])
    assert isinstance(tiling.block, int)  # noqa: S101  (blocks are visited one by one)
    assert isinstance(tiling.tile, int)  # noqa: S101
    rows = (*cut(0, first, tiling.block), *cut(first, n, tiling.block))
    near, far = cut(n, whole, tiling.tile), cut(whole, last, tiling.tile)
    unseen = cut(last, sum(counts), sum(counts))
    seen = len(rows) + len(near)
    stops: dict[Array | int, int] = {low: seen + (len(far) if low >= first else 0) for low, _ in rows}
    return rows, (*rows, *near, *far, *unseen), stops


def _first(sums: ExpSum, n: int) -> ExpSum:
    """The sums of the first columns."""
    return ExpSum(*(x if x is None or x.shape[0] == n else x[:n] for x in sums))


def _with_first(xp: Namespace, sums: ExpSum, further: ExpSum) -> ExpSum:
    """The sums of columns, with further ones of the first of them."""
    n = further.total.shape[0]
    first, _ = merge(xp, [further, _first(sums, n)])
    if n == sums.total.shape[0]:
        return first
    top = None if first.top is None or sums.top is None else xp.concat([first.top, sums.top[n:]])
    return ExpSum(top, xp.concat([first.total, sums.total[n:]]))


def _flat(sums: Sequence[ExpSum]) -> Arrays:
    return tuple(x for part in sums for x in part if x is not None)


def _empty_sum(xp: Namespace, tile: Array, *, unshifted: bool) -> ExpSum:
    """The sums of the columns of a tile, of no rows yet."""
    zeros = xp.zeros_like(tile[:, 0])
    return ExpSum(None if unshifted else zeros - math.inf, zeros)
