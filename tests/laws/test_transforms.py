"""What PyTorch and JAX can do with a function, they can do with a loss: compile, batch, differentiate again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import export as jax_export
from jax import test_util

import portable_nce as pnce
from portable_nce._core.registry import load_backend
from portable_nce._execution import tiling
from portable_nce.similarities import NAMES

jax.config.update("jax_enable_x64", True)  # noqa: FBT003  (JAX's interface)

pytestmark = [
    # Parts of torch itself are compiled by torch.jit.script, which warns of its own deprecation.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    # torch.compile makes an instance of autograd.Function for itself, and torch warns of it.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

Loss = Callable[..., Any]

EMBEDDING_LOSSES: dict[str, Loss] = {
    "info_nce": lambda x, y, t, **options: pnce.info_nce(x, y, temperature=t, **options),
    "info_nce symmetric": lambda x, y, t, **options: pnce.info_nce(x, y, temperature=t, symmetric=True, **options),
    "info_nce shared": lambda x, y, t, **options: pnce.info_nce(x, y, x + y, temperature=t, **options),
    "info_nce own": lambda x, y, t, **options: pnce.info_nce(x, y, x[:, None, :] * y, temperature=t, **options),
    "info_nce dot": lambda x, y, t, **options: pnce.info_nce(x, y, temperature=t, similarity="dot", **options),
    "info_nce squared": lambda x, y, t, **o: pnce.info_nce(x, y, temperature=t, similarity="neg_sq_euclidean", **o),
    "info_nce distance": lambda x, y, t, **o: pnce.info_nce(x, y, temperature=t, similarity="neg_euclidean", **o),
    "flat_nce": lambda x, y, t, **options: pnce.flat_nce(x, y, temperature=t, **options),
    "flat_nce plus": lambda x, y, t, **o: pnce.flat_nce(x, y, temperature=t, include_positive=True, **o),
    "nt_xent": lambda x, y, t, **options: pnce.nt_xent(x, y, temperature=t, **options),
    "dcl": lambda x, y, t, **options: pnce.dcl(x, y, temperature=t, **options),
    "clip": lambda x, y, t, **options: pnce.clip(x, y, logit_scale=1 / t, **options),
    "labels": lambda x, y, t, **options: pnce.contrast(
        x, y, objective="info_nce", pairing=pnce.pairings.labels(_labels(x), _labels(x)), temperature=t, **options
    ),
    "nt_xent three views": lambda x, y, t, **options: pnce.nt_xent(x, y, x * y, temperature=t, **options),
    "dclw": lambda x, y, t, **options: pnce.dclw(x, y, temperature=t, **options),
    "relic": lambda x, y, t, **options: pnce.relic(x, y, temperature=t, symmetric=True, **options),
    "siglip": lambda x, y, t, **options: pnce.siglip(x, y, logit_scale=1 / t, logit_bias=-t, **options),
    "siglip negative_only": lambda x, y, t, **o: pnce.siglip(
        x, y[1:, ...], logit_scale=1 / t, logit_bias=-t, negative_only=True, **o
    ),
    "supcon": lambda x, y, t, **o: pnce.supcon(x + y, _labels(x), temperature=t, base_temperature=0.2, **o),
    "supcon keys": lambda x, y, t, **o: pnce.supcon(x, _labels(x), keys=y, key_labels=_labels(y), temperature=t, **o),
    "supcon queue": lambda x, y, t, **o: pnce.supcon(
        x + y, _labels(x), keys=_queue(x), key_labels=_labels(_rows(x)), temperature=t, **o
    ),
    "nt_xent keys": lambda x, y, t, **o: pnce.nt_xent(x, y, keys=_rows(x), temperature=t, **o),
    "contrastive": lambda x, y, t, **o: pnce.contrastive(x * y, _labels(x), temperature=t, margin=9.0, **o),
    "triplet": lambda x, y, t, **options: pnce.triplet(x, y, x * y, temperature=t, margin=1.0, **options),
    "triplet_from_labels": lambda x, y, t, **o: pnce.triplet_from_labels(
        x * y, _labels(x), temperature=t, margin=1.0, **o
    ),
    "triplet_from_labels hard": lambda x, y, t, **o: pnce.triplet_from_labels(
        x * y, _labels(x), temperature=t, mining="batch_hard", form="soft", **o
    ),
    "triplet_from_labels semi_hard": lambda x, y, t, **o: pnce.triplet_from_labels(
        x * y, _labels(x), temperature=t, margin=1.0, mining="semi_hard", **o
    ),
    "moco": lambda x, y, t, **options: pnce.moco(x, y, _queue(x), temperature=t, **options),
    "two_tower": lambda x, y, t, **options: pnce.two_tower(x, y, log_q=x[:, 0], temperature=t, **options),
    "hcl": lambda x, y, t, **options: pnce.hcl(x, y, temperature=t, beta=0.5, **options),
    "distillation": lambda x, y, t, **o: pnce.distillation(
        x, y, 0 * x + 1, 0 * y + 1, temperature=t, symmetric=True, **o
    ),
    "max_sim": lambda x, y, t, **o: pnce.info_nce(
        _tokens(x), _tokens(y), similarity=pnce.similarities.max_sim(), temperature=t, symmetric=True, **o
    ),
    "cosent": lambda x, y, t, **_: pnce.cosent(x, y, x[:, 0], scale=1 / t),
    "nnclr": lambda x, y, t, **options: pnce.nnclr(x, y, _queue(x), temperature=t, symmetric=True, **options),
    "proto_nce": lambda x, y, t, **options: pnce.proto_nce(
        x, _rows(x), _labels(x), _rows(x)[:, 0] ** 2 + 0.2, key=y, queue=_queue(x), temperature=t, **options
    ),
}
# Put together of what those above are made of, in the same way: for these, one test of each library is enough.
RELATED_LOSSES: dict[str, Loss] = {
    "matryoshka": lambda x, y, t, **o: pnce.matryoshka(pnce.clip, (3, 2), weights=(1.0, 0.5))(
        x, y, logit_scale=1 / t, **o
    ),
    "gist_embed": lambda x, y, t, **o: pnce.gist_embed(x, y, 0 * x + 1, 0 * y + 1, temperature=t, margin=-0.1, **o),
    "joint_info_nce": lambda x, y, t, **o: pnce.joint_info_nce(x, y, temperature=t, **o),
    "sogclr": lambda x, y, t, **o: pnce.sogclr(x, y, 0 * x[:, 0], temperature=t, gamma=0.5, rho=1.0, **o)[0],
    "max_sim siglip": lambda x, y, t, **o: pnce.siglip(
        _tokens(x),
        _tokens(y),
        similarity=pnce.similarities.max_sim(normalize=False),
        logit_scale=1 / t,
        logit_bias=-1.0,
        **o,
    ),
    "angle": lambda x, y, t, **_: pnce.angle(x, y, x[:, 0], scale=1 / t),
    "n_tuple": lambda x, y, t, **options: pnce.n_tuple(x, y, temperature=t, l2=0.1, **options),
    "cpc": lambda x, y, t, **options: pnce.cpc(
        x, _steps(y), _steps((x[:, :, None] * y[:, None, :]).sum(0)), temperature=t, similarity="cosine", **options
    ),
    "moco_v3": lambda x, y, t, **options: pnce.moco_v3(
        x, y, _rows(x)[:4, :], _rows(x)[1:, :], temperature=t, **options
    ),
    "nca": lambda x, y, t, **options: pnce.nca(x + y, _labels(x), temperature=t, **options),
    "soft_nearest_neighbor": lambda x, y, t, **o: pnce.soft_nearest_neighbor(x + y, _labels(x), temperature=t, **o),
    "contrastive balance": lambda x, y, t, **o: pnce.contrastive(
        x * y, _labels(x), temperature=t, margin=9.0, average="nonzero", balance=True, **o
    ),
    "relic one way": lambda x, y, t, **options: pnce.relic(x, y, temperature=t, direction="b_to_a", **options),
}
SCORE_LOSSES: dict[str, Loss] = {
    "scores info_nce": pnce.from_scores.info_nce,
    "scores flat_nce": pnce.from_scores.flat_nce,
    "scores dcl": pnce.from_scores.dcl,
    "scores dclw": pnce.from_scores.dclw,
    "scores clip": lambda g: pnce.from_scores.clip(g[:, :4]),
    "scores relic": lambda g: pnce.from_scores.relic(g[:, :4], symmetric=True),
    "scores supcon": lambda g: pnce.from_scores.supcon(g, positives=g < 0, multi_positive="separate"),
    "scores nca": lambda g: pnce.from_scores.nca(g, positives=g < 0),
    "scores logistic": pnce.from_scores.logistic,
    "scores contrastive": lambda g: pnce.from_scores.contrastive(g, margin=4.0, positive_power=1),
    "scores triplet": lambda g: pnce.from_scores.triplet(g, margin=4.0),
    "scores triplet hard": lambda g: pnce.from_scores.triplet(g, mining="batch_hard", form="soft"),
    "bound info_nce": pnce.bounds.info_nce,
    "bound info_nce_anchor": pnce.bounds.info_nce_anchor,
    "bound dual": lambda g: pnce.bounds.dual(g, g[:, 0]),
    "dual critic": lambda g: pnce.bounds.dual_critic(g).sum(),
    "ess": pnce.diagnostics.effective_sample_size,
    "bound dv": pnce.bounds.dv,
    "bound nwj": pnce.bounds.nwj,
    "bound tuba": lambda g: pnce.bounds.tuba(g, g[:, 1]),
    "bound interpolated": lambda g: pnce.bounds.interpolated(g, 0.5, g[:, 1]),
    "bound js": pnce.bounds.js,
    "bound club": pnce.bounds.club,
    "bound leave_one_out": lambda g: pnce.bounds.leave_one_out(g[:, :4]),
    "local_nce": lambda g: pnce.density.local_nce(g[:, 0], g, g[:, 1], g[0, :]),
    "ranking_nce": lambda g: pnce.density.ranking_nce(g[:, 0], g, g[:, 1], g[0, :]),
    "sampled_softmax": lambda g: pnce.density.sampled_softmax(g[:, 0], g, g[:, 1], g[0, :]),
    "recovered": lambda g: (pnce.density.recover_log_prob(g, g[0, :]) * g).sum(),
    "self_normalization": lambda g: pnce.density.self_normalization(g, g[0, :]).std,
    "uniformity": pnce.diagnostics.uniformity,
    "alignment": lambda g: pnce.diagnostics.alignment(g, g[:, ::2].sum(1)[:, None] - g, power=1.0),
}
# Where every loss would take its time to compile and show nothing new, these show it: one for each way through the
# library.
FEW = (
    "info_nce",
    "info_nce distance",
    "labels",
    "nt_xent three views",
    "relic",
    "siglip",
    "contrastive",
    "triplet",
    "triplet_from_labels",
    "triplet_from_labels hard",
    "moco",
    "nnclr",
)
losses = pytest.mark.parametrize("loss", EMBEDDING_LOSSES.values(), ids=EMBEDDING_LOSSES.keys())
all_losses = pytest.mark.parametrize(
    "loss", [*EMBEDDING_LOSSES.values(), *RELATED_LOSSES.values()], ids=[*EMBEDDING_LOSSES, *RELATED_LOSSES]
)
score_losses = pytest.mark.parametrize("loss", SCORE_LOSSES.values(), ids=SCORE_LOSSES.keys())
few_losses = pytest.mark.parametrize("loss", [EMBEDDING_LOSSES[name] for name in FEW], ids=FEW)
blocks = pytest.mark.parametrize("block_size", [None, 2])
compiled_losses = pytest.mark.parametrize(
    ("loss", "block_size", "backend"),
    [
        pytest.param(EMBEDDING_LOSSES["info_nce"], None, "aot_eager", id="info_nce backward"),
        pytest.param(EMBEDDING_LOSSES["info_nce"], 2, "aot_eager", id="info_nce streamed"),
        *(
            pytest.param(EMBEDDING_LOSSES[name], 2, "aot_eager", id=f"{name} streamed")
            for name in ("labels", "contrastive", "triplet_from_labels hard")
        ),
    ],
)


QUEUE_SIZE = 4
MEMORY_LOSSES: dict[str, Loss] = {
    "moco": pnce.moco,
    # The gradient of NNCLR is that of the second view.
    "nnclr": lambda x, y, queue: pnce.nnclr(y, x, queue),
}
batches = pytest.mark.parametrize("batch", [2, 3, 6])


def _batches(batch: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(batch)
    return [(rng.normal(size=(batch, 3)), rng.normal(size=(batch, 3))) for _ in range(4)]


def _same_queue(ours: pnce.Queue, expected: pnce.Queue) -> None:
    _close(ours.rows, expected.rows)
    np.testing.assert_array_equal(np.asarray(ours.valid), expected.valid)


MEMORY = np.random.default_rng(11).normal(size=(5, 3)).tolist()


def _like(x: Any, nested: Any, kind: str = "") -> Any:
    """Numbers as an array of the library, device and dtype of x, or for the tape as one of NumPy."""
    if isinstance(x, torch.Tensor):
        return torch.tensor(nested, dtype=getattr(torch, kind) if kind else x.dtype, device=x.device)
    if isinstance(x, jax.Array):
        return jnp.asarray(nested, dtype=kind or x.dtype)
    return np.asarray(nested, dtype=kind or "float64")


def _labels(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.arange(x.shape[0], device=x.device) // 2 % 2
    return (jnp if isinstance(x, jax.Array) else np).arange(x.shape[0]) // 2 % 2


def _rows(x: Any) -> Any:
    return _like(x, MEMORY)


def _queue(x: Any) -> pnce.Queue:
    return pnce.Queue(_rows(x), _like(x, [False, True, True, True, True], "bool"))


def _steps(x: Any) -> Any:
    """Make a stack of two, one beside the other."""
    return x[None, :, :] * _like(x, [[[1.0]], [[-0.5]]])


def _tokens(x: Any) -> Any:
    """Make three tokens of each row: it with another of its numbers added."""
    return x[:, :, None] + x[:, None, :]


def _numbers(batch: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.normal(size=(*batch, 4, 3)), rng.normal(size=(*batch, 4, 3)), np.full(batch, 0.4)


def _torch(*, batch: tuple[int, ...] = (), requires_grad: bool = False) -> list[torch.Tensor]:
    return [torch.tensor(x, requires_grad=requires_grad) for x in _numbers(batch)]


def _jax(*, batch: tuple[int, ...] = ()) -> list[jax.Array]:
    return [jnp.asarray(x) for x in _numbers(batch)]


def _reference(loss: Loss) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    return pnce.value_and_grad(lambda x, y, t: loss(x, y, t, block_size=None), argnums=(0, 1, 2))(*_numbers())


def _check_grads(function: Loss, arguments: Any, **options: Any) -> None:
    check: Any = test_util.check_grads
    check(function, arguments, atol=1e-4, rtol=1e-4, **options)


def _close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-12, atol=1e-12)


def _gradient(argument: torch.Tensor) -> torch.Tensor:
    """The gradient that a backward pass left, which is none where nothing flows."""
    return torch.zeros_like(argument) if argument.grad is None else argument.grad


# ------------------------------------------------------------------------------------------------------------- torch


@all_losses
@blocks
def test_torch_backward(loss: Loss, block_size: int | None) -> None:
    arguments = _torch(requires_grad=True)
    value = loss(*arguments, block_size=block_size)
    value.backward()
    expected, gradients = _reference(loss)
    _close(value.detach(), expected)
    for argument, gradient in zip(arguments, gradients, strict=True):
        _close(_gradient(argument), gradient)


@all_losses
@blocks
@pytest.mark.parametrize("taken", [(True, False, False), (False, True, False), (False, False, True)], ids="xyt")
def test_torch_backward_of_some_arguments(loss: Loss, block_size: int | None, taken: tuple[bool, ...]) -> None:
    """The gradient of one argument is what it is beside the others, also where it is differentiated again."""
    every, some = _torch(requires_grad=True), _torch()
    for argument, requires_grad in zip(some, taken, strict=True):
        argument.requires_grad_(requires_grad)
    chosen = taken.index(True)
    value, expected = (loss(*arguments, block_size=block_size) for arguments in (some, every))
    options: Any = {"create_graph": True, "materialize_grads": True}
    (theirs,) = torch.autograd.grad(expected, [every[chosen]], **options)
    if not value.requires_grad:
        assert not torch.any(theirs)
        return
    (ours,) = torch.autograd.grad(value, [some[chosen]], **options)
    _close(ours.detach(), theirs.detach())
    if ours.requires_grad:
        (again,) = torch.autograd.grad((ours * ours).sum(), [some[chosen]], materialize_grads=True)
        (slopes,) = torch.autograd.grad((theirs * theirs).sum(), [every[chosen]], materialize_grads=True)
        _close(again, slopes)


@losses
@blocks
def test_torch_gradcheck_to_second_order(loss: Loss, block_size: int | None) -> None:
    arguments = _torch(requires_grad=True)

    def function(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return loss(x, y, t, block_size=block_size)

    assert torch.autograd.gradcheck(function, arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, arguments)


@pytest.mark.parametrize("name", ["info_nce", "clip", "nt_xent", "siglip", "supcon"])
def test_torch_gradcheck_of_what_is_chosen(name: str) -> None:
    """The same for what "auto" takes in small batches."""
    arguments = _torch(requires_grad=True)
    assert torch.autograd.gradcheck(EMBEDDING_LOSSES[name], arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(EMBEDDING_LOSSES[name], arguments, check_fwd_over_rev=True)


@losses
@blocks
def test_torch_func(loss: Loss, block_size: int | None) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return loss(x, y, t, block_size=block_size)

    _, gradients = _reference(loss)
    for ours, expected in zip(torch.func.grad(function, (0, 1, 2))(*_torch()), gradients, strict=True):
        _close(ours, expected)
    batched = _torch(batch=(3,))
    each = [torch.func.grad(function)(*(x[k] for x in batched)) for k in range(3)]
    _close(torch.func.vmap(torch.func.grad(function))(*batched), torch.stack(each))
    _close(torch.func.vmap(function)(*batched), torch.stack([function(*(x[k] for x in batched)) for k in range(3)]))
    hessian = torch.func.jacrev(torch.func.grad(function))(*_torch())
    double = torch.autograd.functional.hessian(lambda x: function(x, *_torch()[1:]), _torch()[0])
    _close(hessian, double)


@losses
@blocks
def test_torch_jvp_and_hessian(loss: Loss, block_size: int | None) -> None:
    def dense(x: torch.Tensor) -> torch.Tensor:
        return loss(x, *_torch()[1:], block_size=None)

    def function(x: torch.Tensor) -> torch.Tensor:
        return loss(x, *_torch()[1:], block_size=block_size)

    x, tangent, _ = _torch()
    result: Any = torch.func.jvp(function, (x,), (tangent,))
    value, derivative = result
    _close(value, function(x))
    _close(derivative, (torch.func.grad(function)(x) * tangent).sum())
    expected = torch.autograd.functional.hessian(dense, x)
    _close(torch.func.hessian(function)(x), expected)
    _close(torch.autograd.functional.hessian(function, x), expected)
    _close(torch.func.jacfwd(torch.func.jacfwd(function))(x), expected)
    _close(torch.func.jacrev(torch.func.jacfwd(function))(x), expected)


@compiled_losses
def test_torch_compile_fullgraph(loss: Loss, block_size: int | None, backend: str) -> None:
    torch.compiler.reset()

    @torch.compile(fullgraph=True, backend=backend)
    def compiled(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return loss(x, y, t, block_size=block_size)

    arguments = _torch(requires_grad=True)
    value = compiled(*arguments)
    value.backward()
    expected, gradients = _reference(loss)
    _close(value.detach(), expected)
    for argument, gradient in zip(arguments, gradients, strict=True):
        _close(_gradient(argument), gradient)


BATCHES = (4, 6, 7, 8, 10, 5, 12, 14, 16, 20)
OF_ANY_BATCH = {
    **EMBEDDING_LOSSES,
    **RELATED_LOSSES,
    "moco_v3": lambda x, y, t, **o: pnce.moco_v3(x, y, pnce.stop_gradient(y * y), x + 1.0, temperature=t, **o),
}
any_batch = pytest.mark.parametrize("loss", OF_ANY_BATCH.values(), ids=OF_ANY_BATCH)


def _batch_of(size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(size)
    return [rng.normal(size=(size, 3)), rng.normal(size=(size, 3)), np.asarray(0.5)]


@any_batch
def test_torch_compile_serves_every_batch_size(loss: Loss) -> None:
    """One graph for the first batch, and one for all others."""
    torch.compiler.reset()
    graphs = []

    def count(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(loss, fullgraph=True, backend=count)
    for size in BATCHES:
        results = []
        for function in (loss, compiled):
            arguments = [torch.tensor(x, requires_grad=True) for x in _batch_of(size)]
            value = function(*arguments)
            value.backward()
            results.append([value.detach(), *(_gradient(x) for x in arguments)])
        for ours, expected in zip(*results, strict=True):
            _close(ours, expected)
    assert len(graphs) <= 3


def test_torch_compile_of_a_large_batch_is_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(tiling, "_COMPILED_ENTRIES", 300)
    for name in ("info_nce", "clip", "siglip", "supcon", "triplet_from_labels"):
        compiled = torch.compile(EMBEDDING_LOSSES[name], fullgraph=True, backend="eager", dynamic=True)
        for size in (12, 33):  # in one block, and in sixteen
            arguments = [torch.tensor(x) for x in _batch_of(size)]
            _close(compiled(*arguments), EMBEDDING_LOSSES[name](*arguments))


@any_batch
@pytest.mark.parametrize("block_size", [None, "auto", 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_torch_meta_tensors_have_shapes_and_no_values(loss: Loss, block_size: Any, dtype: torch.dtype) -> None:
    """A device whose numbers nobody can look at."""
    arguments = [torch.tensor(x, dtype=dtype, device="meta", requires_grad=True) for x in _batch_of(6)]
    value = loss(*arguments, block_size=block_size)
    value.backward()
    assert (value.shape, value.dtype, value.device.type) == ((), dtype, "meta")
    for x in arguments:
        if x.grad is not None:
            assert (x.grad.shape, x.grad.dtype, x.grad.device.type) == (x.shape, dtype, "meta")


@any_batch
def test_torch_export_of_a_dynamic_batch(loss: Loss) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            value: torch.Tensor = loss(x, y, t)
            return value

    batch = torch.export.Dim("batch", min=4, max=4096)
    example = tuple(torch.tensor(x) for x in _batch_of(6))
    exported = torch.export.export(Module(), example, dynamic_shapes=({0: batch}, {0: batch}, None)).module()
    for size in (4, 9, 20):
        arguments = [torch.tensor(x) for x in _batch_of(size)]
        _close(exported(*arguments), loss(*arguments))


@pytest.mark.parametrize(("name", "reduction"), [("info_nce", "mean"), ("info_nce", "none"), ("siglip", "mean")])
def test_torch_compile_of_transforms(name: str, reduction: str) -> None:
    """Whatever is compiled: no gradient at all, one, or transforms of it."""
    x, tangent, _ = _torch()
    rest = _torch()[1:]

    def function(a: torch.Tensor) -> torch.Tensor:
        return EMBEDDING_LOSSES[name](a, *rest, block_size=2, reduction=reduction).sum()

    def forward(a: torch.Tensor) -> torch.Tensor:
        result: Any = torch.func.jvp(function, (a,), (tangent,))
        return result[1]

    each = torch.stack([x, -x])
    for transformed, argument in (
        (function, x),
        (torch.func.grad(function), x),
        (torch.func.vmap(function), each),
        (torch.func.vmap(torch.func.grad(function)), each),
        (forward, x),
        (torch.func.hessian(function), x),
    ):
        torch.compiler.reset()
        compiled = torch.compile(transformed, fullgraph=True, backend="eager")
        _close(compiled(argument), transformed(argument))


def test_torch_compile_with_inductor() -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda x, y, t: pnce.info_nce(x, y, temperature=t), fullgraph=True)
    arguments = _torch(requires_grad=True)
    compiled(*arguments).backward()
    _, gradients = _reference(EMBEDDING_LOSSES["info_nce"])
    for argument, gradient in zip(arguments, gradients, strict=True):
        _close(argument.grad, gradient)


@pytest.mark.parametrize("name", ["info_nce", "clip", "siglip", "nt_xent", "labels", "relic"])
def test_what_torch_compile_traces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same statements, one by one: the compiler runs them out of a debugger's and of the coverage's sight."""
    loss, arguments = EMBEDDING_LOSSES[name], _torch(requires_grad=True)
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        patch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
        value = loss(*arguments, block_size=2)
        value.backward()
        without = loss(*_torch(), block_size=2)
        each = loss(*_torch(), block_size=2, reduction="none")
    expected, gradients = _reference(loss)
    for found in (value.detach(), without):
        _close(found, expected)
    assert not without.requires_grad
    assert bool(torch.isfinite(each).all())
    for argument, gradient in zip(arguments, gradients, strict=True):
        _close(_gradient(argument), gradient)


def test_no_number_is_known_of_a_batch() -> None:
    adapter = load_backend("torch")

    def of_one(x: torch.Tensor) -> torch.Tensor:
        assert adapter.concrete_value(x) is None
        return x

    torch.vmap(of_one)(torch.ones(3))
    assert adapter.concrete_value(torch.tensor(2.0)) == 2.0


@score_losses
def test_torch_scores(loss: Loss) -> None:
    torch.compiler.reset()
    scores = torch.tensor(np.random.default_rng(3).normal(size=(4, 5)), requires_grad=True)
    assert torch.autograd.gradcheck(loss, (scores,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(loss, (scores,))
    _close(torch.compile(loss, fullgraph=True, backend="eager")(scores).detach(), loss(scores).detach())


def test_value_and_grad_composes_with_autograd() -> None:
    x, y, t = _torch()
    x.requires_grad_()
    value, gradient = pnce.value_and_grad(lambda a: pnce.info_nce(a, y, temperature=t))(x)
    assert value.requires_grad
    (second,) = torch.autograd.grad((gradient**2).sum(), x)
    expected = torch.func.grad(lambda a: (torch.func.grad(lambda b: pnce.info_nce(b, y, temperature=t))(a) ** 2).sum())
    _close(second, expected(x).detach())
    inner = torch.func.vmap(pnce.grad(lambda b: pnce.info_nce(b, y, temperature=t)))
    _close(inner(torch.stack([x, x]))[1].detach(), gradient.detach())


@blocks
def test_torch_autocast_does_not_touch_the_loss(block_size: int | None) -> None:
    x, y = (v.detach().float() for v in _torch()[:2])
    x.requires_grad_()
    negatives = y[:, None, :] * y

    def loss() -> torch.Tensor:
        own = pnce.info_nce(x, y, negatives, temperature=0.05)
        return own + pnce.info_nce(x, y, temperature=0.05, block_size=block_size)

    (expected,) = torch.autograd.grad(loss(), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = loss(), torch.compile(loss, fullgraph=True, backend="eager")()
    for value in values:
        (gradient,) = torch.autograd.grad(value, x)
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("loss", MEMORY_LOSSES.values(), ids=MEMORY_LOSSES.keys())
@batches
def test_torch_compile_of_a_step_with_a_queue(loss: Loss, batch: int) -> None:
    """A queue is an argument and a result like any other; one compilation serves for all steps."""
    torch.compiler.reset()
    graphs = []

    def count(graph: Any, _: Any) -> Any:
        graphs.append(batch)
        return graph.forward

    @torch.compile(fullgraph=True, backend=count)
    def step(x: torch.Tensor, y: torch.Tensor, queue: pnce.Queue) -> tuple[torch.Tensor, pnce.Queue]:
        return loss(x, y, queue), pnce.queue_push(queue, y)

    queue = pnce.queue_init(torch.zeros((1, 3), dtype=torch.float64), QUEUE_SIZE)
    expected = pnce.queue_init(np.zeros((1, 3)), QUEUE_SIZE)
    for x, y in _batches(batch):
        query = torch.tensor(x, requires_grad=True)
        value, queue = step(query, torch.tensor(y), queue)
        assert type(queue) is pnce.Queue
        value.backward()
        wanted, slope = pnce.value_and_grad(lambda a, y=y, held=expected: loss(a, y, held))(x)
        expected = pnce.queue_push(expected, y)
        _close(value.detach(), wanted)
        _close(_gradient(query), slope)
        _same_queue(queue, expected)
    assert graphs == [batch]


def test_torch_stop_gradient_also_stops_tangents() -> None:
    x = torch.tensor(3.0)
    result: Any = torch.func.jvp(lambda a: a * pnce.stop_gradient(a), (x,), (torch.tensor(1.0),))
    assert float(result[1]) == 3.0


def test_torch_parameters_and_subclasses() -> None:
    weight = torch.nn.Parameter(torch.eye(3, dtype=torch.float64))
    temperature = torch.nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
    x, y, _ = _torch()
    pnce.info_nce(x @ weight, y, temperature=temperature).backward()
    assert weight.grad is not None
    assert temperature.grad is not None
    assert temperature.grad.shape == (1,)


# --------------------------------------------------------------------------------------------------------------- JAX


@all_losses
@blocks
def test_jax_jit(loss: Loss, block_size: int | None) -> None:
    def function(x: jax.Array, y: jax.Array, t: jax.Array) -> jax.Array:
        return loss(x, y, t, block_size=block_size)

    expected, gradients = _reference(loss)
    value, ours = jax.jit(pnce.value_and_grad(function, (0, 1, 2)))(*_jax())
    _close(value, expected)
    for a, b in zip(ours, gradients, strict=True):
        _close(a, b)


@blocks
def test_jax_plain_style(block_size: int | None) -> None:
    x, y, t = _jax()
    _, gradients = _reference(EMBEDDING_LOSSES["info_nce"])
    _close(jax.grad(pnce.info_nce)(x, y, temperature=t, block_size=block_size), gradients[0])


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@any_batch
def test_jax_lowers_every_loss_for_devices_that_are_not_here(loss: Loss, platform: str) -> None:
    """With products of the highest precision, which on these devices is not the default."""
    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    arguments = [jnp.asarray(x, dtype=jnp.float32) for x in _batch_of(6)]
    text = gradient.trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert all("HIGHEST" in line for line in products), products


@any_batch
def test_jax_export_of_a_symbolic_batch(loss: Loss) -> None:
    function = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    (batch,) = jax_export.symbolic_shape("batch")
    rows = jax.ShapeDtypeStruct((batch, 3), jnp.float64)
    exported = jax_export.export(function)(rows, rows, jax.ShapeDtypeStruct((), jnp.float64))
    for size in (4, 9):
        arguments = [jnp.asarray(x) for x in _batch_of(size)]
        value, gradients = exported.call(*arguments)
        expected, slopes = pnce.value_and_grad(loss, argnums=(0, 1, 2))(*_batch_of(size))
        _close(value, expected)
        for ours, slope in zip(gradients, slopes, strict=True):
            _close(ours, slope)


@few_losses
@blocks
def test_jax_vmap_and_jvp(loss: Loss, block_size: int | None) -> None:
    def function(x: jax.Array, y: jax.Array, t: jax.Array) -> jax.Array:
        return loss(x, y, t, block_size=block_size)

    batched = _jax(batch=(3,))
    gradient = jax.jit(jax.grad(function))
    each = jnp.stack([gradient(*(x[k] for x in batched)) for k in range(3)])
    _close(jax.jit(jax.vmap(jax.grad(function)))(*batched), each)
    tangents = (batched[0][1], batched[1][1], jnp.asarray(0.3))
    value, slope = jax.jit(lambda *tangents: jax.jvp(function, tuple(_jax()), tangents))(*tangents)
    expected, gradients = _reference(loss)
    _close(value, expected)
    _close(slope, sum(jnp.vdot(g, v) for g, v in zip(gradients, tangents, strict=True)))


@few_losses
@blocks
def test_jax_second_order(loss: Loss, block_size: int | None) -> None:
    """Forward over reverse, and reverse over reverse, are what torch gives of the dense loss."""

    def function(x: jax.Array) -> jax.Array:
        return loss(x, *_jax()[1:], block_size=block_size)

    def dense(x: torch.Tensor) -> torch.Tensor:
        return loss(x, *_torch()[1:], block_size=None)

    expected = torch.autograd.functional.hessian(dense, _torch()[0])
    x = _jax()[0]
    for hessian in (jax.hessian(function), jax.jacrev(jax.grad(function))):
        np.testing.assert_allclose(jax.jit(hessian)(x), expected, rtol=1e-11, atol=1e-11)


@score_losses
def test_jax_scores(loss: Loss) -> None:
    scores = jnp.asarray(np.random.default_rng(3).normal(size=(4, 5)))
    _check_grads(jax.jit(loss), (scores,), order=1, modes=["fwd", "rev"])
    _close(jax.jit(loss)(scores), loss(scores))


@pytest.mark.parametrize("loss", MEMORY_LOSSES.values(), ids=MEMORY_LOSSES.keys())
@batches
def test_jax_jit_of_a_step_with_a_queue(loss: Loss, batch: int) -> None:
    """A queue is an argument and a result like any other; one compilation serves for all steps."""
    traced = []

    @jax.jit
    def step(x: jax.Array, y: jax.Array, queue: pnce.Queue) -> Any:
        traced.append(batch)

        def function(a: jax.Array) -> Any:
            return loss(a, y, queue), pnce.queue_push(queue, y)

        return jax.value_and_grad(function, has_aux=True)(x)

    queue, expected = pnce.queue_init(jnp.zeros((1, 3)), QUEUE_SIZE), pnce.queue_init(np.zeros((1, 3)), QUEUE_SIZE)
    for x, y in _batches(batch):
        (value, queue), gradient = step(jnp.asarray(x), jnp.asarray(y), queue)
        assert type(queue) is pnce.Queue
        wanted, slope = pnce.value_and_grad(lambda a, y=y, held=expected: loss(a, y, held))(x)
        expected = pnce.queue_push(expected, y)
        _close(value, wanted)
        _close(gradient, slope)
        _same_queue(queue, expected)
    assert traced == [batch]


@batches
def test_jax_scan_carries_a_queue(batch: int) -> None:
    """Static shapes: the queue is the carry of a loop."""
    batch_of_each = jnp.stack([jnp.asarray(y) for _, y in _batches(batch)])

    def step(queue: pnce.Queue, y: jax.Array) -> tuple[pnce.Queue, jax.Array]:
        return pnce.queue_push(queue, y), pnce.moco(y, y, queue)

    queue, values = jax.lax.scan(step, pnce.queue_init(batch_of_each[0, ...], QUEUE_SIZE), batch_of_each)
    expected = pnce.queue_init(np.zeros((1, 3)), QUEUE_SIZE)
    for value, (_, y) in zip(values, _batches(batch), strict=True):
        _close(value, pnce.moco(y, y, expected))
        expected = pnce.queue_push(expected, y)
    _same_queue(queue, expected)


def test_jax_scan_carries_a_queue_of_fewer_bits_than_the_keys() -> None:
    keys = jnp.asarray([[[1.0, 0.3]], [[2.0, -0.7]], [[3.0, 0.1]]], dtype=jnp.float32)

    def step(queue: pnce.Queue, rows: jax.Array) -> tuple[pnce.Queue, jax.Array]:
        return pnce.queue_push(queue, rows), pnce.moco(rows, rows, queue)

    queue, _ = jax.lax.scan(step, pnce.queue_init(keys[0, ...].astype(jnp.bfloat16), 2), keys)
    assert queue.rows.dtype == jnp.bfloat16
    np.testing.assert_array_equal(queue.rows, keys[1:, 0, :].astype(jnp.bfloat16))


@batches
def test_jax_scan_carries_a_queue_with_labels(batch: int) -> None:
    """They are a leaf of it like its rows."""
    batch_of_each = jnp.stack([jnp.asarray(y) for _, y in _batches(batch)])
    labels_of_each = jnp.arange(4 * batch).reshape(4, batch) % 3

    @jax.jit
    def step(queue: pnce.Queue, given: tuple[jax.Array, jax.Array]) -> tuple[pnce.Queue, jax.Array]:
        y, labels = given
        return pnce.queue_push(queue, y, labels=labels), pnce.supcon(y, labels, keys=queue)

    start = pnce.queue_init(batch_of_each[0, ...], QUEUE_SIZE, labels=labels_of_each[0, ...])
    queue, values = jax.lax.scan(step, start, (batch_of_each, labels_of_each))
    given = [(y, np.asarray(k)) for (_, y), k in zip(_batches(batch), labels_of_each, strict=True)]
    expected = pnce.queue_init(np.zeros((batch, 3)), QUEUE_SIZE, labels=given[0][1])
    for value, (y, labels) in zip(values, given, strict=True):
        _close(value, pnce.supcon(y, labels, keys=expected))
        expected = pnce.queue_push(expected, y, labels=labels)
    _same_queue(queue, expected)
    assert queue.labels is not None
    assert expected.labels is not None
    assert queue.labels.dtype == labels_of_each.dtype
    np.testing.assert_array_equal(np.asarray(queue.labels), expected.labels)


MIXED: dict[str, Callable[..., Any]] = {
    "info_nce": pnce.info_nce,
    "info_nce, streamed": lambda x, y, **_: pnce.info_nce(x, y, block_size=2),
    "info_nce of dot products": lambda x, y, **_: pnce.info_nce(x, y, similarity="dot"),
    "info_nce with a constant queue": lambda x, y, *, memory, **_: pnce.info_nce(x, y, memory),
    "clip": lambda x, y, **_: pnce.clip(x, y, logit_scale=3.0),
    "siglip": lambda x, y, **_: pnce.siglip(x, y, logit_scale=2.0, logit_bias=-1.0),
    "nt_xent of three views": lambda x, y, **_: pnce.nt_xent(x, y, x * y),
    "dclw": lambda x, y, **_: pnce.dclw(x, y),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_derivatives_agree(name: str) -> None:
    """The derivative by one argument of the gradient by the other, of which the first pass computes one alone."""
    numbers = np.random.default_rng(3)
    x, y, direction = (numbers.standard_normal((5, 3)) for _ in range(3))
    memory = numbers.standard_normal((7, 3))

    def loss(convert: Callable[[Any], Any]) -> Callable[..., Any]:
        options = {} if name == "info_nce" else {"memory": convert(memory)}
        return lambda a, b: MIXED[name](a, b, **options)

    def slope(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(jax.grad(loss(jnp.asarray))(a, b) * direction)

    expected = jax.grad(slope, argnums=(0, 1))(jnp.asarray(x), jnp.asarray(y))

    def on_the_tape(a: Any, b: Any) -> Any:
        return np.sum(pnce.grad(loss(np.asarray))(a, b) * direction)

    tensors = [torch.asarray(a).requires_grad_() for a in (x, y)]
    (gradient,) = torch.autograd.grad(loss(torch.asarray)(*tensors), tensors[0], create_graph=True)
    found = torch.autograd.grad((gradient * torch.asarray(direction)).sum(), tensors)
    alone = torch.asarray(x).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(torch.asarray)(alone, torch.asarray(y)), alone, create_graph=True)
    own = torch.autograd.grad((gradient * torch.asarray(direction)).sum(), alone)[0]
    for k in range(2):
        np.testing.assert_allclose(found[k].numpy(), expected[k], rtol=0, atol=1e-11)
        np.testing.assert_allclose(pnce.grad(on_the_tape, argnums=k)(x, y), expected[k], rtol=0, atol=1e-11)
    np.testing.assert_allclose(own.numpy(), expected[0], rtol=0, atol=1e-11)


DISTANCES: tuple[pnce.typing.SimilarityName, ...] = ("neg_sq_euclidean", "neg_euclidean")
OF_DISTANCES: dict[str, Loss] = {
    "info_nce each row": lambda x, y, t, **o: pnce.info_nce(x, y, temperature=t, reduction="none", **o),
    "nt_xent": lambda x, y, t, **o: pnce.nt_xent(x, y, temperature=t, **o),
    "siglip": lambda x, y, t, **o: pnce.siglip(x, y, logit_scale=1 / t, logit_bias=-t, **o),
    "supcon": lambda x, y, t, **o: pnce.supcon(x + y, _labels(x), temperature=t, **o),
    "triplet_from_labels": lambda x, y, t, **o: pnce.triplet_from_labels(x * y, _labels(x), temperature=t, **o),
    **{
        name: lambda x, y, t, name=name, **o: getattr(pnce, name)(x, y, temperature=t, **o)
        for name in ("relic", "dclw", "hcl", "joint_info_nce")
    },
    "sogclr": lambda x, y, t, **o: pnce.sogclr(x, y, 0 * x[:, 0], temperature=t, gamma=0.5, **o)[0],
}


def _with_factors(similarity: pnce.typing.SimilarityName) -> Loss:
    def loss(x: Any, y: Any, t: Any, **options: Any) -> Any:
        scaled = pnce.similarities.scaled_columns(similarity, y[:, 0] ** 2 + t)
        return pnce.info_nce(x, y, temperature=t, similarity=scaled, **options)

    return loss


SCALED: dict[str, Loss] = {
    **EMBEDDING_LOSSES,
    **RELATED_LOSSES,
    **{
        f"{name}, {similarity}": lambda x, y, t, loss=loss, similarity=similarity, **o: loss(
            x, y, t, similarity=similarity, **o
        )
        for name, loss in OF_DISTANCES.items()
        for similarity in DISTANCES
    },
    **{f"info_nce, factors of columns, {similarity}": _with_factors(similarity) for similarity in NAMES},
}


@pytest.mark.parametrize("loss", SCALED.values(), ids=SCALED.keys())
@blocks
def test_a_gradient_is_linear_in_the_cotangent_at_zero_too(loss: Loss, block_size: int | None) -> None:
    """The derivative of the gradient of ``a loss`` by a, at a = 0, is the gradient of the loss."""

    def total(*arrays: Any) -> Any:
        return loss(*arrays, block_size=block_size).sum()

    numbers = np.random.default_rng(5)
    directions = [numbers.normal(size=x.shape) for x in _numbers()]
    places = (0, 1, 2)

    def along(factor: Any) -> Any:
        gradients = pnce.grad(lambda *arrays: factor * total(*arrays), argnums=places)(*_numbers())
        return sum((x * v).sum() for x, v in zip(gradients, directions, strict=True))

    of_one = pnce.grad(total, argnums=places)(*_numbers())
    wanted = sum((x * v).sum() for x, v in zip(of_one, directions, strict=True))
    found = pnce.grad(along)(np.zeros(()))
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
    tangents = tuple(torch.tensor(v) for v in directions)
    twice: Any = torch.autograd.functional.jvp(total, tuple(_torch()), tangents)
    np.testing.assert_allclose(twice[1], wanted, rtol=1e-10, atol=1e-12)
