"""The variant on which the conformance suite of portable_nce runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from portable_nce.testing import Variant


@dataclass(frozen=True, kw_only=True)
class Metered(Variant):
    """Metered arrays."""

    @property
    def device(self) -> Any:
        return "cpu"

    def to_list(self, x: Any) -> Any:
        return x.data.tolist()


VARIANT = Metered(name="metered", module="metered", library="metered")
