"""Exact expectations over small tables: which bounds hold, and the optima of densities. Nothing is trained.

The sum runs over all batches that can be drawn from a table p(x, y), with their probabilities. Bounds do not depend on
the order in a batch, so each multiset is computed once.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from mpmath import mp, mpf

from ... import bounds, density, typing
from ..._core.namespace import namespace_of
from .. import oracles
from ..variants import differentiate, generator
from .calls import scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..variants import Nested, Variant

Table = list[list[Any]]
"""Table with a row per x and a column per y."""

exhaustive = pytest.mark.exhaustive


# --- tables and critics -----------------------------------------------------------------------------------------------


def log(number: Any) -> Any:
    return mp.log(number) if number else mpf("-inf")


@dataclass(frozen=True)
class Joint:
    """A joint distribution of two variables with few values."""

    table: tuple[tuple[Any, ...], ...]

    @property
    def cells(self) -> list[tuple[int, int]]:
        return [(x, y) for x, row in enumerate(self.table) for y, p in enumerate(row) if p]

    def marginal_x(self, x: int) -> Any:
        return mp.fsum(self.table[x])

    def marginal_y(self, y: int) -> Any:
        return mp.fsum(row[y] for row in self.table)

    def each(self, function: Callable[[int, int], Any]) -> Table:
        return [[function(x, y) for y in range(len(self.table[0]))] for x in range(len(self.table))]

    @property
    def information(self) -> Table:
        """Pointwise mutual information."""
        return self.each(lambda x, y: log(self.table[x][y] / (self.marginal_x(x) * self.marginal_y(y))))

    @property
    def conditional(self) -> Table:
        """The logarithm of p(y | x)."""
        return self.each(lambda x, y: log(self.table[x][y] / self.marginal_x(x)))

    @property
    def entropy(self) -> Any:
        """Entropy of y."""
        return -mp.fsum(p * mp.log(p) for p in map(self.marginal_y, range(len(self.table[0]))))

    @property
    def mi(self) -> Any:
        return self.mean(self.information)

    def mean(self, table: Table) -> Any:
        """Expectation of a table under the joint distribution."""
        return mp.fsum(self.table[x][y] * table[x][y] for x, y in self.cells)

    def product_mean(self, function: Callable[[int, int], Any]) -> Any:
        """Expectation of a function under the product of the marginals."""
        return mp.fsum(
            self.marginal_x(x) * self.marginal_y(y) * function(x, y)
            for x, y in product(range(len(self.table)), range(len(self.table[0])))
        )


def joint(*rows: list[int]) -> Joint:
    """Make a joint distribution from integers, divided by their sum."""
    total = sum(map(sum, rows))
    with mp.workdps(oracles.DIGITS):
        return Joint(tuple(tuple(mpf(n) / total for n in row) for row in rows))


TWO = joint([4, 1], [2, 3])
ASYMMETRIC = joint([8, 2, 1], [1, 3, 9])
STRONG = joint([30, 1, 1], [1, 20, 1], [1, 1, 40])


def random_table(shape: Joint, seed: int, size: float) -> Table:
    draw = generator(seed)
    return shape.each(lambda _, __: mpf(draw.uniform(-size, size)))


CRITICS: dict[str, Callable[[Joint], Table]] = {
    "optimal": lambda p: p.information,
    "overconfident": lambda p: [[3 * s + 1 for s in row] for row in p.information],
    "random": lambda p: random_table(p, 11, 3.0),
    "reversed": lambda p: scaled(-1.0, p.information),
    "constant": lambda p: p.each(lambda _, __: mpf(1)),
}
"""Tables of scores: the best, overconfident, random, reversed and constant ones."""


# --- every batch ------------------------------------------------------------------------------------------------------

Batch = tuple[Any, list[tuple[int, int]], list[int]]
"""A probability, the pairs, and additional samples of y."""


@cache
def batches(p: Joint, rows: int, columns: int) -> list[Batch]:
    """All batches of pairs and additional samples of y, with their probabilities."""
    found: list[Batch] = []
    for pairs in combinations_with_replacement(p.cells, rows):
        for further in combinations_with_replacement(range(len(p.table[0])), columns - rows):
            probability = mpf(orders(pairs) * orders(further))
            for x, y in pairs:
                probability *= p.table[x][y]
            for y in further:
                probability *= p.marginal_y(y)
            found.append((probability, list(pairs), list(further)))
    return found


def orders(drawn: tuple[Any, ...]) -> int:
    """Number of orders in which the same items can be drawn."""
    count = math.factorial(len(drawn))
    for repeated in Counter(drawn).values():
        count //= math.factorial(repeated)
    return count


@dataclass(frozen=True)
class Drawn:
    """A batch as arrays of a variant: turns tables into score matrices, or into scores of the pairs."""

    variant: Variant
    p: Joint
    pairs: list[tuple[int, int]]
    further: list[int]

    def scores(self, table: Table) -> Any:
        columns = [*(y for _, y in self.pairs), *self.further]
        return self.array([[table[x][y] for y in columns] for x, _ in self.pairs])

    def of_pairs(self, table: Table) -> Any:
        return self.array([table[x][y] for x, y in self.pairs])

    def array(self, nested: Nested) -> Any:
        return self.variant.floats(plain(self.variant, nested))


def plain(variant: Variant, nested: Nested) -> Nested:
    """Numbers for the variant: floats, or mpf if it has as many digits."""
    if isinstance(nested, list):
        return [plain(variant, item) for item in nested]
    return nested if variant.module == "mparray" else float(nested)


Bound: TypeAlias = "Callable[[Drawn, Table], Any]"
shapes = pytest.mark.parametrize(
    "shape", [(2, 2), *(pytest.param(shape, marks=exhaustive) for shape in ((3, 3), (1, 2), (2, 3)))], ids=str
)
tables = pytest.mark.parametrize("p", [TWO, pytest.param(ASYMMETRIC, marks=exhaustive)], ids=["2 x 2", "2 x 3"])


def expectation(variant: Variant, p: Joint, bound: Bound, critic: Table, shape: tuple[int, int]) -> Any:
    """The exact expectation of a bound over all batches of a shape."""
    return mp.fsum(
        probability * mpf(variant.to_list(bound(Drawn(variant, p, pairs, further), critic)))
        for probability, pairs, further in batches(p, *shape)
    )


def rounding(variant: Variant) -> Any:
    """Tolerance for sums of a few terms of order ten."""
    return 200 * mpf(variant.eps())


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    """Compute exact values in more digits than any variant has."""
    with mp.workdps(oracles.DIGITS):
        yield


# --- lower bounds, upper bounds, and neither --------------------------------------------------------------------------


def baseline(p: Joint) -> Table:
    """A baseline that depends on x only."""
    return p.each(lambda x, _: mpf(x) / 2 - mpf(1) / 4)


def shifted(p: Joint) -> Table:
    """The pointwise mutual information plus a function of x."""
    return p.each(lambda x, y: p.information[x][y] + baseline(p)[x][y])


def learned_u(p: Joint) -> Table:
    """An arbitrary critic u(x, y) of the dual bound."""
    return random_table(p, 23, 1.5)


def normalised(critic: Table) -> Table:
    """Log of a conditional density q(y | x), made from any critic."""
    return [[s - mp.log(mp.fsum(mp.exp(t) for t in row)) for s in row] for row in critic]


def marginal(p: Joint) -> Table:
    """The logarithm of p(y)."""
    return p.each(lambda _, y: mp.log(p.marginal_y(y)))


def guessed_marginal(p: Joint) -> Table:
    """Log of an arbitrary density r(y)."""
    total = mpf(sum(range(1, len(p.table[0]) + 1)))
    return p.each(lambda _, y: mp.log((y + 1) / total))


def population_of_tuba(p: Joint, f: Table) -> Any:
    contrasts = p.each(lambda x, y: f[x][y] - baseline(p)[x][y])
    return 1 + p.mean(contrasts) - p.product_mean(lambda x, y: mp.exp(contrasts[x][y]))


def population_of_js(p: Joint, f: Table) -> Any:
    pairs = p.mean(p.each(lambda x, y: mp.log(1 + mp.exp(-f[x][y]))))
    return -pairs - p.product_mean(lambda x, y: mp.log(1 + mp.exp(f[x][y])))


def population_of_flo(p: Joint, f: Table) -> Any:
    def of_pair(x: int, y: int) -> Any:
        u = learned_u(p)[x][y]
        return 1 - u - mp.fsum(p.marginal_y(z) * mp.exp(f[x][z] - f[x][y] - u) for z in range(len(f[0])))

    return p.mean(p.each(of_pair))


@dataclass(frozen=True)
class Law:
    """Known properties of the expectation of a bound.

    `lower`: it is at most the mutual information for every critic. `population`: its population value, if it has no
    bias in batches of any size. `best`: the critic at which it equals the mutual information.
    """

    bound: Bound
    lower: bool = True
    population: Callable[[Joint, Table], Any] | None = None
    best: Callable[[Joint], Table] | None = None


def of_scores(function: Callable[..., Any], *arguments: float, **options: float) -> Bound:
    return lambda b, f: function(b.scores(f), *arguments, **options)


def beside(function: Callable[..., Any], table: Callable[[Joint], Table], *between: float) -> Bound:
    """Bound as a function of scores and of one more number per pair."""
    return lambda b, f: function(b.scores(f), *between, b.of_pairs(table(b.p)))


LAWS = {
    "info_nce": Law(of_scores(bounds.info_nce)),
    "info_nce_anchor": Law(of_scores(bounds.info_nce_anchor)),
    "info_nce_anchor, nu 0.25": Law(of_scores(bounds.info_nce_anchor, nu=0.25)),
    "fdv": Law(of_scores(bounds.fdv)),
    "nwj": Law(
        of_scores(bounds.nwj),
        population=lambda p, f: p.mean(f) - p.product_mean(lambda x, y: mp.exp(f[x][y] - 1)),
        best=lambda p: [[s + 1 for s in row] for row in p.information],
    ),
    "tuba": Law(beside(bounds.tuba, baseline), population=population_of_tuba, best=shifted),
    "tuba, a number": Law(of_scores(bounds.tuba, 0.25)),
    "interpolated, alpha 0": Law(beside(bounds.interpolated, baseline, 0.0), population=population_of_tuba),
    "interpolated, alpha 0.5": Law(beside(bounds.interpolated, baseline, 0.5)),
    "interpolated, alpha 1": Law(of_scores(bounds.interpolated, 1.0, 0.0)),
    "js_mi": Law(
        of_scores(bounds.js_mi),
        population=lambda p, f: 1 + p.mean(f) - p.product_mean(lambda x, y: mp.exp(f[x][y])),
        best=lambda p: p.information,
    ),
    "js": Law(of_scores(bounds.js), lower=False, population=population_of_js),
    "flo": Law(beside(bounds.flo, learned_u), population=population_of_flo),
    "flo, u = -critic": Law(
        lambda b, f: bounds.flo(b.scores(f), b.of_pairs(scaled(-1.0, f))), best=lambda p: p.information
    ),
    "flo, u = -information": Law(beside(bounds.flo, lambda p: scaled(-1.0, p.information)), best=shifted),
    "dual": Law(beside(bounds.dual, learned_u)),
    "barber_agakov": Law(
        lambda b, f: bounds.barber_agakov(b.of_pairs(normalised(f)), b.array(b.p.entropy)),
        population=lambda p, f: p.entropy + p.mean(normalised(f)),
        best=lambda p: p.conditional,
    ),
    "club": Law(
        of_scores(bounds.club), lower=False, population=lambda p, f: p.mean(f) - p.product_mean(lambda x, y: f[x][y])
    ),
    "vub": Law(
        lambda b, f: bounds.vub(b.of_pairs(f), b.of_pairs(guessed_marginal(b.p))),
        lower=False,
        population=lambda p, f: p.mean(f) - p.mean(guessed_marginal(p)),
    ),
    "vub, the marginal": Law(
        lambda b, f: bounds.vub(b.of_pairs(f), b.of_pairs(marginal(b.p))), lower=False, best=lambda p: p.conditional
    ),
}


@tables
@shapes
@pytest.mark.parametrize("name", list(LAWS))
def test_expectation(variant: Variant, name: str, shape: tuple[int, int], p: Joint) -> None:
    """Each bound is at most the mutual information, unbiased, and tight at the best critic, as listed."""
    law = LAWS[name]
    for critic, make in CRITICS.items():
        if law.lower or (law.population is not None and critic in {"optimal", "random"}):
            found = expectation(variant, p, law.bound, make(p), shape)
            assert not law.lower or found <= p.mi + rounding(variant), critic
            assert law.population is None or abs(found - law.population(p, make(p))) <= rounding(variant), critic
    if law.best is not None:
        assert abs(expectation(variant, p, law.bound, law.best(p), shape) - p.mi) <= rounding(variant)


def test_info_nce_grows_with_the_batch(variant: Variant) -> None:
    """At the best critic, plus any function of x; never above log N."""
    info_nce = LAWS["info_nce"].bound
    found = [expectation(variant, ASYMMETRIC, info_nce, shifted(ASYMMETRIC), (1, n)) for n in (2, 3, 4)]
    plainly = expectation(variant, ASYMMETRIC, info_nce, ASYMMETRIC.information, (1, 2))
    assert abs(found[0] - plainly) <= rounding(variant)
    assert 0 < found[0] < found[1] < found[2] < ASYMMETRIC.mi
    assert STRONG.mi > mp.log(2) + 0.01
    assert expectation(variant, STRONG, info_nce, CRITICS["overconfident"](STRONG), (1, 2)) < mp.log(2)


def slope_of_expectation(variant: Variant, p: Joint, bound: Callable[[Any], Any], critic: Table, n: int) -> Table:
    """Gradient of the expectation of a bound by the table of scores, for batches of one row."""
    total = p.each(lambda _, __: mpf(0))
    for probability, pairs, further in batches(p, 1, n):
        ((x, y),) = pairs
        _, (slope,) = differentiate(bound, [Drawn(variant, p, pairs, further).scores(critic)])
        for column, entry in zip([y, *further], variant.to_list(slope)[0], strict=True):
            total[x][column] += probability * mpf(entry)
    return total


@tables
@pytest.mark.parametrize("nu", [1.0, 0.25])
@pytest.mark.parametrize("form", ["bound", "plug_in"])
def test_an_anchor_normalises_the_scores(variant: Variant, form: typing.AnchorForm, nu: float, p: Joint) -> None:
    """The gradient is 0 at the log ratios, but not after adding a function of x, to which InfoNCE is invariant."""

    def anchored(scores: Any) -> Any:
        return bounds.info_nce_anchor(scores, nu=nu, form=form)

    for n in (2, 4):
        slopes = slope_of_expectation(variant, p, anchored, p.information, n)
        assert max(abs(entry) for row in slopes for entry in row) <= rounding(variant)
    alone, seen = (slope_of_expectation(variant, p, bound, shifted(p), 4) for bound in (bounds.info_nce, anchored))
    assert max(abs(entry) for row in alone for entry in row) <= rounding(variant)
    for row, (shift, *_) in zip(seen, baseline(p), strict=True):
        assert mp.fsum(row) * shift < 0  # the gradient points back


def population_of_dv(p: Joint, f: Table) -> Any:
    return p.mean(f) - mp.log(p.product_mean(lambda x, y: mp.exp(f[x][y])))


def flat_nce_value(b: Drawn, f: Table) -> Any:
    scores = b.scores(f)
    return bounds.dual(scores, bounds.dual_critic(scores))


@tables
@shapes
def test_estimates_that_are_no_bounds(variant: Variant, shape: tuple[int, int], p: Joint) -> None:
    """Too large at the best critic.

    dv and mine because of the log of a sample mean; the FlatNCE value because the second critic uses the sampled
    negatives.
    """
    estimates: list[Bound] = [of_scores(bounds.dv), lambda b, f: bounds.mine(b.scores(f))[0]]
    for name in ("optimal", "overconfident", "random"):
        critic = CRITICS[name](p)
        population = population_of_dv(p, critic)
        assert population <= p.mi + mpf(10) ** -60
        for estimate in estimates:
            found = expectation(variant, p, estimate, critic, shape)
            assert found > population + 0.01
            assert name != "optimal" or found > p.mi + 0.01
    optimal, overconfident = (
        expectation(variant, p, flat_nce_value, CRITICS[name](p), shape) - p.mi for name in ("optimal", "overconfident")
    )
    assert optimal > 0.03
    assert overconfident > 2 * optimal


def test_smile_is_neither(variant: Variant) -> None:
    """Too large where clipping lowers the negatives, too small where it raises them."""

    def excess(critic: str, clip: float) -> Any:
        table = CRITICS[critic](STRONG)
        return expectation(variant, STRONG, of_scores(bounds.smile, clip), table, (2, 2)) - STRONG.mi

    assert excess("overconfident", 0.5) > 0.1
    assert excess("optimal", 5.0) > 0.1
    assert excess("reversed", 0.5) < -0.1


leave_one_out = of_scores(bounds.leave_one_out)


@tables
@pytest.mark.parametrize("shape", [(2, 2), pytest.param((3, 3), marks=exhaustive)], ids=str)
def test_upper_bounds(variant: Variant, shape: tuple[int, int], p: Joint) -> None:
    """At least the mutual information with the true p(y | x); with a wrong conditional possibly 0."""
    nothing = normalised(CRITICS["constant"](p))
    for bound in (LAWS["club"].bound, leave_one_out):
        assert expectation(variant, p, bound, p.conditional, shape) > p.mi + 0.01
        assert abs(expectation(variant, p, bound, nothing, shape)) <= rounding(variant)
    assert expectation(variant, p, LAWS["vub"].bound, p.conditional, shape) > p.mi + 0.01
    assert expectation(variant, p, LAWS["vub, the marginal"].bound, nothing, shape) < p.mi - 0.01


def test_leave_one_out_comes_down_with_the_batch(variant: Variant) -> None:
    found = [expectation(variant, TWO, leave_one_out, TWO.conditional, (k, k)) for k in (2, 3, 4)]
    assert found[0] > found[1] > found[2] > TWO.mi


def test_pairs_that_cannot_happen(variant: Variant) -> None:
    """The best scores are then -inf: lower bounds still hold, upper bounds are infinite."""
    p = joint([3, 0], [0, 7])
    for name in ("info_nce", "info_nce_anchor", "fdv", "nwj", "js_mi", "interpolated, alpha 0.5", "tuba, a number"):
        critic = [[s + (name == "nwj") for s in row] for row in p.information]
        for shape in ((2, 2), (1, 3)):
            found = expectation(variant, p, LAWS[name].bound, critic, shape)
            assert found <= p.mi + rounding(variant), name
            assert name not in {"nwj", "js_mi"} or abs(found - p.mi) <= rounding(variant), name
    for bound in (LAWS["club"].bound, leave_one_out):
        assert expectation(variant, p, bound, p.conditional, (2, 2)) == mpf("inf")


# --- densities: gradients over all data and all noise -----------------------------------------------------------------

P = [mpf(5) / 10, mpf(3) / 10, mpf(2) / 10]
Q = [mpf(2) / 16, mpf(9) / 16, mpf(5) / 16]
S = [0.25, -1.5, 0.5]
"""Data, noise, and some scores."""


def logs(numbers: list[Any], offset: Any = 0) -> list[Any]:
    return [mp.log(number) + offset for number in numbers]


def ratios(offset: Any) -> list[Any]:
    return logs([p / q for p, q in zip(P, Q, strict=True)], offset)


def noises(k: int, q: list[Any]) -> list[tuple[Any, tuple[int, ...]]]:
    """All draws of k noise samples, with their probabilities."""
    drawn = combinations_with_replacement(range(len(q)), k)
    return [(orders(noise) * mp.fprod(q[z] for z in noise), noise) for noise in drawn]


def population(
    variant: Variant, loss: Callable[..., Any], k: int, scores: list[Any], q: list[Any] = Q
) -> tuple[Any, list[Any]]:
    """Exact expectation of the loss of a context, and its gradient with respect to the scores of all values."""
    rows = [(P[x] * share, x, noise) for x, (share, noise) in product(range(len(P)), noises(k, q))]
    own, other = (variant.array(index) for index in ([x for _, x, _ in rows], [z for _, _, n in rows for z in n]))
    log_q = variant.floats(plain(variant, logs(q)))
    weights = variant.floats(plain(variant, [probability for probability, _, _ in rows]))

    def taken(vector: Any) -> tuple[Any, Any]:
        xp = namespace_of(vector)
        return xp.take(vector, own, axis=0), xp.reshape(xp.take(vector, other, axis=0), (len(rows), k))

    def total(s: Any) -> Any:
        return loss(*taken(s), *taken(log_q), weights=weights, reduction="sum")

    value, (gradient,) = differentiate(total, [variant.floats(plain(variant, scores))])
    return mpf(variant.to_list(value)), [mpf(g) for g in variant.to_list(gradient)]


def assert_gradient(variant: Variant, got: list[Any], wanted: list[Any]) -> None:
    assert max(abs(a - b) for a, b in zip(got, wanted, strict=True)) <= 64 * mpf(variant.eps()), (got, wanted)


few_samples = pytest.mark.parametrize("k", [1, *(pytest.param(k, marks=exhaustive) for k in (2, 3))])


def of_scores_alone(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Omit the densities of the noise."""
    return lambda data, noise, _data_log_q, _noise_log_q, **options: loss(data, noise, **options)


negative_sampling = of_scores_alone(density.negative_sampling)


@few_samples
def test_a_loss_learns_its_optimum(variant: Variant, k: int) -> None:
    """The gradient is 0 at the optimal scores for every k, and if the level matters, at no other level.

    The optimum is the log-density; with ranking up to a constant; without the noise's density the log ratio.
    """
    for loss, learned, others in (
        (density.local_nce, logs(P), logs(P, 1)),
        (density.info_nce_anchor, logs(P), logs(P, 1)),
        (partial(density.info_nce_anchor, nu=0.25), logs(P), logs(P, 1)),
        (density.ranking_nce, logs(P, mpf(3)), S),
        (density.sampled_softmax, logs(P, mpf(-2)), S),
        (of_scores_alone(density.ranking_nce), ratios(mpf(1)), logs(P)),
        (negative_sampling, ratios(-mp.log(k)), logs(P)),
        (of_scores_alone(density.nre_a), ratios(mpf(0)), logs(P)),
        (of_scores_alone(density.nre_b), ratios(mpf(1)), logs(P)),
        (of_scores_alone(density.nre_c), ratios(mpf(0)), ratios(mpf(1))),
        (of_scores_alone(partial(density.nre_c, gamma=8.0)), ratios(mpf(0)), ratios(mpf(1))),
    ):
        _, gradient = population(variant, loss, k, learned)
        assert_gradient(variant, gradient, [mpf(0)] * 3)
        _, gradient = population(variant, loss, k, others)
        assert max(map(abs, gradient)) > 0.01, loss
        if others == logs(P, 1):
            assert min(gradient) > (0.05 if loss is density.local_nce else 0.01), loss
    _, gradient = population(variant, density.ranking_nce, k, S)
    assert abs(mp.fsum(gradient)) <= 64 * mpf(variant.eps())  # invariant under a constant added to all scores


@few_samples
def test_local_nce_elsewhere(variant: Variant, k: int) -> None:
    """With a mask, k is the number of unmasked samples of a context."""

    def masked(data: Any, noise: Any, data_q: Any, noise_q: Any, **options: Any) -> Any:
        xp = namespace_of(noise)
        mask = variant.array([[False] + [True] * k] * int(noise.shape[0]))
        noise, noise_q = (xp.concat([z[:, :1], z], axis=1) for z in (noise, noise_q))
        return density.local_nce(data, noise, data_q, noise_q, mask=mask, **options)

    for loss in (density.local_nce, masked):
        _, gradient = population(variant, loss, k, S)
        wanted = [k * q / (mp.exp(s) + k * q) * (mp.exp(s) - p) for s, p, q in zip(S, P, Q, strict=True)]
        assert_gradient(variant, gradient, wanted)


@exhaustive
def test_ranking_nce_comes_near_to_the_likelihood(variant: Variant) -> None:
    """The gradient tends to softmax(s) - p, that of the exact softmax, with an error of order 1 / k."""
    softmax = [s - p for s, p in zip(oracles.shares([mpf(s) for s in S]), P, strict=True)]
    rests = []
    for k in (4, 8, 16):
        _, gradient = population(variant, density.ranking_nce, k, S)
        rests.append(max(abs(a - b) for a, b in zip(gradient, softmax, strict=True)))
    assert rests[2] < 0.03
    assert 0.4 < rests[1] / rests[0] < 0.6
    assert 0.45 < rests[2] / rests[1] < 0.55


@exhaustive
def test_negative_sampling_is_local_nce_where_k_q_is_one(variant: Variant) -> None:
    """With as many samples as values and uniform noise; not with more samples or other noise."""
    uniform = [mpf(1) / 3] * 3

    def apart(k: int, q: list[Any]) -> Any:
        (value, gradient), (other, slope) = (
            population(variant, loss, k, S, q) for loss in (negative_sampling, density.local_nce)
        )
        return max(abs(value - other), *(abs(a - b) for a, b in zip(gradient, slope, strict=True)))

    assert apart(3, uniform) <= 64 * mpf(variant.eps())
    assert apart(2, uniform) > 0.01
    assert apart(3, Q) > 0.01


@few_samples
def test_partition_function_without_bias(variant: Variant, k: int) -> None:
    """E Z-hat = Z exactly; E log Z-hat is below log Z, by less with more samples."""
    z = mp.fsum(mp.exp(s) for s in S)

    def estimate(samples: int) -> tuple[Any, Any]:
        shares, drawn = zip(*noises(samples, Q), strict=True)
        scores = variant.floats([[S[z] for z in noise] for noise in drawn])
        log_q = variant.floats(plain(variant, [[mp.log(Q[z]) for z in noise] for noise in drawn]))
        found = [mpf(value) for value in variant.to_list(density.log_partition(scores, log_q))]
        return mp.fdot(shares, map(mp.exp, found)), mp.fdot(shares, found)

    total, logarithm = estimate(k)
    assert abs(total - z) <= 64 * mpf(variant.eps())
    assert logarithm < estimate(k + 1)[1] < mp.log(z) - 0.01


def test_the_density_is_recovered(variant: Variant) -> None:
    """From log p / q plus any function of the context, in two contexts."""
    scores, log_q = (variant.floats(plain(variant, x)) for x in ([ratios(mpf(4)), ratios(mpf(-30))], logs(Q)))
    for row in variant.to_list(density.recover_log_prob(scores, log_q)):
        assert_gradient(variant, [mpf(value) for value in row], logs(P))
