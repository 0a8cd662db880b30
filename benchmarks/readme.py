"""Numbers and picture of README.md and docs/index.md, from recorded measurements.

`python benchmarks/readme.py` reads benchmarks/speed.md, training.md, gpu.json, catalogue.json and docs/ranks.md.
It writes a table into README.md and a summary into docs/speed.md, and draws docs/batch_size.png and docs/speed.png.
`python benchmarks/speed.py` does this too, after it has measured.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
BEGIN: Final = "<!-- numbers:begin, written by benchmarks/readme.py -->\n"
END: Final = "<!-- numbers:end -->\n"
GPU: Final = ROOT / "benchmarks" / "gpu.json"
"""Record of benchmarks/gpu.py."""
SIZE: Final = "8192 × 128"
SMALL: Final = "128 × 128"
MEDIUM: Final = "512 × 128"
LARGE: Final = "32768 × 128"
MILLION: Final = "512 × 1000000 × 64"
EAGER: Final = "formula, torch"
COMPILED: Final = "formula, torch.compile"
FUSED: Final = "linear_cross_entropy, torch"
ROOF: Final = "roofline, torch"
ROOF_JAX: Final = "roofline, JAX"
OURS: Final = "portable_nce, torch"
OURS_JAX: Final = "portable_nce, JAX"
LIBRARIES: Final = ("portable_nce, NumPy", OURS, OURS_JAX)
BARS: Final = {EAGER: "eager PyTorch", COMPILED: "torch.compile", OURS: "portable_nce"}
"""Table rows that are drawn, and their labels."""

SHARED: Final = "MiB: 8192 rows on 2 ranks"
"""Column of the table in docs/ranks.md."""

KILO: Final = 1024

GREY: Final = "#767676"
"""Contrast of 4 to both white and GitHub's dark background."""

Table = dict[str, dict[str, float]]
"""Numbers by row and column."""


def processor() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


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
                    if len(cell.split()) > word and re.match(r"[\d.(]", cell.split()[word])
                }
                for row in rows
            }
        )
    return found


def cost(found: list[Table], name: str, column: str) -> str:
    """Give time and memory of a row of a section."""
    time, memory = (next(table[name][column] for table in part if name in table) for part in (found[:1], found[1:]))
    return f"{time:.0f} ms, {memory:.0f} MiB"


def cores_of(page: str, heading: str) -> str:
    """Say on how many cores a section was measured."""
    found = re.search(r", (\d+) cores?\b", page.partition(f"### {heading}\n")[2])
    return {"1": "one CPU core", "2": "two CPU cores"}[found[1]] if found else ""


def numbers(root: Path) -> str:
    """Make the table."""
    speed, ranks, training = (
        (root / name).read_text(encoding="utf-8")
        for name in ("benchmarks/speed.md", "docs/ranks.md", "benchmarks/training.md")
    )
    gpu = gpu_record(root)
    info_nce, others, million = (tables(speed, name) for name in ("InfoNCE", "Other losses", "Over a million items"))
    (shared,) = tables(ranks, "Communication and memory")
    (step,) = tables(training, "Cost of a step")

    def peak(name: str) -> str:
        return f"{shared[name][SHARED]:.0f} MiB"

    labelled, cores = f"SupCon, {SIZE}", "two CPU cores"
    rows = [
        ("value and gradients", "on", "usual code", "portable_nce"),
        ("---", "---", "---:", "---:"),
        *(
            (
                f"`{case[0]}`, {case[1]} × {case[2]}, {case[3]}",
                f"one {gpu['card']}",
                f"eager PyTorch: {of_gpu(gpu, case, 'formula')}",
                of_gpu(gpu, case, "portable_nce"),
            )
            for case in GPU_ROWS
        ),
        *rows_of_catalogue(root, SMALL_ROWS),
        (f"`info_nce`, {SIZE}", cores, f"eager PyTorch: {cost(info_nce, EAGER, SIZE)}", cost(info_nce, OURS, SIZE)),
        (
            f"`supcon`, {SIZE}",
            cores,
            f"pytorch-metric-learning: {cost(others, 'pytorch-metric-learning', labelled)}",
            cost(others, OURS, labelled),
        ),
        (
            "`linear_softmax`, 512 × 64, a million items",
            cores_of(speed, "Over a million items"),
            f"eager PyTorch: {cost(million, EAGER, MILLION)}",
            cost(million, OURS, MILLION),
        ),
        *rows_of_catalogue(root, CATALOGUE),
        (
            f"`clip`, {SHARED.removeprefix('MiB: ')}",
            "each rank",
            f"open_clip: {peak('CLIP, baseline')}",
            peak("`clip`"),
        ),
        (
            f"[a training step](docs/training.md) with a small encoder, {PAIRS} pairs",
            "one CPU core",
            f"`cross_entropy`: {step['cross_entropy'][STEP]:.0f} ms",
            f"{step['portable_nce'][STEP]:.0f} ms",
        ),
    ]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    lines = (
        f"{MEASURED} {NORMALISED}",
        price_on_gpu(gpu),
    )
    filled = "\n\n".join(fill(line, 120, break_long_words=False, break_on_hyphens=False) for line in lines)
    return f"{table}\n{filled}\n"


PAIRS: Final = 4096
STEP: Final = f"ms (ratio), {PAIRS} pairs"
"""Column of the table in benchmarks/training.md."""

MEASURED: Final = "Embeddings are float32 unless a row says otherwise. Memory is the peak above inputs and gradients."
NORMALISED: Final = (
    "On the GPU, the usual code gets normalised embeddings, and portable_nce normalises them. On CPUs, both normalise"
    " in `clip` and where the row says so."
)
"""How the programs that were measured treat the embeddings."""

GPU_ROWS: Final = (("clip", 32768, 512, "bfloat16"), ("nt_xent", 32768, 512, "float32"))
"""Losses, rows, features and precisions of benchmarks/gpu.py that the table shows: a slower call and a faster one."""


def price_on_gpu(record: Mapping[str, Any]) -> str:
    """Say what a GPU pays, and when it gains nothing."""
    loss, rows, *_ = GPU_ROWS[0]
    return (
        f"**On a GPU you gain memory and may pay with time**: {eager_gpu(record)}. Where the score matrix fits, the"
        f" compiled formula is faster: `{loss}` of {rows} rows takes {of_gpu(record, GPU_ROWS[0], FORMULA_COMPILED)}"
        f" ([GPUs](docs/gpu.md))."
    )


SMALL_ROWS: Final = (("info_nce", "`info_nce`, normalised", 128, "formula", "eager PyTorch"),)
CATALOGUE: Final = (
    ("info_nce, neg_sq_euclidean", "`info_nce` by `neg_sq_euclidean`", 4096, "formula", "eager PyTorch"),
    (
        "triplet_from_labels, batch_all",
        "`triplet_from_labels`, all triplets",
        1024,
        "pytorch-metric-learning",
        "pytorch-metric-learning",
    ),
)
"""Titles of benchmarks/catalogue.py, names in the table, rows, and with what they are compared."""


def rows_of_catalogue(root: Path, rows_wanted: Iterable[tuple[str, str, int, str, str]]) -> list[tuple[str, ...]]:
    """Make table rows of losses that stand beside their formulas on one core, where both were measured."""
    record = json.loads((root / "benchmarks" / "catalogue.json").read_text(encoding="utf-8"))
    cells = {tuple(cell["key"]): cell for cell in record["cells"]}

    def measured(cell: Mapping[str, Any], name: str) -> str:
        peak = f", {cell['memory'][name] / KILO**2:.0f} MiB" if "memory" in cell else ""
        milliseconds = 1000 * cell["seconds"][name]
        return f"{milliseconds:.{2 if milliseconds < 10 else 0}f} ms{peak}"  # noqa: PLR2004

    found: list[tuple[str, ...]] = []
    for title, name, rows, usual, whose in rows_wanted:
        cell = cells.get((title, "torch", rows), {})
        if usual in cell.get("seconds", ()):
            other, own = measured(cell, usual), measured(cell, "portable_nce")
            found.append((f"{name}, {rows} × {record['width']}", "one CPU core", f"{whose}: {other}", own))
    return found


GPU_COMPILED: Final = "info_nce", 8192, 128, "float32"
FORMULA_COMPILED: Final = "formula, compiled"
OURS_COMPILED: Final = "portable_nce, compiled"


def gpu_record(root: Path = ROOT) -> dict[str, Any]:
    """Read the record of benchmarks/gpu.py."""
    found: dict[str, Any] = json.loads((root / GPU.relative_to(ROOT)).read_text(encoding="utf-8"))
    return found


def about_gpu(record: Mapping[str, Any]) -> str:
    """Name card, versions and commit of a record."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    machine = f"{record['card']}, driver {record['driver']}, Python {record['python']}, {versions}"
    return f"Measured on {record['date']} at commit {record['commit']}: one {machine}."


def of_gpu(record: Mapping[str, Any], case: tuple[str, int, int, str], name: str) -> str:
    """Give time and memory of a loss on PyTorch, by its name, rows, features and precision."""
    loss, rows, width, precision = case
    wanted = {"library": "torch", "loss": loss, "rows": rows, "width": width, "precision": precision, "name": name}
    each = next(each for each in record["results"] if wanted.items() <= each.items())
    return f"{each['milliseconds']:.3g} ms, {each['mib']:.0f} MiB"


def eager_gpu(record: Mapping[str, Any]) -> str:
    """Compare eager times of large batches in bfloat16 with the formula's."""
    times: dict[tuple[Any, ...], dict[str, float]] = {}
    for each in record["results"]:
        if (each["library"], each["precision"], each["columns"]) == ("torch", "bfloat16", 0) and each["rows"] >= 8192:  # noqa: PLR2004
            times.setdefault((each["loss"], each["rows"]), {})[each["name"]] = each.get("milliseconds", 0.0)
    ratios = [
        row["portable_nce"] / row["formula"] for row in times.values() if {"portable_nce", "formula"} <= row.keys()
    ]
    span = f"{min(ratios):.1f} to {max(ratios):.1f}"
    return f"eager calls of 8192 rows and more in bfloat16 take {span} times the formula's time"


def of_small(root: Path) -> str:
    """Give the ratios of small batches to their formulas."""
    record = json.loads((root / "benchmarks" / "catalogue.json").read_text(encoding="utf-8"))
    ratios = [cell["ratio"]["portable_nce"] for cell in record["cells"] if cell["key"][1:] == ["torch", 128]]
    (own,) = (cell for cell in record["cells"] if cell["key"] == ["info_nce", "torch", 128])
    middle = sorted(ratios)[len(ratios) // 2]
    return (
        f"InfoNCE of {SMALL} takes {own['ratio']['portable_nce']:.2f} times the eager formula on PyTorch, half of all"
        f" losses and functions {middle:.1f} times or less"
    )


def summary(page: str) -> str:
    """Make the first lines of docs/speed.md from the recorded tables."""
    (time, memory), million = tables(page, "InfoNCE")[:2], tables(page, "Over a million items")
    gpu = gpu_record()
    others = [table for table in tables(page, "Other losses") if ROOF in table]

    def of_both(name: str, size: str) -> str:
        measured = size in time[name]
        return f"{time[name][size]:.0f} ms, {memory[name][size]:.0f} MiB" if measured else "not measured"

    def span(name: str) -> str:
        found = [number for table in others for size, number in table[name].items() if size.endswith(SIZE)]
        return f"{min(found):.0f} to {max(found):.0f} ms"

    large = [size for size in time[OURS] if int(rows_of(size)) >= 2048]  # noqa: PLR2004
    of_roof = tables(page, "InfoNCE", word=1)[0]
    ratios = [of_roof[name][size] for name in LIBRARIES if name != OURS_JAX for size in large]

    def extremes(found: list[float]) -> str:
        return f"{min(found):.2f} to {max(found):.2f}"

    def of_large(own: str, other: str) -> str:
        return extremes([time[own][size] / time[other][size] for size in large])

    rows = [
        ("InfoNCE with gradients, on PyTorch", SIZE, LARGE),
        ("---", "---:", "---:"),
        *((label, of_both(name, SIZE), of_both(name, LARGE)) for name, label in BARS.items()),
    ]
    lines = [
        f"PyTorch's `linear_cross_entropy` takes {of_both(FUSED, SIZE)}; {LARGE}: {of_both(FUSED, LARGE)}.",
        f"Other losses of {SIZE} on PyTorch take {span(OURS)}, the eager formulas {span(EAGER)}.",
        (
            f"From 2048 rows, InfoNCE takes {extremes(ratios)} times the roofline on NumPy and PyTorch, and on JAX"
            f" {of_large(OURS_JAX, ROOF_JAX)} times JAX's own, which takes {of_large(ROOF_JAX, ROOF)} times PyTorch's."
        ),
        (
            f"`linear_softmax` of 512 rows and a million items of 64 features, on"
            f" {cores_of(page, 'Over a million items')}: {cost(million, OURS, MILLION)}, the eager formula"
            f" {cost(million, EAGER, MILLION)}."
        ),
        f"**Small batches take longer than eager code:** {of_small(ROOT)}.",
        (
            f"On one {gpu['card']}, compiled InfoNCE of {SIZE} in float32 takes"
            f" {of_gpu(gpu, GPU_COMPILED, OURS_COMPILED)}, the compiled formula"
            f" {of_gpu(gpu, GPU_COMPILED, FORMULA_COMPILED)}. **There, {eager_gpu(gpu)}** ([tables](gpu.md))."
        ),
    ]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    filled = (fill(f"- {line}", 120, subsequent_indent="  ", break_long_words=False) for line in lines)
    return table + "\n" + "\n".join(filled) + "\n"


def with_numbers(page: str, made: str, begin: str = BEGIN, end: str = END) -> str:
    """Insert generated text into a page."""
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{made}\n{end}{rest.partition(end)[2]}"


def draw(page: str, path: Path) -> None:
    """Draw memory and relative time of InfoNCE as bars, without a background and in a grey for light and dark pages.

    The panels of a row share one scale. A bar that was not measured is estimated: it is hatched, and leaves the panel.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (not needed for the table)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    time, memory = tables(page, "InfoNCE")[:2]
    growth = (int(rows_of(LARGE)) / int(rows_of(SIZE))) ** 2
    needed = memory[EAGER][SIZE] * growth / KILO  # of the eager formula, not measured there
    memories: dict[str, dict[str, float | None]] = {
        size: {name: memory[name].get(size) for name in BARS} for size in (SIZE, LARGE)
    }
    times: dict[str, dict[str, float | None]] = {
        size: {name: time[name][size] / time[EAGER][size] for name in BARS} for size in (MEDIUM, SIZE)
    }
    grid = figure.subplots(2, 2, sharex="row", sharey=True)
    panels: tuple[tuple[str, str, dict[str, dict[str, float | None]]], ...] = (
        ("Peak memory", "{:.0f} MiB", memories),
        ("Time / eager", "{:.2f}", times),
    )
    for row, (title, unit, by_size) in enumerate(panels):
        edge = 1.5 * max(value for values in by_size.values() for value in values.values() if value)
        for axes, (size, values) in zip(grid[row], by_size.items(), strict=True):
            for (name, label), colour in zip(BARS.items(), ("#d9534f", GREY, "#3b82f6"), strict=True):
                if (length := values[name]) is not None:
                    axes.barh([label], length, color=colour, height=0.7)
                    axes.text(length + 0.02 * edge, label, unit.format(length), va="center", color=GREY, fontsize=10)
                    continue
                hatched: dict[str, Any] = {"color": "none", "edgecolor": colour, "hatch": "////", "linewidth": 0}
                axes.barh([label] * 2, 0.25 * edge, left=[0.0, 0.75 * edge], height=0.7, **hatched)  # beside the text
                about = f"some {needed:.0f} GiB"
                axes.text(0.5 * edge, label, about, va="center", ha="center", color=GREY, fontsize=10)
            axes.set_title(f"{title}, {rows_of(size)} rows", fontsize=10, color=GREY, loc="left")
            axes.set(xlim=(0, edge), xticks=[])
            axes.tick_params(length=0, colors=GREY, labelsize=10)
            for spine in axes.spines.values():
                spine.set_visible(False)
    grid[0, 0].invert_yaxis()  # the first bar on top
    figure.savefig(path, dpi=200, transparent=True)


def draw_sizes(page: str, path: Path) -> None:
    """Draw time and memory of InfoNCE against the number of rows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (not needed for the table)
    from matplotlib.figure import Figure  # noqa: PLC0415

    (time, *_), memory = tables(page, "InfoNCE", word=1), tables(page, "InfoNCE")[1]
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    time_axes, memory_axes = figure.subplots(1, 2)
    palette = iter(("#9467bd", "#8c564b", "#d62728", "#7f7f7f"))
    colours = dict(zip(LIBRARIES, ("#1f77b4", "#ff7f0e", "#2ca02c"), strict=True))
    for name in (name for name in memory if name in time):
        ours = name in colours
        style: dict[str, Any] = {
            "color": colours[name] if ours else next(palette),
            "marker": "o" if ours else "s",
            "markersize": 4,
            "linewidth": 2 if ours else 1.2,
            "linestyle": "-" if ours else "--",
            "label": name,
        }
        for axes, table, least in ((time_axes, time, 0.0), (memory_axes, memory, 1.0)):
            sizes = [size for size, number in table[name].items() if size.endswith("× 128") and number >= least]
            axes.plot([int(rows_of(size)) for size in sizes], [table[name][size] for size in sizes], **style)
    time_axes.axhline(1.0, color="black", linewidth=0.8)
    time_axes.set(ylabel="time / roofline", title="Value and gradients, D = 128", ylim=(0.8, 5.0))
    memory_axes.set(yscale="log", ylabel="MiB", title="Memory above inputs, gradients")
    ticks = sorted({int(rows_of(size)) for table in time.values() for size in table if size.endswith("× 128")})
    for axes in (time_axes, memory_axes):
        axes.set(xscale="log", xlabel="rows N")
        axes.set_xticks(ticks, [str(rows) if rows < KILO else f"{rows // KILO}k" for rows in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    handles = time_axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False, fontsize=11)
    figure.savefig(path, dpi=180)


def rows_of(size: str) -> str:
    """Give the number of rows of a column such as "8192 × 128"."""
    return size.split(maxsplit=1)[0]


def write(root: Path = ROOT) -> None:
    """Write the tables."""
    speed = (root / "benchmarks" / "speed.md").read_text(encoding="utf-8")
    for page, made in ((root / "README.md", numbers(root)), (root / "docs" / "speed.md", summary(speed))):
        page.write_text(with_numbers(page.read_text(encoding="utf-8"), made), encoding="utf-8")


def main(root: Path = ROOT) -> None:
    """Write the tables, and draw the pictures."""
    write(root)
    docs = root / "docs"
    speed = (root / "benchmarks" / "speed.md").read_text(encoding="utf-8")
    draw(speed, docs / "batch_size.png")
    draw_sizes(speed, docs / "speed.png")


if __name__ == "__main__":
    main()
