"""Bounds on mutual information by rows."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce import bounds

ARGUMENTS = {
    "dual": (np.linspace(-1.0, 1.0, 5),),
    "flo": (np.linspace(-1.0, 1.0, 5),),
    "tuba": (0.3,),
    "interpolated": (0.4, 0.3),
    "vub": (np.linspace(-2.0, -1.0, 5),),
}
SCORES = np.random.default_rng(0).normal(size=(5, 5))
BY_ROWS = [name for name in bounds.__all__ if "reduction" in inspect.signature(getattr(bounds, name)).parameters]


def test_the_bounds_that_are_means_have_terms() -> None:
    assert set(bounds.__all__) - set(BY_ROWS) == {
        "barber_agakov", "dual_critic", "dv", "log_n_ceiling", "mine", "smile",
    }  # fmt: skip


@pytest.mark.parametrize("masked", ["", "masked"])
@pytest.mark.parametrize("name", BY_ROWS)
def test_a_bound_is_the_mean_of_its_terms(name: str, masked: str) -> None:
    options: dict[str, Any] = {}
    if masked and "mask" in inspect.signature(getattr(bounds, name)).parameters:
        options["mask"] = ~np.eye(5, k=1, dtype=bool)
        options["mask"][3, 3] = False  # a row that does not count

    def reduced(scores: Any, reduction: Any) -> Any:
        found = getattr(bounds, name)(scores, *ARGUMENTS.get(name, ()), reduction=reduction, **options)
        return found if found.shape == () else np.sum(found)

    number = 4 if options else 5
    assert getattr(bounds, name)(SCORES, *ARGUMENTS.get(name, ()), reduction="none", **options).shape == (5,)
    (mean, slopes), (total, of_total), (terms, of_terms) = (
        pnce.value_and_grad(reduced)(SCORES, reduction) for reduction in ("mean", "sum", "none")
    )
    np.testing.assert_allclose([total, terms], number * mean, rtol=1e-12)
    np.testing.assert_allclose(of_total, number * slopes, rtol=1e-12)
    np.testing.assert_allclose(of_terms, number * slopes, rtol=1e-12)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'mean'"):
        bounds.nwj(SCORES, reduction="meen")
