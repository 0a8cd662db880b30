"""The cache of reference results: what its keys depend on, what survives a file, and what happens to broken entries."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp, mpf

from portable_nce.testing import CASES, cache, oracles
from portable_nce.testing.variants import exact_core

if TYPE_CHECKING:
    from pathlib import Path

SCORES = {"scores": [[0.5, -1.25], [0.75, 0.0]]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder of an empty cache that is in use."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def never() -> Any:
    """Stand for a computation that must not run."""
    message = "computed again"
    raise AssertionError(message)


def test_numbers_survive_without_rounding() -> None:
    with mp.workdps(120):
        nested = [+mp.pi, -mp.pi * mpf(10) ** -300, mpf(0), mpf("inf"), mpf("-inf"), 3, True, None, 0.1, -0.0, "form"]
        got = cache.decoded(json.loads(json.dumps(cache.encoded([*nested, {"a": (mpf(1),)}]))))
        assert got == [*nested, {"a": [mpf(1)]}]
        assert [type(x) for x in got[5:9]] == [int, bool, type(None), float]
        assert str(got[9]) == "-0.0"
        assert mp.isnan(cache.decoded(cache.encoded(mpf("nan"))))


def test_a_result_is_computed_once(folder: Path) -> None:
    calls: list[int] = []

    def compute() -> Any:
        calls.append(1)
        return [mpf(1) / 3, [1.5]]

    results = [cache.stored("oracles", ["loss", SCORES], compute) for _ in range(2)]
    assert results[0] == results[1]
    assert len(calls) == 1
    assert cache.stored("oracles", ["another loss", SCORES], lambda: 2) == 2
    assert len(list(folder.rglob("*.json"))) == 2


def test_without_a_folder_nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.VARIABLE)
    assert cache.stored("oracles", ["loss"], lambda: 1) == 1
    assert cache.stored("oracles", ["loss"], lambda: 2) == 2
    assert not folder.exists()


@pytest.mark.parametrize("text", ["", "{", "[1", '{"mpf": "1"}', '{"mpf": "xp2"}', '{"other": 1}', '{"a": 1, "b": 2}'])
def test_a_broken_entry_is_computed_again(folder: Path, text: str) -> None:
    cache.stored("oracles", ["loss"], lambda: mpf(2))
    (path,) = folder.rglob("*.json")
    path.write_text(text, encoding="utf-8")
    assert cache.stored("oracles", ["loss"], lambda: mpf(3)) == 3
    assert cache.stored("oracles", ["loss"], never) == 3


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    assert cache.stored("oracles", ["loss"], lambda: 1) == 1


def test_many_writers_leave_one_complete_entry(folder: Path) -> None:
    def one(_: int) -> Any:
        return cache.stored("oracles", ["loss"], lambda: [mpf(k) / 7 for k in range(1000)])

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(one, range(64)))
    assert all(result == results[0] for result in results)
    assert [path.suffix for path in folder.rglob("*") if path.is_file()] == [".json"]


def test_changed_source_gives_another_key(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in ("a.py", "b.py")}
    for path in paths.values():
        path.write_text("x = 1\n", encoding="utf-8")
    keys = [cache.hash_of_sources(paths, ("mpmath",))]
    paths["b.py"].write_text("x = 2\n", encoding="utf-8")
    keys.append(cache.hash_of_sources(paths, ("mpmath",)))
    paths["b.py"].rename(tmp_path / "c.py")
    keys.append(cache.hash_of_sources({"a.py": tmp_path / "a.py", "c.py": tmp_path / "c.py"}, ("mpmath",)))
    keys.append(cache.hash_of_sources({"a.py": tmp_path / "a.py", "c.py": tmp_path / "c.py"}, ("mpmath", "numpy")))
    assert len(set(keys)) == 4


def test_changed_source_is_not_answered_by_old_entries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.stored("oracles", ["loss"], lambda: 1)
    monkeypatch.setattr(cache, "source_key", lambda _: "another")
    assert cache.stored("oracles", ["loss"], lambda: 2) == 2
    assert cache.prune(folder) == 1
    assert cache.stored("oracles", ["loss"], never) == 2


def test_the_keys_depend_on_what_computes() -> None:
    assert set(cache.source_files("oracles")) == {"cache.py", "oracles.py"}
    files = cache.source_files("exact-core")
    expected = {"__init__.py", "from_scores.py", "bounds.py", "testing/cases.py", "testing/variants.py"}
    assert expected | {"backends/tape.py", "backends/generic.py", "_core/numerics.py"} <= set(files)
    assert not [name for name in files if name.startswith("testing/suite")]
    assert all(path.exists() for path in files.values())


def test_results_of_cases_come_from_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if case.loss == "from_scores.dcl")
    exact_core.cache_clear()
    computed = oracles.value_and_gradients(case.loss, case.arguments, case.options), exact_core(case.name)
    monkeypatch.setattr(oracles, "_differentiated", never)
    monkeypatch.setattr("portable_nce.testing.variants.differentiate", never)
    exact_core.cache_clear()
    assert (oracles.value_and_gradients(case.loss, case.arguments, case.options), exact_core(case.name)) == computed
    assert {path.parent.parent.name for path in folder.rglob("*.json")} == set(cache.KINDS)
    exact_core.cache_clear()
