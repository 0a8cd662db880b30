r"""Estimation of a conditional density p(x | c) from samples and noise.

``s(x, c)`` is a model's unnormalised log-probability of ``x`` in the context ``c``, and ``q`` the noise density, with
respect to the same measure. The caller draws the noise and computes its log-densities. The optimum of each loss:

==================== ==========================================================================
loss                 optimal scores
==================== ==========================================================================
`local_nce`          :math:`\log p(x \mid c)`, self-normalised
`ranking_nce`        :math:`\log p(x \mid c)` plus any function of the context
`info_nce_anchor`    :math:`\log p(x \mid c)`, self-normalised
`negative_sampling`  :math:`\log p(x \mid c) - \log q(x) - \log k`
`sampled_softmax`    :math:`\log p(x \mid c)` plus any function of the context, as k grows
`full_softmax`       :math:`\log p(x \mid c)` plus any function of the context
`linear_softmax`     as `full_softmax`, for embeddings and a linear layer
`nre_a`, `nre_c`     :math:`\log p(x \mid c) - \log q(x)`
`nre_b`              :math:`\log p(x \mid c) - \log q(x)` plus any function of the context
==================== ==========================================================================

A score of -inf is a probability of 0. A noise sample of score -inf adds 0 to the loss or to the sum, and still counts
in k; use `mask` to exclude it from k. Data of score -inf have infinite loss, with a finite gradient. Only
`full_softmax` treats -inf as a mask, as `portable_nce.from_scores` does.

A context without samples has the loss of k = 0 and counts in a mean: 0 in `local_nce` and `ranking_nce`, as for a row
without negatives in InfoNCE. It does not count if the formula divides by k or takes the logarithm of an empty sum: in
`info_nce_anchor`, `nre_a`, `nre_c` and `balance_penalty`, and in `sampled_softmax` without `include_positive`.

`nre_a`, `nre_b` and `nre_c` are losses of simulation-based inference: x are the parameters of a simulator, c is its
output, and q the prior.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ._core.autodiff import stop_gradient
from ._core.calls import programmed
from ._core.checks import (
    check_bool,
    check_choice,
    check_floating,
    check_indices,
    check_log_probabilities,
    check_mask,
    check_number,
    check_pair_weights,
    check_shape,
    indices_of,
    refuses_other_names,
    row_weights,
    shape_of,
    warn_of_negative,
)
from ._core.left_out import left_out, log_odds
from ._core.logsumexp import ExpSum
from ._core.namespace import common_namespace, device_of, is_number
from ._core.numerics import as_scores, inside_range, nan_outside, safe_sqrt, sigmoid, softplus, upcast
from ._core.pair_sums import SIGMOID, SOFTPLUS, PairSets, PairTerm, exp_sum, log_shares, pair_sums
from ._core.protocol import Array, Namespace
from ._core.reduction import REDUCTIONS, Reduction, finish
from ._core.types import AnyArray, ArrayOf, ArrayT, ReductionName
from ._execution.live import counted_by, zeroed, zeroed_entries
from ._losses.linear_softmax import SoftmaxStatistics, linear_softmax
from .from_scores import info_nce, log_of

__all__ = [
    "SelfNormalization",
    "SoftmaxStatistics",
    "balance_penalty",
    "full_softmax",
    "info_nce_anchor",
    "linear_softmax",
    "local_nce",
    "log_partition",
    "negative_sampling",
    "nre_a",
    "nre_b",
    "nre_c",
    "ranking_nce",
    "recover_log_prob",
    "sampled_softmax",
    "self_normalization",
]

__dir__ = __all__.copy  # what completion offers

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = refuses_other_names(__name__)


@programmed
def local_nce(
    data_scores: ArrayOf[ArrayT],
    noise_scores: AnyArray,
    data_log_q: float | AnyArray,
    noise_log_q: float | AnyArray,
    /,
    *,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the loss of local (binary) noise-contrastive estimation: each sample is classified as data or noise.

    .. math:: \ell_i = \log(1 + e^{-\Delta_i}) + \sum_{j=1}^k \log(1 + e^{\Delta_{ij}}), \qquad
        \Delta = s - \log k - \log q

    Its optimum is :math:`s = \log p(x \mid c)`, self-normalised; as k grows its gradient tends to :math:`e^s - p`.

    Parameters
    ----------
    data_scores : array, shape (N,)
        Scores s of the data, one for each context: unnormalised log-probabilities. A score of -inf makes the loss inf.
    noise_scores : array, shape (N, k)
        Scores of k noise samples for each context. A sample of score -inf adds nothing to the loss, and counts in k.
    data_log_q : float or array, shape () or (N,)
        Log-density of the noise at the data; a number if uniform.
    noise_log_q : float or array, shape (), (N, k) or (k,)
        Log-density of the noise at the samples.
    mask : array of bool, shape (N, k), optional
        Samples to include; all by default. Their number is the context's k; a context without samples counts, with loss
        0.
    weights : array, shape (N,), optional
        Weights of the contexts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the contexts, weighted sum, or the weighted losses of the contexts.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `data_scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Gutmann and Hyvärinen (2010), "Noise-contrastive estimation: A new estimation principle for unnormalized statistical
    models", AISTATS, equation 3. Mnih and Teh (2012), "A Fast and Simple Algorithm for Training Neural
    Probabilistic Language Models", arXiv:1206.6426.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> data, noise = np.asarray([-1.0, -0.5]), np.asarray([[-2.0, -1.0], [-3.0, -0.5]])
    >>> pnce.density.local_nce(data, noise, -1.5, -1.5)
    array(1.58799...)
    """
    checked = _enter(data_scores, noise_scores, (data_log_q, noise_log_q), mask, weights, reduction, needs_samples=True)
    xp, number = checked.xp, checked.number()
    some = number > 0
    log_k = xp.where(some, xp.log(xp.where(some, number, xp.ones_like(number))), -math.inf)
    return checked.binary(
        checked.data - log_k - checked.data_q, checked.noise - xp.expand_dims(log_k, axis=1) - checked.noise_q
    )


@programmed
def negative_sampling(
    data_scores: ArrayOf[ArrayT],
    noise_scores: AnyArray,
    /,
    *,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    pair_weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the loss of negative sampling (word2vec): local NCE without the noise density.

    .. math:: \ell_i = \log(1 + e^{-s_i}) + \sum_{j=1}^k w_{ij} \log(1 + e^{s_{ij}})

    Without weights w, it equals `local_nce` if :math:`k\, q(x) = 1` for every x; otherwise its optimum,
    :math:`\log p(x \mid c) - \log q(x) - \log k`, is not a density.

    Parameters
    ----------
    data_scores : array, shape (N,)
        Scores s of the data, one for each context: unnormalised log-probabilities. A score of -inf makes the loss inf.
    noise_scores : array, shape (N, k)
        Scores of k noise samples for each context. A sample of score -inf adds nothing to the loss.
    mask : array of bool, shape (N, k), optional
        Samples to include; all by default. A context without samples counts, with the loss of its data alone.
    weights : array, shape (N,), optional
        Weights of the contexts.
    pair_weights : array of float, shape (N, k), optional
        Weights w ≥ 0 of the samples, without gradient; 1 by default. Weight 0 leaves a sample out, as a mask does.
        Self-adversarial weights are a softmax of each row.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the contexts, weighted sum, or the weighted losses of the contexts.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `data_scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Mikolov, Sutskever, Chen, Corrado and Dean (2013), "Distributed Representations of Words and Phrases and their
    Compositionality", arXiv:1310.4546, equation 4. Sun, Deng, Nie and Tang (2019), "RotatE: Knowledge Graph Embedding
    by Relational Rotation in Complex Space", arXiv:1902.10197, equation 5: self-adversarial weights.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.density.negative_sampling(np.asarray([2.0, 1.0]), np.asarray([[-1.0, 0.0], [-2.0, 0.5]]))
    array(1.27380...)
    """
    checked = _enter(data_scores, noise_scores, (0.0, 0.0), mask, weights, reduction, pair_weights=pair_weights)
    return checked.binary(checked.data, checked.noise)


@programmed
def ranking_nce(
    data_scores: ArrayOf[ArrayT],
    noise_scores: AnyArray,
    /,
    data_log_q: float | AnyArray | None = None,
    noise_log_q: float | AnyArray | None = None,
    *,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the ranking (global) NCE loss: the cross-entropy of the data among k + 1 samples.

    .. math:: \ell_i = \mathrm{lse}\big(\bar s_i, \bar s_{i1}, \dots, \bar s_{ik}\big) - \bar s_i, \qquad
        \bar s = s - \log q

    Its optimum is :math:`\log p(x \mid c)` plus any function of the context; as k grows its gradient tends to that of
    `full_softmax`. Without densities it is InfoNCE, whose optimum is :math:`\log p / q` plus any function of the
    context.

    Parameters
    ----------
    data_scores : array, shape (N,)
        Scores s of the data, one for each context: unnormalised log-probabilities. A score of -inf makes the loss inf,
        unless no sample has a finite score: then it is 0.
    noise_scores : array, shape (N, k)
        Scores of k noise samples for each context. A sample of score -inf adds nothing to the sum.
    data_log_q : float or array, shape () or (N,), optional
        Log-density of the noise at the data; a number if uniform. None for both applies no correction.
    noise_log_q : float or array, shape (), (N, k) or (k,), optional
        Log-density of the noise at the samples.
    mask : array of bool, shape (N, k), optional
        Samples to include; all by default. A context without samples counts, with loss 0.
    weights : array, shape (N,), optional
        Weights of the contexts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the contexts, weighted sum, or the weighted losses of the contexts.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `data_scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Ma and Collins (2018), "Noise Contrastive Estimation and Negative Sampling for Conditional Models: Consistency and
    Statistical Efficiency", arXiv:1809.01812, equation 3. Jozefowicz et al. (2016), "Exploring the Limits of Language
    Modeling", arXiv:1602.02410.

    Examples
    --------
    PyTorch, with a language model of 1000 words and 64 noise words per context:

    >>> import torch
    >>> import portable_nce as pnce
    >>> logits = torch.randn(256, 1000, requires_grad=True)
    >>> word = torch.randint(1000, (256,))
    >>> noise_log_q = torch.rand(1000).log_softmax(dim=0)
    >>> noise = torch.multinomial(noise_log_q.exp(), 256 * 64, replacement=True).reshape(256, 64)
    >>> data_scores, noise_scores = logits[torch.arange(256), word], logits.gather(1, noise)
    >>> pnce.density.ranking_nce(data_scores, noise_scores, noise_log_q[word], noise_log_q[noise]).backward()
    >>> logits.grad.shape
    torch.Size([256, 1000])

    NumPy; data and model are standard normal, and the noise is twice as wide:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, z = rng.standard_normal(256), 2.0 * rng.standard_normal((256, 64))
    >>> value, gradient = pnce.value_and_grad(pnce.density.ranking_nce)(
    ...     -(x**2) / 2, -(z**2) / 2, -(x**2) / 8, -(z**2) / 8
    ... )
    >>> value, gradient.shape
    (array(3.86667...), (256,))
    """
    if (data_log_q is None) != (noise_log_q is None):
        name = "data_log_q" if data_log_q is None else "noise_log_q"
        raise TypeError(
            f"{name}: expected the log-density of the noise as in the other argument, or None in both; got None"
        )
    log_q = (0.0, 0.0) if data_log_q is None else (data_log_q, noise_log_q)
    checked = _enter(data_scores, noise_scores, log_q, mask, weights, reduction)
    return checked.ranking(checked.data - checked.data_q, checked.noise - checked.noise_q)


@programmed
def info_nce_anchor(
    data_scores: ArrayOf[ArrayT],
    noise_scores: AnyArray,
    data_log_q: float | AnyArray,
    noise_log_q: float | AnyArray,
    /,
    *,
    nu: float = 1.0,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the ranking NCE loss with an anchor, whose optimum is self-normalised.

    With k samples and the ratios :math:`r = e^s / q` of the data and of the samples,

    .. math:: \ell_i = \frac1k \sum_{m=1}^k \log\Big(1 + \frac{\nu + \sum_{j \ne m} r_{ij}}{r_i}\Big)
        + \frac\nu k \log\Big(1 + \frac1\nu \sum_{j=1}^k r_{ij}\Big).

    It is the cross-entropy of k + 1 classes: which of k samples is the data, as in `ranking_nce`, or that none is (the
    anchor, of prior weight ν). Its optimum is :math:`s = \log p(x \mid c)`: the anchor fixes the function of the
    context that ranking leaves free. With k = 1 and ν = 1 it is `local_nce`.

    Parameters
    ----------
    data_scores : array, shape (N,)
        Scores s of the data, one for each context: unnormalised log-probabilities. A score of -inf makes the loss inf.
    noise_scores : array, shape (N, k)
        Scores of k noise samples for each context. A sample of score -inf adds nothing to the sums, and counts in k.
    data_log_q : float or array, shape () or (N,)
        Log-density of the noise at the data; a number if uniform.
    noise_log_q : float or array, shape (), (N, k) or (k,)
        Log-density of the noise at the samples.
    nu : float, default: 1.0
        Prior weight ν > 0 of the anchor, relative to each other class. As ν → 0 the loss becomes `ranking_nce` with
        k - 1 samples.
    mask : array of bool, shape (N, k), optional
        Samples to include; all by default. Their number is the context's k; a context without samples does not count.
    weights : array, shape (N,), optional
        Weights of the contexts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the contexts, weighted sum, or the weighted losses of the contexts.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `data_scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid, or `nu` is not a positive finite float32 number.

    See Also
    --------
    portable_nce.bounds.info_nce_anchor : A constant minus this loss of a score matrix: a bound on mutual information.

    References
    ----------
    Ryu, Yeddanapudi, Xu and Wornell (2025), "Contrastive Predictive Coding Done Right for Mutual Information
    Estimation", arXiv:2510.25983.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> data, noise = np.asarray([-1.0, -0.5]), np.asarray([[-2.0, -1.0], [-3.0, -0.5]])
    >>> round(float(pnce.density.info_nce_anchor(data, noise, -1.5, -1.5)), 6)
    1.355908
    """
    nu = check_number("nu", nu, above=0.0)
    checked = _enter(data_scores, noise_scores, (data_log_q, noise_log_q), mask, weights, reduction, needs_samples=True)
    number, counted = checked.samples()
    log_nu = log_of(checked.xp, nu, number)
    paired, anchored = checked.anchored(checked.data - checked.data_q, checked.noise - checked.noise_q, log_nu)
    return checked.reduced(paired + anchored * (nu / number), counted)


@programmed
def nre_a(
    data_scores: ArrayOf[ArrayT],
    noise_scores: AnyArray,
    /,
    *,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the loss of binary neural ratio estimation (NRE-A): true parameters against draws from the prior.

    .. math:: \ell_i = \tfrac12 \log(1 + e^{-s_i}) + \frac{1}{2k} \sum_{j=1}^k \log(1 + e^{s_{ij}})

    Both classes have weight 1/2 for every k. Its optimum is the log likelihood-to-evidence ratio,
    :math:`s = \log p(x \mid c) / q(x)`, for a simulation c, parameters x and their prior q.

    Parameters
    ----------
    data_scores : array, shape (N,)
        Scores s of N simulations with their parameters. A score of -inf makes the loss inf.
    noise_scores : array, shape (N, k)
        Scores of each simulation with k parameters drawn from the prior. A sample of score -inf adds nothing to the
        loss, and counts in k.
    mask : array of bool, shape (N, k), optional
        Samples to include; all by default. A simulation without samples does not count.
    weights : array, shape (N,), optional
        Weights of the simulations.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the simulations, weighted sum, or the weighted losses of the simulations.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `data_scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    balance_penalty : Makes the estimate conservative.

    References
    ----------
    Hermans, Begy and Louppe (2020), "Likelihood-free MCMC with Amortized Approximate Ratio Estimators",
    arXiv:1903.04057.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> own, others = np.asarray([2.0, 1.0]), np.asarray([[-1.0, 0.0], [-2.0, 0.5]])
    >>> round(float(pnce.density.nre_a(own, others)), 6)
    0.373474
    """
    checked = _enter(data_scores, noise_scores, (0.0, 0.0), mask, weights, reduction, needs_samples=True)
    noise_mean, counted = checked.mean(SOFTPLUS)
    return checked.reduced(0.5 * softplus(checked.xp, -checked.data) + 0.5 * noise_mean, counted)


@programmed
def nre_b(
    data_scores: ArrayOf[ArrayT],
    noise_scores: AnyArray,
    /,
    *,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the loss of neural ratio estimation by ranking (NRE-B): which of k + 1 parameters is the true one.

    .. math:: \ell_i = \log\Big(1 + \sum_{j=1}^k e^{s_{ij} - s_i}\Big)

    Its optimum is :math:`s = \log p(x \mid c) / q(x)` plus any function of the simulation c. It is `ranking_nce`
    without densities, that is, InfoNCE with k + 1 "atoms".

    Parameters
    ----------
    data_scores : array, shape (N,)
        Scores s of N simulations with their parameters. A score of -inf makes the loss inf, unless no sample has a
        finite score: then it is 0.
    noise_scores : array, shape (N, k)
        Scores of each simulation with k parameters drawn from the prior. A sample of score -inf adds nothing to the
        sum.
    mask : array of bool, shape (N, k), optional
        Samples to include; all by default. A simulation without samples counts, with loss 0.
    weights : array, shape (N,), optional
        Weights of the simulations.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the simulations, weighted sum, or the weighted losses of the simulations.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `data_scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    nre_c : Ranking with an anchor class, which fixes the function of the simulation.

    References
    ----------
    Durkan, Murray and Papamakarios (2020), "On Contrastive Learning for Likelihood-free Inference", arXiv:2002.03712.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> own, others = np.asarray([2.0, 1.0]), np.asarray([[-1.0, 0.0], [-2.0, 0.5]])
    >>> round(float(pnce.density.nre_b(own, others)), 6)
    0.337221
    """
    checked = _enter(data_scores, noise_scores, (0.0, 0.0), mask, weights, reduction)
    return checked.ranking(checked.data, checked.noise)


@programmed
def nre_c(
    data_scores: ArrayOf[ArrayT],
    noise_scores: AnyArray,
    /,
    *,
    gamma: float = 1.0,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return the loss of contrastive neural ratio estimation (NRE-C): ranking with an anchor class.

    With k samples and :math:`r = e^s`,

    .. math:: \ell_i = \frac{\gamma}{1 + \gamma}\, \frac1k \sum_{m=1}^k
        \log\Big(1 + \frac{k / \gamma + \sum_{j \ne m} r_{ij}}{r_i}\Big)
        + \frac{1}{1 + \gamma} \log\Big(1 + \frac{\gamma}{k} \sum_{j=1}^k r_{ij}\Big).

    One of K = k parameters belongs to the simulation (first term), or none does (second term). In the first term the
    simulation's parameters replace one of the samples; the loss averages over all replacements, which equals the
    paper's loss in expectation, with less variance. Its optimum is :math:`s = \log p(x \mid c) / q(x)`, without a free
    function of the simulation.

    With k = 1 and γ = 1 it is `nre_a`. For γ → ∞ the anchor vanishes, and it is the mean of `nre_b` over the choices of
    k - 1 samples, with a free function of the simulation. For finite γ it is :math:`\gamma / (1 + \gamma)` times
    `info_nce_anchor` with ν = k / γ and q = 1.

    Parameters
    ----------
    data_scores : array, shape (N,)
        Scores s of N simulations with their parameters. A score of -inf makes the loss inf.
    noise_scores : array, shape (N, k)
        Scores of each simulation with k parameters drawn from the prior. A sample of score -inf adds nothing to the
        sums, and counts in k.
    gamma : float, default: 1.0
        Odds γ > 0 that a parameter belongs to the simulation; `math.inf` is exact.
    mask : array of bool, shape (N, k), optional
        Samples to include; all by default. Their number is the simulation's k; a simulation without samples does not
        count.
    weights : array, shape (N,), optional
        Weights of the simulations.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the simulations, weighted sum, or the weighted losses of the simulations.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `data_scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid, or `gamma` is neither `math.inf` nor a positive finite float32 number.

    References
    ----------
    Miller, Weniger and Forré (2022), "Contrastive Neural Ratio Estimation", arXiv:2210.06170.

    Examples
    --------
    >>> import math
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> own, others = np.asarray([2.0, 1.0]), np.asarray([[-1.0, 0.0], [-2.0, 0.5]])
    >>> [round(float(pnce.density.nre_c(own, others, gamma=gamma)), 6) for gamma in (1.0, 100.0, math.inf)]
    [0.545894, 0.22018, 0.174545]
    """
    if not (is_number(gamma) and gamma == math.inf):
        gamma = check_number("gamma", gamma, above=0.0)
    checked = _enter(data_scores, noise_scores, (0.0, 0.0), mask, weights, reduction, needs_samples=True)
    xp, (number, counted) = checked.xp, checked.samples()
    # ν = k / γ. For γ = ∞, log ν is below any score, so that its exponential is negligible.
    log_nu = xp.full_like(number, -_LOWEST) if gamma == math.inf else xp.log(number) - log_of(xp, gamma, number)
    paired, anchored = checked.anchored(checked.data, checked.noise, log_nu)
    return checked.reduced(paired if gamma == math.inf else (paired * gamma + anchored) / (1.0 + gamma), counted)


@programmed
def balance_penalty(
    data_scores: ArrayOf[ArrayT],
    noise_scores: AnyArray,
    /,
    *,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
) -> ArrayT:
    r"""Return the penalty of balanced neural ratio estimation (BNRE), for conservative posteriors.

    .. math:: \Big(\operatorname{mean}_i \Big[\sigma(s_i) + \frac1k \sum_{j=1}^k \sigma(s_{ij})\Big] - 1\Big)^2

    The optimal classifier is balanced: for the optimal scores of `nre_a` and `nre_c`, the penalty is 0 in expectation.
    Added with a weight, often 100, it makes classifiers less confident on average: ``nre_a(data_scores, noise_scores) +
    100.0 * balance_penalty(data_scores, noise_scores)``.

    Parameters
    ----------
    data_scores : array, shape (N,)
        Scores s of N simulations with their parameters.
    noise_scores : array, shape (N, k)
        Scores of each simulation with k parameters drawn from the prior.
    mask : array of bool, shape (N, k), optional
        Samples to include; all by default. A simulation without samples does not count.
    weights : array, shape (N,), optional
        Weights of the simulations.

    Returns
    -------
    array
        Penalty, 0-d, from 0 to 1, of the library, dtype and device of `data_scores`; 0 if no simulation counts.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape or device is invalid.

    References
    ----------
    Delaunoy, Hermans, Rozet, Wehenkel and Louppe (2022), "Towards Reliable Simulation-Based Inference with Balanced
    Neural Ratio Estimation", arXiv:2208.13624.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> own, others = np.asarray([2.0, 1.0]), np.asarray([[-1.0, 0.0], [-2.0, 0.5]])
    >>> round(float(pnce.density.balance_penalty(own, others)), 6)
    0.033701
    """
    checked = _enter(data_scores, noise_scores, (0.0, 0.0), mask, weights, needs_samples=True)
    xp = checked.xp
    # σ(s) - 1 = -σ(-s) avoids cancellation: for a good classifier both terms are small.
    noise_mean, counted = checked.mean(SIGMOID)
    excess = Reduction("mean", checked.weights).of_values(noise_mean - sigmoid(xp, -checked.data), counted)
    return finish(xp, excess * excess, checked.dtype, "mean")


@programmed
def log_partition(
    noise_scores: ArrayOf[ArrayT], noise_log_q: float | AnyArray, /, *, mask: AnyArray | None = None
) -> ArrayT:
    r"""Return the logarithm of the partition function of each context, estimated by importance sampling.

    .. math:: \log \hat Z = \mathrm{lse}_{j=1}^k (s_j - \log q_j) - \log k

    The estimate of Z is unbiased; its logarithm is biased downwards.

    Parameters
    ----------
    noise_scores : array, shape (N, k)
        Scores s of k samples for each context. A score of -inf adds nothing to the sum, and counts in k.
    noise_log_q : float or array, shape (), (N, k) or (k,)
        Log-density of the distribution that the samples were drawn from.
    mask : array of bool, shape (N, k), optional
        Samples to include in the mean; all by default.

    Returns
    -------
    array
        Logarithm of the partition function in nats, shape (N,), of the library, dtype and device of `noise_scores`;
        -inf without samples, or if all scores are -inf.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Bengio and Senécal (2003), "Quick Training of Probabilistic Neural Nets by Importance Sampling", AISTATS.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.density.log_partition(np.asarray([[-2.0, -1.0], [-3.0, -0.5]]), -1.5)
    array([0.12..., 0.38...])
    """
    names = ("", "noise_scores", "", "noise_log_q")
    checked = _enter(None, noise_scores, (0.0, noise_log_q), mask, names=names)
    return finish(checked.xp, checked.log_mean(checked.log_sum()), checked.dtype, "none")


@programmed
def sampled_softmax(
    data_scores: ArrayOf[ArrayT],
    noise_scores: AnyArray,
    data_log_q: float | AnyArray | None,
    noise_log_q: float | AnyArray,
    /,
    *,
    include_positive: bool = True,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return minus the log-probability of the data, with a sampled partition function.

    .. math:: \ell_i = \log \hat Z_i - s_i, \qquad \log \hat Z_i = \mathrm{lse}_j (s_{ij} - \log q_{ij}) - \log k

    With `include_positive` the data are among the k + 1 samples, and the gradient is that of `ranking_nce`. **Without
    it, the loss has no lower bound**, since the model can raise the scores of the data alone, and a context without
    samples does not count.

    Parameters
    ----------
    data_scores : array, shape (N,)
        Scores s of the data, one for each context: unnormalised log-probabilities. A score of -inf makes the loss inf,
        unless no sample has a finite score.
    noise_scores : array, shape (N, k)
        Scores of k noise samples for each context. A sample of score -inf adds nothing to the sum, and counts in k. If
        no sample has a finite score, the loss of the context is :math:`-\log q - \log(k + 1)`; without
        `include_positive` the context does not count.
    data_log_q : float or array, shape () or (N,), or None
        Log-density of the noise at the data; a number if uniform. Unused without `include_positive`, when it may be
        None.
    noise_log_q : float or array, shape (), (N, k) or (k,)
        Log-density of the noise at the samples.
    include_positive : bool, default: True
        Whether the data are among the samples.
    mask : array of bool, shape (N, k), optional
        Samples to include; all by default.
    weights : array, shape (N,), optional
        Weights of the contexts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the contexts, weighted sum, or the weighted losses of the contexts.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `data_scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Bengio and Senécal (2003), "Quick Training of Probabilistic Neural Nets by Importance Sampling", AISTATS. Jean, Cho,
    Memisevic and Bengio (2015), "On Using Very Large Target Vocabulary for Neural Machine Translation",
    arXiv:1412.2007, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> data, noise = np.asarray([-1.0, -0.5]), np.asarray([[-2.0, -1.0], [-3.0, -0.5]])
    >>> pnce.density.sampled_softmax(data, noise, -1.5, -1.5)
    array(1.19...)
    """
    include_positive = check_bool("include_positive", include_positive)
    if include_positive and data_log_q is None:
        raise TypeError("data_log_q: expected a number or an array with include_positive, got None")
    log_q = (0.0 if data_log_q is None else data_log_q, noise_log_q)
    checked = _enter(data_scores, noise_scores, log_q, mask, weights, reduction)
    xp, data, sums = checked.xp, checked.data, checked.log_sum()
    some = sums.top != -math.inf
    if not include_positive:
        log_z = xp.where(some, checked.log_mean(sums), data)
        return checked.reduced(log_z - data, some)
    # log(e^L + e^(s - log q)) - s with the log-odds u = L - (s - log q) of the samples is softplus(u) - log q and
    # softplus(-u) + L - s: the form is chosen so that neither slope, sigmoid(u) - 1 by log q or sigmoid(-u) - 1 by s,
    # cancels.
    log_q = xp.zeros_like(data) + checked.data_q
    top = xp.where(some, sums.top, xp.zeros_like(data))
    rest_of_sum = sums.log_total(xp)
    odds = xp.where(some, (top - (data - log_q)) + rest_of_sum, xp.zeros_like(data))
    behind = odds > 0
    ahead_loss = xp.where(some, softplus(xp, xp.where(behind, xp.zeros_like(odds), odds)), xp.zeros_like(odds)) - log_q
    behind_loss = softplus(xp, -xp.where(behind, odds, xp.zeros_like(odds))) + ((top - data) + rest_of_sum)
    return checked.reduced(xp.where(behind, behind_loss, ahead_loss) - xp.log(checked.number() + 1.0))


@programmed
def full_softmax(
    scores: ArrayOf[ArrayT],
    targets: AnyArray,
    /,
    *,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
) -> ArrayT:
    r"""Return minus the log-probability of the data, with the exact partition function.

    .. math:: \ell_i = \mathrm{lse}_x\, s(x, c_i) - s(x_i, c_i)

    Parameters
    ----------
    scores : array, shape (N, V)
        Scores s of all V values of x, for each context. A score of -inf masks its value; a context whose target is
        masked does not count.
    targets : array of int, shape (N,)
        Index of the observed value of each context, from 0 to V - 1. Out-of-range indices raise for NumPy and eager
        PyTorch CPU tensors; elsewhere loss and gradients are NaN.
    mask : array of bool, shape (N, V), optional
        Values to include; all by default.
    weights : array, shape (N,), optional
        Weights of the contexts.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the contexts, weighted sum, or the weighted losses of the contexts.

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
    Bengio, Ducharme, Vincent and Jauvin (2003), "A Neural Probabilistic Language Model", JMLR 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.density.full_softmax(np.asarray([[0.0, 1.0, 2.0]]), np.asarray([2]))
    array(0.40760...)
    """
    xp, (scores, targets) = common_namespace(scores=scores, targets=targets)
    check_floating(xp, scores=scores)
    rows, values = shape_of("scores", scores, "(N, V)")
    targets = indices_of(xp, "targets", targets, (rows,))
    if not check_indices("targets", targets, values, "the columns of scores"):
        inside, targets = inside_range(xp, targets, values)
        scores = nan_outside(scores, inside)
    return info_nce(scores, positives=targets, mask=mask, weights=weights, reduction=reduction)


@programmed
def recover_log_prob(scores: ArrayOf[ArrayT], log_q: float | AnyArray, /) -> ArrayT:
    r"""Return the log-probabilities implied by ranking or InfoNCE scores without correction.

    .. math:: \log p(x \mid c) = g(x, c) + \log q(x) - \mathrm{lse}_{x'}\big(g(x', c) + \log q(x')\big)

    Parameters
    ----------
    scores : array, shape (N, V)
        Scores g of all V values of x, for each context. A score of -inf has log-probability -inf; if all are -inf, so
        are all log-probabilities of the context.
    log_q : float or array, shape (), (V,) or (N, V)
        Log-density of the noise in training; a number if uniform.

    Returns
    -------
    array
        Log-probabilities in nats, shape (N, V), of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Ma and Collins (2018), "Noise Contrastive Estimation and Negative Sampling for Conditional Models: Consistency and
    Statistical Efficiency", arXiv:1809.01812.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.density.recover_log_prob(np.zeros((1, 2)), np.log(np.asarray([0.25, 0.75])))
    array([[-1.38629436, -0.28768207]])
    """
    checked = _enter(None, scores, (0.0, log_q), None, names=("", "scores", "", "log_q"))
    return finish(checked.xp, log_shares(checked.noise + checked.noise_q), checked.dtype, "none")


class SelfNormalization(NamedTuple):
    """Deviation of a model from self-normalisation; 0-d arrays.

    Attributes
    ----------
    mean : array
        Mean of log Z over the contexts, in nats; 0 for a normalised model.
    std : array
        Standard deviation of log Z over the contexts, in nats.
    effective_sample_size : array
        Mean effective number of samples; the number of values if Z is exact.
    """

    mean: Array
    std: Array
    effective_sample_size: Array


@programmed
def self_normalization(
    scores: AnyArray, /, log_q: float | AnyArray | None = None, *, mask: AnyArray | None = None
) -> SelfNormalization:
    r"""Return mean and standard deviation of the log-partition function over contexts.

    .. math:: \log Z_c = \mathrm{lse}_x\, s(x, c) \qquad \text{or} \qquad
        \log \hat Z_c = \mathrm{lse}_j (s_{cj} - \log q_{cj}) - \log k,

    with the effective sample size :math:`(\sum_j w_j)^2 / \sum_j w_j^2` of the weights :math:`w = e^s / q`. A context
    whose entries are all masked does not count.

    Parameters
    ----------
    scores : array, shape (N, V) or (N, k)
        Scores of all V values for each context; with `log_q`, of k samples. A score of -inf adds nothing to Z, and
        counts in k and, without `log_q`, in the effective sample size; a context with only such scores does not count.
    log_q : float or array, shape (), (N, k) or (k,), optional
        Log-density of the distribution that the samples were drawn from; None if `scores` covers all values.
    mask : array of bool, shape (N, V) or (N, k), optional
        Values or samples to include; all by default.

    Returns
    -------
    SelfNormalization
        Mean, standard deviation and effective sample size, of the library, dtype and device of `scores`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Mnih and Teh (2012), "A Fast and Simple Algorithm for Training Neural Probabilistic Language Models",
    arXiv:1206.6426, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> scores = np.asarray([[0.0, -np.inf], [2.0, -np.inf]])
    >>> pnce.density.self_normalization(scores)
    SelfNormalization(mean=array(1.), std=array(1.), effective_sample_size=array(2.))
    """
    log_qs = (0.0, 0.0 if log_q is None else log_q)
    checked = _enter(None, scores, log_qs, mask, names=("", "scores", "", "log_q"))
    xp, size = checked.xp, checked.number()
    entries, pairs = checked.noise - checked.noise_q, PairSets(off=checked.mask)
    _, sums = exp_sum(entries, pairs)
    some = sums.top != -math.inf
    log_z = sums.log(xp) if log_q is None else checked.log_mean(sums)
    log_z = xp.where(some, log_z, xp.zeros_like(size))
    if log_q is not None:
        top = xp.where(xp.isinf(sums.top), 0.0, sums.top)
        squares = exp_sum((entries - top[:, None]) * 2.0, pairs)[1].total  # the largest is 0
        size = sums.total * sums.total / xp.where(squares == 0, xp.ones_like(squares), squares)
    mean = Reduction("mean").of_values(log_z, some)
    deviation = xp.where(some, log_z - mean, xp.zeros_like(log_z))
    std = safe_sqrt(xp, Reduction("mean").of_values(deviation * deviation, some))
    number_of_samples = Reduction("mean").of_values(size, some)
    return SelfNormalization(*(finish(xp, x, checked.dtype, "mean") for x in (mean, std, number_of_samples)))


class _Checked(NamedTuple):
    """Upcast scores of N data and k noise samples each, and their log-densities."""

    xp: Namespace
    data: Any
    noise: Array
    data_q: Any
    noise_q: Any
    mask: Array | None
    weights: Array | None
    reduction: ReductionName
    dtype: Any
    pair_weights: Array | None = None

    def number(self) -> Array:
        """Number of samples of each context."""
        if self.mask is None:
            return (
                self.xp.zeros(self.noise.shape[:1], dtype=self.noise.dtype, device=device_of(self.noise))
                + (self.noise.shape[1])
            )
        return self.xp.sum(self.xp.astype(self.mask, self.noise.dtype), axis=1)

    def samples(self) -> tuple[Array, Array]:
        """Number of samples of each context, at least 1, and the mask of contexts with samples."""
        number = self.number()
        some = number > 0
        return self.xp.where(some, number, self.xp.ones_like(number)), some

    def sums(self, term: PairTerm, noise: Array) -> Array:
        """Sums of a term over the samples of each context."""
        return pair_sums(term, noise, PairSets(off=self.mask, factors=self.pair_weights))[1]

    def mean(self, term: PairTerm) -> tuple[Array, Array]:
        """Mean of a term over the samples of each context, and the mask of contexts with samples."""
        number, some = self.samples()
        return self.sums(term, self.noise) / number, some

    def reduced(self, losses: Array, counted: Array | None = None) -> Array:
        """Reduced loss of the contexts, of all or of those that count."""
        counted = self.xp.ones_like(losses, dtype=self.xp.bool) if counted is None else counted
        losses = Reduction(self.reduction, self.weights).of_values(losses, counted)
        return finish(self.xp, losses, self.dtype, self.reduction)

    def anchored(self, own: Array, noise: Array, log_nu: Array) -> tuple[Array, Array]:
        """Terms of the ranking loss with an anchor: which sample is the data, and that none is."""
        number, _ = self.samples()
        _, sums, paired, _ = left_out(noise, PairSets(off=self.mask), log_nu, number, own)
        return paired, softplus(self.xp, log_odds(self.xp, sums, log_nu))

    def binary(self, own: Array, other: Array) -> Array:
        """Binary losses of the data and the samples, summed per context; 0 for a sample of score -inf."""
        return self.reduced(softplus(self.xp, -own) + self.sums(SOFTPLUS, other))

    def log_sum(self) -> ExpSum:
        """Sum of exponentials of the noise scores minus log-densities."""
        return exp_sum(self.noise - self.noise_q, PairSets(off=self.mask))[1]

    def ranking(self, own: Array, noise: Array) -> Array:
        """Softplus of the log-odds against the data; 0 without samples."""
        xp, sums = self.xp, exp_sum(noise, PairSets(off=self.mask))[1]
        some = sums.top != -math.inf
        top = xp.where(some, sums.top, xp.zeros_like(sums.top))
        odds = xp.where(some, (top - own) + sums.log_total(xp), xp.zeros_like(own))
        return self.reduced(xp.where(some, softplus(xp, odds), xp.zeros_like(odds)))

    def log_mean(self, sums: ExpSum) -> Array:
        """``log((1/n) Σ e^t)`` of the members of each row; -inf for an empty row.

        Precise near 0, where a difference of logarithms would cancel: ``log(Σ / n) = log1p((Σ - n) / n)``.
        """
        assert sums.top is not None  # noqa: S101  (there is a shift)
        xp, number = self.xp, self.number()
        finite, one = xp.logical_not(xp.isinf(sums.top)), xp.ones_like(number)
        total, number = (xp.where(finite, x, one) for x in (sums.total, number))
        near = total > 0.5 * number
        excess = xp.where(near, (total - number) / number, xp.zeros_like(number))
        return sums.top + xp.where(near, xp.log1p(excess), xp.log(xp.where(near, one, total / number)))


_LOWEST = 1e38
"""Minus a log-weight that is negligible against any score; fits float32."""


def _enter(  # noqa: PLR0917  (the callers' arguments)
    data_scores: Array | None,
    noise_scores: Array,
    log_q: tuple[Any, Any],
    mask: Array | None,
    weights: Array | None = None,
    reduction: ReductionName = "none",
    *,
    names: tuple[str, str, str, str] = ("data_scores", "noise_scores", "data_log_q", "noise_log_q"),
    needs_samples: bool = False,
    pair_weights: Array | None = None,
) -> _Checked:
    """Check the arguments. An empty name marks an unused argument.

    `needs_samples`: a context without samples does not count, or its loss is constant.
    """
    check_choice("reduction", reduction, REDUCTIONS)
    values = dict(zip(names, (data_scores, noise_scores, *log_q), strict=True))
    numbers = {name: check_number(name, values[name]) for name in names[2:] if is_number(values[name])}
    arrays = {name: x for name, x in values.items() if name and name not in numbers}
    xp, (*entered, mask, weights, pair_weights) = common_namespace(
        **arrays, mask=mask, weights=weights, pair_weights=pair_weights
    )
    arrays = dict(zip(arrays, entered, strict=True))
    check_floating(xp, **arrays)
    dtype, noise = entered[0].dtype, arrays[names[1]]
    rows, samples = shape_of(names[1], noise, "(N, k)")
    one_per_row = {names[0]: rows, names[2]: rows, names[3]: samples}
    arrays |= {
        name: xp.broadcast_to(arrays[name], (one_per_row[name],))
        for name in names[2:]
        if name in arrays and arrays[name].shape == ()
    }
    for name, x in arrays.items():
        if name == names[3] and len(x.shape) != 1:
            check_shape(name, x, (rows, samples))
        elif name != names[1]:
            check_shape(name, x, (one_per_row[name],))
        if name in names[2:]:
            check_log_probabilities(name, x)
    if mask is not None:
        check_mask(xp, "mask", mask, (rows, samples))
    if pair_weights is not None:
        check_pair_weights(xp, "pair_weights", pair_weights, (rows, samples))
        some = xp.logical_not(pair_weights <= 0)
        mask = some if mask is None else xp.logical_and(mask, some)
        pair_weights = xp.where(mask, xp.astype(stop_gradient(pair_weights), upcast(xp, noise).dtype), 0.0)
    values = {"": None, **numbers, **{name: upcast(xp, x) for name, x in arrays.items()}}
    data, noise, data_q, noise_q = (values[name] for name in names)
    data = data if data is None or is_number(data) else as_scores(xp, data)
    weights = row_weights(xp, weights, rows, values[names[1]])
    warn_of_negative("weights", weights)
    live = counted_by(weights, xp.any(mask, axis=1) if needs_samples and mask is not None else None)
    pairs = counted_by(None, mask, None if live is None else live[:, None])
    data, data_q = (x if x is None or is_number(x) else zeroed(x, live, scores=True) for x in (data, data_q))
    noise = zeroed_entries(noise, pairs)
    if not is_number(noise_q):
        noise_q = zeroed_entries(noise_q, pairs) if len(noise_q.shape) > 1 else noise_q[None, :]
    return _Checked(xp, data, noise, data_q, noise_q, mask, weights, reduction, dtype, pair_weights)
