"""ProtoNCE, and the concentrations of its clusters.

`proto_nce` of one clustering, the plain formula: each prototype has a temperature of its own.

>>> import numpy as np
>>> import portable_nce as pnce
>>> rng = np.random.default_rng(0)
>>> x, c, assigned, phi = rng.standard_normal((6, 4)), rng.standard_normal((3, 4)), np.arange(6) % 3, [0.1, 0.2, 0.3]
>>> v, unit = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, c))
>>> e = np.exp(v @ unit.T / phi)
>>> p = e[np.arange(6), assigned] / e.sum(axis=1)
>>> bool(np.isclose(-np.log(p).mean(), pnce.proto_nce(x, c, assigned, np.asarray(phi))))
True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._call import PAIRED, ColumnLayout, Embedding, LossOptions, contrast_embeddings, enter_embeddings, same_width
from .._core.autodiff import stop_gradient
from .._core.checks import (
    check_entries,
    check_floating,
    check_indices,
    check_number,
    check_scalar_or_rows,
    check_shape,
    common_dtype,
    explained,
    indices_of,
    shape_of,
)
from .._core.namespace import common_namespace, is_number, lift_to_tape
from .._core.numerics import reciprocal, safe_sqrt, upcast, zeros
from .._core.protocol import Array, Namespace
from .._core.ranks import Ranks, propagates_errors
from .._core.reduction import add, finish
from .._core.registry import adapter_of
from .._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, Precision, ReductionName
from ..objectives import info_nce
from ..pairings import diagonal, index
from ..similarities import AnySimilarity, scaled_columns
from .memory import against_queue
from .queue import Queue

__all__ = ["concentrations", "proto_nce"]


@propagates_errors
def proto_nce(
    embeddings: ArrayOf[ArrayT],
    prototypes: AnyArray | Sequence[AnyArray],
    assignments: AnyArray | Sequence[AnyArray],
    concentrations: AnyArray | Sequence[AnyArray],
    /,
    *,
    key: AnyArray | None = None,
    queue: AnyArray | Queue | None = None,
    temperature: float | AnyArray = 0.1,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | Sequence[AnyArray] | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the ProtoNCE loss (PCL): embeddings are classified among the prototypes of one or more clusterings.

    .. math:: \ell_i = \ell^{\mathrm{InfoNCE}}_i + \frac1M \sum_{m=1}^M
        -\log \frac{e^{s(v_i, c^m_{a(i)}) / \phi^m_{a(i)}}}{\sum_j e^{s(v_i, c^m_j) / \phi^m_j}}

    with the InfoNCE term if `key` is given.

    Parameters
    ----------
    embeddings : array, shape (N, D)
        Embeddings v.
    prototypes : array, shape (R, D), or sequence of such
        Prototypes c of each clustering, without gradient.
    assignments : array of int, shape (N,), or sequence of such
        Index a of each embedding's prototype, from 0 to R - 1, in each clustering. Out-of-range indices raise for NumPy
        and eager PyTorch CPU tensors; elsewhere such a row does not count. Exclude rows by `weights`.
    concentrations : array, shape (R,), or sequence of such
        Concentration φ > 0 (temperature) of each prototype, without gradient; see `concentrations`. Concentrations
        that are not positive raise for NumPy and eager PyTorch CPU tensors; elsewhere 0 makes the loss NaN.
    key : array, shape (N, D), optional
        Keys for the InfoNCE term; row i belongs to embedding i.
    queue : array, shape (M, D), or Queue, optional
        Negatives of the InfoNCE term, as in `moco`; the other keys by default.
    temperature : float, or array of one entry or of shape (N,), default: 0.1
        Temperature τ > 0 of the InfoNCE term, shared or one per row; differentiable if an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, R), or sequence of such, optional
        Pairs of embedding and prototype to include; all by default.
    weights : array, shape (N,), optional
        Weights of the embeddings.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the embeddings that have a positive (0 if none has), weighted sum, or the weighted losses of
        the embeddings.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `embeddings`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    concentrations : The concentrations.

    References
    ----------
    Li, Zhou, Xiong and Hoi (2021), "Prototypical Contrastive Learning of Unsupervised Representations",
    arXiv:2005.04966, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> embeddings = np.asarray([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> prototypes, assignments = np.asarray([[0.9, 0.3], [0.0, 1.0]]), np.asarray([0, 0, 1])
    >>> pnce.proto_nce(embeddings, prototypes, assignments, np.asarray([0.2, 0.1]))
    array(0.50531...)
    """
    clusterings = _clusterings(
        {"prototypes": prototypes, "assignments": assignments, "concentrations": concentrations, "mask": mask}
    )
    options = LossOptions(1.0, similarity, None, weights, reduction, block_size, precision, across)
    entered = enter_embeddings({"embeddings": embeddings}, options)
    xp, (rows,), options = entered.xp, entered.embeddings.values(), entered.options
    check_scalar_or_rows("temperature", temperature, above=0.0, rows=rows.array.shape[0])
    losses = [_prototype_loss(rows, clustering, options) for clustering in clusterings]
    total = add(losses, rows.array.dtype, reduction, divide_by=len(losses))
    deciding = [embeddings, *(clustering[0] for clustering in clusterings)]
    if queue is not None and key is None:
        raise ValueError(f"queue: expected None without key, got {type(queue).__name__}; give the keys too")
    if key is None:
        return add((total,), common_dtype(xp, *deciding), reduction)
    options = options._replace(temperature=temperature)
    deciding.append(key)
    if queue is None:
        instance = contrast_embeddings({"embeddings": rows, "key": key}, info_nce(), diagonal(), options, PAIRED)
    else:
        instance = against_queue(rows, key, queue, options)
        deciding.append(queue.rows if isinstance(queue, Queue) else queue)
    return add((total, instance), common_dtype(xp, *deciding), reduction)


def _clusterings(arguments: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Prototypes, assignments, concentrations and mask of each clustering."""
    prototypes = arguments["prototypes"]
    if not isinstance(prototypes, (tuple, list)):
        return [tuple(arguments.values())]
    count = len(prototypes)
    if arguments["mask"] is None:
        arguments["mask"] = [None] * count
    for name, argument in arguments.items():
        if not isinstance(argument, (tuple, list)) or len(argument) != count:
            got = f"{len(argument)}" if isinstance(argument, (tuple, list)) else type(argument).__name__
            raise ValueError(
                f"{name}: expected a sequence of {count} arrays, one for each array of prototypes, got {got}"
            )
    if not count:
        raise ValueError("prototypes: expected at least one clustering, got none")
    return list(zip(*arguments.values(), strict=True))


def _prototype_loss(rows: Embedding, clustering: tuple[Any, ...], options: LossOptions) -> Array:
    """Cross-entropy of one clustering."""
    prototypes, assignments, phi, mask = clustering
    named = {"prototypes": prototypes, "assignments": assignments, "concentrations": phi}
    xp, (x, prototypes, assignments, phi) = common_namespace(embeddings=rows.array, **named)
    check_floating(xp, embeddings=x, prototypes=prototypes, concentrations=phi)
    number, _ = shape_of("prototypes", prototypes, "(R, D)")
    same_width(options.similarity, "embeddings", x, "prototypes", prototypes)
    assignments = indices_of(xp, "assignments", assignments, (x.shape[0],))
    check_indices("assignments", assignments, number, "prototypes")
    check_shape("concentrations", phi, (number,))
    check_entries("concentrations", phi, 0.0)
    constants, phi = (stop_gradient(upcast(xp, z)) for z in (prototypes, phi))
    embeddings = {"embeddings": rows._replace(array=x), "prototypes": Embedding(constants, (prototypes.dtype,))}
    options = options._replace(similarity=scaled_columns(options.similarity, reciprocal(phi)), mask=mask)
    return contrast_embeddings(embeddings, info_nce(), index(assignments), options, ColumnLayout(replicated=True))


@explained
def concentrations(
    embeddings: ArrayOf[ArrayT],
    prototypes: AnyArray,
    assignments: AnyArray,
    /,
    *,
    temperature: float = 0.1,
    smoothing: float = 10.0,
    percentiles: tuple[float, float] = (10.0, 90.0),
) -> ArrayT:
    r"""Return the concentration of each prototype's cluster, for `proto_nce`.

    .. math:: \phi_r = \frac{\sum_{i \in r} \lVert v_i - c_r \rVert}{Z_r \log(Z_r + \alpha)}

    with Z embeddings in the cluster. Clusters of at most one embedding get the largest φ; all are clipped to two
    percentiles and scaled so that their mean is the temperature.

    A cluster of several embeddings that all equal the prototype has φ = 0. If the lower percentile is 0, φ is clipped
    to the smallest non-zero φ (and to the upper percentile), so that no result is 0. If the upper percentile is 0, or
    no cluster has two embeddings, all results are the temperature.

    Parameters
    ----------
    embeddings : array, shape (N, D)
        Embeddings v; not normalised here.
    prototypes : array, shape (R, D)
        Prototypes c.
    assignments : array of int, shape (N,)
        Index of each embedding's prototype, from 0 to R - 1. Out-of-range indices raise for NumPy and eager PyTorch CPU
        tensors; elsewhere such a row belongs to no prototype.
    temperature : float, default: 0.1
        Mean of the concentrations.
    smoothing : float, default: 10.0
        Smoothing α, which keeps φ of small clusters from becoming too small.
    percentiles : tuple of two floats, default: (10.0, 90.0)
        Percentiles to which the concentrations are clipped, interpolated linearly.

    Returns
    -------
    array
        Concentrations, shape (R,), without gradient, of the library, dtype and device of `embeddings`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    References
    ----------
    Li, Zhou, Xiong and Hoi (2021), "Prototypical Contrastive Learning of Unsupervised Representations",
    arXiv:2005.04966, section 3, and the authors' code.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> embeddings = np.asarray([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.0, 1.0], [0.6, 0.8]])
    >>> prototypes, assignments = np.asarray([[0.9, 0.3], [0.0, 1.0]]), np.asarray([0, 0, 1, 1, 1])
    >>> pnce.concentrations(embeddings, prototypes, assignments).round(4)
    array([0.1172, 0.0828])
    """
    temperature = check_number("temperature", temperature, above=0.0)
    smoothing = check_number("smoothing", smoothing, above=0.0)
    low, high = _two_percentiles(percentiles)
    xp, (embeddings, prototypes, assignments) = common_namespace(
        embeddings=embeddings, prototypes=prototypes, assignments=assignments
    )
    check_floating(xp, embeddings=embeddings, prototypes=prototypes)
    rows, width = shape_of("embeddings", embeddings, "(N, D)")
    number, _ = shape_of("prototypes", prototypes, "(R, D)")
    check_shape("prototypes", prototypes, (number, width))
    assignments = indices_of(xp, "assignments", assignments, (rows,))
    check_indices("assignments", assignments, number, "prototypes")
    dtype = embeddings.dtype
    x, centres = (stop_gradient(upcast(xp, z)) for z in (embeddings, prototypes))
    totals, sizes = _cluster_sums(xp, x, centres, assignments)
    several = sizes > 1
    safe = xp.where(several, sizes, xp.ones_like(sizes) + 1.0)
    phi = xp.where(several, totals / (safe * xp.log(safe + smoothing)), xp.zeros_like(totals))
    phi = xp.where(several, phi, xp.max(phi, axis=0, keepdims=True))
    ordered = xp.sort(phi, axis=0)
    lowest, highest = (_percentile(ordered, q) for q in (low, high))
    smallest = xp.min(xp.where(phi > 0, phi, xp.max(phi, axis=0, keepdims=True)), axis=0, keepdims=True)
    lowest = xp.where(lowest > 0, lowest, xp.where(smallest < highest, smallest, highest))
    phi = xp.where(phi < lowest, lowest, xp.where(phi > highest, highest, phi))
    mean = xp.mean(phi, axis=0, keepdims=True)
    # Only clusters of identical points: equal concentrations.
    phi = xp.where(mean == 0, xp.ones_like(phi), phi) / xp.where(mean == 0, xp.ones_like(mean), mean)
    return finish(xp, temperature * phi, dtype, "none")


def _two_percentiles(percentiles: Any) -> tuple[float, float]:
    if not isinstance(percentiles, (tuple, list)):
        raise TypeError(f"percentiles: expected a pair of numbers, got {type(percentiles).__name__}")
    if [is_number(percent) for percent in percentiles] == [True, True]:
        low, high = percentiles
        if 0 <= low <= high <= 100:  # noqa: PLR2004  (percent)
            return low, high
    raise ValueError(f"percentiles: expected two numbers between 0 and 100, the lower first, got {percentiles}")


def _cluster_sums(xp: Namespace, x: Array, centres: Array, assignments: Array) -> tuple[Array, Array]:
    """Sum of the distances of each cluster's members from its centre, and their number."""
    number = centres.shape[0]
    inside = xp.logical_and(assignments >= 0, assignments < number)
    own = xp.where(inside, assignments, xp.zeros_like(assignments))
    differences = x - xp.take(centres, own, axis=0)
    distances = safe_sqrt(xp, xp.sum(differences * differences, axis=1))
    both = xp.stack([distances, xp.ones_like(distances)], axis=1)
    both = xp.where(inside[:, None], both, xp.zeros_like(both))
    # `assignments` may be recorded on the tape.
    ((nothing, own, both),) = lift_to_tape((zeros(xp, (number, 2), x), own, both))
    sums = adapter_of(nothing).add_rows(nothing, own, both)
    return sums[:, 0], sums[:, 1]


def _percentile(ordered: Array, percent: float) -> Array:
    """Percentile of a sorted array, interpolated linearly; shape (1,)."""
    position = percent / 100.0 * (ordered.shape[0] - 1)
    below = min(int(position), ordered.shape[0] - 1)
    above = min(below + 1, ordered.shape[0] - 1)
    part = position - below
    return ordered[below : below + 1] * (1.0 - part) + ordered[above : above + 1] * part
