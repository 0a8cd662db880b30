"""The full run of nox includes what the default run omits, and selected tests exist."""

from __future__ import annotations

import importlib
import importlib.util
import re
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nox
import pytest
from nox import registry

import portable_nce
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
    # Their full forms are `whole`, `products`, `typing`, `ranks`, `plugin` and `vendored`.
    assert default - full == {"conformance", "tests", "types", "integration"}
    assert {"products", "typing", "ranks", "peers", "plugin", "vendored", "minimums", "demo", "newcomer"} <= full


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
    assert order[-1] == "summary"
    assert max(order.index(name) for name, of in tags(noxfile).items() if of) == order.index("summary")
    assert list(nox.options.sessions or ())[-1] == "summary"
    assert order.index("coverage") > max(order.index(name) for name in ("products", "doctest", "whole"))


def test_one_environment_serves_the_default_run(noxfile: Any) -> None:
    """Except for ruff."""
    everything = set(noxfile.ENVIRONMENTS["all"])
    for name in ("arrays", "torch", "jax", "mlx", "lint"):
        assert set(noxfile.ENVIRONMENTS[name]) - {"numpy"} <= everything, name  # there, with a version


def test_links_of_a_released_readme_are_absolute(noxfile: Any, tmp_path: Path) -> None:
    address = "https://github.com/owner/name"
    readme = Path(shutil.copy(ROOT / "README.md", tmp_path))
    noxfile.make_links_absolute(readme, address, "v1.2.3")
    links = re.findall(r"(!?)\[[^]]*\]\(([^)\s]+)\)", readme.read_text(encoding="utf-8"))
    assert all(link.startswith(("https://", "#")) for _, link in links)
    for picture, link in links:
        if "/v1.2.3/" in link:
            kind, _, path = link.removeprefix(f"{address}/").partition("/v1.2.3/")
            target = ROOT / path.partition("#")[0]
            assert target.is_dir() if kind == "tree" else target.is_file(), link
            assert (kind == "raw") == bool(picture)
    assert any(picture for picture, _ in links)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fill"], "--repository: expected https://github.com/OWNER/NAME, got None"),
        (
            ["--repository", "github.com/owner/name"],
            "--repository: expected https://github.com/OWNER/NAME, got github.com",
        ),
        (["--repository", "https://github.com/owner/name.git"], "--repository: expected https://github.com/OWNER/NAME"),
        (["--email", "somebody"], "--email: expected name@example.org, got somebody"),
        (["--tag", "0.1.0"], "--tag: expected v and the version, such as v0.1.0, got 0.1.0"),
        (["--publish"], "unrecognized arguments: --publish"),
    ],
)
def test_an_option_of_a_release_that_makes_no_sense_is_an_error(
    noxfile: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(noxfile, "REPOSITORY", "")  # defined on GitHub
    with pytest.raises(SystemExit):
        noxfile.release_options(arguments)
    assert message in capsys.readouterr().err


def test_the_switcher_has_the_version_that_the_site_is_built_for(noxfile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the configuration appends to it

    def options(**env: str) -> dict[str, Any]:
        for name in ("GITHUB_REPOSITORY", "GITHUB_REF_TYPE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        configured: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "conf.py"))["html_theme_options"]
        return configured

    assert "switcher" not in options()
    site = noxfile.site_of("https://github.com/owner/name")
    tags = ["v0.1.0", "v0.10.0", "v0.2.0", "v1.0.0rc1", "other"]
    listed = noxfile.versions([*tags, f"v{portable_nce.__version__}"], site)
    assert [entry["version"] for entry in noxfile.versions(tags, site)] == ["dev", "0.10.0", "0.2.0", "0.1.0"]
    assert [entry["url"] for entry in listed if entry.get("preferred")] == [f"{site}stable/"]
    for ref, version in (("branch", "dev"), ("tag", portable_nce.__version__)):
        switcher = options(GITHUB_REPOSITORY="owner/name", GITHUB_REF_TYPE=ref)["switcher"]
        assert switcher == {"json_url": f"{site}switcher.json", "version_match": version}
        assert version in {entry["version"] for entry in listed}


def test_every_module_that_computes_is_mutated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    files = set(importlib.import_module("mutation.mutants").FILES)
    for folder in ("_core", "_execution", "_losses", "objectives"):
        found = {path.name for path in (ROOT / "portable_nce" / folder).glob("*.py")} - {"__init__.py", "protocol.py"}
        assert found
        assert {f"portable_nce/{folder}/{name}" for name in found} <= files
    assert {"backends/tape.py", "backends/torch.py", "portable_nce/bounds.py"} <= files
    assert not any("testing" in file or "_cli" in file for file in files)
