"""Bounds on mutual information, from a score matrix with the positives on the diagonal, in nats.

Rows are K samples of one variable, columns N ≥ K samples of the other; columns beyond the rows are further negatives.
Each docstring says whether the number is a lower bound, an upper bound or neither.
"""

from __future__ import annotations

import math

from ._contrast import contrast_scores, finish
from ._execution import whole_tile
from ._namespace import enter, is_array
from ._numerics import accumulate, softplus, sum_to_scalar
from ._protocol import Array, Namespace
from ._statistics import dense_sums, row_statistics
from ._validate import floating, same_shape
from .from_scores import enter_scores
from .objectives import info_nce as info_nce_objective
from .pairings import diagonal

__all__ = ["dual", "dual_critic", "info_nce", "log_n_ceiling"]


def info_nce(scores: Array, /) -> Array:
    r"""Return the InfoNCE (CPC) bound: a lower bound for any scores, never above log N.

    .. math:: \hat I = \log N - \frac1K \sum_i \log(1 + e^{u_i})
        = \frac1K \sum_i \Big(g_{ii} - \mathrm{lse}_j\, g_{ij}\Big) + \log N,

    the positive included in the sum over the N columns.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal.

    Returns
    -------
    array
        Bound in nats, 0-d, of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with at least as many columns as rows.

    See Also
    --------
    log_n_ceiling : The most that this bound can say.

    References
    ----------
    van den Oord, Li and Vinyals (2018), "Representation Learning with Contrastive Predictive Coding",
    arXiv:1807.03748, appendix A.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.info_nce(8.0 * np.eye(4))
    array(1.38528...)
    """
    xp, scores, dtype = _enter(scores)
    loss = contrast_scores(
        xp,
        scores,
        objective=info_nce_objective(),
        pairing=diagonal(),
        mask=None,
        weights=None,
        reduction="none",
    )
    return _mean(xp, _log(xp, scores.shape[1], loss) - loss, dtype)


def dual_critic(scores: Array, /, *, include_positive: bool = False) -> Array:
    r"""Return the best dual critic of each row in closed form, for `dual`.

    .. math:: \hat u_i = \mathrm{lse}_{j \ne i}\, g_{ij} - g_{ii} - \log(N - 1), \qquad
        \hat u^\oplus_i = \mathrm{lse}_{j}\, g_{ij} - g_{ii} - \log N.

    Plugged into `dual`, :math:`\hat u` gives the FlatNCE value, which is **not** a bound, since it uses the sampled
    negatives; :math:`\hat u^\oplus` gives the InfoNCE bound: its negated mean is that bound.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal.
    include_positive : bool, default: False
        Whether to return :math:`\hat u^\oplus`.

    Returns
    -------
    array
        Critic of each row in nats, shape (K,), of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with at least as many columns as rows, and at least two.

    References
    ----------
    Chen et al. (2021), "Simpler, Faster, Stronger: Breaking The log-K Curse On Contrastive Learners With FlatNCE",
    arXiv:2107.01152, lemma 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.dual_critic(8.0 * np.eye(4))
    array([-8., -8., -8., -8.])
    """
    xp, scores, dtype = _enter(scores, least=2)
    log_odds = _log_odds(xp, scores)
    n_columns = scores.shape[1]
    if include_positive:
        critic = softplus(xp, log_odds) - _log(xp, n_columns, log_odds)
    else:
        critic = log_odds - _log(xp, n_columns - 1, log_odds)
    return finish(xp, critic, dtype, "none")


def dual(scores: Array, u: Array, /) -> Array:
    r"""Return the dual bound of FlatNCE: a lower bound **only if `u` does not use the sampled negatives**.

    .. math:: D(g, u) = \frac1K \sum_i \Big(1 - u_i - \frac{1}{N - 1} \sum_{j \ne i} e^{g_{ij} - g_{ii} - u_i}\Big).

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal.
    u : array, shape (K,)
        Dual critic of each row, as learned, or from `dual_critic`.

    Returns
    -------
    array
        Bound in nats, 0-d, of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument is not a real floating-point array, or of another library or dtype.
    ValueError
        If `scores` is not a matrix with at least as many columns as rows, and at least two, or `u` does not fit.

    References
    ----------
    Chen et al. (2021), "Simpler, Faster, Stronger: Breaking The log-K Curse On Contrastive Learners With FlatNCE",
    arXiv:2107.01152, lemma 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> scores = 8.0 * np.eye(4)
    >>> pnce.bounds.dual(scores, np.full(4, -1.0))
    array(1.99908...)
    """
    _, (scores, u) = enter(scores=scores, u=u)
    xp, scores, dtype = _enter(scores, least=2)
    floating(xp, scores=finish(xp, scores, dtype, "none"), u=u)
    same_shape("u", u, (scores.shape[0],))
    u = accumulate(xp, u)
    ratio = xp.exp(_log_odds(xp, scores) - _log(xp, scores.shape[1] - 1, u) - u)
    return _mean(xp, 1.0 - u - ratio, dtype)


def log_n_ceiling(scores: Array | int, /) -> Array | float:
    r"""Return the ceiling of the InfoNCE bound: :math:`\log N`.

    Parameters
    ----------
    scores : array, shape (K, N), or int
        Score matrix, or its number of columns N, the positive included.

    Returns
    -------
    array or float
        Ceiling in nats: 0-d, of the library, dtype and device of `scores`; a float for an integer.

    Raises
    ------
    TypeError
        If `scores` is neither an integer nor a real floating-point array.
    ValueError
        If `scores` is not a matrix with at least as many columns as rows, or an integer below 1.

    References
    ----------
    van den Oord, Li and Vinyals (2018), "Representation Learning with Contrastive Predictive Coding",
    arXiv:1807.03748, appendix A.

    Examples
    --------
    >>> import portable_nce as pnce
    >>> round(pnce.bounds.log_n_ceiling(512), 4)
    6.2383
    """
    if isinstance(scores, int) and not isinstance(scores, bool):
        if scores < 1:
            message = f"scores: expected at least one column, got {scores}"
            raise ValueError(message)
        return math.log(scores)
    if not is_array(scores):
        message = f"scores: expected an array or an integer, got {type(scores).__name__}"
        raise TypeError(message)
    xp, matrix, dtype = _enter(scores)
    return finish(xp, _log(xp, matrix.shape[1], matrix[:1, 0]), dtype, "mean")


def _enter(scores: Array, least: int = 1) -> tuple[Namespace, Array, object]:
    """The checked scores in the dtype to compute in, and their own dtype."""
    xp, scores, _, _, _ = enter_scores(scores, None, None, None)
    if scores.shape[1] < least:
        message = f"scores: expected at least {least} columns, got shape {tuple(scores.shape)}: there is no negative"
        raise ValueError(message)
    return xp, accumulate(xp, scores), scores.dtype


def _log_odds(xp: Namespace, scores: Array) -> Array:
    positives, negatives = whole_tile(xp, diagonal(), scores, None)
    return row_statistics(dense_sums(scores, positives, negatives, single=True)).log_odds


def _log(xp: Namespace, number: int, like: Array) -> Array:
    """The logarithm of an integer in the precision of `like`, which may be more than a Python float's."""
    return xp.log(xp.zeros_like(like) + number)


def _mean(xp: Namespace, rows: Array, dtype: object) -> Array:
    return finish(xp, sum_to_scalar(xp, rows) / rows.shape[0], dtype, "mean")
