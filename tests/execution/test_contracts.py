"""Laws of the parts of a sweep: sources of scores, sets of tiles, and families of row sums."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce import pairings
from portable_nce._execution.choice import Wanted, one_sided_over
from portable_nce._execution.families import Softmax
from portable_nce._execution.inputs import Inputs
from portable_nce._execution.matrix import ScoreMatrix, matrix_of_scores
from portable_nce._execution.operands import operands_of
from portable_nce._execution.pair_terms import PairsSpec, PairTerms
from portable_nce._execution.reweighted import Reweighted
from portable_nce._execution.row_losses import ScoreFacts
from portable_nce._execution.scores import Channels, Products
from portable_nce._execution.specs import NeedGrad
from portable_nce._execution.sweep import _OneSided
from portable_nce._execution.tiling import Tiling
from portable_nce.objectives import Term
from portable_nce.pairings import Members

N, K, D = 5, 7, 3
PLAN = pnce.objectives.info_nce()
ALL = NeedGrad(gradients=True, rows=True, columns=True, partners=True, scale=True)
SINE = pnce.similarities.elementwise("cosine", np.sin, np.cos)


def matrix_of(similarity: Any, pairing: Any, *shape: int) -> ScoreMatrix:
    """Score matrix of random embeddings, (n, D) and (k, D), or of their tokens."""
    rng = np.random.default_rng(11)
    n, k, *tokens = shape
    x, y = rng.normal(size=(n, *tokens, D)), rng.normal(size=(k, *tokens, D))
    if tokens:
        similarity, (x, y) = similarity.prepare.flattened({"x": x, "y": y})
    chosen, rows, columns, _ = operands_of(pnce.similarities.resolve(similarity), x, y, 2.0)
    return ScoreMatrix(chosen, rows, columns, pairing)


LABELS = np.asarray([0, 1, 0, 2, 1]), np.asarray([1, 0, 2, 0, 1, 1, 2])
MATRICES = {
    "products": lambda: matrix_of("dot", pairings.diagonal(), N, K),
    "products of a queue": lambda: matrix_of("dot", pairings.queue(valid=np.arange(N + K) != N), N, N + K),
    "products of views": lambda: matrix_of("cosine", pairings.two_views(), 6, 6),
    "scores": lambda: matrix_of_scores(np.random.default_rng(2).normal(size=(N, K)), pairings.diagonal(), None),
    "distances": lambda: matrix_of("neg_euclidean", pairings.diagonal(), N, K),
    "squared distances": lambda: matrix_of("neg_sq_euclidean", pairings.diagonal(), N, K),
    "functions of cosines": lambda: matrix_of(SINE, pairings.diagonal(), N, K),
    "distances in a mask": lambda: matrix_of("neg_euclidean", pairings.labels(*LABELS), N, K),
    "products in a mask": lambda: matrix_of("dot", pairings.labels(*LABELS), N, K),
    "products in a mask without own pairs": lambda: matrix_of("dot", pairings.labels(LABELS[0]), N, N),
    "tokens": lambda: matrix_of(pnce.similarities.max_sim(), pairings.diagonal(), N, K, 2),
}
BY_PRODUCTS = {
    *("products", "products of a queue", "products of views"),
    *("distances", "squared distances", "functions of cosines"),
}
TILES = {"one tile": 100, "tiles": 3}


def sweep_of(name: str, tile: int, *, moved: Inputs | None = None) -> tuple[_OneSided, Inputs]:
    """A one-sided sweep in one block of rows, and its inputs; or a sweep of moved operands."""
    prepared = one_sided_over(MATRICES[name](), Wanted(PLAN))
    inputs = Inputs.of(prepared.spec.group_sizes, prepared.arrays).with_constants() if moved is None else moved
    n_rows, n_columns = inputs.shape
    sizes = Tiling(n_rows, min(tile, n_columns) if name in BY_PRODUCTS else n_columns)
    return _OneSided(prepared.spec._replace(sizes=sizes), inputs, ALL), inputs


def block_of(engine: _OneSided) -> Inputs:
    """The only block of rows."""
    return Inputs.of(engine.by_block.group_sizes, engine.by_block.flat)


def scores_of(engine: _OneSided) -> list[tuple[Any, Any]]:
    """The scores of each tile, and what the source needs of them."""
    source = engine.step.source
    rows = source.block_operands(block_of(engine))
    if isinstance(source, Channels):
        return [source.scores(rows, 0)]
    tiles = [source.negative_scores(rows, k) for k in range(len(source.tiles))]
    # Empty slots of a queue have the lowest score.
    return [(tuple([np.where(x < -1e100, 0.0, x) for x in scores]), kept) for scores, kept in tiles]


def moved_by(arrays: tuple[Any, ...], directions: list[Any], step: float) -> tuple[Any, ...]:
    """Arrays, the first ones moved along directions."""
    moved = [x + step * d for x, d in zip(arrays, directions, strict=False)]
    return (*moved, *arrays[len(directions) :])


@pytest.mark.internals
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
@pytest.mark.parametrize("name", MATRICES)
def test_the_pullback_of_a_source_is_the_adjoint_of_its_scores(name: str, tile: int) -> None:
    """And it leaves the operands as they are."""
    engine, inputs = sweep_of(name, tile)
    source: Any = engine.step.source
    kind = type(source)
    assert kind is (Products if name in BY_PRODUCTS else Channels)
    before, rng = [x.copy() for x in inputs.flat], np.random.default_rng(5)
    of_rows, of_columns = (x[:n] for x, n in zip(inputs[:2], source.n_differentiated, strict=True))
    along = [[rng.normal(size=x.shape) for x in side] for side in (of_rows, of_columns)]
    cotangents = [[rng.normal(size=x.shape) * (x != 0.0) for x in scores] for scores, _ in scores_of(engine)]

    def total(step: float) -> float:
        rows, columns = (moved_by(x, d, step) for x, d in zip(inputs[:2], along, strict=True))
        other, _ = sweep_of(name, tile, moved=inputs._replace(rows=rows, columns=columns))
        pairs = zip(cotangents, scores_of(other), strict=True)
        return sum(float(np.sum(c * x)) for own, (scores, _) in pairs for c, x in zip(own, scores, strict=True))

    found, low, rows = 0.0, 0, source.block_operands(block_of(engine))
    for k, (own, (_, kept)) in enumerate(zip(cotangents, scores_of(engine), strict=True)):
        to_rows, to_columns = source.pullback(rows, k, tuple(x.copy() for x in own), None, kept, None)
        high = low + own[0].shape[1]
        found += sum(float(np.sum(x * d)) for x, d in zip(to_rows, along[0], strict=True))
        for x, d in zip(to_columns, along[1], strict=True):
            found += float(np.sum(x * (d[low:high, ...] if name in BY_PRODUCTS else d)))
        low = high
    assert found == pytest.approx((total(1e-6) - total(-1e-6)) / 2e-6, rel=1e-7)
    for x, old in zip(inputs.flat, before, strict=True):
        np.testing.assert_array_equal(x, old)


@pytest.mark.internals
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
@pytest.mark.parametrize("name", [name for name in MATRICES if name != "scores"])
def test_the_tiles_of_a_matrix_partition_its_pairs(name: str, tile: int) -> None:
    """Each pair is in one tile; it is a negative there if the rule of the pairing says so."""
    engine, inputs = sweep_of(name, tile)
    matrix = MATRICES[name]()
    rule, whole = matrix.pair_rule()
    wanted = pairings.members_of(matrix.pairing.rule, tile_of(rule, whole))
    found = []
    for k, (scores, _) in enumerate(scores_of(engine)):
        sets = engine.step.sets.of(k, 0, block_of(engine))
        if isinstance(sets, Members):
            np.testing.assert_array_equal(sets.positives, np.broadcast_to(wanted.positives, matrix.shape))
        taken = sets.negatives if isinstance(sets, Members) else sets(np.ones_like(scores[0]), 0.0) == 1
        found.append(np.broadcast_to(taken, scores[0].shape))
    negatives = np.concatenate(found, axis=1)
    assert negatives.shape == inputs.shape
    expected = np.broadcast_to(wanted.negatives, matrix.shape)
    if "queue" in name:  # the columns of the rows are partners, and empty slots have scores of -inf
        expected = np.ones_like(negatives)
    np.testing.assert_array_equal(negatives, expected)


def tile_of(rule: Any, inputs: Inputs) -> pairings.Tile:
    """The whole matrix as a tile of its rule."""
    n_rows, n_columns = rule.shape or inputs.shape
    labels = tuple(x[:, None] for x in inputs.row_labels), tuple(x[None, :] for x in inputs.column_labels)
    i, j = np.arange(n_rows)[:, None], np.arange(n_columns)[None, :]
    return pairings.Tile(i, j, n_rows, n_columns, *labels, inputs.pairs, np.float64, None)


TERMS = (Term(lambda s: s**2, lambda s: (2.0 * s,)), Term(lambda s: s**3))
FAMILIES: dict[str, Any] = {
    "softmax": lambda: Softmax(np, PLAN, ScoreFacts()),
    "softmax without a shift": lambda: Softmax(np, PLAN, ScoreFacts(small=True)),
    "pairs": lambda: PairTerms(np, PairsSpec(TERMS, "pairs"), ScoreFacts()),
    "reweighted": lambda: Reweighted(np, pnce.objectives.hard_negatives(beta=1.0, tau_plus=0.1), ScoreFacts()),
    "reweighted by hardness": lambda: Reweighted(
        np, pnce.objectives.hard_negatives(beta=0.5, tau_plus=0.1), ScoreFacts()
    ),
}


@pytest.mark.internals
@pytest.mark.parametrize("name", FAMILIES)
def test_sums_of_a_family_do_not_depend_on_the_order_of_merging(name: str) -> None:
    """Nor on a tile without negatives; and masked tiles without a known bound may not be overwritten."""
    rng = np.random.default_rng(3)
    scores = 20.0 * rng.normal(size=(4, 9)) if name == "softmax" else rng.normal(size=(4, 9))
    positives = np.zeros((4, 9), dtype=bool)
    positives[:, 0] = True
    block = Inputs(parameters=(np.full((4,), -5.0),) if "reweighted" in name else ())

    def part(low: int, high: int, *, empty: bool = False) -> Any:
        own, family = scores[:, low:high].copy(), FAMILIES[name]()
        members = Members(positives[:, low:high], np.logical_not(positives[:, low:high]))
        if empty:
            members = Members(np.zeros_like(members.positives), np.zeros_like(members.negatives))
        found = family.add_masked((own,), members, block)
        if not family.facts.small:
            np.testing.assert_array_equal(own, scores[:, low:high])
        return found

    family = FAMILIES[name]()

    def values(*parts: Any) -> Any:
        total = parts[0]
        for other in parts[1:]:
            total = family.merge([total, other])[0]
        return family.finish(total, part(0, 9)[2], block).values

    whole = values(part(0, 9)[0])
    first, second, third, nothing = part(0, 3)[0], part(3, 5)[0], part(5, 9)[0], part(2, 4, empty=True)[0]
    assert np.all(np.isfinite(whole))
    for parts in (
        (first, second, third),
        (third, first, second),
        (first, family.merge([second, third])[0]),
        (first, nothing, second, third),
        (nothing, first, second, third),
    ):
        np.testing.assert_allclose(values(*parts), whole, rtol=1e-13)
    assert not math.isnan(float(whole.sum()))


@pytest.mark.internals
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_cotangents_of_reweighted_negatives_do_not_depend_on_the_tiles(beta: float) -> None:
    """The exponentials of each tile are relative to its own largest score."""
    scores = 5.0 * np.random.default_rng(3).normal(size=(4, 9))
    positives = np.broadcast_to(np.arange(9) == 0, (4, 9))
    block = Inputs(parameters=(np.full((4,), -5.0),))
    family = Reweighted(np, pnce.objectives.hard_negatives(beta=beta, tau_plus=0.1), ScoreFacts())
    _, _, of_positives = family.add_masked((scores,), Members(positives, np.logical_not(positives)), block)

    def cotangents(*bounds: int) -> Any:
        parts = []
        for low, high in pairwise(bounds):
            own = positives[:, low:high]
            parts.append(family.add_masked((scores[:, low:high],), Members(own, np.logical_not(own)), block)[:2])
        total, rescales = family.merge([sums for sums, _ in parts])
        losses = family.finish(total, of_positives, block)
        found = [
            family.tile_cotangent(residual, losses, rescale)
            for (_, residual), rescale in zip(parts, rescales, strict=True)
        ]
        return np.concatenate([matrix * factor[:, None] for matrix, factor in found], axis=1)

    np.testing.assert_allclose(cotangents(0, 2, 3, 9), cotangents(0, 9), rtol=1e-12)
