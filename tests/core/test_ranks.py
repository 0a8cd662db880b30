"""Arrays that ranks send to each other, and arguments that they compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce._core import ranks
from portable_nce.testing import run_ranks

X = np.cos(np.arange(18.0)).reshape(6, 3)
LABELS = np.arange(6) // 2


def test_labels_of_swapped_bytes_keep_their_numbers_between_ranks() -> None:
    assert ranks.widened(np.asarray([2**31], dtype=np.dtype(np.uint32).newbyteorder())).tolist() == [2**31]


def mined(mining: Any, **options: Any) -> Any:
    return pnce.triplet_from_labels(X, LABELS, mining=mining, **options)


def of_parts(mining: Any, **options: Any) -> Any:
    return pnce.contrast(X, objective=pnce.objectives.triplet(mining=mining), pairing="two_views", **options)


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (mined, r"mining: .*, got \('easy', 'hard'\) on rank 0, \('hard', 'hard'\) on rank 1"),
        (of_parts, "objective: .*, got Triplet on rank 0, another Triplet on rank 1"),
    ],
)
def test_ranks_compare_what_is_inside_an_argument(call: Any, got: str) -> None:
    def on_a_rank(group: Any) -> None:
        mining = (("easy", "hard"), ("hard", "hard"))[group.rank]
        with pytest.raises(ValueError, match=got):
            call(mining, across=pnce.across(group, gradients="summed"))

    run_ranks(2, on_a_rank)
