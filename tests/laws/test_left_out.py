"""Rows that do not count, where the suite does not look: unreadable entries, compiled calls, other objectives, bounds.

`portable_nce/testing/suite/test_left_out.py` has the law over all losses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce import pairings
from portable_nce._core import checks
from portable_nce._execution import tiling
from portable_nce.testing.cases import LOSSES, example
from portable_nce.testing.suite.left_out import WAYS, N, filled_with, leaving_out, lists_of, results, rows_left_out
from portable_nce.testing.variants import started

from calls import OF_SCORES, options_of

pytestmark = pytest.mark.usefixtures("jax_x64")

RNG = np.random.default_rng(3)
LIBRARIES = [np.asarray, torch.as_tensor]


def cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arrays of the host count as arrays of an accelerator."""
    for module in (checks, tiling):
        monkeypatch.setattr(module, "on_accelerator", lambda _: True)


def value_and_gradients(loss: Any, *arrays: Any) -> list[np.ndarray]:
    value, gradients = pnce.value_and_grad(loss, argnums=tuple(range(len(arrays))))(*arrays)
    return [np.asarray(x) for x in (value, *gradients)]


def assert_equal(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for result, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.internals
@pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:overflow encountered")
@pytest.mark.parametrize("name", LOSSES)
def test_a_row_is_left_out_where_entries_cannot_be_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variant, arrays = started(("numpy", "torch")[len(name) % 2]), lists_of(name)
    for k, way in enumerate(WAYS):
        if leaving_out(name, way) is None:
            continue
        dirty = dict(arrays)
        for key, row in rows_left_out(variant, name, way):
            number = (math.nan, math.inf)[(k + row) % 2]
            dirty[key] = [filled_with(number, x) if i == row else x for i, x in enumerate(dirty[key])]
        wanted = results(variant, name, way, arrays)
        with monkeypatch.context() as patched:
            cannot_be_read(patched)
            found = results(variant, name, way, dirty)
        for result, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12, err_msg=way)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", [name for name, case in OF_SCORES.items() if "noise_scores" in case.arguments])
def test_a_context_or_sample_that_does_not_count_may_hold_anything(name: str, library: Any) -> None:
    case = OF_SCORES[name]
    arrays = {key: np.asarray(x) for key, x in case.arguments.items()}
    shape = arrays["noise_scores"].shape
    mask = np.ones(shape, dtype=bool)
    mask[0, 1] = mask[2] = False
    ways: dict[str, Any] = {"mask": (mask, lambda x: ~mask if x.ndim > 1 else np.zeros(len(x), dtype=bool))}
    if name != "density.log_partition":
        ways["weights"] = (np.asarray([1.0, 0.0, 2.0]), lambda _: 1)
    for way, (given, place) in ways.items():

        def loss(*numbers: Any, way: str = way, given: Any = given) -> Any:
            return case.call({**dict(zip(arrays, numbers, strict=True)), way: library(given)})

        wanted = value_and_gradients(loss, *map(library, arrays.values()))
        for dirt in (math.nan, math.inf):
            dirty = {key: x.copy() for key, x in arrays.items()}
            for x in dirty.values():
                x[place(x)] = dirt
            assert_equal(value_and_gradients(loss, *map(library, dirty.values())), wanted)


COMPILED: dict[str, tuple[Callable[..., Any], list[tuple[int, int]]]] = {
    "weight": (lambda x, y, w, _: pnce.info_nce(x, y, weights=w), [(0, 1)]),
    "weight, distance": (lambda x, y, w, _: pnce.info_nce(x, y, weights=w, similarity="neg_euclidean"), [(0, 1)]),
    "mask": (lambda x, y, _, m: pnce.siglip(x, y, logit_scale=8.0, logit_bias=-4.0, mask=m), [(0, 1), (1, 2)]),
    "index": (lambda x, y, *_: pnce.info_nce(x, y, positives=jnp.asarray([2, 7, 0, -1])), [(0, 1), (0, 3)]),
    "label": (
        lambda x, y, *_: pnce.supcon(x, jnp.asarray([1, 9, 1, 2]), keys=y, key_labels=jnp.asarray([1, 2, 2, 3])),
        [(0, 1)],
    ),
    "scores": (lambda x, y, w, _: pnce.from_scores.info_nce(x @ x.T + y[:, :1], weights=w), [(1, 1)]),
    "ignored target": (
        lambda x, y, *_: pnce.density.linear_softmax(x, y, jnp.asarray([0, -100, 2, 9]), ignore_index=-100),
        [(0, 1), (0, 3)],
    ),
}
"""Calls, and their rows that do not count: number of the array, and row."""


@pytest.mark.parametrize("name", COMPILED)
def test_a_row_is_left_out_in_a_compiled_call(name: str) -> None:
    call: Any
    call, rows = COMPILED[name]
    weights, mask = jnp.asarray([1.0, 0.0, 2.0, 1.0]), np.ones((4, 4), dtype=bool)
    mask[1] = mask[:, 2] = False
    compiled = jax.jit(jax.value_and_grad(lambda x, y: call(x, y, weights, jnp.asarray(mask)), argnums=(0, 1)))
    arrays = RNG.normal(size=(2, 4, 3))

    def found(given: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(x) for x in jax.tree.leaves(compiled(*map(jnp.asarray, given)))]

    wanted = found(arrays)
    for dirt in (math.nan, math.inf):
        dirty = arrays.copy()
        for array, row in rows:
            dirty[array, row] = dirt
        assert_equal(found(dirty), wanted)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_row_of_equal_ids_has_no_loss(library: Any) -> None:
    """All columns are accidental hits."""
    x, y = RNG.normal(size=(2, 4, 3))
    x[2] = y[1] = math.nan
    found = value_and_gradients(lambda x, y: pnce.two_tower(x, y, ids=library(np.full(4, 7))), *map(library, (x, y)))
    assert all(np.all(z == 0) for z in found)


OBJECTIVES: dict[str, Any] = {
    "square": lambda row: (row.log_odds + 1.0) ** 2,
    "hinge": pnce.objectives.Pairwise(lambda s: (1.0 - s) ** 2, lambda s: (1.0 + s) ** 2),
    "hard_negatives": pnce.objectives.hard_negatives(),
    "triplet": pnce.objectives.triplet(margin=4.0),
}


@pytest.mark.parametrize("similarity", ["cosine", "cauchy", lambda x, y: x @ y.T])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_row_of_weight_0_is_left_out_of_other_objectives(objective: str, similarity: Any) -> None:
    x, y = RNG.normal(size=(2, 4, 3))
    weights = np.asarray([1.0, 0.0, 2.0, 1.0])

    def loss(x: Any, y: Any) -> Any:
        return pnce.contrast(x, y, objective=OBJECTIVES[objective], similarity=similarity, weights=weights)

    wanted = value_and_gradients(loss, x, y)
    for _ in range(3):  # also from a plan and a program
        x[1] = math.nan
        assert_equal(value_and_gradients(loss, x, y), wanted)


def test_a_weight_of_0_has_the_gradient_of_its_row() -> None:
    """A finite row stays, also where entries cannot be read: examples are reweighted by the derivatives at 0."""
    x, y = map(jnp.asarray, RNG.normal(size=(2, 4, 3)))
    rows = pnce.info_nce(x, y, reduction="none")
    found = jax.jit(jax.grad(lambda w: pnce.info_nce(x, y, weights=w, reduction="sum")))(jnp.zeros(4))
    np.testing.assert_allclose(found, rows, rtol=1e-12)


def test_nan_is_seen_where_a_row_of_weight_0_counts() -> None:
    """The weights of DCLW depend on all positives; in a symmetric loss, the row is a negative of others."""
    scores = RNG.normal(size=(4, 4))
    weights = np.asarray([1.0, 0.0, 2.0, 1.0])
    scores[1, 1] = math.nan
    assert np.isnan(pnce.from_scores.dclw(scores, temperature=1.0, weights=weights))
    x, y = RNG.normal(size=(2, 4, 3))
    x[1] = math.nan
    assert np.isnan(pnce.clip(x, y, logit_scale=2.0, weights=weights))


@pytest.mark.parametrize("name", [name for name in LOSSES if leaving_out(name, "weight")])
def test_a_mean_does_not_depend_on_the_unit_of_the_weights(name: str) -> None:
    """Nor do its gradients: weights of 1e-30, as in 1e-30 times the gradient of a saturated row, do not underflow."""
    variant = started("numpy")
    if name in {"angle", "cosent", "from_scores.cosent"}:
        return  # weights are multiplicities

    def found(unit: float) -> list[np.ndarray]:
        case = example(name, N)
        arrays = {key: variant.floats(x, "float32") for key, x in case.arguments.items()}
        arrays |= {key: variant.array(x) for key, x in case.constants.items()}
        weights = np.asarray([1.0, 0.5, 0.0, 2.0], dtype=np.float32) * np.float32(unit)

        def loss(*numbers: Any) -> Any:
            result = case.call({**arrays, **dict(zip(case.arguments, numbers, strict=True))}, weights=weights)
            return result[0] if isinstance(result, tuple) else result

        return value_and_gradients(loss, *(arrays[key] for key in case.arguments))

    wanted = found(1.0)
    for unit in (2.0**-110, 2.0**110):
        for result, expected in zip(found(unit), wanted, strict=True):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("similarity", ["cosine", "neg_euclidean"])
def test_small_weights_lose_no_gradient_where_entries_cannot_be_read(
    similarity: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.as_tensor(RNG.normal(size=(5, 3)), dtype=torch.float32)
    weights = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0])

    def found(unit: float) -> list[np.ndarray]:
        def loss(x: Any) -> Any:
            named = {"temperature": 0.1, "similarity": similarity, "weights": weights * unit}
            return pnce.info_nce(x, x.detach() + 0.01, **named)

        return value_and_gradients(loss, x)

    wanted = found(1.0)
    assert np.all(np.abs(wanted[1]).sum(axis=1)[[0, 1, 3, 4]] > 0)
    cannot_be_read(monkeypatch)
    for unit in (1.0, 1e-30):
        for result, expected in zip(found(unit), wanted, strict=True):
            np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("log_scale", [88.0, 89.0, 1000.0])
def test_the_scale_of_clip_is_finite_or_no_loss(log_scale: float) -> None:
    """The gradient of an infinite exponential is no number, so that the loss is none."""
    x, y = torch.as_tensor(RNG.normal(size=(2, 4, 3)), dtype=torch.float32)
    learned = torch.tensor(log_scale, requires_grad=True)
    found = jax.jit(jax.value_and_grad(lambda s: pnce.clip(*map(jnp.asarray, (x, y)), logit_scale=jnp.exp(s))))
    if log_scale < 89:
        pnce.clip(x, y, logit_scale=learned.exp()).backward()
        assert learned.grad is not None
        assert not math.isnan(float(learned.grad))
    else:
        with pytest.raises(ValueError, match=r"^logit_scale: expected a finite number"):
            pnce.clip(x, y, logit_scale=learned.exp())
    value, gradient = found(jnp.asarray(log_scale, dtype=jnp.float32))
    assert math.isnan(float(value)) == math.isnan(float(gradient)) == (log_scale >= 89)


BOUNDS = {name: case for name, case in OF_SCORES.items() if name.startswith("bounds.") and "mask" in options_of(name)}


def bound_of(name: str, mask: Any = None) -> Callable[[Any], Any]:
    """Return a bound as a function of its scores."""
    arrays = {key: np.asarray(x) for key, x in BOUNDS[name].arguments.items()}
    return lambda scores: BOUNDS[name].call({**arrays, "scores": scores}, mask=mask)


@pytest.mark.parametrize("name", BOUNDS)
def test_no_pair_is_no_information(name: str) -> None:
    scores = np.asarray(BOUNDS[name].arguments["scores"])
    value, gradient = pnce.value_and_grad(bound_of(name, np.zeros_like(scores, dtype=bool)))(scores)
    assert value == 0.0
    np.testing.assert_array_equal(gradient, np.zeros_like(scores))
    assert bound_of(name)(scores) != 0.0


PARTLY = np.asarray([[True, True, False, True, False], [True] * 5, [False, False, True, False, False]])


@pytest.mark.parametrize("name", BOUNDS)
def test_scores_of_a_bound_that_take_no_part_may_hold_anything(name: str) -> None:
    """They affect neither value nor gradient, and cause no warning."""
    clean = np.asarray(BOUNDS[name].arguments["scores"])
    mask = PARTLY[:, : clean.shape[1]]
    bound = pnce.value_and_grad(bound_of(name, mask))
    wanted, expected = bound(np.where(mask, clean, 0.0))
    for dirt in (math.nan, math.inf, -math.inf, 1e300):
        value, gradient = bound(np.where(mask, clean, dirt))
        assert value == wanted, dirt
        np.testing.assert_array_equal(gradient, expected, err_msg=str(dirt))
    assert np.all(expected[~mask] == 0.0)
    assert np.any(expected != 0.0)


def test_an_infinite_loss_without_weight_is_no_contribution() -> None:
    (rows, columns), weights = np.random.default_rng(11).normal(size=(2, 8, 3)), np.ones(8)
    rows[0], columns[1], weights[0] = 1e200, 1e200, 0.0  # their product overflows
    loss = functools.partial(pnce.contrast, rows, columns, objective="info_nce", similarity="dot")
    with np.errstate(over="ignore"):
        assert loss(reduction="none")[0] > 1e300
        for pairing in ("diagonal", pnce.pairings.labels(np.arange(8))):
            dense, streamed = (loss(pairing=pairing, weights=weights, block_size=size) for size in (None, 3))
            assert np.isfinite(dense)
            assert streamed == pytest.approx(dense, rel=1e-12)


SIZE = 6
U, V = np.random.default_rng(7).normal(size=(2, SIZE, 5))
JUDGED_ROWS, JUDGED_COLUMNS = np.random.default_rng(8).normal(size=(2, SIZE, 3))


def with_nan(x: np.ndarray, *where: int, number: float = math.nan) -> np.ndarray:
    x = np.array(x)
    x[where] = number
    return x


def weighted_teacher(u: Any, v: Any, rows: Any, columns: Any, **options: Any) -> Any:
    pairing = pairings.weighted(pairings.teacher(rows, columns, temperature=0.5), np.ones((len(rows), len(columns))))
    return pnce.contrast(u, v, objective="info_nce", pairing=pairing, **options)


JUDGED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "distillation": (pnce.distillation, {}),
    "sharp": (pnce.distillation, {"teacher_temperature": 0.01}),
    "cwcl": (pnce.distillation, {"teacher_temperature": None}),
    "gist": (pnce.gist_embed, {}),
    "relative": (pnce.gist_embed, {"margin": 0.1, "margin_strategy": "relative"}),
    "weighted": (weighted_teacher, {}),
}


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("name", JUDGED)
def test_masked_rows_and_columns_may_hold_anything(
    name: str, block_size: int | None, bad: float, *, symmetric: bool
) -> None:
    gone, kept = 2, np.asarray([0, 1, 3, 4, 5])
    mask = np.ones((SIZE, SIZE), dtype=bool)
    mask[gone], mask[:, gone] = False, False
    loss, own = JUDGED[name]
    options = {**own, "temperature": 0.5, "symmetric": symmetric, "block_size": block_size}

    def run(u: np.ndarray, v: np.ndarray, *judged: np.ndarray, **further: Any) -> tuple[Any, Any]:
        return pnce.value_and_grad(lambda u, v: loss(u, v, *judged, **options, **further), argnums=(0, 1))(u, v)

    wanted, expected = run(*(x[kept] for x in (U, V, JUDGED_ROWS, JUDGED_COLUMNS)))
    rows, columns = with_nan(JUDGED_ROWS, gone, number=bad), with_nan(JUDGED_COLUMNS, gone, 1, number=bad)
    for judged in ((rows, JUDGED_COLUMNS), (JUDGED_ROWS, columns), (rows, columns)):
        value, gradients = run(U, V, *judged, mask=mask)
        np.testing.assert_allclose(value, wanted, rtol=1e-13)
        for gradient, of_kept in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(gradient[kept], of_kept, rtol=1e-10, atol=1e-14)
        assert not any(gradient[gone].any() for gradient in gradients)
