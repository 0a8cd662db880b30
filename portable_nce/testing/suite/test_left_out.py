"""A row or column that does not count may hold anything: it changes neither the value nor any gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from ..cases import LOSSES
from .calls import FEW
from .left_out import WAYS, filled_with, is_near, leaving_out, lists_of, results, rows_left_out, with_row

if TYPE_CHECKING:
    from ..variants import Variant

WHOLE = frozenset(
    {
        *("clip", "matryoshka", "joint_info_nce", "relic", "from_scores.clip", "from_scores.relic"),
        *("from_scores.dclw", "info_nce symmetric", "info_nce max_sim", "distillation symmetric"),
        *("nnclr symmetric", "nnclr queue, views"),
    }
)
"""Losses in which a row of weight 0 counts: as a negative of others, or in the weights of others."""

APPLIES = [
    pytest.param(name, way, marks=[] if name in FEW else pytest.mark.exhaustive)
    for name in LOSSES
    for way in WAYS
    if leaving_out(name, way) is not None
]


@pytest.mark.parametrize("dirt", [math.nan, math.inf])
@pytest.mark.parametrize(("name", "way"), APPLIES)
def test_a_row_that_does_not_count_may_hold_anything(variant: Variant, name: str, way: str, dirt: float) -> None:
    """Each alone, and all together."""
    rows, arrays = rows_left_out(variant, name, way), lists_of(name)
    self_contrast = LOSSES[name].views > 1 or "labels" in LOSSES[name].arguments
    whole = self_contrast or not WHOLE.isdisjoint({name, name.split(maxsplit=1)[0]})
    assert rows or (way == "weight" and whole) or name.startswith("nnclr")
    wanted = results(variant, name, way, arrays)
    together = arrays
    for key, row in rows:
        if key == "concentrations" and math.isinf(dirt):
            continue  # like a temperature, refused wherever it stands
        numbers = filled_with(dirt, arrays[key][row])
        together = with_row(together, key, row, numbers)
        assert is_near(variant, results(variant, name, way, with_row(arrays, key, row, numbers)), wanted), (key, row)
    assert is_near(variant, results(variant, name, way, together), wanted)
