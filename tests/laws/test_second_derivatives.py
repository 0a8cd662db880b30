"""Second derivatives: digits where one score leads all others of its row, streamed execution, and powers of two."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce.testing.variants import differentiate

from calls import EACH, Call, options_of, streams_like_the_dense

if TYPE_CHECKING:
    from collections.abc import Callable

LEAD = 20.0
"""Nats by which a score leads: float32 has lost the digits of 1 - p."""

SURROGATES = {"bounds.fdv", "bounds.flo", "bounds.js_mi", "bounds.mine", "bounds.smile"}
"""Functions whose gradient, by definition, is not that of their value."""

OF_SCORES = [
    name
    for name in EACH
    if name not in SURROGATES and next(iter(Call(name).learned)) in {"scores", "data_scores", "noise_scores"}
]

THROUGH_LOG_ODDS = [
    *(f"from_scores.{name}" for name in ("info_nce", "nca", "supcon")),
    *(f"density.{name}" for name in ("ranking_nce", "sampled_softmax", "nre_b")),
    "bounds.info_nce",
]
"""Losses of the log-odds of the positive against all negatives of its row."""

EPS = 2.0**-24


class Curvature:
    """Gradient of a loss, and the derivative of the gradient in one direction, in float32 and float64."""

    def __init__(self, name: str, *, of_positive: bool) -> None:
        options: dict[str, Any] = {"reduction": "sum"} if "reduction" in options_of(name) else {}
        self.call = Call(name, **options)
        rng = np.random.default_rng(3)
        self.arrays = [rng.normal(size=x.shape).astype(np.float32) for x in self.call.numbers]
        self.ways = [rng.normal(size=x.shape).astype(np.float32) for x in self.arrays]
        self.first = next(k for k, x in enumerate(self.arrays) if x.ndim == max(y.ndim for y in self.arrays))
        scores = self.arrays[self.first]
        if not of_positive:  # a negative leads the first row
            scores[(0, 1)[: scores.ndim]] += LEAD
        elif self.first:  # data and noise are apart
            self.arrays[0][0] += LEAD
        else:
            scores[(0, 0)[: scores.ndim]] += LEAD
        self.gradient, self.second = self._of(torch.float32)
        self.wanted_gradient, self.wanted = self._of(torch.float64)

    def _of(self, dtype: torch.dtype) -> tuple[list[np.ndarray], list[np.ndarray]]:
        def tensor(x: Any) -> torch.Tensor:
            return torch.tensor(x, dtype=dtype if np.asarray(x).dtype.kind == "f" else None)

        arrays = [tensor(x).requires_grad_() for x in self.arrays]
        value = self.call(*arrays, *self.call.others(tensor)).sum()
        options: Any = {"create_graph": True, "materialize_grads": True}
        gradients = torch.autograd.grad(value, arrays, **options)
        slope = sum(((g * tensor(way)).sum() for g, way in zip(gradients, self.ways, strict=True)), torch.zeros(()))
        if not slope.requires_grad:  # a linear function of the scores
            return [g.detach().double().numpy() for g in gradients], [np.zeros(x.shape) for x in self.arrays]
        second = torch.autograd.grad(slope, arrays, materialize_grads=True)
        return [g.detach().double().numpy() for g in gradients], [h.double().numpy() for h in second]

    def error(self) -> float:
        """Largest error, relative to the largest derivative of first or second order of the batch."""
        scale = max(np.abs(x).max() for x in (*self.wanted_gradient, *self.wanted))
        return max(np.abs(x - y).max() for x, y in zip(self.second, self.wanted, strict=True)) / scale

    def error_of_first_row(self, of: Callable[[Curvature], tuple[list[np.ndarray], list[np.ndarray]]]) -> float:
        """Largest error of the row with the leading score, relative to its largest entry."""
        found, wanted = (x[self.first][0] for x in of(self))
        return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("of_positive", [False, True], ids=["negative leads", "positive leads"])
def test_second_derivatives_are_exact_next_to_the_largest_derivative_of_the_batch(*, of_positive: bool) -> None:
    for name in OF_SCORES:
        assert Curvature(name, of_positive=of_positive).error() <= 64 * EPS, name


def test_second_derivatives_of_log_odds_keep_their_digits_where_the_positive_leads() -> None:
    for name in THROUGH_LOG_ODDS:
        found = Curvature(name, of_positive=True)
        assert np.abs(found.wanted[found.first][0]).max() < 1e-6, name
        assert found.error_of_first_row(lambda one: (one.second, one.wanted)) <= 64 * EPS, name


@pytest.mark.parametrize("name", ["from_scores.dcl", "from_scores.info_nce", "bounds.dv", "density.log_partition"])
def test_where_one_negative_leads_the_gradient_keeps_its_digits_and_the_second_derivative_does_not(name: str) -> None:
    found = Curvature(name, of_positive=False)
    assert found.error_of_first_row(lambda one: (one.gradient, one.wanted_gradient)) <= 64 * EPS
    assert found.error_of_first_row(lambda one: (one.second, one.wanted)) > 1e-3


ROWS, COLUMNS = np.random.default_rng(11).normal(size=(2, 8, 3))
WEIGHTS = np.asarray([1.0, 0.0, 2.0, 0.5, 1.0, 0.0, 1.5, 1.0])
KINDS = np.asarray([0, 1, 0, 2, 1, 2, 0, 1])
EXECUTIONS: dict[str, Callable[..., Any]] = {
    "products": lambda x, w, **o: pnce.info_nce(x, COLUMNS, weights=w, similarity="dot", **o),
    "both sides": lambda x, w, **o: pnce.clip(x, COLUMNS, logit_scale=5.0, weights=w, **o),
    "own scores": lambda x, w, **o: pnce.nt_xent(x, COLUMNS, weights=w, **o),
    "rows": lambda x, w, **o: pnce.supcon(x, KINDS, weights=w, **o),
    "pairs of products": lambda x, w, **o: pnce.siglip(x, COLUMNS, logit_scale=3.0, logit_bias=-1.0, weights=w, **o),
    "pairs": lambda x, w, **o: pnce.contrastive(x, KINDS, margin=3.0, positive_margin=0.5, weights=w, **o),
}
"""Losses whose streamed execution has a gradient of its own."""


@pytest.mark.parametrize("loss", EXECUTIONS.values(), ids=EXECUTIONS)
def test_a_value_and_its_gradient_are_differentiated_together(loss: Callable[..., Any]) -> None:
    def penalised(x: Any, w: Any, *, block_size: int | None) -> Any:
        value, gradients = differentiate(functools.partial(loss, block_size=block_size), (x, w))
        return value * value + sum(np.sum(g * g) for g in gradients)

    streams_like_the_dense(penalised, ROWS, WEIGHTS + 0.25, block_sizes=(3,))


OF_POWERS: dict[str, Callable[..., Any]] = {
    "info_nce": functools.partial(pnce.info_nce, temperature=0.5),
    "nt_xent": functools.partial(pnce.nt_xent, temperature=0.5),
    "clip": functools.partial(pnce.clip, logit_scale=2.0),
    "clip shifted": functools.partial(pnce.clip, logit_scale=60.0),
}


@pytest.mark.parametrize("block_size", ["auto", 2])
@pytest.mark.parametrize("loss", OF_POWERS.values(), ids=OF_POWERS)
def test_second_derivatives_of_powers_of_two(loss: Callable[..., Any], block_size: int | str) -> None:
    """In float32; other tests of derivatives use float64."""

    def twice(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        slopes = pnce.grad(lambda a: loss(a, y, block_size=block_size))
        return np.asarray(pnce.grad(lambda a: (slopes(a) ** 2).sum())(x))

    x, y = np.random.default_rng(5).normal(size=(2, 6, 3))
    expected, found = twice(x, y), twice(x.astype(np.float32), y.astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
