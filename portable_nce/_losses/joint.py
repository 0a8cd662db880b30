"""InfoNCE with query-key, query-query and key-key scores in one softmax.

The plain formula, with all four directions:

>>> import numpy as np
>>> import portable_nce as pnce
>>> x, y = np.random.default_rng(0).standard_normal((2, 6, 4))
>>> q, k = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
>>> own, others = np.exp((q * k).sum(axis=1) / 0.2), 1 - np.eye(6)
>>> negatives = sum((np.exp(a @ b.T / 0.2) * others).sum(axis=1) for a in (q, k) for b in (q, k))
>>> bool(np.isclose(-np.log(own / (own + negatives)).mean(), pnce.joint_info_nce(x, y, temperature=0.2)))
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

from .._call import ColumnLayout, LossOptions, contrast_embeddings, enter_embeddings, shards_of_rows
from .._core.checks import check_choice, check_mask, check_shape
from .._core.equality import Record
from .._core.namespace import lift_to_tape, namespace_of
from .._core.numerics import softplus
from .._core.protocol import Array, Namespace
from .._core.ranks import Ranks, end_exchange, propagates_errors
from .._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, JointDirection, Precision, ReductionName
from ..objectives.base import Objective, RowStatistics
from ..pairings import Pairing, Tile
from ..similarities import AnySimilarity

__all__ = ["DIRECTIONS", "joint_info_nce"]

DIRECTIONS: tuple[JointDirection, ...] = get_args(JointDirection)


@propagates_errors
def joint_info_nce(
    query: ArrayOf[ArrayT],
    key: AnyArray,
    /,
    *,
    directions: JointDirection | Sequence[JointDirection] = DIRECTIONS,
    temperature: float | AnyArray = 0.01,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return InfoNCE with both queries and keys of the batch as negatives, in one softmax.

    .. math:: \ell_i = -\log \frac{e^{s(q_i, k_i) / \tau}}{Z_i}, \qquad
        Z_i = e^{s(q_i, k_i) / \tau} + \sum_{j \ne i} \big(e^{s(q_i, k_j) / \tau} + e^{s(q_i, q_j) / \tau}
        + e^{s(k_i, q_j) / \tau} + e^{s(k_i, k_j) / \tau}\big),

    the improved contrastive loss of GTE, or one with fewer of its four directions.

    Parameters
    ----------
    query : array, shape (N, D)
        Embeddings of the queries.
    key : array, shape (N, D)
        Embeddings of the keys; key i belongs to query i.
    directions : tuple of str, default: ("query_to_key", "query_to_query", "key_to_query", "key_to_key")
        Kinds of negatives: for query i, the other keys and the other queries; for key i, the other queries and the
        other keys.
    temperature : float, or array of one entry or of shape (N,), default: 0.01
        Temperature τ > 0, shared or one per query and its key; differentiable if an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`. It has to be symmetric.
    mask : array of bool, shape (N, N), optional
        Pairs of samples to include, in each direction; all by default.
    weights : array, shape (N,), optional
        Weights of the queries.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the queries that have a positive (0 if none has), weighted sum, or the weighted losses of the
        queries.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`. Value and gradient take two passes.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `query`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Li, Zhang, Zhang, Long, Xie and Zhang (2023), "Towards General Text Embeddings with Multi-stage Contrastive
    Learning", arXiv:2308.03281, section 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> query, key = np.eye(3), np.asarray([[0.8, 0.6, 0.0], [0.0, 0.8, 0.6], [0.6, 0.0, 0.8]])
    >>> pnce.joint_info_nce(query, key, temperature=0.5)
    array(1.43575...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    directions = (directions,) if isinstance(directions, str) else directions
    if not isinstance(directions, (tuple, list)):
        raise TypeError(f"directions: expected a sequence of names, got {type(directions).__name__}")
    for direction in directions:
        check_choice("directions", direction, DIRECTIONS)
    if not directions or len(set(directions)) < len(directions):
        raise ValueError(f"directions: expected some of {DIRECTIONS}, each once, got {directions}")
    entered = enter_embeddings({"query": query, "key": key}, options)
    xp, options, (queries, keys) = entered.xp, entered.options, entered.embeddings.values()
    check_shape("key", keys.array, tuple(queries.array.shape))
    rows = queries.array.shape[0]
    shards = shards_of_rows(across, queries.array)
    end_exchange(across)
    if options.mask is not None:
        check_mask(xp, "mask", options.mask, (rows, rows if shards is None else sum(shards.columns)))
        options = options._replace(mask=xp.concat([options.mask, options.mask], axis=1))
    layout = ColumnLayout(joined=2, later_weights=options.weights)
    options = options._replace(weights=None, reduction="none")
    result = []
    for name, own, other in (("query", queries, keys), ("key", keys, queries)):
        others, itself = (f"{name}_to_{to}" in directions for to in (_OTHER[name], name))
        if others or itself:
            embeddings = {name: own, "columns": other.joined(own)}
            pairing = Pairing(_Blocks(others, itself), one_per_row=True)
            result.append(contrast_embeddings(embeddings, _LOG_ODDS, pairing, options, layout))
    ((odds, *more),) = lift_to_tape(tuple(result))
    xp = namespace_of(odds)
    counted = odds != 0
    for other in more:
        counted, odds = xp.logical_and(counted, other != 0), _log_of_sum(xp, odds, other)
    dead = odds <= 0.5 * _nothing(odds)
    values = xp.where(dead, xp.zeros_like(odds), softplus(xp, xp.where(dead, xp.zeros_like(odds), odds)))
    return entered.reduced(values, counted, shards)


def _log_of_sum(xp: Namespace, a: Array, b: Array) -> Array:
    """``log(e^a + e^b)``, also for infinities."""
    larger, smaller = xp.where(a > b, a, b), xp.where(a > b, b, a)
    infinite = xp.isinf(larger)
    below = smaller - xp.where(infinite, xp.zeros_like(larger), larger)
    return larger + softplus(xp, xp.where(infinite, -math.inf, below))


_OTHER = {"query": "key", "key": "query"}


class _Blocks(Record):
    """Column i is positive; negatives: the others of the first N (`others`) and of the last N (`itself`) columns."""

    __name__ = "blocks"
    others: bool
    itself: bool

    def __call__(self, tile: Tile) -> tuple[Array, Array]:
        xp = namespace_of(tile.i)
        own = tile.i == tile.j
        negatives = xp.logical_and(xp.not_equal(tile.i, tile.j), xp.not_equal(tile.i, tile.j - tile.n_rows))
        if self.others != self.itself:
            block = tile.j < tile.n_rows if self.others else tile.j >= tile.n_rows
            negatives = xp.logical_and(negatives, block)
        return own, negatives


_NONE = -0.125
"""Log-odds of a row without negatives, as a fraction of the largest number: negligible in a log-sum-exp."""


_TINY = 2.0**-100
"""Stands for log-odds of exactly 0, which mark rows without a positive; it changes no loss."""


def _nothing(like: Array) -> float:
    return _NONE * float(namespace_of(like).finfo(like.dtype).max)


def _values(row: RowStatistics) -> Array:
    """Log-odds, never 0, since 0 marks a row without a positive."""
    xp = namespace_of(row.log_odds)
    odds = xp.where(row.log_odds == 0, row.log_odds + _TINY, row.log_odds)
    return xp.where(row.has_negative, odds, xp.full_like(odds, _nothing(odds)))


def _slopes(row: RowStatistics) -> Any:
    xp = namespace_of(row.log_odds)
    return xp.astype(row.has_negative, row.log_odds.dtype), None, None, None


_LOG_ODDS = Objective(_values, slopes=_slopes, couples_rows=False, label="log_odds")
