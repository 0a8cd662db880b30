"""`explain`: its report of a call against counts of the operations in the call."""

from __future__ import annotations

import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(5)
N, K, D = 1200, 1600, 16
LABELS = RNG.permutation(np.arange(N) // 4)
QUERY, KEY, MORE = (RNG.normal(size=(n, D)).astype(np.float32) for n in (N, N, K))
CALLS: dict[str, Any] = {
    "info_nce": (pnce.info_nce, (QUERY, KEY), {}),
    "queue": (pnce.info_nce, (QUERY, KEY, MORE), {}),
    "masked": (pnce.info_nce, (QUERY, KEY), {"block_size": 100}),
    "clip": (pnce.clip, (QUERY, KEY), {"logit_scale": 10.0}),
    "clip in blocks": (pnce.clip, (QUERY, KEY), {"logit_scale": 10.0, "block_size": 300}),
    "nt_xent": (pnce.nt_xent, (QUERY, KEY), {"block_size": 40}),
    "supcon": (pnce.supcon, (QUERY, LABELS), {}),
    "siglip": (pnce.siglip, (QUERY, KEY), {"logit_scale": 10.0, "logit_bias": -10.0}),
    "own objective": (pnce.contrast, (QUERY, KEY), {"objective": lambda row: row.log_odds * row.positive.sum()}),
}


@pytest.mark.parametrize("name", CALLS)
def test_products_are_those_that_torch_counts(name: str) -> None:
    loss, arrays, options = CALLS[name]
    tensors = [torch.from_numpy(x).requires_grad_(x.dtype == np.float32) for x in arrays]
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        loss(*tensors, **options).backward()
    (sweep,) = pnce.explain(loss, *tensors, **options).sweeps
    counted = counter.get_total_flops() / (2 * sweep.rows * sweep.columns * sweep.width)
    # Tiles on the diagonal of symmetric scores are computed whole; the bias of SigLIP is a column of the operands.
    assert counted == pytest.approx(sweep.products, rel=0.08)


@pytest.mark.parametrize("name", ["info_nce", "queue", "clip", "clip in blocks", "supcon"])
def test_memory_is_that_of_numpy(name: str) -> None:
    loss, arrays, options = CALLS[name]
    (sweep,) = pnce.explain(loss, *arrays, **options).sweeps
    differentiated = pnce.value_and_grad(lambda x, *others: loss(x, *others, **options))
    differentiated(*arrays)
    tracemalloc.start()
    differentiated(*arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    operands = 4 * (sweep.rows + sweep.columns) * sweep.width
    assert sweep.memory <= peak <= 3.5 * sweep.memory + 6 * operands


def test_sizes_are_those_asked_for() -> None:
    (sweep,) = pnce.explain(pnce.info_nce, QUERY, KEY, block_size=100).sweeps
    assert (sweep.rows, sweep.columns, sweep.width, sweep.block) == (N, N, D, 100)
    (sweep,) = pnce.explain(pnce.info_nce, QUERY, KEY, block_size=None).sweeps
    assert (sweep.block, sweep.tile, sweep.memory) == (N, N, 4 * N * N)


REASONS: dict[str, tuple[Any, str]] = {
    "mask": (lambda: pnce.info_nce(QUERY, KEY, mask=np.ones((N, N), dtype=np.bool_)), "a mask is given"),
    "distance": (lambda: pnce.info_nce(QUERY, KEY, similarity="neg_euclidean"), "no inner product"),
    "scores": (lambda: pnce.from_scores.info_nce(QUERY[:D], positives=np.arange(D)), "scores are given"),
    "pairs": (lambda: pnce.info_nce(QUERY, KEY, positives=np.eye(N, dtype=np.bool_)), "a rule for each pair"),
    "labels": (lambda: pnce.supcon(QUERY[:D], LABELS[:D] % 2), "the matrix is small"),
    "one column": (lambda: pnce.info_nce(QUERY[:1], KEY[:1]), "no row has a negative"),
}


@pytest.mark.parametrize("name", REASONS)
def test_masks_have_a_reason(name: str) -> None:
    loss, reason = REASONS[name]
    (sweep,) = pnce.explain(loss).sweeps
    assert sweep.name == "sweep with masks"
    assert reason in sweep.reason


def test_the_text_says_all() -> None:
    text = repr(pnce.explain(pnce.relic, QUERY, KEY))
    assert text.startswith("objective relic; pairing diagonal\n")
    assert text.count("2 passes") == text.count("products") == 3
    assert repr(pnce.explain(lambda: None)) == "no objective of a score matrix\nno sweep: all scores are held"


def test_calls_of_other_threads_and_errors_leave_no_trace() -> None:
    def both() -> None:
        thread = threading.Thread(target=pnce.info_nce, args=(QUERY[:8], KEY[:8]))
        thread.start()
        thread.join()

    assert pnce.explain(both).sweeps == ()
    with pytest.raises(ValueError, match="temperature"):
        pnce.explain(pnce.info_nce, QUERY, KEY, temperature=0.0)
    assert len(pnce.explain(pnce.info_nce, QUERY, KEY).sweeps) == 1
    with pytest.raises(TypeError, match="loss: expected a function, got float"):
        pnce.explain(0.5)  # type: ignore[arg-type]
