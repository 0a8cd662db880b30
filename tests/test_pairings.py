"""Pairings: pair weights, rules over tiles, both directions, masks, and NaN."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce import objectives, pairings
from portable_nce.pairings import Pairing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from portable_nce.objectives import AnyObjective

RANDOM = np.random.default_rng(7)
ROWS, COLUMNS, WIDTH = 7, 9, 5
X, Y = RANDOM.normal(size=(ROWS, WIDTH)), RANDOM.normal(size=(COLUMNS, WIDTH))
MASK = RANDOM.uniform(size=(ROWS, COLUMNS)) > 0.2
POSITIVES = RANDOM.uniform(size=(ROWS, COLUMNS)) > 0.6

SIZE = 6
U, V = RANDOM.normal(size=(2, SIZE, WIDTH))
JUDGED_ROWS, JUDGED_COLUMNS = RANDOM.normal(size=(2, SIZE, 3))
TAGGED_ROWS, TAGGED_COLUMNS = RANDOM.uniform(size=(2, SIZE, 3)) < 0.6
KINDS, FURTHER_KINDS = np.asarray([0, 0, 1, 2, 1, 3]), np.asarray([0, 1, 1, 2, 3, 0])
WEIGHTS, ONES = RANDOM.uniform(size=(SIZE, SIZE)) + 0.5, np.ones((SIZE, SIZE))
SQUARE_MASK, SQUARE_POSITIVES = MASK[:SIZE, :SIZE], POSITIVES[:SIZE, :SIZE]

SOFTMAX: dict[str, AnyObjective] = {
    "info_nce": objectives.info_nce(),
    "separate": objectives.info_nce(multi_positive="separate"),
    "pooled": objectives.info_nce(multi_positive="pooled"),
    "flat_nce": objectives.flat_nce(),
    "anchor": objectives.info_nce_anchor(n_columns=9),
}
PAIRS: dict[str, AnyObjective] = {
    "logistic": objectives.logistic(),
    "logistic, pairs": objectives.logistic(divide_by="pairs"),
    "contrastive": objectives.contrastive(margin=0.5),
    "nonzero": objectives.contrastive(margin=0.5, average="nonzero"),
    "balance": objectives.contrastive(margin=0.5, average="nonzero", balance=True),
}
OBJECTIVES: dict[str, Any] = {**SOFTMAX, **PAIRS, "relic": objectives.relic()}


def near(tile: pairings.Tile) -> tuple[Any, Any]:
    products = (tile.rows[0] * tile.columns[0]).sum(axis=-1)
    return products > 0.5, products <= 0.0


def near_by_matrices(tile: pairings.Tile) -> tuple[Any, Any]:
    """Compute `near` from arrays of shapes (n, 1, C) and (1, k, C)."""
    products = tile.rows[0][:, 0, :] @ tile.columns[0][0].T
    return products > 0.5, products <= 0.0


of_judged = partial(Pairing, rows=(JUDGED_ROWS,), columns=(JUDGED_COLUMNS,))
OF_SETS: dict[str, Pairing] = {
    "diagonal": pairings.diagonal(),
    "queue": pairings.queue(),
    "queue of valid": pairings.queue(np.asarray([True, True, False, True, True, True])),
    "two views": pairings.two_views(),
    "index": pairings.index(np.asarray([3, 0, 5, 5, 1, 2])),
    "labels": pairings.labels(KINDS, FURTHER_KINDS),
    "own labels": pairings.labels(KINDS),
    "labels without one": pairings.labels(KINDS, FURTHER_KINDS, ignore_index=1),
    "ids": pairings.ids(KINDS),
    "explicit": pairings.explicit(SQUARE_POSITIVES),
    "guided": pairings.guided(JUDGED_ROWS, JUDGED_COLUMNS),
    "guided, relative": pairings.guided(JUDGED_ROWS, JUDGED_COLUMNS, margin=0.25, strategy="relative"),
    "by matrices": of_judged(near_by_matrices),
}
OF_WEIGHTS: dict[str, Pairing] = {
    "soft": pairings.soft(WEIGHTS * SQUARE_POSITIVES),
    "overlap": pairings.overlap(TAGGED_ROWS, TAGGED_COLUMNS),
    "own overlap": pairings.overlap(TAGGED_ROWS),
    "teacher": pairings.teacher(JUDGED_ROWS, JUDGED_COLUMNS, temperature=0.5),
    "own teacher": pairings.teacher(JUDGED_ROWS, temperature=0.5),
    "teacher of cwcl": pairings.teacher(JUDGED_ROWS, JUDGED_COLUMNS, temperature=None),
    "kernel": pairings.kernel(JUDGED_ROWS, JUDGED_COLUMNS, bandwidth=1.5),
    "own kernel": pairings.kernel(JUDGED_ROWS[:, 0], bandwidth=0.5),
    "smoothed": pairings.smoothed(0.3),
}
PAIRINGS = {**OF_SETS, **OF_WEIGHTS}
NEED_NEGATIVES = ("pooled", "separate", "flat_nce")


def together(names: Iterable[str], pairings: Iterable[str]) -> list[tuple[str, str]]:
    """Give names of objectives and pairings without those that are refused."""
    return [
        (name, pairing)
        for name in names
        for pairing in pairings
        if not (name in NEED_NEGATIVES and PAIRINGS[pairing].without_negatives)
    ]


blocks = pytest.mark.parametrize("block_size", [None, 4])
directions = pytest.mark.parametrize("symmetric", [False, True])


def differentiated(objective: Any, pairing: Any, x: Any = U, y: Any = V, **options: Any) -> list[np.ndarray]:
    """Give a loss, or the sum of squared row losses, with its gradients."""

    def loss(x: Any, y: Any) -> Any:
        losses = pnce.contrast(x, y, objective=objective, pairing=pairing, similarity="dot", **options)
        return losses if losses.ndim == 0 else losses.__array_namespace__().sum(losses * losses)

    value, gradients = pnce.value_and_grad(loss, argnums=(0, 1))(x, y)
    return [np.asarray(x) for x in (value, *gradients)]


def assert_same(found: list[np.ndarray], wanted: list[np.ndarray], rtol: float = 1e-11, atol: float = 1e-13) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)


def rows_of(pairing: Pairing, x: np.ndarray = U, y: np.ndarray = V, **options: Any) -> np.ndarray:
    """Give the InfoNCE of each row."""
    losses = pnce.contrast(x, y, objective="info_nce", pairing=pairing, similarity="dot", reduction="none", **options)
    return np.asarray(losses)


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=1, keepdims=True)))


def cosines_of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    rows, columns = (z.astype(float) / np.linalg.norm(z.astype(float), axis=1, keepdims=True) for z in (x, y))
    return np.asarray(rows @ columns.T)


# ------------------------------------------------------------------------------------------------- weights of pairs


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("name", [*SOFTMAX, *PAIRS])
def test_a_weight_is_how_often_a_pair_counts(name: str, block_size: int | None, reduction: str) -> None:
    """A negative of weight 2 equals two negatives; so does any term of a sum over pairs."""
    often = np.asarray([1, 2, 3, 1, 0, 4, 2, 3, 1])
    copies = np.repeat(np.arange(COLUMNS), often)
    weights, mask = np.tile(often.astype(float), (ROWS, 1)), MASK[:, copies]
    if name in SOFTMAX:  # one positive per row, whose weight has no effect
        weights[POSITIVES] = np.minimum(weights, 1)[POSITIVES]
        is_first = np.concatenate([[True], copies[1:] != copies[:-1]])
        mask = mask & (is_first | ~POSITIVES[:, copies])
    options: dict[str, Any] = {"reduction": reduction, "weights": np.linspace(0.5, 1.5, ROWS)}
    pairing = pairings.weighted(pairings.explicit(POSITIVES), weights)
    found = differentiated(OBJECTIVES[name], pairing, X, Y, mask=MASK, block_size=block_size, **options)
    of_copies = pairings.explicit(POSITIVES[:, copies])
    value, of_rows, slopes = differentiated(OBJECTIVES[name], of_copies, X, Y[copies], mask=mask, **options)
    of_columns = np.stack([slopes[column == copies].sum(axis=0) for column in range(COLUMNS)])
    np.testing.assert_allclose(found[0], value, rtol=1e-13)
    assert_same(found[1:], [of_rows, of_columns], atol=1e-14)


@blocks
@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("name", PAIRS)
def test_a_degree_divides_a_pair_into_a_positive_and_a_negative(
    name: str, reduction: str, block_size: int | None
) -> None:
    degrees = np.where(POSITIVES, RANDOM.uniform(size=POSITIVES.shape), 0.0)
    degrees[0, :2] = 1.0
    options: dict[str, Any] = {"objective": PAIRS[name], "mask": MASK, "similarity": "dot", "reduction": reduction}
    everything, weights = np.ones_like(POSITIVES), np.linspace(0.5, 2.0, ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    near, far = pairings.explicit(everything), pairings.explicit(~everything)
    for factor, graded in (
        (np.ones_like(weights), pairings.soft(degrees)),
        (np.ones_like(weights), pairings.soft(degrees.T.copy()).transposed()),
        (weights, pairings.weighted(pairings.soft(degrees), weights)),
    ):
        parts = (pairings.weighted(near, factor * degrees), pairings.weighted(far, factor * (1.0 - degrees)))
        wanted = sum(pnce.contrast(X, Y, pairing=part, **options) for part in parts)
        found = pnce.contrast(X, Y, pairing=graded, block_size=block_size, **options)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_degrees_are_label_smoothing_of_pairs() -> None:
    """torch.nn.functional.binary_cross_entropy_with_logits takes targets in [0, 1]."""
    x, y = (torch.tensor(z[:SIZE], dtype=torch.float32) for z in (U, V))
    target = 0.7 * torch.eye(SIZE) + 0.3 / SIZE
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(x @ y.T, target, reduction="sum") / SIZE
    for pairing in (pairings.soft(target.double()), pairings.smoothed(0.3)):  # of another dtype than the scores
        found = pnce.contrast(x, y, objective="logistic", pairing=pairing, similarity="dot")
        torch.testing.assert_close(found, wanted)


def test_relic() -> None:
    """The compared distributions use the weights of their pairs."""
    weights = np.arange(ROWS)[:, None] * 0.5 + np.asarray([1, 2, 3, 1, 0, 4, 2]) + np.eye(ROWS)
    pairing = pairings.weighted(pairings.diagonal(), weights)
    found = pnce.contrast(X, Y[:ROWS], objective=OBJECTIVES["relic"], pairing=pairing, similarity="dot")
    scores, weights = X @ Y[:ROWS].T, np.where(np.eye(ROWS) > 0, 1.0, weights)
    p, q = (weights * np.exp(s) / (weights * np.exp(s)).sum(axis=1, keepdims=True) for s in (scores, scores.T))
    divergence = np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0) / np.where(q > 0, q, 1.0)), 0.0).sum(axis=1)
    np.testing.assert_allclose(found, (divergence - np.log(np.diag(p))).mean(), rtol=1e-13)


@directions
@blocks
@pytest.mark.parametrize(
    ("name", "pairing"), together(["info_nce", *NEED_NEGATIVES, "logistic", "logistic, pairs", "relic"], PAIRINGS)
)
def test_ones_change_nothing(name: str, pairing: str, block_size: int | None, *, symmetric: bool) -> None:
    plain, options = PAIRINGS[pairing], {"block_size": block_size, "symmetric": symmetric}
    if name == "relic" and pairing in OF_WEIGHTS:
        plain = pairings.weighted(plain, ONES)
    wanted = differentiated(OBJECTIVES[name], plain, **options)
    once = pairings.weighted(plain, ONES)
    for weighted in (once, pairings.weighted(once, ONES), once.transposed().transposed()):
        assert_same(differentiated(OBJECTIVES[name], weighted, **options), wanted)


def by_matrices(pairing: str, cosines: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> tuple[Pairing, Any]:
    """Give a pairing and its mask as matrices, from cosines and from tags of rows and columns."""
    if pairing == "kernel":
        y = (JUDGED_ROWS, JUDGED_COLUMNS) if rows is TAGGED_ROWS else (JUDGED_COLUMNS, JUDGED_ROWS)
        squares = ((y[0][:, None, :].astype(float) - y[1][None, :, :].astype(float)) ** 2).sum(axis=-1)
        nearest = squares.min(axis=1, keepdims=True)
        return pairings.soft(np.exp((nearest - squares) / (2.0 * 1.5**2))), None
    if pairing == "guided":
        return pairings.diagonal(), (cosines <= np.diag(cosines)[:, None]) | np.eye(SIZE, dtype=bool)
    both, either = ((f(rows[:, None, :], columns[None, :, :])).sum(-1) for f in (np.logical_and, np.logical_or))
    weights = {
        "overlap": both / np.maximum(either, 1),
        "smoothed": 0.7 * np.eye(SIZE) + 0.3 / SIZE,
        "teacher of cwcl": 0.5 + 0.5 * cosines,
        "teacher": np.exp((cosines - cosines.max(axis=1, keepdims=True)) / 0.5),
    }
    return pairings.soft(weights[pairing]), None


@blocks
@pytest.mark.parametrize(
    ("name", "pairing"),
    together(
        ["info_nce", "separate", "flat_nce", "logistic"],
        ["overlap", "kernel", "teacher", "teacher of cwcl", "guided", "smoothed"],
    ),
)
def test_both_directions_equal_explicit_matrices(name: str, pairing: str, block_size: int | None) -> None:
    weighted, cosines = pairings.weighted(PAIRINGS[pairing], WEIGHTS), cosines_of(JUDGED_ROWS, JUDGED_COLUMNS)
    found = differentiated(OBJECTIVES[name], weighted, symmetric=True, block_size=block_size)[0]
    forth, mask = by_matrices(pairing, cosines, TAGGED_ROWS, TAGGED_COLUMNS)
    back, turned_mask = by_matrices(pairing, cosines.T, TAGGED_COLUMNS, TAGGED_ROWS)
    first = differentiated(OBJECTIVES[name], pairings.weighted(forth, WEIGHTS), mask=mask)[0]
    turned = pairings.weighted(back, WEIGHTS.T.copy())
    second = differentiated(OBJECTIVES[name], turned, V, U, mask=turned_mask)[0]
    assert found == pytest.approx(0.5 * (first + second), rel=1e-12)


# -------------------------------------------------------------------------------------------------- results of rules


def with_nan(x: np.ndarray, *where: int, number: float = math.nan) -> np.ndarray:
    x = np.array(x)
    x[where] = number
    return x


def everything_positive(tile: pairings.Tile) -> tuple[Any, ...]:
    everything = (tile.i >= 0) & (tile.j >= 0)
    return everything, ~everything, tile.pairs[0]


HALF = np.where(SQUARE_POSITIVES, 0.5, 0.0)
WITHOUT_ONE = np.where(np.arange(SIZE * SIZE).reshape(SIZE, SIZE) == SIZE + 3, 0.0, WEIGHTS)
EQUAL: dict[str, tuple[Pairing, Pairing]] = {
    "rules by matrices and by elements": (OF_SETS["by matrices"], of_judged(near)),
    "a rule that tells rows alone, and columns alone": (
        Pairing(lambda tile: (tile.j < 2, tile.i >= 0)),
        Pairing(lambda tile: ((tile.j < 2) & (tile.i >= 0), (tile.i >= 0) & (tile.j >= 0))),
    ),
    "weights multiply": (pairings.weighted(pairings.soft(WEIGHTS), WEIGHTS), pairings.soft(WEIGHTS * WEIGHTS)),
    "a positive without weight is a negative": (Pairing(everything_positive, pairs=(HALF,)), pairings.soft(HALF)),
    "equal weights are those of sets": (pairings.soft(HALF), OF_SETS["explicit"]),
    "NaN of a pair that another weight leaves out": (
        pairings.weighted(pairings.soft(with_nan(WEIGHTS, 1, 3)), WITHOUT_ONE),
        pairings.weighted(pairings.soft(WEIGHTS), WITHOUT_ONE),
    ),
    "a guide of NaN leaves nothing out": (pairings.guided(*np.full((2, SIZE, 3), math.nan)), pairings.diagonal()),
}


@directions
@blocks
@pytest.mark.parametrize(
    ("pairing", "name"),
    [
        *((pairing, name) for pairing in EQUAL for name in ("info_nce", "pooled", "flat_nce")),
        *(("rules by matrices and by elements", name) for name in ("logistic", "relic")),
    ],
)
def test_equal_pairings_have_equal_losses(pairing: str, name: str, block_size: int | None, *, symmetric: bool) -> None:
    options = {"block_size": block_size, "symmetric": symmetric, "mask": SQUARE_MASK}
    found, wanted = (differentiated(OBJECTIVES[name], one, **options) for one in EQUAL[pairing])
    assert_same(found, wanted)


@pytest.mark.parametrize("one_per_row", [False, True])
def test_a_pair_may_be_positive_and_negative(*, one_per_row: bool) -> None:
    """Its score then has both cotangents."""
    pairing = Pairing(lambda tile: (tile.i == tile.j, (tile.i >= 0) & (tile.j >= 0)), one_per_row=one_per_row)

    def loss(x: Any) -> Any:
        return pnce.contrast(x, V, objective="info_nce", pairing=pairing)

    step = 1e-6 * RANDOM.normal(size=U.shape)
    slope = float(np.sum(pnce.grad(loss)(U) * step))
    assert slope == pytest.approx(float(loss(U + step) - loss(U - step)) / 2, rel=1e-5)


def test_rules_see_rows_as_rows() -> None:
    """Arrays of rows, columns and pairs have the same shapes in both directions of a symmetric loss."""
    seen = []

    def rule(tile: pairings.Tile) -> tuple[Any, Any]:
        n, k = tile.i.shape[0], tile.j.shape[1]
        assert (tile.i.shape, tile.j.shape) == ((n, 1), (1, k))
        i, j, arrays = tile.i, tile.j, (*tile.rows, *tile.columns, *tile.pairs, tile.mask)
        wanted = (KINDS[i], JUDGED_ROWS[i], JUDGED_COLUMNS[j], FURTHER_KINDS[j], WEIGHTS[i, j], SQUARE_MASK[i, j])
        for found, want in zip(arrays, wanted, strict=True):
            np.testing.assert_array_equal(found, want, strict=True)
        seen.append((n, k))
        return tile.i == tile.j, tile.i != tile.j

    pairing = Pairing(rule, rows=(KINDS, JUDGED_ROWS), columns=(JUDGED_COLUMNS, FURTHER_KINDS), pairs=(WEIGHTS,))
    options = {"mask": SQUARE_MASK, "symmetric": True, "block_size": 4}
    found = differentiated("info_nce", pairing, **options)
    assert {(4, SIZE), (SIZE, 4)} <= {*seen}
    assert_same(found, differentiated("info_nce", pairings.diagonal(), **options))


def test_a_rule_knows_the_size_of_the_matrix() -> None:
    """The size of the whole matrix in every tile, transposed in the other direction."""

    def rule(tile: pairings.Tile) -> tuple[Any, Any]:
        assert (tile.n_rows, tile.n_columns) == (ROWS, COLUMNS)
        return tile.i == tile.j, tile.i != tile.j

    rows_of(Pairing(rule), X, Y, block_size=2)
    rows_of(Pairing(rule).transposed(), Y, X, block_size=2)


@pytest.mark.parametrize("pairing", ["kernel", "own kernel", "teacher", "own teacher", "teacher of cwcl", "smoothed"])
def test_objectives_that_are_constant_without_negatives_are_refused(pairing: str) -> None:
    """An objective has a gradient with a pairing that has no negatives, or the message names the remedy."""
    plain = PAIRINGS[pairing]
    others = {"hard": objectives.hard_negatives(), "dclw": objectives.dclw(temperature=1.0)}
    for part in (plain, pairings.weighted(plain, WEIGHTS), plain.transposed()):
        for name, objective in {**SOFTMAX, **others}.items():
            if name in {"info_nce", "anchor"}:
                assert np.any(differentiated(objective, part)[1])
                continue
            with pytest.raises(ValueError, match=r"objective: .* no negatives, .*multi_positive='each'"):
                differentiated(objective, part)
        with pytest.raises(ValueError, match=r"hardness: expected 0 with <pairing .*, which has no negatives, got 2.0"):
            pnce.contrast(U, V, objective="info_nce", pairing=part, hardness=2.0)


def test_relic_refuses_more_columns_than_rows() -> None:
    for pairing in (pairings.diagonal(), pairings.queue()):
        with pytest.raises(ValueError, match=r"objective: .*6 rows and 9 columns.*portable_nce.relic\(keys=...\)"):
            pnce.contrast(U, Y, objective=objectives.relic(), pairing=pairing)


# ------------------------------------------------------------------------------------- transposes, flags, references


def test_a_transposed_tile_has_everything_turned() -> None:
    rows, columns = (KINDS[:2, None], JUDGED_ROWS[:2, None, :]), (JUDGED_COLUMNS[None, :, :], FURTHER_KINDS[None, :])
    i, j, mask = np.asarray([[3], [4]]), np.arange(SIZE)[None, :], MASK[:2, :SIZE]
    tile = pairings.Tile(i, j, 7, SIZE, rows, columns, (WEIGHTS[:2],), np.float32, mask)
    turned = tile.transposed()
    assert (turned.n_rows, turned.n_columns, turned.dtype) == (SIZE, 7, np.float32)
    wanted = (j.T, i.T, JUDGED_COLUMNS[:, None, :], FURTHER_KINDS[:, None], KINDS[None, :2], JUDGED_ROWS[None, :2, :])
    arrays = (turned.i, turned.j, *turned.rows, *turned.columns, *turned.pairs, turned.mask)
    for found, want in zip(arrays, (*wanted, WEIGHTS[:2].T, mask.T), strict=True):
        np.testing.assert_array_equal(found, want)
    assert tile._replace(mask=None).transposed().mask is None


@pytest.mark.parametrize("name", PAIRINGS)
def test_a_pairing_transposed_is_that_of_the_transposed_matrix(name: str) -> None:
    """Transposing twice gives the original; `with_arrays` keeps the kind."""
    pairing, turned = PAIRINGS[name], PAIRINGS[name].transposed()
    assert (turned.one_per_row, turned.one_per_column) == (pairing.one_per_column, pairing.one_per_row)
    assert turned.transposed().rule == pairing.rule
    arrays = (*turned.rows, *turned.columns, *turned.pairs)
    for found, want in zip(arrays, (*pairing.columns, *pairing.rows, *(x.T for x in pairing.pairs)), strict=True):
        np.testing.assert_array_equal(found, want)
    assert pairing.with_arrays(rows=pairing.rows, columns=pairing.columns, pairs=pairing.pairs) == pairing


FURTHER: dict[str, Pairing] = {
    "three views": pairings.several_views(3),
    "no positives": pairings.candidates(),
    "marked rows": pairings.for_marked_rows(pairings.diagonal(), np.arange(SIZE) % 2 == 0),
    "views and columns": pairings.with_negatives(pairings.two_views(), np.arange(SIZE + 3) != SIZE + 1),
}
KNOWN = {name: pairing for name, pairing in {**PAIRINGS, **FURTHER}.items() if pairing.positives.known}


def of_kind(pairing: Pairing, n_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Give positives and negatives by the kind of a pairing of six rows, its flags and extra columns."""
    kind = pairing.positives
    i, j = np.indices((SIZE, n_columns))
    own, included = i == j, np.ones((SIZE, n_columns), dtype=bool)
    match kind:
        case pairings.NoPositives():
            positives, negatives = ~included, included
        case pairings.ByIndex():
            positives = kind.index[:, None] == j
            negatives = ~positives
        case pairings.AheadOfQueue():
            positives, negatives = own, j >= SIZE
        case pairings.SameId():
            positives, negatives = own, ~own & (kind.rows[:, None] != kind.columns)
        case pairings.SameLabel():
            positives = (kind.rows[:, None] == kind.columns) & ~(own & kind.own)
            negatives = kind.rows[:, None] != kind.columns
        case _ if kind.views == 1:
            positives, negatives = own, ~own
        case _:
            positives = ((i - j) % (SIZE // kind.views) == 0) & ~own & (j < SIZE)
            negatives = ~positives & ~own
    for flags in pairing.valid_rows:
        included = included & flags[:, None]
    for flags in pairing.valid_columns:
        included = included & flags
    return positives & included, negatives & included


@pytest.mark.parametrize("name", KNOWN)
def test_the_kind_of_a_pairing_says_what_its_rule_says(name: str) -> None:
    pairing = KNOWN[name]
    n_columns = SIZE + 3 * (pairing.extra_columns or name == "queue")
    tile = pairings.Tile(
        np.arange(SIZE)[:, None],
        np.arange(n_columns)[None, :],
        SIZE,
        n_columns,
        tuple(x[:, None] for x in pairing.rows),
        tuple(x[None, :] for x in pairing.columns),
        pairing.pairs,
        np.float64,
    )
    for found, wanted in zip(pairings.members_of(pairing.rule, tile)[:2], of_kind(pairing, n_columns), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", KNOWN)
def test_the_arrays_of_a_known_pairing_keep_their_names(name: str) -> None:
    pairing = KNOWN[name]
    changed = pairing.with_arrays(
        rows=tuple(x[::-1] for x in pairing.rows), columns=tuple(x[::-1] for x in pairing.columns)
    )
    for part in ("valid_rows", "valid_columns"):
        for found, own in zip(getattr(changed, part), getattr(pairing, part), strict=True):
            np.testing.assert_array_equal(found, own[::-1])
    assert type(changed.positives) is type(pairing.positives)
    for found, own in zip(changed.positives.arrays, pairing.positives.arrays, strict=True):
        np.testing.assert_array_equal(found, [x[::-1] for x in own])
    for part in ("rows", "columns", "pairs"):
        own = getattr(pairing, part)
        with pytest.raises(ValueError, match=f"{part}: expected a tuple of {len(own)} arrays for <pairing"):
            pairing.with_arrays(**{part: (*own, KINDS)})


def test_pairings_are_equal_if_rule_and_flags_are() -> None:
    first, second = (
        [
            *(pairings.several_views(views) for views in (2, 3)),
            *(Pairing(near, one_per_row=x, one_per_column=y) for x in (False, True) for y in (False, True)),
        ]
        for _ in range(2)
    )
    assert [[one == other for other in second] for one in first] == np.eye(len(first), dtype=bool).tolist()
    assert pairings.smoothed(0.0) == pairings.diagonal()


# --------------------------------------------------------------------------------------------- guides, teachers, queues


@pytest.mark.parametrize("strategy", ["absolute", "relative"])
def test_a_guide_leaves_out_what_comes_near_to_its_positive(strategy: Any) -> None:
    """Also extra columns. For negative similarities of positives, the relative margin is a share of the magnitude."""
    x, judged = U[:4], JUDGED_ROWS[:4]
    cosines = cosines_of(judged, JUDGED_COLUMNS)
    own, is_own = np.diag(cosines)[:, None], np.eye(4, SIZE, dtype=bool)
    for margin in (0.0, 0.9):
        mask, otherwise = (
            np.logical_or(cosines <= own - margin * (share if strategy == "relative" else 1.0), is_own)
            for share in (abs(own), own)
        )
        assert np.any(~mask[:, :4])
        assert np.any(~mask[:, 4:])
        assert np.any(mask & ~is_own)
        assert np.any(mask != otherwise) == (strategy == "relative" and margin > 0)  # the sign matters
        guided = pairings.guided(judged, JUDGED_COLUMNS, margin=margin, strategy=strategy)
        np.testing.assert_allclose(rows_of(guided, x), rows_of(pairings.diagonal(), x, mask=mask), rtol=1e-13)


@pytest.mark.parametrize("width", [2, 256])
def test_a_limit_is_raised_by_its_rounding_alone(width: int) -> None:
    """By 8 plus the square root of the width, in units of eps: 24 for width 256."""
    columns, eps, allowed = np.eye(2, width), float(np.finfo(np.float64).eps), 8 + math.sqrt(width)
    # The second column has similarity 0; the limit, 1 minus the margin, is a few eps below.
    for units in (4, allowed - 1, allowed + 1, 100):
        guided = pairings.guided(columns[:1], columns, margin=1.0 + units * eps)
        (loss,) = rows_of(guided, np.zeros((1, 2)), np.zeros((2, 2)))  # the logarithm of the number of columns
        assert loss == pytest.approx(0.0 if units > allowed else math.log(2.0)), units


@pytest.mark.parametrize("strategy", ["absolute", "relative"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [2, 96, 1000])
def test_a_similarity_that_equals_the_limit_is_not_above_it(
    width: int, dtype: str, strategy: Literal["absolute", "relative"]
) -> None:
    """Duplicates of the positive stay negatives, whatever the summation order of a library."""
    rng = np.random.default_rng(width)
    guide, keys = rng.standard_normal((2, 24, width)).astype(dtype)
    guide[12:], keys = guide[:12], (guide + keys).astype(dtype)
    keys[12:] = keys[:12]
    x, y = rng.standard_normal((2, 24, 4)).astype(dtype)
    cosines = cosines_of(guide, keys)
    mask = cosines <= np.diag(cosines)[:, None] + 1e-5
    wanted = float(pnce.info_nce(x, y, temperature=0.5, mask=mask))
    options: Any = {"temperature": 0.5, "margin_strategy": strategy}
    libraries: tuple[Callable[[Any], Any], ...] = (np.asarray, torch.asarray)
    for convert in libraries:
        for block_size in (None, 5):
            found = pnce.gist_embed(*map(convert, (x, y, guide, keys)), **options, block_size=block_size)
            assert float(found) == pytest.approx(wanted, rel=1e-5 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0.05, 0.005, 0.001])
@pytest.mark.parametrize("block_size", [None, 2])
def test_targets_are_of_what_takes_part(dtype: Any, temperature: float, block_size: int | None) -> None:
    """An excluded column, the row's own or the nearest other, does not make the other targets underflow."""
    for without_nearest in (False, True):
        check_targets(dtype, temperature, block_size, without_nearest=without_nearest)


def check_targets(dtype: Any, temperature: float, block_size: int | None, *, without_nearest: bool) -> None:
    x, judged, others = U.astype(dtype), JUDGED_ROWS.astype(dtype), ~np.eye(SIZE, dtype=bool)
    scores, cosines = cosines_of(x, x), cosines_of(judged, judged)
    if without_nearest:
        others[np.arange(SIZE), np.argmax(np.where(others, cosines, -1.0), axis=1)] = False
    scores, cosines = (np.where(others, z, -math.inf) for z in (scores, cosines))
    targets = np.exp(log_softmax(cosines / temperature))
    wanted = -np.where(others, targets * np.where(others, log_softmax(scores / 0.5), 0.0), 0.0).sum(axis=1).mean()
    own = pairings.teacher(judged, temperature=temperature)
    weighted = pairings.weighted(pairings.teacher(judged, judged, temperature=temperature), others.astype(dtype))
    options: dict[str, Any] = {"temperature": 0.5, "block_size": block_size}
    for found in (
        pnce.distillation(x, x, judged, judged, mask=others, teacher_temperature=temperature, **options),
        pnce.contrast(x, objective="info_nce", pairing=own, mask=others if without_nearest else None, **options),
        pnce.contrast(x, x, objective="info_nce", pairing=weighted, mask=others, **options),
    ):
        assert found == pytest.approx(wanted, rel=1e-4 if dtype == np.float32 else 1e-9)


def test_an_own_column_that_is_not_valid_is_no_positive() -> None:
    valid = np.asarray([True, False, True, True, False, True, True, True, True])
    scores, further = X @ Y.T, [7, 8]
    wanted = [np.log1p(np.exp(scores[i, further] - scores[i, i]).sum()) if valid[i] else 0.0 for i in range(ROWS)]
    np.testing.assert_allclose(rows_of(pairings.queue(valid), X, Y), wanted, rtol=1e-12)


def test_shares_of_smoothing_are_of_all_columns() -> None:
    targets = 0.7 * np.eye(ROWS, COLUMNS) + 0.3 / COLUMNS
    wanted = -(targets * log_softmax(X @ Y.T)).sum(axis=1)
    np.testing.assert_allclose(rows_of(pairings.smoothed(0.3), X, Y), wanted, rtol=1e-12)


@pytest.mark.parametrize("asarray", [np.asarray, torch.asarray], ids=["numpy", "torch"])
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("name", ["soft", "weighted", "teacher", "own teacher", "guided"])
def test_arrays_of_a_pairing_have_no_gradient(name: str, block_size: int | None, asarray: Any) -> None:
    def loss(u: Any, weights: Any, rows: Any, columns: Any) -> Any:
        pairing = {
            "soft": pairings.soft(weights),
            "weighted": pairings.weighted(pairings.diagonal(), weights),
            "teacher": pairings.teacher(rows, columns, temperature=0.5),
            "own teacher": pairings.teacher(rows, temperature=0.5),
            "guided": pairings.guided(rows, columns, margin=0.1),
        }[name]
        return pnce.contrast(u, asarray(V), objective="info_nce", pairing=pairing, block_size=block_size)

    arrays = tuple(map(asarray, (U, WEIGHTS, JUDGED_ROWS, JUDGED_COLUMNS)))
    _, gradients = pnce.value_and_grad(loss, argnums=(0, 1, 2, 3))(*arrays)
    assert [bool(np.asarray(gradient).any()) for gradient in gradients] == [True, False, False, False]


# ----------------------------------------------------------------------------------------------- masks and NaN


SOFT_NAN = pairings.soft(with_nan(WEIGHTS * (KINDS[:, None] == FURTHER_KINDS), 1, 3))
ROW_AT_INFINITY = with_nan(JUDGED_ROWS, 1, number=math.inf)
WEIGHTED_NAN = pairings.weighted(pairings.diagonal(), with_nan(WEIGHTS, 1, 3))
# Pairings with NaN at the pair (1, 3), or in all of row 1 or column 3.
OF_NAN: dict[str, Pairing] = {
    "soft": SOFT_NAN,
    "soft, one positive": pairings.soft(with_nan(np.eye(SIZE)[[0, 3, 2, 1, 4, 5]], 1, 3)),
    "weighted, positive": pairings.weighted(pairings.index(np.full(SIZE, 3)), with_nan(WEIGHTS, 1, 3)),
    "weighted, negative": WEIGHTED_NAN,
    "weighted, twice": pairings.weighted(WEIGHTED_NAN, WEIGHTS),
    "weighted, soft": pairings.weighted(SOFT_NAN, WEIGHTS),
}
OF_TEACHERS: dict[str, Pairing] = {
    "soft, all": pairings.soft(with_nan(WEIGHTS, 1, 3)),
    "teacher, row": pairings.teacher(with_nan(JUDGED_ROWS, 1), JUDGED_COLUMNS, temperature=0.5),
    "teacher, row at infinity": pairings.teacher(ROW_AT_INFINITY, JUDGED_COLUMNS, temperature=0.5),
    "teacher, column": pairings.teacher(JUDGED_ROWS, with_nan(JUDGED_COLUMNS, 3), temperature=0.5),
    "own teacher": pairings.teacher(with_nan(JUDGED_ROWS, 3), temperature=0.5),
    "cwcl, row": pairings.teacher(with_nan(JUDGED_ROWS, 1), JUDGED_COLUMNS, temperature=None),
    "cwcl, column": pairings.teacher(JUDGED_ROWS, with_nan(JUDGED_COLUMNS, 3), temperature=None),
}
NAN_CASES = [
    *((name, objective) for name in OF_NAN for objective in OBJECTIVES if objective != "anchor"),
    *((name, objective) for name in OF_TEACHERS for objective in ("info_nce", "logistic", "logistic, pairs")),
]


@pytest.mark.parametrize("asarray", [np.asarray, torch.asarray], ids=["numpy", "torch"])
@directions
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize(("name", "objective"), NAN_CASES)
def test_nan_is_not_perfect(
    name: str, objective: str, block_size: int | None, asarray: Any, *, symmetric: bool
) -> None:
    """NaN weights make the loss and gradients of their rows NaN, not 0."""
    pairing = {**OF_NAN, **OF_TEACHERS}[name]
    if objective == "relic" and not name.startswith("weighted"):
        pairing = pairings.weighted(pairing, ONES)
    arrays: dict[str, Any] = {key: tuple(map(asarray, getattr(pairing, key))) for key in ("rows", "columns", "pairs")}
    options = {"symmetric": symmetric, "block_size": block_size}
    value, of_rows, of_columns = differentiated(
        OBJECTIVES[objective], pairing.with_arrays(**arrays), asarray(U), asarray(V), **options
    )
    assert math.isnan(value)
    assert np.isnan(of_rows[1]).all()
    assert np.isnan(of_columns).any()


def test_nan_of_positives_of_hard_negatives() -> None:
    assert math.isnan(differentiated(objectives.hard_negatives(), SOFT_NAN)[0])


@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("name", [*OF_NAN, "soft, all", "teacher, row", "teacher, row at infinity", "cwcl, row"])
def test_nan_is_of_its_row(name: str, block_size: int | None) -> None:
    """Other rows keep their losses, and so does this row if a mask excludes the NaN."""
    pairing = {**OF_NAN, **OF_TEACHERS}[name]
    rows = rows_of(pairing, block_size=block_size)
    np.testing.assert_array_equal(np.isnan(rows), np.arange(SIZE) == 1)
    mask = np.ones((SIZE, SIZE), dtype=bool)
    mask[1, slice(None) if "row" in name else 3] = False
    masked = rows_of(pairing, mask=mask, block_size=block_size)
    assert np.isfinite(masked).all()
    np.testing.assert_allclose(np.delete(masked, 1), np.delete(rows, 1), rtol=1e-13)


# ---------------------------------------------------------------------------------------------------------- errors


def loss_of(pairing: Any, shape: tuple[int, int] = (SIZE, SIZE), objective: Any = "info_nce") -> Any:
    """Give the loss of a pairing of a matrix of that shape."""
    return pnce.contrast(np.ones((shape[0], 2)), np.ones((shape[1], 2)), objective=objective, pairing=pairing)


def rule_that_returns(returned: Callable[[Any, Any], tuple[Any, ...]]) -> Pairing:
    return Pairing(lambda tile: returned(tile.i == tile.j, tile.i != tile.j))


OF_ONES = pairings.weighted(pairings.explicit(SQUARE_POSITIVES), ONES)
NO_ARRAYS: list[Any] = [None, [[1.0, 0.0]], np.eye(3, 2).tolist()]
GUIDE = "columns: expected the guide's embeddings, got"
FEW_COLUMNS = "columns: expected one for each row, and further ones"
UNWEIGHTED = "pairing: expected pairs without weights"
SETS = "pairing: expected positives without weights"
TWO_VIEWS = "pairing: two views: expected a square matrix of an even number of rows"
SHAPES = r"pairing: expected a rule that returns arrays of shape \(6, 6\), got \(1, 1\)"
OF_POSITIVES = "pairing: expected weights of positives, floating-point numbers of shape"
OF_NEGATIVES = "pairing: expected weights of negatives, floating-point numbers of shape"
TUPLE = "pairing: expected a rule that returns a pair of boolean arrays"
MININGS: tuple[Literal["batch_all", "batch_hard", "semi_hard"], ...] = ("batch_all", "batch_hard", "semi_hard")
TRIPLETS = [objectives.triplet(mining=mining) for mining in MININGS]

REFUSED: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (TypeError, "pairing: expected a Pairing, got str", lambda: pairings.weighted("diagonal", ONES)),  # type: ignore[arg-type]
    (TypeError, "weights: expected a real floating-point", lambda: pairings.weighted(OF_ONES, ONES.astype(int))),
    (ValueError, r"weights: expected shape \(N, K\)", lambda: pairings.weighted(OF_ONES, np.ones((2,)))),
    (ValueError, r"pairing\.pairs: expected shape \(7, 7\)", lambda: loss_of(OF_ONES, (7, 7))),
    (ValueError, TWO_VIEWS, lambda: loss_of(pairings.two_views(), (5, 5))),
    (ValueError, TWO_VIEWS, lambda: loss_of(pairings.two_views(), (4, 6))),
    (ValueError, TWO_VIEWS, lambda: loss_of(pairings.weighted(pairings.two_views(), np.ones((5, 5))), (5, 5))),
    (ValueError, r"smoothing: expected a number from 0 to less than 1, got 1\.0", lambda: pairings.smoothed(1.0)),
    *((TypeError, GUIDE, partial(pairings.guided, np.eye(2), x)) for x in NO_ARRAYS),
    (ValueError, r"columns: expected shape \(2, 3\), got", lambda: pairings.guided(np.eye(3), np.eye(2))),
    (ValueError, r"columns: expected shape \(2, 3\), got", lambda: pairings.teacher(np.eye(3), np.eye(2))),
    (ValueError, f"{FEW_COLUMNS}, got 2 for 3", lambda: pairings.guided(np.eye(3), np.eye(2, 3))),
    (ValueError, SHAPES, lambda: loss_of(rule_that_returns(lambda p, n: (p, n[:1, :1])))),
    (TypeError, f"{TUPLE}, or also weights, got tuple", lambda: loss_of(rule_that_returns(lambda p, _: (p,)))),
    (TypeError, TUPLE, lambda: loss_of(rule_that_returns(lambda p, n: (p, n, p * 1.0, p * 1.0, p * 1.0)))),
    (ValueError, OF_POSITIVES, lambda: loss_of(rule_that_returns(lambda p, n: (p, n, p[:, :1] * 1.0)))),
    (ValueError, OF_POSITIVES, lambda: loss_of(rule_that_returns(lambda p, n: (p, n, p)))),
    (ValueError, OF_NEGATIVES, lambda: loss_of(rule_that_returns(lambda p, n: (p, n, p * 1.0, n[:1] * 1.0)))),
    *(
        (ValueError, UNWEIGHTED, partial(loss_of, OF_ONES, objective=x))
        for x in (objectives.hard_negatives(), *TRIPLETS)
    ),
    *((ValueError, SETS, partial(loss_of, OF_WEIGHTS["soft"], objective=x)) for x in TRIPLETS),
]


@pytest.mark.parametrize(("error", "message", "call"), REFUSED)
def test_wrong_calls_of_pairings_are_refused(error: type[Exception], message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=rf"\A{message}"):
        call()


def y_aware(x: np.ndarray, y: np.ndarray, bandwidth: float, temperature: float) -> float:
    """Compute the paper's loss of rows against all others, term by term."""
    losses = []
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        weights = {j: math.exp(-((y[i] - y[j]) ** 2) / (2.0 * bandwidth**2)) for j in others}
        total = sum(math.exp(float(x[i] @ x[j]) / temperature) for j in others)
        terms = (w * math.log(math.exp(float(x[i] @ x[j]) / temperature) / total) for j, w in weights.items())
        losses.append(-sum(terms) / sum(weights.values()))
    return sum(losses) / len(losses)


@blocks
def test_the_kernel_is_that_of_y_aware_info_nce(block_size: int | None) -> None:
    x, ages = U / np.linalg.norm(U, axis=1, keepdims=True), np.linspace(20.0, 80.0, SIZE) ** 1.1
    pairing = pairings.kernel(ages, bandwidth=9.0)
    found = pnce.contrast(x, objective="info_nce", pairing=pairing, temperature=0.3, block_size=block_size)
    assert found == pytest.approx(y_aware(x, ages, 9.0, 0.3), rel=1e-12)


def test_a_narrow_kernel_leaves_the_nearest_label() -> None:
    """Also if all weights would underflow; labels keep the precision of their dtype."""
    seconds = 1.7e9 + np.asarray([0.0, 1.0, 3.0, 7.0, 20.0, 50.0])[:SIZE]
    found = rows_of(pairings.kernel(seconds, bandwidth=1e-3), U.astype("float32"), U.astype("float32"))
    nearest = [int(np.argmin(np.where(np.arange(SIZE) == i, np.inf, abs(seconds - seconds[i])))) for i in range(SIZE)]
    others = ~np.eye(SIZE, dtype=bool)
    wanted = rows_of(pairings.index(np.asarray(nearest)), U, U, mask=others)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    far = rows_of(pairings.kernel(np.asarray([0.0, 1e300] * 3)[:SIZE], bandwidth=1.0))
    assert np.all(np.isfinite(far))


def test_a_label_of_nan_makes_its_pairs_nan_unless_they_are_masked() -> None:
    ages = with_nan(np.linspace(0.0, 5.0, SIZE), 2)
    mask = np.ones((SIZE, SIZE), dtype=bool)
    mask[2, :] = mask[:, 2] = False
    assert np.all(np.isnan(rows_of(pairings.kernel(ages, bandwidth=1.0))))
    assert np.all(np.isfinite(rows_of(pairings.kernel(ages, bandwidth=1.0), mask=mask)))


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
OF_INDICES: Any = {
    "index": lambda x, y, p: pnce.contrast(x, y, objective="info_nce", pairing=pnce.pairings.index(p)),
    "index, no products": lambda x, y, p: pnce.contrast(
        x, y, objective="info_nce", pairing=pnce.pairings.index(p), similarity="neg_euclidean"
    ),
    "info_nce": lambda x, y, p: pnce.info_nce(x, y, positives=p),
    "from_scores": lambda x, y, p: pnce.from_scores.info_nce(x @ y.T, positives=p),
    "bounds": lambda x, y, p: pnce.bounds.info_nce(x @ y.T, positives=p),
    "linear_softmax": lambda x, y, p: pnce.density.linear_softmax(x, y, p, smoothing=0.1, ignore_index=-100),
    "full_softmax": lambda x, y, p: pnce.density.full_softmax(x @ y.T, p),
    "proto_nce": lambda x, y, p: pnce.proto_nce(x, y, p, y[:, 0] ** 2 + 1.0),
    "concentrations": lambda x, y, p: pnce.concentrations(x, y, p).sum(),
    "top_k": lambda x, y, p: pnce.diagnostics.top_k(x, y, 2, exclude=p).scores.sum(),
    "recall_at": lambda x, y, p: pnce.diagnostics.recall_at(x, y, positives=p, k=2),
}


@pytest.mark.parametrize("name", OF_INDICES)
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_indices_of_every_integer_dtype(library: str, name: str) -> None:
    make: Any = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}[library]
    x, y = (make(np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)) for n in (3, 5))
    found = [
        float(OF_INDICES[name](x, y, make(np.asarray([2, 0, 4]).astype(dtype))))
        for dtype in INTEGERS
        if not (library == "jax" and dtype.endswith("64"))
    ]
    assert found == found[:1] * len(found)


def test_a_queue_has_one_positive_a_row_and_is_worth_nothing_without_further_columns() -> None:
    row = X[:1]
    for pairing in (pairings.queue(), pairings.queue(np.asarray([True]))):
        assert float(pnce.contrast(row, row, objective="info_nce", pairing=pairing)) == 0.0
        assert (pairing.one_per_row, pairing.one_per_column) == (True, True)
