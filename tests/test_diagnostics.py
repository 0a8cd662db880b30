"""Recall, accuracy and reciprocal rank of embeddings in blocks, against a count of the scores that are as large."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from portable_nce.diagnostics import mean_reciprocal_rank, recall_at, top_k_accuracy

RNG = np.random.default_rng(0)
N, K = 13, 29
QUERY, KEY = (RNG.integers(-2, 3, size=(n, 3)).astype(np.float32) for n in (N, K))  # with equal scores
SCORES = QUERY @ KEY.T
INDEX, SEVERAL, MASK = RNG.integers(K, size=N), RNG.random((N, K)) < 0.15, RNG.random((N, K)) < 0.8
SEVERAL[3] = False
IN: Any = {"numpy": np.asarray, "torch": torch.tensor}  # the suite compares all libraries, in fewer calls
PAIRS: Any = [{}, {"positives": INDEX}, {"positives": SEVERAL}, {"positives": SEVERAL, "mask": MASK}]


def ranks(positives: Any = None, mask: Any = None, *, best: bool) -> list[list[int]]:
    """Rank of each positive of a row among the negatives (`best`), or among all other columns."""
    if positives is None or positives.ndim == 1:
        positives = np.arange(K) == (np.arange(N) if positives is None else positives)[:, None]
    found = []
    for row, own, here in zip(SCORES, positives, np.ones_like(SEVERAL) if mask is None else mask, strict=True):
        ps = np.flatnonzero(own & here)
        others = here & ~own if best else here
        found.append([1 + int(np.sum(others & (np.arange(K) != p) & (row >= row[p]))) for p in ps])
    return found


MEASURES: Any = {
    recall_at: lambda of_row, k: np.mean(np.asarray(of_row) <= k),
    top_k_accuracy: lambda of_row, k: float(min(of_row) <= k),
    mean_reciprocal_rank: lambda of_row, _: 1 / min(of_row),
}
"""Measures of the ranks of the positives of a row."""


def given_k(function: Any, k: int) -> dict[str, int]:
    return {} if function is mean_reciprocal_rank else {"k": k}


@pytest.mark.filterwarnings("ignore:k. expected at most")
@pytest.mark.parametrize("library", IN)
@pytest.mark.parametrize("k", [1, 3, 10, K - 1, K, 100])
def test_measures_of_scores_and_of_embeddings(library: str, k: int) -> None:
    array = IN[library]
    for pairs in PAIRS:
        given = {name: array(x) for name, x in pairs.items()}
        for function, measure in MEASURES.items():
            of_rows = ranks(**pairs, best=function is not recall_at)
            wanted = [measure(of_row, k) if of_row else 0.0 for of_row in of_rows]
            found = function(array(SCORES), reduction="none", **given_k(function, k), **given)
            named = {"positives": array(np.arange(N)), **given}
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
            for block_size in ("auto", 4, None):
                options: Any = {"similarity": "dot", "reduction": "none", "block_size": block_size}
                streamed = function(array(QUERY), array(KEY), **given_k(function, k), **named, **options)
                np.testing.assert_array_equal(streamed, found)


@pytest.mark.parametrize("function", MEASURES)
def test_measures_of_rows_are_averaged_and_compiled(function: Any) -> None:
    """The mean is over the rows with a positive; cosine is the default."""
    function = partial(function, **given_k(function, 3))
    weights = RNG.uniform(0.5, 2.0, size=N).astype(np.float32)
    each = function(QUERY, KEY, positives=SEVERAL, similarity="dot", reduction="none")
    rows = SEVERAL.any(axis=1)
    found = function(QUERY, KEY, positives=SEVERAL, similarity="dot", weights=weights)
    np.testing.assert_allclose(found, np.sum(each * weights) / np.sum(weights[rows]), rtol=1e-6)
    unit = [x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9) for x in (QUERY, KEY)]
    assert function(QUERY, KEY[:N]) == function(*(x[:N] for x in unit), similarity="dot")
    paired = jnp.arange(N)
    traced = jax.jit(lambda x, y: function(x, y, positives=paired, similarity="dot", block_size=4))
    np.testing.assert_allclose(traced(QUERY, KEY), function(SCORES), rtol=1e-6)


def test_nan_is_never_a_hit() -> None:
    broken = SCORES.copy()
    broken[0, 0], broken[1, 5] = np.nan, np.nan  # a positive; a negative, ranked first
    assert recall_at(broken, reduction="none")[:2].tolist() == [0.0, 0.0]
    assert recall_at(broken, k=K, reduction="none")[1] == 1.0
    lowest = 1 / (np.sum(SCORES[1] >= SCORES[1, 1]) + (SCORES[1, 5] < SCORES[1, 1]))
    np.testing.assert_allclose(mean_reciprocal_rank(broken, reduction="none")[:2], [1 / K, lowest], rtol=1e-6)


@pytest.mark.parametrize("function", MEASURES)
def test_the_matrix_is_not_held(function: Any) -> None:
    query, key = (RNG.normal(size=(n, 2)).astype(np.float32) for n in (2000, 20000))
    tracemalloc.start()
    function(query, key, positives=np.arange(2000), **given_k(function, 10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2000 * 20000 / 2


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match="key: expected embeddings, got None"):
        recall_at(SCORES, similarity="dot")
    for function in MEASURES:
        with pytest.raises(ValueError, match=r"positives: .* 13 queries and 29 keys .*positives=arange\(13\)"):
            function(QUERY, KEY)
        with pytest.raises(ValueError, match=r"positives: .*since 29 queries and 13 keys are not pairs, got None"):
            function(KEY, QUERY)
    with pytest.raises(ValueError, match="key: expected 3 features"):
        top_k_accuracy(QUERY, SCORES.T)
    with pytest.raises(ValueError, match="mask: expected"):
        top_k_accuracy(QUERY, KEY, positives=INDEX, mask=MASK.T)


def test_the_accuracy_weighs_rows() -> None:
    scores = np.asarray([[1.0, 0.0, 0.0, 2.0], [0.0, 1.0, 0.0, 0.0], [3.0, 2.0, 1.0, 0.0]])
    accuracy = partial(top_k_accuracy, scores, weights=np.asarray([0.5, 1.5, 2.0]))
    np.testing.assert_array_equal(accuracy(reduction="none"), [0.0, 1.5, 0.0])
    assert accuracy(reduction="sum") == 1.5
    assert [accuracy(), accuracy(k=2)] == pytest.approx([1.5 / 4.0, 2.0 / 4.0])
