"""The package that contains this folder, also if it was vendored under another name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import portable_nce as pnce
else:
    pnce = import_module(__package__.rpartition(".")[0])

__all__ = ["pnce"]
