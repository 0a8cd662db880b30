"""Base of results: frozen records that notebooks show and JSON takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from html import escape
from typing import Any

__all__ = ["ResultRecord"]


@dataclass(frozen=True, slots=True, eq=False)
class ResultRecord:
    """Result with named fields.

    It is equal to itself alone: withheld numbers are NaN, which no comparison of values finds equal.
    """

    def _repr_html_(self) -> str:
        """Summary for notebooks."""
        return f"<pre>{escape(repr(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Fields by name, and those of records in it, as JSON takes them: None in place of NaN."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, ResultRecord):
        return value.to_dict()
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return None if isinstance(value, float) and math.isnan(value) else value
