"""Critics: networks whose score of a pair estimates ``log p(y | x) - log p(y)`` up to a function of x."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from .. import from_scores
from .._core.autodiff import stop_gradient, value_and_grad
from .._core.namespace import device_of, namespace_of
from .._core.protocol import Array
from .._losses.in_batch import info_nce
from .features import Inputs

__all__ = ["JOINT", "SEPARABLE", "Critic", "linear_loss", "own"]

HIDDEN, OUTPUTS = 64, 32
CHUNK = 2**22
"""Scores held at a time by a critic without embeddings."""

Parameters = list[Array]


class Critic(NamedTuple):
    """Family of critics.

    Attributes
    ----------
    loss : function
        ``(parameters, x, y)`` to InfoNCE of the pairs, with all others as negatives.
    judged : function
        ``(ensemble, x, y)`` to the InfoNCE losses of the rows under the mean score, and the column sums of the softmax
        minus 1.
    initial : function
        ``(random, squares, features)``, with squared canonical correlations, to the parameters that training starts
        from, and those kept if training does not help.
    """

    loss: Callable[[Any, Inputs, Inputs], Array]
    judged: Callable[[Sequence[Any], Inputs, Inputs], tuple[Array, Array]]
    initial: Callable[[Random, Array, tuple[int, int]], tuple[Any, Any]]


def _normal_matrix(random: Random, like: Array, rows: int, columns: int, scale: float) -> Array:
    """Matrix of normal random numbers."""
    numbers = [[random.gauss(0.0, scale) for _ in range(columns)] for _ in range(rows)]
    return namespace_of(like).asarray(numbers, dtype=like.dtype, device=device_of(like))


def _network(random: Random, like: Array, sizes: Sequence[int]) -> Parameters:
    """Weights and biases of layers of these sizes."""
    result = []
    for a, b in pairwise(sizes):
        weights = _normal_matrix(random, like, a, b, math.sqrt(1.0 / a))
        result += [weights, namespace_of(like).zeros_like(weights[0, :])]
    return result


def _with_gradient(losses: Callable[[Array], Array], x: Array) -> tuple[Array, Array]:
    """Losses of the rows, and the gradient of their sum."""

    def total(x: Array) -> tuple[Array, Array]:
        result = losses(x)
        return namespace_of(result).sum(result), result

    (_, result), gradient = value_and_grad(total, has_aux=True)(x)
    return stop_gradient(result), gradient


def _run(layers: Parameters, x: Array) -> Array:
    xp = namespace_of(layers[0])
    for k in range(0, len(layers) - 2, 2):
        x = xp.tanh(x @ layers[k] + layers[k + 1])
    return x @ layers[-2] + layers[-1]


# ------------------------------------------------------------------------------------------------------------ separable


def _info_nce(left: Array, right: Array, **options: Any) -> Array:
    return info_nce(left, right, similarity="dot", temperature=1.0, **options)


def _linear(squares: Array) -> Parameters:
    """Linear critic of Gaussians: for correlation r, ``log p(y|x)/p(y) = (r a b - r² b²/2) / (1 - r²) + c(a)``."""
    xp = namespace_of(squares)
    r = xp.sqrt(squares)
    root = xp.sqrt(r / (1.0 - squares))
    diagonal = xp.eye(r.shape[0], dtype=r.dtype, device=device_of(r)) * root
    return [diagonal, diagonal, -0.5 * r]  # b is scaled by root


def _linear_embeddings(parameters: Parameters, x: Inputs, y: Inputs) -> tuple[Array, Array, Array]:
    a, b = x.coordinates @ parameters[0], y.coordinates @ parameters[1]
    return a, b, namespace_of(b).sum(b * b * parameters[2], axis=1, keepdims=True)


def linear_loss(squares: Array, x: Inputs, y: Inputs) -> Array:
    """InfoNCE of the pairs under the log density ratio of Gaussians with these squared canonical correlations."""
    a, b, added = _linear_embeddings(_linear(squares), x, y)
    xp = namespace_of(a)
    return _info_nce(xp.concat([a, xp.ones_like(added)], axis=1), xp.concat([b, added], axis=1))


def _initial(random: Random, squares: Array, features: tuple[int, int]) -> tuple[Parameters, Parameters]:
    """Networks with small last layers, and the same with zero last layers."""
    networks = [_network(random, squares, (width, HIDDEN, HIDDEN, OUTPUTS + k)) for k, width in enumerate(features)]
    first, kept = ([*_linear(squares), *networks[0], *networks[1]] for _ in range(2))
    for k in (7, 13):
        first[k], kept[k] = 0.3 * first[k], namespace_of(kept[k]).zeros_like(kept[k])
    return first, kept


def _embed(parameters: Parameters, x: Inputs, y: Inputs) -> tuple[Array, Array]:
    """Embeddings whose inner products are the scores ``f(x) · g(y) + b(y)``."""
    a, b, added = _linear_embeddings(parameters[:3], x, y)
    u, v = _run(parameters[3:9], x.features), _run(parameters[9:15], y.features)
    xp, added = namespace_of(a), added + v[:, OUTPUTS:]
    return xp.concat([a, u, xp.ones_like(added)], axis=1), xp.concat([b, v[:, :OUTPUTS], added], axis=1)


def _separable_loss(parameters: Parameters, x: Inputs, y: Inputs) -> Array:
    return _info_nce(*_embed(parameters, x, y))


def _separable_judged(ensemble: Sequence[Parameters], x: Inputs, y: Inputs) -> tuple[Array, Array]:
    """Streamed row losses, and column sums of the softmax minus 1, the gradient by an offset of the column."""
    rows, columns = zip(*(_embed(p, x, y) for p in ensemble), strict=True)
    xp = namespace_of(rows[0])
    one = xp.ones_like(rows[0][:, :1])
    left = xp.concat([*(f / len(ensemble) for f in rows), one], axis=1)

    right = xp.concat([*columns, xp.zeros_like(one)], axis=1)
    result, gradient = _with_gradient(lambda right: _info_nce(left, right, reduction="none"), right)
    return result, gradient[:, -1]


SEPARABLE = Critic(_separable_loss, _separable_judged, _initial)
"""Scores ``f(x) · g(y) + b(y)``, which InfoNCE streams.

Training starts from the Gaussian log density ratio in canonical coordinates; networks learn the rest."""


# -------------------------------------------------------------------------------------------------------- of all pairs


def of_all_pairs(scores: Callable[[Any, Inputs, Inputs], Array], width: int, initial: Callable[..., Any]) -> Critic:
    """Critic of a function from parameters, x and y to scores (N, K), which holds `width` numbers per score."""

    def loss(parameters: Any, x: Inputs, y: Inputs) -> Array:
        return from_scores.info_nce(scores(parameters, x, y))

    def judged(ensemble: Sequence[Any], x: Inputs, y: Inputs) -> tuple[Array, Array]:
        first = x.coordinates
        xp, count = namespace_of(first), first.shape[0]
        size = max(1, CHUNK // (count * width))
        losses, shares = [], xp.zeros_like(first[:, 0])
        for start in range(0, count, size):
            numbers = xp.arange(start, min(start + size, count), device=device_of(first))
            some = x.select(numbers)
            mean = sum(scores(p, some, y) for p in ensemble) / len(ensemble)
            result, gradient = _with_gradient(partial(from_scores.info_nce, positives=numbers, reduction="none"), mean)
            losses.append(result)
            shares = shares + xp.sum(gradient, axis=0)
        return xp.concat(losses), shares

    return Critic(loss, judged, initial)


def _joint_scores(parameters: Parameters, x: Inputs, y: Inputs) -> Array:
    f, g = _embed(parameters[:15], x, y)
    u, v = _run(parameters[15:19], x.features), _run(parameters[19:23], y.features)
    xp = namespace_of(u)
    inner = xp.tanh(u[:, None, :] + v[None, :, :])
    return f @ g.T + xp.sum(inner * parameters[23], axis=-1)


def _joint_initial(random: Random, squares: Array, features: tuple[int, int]) -> tuple[Parameters, Parameters]:
    """Parameters of the separable critic and of the joint term, whose weights are 0 in the kept critic."""
    first, kept = _initial(random, squares, features)
    layers = [x for width in features for x in _network(random, squares, (width, HIDDEN, OUTPUTS))]
    weights = _normal_matrix(random, squares, OUTPUTS, 1, 0.1)[:, 0]
    return [*first, *layers, weights], [*kept, *layers, namespace_of(weights).zeros_like(weights)]


def own(scores: Callable[[Any, Array, Array], Array], parameters: Any) -> Critic:
    """Critic of a user's function from parameters, x and y to scores (N, K)."""
    return of_all_pairs(lambda p, x, y: scores(p, x.coordinates, y.coordinates), 1, lambda *_: (parameters, parameters))


JOINT = of_all_pairs(_joint_scores, OUTPUTS, _joint_initial)
"""Separable scores plus ``w · tanh(u(x) + v(y))``, which can follow sharp edges, at `OUTPUTS` numbers per score."""
