"""Build a release, or write the addresses of the repository into the tree.

- ``python tools/release.py build FOLDER --repository https://github.com/OWNER/NAME --tag v0.1.0`` builds and checks
  wheel and sdist in FOLDER/dist. With a repository, it adds links and badges to a copy of the tree, and writes the
  recipe for conda-forge, FOLDER/recipe.yaml. With a tag, the tag must match the version, and the changelog must have
  its date. ``python -m nox -s release`` does the same, and runs the demo of the wheel.
- ``python tools/release.py fill --repository https://github.com/OWNER/NAME --email name@example.org`` writes the
  addresses of the repository and of the authors into this tree; needed once, before the first release.
- ``python tools/release.py record REPORT`` writes tests/release_run.md from the report of ``python -m nox -t release
  --report REPORT`` and the results of its tests. With several reports, a session counts as in the last that has it.
- ``python tools/release.py switcher FILE --repository https://github.com/OWNER/NAME`` writes the list of versions that
  the site offers.

The repository is known on GitHub, and once the metadata has it. Building needs the groups `distribution` and `release`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "portable_nce"
PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

FORMS: Final = {
    "repository": (r"https://github\.com/[\w-]+/(?!.*\.git$)[\w.-]+", "https://github.com/OWNER/NAME"),
    "email": (r"[\w.+-]+@[\w-]+(\.[\w-]+)+", "name@example.org"),
    "tag": (r"v\d+\.\d+\.\d+\w*", "v and the version, such as v0.1.0"),
}
"""Patterns of the options, and how an error describes them."""


def known_repository() -> str:
    """Address of the repository, from GitHub's workflow or from the metadata; empty if neither has it."""
    if "GITHUB_REPOSITORY" in os.environ:
        return "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}".format_map(os.environ)
    return str(PYPROJECT["project"].get("urls", {}).get("Source", ""))


def build(folder: Path, repository: str | None, email: str | None, tag: str | None) -> None:
    """Build wheel and sdist in `folder`/dist from a copy of the tree, and check them."""
    tree, dist = folder / "tree", folder / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    leave_out = ".git", ".nox", ".venv", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", ".hypothesis"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*leave_out))
    if repository:
        fill_in(tree, repository, email)
        make_links_absolute(tree / "README.md", repository, tag or "main")
    python("-m", "build", "--no-isolation", "--outdir", str(dist), str(tree))
    files = sorted(dist.iterdir())
    python("-m", "twine", "check", "--strict", *map(str, files))
    version = files[0].name.split("-")[1]
    if [path.name for path in files] != [f"{NAME}-{version}-py3-none-any.whl", f"{NAME}-{version}.tar.gz"]:
        raise ValueError(f"expected a wheel and an sdist of {version}, got {[path.name for path in files]}")
    if tag is not None:
        check_tag(tag, version, tree / "CHANGELOG.md")
    if repository:
        (folder / "recipe.yaml").write_text(recipe(files[1], repository), encoding="utf-8")
    print("\n".join(f"{path.stat().st_size / 1024:6.0f} KiB  {path}" for path in files))


def python(*arguments: str) -> None:
    """Run this interpreter; show the output if it fails."""
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    if result.returncode:
        sys.exit(f"{result.stdout}\n{result.stderr}")


def check_tag(tag: str, version: str, changelog: Path) -> None:
    """Check that a tag is the tag of a version, and that the changelog begins with that version and a date."""
    if tag != f"v{version}":
        raise ValueError(f"--tag: expected v{version}, the version of the tree, got {tag}")
    lines = changelog.read_text(encoding="utf-8").splitlines()
    heading = next(line for line in lines if line.startswith("## "))
    if not re.fullmatch(rf"## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", heading):
        raise ValueError(f"CHANGELOG.md: expected {version} and a date at the top, got {heading!r}")


def fill_in(tree: Path, repository: str, email: str | None = None) -> None:
    """Write the addresses of the repository and of the authors into metadata, badges and contacts."""
    owner, name = repository.rsplit("/", maxsplit=2)[1:]
    project, authors = PYPROJECT["project"]["name"], PYPROJECT["project"]["authors"][0]["name"]
    site, runs = site_of(repository), f"{repository}/actions/workflows"
    badges = f"""\
[![version](https://img.shields.io/pypi/v/{project})]({repository}/releases)
[![Python](https://img.shields.io/pypi/pyversions/{project})]({repository}/blob/main/pyproject.toml)
[![tests]({runs}/test.yml/badge.svg)]({runs}/test.yml)
[![documentation]({runs}/docs.yml/badge.svg)]({site})
[![licence](https://img.shields.io/github/license/{owner}/{name})]({repository}/blob/main/LICENSE)
"""
    urls = f"""\
[project.urls]
Documentation = "{site}"
Source = "{repository}"
Issues = "{repository}/issues"
Changelog = "{repository}/blob/main/CHANGELOG.md"
"""
    pip = f'python -m pip install "{project}[torch]"  # or [jax], [mlx], [cupy], [numpy]; or without brackets'
    clone = rf'^python -m pip install "(?:\.|{project})\[torch\]"  # .*$'
    places = [  # patterns that match before and after filling in
        ("README.md", rf"\A# {NAME}\n\n(?:(?:\[!\[.*\n)+\n)?", f"# {NAME}\n\n{badges}\n"),
        ("README.md", clone, pip),
        ("docs/index.md", clone, pip),
        ("pyproject.toml", r"(?:^\[project\.urls\]\n(?:\w.*\n)+\n)?^\[project\.opt", f"{urls}\n[project.opt"),
        ("CITATION.cff", r"(?:^rep.*\nurl.*\n)?^key", f"repository-code: {repository}\nurl: {site}\nkey"),
        ("SECURITY.md", r"--repo [\w./-]+", f"--repo {owner}/{name}"),
    ]
    if email is not None:
        report, private = "**Report a vulnerability**", r"\*\*Report a vulnerability\*\*(?:, or by e-mail to <\S+>)?"
        places += [
            ("pyproject.toml", r"^authors = .*$", f'authors = [{{ name = "{authors}", email = "{email}" }}]'),
            ("CITATION.cff", rf'(?<=  - name: "{authors}"\n)(?:    email.*\n)?', f"    email: {email}\n"),
            ("SECURITY.md", private, f"{report}, or by e-mail to <{email}>"),
            ("CODE_OF_CONDUCT.md", private, f"{report}, or by e-mail to <{email}>"),
        ]
    for file, pattern, text in places:
        page = (tree / file).read_text(encoding="utf-8")
        filled, count = re.subn(pattern, text, page, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"{file}: expected one place of the form {pattern!r}, got {count}")
        (tree / file).write_text(filled, encoding="utf-8")


def site_of(repository: str) -> str:
    """Address of the GitHub pages of a repository."""
    owner, name = repository.rsplit("/", maxsplit=2)[1:]
    return f"https://{owner}.github.io/{name}/"


def make_links_absolute(page: Path, repository: str, revision: str) -> None:
    """Make the links of the README absolute, for PyPI."""

    def absolute(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        kind = "raw" if picture else "tree" if (ROOT / target).is_dir() else "blob"
        return f"{picture}[{text}]({repository}/{kind}/{revision}/{target})"

    relative = re.compile(r"(!?)\[([^]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
    text = relative.sub(absolute, page.read_text(encoding="utf-8"))
    text = re.sub(r'(<img src=")(?![a-z]+:)', rf"\g<1>{repository}/raw/{revision}/", text)
    page.write_text(text, encoding="utf-8")


def recipe(sdist: Path, repository: str) -> str:
    """Write the recipe for conda-forge, in the format of rattler-build, from pyproject.toml and the sdist."""
    project = PYPROJECT["project"]
    lines = {
        key: "\n".join(f"    - {re.sub('(?=[<>=~!])', ' ', requirement, count=1)}" for requirement in requirements)
        for key, requirements in (("host", PYPROJECT["build-system"]["requires"]), ("run", project["dependencies"]))
    }
    return f"""\
schema_version: 1

context:
  version: "{sdist.name.removesuffix(".tar.gz").split("-")[1]}"
  python_min: "{project["requires-python"].removeprefix(">=")}"

package:
  name: {project["name"]}
  version: ${{{{ version }}}}

source:
  url: {repository}/releases/download/v${{{{ version }}}}/{NAME}-${{{{ version }}}}.tar.gz
  sha256: {hashlib.sha256(sdist.read_bytes()).hexdigest()}

build:
  number: 0
  noarch: python
  script: ${{{{ PYTHON }}}} -m pip install . -vv --no-deps --no-build-isolation

requirements:
  host:
    - python ${{{{ python_min }}}}.*
    - pip
{lines["host"]}
  run:
    - python >=${{{{ python_min }}}}
{lines["run"]}

tests:
  - python:
      imports:
        - {NAME}
        - {NAME}.backends
      pip_check: true
      python_version:
        - ${{{{ python_min }}}}.*
        - "*"

about:
  homepage: {repository}
  summary: {project["description"]}
  license: {project["license"]}
  license_file: {project["license-files"][0]}

extra:
  recipe-maintainers:
    - {repository.split("/")[-2]}
"""


def versions(tags: Sequence[str], site: str) -> list[dict[str, Any]]:
    """Versions for the theme's switcher: main and the releases, newest first."""
    numbers = [tag[1:] for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    numbers.sort(key=lambda number: [int(part) for part in number.split(".")], reverse=True)
    listed: list[dict[str, Any]] = [{"version": number, "url": f"{site}{number}/"} for number in ("dev", *numbers)]
    for newest in listed[1:2]:
        newest |= {"name": f"{newest['version']} (stable)", "url": f"{site}stable/", "preferred": True}
    return listed


def switcher(file: Path, repository: str) -> None:
    """Write the versions that the site offers."""
    listed = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    found = versions(listed.stdout.split(), site_of(repository))
    file.write_text(json.dumps(found, indent=1), encoding="utf-8")


def record(reports: Sequence[Path], target: Path = ROOT / "tests" / "release_run.md") -> None:
    """Write the page of a run of all sessions that a release needs, from nox's reports and pytest's results."""
    runs = [json.loads(path.read_text(encoding="utf-8"))["sessions"] for path in reports]
    ran = [session for run in runs for session in run]
    later = [session["signatures"][0] for run in runs[1:] for session in run if session["name"] != "test_summary"]
    command = sys.executable, "-m", "nox", "-t", "release", "--list", "--json"
    listed = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)  # noqa: S603
    missing: dict[str, Any] = {each["session"]: {"result": "not run", "duration": 0.0} for each in listed}
    sessions = missing | {session["signatures"][0]: session for session in ran}
    seconds = sum(session["duration"] for session in ran)
    started = min(path.stat().st_mtime for path in reports) - seconds
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for path in (reports[0].parent / "results").glob("*/junit.xml"):
        if path.stat().st_mtime >= started:
            suite = ET.parse(path).getroot()[0]  # noqa: S314  (written by our own pytest)
            counts = {outcome: count + int(suite.get(outcome, 0)) for outcome, count in counts.items()}
    passed = counts.pop("tests") - sum(counts.values())
    git = "git", "log", "-1", "--format=%h of %cs"
    commit = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
    lines = [
        "# The last run of what a release needs",
        "",
        "By `python -m nox -t release --report .nox/report.json`, `python tools/release.py record .nox/report.json`.",
        "",
        f"{'The last commit' if later else 'Commit'}: {commit}.",
        f"On {os.cpu_count()} processors, {seconds / 60:.0f} minutes with the installations.",
        f"Tests: {passed} passed, {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}.",
        *([f"Run after the others, by commands of their own: {', '.join(later)}."] if later else []),
        "",
        "| session | result | minutes |",
        "|---|---|---|",
        *(f"| `{name}` | {each['result']} | {each['duration'] / 60:.1f} |" for name, each in sessions.items()),
        "",
    ]
    target.write_text("\n".join(lines), encoding="utf-8")


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    repository = known_repository() or None
    named = {"build": ("repository", "email", "tag"), "fill": ("repository", "email"), "switcher": ("repository",)}
    for command in (*named, "record"):
        added = commands.add_parser(command)
        if command != "fill":
            metavar, number = {"build": ("FOLDER", None), "record": ("REPORT", "+")}.get(command, ("FILE", None))
            added.add_argument("target", type=Path, metavar=metavar, nargs=number)
        for name in named.get(command, ()):
            added.add_argument(f"--{name}", help=FORMS[name][1])
        added.set_defaults(repository=repository)
    options = parser.parse_args(arguments)
    for name, (pattern, form) in FORMS.items():
        value = getattr(options, name, None)
        required = options.command in {"fill", "switcher"} and name == "repository"
        if (required or value is not None) and not re.fullmatch(pattern, value or ""):
            parser.error(f"--{name}: expected {form}, got {value}")
    return options


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    options = options_of(arguments)
    if options.command == "build":
        build(options.target, options.repository, options.email, options.tag)
    elif options.command == "fill":
        fill_in(ROOT, options.repository, options.email)
    elif options.command == "record":
        record(options.target)
    else:
        switcher(options.target, options.repository)


if __name__ == "__main__":
    main(sys.argv[1:])
