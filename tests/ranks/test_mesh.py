"""JAX on a mesh of four devices: inside `shard_map`, and with arrays that are sharded under `jit`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

TOLERANCE = 1e-13


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run the checks in a process of their own."""
    report = tmp_path_factory.mktemp("mesh") / "report.json"
    script = Path(__file__).with_name("mesh.py")
    subprocess.run([sys.executable, str(script), str(report)], check=True, timeout=600)
    return json.loads(report.read_text())


@pytest.mark.parametrize("topic", ["losses", "second order", "top k", "statistics", "chunks"])
def test_devices_get_what_one_gets(found: Any, topic: str) -> None:
    assert max(found[topic].values()) <= TOLERANCE, found[topic]


def test_half_precision_is_sent_as_it_is(found: Any) -> None:
    assert found["half"]["in bfloat16"]
    assert found["half"]["error"] <= 2**-8  # of gradients of 0.1 to 1, by a rounding


def test_no_more_is_sent_than_needed(found: Any) -> None:
    nothing = {"all-to-all": 0, "collective-permute": 0}
    one_sided = {"all-gather": 1, "all-reduce": 1, "reduce-scatter": 1, **nothing}
    two_sided = {"all-gather": 2, "all-reduce": 3, "reduce-scatter": 1, **nothing}
    assert found["collectives"] == {"info_nce": one_sided, "clip": two_sided, "nt_xent": one_sided}


def test_sharded_arrays_need_nothing(found: Any) -> None:
    numbers = {name: x for name, x in found["global"].items() if name != "explicit"}
    assert max(numbers.values()) <= TOLERANCE, numbers
    assert "auto_axes" in found["global"]["explicit"]
