"""Adopt a loss in another library: copy the package into its sources, apply a patch, run its tests, and measure.

``python adoption/try_patch.py optax`` clones the library, runs the tests that use the loss and measures it, before and
after ``optax.patch``. It records the numbers in adoption/record.json, and writes them into adoption/README.md.
``--source FOLDER`` clones from a folder, ``--work FOLDER`` keeps the patched sources. Needs git, Linux, pytest,
array-api-compat and the requirements of the library (``optax``: jax, absl-py, numpy;
``pytorch-metric-learning``: torch, numpy, scikit-learn, tqdm; ``lightly-ntxent``, ``lightly-dcl``: those of
lightly, pytest-mock; ``cebra``: those of CEBRA).

The tests that fail after the patch must have failed before it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HERE: Final = Path(__file__).parent
RECORD: Final = HERE / "record.json"
README: Final = HERE / "README.md"
BEGIN: Final = "<!-- numbers:begin, written by adoption/try_patch.py -->\n"
END: Final = "<!-- numbers:end -->\n"
ROUNDS: Final = 5
WIDTH: Final = 128
SETTINGS: Final = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
GIVEN_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Make the C library return freed memory, so that only memory in use is measured."""


@dataclass(frozen=True)
class Example:
    """A library, the loss that is replaced, and the tests of the library that use it."""

    address: str
    revision: str
    loss: str
    library: str
    package: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    rows: tuple[int, ...]
    settings: Mapping[str, str]


EXAMPLES: Final = {
    "pytorch-metric-learning": Example(
        address="https://github.com/KevinMusgrave/pytorch-metric-learning",
        revision="216a792c22b0154d3d3bf008a7317edc7d677e71",
        loss="SupConLoss",
        library="torch",
        package="src/pytorch_metric_learning",
        files=("src", "tests", "setup.py"),
        tests=tuple(
            f"tests/losses/test_{name}.py"
            for name in ("ntxent_loss", "losses_without_labels", "self_supervised_loss", "cross_batch_memory")
        ),
        rows=(1024, 4096),
        settings={"TEST_DEVICE": "cpu", "TEST_DTYPES": "float32,float64"},  # as its workflow on GitHub
    ),
    "optax": Example(
        address="https://github.com/google-deepmind/optax",
        revision="v0.2.8",
        loss="ntxent",
        library="jax",
        package="optax",
        files=("optax", "pyproject.toml"),
        tests=("optax/losses/_self_supervised_test.py",),
        rows=(512, 2048),
        settings={},
    ),
    **{
        f"lightly-{name}": Example(
            address="https://github.com/lightly-ai/lightly",
            revision="v1.5.26",
            loss=loss,
            library="torch",
            package="lightly",
            files=("lightly", f"tests/loss/{test}.py"),  # without conftest.py, which needs lightly's server
            tests=(f"tests/loss/{test}.py",),
            rows=(1024, 4096),
            settings={},
        )
        for name, loss, test in (("ntxent", "NTXentLoss", "test_ntx_ent_loss"), ("dcl", "DCLLoss", "test_dcl_loss"))
    },
    "cebra": Example(
        address="https://github.com/AdaptiveMotorControlLab/CEBRA",
        revision="v0.6.1",
        loss="InfoNCE",
        library="torch",
        package="cebra",
        files=("cebra", "tests/test_criterions.py"),
        tests=("tests/test_criterions.py",),
        rows=(1024, 4096),
        settings={},
    ),
}


# Before and after


def try_out(name: str, source: str | None, work: Path) -> dict[str, Any]:
    """Test and measure a library before and after its patch."""
    example, tree = EXAMPLES[name], work / name
    shutil.rmtree(tree, ignore_errors=True)
    run("git", "clone", "--quiet", "--no-checkout", source or example.address, str(tree))
    run("git", "checkout", "--quiet", example.revision, "--", *example.files, folder=tree)
    before = outcome(name, tree)
    target = tree / example.package / "_vendor"
    run(sys.executable, str(HERE / "vendor.py"), str(target), "--library", example.library)
    run("git", "apply", str(HERE / f"{name}.patch"), folder=tree)
    after = outcome(name, tree)
    if set(after["failed"]) - set(before["failed"]):
        sys.exit(f"{name}: expected the failures from before the patch, {before['failed']}, got {after['failed']}")
    if abs(before["loss"] - after["loss"]) > 1e-4 * abs(before["loss"]):
        sys.exit(f"{name}: expected the loss from before the patch, {before['loss']}, got {after['loss']}")
    patch = (HERE / f"{name}.patch").read_text(encoding="utf-8").splitlines()
    return {
        "revision": example.revision,
        "versions": {key: version(key) for key in (example.library, "numpy")} | {"Python": platform.python_version()},
        "lines": {sign: sum(bool(re.match(rf"\{sign}(?!\{sign})", line)) for line in patch) for sign in "+-"},
        "before": before,
        "after": after,
    }


def run(*command: str, folder: Path | None = None) -> None:
    """Run a command; show what it wrote if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def outcome(name: str, tree: Path) -> dict[str, Any]:
    """Run the tests of a library, then measure its loss, each size in a process of its own."""
    example = EXAMPLES[name]
    path = os.pathsep.join((str(tree / example.package).removesuffix(Path(example.package).name), str(tree)))
    env = {**os.environ, **SETTINGS, **example.settings, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    report = tree / "report.xml"
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *example.tests)
    subprocess.run(command, cwd=tree, env=env, capture_output=True, check=False)  # noqa: S603
    every = ET.parse(report).iterfind(".//testcase")  # noqa: S314  (pytest wrote it a moment ago)
    cases = [case for case in every if case.find("skipped") is None]  # such as tests that need a GPU
    failed = [f"{case.get('classname')}.{case.get('name')}" for case in cases if list(case.iterfind("failure"))]
    if not cases or list(ET.parse(report).iterfind(".//error")):  # noqa: S314
        sys.exit(f"{name}: the tests cannot run; see {report}")
    found: dict[str, Any] = {"tests": len(cases), "failed": failed, "ms": {}, "MiB": {}}
    for rows in example.rows:
        command = (sys.executable, __file__, name, "--measure", str(rows))
        for kind, further in (("ms", {}), ("MiB", GIVEN_BACK)):
            done = subprocess.run(command, env=env | further, capture_output=True, text=True, check=True)  # noqa: S603
            measured = json.loads(done.stdout.splitlines()[-1])
            found[kind][str(rows)], found["loss"] = measured[kind], measured["loss"]
    return found


# One process


def measure(name: str, rows: int) -> None:
    """Print processor time in ms, peak memory in MiB above the memory before, and the loss, of a call with gradient."""
    step = STEPS[name]
    step(64)()  # one-time loading
    call = step(rows)
    if name == "optax":
        call()  # compiles
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident("VmRSS")
    found = {"loss": call(), "MiB": round((resident("VmHWM") - before) / 1024, 1)}
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    print(json.dumps({"ms": round(1e3 * median(times), 1), **found}))


def resident(field: str) -> int:
    """Read the current or the peak memory of this process, in KiB."""
    return int(re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))[0])


def supcon(rows: int) -> Callable[[], float]:
    """Return a call of SupConLoss with its gradient; four rows have each label."""
    import torch
    from pytorch_metric_learning.losses import SupConLoss  # pyright: ignore[reportMissingImports]  (in an environment of its own)

    torch.set_num_threads(1)
    embeddings = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels, loss = torch.arange(rows) // 4, SupConLoss(temperature=0.1)

    def call() -> float:
        embeddings.grad = None
        value = loss(embeddings, labels)
        value.backward()
        return float(value)

    return call


def ntxent(rows: int) -> Callable[[], float]:
    """Return a compiled call of ntxent with its gradient; two rows have each label."""
    import jax
    from optax.losses import ntxent as loss

    embeddings = jax.random.normal(jax.random.key(0), (rows, WIDTH))
    labels = jax.numpy.tile(jax.numpy.arange(rows // 2), 2)
    differentiated = jax.jit(jax.value_and_grad(lambda x: loss(x, labels, temperature=0.1)))
    return lambda: float(jax.block_until_ready(differentiated(embeddings))[0])


def of_views(name: str) -> Callable[[int], Callable[[], float]]:
    """Return what makes calls of a loss of lightly with its gradients; half of the rows are views of the others."""

    def step(rows: int) -> Callable[[], float]:
        import torch
        from lightly import loss as losses  # pyright: ignore[reportMissingImports]  (in an environment of its own)

        torch.set_num_threads(1)
        draw = torch.Generator().manual_seed(0)
        views = [torch.randn(rows // 2, WIDTH, generator=draw, requires_grad=True) for _ in range(2)]
        loss = getattr(losses, name)(temperature=0.1)

        def call() -> float:
            for view in views:
                view.grad = None
            value = loss(*views)
            value.backward()
            return float(value)

        return call

    return step


def cebra(rows: int) -> Callable[[], float]:
    """Return a call of CEBRA's InfoNCE with its gradients, of as many queries, positives and negatives."""
    import torch
    from cebra.models.criterions import InfoNCE  # pyright: ignore[reportMissingImports]  (in an environment of its own)

    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    arrays = [torch.nn.functional.normalize(torch.randn(rows, WIDTH, generator=draw), dim=1) for _ in range(3)]
    for array in arrays:
        array.requires_grad_()
    loss = InfoNCE(temperature=0.1)

    def call() -> float:
        for array in arrays:
            array.grad = None
        value = loss(*arrays)[0]
        value.backward()
        return float(value)

    return call


STEPS: Final = {
    "optax": ntxent,
    "pytorch-metric-learning": supcon,
    "lightly-ntxent": of_views("NTXentLoss"),
    "lightly-dcl": of_views("DCLLoss"),
    "cebra": cebra,
}
"""What makes the measured call of each example, for a number of rows."""


# The page


def table(record: Mapping[str, Any]) -> str:
    """Write the numbers of all examples."""
    lines = [
        "| library, loss | patch | its tests | rows | ms before | ms after | MiB before | MiB after |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, example in EXAMPLES.items():
        if name not in record:
            continue
        found = record[name]
        before, after, lines_of = found["before"], found["after"], found["lines"]
        failed = f"{len(after['failed'])} fail, as before" if after["failed"] else "all pass"
        head = f"[{example.address.rpartition('/')[2]}]({example.address}), `{example.loss}`"
        head += f" | [+{lines_of['+']} −{lines_of['-']}](../adoption/{name}.patch) | {after['tests']}: {failed}"
        for rows in before["ms"]:
            cells = (of[kind][rows] for kind in ("ms", "MiB") for of in (before, after))
            lines.append(f"| {head} | {rows} | {' | '.join(f'{cell:.0f}' for cell in cells)} |")
            head = "| |"
    versions = "; ".join(
        f"{name} at `{found['revision'][:12]}` with "
        + ", ".join(f"{key} {number}" for key, number in found["versions"].items())
        for name, found in record.items()
    )
    measured = f"Loss and gradient of float32 rows of {WIDTH} features: processor time in one thread, and peak memory"
    return "\n".join([*lines, "", f"{measured} above the inputs. {versions}."])


def with_table(page: str, record: Mapping[str, Any]) -> str:
    """Replace the numbers of a page."""
    head, _, rest = page.partition(BEGIN)
    tail = rest.partition(END)[2]
    return f"{head}{BEGIN}\n{table(record)}\n\n{END}{tail}"


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("name", choices=EXAMPLES, help="library to patch")
    parser.add_argument("--source", help="clone from this folder or address instead of GitHub")
    parser.add_argument("--work", type=Path, help="folder for the patched sources; a temporary one by default")
    parser.add_argument("--measure", type=int, metavar="ROWS", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        measure(options.name, options.measure)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = try_out(options.name, options.source, (options.work or Path(folder)).resolve())
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    record = {name: {**record, options.name: found}[name] for name in EXAMPLES if name in {*record, options.name}}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    README.write_text(with_table(README.read_text(encoding="utf-8"), record), encoding="utf-8")
    print(table(record))


if __name__ == "__main__":
    main(sys.argv[1:])
