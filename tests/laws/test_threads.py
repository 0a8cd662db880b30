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

warnings.simplefilter("error")
sys.setswitchinterval(1e-6)
library, when, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3])
THREADS = 8

import numpy as np

if library == "torch":
    import torch
    torch.set_num_threads(1)
    def array(x):
        return torch.asarray(x.copy())
    def plain(x):
        return x.detach().numpy()
elif library == "numpy":
    def array(x):
        return x.copy()
    def plain(x):
        return x
else:
    import array_api_strict
    def array(x):
        return array_api_strict.asarray(x.copy())
    def plain(x):
        return np.asarray(x)

if when != "at the first import":
    import portable_nce as pnce
if when == "after the first call":
    pnce.grad(pnce.bounds.info_nce)(array(np.eye(3)))


def jobs(pnce, number):
    # The same for all threads, on numbers of their own.
    def normal(seed, *shape):
        return array(np.random.default_rng([number, seed]).normal(size=shape))

    def integers(seed, most, *shape):
        return array(np.random.default_rng([number, seed]).integers(0, most, size=shape))

    # Products in line, in blocks and of both sides; masks; labels; terms of pairs; triples; memories; scores alone.
    def clustered(x, c):
        return pnce.proto_nce(x, c, members, array(np.full(4, 0.3)), key=x * 2.0, block_size=5)

    def slope(x, y):  # a derivative of second order
        found = pnce.grad(lambda a: pnce.info_nce(a, y, block_size=7))(x)
        return found.__array_namespace__().sum(found * found)

    mask, labels, few, members = normal(25, 40, 40) > -0.5, integers(9, 5, 45), integers(15, 3, 16), integers(1, 4, 33)
    return [
        (pnce.info_nce, normal(1, 64, 8), normal(2, 64, 8)),
        (lambda x, y: pnce.info_nce(x, y, similarity="dot", temperature=0.1), normal(23, 64, 8), normal(24, 64, 8)),
        (lambda x, y: pnce.nt_xent(x, y, similarity="dot", block_size=16), normal(3, 30, 5), normal(4, 30, 5)),
        (lambda x, y: pnce.clip(x, y, logit_scale=array(np.asarray(7.0))), normal(5, 50, 3), normal(6, 50, 3)),
        (lambda x, y: pnce.info_nce(x, y, mask=mask, symmetric=True), normal(7, 40, 6), normal(8, 40, 6)),
        (lambda x: pnce.supcon(x, labels, block_size=8), normal(10, 45, 4)),
        (lambda x, y: pnce.siglip(x, y, logit_scale=3.0, logit_bias=-2.0), normal(11, 25, 6), normal(12, 25, 6)),
        (lambda x, y: pnce.relic(x, y, symmetric=True, block_size=6), normal(13, 20, 4), normal(14, 20, 4)),
        (lambda x: pnce.triplet_from_labels(x, few), normal(16, 16, 3)),
        (clustered, normal(17, 33, 4), normal(18, 4, 4)),
        (lambda g: pnce.from_scores.dclw(g, temperature=0.3), normal(19, 12, 15)),
        (lambda g: pnce.bounds.mine(g)[0], normal(20, 14, 14)),
        # On torch it is computed in forward mode, which torch has once for all threads.
        *([] if library == "torch" else [(slope, normal(21, 18, 3), normal(22, 18, 3))]),
    ]


def run(pnce, job):
    function, *arrays = job
    value, gradients = pnce.value_and_grad(function, argnums=tuple(range(len(arrays))))(*arrays)
    return [plain(x).tobytes().hex() for x in (value, *gradients)]


errors, results = [], {}
together = threading.Barrier(THREADS + (when == "while backends are registered"))
done = threading.Event()


def work(number):
    try:
        together.wait()
        import portable_nce as own
        table = jobs(own, number)
        for k in range(len(table)):
            # Every second thread does the same as the others of these, at the same time.
            k = (k + (number * 5 if number % 2 else 0)) % len(table)
            results[number, k] = [run(own, table[k]) for _ in range(repeats)]
    except BaseException as error:
        errors.append(f"thread {number}: {error!r}")
        together.abort()


def register():
    try:
        from portable_nce._core import registry as _registry
        module = {"array_api_strict": "array_api_strict"}.get(library, library)
        own = _registry.load_backend(module)
        together.wait()
        turn = 0
        while not done.is_set():
            pnce.register_backend(("json", "csv", "ast", "dis", "bz2")[turn % 5])
            pnce.register_backend(module, own)  # which empties what was remembered of all types
            assert library in pnce.backends_available()
            turn += 1
    except BaseException as error:
        errors.append(f"registering: {error!r}")
        together.abort()


threads = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
if when == "while backends are registered":
    other = threading.Thread(target=register)
    other.start()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
done.set()
if when == "while backends are registered":
    other.join()

import portable_nce

different = []
for number in range(THREADS):
    for k, job in enumerate(jobs(portable_nce, number)):
        alone = run(portable_nce, job)
        if any(found != alone for found in results.get((number, k), [])):
            different.append([number, k])
print(json.dumps({"errors": errors, "results": len(results), "different": different}))
"""
"""Takes a library, when the threads come, and how often each computes each loss."""

LEVELS = r"""
import json, sys, threading
import numpy as np
import portable_nce as pnce

sys.setswitchinterval(1e-6)
levels, together = [], threading.Barrier(8)


def work():
    together.wait()
    for _ in range(300):
        pnce.grad(lambda x: levels.append(x.level) or (x * x).sum())(np.ones(2))


threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([len(levels), len(set(levels))]))
"""

COMPILING = r"""
import json, sys, threading, warnings

warnings.simplefilter("ignore")
import torch
import portable_nce as pnce

x, y = torch.ones(2, 6, 3).unbind()
loss = pnce.value_and_grad(pnce.info_nce, argnums=(0, 1))
loss(x, y)
errors, stop, started = [], threading.Event(), threading.Event()


def work():
    while not stop.is_set() and not errors:
        try:
            loss(x, y)
        except Exception as error:
            errors.append(repr(error))
        started.set()


thread = threading.Thread(target=work)
thread.start()
started.wait()
torch.compile(lambda a: sum(torch.sin(a * k).sum() for k in range(100)), backend="eager")(x)
stop.set()
thread.join()
print(json.dumps(errors))
"""


def run(script: str, *arguments: str) -> Any:
    """Run a script in a process of its own, and read the JSON that it prints."""
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
    found = run(SCRIPT, library, when, str(repeats))
    assert found["errors"] == []
    assert found["results"] == 8 * (12 if library == "torch" else 13)
    assert found["different"] == []


def test_no_two_differentiations_have_a_level_in_common() -> None:
    """What one thread differentiates is a constant to no other."""
    total, distinct = run(LEVELS)
    assert (total, distinct) == (2400, 2400)


def test_another_thread_may_compile() -> None:
    """Whatever another thread compiles, here nothing is compiled."""
    assert run(COMPILING) == []
