"""Kernels that inductor writes for CUDA for the steps of uncompiled losses (`fuse_steps`), counted without a device.

The losses of benchmarks/launches.py run on PyTorch's `meta` device. The arguments of their steps become fake CUDA
tensors, for which inductor writes Triton code. Counted are the bytes of tiles that each kernel between the products
reads and writes, per score; what a kernel reads in a second loop is counted once, since it comes from the cache.

`python benchmarks/fused_kernels.py "clip, cosine" --dtype bfloat16` prints JSON; `--code FOLDER` keeps the code,
`--capability 8.0` writes it for another card. A process of its own: parts of `torch.cuda` are replaced. Needs torch
2.11 or newer, also without CUDA, and Triton. A card may differ a little: passes that measure on it are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import re
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch

MULTIPROCESSORS: Final = {"7.5": 40, "8.0": 108, "8.6": 84, "8.9": 142, "9.0": 132, "10.0": 148, "12.0": 170}
"""Number of multiprocessors by compute capability: T4, A100, RTX 3090, L40, H100 and H200, B200, RTX 5090."""

os.environ |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}

_CUDA, _META = 1, 14
"""Numbers of kinds of devices in PyTorch."""


def pretend(capability: str) -> None:
    """Replace what PyTorch, inductor and Triton ask of a card in this process."""
    target: Any = importlib.import_module("triton.backends.compiler").GPUTarget
    driver: Any = importlib.import_module("triton.runtime.driver").driver
    major, minor = map(int, capability.split("."))
    count, shared = MULTIPROCESSORS[capability], 232448
    properties = types.SimpleNamespace(
        name="none",
        uuid="0",
        gcnArchName="",
        major=major,
        minor=minor,
        multi_processor_count=count,
        total_memory=80 << 30,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=shared,
        shared_memory_per_multiprocessor=shared + 1024,
        L2_cache_size=50 << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
        clock_rate=1700000,
        memory_clock_rate=2600000,
        memory_bus_width=5120,
    )
    answers = {
        "is_available": True,
        "is_initialized": True,
        "is_current_stream_capturing": False,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_capability": (major, minor),
        "get_device_name": "none",
        "current_stream": types.SimpleNamespace(cuda_stream=0, device_index=0, stream_id=0, device_type=1),
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }
    cuda: Any = torch.cuda
    for name, answer in answers.items():
        setattr(cuda, name, _saying(answer))
    for name in ("_lazy_init", "set_device", "synchronize", "set_rng_state"):
        setattr(cuda, name, _saying(None))
    cuda.get_rng_state = lambda *_, **__: torch.zeros(16, dtype=torch.uint8)
    for name in ("device", "_device"):
        setattr(cuda, name, _Chosen)
    graphs: Any = importlib.import_module("torch.cuda.graphs")
    for name in ("is_current_stream_capturing", "_cuda_isCurrentStreamCapturing"):
        setattr(graphs, name, _saying(answer=False))
    for name in ("_cuda_getCurrentRawStream", "_cuda_getDevice", "_accelerator_getDeviceIndex"):
        setattr(torch._C, name, _saying(0))  # noqa: SLF001  (public nowhere)
    torch.accelerator.is_available = _saying(answer=False)
    torch.accelerator.current_accelerator = _saying(None)
    torch.version.cuda = torch.version.cuda or "13.0"
    _guard_devices()
    # Imported now, since inductor keeps some of these functions. The passes that are left out measure, or make tensors.
    setattr(importlib.import_module("torch._subclasses.fake_tensor"), "init_gpu_context", _saying(None))  # noqa: B010
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.compile_threads, inductor.joint_graph_constant_folding = 1, False
    for name, function in (("fuse_attention", "_sfdp_init"), ("joint_graph", "lazy_init"), ("pad_mm", "_pad_mm_init")):
        setattr(importlib.import_module(f"torch._inductor.fx_passes.{name}"), function, _saying(None))
    utils = types.SimpleNamespace(
        get_device_properties=_saying({"max_shared_mem": shared, "multiprocessor_count": count, "warpSize": 32})
    )
    driver.set_active(
        types.SimpleNamespace(
            get_current_target=lambda: target("cuda", 10 * major + minor, 32),
            get_current_device=_saying(0),
            get_current_stream=_saying(0),
            get_active_torch_device=lambda: torch.device("cuda", 0),
            get_device_interface=lambda: cuda,
            get_benchmarker=_saying(None),
            map_python_to_cpp_type=_saying("int"),
            launcher_cls=None,
            utils=utils,
        )
    )


def _saying(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


class _Chosen(contextlib.nullcontext[Any]):
    """Context of a device."""


def _guard_devices() -> None:
    """Let operations on fake CUDA tensors choose their device: a build for processors alone has no guard of it."""
    torch._C._ensureCUDADeviceGuardSet()  # noqa: SLF001
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    guards = (ctypes.c_void_p * (_META + 1)).in_dll(ctypes.CDLL(str(library)), _REGISTRY)
    if not guards[_CUDA]:
        guards[_CUDA] = guards[_META]  # which does nothing


_REGISTRY: Final = "_ZN3c104impl26device_guard_impl_registryE"


class WrittenError(Exception):
    """The code of a step is written."""


def steps_of(name: str, dtype: str) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Record the steps of one call of a loss on `meta`, each with the arguments of its first call."""
    import launches  # noqa: PLC0415  (loads inductor)

    import portable_nce as pnce  # noqa: PLC0415
    from portable_nce._core.registry import adapter_of  # noqa: PLC0415
    from portable_nce.backends import torch_fused  # noqa: PLC0415

    found: dict[Any, tuple[Callable[..., Any], tuple[Any, ...]]] = {}

    def recorded(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            found.setdefault(step, (step, arguments))
            return step(*arguments)

        return run

    adapter = adapter_of(torch.zeros(1))
    with (
        mock.patch.object(adapter, "fused_devices", {"meta"}),
        mock.patch.object(torch_fused, "obstacle_to_compiling", _saying(None)),
        mock.patch.object(torch_fused, "compiled_step", recorded),
    ):
        pnce.fuse_steps()
        launches.launches(name, dtype, launches.LOSSES[name].rows, launches.LARGE[1])
        pnce.fuse_steps(enabled=False)
    return list(found.values())


def kernels_of(name: str, dtype: str, folder: Path | None = None) -> list[float]:
    """Bytes per score that each kernel of the steps of a loss reads and writes; none for products."""
    from torch._inductor.graph import GraphLowering  # noqa: PLC0415
    from torch._subclasses import FakeTensorMode  # noqa: PLC0415
    from torch.utils._pytree import tree_map  # noqa: PLC0415

    from portable_nce.backends.torch_fused import compiled_step  # noqa: PLC0415

    kernels: list[float] = []

    def count(graph: Any) -> None:
        code = graph.codegen()
        code = code[0] if isinstance(code, tuple) else code
        text = str(getattr(code, "value", code))
        if folder is not None:
            (folder / f"{name.replace(', ', '_')}_{dtype}_{len(kernels)}.py").write_text(text, encoding="utf-8")
        kernels.extend(_traffic(graph, text))
        raise WrittenError

    for step, arguments in steps_of(name, dtype):
        torch._dynamo.reset()  # noqa: SLF001  (public nowhere)
        on_cuda = tree_map(_as_on_cuda(FakeTensorMode(allow_non_fake_inputs=True)), arguments)
        with (
            mock.patch.object(GraphLowering, "compile_to_module", count),
            warnings.catch_warnings(action="ignore", category=UserWarning),  # the step is not compiled
            contextlib.suppress(NotImplementedError, RuntimeError),  # nor can it run
        ):
            compiled_step(step)(*on_cuda)
    if not kernels:
        raise RuntimeError("expected kernels, got none")
    return kernels


def _as_on_cuda(fake: Any) -> Callable[[Any], Any]:
    def converted(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        with fake:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")

    return converted


def _traffic(graph: Any, code: str) -> Iterator[float]:
    """Bytes per score of tiles that each kernel in the code of a graph reads and writes."""
    sources = dict(re.findall(r"(triton_\w+) = async_compile\.triton\('\w+', '''(.*?)'''", code, re.DOTALL))
    calls = re.findall(r"(triton_\w+)\.run\(([^\n]*?), stream=", code)
    entries = {x: _entries(graph, x) for _, given in calls for x in re.findall(r"\w+", given)}
    scores = max(_entries(graph, out) for out in re.findall(r"extern_kernels\.\w+\([^\n]*out=(\w+)\)", code))
    for kernel, given in calls:
        (parameters,) = re.findall(rf"def {kernel}\(([^)]*)\)", sources[kernel])
        names = [x.split(":")[0].strip() for x in parameters.split(",")]
        moved = 0
        for parameter, argument in zip(names, given.split(", "), strict=False):
            if entries.get(argument, 0) >= scores:
                ways = sum(f"tl.{way}({parameter} + " in sources[kernel] for way in ("load", "store"))
                moved += ways * int(graph.get_dtype(argument).itemsize)
        if moved:
            yield float(moved)


def _entries(graph: Any, name: str) -> int:
    """Number of entries of a buffer; 0 for other arguments."""
    if name not in graph.graph_inputs and graph.try_get_buffer(name) is None:
        return 0
    try:
        return int(graph.sizevars.optimization_hint(graph.get_numel(name)))
    except (NotImplementedError, AttributeError, KeyError):
        return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("losses", nargs="*", metavar="LOSS", help="losses of `FUSED` in launches.py; all by default")
    parser.add_argument("--dtype", action="append", help="dtype of the embeddings; both of launches.py by default")
    parser.add_argument("--capability", choices=MULTIPROCESSORS, default="9.0", help="compute capability of the card")
    parser.add_argument("--code", type=Path, help="folder for the code")
    options = parser.parse_args(arguments)
    pretend(options.capability)
    import launches  # noqa: PLC0415  (loads inductor)

    if options.code is not None:
        options.code.mkdir(parents=True, exist_ok=True)
    for name in options.losses or launches.FUSED:
        for dtype in options.dtype or launches.COMPILED_DTYPES:
            print(json.dumps({f"{name}, {dtype}": kernels_of(name, dtype, options.code)}), flush=True)


if __name__ == "__main__":
    main()
