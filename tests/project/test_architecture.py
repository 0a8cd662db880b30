"""The rooms and the directions between them, read from the syntax trees: nothing is imported here."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "portable_nce"
BACKENDS = ROOT / "backends"

FRAMEWORKS = {"numpy", "torch", "jax", "cupy", "array_api_strict", "mparray", "dask", "tensorflow", "mlx"}

APPLICATION = {"__main__", "_cli"}
"""Rooms of the package where scientific libraries may be used, by commands that ask for them."""

MODULES = {"torch": {"torch"}, "jax": {"jax"}}
"""The files of portable_nce/modules, and the framework that each may import: no other file of the package may."""

SUITE = {"hypothesis", "mpmath", "pytest"}
"""What the shipped conformance suite needs beside what it tests."""

LAYERS = (
    ("_core",),
    ("objectives", "pairings", "similarities"),
    ("_execution",),
    ("_call",),
    ("_losses", "bounds", "density", "diagnostics", "from_scores", "typing"),
)
"""The mathematics, lowest first: each part may import from lower layers and from its own."""

USERS = (("__init__",), ("modules", "testing"), ("_cli",), ("__main__",))
"""What uses it, lowest first."""

ADAPTER_MAY_IMPORT = {
    "__init__": set[str](),
    "defaults": set[str](),
    "tape": {"array_api_compat"},
    "generic": {"array_api_compat"},
    "numpy": {"numpy"},
    "numpy_functions": set[str](),
    "torch": {"torch"},
    "torch_compiler": {"torch"},
    "torch_ranks": {"torch"},
    "jax": {"jax"},
    "cupy": {"cupy"},
    "mlx": {"mlx"},
    "mlx_namespace": {"mlx"},
}
"""What each adapter may import beside the standard library and the other files of its folder."""


@dataclass(frozen=True)
class Import:
    """One import: the dotted name, and whether it happens when the module is imported, at all, or for types alone."""

    name: str
    line: int
    at_run_time: bool
    at_module_level: bool


def is_type_checking(node: ast.AST) -> bool:
    """Tell whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def imports(path: Path, package: str) -> list[Import]:
    """List the imports of a file; relative ones become absolute in the given package."""
    found: list[Import] = []

    def visit(node: ast.AST, *, run_time: bool, module_level: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, run_time, module_level) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            # A name above the package is that of a neighbour, where another package has taken both over.
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

    visit(ast.parse(path.read_text(encoding="utf-8")), run_time=True, module_level=True)
    return found


def module_of(path: Path) -> str:
    """Give the name of a file's layer: the first folder or the module below portable_nce."""
    first = path.relative_to(CORE).parts[0]
    return first.removesuffix(".py")


def package_of(path: Path) -> str:
    """Give the dotted package in which a file of the core resolves relative imports."""
    return ".".join(path.relative_to(ROOT).parent.parts)


CORE_FILES = sorted(CORE.rglob("*.py"))
CONFORMANCE = [path for path in CORE_FILES if module_of(path) == "testing" and path.name != "cases.py"]
FOR_ONE_FRAMEWORK = [path for path in CORE_FILES if module_of(path) == "modules" and path.stem != "__init__"]
MATHEMATICS = [
    path
    for path in CORE_FILES
    if module_of(path) not in APPLICATION and path not in CONFORMANCE and path not in FOR_ONE_FRAMEWORK
]
ADAPTERS = sorted(BACKENDS.glob("*.py"))


def top(name: str) -> str:
    """Give the distribution's part of a dotted name."""
    return name.partition(".")[0]


def label(path: Path) -> str:
    """Name a file as the tests' parameters show it."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MATHEMATICS, ids=label)
def test_the_core_imports_the_standard_library_and_array_api_compat_alone(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "portable_nce", "array_api_compat"}
    strangers = [found for found in imports(path, package_of(path)) if top(found.name) not in allowed]
    assert not strangers, f"{label(path)} imports {strangers}"


@pytest.mark.parametrize("path", CONFORMANCE, ids=label)
def test_the_suite_imports_no_framework(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, *SUITE, "portable_nce"}
    strangers = [found for found in imports(path, package_of(path)) if top(found.name) not in allowed]
    assert not strangers, f"{label(path)} imports {strangers}"


@pytest.mark.parametrize("path", CONFORMANCE, ids=label)
def test_the_suite_reaches_what_it_tests_by_relative_imports(path: Path) -> None:
    # So it tests the package that it is a part of, under whatever name that was taken over.
    absolute = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level == 0 and top(str(node.module)) == "portable_nce"
    ]
    assert not absolute, f"{label(path)}: lines {absolute}"
    assert path.name == "_package.py" or not [
        found for found in imports(path, "relative." + package_of(path)) if top(found.name) == "portable_nce"
    ]


@pytest.mark.parametrize("path", CORE_FILES, ids=label)
def test_there_is_one_door_to_array_api_compat(path: Path) -> None:
    if label(path) == "portable_nce/_core/namespace.py":
        assert any(top(found.name) == "array_api_compat" for found in imports(path, package_of(path)))
        return
    if module_of(path) in APPLICATION:
        return  # the command line reports the version of what is installed
    doors = [found for found in imports(path, package_of(path)) if top(found.name) == "array_api_compat"]
    assert not doors, f"{label(path)} imports {doors}; go through _core/namespace.py"


def docstrings(tree: ast.AST) -> set[ast.Constant]:
    """Collect the strings that stand as statements: documentation, which may name what it likes."""
    return {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


@pytest.mark.parametrize("path", MATHEMATICS, ids=label)
def test_only_the_registry_names_frameworks(path: Path) -> None:
    if label(path) == "portable_nce/_core/registry.py":
        return  # the built-in table of adapters
    # torch.compile can follow array-api-compat to the namespace by an import statement only.
    frameworks = FRAMEWORKS - {"torch"} if label(path) == "portable_nce/_core/namespace.py" else FRAMEWORKS
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            assert top(node.value) not in frameworks, f"{label(path)}:{node.lineno} names {node.value!r}"
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            helpers = {f"is_{framework}_{what}" for framework in frameworks for what in ("array", "namespace")}
            assert name not in frameworks | helpers, f"{label(path)}:{node.lineno} names {name}"


def test_every_module_of_the_core_has_a_layer() -> None:
    assert {module_of(path) for path in CORE_FILES} == {name for layer in (*LAYERS, *USERS) for name in layer}


def layer(name: str) -> int:
    """Give the height of a module of the core."""
    return next(height for height, names in enumerate((*LAYERS, *USERS)) if name in names)


def core_dependencies(path: Path) -> set[str]:
    """Give the modules of the core that a file imports at run time."""
    modules = {module_of(other) for other in CORE_FILES} - {"__init__"}
    found = set()
    for item in imports(path, package_of(path)):
        if top(item.name) == "portable_nce" and item.at_run_time:
            second = item.name.split(".")[1] if "." in item.name else "__init__"
            found.add(second if second in {*modules, "backends"} else "__init__")
    return found - {module_of(path)}


@pytest.mark.parametrize("path", CORE_FILES, ids=label)
def test_lower_layers_do_not_import_upper_ones(path: Path) -> None:
    height = layer(module_of(path))
    upward = {name for name in core_dependencies(path) - {"backends"} if layer(name) > height}
    assert not upward, f"{label(path)} imports {upward} from above"


def test_only_the_registry_reaches_the_adapters() -> None:
    users = {label(path) for path in CORE_FILES if "backends" in core_dependencies(path)}
    assert users <= {"portable_nce/_core/registry.py"}


def test_the_core_is_free_of_cycles() -> None:
    names = {package_of(path) + "." + path.stem: path for path in CORE_FILES}
    names |= {package_of(path): path for path in CORE_FILES if path.stem == "__init__"}
    graph: dict[str, set[str]] = {}
    for path in CORE_FILES:
        for item in imports(path, package_of(path)):
            if item.at_run_time and (item.at_module_level or path in MATHEMATICS):
                used = names.get(item.name) or names.get(item.name.rpartition(".")[0])
                graph.setdefault(label(path), set()).update({label(used)} - {label(path)} if used else ())
    TopologicalSorter(graph).prepare()  # raises CycleError, with the cycle


@pytest.mark.parametrize("path", ADAPTERS, ids=label)
def test_an_adapter_imports_its_framework_and_nothing_of_the_core(path: Path) -> None:
    own = ADAPTER_MAY_IMPORT[path.stem]
    for found in imports(path, "portable_nce.backends"):
        if not found.at_run_time:
            continue
        if found.name.startswith("portable_nce.backends."):
            continue
        assert top(found.name) != "portable_nce", f"{label(path)}:{found.line} imports {found.name} of the core"
        allowed = {*sys.stdlib_module_names, *own}
        assert top(found.name) in allowed, f"{label(path)}:{found.line} imports {found.name}"


@pytest.mark.parametrize("path", ADAPTERS, ids=label)
def test_adapters_reach_each_other_by_relative_imports_and_the_core_by_absolute_ones(path: Path) -> None:
    # So they work under portable_nce.backends and in any package that takes both folders over.
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= 1, f"{label(path)}:{node.lineno} reaches above its folder"
            if node.level == 0:
                assert not str(node.module).startswith("portable_nce.backends"), f"{label(path)}:{node.lineno}"


def test_every_adapter_has_its_allowance() -> None:
    assert {path.stem for path in ADAPTERS} == set(ADAPTER_MAY_IMPORT)


def test_testing_is_never_imported_by_the_core() -> None:
    users = {label(path) for path in CORE_FILES if "testing" in core_dependencies(path)}
    assert all(user.startswith("portable_nce/_cli/") for user in users), users


@pytest.mark.parametrize("path", FOR_ONE_FRAMEWORK, ids=label)
def test_a_module_for_one_framework_imports_that_framework_alone(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "portable_nce", *MODULES[path.stem]}
    strangers = [found for found in imports(path, package_of(path)) if top(found.name) not in allowed]
    assert not strangers, f"{label(path)} imports {strangers}"


def test_every_module_for_one_framework_has_its_allowance() -> None:
    assert {path.stem for path in FOR_ONE_FRAMEWORK} == set(MODULES)


def test_modules_for_one_framework_are_imported_by_their_users_alone() -> None:
    # Not by one another either, nor by the package that they stand in.
    for path in [*CORE_FILES, *ADAPTERS]:
        package = "portable_nce.backends" if path in ADAPTERS else package_of(path)
        users = [found.name for found in imports(path, package) if found.name.startswith("portable_nce.modules")]
        assert not users, f"{label(path)} imports {users}"


UNSAFE_MODULES = {
    *("ctypes", "ftplib", "http", "marshal", "multiprocessing", "pickle", "requests", "shelve", "socket", "ssl"),
    *("subprocess", "urllib"),
}
UNSAFE_CALLS = {"__import__", "compile", "eval", "exec"}


@pytest.mark.parametrize("path", [*CORE_FILES, *ADAPTERS], ids=label)
def test_nothing_that_is_installed_runs_text_or_unpickles_or_opens_connections(path: Path) -> None:
    package = "portable_nce.backends" if path in ADAPTERS else package_of(path)
    assert not [found for found in imports(path, package) if top(found.name) in UNSAFE_MODULES]
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & UNSAFE_CALLS
