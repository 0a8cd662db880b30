"""`explain`: its report of a call against counts of the operations in the call."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import portable_nce as pnce
from portable_nce.testing import run_ranks
from portable_nce.testing.cases import LOSSES, example

SIX = np.random.default_rng(0).normal(size=(6, 3))

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
    "distances": (pnce.info_nce, (QUERY, KEY), {"similarity": "neg_sq_euclidean", "block_size": None}),
    "distances of both sides": (pnce.clip, (QUERY, KEY), {"logit_scale": 1.0, "similarity": "neg_euclidean"}),
    "own objective": (pnce.contrast, (QUERY, KEY), {"objective": lambda row: row.log_odds * row.positive.sum()}),
}


FEATURES = 8
SHORT = {1, 2, FEATURES}
"""Lengths of axes that are no rows; `example` makes two tokens, steps of predictions or projected features."""


class Products(TorchDispatchMode):
    """Count the multiplications of matrix products with at most one short axis: not of projections and vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket in {torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm}:
            first, second = args[-2:]
            axes = first.shape[-2], first.shape[-1], second.shape[-1]
            vector = 1 in axes or sum(axis in SHORT for axis in axes) >= 2
            self.number += 0 if vector else first.numel() * axes[2]
        return function(*args, **(kwargs or {}))


def assert_told(call: Callable[[], Any]) -> int:
    """Assert that `explain` tells as many multiplications as value and gradients make; return their number."""
    with Products() as made:
        call().sum().backward()
    told = sum(one.products * one.rows * one.columns * (one.width or 1) for one in pnce.explain(call).sweeps)
    assert told == pytest.approx(made.number)
    return int(made.number)


def normal(shape: tuple[int, ...], place: int) -> Any:
    return np.random.default_rng((7, place)).normal(size=shape).tolist()


def called(name: str, rows: int) -> Callable[[], Any]:
    """A loss of tensors."""
    case = example(name, rows, FEATURES, fill=normal)
    arrays = {key: torch.tensor(x) for key, x in {**case.arguments, **case.constants}.items()}
    for key in case.arguments:
        arrays[key].requires_grad_(key not in LOSSES[name].constant)
    return lambda: case.call(arrays)


@pytest.mark.parametrize("name", [name for name in LOSSES if not name.startswith("from_scores")])
def test_products_are_those_that_torch_makes(name: str) -> None:
    """Of one tile and of several; of losses without products, such as distances, the larger batch would take long."""
    number = assert_told(called(name, 12))
    assert_told(called(name, 600 if number else 60))


def learned(*shape: int) -> Any:
    return torch.from_numpy(RNG.normal(size=shape)).requires_grad_()


def taken(rows: Any, columns: Any) -> Any:
    return rows[0] @ columns[0].T


def pulled(rows: Any, columns: Any, cotangent: Any) -> Any:
    return (cotangent @ columns[0],), (cotangent.T @ rows[0],)


X, Y, CLASSES = learned(60, FEATURES), learned(60, FEATURES), learned(90, FEATURES)
MODEL = torch.from_numpy(RNG.normal(size=(60, 48)))
TARGETS, WEIGHTS = torch.arange(60), torch.ones((60, 60), dtype=torch.float64)
OWN = pnce.similarities.Similarity(lambda x, y, scale: ((x * scale,), (y,)), taken, pulled)
NUMBERS = learned(60)
WAYS: dict[str, Callable[[], Any]] = {
    "soft-capping": lambda: pnce.density.linear_softmax(X, CLASSES, TARGETS, softcap=30.0),
    "row losses, soft-capping": lambda: pnce.density.linear_softmax(
        X, CLASSES, TARGETS, softcap=30.0, reduction="none"
    ),
    "bias, constant classes": lambda: pnce.density.linear_softmax(X, CLASSES.detach(), TARGETS, bias=CLASSES[:, 0]),
    "wider teacher": lambda: pnce.distillation(X, Y, MODEL, MODEL),
    "row losses, wider guide": lambda: pnce.gist_embed(X, Y, MODEL, MODEL, reduction="none"),
    "weighted teacher": lambda: pnce.contrast(
        X, Y, pairing=pnce.pairings.weighted(pnce.pairings.teacher(MODEL, MODEL), WEIGHTS), objective="info_nce"
    ),
    "several labels": lambda: pnce.supcon(X, MODEL > 1),
    "own similarity": lambda: pnce.info_nce(X, Y, similarity=OWN),
    "factors of columns": lambda: pnce.info_nce(X, Y, similarity=pnce.similarities.scaled_columns(OWN, NUMBERS)),
    "offsets, symmetric": lambda: pnce.info_nce(
        X, Y, similarity=pnce.similarities.shifted_columns(OWN, NUMBERS), symmetric=True
    ),
    "mask": lambda: pnce.info_nce(X, Y, mask=WEIGHTS > 0),
    "constant keys": lambda: pnce.info_nce(X, Y.detach()),
    "temperature alone": lambda: pnce.info_nce(X.detach(), Y.detach(), temperature=NUMBERS[0].exp()),
    "clip in blocks": lambda: pnce.clip(X, Y, logit_scale=10.0, block_size=25),
    "nt_xent in blocks": lambda: pnce.nt_xent(X, Y, block_size=25),
    "hard triplets by cosine": lambda: pnce.triplet_from_labels(
        X, TARGETS // 2, similarity="cosine", mining="batch_hard"
    ),
    "own objective": lambda: pnce.contrast(X, Y, objective=lambda row: row.log_odds * row.positive.sum()),
}


@pytest.mark.parametrize("name", WAYS)
def test_products_of_other_ways_are_those_that_torch_makes(name: str) -> None:
    assert_told(WAYS[name])


@pytest.mark.parametrize("name", CALLS)
def test_products_of_several_tiles_are_those_that_torch_makes(name: str) -> None:
    loss, arrays, options = CALLS[name]
    tensors = [torch.from_numpy(x).requires_grad_(x.dtype == np.float32) for x in arrays]
    assert_told(lambda: loss(*tensors, **options))
    # Where nothing is differentiated, all gradients are counted.
    told = [pnce.explain(loss, *given, **options).sweeps[0].products for given in (tensors, arrays)]
    assert told[0] == told[1]


def test_distances_are_products_of_longer_rows_and_searches_have_no_gradients() -> None:
    (sweep,) = pnce.explain(pnce.info_nce, QUERY, KEY, similarity="neg_euclidean").sweeps
    assert sweep.name == "one-sided sweep of inner products"
    assert sweep.products == pytest.approx(3 + 4 / D)
    text = repr(pnce.explain(pnce.info_nce, X, Y, similarity="neg_euclidean"))
    assert f"products  none; {FEATURES} differences of features for each score" in text
    text = repr(pnce.explain(pnce.diagnostics.top_k, X, Y, 3))
    assert "\nsearch, one pass\n" in text
    assert f"products  1 of 60 x 60 x {FEATURES}" in text


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
    (sweep,) = pnce.explain(pnce.diagnostics.top_k, QUERY, KEY, 3, block_size=100).sweeps
    assert (sweep.block, sweep.tile, sweep.memory) == (100, N, 4 * 100 * N)


SHIFTED = pnce.similarities.shifted_columns("neg_euclidean", np.ones(N, dtype=np.float32))
REASONS: dict[str, tuple[Any, str]] = {
    "mask": (lambda: pnce.info_nce(QUERY, KEY, mask=np.ones((N, N), dtype=np.bool_)), "a mask is given"),
    "shifted": (lambda: pnce.info_nce(QUERY, KEY, similarity=SHIFTED), "no function of inner products"),
    "scores": (lambda: pnce.from_scores.info_nce(QUERY[:D], positives=np.eye(D, dtype=np.bool_)), "scores are given"),
    "pairs": (lambda: pnce.info_nce(QUERY, KEY, positives=np.eye(N, dtype=np.bool_)), "a rule for each pair"),
    "labels": (lambda: pnce.supcon(QUERY[:D], LABELS[:D] % 2), "the matrix is small"),
    "one column": (lambda: pnce.info_nce(QUERY[:1], KEY[:1]), "no row has a negative"),
}


COUNTED: dict[str, tuple[Callable[..., Any], int]] = {
    "info_nce": (lambda **k: pnce.info_nce(SIX, SIX + 1e-3, **k), 6),
    "two sides": (lambda **k: pnce.info_nce(SIX, SIX + 1e-3, symmetric=True, **k), 12),
    "two views": (lambda **k: pnce.dcl(SIX, SIX + 1e-3, **k), 12),
    "three in blocks": (lambda **k: pnce.info_nce(SIX, SIX + 1e-3, block_size=3, **k), 6),
    "labels": (lambda **k: pnce.supcon(SIX, np.asarray([0, 0, 1, 1, 2, 3]), **k), 4),
}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("temperature", [0.5, 0.05, 1e-3])
def test_rows_that_count(name: str, temperature: float) -> None:
    """However small or negative their losses are, and whatever is made of them."""
    loss, wanted = COUNTED[name]
    for reduction in ("mean", "sum", "none") if name != "two views" else ("mean", "sum"):
        found = pnce.explain(loss, temperature=temperature, reduction=reduction)
        assert found.counted == wanted, reduction


def test_a_rank_without_rows_is_explained() -> None:
    def on_a_rank(group: Any) -> Any:
        rows = SIX[: 6 * group.rank]
        return pnce.explain(
            pnce.clip, rows, rows, logit_scale=10.0, across=pnce.across(group, gradients="summed")
        ).counted

    assert run_ranks(2, on_a_rank) == [0, 12]


@pytest.mark.parametrize("name", REASONS)
def test_masks_have_a_reason(name: str) -> None:
    loss, reason = REASONS[name]
    (sweep,) = pnce.explain(loss).sweeps
    assert sweep.name == "sweep with masks"
    assert reason in sweep.reason


def test_the_text_says_all() -> None:
    text = repr(pnce.explain(pnce.relic, QUERY, KEY))
    assert text.startswith("objective relic; pairing diagonal\n")
    assert text.count("one pass for value and gradients") == text.count("  products") == text.count("  reason") == 2
    assert "\nscore matrix, one pass" in text
    assert "\nsweep of whole rows, one pass" in text
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
