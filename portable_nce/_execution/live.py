"""Rows and columns that count, and zeros in place of the others: the only place that removes their contents.

A row that does not count (of weight 0, masked, without a positive, an empty slot of a queue) may hold NaN or infinity:
padding, or the output of a failed encoder. Its loss is left out of the sum, but its gradient would not be: 0 times NaN
is NaN, in the product of the cotangents of all scores with all rows, which reaches every column, and in the derivatives
of the row's length and of the temperature. Such rows and columns are therefore replaced by zeros before anything is
computed with them, and `where` gives them the gradient 0.

Finite rows stay as they are, also where entries cannot be read: the derivative by a weight of 0 is the loss of its row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .._core.autodiff import no_gradient, stop_gradient
from .._core.checks import all_entries, is_half, readable_entry
from .._core.namespace import device_of, namespace_of
from .._core.numerics import LARGEST_SQUARE, continued, upcast
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from ..objectives.base import Needs
from ..pairings import Pairing
from ..similarities import number_of_flags, numbers_of_columns, with_numbers
from .inputs import Arrays, Inputs
from .matrix import ScoreMatrix
from .sets import PairRule, RuleSets
from .tiling import Bounds, Sizes, masked


class Live(NamedTuple):
    """Boolean arrays (N,) and (K,) of the rows and columns that count; None if all do."""

    rows: Array | None = None
    columns: Array | None = None

    def joined(self, opposite: Live) -> Live:
        """Rows and columns that count here or in an opposite matrix, whose first rows are these columns."""
        return Live(_either(self.rows, opposite.columns), _either(self.columns, opposite.rows))


def _either(first: Array | None, second: Array | None) -> Array | None:
    """Whether an entry counts in either array; entries beyond the shorter one count as in the longer one."""
    if first is None or second is None:
        return None
    if first.shape[0] > second.shape[0]:
        return _either(second, first)
    xp, n = namespace_of(first, second), first.shape[0]
    both = xp.logical_or(first, second[:n])
    return both if second.shape[0] == n else xp.concat([both, second[n:]])


def without_idle(matrix: ScoreMatrix, needs: Needs, weights: Array | None, opposite: ScoreMatrix | None) -> ScoreMatrix:
    """Matrix of embeddings, with zeros in rows and columns that do not count.

    `weights` (N,) are those of its rows. `opposite`: a matrix with the same weights whose rows are these columns, if
    the loss uses it too; its columns, of which these rows are the first, replace the rows.
    """
    live = live_of(matrix, needs, weights)
    own_rows = live.rows
    if _is_square(matrix):
        live = live.joined(live)
    if opposite is not None:
        own_weights = None if weights is None else continued(weights, opposite.shape[0])
        live = live.joined(live_of(opposite, needs, own_weights))
    (x,), (y,) = matrix.rows if opposite is None else opposite.columns, matrix.columns
    similarity, pairing = matrix.similarity, matrix.pairing
    rows = zeroed(x, live.rows, n_flags=number_of_flags(similarity, x))
    columns = rows if y is x else zeroed(y, live.columns, n_flags=number_of_flags(similarity, y))
    return matrix._replace(
        similarity=with_numbers(similarity, lambda numbers: zeroed(numbers, live.columns)),
        rows=(rows,),
        columns=(columns,),
        partners=tuple(zeroed(z, live.rows) for z in matrix.partners),
        pairing=_pairing_without_idle(pairing, own_rows) if opposite is None else pairing,
    )


def _pairing_without_idle(pairing: Pairing, rows: Array | None, pairs: Array | None = None) -> Pairing:
    """Pairing with zeros in its numbers of rows (N,) that do not count, and of pairs (N, 1) or (N, K).

    Weights that become 0 leave out more pairs of such a row, which then does not count either.
    """
    if rows is None or not any(map(_has_floats, (*pairing.rows, *pairing.pairs))):
        return pairing
    pairs = rows[:, None] if pairs is None else pairs
    of_rows = [zeroed(x, rows) if _has_floats(x) else x for x in pairing.rows]
    of_pairs = [zeroed_entries(x, pairs) if _has_floats(x) else x for x in pairing.pairs]
    return pairing.with_arrays(rows=tuple(of_rows), pairs=tuple(of_pairs))


def scores_without_idle(
    matrix: ScoreMatrix, needs: Needs, weights: Array | None, *, symmetric: bool, crossed: bool
) -> ScoreMatrix:
    """Matrix of given scores, with zeros in entries on which no loss depends.

    `symmetric`: the columns have losses, too. `crossed`: the loss of a row also depends on the scores of its column.
    """
    (scores,), (rule, inputs) = matrix.rows, matrix.pair_rule()
    xp, turned = namespace_of(scores), adapter_of(scores).turned
    pairs = [xp.broadcast_to(x, tuple(scores.shape)) for x in RuleSets(rule, inputs).of(0, 0, inputs)[:2]]
    used = _used(xp, pairs, needs, counted_by(weights))
    if symmetric:
        own_weights = None if weights is None else continued(weights, scores.shape[1])
        of_columns = _used(xp, [turned(x) for x in pairs], needs, counted_by(own_weights))
        used = xp.logical_or(used, turned(of_columns))
    pairing = _pairing_without_idle(matrix.pairing, xp.any(used, axis=1), used)
    if crossed:
        used = xp.logical_or(used, turned(used))
    return matrix._replace(rows=(zeroed_entries(scores, used),), pairing=pairing)


def _used(xp: Namespace, members: Sequence[Array], needs: Needs, *counted: Array | None) -> Array:
    """Pairs on which the losses of the rows depend, from positives and negatives (n, k)."""
    pairs = [x for x, has_term in zip(members, needs.pairs, strict=True) if has_term]
    used = pairs[0] if len(pairs) == 1 else xp.logical_or(*pairs)
    positive, negative = (xp.any(x, axis=1) for x in members)
    if needs.spread:
        negative = xp.logical_or(negative, xp.sum(xp.astype(members[0], xp.int32), axis=1) > 1)
    rows = counted_by(None, *counted, positive if needs.positive else None, negative if needs.negative else None)
    return used if rows is None else xp.logical_and(used, rows[:, None])


def zeroed(x: Array, live: Array | None, *, n_flags: int = 0, scores: bool = False) -> Array:
    """`x` with zeros in rows that do not count, unless they are finite and their products are.

    The last `n_flags` features stay: without the flags of its tokens, a row would have no score. In `scores`, -inf is a
    mask, and stays.
    """
    if live is None or _is_small(x) or not _has_floats(x):  # a check names what is no embedding
        return x
    xp, given, features = namespace_of(x), x, x.shape[-1] - n_flags
    x = x[..., :features] if n_flags else x
    constant = stop_gradient(x)
    if scores:
        constant = xp.where(constant == -math.inf, xp.zeros_like(constant), constant)
    kept = xp.logical_or(live, _squares(xp, constant) <= _most(xp, x))
    x = xp.where(xp.reshape(kept, (-1,) + (1,) * (len(x.shape) - 1)), x, xp.zeros_like(x))
    return xp.concat([x, given[..., features:]], axis=-1) if n_flags else x


def zeroed_entries(x: Array, live: Array | None) -> Array:
    """`x` (N, k) or (N, k, D) with zeros in entries that an array (N, 1) or (N, k) does not mark, as by `zeroed`."""
    if live is None:
        return x
    shape = tuple(x.shape)
    xp = namespace_of(x)
    flags = xp.reshape(xp.broadcast_to(live, shape[:2]), (-1,))
    return xp.reshape(zeroed(xp.reshape(x, (-1, *shape[2:])), flags, scores=True), shape)


def _squares(xp: Namespace, x: Array) -> Array:
    """Sum of the squares of each row."""
    x = upcast(xp, x if len(x.shape) == 2 else xp.reshape(x, (x.shape[0], math.prod(x.shape[1:]))))  # noqa: PLR2004
    return adapter_of(x).row_dots(x, x)


def _most(xp: Namespace, x: Array) -> float:
    """Largest square of a row whose products with others are finite, times a factor of a million."""
    return float(xp.finfo(xp.float32 if is_half(x.dtype) else x.dtype).max) * 2.0**-20


def _largest_of_squares(xp: Namespace, x: Array) -> Array:
    return xp.max(_squares(xp, x))


def _has_floats(x: Array) -> bool:
    return bool(namespace_of(x).isdtype(x.dtype, "real floating"))


def all_count(matrix: ScoreMatrix, weights: Array | None, *, both_ways: bool) -> bool:
    """Whether all rows and columns are known to count, or to be finite; `both_ways`: columns are rows, too."""
    both_ways = both_ways or _is_square(matrix)
    if are_paired(matrix.pairing, matrix.mask, both_ways=both_ways):
        as_columns = both_ways and matrix.pairing.positives.known
        if weights is None or as_columns or readable_entry(weights != 0, all_entries):
            return True
    return _are_finite(matrix)


def are_paired(pairing: Pairing, mask: Array | None, *, both_ways: bool) -> bool:
    """Whether all rows have a positive or, `both_ways`, are negatives of others, and rows use all columns."""
    return mask is None and ((both_ways and pairing.positives.known) or (pairing.paired and not pairing.has_flags))


def _is_square(matrix: ScoreMatrix) -> bool:
    """Whether the rows are the columns."""
    return len(matrix.columns) > 0 and matrix.columns[0] is matrix.rows[0]


def _are_finite(matrix: ScoreMatrix) -> bool:
    """Whether all arrays are known to be finite, and their products are."""
    (x,), pairing = matrix.rows, matrix.pairing
    arrays = [*(() if matrix.finite else (x,)), *(y for y in matrix.columns if y is not x), *matrix.partners]
    arrays += [a for a in (*pairing.rows, *pairing.pairs) if _has_floats(a)]
    arrays += [numbers for _, numbers in numbers_of_columns(matrix.similarity)]
    return all(map(_is_small, arrays))


def _is_small(x: Array) -> bool:
    """Whether the squares of all rows are known to be finite, and far from overflow."""
    square = readable_entry(x, _largest_of_squares)
    return square is not None and (square <= LARGEST_SQUARE or square <= _most(namespace_of(x), x))


def live_of(matrix: ScoreMatrix, needs: Needs, weights: Array | None) -> Live:
    """Rows whose loss is not constant and has a weight, and columns that these rows use."""
    counted = counted_by(weights)
    pairing = matrix.pairing
    if matrix.mask is None and (pairing.positives.known or pairing.paired) and not pairing.positives.has_labels:
        return _of_kind(matrix, needs, counted)
    if pairing.outline is not None:
        matrix = matrix._replace(pairing=pairing._replace(rule=pairing.outline))
    rule, inputs = matrix.pair_rule()
    first, *columns = (stop_gradient(x[:, :1]) for x in (*inputs.rows[:1], *inputs.columns))
    inputs = inputs._replace(
        rows=(first,), columns=tuple(columns), weights=() if counted is None else (counted,), partners=(), scale=()
    )
    # With a mask, arrays of the size of the matrix exist already.
    mode = adapter_of(first).mode
    sizes = Sizes(masked, matrix.block_size, mode)
    size = inputs.shape[0] if matrix.mask is not None else sizes.of(*inputs.shape).block
    spec = _LiveSpec(rule, inputs.group_sizes, needs, size)
    return Live(*adapter_of(first).custom_vjp(_find_live, no_gradient)(spec, *inputs.flat))


class _LiveSpec(NamedTuple):
    """Static arguments of `_find_live`."""

    rule: PairRule
    group_sizes: tuple[int, ...]
    needs: Needs
    size: int | Bounds


def _find_live(spec: _LiveSpec, *arrays: Array) -> Arrays:
    """Rows that count and columns that they use, by the positives and negatives of each block of rows."""
    inputs = Inputs.of(spec.group_sizes, arrays)
    first, n_columns = inputs.rows[0], inputs.shape[1]
    xp = namespace_of(first)
    sets, by_block = RuleSets(spec.rule, inputs), inputs.without_columns()

    def step(carry: Arrays, arrays: Arrays, start: Array | int) -> tuple[Arrays, Arrays]:
        block = Inputs.of(by_block.group_sizes, arrays)
        whole = (block.rows[0].shape[-2], n_columns)
        members = [xp.broadcast_to(x, whole) for x in sets.of(0, start, block)[:2]]
        used = _used(xp, members, spec.needs, *block.weights)
        return (xp.logical_or(carry[0], xp.any(used, axis=0)),), (xp.any(used, axis=1),)

    nothing = xp.zeros((n_columns,), dtype=xp.bool, device=device_of(first))
    (of_columns,), (of_rows,) = adapter_of(first).scan(step, (nothing,), by_block.flat, spec.size)
    return of_rows, of_columns


def _of_kind(matrix: ScoreMatrix, needs: Needs, counted: Array | None) -> Live:
    """Rows and columns that count without a mask; all columns are used, unless flags of the columns leave some out."""
    pairing, positives, n_rows = matrix.pairing, matrix.pairing.positives, matrix.shape[0]
    present, valid = (x[0] if x else None for x in pairing.flags(n_rows))
    if positives.index is not None and not (positives.elsewhere or positives.within):
        n_columns = matrix.shape[1] if matrix.shard is None else matrix.shard.shape[1]
        present = namespace_of(positives.index).logical_and(positives.index >= 0, positives.index < n_columns)
    rows = counted_by(None, counted, present) if needs.positive else counted
    ahead = positives.ahead_of_queue and len(matrix.partners) == 0
    if ahead and (rows is not None or valid is not None):
        n_further = matrix.shape[1] - n_rows
        rows, valid = (_or_all(x, n, matrix.rows[0]) for x, n in ((rows, n_rows), (valid, n_further)))
        valid = namespace_of(rows).concat([rows, valid])
    return Live(rows, valid)


def counted_by(weights: Array | None, *flags: Array | None) -> Array | None:
    """Rows that all flags mark, and that have a weight other than 0; None, as an argument or result, is all rows."""
    result = None if weights is None else weights != 0
    for flag in flags:
        if flag is not None:
            result = flag if result is None else namespace_of(result, flag).logical_and(result, flag)
    return result


def _or_all(flags: Array | None, count: int, like: Array) -> Array:
    xp = namespace_of(like)
    return xp.ones((count,), dtype=xp.bool, device=device_of(like)) if flags is None else flags
