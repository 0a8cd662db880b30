"""Everything that is checked here.

- ``python -m nox`` runs the checks that find defects, and names the variants that this machine cannot run.
- ``python -m nox -s quick`` runs the linter, the type checker, every case on NumPy and some on PyTorch.
- ``python -m nox -t full`` runs every variant and test in full, the lowest versions, other libraries and the demo: for
  releases.

``nox -l`` lists the sessions. Environments are shared between sessions, live under ``.nox/env`` and are kept until
their list of packages changes. ``.nox/cache`` keeps what JAX has compiled. Delete ``.nox`` to begin afresh.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import runpy
import shutil
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

import nox

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

nox.needs_version = ">=2025.2"

ROOT: Final = Path(__file__).parent
WORK: Final = ROOT / ".nox"
NAME: Final = "portable_nce"

TORCH: Final = "torch==2.13.0"
"""One version for all environments, so that the conformance, type and demo sessions speak of the same PyTorch."""

DASK: Final = "dask[array]>=2025.1"
"""A library of the array API that the package does not know."""

LIGHTNING: Final = "lightning>=2.6"
"""For docs/recipe-lightning.md; `accelerate`, which it needs too, is in the group of the trainer."""

CUPY: Final = "cupy-cuda12x[ctk]"
"""CuPy with the CUDA libraries, so that a machine needs no more than the driver."""

COVERAGE_FLOOR: Final = 95.0
"""Percent of the lines, and of the branches, that the tests of portable_nce/ and of backends/ must reach."""

PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


REPOSITORY: Final = (
    "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}".format_map(os.environ)
    if "GITHUB_REPOSITORY" in os.environ
    else PYPROJECT["project"].get("urls", {}).get("Source", "")
)
"""The address of the repository: that of GitHub's workflow, or that of the metadata, if it is there."""


def group(name: str) -> tuple[str, ...]:
    """Give the requirements of a dependency group of pyproject.toml that includes no other."""
    return tuple(PYPROJECT["dependency-groups"][name])


def extras(*names: str) -> tuple[str, ...]:
    """Give the requirements of the project's extras."""
    return tuple(requirement for name in names for requirement in PYPROJECT["project"]["optional-dependencies"][name])


def floors(requirements: Sequence[str]) -> tuple[str, ...]:
    """Pin requirements of the form name>=version to their lowest versions."""
    return tuple(requirement.replace(">=", "==") for requirement in requirements)


TESTING: Final = (*extras("test"), *group("coverage"), *group("speed"))
ARRAYS: Final = group("arrays")

FRAMEWORKS: Final = {"torch": (TORCH,), "jax": extras("jax"), "mlx": extras("mlx"), "cupy": (CUPY,)}
"""What pip installs for a framework."""

PEERS: Final = {
    name: f"{name}=={version}"
    for page in sorted((ROOT / "docs").glob("from-*.md"))
    for name, version in re.findall(r"^# Coming from (\S+) (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
}
"""The libraries whose losses are compared with ours: the requirement of each, as its page has it."""

ALONE: Final = ("lightly", "solo-learn", "open-clip-torch", "libauc")
"""Peers without what they depend on: as a whole they want torchvision and more, their losses PyTorch alone."""

SBI: Final = "sbi==0.27.0"
"""Another of these, whose losses are methods and have no page."""


ENVIRONMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    # For one library each, so that a session of the tag "full" shows that the project needs no other.
    "arrays": (*TESTING, *ARRAYS),
    "torch": (*TESTING, TORCH, "numpy"),
    "jax": (*TESTING, *FRAMEWORKS["jax"]),
    "jax-cuda": (*TESTING, "jax[cuda12]"),
    "mlx": (*TESTING, *FRAMEWORKS["mlx"]),
    "cupy": (*TESTING, *FRAMEWORKS["cupy"]),
    # For the lowest versions that are declared. On Linux the lowest PyTorch comes with gigabytes of CUDA.
    "minimums": (
        *floors(PYPROJECT["project"]["dependencies"]),
        *floors((*extras("test", "numpy", "jax"), *ARRAYS)),
        *(() if sys.platform == "linux" else floors(extras("torch"))),
        *group("speed"),
    ),
    # For nearly all of the default run: installing it once takes less time than a few environments of their own.
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
        PEERS["optax"],
        PEERS["pytorch-metric-learning"],
        "numpy",
    ),
    # benchmark-mi 0.1.3 works with this JAX and older ones, and needs Python 3.11 for its pandas.
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
        LIGHTNING,
        *extras("jax", "demo"),
        "numpy",
    ),
    # For tools.
    "release": (*group("distribution"), *group("release")),
    "released": (),  # the wheel as users get it: each release installs what it depends on
    "docs": (*group("docs"), TORCH, *extras("jax", "demo"), "mpmath"),
    "lint": group("lint"),
    "demo": extras("demo"),
}
"""What pip installs beside the project, by environment."""

ENVIRONMENT_OF: Final[Mapping[str, str]] = {
    "numpy": "arrays",
    "array-api-strict": "arrays",
    "mparray": "arrays",
    "torch": "torch",
    "jax": "jax",
    "cupy": "cupy",
    "mlx": "mlx",
}
"""The environment of a variant, by its library."""


def gpu_obstacle() -> str | None:
    """Say why nothing can run on an NVIDIA GPU here, or None if it can."""
    if shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists():
        return None
    return "it needs an NVIDIA GPU, and there is neither nvidia-smi nor /dev/nvidia0 on this machine"


VARIANTS: Final[Mapping[str, Any]] = runpy.run_path(str(ROOT / "portable_nce" / "testing" / "variants.py"))["VARIANTS"]
"""The table of variants; it needs the standard library alone."""

SUITE: Final = ("-p", f"{NAME}.testing.plugin", "--pyargs", f"{NAME}.testing.suite")
"""How pytest is told to run the conformance suite, which is a part of the package."""

OBSTACLE: Final = gpu_obstacle()
NOT_RUN: Final = {name: OBSTACLE for name, variant in VARIANTS.items() if variant.gpu and OBSTACLE is not None}
"""The variants that cannot run on this machine, and why."""

TOGETHER: Final[Mapping[str, tuple[str, ...]]] = {
    "host": ("numpy-readonly", "array-api-strict-strictest", "torch", "torch-halves", "mlx", "mparray"),
    # What JAX computes in is one choice for a process.
    "jax-x64": ("jax-x64",),
    "jax-x32": ("jax-x32",),
    **{name: (name,) for name, variant in VARIANTS.items() if variant.gpu and name not in NOT_RUN},
}
"""The variants of the default run, by the processes that run them: of variants that differ in one flag there is one."""

SHORT: Final = ("-p", f"{NAME}.testing.covering")
"""How pytest is told to run, of the parameters of each test, a covering array in place of the product."""

nox.options.sessions = [
    "lint",
    "types",
    "doctest",
    *(f"conformance({name})" for name in TOGETHER),
    "tests",
    "integration",
    "summary",
]

FULL: Final = ["full"]
"""The tag of the sessions for releases and for the weekly run."""


CACHES: Final[Mapping[str, str]] = {
    "JAX_COMPILATION_CACHE_DIR": str(WORK / "cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # nearly all that is compiled is one small operation
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
"""Where JAX keeps its compiled programs: its key is their source and its settings."""

LARGEST_CACHE: Final = 500 * 2**20
"""The bytes that JAX's compiled programs may take; those of one run take some 50 MiB."""

LIGHT_XLA: Final[Mapping[str, str]] = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
"""For tests of JAX of which compiling is most of the time."""


# Environments


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the session that uses it now."""

    session: nox.Session
    folder: Path

    def run(self, program: str, *args: str, env: Mapping[str, str] | None = None, silent: bool = False) -> None:
        """Run a program of this environment in the root of the project; silent: shown only if it fails."""
        # Safe path: the working directory must not shadow the installed package by the source tree.
        settings = {"PYTHONSAFEPATH": "1", "VIRTUAL_ENV": str(self.folder), **(env or {})}
        self.session.run(str(self.programs / program), *args, env=settings, silent=silent, external=True)

    def capture(self, program: str, *args: str, env: Mapping[str, str] | None = None) -> str:
        """Run a program of this environment in the root of the project, and give what it prints."""
        settings = {"PYTHONSAFEPATH": "1", "VIRTUAL_ENV": str(self.folder), **(env or {})}
        return str(self.session.run(str(self.programs / program), *args, env=settings, silent=True, external=True))

    @property
    def programs(self) -> Path:
        """The folder with python, pip and pytest."""
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    def install(self, *args: str) -> None:
        """Let pip install."""
        pip = str(self.programs / "python"), "-m", "pip", "install", "--disable-pip-version-check"
        quiet = () if sys.stdout.isatty() else ("--quiet",)  # on a terminal, pip shows what it fetches
        self.session.run_install(*pip, *quiet, *args, external=True)


def environment(session: nox.Session, name: str, *, project: bool = True) -> Environment:
    """Give the environment of that name with its packages and, as a wheel, the project."""
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
        environment.install(str(wheel))  # what it depends on
        READY.add(name)
    return environment


READY: Final[set[str]] = set()
"""The environments that have this run's wheel."""

WHEELS: Final[list[Path]] = []
"""The project's wheel, once it is built: the tree is read once in a run."""


def built(environment: Environment) -> Path:
    """Build the project's wheel by way of its sdist, once in a run of nox."""
    if not WHEELS:
        folder = WORK / "dist"
        shutil.rmtree(folder, ignore_errors=True)
        environment.run("python", "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), silent=True)
        WHEELS.extend(folder.glob("*.whl"))
    return WHEELS[0]


def alone(session: nox.Session, variant: str) -> Environment:
    """Give the environment that has the library of a variant and no other framework."""
    return environment(session, "jax-cuda" if variant == "jax-cuda" else ENVIRONMENT_OF[VARIANTS[variant].library])


# Tests


def copied(source: Path) -> Path:
    """Copy a distribution away from the tree, in which a build would leave its traces."""
    target = WORK / "dist" / source.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def results(name: str) -> Path:
    """Make an empty folder for what a session leaves to `coverage` and to `summary`."""
    folder = WORK / "results" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@cache
def trim_caches() -> None:
    """Once in a run, remove what JAX has compiled if that has grown: programs of old code are never used again."""
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
    """Run pytest, with the options of the command line, and keep the outcome and, if asked for, the coverage."""
    trim_caches()
    folder = results(name)
    command = ["coverage", "run", "-m", "pytest", "-p", "keep_coverage"] if measured else ["pytest"]
    outcome = f"--junit-xml={folder / 'junit.xml'}"
    # One thread for each process, and no further processes: the arrays of the tests are small.
    settings = {"COVERAGE_FILE": str(folder / "coverage"), "PYTHONPATH": str(ROOT / "tests"), **CACHES}
    settings |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    workers = "-n", processes, "--maxprocesses=8"
    further = environment.session.posargs if options else ()
    environment.run(*command, *args, *workers, outcome, *further, env=settings | dict(env or {}))


def run_suite(tester: Environment, name: str, *args: str, variants: Sequence[str] = (), measured: bool = False) -> None:
    """Run the conformance suite, or a part of it, on some variants at once, or on that of the name."""
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
        processes="0" if any(VARIANTS[variant].gpu for variant in variants) else "auto",  # its memory is not shared out
        env=LIGHT_XLA if name == "jax-x64" else None,  # XLA optimises what jax-x32 runs; compiling is most of the time
    )


@nox.session(venv_backend="none")
@nox.parametrize("name", [nox.param(name, id=name) for name in TOGETHER])
def conformance(session: nox.Session, name: str) -> None:
    """Run the conformance suite on the variants of one process: all cases on NumPy, covering arrays of the rest."""
    tester = alone(session, name) if name in VARIANTS and VARIANTS[name].gpu else environment(session, "all")
    run_suite(tester, name, *SHORT, variants=TOGETHER[name])


@nox.session(venv_backend="none")
@nox.parametrize("variant", [nox.param(name, id=name, tags=[] if name in NOT_RUN else FULL) for name in VARIANTS])
def whole(session: nox.Session, variant: str) -> None:
    """Run the whole conformance suite on one variant, where its library is the only framework."""
    run_suite(alone(session, variant), variant, measured=True)


@nox.session(venv_backend="none")
def quick(session: nox.Session) -> None:
    """Check style and types, and run every case on NumPy and some on PyTorch; options of pytest after ``--``."""
    tester = environment(session, "quick")
    tester.run("ruff", "check")
    tester.run("ruff", "format", "--check", "--diff")
    # What imports libraries that are not installed here is checked by `types`.
    tester.run("mypy", "--follow-imports=silent", "--exclude=(_cli|modules)/", NAME)
    variants = "--variant=numpy-readonly", "--variant=torch"
    pytest(tester, "quick", *SUITE, *SHORT, *variants, "--dtype=float64", "-k", "test_case or every_loss or bad_input")


OWN: Final = ("tests", *(f"--ignore=tests/{name}" for name in ("full", "plugin", "ranks", "vendored")))
"""The project's own tests that need no further setting up."""

EXPERIMENTS: Final = tuple(f"tests/full/test_{name}.py" for name in ("contestants", "experiments"))
"""Tests of the benchmarks, for the full run."""


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the project's own tests: distribution, architecture, import, and the frameworks against each other."""
    pytest(environment(session, "all"), "tests", *OWN, *SHORT, "-m", "not full", env=LIGHT_XLA)


@nox.session(venv_backend="none", tags=FULL)
def products(session: nox.Session) -> None:
    """Run the project's own tests with the products of their parameters."""
    pytest(environment(session, "all"), "tests", *OWN, *EXPERIMENTS, measured=True, env=LIGHT_XLA)


@nox.session(venv_backend="none", tags=FULL)
def doctest(session: nox.Session) -> None:
    """Run the examples of the docstrings and of the documents."""
    cupy = () if OBSTACLE is None else ("--ignore-glob=*/backends/cupy.py",)  # needs CuPy to be imported
    documents = [str(path.relative_to(ROOT)) for path in (ROOT / "README.md", ROOT / "docs") if path.exists()]
    suite, site = "--ignore-glob=*/testing/suite/*", "--ignore-glob=docs/*.py"
    arguments = "--doctest-modules", "--doctest-glob=*.md", "--pyargs", NAME, *documents, *cupy, suite, site
    pytest(environment(session, "all"), "doctest", *arguments)


@nox.session(venv_backend="none", tags=FULL)
def ranks(session: nox.Session) -> None:
    """Run losses on groups of processes: torch's on gloo, JAX's meshes, MPI."""
    # One process of pytest, which starts others.
    pytest(environment(session, "all"), "ranks", "tests/ranks", processes="0")


@nox.session(venv_backend="none", tags=FULL)
def peers(session: nox.Session) -> None:
    """Compare with the losses of other libraries, line by line of docs/from-*.md; run trainers, and Keras."""
    comparer = environment(session, "peers")
    comparer.install("--no-deps", *(PEERS[name] for name in ALONE), SBI)
    pytest(comparer, "peers", "tests/full/peers", processes="0")  # importing them is most of the time


@nox.session(venv_backend="none", tags=FULL)
def plugin(session: nox.Session) -> None:
    """Run the suite on two libraries that the package does not know: a distribution in miniature, and Dask."""
    party = environment(session, "plugin")
    folder = ROOT / "tests" / "plugin"
    party.install("--force-reinstall", "--no-deps", str(copied(folder / "metered")))
    pytest(party, "plugin", "tests/plugin")
    pytest(party, "plugin-metered", *SUITE, "--variant=metered.conformance:VARIANT")
    # Each operation of Dask makes a task: of the suite, the cases against the independent oracles.
    slice_ = "--variant=dask_arrays:VARIANT", "-k", "test_case and float64"
    pytest(party, "plugin-dask", *SUITE, *slice_)


def vendor(session_environment: Environment) -> Mapping[str, str]:
    """Copy the two folders into two packages, one of them with array-api-compat; give the settings to import them."""
    home = WORK / "vendored"
    shutil.rmtree(home, ignore_errors=True)
    for package in (home / "dummy" / "_vendor", home / "plain"):
        shutil.copytree(ROOT / NAME, package / NAME, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "backends", package / NAME / "backends", ignore=shutil.ignore_patterns("__pycache__"))
        (package / "__init__.py").touch()
    (home / "dummy" / "__init__.py").touch()
    target = home / "dummy" / "_vendor"
    session_environment.install("--no-deps", "--target", str(target), *PYPROJECT["project"]["dependencies"])
    return {"PYTHONPATH": str(home)}


@nox.session(venv_backend="none", tags=FULL)
def vendored(session: nox.Session) -> None:
    """Take the two folders over into other packages, with and without array-api-compat, and run a slice there."""
    alone_ = environment(session, "vendored", project=False)
    env = vendor(alone_)
    pytest(alone_, "vendored", "tests/vendored/test_alone.py", env=env)
    suite = (argument.replace(NAME, f"dummy._vendor.{NAME}") for argument in SUITE)
    pytest(alone_, "vendored-suite", *suite, "-k", "test_case or contract or bad_input", env=env)
    pytest(environment(session, "torch"), "vendored-beside", "tests/vendored/test_beside.py", env=env)


@nox.session(venv_backend="none")
def integration(session: nox.Session) -> None:
    """Run the short part of `ranks`, `plugin` and `vendored`: two processes, a distribution, copies beside ours."""
    tester = environment(session, "all")
    pytest(tester, "ranks", "tests/ranks", "-m", "not full", processes="0")
    pytest(tester, "vendored-beside", "tests/vendored/test_beside.py", env=vendor(tester))
    # Not into the environment, where its entry point would be announced to every other session.
    party = WORK / "plugin"
    shutil.rmtree(party, ignore_errors=True)
    metered = copied(ROOT / "tests" / "plugin" / "metered")
    tester.install("--no-deps", "--no-build-isolation", "--target", str(party), str(metered))
    env = {"PYTHONPATH": os.pathsep.join((str(party), str(ROOT / "tests")))}
    pytest(tester, "plugin", "tests/plugin", env=env)
    few = "--variant=metered.conformance:VARIANT", "-k", "contract"
    pytest(tester, "plugin-metered", *SUITE, *few, env=env)


@nox.session(venv_backend="none", tags=FULL)
def minimums(session: nox.Session) -> None:
    """Run a slice of the suite on the lowest versions that are declared."""
    lowest = environment(session, "minimums")
    # Exact arithmetic is left out: mparray asks for more than the lowest NumPy has.
    pytest(lowest, "minimums-numpy", *SUITE, "-k", "test_case or contract or saturation")
    strictest = "--variant=array-api-strict-strictest", "-k", "test_case"
    pytest(lowest, "minimums-array-api-strict", *SUITE, *strictest)
    few = "test_case and float64 and (clip or dcl or siglip or moco) and not streamed"
    pytest(lowest, "minimums-jax", *SUITE, "--variant=jax-x64", "-k", few)
    if sys.platform != "linux":
        pytest(lowest, "minimums-torch", *SUITE, "--variant=torch", "-k", "test_case")


@nox.session(venv_backend="none")
def mutation(session: nox.Session) -> None:
    """Test the tests by mutants of the code; options after ``--``, such as ``--sample 200 --budget 3``."""
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests" / "full")}
    tester = environment(session, "all")
    tester.run("python", "-m", "mutation.run", str(WORK / "mutation"), *session.posargs, env=env)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure speed and memory against the roofline and others; options after ``--``, such as ``--only clip``."""
    env = {"PYTHONPATH": str(ROOT / "benchmarks")}  # the safe path leaves out the script's own folder
    environment(session, "bench").run("python", "benchmarks/speed.py", *session.posargs, env=env)


@nox.session(venv_backend="none")
def mi_benchmark(session: nox.Session) -> None:
    """Estimate on the tasks of benchmark-mi, next to its estimators; options after ``--``, such as ``--quick``."""
    theirs = environment(session, "bmi", project=False).programs / "python"
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    flags = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
    env = {"PYTHONPATH": str(ROOT / "benchmarks"), **threads, **flags}
    options = "--bmi", str(theirs), *session.posargs
    environment(session, "estimates").run("python", "benchmarks/mi_benchmark.py", *options, env=env)


# Tools


@nox.session(venv_backend="none", tags=FULL)
def lint(session: nox.Session) -> None:
    """Check style and formatting by ruff, and the workflows by zizmor."""
    linter = environment(session, "lint", project=False)
    linter.run("ruff", "check", *session.posargs)
    linter.run("ruff", "format", "--check", "--diff")
    if (ROOT / ".github").exists():  # an sdist has none
        linter.run("zizmor", "--offline", "--persona=auditor", "--collect=all", "--strict-collection", ".github")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check the types of the package by mypy, strict."""
    environment(session, "all").run("mypy", NAME, "backends")


@nox.session(venv_backend="none", tags=FULL)
def typing(session: nox.Session) -> None:
    """Check all types by mypy and by pyright, and test what both say of calls right and wrong."""
    checker = environment(session, "all")
    try:
        checker.run("mypy")
    finally:
        checker.run("pyright", "--pythonpath", str(checker.programs / "python"))
    pytest(checker, "types", "tests/full/typed", processes="0")


@nox.session(venv_backend="none", tags=FULL)
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
    """Find the backend among the demo's options."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--backend", default="numpy")
    backend: str = parser.parse_known_args(options)[0].backend
    return backend


# A release


@nox.session(venv_backend="none", tags=FULL)
def release(session: nox.Session) -> None:
    """Build what is published, check it, install the wheel in a new environment and run the demo there.

    ``--repository https://github.com/OWNER/NAME``: adds its links and badges to a copy of the tree, and writes the
    recipe for conda-forge; on GitHub it is known. ``--email name@example.org``: the address of the authors. ``--fill``
    writes both into this checkout and stops. ``--tag v0.1.0``: the tag of the release, which must be the version, with
    a date in the changelog.
    """
    options = release_options(session.posargs)
    if options.fill:
        fill_in(ROOT, options.repository, options.email)
        return
    tree, dist = WORK / "release" / "tree", WORK / "release" / "dist"
    shutil.rmtree(WORK / "release", ignore_errors=True)
    leave_out = ".git", ".nox", ".venv", ".*_cache", "__pycache__", "*.egg-info", "build", "dist"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*leave_out))
    if options.repository:
        fill_in(tree, options.repository, options.email)
        make_links_absolute(tree / "README.md", options.repository, options.tag or "main")
    tools = environment(session, "release", project=False)
    tools.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), str(tree), silent=True)
    files = sorted(dist.iterdir())
    tools.run("twine", "check", "--strict", *map(str, files))
    wheel = files[0]
    version = wheel.name.split("-")[1]
    if [path.name for path in files] != [f"{NAME}-{version}-py3-none-any.whl", f"{NAME}-{version}.tar.gz"]:
        session.error(f"expected a wheel and an sdist of {version}, got {[path.name for path in files]}")
    if options.tag is not None:
        if options.tag != f"v{version}":
            session.error(f"--tag: expected v{version}, the version of the tree, got {options.tag}")
        heading = next(line for line in (tree / "CHANGELOG.md").open(encoding="utf-8") if line.startswith("## "))
        if not re.fullmatch(rf"## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n", heading):
            session.error(f"CHANGELOG.md: expected {version} and a date at the top, got {heading.strip()!r}")
    if options.repository:
        (WORK / "release" / "recipe.yaml").write_text(recipe(files[1], options.repository), encoding="utf-8")
    shutil.rmtree(WORK / "env" / "released", ignore_errors=True)
    user = environment(session, "released", project=False)
    user.install(f"{wheel}[demo]")
    installed = user.capture("python", "-c", f"import {NAME}; print({NAME}.__version__, {NAME}.__file__)")
    if installed.split(maxsplit=1)[0] != version or str(user.folder) not in installed:
        session.error(f"expected {version} in {user.folder}, got {installed}")
    user.run("python", "-m", NAME, "demo", "--output", str(WORK / "release" / "demo.png"))
    print("\n".join(f"{path.stat().st_size / 1024:6.0f} KiB  {path}" for path in files))


def release_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options of `release`."""
    forms = {
        "repository": (r"https://github\.com/[\w-]+/(?!.*\.git$)[\w.-]+", "https://github.com/OWNER/NAME"),
        "email": (r"[\w.+-]+@[\w-]+(\.[\w-]+)+", "name@example.org"),
        "tag": (r"v\d+\.\d+\.\d+\w*", "v and the version, such as v0.1.0"),
    }
    parser = argparse.ArgumentParser(prog="nox -s release --")
    parser.add_argument("--fill", action="store_true")
    for option in forms:
        parser.add_argument(f"--{option}")
    parser.set_defaults(repository=REPOSITORY or None)
    options = parser.parse_args(arguments)
    for option, (pattern, form) in forms.items():
        value = getattr(options, option)
        required = options.fill and option == "repository"
        if (required or value is not None) and not re.fullmatch(pattern, value or ""):
            parser.error(f"--{option}: expected {form}, got {value}")
    return options


def fill_in(tree: Path, repository: str, email: str | None = None) -> None:
    """Write the address of the repository, and that of the authors, wherever a published project has them."""
    owner, name = repository.rsplit("/", maxsplit=2)[1:]
    project, authors = PYPROJECT["project"]["name"], PYPROJECT["project"]["authors"][0]["name"]
    site, runs = site_of(repository), f"{repository}/actions/workflows"
    badges = f"""\
[![version](https://img.shields.io/pypi/v/{project})]({repository}/releases)
[![Python](https://img.shields.io/pypi/pyversions/{project})]({repository}/blob/main/pyproject.toml)
[![tests]({runs}/test.yml/badge.svg)]({runs}/test.yml)
[![documentation]({runs}/docs.yml/badge.svg)]({site})
[![licence](https://img.shields.io/github/license/{owner}/{name})]({repository}/blob/main/LICENSE)
"""
    urls = f"""\
[project.urls]
Documentation = "{site}"
Source = "{repository}"
Issues = "{repository}/issues"
Changelog = "{repository}/blob/main/CHANGELOG.md"
"""
    pip = f'python -m pip install "{project}[torch]"  # or [jax], [mlx], [cupy], [numpy]; or without brackets'
    clone = rf'^python -m pip install "(?:\.|{project})\[torch\]"  # .*$'
    places = [  # each in one place, whether it was filled before or not
        ("README.md", rf"\A# {NAME}\n\n(?:(?:\[!\[.*\n)+\n)?", f"# {NAME}\n\n{badges}\n"),
        ("README.md", clone, pip),
        ("docs/index.md", clone, pip),
        ("pyproject.toml", r"(?:^\[project\.urls\]\n(?:\w.*\n)+\n)?^\[project\.opt", f"{urls}\n[project.opt"),
        ("CITATION.cff", r"(?:^rep.*\nurl.*\n)?^key", f"repository-code: {repository}\nurl: {site}\nkey"),
        ("SECURITY.md", r"--repo [\w./-]+", f"--repo {owner}/{name}"),
    ]
    if email is not None:
        report, private = "**Report a vulnerability**", r"\*\*Report a vulnerability\*\*(?:, or by e-mail to <\S+>)?"
        places += [
            ("pyproject.toml", r"^authors = .*$", f'authors = [{{ name = "{authors}", email = "{email}" }}]'),
            ("CITATION.cff", rf'(?<=  - name: "{authors}"\n)(?:    email.*\n)?', f"    email: {email}\n"),
            ("SECURITY.md", private, f"{report}, or by e-mail to <{email}>"),
            ("CODE_OF_CONDUCT.md", private, f"{report}, or by e-mail to <{email}>"),
        ]
    for file, pattern, text in places:
        page = (tree / file).read_text(encoding="utf-8")
        filled, count = re.subn(pattern, text, page, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"{file}: expected one place of the form {pattern!r}, got {count}")
        (tree / file).write_text(filled, encoding="utf-8")


def site_of(repository: str) -> str:
    """Give the address of the pages of a repository on GitHub."""
    owner, name = repository.rsplit("/", maxsplit=2)[1:]
    return f"https://{owner}.github.io/{name}/"


def make_links_absolute(page: Path, repository: str, revision: str) -> None:
    """Make the links of the README absolute: the index of packages shows it without the tree beside it."""

    def absolute(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        kind = "raw" if picture else "tree" if (ROOT / target).is_dir() else "blob"
        return f"{picture}[{text}]({repository}/{kind}/{revision}/{target})"

    relative = re.compile(r"(!?)\[([^]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
    page.write_text(relative.sub(absolute, page.read_text(encoding="utf-8")), encoding="utf-8")


def recipe(sdist: Path, repository: str) -> str:
    """Write the recipe for conda-forge, in the format of rattler-build, from pyproject.toml and the sdist."""
    project = PYPROJECT["project"]
    lines = {
        key: "\n".join(f"    - {re.sub('(?=[<>=~!])', ' ', requirement, count=1)}" for requirement in requirements)
        for key, requirements in (("host", PYPROJECT["build-system"]["requires"]), ("run", project["dependencies"]))
    }
    return f"""\
schema_version: 1

context:
  version: "{sdist.name.removesuffix(".tar.gz").split("-")[1]}"
  python_min: "{project["requires-python"].removeprefix(">=")}"

package:
  name: {project["name"]}
  version: ${{{{ version }}}}

source:
  url: {repository}/releases/download/v${{{{ version }}}}/{NAME}-${{{{ version }}}}.tar.gz
  sha256: {hashlib.sha256(sdist.read_bytes()).hexdigest()}

build:
  number: 0
  noarch: python
  script: ${{{{ PYTHON }}}} -m pip install . -vv --no-deps --no-build-isolation

requirements:
  host:
    - python ${{{{ python_min }}}}.*
    - pip
{lines["host"]}
  run:
    - python >=${{{{ python_min }}}}
{lines["run"]}

tests:
  - python:
      imports:
        - {NAME}
        - {NAME}.backends
      pip_check: true
      python_version:
        - ${{{{ python_min }}}}.*
        - "*"

about:
  homepage: {repository}
  summary: {project["description"]}
  license: {project["license"]}
  license_file: {project["license-files"][0]}

extra:
  recipe-maintainers:
    - {repository.split("/")[-2]}
"""


# The end of a run


def percent(part: int, whole: int) -> float:
    """Give a share in percent; nothing measured is nothing reached."""
    return 100.0 * part / whole if whole else 0.0


@nox.session(venv_backend="none", tags=FULL)
def coverage(session: nox.Session) -> None:
    """Combine the coverage of the sessions that ran before, show it, and hold it to the floor."""
    measurer = environment(session, "arrays")
    folder = results("coverage")
    env = {"COVERAGE_FILE": str(folder / "coverage")}
    data = sorted(
        str(path) for path in (WORK / "results").glob("*/coverage*") if path.is_file() and path.parent != folder
    )
    if not data:
        session.error("no session has left coverage data: run conformance, tests and doctest first")
    measurer.run("coverage", "combine", "--keep", "--quiet", *data, env=env)
    # Only its own variant can run CuPy's adapter.
    omit = () if OBSTACLE is None else ("--omit=backends/cupy.py",)
    measurer.run("coverage", "report", *omit, env=env)
    measurer.run("coverage", "json", "--quiet", "-o", str(folder / "coverage.json"), *omit, env=env)
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
    if OBSTACLE is not None:
        print(f"backends/cupy.py is left out: {OBSTACLE}")
    if low:
        session.error(f"below {COVERAGE_FLOOR:g} %: {', '.join(low)}")


@nox.session(venv_backend="none", tags=FULL)
def agreement(session: nox.Session) -> None:
    """Report how far variants are from exact arithmetic, and fail beyond the bounds; ``-- --record`` renews them."""
    for name in VARIANTS:
        ran = (WORK / "results" / f"conformance-{name}" / "junit.xml").exists()
        if not ran and name not in NOT_RUN and VARIANTS[name].library != "mparray":
            only = f"--variant={name}", "-k", "values_and_gradients"
            pytest(alone(session, name), f"conformance-{name}", *SUITE, *only, options=False)
    folder = results("agreement")
    reporter = environment(session, "all")
    reporter.run("python", "tests/agreement.py", str(WORK / "results"), str(folder), *session.posargs)
    print(f"The report is {folder / 'agreement.html'}")


@nox.session(venv_backend="none")
def catalogue(session: nox.Session) -> None:
    """Write docs/catalogue.md anew, from the code."""
    page = environment(session, "all").capture("python", "tests/catalogue.py", env={"PYTHONPATH": "tests"})
    (ROOT / "docs" / "catalogue.md").write_text(page, encoding="utf-8")


@nox.session(venv_backend="none", tags=FULL)
def docs(session: nox.Session) -> None:
    """Run the gallery and build the site in .nox/docs; options of Sphinx after ``--``.

    ``-D plot_gallery=0`` is fast. ``-b linkcheck`` follows the links that leave the site, and needs the network.

    A warning is an error: a public name without a page or without a docstring, a broken link inside the site, a script
    of the gallery that fails.
    """
    writer = environment(session, "docs")
    source, site = ROOT / "docs", WORK / "docs"
    for folder in (site, source / "auto_gallery", source / "reference" / "generated"):  # no page of a former run stays
        shutil.rmtree(folder, ignore_errors=True)
    options = "-b", "html", "--nitpicky", "--fail-on-warning", "--keep-going", "--quiet", *session.posargs
    env = {"OMP_NUM_THREADS": "1"}  # the arrays of the gallery are small
    writer.run("python", "-m", "sphinx", *options, str(source), str(site), env=env)
    if REPOSITORY and (ROOT / ".git").exists():
        tags = str(session.run("git", "tag", silent=True, external=True)).split()
        (site / "switcher.json").write_text(json.dumps(versions(tags, site_of(REPOSITORY)), indent=1), encoding="utf-8")
    print(f"The site is {site / 'index.html'}")


def versions(tags: Sequence[str], site: str) -> list[dict[str, Any]]:
    """List main and the releases, newest first, for the theme's switcher of versions."""
    numbers = [tag[1:] for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    numbers.sort(key=lambda number: [int(part) for part in number.split(".")], reverse=True)
    listed: list[dict[str, Any]] = [{"version": number, "url": f"{site}{number}/"} for number in ("dev", *numbers)]
    for newest in listed[1:2]:
        newest |= {"name": f"{newest['version']} (stable)", "url": f"{site}stable/", "preferred": True}
    return listed


def outcomes(path: Path) -> dict[str, float]:
    """Read what pytest counted."""
    suite = ET.parse(path).getroot().find("testsuite")  # noqa: S314  written by our own pytest a moment ago
    assert suite is not None  # noqa: S101  pytest writes one
    counts = {key: float(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped", "time")}
    counts["passed"] = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    return counts


@nox.session(venv_backend="none", tags=FULL)
def summary(session: nox.Session) -> None:
    """Say what each session of tests counted, and by name what could not run."""
    del session
    total: dict[str, float] = {}
    reports = sorted((WORK / "results").glob("*/junit.xml"), key=lambda path: path.stat().st_mtime)
    print("\nTests, by session:")
    for path in reports:
        counts = outcomes(path)
        total = {key: total.get(key, 0.0) + value for key, value in counts.items()}
        print(f"  {path.parent.name:38} {closing(counts)}")
    for name, reason in NOT_RUN.items():
        print(f"  {'conformance-' + name:38} NOT RUN: {reason}")
    print(f"\n===== {closing(total)} =====")


def closing(counts: Mapping[str, float]) -> str:
    """Word the counts as pytest does."""
    words = (
        ("failures", "failed"),
        ("passed", "passed"),
        ("skipped", "skipped"),
        ("errors", "in error"),
    )
    parts = [f"{counts[key]:.0f} {word}" for key, word in words if counts.get(key)]
    return f"{', '.join(parts) or 'no tests ran'} in {counts.get('time', 0.0):.1f} s"
