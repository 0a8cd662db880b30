"""Families of row sums: losses and cotangents, computed by tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce._execution.families import Softmax
from portable_nce._execution.inputs import Inputs
from portable_nce._execution.pair_terms import PairsSpec, PairTerms
from portable_nce._execution.row_losses import ScoreFacts
from portable_nce.objectives import Term

RNG = np.random.default_rng(7)


def finished(family: Any, scores: Any, own: Any, bounds: list[tuple[int, int]]) -> tuple[Any, Any]:
    """The row losses and the cotangents of their scores, computed by tiles."""
    parts = [family.add_negatives((scores[:, low:high] + 0.0,), lambda x, _: x, Inputs()) for low, high in bounds]
    total, rescales = family.merge([part for part, _ in parts])
    losses = family.finish(total, family.partner_positives(own, Inputs()), Inputs())
    pulled = [
        (residual[0] if isinstance(residual, tuple) else residual)
        * (losses.coefficient if rescale is None else losses.coefficient * rescale)[:, None]
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
    family = Softmax(np, objective, facts)
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
    family = PairTerms(np, PairsSpec(terms, divide_by), ScoreFacts(n_negatives=6))
    values, cotangents = finished(family, scores, own, bounds)
    positive = np.maximum(scores, 0.0)
    np.testing.assert_allclose(values, own**2 + np.sum(positive**3, axis=1), rtol=1e-12)
    np.testing.assert_allclose(cotangents, np.concatenate([3 * positive**2, 2 * own[:, None]], axis=1), rtol=1e-12)
