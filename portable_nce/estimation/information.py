"""Mutual information of two arrays: cross-fitting, intervals and flags."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal, NamedTuple

from .._core.checks import as_integer, check_bool, check_choice, check_floating, check_rows, check_whole_number
from .._core.namespace import common_namespace, device_of, is_array, namespace_of
from .._core.numerics import upcast
from .._core.protocol import Array
from .._core.types import AnyArray
from .critics import JOINT, SEPARABLE, Critic, own
from .display import draw, progress_bar
from .features import Pairs, fitted, indices
from .statistics import Fold, extrapolated, summary
from .training import Trainer, best_start

__all__ = ["MutualInformation", "mutual_information"]

CRITICS = {"separable": SEPARABLE, "joint": JOINT}
TRANSFORMS = ("ranks", "standardize")
FRACTIONS = (1, 2, 4)
"""The learning curve uses N, N/2 and N/4 pairs."""
RATES = (1.0, 1.0 + math.sqrt(2.0))
"""Remaining gap relative to the gain of the last doubling of N, if the gap falls as 1/N and as 1/√N."""
NOTHING = 1e-3
"""Largest null, in nats, that is no sign of dependent rows."""
ROUNDINGS = 64.0
"""Rounding errors by which the bound of a constant critic may differ from 0."""
LEAST = 16
"""Fewest independent pairs or groups of a fold; with fewer, parts of N/4 pairs would be empty."""
FEWEST = 30
"""Fewest independent pairs or groups in the reporting part of a fold for a reliable error."""

FLAGS = {
    "too few pairs": "a third part has fewer than 30 independent pairs: no error can be given",
    "null above zero": "y shifted along x seems to know x: pass groups=, or shuffle rows whose order means nothing",
    "at the ceiling": "more pairs would show more: read `lower` alone",
    "shrinks with N": "half of the pairs show much less: read `lower` alone",
    "not converged": "the training used all steps; pass a larger steps=",
}
"""Flags and their meanings."""


class MutualInformation(NamedTuple):
    """Estimate of mutual information in nats.

    Attributes
    ----------
    lower : float
        Exceeds the mutual information with a probability of at most 5 %.
    estimate, low, high : float
        The bound extrapolated to more pairs, and a 90 % interval, if critics of this kind can fit the density ratio.
    bound, error : float
        InfoNCE of the held-out pairs, a lower bound in expectation, and its standard error.
    ceiling : float
        Logarithm of the number of held-out pairs of a fold, the largest possible bound.
    null : float
        The bound after shifting the rows of y against x by at least a quarter of the rows.
    curve : tuple of (int, float, float)
        Numbers of pairs N/4, N/2 and N, with the bound and the standard error of each.
    flags : tuple of str
        "too few pairs", "null above zero", "at the ceiling", "shrinks with N", "not converged". Values invalidated by a
        flag are NaN.
    """

    lower: float
    estimate: float
    low: float
    high: float
    bound: float
    error: float
    ceiling: float
    null: float
    curve: tuple[tuple[int, float, float], ...]
    flags: tuple[str, ...]

    def __repr__(self) -> str:
        """Readable summary."""
        pairs = self.curve[-1][0]
        lines = [f"mutual information of {pairs} pairs, in nats", f"  at least  {self.lower:.3f}  (95 %)"]
        if not math.isnan(self.estimate):
            lines.append(f"  estimate  {self.estimate:.3f}  [{self.low:.3f}, {self.high:.3f}] (90 %)")
        lines += [
            f"  bound     {self.bound:.3f} ± {self.error:.3f}, at most {self.ceiling:.2f}",
            f"  null      {self.null:.3f}",
            "  curve     " + ", ".join(f"{value:.3f} of {count}" for count, value, _ in self.curve),
            *(f"  {flag}: {FLAGS[flag]}" for flag in self.flags),
        ]
        return "\n".join(lines)

    def plot(self, axes: Any = None) -> Any:
        """Draw the learning curve, the interval and the ceiling with Matplotlib, and return the axes."""
        return draw(self, axes)


def mutual_information(
    x: AnyArray,
    y: AnyArray,
    /,
    *,
    rng: Any = None,
    critic: Literal["separable", "joint"] | tuple[Callable[[Any, Any, Any], Any], Any] = "separable",
    transform: Literal["ranks", "standardize"] = "ranks",
    groups: Sequence[Any] | AnyArray | None = None,
    folds: int = 3,
    seeds: int = 2,
    steps: int = 3000,
    batch: int = 256,
    progress: bool = True,
) -> MutualInformation:
    r"""Return an estimate of the mutual information of two arrays, with an interval and warning flags.

    .. math:: I(x; y) \ge \log n + \mathbb{E} \frac1n \sum_i
        \log \frac{e^{g(x_i, y_i)}}{\sum_{j=1}^{n} e^{g(x_i, y_j)}}

    A critic g is trained on InfoNCE. The report is InfoNCE of *all* n held-out pairs, so the ceiling depends on the
    data, not on a batch. Each fold has three parts: one trains the critic, one chooses the start, step sizes and stop,
    and one is used once, for the report; each pair is in one report. The error uses the influence of each pair (or
    group) as a row and as a column. Estimates on N/2 and N/4 pairs show how much more pairs would add.

    Parameters
    ----------
    x, y : array, shape (N, Dx) and (N, Dy), or (N,)
        Paired samples of NumPy, PyTorch, JAX, MLX or another library with the extension `linalg`.
    rng : int, random.Random or numpy.random.Generator, optional
        Seed or generator; None uses a new seed in each call.
    critic : {"separable", "joint"} or (function, parameters), default: "separable"
        ``f(x) · g(y)``, which streams; ``"joint"`` adds a network of each pair, much slower; or a function from
        parameters, x and y to scores (N, K), with initial parameters (nested containers of arrays).
    transform : {"ranks", "standardize"}, default: "ranks"
        Inputs of the critics, fitted to the training pairs: normal quantiles of ranks, or standardised values alone.
    groups : sequence of N labels, optional
        Labels of dependent pairs, as in a time series or of one person: a group is never split between parts of a fold,
        and counts once in the error.
    folds : int, default: 3
        Number of folds, at least 2.
    seeds : int, default: 2
        Number of critics whose scores are averaged.
    steps : int, default: 3000
        Maximum number of training steps.
    batch : int, default: 256
        Pairs of a training step.
    progress : bool, default: True
        Whether to show a progress bar, if tqdm is installed and the output is a terminal.

    Returns
    -------
    MutualInformation
        Named tuple of floats in nats, with a readable `repr` and a method `plot`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If the numbers of rows differ or are too small, an entry is not finite, or an option is invalid.

    References
    ----------
    van den Oord et al. (2018), "Representation Learning with Contrastive Predictive Coding", arXiv:1807.03748.
    Chernozhukov et al. (2018), "Double/debiased machine learning", for cross-fitting.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=600)
    >>> y = 0.8 * x + 0.6 * rng.normal(size=600)  # -log(0.6) = 0.51 nats
    >>> found = pnce.estimation.mutual_information(x, y, rng=0)
    >>> found.lower < 0.51 < found.high
    True
    """
    check_choice("transform", transform, TRANSFORMS)
    progress = check_bool("progress", progress)
    folds = check_whole_number("folds", folds, least=2)
    seeds, steps, batch = (
        check_whole_number(name, value) for name, value in (("seeds", seeds), ("steps", steps), ("batch", batch))
    )
    family, random = _critic(critic), _random(rng)
    x, y = _entered(x, y)
    clusters = _clusters(groups, int(x.shape[0]))
    if len(clusters) < LEAST * folds:
        raise ValueError(
            f"x: expected at least {LEAST * folds} independent rows for {folds} folds, got {len(clusters)}"
        )
    trainer = Trainer(family, x, steps=steps, batch=min(batch, int(x.shape[0])))
    with progress_bar(folds * (seeds + len(FRACTIONS)) if progress else 0) as bar:
        plan = _Plan(trainer, transform, folds, isinstance(critic, str), x, clusters, random, bar)
        result, single, converged = plan.run(y, seeds=seeds)
        null, _, _ = plan.run(_reordered(y, clusters, random), fractions=FRACTIONS[:1])
    return _result(result, single, null, x, converged=converged)


# ------------------------------------------------------------------------------------------------------------ arguments


def _entered(x: Any, y: Any) -> tuple[Array, Array]:
    """Arrays as matrices, in float32 or float64."""
    xp, (x, y) = common_namespace(x=x, y=y)
    check_floating(xp, x=x, y=y)
    for name, z in (("x", x), ("y", y)):
        if len(z.shape) not in {1, 2} or 0 in tuple(z.shape):
            raise ValueError(f"{name}: expected shape (N, D) or (N,), got {tuple(z.shape)}")
        if not bool(xp.all(xp.isfinite(z))):
            raise ValueError(
                f"{name}: expected finite numbers, got some that are NaN or infinite; leave these rows out"
            )
    check_rows("y", y, x)
    x, y = (upcast(xp, z) for z in (x, y))
    dtype = xp.result_type(x, y)
    x, y = (_in_range(xp.astype(xp.reshape(z, (z.shape[0], -1)), dtype)) for z in (x, y))
    return x, y


def _in_range(z: Array) -> Array:
    """Columns scaled by powers of 2 where squares would overflow or underflow."""
    xp = namespace_of(z)
    exponents = [math.frexp(size)[1] for size in _listed(xp.max(xp.abs(z), axis=0))]
    limit = math.frexp(float(xp.finfo(z.dtype).max))[1] // 4
    if max(map(abs, exponents)) < limit:
        return z
    halves = [(-e // 2, -e - (-e // 2)) for e in exponents]  # one power might overflow itself
    for factors in zip(*halves, strict=True):
        z = z * xp.asarray([2.0**k for k in factors], dtype=z.dtype, device=device_of(z))
    return z


def _random(rng: Any) -> Random:
    """Generator of the standard library, equal for all array libraries."""
    if rng is None or isinstance(rng, Random):
        return rng or Random()  # noqa: S311  (no secrets)
    number = as_integer(rng)
    if number is not None:
        return Random(number)  # noqa: S311
    if hasattr(rng, "integers"):
        return Random(int(rng.integers(2**63 - 1)))  # noqa: S311
    raise TypeError(f"rng: expected an integer, random.Random or numpy.random.Generator, got {type(rng).__name__}")


def _clusters(groups: Any, count: int) -> list[list[int]]:
    """Rows of each group, ordered by first row."""
    if groups is None:
        return [[i] for i in range(count)]
    labels = _listed(groups) if is_array(groups) else list(groups)
    if len(labels) != count:
        raise ValueError(f"groups: expected a label of each of the {count} rows, got {len(labels)}")
    result: dict[Any, list[int]] = {}
    for i, label in enumerate(labels):
        result.setdefault(label, []).append(i)
    return list(result.values())


def _listed(x: Any) -> list[Any]:
    """Entries of an array (n,)."""
    return list(x.tolist()) if hasattr(x, "tolist") else [float(x[i]) for i in range(x.shape[0])]


def _critic(critic: Any) -> Critic:
    if isinstance(critic, tuple) and len(critic) == 2 and callable(critic[0]):  # noqa: PLR2004  (a pair)
        return own(*critic)
    if not isinstance(critic, str):
        raise TypeError(f"critic: expected a name or (function, parameters), got {type(critic).__name__}")
    check_choice("critic", critic, CRITICS)
    return CRITICS[critic]


def _reordered(y: Array, clusters: list[list[int]], random: Random) -> Array:
    """Rows of y shifted against x, which keeps dependence on the row order, as in a time series."""
    count = len(clusters)
    shift = random.randint(count // 4, count - count // 4)
    source = [row for k in range(count) for row in clusters[(k + shift) % count]]
    target = [row for cluster in clusters for row in cluster]
    place = dict(zip(target, source, strict=True))
    numbers = indices((place[i] for i in range(len(source))), y)
    return namespace_of(y).take(y, numbers, axis=0)


# -------------------------------------------------------------------------------------------------------- cross-fitting


class _Plan(NamedTuple):
    """Settings shared by all folds.

    `linear`: whether critics start from canonical coordinates. `clusters`: rows of each group of dependent pairs.
    """

    trainer: Trainer
    transform: str
    folds: int
    linear: bool
    x: Array
    clusters: list[list[int]]
    random: Random
    bar: Any

    def run(
        self, y: Array, *, seeds: int = 1, fractions: Sequence[int] = FRACTIONS
    ) -> tuple[list[Fold], list[list[Fold]], bool]:
        """Bounds of the folds by the mean critic, by the first critic for each fraction, and whether all converged."""
        clusters, random = self.clusters, self.random
        order = random.sample(range(len(clusters)), len(clusters))
        parts = [order[k :: self.folds] for k in range(self.folds)]
        whole: list[Fold] = []
        single: list[list[Fold]] = [[] for _ in fractions]
        all_converged = True
        for k, part in enumerate(parts):
            rest = [c for j, other in enumerate(parts) if j != k for c in other]
            random.shuffle(rest)
            for alone, fraction in zip(single, fractions, strict=True):
                used = rest[: max(2, len(rest) // fraction)]
                cut = max(1, len(used) // 4)
                stop, train = ([row for c in some for row in clusters[c]] for some in (used[:cut], used[cut:]))
                pieces = [part[i::fraction] for i in range(fraction)]
                test = [[row for c in piece for row in clusters[c]] for piece in pieces]
                labels = [[c for c in piece for _ in clusters[c]] for piece in pieces]
                start, given = self._inputs(y, (train, stop, *test))
                models = []
                for _ in range(seeds if fraction == 1 else 1):
                    models.append(self.trainer.trained(given[0], given[1], start, random))
                    self.bar.update()
                all_converged = all_converged and all(model.converged for model in models)
                each = [model.parameters for model in models]
                alone.append(_fold(self.trainer, each[:1], given[2:], labels))
                if fraction == 1:
                    whole.append(alone[-1] if seeds == 1 else _fold(self.trainer, each, given[2:], labels))
        return whole, single, all_converged

    def _inputs(self, y: Array, sets: Sequence[Sequence[int]]) -> tuple[Array, list[Pairs]]:
        """Linear start and critic inputs of sets of rows; the first set trains, the second stops."""
        each = []
        for z in self.x, y:
            scaler = fitted(_rows(z, sets[0]), self.transform)
            scaled = [scaler(_rows(z, rows)) for rows in sets]
            if not self.linear:  # user critics see the original number of columns
                scaled = [inputs._replace(coordinates=inputs.coordinates[:, : z.shape[1]]) for inputs in scaled]
            each.append(scaled)
        both = list(map(Pairs, *each))
        if not self.linear:
            return self.x, both
        start = best_start(both[0], both[1])
        return start.squares, [start.applied(pairs) for pairs in both]


def _rows(z: Array, numbers: Sequence[int]) -> Array:
    return namespace_of(z).take(z, indices(numbers, z), axis=0)


def _fold(trainer: Trainer, ensemble: Sequence[Any], pieces: Sequence[Pairs], labels: Sequence[list[int]]) -> Fold:
    """Mean bound of several sets of pairs."""
    bounds, influence = [], []
    for piece in pieces:
        losses, shares = (_listed(z) for z in trainer.judged(ensemble, *piece))
        mean = math.fsum(losses) / len(losses)
        bounds.append(math.log(len(losses)) - mean)
        influence += [mean - loss - share for loss, share in zip(losses, shares, strict=True)]
    return Fold(math.fsum(bounds) / len(bounds), influence, [c for piece in labels for c in piece])


# --------------------------------------------------------------------------------------------------------------- result


def _result(
    result: list[Fold], single: list[list[Fold]], null: list[Fold], x: Array, *, converged: bool
) -> MutualInformation:
    """Reportable numbers and flags."""
    whole, independent = summary(result), summary(null)
    curve = [summary(folds) for folds in single]
    likely, most = (extrapolated(result, single[0], single[1], rate) for rate in (0.5 * sum(RATES), RATES[1]))
    ceiling = min(math.log(len(fold.influence)) for fold in result)
    flags = []
    if min(len(set(fold.clusters)) for fold in result) < FEWEST:
        flags.append("too few pairs")
    if independent.value > NOTHING + 3.1 * independent.error:
        flags.append("null above zero")
    if whole.value > ceiling - 1.0:
        flags.append("at the ceiling")
    if most.value - whole.value > 0.1 + 0.5 * max(whole.value, 0.0):
        flags.append("shrinks with N")
    if not converged:
        flags.append("not converged")
    rounding = ROUNDINGS * float(namespace_of(x).finfo(x.dtype).eps)
    lower = whole.value - whole.margin - rounding
    estimate, low, high = likely.value, lower, most.value + most.margin + rounding
    if {"too few pairs", "null above zero"} & {*flags}:
        lower = math.nan
    if flags:
        estimate = low = high = math.nan
    counts = [int(x.shape[0]) // fraction for fraction in FRACTIONS]
    points = tuple((n, s.value, s.error) for n, s in zip(counts, [whole, *curve[1:]], strict=True))
    return MutualInformation(
        lower, estimate, low, high, whole.value, whole.error, ceiling, independent.value, points[::-1], tuple(flags)
    )
