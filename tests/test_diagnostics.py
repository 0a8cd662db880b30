"""Recall and accuracy of embeddings in blocks, against a count of the scores that are as large."""

from __future__ import annotations

import tracemalloc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from portable_nce.diagnostics import recall_at, top_k_accuracy

RNG = np.random.default_rng(0)
N, K = 13, 29
QUERY, KEY = (RNG.integers(-2, 3, size=(n, 3)).astype(np.float32) for n in (N, K))  # with equal scores
SCORES = QUERY @ KEY.T
INDEX, SEVERAL, MASK = RNG.integers(K, size=N), RNG.random((N, K)) < 0.15, RNG.random((N, K)) < 0.8
SEVERAL[3] = False
IN: Any = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}
PAIRS: Any = [{}, {"positives": INDEX}, {"positives": SEVERAL}, {"positives": SEVERAL, "mask": MASK}]


def counted(positives: Any = None, mask: Any = None, *, k: int, best: bool) -> list[float]:
    """Count, for each positive of a row or its best one, the other scores that reach it."""
    if positives is None or positives.ndim == 1:
        positives = np.arange(K) == (np.arange(N) if positives is None else positives)[:, None]
    found = []
    for row, own, here in zip(SCORES, positives, np.ones_like(SEVERAL) if mask is None else mask, strict=True):
        ps = np.flatnonzero(own & here)
        others = here & ~own if best else here
        hits = [np.sum(others & (np.arange(K) != p) & (row >= row[p])) < k for p in ps]
        found.append(float(max(hits) if best else np.mean(hits)) if hits else 0.0)
    return found


@pytest.mark.parametrize("library", IN)
@pytest.mark.parametrize("k", [1, 3, 10, K - 1, K, 100])
def test_of_scores_and_of_embeddings(library: str, k: int) -> None:
    array = IN[library]
    for pairs in PAIRS:
        given = {name: array(x) for name, x in pairs.items()}
        for function in (recall_at, top_k_accuracy):
            wanted = counted(**pairs, k=k, best=function is top_k_accuracy)
            found = function(array(SCORES), k=k, reduction="none", **given)
            named = {"positives": array(np.arange(N)), **given}
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
            for block_size in ("auto", 4, None):
                options: Any = {"similarity": "dot", "reduction": "none", "block_size": block_size}
                of_rows = function(array(QUERY), array(KEY), k=k, **named, **options)
                np.testing.assert_array_equal(of_rows, found)


@pytest.mark.parametrize("function", [recall_at, top_k_accuracy])
def test_means_jit_and_cosine(function: Any) -> None:
    """The mean is over the rows with a positive; cosine is the default."""
    weights = RNG.uniform(0.5, 2.0, size=N).astype(np.float32)
    each = function(QUERY, KEY, k=3, positives=SEVERAL, similarity="dot", reduction="none")
    rows = SEVERAL.any(axis=1)
    found = function(QUERY, KEY, k=3, positives=SEVERAL, similarity="dot", weights=weights)
    np.testing.assert_allclose(found, np.sum(each * weights) / np.sum(weights[rows]), rtol=1e-6)
    unit = [x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9) for x in (QUERY, KEY)]
    assert function(QUERY, KEY[:N], k=3) == function(*(x[:N] for x in unit), k=3, similarity="dot")
    paired = jnp.arange(N)
    traced = jax.jit(lambda x, y: function(x, y, k=3, positives=paired, similarity="dot", block_size=4))
    np.testing.assert_allclose(traced(QUERY, KEY), function(SCORES, k=3), rtol=1e-6)


def test_nan_is_never_a_hit() -> None:
    broken = SCORES.copy()
    broken[0, 0], broken[1, 5] = np.nan, np.nan  # a positive; a negative, ranked first
    assert recall_at(broken, reduction="none")[:2].tolist() == [0.0, 0.0]
    assert recall_at(broken, k=K, reduction="none")[1] == 1.0


@pytest.mark.parametrize("function", [recall_at, top_k_accuracy])
def test_the_matrix_is_not_held(function: Any) -> None:
    query, key = (RNG.normal(size=(n, 2)).astype(np.float32) for n in (2000, 20000))
    tracemalloc.start()
    function(query, key, k=10, positives=np.arange(2000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2000 * 20000 / 2


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match="key: expected embeddings, got None"):
        recall_at(SCORES, similarity="dot")
    for function in (recall_at, top_k_accuracy):
        with pytest.raises(ValueError, match=r"positives: .* 13 queries and 29 keys .*positives=arange\(13\)"):
            function(QUERY, KEY)
        with pytest.raises(ValueError, match=r"positives: .*since 29 queries and 13 keys are not pairs, got None"):
            function(KEY, QUERY)
    with pytest.raises(ValueError, match="key: expected 3 features"):
        top_k_accuracy(QUERY, SCORES.T)
    with pytest.raises(ValueError, match="mask: expected"):
        top_k_accuracy(QUERY, KEY, positives=INDEX, mask=MASK.T)
