"""Shard of a score matrix on a rank: its rows against the columns of all ranks, its own columns first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from .._core.namespace import device_of, is_array, namespace_of
from .._core.protocol import Array, Namespace
from .._core.ranks import Shards, widened
from ..objectives.base import Needs
from ..pairings import Pairing
from ..similarities import Similarity, with_numbers
from .live import all_count, without_idle
from .matrix import ScoreMatrix, Shard
from .operands import operands_of


def sharded_matrix(
    x: Array,
    y: Array,
    similarity: Similarity,
    pairing: Pairing,
    scale: Any,
    *,
    mask: Array | None,
    weights: Array | None,
    needs: Needs,
    sent_as: tuple[Any, Any],
    half: Any,
    joined: int,
    symmetric: bool,
    need_transposed_scores: bool,
    need_transpose: bool,
    **options: Any,
) -> ScoreMatrix:
    """Shard of this rank of the score matrix of the whole batch, from its rows and columns.

    `mask`: of these rows against all columns. `weights`, `needs`: what decides which rows count. `sent_as`: dtypes in
    which rows and columns are sent. `half`: 16-bit dtype in which they are multiplied, or None. `joined`: number of
    arrays that the columns of each view are joined from. `symmetric`: the rows are columns for the columns' losses.

    `need_transpose`: also the shard of the transpose, with the transposed pairing. `need_transposed_scores`: also the
    shard of the transposed scores, with the same pairing. Extra columns of a pairing must be gathered already, and be
    equal on all ranks. `options` are those of `ScoreMatrix`, including `shards`.
    """
    shards: Shards = options["shards"]
    n = x.shape[0]
    n_extra = y.shape[0] - n if pairing.extra_columns else 0
    n_columns = y.shape[0] - n_extra
    similarity = with_numbers(similarity, lambda numbers: _gather_columns(shards, numbers, n, n_extra))
    columns = _gather_columns(shards, y, n, n_extra, sent_as=sent_as[1])
    xp = namespace_of(columns)
    views = pairing.positives.views
    shard = _shard(xp, shards, x, (views, views * joined), n_extra)
    own_pairing = pairing.with_arrays(
        rows=tuple(map(widened, pairing.rows)),
        columns=tuple(_gather_flags(shards, a, n, n_extra) for a in pairing.columns),
        pairs=tuple(_take_columns(a, shard) for a in pairing.pairs),
    )
    own_mask = None if mask is None else _take_columns(mask, shard)
    need_opposite = need_transposed_scores or need_transpose
    if need_opposite:
        x = shards.gather(x, sent_as=sent_as[0])
        if is_array(scale) and len(scale.shape) > 0:  # one entry per row
            scale = shards.gather(scale)
    opposite_pairing, opposite_mask = own_pairing, own_mask
    if need_transpose:
        opposite_pairing = pairing.transposed()
        opposite_pairing = opposite_pairing.with_arrays(
            rows=tuple(map(widened, opposite_pairing.rows)),
            columns=tuple(shards.flags(a) for a in opposite_pairing.columns),
            pairs=tuple(_rows_of_transpose(shards, a, shard, n_columns) for a in pairing.pairs),
        )
        opposite_mask = None if mask is None else _rows_of_transpose(shards, mask, shard, n_columns)
    own = ScoreMatrix(similarity, (x,), (columns,), own_pairing, own_mask, options["block_size"], shard=shard)
    turned = shard
    if need_opposite and shards.rows != shards.columns:
        turned = _shard_of_transpose(xp, shards, shard, x, (n_columns, views))
    if not all_count(own, weights, both_ways=need_opposite or symmetric):
        opposite = None
        if need_opposite:
            both: dict[str, Any] = {"rows": (columns[:n_columns, ...],), "columns": (x,), "shard": turned}
            opposite = own._replace(**both, pairing=opposite_pairing, mask=opposite_mask)
        own = without_idle(own._replace(rows=(x[:n, ...],)), needs, weights, opposite)
        (x,), (columns,), own_pairing, similarity = own.rows, own.columns, own.pairing, own.similarity
    similarity, rows, columns, bound = operands_of(similarity, x, columns, scale, half)
    common: dict[str, Any] = {**options, "bound": min(options["bound"], bound), "shard": shard}
    opposite = None
    if need_opposite:
        own_columns = tuple(x[:n_columns, ...] for x in columns)
        opposite = ScoreMatrix(similarity.transposed(), own_columns, rows, opposite_pairing, opposite_mask, **common)
        if turned is not shard:
            opposite = opposite._replace(shard=turned, shards=shards.transposed())
        rows = tuple(x[:n, ...] for x in rows)
    return ScoreMatrix(similarity, rows, columns, own_pairing, own_mask, own_transpose=opposite, **common)


def _gather_columns(shards: Shards, x: Array, n_rows: int, n_extra: int, *, sent_as: Any = None) -> Array:
    """Gather an array of the columns of all ranks; the extra columns, equal on all ranks, come last."""
    if not n_extra:
        return shards.gather(x, sent_as=sent_as, of_columns=True)
    own = shards.gather(x[:n_rows, ...], sent_as=sent_as, of_columns=True)
    return namespace_of(own, x).concat([own, x[n_rows:, ...]], axis=0)


def _gather_flags(shards: Shards, x: Array, n_rows: int, n_extra: int) -> Array:
    """Pairing's array of the columns of all ranks; with extra columns, flags of valid ones, True for all others."""
    if not n_extra:
        return shards.flags(x, of_columns=True)
    xp = namespace_of(x)
    return xp.concat([xp.ones((sum(shards.columns),), dtype=xp.bool, device=device_of(x)), x[n_rows:]], axis=0)


def _shard(xp: Namespace, shards: Shards, x: Array, joined: tuple[int, int], n_extra: int) -> Shard:
    """Position of the shard; `joined`: numbers of arrays that the rows and the columns are joined from."""
    device, n_rows = device_of(x), x.shape[0]
    columns = shards.own_first(_indices(xp, shards.columns, joined[1], device), of_columns=True)
    rows = columns
    if shards.rows != shards.columns:
        rows = shards.own_first(_indices(xp, shards.rows, joined[0], device))
    rows = rows[:n_rows]
    shape = (sum(shards.rows), sum(shards.columns) + n_extra)
    if n_extra:
        columns = xp.concat([columns, xp.arange(shape[1] - n_extra, shape[1], device=device)], axis=0)
    return Shard(rows, columns, shape, n_rows)


def _shard_of_transpose(xp: Namespace, shards: Shards, shard: Shard, like: Array, of_rows: tuple[int, int]) -> Shard:
    """Position of the shard of the transpose: the columns of this rank against the rows of all ranks.

    `of_rows`: number of own columns, and number of arrays that the rows are joined from.
    """
    n_columns, joined = of_rows
    rows = shards.own_first(_indices(xp, shards.rows, joined, device_of(like)))
    return Shard(shard.columns[:n_columns], rows, (shard.shape[1], shard.shape[0]), n_columns)


def _indices(xp: Namespace, counts: Sequence[int], joined: int, device: object) -> Array:
    """Row numbers in the single-process batch, in which each joined array has the rows of all ranks."""
    samples = [count // joined for count in counts]
    firsts = [0, *accumulate(samples)]
    pieces = [
        xp.arange(count, device=device) + (view * firsts[-1] + first)
        for count, first in zip(samples, firsts, strict=False)
        for view in range(joined)
    ]
    return xp.concat(pieces)


def _take_columns(pairs: Array, shard: Shard) -> Array:
    """Reorder the columns of an array of pairs, from the order of one process to the order of the shard."""
    return namespace_of(pairs, shard.columns).take(pairs, shard.columns, axis=1)


def _rows_of_transpose(shards: Shards, pairs: Array, shard: Shard, n_columns: int) -> Array:
    """Take the rows of the transpose of an array of pairs that belong to this rank's own columns."""
    whole = shards.flags(pairs)
    xp = namespace_of(whole)
    return xp.matrix_transpose(xp.take(whole, shard.columns[:n_columns], axis=1))
