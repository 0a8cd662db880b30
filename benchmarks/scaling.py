"""Communication and memory of ranks, for our losses and the usual way: gathers of both sides and dense matrices.

    python benchmarks/scaling.py --ranks 4 --samples 16384 --features 128

starts that many processes on gloo, and prints for each loss the embeddings that a rank receives, in units of all of one
side (samples x features), the memory that value and gradient take above the inputs, and the time. The usual way is
CLIP as open_clip computes it with ``local_loss`` and ``gather_with_grad``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

import portable_nce as pnce

SENT = {"entries": 0}

GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Make the C library return freed memory, so that only memory in use is measured."""


class _Gather(torch.autograd.Function):
    """Gather all rows; the backward pass is a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        found = x.new_empty((dist.get_world_size() * x.shape[0], x.shape[1]))
        dist.all_gather_single(found, x)
        return found

    @staticmethod
    def backward(ctx: Any, slope: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        del ctx
        found = slope.new_empty((slope.shape[0] // dist.get_world_size(), slope.shape[1]))
        dist.reduce_scatter_single(found, slope.contiguous())
        return found


def usual_clip(a: Any, b: Any) -> Any:
    """CLIP by two gathers, two dense matrices and two cross-entropies."""
    a, b = functional.normalize(a, dim=1), functional.normalize(b, dim=1)
    all_a, all_b = _Gather.apply(a), _Gather.apply(b)  # type: ignore[no-untyped-call]
    target = torch.arange(a.shape[0]) + dist.get_rank() * a.shape[0]
    return (
        functional.cross_entropy(10.0 * a @ all_b.T, target) + functional.cross_entropy(10.0 * b @ all_a.T, target)
    ) / 2


def contestants() -> dict[str, Any]:
    """Give the losses of two embeddings, by name."""
    ranks = pnce.across(dist.group.WORLD, gradients="averaged")
    return {
        "clip, the usual way": usual_clip,
        "clip": lambda a, b: pnce.clip(a, b, logit_scale=10.0, across=ranks),
        "info_nce": lambda a, b: pnce.info_nce(a, b, temperature=0.1, across=ranks),
        "siglip": lambda a, b: pnce.siglip(a, b, logit_scale=10.0, logit_bias=-10.0, across=ranks),
        "nt_xent": lambda a, b: pnce.nt_xent(a, b, temperature=0.1, across=ranks),
    }


def counted(name: str, *, gives: bool) -> None:
    """Count the entries from other ranks in a collective's result or input."""
    inner = getattr(dist, name)

    def collective(*args: Any, **options: Any) -> Any:
        x = args[1] if gives else args[0]
        share = dist.get_world_size() - 1
        SENT["entries"] += x.numel() * share if x.dim() > 1 and x.is_floating_point() else 0
        return inner(*args, **options)

    setattr(dist, name, collective)


def peak() -> int:
    """Give the peak memory of this process, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def work(name: str, rank: int, options: argparse.Namespace, store: str) -> dict[str, float]:
    """Measure one loss on one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    counted("all_gather_single", gives=True)
    counted("reduce_scatter_single", gives=False)
    loss = contestants()[name]
    own = options.samples // options.ranks
    draw = torch.Generator().manual_seed(rank)
    small = [torch.randn(64, options.features, generator=draw, requires_grad=True) for _ in range(2)]
    loss(*small).backward()  # one-time loading
    leaves = [torch.randn(own, options.features, generator=draw, requires_grad=True) for _ in range(2)]
    for x in leaves:
        x.grad = torch.zeros_like(x)
    Path("/proc/self/clear_refs").write_text("5")
    before, SENT["entries"] = peak(), 0
    start = time.perf_counter()
    loss(*leaves).backward()
    seconds = time.perf_counter() - start
    memory = peak() - before
    side = own * options.ranks * options.features * (options.ranks - 1) / options.ranks
    dist.barrier()
    dist.destroy_process_group()
    return {"units": SENT["entries"] / side, "mebibytes": memory / 2**20, "seconds": seconds}


def main() -> None:
    """Start the processes of each loss in turn and print a table; or run as one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--work", nargs=3, metavar=("NAME", "RANK", "STORE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if options.work:
        name, rank, store = options.work
        sys.stdout.write(json.dumps(work(name, int(rank), options, store)))
        return
    names = ["clip, the usual way", "clip", "info_nce", "siglip", "nt_xent"]
    print("| loss | units received | MiB above the inputs | seconds |\n|---|---|---|---|")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, *sys.argv, "--work", name]
            processes = [
                subprocess.Popen(  # noqa: S603  (this script)
                    [*command, str(rank), f"{folder}/store"], stdout=subprocess.PIPE, env={**os.environ, **GIVEN_BACK}
                )
                for rank in range(options.ranks)
            ]
            found = [json.loads(process.communicate()[0]) for process in processes]
        worst = {key: max(report[key] for report in found) for key in found[0]}
        print(f"| {name} | {worst['units']:.2f} | {worst['mebibytes']:.0f} | {worst['seconds']:.2f} |")


if __name__ == "__main__":
    main()
