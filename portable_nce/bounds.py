"""Bounds on mutual information in nats, from a score matrix with the positives on the diagonal.

Rows are K samples of one variable, columns N ≥ K samples of the other; extra columns are further negatives. Each
docstring says whether the result is a lower bound, an upper bound or neither.

`positives` gives the column of each row's positive, and `mask` the pairs to include. A row without a positive or
without a negative does not count. With a mask, K is the number of rows that count and N - 1 the number of negatives of
a row; a mean over pairs i ≠ j becomes the mean over rows of the means over their negatives.

Unlike in `portable_nce.from_scores`, a score of -inf is not a mask: the pair stays in the counts K and N. As a negative
it adds 0 to a sum of exponentials; as a positive it makes most results -inf, as each docstring says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, SupportsIndex, get_args, overload

from ._core.autodiff import stop_gradient
from ._core.calls import programmed
from ._core.checks import (
    as_integer,
    check_bool,
    check_callable,
    check_choice,
    check_floating,
    check_number,
    check_shape,
    check_whole_number,
    refuses_other_names,
    scalar,
    shape_of,
)
from ._core.left_out import log_add, log_odds
from ._core.logsumexp import ExpSum
from ._core.namespace import cast, common_namespace, device_of, is_array, is_number
from ._core.numerics import clipped, safe_sqrt, softplus, sum_to_scalar, upcast
from ._core.pair_sums import EXP, SCORE, SOFTPLUS, SOFTPLUS_SLOPE, PairSets, PairTerm, exp_sum, pair_sums
from ._core.protocol import Array, Namespace
from ._core.reduction import REDUCTIONS, finish
from ._core.returned import shape_or_type
from ._core.types import AnchorForm, AnyArray, ArrayOf, ArrayT, ReductionName
from .from_scores import ScorePairs, check_square, enter_parameter, enter_scores, log_of, with_gradient_of
from .objectives.base import Objective
from .objectives.softmax import EVERY_FLAT_NCE, EVERY_INFO_NCE

__all__ = [
    "barber_agakov",
    "club",
    "dual",
    "dual_critic",
    "dv",
    "fdv",
    "flo",
    "info_nce",
    "info_nce_anchor",
    "interpolated",
    "js",
    "js_mi",
    "leave_one_out",
    "log_n_ceiling",
    "mine",
    "nwj",
    "smile",
    "standard_error",
    "tuba",
    "vub",
]

__dir__ = __all__.copy  # what completion offers

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = refuses_other_names(__name__)

FORMS: tuple[AnchorForm, ...] = get_args(AnchorForm)
FEWEST_PAIRS = 4
"""Smallest number of pairs whose halves have a negative each."""


@programmed
def info_nce(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the InfoNCE (CPC) bound: a lower bound for any scores, never above log N.

    .. math:: \hat I = \log N - \frac1K \sum_i \log(1 + e^{u_i})
        = \frac1K \sum_i \Big(g_{ii} - \mathrm{lse}_j\, g_{ij}\Big) + \log N,

    the positive included in the sum over the N columns.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf adds 0 to the sum. A
        positive of -inf makes the bound -inf, unless its whole row is -inf: the term of such a row is log N.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with N ≥ K.

    See Also
    --------
    log_n_ceiling : The largest possible value of this bound.

    References
    ----------
    van den Oord, Li and Vinyals (2018), "Representation Learning with Contrastive Predictive Coding",
    arXiv:1807.03748, appendix A.

    Examples
    --------
    PyTorch, training a critic to maximise the bound:

    >>> import torch
    >>> import portable_nce as pnce
    >>> x = torch.randn(256, 20)
    >>> y = x + torch.randn(256, 20)
    >>> critic = torch.nn.Bilinear(20, 20, 1)
    >>> scores = critic(x.repeat_interleave(256, dim=0), y.repeat(256, 1)).reshape(256, 256)
    >>> loss = -pnce.bounds.info_nce(scores)
    >>> loss.backward()
    >>> critic.weight.grad.shape
    torch.Size([1, 20, 20])

    NumPy, near the ceiling log 256:

    >>> import numpy as np
    >>> pnce.bounds.info_nce(12.0 * np.eye(256)), pnce.bounds.log_n_ceiling(256)
    (array(5.54361...), 5.54517...)
    """
    pairs = ScorePairs.of(scores, positives, mask, least=1)
    return pairs.finish(_below_log_number(pairs, EVERY_INFO_NCE, reduction, 1), reduction)


@programmed
def info_nce_anchor(
    scores: ArrayOf[ArrayT],
    /,
    *,
    nu: float = 1.0,
    form: AnchorForm = "bound",
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the bound or the estimate of InfoNCE with an anchor, whose optimal scores are the log ratios.

    The scores define a classifier of n samples into n + 1 classes, n = N - 1. In class k, the k-th sample is from the
    joint distribution with :math:`x_i`; in class 0, the anchor, none is. Class 0 has prior weight ν relative to each
    other class. With :math:`r = e^g`,

    .. math:: A_i &= \frac1n \sum_{m \ne i} \log\Big(1 + \frac{\nu + \sum_{j \ne i, m} r_{ij}}{r_{ii}}\Big), \qquad
        B_i = \log\Big(1 + \frac1\nu \sum_{j \ne i} r_{ij}\Big), \\
        \hat I &= \Big(1 + \frac\nu n\Big) \log(n + \nu) - \frac\nu n \log \nu
        - \frac1K \sum_i \Big(A_i + \frac\nu n B_i\Big).

    In class 0 the samples are the n negatives of a row. In the other classes they are the positive and n - 1 negatives,
    averaged over the omitted one. :math:`\hat I` is a constant minus :math:`1 + \nu / n` times the cross-entropy. Its
    expectation is largest for :math:`g(x, y) = \log p(y \mid x) / p(y)`, without InfoNCE's free function of x. It is a
    lower bound in expectation, for any scores: the class carries at most :math:`n / (n + \nu)` times the mutual
    information. Like the InfoNCE bound it has a ceiling, the constant.

    The authors' estimate, ``"plug_in"``, is the mean of the log ratios. It has no ceiling but is not a bound: adding 5
    to every score adds 5 nats.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal: log ratios, in nats. A negative of -inf
        adds 0 to the sums. A positive of -inf makes the result -inf, with gradient 0 for ``"plug_in"``.
    nu : float, default: 1.0
        Prior weight ν > 0 of class 0, relative to each other class. As ν → 0 the bound becomes `info_nce` with one
        column less, and scores are determined only up to a function of x.
    form : {"bound", "plug_in"}, default: "bound"
        The lower bound :math:`\hat I`, or the mean score of the positives with the gradient of :math:`\hat I`.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound or estimate in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of
        `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array, or `nu` not a number.
    ValueError
        If `scores` is not a matrix with N ≥ K and N ≥ 2, `nu` not a positive finite float32 number, or `form` not one
        of the listed values.

    See Also
    --------
    portable_nce.objectives.info_nce_anchor : The streamed loss, with all negatives beside the positive.
    js : The case n = 1, ν = 1, up to the constant 2 log 2.

    References
    ----------
    Ryu, Yeddanapudi, Xu and Wornell (2025), "Contrastive Predictive Coding Done Right for Mutual Information
    Estimation", arXiv:2510.25983.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> scores = np.log(4.0) * np.eye(4)
    >>> round(float(pnce.bounds.info_nce_anchor(scores)), 6)
    0.826679
    >>> round(float(pnce.bounds.info_nce_anchor(scores, form="plug_in")), 6)
    1.386294
    """
    nu = check_number("nu", nu, above=0.0)
    check_choice("form", form, FORMS)
    pairs = ScorePairs.of(scores, positives, mask)
    xp, number = pairs.xp, pairs.numbers()
    share, log_nu = nu / number, log_of(xp, nu, number)
    ceiling = (1.0 + share) * xp.log(number + nu) - share * log_nu
    positive, sums, paired, _ = pairs.left_out(log_nu)
    bound = -(paired + softplus(xp, log_odds(xp, sums, log_nu)) * share) + ceiling
    if form == "bound":
        return pairs.reduced(bound, reduction)
    return pairs.reduced(positive, reduction, surrogate=bound)


@programmed
def dual_critic(
    scores: ArrayOf[ArrayT],
    /,
    *,
    include_positive: bool = False,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
) -> ArrayT:
    r"""Return the optimal dual critic of each row in closed form, for `dual`.

    .. math:: \hat u_i = \mathrm{lse}_{j \ne i}\, g_{ij} - g_{ii} - \log(N - 1), \qquad
        \hat u^\oplus_i = \mathrm{lse}_{j}\, g_{ij} - g_{ii} - \log N.

    In `dual`, :math:`\hat u` gives the FlatNCE value, which is **not** a bound, since it uses the sampled negatives.
    The negated mean of :math:`\hat u^\oplus` is the InfoNCE bound; in `dual`, which leaves the positive out,
    :math:`\hat u^\oplus` gives another value.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf adds 0 to the sum. The
        critic is inf for a positive of -inf, unless all negatives of its row are -inf as well: then it is -inf, or -log
        N with `include_positive`.
    include_positive : bool, default: False
        Whether to return :math:`\hat u^\oplus`.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.

    Returns
    -------
    array
        Critic of each row in nats, shape (K,), of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with N ≥ K and N ≥ 2.

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
    include_positive = check_bool("include_positive", include_positive)
    pairs = ScorePairs.of(scores, positives, mask)
    losses = pairs.loss(EVERY_INFO_NCE if include_positive else EVERY_FLAT_NCE, "none")
    return pairs.finish(losses - pairs.reduced_log_number("none", int(include_positive)), "none")


@programmed
def dual(
    scores: ArrayOf[ArrayT],
    u: AnyArray,
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the dual bound of FlatNCE: a lower bound **only if `u` does not use the sampled negatives**.

    .. math:: D(g, u) = \frac1K \sum_i \Big(1 - u_i - \frac{1}{N - 1} \sum_{j \ne i} e^{g_{ij} - g_{ii} - u_i}\Big).

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf adds 0 to the sum. A
        positive of -inf makes the bound -inf, with an infinite gradient, or NaN if a negative of its row is -inf too.
    u : array, shape (K,)
        Dual critic of each row, learned or from `dual_critic`.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument is not a real floating-point array, or has another library or dtype.
    ValueError
        If `scores` is not a matrix with N ≥ K and N ≥ 2, or `u` has another shape.

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
    _, (scores, u) = common_namespace(scores=scores, u=u)
    pairs = ScorePairs.of(scores, positives, mask)
    xp = pairs.xp
    check_floating(xp, scores=scores, u=u)
    check_shape("u", u, (pairs.scores.shape[0],))
    critic = upcast(xp, u)
    # Term by term, so that an overflow is inf and not NaN.
    _, negatives = pairs.means(EXP, shift=critic, relative=True)
    return pairs.reduced(1.0 - critic - negatives, reduction)


@programmed
def flo(
    scores: ArrayOf[ArrayT],
    u: AnyArray,
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the Fenchel-Legendre bound: a lower bound if `u` does not use the sampled negatives.

    .. math:: \hat I = -\frac1K \sum_i \big(u_i + R_i - 1\big), \qquad
        R_i = \frac{1}{N - 1} \sum_{j \ne i} e^{g_{ij} - g_{ii} - u_i},

    where :math:`u_i = u(x_i, y_i)` is learned along with the scores. Its expectation is at most the mutual information,
    with equality if u is minus the pointwise mutual information (PMI) and :math:`g(x, y) = \mathrm{PMI}(x, y) + c(x)`.
    It equals `dual`.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf adds 0 to the sum. A
        positive of -inf makes the bound -inf, with an infinite gradient, or NaN if a negative of its row is -inf too.
    u : array, shape (K,)
        Critic u of the positive pairs.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument is not a real floating-point array, or has another library or dtype.
    ValueError
        If `scores` is not a matrix with N ≥ K and N ≥ 2, or `u` has another shape.

    See Also
    --------
    dual_critic : The optimal u in closed form, which uses the negatives.

    References
    ----------
    Guo et al. (2022), "Tight Mutual Information Estimation With Contrastive Fenchel-Legendre Optimization",
    arXiv:2107.01131, equation 9.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.flo(8.0 * np.eye(4), np.full(4, -1.0))
    array(1.99908...)
    """
    return dual(scores, u, positives=positives, mask=mask, reduction=reduction)


@programmed
def fdv(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the InfoNCE bound with FlatNCE's gradient: a lower bound whose gradient does not vanish at the ceiling.

    .. math:: \hat I = \mathrm{sg}\big(\hat I_{\mathrm{InfoNCE}}\big) + \hat F - \mathrm{sg}\,\hat F, \qquad
        \hat F = -\frac1K \sum_i u_i

    Once positives rank first, FlatNCE's gradient keeps increasing the scores: use a bounded critic, such as a cosine
    over a temperature.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. Values for -inf are those of `info_nce`;
        the gradient is 0 everywhere if a positive, or all negatives of a row, are -inf.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with N ≥ K and N ≥ 2.

    References
    ----------
    Guo et al. (2022), "Tight Mutual Information Estimation With Contrastive Fenchel-Legendre Optimization",
    arXiv:2107.01131, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.fdv(8.0 * np.eye(4))
    array(1.38528...)
    """
    pairs = ScorePairs.of(scores, positives, mask)
    value = _below_log_number(pairs, EVERY_INFO_NCE, reduction, 1, constant=True)
    return pairs.finish(with_gradient_of(-pairs.loss(EVERY_FLAT_NCE, reduction), value), reduction)


@programmed
def dv(scores: ArrayOf[ArrayT], /, *, positives: AnyArray | None = None, mask: AnyArray | None = None) -> ArrayT:
    r"""Return the Donsker-Varadhan estimate: a lower bound in the population, not on a finite batch.

    .. math:: \hat I = \frac1K \sum_i g_{ii} - \log \frac{1}{K (N - 1)} \sum_i \sum_{j \ne i} e^{g_{ij}}

    The logarithm of a sample mean biases it upwards.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf adds 0 to the sum. A
        positive of -inf makes the estimate -inf; without a finite negative it is inf, and with both NaN.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.

    Returns
    -------
    array
        Estimate in nats, 0-d, of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with N ≥ K and N ≥ 2.

    See Also
    --------
    mine : The same value with a less biased gradient.

    References
    ----------
    Donsker and Varadhan (1983), "Asymptotic Evaluation of Certain Markov Process Expectations for Large Time IV",
    Communications on Pure and Applied Mathematics 36.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.dv(8.0 * np.eye(4))
    array(8.)
    """
    pairs = ScorePairs.of(scores, positives, mask)
    positive, sums = pairs.exp_sum()
    return pairs.finish(pairs.row_mean(positive) - pairs.log_mean(sums))


@programmed
def mine(
    scores: ArrayOf[ArrayT],
    /,
    log_mean: AnyArray | None = None,
    *,
    rate: float = 0.01,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
) -> tuple[ArrayT, ArrayT]:
    r"""Return the MINE estimate (`dv` with the gradient of a moving average) and the new average.

    .. math:: \hat I = \frac1K \sum_i g_{ii} - \log \mathrm{mean}_{i,\, j \ne i}\, e^{g_{ij}}, \qquad
        \nabla \hat I = \frac1K \sum_i \nabla g_{ii} - \frac{\mathrm{mean}_{i,\, j \ne i}\,
        e^{g_{ij}} \nabla g_{ij}}{Z}, \qquad Z = (1 - r)\, Z_{\mathrm{old}} + r\, \mathrm{mean}\, e^{g_{ij}}

    A lower bound in the population, not on a finite batch. The average is stored as its logarithm.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf adds 0 to the sum. A
        positive of -inf makes the estimate -inf, with gradient 0; without a finite negative it is inf, and with both
        NaN.
    log_mean : float or array of one entry, optional
        Logarithm of the moving average so far; None at the first step uses the batch's.
    rate : float, default: 0.01
        Weight r of the batch in the new average, in (0, 1].
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.

    Returns
    -------
    value : array
        Estimate in nats, 0-d, of the library, dtype and device of `scores`.
    log_mean : array
        Logarithm of the new average, 0-d, without gradient. Unchanged if no row counts (0 at the first step).

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape is invalid, or `rate` is not in (0, 1].

    References
    ----------
    Belghazi et al. (2018), "Mutual Information Neural Estimation", arXiv:1801.04062, section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> value, state = pnce.bounds.mine(8.0 * np.eye(4))
    >>> value, state = pnce.bounds.mine(4.0 * np.eye(4), state)
    >>> value, state
    (array(4.), array(0.))
    """
    rate = check_number("rate", rate, above=0.0)
    if rate > 1.0:
        raise ValueError(f"rate: expected a number in (0, 1], got {rate}")
    if log_mean is not None and not is_number(log_mean):
        _, (scores, log_mean) = common_namespace(scores=scores, log_mean=log_mean)
    pairs = ScorePairs.of(scores, positives, mask)
    xp = pairs.xp
    positive, sums = pairs.exp_sum()
    now = stop_gradient(pairs.log_mean(sums))
    state = now
    if log_mean is not None:
        before = stop_gradient(xp.zeros_like(state) + scalar(xp, "log_mean", log_mean, state))
        if rate < 1.0:
            share = xp.zeros_like(before) + rate
            state = log_add(xp, before + xp.log1p(-share), state + xp.log(share))
        if pairs.counted is not None:
            state = xp.where(xp.any(pairs.counted), state, before)
    positive = pairs.row_mean(positive)
    shift, infinite = xp.where(xp.isinf(state), xp.zeros_like(state), state), xp.isinf(sums.top)
    negatives = sums.total * xp.exp(xp.where(infinite, xp.zeros_like(sums.top), sums.top) - shift)
    negatives = xp.where(infinite, xp.exp(xp.where(infinite, sums.top, xp.zeros_like(sums.top))), negatives)
    surrogate = positive - pairs.row_mean(negatives / pairs.number)
    return pairs.finish(with_gradient_of(surrogate, positive - now)), pairs.finish(state)


@programmed
def nwj(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the bound of Nguyen, Wainwright and Jordan (MINE-f): a lower bound for any scores, unbiased.

    .. math:: \hat I = \frac1K \sum_i g_{ii} - \frac{1}{K (N - 1)} \sum_i \sum_{j \ne i} e^{g_{ij} - 1}

    The optimal scores are 1 plus the log density ratio. The variance grows exponentially with the mutual information.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf adds 0 to the sum. A
        positive of -inf makes the bound -inf.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with N ≥ K and N ≥ 2.

    References
    ----------
    Nguyen, Wainwright and Jordan (2010), "Estimating Divergence Functionals and the Likelihood Ratio by Convex Risk
    Minimization", arXiv:0809.0853.

    Examples
    --------
    PyTorch, training a separable critic to maximise the bound:

    >>> import torch
    >>> import portable_nce as pnce
    >>> x = torch.randn(256, 20)
    >>> y = x + torch.randn(256, 20)
    >>> of_x, of_y = torch.nn.Linear(20, 32), torch.nn.Linear(20, 32)
    >>> loss = -pnce.bounds.nwj(of_x(x) @ of_y(y).T)
    >>> loss.backward()
    >>> of_x.weight.grad.shape
    torch.Size([32, 20])

    NumPy, with the optimal scores for Gaussians of correlation 0.8 (mutual information 0.51 nats):

    >>> import numpy as np
    >>> x, noise = np.random.default_rng(0).standard_normal((2, 1024))
    >>> y = 0.8 * x + 0.6 * noise
    >>> scores = 1.0 - np.log(0.6) - (y - 0.8 * x[:, None]) ** 2 / 0.72 + y**2 / 2
    >>> pnce.bounds.nwj(scores)
    array(0.43203...)
    """
    pairs = ScorePairs.of(scores, positives, mask)
    positive, negatives = pairs.means(EXP, shift=1.0)
    return pairs.reduced(positive - negatives, reduction)


@programmed
def tuba(
    scores: ArrayOf[ArrayT],
    /,
    log_baseline: float | AnyArray,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the tractable unnormalised bound: a lower bound for any scores and baseline, unbiased.

    .. math:: \hat I = 1 + \frac1K \sum_i (g_{ii} - \log a_i)
        - \frac{1}{K (N - 1)} \sum_i \sum_{j \ne i} e^{g_{ij} - \log a_i}

    With log a = 1 it is `nwj`.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf adds 0 to the sum. A
        positive of -inf makes the bound -inf.
    log_baseline : float or array, shape (K,) or of one entry
        Logarithm of the baseline a of each row, a function of the row alone; differentiable if an array.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape or device is invalid.

    References
    ----------
    Poole, Ozair, van den Oord, Alemi and Tucker (2019), "On Variational Bounds of Mutual Information",
    arXiv:1905.06922, equation 8.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.tuba(2.0 * np.eye(4), 1.0)
    array(1.63212...)
    """
    pairs, baseline = _with_baseline(scores, log_baseline, positives, mask)
    return pairs.reduced(_tuba(pairs, baseline), reduction)


_TINY = 1e-30
"""Part of a score below which units would be out of the range of float32."""


@programmed
def interpolated(
    scores: ArrayOf[ArrayT],
    /,
    alpha: float,
    log_baseline: float | AnyArray,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the interpolated bound: a lower bound between InfoNCE's small variance and TUBA's small bias.

    .. math:: \hat I_\alpha = 1 + \mathrm{mean}_{i,\, j \ne i} (g_{ii} - b_{ij})
        - \mathrm{mean}_{i,\, j \ne i}\, e^{g_{ij} - b_{ii}}, \qquad
        b_{ij} = \log\Big(\frac{\alpha}{N - 1} \sum_{l \ne j} e^{g_{il}} + (1 - \alpha)\, a_i\Big)

    A lower bound for any scores, α and baseline, since the denominator of a sample excludes that sample; so the first
    mean leaves out one negative at a time.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf adds 0 to the sums. A
        positive of -inf makes the bound -inf. It is NaN if α = 1 and a row has fewer than two finite scores.
    alpha : float
        Weight α of the batch in the baseline, in [0, 1]: 0 is `tuba`, 1 resembles `info_nce`.
    log_baseline : float or array, shape (K,) or of one entry
        Logarithm of the baseline a of each row, a function of the row alone; differentiable if an array.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape or device is invalid, or `alpha` is not in [0, 1].

    References
    ----------
    Poole, Ozair, van den Oord, Alemi and Tucker (2019), "On Variational Bounds of Mutual Information",
    arXiv:1905.06922, equation 13.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.interpolated(2.0 * np.eye(4), 0.5, 1.0)
    array(1.38917...)
    """
    alpha = check_number("alpha", alpha)
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha: expected a number in [0, 1], got {alpha}")
    pairs, baseline = _with_baseline(scores, log_baseline, positives, mask)
    if alpha == 0.0:
        return pairs.reduced(_tuba(pairs, baseline), reduction)
    xp, number = pairs.xp, pairs.numbers()
    # In units of α / (N - 1), the baseline is a further weight of the row, as the anchor is.
    unit = alpha / number
    log_unit = xp.log(unit) if alpha > _TINY else math.log(alpha) - xp.log(number)
    of_baseline = xp.full_like(number, -math.inf) if alpha == 1.0 else baseline + math.log1p(-alpha)
    weight = of_baseline - log_unit
    positive, sums, paired, left = pairs.left_out(weight)
    own = xp.exp(-softplus(xp, -log_odds(xp, sums, weight))) / alpha  # mean of e^(g - b) of the positive's baseline b
    gradient = (-paired - log_unit) - (own - 1.0)
    # The same number, of logarithms so small that they do not cancel.
    finite = xp.logical_and(xp.logical_and(xp.isfinite(positive), xp.isfinite(sums.top)), unit > _TINY)
    own_score, top = (xp.where(finite, x, xp.zeros_like(x)) for x in (positive, sums.top))
    whole = log_odds(xp, ExpSum(top, sums.total * unit), own_score)
    whole = whole if alpha == 1.0 else log_add(xp, whole, of_baseline - own_score)
    whole = log_add(xp, log_unit, whole)
    value = (-whole - left) - (own - 1.0)
    value = xp.where(xp.logical_and(finite, xp.isfinite(value)), value, gradient)
    return pairs.reduced(with_gradient_of(gradient, value), reduction)


@programmed
def js(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the Jensen-Shannon bound (f-GAN): a lower bound on 2 JSD - 2 log 2, not on mutual information.

    .. math:: \hat J = -\frac1K \sum_i \log(1 + e^{-g_{ii}})
        - \frac{1}{K (N - 1)} \sum_i \sum_{j \ne i} \log(1 + e^{g_{ij}})

    The optimal scores are the log density ratio; the gradient is bounded.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf adds 0 to the sum. A
        positive of -inf makes the bound -inf.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with N ≥ K and N ≥ 2.

    See Also
    --------
    js_mi : Estimate of mutual information with this gradient.

    References
    ----------
    Nowozin, Cseke and Tomioka (2016), "f-GAN: Training Generative Neural Samplers using Variational Divergence
    Minimization", arXiv:1606.00709.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.js(2.0 * np.eye(4))
    array(-0.82007...)
    """
    pairs = ScorePairs.of(scores, positives, mask)
    return pairs.reduced(_js(pairs, SOFTPLUS), reduction)


@programmed
def js_mi(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return an estimate of mutual information with the Jensen-Shannon gradient: a lower bound for any scores.

    .. math:: \hat I = \frac1K \sum_i (g_{ii} + 1) - \frac{1}{K (N - 1)} \sum_i \sum_{j \ne i} e^{g_{ij}},

    that is, `nwj` of the scores plus 1, since the optimal scores of `nwj` are those of `js` plus 1. The gradient is
    that of `js`.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf adds 0 to the sum. A
        positive of -inf makes the bound -inf, with gradient 0.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with N ≥ K and N ≥ 2.

    References
    ----------
    Poole, Ozair, van den Oord, Alemi and Tucker (2019), "On Variational Bounds of Mutual Information",
    arXiv:1905.06922, section 2.3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.js_mi(2.0 * np.eye(4))
    array(2.)
    """
    pairs = ScorePairs.of(scores, positives, mask)
    positive, negatives = pair_sums(EXP, stop_gradient(pairs.scores), pairs.pairs)
    value = positive + 1.0 - negatives / pairs.number
    return pairs.reduced(value, reduction, surrogate=_js(pairs, SOFTPLUS_SLOPE))


@programmed
def smile(
    scores: ArrayOf[ArrayT],
    /,
    clip: float | None = 5.0,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
) -> ArrayT:
    r"""Return the smoothed estimate SMILE: neither a lower nor an upper bound.

    .. math:: \hat I = \frac1K \sum_i g_{ii}
        - \log \mathrm{mean}_{i,\, j \ne i}\, e^{\max(\min(g_{ij},\, \tau),\, -\tau)}

    with the gradient of `js`. Clipping the negatives trades variance for bias; without clipping, it is `dv` with this
    gradient.

    Parameters
    ----------
    scores : array, shape (K, N)
        Scores g of K rows against N ≥ K columns, positives on the diagonal. A negative of -inf is clipped too; it adds
        0 to the sum if `clip` is None. A positive of -inf makes the estimate -inf, with gradient 0; with `clip` None,
        it is inf without a finite negative, and NaN with both.
    clip : float or None, default: 5.0
        Limit τ > 0 of the negatives' scores; None disables clipping.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.

    Returns
    -------
    array
        Estimate in nats, 0-d, of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with N ≥ K and N ≥ 2, or `clip` is not positive.

    References
    ----------
    Song and Ermon (2020), "Understanding the Limitations of Variational Mutual Information Estimators",
    arXiv:1910.06222, equation 15.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.smile(8.0 * np.eye(4), clip=5.0)
    array(8.)
    """
    clip = math.inf if clip is None else check_number("clip", clip, above=0.0)
    pairs = ScorePairs.of(scores, positives, mask)
    constant = stop_gradient(pairs.scores)
    limited = constant + 0.0 if clip == math.inf else clipped(pairs.xp, constant, -clip, clip)
    _, sums = exp_sum(pairs.pairs.negatives(limited, -math.inf), PairSets())
    value = pairs.row_mean(pairs.pairs.positive(constant)) - pairs.log_mean(sums)
    return pairs.finish(with_gradient_of(pairs.row_mean(_js(pairs, SOFTPLUS_SLOPE)), value))


@programmed
def club(
    scores: ArrayOf[ArrayT],
    /,
    *,
    positives: AnyArray | None = None,
    mask: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the contrastive log-ratio bound: an upper bound if the scores are the true conditional log-densities.

    .. math:: \hat I = \frac1K \sum_i L_{ii} - \frac{1}{K (N - 1)} \sum_i \sum_{j \ne i} L_{ij}, \qquad
        L_{ij} = \log p(y_j \mid x_i)

    With a learned conditional it is neither. The negatives are the pairs j ≠ i, which makes it unbiased. The paper's
    equation 8 includes j = i, which gives :math:`(N - 1) / N` times this estimate.

    Parameters
    ----------
    scores : array, shape (K, N)
        Log-densities L of N ≥ K columns given each of K rows, positives on the diagonal. A negative of -inf makes the
        bound inf, a positive of -inf makes it -inf, and both make it NaN.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a matrix with N ≥ K and N ≥ 2.

    References
    ----------
    Cheng et al. (2020), "CLUB: A Contrastive Log-ratio Upper Bound of Mutual Information",
    arXiv:2006.12013, equation 8.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.club(np.asarray([[-1.0, -3.0], [-5.0, -1.0]]))
    array(3.)
    """
    pairs = ScorePairs.of(scores, positives, mask)
    positive, negatives = pairs.means(SCORE)
    return pairs.reduced(positive - negatives, reduction)


@programmed
def leave_one_out(
    scores: ArrayOf[ArrayT], /, *, mask: AnyArray | None = None, reduction: ReductionName = "mean"
) -> ArrayT:
    r"""Return the leave-one-out bound: an upper bound if the scores are the true conditional log-densities.

    .. math:: \hat I = \frac1K \sum_j \Big(L_{jj} - \log \frac{1}{K - 1} \sum_{i \ne j} e^{L_{ij}}\Big), \qquad
        L_{ij} = \log p(y_j \mid x_i)

    The sum runs over the rows x: the marginal density of a column is estimated from the other rows.

    Parameters
    ----------
    scores : array, shape (K, K)
        Log-densities L of K columns given each of K rows, positives on the diagonal. A negative of -inf adds 0 to the
        sum. A positive of -inf makes the bound -inf; a column whose other entries are all -inf makes it inf.
    mask : array of bool, shape (K, K), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the rows that count, sum, or one term per row, 0 for rows that do not count.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array.
    ValueError
        If `scores` is not a square matrix of at least two rows.

    References
    ----------
    Poole, Ozair, van den Oord, Alemi and Tucker (2019), "On Variational Bounds of Mutual Information",
    arXiv:1905.06922, equation 15.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.bounds.leave_one_out(np.asarray([[-1.0, -3.0], [-5.0, -1.0]]))
    array(3.)
    """
    xp, scores, _, mask, _ = enter_scores(scores, None, mask, None)
    check_square(scores, "; further columns have no positive")
    pairs = ScorePairs.of(xp.matrix_transpose(scores), None, None if mask is None else xp.matrix_transpose(mask))
    return pairs.finish(_below_log_number(pairs, EVERY_FLAT_NCE, reduction), reduction)


@programmed
def barber_agakov(scores: ArrayOf[ArrayT], /, entropy: float | AnyArray) -> ArrayT:
    r"""Return the bound of Barber and Agakov: a lower bound for any conditional density, given the entropy.

    .. math:: \hat I = H(Y) + \frac1K \sum_i \log q(y_i \mid x_i)

    Parameters
    ----------
    scores : array, shape (K,) or (K, N)
        Log-densities :math:`\log q(y_i \mid x_i)` of the pairs, or a matrix with them on the diagonal. A value of -inf
        makes the bound -inf.
    entropy : float or array of one entry
        Entropy of Y in nats; differentiable if an array.

    Returns
    -------
    array
        Bound in nats, 0-d, of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape or device is invalid.

    References
    ----------
    Barber and Agakov (2003), "The IM Algorithm: A Variational Approach to Information Maximization", NeurIPS 16.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> round(float(pnce.bounds.barber_agakov(np.log(np.asarray([0.8, 0.9])), np.log(2.0))), 6)
    0.528895
    """
    _, scores, entropy = enter_parameter(scores, entropy=entropy)
    xp, positive, dtype = _of_pairs(scores)
    entropy = scalar(xp, "entropy", entropy, positive)
    return finish(xp, entropy + sum_to_scalar(xp, positive) / positive.shape[0], dtype, "mean")


@programmed
def vub(scores: ArrayOf[ArrayT], log_marginal: AnyArray, /, *, reduction: ReductionName = "mean") -> ArrayT:
    r"""Return the variational upper bound: an upper bound for any marginal density, if the conditional is the true one.

    .. math:: \hat I = \frac1K \sum_i \log \frac{p(y_i \mid x_i)}{r(y_i)}

    Parameters
    ----------
    scores : array, shape (K,) or (K, N)
        Log-densities :math:`\log p(y_i \mid x_i)` of the pairs, or a matrix with them on the diagonal. A value of -inf
        makes the bound -inf.
    log_marginal : array, shape (K,)
        Log-densities :math:`\log r(y_i)`.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Mean over the pairs, sum, or one term per pair.

    Returns
    -------
    array
        Bound in nats, 0-d, or shape (K,) for reduction "none", of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape or device is invalid.

    References
    ----------
    Poole, Ozair, van den Oord, Alemi and Tucker (2019), "On Variational Bounds of Mutual Information",
    arXiv:1905.06922, equation 1.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> round(float(pnce.bounds.vub(np.log(np.asarray([0.8, 0.9])), np.log(np.asarray([0.5, 0.5])))), 6)
    0.528895
    """
    xp, (scores, log_marginal) = common_namespace(scores=scores, log_marginal=log_marginal)
    check_floating(xp, scores=scores, log_marginal=log_marginal)
    xp, positive, dtype = _of_pairs(scores)
    check_shape("log_marginal", log_marginal, tuple(positive.shape))
    ratios = positive - upcast(xp, log_marginal)
    check_choice("reduction", reduction, REDUCTIONS)
    if reduction != "none":
        ratios = sum_to_scalar(xp, ratios) / (ratios.shape[0] if reduction == "mean" else 1)
    return finish(xp, ratios, dtype, reduction)


@programmed
def standard_error(bound: Callable[..., Any], scores: ArrayOf[ArrayT], /, *, groups: int = 64) -> ArrayT:
    r"""Return the standard error of a bound, by the jackknife over pairs.

    Every y is a negative of every x, so the rows of a score matrix are dependent, and the standard deviation of the row
    terms over √K ignores the effect of a pair as a column. Here groups of pairs are deleted both as rows *and* as
    columns. With :math:`\hat I` of all K pairs and :math:`\hat I_{-g}` without the :math:`m_g` pairs of group g of G,

    .. math:: e_g = (K - m_g) (\hat I - \hat I_{-g}), \qquad
        \mathrm{SE} = \frac1K \sqrt{\frac{G}{G - 1} \sum_g (e_g - \bar e)^2}.

    It estimates the standard deviation of the bound over sets of K pairs, for a critic trained on other pairs. The
    bound is evaluated G + 1 times.

    Parameters
    ----------
    bound : function
        A bound of this module with the option `mask`, or a function ``bound(scores, mask=mask)`` that returns one
        number. Bind further arguments by a lambda: ``lambda scores, **mask: dual(scores, u, **mask)``.
    scores : array, shape (K, K)
        Scores of K ≥ 4 pairs, positives on the diagonal.
    groups : int, default: 64
        Number G ≥ 2 of groups of neighbouring pairs; K if K is smaller. Pairs that depend on their neighbours, as in a
        time series, need long groups. The standard error has a relative error of about :math:`1 / \sqrt{2 G}`.

    Returns
    -------
    array
        Standard error in nats, 0-d, of the library, dtype and device of `scores`; inf if a bound is infinite.

    Raises
    ------
    TypeError
        If `scores` is not a real floating-point array, `bound` not a function, or `groups` not an integer.
    ValueError
        If `scores` is not a square matrix of at least 4 pairs, `groups` is less than 2, or `bound` returns more than
        one number.

    References
    ----------
    Arvesen (1969), "Jackknifing U-Statistics", Annals of Mathematical Statistics 40(6).
    Efron and Stein (1981), "The Jackknife Estimate of Variance", Annals of Statistics 9(3): at least the variance, in
    expectation.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, noise = np.random.default_rng(0).normal(size=(2, 500))
    >>> scores = 1.0 - 0.5 * (x[:, None] - x - noise) ** 2
    >>> round(float(pnce.bounds.info_nce(scores)), 3)
    0.262
    >>> round(float(pnce.bounds.standard_error(pnce.bounds.info_nce, scores)), 3)
    0.029
    """
    check_callable("bound", bound)
    groups = check_whole_number("groups", groups, least=2)
    xp, (scores,) = common_namespace(scores=scores)
    check_floating(xp, scores=scores)
    pairs, columns = shape_of("scores", scores, "(K, K)")
    if pairs != columns or pairs < FEWEST_PAIRS:
        raise ValueError(
            f"scores: expected a square matrix of at least {FEWEST_PAIRS} pairs, got shape {(pairs, columns)}"
        )
    dtype, scores = scores.dtype, upcast(xp, scores)
    groups = min(groups, pairs)
    numbers, values, kept = xp.arange(pairs, device=device_of(scores)), [_one_number(bound(scores))], []
    for group in range(groups):
        first, end = group * pairs // groups, (group + 1) * pairs // groups
        stays = xp.logical_or(numbers < first, numbers >= end)
        values.append(_one_number(bound(scores, mask=xp.logical_and(stays[:, None], stays[None, :]))))
        kept.append(float(pairs - (end - first)))
    result = xp.stack(values)
    infinite = xp.isinf(result)
    result = xp.where(infinite, xp.zeros_like(result), result)
    influence = xp.asarray(kept, dtype=result.dtype, device=device_of(scores)) * (result[0] - result[1:])
    squares = (influence - sum_to_scalar(xp, influence) / groups) ** 2
    error = safe_sqrt(xp, groups * sum_to_scalar(xp, squares) / (groups - 1)) / pairs
    return finish(xp, xp.where(xp.any(infinite), xp.full_like(error, math.inf), error), dtype, "mean")


@overload
def log_n_ceiling(
    scores: ArrayOf[ArrayT], /, *, positives: AnyArray | None = None, mask: AnyArray | None = None
) -> ArrayT: ...
@overload
def log_n_ceiling(scores: SupportsIndex, /, *, positives: None = None, mask: None = None) -> float: ...
@programmed
def log_n_ceiling(
    scores: ArrayOf[Any] | SupportsIndex, /, *, positives: AnyArray | None = None, mask: AnyArray | None = None
) -> Any:
    r"""Return the ceiling of the InfoNCE bound: :math:`\log N`.

    Parameters
    ----------
    scores : array, shape (K, N), or int
        Score matrix, or its number of columns N, positive included.
    positives : array of int, shape (K,), optional
        Column of each row's positive; the diagonal by default. For separate negatives per row, put the positive into
        column 0 and pass zeros.
    mask : array of bool, shape (K, N), optional
        Pairs to include; all by default. See `portable_nce.bounds` for the effect on the counts.

    Returns
    -------
    array or float
        Ceiling in nats: 0-d, of the library, dtype and device of `scores`; a float for an integer.

    Raises
    ------
    TypeError
        If `scores` is neither an integer nor a real floating-point array.
    ValueError
        If `scores` is not a matrix with N ≥ K, or an integer below 1.

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
    number = as_integer(scores)
    if number is not None:
        if number < 1:
            raise ValueError(f"scores: expected at least one column, got {number}")
        if positives is not None or mask is not None:
            name, result = ("mask", mask) if positives is None else ("positives", positives)
            raise ValueError(
                f"{name}: expected None with a number of columns, got {type(result).__name__}; pass the score matrix"
            )
        return math.log(number)
    if not is_array(scores):
        raise TypeError(f"scores: expected an array or an integer, got {type(scores).__name__}")
    pairs = ScorePairs.of(scores, positives, mask, least=1)
    return pairs.finish(pairs.reduced_log_number("mean", 1))


def _below_log_number(
    pairs: ScorePairs, objective: Objective, reduction: ReductionName, extra: int = 0, *, constant: bool = False
) -> Array:
    """Reduced logarithm of the number of negatives plus `extra`, minus the losses of the rows, not yet rounded."""
    losses = pairs.loss(objective, reduction, constant=constant)
    # Not by an operator: a plain array as its left operand does not know a recorded one.
    return pairs.xp.subtract(pairs.reduced_log_number(reduction, extra), losses)


def _one_number(value: Any) -> Array:
    """Value of a bound, checked to be one number."""
    if not is_array(value) or tuple(value.shape):
        result = shape_or_type(value)
        raise ValueError(f"bound: expected a function of scores and mask to one number, got {result}")
    return value


def _with_baseline(
    scores: Array, log_baseline: Any, positives: Array | None, mask: Array | None
) -> tuple[ScorePairs, Array]:
    """Checked scores, and the baseline of each row."""
    _, scores, log_baseline = enter_parameter(scores, log_baseline=log_baseline)
    pairs = ScorePairs.of(scores, positives, mask)
    xp = pairs.xp
    rows = xp.zeros_like(pairs.scores[:, 0])
    if is_array(log_baseline) and len(log_baseline.shape) == 1 and log_baseline.shape[0] != 1:
        check_floating(xp, log_baseline=log_baseline)
        check_shape("log_baseline", log_baseline, tuple(rows.shape))
        return pairs, rows + cast(log_baseline, rows.dtype)
    return pairs, rows + scalar(xp, "log_baseline", log_baseline, pairs.scores)


def _of_pairs(scores: Array) -> tuple[Namespace, Array, object]:
    """Entries of the pairs, from an array (K,) or the diagonal of a matrix."""
    if len(scores.shape) != 1:
        pairs = ScorePairs.of(scores, None, None, least=1)
        return pairs.xp, pairs.positive(), pairs.dtype
    xp, (scores,) = common_namespace(scores=scores)
    check_floating(xp, scores=scores)
    shape_of("scores", scores, "(K)")
    return xp, upcast(xp, scores), scores.dtype


def _js(pairs: ScorePairs, term: PairTerm) -> Array:
    """Terms of `js`, by the softplus, or by what has its slope."""
    positive, negatives = pairs.means(term)
    return -softplus(pairs.xp, -positive) - negatives


def _tuba(pairs: ScorePairs, baseline: Array) -> Array:
    positive, negatives = pairs.means(EXP, shift=baseline)
    return 1.0 + (positive - baseline) - negatives
