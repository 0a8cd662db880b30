"""The losses of a score matrix: N rows against K columns, in whatever way the scores were made.

`positives` says which columns belong to each row: None the diagonal, an integer array (N,) one column each, a boolean
array (N, K) any number. `mask` says which pairs take part.
"""

from __future__ import annotations

from ._contrast import contrast_scores
from ._namespace import enter
from ._protocol import Array, Namespace
from ._validate import boolean, floating, integer, shape_of
from .objectives import Objective
from .objectives import flat_nce as flat_nce_objective
from .objectives import info_nce as info_nce_objective
from .pairings import Pairing, diagonal, explicit, index

__all__ = ["dcl", "flat_nce", "info_nce"]


def info_nce(
    scores: Array,
    /,
    *,
    positives: Array | None = None,
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    multi_positive: str = "each",
) -> Array:
    r"""Return the InfoNCE loss of a score matrix.

    .. math:: \ell_i = \log(1 + e^{u_i}), \qquad u_i = \mathrm{lse}_{j \in Q(i)}\, g_{ij} - g_{i p(i)}

    which is the cross-entropy of row i with class p(i). A row without negatives is worth 0.

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
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive, weighted sum, or the weighted losses of the rows.
    multi_positive : {"each", "pooled"}, default: "each"
        What several positives mean; see `portable_nce.objectives.info_nce`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit.

    References
    ----------
    van den Oord, Li and Vinyals (2018), "Representation Learning with Contrastive Predictive Coding",
    arXiv:1807.03748, equation 4.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.from_scores.info_nce(np.asarray([[40.0, 0.0], [0.0, 40.0]]))
    array(4.248354...e-18)
    """
    objective = info_nce_objective(multi_positive=multi_positive)
    return _loss(scores, objective, positives=positives, mask=mask, weights=weights, reduction=reduction)


def flat_nce(
    scores: Array,
    /,
    *,
    include_positive: bool = False,
    form: str = "log",
    positives: Array | None = None,
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    multi_positive: str = "each",
) -> Array:
    r"""Return the FlatNCE loss of a score matrix: the log-odds of the negatives.

    .. math:: \ell_i = u_i = \mathrm{lse}_{j \in Q(i)}\, g_{ij} - g_{i p(i)}

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, temperature included.
    include_positive : bool, default: False
        Whether the positive stands in the denominator (FlatNCE⊕, whose gradient is InfoNCE's).
    form : {"log", "detach"}, default: "log"
        ``"log"`` is :math:`u_i`, with `include_positive` :math:`\log(1 + e^{u_i})`. ``"detach"`` is
        :math:`e^{u_i - \mathrm{sg}\,u_i}`, with `include_positive`
        :math:`(1 + e^{u_i}) / (1 + \mathrm{sg}\,e^{u_i})`: always 1, with the same gradient.
    positives : array of int (N,) or of bool (N, K), optional
        The positives of each row; the diagonal by default, for which K must be at least N.
    mask : array of bool, shape (N, K), optional
        Pairs that take part; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive and a negative, weighted sum, or the weighted losses.
    multi_positive : {"each", "pooled"}, default: "each"
        What several positives mean; see `portable_nce.objectives.flat_nce`.

    Returns
    -------
    array
        Loss in nats (may be negative): 0-d, or shape (N,) for reduction "none", of the library, dtype and device of
        `scores`.

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
    >>> pnce.from_scores.flat_nce(np.asarray([[40.0, 0.0], [0.0, 40.0]]))
    array(-40.)
    """
    objective = flat_nce_objective(include_positive=include_positive, form=form, multi_positive=multi_positive)
    return _loss(scores, objective, positives=positives, mask=mask, weights=weights, reduction=reduction)


def dcl(
    scores: Array,
    /,
    *,
    positives: Array | None = None,
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    multi_positive: str = "each",
) -> Array:
    r"""Return the decoupled contrastive loss of a score matrix: `flat_nce` without the positive, in the log form.

    .. math:: \ell_i = -g_{i p(i)} + \mathrm{lse}_{j \in Q(i)}\, g_{ij}

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
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive and a negative, weighted sum, or the weighted losses.
    multi_positive : {"each", "pooled"}, default: "each"
        What several positives mean; see `portable_nce.objectives.flat_nce`.

    Returns
    -------
    array
        Loss in nats (may be negative): 0-d, or shape (N,) for reduction "none", of the library, dtype and device of
        `scores`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit.

    References
    ----------
    Yeh et al. (2022), "Decoupled Contrastive Learning", arXiv:2110.06848.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.from_scores.dcl(np.asarray([[2.0, 0.0], [0.0, 1.0]]))
    array(-1.5)
    """
    objective = flat_nce_objective(multi_positive=multi_positive)
    return _loss(scores, objective, positives=positives, mask=mask, weights=weights, reduction=reduction)


def _loss(
    scores: Array,
    objective: Objective,
    *,
    positives: Array | None,
    mask: Array | None,
    weights: Array | None,
    reduction: str,
) -> Array:
    xp, scores, pairing, mask, weights = enter_scores(scores, positives, mask, weights)
    return contrast_scores(
        xp, scores, objective=objective, pairing=pairing, mask=mask, weights=weights, reduction=reduction
    )


def enter_scores(
    scores: Array, positives: Array | None, mask: Array | None, weights: Array | None
) -> tuple[Namespace, Array, Pairing, Array | None, Array | None]:
    """The checked arguments of a function of a score matrix, with the pairing that `positives` means."""
    xp, (scores, positives, mask, weights) = enter(scores=scores, positives=positives, mask=mask, weights=weights)
    floating(xp, scores=scores)
    shape = shape_of("scores", scores, "(N, K)")
    pairing = pairing_of(xp, positives, shape)
    if positives is None and shape[0] > shape[1]:
        message = (
            f"scores: expected at least as many columns as rows, with the positives on the diagonal, got shape "
            f"{shape}; transpose, or name the positives"
        )
        raise ValueError(message)
    if mask is not None:
        boolean(xp, "mask", mask, shape)
    return xp, scores, pairing, mask, weights


def pairing_of(xp: Namespace, positives: Array | None, shape: tuple[int, ...]) -> Pairing:
    """The pairing that a `positives` argument means, for a score matrix of the given shape."""
    if positives is None:
        return diagonal()
    if xp.isdtype(positives.dtype, "bool"):
        boolean(xp, "positives", positives, shape)
        return explicit(positives)
    if not xp.isdtype(positives.dtype, "integral"):
        message = f"positives: expected integers (N,) or booleans (N, K), got dtype {positives.dtype}"
        raise TypeError(message)
    integer(xp, "positives", positives, shape[:1])
    return index(positives)
