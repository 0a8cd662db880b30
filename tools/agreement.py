"""The report on agreement: how far every variant is from exact arithmetic, and whether that is within its bounds.

``python tools/agreement.py .nox/results report`` reads what the conformance sessions have left, compares it with the
recorded bounds, and writes the pages into the folder ``report``; the exit status is 1 if a cell is beyond its bound.
``--record`` brings docs/agreement.* and the bounds up to date.

A cell is the worst error over the cases that call a loss, in units in the last place: ``eps(dtype)`` times the largest
magnitude of the exact value, or of the exact gradient with respect to one argument.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from portable_nce.testing import CASES, VARIANTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT: Final = Path(__file__).parents[1]
DATA: Final = ROOT / "docs" / "agreement.json"
BOUNDS: Final = ROOT / "tests" / "agreement_bounds.json"
PAGES: Final = ("agreement.md", "agreement.html", "agreement.png")

REFERENCE: Final = "mparray"
COMPLETE: Final = ("numpy", "torch")
"""The variants that run all cases, and so give the bounds of all variants."""

COMMON: Final = "all"
"""What these bounds are called in the file."""

KINDS: Final = ("value", "gradient")
REGIMES: Final = ("normal", "saturated")
STEPS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, *(1024.0 * 2.0**k for k in range(5)))
"""The bounds that a cell can have."""


ROOM: Final = 2.0
"""How far above what was measured its bound is at least: rounding differs between processors."""

Key = tuple[str, str, str]
"""Loss, regime and dtype."""


@dataclass
class Column:
    """What one variant has measured."""

    library: str
    device: str
    date: str
    cells: dict[Key, dict[str, float]] = field(default_factory=dict)

    @property
    def dtypes(self) -> list[str]:
        """The dtypes, widest first."""
        order = ("float64", "float32", "float16", "bfloat16")
        return [dtype for dtype in order if any(key[2] == dtype for key in self.cells)]

    def worst(self, dtype: str, kind: str, regime: str | None = None) -> tuple[float, str]:
        """Give the worst error of a dtype, and the loss that has it."""
        return max(
            (cell[kind], loss)
            for (loss, of, name), cell in self.cells.items()
            if name == dtype and regime in {None, of}
        )


def measured(results: Path) -> dict[str, Column]:
    """Read the reports that pytest has left."""
    columns: dict[str, Column] = {}
    for path in sorted(results.glob("*/junit.xml")):
        suite = ET.parse(path).getroot().find("testsuite")  # noqa: S314  written by our own pytest
        if suite is None:
            continue
        for noted in suite.iterfind(".//property[@name='agreement']"):
            found: dict[str, Any] = json.loads(noted.get("value", ""))
            date = str(suite.get("timestamp", ""))[:10]
            column = columns.setdefault(found["variant"], Column(found["library"], found["device"], date))
            cell = column.cells.setdefault((found["loss"], found["regime"], found["dtype"]), dict.fromkeys(KINDS, 0.0))
            for kind in KINDS:
                if found[kind] > cell[kind] or math.isnan(found[kind]):
                    cell[kind] = found[kind]
    return {name: columns[name] for name in VARIANTS if name in columns and name != REFERENCE}


def read(path: Path) -> dict[str, Column]:
    """Read columns from a file, of which there need be none."""
    if not path.exists():
        return {}
    columns = {}
    for name, column in json.loads(path.read_text(encoding="utf-8")).items():
        cells: dict[Key, dict[str, float]] = {}
        for text, pair in column["cells"].items():
            loss, regime, dtype = text.split("|")
            cells[loss, regime, dtype] = dict(zip(map(str, KINDS), pair, strict=True))
        columns[name] = Column(column["library"], column["device"], column["date"], cells)
    return columns


def write(path: Path, columns: Mapping[str, Column]) -> None:
    """Write columns to a file, a cell to a line."""
    table = {
        name: {
            "library": column.library,
            "device": column.device,
            "date": column.date,
            "cells": {"|".join(key): [round(cell[kind], 3) for kind in KINDS] for key, cell in column.cells.items()},
        }
        for name, column in columns.items()
    }
    path.write_text(dumped(table), encoding="utf-8")


def dumped(table: Any, depth: int = 0) -> str:
    """Give JSON with an entry of a mapping to a line, and lists of numbers on the line of their key."""
    if not isinstance(table, dict):
        return json.dumps(table)
    space = " " * (depth + 1)
    entries = (f"{space}{json.dumps(key)}: {dumped(value, depth + 1)}" for key, value in table.items())
    return "{\n" + ",\n".join(entries) + "\n" + " " * depth + "}" + ("" if depth else "\n")


def bound_of(error: float) -> float:
    """Give the least step above an error, with room."""
    return next(step for step in STEPS if step >= error * ROOM)


def recorded(columns: Mapping[str, Column], old: Mapping[str, Any]) -> dict[str, Any]:
    """Give the bounds, with new ones for the cells of the columns.

    The variants that run all cases give the bounds of all: a part of the cases has smaller errors by chance. A variant
    has bounds of its own where it needs more.
    """
    common, own = dict(old.get(COMMON, {})), {name: dict(old.get(name, {})) for name in VARIANTS}
    complete = [columns[name].cells for name in COMPLETE if name in columns]
    for key in {key for cells in complete for key in cells}:
        found = [cells[key] for cells in complete if key in cells]
        common["|".join(key)] = [bound_of(max(cell[kind] for cell in found)) for kind in KINDS]
    for name in columns.keys() - COMPLETE:
        for key, cell in columns[name].cells.items():
            text = "|".join(key)
            limits, needed = common.get(text, [0.0, 0.0]), [bound_of(cell[kind]) for kind in KINDS]
            bounds = list(map(max, needed, limits))
            own[name].pop(text, None)
            own[name] |= {} if bounds == limits else {text: bounds}
    return {name: dict(sorted(cells.items())) for name, cells in {COMMON: common, **own}.items() if cells}


def merged(old: Mapping[str, Column], new: Mapping[str, Column]) -> dict[str, Column]:
    """Replace the cells that a run has measured; a column keeps its date until all its cells are measured again."""
    known = {case.loss for case in CASES}
    columns = {}
    for name in [name for name in VARIANTS if name in {*old, *new}]:
        parts = [column[name] for column in (old, new) if name in column]
        cells = {key: cell for part in parts for key, cell in part.cells.items() if key[0] in known}
        head = parts[-1] if parts[-1].cells.keys() >= cells.keys() else parts[0]
        columns[name] = replace(head, cells=cells)
    return columns


def beyond(columns: Mapping[str, Column], bounds: Mapping[str, Any]) -> list[str]:
    """List the cells that are beyond their bounds, or have none."""
    found = []
    for name, column in columns.items():
        for key, cell in column.cells.items():
            limits = bounds.get(name, {}).get("|".join(key), bounds.get(COMMON, {}).get("|".join(key)))
            place = f"{name}: {' '.join(key)}"
            if limits is None:
                found.append(f"{place}: no bound is recorded")
                continue
            found += [
                f"{place}: {kind} {cell[kind]:.2f} ulp, bound {limit:g}"
                for kind, limit in zip(KINDS, limits, strict=True)
                if not cell[kind] <= limit
            ]
    return found


# The pages


def losses(columns: Iterable[Column]) -> list[str]:
    """List the losses that were measured, in the order of the table of cases."""
    present = {key[0] for column in columns for key in column.cells}
    return [loss for loss in dict.fromkeys(case.loss for case in CASES) if loss in present]


def absent(columns: Mapping[str, Column]) -> list[str]:
    """List the variants of the package that have never been measured."""
    return [name for name in VARIANTS if name not in columns and name != REFERENCE]


def markdown(columns: Mapping[str, Column]) -> str:
    """Give the page in Markdown."""
    lines = [
        "# Numerical accuracy",
        "",
        "Errors of every loss, bound and diagnostic on every [variant](conformance.md#test-sessions), against",
        "independent code in 120 digits. The unit (ulp) is `eps(dtype)` times the largest magnitude of the exact",
        "value, or of the exact gradient with respect to one argument. *Saturated*: every positive leads its negatives",
        "so far that the gradient of cross-entropy rounds to zero; the temperature is 0.03, which multiplies the",
        "rounding errors of similarities by thirty. 16-bit results are compared with the exact result of the rounded",
        "inputs; one rounding costs half a unit. On *torch-halves*, derivatives of scores are rounded too.",
        "",
        f"The worst cell is {worst_cell(columns)}.",
        "`python -m nox -s agreement` writes this page, and fails beyond the bounds in `tests/agreement_bounds.json`.",
        "",
        "![Errors of every loss on every variant](agreement.png)",
        "",
        "| variant | dtype | value, worst | gradient, worst | saturated: value | gradient |",
        "|---|---|---|---|---|---|",
    ]
    seen: dict[str, dict[str, str]] = {}
    for name, column in columns.items():
        cells = {dtype: " | ".join(worst_cells(column, dtype)) for dtype in column.dtypes}
        shown: dict[str, list[str]] = {}  # dtypes by what their row says
        for dtype, line in cells.items():
            like = next((other for other, found in seen.items() if found.get(dtype) == line), None)
            shown.setdefault(line if like is None else f"as `{like}` | | |", []).append(dtype)
        seen[name] = cells
        lines += [f"| `{name}` | {', '.join(dtypes)} | {line} |" for line, dtypes in shown.items()]
    for name in absent(columns):
        where = "[apart](gpu.md#what-was-measured)" if VARIANTS[name].gpu else "not run yet"
        lines.append(f"| `{name}` | | {where} | | | |")
    lines += [
        "",
        "All cells, versions, devices and dates: [agreement.html](agreement.html), [agreement.json](agreement.json).",
        "",
    ]
    return "\n".join(lines)


def worst_cells(column: Column, dtype: str) -> list[str]:
    """Write the worst errors of a dtype, of value and gradient in each regime."""
    found = (column.worst(dtype, kind, regime) for regime in REGIMES for kind in KINDS)
    return [f"{error:.1f} `{loss}`" for error, loss in found]


def worst_cell(columns: Mapping[str, Column]) -> str:
    """Name the worst cell."""
    error, kind, name, key = max(
        (cell[kind], kind, name, key)
        for name, column in columns.items()
        for key, cell in column.cells.items()
        for kind in KINDS
    )
    return f"{error:.1f} ulp: the {kind} of `{key[0]}`, {key[1]}, on {name} in {key[2]}"


def page(columns: Mapping[str, Column]) -> str:
    """Give the page in HTML: one table, each cell coloured by the worse of value and gradient."""
    heads = [(name, column, dtype) for name, column in columns.items() for dtype in column.dtypes]
    rows = []
    for loss in losses(columns.values()):
        for regime in REGIMES:
            cells = [column.cells.get((loss, regime, dtype)) for _, column, dtype in heads]
            if not any(cells):
                continue
            shown = "".join(html_cell(cell) for cell in cells)
            rows.append(f"<tr><th scope=row>{html.escape(loss)}</th><th>{regime}</th>{shown}</tr>")
    groups = "".join(
        f"<th colspan={len(column.dtypes)}>{html.escape(name)}<br><small>{html.escape(column.library)}<br>"
        f"{html.escape(column.device)}, {column.date}</small></th>"
        for name, column in columns.items()
    )
    dtypes = "".join(f"<th>{dtype}</th>" for _, _, dtype in heads)
    missing = ", ".join(absent(columns))
    return f"""<!doctype html>
<html lang=en>
<meta charset=utf-8>
<meta name="viewport" content="width=device-width">
<title>Numerical accuracy: portable_nce</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 12px; }}
div {{ max-height: 90vh; overflow: auto; }}
th, td {{ padding: 2px 6px; border: 1px solid #ddd; white-space: nowrap; }}
td {{ text-align: right; }}
thead th {{ position: sticky; top: 0; background: #f4f4f4; }}
tbody th {{ text-align: left; font-weight: normal; }}
</style>
<h1>Numerical accuracy</h1>
<p>Worst error over the cases of each loss against exact results, in units in the last place: value | gradient.
Not run yet: {html.escape(missing) or "none"}.</p>
<div><table>
<thead><tr><th rowspan=2>loss<th rowspan=2>regime{groups}</tr><tr>{dtypes}</tr></thead>
<tbody>
{chr(10).join(rows)}
</tbody>
</table></div>
</html>
"""


def html_cell(cell: Mapping[str, float] | None) -> str:
    """Give a cell with its colour: white up to half a unit, the darker the more."""
    if cell is None:
        return "<td>"
    worst = max(cell.values())
    share = min(1.0, max(0.0, (math.log2(max(worst, 0.5)) + 1) / 8))
    return (
        f"<td style='background:hsl(28 90% {100 - 45 * share:.0f}%)'>{cell['value']:.1f} | {cell['gradient']:.1f}</td>"
    )


def picture(columns: Mapping[str, Column], path: Path) -> None:
    """Draw the heat map."""
    import matplotlib as mpl
    import numpy as np
    from matplotlib.colors import LogNorm

    mpl.use("agg")
    import matplotlib.pyplot as plt

    heads = [(name, column, dtype) for name, column in columns.items() for dtype in column.dtypes]
    names = losses(columns.values())
    panels = [(regime, kind) for regime in REGIMES for kind in KINDS]
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.2 + 0.2 * len(heads) * len(panels), 1.9 + 0.175 * len(names)), sharey=True
    )
    image: Any = None
    for axis, (regime, kind) in zip(axes, panels, strict=True):
        grid = np.asarray(
            [
                [column.cells.get((loss, regime, dtype), {}).get(kind, math.nan) for _, column, dtype in heads]
                for loss in names
            ]
        )
        axis.set_facecolor("0.88")
        colours = LogNorm(0.25, 64)
        image = axis.imshow(np.maximum(grid, 0.25), cmap="YlOrRd", norm=colours, aspect="auto", interpolation="nearest")
        axis.set_title(f"{kind}, {regime}", fontsize=10)
        axis.set_xticks(
            range(len(heads)), [f"{name} {short(dtype)}" for name, _, dtype in heads], rotation=90, fontsize=6
        )
        axis.set_yticks(range(len(names)), names, fontsize=6)
        axis.tick_params(length=0)
    figure.tight_layout(rect=(0, 0, 0.95, 1))
    bar = figure.colorbar(image, ax=axes, cax=figure.add_axes((0.958, 0.3, 0.008, 0.5)))
    bar.set_label("error in ulp", fontsize=8)
    ticks = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks], fontsize=7)
    bar.ax.minorticks_off()
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def short(dtype: str) -> str:
    """Give the short name of a dtype."""
    return dtype.replace("bfloat", "bf").replace("float", "f")


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("results", type=Path, help="the folder in which the sessions have left their reports")
    parser.add_argument("report", type=Path, help="the folder for the pages")
    parser.add_argument("--record", action="store_true", help="bring docs/ and the bounds up to date")
    options = parser.parse_args(arguments)
    new = measured(options.results)
    columns = merged(read(DATA), new)
    bounds = json.loads(BOUNDS.read_text(encoding="utf-8")) if BOUNDS.exists() else {}
    if options.record:
        bounds = recorded(new, bounds)
        BOUNDS.write_text(dumped(bounds), encoding="utf-8")
        write(DATA, columns)
        columns = read(DATA)  # rounded, as whoever reads the file sees them
    for folder in (options.report, *([DATA.parent] if options.record else [])):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "agreement.md").write_text(markdown(columns), encoding="utf-8")
        (folder / "agreement.html").write_text(page(columns), encoding="utf-8")
        picture(columns, folder / "agreement.png")
    print(f"Measured in this run: {', '.join(new) or 'nothing'}.")
    print(f"The worst cell at the default precision: {worst_cell(columns)}.")
    for name in absent(columns):
        print(f"Never measured: {name}.")
    wrong = beyond(new, bounds)
    if wrong:
        print("Beyond the recorded bounds:", *wrong, sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
