"""Copies for other libraries: what they hold, that they work, and that the page shows the recorded numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import try_patch
import vendor

CALLS = {
    "torch": "import torch; x = torch.eye(4, 3, requires_grad=True)",
    "jax": "import jax; x = jax.numpy.eye(4, 3)",
    "numpy": "import numpy; x = numpy.eye(4, 3)",
}
"""Four embeddings of each library."""

PROGRAM = """
from yourlib._vendor import portable_nce as pnce

labels = (x[:, 0] > 2) | (x[:, 1] > 2)
labels = pnce.stop_gradient(labels * 1)
value, gradient = pnce.value_and_grad(pnce.supcon)(x, labels, temperature=0.5)
import sys

frameworks = {"torch", "jax", "cupy", "mlx"} & sys.modules.keys()
print(float(value), bool((gradient == gradient).all()), *frameworks, pnce.__name__)
"""


@pytest.mark.parametrize(
    "library", ["numpy", *(pytest.param(library, marks=pytest.mark.full) for library in ("jax", "torch"))]
)
def test_a_copy_for_one_library_computes_losses(library: str, tmp_path: Path) -> None:
    target = tmp_path / "yourlib" / "_vendor"
    vendor.main([str(target), "--library", library])
    program = f"{CALLS[library]}\n{PROGRAM}"
    command = [sys.executable, "-c", program]
    env = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    value, finite, *others, name = done.stdout.split()
    assert float(value) > 0
    assert (finite, name) == ("True", "yourlib._vendor.portable_nce")
    assert {*others} <= {library}
    assert (target / "portable_nce" / "LICENSE").read_text(encoding="utf-8") == (vendor.ROOT / "LICENSE").read_text()


def test_a_copy_holds_the_adapters_that_were_asked_for_and_no_suite() -> None:
    files = set(vendor.files_of(("torch",)))
    assert {"backends/torch.py", "backends/torch_namespace.py", "backends/defaults.py", "modules/torch.py"} <= files
    assert not {"backends/jax.py", "backends/tape.py", "modules/jax.py", "__main__.py"} & files
    assert not any(file.startswith(("testing/", "estimation/", "_cli/")) for file in files)
    everything = set(vendor.files_of(vendor.LIBRARIES, suite=True))
    package = {path.relative_to(vendor.ROOT / "portable_nce") for path in (vendor.ROOT / "portable_nce").rglob("*.py")}
    adapters = {Path("backends") / path.name for path in (vendor.ROOT / "backends").glob("*.py")}
    assert {Path(file) for file in everything if file.endswith(".py")} == package | adapters


def test_the_adoption_page_shows_the_recorded_numbers() -> None:
    record = json.loads(try_patch.RECORD.read_text(encoding="utf-8"))
    page = try_patch.README.read_text(encoding="utf-8")
    assert set(record) == set(try_patch.EXAMPLES)
    assert try_patch.with_table(page, record) == page
    for name, found in record.items():
        assert (try_patch.HERE / f"{name}.patch").exists()
        assert found["after"]["tests"] == found["before"]["tests"]
        assert set(found["after"]["failed"]) <= set(found["before"]["failed"])
