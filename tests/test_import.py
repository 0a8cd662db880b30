"""What `import portable_nce` brings along, and what it costs, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

FORBIDDEN = {
    "cupy",
    "dask",
    "jax",
    "matplotlib",
    "mparray",
    "mpmath",
    "numpy",
    "scipy",
    "sklearn",
    "torch",
    "tqdm",
    "array_api_strict",
    "portable_nce.testing",
    "portable_nce._cli",
    "portable_nce.backends.torch",
    "portable_nce.backends.jax",
    "portable_nce.backends.cupy",
    "portable_nce.backends.numpy",
    "portable_nce.backends.generic",
    "portable_nce.backends.tape",
}

LIMIT_MS = 15.0
ATTEMPTS = 30


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Give a function that runs code in a new interpreter and reads the JSON that it prints."""
    # Compiled code is kept, as in any installation, and coverage is not measured: both would be part of the time.
    unwanted = ("COVERAGE_", "PYTHONDONTWRITEBYTECODE")
    env = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path_factory.mktemp("pycache"))

    def result(code: str) -> Any:
        process = subprocess.run(
            [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=True
        )
        return json.loads(process.stdout)

    return result


def test_importing_the_package_imports_no_framework(run: Callable[[str], Any]) -> None:
    before = set(run("import json, sys; print(json.dumps(list(sys.modules)))"))
    after = set(run("import json, sys, portable_nce; print(json.dumps(list(sys.modules)))"))
    assert "portable_nce" in after
    # What a start-up file of the environment imported before is not ours.
    assert (after - before) & FORBIDDEN == set()


TIMED = """
import json
from time import process_time
import array_api_compat
start = process_time()  # what other processes do is no cost of ours
import portable_nce
print(json.dumps(process_time() - start))
"""


def test_importing_the_package_costs_little_beside_array_api_compat(run: Callable[[str], Any]) -> None:
    run(TIMED)  # compiles
    costs: list[float] = []
    # Noise only adds: the least of several runs is the cost, and one run within the limit shows enough.
    while len(costs) < ATTEMPTS and min(costs, default=LIMIT_MS + 1) > LIMIT_MS:
        costs.append(1e3 * run(TIMED))
    assert min(costs) <= LIMIT_MS, f"expected at most {LIMIT_MS} ms, got {sorted(costs)}"


RATIO = """
import json
from time import process_time
start = process_time()
import numpy
numpy_too = process_time() - start
import array_api_compat
start = process_time()
import portable_nce
print(json.dumps((process_time() - start) / numpy_too))
"""
PART = 0.3


def test_importing_the_package_costs_a_small_part_of_importing_numpy(run: Callable[[str], Any]) -> None:
    run(RATIO)  # compiles
    parts: list[float] = []
    while len(parts) < ATTEMPTS and min(parts, default=PART + 1) > PART:
        parts.append(run(RATIO))
    assert min(parts) <= PART, f"expected at most {PART}, got {sorted(parts)}"


@pytest.mark.parametrize("name", ["__version__", "__all__"])
def test_the_package_has(run: Callable[[str], Any], name: str) -> None:
    assert run(f"import json, portable_nce; print(json.dumps(bool(portable_nce.{name})))")


def test_everything_announced_is_there(run: Callable[[str], Any]) -> None:
    code = "import json, portable_nce as p; print(json.dumps([n for n in p.__all__ if not hasattr(p, n)]))"
    assert run(code) == []
