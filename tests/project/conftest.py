"""Fixtures of the tests of the project itself."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def noxfile() -> Any:
    """Import the noxfile, which registers its sessions."""
    spec = importlib.util.spec_from_file_location("noxfile_under_test", Path(__file__).parents[2] / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module
