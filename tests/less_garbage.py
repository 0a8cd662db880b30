"""A plugin of pytest that takes what lives when a module's tests start out of garbage collection.

Compiled programs and imported libraries are some million objects. JAX's check for leaks, tests that count objects, and
Python itself would pass through all of them at each full collection: a tenth of the time of a run.
"""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def few_objects_to_collect() -> None:
    """Collect what is garbage, and keep the rest."""
    gc.collect()
    gc.freeze()
