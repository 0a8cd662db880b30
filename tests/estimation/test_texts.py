"""Paragraph for a paper and table of results: each sentence is true of its run."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from portable_nce.estimation import (
    ColumnInformation,
    ColumnTable,
    ConditionalInformation,
    IndependenceTest,
    InformationDifference,
    MutualInformation,
    Settings,
    mutual_information,
    table,
)
from portable_nce.estimation.result import FLAGS


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
    found = estimate(np.stack([X, Y], axis=1), names, splits=3, steps=25)
    assert "X has 2 columns; y has 1 column, given as 3 with an indicator of each value" in found.report()
    assert (found.settings.columns, found.settings.inputs) == ((2, 1), (2, 3))
    assert estimate([[a, b] for a, b in zip(X, Y, strict=True)], names.tolist()).settings.columns == (2, 1)
    counts = [int(n) for n in re.findall(r"in (\d+)", found.settings.critic)]
    assert sum(counts) == 9
    assert found.settings.critic.endswith("of 9 reports")


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


MADE = Settings(
    pairs=200, groups=200, folds=3, splits=2, unit="pairs", critic="separable in 6 of 6 reports", transform="ranks",
    networks=1, steps=400, batch=50, exceptions=0.015, seed=0, version="0.1", library="NumPy 2", columns=(1, 2),
    inputs=(1, 2),
)  # fmt: skip
SHOWN = MutualInformation(
    lower=0.5, estimate=0.75, low=0.5, high=1.0, bound=0.625, error=0.03125, ceiling=4.0, null=0.015625,
    curve=((100, 0.5, 0.125), (200, 0.625, 0.03125)), flags=(), settings=MADE,
)  # fmt: skip
WITHHELD = replace(
    SHOWN, lower=math.nan, estimate=math.nan, low=math.nan, high=math.nan, flags=("near copies", "not converged"),
    settings=replace(
        MADE, splits=1, transform="standardize", unit="groups", groups=50, seed=None, networks=2, inputs=(1, 5)
    ),
)  # fmt: skip
"""Results with every number given, and with all that may be withheld."""


def test_the_texts_of_a_result_are_these() -> None:
    assert repr(SHOWN).splitlines() == [
        "mutual information of 200 pairs, in nats",
        "  at least  0.500  (95 %; 0.721 bits)",
        "  estimate  0.750  [0.500, 1.000] if the curve goes on as from N/2",
        "  bound     0.625 ± 0.031, at most 4.00",
        "  null      0.016",
        "  curve     0.500 of 100, 0.625 of 200",
    ]
    assert SHOWN.sentence() == (
        "The mutual information is at least 0.500 nats (0.721 bits) with 95 % confidence (200 pairs; InfoNCE of "
        "held-out pairs, separable in 6 of 6 reports, 2 x 3 folds, portable_nce 0.1, seed 0)."
    )
    paragraph, sources = SHOWN.report().split("\n\n")
    assert paragraph == (
        "The mutual information of 200 pairs was estimated by InfoNCE (van den Oord et al. 2018) with portable_nce 0.1 "
        "(NumPy 2, seed 0). X has 1 column; y has 2 columns. Pairs have to be independent draws. Critics (separable in "
        "6 of 6 reports, 1 network per fold, at most 400 training steps with 50 pairs each) saw normal scores of ranks "
        "among the training pairs, and separate pairs chose among them; the loss allowed for a share of 0.015 of "
        "exceptions. Each pair was evaluated once in each of 2 divisions, in 3 folds, by critics fitted to others "
        "(Chernozhukov et al. 2018), and bounds were averaged. The bound on held-out pairs was 0.625 ± 0.031 nats "
        "(standard error by the influence of each pair), where at most 4.000 nats could have been found. The mutual "
        "information is at least 0.500 nats with 95 % confidence (one-sided; the larger of Student's margin and that "
        "of Gaffke (2005), which allows for pairs that the sample does not have). If the learning curve goes on as "
        "from 100 to 200 pairs, the mutual information is 0.750 nats, in the range from 0.500 to 1.000 nats, which is "
        "no confidence interval. With y shifted against x, the bound was 0.016 nats."
    )
    assert [line.partition(" (")[0] for line in sources.splitlines()] == [
        "Chernozhukov et al.",
        "Gaffke",
        "van den Oord et al.",
    ]
    flagged = replace(SHOWN, flags=("repeated rows", "not converged"), settings=replace(MADE, categories=4))
    assert flagged.sentence() == (
        "The mutual information given 4 categories is at least 0.500 nats (0.721 bits) with 95 % confidence (200 "
        "pairs; InfoNCE of held-out pairs, separable in 6 of 6 reports, 2 x 3 folds, portable_nce 0.1, seed 0; "
        "repeated rows; not converged)."
    )


def test_the_texts_of_a_withheld_result_are_these() -> None:
    assert repr(WITHHELD).splitlines() == [
        "mutual information of 200 pairs, in nats",
        "  at least  nan  (95 %)",
        "  bound     0.625 ± 0.031, at most 4.00",
        "  null      0.016",
        "  curve     0.500 of 100, 0.625 of 200",
        f"  near copies: {FLAGS['near copies']}",
        f"  not converged: {FLAGS['not converged']}",
    ]
    assert WITHHELD.sentence() == (
        "No lower limit of the mutual information can be given (near copies; 200 pairs in 50 groups; InfoNCE of "
        "held-out pairs, separable in 6 of 6 reports, 1 x 3 folds, portable_nce 0.1)."
    )
    paragraph, sources = WITHHELD.report(units="bits").split("\n\n")
    assert paragraph == (
        "The mutual information of 200 pairs in 50 groups was estimated by InfoNCE (van den Oord et al. 2018) with "
        "portable_nce 0.1 (NumPy 2). X has 1 column; y has 2 columns, given as 5 with an indicator of each value of "
        "categories. Groups have to be independent draws, rows of a group do not; no group was divided. Critics "
        "(separable in 6 of 6 reports, 2 networks per fold, at most 400 training steps with 50 pairs each) saw "
        "standardised values among the training pairs, and separate pairs chose among them; the loss allowed for a "
        "share of 0.015 of exceptions. Each group was evaluated once, in 3 folds, by critics fitted to others "
        "(Chernozhukov et al. 2018). The bound on held-out pairs was 0.902 ± 0.045 bits (standard error by the "
        "influence of each group), where at most 5.771 bits could have been found. No lower limit is given (rows seem "
        "to be noisy copies of others). No range is given (rows seem to be noisy copies of others; the training used "
        "all steps). With y shifted against x, the bound was 0.023 bits."
    )
    assert [line.partition(" (")[0] for line in sources.splitlines()] == ["Chernozhukov et al.", "van den Oord et al."]


def test_the_texts_of_comparisons_are_these() -> None:
    apart = InformationDifference(0.25, -0.125, 0.625, 0.5, 0.25, 0.75, ("still growing", "not converged"))
    assert repr(apart).splitlines() == [
        "difference of mutual information, in nats",
        "  estimate  0.250  [-0.125, 0.625] if the curves go on as from N/2",
        "  bounds    0.500 ± 0.250, correlation 0.75",
        "  still growing",
        "  not converged",
    ]
    given = ConditionalInformation(0.0123, 0.25, 0.125, 0.5, (), SHOWN, WITHHELD)
    assert repr(given).splitlines() == [
        "mutual information given a third variable, 200 pairs, in nats",
        "  p         0.0123 (independent given the third variable)",
        "  estimate  0.250 (a difference of estimates: no bound)",
        "  range     [0.125, 0.500] if the curves go on as from N/2",
        "  with y    0.625 ± 0.031 (bound of x with y and z)",
        "  without   0.625 ± 0.031 (bound of x with z)",
    ]
    assert given.sentence() == (
        "Given the third variable, independence has p = 0.012 (products of residuals); the mutual information given it "
        "is about 0.250 nats, in the range from 0.125 to 0.500 nats if the learning curves go on, which is no "
        "confidence interval (200 pairs; differences of InfoNCE of held-out pairs, 2 x 3 folds, portable_nce 0.1, seed "
        "0)."
    )
    first, method, *parts = given.report().split("\n\n")
    assert first == given.sentence()
    assert method.startswith("The mutual information given the third variable z is the difference")
    assert "\n\n".join(parts) == f"For x with y and z: {SHOWN.report()}\n\nFor x with z: {WITHHELD.report()}"
    columns = [ColumnInformation("height", 0.01, 0.02, SHOWN), ColumnInformation("b", math.nan, math.nan, WITHHELD)]
    assert repr(ColumnTable(columns)).splitlines() == [
        "column   lower   bound   error       p  p (Holm)  flags",
        "height   0.500   0.625   0.031  0.0100    0.0200",
        "b          nan   0.625   0.031     nan       nan  near copies, not converged",
    ]


def test_the_texts_of_a_test_of_independence_are_these() -> None:
    found = IndependenceTest(0.0123, (("one", 0.5), ("two", 0.25), ("three", 0.125)), 190, 200, 200, (), 99, 7, "0.1")
    assert repr(found).splitlines() == [
        "test of independence of 200 pairs",
        "  p  0.0123",
        "     0.5 by one",
        "     0.25 by two",
        "     0.125 by three",
    ]
    ranks = "one, two and three, combined by their ranks among"
    assert found.sentence() == (
        f"Independence: p = 0.012 (200 pairs; {ranks} 99 permutations, portable_nce 0.1, seed 7)."
    )
    assert replace(found, groups=20, permutations=None, seed=None).sentence() == (
        f"Independence: p = 0.012 (200 pairs in 20 groups; {ranks} all shifts, portable_nce 0.1)."
    )
    assert replace(found, categories=3).sentence() == (
        f"Independence given 3 categories: p = 0.012 (200 pairs; {ranks} 99 permutations within categories, "
        "portable_nce 0.1, seed 7)."
    )
    assert replace(found, numbers=1).sentence() == (
        f"Independence given 1 column of numbers: p = 0.012 (200 pairs; {ranks} 99 random multiples of their terms, "
        "portable_nce 0.1, seed 7)."
    )
    gone = replace(found, p=math.nan, numbers=2, flags=("serial dependence", "repeated rows", "near copies"))
    assert gone.sentence() == (
        "Independence given 2 columns of numbers cannot be tested (serial dependence, near copies; 200 pairs; "
        "portable_nce 0.1, seed 7)."
    )


def test_the_picture_shows_the_numbers_of_the_result() -> None:
    pytest.importorskip("matplotlib")
    axes = replace(SHOWN, ceiling=1.0, flags=("still growing", "not converged")).plot()
    drawn = {str(line.get_label()): [*map(float, line.get_ydata())] for line in axes.lines}
    assert {name: heights for name, heights in drawn.items() if not name.startswith("_")} == {
        "lower (95 %)": [0.5] * 2,
        "null": [0.015625] * 2,
        "ceiling": [1.0] * 2,
    }
    assert [*axes.get_xticks()] == [100, 200, 400]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["100", "200", "more"]
    bars = [[[*map(tuple, part)] for part in group[2][0].get_segments()] for group in axes.containers]
    assert bars[1] == [[(400.0, 0.5), (400.0, 1.0)]]
    np.testing.assert_allclose(bars[0], [[(n, y - 1.645 * e), (n, y + 1.645 * e)] for n, y, e in SHOWN.curve])
    assert [[200, 400], [0.625, 0.75]] in [np.asarray(line.get_data()).tolist() for line in axes.lines]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("pairs", "mutual information (nats)")
    assert [text.get_text() for text in axes.texts] == ["still growing\nnot converged"]
    axes = WITHHELD.plot()
    assert [*axes.get_xticks()] == [100, 200]
    assert {"lower (95 %)", "ceiling"}.isdisjoint(str(line.get_label()) for line in axes.lines)
