"""Losses of views: every view is contrasted with all views of the other samples.

`nt_xent`, the plain formula: row i and row i + N are the views of a sample.

>>> import numpy as np
>>> import portable_nce as pnce
>>> z = np.random.default_rng(0).standard_normal((6, 4))
>>> unit = z / np.linalg.norm(z, axis=1, keepdims=True)
>>> e = np.exp(unit @ unit.T / 0.2) * (1 - np.eye(6))
>>> p = np.roll(e, -3, axis=1).diagonal() / e.sum(axis=1)
>>> bool(np.isclose(-np.log(p).mean(), pnce.nt_xent(z[:3], z[3:], temperature=0.2)))
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import objectives
from .._call import (
    ColumnLayout,
    Embedding,
    LossOptions,
    contrast_embeddings,
    result_dtype,
    warn_of_arrays,
    warn_of_scale,
)
from .._core.checks import check_floating, check_shape, common_dtype, shape_of
from .._core.equality import Record
from .._core.namespace import common_namespace, is_number, namespace_of
from .._core.numerics import reciprocal, upcast
from .._core.protocol import Array
from .._core.ranks import Ranks, propagates_errors
from .._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, FlatForm, MultiPositive, Precision, ReductionName
from ..objectives import AnyObjective
from ..pairings import several_views, two_views, with_negatives
from ..similarities import AnySimilarity, resolve
from .queue import Queue, extra_columns

__all__ = ["dcl", "dclw", "flat_nce", "hcl", "nt_xent"]


@propagates_errors
def nt_xent(
    view_a: ArrayOf[ArrayT],
    view_b: AnyArray,
    /,
    *further_views: AnyArray,
    keys: AnyArray | Queue | None = None,
    temperature: float | AnyArray = 0.1,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    multi_positive: MultiPositive = "separate",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the NT-Xent loss of two or more views (SimCLR): InfoNCE over all views of all samples.

    .. math:: \ell_i = -\log \frac{e^{g_{i p(i)}}}{\sum_{j \ne i} e^{g_{ij}}}, \qquad g_{ij} = s(z_i, z_j) / \tau,

    over 2N views, each positive with its partner p(i); a view's pair with itself is excluded. With V > 2 views, each
    has V - 1 partners; see `multi_positive`.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other.
    *further_views : array, shape (N, D)
        Embeddings of further views.
    keys : array, shape (K, D), or Queue, optional
        Further negatives, shared by all views: a cross-batch memory. A `Queue` has no gradient, and its empty slots are
        ignored. With `across`, an array holds the keys of this rank; a queue is the same on all ranks.
    temperature : float, or array of one entry or of shape (N,), default: 0.1
        Temperature τ > 0, shared or one per row; differentiable if an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (V N, V N), or (V N, V N + K) with `keys`, optional
        Pairs to include; all by default.
    weights : array, shape (N,) or (V N,), optional
        Weights of the samples, or of the views.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the V N views (Google's code sums both views and divides by N: twice this), weighted sum, or
        the weighted losses of the views.
    multi_positive : {"separate", "each", "pooled"}, default: "separate"
        Treatment of several partners: each against the negatives alone (NT-Xent in optax and pytorch-metric-learning),
        each against the negatives and all partners (SupCon), or all together; see `portable_nce.objectives.info_nce`.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (V N,) for reduction "none", of the library, dtype and device of `view_a`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Chen, Kornblith, Norouzi and Hinton (2020), "A Simple Framework for Contrastive Learning of Visual
    Representations", arXiv:2002.05709, section 2.1.

    Examples
    --------
    PyTorch, with a learned temperature; then with four views of each sample:

    >>> import torch
    >>> import portable_nce as pnce
    >>> view_a = torch.randn(256, 128, requires_grad=True)
    >>> view_b = torch.randn(256, 128, requires_grad=True)
    >>> log_temperature = torch.nn.Parameter(torch.tensor(0.1).log())
    >>> loss = pnce.nt_xent(view_a, view_b, temperature=log_temperature.exp())
    >>> loss.backward()
    >>> view_a.grad.shape, log_temperature.grad.shape
    (torch.Size([256, 128]), torch.Size([]))
    >>> loss = pnce.nt_xent(view_a, view_b, *torch.randn(2, 256, 128), multi_positive="each")

    NumPy, with both gradients:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> a, noise = rng.standard_normal((2, 256, 128))
    >>> value, (da, db) = pnce.value_and_grad(pnce.nt_xent, argnums=(0, 1))(a, a + noise)
    >>> value, da.shape
    (array(0.55053...), (256, 128))
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    return _of_views(
        (view_a, view_b, *further_views), objectives.info_nce(multi_positive=multi_positive), keys, options
    )


@propagates_errors
def flat_nce(
    view_a: ArrayOf[ArrayT],
    view_b: AnyArray,
    /,
    *,
    keys: AnyArray | Queue | None = None,
    temperature: float | AnyArray = 0.1,
    include_positive: bool = False,
    form: FlatForm = "log",
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the FlatNCE loss of two views (FlatCLR): the log-odds of the negatives.

    .. math:: \ell_i = u_i = \mathrm{lse}_{j \in Q(i)}\, g_{ij} - g_{i p(i)}, \qquad
        g_{ij} = s(z_i, z_j) / \tau,

    over 2N views, each positive with its partner p(i) and negative to the other 2(N - 1). Unlike InfoNCE's, its
    gradient does not vanish when the positive leads. The value does not measure progress; monitor `nt_xent` as well.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other.
    keys : array, shape (K, D), or Queue, optional
        Further negatives, shared by all views: a cross-batch memory. A `Queue` has no gradient, and its empty slots are
        ignored. With `across`, an array holds the keys of this rank; a queue is the same on all ranks.
    temperature : float, or array of one entry or of shape (N,), default: 0.1
        Temperature τ > 0, shared or one per row; differentiable if an array.
    include_positive : bool, default: False
        Whether the positive is in the denominator (FlatNCE⊕, whose gradient is InfoNCE's).
    form : {"log", "detach"}, default: "log"
        ``"log"`` is :math:`u_i`, with `include_positive` :math:`\log(1 + e^{u_i})`. ``"detach"`` is
        :math:`e^{u_i - \mathrm{sg}\,u_i}`, with `include_positive`
        :math:`(1 + e^{u_i}) / (1 + \mathrm{sg}\,e^{u_i})`: always 1, with the same gradient.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (2N, 2N), or (2N, 2N + K) with `keys`, optional
        Pairs to include; all by default.
    weights : array, shape (N,) or (2N,), optional
        Weights of the pairs, or of the views.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the views that have a positive and a negative (0 if none has), weighted sum, or the weighted
        losses of the views.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats (may be negative): 0-d, or shape (2N,) for reduction "none", of the library, dtype and device of
        `view_a`.

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
    PyTorch, with 1024 further negatives, and with NT-Xent as the measure of progress:

    >>> import torch
    >>> import portable_nce as pnce
    >>> view_a = torch.randn(64, 128, requires_grad=True)
    >>> view_b = torch.randn(64, 128, requires_grad=True)
    >>> loss = pnce.flat_nce(view_a, view_b, keys=torch.randn(1024, 128), temperature=0.2)
    >>> loss.backward()
    >>> view_a.grad.shape
    torch.Size([64, 128])
    >>> progress = pnce.nt_xent(view_a.detach(), view_b.detach(), temperature=0.2)

    NumPy; the detached form is always 1, with the same gradient:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> a, noise = rng.standard_normal((2, 64, 128))
    >>> pnce.flat_nce(a, a + noise), pnce.flat_nce(a, a + noise, form="detach")
    (array(-1.94630...), array(1.))
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    objective = objectives.flat_nce(include_positive=include_positive, form=form)
    return _of_views((view_a, view_b), objective, keys, options)


@propagates_errors
def dcl(
    view_a: ArrayOf[ArrayT],
    view_b: AnyArray,
    /,
    *,
    keys: AnyArray | Queue | None = None,
    temperature: float | AnyArray = 0.1,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the decoupled contrastive loss of two views: NT-Xent without the positive in the denominator.

    .. math:: \ell_i = -g_{i p(i)} + \mathrm{lse}_{j \in Q(i)}\, g_{ij}, \qquad g_{ij} = s(z_i, z_j) / \tau,

    over 2N views, each positive with its partner p(i) and negative to the 2(N - 1) views of other pairs. It equals
    `flat_nce` without the positive.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other.
    keys : array, shape (K, D), or Queue, optional
        Further negatives, shared by all views: a cross-batch memory. A `Queue` has no gradient, and its empty slots are
        ignored. With `across`, an array holds the keys of this rank; a queue is the same on all ranks.
    temperature : float, or array of one entry or of shape (N,), default: 0.1
        Temperature τ > 0, shared or one per row; differentiable if an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (2N, 2N), or (2N, 2N + K) with `keys`, optional
        Pairs to include; all by default.
    weights : array, shape (N,) or (2N,), optional
        Weights of the pairs, or of the views.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the views that have a positive and a negative (0 if none has), weighted sum, or the weighted
        losses of the views.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats (may be negative): 0-d, or shape (2N,) for reduction "none", of the library, dtype and device of
        `view_a`.

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
    PyTorch, with a learned temperature, and a weight for each pair:

    >>> import torch
    >>> import portable_nce as pnce
    >>> view_a = torch.randn(256, 128, requires_grad=True)
    >>> view_b = torch.randn(256, 128, requires_grad=True)
    >>> log_temperature = torch.nn.Parameter(torch.tensor(0.1).log())
    >>> loss = pnce.dcl(view_a, view_b, temperature=log_temperature.exp(), weights=torch.rand(256))
    >>> loss.backward()
    >>> view_a.grad.shape, log_temperature.grad.shape
    (torch.Size([256, 128]), torch.Size([]))

    NumPy, with both gradients:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> a, noise = rng.standard_normal((2, 256, 128))
    >>> value, (da, db) = pnce.value_and_grad(pnce.dcl, argnums=(0, 1))(a, a + noise)
    >>> value, da.shape
    (array(-0.37689...), (256, 128))
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    return _of_views((view_a, view_b), objectives.flat_nce(), keys, options)


@propagates_errors
def dclw(
    view_a: ArrayOf[ArrayT],
    view_b: AnyArray,
    /,
    *,
    keys: AnyArray | Queue | None = None,
    temperature: float | AnyArray = 0.1,
    sigma: float | AnyArray = 0.5,
    detach_weights: bool = False,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the weighted decoupled contrastive loss of two views, with larger weights for hard positives.

    .. math:: \ell_i = -w_i\, g_{i p(i)} + \mathrm{lse}_{j \in Q(i)}\, g_{ij}, \qquad
        w_i = 2 - n\, \mathrm{softmax}_i(\tau g_{i p(i)} / \sigma), \qquad g_{ij} = s(z_i, z_j) / \tau,

    over n = 2N views, each positive with its partner p(i) and negative to the 2(N - 1) views of other pairs. Both views
    of a pair have the same weight.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other.
    keys : array, shape (K, D), or Queue, optional
        Further negatives, shared by all views: a cross-batch memory. A `Queue` has no gradient, and its empty slots are
        ignored. With `across`, an array holds the keys of this rank; a queue is the same on all ranks.
    temperature : float, or array of one entry or of shape (N,), default: 0.1
        Temperature τ > 0, shared or one per row; differentiable if an array.
    sigma : float or array of one entry, default: 0.5
        Concentration σ > 0 of the weights.
    detach_weights : bool, default: False
        Whether the weights are constants, as in lightly (not in the authors' code).
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (2N, 2N), or (2N, 2N + K) with `keys`, optional
        Pairs to include; all by default.
    weights : array, shape (N,) or (2N,), optional
        Weights of the pairs, or of the views, in addition to :math:`w_i`.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the views that have a positive and a negative (0 if none has), weighted sum, or the weighted
        losses of the views.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (2N,) for reduction "none", of the library, dtype and device of `view_a`.

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
    >>> view_a = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> view_b = np.asarray([[0.8, 0.6], [0.0, 1.0]])
    >>> pnce.dclw(view_a, view_b)
    array(-3.95481...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)

    def objective(parameters: dict[str, Any]) -> AnyObjective:
        return objectives.dclw(temperature=parameters["temperature"], sigma=sigma, detach_weights=detach_weights)

    return _of_views((view_a, view_b), objective, keys, options)


@propagates_errors
def hcl(
    view_a: ArrayOf[ArrayT],
    view_b: AnyArray,
    /,
    *,
    temperature: float | AnyArray = 0.5,
    beta: float = 1.0,
    tau_plus: float = 0.1,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the contrastive loss with hard negatives (HCL) of two views, or the debiased contrastive loss.

    .. math:: \ell_i = \log\Big(1 + \frac{N_i}{e^{g_{i p(i)}}}\Big), \qquad
        N_i = \max\Big(\frac{1}{1 - \tau^+} \Big(M\, \frac{\sum_{Q(i)} e^{(1 + \beta) g_{ij}}}{\sum_{Q(i)}
        e^{\beta g_{ij}}} - \tau^+ M\, e^{g_{i p(i)}}\Big),\; M\, e^{-1 / \tau}\Big)

    over 2N views, each positive with its partner p(i) and negative to the M = 2(N - 1) views of other pairs. With
    ``beta=0`` and ``tau_plus=0`` it is `nt_xent`.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other.
    temperature : float, or array of one entry or of shape (N,), default: 0.5
        Temperature τ > 0, shared or one per row; differentiable if an array.
    beta : float, default: 1.0
        Concentration β ≥ 0 on hard negatives; 0 is the debiased contrastive loss.
    tau_plus : float, default: 0.1
        Prior probability τ⁺ in [0, 1) that a negative is a false one.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (2N, 2N), optional
        Pairs to include; all by default.
    weights : array, shape (N,) or (2N,), optional
        Weights of the pairs, or of the views.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the views that have a positive (0 if none has), weighted sum, or the weighted losses of the
        views.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (2N,) for reduction "none", of the library, dtype and device of
        `view_a`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    portable_nce.objectives.hard_negatives : The objective, for any pairing.

    Notes
    -----
    The floor :math:`M\, e^{-1 / \tau}`, a constant, applies to cosines only; with other similarities :math:`N_i` may be
    0.

    References
    ----------
    Robinson, Chuang, Sra and Jegelka (2021), "Contrastive Learning with Hard Negative Samples", arXiv:2010.04592,
    equation 4; Chuang, Robinson, Lin, Torralba and Jegelka (2020), "Debiased Contrastive Learning", arXiv:2007.00224,
    equation 8.

    Examples
    --------
    PyTorch, with β = 2; then the debiased loss, which has β = 0:

    >>> import torch
    >>> import portable_nce as pnce
    >>> view_a = torch.randn(256, 128, requires_grad=True)
    >>> view_b = torch.randn(256, 128, requires_grad=True)
    >>> loss = pnce.hcl(view_a, view_b, beta=2.0, tau_plus=0.1)
    >>> loss.backward()
    >>> view_a.grad.shape
    torch.Size([256, 128])
    >>> loss = pnce.hcl(view_a, view_b, beta=0.0, tau_plus=0.1)

    NumPy; with β = 0 and τ⁺ = 0 the loss is `nt_xent`:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> a, noise = rng.standard_normal((2, 256, 128))
    >>> pnce.hcl(a, a + noise, beta=0.0, tau_plus=0.0), pnce.nt_xent(a, a + noise, temperature=0.5)
    (array(4.85772...), array(4.85772...))
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    return _of_views((view_a, view_b), _Hard(beta, tau_plus, resolve(similarity).unit), None, options)


class _Hard(Record):
    """Objective of HCL as a function of the temperature; the score floor applies to cosines only."""

    beta: float
    tau_plus: float
    unit: bool

    def __call__(self, parameters: dict[str, Any]) -> AnyObjective:
        floor = _least(parameters["temperature"]) if self.unit else -math.inf
        return objectives.hard_negatives(beta=self.beta, tau_plus=self.tau_plus, floor=floor)


def _least(temperature: Any) -> Any:
    """Smallest score of cosines, ``-1 / τ``; an array stays one (NumPy's quotient of a 0-d array is a scalar)."""
    if is_number(temperature):
        return -1.0 / temperature
    return -reciprocal(namespace_of(temperature).reshape(temperature, (-1,)))


def _of_views(
    views: tuple[Array, ...],
    objective: AnyObjective | Callable[[dict[str, Any]], AnyObjective],
    keys: Array | Queue | None,
    options: LossOptions,
) -> Array:
    """Loss of V N views: partners are positives; all other views and the keys are negatives."""
    names = ("view_a", "view_b", *(f"further_views[{k}]" for k in range(len(views) - 2)))
    xp, (*entered, weights) = common_namespace(**dict(zip(names, views, strict=True)), weights=options.weights)
    check_floating(xp, **dict(zip(names, entered, strict=True)))
    warn_of_scale(options, entered[0])
    warn_of_arrays(options, entered[0])
    n_samples, _ = shape_of("view_a", entered[0], "(N, D)")
    shape = tuple(entered[0].shape)
    for name, view in zip(names[1:], entered[1:], strict=True):
        check_shape(name, view, shape)
    if weights is not None:
        weights = xp.concat([weights] * len(views), axis=0) if tuple(weights.shape) == (n_samples,) else weights
        options = options._replace(weights=weights)
    # Upcast before concatenation, so that a 16-bit gradient is rounded once and not once per use.
    array = xp.concat([upcast(xp, view) for view in entered], axis=0)
    stacked = Embedding(array, tuple(view.dtype for view in entered))
    pairing = two_views() if len(views) == 2 else several_views(len(views))  # noqa: PLR2004  (a pair)
    layout, embeddings, dtype = ColumnLayout(views=len(views)), {"views": stacked}, common_dtype(xp, *entered)
    if keys is not None:
        columns, valid = extra_columns(entered[0], array.shape[0], keys)
        layout = layout._replace(replicated=isinstance(keys, Queue))
        embeddings["views and keys"] = stacked.joined(columns)
        pairing, dtype = with_negatives(pairing, *valid), result_dtype(xp, stacked, columns)
    return contrast_embeddings(embeddings, objective, pairing, options, layout, dtype=dtype)
