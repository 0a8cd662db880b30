"""Paragraph for a paper and table of results: each sentence is true of its run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from portable_nce.estimation import mutual_information, table


def estimate(x: Any, y: Any, **options: Any) -> Any:
    """A short estimate."""
    return mutual_information(x, y, **{"rng": 0, "progress": False, "splits": 1, "steps": 25, **options})


X, NOISE = np.random.default_rng(0).normal(size=(2, 200))
Y = X + 0.5 * NOISE


def test_a_report_says_what_was_done() -> None:
    found = estimate(X, Y, steps=400, splits=2, batch=50)
    assert found.flags == ()
    text = found.report()
    for words in (
        "200 pairs was estimated by InfoNCE",
        f"NumPy {np.__version__}, seed 0",
        "at most 400 training steps with 50 pairs each",
        "normal scores of ranks",
        "a share of 0.015 of exceptions",
        "Each pair was evaluated once in each of 2 divisions, in 3 folds",
        f"was {found.bound:.3f} ± {found.error:.3f} nats",
        f"at most {found.ceiling:.3f} nats",
        f"at least {found.lower:.3f} nats with 95 % confidence",
        f"in the range from {found.low:.3f} to {found.high:.3f} nats, which is no confidence interval",
        f"the bound was {found.null:.3f} nats",
        "\nGaffke (2005)",
        "arXiv:1807.03748",
    ):
        assert words in text


def test_a_report_in_bits() -> None:
    found = estimate(X, Y)
    text = found.report(units="bits")
    assert f"at least {found.lower / math.log(2.0):.3f} bits" in text
    assert "nats" not in text
    with pytest.raises(ValueError, match="units: expected one of 'nats', 'bits', got 'bit'; did you mean 'bits'"):
        found.report(units="bit")


def test_a_report_says_why_there_is_no_number() -> None:
    few = estimate(X, NOISE, groups=np.arange(200) % 6)
    assert "200 pairs in 6 groups was estimated" in few.report()
    assert "No lower limit is given (too few pairs)." in few.report()
    assert "No range is given (fewer than 10 independent rows or groups of equal size;" in few.report()
    assert "Gaffke" not in few.report()
    assert "Each group was evaluated once, in 3 folds" in few.report()
    nothing = estimate(X, NOISE, transform="standardize")
    assert "at least 0 nats" in nothing.report()
    assert "the bound is within two errors of 0" in nothing.report()
    assert "standardised values" in nothing.report()


def test_a_report_names_blocks_and_equal_rows() -> None:
    assert "200 pairs in 50 blocks was" in estimate(X, Y, order=range(200)).report()
    twice = np.repeat(np.arange(100), 2)
    copies = estimate(X[twice], Y[twice])
    assert "200 pairs in 100 groups of equal rows was" in copies.report()
    assert "200 pairs in 100 groups of equal rows;" in copies.sentence()


def test_a_table_of_results() -> None:
    found = {"one": estimate(X, Y, steps=400), "the other": estimate(X, NOISE)}
    rows = table(found, units="bits")
    assert [row.name for row in rows] == ["one", "the other"]
    assert rows[0].lower == pytest.approx(found["one"].lower / math.log(2.0))
    assert (rows[0].pairs, rows[0].groups, rows[0].flags) == (200, 200, "")
    assert "nothing found" in rows[1].flags
    assert math.isnan(rows[1].high)
    lines = repr(rows).splitlines()
    assert lines[0].split() == ["name", "lower", "bound", "error", "estimate", "low", "high", "pairs", "flags"]
    assert f"{rows[0].bound:.3f}" in lines[1]
    assert repr(table({})).startswith("name")
    wrong: Any = [found["one"]]
    with pytest.raises(TypeError, match="results: expected a mapping of names to results, got list"):
        table(wrong)
