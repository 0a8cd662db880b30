"""A variant of CPU tensors whose ranks are processes, as on a GPU, and functions that go wrong on its ranks."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from portable_nce.testing import run_ranks
from portable_nce.testing.variants import Torch

if TYPE_CHECKING:
    from portable_nce.testing import Rank, Variant

VARIANT: Final = Torch(name="torch-processes", rank_processes=True)


def total(variant: Variant, *, of: float) -> None:
    """Add a number on two ranks."""
    found = run_ranks(2, lambda group: variant.to_list(group.all_reduce(variant.floats([of + group.rank]))))
    assert found == [[2.0 * of + 1.0]] * 2


def stay_away(variant: Variant) -> None:
    """Let one rank miss a collective of the other."""

    def on_a_rank(group: Rank) -> None:
        if group.rank:
            group.all_reduce(variant.floats([1.0]))
        time.sleep(5.0)

    run_ranks(2, on_a_rank)


def die() -> None:
    """Let one rank end its process."""
    run_ranks(2, lambda group: os._exit(3) if group.rank else None)


def stand_still() -> None:
    """Let one rank take forever."""
    run_ranks(2, lambda group: time.sleep(600.0) if group.rank else None)


def disagree(variant: Variant) -> None:
    """Raise an error on one rank."""

    def on_a_rank(group: Rank) -> Any:
        if group.rank:
            raise LookupError("of one rank")
        return variant.to_list(variant.floats([1.0]))

    run_ranks(2, on_a_rank)
