"""Bounds, density losses and diagnostics at the edge: extreme scores, masks, few rows, numbers for arrays, bad input.

The gradient column of the table of bounds is spelled out here in mpmath, and holds at a hundred and at ten thousand as
well as at one.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp, mpf

from ..._core.namespace import namespace_of
from .. import oracles
from .._package import pnce
from ..variants import assert_belongs, differentiate, flatten, foreign_array, generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..variants import Nested, Variant

# Some calls are wrong on purpose, which type checkers would refuse.
bounds: Any = pnce.bounds
density: Any = pnce.density
diagnostics: Any = pnce.diagnostics

# What is not representable becomes infinite, and NumPy says so.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

INF, NAN = math.inf, math.nan
DTYPES = ["float64", "float32", "float16", "bfloat16"]
LARGEST = {"float64": mpf(2) ** 1024, "float32": mpf(2) ** 128, "float16": mpf(65520), "bfloat16": mpf(2) ** 128}
"""Where a dtype rounds to infinity."""

exhaustive = pytest.mark.exhaustive

K, N = 3, 4
CRITIC, BASELINE, LOG_MEAN, RATE, CLIP = [0.5, -1.0, 0.25], [-0.5, 1.5, 0.75], 0.5, 0.25, 2.0
NU = 0.75


def draw(*shape: int, seed: int = 3) -> Nested:
    """Draw numbers that every dtype holds."""
    numbers = generator(seed)

    def nested(sizes: tuple[int, ...]) -> Nested:
        return [nested(sizes[1:]) for _ in range(sizes[0])] if sizes else numbers.randint(-40, 40) / 16

    return nested(shape)


# --- the bounds, and their gradients with respect to the scores in closed form ---------------------------------------


def entries(scores: Nested, pair: Callable[[int], Any], other: Callable[[int, int], Any]) -> Nested:
    """A matrix of what stands on the diagonal and off it."""
    return [[pair(i) if i == j else other(i, j) for j in range(len(row))] for i, row in enumerate(scores)]


def number_of_others(scores: Nested) -> int:
    return len(scores) * (len(scores[0]) - 1)


def by_info_nce(g: Nested) -> Nested:
    """(I - Pr) / K."""
    shares = [oracles.shares(row) for row in g]
    return entries(g, lambda i: (1 - shares[i][i]) / len(g), lambda i, j: -shares[i][j] / len(g))


def by_fdv(g: Nested) -> Nested:
    """(I - W) / K."""
    sums = [mp.fsum(mp.exp(s) for j, s in enumerate(row) if j != i) for i, row in enumerate(g)]
    return entries(g, lambda _: mpf(1) / len(g), lambda i, j: -mp.exp(g[i][j]) / sums[i] / len(g))


def by_flo(g: Nested) -> Nested:
    """R (I - W) / K."""
    ratios = [1 + len(g) * slope for slope in critic_slopes(g)]
    return [[ratio * entry for entry in row] for ratio, row in zip(ratios, by_fdv(g), strict=True)]


def critic_slopes(g: Nested) -> Nested:
    """-(1 - R) / K."""
    ratios = [
        mp.fsum(mp.exp(s - row[i] - CRITIC[i]) for j, s in enumerate(row) if j != i) / (len(row) - 1)
        for i, row in enumerate(g)
    ]
    return [-(1 - ratio) / len(g) for ratio in ratios]


def by_dv(g: Nested) -> Nested:
    """I / K - softmax over all off the diagonal."""
    total = mp.fsum(mp.exp(s) for i, row in enumerate(g) for j, s in enumerate(row) if j != i)
    return entries(g, lambda _: mpf(1) / len(g), lambda i, j: -mp.exp(g[i][j]) / total)


def by_mine(g: Nested) -> Nested:
    """I / K - exp(g) / (M Z)."""
    m = number_of_others(g)
    now = mp.fsum(mp.exp(s) for i, row in enumerate(g) for j, s in enumerate(row) if j != i) / m
    z = (1 - RATE) * mp.exp(LOG_MEAN) + RATE * now
    return entries(g, lambda _: mpf(1) / len(g), lambda i, j: -mp.exp(g[i][j]) / (m * z))


def by_nwj(g: Nested) -> Nested:
    """I / K - exp(g - 1) / M."""
    return entries(g, lambda _: mpf(1) / len(g), lambda i, j: -mp.exp(g[i][j] - 1) / number_of_others(g))


def by_tuba(g: Nested) -> Nested:
    """I / K - exp(g - log a) / M."""
    m = number_of_others(g)
    return entries(g, lambda _: mpf(1) / len(g), lambda i, j: -mp.exp(g[i][j] - BASELINE[i]) / m)


def baseline_slopes(g: Nested) -> Nested:
    """-1 / K + sum over the columns of exp(g - log a) / M."""
    return [
        -mpf(1) / len(g) + mp.fsum(mp.exp(s - BASELINE[i]) for j, s in enumerate(row) if j != i) / number_of_others(g)
        for i, row in enumerate(g)
    ]


def by_js(g: Nested) -> Nested:
    """sigma(-g) / K on the diagonal, -sigma(g) / M off it."""
    m = number_of_others(g)
    return entries(g, lambda i: 1 / (1 + mp.exp(g[i][i])) / len(g), lambda i, j: -1 / (1 + mp.exp(-g[i][j])) / m)


def by_anchor(g: Nested) -> Nested:
    """Probabilities of classes, of a row without its positive, and of one without another entry."""
    others, nu = len(g[0]) - 1, mpf(NU)
    slopes: list[list[Nested]] = []
    for i, row in enumerate(g):
        ratios = [mp.exp(s) for s in row]
        inverses = [1 / (nu + mp.fsum(ratios[:j] + ratios[j + 1 :])) for j in range(len(row))]
        slopes.append([])
        for j, ratio in enumerate(ratios):
            left_out = [m for m in range(len(row)) if m not in {i, j}]
            if j == i:
                rest = [nu + mp.fsum(ratios[k] for k in left_out if k != m) for m in left_out]
                own = mp.fsum(r * inverses[m] for r, m in zip(rest, left_out, strict=True))
                slopes[-1].append(own / others / len(g))
            else:
                total = mp.fsum(inverses[m] for m in left_out) + nu * inverses[i]
                slopes[-1].append(-ratio * total / others / len(g))
    return slopes


def by_club(g: Nested) -> Nested:
    """I / K - 1 / M."""
    return entries(g, lambda _: mpf(1) / len(g), lambda _, __: mpf(-1) / number_of_others(g))


def by_leave_one_out(g: Nested) -> Nested:
    """(I - softmax over the other rows) / K."""
    return oracles.transpose(by_fdv(oracles.transpose(g)))


def by_pairs(g: Nested) -> Nested:
    """I / K."""
    return entries(g, lambda _: mpf(1) / len(g), lambda _, __: mpf(0))


Form = tuple["Callable[..., Any]", str, "dict[str, Any]", "Callable[[Nested], Nested]"]

FORMS: dict[str, Form] = {
    "info_nce": (bounds.info_nce, "info_nce", {}, by_info_nce),
    "info_nce_anchor": (lambda g: bounds.info_nce_anchor(g, nu=NU), "info_nce_anchor", {"nu": NU}, by_anchor),
    "info_nce_anchor, plug-in": (
        lambda g: bounds.info_nce_anchor(g, nu=NU, form="plug_in"),
        "info_nce_anchor",
        {"nu": NU, "form": "plug_in"},
        by_anchor,
    ),
    "flo": (bounds.flo, "flo", {"u": CRITIC}, by_flo),
    "dual": (bounds.dual, "dual", {"u": CRITIC}, by_flo),
    "fdv": (bounds.fdv, "fdv", {}, by_fdv),
    "dv": (bounds.dv, "dv", {}, by_dv),
    "mine, first step": (lambda g: bounds.mine(g)[0], "mine", {}, by_dv),
    "mine": (
        lambda g, log_mean: bounds.mine(g, log_mean, rate=RATE)[0],
        "mine",
        {"log_mean": LOG_MEAN, "rate": RATE},
        by_mine,
    ),
    "nwj": (bounds.nwj, "nwj", {}, by_nwj),
    "tuba": (bounds.tuba, "tuba", {"log_baseline": BASELINE}, by_tuba),
    "js": (bounds.js, "js", {}, by_js),
    "js_mi": (bounds.js_mi, "js_mi", {}, by_js),
    "smile": (lambda g: bounds.smile(g, CLIP), "smile", {"clip": CLIP}, by_js),
    "smile, no clip": (lambda g: bounds.smile(g, clip=None), "smile", {"clip": None}, by_js),
    "club": (bounds.club, "club", {}, by_club),
    "leave_one_out": (bounds.leave_one_out, "leave_one_out", {}, by_leave_one_out),
    "barber_agakov": (lambda g: bounds.barber_agakov(g, 1.5), "barber_agakov", {"entropy": 1.5}, by_pairs),
    "vub": (bounds.vub, "vub", {"log_marginal": CRITIC}, by_pairs),
}
"""The call, its oracle, what else that takes, and the gradient; lists are arrays in the call."""

SQUARE_ONLY = {"leave_one_out"}
SLOPES: dict[str, Callable[[Nested], Nested]] = {
    "flo": critic_slopes,
    "dual": critic_slopes,
    "tuba": baseline_slopes,
    "vub": lambda g: [mpf(-1) / len(g)] * len(g),
    "mine": lambda _: mpf(0),
}
"""The gradients with respect to the second array."""

EVERY = [
    pytest.param(name, marks=exhaustive if name in {"dual", "mine, first step", "smile, no clip"} else [])
    for name in FORMS
]


def columns_of(name: str) -> int:
    return K if name in SQUARE_ONLY else N


def is_array(name: str, value: Any) -> bool:
    return isinstance(value, list) or name == "log_mean"


def computed_in(variant: Variant, dtype: str) -> float:
    """The unit of the arithmetic: float32 for 16 bits."""
    return variant.eps("float32") if "16" in dtype else variant.eps(dtype)


def assert_close(variant: Variant, dtype: str, got: Nested, wanted: Nested, *, scale: float) -> None:
    """Compare numbers computed from others of a scale; what the dtype cannot hold is infinite, and nothing is NaN."""
    tolerance = 4 * variant.eps(dtype) + 32 * computed_in(variant, dtype) * scale
    for a, b in zip(oracles.numbers_of(got), oracles.numbers_of(wanted), strict=True):
        if mp.isinf(b) or (variant.module != "mparray" and abs(b) >= LARGEST[dtype]):
            assert a == (INF if b > 0 else -INF), (a, b)
        else:
            assert abs(mpf(a) - b) <= tolerance * max(1, abs(b)), (a, b)


def assert_form(variant: Variant, dtype: str, name: str, nested: Nested, *, scale: float) -> None:
    """Compare a bound and its gradients with the oracle and the closed form."""
    function, oracle, further, form = FORMS[name]
    scores = variant.floats(nested, dtype)
    held = variant.to_list(scores)
    arrays = [variant.floats(value, dtype) for key, value in further.items() if is_array(key, value)]
    value, gradients = differentiate(function, [scores, *arrays])
    with mp.workdps(oracles.DIGITS):
        numbers = oracles.exact(held)
        wanted = oracles.evaluate(f"bounds.{oracle}", {"scores": held}, further)
        slopes = [form(numbers), *([SLOPES[name](numbers)] if name in SLOPES else [])]
        assert_close(variant, dtype, variant.to_list(value), wanted, scale=scale)
        for gradient, slope in zip(gradients, slopes, strict=True):
            assert_close(variant, dtype, variant.to_list(gradient), slope, scale=scale)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", EVERY)
def test_gradient_in_closed_form(variant: Variant, name: str, dtype: str) -> None:
    """Value and gradients of scores around 0, also of more columns than rows and of a square."""
    for columns in {K, columns_of(name)}:
        assert_form(variant, dtype, name, draw(K, columns), scale=4.0)


sizes = pytest.mark.parametrize("size", [pytest.param(100.0, marks=exhaustive), 1e4])

PATTERNS: dict[str, Callable[[int, int], float]] = {
    "high": lambda _, __: 1.0,
    "low": lambda _, __: -1.0,
    "pairs high": lambda i, j: 1.0 if i == j else -1.0,
    "pairs low": lambda i, j: -1.0 if i == j else 1.0,
    "mixed": lambda i, j: -1.0 if (2 * i + 3 * j) % 5 < 2 else 1.0,
}


@pytest.mark.parametrize("dtype", DTYPES)
@sizes
@pytest.mark.parametrize("name", EVERY)
def test_extreme_scores(variant: Variant, name: str, size: float, dtype: str) -> None:
    """Scores of plus or minus a hundred and ten thousand: right, or infinite where the dtype cannot hold it."""
    noise = draw(K, N)
    for pattern in PATTERNS.values():
        nested = [[size * pattern(i, j) + noise[i][j] for j in range(columns_of(name))] for i in range(K)]
        assert_form(variant, dtype, name, nested, scale=size)


@pytest.mark.parametrize("dtype", DTYPES)
@sizes
@pytest.mark.parametrize("alpha", [0.0, 0.5, pytest.param(1.0, marks=exhaustive)])
def test_extreme_scores_interpolated(variant: Variant, alpha: float, size: float, dtype: str) -> None:
    """The interpolated bound: the value is right or infinite, the gradient anything but NaN."""
    noise = draw(K, N)
    baseline = variant.floats(BASELINE, dtype)
    for pattern in PATTERNS.values():
        nested = [[size * pattern(i, j) + noise[i][j] for j in range(N)] for i in range(K)]
        scores = variant.floats(nested, dtype)
        value, gradients = differentiate(lambda g, a: bounds.interpolated(g, alpha, a), [scores, baseline])
        further = {"alpha": alpha, "log_baseline": BASELINE}
        wanted = oracles.evaluate("bounds.interpolated", {"scores": variant.to_list(scores)}, further)
        assert_close(variant, dtype, variant.to_list(value), wanted, scale=size)
        assert not any(mp.isnan(entry) for gradient in gradients for entry in flatten(variant.to_list(gradient)))


@exhaustive
@pytest.mark.parametrize("shape", [(1, 2), (1, 4), (2, 2), (2, 5)], ids=str)
@pytest.mark.parametrize("name", [*FORMS, "interpolated"])
def test_few_rows(variant: Variant, name: str, shape: tuple[int, int]) -> None:
    """One row, whose further columns are its negatives, and the least batches that there are."""
    rows, columns = shape
    if name in SQUARE_ONLY:
        rows = columns
    dtype, nested = variant.dtypes[0], draw(rows, columns)
    if name == "interpolated":
        further: dict[str, Any] = {"alpha": 0.5, "log_baseline": (BASELINE * 2)[:rows]}

        def function(g: Any, a: Any) -> Any:
            return bounds.interpolated(g, 0.5, a)

    else:
        function, _, further, _ = FORMS[name]
        further = {key: (value * 2)[:rows] if isinstance(value, list) else value for key, value in further.items()}
    arrays = [variant.floats(value) for key, value in further.items() if is_array(key, value)]
    oracle = FORMS[name][1] if name in FORMS else name
    value, gradients = differentiate(function, [variant.floats(nested), *arrays])
    wanted, slopes = oracles.value_and_gradients(f"bounds.{oracle}", {"scores": nested}, further)
    assert_close(variant, dtype, variant.to_list(value), wanted, scale=4.0)
    with mp.workdps(oracles.DIGITS):
        gradient = variant.to_list(gradients[0])
        assert oracles.error(gradient, slopes["scores"]) <= max(64 * variant.eps(dtype), 1e-44)


BOUNDS: dict[str, Callable[[Any], Any]] = {
    "info_nce": bounds.info_nce,
    "info_nce_anchor": bounds.info_nce_anchor,
    "flo": lambda g: bounds.flo(g, g[:, 0]),
    "fdv": bounds.fdv,
    "dv": bounds.dv,
    "mine": lambda g: bounds.mine(g)[0],
    "state of mine": lambda g: bounds.mine(g)[1],
    "second state of mine": lambda g: bounds.mine(g, g[0, 0])[1],
    "nwj": bounds.nwj,
    "tuba": lambda g: bounds.tuba(g, 0.5),
    "interpolated": lambda g: bounds.interpolated(g, 0.5, g[:, 1]),
    "js": bounds.js,
    "js_mi": bounds.js_mi,
    "smile": bounds.smile,
    "club": bounds.club,
    "leave_one_out": bounds.leave_one_out,
    "barber_agakov": lambda g: bounds.barber_agakov(g, 1.5),
    "barber_agakov of pairs": lambda g: bounds.barber_agakov(g[:, 0], g[0, 1]),
    "vub": lambda g: bounds.vub(g, g[:, 1]),
    "headroom": diagnostics.headroom,
    "alignment": lambda g: diagnostics.alignment(g, g + 1.0, power=1.0),
    "uniformity": diagnostics.uniformity,
    "top_k_accuracy": diagnostics.top_k_accuracy,
    "local_nce": lambda g: density.local_nce(g[:, 0], g, 0.5, g),
    "negative_sampling": lambda g: density.negative_sampling(g[:, 0], g),
    "ranking_nce": lambda g: density.ranking_nce(g[:, 0], g),
    "density.info_nce_anchor": lambda g: density.info_nce_anchor(g[:, 0], g, 0.5, 0.25),
    "sampled_softmax": lambda g: density.sampled_softmax(g[:, 0], g, 0.5, 0.5),
    "self_normalization": lambda g: density.self_normalization(g).std,
}
"""From a square matrix to one number."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(BOUNDS))
def test_result_belongs_to_the_input(variant: Variant, name: str, dtype: str) -> None:
    """A 0-d array of the library, dtype and device of the scores, 16 bits too."""
    scores = variant.floats(draw(K, K), dtype)
    assert_belongs(variant, BOUNDS[name](scores), scores, ())


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_belong_to_the_input(variant: Variant, dtype: str) -> None:
    data, noise = variant.floats(draw(K), dtype), variant.floats(draw(K, N), dtype)
    for result, shape in (
        (density.log_partition(noise, -1.5), (K,)),
        (density.recover_log_prob(noise, -1.5), (K, N)),
        (density.local_nce(data, noise, -1.5, -1.5, reduction="none"), (K,)),
        (density.ranking_nce(data, noise, reduction="none"), (K,)),
        (density.info_nce_anchor(data, noise, -1.5, -1.5, reduction="none"), (K,)),
        (density.full_softmax(noise, variant.array([0, 3, 1]), reduction="none"), (K,)),
        (diagnostics.top_k_accuracy(noise, reduction="none"), (K,)),
    ):
        assert_belongs(variant, result, noise, shape)


# --- one bound and another ------------------------------------------------------------------------------------------


def assert_same(variant: Variant, first: Any, second: Any, arrays: list[Any]) -> None:
    """Two functions of the same arrays have the same value and gradients."""
    (value, gradients), (wanted, slopes) = differentiate(first, arrays), differentiate(second, arrays)
    for got, want in zip([value, *gradients], [wanted, *slopes], strict=True):
        assert close_lists(variant, got, want)


def close_lists(variant: Variant, first: Any, second: Any, *, scale: float = 1.0) -> bool:
    pairs = zip(flatten(variant.to_list(first)), flatten(variant.to_list(second)), strict=True)
    return all(abs(a - b) <= 16 * variant.eps() * max(scale, abs(b)) for a, b in pairs)


def test_tuba_at_one_is_nwj(variant: Variant) -> None:
    scores = variant.floats(draw(K, N))
    assert_same(variant, lambda g: bounds.tuba(g, 1.0), bounds.nwj, [scores])
    ones = variant.floats([1.0] * K)
    assert_same(variant, lambda g: bounds.tuba(g, ones), bounds.nwj, [scores])


def test_interpolated_at_zero_is_tuba(variant: Variant) -> None:
    arrays = [variant.floats(draw(K, N)), variant.floats(BASELINE)]
    assert_same(variant, lambda g, a: bounds.interpolated(g, 0.0, a), bounds.tuba, arrays)


def test_interpolated_at_one_has_no_baseline(variant: Variant) -> None:
    scores, baseline = variant.floats(draw(K, N)), variant.floats(BASELINE)
    _, (_, slope) = differentiate(lambda g, a: bounds.interpolated(g, 1.0, a), [scores, baseline])
    assert variant.to_list(slope) == [0.0] * K
    values = [variant.to_list(bounds.interpolated(scores, 1.0, a)) for a in (baseline, -7.0)]
    assert values[0] == values[1]


def test_a_number_is_the_baseline_of_every_row(variant: Variant) -> None:
    scores = variant.floats(draw(K, N))
    functions: list[Callable[[Any, Any], Any]] = [bounds.tuba, lambda g, a: bounds.interpolated(g, 0.25, a)]
    for function in functions:
        values = [
            function(scores, a)
            for a in (0.75, variant.floats(0.75), variant.floats([0.75]), variant.floats([0.75] * K))
        ]
        assert len({str(variant.to_list(value)) for value in values}) == 1


def test_an_anchor_and_one_sample_is_js(variant: Variant) -> None:
    scores = variant.floats(draw(2, 2))
    ((value, (slope,)), (wanted, (steepness,))) = (
        differentiate(f, [scores]) for f in (bounds.info_nce_anchor, bounds.js)
    )
    difference = variant.to_list(value) - variant.to_list(wanted)
    assert abs(difference - 2 * mp.log(2)) <= 16 * variant.eps()
    assert close_lists(variant, slope, steepness)


def test_an_anchor_of_no_weight_is_info_nce_of_one_column_less(variant: Variant) -> None:
    """Its mean over the columns that may be left out."""
    nested = draw(1, 4)
    found = bounds.info_nce_anchor(variant.floats(nested), nu=1e-30)  # the share of which can be seen in fifty digits
    left = [[s for j, s in enumerate(nested[0]) if j != m] for m in (1, 2, 3)]
    wanted = sum(oracles.evaluate("bounds.info_nce", {"scores": [row]}, {}) for row in left) / 3
    assert abs(variant.to_list(found) - wanted) <= 16 * variant.eps() + 4e-30


def test_js_mi_is_nwj_of_the_scores_plus_one(variant: Variant) -> None:
    """Two well-known codes forget the 1: at the best scores of js they are far below."""
    scores = variant.floats(draw(K, N))
    value, (slope,) = differentiate(bounds.js_mi, [scores])
    assert close_lists(variant, value, bounds.nwj(scores + 1.0))
    assert not close_lists(variant, value, bounds.nwj(scores))
    assert close_lists(variant, slope, differentiate(bounds.js, [scores])[1][0])


def test_smile_without_clip_is_dv_with_another_gradient(variant: Variant) -> None:
    scores = variant.floats(draw(K, N))
    value, (slope,) = differentiate(lambda g: bounds.smile(g, clip=None), [scores])
    assert close_lists(variant, value, bounds.dv(scores))
    assert close_lists(variant, slope, differentiate(bounds.js, [scores])[1][0])
    assert close_lists(variant, bounds.smile(scores, clip=40.0), bounds.dv(scores))


def test_smile_clips_the_negatives_only(variant: Variant) -> None:
    """Positives far above the limit count in full, and the negatives on either side of it at the limit."""
    scores = variant.floats([[50.0, 9.0], [-9.0, 30.0]])
    wanted = 40 - mp.log((mp.exp(2) + mp.exp(-2)) / 2)
    assert abs(variant.to_list(bounds.smile(scores, clip=2.0)) - wanted) <= 64 * variant.eps() * wanted


def test_headroom_is_what_the_bound_leaves(variant: Variant) -> None:
    scores = variant.floats(draw(K, N))
    left = bounds.log_n_ceiling(scores) - bounds.info_nce(scores)
    assert close_lists(variant, diagnostics.headroom(scores), left)
    saturated = [[60.0 * (i == j) for j in range(N)] for i in range(K)]
    got = mpf(variant.to_list(diagnostics.headroom(variant.floats(saturated))))
    wanted = oracles.diagonal_info_nce(saturated)  # 3e-26, of which nothing is left beside log N
    assert abs(got - wanted) <= 64 * variant.eps() * wanted


def test_fdv_learns_where_info_nce_has_stopped(variant: Variant) -> None:
    """At a lead of 60 the InfoNCE bound's gradient is of the order of 1e-26, and that of fdv of the order of 1."""
    scores = variant.floats([[60.0 * (i == j) for j in range(K)] for i in range(K)])
    value, (slope,) = differentiate(bounds.fdv, [scores])
    wanted, (stopped,) = differentiate(bounds.info_nce, [scores])
    assert close_lists(variant, value, wanted)
    assert max(abs(x) for x in flatten(variant.to_list(stopped))) < 1e-20
    assert max(abs(x) for x in flatten(variant.to_list(slope))) > 0.3


def test_dual_is_flo(variant: Variant) -> None:
    assert_same(variant, bounds.dual, bounds.flo, [variant.floats(draw(K, N)), variant.floats(CRITIC)])


def test_leave_one_out_runs_over_the_rows(variant: Variant) -> None:
    """A constant for each column, a density of y, cancels; one for each row does not."""
    nested, shift = draw(K, K), draw(K, seed=8)
    columns = [[s + c for s, c in zip(row, shift, strict=True)] for row in nested]
    rows = [[s + c for s in row] for row, c in zip(nested, shift, strict=True)]
    value = bounds.leave_one_out(variant.floats(nested))
    assert close_lists(variant, bounds.leave_one_out(variant.floats(columns)), value)
    assert not close_lists(variant, bounds.leave_one_out(variant.floats(rows)), value)


def test_pairs_alone_or_on_the_diagonal(variant: Variant) -> None:
    nested, marginal = draw(K, N), variant.floats(CRITIC)
    matrix, pairs = variant.floats(nested), variant.floats([row[i] for i, row in enumerate(nested)])
    assert close_lists(variant, bounds.barber_agakov(matrix, 1.5), bounds.barber_agakov(pairs, 1.5))
    assert close_lists(variant, bounds.vub(matrix, marginal), bounds.vub(pairs, marginal))
    entropies = [1.5, variant.floats(1.5), variant.floats([1.5])]
    values = [variant.to_list(bounds.barber_agakov(pairs, entropy)) for entropy in entropies]
    assert values == values[:1] * 3
    _, (_, slope) = differentiate(bounds.barber_agakov, [pairs, variant.floats(1.5)])
    assert variant.to_list(slope) == 1.0


# --- the state of mine ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 2000.0], ids=["scores around 0", "scores around 2000"])
def test_state_of_mine_is_a_moving_average(variant: Variant, shift: float) -> None:
    """Five steps against the plain average, which only mpmath can keep at exp(2000)."""
    rate, state, average = 0.25, None, None
    for step in range(5):
        nested = [[s + shift for s in row] for row in draw(K, N, seed=step)]
        scores = variant.floats(nested)
        value, state = bounds.mine(scores, state, rate=rate)
        with mp.workdps(oracles.DIGITS):
            others = [mp.exp(s) for i, row in enumerate(oracles.exact(nested)) for j, s in enumerate(row) if j != i]
            now = mp.fsum(others) / len(others)
            average = now if average is None else (1 - rate) * average + rate * now
            wanted = mp.log(average)
            assert abs(mpf(variant.to_list(state)) - wanted) <= 16 * variant.eps() * max(1, abs(wanted))
        assert variant.to_list(value) == variant.to_list(bounds.dv(scores))
        assert_belongs(variant, state, scores, ())


def test_gradient_of_mine_has_the_new_average(variant: Variant) -> None:
    """I / K - exp(g) / (M Z), Z of the state that is returned; the state itself is a constant."""
    scores, before = variant.floats(draw(K, N)), variant.floats([LOG_MEAN])
    (_, state), (slope, by_state) = differentiate_with_aux(lambda g, z: bounds.mine(g, z, rate=RATE), [scores, before])
    listed, z = variant.to_list(scores), mp.exp(variant.to_list(state))
    wanted = entries(listed, lambda _: mpf(1) / K, lambda i, j: -mp.exp(listed[i][j]) / (number_of_others(listed) * z))
    assert oracles.error(variant.to_list(slope), wanted) <= 32 * variant.eps()
    assert variant.to_list(by_state) == [0.0]
    _, slopes = differentiate(lambda g: bounds.mine(g, before, rate=RATE)[1], [scores])
    assert flatten(variant.to_list(slopes[0])) == [0.0] * (K * N)


def differentiate_with_aux(function: Callable[..., Any], arrays: list[Any]) -> Any:
    return pnce.value_and_grad(function, argnums=(0, 1), has_aux=True)(*arrays)


def test_mine_with_a_rate_of_one_forgets(variant: Variant) -> None:
    scores = variant.floats(draw(K, N))
    _, state = bounds.mine(scores, variant.floats(25.0), rate=1.0)
    _, first = bounds.mine(scores)
    assert variant.to_list(state) == variant.to_list(first)


def test_mine_forgets_little_at_a_rate_below_one(variant: Variant) -> None:
    """A share of a sixteenth of the old average is there."""
    scores, before = variant.floats(draw(K, N)), 3.0
    _, state = bounds.mine(scores, before, rate=0.9375)
    others = [mp.exp(s) for i, row in enumerate(variant.to_list(scores)) for j, s in enumerate(row) if j != i]
    wanted = mp.log(mpf(1) / 16 * mp.exp(before) + mpf(15) / 16 * mp.fsum(others) / len(others))
    assert abs(variant.to_list(state) - wanted) <= 16 * variant.eps()


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_mine_keeps_its_state_where_no_row_counts(variant: Variant, rate: float) -> None:
    """A batch of which nothing takes part says nothing of the average."""
    scores, nothing = variant.floats(draw(K, N)), variant.array([[False] * N] * K)
    value, state = bounds.mine(scores, LOG_MEAN, rate=rate, mask=nothing)
    assert [variant.to_list(value), variant.to_list(state)] == [0.0, LOG_MEAN]
    value, state = bounds.mine(scores, rate=rate, mask=nothing)
    assert [variant.to_list(value), variant.to_list(state)] == [0.0, 0.0]


# --- minus infinity: what cannot happen -----------------------------------------------------------------------------

IMPOSSIBLE = [[0.5, -INF, -INF], [-INF, -1.0, -INF], [-INF, -INF, 0.25]]
DIAGONAL_MEAN = mpf(-1) / 12


def no_negatives() -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """The bounds of scores that are -inf off the diagonal, from their definitions."""
    own = [mpf(row[i]) for i, row in enumerate(IMPOSSIBLE)]
    return {
        "info_nce": (bounds.info_nce, mp.log(3)),
        "info_nce_anchor": (
            bounds.info_nce_anchor,
            3 * mp.log(3) / 2 - mp.fsum(mp.log(1 + mp.exp(-s)) for s in own) / 3,
        ),
        "info_nce_anchor, plug-in": (lambda g: bounds.info_nce_anchor(g, form="plug_in"), DIAGONAL_MEAN),
        "fdv": (bounds.fdv, mp.log(3)),
        "critic": (lambda g: bounds.dual_critic(g)[0], mpf("-inf")),
        "critic with the positive": (lambda g: bounds.dual_critic(g, include_positive=True)[0], -mp.log(3)),
        "dv": (bounds.dv, mpf("inf")),
        "mine": (lambda g: bounds.mine(g)[0], mpf("inf")),
        "nwj": (bounds.nwj, DIAGONAL_MEAN),
        "tuba": (lambda g: bounds.tuba(g, 0.5), mpf(1) / 2 + DIAGONAL_MEAN),
        "interpolated": (lambda g: bounds.interpolated(g, 0.0, 0.5), mpf(1) / 2 + DIAGONAL_MEAN),
        "js": (bounds.js, -mp.fsum(mp.log(1 + mp.exp(-s)) for s in own) / 3),
        "js_mi": (bounds.js_mi, 1 + DIAGONAL_MEAN),
        "smile": (bounds.smile, 5 + DIAGONAL_MEAN),
        "smile, no clip": (lambda g: bounds.smile(g, clip=None), mpf("inf")),
        "club": (bounds.club, mpf("inf")),
        "leave_one_out": (bounds.leave_one_out, mpf("inf")),
        "headroom": (diagnostics.headroom, mpf(0)),
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in {"fdv", "mine", "club", "leave_one_out"} else exhaustive)
        for name in no_negatives()
    ],
)
def test_negatives_that_cannot_happen(variant: Variant, name: str) -> None:
    """Where every negative is -inf, the definition says what comes out, if only infinity; no gradient is NaN."""
    function, wanted = no_negatives()[name]
    value, (slope,) = differentiate(function, [variant.floats(IMPOSSIBLE)])
    assert_close(variant, variant.dtypes[0], variant.to_list(value), wanted, scale=2.0)
    assert not any(mp.isnan(entry) for entry in flatten(variant.to_list(slope)))


def test_mine_after_a_step_without_negatives(variant: Variant) -> None:
    """The average was 0, and from then on is that of what comes."""
    _, state = bounds.mine(variant.floats(IMPOSSIBLE))
    assert variant.to_list(state) == -INF
    scores = variant.floats(draw(K, N))
    value, state = bounds.mine(scores, state, rate=0.25)
    _, alone = bounds.mine(scores)
    wanted = mpf(variant.to_list(alone)) + mp.log(mpf(1) / 4)
    assert abs(variant.to_list(state) - wanted) <= 16 * variant.eps()
    assert mp.isfinite(variant.to_list(value))


LOWER: dict[str, Callable[[Any], Any]] = {
    name: BOUNDS[name]
    for name in (
        *("info_nce", "info_nce_anchor", "fdv", "dv", "nwj"),
        *("tuba", "js_mi", "smile", "barber_agakov", "js"),
    )
}


@pytest.mark.parametrize("name", list(LOWER))
def test_a_pair_that_cannot_happen(variant: Variant, name: str) -> None:
    """A critic that calls impossible what has happened is told minus infinity, and no bound at all."""
    nested = draw(K, N)
    nested[1][1] = -INF
    assert variant.to_list(LOWER[name](variant.floats(nested))) == -INF
    if name == "info_nce":
        assert variant.to_list(diagnostics.headroom(variant.floats(nested))) == INF
        assert variant.to_list(bounds.dual_critic(variant.floats(nested)))[1] == INF


# --- densities ------------------------------------------------------------------------------------------------------

DATA_Q, NOISE_Q = (
    [-1.5, -0.25, -2.0],
    [[-1.0, -0.5, -2.25, -1.75], [-0.25, -3.0, -1.5, -0.75], [-2.0, -1.0, -0.5, -1.25]],
)

Density = tuple["Callable[..., Any]", "dict[str, Nested]", "dict[str, Any]"]


def densities() -> dict[str, Density]:
    """The calls, their arrays by name, and options."""
    scores = {"data_scores": draw(K, seed=5), "noise_scores": draw(K, N, seed=6)}
    both = {**scores, "data_log_q": DATA_Q, "noise_log_q": NOISE_Q}
    return {
        "local_nce": (density.local_nce, both, {}),
        "negative_sampling": (density.negative_sampling, scores, {}),
        "ranking_nce": (density.ranking_nce, both, {}),
        "info_nce_anchor": (density.info_nce_anchor, both, {}),
        "ranking_nce, no log_q": (density.ranking_nce, scores, {}),
        "sampled_softmax": (density.sampled_softmax, both, {}),
        "sampled_softmax, no positive": (density.sampled_softmax, both, {"include_positive": False}),
        "log_partition": (density.log_partition, {"noise_scores": both["noise_scores"], "noise_log_q": NOISE_Q}, {}),
    }


DENSITIES = densities()
LOSSES = [name for name in DENSITIES if name != "log_partition"]


def assert_density(variant: Variant, dtype: str, name: str, change: dict[str, Nested], *, scale: float) -> None:
    """Compare a loss of changed arrays with its oracle, value and gradients."""
    function, arrays, options = DENSITIES[name]
    changed = {**arrays, **{key: value for key, value in change.items() if key in arrays}}
    further = {key: value for key, value in change.items() if key in {"mask", "weights"}}
    given = {key: variant.floats(value, dtype) for key, value in changed.items()}
    constants = {key: variant.array(value, dtype) for key, value in further.items()}

    def total(*entered: Any) -> Any:
        result = function(*entered, **options, **constants)
        return result if result.shape == () else array_sum(result)

    value, gradients = differentiate(total, [*given.values()])
    held = {key: variant.to_list(array) for key, array in given.items()}
    wanted, slopes = oracles.value_and_gradients(f"density.{name.partition(',')[0]}", held, {**options, **further})
    with mp.workdps(oracles.DIGITS):
        wanted = mp.fsum(wanted) if isinstance(wanted, list) else wanted
        assert_close(variant, dtype, variant.to_list(value), wanted, scale=scale)
        for gradient, slope in zip(gradients, slopes.values(), strict=True):
            assert_close(variant, dtype, variant.to_list(gradient), slope, scale=scale)


def array_sum(x: Any) -> Any:
    xp = namespace_of(x)
    return xp.reshape(xp.sum(xp.reshape(x, (-1,)), axis=0, keepdims=True), ())


@pytest.mark.parametrize("dtype", DTYPES)
@sizes
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=exhaustive if "," in name or name == "log_partition" else []) for name in DENSITIES],
)
def test_extreme_scores_of_densities(variant: Variant, name: str, size: float, dtype: str) -> None:
    """Data or noise a hundred or ten thousand above or below the others: right, and no NaN."""
    _, arrays, _ = DENSITIES[name]
    for data, noise in ((1, -1), (-1, 1), (1, 1), (-1, -1)):
        change = {
            "noise_scores": [[s + noise * size * (-1) ** j for j, s in enumerate(r)] for r in arrays["noise_scores"]]
        }
        if "data_scores" in arrays:
            change["data_scores"] = [s + data * size for s in arrays["data_scores"]]
        assert_density(variant, dtype, name, change, scale=size)


@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract:RuntimeWarning")  # what is masked, of itself
@pytest.mark.parametrize(
    "dirt", [*(pytest.param(x, marks=exhaustive) for x in (INF, -INF)), NAN], ids=["inf", "-inf", "nan"]
)
@pytest.mark.parametrize("name", list(DENSITIES))
def test_masked_samples_may_hold_anything(variant: Variant, name: str, dirt: float) -> None:
    """Scores and densities of samples that take no part reach neither value nor gradients."""
    function, arrays, options = DENSITIES[name]
    mask = [[True, False, True, True], [False, True, True, True], [True, True, False, False]]
    masked = variant.array(mask)
    results = []
    for filling in (dirt, 0.0):
        filled = {
            key: [
                [s if m else filling for s, m in zip(row, bits, strict=True)] for row, bits in zip(x, mask, strict=True)
            ]
            if key.startswith("noise")
            else x
            for key, x in arrays.items()
        }
        given = [variant.floats(x) for x in filled.values()]
        value, gradients = differentiate(lambda *a: array_sum(function(*a, **options, mask=masked)), given)
        results.append([variant.to_list(value), *map(variant.to_list, gradients)])
    assert results[0] == results[1]


@pytest.mark.parametrize("name", list(DENSITIES))
def test_mask_is_as_if_the_samples_were_not_there(variant: Variant, name: str) -> None:
    """Also in the number of samples k, on which the optimum depends."""
    function, arrays, options = DENSITIES[name]
    given = [variant.floats(x) for x in arrays.values()]
    mask = variant.array([[True, True, False, False]] * K)
    few = [variant.floats([row[:2] for row in x] if key.startswith("noise") else x) for key, x in arrays.items()]
    reduction = {} if name == "log_partition" else {"reduction": "none"}
    assert close_lists(
        variant, function(*given, **options, **reduction, mask=mask), function(*few, **options, **reduction)
    )


@pytest.mark.parametrize("name", LOSSES)
def test_no_sample_takes_part(variant: Variant, name: str) -> None:
    """Nothing to be told from, nothing to learn: 0, but where the data are decided on, or divided by, alone."""
    function, arrays, options = DENSITIES[name]
    given = [variant.floats(x) for x in arrays.values()]
    mask = variant.array([[False] * N, [True] * N, [False] * N])
    losses = variant.to_list(function(*given, **options, mask=mask, reduction="none"))
    data = arrays["data_scores"]
    wanted = {
        "negative_sampling": [mp.log(1 + mp.exp(-s)) for s in data],
        "sampled_softmax": [-mpf(q) for q in DATA_Q],
    }.get(name, [mpf(0)] * K)
    assert_close(variant, variant.dtypes[0], losses[::2], wanted[::2], scale=1.0)
    _, slopes = differentiate(lambda *a: function(*a, **options, mask=mask), given)
    assert not any(mp.isnan(entry) for slope in slopes for entry in flatten(variant.to_list(slope)))
    if name in {"local_nce", "ranking_nce"}:
        assert [variant.to_list(slope)[0] for slope in slopes] == [0.0, [0.0] * N, 0.0, [0.0] * N]


@pytest.mark.parametrize("name", [name for name in DENSITIES if "noise_log_q" in DENSITIES[name][1]])
def test_a_number_is_the_density_of_all(variant: Variant, name: str) -> None:
    """Numbers, one density for each column, or one for each sample: where they say the same, the same comes out."""
    function, arrays, options = DENSITIES[name]
    scores = [variant.floats(arrays[key]) for key in ("data_scores", "noise_scores") if key in arrays]
    own: list[Any] = [] if name == "log_partition" else [variant.floats([-1.25] * K)]
    wanted = variant.to_list(function(*scores, *own, variant.floats([[-1.25] * N] * K), **options))
    for noise in (-1.25, variant.floats([-1.25] * N)):
        assert variant.to_list(function(*scores, *own, noise, **options)) == wanted
    if own:
        assert variant.to_list(function(*scores, -1.25, -1.25, **options)) == wanted
    columns = [function(*scores, *own, variant.floats(q), **options) for q in (NOISE_Q[0], [NOISE_Q[0]] * K)]
    assert variant.to_list(columns[0]) == variant.to_list(columns[1])


@exhaustive
@pytest.mark.parametrize("name", LOSSES)
def test_reductions_of_densities(variant: Variant, name: str) -> None:
    """The weighted losses, their sum, and that over the sum of the weights."""
    function, arrays, options = DENSITIES[name]
    given, weights = [variant.floats(x) for x in arrays.values()], [0.5, 0.0, 2.0]
    weighted = {**options, "weights": variant.floats(weights)}
    plain = [mpf(x) for x in variant.to_list(function(*given, **options, reduction="none"))]
    each = variant.to_list(function(*given, **weighted, reduction="none"))
    wanted = [w * x for w, x in zip(weights, plain, strict=True)]
    tolerance = 16 * variant.eps() * max(map(abs, wanted))
    assert all(abs(a - b) <= tolerance for a, b in zip(each, wanted, strict=True))
    assert abs(variant.to_list(function(*given, **weighted, reduction="sum")) - mp.fsum(wanted)) <= tolerance
    assert abs(variant.to_list(function(*given, **weighted)) - mp.fsum(wanted) / mpf(2.5)) <= tolerance


def test_samples_of_minus_infinity(variant: Variant) -> None:
    """Noise that the model calls impossible: it is told from the data for certain, and adds nothing to Z."""
    nested = draw(K, N, seed=6)
    without = [[-INF if j == 1 else s for j, s in enumerate(row)] for row in nested]
    mask = variant.array([[j != 1 for j in range(N)]] * K)
    data, noise, clean = variant.floats(draw(K)), variant.floats(without), variant.floats(nested)
    value, slopes = differentiate(lambda d, s: density.ranking_nce(d, s, -1.5, -1.5), [data, noise])
    wanted, expected = differentiate(lambda d, s: density.ranking_nce(d, s, -1.5, -1.5, mask=mask), [data, clean])
    assert variant.to_list(value) == variant.to_list(wanted)
    assert list(map(variant.to_list, slopes)) == list(map(variant.to_list, expected))
    total = density.log_partition(noise, -1.5)
    kept = density.log_partition(clean, -1.5, mask=mask)  # a mean over three, not four
    assert close_lists(variant, total + mp_number(variant, mp.log(mpf(4) / 3)), kept)
    value, slopes = differentiate(lambda d, s: density.local_nce(d, s, -1.5, -1.5), [data, noise])
    assert not any(mp.isnan(entry) for slope in slopes for entry in flatten(variant.to_list(slope)))
    assert variant.to_list(density.log_partition(variant.floats([[-INF, -INF]]), 0.0)) == [-INF]


def mp_number(variant: Variant, number: Any) -> Any:
    """A number that the arrays of a variant can be added to."""
    return variant.floats(number if variant.module == "mparray" else float(number))


def test_full_softmax_is_the_cross_entropy(variant: Variant) -> None:
    nested, targets = draw(K, N), [3, 0, 1]
    losses = density.full_softmax(variant.floats(nested), variant.array(targets), reduction="none")
    wanted = [-mp.log(oracles.shares(row)[target]) for row, target in zip(oracles.exact(nested), targets, strict=True)]
    assert oracles.error(variant.to_list(losses), wanted) <= 32 * variant.eps()


def test_sampled_softmax_with_the_positive_has_the_gradient_of_ranking(variant: Variant) -> None:
    _, arrays, _ = DENSITIES["sampled_softmax"]
    given = [variant.floats(arrays[key]) for key in ("data_scores", "noise_scores")]
    log_q = [variant.floats(DATA_Q), variant.floats(NOISE_Q)]
    value, slopes = differentiate(lambda d, s: density.sampled_softmax(d, s, *log_q), given)
    other, wanted = differentiate(lambda d, s: density.ranking_nce(d, s, *log_q), given)
    for slope, want in zip(slopes, wanted, strict=True):
        assert close_lists(variant, slope, want)
    offset = -mp.log(N + 1) - mp.fsum(DATA_Q) / K
    assert abs(variant.to_list(value) - variant.to_list(other) - offset) <= 16 * variant.eps()


def test_sampled_softmax_without_the_positive_has_no_lower_bound(variant: Variant) -> None:
    """The model can raise the scores of the data alone; with the data among the samples that does not help."""
    data, noise = variant.floats([500.0]), variant.floats([[1.0, 2.0]])
    assert variant.to_list(density.sampled_softmax(data, noise, None, -1.0, include_positive=False)) < -490
    assert variant.to_list(density.sampled_softmax(data, noise, -1.0, -1.0)) >= 1 - math.log(3) - 1e-5


def test_self_normalization_of_a_normalised_model(variant: Variant) -> None:
    rows = variant.floats(draw(K, N))
    normalised = density.recover_log_prob(rows, 0.0)
    found = density.self_normalization(normalised)
    assert found._fields == ("mean", "std", "effective_sample_size")
    assert abs(variant.to_list(found.mean)) <= 8 * variant.eps()
    assert abs(variant.to_list(found.std)) <= 8 * variant.eps()
    assert variant.to_list(found.effective_sample_size) == N
    # Samples from the model itself have weights all alike, and each has an estimate of exactly Z = 1.
    sampled = density.self_normalization(normalised, normalised)
    assert [variant.to_list(x) for x in sampled] == [0.0, 0.0, N]
    mask = variant.array([[True, True, True, False]] * K)
    assert [variant.to_list(x) for x in density.self_normalization(normalised, normalised, mask=mask)] == [0.0, 0.0, 3]


def test_self_normalization_says_how_few_samples_carry_it(variant: Variant) -> None:
    scores = variant.floats([[200.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    found = density.self_normalization(scores, -1.0)
    assert abs(variant.to_list(found.effective_sample_size) - 2.5) <= 8 * variant.eps()


@pytest.mark.parametrize("log_q", [None, -1.5], ids=["all values", "samples"])
def test_self_normalization_counts_the_contexts_in_which_something_takes_part(
    variant: Variant, log_q: float | None
) -> None:
    nested = [[1.0, 2.0, 0.0], [-INF, -INF, -INF], [0.0, 3.0, 1.0], [0.5, -1.0, 1.5]]
    mask = variant.array([[True] * 3, [True] * 3, [False] * 3, [True, True, False]])
    found = density.self_normalization(variant.floats(nested), log_q, mask=mask)
    with mp.workdps(oracles.DIGITS):
        weights = [[mp.exp(s) for s in nested[0]], [mp.exp(s) for s in nested[3][:2]]]
        logs = [mp.log(mp.fsum(w)) if log_q is None else mp.log(mp.fsum(w) / len(w)) - log_q for w in weights]
        sizes = [len(w) if log_q is None else mp.fsum(w) ** 2 / mp.fsum(x * x for x in w) for w in weights]
        wanted = [(logs[0] + logs[1]) / 2, abs(logs[0] - logs[1]) / 2, mp.fsum(sizes) / 2]
        assert oracles.error([variant.to_list(x) for x in found], wanted) <= 32 * variant.eps()
    nothing = density.self_normalization(variant.floats(nested[1:2]), log_q)
    assert [variant.to_list(x) for x in nothing] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("ahead", [40.0, -40.0])
def test_no_slope_of_sampled_softmax_cancels(variant: Variant, ahead: float) -> None:
    """It is -σ(u) by the score and -σ(-u) by log q, with log-odds u of the samples: each has all its digits."""
    arrays = [
        variant.floats([0.5 - ahead]),
        variant.floats([[0.5, 0.5]]),
        variant.floats([-1.0]),
        variant.floats([[-1.0] * 2]),
    ]
    _, slopes = differentiate(density.sampled_softmax, arrays)
    odds = ahead + mp.log(2)
    for slope, u in ((slopes[0], odds), (slopes[2], -odds)):
        wanted = -1 / (1 + mp.exp(-u))
        assert abs(variant.to_list(slope)[0] / wanted - 1) <= 128 * variant.eps()


def test_what_nothing_has_mass_for_has_no_probability(variant: Variant) -> None:
    got = density.recover_log_prob(variant.floats([[-INF, -INF], [0.0, -INF]]), 0.5)
    assert variant.to_list(got) == [[-INF, -INF], [0.0, -INF]]


def test_recovered_probabilities_sum_to_one(variant: Variant) -> None:
    """At scores of ten thousand too, and where the noise has no mass."""
    scores = variant.floats([[1e4, 1e4 - 1.0, -1e4], [-1e4, 0.0, 1.0]])
    got = variant.to_list(density.recover_log_prob(scores, variant.floats([-1.0, -1.0, -INF])))
    for row, first in zip(got, (1 / (1 + mp.exp(-1)), mpf(0)), strict=True):
        assert row[2] == -INF
        assert abs(mp.exp(row[0]) - first) <= 8 * variant.eps()
        assert abs(mp.fsum(mp.exp(x) for x in row) - 1) <= 8 * variant.eps()


# --- diagnostics ----------------------------------------------------------------------------------------------------


def test_alignment_of_the_same_directions_is_zero(variant: Variant) -> None:
    """However long the vectors, and with gradient 0 where the distance has a kink."""
    x = variant.floats([[3.0, 4.0], [0.0, -2.0], [1.0, 0.0]])
    for power in (1.0, 2.0, 3.0):
        value, (slope,) = differentiate(lambda a, p=power: diagnostics.alignment(a, a * 2.0, power=p), [x])
        assert variant.to_list(value) == 0.0
        assert flatten(variant.to_list(slope)) == [0.0] * 6


def test_alignment_of_opposite_directions(variant: Variant) -> None:
    x, y = variant.floats([[0.0, 3.0], [2.0, 0.0]]), variant.floats([[0.0, -1.0], [4.0, 0.0]])
    for power, wanted in ((1.0, 1.0), (2.0, 2.0), (3.0, 4.0)):
        got = variant.to_list(diagnostics.alignment(x, y, power=power))
        assert abs(got - wanted) <= 8 * variant.eps() * wanted
    weights = variant.floats([3.0, 1.0])
    assert abs(variant.to_list(diagnostics.alignment(x, y, weights=weights)) - 3.0) <= 8 * variant.eps()


@pytest.mark.parametrize("dtype", DTYPES)
def test_uniformity_of_a_collapse_is_zero(variant: Variant, dtype: str) -> None:
    x = variant.floats([[0.5, -1.0, 2.0]] * 4, dtype)
    value, (slope,) = differentiate(diagnostics.uniformity, [x])
    assert abs(variant.to_list(value)) <= 16 * computed_in(variant, dtype)
    assert max(abs(s) for s in flatten(variant.to_list(slope))) <= 16 * computed_in(variant, dtype)


@pytest.mark.parametrize("block_size", [2, *(pytest.param(b, marks=exhaustive) for b in (1, 3, "auto"))])
def test_uniformity_streamed(variant: Variant, block_size: pnce.typing.BlockSize) -> None:
    """The same value and gradient, also with the last tile cut short."""
    x = variant.floats(draw(5, 3))
    value, (slope,) = differentiate(lambda a: diagnostics.uniformity(a, block_size=block_size), [x])
    wanted, (expected,) = differentiate(lambda a: diagnostics.uniformity(a, block_size=None), [x])
    assert close_lists(variant, value, wanted)
    assert close_lists(variant, slope, expected)


@exhaustive
def test_uniformity_far_below_underflow(variant: Variant) -> None:
    """Two opposite points at t = 500: exp(-2000), whose logarithm is nothing special."""
    x = variant.floats([[1.0, 0.0], [-1.0, 0.0]])
    value, (slope,) = differentiate(lambda a: diagnostics.uniformity(a, t=500.0), [x])
    assert variant.to_list(value) == -2000.0
    assert all(mp.isfinite(s) for s in flatten(variant.to_list(slope)))


def test_zero_vectors_have_no_direction(variant: Variant) -> None:
    x = variant.floats([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    for function in (lambda a: diagnostics.alignment(a, x + 0.5), diagnostics.uniformity):
        value, (slope,) = differentiate(function, [x])
        assert all(mp.isfinite(s) for s in [variant.to_list(value), *flatten(variant.to_list(slope))])


def accuracy(variant: Variant, nested: Nested, **options: Any) -> Any:
    return variant.to_list(diagnostics.top_k_accuracy(variant.floats(nested), **options))


def test_top_k_counts_how_many_are_ahead(variant: Variant) -> None:
    """Positives of rank 1, 2, 3 and 4."""
    nested = [[4.0, 1.0, 2.0, 3.0], [4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.0, 1.0]]
    for k, wanted in enumerate([0.25, 0.5, 0.75, 1.0, 1.0, 1.0], start=1):
        assert accuracy(variant, nested, k=k) == wanted
        assert accuracy(variant, nested, k=k, reduction="none") == [float(rank <= k) for rank in (1, 2, 3, 4)]
    assert accuracy(variant, nested, k=10**30) == 1.0  # more than an integer of any library
    weights = variant.floats([1.0, 0.0, 0.0, 3.0])
    assert accuracy(variant, nested, weights=weights) == 0.25


def test_top_k_ties_count_against(variant: Variant) -> None:
    """A collapse is never right by accident, unless k admits every negative."""
    collapsed = [[1.0] * N] * K
    assert [accuracy(variant, collapsed, k=k) for k in (1, N - 1, N)] == [0.0, 0.0, 1.0]
    assert accuracy(variant, [[1.0, 1.0, 0.0], [0.0, 1.0, 0.5]], reduction="none") == [0.0, 1.0]


def test_top_k_of_nan_is_no_hit(variant: Variant) -> None:
    """A model that has diverged is not at 1."""
    assert accuracy(variant, [[NAN] * N] * K) == 0.0
    assert accuracy(variant, [[1.0, NAN, 0.0], [0.0, 1.0, 0.0]], reduction="none") == [0.0, 1.0]


def test_top_k_of_other_positives(variant: Variant) -> None:
    """The best of several positives counts; a row without positives does not, and neither do masked negatives."""
    nested = [[3.0, 1.0, 2.0], [0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]
    positives = variant.array([[False, True, True], [True, True, False], [False, False, False]])
    assert accuracy(variant, nested, positives=positives, k=1) == 0.0
    assert accuracy(variant, nested, positives=positives, k=2) == 1.0
    mask = variant.array([[False, True, True], [True] * 3, [True] * 3])
    assert accuracy(variant, nested, positives=positives, mask=mask) == 0.5
    assert accuracy(variant, nested, positives=variant.array([0, 2, 1])) == pytest.approx(2 / 3)


def test_top_k_has_no_gradient(variant: Variant) -> None:
    scores = variant.floats(draw(K, N))
    value, (slope,) = differentiate(diagnostics.top_k_accuracy, [scores])
    assert variant.to_list(value) == variant.to_list(diagnostics.top_k_accuracy(scores))
    assert flatten(variant.to_list(slope)) == [0.0] * (K * N)
    assert_belongs(variant, slope, scores, (K, N))


@pytest.mark.parametrize("normalized", [False, True])
def test_rows_without_negatives_have_no_effective_sample_size(variant: Variant, *, normalized: bool) -> None:
    """They do not count; a negative of -inf is none."""
    rows = [[0.5, 2.0, 2.0, 2.0], [1.0, 0.5, -INF, 1.0], [1.0, 1.0, 1.0, 1.0]]
    scores, mask = variant.floats(rows), variant.array([[True] * 4, [True] * 4, [False] * 4])
    size = functools.partial(diagnostics.effective_sample_size, normalized=normalized)
    wanted = [1.0, 1.0] if normalized else [3.0, 2.0]
    assert variant.to_list(size(scores, mask=mask, reduction="none")) == [*wanted, 0.0]
    assert variant.to_list(size(scores, mask=mask)) == sum(wanted) / 2
    assert variant.to_list(size(variant.floats([[1.0]]))) == 0.0


def test_one_column_says_nothing(variant: Variant) -> None:
    """Where it is no error: there are no negatives, and log 1 is all that could be seen."""
    scores = variant.floats([[3.0]])
    assert variant.to_list(bounds.info_nce(scores)) == 0.0
    assert variant.to_list(diagnostics.headroom(scores)) == 0.0
    assert variant.to_list(bounds.log_n_ceiling(scores)) == bounds.log_n_ceiling(1) == 0.0
    assert variant.to_list(bounds.barber_agakov(scores, 1.5)) == 4.5


# --- bad input ------------------------------------------------------------------------------------------------------


def matrix(variant: Variant, rows: int = K, columns: int = N) -> Any:
    return variant.floats(draw(rows, columns))


def vector(variant: Variant, size: int = K) -> Any:
    return variant.floats(draw(size))


Call = tuple[str, "Callable[[Variant], Any]"]

ONE_MATRIX = {
    name: getattr(bounds, name)
    for name in ("info_nce", "info_nce_anchor", "fdv", "dv", "nwj", "js", "js_mi", "smile", "club", "mine")
}

TEXT: Any = "5"


def on(function: Callable[[Any], Any], make: Callable[[Variant], Any]) -> Call:
    """A call that ought to find fault with its scores."""
    return "scores", lambda variant: function(make(variant))


VALUES: dict[str, Call] = {
    **{f"{name} of fewer columns": on(f, lambda v: matrix(v, 4, 3)) for name, f in ONE_MATRIX.items()},
    **{
        f"{name} of one column": on(f, lambda v: matrix(v, 1, 1))
        for name, f in ONE_MATRIX.items()
        if name != "info_nce"
    },
    **{f"{name} of a vector": on(f, vector) for name, f in ONE_MATRIX.items()},
    "headroom of a vector": ("scores", lambda v: diagnostics.headroom(vector(v))),
    "leave_one_out of more columns": ("scores", lambda v: bounds.leave_one_out(matrix(v))),
    "leave_one_out of one pair": ("scores", lambda v: bounds.leave_one_out(matrix(v, 1, 1))),
    "flo, critic too short": ("u", lambda v: bounds.flo(matrix(v), vector(v, 2))),
    "flo, critic a matrix": ("u", lambda v: bounds.flo(matrix(v), matrix(v))),
    "tuba, baseline too short": ("log_baseline", lambda v: bounds.tuba(matrix(v), vector(v, 2))),
    "tuba, baseline a matrix": ("log_baseline", lambda v: bounds.tuba(matrix(v), matrix(v))),
    "info_nce_anchor, nu 0": ("nu", lambda v: bounds.info_nce_anchor(matrix(v), nu=0.0)),
    "info_nce_anchor, nu infinite": ("nu", lambda v: bounds.info_nce_anchor(matrix(v), nu=INF)),
    "info_nce_anchor, form": ("form", lambda v: bounds.info_nce_anchor(matrix(v), form=TEXT)),
    "tuba, baseline infinite": ("log_baseline", lambda v: bounds.tuba(matrix(v), INF)),
    "interpolated, baseline too long": ("log_baseline", lambda v: bounds.interpolated(matrix(v), 0.5, vector(v, N))),
    "interpolated, alpha above 1": ("alpha", lambda v: bounds.interpolated(matrix(v), 1.5, 0.0)),
    "interpolated, alpha below 0": ("alpha", lambda v: bounds.interpolated(matrix(v), -0.5, 0.0)),
    "interpolated, alpha NaN": ("alpha", lambda v: bounds.interpolated(matrix(v), NAN, 0.0)),
    "mine, rate 0": ("rate", lambda v: bounds.mine(matrix(v), rate=0.0)),
    "mine, rate above 1": ("rate", lambda v: bounds.mine(matrix(v), rate=1.5)),
    "mine, state a vector": ("log_mean", lambda v: bounds.mine(matrix(v), vector(v))),
    "mine, state a vector, rate 1": ("log_mean", lambda v: bounds.mine(matrix(v), vector(v), rate=1.0)),
    "smile, clip 0": ("clip", lambda v: bounds.smile(matrix(v), clip=0.0)),
    "smile, clip negative": ("clip", lambda v: bounds.smile(matrix(v), clip=-5.0)),
    "barber_agakov, fewer columns": ("scores", lambda v: bounds.barber_agakov(matrix(v, 4, 3), 1.0)),
    "barber_agakov, entropies": ("entropy", lambda v: bounds.barber_agakov(vector(v), vector(v))),
    "barber_agakov of nothing": ("scores", lambda v: bounds.barber_agakov(vector(v)[:0], 1.0)),
    "vub, marginal too short": ("log_marginal", lambda v: bounds.vub(vector(v), vector(v, 2))),
    "vub, marginal a matrix": ("log_marginal", lambda v: bounds.vub(matrix(v), matrix(v))),
    "log_n_ceiling of 0": ("scores", lambda _: bounds.log_n_ceiling(0)),
    "log_n_ceiling of a number, masked": (
        "mask",
        lambda v: bounds.log_n_ceiling(N, mask=v.array([[True] * N] * K)),
    ),
    "log_n_ceiling of a number, positives": (
        "positives",
        lambda v: bounds.log_n_ceiling(N, positives=v.array([0] * K)),
    ),
    "local_nce, data a matrix": ("data_scores", lambda v: density.local_nce(matrix(v), matrix(v), 0.0, 0.0)),
    "local_nce, data too short": ("data_scores", lambda v: density.local_nce(vector(v, 2), matrix(v), 0.0, 0.0)),
    "local_nce, noise a vector": ("noise_scores", lambda v: density.local_nce(vector(v), vector(v), 0.0, 0.0)),
    "local_nce, no noise": ("noise_scores", lambda v: density.local_nce(vector(v), matrix(v)[:, :0], 0.0, 0.0)),
    "local_nce, data_log_q too long": (
        "data_log_q",
        lambda v: density.local_nce(vector(v), matrix(v), vector(v, N), 0.0),
    ),
    "local_nce, noise_log_q too short": (
        "noise_log_q",
        lambda v: density.local_nce(vector(v), matrix(v), 0.0, vector(v, K)),
    ),
    "local_nce, noise_log_q turned": (
        "noise_log_q",
        lambda v: density.local_nce(vector(v), matrix(v), 0.0, matrix(v, N, K)),
    ),
    "local_nce, data_log_q NaN": ("data_log_q", lambda v: density.local_nce(vector(v), matrix(v), NAN, 0.0)),
    "local_nce, noise_log_q infinite": ("noise_log_q", lambda v: density.local_nce(vector(v), matrix(v), 0.0, INF)),
    "density.info_nce_anchor, nu 0": (
        "nu",
        lambda v: density.info_nce_anchor(vector(v), matrix(v), 0.0, 0.0, nu=0.0),
    ),
    "local_nce, mask": (
        "mask",
        lambda v: density.local_nce(vector(v), matrix(v), 0.0, 0.0, mask=v.array([[True] * K] * K)),
    ),
    "local_nce, weights": (
        "weights",
        lambda v: density.local_nce(vector(v), matrix(v), 0.0, 0.0, weights=vector(v, N)),
    ),
    "local_nce, reduction": (
        "reduction",
        lambda v: density.local_nce(vector(v), matrix(v), 0.0, 0.0, reduction="average"),
    ),
    "log_partition, noise_log_q": ("noise_log_q", lambda v: density.log_partition(matrix(v), vector(v, K))),
    "full_softmax, targets too long": (
        "targets",
        lambda v: density.full_softmax(matrix(v), v.array([0, 1, 2, 3])),
    ),
    "full_softmax, scores a vector": ("scores", lambda v: density.full_softmax(vector(v), v.array([0, 1, 2]))),
    "full_softmax, mask": (
        "mask",
        lambda v: density.full_softmax(matrix(v), v.array([0, 1, 2]), mask=v.array([[True] * K] * K)),
    ),
    "recover_log_prob, log_q": ("log_q", lambda v: density.recover_log_prob(matrix(v), vector(v, K))),
    "recover_log_prob, scores a vector": ("scores", lambda v: density.recover_log_prob(vector(v), 0.0)),
    "self_normalization, scores a vector": ("scores", lambda v: density.self_normalization(vector(v))),
    "self_normalization, log_q": ("log_q", lambda v: density.self_normalization(matrix(v), vector(v, K))),
    "effective_sample_size, weights": (
        "weights",
        lambda v: diagnostics.effective_sample_size(matrix(v), weights=vector(v, N)),
    ),
    "alignment, other rows": ("y", lambda v: diagnostics.alignment(matrix(v), matrix(v, K + 1))),
    "alignment, a vector": ("x", lambda v: diagnostics.alignment(vector(v), vector(v))),
    "alignment, power 0": ("power", lambda v: diagnostics.alignment(matrix(v), matrix(v), power=0.0)),
    "uniformity, one row": ("x", lambda v: diagnostics.uniformity(matrix(v, 1))),
    "uniformity, t negative": ("t", lambda v: diagnostics.uniformity(matrix(v), t=-1.0)),
    "uniformity, block_size": ("block_size", lambda v: diagnostics.uniformity(matrix(v), block_size=0)),
    "top_k_accuracy, k 0": ("k", lambda v: diagnostics.top_k_accuracy(matrix(v), k=0)),
    "top_k_accuracy, fewer columns": ("scores", lambda v: diagnostics.top_k_accuracy(matrix(v, 4, 3))),
    "top_k_accuracy, reduction": ("reduction", lambda v: diagnostics.top_k_accuracy(matrix(v), reduction="median")),
}


def no_list(variant: Variant) -> Any:
    return variant.to_list(vector(variant))


KINDS: dict[str, Call] = {
    **{f"{name} of integers": on(f, lambda v: v.array([[1, 2], [3, 4]])) for name, f in ONE_MATRIX.items()},
    **{f"{name} of a list": on(f, lambda _: [[1.0, 2.0], [3.0, 4.0]]) for name, f in ONE_MATRIX.items()},
    "leave_one_out of a list": ("scores", lambda _: bounds.leave_one_out([[1.0, 2.0], [3.0, 4.0]])),
    "flo, a number for the critic": ("u", lambda v: bounds.flo(matrix(v), 1.0)),
    "flo, a foreign critic": ("u", lambda v: bounds.flo(matrix(v), foreign_array(v, [1.0] * K))),
    "tuba, a list": ("log_baseline", lambda v: bounds.tuba(matrix(v), [0.0] * K)),
    "tuba, None": ("log_baseline", lambda v: bounds.tuba(matrix(v), None)),
    "tuba, integers": ("log_baseline", lambda v: bounds.tuba(matrix(v), v.array([1] * K))),
    "tuba, a foreign baseline": ("log_baseline", lambda v: bounds.tuba(matrix(v), foreign_array(v, [1.0] * K))),
    "interpolated, alpha an array": ("alpha", lambda v: bounds.interpolated(matrix(v), v.floats(0.5), 0.0)),
    "interpolated, alpha a truth value": (
        "alpha",
        lambda v: bounds.interpolated(matrix(v), alpha=True, log_baseline=0.0),
    ),
    "mine, a list": ("log_mean", lambda v: bounds.mine(matrix(v), [0.0])),
    "mine, an integer state": ("log_mean", lambda v: bounds.mine(matrix(v), v.array([1]))),
    "mine, rate a text": ("rate", lambda v: bounds.mine(matrix(v), rate=TEXT)),
    "smile, clip a text": ("clip", lambda v: bounds.smile(matrix(v), clip=TEXT)),
    "barber_agakov of a list": ("scores", lambda _: bounds.barber_agakov([1.0, 2.0], 1.0)),
    "barber_agakov of integers": ("scores", lambda v: bounds.barber_agakov(v.array([1, 2]), 1.0)),
    "barber_agakov, entropy None": ("entropy", lambda v: bounds.barber_agakov(vector(v), None)),
    "barber_agakov, entropy a list": ("entropy", lambda v: bounds.barber_agakov(vector(v), [1.0])),
    "vub, a number": ("log_marginal", lambda v: bounds.vub(vector(v), -1.0)),
    "vub, integers": ("log_marginal", lambda v: bounds.vub(vector(v), v.array([1] * K))),
    "local_nce, data a number": ("data_scores", lambda v: density.local_nce(0.5, matrix(v), 0.0, 0.0)),
    "local_nce, data a list": ("data_scores", lambda v: density.local_nce(no_list(v), matrix(v), 0.0, 0.0)),
    "local_nce, data None": ("data_scores", lambda v: density.local_nce(None, matrix(v), 0.0, 0.0)),
    "local_nce, noise a number": ("noise_scores", lambda v: density.local_nce(vector(v), 0.5, 0.0, 0.0)),
    "local_nce, noise None": ("noise_scores", lambda v: density.local_nce(vector(v), None, 0.0, 0.0)),
    "local_nce, data_log_q None": ("data_log_q", lambda v: density.local_nce(vector(v), matrix(v), None, 0.0)),
    "local_nce, noise_log_q None": ("noise_log_q", lambda v: density.local_nce(vector(v), matrix(v), 0.0, None)),
    "local_nce, noise_log_q a list": (
        "noise_log_q",
        lambda v: density.local_nce(vector(v), matrix(v), 0.0, [0.0] * N),
    ),
    "local_nce, foreign noise": (
        "noise_scores",
        lambda v: density.local_nce(vector(v), foreign_array(v, [[1.0] * N] * K), 0.0, 0.0),
    ),
    "local_nce, a float mask": (
        "mask",
        lambda v: density.local_nce(vector(v), matrix(v), 0.0, 0.0, mask=matrix(v)),
    ),
    "negative_sampling, noise a list": (
        "noise_scores",
        lambda v: density.negative_sampling(vector(v), [[1.0] * N] * K),
    ),
    "info_nce_anchor, no nu": (
        "nu",
        lambda v: density.info_nce_anchor(vector(v), matrix(v), 0.0, 0.0, nu=vector(v)),
    ),
    "ranking_nce, one of two": ("noise_log_q", lambda v: density.ranking_nce(vector(v), matrix(v), 0.0)),
    "ranking_nce, the other of two": (
        "data_log_q",
        lambda v: density.ranking_nce(vector(v), matrix(v), None, vector(v, N)),
    ),
    "sampled_softmax, no data_log_q": (
        "data_log_q",
        lambda v: density.sampled_softmax(vector(v), matrix(v), None, 0.0),
    ),
    "sampled_softmax, no noise_log_q": (
        "noise_log_q",
        lambda v: density.sampled_softmax(vector(v), matrix(v), 0.0, None),
    ),
    "log_partition, None": ("noise_log_q", lambda v: density.log_partition(matrix(v), None)),
    "log_partition, a number": ("noise_scores", lambda _: density.log_partition(1.0, 0.0)),
    "full_softmax, float targets": ("targets", lambda v: density.full_softmax(matrix(v), vector(v))),
    "full_softmax, listed targets": ("targets", lambda v: density.full_softmax(matrix(v), [0, 1, 2])),
    "recover_log_prob, None": ("log_q", lambda v: density.recover_log_prob(matrix(v), None)),
    "recover_log_prob, integers": ("log_q", lambda v: density.recover_log_prob(matrix(v), v.array([1] * N))),
    "self_normalization of a list": ("scores", lambda _: density.self_normalization([[1.0]])),
    "alignment, a list": ("y", lambda v: diagnostics.alignment(matrix(v), [[1.0] * N] * K)),
    "alignment, power a text": ("power", lambda v: diagnostics.alignment(matrix(v), matrix(v), power=TEXT)),
    "uniformity, integers": ("x", lambda v: diagnostics.uniformity(v.array([[1, 2], [3, 4]]))),
}


@pytest.mark.parametrize("what", list(VALUES))
def test_values_that_do_not_fit(variant: Variant, what: str) -> None:
    name, call = VALUES[what]
    with pytest.raises(ValueError, match=rf"(?s)^{name}: expected.*got"):
        call(variant)


@pytest.mark.parametrize("what", list(KINDS))
def test_kinds_that_do_not_fit(variant: Variant, what: str) -> None:
    name, call = KINDS[what]
    with pytest.raises(TypeError, match=rf"(?s)^{name}: expected.*got"):
        call(variant)


@pytest.mark.two_devices
def test_two_devices(variant: Variant) -> None:
    """Arrays on two devices are not moved behind the caller's back."""
    there = variant.array([0.5] * K, device=variant.other_device)
    with pytest.raises(ValueError, match=r"^u: expected.*device.*got"):
        bounds.flo(matrix(variant), there)
    with pytest.raises(ValueError, match=r"^log_baseline: expected.*device.*got"):
        bounds.tuba(matrix(variant), there)
    with pytest.raises(ValueError, match=r"^data_log_q: expected.*device.*got"):
        density.local_nce(vector(variant), matrix(variant), there, 0.0)


def test_two_dtypes(variant: Variant) -> None:
    """Which precision was meant is the caller's to say."""
    others = {*variant.dtypes, *variant.further_dtypes} & {"float32", "float16"} - {variant.dtypes[0]}
    for other in others:
        if {other, variant.dtypes[0]} == {"float16", "float32"}:
            continue  # 16 bits may meet float32, in which they are computed
        narrow = variant.floats(draw(K), other)
        with pytest.raises(TypeError, match=r"^u: expected the dtype of scores.*got"):
            bounds.flo(matrix(variant), narrow)
        with pytest.raises(TypeError, match=r"^log_marginal: expected the dtype of scores.*got"):
            bounds.vub(matrix(variant), narrow)
        with pytest.raises(TypeError, match=r"^noise_scores: expected the dtype of data_scores.*got"):
            density.local_nce(narrow, matrix(variant), 0.0, 0.0)


def test_a_context_without_samples_is_left_out(variant: Variant) -> None:
    data, noise = draw(3), draw(3, 4)
    mask = [[True] * 4, [False] * 4, [True] * 4]

    def loss(data_scores: Any, noise_scores: Any, *, mask: Any = None) -> Any:
        return density.sampled_softmax(data_scores, noise_scores, None, -1.0, include_positive=False, mask=mask)

    arrays = [variant.floats(data), variant.floats(noise)]
    value, slopes = differentiate(lambda *x: loss(*x, mask=variant.array(mask)), arrays)
    expected, others = differentiate(loss, [variant.floats([x[0], x[2]]) for x in (data, noise)])
    tolerance = 64 * computed_in(variant, variant.dtypes[0])
    assert abs(variant.to_list(value) - variant.to_list(expected)) <= tolerance
    for ours, theirs in zip(slopes, others, strict=True):
        found = variant.to_list(ours)
        assert not any(flatten([found[1]]))
        left = flatten([found[0], found[2]])
        assert max(abs(a - b) for a, b in zip(left, flatten(variant.to_list(theirs)), strict=True)) <= tolerance


def test_a_zero_vector_is_as_far_from_a_unit_vector_in_both_diagnostics(variant: Variant) -> None:
    nothing, unit = [0.0, 0.0], [0.0, 2.0]
    aligned = diagnostics.alignment(variant.floats([nothing]), variant.floats([unit]))
    spread = diagnostics.uniformity(variant.floats([nothing, unit]), t=2.0)
    tolerance = 16 * computed_in(variant, variant.dtypes[0])
    assert abs(variant.to_list(aligned) - 1.0) <= tolerance
    assert abs(variant.to_list(spread) + 2.0) <= tolerance
