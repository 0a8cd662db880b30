"""Losses of a score matrix of N rows and K columns.

`positives` gives the positive columns of each row: None the diagonal, an integer array (N,) one column each, a boolean
array (N, K) any number. `mask` gives the pairs to include.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from . import objectives
from ._call import contrast_scores, loss_of_scores
from ._core.autodiff import stop_gradient
from ._core.calls import programmed
from ._core.checks import (
    check_choice,
    check_floating,
    check_integers,
    check_mask,
    check_pair_weights,
    check_shape,
    least,
    readable_entry,
    refuses_other_names,
    row_weights,
    shape_of,
    temperature_of,
    warn_of_negative,
)
from ._core.left_out import LeftOut, left_out
from ._core.logsumexp import ExpSum
from ._core.namespace import common_namespace, device_of, is_array, is_number, namespace_of
from ._core.numerics import as_scores, sum_to_scalar, upcast
from ._core.pair_sums import SQUARE, PairSets, PairTerm, exp_sum, pair_sums
from ._core.protocol import Array, Namespace
from ._core.reduction import REDUCTIONS, Reduction, finish
from ._core.registry import adapter_of
from ._core.types import (
    AnyArray,
    ArrayOf,
    ArrayT,
    Averaging,
    FlatForm,
    Mining,
    MultiPositive,
    ReductionName,
    RelicDirection,
    StoppedSide,
    TripletForm,
)
from ._execution.live import counted_by, zeroed
from ._execution.matrix import matrix_of_scores
from ._losses.graded import enter_graded, loss_of_graded
from .pairings import Pairing, of_positives, with_pair_weights

__all__ = [
    "clip",
    "contrastive",
    "cosent",
    "dcl",
    "dclw",
    "flat_nce",
    "info_nce",
    "logistic",
    "margin_mse",
    "nca",
    "relic",
    "supcon",
    "triplet",
]

__dir__ = __all__.copy  # what completion offers

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = refuses_other_names(__name__)


@programmed
def info_nce(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    pair_weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    multi_positive: MultiPositive = "each",
) -> ArrayT:
    r"""Return the InfoNCE loss of a score matrix.

    .. math:: \ell_i = \log(1 + e^{u_i}), \qquad u_i = \mathrm{lse}_{j \in Q(i)}\, g_{ij} - g_{i p(i)}

    the cross-entropy of row i with class p(i). A row without negatives has loss 0; with several positives and
    ``multi_positive="each"``, it is :math:`\mathrm{lse}_{P(i)}\, g_{ij} - \mathrm{mean}_{P(i)}\, g_{ij} \ge \log
    |P(i)|`.

    With pair weights w, a negative counts :math:`w_{ij}` times, and positives are weighted in their mean:

    .. math:: \ell_i = -\sum_{p \in P(i)} \frac{w_{ip}}{\sum_{k \in P(i)} w_{ik}} \log
        \frac{e^{g_{ip}}}{\sum_{j \in P(i)} e^{g_{ij}} + \sum_{j \in Q(i)} w_{ij}\, e^{g_{ij}}}

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, temperature included. A score of -inf masks its pair, positives included; a row without another
        positive does not count.
    positives : array of int (N,), of bool (N, K) or of float (N, K), optional
        Positives of each row, or their weights (soft targets); the diagonal by default, which requires K ≥ N.
        Out-of-range indices raise for NumPy and eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    pair_weights : array of float, shape (N, K), optional
        Weights w ≥ 0 of the pairs, without gradient; 1 by default. Weight 0 leaves a pair out, as a mask does.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive (0 if none has), weighted sum, or the weighted losses of the
        rows.
    multi_positive : {"each", "pooled", "separate"}, default: "each"
        Treatment of several positives; see `portable_nce.objectives.info_nce`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    van den Oord, Li and Vinyals (2018), "Representation Learning with Contrastive Predictive Coding",
    arXiv:1807.03748, equation 4.

    Examples
    --------
    PyTorch, with the scores of 64 queries against 512 documents, and several relevant documents per query:

    >>> import torch
    >>> import portable_nce as pnce
    >>> query, document = torch.randn(64, 128, requires_grad=True), torch.randn(512, 128)
    >>> scores = query @ document.T / 128**0.5
    >>> relevant = torch.rand(64, 512) < 0.02
    >>> loss = pnce.from_scores.info_nce(scores, positives=relevant, multi_positive="pooled")
    >>> loss.backward()
    >>> query.grad.shape
    torch.Size([64, 128])

    NumPy; with positives ahead by 40 nats, the loss is still exact:

    >>> import numpy as np
    >>> value, gradient = pnce.value_and_grad(pnce.from_scores.info_nce)(40.0 * np.eye(256))
    >>> value, gradient.shape
    (array(1.08333...e-15), (256, 256))
    """
    objective = objectives.info_nce(multi_positive=multi_positive)
    return _loss(scores, objective, reduction, (positives, mask, weights, pair_weights))


@programmed
def flat_nce(
    scores: ArrayOf[ArrayT],
    /,
    *,
    include_positive: bool = False,
    form: FlatForm = "log",
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    pair_weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    multi_positive: MultiPositive = "each",
) -> ArrayT:
    r"""Return the FlatNCE loss of a score matrix: the log-odds of the negatives.

    .. math:: \ell_i = u_i = \mathrm{lse}_{j \in Q(i)}\, g_{ij} - g_{i p(i)}

    With pair weights w, :math:`\ell_i = \log \sum_{j \in Q(i)} w_{ij}\, e^{g_{ij}} - g_{i p(i)}`.

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, temperature included. A score of -inf masks its pair, positives included; a row without another
        positive does not count.
    include_positive : bool, default: False
        Whether the positive is in the denominator (FlatNCE⊕, whose gradient is InfoNCE's).
    form : {"log", "detach"}, default: "log"
        ``"log"`` is :math:`u_i`, with `include_positive` :math:`\log(1 + e^{u_i})`. ``"detach"`` is
        :math:`e^{u_i - \mathrm{sg}\,u_i}`, with `include_positive`
        :math:`(1 + e^{u_i}) / (1 + \mathrm{sg}\,e^{u_i})`: always 1, with the same gradient.
    positives : array of int (N,), of bool (N, K) or of float (N, K), optional
        Positives of each row, or their weights (soft targets); the diagonal by default, which requires K ≥ N.
        Out-of-range indices raise for NumPy and eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    pair_weights : array of float, shape (N, K), optional
        Weights w ≥ 0 of the pairs, without gradient; 1 by default. Weight 0 leaves a pair out, as a mask does.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive and a negative (0 if none has), weighted sum, or the weighted
        losses.
    multi_positive : {"each", "pooled", "separate"}, default: "each"
        Treatment of several positives; see `portable_nce.objectives.flat_nce`.

    Returns
    -------
    array
        Loss in nats (may be negative): 0-d, or shape (N,) for reduction "none", of the library, dtype and device of
        `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

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
    objective = objectives.flat_nce(include_positive=include_positive, form=form, multi_positive=multi_positive)
    return _loss(scores, objective, reduction, (positives, mask, weights, pair_weights))


@programmed
def dcl(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    pair_weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    multi_positive: MultiPositive = "each",
) -> ArrayT:
    r"""Return the decoupled contrastive loss of a score matrix: `flat_nce` without the positive, in the log form.

    .. math:: \ell_i = -g_{i p(i)} + \mathrm{lse}_{j \in Q(i)}\, g_{ij}

    With pair weights w, :math:`\ell_i = -g_{i p(i)} + \log \sum_{j \in Q(i)} w_{ij}\, e^{g_{ij}}`.

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, temperature included. A score of -inf masks its pair, positives included; a row without another
        positive does not count.
    positives : array of int (N,), of bool (N, K) or of float (N, K), optional
        Positives of each row, or their weights (soft targets); the diagonal by default, which requires K ≥ N.
        Out-of-range indices raise for NumPy and eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    pair_weights : array of float, shape (N, K), optional
        Weights w ≥ 0 of the pairs, without gradient; 1 by default. Weight 0 leaves a pair out, as a mask does.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive and a negative (0 if none has), weighted sum, or the weighted
        losses.
    multi_positive : {"each", "pooled", "separate"}, default: "each"
        Treatment of several positives; see `portable_nce.objectives.flat_nce`.

    Returns
    -------
    array
        Loss in nats (may be negative): 0-d, or shape (N,) for reduction "none", of the library, dtype and device of
        `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

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
    objective = objectives.flat_nce(multi_positive=multi_positive)
    return _loss(scores, objective, reduction, (positives, mask, weights, pair_weights))


@programmed
def cosent(
    scores: ArrayOf[ArrayT],
    grades: AnyArray,
    /,
    *,
    scale: float | AnyArray = 20.0,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
) -> ArrayT:
    r"""Return the CoSENT loss of given similarities: pairs with a higher grade should be more similar.

    .. math:: \ell = \log\Big(1 + \sum_{i, j :\, l_i > l_j} w_i w_j\, e^{\alpha (s_j - s_i)}\Big)

    Equal grades are not compared; if all grades are equal, loss and gradient are 0. Sorting by grade makes it
    O(N log N).

    Parameters
    ----------
    scores : array, shape (N,)
        Similarities s of N pairs. A similarity of -inf masks its pair.
    grades : array of real numbers, shape (N,)
        Target similarity of each pair, in any unit; only the order matters. No gradient. A pair whose grade is NaN is
        ignored.
    scale : float or array of one entry, default: 20.0
        Scale α > 0 of the similarities, the inverse of a temperature; differentiable if an array.
    mask : array of bool, shape (N,), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Multiplicity w ≥ 0 of each pair: weight 2 counts the pair twice, weight 0 ignores it.

    Returns
    -------
    array
        Loss in nats: 0-d, of the library, dtype and device of `scores`. It is one logarithm for the whole batch, so
        there is no `reduction`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    portable_nce.cosent : From embeddings.

    References
    ----------
    Huang et al. (2024), "CoSENT: Consistent Sentence Embedding via Similarity Ranking", IEEE/ACM Transactions on Audio,
    Speech, and Language Processing, doi:10.1109/TASLP.2024.3402087.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.from_scores.cosent(np.asarray([0.9, 0.2, 0.4]), np.asarray([5, 1, 3]))
    array(0.018195...)
    """
    given, graded = enter_graded({"scores": scores}, "(N)", grades=grades, scale=scale, mask=mask, weights=weights)
    return finish(given.xp, loss_of_graded(given.xp, given.arrays[0], graded), given.dtype, "mean")


@programmed
def supcon(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    pair_weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    multi_positive: MultiPositive = "each",
) -> ArrayT:
    r"""Return the supervised contrastive loss of a score matrix: `info_nce` with several positives.

    .. math:: \ell_i = \frac{-1}{|P(i)|} \sum_{p \in P(i)}
        \log \frac{e^{g_{ip}}}{\sum_{j \in P(i) \cup Q(i)} e^{g_{ij}}}

    The positives of a row compete with each other: without negatives the loss is at least :math:`\log |P(i)|`.

    The formula with pair weights is that of `info_nce`.

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, temperature included. A score of -inf masks its pair, positives included; a row without another
        positive does not count.
    positives : array of int (N,), of bool (N, K) or of float (N, K), optional
        Positives of each row, or their weights (soft targets); the diagonal by default, which requires K ≥ N.
        Out-of-range indices raise for NumPy and eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default. For a matrix of embeddings with themselves, set its diagonal to False.
    weights : array, shape (N,), optional
        Weights of the rows.
    pair_weights : array of float, shape (N, K), optional
        Weights w ≥ 0 of the pairs, without gradient; 1 by default. Weight 0 leaves a pair out, as a mask does.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive (0 if none has), weighted sum, or the weighted losses of the
        rows.
    multi_positive : {"each", "pooled", "separate"}, default: "each"
        Treatment of several positives; see `portable_nce.objectives.info_nce`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Khosla et al. (2020), "Supervised Contrastive Learning", arXiv:2004.11362, section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> scores = np.asarray([[0.0, 2.0, 0.0], [2.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    >>> labels = np.asarray([0, 0, 1])
    >>> same = labels[:, None] == labels[None, :]
    >>> pnce.from_scores.supcon(scores, positives=same, mask=~np.eye(3, dtype=bool))
    array(0.22009...)
    """
    objective = objectives.info_nce(multi_positive=multi_positive)
    return _loss(scores, objective, reduction, (positives, mask, weights, pair_weights))


@programmed
def nca(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    pair_weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the loss of neighbourhood components analysis, also the soft nearest neighbour loss, of a score matrix.

    .. math:: \ell_i = -\log \frac{\sum_{j \in P(i)} e^{g_{ij}}}{\sum_{j \in P(i) \cup Q(i)} e^{g_{ij}}}

    With pair weights w, a negative counts :math:`w_{ij}` times, and positives of any weight above 0 once:

    .. math:: \ell_i = -\log \frac{\sum_{j \in P(i)} e^{g_{ij}}}
        {\sum_{j \in P(i)} e^{g_{ij}} + \sum_{j \in Q(i)} w_{ij}\, e^{g_{ij}}}

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, such as minus squared distances, temperature included. A score of -inf masks its pair, positives
        included; a row without another positive does not count.
    positives : array of int (N,) or of bool (N, K), optional
        Positives of each row; the diagonal by default, which requires K ≥ N. Out-of-range indices raise for NumPy and
        eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    pair_weights : array of float, shape (N, K), optional
        Weights w ≥ 0 of the pairs, without gradient; 1 by default. Weight 0 leaves a pair out, as a mask does.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive (0 if none has), weighted sum, or the weighted losses of the
        rows.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Goldberger, Roweis, Hinton and Salakhutdinov (2004), "Neighbourhood Components Analysis", NeurIPS 17.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> positives = np.asarray([[True, True, False], [False, True, True]])
    >>> pnce.from_scores.nca(np.asarray([[0.0, 1.0, 2.0], [1.0, 0.0, 2.0]]), positives=positives)
    array(0.68751...)
    """
    objective = objectives.info_nce(multi_positive="pooled")
    return _loss(scores, objective, reduction, (positives, mask, weights, pair_weights))


@programmed
def dclw(
    scores: ArrayOf[ArrayT],
    /,
    *,
    temperature: float | AnyArray = 1.0,
    sigma: float | AnyArray = 0.5,
    detach_weights: bool = False,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    pair_weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the weighted decoupled contrastive loss of a score matrix.

    .. math:: \ell_i = -w_i\, g_{i p(i)} + \mathrm{lse}_{j \in Q(i)}\, g_{ij}, \qquad
        w_i = 2 - n\, \mathrm{softmax}_i(\tau g_{i p(i)} / \sigma)

    over the n rows that count. With several positives, the log-sum-exp of their scores replaces :math:`g_{i p(i)}`.

    With pair weights, the log-sum-exp over negatives is :math:`\log \sum_{j \in Q(i)} w_{ij}\, e^{g_{ij}}`.

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, temperature included. A score of -inf masks its pair, positives included; a row without another
        positive does not count.
    temperature : float, or array of one entry or of shape (N,), default: 1.0
        Temperature τ > 0 by which the scores were divided, shared or one per row; differentiable if an array.
    sigma : float or array of one entry, default: 0.5
        Concentration σ > 0 of the weights.
    detach_weights : bool, default: False
        Whether the weights are constants, as in lightly (not in the authors' code).
    positives : array of int (N,) or of bool (N, K), optional
        Positives of each row; the diagonal by default, which requires K ≥ N. Out-of-range indices raise for NumPy and
        eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    pair_weights : array of float, shape (N, K), optional
        Weights w ≥ 0 of the pairs, without gradient; 1 by default. Weight 0 leaves a pair out, as a mask does.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive and a negative (0 if none has), weighted sum, or the weighted
        losses.

    Returns
    -------
    array
        Loss in nats (may be negative): 0-d, or shape (N,) for reduction "none", of the library, dtype and device of
        `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Yeh et al. (2022), "Decoupled Contrastive Learning", arXiv:2110.06848, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.from_scores.dclw(np.asarray([[2.0, 0.0], [0.0, 1.0]]))
    array(-1.11920...)
    """
    xp, scores, temperature = enter_parameter(scores, temperature=temperature)
    check_floating(xp, scores=scores)
    n_rows, _ = shape_of("scores", scores, "(N, K)")
    temperature = temperature_of(xp, temperature, n_rows, upcast(xp, scores))
    objective = objectives.dclw(temperature=temperature, sigma=sigma, detach_weights=detach_weights)
    return _loss(scores, objective, reduction, (positives, mask, weights, pair_weights))


@programmed
def clip(
    scores: ArrayOf[ArrayT],
    /,
    *,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    pair_weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the CLIP loss of a score matrix: the mean of InfoNCE over the rows and over the columns.

    .. math:: \tfrac12 \Big(\frac1N \sum_i -\log \mathrm{softmax}_j(g_{ij})_i
        + \frac1N \sum_{j \le N} -\log \mathrm{softmax}_i(g_{ij})_j\Big)

    With pair weights w, both softmaxes have :math:`w_{ij}\, e^{g_{ij}}` in place of :math:`e^{g_{ij}}` for i ≠ j.

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, scale included; the positives are on the diagonal, and columns beyond N are negatives of all rows. A
        score of -inf masks its pair; a masked positive counts in neither direction.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the pairs.
    pair_weights : array of float, shape (N, K), optional
        Weights w ≥ 0 of the pairs, without gradient; 1 by default. Weight 0 leaves a pair out, as a mask does.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean, weighted sum, or the weighted losses of the pairs; a loss is the mean of both directions. "none"
        needs as many columns as rows.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Radford et al. (2021), "Learning Transferable Visual Models From Natural Language Supervision",
    arXiv:2103.00020, figure 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.from_scores.clip(np.asarray([[4.0, 1.0], [0.0, 3.0]]))
    array(0.06...)
    """
    _, scores, pairing, mask, weights = enter_scores(scores, None, mask, weights, pair_weights)
    return contrast_scores(
        scores, objectives.info_nce(), pairing, Reduction(reduction, weights), mask=mask, symmetric=True
    )


@programmed
def relic(
    scores: ArrayOf[ArrayT],
    /,
    *,
    alpha: float | AnyArray = 1.0,
    direction: RelicDirection = "a_to_b",
    stop_gradient: StoppedSide | None = None,
    symmetric: bool = False,
    include_positive: bool = True,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    pair_weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the RELIC loss of a score matrix: InfoNCE plus the divergence of the rows' and columns' distributions.

    .. math:: \ell_i = -\log p^a_{ii} + \alpha\, \mathrm{KL}(p^a_i \,\Vert\, p^b_i), \qquad
        p^a_{ij} = \mathrm{softmax}_j(g_{ij}), \quad p^b_{ij} = \mathrm{softmax}_j(g_{ji})

    With pair weights w, both distributions have :math:`w_{ij}\, e^{g}` in place of :math:`e^{g}` for i ≠ j.

    Parameters
    ----------
    scores : array, shape (N, N)
        Scores g, temperature included; the positives are on the diagonal. A score of -inf masks its pair and the
        transposed pair.
    alpha : float or array of one entry, default: 1.0
        Weight α of the divergence.
    direction : {"a_to_b", "b_to_a"}, default: "a_to_b"
        ``"b_to_a"`` takes :math:`\mathrm{KL}(p^b_i \,\Vert\, p^a_i)`.
    stop_gradient : {None, "first", "second"}, default: None
        Distribution of the divergence that is treated as a constant.
    symmetric : bool, default: False
        Whether to average the losses of the scores and of their transpose.
    include_positive : bool, default: True
        Whether the divergence is over all columns, or over the negatives alone (CO2).
    mask : array of bool, shape (N, N), optional
        Pairs to include; all by default. Entry (i, j) includes sample j in both distributions of row i.
    weights : array, shape (N,), optional
        Weights of the rows.
    pair_weights : array of float, shape (N, N), optional
        Weights w ≥ 0 of the pairs, without gradient; 1 by default. Weight 0 leaves a pair out, as a mask does.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a positive (0 if none has), weighted sum, or the weighted losses of the
        rows.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Mitrovic, McWilliams, Walker, Buesing and Blundell (2021), "Representation Learning via Invariant Causal
    Mechanisms", arXiv:2010.07922, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.from_scores.relic(np.asarray([[4.0, 1.0], [0.0, 3.0]]))
    array(0.07253...)
    """
    objective = objectives.relic(
        alpha=alpha,
        direction=direction,
        stop_gradient=stop_gradient,
        symmetric=symmetric,
        include_positive=include_positive,
    )
    xp, matrix, pairing, mask, weights = enter_scores(scores, None, mask, weights, pair_weights)
    check_square(matrix)
    if not _lack_masks(matrix):
        live = matrix != -math.inf
        live = xp.logical_and(live, adapter_of(live).turned(live))
        mask = live if mask is None else xp.logical_and(mask, live)
    return contrast_scores(matrix, objective, pairing, Reduction(reduction, weights), mask=mask)


@programmed
def logistic(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    pair_weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the logistic loss of a score matrix (SigLIP): an independent binary classification of every pair.

    .. math:: \ell_i = \sum_{j \in P(i)} \log(1 + e^{-g_{ij}}) + \sum_{j \in Q(i)} \log(1 + e^{g_{ij}})

    With pair weights w, each term is multiplied by :math:`w_{ij}`.

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, scale and bias included. A score of -inf masks its pair, positives included.
    positives : array of int (N,), of bool (N, K) or of float (N, K), optional
        Positives of each row, or the degrees in [0, 1] to which pairs are positive (see `portable_nce.pairings.soft`);
        the diagonal by default, which requires K ≥ N. Out-of-range indices raise for NumPy and eager PyTorch CPU
        tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    pair_weights : array of float, shape (N, K), optional
        Weights w ≥ 0 of the pairs, without gradient; 1 by default. Weight 0 leaves a pair out, as a mask does.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that have a pair (the sum over all pairs divided by their number, N without a mask),
        weighted sum, or the weighted losses of the rows.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Zhai, Mustafa, Kolesnikov and Beyer (2023), "Sigmoid Loss for Language Image Pre-Training", arXiv:2303.15343,
    equation 1.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.from_scores.logistic(np.asarray([[4.0, -2.0], [-3.0, 2.0]]))
    array(0.16...)
    """
    objective = objectives.logistic()
    return _loss(scores, objective, reduction, (positives, mask, weights, pair_weights))


@programmed
def contrastive(
    scores: ArrayOf[ArrayT],
    /,
    *,
    margin: float | AnyArray = 1.0,
    positive_margin: float | AnyArray = 0.0,
    positive_power: int = 2,
    negative_power: int = 2,
    average: Averaging = "all",
    balance: bool = False,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    pair_weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the contrastive loss with a margin of a matrix of distances.

    .. math:: \ell_i = \sum_{j \in P(i)} \max(d_{ij} - m^+, 0)^a + \sum_{j \in Q(i)} \max(m - d_{ij}, 0)^b,
        \qquad d_{ij} = -g_{ij}

    With pair weights w, each term is multiplied by :math:`w_{ij}`, and the mean divides by the sum of the weights.

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, which are minus the distances d. A score of -inf masks its pair, positives included: the pair is left
        out of the sum and of the number of pairs.
    margin : float or array of one entry, default: 1.0
        Margin m; negatives farther apart have no loss.
    positive_margin : float or array of one entry, default: 0.0
        Margin m⁺; positives closer than this have no loss.
    positive_power, negative_power : {1, 2}, default: 2
        Powers a and b.
    average : {"all", "nonzero"}, default: "all"
        Whether the mean is over all pairs, or over those whose loss is not 0.
    balance : bool, default: False
        Whether the mean is the sum of the mean over positives and the mean over negatives.
    positives : array of int (N,), of bool (N, K) or of float (N, K), optional
        Positives of each row, or the degrees in [0, 1] to which pairs are positive (see `portable_nce.pairings.soft`);
        the diagonal by default, which requires K ≥ N. Out-of-range indices raise for NumPy and eager PyTorch CPU
        tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    pair_weights : array of float, shape (N, K), optional
        Weights w ≥ 0 of the pairs, without gradient; 1 by default. Weight 0 leaves a pair out, as a mask does.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the pairs (0 if there are none), weighted sum, or the weighted sums of the rows.

    Returns
    -------
    array
        Loss: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Hadsell, Chopra and LeCun (2006), "Dimensionality Reduction by Learning an Invariant Mapping", CVPR, equation 4.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.from_scores.contrastive(-np.asarray([[0.5, 0.75], [2.0, 0.25]]))
    array(0.09375)
    """
    objective = objectives.contrastive(
        margin=margin,
        positive_margin=positive_margin,
        positive_power=positive_power,
        negative_power=negative_power,
        average=average,
        balance=balance,
    )
    return _loss(scores, objective, reduction, (positives, mask, weights, pair_weights))


@programmed
def triplet(
    scores: ArrayOf[ArrayT],
    /,
    *,
    margin: float | AnyArray = 0.2,
    mining: Mining = "batch_all",
    form: TripletForm = "margin",
    average: Averaging = "all",
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the triplet loss of a matrix of distances: a positive should be nearer than a negative by a margin.

    .. math:: \ell_i = \sum_{p \in P(i)} \sum_{n \in Q(i)} \max(d_{ip} - d_{in} + m, 0), \qquad d_{ij} = -g_{ij}

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g, which are minus the distances d. A score of -inf masks its pair, positives included: its triples are
        left out of the sum and of their number.
    margin : float or array of one entry, default: 0.2
        Margin m.
    mining : {"batch_all", "batch_hard", "semi_hard"} or pair of str, default: "batch_all"
        All triples of a row; the farthest positive with the nearest negative; or every positive with the nearest
        negative that is farther than it, else with the farthest negative (FaceNet's choice, as in TensorFlow Addons). A
        pair gives the rules for positives and negatives, as in ``("easy", "semi_hard")``. The rules are ``"all"``;
        ``"hard"``, the farthest positive or the nearest negative; ``"easy"``, the nearest positive or the farthest
        negative; and, on one side only, ``"semi_hard"``, the nearest negative that is farther than the positive (else
        the farthest), or the farthest positive that is nearer than the negative (else the nearest). With form "margin",
        a negative that is farther by the margin has no loss.
    form : {"margin", "soft"}, default: "margin"
        ``"soft"`` takes :math:`\log(1 + e^t)` in place of :math:`\max(t, 0)`.
    average : {"all", "nonzero"}, default: "all"
        Whether the mean is over all triples, or over those whose loss is not 0.
    positives : array of int (N,) or of bool (N, K), optional
        Positives of each row; the diagonal by default, which requires K ≥ N. Out-of-range indices raise for NumPy and
        eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the triples (0 if there are none), weighted sum, or the weighted sums of the rows.

    Returns
    -------
    array
        Loss: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Hermans, Beyer and Leibe (2017), "In Defense of the Triplet Loss for Person Re-Identification", arXiv:1703.07737,
    equations 5 and 6. Schroff, Kalenichenko and Philbin (2015), "FaceNet: A Unified Embedding for Face Recognition and
    Clustering", arXiv:1503.03832, section 3.2: semi-hard negatives.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.from_scores.triplet(-np.asarray([[0.5, 0.625], [2.0, 0.25]]))
    array(0.0375)
    """
    objective = objectives.triplet(margin=margin, mining=mining, form=form, average=average)
    return _loss(scores, objective, reduction, (positives, mask, weights))


@programmed
def margin_mse(
    scores: ArrayOf[ArrayT],
    teacher_scores: AnyArray,
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the MarginMSE loss: the mean squared error of the positive's margins against a teacher's margins.

    .. math:: \ell_i = \frac{1}{|Q(i)|} \sum_{j \in Q(i)} \big((g_{ip} - g_{ij}) - (t_{ip} - t_{ij})\big)^2

    It distils a reranker, the teacher; only differences of scores matter.

    Parameters
    ----------
    scores : array, shape (N, K)
        Scores g. A score of -inf masks its pair.
    teacher_scores : array, shape (N, K)
        Scores t of the teacher, without gradient. A score of -inf masks its pair.
    positives : array of int, shape (N,), optional
        Positive of each row; the diagonal by default, which requires K ≥ N. All other columns are negatives.
        Out-of-range indices raise for NumPy and eager PyTorch CPU tensors; elsewhere such a row has no positive.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default. A row without a positive or without a negative does not count.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that count (0 if none counts), weighted sum, or the weighted losses of the rows.

    Returns
    -------
    array
        Loss in squared units of the scores: 0-d, or shape (N,) for reduction "none", of the library, dtype and device
        of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    portable_nce.distillation : Distils the softmax of a teacher's embeddings.

    References
    ----------
    Hofstätter, Althammer, Schröder, Sertkan and Hanbury (2020), "Improving Efficient Neural Ranking Models with
    Cross-Architecture Knowledge Distillation", arXiv:2010.02666, equation 6.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> student, teacher = np.asarray([[2.0, 1.0, 0.0]]), np.asarray([[9.0, 5.0, 4.0]])
    >>> pnce.from_scores.margin_mse(student, teacher)
    array(9.)
    """
    check_choice("reduction", reduction, REDUCTIONS)
    _, (scores, teacher_scores) = common_namespace(scores=scores, teacher_scores=teacher_scores)
    _check_columns(positives)
    xp, entered, pairing, mask, weights = enter_scores(scores, positives, mask, weights)
    check_floating(xp, teacher_scores=teacher_scores)
    check_shape("teacher_scores", teacher_scores, tuple(entered.shape))
    constant: Array = teacher_scores
    teacher = as_scores(xp, stop_gradient(constant))
    weights = row_weights(xp, weights, entered.shape[0], teacher)
    entered, teacher = (zeroed(x, counted_by(weights), scores=True) for x in (as_scores(xp, entered), teacher))
    if mask is None and positives is None and _lack_masks(entered, teacher) and entered.shape[1] > 1:
        pairs = ScorePairs(xp, entered - teacher, scores.dtype, pairing, None, complete=True)
    else:
        live = xp.logical_and(entered != -math.inf, teacher != -math.inf)
        pairs = ScorePairs(xp, entered, scores.dtype, pairing, live if mask is None else xp.logical_and(mask, live))
        # Masked teacher scores may be NaN, and inf - inf would be.
        members = xp.logical_or(pairs.pairs.own, pairs.pairs.off)
        pairs.scores = pairs.scores - xp.where(members, teacher, 0.0)
    _, margins = pairs.means(SQUARE, relative=True)
    counted = xp.ones_like(margins, dtype=xp.bool) if pairs.counted is None else pairs.counted
    return pairs.finish(Reduction(reduction, weights).of_values(margins, counted), reduction)


def _lack_masks(*scores: Array) -> bool:
    """Whether no entry is known to be -inf, which masks a pair, or NaN."""
    return all(low is not None and low > -math.inf for low in (readable_entry(x, least) for x in scores))


def check_square(scores: Array, remedy: str = "") -> None:
    """Check that a score matrix is square."""
    if scores.shape[0] != scores.shape[1]:
        raise ValueError(f"scores: expected a square matrix, got shape {tuple(scores.shape)}{remedy}")


def _check_columns(positives: Array | None) -> None:
    if positives is not None:
        xp, (columns,) = common_namespace(positives=positives)
        got = tuple(columns.shape)
        if len(got) > 1:
            remedy = "pass positives[:, 0]" if got[1:] == (1,) else "if each row has one, pass positives.argmax(axis=1)"
            raise ValueError(
                f"positives: expected integers (N,), the column of the positive of each row, got {columns.dtype} of "
                f"shape {got}; {remedy}"
            )
        check_integers(xp, "positives", columns, shape_of("positives", columns, "(N)"))


def _loss(
    scores: Array, objective: objectives.AnyObjective, reduction: ReductionName, given: tuple[Array | None, ...]
) -> Array:
    weighted = isinstance(objective, (objectives.Objective, objectives.Pairwise))
    _, scores, pairing, mask, weights = enter_scores(scores, *given, weighted=weighted)
    return contrast_scores(scores, objective, pairing, Reduction(reduction, weights), mask=mask)


def enter_parameter(scores: Array, **parameter: Any) -> tuple[Namespace, Array, Any]:
    """Scores, and a parameter that is a number or an array of the scores' library."""
    (value,) = parameter.values()
    xp, (scores, *entered) = common_namespace(
        scores=scores, **(parameter if is_array(value) and not is_number(value) else {})
    )
    return xp, scores, entered[0] if entered else value


def enter_scores(
    scores: Array,
    positives: Array | None,
    mask: Array | None,
    weights: Array | None,
    pair_weights: Array | None = None,
    *,
    weighted: bool = True,
) -> tuple[Namespace, Array, Pairing, Array | None, Array | None]:
    """Check the arguments of a function of a score matrix, and resolve `positives` to a pairing.

    `weighted`: positives may be weights.
    """
    xp, (scores, positives, mask, weights, pair_weights) = common_namespace(
        scores=scores, positives=positives, mask=mask, weights=weights, pair_weights=pair_weights
    )
    check_floating(xp, scores=scores)
    shape = shape_of("scores", scores, "(N, K)")
    if weights is not None:
        check_shape("weights", weights, (shape[0],))
        warn_of_negative("weights", weights)
    pairing = of_positives(xp, positives, shape, weighted=weighted)
    if pair_weights is not None:
        check_pair_weights(xp, "pair_weights", pair_weights, shape)
        pairing = with_pair_weights(pairing, pair_weights)
    if positives is None and shape[0] > shape[1]:
        raise ValueError(
            f"scores: expected a K × N matrix of scores, for example critic(x, y), with at least as many columns as "
            f"rows and the positives on the diagonal, got shape {shape}; transpose, or name the positives"
        )
    if mask is not None:
        check_mask(xp, "mask", mask, shape)
    return xp, scores, pairing, mask, weights


class ScorePairs:
    """Upcast score matrix for means over rows, with its positives and negatives (`pairs`).

    `complete`: whether row i has column i as its positive and all others as negatives; there are no masks then.
    `scores`: 0 for pairs that do not count, which may be NaN. `number`: negatives per row, an integer if
    complete, else an array (K,), at least 1. `counted`: mask of rows with a positive and a negative; None if complete.
    A mean over negatives is the mean over rows of the row means.
    """

    def __init__(
        self, xp: Namespace, scores: Array, dtype: Any, pairing: Pairing, mask: Array | None, *, complete: bool = False
    ) -> None:
        self.xp, self.scores, self.dtype, self.pairing, self.mask = xp, scores, dtype, pairing, mask
        self.number: Any = scores.shape[1] - 1
        self.counted: Array | None = None
        self.pairs = PairSets(diagonal=True)
        if not complete:
            own, off = self.masks()
            number = xp.sum(xp.astype(off, scores.dtype), axis=1)
            counted = xp.logical_and(xp.any(own, axis=1), number > 0)
            own, off = (xp.logical_and(x, counted[:, None]) for x in (own, off))
            self.scores = xp.where(xp.logical_or(own, off), scores, 0.0)
            self.number = xp.where(counted, number, xp.ones_like(number))
            self.counted, self.pairs = counted, PairSets(own=own, off=off)

    @classmethod
    def of(cls, scores: Array, positives: Array | None, mask: Array | None, *, least: int = 2) -> ScorePairs:
        """Check the scores, with at least `least` columns."""
        _check_columns(positives)
        xp, scores, pairing, mask, _ = enter_scores(scores, positives, mask, None)
        if isinstance(scores.shape[1], int) and scores.shape[1] < least:
            raise ValueError(
                f"scores: expected at least {least} columns, got shape {tuple(scores.shape)}: there is no negative"
            )
        complete = positives is None and mask is None
        return cls(xp, upcast(xp, scores), scores.dtype, pairing, mask, complete=complete)

    def masks(self) -> tuple[Array, Array]:
        """Masks (K, N) of the positives and of the negatives."""
        return matrix_of_scores(self.scores, self.pairing, self.mask).sets()

    def loss(self, objective: objectives.Objective, reduction: ReductionName, *, constant: bool = False) -> Array:
        """Loss of the rows that count by their statistics, of shape (1,) or (K,), not yet rounded.

        `constant`: without a gradient.
        """
        scores = stop_gradient(self.scores) if constant else self.scores
        weights = None if self.counted is None else self.xp.astype(self.counted, scores.dtype)
        return loss_of_scores(scores, objective, self.pairing, Reduction(reduction, weights), mask=self.mask)

    def of_counted(self, rows: Array) -> Array:
        """Entries of the rows, 0 for rows that do not count."""
        return rows if self.counted is None else self.xp.where(self.counted, rows, self.xp.zeros_like(rows))

    def row_mean(self, rows: Array) -> Array:
        """Mean over the rows that count."""
        return sum_to_scalar(self.xp, self.of_counted(rows)) / self.n_rows()

    def n_rows(self) -> Any:
        """Number of rows that count, at least 1."""
        xp = self.xp
        if self.counted is None:
            return self.scores.shape[0]
        number = sum_to_scalar(xp, xp.astype(self.counted, self.scores.dtype))
        return xp.where(number > 0, number, xp.ones_like(number))

    def means(
        self, term: PairTerm, *, shift: Array | float | None = None, relative: bool = False
    ) -> tuple[Array, Array]:
        """Scores of the positives, and means of a term over the negatives of each row, as by `pair_sums`."""
        positive, sums = pair_sums(term, self.scores, self.pairs, shift=shift, relative=relative)
        return positive, sums / self.number

    def exp_sum(self) -> tuple[Array, ExpSum]:
        """Scores of the positives, and the sum of the exponentials of the negatives of each row."""
        return exp_sum(self.scores, self.pairs)

    def log_mean(self, sums: ExpSum) -> Array:
        """Logarithm of the mean of the exponentials of all negatives, shape (1,), from the sums of the rows."""
        xp, logarithm, members = self.xp, sums.log(self.xp), PairSets()
        if self.counted is None:
            number = log_of(xp, self.n_rows() * self.number, logarithm[:1])
        else:
            logarithm, number = logarithm - xp.log(self.number), xp.log(self.n_rows())
            members = PairSets(off=self.counted[None, :])
        mean = exp_sum(logarithm[None, :], members)[1].log(xp) - number
        # 0 if no row counts.
        return mean if self.counted is None else xp.where(xp.any(self.counted), mean, xp.zeros_like(mean))

    def left_out(self, log_weight: Array) -> LeftOut:
        """Means of the log-odds of rows with each negative left out in turn, as by `left_out`."""
        return left_out(self.scores, self.pairs, log_weight, self.numbers())

    def numbers(self) -> Array:
        """Number of negatives of each row (K,)."""
        number = self.number
        return number if self.counted is not None else self.xp.zeros_like(self.scores[:, 0]) + number

    def log_number(self, extra: int = 0) -> Array:
        """Logarithm of the number of negatives of each row plus `extra`: of all rows, (1,), or of each, (K,)."""
        if self.counted is not None:
            return self.xp.log(self.number + extra)
        # Not a logarithm of the `math` module: the precision may exceed a Python float's, and lengths may be symbolic.
        zero = self.xp.zeros(1, dtype=self.scores.dtype, device=device_of(self.scores))
        return self.xp.log(zero + (self.number + extra))

    def reduced_log_number(self, reduction: ReductionName, extra: int = 0) -> Array:
        """Mean or sum of `log_number` over the rows that count; for "none" 0 in rows that do not."""
        logarithm = self.log_number(extra)
        if self.counted is not None:
            return self._of_rows(logarithm, reduction)
        return logarithm * self.n_rows() if reduction == "sum" else logarithm

    def positive(self) -> Array:
        """Scores of the positives."""
        return self.pairs.positive(self.scores)

    def reduced(self, rows: Array, reduction: ReductionName, *, surrogate: Array | None = None) -> Array:
        """Reduced terms of the rows, with the gradient of `surrogate` terms if given."""
        check_choice("reduction", reduction, REDUCTIONS)
        result = self._of_rows(rows, reduction)
        if surrogate is not None:  # after the reduction, so that an infinite row removes the gradient
            result = with_gradient_of(self._of_rows(surrogate, reduction), result)
        return self.finish(result, reduction)

    def _of_rows(self, rows: Array, reduction: ReductionName) -> Array:
        if reduction == "mean":
            return self.row_mean(rows)
        rows = self.of_counted(rows)
        return rows if reduction == "none" else sum_to_scalar(self.xp, rows)

    def finish(self, result: Array, reduction: ReductionName = "mean") -> Array:
        """Result in the dtype of the scores."""
        return finish(self.xp, result, self.dtype, reduction)


def with_gradient_of(surrogate: Array, value: Array) -> Array:
    """Result with the given value and the gradient of `surrogate`."""
    constant = stop_gradient(surrogate)
    xp = namespace_of(surrogate)
    infinite, nothing = xp.isinf(constant), xp.zeros_like(constant)
    difference = xp.where(infinite, nothing, surrogate) - xp.where(infinite, nothing, constant)
    return stop_gradient(value) + difference


def log_of(xp: Namespace, number: Any, like: Array) -> Array:
    """Logarithm of a number in the precision of `like`, which may exceed a Python float's."""
    return xp.log(xp.zeros_like(like) + number)
