"""Numbers and picture of README.md and docs/index.md, from recorded measurements.

`python benchmarks/readme.py` reads docs/speed.md, docs/mixed-precision.md and docs/agreement.json, writes a table
into both pages and a summary into docs/speed.md, and draws docs/batch_size.png. `python benchmarks/speed.py` does this
too, after it has measured.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import fill
from typing import Final

ROOT: Final = Path(__file__).parents[1]
BEGIN: Final = "<!-- numbers:begin, written by benchmarks/readme.py -->\n"
END: Final = "<!-- numbers:end -->\n"
SIZE: Final = "8192 × 128"
SMALL: Final = "128 × 128"
LARGE: Final = "32768 × 128"
EAGER: Final = "formula, torch"
COMPILED: Final = "formula, torch.compile"
FUSED: Final = "linear_cross_entropy, torch"
ROOF: Final = "roofline, torch"
OURS: Final = "portable_nce, torch"
LIBRARIES: Final = ("portable_nce, NumPy", OURS, "portable_nce, JAX")
LINES: Final = {EAGER: "eager PyTorch", COMPILED: "torch.compile", OURS: "portable_nce"}
"""Table rows that are drawn, and their labels."""

Table = dict[str, dict[str, float]]
"""Numbers by row and column."""


def tables(page: str, heading: str, *, word: int = 0) -> list[Table]:
    """Read the tables under a heading: the number of each cell, or with word 1 the number in parentheses."""
    section = re.split(rf"^#+ {re.escape(heading)}$", page, flags=re.MULTILINE)[1]
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines())
        found.append(
            {
                row[0]: {
                    size: float(cell.split()[word].strip("()"))
                    for size, cell in zip(head[1:], row[1:], strict=True)
                    if re.match(r"[\d.]", cell) and len(cell.split()) > word
                }
                for row in rows
            }
        )
    return found


def worst_agreement(record: str) -> float:
    """Give the largest float32 error of a value or gradient in ulps, at the default precision."""
    variants = json.loads(record).values()
    return max(
        float(error)
        for variant in variants
        for cell, errors in variant["cells"].items()
        if cell.endswith("|float32")
        for error in errors
    )


def numbers(docs: Path) -> str:
    """Make the table."""
    speed, precision, agreement = (
        (docs / name).read_text(encoding="utf-8") for name in ("speed.md", "mixed-precision.md", "agreement.json")
    )
    time, memory = tables(speed, "InfoNCE")[:2]
    spent, used = ([f"{table[name][SIZE]:.0f}" for name in (EAGER, OURS)] for table in (time, memory))
    (errors,) = re.findall(r"^\| float32 \| 20 \|(.*)\|$", precision, re.MULTILINE)
    *_, eager, ours = ("no correct digit" if cell == "1" else cell for cell in re.findall(r"[\de.-]+", errors))
    rows = [
        ("InfoNCE with gradients, on two cores", "eager PyTorch", "portable_nce"),
        ("---", "---:", "---:"),
        (f"peak memory above inputs and gradients, {SIZE}", *(f"{number} MiB" for number in used)),
        (f"time, {SIZE}", *(f"{number} ms" for number in spent)),
        ("worst relative error of the gradient, positives 20 nats ahead, float32", eager, ours),
        (
            "worst error of any loss on any library, float32, saturated scores included",
            "",
            f"{worst_agreement(agreement):.1f} ulp",
        ),
    ]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{table}\nSmall batches are slower than eager code: {of_small(speed)}.\n"


def of_small(page: str) -> str:
    """Give the times of a small batch, with normalisation on both sides."""
    time = tables(page, "With normalisation")[0]
    both = " against ".join(f"{time[name][SMALL]:.2f} ms" for name in (OURS, EAGER))
    return f"{both} at {SMALL}, normalisation included"


def summary(page: str) -> str:
    """Make the first lines of docs/speed.md from its tables."""
    time, memory = tables(page, "InfoNCE")[:2]
    others = [table for table in tables(page, "Other losses") if ROOF in table]

    def of_both(name: str, size: str) -> str:
        return f"{time[name][size]:.0f} ms and {memory[name][size]:.0f} MiB"

    def span(name: str) -> str:
        found = [number for table in others for size, number in table[name].items() if size.endswith(SIZE)]
        return f"{min(found):.0f} to {max(found):.0f} ms"

    large = [size for size in time[OURS] if int(size.split()[0]) >= 2048]  # noqa: PLR2004
    of_roof = tables(page, "InfoNCE", word=1)[0]
    ratios = [of_roof[name][size] for name in LIBRARIES for size in large]
    compiled, fused = of_both(COMPILED, SIZE), of_both(FUSED, SIZE)
    lines = [
        f"**InfoNCE, {SIZE}, on PyTorch:** {of_both(OURS, SIZE)}; the eager formula takes {of_both(EAGER, SIZE)}.",
        f"The compiled formula takes {compiled}; `linear_cross_entropy` {fused}.",
        f"**{LARGE}:** {of_both(OURS, LARGE)} on PyTorch. The compiled formula takes {of_both(COMPILED, LARGE)}.",
        f"**From 2048 rows, InfoNCE takes {min(ratios):.2f} to {max(ratios):.2f} times the roofline.**",
        f"**{SIZE} on PyTorch:** other losses take {span(OURS)}, the eager formulas {span(EAGER)}.",
        f"**Small batches are slower than eager code:** {of_small(page)}. No GPU was measured.",
    ]
    return "\n".join(fill(f"- {line}", 120, subsequent_indent="  ", break_long_words=False) for line in lines) + "\n"


def with_numbers(page: str, made: str) -> str:
    """Insert generated text into a page."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}"


def draw(page: str, path: Path) -> None:
    """Draw time and memory of InfoNCE against the batch size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (not needed for the table)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = (("ms", "Time of value and gradients"), ("MiB", "Peak memory above inputs and gradients"))
    found = tables(page, "InfoNCE")[:2]
    for axes, table, (unit, title) in zip(figure.subplots(1, 2), found, panels, strict=True):
        for (name, label), colour in zip(LINES.items(), ("#d62728", "#7f7f7f", "#1f77b4"), strict=True):
            points = {int(size.split()[0]): y for size, y in table[name].items() if size.endswith("× 128") and y > 0}
            axes.plot([*points], [*points.values()], color=colour, marker="o", markersize=4, linewidth=2, label=label)
        rows = [int(size.split()[0]) for size in table[OURS] if size.endswith("× 128")]
        axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel=unit, title=title)
        axes.set_xticks(rows, [f"{n:,}".replace(",", " ") for n in rows])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130)


def main(root: Path = ROOT) -> None:
    """Write the table and the picture."""
    docs = root / "docs"
    for page in (root / "README.md", docs / "index.md"):
        page.write_text(with_numbers(page.read_text(encoding="utf-8"), numbers(docs)), encoding="utf-8")
    speed = (docs / "speed.md").read_text(encoding="utf-8")
    (docs / "speed.md").write_text(with_numbers(speed, summary(speed)), encoding="utf-8")
    draw((docs / "speed.md").read_text(encoding="utf-8"), docs / "batch_size.png")


if __name__ == "__main__":
    main()
