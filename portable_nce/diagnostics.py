"""Diagnostics of contrastive learning, cheap enough for every step."""

from __future__ import annotations

import math

from ._contrast import finish
from ._execution import whole_tile
from ._numerics import accumulate, exp_sum, shifted_exp
from ._protocol import Array
from ._reduction import REDUCTIONS, reduce_values
from ._validate import one_of, row_weights
from .from_scores import enter_scores

__all__ = ["effective_sample_size"]


def effective_sample_size(
    scores: Array,
    /,
    *,
    positives: Array | None = None,
    mask: Array | None = None,
    weights: Array | None = None,
    normalized: bool = False,
    reduction: str = "mean",
) -> Array:
    r"""Return how many negatives carry the gradient of a row.

    .. math:: \mathrm{ESS}_i = \frac{1}{\sum_{j \in Q(i)} W_{ij}^2}, \qquad
        W_{ij} = \frac{e^{g_{ij}}}{\sum_{l \in Q(i)} e^{g_{il}}},

    between 1 (one negative has all the weight) and the number of negatives (all alike).

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, temperature included.
    positives : array of int (N,) or of bool (N, K), optional
        The positives of each row; the diagonal by default, for which K must be at least N.
    mask : array of bool, shape (N, K), optional
        Pairs that take part; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    normalized : bool, default: False
        Whether to divide by the number of negatives of the row.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a negative, weighted sum, or the weighted values of the rows, 0 for rows
        without negatives.

    Returns
    -------
    array
        Effective sample size (a count; with `normalized` a fraction): 0-d, or shape (N,) for reduction "none", of the
        library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit.

    References
    ----------
    Chen et al. (2021), "Simpler, Faster, Stronger: Breaking The log-K Curse On Contrastive Learners With FlatNCE",
    arXiv:2107.01152.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.diagnostics.effective_sample_size(np.eye(5))
    array(4.)
    """
    one_of("reduction", reduction, REDUCTIONS)
    xp, scores, pairing, mask, weights = enter_scores(scores, positives, mask, weights)
    dtype = scores.dtype
    scores = accumulate(xp, scores)
    weights = row_weights(xp, weights, scores.shape[0], scores)
    _, negatives = whole_tile(xp, pairing, scores, mask)
    sums = exp_sum(xp, scores, negatives)
    exponentials = shifted_exp(xp, scores, negatives, sums.top)
    squares = xp.sum(exponentials * exponentials, axis=1)
    counted = squares != 0
    size = sums.total * sums.total / xp.where(counted, squares, xp.ones_like(squares))
    if normalized:
        number = xp.sum(xp.astype(xp.logical_and(negatives, scores != -math.inf), scores.dtype), axis=1)
        size = size / xp.where(number > 0, number, xp.ones_like(number))
    return finish(xp, reduce_values(size, counted, weights, reduction), dtype, reduction)
