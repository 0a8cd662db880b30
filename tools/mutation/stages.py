"""The tests that mutants are put to, and what a run of them on the code as it is shows: which test runs which line."""

from __future__ import annotations

import hashlib
import importlib
import json
import signal
import sys
import types
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import coverage
import pytest

from .mutants import FILES, ROOT, Mutant, module_of
from .patches import Key, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

HOST: Final = ("numpy", "array-api-strict-strictest", "torch", "torch-halves")
FOLDERS: Final = "losses", "objectives", "core", "backends", "execution"
SHORT_LAWS: Final = "pairs_of_options", "array_types", "nan", "rounding", "left_out", "second_derivatives", "infinities"
MORE_LAWS: Final = "pair_weights", "reductions", "remedies", "clients", "numbers"
LONG_LAWS: Final = "hardening", "arguments", "wrong_calls", "two_dtypes", "repeated_calls"
OWN: Final = (
    *(f"tests/{folder}" for folder in FOLDERS),
    *("tests/test_pairings.py", "tests/test_similarities.py", "tests/test_diagnostics.py"),
    *(f"tests/laws/test_{name}.py" for name in SHORT_LAWS),
    "tests/project/test_docstrings.py::test_functions_have_the_defaults_that_they_document",
    "tests/project/test_documents.py::test_errors_name_the_functions_of_the_index",
)
SLOW: Final = (
    *("test_fusing", "test_torch_compiler", "compiled", "test_mlx", "test_meshes"),
    *("fullgraph", "inductor", "gradcheck", "of_a_step"),
)
SOME: Final = "labels", "siglip", "own", "traces", "autocast", "compose", "tangents", "parameters", "scan", "plain"
QUICK: Final = f"not {' and not '.join(SLOW)}"
STAGES: Final = {
    "own": (*OWN, "-k", QUICK),
    "suite": (
        *("-pportable_nce.testing.plugin", "--pyargs", "portable_nce.testing.suite"),
        *(f"--variant={variant}" for variant in HOST),
    ),
    "estimation": ("tests/estimation",),
    "modules": ("tests/modules/test_torch.py", "tests/modules/test_jax.py", "-k", "not compile"),
    "laws": (*(f"tests/laws/test_{name}.py" for name in LONG_LAWS), "-k", "not compile"),
    "counts": (
        *("tests/project/test_launches.py", *(f"tests/laws/test_{name}.py" for name in MORE_LAWS)),
        *("-k", "not compile and not graphs"),
    ),
    "compiled": ("tests/execution/test_fusing.py", "tests/backends/test_torch_compiler.py"),
    "transforms": ("tests/laws/test_transforms.py", "-k", f"{QUICK} and ({' or '.join(SOME)})"),
}
"""What pytest runs, one stage after the other; only what survives a stage goes on to the next."""


class Profile(NamedTuple):
    """What a run of a stage's tests has shown of the code as it is; `ran` is what ran before the first test."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, set[str]]]
    ran: set[Key]

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Read what `write` has written."""
        found = json.loads(path.read_text(encoding="utf-8"))
        names: list[str] = found["names"]
        lines = {
            file: {int(line): {names[k] for k in tests} for line, tests in of.items()}
            for file, of in found["lines"].items()
        }
        return cls(found["seconds"], lines, {(place, code) for place, code in found["ran"]})

    def write(self, path: Path) -> None:
        """Write JSON, in which tests are numbers: they run many lines."""
        names = sorted(
            {*self.seconds, *(test for of in self.lines.values() for tests in of.values() for test in tests)}
        )
        number = {name: k for k, name in enumerate(names)}
        lines = {
            file: {line: sorted(number[test] for test in tests) for line, tests in of.items()}
            for file, of in self.lines.items()
        }
        found = {"names": names, "seconds": self.seconds, "lines": lines, "ran": sorted(self.ran)}
        path.write_text(json.dumps(found), encoding="utf-8")

    def tests_of(self, mutant: Mutant) -> set[str]:
        """Give the tests that run a line of the mutant's; of code that runs at import, all that run its module.

        A default has those of its function, and those that read signatures.
        """
        lines = self.lines[mutant.file]
        if mutant.at_import:
            readers = {test for test in self.seconds if mutant.scope and "defaults" in test}
            spans = [mutant.statement] * bool(mutant.scope) + [(1, max(lines, default=0))]
        else:
            readers, spans = set(), [mutant.lines, mutant.statement]
        for first, last in spans:
            if found := set().union(*(lines.get(line, ()) for line in range(first, last + 1))) - {""}:
                return found | readers
        return readers

    def order(self, tests: Iterable[str], kills: Counter[str], budget: float) -> list[str]:
        """Order the tests that fit a number of seconds: killers and fast ones first, and not all of one function."""
        ranks: Counter[str] = Counter()
        place: dict[str, float] = {}
        for test in sorted(tests, key=lambda test: self.seconds[test]):
            function = test.partition("[")[0]
            ranks[function] += 1
            place[test] = ranks[function] * (0.01 + self.seconds[test]) / (1 + kills[test]) ** 2
        chosen: list[str] = []
        for test in sorted(place, key=lambda test: place[test]):
            budget -= self.seconds[test]
            if budget >= 0.0 or not chosen:
                chosen.append(test)
            else:
                budget += self.seconds[test]
        return chosen


class Plugin:
    """Runs one function instead of pytest's loop over the tests, and notes what becomes of the tests."""

    def __init__(self, loop: Callable[[pytest.Session], None]) -> None:
        self.loop = loop
        self.failed = ""
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the function."""
        if not session.testsfailed:
            self.loop(session)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the duration, and a failure."""
        self.seconds[report.nodeid] += report.duration
        self.pytest_collectreport(report)

    def pytest_internalerror(self, excrepr: Any) -> None:
        """Note an error of pytest's own."""
        self.failed = self.failed or f"pytest: {excrepr}"

    def pytest_collectreport(self, report: Any) -> None:
        """Note what cannot be imported."""
        if report.failed and not self.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed = f"{report.nodeid}: {crash.message if crash else report.longrepr}"[-500:]


def run_pytest(arguments: Iterable[str], plugin: Plugin) -> None:
    """Let pytest collect the tests, and run the plugin's loop."""
    options = ["-q", "-s", f"--rootdir={ROOT}", f"-c{ROOT / 'pyproject.toml'}"]
    options += ["-pportable_nce.testing.covering", "--assert=plain", "--tb=short"]
    options += ["-pno:randomly", "-pno:cacheprovider", "-pno:xdist"]
    code = pytest.main([*options, *arguments], plugins=[plugin])
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED} and not plugin.failed:
        plugin.failed = f"pytest: {code!r}"


def run_tests(session: pytest.Session, tests: Iterable[str], seconds: dict[str, float]) -> None:
    """Run the tests until one fails; one that takes far longer than usual ends the process."""
    items = {item.nodeid: item for item in session.items}
    chosen = [items[test] for test in tests]
    for item, following in zip(chosen, [*chosen[1:], None], strict=True):
        signal.setitimer(signal.ITIMER_REAL, 15.0 + 30.0 * seconds[item.nodeid])
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return


def import_all() -> None:
    """Import the adapters too, of which each waits for the first array of its library."""
    for file in FILES:
        importlib.import_module(module_of(file))


def profiled(stage: str) -> Profile:
    """Run all tests of a stage on the code as it is."""
    ran: set[Key] = set()

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and "portable_nce" in frame.f_code.co_filename:
            ran.add(key_of(frame.f_code))

    def loop(session: pytest.Session) -> None:
        import_all()
        sys.setprofile(None)
        for item in session.items:
            measured.switch_context(item.nodeid)
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    measured = coverage.Coverage(data_file=None, source_pkgs=["portable_nce"], config_file=False)
    measured.start()
    sys.setprofile(note)
    plugin = Plugin(loop)
    run_pytest(STAGES[stage], plugin)
    measured.stop()
    if plugin.failed:
        raise SystemExit(f"{stage}: fails without any mutation: {plugin.failed}")
    data = measured.get_data()
    paths = {file: str(importlib.import_module(module_of(file)).__file__) for file in FILES}
    lines = {file: {n: set(tests) for n, tests in data.contexts_by_lineno(paths[file]).items()} for file in FILES}
    return Profile(dict(plugin.seconds), lines, ran)


def state() -> str:
    """Give a name for code and tests as they are."""
    paths = [path for folder in ("portable_nce", "backends", "tests") for path in (ROOT / folder).rglob("*.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:10]
