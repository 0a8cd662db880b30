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
from portable_nce._core.registry import adapter_of
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


LOSSES["supcon"] = labelled, 5


@pytest.fixture
def emulated() -> Iterator[None]:
    """Let torch have the products of 16 bits of a GPU on the host."""
    devices: set[str] = torch_adapter().half_devices
    devices.add("cpu")
    yield
    devices.discard("cpu")


def torch_adapter() -> Any:
    return adapter_of(torch.zeros(1))


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count products by the dtypes of their operands and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[tuple[str, ...]] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if "mm" in str(function):
            tensors = [x for x in (*args, result) if isinstance(x, torch.Tensor)]
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


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of large matrices that anything but a product reads and writes."""

    def __init__(self, entries: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
    (Path(__file__).parents[1] / "docs" / "speed.md").read_text(encoding="utf-8"),
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


def test_embeddings_of_different_dtypes_are_widened() -> None:
    a, b = on_meta(torch.bfloat16)
    with Products() as products:
        pnce.info_nce(a, b.to(torch.float16), temperature=0.1).backward()
    assert set(products.found) == {("float32",) * 3}


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


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("name", list(LOSSES))
def test_jax_multiplies_sixteen_bits_on_accelerators(name: str, platform: str) -> None:
    loss, count = LOSSES[name]
    for dtype, half in ((jnp.bfloat16, "bf16"), (jnp.float16, "f16"))[: 1 if platform == "tpu" else 2]:
        # CLIP adds its rows and columns up, and visits the tiles again; both parts of MoCo v3 are the same program.
        of_jax = {"clip": 6, "moco_v3": 3}.get(name, count)
        assert lowered(loss, platform, dtype) == {(half, half, "f32"): of_jax}


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("margin", list(MARGINS))
@pytest.mark.parametrize("form", ["info_nce", "clip", "siglip", "supcon"])
def test_no_bit_is_lost(form: str, margin: str, dtype: torch.dtype, emulated: None) -> None:
    """Each row of the gradient is within a unit in the last place, however far the positives lead."""
    del emulated
    noise, temperature = MARGINS[margin]
    draw = torch.Generator().manual_seed(7)
    a = torch.randn((200, 32), generator=draw)
    b = (a + noise * torch.randn(a.shape, generator=draw)).to(dtype)
    a = a.to(dtype)
    labels = torch.arange(200) % 9

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        if form == "info_nce":
            return pnce.info_nce(x, y, temperature=temperature, similarity="cosine", block_size=64)
        if form == "supcon":
            return pnce.supcon(torch.cat([x, y]), torch.cat([labels, labels]), temperature=temperature)
        if form == "siglip":
            return pnce.siglip(x, y, logit_scale=1 / temperature, logit_bias=-10.0, reduction="sum")
        return pnce.clip(x, y, logit_scale=1 / temperature)

    found = results(loss, a, b)
    wanted = results(loss, a.double(), b.double())
    if dtype == torch.float16 and float(wanted[0]) > torch.finfo(dtype).max:
        found, wanted = found[1:], wanted[1:]
    assert worst(found, wanted, dtype) <= 1.0


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("factor", [1e-37, 1e-25, 1.0, 1e18])
def test_rows_of_any_magnitude(factor: float, similarity: str, emulated: None) -> None:
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

            def loss(x: torch.Tensor, y: torch.Tensor, p: Any = pairing, s: str = similarity) -> Any:
                return pnce.contrast(x, y, objective="info_nce", pairing=p, similarity=s, temperature=0.5)

            found, wanted = results(loss, a, b), results(loss, a.double(), b.double())
            found[1][3] = wanted[1][3] = 0.0  # its own gradient
            assert all(bool(x.isfinite().all()) for x in wanted)
            assert worst(found, wanted, torch.float16) <= 1.0
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


@pytest.mark.parametrize("name", ["info_nce of cosines", "clip", "nt_xent", "supcon"])
def test_derivatives_of_the_second_order_are_those_of_float32(name: str, emulated: None) -> None:
    """What is differentiated again is multiplied in float32: tangents have more than 16 bits."""
    draw = torch.Generator().manual_seed(11)
    a, b, direction = (torch.randn((N, D), generator=draw).to(torch.bfloat16) for _ in range(3))

    def product(x: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(LOSSES[name][0](x, y), x, create_graph=True)
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


def test_jax_differentiates_products_of_sixteen_bits_as_those_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """In reverse, forward over reverse, and under vmap; on the host, whose products are exact."""

    def on_an_accelerator(*arrays: Any, cpu: Any, default: Any) -> Any:
        del cpu
        return default(*arrays)

    monkeypatch.setattr(jax.lax, "platform_dependent", on_an_accelerator)
    jax.clear_caches()  # type: ignore[no-untyped-call]
    draw = np.random.default_rng(4)
    a, b, v = (jnp.asarray(draw.normal(size=(9, 5)), dtype=jnp.bfloat16) for _ in range(3))

    def loss(x: Any, y: Any) -> Any:
        return pnce.clip(x, y, logit_scale=3.0)  # another than elsewhere: nothing of it is compiled yet

    def close(x: Any, y: Any, units: float) -> bool:
        x, y = (np.asarray(z, dtype=np.float64) for z in (x, y))
        return bool(np.max(np.abs(x - y)) <= units * 2.0**-7 * np.max(np.abs(y)))

    wide = [x.astype(jnp.float32) for x in (a, b, v)]
    assert close(loss(a, b), loss(*wide[:2]), 1.0)
    assert close(jax.grad(loss)(a, b), jax.grad(loss)(*wide[:2]), 1.0)
    twice = jax.jvp(lambda x: jax.grad(loss)(x, b), (a,), (v,))[1]
    assert close(twice, jax.jvp(lambda x: jax.grad(loss)(x, wide[1]), (wide[0],), (wide[2],))[1], 2.0)
    small = jax.grad(lambda x, t: pnce.info_nce(x, x, temperature=t), (0, 1))(
        jnp.eye(4, dtype=jnp.float16), jnp.float32(1 / 85)
    )
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in small)  # where XLA flushes what is below 2^-126
    both = jax.vmap(loss)(jnp.stack([a, b]), jnp.stack([b, a]))
    assert close(both, [loss(a, b), loss(b, a)], 1.0)
    jax.clear_caches()  # type: ignore[no-untyped-call]
