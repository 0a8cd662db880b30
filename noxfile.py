"""Tests, checks, documentation and releases.

- ``python -m nox`` runs the default checks, and names the variants that this machine cannot run.
- ``python -m nox -s quick`` runs the linter, the type checker, every case on NumPy and some on PyTorch.
- ``python -m nox -t release`` runs what a release needs: the default checks, the lowest and newest versions, other
  libraries, the site, the wheel.
- ``python -m nox -t full`` runs everything: all variants and all tests in full, compilers of old releases, coverage.

``nox -l`` lists the sessions. Environments are shared between sessions, live under ``.nox/env`` and are kept until
their packages change. ``.nox/cache`` keeps what Python and JAX compile. Delete ``.nox`` to start afresh.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import runpy
import shutil
import sys
import time
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

import nox

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

nox.needs_version = ">=2025.2"
# No session needs uv. Without it, nox says so in the second line of its output.
logging.getLogger("nox").addFilter(lambda record: record.getMessage() != "uv binary not found.")

ROOT: Final = Path(__file__).parent
WORK: Final = ROOT / ".nox"
NAME: Final = "portable_nce"

TORCH: Final = "torch==2.13.0"
"""One version for the conformance, type and demo sessions."""

DASK: Final = "dask[array]>=2025.1"
"""An array API library without an adapter."""

LIGHTNING: Final = "lightning>=2.6"
"""For docs/recipe-lightning.md; its other requirement, `accelerate`, is in the group `trainer`."""

CUPY: Final = "cupy-cuda12x[ctk]"
"""CuPy with the CUDA libraries, so that a machine needs only the driver."""

STARTED: Final = time.time()
"""When this run of nox started."""

BUDGET: Final = 40 * 60.0
"""Processor time that the default run should take, in seconds, with the installation."""

COVERAGE_FLOOR: Final = 95.0
"""Minimal coverage of lines, and of branches, of portable_nce/ and backends/, in percent."""

PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def group(name: str) -> tuple[str, ...]:
    """Requirements of a dependency group of pyproject.toml that includes no other group."""
    return tuple(PYPROJECT["dependency-groups"][name])


def extras(*names: str) -> tuple[str, ...]:
    """Requirements of extras of the project."""
    return tuple(requirement for name in names for requirement in PYPROJECT["project"]["optional-dependencies"][name])


def floors(requirements: Sequence[str]) -> tuple[str, ...]:
    """Pin requirements of the form name>=version to their lowest versions."""
    return tuple(requirement.replace(">=", "==") for requirement in requirements)


COMPILING: Final[Mapping[str, tuple[str, ...]]] = {
    "torch-2.6": ("torch==2.6.0", "numpy"),  # compiles around the losses
    "torch-2.11": ("torch==2.11.0", "numpy"),  # the first that compiles them whole
    "torch-between": (TORCH, "numpy"),
    "torch-newest": ("torch", "numpy"),
    "jax-lowest": floors(extras("jax")),
    "jax-newest": extras("jax"),
}
"""Requirements of each release of a library whose compiler compiles losses."""

TESTING: Final = (*extras("test"), *group("coverage"), *group("speed"))
ARRAYS: Final = group("arrays")

FRAMEWORKS: Final = {"torch": (TORCH,), "jax": extras("jax"), "mlx": extras("mlx"), "cupy": (CUPY,)}
"""Requirements of each framework."""

PEERS: Final = {
    name: f"{name}=={version}"
    for page in sorted((ROOT / "docs").glob("from-*.md"))
    for name, version in re.findall(r"^# Coming from (\S+) (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
}
"""Requirements of the libraries that we compare with, from the titles of their pages."""

ALONE: Final = ("lightly", "solo-learn", "open-clip-torch", "libauc")
"""Peers installed without dependencies: their losses need only PyTorch."""

SBI: Final = "sbi==0.27.0"
"""Another such library, without a page, since its losses are methods."""

INFOMEASURE: Final = "infomeasure==0.6.3"
"""For the comparison of transfer entropy alone; it is under the AGPL."""

ENVIRONMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    # One library each: the full run shows that no other is needed.
    "arrays": (*TESTING, *ARRAYS),
    "torch": (*TESTING, TORCH, "numpy"),
    "jax": (*TESTING, *FRAMEWORKS["jax"]),
    "jax-cuda": (*TESTING, "jax[cuda12]"),
    "mlx": (*TESTING, *FRAMEWORKS["mlx"]),
    "cupy": (*TESTING, *FRAMEWORKS["cupy"]),
    # The lowest declared versions. On Linux, the lowest PyTorch would bring gigabytes of CUDA.
    "lowest": (
        *floors(PYPROJECT["project"]["dependencies"]),
        *floors((*extras("test", "numpy", "jax"), *ARRAYS)),
        *(() if sys.platform == "linux" else floors(extras("torch"))),
        *group("speed"),
    ),
    **{name: (*TESTING, *requirements) for name, requirements in COMPILING.items()},
    # Nearly all of the default run: one environment installs faster than several.
    "all": (
        *TESTING,
        *ARRAYS,
        TORCH,
        *extras("jax", "mlx", "demo"),
        *group("conda"),
        *group("docstrings"),
        *group("lint"),
        *group("mutation"),
        *group("ranks"),
        *group("tutorials"),
        *group("types"),
        DASK,
        "nox",
    ),
    "bench": (
        TORCH,
        *extras("jax", "demo"),
        PEERS["info-nce-pytorch"],
        PEERS["optax"],
        PEERS["pytorch-metric-learning"],
        "numpy",
    ),
    # benchmark-mi 0.1.3 needs this JAX or an older one, and Python 3.11 for its pandas.
    "bmi": (
        "benchmark-mi==0.1.3",
        "equinox==0.10.11",
        "jax==0.4.30",
        "jaxlib==0.4.30",
        "numpy==1.26.4",
        "scipy==1.13.1",
    ),
    "estimates": extras("jax", "demo"),
    "vendored": (*TESTING, TORCH, "numpy"),
    "quick": (*TESTING, TORCH, "numpy", *group("lint"), *group("types")[:1]),  # mypy
    "plugin": (*TESTING, DASK, "numpy>=2.0"),
    "peers": (
        *TESTING,
        *(requirement for name, requirement in PEERS.items() if name not in ALONE),
        *group("trainer"),
        *group("keras"),
        INFOMEASURE,
        LIGHTNING,
        *extras("jax", "demo"),
        "numpy",
    ),
    # For tools.
    "release": (*group("distribution"), *group("release")),
    "released": (),  # the wheel as users get it, with its dependencies
    "docs": (*group("docs"), TORCH, *extras("jax", "demo"), "mpmath"),
    "lint": group("lint"),
    "demo": extras("demo"),
}
"""Requirements of each environment, besides the project."""

ENVIRONMENT_OF: Final[Mapping[str, str]] = {
    "numpy": "arrays",
    "array-api-strict": "arrays",
    "mparray": "arrays",
    "torch": "torch",
    "jax": "jax",
    "cupy": "cupy",
    "mlx": "mlx",
}
"""Environment of a variant, by its library."""


def gpu_obstacle() -> str | None:
    """Reason why nothing can run on an NVIDIA GPU here, or None."""
    if shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists():
        return None
    return "it needs an NVIDIA GPU, and there is neither nvidia-smi nor /dev/nvidia0 on this machine"


VARIANTS: Final[Mapping[str, Any]] = runpy.run_path(str(ROOT / "portable_nce" / "testing" / "variants.py"))["VARIANTS"]
"""The table of variants, which needs only the standard library."""

SUITE: Final = ("-p", f"{NAME}.testing.plugin", "--pyargs", f"{NAME}.testing.suite")
"""Options of pytest to run the conformance suite, which is part of the package."""

CONTRACT: Final = " or ".join(
    (
        *("test_value_and_grad.py", "test_dtypes.py"),
        *("test_dual_critic[", "test_log_n_ceiling", "test_standard_error"),
    )
)
"""Its tests of `value_and_grad`, of dtypes, and of functions of bounds that are no bounds, for `-k`."""

OBSTACLE: Final = gpu_obstacle()
NOT_RUN: Final = {name: OBSTACLE for name, variant in VARIANTS.items() if variant.gpu and OBSTACLE is not None}
"""Variants that cannot run on this machine, and why."""

STAND_IN: Final = "cupy_stand_in:VARIANT"
"""The adapter of CuPy on a stand-in, tests/cupy_stand_in.py, which needs no GPU; not in the table."""

TOGETHER: Final[Mapping[str, tuple[str, ...]]] = {
    "host": (
        *("numpy-readonly", "array-api-strict-strictest", "torch", "torch-blind", "torch-halves", "mlx", "mparray"),
        STAND_IN,
    ),
    # JAX has one default precision per process.
    "jax-x64": ("jax-x64",),
    "jax-x32": ("jax-x32",),
    **{name: (name,) for name, variant in VARIANTS.items() if variant.gpu and name not in NOT_RUN},
}
"""Variants of the default run by process; one for variants that differ in a flag only."""

SHORT: Final = ("-p", f"{NAME}.testing.covering")
"""Options of pytest to run a covering array of the parameters instead of their product."""

nox.options.sessions = [
    "lint",
    "types",
    "doctest",
    *(f"conformance({name})" for name in TOGETHER),
    "tests",
    "integration",
    "test_summary",
]

FULL: Final = ["full"]
"""Tag of the sessions for changes of the engine and for the weekly run: several hours."""

RELEASE: Final = ["release"]
"""Tag of the sessions for releases."""

BOTH: Final = [*FULL, *RELEASE]


CACHES: Final[Mapping[str, str]] = {
    "JAX_COMPILATION_CACHE_DIR": str(WORK / "cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # most programs are one small operation
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
"""Cache of JAX's compiled programs, keyed by source and settings."""

LARGEST_CACHE: Final = 500 * 2**20
"""Largest size in bytes of JAX's cache; one run adds some 50 MiB."""

LIGHT_XLA: Final[Mapping[str, str]] = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
"""Fewer optimisations, for JAX tests that mostly compile."""


# Environments


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the session that uses it."""

    session: nox.Session
    folder: Path

    def run(self, program: str, *args: str, env: Mapping[str, str] | None = None, silent: bool = False) -> None:
        """Run a program of this environment in the root of the project; if silent, show its output only on failure."""
        settings = self.settings | dict(env or {})
        self.session.run(str(self.programs / program), *args, env=settings, silent=silent, external=True)

    def capture(self, program: str, *args: str, env: Mapping[str, str] | None = None) -> str:
        """Run a program of this environment in the root of the project, and return its output."""
        settings = self.settings | dict(env or {})
        return str(self.session.run(str(self.programs / program), *args, env=settings, silent=True, external=True))

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables of each program."""
        return {
            "PYTHONSAFEPATH": "1",  # the source tree in the working directory must not shadow the installed package
            "PYTHONDONTWRITEBYTECODE": "",  # tests start hundreds of processes
            "PYTHONPYCACHEPREFIX": str(WORK / "cache" / "python"),  # not into the source tree
            "VIRTUAL_ENV": str(self.folder),
        }

    @property
    def programs(self) -> Path:
        """Folder with python, pip and pytest."""
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    def install(self, *args: str) -> None:
        """Install packages by pip."""
        pip = str(self.programs / "python"), "-m", "pip", "install", "--disable-pip-version-check"
        quiet = () if sys.stdout.isatty() else ("--quiet",)  # pip shows its progress on a terminal only
        # Compiling all modules takes longer than installing them, and most are never imported.
        self.session.run_install(*pip, "--no-compile", *quiet, *args, external=True)


def environment(session: nox.Session, name: str, *, project: bool = True) -> Environment:
    """Return the environment of that name, with its packages and the project's wheel."""
    environment = Environment(session, WORK / "env" / name)
    stamp = environment.folder / "requirements.txt"
    packages = (*ENVIRONMENTS[name], *(group("distribution") if project else ()))
    wanted = "\n".join((f"# {sys.version}", *packages, ""))
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(environment.folder, ignore_errors=True)
        session.run_install(sys.executable, "-m", "virtualenv", "--quiet", str(environment.folder), external=True)
        if packages:
            environment.install(*packages)
        stamp.write_text(wanted, encoding="utf-8")
    if project and name not in READY:
        wheel = built(environment)
        environment.install("--force-reinstall", "--no-deps", str(wheel))
        environment.install(str(wheel))  # with dependencies
        READY.add(name)
    return environment


READY: Final[set[str]] = set()
"""Environments that have this run's wheel."""

LIBRARIES: Final = frozenset(
    {"array_api_compat", "array_api_strict", "dask", "jax", "mlx", "mparray", "numpy", "torch"}
)
"""Array libraries whose releases `test_summary` names."""


def releases(folder: Path) -> list[str]:
    """Names and versions of the array libraries of an environment."""
    found = (path.name.removesuffix(".dist-info").split("-")[:2] for path in folder.rglob("*.dist-info"))
    return sorted(f"{name} {version}" for name, version in found if name.lower() in LIBRARIES)


WHEELS: Final[list[Path]] = []
"""The project's wheel, built once per run."""


def built(environment: Environment) -> Path:
    """Build the project's wheel from its sdist, once per run."""
    if not WHEELS:
        folder = WORK / "dist"
        shutil.rmtree(folder, ignore_errors=True)
        environment.run("python", "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), silent=True)
        WHEELS.extend(folder.glob("*.whl"))
    return WHEELS[0]


def alone(session: nox.Session, variant: str) -> Environment:
    """Return the environment with the library of a variant and no other framework."""
    return environment(session, "jax-cuda" if variant == "jax-cuda" else ENVIRONMENT_OF[VARIANTS[variant].library])


# Tests


def copied(source: Path) -> Path:
    """Copy a distribution out of the tree, so that a build leaves no files in it."""
    target = WORK / "dist" / source.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def results(name: str) -> Path:
    """Make an empty folder for the results that `coverage` and `test_summary` read."""
    folder = WORK / "results" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@cache
def trim_caches() -> None:
    """Once per run, delete JAX's cache if it is too large; programs of old code are never used again."""
    compiled = Path(CACHES["JAX_COMPILATION_CACHE_DIR"])
    if sum(path.stat().st_size for path in compiled.glob("*")) > LARGEST_CACHE:
        shutil.rmtree(compiled, ignore_errors=True)


def pytest(
    environment: Environment,
    name: str,
    *args: str,
    measured: bool = False,
    processes: str = "auto",
    env: Mapping[str, str] | None = None,
    options: bool = True,
) -> None:
    """Run pytest with the options of the command line; keep the outcome and, optionally, the coverage."""
    trim_caches()
    folder = results(name)
    command = ["coverage", "run", "-m", "pytest", "-p", "keep_coverage"] if measured else ["pytest"]
    outcome = f"--junit-xml={folder / 'junit.xml'}"
    # One thread per process: the arrays of the tests are small.
    settings = {"COVERAGE_FILE": str(folder / "coverage"), "PYTHONPATH": str(ROOT / "tests"), **CACHES}
    settings |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    workers = "-n", processes, "--maxprocesses=8"
    further = environment.session.posargs if options else ()
    environment.run(*command, "-p", "less_garbage", *args, *workers, outcome, *further, env=settings | dict(env or {}))


def run_suite(tester: Environment, name: str, *args: str, variants: Sequence[str] = (), measured: bool = False) -> None:
    """Run the conformance suite, or a part of it, on some variants at once, or on the one of that name."""
    variants = variants or (name,)
    for variant in variants:
        if (reason := NOT_RUN.get(variant)) is not None:
            tester.session.error(f"{variant} cannot run: {reason}")
    pytest(
        tester,
        f"conformance-{name}",
        *SUITE,
        *(f"--variant={variant}" for variant in variants),
        *args,
        measured=measured,
        processes="0" if any(v in VARIANTS and VARIANTS[v].gpu for v in variants) else "auto",  # share no GPU memory
        env=LIGHT_XLA if name == "jax-x64" else None,  # mostly compiles; jax-x32 runs with all optimisations
    )


# First what people run: nox lists sessions in this order.


@nox.session(venv_backend="none")
def quick(session: nox.Session) -> None:
    """Check style and types, and run every case on NumPy and some on PyTorch; options of pytest after ``--``."""
    tester = environment(session, "quick")
    tester.run("ruff", "check")
    tester.run("ruff", "format", "--check", "--diff")
    # What comes from libraries that are not installed here has no type; `types` checks with all of them.
    tester.run("mypy", "--disable-error-code=import-not-found", "--no-warn-unused-ignores", NAME)
    variants = "--variant=numpy-readonly", "--variant=torch"
    pytest(tester, "quick", *SUITE, *SHORT, *variants, "--dtype=float64", "-k", "test_case or every_loss or bad_input")


@nox.session(venv_backend="none", tags=BOTH)
def demo(session: nox.Session) -> None:
    """Train two encoders on handwritten digits; options after ``--``, such as ``--backend torch``."""
    backend = chosen(session.posargs)
    if backend == "cupy" and OBSTACLE is not None:
        session.error(f"the demo cannot run on CuPy: {OBSTACLE}")
    if not (WORK / "env" / "demo").exists():
        session.log("Once: installs NumPy, SciPy, scikit-learn, Matplotlib and tqdm in .nox/env/demo, some 400 MB.")
    studio = environment(session, "demo")
    if backend in FRAMEWORKS:
        session.log(f"Installs {' '.join(FRAMEWORKS[backend])} in .nox/env/demo, unless it is there.")
        studio.install(*FRAMEWORKS[backend])
    studio.run("python", "-m", NAME, "demo", *session.posargs)


def chosen(options: Sequence[str]) -> str:
    """The backend among the demo's options."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--backend", default="numpy")
    backend: str = parser.parse_known_args(options)[0].backend
    return backend


# The suite and the tests


@nox.session(venv_backend="none", tags=RELEASE)
@nox.parametrize("name", [nox.param(name, id=name) for name in TOGETHER])
def conformance(session: nox.Session, name: str) -> None:
    """Run the conformance suite on the variants of one process: all cases on NumPy, covering arrays of the rest."""
    tester = alone(session, name) if name in VARIANTS and VARIANTS[name].gpu else environment(session, "all")
    run_suite(tester, name, *SHORT, variants=TOGETHER[name])


@nox.session(venv_backend="none")
@nox.parametrize("variant", [nox.param(name, id=name, tags=[] if name in NOT_RUN else FULL) for name in VARIANTS])
def conformance_full(session: nox.Session, variant: str) -> None:
    """Run the whole conformance suite on one variant, where its library is the only framework."""
    run_suite(alone(session, variant), variant, measured=True)


@nox.session(venv_backend="none", tags=FULL)
def cupy_stand_in(session: nox.Session) -> None:
    """Run the whole conformance suite on CuPy's adapter, on a stand-in of CuPy."""
    run_suite(environment(session, "arrays"), "cupy-stand-in", variants=(STAND_IN,), measured=True)


@nox.session(venv_backend="none", tags=FULL)
def compiled_steps(session: nox.Session) -> None:
    """Run cases of the conformance suite with compiled steps, on PyTorch without a GPU."""
    variants = (f"{NAME}.testing.variants:FUSED",)
    run_suite(environment(session, "torch"), "torch-fused", *SHORT, "-k", "test_case", variants=variants)


@nox.session(venv_backend="none", tags=BOTH)
def newcomer(session: nox.Session) -> None:
    """Run the commands that CONTRIBUTING.md begins with: `quick`, in a clone and a new environment with only nox."""
    home = WORK / "newcomer"
    shutil.rmtree(home, ignore_errors=True)
    session.run("git", "clone", "--quiet", "--depth=1", ROOT.as_uri(), str(home / "clone"), external=True)
    session.run(sys.executable, "-m", "virtualenv", "--quiet", str(home / "env"), external=True)
    user = Environment(session, home / "env")
    user.install("nox")
    started = time.monotonic()
    with session.chdir(home / "clone"):
        user.run("python", "-m", "nox", "-s", "quick")
    print(f"quick took {time.monotonic() - started:.0f} s in a new clone, with the installation")


OWN: Final = ("tests", *(f"--ignore=tests/{name}" for name in ("full", "plugin", "ranks", "vendored")))
"""The project's own tests that need no further setup."""

EXPERIMENTS: Final = tuple(f"tests/full/test_{name}.py" for name in ("contestants", "experiments"))
"""Tests of the benchmarks, in the full run only."""


@nox.session(venv_backend="none", tags=RELEASE)
def tests(session: nox.Session) -> None:
    """Run the project's own tests: distribution, architecture, imports, and frameworks against each other."""
    pytest(environment(session, "all"), "tests", *OWN, *SHORT, "-m", "not full", env=LIGHT_XLA)


@nox.session(venv_backend="none", tags=FULL)
def tests_full(session: nox.Session) -> None:
    """Run the project's own tests with all combinations of parameters."""
    pytest(environment(session, "all"), "tests", *OWN, *EXPERIMENTS, measured=True, env=LIGHT_XLA)


@nox.session(venv_backend="none", tags=BOTH)
def doctest(session: nox.Session) -> None:
    """Run the examples of the docstrings and of the documents."""
    cupy = () if OBSTACLE is None else ("--ignore-glob=*/backends/cupy.py",)  # cannot be imported without CuPy
    documents = [str(path.relative_to(ROOT)) for path in (ROOT / "README.md", ROOT / "docs") if path.exists()]
    suite, site = "--ignore-glob=*/testing/suite/*", "--ignore-glob=docs/*.py"
    arguments = "--doctest-modules", "--doctest-glob=*.md", "--pyargs", NAME, *documents, *cupy, suite, site
    pytest(environment(session, "all"), "doctest", *arguments)


@nox.session(venv_backend="none", tags=FULL)
def ranks(session: nox.Session) -> None:
    """Run losses on groups of processes: torch's on gloo, JAX's meshes, MPI."""
    # Tests start processes of their own.
    pytest(environment(session, "all"), "ranks", "tests/ranks", processes="0")


@nox.session(venv_backend="none", tags=BOTH)
def peers(session: nox.Session) -> None:
    """Compare with other libraries, as on docs/from-*.md, and in transfer entropy; run trainers and Keras."""
    comparer = environment(session, "peers")
    comparer.install("--no-deps", *(PEERS[name] for name in ALONE), SBI)
    pytest(comparer, "peers", "tests/full/peers", processes="0")  # imports take most of the time


@nox.session(venv_backend="none", tags=FULL)
def plugin(session: nox.Session) -> None:
    """Run the suite on two libraries without a built-in adapter: a miniature plugin and Dask."""
    party = environment(session, "plugin")
    folder = ROOT / "tests" / "plugin"
    party.install("--force-reinstall", "--no-deps", str(copied(folder / "metered")))
    pytest(party, "plugin", "tests/plugin")
    pytest(party, "plugin-metered", *SUITE, "--variant=metered.conformance:VARIANT")
    # Dask is slow, as each operation makes a task: only the cases against the oracles.
    slice_ = "--variant=dask_arrays:VARIANT", "-k", "test_case and float64"
    pytest(party, "plugin-dask", *SUITE, *slice_)


def vendor(session_environment: Environment) -> Mapping[str, str]:
    """Copy portable_nce/ and backends/ into two packages, one with array-api-compat; return the settings to import."""
    home = WORK / "vendored"
    shutil.rmtree(home, ignore_errors=True)
    for package in (home / "dummy" / "_vendor", home / "plain"):
        options = "--suite", "--no-dependency"  # the environment need not have array-api-compat
        session_environment.run("python", "adoption/vendor.py", str(package), *options, silent=True)
    (home / "dummy" / "__init__.py").touch()
    target = home / "dummy" / "_vendor"
    session_environment.install("--no-deps", "--target", str(target), *PYPROJECT["project"]["dependencies"])
    return {"PYTHONPATH": str(home)}


@nox.session(venv_backend="none", tags=FULL)
def vendored(session: nox.Session) -> None:
    """Vendor the package in others, with and without array-api-compat, and run a part of the suite."""
    alone_ = environment(session, "vendored", project=False)
    env = vendor(alone_)
    pytest(alone_, "vendored", "tests/vendored/test_alone.py", env=env)
    suite = (argument.replace(NAME, f"dummy._vendor.{NAME}") for argument in SUITE)
    pytest(alone_, "vendored-suite", *suite, "-k", f"test_case or {CONTRACT} or bad_input", env=env)
    pytest(environment(session, "torch"), "vendored-beside", "tests/vendored/test_beside.py", env=env)


@nox.session(venv_backend="none", tags=RELEASE)
def integration(session: nox.Session) -> None:
    """Run short forms of `ranks`, `plugin` and `vendored`."""
    tester = environment(session, "all")
    # One file to a process: some tests wait for the end of a time, others for groups of processes.
    pytest(tester, "ranks", "tests/ranks", "-m", "not full", "--dist=loadfile")
    pytest(tester, "vendored-beside", "tests/vendored/test_beside.py", env=vendor(tester))
    # Not into the environment, where other sessions would see its entry point.
    party = WORK / "plugin"
    shutil.rmtree(party, ignore_errors=True)
    metered = copied(ROOT / "tests" / "plugin" / "metered")
    tester.install("--no-deps", "--no-build-isolation", "--target", str(party), str(metered))
    env = {"PYTHONPATH": os.pathsep.join((str(party), str(ROOT / "tests")))}
    pytest(tester, "plugin", "tests/plugin", "-m", "not full", env=env)
    few = "--variant=metered.conformance:VARIANT", "-k", CONTRACT
    pytest(tester, "plugin-metered", *SUITE, *few, env=env)


@nox.session(venv_backend="none", tags=BOTH)
def lowest_versions(session: nox.Session) -> None:
    """Run a part of the suite on the lowest declared versions; every call on them and the newest, without warnings."""
    lowest = environment(session, "lowest")
    call = "python", "-W", "error", str(ROOT / "tools" / "every_call.py")
    lowest.run(*call, "numpy", "array-api-strict-strictest", "jax-x64")
    further = [name for name in ("mparray", "mlx") if name not in NOT_RUN]
    environment(session, "all").run(*call, "numpy", "array-api-strict-strictest", "jax-x64", *further)
    # Without exact arithmetic: mparray needs a newer NumPy.
    pytest(lowest, "lowest-numpy", *SUITE, "-k", f"test_case or {CONTRACT} or saturation")
    strictest = "--variant=array-api-strict-strictest", "-k", "test_case"
    pytest(lowest, "lowest-array-api-strict", *SUITE, *strictest)
    few = "test_case and float64 and (clip or dcl or siglip or moco) and not streamed"
    pytest(lowest, "lowest-jax", *SUITE, "--variant=jax-x64", "-k", few)
    if sys.platform != "linux":
        pytest(lowest, "lowest-torch", *SUITE, "--variant=torch", "-k", "test_case")


@nox.session(venv_backend="none", tags=FULL)
@nox.parametrize(
    "release", [nox.param(name, id=name, tags=RELEASE if name.endswith("newest") else []) for name in COMPILING]
)
def compile(session: nox.Session, release: str) -> None:  # noqa: A001  (the name of the session)
    """Compile losses on the oldest and newest releases of PyTorch and JAX, and on releases of PyTorch between.

    PyTorch's newest also runs the conformance suite: of its release 2.15, second derivatives had other rules.
    """
    tester = environment(session, release)
    pytest(tester, f"compile-{release}", "tests/full/test_compilers.py", env={"JAX_ENABLE_X64": "1"})
    if release == "torch-newest":
        run_suite(tester, release, *SHORT, variants=("torch",))
    if release.startswith("torch"):
        shutil.rmtree(tester.folder)  # gigabytes of CUDA each
        READY.discard(release)


@nox.session(venv_backend="none")
def mutation(session: nox.Session) -> None:
    """Run mutation testing; options after ``--``, such as ``--sample 200 --budget 3``."""
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tools")}
    tester = environment(session, "all")
    tester.run("python", "-m", "mutation.run", str(WORK / "mutation"), *session.posargs, env=env)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Benchmark against the roofline and other libraries; options after ``--``, such as ``--only clip``."""
    env = {"PYTHONPATH": str(ROOT / "benchmarks")}  # the safe path excludes the folder of the script
    environment(session, "bench").run("python", "benchmarks/speed.py", *session.posargs, env=env)


@nox.session(venv_backend="none")
def formulas(session: nox.Session) -> None:
    """Time every loss beside its plain formula; options after ``--``, such as ``--only nca`` or ``--record``."""
    env = {"PYTHONPATH": str(ROOT / "benchmarks")}  # as above
    environment(session, "bench").run("python", "benchmarks/catalogue.py", *session.posargs, env=env)


@nox.session(venv_backend="none")
def count_launches(session: nox.Session) -> None:
    """Count what losses cost on a GPU, without one; ``-- --record`` writes the table and the test's limits."""
    environment(session, "bench").run("python", "benchmarks/launches.py", *session.posargs)


@nox.session(venv_backend="none")
def mi_benchmark(session: nox.Session) -> None:
    """Compare with the estimators of benchmark-mi on its tasks; options after ``--``, such as ``--quick``."""
    theirs = environment(session, "bmi", project=False).programs / "python"
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    flags = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
    env = {"PYTHONPATH": str(ROOT / "benchmarks"), **threads, **flags}
    options = "--bmi", str(theirs), *session.posargs
    environment(session, "estimates").run("python", "benchmarks/mi_benchmark.py", *options, env=env)


# Tools


@nox.session(venv_backend="none", tags=BOTH)
def lint(session: nox.Session) -> None:
    """Check style and formatting by ruff, and the workflows by zizmor."""
    linter = environment(session, "lint", project=False)
    linter.run("ruff", "check", *session.posargs)
    linter.run("ruff", "format", "--check", "--diff")
    if (ROOT / ".github").exists():  # not in an sdist
        linter.run("zizmor", "--offline", "--persona=auditor", "--collect=all", "--strict-collection", ".github")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check the types of the package, tests and benchmarks by mypy, strict."""
    environment(session, "all").run("mypy")


@nox.session(venv_backend="none", tags=BOTH)
def types_full(session: nox.Session) -> None:
    """Check all types by pyright too, and test the verdicts of both checkers on valid and invalid calls."""
    checker = environment(session, "all")
    try:
        checker.run("mypy")
    finally:
        checker.run("pyright", "--pythonpath", str(checker.programs / "python"))
    pytest(checker, "types", "tests/full/typed", processes="0")


# A release


@nox.session(venv_backend="none", tags=BOTH)
def release(session: nox.Session) -> None:
    """Build and check sdist and wheel, install the wheel in a new environment and run the demo there.

    ``--repository https://github.com/OWNER/NAME`` adds links and badges, and writes the recipe for conda-forge; known
    on GitHub. ``--tag v0.1.0``: tag of the release. `tools/release.py` has all options.
    """
    folder = WORK / "release"
    environment(session, "release", project=False).run(
        "python", "tools/release.py", "build", str(folder), *session.posargs
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    version = wheel.name.split("-")[1]
    shutil.rmtree(WORK / "env" / "released", ignore_errors=True)
    user = environment(session, "released", project=False)
    user.install(f"{wheel}[demo]")
    installed = user.capture("python", "-c", f"import {NAME}; print({NAME}.__version__, {NAME}.__file__)")
    if installed.split(maxsplit=1)[0] != version or str(user.folder) not in installed:
        session.error(f"expected {version} in {user.folder}, got {installed}")
    user.run("python", "-m", NAME, "demo", "--output", str(folder / "demo.png"))


# The end of a run


def percent(part: int, whole: int) -> float:
    """Share in percent; 0 if nothing was measured."""
    return 100.0 * part / whole if whole else 0.0


@nox.session(venv_backend="none", tags=FULL)
def coverage(session: nox.Session) -> None:
    """Combine and show the coverage of `tests_full`, `cupy_stand_in` and `conformance_full`; fail below the floor."""
    measurer = environment(session, "arrays")
    folder = results("coverage")
    env = {"COVERAGE_FILE": str(folder / "coverage")}
    data = sorted(
        str(path) for path in (WORK / "results").glob("*/coverage*") if path.is_file() and path.parent != folder
    )
    if not data:
        session.error("no session has left coverage data: run tests_full, cupy_stand_in or conformance_full first")
    measurer.run("coverage", "combine", "--keep", "--quiet", *data, env=env)
    measurer.run("coverage", "report", env=env)
    measurer.run("coverage", "json", "--quiet", "-o", str(folder / "coverage.json"), env=env)
    report = json.loads((folder / "coverage.json").read_text(encoding="utf-8"))["files"]
    low = []
    print(f"\n{'':14} {'lines':>8} {'branches':>9}")
    for room in ("portable_nce", "backends"):
        files = [file["summary"] for path, file in report.items() if Path(path).parts[0] == room]
        lines, branches = (
            percent(sum(file[f"covered_{what}"] for file in files), sum(file[number] for file in files))
            for what, number in (("lines", "num_statements"), ("branches", "num_branches"))
        )
        print(f"{room + '/':14} {lines:7.1f}% {branches:8.1f}%")
        low += [
            f"{room}/ {share:.1f} % of the {what}"
            for what, share in (("lines", lines), ("branches", branches))
            if share < COVERAGE_FLOOR
        ]
    if low:
        session.error(f"below {COVERAGE_FLOOR:g} %: {', '.join(low)}")


@nox.session(venv_backend="none", tags=FULL)
def agreement(session: nox.Session) -> None:
    """Report the rounding errors of variants, and fail beyond the bounds; ``-- --record`` updates them."""
    for name in VARIANTS:
        ran = (WORK / "results" / f"conformance-{name}" / "junit.xml").exists()
        if not ran and name not in NOT_RUN and VARIANTS[name].library != "mparray":
            only = f"--variant={name}", "-k", "values_and_gradients"
            pytest(alone(session, name), f"conformance-{name}", *SUITE, *only, options=False)
    folder = results("agreement")
    reporter = environment(session, "all")
    reporter.run("python", "tools/agreement.py", str(WORK / "results"), str(folder), *session.posargs)
    print(f"The report is {folder / 'agreement.html'}")


@nox.session(venv_backend="none")
def catalogue(session: nox.Session) -> None:
    """Write docs/catalogue.md from the code."""
    page = environment(session, "all").capture("python", "tools/loss_table.py")
    (ROOT / "docs" / "catalogue.md").write_text(page, encoding="utf-8")


@nox.session(venv_backend="none", tags=BOTH)
def docs(session: nox.Session) -> None:
    """Run the gallery and build the site in .nox/docs; options of Sphinx after ``--``.

    ``-D plot_gallery=0`` is fast. ``-b linkcheck`` checks external links, and needs the network.

    Warnings are errors: a public name without a page or a docstring, a broken internal link, a failing gallery script.
    """
    writer = environment(session, "docs")
    source, site = ROOT / "docs", WORK / "docs"
    for folder in (site, source / "auto_gallery", source / "reference" / "generated"):  # delete pages of earlier runs
        shutil.rmtree(folder, ignore_errors=True)
    options = "-b", "html", "--nitpicky", "--fail-on-warning", "--keep-going", "--quiet", *session.posargs
    env = {"OMP_NUM_THREADS": "1"}  # the arrays of the gallery are small
    writer.run("python", "-m", "sphinx", *options, str(source), str(site), env=env)
    if "GITHUB_REPOSITORY" in os.environ:  # the site of this version is published next to those of others
        writer.run("python", "tools/release.py", "switcher", str(site / "switcher.json"))
    print(f"The site is {site / 'index.html'}")


def reports() -> dict[str, ET.Element]:
    """Reports of pytest of this run, by session, in the order in which they were written."""
    written = {path: path.stat().st_mtime for path in (WORK / "results").glob("*/junit.xml")}
    found = {}
    for path in sorted((path for path in written if written[path] >= STARTED), key=written.__getitem__):
        root = ET.parse(path).getroot()  # noqa: S314  written by our own pytest a moment ago
        found[path.parent.name] = root[0]  # its only suite
    return found


def outcomes(suite: ET.Element) -> dict[str, float]:
    """Numbers of outcomes in a report of pytest."""
    counts = {key: float(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped", "time")}
    counts["passed"] = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    return counts


def durations(suite: ET.Element) -> Iterator[tuple[float, str]]:
    """Seconds and name of each test in a report of pytest."""
    for test in suite.iter("testcase"):
        yield float(test.get("time", 0)), f"{test.get('classname')}::{test.get('name')}"


def failures(suite: ET.Element) -> Iterator[tuple[str, str]]:
    """Name of each failed test in a report of pytest, and the first line of its error."""
    for test in suite.iter("testcase"):
        for kind in ("failure", "error"):
            for found in test.findall(kind):
                reason = (found.get("message") or "").partition("\n")[0]
                yield f"{test.get('classname')}::{test.get('name')}", reason


@nox.session(venv_backend="none", tags=BOTH)
def test_summary(session: nox.Session) -> None:
    """Print the outcomes of each session, releases, variants that could not run, failed and slow tests, and the costs.

    The default run fails if it took more than twice its budget of processor time; processors differ by a quarter.
    """
    total: dict[str, float] = {}
    suites = reports()
    print("\nTests, by session:")
    for name, suite in suites.items():
        counts = outcomes(suite)
        total = {key: total.get(key, 0.0) + value for key, value in counts.items()}
        print(f"  {name:38} {closing(counts)}")
    for name, reason in NOT_RUN.items():
        print(f"  {'conformance-' + name:38} NOT RUN: {reason}")
    print("\nArray libraries, by environment:")
    for name in sorted(READY):
        print(f"  {name:38} {', '.join(releases(WORK / 'env' / name)) or 'none'}")
    failed = [test for suite in suites.values() for test in failures(suite)]
    if failed:
        print("\nFailed tests:")
        for name, reason in failed:
            print(f"  {name}\n    {reason}")
    print("\nSlowest tests:")
    for seconds, name in sorted((test for suite in suites.values() for test in durations(suite)), reverse=True)[:5]:
        print(f"  {seconds:5.1f} s  {name}")
    used = os.times()
    processor = used.children_user + used.children_system
    print(f"\n===== {closing(total)} =====")
    minutes = f"{processor / 60:.1f} minutes of processor time in {(time.time() - STARTED) / 60:.1f} minutes"
    print(f"{minutes}; the budget of the default run is {BUDGET / 60:.0f} minutes of processor time")
    if "tests" in suites and processor > 2.0 * BUDGET:
        session.error("the default run takes too long: mark slow tests as `full`, or make them smaller")


def closing(counts: Mapping[str, float]) -> str:
    """Counts in the words of pytest."""
    words = (
        ("failures", "failed"),
        ("passed", "passed"),
        ("skipped", "skipped"),
        ("errors", "in error"),
    )
    parts = [f"{counts[key]:.0f} {word}" for key, word in words if counts.get(key)]
    return f"{', '.join(parts) or 'no tests ran'} in {counts.get('time', 0.0):.1f} s"
