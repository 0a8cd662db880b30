"""What the tests of ranks share."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line("markers", "full: takes long; left out of the default run")
