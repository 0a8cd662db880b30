"""The adapter, which portable_nce finds by the entry point and imports when the first metered array arrives."""

from __future__ import annotations

from portable_nce.backends.tape import TapeAdapter

import metered


class MeteredAdapter(TapeAdapter):  # type: ignore[misc, unused-ignore]  # its name when installed
    """The tape of portable_nce, which differentiates any library of the standard."""

    def __init__(self) -> None:
        super().__init__(
            "metered", lambda array: array.__array_namespace__(), version=metered.__version__, devices=("cpu",)
        )
