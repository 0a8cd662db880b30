"""Edge cases of bounds, densities and diagnostics: extreme scores, masks, few rows, numbers for arrays, bad input."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from itertools import product
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp, mpf

from ..._core.namespace import namespace_of
from .. import oracles
from .._package import pnce
from ..cases import CASES, Case, sixteenths
from ..variants import EPS, ForeignArray, assert_belongs, differentiate, flatten
from .calls import arrays_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..variants import Nested, Variant

# Some calls are wrong on purpose; type checkers would reject them.
bounds: Any = pnce.bounds
density: Any = pnce.density
diagnostics: Any = pnce.diagnostics

# Overflow to infinity, of which NumPy warns.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

INF, NAN = math.inf, math.nan
DTYPES = ["float64", "float32", "float16", "bfloat16"]
LARGEST = {"float64": mpf(2) ** 1024, "float32": mpf(2) ** 128, "float16": mpf(65520), "bfloat16": mpf(2) ** 128}
"""Smallest magnitude that a dtype rounds to infinity."""

exhaustive = pytest.mark.exhaustive

K, N = 3, 4
BASELINE, LOG_MEAN, RATE = [-0.5, 1.5, 0.75], 0.5, 0.25
MATRIX, VECTOR, ROW = (sixteenths(shape, 3) for shape in ((K, N), (K,), (N,)))

NAMES = {case.name for case in CASES}
PLAIN = [
    case
    for case in CASES
    if case.regime == "normal" and not case.constants and f"{case.name} more columns than rows" not in NAMES
]
"""Cases without a mask; one if square and longer matrices have the same call."""

FIRST = {case.loss: case for case in reversed(CASES) if case.loss.startswith(("bounds.", "density.", "diagnostics."))}
"""One case of each function."""
BOUNDS = {loss: [case for case in PLAIN if case.loss == loss] for loss in FIRST if loss.startswith("bounds.")}
DENSITIES = {case.name.removeprefix("density."): case for case in PLAIN if "noise_scores" in case.arguments}
DENSITIES["sampled_softmax, no positive"] = replace(DENSITIES["sampled_softmax"], options={"include_positive": False})
for added in ("bounds.log_n_ceiling", "diagnostics.top_k_accuracy"):
    FIRST[added] = Case(name=added, loss=added, arguments={"scores": MATRIX})
LOSSES = [name for name in DENSITIES if name not in {"log_partition", "balance_penalty"}]


def computed_in(variant: Variant, dtype: str) -> float:
    """Machine epsilon of the arithmetic: that of float32 for 16 bits."""
    return variant.eps("float32" if "16" in dtype else dtype)


def results_of(variant: Variant, function: Callable[..., Any], *nested: Nested) -> list[Nested]:
    """Value and gradients of a function of float arrays."""
    value, slopes = differentiate(function, [variant.floats(x) for x in nested])
    return [variant.to_list(x) for x in (value, *slopes)]


def assert_no_nan(slopes: Nested) -> None:
    assert not any(mp.isnan(entry) for entry in flatten(slopes))


def assert_close(variant: Variant, got: Nested, wanted: Nested, *, scale: float, of: Any = "", dtype: str = "") -> None:
    """Compare numbers computed from others of a scale; overflow must be infinite, and nothing NaN."""
    dtype = dtype or variant.dtypes[0]
    tolerance = 4 * variant.eps(dtype) + 32 * computed_in(variant, dtype) * scale
    for a, b in zip(oracles.numbers_of(got), oracles.numbers_of(wanted), strict=True):
        if mp.isinf(b) or (variant.module != "mparray" and abs(b) >= LARGEST[dtype]):
            assert a == (INF if b > 0 else -INF), (of, a, b)
        else:
            assert abs(mpf(a) - b) <= tolerance * max(1, abs(b)), (of, a, b)


# --- extreme scores, few rows -----------------------------------------------------------------------------------------

PATTERNS: dict[str, Callable[[int, int], float]] = {
    "high": lambda _, __: 1.0,
    "low": lambda _, __: -1.0,
    "pairs high": lambda i, j: 1.0 if i == j else -1.0,
    "pairs low": lambda i, j: -1.0 if i == j else 1.0,
    "mixed": lambda i, j: -1.0 if (2 * i + 3 * j) % 5 < 2 else 1.0,
}


def extremes(case: Case, size: float) -> Iterator[tuple[str, Case]]:
    """Shift the scores of positives and of others, or of data and of noise, up and down."""
    given = case.arguments
    if "noise_scores" in given:
        for data, noise in product((1, -1), repeat=2):
            moved = {
                "data_scores": [s + data * size for s in given.get("data_scores", ())],
                "noise_scores": [
                    [s + noise * size * (-1) ** j for j, s in enumerate(x)] for x in given["noise_scores"]
                ],
            }
            yield f"data {data}, noise {noise}", replace(case, arguments={k: moved.get(k, x) for k, x in given.items()})
    elif isinstance(given["scores"][0], list):
        for name, sign in PATTERNS.items():
            scores = [[s + size * sign(i, j) for j, s in enumerate(row)] for i, row in enumerate(given["scores"])]
            yield name, replace(case, arguments={**given, "scores": scores})


def slopes_of_dual(scores: Nested, u: Nested) -> list[Nested]:
    """R (1_pos - W) / K, and -(1 - R) / K."""
    slopes = oracles.dual_score_gradient(scores, u)
    return [slopes, [row[i] - mpf(1) / len(scores) for i, row in enumerate(slopes)]]


def slopes_of_tuba(scores: Nested, log_baseline: Nested) -> list[Nested]:
    """1_pos / K - exp(g - log a) / M with M pairs off the diagonal, and minus the sums of the rows."""
    rows = len(scores)
    slopes = [
        [mpf(1) / rows if i == j else -mp.exp(s - a) / (rows * (len(row) - 1)) for j, s in enumerate(row)]
        for i, (row, a) in enumerate(zip(scores, oracles.of_each(log_baseline, rows), strict=True))
    ]
    by_row = [-mp.fsum(row) for row in slopes]
    return [slopes, by_row if isinstance(log_baseline, list) else mp.fsum(by_row)]


SLOPES: dict[str, Callable[..., Any]] = {
    "bounds.interpolated": lambda **_: (),
    "bounds.dual": slopes_of_dual,
    "bounds.flo": slopes_of_dual,
    "bounds.tuba": slopes_of_tuba,
    "bounds.nwj": lambda scores: slopes_of_tuba(scores, mpf(1))[:1],
    "bounds.js_mi": lambda scores: oracles.value_and_gradients("bounds.js", {"scores": scores}, {})[1].values(),
}
"""Closed-form gradients of bounds with values so large that differences would lose them.

Without the interpolated bound, whose gradients cancel.
"""


def exact_value_and_gradients(case: Case) -> list[Nested]:
    """Sum of the values, and its gradients."""
    with mp.workdps(oracles.DIGITS):
        if case.loss in SLOPES:
            arguments = {key: oracles.exact(nested) for key, nested in case.arguments.items()}
            return [oracles.evaluate(case.loss, arguments, case.options), *SLOPES[case.loss](**arguments)]
        value, gradients = oracles.case_value_and_gradients(case)
        return [mp.fsum(oracles.numbers_of(value)), *gradients.values()]


EXTREME = {**BOUNDS, **{name: [case] for name, case in DENSITIES.items()}}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [pytest.param(100.0, marks=exhaustive), 1e4])
@pytest.mark.parametrize("function", list(EXTREME))
def test_extreme_scores(variant: Variant, function: str, size: float, dtype: str) -> None:
    """Scores of ±100 and ±10 000: correct, or infinite on overflow."""
    for usual in EXTREME[function]:
        for pattern, case in extremes(usual, size):
            arrays = arrays_of(variant, case, dtype)
            value, slopes = differentiate(case.function, [*arrays.values()])
            assert_no_nan([variant.to_list(slope) for slope in slopes])
            held = replace(case, arguments={key: variant.to_list(x) for key, x in arrays.items()})
            for got, wanted in zip([value, *slopes], exact_value_and_gradients(held), strict=False):
                assert_close(variant, variant.to_list(got), wanted, scale=size, of=(case.name, pattern), dtype=dtype)


@exhaustive
@pytest.mark.parametrize("shape", [(1, 2), (1, 4), (2, 2), (2, 5)], ids=str)
@pytest.mark.parametrize("loss", list(BOUNDS))
def test_few_rows(variant: Variant, loss: str, shape: tuple[int, int]) -> None:
    """A single row with several columns, and the smallest batches."""
    columns = shape[1]
    rows = columns if loss == "bounds.leave_one_out" else shape[0]
    for usual in BOUNDS[loss]:
        few = {key: x[:rows] if isinstance(x, list) else x for key, x in usual.arguments.items()}
        if isinstance(few["scores"][0], list):
            few["scores"] = sixteenths((rows, columns), 6)
        case = replace(usual, arguments=few)
        value, *slopes = results_of(variant, case.function, *few.values())
        wanted, gradients = oracles.case_value_and_gradients(case)
        assert_close(variant, value, mp.fsum(oracles.numbers_of(wanted)), scale=4.0, of=case.name)
        for slope, exact in zip(slopes, gradients.values(), strict=True):
            assert oracles.error(slope, exact) <= max(64 * variant.eps(), 1e-44), case.name


# --- kind of the result -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_result_belongs_to_the_input(variant: Variant, dtype: str) -> None:
    """Results have the library, dtype and device of the scores, also in 16 bits and with plain numbers."""
    for case in FIRST.values():
        arrays = arrays_of(variant, case, dtype)
        assert_belongs(variant, case.call(arrays), next(iter(arrays.values())), ())
    data, noise = variant.floats(VECTOR, dtype), variant.floats(MATRIX, dtype)
    none = {"reduction": "none"}
    numbers = [bounds.tuba(noise, 0.5), bounds.barber_agakov(noise, 1.5), density.local_nce(data, noise, 0.5, noise)]
    numbers += [bounds.mine(noise)[1], bounds.mine(noise, noise[0, 0])[1]]
    rows = [density.log_partition(noise, -1.5), density.ranking_nce(data, noise, **none)]
    rows += [loss(data, noise, -1.5, -1.5, **none) for loss in (density.local_nce, density.info_nce_anchor)]
    rows += [density.full_softmax(noise, variant.array([0, 3, 1]), **none)]
    rows += [of(noise, **none) for of in (diagnostics.top_k_accuracy, diagnostics.effective_sample_size)]
    for results, shape in ((numbers, ()), (rows, (K,)), ([density.recover_log_prob(noise, -1.5)], (K, N))):
        for result in results:
            assert_belongs(variant, result, noise, shape)


# --- relations between bounds -----------------------------------------------------------------------------------------


def test_second_derivatives_of_a_log_partition(variant: Variant) -> None:
    """Also those of the largest score of a row, the limit of all others."""

    def total(x: Any) -> Any:
        return namespace_of(x).sum(x)

    def slope(scores: Any) -> Any:
        gradient = pnce.grad(lambda g: total(density.log_partition(g, 0.0)))(scores)
        return total(gradient * gradient)

    _, found = results_of(variant, slope, MATRIX)
    shares = [[mp.exp(mpf(s)) / mp.fsum(mp.exp(mpf(t)) for t in row) for s in row] for row in MATRIX]
    squares = [mp.fsum(p * p for p in row) for row in shares]
    wanted = [2 * p * (p - square) for row, square in zip(shares, squares, strict=True) for p in row]
    assert_close(variant, flatten(found), wanted, scale=1.0)


def test_interpolated_at_one_has_no_baseline(variant: Variant) -> None:
    value, _, slope = results_of(variant, lambda g, a: bounds.interpolated(g, 1.0, a), MATRIX, BASELINE)
    assert slope == [0.0] * K
    assert value == results_of(variant, lambda g, a: bounds.interpolated(g, 1.0, a), MATRIX, [-7.0] * K)[0]


def test_a_number_is_the_baseline_of_every_row(variant: Variant) -> None:
    scores, pairs = variant.floats(MATRIX), variant.floats(VECTOR)
    numbers = [0.75, *(variant.floats(nested) for nested in (0.75, [0.75], [0.75] * K))]
    for values in (
        [bounds.tuba(scores, a) for a in numbers],
        [bounds.interpolated(scores, 0.25, a) for a in numbers],
        [bounds.barber_agakov(pairs, entropy) for entropy in numbers[:3]],
    ):
        assert len({str(variant.to_list(value)) for value in values}) == 1


def test_an_anchor_of_no_weight_is_info_nce_of_one_column_less(variant: Variant) -> None:
    """It equals the mean over the omitted column."""
    nested = sixteenths((1, 4), 3)
    found = bounds.info_nce_anchor(variant.floats(nested), nu=1e-30)  # small, but visible in fifty digits
    left = [[s for j, s in enumerate(nested[0]) if j != m] for m in (1, 2, 3)]
    wanted = sum(oracles.evaluate("bounds.info_nce", {"scores": [row]}, {}) for row in left) / 3
    assert abs(variant.to_list(found) - wanted) <= 16 * variant.eps() + 4e-30


IMPOSSIBLE = [[0.5, -INF, -INF], [-INF, -1.0, -INF], [-INF, -INF, 0.25]]


# --- the state of mine ------------------------------------------------------------------------------------------------


def log_mean_of_others(nested: Nested) -> Any:
    """Log of the mean exponential off the diagonal."""
    others = [mp.exp(s) for i, row in enumerate(oracles.exact(nested)) for j, s in enumerate(row) if j != i]
    return mp.log(mp.fsum(others) / len(others))


@pytest.mark.parametrize("shift", [0.0, 2000.0], ids=["scores around 0", "scores around 2000"])
def test_state_of_mine_is_a_moving_average(variant: Variant, shift: float) -> None:
    """Five steps against the plain average of numbers around exp(2000), in mpmath."""
    state, average = None, None
    for step in range(5):
        nested = [[s + shift for s in row] for row in sixteenths((K, N), step)]
        scores = variant.floats(nested)
        value, state = bounds.mine(scores, state, rate=RATE)
        with mp.workdps(oracles.DIGITS):
            now = mp.exp(log_mean_of_others(nested))
            average = now if average is None else (1 - RATE) * average + RATE * now
            wanted = mp.log(average)
            assert abs(mpf(variant.to_list(state)) - wanted) <= 16 * variant.eps() * max(1, abs(wanted))
        rounding = 2 * variant.eps() * max(1, shift) if variant.library == "jax" else 0.0  # JAX compiles one of them
        assert abs(variant.to_list(value) - variant.to_list(bounds.dv(scores))) <= rounding
        assert_belongs(variant, state, scores, ())


def test_state_of_mine_is_a_constant(variant: Variant) -> None:
    _, *slopes = results_of(variant, lambda g, z: bounds.mine(g, z, rate=RATE)[1], MATRIX, [LOG_MEAN])
    assert flatten(slopes) == [0.0] * (K * N + 1)


def test_mine_forgets_at_its_rate(variant: Variant) -> None:
    """With a rate below 1 the old average contributes, with a rate of 1 it does not."""
    scores, now = variant.floats(MATRIX), mp.exp(log_mean_of_others(MATRIX))
    _, without = bounds.mine(variant.floats(IMPOSSIBLE))
    assert variant.to_list(without) == -INF
    for before, rate, average in (
        (3.0, 0.9375, mpf(1) / 16 * mp.exp(3) + mpf(15) / 16 * now),
        (without, 0.25, mpf(1) / 4 * now),
    ):
        value, state = bounds.mine(scores, before, rate=rate)
        assert abs(mpf(variant.to_list(state)) - mp.log(average)) <= 16 * variant.eps()
        assert mp.isfinite(variant.to_list(value))
    (_, state), (_, first) = bounds.mine(scores, variant.floats(25.0), rate=1.0), bounds.mine(scores)
    assert variant.to_list(state) == variant.to_list(first)


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_mine_keeps_its_state_where_no_row_counts(variant: Variant, rate: float) -> None:
    """A fully masked batch leaves the average unchanged."""
    scores, nothing = variant.floats(MATRIX), variant.array([[False] * N] * K)
    for before, kept in (((LOG_MEAN,), LOG_MEAN), ((), 0.0)):
        found = bounds.mine(scores, *before, rate=rate, mask=nothing)
        assert [variant.to_list(x) for x in found] == [0.0, kept]


# --- the critic, the ceiling and the error of bounds ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_dual_critic(variant: Variant, dtype: str) -> None:
    scores = variant.floats(sixteenths((3, 3), 0), dtype)
    critic = pnce.bounds.dual_critic(scores)
    assert_belongs(variant, critic, scores, (3,))
    wanted = oracles.evaluate("bounds.dual_critic", {"scores": variant.to_list(scores)}, {})
    assert oracles.error(variant.to_list(critic), wanted) <= 8 * variant.eps(dtype)


def test_log_n_ceiling(variant: Variant) -> None:
    """The ceiling of a bound, by the number of candidates or by a score matrix."""
    scores = variant.floats([[0.0] * 5] * 3)
    ceiling = pnce.bounds.log_n_ceiling(scores)
    assert oracles.error(float(ceiling), mp.log(5)) <= 2 * EPS["float64" if "float64" in variant.dtypes else "float32"]
    assert oracles.error(float(pnce.bounds.log_n_ceiling(5)), mp.log(5)) <= 2 * EPS["float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_standard_error(variant: Variant, dtype: str) -> None:
    """The jackknife over four pairs; 16-bit scores are computed in float32."""
    scores = variant.floats(sixteenths((4, 4), 5), dtype)
    error = pnce.bounds.standard_error(pnce.bounds.info_nce, scores)
    assert_belongs(variant, error, scores, ())
    rows = variant.to_list(scores)

    def bound(kept: list[int]) -> Any:
        return oracles.evaluate("bounds.info_nce", {"scores": [[rows[i][j] for j in kept] for i in kept]}, {})

    with mp.workdps(oracles.DIGITS):
        left = [bound([i for i in range(4) if i != deleted]) for deleted in range(4)]
        mean = sum(left) / 4
        wanted = mp.sqrt(mp.mpf(3) / 4 * sum((value - mean) ** 2 for value in left))
    tolerance = variant.eps(dtype) if "16" in dtype else 64 * variant.eps(dtype)
    assert oracles.error(variant.to_list(error), wanted) <= tolerance


# --- scores of minus infinity -----------------------------------------------------------------------------------------


DIVIDED_BY_NOTHING = {"bounds.fdv": mp.log(3), "bounds.mine": mpf(INF), "bounds.leave_one_out": mpf(INF)}
"""Bounds with all negatives at -inf that the oracle cannot evaluate."""


def test_negatives_that_cannot_happen(variant: Variant) -> None:
    """If every negative is -inf, the value follows the definition, and no gradient is NaN."""
    for usual in (*PLAIN, FIRST["bounds.smile"]):
        if not usual.loss.startswith(("bounds.", "diagnostics.headroom")) or usual.options.get("alpha") == 1.0:
            continue  # at 1 there is no baseline, and the pairs are compared with nothing
        case = replace(usual, arguments={**usual.arguments, "scores": IMPOSSIBLE})
        wanted = DIVIDED_BY_NOTHING.get(case.loss) or oracles.evaluate(case.loss, case.arguments, case.options)
        value, *slopes = results_of(variant, case.function, *case.arguments.values())
        assert_close(variant, value, mp.fsum(oracles.numbers_of(wanted)), scale=2.0, of=case.name)
        assert_no_nan(slopes)


def test_a_pair_that_cannot_happen(variant: Variant) -> None:
    """If the score of a positive is -inf, so are these estimates."""
    scores = variant.floats([[-INF if i == j == 1 else s for j, s in enumerate(row)] for i, row in enumerate(MATRIX)])
    for name in ("info_nce", "info_nce_anchor", "fdv", "dv", "nwj", "js_mi", "smile", "js", "tuba", "barber_agakov"):
        options = {"tuba": [0.5], "barber_agakov": [1.5]}.get(name, [])
        assert variant.to_list(getattr(bounds, name)(scores, *options)) == -INF, name
    assert variant.to_list(diagnostics.headroom(scores)) == INF
    assert variant.to_list(bounds.dual_critic(scores))[1] == INF


ODD_SCORES: dict[str, dict[tuple[int, int], float]] = {
    "a positive that cannot happen": {(1, 1): -INF},
    "negatives that cannot happen": {(1, 0): -INF, (2, 3): -INF},
    "a row that cannot happen": dict.fromkeys(product([1], range(N)), -INF),
    "rows that cannot happen, but for a positive": {(i, j): -INF for i in range(K) for j in range(N) if i != j},
    "a positive of inf": {(1, 1): INF},
    "a negative of inf": {(1, 0): INF},
    "a row of inf": dict.fromkeys(product([1], range(N)), INF),
    "a positive and a negative": {(0, 0): -INF, (0, 1): INF, (2, 2): INF, (2, 3): -INF},
    "a positive of NaN": {(1, 1): NAN},
    "a negative of NaN": {(1, 0): NAN},
}
"""Entries of a matrix that are not finite."""


def log_odds(row: list[Any], i: int) -> Any:
    """Of the others against entry i: -inf if all others are, else inf if entry i is; equal infinities cancel."""
    others = [x for j, x in enumerate(row) if j != i]
    if any(map(mp.isnan, row)):
        return mpf(NAN)
    if all(x == -INF for x in others):
        return mpf(-INF)
    top = max(others)
    if INF in {top, row[i]}:
        return mpf(0) if top == row[i] else top - row[i]
    return mp.log(mp.fsum(map(mp.exp, others))) - row[i]


def slopes_of_odds(row: list[Any], i: int, *, include: bool) -> list[Any] | None:
    """Slopes of the log-odds u or, to `include` the positive, of log(1 + e^u); None where these are not finite."""
    u = log_odds(row, i)
    if not mp.isfinite(u) or INF in row:
        return None
    total = mp.fsum(mp.exp(x) for j, x in enumerate(row) if j != i)
    return [(1 / (1 + mp.exp(-u)) if include else 1) * (-1 if j == i else mp.exp(x) / total) for j, x in enumerate(row)]


EVERY_ROW: dict[str, tuple[Callable[..., Any], int, bool, bool]] = {
    "info_nce": (partial(bounds.info_nce, reduction="none"), -1, True, True),
    "fdv": (partial(bounds.fdv, reduction="none"), -1, True, False),
    "leave_one_out": (lambda g: bounds.leave_one_out(turned(g), reduction="none"), -1, False, False),
    "dual_critic": (bounds.dual_critic, 1, False, False),
    "dual_critic, positive": (partial(bounds.dual_critic, include_positive=True), 1, True, True),
}
"""Bounds of log-odds: terms, sign, and whether value and gradient include the positive."""


def turned(scores: Any) -> Any:
    """Square matrix with the rows of `scores` as columns; further columns are left out."""
    return namespace_of(scores).matrix_transpose(scores[:, :K])


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("odd", ODD_SCORES)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_score_of_a_bound_that_is_not_finite_changes_its_row_alone(variant: Variant, odd: str, dtype: str) -> None:
    """A score of -inf is no mask: the row counts, and its term is the limit of the formula."""
    changed = ODD_SCORES[odd]
    given = variant.floats([[changed.get((i, j), s) for j, s in enumerate(row)] for i, row in enumerate(MATRIX)], dtype)
    for name, (function, sign, in_value, in_slope) in EVERY_ROW.items():
        columns, close = K if name == "leave_one_out" else N, partial(assert_close, variant, scale=4.0, dtype=dtype)
        values = variant.to_list(function(given))
        _, (slopes,) = differentiate(lambda g, f=function: namespace_of(g).sum(f(g)), [given])
        exact = [[mpf(x) for x in row[:columns]] for row in variant.to_list(given)]
        for i, (row, value, found) in enumerate(zip(exact, values, variant.to_list(slopes), strict=True)):
            with mp.workdps(oracles.DIGITS):
                u = log_odds(row, i)
                odds = mpf(0) if in_value and u == -INF else u + mp.log1p(mp.exp(-u)) if in_value else u
                wanted = sign * (odds - mp.log(columns if in_value else columns - 1))
                of_row = slopes_of_odds(row, i, include=in_slope)
            if mp.isnan(wanted):
                assert mp.isnan(value), (name, i)
                continue
            close(value, wanted, of=(name, i))
            assert_no_nan(found)
            if of_row is not None:
                close(found[:columns], [sign * x for x in of_row], of=(name, i))


# --- densities --------------------------------------------------------------------------------------------------------


def masked_call(case: Case, mask: Any, **options: Any) -> Callable[..., Any]:
    """Density loss of a case as a function of its arrays."""
    call = case.bound(**options)
    return lambda *arrays: call({**dict(zip(case.arguments, arrays, strict=True)), "mask": mask})


@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract:RuntimeWarning")  # from masked infinities
@pytest.mark.parametrize("dirt", [*(pytest.param(x, marks=exhaustive) for x in (INF, -INF)), NAN])
def test_masked_samples_may_hold_anything(variant: Variant, dirt: float) -> None:
    """Scores and densities of masked samples affect neither value nor gradients."""
    mask = [[True, False, True, True], [False, True, True, True], [True, True, False, False]]
    masked = variant.array(mask)

    def filled(matrix: Nested, filling: float) -> Nested:
        return [[s if m else filling for s, m in zip(*rows, strict=True)] for rows in zip(matrix, mask, strict=True)]

    for name, case in DENSITIES.items():
        clean, dirty = (
            {key: filled(x, filling) if key.startswith("noise") else x for key, x in case.arguments.items()}
            for filling in (0.0, dirt)
        )
        function = masked_call(case, masked)
        assert results_of(variant, function, *dirty.values()) == results_of(variant, function, *clean.values()), name


def test_no_sample_takes_part(variant: Variant) -> None:
    """Without noise samples the loss is 0, unless it classifies the data alone or divides by them."""
    mask = variant.array([[False] * N, [True] * N, [False] * N])
    left = {
        "negative_sampling": [mp.log(1 + mp.exp(-s)) for s in DENSITIES["negative_sampling"].arguments["data_scores"]],
        "sampled_softmax": [-mpf(q) for q in DENSITIES["sampled_softmax"].arguments["data_log_q"]],
    }
    for name in LOSSES:
        arrays = [*arrays_of(variant, DENSITIES[name]).values()]
        losses = variant.to_list(masked_call(DENSITIES[name], mask, reduction="none")(*arrays))
        assert_close(variant, losses[::2], left.get(name, [mpf(0)] * K)[::2], scale=1.0, of=name)
        _, *slopes = results_of(variant, masked_call(DENSITIES[name], mask), *DENSITIES[name].arguments.values())
        assert_no_nan(slopes)
        if name in {"local_nce", "ranking_nce"}:
            assert [slope[0] for slope in slopes] == [0.0, [0.0] * N, 0.0, [0.0] * N], name


def test_a_number_is_the_density_of_all(variant: Variant) -> None:
    """A number, one density per column and one per sample give the same result if they are equal."""
    samples = [-1.25, variant.floats([-1.25] * N), variant.floats([[-1.25] * N] * K)]
    columns = [variant.floats(ROW), variant.floats([ROW] * K)]
    for name, case in DENSITIES.items():
        arrays = arrays_of(variant, case)
        numbers = {key: -1.25 for key in arrays if key.endswith("log_q")}
        own = {key: variant.floats([-1.25] * K) for key in numbers if key == "data_log_q"}
        alike = [numbers, *({**own, "noise_log_q": q} for q in samples)]
        for same in (alike, [{**own, "noise_log_q": q} for q in columns]) if numbers else ():
            values = [variant.to_list(case.call({**arrays, **log_q})) for log_q in same]
            assert values == values[:1] * len(values), name


@exhaustive
def test_reductions_of_densities(variant: Variant) -> None:
    """Weighted losses, their sum, and the sum divided by that of the weights."""
    weights = [0.5, 0.0, 2.0]
    for name in LOSSES:
        call, arrays = DENSITIES[name].call, arrays_of(variant, DENSITIES[name])
        plain = variant.to_list(call(arrays, reduction="none"))
        wanted = [w * mpf(x) for w, x in zip(weights, plain, strict=True)]
        arrays["weights"] = variant.floats(weights)
        tolerance, total = 16 * variant.eps() * max(map(abs, wanted)), mp.fsum(wanted)
        for reduction, numbers in {"none": wanted, "sum": [total], "mean": [total / mpf(2.5)]}.items():
            found = oracles.numbers_of(variant.to_list(call(arrays, reduction=reduction)))
            assert all(abs(a - b) <= tolerance for a, b in zip(found, numbers, strict=True)), (name, reduction)


def test_samples_of_minus_infinity(variant: Variant) -> None:
    """Noise with score -inf is classified with certainty, and adds 0 to Z."""
    nested = sixteenths((K, N), 6)
    without = [[-INF if j == 1 else s for j, s in enumerate(row)] for row in nested]
    mask, noise = variant.array([[j != 1 for j in range(N)]] * K), variant.floats(without)
    found = results_of(variant, lambda d, s: density.ranking_nce(d, s, -1.5, -1.5), VECTOR, without)
    masked = partial(density.ranking_nce, data_log_q=-1.5, noise_log_q=-1.5, mask=mask)
    assert found == results_of(variant, masked, VECTOR, nested)
    total = variant.to_list(density.log_partition(noise, -1.5))
    kept = variant.to_list(density.log_partition(variant.floats(nested), -1.5, mask=mask))  # of three, not of four
    assert_close(variant, kept, [mpf(z) + mp.log(mpf(4) / 3) for z in total], scale=0.375)
    assert_no_nan(results_of(variant, lambda d, s: density.local_nce(d, s, -1.5, -1.5), VECTOR, without)[1:])
    assert variant.to_list(density.log_partition(variant.floats([[-INF, -INF]]), 0.0)) == [-INF]


@pytest.mark.parametrize("ahead", [40.0, -40.0])
def test_no_slope_of_sampled_softmax_cancels(variant: Variant, ahead: float) -> None:
    """The gradients -σ(u) by the score and -σ(-u) by log q, with log-odds u of the samples, have all digits."""
    nested = [0.5 - ahead], [[0.5, 0.5]], [-1.0], [[-1.0] * 2]
    _, by_score, _, by_density, _ = results_of(variant, density.sampled_softmax, *nested)
    odds = ahead + mp.log(2)
    for slope, u in ((by_score, odds), (by_density, -odds)):
        wanted = -1 / (1 + mp.exp(-u))
        assert abs(slope[0] / wanted - 1) <= 128 * variant.eps()


def test_a_context_without_samples_is_left_out(variant: Variant) -> None:
    mask = variant.array([[True] * 4, [False] * 4, [True] * 4])

    def loss(data_scores: Any, noise_scores: Any, *, mask: Any = None) -> Any:
        return density.sampled_softmax(data_scores, noise_scores, None, -1.0, include_positive=False, mask=mask)

    found = results_of(variant, partial(loss, mask=mask), VECTOR, MATRIX)
    wanted = results_of(variant, loss, VECTOR[::2], MATRIX[::2])
    assert not any(flatten([slope[1] for slope in found[1:]]))
    for got, kept in zip([found[0], *(slope[::2] for slope in found[1:])], wanted, strict=True):
        assert_close(variant, got, oracles.exact(kept), scale=0.875)


def test_self_normalization_of_a_normalised_model(variant: Variant) -> None:
    rows = variant.floats(MATRIX)
    normalised = density.recover_log_prob(rows, 0.0)
    found = density.self_normalization(normalised)
    assert found._fields == ("mean", "std", "effective_sample_size")
    mean, std, size = map(variant.to_list, found)
    assert max(abs(mean), abs(std)) <= 8 * variant.eps()
    assert size == N
    # Samples from the model itself have equal weights, and the estimate is exactly Z = 1.
    for mask, size in ((None, N), (variant.array([[True, True, True, False]] * K), 3)):
        sampled = density.self_normalization(normalised, normalised, mask=mask)
        assert [variant.to_list(x) for x in sampled] == [0.0, 0.0, size]


@pytest.mark.parametrize("log_q", [None, -1.5], ids=["all values", "samples"])
def test_self_normalization_is_of_contexts_with_samples(variant: Variant, log_q: float | None) -> None:
    """Contexts without samples do not count."""
    nested = [[1.0, 2.0, 0.0], [-INF, -INF, -INF], [0.0, 3.0, 1.0], [0.5, -1.0, 1.5]]
    mask = variant.array([[True] * 3, [True] * 3, [False] * 3, [True, True, False]])
    found = density.self_normalization(variant.floats(nested), log_q, mask=mask)
    kept = {"scores": nested[::3], "log_q": log_q and [log_q] * 3, "mask": [[True] * 3, [True, True, False]]}
    wanted = [oracles.evaluate("density.self_normalization", kept, {"field": field}) for field in found._fields]
    assert oracles.error([variant.to_list(x) for x in found], wanted) <= 32 * variant.eps()
    nothing = density.self_normalization(variant.floats(nested[1:2]), log_q)
    assert [variant.to_list(x) for x in nothing] == [0.0, 0.0, 0.0]


def test_self_normalization_says_how_few_samples_carry_it(variant: Variant) -> None:
    scores = variant.floats([[200.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    found = density.self_normalization(scores, -1.0)
    assert abs(variant.to_list(found.effective_sample_size) - 2.5) <= 8 * variant.eps()


def test_recovered_probabilities_sum_to_one(variant: Variant) -> None:
    """Also for scores of 10 000 and for values without noise mass."""
    scores = variant.floats([[1e4, 1e4 - 1.0, -1e4], [-1e4, 0.0, 1.0]])
    got = variant.to_list(density.recover_log_prob(scores, variant.floats([-1.0, -1.0, -INF])))
    for row, first in zip(got, (1 / (1 + mp.exp(-1)), mpf(0)), strict=True):
        assert row[2] == -INF
        assert abs(mp.exp(row[0]) - first) <= 8 * variant.eps()
        assert abs(mp.fsum(mp.exp(x) for x in row) - 1) <= 8 * variant.eps()
    nothing = density.recover_log_prob(variant.floats([[-INF, -INF], [0.0, -INF]]), 0.5)
    assert variant.to_list(nothing) == [[-INF, -INF], [0.0, -INF]]


# --- diagnostics ------------------------------------------------------------------------------------------------------


def test_alignment_of_the_same_directions_is_zero(variant: Variant) -> None:
    """Independent of the lengths, with gradient 0 at the kink of the distance."""
    for power in (1.0, 2.0, 3.0):
        alignment = partial(diagnostics.alignment, power=power)
        found = results_of(variant, lambda a, of=alignment: of(a, a * 2.0), [[3.0, 4.0], [0.0, -2.0], [1.0, 0.0]])
        assert flatten(found) == [0.0] * 7


def test_a_zero_vector_is_as_far_from_a_unit_vector_in_both_diagnostics(variant: Variant) -> None:
    """Nothing is NaN for vectors without a direction."""
    nothing, unit = [0.0, 0.0], [0.0, 2.0]
    for function, nested, wanted in (
        (lambda a: diagnostics.alignment(a, variant.floats([unit, unit])), [nothing, nothing], 1.0),
        (diagnostics.uniformity, [nothing, unit], -2.0),
        (lambda a: diagnostics.alignment(a, a * 0.0), [nothing, nothing], 0.0),
        (diagnostics.uniformity, [nothing, nothing], 0.0),
    ):
        value, slope = results_of(variant, function, nested)
        assert_close(variant, value, mpf(wanted), scale=0.125)
        assert all(mp.isfinite(s) for s in flatten(slope))


@pytest.mark.parametrize("dtype", DTYPES)
def test_uniformity_of_a_collapse_is_zero(variant: Variant, dtype: str) -> None:
    value, (slope,) = differentiate(diagnostics.uniformity, [variant.floats([[0.5, -1.0, 2.0]] * 4, dtype)])
    largest = max(map(abs, flatten([variant.to_list(value), variant.to_list(slope)])))
    assert largest <= 16 * computed_in(variant, dtype)


@exhaustive
def test_uniformity_streamed(variant: Variant) -> None:
    """Value and gradient do not depend on the tiles, also if the last one is smaller."""
    wanted = results_of(variant, partial(diagnostics.uniformity, block_size=None), sixteenths((5, 3), 3))
    for size in (1, 2, 3, "auto"):
        found = results_of(variant, partial(diagnostics.uniformity, block_size=size), sixteenths((5, 3), 3))
        assert_close(variant, found, oracles.exact(wanted), scale=0.375, of=size)


@exhaustive
def test_uniformity_far_below_underflow(variant: Variant) -> None:
    """Two opposite points at t = 500: the log of exp(-2000) is finite."""
    value, slope = results_of(variant, partial(diagnostics.uniformity, t=500.0), [[1.0, 0.0], [-1.0, 0.0]])
    assert value == -2000.0
    assert all(mp.isfinite(s) for s in flatten(slope))


@pytest.mark.filterwarnings("ignore:k. expected at most")
def test_top_k_accuracy_counts_ties_and_nan_as_misses(variant: Variant) -> None:
    """A positive among the k highest counts; ties and NaN count against it."""

    def accuracy(nested: Nested, **options: Any) -> Any:
        return variant.to_list(diagnostics.top_k_accuracy(variant.floats(nested), **options))

    ranked = [[4.0, 1.0, 2.0, 3.0], *([[4.0, 3.0, 2.0, 1.0]] * 3)]  # positives of rank 1, 2, 3 and 4
    for k, wanted in enumerate([0.25, 0.5, 0.75, 1.0, 1.0, 1.0], start=1):
        assert accuracy(ranked, k=k) == wanted
        assert accuracy(ranked, k=k, reduction="none") == [float(rank <= k) for rank in (1, 2, 3, 4)]
    assert accuracy(ranked, k=10**30) == 1.0  # larger than any integer dtype
    assert accuracy(ranked, weights=variant.floats([1.0, 0.0, 0.0, 3.0])) == 0.25
    assert [accuracy([[1.0] * N] * K, k=k) for k in (1, N - 1, N)] == [0.0, 0.0, 1.0]  # collapsed model
    assert accuracy([[1.0, 1.0, 0.0], [0.0, 1.0, 0.5]], reduction="none") == [0.0, 1.0]
    assert accuracy([[NAN] * N] * K) == 0.0
    assert accuracy([[1.0, NAN, 0.0], [0.0, 1.0, 0.0]], reduction="none") == [0.0, 1.0]
    # The best of several positives counts; rows without positives and masked negatives do not.
    nested = [[3.0, 1.0, 2.0], [0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]
    positives = variant.array([[False, True, True], [True, True, False], [False, False, False]])
    mask = variant.array([[False, True, True], [True] * 3, [True] * 3])
    assert [accuracy(nested, positives=positives, k=k) for k in (1, 2)] == [0.0, 1.0]
    assert accuracy(nested, positives=positives, mask=mask) == 0.5
    assert accuracy(nested, positives=variant.array([0, 2, 1])) == pytest.approx(2 / 3)


def test_top_k_has_no_gradient(variant: Variant) -> None:
    scores = variant.floats(MATRIX)
    value, (slope,) = differentiate(diagnostics.top_k_accuracy, [scores])
    assert variant.to_list(value) == variant.to_list(diagnostics.top_k_accuracy(scores))
    assert flatten(variant.to_list(slope)) == [0.0] * (K * N)
    assert_belongs(variant, slope, scores, (K, N))


@pytest.mark.parametrize("normalized", [False, True])
def test_rows_without_negatives_have_no_effective_sample_size(variant: Variant, *, normalized: bool) -> None:
    """They do not count; a negative of -inf is treated as masked."""
    rows = [[0.5, 2.0, 2.0, 2.0], [1.0, 0.5, -INF, 1.0], [1.0, 1.0, 1.0, 1.0]]
    scores, mask = variant.floats(rows), variant.array([[True] * 4, [True] * 4, [False] * 4])
    size = partial(diagnostics.effective_sample_size, normalized=normalized)
    wanted = [1.0, 1.0] if normalized else [3.0, 2.0]
    assert variant.to_list(size(scores, mask=mask, reduction="none")) == [*wanted, 0.0]
    assert variant.to_list(size(scores, mask=mask)) == sum(wanted) / 2
    assert variant.to_list(size(variant.floats([[1.0]]))) == 0.0


def test_one_column_says_nothing(variant: Variant) -> None:
    """With one column there are no negatives: the bound and its ceiling log 1 are 0."""
    scores = variant.floats([[3.0]])
    assert variant.to_list(bounds.info_nce(scores)) == 0.0
    assert variant.to_list(diagnostics.headroom(scores)) == 0.0
    assert variant.to_list(bounds.log_n_ceiling(scores)) == bounds.log_n_ceiling(1) == 0.0
    assert variant.to_list(bounds.barber_agakov(scores, 1.5)) == 4.5


@pytest.mark.parametrize("block_size", ["auto", None, 3])
def test_top_k_is_a_stable_sort(variant: Variant, block_size: Any) -> None:
    """Equal scores are ordered by index, for every block size; excluded keys and scores of -inf are skipped."""
    query, key = [[1.0, 0.0], [0.0, 1.0]], [[2.0, 1.0], [3.0, -1.0], [2.0, 1.0], [3.0, 4.0], [0.0, 4.0], [-1.0, 2.0]]
    scores = [[sum(a * b for a, b in zip(q, d, strict=True)) for d in key] for q in query]
    arrays = [variant.floats(query), variant.floats(key)]
    order = [sorted(range(6), key=lambda j: (-row[j], j)) for row in scores]
    options = {"similarity": "dot", "block_size": block_size}
    found = diagnostics.top_k(*arrays, 4, **options)
    assert variant.to_list(found.indices) == [row[:4] for row in order]
    assert variant.to_list(found.scores) == [
        [row[j] for j in best[:4]] for row, best in zip(scores, order, strict=True)
    ]
    without = diagnostics.top_k(*arrays, 3, exclude=variant.array([[3, 1, -1], [4, 3, 3]]), **options)
    kept = [[j for j in row if j not in left] for row, left in zip(order, ({3, 1}, {4, 3}), strict=True)]
    assert variant.to_list(without.indices) == [row[:3] for row in kept]
    few = diagnostics.top_k(*arrays, 6, exclude=variant.array([3, 4]), **options)
    assert [row[5] for row in variant.to_list(few.indices)] == [-1, -1]
    assert [row[5] for row in variant.to_list(few.scores)] == [-INF, -INF]


# --- bad input --------------------------------------------------------------------------------------------------------


FOREIGN = ForeignArray([1.0] * K)
LISTED, TRUTHS, INTEGERS = tuple([1.0] * K), [[True] * K] * K, [1] * K
NEGATIVES = "fdv dv nwj js js_mi smile club mine"
SCORES = f"bounds.info_nce bounds.info_nce_anchor {NEGATIVES}"
NO_MATRIX = "expected a K × N matrix of scores, for example critic(x, y), with at least as many columns as rows and the"
NO_ARRAY = "expected an array (NumPy, PyTorch, JAX, CuPy or another array-API library), got"
NO_NUMBER = "expected a number or an array of one entry, got"
NO_FLOATS = "expected a real floating-point dtype of 16 bits or more, got"
NO_NEGATIVE = "expected at least 2 columns, got shape (1, 1): there is no negative"
NOT_BOTH = "expected the log-density of the noise as in the other argument, or None in both; got None"
FOUR, THREE = "expected shape (4,), got (3,)", "expected shape (3,), got"
ABOVE_0 = "expected a finite number greater than 0, got"

# Errors of a single array, such as a list, are tested in test_bad_input for all functions.
WRONG_VALUES: list[tuple[Any, str, str]] = [
    ([VECTOR] * N, NO_MATRIX, f"{SCORES} barber_agakov top_k_accuracy scores"),
    ([[0.5]], NO_NEGATIVE, f"bounds.info_nce_anchor {NEGATIVES} leave_one_out scores"),
    (MATRIX, "expected a square matrix, got shape (3, 4)", "leave_one_out scores"),
    (VECTOR, "expected shape (N, K), got (3,)", f"{SCORES} headroom scores"),
    (VECTOR, "expected shape (N, k), got (3,)", "local_nce noise_scores, recover_log_prob scores"),
    (VECTOR, "expected shape (N, V), got (3,)", "full_softmax scores"),
    (VECTOR, "expected shape (N, D), got (3,)", "alignment x"),
    (VECTOR, FOUR, "local_nce log_partition noise_log_q, recover_log_prob self_normalization log_q"),
    (VECTOR, f"{NO_NUMBER} shape (3,)", "mine log_mean, barber_agakov entropy"),
    ({"log_mean": VECTOR, "rate": 1.0}, f"{NO_NUMBER} shape (3,)", "mine log_mean"),
    (VECTOR[:2], f"{THREE} (2,)", "flo u, tuba log_baseline, vub log_marginal, local_nce data_scores"),
    (MATRIX, f"{NO_NUMBER} shape (3, 4)", "tuba log_baseline"),
    (ROW, f"{THREE} (4,)", "interpolated log_baseline, local_nce data_log_q, local_nce effective_sample_size weights"),
    ([VECTOR] * N, "expected shape (3, 4), got (4, 3)", "local_nce noise_log_q"),
    (TRUTHS, "expected shape (3, 4), got (3, 3)", "local_nce full_softmax mask"),
    ([], "expected at least one entry along every axis of (K), got shape (0,)", "barber_agakov scores"),
    ([[]] * K, "expected at least one entry along every axis of (N, k), got shape (3, 0)", "local_nce noise_scores"),
    ([ROW], "expected at least 2 rows, got 1: there is no pair", "uniformity x"),
    (
        0.0,
        f"{ABOVE_0} 0.0",
        "bounds.info_nce_anchor density.info_nce_anchor nu, mine rate, smile clip, alignment power",
    ),
    (-1.0, f"{ABOVE_0} -1.0", "smile clip, uniformity t"),
    (-1.0, f"{ABOVE_0} -1.0", "nre_c gamma"),
    (NAN, f"{ABOVE_0} nan", "nre_c gamma"),
    (INF, f"{ABOVE_0} inf", "bounds.info_nce_anchor nu"),
    (INF, "expected a finite number, got inf", "tuba log_baseline, local_nce noise_log_q"),
    (NAN, "expected a finite number, got nan", "interpolated alpha, local_nce data_log_q"),
    (1.5, "expected a number in [0, 1], got 1.5", "interpolated alpha"),
    (-0.5, "expected a number in [0, 1], got -0.5", "interpolated alpha"),
    (1.5, "expected a number in (0, 1], got 1.5", "mine rate"),
    (0, "expected at least one column, got 0", "log_n_ceiling scores"),
    ({"scores": N, "mask": TRUTHS}, "expected None with a number of columns", "log_n_ceiling mask"),
    ({"scores": N, "positives": INTEGERS}, "expected None with a number", "log_n_ceiling positives"),
    (0, "expected at least 1, got 0", "top_k_accuracy k"),
    (0, 'expected a positive integer, "auto" or None, got 0', "uniformity block_size"),
    ("5", "expected one of 'bound', 'plug_in', got '5'", "bounds.info_nce_anchor form"),
    ("5", "expected one of 'mean', 'sum', 'none', got '5'", "local_nce top_k_accuracy reduction"),
]
"""The value (a list as an array), the error after the argument's name, and functions with the argument.

A dictionary has values of several arguments.
"""

WRONG_KINDS: list[tuple[Any, str, str]] = [
    (LISTED, f"{NO_ARRAY} tuple", f"{SCORES} leave_one_out barber_agakov self_normalization scores"),
    (LISTED, f"{NO_NUMBER} tuple", "tuba log_baseline, barber_agakov entropy"),
    (None, f"{NO_NUMBER} NoneType", "tuba log_baseline, barber_agakov entropy"),
    (None, f"{NO_ARRAY} NoneType", "local_nce data_scores, local_nce noise_scores, local_nce data_log_q"),
    (None, f"{NO_ARRAY} NoneType", "local_nce sampled_softmax log_partition noise_log_q, recover_log_prob log_q"),
    (None, "expected a number or an array with include_positive, got None", "sampled_softmax data_log_q"),
    (1.0, f"{NO_ARRAY} float; options are keywords", "flo u, vub log_marginal, log_partition noise_scores"),
    (1.0, f"{NO_ARRAY} float; options are keywords", "local_nce data_scores, local_nce noise_scores"),
    ([[1, 2], [3, 4]], NO_FLOATS, f"{SCORES} scores, uniformity x"),
    (INTEGERS, NO_FLOATS, "tuba log_baseline, barber_agakov scores, vub log_marginal"),
    (FOREIGN, "expected an array of the same library as scores, got", "flo u, tuba log_baseline"),
    (FOREIGN, "expected an array of the same library as data_scores, got", "local_nce noise_scores"),
    (methodcaller("floats", 0.5), "expected a number, got", "interpolated alpha"),
    (VECTOR, "expected a number, got", "density.info_nce_anchor nu, nre_c gamma"),
    (True, "expected a number, got bool", "interpolated alpha"),
    ("5", "expected a number, got str", "mine rate, smile clip, alignment power"),
    (MATRIX, "expected a boolean array (True keeps a pair), got dtype", "local_nce mask"),
    (VECTOR, "expected an integer dtype, got", "full_softmax targets"),
    ({"data_log_q": 0.0}, NOT_BOTH, "ranking_nce noise_log_q"),
    ({"noise_log_q": ROW}, NOT_BOTH, "ranking_nce data_log_q"),
]


def refusal(variant: Variant, function: str, **wrong: Any) -> str:
    """Call a function of the table with an invalid value; return the error."""
    case = next(case for loss, case in FIRST.items() if f".{loss}".endswith(f".{function}"))
    made = {k: variant.array(x) if isinstance(x, list) else x(variant) if callable(x) else x for k, x in wrong.items()}
    try:
        case.call({**arrays_of(variant, case), **made})
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize("error", ["ValueError", "TypeError"])
def test_wrong_arguments(variant: Variant, error: str) -> None:
    for wrong, words, calls in WRONG_VALUES if error == "ValueError" else WRONG_KINDS:
        for *functions, argument in map(str.split, calls.split(", ")):
            for function in functions:
                said = refusal(variant, function, **(wrong if isinstance(wrong, dict) else {argument: wrong}))
                assert said.startswith(f"{error}: {argument}: {words}"), (function, wrong)
                assert ", got " in said or words == NOT_BOTH, (function, wrong)


@pytest.mark.two_devices
def test_arrays_on_two_devices_are_refused(variant: Variant) -> None:
    """Arrays on two devices raise an error; none is moved."""
    for function, name in (("flo", "u"), ("tuba", "log_baseline"), ("local_nce", "data_log_q")):
        said = refusal(variant, function, **{name: lambda v: v.array([0.5] * K, device=v.other_device)})
        assert re.match(f"ValueError: {name}: expected.*device.*got", said), (function, said)


def test_arrays_of_two_dtypes_are_refused_or_upcast(variant: Variant) -> None:
    """float32 and float64 raise an error; 16 bits with float32 are computed in float32."""
    own = variant.dtypes[0]
    for other in {*variant.dtypes, *variant.further_dtypes} & {"float32", "float16"} - {own}:
        narrow = variant.floats(VECTOR, other)
        for function, name, words in (
            ("flo", "u", "u: expected the dtype of scores"),
            ("vub", "log_marginal", "log_marginal: expected the dtype of scores"),
            ("local_nce", "data_scores", "noise_scores: expected the dtype of data_scores"),
        ):
            said = refusal(variant, function, **{name: narrow})
            fits = "nothing" if {other, own} == {"float16", "float32"} else f"TypeError: {words}.*got"
            assert re.match(fits, said), (function, said)
