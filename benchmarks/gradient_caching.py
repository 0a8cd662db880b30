"""Memory and time of a training step, with the whole batch and with gradient caching.

    python benchmarks/gradient_caching.py

Each figure is the growth of peak memory of a separate process, and the time of its step, on one core.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import portable_nce as pnce
from portable_nce.modules.torch import encode_in_chunks

WIDTH, LENGTH, CHUNK = 128, 16, 64


def step_of(kind: str, rows: int) -> Callable[[int], Any]:
    """Give a training step of a transformer of four layers on `rows` rows."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    transformer = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    texts = [torch.randn(rows, LENGTH, WIDTH) for _ in range(2)]

    def encoder(x: Any) -> Any:
        return transformer(x).mean(1)

    def encode(x: Any) -> Any:
        return encode_in_chunks(encoder, x, chunk_size=CHUNK) if kind == "in chunks" else encoder(x)

    return lambda count: pnce.info_nce(*(encode(x[:count]) for x in texts)).backward()


def measure(kind: str, rows: int) -> None:
    """Print the memory of a step above its inputs, and its time."""
    torch.set_num_threads(1)
    step = step_of(kind, rows)
    step(16)  # one-time loading and allocation
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    step(rows)
    seconds = time.perf_counter() - start
    held = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / unit
    print(f"{kind:14} {rows:6} rows: {held:6.0f} MiB, {seconds:5.1f} s", flush=True)


def main() -> None:
    """Measure each in a separate process."""
    if sys.argv[1:]:
        measure(sys.argv[1], int(sys.argv[2]))
        return
    for rows in (512, 1024):
        for kind in ("whole", "in chunks"):
            subprocess.run([sys.executable, __file__, kind, str(rows)], check=True)  # noqa: S603  (this script)


if __name__ == "__main__":
    main()
