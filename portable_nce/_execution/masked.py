"""The sweep over the scores of any similarity, of whose pairs a rule says what they are, in blocks of whole rows."""

from __future__ import annotations

import math
from typing import Any

from .._core.namespace import device_of, lift_to_tape, namespace_of
from .._core.numerics import upcast
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..pairings import Members, split, undefined_rows
from . import products as p
from .families import PairsPlan, SoftmaxPlan, exp_base, family_of, split_sharpness
from .layouts import Arrays, MaskedLayout, Wanted, reduced
from .tiling import masked

__all__ = ["masked_sweep", "search_sweep"]


def _split(arrays: Arrays, counts: list[int]) -> list[Arrays]:
    """The arrays in groups of the given sizes, and the rest."""
    groups, start = [], 0
    for count in counts:
        groups.append(tuple(arrays[start : start + count]))
        start += count
    return [*groups, tuple(arrays[start:])]


class _Masked:
    """The arrays of a sweep with masks in their places, and the scores and sets of a block of rows."""

    def __init__(self, layout: MaskedLayout, arrays: Arrays) -> None:
        self.layout = layout
        counts = [size for form in layout.halves for size in form.sizes]
        first = len(arrays) - sum(counts)
        arrays, given = arrays[:first], arrays[first:]
        found = _split(given, counts)
        row_parts, self.column_parts = found[:-1:2], found[1::2]
        self.row_parts = [len(group) for group in row_parts]
        self.xp, self.device = namespace_of(arrays[0]), device_of(arrays[0])
        self.of_rows, of_columns = ([counts[k] for counts in layout.operands] for k in (0, 1))
        groups = _split(arrays, [*self.of_rows, *of_columns, layout.by_row, *layout.rule_arrays[:2]])
        channels = len(layout.operands)
        rows, self.columns = groups[:channels], groups[channels : 2 * channels]
        by_row, row_labels, self.column_labels, pairs = groups[2 * channels :]
        self.n_rows: int = rows[0][0].shape[-2]
        self.n_columns: int = rows[0][0].shape[-1] if layout.given else self.columns[0][0].shape[-2]
        self.shape = layout.whole or (self.n_rows, self.n_columns)
        if layout.whole is None:
            self.column_numbers = self.xp.arange(self.n_columns, device=self.device)
        else:
            pairs, self.column_numbers = (pairs[-2], *pairs[:-2]), pairs[-1]
        self.xs = (*(x for group in (*rows, *row_parts) for x in group), *by_row, *row_labels, *pairs)
        width = self.columns[0][0].shape[1] if layout.wide else 1
        mode = adapter_of(arrays[0]).mode
        self.block = masked(self.n_rows, self.n_columns, layout.block_size, mode=mode, width=width).block

    def open(self, block: Arrays, start: Array | int) -> tuple[list[Arrays], Arrays, Arrays, Members]:
        """The operands of a block, its numbers, its scores in each channel, its positives, negatives and weights."""
        xp, layout = self.xp, self.layout
        counts = [*self.of_rows, *self.row_parts, layout.by_row, layout.rule_arrays[0]]
        *own, here, labels, pairs = _split(block, counts)
        channels = len(self.of_rows)
        own = [(*x, *parts) for x, parts in zip(own[:channels], own[channels:] or [()] * channels, strict=True)]
        if layout.whole is None:
            numbers = xp.arange(own[0][0].shape[-2], device=self.device) + start
        else:
            numbers, pairs = pairs[0], pairs[1:]
        scores = tuple(upcast(xp, self.scores(k, x)) for k, x in enumerate(own))
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
        return own, here, scores, members

    def scores(self, k: int, own: Arrays) -> Array:
        """The scores of a block in a channel."""
        both = self._as_operands(k, own)
        return self.layout.similarities[k][0](own, self.columns[k]) if both is None else p.product(*both)

    def pulled(self, k: int, own: Arrays, cotangent: Array) -> tuple[Arrays, Arrays]:
        """The cotangents of the operands of rows and of columns."""
        both = self._as_operands(k, own)
        if both is None:
            return self.layout.similarities[k][1](own, self.columns[k], cotangent)
        back, forth = p.pulled(cotangent, None, *both, wanted=(True, True), even=self.layout.halves[k].even)
        return (back,), (forth,)

    def _as_operands(self, k: int, own: Arrays) -> tuple[p.Operand, p.Operand] | None:
        """The operands of an inner product that are also given in parts."""
        if not self.row_parts or not self.row_parts[k]:
            return None
        return p.operand_of(own), p.operand_of((*self.columns[k], *self.column_parts[k]))


def _where_live(xp: Namespace, live: Array, x: Array) -> Array:
    """An operand, 0 in rows that do not count, or the factors of rows, which are 1 there."""
    return xp.where(live, x, xp.ones_like(x)) if len(x.shape) == 1 else xp.where(live[:, None], x, xp.zeros_like(x))


def masked_sweep(layout: MaskedLayout, *arrays: Array, need_grad: Wanted) -> Arrays:
    """A one-sided sweep over the scores of similarities, of which a rule says what is positive and negative."""
    (arrays,), need_grad = lift_to_tape(arrays), bool(need_grad)  # a pullback gives all gradients, or none
    matrix = _Masked(layout, arrays)
    xp, adapter = matrix.xp, adapter_of(arrays[0])
    family: Any = family_of(xp, layout.plan, exp_base(arrays[0]), math.inf, need_grad=need_grad)
    of_statistics = isinstance(layout.plan, SoftmaxPlan) and layout.plan.statistics
    skips = not isinstance(layout.plan, PairsPlan) and not of_statistics and not layout.given

    def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        own, here, scores, members = matrix.open(block, start)
        if skips:
            # A row without positives does not count: what it holds is to reach nobody, NaN neither.
            live = xp.any(members.positives, axis=1)
            members = members._replace(negatives=xp.logical_and(members.negatives, live[:, None]))
            own = [tuple(_where_live(xp, live, x) for x in group) for group in own]
        sharpness, here = split_sharpness(layout.plan, here)
        total, residual, positive = family.masked(scores, members, here, single=layout.single, sharpness=sharpness)
        done = family.finish(total, positive, here, need_grad=need_grad)
        if not need_grad:
            return carry, (done.values, done.number)
        to_rows: Arrays = ()
        to_columns: Arrays = ()
        cotangents = family.cotangents(residual, positive, done, members)
        for k, (x, cotangent) in enumerate(zip(own, cotangents, strict=True)):
            more_rows, more_columns = matrix.pulled(k, x, cotangent)
            to_rows, to_columns = (*to_rows, *more_rows), (*to_columns, *more_columns)
        carry = tuple(p.plus(a, b) for a, b in zip(carry, to_columns, strict=True))
        of_sharpness = () if sharpness is None else (xp.zeros_like(sharpness),)  # a constant
        return carry, (done.values, done.number, *to_rows, *of_sharpness, *done.to_rows)

    init = p.empty_sums([x for group in matrix.columns for x in group]) if need_grad else ()
    carry, (values, number, *gradients) = adapter.scan(step, init, matrix.xs, matrix.block)
    count = sum(matrix.of_rows)
    return reduced(xp, layout, values, number, (*gradients[:count], *carry, *gradients[count:]))


def search_sweep(layout: MaskedLayout, *arrays: Array, of_positives: bool, largest: bool) -> tuple[Array, Array]:
    """The column of each row's largest or smallest score among the positives or negatives, and whether there is one."""
    (arrays,) = lift_to_tape(arrays)
    matrix = _Masked(layout, arrays)
    xp = matrix.xp

    def step(carry: Arrays, block: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        _, _, (scores,), members = matrix.open(block, start)
        members.refuse_weights()
        among = members.positives if of_positives else members.negatives
        if not largest:  # a score of -inf takes no part here either
            among = xp.logical_and(among, scores != -math.inf)
        candidates = xp.where(among, scores if largest else -scores, -math.inf)
        return carry, (xp.max(candidates, axis=1), xp.argmax(candidates, axis=1))

    _, (best, where) = adapter_of(arrays[0]).scan(step, (), matrix.xs, matrix.block)
    return where, best != -math.inf
