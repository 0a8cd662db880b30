"""The report on agreement: input, failures, and the page in docs/, which must match its data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from portable_nce.testing import CASES, VARIANTS

import agreement

if TYPE_CHECKING:
    from pathlib import Path

CELL = {
    "variant": "torch",
    "library": "torch 1.0",
    "device": "cpu",
    "loss": "info_nce",
    "regime": "normal",
    "dtype": "float32",
    "value": 0.5,
    "gradient": 3.0,
}


def report(folder: Path, *cells: dict[str, Any]) -> Path:
    """Write a report as pytest does."""
    suite = "".join(
        f"<testcase><properties><property name='agreement' value='{json.dumps(cell)}'/></properties></testcase>"
        for cell in cells
    )
    (folder / "conformance-torch").mkdir(parents=True)
    text = f"<testsuites><testsuite timestamp='2026-01-02T03:04:05'>{suite}</testsuite></testsuites>"
    (folder / "conformance-torch" / "junit.xml").write_text(text, encoding="utf-8")
    return folder


def test_a_cell_is_the_worst_of_its_cases(tmp_path: Path) -> None:
    columns = agreement.measured(report(tmp_path, CELL, CELL | {"value": 0.75, "gradient": 1.0}))
    assert columns["torch"].cells == {("info_nce", "normal", "float32"): {"value": 0.75, "gradient": 3.0}}
    assert columns["torch"].date == "2026-01-02"


@pytest.mark.parametrize("error", [8.01, float("inf"), float("nan")])
def test_a_cell_beyond_its_bound_fails(tmp_path: Path, error: float) -> None:
    bounds = agreement.recorded(agreement.measured(report(tmp_path / "old", CELL)), {})
    assert bounds == {"all": {"info_nce|normal|float32": [1.0, 8.0]}}
    assert agreement.beyond(agreement.measured(tmp_path / "old"), bounds) == []
    worse = agreement.measured(report(tmp_path / "new", CELL | {"gradient": error}))
    (line,) = agreement.beyond(worse, bounds)
    assert line.startswith("torch: info_nce normal float32: gradient")


def test_a_variant_that_runs_some_cases_has_the_bounds_of_those_that_run_all(tmp_path: Path) -> None:
    of_jax = CELL | {"variant": "jax-x64"}
    smaller = agreement.measured(report(tmp_path / "few", CELL, of_jax | {"gradient": 1.0}))
    bounds = agreement.recorded(smaller, {})
    assert bounds.keys() == {"all"}
    assert agreement.beyond(agreement.measured(report(tmp_path / "more", of_jax | {"gradient": 8.0})), bounds) == []
    larger = agreement.measured(report(tmp_path / "larger", of_jax | {"gradient": 5.0}))
    (line,) = agreement.beyond(agreement.measured(report(tmp_path / "beyond", of_jax | {"gradient": 9.0})), bounds)
    assert line.startswith("jax-x64: info_nce normal float32: gradient")
    needed = agreement.recorded(larger, bounds)
    assert needed == bounds | {"jax-x64": {"info_nce|normal|float32": [1.0, 16.0]}}
    assert agreement.recorded({"jax-x64": smaller["jax-x64"]}, needed) == bounds


def test_a_cell_without_a_bound_fails(tmp_path: Path) -> None:
    (line,) = agreement.beyond(agreement.measured(report(tmp_path, CELL)), {})
    assert "no bound is recorded" in line


def test_the_page_names_the_worst_cell(tmp_path: Path) -> None:
    cells = [CELL, CELL | {"dtype": "float64", "gradient": 90.0}]
    cells += [cell | {"regime": "saturated", "gradient": 1.0} for cell in cells]
    page = agreement.markdown(agreement.measured(report(tmp_path, *cells)))
    assert "The worst cell is 90.0 ulp" in page


def test_columns_survive_the_file(tmp_path: Path) -> None:
    columns = agreement.measured(report(tmp_path, CELL, CELL | {"dtype": "float64", "regime": "saturated"}))
    agreement.write(tmp_path / "data.json", columns)
    assert agreement.read(tmp_path / "data.json") == columns


def test_a_run_of_few_losses_replaces_their_cells(tmp_path: Path) -> None:
    old = agreement.measured(report(tmp_path / "old", CELL, CELL | {"loss": "clip"}))
    new = agreement.measured(report(tmp_path / "new", CELL | {"value": 0.125}))
    columns = agreement.merged(old, new)
    assert columns["torch"].cells["info_nce", "normal", "float32"]["value"] == 0.125
    assert columns["torch"].cells.keys() == old["torch"].cells.keys()
    bounds = agreement.recorded(new, agreement.recorded(old, {}))
    assert agreement.beyond(columns, bounds) == []


def test_recorded_errors_are_complete_and_within_their_bounds() -> None:
    columns = agreement.read(agreement.DATA)
    bounds = json.loads(agreement.BOUNDS.read_text(encoding="utf-8"))
    assert agreement.beyond(columns, bounds) == []
    assert {name for name, variant in VARIANTS.items() if not variant.gpu} - {"mparray"} <= set(columns)
    for column in columns.values():
        assert {key[0] for key in column.cells} == {case.loss for case in CASES}


def test_the_agreement_page_is_written_from_the_data() -> None:
    columns = agreement.read(agreement.DATA)
    assert agreement.markdown(columns) == (agreement.DATA.parent / "agreement.md").read_text(encoding="utf-8")
    assert agreement.page(columns) == (agreement.DATA.parent / "agreement.html").read_text(encoding="utf-8")
    for name in agreement.absent(columns):
        assert f"| `{name}` |" in agreement.markdown(columns)
