"""Parts of the reference that are made when the site is built.

- ``every-name`` lists every public function of the pages of docs/reference, with its first line.
- ``used-in`` names the recipes, tutorials and gallery scripts that use a function.
- Sections "Raises", and those sections "Returns" that many functions share, are folded.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from numpydoc.docscrape import FunctionDoc
from public_names import PACKAGE, public_names
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).parents[1]
PAGES = (
    "recipe-*",
    "first-*",
    "two-arrays",
    "mutual-information",
    "queues",
    "scaling",
    "ranks",
    "sbi",
    "keras",
    "tape",
)
"""Pages that show a use, beside the gallery."""

SHARED = 5
"""Number of functions with one section "Returns" from which on it is folded."""


def parsed(directive: SphinxDirective, lines: list[str]) -> list[nodes.Node]:
    """Parse reStructuredText with sections, in place of a directive."""
    root = nodes.section()
    directive.state.nested_parse(StringList(lines, source=""), directive.content_offset, root, match_titles=True)
    return list(root.children)


def names_on(page: Path) -> Iterator[str]:
    """Names in the tables of a page of the reference, as `pnce` has them."""
    module, in_table = "", False
    for line in page.read_text(encoding="utf-8").splitlines():
        if directive := re.match(r"\.\. (\w+):: ?(\S*)", line):
            in_table = directive[1] == "autosummary"
            module = directive[2] if directive[1] == "currentmodule" else module
        elif in_table and re.fullmatch(r" {4}\w+", line):
            yield f"{module}.{line.strip()}".removeprefix(f"{PACKAGE}.")


class EveryName(SphinxDirective):
    """One section a page, with a table of its names and their first lines; the content names the pages."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Make the sections."""
        lines = [f".. currentmodule:: {PACKAGE}", ""]
        for page in filter(None, map(str.strip, self.content)):
            path = HERE / "reference" / f"{page}.rst"
            title = f":doc:`{path.read_text(encoding='utf-8').splitlines()[0]} <{page}>`"
            names = [f"    {name}" for name in names_on(path)]
            table = [".. autosummary::", "    :nosignatures:", "", *names] if names else []
            lines += [title, "-" * len(title), "", *table, ""]
        return parsed(self, lines)


@cache
def uses() -> dict[str, tuple[str, str]]:
    """Title and text of the pages and scripts that show uses, by document."""
    found = {}
    for path in sorted(path for pattern in PAGES for path in HERE.glob(f"{pattern}.md")):
        text = path.read_text(encoding="utf-8")
        found[f"/{path.stem}"] = str(re.findall(r"^# (.*)$", text, re.MULTILINE)[0]), text
    for path in sorted((HERE / "gallery").glob("plot_*.py")):
        text = path.read_text(encoding="utf-8")
        found[f"/auto_gallery/{path.stem}"] = text.splitlines()[1 if text.startswith('"""\n') else 0].strip('"'), text
    return found


def use_of(name: str) -> re.Pattern[str]:
    """Match a use of a public name in code."""
    module, _, last = name.removeprefix(f"{PACKAGE}.").rpartition(".")
    inside = f"{module}." if module else ""
    imported = rf"from {PACKAGE}{re.escape(inside and f'.{module}')} import [^\n]*"
    prefix = rf"(?:pnce|{PACKAGE})\." if not module else rf"(?<!\w)(?:(?:pnce|{PACKAGE})\.)?"
    return re.compile(rf"(?:{prefix}{re.escape(inside)}|{imported}\b){last}\b")


class UsedIn(SphinxDirective):
    """Links to the pages that use a public name; nothing if there is none."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make a paragraph."""
        pattern = use_of(self.arguments[0])
        links = [f":doc:`{title} <{page}>`" for page, (title, text) in uses().items() if pattern.search(text)]
        return parsed(self, [".. rubric:: Used in", "", ", ".join(links)]) if links else []


@cache
def common() -> frozenset[str]:
    """Types and texts of the sections "Returns" that many functions have."""
    counts = Counter(
        returned(FunctionDoc(member)["Returns"]) for _, member in public_names() if inspect.isroutine(member)
    )
    return frozenset(text for text, count in counts.items() if count >= SHARED)


def returned(section: Any) -> str:
    """Words of a section, without markup."""
    return " ".join(re.findall(r"\w+", " ".join(f"{item.name} {item.type} {' '.join(item.desc)}" for item in section)))


def fold(app: Sphinx, document: nodes.document, page: str) -> None:
    """Put the sections that repeat into elements that the reader opens."""
    if app.builder.format != "html" or not page.startswith("reference/generated/"):
        return
    module, _, last = Path(page).name.rpartition(".")
    member = getattr(importlib.import_module(module), last, None)
    repeats = {"Raises"}
    if inspect.isroutine(member) and returned(FunctionDoc(member)["Returns"]) in common():
        repeats.add("Returns")
    for field in list(document.findall(nodes.field)):
        name, body = field.children
        if name.astext() in repeats and isinstance(body, nodes.Element):
            summary = ", ".join(term.astext() for term in body.findall(nodes.term)) or "show"
            before = nodes.raw("", f"<details><summary>{summary}</summary>", format="html")
            body.children = [before, *body.children, nodes.raw("", "</details>", format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("every-name", EveryName)
    app.add_directive("used-in", UsedIn)
    app.connect("doctree-resolved", fold)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
