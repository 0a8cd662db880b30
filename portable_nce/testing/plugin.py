"""The pytest plugin that runs the suite on one variant; see `portable_nce.testing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from .variants import VARIANTS, UnknownVariantError, find_variant, started

if TYPE_CHECKING:
    from .variants import Variant

for profile, examples in (("conformance", 25), ("conformance-compiled", 8)):
    hypothesis.settings.register_profile(
        profile,
        derandomize=True,
        deadline=None,
        max_examples=examples,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of the variant."""
    parser.addoption(
        "--variant",
        default="numpy",
        metavar="NAME",
        help=(
            f"the variant to run the suite on, one of: {', '.join(VARIANTS)} (default: numpy); or a third party's, as "
            f"module:attribute"
        ),
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a variant that is unknown or cannot run: a suite that skips itself would look like one that passed."""
    name = str(config.getoption("--variant"))
    try:
        variant = find_variant(name)
    except UnknownVariantError as error:
        message = f"--variant {name}: {error}"
        raise pytest.UsageError(message) from None
    if (reason := variant.obstacle()) is not None:
        message = f"--variant {name}: cannot run here: {reason}"
        raise pytest.UsageError(message)
    started(name)
    hypothesis.settings.load_profile("conformance-compiled" if variant.compiles else "conformance")
    config.addinivalue_line("markers", "exhaustive: more of the same; left out where every new shape is compiled")
    config.addinivalue_line("markers", "two_devices: left out where the variant has one device alone")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which variant this is."""
    variant = find_variant(str(config.getoption("--variant")))
    return f"variant: {variant.name} ({', '.join(variant.dtypes)})"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the variant does not have: dtypes, sizes, devices, time for more. Warnings are errors."""
    variant = find_variant(str(config.getoption("--variant")))
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        if "variant" not in getattr(item, "fixturenames", ()):
            kept.append(item)  # a test of somebody else
            continue
        item.add_marker(pytest.mark.filterwarnings("error"), append=False)
        params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        fits = (
            params.get("dtype") in {None, *variant.dtypes}
            and params.get("rows", 0) <= variant.largest
            and not (variant.compiles and item.get_closest_marker("exhaustive"))
            and not (variant.other_device is None and item.get_closest_marker("two_devices"))
            and (variant.repeats or not str(params.get("name", "")).endswith("streamed"))
        )
        (kept if fits else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(scope="session")
def variant(request: pytest.FixtureRequest) -> Variant:
    """Give the variant that the suite runs on."""
    return started(request.config.getoption("--variant"))
