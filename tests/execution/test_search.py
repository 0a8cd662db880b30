"""The search for the highest scores of each row, against a stable sort, with blocks and groups of any size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce._core.numerics import place_of_largest
from portable_nce._execution.mining import Mined
from portable_nce._execution.search import highest, search
from portable_nce._execution.sets import OnePositive
from portable_nce._execution.tiling import Sizes, masked
from portable_nce.pairings import Members

RNG = np.random.default_rng(0)
IN: Any = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}


def sorted_columns(scores: np.ndarray, count: int) -> list[list[int]]:
    """Columns sorted by score, the first of equal scores first; NaN sorts as +inf, and -inf is left out."""
    order = np.where(np.isnan(scores), np.inf, scores)
    best = [np.argsort(-row, kind="stable")[:count].tolist() for row in order]
    return [[j if row[j] != -np.inf else -1 for j in chosen] for row, chosen in zip(order, best, strict=True)]


@pytest.mark.parametrize("library", IN)
@pytest.mark.parametrize("count", [1, 2, 5, 32, 33, 60])
def test_highest_is_a_stable_sort(library: str, count: int) -> None:
    """Groups of one column or more, with a remainder; repeated passes or a sort."""
    for columns in (count, count + 1, 4 * count, 9 * count + 7, 25 * count):
        scores = RNG.integers(-3, 4, size=(6, columns)).astype(np.float32)
        scores[1, RNG.integers(columns, size=3)] = np.nan
        scores[2, RNG.integers(columns, size=columns)] = -np.inf
        scores[3], scores[4, ::2] = -np.inf, np.inf
        values, found = highest(IN[library](scores), count)
        assert found.tolist() == sorted_columns(scores, count)
        taken = np.take_along_axis(scores, np.maximum(found.tolist(), 0), axis=1)
        np.testing.assert_array_equal(values, np.where(np.asarray(found) < 0, -np.inf, taken))


@pytest.mark.parametrize("library", IN)
@pytest.mark.parametrize("count", [1, 2, 16, 17, 33])
@pytest.mark.parametrize("awkward", ["none", "infinite", "equal", "NaN", "few"])
def test_highest_of_distinct_scores(library: str, count: int, awkward: str) -> None:
    """One row needs more care, or none does."""
    for columns in (count, count + 1, 9 * count + 7):
        scores = RNG.permuted(np.tile(np.arange(columns, dtype=np.float32), (4, 1)), axis=1)
        if awkward == "equal":
            scores[2] = np.minimum(scores[2], columns - count)
        elif awkward == "few":
            scores[2, RNG.permutation(columns)[count - 1 :]] = -np.inf
        elif awkward != "none":
            scores[2, RNG.integers(columns)] = {"NaN": np.nan, "infinite": np.inf}[awkward]
        _, found = highest(IN[library](scores), count)
        assert found.tolist() == sorted_columns(scores, count)


@pytest.mark.parametrize("library", IN)
@pytest.mark.parametrize(
    "valid", [None, [False, True, True, True], [True] * 4, [False] * 4, [False, False, True, False]]
)
@pytest.mark.parametrize("block_size", [2, None, "auto"])
def test_columns_that_are_not_valid_are_not_found(library: str, valid: list[bool] | None, block_size: Any) -> None:
    rows, columns = RNG.normal(size=(5, 3)).astype(np.float32), RNG.normal(size=(4, 3)).astype(np.float32)
    rows[2] = np.nan
    array = IN[library]
    marks: Any = {} if valid is None else {"valid": array(np.asarray(valid))}
    arrays = (array(rows), array(columns))
    _, found = search(*arrays, 2, similarity="dot", dtypes=(np.float32,), block_size=block_size, **marks)
    scores = np.where(True if valid is None else valid, rows @ columns.T, -np.inf)
    assert found.tolist() == sorted_columns(scores, 2)


SIMILARITIES = ["cosine", "neg_euclidean", "max_sim", "function"]


@pytest.mark.parametrize("library", IN)
@pytest.mark.parametrize("name", SIMILARITIES)
def test_any_similarity(library: str, name: str) -> None:
    query, key = (RNG.normal(size=(n, *(2,) * (name == "max_sim"), 3)) for n in (7, 30))
    similarity: Any = {
        "max_sim": pnce.similarities.max_sim(),
        "function": lambda x, y: x @ y.T / (1 + (x**2).sum(1)[:, None]),
    }.get(name, name)
    scores: dict[str, Callable[[], Any]] = {
        "cosine": lambda: query @ (key / np.linalg.norm(key, axis=1, keepdims=True)).T,
        "neg_euclidean": lambda: -np.linalg.norm(query[:, None] - key[None], axis=2),
        "max_sim": lambda: _max_sim(query, key),
        "function": lambda: query @ key.T,
    }
    rows, columns = (IN[library](x.astype(np.float32)) for x in (query, key))
    found = pnce.diagnostics.top_k(rows, columns, 4, similarity=similarity, block_size=3)
    assert found.indices.tolist() == sorted_columns(scores[name](), 4)


def _max_sim(query: np.ndarray, key: np.ndarray) -> Any:
    query, key = (x / np.linalg.norm(x, axis=2, keepdims=True) for x in (query, key))
    return np.einsum("qtd,ksd->qkts", query, key).max(axis=3).sum(axis=2)


def test_transformed_and_compiled() -> None:
    """Under jit, vmap, torch.compile and differentiation; there is no gradient."""
    query, key = RNG.normal(size=(7, 3)).astype(np.float32), RNG.normal(size=(30, 3)).astype(np.float32)
    wanted = sorted_columns(query @ key.T, 4)

    def found(x: Any, y: Any) -> Any:
        return pnce.diagnostics.top_k(x, y, 4, similarity="dot", block_size=3)

    assert jax.jit(found)(query, key).indices.tolist() == wanted
    stacked = jax.vmap(found, in_axes=(0, None))(jnp.stack([query, -query]), jnp.asarray(key))
    assert stacked.indices.tolist() == [wanted, sorted_columns(-query @ key.T, 4)]
    tensors = [torch.tensor(x, requires_grad=True) for x in (query, key)]
    assert torch.compile(found, backend="aot_eager", fullgraph=True)(*tensors).indices.tolist() == wanted
    mapped = torch.func.vmap(found, in_dims=(0, None))(torch.stack([tensors[0], -tensors[0]]), tensors[1])
    assert mapped.indices.tolist() == stacked.indices.tolist()
    assert not found(*tensors).scores.requires_grad
    slope = pnce.grad(lambda x: (found(x, key).scores + x[:, :1] ** 2).sum())(query)
    np.testing.assert_allclose(slope[:, 0], 8.0 * query[:, 0], rtol=1e-6)
    assert np.all(slope[:, 1:] == 0)


@pytest.mark.parametrize("count", [3, 40])
def test_memory_is_that_of_a_block(count: int) -> None:
    query, key = (RNG.normal(size=(n, 2)).astype(np.float32) for n in (2000, 8000))
    pnce.diagnostics.top_k(query[:2], key, count)
    tracemalloc.start()
    pnce.diagnostics.top_k(query, key, count)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**22 * 2.5


def test_blocks() -> None:
    """At least 64 rows, for fast products, unless a number is given; all rows if their number is symbolic."""

    def rows_of(n_rows: int, n_columns: int, block_size: Any = "auto", *, width: int = 1, **options: Any) -> Any:
        sizes = Sizes(masked, block_size, options=(("width", width), ("searched", True)), **options)
        return sizes.of(n_rows, n_columns).block

    assert rows_of(1000, 2**16) == 64
    assert rows_of(1000, 2**12) == 1000
    assert rows_of(5000, 2**12) == 1024
    assert rows_of(5000, 2**30) == 64
    assert rows_of(5000, 2**12, 7) == 7
    assert rows_of(5000, 2**12, None) == 5000
    assert rows_of(5000, 2**12, far=2**27) == 5000
    assert rows_of(5000, 2**12, width=4) == 64
    assert rows_of(5000, 2**12, mode="whole") == 5000


MININGS = [("hard", "hard"), ("easy", "hard"), ("hard", "easy"), ("hard", "semi_hard"), ("semi_hard", "hard")]


@pytest.mark.parametrize("mining", MININGS)
@pytest.mark.parametrize("library", IN)
def test_a_positive_at_a_known_column_is_mined_as_one_of_a_mask(library: str, mining: tuple[str, str]) -> None:
    scores = RNG.integers(-3, 4, size=(40, 7)).astype(np.float32)
    scores[RNG.random(scores.shape) < 0.3] = -np.inf
    columns, present = RNG.integers(7, size=40), RNG.random(40) < 0.8
    own = (np.arange(7) == columns[:, None]) & present[:, None]
    to = IN[library]
    known = OnePositive(to(columns), to(present))
    masked = Members(to(own), to(~own))
    for found, expected in zip(Mined(mining)(to(scores), known, 1), Mined(mining)(to(scores), masked, 1), strict=True):
        assert np.asarray(found).tolist() == np.asarray(expected).tolist()


def test_the_place_of_the_largest_entry_is_that_of_argmax_under_jit() -> None:
    x = RNG.integers(-2, 3, size=(60, 9)).astype(np.float32)
    x[RNG.random(x.shape) < 0.1], x[5], x[6, 3] = -np.inf, -np.inf, np.inf
    x[7:20, 4], x[9:30, 6] = np.nan, np.nan
    assert np.asarray(jax.jit(place_of_largest)(x))[:, 0].tolist() == np.argmax(x, axis=1).tolist()
