"""Checks of a GPU beside its speed, each in a process of its own: the stages of benchmarks/gpu.py.

`smoke`: a call with gradients of each loss and regime, against NumPy in float64. `fused`: steps compiled by
`fuse_steps`: seconds of the first call, later calls, launches and memory, and how far values and gradients are from
those of uncompiled calls. `conformance`: the conformance suite, also with compiled steps. `ranks`: its tests of ranks,
as processes that share the card. `extras`: waits for the device, autocast, memory kept, and errors at 8192 rows.

Each writes a line of JSON for each result as it comes, so that a stage that is stopped keeps those it has.
"""

from __future__ import annotations

import gc
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from contestants import LINEAR

STAGES: Final = ("smoke", "speed", "fused", "ranks", "conformance", "extras")
"""Stages in the order in which they run."""
SHARES: Final = {"smoke": 0.2, "speed": 0.55, "fused": 1.0, "ranks": 0.25, "conformance": 0.7, "extras": 1.0}
"""Share of the time that is left, for those that run."""
VARIANTS: Final = {"torch": "torch-cuda", "jax": "jax-cuda", "cupy": "cupy"}
DRY_VARIANTS: Final = {"torch": "torch", "jax": "jax-x64", "cupy": "cupy"}
FUSED: Final = "portable_nce.testing.variants:FUSED_CUDA"
LIMITS: Final = {"float32": 2e-5, "float64": 1e-13}
"""Largest error of smoke tests, relative to the largest entry."""
FUSED_CALLS: Final = (
    *((loss, 32768, 512, "bfloat16") for loss in ("info_nce", "clip", "supcon", "nt_xent", "siglip")),
    *((loss, 8192, 128, "float32") for loss in ("info_nce", "clip", "supcon", "nt_xent")),
    (LINEAR, 8192, 768, "bfloat16"),
)
"""Losses whose compiled steps are measured; a distance follows."""

Result = dict[str, Any]


def results_of(stage: str, library: str, end: float, *, dry: bool) -> Iterator[Result]:
    """Run a stage in this process."""
    if stage == "smoke":
        yield from _smoke(library, end, dry=dry)
    elif stage == "fused":
        yield from _fused(end, dry=dry)
    elif stage == "extras":
        yield from _extras(end, dry=dry)
    else:
        yield from _suite(stage, library, end, dry=dry)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


# ---------------------------------------------------------------------------------------------------------------- smoke


def _smoke(library: str, end: float, *, dry: bool) -> Iterator[Result]:
    """Compare a call of each loss and regime with NumPy's in float64; a dry run takes five."""
    from portable_nce.testing.cases import CASES  # noqa: PLC0415  (a process imports only what it needs)
    from portable_nce.testing.variants import started  # noqa: PLC0415

    own, exact = started((DRY_VARIANTS if dry else VARIANTS)[library]), started("numpy")
    first = {(case.loss, case.regime): case for case in reversed(CASES)}
    chosen = sorted(first.values(), key=lambda case: case.regime != "normal")[: 5 if dry else None]
    for dtype, limit in LIMITS.items():
        for case in chosen if dtype in own.dtypes else ():
            if time.time() > end:
                return
            found: Result = {"case": case.name, "regime": case.regime, "dtype": dtype}
            try:
                pairs = zip(_numbers(own, case, dtype), _numbers(exact, case, "float64"), strict=True)
                found["error"] = max(_error_of(a, b) for a, b in pairs)
                found["right"] = found["error"] <= limit
            except Exception as error:  # noqa: BLE001  (a result)
                found |= {"right": False, "raised": _brief(error)}
            yield found


def _numbers(variant: Any, case: Any, dtype: str) -> list[list[float]]:
    """Entries of the value of a case, and of each gradient."""
    from portable_nce.testing.variants import case_arrays, differentiate, flatten  # noqa: PLC0415

    value, gradients = differentiate(case.function, case_arrays(variant, case, dtype), len(case.arguments))
    return [flatten([variant.to_list(x)]) for x in (value, *gradients)]


def _error_of(found: Sequence[float], wanted: Sequence[float]) -> float:
    """Largest difference, relative to the largest finite entry; equal entries, also infinite and NaN, differ by 0."""
    scale = max((abs(x) for x in wanted if math.isfinite(x)), default=0.0) or 1.0
    differences = [
        0.0 if a == b or (math.isnan(a) and math.isnan(b)) else abs(a - b) / scale
        for a, b in zip(found, wanted, strict=True)
    ]
    return max(differences, default=0.0)


# ---------------------------------------------------------------------------------------------------------------- fused


def _fused(end: float, *, dry: bool) -> Iterator[Result]:
    """Measure compiled steps; a dry run compiles two losses for the CPU, without generating kernels."""
    import torch  # noqa: PLC0415
    from gpu import Item, on_torch, time_of_torch  # noqa: PLC0415

    import portable_nce as pnce  # noqa: PLC0415
    from portable_nce.testing.variants import started  # noqa: PLC0415

    cuda: Any = torch.cuda  # whose functions have no types
    device, wait = ("cpu", lambda: None) if dry else ("cuda", cuda.synchronize)
    calls = [(loss, 32, 8, p) for loss, _, _, p in FUSED_CALLS[5:7]] if dry else FUSED_CALLS
    with ExitStack() as stack:
        if dry:
            stack.enter_context(started("portable_nce.testing.variants:FUSED").active())
        for loss, rows, width, precision in calls:
            if time.time() > end:
                return
            item = Item(loss, rows, width, 65536 if loss == LINEAR else 0, precision, "portable_nce, fused steps")
            found: Result = {"loss": loss, "rows": rows, "width": width, "precision": precision}
            try:
                run = on_torch(item, device)
                pnce.fuse_steps(enabled=False)
                wanted = [x.float().clone() for x in run() if x is not None]
                pnce.fuse_steps(enabled=True)
                wait()
                begin = time.perf_counter()
                got = [x.float() for x in run() if x is not None]
                wait()
                found["first_call_s"] = round(time.perf_counter() - begin, 2)
                both = zip(got, wanted, strict=True)
                found["difference"] = max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in both)
                del got, wanted
                found |= time_of_torch(run, device)
            except Exception as error:  # noqa: BLE001
                found["raised"] = _brief(error)
            yield found
            gc.collect()


# ---------------------------------------------------------------------------------------------------------------- suite


def _suite(stage: str, library: str, end: float, *, dry: bool) -> Iterator[Result]:
    """Run the conformance suite, or its tests of ranks, by pytest; of compiled steps, a part."""
    runs = [((DRY_VARIANTS if dry else VARIANTS)[library], "not ranks" if library == "torch" else "")]
    if stage == "ranks":
        runs = [(runs[0][0], "ranks and temperatures_of_one_row" if dry else "ranks")]
    elif dry:
        runs = [(runs[0][0], "two_devices")]
    elif library == "torch":
        runs.append((FUSED, "test_case and (info_nce or clip or supcon or nt_xent or siglip)"))
    for variant, words in runs:
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "portable_nce.testing.plugin", "-n0"]
        command += ["--pyargs", "portable_nce.testing.suite", "--variant", variant, "-c", os.devnull]
        command += ["-k", words] * bool(words)
        yield {"variant": variant, "tests": words or "all", **_counts(command, end)}


def _counts(command: Sequence[str], end: float) -> Result:
    """Run pytest; numbers of tests by outcome, and the last lines, also if it is stopped."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(  # noqa: S603  (our own)
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            text, ended = process.communicate(timeout=max(end - time.time(), 1.0))[0], True
        except subprocess.TimeoutExpired:
            process.kill()
            text, ended = process.communicate()[0], False
    found = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|errors?|skipped)", text)}
    if not ended:
        found = {"passed": text.count("."), "failed": text.count("F")}
    failures = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR", "E  "))]
    return {**found, "ended": ended, "failures": failures[:30], "last": text.splitlines()[-1:]}


# --------------------------------------------------------------------------------------------------------------- extras


def _extras(end: float, *, dry: bool) -> Iterator[Result]:
    """Check what is special about a device, on PyTorch."""
    for check in (_waits, _autocast, _memory_kept, _errors):
        if time.time() > end:
            return
        try:
            yield {"check": check.__name__.strip("_"), **check(dry)}
        except Exception as error:  # noqa: BLE001
            yield {"check": check.__name__.strip("_"), "right": False, "raised": _brief(error)}


def _waits(dry: bool) -> Result:  # noqa: FBT001
    """Losses that wait for the device."""
    import torch  # noqa: PLC0415

    from portable_nce.testing.cases import CASES  # noqa: PLC0415
    from portable_nce.testing.variants import case_arrays, started  # noqa: PLC0415

    variant, waiting = started((DRY_VARIANTS if dry else VARIANTS)["torch"]), {}
    cases = {case.loss: case for case in reversed(CASES) if case.regime == "normal"}
    for case in [*cases.values()][: 3 if dry else None]:
        arrays = case_arrays(variant, case, "float32")
        given = [x.requires_grad_() if k < len(case.arguments) else x for k, x in enumerate(arrays)]
        set_mode: Callable[[str], None] = (lambda _: None) if dry else torch.cuda.set_sync_debug_mode
        set_mode("error")
        try:
            value = case.function(*given)
            if value.requires_grad:
                value.backward()
        except RuntimeError as error:
            waiting[case.loss] = _brief(error)
        finally:
            set_mode("default")
    return {"right": not waiting, "losses": waiting}


def _batch(dry: bool, dtype: Any) -> list[Any]:  # noqa: FBT001
    """Two views of a batch, that need gradients."""
    import torch  # noqa: PLC0415

    shape, device = ((64, 16), "cpu") if dry else ((8192, 128), "cuda")
    views = [torch.randn(shape, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    views[1] = views[0] + views[1]
    return [x.to(device=device, dtype=dtype).requires_grad_() for x in views]


def _losses() -> dict[str, Callable[..., Any]]:
    import torch  # noqa: PLC0415

    import portable_nce as pnce  # noqa: PLC0415

    return {
        "info_nce": lambda x, y: pnce.info_nce(x, y, temperature=0.1),
        "clip": lambda x, y: pnce.clip(x, y, logit_scale=10.0),
        "nt_xent": lambda x, y: pnce.nt_xent(x, y, temperature=0.1),
        "supcon": lambda x, _: pnce.supcon(x, torch.arange(len(x), device=x.device) // 8, temperature=0.1),
    }


def _autocast(dry: bool) -> Result:  # noqa: FBT001
    """Losses and gradients under autocast."""
    import torch  # noqa: PLC0415

    wrong = {}
    for name, loss in _losses().items():
        x, y = _batch(dry, torch.float32)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            value = loss(x, y)
        value.backward()
        if value.dtype != torch.float32 or x.grad is None or not bool(torch.isfinite(x.grad).all()):
            wrong[name] = str(value)
    return {"right": not wrong, "losses": wrong}


def _memory_kept(dry: bool) -> Result:  # noqa: FBT001
    """Bytes that calls keep on the device."""
    import torch  # noqa: PLC0415

    x, y = _batch(dry, torch.float32)
    cuda: Any = torch.cuda
    loss, used = _losses()["clip"], (lambda: 0) if dry else cuda.memory_allocated
    before = 0
    for call in range(8 if dry else 200):
        x.grad = y.grad = None
        loss(x, y).backward()
        before = used() if call == 4 else before  # noqa: PLR2004  (after the first calls, which record)
    return {"right": used() <= before, "bytes": used() - before}


def _errors(dry: bool) -> Result:  # noqa: FBT001
    """Errors of gradients, relative to the largest entry, against float64 on the device."""
    import torch  # noqa: PLC0415

    limits, found = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}, {}
    right = True
    for name, loss in _losses().items():
        for dtype, limit in limits.items():
            x, y = _batch(dry, dtype)
            wide = [z.detach().double().requires_grad_() for z in (x, y)]
            loss(x, y).backward()
            loss(*wide).backward()
            assert x.grad is not None  # noqa: S101
            assert wide[0].grad is not None  # noqa: S101
            error = float((x.grad.double() - wide[0].grad).abs().max() / wide[0].grad.abs().max())
            found[f"{name}, {str(dtype).removeprefix('torch.')}"] = float(f"{error:.1e}")
            right = right and error <= limit
    return {"right": right, "errors": found}


def main() -> None:
    """Run one stage; arguments: stage, library, end as seconds since the epoch, and whether it is dry."""
    stage, library, end, dry = sys.argv[1:5]
    if dry == "dry" and library == "cupy":  # NumPy behind CuPy's names
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
        import_module("cupy_stand_in").install()
    for found in results_of(stage, library, float(end), dry=dry == "dry"):
        print(json.dumps({"stage": stage, "library": library, **found}), flush=True)


if __name__ == "__main__":
    main()
