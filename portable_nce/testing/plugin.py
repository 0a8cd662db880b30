"""The pytest plugin that runs the suite on variants; see `portable_nce.testing`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from .cases import CASES
from .processes import RankProcesses
from .variants import VARIANTS, UnknownVariantError, find_variant, started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .variants import Variant

for profile, examples in (("conformance", 25), ("conformance-compiled", 8)):
    hypothesis.settings.register_profile(
        profile,
        derandomize=True,
        deadline=None,
        max_examples=examples,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
    )

HARMLESS = ("ignore:Error (reading|writing) persistent compilation cache:UserWarning",)
"""JAX writes its cache in place. A process that reads an incomplete entry warns, and compiles the program."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options."""
    parser.addoption(
        "--variant",
        action="append",
        metavar="NAME",
        help=(
            f"a variant to run the suite on, one of: {', '.join(VARIANTS)} (default: numpy); or a third party's, as "
            f"module:attribute; may be repeated, and one process then computes what all are compared with once"
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
    """Raise for a variant that is unknown or cannot run: a suite that skips itself would look like one that passed."""
    dtypes: set[str] = set(config.getoption("--dtype") or ())
    for name in names_of(config):
        try:
            variant = find_variant(name)
        except UnknownVariantError as error:
            raise pytest.UsageError(f"--variant {name}: {error}") from None
        if (reason := variant.obstacle()) is not None:
            raise pytest.UsageError(f"--variant {name}: cannot run here: {reason}")
        if unknown := dtypes - set(variant.dtypes):
            raise pytest.UsageError(f"--dtype {', '.join(sorted(unknown))}: {name} runs in {', '.join(variant.dtypes)}")
        started(name)
    compiles = any(find_variant(name).compiles for name in names_of(config))
    hypothesis.settings.load_profile("conformance-compiled" if compiles else "conformance")
    config.addinivalue_line("markers", "half_products: left out where no products of 16 bits are taken")
    config.addinivalue_line("markers", "exhaustive: more of the same; left out where every new shape is compiled")
    config.addinivalue_line("markers", "each_variant: a short run has all values on each variant, all cases on NumPy")
    config.addinivalue_line("markers", "ranks: left out where functions are traced, which ranks are not")
    config.addinivalue_line("markers", "internals: patches something inside the engine that no public function shows")
    config.addinivalue_line("markers", "two_devices: left out where the variant has one device alone")


def names_of(config: pytest.Config) -> list[str]:
    """Names of the variants to run."""
    return config.getoption("--variant") or ["numpy"]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Report the variants."""
    return [f"variant: {name} ({', '.join(find_variant(name).dtypes)})" for name in names_of(config)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of the suite on each variant."""
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", names_of(metafunc.config), indirect=True)


@pytest.hookimpl(tryfirst=True)  # before `-m` reads the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect dtypes, sizes, devices and repetitions that a variant does not have. Warnings are errors."""
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        params = params_of(item)
        if "variant" not in params:
            kept.append(item)  # a test outside of the suite
            continue
        variant = find_variant(params["variant"])
        dtypes = {None, *(config.getoption("--dtype") or variant.dtypes)}
        item.add_marker(pytest.mark.filterwarnings("error", *HARMLESS, *variant.harmless), append=False)
        fits = (
            params.get("dtype") in dtypes
            and params.get("rows", 0) <= variant.largest
            and not (variant.compiles and any(map(item.get_closest_marker, ("exhaustive", "ranks"))))
            and not (variant.other_device is None and item.get_closest_marker("two_devices"))
            and (variant.half_products or not item.get_closest_marker("half_products"))
            and (variant.repeats or not str(params.get("case_name", "")).endswith("streamed"))
        )
        (kept if fits else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
    # Adjacent tests mostly go to the same process of pytest-xdist, which then computes the oracle of a case once.
    places = {name: place for place, name in enumerate(case.name for case in CASES)}
    items[:] = sorted(kept, key=lambda item: _case_of(item, places))


def params_of(item: pytest.Item) -> Mapping[str, Any]:
    """Parameters of a test."""
    params: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return params


def _case_of(item: pytest.Item, places: Mapping[str, int]) -> tuple[int, str]:
    """Sort key: index and dtype of a test's case; tests without a case come first, in the order of the files."""
    params = params_of(item)
    place = places.get(str(params.get("case_name", "")), -1)
    return (place, str(params.get("dtype"))) if place >= 0 else (-1, "")


_processes: dict[str, RankProcesses] = {}
"""Processes of ranks, by the name of a variant."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test of ranks side by side with their processes, on a variant that needs them."""
    params = params_of(pyfuncitem)
    name = params.get("variant")
    if name is None or pyfuncitem.get_closest_marker("ranks") is None or not find_variant(name).rank_processes:
        return None
    if name not in _processes or not _processes[name].works:
        _processes[name] = RankProcesses(name)
    own = {key: pyfuncitem.funcargs[key] for key in inspect.signature(pyfuncitem.obj).parameters}
    sent = {key: value for key, value in params.items() if key != "variant"}
    _processes[name].run(pyfuncitem.obj, own, sent)
    return True


def pytest_unconfigure() -> None:
    """Stop the processes of ranks."""
    while _processes:
        _processes.popitem()[1].close()


@pytest.fixture
def variant(request: pytest.FixtureRequest) -> Iterator[Variant]:
    """The variant that the test runs on."""
    found = started(request.param)
    with found.active():
        yield found
