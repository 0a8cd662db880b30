"""Many threads at once, from the first import on: results equal those of a single thread bit by bit.

Each test runs in a new process, so that the package, its adapters and their caches are fresh when the threads start.
This file is the program: it takes the name of a function and its arguments, and imports nothing before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import pytest

THREADS = 8


def table(library: str) -> list[tuple[str, int, dict[str, Any]]]:
    """Calls of all code paths: products, blocks, two-sided sweeps, masks, labels, pairs, triples, memories, scores.

    Every other one on array-api-strict, which shares NumPy's tape, and takes several times as long.
    """
    calls: list[tuple[str, int, dict[str, Any]]] = [
        ("info_nce", 64, {"block_size": None}),
        ("info_nce dot", 64, {}),
        ("nt_xent", 30, {"similarity": "dot", "block_size": 16}),
        ("clip", 50, {}),
        ("info_nce symmetric", 40, {"mask": np.random.default_rng(25).normal(size=(40, 40)) > -0.5}),
        ("supcon", 45, {"block_size": 8}),
        ("siglip", 25, {}),
        ("relic symmetric", 20, {"block_size": 6}),
        ("triplet_from_labels", 16, {}),
        ("proto_nce key", 33, {"block_size": 5}),
        ("from_scores.dclw", 15, {}),
        ("bounds.mine", 14, {}),
        # Uses forward mode on torch, whose level is shared by all threads.
        *([] if library == "torch" else [("second order", 18, {"block_size": 7})]),
    ]
    return calls[::2] if library == "array_api_strict" else calls


def computed(xp: Any, number: int, name: str, rows: int, options: dict[str, Any]) -> list[str]:
    """Value and gradients of a loss on numbers of the thread; all threads import at once."""
    import portable_nce as pnce
    from portable_nce.testing.cases import example

    def array(numbers: Any) -> Any:
        return xp.asarray(np.array(numbers))

    def normal(shape: tuple[int, ...], place: int) -> Any:
        return np.random.default_rng([number, place]).normal(size=shape).tolist()

    def slope(x: Any, y: Any) -> Any:
        found = pnce.grad(lambda a: pnce.info_nce(a, y, **options))(x)
        return found.__array_namespace__().sum(found * found)

    options = {key: array(value) if key == "mask" else value for key, value in options.items()}
    function: Callable[..., Any]
    if name == "second order":
        function, arrays = slope, [array(normal((rows, 3), place)) for place in (1, 2)]
    elif name == "bounds.mine":
        function, arrays = lambda scores: pnce.bounds.mine(scores)[0], [array(normal((rows, rows), 1))]
    else:
        case = example(name, rows, fill=normal)
        names, arrays = [*case.arguments], [*map(array, case.arguments.values())]
        fixed = {key: array(value) for key, value in case.constants.items()}
        call = case.bound(**options)
        function = lambda *given: call({**dict(zip(names, given, strict=True)), **fixed})  # noqa: E731
    value, gradients = pnce.value_and_grad(function, argnums=tuple(range(len(arrays))))(*arrays)
    return [np.asarray(x.detach() if hasattr(x, "detach") else x).tobytes().hex() for x in (value, *gradients)]


def differences(library: str, when: str, repeats: str) -> list[Any]:
    """Compute each loss repeatedly in each thread, and return the results that differ from a single thread's."""
    warnings.simplefilter("error")
    xp, losses = import_module(library), table(library)
    if library == "torch":
        xp.set_num_threads(1)
    pnce: Any = None if when == "at the first import" else import_module("portable_nce")
    if when == "after the first call":
        pnce.grad(pnce.bounds.info_nce)(xp.asarray(np.eye(3)))
    registering = when == "while backends are registered"
    results, done, together = {}, threading.Event(), threading.Barrier(THREADS + registering, timeout=100)

    def work(number: int) -> None:
        together.wait()
        import portable_nce  # noqa: F401  (all threads at once)

        for turn in range(len(losses)):
            # Every second thread computes the same losses at the same time.
            k = (turn + (number * 5 if number % 2 else 0)) % len(losses)
            results[number, k] = [computed(xp, number, *losses[k]) for _ in range(int(repeats))]

    def register() -> None:
        from portable_nce._core import registry

        own, turn = registry.load_backend(library), 0
        together.wait()
        while not done.is_set():
            pnce.register_backend(("json", "csv", "ast", "dis", "bz2")[turn % 5])
            pnce.register_backend(library, own)  # clears the caches of types
            assert library in pnce.backends_available()
            turn += 1

    with ThreadPoolExecutor(THREADS + registering) as pool:
        other = pool.submit(register) if registering else None
        try:
            list(pool.map(work, range(THREADS)))
        finally:
            done.set()
    if other is not None:
        other.result()
    alone = {(number, k): computed(xp, number, *losses[k]) for number, k in results}
    assert len(alone) == THREADS * len(losses)
    return [key for key in alone if any(found != alone[key] for found in results[key])]


def levels() -> list[int]:
    """Number of differentiations of some threads, and of their levels."""
    import portable_nce as pnce

    found: list[int] = []
    together = threading.Barrier(THREADS, timeout=100)

    def function(x: Any) -> Any:
        found.append(x.level)
        return (x * x).sum()

    def work(_: int) -> None:
        together.wait()
        for _ in range(300):
            pnce.grad(function)(np.ones(2))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    return [len(found), len(set(found))]


def compiling() -> None:
    """Compute in one thread while another compiles."""
    import torch

    import portable_nce as pnce

    x, y = torch.ones(2, 6, 3).unbind()
    loss = pnce.value_and_grad(pnce.info_nce, argnums=(0, 1))
    loss(x, y)
    stop, started = threading.Event(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            started.set()
            loss(x, y)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(work)
        started.wait()
        torch.compile(lambda a: sum(torch.sin(a * k).sum() for k in range(100)), backend="eager")(x)
        stop.set()
    other.result()


def in_a_process(*arguments: str) -> Any:
    """Call a function of this file in a new process, which must not fail."""
    command = [sys.executable, "-P", __file__, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
@pytest.mark.parametrize(
    "when", ["at the first import", "at the first call", "after the first call", "while backends are registered"]
)
def test_threads_compute_what_one_computes(library: str, when: str) -> None:
    """Eight threads with all losses, in equal and different orders, that switch as often as possible."""
    repeats = 1 if when.startswith("at") else {"numpy": 8, "torch": 2}.get(library, 1)
    assert in_a_process("differences", library, when, str(repeats)) == []


def test_no_two_differentiations_have_a_level_in_common() -> None:
    """Each has its own level, so that no variable of one thread is a constant in another."""
    assert in_a_process("levels") == [2400, 2400]


def test_another_thread_may_compile() -> None:
    """Compiling in another thread does not affect this one."""
    assert in_a_process("compiling") is None


if __name__ == "__main__":
    sys.setswitchinterval(1e-6)
    called, *given = sys.argv[1:]
    sys.stdout.write(json.dumps(globals()[called](*given)))
