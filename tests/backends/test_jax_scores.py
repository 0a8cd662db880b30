"""Large and small numbers on JAX: XLA contracts a product and a difference, and takes subnormal numbers as 0."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.testing.cases import LOSSES, example

if TYPE_CHECKING:
    from collections.abc import Callable

FEW = (
    "contrast labels",
    "dclw",
    "hcl",
    "info_nce hardness",
    "joint_info_nce",
    "nca",
    "proto_nce",
    "relic",
    "soft_nearest_neighbor",
    "supcon keys",
    "supcon separate",
    "triplet_from_labels semi_hard",
)
"""A loss of each path through the engine; a full run takes all."""
OTHERS = [name for name, loss in LOSSES.items() if "slots" not in loss.options and name not in FEW]
NAMES = [*FEW, *[pytest.param(name, marks=pytest.mark.full) for name in OTHERS]]
FACTOR = np.float32(0.3)
"""No power of 2: a product with it is rounded."""


LENGTH = 3e4
"""Factor of embeddings, whose scores are then about 10^10."""


def check(function: Callable[..., Any], arrays: list[Any], exact: Callable[..., Any] | None = None) -> None:
    """Values on JAX, jitted and not, and gradients that are not NaN; `exact`: the same on the rounded products."""
    varying = tuple(k for k, x in enumerate(arrays) if x.dtype.kind == "f")
    wide = [x.astype(np.float64) if k in varying else x for k, x in enumerate(arrays)]
    wanted = float((exact or function)(*wide))
    of_numpy = float(function(*arrays))
    given = [*map(jnp.asarray, arrays)]
    value, slopes = jax.jit(jax.value_and_grad(function, varying))(*given)
    for found in (value, function(*given)):
        assert abs(float(found) - wanted) <= 1e-3 * abs(wanted) + 3 * abs(of_numpy - wanted) + 1e-6
    assert not any(bool(jnp.any(jnp.isnan(x))) for x in slopes)


@pytest.mark.parametrize("name", NAMES)
def test_losses_of_long_embeddings(name: str) -> None:
    case = example(name, 6, 3)
    options = dict(case.options)
    if takes_similarity(name) and "similarity" not in LOSSES[name].options:
        options["similarity"] = "neg_sq_euclidean"
    case = replace(case, options=options)
    arrays = {key: np.asarray(x) for key, x in case.arguments.items()}
    arrays = {key: (x * LENGTH if x.ndim > 1 else x).astype(np.float32) for key, x in arrays.items()}
    for key, number in (("temperature", FACTOR), ("logit_scale", 13.3)):
        if key in arrays:
            arrays[key] = np.asarray(number, dtype=np.float32)
    arrays |= {key: np.asarray(x, dtype=np.int32) for key, x in case.constants.items()}
    names = [*arrays]
    check(lambda *given: case.call(dict(zip(names, given, strict=True))), [*arrays.values()])


def takes_similarity(name: str) -> bool:
    """Whether a loss has the keyword `similarity`."""
    loss: Any = reduce(getattr, name.split(maxsplit=1)[0].split("."), pnce)
    return "similarity" in inspect.signature(loss).parameters


SCORES: dict[str, Callable[[Any], Any]] = {
    "bounds.info_nce": pnce.bounds.info_nce,
    "bounds.info_nce_anchor": pnce.bounds.info_nce_anchor,
    "bounds.dv": pnce.bounds.dv,
    "from_scores.info_nce": pnce.from_scores.info_nce,
    "density.ranking_nce": lambda s: pnce.density.ranking_nce(s[:, 0], s[:, 1:]),
    "density.log_partition": lambda s: pnce.density.log_partition(s, 0.0).sum(),
    "density.nre_c": lambda s: pnce.density.nre_c(s[:, 0], s[:, 1:]),
    "diagnostics.effective_sample_size": pnce.diagnostics.effective_sample_size,
}


@pytest.mark.parametrize("name", SCORES)
def test_functions_of_products_that_are_computed_with_them(name: str) -> None:
    scores = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32) * np.float32(1e10)

    def scaled(scores: Any) -> Any:
        return SCORES[name](scores * FACTOR)

    def exact(scores: Any) -> Any:
        return SCORES[name]((scores.astype(np.float32) * FACTOR).astype(np.float64))

    check(scaled, [scores], exact)


def test_options_too_small_for_float32_are_zero_or_refused() -> None:
    a, b = (np.random.default_rng(k).normal(size=(6, 4)).astype(np.float32) for k in range(2))
    of_library: Any
    for of_library in (np.asarray, jnp.asarray):
        x, y = of_library(a), of_library(b)
        assert float(pnce.hcl(x, y, beta=1e-40)) == float(pnce.hcl(x, y, beta=0.0))
        found, wanted = (float(pnce.bounds.interpolated(x @ y.T, alpha, 0.0)) for alpha in (1e-40, 0.0))
        assert found == wanted
        with pytest.raises(ValueError, match="teacher_temperature: expected a number between"):
            pnce.distillation(x, y, x, y, teacher_temperature=1e-40)


def test_rows_near_the_largest_number_have_unit_rows() -> None:
    x = np.asarray([[3e38, 1e38, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 5.0]], dtype=np.float32)
    y = np.asarray([[1.5, 2.5, 3.5], [2.5, 1.5, 0.5], [0.5, 1.5, 5.5]], dtype=np.float32)
    wanted = float(pnce.info_nce(x.astype(np.float64), y.astype(np.float64)))
    for function in (pnce.info_nce, jax.jit(pnce.info_nce)):
        assert float(function(jnp.asarray(x), jnp.asarray(y))) == pytest.approx(wanted, rel=1e-6)


def test_traced_arrays_have_no_estimate() -> None:
    with pytest.raises(TypeError, match="call this outside of jit"):
        jax.jit(lambda x: pnce.estimation.mutual_information(x, x, rng=0).lower)(jnp.ones((60, 1)))
