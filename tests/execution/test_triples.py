"""Sums over triples against a sum over all of them, by comparing positives and by sorting negatives."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce._core.registry import adapter_of
from portable_nce._execution import tiling

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = pytest.mark.internals

SCORES = ("normal", "with ties", "far from 0", "tiny", "wide")
SIZES = ((5, 7, 2), (30, 40, 3), (12, 300, 100), (17, 129, 64))  # rows, columns, positives of a row on average
MINING: tuple[Any, ...] = ("batch_all", "semi_hard", ("semi_hard", "all"), ("all", "hard"), ("easy", "all"))


def drawn(kind: str, rows: int, columns: int, each: int, dtype: type) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Scores, and positives: none in row 0, all columns in row 1, one column that is masked everywhere."""
    rng = np.random.default_rng(rows)
    scores = rng.standard_normal((rows, columns))
    if kind == "with ties":
        scores = np.round(2 * scores) / 2
    if kind == "far from 0":
        scores = 1e4 + np.round(64 * scores) / 1024
    if kind == "tiny":
        scores = 1e-6 * scores
    if kind == "wide":
        scores = scores * 10.0 ** rng.integers(-3, 4, (rows, columns))
    positives = rng.random((rows, columns)) < each / columns
    positives[0], positives[1] = False, True
    scores[:, 2] = -np.inf
    return scores.astype(dtype), positives


def visited(
    scores: NDArray[Any], positives: NDArray[np.bool_], margin: float, mining: Any
) -> tuple[float, NDArray[Any], float]:
    """Mean over all triples, each of which is made, and its derivatives by scores and margin."""
    total, number, slopes, active = 0.0, 0, np.zeros(scores.shape), 0
    for i, row in enumerate(scores.astype(np.float64)):
        live = row != -np.inf
        p, n = (np.flatnonzero(x & live) for x in (positives[i], ~positives[i]))
        if len(p) and len(n):
            a, b = chosen(row, p, n, mining)
            losses = row[b] - row[a] + margin
            number, total, active = number + len(a), total + losses[losses > 0].sum(), active + (losses > 0).sum()
            np.add.at(slopes[i], a[losses > 0], -1.0)
            np.add.at(slopes[i], b[losses > 0], 1.0)
    return total / number, slopes / number, active / number


def chosen(
    row: NDArray[Any], p: NDArray[np.intp], n: NDArray[np.intp], mining: Any
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positives and negatives of the triples of a row."""
    if mining == "batch_all":
        return np.repeat(p, len(n)), np.tile(n, len(p))
    if mining == "semi_hard":
        behind = [n[row[n] < row[a]] for a in p]
        return p, np.asarray([b[row[b].argmax()] if len(b) else n[row[n].argmin()] for b in behind])
    if mining == ("semi_hard", "all"):
        before = [p[row[p] > row[b]] for b in n]
        return np.asarray([a[row[a].argmin()] if len(a) else p[row[p].argmax()] for a in before]), n
    if mining == ("all", "hard"):
        return p, np.full_like(p, n[row[n].argmax()])
    return np.full_like(n, p[row[p].argmax()]), n


@pytest.mark.parametrize("most", [0, 1000], ids=["sorted", "compared"])
@pytest.mark.parametrize("mining", MINING, ids=str)
@pytest.mark.parametrize("kind", SCORES)
def test_sums_over_triples_are_those_of_each_triple(
    monkeypatch: pytest.MonkeyPatch, kind: str, mining: Any, most: int
) -> None:
    """Values within a few roundings, gradients but for the last digit; both libraries whose entries can be read."""
    for name in ("_COMPARED", "_SEARCHED"):
        monkeypatch.setattr(tiling, name, most)
    for size in SIZES:
        for dtype, digits in ((np.float32, 2e-6), (np.float64, 2e-14)):
            scores, positives = drawn(kind, *size, dtype)
            for margin in (0.0, 0.25, 64.0):
                value, gradient, slope = visited(scores, positives, margin, mining)
                x, given = torch.tensor(scores, requires_grad=True), torch.tensor(margin, dtype=torch.float64)
                given = given.to(x.dtype).requires_grad_()
                options: dict[str, Any] = {"mining": mining}
                loss = pnce.from_scores.triplet(x, positives=torch.tensor(positives), margin=given, **options)
                loss.backward()
                assert x.grad is not None and given.grad is not None  # noqa: PT018
                options["positives"] = positives
                ours = pnce.value_and_grad(lambda s, m, o=options: pnce.from_scores.triplet(s, margin=m, **o), (0, 1))(
                    scores, np.asarray(margin, dtype=dtype)
                )
                found: list[Any] = [(loss.detach(), x.grad, given.grad), (ours[0], *ours[1])]
                for numbers in found:
                    expected: Any
                    for number, expected in zip(numbers, (value, gradient, slope), strict=True):
                        np.testing.assert_allclose(number, expected, rtol=digits, atol=digits * np.abs(expected).max())


def test_many_triples_that_are_hardly_active_keep_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand negatives just before a thousand positives, and one far before: running sums in float32 lose these."""
    monkeypatch.setattr(tiling, "_COMPARED", 0)
    row = np.concatenate([np.full(1000, -1.0), np.full(1000, -1.0 + 2.0**-20), [0.0]]).astype(np.float32)[None, :]
    positives = np.arange(2001)[None, :] < 1000
    value = pnce.from_scores.triplet(row, positives=positives, margin=0.0, reduction="sum")
    assert float(value) == pytest.approx(1000 + 1e6 * 2.0**-20, rel=1e-6)


def test_rows_are_ordered_stably() -> None:
    """Entries that are equal, zeros of either sign among them, in the order of their columns."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (9, 50)).astype(np.float32) * rng.choice([1.0, -1.0], (9, 50)).astype(np.float32)
    x[0, :5] = -np.inf
    x[1, 7:9] = np.inf
    x[2] *= 1e-42
    expected = np.argsort(x, axis=1, kind="stable")
    for own in (x, torch.tensor(x), x.astype(np.float64), torch.tensor(x).double()):
        np.testing.assert_array_equal(adapter_of(own).order_of_rows(own), expected)


def test_values_are_added_in_columns_that_repeat() -> None:
    rng = np.random.default_rng(0)
    x, values, columns = rng.standard_normal((4, 6)), rng.standard_normal((4, 9)), rng.integers(0, 6, (4, 9))
    expected = x.copy()
    np.add.at(expected, (np.arange(4)[:, None], columns), values)
    for own in (np.asarray, torch.tensor):
        arrays = own(x.copy()), own(columns), own(values)
        np.testing.assert_allclose(adapter_of(arrays[0]).add_columns(*arrays), expected, rtol=1e-12)


@pytest.mark.parametrize("mining", ["batch_all", "semi_hard", "batch_hard"])
def test_triples_take_the_memory_of_a_block(mining: Any) -> None:
    """No array of the size of the score matrix, nor of the triples of a block."""
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((3000, 8)), np.arange(3000) // 3

    def loss(x: Any) -> Any:
        return pnce.triplet_from_labels(x, labels, similarity="dot", mining=mining, block_size=50)

    tracemalloc.start()
    pnce.value_and_grad(loss)(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 3000 * 8 / 2


def test_soft_triples_visit_the_positives_of_a_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With three positives in a row of 60, blocks of few triples; the loss is that of all triples at once."""
    x = torch.tensor(np.random.default_rng(0).standard_normal((60, 4)))
    labels = torch.arange(60) // 4
    at_once = pnce.triplet_from_labels(x, labels, form="soft", reduction="none")
    monkeypatch.setattr(tiling, "_TRIPLE_ENTRIES", 500)
    torch.testing.assert_close(pnce.triplet_from_labels(x, labels, form="soft", reduction="none"), at_once)
    monkeypatch.setattr(tiling, "_BLOCK_ENTRIES", 2**14)
    same = torch.arange(60) // 30
    by_positives = pnce.triplet_from_labels(x, same, form="soft")
    monkeypatch.undo()
    torch.testing.assert_close(by_positives, pnce.triplet_from_labels(x, same, form="soft"))


@pytest.mark.parametrize("mining", ["batch_all", "semi_hard"])
def test_a_compiled_program_takes_the_branch_of_few_or_of_many_positives(mining: Any) -> None:
    """One program, run for one, a few, some, and many positives of a row."""

    @jax.jit
    @jax.value_and_grad
    def compiled(scores: Any, positives: Any) -> Any:
        return pnce.from_scores.triplet(scores, positives=positives, margin=0.25, mining=mining)

    for each in (1, 2, 10, 60):
        scores, positives = drawn("normal", 17, 129, each, np.float32)
        positives[1] = positives[3]
        value, gradient, _ = visited(scores, positives, 0.25, mining)
        found, slopes = compiled(scores, positives)
        np.testing.assert_allclose(found, value, rtol=2e-6)
        np.testing.assert_allclose(slopes, gradient, rtol=2e-6, atol=2e-6 * np.abs(gradient).max())
