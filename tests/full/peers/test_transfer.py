"""Transfer entropy next to that of infomeasure, on series whose value is known."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from portable_nce.estimation import transfer_entropy


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return importlib.import_module("transfer")


@pytest.mark.parametrize("name", ["coupling 0.7, lag 2", "copied bits, a tenth wrong"])
def test_both_find_the_value_and_where_it_is(transfer: Any, name: str) -> None:
    (problem,) = (p for p in transfer.PROBLEMS if p.name == name)
    x, y = problem.draw(np.random.default_rng(0))
    value, p, theirs = transfer.peer(problem, x, y)
    found: Any = transfer_entropy(x, y, lag=problem.lag, rng=0, splits=1, progress=False)
    exact = problem.local(x, y)
    assert len(found.local) == len(theirs) == len(exact)
    assert value == pytest.approx(problem.truth, abs=0.1)
    assert np.mean(found.local) == pytest.approx(problem.truth, abs=0.1)
    assert p <= 0.01
    assert getattr(found, "lower", 0.0) > 0.0 or found.p <= 0.01
    for local in (theirs, found.local):
        assert np.corrcoef(local, exact)[0, 1] > 0.5
