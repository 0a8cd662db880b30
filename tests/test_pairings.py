"""Weights of pairs: a negative of weight 2 is two of them, and so is any term of a sum over pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce import objectives, pairings

if TYPE_CHECKING:
    from portable_nce.objectives import AnyObjective

RANDOM = np.random.default_rng(7)
ROWS, COLUMNS, WIDTH = 7, 9, 5
X, Y = RANDOM.normal(size=(ROWS, WIDTH)), RANDOM.normal(size=(COLUMNS, WIDTH))
OFTEN = np.asarray([1, 2, 3, 1, 0, 4, 2, 3, 1])
COPIES = np.repeat(np.arange(COLUMNS), OFTEN)
IS_FIRST = np.asarray([k == 0 or COPIES[k - 1] != column for k, column in enumerate(COPIES)])
MASK = RANDOM.uniform(size=(ROWS, COLUMNS)) > 0.2
POSITIVES = RANDOM.uniform(size=(ROWS, COLUMNS)) > 0.6
ROW_WEIGHTS = RANDOM.uniform(size=(ROWS,)) + 0.5

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


def value_and_gradients(objective: AnyObjective, pairing: Any, y: np.ndarray, **options: Any) -> tuple[Any, Any]:
    """Give a loss, or the sum of the squares of the losses of rows, with its gradients."""

    def loss(x: Any, y: Any) -> Any:
        losses = pnce.contrast(x, y, objective=objective, pairing=pairing, similarity="dot", **options)
        return losses if losses.ndim == 0 else losses.__array_namespace__().sum(losses * losses)

    value, gradients = pnce.value_and_grad(loss, argnums=(0, 1))(X, y)
    return value, gradients


def of_columns(gradient: np.ndarray) -> np.ndarray:
    """Give the gradient of columns, of which that of the copies is given."""
    return np.stack([gradient[column == COPIES].sum(axis=0) for column in range(COLUMNS)])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("name", [*SOFTMAX, *PAIRS])
def test_copies(name: str, block_size: int | None, reduction: str) -> None:
    objective, of_pairs = {**SOFTMAX, **PAIRS}[name], name in PAIRS
    often = np.repeat(OFTEN[None, :], ROWS, axis=0).astype(float)
    mask = MASK[:, COPIES]
    if not of_pairs:  # whose positives are one each, of the same weight
        often[POSITIVES] = np.minimum(often, 1)[POSITIVES]
        mask = mask & (IS_FIRST | ~POSITIVES[:, COPIES])
    pairing = pairings.weighted(pairings.explicit(POSITIVES), often)
    options: dict[str, Any] = {"reduction": reduction, "weights": ROW_WEIGHTS}
    value, gradients = value_and_gradients(objective, pairing, Y, mask=MASK, block_size=block_size, **options)
    copies = pairings.explicit(POSITIVES[:, COPIES])
    wanted, expected = value_and_gradients(objective, copies, Y[COPIES], mask=mask, **options)
    np.testing.assert_allclose(value, wanted, rtol=1e-13)
    np.testing.assert_allclose(gradients[0], expected[0], rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(gradients[1], of_columns(expected[1]), rtol=1e-11, atol=1e-14)


def test_relic() -> None:
    """The shares that are compared have the weights of their pairs."""
    weights = OFTEN[:ROWS] + 0.5 * np.arange(ROWS)[:, None] + np.eye(ROWS)
    y = Y[:ROWS]
    got = pnce.contrast(
        X, y, objective=objectives.relic(), pairing=pairings.weighted(pairings.diagonal(), weights), similarity="dot"
    )

    def shares(scores: np.ndarray) -> Any:
        exponentials = np.exp(scores) * np.where(np.eye(ROWS) > 0, 1.0, weights)
        return exponentials / exponentials.sum(axis=1, keepdims=True)

    scores = X @ y.T
    p, q = shares(scores), shares(scores.T)
    positive = np.diag(p)
    divergence = np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0) / np.where(q > 0, q, 1.0)), 0.0).sum(axis=1)
    np.testing.assert_allclose(got, (divergence - np.log(positive)).mean(), rtol=1e-13)


@pytest.mark.parametrize(
    "objective",
    [
        objectives.hard_negatives(),
        objectives.triplet(),
        objectives.triplet(mining="batch_hard"),
        objectives.triplet(mining="semi_hard"),
    ],
)
def test_refused(objective: AnyObjective) -> None:
    pairing = pairings.weighted(pairings.explicit(POSITIVES), np.ones((ROWS, COLUMNS)))
    with pytest.raises(ValueError, match="pairing: expected pairs without weights"):
        pnce.contrast(X, Y, objective=objective, pairing=pairing)


def test_weights_multiply() -> None:
    """The weights of soft positives and those of pairs are multiplied."""
    targets, weights = RANDOM.uniform(size=(ROWS, COLUMNS)), RANDOM.uniform(size=(ROWS, COLUMNS)) + 0.5
    both = pairings.weighted(pairings.soft(targets), weights)
    at_once = pairings.soft(targets * weights)
    options: dict[str, Any] = {"objective": "info_nce", "similarity": "dot"}
    got = pnce.contrast(X, Y, pairing=both, **options)
    np.testing.assert_allclose(got, pnce.contrast(X, Y, pairing=at_once, **options), rtol=1e-14)


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="pairing: expected a Pairing, got str"):
        pairings.weighted("diagonal", np.ones((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="weights"):
        pairings.weighted(pairings.diagonal(), np.ones((2, 2), dtype=np.int64))
    with pytest.raises(ValueError, match="weights"):
        pairings.weighted(pairings.diagonal(), np.ones((2,)))
    with pytest.raises(ValueError, match=r"pairing\.pairs: expected shape"):
        pnce.contrast(X, X, objective="info_nce", pairing=pairings.weighted(pairings.diagonal(), np.ones((2, 2))))


# -------------------------------------------------------------------------------- pairings of which others are made

SIZE = 6
U, V = RANDOM.normal(size=(2, SIZE, WIDTH))
JUDGED_ROWS, JUDGED_COLUMNS = RANDOM.normal(size=(2, SIZE, 3))
TAGGED_ROWS, TAGGED_COLUMNS = RANDOM.uniform(size=(2, SIZE, 3)) < 0.6
KINDS, FURTHER_KINDS = np.asarray([0, 0, 1, 2, 1, 3]), np.asarray([0, 1, 1, 2, 3, 0])
WEIGHTS = RANDOM.uniform(size=(SIZE, SIZE)) + 0.5


def _near(tile: pairings.Tile) -> tuple[Any, Any]:
    products = (tile.rows[0] * tile.columns[0]).sum(axis=-1)
    return products > 0.5, products <= 0.0


def _near_by_matrices(tile: pairings.Tile) -> tuple[Any, Any]:
    """The same rule, which relies on the shapes (n, 1, C) and (1, k, C)."""
    products = tile.rows[0][:, 0, :] @ tile.columns[0][0].T
    return products > 0.5, products <= 0.0


def _by_matrices() -> pairings.Pairing:
    return pairings.Pairing(_near_by_matrices, rows=(JUDGED_ROWS,), columns=(JUDGED_COLUMNS,))


OF_SETS: dict[str, Any] = {
    "diagonal": pairings.diagonal,
    "queue": pairings.queue,
    "queue of valid": lambda: pairings.queue(np.asarray([True, True, False, True, True, True])),
    "two views": pairings.two_views,
    "index": lambda: pairings.index(np.asarray([3, 0, 5, 5, 1, 2])),
    "labels": lambda: pairings.labels(KINDS, FURTHER_KINDS),
    "own labels": lambda: pairings.labels(KINDS),
    "ids": lambda: pairings.ids(KINDS),
    "explicit": lambda: pairings.explicit(POSITIVES[:SIZE, :SIZE]),
    "guided": lambda: pairings.guided(JUDGED_ROWS, JUDGED_COLUMNS),
    "guided, relative": lambda: pairings.guided(JUDGED_ROWS, JUDGED_COLUMNS, margin=0.25, strategy="relative"),
    "by matrices": _by_matrices,
}
OF_WEIGHTS: dict[str, Any] = {
    "soft": lambda: pairings.soft(WEIGHTS * POSITIVES[:SIZE, :SIZE]),
    "overlap": lambda: pairings.overlap(TAGGED_ROWS, TAGGED_COLUMNS),
    "own overlap": lambda: pairings.overlap(TAGGED_ROWS),
    "teacher": lambda: pairings.teacher(JUDGED_ROWS, JUDGED_COLUMNS, temperature=0.5),
    "own teacher": lambda: pairings.teacher(JUDGED_ROWS, temperature=0.5),
    "teacher of cwcl": lambda: pairings.teacher(JUDGED_ROWS, JUDGED_COLUMNS, temperature=None),
    "smoothed": lambda: pairings.smoothed(0.3),
}


def both(objective: Any, pairing: Any, **options: Any) -> np.ndarray:
    """Give a loss of square scores and its gradients in one row of numbers."""

    def loss(u: Any, v: Any) -> Any:
        return pnce.contrast(u, v, objective=objective, pairing=pairing, similarity="dot", **options)

    value, gradients = pnce.value_and_grad(loss, argnums=(0, 1))(U, V)
    return np.concatenate([np.ravel(x) for x in (value, *gradients)])


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("block_size", [None, 4])
@pytest.mark.parametrize("pairing", [*OF_SETS, *OF_WEIGHTS])
@pytest.mark.parametrize("name", ["info_nce", "pooled", "separate", "flat_nce", "logistic", "logistic, pairs", "relic"])
def test_ones_change_nothing(name: str, pairing: str, block_size: int | None, *, symmetric: bool) -> None:
    objective = {**SOFTMAX, **PAIRS, "relic": objectives.relic()}[name]
    plain, ones = {**OF_SETS, **OF_WEIGHTS}[pairing](), np.ones((SIZE, SIZE))
    options: dict[str, Any] = {"block_size": block_size, "symmetric": symmetric}
    if name in (*PAIRS, "relic") and pairing in OF_WEIGHTS:  # these take weights of positives and negatives, or none
        plain = pairings.weighted(plain, ones)
    wanted = both(objective, plain, **options)
    once = pairings.weighted(plain, ones)
    for weighted in (once, pairings.weighted(once, ones), once.transposed().transposed()):
        np.testing.assert_allclose(both(objective, weighted, **options), wanted, rtol=1e-11, atol=1e-13)


def _cosines() -> np.ndarray:
    rows, columns = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (JUDGED_ROWS, JUDGED_COLUMNS))
    return np.asarray(rows @ columns.T)


def _matrices(pairing: str, cosines: np.ndarray, tags: tuple[np.ndarray, np.ndarray]) -> tuple[Any, np.ndarray | None]:
    """Give one of the pairings and its mask by matrices, for the rows of the arguments."""
    if pairing == "guided":
        return pairings.diagonal(), (cosines <= np.diag(cosines)[:, None]) | np.eye(SIZE, dtype=bool)
    if pairing == "overlap":
        rows, columns = (x[:, None, :] if k == 0 else x[None, :, :] for k, x in enumerate(tags))
        return pairings.soft((rows & columns).sum(-1) / np.maximum((rows | columns).sum(-1), 1)), None
    if pairing == "smoothed":
        return pairings.soft(0.7 * np.eye(SIZE) + 0.3 / SIZE), None
    if pairing == "teacher of cwcl":
        return pairings.soft(0.5 + 0.5 * cosines), None
    return pairings.soft(np.exp((cosines - cosines.max(axis=1, keepdims=True)) / 0.5)), None


@pytest.mark.parametrize("block_size", [None, 4])
@pytest.mark.parametrize("pairing", ["overlap", "teacher", "teacher of cwcl", "guided", "smoothed"])
@pytest.mark.parametrize("name", ["info_nce", "separate", "flat_nce", "logistic"])
def test_both_directions_are_those_of_matrices(name: str, pairing: str, block_size: int | None) -> None:
    objective, made = {**SOFTMAX, **PAIRS}[name], {**OF_SETS, **OF_WEIGHTS}[pairing]()
    got = both(objective, pairings.weighted(made, WEIGHTS), symmetric=True, block_size=block_size)[0]
    tags = (TAGGED_ROWS, TAGGED_COLUMNS)
    forth, mask = _matrices(pairing, _cosines(), tags)
    back, turned_mask = _matrices(pairing, _cosines().T, tags[::-1])
    options: dict[str, Any] = {"objective": objective, "similarity": "dot"}
    wanted = 0.5 * (
        pnce.contrast(U, V, pairing=pairings.weighted(forth, WEIGHTS), mask=mask, **options)
        + pnce.contrast(V, U, pairing=pairings.weighted(back, WEIGHTS.T.copy()), mask=turned_mask, **options)
    )
    assert got == pytest.approx(float(wanted), rel=1e-12)


# ---------------------------------------------------------------------------------------- rules and what they return


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("block_size", [None, 4])
@pytest.mark.parametrize("name", ["info_nce", "pooled", "logistic", "relic"])
def test_equal_rules_are_equal(name: str, block_size: int | None, *, symmetric: bool) -> None:
    objective = {**SOFTMAX, **PAIRS, "relic": objectives.relic()}[name]
    options: dict[str, Any] = {"block_size": block_size, "symmetric": symmetric}
    elementwise = pairings.Pairing(_near, rows=(JUDGED_ROWS,), columns=(JUDGED_COLUMNS,))
    np.testing.assert_allclose(both(objective, _by_matrices(), **options), both(objective, elementwise, **options))


def test_rules_see_rows_as_rows() -> None:
    """The shapes of what belongs to rows, columns and pairs are the same in both directions of a symmetric loss."""
    seen = []

    def rule(tile: pairings.Tile) -> tuple[Any, Any]:
        n, k = tile.i.shape[0], tile.j.shape[1]
        assert tile.i.shape == (n, 1)
        assert tile.j.shape == (1, k)
        assert [x.shape for x in tile.rows] == [(n, 1), (n, 1, 3)]
        assert [x.shape for x in tile.columns] == [(1, k, 3), (1, k)]
        assert tile.mask is not None
        assert [x.shape for x in (*tile.pairs, tile.mask)] == [(n, k), (n, k)]
        np.testing.assert_array_equal(tile.rows[0], KINDS[tile.i])
        np.testing.assert_array_equal(tile.columns[1], FURTHER_KINDS[tile.j])
        np.testing.assert_array_equal(tile.pairs[0], WEIGHTS[tile.i, tile.j])
        np.testing.assert_array_equal(tile.mask, MASK[:SIZE, :SIZE][tile.i, tile.j])
        seen.append((n, k))
        return tile.i == tile.j, tile.i != tile.j

    pairing = pairings.Pairing(
        rule, rows=(KINDS, JUDGED_ROWS), columns=(JUDGED_COLUMNS, FURTHER_KINDS), pairs=(WEIGHTS,)
    )
    mask, options = MASK[:SIZE, :SIZE], {"symmetric": True, "block_size": 4}
    got = both(objectives.info_nce(), pairing, mask=mask, **options)
    assert {(4, SIZE), (SIZE, 4)} <= {*seen}
    np.testing.assert_allclose(got, both(objectives.info_nce(), pairings.diagonal(), mask=mask, **options))


@pytest.mark.parametrize("symmetric", [False, True])
def test_broadcasting(*, symmetric: bool) -> None:
    """A rule may tell rows alone, or columns alone, but not one truth for all."""
    options: dict[str, Any] = {"symmetric": symmetric, "mask": MASK[:SIZE, :SIZE]}
    first = pairings.Pairing(lambda tile: (tile.j < 2, tile.i >= 0))
    written = pairings.Pairing(lambda tile: ((tile.j < 2) & (tile.i >= 0), (tile.i >= 0) & (tile.j >= 0)))
    np.testing.assert_allclose(both("info_nce", first, **options), both("info_nce", written, **options))
    single = pairings.Pairing(lambda tile: (tile.i == tile.j, tile.i[:1] == tile.j[:, :1]))
    with pytest.raises(
        ValueError, match=r"pairing: expected a rule that returns arrays of shape \(6, 6\), got \(1, 1\)"
    ):
        both("info_nce", single, **options)


# ----------------------------------------------------------------------------- targets: what takes part, and NaN


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=1, keepdims=True)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0.05, 0.005, 0.001])
@pytest.mark.parametrize("block_size", [None, 2])
def test_targets_are_of_what_takes_part(dtype: Any, temperature: float, block_size: int | None) -> None:
    """A column that takes no part, here that of the row itself, does not make the targets of the others underflow."""
    x, judged, others = U.astype(dtype), JUDGED_ROWS.astype(dtype), ~np.eye(SIZE, dtype=bool)
    unit = [z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x.astype(float), judged.astype(float))]
    scores, cosines = (np.where(others, z @ z.T, -math.inf) for z in unit)
    targets = np.exp(_log_softmax(cosines / temperature))
    wanted = -np.where(others, targets * np.where(others, _log_softmax(scores / 0.5), 0.0), 0.0).sum(axis=1).mean()
    own = pairings.teacher(judged, temperature=temperature)
    weighted = pairings.weighted(pairings.teacher(judged, judged, temperature=temperature), others.astype(dtype))
    options: dict[str, Any] = {"temperature": 0.5, "block_size": block_size}
    for got in (
        pnce.distillation(x, x, judged, judged, mask=others, teacher_temperature=temperature, **options),
        pnce.contrast(x, objective="info_nce", pairing=own, **options),
        pnce.contrast(x, x, objective="info_nce", pairing=weighted, mask=others, **options),
    ):
        assert got == pytest.approx(wanted, rel=1e-4 if dtype == np.float32 else 1e-9)


JUDGED: dict[str, Any] = {
    "distillation": lambda u, v, a, b, **o: pnce.distillation(u, v, a, b, temperature=0.5, **o),
    "sharp": lambda u, v, a, b, **o: pnce.distillation(u, v, a, b, temperature=0.5, teacher_temperature=0.01, **o),
    "cwcl": lambda u, v, a, b, **o: pnce.distillation(u, v, a, b, temperature=0.5, teacher_temperature=None, **o),
    "gist": lambda u, v, a, b, **o: pnce.gist_embed(u, v, a, b, temperature=0.5, **o),
    "relative": lambda u, v, a, b, **o: pnce.gist_embed(
        u, v, a, b, margin=0.1, margin_strategy="relative", temperature=0.5, **o
    ),
    "weighted": lambda u, v, a, b, **o: pnce.contrast(
        u,
        v,
        objective="info_nce",
        pairing=pairings.weighted(pairings.teacher(a, b, temperature=0.5), np.ones((len(a), len(b)))),
        **o,
    ),
}


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("name", JUDGED)
def test_what_is_masked_may_hold_anything(name: str, block_size: int | None, bad: float, *, symmetric: bool) -> None:
    gone, kept = 2, np.asarray([0, 1, 3, 4, 5])
    mask = np.ones((SIZE, SIZE), dtype=bool)
    mask[gone], mask[:, gone] = False, False
    options: dict[str, Any] = {"symmetric": symmetric, "block_size": block_size}

    def run(*arrays: np.ndarray, **further: Any) -> tuple[Any, Any]:
        u, v, *judged = arrays
        loss = JUDGED[name]
        return pnce.value_and_grad(lambda u, v: loss(u, v, *judged, **options, **further), argnums=(0, 1))(u, v)

    wanted, expected = run(*(x[kept] for x in (U, V, JUDGED_ROWS, JUDGED_COLUMNS)))
    rows, columns = JUDGED_ROWS.copy(), JUDGED_COLUMNS.copy()
    rows[gone], columns[gone, 1] = bad, bad
    for judged in ((rows, JUDGED_COLUMNS), (JUDGED_ROWS, columns), (rows, columns)):
        value, gradients = run(U, V, *judged, mask=mask)
        np.testing.assert_allclose(value, wanted, rtol=1e-13)
        for gradient, same in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(gradient[kept], same, rtol=1e-10, atol=1e-14)
            assert not gradient[gone].any()


def _with_nan(x: np.ndarray, *where: int) -> np.ndarray:
    x = np.array(x)
    x[where] = math.nan
    return x


# Pairings with NaN that belongs to the pair (1, 3), or to all of the row 1, or of the column 3.
OF_NAN: dict[str, Callable[[], pairings.Pairing]] = {
    "soft": lambda: pairings.soft(_with_nan(WEIGHTS * (KINDS[:, None] == FURTHER_KINDS), 1, 3)),
    "soft, one positive": lambda: pairings.soft(_with_nan(np.eye(SIZE)[[0, 3, 2, 1, 4, 5]], 1, 3)),
    "weighted, positive": lambda: pairings.weighted(pairings.index(np.full(SIZE, 3)), _with_nan(WEIGHTS, 1, 3)),
    "weighted, negative": lambda: pairings.weighted(pairings.diagonal(), _with_nan(WEIGHTS, 1, 3)),
    "weighted, twice": lambda: pairings.weighted(
        pairings.weighted(pairings.diagonal(), _with_nan(WEIGHTS, 1, 3)), WEIGHTS
    ),
    "weighted, soft": lambda: pairings.weighted(OF_NAN["soft"](), WEIGHTS),
}
OF_TEACHERS: dict[str, Callable[[], pairings.Pairing]] = {
    "soft, all": lambda: pairings.soft(_with_nan(WEIGHTS, 1, 3)),
    "teacher, row": lambda: pairings.teacher(_with_nan(JUDGED_ROWS, 1), JUDGED_COLUMNS, temperature=0.5),
    "teacher, column": lambda: pairings.teacher(JUDGED_ROWS, _with_nan(JUDGED_COLUMNS, 3), temperature=0.5),
    "own teacher": lambda: pairings.teacher(_with_nan(JUDGED_ROWS, 3), temperature=0.5),
    "cwcl, row": lambda: pairings.teacher(_with_nan(JUDGED_ROWS, 1), JUDGED_COLUMNS, temperature=None),
    "cwcl, column": lambda: pairings.teacher(JUDGED_ROWS, _with_nan(JUDGED_COLUMNS, 3), temperature=None),
}
NAN_CASES = [
    *((name, objective) for name in OF_NAN for objective in (*SOFTMAX, *PAIRS, "relic") if objective != "anchor"),
    *((name, objective) for name in OF_TEACHERS for objective in ("info_nce", "logistic", "logistic, pairs")),
]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize(("name", "objective"), NAN_CASES)
def test_nan_is_not_perfect(name: str, objective: str, block_size: int | None, *, symmetric: bool) -> None:
    """Weights of NaN make the loss and the gradients of the rows that have them NaN, not 0."""
    chosen = {**SOFTMAX, **PAIRS, "relic": objectives.relic()}[objective]
    pairing = {**OF_NAN, **OF_TEACHERS}[name]()
    if objective in (*PAIRS, "relic") and not name.startswith("weighted"):
        pairing = pairings.weighted(pairing, np.ones((SIZE, SIZE)))
    found = both(chosen, pairing, symmetric=symmetric, block_size=block_size)
    of_rows, of_columns = found[1:].reshape((2, SIZE, WIDTH))
    assert math.isnan(found[0])
    assert np.isnan(of_rows[1]).all()
    assert np.isnan(of_columns).any()


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("name", [*OF_NAN, *OF_TEACHERS])
def test_nan_is_not_perfect_in_torch(name: str, block_size: int | None, *, symmetric: bool) -> None:
    pairing = {**OF_NAN, **OF_TEACHERS}[name]()
    arrays = {key: tuple(map(torch.asarray, getattr(pairing, key))) for key in ("rows", "columns", "pairs")}
    pairing = pairing.with_arrays(**arrays)
    u, v = (torch.asarray(x).requires_grad_() for x in (U, V))
    loss = pnce.contrast(u, v, objective="info_nce", pairing=pairing, symmetric=symmetric, block_size=block_size)
    of_rows, of_columns = torch.autograd.grad(loss, (u, v))
    assert math.isnan(float(loss.detach()))
    assert of_rows[1].isnan().all()
    assert of_columns.isnan().any()


def test_nan_of_positives_of_hard_negatives() -> None:
    loss = pnce.contrast(U, V, objective=objectives.hard_negatives(), pairing=OF_NAN["soft"]())
    assert math.isnan(float(loss))


@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("name", [*OF_NAN, "soft, all", "teacher, row", "cwcl, row"])
def test_nan_is_of_its_row(name: str, block_size: int | None) -> None:
    """The other rows have their losses; and so has this one where a mask leaves out what is NaN."""
    pairing = {**OF_NAN, **OF_TEACHERS}[name]()
    options: dict[str, Any] = {"objective": "info_nce", "reduction": "none", "block_size": block_size}
    rows = pnce.contrast(U, V, pairing=pairing, **options)
    np.testing.assert_array_equal(np.isnan(rows), np.arange(SIZE) == 1)
    mask = np.ones((SIZE, SIZE), dtype=bool)
    mask[1, slice(None) if "row" in name else 3] = False
    masked = pnce.contrast(U, V, pairing=pairing, mask=mask, **options)
    assert np.isfinite(masked).all()
    np.testing.assert_allclose(np.delete(masked, 1), np.delete(rows, 1), rtol=1e-13)


def test_nan_of_a_pair_without_weight() -> None:
    """A weight of 0 leaves a pair out, whatever its other weight is."""
    weights = WEIGHTS.copy()
    weights[1, 3] = 0.0
    for block_size in (None, 2):
        options: dict[str, Any] = {"objective": "info_nce", "block_size": block_size}
        wanted = pnce.contrast(U, V, pairing=pairings.weighted(pairings.soft(WEIGHTS), weights), **options)
        got = pnce.contrast(
            U, V, pairing=pairings.weighted(pairings.soft(_with_nan(WEIGHTS, 1, 3)), weights), **options
        )
        assert float(got) == float(wanted)


@pytest.mark.parametrize("symmetric", [False, True])
def test_nan_of_a_guide_leaves_nothing_out(*, symmetric: bool) -> None:
    guided = pairings.guided(*np.full((2, SIZE, 3), math.nan))
    got = pnce.contrast(U, V, objective="info_nce", pairing=guided, temperature=0.5, symmetric=symmetric)
    assert float(got) == pytest.approx(float(pnce.info_nce(U, V, temperature=0.5, symmetric=symmetric)), rel=1e-13)


@pytest.mark.parametrize("strategy", ["absolute", "relative"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [2, 96, 1000])
def test_a_similarity_that_equals_the_limit_is_not_above_it(
    width: int, dtype: str, strategy: Literal["absolute", "relative"]
) -> None:
    """Duplicates of the own key stay negatives, however a library adds up products."""
    rng = np.random.default_rng(width)
    guide, keys = rng.standard_normal((2, 24, width)).astype(dtype)
    guide[12:], keys = guide[:12], (guide + keys).astype(dtype)
    keys[12:] = keys[:12]
    x, y = rng.standard_normal((2, 24, 4)).astype(dtype)
    unit, others = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (guide.astype("f8"), keys.astype("f8")))
    cosines = unit @ others.T
    above = cosines > np.diag(cosines)[:, None] + 1e-5
    wanted = pnce.info_nce(x, y, temperature=0.5, mask=~above)
    options: Any = {"temperature": 0.5, "margin_strategy": strategy}
    libraries: tuple[Callable[[Any], Any], ...] = (np.asarray, torch.asarray)
    for convert in libraries:
        for block_size in (None, 5):
            given: list[Any] = [convert(z) for z in (x, y, guide, keys)]
            got = pnce.gist_embed(*given, **options, block_size=block_size)
            assert float(got) == pytest.approx(float(wanted), rel=1e-5 if dtype == "float32" else 1e-13)


# ------------------------------------------------------------------------------------- transposes, flags, references


def test_a_transposed_tile_has_everything_turned() -> None:
    rows, columns = (KINDS[:2, None], JUDGED_ROWS[:2, None, :]), (JUDGED_COLUMNS[None, :, :], FURTHER_KINDS[None, :])
    i, j = np.asarray([[3], [4]]), np.arange(SIZE)[None, :]
    mask = MASK[:2, :SIZE]
    tile = pairings.Tile(i, j, 7, SIZE, rows, columns, (WEIGHTS[:2],), np.float32, mask)
    turned = tile.transposed()
    assert (turned.n_rows, turned.n_columns, turned.dtype) == (SIZE, 7, np.float32)
    wanted = (j.T, i.T, JUDGED_COLUMNS[:, None, :], FURTHER_KINDS[:, None], KINDS[None, :2], JUDGED_ROWS[None, :2, :])
    arrays = (turned.i, turned.j, *turned.rows, *turned.columns, *turned.pairs, turned.mask)
    for got, want in zip(arrays, (*wanted, WEIGHTS[:2].T, mask.T), strict=True):
        np.testing.assert_array_equal(got, want)
    assert tile._replace(mask=None).transposed().mask is None


def test_a_rule_knows_the_size_of_the_matrix() -> None:
    """That of the whole, in every tile, and turned in the other direction."""
    seen = set()

    def rule(tile: pairings.Tile) -> tuple[Any, Any]:
        seen.add((tile.n_rows, tile.n_columns))
        return tile.i == tile.j, tile.i != tile.j

    pairing = pairings.Pairing(rule)
    pnce.contrast(X, Y, objective="info_nce", pairing=pairing, block_size=2)
    assert seen == {(ROWS, COLUMNS)}
    turned = pairing.transposed()
    pnce.contrast(Y, X, objective="info_nce", pairing=turned, block_size=2)
    assert seen == {(ROWS, COLUMNS)}


@pytest.mark.parametrize("name", [*OF_SETS, *OF_WEIGHTS])
def test_a_pairing_transposed_is_that_of_the_transposed_matrix(name: str) -> None:
    """Twice, it is the first; with `with_arrays`, it stays what it is."""
    pairing = {**OF_SETS, **OF_WEIGHTS}[name]()
    turned = pairing.transposed()
    assert (turned.one_per_row, turned.one_per_column) == (pairing.one_per_column, pairing.one_per_row)
    assert turned.transposed().rule == pairing.rule
    for got, want in zip(
        (*turned.rows, *turned.columns, *turned.pairs),
        (*pairing.columns, *pairing.rows, *(x.T for x in pairing.pairs)),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)
    arrays: dict[str, Any] = {key: getattr(pairing, key) for key in ("rows", "columns", "pairs")}
    assert pairing.with_arrays(**arrays) == pairing


@pytest.mark.parametrize(
    "flags", [{"one_per_row": True}, {"one_per_column": True}, {"one_per_row": True, "one_per_column": True}], ids=str
)
def test_pairings_with_other_flags_are_others(flags: dict[str, Any]) -> None:
    assert pairings.Pairing(_near, **flags) == pairings.Pairing(_near, **flags)
    assert pairings.Pairing(_near, **flags) != pairings.Pairing(_near)


def test_several_views_are_others_than_two() -> None:
    assert pairings.several_views(3) == pairings.several_views(3)
    assert pairings.several_views(3) != pairings.several_views(2)


def _contrast(pairing: Any, **options: Any) -> Any:
    return pnce.contrast(U, V, objective="info_nce", pairing=pairing, similarity="dot", **options)


@pytest.mark.parametrize("margin", [0.0, 0.25])
@pytest.mark.parametrize("strategy", ["absolute", "relative"])
def test_a_guide_leaves_out_what_comes_near_to_its_positive(strategy: Any, margin: float) -> None:
    """Of positives that the guide thinks far apart, the relative margin is a share of the magnitude."""
    cosines = _cosines()
    own = np.diag(cosines)
    assert own.min() < -0.1
    assert own.max() > 0.1
    limits = own - margin if strategy == "absolute" else own - margin * np.abs(own)
    mask = (cosines <= limits[:, None]) | np.eye(SIZE, dtype=bool)
    assert 0 < mask.sum() - SIZE < SIZE * (SIZE - 1)
    guided = pairings.guided(JUDGED_ROWS, JUDGED_COLUMNS, margin=margin, strategy=strategy)
    options: dict[str, Any] = {"reduction": "none"}
    np.testing.assert_allclose(
        _contrast(guided, **options), _contrast(pairings.diagonal(), mask=mask, **options), rtol=1e-13
    )


def test_a_guide_judges_further_columns() -> None:
    """What comes exactly at the limit stays a negative."""
    guide, further = np.eye(3), np.asarray([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]])
    pairing = pairings.guided(guide, np.concatenate([guide, further]))
    query, key = U[:3], np.concatenate([V[:3], V[4:6]])
    mask = np.ones((3, 5), dtype=bool)
    got = pnce.contrast(query, key, objective="info_nce", pairing=pairing, reduction="none")
    wanted = pnce.contrast(query, key, objective="info_nce", mask=mask, reduction="none")
    np.testing.assert_allclose(got, wanted, rtol=1e-13)
    strict = pairings.guided(guide, np.concatenate([guide, further]), margin=0.5)
    mask[0, 3:], mask[1, 4] = False, False
    got = pnce.contrast(query, key, objective="info_nce", pairing=strict, reduction="none")
    wanted = pnce.contrast(query, key, objective="info_nce", mask=mask, reduction="none")
    np.testing.assert_allclose(got, wanted, rtol=1e-13)
    with pytest.raises(ValueError, match=r"columns: expected one for each row, and further ones, got 2 for 3"):
        pairings.guided(guide, further)


def _left_out(guide: Any, columns: Any, **options: Any) -> list[bool]:
    """Tell of the columns of the first row which a guide leaves out, by the loss of equal scores: log of a count."""
    pairing = pairings.guided(np.asarray(guide), np.asarray(columns), **options)
    rows = np.zeros((len(guide), 2))
    found = []
    for column in range(len(guide), len(columns)):
        alone = np.zeros((len(guide), len(columns)), dtype=bool)
        alone[:, : len(guide)], alone[0, column] = np.eye(len(guide)), True
        among: Any = {"similarity": "dot", "pairing": pairing, "mask": alone, "reduction": "none"}
        loss = pnce.contrast(rows, np.zeros((len(columns), 2)), objective="info_nce", **among)[0]
        found.append(float(loss) == 0.0)
        assert found[-1] or float(loss) == pytest.approx(math.log(2.0))
    return found


def test_the_relative_margin_of_an_own_similarity_below_0_lowers_the_limit() -> None:
    """From -0.5 to -0.6, by a fifth of its magnitude."""
    angles = np.arccos([-0.5, -0.62, -0.55, -0.45, -0.3])
    columns = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = _left_out([[1.0, 0.0]], columns, margin=0.2, strategy="relative")
    assert found == [False, True, True, True]


@pytest.mark.parametrize("width", [2, 256])
def test_a_limit_is_raised_by_its_rounding_alone(width: int) -> None:
    """By 8 and the root of the number of features, in units of rounding: 24 of 256."""
    columns = np.zeros((2, width))
    columns[0, 0] = columns[1, 1] = 1.0
    eps = float(np.finfo(np.float64).eps)
    # The similarity of the second column is 0, and the limit 1 less the margin: a number of units below.
    allowed = 8 + math.sqrt(width)
    for units in (4, allowed - 1, allowed + 1, 100):
        assert _left_out(columns[:1], columns, margin=1.0 + units * eps) == [units > allowed]


@pytest.mark.parametrize("columns", [None, [[1.0, 0.0]], np.eye(3)[:, :2].tolist()])
def test_a_guide_judges_arrays(columns: Any) -> None:
    with pytest.raises(TypeError, match=r"^columns: expected the guide's embeddings, got"):
        pairings.guided(np.eye(2), columns)


@pytest.mark.parametrize("make", [pairings.guided, pairings.teacher])
def test_embeddings_of_a_second_model_have_one_width(make: Callable[..., pairings.Pairing]) -> None:
    with pytest.raises(ValueError, match=r"^columns: expected shape \(2, 3\), got"):
        make(np.eye(3), np.eye(2))


def test_a_teachers_weights_are_of_the_pairs_that_a_mask_leaves() -> None:
    """Beside a pair that takes no part, the others may be so far that all of their weights would be 0."""
    angles = np.asarray([0.0, 0.1, 1.2, 1.5, 2.0])
    frozen = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    mask = np.ones((5, 5), dtype=bool)
    mask[0, 1] = mask[1, 0] = False
    pairing = pairings.teacher(frozen, temperature=1e-4)
    scores = np.random.default_rng(0).standard_normal((5, 5))
    found = pnce.contrast(
        scores,
        np.eye(5),
        objective="info_nce",
        pairing=pairing,
        mask=mask,
        similarity="dot",
        temperature=1.0,
        reduction="none",
    )
    among = mask & ~np.eye(5, dtype=bool)
    cosines = np.where(among, frozen @ frozen.T, -np.inf)
    weights = np.exp((cosines - cosines.max(axis=1, keepdims=True)) / 1e-4)
    weights /= weights.sum(axis=1, keepdims=True)
    logits = np.where(among, scores, -np.inf)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    wanted = -np.sum(np.where(among, weights * np.where(among, log_p, 0.0), 0.0), axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


GIVEN: dict[str, Callable[[Any, Any, Any], pairings.Pairing]] = {
    "soft": lambda weights, rows, columns: pairings.soft(weights),  # noqa: ARG005
    "weighted": lambda weights, rows, columns: pairings.weighted(pairings.diagonal(), weights),  # noqa: ARG005
    "teacher": lambda weights, rows, columns: pairings.teacher(rows, columns, temperature=0.5),  # noqa: ARG005
    "own teacher": lambda weights, rows, columns: pairings.teacher(rows, temperature=0.5),  # noqa: ARG005
    "guided": lambda weights, rows, columns: pairings.guided(rows, columns, margin=0.1),  # noqa: ARG005
}


@pytest.mark.parametrize("asarray", [np.asarray, torch.asarray], ids=["numpy", "torch"])
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("name", GIVEN)
def test_what_a_pairing_is_made_of_has_no_gradient(name: str, block_size: int | None, asarray: Any) -> None:
    def loss(u: Any, *given: Any) -> Any:
        pairing = GIVEN[name](*given)
        return pnce.contrast(u, asarray(V), objective="info_nce", pairing=pairing, block_size=block_size)

    arrays = tuple(map(asarray, (U, WEIGHTS, JUDGED_ROWS, JUDGED_COLUMNS)))
    _, gradients = pnce.value_and_grad(loss, argnums=(0, 1, 2, 3))(*arrays)
    assert np.asarray(gradients[0]).any()
    assert not any(np.asarray(gradient).any() for gradient in gradients[1:])


def test_a_teacher_at_infinity_is_seen() -> None:
    """It has no direction, and the loss of its row is NaN."""
    judged = JUDGED_ROWS.copy()
    judged[1, 0] = math.inf
    losses = _contrast(pairings.teacher(judged, JUDGED_COLUMNS, temperature=0.5), reduction="none")
    np.testing.assert_array_equal(np.isnan(losses), np.arange(SIZE) == 1)


def test_an_own_column_that_is_not_valid_is_no_positive() -> None:
    valid = np.asarray([True, False, True, True, False, True, True, True, True])
    losses = pnce.contrast(
        X, Y, objective="info_nce", pairing=pairings.queue(valid), reduction="none", similarity="dot"
    )
    scores, further = X @ Y.T, [7, 8]
    wanted = [np.log1p(np.exp(scores[i, further] - scores[i, i]).sum()) if valid[i] else 0.0 for i in range(ROWS)]
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)


@pytest.mark.parametrize("shape", [(5, 5), (4, 6)])
def test_two_views_are_of_a_square_matrix_with_an_even_number_of_rows(shape: tuple[int, int]) -> None:
    x, y = (RANDOM.normal(size=(n, WIDTH)) for n in shape)
    pairing = pairings.weighted(pairings.two_views(), np.ones(shape))
    for chosen in (pairing, pairings.two_views()):
        with pytest.raises(ValueError, match=r"pairing: two views expect a square matrix of an even number of rows"):
            pnce.contrast(x, y, objective="info_nce", pairing=chosen)


def test_shares_of_smoothing() -> None:
    """Up to, and without, all of the weight; with columns beyond the rows too."""
    with pytest.raises(ValueError, match=r"smoothing: expected a number from 0 to less than 1, got 1\.0"):
        pairings.smoothed(1.0)
    assert pairings.smoothed(0.0) == pairings.diagonal()
    targets = 0.7 * np.eye(ROWS, COLUMNS) + 0.3 / COLUMNS
    options: dict[str, Any] = {"objective": "info_nce", "similarity": "dot", "reduction": "none"}
    got = pnce.contrast(X, Y, pairing=pairings.smoothed(0.3), **options)
    log_shares = _log_softmax(X @ Y.T)
    np.testing.assert_allclose(got, -(targets * log_shares).sum(axis=1), rtol=1e-12)


def test_a_rule_without_a_weight_for_a_positive_calls_it_a_negative() -> None:
    weights = np.where(POSITIVES, 0.5, 0.0)

    def rule(tile: pairings.Tile) -> tuple[Any, ...]:
        everything = (tile.i >= 0) & (tile.j >= 0)
        return everything, ~everything, tile.pairs[0]

    options: dict[str, Any] = {"similarity": "dot", "reduction": "none"}
    for objective in ("info_nce", "flat_nce"):
        got = pnce.contrast(X, Y, objective=objective, pairing=pairings.Pairing(rule, pairs=(weights,)), **options)
        wanted = pnce.contrast(X, Y, objective=objective, pairing=pairings.soft(weights), **options)
        np.testing.assert_allclose(got, wanted, rtol=1e-13)
        explicit = pnce.contrast(X, Y, objective=objective, pairing=pairings.explicit(POSITIVES), **options)
        np.testing.assert_allclose(got, explicit, rtol=1e-12)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (lambda p, n: (p,), TypeError, "a rule that returns a pair of boolean arrays, or also weights, got tuple"),  # noqa: ARG005
        (lambda p, n: (p, n, p * 1.0, p * 1.0, p * 1.0), TypeError, "a rule that returns a pair of boolean arrays"),
        (lambda p, n: (p, n, p[:, :1] * 1.0), ValueError, "weights of positives, floating-point numbers of shape"),
        (lambda p, n: (p, n, p), ValueError, "weights of positives, floating-point numbers of shape"),
        (
            lambda p, n: (p, n, p * 1.0, n[:1] * 1.0),
            ValueError,
            "weights of negatives, floating-point numbers of shape",
        ),
    ],
)
def test_what_a_rule_must_not_return(returned: Any, error: type[Exception], message: str) -> None:
    pairing = pairings.Pairing(lambda tile: returned(tile.i == tile.j, tile.i != tile.j))
    with pytest.raises(error, match=f"pairing: expected {message}"):
        _contrast(pairing)


@pytest.mark.parametrize("mining", ["batch_all", "batch_hard", "semi_hard"])
def test_triplets_take_no_weights_of_positives(mining: Any) -> None:
    with pytest.raises(ValueError, match="pairing: expected positives without weights"):
        pnce.contrast(U, V, objective=objectives.triplet(mining=mining), pairing=pairings.soft(WEIGHTS))
