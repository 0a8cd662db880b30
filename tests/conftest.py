"""What tests of several folders share."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portable_nce.testing.variants import Variant


def pytest_configure() -> None:
    """Refuse to run where `python -m pytest` finds the source tree, which lacks the adapters, and no installation."""
    if find_spec("portable_nce") is not None and find_spec("portable_nce.backends") is None:
        raise pytest.UsageError(
            "portable_nce.backends: expected an installed package, got the folder of the clone, which lacks it; run "
            "`pytest` instead of `python -m pytest`, or install by `python -m pip install --editable .`"
        )


@pytest.fixture
def variant(request: pytest.FixtureRequest) -> Variant:
    """Give a library as a variant of the conformance suite: NumPy, where no other is a parameter."""
    # Here, since tests of vendored copies run where the package is not installed.
    from portable_nce.testing.variants import started

    return started(getattr(request, "param", "numpy"))


@pytest.fixture
def jax_x64() -> Iterator[None]:
    """Let JAX compute in float64 in one test."""
    import jax

    config: Any = jax.config
    before = config.jax_enable_x64
    config.update("jax_enable_x64", True)  # noqa: FBT003  (JAX's interface)
    yield
    config.update("jax_enable_x64", before)
