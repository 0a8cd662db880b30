"""Imports of `import portable_nce`, in separate processes."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import portable_nce as pnce

from calls import mostly_full

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

MOST_OTHERS = 12
"""Largest number of modules of the standard library that a first loss may import. NumPy adds some hundred."""

USES = {"import": "", "a loss": "portable_nce.info_nce", "all names": "from portable_nce import *"}
"""Uses of the package before the first array."""


@pytest.fixture(scope="module")
def run() -> Callable[[str], Any]:
    """Function that runs code in a new interpreter and reads the JSON that it prints."""
    # Without coverage, which would import modules.
    env = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}

    def result(code: str) -> Any:
        process = subprocess.run(
            [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=True
        )
        return json.loads(process.stdout)

    return result


@pytest.mark.parametrize("use", USES)
def test_the_package_imports_no_framework(run: Callable[[str], Any], use: str) -> None:
    before = set(run("import json, sys; print(json.dumps(list(sys.modules)))"))
    after = set(run(f"import json, sys, portable_nce\n{USES[use]}\nprint(json.dumps(list(sys.modules)))"))
    assert "portable_nce" in after
    # Not modules that a start-up file of the environment imported.
    assert (after - before) & FORBIDDEN == set()


MODULES = """
import json, sys
import array_api_compat
before = set(sys.modules)
import portable_nce
imported = set(sys.modules) - before
portable_nce.info_nce
print(json.dumps([sorted(imported), sorted(set(sys.modules) - before)]))
"""


def test_modules_are_imported_when_they_are_used(run: Callable[[str], Any]) -> None:
    """Counts modules instead of time, which depends on the machine and its load."""
    imported, used = run(MODULES)
    assert imported == ["portable_nce"]
    unused = {"bounds", "density", "diagnostics", "_losses.memory", "_losses.labels", "_losses.views"}
    assert not {f"portable_nce.{name}" for name in unused} & {*used}
    others = [name for name in used if name.partition(".")[0] != "portable_nce"]
    assert len(others) <= MOST_OTHERS, others
    assert {name.partition(".")[0] for name in others} <= sys.stdlib_module_names


PUBLIC = [
    "portable_nce",
    *(f"portable_nce.{name}" for name in pnce.__all__ if inspect.ismodule(getattr(pnce, name))),
    *(f"portable_nce.{name}" for name in ("modules.jax", "modules.torch", "testing")),
]
"""Modules that users import."""


@pytest.mark.parametrize("name", PUBLIC)
def test_completion_offers_the_public_names_of_a_module(name: str) -> None:
    module = import_module(name)
    assert dir(module) == sorted(module.__all__)


def test_names_for_type_checkers_are_those_at_run_time() -> None:
    tree = ast.parse(Path(str(pnce.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {
        alias.name: f"{pnce.__name__}.{node.module}"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    modules = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names} - {*homes}
    assert {*homes, *modules} == {*pnce.__all__}
    assert all(getattr(pnce, name) is getattr(import_module(home), name) for name, home in homes.items())
    assert all(getattr(pnce, name) is import_module(f"{pnce.__name__}.{name}") for name in modules)
    with pytest.raises(AttributeError, match="info_nc'"):
        _ = pnce.info_nc  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["__version__", "__all__"])
def test_the_package_has(run: Callable[[str], Any], name: str) -> None:
    assert run(f"import json, portable_nce; print(json.dumps(bool(portable_nce.{name})))")


def test_everything_announced_is_there(run: Callable[[str], Any]) -> None:
    code = "import json, portable_nce as p; print(json.dumps([n for n in p.__all__ if not hasattr(p, n)]))"
    assert run(code) == []


FIRST_CALLS = """if True:
    import json
    import torch
    import portable_nce as pnce
    from torch._dynamo.testing import CompileCounter

    class Own(torch.Tensor):
        pass

    make = {
        "Tensor": lambda x: x,
        "Parameter": torch.nn.Parameter,
        "Buffer": torch.nn.Buffer,
        "Own": lambda x: x.as_subclass(Own),
    }[KIND]
    torch.manual_seed(0)

    def arrays(n):
        x, y, slots = (torch.randn(k, 3, dtype=torch.float64) for k in (n, n, 8))
        return [make(z) for z in (x, y, slots, torch.tensor(0.5, dtype=torch.float64), torch.rand(n).double())]

    def losses(x, y, slots, temperature, weights):
        found = pnce.info_nce(x, y, temperature=temperature, weights=weights) + pnce.bounds.js(x @ y.transpose(0, 1))
        if KIND != "Tensor":  # others are traced more slowly
            return found
        queue = pnce.queue_push(pnce.queue_init(slots, 9), slots)
        return found + pnce.moco(x, y, queue, temperature=temperature, weights=weights)

    def plain(arguments):
        return [z.detach().as_subclass(torch.Tensor) for z in arguments]
"""
"""A process before its first call, with tensors of one class."""

TENSORS = mostly_full(["Tensor", "Parameter", "Own"], ["Parameter"])


@pytest.mark.parametrize("kind", TENSORS)
def test_the_first_call_of_a_process_may_be_compiled(run: Callable[[str], Any], kind: str) -> None:
    """Facts cached per array type are then first computed during tracing, and must not affect the graph."""
    code = (
        f"KIND = {kind!r}\n{FIRST_CALLS}"
        """
    counter = CompileCounter()
    compiled = torch.compile(losses, fullgraph=True, backend=counter, dynamic=KIND == "Own" or None)
    # A parameter has one shape, as Dynamo assumes (force_parameter_static_shapes).
    given = [arrays(n) for n in ([4, 4] if KIND == "Parameter" else [4, 4, 5, 7])]
    values = [float(compiled(*z).detach()) for z in given]
    print(json.dumps([values, counter.frame_count, [float(losses(*plain(z))) for z in given]]))
"""
    )
    values, graphs, expected = run(code)
    assert values == pytest.approx(expected, rel=1e-12)
    assert graphs == (2 if kind == "Tensor" else 1), "one for the first size, and one for all others"


TRANSFORMED = {
    "grad": """
    function = lambda *z: torch.func.grad(losses, argnums=(0, 1, 3))(*z)
    given = arrays(4)
    values = torch.compile(function, fullgraph=True, backend="eager")(*given)
    expected = function(*plain(given))
""",
    "vmap": """
    function = lambda xs, t: torch.vmap(lambda x: pnce.info_nce(x, x.flip(0), temperature=t))(xs)
    given = [make(torch.randn(3, 4, 5)), make(torch.tensor(0.5))]
    values = torch.compile(function, fullgraph=True, backend="eager")(*given)
    expected = function(*plain(given))
""",
    "export": """
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

        def forward(self, x, y):
            return pnce.info_nce(x, y, temperature=self.temperature)

    n, given, other = torch.export.Dim("n", min=2), arrays(4)[:2], arrays(6)[:2]
    values = [
        torch.export.export(Model(), tuple(given), strict=strict, dynamic_shapes=({0: n}, {0: n})).module()(*other)
        for strict in (True, False)
    ]
    expected = [pnce.info_nce(*plain(other), temperature=0.5)] * 2
""",
}


@pytest.mark.parametrize("transformed", mostly_full(TRANSFORMED, ["grad", "export"]))
def test_the_first_call_of_a_process_may_be_a_transformed_one(run: Callable[[str], Any], transformed: str) -> None:
    kind = "Buffer" if transformed == "export" else "Parameter"
    code = (
        f"KIND = {kind!r}\n{FIRST_CALLS}{TRANSFORMED[transformed]}"
        """
    print(json.dumps([[z.detach().tolist() for z in found] for found in (values, expected)]))
"""
    )
    values, expected = run(code)
    for value, correct in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, correct, rtol=1e-5)
