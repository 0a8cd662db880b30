"""Units of the engine: tiling, sets of tiles, row sums and their merging, and the choice of the sweep."""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce._core import checks
from portable_nce._core.logsumexp import ExpSum, exponentials, merge
from portable_nce._core.numerics import in_range, largest_score
from portable_nce._core.reduction import Reduction
from portable_nce._execution import matrix, products, search, sets, tiling
from portable_nce._execution.channels import channel_of
from portable_nce._execution.evaluate import evaluate
from portable_nce._execution.families import PairsSpec, PairTerms, Softmax, SoftmaxSpec
from portable_nce._execution.inputs import Inputs
from portable_nce._execution.layouts import Layout
from portable_nce._execution.matrix import ScoreMatrix, Shard
from portable_nce._execution.products import Operand
from portable_nce._execution.row_losses import ScoreFacts
from portable_nce._execution.sets import Diagonals, TilePosition
from portable_nce._execution.sweep import sweep
from portable_nce._execution.two_sided import square_sweep
from portable_nce.objectives import Term
from portable_nce.pairings import OnDiagonals, several_views, with_negatives
from portable_nce.similarities import resolve
from portable_nce.testing import CASES
from portable_nce.testing.variants import differentiate

from calls import Call
from catalogue import losses

pytestmark = pytest.mark.usefixtures("jax_x64")

RNG = np.random.default_rng(7)
PLAN = SoftmaxSpec(pnce.objectives.info_nce())


# ------------------------------------------------------------------------------------------------------------- tiling


@pytest.mark.parametrize("block_size", [None, "auto", 1, 7, 100])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (600, 5000), (5000, 600)])
@pytest.mark.parametrize("mode", ["eager", "traced", "compiled", "whole"])
@pytest.mark.parametrize("far", [False, True])
def test_blocks_and_tiles_are_within_the_matrix(
    mode: str, shape: tuple[int, int], block_size: Any, *, far: bool
) -> None:
    rows, columns = shape
    widths: list[dict[str, Any]] = [{}, {"width": 64}, {"width": 64, "tokens": True}]
    for found in (
        tiling.one_sided(rows, columns, block_size, mode=mode, far=far),
        *(tiling.two_sided(rows, rows, block_size, mode=mode, far=far, symmetric=flag) for flag in (False, True)),
        *(tiling.masked(rows, columns, block_size, mode=mode, **width) for width in widths),
    ):
        if isinstance(found.block, tuple):
            assert mode == "compiled"
            assert [low for low, _ in found.block] == [0, *(high for _, high in found.block[:-1])]
            assert found.block[-1][1] == rows
        else:
            assert 1 <= found.block <= rows
        assert isinstance(found.tile, int)
        assert 1 <= found.tile <= max(rows, columns)
        if block_size is None or mode == "whole":
            assert found.block == rows
        elif isinstance(block_size, int) and mode != "compiled":
            assert found.block == min(block_size, rows)
            assert not found.keep


def test_the_number_of_blocks_that_are_compiled_does_not_depend_on_the_batch() -> None:
    blocks = {len(tiling.one_sided(n, n, "auto", mode="compiled", far=False).block) for n in (2100, 4096, 10007)}  # type: ignore[arg-type]
    assert len(blocks) == 1
    assert tiling.one_sided(2048, 2048, "auto", mode="compiled", far=False).block == 2048


def test_tiles_are_kept_up_to_a_size_and_never_where_a_block_size_is_given() -> None:
    kept: set[tuple[int, Any, Any]] = {(8192, "auto", "eager"), (1448, "auto", "traced")}
    left: set[tuple[int, Any, Any]] = {(8193, "auto", "eager"), (64, 32, "eager"), (1449, "auto", "traced")}
    for n, block_size, mode in kept | left:
        found = tiling.two_sided(n, n, block_size, mode=mode, far=False, symmetric=False)
        assert found.keep == ((n, block_size, mode) in kept), (n, block_size, mode)


def test_a_range_is_cut_into_pieces() -> None:
    for start, stop, size in ((0, 10, 3), (0, 9, 3), (4, 10, 6), (4, 11, 2), (0, 3, 5)):
        bounds = tiling.cut(start, stop, size)
        assert [k for low, high in bounds for k in range(low, high)] == list(range(start, stop))
        assert all(0 < high - low <= size for low, high in bounds)


def test_triples_fit_into_memory() -> None:
    assert tiling.triples(10, 10, mode="eager") == 10
    assert tiling.triples(512, 512, mode="eager") == 16
    assert tiling.triples(5000, 5000, mode="eager") == 1
    assert tiling.triples(512, 512, mode="whole") == 512


# -------------------------------------------------------------------------------------------------------------- tiles


@pytest.mark.parametrize("array", [np.array, jnp.asarray], ids=["eager", "traced"])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize(
    "lines",
    [Diagonals(), Diagonals((4,), self_pairs=True), Diagonals((2, 4, 6), self_pairs=True), Diagonals(())],
    ids=str,
)
def test_pairs_that_are_no_negatives_are_excluded_in_every_tile(
    lines: Diagonals, size: int, array: Any, *, by_index: bool
) -> None:
    n = 8
    by_index = by_index and not lines.distances
    index = RNG.integers(0, n, n)
    whole = RNG.normal(size=(n, n))
    expected = whole.copy()
    for row in range(n):
        if by_index:
            expected[row, index[row]] = -1.0
        else:
            expected[row, [(row + distance) % n for distance in lines.distances]] = -1.0
        if lines.self_pairs:
            expected[row, row] = -1.0
    targets = (array(index),) if by_index else ()
    lines = lines._replace(indexed=by_index)
    assert np.all(np.sum(expected == whole, axis=1) == lines.negatives(whole.shape[1]))
    tiles = sets.DiagonalSets(lines, tiling.cut(0, n, 3), n)
    for start, stop in tiling.cut(0, n, size):
        here = Inputs(targets=tuple(x[start:stop] for x in targets))
        for k, (low, high) in enumerate(tiles.bounds):
            found = tiles.of(k, start, here)(array(whole[start:stop, low:high]), -1.0)
            np.testing.assert_array_equal(found, expected[start:stop, low:high])


@pytest.mark.parametrize("array", [np.array, jnp.asarray], ids=["eager", "traced"])
def test_a_line_takes_a_number_for_each_row(array: Any) -> None:
    found = sets.put_diagonal(array(np.zeros((3, 4))), 2, array(np.arange(1.0, 4.0)), TilePosition(1, 0, 4, 4))
    np.testing.assert_array_equal(found, [[0, 0, 0, 1], [2, 0, 0, 0], [0, 3, 0, 0]])


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_products_and_outer_sums_do_not_depend_on_their_order_in_memory(shape: tuple[int, int]) -> None:
    x, y = (RNG.normal(size=(n, 4)) for n in shape)
    np.testing.assert_allclose(products.product(Operand(x), Operand(y)), x @ y.T, rtol=1e-14)
    np.testing.assert_array_equal(products.outer_sum(x[:, 0], y[:, 0]), x[:, :1] + y[:, 0])


@pytest.mark.parametrize(
    "lines",
    [Diagonals(), *(Diagonals(x, self_pairs=True) for x in ((3,), (2, 4))), Diagonals((), indexed=True)],
    ids=str,
)
def test_partners_and_their_cotangents_are_adjoint(lines: Diagonals) -> None:
    n = 6
    columns = RNG.normal(size=(n if lines.self_pairs else n + 4, 2))
    inputs, index = Inputs((np.empty((n, 2)),), (columns,)), np.asarray([9, 0, -1, 9, 7, 12])
    if lines.indexed:
        inputs = inputs._replace(targets=(index,), present=((index >= 0) & (index < n + 4),))
    found = sets.partners(np, lines, inputs)
    for distance, own in zip(lines.distances, found, strict=False):
        np.testing.assert_array_equal(own, columns[[(i + distance) % n for i in range(n)]])
    if lines.indexed:
        np.testing.assert_array_equal(found[0], columns[[9, 0, 0, 9, 7, 0]])
    cotangents = [RNG.normal(size=(n, 2)) for _ in found]
    back = sets.add_partners(np, lines, inputs, np.zeros_like(columns), cotangents)
    expected = sum(np.sum(x * cotangent) for x, cotangent in zip(found, cotangents, strict=True))
    np.testing.assert_allclose(np.sum(back * columns), expected)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5, 1e300])
def test_the_bound_of_the_scores_is_one(scale: float) -> None:
    x, y = RNG.normal(size=(5, 3)) * scale, RNG.normal(size=(7, 3))
    factors, bound = in_range(np, x, y)
    assert factors is None
    assert bound == largest_score(x, y)
    assert np.max(np.abs(x @ y.T)) <= bound
    assert math.isinf(bound) == (scale > 1e9)
    assert largest_score(x, y, x, factor=3.0) == pytest.approx(3.0 * bound)
    assert largest_score(x, y, 2.0 * x) == max(largest_score(x, y), largest_score(x, 2.0 * x))


def test_pieces_are_the_rows_of_their_bounds() -> None:
    x = RNG.normal(size=(4, 2))
    assert products.pieces(x, [(0, 4)])[0] is x
    for bounds in ([(1, 3)], [(0, 3)], [(0, 1), (1, 4)]):
        for (low, high), piece in zip(bounds, products.pieces(x, bounds), strict=True):
            np.testing.assert_array_equal(piece, x[low:high])


def test_scores_with_nan_have_no_bound() -> None:
    nan, one = np.asarray([[math.nan]]), np.ones((1, 1))
    assert math.isinf(largest_score(nan, one))
    assert math.isinf(largest_score(one, nan))
    assert math.isinf(in_range(np, nan, one)[1])


# --------------------------------------------------------------------------------------------------------------- sums


@pytest.mark.parametrize("cuts", [(8,), (1, 8), (3, 5, 8), (0, 8)])
def test_sums_of_parts_are_merged_to_that_of_the_whole(cuts: tuple[int, ...]) -> None:
    scores = RNG.normal(size=(5, 8)) * 500.0
    members = RNG.random((5, 8)) < 0.6
    members[1] = False
    members[2, 3:] = False
    bounds = [slice(a, b) for a, b in zip((0, *cuts[:-1]), cuts, strict=True) if a < b]
    parts = [exponentials(np, scores[:, cut], members[:, cut]) for cut in bounds]
    total, factors = merge(np, [part for part, _ in parts])
    whole, terms = exponentials(np, scores, members)
    assert whole.top is not None
    assert total.top is not None
    found, wanted = total.top + total.log_total(np), whole.top + whole.log_total(np)
    assert wanted[1] == -math.inf
    np.testing.assert_allclose(found, wanted, rtol=1e-15)
    merged = [t if f is None else t * f[:, None] for (_, t), f in zip(parts, factors, strict=True)]
    np.testing.assert_allclose(np.concatenate(merged, axis=1), terms, rtol=1e-13, atol=1e-300)


def test_sums_without_a_shift_are_added() -> None:
    total, factors = merge(np, [ExpSum(None, np.asarray([number])) for number in (1.0, 2.0)])
    assert total.top is None
    assert total.total == 3.0
    assert factors == [None, None]


def test_an_infinite_score_keeps_its_row_apart() -> None:
    scores = np.asarray([[math.inf, 1.0], [0.0, 1.0], [-math.inf, -math.inf]])
    found, terms = exponentials(np, scores, np.ones((3, 2), dtype=bool))
    np.testing.assert_array_equal(found.top, [math.inf, 1.0, -math.inf])
    np.testing.assert_array_equal(found.total == 0, [True, False, True])
    np.testing.assert_array_equal(terms[[0, 2]], 0.0)


# ----------------------------------------------------------------------------------------------------------- families


def finished(family: Any, scores: Any, own: Any, bounds: list[tuple[int, int]]) -> tuple[Any, Any]:
    """The row losses and the cotangents of their scores, computed by tiles."""
    parts = [family.add_negatives(scores[:, low:high] + 0.0, lambda x, _: x, ()) for low, high in bounds]
    total, rescales = family.merge([part for part, _ in parts])
    losses = family.finish(total, family.partner_positives(own, None, ()), (), need_grad=True)
    pulled = [
        residual * (losses.coefficient if rescale is None else losses.coefficient * rescale)[:, None]
        for (_, residual), rescale in zip(parts, rescales, strict=True)
    ]
    return losses.values, np.concatenate([*pulled, losses.to_positive[:, None]], axis=1)


TILES = ([(0, 6)], [(0, 1), (1, 6)], [(0, 2), (2, 4), (4, 6)])


SOFTMAX: dict[str, tuple[Any, Any]] = {
    "info_nce": (pnce.objectives.info_nce(), lambda negative, own: np.logaddexp(0.0, negative - own)),
    "flat_nce": (pnce.objectives.flat_nce(), lambda negative, own: negative - own),
    "user": (
        pnce.objectives.Objective(lambda row: row.log_odds**2 + row.negative - 0.5 * row.positive),
        lambda negative, own: (negative - own) ** 2 + negative - 0.5 * own,
    ),
}
"""Objectives, and their losses as functions of the lse of the negatives and the score of the positive."""


@pytest.mark.parametrize("bounds", TILES)
@pytest.mark.parametrize("unshifted", [False, True])
@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("name", SOFTMAX)
def test_the_softmax_family_gives_losses_and_cotangents(
    name: str, bounds: list[tuple[int, int]], *, unshifted: bool, finite: bool
) -> None:
    objective, formula = SOFTMAX[name]
    scores = RNG.normal(size=(4, 7))  # six negatives and the positive

    def expected(moved: Any) -> Any:
        return formula(np.log(np.sum(np.exp(moved[:, :6]), axis=1)), moved[:, 6])

    facts = ScoreFacts(unshifted, finite, complete=True)
    family = Softmax(np, SoftmaxSpec(objective), facts)
    values, cotangents = finished(family, scores[:, :6], scores[:, 6], bounds)
    np.testing.assert_allclose(values, expected(scores), rtol=1e-12)
    for column, step in enumerate(1e-6 * np.eye(7)):
        slopes = (expected(scores + step) - expected(scores - step)) / 2e-6
        np.testing.assert_allclose(cotangents[:, column], slopes, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("bounds", TILES)
@pytest.mark.parametrize("divide_by", ["rows", "pairs", "active"])
def test_the_family_of_pairs_gives_sums_and_cotangents(divide_by: str, bounds: list[tuple[int, int]]) -> None:
    terms = (Term(lambda s: s**2, lambda s: (2.0 * s,)), Term(lambda s: np.maximum(s, 0.0) ** 3))
    scores, own = RNG.normal(size=(4, 6)), RNG.normal(size=4)
    family = PairTerms(np, PairsSpec(terms, divide_by), ScoreFacts(n_negatives=6), need_grad=True)
    values, cotangents = finished(family, scores, own, bounds)
    positive = np.maximum(scores, 0.0)
    np.testing.assert_allclose(values, own**2 + np.sum(positive**3, axis=1), rtol=1e-12)
    np.testing.assert_allclose(cotangents, np.concatenate([3 * positive**2, 2 * own[:, None]], axis=1), rtol=1e-12)


# ------------------------------------------------------------------------------------------------------------ sweeps

PRODUCTS, BOTH_SIDES = "one-sided sweep of inner products", "two-sided sweep of inner products"
MASKS = "sweep with masks"

TWO_PASSES = {
    "dclw": "its weights are a softmax over all positives; where these are on a line, one pass is enough",
    "joint_info_nce": "what two matrices have in one softmax is known when both have been summed up",
    "sogclr": "the losses of the rows are its state, which it returns",
    "relic": "the divergence of two distributions needs the sums of both before any of its terms",
    "from_scores.dclw": "as dclw",
    "from_scores.relic": "as relic",
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
    options: tuple[tuple[str, Any], ...] = (("far", False),)
    options += (("symmetric", False),) * (structure == "square")
    sizes = tiling.Sizes(of, block_size, "eager", options)
    lines = sets.diagonals_of(OnDiagonals(2 if structure == "views" else 1), 8)
    lines = Diagonals((), indexed=structure == "index") if extra.get(structure) else lines
    layout = Layout(PLAN, lines, sizes, (channel,), inputs.counts, bound=largest_score(rows, columns), mean=True)
    arrays = inputs.flat
    value, number, *gradients = function(layout, *arrays, need_grad=True)
    for wanted in ((True, False), (False, True)):
        flags = wanted if len(gradients) == 2 else (*wanted, wanted[1])
        found = function(layout, *arrays, need_grad=flags)
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
    for module in (checks, matrix, search) if far else ():
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

    def noted(layout: Any, *arrays: Any, need_grad: Any) -> Any:
        asked.append(need_grad)
        return sweep(layout, *arrays, need_grad=need_grad)

    monkeypatch.setattr(matrix, "sweep", noted)
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


@pytest.mark.internals
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("temperature", [1.0, 0.01])
@pytest.mark.parametrize("form", ["each", "pooled", "separate"])
@pytest.mark.parametrize("own", [False, True])
def test_sorted_labels_give_what_masks_give(
    form: Any, temperature: float, reduction: pnce.typing.ReductionName, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    """Rows against other columns or themselves, with classes of one, several and no columns."""
    rng = np.random.default_rng(23)
    x, y = rng.normal(size=(40, 4)), rng.normal(size=(53, 4))
    of_rows, of_columns = rng.integers(0, 14, size=40), rng.integers(2, 17, size=53)
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
            patch.setattr(ScoreMatrix, "by_rule", None)
        other, slopes = result()
    np.testing.assert_allclose(other, value, rtol=1e-13)
    for slope, gradient in zip(slopes, gradients, strict=True):
        np.testing.assert_allclose(slope, gradient, rtol=1e-11, atol=1e-13)
