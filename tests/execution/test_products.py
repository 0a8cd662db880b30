"""The inventory: number and dtypes of the products of each loss of 16-bit embeddings on accelerators; and products.

The cases of the conformance suite run on PyTorch's `meta` device, which selects the products of a GPU without computing
them, or are lowered by JAX for absent platforms. Counted are products of two matrices without a short axis, in units of
one product of all pairs of embeddings. The products in a JAX loop are counted once, as a fraction of the rows.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from dataclasses import replace
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.utils._python_dispatch import TorchDispatchMode

import portable_nce as pnce
from portable_nce._execution.products import Operand, pieces, product, times_sum
from portable_nce.testing.cases import Case, make_cases

pytestmark = [
    # torch.compile makes an instance of autograd.Function for itself, and torch warns of it.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    # torch announces a changed default, once per process.
    pytest.mark.filterwarnings("ignore:torch.asarray. unspecified requires_grad:UserWarning"),
]

ROWS, FEATURES, BLOCK = 32, 5, 16
"""Sizes that identify the axes; projections have one more feature."""

HALVES = {"bfloat16": "bf16", "float16": "f16"}

FUNCTION = re.compile(r"^\s*func\.func .*@([\w.$]+)\(")
CALL = re.compile(r"call @([\w.$]+)\(")
NUMBERS = r"\[([\d, ]*)\]"
DOT = re.compile(
    rf"dot_general [^,]+, [^,]+, (?:batching_dims = {NUMBERS} x {NUMBERS}, )?contracting_dims = {NUMBERS} x {NUMBERS}"
    r".*: \(tensor<([^>]*)>, tensor<([^>]*)>\) -> tensor<([^>]*)>"
)

MOST: list[tuple[str, int, str]] = [
    (r"(moco|proto_nce)$", 3, "keys, a queue and prototypes have no gradient"),
    (r"moco_v3$", 6, "two pairs of views, whose keys have no gradient"),
    (r"nnclr$", 4, "the search, and a support without a gradient"),
    (r"relic .*stop_gradient", 24, "two matrices, for InfoNCE and for the divergence"),
    (r"relic", 10, "two matrices"),
    (r"joint_info_nce", 12, "the columns are queries and keys"),
    (r"proto_nce.*(keys|two clusterings)", 9, "prototypes without a gradient, and keys"),
    (r"nnclr.*symmetric, weights", 11, "both directions, and the search"),
    (r"nnclr", 6, "the search"),
    (r"moco_v3", 10, "two pairs of views"),
    (r"symmetric, (several|index)|clip further", 10, "each direction by itself: rows and columns differ in number"),
    (r"distillation symmetric.*temperatures", 16, "each direction by itself, twice"),
    (r"(distillation|gist_embed).*symmetric", 12, "each direction by itself, with the similarities of the other model"),
    (r"distillation|gist_embed", 6, "the similarities of a teacher or guide, a constant"),
    (r"supcon several labels", 6, "how many labels rows have in common, a constant"),
    (r"symmetric.*(mask|weights|temperatures)|labels, symmetric|clip weights, mask", 10, "each direction by itself"),
    (r"(symmetric|clip|dclw|sogclr).*streamed", 6, "the scores again, on the way back through blocks"),
    ("", 5, "the scores, and two for the cotangents of either side"),
]
"""Maximum number of 16-bit products, by the first pattern that matches the case."""

TWO_PASSES = r"sogclr|dclw .*(weights of rows|keys|queue)"
"""Cases that PyTorch computes in two passes."""

TWO_DTYPES: list[tuple[tuple[str, str], dict[str, int]]] = [
    (("bfloat16", "float16"), {"float32": 3}),
    (("float16", "bfloat16"), {"float32": 3}),
    (("bfloat16", "float32"), {"float32": 3}),
]
"""Dtypes of queries and keys, and the products of InfoNCE."""

SMALL = r"own negatives|^contrast \w+, queue"
"""Cases whose negatives belong to one query each, products of a matrix and a vector; or with a queue of two."""


def is_of_inner_products(case: Case) -> bool:
    """Whether a case multiplies embeddings of all pairs."""
    if case.loss.startswith(("from_scores", "bounds", "density", "diagnostics")) or case.regime == "saturated":
        return False
    if case.loss == "cpc" or "bilinear" in case.name:  # operands computed from embeddings have more bits
        return False
    return not case.loss.startswith(("angle", "cosent", "triplet")) and not is_of_distances(case)  # of given pairs


def is_of_distances(case: Case) -> bool:
    """Whether the similarity of a case is one of distances, whose products are in float64."""
    usual = inspect.signature(getattr(pnce, case.loss)).parameters.get("similarity")
    name: Any = case.options.get("similarity", "cosine" if usual is None else usual.default)
    return name.removeprefix("normalized ") in {"neg_sq_euclidean", "neg_euclidean", "cauchy"}


def in_blocks(case: Case) -> Case:
    """A case with blocks of a fraction of its rows."""
    return replace(case, options={**case.options, "block_size": BLOCK}) if "block_size" in case.options else case


CASES = {case.name: in_blocks(case) for case in make_cases(ROWS, FEATURES) if is_of_inner_products(case)}
STREAMED = [name for name in CASES if "block_size" in CASES[name].options]
HELD = {"relic", "sogclr", "joint_info_nce"}
"""Losses that hold small score matrices, unless a precision is asked for."""
FIRST = {case.loss: case for case in reversed(CASES.values())}


def numbers(text: str | None) -> list[int]:
    """Read a list of numbers."""
    return [int(part) for part in (text or "").split(",") if part.strip()]


def axes(tensor: str) -> tuple[list[int], str]:
    """Read the axes and the dtype of a tensor."""
    *sizes, dtype = tensor.split("x")
    return [int(size) for size in sizes], dtype


def product_in(line: str) -> tuple[str, int] | None:
    """Dtype and size of a product of matrices; None if an axis is short, or two are features."""
    match = DOT.search(line)
    assert match is not None, line
    batching, _, contracting, _, *tensors = match.groups()
    (first, dtype), (_, other), (result, total) = (axes(tensor) for tensor in tensors)
    assert (dtype, total) == (other, "f32"), line
    depth = math.prod(first[axis] for axis in numbers(contracting))
    tall = math.prod(n for axis, n in enumerate(first) if axis not in numbers(batching) + numbers(contracting))
    wide = math.prod(result[len(numbers(batching)) :]) // tall
    size = size_of(tall, wide, depth)
    return (f"{dtype} high" if "[HIGH, HIGH]" in line else dtype, size) if size else None


def size_of(*lengths: int) -> int:
    """Size of a product, from the lengths of its axes; 0 if one is short, or two are features."""
    shortest, second, _ = sorted(lengths)
    return 0 if shortest == 1 or second <= FEATURES + 1 else max(1, shortest // FEATURES)


def products(text: str) -> Counter[str]:
    """Count the products of main and of the functions that it calls, once per call."""
    own: dict[str, Counter[str]] = {}
    calls: dict[str, Counter[str]] = {}
    name = ""
    for line in text.splitlines():
        if (found := FUNCTION.match(line)) is not None:
            name = found[1]
            own[name], calls[name] = Counter(), Counter()
        if name:
            calls[name].update(CALL.findall(line))
        if "dot_general" in line and (product := product_in(line)) is not None:
            own[name][product[0]] += product[1]

    def total(name: str) -> Counter[str]:
        count = Counter(own[name])
        for called, times in calls[name].items():
            for _ in range(times):
                count += total(called)
        return count

    return total("main")


def lowered(case: Case, dtype: str, platform: str, loss: Any = None) -> Counter[str]:
    """Count the products in the value and gradient of a case, or of another loss of its arrays, as lowered by JAX."""
    dtypes = {"b": jnp.bool_, "i": jnp.int32, "f": getattr(jnp, dtype)}
    given = [np.asarray(x) for x in (*case.arguments.values(), *case.constants.values())]
    shaped: Any = jax.ShapeDtypeStruct
    arrays = [shaped(x.shape, dtypes[x.dtype.kind]) for x in given]
    step = jax.jit(jax.value_and_grad(loss or case.function, argnums=tuple(range(len(case.arguments)))))
    return products(step.trace(*arrays).lower(lowering_platforms=(platform,)).as_text())


def most(case: Case) -> int:
    """The maximum of a case."""
    return next(bound for pattern, bound, _ in MOST if re.search(pattern, case.name))


class Products(TorchDispatchMode):
    """Counts the products of PyTorch by the dtype of their operands, or as TF32; results are float32 or wider."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if "mm" in str(function):
            first, second = [x for x in args if isinstance(x, torch.Tensor)]
            assert first.dtype == second.dtype
            assert result.dtype in {torch.float32, torch.float64}
            size = size_of(*first.shape[-2:], result.shape[-1])
            reduced = first.dtype == torch.float32 and torch.get_float32_matmul_precision() == "high"
            self.found.update({"tf32" if reduced else str(first.dtype).removeprefix("torch."): size} if size else {})
        return result


def on_meta(case: Case, *dtypes: str) -> dict[str, torch.Tensor]:
    """The arrays of a case on an accelerator, with one float dtype or several in turn."""
    floats = cycle(getattr(torch, dtype) for dtype in dtypes)
    arrays = {}
    given: dict[str, Any] = {**case.arguments, **case.constants}
    for key, x in [(key, np.asarray(x)) for key, x in given.items()]:
        dtype = {"b": torch.bool, "i": torch.int64}.get(x.dtype.kind) or next(floats)
        arrays[key] = torch.zeros(x.shape, dtype=dtype, device="meta", requires_grad=key in case.arguments)
    return arrays


def on_torch(case: Case, *dtypes: str, **options: Any) -> Counter[str]:
    """Count the products in the value and gradient of a case on an accelerator."""
    arrays = on_meta(case, *dtypes)
    with Products() as counted:
        value = case.call(arrays, **options)
        value.backward()
    assert value.dtype == getattr(torch, "float32" if len(dtypes) > 1 else next(iter(dtypes)))
    assert all(x.grad is None or x.grad.dtype == x.dtype for x in arrays.values())
    found: Counter[str] = counted.found
    return found


def check(found: Counter[str], half: str, case: Case, more: int = 0) -> None:
    """Compare the products of a case with the expected ones."""
    labels = {"bf16", "bfloat16"} if "several labels" in case.name else set()  # 0 or 1 in either format
    assert set(found) <= {half, *labels}, case.name
    assert bool(found) or re.search(SMALL, case.name), case.name
    assert found[half] <= most(case) + more, case.name


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("case_name", [name for name in CASES if name not in STREAMED])
def test_torch_multiplies_sixteen_bits(case_name: str, half: str) -> None:
    again = 1 if re.match(TWO_PASSES, case_name) else 0  # the scores are computed in each pass
    check(on_torch(CASES[case_name], half), half, CASES[case_name], again)


@pytest.mark.parametrize("case_name", STREAMED)
def test_jax_multiplies_sixteen_bits_in_blocks(case_name: str) -> None:
    check(lowered(CASES[case_name], "bfloat16", "cuda"), "bf16", CASES[case_name])


@pytest.mark.parametrize(("half", "platform"), [("bfloat16", "cuda"), ("float16", "cuda"), ("bfloat16", "tpu")])
@pytest.mark.parametrize("loss", FIRST)
def test_jax_multiplies_sixteen_bits(loss: str, half: str, platform: str) -> None:
    check(lowered(FIRST[loss], half, platform), HALVES[half], FIRST[loss])


@pytest.mark.parametrize("loss", FIRST)
def test_jax_multiplies_sixteen_bits_for_the_losses_of_rows(loss: str) -> None:
    """The mean of their squares takes two passes."""
    case = FIRST[loss]

    def of_rows(*arrays: Any) -> Any:
        values = case.call(dict(zip((*case.arguments, *case.constants), arrays, strict=True)), reduction="none")
        return jnp.mean(values.astype(jnp.float32) ** 2)

    each_direction = most(case) if loss == "clip" else 0
    check(lowered(case, "bfloat16", "cuda", of_rows), "bf16", case, each_direction)


def test_jax_multiplies_sixteen_bits_for_rows_that_depend_on_each_other() -> None:
    objective = pnce.objectives.Objective(lambda row: row.log_odds * row.log_odds.mean(), couples_rows=True)
    case = FIRST["info_nce"]

    def coupled(a: Any, b: Any, *_: Any) -> Any:
        return pnce.contrast(a, b, objective=objective, temperature=0.1)

    check(lowered(case, "bfloat16", "cuda", coupled), "bf16", case)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_queue_has_no_gradient(similarity: str) -> None:
    """The scores of the queue, and the gradient of the queries."""
    case = FIRST["moco"]
    case = replace(case, options={**case.options, "similarity": similarity})
    assert lowered(case, "float32", "cuda") == {"f32": 2}
    assert on_torch(case, "float32") == {"float32": 2}


@pytest.mark.parametrize(("loss", "count"), [("info_nce", 3), ("clip", 3), ("distillation", 4)])
def test_jax_widens_on_a_processor(loss: str, count: int) -> None:
    assert lowered(FIRST[loss], "bfloat16", "cpu") == {"f32": count}
    assert lowered(FIRST[loss], "float32", "cuda") == {"f32": count}


@pytest.mark.parametrize("loss", FIRST)
def test_precision_chooses_the_products_of_jax(loss: str) -> None:
    case = FIRST[loss]
    high = replace(case, options={**case.options, "precision": "high"})
    plain, fast = (lowered(x, "float32", "cuda") for x in (case, high))
    assert fast["f32 high"] == fast.total() - fast["bf16"] - int(loss == "nnclr")  # a search takes full precision
    assert fast.total() == plain.total() or (loss in HELD and fast.total() > plain.total())


@pytest.mark.parametrize("loss", FIRST)
def test_precision_chooses_the_products_of_torch(loss: str) -> None:
    """High precision lets a GPU compute the float32 products of a loss in TF32."""
    case = FIRST[loss]
    plain = on_torch(case, "float32")
    assert set(plain) <= {"float32", *(["bfloat16"] if "several labels" in case.name else [])}
    others = int(loss in {"distillation", "gist_embed"})  # the second model's product is unchanged
    assert on_torch(case, "bfloat16", precision="highest")["bfloat16"] == plain["bfloat16"] + others
    assert on_torch(case, "bfloat16", precision="high") == on_torch(case, "bfloat16")
    kept = Counter(float32=int(loss == "nnclr"), bfloat16=plain["bfloat16"])  # a search does not choose by TF32
    found = on_torch(case, "float32", precision="high")
    more = found["tf32"] + kept["float32"] - plain["float32"]
    assert found == kept + Counter(tf32=plain["float32"] - kept["float32"] + more)
    assert more == 0 or (loss in HELD and more > 0)
    assert set(on_torch(case, "float64", precision="high")) == {"float64"}


def test_labels_in_common_are_counted_in_sixteen_bits_beside_float32_too() -> None:
    case = CASES["supcon several labels"]
    assert on_torch(case, "float32") == {"bfloat16": 1, "float32": 3}
    assert on_torch(case, "float64") == {"float64": 4}


@pytest.mark.parametrize(("dtypes", "found"), TWO_DTYPES)
def test_torch_multiplies_two_dtypes(dtypes: tuple[str, str], found: dict[str, int]) -> None:
    """In float32, whether one of them is float32 or not."""
    assert on_torch(FIRST["info_nce"], *dtypes) == found
    # Views of two formats are one array. The joint softmax has rows of one format in each direction.
    assert set(on_torch(FIRST["nt_xent"], *dtypes)) == {"float32"}
    assert set(on_torch(FIRST["joint_info_nce"], *dtypes)) == {"float32"}


def test_torch_widens_on_a_processor() -> None:
    """Also under autocast."""
    case = FIRST["clip"]
    given = {key: torch.tensor(x, dtype=torch.bfloat16, requires_grad=True) for key, x in case.arguments.items()}
    with Products() as counted:
        case.call(given).backward()
    with torch.autocast("cpu", dtype=torch.bfloat16), counted:
        case.call({key: x.float() for key, x in given.items()}).backward()
    assert set(counted.found) == {"float32"}


@pytest.mark.parametrize("loss", ["info_nce", "nt_xent"])
def test_a_compiled_loss_multiplies_sixteen_bits(loss: str) -> None:
    products: list[str] = []

    def compiler(graph: Any, _: Any) -> Any:
        products.extend(str(node.target) for node in graph.graph.nodes if "mm" in str(node.target))
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    function = FIRST[loss].bound()
    compiled: Any = torch.compile(function, backend=aot_autograd(fw_compiler=compiler), fullgraph=True)
    compiled(on_meta(FIRST[loss], "bfloat16")).backward()
    assert products == ["aten.mm.dtype"] * 3


def test_an_unknown_precision_is_refused() -> None:
    x: Any = np.eye(3)
    unknown: list[Any] = ["default", "HIGH", 3, True, b"high"]
    for value in unknown:
        with pytest.raises(ValueError, match=r"^precision: expected None, 'high' or 'highest', got"):
            pnce.info_nce(x, x, precision=value)


def test_every_loss_that_streams_takes_a_precision() -> None:
    named = {name: getattr(pnce, name) for name in pnce.__all__}
    losses = {name: inspect.signature(x).parameters for name, x in named.items() if inspect.isfunction(x)}
    streamed = {name for name, parameters in losses.items() if "block_size" in parameters}
    assert streamed == {name for name, parameters in losses.items() if "precision" in parameters}
    assert len(streamed) > 15


def test_the_exceptions_are_those_of_some_case() -> None:
    used = [next(pattern for pattern, _, _ in MOST if re.search(pattern, name)) for name in CASES]
    assert set(used) == {pattern for pattern, _, _ in MOST}


def test_a_product_is_found_where_there_is_one() -> None:
    """In each dtype, in a loop, and once per call of a function; sums of products and projections do not count."""
    shaped: Any = jax.ShapeDtypeStruct
    x, w = (shaped(shape, jnp.bfloat16) for shape in ((ROWS, FEATURES), (FEATURES, FEATURES)))

    def scores(a: Any, b: Any) -> Any:
        return jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)

    def every(a: Any, b: Any) -> Any:
        inner = jax.jit(scores)
        step = jax.lax.map(lambda block: scores(block, a), jnp.stack([a[:BLOCK], a[BLOCK:]]))
        projected = jnp.matmul(a.astype(jnp.float32), b.astype(jnp.float32))
        return inner(a, a) + inner(a[::-1], a), step, scores(projected, projected), jnp.sum(projected * projected)

    text = jax.jit(every).trace(x, w).lower(lowering_platforms=("cuda",)).as_text()
    assert products(text) == {"bf16": 3, "f32": 1}


RNG = np.random.default_rng(7)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_products_and_their_factors_do_not_depend_on_their_order_in_memory(shape: tuple[int, int]) -> None:
    x, y = (RNG.normal(size=(n, 4)) for n in shape)
    found = product(Operand(x), Operand(y))
    np.testing.assert_allclose(found, x @ y.T, rtol=1e-14)
    for halves in (False, True):
        wanted = found * (x[:, :1] + y[:, 0])
        np.testing.assert_array_equal(times_sum(found.copy("K"), x[:, 0], y[:, 0], halves=halves), wanted)


def test_pieces_are_the_rows_of_their_bounds() -> None:
    x = RNG.normal(size=(4, 2))
    assert pieces(x, [(0, 4)])[0] is x
    for bounds in ([(1, 3)], [(0, 3)], [(0, 1), (1, 4)]):
        for (low, high), piece in zip(bounds, pieces(x, bounds), strict=True):
            np.testing.assert_array_equal(piece, x[low:high])
