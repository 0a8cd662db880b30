"""Folders and the imports between them, read from syntax trees; nothing is imported."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CORE = ROOT / "portable_nce"
BACKENDS = ROOT / "backends"

FRAMEWORKS = {"numpy", "torch", "jax", "cupy", "array_api_strict", "mparray", "dask", "tensorflow", "mlx"}

APPLICATION = {"__main__", "_cli"}
"""Parts of the package whose commands may use scientific libraries."""

OPTIONAL = {
    CORE / "estimation" / "display.py": {"matplotlib", "tqdm"},
    CORE / "estimation" / "host.py": {"numpy"},
}
"""Files of `estimation` that import optional libraries inside functions: for pictures, progress bars, host arrays."""

MODULES = {"torch": {"torch"}, "jax": {"jax"}}
"""The files of portable_nce/modules and the framework that each may import; no other file of the package may."""

SUITE = {"hypothesis", "mpmath", "pytest"}
"""Requirements of the conformance suite, besides the libraries under test."""

LAYERS = (
    ("_hints",),
    ("_core",),
    ("objectives", "pairings", "similarities"),
    ("_execution",),
    ("_call",),
    ("_losses", "bounds", "density", "diagnostics", "from_scores", "typing"),
)
"""Layers of the mathematics, lowest first; each may import from itself and from lower layers."""

USERS = (("__init__",), ("estimation", "modules", "testing"), ("_cli",), ("__main__",))
"""Layers above, lowest first."""

ADAPTER_MAY_IMPORT = {
    "__init__": set[str](),
    "defaults": set[str](),
    "tape": {"array_api_compat"},
    "traced": set[str](),
    "repeated": set[str](),
    "generic": {"array_api_compat"},
    "numpy": {"numpy"},
    "numpy_functions": set[str](),
    "numpy_namespace": {"numpy", "array_api_compat"},
    "torch": {"torch"},
    "torch_compiler": {"torch"},
    "torch_fused": {"torch"},
    "torch_namespace": {"torch", "array_api_compat"},
    "torch_ranks": {"torch"},
    "jax": {"jax"},
    "cupy": {"cupy"},
    "mlx": {"mlx"},
    "mlx_namespace": {"mlx"},
}
"""Allowed imports of each adapter, besides the standard library and its folder."""


@dataclass(frozen=True)
class Import:
    """An import: its dotted name, and whether it runs on import of the module, later, or for type checkers only."""

    name: str
    line: int
    at_run_time: bool
    at_module_level: bool


def is_type_checking(node: ast.AST) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Nodes of the syntax tree of a file, the module first."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


@cache
def imports(path: Path, package: str | None = None) -> list[Import]:
    """Imports of a file; relative ones are resolved in its package, or in the given one."""
    package = package or package_of(path)
    found: list[Import] = []

    def visit(node: ast.AST, *, run_time: bool, module_level: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, run_time, module_level) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            # Above the package: a sibling of a vendored copy.
            names = (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
            found.extend(Import(name, node.lineno, run_time, module_level) for name in names)
        elif is_type_checking(node):
            assert isinstance(node, ast.If)
            for types_alone, children in ((True, node.body), (False, node.orelse)):
                for statement in children:
                    visit(statement, run_time=run_time and not types_alone, module_level=module_level)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                visit(child, run_time=run_time, module_level=module_level and not inside)

    visit(nodes(path)[0], run_time=True, module_level=True)
    return found


def module_of(path: Path) -> str:
    """Layer of a file: the first folder or the module below portable_nce."""
    first = path.relative_to(CORE).parts[0]
    return first.removesuffix(".py")


def package_of(path: Path) -> str:
    """Dotted package in which a file resolves relative imports."""
    if path in ADAPTERS:
        return "portable_nce.backends"
    return ".".join(path.relative_to(ROOT).parent.parts)


CORE_FILES = sorted(CORE.rglob("*.py"))
CONFORMANCE = [path for path in CORE_FILES if module_of(path) == "testing" and path.name != "cases.py"]
FOR_ONE_FRAMEWORK = [path for path in CORE_FILES if module_of(path) == "modules" and path.stem != "__init__"]
MATHEMATICS = [
    path
    for path in CORE_FILES
    if module_of(path) not in APPLICATION and path not in CONFORMANCE and path not in {*FOR_ONE_FRAMEWORK, *OPTIONAL}
]
ADAPTERS = sorted(BACKENDS.glob("*.py"))


def top(name: str) -> str:
    """Top-level part of a dotted name."""
    return name.partition(".")[0]


def label(path: Path) -> str:
    """Path of a file from the root of the project."""
    return str(path.relative_to(ROOT))


def offenders(paths: Iterable[Path], faults: Callable[[Path], Any]) -> dict[str, Any]:
    """Problems by file, for files with problems."""
    return {label(path): found for path in paths if (found := faults(path))}


def strangers(path: Path, *allowed: str, run_time: bool = False) -> list[Import]:
    """Forbidden imports of a file outside of the standard library, all or only at run time."""
    known = {*sys.stdlib_module_names, *allowed}
    return [found for found in imports(path) if top(found.name) not in known and (found.at_run_time or not run_time)]


def test_the_core_imports_the_standard_library_and_array_api_compat_alone() -> None:
    assert offenders(MATHEMATICS, lambda path: strangers(path, "portable_nce", "array_api_compat")) == {}


def test_optional_libraries_of_estimation_are_imported_where_they_are_wanted() -> None:
    for path, libraries in OPTIONAL.items():
        assert strangers(path, "portable_nce", *libraries) == []
        assert not any(found.at_module_level for found in imports(path) if top(found.name) in libraries)


def test_only_the_commands_that_security_names_write_files() -> None:
    package = [path for folder in ("portable_nce", "backends") for path in (ROOT / folder).rglob("*.py")]
    calls = re.compile(r"\.(savefig|write_text|write_bytes|save|savez|dump)\(|open\([^)]*[\"'][wax]")
    writers = {path.stem for path in package if "testing" not in path.parts and calls.search(path.read_text("utf-8"))}
    assert writers == {"information", "picture"}  # `mi` and `demo`
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = r"but for the pictures of `python -m portable_nce demo` and\s+`python -m portable_nce mi`"
    assert re.search(named, security)


def test_tests_of_vendored_copies_do_not_need_the_package() -> None:
    shared = ROOT / "tests" / "conftest.py", ROOT / "tests" / "vendored" / "test_alone.py"
    for path in shared:
        needed = [found.name for found in imports(path) if found.at_module_level and found.at_run_time]
        assert "portable_nce" not in {top(name) for name in needed}, path


def test_the_suite_imports_no_framework() -> None:
    assert offenders(CONFORMANCE, lambda path: strangers(path, "portable_nce", *SUITE)) == {}


def test_a_module_for_one_framework_imports_that_framework_alone() -> None:
    assert {path.stem for path in FOR_ONE_FRAMEWORK} == set(MODULES)
    assert offenders(FOR_ONE_FRAMEWORK, lambda path: strangers(path, "portable_nce", *MODULES[path.stem])) == {}


def test_an_adapter_imports_its_framework_and_nothing_of_the_core() -> None:
    def faults(path: Path) -> list[Import]:
        others = strangers(path, "portable_nce", *ADAPTER_MAY_IMPORT[path.stem], run_time=True)
        of_the_core = [
            found
            for found in imports(path)
            if top(found.name) == "portable_nce" and not found.name.startswith("portable_nce.backends.")
        ]
        return others + [found for found in of_the_core if found.at_run_time]

    assert {path.stem for path in ADAPTERS} == set(ADAPTER_MAY_IMPORT)
    assert offenders(ADAPTERS, faults) == {}


def absolute(path: Path, package: str) -> list[int]:
    """Lines that import a package, or from it, by its absolute name."""
    found = [node for node in nodes(path) if isinstance(node, ast.ImportFrom) and node.level == 0]
    return [node.lineno for node in found if f"{node.module}.".startswith(f"{package}.")]


def test_the_suite_reaches_what_it_tests_by_relative_imports() -> None:
    # So it tests the package that contains it, also a vendored copy.
    def faults(path: Path) -> list[Any]:
        above = [found for found in imports(path, "relative." + package_of(path)) if top(found.name) == "portable_nce"]
        return [*absolute(path, "portable_nce"), *(above if path.name != "_package.py" else ())]

    assert offenders(CONFORMANCE, faults) == {}


def reaches_out(node: ast.ImportFrom) -> bool:
    """Whether an import leaves the folder, except to array-api-compat next to it."""
    return node.level > 1 and node.module != "array_api_compat"


def test_adapters_reach_each_other_by_relative_imports_and_the_core_by_absolute_ones() -> None:
    # So they work as portable_nce.backends and in vendored copies.
    def faults(path: Path) -> list[int]:
        above = [node.lineno for node in nodes(path) if isinstance(node, ast.ImportFrom) and reaches_out(node)]
        return [*above, *absolute(path, "portable_nce.backends")]

    assert offenders(ADAPTERS, faults) == {}


def test_array_api_compat_is_imported_in_one_place() -> None:
    def doors(path: Path) -> list[Import]:
        return [found for found in imports(path) if top(found.name) == "array_api_compat"]

    # The command line reports installed versions.
    found = offenders((path for path in CORE_FILES if module_of(path) not in APPLICATION), doors)
    assert set(found) == {"portable_nce/_core/namespace.py"}


def test_only_the_registry_names_frameworks() -> None:
    def names(path: Path) -> list[str]:
        # torch.compile can trace into array-api-compat only through an import statement.
        frameworks = FRAMEWORKS - ({"torch"} if label(path) == "portable_nce/_core/namespace.py" else set())
        helpers = {f"is_{framework}_{what}" for framework in frameworks for what in ("array", "namespace")}
        documentation = [node.value for node in nodes(path) if isinstance(node, ast.Expr)]
        found = []
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
                found += [node.value] if top(node.value) in frameworks else []
            if isinstance(node, ast.Name | ast.Attribute):
                name = node.id if isinstance(node, ast.Name) else node.attr
                found += [name] if name in frameworks | helpers else []
        return found

    # The registry has the table of the built-in adapters.
    assert set(offenders(MATHEMATICS, names)) == {"portable_nce/_core/registry.py"}


def members_of_adapters() -> set[str]:
    """Names of the methods and properties that the core uses of adapters."""
    classes = [node for node in nodes(CORE / "_core" / "protocol.py") if isinstance(node, ast.ClassDef)]
    methods = {node.name for made in classes for node in made.body if isinstance(node, ast.FunctionDef)}
    return methods | {"name", "version"}


def test_a_member_of_adapters_is_described_where_it_is_declared_and_in_no_list() -> None:
    """Who adds a method finds in the protocol all that there is to say of it."""
    members = members_of_adapters() - {"check", "stop_gradient", "value_and_grad"}  # names of other things, too
    assert {"custom_vjp", "value_and_vjp", "exp_in_place", "reads_values"} <= members

    def lists(path: Path) -> list[set[str]]:
        found = [node for node in nodes(path) if isinstance(node, ast.Set | ast.List | ast.Tuple)]
        texts = ({str(x.value) for x in node.elts if isinstance(x, ast.Constant)} for node in found)
        return [named for some in texts if len(named := some & members) > 1]

    assert offenders(MATHEMATICS, lists) == {}


def layer(name: str) -> int:
    """Layer number of a module of the core."""
    return next(height for height, names in enumerate((*LAYERS, *USERS)) if name in names)


def core_dependencies(path: Path) -> set[str]:
    """Modules of the core that a file imports at run time."""
    modules = {module_of(other) for other in CORE_FILES} - {"__init__"}
    found = set()
    for item in imports(path):
        if top(item.name) == "portable_nce" and item.at_run_time:
            second = item.name.split(".")[1] if "." in item.name else "__init__"
            found.add(second if second in {*modules, "backends"} else "__init__")
    return found - {module_of(path)}


def test_every_module_of_the_core_has_a_layer() -> None:
    assert {module_of(path) for path in CORE_FILES} == {name for layer in (*LAYERS, *USERS) for name in layer}


def test_lower_layers_do_not_import_upper_ones() -> None:
    def upward(path: Path) -> set[str]:
        height = layer(module_of(path))
        return {name for name in core_dependencies(path) - {"backends"} if layer(name) > height}

    assert offenders(CORE_FILES, upward) == {}


def test_only_the_registry_reaches_the_adapters() -> None:
    assert set(offenders(CORE_FILES, lambda path: "backends" in core_dependencies(path))) <= {
        "portable_nce/_core/registry.py"
    }


def test_the_core_is_free_of_cycles() -> None:
    names = {package_of(path) + "." + path.stem: path for path in CORE_FILES}
    names |= {package_of(path): path for path in CORE_FILES if path.stem == "__init__"}
    graph: dict[str, set[str]] = {}
    for path in CORE_FILES:
        for item in imports(path):
            if item.at_run_time and (item.at_module_level or path in MATHEMATICS):
                used = names.get(item.name) or names.get(item.name.rpartition(".")[0])
                graph.setdefault(label(path), set()).update({label(used)} - {label(path)} if used else ())
    TopologicalSorter(graph).prepare()  # raises CycleError with the cycle


def test_testing_is_never_imported_by_the_core() -> None:
    users = offenders(CORE_FILES, lambda path: "testing" in core_dependencies(path))
    assert all(user.startswith("portable_nce/_cli/") for user in users), users


def test_modules_for_one_framework_are_imported_by_their_users_alone() -> None:
    # Neither by one another nor by their package.
    def users(path: Path) -> list[Import]:
        return [found for found in imports(path) if found.name.startswith("portable_nce.modules")]

    assert offenders([*CORE_FILES, *ADAPTERS], users) == {}


UNSAFE_MODULES = {
    *("ctypes", "ftplib", "http", "marshal", "multiprocessing", "pickle", "requests", "shelve", "socket", "ssl"),
    *("subprocess", "urllib"),
}
UNSAFE_CALLS = {"__import__", "compile", "eval", "exec"}
EXCEPTIONS = {
    # The number of threads of OpenBLAS, which NumPy has loaded but offers no function for.
    "portable_nce/estimation/host.py": {"ctypes"},
    # The conformance suite starts the processes of ranks, and talks to these alone.
    "portable_nce/testing/processes.py": {"multiprocessing"},
}
"""Files that may import such a module."""


def test_the_package_runs_no_text_unpickles_nothing_and_opens_no_connection() -> None:
    def unsafe(path: Path) -> list[Any]:
        called = [node.func for node in nodes(path) if isinstance(node, ast.Call)]
        return [
            *(
                found
                for found in imports(path)
                if top(found.name) in UNSAFE_MODULES - EXCEPTIONS.get(path.relative_to(ROOT).as_posix(), set())
            ),
            *(found.id for found in called if isinstance(found, ast.Name) and found.id in UNSAFE_CALLS),
        ]

    assert offenders([*CORE_FILES, *ADAPTERS], unsafe) == {}


def test_a_name_means_one_thing() -> None:
    """No two files of the product define classes of one name, and none of the engine functions of one."""
    files = [path for path in CORE.rglob("*.py") if "testing" not in path.relative_to(CORE).parts]
    engine = [path for path in files if path.relative_to(CORE).parts[0] in {"_call", "_core", "_execution"}]
    for kind, among in ((ast.ClassDef, files), (ast.FunctionDef, engine)):
        found: dict[str, set[str]] = {}
        for path in among:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, kind):
                    found.setdefault(node.name.lstrip("_"), set()).add(path.name)
        assert {name: where for name, where in found.items() if len(where) > 1} == {}
