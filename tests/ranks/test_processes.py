"""Groups of one to four processes on gloo, each started once per topic."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ranks import checks
from ranks.launch import launch

TOLERANCE = 1e-13
NUMBERS = [
    "cases",
    "options",
    "without rows",
    "second order without rows",
    "second order",
    "ddp",
    "fsdp",
    "compile",
    "queue",
    "top k",
    "modules",
    "chunks",
    "chunks, fsdp",
]
FULL = pytest.mark.full
SIZES = [pytest.param(size, marks=[FULL]) for size in (1, 2, 3, 4)]


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the reports of the processes of a group on a topic."""

    @cache
    def of(size: int, topic: str) -> list[dict[str, Any]]:
        return launch(size, topic, tmp_path_factory.mktemp("ranks") / f"{topic}-{size}")

    return of


def check_numbers(found: list[dict[str, Any]], name: str) -> None:
    for rank, report in enumerate(found):
        assert "error" not in report[name], report[name]["error"]
        assert report[name], f"rank {rank} compared nothing"
        assert max(report[name].values()) <= TOLERANCE, report[name]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("size", SIZES)
def test_ranks_get_what_one_process_gets(reports: Any, size: int, name: str) -> None:
    check_numbers(reports(size, "full"), name)


@pytest.mark.parametrize("size", SIZES)
def test_ranks_are_as_exact_as_one_process(reports: Any, size: int) -> None:
    """Within one ulp in 16 bits, and two in float32."""
    for report in reports(size, "full"):
        for name, units in report["bfloat16"].items():
            assert units <= (1.0 if "16" in name else 2.0), name


@pytest.mark.parametrize(
    "name", ["cases", "options", "without rows", "ddp", "compile", "queue", "top k", "modules", "chunks"]
)
def test_numbers_of_two_processes(reports: Any, name: str) -> None:
    check_numbers(reports(2, "quick"), name)


FAULTS = {
    "width": "features: expected the same on all ranks, got 4 on rank 0, 3 on rank 1",
    "dtype": "query: expected the same on all ranks, got an array of float64 with 2 axes on rank 0, an array of",
    "reduction": "reduction: expected the same on all ranks, got 'mean' on rank 0, 'sum' on rank 1",
    "temperature": "temperature: expected the same on all ranks, got ",
    "loss": "loss: expected the same on all ranks, got 'dcl' on rank 0, 'nt_xent' on rank 1",
    "frozen": "text: expected the same on all ranks, got an array of float64 with 2 axes that needs a gradient on",
    "no_grad": "image: expected the same on all ranks, got an array of float64 with 2 axes that needs a gradient on",
    "mask": "mask: expected the columns of all ranks, 12, got 11",
    "zero rows": "across: expected at least one row on one of the ranks, got none on any; skip the step on all",
    "positives": "positives: expected indices from 0 to 11, of the columns of all ranks, got 12",
}
"""What each rank is told of a fault of the last one."""

REFUSED = {
    "refused": "temperature: expected a finite number greater than 0, got -1.0",
    "refused in the second part": "key_b: expected 4 features",
}
"""What the last rank is told of an argument that it refuses; the others are told that it does."""


@pytest.mark.parametrize("name", [*FAULTS, *REFUSED])
def test_a_fault_of_one_rank_is_an_error_on_all(reports: Any, name: str) -> None:
    found = [report["faults"][name] for report in reports(2, "quick")]
    for rank, fault in enumerate(found):
        assert fault["type"] == "ValueError"
        assert fault["after"] <= TOLERANCE  # of a loss after it
        if name in FAULTS:
            assert FAULTS[name] in fault["message"]
        else:
            assert (REFUSED[name] if rank else "rank 1 refused its arguments") in fault["message"]


def test_a_rank_that_dies_is_the_error_of_the_group(tmp_path: Path) -> None:
    """The other ranks raise as well, and so does the parent."""
    with pytest.raises(RuntimeError, match="rank 1 of 2 left no report on dying"):
        launch(2, "dying", tmp_path)
    told = json.loads((tmp_path / "0.json").read_text())["dying"]
    assert told["type"] == "RuntimeError"


def test_faults_of_ranks_are_all_checked(reports: Any) -> None:
    assert {*reports(2, "quick")[0]["faults"]} == {*FAULTS, *REFUSED}
    assert set(checks.TOPICS["full"]) == {*NUMBERS, "bfloat16", "faults"}
