"""What users are sent: the contents and the metadata of wheel and sdist, and the numbers that must agree."""

from __future__ import annotations

import email.parser
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import pytest

import portable_nce

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).parents[2]

NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".nox", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", ".hypothesis"
)


class Distribution(NamedTuple):
    """The files of a wheel and of an sdist, without the sdist's own top folder, and the wheel's metadata."""

    wheel: set[str]
    sdist: set[str]
    metadata: Message


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """Build wheel and sdist from a copy of the tree, the wheel by way of the sdist."""
    folder = tmp_path_factory.mktemp("distribution")
    shutil.copytree(ROOT, folder / "tree", ignore=NOT_SOURCE)
    # Without isolation: the environment holds setuptools, so nothing is downloaded here.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(folder / "tree")]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if not name.endswith("/")}
        (metadata,) = (name for name in files if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    with tarfile.open(sdist) as archive:
        sources = {str(PurePosixPath(*PurePosixPath(item.name).parts[1:])) for item in archive if item.isfile()}
    return Distribution(files, sources, email.parser.Parser().parsestr(text))


def sources(folder: str) -> set[str]:
    """List the source files of a folder of the tree."""
    return {str(path.relative_to(ROOT).as_posix()) for path in (ROOT / folder).rglob("*.py")}


def test_the_wheel_holds_both_folders_and_nothing_else(distribution: Distribution) -> None:
    code = {name for name in distribution.wheel if ".dist-info/" not in name}
    adapters = {f"portable_nce/{name}" for name in sources("backends")}
    markers = {"portable_nce/py.typed", "portable_nce/backends/py.typed"}
    assert code == sources("portable_nce") | adapters | markers


def test_the_wheel_leaks_no_top_level_name(distribution: Distribution) -> None:
    tops = {name.partition("/")[0] for name in distribution.wheel}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"portable_nce"}


def test_the_sdist_holds_what_it_takes_to_build_and_to_test(distribution: Distribution) -> None:
    documents = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "noxfile.py", ".ci/run"}
    markers = {"portable_nce/py.typed", "backends/py.typed"}
    expected = documents | markers | sources("portable_nce") | sources("backends") | sources("tests")
    assert expected - distribution.sdist == set()


def test_the_metadata_says_what_the_package_is_and_needs(distribution: Distribution) -> None:
    metadata = distribution.metadata
    assert metadata["Name"] == "portable-nce"
    assert metadata["Version"] == portable_nce.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    requirements = metadata.get_all("Requires-Dist", [])
    assert [requirement for requirement in requirements if "extra ==" not in requirement] == ["array-api-compat>=1.15"]
    assert {"numpy", "torch", "jax", "cupy", "mlx", "demo", "test"} <= set(metadata.get_all("Provides-Extra", []))


@pytest.mark.parametrize(
    ("document", "pattern"),
    [("CITATION.cff", r"^version: (\S+)$"), ("CHANGELOG.md", r"^## \[(\S+)\]")],
)
def test_documents_name_the_version(document: str, pattern: str) -> None:
    match = re.search(pattern, (ROOT / document).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert match is not None
    assert match[1] == portable_nce.__version__


def test_continuous_integration_runs_the_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (command,) = (line for line in script.splitlines() if "nox" in line and not line.startswith("#"))
    assert command in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
