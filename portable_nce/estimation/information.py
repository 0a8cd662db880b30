"""Mutual information of two arrays: arguments and results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal, TypeAlias, cast, overload

from .._core.checks import as_integer, check_bool, check_choice, check_whole_number
from .._core.namespace import common_namespace, namespace_of
from .._core.types import AnyArray
from .categories import category_labels
from .critics import JOINT, OUTPUTS, SEPARABLE, own
from .display import progress_bar
from .host import columns_of, has_numbered_categories, library_name, on_host, one_thread
from .independence import LEAST_BLOCKS, LEAST_CLUSTERS, IndependenceTest, tested, tested_given
from .models import Fitter
from .options import Samples, with_options_explained
from .relations import ColumnTable, ConditionalInformation, by_column, conditional, third_numbers
from .reporting import reported
from .result import WITHHOLDING, MutualInformation, Settings
from .sample import sample_of
from .study import Study
from .training import HOST, Trainer, library_of

__all__ = ["independence_test", "information_by_column", "mutual_information"]

CriticOption: TypeAlias = Literal["best", "separable", "joint"] | tuple[Callable[[Any, Any, Any], Any], Any]

CRITICS = {"best": SEPARABLE, "separable": SEPARABLE, "joint": JOINT}
TRANSFORMS = ("ranks", "standardize")
EXCEPTIONS = 3.0
"""Number of pairs of the sample that the loss expects to be anything: N pairs without one allow a share of 3/N."""


@overload
def mutual_information(
    x: Samples,
    y: Samples,
    /,
    *,
    given: None = None,
    rng: Any = None,
    critic: CriticOption = "best",
    transform: Literal["ranks", "standardize"] = "ranks",
    groups: Sequence[Any] | AnyArray | None = None,
    order: Sequence[Any] | AnyArray | None = None,
    folds: int | None = None,
    splits: int | None = None,
    networks: int = 1,
    steps: int = 3000,
    batch: int = 256,
    progress: bool = True,
) -> MutualInformation: ...


@overload
def mutual_information(
    x: Samples,
    y: Samples,
    /,
    *,
    given: Samples,
    rng: Any = None,
    critic: CriticOption = "best",
    transform: Literal["ranks", "standardize"] = "ranks",
    groups: Sequence[Any] | AnyArray | None = None,
    order: Sequence[Any] | AnyArray | None = None,
    folds: int | None = None,
    splits: int | None = None,
    networks: int = 1,
    steps: int = 3000,
    batch: int = 256,
    progress: bool = True,
) -> MutualInformation | ConditionalInformation: ...


@with_options_explained
def mutual_information(
    x: Samples,
    y: Samples,
    /,
    *,
    given: Samples | None = None,
    rng: Any = None,
    critic: CriticOption = "best",
    transform: Literal["ranks", "standardize"] = "ranks",
    groups: Sequence[Any] | AnyArray | None = None,
    order: Sequence[Any] | AnyArray | None = None,
    folds: int | None = None,
    splits: int | None = None,
    networks: int = 1,
    steps: int = 3000,
    batch: int = 256,
    progress: bool = True,
) -> MutualInformation | ConditionalInformation:
    r"""Return an estimate of the mutual information of two arrays, with a lower limit and warning flags.

    .. math:: I(x; y) \ge \log n + \mathbb{E} \frac1n \sum_i
        \log \frac{e^{g(x_i, y_i)}}{\sum_{j=1}^{n} e^{g(x_i, y_j)}}

    Critics g are fitted to InfoNCE. The report is InfoNCE of *all* n held-out pairs, so the ceiling depends on the
    data, not on a batch. Each fold has three parts: one fits critics, one chooses among them, their start, step sizes
    and stop, and one is used once, for the report; each pair is in one report of a split. Bounds of several splits are
    averaged. The error uses the influence of each pair (or group) as a row and as a column.

    The softmax is mixed with a share 3/N of chance, so that a pair that the critic rules out costs log(N/3), and the
    lower limit allows for such pairs where the sample has none.

    Parameters
    ----------
    x, y : array or sequence, shape (N, Dx) and (N, Dy), or (N,)
        Paired samples: numbers of any array library, integers, booleans, or categories. One column of at most 20
        different integers, and text, become an indicator of each value; more values are numbered in sorted order.
        Missing values are refused.
    given : array or sequence, shape (N, Dz) or (N,), optional
        Third variable z, to estimate ``I(x; y | z)``. Integers, truth values and names are categories, of at least 12
        rows each: negatives are of the same category, and `lower` stays a limit. Floats give the difference of
        ``I(x; y, z)`` and ``I(x; z)``, a `ConditionalInformation` with a test and a range, without a limit.
    rng : int, random.Random or numpy.random.Generator, optional
        Seed or generator; None uses a new seed in each call.
    critic : {"best", "separable", "joint"} or (function, parameters), default: "best"
        ``"separable"``: a network ``f(x) · g(y)``. ``"best"`` adds kernels for up to 2000 pairs, and takes what
        suits the stopping pairs.
        ``"joint"`` adds a network of each pair, much slower. Or a function from parameters, x and y to scores (N, K),
        with initial parameters (nested containers of arrays), which runs in the library of x.
    transform : {"ranks", "standardize"}, default: "ranks"
        Inputs of the critics, fitted to the training pairs: normal quantiles of ranks, or standardised values alone.
    groups : sequence of N labels, optional
        Labels of dependent pairs, as of one person: a group is never split between parts of a fold, and counts once in
        the error. ``range(N)`` says that equal rows are draws of their own.
    order : sequence of N numbers, optional
        Times of the rows of a series. Folds are consecutive blocks with a gap around the report.
    folds : int, optional
        Number of folds, at least 2; by default 3, and 5 for fewer than 48 groups.
    splits : int, optional
        Random divisions into folds whose bounds are averaged; by default 4 up to 2 000 rows, 2 up to 6 000, else 1.
    networks : int, default: 1
        Number of networks whose scores are averaged.
    steps : int, default: 3000
        Maximum number of training steps.
    batch : int, default: 256
        Pairs of a training step.
    progress : bool, default: True
        Whether to show a progress bar (with tqdm, on a terminal), or else a line now and then, after two seconds.

    Returns
    -------
    MutualInformation or ConditionalInformation
        Record in nats, with a readable `repr`; with floats as `given`, the second.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or holds complex numbers.
    ValueError
        If the numbers of rows differ or are too small, also of a category of `given`, a value is missing or not
        finite, or an option is invalid.

    References
    ----------
    van den Oord et al. (2018), "Representation Learning with Contrastive Predictive Coding", arXiv:1807.03748.
    Chernozhukov et al. (2018), "Double/debiased machine learning", for cross-fitting.
    Gaffke (2005), "Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
    variable", for the lower limit where errors are not normal.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=600)
    >>> y = 0.8 * x + 0.6 * rng.normal(size=600)  # -log(0.6) = 0.51 nats
    >>> found = pnce.estimation.mutual_information(x, y, rng=0, splits=1)
    >>> found.lower < 0.51 < found.high
    True
    """
    options: dict[str, Any] = {
        "critic": critic,
        "transform": transform,
        "groups": groups,
        "order": order,
        "folds": folds,
        "splits": splits,
        "networks": networks,
        "steps": steps,
        "batch": batch,
        "progress": progress,
    }
    labels = None if given is None else category_labels(given)
    if given is None or labels is not None:
        return _estimated(x, y, rng, given=labels, **options)
    seed, random = _random(rng)
    seed = random.getrandbits(32) if seed is None else seed  # both estimates have the same folds

    def estimate(a: Samples, b: Samples) -> MutualInformation:
        return _estimated(a, b, seed, given=None, **options)

    def test() -> float:
        """Probability; NaN for too few groups or blocks."""
        try:
            return independence_test(x, y, given=given, groups=groups, order=order, rng=seed).p
        except ValueError as refusal:
            if " for a test, got " not in str(refusal):
                raise
            return math.nan

    return conditional(estimate, test, x, y, given)


@with_options_explained
def information_by_column(
    x: Samples, y: Samples, /, *, names: Sequence[str] | None = None, rng: Any = None, **options: Any
) -> ColumnTable:
    """Return estimates of the mutual information of each column of x with y, corrected for the number of columns.

    Parameters
    ----------
    x : array, shape (N, Dx)
        Columns to try.
    y : array or sequence, shape (N, Dy) or (N,)
        What they may tell about.
    names : sequence of str, optional
        Names of the columns; numbers by default.
    rng : int, random.Random or numpy.random.Generator, optional
        Seed or generator, as in `mutual_information`.
    **options
        Options of `mutual_information`.

    Returns
    -------
    ColumnTable
        Tuple of `ColumnInformation`: name, probability without and with Holm's correction, and estimate.

    Raises
    ------
    TypeError
        As `mutual_information`.
    ValueError
        As `mutual_information`, or if `names` has another length.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> table = pnce.estimation.information_by_column(x, x[:, 0], rng=0, splits=1, names=["a", "b"])
    >>> [row.name for row in table if row.corrected < 0.05]
    ['a']
    """
    if options.get("given") is not None and category_labels(options["given"]) is None:
        raise ValueError("given: expected categories for a table of columns, got floats, which allow no limit")
    seed, random = _random(rng)
    seed = random.getrandbits(32) if seed is None else seed

    def estimate(a: Samples, b: Samples) -> MutualInformation:
        return cast("MutualInformation", mutual_information(a, b, rng=seed, **options))  # no floats are given

    return by_column(estimate, x, y, names)


@with_options_explained
def independence_test(
    x: Samples,
    y: Samples,
    /,
    *,
    given: Samples | None = None,
    groups: Sequence[Any] | AnyArray | None = None,
    order: Sequence[Any] | AnyArray | None = None,
    rng: Any = None,
    permutations: int = 999,
) -> IndependenceTest:
    """Test whether two arrays are independent, by permutations.

    Four statistics of normal scores of all pairs: the distance covariance, for weak smooth relations; the largest
    correlation of columns, for single columns among many; the covariance of Gaussian kernels, for local relations; and
    the largest correlation of squares and of products of up to four columns, for scales and interactions. Their
    combination, the weighted sum of their inverse probabilities (weights 3, 3, 2, 2), has a rank among those of
    permutations of y. So the level holds for any number of pairs.

    Parameters
    ----------
    x, y : array or sequence, shape (N, Dx) and (N, Dy), or (N,)
        Paired samples, as in `mutual_information`.
    given : array or sequence, shape (N, Dz) or (N,), optional
        Third variable: tests independence given it. Integers and names are categories: y is permuted within each. For
        floats, x and y are regressed on them by kernels, and products of residuals, of their squares, and of residuals
        and the third variable are tested against 0: the level holds about, if both are smooth functions of it.
    groups : sequence of N labels, optional
        Labels of dependent pairs: whole groups of like sizes change places, cut to the smallest.
    order : sequence of N numbers, optional
        Times of the rows of a series: y is shifted around against x, by all numbers of rows. The level holds about, for
        stationary series.
    rng : int, random.Random or numpy.random.Generator, optional
        Seed or generator; None uses a new seed in each call. Choose it before you see a result.
    permutations : int, default: 999
        Number of permutations, or of random multiples of the products of residuals.

    Returns
    -------
    IndependenceTest
        Record with `p`, the probability by each statistic, and a readable `repr`.

    Raises
    ------
    TypeError, ValueError
        As `mutual_information`, but from 20 independent rows on (48 given numbers), from 20 groups, and from 30
        blocks of a series; or if categories come with `groups` or `order`.

    References
    ----------
    Székely, Rizzo and Bakirov (2007), "Measuring and testing dependence by correlation of distances".
    Gretton et al. (2005), "Measuring statistical dependence with Hilbert-Schmidt norms".
    Pesarin and Salmaso (2010), "Permutation tests for complex data", chapter 4, for the combination.
    Shah and Peters (2020), "The hardness of conditional independence testing and the generalised covariance measure".

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, noise = np.random.default_rng(0).normal(size=(2, 200))
    >>> pnce.estimation.independence_test(x, x**2 + noise, rng=0).p < 0.01
    True
    >>> z = x + noise
    >>> pnce.estimation.independence_test(x, z + noise[::-1], given=z, rng=0).p > 0.01
    True
    """
    permutations = check_whole_number("permutations", permutations, least=19)
    seed, random = _random(rng)
    labels = None if given is None else category_labels(given)
    numbers = None if given is None or labels is not None else third_numbers(given, y)
    if labels is not None and not (groups is None and order is None):
        raise ValueError("given: expected neither groups= nor order= with it in a test, got one; test each category")
    if numbers is None:
        sample = sample_of(x, y, groups, order, None, given=labels, least=LEAST_CLUSTERS)
    else:
        both = namespace_of(numbers).concat([on_host("y", y), numbers], axis=1)  # rows are copies if z is equal, too
        sample = sample_of(x, both, groups, order, None)
        sample = sample._replace(y=sample.y[:, : both.shape[1] - numbers.shape[1]])
    least = LEAST_BLOCKS if order is not None else LEAST_CLUSTERS
    if len(sample.clusters.rows) < least:
        name = "groups" if groups is not None else "order" if order is not None else "x"
        what = "blocks of a correlation time" if order is not None else "rows or groups"
        got = len(sample.clusters.rows)
        raise ValueError(f"{name}: expected at least {least} independent {what} for a test, got {got}")
    with one_thread():
        flags = (*sample.flags, *(("near copies",) if sample.has_near_copies(random) else ()))
        if numbers is None:
            found = tested(sample, permutations, random)
        else:
            found = tested_given(sample, numbers, permutations, random)
            series = ("serial dependence",) if found.serial else ()  # what z explains is no sign of one
            flags = (*(flag for flag in flags if flag != "serial dependence"), *series)
    all_shifts = sample.clusters.ordered and numbers is None
    return IndependenceTest(
        p=math.nan if WITHHOLDING & {*flags} else found.p,
        statistics=found.statistics,
        tested=found.rows,
        pairs=sample.pairs,
        groups=len(sample.clusters.rows),
        flags=flags,
        permutations=None if all_shifts else permutations,
        seed=seed,
        version=version(),
        categories=sample.number_of_categories,
        numbers=0 if numbers is None else int(numbers.shape[1]),
    )


def _estimated(
    x: Any, y: Any, rng: Any, *, given: Sequence[Any] | None, critic: Any, transform: str, groups: Any, order: Any,
    folds: Any, splits: Any, networks: Any, steps: Any, batch: Any, progress: Any,
) -> MutualInformation:  # fmt: skip
    """Estimate of two arrays, given the categories of a third variable if there is one."""
    check_choice("transform", transform, TRANSFORMS)
    progress = check_bool("progress", progress)
    networks, steps, batch = (
        check_whole_number(name, value) for name, value in (("networks", networks), ("steps", steps), ("batch", batch))
    )
    family, name = _critic(critic)
    seed, random = _random(rng)
    folds = None if folds is None else check_whole_number("folds", folds, least=2)
    splits = None if splits is None else check_whole_number("splits", splits)
    sample = sample_of(x, y, groups, order, folds, given=given)
    categories = sample.number_of_categories
    folds, splits = folds or sample.folds, splits or sample.splits
    with one_thread():
        library = HOST if isinstance(critic, str) else library_of(common_namespace(x=x, y=y)[1][0])
        exceptions = EXCEPTIONS / sample.pairs
        trainer = Trainer(family, library, steps=steps, batch=min(batch, sample.pairs), exceptions=exceptions)
        width = OUTPUTS if name == "joint" else 1
        fitter = Fitter(
            trainer, transform, name == "own", name == "best" and sample.takes_kernels, networks, width, categories
        )
        study = Study(sample, fitter, folds, random)
        with progress_bar(study.trainings(splits) if progress else 0) as bar:
            found = study.run(splits, bar.update)
        flags = (*sample.flags, *(("near copies",) if sample.has_near_copies(random) else ()))
    if not fitter.kernels and name != "own" and any(map(has_numbered_categories, "xy", (x, y))):
        flags = (*flags, "many categories")
    kinds = Counter(" with ".join(names) for names in found.names)
    used = " and ".join(f"{kind} in {count}" for kind, count in kinds.items()) + f" of {len(found.names)} reports"
    settings = Settings(
        sample.pairs,
        len(sample.clusters.rows),
        folds,
        splits,
        sample.unit,
        used,
        transform,
        networks,
        steps,
        batch,
        exceptions,
        seed,
        version(),
        library_name(sample.x),
        categories,
        (columns_of("x", x), columns_of("y", y)),
        (int(sample.x.shape[1]), int(sample.y.shape[1])),
        max(len(rows) for rows in sample.clusters.rows) if sample.clusters.ordered else 0,
    )
    return reported(found, flags, settings, sample.labels())


def version() -> str:
    """Version of this package."""
    from .. import __version__  # noqa: PLC0415  (set after this module is imported)

    return __version__


# ------------------------------------------------------------------------------------------------------------ arguments


def _random(rng: Any) -> tuple[int | None, Random]:
    """Seed, and generator of the standard library, equal for all array libraries."""
    if isinstance(rng, Random):
        return None, rng
    number = as_integer(rng)
    if rng is None:
        number = Random().getrandbits(32)  # noqa: S311  (no secrets)
    elif number is None and hasattr(rng, "integers"):
        number = int(rng.integers(2**63 - 1))
    if number is None:
        raise TypeError(f"rng: expected an integer, random.Random or numpy.random.Generator, got {type(rng).__name__}")
    if number < 0:
        raise ValueError(f"rng: expected an integer from 0 on, got {number}")
    return number, Random(number)  # noqa: S311


def _critic(critic: Any) -> tuple[Any, str]:
    """Family of critics and its name."""
    if isinstance(critic, tuple) and len(critic) == 2 and callable(critic[0]):  # noqa: PLR2004  (a pair)
        return own(*critic), "own"
    if not isinstance(critic, str):
        raise TypeError(f"critic: expected a name or (function, parameters), got {type(critic).__name__}")
    check_choice("critic", critic, CRITICS)
    return CRITICS[critic], critic
