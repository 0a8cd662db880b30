"""The two folders inside another package, with array-api-compat beside them, where neither is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

VENDOR = "dummy._vendor"

pnce: Any = import_module(f"{VENDOR}.portable_nce")
X = np.random.default_rng(0).normal(size=(5, 3))


def test_the_package_is_not_installed_here() -> None:
    assert find_spec("portable_nce") is None


def test_the_namespaces_come_from_the_neighbour() -> None:
    door: Any = import_module(f"{VENDOR}.portable_nce._core.namespace")
    for x in (X, torch.tensor(X)):
        assert door.library_namespace(x).__name__.startswith(f"{VENDOR}.array_api_compat")
    assert not [name for name in sys.modules if name.partition(".")[0] == "portable_nce"]


def test_a_vendored_copy_has_every_module() -> None:
    assert [name for name in pnce.__all__ if not hasattr(pnce, name)] == []
    for name in ("bounds", "density", "diagnostics", "from_scores", "objectives", "pairings", "similarities"):
        assert import_module(f"{VENDOR}.portable_nce.{name}").__name__ == f"{VENDOR}.portable_nce.{name}"


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch.compile itself
def test_a_vendored_copy_differentiates_and_compiles() -> None:
    value, gradient = pnce.value_and_grad(pnce.info_nce)(X, 2.0 * X, temperature=0.5)
    x = torch.tensor(X, requires_grad=True)
    loss = torch.compile(lambda x: pnce.info_nce(x, 2.0 * x.detach(), temperature=0.5), fullgraph=True, backend="eager")
    found = loss(x)
    found.backward()
    assert x.grad is not None
    np.testing.assert_allclose(found.detach().numpy(), value, rtol=1e-13)
    np.testing.assert_allclose(x.grad.numpy(), gradient, rtol=1e-12, atol=1e-15)


def test_arrays_of_two_libraries_are_named_as_ever() -> None:
    try:
        pnce.info_nce(X, torch.tensor(X))
    except TypeError as error:
        assert "got torch and numpy" in str(error)  # noqa: PT017  (pytest.raises would do the same)
    else:
        raise AssertionError


def test_the_command_line_runs() -> None:
    import subprocess

    result = subprocess.run(
        [sys.executable, "-m", f"{VENDOR}.portable_nce"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "numpy" in result.stdout
