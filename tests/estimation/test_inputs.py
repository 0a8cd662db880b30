"""What users pass: numbers and names side by side, missing values, units, and critics of their own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from portable_nce.estimation import independence_test, information_by_column, mutual_information, table
from portable_nce.estimation.dependence import has_near_copies
from portable_nce.estimation.host import MOST_INDICATORS, has_numbered_categories, on_host
from portable_nce.estimation.sample import sample_of

RNG = np.random.default_rng(5)
ROWS = 240
DOSE, A, B = RNG.normal(size=(3, ROWS))
SEX = RNG.choice(["f", "m"], size=ROWS)
CLASS = RNG.integers(3, size=ROWS)


class Missing:
    """As pandas' NA, whose comparisons have no truth value."""

    def __ne__(self, other: object) -> Any:
        return self

    def __hash__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


class Table:
    """As a pandas data frame."""

    def __init__(self, *columns: Any) -> None:
        self.columns = columns

    def to_numpy(self) -> Any:
        return np.stack([np.asarray(column).astype(object) for column in self.columns], axis=1)


def estimate(x: Any, y: Any, **options: Any) -> Any:
    """A short estimate."""
    return mutual_information(x, y, **{"rng": 0, "progress": False, "splits": 1, "steps": 20, **options})


# -------------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    "mixed",
    [Table(DOSE, SEX), [[float(a), str(b)] for a, b in zip(DOSE, SEX, strict=True)], Table(DOSE, SEX).to_numpy()],
    ids=["table", "list", "array of objects"],
)
def test_numbers_beside_names_stay_numbers(mixed: Any) -> None:
    np.testing.assert_array_equal(on_host("x", mixed), np.stack([DOSE, SEX == "m"], axis=1))


def test_columns_of_objects_are_as_their_values() -> None:
    for x in (DOSE, CLASS, CLASS == 0, SEX, 2**60 + CLASS, np.arange(ROWS)):
        np.testing.assert_array_equal(on_host("x", x.astype(object)), on_host("x", x))
        np.testing.assert_array_equal(on_host("x", list(x)), on_host("x", x))
        assert has_numbered_categories("x", x.astype(object)) == has_numbered_categories("x", x)
    assert not has_numbered_categories("x", DOSE.astype(object))
    assert has_numbered_categories("x", np.arange(MOST_INDICATORS + 1).astype(str))


def test_large_integers_are_different_classes() -> None:
    np.testing.assert_array_equal(on_host("x", 2**60 + CLASS), on_host("x", CLASS))
    groups = 2**60 + np.arange(ROWS) // 5
    for labels in (groups, list(groups), groups.tolist()):
        assert len(sample_of(DOSE, A, labels, None, None).clusters.rows) == ROWS // 5


@pytest.mark.parametrize("labels", [np.repeat(np.asarray(list("abcdefghijkl")), 20), np.arange(ROWS) // 20])
def test_labels_of_numpys_values(labels: Any) -> None:
    wanted = estimate(DOSE, A, groups=labels.tolist(), steps=5).bound
    assert estimate(DOSE, A, groups=list(labels), steps=5).bound == wanted


def test_dates_are_an_order() -> None:
    dates = np.datetime64("2020-01-01") + np.arange(ROWS)
    assert estimate(DOSE, A, order=list(dates), steps=5).bound == estimate(DOSE, A, order=range(ROWS), steps=5).bound


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan, Missing()], ids=["None", "nan", "np.nan", "NA"])
@pytest.mark.parametrize("name", ["x", "given", "groups", "order"])
def test_missing_values_beside_others_are_refused(name: str, missing: Any) -> None:
    others = list(range(1, ROWS)) if name == "order" else [f"n{k % 12}" for k in range(1, ROWS)]
    values = [missing, *others]
    for each in (values, np.asarray([*values, []], dtype=object)[:-1]):
        with pytest.raises(ValueError, match=f"{name}: expected a (value|label) (in|of) each row, got some that are"):
            estimate(each, A) if name == "x" else estimate(DOSE, A, **{name: each})


@pytest.mark.parametrize("dtype", [np.int64, np.float64, object])
def test_masked_values_are_refused(dtype: Any) -> None:
    masked = np.ma.array(CLASS.astype(dtype), mask=np.arange(ROWS) < ROWS // 2)
    for name in ("x", "given"):
        with pytest.raises(TypeError, match=f"{name}: expected an array, got a MaskedArray"):
            estimate(masked, A) if name == "x" else independence_test(A, B, given=masked)


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        ([[1.0]] * 59 + [[1.0, 2.0]], ValueError, "x: expected rows of one length, got rows of several"),
        (torch.eye(60).to_sparse(), TypeError, "x: expected a dense tensor"),
        ([[DOSE]] * 60, ValueError, r"x: expected shape \(N, D\)"),
        ([{}] * 60, TypeError, "x: expected numbers or names, got dict"),
        (
            np.asarray([*map(np.ones, [2] * 60), None], dtype=object)[:-1],
            TypeError,
            "x: expected numbers or names, got nd",
        ),
    ],
)
def test_arguments_that_are_no_samples(x: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        estimate(x, A[:60])


def test_labels_that_are_arrays_are_refused() -> None:
    with pytest.raises(TypeError, match="groups: expected a number, a name or a time for each row, got lists"):
        estimate(DOSE, A, groups=[np.ones(2) for _ in DOSE])


def test_each_column_of_names_is_one() -> None:
    shapes = np.asarray(["round", "square", "flat"])[RNG.integers(3, size=(ROWS, 2))]
    found = information_by_column(shapes, A, names=["left", "right"], rng=0, splits=1, steps=5, progress=False)
    assert [row.name for row in found] == ["left", "right"]
    assert found[1].result.bound == estimate(shapes[:, 1], A, steps=5).bound
    with pytest.raises(ValueError, match="names: expected a name of each of the 2 columns, got 1"):
        information_by_column(shapes, A, names=["left"])


def test_a_table_of_other_results_is_refused() -> None:
    found: Any = {"a": estimate(DOSE, A, given=B, steps=5)}
    with pytest.raises(TypeError, match="results: expected results of mutual_information, got ConditionalInformation"):
        table(found)
    assert found["a"].to_dict()["with_y"]["curve"][0][0] == ROWS // 2


def test_seeds_are_not_negative() -> None:
    with pytest.raises(ValueError, match="rng: expected an integer from 0 on, got -3"):
        estimate(DOSE, A, rng=-3)


# ---------------------------------------------------------------------------------------------------------------- units


@pytest.mark.parametrize("unit", [1e-300, 1e-13, 1e13, 1e300])
def test_units_do_not_matter_to_a_test_given_numbers(unit: float) -> None:
    x, y = DOSE + A, DOSE + A + 0.5 * B
    wanted = independence_test(x, y, given=DOSE, rng=0, permutations=99).p
    assert wanted == 0.01
    for scaled in ((unit * x, y, DOSE), (x, unit * y, DOSE), (x, y, unit * DOSE)):
        assert independence_test(*scaled[:2], given=scaled[2], rng=0, permutations=99).p == wanted


def test_constant_columns_have_no_residuals() -> None:
    for constant in (0.0, 0.1, 1e9 / 3.0):
        assert independence_test(np.full(ROWS, constant), A, given=DOSE, rng=0, permutations=99).p == 1.0


# ---------------------------------------------------------------------------------------------------------- near copies


@pytest.mark.parametrize(
    ("rows", "made"),
    [
        (60, lambda rng, n: rng.integers(10, size=n)),
        (100, lambda rng, n: rng.integers(20, size=n).astype(str)),
        (300, lambda rng, n: np.round(rng.normal(size=n), 1)),
        (1000, lambda rng, n: np.round(rng.normal(size=n), 1)),
        (3000, lambda rng, n: rng.integers(20, 80, size=n).astype(float)),
    ],
)
def test_few_values_beside_a_continuous_column_are_no_copies(rows: int, made: Callable[..., Any]) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, y = on_host("x", made(rng, rows)), rng.normal(size=(rows, 1))
        assert not has_near_copies(x, y, range(rows), Random(seed))


@pytest.mark.parametrize("columns", [(1, 8), (3, 3)])
def test_near_copies_in_rounded_columns_are_noticed(columns: tuple[int, int]) -> None:
    """Beside a continuous column, and without one."""
    rng = np.random.default_rng(1)
    x, y = (np.repeat(rng.normal(size=(300, width)), 3, axis=0) for width in columns)
    x, y = x + 0.01 * rng.normal(size=x.shape), np.round(10.0 * y + 0.3 * rng.normal(size=y.shape))
    x = x if columns[0] == 1 else np.round(15.0 * x)
    assert has_near_copies(x, y, range(900), Random(0))


def test_near_copies_with_a_label_are_noticed() -> None:
    drawn, noise = RNG.normal(size=(100, 3)), 1e-3 * RNG.normal(size=(300, 3))
    x, label = np.tile(drawn, (3, 1)) + noise, np.tile(RNG.integers(4, size=100), 3)
    assert has_near_copies(x, on_host("y", label), range(300), Random(0))


# --------------------------------------------------------------------------------------------------------- own critics


@pytest.mark.parametrize(
    ("scores", "error", "words"),
    [
        (lambda scale, a, b: scale * (a @ b.T)[:, :1], ValueError, r"critic: expected scores of shape \(\d+, \d+\)"),
        (lambda *_: None, TypeError, "critic: expected an array of scores of shape .*, got NoneType"),
        (lambda scale, a, b: scale * (a @ b.T) * np.nan, ValueError, "critic: expected scores with a finite largest"),
        (lambda scale, a, b: scale * (a @ b.T) + np.inf, ValueError, "critic: expected scores with a finite largest"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_scores_of_a_critic_are_checked(scores: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        estimate(DOSE, A, critic=(scores, np.asarray(1.0)), steps=2)


def test_the_bound_is_below_its_ceiling() -> None:
    x = np.sort(DOSE[:60])
    found = estimate(x, x + 0.0 * A[:60], groups=[0] * 30 + list(range(1, 31)), steps=100)
    assert found.bound <= found.ceiling


@pytest.mark.parametrize(
    "of_library", [lambda f: f(torch.zeros((60, 1), device="meta")), lambda f: torch.vmap(f)(torch.ones((2, 60, 1)))]
)
def test_tensors_without_entries_are_refused(of_library: Callable[[Callable[[Any], Any]], Any]) -> None:
    with pytest.raises(TypeError, match="x: expected an array whose entries can be read, got one without"):
        of_library(lambda x: estimate(x, x).estimate)
