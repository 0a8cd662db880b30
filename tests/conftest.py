"""What tests of several folders share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portable_nce.testing.variants import Variant


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
