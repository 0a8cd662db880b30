"""Sweeps: gradients that nobody wants, and gradients of positives."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce._core import checks
from portable_nce._core.numerics import largest_score
from portable_nce._execution import choice, sets, tiling
from portable_nce._execution.channels import channel_of
from portable_nce._execution.inputs import Inputs
from portable_nce._execution.sets import Diagonals
from portable_nce._execution.specs import SweepSpec
from portable_nce._execution.sweep import sweep
from portable_nce._execution.two_sided import square_sweep
from portable_nce.pairings import OnDiagonals, several_views, with_negatives
from portable_nce.similarities import resolve
from portable_nce.testing.variants import started

pytestmark = pytest.mark.usefixtures("jax_x64")

RNG = np.random.default_rng(7)
PLAN = pnce.objectives.info_nce()


@pytest.mark.parametrize("block_size", ["auto", None, 3])
@pytest.mark.parametrize("structure", ["diagonal", "views", "queue", "index", "square"])
def test_a_sweep_leaves_out_gradients_that_nobody_wants(structure: str, block_size: Any) -> None:
    rows, columns = RNG.normal(size=(8, 3)), RNG.normal(size=(8 if structure in {"views", "square"} else 13, 3))
    extra: dict[str, dict[str, Any]] = {
        "index": {"targets": (np.arange(8),)},
        "queue": {"partners": (RNG.normal(size=(8, 3)),)},
    }
    inputs = Inputs((rows,), (columns,), **extra.get(structure, {}))
    function = square_sweep if structure == "square" else sweep
    channel = channel_of(resolve("dot"), (rows,), (columns,))
    of = tiling.two_sided if structure == "square" else tiling.one_sided
    sizes = tiling.Sizes(of, block_size, options=(("symmetric", False),) * (structure == "square"))
    lines = sets.diagonals_of(OnDiagonals(2 if structure == "views" else 1), 8)
    lines = Diagonals((), indexed=structure == "index") if extra.get(structure) else lines
    spec = SweepSpec(PLAN, lines, sizes, (channel,), inputs.group_sizes, bound=largest_score(rows, columns), mean=True)
    arrays = inputs.flat
    value, number, *gradients = function(spec, *arrays, need_grad=True)
    for wanted in ((True, False), (False, True)):
        flags = wanted if len(gradients) == 2 else (*wanted, wanted[1])
        found = function(spec, *arrays, need_grad=flags)
        np.testing.assert_array_equal(found[0], value)
        np.testing.assert_array_equal(found[1], number)
        for own, got, all_of_them in zip(flags, found[2:], gradients, strict=True):
            np.testing.assert_array_equal(got, all_of_them if own else None)


def weighted_by_positives(row: Any) -> Any:
    """Losses with weights that depend on the positives of all rows."""
    weights = (row.positive - row.positive.mean()) ** 2
    return row.log_odds * weights / weights.mean() + 0.25 * weights


OF_POSITIVES = {
    "dclw": pnce.objectives.dclw(temperature=0.03),
    "own": pnce.objectives.Objective(weighted_by_positives, couples_rows=True),
    "saturated": pnce.objectives.Objective(lambda row: 1e-310 * row.log_odds - row.positive, couples_rows=False),
}
"""Objectives whose slope by the positive is no multiple of that by the negatives."""


@pytest.mark.internals
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("objective", OF_POSITIVES)
def test_a_positive_has_its_gradient_where_the_negatives_have_none(
    objective: str, library: Any, monkeypatch: pytest.MonkeyPatch, *, far: bool
) -> None:
    """Also where entries cannot be read; a similarity that is a plain function is differentiated by the library."""
    for module in (checks, tiling) if far else ():
        monkeypatch.setattr(module, "on_accelerator", lambda _: True)
    x, y = (library(z) for z in np.random.default_rng(1).normal(size=(2, 8, 3)))
    x, weights = x[:6], library(np.asarray([1.0, 0.0, 1.0, 1e-200, 0.5, 2.0]))
    partly_filled = library(np.arange(8) != 7)

    def gradients(pairing: Any, similarity: Any, z: Any) -> list[np.ndarray]:
        def loss(x: Any, y: Any) -> Any:
            named = {"pairing": pairing, "similarity": similarity, "temperature": 0.03, "weights": weights}
            return pnce.contrast(x, y, objective=OF_POSITIVES[objective], **named)

        return [np.asarray(g) for g in pnce.grad(loss, argnums=(0, 1))(x, z)]

    pairings = (pnce.pairings.diagonal(), several_views(2), with_negatives(several_views(2), partly_filled))
    for pairing, z in zip(pairings, (y, y[:6], y), strict=True):
        found, wanted = (gradients(pairing, similarity, z) for similarity in ("dot", lambda a, b: a @ b.T))
        for result, expected in zip(found, wanted, strict=True):
            assert np.abs(expected).max() > 0.1
            np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.internals
@pytest.mark.parametrize("library", ["numpy", "array_api_strict", "torch", "jax.numpy"])
def test_adapters_ask_for_the_gradients_that_are_wanted(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    xp = importlib.import_module(library)
    asked: list[Any] = []

    def noted(spec: Any, *arrays: Any, need_grad: Any) -> Any:
        asked.append(need_grad)
        return sweep(spec, *arrays, need_grad=need_grad)

    monkeypatch.setattr(choice, "sweep", noted)
    x, y = (xp.asarray(RNG.normal(size=(4, 3)).tolist()) for _ in range(2))
    for argnums, wanted in ((0, (True, False)), (1, (False, True)), ((0, 1), (True, True))):
        asked.clear()
        pnce.grad(lambda a, b: pnce.info_nce(a, b, similarity="dot"), argnums=argnums)(x, y)
        if library == "torch":  # functorch asks for all gradients, backward() for those required
            asked.clear()
            a, b = (z.clone().requires_grad_(own) for z, own in zip((x, y), wanted, strict=True))
            pnce.info_nce(a, b, similarity="dot").backward()
        assert [flags[:2] for flags in asked] == [wanted]  # a third flag is that of the scale
    asked.clear()
    pnce.info_nce(x, y)
    assert asked == [False]


@pytest.mark.internals
@pytest.mark.parametrize("strips", [((0, 5), (5, 6), (6, 12)), ((0, 11), (11, 12))])
@pytest.mark.parametrize("temperature", [0.5, 1e-4])
@pytest.mark.parametrize("half", [False, True])
def test_strips_of_a_symmetric_matrix_give_what_one_tile_gives(
    strips: Any, temperature: float, monkeypatch: pytest.MonkeyPatch, *, half: bool
) -> None:
    """Also with a shift of each row, where the scores are not small, and with weights."""
    x = torch.as_tensor(np.random.default_rng(3).normal(size=(6, 4)), dtype=torch.bfloat16 if half else torch.float64)
    weights = torch.as_tensor([1.0, 0.5, 0.0, 2.0, 1.0, 1.0], dtype=x.dtype)
    found = []
    for blocks in (12, strips):
        monkeypatch.setattr(tiling, "_strips", lambda n, _, blocks=blocks: blocks if n == 12 else n)
        monkeypatch.setattr(choice, "is_large", lambda *_: True)
        with started("torch-halves").active():
            given = [x.clone().requires_grad_(), (x.flip(0) + 0.5).requires_grad_()]
            pnce.nt_xent(*given, temperature=temperature, weights=weights).backward()
            told = pnce.explain(pnce.nt_xent, *given, temperature=temperature, weights=weights).sweeps[0]
        found.append([y.grad for y in given])
        assert told.reason == "the score of i with j is that of j with i"
        assert told.block == (12 if blocks == 12 else max(high - low for low, high in strips))
    for one, other in zip(*found, strict=True):
        tolerance = 2.0**-7 if half else 1e-12
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(one.abs().max()))
