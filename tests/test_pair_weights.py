"""Weights of pairs: a negative of weight 2 is two of them, and so is any term of a sum over pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

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
