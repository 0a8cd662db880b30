"""The runs of nox for a release and of everything hold what the default run omits, and selected tests exist."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nox
import pytest
from nox import registry

from portable_nce.testing import VARIANTS

ROOT = Path(__file__).parents[2]


def tags(noxfile: Any) -> dict[str, list[str]]:
    """Tags of every session."""
    return {name: list(getattr(noxfile, name).tags) for name in registry.get()}


def test_every_library_and_dtype_has_a_variant_in_the_default_run(noxfile: Any) -> None:
    names = {name for together in noxfile.TOGETHER.values() for name in together} - {noxfile.STAND_IN}
    missing = set(noxfile.NOT_RUN)
    assert names | missing <= set(VARIANTS)
    assert {VARIANTS[name].library for name in names | missing} == {v.library for v in VARIANTS.values()}
    assert {dtype for v in VARIANTS.values() for dtype in v.dtypes} == {
        dtype for name in names for dtype in VARIANTS[name].dtypes
    }


def test_the_full_run_holds_what_the_default_run_holds(noxfile: Any) -> None:
    full = {name for name, of in tags(noxfile).items() if "full" in of}
    default = {session.partition("(")[0] for session in nox.options.sessions or ()}
    # Their full forms are `conformance_full`, `tests_full`, `types_full`, `ranks`, `plugin` and `vendored`.
    assert default - full == {"conformance", "tests", "types", "integration"}
    assert {"tests_full", "types_full", "ranks", "peers", "plugin", "vendored", "lowest_versions"} <= full
    assert {"demo", "newcomer"} <= full


def test_what_people_run_is_listed_first(noxfile: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert list(registry.get())[:2] == ["quick", "demo"]
    assert all(str(getattr(noxfile, name).__doc__).strip() for name in registry.get())
    with caplog.at_level("INFO", "nox"):
        for message in ("uv binary not found.", "Running session quick"):
            logging.getLogger("nox").info(message)
    assert caplog.messages == ["Running session quick"]


def test_a_release_needs_what_the_default_run_holds_and_no_old_compilers(noxfile: Any) -> None:
    release = {name for name, of in tags(noxfile).items() if "release" in of}
    default = {session.partition("(")[0] for session in nox.options.sessions or ()}
    assert default - release == {"types"}  # in full: `types_full`
    assert {"types_full", "lowest_versions", "peers", "docs", "demo", "release", "newcomer"} <= release
    compiled = {call.id for call in noxfile.compile.parametrize if "release" in call.tags}
    assert compiled == {"torch-newest", "jax-newest"}


def test_continuous_integration_runs_every_session_of_the_full_run(noxfile: Any) -> None:
    full = {name for name, of in tags(noxfile).items() if "full" in of}
    default = {session.partition("(")[0] for session in nox.options.sessions or ()}
    workflows = ROOT / ".github" / "workflows"
    if not workflows.exists():  # in an sdist
        pytest.skip("the workflows are not part of an sdist")
    text = "".join(path.read_text(encoding="utf-8") for path in workflows.glob("*.yml"))
    named = {name for name in full if re.search(rf"nox -s {name}\b|session: .*\b{name}\b", text)}
    # They read what other sessions left on the same machine.
    assert full - default - named == {"coverage", "agreement"}


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "full").rglob("test_*.py")), ids=lambda path: path.stem)
def test_tests_of_the_full_run_find_their_pages_and_libraries(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They read cases and code of pages when they are imported."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location(f"{path.stem}_of_the_full_run", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look it up there
    spec.loader.exec_module(module)


def test_quick_needs_no_list_of_files(noxfile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It checks the types of the whole package, whatever is installed."""
    commands: list[tuple[str, ...]] = []
    tester = SimpleNamespace(run=lambda *command: commands.append(command))
    monkeypatch.setattr(noxfile, "environment", lambda *_: tester)
    monkeypatch.setattr(noxfile, "pytest", lambda *_: None)
    noxfile.quick.func(None)
    (checked,) = (command[1:] for command in commands if command[0] == "mypy")
    assert checked[-1] == "portable_nce"
    assert "--disable-error-code=import-not-found" in checked
    assert not any("exclude" in option for option in checked)


def test_the_end_of_a_run_comes_last(noxfile: Any) -> None:
    order = list(registry.get())
    assert order[-1] == "test_summary"
    assert max(order.index(name) for name, of in tags(noxfile).items() if of) == order.index("test_summary")
    assert list(nox.options.sessions or ())[-1] == "test_summary"
    assert order.index("coverage") > max(order.index(name) for name in ("tests_full", "doctest", "conformance_full"))


def test_one_environment_serves_the_default_run(noxfile: Any) -> None:
    """Except for ruff."""
    everything = set(noxfile.ENVIRONMENTS["all"])
    for name in ("arrays", "torch", "jax", "mlx", "lint"):
        assert set(noxfile.ENVIRONMENTS[name]) - {"numpy"} <= everything, name  # there, with a version


def test_every_module_that_computes_is_mutated() -> None:
    files = set(importlib.import_module("mutation.mutants").FILES)
    for folder in ("_call", "_core", "_execution", "_losses", "estimation", "objectives"):
        found = {path.name for path in (ROOT / "portable_nce" / folder).glob("*.py")} - {"__init__.py", "protocol.py"}
        assert found
        assert {f"portable_nce/{folder}/{name}" for name in found} <= files
    assert {"backends/tape.py", "backends/torch.py", "portable_nce/bounds.py"} <= files
    assert not any("testing" in file or "_cli" in file for file in files)


def test_mutants_meet_the_tests_of_every_folder_that_mirrors_the_package() -> None:
    stages = importlib.import_module("mutation.stages").STAGES
    met = {argument.split("/")[1] for stage in stages.values() for argument in stage if argument.startswith("tests/")}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.glob("test_*.py"))}
    assert folders - {"full", "plugin", "project", "ranks", "vendored"} <= met  # of runs, pages and processes
    named = {argument.partition("::")[0] for stage in stages.values() for argument in stage if "tests/" in argument}
    assert {path for path in named if not (ROOT / path).exists()} == set()
