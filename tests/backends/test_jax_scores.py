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
from portable_nce.testing.cases import CASES, LOSSES, example

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
        allowed = 1e-3 * abs(wanted) + 3 * abs(of_numpy - wanted) + 1e-6
        assert float(found) == wanted or abs(float(found) - wanted) <= allowed  # both may be the same infinity
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


FOLDERS = "bounds.", "density.", "diagnostics."
TAKE_SCORES = [case for case in CASES if any(key.endswith("scores") for key in case.arguments)]
OF_SCORES = {case.loss: case for case in reversed(TAKE_SCORES) if case.loss.startswith(FOLDERS)}
"""The first case of each function."""
FEW_OF_SCORES = (
    "bounds.dv",
    "bounds.info_nce",
    "bounds.info_nce_anchor",
    "density.log_partition",
    "density.nre_c",
    "density.ranking_nce",
    "diagnostics.effective_sample_size",
)
"""A function of each path; a full run takes all."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW_OF_SCORES else pytest.mark.full) for name in OF_SCORES]
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_functions_of_products_that_are_computed_with_them(name: str) -> None:
    case, draw = OF_SCORES[name], np.random.default_rng(0)
    arrays = {key: np.asarray(x, dtype=np.float32) for key, x in case.arguments.items()}
    are_scores = [key.endswith("scores") for key in arrays] + [False] * len(case.constants)
    arrays = {
        key: (draw.normal(size=x.shape) * 1e10).astype(np.float32) if key.endswith("scores") else x
        for key, x in arrays.items()
    }
    arrays |= {key: np.asarray(x) for key, x in case.constants.items()}
    names = [*arrays]

    def of(given: Any) -> Any:
        return case.call(dict(zip(names, given, strict=True)))

    def scaled(*given: Any) -> Any:
        return of([x * FACTOR if yes else x for x, yes in zip(given, are_scores, strict=True)])

    def exact(*given: Any) -> Any:
        products = [x.astype(np.float32) * FACTOR if yes else x for x, yes in zip(given, are_scores, strict=True)]
        return of([x.astype(np.float64) if yes else x for x, yes in zip(products, are_scores, strict=True)])

    check(scaled, [*arrays.values()], exact)


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
