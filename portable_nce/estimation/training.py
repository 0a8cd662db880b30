"""Training of a critic by Adam; separate pairs choose the step size and the stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from .._core.namespace import device_of, namespace_of
from .._core.protocol import Array
from .._core.registry import adapter_of
from .._core.trees import mapped
from .buffered import SeparableSteps
from .critics import SEPARABLE, Critic, gaussian, mean_loss, row_losses
from .features import Canonical, CriticInputs, Pairs, canonical, canonical_of_pairs, same_category
from .host import numpy_of

__all__ = ["HOST", "Library", "Trained", "Trainer", "best_start", "library_of"]

RATE, DECAY, WARM_UP = 5e-3, 0.01, 20
EVERY = 25
"""Steps between two evaluations on the stopping pairs."""
PATIENCE, DROP, DROPS = 3, 0.2, 2
"""After `PATIENCE` checks without a better bound, multiply the rate by `DROP`; training ends after `DROPS` drops."""
RIDGES = (0.0, 0.1, 0.3, 1.0)
"""Candidate ridges, multiples of the mean variance, needed if there are more columns than pairs."""
SHRINKING = (0.0, 1.0)
"""Candidate shrinkages of squared canonical correlations, multiples of those of independent arrays."""


class Trained(NamedTuple):
    """Parameters with the best bound on the stopping pairs, and whether training converged."""

    parameters: Any
    converged: bool


def best_start(train: Pairs, stop: Pairs, exceptions: float) -> Canonical:
    """Linear start with the best bound on the stopping pairs; zero scores if none is better."""
    both = train.x.coordinates, train.y.coordinates
    analyses = [*canonical(*both, RIDGES), *canonical_of_pairs(*both)]
    starts = [analysis.shrunk(multiple) for analysis in analyses for multiple in SHRINKING]
    starts.insert(0, starts[0]._replace(squares=0.0 * starts[0].squares))
    same = stop.same_category()
    return min(starts, key=lambda start: mean_loss(gaussian(start.squares, start.applied(stop)), exceptions, same))


class Library(NamedTuple):
    """Library that trains a critic: how pairs enter it, and how it compiles functions."""

    entered: Callable[[Pairs], Pairs]
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]]


HOST = Library(lambda pairs: pairs, lambda function: function)
"""The library of the inputs, without a compiler."""


def library_of(like: Array) -> Library:
    """Library of a user's arrays."""
    xp, device = namespace_of(like), device_of(like)

    def entered(pairs: Pairs) -> Pairs:
        return Pairs(*(inputs.mapped(lambda z: xp.asarray(z, dtype=like.dtype, device=device)) for inputs in pairs))

    return Library(entered, adapter_of(like).compiled)


def _batch(number: int, places: Array, random: Random) -> Array:
    """Numbers of random pairs: an arithmetic sequence modulo their number, much cheaper than a permutation."""
    start, stride = random.randrange(number), random.randrange(1, max(2, number))
    while math.gcd(stride, number) > 1:
        stride = random.randrange(1, number)
    return (start + stride * places) % number


class _Steps:
    """Steps of Adam from `parameters`, on batches of the training pairs, with losses of the stopping pairs."""

    def __init__(self, trainer: Trainer, parameters: Any, train: Pairs, stop: Pairs) -> None:
        self.trainer, self.parameters, self.train = trainer, parameters, train
        self.stop = trainer.library.entered(stop)
        self.first = self.second = mapped(lambda p: 0.0 * p, parameters)

    def restart(self, parameters: Any) -> None:
        """Go on from these parameters, with the moments of the gradient."""
        self.parameters = parameters

    def loss(self) -> float:
        """Mean loss of the stopping pairs."""
        return float(self.trainer.loss(self.parameters, *self.stop))

    def step(self, numbers: Array, decay: float, scale: float, root: float) -> None:
        """Step on the training pairs of these numbers; `decay` multiplies the parameters."""
        state, pairs = (
            (self.parameters, self.first, self.second),
            self.trainer.library.entered(self.train.taken(numbers)),
        )
        self.parameters, self.first, self.second = self.trainer.step(state, *pairs, (decay, scale, root))


class Trainer:
    """Training of a critic by Adam (Kingma and Ba 2015) with decoupled weight decay.

    `exceptions`: share of pairs that may be anything, in all losses.
    """

    def __init__(self, critic: Critic, library: Library, *, steps: int, batch: int, exceptions: float) -> None:
        self.initial, self.steps, self.batch, self.library = critic.initial, steps, batch, library
        self.exceptions, gradient = exceptions, critic.gradient
        self.is_separable = critic is SEPARABLE and library is HOST

        def loss(parameters: Any, x: CriticInputs, y: CriticInputs) -> Array:
            losses = row_losses(critic.scores(parameters, x, y), exceptions, same=same_category(x, y)).losses
            return namespace_of(losses).mean(losses)

        def step(state: Any, x: CriticInputs, y: CriticInputs, rates: tuple[float, float, float]) -> Any:
            (parameters, first, second), (decay, scale, root) = state, rates
            slopes = gradient(parameters, x, y, exceptions)
            first = mapped(lambda m, g: 0.9 * m + 0.1 * g, first, slopes)
            second = mapped(lambda v, g: 0.999 * v + 0.001 * g * g, second, slopes)

            def update(p: Array, m: Array, v: Array) -> Array:
                return decay * p - scale * m / (root * namespace_of(v).sqrt(v) + 1e-8)

            return mapped(update, parameters, first, second), first, second

        self.step, self.loss, self.scores = (library.compiled(f) for f in (step, loss, critic.scores))

    def trained(self, train: Pairs, stop: Pairs, start: Array, random: Random) -> Trained:
        """Critic with the best bound on the stopping pairs."""
        # Do not restart from zero last layers, which have no gradient.
        restart, kept = self.initial(random, start, (train.x.features.shape[1], train.y.features.shape[1]))
        best, steps = float(self.loss(kept, *self.library.entered(stop))), self._steps(restart, train, stop)
        number, like = train.number, train.x.coordinates
        places = namespace_of(like).arange(min(self.batch, number), device=device_of(like))
        waited = drops = 0
        for step in range(1, self.steps + 1):
            rate = RATE * min(1.0, step / WARM_UP) * DROP**drops
            numbers = _batch(number, places, random)
            corrections = rate / (1.0 - 0.9**step), 1.0 / math.sqrt(1.0 - 0.999**step)
            steps.step(numbers, 1.0 - DECAY * rate, *corrections)
            if step % EVERY == 0:
                loss, waited = steps.loss(), waited + 1
                if loss < best:
                    best, waited = loss, 0
                    kept = restart = steps.parameters
                if waited == PATIENCE:
                    steps.restart(restart)
                    drops, waited = drops + 1, 0
                    if drops == DROPS:
                        return Trained(kept, converged=True)
        return Trained(kept, converged=False)

    def _steps(self, parameters: Any, train: Pairs, stop: Pairs) -> _Steps | SeparableSteps:
        """Steps from some parameters, in arrays that are made once if a library with such arrays is at hand."""
        np = numpy_of(train.x.features) if self.is_separable else None
        if np is None:
            return _Steps(self, parameters, train, stop)
        return SeparableSteps(np, parameters, train, stop, batch=self.batch, exceptions=self.exceptions)
