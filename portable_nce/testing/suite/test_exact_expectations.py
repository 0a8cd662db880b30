"""Which of the bounds are bounds, and what the densities learn: exact expectations over small tables, nothing trained.

Every batch that can be drawn from a table p(x, y) is a row of the sum, with its probability. A batch in another order
is the same batch to every bound, so each is computed once.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from mpmath import mp, mpf

from ... import bounds, density, typing
from ..._core.namespace import namespace_of
from .. import oracles
from ..variants import differentiate, generator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..variants import Nested, Variant

Table = list[list[Any]]
"""Of each x a row, of each y a column."""

exhaustive = pytest.mark.exhaustive


# --- tables and critics ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joint:
    """A joint distribution of two variables with few values."""

    name: str
    table: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        return self.name

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
        return self.each(
            lambda x, y: (
                mp.log(self.table[x][y] / (self.marginal_x(x) * self.marginal_y(y)))
                if self.table[x][y]
                else mpf("-inf")
            )
        )

    @property
    def conditional(self) -> Table:
        """The logarithm of p(y | x)."""
        return self.each(
            lambda x, y: mp.log(self.table[x][y] / self.marginal_x(x)) if self.table[x][y] else mpf("-inf")
        )

    @property
    def entropy(self) -> Any:
        """Of y."""
        return -mp.fsum(p * mp.log(p) for p in map(self.marginal_y, range(len(self.table[0]))))

    @property
    def mi(self) -> Any:
        return self.mean(self.information)

    def mean(self, table: Table) -> Any:
        """The expectation of a table under the joint distribution."""
        return mp.fsum(self.table[x][y] * table[x][y] for x, y in self.cells)

    def product_mean(self, function: Callable[[int, int], Any]) -> Any:
        """The expectation of a function under the product of the marginals."""
        return mp.fsum(
            self.marginal_x(x) * self.marginal_y(y) * function(x, y)
            for x, y in product(range(len(self.table)), range(len(self.table[0])))
        )


def joint(name: str, *rows: list[int]) -> Joint:
    """Make a table from whole numbers, to be divided by their sum."""
    total = sum(map(sum, rows))
    with mp.workdps(oracles.DIGITS):
        return Joint(name, tuple(tuple(mpf(n) / total for n in row) for row in rows))


TWO = joint("2 x 2", [4, 1], [2, 3])
ASYMMETRIC = joint("2 x 3", [8, 2, 1], [1, 3, 9])
STRONG = joint("3 x 3", [30, 1, 1], [1, 20, 1], [1, 1, 40])
JOINTS = [TWO, ASYMMETRIC]


def random_table(shape: Joint, seed: int, size: float) -> Table:
    draw = generator(seed)
    return shape.each(lambda _, __: mpf(draw.uniform(-size, size)))


CRITICS: dict[str, Callable[[Joint], Table]] = {
    "optimal": lambda p: p.information,
    "overconfident": lambda p: [[3 * s + 1 for s in row] for row in p.information],
    "random": lambda p: random_table(p, 11, 3.0),
    "reversed": lambda p: [[-s for s in row] for row in p.information],
    "constant": lambda p: p.each(lambda _, __: mpf(1)),
}
"""Tables of scores, from the best to those that have learned the opposite, or nothing."""


# --- every batch ----------------------------------------------------------------------------------------------------

Batch = tuple[Any, list[tuple[int, int]], list[int]]
"""A probability, the pairs, and further samples of y."""


@cache
def batches(p: Joint, rows: int, columns: int) -> list[Batch]:
    """List the batches of pairs, and of further samples of y, with their probabilities."""
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
    """Count the orders in which the same can be drawn."""
    count = math.factorial(len(drawn))
    for repeated in Counter(drawn).values():
        count //= math.factorial(repeated)
    return count


@dataclass(frozen=True)
class Drawn:
    """A batch on a variant's arrays: tables become scores of pairs with columns, or of pairs alone."""

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
    """Numbers as the variant takes them: floats, or mpf where it holds as many digits."""
    if isinstance(nested, list):
        return [plain(variant, item) for item in nested]
    return nested if variant.module == "mparray" else float(nested)


Bound: TypeAlias = "Callable[[Drawn, Table], Any]"
SHAPES = [(2, 2), (3, 3), (1, 2), (2, 3)]
shapes = pytest.mark.parametrize(
    "shape", [pytest.param(s, marks=[] if s == (2, 2) else exhaustive, id=f"{s[0]} of {s[1]}") for s in SHAPES]
)
squares = pytest.mark.parametrize("shape", [(2, 2), pytest.param((3, 3), marks=exhaustive)], ids=["2 of 2", "3 of 3"])
two_and_asymmetric = pytest.mark.parametrize("p", [TWO, pytest.param(ASYMMETRIC, marks=exhaustive)], ids=str)


def expectation(variant: Variant, p: Joint, bound: Bound, critic: Table, shape: tuple[int, int]) -> Any:
    """The exact expectation of a bound over all batches of a shape."""
    return mp.fsum(
        probability * mpf(variant.to_list(bound(Drawn(variant, p, pairs, further), critic)))
        for probability, pairs, further in batches(p, *shape)
    )


def rounding(variant: Variant) -> Any:
    """What rounding may do to sums of a few terms of order ten."""
    return 200 * mpf(variant.eps())


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    """Compute what is exact in more digits than any variant has."""
    with mp.workdps(oracles.DIGITS):
        yield


def test_the_batches_are_all_of_them() -> None:
    """Their probabilities sum to 1, and the first pair of all is distributed as the table says."""
    for p, (rows, columns) in product(JOINTS, SHAPES):
        drawn = batches(p, rows, columns)
        assert abs(mp.fsum(probability for probability, _, _ in drawn) - 1) < mpf(10) ** -60
        for x, y in p.cells:
            share = mp.fsum(probability * pairs.count((x, y)) / rows for probability, pairs, _ in drawn)
            assert abs(share - p.table[x][y]) < mpf(10) ** -60


# --- lower bounds, upper bounds, and neither -------------------------------------------------------------------------


def baseline(p: Joint) -> Table:
    """A baseline that knows x alone."""
    return p.each(lambda x, _: mpf(x) / 2 - mpf(1) / 4)


def learned_u(p: Joint) -> Table:
    """A critic u(x, y) of the dual bound, of no particular merit."""
    return random_table(p, 23, 1.5)


def minus(table: Table) -> Table:
    return [[-entry for entry in row] for row in table]


def normalised(critic: Table) -> Table:
    """The logarithm of a conditional density q(y | x), made from any critic."""
    return [[s - mp.log(mp.fsum(mp.exp(t) for t in row)) for s in row] for row in critic]


def guessed_marginal(p: Joint) -> Table:
    """The logarithm of some density r(y)."""
    total = mpf(sum(range(1, len(p.table[0]) + 1)))
    return p.each(lambda _, y: mp.log((y + 1) / total))


LOWER: dict[str, Bound] = {
    "info_nce": lambda b, f: bounds.info_nce(b.scores(f)),
    "info_nce_anchor": lambda b, f: bounds.info_nce_anchor(b.scores(f)),
    "info_nce_anchor, nu 0.25": lambda b, f: bounds.info_nce_anchor(b.scores(f), nu=0.25),
    "fdv": lambda b, f: bounds.fdv(b.scores(f)),
    "nwj": lambda b, f: bounds.nwj(b.scores(f)),
    "tuba": lambda b, f: bounds.tuba(b.scores(f), b.of_pairs(baseline(b.p))),
    "tuba, a number": lambda b, f: bounds.tuba(b.scores(f), 0.25),
    "interpolated, alpha 0": lambda b, f: bounds.interpolated(b.scores(f), 0.0, b.of_pairs(baseline(b.p))),
    "interpolated, alpha 0.5": lambda b, f: bounds.interpolated(b.scores(f), 0.5, b.of_pairs(baseline(b.p))),
    "interpolated, alpha 1": lambda b, f: bounds.interpolated(b.scores(f), 1.0, 0.0),
    "js_mi": lambda b, f: bounds.js_mi(b.scores(f)),
    "flo": lambda b, f: bounds.flo(b.scores(f), b.of_pairs(learned_u(b.p))),
    "flo, u = -critic": lambda b, f: bounds.flo(b.scores(f), b.of_pairs(minus(f))),
    "dual": lambda b, f: bounds.dual(b.scores(f), b.of_pairs(learned_u(b.p))),
    "barber_agakov": lambda b, f: bounds.barber_agakov(b.of_pairs(normalised(f)), b.array(b.p.entropy)),
}


@two_and_asymmetric
@shapes
@pytest.mark.parametrize("name", list(LOWER))
def test_lower_bound_for_every_critic(variant: Variant, name: str, shape: tuple[int, int], p: Joint) -> None:
    """The expectation is at most the mutual information, however good or bad the critic."""
    found = {critic: expectation(variant, p, LOWER[name], make(p), shape) - p.mi for critic, make in CRITICS.items()}
    assert max(found.values()) <= rounding(variant), {key: float(value) for key, value in found.items()}


def population_of_tuba(p: Joint, f: Table) -> Any:
    contrasts = p.each(lambda x, y: f[x][y] - baseline(p)[x][y])
    return 1 + p.mean(contrasts) - p.product_mean(lambda x, y: mp.exp(contrasts[x][y]))


POPULATION: dict[str, tuple[Bound, Callable[[Joint, Table], Any]]] = {
    "nwj": (LOWER["nwj"], lambda p, f: p.mean(f) - p.product_mean(lambda x, y: mp.exp(f[x][y] - 1))),
    "tuba": (LOWER["tuba"], population_of_tuba),
    "interpolated, alpha 0": (LOWER["interpolated, alpha 0"], population_of_tuba),
    "js_mi": (LOWER["js_mi"], lambda p, f: 1 + p.mean(f) - p.product_mean(lambda x, y: mp.exp(f[x][y]))),
    "js": (
        lambda b, f: bounds.js(b.scores(f)),
        lambda p, f: (
            -p.mean(p.each(lambda x, y: mp.log(1 + mp.exp(-f[x][y]))))
            - p.product_mean(lambda x, y: mp.log(1 + mp.exp(f[x][y])))
        ),
    ),
    "flo": (
        LOWER["flo"],
        lambda p, f: p.mean(
            p.each(
                lambda x, y: (
                    1
                    - learned_u(p)[x][y]
                    - mp.fsum(
                        p.marginal_y(z) * mp.exp(f[x][z] - f[x][y] - learned_u(p)[x][y]) for z in range(len(f[0]))
                    )
                )
            )
        ),
    ),
    "club": (lambda b, f: bounds.club(b.scores(f)), lambda p, f: p.mean(f) - p.product_mean(lambda x, y: f[x][y])),
    "barber_agakov": (LOWER["barber_agakov"], lambda p, f: p.entropy + p.mean(normalised(f))),
    "vub": (
        lambda b, f: bounds.vub(b.of_pairs(f), b.of_pairs(guessed_marginal(b.p))),
        lambda p, f: p.mean(p.each(lambda x, y: f[x][y] - guessed_marginal(p)[x][y])),
    ),
}
"""The bounds without bias: the call, and the value over all pairs that there are."""


@two_and_asymmetric
@shapes
@pytest.mark.parametrize("name", list(POPULATION))
def test_no_bias_in_batches_of_any_size(variant: Variant, name: str, shape: tuple[int, int], p: Joint) -> None:
    """The expectation is the population value, for every critic."""
    bound, population = POPULATION[name]
    for make in (CRITICS["optimal"], CRITICS["random"]):
        found = expectation(variant, p, bound, make(p), shape)
        assert abs(found - population(p, make(p))) <= rounding(variant)


def shifted(p: Joint, table: Table) -> Table:
    """Add a function of x."""
    return p.each(lambda x, y: table[x][y] + baseline(p)[x][y])


TIGHT: dict[str, tuple[Bound, Callable[[Joint], Table]]] = {
    "nwj": (LOWER["nwj"], lambda p: [[s + 1 for s in row] for row in p.information]),
    "tuba": (LOWER["tuba"], lambda p: shifted(p, p.information)),
    "js_mi": (LOWER["js_mi"], lambda p: p.information),
    "flo": (LOWER["flo, u = -critic"], lambda p: p.information),
    "flo, the critic plus a function of x": (
        lambda b, f: bounds.flo(b.scores(f), b.of_pairs(minus(b.p.information))),
        lambda p: shifted(p, p.information),
    ),
    "barber_agakov": (
        lambda b, f: bounds.barber_agakov(b.of_pairs(f), b.array(b.p.entropy)),
        lambda p: p.conditional,
    ),
    "vub": (
        lambda b, f: bounds.vub(b.of_pairs(f), b.of_pairs(b.p.each(lambda _, y: mp.log(b.p.marginal_y(y))))),
        lambda p: p.conditional,
    ),
}
"""The bounds that say all there is, with the critics that make them."""


@two_and_asymmetric
@squares
@pytest.mark.parametrize("name", list(TIGHT))
def test_tight_at_the_best_critic(variant: Variant, name: str, shape: tuple[int, int], p: Joint) -> None:
    """The expectation is the mutual information."""
    bound, critic = TIGHT[name]
    assert abs(expectation(variant, p, bound, critic(p), shape) - p.mi) <= rounding(variant)


def test_info_nce_grows_with_the_batch(variant: Variant) -> None:
    """At the best critic, to which a function of x may be added; never above log N, by which it is held down."""
    critic = shifted(ASYMMETRIC, ASYMMETRIC.information)
    found = [expectation(variant, ASYMMETRIC, LOWER["info_nce"], critic, (1, n)) for n in (2, 3, 4)]
    plainly = expectation(variant, ASYMMETRIC, LOWER["info_nce"], ASYMMETRIC.information, (1, 2))
    assert abs(found[0] - plainly) <= rounding(variant)
    assert 0 < found[0] < found[1] < found[2] < ASYMMETRIC.mi
    assert STRONG.mi > mp.log(2) + 0.01
    assert expectation(variant, STRONG, LOWER["info_nce"], CRITICS["overconfident"](STRONG), (1, 2)) < mp.log(2)


@two_and_asymmetric
def test_js_is_below_the_divergence(variant: Variant, p: Joint) -> None:
    """2 JSD - 2 log 2, which it reaches at the best critic, and no critic exceeds."""

    def to_the_middle(x: int, y: int) -> tuple[Any, Any]:
        first, second = p.table[x][y], p.marginal_x(x) * p.marginal_y(y)
        middle = (first + second) / 2
        return first * mp.log(first / middle), second * mp.log(second / middle)

    twice = mp.fsum(term for x, y in p.cells for term in to_the_middle(x, y)) - 2 * mp.log(2)
    found = {
        name: expectation(variant, p, POPULATION["js"][0], make(p), (2, 2)) - twice for name, make in CRITICS.items()
    }
    assert abs(found["optimal"]) <= rounding(variant)
    assert max(found.values()) <= rounding(variant)


def slope_of_expectation(variant: Variant, p: Joint, bound: Callable[[Any], Any], critic: Table, n: int) -> Table:
    """The gradient of the expectation of a bound by the table of scores, over batches of one row."""
    total = p.each(lambda _, __: mpf(0))
    for probability, pairs, further in batches(p, 1, n):
        ((x, y),) = pairs
        _, (slope,) = differentiate(bound, [Drawn(variant, p, pairs, further).scores(critic)])
        for column, entry in zip([y, *further], variant.to_list(slope)[0], strict=True):
            total[x][column] += probability * mpf(entry)
    return total


@two_and_asymmetric
@pytest.mark.parametrize("nu", [1.0, 0.25])
@pytest.mark.parametrize("form", ["bound", "plug_in"])
def test_an_anchor_normalises_the_scores(variant: Variant, form: typing.AnchorForm, nu: float, p: Joint) -> None:
    """The gradient is 0 at the log ratios, and not at these plus a function of x, which InfoNCE does not see."""

    def anchored(scores: Any) -> Any:
        return bounds.info_nce_anchor(scores, nu=nu, form=form)

    for n in (2, 4):
        slopes = slope_of_expectation(variant, p, anchored, p.information, n)
        assert max(abs(entry) for row in slopes for entry in row) <= rounding(variant)
    for x, (alone, seen) in enumerate(
        zip(
            slope_of_expectation(variant, p, bounds.info_nce, shifted(p, p.information), 4),
            slope_of_expectation(variant, p, anchored, shifted(p, p.information), 4),
            strict=True,
        )
    ):
        assert max(map(abs, alone)) <= rounding(variant)
        assert mp.fsum(seen) * baseline(p)[x][0] < 0  # it goes back to where it was


def population_of_dv(p: Joint, f: Table) -> Any:
    return p.mean(f) - mp.log(p.product_mean(lambda x, y: mp.exp(f[x][y])))


@two_and_asymmetric
@shapes
def test_dv_is_a_bound_in_the_population_only(variant: Variant, shape: tuple[int, int], p: Joint) -> None:
    """The logarithm of a sample mean makes it too large: at the best critic, larger than the mutual information."""
    estimates: list[Bound] = [lambda b, f: bounds.dv(b.scores(f)), lambda b, f: bounds.mine(b.scores(f))[0]]
    for name in ("optimal", "overconfident", "random"):
        critic = CRITICS[name](p)
        population = population_of_dv(p, critic)
        assert population <= p.mi + mpf(10) ** -60
        for estimate in estimates:
            found = expectation(variant, p, estimate, critic, shape)
            assert found > population + 0.01
            if name == "optimal":
                assert found > p.mi + 0.01


def flat_nce_value(b: Drawn, f: Table) -> Any:
    scores = b.scores(f)
    return bounds.dual(scores, bounds.dual_critic(scores))


@two_and_asymmetric
@shapes
def test_flat_nce_value_is_no_bound(variant: Variant, shape: tuple[int, int], p: Joint) -> None:
    """With a critic that uses the sampled negatives: above the mutual information at the best scores already."""
    optimal, overconfident = (
        expectation(variant, p, flat_nce_value, CRITICS[name](p), shape) - p.mi for name in ("optimal", "overconfident")
    )
    assert optimal > 0.03
    assert overconfident > 2 * optimal


def test_critic_with_the_positive(variant: Variant) -> None:
    """Minus its mean is the InfoNCE bound; the dual bound, which leaves the positive out, is none with it either."""

    def without(b: Drawn, f: Table) -> Any:
        scores = b.scores(f)
        return bounds.dual(scores, bounds.dual_critic(scores, include_positive=True))

    def negated(b: Drawn, f: Table) -> Any:
        critic = bounds.dual_critic(b.scores(f), include_positive=True)
        return b.array(-mp.fsum(variant.to_list(critic)) / len(b.pairs))

    found = [
        expectation(variant, ASYMMETRIC, bound, ASYMMETRIC.information, (2, 2))
        for bound in (without, negated, LOWER["info_nce"])
    ]
    assert found[0] > ASYMMETRIC.mi + 0.1
    assert abs(found[1] - found[2]) <= rounding(variant)
    assert found[1] < ASYMMETRIC.mi


def test_smile_is_neither(variant: Variant) -> None:
    """Too large where clipping takes the weight of the negatives, too small where it adds some."""

    def excess(critic: str, clip: float) -> Any:
        table = CRITICS[critic](STRONG)
        return expectation(variant, STRONG, lambda b, f: bounds.smile(b.scores(f), clip), table, (2, 2)) - STRONG.mi

    assert excess("overconfident", 0.5) > 0.1
    assert excess("optimal", 5.0) > 0.1
    assert excess("reversed", 0.5) < -0.1


def leave_one_out(b: Drawn, f: Table) -> Any:
    return bounds.leave_one_out(b.scores(f))


@two_and_asymmetric
@squares
def test_upper_bounds_of_the_true_conditional(variant: Variant, shape: tuple[int, int], p: Joint) -> None:
    """CLUB, leave-one-out and the variational upper bound are at least the mutual information, with p(y | x) itself."""
    for bound in (POPULATION["club"][0], leave_one_out, POPULATION["vub"][0]):
        assert expectation(variant, p, bound, p.conditional, shape) > p.mi + 0.01


@two_and_asymmetric
def test_upper_bounds_of_a_wrong_conditional_are_none(variant: Variant, p: Joint) -> None:
    """A conditional that has learned nothing says that there is nothing to be known."""
    nothing = normalised(CRITICS["constant"](p))
    for bound in (POPULATION["club"][0], leave_one_out):
        assert abs(expectation(variant, p, bound, nothing, (2, 2))) <= rounding(variant)
    marginal = p.each(lambda _, y: mp.log(p.marginal_y(y)))
    found = expectation(variant, p, lambda b, f: bounds.vub(b.of_pairs(f), b.of_pairs(marginal)), nothing, (2, 2))
    assert found < p.mi - 0.01


def test_leave_one_out_runs_over_x(variant: Variant) -> None:
    """The expectation by the definition, which the two axes exchanged would miss: the marginals differ.

    In batches of two pairs, one other x and one other y come to the same on average.
    """
    shape = (3, 3)

    def expected(*, turned: bool) -> Any:
        total = mpf(0)
        for probability, pairs, _ in batches(ASYMMETRIC, *shape):
            for j, (x, y) in enumerate(pairs):
                others = [pair for i, pair in enumerate(pairs) if i != j]
                densities = [mp.exp(ASYMMETRIC.conditional[x if turned else a][b if turned else y]) for a, b in others]
                value = ASYMMETRIC.conditional[x][y] - mp.log(oracles.mean(densities))
                total += probability * value / len(pairs)
        return total

    found = expectation(variant, ASYMMETRIC, leave_one_out, ASYMMETRIC.conditional, shape)
    assert abs(found - expected(turned=False)) <= rounding(variant)
    assert abs(found - expected(turned=True)) > 0.001


def test_leave_one_out_comes_down_with_the_batch(variant: Variant) -> None:
    found = [expectation(variant, TWO, leave_one_out, TWO.conditional, (k, k)) for k in (2, 3, 4)]
    assert found[0] > found[1] > found[2] > TWO.mi


IMPOSSIBLE = joint("y is x", [3, 0], [0, 7])


@pytest.mark.parametrize(
    "name", ["info_nce", "info_nce_anchor", "fdv", "nwj", "js_mi", "interpolated, alpha 0.5", "tuba, a number"]
)
def test_lower_bound_with_pairs_that_cannot_happen(variant: Variant, name: str) -> None:
    """The best scores are minus infinity there, and the bounds at most the mutual information still."""
    critic = [[s + (name == "nwj") for s in row] for row in IMPOSSIBLE.information]
    for shape in ((2, 2), (1, 3)):
        found = expectation(variant, IMPOSSIBLE, LOWER[name], critic, shape)
        assert found <= IMPOSSIBLE.mi + rounding(variant)
        if name in {"nwj", "js_mi"}:
            assert abs(found - IMPOSSIBLE.mi) <= rounding(variant)


def test_upper_bounds_with_pairs_that_cannot_happen(variant: Variant) -> None:
    """They are infinite, and not by some number too small."""
    for bound in (POPULATION["club"][0], leave_one_out):
        assert expectation(variant, IMPOSSIBLE, bound, IMPOSSIBLE.conditional, (2, 2)) == mpf("inf")


# --- pairs of Gaussians ---------------------------------------------------------------------------------------------

RHO, DIMENSIONS, BATCHES = 0.5, 2, 20


@exhaustive
@pytest.mark.parametrize("rows", [64])
def test_gaussian_pairs(variant: Variant, rows: int) -> None:
    """The best critic in closed form: each mean over the batches within five standard errors of what is known.

    MI = -(d / 2) log(1 - rho^2), and CLUB with the true conditional d rho^2 / (1 - rho^2).
    """
    draw = generator(17)
    rest = 1 - RHO**2
    mi, wanted_club = -DIMENSIONS / 2 * math.log(rest), DIMENSIONS * RHO**2 / rest
    found: dict[str, list[float]] = {"nwj": [], "js_mi": [], "club": [], "info_nce": [], "leave_one_out": []}
    for _ in range(BATCHES):
        x = [[draw.gauss(0.0, 1.0) for _ in range(DIMENSIONS)] for _ in range(rows)]
        y = [[RHO * a + math.sqrt(rest) * draw.gauss(0.0, 1.0) for a in row] for row in x]
        # log p(y | x), and the logarithm of its ratio to p(y).
        conditional = [[sum(log_normal(b - RHO * a, rest) for a, b in zip(v, w, strict=True)) for w in y] for v in x]
        marginal = [sum(log_normal(b, 1.0) for b in w) for w in y]
        ratio = variant.floats([[s - m for s, m in zip(row, marginal, strict=True)] for row in conditional])
        densities = variant.floats(conditional)
        for name, value in {
            "nwj": bounds.nwj(ratio + 1.0),
            "js_mi": bounds.js_mi(ratio),
            "club": bounds.club(densities),
            "info_nce": bounds.info_nce(ratio),
            "leave_one_out": bounds.leave_one_out(densities),
        }.items():
            found[name].append(float(value))
    means = {name: sum(values) / BATCHES for name, values in found.items()}
    errors = {
        name: math.sqrt(sum((v - means[name]) ** 2 for v in values) / (BATCHES - 1) / BATCHES)
        for name, values in found.items()
    }
    for name, wanted in {"nwj": mi, "js_mi": mi, "club": wanted_club}.items():
        assert abs(means[name] - wanted) <= 5 * errors[name], (name, means[name], wanted, errors[name])
        assert errors[name] < 0.05
    assert mi - 0.1 <= means["info_nce"] <= mi + 5 * errors["info_nce"]
    assert mi - 5 * errors["leave_one_out"] <= means["leave_one_out"] <= mi + 0.1


def log_normal(x: float, variance: float) -> float:
    return -x * x / variance / 2 - math.log(2 * math.pi * variance) / 2


# --- densities: the gradient over all data and all noise -------------------------------------------------------------

P = [mpf(5) / 10, mpf(3) / 10, mpf(2) / 10]
Q = [mpf(2) / 16, mpf(9) / 16, mpf(5) / 16]
S = [0.25, -1.5, 0.5]
"""Data, noise, and some scores."""

VALUES = range(len(P))


def logs(numbers: list[Any], offset: Any = 0) -> list[Any]:
    return [mp.log(number) + offset for number in numbers]


def everything(k: int, q: list[Any]) -> list[tuple[Any, int, tuple[int, ...]]]:
    """List what is found and the k noise samples beside it, with their probabilities."""
    found = []
    for x, noise in product(VALUES, combinations_with_replacement(VALUES, k)):
        probability = P[x] * orders(noise)
        for z in noise:
            probability *= q[z]
        found.append((probability, x, noise))
    return found


def population(
    variant: Variant, loss: Callable[..., Any], k: int, scores: list[Any], q: list[Any] = Q
) -> tuple[Any, list[Any]]:
    """The exact expectation of a loss of one context, and its gradient with respect to the scores of all values."""
    rows = everything(k, q)
    own, other = (variant.array(index) for index in ([x for _, x, _ in rows], [z for _, _, n in rows for z in n]))
    log_q = variant.floats(plain(variant, logs(q)))
    weights = variant.floats(plain(variant, [probability for probability, _, _ in rows]))

    def total(s: Any) -> Any:
        data, noise, data_q, noise_q = (take(z, i, k) for z, i in ((s, own), (s, other), (log_q, own), (log_q, other)))
        return loss(data[:, 0], noise, data_q[:, 0], noise_q, weights=weights, reduction="sum")

    def take(vector: Any, index: Any, k: int) -> Any:
        xp = namespace_of(vector)
        return xp.reshape(xp.take(vector, index, axis=0), (len(rows), -1 if index is own else k))

    value, (gradient,) = differentiate(total, [variant.floats(plain(variant, scores))])
    return mpf(variant.to_list(value)), [mpf(g) for g in variant.to_list(gradient)]


def assert_gradient(variant: Variant, got: list[Any], wanted: list[Any]) -> None:
    assert max(abs(a - b) for a, b in zip(got, wanted, strict=True)) <= 64 * mpf(variant.eps()), (got, wanted)


few_samples = pytest.mark.parametrize("k", [1, *(pytest.param(k, marks=exhaustive) for k in (2, 3))])


def negative_sampling(data: Any, noise: Any, _: Any, __: Any, **options: Any) -> Any:
    return density.negative_sampling(data, noise, **options)


def without_log_q(data: Any, noise: Any, _: Any, __: Any, **options: Any) -> Any:
    return density.ranking_nce(data, noise, **options)


@few_samples
def test_local_nce_learns_the_density(variant: Variant, k: int) -> None:
    """k q / (e^s + k q) (e^s - p): zero at s = log p for every k, and at no other level."""
    _, gradient = population(variant, density.local_nce, k, S)
    wanted = [k * q / (mp.exp(s) + k * q) * (mp.exp(s) - p) for s, p, q in zip(S, P, Q, strict=True)]
    assert_gradient(variant, gradient, wanted)
    _, gradient = population(variant, density.local_nce, k, logs(P))
    assert_gradient(variant, gradient, [mpf(0)] * 3)
    _, gradient = population(variant, density.local_nce, k, logs(P, 1))
    assert min(gradient) > 0.05


def test_local_nce_learns_the_density_under_a_mask(variant: Variant) -> None:
    """Contexts may have fewer samples: each is compared with as many as it has."""

    def masked(data: Any, noise: Any, data_q: Any, noise_q: Any, **options: Any) -> Any:
        xp = namespace_of(noise)
        mask = variant.array([[False, True, True]] * int(noise.shape[0]))
        noise, noise_q = (xp.concat([z[:, :1], z], axis=1) for z in (noise, noise_q))
        return density.local_nce(data, noise, data_q, noise_q, mask=mask, **options)

    _, gradient = population(variant, masked, 2, S)
    wanted = [2 * q / (mp.exp(s) + 2 * q) * (mp.exp(s) - p) for s, p, q in zip(S, P, Q, strict=True)]
    assert_gradient(variant, gradient, wanted)


@few_samples
def test_the_anchor_learns_the_density(variant: Variant, k: int) -> None:
    """Zero at s = log p for every k and every prior weight of the anchor, and at no other level."""

    def rare(data: Any, noise: Any, *log_q: Any, **options: Any) -> Any:
        return density.info_nce_anchor(data, noise, *log_q, nu=0.25, **options)

    for loss in (density.info_nce_anchor, rare):
        _, gradient = population(variant, loss, k, logs(P))
        assert_gradient(variant, gradient, [mpf(0)] * 3)
        _, gradient = population(variant, loss, k, logs(P, 1))
        assert min(gradient) > 0.01


@few_samples
def test_ranking_nce_learns_the_density_up_to_a_factor(variant: Variant, k: int) -> None:
    """Zero at s = log p + c for every k and c; without the noise's density at log p / q + c."""
    _, gradient = population(variant, density.ranking_nce, k, logs(P, mpf(3)))
    assert_gradient(variant, gradient, [mpf(0)] * 3)
    _, gradient = population(variant, density.sampled_softmax, k, logs(P, mpf(-2)))
    assert_gradient(variant, gradient, [mpf(0)] * 3)
    ratios = logs([p / q for p, q in zip(P, Q, strict=True)], mpf(1))
    _, gradient = population(variant, without_log_q, k, ratios)
    assert_gradient(variant, gradient, [mpf(0)] * 3)
    _, gradient = population(variant, without_log_q, k, logs(P))
    assert max(map(abs, gradient)) > 0.01
    _, gradient = population(variant, density.ranking_nce, k, S)
    assert abs(mp.fsum(gradient)) <= 64 * mpf(variant.eps())  # a constant added to all scores changes nothing


@exhaustive
def test_ranking_nce_comes_near_to_the_likelihood(variant: Variant) -> None:
    """The gradient tends to softmax(s) - p, by which that of the exact softmax is given; the rest falls like 1 / k."""
    softmax = [s - p for s, p in zip(oracles.shares([mpf(s) for s in S]), P, strict=True)]
    rests = []
    for k in (4, 8, 16):
        _, gradient = population(variant, density.ranking_nce, k, S)
        rests.append(max(abs(a - b) for a, b in zip(gradient, softmax, strict=True)))
    assert rests[2] < 0.03
    assert 0.4 < rests[1] / rests[0] < 0.6
    assert 0.45 < rests[2] / rests[1] < 0.55


def test_full_softmax_has_the_gradient_of_the_likelihood(variant: Variant) -> None:
    weights, targets = variant.floats(plain(variant, P)), variant.array([0, 1, 2])
    _, (gradient,) = differentiate(
        lambda s: density.full_softmax(s, targets, weights=weights, reduction="sum"), [variant.floats([S] * 3)]
    )
    by_value = [mp.fsum(column) for column in zip(*variant.to_list(gradient), strict=True)]
    wanted = [s - p for s, p in zip(oracles.shares([mpf(s) for s in S]), P, strict=True)]
    assert_gradient(variant, by_value, wanted)


@few_samples
def test_negative_sampling_learns_a_ratio(variant: Variant, k: int) -> None:
    """Zero at s = log p / q - log k, which is a density only where k q = 1."""
    ratios = logs([p / q for p, q in zip(P, Q, strict=True)], -mp.log(k))
    _, gradient = population(variant, negative_sampling, k, ratios)
    assert_gradient(variant, gradient, [mpf(0)] * 3)
    _, gradient = population(variant, negative_sampling, k, logs(P))
    assert max(map(abs, gradient)) > 0.01


@exhaustive
def test_negative_sampling_is_local_nce_where_k_q_is_one(variant: Variant) -> None:
    """As many samples as there are values, drawn from all alike; not with more of them, and not from others."""
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
    """E Z-hat = Z exactly, and E log Z-hat below log Z, the less so the more samples."""
    z = mp.fsum(mp.exp(s) for s in S)

    def estimate(samples: int) -> tuple[Any, Any]:
        drawn = [noise for _, x, noise in everything(samples, Q) if x == 0]
        shares = [probability / P[0] for probability, x, _ in everything(samples, Q) if x == 0]
        scores = variant.floats([[S[z] for z in noise] for noise in drawn])
        log_q = variant.floats(plain(variant, [[mp.log(Q[z]) for z in noise] for noise in drawn]))
        found = [mpf(value) for value in variant.to_list(density.log_partition(scores, log_q))]
        return (
            mp.fsum(share * mp.exp(value) for share, value in zip(shares, found, strict=True)),
            mp.fsum(share * value for share, value in zip(shares, found, strict=True)),
        )

    total, logarithm = estimate(k)
    assert abs(total - z) <= 64 * mpf(variant.eps())
    assert logarithm < estimate(k + 1)[1] < mp.log(z) - 0.01


def test_the_density_is_recovered(variant: Variant) -> None:
    """From log p / q plus any function of the context, in two contexts."""
    ratios = [logs([p / q for p, q in zip(P, Q, strict=True)], c) for c in (mpf(4), mpf(-30))]
    log_q = variant.floats(plain(variant, logs(Q)))
    found = density.recover_log_prob(variant.floats(plain(variant, ratios)), log_q)
    for row in variant.to_list(found):
        assert_gradient(variant, [mpf(value) for value in row], logs(P))
