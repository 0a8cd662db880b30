"""Blocks of rows of score matrices: how a sweep cuts its arrays, and what it sees of each block.

A sweep passes over one score matrix, or over several of one shape and pairing, some rows at a time, each with all of
its columns: so what a row adds up to is final when its block is left. Everything that is no array is in the sweep's
`Layout`, by which compiled code is found again; everything that is, in its `Source`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ._core.autodiff import stop_gradient
from ._core.namespace import device_of, namespace_of, together
from ._core.numerics import upcast
from ._core.protocol import Array, Namespace
from ._core.registry import adapter_of
from .pairings import Pairing, Rule, split
from .similarities import Operands, Pullback, Scores, Similarity

__all__ = [
    "Block",
    "Layout",
    "Source",
    "closed_form",
    "constant",
    "no_cotangents",
    "pulled_back",
    "scan_pullbacks",
    "scan_rows",
    "source_of",
    "sweep_of",
    "tile_of",
    "with_gradient",
]


def closed_form(
    forward: Callable[..., tuple[Array, ...]],
    backward: Callable[..., tuple[Array, ...]],
    static: object,
    *arrays: Array,
) -> tuple[Array, ...]:
    """Compute a function that has a closed-form gradient, those of `Adapter.custom_vjp`."""
    return adapter_of(arrays[0]).custom_vjp(forward, backward)(static, *arrays)


def with_gradient(function: Callable[..., tuple[Array, ...]], static: object, *arrays: Array) -> tuple[Array, Array]:
    """Compute a function that brings its gradient, that of `Adapter.with_gradient`."""
    return adapter_of(arrays[0]).with_gradient(function)(static, *arrays)


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


class Block(NamedTuple):
    """Some rows: their operands in each channel, parameters, the pairing's arrays, others handed over, and numbers."""

    rows: tuple[Operands, ...]
    parameters: tuple[Array, ...]
    labels: tuple[Array, ...]
    pairs: tuple[Array, ...]
    further: tuple[Array, ...]
    i: Array


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
        block=min(block, source.shape[0]),
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


def scan_rows(
    layout: Layout,
    source: Source,
    step: Callable[[tuple[Array, ...], Block], tuple[tuple[Array, ...], tuple[Array, ...]]],
    init: tuple[Array, ...] = (),
    further: tuple[Array, ...] = (),
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Fold ``step(carry, block)`` over the blocks of rows, with further arrays of one entry a row cut like the rest."""
    rows = [operands for operands, _ in source.operands]
    xs = (*(x for operands in rows for x in operands), *source.parameters, *source.labels[0], *source.pairs, *further)
    counts = (*(len(operands) for operands in rows), layout.parameters, layout.labels[0], layout.pairs, len(further))
    xp, device = namespace_of(xs[0]), device_of(xs[0])

    def each(
        carry: tuple[Array, ...], own: tuple[Array, ...], start: Array | int
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        *operands, parameters, labels, pairs, others = cut(own, counts)
        i = xp.arange(own[0].shape[-2], device=device) + start
        return step(carry, Block(tuple(operands), parameters, labels, pairs, others, i))

    return adapter_of(xs[0]).scan(each, init, xs, layout.block)


def tile_of(xp: Namespace, layout: Layout, source: Source, block: Block) -> tuple[tuple[Array, ...], Array, Array]:
    """The scores of a block of rows in each channel, its positives and its negatives."""
    scores = tuple(
        upcast(xp, channel.scores(own, columns))
        for channel, own, (_, columns) in zip(layout.channels, block.rows, source.operands, strict=True)
    )
    n_columns = source.shape[1]
    positives, negatives = split(
        xp,
        layout.rule,
        numbers=(block.i, xp.arange(n_columns, device=device_of(scores[0]))),
        shape=source.shape,
        labels=(block.labels, source.labels[1]),
        pairs=block.pairs[:-1] if layout.masked else block.pairs,
        mask=block.pairs[-1] if layout.masked else None,
    )
    return scores, positives, negatives


def pulled_back(
    layout: Layout, source: Source, block: Block, cotangents: tuple[Array, ...]
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The cotangents of a block's and of all columns' operands, for those of the block's scores in each channel."""
    to_rows: tuple[Array, ...] = ()
    to_columns: tuple[Array, ...] = ()
    for channel, own, (_, columns), cotangent in zip(
        layout.channels, block.rows, source.operands, cotangents, strict=True
    ):
        more_rows, more_columns = channel.pullback(own, columns, cotangent)
        to_rows, to_columns = (*to_rows, *more_rows), (*to_columns, *more_columns)
    return to_rows, to_columns


def no_cotangents(source: Source) -> tuple[Array, ...]:
    """Zeros for the operands of the columns, to which the blocks add."""
    columns = tuple(x for _, operands in source.operands for x in operands)
    return tuple(namespace_of(x).zeros_like(x) for x in columns)


def scan_pullbacks(
    layout: Layout,
    source: Source,
    pull: Callable[..., tuple[tuple[Array, ...], tuple[Array, ...]]],
    further: tuple[Array, ...],
) -> tuple[Array, ...]:
    """The cotangents of the operands of rows and columns, and of the parameters.

    ``pull(block, scores, positives, negatives)`` gives the cotangents of the scores of a block in each channel, and
    those of its parameters.
    """
    xp = namespace_of(source.operands[0][0][0])

    def step(carry: tuple[Array, ...], block: Block) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        cotangents, to_parameters = pull(block, *tile_of(xp, layout, source, block))
        to_rows, to_columns = pulled_back(layout, source, block, cotangents)
        return tuple(a + b for a, b in zip(carry, to_columns, strict=True)), (*to_rows, *to_parameters)

    to_columns, found = scan_rows(layout, source, step, no_cotangents(source), further)
    n_rows = sum(channel.rows for channel in layout.channels)
    return (*found[:n_rows], *to_columns, *found[n_rows:])
