"""A plugin of pytest by which the workers of pytest-xdist save their coverage when the tests are over.

Coverage does so when its process ends, but pytest-xdist waits ten seconds for the end of a worker, and kills it then.
"""

from __future__ import annotations

import warnings

import coverage
import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Save what this worker has measured so far."""
    measured = coverage.Coverage.current()
    if measured is not None and hasattr(session.config, "workerinput"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a worker with few tests may have measured nothing
            measured.save()
