"""No loss is without a plain formula beside it, every formula is equal to its loss, and the page shows the record."""

from __future__ import annotations

import copy
import json
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import catalogue
import formulas
import readme
from formulas import timing

from portable_nce._core import calls as kept_calls

from calls import COUNTS_PROGRAMS

ROWS = {row.title: row for row in formulas.ROWS}
SIZE = 128, 16
"""Rows, at least two large classes, and features."""
TOLERANCE = 1e-6
"""In float64, relative to the largest entry: far above rounding, far below any other formula."""


def found_on(library: str, row: formulas.Row, function: Callable[..., Any], dtype: str = "float64") -> Sequence[Any]:
    """Value and gradients of a function of a row's arrays."""
    arrays = row.draw(*SIZE, dtype)
    if library == "torch":
        return timing.on_torch(function, arrays, row.gradients).run()
    return timing.on_jax(function, arrays, row.gradients).run()


def test_every_name_has_a_row_or_a_reason() -> None:
    assert formulas.missing() == set()
    stale = formulas.WITHOUT_FORMULA.keys() - formulas.names() | formulas.WITHOUT_FORMULA.keys() & set(ROWS)
    assert not stale
    assert len(ROWS) == len(formulas.ROWS), "titles are distinct"


def test_a_name_without_a_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tuple(row for row in formulas.ROWS if row.name != "bounds.dv" and row.way not in {"cauchy", "semi_hard"})
    monkeypatch.setattr(formulas, "ROWS", kept)
    assert formulas.missing() == {"bounds.dv", "info_nce, cauchy", "triplet_from_labels, semi_hard"}
    mined = tuple(row for row in kept if "easy" not in row.way)
    monkeypatch.setattr(formulas, "ROWS", mined)
    assert {"mining of positives by 'easy'", "mining of negatives by 'easy'"} <= formulas.missing()


@pytest.mark.parametrize("title", ROWS)
def test_a_formula_equals_its_loss(title: str) -> None:
    row = ROWS[title]
    kit = formulas.kit("torch")
    expected = found_on("torch", row, lambda *arrays: row.formula(kit, *arrays))
    assert timing.difference(found_on("torch", row, row.ours), expected) < TOLERANCE
    if row.has("numpy"):
        numpy_kit, arrays = formulas.kit("numpy"), row.draw(*SIZE, "float64")
        by_hand = row.by_hand(*arrays) if row.by_hand else [row.formula(numpy_kit, *arrays)]
        assert timing.difference(by_hand, expected) < TOLERANCE
        assert all(x.dtype == np.float32 for x in (row.by_hand or _none)(*row.draw(*SIZE, "float32"))[1:])


def _none(*_: Any) -> tuple[()]:
    return ()


WITHOUT_PROGRAM = {
    "concentrations": "it is called once an epoch, and differentiates nothing",
    "density.self_normalization": "three results have a gradient",
    "info_nce, elementwise": "functions of users may depend on more than their arguments",
}
"""Rows whose later calls run as they are written, and why."""


@pytest.mark.parametrize("library", [pytest.param("torch", marks=COUNTS_PROGRAMS), "numpy"])
def test_calls_as_large_as_in_a_training_do_not_depend_on_earlier_ones(library: str) -> None:
    """Libraries multiply large matrices by other ways than small ones, and not the same for transposed ones."""
    changed, as_written = [], set()
    for title, row in ROWS.items():
        arrays = row.draw(256, 64, "float64")
        if library == "torch":
            run = timing.on_torch(row.ours, arrays, row.gradients).run
        else:
            run = timing.ours_on_numpy(row.ours, arrays, row.gradients)
        kept_calls.KINDS.clear()
        first, *later = ([np.asarray(x).copy() for x in run()] for _ in range(kept_calls.TRIAL + 2))
        if not all(np.array_equal(x, y) for each in later for x, y in zip(first, each, strict=True)):
            changed.append(title)
        if not any(kind.programs for kind in kept_calls.KINDS.values()):
            as_written.add(title)
    assert changed == []
    assert as_written == WITHOUT_PROGRAM.keys()


def test_later_calls_hold_no_more_memory_than_first_ones() -> None:
    """By the count of allocations on NumPy; a matrix of all scores has a MiB, an array of all rows 128 KiB."""
    larger = {}
    for title, row in ROWS.items():
        run = timing.ours_on_numpy(row.ours, row.draw(512, 64, "float32"), row.gradients)
        run()  # loads modules
        kept_calls.KINDS.clear()
        first = peak_of(run)
        for _ in range(kept_calls.TRIAL):
            run()
        later = peak_of(run)
        if later > first + 2**18:
            larger[title] = first, later
    assert larger == {}


def peak_of(run: Callable[[], Any]) -> int:
    """Most bytes that a call allocates at once."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.full
@pytest.mark.parametrize("title", ROWS)
def test_a_formula_is_the_same_on_jax(title: str) -> None:
    row = ROWS[title]
    kits = {library: formulas.kit(library) for library in ("torch", "jax")}
    found = {
        library: found_on(library, row, lambda *arrays, kit=kit: row.formula(kit, *arrays), "float32")
        for library, kit in kits.items()
    }
    assert timing.difference(found["jax"], found["torch"]) < timing.TOLERANCE


@pytest.mark.parametrize("wrong", ["value", "gradient"])
def test_a_wrong_formula_is_refused(wrong: str) -> None:
    row = ROWS["from_scores.info_nce"]

    def formula(t: Any, scores: Any) -> Any:
        right = row.formula(t, scores)
        return 1.01 * right if wrong == "value" else 1.1 * right - 0.1 * t.stop(right)

    changed = replace(row, formula=formula)
    with pytest.raises(ValueError, match="expected the values and gradients of the formula, got differences"):
        timing.checked(timing.prepared(changed, "torch", *SIZE, peers=False))


def test_a_row_is_measured_in_rounds() -> None:
    row = ROWS["bounds.vub"]
    assert timing.checked(timing.prepared(row, "numpy", *SIZE)) < timing.TOLERANCE
    found = timing.measured(row, "numpy", *SIZE, 0.01, memory=False)
    assert found["rounds"] >= 1
    assert found["seconds"].keys() == {timing.OURS, timing.FORMULA}
    assert found["ratio"].keys() == {timing.OURS}
    assert timing.measured(row, "numpy", *SIZE, 0.0, memory=True)["memory"].keys() == {timing.OURS, timing.FORMULA}


def test_a_peer_that_fails_is_left_out() -> None:
    def make() -> Callable[..., Any]:
        def fails(*_: Any) -> Any:
            raise RuntimeError("not enough memory")

        return fails

    def missing() -> Callable[..., Any]:
        raise ImportError

    peers = tuple(
        formulas.Peer(name=f.__name__, library=library, make=f)
        for f, library in ((make, "torch"), (missing, "torch"), (missing, "jax"))
    )
    found = timing.measured(replace(ROWS["bounds.vub"], peers=peers), "torch", *SIZE, 0.0, memory=False)
    assert found["failed peers"] == ["make"]
    assert found["ratio"].keys() == {timing.OURS}
    assert catalogue.of_peer(found, "make") == "fails"
    assert catalogue.of_peer(found, "missing") == ""


def test_a_slow_peer_leaves_the_later_rounds_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {timing.OURS: 0.5, timing.FORMULA: 0.25, "a slow peer": 8.0, "a fast peer": 1.0}
    calls: Counter[str] = Counter()

    def seconds_of(run: timing.Run, _: Any) -> float:
        (name,) = run()
        calls[name] += 1
        return taken[name]

    monkeypatch.setattr(timing, "seconds_of", seconds_of)
    found = timing.timed({name: partial(list, [name]) for name in taken}, 3.0)
    assert calls == {timing.OURS: 5, timing.FORMULA: 5, "a slow peer": 1, "a fast peer": 3}
    ratios = {timing.OURS: 2.0, "a slow peer": 32.0, "a fast peer": 4.0}
    assert found == {"rounds": 5, "seconds": taken, "ratio": ratios}


def test_a_run_measures_in_processes_and_keeps_what_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {"key": ["bounds.vub", "torch", 1024], "date": "2026-01-02", "skipped": True}
    other = {"key": ["bounds.vub", "torch", 128], "date": "2026-01-02", "seconds": {"portable_nce": 1.0}}
    gone = {"key": ["a removed row", "torch", 1024], "date": "2026-01-02", "skipped": True}
    record, written = tmp_path / "catalogue.json", list[Any]()
    record.write_text(json.dumps({"cells": [kept, other, gone]}), encoding="utf-8")
    monkeypatch.setattr(catalogue, "RECORD", record)
    monkeypatch.setattr(catalogue, "recorded", lambda: json.loads(record.read_text(encoding="utf-8")))
    monkeypatch.setattr(catalogue, "write", written.append)
    monkeypatch.setattr(catalogue, "write_record", lambda found: record.write_text(json.dumps(found), encoding="utf-8"))
    options = ["--only", "bounds.vub", "--rows", "128", "--libraries", "numpy", "--minutes", "1", "--record"]
    assert catalogue.main(options) == 0
    found = json.loads(record.read_text(encoding="utf-8"))
    keys = [tuple(cell["key"]) for cell in found["cells"]]
    assert keys == [("bounds.vub", *key) for key in (("torch", 128), ("torch", 1024), ("numpy", 128))]
    assert found["cells"][:2] == [other, kept]
    assert catalogue.with_cells(found, {("bounds.vub", "torch", 128): {"skipped": True}})["cells"][0] == other
    assert written == [found]
    assert "NumPy" in capsys.readouterr().out


def test_what_would_take_too_long_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Slow:
        def __init__(self, library: str, core: int) -> None:
            assert library == "numpy"
            assert core >= 0

        def ask(self, patience: float, **request: Any) -> dict[str, Any]:
            assert patience > 0
            asked.append(request["rows"])
            return {"rounds": 1, "seconds": {"portable_nce": 1.0, "formula": 0.5}, "ratio": {"portable_nce": 2.0}}

        def close(self) -> None:
            pass

    monkeypatch.setattr(catalogue, "Worker", Slow)
    rows = [ROWS["bounds.vub"]]
    cells = catalogue.measure(rows, catalogue.SIZES, ["numpy"], minutes=1)
    assert asked == [128, 1024]
    cell = cells["bounds.vub", "numpy", 4096]
    assert cell == {"skipped": True}
    assert catalogue.ratio_of(cell) == "-"
    assert catalogue.ratio_of(cells["bounds.vub", "numpy", 1024]) == "2.00*"
    cells = catalogue.measure(rows, catalogue.SIZES, ["numpy"], minutes=0)
    assert asked == [128, 1024]
    assert all(cell == {"skipped": True} for cell in cells.values())


def test_a_process_that_takes_too_long_or_ends_is_given_up() -> None:
    for patience, expected in ((0.0, {"skipped": True}), (60.0, {"failed": "the process ended"})):
        worker = catalogue.Worker("numpy", 1 << 20)  # which ends, as there is no such core
        assert worker.ask(patience, row="bounds.vub") == expected
        worker.close()


def test_the_page_is_made_of_the_record() -> None:
    record = catalogue.recorded()
    text = catalogue.PAGE.read_text(encoding="utf-8")
    assert readme.with_numbers(text, catalogue.page(record), catalogue.BEGIN, catalogue.END) == text
    other = copy.deepcopy(record)
    cell = next(cell for cell in other["cells"] if "ratio" in cell)
    cell["ratio"]["portable_nce"] = 1234.0
    assert "| 1234 |" in catalogue.page(other).replace("1234*", "1234")


def test_the_record_is_written_in_lines(tmp_path: Path) -> None:
    record = catalogue.recorded()
    catalogue.write_record(record, tmp_path / "catalogue.json")
    assert catalogue.recorded(tmp_path / "catalogue.json") == record
    assert (tmp_path / "catalogue.json").read_text(encoding="utf-8") == catalogue.RECORD.read_text(encoding="utf-8")
