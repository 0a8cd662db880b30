"""What the benchmarks compare is the same, and streaming takes as little memory as it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import contestants  # noqa: E402

SETTING = contestants.Setting(rows=96, width=8)
NOT_HERE = (
    *("optax, jax.jit", "pytorch-metric-learning", "portable_nce, CuPy"),  # not installed; the first two are peers
    "formula, torch, set_flush_denormal",  # would change this process
)
"""What is not run here."""

pytestmark = [
    # JAX and PyTorch in one process: what each warns of is no matter of ours.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


def gradients_of(name: str, loss: str) -> list[np.ndarray]:
    """Run a contestant, and give its gradients; there is none for what a loss does not look at."""
    result: Any = contestants.CONTESTANTS[loss, name].prepare(loss, SETTING)()
    found = result if name.startswith(("formula, torch", "linear", "in chunks", "portable_nce, torch")) else result[1]
    return [np.asarray(g) for g in found if g is not None]


@pytest.mark.parametrize("loss", contestants.LOSSES)
def test_contestants_compute_the_same(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "CLASSES", 8)  # so few that no row is alone in its own
    names = [name for own, name in contestants.CONTESTANTS if own == loss and not name.startswith("roofline")]
    names = [name for name in names if name not in NOT_HERE and "torch.compile" not in name]
    assert {"portable_nce, NumPy", "portable_nce, torch", "portable_nce, JAX", "formula, torch"} <= set(names)
    expected = gradients_of("formula, torch", loss)
    assert all(np.any(gradient != 0) for gradient in expected)
    for name in names:
        for ours, theirs in zip(gradients_of(name, loss), expected, strict=False):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-6, err_msg=name)


MEMORY = """
import sys
sys.path.insert(0, {folder!r})
import contestants
setting = contestants.Setting({rows}, 16)
run = contestants.CONTESTANTS[{loss!r}, {name!r}].prepare({loss!r}, setting)
run()
print(contestants.memory_of(run, 0)[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's memory is read from Linux")
@pytest.mark.parametrize("name", ["portable_nce, NumPy", "portable_nce, torch", "portable_nce, JAX"])
@pytest.mark.parametrize("loss", ["info_nce", "nt_xent", "siglip", "supcon", "moco"])
def test_no_score_matrix_is_held(loss: str, name: str) -> None:
    """Half of one score matrix is never reached, but where exponentials may be kept: NT-Xent, up to 8192 rows."""
    rows = 16384 if loss == "nt_xent" else 8192
    script = MEMORY.format(folder=str(BENCHMARKS), rows=rows, loss=loss, name=name)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603
    columns = contestants.QUEUE * rows if loss == "moco" else rows
    assert int(result.stdout) < 2 * rows * columns
