"""The pytest plugin that runs the suite on one variant; see `portable_nce.testing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from .cases import CASES
from .variants import VARIANTS, UnknownVariantError, find_variant, started

if TYPE_CHECKING:
    from collections.abc import Mapping

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

HARMLESS = ("ignore:Error (reading|writing) persistent compilation cache:UserWarning",)
"""JAX writes its cache in place. A process that reads an incomplete entry warns, and compiles the program."""

_STREAMED = {case.name: (case.loss, case.regime) for case in CASES if case.name.endswith("streamed")}
REPETITIONS = set(_STREAMED) - set({of: name for name, of in reversed(_STREAMED.items())}.values())
"""The streamed cases but for the first of each loss in each regime."""


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
    parser.addoption(
        "--dtype",
        action="append",
        default=[],
        metavar="NAME",
        help="run the tests of this dtype alone, and those that name none; may be repeated (default: all)",
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
    if unknown := set(config.getoption("--dtype") or ()) - set(variant.dtypes):
        message = f"--dtype {', '.join(sorted(unknown))}: {name} runs in {', '.join(variant.dtypes)}"
        raise pytest.UsageError(message)
    started(name)
    hypothesis.settings.load_profile("conformance-compiled" if variant.compiles else "conformance")
    config.addinivalue_line("markers", "exhaustive: more of the same; left out where every new shape is compiled")
    config.addinivalue_line("markers", "repetition: more of the same, such as the second streamed case of a loss")
    config.addinivalue_line("markers", "ranks: left out where functions are traced, which ranks as threads are not")
    config.addinivalue_line("markers", "two_devices: left out where the variant has one device alone")
    config.addinivalue_line("markers", "against_mparray: left out on mparray, which it would compare with itself")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which variant this is."""
    variant = find_variant(str(config.getoption("--variant")))
    return f"variant: {variant.name} ({', '.join(variant.dtypes)})"


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the variant does not have: dtypes, sizes, devices, time for more. Warnings are errors."""
    variant = find_variant(str(config.getoption("--variant")))
    dtypes = {None, *(config.getoption("--dtype") or variant.dtypes)}
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        if "variant" not in getattr(item, "fixturenames", ()):
            kept.append(item)  # a test of somebody else
            continue
        item.add_marker(pytest.mark.filterwarnings("error", *HARMLESS, *variant.harmless), append=False)
        if str(item_params(item).get("name")) in REPETITIONS:
            item.add_marker(pytest.mark.repetition)
        params = item_params(item)
        fits = (
            params.get("dtype") in dtypes
            and params.get("rows", 0) <= variant.largest
            and not (variant.compiles and any(map(item.get_closest_marker, ("exhaustive", "ranks"))))
            and not (variant.module == "mparray" and item.get_closest_marker("against_mparray"))
            and not (variant.other_device is None and item.get_closest_marker("two_devices"))
            and (variant.repeats or not str(params.get("name", "")).endswith("streamed"))
        )
        (kept if fits else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
    # Adjacent tests mostly go to the same process of pytest-xdist, which computes value and gradients of a case once.
    places = {name: place for place, name in enumerate(case.name for case in CASES)}
    items[:] = sorted(kept, key=lambda item: _case_of(item, places))


def item_params(item: pytest.Item) -> Mapping[str, Any]:
    """Give the parameters of a test."""
    params: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return params


def _case_of(item: pytest.Item, places: Mapping[str, int]) -> tuple[int, str]:
    """Give the place of a test's case, and its dtype; tests of no case come first, in the order of the files."""
    params = item_params(item)
    place = places.get(str(params.get("name", "")), -1)
    return (place, str(params.get("dtype"))) if place >= 0 else (-1, "")


@pytest.fixture(scope="session")
def variant(request: pytest.FixtureRequest) -> Variant:
    """Give the variant that the suite runs on."""
    return started(request.config.getoption("--variant"))
