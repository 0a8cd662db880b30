"""The page on speed, and the numbers of the front pages, are made of what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import readme
import speed

if TYPE_CHECKING:
    import pytest


def test_the_page_is_made_of_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    result = {
        "loss": "info_nce",
        "rows": 2048,
        "width": 128,
        "device": "cpu",
        "seconds": {"roofline, NumPy": [0.5, 0.1], "portable_nce, NumPy": [0.6, 0.11], "formula, torch": []},
        "memory": {"roofline, NumPy": 0.0, "portable_nce, NumPy": 3.0 * 2**20},
        "library": {"roofline, NumPy": "numpy", "portable_nce, NumPy": "numpy", "formula, torch": "torch"},
    }
    monkeypatch.setattr(speed, "WORK", tmp_path / "work")
    monkeypatch.setattr(speed, "DOCS", tmp_path)
    monkeypatch.setattr(readme, "main", written.append)
    (tmp_path / "work" / "cpu").mkdir(parents=True)
    (tmp_path / "work" / "cpu" / "info_nce-2048-128.json").write_text(json.dumps(result), encoding="utf-8")
    (tmp_path / "speed.md").write_text(f"# By hand\n\n{speed.MARK}\nold", encoding="utf-8")
    speed.main(["--report"])
    page = (tmp_path / "speed.md").read_text(encoding="utf-8")
    assert page.startswith("# By hand\n\n")
    assert "old" not in page
    assert "| roofline, NumPy | 300 |\n" in page
    assert "| portable_nce, NumPy | 355 (1.15) |\n" in page
    assert "| formula, torch | does not fit |\n" in page
    assert "| portable_nce, NumPy | 3 |\n" in page
    assert (tmp_path / "speed.png").stat().st_size > 0
    assert written == [tmp_path.parent]


def test_the_numbers_of_the_front_pages_are_those_of_the_records(tmp_path: Path) -> None:
    """`benchmarks/readme.py` writes them."""
    for page in (readme.ROOT / "README.md", readme.ROOT / "docs" / "index.md"):
        text = page.read_text(encoding="utf-8")
        assert readme.with_numbers(text, readme.ROOT / "docs") == text
    readme.draw((readme.ROOT / "docs" / "speed.md").read_text(encoding="utf-8"), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 0
