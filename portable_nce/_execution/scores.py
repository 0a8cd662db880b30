"""Sources of scores: inner products, a given score matrix, and similarities of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core.namespace import namespace_of
from .._core.numerics import upcast
from .._core.protocol import Array
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

    def positive_scores(self, block: Inputs, start: Array | int) -> Array | None:
        """Scores (n,) or (n, P) of the positives of a block; None if they are entries of the tiles."""
        raise NotImplementedError

    def negative_scores(self, rows: Any, k: int) -> tuple[Arrays, Any]:
        """Scores (n, k) of a tile by each channel, for the sums over negatives, with sharpness; and for `pullback`.

        The caller may overwrite them, unless they are given.
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

    def positive_scores(self, block: Inputs, start: Array | int) -> Array | None:
        """Scores of the positives of a block; None if they are entries of the tiles."""
        del start
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


class GivenScores(Source):
    """The single tile of score matrices given by the caller; the first has the positives."""

    def __init__(self, number: int, n_columns: int) -> None:
        self.tiles: Sequence[Any] = [()]
        self.n_columns = n_columns
        self.n_differentiated = (number, 0)

    def positive_scores(self, block: Inputs, start: Array | int) -> Array:
        """Scores of the positives of a block: on its diagonal, or at the places in `targets`."""
        scores, tile = block.rows[0], s.TilePosition(start, 0, self.n_columns, self.n_columns)
        return s.partner_entries(namespace_of(scores), scores, s.places_of(block) if block.targets else None, tile)

    def block_operands(self, block: Inputs) -> tuple[Arrays, Array | None]:
        """The scores of a block, and the sharpness of its negatives."""
        return block.rows, only(block.sharpness)

    def negative_scores(self, rows: tuple[Arrays, Array | None], k: int) -> tuple[Arrays, None]:
        """The scores themselves, which are not to be overwritten, or with sharpness."""
        del k
        return tuple([sharpened(x, rows[1]) for x in rows[0]]), None

    def pullback(  # noqa: PLR0917
        self, rows: Any, k: int, cotangents: Arrays, factor: Array | None, kept: Any, sums: Array | None
    ) -> tuple[Arrays, Arrays]:
        del rows, k, factor, kept, sums
        return cotangents, ()


class Channels(Source):
    """The single tile of all columns, scored by any similarities."""

    def __init__(
        self,
        channels: Sequence[Channel],
        columns: Arrays,
        weighted: Sequence[p.Operand | None],
        *,
        turned: bool,
        need_scale: bool,
    ) -> None:
        self.channels, self.turned, self.need_scale = channels, turned, need_scale
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

    def positive_scores(self, block: Inputs, start: Array | int) -> None:
        """None: the positives are entries of the tile."""

    def block_operands(self, block: Inputs) -> list[Arrays]:
        """The operands of each channel, without sharpness: a family of masked tiles applies it."""
        return by_channel(block.rows, self.counts)

    def scores(self, rows: list[Arrays], k: int) -> tuple[Arrays, tuple[Residual, ...]]:
        """Scores of each channel, and what their pullbacks need."""
        del k
        scored = [channel.scored(*both) for channel, *both in zip(self.channels, rows, self.columns, strict=True)]
        return tuple(upcast(namespace_of(x), x) for x, _ in scored), tuple(residual for _, residual in scored)

    def pullback(  # noqa: PLR0917
        self, rows: Any, k: int, cotangents: Arrays, factor: Array | None, kept: Any, sums: Array | None
    ) -> tuple[Arrays, Arrays]:
        del k, factor, sums
        to_rows: Arrays = ()
        to_columns: Arrays = ()
        each = zip(self.channels, rows, self.columns, self.weighted, cotangents, kept, strict=True)
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
