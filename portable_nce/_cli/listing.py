"""``python -m portable_nce``: backends on this machine."""

from __future__ import annotations

import re

from .. import __version__
from .._core.registry import backends_available, known_backends
from .libraries import load_adapter, reason

__all__ = ["aligned", "listing"]


def listing() -> int:
    """Print the working backends (version, devices, dtypes), broken ones, and missing ones."""
    rows, broken, notes = [["backend", "version", "dtypes", "devices"]], [], []
    available = backends_available()
    for name in available:
        try:
            adapter = load_adapter(name)
            devices = ", ".join(map(_plain, adapter.devices)) or "-"
            rows.append([name, adapter.version, ", ".join(adapter.dtypes), devices])
            if name == "jax" and "float64" not in adapter.dtypes:
                notes.append("jax: float64 with JAX_ENABLE_X64=1 in the environment")
        except Exception as error:  # noqa: BLE001  (a broken installation may raise anything; it is reported)
            broken.append(f"{name}: installed, but does not work: {reason(error)}")
    print(f"portable_nce {__version__}\n")
    print("\n".join(aligned(rows)) if len(rows) > 1 else "no backend found")
    absent = [name for name in known_backends() if name not in available]
    if absent:
        notes.append(f"not installed: {', '.join(absent)}")
    if broken or notes:
        print("", *broken, *notes, sep="\n")
    return 0


def _plain(device: str) -> str:
    """Name of a device: ``CPU_DEVICE`` for ``array_api_strict.Device('CPU_DEVICE')``."""
    result = re.search(r"'(.*)'", device)
    return result[1] if result else device


def aligned(rows: list[list[str]]) -> list[str]:
    """Lines of text with aligned columns and a rule below the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
