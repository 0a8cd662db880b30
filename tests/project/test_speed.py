"""The page on speed, and the numbers of the front pages, come from measurements."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import contestants
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
    monkeypatch.setattr(speed, "RECORDS", tmp_path)
    monkeypatch.setattr(readme, "main", written.append)
    (tmp_path / "work" / "cpu").mkdir(parents=True)
    (tmp_path / "work" / "cpu" / "info_nce-2048-128.json").write_text(json.dumps(result), encoding="utf-8")
    (tmp_path / "speed.md").write_text("old\n\n### With normalisation\n\nkept\n", encoding="utf-8")
    speed.main(["--report"])
    page = (tmp_path / "speed.md").read_text(encoding="utf-8")
    assert page.startswith("# Measurements of speed")
    assert "### With normalisation\n\nkept" in page
    assert "old" not in page
    assert "| roofline, NumPy | 300 |\n" in page
    assert "| portable_nce, NumPy | 355 (1.15) |\n" in page
    assert "| formula, torch | does not fit |\n" in page
    assert "| portable_nce, NumPy | 3 |\n" in page
    assert (tmp_path / "speed.png").stat().st_size > 0
    assert written == [tmp_path.parent]


def test_other_losses_share_tables() -> None:
    def measured(loss: str, **seconds: float) -> dict[str, object]:
        times = {f"{name}, NumPy": [one] for name, one in seconds.items()}
        memory = dict.fromkeys(times, 2.0**21)
        library = dict.fromkeys(times, "numpy")
        shape = {"loss": loss, "rows": 64, "width": 8, "device": "cpu", "day": date(2026, 1, 2)}
        return {**shape, "seconds": times, "memory": memory, "library": library}

    results = [
        measured("siglip", roofline=0.1, portable_nce=0.3),
        measured("clip", roofline=0.2, portable_nce=0.3, formula=0.5),
    ]
    page = speed.page(results, "cpu")
    assert "### InfoNCE" not in page
    others = page.partition("### Other losses\n")[2]
    assert "| | CLIP, 64 × 8 | SigLIP, 64 × 8 |\n" in others
    assert "| roofline, NumPy | 200 | 100 |\n| portable_nce, NumPy | 300 (1.50) | 300 (3.00) |\n" in others
    assert "| formula, NumPy | 500 (2.50) |  |\n" in others
    assert "| formula, NumPy | 2 |  |\n" in others


def test_a_million_items_have_a_section_of_their_own() -> None:
    shape = {"loss": "linear_softmax", "rows": 8, "width": 4, "device": "cpu", "day": date(2026, 1, 2)}
    times = {name: [0.2] for name in speed.OF_A_MILLION}
    library = dict.fromkeys(times, "torch")
    results = [
        {**shape, "columns": columns, "seconds": times, "memory": dict.fromkeys(times, 0.0), "library": library}
        for columns in (32, speed.MILLION)
    ]
    small, large = (
        speed.page(results, "cpu").partition("### Over a vocabulary\n")[2].split("### Over a million items\n")
    )
    assert "| | 8 × 32 × 4 |\n" in small
    assert "| | 8 × 1000000 × 4 |\n" in large
    setting = contestants.Setting(512, 64, "cpu", speed.MILLION)
    assert {each.name for each in speed.entered(contestants.LINEAR, setting)} == {*speed.OF_A_MILLION}


def test_the_numbers_of_readme_and_speed_are_those_of_the_records(tmp_path: Path) -> None:
    """As `benchmarks/readme.py` writes them."""
    text = (readme.ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.with_numbers(text, readme.numbers(readme.ROOT)) == text
    text = (readme.ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    measured = (readme.ROOT / "benchmarks" / "speed.md").read_text(encoding="utf-8")
    assert readme.with_numbers(text, readme.summary(measured)) == text
    for number, draw in enumerate((readme.draw, readme.draw_sizes)):
        draw(measured, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 0
