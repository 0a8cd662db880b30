"""The part of a score matrix that a rank has: its own rows against the columns of all ranks, its own first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from .._core.namespace import device_of, is_array, namespace_of
from .._core.numerics import rows_where
from .._core.protocol import Array, Namespace
from .._core.ranks import Shards, widened
from ..pairings import Pairing
from ..similarities import Similarity, with_numbers
from .matrix import ScoreMatrix, Shard
from .operands import SourceDtypes, operands_of


class RankBatch(NamedTuple):
    """Rows and columns of a rank, their dtypes on the way to others, and the mask of its rows against all columns.

    `joined`: number of arrays that the columns are joined from, those of views apart.
    """

    rows: Array
    columns: Array
    sent_as: tuple[Any, Any]
    source_dtypes: SourceDtypes
    mask: Array | None = None
    joined: int = 1


def sharded_matrix(
    brought: RankBatch,
    similarity: Similarity,
    pairing: Pairing,
    scale: Any,
    *,
    need_transposed_scores: bool,
    need_transpose: bool,
    **options: Any,
) -> ScoreMatrix:
    """Score matrix of the shard of this rank, of the matrix of the whole batch.

    `need_transpose`: also its shard of the transpose, with the transposed pairing. `need_transposed_scores`: also its
    shard of the transposed scores, with the same pairing. Extra columns of a pairing must be here already, the same on
    all ranks. `options` are those of `ScoreMatrix`, with its `shards`.
    """
    x, y, sent_as, source_dtypes, mask, joined = brought
    shards: Shards = options["shards"]
    n = x.shape[0]
    beyond = y.shape[0] - n if pairing.extra_columns else 0
    similarity = with_numbers(similarity, lambda numbers: _columns_of_all(shards, numbers, n, beyond))
    columns = _columns_of_all(shards, y, n, beyond, sent_as=sent_as[1])
    xp = namespace_of(columns)
    views = pairing.structure.views
    shard = _shard(xp, shards, x, (views, views * joined), beyond)
    spread = pairing.with_arrays(
        rows=tuple(map(widened, pairing.rows)),
        columns=tuple(_flags_of_all(shards, a, n, beyond) for a in pairing.columns),
        pairs=tuple(_columns_taken(a, shard) for a in pairing.pairs),
    )
    mask_here = None if mask is None else _columns_taken(mask, shard)
    opposite = need_transposed_scores or need_transpose
    if opposite:
        x = shards.gather(x, sent_as=sent_as[0])
        if is_array(scale) and len(scale.shape) > 0:  # one number for each row
            scale = shards.gather(scale)
    own_transpose, mask_of_transpose = spread, mask_here
    if need_transpose:
        own_transpose = pairing.transposed()
        own_transpose = own_transpose.with_arrays(
            rows=tuple(map(widened, own_transpose.rows)),
            columns=tuple(shards.flags(a) for a in own_transpose.columns),
            pairs=tuple(_rows_of_transpose(shards, a, shard) for a in pairing.pairs),
        )
        mask_of_transpose = None if mask is None else _rows_of_transpose(shards, mask, shard)
    if mask_here is not None:
        x, columns = _without_idle(xp, (x, columns), mask_here, mask_of_transpose if opposite else None)
    similarity, of_rows, of_columns, bound = operands_of(similarity, x, columns, scale, source_dtypes)
    common: dict[str, Any] = {**options, "bound": min(options["bound"], bound), "shard": shard}
    other = None
    if opposite:
        own_rows, own_columns = (tuple(x[:n, ...] for x in operands) for operands in (of_rows, of_columns))
        # On each rank there are as many rows as columns, so that one part serves the matrix and its transpose.
        other = ScoreMatrix(similarity.transposed(), own_columns, of_rows, own_transpose, mask_of_transpose, **common)
        of_rows = own_rows
    return ScoreMatrix(similarity, of_rows, of_columns, spread, mask_here, own_transpose=other, **common)


def _columns_of_all(shards: Shards, x: Array, n_rows: int, beyond: int, *, sent_as: Any = None) -> Array:
    """What belongs to the columns of all ranks, and to those beyond, the last, which are here already."""
    if not beyond:
        return shards.gather(x, sent_as=sent_as, of_columns=True)
    own = shards.gather(x[:n_rows, ...], sent_as=sent_as, of_columns=True)
    return namespace_of(own, x).concat([own, x[n_rows:, ...]], axis=0)


def _flags_of_all(shards: Shards, x: Array, n_rows: int, beyond: int) -> Array:
    """The same of an array of a pairing; of columns beyond, which are valid, where those of rows all are."""
    if not beyond:
        return shards.flags(x, of_columns=True)
    xp = namespace_of(x)
    return xp.concat([xp.ones((sum(shards.columns),), dtype=xp.bool, device=device_of(x)), x[n_rows:]], axis=0)


def _shard(xp: Namespace, shards: Shards, x: Array, joined: tuple[int, int], beyond: int) -> Shard:
    """Where the rows and columns of a rank are, of which each is made of so many arrays `joined`."""
    device, n_rows = device_of(x), x.shape[0]
    columns = shards.own_first(_numbers(xp, shards.columns, joined[1], device), of_columns=True)
    rows = columns[:n_rows]
    if shards.rows != shards.columns:
        rows = shards.own_first(_numbers(xp, shards.rows, joined[0], device))[:n_rows]
    shape = (sum(shards.rows), sum(shards.columns) + beyond)
    if beyond:
        columns = xp.concat([columns, xp.arange(shape[1] - beyond, shape[1], device=device)], axis=0)
    return Shard(rows, columns, shape, n_rows)


def _numbers(xp: Namespace, counts: Sequence[int], joined: int, device: object) -> Array:
    """The numbers that the rows of all ranks have in one process, which has each joined array of all ranks in turn."""
    samples = [count // joined for count in counts]
    firsts = [0, *accumulate(samples)]
    pieces = [
        xp.arange(own, device=device) + (view * firsts[-1] + first)
        for own, first in zip(samples, firsts, strict=False)
        for view in range(joined)
    ]
    return xp.concat(pieces)


def _columns_taken(pairs: Array, shard: Shard) -> Array:
    """An array of pairs, whose columns are in the order of one process, for the columns of a part."""
    return namespace_of(pairs, shard.columns).take(pairs, shard.columns, axis=1)


def _rows_of_transpose(shards: Shards, pairs: Array, shard: Shard) -> Array:
    """Of the transpose of an array of pairs, whose rows all ranks have, the rows of this rank's own columns."""
    whole = shards.flags(pairs)
    xp = namespace_of(whole)
    return xp.matrix_transpose(xp.take(whole, shard.columns[: shard.n_own_columns], axis=1))


def _without_idle(
    xp: Namespace, both: tuple[Array, Array], mask: Array, own_transpose: Array | None
) -> tuple[Array, Array]:
    """The rows and columns of a part, 0 where its mask leaves no pair; of all ranks, also that of the transpose's part.

    What takes no part may hold anything, NaN too.
    """
    of_rows, of_columns = (xp.any(mask, axis=axis) for axis in (1, 0))
    if own_transpose is not None:
        own_columns, all_rows = (xp.any(own_transpose, axis=axis) for axis in (1, 0))
        n = mask.shape[0]
        of_rows = xp.concat([xp.logical_or(all_rows[:n], of_rows), all_rows[n:]])
        of_columns = xp.concat([xp.logical_or(of_columns[:n], own_columns), of_columns[n:]])
    rows, columns = (rows_where(xp, *one)[0] for one in zip((of_rows, of_columns), both, strict=True))
    return rows, columns
