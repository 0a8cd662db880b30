"""What the default run of nox leaves out is in the full run, and what it selects exists."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import nox
import pytest
from nox import registry

from portable_nce.testing import VARIANTS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def noxfile() -> Any:
    """Import the noxfile, which registers its sessions."""
    spec = importlib.util.spec_from_file_location("noxfile_under_test", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def tags(noxfile: Any) -> dict[str, list[str]]:
    """Map every session to its tags."""
    return {name: list(getattr(noxfile, name).tags) for name in registry.get()}


def test_every_library_and_dtype_has_a_variant_in_the_default_run(noxfile: Any) -> None:
    names = {name for together in noxfile.TOGETHER.values() for name in together}
    missing = set(noxfile.NOT_RUN)
    assert names | missing <= set(VARIANTS)
    assert {VARIANTS[name].library for name in names | missing} == {v.library for v in VARIANTS.values()}
    assert {dtype for v in VARIANTS.values() for dtype in v.dtypes} == {
        dtype for name in names for dtype in VARIANTS[name].dtypes
    }


def test_the_full_run_holds_what_the_default_run_holds(noxfile: Any) -> None:
    full = {name for name, of in tags(noxfile).items() if "full" in of}
    default = {session.partition("(")[0] for session in nox.options.sessions or ()}
    # In full they are `whole`, `products`, `typing`, and `ranks`, `plugin` and `vendored`.
    assert default - full == {"conformance", "tests", "types", "integration"}
    assert {"products", "typing", "ranks", "peers", "plugin", "vendored", "minimums", "demo"} <= full


def test_the_end_of_a_run_comes_last(noxfile: Any) -> None:
    order = list(registry.get())
    assert order[-1] == "summary"
    assert max(order.index(name) for name, of in tags(noxfile).items() if of) == order.index("summary")
    assert list(nox.options.sessions or ())[-1] == "summary"
    assert order.index("coverage") > max(order.index(name) for name in ("products", "doctest", "whole"))


def test_one_environment_serves_the_default_run(noxfile: Any) -> None:
    """Except for ruff alone."""
    everything = set(noxfile.ENVIRONMENTS["all"])
    for name in ("arrays", "torch", "jax", "mlx", "lint"):
        assert set(noxfile.ENVIRONMENTS[name]) - {"numpy"} <= everything, name  # there with a version


def test_a_release_has_the_addresses_of_its_repository(noxfile: Any, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CITATION.cff", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    address = "https://github.com/owner/name"
    noxfile.add_addresses(tmp_path, address, "v1.2.3")
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert {"Documentation", "Source", "Issues", "Changelog"} == set(urls)
    assert all("owner" in url and "name" in url for url in urls.values())
    assert f"repository-code: {address}\n" in (tmp_path / "CITATION.cff").read_text(encoding="utf-8")
    links = re.findall(r"(!?)\[[^]]*\]\(([^)\s]+)\)", (tmp_path / "README.md").read_text(encoding="utf-8"))
    assert all(link.startswith(("https://", "#")) for _, link in links)
    for picture, link in links:
        if link.startswith(address):
            kind, _, path = link.removeprefix(f"{address}/").partition("/v1.2.3/")
            target = ROOT / path.partition("#")[0]
            assert target.is_dir() if kind == "tree" else target.is_file(), link
            assert (kind == "raw") == bool(picture)
    assert any(picture for picture, _ in links)


def test_every_module_that_computes_is_mutated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    files = set(importlib.import_module("mutation.mutants").FILES)
    for folder in ("_core", "_execution", "_losses", "objectives"):
        found = {path.name for path in (ROOT / "portable_nce" / folder).glob("*.py")} - {"__init__.py", "protocol.py"}
        assert found
        assert {f"portable_nce/{folder}/{name}" for name in found} <= files
    assert {"backends/tape.py", "backends/torch.py", "portable_nce/bounds.py"} <= files
    assert not any("testing" in file or "_cli" in file for file in files)
