"""Tiles of score matrices: how a sweep cuts its arrays into blocks of columns, and what it sees of each block.

A sweep passes over one score matrix, or over several of one shape and pairing. Everything that is no array is in its
`Layout`, by which compiled code is found again; everything that is, in its `Source`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ._autodiff import stop_gradient
from ._namespace import device_of, namespace_of, together
from ._numerics import accumulate, zeros
from ._protocol import Array, Namespace
from ._registry import adapter_of
from .pairings import Pairing, Rule, split
from .similarities import Operands, Pullback, Scores, Similarity

__all__ = [
    "ClosedForm",
    "Layout",
    "Source",
    "Tiles",
    "constant",
    "scan_pullbacks",
    "scan_tiles",
    "source_of",
    "sweep_of",
]


class ClosedForm:
    """A function of arrays with its closed-form gradient, bound once for each adapter.

    ``forward(static, *arrays)`` and ``backward(static, arrays, outputs, cotangents)`` are those of
    `Adapter.custom_vjp`.
    """

    __slots__ = ("backward", "bound", "forward")

    def __init__(self, forward: Callable[..., tuple[Array, ...]], backward: Callable[..., tuple[Array, ...]]) -> None:
        self.forward = forward
        self.backward = backward
        self.bound: dict[object, Callable[..., tuple[Array, ...]]] = {}

    def __call__(self, static: object, *arrays: Array) -> tuple[Array, ...]:
        adapter = adapter_of(arrays[0])
        if adapter not in self.bound:
            self.bound[adapter] = adapter.custom_vjp(self.forward, self.backward)
        return self.bound[adapter](static, *arrays)


class Channel(NamedTuple):
    """One score matrix of a sweep: its functions, and how many arrays its operands are."""

    scores: Scores
    pullback: Pullback
    rows: int
    columns: int


class Layout(NamedTuple):
    """Everything about a sweep that is not an array."""

    channels: tuple[Channel, ...]
    rule: Rule
    labels: tuple[int, int]
    pairs: int
    masked: bool
    parameters: int
    block: int


class Source(NamedTuple):
    """The arrays of a sweep.

    `operands` are those of rows and of columns for each channel; `parameters` have shape (N,); `pairs` ends with the
    mask, if there is one.
    """

    operands: tuple[tuple[Operands, Operands], ...]
    parameters: tuple[Array, ...]
    labels: tuple[tuple[Array, ...], tuple[Array, ...]]
    pairs: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Of the score matrix."""
        rows, columns = self.operands[0]
        return rows[0].shape[-2], columns[0].shape[-2]

    def flat(self) -> tuple[Array, ...]:
        """Give the arrays in one tuple, those with a gradient first."""
        rows = (x for operands, _ in self.operands for x in operands)
        columns = (x for _, operands in self.operands for x in operands)
        return (*rows, *columns, *self.parameters, *self.labels[0], *self.labels[1], *self.pairs)


class Tiles(NamedTuple):
    """One block of columns: the operands of each channel, the pairing's arrays, the column numbers."""

    columns: tuple[Operands, ...]
    labels: tuple[Array, ...]
    pairs: tuple[Array, ...]
    j: Array


def sweep_of(
    channels: Iterable[tuple[Similarity, tuple[Operands, Operands]]],
    pairing: Pairing,
    mask: Array | None,
    block: int,
    parameters: tuple[Array, ...] = (),
) -> tuple[Layout, Source]:
    """The layout and the arrays of a sweep over the score matrices of similarities and operands."""
    channels = tuple(channels)
    pairs = pairing.pairs if mask is None else (*pairing.pairs, mask)
    source = Source(tuple(operands for _, operands in channels), parameters, (pairing.rows, pairing.columns), pairs)
    layout = Layout(
        channels=tuple(
            Channel(similarity.scores, similarity.pullback, len(rows), len(columns))  # type: ignore[arg-type]
            for similarity, (rows, columns) in channels  # the caller has seen to it that there is a pullback
        ),
        rule=pairing.rule,
        labels=(len(pairing.rows), len(pairing.columns)),
        pairs=len(pairs),
        masked=mask is not None,
        parameters=len(parameters),
        block=min(block, source.shape[1]),
    )
    return layout, source


def cut(arrays: tuple[Array, ...], counts: Iterable[int]) -> list[tuple[Array, ...]]:
    """The arrays in groups of the given sizes."""
    groups, start = [], 0
    for count in counts:
        groups.append(arrays[start : start + count])
        start += count
    return groups


def source_of(layout: Layout, arrays: tuple[Array, ...]) -> Source:
    """The arrays that `Source.flat` gave, in their places again."""
    channels = layout.channels
    counts = (*(c.rows for c in channels), *(c.columns for c in channels), layout.parameters, *layout.labels)
    *operands, parameters, row_labels, column_labels, pairs = cut(arrays, (*counts, layout.pairs))
    return Source(
        tuple(zip(operands[: len(channels)], operands[len(channels) :], strict=True)),
        parameters,
        (row_labels, column_labels),
        pairs,
    )


def constant(layout: Layout, source: Source) -> Source:
    """The same arrays as constants."""
    (arrays,) = together(tuple(stop_gradient(x) for x in source.flat()))
    return source_of(layout, arrays)


def tiles_of(xp: Namespace, layout: Layout, source: Source) -> tuple[Array, ...]:
    """The blocks of columns as one flat tuple of arrays, stacked on a new first axis, as `Adapter.scan` takes them."""
    columns = [x for _, operands in source.operands for x in operands]
    flat = [_blocks(xp, x, 0, layout.block) for x in (*columns, *source.labels[1])]
    flat += [_blocks(xp, x, 1, layout.block) for x in source.pairs]
    # The columns that fill up the last block have numbers beyond the end.
    blocks = -(-source.shape[1] // layout.block)
    j = xp.arange(blocks * layout.block, device=device_of(columns[0]))
    return (*flat, xp.reshape(j, (blocks, layout.block)))


def _blocks(xp: Namespace, x: Array, axis: int, block: int) -> Array:
    """`x` with its column axis cut into blocks, stacked on a new first axis; the last is filled up with zeros."""
    short = -x.shape[axis] % block
    if short:
        shape = tuple(short if k == axis else n for k, n in enumerate(x.shape))
        x = xp.concat([x, zeros(xp, shape, x)], axis=axis)
    count = x.shape[axis] // block
    x = xp.reshape(x, (*x.shape[:axis], count, block, *x.shape[axis + 1 :]))
    return x if axis == 0 else xp.permute_dims(x, (1, 0, 2))


def unpack(layout: Layout, flat: tuple[Array, ...]) -> Tiles:
    """One block of what `tiles_of` stacked."""
    counts = (*(c.columns for c in layout.channels), layout.labels[1], layout.pairs)
    *columns, labels, pairs = cut(flat, counts)
    return Tiles(tuple(columns), labels, pairs, flat[-1])


def tile_of(xp: Namespace, layout: Layout, source: Source, tiles: Tiles) -> tuple[tuple[Array, ...], Array, Array]:
    """The scores of one tile in each channel, its positives and its negatives."""
    n_rows, n_columns = source.shape
    rows = [operands for operands, _ in source.operands]
    scores = tuple(
        accumulate(xp, channel.scores(own, columns))
        for channel, own, columns in zip(layout.channels, rows, tiles.columns, strict=True)
    )
    positives, negatives = split(
        xp,
        layout.rule,
        numbers=(xp.arange(n_rows, device=device_of(rows[0][0])), tiles.j),
        shape=(n_rows, n_columns),
        labels=(source.labels[0], tiles.labels),
        pairs=tiles.pairs[:-1] if layout.masked else tiles.pairs,
        mask=tiles.pairs[-1] if layout.masked else None,
    )
    if n_columns % layout.block:
        within = xp.expand_dims(tiles.j < n_columns, axis=0)
        positives, negatives = xp.logical_and(positives, within), xp.logical_and(negatives, within)
    return scores, positives, negatives


def pull_back(
    layout: Layout, source: Source, tiles: Tiles, cotangents: tuple[Array, ...]
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The cotangents of all rows' and all columns' operands, for those of the scores of a tile in each channel."""
    to_rows: tuple[Array, ...] = ()
    to_columns: tuple[Array, ...] = ()
    for channel, (rows, _), columns, cotangent in zip(
        layout.channels, source.operands, tiles.columns, cotangents, strict=True
    ):
        more_rows, more_columns = channel.pullback(rows, columns, cotangent)
        to_rows, to_columns = (*to_rows, *more_rows), (*to_columns, *more_columns)
    return to_rows, to_columns


def scan_tiles(
    layout: Layout,
    source: Source,
    step: Callable[..., tuple[tuple[Array, ...], tuple[Array, ...]]],
    init: tuple[Array, ...],
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Fold ``step(carry, tiles, scores, positives, negatives)`` over the blocks of columns."""
    xp = namespace_of(source.operands[0][0][0])

    def each(carry: tuple[Array, ...], flat: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        tiles = unpack(layout, flat)
        return step(carry, tiles, *tile_of(xp, layout, source, tiles))

    return adapter_of(source.operands[0][0][0]).scan(each, init, tiles_of(xp, layout, source))


def scan_pullbacks(
    layout: Layout,
    source: Source,
    pull: Callable[..., tuple[tuple[Array, ...], tuple[Array, ...]]],
) -> tuple[Array, ...]:
    """The cotangents of the operands of rows and columns, and of the parameters.

    ``pull(scores, positives, negatives)`` gives the cotangents of the scores of a tile in each channel, and what it
    adds to those of the parameters.
    """
    rows = tuple(x for operands, _ in source.operands for x in operands)
    init = tuple(namespace_of(x).zeros_like(x) for x in (*rows, *source.parameters))

    def step(
        carry: tuple[Array, ...], tiles: Tiles, scores: tuple[Array, ...], positives: Array, negatives: Array
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        cotangents, to_parameters = pull(scores, positives, negatives)
        to_rows, to_columns = pull_back(layout, source, tiles, cotangents)
        return tuple(a + b for a, b in zip(carry, (*to_rows, *to_parameters), strict=True)), to_columns

    carry, stacked = scan_tiles(layout, source, step, init)
    xp = namespace_of(rows[0])
    n_columns = source.shape[1]
    to_columns = (xp.reshape(x, (-1, *x.shape[2:]))[:n_columns, ...] for x in stacked)
    return (*carry[: len(rows)], *to_columns, *carry[len(rows) :])
