"""Breaks in the long names of tables, so that columns fit: after a dot or an underscore, before a capital or a bracket.

They are written into the page, not into the document: the search finds whole names.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

CELL = re.compile(r"<t[dh]\b.*?</t[dh]>", re.DOTALL)
CODE = re.compile(r'(?<=<span class="pre">)[^<]+')
BREAK = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[._])(?=\w)|(?=\()")


def divide(app: Sphinx, page: str, template: str, context: dict[str, Any], document: object) -> None:
    """Mark the places where the code of cells may be broken."""
    del app, page, template, document
    if "body" in context:
        context["body"] = CELL.sub(
            lambda cell: CODE.sub(lambda code: BREAK.sub("<wbr>", code[0]), cell[0]), context["body"]
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", divide)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
