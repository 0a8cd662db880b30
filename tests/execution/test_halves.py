"""Products of 16 bits: where they are taken, how many, of what, and that nothing is lost by them.

torch's `meta` device has the products of a GPU without their numbers; a fixture emulates them on the host; JAX is asked
what it lowers for platforms that are not there.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import export
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.utils._python_dispatch import TorchDispatchMode

import portable_nce as pnce
from portable_nce._core.halves import in_parts, product_of_rows
from portable_nce._core.registry import adapter_of
from portable_nce._execution import products as engine
from portable_nce._execution.products import Operand, product
from portable_nce.testing import run_ranks

pytestmark = [
    # torch.compile makes an instance of autograd.Function for itself, and torch warns of it.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    # torch tells, once in a process, what a default of its own will be.
    pytest.mark.filterwarnings("ignore:torch.asarray. unspecified requires_grad:UserWarning"),
]

Loss = Callable[..., Any]

N, D = 64, 16
LABELS = [k % 5 for k in range(N)]

LOSSES: dict[str, tuple[Loss, int]] = {
    "info_nce": (lambda a, b, **o: pnce.info_nce(a, b, temperature=0.1, **o), 5),
    "info_nce of cosines": (lambda a, b, **o: pnce.info_nce(a, b, temperature=0.1, similarity="cosine", **o), 5),
    "flat_nce": (lambda a, b, **o: pnce.flat_nce(a, b, temperature=0.1, **o), 5),
    "dcl": (lambda a, b, **o: pnce.dcl(a, b, temperature=0.1, **o), 5),
    "dclw": (lambda a, b, **o: pnce.dclw(a, b, temperature=0.1, **o), 5),
    "clip": (lambda a, b, **o: pnce.clip(a, b, logit_scale=10.0, **o), 5),
    "siglip": (lambda a, b, **o: pnce.siglip(a, b, logit_scale=10.0, logit_bias=-10.0, **o), 5),
    "nt_xent": (lambda a, b, **o: pnce.nt_xent(a, b, temperature=0.1, **o), 5),
    "n_tuple": (lambda a, b, **o: pnce.n_tuple(a, b, temperature=1.0, **o), 5),
    "moco": (lambda a, b, **o: pnce.moco(a, a, b, temperature=0.1, **o), 3),
    "moco_v3": (lambda a, b, **o: pnce.moco_v3(a, a, b, b, temperature=0.2, **o), 6),
}
"""Losses of two arrays, and how many products one call and its gradient take."""


def labelled(a: Any, b: Any, **options: Any) -> Any:
    """Give SupCon of rows in classes."""
    del b
    labels = torch.asarray(LABELS, device=a.device) if isinstance(a, torch.Tensor) else jnp.asarray(LABELS)
    return pnce.supcon(a, labels, **options)


def of_tokens(a: Any, b: Any, *, of_query: Any = None, of_document: Any = None, **options: Any) -> Any:
    """Give the loss of queries of four tokens and documents of four."""
    own = pnce.similarities.max_sim(query_mask=of_query, document_mask=of_document)
    query, document = (x.reshape((x.shape[0], 4, x.shape[1] // 4)) for x in (a, b))
    return pnce.info_nce(query, document, similarity=own, **{"temperature": 0.1, **options})


LOSSES["supcon"] = labelled, 5
LOSSES["max_sim"] = of_tokens, 5


def judged(form: str, a: Any, b: Any, **options: Any) -> Any:
    """Give a loss of what a second model, or labels, say of the pairs."""
    teacher, student = ((a + b).detach(), a.detach()) if isinstance(a, torch.Tensor) else (a + b, a)
    if form == "overlap":
        labels = pnce.pairings.overlap(teacher > 0, student > 0)
        return pnce.contrast(a, b, objective="info_nce", pairing=labels, temperature=0.1, **options)
    if form == "gist_embed":
        return pnce.gist_embed(a, b, teacher, student, temperature=0.1, margin=0.1, **options)
    return pnce.distillation(a, b, teacher, student, temperature=0.1, **options)


JUDGED = ["distillation", "gist_embed", "overlap"]


@pytest.fixture
def emulated() -> Iterator[None]:
    """Let torch have the products of 16 bits of a GPU on the host."""
    devices: set[str] = torch_adapter().half_devices
    devices.add("cpu")
    yield
    devices.discard("cpu")


def torch_adapter() -> Any:
    return adapter_of(torch.zeros(1))


class Products(TorchDispatchMode):
    """Count products by the dtypes of their operands and results: of more than one axis longer than a number."""

    def __init__(self, longer_than: int = 0) -> None:
        super().__init__()
        self.longer_than = longer_than
        self.found: Counter[tuple[str, ...]] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if "mm" in str(function):
            tensors = [x for x in (*args, result) if isinstance(x, torch.Tensor)]
            shortest, second, _ = sorted((*tensors[0].shape[-2:], result.shape[-1]))
            if second > self.longer_than and (shortest > 1 or not self.longer_than):
                self.found[tuple(str(x.dtype).removeprefix("torch.") for x in tensors)] += 1
        return result


def on_meta(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (torch.zeros((N, D), dtype=dtype, device="meta", requires_grad=True) for _ in range(2))
    return a, b


# ------------------------------------------------------------------------------------------------- what is multiplied


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", list(LOSSES))
def test_torch_multiplies_sixteen_bits_on_an_accelerator(name: str, dtype: torch.dtype) -> None:
    loss, count = LOSSES[name]
    a, b = on_meta(dtype)
    with Products() as products:
        value = loss(a, b)
        value.backward()
    half = str(dtype).removeprefix("torch.")
    assert products.found == {(half, half, "float32"): count}
    assert value.dtype == dtype
    assert a.grad is not None
    assert (a.grad.dtype, a.grad.shape) == (dtype, a.shape)


@pytest.mark.parametrize("form", JUDGED)
def test_what_a_second_model_says_is_multiplied_in_sixteen_bits(form: str) -> None:
    with Products() as products:
        judged(form, *on_meta(torch.bfloat16)).backward()
    assert products.found == {("bfloat16", "bfloat16", "float32"): 6}
    found = lowered(partial(judged, form), "cuda", jnp.bfloat16)
    assert found == {("bf16", "bf16", "f32"): 6}
    assert lowered(partial(judged, form), "cpu", jnp.bfloat16) == {("f32", "f32", "f32"): 4}


def test_labels_in_common_are_counted_in_sixteen_bits_beside_float32_too() -> None:
    with Products() as products:
        judged("overlap", *on_meta(torch.float32)).backward()
    assert products.found == {("bfloat16", "bfloat16", "float32"): 1, ("float32",) * 3: 3}
    with Products() as products:
        judged("overlap", *on_meta(torch.float64)).backward()
    assert products.found == {("float64",) * 3: 4}


class Traffic(TorchDispatchMode):
    """Count the bytes of large matrices that anything but a product reads and writes."""

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.entries = entries
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = {id(x): x for x in (*args, result) if isinstance(x, torch.Tensor)}.values()
        large = any(x.numel() >= self.entries for x in tensors)
        if large and "mm" not in str(function) and not function.is_view:
            self.bytes += sum(x.numel() * x.element_size() for x in tensors)
        return result


TABLE = re.findall(
    r"^\| `(\w+)` \| [^|]+ \| (\d+) \| [^|]+ \| (\d+) \| (\d+) \|$",
    (Path(__file__).parents[2] / "docs" / "speed.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row[0]))
def test_the_page_on_speed_tells_the_memory_traffic(row: tuple[str, ...]) -> None:
    name, *told = row
    n = 4096
    for number, dtype in zip(told, (torch.float32, torch.bfloat16, torch.float16), strict=True):
        a, b = (torch.zeros((n, 128), dtype=dtype, device="meta", requires_grad=True) for _ in range(2))
        with Traffic(n * n // 2) as traffic:
            LOSSES[name][0](a, b).backward()
        entries = n * n * (4 if name == "nt_xent" else 1)
        assert round(traffic.bytes / entries) == int(number), dtype


def test_the_table_of_traffic_was_found() -> None:
    assert [row[0] for row in TABLE] == ["info_nce", "clip", "siglip", "nt_xent"]


@pytest.mark.parametrize("name", list(LOSSES))
def test_precision_chooses_the_products(name: str) -> None:
    loss, count = LOSSES[name]

    def found(dtype: torch.dtype, **options: Any) -> dict[tuple[str, ...], int]:
        with Products() as products:
            loss(*on_meta(dtype), **options).backward()
        return dict(products.found)

    wide, half = ("float32",) * 3, ("bfloat16", "bfloat16", "float32")
    assert set(found(torch.bfloat16, precision="highest")) == {wide}
    assert set(found(torch.float32)) == {wide}
    assert found(torch.bfloat16, precision="high") == {half: count}
    three_for_one = 3 * found(torch.float32)[wide]
    assert found(torch.float32, precision="high") == {half: three_for_one}
    assert set(found(torch.float64, precision="high")) == {("float64",) * 3}


def large_products(loss: Callable[[], Any]) -> dict[tuple[str, ...], int]:
    """Count the products of a loss and its gradient, but for those in which an axis is of one number or two of D."""
    with Products(longer_than=D) as products:
        loss().backward()
    return dict(products.found)


@pytest.mark.parametrize("turned", [False, True])
def test_two_formats_of_sixteen_bits_meet_in_bfloat16(*, turned: bool) -> None:
    """A number of float16 is two of bfloat16; float32 beside 16 bits is not taken apart."""
    a, b = on_meta(torch.bfloat16)
    both = (b.to(torch.float16), a) if turned else (a, b.to(torch.float16))
    found = large_products(lambda: pnce.info_nce(*both, temperature=0.1))
    assert found == {("bfloat16", "bfloat16", "float32"): 1 + 2 + 3}  # the first is of twice the width
    wide = large_products(lambda: pnce.info_nce(a, b.to(torch.float32), temperature=0.1))
    assert wide == {("float32",) * 3: 3}


def test_views_of_two_formats_are_widened() -> None:
    """They are rows and columns at once, and in one array."""
    a, b = on_meta(torch.bfloat16)
    for loss in (pnce.nt_xent, pnce.joint_info_nce):
        found = large_products(lambda loss=loss: loss(a, b.to(torch.float16), temperature=0.1))  # type: ignore[misc]
        assert set(found) == {("float32",) * 3}


@pytest.mark.parametrize(("dtype", "count"), [(torch.bfloat16, 1 + 3 + 3), (torch.float16, 1 + 2 + 3)])
@pytest.mark.parametrize("form", ["bilinear", "normalized bilinear", "cpc", "cpc of cosines"])
def test_what_is_computed_of_embeddings_is_multiplied_in_parts(form: str, dtype: torch.dtype, count: int) -> None:
    a, b = on_meta(dtype)
    matrix = torch.zeros((D, D), dtype=torch.float32, device="meta", requires_grad=True)

    def loss() -> Any:
        if form.startswith("cpc"):
            similarity: pnce.typing.SimilarityName = "cosine" if form.endswith("cosines") else "dot"
            return pnce.cpc(a, b[None], matrix[None].to(dtype), temperature=0.5, similarity=similarity)
        own = pnce.similarities.bilinear(matrix)
        own = pnce.similarities.normalized(own) if form.startswith("normalized") else own
        return pnce.info_nce(a, b, temperature=0.5, similarity=own)

    half = str(dtype).removeprefix("torch.")
    assert large_products(loss) == {(half, half, "float32"): count}


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_offsets_of_columns_are_no_part_of_the_products(similarity: pnce.typing.SimilarityName) -> None:
    a, b = on_meta(torch.bfloat16)
    log_q = torch.zeros((N,), dtype=torch.bfloat16, device="meta", requires_grad=True)
    found = large_products(lambda: pnce.two_tower(a, b, log_q=log_q, similarity=similarity))
    assert found == {("bfloat16", "bfloat16", "float32"): 5}


def test_autocast_leaves_float32_as_it_is(emulated: None) -> None:
    del emulated
    a, b = (torch.randn((N, D), generator=torch.Generator().manual_seed(k)) for k in range(2))
    plain = pnce.info_nce(a, b, temperature=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16), Products() as products:
        assert pnce.info_nce(a, b, temperature=0.1) == plain
    assert set(products.found) == {("float32",) * 3}


@pytest.mark.parametrize("name", ["info_nce of cosines", "clip", "nt_xent", "siglip"])
def test_a_compiled_loss_multiplies_sixteen_bits(name: str) -> None:
    graphs: list[Any] = []

    def compiler(graph: Any, inputs: Any) -> Any:
        del inputs
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=compiler)
    torch.compile(LOSSES[name][0], backend=backend, fullgraph=True)(*on_meta(torch.bfloat16)).backward()
    products = [node for graph in graphs for node in graph.graph.nodes if "mm" in str(node.target)]
    assert {str(node.target) for node in products} == {"aten.mm.dtype"}
    assert len(products) == 5


@pytest.mark.parametrize("name", list(LOSSES))
def test_a_compiled_loss_takes_any_number_of_rows(name: str, emulated: None) -> None:
    """The second number of rows is a symbol to the compiler, of which the factors and parts have as many."""
    del emulated
    torch.compiler.reset()
    compiled = torch.compile(LOSSES[name][0], backend="aot_eager", fullgraph=True)
    draw = torch.Generator().manual_seed(9)
    for rows in (N,) if name == "supcon" else (8, 12, 17):  # its labels are N
        a, b = (torch.randn((rows, D), generator=draw).to(torch.bfloat16) for _ in range(2))
        found, wanted = results(compiled, a, b), results(LOSSES[name][0], a.double(), b.double())
        assert worst(found, wanted, torch.bfloat16) <= 1.0


DOT = re.compile(r"dot_general.*\(tensor<([^>]*)>, tensor<([^>]*)>\) -> tensor<([^>]*)>")


def lowered(loss: Loss, platform: str, dtype: Any) -> Counter[tuple[str, ...]]:
    """Count the products of three large axes in what JAX lowers for a platform, by their dtypes."""
    a = jnp.zeros((N, D), dtype=dtype)
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    text = export.export(step, platforms=[platform])(a, a).mlir_module()
    matrices = (found for found in DOT.findall(text) if found[2].count("x") > 1)  # the others are sums of products
    return Counter(tuple(part.rpartition("x")[2] for part in found) for found in matrices)


def of_rows(name: str) -> Loss:
    """Give the mean of the squares of the losses of the rows, which are computed in two passes."""

    def loss(a: Any, b: Any) -> Any:
        values = LOSSES[name][0](a, b, reduction="none").astype("float32")
        return (values * values).mean()

    return loss


def of_sogclr(**options: Any) -> Loss:
    """Give SogCLR of moving averages that are far from those of the batch."""

    def loss(a: Any, b: Any) -> Any:
        values = pnce.sogclr(a, b, jnp.linspace(-2.0, 3.0, N), temperature=0.1, **options)[0].astype("float32")
        return (values * values).mean()

    return loss


def coupled(a: Any, b: Any) -> Any:
    """Give a loss whose rows depend on each other."""
    objective = pnce.objectives.Objective(lambda row: row.log_odds * row.log_odds.mean(), couples_rows=True)
    return pnce.contrast(a, b, objective=objective, temperature=0.1)


IN_TWO_PASSES: dict[str, tuple[Loss, int]] = {
    **{f"{name}, each row": (of_rows(name), count) for name, (_, count) in LOSSES.items()},
    "relic": (lambda a, b: pnce.relic(a, b, temperature=0.1), 15),
    "relic of negatives": (lambda a, b: pnce.relic(a, b, temperature=0.1, include_positive=False), 15),
    "sogclr": (of_sogclr(), 5),
    "sogclr, each row": (of_sogclr(reduction="none"), 5),
    "coupled": (coupled, 5),
}
"""Losses that JAX differentiates itself, and how many products one call and its gradient take: RELIC's are three."""


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("name", [*LOSSES, *IN_TWO_PASSES])
def test_jax_multiplies_sixteen_bits_on_accelerators(name: str, platform: str) -> None:
    loss, count = {**LOSSES, **IN_TWO_PASSES}[name]
    for dtype, half in ((jnp.bfloat16, "bf16"), (jnp.float16, "f16"))[: 1 if platform == "tpu" else 2]:
        of_jax = 3 if name.startswith("moco_v3") else count  # both parts of MoCo v3 are the same program
        assert lowered(loss, platform, dtype) == {(half, half, "f32"): of_jax}


def test_jax_keeps_what_a_symmetric_loss_visits_twice() -> None:
    """The scores of one block, also where a scale that is learned makes a shift of these necessary."""

    def loss(a: Any, b: Any) -> Any:
        return pnce.clip(a, b, logit_scale=jnp.exp(a[0, 0].astype(jnp.float32)))

    assert lowered(loss, "cuda", jnp.bfloat16) == {("bf16", "bf16", "f32"): 5}
    assert lowered(loss, "cuda", jnp.float32) == {("f32", "f32", "f32"): 3}


def test_jax_widens_on_a_processor() -> None:
    assert lowered(LOSSES["info_nce"][0], "cpu", jnp.bfloat16) == {("f32", "f32", "f32"): 3}
    assert lowered(LOSSES["info_nce"][0], "cuda", jnp.float32) == {("f32", "f32", "f32"): 3}


@pytest.mark.parametrize("value", ["default", "HIGH", 3, True, b"high"])
def test_an_unknown_precision_is_refused(value: Any) -> None:
    x = np.eye(3)
    with pytest.raises(ValueError, match=r"^precision: expected None, 'high' or 'highest', got"):
        pnce.info_nce(x, x, precision=value)


def test_every_loss_that_streams_takes_a_precision() -> None:
    named = {name: getattr(pnce, name) for name in pnce.__all__}
    losses = {name: inspect.signature(x).parameters for name, x in named.items() if inspect.isfunction(x)}
    streamed = {name for name, parameters in losses.items() if "block_size" in parameters}
    assert streamed == {name for name, parameters in losses.items() if "precision" in parameters}
    assert len(streamed) > 15


# ---------------------------------------------------------------------------------------------------- what comes of it


def results(loss: Loss, *arrays: torch.Tensor) -> list[torch.Tensor]:
    """Give value and gradients, in float64."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    value = loss(*leaves)
    value.backward()
    return [value.detach().double(), *(x.grad.double() for x in leaves if x.grad is not None)]


def worst(found: list[torch.Tensor], wanted: list[torch.Tensor], dtype: torch.dtype) -> float:
    """Give the largest error of any row, in units in the last place of the row's largest entry."""
    eps = torch.finfo(dtype).eps
    errors = []
    for x, y in zip(found, wanted, strict=True):
        scale = y.abs() if y.ndim == 0 else y.abs().amax(dim=1, keepdim=True)
        scale = scale.clamp_min(torch.finfo(dtype).tiny / eps)
        error = float(((x - y).abs() / scale).max()) / eps
        errors.append(math.inf if math.isnan(error) else error)  # NaN, which is no error that `max` would see
    return max(errors)


MARGINS = {"random": (1.0, 0.1), "memorised": (0.02, 0.05), "memorised, sharp": (0.05, 0.0125)}
"""How far an array is from the other, and the temperature."""


def near_pairs(margin: str, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Draw two arrays with a margin, and give its temperature."""
    noise, temperature = MARGINS[margin]
    draw = torch.Generator().manual_seed(7)
    a = torch.randn((rows, 32), generator=draw)
    b = a + noise * torch.randn(a.shape, generator=draw)
    return a.to(dtype), b.to(dtype), temperature


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("margin", list(MARGINS))
@pytest.mark.parametrize("form", [*JUDGED, "distillation, symmetric", "gist_embed, symmetric"])
def test_no_bit_is_lost_of_what_a_second_model_says(form: str, margin: str, dtype: torch.dtype, emulated: None) -> None:
    del emulated
    a, b, _ = near_pairs(margin, 100, dtype)
    name, *symmetric = form.split(", ")

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        fixed = (a.to(x.dtype) + b.to(x.dtype), a.to(x.dtype))
        options: Any = {"temperature": 0.1, "block_size": 32}
        if name == "overlap":
            own = pnce.pairings.overlap(a > 0, b > 1)
            return pnce.contrast(x, y, objective="info_nce", pairing=own, **options)
        if name == "gist_embed":
            return pnce.gist_embed(x, y, *fixed, margin=0.1, symmetric=bool(symmetric), **options)
        return pnce.distillation(x, y, *fixed, teacher_temperature=0.05, symmetric=bool(symmetric), **options)

    fixed = a + b  # of 16 bits before it is wider, too
    assert fixed.dtype == dtype
    found = results(loss, a, b)
    wanted = results(loss, a.double(), b.double())
    assert worst(found, wanted, dtype) <= 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("margin", list(MARGINS))
@pytest.mark.parametrize("form", ["info_nce", "clip", "siglip", "supcon", "max_sim", "max_sim, symmetric"])
def test_no_bit_is_lost(form: str, margin: str, dtype: torch.dtype, emulated: None) -> None:
    """Each row of the gradient is within a unit in the last place, however far the positives lead."""
    del emulated
    a, b, temperature = near_pairs(margin, 200, dtype)
    labels = torch.arange(200) % 9
    tokens = torch.rand((2, 200, 4), generator=torch.Generator().manual_seed(2)) < 0.8  # some rows have none

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        if form == "info_nce":
            return pnce.info_nce(x, y, temperature=temperature, similarity="cosine", block_size=64)
        if form == "supcon":
            return pnce.supcon(torch.cat([x, y]), torch.cat([labels, labels]), temperature=temperature)
        if form.startswith("max_sim"):
            masks = {"of_query": tokens[0], "of_document": tokens[1]}
            options: Any = {"symmetric": form.endswith("symmetric"), "temperature": 4 * temperature, "block_size": 64}
            return of_tokens(x, y, **masks, **options)
        if form == "siglip":
            return pnce.siglip(x, y, logit_scale=1 / temperature, logit_bias=-10.0, reduction="sum")
        return pnce.clip(x, y, logit_scale=1 / temperature)

    found = results(loss, a, b)
    wanted = results(loss, a.double(), b.double())
    if dtype == torch.float16 and float(wanted[0]) > torch.finfo(dtype).max:
        found, wanted = found[1:], wanted[1:]
    assert worst(found, wanted, dtype) <= 1.0


SCALES: dict[str, float] = {"random": 1.0, "memorised": 1.0, "memorised, sharp": 1.6}
"""Factors of inner products of 32 features, whose margins reach some 80 where positives are memorised."""


def of_computed(form: str, x: torch.Tensor, y: torch.Tensor, further: torch.Tensor, scale: float) -> Any:
    """Give a loss of embeddings whose scores are no products of 16 bits as they stand."""
    if form == "cpc":
        return pnce.cpc(x, y[None], further[None], temperature=1 / scale, reduction="sum", block_size=64)
    if form == "cpc of cosines":
        return pnce.cpc(x, y[None], further[None], temperature=1 / 40, similarity="cosine")
    if form == "offsets":
        shifted = pnce.similarities.shifted_columns("cosine", further.reshape(-1)[: y.shape[0]])
        return pnce.info_nce(x, y, temperature=1 / 20, similarity=shifted, block_size=64)
    own = pnce.similarities.bilinear(further)
    if form == "clip, bilinear":
        return pnce.clip(x, y, logit_scale=scale, similarity=own, block_size=64)
    return pnce.info_nce(x, y, temperature=1 / scale, similarity=own, reduction="sum")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("margin", list(SCALES))
@pytest.mark.parametrize("form", ["bilinear", "clip, bilinear", "cpc", "cpc of cosines", "offsets"])
def test_no_bit_is_lost_of_what_is_computed(form: str, margin: str, dtype: torch.dtype, emulated: None) -> None:
    """The gradients of rows, columns and of a matrix, against those of float64: the last is a sum over all rows."""
    del emulated
    a, b, _ = near_pairs(margin, 200, dtype)
    draw = torch.Generator().manual_seed(4)
    matrix = (torch.eye(32) + 0.1 * torch.randn((32, 32), generator=draw)).to(dtype)

    def loss(x: torch.Tensor, y: torch.Tensor, further: torch.Tensor) -> Any:
        return of_computed(form, x, y, further, SCALES[margin])

    found, wanted = results(loss, a, b, matrix), results(loss, a.double(), b.double(), matrix.double())
    first = 0 if float(wanted[0]) > torch.finfo(dtype).tiny else 1  # a loss that 16 bits cannot hold
    for x, y in zip(found[first:], wanted[first:], strict=True):
        assert worst([x], [y], dtype) <= 0.6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["bilinear", "clip, bilinear"])
def test_the_gradient_of_a_matrix_of_float32_has_its_bits(form: str, dtype: torch.dtype, emulated: None) -> None:
    """Parameters often have more bits than embeddings; what goes into their gradients is split accordingly."""
    del emulated
    a, b, _ = near_pairs("memorised", 200, dtype)
    matrix = torch.eye(32) + 0.1 * torch.randn((32, 32), generator=torch.Generator().manual_seed(4))

    def loss(x: torch.Tensor, y: torch.Tensor, further: torch.Tensor) -> Any:
        return of_computed(form, x, y, further, 1.0)

    found = results(loss, a, b, matrix)[3]
    wanted = results(loss, a.double(), b.double(), matrix.double())[3]
    assert float((found - wanted).abs().max() / wanted.abs().max()) <= 5e-6


@pytest.mark.parametrize("margin", list(SCALES))
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16)])
def test_no_bit_is_lost_between_two_formats(
    dtypes: tuple[torch.dtype, torch.dtype], margin: str, emulated: None
) -> None:
    del emulated
    a, b, _ = near_pairs(margin, 200, torch.float32)
    x, y = (0.25 * a).to(dtypes[0]), (0.25 * b).to(dtypes[1])

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        return pnce.info_nce(x, y, temperature=0.0625 / SCALES[margin], similarity="dot", reduction="sum")

    found, wanted = results(loss, x, y), results(loss, x.double(), y.double())
    assert abs(float(found[0] / wanted[0]) - 1) <= 64 * torch.finfo(torch.float32).eps
    for k, dtype in enumerate(dtypes):
        assert worst([found[1 + k]], [wanted[1 + k]], dtype) <= 0.6


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("factor", [1e-37, 1e-25, 1.0, 1e18])
def test_rows_of_any_magnitude(factor: float, similarity: pnce.typing.SimilarityName, emulated: None) -> None:
    """bfloat16 has the range of float32, whose products are beyond it; the rows are not."""
    del emulated
    draw = torch.Generator().manual_seed(3)
    a, b = (torch.randn((12, 8), generator=draw).to(torch.bfloat16) for _ in range(2))
    a = torch.cat([a[:4] * factor, a[4:8] / factor if factor < 1 else a[4:8], a[8:]]).to(torch.bfloat16)
    temperature = 0.5 if similarity == "cosine" else max(1.0, factor * 8)

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        return pnce.info_nce(x, y, temperature=temperature, similarity=similarity)

    found, wanted = results(loss, a, b), results(loss, a.double(), b.double())
    assert all(bool(torch.isfinite(x).all()) for x in found)
    if similarity == "cosine" or factor == 1.0:
        assert worst(found, wanted, torch.bfloat16) <= 1.0


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_rows_below_the_smallest_normal_number(similarity: pnce.typing.SimilarityName, emulated: None) -> None:
    """No power of 2 that float32 has brings them near 1."""
    del emulated
    draw = torch.Generator().manual_seed(3)
    a, b = (torch.randn((12, 8), generator=draw) for _ in range(2))
    a[:4] *= 1e-39

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        return pnce.info_nce(x, y, temperature=0.5, similarity=similarity)

    a, b = a.bfloat16(), b.bfloat16()
    found, wanted = results(loss, a, b), results(loss, a.double(), b.double())
    assert worst([found[0], found[2]], [wanted[0], wanted[2]], torch.bfloat16) <= 1.0
    assert worst([found[1][4:]], [wanted[1][4:]], torch.bfloat16) <= 1.0


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("factor", [1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("form", ["info_nce", "clip", "nt_xent"])
def test_short_rows_of_float16_leave_the_others_as_they_are(
    form: str, factor: float, similarity: str, emulated: None
) -> None:
    """A factor of a row or column that is far larger than others decides nothing."""
    del emulated
    draw = torch.Generator().manual_seed(0)
    a = torch.randn((40, 16), generator=draw) * 4
    b = a + torch.randn((40, 16), generator=draw) * 4
    a[0] *= factor
    b[:3] *= factor
    scale = torch.tensor(5.0 if similarity == "cosine" else 0.05)
    loss = getattr(pnce, form)

    def scaled(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> Any:
        own = {"logit_scale": s} if form == "clip" else {"temperature": 1 / s}
        return loss(x, y, similarity=similarity, **own)

    wide, narrow = (a.half().double(), b.half().double(), scale.double()), (a.half(), b.half(), scale)
    *found, by_scale = results(scaled, *narrow)
    *wanted, exact = results(scaled, *wide)
    assert worst(found, wanted, torch.float16) <= 1.0
    assert abs(float(by_scale / exact) - 1) <= 2e-5


@pytest.mark.parametrize("noise", [0.3, 0.03])
def test_the_gradient_of_a_scale_where_embeddings_have_almost_collapsed(noise: float, emulated: None) -> None:
    """It is a small difference of products, of which the rounding of cotangents must leave a unit in the last place."""
    del emulated
    draw = torch.Generator().manual_seed(0)
    base = torch.randn((1, 256), generator=draw)
    a, b = ((base + noise * torch.randn((64, 256), generator=draw)).bfloat16() for _ in range(2))
    found = results(lambda x, y, s: pnce.clip(x, y, logit_scale=s), a, b, torch.tensor(20.0))[-1]
    wanted = results(
        lambda x, y, s: pnce.clip(x, y, logit_scale=s), a.double(), b.double(), torch.tensor(20.0).double()
    )
    assert abs(float(found / wanted[-1]) - 1) <= torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("form", ["info_nce", "clip", "supcon"])
@pytest.mark.parametrize("size", [1e-13, 1e-20, 1e-30])
def test_inner_products_of_tiny_rows(size: float, form: str, emulated: None) -> None:
    del emulated
    draw = torch.Generator().manual_seed(1)
    a, b = ((torch.randn((6, 4), generator=draw) * size).bfloat16() for _ in range(2))
    labels = torch.tensor([0, 0, 1, 1, 2, 2])

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        if form == "supcon":
            return pnce.supcon(x + y, labels, similarity="dot", temperature=1.0)
        return pnce.clip(x, y, similarity="dot", logit_scale=1.0) if form == "clip" else pnce.n_tuple(x, y)

    found, wanted = results(loss, a, b)[1:], results(loss, a.double(), b.double())[1:]
    for x, y in zip(found, wanted, strict=True):
        assert float((x - y).abs().max() / y.abs().max()) <= 2 * torch.finfo(torch.bfloat16).eps


def test_what_is_no_number_is_seen(emulated: None) -> None:
    del emulated
    x, labels = torch.rand((6, 4), generator=torch.Generator().manual_seed(0)).half() + 0.1, torch.arange(6) // 2
    assert pnce.supcon(x, labels, temperature=torch.tensor(torch.nan)).isnan()
    factors = torch.ones(6)
    factors[3] = torch.nan
    own = pnce.similarities.scaled_columns("cosine", factors)
    assert pnce.info_nce(x, x, similarity=own, reduction="none").isnan().all()
    for number in (-torch.inf, torch.inf, torch.nan):
        x[0, 0] = number
        assert pnce.supcon(x, labels).isnan()
        assert pnce.info_nce(x, x, mask=torch.eye(6) > -1).isnan()


def test_rows_that_do_not_count_may_hold_anything(emulated: None) -> None:
    del emulated
    draw = torch.Generator().manual_seed(6)
    a, b = (torch.randn((5, 4), generator=draw).half() for _ in range(2))
    a[3] = torch.nan
    positives = torch.eye(5) > 0
    positives[3, 3] = False
    of_pairs, of_numbers = pnce.pairings.explicit(positives), torch.tensor([0, 1, 2, -1, 4])
    for pairing in (of_pairs, pnce.pairings.Pairing(of_pairs.rule, pairs=(positives,), one_per_row=True)):
        for similarity in ("cosine", "dot"):

            def loss(x: torch.Tensor, y: torch.Tensor, p: Any = pairing, s: Any = similarity) -> Any:
                return pnce.contrast(x, y, objective="info_nce", pairing=p, similarity=s, temperature=0.5)

            found, wanted = results(loss, a, b), results(loss, a.double(), b.double())
            found[1][3] = wanted[1][3] = 0.0  # its own gradient
            assert all(bool(x.isfinite().all()) for x in wanted)
            assert worst(found, wanted, torch.float16) <= 1.0
    tokens = torch.tensor([[True] * 4] * 3 + [[False] * 4] + [[True, False, True, False]])

    def of_masked_tokens(x: torch.Tensor, y: torch.Tensor) -> Any:
        wide = (torch.cat([z, z, z, z], dim=1) for z in (x, y))
        return of_tokens(*wide, of_query=tokens, positives=positives)

    for pair in ((a, b), (a.double(), b.double())):
        assert all(bool(x.isfinite().all()) for x in results(of_masked_tokens, *pair))
    both = results(of_masked_tokens, a, b), results(of_masked_tokens, a.double(), b.double())
    assert worst(*both, torch.float16) <= 1.0
    x, y = (torch.where(z.isnan(), 1.0, z).to("meta") for z in (a, b))  # where numbers are not looked at
    assert pnce.info_nce(x, y, positives=of_numbers.to("meta")).shape == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["info_nce of cosines", "siglip"])
def test_a_row_of_no_number_leaves_the_gradients_of_other_rows(name: str, dtype: torch.dtype, emulated: None) -> None:
    del emulated
    draw = torch.Generator().manual_seed(8)
    a, b = (torch.randn((5, 4), generator=draw).to(dtype) for _ in range(2))
    a[3, 1] = torch.nan
    found, wanted = results(LOSSES[name][0], a, b)[1], results(LOSSES[name][0], a.double(), b.double())[1]
    others = [0, 1, 2, 4]
    assert bool(wanted[others].isfinite().all())
    assert worst([found[others]], [wanted[others]], dtype) <= 1.0


def test_three_products_of_the_largest_numbers(emulated: None) -> None:
    del emulated
    x = torch.eye(4)
    loss = pnce.info_nce(x, 3.4e38 * x, similarity="dot", temperature=1e38, precision="high")
    assert float(loss) == pytest.approx(0.0954, abs=1e-3)


@pytest.mark.parametrize("name", ["info_nce", "info_nce of cosines", "clip", "siglip", "nt_xent", "moco"])
def test_three_products_have_sixteen_bits(name: str, emulated: None) -> None:
    """Of numbers of float32 each is the sum of two of bfloat16 and of a rest below 2^-16, in value and gradients."""
    del emulated
    draw = torch.Generator().manual_seed(9)
    a = torch.randn((24, 16), generator=draw)
    b = a + torch.randn((24, 16), generator=draw)
    loss = LOSSES[name][0]
    found = results(lambda x, y: loss(x / 4, y / 4, precision="high"), a, b)
    plain = results(lambda x, y: loss(x / 4, y / 4, precision="highest"), a, b)
    wanted = results(lambda x, y: loss(x / 4, y / 4), a.double(), b.double())
    for got, best, want in zip(found, plain, wanted, strict=True):
        size = max(float(want.abs().max()), 1e-30)
        assert float((got - want).abs().max()) <= 2.0**-12 * size
        assert float((best - want).abs().max()) <= 2.0**-18 * size
    assert any(not torch.equal(got, best) for got, best in zip(found, plain, strict=True))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("number", [torch.inf, 3.4e38])
def test_three_products_of_what_bfloat16_cannot_hold(number: float, sign: float, emulated: None) -> None:
    """Infinity stays what it is, and what would be rounded to it does not."""
    del emulated
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    y = torch.tensor([[1.0, 0.5], [0.0, 1.0], [sign * number, 1.0]])

    def losses(precision: Any) -> torch.Tensor:
        return pnce.info_nce(x, y, similarity="dot", temperature=1e37, precision=precision, reduction="none")

    assert bool(losses("highest").isfinite().all()) == math.isfinite(number)
    torch.testing.assert_close(losses("high"), losses("highest"), rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_torch_widens_on_a_processor(dtype: torch.dtype) -> None:
    a, b = (torch.randn((N, D), generator=torch.Generator().manual_seed(k)).to(dtype) for k in range(2))
    with Products() as products:
        LOSSES["clip"][0](a.requires_grad_(), b.requires_grad_()).backward()
    assert set(products.found) == {("float32",) * 3}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("symmetric", [False, True])
def test_temperatures_of_rows_that_are_far_apart(dtype: torch.dtype, emulated: None, *, symmetric: bool) -> None:
    """The gradient of a row of little weight has its bits beside that of a row of much."""
    del emulated
    a, b, _ = near_pairs("random", 64, dtype)
    temperature = 10.0 ** torch.linspace(-1.5, 6.0, 64)

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        own = temperature.to(torch.promote_types(x.dtype, torch.float32))
        return pnce.info_nce(x, y, temperature=own, similarity="cosine", symmetric=symmetric, reduction="sum")

    found, wanted = results(loss, a, b), results(loss, a.double(), b.double())
    seen = wanted[1].abs().max(dim=1).values > 64 * torch.finfo(dtype).tiny
    assert int(seen.sum()) > 16
    assert worst([found[1][seen]], [wanted[1][seen]], dtype) <= 1.0


@pytest.mark.parametrize("masked", [False, True])
def test_rows_of_little_weight_have_their_bits(*, masked: bool, emulated: None) -> None:
    """Of float16, a row whose temperature is 2^26 that of another, and is as much shorter."""
    del emulated
    draw = torch.Generator().manual_seed(2)
    a, b = (torch.randn((8, 16), generator=draw) for _ in range(2))
    exponent = torch.tensor([-10, 0, 3, 8, 12, 17, 20, 21])
    temperature = 2.0**exponent  # the lengths of the rows make up for them in the gradient
    a = (a * 2.0 ** (-exponent.clamp(max=20))[:, None]).half()
    b = b.half()
    mask = torch.logical_or(torch.eye(8) > 0, torch.rand((8, 8), generator=draw) < 0.8) if masked else None

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        own = temperature.to(torch.promote_types(x.dtype, torch.float32))
        return pnce.info_nce(x, y, temperature=own, mask=mask, similarity="cosine", reduction="sum")

    found, wanted = results(loss, a, b), results(loss, a.double(), b.double())
    assert float(wanted[1].abs().amax(dim=1).min()) > 2.0**-8
    assert worst(found, wanted, torch.float16) <= 1.0


@pytest.mark.parametrize("form", ["temperatures", "products", "products, symmetric"])
def test_tokens_of_little_weight_have_their_bits(form: str, emulated: None) -> None:
    del emulated
    draw = torch.Generator().manual_seed(2)
    a, b = (torch.randn((8, 2, 16), generator=draw) for _ in range(2))
    exponent = torch.tensor([-10, 0, 3, 8, 12, 17, 20, 21])
    of_products = form.startswith("products")
    size = 2.0 ** (2 - exponent.clamp(max=20)) if of_products else 2.0 ** (-exponent.clamp(max=20))
    a, b = (a * size[:, None, None]).half(), (b * (2.0**5 if of_products else 1.0)).half()
    own = pnce.similarities.max_sim(normalize=not of_products)
    weights = torch.linspace(0.6, 0.9, 8)  # or what is tiny is a sum of few powers of 2

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        temperature = 2.0**10 if of_products else (2.0**exponent).to(torch.promote_types(x.dtype, torch.float32))
        options: Any = {"reduction": "sum", "symmetric": form.endswith("symmetric"), "weights": weights.to(x.dtype)}
        return pnce.info_nce(x, y, temperature=temperature, similarity=own, **options)

    found, wanted = (results(loss, *both)[1:] for both in ((a, b), (a.double(), b.double())))
    assert float(wanted[0].abs().amax(dim=(1, 2)).min()) > 2.0**-10
    for x, y in zip(found, wanted, strict=True):
        assert worst([x.flatten(1)], [y.flatten(1)], torch.float16) <= 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_column_at_minus_infinity_takes_no_part(dtype: torch.dtype, emulated: None) -> None:
    """All its scores are -inf, and none of them is NaN."""
    del emulated
    draw = torch.Generator().manual_seed(2)
    a, b = ((torch.rand((rows, 3), generator=draw) + 0.1).to(dtype) for rows in (4, 6))
    b[5, 0] = -torch.inf

    def losses(y: torch.Tensor) -> torch.Tensor:
        own: Any = {"objective": "info_nce", "similarity": "dot", "temperature": 0.5, "reduction": "none"}
        return pnce.contrast(a, y, **own)

    assert bool(losses(b).isfinite().all())
    assert torch.equal(losses(b), losses(b[:5]))


def test_offsets_upon_offsets(emulated: None) -> None:
    """Each is one more column of the operands, and none is one of their parts."""
    del emulated
    a, b, _ = near_pairs("random", 32, torch.bfloat16)
    draw = torch.Generator().manual_seed(3)
    first, second = torch.randn((32,), generator=draw), torch.randn((32,), generator=draw)

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        own = pnce.similarities.shifted_columns("cosine", first.to(torch.promote_types(x.dtype, torch.float32)))
        own = pnce.similarities.shifted_columns(own, second.to(torch.promote_types(x.dtype, torch.float32)))
        return pnce.info_nce(x, y, temperature=0.1, similarity=own)

    found, wanted = results(loss, a, b), results(loss, a.double(), b.double())
    assert worst(found, wanted, torch.bfloat16) <= 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_zeros_and_what_takes_no_part(dtype: torch.dtype, emulated: None) -> None:
    del emulated
    draw = torch.Generator().manual_seed(5)
    a, b = (torch.randn((6, 4), generator=draw).to(dtype) for _ in range(2))
    a[2] = 0
    mask = torch.ones((6, 6), dtype=torch.bool)
    mask[4], mask[:, 4] = False, False

    def loss(x: torch.Tensor, y: torch.Tensor, scale: float = 2.0) -> Any:
        return pnce.clip(x, y, logit_scale=scale, mask=mask if x.shape == mask.shape[:1] else None)

    assert worst(results(loss, a, b), results(loss, a.double(), b.double()), dtype) <= 1.0
    a[4] = torch.nan

    def masked(x: torch.Tensor, y: torch.Tensor) -> Any:
        return pnce.info_nce(x, y, temperature=0.5, mask=mask, similarity="cosine")

    wanted = results(masked, a.double(), b.double())
    assert all(bool(torch.isfinite(x).all()) for x in wanted)
    assert worst(results(masked, a, b), wanted, dtype) <= 1.0


@pytest.mark.parametrize("number", [0.0, -3.0])
def test_factors_may_have_any_sign(number: float, emulated: None) -> None:
    del emulated
    draw = torch.Generator().manual_seed(5)
    a, b = (torch.randn((6, 4), generator=draw).to(torch.bfloat16) for _ in range(2))
    factors = torch.full((6,), number, dtype=torch.float64)

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        own = pnce.similarities.scaled_columns(
            "cosine", factors.to(torch.float64 if x.dtype == torch.float64 else x.dtype)
        )
        return pnce.info_nce(x, y, temperature=0.5, similarity=own)

    assert worst(results(loss, a, b), results(loss, a.double(), b.double()), torch.bfloat16) <= 1.0


@pytest.mark.parametrize("name", ["info_nce of cosines", "clip", "nt_xent", "supcon", "bilinear", "offsets"])
def test_derivatives_of_the_second_order_are_those_of_float32(name: str, emulated: None) -> None:
    """What is differentiated again is multiplied in float32: tangents have more than 16 bits."""
    draw = torch.Generator().manual_seed(11)
    a, b, direction = (torch.randn((N, D), generator=draw).to(torch.bfloat16) for _ in range(3))
    further = torch.randn((D, D), generator=draw).to(torch.bfloat16)

    def product(x: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        value = LOSSES[name][0](x, y) if name in LOSSES else of_computed(name, x, y, further.to(x.dtype), 0.25)
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        (found,) = torch.autograd.grad((slope * v).sum(), x)
        return found.double()

    del emulated
    found, wanted = product(a, b, direction), product(a.double(), b.double(), direction.double())
    assert float((found - wanted).abs().max() / wanted.abs().max()) <= 2 * torch.finfo(torch.bfloat16).eps


def test_ranks_multiply_sixteen_bits(emulated: None) -> None:
    del emulated
    draw = torch.Generator().manual_seed(2)
    a, b = (torch.randn((12, 8), generator=draw).to(torch.bfloat16) for _ in range(2))
    bounds = [(0, 3), (3, 12)]
    for name in ("clip", "nt_xent", "info_nce of cosines"):
        loss = LOSSES[name][0]

        def on_a_rank(group: Any, loss: Loss = loss) -> list[torch.Tensor]:
            low, high = bounds[group.rank]
            across = pnce.across(group, gradients="summed")
            with Products() as products:
                found = results(lambda x, y: loss(x, y, across=across), a[low:high], b[low:high])
            half = products.found["float32", "float32", "float32"]  # each emulates one of 16 bits
            assert half >= 5
            return found

        found = run_ranks(2, on_a_rank)
        wanted = results(loss, a.double(), b.double())
        whole = [found[0][0], *(torch.cat([rank[k] for rank in found]) for k in (1, 2))]
        assert worst(whole, wanted, torch.bfloat16) <= 1.0


# ------------------------------------------------------------------------------------------- operands by themselves


def operand(x: torch.Tensor, dtype: torch.dtype, count: int) -> Operand:
    """Give an operand of rows in so many parts."""
    factor, *parts = in_parts(x, x, dtype, count)
    return Operand(x, factor, tuple(parts))


def whole(x: Operand) -> np.ndarray[Any, Any]:
    """Give the rows that the parts of an operand make."""
    return (x.factor[:, None].double() * sum(part.double() for part in x.parts)).numpy()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("counts", [(1, 1), (1, 2), (2, 1), (3, 1), (1, 3)])
def test_scores_of_parts_are_those_of_their_sums(counts: tuple[int, int], dtype: torch.dtype, emulated: None) -> None:
    """And what is added to columns is added to their scores."""
    del emulated
    draw = torch.Generator().manual_seed(3)
    rows, columns = (torch.randn((n, 6), generator=draw) * 10.0 ** torch.arange(-3, n - 3)[:, None] for n in (4, 7))
    own, other = (operand(x, dtype, count) for x, count in zip((rows, columns), counts, strict=True))
    added = torch.randn((7,), generator=draw)
    wanted = whole(own) @ whole(other).T
    scale = np.linalg.norm(whole(own), axis=1)[:, None] * np.linalg.norm(whole(other), axis=1)
    assert np.all(np.abs(product(own, other).numpy() - wanted) <= 2.0**-22 * scale)
    found = product(own, engine.with_added(other, added)).numpy()
    assert np.all(np.abs(found - wanted - added.numpy()) <= 2.0**-22 * (scale + np.abs(added.numpy())))


@pytest.mark.parametrize("halves", [False, True])
def test_rows_are_sharpened_where_nothing_is_differentiated(*, halves: bool, emulated: None) -> None:
    del emulated
    draw = torch.Generator().manual_seed(3)
    x, y = (torch.randn((n, 4), generator=draw).bfloat16().float() for n in (3, 5))
    sharpness = torch.tensor([0.5, 3.0, -1.0])

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[Operand, Operand]:
        return (operand(x, torch.bfloat16, 1), operand(y, torch.bfloat16, 1)) if halves else (Operand(x), Operand(y))

    rows, columns = both(x, y)
    scaled, rest = engine.sharpened_rows(rows, columns, sharpness)
    assert rest is None
    torch.testing.assert_close(scaled.x, sharpness[:, None] * x)
    torch.testing.assert_close(product(scaled, columns), sharpness[:, None] * (x @ y.T))
    for leaf in (x, y):
        leaf.requires_grad_()
        rows, columns = both(x, y)
        scaled, rest = engine.sharpened_rows(rows, columns, sharpness)
        assert scaled is rows
        assert rest is sharpness
        leaf.requires_grad = False


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (3, 1)])
def test_cotangents_of_parts_have_their_bits(
    counts: tuple[int, int], dtype: torch.dtype, emulated: None, *, even: bool
) -> None:
    """Those of the rows and of the columns, of residuals of any size, with and without a coefficient of each row."""
    del emulated
    draw = torch.Generator().manual_seed(5)
    rows, columns = (
        operand(torch.randn((n, 6), generator=draw), dtype, k) for n, k in zip((4, 7), counts, strict=True)
    )
    coefficient = torch.rand((4,), generator=draw) + 0.5
    for size in (1.0, 2.0**-60, 2.0**-90):
        residual = torch.randn((4, 7), generator=draw) * size
        for own in (None, coefficient):
            factor = np.ones((4, 1)) if own is None else own.numpy()[:, None].astype(np.float64)
            exact = residual.double().numpy() * factor
            for wanted in ((True, True), (True, False), (False, True)):
                found = engine.pulled(residual, own, rows, columns, wanted=wanted, even=even)
                expected = (exact @ whole(columns), exact.T @ whole(rows))
                for flag, x, y in zip(wanted, found, expected, strict=True):
                    assert (x is None) == (not flag)
                    if x is not None:
                        assert np.max(np.abs(x.numpy() - y)) <= 2.0**-14 * np.max(np.abs(y))


@pytest.mark.parametrize("even", [False, True])
def test_cotangents_of_16_bits_have_small_entries_and_zeros(emulated: None, *, even: bool) -> None:
    """An entry far below the largest has bits of its own, and a row, or a matrix, of zeros has a gradient of zeros."""
    del emulated
    x = torch.tensor([[0.0, 0.0], [1.0, -0.5], [-1.0, 0.5]])
    columns, rows = operand(x, torch.float16, 1), operand(torch.tensor([[1.0, 0.5], [1.0, 0.25]]), torch.float16, 1)
    small = 1.2345 * 2.0**-20
    residual = torch.tensor([[1.0, small, 0.0], [0.0, 0.0, 0.0]])
    to_rows, to_columns = engine.pulled(residual, None, rows, columns, wanted=(True, True), even=even)
    assert to_rows is not None
    assert to_columns is not None
    torch.testing.assert_close(to_rows, torch.tensor([[small, -0.5 * small], [0.0, 0.0]]), rtol=1e-4, atol=0.0)
    wanted = torch.tensor([[1.0, 0.5], [small, 0.5 * small], [0.0, 0.0]])
    torch.testing.assert_close(to_columns, wanted, rtol=1e-4, atol=0.0)
    for found in engine.pulled(0.0 * residual, None, rows, columns, wanted=(True, True), even=even):
        assert found is not None
        assert torch.equal(found, torch.zeros_like(found))


def test_what_parts_leave_of_a_cotangent_goes_with_the_mean(emulated: None) -> None:
    """Of equal rows, the gradient of the columns has the bits of float32, of which two parts have 16."""
    del emulated
    rows = operand(torch.tensor([[1.0, -3.0]]).repeat(5, 1), torch.bfloat16, 3)
    columns = operand(torch.randn((4, 2), generator=torch.Generator().manual_seed(1)), torch.bfloat16, 1)
    residual = torch.rand((5, 4), generator=torch.Generator().manual_seed(2))
    _, found = engine.pulled(residual, None, rows, columns, wanted=(True, True), even=True)
    assert found is not None
    wanted = residual.double().T @ torch.from_numpy(whole(rows))
    torch.testing.assert_close(found.double(), wanted, rtol=2.0**-21, atol=0.0)


@pytest.mark.parametrize(("dtype", "count", "bits"), [(torch.float16, 2, 38), (torch.bfloat16, 3, 24)])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_parts_have_the_bits_of_small_entries(size: float, dtype: torch.dtype, count: int, bits: int) -> None:
    """In float16, of what is below 2^-14 of its row's largest entry, too; infinity is the first of its parts."""
    x = size * torch.tensor([[1.0, 1.2345678e-5], [-3.3333333, 7.6543217e-6]])
    found = whole(operand(x, dtype, count))
    error = np.abs(found - x.double().numpy())
    assert np.all(error <= 2.0**-23 * np.abs(found) + 2.0**-bits * size * 4)
    factor, first, *others = in_parts(torch.tensor([[math.inf, 1.0]]), torch.tensor([[math.inf, 1.0]]), dtype, count)
    assert float(factor) == 1.0
    assert first[0, 0].isinf()
    assert all(bool(part.isfinite().all()) for part in others)


@pytest.mark.parametrize("number", [0.0, -0.0])
def test_rows_that_are_multiplied_by_0_are_0(number: float) -> None:
    """With a factor that others may be divided by."""
    x = torch.tensor([[1.0, 2.0], [0.0, 3.0]]).half()
    factor, part = in_parts(x.float(), number * x.float(), torch.float16, 1)
    assert torch.equal(factor, torch.ones(2))
    assert torch.equal(part, torch.zeros_like(x))


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("halves", [False, True])
def test_rows_of_16_bits_have_factors_in_their_products(
    *, halves: bool, recorded: bool, request: pytest.FixtureRequest
) -> None:
    if halves:
        request.getfixturevalue("emulated")
    draw = torch.Generator().manual_seed(3)
    x, y = (torch.randn((n, 3), generator=draw).bfloat16() for n in (2, 4))
    of_rows, of_columns = torch.tensor([2.0, -3.0]), torch.tensor([1.0, 0.5, 7.0, -1.0])
    wanted = (x.double() * of_rows[:, None]) @ (y.double() * of_columns[:, None]).T
    of_rows.requires_grad = recorded
    found = product_of_rows((x, of_rows), (y, of_columns))
    torch.testing.assert_close(found.detach(), wanted.float(), rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------- JAX


@pytest.fixture
def on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let JAX have the products of an accelerator on the host, which are exact there, where it compiles."""

    def chosen(*arrays: Any, cpu: Any, default: Any) -> Any:
        del cpu
        return default(*arrays)

    monkeypatch.setattr(jax.lax, "platform_dependent", chosen)
    jax.clear_caches()
    yield
    jax.clear_caches()


def close(x: Any, y: Any, units: float) -> bool:
    """Tell whether arrays are as close as so many units of bfloat16 of the largest entry."""
    pairs = zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    wide = [[np.asarray(z, dtype=np.float64) for z in pair] for pair in pairs]
    return all(bool(np.max(np.abs(a - b)) <= units * 2.0**-7 * np.max(np.abs(b))) for a, b in wide)


def test_jax_differentiates_products_of_sixteen_bits_as_those_of_float32(on_an_accelerator: None) -> None:
    """In reverse, forward over reverse, and under vmap."""
    del on_an_accelerator
    draw = np.random.default_rng(4)
    a, b, v = (jnp.asarray(draw.normal(size=(9, 5)), dtype=jnp.bfloat16) for _ in range(3))

    @jax.jit
    def loss(x: Any, y: Any) -> Any:
        return pnce.clip(x, y, logit_scale=3.0)  # another than elsewhere: nothing of it is compiled yet

    wide = [x.astype(jnp.float32) for x in (a, b, v)]
    assert close(loss(a, b), loss(*wide[:2]), 1.0)
    assert close(jax.grad(loss)(a, b), jax.grad(loss)(*wide[:2]), 1.0)
    twice = jax.jvp(lambda x: jax.grad(loss)(x, b), (a,), (v,))[1]
    assert close(twice, jax.jvp(lambda x: jax.grad(loss)(x, wide[1]), (wide[0],), (wide[2],))[1], 2.0)
    small = jax.jit(jax.grad(lambda x, t: pnce.info_nce(x, x, temperature=t), (0, 1)))(
        jnp.eye(4, dtype=jnp.float16), jnp.float32(1 / 85)
    )
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in small)  # where XLA flushes what is below 2^-126
    both = jax.vmap(loss)(jnp.stack([a, b]), jnp.stack([b, a]))
    assert close(both, jnp.stack([loss(a, b), loss(b, a)]), 1.0)


def in_every_mode(function: Callable[[Any, Any], Any], *arrays: Any, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """Give the derivatives of a function of two arrays, in the direction of two others, in all that JAX transforms."""
    gradient = jax.grad(function, (0, 1))

    def along(x: Any, y: Any) -> Any:
        return jax.jvp(function, (x, y), arrays[2:])[1].astype(jnp.float32)

    def slope(x: Any, y: Any) -> Any:
        return sum(jnp.sum((g * w).astype(jnp.float32)) for g, w in zip(gradient(x, y), arrays[2:], strict=True))

    def of_both(x: Any, y: Any) -> Any:
        return jnp.sum(jax.vmap(function, (0, None))(x, y).astype(jnp.float32))

    def computed(a: Any, b: Any, u: Any, v: Any) -> dict[str, Any]:
        modes: dict[str, Callable[[], Any]] = {
            "forward": lambda: along(a, b),
            "reverse": lambda: gradient(a, b),
            "forward over reverse": lambda: jax.jvp(gradient, (a, b), (u, v))[1],
            "reverse over reverse": lambda: jax.grad(slope, (0, 1))(a, b),
            "reverse over forward": lambda: jax.grad(along, (0, 1))(a, b),
            "vmap of reverse": lambda: jax.vmap(gradient, (None, 1))(a, jnp.stack([b, v], axis=1)),
            "reverse of vmap": lambda: jax.grad(of_both, (0, 1))(jnp.stack([a, u]), b),
            "vmap of both": lambda: jax.vmap(jax.vmap(gradient, (0, None)), (None, 0))(
                jnp.stack([a, u]), jnp.stack([b, v])
            ),
        }
        return {mode: modes[mode]() for mode in only or modes}

    found: dict[str, Any] = jax.jit(computed)(*arrays)
    return found


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_jax_transforms_products_of_sixteen_bits(half: str, on_an_accelerator: None) -> None:
    """In a scan whose steps are computed again; cotangents have 16 bits or more, tangents all."""
    del on_an_accelerator
    draw = np.random.default_rng(2)
    arrays = [jnp.asarray(draw.normal(size=(6, 5)), dtype=half).astype(jnp.float32) for _ in range(4)]

    def parts(x: Any) -> Operand:
        return Operand(x, jnp.full_like(x[:, 0], 1.0), (jax.lax.stop_gradient(x).astype(half),))

    def summed(score: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def function(x: Any, y: Any) -> Any:
            def step(carry: Any, block: Any, start: Any) -> Any:
                del start
                scores = score(block[0], y)
                return (carry[0] + jnp.sum(jnp.sin(scores), axis=0),), (jnp.sum(jnp.cos(0.3 * scores), axis=1),)

            (total,), (each,) = adapter_of(x).scan(step, (jnp.zeros(6),), (x,), 2)
            return jnp.sum(jnp.sin(total)) + jnp.sum(each**2)

        return function

    wanted = in_every_mode(summed(lambda x, y: x @ y.T), *arrays)
    found = in_every_mode(summed(lambda x, y: product(parts(x), parts(y))), *arrays)
    for mode in wanted:
        for x, y in zip(jax.tree.leaves(found[mode]), jax.tree.leaves(wanted[mode]), strict=True):
            error = float(jnp.max(jnp.abs(x - y)) / jnp.max(jnp.abs(y)))
            assert error <= (2e-6 if mode == "forward" else 2.0**-15), mode


@pytest.mark.parametrize(
    ("form", "only"),
    [
        ("info_nce", ()),
        ("bilinear", ()),
        ("offsets", ("reverse", "reverse over reverse", "vmap of both")),
        ("relic", ("forward", "forward over reverse")),
    ],
)
def test_jax_differentiates_two_passes_in_every_mode(form: str, only: tuple[str, ...], on_an_accelerator: None) -> None:
    """As it does the same embeddings of 16 bits in products of float32; what it rounds between is rounded to these."""
    del on_an_accelerator
    draw = np.random.default_rng(4)
    arrays = [jnp.asarray(draw.normal(size=(12, 5)), dtype=jnp.bfloat16) for _ in range(4)]

    def loss(a: Any, b: Any, **options: Any) -> Any:
        if form in {"bilinear", "offsets"}:
            further = jnp.linspace(-1.0, 2.0, 25, dtype=a.dtype).reshape((5, 5)) if form == "bilinear" else b[:, 0]
            make = (
                pnce.similarities.bilinear if form == "bilinear" else partial(pnce.similarities.shifted_columns, "dot")
            )
            options["similarity"] = make(further)
        name = form if form in {"info_nce", "relic"} else "info_nce"
        values = getattr(pnce, name)(a, b, temperature=0.5, block_size=5, reduction="none", **options)
        return jnp.sum(values.astype(jnp.float32))

    found = in_every_mode(loss, *arrays, only=only)
    wanted = in_every_mode(partial(loss, precision="highest"), *arrays, only=only)
    for mode in wanted:
        assert close(found[mode], wanted[mode], 1.0), mode


@pytest.mark.parametrize("specs", [("a", None), (None, "a"), (None, None)])
def test_jax_maps_products_of_sixteen_bits_over_a_mesh(
    specs: tuple[str | None, str | None], on_an_accelerator: None
) -> None:
    """JAX tells what varies over the axes of a mesh, of one device too: rows, columns, or neither."""
    del on_an_accelerator
    mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    draw = np.random.default_rng(5)
    a, b = (jnp.asarray(draw.normal(size=(6, 5)), dtype=jnp.bfloat16) for _ in range(2))

    def alone(x: Any, y: Any) -> Any:
        return jnp.sum(pnce.info_nce(x, y, temperature=0.7, reduction="none", block_size=2).astype(jnp.float32))

    def on_a_device(x: Any, y: Any) -> Any:
        value = alone(x, y)
        add_up: Any = jax.lax.psum
        return value if specs == (None, None) else add_up(value, "a")

    place: Any = jax.P
    mapped = jax.shard_map(on_a_device, mesh=mesh, in_specs=tuple(map(place, specs)), out_specs=place())
    found, wanted = (jax.jit(jax.grad(loss, (0, 1)))(a, b) for loss in (mapped, alone))
    assert close(found, wanted, 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("margin", list(MARGINS))
@pytest.mark.parametrize("form", ["info_nce", "supcon", "relic", "sogclr", "bilinear", "offsets"])
def test_jax_loses_no_bit_in_two_passes(form: str, margin: str, dtype: torch.dtype, on_an_accelerator: None) -> None:
    """Each row of the gradient is within a unit in the last place, however far the positives lead."""
    del on_an_accelerator
    a, b, temperature = near_pairs(margin, 96, dtype)
    labels = [k % 9 for k in range(96)]

    def loss(x: Any, y: Any) -> Any:
        own: dict[str, Any] = {"temperature": temperature, "reduction": "none", "block_size": 40}
        if form == "info_nce":
            values = pnce.info_nce(x, y, similarity="cosine", **own)
        elif form in {"bilinear", "offsets"}:
            space: Any = jnp if isinstance(x, jax.Array) else torch
            matrix = space.ones((32, 32), dtype=x.dtype) / 64 + space.eye(32, dtype=x.dtype) / 32
            made = pnce.similarities.bilinear(matrix)
            if form == "offsets":
                made = pnce.similarities.shifted_columns("cosine", space.ones(96, dtype=x.dtype) * x[:, 0])
            values = pnce.info_nce(x, y, similarity=made, **own)
        elif form == "supcon":
            of_rows = jnp.asarray(labels) if isinstance(x, jax.Array) else torch.asarray(labels)
            values = pnce.supcon(x + 0 * y, of_rows, **own)
        elif form == "relic":
            values = pnce.relic(x, y, **own)
        else:
            averages = jnp.zeros(96) if isinstance(x, jax.Array) else torch.zeros(96, dtype=torch.float64)
            values = pnce.sogclr(x, y, averages, **own)[0]
        return values.sum()

    narrow = getattr(jnp, str(dtype).removeprefix("torch."))
    arrays = [jnp.asarray(x.float().numpy()).astype(narrow) for x in (a, b)]
    gradients = jax.jit(jax.grad(loss, (0, 1)))(*arrays)
    found = [torch.asarray(np.array(x, dtype=np.float64)) for x in gradients]
    wanted = results(loss, a.double(), b.double())[1:]
    assert worst(found, wanted, dtype) <= 1.0
