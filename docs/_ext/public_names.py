"""Warn of every public name that has no page in the reference, or no docstring.

Sphinx warns of a page that names something which does not exist; nothing but this warns of the opposite. A build with
warnings as errors fails on both.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

PACKAGE = "portable_nce"
ROOMS = ("from_scores", "bounds", "density", "diagnostics", "similarities", "pairings", "objectives", "testing")
"""The public modules."""

LOGGER = logging.getLogger(__name__)


def public_names() -> Iterator[tuple[str, Any]]:
    """Give the dotted names that users may import, and what they are; modules are named by their pages."""
    for module in (PACKAGE, *(f"{PACKAGE}.{room}" for room in ROOMS)):
        imported = importlib.import_module(module)
        for name in imported.__all__:
            member = getattr(imported, name)
            if not inspect.ismodule(member):
                yield f"{module}.{name}", member


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
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
