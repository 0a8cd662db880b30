"""Many threads at once, from the first import on: every number is, bit by bit, what one thread alone computes.

Each test is a process of its own, so that the package, its adapters and their caches are new when the threads come.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = r"""
import json, sys, threading, warnings
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

warnings.simplefilter("error")
sys.setswitchinterval(1e-6)
library, when, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3])
THREADS = 8

import numpy as np

xp = import_module(library)
if library == "torch":
    xp.set_num_threads(1)


def array(numbers):
    return xp.asarray(np.array(numbers))


if when != "at the first import":
    import portable_nce as pnce
if when == "after the first call":
    pnce.grad(pnce.bounds.info_nce)(array(np.eye(3)))

# Products in line, in blocks and of both sides; masks; labels; terms of pairs; triples; memories; scores alone.
TABLE = [
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
    # On torch it is computed in forward mode, which torch has once for all threads.
    *([] if library == "torch" else [("second order", 18, {"block_size": 7})]),
]


def run(number, name, rows, options):
    # The same for all threads, on numbers of their own; what is imported first is imported by all of them.
    import portable_nce as pnce
    from portable_nce.testing.cases import example

    def normal(shape, place):
        return np.random.default_rng([number, place]).normal(size=shape).tolist()

    def slope(x, y):
        found = pnce.grad(lambda a: pnce.info_nce(a, y, **options))(x)
        return found.__array_namespace__().sum(found * found)

    options = {key: array(value) if key == "mask" else value for key, value in options.items()}
    if name == "second order":
        function, arrays = slope, [array(normal((rows, 3), place)) for place in (1, 2)]
    elif name == "bounds.mine":
        function, arrays = lambda scores: pnce.bounds.mine(scores)[0], [array(normal((rows, rows), 1))]
    else:
        case = example(name, rows, fill=normal)
        names, arrays = [*case.arguments], [*map(array, case.arguments.values())]
        fixed = {key: array(value) for key, value in case.constants.items()}
        call = case.bound(**options)
        function = lambda *given: call({**dict(zip(names, given)), **fixed})
    value, gradients = pnce.value_and_grad(function, argnums=tuple(range(len(arrays))))(*arrays)
    return [np.asarray(x.detach() if library == "torch" else x).tobytes().hex() for x in (value, *gradients)]


results, done = {}, threading.Event()
registering = when == "while backends are registered"
together = threading.Barrier(THREADS + registering, timeout=100)


def work(number):
    together.wait()
    import portable_nce
    for k in range(len(TABLE)):
        # Every second thread does the same as the others of these, at the same time.
        k = (k + (number * 5 if number % 2 else 0)) % len(TABLE)
        results[number, k] = [run(number, *TABLE[k]) for _ in range(repeats)]


def register():
    from portable_nce._core import registry
    own = registry.load_backend(library)
    together.wait()
    turn = 0
    while not done.is_set():
        pnce.register_backend(("json", "csv", "ast", "dis", "bz2")[turn % 5])
        pnce.register_backend(library, own)  # which empties what was remembered of all types
        assert library in pnce.backends_available()
        turn += 1


with ThreadPoolExecutor(THREADS + registering) as pool:
    other = pool.submit(register if registering else int)
    try:
        list(pool.map(work, range(THREADS)))
    finally:
        done.set()
other.result()

alone = {(number, k): run(number, *TABLE[k]) for number in range(THREADS) for k in range(len(TABLE))}
print(json.dumps([key for key in alone if any(found != alone[key] for found in results[key])]))
"""
"""Takes a library, when the threads come, and how often each computes each loss; tells which numbers differ."""

LEVELS = r"""
import json, sys, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import portable_nce as pnce

sys.setswitchinterval(1e-6)
levels, together = [], threading.Barrier(8, timeout=100)


def work(_):
    together.wait()
    for _ in range(300):
        pnce.grad(lambda x: levels.append(x.level) or (x * x).sum())(np.ones(2))


with ThreadPoolExecutor(8) as pool:
    list(pool.map(work, range(8)))
print(json.dumps([len(levels), len(set(levels))]))
"""

COMPILING = r"""
import threading, warnings
from concurrent.futures import ThreadPoolExecutor

warnings.simplefilter("ignore")
import torch
import portable_nce as pnce

x, y = torch.ones(2, 6, 3).unbind()
loss = pnce.value_and_grad(pnce.info_nce, argnums=(0, 1))
loss(x, y)
stop, started = threading.Event(), threading.Event()


def work():
    while not stop.is_set():
        started.set()
        loss(x, y)


with ThreadPoolExecutor(1) as pool:
    other = pool.submit(work)
    started.wait()
    torch.compile(lambda a: sum(torch.sin(a * k).sum() for k in range(100)), backend="eager")(x)
    stop.set()
other.result()
print("[]")
"""


def run(script: str, *arguments: str) -> Any:
    """Run a script in a process of its own, which must not fail, and read the JSON that it prints."""
    command = [sys.executable, "-P", "-c", script, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
@pytest.mark.parametrize(
    "when", ["at the first import", "at the first call", "after the first call", "while backends are registered"]
)
def test_threads_compute_what_one_computes(library: str, when: str) -> None:
    """Eight threads with all losses, in the same order and in others, that change places as often as they can."""
    repeats = 1 if when.startswith("at") else {"numpy": 8, "torch": 3}.get(library, 1)
    assert run(SCRIPT, library, when, str(repeats)) == []


def test_no_two_differentiations_have_a_level_in_common() -> None:
    """What one thread differentiates is a constant to no other."""
    assert run(LEVELS) == [2400, 2400]


def test_another_thread_may_compile() -> None:
    """Whatever another thread compiles, here nothing is compiled."""
    assert run(COMPILING) == []
