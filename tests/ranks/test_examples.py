"""The examples with several processes run, and agree with their page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "ranks.md"
BIN = Path(sys.executable).parent

COMMANDS = {
    "ranks_torch.py": [str(BIN / "torchrun"), "--nproc-per-node", "2"],
    "ranks_moco.py": [str(BIN / "torchrun"), "--nproc-per-node", "2"],
    "ranks_jax.py": [sys.executable],
    "ranks_mpi.py": [str(BIN / "mpiexec"), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable],
}


@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_runs(name: str) -> None:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    found = subprocess.run(
        [*COMMANDS[name], str(EXAMPLES / name)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    assert "off by at most" in found.stdout


def test_the_page_shows_lines_of_the_examples() -> None:
    """Every block of Python is part of an example, up to indentation."""
    texts = [textwrap.dedent(path.read_text(encoding="utf-8")) for path in sorted(EXAMPLES.glob("ranks_*.py"))]
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        assert any(block in text for text in texts), block


def test_the_page_names_the_commands_of_the_examples() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in COMMANDS:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        (command,) = re.findall(rf"^    (.*examples/{name})$", text, re.MULTILINE)
        assert command in page
