"""Copies for other libraries: what they hold, that they work, and that the page shows the recorded numbers."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portable_nce

import try_patch
import vendor

CALLS = {
    "torch": "import torch; x = torch.eye(4, 3, requires_grad=True)",
    "jax": "import jax; x = jax.numpy.eye(4, 3)",
    "numpy": "import numpy; x = numpy.eye(4, 3)",
}
"""Four embeddings of each library."""

PROGRAM = """
from yourlib._vendor.portable_nce import *
from yourlib._vendor import portable_nce as pnce

labels = (x[:, 0] > 2) | (x[:, 1] > 2)
labels = pnce.stop_gradient(labels * 1)
value, gradient = pnce.value_and_grad(pnce.supcon)(x, labels, temperature=0.5)
import sys

frameworks = {"torch", "jax", "cupy", "mlx"} & sys.modules.keys()
print(float(value), bool((gradient == gradient).all()), *frameworks, pnce.__name__)

assert not hasattr(pnce, "estimation")
library = type(x).__module__.partition(".")[0].removesuffix("lib")
assert pnce.backends_available() == (library,)
for _ in range(3):
    pnce.supcon(x, labels, temperature=0.5)
from yourlib._vendor.portable_nce._core.calls import KINDS

assert library == "jax" or any(kind.programs for kind in KINDS.values())
import array_api_strict

try:
    pnce.nt_xent(array_api_strict.ones((2, 2)), array_api_strict.ones((2, 2)))
except ImportError as error:
    assert str(error).endswith("copy it again with --library generic"), error
else:
    raise AssertionError
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


PARTIAL = """
import json, sys
import numpy
from yourlib._vendor import portable_nce as pnce

x, y = numpy.random.default_rng(0).normal(size=(2, 6, 3))
arguments = {"supcon": (x, numpy.arange(6) // 2), "info_nce": (x, y), "clip": (x, y)}
found = {}
for loss in sys.argv[1:]:
    scale = {"logit_scale": 2.0} if loss == "clip" else {"temperature": 0.5}
    value, gradient = pnce.value_and_grad(getattr(pnce, loss))(*arguments[loss], **scale)
    found[loss] = [float(value).hex(), gradient.tobytes().hex()]
for name in pnce.__all__:
    getattr(pnce, name)
for other in ("nt_xent", "estimation"):
    try:
        getattr(pnce, other)
    except AttributeError as error:
        found[other] = str(error)
assert "portable_nce" not in sys.modules, "the installed package was used"
print(json.dumps(found))
"""


@pytest.mark.parametrize("losses", [("supcon",), ("info_nce", "clip")])
def test_a_partial_copy_computes_its_losses_bit_for_bit(
    losses: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vendor.main([str(tmp_path / "yourlib" / "_vendor"), "--library", "numpy", "--only", *losses])
    command = [sys.executable, "-c", PARTIAL, *losses]
    env = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    x, y = np.random.default_rng(0).normal(size=(2, 6, 3))
    options = {"supcon": (np.arange(6) // 2, {"temperature": 0.5}), "info_nce": (y, {"temperature": 0.5})}
    for loss in losses:
        other, scale = options.get(loss, (y, {"logit_scale": 2.0}))
        value, gradient = portable_nce.value_and_grad(getattr(portable_nce, loss))(x, other, **scale)
        assert found[loss] == [float(value).hex(), gradient.tobytes().hex()]
    for name in ("nt_xent", "estimation"):
        assert "has no attribute" in found[name]

    printed = capsys.readouterr().out
    counts = re.findall(r" +(\d+) +(\d+) +\d+$", printed, flags=re.MULTILINE)
    (files, lines), _, (all_files, all_lines) = [(int(files), int(lines)) for files, lines in counts]
    assert files < all_files
    assert f"The copy has {lines / all_lines:.0%} of the lines of portable_nce.\n" in printed
    assert 0.6 < lines / all_lines < 0.7  # adoption/README.md says two thirds


def test_a_partial_copy_exists_for_every_public_name() -> None:
    for name in vendor.homes():
        files = vendor.files_of(("numpy",), only=(name,))
        names = dict.fromkeys(re.findall(r'^    "(\w+)",$', str(files["__init__.py"]), flags=re.MULTILINE))
        assert name in names


def test_a_loss_that_does_not_exist_gives_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        vendor.main([str(tmp_path / "_vendor"), "--only", "info_nec"])
    assert capsys.readouterr().err == "vendor.py: --only info_nec: no such loss; did you mean info_nce?\n"
    assert not (tmp_path / "_vendor").exists()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Folder with a copy for NumPy."""
    folder = tmp_path / "yourlib" / "_vendor"
    vendor.main([str(folder), "--library", "numpy"])
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    """Return all files below a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_says_where_it_comes_from_and_has_its_licences(target: Path) -> None:
    packages = (
        ("portable_nce", portable_nce.__version__, "The portable_nce authors"),
        ("array_api_compat", importlib.metadata.version("array-api-compat"), vendor.HOLDER),
    )
    for name, release, holder in packages:
        made = (target / name / vendor.MARKER).read_text(encoding="utf-8")
        version, commit, command = (line.partition(" ")[2] for line in made.splitlines())
        assert version == release
        assert re.fullmatch(r"[0-9a-f]{40}(, with changes)?|unknown", commit)
        assert command == f"python adoption/vendor.py {target} --library numpy"
        assert holder in (target / name / "LICENSE").read_text(encoding="utf-8")


def test_a_copy_is_replaced_as_a_whole(target: Path) -> None:
    first = contents(target)
    (target / "portable_nce" / "left_over.py").touch()
    (target / "own.py").touch()
    vendor.main([str(target), "--library", "numpy"])
    assert contents(target) == {**first, Path("own.py"): b""}
    assert not [path.name for path in target.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["portable_nce", "array_api_compat"])
@pytest.mark.parametrize("what", ["a folder", "an empty folder", "a file", "a link"])
def test_what_the_command_did_not_make_stays(
    name: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "_vendor" / name
    own.parent.mkdir()
    if what == "a file":
        own.write_text("mine", encoding="utf-8")
    elif what == "a link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / vendor.MARKER).touch()
        own.symlink_to(tmp_path / "elsewhere")
    else:
        own.mkdir()
        if what == "a folder":
            (own / "mine.py").write_text("mine", encoding="utf-8")
    before = contents(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        vendor.main([str(own.parent)])
    assert contents(tmp_path) == before
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{own}: expected nothing or a copy that this command made, with a file VENDORED" in error


@pytest.mark.parametrize("blocked", ["yourlib", "yourlib/_vendor"])
def test_a_file_in_the_way_of_the_folder_gives_one_line(
    blocked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        vendor.main([str(tmp_path / "yourlib" / "_vendor")])
    assert re.fullmatch(r"vendor.py: .*yourlib.*: (File exists|Not a directory)\n", capsys.readouterr().err)


@pytest.mark.parametrize("failing", ["copyfile", "rename"])
def test_a_copy_that_fails_leaves_the_earlier_one(
    failing: str, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the new folder is ready, but cannot take its place."""
    before, calls = contents(target), 0
    owner: Any = shutil if failing == "copyfile" else Path
    original = getattr(owner, failing)

    def full(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == (30 if failing == "copyfile" else 2):  # the second renaming puts the new copy in its place
            raise OSError(errno.ENOSPC, "No space left on device", str(args[-1]))
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, failing, full)
        with pytest.raises(SystemExit, match="2"):
            vendor.main([str(target), "--library", "torch"])
    assert contents(target) == before
    assert not [path.name for path in target.iterdir() if path.name.startswith(".")]
    assert "No space left on device" in capsys.readouterr().err


def test_a_dependency_that_is_not_installed_gives_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(SystemExit, match="2"):
        vendor.main([str(tmp_path / "_vendor")])
    assert not (tmp_path / "_vendor").exists()
    assert "pass --no-dependency\n" in capsys.readouterr().err
    vendor.main([str(tmp_path / "_vendor"), "--no-dependency"])
    assert not (tmp_path / "_vendor" / "array_api_compat").exists()


def test_a_copy_holds_the_adapters_that_were_asked_for_and_no_suite() -> None:
    files = set(vendor.files_of(("torch",)))
    assert {"backends/torch.py", "backends/torch_namespace.py", "backends/defaults.py", "modules/torch.py"} <= files
    assert {"backends/tape.py", "backends/traced.py"} <= files  # repeated calls become programs
    assert not {"backends/jax.py", "backends/numpy.py", "modules/jax.py", "__main__.py"} & files
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
