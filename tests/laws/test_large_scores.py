"""What is decided by entries changes no result: scores beyond the limit of unshifted exponentials, in or out of a mask.

The variant ``torch-blind`` reads no entry, and so decides nothing by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.testing.cases import CASES, Case
from portable_nce.testing.variants import differentiate, started

from calls import by_form

MASKED = [case for case in CASES if np.ndim(case.constants.get("mask", 0)) == 2 and case.regime == "normal"]


def results(case: Case, arrays: dict[str, Any], variant: str) -> list[Any]:
    """Value and gradients."""
    library = started(variant)
    with library.active():
        given = [
            library.floats(x.tolist()) if x.dtype.kind == "f" else library.array(x.tolist()) for x in arrays.values()
        ]
        value, slopes = differentiate(case.function, given, len(case.arguments))
        return [np.asarray(library.to_list(x)) for x in (value, *slopes)]


@pytest.mark.parametrize("case", by_form(MASKED), ids=lambda case: case.name)
def test_large_scores_in_and_out_of_a_mask(case: Case) -> None:
    rng = np.random.default_rng(len(case.name))
    arrays = {name: np.asarray(x) for name, x in {**case.arguments, **case.constants}.items()}
    mask, scores = arrays["mask"], next(name for name, x in arrays.items() if x.ndim > 1)
    for turn in range(4):
        new = np.logical_or(rng.random(mask.shape) < 0.6, np.eye(*mask.shape) > 0)
        new[0, 1], new[1, 0] = False, True
        large = arrays[scores].astype(float)
        if case.loss.startswith("from_scores"):
            large[tuple(rng.choice(np.argwhere(new != bool(turn % 2))))] = 50.0
        else:
            large[rng.integers(len(large))] *= 64.0
        given = arrays | {"mask": new, scores: large}
        for found, wanted in zip(results(case, given, "torch"), results(case, given, "torch-blind"), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-9 * max(1.0, np.nanmax(np.abs(wanted))))


def test_relic_reads_scores_outside_of_the_mask_of_their_row() -> None:
    """Row i is compared with column i, of which the mask of the columns' own rows leaves out a large score."""
    x, y, mask = np.asarray([[0.0], [1.0], [6.0]]), np.asarray([[0.0], [3.0], [4.0]]), np.ones((3, 3), dtype=bool)
    mask[2, 0] = False
    options: dict[str, Any] = {"mask": mask, "temperature": 1.0, "similarity": "neg_sq_euclidean"}
    for reduction in ("mean", "none"):
        wanted = pnce.relic(x, y, block_size=None, reduction=reduction, **options)
        np.testing.assert_allclose(pnce.relic(x, y, reduction=reduction, **options), wanted, rtol=1e-12)
