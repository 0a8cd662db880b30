"""Launches, matrix products and memory traffic of losses on an accelerator, counted without one.

The losses run on PyTorch's `meta` device, which has shapes but no numbers, and take the path of a GPU. Counted are the
operations that PyTorch would launch in one call with gradients. An operation on a tile (a block of scores) moves its
bytes. They are given per score in two ways: `touched` counts each array of an operation once; `moved` counts what is
read and what is written, so that an operation in place counts its array twice.

Under `torch.compile`, inductor fuses these operations: for the losses of `COMPILED`, the kernels that it would generate
between the products are counted, on the CPU and without generating them, each with the bytes of tiles that it reads and
writes. The products themselves stay as they are. For the losses of `FUSED`, the kernels of compiled steps
(`fuse_steps`) are counted in the code for CUDA, by benchmarks/fused_kernels.py, which needs Triton; without it, their
record is kept.

`python benchmarks/launches.py` prints the tables; `--record` writes them into benchmarks/launches.md, and the counts
into tests/launches.json, which `tests/project/test_launches.py` takes as upper limits. `--list "clip, dot" --dtype
bfloat16` lists the operations of one call; `--rows 128 --width 128` chooses a size. Needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import torch
from torch._inductor.exc import InductorError
from torch._inductor.graph import GraphLowering
from torch.utils._python_dispatch import TorchDispatchMode

import portable_nce as pnce
from portable_nce._core.registry import adapter_of
from portable_nce.backends import torch_compiler, torch_namespace

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = ROOT / "tests" / "launches.json"
PAGE: Final = ROOT / "benchmarks" / "launches.md"
BEGIN: Final = "<!-- launches:begin, written by benchmarks/launches.py -->\n"
END: Final = "<!-- launches:end -->\n"

SMALL: Final = 128, 128
"""Rows and features of a batch whose time is the time of its launches."""
LARGE: Final = 32768, 512
"""Rows and features of a batch whose time is products and memory traffic."""
DTYPES: Final = ("float32", "bfloat16", "float16")
SCALE: Final = 10.0
"""Inverse temperature."""
CLASS: Final = 16
"""Rows of a class, for losses with labels."""


class Sample(NamedTuple):
    """A loss of two arrays (N, D), its scores in units of N², rows of the large batch, and whether steps compile."""

    loss: Callable[[Any, Any], Any]
    scores: int = 1
    rows: int = LARGE[0]
    steps: bool = True


def _in_turn(x: Any) -> Any:
    """Index of each row, as targets."""
    return torch.arange(x.shape[0], device=x.device)


def _classes(x: Any) -> Any:
    """Labels of classes of `CLASS` rows."""
    return _in_turn(x) % max(x.shape[0] // CLASS, 2)


LOSSES: Final[Mapping[str, Sample]] = {
    "info_nce, cosine": Sample(lambda x, y: pnce.info_nce(x, y, temperature=1 / SCALE)),
    "info_nce, dot": Sample(lambda x, y: pnce.info_nce(x, y, temperature=1 / SCALE, similarity="dot")),
    "clip, cosine": Sample(lambda x, y: pnce.clip(x, y, logit_scale=SCALE)),
    "clip, dot": Sample(lambda x, y: pnce.clip(x, y, logit_scale=SCALE, similarity="dot")),
    "siglip, cosine": Sample(lambda x, y: pnce.siglip(x, y, logit_scale=SCALE, logit_bias=-10.0)),
    "nt_xent, cosine": Sample(lambda x, y: pnce.nt_xent(x, y, temperature=1 / SCALE), scores=4),
    "moco, cosine": Sample(lambda x, y: pnce.moco(x, x.detach() + 0, y.detach(), temperature=1 / SCALE)),
    "supcon, cosine": Sample(lambda x, _: pnce.supcon(x, _classes(x), temperature=1 / SCALE), rows=8192),
    "info_nce, neg_sq_euclidean": Sample(
        lambda x, y: pnce.info_nce(x, y, temperature=1 / SCALE, similarity="neg_sq_euclidean"), rows=8192, steps=False
    ),
    "relic, cosine": Sample(lambda x, y: pnce.relic(x, y, temperature=1 / SCALE), rows=8192, steps=False),
    "triplet_from_labels, neg_euclidean": Sample(
        lambda x, _: pnce.triplet_from_labels(x, _classes(x)), rows=2048, steps=False
    ),
    "linear_softmax, dot": Sample(lambda x, y: pnce.density.linear_softmax(x, y, _in_turn(x))),
}
"""Losses by name and similarity. MoCo's keys and queue, N rows each, need no gradient; a vocabulary has N classes."""

FUSED: Final = tuple(name for name, sample in LOSSES.items() if sample.steps)
"""Losses whose steps are compiled."""
COMPILED: Final = ("info_nce, cosine", "clip, cosine", "siglip, cosine", "nt_xent, cosine", "supcon, cosine")
"""Losses that are compiled."""
COMPILED_DTYPES: Final = ("float32", "bfloat16")
COMPILED_SIZE: Final = 2048, 64
"""Rows of a score matrix that is compiled, in one block, and features."""

TAKE_NOTHING: Final = frozenset(
    {"alias", "detach", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty", "new_empty_strided"}
)
"""Operations that launch nothing."""
FILLS: Final = frozenset(
    {"arange", "fill_", "full", "full_like", "ones", "ones_like", "scalar_tensor", "zero_", "zeros", "zeros_like"}
)
"""Operations that read no array."""
SUMS: Final = 8
"""Maximum number of columns of a product that sums a tile: such a product is memory traffic."""
TILE: Final = 2**18
"""Minimum number of entries of a tile that counts."""


class Launch(NamedTuple):
    """An operation, its arrays, and the bytes of tiles that it touches and moves."""

    name: str
    arrays: str
    touched: int
    moved: int


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record of the operations of PyTorch; `width`: number of features, which tells operands from tiles."""

    def __init__(self, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.width = width
        self.found: list[Launch] = []
        self.products: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::")  # noqa: SLF001  (public nowhere)
        if not function.is_view and name not in TAKE_NOTHING:
            given, made = tensors([*args, *(kwargs or {}).values()]), tensors([result])
            arrays = ", ".join(f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for x in (*given, *made))
            self.found.append(Launch(name, arrays, *self.traffic(name, given, made)))
        return result

    def traffic(self, name: str, given: Sequence[Any], made: Sequence[Any]) -> tuple[int, int]:
        """Bytes of tiles that an operation touches, and that it reads and writes; products of matrices are counted."""
        if "mm" in name:
            first, second = given[-2:]
            if second.shape[-1] > SUMS:
                dtype = str(first.dtype).removeprefix("torch.")
                self.products[dtype] += first.numel() * second.shape[-1]
                return 0, 0
            taken = size(first) if self.is_tile(first) else 0
            return taken, taken
        if not any(map(self.is_tile, (*given, *made))):
            return 0, 0
        read = () if name in FILLS else given
        return sum(map(size, {id(x): x for x in (*given, *made)}.values())), sum(map(size, (*read, *made)))

    def is_tile(self, x: Any) -> bool:
        """Whether an array is large and no matrix of embeddings: a block of scores, or of differences of all pairs."""
        return bool(x.numel() >= TILE and (x.ndim > 2 or (x.ndim == 2 and x.shape[1] != self.width)))  # noqa: PLR2004


def tensors(values: Iterable[Any]) -> list[Any]:
    """Tensors among values and in lists of them."""
    flat = [y for x in values for y in (x if isinstance(x, (list, tuple)) else [x])]
    return [x for x in flat if isinstance(x, torch.Tensor)]


def size(x: Any) -> int:
    """Bytes of an array."""
    return int(x.numel() * x.element_size())


def launches(name: str, dtype: str, rows: int, width: int) -> Launches:
    """Record one call of a loss with the gradients of its arrays."""
    made = {"dtype": getattr(torch, dtype), "device": "meta", "requires_grad": True}
    x, y = (torch.zeros((rows, width), **made) for _ in range(2))
    # The engine asks whether a mode observes its operations, and then computes some of them otherwise.
    with mock.patch.object(torch_namespace, "_len_torch_dispatch_stack", return_value=0), Launches(width) as recorded:
        LOSSES[name].loss(x, y).backward()
    found: Launches = recorded
    return found


def counted(name: str, dtype: str) -> dict[str, Any]:
    """Count launches at both sizes, and products and bytes per score at the large one."""
    sample = LOSSES[name]
    small, large = launches(name, dtype, *SMALL), launches(name, dtype, sample.rows, LARGE[1])
    scores = sample.scores * sample.rows**2
    return {
        "launches, small": len(small.found),
        "launches, large": len(large.found),
        "products": {dtype: round(n / scores / LARGE[1], 2) for dtype, n in large.products.items()},
        "touched": round(sum(launch.touched for launch in large.found) / scores, 1),
        "moved": round(sum(launch.moved for launch in large.found) / scores, 1),
    }


@torch.library.custom_op("launches::half_product", mutates_args=())
def half_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Product of 16-bit matrices in float32, which PyTorch lacks on the CPU."""
    return x.float() @ y.float()


@half_product.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], y.shape[1]), dtype=torch.float32)


class _CountedError(Exception):
    """The kernels of a graph are counted."""


@contextlib.contextmanager
def counted_kernels(scores: int) -> Iterator[list[float]]:
    """List for the bytes per score that kernels read and write which inductor would generate; none for products."""
    kernels: list[float] = []

    def count(graph: Any) -> None:
        def size_of(name: str) -> tuple[int, int]:
            try:
                itemsize = graph.get_dtype(name).itemsize
            except NotImplementedError:  # the results of an operation, which are buffers of their own
                return 0, 0
            return int(graph.sizevars.optimization_hint(graph.get_numel(name))), itemsize

        graph._update_scheduler()  # noqa: SLF001  (public nowhere)
        nodes = graph.scheduler.nodes
        read, written = ([{x.name for x in getattr(node.read_writes, way)} for node in nodes] for way in WAYS)
        for k, node in enumerate(nodes):
            elsewhere = set(graph.get_output_names()).union(*read[:k], *read[k + 1 :])
            arrays = [*(read[k] - written[k]), *(written[k] & elsewhere)]  # others stay in the kernel
            moved = sum(number * itemsize for number, itemsize in map(size_of, arrays) if number >= scores)
            if moved and not node.is_extern():
                kernels.append(round(moved / scores, 2))
        raise _CountedError

    torch._dynamo.reset()  # noqa: SLF001  (public nowhere)
    with mock.patch.object(GraphLowering, "compile_to_module", count):
        yield kernels
    if not kernels:
        raise RuntimeError("expected kernels, got none")


def arguments_of(name: str, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Arrays of a loss that is compiled."""
    rows, width = COMPILED_SIZE
    shape = rows // math.isqrt(LOSSES[name].scores), width
    x, y = (torch.zeros(shape, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(2))
    return x, y


def compiled(name: str, dtype: str) -> list[float]:
    """Bytes per score of each kernel of a loss under `torch.compile`."""
    x, y = arguments_of(name, dtype)
    adapter = adapter_of(x)
    with (
        counted_kernels(COMPILED_SIZE[0] ** 2) as kernels,
        mock.patch.object(adapter, "half_devices", {"cpu"}),
        mock.patch.object(adapter, "half_product", half_product),
        contextlib.suppress(InductorError),
    ):
        torch.compile(LOSSES[name].loss, dynamic=False)(x, y)
    return kernels


def obstacle_to_fused() -> str | None:
    """Reason why the kernels of compiled steps cannot be counted here, or None."""
    if find_spec("triton") is None:
        return "the code for CUDA needs Triton, which is not installed"
    return None if torch_compiler.WHOLE else "steps compile from PyTorch 2.11 on"


def fused(*names: str, dtype: str | None = None) -> dict[str, list[float]]:
    """Bytes per score of each kernel of the compiled steps of uncompiled losses, by loss and dtype."""
    command = [sys.executable, str(Path(__file__).with_name("fused_kernels.py")), *names]
    command += [] if dtype is None else ["--dtype", dtype]
    # Its own process, since it replaces parts of `torch.cuda`.
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  (our own)
    found: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    return found


WAYS: Final = "reads", "writes"


def recorded_counts() -> dict[str, dict[str, Any]]:
    """Read the record: counts by name and dtype."""
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def table(counts: Mapping[str, Mapping[str, Any]]) -> str:
    """Make the table of the page."""
    (small, features), (large, width) = SMALL, LARGE
    title = (
        f"launches, {small} × {features}",
        f"launches, {large} × {width}",
        "products",
        "bytes touched",
        "bytes read and written",
    )
    lines = [("", *title), ("---", *("---:" for _ in title))]
    for name, sample in LOSSES.items():
        own = [counts[f"{name}, {dtype}"] for dtype in DTYPES]
        products = [" + ".join(f"{n:g}" for n in each["products"].values()) for each in own]
        cells = [[f"{each[key]:.0f}" for each in own] for key in ("launches, small", "launches, large")]
        cells += [products, *([f"{each[key]:.0f}" for each in own] for key in ("touched", "moved"))]
        loss, _, similarity = name.partition(", ")
        rows = "" if sample.rows == large else f", {sample.rows} rows"
        lines.append((f"`{loss}`, {similarity}{rows}", *map(" / ".join, cells)))
    return f"{_rows(lines)}\n{_of_kernels(counts, 'compiled', COMPILED)}\n{_of_kernels(counts, 'fused', FUSED)}"


def _of_kernels(counts: Mapping[str, Mapping[str, Any]], kind: str, names: Sequence[str]) -> str:
    """Make the table of kernels that a compiler would generate."""
    title = {"compiled": "compiled whole, 2048 × 2048 scores", "fused": "compiled steps, CUDA"}[kind]
    lines = [(title, *COMPILED_DTYPES), ("---", *("---:" for _ in COMPILED_DTYPES))]
    for name in names:
        each = [counts[f"{name}, {dtype}"][kind] for dtype in COMPILED_DTYPES]
        cells = [f"{' + '.join(f'{n:g}' for n in kernels)} = {sum(kernels):.0f}" for kernels in each]
        loss, _, similarity = name.partition(", ")
        lines.append((f"`{loss}`, {similarity}", *cells))
    return _rows(lines)


def _rows(lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_table(page: str, made: str) -> str:
    """Insert the table into a page."""
    whole = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return whole.sub(lambda _: f"{BEGIN}\n{made}\n{END}", page)


def listing(found: Sequence[Launch], scores: int) -> str:
    """List operations in their order: bytes per score that they touch and move, name and arrays."""
    lines = [f"{x.touched / scores:8.3f} {x.moved / scores:8.3f}  {x.name:22} {x.arrays}" for x in found]
    return "\n".join([f"{'touched':>8} {'moved':>8}", *lines, f"{len(found)} launches"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, print, and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--record", action="store_true", help="write the counts into the test's record and the page")
    parser.add_argument("--list", choices=LOSSES, metavar="LOSS", help=f"list one call; one of: {'; '.join(LOSSES)}")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="dtype of the embeddings, with --list")
    parser.add_argument("--rows", type=int, default=SMALL[0], help="number of rows, with --list")
    parser.add_argument("--width", type=int, default=SMALL[1], help="number of features, with --list")
    options = parser.parse_args(arguments)
    if options.list:
        found = launches(options.list, options.dtype, options.rows, options.width).found
        print(listing(found, LOSSES[options.list].scores * options.rows**2))
        return
    counts = {f"{name}, {dtype}": counted(name, dtype) for name in LOSSES for dtype in DTYPES}
    for name in COMPILED:
        for dtype in COMPILED_DTYPES:
            counts[f"{name}, {dtype}"]["compiled"] = compiled(name, dtype)
    obstacle, before = obstacle_to_fused(), recorded_counts()
    if obstacle is not None:
        print(f"compiled steps: as recorded, since {obstacle}")
    kept = {key: each["fused"] for key, each in before.items() if "fused" in each}
    for key, kernels in (kept if obstacle is not None else fused()).items():
        counts[key]["fused"] = kernels
    made = table(counts)
    print(made)
    if options.record:
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in counts.items())
        RECORD.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
