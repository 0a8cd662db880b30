"""Cross-fitting: bounds of several splits into folds, for all pairs and for parts of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from .._core.namespace import namespace_of
from .._core.protocol import Array
from .categories import PairedRows
from .features import indices
from .folds import Parts
from .models import Fitter, judged
from .sample import Sample
from .statistics import Fold

__all__ = ["Found", "Study"]

QUARTER = 100
"""Fewest rows of the smallest part of the learning curve, if it is a quarter."""
HALVED = 2
"""Splits in which critics are also trained on half of the pairs."""


class Found(NamedTuple):
    """Folds of each split by N pairs, by half and by a quarter of the pairs, and of shifted rows."""

    whole: list[list[Fold]]
    half: list[list[Fold]]
    quarter: list[Fold]
    null: list[Fold]
    names: list[tuple[str, ...]]
    converged: bool


class Study(NamedTuple):
    """A sample, a way to fit critics, and the number of folds."""

    sample: Sample
    fitter: Fitter
    folds: int
    random: Random

    def fractions(self, split: int) -> tuple[int, ...]:
        """Parts of the pairs that critics are trained on in a split."""
        if split >= HALVED:
            return (1,)
        return (1, 2, 4) if split == 0 and self.sample.pairs >= 4 * QUARTER else (1, 2)

    def trainings(self, splits: int) -> int:
        """Number of trainings of a run."""
        return self.folds * self.fitter.networks * (1 + sum(len(self.fractions(k)) for k in range(splits)))

    def run(self, splits: int, update: Callable[[], None]) -> Found:
        """Bounds of all splits, with the same folds for the same seed, whatever y is."""
        clusters, random = self.sample.clusters, self.random
        divided = [clusters.folds(self.folds, random) for _ in range(splits)]
        found: dict[int, list[list[Fold]]] = {1: [], 2: [], 4: []}
        names: list[tuple[str, ...]] = []
        converged = True
        for split, parts in enumerate(divided):
            for fraction in self.fractions(split):
                each = [self._fold(part, self.sample.y, fraction, update) for part in parts]
                found[fraction].append([fold for fold, _, _ in each])
                converged = converged and all(done for _, _, done in each)
                names += [kinds for _, kinds, _ in each] if fraction == 1 else []
        y = self.sample.y
        shifted = namespace_of(y).take(y, indices(clusters.shifted(random, self.sample.strata()), y), axis=0)
        null = [self._fold(part, shifted, 1, update)[0] for part in divided[0]]
        return Found(found[1], found[2], found[4][0] if found[4] else [], null, names, converged)

    def _fold(
        self, parts: Parts, y: Array, fraction: int, update: Callable[[], None]
    ) -> tuple[Fold, tuple[str, ...], bool]:
        """Bound on the report by a critic of a part of the other pairs, kinds of critics, and convergence."""
        clusters, sample = self.sample.clusters, self.sample._replace(y=y)

        def rows(chosen: Sequence[int]) -> PairedRows:
            return sample.rows(clusters.members(chosen))

        used = parts.rest[: max(2, len(parts.rest) // fraction)]
        stop, train = clusters.divided(used, 0.25)
        model = self.fitter(rows(train), rows(stop), self.random, update)
        bounds: list[tuple[float, int]] = []
        influence: list[float] = []
        labels: list[int] = []
        members: list[int] = []
        values: list[float] = []
        fall, ceiling = 0.0, math.inf
        for piece in (parts.report[i::fraction] for i in range(min(fraction, len(parts.report)))):
            found = judged(model, rows(piece), self.fitter.trainer.exceptions)
            mean = math.fsum(found.values) / len(found.values)
            bounds.append((mean, len(found.values)))
            influence += [value - mean - slope for value, slope in zip(found.values, found.slopes, strict=True)]
            labels += clusters.labels(piece)
            members += clusters.members(piece)
            values += found.values
            fall, ceiling = max(fall, mean - found.least), min(ceiling, found.ceiling)
        value = math.fsum(bound * count for bound, count in bounds) / len(influence)
        return Fold(value, influence, labels, fall, ceiling, members, values), model.names, model.converged
