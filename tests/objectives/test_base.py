"""Objectives of row statistics and of pairs: streamed products against dense execution, names, and wrong functions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.objectives import Objective, Pairwise, Term
from portable_nce.pairings import queue

from calls import streams_like_the_dense

ROWS, COLUMNS = np.random.default_rng(11).normal(size=(2, 8, 3))
WEIGHTS = np.asarray([1.0, 0.0, 2.0, 0.5, 1.0, 0.0, 1.5, 1.0])
OBJECTIVES = {
    "the log-odds": Objective(lambda row: row.log_odds**2, slopes=lambda row: (2.0 * row.log_odds, None, None, None)),
    "the negatives": Objective(lambda row: row.negative**2, slopes=lambda row: (None, None, 2.0 * row.negative, None)),
}
"""Objectives of one row statistic, with slopes; test_own_parts has one of all of them."""


def square(score: Any, centre: Any) -> Any:
    """A term of a score and of one parameter."""
    return np.maximum(score - centre, 0.0) ** 2


SQUARE = Term(square, lambda score, centre: (2.0 * np.maximum(score - centre, 0), 2.0 * np.minimum(centre - score, 0)))


@pytest.mark.parametrize("temperature", [2.0, 0.02], ids=["small scores", "large scores"])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("pairing", ["diagonal", "two_views"])
def test_products_stream_for_every_statistic(
    temperature: float, objective: Objective, pairing: pnce.typing.PairingName, *, weighted: bool, symmetric: bool
) -> None:
    options: dict[str, Any] = {"similarity": "dot", "temperature": temperature, "symmetric": symmetric}

    def loss(x: Any, y: Any, w: Any, *, block_size: int | None) -> Any:
        columns = y if pairing == "diagonal" else None
        options.update(weights=w if weighted else None, block_size=block_size)
        return pnce.contrast(x, columns, objective=objective, pairing=pairing, **options)

    streams_like_the_dense(loss, ROWS, COLUMNS, WEIGHTS)


ATTRACTING = {"nothing": None, "a term": SQUARE, "a plain term": Term(square)}


@pytest.mark.parametrize("attract", ATTRACTING.values(), ids=ATTRACTING)
@pytest.mark.parametrize("divide_by", ["rows", "pairs", "active"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pairing", ["diagonal", "two_views", queue()])
def test_sums_of_products_stream_for_every_term(
    attract: Term | None, divide_by: pnce.typing.DivideBy, pairing: Any, *, weighted: bool
) -> None:
    def loss(x: Any, y: Any, weights: Any, centre: Any, *, block_size: int | None) -> Any:
        columns = {"diagonal": [y], "two_views": []}.get(pairing, [np.concatenate([y, x * y])])
        objective = Pairwise(attract, SQUARE, parameters=(centre,), divide_by=divide_by)
        chosen = weights if weighted else None
        options: dict[str, Any] = {"similarity": "dot", "weights": chosen, "block_size": block_size}
        return pnce.contrast(x, *columns, objective=objective, pairing=pairing, **options)

    streams_like_the_dense(loss, ROWS, COLUMNS, WEIGHTS, np.asarray(0.25))


def test_objectives_have_names() -> None:
    named = {
        "square": Objective(square),
        "partial": Objective(functools.partial(square)),
        "mine": Objective(square, label="mine"),
        "logistic": pnce.objectives.logistic(),
        "contrastive": pnce.objectives.contrastive(),
        "dclw": pnce.objectives.dclw(temperature=0.1),
        "info_nce_anchor": pnce.objectives.info_nce_anchor(n_columns=2),
        "info_nce, separate": pnce.objectives.info_nce(multi_positive="separate"),
        "flat_nce with the positive, each": pnce.objectives.flat_nce(include_positive=True),
        "pairwise": Pairwise(None, SQUARE),
    }
    assert [repr(objective) for objective in named.values()] == [f"<objective {name}>" for name in named]


@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("slopes", [None, lambda s: (np.ones_like(s),)])
@pytest.mark.parametrize("value", [np.sum, lambda s: s[:, :1], lambda _: 1.0], ids=["sum", "column", "number"])
def test_the_function_of_a_pair_is_elementwise(value: Any, slopes: Any, block_size: int | None) -> None:
    objective, x = Pairwise(Term(value, slopes), None), np.eye(4)
    for call in (pnce.contrast, pnce.value_and_grad(pnce.contrast)):
        with pytest.raises(ValueError, match=r"^objective: expected an elementwise function of scores, of shape"):
            call(x, x, objective=objective, block_size=block_size)
