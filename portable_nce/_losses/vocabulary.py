"""Cross-entropy over a vocabulary, of embeddings and the weights of a linear layer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from .._call import (
    Embedding,
    Options,
    add,
    contrast_embeddings,
    enter_embeddings,
    finish,
    result_dtype,
    row_statistics,
)
from .._core.autodiff import stop_gradient
from .._core.checks import (
    SINGLE,
    as_integer,
    check_floating,
    check_indices,
    check_number,
    check_shape,
    check_width,
    indices_of,
    shape_of,
)
from .._core.logsumexp import ExpSum, factors
from .._core.namespace import lift_to_tape, namespace_of
from .._core.numerics import rows_where, sum_to_scalar, upcast
from .._core.protocol import Array, Namespace
from .._core.ranks import Notes, Ranks, Shards, agree, finished, told_to_others
from .._core.reduction import Reduction, divided
from .._core.registry import adapter_of
from .._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, Precision, ReductionName
from .._execution.statistics import RowSums, of_line
from .._execution.statistics import row_statistics as statistics_of
from ..objectives import Pairwise, RowStatistics, Term, info_nce
from ..objectives.softmax import with_z_loss
from ..pairings import candidates, index
from ..similarities import scaled_columns, shifted_columns, soft_capped

__all__ = ["linear_softmax"]


def _identity(score: Array) -> Array:
    return score


def _one(score: Array) -> tuple[Array]:
    return (namespace_of(score).ones_like(score),)


_SUM = Pairwise(Term(_identity, _one), Term(_identity, _one), label="sum")
"""The sum of a row's scores."""


@told_to_others
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
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the cross-entropy of a linear layer over a vocabulary, without the N × V matrix of its logits.

    .. math:: \ell_i = c_t \big( (1 - \varepsilon) (L_i - g_{it}) + \zeta L_i^2 \big)
        + \frac\varepsilon V \sum_{j=1}^V c_j (L_i - g_{ij}), \qquad
        g = x W^\top + b, \quad L_i = \mathrm{lse}_j\, g_{ij}, \quad t = t_i

    With a softcap κ the logits are :math:`\kappa \tanh(g / \kappa)`. The logits are computed in blocks, with their
    gradient in the same pass. Smoothing takes a second pass together with `softcap`, and another with `class_weights`
    and `z_loss`.

    Parameters
    ----------
    embeddings : array, shape (N, D)
        Embeddings x: the hidden states of N tokens, or queries.
    weight : array, shape (V, D)
        Weight W of the layer: a row for each word or item.
    targets : array of int, shape (N,)
        Number t of each row's target, from 0 to V - 1, or `ignore_index`. Others are an error where the values are at
        hand (NumPy, PyTorch's CPU tensors outside of transforms); elsewhere such a row does not count.
    bias : array, shape (V,), optional
        Bias b of the layer; differentiable. It has to be finite.
    softcap : float, optional
        Limit κ > 0 of the magnitude of the logits.
    smoothing : float, default: 0.0
        Share ε of the target that goes to all V classes alike, from 0 to 1.
    ignore_index : int, optional
        Target of rows that do not count, such as padding; their embeddings may be NaN.
    class_weights : array, shape (V,), optional
        Weight c of each class, a constant; 1 by default. A mean divides by the sum of those of the targets.
    z_loss : float, default: 0.0
        Factor ζ ≥ 0 of the square of the log-partition function, which keeps it near 0.
    weights : array, shape (N,), optional
        Weights of the rows.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that count, weighted sum, or the weighted losses of the rows.
    block_size : int, None or "auto", default: "auto"
        Rows at a time, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        How matrices are multiplied; see :doc:`/options`.
    across : Ranks, optional
        Ranks of which each has rows, and classes, of its own: `weight`, `bias` and `class_weights` hold a part of the
        vocabulary, whose classes are numbered from rank to rank; targets are numbers of the whole. No rank holds
        another's weights; their gradients stay where they are. Takes two passes. See `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `embeddings`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit.

    See Also
    --------
    full_softmax : Of logits that are at hand.

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

    NumPy:

    >>> import numpy as np
    >>> pnce.density.linear_softmax(np.eye(2), np.eye(2), np.asarray([0, 1]))
    array(0.31326169)
    """
    softcap = None if softcap is None else check_number("softcap", softcap, above=0.0, limits=SINGLE)
    smoothing = _between("smoothing", smoothing, 1.0)
    z_loss = _between("z_loss", z_loss, None)
    options = Options(1.0, "dot", None, weights, reduction, block_size, precision, across)
    optional = {"bias": bias, "class_weights": class_weights}
    others = {"weight": weight, "targets": targets, **{name: x for name, x in optional.items() if x is not None}}
    given = enter_embeddings({"embeddings": embeddings}, options, others)
    xp, options, (rows,) = given.xp, given.options, given.embeddings.values()
    layer = _layer(xp, rows.array, given.others)
    classes = layer.columns.array.shape[0]
    targets, counted = _targets(xp, given.others["targets"], rows.array.shape[0], ignore_index)
    shards = None
    if across is None:
        check_indices(xp, "targets", targets, classes, "the rows of weight")
    else:
        check_indices(xp, "targets", targets, 2**31, "the classes of all ranks")
        shards = _agreed(across, rows.array, classes, targets)
        layer = layer.kept_here(shards)
    if counted is not None:
        rows = rows._replace(array=rows_where(xp, counted, rows.array)[0])

    similarity: Any = "dot" if layer.bias is None else shifted_columns("dot", layer.bias)
    if softcap is not None:
        similarity = soft_capped(similarity, softcap)
    options = options._replace(similarity=similarity)
    dtype = result_dtype(xp, rows, layer.columns)
    call = _Call(rows, layer, targets, counted, options)
    if shards is not None:
        return finish(xp, _of_ranks(call, shards, z_loss, smoothing), dtype, reduction)
    return _of_one_process(call, z_loss, smoothing, softcap, dtype)


class _Call(NamedTuple):
    """The checked arguments: rows, layer, targets, which rows count (None: all), and options with the similarity."""

    rows: Embedding
    layer: _Layer
    targets: Array
    counted: Array | None
    options: Options

    def contrasted(self, objective: Any, weights: Array | None, kind: ReductionName, dtype: Any) -> Array:
        """The loss of an objective of the log-odds and of the log-partition function."""
        pair = {"embeddings": self.rows, "weight": self.layer.columns}
        changed = self.options._replace(weights=weights, reduction=kind)
        return contrast_embeddings(pair, objective, index(self.targets), changed, dtype=dtype)


def _of_one_process(call: _Call, z_loss: float, smoothing: float, softcap: float | None, dtype: Any) -> Array:
    rows, layer, targets, counted, options = call
    xp, reduction, similarity = namespace_of(rows.array), options.reduction, options.similarity
    classes = layer.columns.array.shape[0]
    objective = with_z_loss(z_loss) if z_loss else info_nce()
    of_targets = _row_weights(xp, options.weights, layer.of_targets(targets), counted, rows.array)
    if not smoothing:
        return call.contrasted(objective, of_targets, reduction, dtype)

    # With C = Σ_j c_j the loss without z is v (L - g_t) + ε/V Σ_j c_j (g_t - g_j), v = (1 - ε) c_t + C ε/V. The second
    # term needs no logits but the target's, as Σ_j c_j g_j = x·Σ_j c_j W_j + Σ_j c_j b_j; capped logits are summed.
    kind: ReductionName = "none" if reduction == "none" else "sum"
    wide, of_entropy, parts = rows.array.dtype, of_targets, list[Array]()
    shares = _row_weights(xp, options.weights, None, counted, rows.array)
    if layer.class_weights is not None:
        mixed = (1.0 - smoothing) * layer.of_targets(targets) + smoothing * xp.mean(layer.class_weights, axis=0)
        of_entropy = _row_weights(xp, options.weights, mixed, counted, rows.array)
        if z_loss:
            parts.append(call.contrasted(with_z_loss(z_loss, alone=True), of_targets, kind, wide))
            objective = info_nce()
    parts.append(call.contrasted(objective, of_entropy, kind, wide))
    inside, safe = _in_range(xp, targets, classes)
    ahead = layer.ahead_of_mean(rows.array, safe) if softcap is None else layer.capped(rows.array, safe, softcap)
    parts.append(finish(xp, Reduction(kind, shares).of_values(smoothing * ahead, inside), wide, kind))
    if softcap is not None:
        if layer.class_weights is not None:
            scaled = scaled_columns(similarity, layer.class_weights)
            call = call._replace(options=options._replace(similarity=scaled))
        parts.append(xp.reshape(call.contrasted(_SUM, shares, kind, wide), (-1,)) * -smoothing / classes)
    if reduction != "mean":
        return add(parts, dtype, reduction)
    norm = xp.astype(inside, wide)
    norm = sum_to_scalar(xp, norm if of_targets is None else norm * of_targets)
    ((total, norm),) = lift_to_tape((add(parts, wide, reduction), norm))
    total = xp.reshape(total, (1,))
    return finish(xp, divided(total, norm), dtype, reduction)


class _Layer(NamedTuple):
    """The arrays of the layer, and the weights of its classes, in the dtype to compute in."""

    columns: Embedding
    bias: Array | None
    class_weights: Array | None

    def of_targets(self, targets: Array) -> Any:
        """The weight of each target, of those out of range that of some class; None without weights."""
        if self.class_weights is None:
            return None
        xp, classes = namespace_of(targets), self.class_weights.shape[0]
        _, safe = _in_range(xp, targets, classes)
        return namespace_of(self.class_weights).take(self.class_weights, safe, axis=0)

    def ahead_of_mean(self, x: Array, targets: Array) -> Array:
        """``Σ_j c_j (g_t - g_j) / V`` of each row."""
        given = (x, self.columns.array, *(() if self.bias is None else (self.bias,)))
        ((x, *layer),) = lift_to_tape(given)
        xp = namespace_of(x)
        differences = []
        for array in layer:
            if self.class_weights is None:
                mean, weight = xp.mean(array, axis=0, keepdims=True), None
            else:
                shape = (-1, *[1] * (len(array.shape) - 1))
                mean = xp.mean(array * xp.reshape(self.class_weights, shape), axis=0, keepdims=True)
                weight = xp.mean(self.class_weights, axis=0)
            own = xp.take(array, targets, axis=0)
            differences.append((own if weight is None else own * weight) - mean)
        found = xp.sum(x * differences[0], axis=1)
        return found + differences[1] if len(differences) > 1 else found

    def kept_here(self, shards: Shards) -> _Layer:
        """The same of a rank that alone has these classes."""
        bias = None if self.bias is None else shards.kept_here(self.bias)
        return self._replace(columns=self.columns._replace(array=shards.kept_here(self.columns.array)), bias=bias)

    def capped(self, x: Array, targets: Array, cap: float) -> Array:
        """``Σ_j c_j / V`` times the capped score of each row's target."""
        given = (x, self.columns.array, *(() if self.bias is None else (self.bias,)))
        ((x, weight, *bias),) = lift_to_tape(given)
        xp = namespace_of(x)
        scores = xp.sum(x * xp.take(weight, targets, axis=0), axis=1)
        scores = scores + xp.take(bias[0], targets, axis=0) if bias else scores
        scores = xp.tanh(scores / cap) * cap
        return scores if self.class_weights is None else scores * xp.mean(self.class_weights, axis=0)


def _of_ranks(call: _Call, shards: Shards, z_loss: float, smoothing: float) -> Array:
    """The reduced losses of the rows of all ranks.

    Each rank compares the rows of all with its own classes. What a row has over all classes is the sum of what it has
    on each rank, so that no weights travel.
    """
    embedding, layer, targets, counted, options = call
    n_rows = targets.shape[0]
    x = shards.gather(embedding.array, sent_as=embedding.dtypes[0])
    xp, of_rows = namespace_of(x), replace(shards, columns=shards.rows)
    first = shards.first_row(of_columns=True)
    inside, safe = _in_range(xp, shards.flags(targets) - first, layer.columns.array.shape[0])
    pairing = index(xp.where(inside, safe, -xp.ones_like(safe)))
    pairing = pairing._replace(structure=pairing.structure._replace(elsewhere=True))
    found = row_statistics(embedding._replace(array=x), layer.columns, pairing, options)
    row = RowStatistics(*(x[:n_rows] for x in _of_all_classes(found, of_rows)))
    values, costs, share = info_nce().values(row), None, 1.0
    if layer.class_weights is not None:
        taken = xp.take(layer.class_weights, safe, axis=0)
        costs = of_rows.sum_of_columns(xp.where(inside, taken, xp.zeros_like(taken)))[:n_rows]
        share = shards.total(sum_to_scalar(xp, layer.class_weights)) / sum(shards.columns)
        values = values * ((1.0 - smoothing) * costs + smoothing * share)
    if z_loss:
        squares = with_z_loss(z_loss, alone=True).values(row)
        values = values + (squares if costs is None else squares * costs)
    if smoothing:
        total = of_rows.sum_of_columns(_sum_of_logits(call, x))[:n_rows]
        values = values + smoothing * (row.positive * share - total / sum(shards.columns))
    weights = _row_weights(xp, options.weights, None, counted, values)
    result = Reduction(options.reduction, weights, shards).of_values(values, row.has_positive, costs)
    finished(options.across)
    return result


def _sum_of_logits(call: _Call, x: Array) -> Array:
    """The sum of the logits of this rank's classes in each row x, times their weights."""
    embedding, layer, _, _, options = call
    similarity = options.similarity
    if layer.class_weights is not None:
        similarity = scaled_columns(similarity, layer.class_weights)
    pair = {"embeddings": embedding._replace(array=x), "weight": layer.columns}
    changed = options._replace(weights=None, reduction="none", similarity=similarity, across=None)
    return contrast_embeddings(pair, _SUM, candidates(), changed, dtype=x.dtype)


def _of_all_classes(row: RowStatistics, shards: Shards) -> RowStatistics:
    """The statistics of the rows of all ranks among all classes, from those among this rank's classes."""
    xp = namespace_of(row.negative)
    negative = xp.where(row.has_negative, row.negative, -math.inf)
    top = shards.largest(negative, of_columns=True)
    total = shards.sum_of_columns(factors(xp, [negative], top)[0])
    positive = shards.sum_of_columns(xp.where(row.has_positive, row.positive, xp.zeros_like(negative)))
    present = shards.sum_of_columns(xp.astype(row.has_positive, negative.dtype)) > 0
    return statistics_of(xp, RowSums(ExpSum(top, total), of_line(xp, positive, present)))


def _agreed(across: Ranks, x: Array, classes: int, targets: Array) -> Shards:
    """How rows and classes lie on the ranks."""
    largest = adapter_of(targets).concrete_value(namespace_of(targets).max(targets))
    notes = Notes(x.shape[0], classes, {"features": x.shape[1]}, largest=int(largest or 0), named="targets")
    return agree(across, notes, x)


def _layer(xp: Namespace, x: Array, arrays: dict[str, Array]) -> _Layer:
    """The checked arrays of the layer."""
    weight, bias, class_weights = (arrays.get(name) for name in ("weight", "bias", "class_weights"))
    assert weight is not None  # noqa: S101  (an argument without a default)
    check_floating(xp, embeddings=x, weight=weight)
    classes, _ = shape_of("weight", weight, "(V, D)")
    check_width("weight", weight, x.shape[1])
    if bias is not None:
        check_floating(xp, embeddings=x, bias=bias)
        check_shape("bias", bias, (classes,))
        bias = upcast(xp, bias)
    if class_weights is not None:
        check_floating(xp, class_weights=class_weights)
        check_shape("class_weights", class_weights, (classes,))
        class_weights = xp.astype(stop_gradient(class_weights), x.dtype)
    return _Layer(Embedding(upcast(xp, weight), (weight.dtype,)), bias, class_weights)


def _targets(xp: Namespace, targets: Array, rows: int, ignore_index: Any) -> tuple[Array, Array | None]:
    """The targets, 0 in the rows that are ignored; and which rows are not, if any may be."""
    targets = indices_of(xp, "targets", targets, (rows,))
    counted = None
    if ignore_index is not None:
        number = as_integer(ignore_index)
        if number is None:
            message = f"ignore_index: expected an integer or None, got {type(ignore_index).__name__}"
            raise TypeError(message)
        limits = xp.iinfo(targets.dtype)
        if limits.min <= number <= limits.max:
            counted = targets != number
            targets = xp.where(counted, targets, xp.zeros_like(targets))
    return targets, counted


def _in_range(xp: Namespace, targets: Array, classes: int) -> tuple[Array, Array]:
    """Which targets are classes, and the targets, 0 where they are none."""
    inside = xp.logical_and(targets >= 0, targets < classes)
    return inside, xp.where(inside, targets, xp.zeros_like(targets))


def _row_weights(
    xp: Namespace, weights: Array | None, factors: Array | None, counted: Array | None, like: Array
) -> Array | None:
    """The product of what is given, 0 in rows that do not count; None if nothing is."""
    found = weights if factors is None else factors if weights is None else weights * factors
    if counted is None:
        return found
    found = xp.ones_like(like[:, 0]) if found is None else found
    return xp.where(counted, found, xp.zeros_like(found))


def _between(name: str, value: Any, most: float | None) -> float:
    """A number that is not negative, and not beyond a limit."""
    number = check_number(name, value, limits=SINGLE)
    if number < 0 or (most is not None and number > most):
        wanted = "that is not negative" if most is None else f"from 0 to {most:g}"
        message = f"{name}: expected a number {wanted}, got {number}"
        raise ValueError(message)
    return number
