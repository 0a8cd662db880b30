"""Numbers and picture of README.md and docs/index.md, from recorded measurements.

`python benchmarks/readme.py` reads benchmarks/speed.md, training.md, gpu.json, catalogue.json, docs/ranks.md and
docs/agreement.json.
It writes a table into README.md and a summary into docs/speed.md, and draws docs/batch_size.png and docs/speed.png.
`python benchmarks/speed.py` does this too, after it has measured.
"""

from __future__ import annotations

import json
import math
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
    speed, ranks, training, agreement = (
        (root / name).read_text(encoding="utf-8")
        for name in ("benchmarks/speed.md", "docs/ranks.md", "benchmarks/training.md", "docs/agreement.json")
    )
    gpu = gpu_record(root)
    info_nce, others, million = (tables(speed, name) for name in ("InfoNCE", "Other losses", "Over a million items"))
    (shared,) = tables(ranks, "Communication and memory")
    (ratio,) = tables(training, "Cost of a step", word=1)

    def peak(name: str) -> str:
        return f"{shared[name][SHARED]:.0f} MiB"

    labelled, cores = f"SupCon, {SIZE}", "two CPU cores"
    rows = [
        ("value and gradients", "on", "usual code", "portable_nce"),
        ("---", "---", "---:", "---:"),
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
            "`clip`, 32768 × 512, bfloat16",
            f"one {gpu['card']}",
            f"eager PyTorch: {of_gpu(gpu, 'formula', LARGE_ON_GPU)}",
            of_gpu(gpu, "portable_nce", LARGE_ON_GPU),
        ),
    ]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    times = " and ".join(f"{ratio['portable_nce'][f'ms (ratio), {pairs} pairs']:.2f}" for pairs in (512, 4096))
    notes = (
        f"In float32, without normalisation, but `clip` with it on both sides, and on the GPU with it in portable_nce. "
        f"Memory is the peak above inputs and gradients. For `info_nce` of {SIZE}, `torch.compile` takes "
        f"{cost(info_nce, COMPILED, SIZE)}, PyTorch's `linear_cross_entropy` {cost(info_nce, FUSED, SIZE)}. Steps "
        f"of 512 and 4096 pairs of a small encoder take {times} times as long as with `cross_entropy`, on one core "
        f"([training](docs/training.md)). The largest float32 error of any loss on any library is "
        f"below {10 * math.ceil(worst_agreement(agreement) / 10)} units in the last place. "
        f"On the GPU, {eager_gpu(gpu)}; compiled `info_nce` of {SIZE} takes {of_gpu(gpu, GPU_COMPILED[1])}, the "
        f"compiled formula {of_gpu(gpu, GPU_COMPILED[0])} ([tables](docs/gpu.md))."
    )
    return f"{table}\n{fill(notes, 120, break_long_words=False, break_on_hyphens=False)}\n"


SMALL_ROWS: Final = (("info_nce", "`info_nce`, normalised", 128, "formula", "eager PyTorch"),)
CATALOGUE: Final = (
    ("info_nce, neg_sq_euclidean", "`info_nce` by `neg_sq_euclidean`", 4096, "formula", "eager PyTorch"),
    ("relic", "`relic`", 4096, "formula", "eager PyTorch"),
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


GPU_COMPILED: Final = "formula, compiled", "portable_nce, compiled"


def gpu_record(root: Path = ROOT) -> dict[str, Any]:
    """Read the record of benchmarks/gpu.py."""
    found: dict[str, Any] = json.loads((root / GPU.relative_to(ROOT)).read_text(encoding="utf-8"))
    return found


def about_gpu(record: Mapping[str, Any]) -> str:
    """Name card, versions and commit of a record."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    machine = f"{record['card']}, driver {record['driver']}, Python {record['python']}, {versions}"
    return f"Measured on {record['date']} at commit {record['commit']}: one {machine}."


LARGE_ON_GPU: Final = {"loss": "clip", "rows": 32768, "width": 512, "precision": "bfloat16"}


def of_gpu(record: Mapping[str, Any], name: str, what: Mapping[str, Any] | None = None) -> str:
    """Give time and memory on PyTorch; of InfoNCE in float32 by default."""
    what = what or {"loss": "info_nce", "rows": 8192, "width": 128, "precision": "float32"}
    wanted = {"library": "torch", "name": name, **what}
    each = next(each for each in record["results"] if wanted.items() <= each.items())
    return f"{each['milliseconds']:.{2 if each['milliseconds'] < 10 else 0}f} ms, {each['mib']:.0f} MiB"  # noqa: PLR2004


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
            f"On one {gpu['card']}, compiled InfoNCE of {SIZE} in float32 takes {of_gpu(gpu, GPU_COMPILED[1])}, the"
            f" compiled formula {of_gpu(gpu, GPU_COMPILED[0])}. **There, {eager_gpu(gpu)}** ([tables](gpu.md))."
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
    """Draw memory and relative time of InfoNCE as bars, without a background and in a grey for light and dark pages."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (not needed for the table)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    time, memory = tables(page, "InfoNCE")[:2]
    panels: list[tuple[str, dict[str, str], dict[str, float]]] = []
    growth = (int(rows_of(LARGE)) / int(rows_of(SIZE))) ** 2
    needed = f"needs about {memory[EAGER][SIZE] * growth / KILO:.0f} GiB"  # of the eager formula, not measured there
    for size in (SIZE, LARGE):
        values = {name: memory[name][size] for name in BARS if size in memory[name]}
        texts = {name: f"{value:.0f} MiB" for name, value in values.items()}
        panels.append((f"Peak memory, {rows_of(size)} rows", texts, values))
    for size in (MEDIUM, SIZE):
        values = {name: time[name][size] / time[EAGER][size] for name in BARS}
        texts = {name: f"{value:.2f}" for name, value in values.items()}
        panels.append((f"Time / eager, {rows_of(size)} rows", texts, values))
    grid = figure.subplots(2, 2, sharey=True)
    for axes, (title, texts, values) in zip(grid.flat, panels, strict=True):
        lengths = [values.get(name, 0.0) for name in BARS]
        axes.barh([*BARS.values()], lengths, color=("#d9534f", GREY, "#3b82f6"), height=0.7)
        for place, name in enumerate(BARS):
            label = texts.get(name, needed)
            axes.text(lengths[place] + 0.02 * max(lengths), place, label, va="center", color=GREY, fontsize=10)
        axes.set_title(title, fontsize=10, color=GREY, loc="left")
        axes.set(xlim=(0, 1.5 * max(lengths)), xticks=[])
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
