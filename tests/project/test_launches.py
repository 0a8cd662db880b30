"""What a GPU pays for stays within its limits: launches, products and bytes per score, counted without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import launches

LIMITS = launches.recorded_counts()

SLACK = 0.9
"""A count below this share of its limit is a limit to be lowered, by ``python benchmarks/launches.py --record``."""


@pytest.mark.parametrize("dtype", launches.DTYPES)
@pytest.mark.parametrize("name", launches.LOSSES)
def test_a_loss_stays_within_its_limits(name: str, dtype: str) -> None:
    limits, counts = {**LIMITS[f"{name}, {dtype}"]}, launches.counted(name, dtype)
    for kind in ("compiled", "fused"):
        limits.pop(kind, None)
    of_dtypes, counted = limits.pop("products"), counts.pop("products")
    assert counted.keys() == of_dtypes.keys(), "dtypes of the products"
    for what, number in {**counts, **counted}.items():
        limit = {**limits, **of_dtypes}[what]
        assert SLACK * limit <= number <= limit, what


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("dtype", launches.COMPILED_DTYPES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "supcon" in name else pytest.mark.full) for name in launches.COMPILED]
)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # likewise
def test_a_compiled_loss_stays_within_its_limits(name: str, dtype: str) -> None:
    assert launches.compiled(name, dtype) == LIMITS[f"{name}, {dtype}"]["compiled"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "clip, cosine" in name else pytest.mark.full) for name in launches.FUSED]
)
def test_compiled_steps_stay_within_their_limits(name: str) -> None:
    """In the code for CUDA, which Triton's compiler for tensors of PyTorch writes without a device, too."""
    obstacle = launches.obstacle_to_fused()
    if obstacle is not None:
        pytest.skip(obstacle)
    for key, kernels in launches.fused(name).items():
        assert sum(kernels) <= sum(LIMITS[key]["fused"]), key


def test_the_table_is_made_of_the_limits() -> None:
    page = launches.PAGE.read_text(encoding="utf-8")
    assert launches.with_table(page, launches.table(launches.recorded_counts())) == page


def test_a_formula_is_counted_as_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores, their exponential in place, its sum along rows, and the transposed product."""
    monkeypatch.setattr(launches, "TILE", 64 * 48)
    x, y = (torch.zeros((n, 12), dtype=torch.bfloat16, device="meta") for n in (64, 48))
    with launches.Launches(width=12) as recorded:
        tile = torch.mm(x, y.T, out_dtype=torch.float32)
        tile.exp_()
        torch.empty_like(tile).fill_(0.0)
        tile.sum(dim=1)
        torch.mm(tile.T, x.float())
    names = [launch.name for launch in recorded.found]
    assert names == ["mm", "exp_", "fill_", "sum", "_to_copy", "mm"]
    assert recorded.products == {"bfloat16": 64 * 48 * 12, "float32": 64 * 48 * 12}
    entries = 4 * 64 * 48
    assert [launch.touched for launch in recorded.found] == [0, entries, entries, entries + 4 * 64, 0, 0]
    assert [launch.moved for launch in recorded.found] == [0, 2 * entries, entries, entries + 4 * 64, 0, 0]


def test_a_call_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    launches.main(["--list", "info_nce, cosine", "--rows", "4", "--width", "3"])
    printed = capsys.readouterr().out
    assert "float32 (4, 3), float32 (3, 4), float32 (4, 4)" in printed
    assert printed.endswith(" launches\n")
