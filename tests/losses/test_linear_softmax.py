"""`density.linear_softmax` against PyTorch's cross-entropy of the logits, and its memory."""

from __future__ import annotations

import itertools
import tracemalloc
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce.density import SoftmaxStatistics, linear_softmax
from portable_nce.testing import run_ranks

RNG = np.random.default_rng(0)
N, V, D = 7, 5, 3
X, WEIGHT, BIAS = RNG.normal(size=(N, D)), RNG.normal(size=(V, D)), RNG.normal(size=V)
COSTS, TARGETS = RNG.uniform(0.25, 2.0, size=V), RNG.integers(V, size=N)

COMBINED = [*itertools.product((0.0, 0.1, 1.0), (False, True), (None, -100, 2), (None, 1.5), (0.0, 0.25))]
"""Smoothing, class weights, ignored target, softcap, z-loss."""


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


@pytest.mark.parametrize("options", OPTIONS)
def test_derivatives_of_second_order(options: dict[str, Any]) -> None:
    def loss(x: Any, weight: Any, bias: Any) -> Any:
        return linear_softmax(x, weight, torch.tensor(TARGETS), bias=bias, **options)

    arrays = [torch.tensor(array, requires_grad=True) for array in (X, WEIGHT, BIAS)]
    assert torch.autograd.gradgradcheck(loss, arrays)


def dense_statistics(layer: Any, targets: Any, softcap: Any) -> tuple[Any, Any]:
    """Log-sum-exp and target's logit of each row, 0 where the target is negative."""
    x, matrix, bias = layer
    logits = x @ matrix.T + bias
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    counted = targets >= 0
    own = logits[torch.arange(len(targets)), torch.where(counted, targets, 0)]
    return torch.where(counted, logits.logsumexp(1), 0.0), torch.where(counted, own, 0.0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("block_size", [None, 2])
def test_statistics_are_those_of_the_logits(reduction: Any, block_size: int | None) -> None:
    factors = torch.tensor(RNG.normal(size=(3, N)))
    for smoothing, weighted, ignored, softcap, z_loss in COMBINED:
        costs = torch.tensor(COSTS) if weighted else None
        targets = torch.tensor(TARGETS if ignored is None else np.where(np.arange(N) == 3, -100, TARGETS))
        layer = [torch.tensor(array, requires_grad=True) for array in (X, WEIGHT, BIAS)]
        shared: Any = {"softcap": softcap, "z_loss": z_loss, "reduction": reduction}
        theirs: Any = {"label_smoothing": smoothing, "weight": costs, "ignore_index": -100}
        wanted = of_logits(layer, targets, **theirs, **shared), *dense_statistics(layer, targets, softcap)
        own: Any = {"bias": layer[2], "smoothing": smoothing, "class_weights": costs, "block_size": block_size}
        ignore: Any = {"ignore_index": None if ignored is None else -100}
        loss, row = linear_softmax(layer[0], layer[1], targets, return_statistics=True, **ignore, **own, **shared)
        assert isinstance(row, SoftmaxStatistics)
        found = (loss, row.log_sum_exp, row.target_score)
        told = f"{smoothing}, {weighted}, {ignored}, {shared}"
        for ours, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-13, msg=told)
        sums: list[Any] = [
            sum((part * by).sum() for part, by in zip(all_of_it, factors, strict=True)) for all_of_it in (found, wanted)
        ]
        slopes = [torch.autograd.grad(total, layer) for total in sums]
        for got, want in zip(*slopes, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12, msg=told)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("options", [{}, {"softcap": 1.5, "smoothing": 0.25, "z_loss": 0.25}, {"smoothing": 0.25}])
@pytest.mark.parametrize("weighted", [False, True])
def test_statistics_of_ranks(ranks: int, options: dict[str, Any], *, weighted: bool) -> None:
    factors, costs = torch.tensor(RNG.normal(size=(2, N))), torch.tensor(COSTS)
    rows, classes = ([0, *ends, total] for ends, total in (([1, 4][: ranks - 1], N), ([2, 3][: ranks - 1], V)))

    def losses(arrays: Any, own: slice, here: slice, **further: Any) -> Any:
        x, weight, bias = arrays
        given: Any = {"class_weights": costs[here]} if weighted else {}
        targets = torch.tensor(IGNORED)[own]
        found, row = linear_softmax(
            *(x, weight, targets), bias=bias, ignore_index=-1, return_statistics=True, **given, **options, **further
        )
        return found, row, torch.sum(factors[0, own] * row.log_sum_exp + factors[1, own] * row.target_score)

    def on_a_rank(group: Any) -> Any:
        own, here = (slice(*bounds[group.rank : group.rank + 2]) for bounds in (rows, classes))
        parts = [torch.tensor(a[s], requires_grad=True) for a, s in ((X, own), (WEIGHT, here), (BIAS, here))]
        loss, row, total = losses(parts, own, here, across=pnce.across(group, gradients="summed"))
        return loss.detach(), row.log_sum_exp.detach(), row.target_score.detach(), *torch.autograd.grad(total, parts)

    whole = [torch.tensor(array, requires_grad=True) for array in (X, WEIGHT, BIAS)]
    loss, row, total = losses(whole, slice(None), slice(None))
    assert row.log_sum_exp[2] == row.target_score[2] == 0.0  # ignored
    found = zip(*run_ranks(ranks, on_a_rank), strict=True)
    for value in next(found):
        torch.testing.assert_close(value, loss.detach(), rtol=1e-13, atol=1e-13)
    for parts, wanted in zip(found, (*row, *torch.autograd.grad(total, whole)), strict=True):
        torch.testing.assert_close(torch.cat(parts), wanted.detach(), rtol=1e-13, atol=1e-13)


@pytest.mark.usefixtures("jax_x64")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch.compile itself
def test_statistics_of_compiled_and_traced_functions() -> None:
    def total(x: Any, weight: Any, targets: Any) -> Any:
        loss, row = linear_softmax(x, weight, targets, ignore_index=-1, z_loss=0.1, return_statistics=True)
        return loss + (row.log_sum_exp * row.target_score).sum()

    wanted, slopes = pnce.value_and_grad(total, (0, 1))(X, WEIGHT, IGNORED)
    x, weight = layer = [torch.tensor(array, requires_grad=True) for array in (X, WEIGHT)]
    found = torch.compile(total, fullgraph=True, backend="aot_eager")(x, weight, torch.tensor(IGNORED))
    for ours, other in zip((found, *torch.autograd.grad(found, layer)), (wanted, *slopes), strict=True):
        np.testing.assert_allclose(ours.detach(), other, rtol=1e-12)
    traced = jax.jit(jax.value_and_grad(total, (0, 1)))(X, WEIGHT, IGNORED)
    for ours, other in zip((traced[0], *traced[1]), (wanted, *slopes), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-12)


def test_a_target_out_of_range_has_nan_as_statistics() -> None:
    beyond = np.where(np.arange(N) == 0, V, TARGETS)

    def total(x: Any, *layer: Any) -> Any:
        _, row = linear_softmax(x, *layer, return_statistics=True)
        return (row.log_sum_exp + row.target_score).sum(), row

    slopes, row = jax.jit(jax.grad(total, has_aux=True))(X, WEIGHT, beyond)
    for x in (row.log_sum_exp, row.target_score, slopes.sum(axis=1)):
        np.testing.assert_array_equal(np.isnan(x), np.arange(N) == 0)


@pytest.mark.parametrize("outside", [V, -1])
@pytest.mark.parametrize("options", [{}, {"class_weights": COSTS, "smoothing": 0.1}, {"softcap": 1.5, "z_loss": 0.1}])
def test_targets_out_of_range_raise_or_give_nan(options: dict[str, Any], outside: int) -> None:
    """An error where targets can be read; else NaN in the loss and all gradients of the layer."""
    beyond = np.where(np.arange(N) == 0, outside, TARGETS)
    with pytest.raises(ValueError, match=f"targets: expected indices from 0 to {V - 1}, .*got {outside}"):
        linear_softmax(X, WEIGHT, beyond, **options)
    given: Any = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}

    def loss(*layer: Any, **more: Any) -> Any:
        x, weight = layer
        return linear_softmax(x, weight, jnp.asarray(beyond), **{**given, **more})

    found, slopes = jax.value_and_grad(loss, argnums=(0, 1))(jnp.asarray(X), jnp.asarray(WEIGHT))
    assert np.isnan(found)
    assert all(np.isnan(x).any() for x in slopes)
    each = jax.jit(partial(loss, reduction="none"))(X, WEIGHT)
    np.testing.assert_array_equal(np.isnan(each), np.arange(N) == 0)
    np.testing.assert_allclose(each[1:], linear_softmax(X, WEIGHT, TARGETS, reduction="none", **options)[1:], rtol=1e-5)
    without = loss(jnp.asarray(X), jnp.asarray(WEIGHT), weights=jnp.asarray(np.arange(N) > 0))
    wanted = linear_softmax(X[1:], WEIGHT, TARGETS[1:], **options)
    np.testing.assert_allclose(without, wanted, rtol=1e-5)


def test_targets_out_of_range_are_nan_across_ranks() -> None:
    """Ranks of JAX arrays, which are not read, with two and three of five classes."""
    targets, classes = np.where(np.arange(N) == 2, V, TARGETS), (slice(0, 2), slice(2, V))

    def on_a_rank(group: Any) -> Any:
        rows = (slice(0, 3), slice(3, N))[group.rank]
        arrays = map(jnp.asarray, (X[rows], WEIGHT[classes[group.rank]], targets[rows]))
        return linear_softmax(*arrays, reduction="none", across=pnce.across(group, gradients="summed"))

    found = np.concatenate(run_ranks(2, on_a_rank))
    wanted = linear_softmax(X, WEIGHT, TARGETS, reduction="none")
    np.testing.assert_allclose(found, np.where(np.arange(N) == 2, np.nan, wanted), rtol=1e-5)


def test_full_softmax_of_targets_out_of_range_is_nan() -> None:
    scores, beyond = X @ WEIGHT.T, np.where(np.arange(N) == 0, V, TARGETS)
    found = jax.jit(partial(pnce.density.full_softmax, reduction="none"))(scores, beyond)
    wanted = pnce.density.full_softmax(scores, TARGETS, reduction="none")
    np.testing.assert_allclose(found, np.where(np.arange(N) == 0, np.nan, wanted), rtol=1e-5)


def test_linear_softmax_of_one_class_or_no_counted_rows() -> None:
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
def test_linear_softmax_takes_one_pass_without_the_logits(options: dict[str, Any]) -> None:
    rows, classes, width = MANY.values()
    x, weight = (RNG.normal(size=(n, width)).astype(np.float32) for n in (rows, classes))
    bias, targets = RNG.normal(size=classes).astype(np.float32), RNG.integers(classes, size=rows)
    (sweep,) = pnce.explain(linear_softmax, x, weight, targets, bias=bias, **options).sweeps
    assert (sweep.rows, sweep.columns, sweep.width) == (rows, classes, width + 1)
    assert sweep.products == (4 if "softcap" in options else 3)  # its slopes need the scores again
    assert "one pass for value and gradients" in str(pnce.explain(linear_softmax, x, weight, targets, **options))
    differentiated = pnce.value_and_grad(lambda x, w, b: linear_softmax(x, w, targets, bias=b, **options), (0, 1, 2))
    tracemalloc.start()
    differentiated(x, weight, bias)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * rows * classes / 3  # of the matrix, in bytes


def test_a_compiled_block_holds_its_scores_once() -> None:
    """Memory by XLA's analysis: the scores of 256 rows, of 1024, and little else."""
    rows, classes, width = 1024, 65536, 16
    x, weight = (jnp.zeros((n, width), dtype=jnp.float32) for n in (rows, classes))
    targets = jnp.zeros(rows, dtype=jnp.int32)
    lowered = jax.jit(jax.value_and_grad(linear_softmax, argnums=(0, 1))).lower(x, weight, targets)
    analysis: Any = lowered.compile().memory_analysis()
    block = 4 * classes * 256
    assert block < analysis.temp_size_in_bytes < 1.1 * block + 2 * weight.nbytes


def test_info_nce_of_a_catalogue_in_parts_sends_queries_alone() -> None:
    query, catalogue, temperature = RNG.normal(size=(N, D)), RNG.normal(size=(40, D)), 0.3
    unit = catalogue / np.linalg.norm(catalogue, axis=1, keepdims=True)
    own, ends = RNG.integers(40, size=N), [0, 11, 40]
    wanted = pnce.info_nce(query, catalogue, positives=own, temperature=temperature)

    def on_a_rank(group: Any) -> Any:
        rows, here = slice(*[(0, 3), (3, N)][group.rank]), slice(*ends[group.rank : group.rank + 2])
        x = query[rows] / np.linalg.norm(query[rows], axis=1, keepdims=True) / temperature
        ranks = pnce.across(group, gradients="summed")
        return linear_softmax(x, unit[here], own[rows], across=ranks), group.log

    for found, log in run_ranks(2, on_a_rank):
        np.testing.assert_allclose(found, wanted, rtol=1e-13)
        assert max(sent.entries for sent in log) <= N * D
