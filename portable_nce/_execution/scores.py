"""Sources of scores: inner products, a given score matrix, and similarities of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core.namespace import namespace_of
from .._core.numerics import upcast
from .._core.protocol import Array
from .._core.registry import adapter_of
from . import products as p
from . import sets as s
from .channels import Channel, Residual
from .families import sharpened
from .forms import Form
from .inputs import Arrays, Inputs, by_channel, only
from .specs import NeedGrad
from .tiling import Bounds


class Source:
    """Scores of the tiles of a matrix, and the cotangents of its operands.

    `tiles`: the column operands of each tile, those with a gradient first. `n_differentiated`: numbers of row operands
    and of column operands with a gradient. `turned`: cotangents of column operands are transposed. Operands are never
    overwritten.

    A source has `negative_scores` if its tiles hold negatives alone, and `scores` if its tiles are masked. The law of
    all: ``⟨pullback(c), d⟩ = ⟨c, derivative of the scores along d⟩`` for cotangents c and directions d.
    """

    tiles: Sequence[Any]
    n_differentiated: tuple[int, int]
    turned = False

    def block_operands(self, block: Inputs) -> Any:
        """The rows of a block, as the other methods take them."""
        raise NotImplementedError

    def positive_scores(self, rows: Any, block: Inputs, start: Array | int) -> Array | None:
        """Scores (n,) or (n, P) of the positives of a block, each by one channel; None if a masked tile has them."""
        raise NotImplementedError

    def negative_scores(self, rows: Any, k: int) -> tuple[Arrays, Any]:
        """Scores (n, k) of a tile by each channel, for the sums over negatives, with sharpness; and for `pullback`.

        The caller may overwrite those of `Products`.
        """
        raise NotImplementedError

    def scores(self, rows: Any, k: int) -> tuple[Arrays, Any]:
        """Scores (n, k) of a tile by each channel, without sharpness, and what `pullback` needs of them.

        The caller may overwrite inner products alone.
        """
        raise NotImplementedError

    def pullback(  # noqa: PLR0917  (all that is known of a tile)
        self, rows: Any, k: int, cotangents: Arrays, factor: Array | None, kept: Any, sums: Array | None
    ) -> tuple[Arrays, Arrays]:
        """Cotangents of the operands of rows and of columns, from the scores' cotangents, which may be overwritten.

        The cotangent of the scores of the first channel is ``factor[:, None] * cotangents[0]``. `sums` (n,): the sums
        of the negatives' exponentials, if the cotangents are in proportion to these.
        """
        raise NotImplementedError

    def of_columns(self, sums: Arrays) -> Arrays:
        """Cotangents of the column operands of all tiles, from the sums over all blocks of what `pullback` returns."""
        return sums


class Products(Source):
    """Tiles of products of a form; `scored`: the tiles with the numbers added to their scores."""

    def __init__(
        self,
        form: Form,
        tiles: Sequence[p.Operand],
        scored: Sequence[p.Operand],
        need_grad: NeedGrad,
        *,
        turned: bool,
    ) -> None:
        self.form, self.tiles, self.score_columns, self.turned = form, tiles, scored or tiles, turned
        self.need_grad, self.need_scale = (need_grad.rows, need_grad.columns), need_grad.scale
        self.has_added, self.n_differentiated = len(scored) > 0, (form.n_rows, 1)

    @staticmethod
    def cut(
        form: Form, inputs: Inputs, need_grad: NeedGrad, bounds: Bounds, *, mean: bool
    ) -> tuple[list[p.Operand], list[p.Operand]]:
        """Columns of each tile, and with numbers added to their scores, if there are any: the first two arguments."""
        columns = p.Operand(*inputs.columns)
        tiles = p.operand_pieces(p.with_weights(columns, mean=mean) if need_grad.rows else columns, bounds)
        if not inputs.added:
            return tiles, []
        added = p.pieces(inputs.added[0], bounds)
        apart = form.n_rows > 1  # added after the function of the products
        return tiles, [p.with_added(tile, extra, apart=apart) for tile, extra in zip(tiles, added, strict=True)]

    def block_operands(self, block: Inputs) -> tuple[p.Operand, p.Operand, Array | None]:
        """The rows of a block, the rows multiplied by the sharpness, and the sharpness if it is not in them."""
        rows = self.form.rows(block.rows)
        scaled, rest = p.sharpened_rows(rows, self.tiles[0], only(block.sharpness))
        return rows, p.with_ones(scaled) if self.has_added else scaled, rest

    def positive_scores(self, rows: Any, block: Inputs, start: Array | int) -> Array | None:
        """Scores of the partners of a block; None if a tile has the positives."""
        del rows, start
        return only(block.positives)

    def negative_scores(self, rows: Any, k: int) -> tuple[Arrays, Any]:
        """Scores of tile k for the sums over negatives, with sharpness."""
        _, scaled, rest = rows
        scores, kept = self.form.tile(scaled, self.score_columns[k])
        return (sharpened(scores, rest),), kept

    def scores(self, rows: Any, k: int) -> tuple[Arrays, Any]:
        """Scores of tile k, without sharpness."""
        scores, kept = self.form.tile(rows[0], self.score_columns[k])
        return (scores,), kept

    def pullback(  # noqa: PLR0917
        self, rows: Any, k: int, cotangents: Arrays, factor: Array | None, kept: Any, sums: Array | None
    ) -> tuple[Arrays, Arrays]:
        """Cotangents of rows and columns."""
        return self.form.pullback(
            kept,
            cotangents[0],
            factor,
            rows[0],
            self.tiles[k],
            need_grad=self.need_grad,
            need_scale=self.need_scale,
            sums=sums,
            turned=self.turned,
        )

    def of_columns(self, sums: Arrays) -> Arrays:
        """The sums times the divisors of 16-bit columns."""
        return tuple(map(p.with_divisor, sums, self.tiles))


class _Scored(NamedTuple):
    """Operands of a block of rows and its scores, by channel; what pullbacks need; and the sharpness of negatives."""

    operands: list[Arrays]
    scores: Arrays
    kept: tuple[Residual, ...]
    sharpness: Array | None


class Channels(Source):
    """The single tile of all columns, scored by any similarities, or given."""

    def __init__(
        self,
        channels: Sequence[Channel],
        columns: Arrays,
        weighted: Sequence[p.Operand | None],
        *,
        turned: bool,
        need_scale: bool,
        placed: bool = False,
    ) -> None:
        self.channels, self.turned, self.need_scale, self.placed = channels, turned, need_scale, placed
        self.weighted = weighted or [None] * len(channels)
        self.counts = [channel.rows for channel in channels]
        of_columns = [channel.columns for channel in channels]
        self.n_differentiated = sum(count for count, _ in self.counts), sum(count for count, _ in of_columns)
        self.columns = by_channel(columns, of_columns)
        self.tiles = [columns]

    @staticmethod
    def with_weights(channels: Sequence[Channel], columns: Arrays) -> list[p.Operand | None]:
        """The columns of each channel of 16-bit products, with what their pullback needs for all blocks."""
        each = by_channel(columns, [channel.columns for channel in channels])
        return [
            p.with_weights(p.Operand(*own)) if channel.in_halves else None
            for channel, own in zip(channels, each, strict=True)
        ]

    @staticmethod
    def are_turned(channels: Sequence[Channel], columns: Arrays, block: int | Bounds, n_rows: int) -> bool:
        """Whether cotangents of column operands are transposed: if those of all channels may be."""
        each = by_channel(columns, [channel.columns for channel in channels])
        return all(channel.by_products for channel in channels) and all(
            p.sums_are_turned(p.Operand(*own), block, n_rows) for own in each
        )

    def block_operands(self, block: Inputs) -> _Scored:
        """The operands of each channel, and all scores of the block."""
        operands = by_channel(block.rows, self.counts)
        each = zip(self.channels, operands, self.columns, strict=True)
        scores, kept = zip(*[channel.scored(*both) for channel, *both in each], strict=True)
        return _Scored(operands, tuple([upcast(namespace_of(x), x) for x in scores]), kept, only(block.sharpness))

    def positive_scores(self, rows: _Scored, block: Inputs, start: Array | int) -> Array | None:
        """Scores of the positives, if these are at known places: on the diagonal, or in `targets`."""
        if not self.placed:
            return None
        xp, n_columns = namespace_of(*rows.scores), rows.scores[0].shape[1]
        places, tile = s.places_of(block) if block.targets else None, s.TilePosition(start, 0, n_columns, n_columns)
        found = [adapter_of(x).rounded(s.partner_entries(xp, x, places, tile)) for x in rows.scores]
        return found[0] if len(found) == 1 else xp.stack(found, axis=1)

    def negative_scores(self, rows: _Scored, k: int) -> tuple[Arrays, tuple[Residual, ...]]:
        """The scores, not to be overwritten, or with sharpness."""
        del k
        return tuple([sharpened(x, rows.sharpness) for x in rows.scores]), rows.kept

    def scores(self, rows: _Scored, k: int) -> tuple[Arrays, tuple[Residual, ...]]:
        """The scores without sharpness, which a family of masked tiles applies."""
        del k
        return rows.scores, rows.kept

    def pullback(  # noqa: PLR0917
        self, rows: Any, k: int, cotangents: Arrays, factor: Array | None, kept: Any, sums: Array | None
    ) -> tuple[Arrays, Arrays]:
        del k, factor, sums
        to_rows: Arrays = ()
        to_columns: Arrays = ()
        each = zip(self.channels, rows.operands, self.columns, self.weighted, cotangents, kept, strict=True)
        for channel, of_rows, of_columns, weighted, cotangent, residual in each:
            options: dict[str, Any] = {"weighted": weighted, "turned": self.turned, "need_scale": self.need_scale}
            row_part, column_part = channel.pull(of_rows, of_columns, cotangent, residual, **options)
            to_rows, to_columns = (*to_rows, *row_part), (*to_columns, *column_part)
        return to_rows, to_columns

    def of_columns(self, sums: Arrays) -> Arrays:
        """The sums times the divisors of 16-bit columns."""
        each = [
            own for own, channel in zip(self.weighted, self.channels, strict=True) for _ in range(channel.columns[0])
        ]
        return tuple([x if own is None else p.with_divisor(x, own) for x, own in zip(sums, each, strict=True)])
