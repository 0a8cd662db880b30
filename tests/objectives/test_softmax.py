"""Forms of `flat_nce`: streamed with several positives, and rows without negatives."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce

from calls import streams_like_the_dense

ROWS, COLUMNS = np.random.default_rng(11).normal(size=(2, 8, 3))
WEIGHTS = np.asarray([1.0, 0.0, 2.0, 0.5, 1.0, 0.0, 1.5, 1.0])
KINDS = np.asarray([0, 1, 0, 2, 1, 2, 0, 1])


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("form", ["each", "pooled"])
def test_the_detached_forms_stream_with_several_positives(form: pnce.typing.MultiPositive, *, included: bool) -> None:
    objective = pnce.objectives.flat_nce(form="detach", include_positive=included, multi_positive=form)
    pairing = pnce.pairings.labels(KINDS, KINDS[::-1].copy())
    loss = functools.partial(pnce.contrast, objective=objective, pairing=pairing)
    streams_like_the_dense(lambda x, y, w, **o: loss(x, y, weights=w, **o), ROWS, COLUMNS, WEIGHTS)


@pytest.mark.parametrize("form", ["log", "detach"])
@pytest.mark.parametrize("include_positive", [False, True])
def test_a_row_without_negatives_is_not_counted(form: pnce.typing.FlatForm, *, include_positive: bool) -> None:
    objective = pnce.objectives.flat_nce(form=form, include_positive=include_positive)
    mask = (np.arange(8)[:, None] != 2) | np.eye(8, dtype=bool)  # row 2 has no negative
    whole = pnce.contrast(ROWS, COLUMNS, objective=objective, mask=mask, reduction="none")
    assert whole[2] == 0.0
    for block_size in (None, 3):
        mean = pnce.contrast(ROWS, COLUMNS, objective=objective, mask=mask, block_size=block_size)
        assert mean == pytest.approx(whole.sum() / 7.0, rel=1e-12)


def test_weights_of_dclw_take_a_fraction_beside_an_array() -> None:
    numbers: tuple[Any, Any] = (Fraction(1, 4), 0.25)
    found, wanted = (pnce.dclw(ROWS, COLUMNS, temperature=np.asarray(0.5), sigma=x) for x in numbers)
    assert found == wanted
