"""What `import portable_nce` imports, in processes of their own."""

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
    "mlx",
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
    "portable_nce.modules",
    "portable_nce.backends.torch",
    "portable_nce.backends.jax",
    "portable_nce.backends.cupy",
    "portable_nce.backends.mlx",
    "portable_nce.backends.mlx_namespace",
    "portable_nce.backends.numpy",
    "portable_nce.backends.generic",
    "portable_nce.backends.tape",
}

MOST_OWN = 60
MOST_OTHERS = 12
"""The most modules that an import may add: of the package, and of the standard library. NumPy adds some hundred."""


@pytest.fixture(scope="module")
def run() -> Callable[[str], Any]:
    """Give a function that runs code in a new interpreter and reads the JSON that it prints."""
    # Coverage is not measured: it would import modules of its own.
    env = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}

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


MODULES = """
import json, sys
import array_api_compat
before = set(sys.modules)
import portable_nce
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_importing_the_package_imports_few_modules_beside_array_api_compat(run: Callable[[str], Any]) -> None:
    """The number of modules stands for the time, which would depend on the machine and on its load."""
    names: list[str] = run(MODULES)
    own = [name for name in names if name.partition(".")[0] == "portable_nce"]
    others = [name for name in names if name not in own]
    assert len(own) <= MOST_OWN, own
    assert len(others) <= MOST_OTHERS, others
    assert {name.partition(".")[0] for name in others} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", ["__version__", "__all__"])
def test_the_package_has(run: Callable[[str], Any], name: str) -> None:
    assert run(f"import json, portable_nce; print(json.dumps(bool(portable_nce.{name})))")


def test_everything_announced_is_there(run: Callable[[str], Any]) -> None:
    code = "import json, portable_nce as p; print(json.dumps([n for n in p.__all__ if not hasattr(p, n)]))"
    assert run(code) == []


def test_the_first_call_of_a_process_may_be_compiled(run: Callable[[str], Any]) -> None:
    """What is found out once of a type of arrays is then found out while PyTorch traces."""
    code = """if True:
        import json
        import torch
        import portable_nce as pnce

        def loss(x, y):
            return pnce.info_nce(x, y, temperature=0.1) + pnce.bounds.js(x @ y.T)

        x, y = torch.eye(4), torch.ones(4, 4) - torch.eye(4)
        compiled = torch.compile(loss, fullgraph=True, backend="eager")(x, y)
        print(json.dumps([float(compiled), float(loss(x, y))]))
    """
    compiled, expected = run(code)
    assert compiled == pytest.approx(expected, rel=1e-6)
