"""Files, names, options and links on the pages exist. `nox -s docs` builds the site itself."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import portable_nce as pnce

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ROOMS = (
    *("from_scores", "bounds", "density", "diagnostics", "estimation", "similarities", "pairings", "objectives"),
    *("testing", "modules.torch", "modules.jax"),
)


@cache
def text(path: str) -> str:
    """Text of a file of the tree."""
    return (ROOT / path).read_text(encoding="utf-8")


def public_names() -> Iterator[str]:
    """Public functions, classes and constants, as dotted names."""
    for module in ("portable_nce", *(f"portable_nce.{room}" for room in ROOMS)):
        imported = importlib.import_module(module)
        yield from (f"{module}.{name}" for name in imported.__all__ if not inspect.ismodule(getattr(imported, name)))


def names_of_the_reference() -> list[str]:
    """Names in the tables and directives of docs/reference."""
    found = []
    for path in sorted((DOCS / "reference").glob("*.rst")):
        module, in_table = "", False
        for line in path.read_text(encoding="utf-8").splitlines():
            directive = re.match(r"\.\. ([\w:]+):: ?(\S*)", line)
            if directive is not None:
                in_table = directive[1] == "autosummary"
                module = directive[2] if directive[1] == "currentmodule" else module
                found += [f"{module}.{directive[2]}"] if directive[1] == "py:data" else []
            elif in_table and re.fullmatch(r" {4}\w+", line):
                found.append(f"{module}.{line.strip()}")
    return found


def test_the_reference_has_every_public_name_once() -> None:
    assert sorted(names_of_the_reference()) == sorted(public_names())


# The options that losses share

LOSSES = {
    name: set(inspect.signature(getattr(pnce, name)).parameters)
    for name in pnce.__all__
    if inspect.isfunction(getattr(pnce, name))
    and {"mask", "weights"} <= set(inspect.signature(getattr(pnce, name)).parameters)
}
SHARED = re.findall(r"^\| \[`(\w+)`\]\(#[\w-]+\) \| .* \| (.*) \|$", text("docs/options.md"), flags=re.MULTILINE)


def test_the_table_of_options_is_read() -> None:
    assert {"temperature", "mask", "across", "symmetric"} <= {option for option, _ in SHARED}
    assert {"info_nce", "cosent", "clip", "contrast"} <= set(LOSSES)


@pytest.mark.parametrize(("option", "losses"), SHARED, ids=[option for option, _ in SHARED])
def test_a_shared_option_belongs_to_the_losses_that_the_page_says(option: str, losses: str) -> None:
    named = {name for name in re.findall(r"`(\w+)`", losses) if name in LOSSES}
    expected = set(LOSSES) - named if losses.startswith("all") else named
    assert {name for name, options in LOSSES.items() if option in options} == expected


def test_the_page_of_queues_names_the_losses_that_take_one() -> None:
    sentence = text("docs/queues.md").partition("These take a `Queue`: ")[2].partition(".\n")[0]
    named = set(re.findall(r"`(\w+)`", sentence))
    assert named == {name for name, options in LOSSES.items() if {"keys", "queue", "support"} & options}


# The lists of files in CONTRIBUTING.md


def files_under(title: str) -> list[str]:
    """Files listed in a section of CONTRIBUTING.md."""
    section = text("CONTRIBUTING.md").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    items = re.findall(r"^- (.*)$", section, flags=re.MULTILINE)
    return [path for item in items for path in re.findall(r"`([\w./-]+)`", item.partition(":")[0])]


@pytest.mark.parametrize("title", ["Adding a loss", "Adding a similarity", "Adding a backend"])
def test_the_files_to_change_exist(title: str) -> None:
    files = files_under(title)
    assert len(files) >= 5
    assert [path for path in files if not (ROOT / path).is_file()] == []


def test_the_list_for_a_backend_names_files_that_name_cupy() -> None:
    listed = [path for path in files_under("Adding a backend") if "metered" not in path]
    assert "backends/cupy.py" in listed
    assert [path for path in listed if "cupy" not in text(path).lower()] == []


# The page on the architecture


@pytest.mark.parametrize(
    "folder",
    ["portable_nce/_core", "portable_nce/objectives", "portable_nce/_execution", "backends"],
)
def test_the_map_has_every_module(folder: str) -> None:
    (row,) = re.findall(rf"^\| `{folder}/` \| (.*) \|$", text("docs/architecture.md"), flags=re.MULTILINE)
    modules = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`(\w+)`", row)) - {"value_and_grad"} == modules


def test_the_layers_are_drawn_as_they_are_enforced() -> None:
    from project.test_architecture import LAYERS

    drawing = text("docs/architecture.md").partition("## Modules and directions")[2]
    lines = drawing.partition("## What a call does")[0].splitlines()

    def place(name: str) -> int:
        return next(k for k, line in enumerate(lines) if re.search(rf"│ .*\b{name}\b", line))

    for lower, upper in pairwise(LAYERS):
        assert max(map(place, upper)) < min(map(place, lower))


# Links, as GitHub and Sphinx follow them

PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (
        *sorted(ROOT.glob("*.md")),
        *sorted(DOCS.glob("*.md")),
    )
]


def without_code(page: str) -> str:
    """Text of a page without code blocks and inline code."""
    plain = re.sub(r"^ *(```|~~~).*?^ *\1 *$", "", text(page), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].strip("`") if "](" not in code[0] else "", plain)


def anchors(page: str) -> set[str]:
    """Anchors that GitHub generates for the headings of a page."""
    headings = re.findall(r"^#{1,6} (.*)$", without_code(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def links(page: str) -> list[str]:
    """Links of a page within the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(page))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def test_links_are_found() -> None:
    assert "mathematics.md#bounds-on-mutual-information" in links("docs/mutual-information.md")
    assert {"precision", "weights-and-reduction", "block_size"} <= anchors("docs/options.md")


@pytest.mark.parametrize("page", PAGES)
def test_a_link_leads_to_a_file_and_to_a_heading_in_it(page: str) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.relative_to(ROOT).as_posix()), f"{page}: {link}"


def test_every_page_is_on_the_site() -> None:
    trees = [
        block
        for page in DOCS.glob("*.md")
        for block in re.findall(r"```\{toctree\}(.*?)```", text(f"docs/{page.name}"), re.DOTALL)
    ]
    listed = [line.strip() for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert pages <= set(listed)
    assert len(listed) == len(set(listed))


# The gallery: each script runs on its own after a download

INSTALLED = {"jax", "matplotlib", "numpy", "portable_nce", "scipy", "sklearn", "torch"}


@pytest.mark.parametrize("script", sorted(path.name for path in (DOCS / "gallery").glob("*.py")))
def test_a_script_of_the_gallery_imports_installed_packages_alone(script: str) -> None:
    nodes = list(ast.walk(ast.parse(text(f"docs/gallery/{script}"))))
    imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    imported += [f"{'.' * node.level}{node.module}" for node in nodes if isinstance(node, ast.ImportFrom)]
    modules = {name.partition(".")[0] for name in imported}
    assert "portable_nce" in modules
    assert modules - sys.stdlib_module_names <= INSTALLED


def test_every_picture_of_the_gallery_has_a_text() -> None:
    (pictures,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(text("docs/_ext/gallery_pictures.py")).body
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "PICTURES" and node.value
    )
    drawn = {path.stem: text(f"docs/gallery/{path.name}").count("plt.show()") for path in DOCS.glob("gallery/*.py")}
    assert {name: len(pictures.get(name, ())) for name in drawn} == drawn


def test_the_readme_leads_to_the_documentation() -> None:
    assert "docs/index.md" in links("README.md")
