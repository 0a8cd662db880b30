"""Score matrices: the choice of the sweep, equal results of each, and matrices in parts."""

from __future__ import annotations

import functools
import importlib
import itertools
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce._core.numerics import largest_score
from portable_nce._core.reduction import Reduction
from portable_nce._execution import choice, tiling
from portable_nce._execution.evaluate import evaluate
from portable_nce._execution.matrix import ScoreMatrix, Shard
from portable_nce.pairings import several_views
from portable_nce.similarities import resolve
from portable_nce.testing import CASES
from portable_nce.testing.variants import differentiate

from calls import Call
from loss_table import losses

pytestmark = pytest.mark.usefixtures("jax_x64")

RNG = np.random.default_rng(7)
PRODUCTS, BOTH_SIDES = "one-sided sweep of inner products", "two-sided sweep of inner products"
MASKS = "sweep with masks"
TWO_PASSES = {
    "dclw": "its weights are a softmax over all positives; where these are on a line, one pass is enough",
    "joint_info_nce": "what two matrices have in one softmax is known when both have been summed up",
    "sogclr": "the losses of the rows are its state, which it returns",
    "from_scores.dclw": "as dclw",
}
"""Losses that take two passes even if they are reduced, and why."""


def sweeps_of(function: Any, *arrays: Any) -> set[str]:
    """Return the names of the sweeps of a loss, each of one pass."""
    sweeps = pnce.explain(function, *arrays).sweeps
    assert all(sweep.passes == 1 for sweep in sweeps)
    return {sweep.name for sweep in sweeps}


@pytest.mark.parametrize("name", losses())
def test_every_loss_takes_one_pass_or_has_a_reason(name: str) -> None:
    case = next(case for case in CASES if case.loss == name)
    found = pnce.explain(case.function, *map(np.asarray, (*case.arguments.values(), *case.constants.values())))
    assert all(sweep.passes == 1 for sweep in found.sweeps) or name in TWO_PASSES, found


@pytest.mark.internals
@pytest.mark.parametrize(
    "name",
    [
        *("info_nce", "info_nce index", "flat_nce", "dcl", "dclw", "siglip", "n_tuple", "moco queue", "moco_v3"),
        *("nnclr queue, views", "nt_xent three views", "nt_xent queue"),
    ],
)
def test_losses_of_inner_products_go_by_products(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "_ROWS", 4)  # small matrices of labels are masked
    call = Call(name, rows=8, block_size="auto")
    assert sweeps_of(call, *call.numbers) <= {PRODUCTS, BOTH_SIDES, "search"}


def test_losses_of_rows_and_columns_take_both_from_the_same_tiles() -> None:
    x = RNG.normal(size=(1030, 4))
    assert sweeps_of(lambda: pnce.contrast(x[:8], x[8:16], objective=lambda row: row.log_odds**2)) == {PRODUCTS}
    assert sweeps_of(lambda: pnce.clip(x, x[::-1].copy(), logit_scale=3.0)) == {BOTH_SIDES}
    assert sweeps_of(lambda: pnce.nt_xent(x[:515], x[515:])) == {BOTH_SIDES}
    assert sweeps_of(lambda: pnce.supcon(x, np.arange(1030) // 5)) == {PRODUCTS}


@pytest.mark.internals
def test_labels_are_masks_where_classes_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    x = RNG.normal(size=(1030, 4))
    monkeypatch.setattr(tiling, "_ROWS", 32)
    few, many = np.arange(1030) % 2, RNG.permutation(np.arange(1030) // 3)
    assert sweeps_of(lambda: pnce.supcon(x, few)) == {MASKS}
    assert sweeps_of(lambda: pnce.supcon(x, many)) == {PRODUCTS}


@pytest.mark.parametrize("block_size", ["auto", None, 100])
@pytest.mark.parametrize("form", ["separate", "pooled", "each"])
@pytest.mark.parametrize(("views", "samples"), [(3, 1), (3, 200), (4, 150)])
def test_several_views_are_labels_whose_places_are_known(views: int, samples: int, form: Any, block_size: Any) -> None:
    batch = RNG.normal(size=(views * samples, 8))
    weights = RNG.uniform(size=len(batch))
    labels = pnce.pairings.labels(np.tile(np.arange(samples), views))
    whole = functools.partial(pnce.contrast, objective=pnce.objectives.info_nce(multi_positive=form), pairing=labels)
    for temperature in (0.1, 0.01):
        options: dict[str, Any] = {"temperature": temperature, "weights": weights}
        several = functools.partial(pnce.nt_xent, multi_positive=form, block_size=block_size, **options)
        value, gradients = differentiate(several, np.split(batch, views))
        expected, gradient = pnce.value_and_grad(functools.partial(whole, block_size=None, **options))(batch)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(np.concatenate(gradients), gradient, rtol=0, atol=1e-12 * np.max(abs(gradient)))


@pytest.mark.internals
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("temperature", [1.0, 0.01])
@pytest.mark.parametrize("form", ["each", "pooled", "separate"])
@pytest.mark.parametrize("lowest", [2, -4, None])
def test_sorted_labels_give_what_masks_give(
    form: Any,
    temperature: float,
    reduction: pnce.typing.ReductionName,
    lowest: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows against columns without the lowest or without the highest labels of rows, or against themselves."""
    own = lowest is None
    rng = np.random.default_rng(23)
    x, y = rng.normal(size=(40, 4)), rng.normal(size=(53, 4))
    of_rows, of_columns = rng.integers(0, 14, size=40), rng.integers(0, 15, size=53) + (lowest or 0)
    weights = rng.uniform(size=40)
    pairing = pnce.pairings.labels(of_rows, *([] if own else [of_columns]))
    objective = pnce.objectives.info_nce(multi_positive=form)
    options: dict[str, Any] = {"objective": objective, "pairing": pairing, "temperature": temperature}

    def loss(block_size: Any, a: Any, b: Any, w: Any) -> Any:
        columns = None if own else b
        values = pnce.contrast(a, columns, weights=w, reduction=reduction, block_size=block_size, **options)
        return (values * np.arange(1.0, 41.0)).sum() if reduction == "none" else values

    expected, slopes = differentiate(functools.partial(loss, None), (x, y, weights))
    monkeypatch.setattr(tiling, "_ROWS", 5)
    value, gradients = differentiate(functools.partial(loss, "auto"), (x, y, weights))
    assert {sweep.name for sweep in pnce.explain(loss, "auto", x, y, weights).sweeps} == {PRODUCTS}
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    for ours, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(ours, slope, rtol=1e-10, atol=1e-12 * (1 + np.max(np.abs(slope))))


@pytest.mark.internals
@pytest.mark.parametrize("block_size", [None, 3, "auto"])
@pytest.mark.parametrize(
    "name", ["nt_xent", "nt_xent, queue", "three views", "dclw", "flat_nce", "siglip", "supcon, queue"]
)
def test_further_columns_go_by_products(
    name: str, block_size: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mask of the matrix is made; the results equal those with a mask that is True everywhere."""
    draw = np.random.default_rng(11)
    n, k = 7, 9
    a, b, c = (draw.normal(size=(n, 5)) for _ in range(3))
    keys, labels = draw.normal(size=(k, 5)), np.arange(k) % 3
    queue = pnce.queue_push(pnce.queue_init(keys, 12), keys)
    full = pnce.queue_push(pnce.queue_init(keys, k, labels=labels), keys, labels=labels)
    scale: dict[str, Any] = {"logit_scale": 3.0, "logit_bias": -1.0, "negative_only": True}
    calls: dict[str, tuple[Any, tuple[int, int]]] = {
        "nt_xent": (functools.partial(pnce.nt_xent, keys=keys), (2 * n, 2 * n + k)),
        "nt_xent, queue": (functools.partial(pnce.nt_xent, keys=queue), (2 * n, 2 * n + 12)),
        "three views": (lambda a, b, **o: pnce.nt_xent(a, b, c, keys=keys, **o), (3 * n, 3 * n + k)),
        "dclw": (functools.partial(pnce.dclw, keys=keys), (2 * n, 2 * n + k)),
        "flat_nce": (functools.partial(pnce.flat_nce, keys=keys), (2 * n, 2 * n + k)),
        "siglip": (functools.partial(pnce.siglip, **scale), (n, n)),
        "supcon, queue": (lambda a, _, **o: pnce.supcon(a, np.arange(n) % 3, keys=full, **o), (n, k)),
    }
    call, shape = calls[name]

    def result(**options: Any) -> Any:
        return pnce.value_and_grad(lambda a, b: call(a, b, block_size=block_size, **options), argnums=(0, 1))(a, b)

    value, gradients = result(mask=np.ones(shape, dtype=np.bool_))
    with monkeypatch.context() as patch:
        if name != "supcon, queue":  # labels are sorted only in large matrices
            patch.setattr(choice, "by_rule", None)
        other, slopes = result()
    np.testing.assert_allclose(other, value, rtol=1e-13)
    for slope, gradient in zip(slopes, gradients, strict=True):
        np.testing.assert_allclose(slope, gradient, rtol=1e-11, atol=1e-13)


PAIRINGS: dict[str, Any] = {
    "diagonal": pnce.pairings.diagonal,
    "two views": pnce.pairings.two_views,
    "three views": lambda: several_views(3),
    "queue": pnce.pairings.queue,
    "queue of which some is valid": lambda: pnce.pairings.queue(np.arange(20) % 4 != 1),
    "index": lambda: pnce.pairings.index(np.asarray([3, 0, 0, 11, -1, 5, 7, 7, 2, 1, 9, 10])),
    "labels": lambda: pnce.pairings.labels(np.arange(12) % 5, np.arange(15) % 5),
    "own labels": lambda: pnce.pairings.labels(np.arange(12) % 5),
    "explicit": lambda: pnce.pairings.explicit((np.arange(12)[:, None] + np.arange(15)) % 4 == 0),
}
OBJECTIVES: dict[str, Any] = {
    "info_nce": pnce.objectives.info_nce(),
    "flat_nce": pnce.objectives.flat_nce(),
    "info_nce_anchor": pnce.objectives.info_nce_anchor(n_columns=15),
    "hard_negatives": pnce.objectives.hard_negatives(beta=0.5, tau_plus=0.05, floor=-3.0),
    "reweighted by nothing": pnce.objectives.hard_negatives(beta=0.0, tau_plus=0.05, floor=-3.0),
    "logistic": pnce.objectives.logistic(),
    "contrastive": pnce.objectives.contrastive(margin=2.0),
    "triplet": pnce.objectives.triplet(margin=1.0, mining="batch_hard"),
    "all triplets": pnce.objectives.triplet(margin=1.0),
}
KINDS = [*itertools.product(PAIRINGS, OBJECTIVES)]
"""All pairs; a short run covers each value of either side."""


def part_of(pairing: pnce.pairings.Pairing, rows: np.ndarray, columns: np.ndarray) -> pnce.pairings.Pairing:
    """The pairing of some rows of a matrix with all its columns, in some order."""
    return pairing.with_arrays(
        rows=tuple(x[rows] for x in pairing.rows),
        columns=tuple(x[columns] for x in pairing.columns),
        pairs=tuple(x[rows][:, columns] for x in pairing.pairs),
    )


@pytest.mark.parametrize("library", ["numpy"])
@pytest.mark.parametrize("block_size", [None, "auto", 1, 2, 5])
@pytest.mark.parametrize("cuts", [(0, 12), (0, 1, 12), (0, 5, 6, 9, 12), (0, 4, 8, 12)], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=", ".join)
def test_the_rows_of_a_matrix_may_be_given_in_parts(
    kind: tuple[str, str], cuts: tuple[int, ...], block_size: Any, library: str
) -> None:
    """Losses and gradients of some rows against all columns add up to those of the whole matrix.

    With several views, a part has the rows of some samples in each view; the columns come part by part, starting with
    those of the rows.
    """
    asarray, (pairing, objective) = importlib.import_module(library).asarray, kind
    chosen = PAIRINGS[pairing]()
    views = {"two views": 2, "three views": 3}.get(pairing, 1)
    n_rows = 12 * views
    n_columns = 20 if "queue" in pairing else {"labels": 15, "explicit": 15}.get(pairing, n_rows)
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(n_rows, 3)), rng.normal(size=(n_columns, 3))
    numbers = [np.concatenate([np.arange(a, b) + 12 * k for k in range(views)]) for a, b in itertools.pairwise(cuts)]
    order = np.concatenate(numbers) if n_columns == n_rows else np.arange(n_columns)

    def loss(own: np.ndarray, first: int) -> Any:
        at = np.roll(order, -first) if n_columns == n_rows else order
        part: Shard | None = Shard(asarray(own), asarray(at), (n_rows, n_columns), len(own))
        if "queue" in pairing:  # each row has its key: some rows are a whole matrix
            at, part = np.concatenate([own, order[n_rows:]]), None

        def of(rows: Any, columns: Any) -> Any:
            how: dict[str, Any] = {"block_size": block_size, "bound": largest_score(x, y), "shard": part}
            matrix = ScoreMatrix(resolve("dot"), (rows,), (columns,), part_of(chosen, own, at), **how)
            return evaluate(OBJECTIVES[objective], matrix, Reduction("sum"))[0]

        value, (of_rows, of_columns) = pnce.value_and_grad(of, (0, 1))(asarray(x[own]), asarray(y[at]))
        everywhere = np.zeros_like(y)
        everywhere[at] = np.asarray(of_columns)
        return np.asarray(value), (np.asarray(of_rows), everywhere)

    def whole(own: Any, columns: Any) -> Any:
        matrix = ScoreMatrix(resolve("dot"), (own,), (columns,), chosen, block_size=None)
        return evaluate(OBJECTIVES[objective], matrix, Reduction("sum"))[0]

    value, (to_rows, to_columns) = pnce.value_and_grad(whole, (0, 1))(x, y)
    firsts = np.cumsum([0, *map(len, numbers)])
    parts = [loss(own, int(first)) for own, first in zip(numbers, firsts, strict=False)]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-13)
    close(sum(part[0] for part in parts), value)
    for own, part in zip(numbers, parts, strict=True):
        close(part[1][0], to_rows[own])
    close(sum(part[1][1] for part in parts), to_columns)


@pytest.mark.parametrize("library", ["torch", "jax.numpy", "array_api_strict"])
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("objective", ["info_nce", "logistic"])
@pytest.mark.parametrize("pairing", ["diagonal", "two views", "three views"])
def test_every_library_sweeps_parts(pairing: str, objective: str, block_size: Any, library: str) -> None:
    test_the_rows_of_a_matrix_may_be_given_in_parts((pairing, objective), (0, 5, 6, 12), block_size, library)
