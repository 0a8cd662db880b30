"""The measurements on a GPU: the program runs at tiny sizes on the CPU, and the pages show its record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import contestants
import gpu
import gpu_stages
import readme

from calls import mostly_full

if TYPE_CHECKING:
    from collections.abc import Sequence


def dry(*options: str) -> list[dict[str, Any]]:
    """Measure one library at tiny sizes."""
    command = [sys.executable, str(gpu.HERE), "--dry", "--measure", *options]
    path = os.pathsep.join([str(gpu.HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("library", "losses"),
    [
        pytest.param("torch", ("info_nce",), marks=pytest.mark.full),
        pytest.param("jax", ("clip", "supcon"), marks=pytest.mark.full),
        ("cupy", ("info_nce", contestants.LINEAR)),
    ],
)
def test_a_library_is_measured(library: str, losses: Sequence[str]) -> None:
    found = dry(library, "--only", *losses, "--budget", "500")
    expected = [item for item in gpu.plan(library, losses, dry=True) if item.name not in gpu.PEERS]
    assert [(each["loss"], each["name"]) for each in found] == [(item.loss, item.name) for item in expected]
    assert {each["name"] for each in found} >= {*gpu.NAMES[library]} - {"portable_nce, CUDA graph"}
    for each in found:
        assert each.get("milliseconds", 0.0) > 0.0, each


DRY_STAGES = "smoke", "fused", "extras", "ranks"
"""Stages of a default run; ``conformance`` has the code of ``ranks``."""


@pytest.mark.parametrize("stage", mostly_full([s for s in gpu_stages.STAGES if s != "speed"], DRY_STAGES))
def test_a_stage_runs_on_the_cpu(stage: str) -> None:
    """The code of a card at tiny sizes; what it finds is right here, too."""
    found = gpu.checked(stage, ["torch"], 100.0, dry=True)
    assert found
    assert {each["stage"] for each in found} == {stage}
    for each in found:
        assert "raised" not in each, each
        assert each.get("right", True), each
    if stage == "fused":
        assert all(each["first_call_s"] > 0.0 and each["milliseconds"] > 0.0 for each in found)
        assert all(each["difference"] < 1e-5 for each in found)
    elif stage in {"ranks", "conformance"}:
        assert all(each["passed"] > 0 and each["ended"] and not each["failures"] for each in found)


def test_stages_share_the_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In their own order; the last has all that is left. Without speeds, nothing is recorded."""
    given: list[tuple[str, float]] = []

    def checked(stage: str, _: Any, seconds: float, **__: Any) -> list[dict[str, Any]]:
        given.append((stage, seconds))
        return [{"stage": stage}]

    monkeypatch.setattr(gpu, "checked", checked)
    monkeypatch.setattr(gpu, "RECORD", Path("nowhere"))
    gpu.main(["--budget", "100", "--record", "--stages", "extras", "ranks", "smoke"])
    assert [stage for stage, _ in given] == ["smoke", "ranks", "extras"]
    assert [seconds for _, seconds in given] == pytest.approx([20.0, 25.0, 100.0], abs=2.0)
    assert '{"stage": "ranks"}' in capsys.readouterr().out


def test_what_has_no_time_is_left_out() -> None:
    assert dry("cupy", "--budget", "-1") == []


def test_a_dry_run_prints_tables_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    each = {"library": "cupy", "loss": "clip", "rows": 32, "width": 8, "columns": 0, "precision": "float32"}
    failed = {**each, "name": "portable_nce", "error": "ValueError: of the card"}
    monkeypatch.setattr(gpu, "results_of", lambda *_, **__: [{**each, "name": "formula"}, failed])
    monkeypatch.setattr(gpu, "RECORD", Path("nowhere"))
    gpu.main(["--dry", "--record", "--libraries", "cupy"])
    printed = capsys.readouterr().out
    assert "| `clip`, 32 × 8, float32 | fails |" in printed
    assert "MiB |" not in printed  # of which nothing was measured
    assert "cupy, portable_nce, clip, float32: ValueError: of the card" in printed


def test_libraries_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their own order; the last has all that is left."""
    given: list[tuple[str, float]] = []

    def results_of(library: str, _: Any, seconds: float, **__: Any) -> list[dict[str, Any]]:
        given.append((library, seconds))
        return []

    monkeypatch.setattr(gpu, "results_of", results_of)
    gpu.main(["--dry", "--budget", "100", "--libraries", "jax", "torch"])
    assert [library for library, _ in given] == ["torch", "jax"]
    assert [seconds for _, seconds in given] == pytest.approx([70.0, 100.0], abs=2.0)  # nothing took time


def test_every_loss_and_name_is_planned_on_a_card() -> None:
    planned = [item for library in gpu.LIBRARIES for item in gpu.plan(library, gpu.LOSSES, dry=False)]
    assert {item.loss for item in planned} == {*gpu.LOSSES}
    assert {item.precision for item in planned} == {*gpu.PRECISIONS}
    assert {item.name for item in planned} == {*(name for names in gpu.NAMES.values() for name in names), *gpu.PEERS}
    of_torch = gpu.plan("torch", gpu.LOSSES, dry=False)
    assert len(of_torch) == len({*of_torch})
    compiled = [item.name.endswith(", compiled") for item in of_torch]
    assert compiled == sorted(compiled), "what takes long comes last"
    first = of_torch[compiled.index(True)]
    assert (first.loss, first.rows, first.precision) == ("info_nce", 32768, "bfloat16")


def test_a_record_is_read_as_it_is_written() -> None:
    record = readme.gpu_record()
    assert json.loads(gpu.text_of(record)) == record
    assert gpu.RECORD.read_text(encoding="utf-8") == gpu.text_of(record)


def test_the_pages_show_the_record() -> None:
    record, page = readme.gpu_record(), gpu.PAGE.read_text(encoding="utf-8")
    assert gpu.with_table(page, gpu.table(record)) == page
    assert gpu.page(record) == gpu.ALL.read_text(encoding="utf-8")
