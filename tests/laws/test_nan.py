"""NaN in an array of a loss makes the loss NaN, and so does a temperature that is NaN."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce.testing import CASES
from portable_nce.testing.cases import Case
from portable_nce.testing.variants import VARIANTS, case_arrays, differentiate

from calls import shares

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("libraries", [(np, torch), (torch, np)], ids=["numpy first", "torch first"])
@pytest.mark.parametrize("cases", shares(CASES))
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_nan_in_a_differentiated_array_makes_the_loss_nan(cases: list[Case], libraries: Any) -> None:
    """NaN in a row that counts makes the loss NaN."""
    for case, library in zip(cases, itertools.cycle(libraries)):
        arrays = case_arrays(VARIANTS["numpy"], case, "float64")
        _, gradients = differentiate(case.function, arrays, len(case.arguments))
        for k, (name, gradient) in enumerate(zip(case.arguments, gradients, strict=True)):
            for place in np.flatnonzero(gradient.reshape(len(gradient), -1).any(axis=1)) if gradient.ndim else ():
                dirty = arrays[k].copy()
                dirty[place] = np.nan
                found = case.function(*(library.asarray(dirty if j == k else x) for j, x in enumerate(arrays)))
                assert np.isnan(float(found)), (case.name, name, place)


DECIDING: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "nnclr": (pnce.nnclr, (0,)),
    "nnclr, views": (functools.partial(pnce.nnclr, negatives="views"), (0,)),
    "nnclr, function": (functools.partial(pnce.nnclr, similarity=lambda x, y: x @ y.T), (0,)),
    "nnclr, distances": (functools.partial(pnce.nnclr, similarity="neg_euclidean"), (0,)),
    "gist_embed": (lambda x, y, z, **options: pnce.gist_embed(x, y, z[:4], z[4:], margin=-2.5, **options), (1, 5)),
}
"""What has no gradient, and decides what is compared: a loss, and places of it in the first or the last argument."""


@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", DECIDING)
def test_nan_in_an_array_that_selects_pairs_makes_the_loss_nan(name: str, library: Any) -> None:
    """A search among NaN would return a column, and hide them; masked entries are ignored."""
    loss, places = DECIDING[name]
    arrays = [RNG.normal(size=(n, 3)) for n in (4, 4, 8)]
    for place in places:
        dirty = [x.copy() for x in arrays]
        dirty[2 if name == "gist_embed" else 0][place, 1] = np.nan
        given = [library.asarray(x) for x in dirty]
        for block_size in (None, 2) if "function" not in name else (None,):
            assert np.isnan(float(loss(*given, block_size=block_size)))
        counts = np.arange(8 if "views" in name else 4) % 4 != place % 4
        mask = library.asarray(counts[:, None] & counts)
        clean = [library.asarray(x) for x in arrays]
        assert float(loss(*given, mask=mask)) == float(loss(*clean, mask=mask)) != 0.0


@pytest.mark.parametrize("temperature", [np.nan, 0.0])
@pytest.mark.parametrize("name", ["info_nce", "joint_info_nce", "relic", "dclw"])
def test_a_temperature_that_is_no_number_or_nothing_makes_the_loss_none(name: str, temperature: float) -> None:
    """If it cannot be read without waiting; otherwise 0 is an error."""
    x, y = jnp.asarray(RNG.normal(size=(2, 4, 3)))
    for block_size in (None, 2):
        assert jnp.isnan(getattr(pnce, name)(x, y, temperature=jnp.asarray(temperature), block_size=block_size))


@pytest.mark.parametrize("name", pnce.from_scores.__all__)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_matrix_of_one_score_has_a_loss_and_a_gradient(name: str, library: str) -> None:
    """Without another score to compare it with, the loss is 0 or that of the positive alone."""
    make: Callable[[Any], Any] = np.asarray if library == "numpy" else torch.tensor
    further: list[Any] = {"cosent": [make([0.5])], "margin_mse": [make([[0.2]])]}.get(name, [])
    scores = make([1.3] if name == "cosent" else [[1.3]])
    loss = getattr(pnce.from_scores, name)
    for _ in range(3):
        value, slope = pnce.value_and_grad(lambda x: loss(x, *further))(scores)
        assert math.isfinite(float(value))
        assert bool((abs(slope) < math.inf).all())
