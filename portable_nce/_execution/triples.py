"""Triple sums: sums of a function of ``s_n - s_p`` over all pairs of a negative and a positive of a row.

There are O(N³) triples; they are visited a few positives at a time, in the memory of a few score matrices.
"""

from __future__ import annotations

from typing import NamedTuple

from .._core.autodiff import stop_gradient
from .._core.checks import is_empty
from .._core.namespace import lift_to_tape, namespace_of
from .._core.numerics import relu, relu_slope, sigmoid, softplus, zeros
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from .inputs import Arrays
from .tiling import Bounds, triples


class TripleSums(NamedTuple):
    """Sums over the triples of each row, of shape (N,); the numbers of triples, and of nonzero ones, are constants."""

    total: Array
    number: Array
    active: Array


class _TriplesSpec(NamedTuple):
    soft: bool
    block: int | Bounds


def excess(xp: Namespace, difference: Array, *, soft: bool) -> Array:
    """Loss of a triple: the positive part of the difference, or its softplus."""
    return softplus(xp, difference) if soft else relu(xp, difference)


def triple_sums(scores: Array, positives: Array, negatives: Array, margin: Array, *, soft: bool) -> TripleSums:
    """Row sums, over positives p and negatives n, of the excess of ``s_n - s_p + m``.

    With e' the slope of the excess, the derivatives of a row's sum are ``Σ_p e'`` by s_n, ``-Σ_n e'`` by s_p, and
    ``Σ e'`` by m, which all rows share.
    """
    if is_empty(scores):  # of a rank without rows
        nothing = namespace_of(scores).sum(scores, axis=1)
        return TripleSums(nothing, stop_gradient(nothing), stop_gradient(nothing))
    adapter = adapter_of(scores)
    spec = _TriplesSpec(soft, triples(*scores.shape, mode=adapter.mode))
    total, number, active = adapter.custom_vjp(_forward, _backward)(spec, scores, margin, positives, negatives)
    return TripleSums(total, stop_gradient(number), stop_gradient(active))


def _of_block(xp: Namespace, scores: Array, margin: Array, negatives: Array, block: Arrays) -> tuple[Array, Array]:
    """Differences of a block of positives, shape (block, N, K), and the Boolean array that marks triples.

    The blocks are rows of the transposed scores and positives.
    """
    positive_scores, chosen = (xp.expand_dims(x, axis=2) for x in block)
    members = xp.logical_and(chosen, xp.expand_dims(negatives, axis=0))
    differences = xp.expand_dims(scores, axis=0) - positive_scores + xp.reshape(margin, (1, 1, 1))
    return xp.where(members, differences, xp.zeros_like(differences)), members


def _forward(spec: _TriplesSpec, scores: Array, margin: Array, positives: Array, negatives: Array) -> Arrays:
    xp = namespace_of(scores)

    def step(carry: Arrays, block: Arrays, _: Array | int) -> tuple[Arrays, Arrays]:
        differences, members = _of_block(xp, scores, margin, negatives, block)
        losses = xp.where(members, excess(xp, differences, soft=spec.soft), xp.zeros_like(differences))
        counts = (xp.astype(x, scores.dtype) for x in (members, losses != 0))
        return tuple(a + xp.sum(x, axis=(0, 2)) for a, x in zip(carry, (losses, *counts), strict=True)), ()

    zero = zeros(xp, scores.shape[:1], scores)
    columns = (xp.matrix_transpose(scores), xp.matrix_transpose(positives))
    carry, _ = adapter_of(scores).scan(step, (zero,) * 3, columns, spec.block)
    return carry


def _backward(spec: _TriplesSpec, arrays: Arrays, outputs: Arrays, cotangents: Arrays) -> Arrays:
    del outputs
    arrays, cotangents = lift_to_tape(arrays, cotangents)
    scores, margin, positives, negatives = arrays
    xp = namespace_of(scores)
    factor = xp.reshape(cotangents[0], (1, -1, 1))

    def step(carry: Arrays, block: Arrays, _: Array | int) -> tuple[Arrays, Arrays]:
        differences, members = _of_block(xp, scores, margin, negatives, block)
        slopes = sigmoid(xp, differences) if spec.soft else relu_slope(xp, differences)
        pull = xp.where(members, slopes * factor, xp.zeros_like(differences))
        to_margin = xp.sum(xp.reshape(pull, (-1,)), axis=0, keepdims=True)
        return (carry[0] + xp.sum(pull, axis=0), carry[1] + to_margin), (-xp.sum(pull, axis=2),)

    init = (xp.zeros_like(scores), zeros(xp, (1,), scores))
    columns = (xp.matrix_transpose(scores), xp.matrix_transpose(positives))
    (to_negatives, to_margin), (to_positives,) = adapter_of(scores).scan(step, init, columns, spec.block)
    return to_negatives + xp.matrix_transpose(to_positives), xp.reshape(to_margin, margin.shape)
