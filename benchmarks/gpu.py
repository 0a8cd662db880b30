"""What a GPU does with the losses: whether they are right on it, and their time, memory and launches.

The stages, in this order: smoke, speed, fused, ranks, conformance, extras (benchmarks/gpu_stages.py describes those
but speed). Two calls take them all: `--budget 400 --stages smoke speed fused`, then `--budget 350 --stages conformance
ranks extras`. Without `--stages`, speed alone, in five minutes.

Speed: value and gradients of portable_nce and of the usual formula, eager and compiled, on PyTorch, JAX and CuPy; on
PyTorch also of packages made for GPUs (inf_cl, cut_cross_entropy, liger_kernel), where they are installed. Times are
medians by events of the device, memory is the peak above inputs and gradients. Libraries and measurements take turns,
the most informative first; what the time does not suffice for is left out. portable_nce normalises the embeddings
("cosine"), the formula gets them normalised.

`python benchmarks/gpu.py` prints; `--record` writes benchmarks/gpu.json, and from it benchmarks/gpu.md and the table of
docs/gpu.md, which `--write` writes again; then `python benchmarks/readme.py` writes README.md. `--budget`: seconds;
`--libraries` and `--only`: libraries and losses; `--dry`: the same code at tiny sizes on the CPU, of which nothing is
recorded.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import readme
from contestants import LINEAR, TEMPERATURE, Setting, jax_formula, our_loss, torch_formula, views
from gpu_stages import SHARES, STAGES

import portable_nce as pnce

HERE: Final = Path(__file__).resolve()
ROOT: Final = HERE.parents[1]
RECORD: Final = readme.GPU
ALL: Final = ROOT / "benchmarks" / "gpu.md"
PAGE: Final = ROOT / "docs" / "gpu.md"
BEGIN: Final = "<!-- numbers:begin, written by benchmarks/gpu.py -->\n"

LIBRARIES: Final = {"torch": 0.7, "jax": 0.7, "cupy": 1.0}
"""Share of the time that is left, in this order."""
LOSSES: Final = ("info_nce", "clip", "supcon", "siglip", "nt_xent", "moco", LINEAR)
SIZES: Final = ((8192, 128), (32768, 512), (128, 128))
VOCABULARY: Final = 8192, 768, 65536
PRECISIONS: Final = ("float32", "bfloat16", "TF32")
PACKAGES: Final = ("torch", "triton", "jax", "cupy-cuda13x", "cupy-cuda12x", "numpy", "inf_cl", "cut-cross-entropy")
LARGE: Final = 32768
"""Rows from which launches cost nothing."""
GRACE: Final = 20.0
"""Seconds that the last measurement of a library may take longer."""
SECONDS: Final = 0.15
"""Time of the repeats of one measurement."""

Run = Callable[[], Any]


@dataclass(frozen=True)
class Item:
    """One measurement: rows N, features D and classes V, precision, and whose loss."""

    loss: str
    rows: int
    width: int
    columns: int
    precision: str
    name: str

    @property
    def label(self) -> str:
        """Name of the loss and its size."""
        return f"`{self.loss}`, {' × '.join(map(str, (self.rows, *([self.columns] * (self.columns > 0)), self.width)))}"


OURS, FORMULA = "portable_nce", "formula"
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": (
        *(OURS, FORMULA, f"{OURS}, fused steps"),
        *(f"{OURS}, compiled", f"{FORMULA}, compiled", f"{OURS}, CUDA graph"),
    ),
    "jax": (f"{OURS}, jit", f"{FORMULA}, jit"),
    "cupy": (OURS, "gradients by hand"),
}
PEERS: Final[Mapping[str, tuple[str, ...]]] = {
    "inf_cl": ("info_nce", "clip"),
    "cut_cross_entropy": (LINEAR,),
    "liger_kernel": (LINEAR,),
}
"""Packages made for GPUs, and their losses."""


COMPILED_FIRST: Final = (("bfloat16", 32768), ("float32", 8192), ("bfloat16", 8192), ("float32", 128))
"""Precision and rows of what is compiled first."""


def plan(library: str, losses: Sequence[str], *, dry: bool) -> list[Item]:
    """List the measurements of a library, the most informative first; torch.compile, which takes long, comes last."""

    def turn(item: Item) -> int:
        kind = item.precision, item.rows
        place = COMPILED_FIRST.index(kind) if kind in COMPILED_FIRST else len(COMPILED_FIRST)
        return 2 + place if item.name.endswith(", compiled") else int(item.name.endswith(", fused steps"))

    return sorted(_all_of(library, losses, dry=dry), key=turn)


def _all_of(library: str, losses: Sequence[str], *, dry: bool) -> Iterator[Item]:
    """List the measurements of a library."""
    for precision in PRECISIONS[: 1 if dry or library == "cupy" else None]:
        for size in SIZES[: 1 if dry else None]:
            for loss in losses:
                rows, width, columns = VOCABULARY if loss == LINEAR else (*size, 0)
                if loss == LINEAR and size != SIZES[0]:
                    continue
                if dry:
                    rows, width, columns = rows // 256, 8, columns // 1024
                for name in (*NAMES[library], *PEERS):
                    item = Item(loss, rows, width, columns, precision, name)
                    if _is_measured(library, item, dry=dry):
                        yield item


def _is_measured(library: str, item: Item, *, dry: bool) -> bool:
    """Whether there is such a loss, and something to learn from it."""
    if item.name in PEERS:
        return library == "torch" and item.loss in PEERS[item.name] and item.precision == "bfloat16"
    if item.name == f"{OURS}, CUDA graph":
        return not dry and item.rows < LARGE and item.loss != LINEAR
    if item.name == f"{OURS}, fused steps":
        return dry or item.rows > SIZES[-1][0]
    if item.name == f"{FORMULA}, jit":
        return item.loss in {"info_nce", "clip", "siglip", "nt_xent"}
    return item.name != "gradients by hand" or item.loss == "info_nce"


# ------------------------------------------------------------------------------------------------------------- PyTorch


def on_torch(item: Item, device: str) -> Run:
    """Prepare a run of PyTorch, which returns gradients."""
    import torch  # noqa: PLC0415  (a process imports only its library)

    torch.set_float32_matmul_precision("high" if item.precision == "TF32" else "highest")
    dtype = torch.bfloat16 if item.precision == "bfloat16" else torch.float32
    arrays = [
        torch.asarray(a, device=device) for a in views(item.loss, Setting(item.rows, item.width, device, item.columns))
    ]
    arrays = [a.to(dtype) if a.is_floating_point() else a for a in arrays]
    x, y = (a.requires_grad_() for a in arrays[:2])
    base, _, way = item.name.partition(", ")
    pnce.fuse_steps(way == "fused steps")
    function = _peer(base, item.loss) if base in PEERS else ours(item) if base == OURS else torch_formula(item.loss)
    if way == "compiled":
        torch._dynamo.reset()  # noqa: SLF001  (public nowhere)
        function = torch.compile(function, fullgraph=True, dynamic=False)

    def run() -> Any:
        function(*arrays).backward()
        gradients = x.grad, y.grad
        x.grad = y.grad = None
        return gradients

    return _graphed(run) if way == "CUDA graph" else run


def ours(item: Item) -> Callable[..., Any]:
    """Our loss, with normalisation."""
    return our_loss(item.loss, similarity="cosine")


def _peer(name: str, loss: str) -> Callable[..., Any]:
    """Loss of a package made for GPUs."""
    if name == "inf_cl":
        one = importlib.import_module("inf_cl").cal_flash_loss

        def both(x: Any, y: Any, _queue: Any, _labels: Any) -> Any:
            options = {"scale": 1 / TEMPERATURE, "head_dim": min(256, x.shape[1])}  # of which D is a multiple
            first = one(x, y, **options).mean()
            return (first + one(y, x, **options).mean()) / 2 if loss == "clip" else first

        return both
    if name == "cut_cross_entropy":
        entropy = importlib.import_module("cut_cross_entropy").linear_cross_entropy
        return lambda x, y, _queue, labels: entropy(x, y, labels)
    module = importlib.import_module("liger_kernel.transformers.fused_linear_cross_entropy")
    liger = module.LigerFusedLinearCrossEntropyLoss()
    return lambda x, y, _queue, labels: liger(y, x, labels)


def _graphed(run: Run) -> Run:
    """Replay a run as a CUDA graph."""
    import torch  # noqa: PLC0415

    cuda: Any = torch.cuda
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            run()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        kept = run()

    def replay() -> Any:
        graph.replay()
        return kept

    return replay


def time_of_torch(run: Run, device: str) -> dict[str, float]:
    """Measure median time by events, peak memory, and launches by the profiler."""
    import torch  # noqa: PLC0415

    if device == "cpu":
        return _wall(run, lambda: None)
    cuda: Any = torch.cuda
    wait = cuda.synchronize
    repeats = _repeats(run, wait)
    gc.collect()
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    kept = run()
    wait()
    gradients = sum(g.numel() * g.element_size() for g in kept if g is not None)
    mib = (cuda.max_memory_allocated() - before - gradients) / 2**20
    del kept
    marks = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for first, last in marks:
        first.record()
        run()
        last.record()
    wait()
    found = {"milliseconds": statistics.median(a.elapsed_time(b) for a, b in marks), "mib": max(0.0, mib)}
    return {**found, "launches": _launches(run, wait)}


def _launches(run: Run, wait: Run) -> int:
    """Count the kernels of one run."""
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
        wait()
    return len(found.events() or ())


def _repeats(run: Run, wait: Run) -> int:
    """Warm up, and choose the number of repeats."""
    run()
    run()
    wait()
    begin = time.perf_counter()
    run()
    wait()
    return max(3, min(60, int(SECONDS / max(time.perf_counter() - begin, 1e-6))))


def _wall(run: Run, wait: Run) -> dict[str, float]:
    """Measure the mean time of runs one after another."""
    repeats = _repeats(run, wait)
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    wait()
    return {"milliseconds": 1000 * (time.perf_counter() - begin) / repeats}


# -------------------------------------------------------------------------------------------------------- JAX and CuPy


def with_jax(item: Item, device: str) -> dict[str, float]:
    """Measure a compiled function of JAX; its memory is what the compiler sets aside."""
    del device
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    precision: Any = "tensorfloat32" if item.precision == "TF32" else "highest"
    kind: Any = jnp.bfloat16 if item.precision == "bfloat16" else jnp.float32
    arrays = [jnp.asarray(a) for a in views(item.loss, Setting(item.rows, item.width, columns=item.columns))]
    arrays = [a.astype(kind) if a.dtype == jnp.float32 else a for a in arrays]
    with jax.default_matmul_precision(precision):
        function = ours(item) if item.name.startswith(OURS) else jax_formula(item.loss)
        compiled = jax.jit(jax.value_and_grad(function, argnums=(0, 1))).lower(*arrays).compile()
    memory: Any = compiled.memory_analysis()
    wait: Any = jax.block_until_ready
    found = _wall(lambda: wait(compiled(*arrays)), lambda: None)
    return {**found, "mib": (getattr(memory, "temp_size_in_bytes", 0) or 0) / 2**20}


def with_cupy(item: Item, device: str) -> dict[str, float]:
    """Measure a function of CuPy, or gradients of InfoNCE by hand."""
    import cupy  # pyright: ignore[reportMissingImports]  # noqa: PLC0415

    import portable_nce as pnce  # noqa: PLC0415

    setting = Setting(item.rows, item.width, columns=item.columns)
    x, y, queue, labels = (cupy.asarray(a) for a in views(item.loss, setting))
    function = ours(item)
    gradient = pnce.value_and_grad(lambda a, b: function(a, b, queue, labels), argnums=(0, 1))
    run: Run = (lambda: gradient(x, y)) if item.name == OURS else (lambda: by_hand(cupy, x, y))
    if device == "cpu":
        return _wall(run, lambda: None)
    wait = cupy.cuda.Device().synchronize
    found = _wall(run, wait)
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    run()
    wait()
    return {**found, "mib": (pool.total_bytes() - before) / 2**20}


def by_hand(xp: Any, x: Any, y: Any) -> tuple[Any, tuple[Any, Any]]:
    """Compute InfoNCE and its gradients in a matrix of scores, without a library."""
    scores = x @ y.T / TEMPERATURE
    scores -= xp.max(scores, axis=1, keepdims=True)
    own = xp.diagonal(scores).copy()
    xp.exp(scores, out=scores)
    sums = xp.sum(scores, axis=1)
    value = xp.mean(xp.log(sums) - own)
    scores /= sums[:, None]
    scores[xp.arange(len(x)), xp.arange(len(x))] -= 1.0
    scores /= len(x) * TEMPERATURE
    return value, (scores @ y, scores.T @ x)


def with_torch(item: Item, device: str) -> dict[str, float]:
    """Measure a function of PyTorch."""
    import torch  # noqa: PLC0415

    try:
        return time_of_torch(on_torch(item, device), device)
    finally:
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()


MEASURE: Final = {"torch": with_torch, "jax": with_jax, "cupy": with_cupy}


# ------------------------------------------------------------------------------------------------------------ processes


def measure(library: str, losses: Sequence[str], end: float, *, dry: bool) -> None:
    """Measure a library in this process, until its time ends; print each result as a line of JSON."""
    if dry and library == "cupy":  # NumPy behind CuPy's names
        sys.path.insert(0, str(ROOT / "tests"))
        importlib.import_module("cupy_stand_in").install()
    for item in plan(library, losses, dry=dry):
        if time.time() > end:
            break
        if item.name in PEERS and find_spec(item.name) is None:
            continue
        try:
            found: dict[str, Any] = MEASURE[library](item, "cpu" if dry else "cuda")
        except Exception as error:  # noqa: BLE001  (a result)
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps({"library": library, **asdict(item), **found}), flush=True)


def results_of(library: str, losses: Sequence[str], seconds: float, *, dry: bool) -> list[dict[str, Any]]:
    """Measure a library in a process of its own, which is stopped when it takes too long."""
    command = [sys.executable, str(HERE), "--measure", library, "--budget", str(seconds), "--only", *losses]
    return lines_of([*command, *["--dry"] * dry], seconds, dry=dry)


def checked(stage: str, libraries: Sequence[str], seconds: float, *, dry: bool) -> list[dict[str, Any]]:
    """Run a stage other than speed, a library at a time, each in a process of its own."""
    found, end = [], time.time() + seconds
    chosen = [x for x in libraries if stage in {"smoke", "conformance"} or x == "torch"]
    for k, library in enumerate(chosen):
        own = (end - time.time()) / (len(chosen) - k)
        command = [sys.executable, str(HERE.with_name("gpu_stages.py")), stage, library, str(time.time() + own)]
        found += lines_of([*command, "dry" if dry else "card"], own, dry=dry)
    return found


def lines_of(command: Sequence[str], seconds: float, *, dry: bool) -> list[dict[str, Any]]:
    """Collect the lines of JSON that a process writes until it is stopped."""
    # A safe path excludes the folder of the script.
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), **({"JAX_PLATFORMS": "cpu"} if dry else {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:  # noqa: S603  (our own)
        try:
            lines = process.communicate(timeout=seconds + GRACE)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            lines = process.communicate()[0]
    found = []
    for line in lines.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def machine() -> dict[str, Any]:
    """Describe card, driver and versions."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        names = subprocess.run(query, capture_output=True, text=True, check=True)  # noqa: S603
        card, driver = names.stdout.splitlines()[0].split(", ")
    except (OSError, subprocess.CalledProcessError):
        card, driver = "CPU", "none"
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%h"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    if find_spec("torch"):
        versions["CUDA"] = importlib.import_module("torch").version.cuda
    day = datetime.now(UTC).date().isoformat()
    return {
        "card": card,
        "driver": driver,
        "python": platform.python_version(),
        "versions": versions,
        "date": day,
        "commit": commit,
        "notes": [],
    }


# ---------------------------------------------------------------------------------------------------------------- pages


def cell(found: Mapping[str, Any] | None, what: str) -> str:
    """Write a time or memory, or that it was not measured."""
    if found is not None and "milliseconds" not in found:
        return "fails"
    if found is None or what not in found:
        return NOT_MEASURED
    return f"{found[what]:.3g}" if found[what] < 100 and what == "milliseconds" else f"{found[what]:.0f}"  # noqa: PLR2004


NOT_MEASURED: Final = "–"
"""Cell of what was not measured, as the pages say."""
UNITS: Final = {"milliseconds": "ms", "mib": "MiB"}


def rows_of(results: Sequence[Mapping[str, Any]], library: str) -> dict[tuple[str, str], dict[str, Mapping[str, Any]]]:
    """Collect measurements by loss with its size and precision, and then by name."""
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    items: list[Item] = []
    for each in results:
        if each["library"] == library:
            items.append(Item(*(each[key] for key in Item.__dataclass_fields__)))
            found.setdefault((items[-1].label, each["precision"]), {})[each["name"]] = each
    precisions: list[str] = [*PRECISIONS]
    losses: list[str] = [*LOSSES]
    sorts = {item: (precisions.index(item.precision), item.rows, losses.index(item.loss)) for item in items}
    ordered = sorted(items, key=lambda item: sorts[item])
    return {(item.label, item.precision): found[item.label, item.precision] for item in ordered}


SHOWN: Final = {(128, "float32"), (8192, "float32"), (32768, "bfloat16")}
"""Rows and precision of what the page shows at once, for the first three losses."""


def page(record: Mapping[str, Any]) -> str:
    """Write all measurements."""
    notes = " ".join((*record["notes"], ABOUT))
    about = fill(f"{readme.about_gpu(record)} {notes}".strip(), 120, break_on_hyphens=False)
    tables = (_table_of(record["results"], library, title) for library, title in TITLES.items())
    return "\n".join((f"{TITLE}{about}\n", *filter(None, tables)))


def table(record: Mapping[str, Any]) -> str:
    """Make the table of docs/gpu.md: a few losses at each size."""
    few = [
        each for each in record["results"] if (each["rows"], each["precision"]) in SHOWN and each["loss"] in LOSSES[:3]
    ]
    return _table_of(few, "torch", TITLES["torch"])


ABOUT: Final = (
    "Formula: the products, cross-entropy of the matrix of scores and the library's derivatives, with all scores in "
    f"memory. MiB are those above arguments and gradients. {NOT_MEASURED}: not measured."
)
TITLE: Final = "# Measurements on a GPU\n\n<!-- Written by benchmarks/gpu.py. -->\n\n"
TITLES: Final = {"torch": "PyTorch", "jax": "JAX", "cupy": "CuPy"}


def _table_of(results: Sequence[Mapping[str, Any]], library: str, title: str) -> str:
    """Make a table of times, and one of memory."""
    tables = (_table_in(unit, results, library, title) for unit in UNITS)
    return "\n".join(filter(None, tables))


def _table_in(unit: str, results: Sequence[Mapping[str, Any]], library: str, title: str) -> str:
    """Make a table in one unit; without rows and columns of which nothing was measured in it, or less than 1 MiB."""
    shown = [each for each in results if each.get("mib", 0.0) >= 1.0 or unit != "mib"]
    rows = rows_of(shown, library)
    names = [name for name in (*NAMES[library], *PEERS) if any(name in row for row in rows.values())]
    lines = [(f"{title}, {UNITS[unit]}", *names), ("---", *("---:" for _ in names))]
    for (label, precision), row in rows.items():
        lines.append((f"{label}, {precision}", *(cell(row.get(name), unit) for name in names)))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) if rows else ""


def with_table(text: str, made: str) -> str:
    """Insert the table into a page."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{readme.END}{rest.partition(readme.END)[2]}"


def write() -> None:
    """Write the pages from the record."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    ALL.write_text(page(record), encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(record)), encoding="utf-8")


def text_of(record: Mapping[str, Any]) -> str:
    """Write a record with a line for each result."""
    head = {key: value for key, value in record.items() if key != "results"}
    lines = ",\n".join(f"  {json.dumps(each)}" for each in record["results"])
    return f'{json.dumps(head, indent=1)[:-2]},\n "results": [\n{lines}\n ]\n}}\n'


def speeds(libraries: Sequence[str], losses: Sequence[str], seconds: float, *, dry: bool) -> list[dict[str, Any]]:
    """Measure the libraries in turn; the last has all the time that is left."""
    results, end = [], time.time() + seconds
    for library in libraries:
        share = 1.0 if library == libraries[-1] else LIBRARIES[library]
        results += results_of(library, losses, share * (end - time.time()), dry=dry)
    return results


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "--budget", type=float, default=270.0, help="seconds until the last measurement begins (default: 270)"
    )
    parser.add_argument(
        "--libraries", nargs="*", default=[*LIBRARIES], choices=LIBRARIES, help="measure these libraries"
    )
    parser.add_argument(
        "--only", nargs="*", default=[*LOSSES], choices=LOSSES, metavar="LOSS", help="measure these losses"
    )
    parser.add_argument(
        "--stages", nargs="*", default=["speed"], choices=STAGES, help="run these stages (default: speed)"
    )
    parser.add_argument("--record", action="store_true", help="write the record of speeds, and the page from it")
    parser.add_argument("--write", action="store_true", help="write the page from the record; measure nothing")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU; nothing is recorded")
    parser.add_argument("--measure", choices=LIBRARIES, help="measure one library in this process, as lines of JSON")
    options = parser.parse_args(None if arguments is None else [*arguments])
    if options.write:
        write()
        return
    end = time.time() + options.budget
    if options.measure:
        measure(options.measure, options.only, end, dry=options.dry)
        return
    chosen = [library for library in LIBRARIES if library in options.libraries]
    stages = [stage for stage in STAGES if stage in options.stages]
    results: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    for stage in stages:
        seconds = (1.0 if stage == stages[-1] else SHARES[stage]) * (end - time.time())
        if stage == "speed":
            results = speeds(chosen, options.only, seconds, dry=options.dry)
        else:
            checks += checked(stage, chosen, seconds, dry=options.dry)
    record = {**machine(), "results": results}
    if results:
        print(page(record))
    for each in checks:
        print(json.dumps(each))
    for each in results:
        if "error" in each:
            print(f"{each['library']}, {each['name']}, {each['loss']}, {each['precision']}: {each['error']}")
    if options.record and results and not options.dry:
        RECORD.write_text(text_of(record), encoding="utf-8")
        write()


if __name__ == "__main__":
    main()
