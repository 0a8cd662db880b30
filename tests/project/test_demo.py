"""The demo, shortened."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from functools import cache
from typing import TYPE_CHECKING

import pytest

from portable_nce._cli import LOSSES, main
from portable_nce._cli.demo import Course, demo, load_digits, matches, train
from portable_nce._cli.libraries import open_library

if TYPE_CHECKING:
    from pathlib import Path

digits = cache(load_digits)


@cache
def course(backend: str, loss: str, iterations: int) -> Course:
    """Train for a few iterations."""
    return train(open_library(backend), loss, digits(), iterations, seed=0)


def size_of(png: bytes) -> tuple[int, int]:
    """Read a PNG file, check its checksums, and return width and height."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, kinds, pixels = 8, [], b""
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        kinds.append(kind)
        pixels += body if kind == b"IDAT" else b""
        at += 12 + length
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
    width, height, depth, colour = struct.unpack(">IIBB", png[16:26])
    assert len(zlib.decompress(pixels)) == height * (1 + width * {2: 3, 6: 4}[colour] * depth // 8)
    return width, height


def test_the_digits_are_divided_into_three() -> None:
    parts = (digits().training, digits().validation, digits().held_out)
    assert [len(part) for part in parts] == [1200, 197, 400]
    assert sorted(number for part in parts for number in part.tolist()) == list(range(1797))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_learns(loss: str) -> None:
    found = course("numpy", loss, 15)
    assert found.losses[-1] < found.losses[0] - 2.0
    assert found.bounds[found.best] == max(found.bounds) > found.bounds[0] + 2.0
    assert 1.5 < found.bound < 5.0
    _, own, same = matches(found.scores, digits())
    assert own.mean() > 20 / 400
    assert same[own].all()
    assert same.mean() > 2 * max(own.mean(), matches(found.untrained, digits())[2].mean())
    assert bool(found.companions) == (loss in {"flat_nce", "dcl"})


@pytest.mark.parametrize("backend", ["torch", "jax", "array_api_strict"])
@pytest.mark.parametrize("loss", ["info_nce", "clip"])
def test_the_backends_reach_the_same_numbers(backend: str, loss: str) -> None:
    if backend == "jax":
        # JAX would keep 64-bit numbers enabled for later tests.
        check_in_a_fresh_process(loss)
        return
    compare(course(backend, loss, 8), course("numpy", loss, 8))


def compare(found: Course, wanted: Course) -> None:
    """Compare two trainings."""
    assert found.losses == pytest.approx(wanted.losses, rel=1e-6)
    assert found.bounds == pytest.approx(wanted.bounds, rel=1e-6)
    assert found.bound == pytest.approx(wanted.bound, rel=1e-6)
    assert found.scores == pytest.approx(wanted.scores, abs=1e-5)


def check_in_a_fresh_process(loss: str) -> None:
    """Train on JAX in another process, and compare losses, bounds and scores."""
    code = f"""
import json
from portable_nce._cli.demo import load_digits, train
from portable_nce._cli.libraries import open_library
course = train(open_library("jax"), {loss!r}, load_digits(), 8, seed=0)
print(json.dumps([course.losses, course.bounds, course.bound, course.scores.tolist()]))
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    json, numpy = __import__("json"), __import__("numpy")
    losses, bounds, bound, scores = json.loads(result.stdout)
    found = Course(losses=losses, bounds=bounds, bound=bound, scores=numpy.asarray(scores))
    compare(found, course("numpy", loss, 8))


def test_the_training_stops_when_the_bound_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portable_nce._cli.demo.PATIENCE", 1)
    found = train(open_library("numpy"), "info_nce", digits(), 80, seed=1)
    assert found.best == len(found.bounds) - 2
    assert len(found.bounds) < 80


def test_the_command_reports_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "digits.png"
    assert main(["demo", "--loss", "flat_nce", "--iterations", "5", "--output", str(picture)]) == 0
    output = capsys.readouterr().out
    for expected in (
        "by FlatNCE",
        "training loss (FlatNCE): ",
        "InfoNCE beside it: ",
        "top-1 retrieval",
        "untrained 0.5%, chance 0.25%",
        "ceiling log 400 = 5.991 nats",
        f"picture: {picture}",
    ):
        assert expected in output
    width, height = size_of(picture.read_bytes())
    assert min(width, height) > 500


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for k, seed in enumerate((3, 3, 4)):
        demo("numpy", "info_nce", tmp_path / f"{k}.png", iterations=2, seed=seed)
        lines = capsys.readouterr().out.splitlines()
        reports.append([line for line in lines if not line.startswith("picture") and " s; " not in line])
    assert reports[0] == reports[1]
    assert reports[0] != reports[2]
