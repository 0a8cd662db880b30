"""Warnings for public names without a reference page or a docstring, and links to their pages.

Sphinx itself warns only of pages about names that do not exist. A build with warnings as errors fails on both.

Single backquotes in docstrings are the role ``name``: a link where they hold a public name, such as
``portable_nce.pairings.soft``, ``bounds.dual`` or, in a docstring of ``bounds``, ``dual``; code otherwise. A bare name
that is also a parameter name is not linked. In tables of Markdown pages, code that is a public name becomes a link.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

PACKAGE = "portable_nce"
ROOMS = (
    *("from_scores", "bounds", "density", "diagnostics", "estimation", "similarities", "pairings", "objectives"),
    *("testing", "modules.torch", "modules.jax"),
)
"""The public modules."""

LOGGER = logging.getLogger(__name__)


def public_names() -> Iterator[tuple[str, Any]]:
    """Public dotted names and their objects; modules by the names of their pages."""
    for module in (PACKAGE, *(f"{PACKAGE}.{room}" for room in ROOMS)):
        imported = importlib.import_module(module)
        for name in imported.__all__:
            member = getattr(imported, name)
            if not inspect.ismodule(member):
                yield f"{module}.{name}", member


@cache
def targets() -> frozenset[str]:
    """Names that can be linked: public names and modules."""
    return frozenset((*(name for name, _ in public_names()), *(f"{PACKAGE}.{room}" for room in ROOMS)))


@cache
def arguments() -> frozenset[str]:
    """Parameter names of all public functions."""
    functions = [member for _, member in public_names() if inspect.isfunction(member)]
    return frozenset(name for function in functions for name in inspect.signature(function).parameters)


def link(code: nodes.literal, page: str, module: str = PACKAGE) -> nodes.Element:
    """Make a link to the page of a public name, or return the code as it is."""
    text = code.astext()
    candidates = [text, f"{PACKAGE}.{text}"] if "." in text else [f"{module}.{text}"]
    found = [name for name in candidates if name in targets()]
    if not found:
        return code
    options = {"refdomain": "py", "reftype": "obj", "reftarget": found[0], "refexplicit": True, "refwarn": True}
    return addnodes.pending_xref("", code.deepcopy(), refdoc=page, **options)


class Name(SphinxRole):
    """A link to the page of a public name, or code."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Make the node."""
        code, module = nodes.literal(self.rawtext, self.text), self.env.ref_context.get("py:module") or PACKAGE
        return [code if self.text in arguments() else link(code, self.env.docname, module)], []


class NamesInTables(SphinxTransform):
    """Link the public names in the tables of Markdown pages."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        """Replace the code of one page."""
        if Path(self.env.doc2path(self.env.docname)).suffix == ".md":
            for entry in self.document.findall(nodes.entry):
                for code in list(entry.findall(nodes.literal)):
                    if not isinstance(code.parent, nodes.reference):
                        code.replace_self(link(code, self.env.docname))


def check(app: Sphinx, environment: BuildEnvironment) -> None:
    """Compare the public names with what the pages describe."""
    del app
    described = set(environment.get_domain("py").data["objects"])  # type: ignore[attr-defined, unused-ignore]
    for name, member in public_names():
        if name not in described:
            LOGGER.warning("%s: expected a line in docs/reference, got none; add it to a table there", name)
        if (inspect.isroutine(member) or inspect.isclass(member)) and not inspect.getdoc(member):
            LOGGER.warning("%s: expected a docstring, got none", name)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_role("name", Name())
    app.add_transform(NamesInTables)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
