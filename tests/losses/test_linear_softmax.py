"""`density.linear_softmax` against PyTorch's cross-entropy of the logits, and what it holds in memory."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce.density import linear_softmax

RNG = np.random.default_rng(0)
N, V, D = 7, 5, 3
X, WEIGHT, BIAS = RNG.normal(size=(N, D)), RNG.normal(size=(V, D)), RNG.normal(size=V)
COSTS, TARGETS = RNG.uniform(0.25, 2.0, size=V), RNG.integers(V, size=N)

COMBINED = [*itertools.product((0.0, 0.1, 1.0), (False, True), (None, -100, 2), (None, 1.5), (0.0, 0.25))]
"""Smoothing, whether classes have weights, the ignored target, the softcap, the z-loss."""


def of_logits(layer: Any, targets: Any, *, softcap: Any, z_loss: float, reduction: str, **options: Any) -> Any:
    """Cross-entropy by PyTorch and the z-loss."""
    x, matrix, bias = layer
    logits = x @ matrix.T + bias
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    loss = torch.nn.functional.cross_entropy(logits, targets, reduction=reduction, **options)
    counted = targets != options["ignore_index"]
    costs = torch.ones(V, dtype=x.dtype) if options["weight"] is None else options["weight"]
    costs = torch.where(counted, costs[torch.where(counted, targets, 0)], 0.0)
    squares = z_loss * costs * logits.logsumexp(1) ** 2
    return loss + {"none": squares, "sum": squares.sum(), "mean": squares.sum() / costs.sum()}[reduction]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("block_size", [None, 2])
def test_torch(reduction: Any, block_size: int | None) -> None:
    for smoothing, weighted, ignored, softcap, z_loss in COMBINED:
        costs = torch.tensor(COSTS) if weighted else None
        targets = torch.tensor(TARGETS)
        if ignored is not None:
            targets[3] = ignored
        shared: Any = {"softcap": softcap, "z_loss": z_loss, "reduction": reduction}
        x, weight, bias = layer = [torch.tensor(array, requires_grad=True) for array in (X, WEIGHT, BIAS)]
        ignore_index = -100 if ignored is None else ignored
        theirs: Any = {"label_smoothing": smoothing, "weight": costs, "ignore_index": ignore_index}
        wanted = of_logits(layer, targets, **theirs, **shared)
        own: Any = {"smoothing": smoothing, "class_weights": costs, "ignore_index": ignored, "block_size": block_size}
        found = linear_softmax(x, weight, targets, bias=bias, **own, **shared)
        by = torch.arange(1.0, found.numel() + 1, dtype=torch.float64).reshape(found.shape)
        slopes = [torch.autograd.grad((loss * by).sum(), layer) for loss in (found, wanted)]
        told = f"{own}, {shared}"
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-13, msg=told)
        for got, want in zip(*slopes, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13, msg=told)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"smoothing": 0.1},
    {"z_loss": 0.25},
    {"softcap": 1.5, "z_loss": 0.25},
    {"smoothing": 0.1, "z_loss": 0.25, "softcap": 1.5},
]
IGNORED = np.where(np.arange(N) == 2, -1, TARGETS)


@pytest.mark.usefixtures("jax_x64")
@pytest.mark.parametrize("options", OPTIONS)
def test_numpy_and_jax_agree_and_ignored_rows_may_be_nan(options: dict[str, Any]) -> None:
    weights = RNG.uniform(size=N)

    def loss(x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
        costs, targets, weights = rest
        given: Any = {"bias": bias, "class_weights": costs, "weights": weights, "ignore_index": -1}
        return linear_softmax(x, weight, targets, **given, **options)

    broken = np.where(IGNORED[:, None] == -1, np.nan, X)
    arrays = (broken, WEIGHT, BIAS, COSTS, IGNORED, weights)
    value, slopes = pnce.value_and_grad(loss, (0, 1, 2))(*arrays)
    kept = IGNORED != -1
    np.testing.assert_allclose(value, loss(X[kept], WEIGHT, BIAS, COSTS, IGNORED[kept], weights[kept]), rtol=1e-13)
    assert np.all(slopes[0][~kept] == 0.0)
    found = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*map(jnp.asarray, arrays))
    for ours, theirs in zip((value, *slopes), (found[0], *found[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # by torch itself
@pytest.mark.parametrize("options", OPTIONS)
def test_derivatives_of_second_order(options: dict[str, Any]) -> None:
    def loss(x: Any, weight: Any, bias: Any) -> Any:
        return linear_softmax(x, weight, torch.tensor(TARGETS), bias=bias, **options)

    arrays = [torch.tensor(array, requires_grad=True) for array in (X, WEIGHT, BIAS)]
    assert torch.autograd.gradgradcheck(loss, arrays)


def test_targets_out_of_range() -> None:
    beyond = np.where(np.arange(N) == 0, V, TARGETS)
    with pytest.raises(ValueError, match=f"targets: expected indices from 0 to {V - 1}, .*got {V}"):
        linear_softmax(X, WEIGHT, beyond)
    costs = jnp.asarray(COSTS)
    found = jax.jit(lambda *arrays: linear_softmax(*arrays, class_weights=costs, smoothing=0.1))(X, WEIGHT, beyond)
    wanted = linear_softmax(X[1:], WEIGHT, TARGETS[1:], class_weights=COSTS, smoothing=0.1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_one_class_and_no_rows_that_count() -> None:
    one = linear_softmax(X, WEIGHT[:1], np.zeros(N, dtype=np.int64), z_loss=0.5)
    np.testing.assert_allclose(one, 0.5 * np.mean((X @ WEIGHT[0]) ** 2))
    for options in OPTIONS:
        assert linear_softmax(X, WEIGHT, np.full(N, 4), ignore_index=4, **options) == 0.0
    byte = TARGETS.astype(np.uint8)
    of_bytes = linear_softmax(*map(torch.tensor, (X, WEIGHT, byte)), class_weights=torch.tensor(COSTS), smoothing=0.1)
    wanted = linear_softmax(X, WEIGHT, TARGETS, class_weights=COSTS, smoothing=0.1)
    np.testing.assert_allclose(of_bytes, wanted, rtol=1e-13)
    np.testing.assert_array_equal(linear_softmax(X, WEIGHT, byte, ignore_index=-100), linear_softmax(X, WEIGHT, byte))


def test_far_beyond_the_softcap_slopes_have_all_their_digits() -> None:
    x = np.asarray([[30.0]])
    slope = pnce.grad(lambda x: linear_softmax(x, np.asarray([[1.0], [0.0]]), np.asarray([1]), softcap=1.0))(x)
    sech = 2.0 / (np.exp(30.0) + np.exp(-30.0))
    np.testing.assert_allclose(slope, sech**2 / (1.0 + np.exp(-1.0)), rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits(dtype: torch.dtype) -> None:
    given: Any = {"smoothing": 0.1, "z_loss": 0.01}
    arrays = [torch.tensor(array).to(dtype).requires_grad_() for array in (X, WEIGHT, BIAS)]
    wide = [array.detach().double().requires_grad_() for array in arrays]
    found, wanted = (linear_softmax(x, w, torch.tensor(TARGETS), bias=b, **given) for x, w, b in (arrays, wide))
    assert found.dtype == dtype
    for ours, theirs in zip(torch.autograd.grad(found, arrays), torch.autograd.grad(wanted, wide), strict=True):
        assert ours.dtype == dtype
        assert (ours - theirs).abs().max() <= torch.finfo(dtype).eps * theirs.abs().max()


MANY = {"rows": 1500, "classes": 20000, "width": 16}


@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1}, {"z_loss": 0.1}, {"softcap": 2.0}])
def test_one_pass_without_the_logits(options: dict[str, Any]) -> None:
    rows, classes, width = MANY.values()
    x, weight = (RNG.normal(size=(n, width)).astype(np.float32) for n in (rows, classes))
    bias, targets = RNG.normal(size=classes).astype(np.float32), RNG.integers(classes, size=rows)
    (sweep,) = pnce.explain(linear_softmax, x, weight, targets, bias=bias, **options).sweeps
    assert (sweep.rows, sweep.columns, sweep.width) == (rows, classes, width + 1)
    assert sweep.products == 3
    assert "one pass for value and gradients" in str(pnce.explain(linear_softmax, x, weight, targets, **options))
    differentiated = pnce.value_and_grad(lambda x, w, b: linear_softmax(x, w, targets, bias=b, **options), (0, 1, 2))
    tracemalloc.start()
    differentiated(x, weight, bias)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * rows * classes / 3  # of the matrix, in bytes
