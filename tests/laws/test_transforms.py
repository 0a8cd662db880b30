"""Losses under transforms of PyTorch and JAX: compilation, batching, higher derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import export as jax_export

import portable_nce as pnce
from portable_nce import bounds
from portable_nce._core.calls import KINDS
from portable_nce._core.registry import load_backend
from portable_nce._execution import families, tiling
from portable_nce.similarities import NAMES
from portable_nce.testing.cases import CASES, LOSSES, WITHOUT_GRADIENT, Case

from calls import EACH, OF_SCORES, WAYS, Call, mostly_full, options_of, shares

pytestmark = [
    pytest.mark.usefixtures("jax_x64"),
    # torch.compile instantiates autograd.Function, of which torch warns.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

SURROGATES = {"bounds.fdv", "bounds.flo", "bounds.js_mi", "bounds.mine", "bounds.smile", "sogclr"}
"""Functions whose gradient, by definition, is not that of their value."""

each_loss = pytest.mark.parametrize("name", EACH)
each_compiled = pytest.mark.parametrize("name", mostly_full(dict.fromkeys((*WAYS, *EACH))))
"""Of compiled losses, the default run takes one for each code path; the conformance suite compiles all cases on JAX."""
LINEAR = {"bounds.barber_agakov", "bounds.vub"}
"""Functions whose second derivatives are tensors without memory, which NumPy does not take."""

A_SLOPE = [*dict.fromkeys(name for name in (*WAYS, *EACH) if name not in SURROGATES | LINEAR)]
each_with_a_slope = pytest.mark.parametrize("name", [name for name in EACH if name not in SURROGATES])
blocks = pytest.mark.parametrize("block_size", [None, 2])


def close(ours: Any, theirs: Any, tolerance: float = 1e-12) -> None:
    """Compare numbers, or two lists of arrays."""
    if isinstance(ours, (list, tuple)):
        for a, b in zip(ours, theirs, strict=True):
            close(a, b, tolerance)
    else:
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=tolerance, atol=tolerance)


def torch_arrays(name: str, rows: int, *, requires_grad: bool = False) -> list[torch.Tensor]:
    """All arrays of a loss."""
    call = Call(name, rows=rows)
    return [*call.torch(requires_grad=requires_grad), *call.others(torch.asarray)]


def axes_of_rows(name: str) -> list[list[int]]:
    """Axes of each array that grow with the batch."""
    pairs = zip(torch_arrays(name, 6), torch_arrays(name, 9), strict=True)
    return [[k for k in range(x.ndim) if x.shape[k] != y.shape[k]] for x, y in pairs]


def backward(function: Callable[..., Any], arrays: list[torch.Tensor], *others: torch.Tensor) -> list[torch.Tensor]:
    """Value and gradients, zero for unused arguments."""
    value = function(*arrays, *others)
    if not value.requires_grad:
        return [value, *map(torch.zeros_like, arrays)]
    return [value.detach(), *torch.autograd.grad(value, arrays, materialize_grads=True)]


# --- PyTorch --------------------------------------------------------------------------------------------------------


@each_loss
@blocks
def test_torch_backward(name: str, block_size: int | None) -> None:
    close(backward(Call(name, block_size=block_size), Call(name).torch(requires_grad=True)), Call(name).expected())


@each_with_a_slope
@blocks
def test_torch_backward_of_some_arguments(name: str, block_size: int | None) -> None:
    """The gradient of one argument alone equals the one computed with others, also for second derivatives."""
    call = Call(name, block_size=block_size)
    options: Any = {"create_graph": True, "materialize_grads": True}
    for k in range(len(call.numbers)):
        every, some = call.torch(requires_grad=True), call.torch()
        some[k].requires_grad_()
        value, (theirs,) = call(*some), torch.autograd.grad(call(*every), [every[k]], **options)
        if not value.requires_grad:
            assert not torch.any(theirs)
            continue
        (ours,) = torch.autograd.grad(value, [some[k]], **options)
        close(ours.detach(), theirs.detach())
        if ours.requires_grad:
            (again,) = torch.autograd.grad((ours * ours).sum(), [some[k]], materialize_grads=True)
            (slopes,) = torch.autograd.grad((theirs * theirs).sum(), [every[k]], materialize_grads=True)
            close(again, slopes)


@pytest.mark.parametrize("name", mostly_full(A_SLOPE, WAYS[::2]))
@pytest.mark.parametrize("block_size", [None, 2, "auto"])
def test_torch_gradcheck_to_second_order(name: str, block_size: Any) -> None:
    call = Call(name, block_size=block_size)
    arrays = call.torch(requires_grad=True)
    fast = name not in WAYS  # in one direction instead of all
    options: Any = {"fast_mode": fast, "check_batched_grad": block_size is None}
    forward = {"check_forward_ad": True, "check_batched_forward_grad": block_size is None}
    assert torch.autograd.gradcheck(call, arrays, **forward, **options)
    assert torch.autograd.gradgradcheck(call, arrays, check_fwd_over_rev=True, **options)


@pytest.mark.internals
@pytest.mark.parametrize(
    ("name", "reduction"),
    [
        (name, reduction)
        for name in EACH
        for reduction in ("mean", "none")
        if name not in SURROGATES and (reduction == "mean" or "reduction" in options_of(name))
    ],
)
def test_torch_gradcheck_to_second_order_of_large_scores(
    name: str, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large scores are shifted; no array that a derivative needs is overwritten."""
    monkeypatch.setattr(families, "MAX_UNSHIFTED_LOGIT", -1.0)
    KINDS.clear()
    call = Call(name, block_size=None, reduction=reduction)
    arrays = call.torch(requires_grad=True)
    assert torch.autograd.gradcheck(call, arrays, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, arrays, fast_mode=True)


@pytest.mark.parametrize("name", mostly_full(A_SLOPE, [*WAYS, "hcl", "supcon"]))
@blocks
def test_torch_func(name: str, block_size: int | None) -> None:
    calls = [Call(name, block_size=block_size, seed=seed) for seed in range(3)]
    call, arrays = calls[0], calls[0].torch()
    places = tuple(range(len(arrays)))
    gradients = torch.func.grad(call, places)(*arrays)
    close(gradients, Call(name, seed=0).expected()[1:])
    batched = [torch.stack(each) for each in zip(*(one.torch() for one in calls), strict=True)]
    each = [torch.func.grad(call)(*one.torch()) for one in calls]
    close(torch.func.vmap(call)(*batched), torch.stack([call(*one.torch()) for one in calls]))
    close(torch.func.vmap(torch.func.grad(call))(*batched), torch.stack(each))

    def function(x: torch.Tensor) -> torch.Tensor:
        return call(x, *arrays[1:])

    x, dense = arrays[0], Call(name, seed=0)
    result: Any = torch.func.jvp(function, (x,), (x * x,))
    close(result, (function(x), (gradients[0] * x * x).sum()))
    expected = torch.autograd.functional.hessian(lambda z: dense(z, *arrays[1:]), x)
    close(torch.autograd.functional.hessian(function, x), expected)
    of_gradient, of_tangents = torch.func.grad(function), torch.func.jacfwd(function)
    close(torch.func.hessian(function)(x), expected)
    for second in (torch.func.jacrev(of_gradient), torch.func.jacfwd(of_tangents), torch.func.jacrev(of_tangents)):
        close(second(x), expected)


class Graphs(list[Any]):
    """A backend that runs graphs unchanged, and records them."""

    def __call__(self, graph: Any, _: Any) -> Any:
        self.append(graph)
        return graph.forward


# In the default run a queue is compiled in a module, for all batch sizes, in tests/modules.
@pytest.mark.parametrize("name", mostly_full(dict.fromkeys((*WAYS, *EACH)), ["info_nce"]))
def test_torch_compile_serves_every_batch_size(name: str) -> None:
    """One graph for the first batch size and one for all others, or one if sizes are marked dynamic."""
    torch.compiler.reset()
    graphs = Graphs()
    first = Call(name, block_size="auto")
    backward(first, first.torch(requires_grad=True), *first.others(torch.asarray))  # imports what a process needs
    compiled = torch.compile(first, fullgraph=True, backend=graphs)
    # One size is the number of features.
    for size in (4, 6, 7, 8, 10, 5, 3, 12, 14, 16, 20) if name in WAYS else (4, 7, 20):
        call = Call(name, rows=size, block_size="auto")
        call.numbers = [x if x.ndim else x * (1.0 + size / 64.0) for x in call.numbers]  # temperatures differ as well
        others, arrays = call.others(torch.asarray), call.torch(requires_grad=True)
        if name not in WAYS:
            for x, axes in zip([*arrays, *others], axes_of_rows(name), strict=True):
                torch._dynamo.mark_dynamic(x, axes)  # noqa: SLF001  (documented)
        close(backward(compiled, arrays, *others), backward(call, arrays, *others))
    assert len(graphs) <= 2


FEW_GRAPHS = 3
"""Of small and large batches: a threshold divides sizes, but a loop over a size, or its bits, makes one for each."""


@pytest.mark.parametrize("name", mostly_full(EACH, ["nca", "triplet_from_labels"]))
def test_torch_compile_asks_little_of_batch_sizes(name: str) -> None:
    torch.compiler.reset()
    graphs = Graphs()
    first = Call(name, block_size="auto")
    first(*first.torch(), *first.others(torch.asarray))
    compiled = torch.compile(first, fullgraph=True, backend=graphs)
    for size in (6, 20, 34, 60, 96, 130):
        call = Call(name, rows=size, block_size="auto")
        arrays = [*call.torch(), *call.others(torch.asarray)]
        for x, axes in zip(arrays, axes_of_rows(name), strict=True):
            torch._dynamo.mark_dynamic(x, axes)  # noqa: SLF001  (documented)
        close(compiled(*arrays), call(*arrays), 1e-10)
    assert len(graphs) <= FEW_GRAPHS


@pytest.mark.full
@pytest.mark.parametrize("name", ["info_nce", "contrast labels", "contrastive", "triplet_from_labels batch_hard"])
def test_torch_compile_with_its_gradient(name: str) -> None:
    torch.compiler.reset()
    call = Call(name, block_size=2)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    others = call.others(torch.asarray)
    close(backward(compiled, call.torch(requires_grad=True), *others), Call(name).expected())


@pytest.mark.full
def test_torch_compile_writes_code_of_its_own() -> None:
    torch.compiler.reset()
    call = Call("info_nce", block_size="auto")
    close(backward(torch.compile(call, fullgraph=True), call.torch(requires_grad=True)), call.expected())


LARGE = "info_nce", "clip", "siglip", "supcon", "triplet_from_labels"


@pytest.mark.internals
@pytest.mark.parametrize("name", mostly_full(LARGE, ["info_nce"]))
def test_torch_compile_of_a_large_batch_is_cut_into_blocks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(tiling, "_COMPILED_ENTRIES", 300)
    call = Call(name, block_size="auto")
    compiled = torch.compile(call, fullgraph=True, backend="eager", dynamic=True)
    for size in (12, 33):  # in one block, and in sixteen
        arrays = torch_arrays(name, size)
        close(compiled(*arrays), call(*arrays))


def forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """Directional derivative of a function."""

    def derivative(x: torch.Tensor) -> Any:
        result: Any = torch.func.jvp(function, (x,), (x * x,))
        return result[1]

    return derivative


TORCH_TRANSFORMS: dict[str, Callable[..., Any]] = {
    "none": lambda function: function,
    "grad": torch.func.grad,
    "vmap": torch.func.vmap,
    "vmap of grad": lambda function: torch.func.vmap(torch.func.grad(function)),
    "jvp": forward,
    "hessian": torch.func.hessian,
}


@pytest.mark.parametrize("name", ["info_nce", "siglip"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("transform", mostly_full(TORCH_TRANSFORMS, ("none", "vmap of grad", "jvp")))
def test_torch_compile_of_transforms(name: str, reduction: str, transform: str) -> None:
    """Compiled losses, gradients, and transforms of gradients."""
    torch.compiler.reset()
    call = Call(name, block_size=2, reduction=reduction)
    x, *rest = call.torch()

    def function(a: torch.Tensor) -> torch.Tensor:
        return call(a, *rest).sum()

    transformed = TORCH_TRANSFORMS[transform](function)
    argument = torch.stack([x, -x]) if "vmap" in transform else x
    close(torch.compile(transformed, fullgraph=True, backend="eager")(argument), transformed(argument))


@each_loss
@blocks
def test_torch_meta_tensors_have_shapes_and_no_values(name: str, block_size: int | None) -> None:
    """A device without values."""
    call = Call(name, block_size=block_size)
    for dtype in (torch.float32, torch.bfloat16):
        arrays = [torch.tensor(x, dtype=dtype, device="meta", requires_grad=True) for x in call.numbers]
        others = [x.to("meta", dtype if x.is_floating_point() else x.dtype) for x in call.others(torch.asarray)]
        for like, found in zip((torch.empty((), dtype=dtype), *arrays), backward(call, arrays, *others), strict=True):
            assert (found.shape, found.dtype, found.device.type) == (like.shape, dtype, "meta")


@pytest.mark.parametrize("name", mostly_full(WAYS, ["info_nce", "nt_xent three views", "siglip", "moco queue"]))
def test_torch_export_of_a_dynamic_batch(name: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
            return call(*arrays)

    call = Call(name, block_size="auto")
    dynamic = tuple(dict.fromkeys(axes, torch.export.Dim.AUTO) for axes in axes_of_rows(name))
    exported = torch.export.export(Module(), tuple(torch_arrays(name, 6)), dynamic_shapes=(dynamic,)).module()
    for size in (4, 9, 20):
        arrays = torch_arrays(name, size)
        close(exported(*arrays), call(*arrays))


@pytest.mark.parametrize("name", dict.fromkeys((*WAYS, *EACH)))
def test_what_torch_compile_traces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The traced code, run eagerly: compiled, it is invisible to debuggers and coverage."""
    call, each = Call(name, block_size=2), Call(name, block_size=2, reduction="none")
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        patch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
        found = backward(call, call.torch(requires_grad=True))
        without = call(*call.torch())
        rows = each(*each.torch())
    close(found, call.expected())
    close(without, found[0])
    assert not without.requires_grad
    assert bool(torch.isfinite(rows).all())


def test_no_number_is_known_of_a_batch() -> None:
    adapter = load_backend("torch")

    def of_one(x: torch.Tensor) -> torch.Tensor:
        assert adapter.concrete_value(x) is None
        return x

    torch.vmap(of_one)(torch.ones(3))
    assert adapter.concrete_value(torch.tensor(2.0)) == 2.0


def test_value_and_grad_composes_with_autograd() -> None:
    call = Call("info_nce")
    x, *rest = call.torch()
    x.requires_grad_()
    value, gradient = pnce.value_and_grad(lambda a: call(a, *rest))(x)
    assert value.requires_grad
    (second,) = torch.autograd.grad((gradient**2).sum(), x)
    expected = torch.func.grad(lambda a: (torch.func.grad(lambda b: call(b, *rest))(a) ** 2).sum())
    close(second, expected(x).detach())
    inner = torch.func.vmap(pnce.grad(lambda b: call(b, *rest)))
    close(inner(torch.stack([x, x]))[1].detach(), gradient.detach())


@pytest.mark.parametrize("block_size", mostly_full([None, 2], [2]))
def test_torch_autocast_does_not_touch_the_loss(block_size: int | None) -> None:
    x, y = (v.float() for v in Call("info_nce").torch()[:2])
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


@pytest.mark.parametrize("kind", ["elementwise", "similarity", "critic", "terms", "objective"])
def test_torch_compile_takes_functions_made_inside(kind: str) -> None:
    """The compiler knows neither the closure nor the globals of such a function."""
    x, y = torch.randn(2, 6, 3, dtype=torch.float64)

    def loss(x: Any) -> Any:
        if kind == "terms":
            return pnce.contrast(x, y, objective=pnce.objectives.Pairwise(lambda s: -s, lambda s: s * s))
        if kind == "objective":
            return pnce.contrast(x, y, objective=lambda row: row.log_odds * row.log_odds)

        def similarity(x: Any, y: Any) -> Any:
            return x @ y.T

        chosen: Any = similarity
        if kind == "elementwise":
            chosen = pnce.similarities.elementwise("dot", lambda s: 2.0 * torch.sin(s), lambda s: 2.0 * torch.cos(s))
        if kind == "similarity":
            chosen = pnce.similarities.Similarity(
                lambda x, y, scale: ((x * scale,), (y,)),
                lambda rows, columns: rows[0] @ columns[0].T,
                lambda rows, columns, g: ((g @ columns[0],), (g.T @ rows[0],)),
            )
        return pnce.info_nce(x, y, temperature=1.0, similarity=chosen)

    def slope(function: Any) -> Any:
        own = x.clone().requires_grad_()
        return torch.autograd.grad(function(own), own)[0]

    torch.testing.assert_close(slope(torch.compile(loss, fullgraph=True, backend="eager")), slope(loss))


def test_torch_stop_gradient_also_stops_tangents() -> None:
    x = torch.tensor(3.0)
    result: Any = torch.func.jvp(lambda a: a * pnce.stop_gradient(a), (x,), (torch.tensor(1.0),))
    assert float(result[1]) == 3.0


def test_torch_parameters_and_subclasses() -> None:
    weight = torch.nn.Parameter(torch.eye(3, dtype=torch.float64))
    temperature = torch.nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
    x, y, _ = Call("info_nce").torch()
    pnce.info_nce(x @ weight, y, temperature=temperature).backward()
    assert weight.grad is not None
    assert temperature.grad is not None
    assert temperature.grad.shape == (1,)


# --- JAX ------------------------------------------------------------------------------------------------------------


@each_compiled
@blocks
def test_jax_jit(name: str, block_size: int | None) -> None:
    call = Call(name, block_size=block_size)
    places = tuple(range(len(call.numbers)))
    value, gradients = jax.jit(jax.value_and_grad(call, places))(*call.jax())
    close([value, *gradients], Call(name).expected())


def check_jax_jvp(call: Call, dense: Call, tangents: list[jax.Array]) -> None:
    value, *gradients = dense.expected()
    found = jax.jit(lambda *tangents: jax.jvp(call, tuple(call.jax()), tangents))(*tangents)
    close(found, [value, sum(np.vdot(g, v) for g, v in zip(gradients, tangents, strict=True))])


OF_SCORES_ALONE = [name for name in EACH if "." in name and name not in SURROGATES]


@pytest.mark.parametrize("name", mostly_full(OF_SCORES_ALONE, OF_SCORES_ALONE[::4]))
def test_jax_jvp_of_scores(name: str) -> None:
    call = Call(name)
    check_jax_jvp(call, call, [jax.random.normal(jax.random.key(k), x.shape) for k, x in enumerate(call.numbers)])


@pytest.mark.parametrize("scale", [8.0, 128.0])
def test_jax_forward_mode_of_a_limited_scale(scale: float) -> None:
    """The derivative of the value, also in loops, of batches and of higher order; the gradient has its own rule."""
    x, y = Call("clip").jax()[:2]

    def limited(s: Any, sign: float = 1.0) -> Any:
        weights = jnp.full(2, sign / 2)
        return jax.lax.scan(lambda c, w: (c + w * pnce.clip(x, y, logit_scale=s), None), 0.0 * s, weights)[0]

    def plain(s: Any) -> Any:
        return pnce.clip(x, y, logit_scale=s, max_logit_scale=None)

    is_below, at = scale < 100.0, jnp.asarray(min(scale, 100.0))
    first, second = jax.grad(plain)(at), jax.grad(jax.grad(plain))(at)
    s = jnp.asarray(scale)
    for function in (limited, jax.jit(limited)):
        close(jax.jvp(function, (s,), (2.0 * s,)), [plain(at), 2.0 * scale * first * is_below])
        close(jax.grad(function)(s), first)
        for hessian in (jax.jacfwd(jax.jacfwd(function)), jax.jacfwd(jax.grad(function))):
            close(hessian(s), second * is_below)
        close(jax.grad(jax.grad(function))(s), second)
    assert first > 0
    close(jax.grad(lambda s: limited(s, -1.0))(s), -first * is_below)
    both = jnp.stack([s, 4.0 + 0.0 * s])
    close(jax.vmap(jax.jacfwd(limited))(both)[0], first * is_below)
    close(jax.vmap(jax.grad(limited))(both)[0], first)
    # By the cotangent, the gradient is differentiated as it was computed.
    for factor in (0.5, -0.5):
        by_factor = jax.grad(lambda a: jax.grad(lambda s: a * limited(s))(s))(jnp.asarray(factor))
        close(by_factor, first * (is_below or factor > 0))


@blocks
def test_jax_plain_style(block_size: int | None) -> None:
    x, y, t = Call("info_nce").jax()
    slope = jax.grad(pnce.info_nce)(x, y, temperature=t, block_size=block_size)
    close(slope, Call("info_nce").expected()[1])


@each_compiled
def test_jax_lowers_every_loss_for_devices_that_are_not_here(name: str) -> None:
    """With products of the highest precision, which is not the default on these devices."""
    call = Call(name, rows=6, block_size="auto")
    gradient = jax.jit(jax.value_and_grad(call, argnums=tuple(range(len(call.numbers)))))
    arrays = [*call.jax(), *call.others(jnp.asarray)]
    traced = gradient.trace(*(x.astype(jnp.float32) if x.dtype == jnp.float64 else x for x in arrays))
    text = traced.lower(lowering_platforms=("cuda", "tpu")).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert all("HIGHEST" in line for line in products), products


def equations_of(program: Any, kind: str) -> Iterator[Any]:
    """Equations of a kind in a program, and in the programs that its equations hold."""
    for equation in program.eqns:
        if equation.primitive.name == kind:
            yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            yield from equations_of(inner, kind) if hasattr(inner, "eqns") else ()


@lru_cache
def loops_of(name: str) -> tuple[list[Any], Callable[[Any], bool]]:
    """The loops of a loss with gradients, and whether the shape of a number in them is that of a tile."""
    call = Call(name, rows=12, block_size=4)
    places = tuple(range(len(call.numbers)))
    loops = [*equations_of(jax.make_jaxpr(jax.value_and_grad(call, places))(*call.jax()), "scan")]
    widths = {x.shape[-1] for x in call.jax() if x.ndim > 1}
    assert loops
    return loops, lambda x: len(x.aval.shape) == 2 and x.aval.shape[0] == 4 and x.aval.shape[1] not in widths


@pytest.mark.parametrize("name", ["info_nce", "clip", "supcon", "dcl", "siglip", "moco queue"])
def test_jax_computes_no_tile_before_its_loop(name: str) -> None:
    """Loops take rows and columns, but no array of the size of a tile of scores."""
    loops, is_tile = loops_of(name)
    assert [x for loop in loops for x in loop.invars if is_tile(x)] == []


@pytest.mark.parametrize("name", ["info_nce", "clip", "supcon", "dcl", "siglip"])
def test_jax_transposes_no_tile(name: str) -> None:
    """Gradients of columns are summed as (D, N): XLA's fast products on processors take row-major operands."""
    loops, is_tile = loops_of(name)
    transposed = [x for loop in loops for one in equations_of(loop.params["jaxpr"], "transpose") for x in one.invars]
    assert transposed
    assert [x for x in transposed if is_tile(x)] == []


def exported(call: Call) -> Any:
    """Value and gradients of a call with 5 rows, exported for any number of rows from 3 on."""
    (batch,) = jax_export.symbolic_shape("batch", constraints=["batch >= 3"])
    sizes = {5: batch, 6: batch + 1, 10: 2 * batch, 15: 3 * batch}
    arrays = [*call.jax(), *call.others(jnp.asarray)]
    shapes = [jax.ShapeDtypeStruct(tuple(sizes.get(n, n) for n in x.shape), x.dtype) for x in arrays]
    return jax_export.export(jax.jit(jax.value_and_grad(call, argnums=tuple(range(len(call.numbers))))))(*shapes)


@pytest.mark.parametrize("first", range(4))
def test_jax_exports_each_call_for_a_symbolic_batch(first: int) -> None:
    for name in [*LOSSES, *(name for name in OF_SCORES if name not in WITHOUT_GRADIENT)][first::4]:
        assert exported(Call(name, rows=5, block_size="auto")).in_avals, name


@pytest.mark.parametrize("name", mostly_full(LOSSES, ["info_nce dot", "nt_xent three views", "cosent", "moco queue"]))
def test_jax_export_of_a_symbolic_batch(name: str) -> None:
    program = exported(Call(name, rows=5, block_size="auto"))
    for size in (4, 9):
        one = Call(name, rows=size)
        value, gradients = program.call(*one.jax(), *one.others(jnp.asarray))
        close([value, *gradients], one.expected())


@pytest.mark.parametrize("name", mostly_full(WAYS, ["relic", "siglip"]))
@blocks
def test_jax_vmap_jvp_and_second_order(name: str, block_size: int | None) -> None:
    """Forward over reverse and reverse over reverse agree with torch on the dense loss."""
    calls = [Call(name, block_size=block_size, seed=seed) for seed in range(3)]
    call, dense = calls[0], Call(name, seed=0)
    batched = [jnp.stack(each) for each in zip(*(one.jax() for one in calls), strict=True)]
    gradient = jax.jit(jax.grad(call))
    close(jax.jit(jax.vmap(jax.grad(call)))(*batched), jnp.stack([gradient(*one.jax()) for one in calls]))
    check_jax_jvp(call, dense, [x[1] for x in batched])
    x, *rest = call.jax()
    expected = torch.autograd.functional.hessian(lambda z: dense(z, *call.torch()[1:]), call.torch()[0])
    for hessian in (jax.hessian(call), jax.jacrev(jax.grad(call))):
        close(jax.jit(hessian)(x, *rest), expected, 1e-11)


# --- queues ---------------------------------------------------------------------------------------------------------

SLOTS, STEPS = 4, 4
each_batch = pytest.mark.parametrize("batch", [2, 3, 6])
MEMORY_LOSSES: dict[str, Callable[..., Any]] = {
    "moco": pnce.moco,
    "nnclr": lambda x, y, queue: pnce.nnclr(y, x, queue),  # the gradient of NNCLR is that of the second view
    "supcon": lambda x, y, queue: pnce.supcon(x, _labels(y), keys=queue),
}
each_memory_loss = pytest.mark.parametrize("name", MEMORY_LOSSES)


def _labels(rows: Any) -> Any:
    """Classes that differ between steps."""
    positive = rows[:, 0] > 0
    return positive.to(torch.int64) if isinstance(rows, torch.Tensor) else positive.astype("int64")


def _queue(rows: Any, name: str) -> pnce.Queue:
    return pnce.queue_init(rows, SLOTS, labels=_labels(rows) if name == "supcon" else None)


def _push(queue: pnce.Queue, rows: Any, name: str) -> pnce.Queue:
    return pnce.queue_push(queue, rows, labels=_labels(rows) if name == "supcon" else None)


def steps(name: str, batch: int) -> tuple[np.ndarray, list[list[np.ndarray]], pnce.Queue]:
    """Batches of some steps, with values and gradients by the tape, and the final queue."""
    data = np.random.default_rng(batch).normal(size=(STEPS, 2, batch, 3))
    queue, found = _queue(np.zeros((batch, 3)), name), []
    for x, y in data:
        function = MEMORY_LOSSES[name]
        found.append([*pnce.value_and_grad(lambda a, y=y, held=queue, f=function: f(a, y, held))(x)])
        queue = _push(queue, y, name)
    return data, found, queue


def same_queue(ours: pnce.Queue, expected: pnce.Queue) -> None:
    """Assert that rows, validity and labels of two queues are equal."""
    assert type(ours) is pnce.Queue
    for mine, its in zip(ours, expected, strict=True):
        assert (mine is None) == (its is None)
        if its is not None:
            assert np.asarray(mine).dtype == its.dtype
            close(mine, its)


@pytest.mark.parametrize("name", mostly_full(MEMORY_LOSSES, ["nnclr", "supcon"]))  # MoCo's module is compiled elsewhere
@each_batch
def test_torch_compile_of_a_step_with_a_queue(name: str, batch: int) -> None:
    """A queue is an argument and a result; one compilation serves all steps."""
    torch.compiler.reset()
    graphs = Graphs()

    @torch.compile(fullgraph=True, backend=graphs)
    def step(x: torch.Tensor, y: torch.Tensor, queue: pnce.Queue) -> tuple[torch.Tensor, pnce.Queue]:
        return MEMORY_LOSSES[name](x, y, queue), _push(queue, y, name)

    data, expected, last = steps(name, batch)
    queue = _queue(torch.zeros((batch, 3), dtype=torch.float64), name)
    for (x, y), wanted in zip(torch.asarray(data), expected, strict=True):
        x.requires_grad_()
        value, queue = step(x, y, queue)
        close([value.detach(), *torch.autograd.grad(value, x)], wanted)
    same_queue(queue, last)
    assert len(graphs) == 1


@each_memory_loss
@each_batch
def test_jax_steps_with_a_queue(name: str, batch: int) -> None:
    """Traced once for all calls, and as the carry of a loop with static shapes."""
    traced = []

    def step(queue: pnce.Queue, given: jax.Array) -> Any:
        traced.append(batch)
        x, y = given[0, ...], given[1, ...]
        return _push(queue, y, name), jax.value_and_grad(lambda a: MEMORY_LOSSES[name](a, y, queue))(x)

    data, expected, last = steps(name, batch)
    empty = _queue(jnp.zeros((batch, 3)), name)
    compiled, queue = jax.jit(step), empty
    for given, wanted in zip(jnp.asarray(data), expected, strict=True):
        queue, found = compiled(queue, given)
        close(found, wanted)
    same_queue(queue, last)
    assert traced == [batch]
    queue, found = jax.lax.scan(step, empty, jnp.asarray(data))
    close(found, [np.stack(each) for each in zip(*expected, strict=True)])
    same_queue(queue, last)


def test_jax_scan_carries_a_queue_of_fewer_bits_than_the_keys() -> None:
    keys = jnp.asarray([[[1.0, 0.3]], [[2.0, -0.7]], [[3.0, 0.1]]], dtype=jnp.float32)

    def step(queue: pnce.Queue, rows: jax.Array) -> tuple[pnce.Queue, jax.Array]:
        return pnce.queue_push(queue, rows), pnce.moco(rows, rows, queue)

    queue, _ = jax.lax.scan(step, pnce.queue_init(keys[0, ...].astype(jnp.bfloat16), 2), keys)
    assert queue.rows.dtype == jnp.bfloat16
    np.testing.assert_array_equal(queue.rows, keys[1:, 0, :].astype(jnp.bfloat16))


# --- derivatives of gradients ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("info_nce", {"block_size": size}) for size in ("auto", None, 2)),
        *((name, {}) for name in ("info_nce dot", "info_nce shared", "clip", "siglip", "nt_xent three views", "dclw")),
    ],
)
def test_mixed_derivatives_agree(name: str, options: dict[str, Any]) -> None:
    """Derivative by one argument of the gradient by another, if the first pass computes only one of them."""
    call = Call(name, **options)
    (x, y, *rest), direction = call.numbers, np.random.default_rng(3).normal(size=(4, 3))
    fixed, tensors = [jnp.asarray(z) for z in rest], [torch.asarray(z) for z in rest]

    def slope(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(jax.grad(call)(a, b, *fixed) * direction)

    expected = jax.grad(slope, argnums=(0, 1))(jnp.asarray(x), jnp.asarray(y))
    for learned in ((True, True), (True, False)):
        pair = [torch.tensor(z, requires_grad=flag) for z, flag in zip((x, y), learned, strict=True)]
        (gradient,) = torch.autograd.grad(call(*pair, *tensors), pair[0], create_graph=True)
        found = torch.autograd.grad((gradient * torch.asarray(direction)).sum(), pair[: sum(learned)])
        close(found, expected[: sum(learned)], 1e-11)
    tape = pnce.grad(lambda a, b: np.sum(pnce.grad(call)(a, b, *rest) * direction), argnums=(0, 1))(x, y)
    close(tape, expected, 1e-11)


def of_factors(similarity: Any) -> Callable[..., Any]:
    """A loss with a factor per column."""

    def loss(x: Any, y: Any, t: Any) -> Any:
        return pnce.info_nce(x, y, temperature=t, similarity=pnce.similarities.scaled_columns(similarity, y[:, 0] ** 2))

    return loss


def linear_calls(name: str) -> list[tuple[Callable[..., Any], list[np.ndarray]]]:
    """Calls with each block size, and with each distance."""
    if name in NAMES:
        return [(of_factors(name), Call("info_nce").numbers)]
    any_similarity = name in LOSSES and LOSSES[name].laws and LOSSES[name].similarity == "cosine"
    distances: list[dict[str, Any]] = [{"similarity": s} for s in ("neg_sq_euclidean", "neg_euclidean")]
    options = [{}, *(distances if any_similarity else [])]
    calls = [Call(name, block_size=size, **given) for size in (None, 2) for given in options]
    return [(call, call.numbers) for call in calls]


@pytest.mark.parametrize("name", [*dict.fromkeys((*LOSSES, *EACH)), *NAMES])
def test_a_gradient_is_linear_in_the_cotangent_at_zero_too(name: str) -> None:
    """The derivative of the gradient of ``a loss`` by a, at a = 0, is the gradient of the loss."""
    numbers = np.random.default_rng(5)
    for loss, arrays in linear_calls(name):
        directions, places = [numbers.normal(size=x.shape) for x in arrays], tuple(range(len(arrays)))

        def along(factor: Any, loss: Any = loss, arrays: Any = arrays, directions: Any = directions) -> Any:
            slopes = pnce.grad(lambda *given: factor * loss(*given), argnums=tuple(range(len(arrays))))(*arrays)
            return sum((x * v).sum() for x, v in zip(slopes, directions, strict=True))

        of_one = pnce.grad(loss, argnums=places)(*arrays)
        wanted = sum((x * v).sum() for x, v in zip(of_one, directions, strict=True))
        np.testing.assert_allclose(pnce.grad(along)(np.zeros(())), wanted, rtol=1e-10, atol=1e-12)
        if name not in SURROGATES:
            tangents = tuple(torch.tensor(v) for v in directions)
            twice: Any = torch.autograd.functional.jvp(loss, tuple(map(torch.asarray, arrays)), tangents)
            np.testing.assert_allclose(twice[1], wanted, rtol=1e-10, atol=1e-12)


def _exported(function: Any, x: Any) -> Any:
    """Function of an exported module."""
    module: Any = torch.nn.Module()
    module.forward = function
    return torch.export.export(module, (x,)).module()


def _backward(function: Any, x: Any) -> Any:
    x = x.clone().requires_grad_()
    function(x).sum().backward()
    return x.grad


def _info_nce(x: Any) -> Any:
    return pnce.info_nce(x, x.flip(1))


def _compiled(function: Any) -> Any:
    return torch.compile(function, backend="aot_eager")


GRADIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "backward": _backward,
    "func": lambda f, x: torch.func.grad(f)(x),
    "forward mode": lambda f, x: torch.func.jacfwd(f)(x),
    "traced": lambda f, x: _backward(torch.jit.trace(f, x), x),
    "exported": lambda f, x: _backward(_exported(f, x), x),
    "compiled": lambda f, x: _backward(_compiled(f), x),
    "compiled func": lambda f, x: _compiled(torch.func.grad(f))(x),
    "compiled value_and_grad": lambda f, x: _compiled(pnce.value_and_grad(f))(x)[1],
    "compiled forward mode": lambda f, x: _compiled(torch.func.jacfwd(f))(x),
    "compiled vmap": lambda f, x: _backward(_compiled(torch.func.vmap(f)), x[None, ...])[0],
    "second order": lambda f, x: torch.func.jacfwd(torch.func.jacfwd(f))(x),
    "compiled second order": lambda f, x: _compiled(torch.func.hessian(f))(x),
}
"""Ways to the derivatives of a function of one tensor."""


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("way", mostly_full(GRADIENTS, [way for way in GRADIENTS if not way.startswith("compiled ")]))
def test_smile_has_the_derivatives_of_js(way: str) -> None:
    """However a library differentiates it, also by the operations of its value."""
    torch.compiler.reset()
    x = torch.linspace(-2.0, 3.0, 12, dtype=torch.float64).reshape(3, 4).sin() * 2.0
    wanted = GRADIENTS["second order" if "order" in way else "backward"](bounds.js, x)
    torch.testing.assert_close(GRADIENTS[way](bounds.smile, x), wanted, rtol=1e-12, atol=1e-14)
    wanted = _backward(bounds.dv, x)
    if "order" not in way:
        torch.testing.assert_close(GRADIENTS[way](bounds.dv, x), wanted, rtol=1e-12, atol=1e-14)
    if way == "traced":
        torch.testing.assert_close(GRADIENTS[way](_info_nce, x), _backward(_info_nce, x), rtol=1e-12, atol=1e-14)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("cases", shares(case for case in CASES if case.regime == "normal"))
def test_torch_jit_traces_all_losses(cases: list[Case]) -> None:
    for case in cases:
        given = {name: torch.as_tensor(np.asarray(x)) for name, x in {**case.arguments, **case.constants}.items()}
        names = [*case.arguments]

        def loss(*arrays: Any, case: Case = case, given: Any = given, names: list[str] = names) -> Any:
            return case.call({**given, **dict(zip(names, arrays, strict=True))})

        arrays = [given[name] for name in names]
        traced: Any = torch.jit.trace(loss, tuple(arrays), check_trace=False)
        for values in (arrays, [1.1 * x for x in arrays]):
            torch.testing.assert_close(traced(*values), loss(*values), rtol=1e-9, atol=1e-9, msg=case.name)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # by `linearize` itself
@pytest.mark.parametrize("name", mostly_full(A_SLOPE, [*WAYS, "supcon"]))
@blocks
def test_torch_linearize_is_forward_mode(name: str, block_size: int | None) -> None:
    """It traces operations, and drops those whose results nothing uses: writes into arrays would be lost."""
    call = Call(name, block_size=block_size)
    arrays = tuple(call.torch())
    tangents = tuple(torch.linspace(-1.0, 1.0, x.numel(), dtype=x.dtype).reshape(x.shape).cos() for x in arrays)
    value, product = torch.func.linearize(call, *arrays)
    close([value, product(*tangents)], list(torch.func.jvp(call, arrays, tangents)), 1e-9)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # by the compiler
def test_backward_passes_in_compiled_autograd() -> None:
    """Of calls that are no programs too; it adds the gradients of an array also where one is None."""
    weights = torch.linspace(-1.0, 1.0, 16, dtype=torch.float64).reshape(4, 4).cos().requires_grad_()
    x, y = torch.linspace(0.0, 9.0, 48, dtype=torch.float64).reshape(2, 6, 4).sin()
    reductions: tuple[Any, ...] = ("mean", "sum")
    for reduction in reductions:
        KINDS.clear()
        (wanted,) = torch.autograd.grad(pnce.info_nce(x @ weights, y, reduction=reduction), weights)
        KINDS.clear()
        loss = torch._dynamo.disable(lambda w, r=reduction: pnce.info_nce(x @ w, y, reduction=r))  # noqa: SLF001
        for _ in range(4):
            weights.grad = None
            torch.compiler.reset()
            step = torch.compile(lambda loss=loss: loss(weights).backward(), backend="eager")
            with torch._dynamo.config.patch(compiled_autograd=True):  # noqa: SLF001
                step()
            close(weights.grad, wanted)
    torch.compiler.reset()
