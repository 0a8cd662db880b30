"""The score matrix of a call: in one process, and with the rows of other ranks."""

from __future__ import annotations

import math
import sys
from typing import Any

from .._core.autodiff import stop_gradient
from .._core.checks import is_empty, is_half
from .._core.namespace import is_number, lift_to_tape, namespace_of
from .._core.numerics import continued, largest_entry, largest_score, zeros
from .._core.protocol import Array
from .._core.ranks import Shards
from .._core.registry import adapter_of
from .._execution.evaluate import sums_both_sides
from .._execution.live import all_count, are_paired, without_idle
from .._execution.matrix import ScoreMatrix, may_overflow
from .._execution.operands import operands_of
from .._execution.sharded import sharded_matrix
from .._execution.tiling import MAX_UNSHIFTED_LOGIT, is_positive
from ..similarities import (
    Operands,
    Similarity,
    is_cosine,
    is_dot,
    measured_operands,
    normalized_here,
    scaled_columns,
    with_numbers,
)
from .records import Call


def sharpness_of(hardness: float, scale: Any, like: Array) -> Array | None:
    """Factor (N,) of the negative scores ``g = scale · s``: in value, ``g + α sg(s)`` is ``(1 + α / scale) g``."""
    if not hardness:
        return None
    # One number for the columns of a rank without rows.
    n_rows = 1 if is_empty(like) else like.shape[0]
    zero = stop_gradient(zeros(namespace_of(like), (n_rows,), like))
    if is_number(scale):
        return zero + (1.0 + hardness / scale)
    ((zero, scale),) = lift_to_tape((zero, stop_gradient(scale)))
    xp = namespace_of(zero)
    return zero + (1.0 + hardness / xp.reshape(scale, (-1,)))


def gather_extra_columns(shards: Shards, call: Call, similarity: Similarity) -> tuple[Call, Similarity]:
    """Call and similarity with the extra columns of all ranks, in the order of the ranks."""
    if call.layout.replicated:
        return call._replace(layout=call.layout._replace(replicated=False)), similarity
    n_rows, opposite = call.x.shape[0], call.layout.opposite
    extra = tuple(columns - rows for rows, columns in zip(shards.rows, shards.columns, strict=True))
    of_extra = shards._replace(columns=extra)

    def of_all(x: Array, sent_as: Any = None) -> Array:
        return of_extra.gather(x[n_rows:, ...], sent_as=sent_as, of_columns=True, own_first=False)

    def joined(x: Array, extra: Array) -> Array:
        return namespace_of(x, extra).concat([x[:n_rows, ...], extra], axis=0)

    name = call.names[1]
    keys = of_all(call.y, call.embeddings[name].dtypes[-1])
    similarity = with_numbers(similarity, lambda numbers: joined(numbers, of_all(numbers)))
    if opposite is not None:
        rows, columns = opposite
        layout = call.layout._replace(opposite=(rows, columns._replace(array=joined(columns.array, keys))))
        call = call._replace(layout=layout)
    return call.with_columns(joined(call.y, keys)), similarity


def score_matrix(call: Call, similarity: Similarity, scale: Any, **options: Any) -> ScoreMatrix:
    """Score matrix of the rows of this process against all columns, with its transpose if that is not a plain one.

    With a temperature per row, column i has the temperature of row i in the transpose.
    """
    matrix, symmetric = _matrix_of(call, similarity, scale, **options), call.options.symmetric
    if call.layout.opposite is not None:
        own_transpose = call._replace(embeddings=dict(zip(call.names, call.layout.opposite, strict=True)))
        return matrix._replace(own_transpose=_matrix_of(own_transpose, similarity, scale, **options))
    if call.per_row_temperature and (symmetric or call.need_transposed_scores):
        of_columns = scaled_columns(similarity, continued(scale[:, 0], call.y.shape[0]))
        other = _matrix_of(call, of_columns, 1.0, need_transpose=symmetric, **options)
        return matrix._replace(own_transpose=other.transposed())
    return matrix


def _matrix_of(
    call: Call, similarity: Similarity, scale: Any, *, need_transpose: bool = False, **options: Any
) -> ScoreMatrix:
    """Score matrix of the rows of this process; across ranks, with its shard of the transpose if needed."""
    shards, replicated, x, y, mask = options["shards"], call.layout.replicated, call.x, call.y, call.options.mask
    if shards is None or call.partners or replicated:
        if shards is not None and not replicated:
            sent_as = call.embeddings[call.names[1]].dtypes[-1]
            call = call.with_columns(shards.gather(y, sent_as=sent_as, of_columns=True, own_first=False))
        return _local_matrix(call, similarity, scale, **options)
    pairing, sent_as = call.pairing, call.sent_as
    if call.weights is None and are_paired(pairing, mask, both_ways=x is y) and not any(map(is_half, sent_as)):
        similarity, x, y = normalized_here(similarity, x, y)
    if call.options.symmetric:
        reduction = call.options.reduction
        need_transpose = need_transpose or options["sharpness"] is not None
        need_transpose = need_transpose or not sums_both_sides(
            call.objective, similarity, pairing, mask, x, reduction=reduction
        )
        need_transpose = need_transpose or may_overflow(similarity, (x,), (y,), shards)
    return sharded_matrix(
        x,
        y,
        similarity,
        pairing,
        scale,
        mask=mask,
        weights=call.leaving_out,
        needs=call.objective.needs,
        sent_as=sent_as,
        half=call.half(similarity),
        joined=call.layout.joined,
        symmetric=call.options.symmetric,
        need_transposed_scores=call.need_transposed_scores,
        need_transpose=need_transpose,
        **options,
    )


def _local_matrix(call: Call, similarity: Similarity, scale: Any, **options: Any) -> ScoreMatrix:
    """Score matrix of rows and columns that this process holds."""
    xp, pairing, mask, x, partners, y = call.xp, call.pairing, call.options.mask, call.x, call.partners, call.y
    if partners and not (mask is None and similarity.by_products and similarity.symmetric and is_positive(y.shape[0])):
        partners, y = [], xp.concat([*partners, y], axis=0)  # separate partners need inner products
    symmetric, crossed = call.options.symmetric, call.need_transposed_scores
    matrix = ScoreMatrix(similarity, (x,), (y,), pairing, mask, options["block_size"], partners=tuple(partners))
    if not all_count(matrix, call.weights, both_ways=symmetric or crossed):
        opposite = matrix.transposed() if symmetric else matrix.transposed_scores() if crossed else None
        matrix = without_idle(matrix, call.objective.needs, call.leaving_out, opposite)
        (x,), partners, (y,), pairing = matrix.rows, [*matrix.partners], matrix.columns, matrix.pairing
        similarity = matrix.similarity
    if is_cosine(similarity) or is_dot(similarity):
        if is_dot(similarity):
            options["bound"] = largest_score(x, *partners, y, factor=score_bound(scale, x, one_process=True))
        options |= {"scale": scale, "half": call.half(similarity)}
        return ScoreMatrix(similarity, (x,), (y,), pairing, mask, partners=tuple(partners), **options)
    partner_operands: Operands = ()
    similarity, rows, columns, bound = operands_of(similarity, x, y, scale, call.half(similarity))
    if partners:  # separate operands avoid a copy of the queue, and its gradient
        _, partner_operands, partner_bound = measured_operands(similarity, x, partners[0], scale)
        bound = max(bound, partner_bound)
        if not (similarity.unit or bound < math.inf):  # products with either might overflow
            partner_operands, y = (), namespace_of(*partners, y).concat([*partners, y], axis=0)
            similarity, rows, columns, bound = operands_of(similarity, x, y, scale, call.half(similarity))
    options["bound"] = min(options["bound"], bound)
    return ScoreMatrix(similarity, rows, columns, pairing, mask, partners=partner_operands, **options)


def score_bound(scale: Any, like: Array, *, one_process: bool) -> float:
    """Largest magnitude of the scores of unit rows, infinite if unknown; small scores need no shift in exponentials.

    Traced steps always shift: it is cheap there, and log-odds gain a digit. Across ranks only a Python number is known
    to be equal.
    """
    mode = adapter_of(like).mode
    if mode == "traced" or not (one_process or is_number(scale)):
        return math.inf
    if not is_number(scale):
        number = largest_entry(scale)
        return math.inf if number is None else number
    if mode == "eager":
        return float(abs(scale))
    # A compiler may know a number only by comparisons.
    return MAX_UNSHIFTED_LOGIT if abs(scale) <= MAX_UNSHIFTED_LOGIT else sys.float_info.max
