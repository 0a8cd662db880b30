"""The program of docs/recipe-lightning.md, on one process and on two; and that it finds what is wrong on two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "recipe-lightning.md"
PROGRAM = "\n\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


def run(program: str, size: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program on so many processes, which have the folder to themselves."""
    path = folder / "both.py"
    path.write_text(program, encoding="utf-8")
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)] if size > 1 else []
    settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(  # noqa: S603  (this interpreter, with the code of the page)
        [sys.executable, *several, str(path)],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("size", [1, 2])
def test_the_page_ends_with_the_weights_of_one_process(size: int, tmp_path: Path) -> None:
    found = run(PROGRAM, size, tmp_path)
    assert found.returncode == 0, found.stderr[-4000:]
    for name in ("Lightning", "accelerate"):
        assert found.stdout.count(f"{name}: loss") == 1, found.stdout  # by the first rank


@pytest.mark.parametrize(
    ("line", "wrong", "name"),
    [
        ("across=self.ranks", "across=None", "Lightning"),
        ("across=ranks)", "across=None)", "accelerate"),
        ('gradients="averaged"', 'gradients="summed"', "Lightning"),
    ],
)
def test_a_wrong_line_of_the_page_is_found_on_two_processes(line: str, wrong: str, name: str, tmp_path: Path) -> None:
    assert PROGRAM.count(line) == 1
    found = run(PROGRAM.replace(line, wrong), 2, tmp_path)
    assert found.returncode != 0
    assert "AssertionError" in found.stderr
    assert re.findall(r"^(\w+): loss", found.stdout, re.MULTILINE)[-1] == name, found.stdout
