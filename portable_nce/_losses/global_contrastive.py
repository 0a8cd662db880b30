"""Global contrastive losses: a moving average per sample lets small batches learn like large ones.

`sogclr`, the plain formula: the mean of the negatives' ratios, averaged over the visits of a sample.

>>> import numpy as np
>>> import portable_nce as pnce
>>> x, y = np.random.default_rng(0).standard_normal((2, 6, 4))
>>> q, k = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
>>> g, log_u = q @ k.T / 0.2, np.full(6, 0.5)
>>> ratio = (np.exp(g - g.diagonal()[:, None]) * (1 - np.eye(6))).sum(axis=1) / 5
>>> after = np.log(0.1 * np.exp(log_u) + 0.9 * ratio)
>>> loss, state = pnce.sogclr(x, y, log_u, temperature=0.2, gamma=0.9)
>>> bool(np.isclose(after.mean(), loss)), bool(np.allclose(after, state))
(True, True)
"""

from __future__ import annotations

import math
from typing import Any

from .._call import ColumnLayout, LossOptions, contrast_embeddings, enter_embeddings, has_own_column, shards_of_rows
from .._core.autodiff import stop_gradient
from .._core.checks import check_floating, check_mask, check_number, check_shape
from .._core.equality import Record
from .._core.namespace import is_number, lift_to_tape, namespace_of
from .._core.numerics import sigmoid, softplus
from .._core.protocol import Array
from .._core.ranks import Ranks, Shards, end_exchange, propagates_errors
from .._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, Precision, ReductionName
from .._execution.live import counted_by, zeroed
from ..objectives.base import Pairwise, RowStatistics, Term, Weighted, with_slopes
from ..pairings import diagonal
from ..similarities import AnySimilarity, resolve

__all__ = ["sogclr"]


@propagates_errors
def sogclr(
    query: ArrayOf[ArrayT],
    key: AnyArray,
    log_u: ArrayOf[Any],
    /,
    *,
    gamma: float = 0.9,
    temperature: float | AnyArray = 0.1,
    rho: float | None = None,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> tuple[ArrayT, ArrayT]:
    r"""Return the global contrastive loss (SogCLR) and the moving averages of the samples' partition functions.

    .. math:: \ell_i = \log \hat u_i, \qquad \hat u_i = (1 - \gamma)\, \mathrm{sg}(u_i) + \gamma\, r_i, \qquad
        r_i = \frac{1}{M_i} \sum_{j \in Q(i)} e^{g_{ij} - g_{ii}}, \qquad g_{ij} = s(q_i, k_j) / \tau

    with the gradient of :math:`r_i / \mathrm{sg}(\hat u_i)`. At the first visit of a sample, :math:`\hat u_i = r_i`.
    `flat_nce` normalises the negatives of a row by their sum within the batch; here the normaliser is a moving average
    over the epochs, so that small batches suffice. With ``gamma=1`` it is `flat_nce` with a mean in place of the sum.

    With `rho` it is the iSogCLR loss, :math:`\tau_i (\log \hat u_i + \rho)`, which learns a temperature per sample.

    Parameters
    ----------
    query : array, shape (N, D)
        Embeddings of the queries.
    key : array, shape (N, D)
        Embeddings of the keys; key i belongs to query i, and the others are its negatives.
    log_u : array, shape (N,)
        Logarithms of the moving averages of the samples in the batch, without gradient: the entries of an array that
        has one per sample of the data set. -inf for a sample not yet visited.
    gamma : float, default: 0.9
        Weight γ of the batch in the moving average, in (0, 1].
    temperature : float, or array of one entry or of shape (N,), default: 0.1
        Temperature τ > 0, shared or one per row; differentiable if an array.
    rho : float, optional
        Constant ρ of the iSogCLR loss.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the queries.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the queries that have a positive and a negative (0 if none has), weighted sum, or the
        weighted losses.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`. Value and gradient take two passes.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`. The averages are those of this rank's
        rows.

    Returns
    -------
    loss : array
        Loss in nats (may be negative): 0-d, or shape (N,) for reduction "none", of the library, dtype and device of
        `query`.
    log_u : array, shape (N,)
        Logarithms of the new averages, without gradient, in the dtype of `log_u`. Unchanged for queries without a
        positive or a negative, and for those of weight 0.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    flat_nce : The loss without a memory.

    Notes
    -----
    The authors' code multiplies the loss by the temperature and averages both directions, each with a separate u. Its
    average is that of iSogCLR (LibAUC's ``GCLoss_v2``); SogCLR's first algorithm (``GCLoss_v1``) averages
    :math:`e^{g_{ij}}` and divides by the positive outside the average. FastCLIP lowers γ during training.

    References
    ----------
    Yuan, Wu, Qiu, Du, Zhang, Zhou and Yang (2022), "Provable Stochastic Optimization for Global Contrastive Learning:
    Small Batch Does Not Harm Performance", arXiv:2202.12387, algorithm 1; Qiu, Hu, Yuan, Zhou, Zhang and Yang (2023),
    "Not All Semantics are Created Equal: Contrastive Self-supervised Learning with Automatic Temperature
    Individualization", arXiv:2305.11965; Wei et al. (2024), "FastCLIP: A Suite of Optimization Techniques to Accelerate
    CLIP Training with Limited Resources", arXiv:2407.01445.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> log_u, batch = np.full(100, -np.inf), np.asarray([7, 42])
    >>> query, key = np.eye(2), np.asarray([[0.8, 0.6], [0.6, 0.8]])
    >>> loss, log_u[batch] = pnce.sogclr(query, key, log_u[batch], temperature=0.5)
    >>> loss
    array(-0.4)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    gamma = check_number("gamma", gamma, above=0.0)
    if gamma > 1:
        raise ValueError(f"gamma: expected a number from more than 0 to 1, got {gamma}")
    rho = None if rho is None else check_number("rho", rho)
    entered = enter_embeddings({"query": query, "key": key}, options, {"log_u": log_u})
    xp, log_u, options, (x, y) = entered.xp, entered.numbers["log_u"], entered.options, entered.arrays
    check_floating(xp, log_u=log_u)
    check_shape("log_u", log_u, (x.shape[0],))
    state = before = xp.astype(stop_gradient(log_u), x.dtype)
    state = zeroed(state, counted_by(options.weights), scores=True)
    shards = shards_of_rows(across, x, options.temperature)
    end_exchange(across)
    by_row = options._replace(weights=None, reduction="none")
    if resolve(similarity).inner_product:
        counted, number = _counts(options.mask, state, shards)
    else:  # a score may be -inf
        pairs = entered.with_arrays(stop_gradient(x), stop_gradient(y)).embeddings
        constant = options.temperature if is_number(options.temperature) else stop_gradient(options.temperature)
        counting = by_row._replace(temperature=constant)
        counted, number = _counted(contrast_embeddings(pairs, _PAIRS, diagonal(), counting))
    averaged = with_slopes(_Averaged(gamma), needs_negative=True, label="sogclr")
    memory = Weighted(averaged, _Memory(state, number, gamma), label="sogclr", known=True)
    layout = ColumnLayout(later_weights=options.weights)
    values = contrast_embeddings(entered.embeddings, memory, diagonal(), by_row, layout)
    ((values, number, state, counted),) = lift_to_tape((values, number, state, counted))
    xp = namespace_of(values)
    fresh = state == -math.inf
    share = xp.log(xp.full_like(state, gamma))
    values = values - xp.log(number) + xp.where(fresh, xp.zeros_like(state), share)
    values = xp.where(counted, values, xp.zeros_like(values))
    after = stop_gradient(xp.where(counted_by(options.weights, counted), values, before))
    if rho is not None:
        values = (values + rho) * (options.temperature if shards is None else shards.shared(options.temperature))
    return entered.reduced(values, counted, shards), xp.astype(after, log_u.dtype)


def _counts(mask: Array | None, like: Array, shards: Shards | None) -> tuple[Array, Array]:
    """Boolean array of rows with a positive and a negative, and the number of negatives, at least 1."""
    xp, rows = namespace_of(like), like.shape[0]
    columns = rows if shards is None else sum(shards.columns)
    if mask is None:
        number = xp.zeros_like(like) + (columns - 1)  # the batch size may be symbolic
        return number > 0, xp.where(number > 0, number, xp.ones_like(number))
    check_mask(xp, "mask", mask, (rows, columns))
    present = has_own_column(xp, mask, 0 if shards is None else shards.first_row())
    number = xp.sum(xp.astype(mask, like.dtype), axis=1) - xp.astype(present, like.dtype)
    counted = xp.logical_and(present, number > 0)
    return counted, xp.where(number > 0, number, xp.ones_like(number))


_PAIRS = Pairwise(
    Term(lambda s: 0.5 * namespace_of(s).ones_like(s), slopes=lambda s: (namespace_of(s).zeros_like(s),)),
    Term(lambda s: namespace_of(s).ones_like(s), slopes=lambda s: (namespace_of(s).zeros_like(s),)),
    label="pairs",
)
"""Number of negatives of a row, plus 0.5 if it has a positive."""


def _counted(pairs: Array) -> tuple[Array, Array]:
    """Result of `_counts`, decoded from the row sums of `_PAIRS`."""
    pairs = stop_gradient(pairs)
    xp = namespace_of(pairs)
    number = xp.floor(pairs)
    counted = xp.logical_and(xp.not_equal(pairs, number), number > 0)
    return counted, xp.where(number > 0, number, xp.ones_like(number))


class _Memory(Record):
    """Log of the memory's share of the average, relative to the batch's share; comparable with the log-odds."""

    state: Array
    number: Array
    gamma: float

    def __call__(self, positive: Array, counted: Array) -> Array:
        del counted
        ((state, number, _),) = lift_to_tape((self.state, self.number, positive))
        if self.gamma == 1:
            return namespace_of(state).full_like(state, -math.inf)
        xp = namespace_of(state)
        before, share = (xp.full_like(state, x) for x in (1.0 - self.gamma, self.gamma))
        return state + xp.log(number) + (xp.log(before) - xp.log(share))


class _Averaged(Record):
    """For log-odds u and memory a: the value ``L = log(e^a + e^u)`` with the gradient of ``c e^(u - sg L)``.

    The average is ``û = γ e^L / M`` and the mean of the batch ``r = e^u / M``. The slope ``r / û`` needs c = 1/γ;
    without a memory û is r, and c = 1.
    """

    gamma: float

    def share(self, row: RowStatistics, memory: Array) -> Array:
        """``c e^(u - sg L)``, with ``e^(u - L) = σ(u - a)``."""
        xp, odds = namespace_of(row.log_odds, memory), row.log_odds
        finite = xp.where(xp.isinf(odds), xp.zeros_like(odds), odds)
        share = stop_gradient(sigmoid(xp, odds - memory)) * xp.exp(finite - stop_gradient(finite))
        return share / xp.where(memory == -math.inf, xp.ones_like(memory), xp.full_like(memory, self.gamma))

    def __call__(self, row: RowStatistics, memory: Array) -> Array:
        share = self.share(row, memory)
        total = row.log_odds + softplus(namespace_of(memory), memory - row.log_odds)
        return stop_gradient(total) + (share - stop_gradient(share))

    def slopes(self, row: RowStatistics, memory: Array) -> Any:
        """Slopes by the log-odds and by the memory."""
        return self.share(row, memory), None, None, None, namespace_of(memory).zeros_like(memory)
