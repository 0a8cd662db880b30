"""Paragraph for a paper and table of results: each sentence is true of its run."""

from __future__ import annotations

import math
import re
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
        "X has 1 column; y has 1 column.",
        "Pairs have to be independent draws.",
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
    statement = "fewer than 10 independent rows or groups of equal size"
    assert f"No lower limit is given ({statement})." in few.report()
    assert f"No range is given ({statement}" in few.report()
    assert "Gaffke" not in few.report()
    assert "Each group was evaluated once, in 3 folds" in few.report()
    nothing = estimate(X, NOISE, transform="standardize")
    assert "No mutual information was shown: its lower limit is below 0 with 95 % confidence" in nothing.report()
    assert re.search(r"the bound has p = 0\.\d+ by its standard error", nothing.report())
    assert nothing.sentence().startswith(
        "No mutual information was shown: its lower limit (95 %) is below 0 (200 pairs;"
    )
    assert "at least 0" not in nothing.sentence() + nothing.report()
    assert "the bound is within two errors of 0" in nothing.report()
    assert "standardised values" in nothing.report()


def test_a_report_names_blocks_and_equal_rows() -> None:
    series = estimate(X, Y, order=range(200))
    assert "200 pairs in 50 blocks was" in series.report()
    assert "Blocks of up to 4 consecutive rows" in series.report()
    assert "Groups have to be independent draws" in estimate(X, Y, groups=np.arange(200) % 50).report()
    twice = np.repeat(np.arange(100), 2)
    copies = estimate(X[twice], Y[twice])
    assert "200 pairs in 100 groups of equal rows was" in copies.report()
    assert "200 pairs in 100 groups of equal rows;" in copies.sentence()


def test_a_report_names_columns_and_critics() -> None:
    names = np.asarray(["a", "b", "c"])[np.arange(200) % 3]
    found = estimate(np.stack([X, Y], axis=1), names, splits=2, steps=100)
    assert "X has 2 columns; y has 1 column, given as 3 with an indicator of each value" in found.report()
    assert (found.settings.columns, found.settings.inputs) == ((2, 1), (2, 3))
    assert estimate([[a, b] for a, b in zip(X, Y, strict=True)], names.tolist()).settings.columns == (2, 1)
    counts = [int(n) for n in re.findall(r"in (\d+)", found.settings.critic)]
    assert sum(counts) == 6
    assert found.settings.critic.endswith("of 6 reports")


def test_a_short_sentence() -> None:
    found = estimate(X, Y, steps=400)
    assert found.sentence(short=True) == (
        f"The mutual information is at least {found.lower:.2f} nats ({found.lower / math.log(2.0):.2f} bits; 95 %, "
        f"N = 200)."
    )
    assert estimate(X, NOISE).sentence(short=True) == (
        "No mutual information was shown: its lower limit (95 %) is below 0 (N = 200)."
    )
    few = estimate(X, NOISE, groups=np.arange(200) % 6).sentence(short=True)
    assert few == "No lower limit of the mutual information can be given (too few pairs; N = 200)."


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
