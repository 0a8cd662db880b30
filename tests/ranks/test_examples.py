"""The examples with several processes run, and agree with their page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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


BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def ran(command: list[str]) -> str:
    """Run a command with gloo and four JAX devices on this machine; return what it prints."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_runs(name: str) -> None:
    assert "off by at most" in ran([*COMMANDS[name], str(EXAMPLES / name)])


def test_the_page_has_blocks_for_both_libraries() -> None:
    assert ["torch" in block for block in BLOCKS] == [True, True, True, False, False]


@pytest.mark.full
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_of_the_page_is_a_program(block: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(block, encoding="utf-8")
    command = COMMANDS["ranks_torch.py" if "torch" in block else "ranks_jax.py"]
    ran([*command, str(tmp_path / "train.py")])


def test_the_page_names_the_commands_of_the_examples() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in COMMANDS:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        (command,) = re.findall(rf"^    (.*examples/{name})$", text, re.MULTILINE)
        assert command in page
