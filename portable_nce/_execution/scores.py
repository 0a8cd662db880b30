"""Sources of scores: inner products, a given score matrix, and similarities of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core.namespace import namespace_of
from .._core.numerics import upcast
from .._core.protocol import Array
from . import products as p
from . import sets as s
from .channels import Channel, Route
from .families import sharpened
from .inputs import Arrays, Inputs, by_channel
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

    def block_operands(self, block: Inputs, sharpness: Array | None) -> Any:
        """The rows of a block, as the other methods take them."""
        raise NotImplementedError

    def positive_scores(self, block: Inputs, start: Array | int) -> Array | None:
        """Scores (n,) or (n, P) of the positives of a block; None if they are entries of the tiles."""
        raise NotImplementedError

    def negative_scores(self, rows: Any, k: int) -> Arrays:
        """Scores (n, k) of a tile by each channel, for the sums over negatives, with sharpness.

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


class Products(Source):
    """Tiles of inner products; `scored`: the tiles with the numbers added to their scores."""

    n_differentiated = (1, 1)
    """Numbers of row operands and of column operands that have a gradient."""

    def __init__(
        self, tiles: Sequence[p.Operand], scored: Sequence[p.Operand], need_grad: NeedGrad, *, turned: bool
    ) -> None:
        self.tiles, self.score_columns, self.turned = tiles, scored or tiles, turned
        self.need_grad, self.has_added = (need_grad.rows, need_grad.columns), len(scored) > 0

    @staticmethod
    def cut(inputs: Inputs, need_grad: NeedGrad, bounds: Bounds) -> tuple[list[p.Operand], list[p.Operand]]:
        """Columns of each tile, and with numbers added to their scores, if there are any: the first two arguments."""
        columns = p.Operand(*inputs.columns)
        tiles = p.operand_pieces(p.with_weights(columns) if need_grad.rows else columns, bounds)
        if not inputs.added:
            return tiles, []
        added = p.pieces(inputs.added[0], bounds)
        return tiles, [p.with_added(tile, extra) for tile, extra in zip(tiles, added, strict=True)]

    def block_operands(self, block: Inputs, sharpness: Array | None) -> tuple[p.Operand, p.Operand, Array | None]:
        """The rows of a block, the rows multiplied by the sharpness, and the sharpness if it is not in them."""
        rows = p.Operand(*block.rows)
        scaled, rest = p.sharpened_rows(rows, self.tiles[0], sharpness)
        return rows, p.with_ones(scaled) if self.has_added else scaled, rest

    def positive_scores(self, block: Inputs, start: Array | int) -> Array | None:
        """Scores of the positives of a block; None if they are entries of the tiles."""
        del start
        return s.partner_scores(namespace_of(*block.rows), block.rows[0], block.partners) if block.partners else None

    def negative_scores(self, rows: Any, k: int) -> Arrays:
        """Scores of tile k for the sums over negatives, with sharpness."""
        _, scaled, rest = rows
        return (sharpened(p.product(scaled, self.score_columns[k]), rest),)

    def scores(self, rows: Any, k: int) -> tuple[Arrays, tuple[None]]:
        """Scores of tile k, without sharpness."""
        return (p.product(rows[0], self.score_columns[k]),), (None,)

    def pullback(  # noqa: PLR0917
        self, rows: Any, k: int, cotangents: Arrays, factor: Array | None, kept: Any, sums: Array | None
    ) -> tuple[Arrays, Arrays]:
        """Cotangents of rows and columns."""
        del kept
        options: dict[str, Any] = {"need_grad": (need_grad := self.need_grad), "sums": sums, "turned": self.turned}
        to_rows, to_columns = p.pullback(cotangents[0], factor, rows[0], self.tiles[k], **options)
        return (to_rows,) if need_grad[0] else (), (to_columns,) if need_grad[1] else ()


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

    def block_operands(self, block: Inputs, sharpness: Array | None) -> tuple[Arrays, Array | None]:
        """The scores of a block, and the sharpness of its negatives."""
        return block.rows, sharpness

    def negative_scores(self, rows: tuple[Arrays, Array | None], k: int) -> Arrays:
        """The scores themselves, which are not to be overwritten, or with sharpness."""
        del k
        return tuple([sharpened(x, rows[1]) for x in rows[0]])

    def pullback(  # noqa: PLR0917
        self, rows: Any, k: int, cotangents: Arrays, factor: Array | None, kept: Any, sums: Array | None
    ) -> tuple[Arrays, Arrays]:
        del rows, k, factor, kept, sums
        return cotangents, ()


class Channels(Source):
    """The single tile of all columns, scored by any similarities."""

    def __init__(self, channels: Sequence[Channel], columns: Arrays, *, turned: bool) -> None:
        self.channels, self.turned = channels, turned
        self.counts = [channel.rows for channel in channels]
        of_columns = [channel.columns for channel in channels]
        self.n_differentiated = sum(count for count, _ in self.counts), sum(count for count, _ in of_columns)
        self.columns = by_channel(columns, of_columns)
        self.tiles = [columns]

    @staticmethod
    def are_turned(channels: Sequence[Channel], columns: Arrays, block: int | Bounds, n_rows: int) -> bool:
        """Whether cotangents of column operands are transposed: if those of all channels may be."""
        each = by_channel(columns, [channel.columns for channel in channels])
        return all(channel.inner_product for channel in channels) and all(
            p.sums_are_turned(p.Operand(*own), block, n_rows) for own in each
        )

    def positive_scores(self, block: Inputs, start: Array | int) -> None:
        """None: the positives are entries of the tile."""

    def block_operands(self, block: Inputs, sharpness: Array | None) -> list[Arrays]:
        del sharpness  # a family of masked tiles applies it
        return by_channel(block.rows, self.counts)

    def scores(self, rows: list[Arrays], k: int) -> tuple[Arrays, tuple[Route | None, ...]]:
        """Scores of each channel, and the functions that route the cotangents of tokens."""
        del k
        scored = [channel.scored(*both) for channel, *both in zip(self.channels, rows, self.columns, strict=True)]
        return tuple(upcast(namespace_of(x), x) for x, _ in scored), tuple(route for _, route in scored)

    def pullback(  # noqa: PLR0917
        self, rows: Any, k: int, cotangents: Arrays, factor: Array | None, kept: Any, sums: Array | None
    ) -> tuple[Arrays, Arrays]:
        del k, factor, sums
        to_rows: Arrays = ()
        to_columns: Arrays = ()
        each = zip(self.channels, rows, self.columns, cotangents, kept, strict=True)
        for channel, of_rows, of_columns, cotangent, route in each:
            row_part, column_part = channel.pull(of_rows, of_columns, cotangent, route, turned=self.turned)
            to_rows, to_columns = (*to_rows, *row_part), (*to_columns, *column_part)
        return to_rows, to_columns
