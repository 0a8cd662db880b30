"""Critics fitted to one training and one stopping part, and the mixture of them that the stopping part prefers."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from .._core.namespace import namespace_of
from .._core.protocol import Array
from .critics import mean_loss, row_losses
from .dependence import row_keys
from .features import Pairs, fitted, telling_products
from .host import on_host
from .kernels import MOST_COLUMNS, Kernels, fitted_kernels
from .training import Trainer, best_start

__all__ = ["Fitter", "HeldOut", "Model", "judged", "spaces_of"]

CHUNK = 2**22
"""Numbers held at a time."""
MIXTURES = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (0.5, 0.0), (0.0, 0.5))
"""Candidate weights of the scores of networks and of kernels."""
LATTICE = 40
"""Most different rows of an array of many columns for kernels of all its columns."""

Scores = Callable[[Pairs, Pairs], Array]


class Model(NamedTuple):
    """Fitted critic.

    Attributes
    ----------
    prepared : function
        Raw rows of x and y to inputs of the scores.
    scores : function
        Inputs of n rows and of k columns to scores (n, k).
    width : int
        Numbers held per score.
    names : tuple of str
        Kinds of critics in it.
    converged : bool
        Whether training ended before the last step.
    """

    prepared: Callable[[Array, Array], Pairs]
    scores: Scores
    width: int
    names: tuple[str, ...]
    converged: bool


class Fitter(NamedTuple):
    """Fits critics.

    Attributes
    ----------
    trainer : Trainer
        Training of networks.
    transform : str
        Scores of the columns.
    own : bool
        Whether the critic is the user's: it sees the scores of the columns alone.
    kernels : bool
        Whether kernels compete with the networks.
    seeds : int
        Networks whose scores are averaged.
    width : int
        Numbers that the networks hold per score.
    """

    trainer: Trainer
    transform: str
    own: bool
    kernels: bool
    seeds: int
    width: int

    def __call__(
        self, train: tuple[Array, Array], stop: tuple[Array, Array], random: Random, update: Callable[[], None]
    ) -> Model:
        """Critic of the training rows of x and y, chosen on the stopping rows."""
        scalers = [fitted(z, self.transform) for z in train]
        if self.transform == "ranks" and not self.own:
            scores = [scaler(z).scores for scaler, z in zip(scalers, train, strict=True)]
            found = telling_products(*scores), telling_products(*scores[::-1])
            scalers = [s.extended(p, z) for s, p, z in zip(scalers, found, scores, strict=True)]

        def scaled(x: Array, y: Array) -> Pairs:
            return Pairs(*(scaler(z) for scaler, z in zip(scalers, (x, y), strict=True)))

        if self.own:
            return self._own(scaled, train, stop, random, update)
        start = best_start(scaled(*train), scaled(*stop), self.trainer.exceptions)

        def prepared(x: Array, y: Array) -> Pairs:
            return start.applied(scaled(x, y)).single()

        both = prepared(*train), prepared(*stop)
        squares = namespace_of(start.squares).astype(start.squares, both[0].x.features.dtype)
        models = []
        for _ in range(self.seeds):
            models.append(self.trainer.trained(*both, squares, random))
            update()

        def of_networks(x: Pairs, y: Pairs) -> Array:
            found = [self.trainer.scores(model.parameters, x.x, y.y) for model in models]
            return sum(found[1:], found[0]) / len(found)

        converged = all(model.converged for model in models)
        if not self.kernels:
            return Model(prepared, of_networks, self.width, ("network",), converged)
        candidates = spaces_of(both[0])
        kernels = fitted_kernels(both[0], candidates)
        networks = Model(prepared, of_networks, self.width, ("network",), converged)
        return _mixed(networks, kernels, *both, self.trainer.exceptions)

    def _own(
        self,
        scaled: Callable[[Array, Array], Pairs],
        train: tuple[Array, Array],
        stop: tuple[Array, Array],
        random: Random,
        update: Callable[[], None],
    ) -> Model:
        models = []
        for _ in range(self.seeds):
            models.append(self.trainer.trained(scaled(*train), scaled(*stop), train[0], random))
            update()

        def scores(x: Pairs, y: Pairs) -> Array:
            x, y = self.trainer.library.entered(x), self.trainer.library.entered(y)
            found = [self.trainer.scores(model.parameters, x.x, y.y) for model in models]
            return on_host("critic", sum(found[1:], found[0]) / len(found))

        return Model(scaled, scores, 1, ("own",), all(model.converged for model in models))


def spaces_of(train: Pairs) -> list[int]:
    """Spaces of kernels: original columns if few (0), and leading canonical coordinates."""
    widths = [inputs.scores.shape[1] for inputs in train]
    small = [
        width <= MOST_COLUMNS or len({*row_keys(inputs.scores)}) <= LATTICE
        for width, inputs in zip(widths, train, strict=True)
    ]
    spaces = [0] if all(small) else []
    if max(widths) > 1:
        spaces += [k for k in (1, 2) if k <= train.x.coordinates.shape[1]]
    return spaces


def _mixed(networks: Model, kernels: Kernels, train: Pairs, stop: Pairs, exceptions: float) -> Model:
    """Mixture of networks and kernels with the best bound on the stopping pairs."""
    first, second = networks.scores(stop, stop), kernels.scores(stop, stop)
    a, b = min(MIXTURES, key=lambda weights: mean_loss(weights[0] * first + weights[1] * second, exceptions))
    whole = kernels.with_centres(train.joined(stop))

    def scores(x: Pairs, y: Pairs) -> Array:
        result = a * networks.scores(x, y) if a else None
        if b or result is None:
            more = b * whole.scores(x, y)
            result = more if result is None else result + more
        return result

    names = tuple(name for name, weight in (("network", a), ("kernels", b)) if weight) or ("nothing",)
    return networks._replace(scores=scores, names=names)


class HeldOut(NamedTuple):
    """Losses of held-out pairs.

    Attributes
    ----------
    losses : list of float
        Loss of each row.
    slopes : list of float
        Gradient of the sum of the losses by the weight of each pair as a column.
    largest : float
        Largest loss of any row with any column.
    """

    losses: list[float]
    slopes: list[float]
    largest: float


def judged(model: Model, x: Array, y: Array, exceptions: float) -> HeldOut:
    """Losses of rows of x and y."""
    pairs = model.prepared(x, y)
    count = pairs.number
    size = max(1, CHUNK // (count * model.width))
    losses: list[float] = []
    slopes = [0.0] * count
    smallest = 1.0
    for start in range(0, count, size):
        rows = pairs.select(range(start, min(start + size, count)))
        found = row_losses(model.scores(rows, pairs), exceptions, start)
        xp = namespace_of(found.losses)
        losses += _listed(found.losses)
        sums = xp.sum(found.share[:, None] * (found.softmax - 1.0 / count), axis=0)
        slopes = [a + b for a, b in zip(slopes, _listed(sums), strict=True)]
        smallest = min(smallest, float(xp.min(found.softmax)))
    return HeldOut(losses, slopes, -math.log((1.0 - exceptions) * smallest + exceptions / count))


def _listed(x: Array) -> list[float]:
    """Entries of an array (n,)."""
    return list(x.tolist()) if hasattr(x, "tolist") else [float(x[i]) for i in range(x.shape[0])]
