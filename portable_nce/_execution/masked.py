"""The sweep over the scores of any similarity, of whose pairs a rule says what they are, in blocks of whole rows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .._core.checks import all_entries, entry_at_hand
from .._core.namespace import device_of, lift_to_tape, namespace_of
from .._core.numerics import rows_where, upcast
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..pairings import Members, split, undefined_rows
from .families import PairsPlan, SoftmaxPlan, family_of, split_sharpness
from .finished import Known, exp_base
from .layouts import Arrays, MaskedLayout, Wanted, halves_where, reduced
from .products import empty_sums, plus
from .scored import Side, Spread, held, pulled, scored
from .sources import opened, takes_embeddings
from .tiling import Bounds, masked

__all__ = ["block_of", "masked_sweep", "search_sweep"]


def _split(arrays: Arrays, counts: list[int]) -> list[Arrays]:
    """The arrays in groups of the given sizes, and the rest."""
    groups, start = [], 0
    for count in counts:
        groups.append(tuple(arrays[start : start + count]))
        start += count
    return [*groups, tuple(arrays[start:])]


class Block(NamedTuple):
    """What there is of a block of rows: its operands, scores and their spread in each channel, and its sets."""

    own: list[Side]
    here: Arrays  # its numbers of each row
    scores: Arrays
    spreads: tuple[Spread | None, ...]
    members: Members


class _Masked:
    """The arrays of a sweep with masks in their places, and the scores and sets of a block of rows."""

    def __init__(self, layout: MaskedLayout, arrays: Arrays) -> None:
        self.layout = layout
        halves = [size for form in layout.halves for size in form.sizes]
        first = len(arrays) - sum(halves)
        arrays, given = arrays[:first], arrays[first:]
        found = _split(given, halves)
        row_halves, column_halves = found[:-1:2], found[1::2]
        self.xp, self.device = namespace_of(arrays[0]), device_of(arrays[0])
        self.of_rows, of_columns = ([counts[k] for counts in layout.operands] for k in (0, 1))
        groups = _split(arrays, [*self.of_rows, *of_columns, layout.by_row, *layout.rule_arrays[:2]])
        channels = len(layout.operands)
        rows, columns = groups[:channels], groups[channels : 2 * channels]
        by_row, row_labels, self.column_labels, pairs = groups[2 * channels :]
        self.columns = [Side(*both) for both in zip(columns, column_halves, strict=True)]
        self.n_rows: int = rows[0][0].shape[-2]
        self.n_columns: int = rows[0][0].shape[-1] if layout.given else columns[0][0].shape[-2]
        self.shape = layout.whole or (self.n_rows, self.n_columns)
        if layout.whole is None:
            self.column_numbers = self.xp.arange(self.n_columns, device=self.device)
        else:
            pairs, self.column_numbers = (pairs[-2], *pairs[:-2]), pairs[-1]
        self.xs = (*(x for group in (*rows, *row_halves) for x in group), *by_row, *row_labels, *pairs)
        self.counts = [*self.of_rows, *map(len, row_halves), layout.by_row, layout.rule_arrays[0]]
        size = held(layout.similarities[0][0], rows[0], columns[0], wide=layout.wide)
        mode = adapter_of(arrays[0]).mode
        self.width: int = size["width"]
        self.block = masked(self.n_rows, self.n_columns, layout.block_size, mode=mode, **size).block

    def open(self, block: Arrays, start: Array | int) -> Block:
        """What there is of a block whose arrays are given."""
        xp, layout = self.xp, self.layout
        *groups, here, labels, pairs = _split(block, self.counts)
        channels = len(self.of_rows)
        own = [Side(*both) for both in zip(groups[:channels], groups[channels:], strict=True)]
        if layout.whole is None:
            numbers = xp.arange(own[0].operands[0].shape[-2], device=self.device) + start
        else:
            numbers, pairs = pairs[0], pairs[1:]
        each = [
            scored(function, rows, columns)
            for (function, _), rows, columns in zip(layout.similarities, own, self.columns, strict=True)
        ]
        scores = tuple(upcast(xp, x) for x, _ in each)
        members = split(
            xp,
            layout.rule,
            numbers=(numbers, self.column_numbers),
            shape=self.shape,
            labels=(labels, self.column_labels),
            pairs=pairs[: layout.rule_arrays[2]],
            mask=pairs[-1] if layout.masked else None,
            dtype=scores[0].dtype,
        )
        undefined = undefined_rows(members)
        if undefined is not None:
            zero = xp.zeros_like(scores[0][:, :1])
            added = xp.where(undefined[:, None], math.nan, zero)
            scores = tuple(x + added for x in scores)
            if isinstance(layout.plan, PairsPlan):  # whose weights also say how many pairs there are
                ones = (x if x is None else xp.where(xp.isnan(x), xp.ones_like(x), x) for x in members[2:])
                members = Members(*members[:2], *ones)
        return Block(own, here, scores, tuple(spread for _, spread in each), members)

    def pulled(self, k: int, own: Side, cotangent: Array, spread: Spread | None) -> tuple[Arrays, Arrays]:
        """The cotangents of the operands of rows and of columns in a channel."""
        even = self.layout.halves[k].even
        return pulled(self.layout.similarities[k], own, self.columns[k], cotangent, spread, even=even)


def block_of(layout: MaskedLayout, arrays: Arrays) -> tuple[int | Bounds, int]:
    """Rows of a block, and how many numbers are held for each of its scores."""
    matrix = _Masked(*opened(layout, arrays))
    return matrix.block, matrix.width


def _where_live(xp: Namespace, live: Array, side: Side) -> Side:
    """Operands, 0 in rows that do not count; the factors of rows are 1 there."""
    return Side(tuple(rows_where(xp, live, *side.operands)), halves_where(xp, live, side.halves))


@takes_embeddings
def masked_sweep(layout: MaskedLayout, *arrays: Array, need_grad: Wanted) -> Arrays:
    """A one-sided sweep over the scores of similarities, of which a rule says what is positive and negative."""
    need_grad = bool(need_grad)  # a pullback gives all gradients, or none
    matrix = _Masked(layout, arrays)
    xp, adapter = matrix.xp, adapter_of(arrays[0])
    of_statistics = isinstance(layout.plan, SoftmaxPlan) and layout.plan.statistics
    bound = layout.bound if isinstance(layout.plan, SoftmaxPlan) and not of_statistics else math.inf
    family: Any = family_of(xp, layout.plan, exp_base(arrays[0]), Known(bound), need_grad=need_grad)
    skips = not isinstance(layout.plan, PairsPlan) and not of_statistics and not layout.given

    def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        own, here, scores, spreads, members = matrix.open(block, start)
        if skips:
            # A row without positives does not count: what it holds is to reach nobody, NaN neither.
            live = xp.any(members.positives, axis=1)
            if not entry_at_hand(live, all_entries):
                members = members._replace(negatives=xp.logical_and(members.negatives, live[:, None]))
                own = [_where_live(xp, live, side) for side in own]
        sharpness, here = split_sharpness(layout.plan, here)
        total, residual, positive = family.masked(scores, members, here, single=layout.single, sharpness=sharpness)
        done = family.finish(total, positive, here, need_grad=need_grad)
        if not need_grad:
            return carry, (done.values, done.number)
        to_rows: Arrays = ()
        to_columns: Arrays = ()
        cotangents = family.cotangents(residual, positive, done, members)
        for k, (side, cotangent) in enumerate(zip(own, cotangents, strict=True)):
            more_rows, more_columns = matrix.pulled(k, side, cotangent, spreads[k])
            to_rows, to_columns = (*to_rows, *more_rows), (*to_columns, *more_columns)
        carry = tuple(plus(a, b) for a, b in zip(carry, to_columns, strict=True))
        of_sharpness = () if sharpness is None else (xp.zeros_like(sharpness),)  # a constant
        return carry, (done.values, done.number, *to_rows, *of_sharpness, *done.to_rows)

    init = empty_sums([x for side in matrix.columns for x in side.operands]) if need_grad else ()
    carry, (values, number, *gradients) = adapter.scan(step, init, matrix.xs, matrix.block)
    count = sum(matrix.of_rows)
    return reduced(xp, layout, values, number, (*gradients[:count], *carry, *gradients[count:]))


def search_sweep(layout: MaskedLayout, *arrays: Array, of_positives: bool, largest: bool) -> tuple[Array, Array]:
    """The column of each row's largest or smallest score among the positives or negatives, and whether there is one."""
    (arrays,) = lift_to_tape(arrays)
    matrix = _Masked(layout, arrays)
    xp = matrix.xp

    def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        _, _, (scores,), _, members = matrix.open(block, start)
        members.refuse_weights()
        among = members.positives if of_positives else members.negatives
        if not largest:  # a score of -inf takes no part here either
            among = xp.logical_and(among, scores != -math.inf)
        candidates = xp.where(among, scores if largest else -scores, -math.inf)
        return carry, (xp.max(candidates, axis=1), xp.argmax(candidates, axis=1))

    _, (best, where) = adapter_of(arrays[0]).scan(step, (), matrix.xs, matrix.block)
    return where, best != -math.inf
