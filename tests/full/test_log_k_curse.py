"""The experiment on the log-K curse, shortened: that it runs, and what must hold even so."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOSSES = {
    "float32, cross_entropy",
    "float32, pnce InfoNCE",
    "float32, pnce FlatNCE",
    "bfloat16, cross_entropy",
    "bfloat16, cross_entropy in float32",
    "bfloat16, pnce InfoNCE",
    "bfloat16, pnce FlatNCE",
}
BY_SIZE = (
    "Retrieval: top-1",
    "Linear probe",
    "Margin in the last quarter",
    "Gradient error in the last quarter",
    "Positives whose score",
)


@cache
def printed() -> dict[str, list[list[str]]]:
    """Run the experiment, and give the rows of each table it prints, by heading."""
    before = documents()
    command = [sys.executable, str(ROOT / "benchmarks" / "log_k_curse.py"), "--quick"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (what stands above)
    assert result.returncode == 0, result.stderr
    assert documents() == before
    tables: dict[str, list[list[str]]] = {}
    heading = ""
    for line in result.stdout.splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        if line.startswith("|"):
            tables.setdefault(heading, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return {heading: rows[2:] for heading, rows in tables.items()}  # less the head and the rule under it


def documents() -> dict[str, int]:
    """Give the documents of this experiment, and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in (ROOT / "docs").glob("log_k_curse.*")}


def table(beginning: str) -> list[list[str]]:
    """Give the rows of the table whose heading begins so."""
    (rows,) = (rows for heading, rows in printed().items() if heading.startswith(beginning))
    return rows


def numbers(cell: str) -> list[float]:
    """Read the numbers of a cell: one; a mean ± a deviation; or an error and, in brackets, a share."""
    words = cell.replace("±", " ").replace("(", " ").replace(")", " ").replace("%", " ").split()
    return [float(word) for word in words]


@pytest.mark.parametrize("beginning", BY_SIZE)
def test_every_loss_has_a_finite_number_at_every_temperature_and_batch_size(beginning: str) -> None:
    rows = table(beginning)
    assert {(row[0], row[1]) for row in rows} == {
        (temperature, loss) for temperature in ("0.1", "0.02") for loss in LOSSES
    }
    assert all(math.isfinite(number) for row in rows for cell in row[2:] for number in numbers(cell))


@pytest.mark.parametrize("beginning", ["One batch", "The same scores"])
def test_every_loss_has_finite_numbers_in_saturation(beginning: str) -> None:
    rows = table(beginning)
    assert {row[0] for row in rows} == LOSSES
    assert all(math.isfinite(number) for row in rows for cell in row[1:] for number in numbers(cell))


def test_longer_trainings_have_finite_numbers() -> None:
    rows = table("Retrieval after more epochs")
    assert len(rows) == 4
    assert all(math.isfinite(number) for row in rows for cell in row[2:] for number in numbers(cell))


def test_losses_are_compared_seed_by_seed() -> None:
    rows = table("Differences")
    assert len(rows) == 10
    assert all(math.isfinite(number) for row in rows for cell in row[2:] for number in numbers(cell))


@pytest.mark.parametrize("beginning", ["One batch", "The same scores"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_usual_gradient_is_less_exact_in_saturation(beginning: str, precision: str) -> None:
    column = {"One batch": 2, "The same scores": -1}[beginning]
    errors = {row[0]: numbers(row[column])[0] for row in table(beginning)}
    assert errors[f"{precision}, cross_entropy"] > errors[f"{precision}, pnce InfoNCE"]


def test_in_bfloat16_the_usual_gradient_is_off_by_much_and_ours_by_rounding() -> None:
    errors = {row[0]: numbers(row[2])[0] for row in table("One batch")}
    assert errors["bfloat16, cross_entropy"] > 0.05
    assert max(errors["bfloat16, pnce InfoNCE"], errors["bfloat16, pnce FlatNCE"]) < 0.01


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_usual_loss_lets_positives_go(precision: str) -> None:
    shares = {row[0]: numbers(row[-1])[1] for row in table("The same scores")}
    assert shares[f"{precision}, cross_entropy"] > 50.0
    assert shares[f"{precision}, pnce InfoNCE"] == shares[f"{precision}, pnce FlatNCE"] == 0.0
