"""Cross-entropy of a linear layer over a vocabulary.

The plain formula, whose N × V logits are never held here:

>>> import numpy as np
>>> import portable_nce as pnce
>>> rng = np.random.default_rng(0)
>>> x, weight, targets = rng.standard_normal((6, 4)), rng.standard_normal((9, 4)), np.arange(6)
>>> logits = x @ weight.T
>>> p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
>>> bool(np.isclose(-np.log(p[np.arange(6), targets]).mean(), pnce.density.linear_softmax(x, weight, targets)))
True
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, overload

from .._call import Embedding, LossOptions, contrast_embeddings, enter_embeddings, statistics_of_rows
from .._core.autodiff import stop_gradient
from .._core.checks import (
    as_integer,
    check_bool,
    check_floating,
    check_indices,
    check_number,
    check_shape,
    check_width,
    indices_of,
    shape_of,
    warn_of_negative,
)
from .._core.logsumexp import ExpSum, factors
from .._core.namespace import lift_to_tape, namespace_of
from .._core.numerics import inside_range, nan_outside, safe_quotient, sum_to_scalar, upcast, zeros
from .._core.protocol import Array, Namespace
from .._core.ranks import RankReport, Ranks, Shards, agree, end_exchange, propagates_errors
from .._core.reduction import Reduction, add, finish
from .._core.registry import adapter_of
from .._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, Precision, ReductionName
from .._execution.live import counted_by, zeroed
from .._execution.statistics import RowSums, one_per_row
from .._execution.statistics import row_statistics as statistics_of
from ..objectives import Pairwise, RowStatistics, Term, info_nce
from ..objectives.softmax import of_all_scores, with_z_loss
from ..pairings import candidates, indexed
from ..similarities import scaled_columns, shifted_columns, soft_capped

__all__ = ["SoftmaxStatistics", "linear_softmax"]


class SoftmaxStatistics(NamedTuple):
    """Row statistics of `linear_softmax`; ``target_score - log_sum_exp`` is the target's log-probability.

    Attributes
    ----------
    log_sum_exp : array, shape (N,)
        Logarithm L of the sum of the exponentials of a row's logits, in nats.
    target_score : array, shape (N,)
        Logit of a row's target, in nats.
    """

    log_sum_exp: Array
    target_score: Array


def _identity(score: Array) -> Array:
    return score


def _one(score: Array) -> tuple[Array]:
    return (namespace_of(score).ones_like(score),)


_SUM = Pairwise(Term(_identity, _one), Term(_identity, _one), label="sum")
"""Sum of a row's scores."""


@overload
def linear_softmax(
    embeddings: ArrayOf[ArrayT],
    weight: AnyArray,
    targets: AnyArray,
    /,
    *,
    bias: AnyArray | None = None,
    softcap: float | None = None,
    smoothing: float = 0.0,
    ignore_index: int | None = None,
    class_weights: AnyArray | None = None,
    z_loss: float = 0.0,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    return_statistics: Literal[False] = False,
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT: ...
@overload
def linear_softmax(
    embeddings: ArrayOf[ArrayT],
    weight: AnyArray,
    targets: AnyArray,
    /,
    *,
    bias: AnyArray | None = None,
    softcap: float | None = None,
    smoothing: float = 0.0,
    ignore_index: int | None = None,
    class_weights: AnyArray | None = None,
    z_loss: float = 0.0,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    return_statistics: Literal[True],
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> tuple[ArrayT, SoftmaxStatistics]: ...
@propagates_errors
def linear_softmax(
    embeddings: ArrayOf[ArrayT],
    weight: AnyArray,
    targets: AnyArray,
    /,
    *,
    bias: AnyArray | None = None,
    softcap: float | None = None,
    smoothing: float = 0.0,
    ignore_index: int | None = None,
    class_weights: AnyArray | None = None,
    z_loss: float = 0.0,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    return_statistics: bool = False,
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> Any:
    r"""Return the cross-entropy of a linear layer over a vocabulary, without the N × V logit matrix.

    .. math:: \ell_i = c_t \big( (1 - \varepsilon) (L_i - g_{it}) + \zeta L_i^2 \big)
        + \frac\varepsilon V \sum_{j=1}^V c_j (L_i - g_{ij}), \qquad
        g = x W^\top + b, \quad L_i = \mathrm{lse}_j\, g_{ij}, \quad t = t_i

    With a softcap κ the logits are :math:`\kappa \tanh(g / \kappa)`. Logits are computed in blocks, with their gradient
    in the same pass. Two passes are needed for reduction "none", `return_statistics` and `across`, and for smoothing
    with `softcap`, or with both `class_weights` and `z_loss`.

    Parameters
    ----------
    embeddings : array, shape (N, D)
        Embeddings x: the hidden states of N tokens, or queries.
    weight : array, shape (V, D)
        Weight W of the layer: a row for each word or item.
    targets : array of int, shape (N,)
        Index t of each row's target, from 0 to V - 1, or `ignore_index`. Out-of-range indices raise for NumPy and eager
        PyTorch CPU tensors; elsewhere loss and gradients are NaN.
    bias : array, shape (V,), optional
        Bias b of the layer; differentiable. It must be finite.
    softcap : float, optional
        Limit κ > 0 of the magnitude of the logits.
    smoothing : float, default: 0.0
        Label smoothing ε in [0, 1]: share of the target spread evenly over all V classes.
    ignore_index : int, optional
        Target of rows that do not count, such as padding; their embeddings may be NaN.
    class_weights : array, shape (V,), optional
        Weight c of each class, without gradient; 1 by default. The mean divides by the sum of the targets' weights.
    z_loss : float, default: 0.0
        Factor ζ ≥ 0 of the squared log-partition function, a penalty that keeps it near 0.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that count (0 if none counts), weighted sum, or the weighted losses of the rows.
    return_statistics : bool, default: False
        Whether to return the log-sum-exp and the target's logit of each row too; differentiable.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that shard both rows and classes: `weight`, `bias` and `class_weights` hold this rank's part of the
        vocabulary, in rank order; targets index the whole vocabulary. Weights and their gradients are not communicated.
        See `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `embeddings`.
    SoftmaxStatistics
        With `return_statistics`: log-sum-exp L (N,) and logit g of the target (N,), with softcap and bias, in nats; 0,
        without gradient, in rows that do not count. With `across`, of this rank's rows. For a target of probability
        near 1, the losses of reduction "none" are more precise than the difference of the two.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    full_softmax : From logits.

    References
    ----------
    Wijmans, Huval, Hertzberg, Koltun and Krähenbühl (2024), "Cut Your Losses in Large-Vocabulary Language Models",
    arXiv:2411.09009. z-loss: Chowdhery et al. (2022), "PaLM: Scaling Language Modeling with Pathways",
    arXiv:2204.02311, section 5. Softcap: Gemma Team (2024), "Gemma 2: Improving Open Language Models at a Practical
    Size", arXiv:2408.00118, section 2.

    Examples
    --------
    PyTorch, the last layer of a language model:

    >>> import torch
    >>> import portable_nce as pnce
    >>> hidden, layer = torch.randn(256, 64, requires_grad=True), torch.nn.Linear(64, 1000)
    >>> word = torch.randint(1000, (256,))
    >>> loss = pnce.density.linear_softmax(hidden, layer.weight, word, bias=layer.bias, ignore_index=-100)
    >>> loss.backward()
    >>> hidden.grad.shape, layer.weight.grad.shape
    (torch.Size([256, 64]), torch.Size([1000, 64]))

    With the log-probability of each word, which can be differentiated as well:

    >>> loss, row = pnce.density.linear_softmax(hidden, layer.weight, word, bias=layer.bias, return_statistics=True)
    >>> torch.allclose(row.target_score - row.log_sum_exp, layer(hidden).log_softmax(1)[torch.arange(256), word])
    True

    NumPy:

    >>> import numpy as np
    >>> pnce.density.linear_softmax(np.eye(2), np.eye(2), np.asarray([0, 1]))
    array(0.31326169)
    """
    softcap = None if softcap is None else check_number("softcap", softcap, above=0.0)
    smoothing = _between("smoothing", smoothing, 1.0)
    z_loss = _between("z_loss", z_loss, None)
    return_statistics = check_bool("return_statistics", return_statistics)
    options = LossOptions(1.0, "dot", None, weights, reduction, block_size, precision, across)
    optional = {"bias": bias, "class_weights": class_weights}
    others = {"targets": targets, **{name: x for name, x in optional.items() if x is not None}}
    entered = enter_embeddings({"embeddings": embeddings}, options, others, columns={"weight": weight})
    xp, options, (rows, columns), dtype = entered.xp, entered.options, entered.embeddings.values(), entered.dtype
    layer = _layer(xp, rows.array, columns, entered.numbers)
    if layer.class_weights is not None:
        warn_of_negative("class_weights", layer.class_weights)
    classes = layer.classes
    targets, counted = _targets(xp, entered.numbers["targets"], rows.array.shape[0], ignore_index)
    shards, x = None, rows.array
    if across is None:
        known = check_indices("targets", targets, classes, "the rows of weight", remedy=_IGNORED)
    else:
        known = check_indices("targets", targets, 2**31, "the classes of all ranks", remedy=_IGNORED)
        shards = _agreed(across, x, classes, targets)
        layer = layer.kept_here(shards) if classes else layer.kept_here(shards).with_placeholder()
    if not known:
        inside, targets = inside_range(xp, targets, classes if shards is None else sum(shards.columns))
        x = nan_outside(x, inside)
    weighted = None if return_statistics else options.weights  # rows of weight 0 have statistics
    rows = rows._replace(array=zeroed(x, counted_by(weighted, counted)))

    similarity: Any = "dot" if layer.bias is None else shifted_columns("dot", layer.bias)
    if softcap is not None:
        similarity = soft_capped(similarity, softcap)
    options = options._replace(similarity=similarity)
    call = _SoftmaxCall(rows, layer, targets, counted, options, softcap, smoothing, z_loss)
    in_one_pass = smoothing == 0 or (softcap is None and not (z_loss > 0 and layer.class_weights is not None))
    if shards is None and in_one_pass and not return_statistics:
        return _in_one_pass(call, dtype)
    result, statistics = _of_statistics(call, shards)
    result = finish(xp, result, dtype, reduction)
    if not return_statistics:
        return result
    return result, SoftmaxStatistics(*(finish(xp, x, dtype, "none") for x in statistics))


_IGNORED = "to leave rows out, pass ignore_index=..., for example -100"


class _SoftmaxCall(NamedTuple):
    """Checked arguments: rows, layer, targets, mask of rows that count (None: all), options with the similarity."""

    rows: Embedding
    layer: _Layer
    targets: Array
    counted: Array | None
    options: LossOptions
    softcap: float | None
    smoothing: float
    z_loss: float

    def contrasted(self, objective: Any, weights: Array | None, kind: ReductionName, dtype: Any) -> Array:
        """Loss of an objective of the log-odds and of the log-partition function."""
        pair = {"embeddings": self.rows, "weight": self.layer.columns}
        changed = self.options._replace(weights=weights, reduction=kind)
        return contrast_embeddings(pair, objective, indexed(self.targets, within=True), changed, dtype=dtype)

    def sum_of_logits(self, x: Array) -> Array:
        """``Σ_j c_j g_j`` of each row x. Without a softcap it is ``x · Σ_j c_j W_j + Σ_j c_j b_j``."""
        if self.softcap is None:
            return self.layer.mean_logit(x) * self.layer.classes
        similarity = self.options.similarity
        if self.layer.class_weights is not None:
            similarity = scaled_columns(similarity, self.layer.class_weights)
        pair = {"embeddings": self.rows._replace(array=x), "weight": self.layer.columns}
        changed = self.options._replace(weights=None, reduction="none", similarity=similarity, across=None)
        return contrast_embeddings(pair, _SUM, candidates(), changed, dtype=x.dtype)


def _in_one_pass(call: _SoftmaxCall, dtype: Any) -> Array:
    """Reduced loss of the rows of one process."""
    rows, layer, targets, counted, options, _, smoothing, z_loss = call
    xp, reduction = namespace_of(rows.array), options.reduction
    objective = with_z_loss(z_loss) if z_loss > 0 else info_nce()
    of_targets = _row_weights(xp, options.weights, layer.of_targets(targets), counted, rows.array)
    if smoothing == 0:
        return call.contrasted(objective, of_targets, reduction, dtype)

    # With C = Σ_j c_j the loss without z is v (L - g_t) + ε/V Σ_j c_j (g_t - g_j), v = (1 - ε) c_t + C ε/V. The second
    # term needs no logits but the target's, as Σ_j c_j g_j = x·Σ_j c_j W_j + Σ_j c_j b_j.
    kind: ReductionName = "none" if reduction == "none" else "sum"
    wide, of_entropy, share = rows.array.dtype, of_targets, 1.0
    if layer.class_weights is not None:
        share = xp.mean(layer.class_weights, axis=0)
        mixed = (1.0 - smoothing) * layer.of_targets(targets) + smoothing * share
        of_entropy = _row_weights(xp, options.weights, mixed, counted, rows.array)
    inside, safe = inside_range(xp, targets, layer.classes)
    ahead = layer.logits_of(rows.array, safe) * share - layer.mean_logit(rows.array)
    of_rows = Reduction(kind, _row_weights(xp, options.weights, None, counted, rows.array))
    parts = [call.contrasted(objective, of_entropy, kind, wide)]
    parts.append(finish(xp, of_rows.of_values(smoothing * ahead, inside), wide, kind))
    if reduction != "mean":
        return add(parts, dtype, reduction)
    norm = xp.astype(inside, wide)
    norm = sum_to_scalar(xp, norm if of_targets is None else norm * of_targets)
    ((total, norm),) = lift_to_tape((add(parts, wide, reduction), norm))
    return finish(xp, safe_quotient(namespace_of(norm), xp.reshape(total, (1,)), norm), dtype, reduction)


class _Layer(NamedTuple):
    """Arrays of the layer and class weights, upcast.

    `placeholder`: whether there is one class, of zeros, which takes no part: a rank without classes computes as others.
    """

    columns: Embedding
    bias: Array | None
    class_weights: Array | None
    placeholder: bool = False

    def of_targets(self, targets: Array) -> Any:
        """Class weight of each target (arbitrary for targets out of range); None without weights."""
        if self.class_weights is None:
            return None
        xp, classes = namespace_of(targets), self.class_weights.shape[0]
        _, safe = inside_range(xp, targets, classes)
        return namespace_of(self.class_weights).take(self.class_weights, safe, axis=0)

    def logits_of(self, x: Array, targets: Array) -> Array:
        """Logit of each row's target, without a softcap."""
        return _product(x, *(namespace_of(a).take(a, targets, axis=0) for a in self._arrays))

    def mean_logit(self, x: Array) -> Array:
        """``Σ_j c_j g_j / V`` of each row, without a softcap."""
        means = []
        for array in self._arrays:
            xp = namespace_of(array)
            if self.class_weights is None:
                means.append(xp.mean(array, axis=0, keepdims=True))
            else:
                shares = xp.reshape(self.class_weights, (1, -1)) / self.classes
                with adapter_of(array).full_precision(array):
                    means.append(xp.matmul(*lift_to_tape((shares, array))[0]))
        return _product(x, *means)

    @property
    def classes(self) -> int:
        """Number of classes on this rank."""
        return self.columns.array.shape[0]

    def with_placeholder(self) -> _Layer:
        """Layer with one class of zeros, for a rank without classes."""

        def padded(x: Array) -> Array:
            ((x,),) = lift_to_tape((x,))
            return namespace_of(x).concat([x, zeros(namespace_of(x), (1, *x.shape[1:]), x)], axis=0)

        bias, class_weights = (None if x is None else padded(x) for x in (self.bias, self.class_weights))
        return _Layer(self.columns._replace(array=padded(self.columns.array)), bias, class_weights, placeholder=True)

    @property
    def _arrays(self) -> list[Array]:
        return [self.columns.array, *(() if self.bias is None else (self.bias,))]

    def kept_here(self, shards: Shards) -> _Layer:
        """Layer whose classes are on this rank alone."""
        bias = None if self.bias is None else shards.kept_here(self.bias)
        return self._replace(columns=self.columns._replace(array=shards.kept_here(self.columns.array)), bias=bias)


def _product(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """``x_i · w_i + b_i`` of each row."""
    ((x, weight, *rest),) = lift_to_tape((x, weight, *(() if bias is None else (bias,))))
    result = namespace_of(x).sum(x * weight, axis=1)
    return result + rest[0] if rest else result


def _of_statistics(call: _SoftmaxCall, shards: Shards | None) -> tuple[Array, SoftmaxStatistics]:
    """Reduced loss of all ranks, and the statistics of this rank's rows.

    Each rank scores the rows of all ranks against its classes; sums over the ranks give those over all classes, so that
    no weights are communicated.
    """
    embedding, layer, targets, counted, options, _, smoothing, z_loss = call
    xp, x, n_rows, classes = namespace_of(embedding.array), embedding.array, targets.shape[0], layer.classes
    of_rows = None if shards is None else shards._replace(columns=shards.rows)
    if shards is not None:
        x, classes = shards.gather(x, sent_as=embedding.dtypes[0]), sum(shards.columns)
        targets = shards.flags(targets) - shards.first_row(of_columns=True)

    def of_all(numbers: Array) -> Array:
        return numbers if of_rows is None else of_rows.sum_of_columns(numbers)[:n_rows]

    inside, safe = inside_range(xp, targets, 0 if layer.placeholder else layer.classes)
    pairing = indexed(xp.where(inside, safe, -xp.ones_like(safe)), elsewhere=shards is not None)
    row = statistics_of_rows(embedding._replace(array=x), layer.columns, pairing, options)
    if layer.placeholder:
        row = row._replace(has_negative=xp.zeros_like(inside))
    if of_rows is not None:
        row = RowStatistics(*(x[:n_rows] for x in _of_all_classes(row, of_rows)))
    _, values, log_sum = of_all_scores(row)
    costs, share = None, 1.0
    if layer.class_weights is not None:
        taken = xp.take(layer.class_weights, safe, axis=0)
        costs = of_all(xp.where(inside, taken, xp.zeros_like(taken)))
        share = sum_to_scalar(xp, layer.class_weights)
        share = (share if shards is None else shards.total(share)) / classes
        values = values * ((1.0 - smoothing) * costs + smoothing * share)
    if z_loss > 0:
        squares = z_loss * log_sum * log_sum
        values = values + (squares if costs is None else squares * costs)
    if smoothing > 0:
        values = values + smoothing * (row.positive * share - of_all(call.sum_of_logits(x)) / classes)
    weights = _row_weights(xp, options.weights, None, counted, embedding.array)
    result = Reduction(options.reduction, weights, shards).of_values(values, row.has_positive, costs)
    end_exchange(options.across)
    counted = row.has_positive if counted is None else xp.logical_and(counted, row.has_positive)
    both = (xp.where(counted, x, xp.zeros_like(x)) for x in (log_sum, row.positive))
    return result, SoftmaxStatistics(*both)


def _of_all_classes(row: RowStatistics, shards: Shards) -> RowStatistics:
    """Row statistics over all classes, from those over this rank's classes."""
    xp = namespace_of(row.negative)
    negative = xp.where(row.has_negative, row.negative, -math.inf)
    top = shards.largest(negative, of_columns=True)
    total = shards.sum_of_columns(factors(xp, [negative], top)[0])
    positive = shards.sum_of_columns(xp.where(row.has_positive, row.positive, xp.zeros_like(negative)))
    present = shards.sum_of_columns(xp.astype(row.has_positive, negative.dtype)) > 0
    return statistics_of(xp, RowSums(ExpSum(top, total), one_per_row(xp, positive, present)))


def _agreed(across: Ranks, x: Array, classes: int, targets: Array) -> Shards:
    """Sharding of rows and classes over the ranks."""
    largest = adapter_of(targets).concrete_value(namespace_of(targets).max(targets)) if x.shape[0] else None
    notes = RankReport(x.shape[0], classes, {"features": x.shape[1]}, largest=int(largest or 0), named="targets")
    return agree(across, notes, x)


def _layer(xp: Namespace, x: Array, weight: Embedding, arrays: dict[str, Array]) -> _Layer:
    """Check the arrays of the layer."""
    bias, class_weights = arrays.get("bias"), arrays.get("class_weights")
    classes, _ = shape_of("weight", weight.array, "(V, D)")
    check_width("weight", weight.array, x.shape[1])
    if bias is not None:
        check_floating(xp, embeddings=x, weight=weight.array, bias=bias)
        check_shape("bias", bias, (classes,))
        bias = upcast(xp, bias)
    if class_weights is not None:
        check_floating(xp, class_weights=class_weights)
        check_shape("class_weights", class_weights, (classes,))
        class_weights = xp.astype(stop_gradient(class_weights), x.dtype)
    return _Layer(weight, bias, class_weights)


def _targets(xp: Namespace, targets: Array, rows: int, ignore_index: Any) -> tuple[Array, Array | None]:
    """Targets, 0 in ignored rows; and the mask of the other rows, None if no row can be ignored."""
    targets = indices_of(xp, "targets", targets, (rows,))
    counted = None
    if ignore_index is not None:
        number = as_integer(ignore_index)
        if number is None:
            raise TypeError(f"ignore_index: expected an integer or None, got {type(ignore_index).__name__}")
        limits = xp.iinfo(targets.dtype)
        if limits.min <= number <= limits.max:
            counted = targets != number
            targets = xp.where(counted, targets, xp.zeros_like(targets))
    return targets, counted


def _row_weights(
    xp: Namespace, weights: Array | None, factors: Array | None, counted: Array | None, like: Array
) -> Array | None:
    """Product of the given weights, 0 in rows that do not count; None if no argument is given."""
    result = weights if factors is None else factors if weights is None else weights * factors
    if counted is None:
        return result
    result = xp.ones_like(like[:, 0]) if result is None else result
    return xp.where(counted, result, xp.zeros_like(result))


def _between(name: str, value: Any, most: float | None) -> float:
    """Check that a number is not negative and at most `most`."""
    number = check_number(name, value)
    if number < 0 or (most is not None and number > most):
        wanted = "that is not negative" if most is None else f"from 0 to {most:g}"
        raise ValueError(f"{name}: expected a number {wanted}, got {number}")
    return number
