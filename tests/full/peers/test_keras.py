"""The recipe of docs/keras.md, on each backend of Keras in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "keras.md"

REPORT = """
import json
import sys

sample_weight = np.linspace(0.0, 1.0, len(held_out[0]), dtype="float32")
weighted = towers.evaluate(held_out, classes[1280:], sample_weight=sample_weight, batch_size=517, verbose=0)
dropped = towers.evaluate(held_out, sample_weight=sample_weight, batch_size=517, verbose=0)
towers.first.layers[0].kernel.regularizer = keras.regularizers.L2(0.1)
towers.compile()
regularised = towers.evaluate(held_out, batch_size=517, verbose=0) - loss
scale = np.exp(towers.log_scale.numpy())
first, second = towers.predict(held_out, verbose=0)
expected = [float(pnce.clip(first, second, logit_scale=float(scale), weights=w)) for w in (None, sample_weight, None)]
report = {"losses": [loss, weighted, dropped], "expected": expected, "regularised": regularised, "scale": float(scale)}
json.dump(report, sys.stdout)
"""
"""After the blocks: the losses as Keras has them, and as they are of what the model predicts."""

ON_NUMPY = """
import json
import sys

held_out = left[1280:], right[1280:]
"""


def blocks() -> list[str]:
    """The blocks of Python of the page."""
    return [part.partition("\n```")[0] for part in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]]


def outcome(backend: str, code: str, folder: Path) -> Any:
    """Run code on a backend, and read the last line that it prints."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "KERAS_HOME": str(folder), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-W", "error:::portable_nce", "-c", code]
    found = subprocess.run(  # noqa: S603  (this interpreter, with the code of the page)
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert found.returncode == 0, found.stderr[-4000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=["torch", "jax"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, outcome(request.param, "\n".join([*blocks(), REPORT]), folder)


def test_the_page_runs_and_its_losses_are_those_of_the_package(trained: tuple[Path, Any]) -> None:
    """The page asserts that the models learn; weights of samples are weights of pairs."""
    _, report = trained
    assert report["losses"] == pytest.approx(report["expected"], rel=1e-5)
    assert report["losses"][0] != pytest.approx(report["losses"][1], rel=1e-3)
    assert report["regularised"] > 0.1
    assert report["scale"] != pytest.approx(1.0 / 0.07, rel=1e-4)  # learned


def test_the_weights_are_evaluated_on_numpy(trained: tuple[Path, Any]) -> None:
    folder, report = trained
    setup, towers, *_, evaluation = blocks()
    definition = towers.partition("\n\ntowers = ")[0]
    numbers = evaluation.partition("\n\n")[2].rpartition("\nassert ")[0]
    told = "json.dump(evaluated.evaluate(held_out, batch_size=517, verbose=0), sys.stdout)"
    value = outcome("numpy", f"{setup}\n{definition}\n{ON_NUMPY}\n{numbers}\n{told}", folder)
    assert value == pytest.approx(report["losses"][0], rel=1e-5)
