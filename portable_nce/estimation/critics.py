"""Critics: networks whose score of a pair estimates ``log p(y | x) - log p(y)`` up to a function of x."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from .._core.namespace import device_of, is_array, namespace_of
from .._core.protocol import Array
from .features import CriticInputs, Pairs, products, same_category
from .host import written

__all__ = [
    "JOINT",
    "OUTPUTS",
    "RULED_OUT",
    "SEPARABLE",
    "Critic",
    "CriticLosses",
    "gaussian",
    "mean_loss",
    "own",
    "row_losses",
    "separable_parts",
]

HIDDEN, OUTPUTS = 64, 32
RULED_OUT = -1e30
"""Score of a column of another category."""


class Critic(NamedTuple):
    """Family of critics.

    Attributes
    ----------
    scores : function
        ``(parameters, x, y)`` to scores (N, K) of each row of x with each row of y.
    gradient : function
        ``(parameters, x, y, exceptions)`` to the gradient of the mean loss of the pairs, with all others as negatives.
    initial : function
        ``(random, squares, features)``, with squared canonical correlations, to the parameters that training starts
        from, and those kept if training does not help.
    """

    scores: Callable[[Any, CriticInputs, CriticInputs], Array]
    gradient: Callable[[Any, CriticInputs, CriticInputs, float], Any]
    initial: Callable[[Random, Array, tuple[int, int]], tuple[Any, Any]]


# --------------------------------------------------------------------------------------------------------------- losses


class CriticLosses(NamedTuple):
    """Losses of rows, softmax of their scores, its share in the probability of each positive, and columns per row."""

    losses: Array
    softmax: Array
    share: Array
    counts: Array


def row_losses(scores: Array, exceptions: float, first: int = 0, same: Array | None = None) -> CriticLosses:
    """InfoNCE of rows whose positives are on a diagonal from column `first`, by softmax mixed with chance.

    The probability of column j is ``(1 - exceptions) softmax[j] + exceptions / n``: a pair that scores rule out costs
    ``log(n / exceptions)``, not any number. The gradient by scores is ``share (softmax - [j = positive])``.

    `same`: the columns of each row's category, of which there are n; others count nowhere.
    """
    xp, counts = namespace_of(scores), scores.shape[1]
    if same is not None:
        scores = xp.where(same, scores, xp.full_like(scores, RULED_OUT))
        counts = xp.sum(xp.astype(same, scores.dtype), axis=1)
    softmax = scores - xp.max(scores, axis=1, keepdims=True)
    softmax = written(xp.exp, softmax, out=softmax)
    softmax /= xp.sum(softmax, axis=1, keepdims=True)
    places = xp.arange(scores.shape[0], device=device_of(scores)) * (scores.shape[1] + 1) + first
    positives = (1.0 - exceptions) * xp.take(xp.reshape(softmax, (-1,)), places)
    probabilities = positives + exceptions / counts
    return CriticLosses(-xp.log(probabilities), softmax, positives / probabilities, counts)


def mean_loss(scores: Array, exceptions: float, same: Array | None) -> float:
    """Mean loss of the rows of a score matrix."""
    losses = row_losses(scores, exceptions, same=same).losses
    return float(namespace_of(losses).mean(losses))


def _by_differentiation(
    scores: Callable[[Any, CriticInputs, CriticInputs], Array],
) -> Callable[[Any, CriticInputs, CriticInputs, float], Any]:
    """Gradient of the mean loss of a score function, by the library."""

    @cache
    def made() -> Callable[[Any, CriticInputs, CriticInputs, float], Any]:
        # The losses take longer to import than the rest of this package, which needs none of them.
        from .. import from_scores  # noqa: PLC0415
        from .._core.autodiff import grad  # noqa: PLC0415

        def loss(parameters: Any, x: CriticInputs, y: CriticInputs, exceptions: float) -> Array:
            same = same_category(x, y)
            rows = from_scores.info_nce(scores(parameters, x, y), mask=same, reduction="none")
            xp = namespace_of(rows)
            counts = x.scores.shape[0] if same is None else xp.sum(xp.astype(same, rows.dtype), axis=1)
            return xp.mean(-xp.log((1.0 - exceptions) * xp.exp(-rows) + exceptions / counts))

        return grad(loss)

    def gradient(parameters: Any, x: CriticInputs, y: CriticInputs, exceptions: float) -> Any:
        return made()(parameters, x, y, exceptions)

    return gradient


# ------------------------------------------------------------------------------------------------------------- networks


def _uniform(random: Random, count: int, deviation: float) -> list[float]:
    """Uniform random numbers of mean 0."""
    limit, draw = math.sqrt(3.0) * deviation, random.random
    return [limit * (2.0 * draw() - 1.0) for _ in range(count)]


def _network(random: Random, sizes: Sequence[int], last: float = 1.0) -> list[float]:
    """Weights and biases of layers of these sizes; the weights of the last layer are multiplied by `last`."""
    result: list[float] = []
    for k, (a, b) in enumerate(pairwise(sizes)):
        factor = last if k == len(sizes) - 2 else 1.0
        result += [*_uniform(random, a * b, factor * math.sqrt(1.0 / a)), *[0.0] * b]
    return result


def _shapes(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    return [shape for a, b in pairwise(sizes) for shape in ((a, b), (b,))]


def _parts(parameters: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Arrays of these shapes from a vector of all their entries, in which Adam updates them at once."""
    xp, result, start = namespace_of(parameters), [], 0
    for shape in shapes:
        size = math.prod(shape)
        result.append(xp.reshape(parameters[start : start + size], shape))
        start += size
    return result


def _vector(like: Array, numbers: Sequence[float]) -> Array:
    return namespace_of(like).asarray(numbers, dtype=like.dtype, device=device_of(like))


def _run(layers: Sequence[Array], x: Array) -> list[Array]:
    """Outputs of each layer, the last without tanh."""
    xp, found = namespace_of(layers[0]), [x]
    for k in range(0, len(layers) - 2, 2):
        found.append(xp.tanh(found[-1] @ layers[k] + layers[k + 1]))
    return [*found, found[-1] @ layers[-2] + layers[-1]]


def _pulled(layers: Sequence[Array], outputs: list[Array], cotangent: Array) -> list[Array]:
    """Gradients of the layers, from the gradient of the last outputs."""
    result: list[Array] = []
    for k in range(len(layers) - 2, -1, -2):
        x = outputs[k // 2]
        result = [x.T @ cotangent, namespace_of(x).sum(cotangent, axis=0), *result]
        if k:
            cotangent = (cotangent @ layers[k].T) * (1.0 - x * x)
    return result


# ------------------------------------------------------------------------------------------------------------ separable


def _linear(squares: Array) -> list[Array]:
    """Linear critic of Gaussians: for correlation r, ``log p(y|x)/p(y) = (r a b - r² b²/2) / (1 - r²) + c(a)``."""
    xp = namespace_of(squares)
    r = xp.sqrt(squares)
    root = xp.sqrt(r / (1.0 - squares))
    return [root, root, -0.5 * r]  # b is scaled by root


def _linear_scores(
    parameters: Sequence[Array],
    x: CriticInputs,
    y: CriticInputs,
    product: Callable[[Array, Array], Array] | None = None,
) -> Array:
    """Scores of canonical coordinates, weighted one by one; `product` is that of BLAS, which tapes differentiate."""
    a, b = x.coordinates * parameters[0], y.coordinates * parameters[1]
    both = a @ b.T if product is None else product(a, b)
    return both + namespace_of(b).sum(b * b * parameters[2], axis=1)[None, :]


def gaussian(squares: Array, pairs: Pairs) -> Array:
    """Log density ratio of Gaussians with these squared canonical correlations."""
    return _linear_scores(_linear(squares), *pairs, product=products)


def _sizes(width: int, added: int) -> tuple[int, int, int, int]:
    return width, HIDDEN, HIDDEN, OUTPUTS + added


def separable_parts(parameters: Array, x: CriticInputs, y: CriticInputs) -> list[Array]:
    """Three weights of the linear critic, then the layers of the network of x and of that of y."""
    linear = [(x.coordinates.shape[1],)] * 3
    networks = [_shapes(_sizes(z.features.shape[1], k)) for k, z in enumerate((x, y))]
    return _parts(parameters, [*linear, *networks[0], *networks[1]])


def _initial(random: Random, squares: Array, features: tuple[int, int]) -> tuple[Array, Array]:
    """Networks with small last layers, and zero networks."""
    xp = namespace_of(squares)
    numbers = [_network(random, _sizes(width, k), 0.3) for k, width in enumerate(features)]
    linear, networks = _linear(squares), _vector(squares, [*numbers[0], *numbers[1]])
    return xp.concat([*linear, networks]), xp.concat([*linear, xp.zeros_like(networks)])


def _separable_scores(parameters: Array, x: CriticInputs, y: CriticInputs) -> Array:
    parts = separable_parts(parameters, x, y)
    u, v = _run(parts[3:9], x.features)[-1], _run(parts[9:15], y.features)[-1]
    return _linear_scores(parts, x, y) + u @ v[:, :OUTPUTS].T + v[:, OUTPUTS][None, :]


def _separable_gradient(parameters: Array, x: CriticInputs, y: CriticInputs, exceptions: float) -> Array:
    """Gradient in closed form: the derivative by the scores is the softmax minus the identity, by shares, over N."""
    parts = separable_parts(parameters, x, y)
    left, right = _run(parts[3:9], x.features), _run(parts[9:15], y.features)
    u, v, offsets = left[-1], right[-1][:, :OUTPUTS], right[-1][:, OUTPUTS]
    scores = _linear_scores(parts, x, y) + u @ v.T + offsets[None, :]
    xp, count = namespace_of(scores), scores.shape[0]
    _, softmax, share, _ = row_losses(scores, exceptions, same=same_category(x, y))
    slopes = (softmax - xp.eye(count, dtype=scores.dtype, device=device_of(scores))) * (share / count)[:, None]
    of_columns = xp.sum(slopes, axis=0)
    b = y.coordinates * parts[1]
    of_a = slopes @ b
    of_b = slopes.T @ (x.coordinates * parts[0]) + 2.0 * of_columns[:, None] * b * parts[2]
    of_v = xp.concat([slopes.T @ u, of_columns[:, None]], axis=1)
    found = [
        xp.sum(of_a * x.coordinates, axis=0),
        xp.sum(of_b * y.coordinates, axis=0),
        xp.sum(of_columns[:, None] * b * b, axis=0),
        *_pulled(parts[3:9], left, slopes @ v),
        *_pulled(parts[9:15], right, of_v),
    ]
    return xp.concat([xp.reshape(z, (-1,)) for z in found])


SEPARABLE = Critic(_separable_scores, _separable_gradient, _initial)
"""Scores ``f(x) · g(y) + b(y)``.

Training starts from the Gaussian log density ratio in canonical coordinates; networks learn the rest."""


# --------------------------------------------------------------------------------------------------------- of all pairs


def _joint_scores(parameters: tuple[Array, Array], x: CriticInputs, y: CriticInputs) -> Array:
    sizes = [_shapes((z.features.shape[1], HIDDEN, OUTPUTS)) for z in (x, y)]
    parts = _parts(parameters[1], [*sizes[0], *sizes[1], (OUTPUTS,)])
    u, v = _run(parts[:4], x.features)[-1], _run(parts[4:8], y.features)[-1]
    xp = namespace_of(u)
    inner = xp.tanh(u[:, None, :] + v[None, :, :])
    return _separable_scores(parameters[0], x, y) + xp.sum(inner * parts[8], axis=-1)


def _joint_initial(random: Random, squares: Array, features: tuple[int, int]) -> tuple[Any, Any]:
    """Parameters of the separable critic and of the joint term, whose weights are 0 in the kept critic."""
    first, kept = _initial(random, squares, features)
    layers = [z for width in features for z in _network(random, (width, HIDDEN, OUTPUTS))]
    weights = _uniform(random, OUTPUTS, 0.1)
    return (first, _vector(squares, [*layers, *weights])), (kept, _vector(squares, [*layers, *[0.0] * OUTPUTS]))


def own(scores: Callable[[Any, Array, Array], Array], parameters: Any) -> Critic:
    """Critic of a user's function from parameters, x and y to scores (N, K)."""

    def of_inputs(parameters: Any, x: CriticInputs, y: CriticInputs) -> Array:
        found, shape = scores(parameters, x.scores, y.scores), (x.scores.shape[0], y.scores.shape[0])
        if not is_array(found):
            raise TypeError(f"critic: expected an array of scores of shape {shape}, got {type(found).__name__}")
        if tuple(found.shape) != shape:
            raise ValueError(f"critic: expected scores of shape {shape}, got {tuple(found.shape)}")
        return found

    return Critic(of_inputs, _by_differentiation(of_inputs), lambda *_: (parameters, parameters))


JOINT = Critic(_joint_scores, _by_differentiation(_joint_scores), _joint_initial)
"""Separable scores plus ``w · tanh(u(x) + v(y))``, which can follow sharp edges, at `OUTPUTS` numbers per score."""
