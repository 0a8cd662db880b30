"""Contents and metadata of wheel and sdist, and version numbers that must agree."""

from __future__ import annotations

import email.parser
import importlib.metadata
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

import release

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).parents[2]

NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".nox", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", ".hypothesis"
)


ADDRESS, EMAIL = "https://github.com/owner/name", "authors@example.org"


class Distribution(NamedTuple):
    """Files of a wheel and of an sdist (without its top folder), the wheel's metadata, and the sdist."""

    wheel: set[str]
    sdist: set[str]
    metadata: Message
    archive: Path


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """Build sdist, and the wheel from it, from a copy of the tree with addresses filled in."""
    folder = tmp_path_factory.mktemp("distribution")
    shutil.copytree(ROOT, folder / "tree", ignore=NOT_SOURCE)
    release.fill_in(folder / "tree", ADDRESS, EMAIL)
    # Without isolation: the environment has setuptools, so nothing is downloaded.
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
    return Distribution(files, sources, email.parser.Parser().parsestr(text), sdist)


def sources(folder: str) -> set[str]:
    """Source files of a folder of the tree."""
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
    expected = documents | markers | sources("portable_nce") | sources("backends")
    expected |= sources("adoption") | sources("tests") | sources("tools")
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


def test_the_metadata_has_the_addresses(distribution: Distribution) -> None:
    metadata = distribution.metadata
    assert metadata["Author-email"] == f"The portable_nce authors <{EMAIL}>"
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert urls.pop("Documentation") == "https://owner.github.io/name/"
    assert set(urls) == {"Source", "Issues", "Changelog"}
    assert all(url.startswith(ADDRESS) for url in urls.values())
    title, _, badges, _ = metadata.get_payload().split("\n", maxsplit=3)  # type: ignore[union-attr]
    assert (title, badges.startswith("[![version](")) == ("# portable_nce", True)


def test_filling_in_the_addresses_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    contacts = {"CITATION.cff", "CODE_OF_CONDUCT.md", "SECURITY.md", "pyproject.toml"}
    for name in (*contacts, "README.md", "docs/index.md"):
        shutil.copy(ROOT / name, tmp_path / name)

    def fill(repository: str, address: str | None) -> dict[str, str]:
        release.fill_in(tmp_path, repository, address)
        return {path.name: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.*")}

    first = fill(ADDRESS, EMAIL)
    assert {name for name, text in first.items() if EMAIL in text} == contacts
    assert fill(ADDRESS, EMAIL) == first
    assert fill(ADDRESS, None) == first
    assert fill("https://github.com/other/place", "else@example.org") != first
    assert fill(ADDRESS, EMAIL) == first
    (tmp_path / "README.md").write_text("# Another title\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"README\.md: expected one place of the form"):
        fill(ADDRESS, EMAIL)


@pytest.mark.full
def test_the_recipe_for_conda_builds(
    distribution: Distribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, from a channel with this interpreter and packages of its environment."""
    import rattler_build as rb

    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "cache"))
    channel, python, platform = tmp_path / "channel", tmp_path / "python", rb.RenderConfig().target_platform
    (python / "bin").mkdir(parents=True)
    interpreter = Path(sys.executable).resolve()
    (python / "bin" / "python").symlink_to(interpreter)
    (python / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\n", encoding="utf-8")  # or it would find its own
    version = ".".join(map(str, sys.version_info[:3]))
    rb.assemble_package("python", version, platform, "0", channel / platform, files_dir=python)
    for name in ("pip", "setuptools", "array-api-compat"):
        found = importlib.metadata.distribution(name)
        paths = [path for path in found.files or () if ".." not in path.parts and path.suffix != ".pyc"]
        paths = [path for path in paths if Path(str(found.locate_file(path))).is_file()]  # pip lists folders, too
        files = [rb.FileEntry.from_paths(str(found.locate_file(path)), f"site-packages/{path}") for path in paths]
        target = channel / "noarch"
        rb.assemble_package(
            name, found.version, "noarch", "0", target, files=files, depends=["python"], noarch="python"
        )
    text = release.recipe(distribution.archive, ADDRESS)
    text = re.sub(r"url: https://.*\.tar\.gz", f"url: {distribution.archive.as_uri()}", text)
    text = re.sub(r'python_min: ".*"', 'python_min: "{}.{}"'.format(*sys.version_info), text)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "recipe.yaml").write_text(text, encoding="utf-8")
    recipe = rb.Stage0Recipe.from_file(tmp_path / "recipe" / "recipe.yaml")
    tested = rb.ToolConfiguration(test_strategy="native")
    (result,) = recipe.run_build(output_dir=channel, channels=[], tool_config=tested)
    assert "all tests passed!" in "\n".join(result.log)
    package = rb.Package.from_file(result.packages[0])
    assert (package.name, package.version, package.noarch) == ("portable-nce", portable_nce.__version__, "python")
    assert "array-api-compat >=1.15" in package.depends
    built = {path.removeprefix("site-packages/") for path in package.files if ".dist-info/" not in path}
    assert built == {path for path in distribution.wheel if ".dist-info/" not in path}


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
