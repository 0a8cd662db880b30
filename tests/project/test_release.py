"""Releases: links, options, tags, and the list of versions; `test_distribution.py` builds one."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import portable_nce

import release

ROOT = Path(__file__).parents[2]


def test_links_of_a_released_readme_are_absolute(tmp_path: Path) -> None:
    address = "https://github.com/owner/name"
    readme = Path(shutil.copy(ROOT / "README.md", tmp_path))
    release.make_links_absolute(readme, address, "v1.2.3")
    text = readme.read_text(encoding="utf-8")
    links = re.findall(r"(!?)\[[^]]*\]\(([^)\s]+)\)", text)
    links += [("!", link) for link in re.findall(r'<img src="([^"]+)"', text)]
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
        (["fill"], "--repository: expected https://github.com/OWNER/NAME, got None"),
        (
            ["build", "folder", "--repository", "github.com/owner/name"],
            "--repository: expected https://github.com/OWNER/NAME, got github.com",
        ),
        (
            ["switcher", "file", "--repository", "https://github.com/owner/name.git"],
            "--repository: expected https://github.com/OWNER/NAME",
        ),
        (["build", "folder", "--email", "somebody"], "--email: expected name@example.org, got somebody"),
        (["build", "folder", "--tag", "0.1.0"], "--tag: expected v and the version, such as v0.1.0, got 0.1.0"),
        (["build", "folder", "--publish"], "unrecognized arguments: --publish"),
    ],
)
def test_an_option_of_a_release_that_makes_no_sense_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    with pytest.raises(SystemExit):
        release.options_of(arguments)
    assert message in capsys.readouterr().err


def test_the_record_of_a_run_counts_its_tests_and_lists_its_sessions(tmp_path: Path) -> None:
    suites = {"tests": (7, 1, 0, 2), "ranks": (5, 0, 0, 0), "of another run": (100, 50, 0, 0)}
    for name, (tests, failures, errors, skipped) in suites.items():
        path = tmp_path / "results" / name / "junit.xml"
        path.parent.mkdir(parents=True)
        counts = f'tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}"'
        path.write_text(f"<testsuites><testsuite {counts} /></testsuites>", encoding="utf-8")
    sessions = [
        {"name": "tests", "signatures": ["tests"], "result": "failed", "duration": 240.0},
        {"name": "lint", "signatures": ["lint", "lint-3.11"], "result": "success", "duration": 6.0},
    ]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"sessions": sessions}), encoding="utf-8")
    os.utime(tmp_path / "results" / "of another run" / "junit.xml", (0, 0))
    release.record([report], tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "Tests: 9 passed, 1 failures, 0 errors, 2 skipped." in page
    assert "4 minutes" in page
    assert "| `tests` | failed | 4.0 |\n" in page
    assert "| `lint` | success | 0.1 |\n" in page
    assert "| `lowest_versions` | not run | 0.0 |\n" in page
    again = tmp_path / "again.json"
    again.write_text(json.dumps({"sessions": [{**sessions[0], "result": "success"}]}), encoding="utf-8")
    release.record([report, again], tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| `tests` | success | 4.0 |\n" in page
    assert "Run after the others, by commands of their own: tests." in page
    assert "| `lint` | success | 0.1 |\n" in page


def test_the_switcher_has_the_version_that_the_site_is_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the configuration appends to it

    def options(**env: str) -> dict[str, Any]:
        for name in ("GITHUB_REPOSITORY", "GITHUB_REF_TYPE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        configured: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "conf.py"))["html_theme_options"]
        return configured

    assert "switcher" not in options()
    site = release.site_of("https://github.com/owner/name")
    tags = ["v0.1.0", "v0.10.0", "v0.2.0", "v1.0.0rc1", "other"]
    listed = release.versions([*tags, f"v{portable_nce.__version__}"], site)
    assert [entry["version"] for entry in release.versions(tags, site)] == ["dev", "0.10.0", "0.2.0", "0.1.0"]
    assert [entry["url"] for entry in listed if entry.get("preferred")] == [f"{site}stable/"]
    for ref, version in (("branch", "dev"), ("tag", portable_nce.__version__)):
        switcher = options(GITHUB_REPOSITORY="owner/name", GITHUB_REF_TYPE=ref)["switcher"]
        assert switcher == {"json_url": f"{site}switcher.json", "version_match": version}
        assert version in {entry["version"] for entry in listed}


@pytest.mark.parametrize(
    ("tag", "heading", "message"),
    [
        ("v1.2.3", "## [1.2.3] - 2026-01-02", None),
        ("v1.2.4", "## [1.2.3] - 2026-01-02", "--tag: expected v1.2.3, the version of the tree, got v1.2.4"),
        ("v1.2.3", "## [1.2.3] - unreleased", "CHANGELOG.md: expected 1.2.3 and a date at the top"),
    ],
)
def test_a_tag_must_be_that_of_a_dated_version(tag: str, heading: str, message: str | None, tmp_path: Path) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(f"# Changelog\n\n{heading}\n", encoding="utf-8")
    if message is None:
        release.check_tag(tag, "1.2.3", changelog)
    else:
        with pytest.raises(ValueError, match=re.escape(message)):
            release.check_tag(tag, "1.2.3", changelog)
