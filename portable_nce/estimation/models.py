"""Critics fitted to one training and one stopping part, and the mixture of them that the stopping part prefers."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from .._core.namespace import namespace_of
from .._core.protocol import Array
from .categories import PairedRows, Within
from .critics import mean_loss, row_losses
from .features import Pairs, fitted, same_category, telling_products
from .host import on_host
from .kernels import MOST_COLUMNS, Kernels, fitted_kernels
from .repeats import row_keys
from .training import Trainer, best_start

__all__ = ["Fitter", "HeldOut", "Model", "judged", "scaling", "spaces_of"]

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
        Rows to inputs of the scores.
    scores : function
        Inputs of n rows and of k columns to scores (n, k).
    width : int
        Numbers held per score.
    names : tuple of str
        Kinds of critics in it.
    converged : bool
        Whether training ended before the last step.
    """

    prepared: Callable[[PairedRows], Pairs]
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
    networks : int
        Networks whose scores are averaged.
    width : int
        Numbers that the networks hold per score.
    categories : int
        Number of categories of a third variable, 0 without one.
    """

    trainer: Trainer
    transform: str
    own: bool
    kernels: bool
    networks: int
    width: int
    categories: int

    def __call__(self, train: PairedRows, stop: PairedRows, random: Random, update: Callable[[], None]) -> Model:
        """Critic of the training rows, chosen on the stopping rows."""
        scaled = scaling(
            train,
            self.categories,
            self.transform,
            products=self.transform == "ranks" and not self.own,
            indicators=not self.own,
        )
        if self.own:
            return self._own(scaled, train, stop, random, update)
        of_columns = scaled(train), scaled(stop)
        start = best_start(*of_columns, self.trainer.exceptions)

        def prepared(rows: PairedRows) -> Pairs:
            return start.applied(scaled(rows)).single()

        both = start.applied(of_columns[0]).single(), start.applied(of_columns[1]).single()
        squares = namespace_of(start.squares).astype(start.squares, both[0].x.features.dtype)
        models = []
        for _ in range(self.networks):
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
        scaled: Callable[[PairedRows], Pairs],
        train: PairedRows,
        stop: PairedRows,
        random: Random,
        update: Callable[[], None],
    ) -> Model:
        models = []
        for _ in range(self.networks):
            models.append(self.trainer.trained(scaled(train), scaled(stop), train.x, random))
            update()

        def scores(x: Pairs, y: Pairs) -> Array:
            x, y = self.trainer.library.entered(x), self.trainer.library.entered(y)
            found = [self.trainer.scores(model.parameters, x.x, y.y) for model in models]
            result = on_host("critic", sum(found[1:], found[0]) / len(found))
            xp = namespace_of(result)
            if not bool(xp.all(xp.isfinite(xp.max(result, axis=1)))):
                raise ValueError("critic: expected scores with a finite largest one in each row, got NaN or infinity")
            return result

        return Model(scaled, scores, 1, ("own",), all(model.converged for model in models))


def scaling(
    train: PairedRows, categories: int, transform: str, *, products: bool, indicators: bool
) -> Callable[[PairedRows], Pairs]:
    """Map of rows to inputs of critics, fitted to training rows: scaled within categories, then over all rows."""
    apart: list[Within] = []
    if train.categories is not None:
        apart = [Within.fitted(z, train.categories, categories) for z in (train.x, train.y)]

    def within(rows: PairedRows) -> list[Array]:
        if rows.categories is None:
            return [rows.x, rows.y]
        x, y = (within(z, rows.categories) for within, z in zip(apart, rows[:2], strict=True))
        return [namespace_of(x).concat([x, apart[0].indicators(rows.categories)], axis=1) if indicators else x, y]

    each = within(train)
    scalers = [fitted(z, transform) for z in each]
    if products:
        scores = [scaler(z).scores for scaler, z in zip(scalers, each, strict=True)]
        found = telling_products(*scores), telling_products(*scores[::-1])
        scalers = [s.extended(p, z) for s, p, z in zip(scalers, found, scores, strict=True)]

    def scaled(rows: PairedRows) -> Pairs:
        inputs = (scaler(z) for scaler, z in zip(scalers, within(rows), strict=True))
        return Pairs(*(z._replace(categories=rows.categories) for z in inputs))

    return scaled


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
    same = stop.same_category()
    a, b = min(MIXTURES, key=lambda weights: mean_loss(weights[0] * first + weights[1] * second, exceptions, same))
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
    """Values of held-out pairs.

    Attributes
    ----------
    values : list of float
        Bound of each row: the logarithm of its number of columns, minus its loss.
    slopes : list of float
        Gradient of the sum of the losses by the weight of each pair as a column.
    least : float
        Least value of any row with any column.
    ceiling : float
        Mean logarithm of the number of columns, the largest possible bound.
    """

    values: list[float]
    slopes: list[float]
    least: float
    ceiling: float


def judged(model: Model, chosen: PairedRows, exceptions: float) -> HeldOut:
    """Values of some rows, each with all columns, or with those of its category."""
    pairs = model.prepared(chosen)
    count = pairs.number
    size = max(1, CHUNK // (count * model.width))
    values: list[float] = []
    logs: list[float] = []
    slopes = [0.0] * count
    least = math.inf
    for start in range(0, count, size):
        rows = pairs.select(range(start, min(start + size, count)))
        same = same_category(rows.x, pairs.y)
        found = row_losses(model.scores(rows, pairs), exceptions, start, same)
        xp = namespace_of(found.losses)
        counts = [float(count)] * rows.number if same is None else _listed(found.counts)
        logs += map(math.log, counts)
        values += [math.log(n) - loss for n, loss in zip(counts, _listed(found.losses), strict=True)]
        even = 1.0 / count if same is None else xp.astype(same, found.softmax.dtype) / found.counts[:, None]
        sums = xp.sum(found.share[:, None] * (found.softmax - even), axis=0)
        slopes = [a + b for a, b in zip(slopes, _listed(sums), strict=True)]
        inside = found.softmax if same is None else xp.where(same, found.softmax, xp.ones_like(found.softmax))
        for n, smallest in zip(counts, _listed(xp.min(inside, axis=1)), strict=True):
            least = min(least, math.log((1.0 - exceptions) * n * smallest + exceptions))
    return HeldOut(values, slopes, least, math.fsum(logs) / count)


def _listed(x: Array) -> list[float]:
    """Entries of an array (n,)."""
    return list(x.tolist()) if hasattr(x, "tolist") else [float(x[i]) for i in range(x.shape[0])]
