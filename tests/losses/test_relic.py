"""`relic` of infinite scores."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("library", [np.asarray, torch.asarray, jnp.asarray], ids=["numpy", "torch", "jax"])
@pytest.mark.parametrize("direction", ["a_to_b", "b_to_a"])
def test_relic_of_infinite_scores(direction: pnce.typing.RelicDirection, library: Callable[[Any], Any]) -> None:
    """An infinite score has probability 1, in its row and in the row of the transposed scores that contains it."""
    plain = RNG.normal(size=(4, 4)).astype(np.float32)
    relic = functools.partial(pnce.from_scores.relic, reduction="none", direction=direction)
    at_positive, scores = plain.copy(), plain.copy()
    at_positive[1, 1] = scores[1, 2] = np.inf
    assert np.asarray(relic(library(at_positive)))[1] == 0.0
    found, rest = np.asarray(relic(library(scores))), np.asarray(relic(library(plain)))
    of_row = scores[2] - np.log(np.exp(scores[2]).sum())  # log-probabilities in the row of the infinite transpose
    expected = [rest[0], np.inf, np.inf if direction == "a_to_b" else -of_row[2] - of_row[1], rest[3]]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    constant = relic(library(scores), alpha=0.0)
    np.testing.assert_allclose(constant, pnce.from_scores.info_nce(scores, reduction="none"), rtol=1e-5)
