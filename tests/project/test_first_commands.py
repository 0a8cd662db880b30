"""The first commands of README.md, docs/installation.md and CONTRIBUTING.md, in turn in a bare environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")


def fences(page: str, language: str) -> list[str]:
    """Return the code of a language on a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(fence: str) -> list[list[str]]:
    """Return the words of each command, without comments."""
    return [words for line in fence.splitlines() if (words := shlex.split(line, comments=True))]


def install_command() -> list[str]:
    """Return README's command, which is also the first of docs/installation.md."""
    (first,) = (one for fence in fences("README.md", "sh") for one in commands(fence) if ".[torch]" in one)
    assert [first] == commands(fences("docs/installation.md", "sh")[0])
    return first


class Bare:
    """New virtual environment with nothing but pip, and a copy of this tree."""

    def __init__(self, home: Path) -> None:
        self.clone = home / "clone"
        shutil.copytree(ROOT, self.clone, ignore=NOT_COPIED)
        venv.create(home / "env", with_pip=True)
        self.python = home / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
        self.env = {name: x for name, x in os.environ.items() if not name.startswith("PYTHON")}

    def run(self, command: list[str]) -> str:
        """Run a command of a page in the copy; return what it prints."""
        assert command[0] == "python"
        done = subprocess.run(
            [str(self.python), *command[1:]],
            cwd=self.clone,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def test_the_package_runs_in_its_source_tree(tmp_path: Path) -> None:
    """In a clone, the working directory precedes the installed package."""
    for folder in ("portable_nce", "backends"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=NOT_COPIED)
    program = (
        "import sys; sys.path.insert(0, '')\n"
        "sys.meta_path[:] = [x for x in sys.meta_path if x.__module__.startswith('_frozen')]  # no editable install\n"
        "import numpy, portable_nce\n"
        "from portable_nce._cli import main\n"
        "print(portable_nce.info_nce(numpy.eye(2), numpy.eye(2)), portable_nce.backends.__name__, main([]))"
    )
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, check=False)
    done = run([sys.executable, "-c", program])
    assert done.stdout.startswith("portable_nce "), done.stderr
    assert done.stdout.endswith("portable_nce.backends 0\n")
    shutil.rmtree(tmp_path / "backends")
    (tmp_path / "backends").mkdir()
    done = run([sys.executable, "-c", program])
    assert "portable_nce.backends: expected the folder of adapters, got none; install" in done.stderr


def test_pytest_refuses_a_source_tree_without_adapters_in_one_sentence(tmp_path: Path) -> None:
    """In a clone, `python -m pytest` finds the folder of the package, even if it is installed."""
    shutil.copytree(ROOT / "portable_nce", tmp_path / "portable_nce", ignore=NOT_COPIED)
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    program = (
        "import sys; sys.path.insert(0, '')\n"
        "sys.meta_path[:] = [x for x in sys.meta_path if x.__module__.startswith('_frozen')]  # no editable install\n"
        "import pytest; sys.exit(pytest.main(['-q', 'tests']))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "portable_nce.backends: expected an installed package" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_the_install_command_has_numpy_for_the_first_block() -> None:
    assert install_command() == ["python", "-m", "pip", "install", ".[torch]"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r"(?m)^torch = .*\"numpy>=", project)


@pytest.mark.full
@pytest.mark.parametrize("extra", ["numpy", "torch"])
def test_the_first_commands_run_in_a_bare_environment(extra: str, tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    bare.run([word.replace("torch", extra) for word in install_command()])
    loss, information = fences("README.md", "python")
    if extra == "torch":
        bare.run(["python", "-c", loss])
    assert bare.run(["python", "-c", information]).startswith("at least")
    listing, check = commands(fences("docs/installation.md", "sh")[1])
    assert re.search(rf"(?m)^{extra} ", bare.run(listing))
    assert bare.run(check).startswith("Every error is within the limits")


@pytest.mark.full
def test_pip_takes_the_command_for_an_editable_install(tmp_path: Path) -> None:
    """What it would install comes from pyproject.toml, which the sessions of nox install."""
    bare = Bare(tmp_path)
    upgrade, editable = commands(fences("CONTRIBUTING.md", "sh")[1])
    bare.run(upgrade)
    bare.run([*editable, "--dry-run", "--no-deps"])
