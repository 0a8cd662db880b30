"""The two-sided sweep: sums of rows and of columns of inner products from one set of tiles.

The second pass visits the tiles again, kept or recomputed, once both sums are final. `_Square` decides, visits the
tiles and adds up; `TilePasses` computes a tile: pure functions of a `TileSpec`, which is hashable, and of arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from .._core.logsumexp import ExpSum, factors, merge
from .._core.namespace import namespace_of
from .._core.protocol import Array, Namespace
from .._core.ranks import Shards
from .._core.registry import adapter_of
from ..objectives.base import Objective
from . import products as p
from . import sets as s
from .channels import Channel
from .families import Softmax, are_small
from .forms import form_of, partner_scores, pull_partners
from .fusing import fused
from .inputs import Arrays, Inputs
from .row_losses import RowLosses, ScoreFacts
from .sources import takes_embeddings
from .specs import NeedGrad, SweepResult, SweepSpec
from .tiling import Bounds, Tiling, cut

Position = tuple[Array | int, Array | int | None]
"""First row and first column of a tile; None if they are the same."""

Both = tuple[Array, Array | None]
"""Arrays of the rows of a tile, and of its columns if it serves both sides."""


@takes_embeddings
def square_sweep(spec: SweepSpec, inputs: Inputs, need_grad: NeedGrad) -> SweepResult:
    """A two-sided sweep over a square matrix of inner products, for objectives of the softmax family.

    With `self_contrast` the scores are symmetric: rows and columns have equal sums, tiles above the diagonal serve
    both, and tiles on the diagonal hold each pair in both orders. Otherwise the loss is the mean of both directions.

    Across ranks, each rank sweeps its rows of the matrix, and column sums are added over the ranks. It returns the
    losses of its rows and of the matching columns; the gradients are those of the total loss. With `self_contrast`,
    each pair is computed on one rank.
    """
    square = _Square(spec, inputs, need_grad)
    square.forward()
    values, counts, to_weights = square.finish()
    gradients = None
    if need_grad.gradients:
        gradients = Inputs(*square.backward(), weights=to_weights)
    return SweepResult(values, counts, gradients, square.family.facts.divisor)


class _Tiles:
    """Blocks of rows, and the tiles that each visits.

    With `self_contrast`, a block visits the tiles from the diagonal on, the first of which has its own columns; or, in
    `strips`, a single tile of all columns from the diagonal on.
    """

    def __init__(self, spec: SweepSpec, n_rows: int, n_columns: int) -> None:
        self.n_rows, self.n_columns, self.self_contrast = n_rows, n_columns, spec.self_contrast
        tiling = spec.sizes.of(n_rows, n_columns)
        self.keep = tiling.keep
        self.blocks: int | Bounds = tiling.block
        self.bounds: Sequence[tuple[int, int]] = tiling.tiles(n_columns)
        self.strips = spec.self_contrast and isinstance(tiling.block, tuple)
        self.stops: dict[Array | int, int] = {}
        if spec.self_contrast and spec.shards is not None:
            self.blocks, self.bounds, self.stops = _share_of_pairs(spec.shards, tiling)

    def __call__(self, start: Array | int) -> range:
        """Indices of the tiles of a block of rows."""
        square = self.self_contrast and not self.strips
        first = next(k for k, (low, _) in enumerate(self.bounds) if low == start) if square else 0
        return range(first, self.stops[start] if self.stops else len(self.bounds))

    @property
    def entries(self) -> list[int]:
        """Number of entries of each tile that is visited."""
        blocks = self.blocks if isinstance(self.blocks, tuple) else cut(0, self.n_rows, self.blocks)
        if self.strips:
            return [(high - low) * (self.n_columns - low) for low, high in blocks]
        widths = [high - low for low, high in self.bounds]
        return [(high - low) * widths[k] for low, high in blocks for k in self(low)]


def entries_visited(spec: SweepSpec, n_rows: int, n_columns: int) -> list[int]:
    """Number of entries of each tile that a two-sided sweep visits in each of its passes."""
    return _Tiles(spec, n_rows, n_columns).entries


class TileSpec(NamedTuple):
    """What the passes over a tile depend on, besides arrays and numbers; hashable, and the same for any batch size.

    Attributes
    ----------
    family : Objective
        The objective.
    channel : Channel
        The similarity.
    diagonals : Diagonals
        Positions of the positives, without their numbers.
    facts : ScoreFacts
        Facts about the scores, without numbers of rows and columns.
    need_grad : NeedGrad
        Which gradients are needed.
    keep : bool
        Whether the first pass keeps its tile for the second.
    turned : bool
        Whether cotangents of columns are transposed.
    clears : bool
        Whether subnormal cotangents of scores are replaced by 0.
    """

    family: Objective
    channel: Channel
    diagonals: s.Diagonals
    facts: ScoreFacts
    need_grad: NeedGrad
    keep: bool
    turned: bool
    clears: bool = False


class TilePasses:
    """The two passes over a tile: its sums, and later its cotangents.

    The law of both: results are functions of the arguments alone, none of which is overwritten but a kept tile.
    """

    def __init__(self, spec: TileSpec, numbers: s.Numbers, like: Array) -> None:
        """Set up the family and the sets; `like` is an array of the rows."""
        self.spec, self.n_columns, self.xp = spec, numbers.shape[1], namespace_of(like)
        self.diagonals = spec.diagonals.with_numbers(numbers)
        self.family, self.form = Softmax(self.xp, spec.family, spec.facts), form_of(spec.channel.scores)

    def sums(
        self,
        rows: p.Operand,
        columns: p.Operand,
        both: bool,  # noqa: FBT001
        at: Position,
    ) -> tuple[ExpSum, ExpSum | None, Any]:
        """Exponential sums of the rows and, if the tile serves `both` sides, of the columns; and the tile, if kept.

        A tile is kept as exponentials, or as scores if these need a shift, with what the pullback of the form needs.
        """
        family, keep, of_columns = self.family, self.spec.keep, None
        scores, residual = self._scores(rows, columns, at)
        if both and not family.unshifted:
            of_columns = family.accumulate(scores, 0, spare=False)[0]
        of_rows, terms = family.accumulate(scores, spare=family.unshifted or not keep)
        if both and family.unshifted:
            of_columns = ExpSum(None, adapter_of(terms).sum_along(terms, 0))
        return of_rows, of_columns, (terms if family.unshifted else scores, residual) if keep else None

    def cotangents(  # noqa: PLR0917  (all that is known of a tile)
        self,
        rows: p.Operand,
        columns: p.Operand,
        kept: Any,
        coefficients: Both,
        tops: Both,
        to_positive: Array | None,
        at: Position,
    ) -> tuple[Arrays, Arrays]:
        """Cotangents of the operands; `to_positive`: cotangents of the positives, if the only tile has them."""
        tile, residual = (None, None) if kept is None else kept
        if kept is None:
            tile, residual = self._scores(rows, columns, at)
            tile = self.family.terms(tile, None) if self.family.unshifted else tile
        cotangent = self._of_scores(tile, coefficients, tops, halves=rows.part is not None)
        del kept, tile  # another array of the size of the tile follows
        if self.spec.clears:
            cotangent = p.cleared(cotangent)
        if to_positive is not None:
            cotangent = self._sets(columns, at).put(cotangent, to_positive, 0, at[0], Inputs())
        need_grad = self.spec.need_grad
        return self.form.pullback(
            residual,
            cotangent,
            None,
            rows,
            columns,
            need_grad=(need_grad.rows, need_grad.columns),
            need_scale=need_grad.scale,
            sums=None,
            turned=self.spec.turned,
        )

    def _sets(self, columns: p.Operand, at: Position) -> s.DiagonalSets:
        low = at[0] if at[1] is None else at[1]
        return s.DiagonalSets(self.diagonals, ((low, low + columns.x.shape[0]),), self.n_columns)

    def _scores(self, rows: p.Operand, columns: p.Operand, at: Position) -> tuple[Array, Any]:
        """Scores of a tile, -inf at pairs that are not negatives, and what their pullback needs."""
        scores, residual = self.form.tile(rows, columns)
        (scores,) = self.family.rounded((scores,))
        return self._sets(columns, at).of(0, at[0], Inputs())(scores, -math.inf), residual

    def _of_scores(self, scores: Array, coefficients: Both, tops: Both, *, halves: bool) -> Array:
        """Cotangent of the scores: the term of the rows and, with a second coefficient, the term of the columns.

        `scores` are exponentials if these need no shift, and may be overwritten. `halves`: products are of 16 bits.
        """
        family, (of_rows, of_columns) = self.family, coefficients
        if family.unshifted:
            if of_columns is None:
                return adapter_of(scores).times_in_place(scores, of_rows[:, None])
            return p.times_sum(scores, of_rows, of_columns, halves=halves)
        cotangent = family.terms(scores, tops[0], 1, spare=of_columns is None) * of_rows[:, None]
        if of_columns is None:
            return cotangent
        terms = family.terms(scores, tops[1], 0)
        return adapter_of(cotangent).plus_product(cotangent, terms, of_columns[None, :])


def sums_of_tile(spec: TileSpec) -> Callable[..., Any]:
    """The first pass over a tile as a function of arrays and numbers alone, which an adapter may compile."""
    return lambda numbers, rows, *others: TilePasses(spec, numbers, rows.x).sums(rows, *others)


def cotangents_of_tile(spec: TileSpec) -> Callable[..., Any]:
    """The second pass over a tile as a function of arrays and numbers alone."""
    return lambda numbers, rows, *others: TilePasses(spec, numbers, rows.x).cotangents(rows, *others)


class _Square:
    """State of a two-sided sweep over some rows and all columns; the columns that match these rows come first."""

    def __init__(self, spec: SweepSpec, inputs: Inputs, need_grad: NeedGrad) -> None:
        self.need_grad, self.to_rows, self.to_columns, *_ = need_grad
        self.inputs, self.rows, self.columns = inputs, inputs.rows[0], inputs.columns[0]
        self.form = form_of(spec.channels[0].scores)
        self.operand = self.form.rows(inputs.rows)
        self.weights = inputs.weights
        self.xp, self.adapter = namespace_of(self.rows), adapter_of(self.rows)
        self.n: int = self.rows.shape[0]
        n_columns: int = self.columns.shape[0]
        self.shards = spec.shards
        assert isinstance(spec.sets, s.Diagonals)  # noqa: S101  (others are one-sided)
        self.diagonals, self.tiles_of = spec.sets, _Tiles(spec, self.n, n_columns)
        bound = self._agreed(spec, spec.bound)
        finite = spec.finite(self.rows) or bound < math.inf
        self.spec = spec
        assert isinstance(spec.family, Objective)  # noqa: S101  (those of two-sided sweeps are)
        facts = ScoreFacts(are_small(spec.family, bound), finite, complete=True, need_grad=self.need_grad)
        # Losses are means over rows, whose number the passes over tiles do not need.
        self.family = Softmax(self.xp, spec.family, facts._replace(divisor=self.n if spec.mean and finite else None))
        self.blocks, self.bounds = self.tiles_of.blocks, self.tiles_of.bounds
        columns = p.Operand(*inputs.columns)
        self.all_columns = p.with_weights(columns) if self.to_rows else columns
        self.tiles = p.operand_pieces(self.all_columns, self.bounds)
        self.keep = self.tiles_of.keep and self.need_grad
        diagonals, self.numbers = s.without_numbers(spec.sets, (self.n, n_columns))
        self.tile_spec = TileSpec(
            spec.family,
            spec.channels[0],
            diagonals,  # type: ignore[arg-type]
            facts,
            need_grad,
            self.keep,
            p.sums_are_turned(columns, self.blocks, self.n),
        )
        self.kept: dict[tuple[Array | int, int], Any] = {}  # tiles of the first pass
        self.sums: list[ExpSum] = []
        self.losses: list[RowLosses] = []
        self.to_positive: Array = None

    def _agreed(self, spec: SweepSpec, bound: float) -> float:
        """Bound of the scores of all ranks. They must agree on it, since it decides which sums they exchange."""
        if self.shards is None or spec.unit or self.adapter.mode != "eager":
            return bound
        agreed = self.shards.largest(self.xp.full_like(self.xp.sum(self.rows[:, 0], axis=0, keepdims=True), bound))
        number = self.adapter.concrete_value(self.xp.reshape(agreed, ()))
        return math.inf if number is None else number

    def is_one_tile(self) -> bool:
        whole = not isinstance(self.blocks, tuple) and self.blocks == self.n
        return whole and len(self.bounds) == 1 and self.operand.part is None

    def serves_columns(self, start: Array | int, k: int, height: int) -> bool:
        """Whether a tile adds to the column sums too; not if it holds each pair in both orders."""
        if self.tiles_of.strips:
            return bool(start + height < self.n)
        return not self.spec.self_contrast or self.bounds[k][0] != start

    def columns_of(self, start: Array | int, k: int) -> tuple[p.Operand, Position]:
        """Columns of a tile, and its position."""
        if not self.tiles_of.strips:
            return self.tiles[k], (start, self.bounds[k][0])
        return p.operand_pieces(self.all_columns, ((start, self.n),))[0], (start, None)

    def passed(self, sums: list[Any], height: int) -> tuple[list[Any], list[Any]]:
        """Split the sums of the columns that are left into those of a block, which no later one visits, and others.

        Both are lists of sums by tile; the first is empty if rows and columns differ.
        """
        if not self.spec.self_contrast:
            return [], sums
        if not self.tiles_of.strips:
            return sums[:1], sums[1:]
        (left,) = sums
        return [_rows_of(left, 0, height)], [_rows_of(left, height, None)]

    def _pass(self, pure: Callable[[TileSpec], Callable[..., Any]], spec: TileSpec) -> Callable[..., Any]:
        """A pass over tiles, compiled if it pays."""
        compiled = None
        if self.spec.fused and self.need_grad:
            compiled = fused(pure, spec, (self.rows, self.columns, *self.weights))
        if compiled is not None:
            return partial(compiled, self.numbers)
        passes = TilePasses(spec, self.numbers, self.rows)
        return passes.sums if pure is sums_of_tile else passes.cotangents

    # The sums.

    def forward(self) -> None:
        """Compute the sums of rows and of columns."""
        xp, unshifted = self.xp, self.family.unshifted
        sums = self._pass(sums_of_tile, self.tile_spec)

        def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
            rows, height = self.operand.with_arrays(block), block[0].shape[0]
            left, parts = self._exp_sums(carry), []
            own, others = self.passed(left, height)
            for place, k in enumerate(self.tiles_of(start), len(others) - len(left)):
                columns, at = self.columns_of(start, k)
                part, of_columns, kept = sums(rows, columns, self.serves_columns(start, k, height), at)
                if of_columns is not None:
                    of_columns = _rows_of(of_columns, height, None) if self.tiles_of.strips else of_columns
                    others[place] = merge(xp, [others[place], of_columns])[0]
                parts.append(part)
                if self.keep:
                    self.kept[start, k] = kept
            return _flat(others), _flat([merge(xp, [*parts, *own])[0]])

        empty = [_empty_sum(xp, tile.x, unshifted=unshifted) for tile in self.tiles]
        carry, result = self.adapter.scan(step, _flat(empty), self.operand.arrays, self.blocks)
        (of_rows,) = self._exp_sums(result)
        by_tile = self._exp_sums(carry)
        if self.spec.self_contrast:  # the sums of rows include those of the same columns
            by_tile = [of_rows, *([] if self.tiles_of.strips else by_tile)]
        tops = [part.top for part in by_tile if part.top is not None]
        top = p.concat_rows(xp, tops) if tops else None
        of_columns = ExpSum(top, p.concat_rows(xp, [part.total for part in by_tile]))
        of_columns = self._over_ranks(of_columns)
        if self.spec.self_contrast:
            of_rows = _rows_of(of_columns, 0, self.n)
        self.sums = [of_rows, of_columns]

    def _over_ranks(self, of_columns: ExpSum) -> ExpSum:
        if self.shards is None:
            return of_columns
        top, total = of_columns
        if top is None:
            return ExpSum(None, self.shards.sum_of_columns(total))
        largest = self.shards.largest(top, of_columns=True)
        return ExpSum(largest, self.shards.sum_of_columns(total * factors(self.xp, [top], largest)[0]))

    def _exp_sums(self, flat: Arrays) -> list[ExpSum]:
        if self.family.unshifted:
            return [ExpSum(None, total) for total in flat]
        return [ExpSum(top, total) for top, total in zip(flat[::2], flat[1::2], strict=True)]

    # The losses.

    def finish(self) -> tuple[Array, Array, Arrays]:
        """Losses and counts of the rows, and the cotangents of the row weights."""
        xp = self.xp
        partners = s.partners(xp, self.diagonals, self.inputs)
        scores = partner_scores(self.form, self.operand, partners)
        self.losses = [self._finish_side(self.sums[0], scores, self.weights)]
        if not self.spec.self_contrast:
            of_all = (scores, *self.weights)
            if self.shards is not None:  # positives and weights of the columns are on other ranks
                of_all = tuple(self.shards.gather(x) for x in of_all)
            self.losses.append(self._finish_side(self.sums[1], of_all[0], of_all[1:]))
        if self.need_grad:
            self.to_positive = self._mean([losses.to_positive for losses in self.losses])
        values = self._mean([losses.values for losses in self.losses])
        to_weights = tuple(map(self._mean, zip(*(losses.row_cotangents for losses in self.losses), strict=True)))
        return values, self.losses[0].row_counts, to_weights

    def _finish_side(self, side: ExpSum, positives: Array, weights: Arrays) -> RowLosses:
        block = Inputs(weights=weights)
        positive = self.family.partner_positives(positives, block)
        return self.family.finish(side, positive, block)

    def _mean(self, parts: Sequence[Array]) -> Array:
        """Mean over both directions of an array of the rows and an array of the matching columns."""
        if len(parts) == 1:
            return parts[0]
        of_rows, of_columns = parts
        own_columns = of_columns if self.shards is None else of_columns[: self.n]
        return 0.5 * of_rows + 0.5 * own_columns

    # The gradients.

    def backward(self) -> tuple[Arrays, Arrays]:
        """Cotangents of the operands of rows and columns.

        With a_i and b_j the coefficients of row i and column j, the cotangent of the score of a negative is c_ij, where
        b_j is 0 in tiles that add to the row sums alone:

            c_ij = a_i e^(g_ij - top_i) + b_j e^(g_ij - top_j)        to rows: c @ columns        to columns: c.T @ rows
        """
        xp, family, half = self.xp, self.family, 1.0 if self.spec.self_contrast else 0.5
        of_rows, of_columns = (half * self.losses[k].coefficient for k in (0, -1))
        if self.spec.self_contrast and self.shards is not None:
            of_columns = self.shards.gather(of_rows)
        scaling = p.Scaling()
        if not family.unshifted and self.adapter.is_plain((of_rows, of_columns)):
            scaling = p.scaling_of(xp.concat([of_rows, of_columns]), bounded=family.facts.finite)
        of_rows, of_columns, self.to_positive = map(scaling.divided, (of_rows, of_columns, self.to_positive))
        tops, tops_of_columns = ((), ()) if family.unshifted else ((self.sums[0].top,), (self.sums[-1].top,))
        count, turned = len(self.operand.arrays), self.tile_spec.turned
        to_positive = self.to_positive if self.is_one_tile() else None
        cotangents = self._pass(cotangents_of_tile, self.tile_spec._replace(clears=scaling.clears))

        def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
            rows, (coefficient, *top_of_rows) = self.operand.with_arrays(block[:count]), block[count:]
            top, height = top_of_rows[0] if tops else None, coefficient.shape[0]
            to_rows: Arrays = ()
            left = list(carry)
            for place, k in enumerate(self.tiles_of(start)):
                columns, at = self.columns_of(start, k)
                own, *top_of_columns = self._from(of_columns, tops_of_columns, start, k, height)
                kept = self.kept.pop((start, k)) if self.keep else None
                both_tops = top, top_of_columns[0] if top_of_columns else None
                parts = cotangents(rows, columns, kept, (coefficient, own), both_tops, to_positive, at)
                to_rows = tuple(map(p.plus, to_rows, parts[0])) if to_rows else parts[0]
                if self.to_columns:
                    left[place] = p.plus(left[place], *parts[1])
            of_block, left = self.passed(left, height) if self.to_columns else ([], left)
            return tuple(left), (*to_rows, *of_block)

        init = p.empty_sums([tile.x for tile in self.tiles], turned=turned) if self.to_columns else ()
        xs = (*self.operand.arrays, of_rows, *tops)
        carry, to_rows = self.adapter.scan(step, init, xs, self.blocks)
        to_columns: Array = None
        if self.to_columns:
            n_own = 1 if self.spec.self_contrast else 0
            left = () if self.tiles_of.strips else tuple(x.T for x in carry) if turned else carry
            tiles = self.tiles[len(self.tiles) - len(left) :]
            parts = [xp.zeros_like(tile.x) if x is None else x for x, tile in zip(left, tiles, strict=True)]
            to_rows, to_own = to_rows[: len(to_rows) - n_own], to_rows[len(to_rows) - n_own :]
            to_columns = p.with_divisor(p.concat_rows(xp, [*to_own, *parts]), self.all_columns)
            del carry, left, to_own, parts  # as large as the embeddings
        if not self.is_one_tile():
            to_rows, to_columns = self._with_positives(to_rows, to_columns)
        of_rows = tuple(map(scaling.restored, to_rows)) or (None,) * self.form.n_rows
        return of_rows, (scaling.restored(to_columns),)

    def _from(self, coefficients: Array, tops: Arrays, start: Any, k: int, height: int) -> Sequence[Array]:
        """Coefficients and largest scores of the columns of a tile; None if it does not serve them.

        The coefficients of a strip are 0 where it holds each pair in both orders.
        """
        if not self.serves_columns(start, k, height):
            return (None,)
        if not self.tiles_of.strips:
            return [p.pieces(x, (self.bounds[k],))[0] for x in (coefficients, *tops)]
        others = [self.xp.zeros_like(coefficients[:height]), coefficients[start + height :]]
        return self.xp.concat(others), *(x[start:] for x in tops)

    def _with_positives(self, to_rows: Arrays, to_columns: Array | None) -> tuple[Arrays, Array | None]:
        """The cotangents of rows and columns, with the terms of the positives added."""
        each = s.by_partner(self.to_positive, len(self.diagonals.distances))
        partners, flags = s.partners(self.xp, self.diagonals, self.inputs), (self.to_rows, self.to_columns)
        to_rows, to_partners = pull_partners(self.form, self.operand, partners, each, to_rows, need_grad=flags)
        del partners
        if self.to_columns:
            to_columns = s.add_partners(self.xp, self.diagonals, self.inputs, to_columns, to_partners)
        return to_rows, to_columns


def _share_of_pairs(shards: Shards, tiling: Tiling) -> tuple[Bounds, Bounds, dict[Array | int, int]]:
    """Blocks, tiles, and the end of the tiles of each block, so that each pair is computed on one rank.

    Columns come in the order of ranks, starting with this rank's. Each rank takes these and the columns of the next
    half of the ranks. If the number of ranks is even, two ranks have the pairs with the last of these: the lower rank
    takes the first half of the columns there, the other the second half of its rows. The columns left out are one last
    tile.
    """
    rank, size = shards.communicator.rank, shards.communicator.size
    counts = [*shards.rows[rank:], *shards.rows[:rank]]
    n, half, odd = counts[0], size // 2, size % 2 == 1
    lower = odd or rank < half
    first = 0 if lower else n // 2  # of the rows that meet the last of these ranks
    whole = sum(counts[: half + 1 if odd else half])
    last = whole if odd else whole + (counts[half] // 2 if lower else counts[half])
    assert isinstance(tiling.block, int)  # noqa: S101  (blocks are visited one by one)
    assert isinstance(tiling.tile, int)  # noqa: S101
    # A rank without rows has one block of none.
    rows = tuple(dict.fromkeys([*cut(0, first, tiling.block), *cut(first, n, tiling.block)]))
    near, far = cut(n, whole, tiling.tile), cut(whole, last, tiling.tile)
    excluded = cut(last, sum(counts), sum(counts))
    n_near = len(rows) + len(near)
    stops: dict[Array | int, int] = {low: n_near + (len(far) if low >= first else 0) for low, _ in rows}
    return rows, (*rows, *near, *far, *excluded), stops


def _rows_of(sums: Any, start: int, stop: int | None) -> Any:
    """Rows of an array, or of exponential sums."""
    if isinstance(sums, ExpSum):
        return ExpSum(*(x if x is None else _rows_of(x, start, stop) for x in sums))
    return sums[start:stop, ...]


def _flat(sums: Sequence[ExpSum]) -> Arrays:
    return tuple(x for part in sums for x in part if x is not None)


def _empty_sum(xp: Namespace, tile: Array, *, unshifted: bool) -> ExpSum:
    """Sums of the columns of a tile over no rows."""
    zeros = xp.zeros_like(tile[:, 0])
    return ExpSum(None if unshifted else zeros - math.inf, zeros)
