"""Large arrays, for which libraries use other algorithms, give the same results as small ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import portable_nce as pnce
from portable_nce._core import calls
from portable_nce._execution import choice, tiling
from portable_nce.testing.cases import CASES
from portable_nce.testing.suite.calls import arrays_of
from portable_nce.testing.variants import CHOOSE_BY_DEVICE, differentiate

from calls import by_form, mostly_full, shares

if TYPE_CHECKING:
    from portable_nce.testing.cases import Case
    from portable_nce.testing.variants import Variant


def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("numpy", "torch"):
        monkeypatch.setattr(import_module(f"portable_nce.backends.{name}_namespace"), "_FEWEST", 0)


@pytest.mark.parametrize("variant", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize("case", by_form(CASES), ids=lambda case: case.name)
def test_values_and_gradients(variant: Variant, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = arrays_of(variant, case, "float64")

    def results() -> list[Any]:
        calls.KINDS.clear()
        value, gradients = differentiate(case.function, [*arrays.values()], len(case.arguments))
        return [variant.to_list(x) for x in (value, *gradients)]

    wanted = results()
    all_are_large(monkeypatch)
    assert repr(results()) == repr(wanted)  # repr, because NaN is not equal to NaN


MASKED = {case.name: case for case in CASES if "mask" in case.name}
FIRST_MASKED = {case.loss: name for name, case in reversed(MASKED.items())}.values()
"""One case with a mask of each loss."""

TRACED = [*FIRST_MASKED][::4]
"""Some of them, for tracing in the default run."""


@pytest.mark.parametrize("variant", ["torch"], indirect=True)
@pytest.mark.parametrize("name", mostly_full(MASKED, TRACED))
def test_modes_that_see_each_operation(variant: Variant, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are not read from tensors that a mode has replaced."""
    all_are_large(monkeypatch)
    case = MASKED[name]
    arrays = [*arrays_of(variant, case, "float64").values()]
    graph = make_fx(case.function)(*arrays)
    torch.testing.assert_close(graph(*arrays), case.function(*arrays), equal_nan=True)


SIZES: dict[str, dict[str, int]] = {
    "few rows": {"_MASKED_ENTRIES": 1, "_ROWS": 3, "_TILE_ENTRIES": 9},
    "one row": {"_MASKED_ENTRIES": 1, "_ROWS": 1, "_TILE_ENTRIES": 1},
    "rows by columns": {"_MASKED_ENTRIES": 20, "_ROWS": 2, "_TILE_ENTRIES": 10},
    "nothing kept": {"_KEPT_ENTRIES": 0, "_ROWS": 2, "_TILE_ENTRIES": 24},
    "accelerator": {"_FAR_ENTRIES": 60, "_FAR_ROWS": 6, "_ROWS": 1},
    "sorted labels": {},
}
"""Sizes of blocks and tiles for arrays of a few rows."""


def of_each_case(*names: str) -> dict[str, list[Any]]:
    """Value and gradients of each case, with sizes of blocks that the engine chooses."""
    calls.KINDS.clear()
    found = {}
    for case in [case for case in CASES if case.name in names]:
        options = {key: value for key, value in case.options.items() if key != "block_size"}
        arrays = [np.asarray(x) for x in (*case.arguments.values(), *case.constants.values())]
        value, gradients = differentiate(replace(case, options=options).function, arrays, len(case.arguments))
        found[case.name] = [value, *gradients]
    return found


usual = cache(of_each_case)


@pytest.mark.internals
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("cases", shares(CASES, lambda _: "all losses"))
def test_no_size_of_blocks_changes_a_loss(monkeypatch: pytest.MonkeyPatch, cases: list[Case], sizes: str) -> None:
    names = [case.name for case in cases]
    wanted = usual(*names)
    for name, size in SIZES[sizes].items():
        monkeypatch.setattr(tiling, name, size)
    if sizes == "accelerator":
        for module in CHOOSE_BY_DEVICE:
            monkeypatch.setattr(f"portable_nce.{module}.on_accelerator", lambda _: True)
    if sizes == "sorted labels":
        monkeypatch.setattr(choice, "is_large", lambda *_: True)
        monkeypatch.setattr(choice, "label_blocks", lambda _: (3, 64))
    for case, arrays in of_each_case(*names).items():
        for result, expected in zip(arrays, wanted[case], strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-11, err_msg=case)


ROWS, UNPAIRED = 40, (7, 31)
"""Numbers of rows, and those that have a label of their own."""
OBJECTIVES = {
    "each": pnce.objectives.info_nce(),
    "pooled": pnce.objectives.info_nce(multi_positive="pooled"),
    "separate": pnce.objectives.info_nce(multi_positive="separate"),
    "flat_nce": pnce.objectives.flat_nce(),
    "hard_negatives": pnce.objectives.hard_negatives(beta=0.5, tau_plus=0.1),
}


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("similarity", ["cosine", "dot", "neg_sq_euclidean"])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("variant", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_row_without_a_positive_reaches_no_column(
    variant: Variant, objective: str, similarity: Any, monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    """Also where labels are sorted, which pays for large matrices alone."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, ROWS, 5))
    labels, others = rng.integers(0, 6, (2, ROWS))
    labels[[*UNPAIRED]] = 90, -90
    monkeypatch.setattr(choice, "is_large", lambda *_: large)
    monkeypatch.setattr(choice, "label_blocks", lambda _: (8, ROWS))
    arrays = [variant.array(z.tolist()) for z in (labels, others)]

    def loss(x: Any, y: Any) -> Any:
        pairing = pnce.pairings.labels(*arrays)
        chosen: Any = OBJECTIVES[objective]
        return pnce.contrast(x, y, objective=chosen, pairing=pairing, similarity=similarity)

    wanted = results_of(variant, loss, x, y)
    x[[*UNPAIRED]] = np.asarray([[np.nan], [np.inf]])
    value, to_rows, to_columns = results_of(variant, loss, x, y)
    np.testing.assert_allclose(value, wanted[0], rtol=1e-12)
    np.testing.assert_allclose(to_columns, wanted[2], rtol=1e-9, atol=1e-12)
    live = np.setdiff1d(range(ROWS), UNPAIRED)
    np.testing.assert_allclose(to_rows[live], wanted[1][live], rtol=1e-9, atol=1e-12)


def results_of(variant: Variant, loss: Any, *arrays: Any) -> list[np.ndarray]:
    value, gradients = differentiate(loss, [variant.floats(z.tolist(), "float64") for z in arrays])
    return [np.asarray(variant.to_list(z)) for z in (value, *gradients)]
