"""Contestants of `speed.py`, one process each: our losses and others', value and all gradients.

Embeddings have unit length and scores are their products over a temperature, so that all contestants do the same work;
with `NORMALIZED`, all contestants normalise, as in a training.
Formulas are written as users write them; if a library has the loss, it is called.

A process, `python contestants.py LOSS NAME ROWS WIDTH DEVICE COLUMNS`, prepares, reports that it is ready, and measures
on demand: the line `time` returns the seconds of a run, `memory` the bytes that a run takes above its inputs and
gradients, and `both` the two for the very first run.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

TEMPERATURE: Final = 0.1
BIAS: Final = -10.0
"""Initial bias of SigLIP."""
QUEUE: Final = 4
"""Size of MoCo's queue, in batches."""
CLASSES: Final = 1000
"""Number of classes for SupCon."""
CLASSES_AT_ONCE: Final = 8192
"""Block of the vocabulary in the roofline."""
LEAST_SECONDS: Final = 0.05
"""Short runs are repeated for at least this long."""

Run = Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """Problem size: rows N, width D, device, and classes V of a vocabulary, 0 for square problems."""

    rows: int
    width: int
    device: str = "cpu"
    columns: int = 0


@dataclass(frozen=True)
class Contestant:
    """Library of a loss, and the function that prepares a run."""

    loss: str
    name: str
    library: str
    prepare: Callable[[str, Setting], Run]


CONTESTANTS: Final[dict[tuple[str, str], Contestant]] = {}


def contestant(*losses: str, name: str, library: str) -> Callable[[Callable[[str, Setting], Run]], None]:
    """Register a function of loss and setting for some losses."""

    def register(prepare: Callable[[str, Setting], Run]) -> None:
        for loss in losses:
            CONTESTANTS[loss, name] = Contestant(loss, name, library, prepare)

    return register


def numbers(setting: Setting) -> tuple[Any, Any, Any, Any]:
    """Draw two views of unit length, a queue and labels; or rows, layer weights, nothing, and targets."""
    import numpy as np  # noqa: PLC0415  (a process imports only its contestant's library)

    rng = np.random.default_rng(0)

    def unit(x: Any) -> Any:
        return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)

    x = unit(rng.standard_normal((setting.rows, setting.width), dtype=np.float32))
    if setting.columns:
        weight = rng.standard_normal((setting.columns, setting.width), dtype=np.float32)
        return x, weight, x[:0], rng.integers(0, setting.columns, setting.rows)
    y = unit(x + 0.05 * rng.standard_normal(x.shape, dtype=np.float32))
    queue = unit(rng.standard_normal((QUEUE * setting.rows, setting.width), dtype=np.float32))
    return x, y, queue, rng.integers(0, CLASSES, setting.rows)


# ---------------------------------------------------------------------------------------------------------------- ours


def our_loss(loss: str, block_size: int | str = "auto", similarity: str = "dot") -> Callable[..., Any]:
    """Give our loss as a function of two views, a queue and labels."""
    import portable_nce as pnce  # noqa: PLC0415

    blocks: dict[str, Any] = {"block_size": block_size}
    dot: dict[str, Any] = {"similarity": similarity, **blocks}
    found: dict[str, Callable[..., Any]] = {
        "info_nce": lambda x, y, _queue, _labels: pnce.info_nce(x, y, temperature=TEMPERATURE, **dot),
        NORMALIZED: lambda x, y, _queue, _labels: pnce.info_nce(x, y, temperature=TEMPERATURE, **blocks),
        "flat_nce": lambda x, y, _queue, _labels: pnce.flat_nce(x, y, temperature=TEMPERATURE, **dot),
        "dcl": lambda x, y, _queue, _labels: pnce.dcl(x, y, temperature=TEMPERATURE, **dot),
        "nt_xent": lambda x, y, _queue, _labels: pnce.nt_xent(x, y, temperature=TEMPERATURE, **dot),
        "clip": lambda x, y, _queue, _labels: pnce.clip(x, y, logit_scale=1 / TEMPERATURE, **dot),
        TRAINED: lambda x, y, _queue, _labels: pnce.clip(x, y, logit_scale=SCALE, **dot),
        "siglip": lambda x, y, _queue, _labels: pnce.siglip(x, y, logit_scale=1 / TEMPERATURE, logit_bias=BIAS, **dot),
        "supcon": lambda x, _y, _queue, labels: pnce.supcon(x, labels, temperature=TEMPERATURE, **dot),
        "moco": lambda x, y, queue, _labels: pnce.info_nce(x, y, queue, temperature=TEMPERATURE, **dot),
        LINEAR: lambda x, y, _queue, labels: pnce.density.linear_softmax(x, y, labels, **blocks),
    }
    return found[loss]


HALVES: Final = ("nt_xent", "flat_nce", "dcl")
"""Losses of two views in one batch; rows count both."""
NORMALIZED: Final = "info_nce_normalized"
"""InfoNCE of embeddings that each contestant normalises."""
LINEAR: Final = "linear_softmax"
"""Cross-entropy over the classes of a layer."""
TRAINED: Final = "clip_trained"
"""CLIP at its largest scale, where nearly all rows are saturated."""
SCALE: Final = 100.0
LOSSES: Final = ("info_nce", NORMALIZED, "clip", TRAINED, "siglip", *HALVES, "supcon", "moco", LINEAR)


def views(loss: str, setting: Setting) -> tuple[Any, Any, Any, Any]:
    """Draw the inputs of a loss."""
    if loss in HALVES:
        return numbers(Setting(setting.rows // 2, setting.width))
    return numbers(setting)


def ours_on_numpy(loss: str, setting: Setting, block_size: int | str = "auto") -> Run:
    """Run our value and gradient on NumPy arrays."""
    import portable_nce as pnce  # noqa: PLC0415

    x, y, queue, labels = views(loss, setting)
    function = our_loss(loss, block_size)
    gradient = pnce.value_and_grad(lambda a, b: function(a, b, queue, labels), argnums=(0, 1))
    return lambda: gradient(x, y)


def on_torch(loss: str, setting: Setting, function: Callable[..., Any]) -> Run:
    """Run a function of tensors and its backward pass."""
    import torch  # noqa: PLC0415

    x, y, queue, labels = (torch.asarray(a, device=setting.device) for a in views(loss, setting))
    x.requires_grad_()
    y.requires_grad_()

    def run() -> tuple[Any, Any]:
        function(x, y, queue, labels).backward()
        gradients = x.grad, y.grad
        x.grad = y.grad = None
        if setting.device != "cpu":
            torch.cuda.synchronize()
        return gradients

    return run


def on_jax(loss: str, setting: Setting, function: Callable[..., Any]) -> Run:
    """Run the compiled value and gradient of a function of arrays."""
    import jax  # noqa: PLC0415

    x, y, queue, labels = (jax.numpy.asarray(a) for a in views(loss, setting))
    gradient = jax.jit(jax.value_and_grad(function, argnums=(0, 1))).lower(x, y, queue, labels).compile()
    return lambda: jax.block_until_ready(gradient(x, y, queue, labels))


@contestant(*LOSSES, name="portable_nce, NumPy", library="numpy")
def _ours_numpy(loss: str, setting: Setting) -> Run:
    return ours_on_numpy(loss, setting)


@contestant(*LOSSES, name="portable_nce, torch", library="torch")
def _ours_torch(loss: str, setting: Setting) -> Run:
    return on_torch(loss, setting, our_loss(loss))


@contestant(*LOSSES, name="portable_nce, JAX", library="jax")
def _ours_jax(loss: str, setting: Setting) -> Run:
    return on_jax(loss, setting, our_loss(loss))


@contestant("clip", "nt_xent", name="portable_nce, NumPy, recomputed", library="numpy")
def _ours_numpy_recomputed(loss: str, setting: Setting) -> Run:
    return ours_on_numpy(loss, setting, 1024)


@contestant("clip", "nt_xent", name="portable_nce, torch, recomputed", library="torch")
def _ours_torch_recomputed(loss: str, setting: Setting) -> Run:
    return on_torch(loss, setting, our_loss(loss, 1024))


@contestant(*LOSSES, name="portable_nce, CuPy", library="cupy")
def _ours_cupy(loss: str, setting: Setting) -> Run:
    import cupy  # pyright: ignore[reportMissingImports]  # noqa: PLC0415

    import portable_nce as pnce  # noqa: PLC0415

    x, y, queue, labels = (cupy.asarray(a) for a in views(loss, setting))
    function = our_loss(loss)
    gradient = pnce.value_and_grad(lambda a, b: function(a, b, queue, labels), argnums=(0, 1))

    def run() -> None:
        gradient(x, y)
        cupy.cuda.Device().synchronize()

    return run


# ------------------------------------------------------------------------------------------------------------ the roof


@contestant(*LOSSES, name="roofline, NumPy", library="numpy")
def _roof_numpy(loss: str, setting: Setting) -> Run:
    """Three products and the exponentials of a matrix in preallocated memory, in blocks of rows and classes.

    Powers of 2 and tall products, which are faster.
    """
    del loss
    import numpy as np  # noqa: PLC0415

    x, y, _, _ = numbers(setting)
    rows, columns = min(512, setting.rows), min(CLASSES_AT_ONCE, setting.columns) or setting.rows
    scores = np.empty((columns, rows), np.float32)
    to_rows, to_columns = np.empty((rows, setting.width), np.float32), np.empty_like(y)

    def run() -> None:
        for start in range(0, setting.rows, rows):
            own = x[start : start + rows]
            for first in range(0, len(y), columns):
                tile = y[first : first + columns]
                np.matmul(tile, own.T, out=scores)
                np.exp2(scores, out=scores)
                np.matmul(scores.T, tile, out=to_rows)
                np.matmul(scores, own, out=to_columns[first : first + columns])

    return run


@contestant(*LOSSES, name="roofline, torch", library="torch")
def _roof_torch(loss: str, setting: Setting) -> Run:
    del loss
    import torch  # noqa: PLC0415

    x, y, _, _ = (torch.asarray(a, device=setting.device) for a in numbers(setting))
    x = x / setting.width  # exponentials outside of [-87, 87] are slow
    rows = min(512 if setting.device == "cpu" else 8192, setting.rows)
    columns = min(CLASSES_AT_ONCE, setting.columns) or setting.rows
    scores = x.new_empty((rows, columns))
    to_rows, to_columns = x.new_empty((rows, setting.width)), torch.empty_like(y)

    def run() -> None:
        for start in range(0, setting.rows, rows):
            own = x[start : start + rows]
            for first in range(0, len(y), columns):
                tile = y[first : first + columns]
                part = scores[:, : len(tile)]
                torch.mm(own, tile.T, out=part)
                part.exp_()
                torch.mm(part, tile, out=to_rows)
                torch.mm(part.T, own, out=to_columns[first : first + columns])
        if setting.device != "cpu":
            torch.cuda.synchronize()

    return run


@contestant(*LOSSES, name="roofline, JAX", library="jax")
def _roof_jax(loss: str, setting: Setting) -> Run:
    """The same work in a compiled loop, which adds to the gradient of the columns: XLA has no `out=`."""
    del loss
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    x, y = (jnp.asarray(a) for a in numbers(setting)[:2])
    rows = min(512 if setting.device == "cpu" else 8192, setting.rows)
    columns = min(CLASSES_AT_ONCE, setting.columns) or setting.rows
    blocks, tiles = jnp.reshape(x / setting.width, (-1, rows, setting.width)), jnp.reshape(y, (-1, columns, y.shape[1]))

    def sweep(blocks: Any, tiles: Any) -> tuple[Any, Any]:
        def of_block(to_columns: Any, own: Any) -> tuple[Any, Any]:
            def of_tile(to_rows: Any, inputs: tuple[Any, Any]) -> tuple[Any, Any]:
                tile, total = inputs
                scores = jnp.exp(own @ tile.T)
                return to_rows + scores @ tile, total + own.T @ scores  # transposed: faster on processors

            to_rows, to_columns = jax.lax.scan(of_tile, jnp.zeros_like(own), (tiles, to_columns))
            return to_columns, to_rows

        zeros: Any = jnp.zeros((len(tiles), setting.width, columns), jnp.float32)
        found: tuple[Any, Any] = jax.lax.scan(of_block, zeros, blocks)
        return found

    compiled = jax.jit(sweep).lower(blocks, tiles).compile()
    return lambda: jax.block_until_ready(compiled(blocks, tiles))


# -------------------------------------------------------------------------------------------------------------- others


def torch_formula(loss: str) -> Callable[..., Any]:
    """Give a loss as usually written in torch."""
    import torch  # noqa: PLC0415
    from torch.nn.functional import cross_entropy, logsigmoid, normalize  # noqa: PLC0415

    def info_nce(x: Any, y: Any, _queue: Any, _labels: Any) -> Any:
        return cross_entropy(x @ y.T / TEMPERATURE, torch.arange(len(x), device=x.device))

    def normalized(x: Any, y: Any, _queue: Any, _labels: Any) -> Any:
        return info_nce(normalize(x), normalize(y), _queue, _labels)

    def clip(x: Any, y: Any, _queue: Any, _labels: Any, *, scale: float = 1 / TEMPERATURE) -> Any:
        logits = x @ y.T * scale
        labels = torch.arange(len(x), device=x.device)
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2

    def siglip(x: Any, y: Any, _queue: Any, _labels: Any) -> Any:
        logits = x @ y.T / TEMPERATURE + BIAS
        signs = 2 * torch.eye(len(x), device=x.device) - 1
        return -logsigmoid(signs * logits).sum() / len(x)

    def nt_xent(x: Any, y: Any, _queue: Any, _labels: Any, *, decoupled: bool = False) -> Any:
        z = torch.cat([x, y])
        i = torch.arange(len(z), device=z.device)
        left_out = i[:, None] == i
        if decoupled:
            left_out = left_out | (i.roll(len(x))[:, None] == i)
        negatives = torch.where(left_out, float("-inf"), z @ z.T / TEMPERATURE)
        return negatives.logsumexp(1).mean() - (x * y).sum(1).mean() / TEMPERATURE

    def supcon(x: Any, _y: Any, _queue: Any, labels: Any) -> Any:
        scores = x @ x.T / TEMPERATURE
        own = torch.eye(len(x), dtype=torch.bool, device=x.device)
        log_p = scores - scores.masked_fill(own, float("-inf")).logsumexp(1, keepdim=True)
        same = (labels[:, None] == labels) & ~own
        return -(torch.where(same, log_p, 0).sum(1) / same.sum(1)).mean()

    def moco(x: Any, y: Any, queue: Any, _labels: Any) -> Any:
        logits = torch.cat([(x * y).sum(1, keepdim=True), x @ queue.T], 1) / TEMPERATURE
        return cross_entropy(logits, torch.zeros(len(x), dtype=torch.long, device=x.device))

    def linear_softmax(x: Any, y: Any, _queue: Any, labels: Any) -> Any:
        return cross_entropy(x @ y.T, labels)

    found: dict[str, Callable[..., Any]] = {
        LINEAR: linear_softmax,
        "info_nce": info_nce,
        NORMALIZED: normalized,
        "clip": clip,
        TRAINED: partial(clip, scale=SCALE),
        "siglip": siglip,
        "nt_xent": nt_xent,
        "flat_nce": partial(nt_xent, decoupled=True),
        "dcl": partial(nt_xent, decoupled=True),
        "supcon": supcon,
        "moco": moco,
    }
    return found[loss]


@contestant(*LOSSES, name="formula, torch", library="torch")
def _torch_eager(loss: str, setting: Setting) -> Run:
    return on_torch(loss, setting, torch_formula(loss))


@contestant(*LOSSES, name="formula, torch.compile", library="torch")
def _torch_compiled(loss: str, setting: Setting) -> Run:
    import torch  # noqa: PLC0415

    return on_torch(loss, setting, torch.compile(torch_formula(loss), fullgraph=True))


@contestant(TRAINED, name="formula, torch, set_flush_denormal", library="torch")
def _torch_flushing(loss: str, setting: Setting) -> Run:
    import torch  # noqa: PLC0415

    torch.set_flush_denormal(True)  # of this process
    return on_torch(loss, setting, torch_formula(loss))


@contestant("info_nce", "clip", LINEAR, name="linear_cross_entropy, torch", library="torch")
def _torch_linear_cross_entropy(loss: str, setting: Setting) -> Run:
    import torch  # noqa: PLC0415
    from torch.nn import LinearCrossEntropyOptions  # noqa: PLC0415
    from torch.nn.functional import linear_cross_entropy  # noqa: PLC0415

    def one_way(x: Any, y: Any) -> Any:
        labels = torch.arange(len(x), device=x.device)
        return linear_cross_entropy(x / TEMPERATURE, y, labels, options=LinearCrossEntropyOptions())

    def function(x: Any, y: Any, _queue: Any, labels: Any) -> Any:
        if loss == LINEAR:
            return linear_cross_entropy(x, y, labels, options=LinearCrossEntropyOptions())
        return (one_way(x, y) + one_way(y, x)) / 2 if loss == "clip" else one_way(x, y)

    return on_torch(loss, setting, function)


@contestant("siglip", name="in chunks, torch", library="torch")
def _torch_siglip_in_chunks(loss: str, setting: Setting) -> Run:
    return on_torch(loss, setting, _in_chunks())


@contestant("siglip", name="in chunks, torch.compile", library="torch")
def _torch_siglip_in_compiled_chunks(loss: str, setting: Setting) -> Run:
    import torch  # noqa: PLC0415

    return on_torch(loss, setting, _in_chunks(lambda function: torch.compile(function, fullgraph=True)))


def _in_chunks(change: Callable[[Any], Any] = lambda function: function) -> Callable[..., Any]:
    """Write SigLIP as a sum over blocks of rows."""
    from torch.nn.functional import logsigmoid, softplus  # noqa: PLC0415

    def all_negatives(x: Any, y: Any) -> Any:
        return softplus(x @ y.T / TEMPERATURE + BIAS).sum()

    chunk = change(all_negatives)

    def function(x: Any, y: Any, _queue: Any, _labels: Any) -> Any:
        own = (x * y).sum(1) / TEMPERATURE + BIAS
        total = (logsigmoid(-own) - logsigmoid(own)).sum()
        for part in x.split(512):
            total = total + chunk(part, y)
        return total / len(x)

    return function


@contestant("nt_xent", "supcon", name="pytorch-metric-learning", library="torch")
def _metric_learning(loss: str, setting: Setting) -> Run:
    import torch  # noqa: PLC0415
    from pytorch_metric_learning import losses  # pyright: ignore[reportMissingImports]  # noqa: PLC0415

    chosen: Any = (losses.NTXentLoss if loss == "nt_xent" else losses.SupConLoss)(temperature=TEMPERATURE)

    def function(x: Any, y: Any, _queue: Any, labels: Any) -> Any:
        if loss == "supcon":
            return chosen(x, labels)
        return chosen(torch.cat([x, y]), torch.arange(len(x), device=x.device).repeat(2))

    return on_torch(loss, setting, function)


def jax_formula(loss: str) -> Callable[..., Any]:
    """Give a loss as usually written in JAX."""
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    def function(x: Any, y: Any, _queue: Any, _labels: Any) -> Any:
        if loss == "nt_xent":
            z = jnp.concatenate([x, y])
            scores = jnp.where(jnp.eye(len(z), dtype=bool), -jnp.inf, z @ z.T / TEMPERATURE)
            return jax.nn.logsumexp(scores, axis=1).mean() - (x * y).sum(1).mean() / TEMPERATURE
        if loss == NORMALIZED:
            x, y = (z / jnp.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
        logits = x @ y.T * (SCALE if loss == TRAINED else 1 / TEMPERATURE)
        if loss == "siglip":
            signs = 2 * jnp.eye(len(x)) - 1
            return -jax.nn.log_sigmoid(signs * (logits + BIAS)).sum() / len(x)
        rows = (jax.nn.logsumexp(logits, axis=1) - jnp.diagonal(logits)).mean()
        if loss in {"info_nce", NORMALIZED}:
            return rows
        return (rows + (jax.nn.logsumexp(logits, axis=0) - jnp.diagonal(logits)).mean()) / 2

    return function


@contestant("info_nce", NORMALIZED, "clip", TRAINED, "siglip", "nt_xent", name="formula, jax.jit", library="jax")
def _jax_formula(loss: str, setting: Setting) -> Run:
    return on_jax(loss, setting, jax_formula(loss))


@contestant("nt_xent", LINEAR, name="optax, jax.jit", library="jax")
def _optax(loss: str, setting: Setting) -> Run:
    import jax.numpy as jnp  # noqa: PLC0415
    import optax  # pyright: ignore[reportMissingImports]  # noqa: PLC0415

    def function(x: Any, y: Any, _queue: Any, labels: Any) -> Any:
        if loss == LINEAR:
            return optax.softmax_cross_entropy_with_integer_labels(x @ y.T, labels).mean()
        return optax.ntxent(jnp.concatenate([x, y]), jnp.tile(jnp.arange(len(x)), 2), temperature=TEMPERATURE)

    return on_jax(loss, setting, function)


# ----------------------------------------------------------------------------------------------------------- measuring


def resident(field: str) -> int:
    """Read the current or peak memory of this process, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None  # noqa: S101  (Linux)
    return int(found[1]) * 1024


def memory_of(run: Run, gradients: int) -> tuple[int, float]:
    """Measure the peak memory of a run above the memory before it and its gradients; and time."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    started = time.perf_counter()
    kept = run()
    seconds = time.perf_counter() - started
    peak = resident("VmHWM")
    del kept
    return peak - before - gradients, seconds


def device_memory_of(run: Run, gradients: int) -> int:
    """Measure peak memory on a GPU by torch's counters."""
    import torch  # noqa: PLC0415

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - before - gradients


def repeats_of(run: Run) -> int:
    """Warm up twice, and choose the number of repeats."""
    run()
    run()
    started = time.perf_counter()
    run()
    return max(1, int(LEAST_SECONDS / (time.perf_counter() - started)))


def seconds_of(run: Run, setting: Setting) -> float:
    """Measure the time of a run; processor time if bound to one core."""
    alone = setting.device == "cpu" and len(os.sched_getaffinity(0)) == 1
    clock = time.process_time if alone else time.perf_counter
    started = clock()
    run()
    return clock() - started


def main() -> None:
    """Measure on demand."""
    loss, name, rows, width, device, columns = sys.argv[1:]
    setting = Setting(int(rows), int(width), device, int(columns))
    run = CONTESTANTS[loss, name].prepare(loss, setting)
    columns_with_gradient = 0 if loss in {*HALVES, "supcon"} else setting.columns or setting.rows
    gradients = 4 * (setting.rows + columns_with_gradient) * setting.width
    on_device = device != "cpu" and CONTESTANTS[loss, name].library == "torch"
    repeats = 0
    print("ready", flush=True)
    for line in sys.stdin:
        what = line.strip()
        if what == "both":
            print(*memory_of(run, gradients), flush=True)
            continue
        repeats = repeats or repeats_of(run)
        if what == "time":
            print(statistics.median(seconds_of(run, setting) for _ in range(repeats)), flush=True)
        else:
            print(device_memory_of(run, gradients) if on_device else memory_of(run, gradients)[0], flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    main()
