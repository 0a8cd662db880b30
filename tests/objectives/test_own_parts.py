"""User-defined similarities, pairings and objectives under every execution; and the errors of `contrast`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.utils.checkpoint

import portable_nce as pnce
from portable_nce._execution.matrix import ScoreMatrix
from portable_nce.objectives import Objective, Pairwise, Term
from portable_nce.objectives.base import Weighted
from portable_nce.pairings import Pairing
from portable_nce.similarities import NAMES, Similarity, bilinear, normalized, resolve, scaled_columns, shifted_columns
from portable_nce.testing.variants import differentiate

pytestmark = pytest.mark.usefixtures("jax_x64")

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 4))
LIBRARIES = {"numpy": np.asarray, "torch": torch.asarray, "jax": jnp.asarray}

libraries = pytest.mark.parametrize("convert", LIBRARIES.values(), ids=LIBRARIES.keys())


def squared_distance(x: Any, y: Any) -> Any:
    differences = x[..., :, None, :] - y[..., None, :, :]
    return -(differences * differences).sum(-1)


def differentiated(loss: Callable[..., Any], *arrays: Any) -> list[np.ndarray]:
    """Give a loss and its gradients by all arrays."""
    value, gradients = differentiate(loss, arrays)
    return [np.asarray(x) for x in (value, *gradients)]


def assert_same(found: list[np.ndarray], wanted: list[np.ndarray], rtol: float = 1e-12, atol: float = 1e-13) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)


@libraries
@pytest.mark.parametrize("negatives", [None, RNG.normal(size=(5, 4)), RNG.normal(size=(6, 5, 4))], ids=np.shape)
def test_a_critic_is_a_similarity(convert: Any, negatives: Any) -> None:
    further = None if negatives is None else convert(negatives)

    def found(similarity: Any) -> list[np.ndarray]:
        def loss(x: Any, y: Any, t: Any) -> Any:
            return pnce.info_nce(x, y, further, temperature=t, similarity=similarity)

        return differentiated(loss, *map(convert, (X, Y, np.asarray(0.7))))

    assert_same(found(squared_distance), found("neg_sq_euclidean"), atol=1e-14)


def test_a_critic_does_not_stream() -> None:
    big = np.zeros((2100, 1))
    assert pnce.info_nce(big, big, similarity=lambda x, y: x @ y.T) == pytest.approx(np.log(2100))


def test_the_gradient_of_a_critics_own_parameters() -> None:
    def loss(weight: Any) -> Any:
        return pnce.info_nce(X, Y, similarity=lambda x, y: np.tanh(x @ weight) @ y.T, temperature=1.0)

    weight, step = RNG.normal(size=(4, 4)), 1e-6
    direction = RNG.normal(size=(4, 4))
    numeric = (loss(weight + step * direction) - loss(weight - step * direction)) / (2 * step)
    assert np.sum(pnce.grad(loss)(weight) * direction) == pytest.approx(numeric, rel=1e-7)


# Similarity with a pullback: the dot product of absolute values.
ABSOLUTE = Similarity(
    prepare=lambda x, y, scale: ((abs(x) * scale,), (abs(y),)),
    scores=lambda rows, columns: rows[0] @ columns[0].T,
    pullback=lambda rows, columns, g: ((g @ columns[0],), (g.T @ rows[0],)),
)


def near(tile: pnce.pairings.Tile) -> tuple[Any, Any]:
    gap = abs(tile.rows[0] - tile.columns[0])
    return gap == 1, (gap > 1) & tile.pairs[0]


@libraries
@pytest.mark.parametrize("block_size", [1, 4, 6])
def test_own_parts_stream(convert: Any, block_size: int) -> None:
    times = convert(np.asarray([0, 1, 3, 4, 7, 8]))
    allowed = convert(RNG.random((6, 6)) < 0.8)
    pairing = Pairing(near, rows=(times,), columns=(times,), pairs=(allowed,))
    objective = Objective(lambda row: row.log_odds * row.log_odds + row.spread + row.negative - row.positive)

    def found(block: int | None) -> list[np.ndarray]:
        options: dict[str, Any] = {"objective": objective, "pairing": pairing, "similarity": ABSOLUTE}
        return differentiated(
            lambda x, y: pnce.contrast(x, y, symmetric=True, block_size=block, **options), convert(X), convert(Y)
        )

    for _ in range(2):  # the second time, compiled code must be reused
        assert_same(found(block_size), found(None))


def test_an_objective_is_a_function_of_the_statistics() -> None:
    expected = pnce.contrast(X, Y, objective="flat_nce", reduction="none")
    np.testing.assert_array_equal(pnce.contrast(X, Y, objective=lambda row: row.log_odds, reduction="none"), expected)
    for resolved in (pnce.objectives.info_nce(), Pairwise(PULL, None)):
        assert pnce.objectives.resolve(resolved) is resolved
    assert pnce.objectives.info_nce() is pnce.objectives.info_nce()


BLOCK_SIZES: tuple[Any, ...] = (None, "auto", 1, 2, 4)

SQUARED_ODDS = Objective(
    lambda row: row.log_odds * row.log_odds + row.spread * row.negative - row.positive,
    slopes=lambda row: (2.0 * row.log_odds, row.negative, row.spread, -1.0 + 0.0 * row.positive),
)


@libraries
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pairing", ["diagonal", "labels", "two_views"])
@pytest.mark.parametrize("similarity", ["dot", "neg_sq_euclidean"])
@pytest.mark.parametrize("temperature", [0.01, 1.0])
@pytest.mark.parametrize("block_size", ["auto", 1, 4])
def test_an_objective_with_slopes(
    convert: Any, similarity: Any, pairing: str, block_size: Any, temperature: float, *, weighted: bool, symmetric: bool
) -> None:
    """Value and gradient in one pass, with blocks and tiles of every size, and small and large scores."""
    times = convert(np.asarray([0, 1, 1, 0, 2, 2]))
    chosen = pnce.pairings.labels(times, times) if pairing == "labels" else pairing

    def found(block: Any) -> list[np.ndarray]:
        def loss(x: Any, y: Any, t: Any, w: Any) -> Any:
            options: dict[str, Any] = {"objective": SQUARED_ODDS, "pairing": chosen, "similarity": similarity}
            options |= {"symmetric": symmetric, "weights": w if weighted else None, "block_size": block}
            return pnce.contrast(x, y, temperature=t, **options)

        weights = np.asarray([1.0, 0.0, 2.0, 0.5, 1.0, 3.0])
        return differentiated(loss, *map(convert, (X, Y, np.asarray(temperature), weights)))

    for ours, expected in zip(found(block_size), found(None), strict=True):
        scale = np.max(np.abs(expected))
        np.testing.assert_allclose(ours, expected, rtol=1e-10 if ours.ndim else 1e-11, atol=1e-12 * scale)


def test_a_queue_without_further_columns() -> None:
    """No row has a negative: every loss is 0, in one pass or two."""
    for block_size in BLOCK_SIZES:
        options: dict[str, Any] = {"pairing": pnce.pairings.queue(), "symmetric": True, "block_size": block_size}
        found = differentiated(lambda x, o=options: pnce.contrast(x, Y, objective="info_nce", **o), X)
        assert not any(np.any(x) for x in found), block_size


def test_wrong_slopes_of_an_objective_would_be_seen() -> None:
    """The one-pass gradient uses the slopes, also of a user's objective."""
    wrong = Objective(lambda row: row.log_odds, slopes=lambda row: (0.0 * row.log_odds, None, None, None))
    assert not np.any(pnce.grad(lambda x: pnce.contrast(x, Y, objective=wrong))(X))

    plain = pnce.objectives.info_nce()
    twice = Objective(lambda row: 2.0 * plain.rows(row))
    expected = 2.0 * pnce.contrast(X, Y, objective=plain, block_size=2)
    np.testing.assert_allclose(pnce.contrast(X, Y, objective=twice, block_size=2), expected, rtol=1e-13)


def test_pairings_and_similarities_transpose_and_return() -> None:
    pairing = pnce.pairings.index(np.asarray([1, 0, 2]))
    assert pairing.transposed().transposed().rule is pairing.rule
    assert pairing.transposed().rule == pairing.transposed().rule
    assert pairing.transposed().rule != pnce.pairings.diagonal().transposed().rule
    assert hash(pairing.transposed().rule) == hash(pairing.transposed().rule)
    first, second = ABSOLUTE.transposed(), ABSOLUTE.transposed()
    assert (first.scores, first.pullback) == (second.scores, second.pullback)
    assert hash((first.scores, first.pullback)) == hash((second.scores, second.pullback))
    assert resolve(squared_distance).transposed().pullback is None


@pytest.mark.parametrize(
    ("rows", "width", "similarity"), [(300, 64, "neg_sq_euclidean"), (2100, 3, "cosine")], ids=["wide", "large"]
)
def test_wide_similarities_and_large_batches_stream_by_themselves(rows: int, width: int, similarity: Any) -> None:
    x, y = RNG.normal(size=(2, rows, width))
    found, dense = (
        differentiated(lambda *z, o=options: pnce.info_nce(*z, similarity=similarity, temperature=0.5, **o), x, y)
        for options in ({}, {"block_size": None})
    )
    np.testing.assert_allclose(found[0], dense[0], rtol=1e-13)
    assert_same(found[1:], dense[1:], rtol=1e-11, atol=1e-15)


# --- an objective over pairs ------------------------------------------------------------------------------------------


def pull(score: Any, reach: Any) -> Any:
    return (1.0 - score) * (1.0 - score) * reach


def push(score: Any, reach: Any) -> Any:
    return score * score * score * score * reach * reach


PULL = Term(pull, lambda s, reach: (-2.0 * (1.0 - s) * reach, (1.0 - s) * (1.0 - s)))
PUSH = Term(push, lambda s, reach: (4.0 * s * s * s * reach * reach, 2.0 * s * s * s * s * reach))
NEAR = np.asarray([0, 1, 3, 4, 7, 8])
ALLOWED = RNG.random((6, 6)) < 0.8
REACH = RNG.random(6) + 0.5


def pair_loss(convert: Any, *, terms: Any = (PULL, PUSH), block_size: int | None = None, **options: Any) -> Any:
    """Function of embeddings, temperature and parameter to the loss and its gradients as NumPy arrays."""
    pairing = Pairing(near, rows=(convert(NEAR),), columns=(convert(NEAR),), pairs=(convert(ALLOWED),))

    def loss(x: Any, y: Any, t: Any, reach: Any) -> Any:
        objective = Pairwise(*terms, parameters=(reach,), **options)
        return pnce.contrast(x, y, objective=objective, pairing=pairing, temperature=t, block_size=block_size)

    return differentiated(loss, *map(convert, (X, Y, np.asarray(0.7), REACH)))


def by_hand(divide_by: str, *, balance: bool) -> float:
    """The loss from the whole matrix."""
    unit_x, unit_y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (X, Y))
    scores = unit_x @ unit_y.T / 0.7
    gap = abs(NEAR[:, None] - NEAR[None, :])
    sets = (gap == 1, (gap > 1) & ALLOWED)
    sums = [np.sum(term(scores, REACH[:, None]) * members) for term, members in zip((pull, push), sets, strict=True)]
    sizes = [
        np.sum(np.any(members, axis=1)) if divide_by == "rows" else np.sum(members)  # no loss is exactly 0
        for members in sets
    ]
    if balance:
        return float(sums[0] / sizes[0] + sums[1] / sizes[1])
    either = np.sum(np.any(sets[0] | sets[1], axis=1)) if divide_by == "rows" else sizes[0] + sizes[1]
    return float((sums[0] + sums[1]) / either)


TERMS: dict[str, tuple[Any, Any]] = {
    "both": (PULL, PUSH),
    "both without slopes": (pull, push),
    "the first without slopes": (pull, PUSH),
    "the second without slopes": (PULL, push),
    "positives": (PULL, None),
    "positives without slopes": (Term(pull), None),
    "negatives": (None, PUSH),
}


@libraries
@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize(
    ("name", "divide_by", "balance"),
    [
        *itertools.product(["both", "both without slopes"], ["rows", "pairs", "active"], [False, True]),
        *itertools.product([*TERMS][2:], ["active"], [False]),
    ],
)
def test_own_terms_stream(convert: Any, name: str, block_size: int, divide_by: str, *, balance: bool) -> None:
    """Also one term alone; terms without slopes are differentiated."""
    options: dict[str, Any] = {"divide_by": divide_by, "balance": balance}
    with_slopes = tuple({pull: PULL, push: PUSH}.get(getattr(term, "value", term), term) for term in TERMS[name])
    wanted = pair_loss(convert, terms=with_slopes, **options)
    if None not in with_slopes:
        np.testing.assert_allclose(wanted[0], by_hand(divide_by, balance=balance), rtol=1e-12)
    assert all(np.any(gradient != 0) for gradient in wanted[1:])
    for block in (None, block_size):
        assert_same(pair_loss(convert, terms=TERMS[name], block_size=block, **options), wanted)


def test_wrong_slopes_would_be_seen() -> None:
    """The streamed gradient uses the slopes alone."""
    wrong = Term(pull, lambda s, reach: (0.0 * s, 0.0 * s + 0.0 * reach))
    assert not np.any(pair_loss(np.asarray, terms=(wrong, None), block_size=2)[1])


def test_parameters_of_an_objective() -> None:
    """Numbers, arrays of one entry, and arrays with one entry per row."""
    losses = [
        pnce.contrast(X, Y, objective=Pairwise(PULL, PUSH, parameters=(reach,)))
        for reach in (1.5, np.asarray(1.5), np.asarray([1.5]), np.full(6, 1.5))
    ]
    np.testing.assert_allclose(losses[1:], losses[0], rtol=1e-14)
    assert repr(Pairwise(PULL, None, label="own")) == "<objective own>"


# --- similarities made of others --------------------------------------------------------------------------------------

FACTORS = np.asarray([0.5, 2.0, 1.0, 1.5, 0.25, 3.0])


def distance(x: Any, y: Any) -> Any:
    return -((0.25 - squared_distance(x, y)) ** 0.5)


AROUND: dict[str, Callable[[Any, Any], Similarity]] = {
    "normalized": lambda inner, _: normalized(inner),
    "scaled": scaled_columns,
    "shifted": shifted_columns,
    "both": lambda inner, factors: scaled_columns(normalized(inner), factors),
}
"""Similarities composed of another one and factors."""


def gradients_of(convert: Any, kind: str, inner: Any, block_size: int | None) -> list[np.ndarray]:
    """Gradients of InfoNCE by embeddings, temperature and factors."""

    def loss(x: Any, y: Any, t: Any, factors: Any) -> Any:
        return pnce.info_nce(x, y, temperature=t, similarity=AROUND[kind](inner, factors), block_size=block_size)

    return differentiated(loss, *map(convert, (X, Y, np.asarray(0.7), FACTORS)))


@libraries
@pytest.mark.parametrize("inner", [*NAMES, ABSOLUTE], ids=[*NAMES, "own"])
@pytest.mark.parametrize("kind", ["normalized", "scaled", "both"])
def test_similarities_around_others_stream(convert: Any, kind: str, inner: Any) -> None:
    dense = gradients_of(convert, kind, inner, None)
    assert_same(gradients_of(convert, kind, inner, 4), dense)
    assert np.any(dense[4] != 0) == (kind != "normalized")


def scores_of(similarity: Any, x: np.ndarray = X, y: np.ndarray = Y) -> np.ndarray:
    """The whole score matrix."""
    chosen = resolve(similarity)
    found: np.ndarray = chosen.scores(*chosen.prepare(x, y, 1.0))
    return found


@pytest.mark.parametrize("inner", [*NAMES, ABSOLUTE, distance], ids=[*NAMES, "own", "callable"])
def test_similarities_around_others(inner: Any) -> None:
    unit_x, unit_y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (X, Y))
    plain, around, shifted = scores_of(inner), normalized(inner), shifted_columns(inner, FACTORS)
    np.testing.assert_allclose(scores_of(around), scores_of(inner, unit_x, unit_y), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(scores_of(around, 9.0 * X, 0.1 * Y), scores_of(around), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(scores_of(scaled_columns(inner, FACTORS)), plain * FACTORS, rtol=1e-13)
    np.testing.assert_allclose(scores_of(shifted), plain + FACTORS, rtol=1e-13)
    np.testing.assert_allclose(scores_of(scaled_columns(shifted, FACTORS)), (plain + FACTORS) * FACTORS, rtol=1e-13)


@libraries
@pytest.mark.parametrize("kind", ["normalized", "scaled", "shifted"])
def test_a_critic_inside_is_a_critic(convert: Any, kind: str) -> None:
    """It is differentiated by the library, not streamed, and agrees with the named similarity."""
    named = gradients_of(convert, kind, "neg_sq_euclidean", None)
    assert_same(gradients_of(convert, kind, squared_distance, None), named)
    with pytest.raises(ValueError, match=r"\Ablock_size: expected None or 'auto'"):
        gradients_of(convert, kind, squared_distance, 2)


def test_normalizing_leaves_zero_and_the_cosine_alone() -> None:
    around = normalized("dot")
    np.testing.assert_allclose(scores_of(around), scores_of("cosine"), rtol=1e-14)
    np.testing.assert_array_equal(scores_of(around, np.zeros((2, 4)), Y), np.zeros((2, 6)))


def test_similarities_around_others_are_found_again() -> None:
    """Similarities of equal parts are equal, so compiled code is reused."""
    scaled = [scaled_columns("dot", FACTORS) for _ in range(2)]
    assert (scaled[0].scores, scaled[0].pullback) == (scaled[1].scores, scaled[1].pullback)
    assert hash((scaled[0].scores, scaled[0].pullback)) == hash((scaled[1].scores, scaled[1].pullback))
    distances = scaled_columns("neg_euclidean", FACTORS)
    assert distances.scores != scaled[0].scores
    assert distances == scaled_columns("neg_euclidean", FACTORS)
    assert normalized("neg_euclidean") == normalized("neg_euclidean")


@libraries
@pytest.mark.parametrize("weights", [None, RNG.uniform(0.5, 1.0, size=6)], ids=["plain", "weights"])
@pytest.mark.parametrize("divide_by", ["rows", "pairs", "active"])
def test_pairs_streamed_as_products_are_those_of_the_matrix(
    divide_by: pnce.typing.DivideBy, weights: Any, convert: Any
) -> None:
    def found(block_size: int | None) -> list[np.ndarray]:
        def loss(x: Any, y: Any, bias: Any, *weights: Any) -> Any:
            options: dict[str, Any] = {"temperature": 0.5, "similarity": "dot", "block_size": block_size}
            objective = pnce.objectives.logistic(bias=bias, divide_by=divide_by)
            return pnce.contrast(x, y, objective=objective, weights=weights[0] if weights else None, **options)

        return differentiated(loss, *map(convert, (X, Y, np.asarray(-0.5), *([] if weights is None else [weights]))))

    assert_same(found(2), found(None), atol=1e-14)


# Functions of all rows, which must not be called block by block.

COUPLED: dict[str, Callable[[Any, Any], Any]] = {
    "the mean of all rows": lambda row, _: (row.log_odds - row.log_odds.mean()) ** 2,
    "the largest of all rows": lambda row, _: row.log_odds * (row.log_odds >= row.log_odds.max()),
    "numbers for each row": lambda row, numbers: row.log_odds * numbers,
    "the sum of all rows": lambda row, _: row.log_odds * row.positive.sum(),
}


@libraries
@pytest.mark.parametrize("block_size", [1, 5])
@pytest.mark.parametrize("similarity", ["dot", "neg_euclidean"])
@pytest.mark.parametrize("name", COUPLED)
def test_functions_that_couple_rows_see_all_of_them(name: str, similarity: Any, block_size: int, convert: Any) -> None:
    x, y = map(convert, np.random.default_rng(5).normal(size=(2, 12, 3)))
    numbers = convert(np.linspace(0.0, 1.0, 12))

    def loss(a: Any, b: Any, block: int | None) -> Any:
        objective: Any = lambda row: COUPLED[name](row, numbers)  # noqa: E731
        return pnce.contrast(a, b, objective=objective, similarity=similarity, block_size=block)

    found, dense = (differentiated(lambda a, b, k=k: loss(a, b, k), x, y) for k in (block_size, None))
    np.testing.assert_allclose(found[0], dense[0], rtol=1e-12)
    assert_same(found[1:], dense[1:], rtol=1e-9, atol=1e-12)


def test_functions_of_each_row_alone_take_one_pass() -> None:
    x, y = (np.random.default_rng(k).normal(size=(12, 3)) for k in (1, 2))
    for objective, expected in (
        (lambda row: row.log_odds**2, 1),
        (lambda row: row.log_odds * row.positive.sum(), 2),
    ):
        found = pnce.explain(pnce.contrast, x, y, objective=objective, similarity="dot", block_size=4)
        assert [(sweep.name, sweep.passes) for sweep in found.sweeps] == [
            ("one-sided sweep of inner products", expected)
        ]


STATISTICS: dict[str, Callable[[Any], Any]] = {
    "log_odds": lambda row: row.log_odds * row.log_odds,
    "spread": lambda row: row.spread * row.spread,
    "negative": lambda row: row.negative * row.negative,
    "positive": lambda row: row.positive * row.positive,
    "all": lambda row: row.log_odds * row.spread - row.negative * row.positive + row.positive,
}
SEVERAL = np.asarray([[i != j and (i * j + i + j) % 3 == 1 for j in range(7)] for i in range(6)])


FIVE_PAIRINGS: dict[str, Pairing] = {
    "diagonal": pnce.pairings.diagonal(),
    "labels": pnce.pairings.labels(np.arange(6) % 3, np.arange(7) % 3),
    "labels of which some are alone": pnce.pairings.labels(np.arange(6) % 4, np.arange(7) % 3),
    "explicit": pnce.pairings.explicit(SEVERAL),
    "index": pnce.pairings.index(np.asarray([3, 3, 5, 6, 0, 2])),
}


@pytest.mark.parametrize("block_size", [None, 2, "auto"])
@pytest.mark.parametrize("pairing", FIVE_PAIRINGS.values(), ids=FIVE_PAIRINGS)
@pytest.mark.parametrize("statistic", STATISTICS)
def test_the_slopes_by_each_statistic_reach_the_scores(statistic: str, pairing: Any, block_size: Any) -> None:
    """Against finite differences of the loss."""
    rng = np.random.default_rng(17)
    x, y = rng.normal(size=(6, 3)), rng.normal(size=(7, 3))
    objective = Objective(STATISTICS[statistic], couples_rows=False)

    def loss(a: Any, b: Any) -> Any:
        options: dict[str, Any] = {"pairing": pairing, "similarity": "dot", "reduction": "sum"}
        return pnce.contrast(a, b, objective=objective, block_size=block_size, **options)

    value, gradients = pnce.value_and_grad(loss, (0, 1))(x, y)
    matrix = ScoreMatrix(resolve("dot"), (x,), (y,), pairing)
    expected = 0.0
    for scores, positives, negatives in zip(x @ y.T, *matrix.sets(), strict=True):
        if not positives.any():
            continue
        own, rest = scores[positives], scores[negatives]
        positive, negative = (math.log(np.exp(s).sum()) if s.size else 0.0 for s in (own, rest))
        odds = negative - positive if rest.size else 0.0
        row = SimpleNamespace(log_odds=odds, spread=positive - own.mean(), negative=negative, positive=positive)
        expected += STATISTICS[statistic](row)
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)
    step = 1e-5
    for k, gradient in enumerate(gradients):
        for place in np.ndindex(gradient.shape):
            moved = [np.zeros_like(x), np.zeros_like(y)]
            moved[k][place] = step
            slope = (loss(x + moved[0], y + moved[1]) - loss(x - moved[0], y - moved[1])) / (2 * step)
            np.testing.assert_allclose(gradient[place], slope, rtol=1e-6, atol=1e-7)


# --- errors -----------------------------------------------------------------------------------------------------------


def contrast(x: Any = X, y: Any = Y, **options: Any) -> Any:
    return pnce.contrast(x, y, **{"objective": "info_nce", **options})


SHAPE = r"similarity: expected a function that returns scores of shape \(6, 6\), got"
OF_ROWS = r"objective: expected a function of each row's statistics, of shape \(6,\), got"
Refused = list[tuple[str, Callable[[], Any]]]
WRONG_VALUES: Refused = [
    ("block_size: expected None or 'auto'", lambda: contrast(similarity=squared_distance, block_size=2)),
    (SHAPE, lambda: contrast(similarity=lambda x, y: x @ y.T[:, :3])),
    (SHAPE, lambda: contrast(similarity=lambda x, y: float(x.shape == y.shape))),
    (OF_ROWS, lambda: contrast(objective=lambda row: row.log_odds.sum())),
    (OF_ROWS, lambda: contrast(objective=lambda row: float(row.log_odds.shape[0]))),
    (r"factors: expected shape \(6,\), got \(5,\)", lambda: scores_of(scaled_columns("dot", FACTORS[:5]))),
    ("pairing: expected one of", lambda: contrast(pairing="all")),
    ("pairing: .*even number of rows", lambda: pnce.contrast(X[:5], objective="info_nce", pairing="two_views")),
    ('reduction: expected "mean" or "sum"', lambda: contrast(X[:4], symmetric=True, reduction="none")),
    ("weights: expected None", lambda: contrast(X[:4], symmetric=True, objective="logistic", weights=np.ones(4))),
    ("objective: expected another than relic", lambda: contrast(X[:4], objective=pnce.objectives.relic())),
    (".*at least as many rows as x, 6, got 4", lambda: contrast(y=Y[:4])),
    (r"pairing.rows: expected shape \(6,\)", lambda: contrast(pairing=pnce.pairings.index(np.asarray([0, 1])))),
    ("y: expected 4 features", lambda: contrast(y=Y[:, :3])),
    (r"weight: expected shape \(4, 3\)", lambda: contrast(y=Y[:, :3], similarity=bilinear(np.eye(4)))),
    (".*at least one column, got 0", lambda: pnce.bounds.log_n_ceiling(0)),
]
WRONG_TYPES: Refused = [
    ("pairing: expected a name", lambda: contrast(pairing=3)),
    ("weights: expected a real dtype", lambda: contrast(weights=np.ones(6, dtype=complex))),
    ("logit_scale: expected a number", lambda: pnce.clip(X, Y, logit_scale="large")),  # type: ignore[arg-type]
    (".*an array or an integer, got str", lambda: pnce.bounds.log_n_ceiling("many")),  # type: ignore[call-overload]
]


@pytest.mark.parametrize(("message", "call"), WRONG_VALUES + WRONG_TYPES)
def test_own_parts_that_do_not_fit_are_refused(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError if (message, call) in WRONG_TYPES else ValueError, match=rf"\A{message}"):
        call()


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "function": lambda f: f,
    "objective": pnce.objectives.Objective,
    "not coupled": lambda f: pnce.objectives.Objective(f, couples_rows=False),
    "with slopes": lambda f: pnce.objectives.Objective(f, slopes=lambda row: (row.log_odds, None, None, None)),
}


@pytest.mark.parametrize("block_size", ["auto", None, 3])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_learned_arrays_in_a_function_get_their_gradient(kind: str, block_size: Any) -> None:
    x, y, margins = (torch.from_numpy(np.random.default_rng(7).normal(size=shape)) for shape in ((8, 3), (8, 3), (8,)))
    for margin in (margins[0], margins) if kind != "not coupled" else (margins[0],):
        learned = margin.clone().requires_grad_()
        objective = FUNCTIONS[kind](lambda row, m=learned: 0.5 * (row.log_odds + m) ** 2 * m)
        pnce.contrast(x, y, objective=objective, block_size=block_size).backward()
        scores = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(y).T
        positive = scores.diagonal().clone()
        u = scores.fill_diagonal_(-torch.inf).logsumexp(1) - positive
        expected = margin.clone().requires_grad_()
        (0.5 * (u + expected) ** 2 * expected).mean().backward()
        torch.testing.assert_close(learned.grad, expected.grad, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_learned_arrays_that_would_get_no_gradient_are_refused(library: str) -> None:
    x, y = np.random.default_rng(8).normal(size=(2, 8, 3))
    if library == "torch":
        x, y = torch.from_numpy(x), torch.from_numpy(y)

    def loss(m: Any, *, part: str) -> Any:
        if part == "parameters":
            terms = [lambda score: (score - m) ** 2, None]
            return pnce.contrast(x, y, objective=pnce.objectives.Pairwise(terms[0], terms[1]))
        scores = pnce.similarities.Similarity(
            lambda a, b, scale: ((a * scale,), (b,)),
            lambda rows, columns: rows[0] @ columns[0].T * m,
            lambda rows, columns, g: ((g @ columns[0],), (g.T @ rows[0],)),
        )
        return pnce.contrast(x, y, objective="info_nce", similarity=scores)

    for part in ("parameters", "prepare"):
        m: Any
        function: Any = partial(loss, part=part)
        if library == "torch":
            m = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        else:
            m, function = np.asarray(0.5), pnce.value_and_grad(function)
        with pytest.raises(TypeError, match=f"expected learned arrays.*{part}"):
            function(m)


def test_known_parameters_distinguish_weighted_objectives() -> None:
    """Known parameters belong to one rank; others are computed from the positives of all ranks."""
    inner = pnce.objectives.info_nce()
    ours, theirs = (Weighted(inner, max, label="same", known=known) for known in (False, True))
    assert ours != theirs
    assert ours == Weighted(inner, max, label="same")


# --- results of users' functions -------------------------------------------------------------------------------------

LINEAR: dict[str, Callable[[Any], Any]] = {
    "its argument": lambda s: s,
    "plus a constant": lambda s: s + 1.0,
    "a view": lambda s: s[...],
    "turned twice": lambda s: s.T.T,
}


@libraries
@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("pairing", ["diagonal", "two_views", "index"])
@pytest.mark.parametrize("divide_by", ["rows", "active"])
def test_linear_terms_have_their_slopes(convert: Any, name: str, pairing: str, divide_by: Any) -> None:
    """The gradient of a sum is one number in memory, expanded: what is left out must not overwrite it."""
    chosen: Any = pnce.pairings.index(convert(np.arange(6))) if pairing == "index" else pairing

    def loss(term: Any, x: Any, y: Any) -> Any:
        objective = Pairwise(lambda s: -s, term, divide_by=divide_by)
        arrays = (x,) if pairing == "two_views" else (x, y)
        return pnce.contrast(*arrays, objective=objective, pairing=chosen, similarity="dot")

    found, wanted = (
        differentiated(partial(loss, term), convert(X), convert(Y))
        for term in (LINEAR[name], lambda s: 1.0 * s + (name == "plus a constant"))
    )
    assert_same(found, wanted)


def test_arrays_of_users_are_not_overwritten() -> None:
    ones = np.ones((6, 6))
    push_ = Term(lambda s: ones[: s.shape[0]], lambda s: (0.0 * s,))
    for _ in range(2):
        assert pnce.contrast(X, Y, objective=Pairwise(None, push_)) == 5.0
    assert np.all(ones == 1.0)


def _sums(rows: Any, columns: Any) -> Any:
    return rows[0].sum(1)[:, None] + columns[0].sum(1)[None, :]


@pytest.mark.parametrize("block_size", [None, 2])
def test_cotangents_of_a_pullback_may_share_memory(block_size: int | None) -> None:
    """As those of `broadcast_to`, or an array that the user keeps."""
    expanded, kept = (
        Similarity(lambda x, y, scale: ((x * scale,), (y,)), _sums, pullback_)
        for pullback_ in (
            lambda rows, columns, g: (
                (np.broadcast_to(g.sum(1)[:, None], rows[0].shape),),
                (np.broadcast_to(g.sum(0)[:, None], columns[0].shape),),
            ),
            lambda rows, columns, g: ((0.0 * rows[0] + g.sum(1)[:, None],), (0.0 * columns[0] + g.sum(0)[:, None],)),
        )
    )
    found, wanted = (
        differentiated(
            lambda x, y, s=s: pnce.info_nce(x, y, temperature=1.0, similarity=s, block_size=block_size), X, Y
        )
        for s in (expanded, kept)
    )
    assert_same(found, wanted)


def _own(*, scores: Any = None, pullback: Any = None, prepare: Any = None) -> Similarity:
    """The dot product, with one part replaced."""
    return Similarity(
        prepare or (lambda x, y, scale: ((x * scale,), (y,))),
        scores or (lambda rows, columns: rows[0] @ columns[0].T),
        pullback or (lambda rows, columns, g: ((g @ columns[0],), (g.T @ rows[0],))),
    )


MISFITS: dict[str, tuple[type[Exception], Similarity]] = {
    r"value: expected a function of each entry, of shape \(.*\), got shape": (
        ValueError,
        pnce.similarities.elementwise("dot", lambda s: s[0], lambda s: 0 * s),
    ),
    "value: expected a (real )?floating": (
        TypeError,
        pnce.similarities.elementwise("dot", lambda s: s.astype(int), lambda s: 0 * s),
    ),
    "value: expected a function of each entry, of shape .*, got float": (
        ValueError,
        pnce.similarities.elementwise("neg_sq_euclidean", lambda s: float(s.shape[0]), lambda s: s),
    ),
    "slope: expected a function of each entry": (
        ValueError,
        pnce.similarities.elementwise("dot", lambda s: 2.0 * s, lambda s: s[:, :1]),
    ),
    r"scores: expected a function that returns scores of shape \(6, 6\), got shape \(6,\)": (
        ValueError,
        _own(scores=lambda rows, columns: (rows[0] @ columns[0].T)[0]),
    ),
    r"prepare: expected arrays with 6 rows, got rows of shape \(3, 4\)": (
        ValueError,
        _own(prepare=lambda x, y, scale: ((x[:3] * scale,), (y,))),
    ),
    r"pullback: expected cotangents .*, of shapes \[\[\(6, 4\)\], \[\(6, 4\)\]\]": (
        ValueError,
        _own(pullback=lambda rows, columns, g: ((g @ columns[0],), (g.T @ rows[0], g))),
    ),
    "pullback: expected cotangents of the operands": (
        ValueError,
        _own(pullback=lambda *given: given[2] @ given[1][0]),
    ),
}


@pytest.mark.parametrize("message", MISFITS)
def test_results_of_own_functions_that_do_not_fit_are_refused(message: str) -> None:
    error, similarity = MISFITS[message]
    with pytest.raises(error, match=message):
        pnce.value_and_grad(lambda x: pnce.info_nce(x, Y, temperature=1.0, similarity=similarity))(X)


@libraries
@pytest.mark.parametrize("slope", ["number", "0-d", "integers", "flags"])
def test_a_slope_may_be_of_another_kind(convert: Any, slope: str) -> None:
    slopes = {
        "number": lambda _: 1.0,
        "0-d": lambda _: convert(np.asarray(1.0)),
        "integers": lambda s: convert(np.ones(tuple(s.shape), dtype=np.int64)),
        "flags": lambda s: s < 1e30,
    }
    same = pnce.similarities.elementwise("dot", lambda s: 1.0 * s, slopes[slope])
    found, wanted = (
        differentiated(lambda x, y, s=s: pnce.info_nce(x, y, temperature=0.5, similarity=s), convert(X), convert(Y))
        for s in cast("tuple[Any, ...]", (same, "dot"))
    )
    assert_same(found, wanted)


def _made_otherwise(other: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    """Options of `contrast` in which one result of a user's function is made by `other`."""
    dot: Any = (lambda x, y, scale: ((x * scale,), (y,)), lambda rows, columns: rows[0] @ columns[0].T)
    entry, square = pnce.similarities.elementwise, Term(lambda s: s * s, lambda s: (other(2.0 * s),))
    slopes = Objective(lambda row: row.log_odds * 1.0, slopes=lambda row: (other(0.0 * row.log_odds + 1.0), 0, 0, None))
    similarities: dict[str, Any] = {
        "function": lambda x, y: other(x @ y.T),
        "scores": Similarity(dot[0], lambda rows, columns: other(dot[1](rows, columns))),
        "operands": Similarity(lambda x, y, scale: ((other(x * scale),), (other(y),)), dot[1]),
        "operands of products": Similarity(lambda x, y, t: ((other(x * t),), (other(y),)), inner_product=True),
        "pullback": Similarity(dot[0], dot[1], lambda r, c, g: ((other(g @ c[0]),), (other(g.T @ r[0]),))),
        "value": entry("dot", other, lambda s: 0.0 * s + 1.0),
        "slope": entry("dot", lambda s: 1.0 * s, lambda s: other(0.0 * s + 1.0)),
    }
    objectives: dict[str, Any] = {
        "rows": lambda row: other(row.log_odds),
        "slopes of rows": slopes,
        "term": Pairwise(lambda s: -s, lambda s: other(s * s)),
        "slopes of a term": Pairwise(lambda s: -s, square),
    }
    return {
        **{name: {"similarity": chosen, "objective": "info_nce"} for name, chosen in similarities.items()},
        **{name: {"similarity": "dot", "objective": chosen} for name, chosen in objectives.items()},
    }


PARTS = tuple(_made_otherwise(lambda s: s))


@libraries
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("dtype", "given"), [("float16", "float32"), ("float64", "float32"), ("float32", "float64")])
def test_results_of_own_functions_may_have_another_precision(convert: Any, part: str, dtype: str, given: str) -> None:
    """They are rounded to their precision, and enter the loss as those of the given one."""

    def to(x: Any, name: str = dtype) -> Any:
        return x.to(getattr(torch, name)) if isinstance(x, torch.Tensor) else x.astype(name)

    found, wanted = (
        differentiated(
            lambda x, y, o=other: pnce.contrast(x, y, **_made_otherwise(o)[part]),
            *(convert(a.astype(given)) for a in (X / 2, Y)),
        )
        for other in (to, lambda s: s)
    )
    digits = 2e-2 if dtype == "float16" else 1e-5
    assert_same(found, wanted, rtol=digits, atol=digits)
    assert {x.dtype.name for x in found} == {given}


@pytest.mark.parametrize("part", PARTS)
def test_results_of_another_library_are_refused(part: str) -> None:
    options = _made_otherwise(lambda s: np.zeros(tuple(s.shape)))[part]
    with pytest.raises(TypeError, match="expected an array of the same library as embeddings, got numpy and torch"):
        differentiated(lambda x, y: pnce.contrast(x, y, **options), torch.asarray(X), torch.asarray(Y))


@pytest.mark.parametrize("part", ["operands", "operands of products", "rows", "term"])
@pytest.mark.parametrize("other", [None, [1.0]], ids=["None", "list"])
def test_results_that_are_no_arrays_are_refused(part: str, other: Any) -> None:
    with pytest.raises(ValueError, match=f"(prepare|objective): expected .*, got .*{type(other).__name__}"):
        pnce.contrast(X, Y, **_made_otherwise(lambda _: other)[part])


@libraries
def test_a_slope_of_none_is_0(convert: Any) -> None:
    constant = Pairwise(lambda s: -s, Term(lambda s: 0.0 * s + 3.0, lambda _: (None,)))
    value, *gradients = differentiated(lambda x, y: pnce.contrast(x, y, objective=constant), convert(X), convert(Y))
    pull = Pairwise(lambda s: -s, None)
    others = differentiated(lambda x, y: pnce.contrast(x, y, objective=pull), convert(X), convert(Y))[1:]
    assert np.isfinite(value)
    assert_same(gradients, others)


def test_operands_may_have_leading_axes_and_constants() -> None:
    """Without a pullback; with one, None is the cotangent of a constant, and lists are as good as tuples."""

    def heads(z: Any) -> Any:
        return z.reshape(len(z), 2, -1).swapaxes(0, 1)

    of_heads = Similarity(
        lambda x, y, scale: ((heads(x * scale),), (heads(y),)),
        lambda rows, columns: (rows[0] @ columns[0].swapaxes(-1, -2)).max(0),
    )
    by_hand_ = pnce.from_scores.info_nce((heads(X) @ heads(Y).swapaxes(-1, -2)).max(0))
    np.testing.assert_allclose(pnce.info_nce(X, Y, temperature=1.0, similarity=of_heads), by_hand_, rtol=1e-12)
    with_flags = Similarity(
        lambda x, y, scale: ((x * scale, np.ones((6, 1))), (y,)),
        lambda rows, columns: rows[0] @ columns[0].T * rows[1],
        lambda rows, columns, g: ([g @ columns[0], None], [g.T @ rows[0]]),  # type: ignore[arg-type,return-value]
    )
    found, wanted = (
        differentiated(lambda x, y, s=s: pnce.info_nce(x, y, temperature=1.0, similarity=s), X, Y)
        for s in cast("tuple[Any, ...]", (with_flags, "dot"))
    )
    assert_same(found, wanted)


@pytest.mark.parametrize(
    "objective",
    [
        Objective(lambda row: row.log_odds, slopes=lambda row: (row.log_odds,)),  # type: ignore[arg-type,return-value]
        Objective(lambda row: row.log_odds, slopes=lambda row: row.log_odds),
        Pairwise(None, Term(lambda s: s * s, lambda s: (2.0 * s, s))),
        Pairwise(None, Term(lambda s: s * s, lambda s: 2.0 * s)),
    ],
)
def test_slopes_of_another_number_are_refused(objective: Any) -> None:
    with pytest.raises(ValueError, match=r"slopes: expected a tuple of (4|1), one by each argument, got"):
        pnce.grad(lambda x: pnce.contrast(x, Y, objective=objective))(X)


def test_a_slope_of_a_term_may_be_a_number() -> None:
    found, wanted = (
        differentiated(
            lambda x, y, s=s: pnce.contrast(x, y, objective=Pairwise(None, Term(lambda s: 3.0 * s, s))), X, Y
        )
        for s in (lambda _: (3.0,), lambda s: (0.0 * s + 3.0,))
    )
    assert_same(found, wanted)


@pytest.mark.parametrize(
    ("message", "objective"),
    [
        (
            r"shape \(6,\), got shape \(1,\)",
            Objective(lambda row: row.log_odds, slopes=lambda row: (row.log_odds[:1],) * 4),
        ),
        (r"shape \(6, 6\), got shape \(6,\)", Pairwise(None, Term(lambda s: s * s, lambda s: (2.0 * s[0],)))),
    ],
)
def test_slopes_of_another_shape_are_refused(message: str, objective: Any) -> None:
    with pytest.raises(ValueError, match=f"slopes: expected numbers, or arrays of {message}"):
        pnce.grad(lambda x: pnce.contrast(x, Y, objective=objective, block_size=None))(X)


@pytest.mark.parametrize("kind", [int, bool, complex])
def test_terms_and_pullbacks_are_floating(kind: Any) -> None:
    with pytest.raises(TypeError, match="objective: expected"):
        pnce.contrast(X, Y, objective=Pairwise(None, lambda s: s.astype(kind)))
    wrong = _own(pullback=lambda *given: tuple((x.astype(kind),) for x in (given[0][0], given[1][0])))
    with pytest.raises(TypeError, match="pullback: expected"):
        pnce.grad(lambda x: pnce.info_nce(x, Y, temperature=1.0, similarity=wrong))(X)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "objective",
    [
        Objective(lambda row: row.log_odds**2),
        Pairwise(lambda s: -s, lambda s: s * s),
        Pairwise(lambda s, w: w * s, lambda s, w: s * s * w, parameters=(0.7,)),
    ],
    ids=["objective", "terms", "parameters"],
)
def test_functions_are_differentiated_under_checkpointing(objective: Any, *, reentrant: bool) -> None:
    """Also where what is saved goes to the CPU."""

    def loss(x: Any) -> Any:
        return pnce.contrast(x, torch.asarray(Y), objective=objective)

    def on_cpu(x: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return loss(x)

    found = []
    for step in (loss, partial(torch.utils.checkpoint.checkpoint, loss, use_reentrant=reentrant), on_cpu):
        x = torch.tensor(X, requires_grad=True)
        step(x).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1:], [found[0]] * 2, rtol=1e-12, atol=1e-14)
