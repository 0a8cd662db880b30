"""The inventory: how many products, and of what, each loss of 16-bit embeddings takes on accelerators.

Every case of the conformance suite is lowered by JAX for platforms that are not there, and its products are counted in
the text: those of two matrices of which no axis is short, in units of one product of all pairs of embeddings. What a
loop computes is counted once, as a share of the rows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from portable_nce.testing.cases import Case, make_cases

ROWS, FEATURES, BLOCK = 32, 5, 16
"""Numbers that tell apart what axes are of; projections have one feature more."""

HALVES = {"bfloat16": "bf16", "float16": "f16"}

FUNCTION = re.compile(r"^\s*func\.func .*@([\w.$]+)\(")
CALL = re.compile(r"call @([\w.$]+)\(")
NUMBERS = r"\[([\d, ]*)\]"
DOT = re.compile(
    rf"dot_general [^,]+, [^,]+, (?:batching_dims = {NUMBERS} x {NUMBERS}, )?contracting_dims = {NUMBERS} x {NUMBERS}"
    r".*: \(tensor<([^>]*)>, tensor<([^>]*)>\) -> tensor<([^>]*)>"
)

MOST: list[tuple[str, int, str]] = [
    (r"relic .*symmetric", 36, "two matrices, with each other twice; in blocks"),
    (r"relic", 24, "two matrices, and both with each other; in blocks their scores are computed again"),
    (r"cpc", 18, "two steps of a bilinear similarity"),
    (r"bilinear", 9, "three for the scores, three for the rows' cotangents, three for the columns'"),
    (r"joint_info_nce", 12, "the columns are queries and keys"),
    (r"proto_nce.*(keys|two clusterings)", 9, "prototypes without a gradient, and keys"),
    (r"nnclr.*symmetric, weights", 11, "both directions, and the search"),
    (r"nnclr", 6, "the search"),
    (r"moco_v3", 10, "two pairs of views"),
    (r"(distillation|gist_embed).*symmetric", 12, "each direction by itself, with the similarities of the other model"),
    (r"distillation|gist_embed", 6, "the similarities of a teacher or guide, a constant"),
    (r"supcon several labels", 6, "how many labels rows have in common, a constant"),
    (r"symmetric.*(mask|weights|temperatures)|labels, symmetric|clip weights, mask", 10, "each direction by itself"),
    (r"(symmetric|clip|dclw|sogclr).*streamed", 6, "the scores again, on the way back through blocks"),
    ("", 5, "the scores, and two for the cotangents of either side"),
]
"""The most products of 16 bits: of the first pattern that a case matches."""

SMALL = r"own negatives|^contrast \w+, queue"
"""Each query has negatives that no other has, products of a matrix and a vector; or a queue has two."""


def is_of_inner_products(case: Case) -> bool:
    """Tell whether a case multiplies embeddings of all pairs."""
    if case.loss.startswith(("from_scores", "bounds", "density", "diagnostics")) or case.regime == "saturated":
        return False
    apart = ("angle", "cosent", "triplet", "nca", "contrastive", "soft_nearest")  # by distances, or of given pairs
    return not case.loss.startswith(apart) and "euclidean" not in case.name and "distances" not in case.name


def in_blocks(case: Case) -> Case:
    """Give a case whose blocks are a share of its rows."""
    return replace(case, options={**case.options, "block_size": BLOCK}) if "block_size" in case.options else case


CASES = {case.name: in_blocks(case) for case in make_cases(ROWS, FEATURES) if is_of_inner_products(case)}
FIRST = {case.loss: case for case in reversed(CASES.values())}


def numbers(text: str | None) -> list[int]:
    """Read a list of numbers."""
    return [int(part) for part in (text or "").split(",") if part.strip()]


def axes(tensor: str) -> tuple[list[int], str]:
    """Read the axes and the dtype of a tensor."""
    *sizes, dtype = tensor.split("x")
    return [int(size) for size in sizes], dtype


def product_in(line: str) -> tuple[str, int] | None:
    """Give the dtype and the size of a product of matrices, or None where an axis is short, or two are of features."""
    match = DOT.search(line)
    assert match is not None, line
    batching, _, contracting, _, *tensors = match.groups()
    (first, dtype), (_, other), (result, total) = (axes(tensor) for tensor in tensors)
    assert (dtype, total) == (other, "f32"), line
    depth = math.prod(first[axis] for axis in numbers(contracting))
    tall = math.prod(n for axis, n in enumerate(first) if axis not in numbers(batching) + numbers(contracting))
    wide = math.prod(result[len(numbers(batching)) :]) // tall
    shortest, second, _ = sorted((tall, wide, depth))
    if shortest == 1 or second <= FEATURES + 1:
        return None
    return dtype, max(1, shortest // FEATURES)


def products(text: str) -> Counter[str]:
    """Count the products of what main calls, and of what this calls, as often as it does."""
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


def lowered(case: Case, half: str, platform: str) -> Counter[str]:
    """Count the products of the value and gradient of a case whose floats have 16 bits."""
    dtypes = {"b": jnp.bool_, "i": jnp.int32, "f": getattr(jnp, half)}
    given = [np.asarray(x) for x in (*case.arguments.values(), *case.constants.values())]
    shaped: Any = jax.ShapeDtypeStruct
    arrays = [shaped(x.shape, dtypes[x.dtype.kind]) for x in given]
    step = jax.jit(jax.value_and_grad(case.function, argnums=tuple(range(len(case.arguments)))))
    return products(step.trace(*arrays).lower(lowering_platforms=(platform,)).as_text())


def most(case: Case) -> int:
    """Give the bound of a case."""
    return next(bound for pattern, bound, _ in MOST if re.search(pattern, case.name))


def check(case: Case, half: str, platform: str) -> None:
    """Count, and compare."""
    found = lowered(case, half, platform)
    labels = {"bf16"} if "several labels" in case.name else set()  # which are 0 or 1 in either format
    assert set(found) <= {HALVES[half], *labels}, case.name
    assert bool(found) or re.search(SMALL, case.name), case.name
    assert found[HALVES[half]] <= most(case), case.name


@pytest.mark.parametrize("name", list(CASES))
def test_a_loss_multiplies_sixteen_bits(name: str) -> None:
    check(CASES[name], "bfloat16", "cuda")


@pytest.mark.parametrize(("half", "platform"), [("float16", "cuda"), ("bfloat16", "tpu")])
@pytest.mark.parametrize("loss", list(FIRST))
def test_so_it_does_in_other_formats_and_places(loss: str, half: str, platform: str) -> None:
    check(FIRST[loss], half, platform)


def test_the_exceptions_are_those_of_some_case() -> None:
    used = [next(pattern for pattern, _, _ in MOST if re.search(pattern, name)) for name in CASES]
    assert set(used) == {pattern for pattern, _, _ in MOST}


def test_a_product_is_found_where_there_is_one() -> None:
    """In each dtype, in a loop, and as often as a function is called; sums of products and projections are none."""
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
