"""Copy the losses into another library, with the adapters of some array libraries.

``python adoption/vendor.py yourlib/_vendor --library torch`` writes yourlib/_vendor/portable_nce and
yourlib/_vendor/array_api_compat, the only dependency. Then::

    from yourlib._vendor import portable_nce as pnce

Each folder has its licence, and a file VENDORED with version, commit and command. A folder with that file is replaced
once the new copy is complete; anything else in its place is an error. `--library` may be repeated; without it, all
adapters are copied. `--suite` adds the conformance suite, mutual information and the command line. `--only supcon clip`
copies the modules that these losses import, and no others. `--no-dependency` leaves out array_api_compat, which must
then be installed. Needs only the standard library, and array-api-compat installed for the copy.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "portable_nce"
INIT: Final = ROOT / NAME / "__init__.py"
LIBRARIES: Final = ("cupy", "generic", "jax", "mlx", "numpy", "torch")
"""Array libraries with an adapter; `generic` serves other ones that follow the array API."""

OPTIONAL: Final = ("__main__.py", "_cli", "estimation", "testing")
"""Parts of the package that no loss needs."""


MARKER: Final = "VENDORED"
"""File that marks a copy."""

VERSION: Final = r"^__version__ = ['\"](.*)['\"]"
HOLDER: Final = "Copyright (c) 2022 Consortium for Python Data API Standards"
"""Copyright notice in LICENSE of array-api-compat's repository."""


def files_of(libraries: Sequence[str], *, suite: bool = False, only: Sequence[str] = ()) -> dict[str, Path | str]:
    """Return the files of a copy: path below portable_nce/ -> file of this tree, or text."""
    found: dict[str, Path | str] = {"LICENSE": ROOT / "LICENSE"}
    others = {f"{name}.py" for name in ("torch", "jax") if name not in libraries}
    for path in (ROOT / NAME).rglob("*"):
        place = path.relative_to(ROOT / NAME)
        kept = suite or only or place.parts[0] not in OPTIONAL
        if kept and path.suffix in {".py", ".typed"} and not (place.parts[0] == "modules" and path.name in others):
            found[place.as_posix()] = path
    if only:
        needed = closure(files_defining(only))
        found = {name: path for name, path in found.items() if path in needed or name in {"LICENSE", "py.typed"}}
    found["__init__.py"] = partial_init({*found})
    adapters = {path for path in (ROOT / "backends").glob("*.py") if path.stem.startswith(("__init__", *libraries))}
    if not {*libraries} <= {"jax", "mlx"}:  # by these, repeated calls become programs
        adapters |= {ROOT / "backends" / "tape.py", ROOT / "backends" / "traced.py"}
    for path in closure(adapters):
        found[f"backends/{path.name}"] = path
    return found | {"backends/py.typed": ROOT / "backends" / "py.typed"}


def closure(files: Iterable[Path]) -> set[Path]:
    """Return files and all that they import, also inside functions; without the package's own __init__."""
    found = set(files)
    while further := {path for file in found for path in imports(file)} - found:
        found |= further
    return found


@cache
def imports(file: Path) -> frozenset[Path]:
    """Return the files that a file imports by relative imports, which all imports of the package are.

    Adapters are not among them, since the core imports `..backends` and they stand elsewhere in this tree.
    """
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for alias in node.names:
                places = (folder / f"{alias.name}.py", folder / alias.name / "__init__.py", folder.with_suffix(".py"))
                found.add(next((path for path in places if path.is_file()), folder / "__init__.py"))
    return frozenset(path for path in found if path.is_file() and path != INIT)


def homes() -> dict[str, str]:
    """Return the public names of the package, with the modules that define them."""
    found = {}
    for node in ast.parse(INIT.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in {"__all__", "_HOMES"}:
            found[ast.unparse(node.targets[0])] = ast.literal_eval(node.value)
    by_name = {name: home for home, names in found["_HOMES"].items() for name in names.split()}
    return {name: by_name.get(name, name) for name in found["__all__"]}


def files_defining(losses: Sequence[str]) -> set[Path]:
    """Return the files that define some public names, and those of derivatives; raise `CopyError` for other names."""
    places = homes()
    for loss in losses:
        if loss not in places:
            near = difflib.get_close_matches(loss, places, 1, 0.5)
            raise CopyError(f"--only {loss}: no such loss" + f"; did you mean {near[0]}?" * bool(near))
    modules = [ROOT / NAME / places[name].replace(".", "/") for name in (*losses, "value_and_grad", "register_backend")]
    return {module / "__init__.py" if module.is_dir() else module.with_suffix(".py") for module in modules}


def partial_init(files: set[str]) -> str:
    """Return the text of __init__.py without the names whose modules are not copied; its lists have one a line."""
    places = homes()

    def copied(name: str) -> bool:
        place = places.get(name, name).replace(".", "/")
        return f"{place}.py" in files or f"{place}/__init__.py" in files

    lines = INIT.read_text(encoding="utf-8").splitlines(keepends=True)
    for i, line in enumerate(lines):
        if line.startswith("    from . import "):
            names = [name for name in line.split(" import ")[1].strip().split(", ") if copied(name)]
            lines[i] = f"    from . import {', '.join(names)}\n" * bool(names)
        elif (named := re.match(r'    (?:"|from \.)([\w.]+)', line)) and not copied(named[1]):
            lines[i] = ""
    return "".join(lines)


def vendor(
    target: Path,
    libraries: Sequence[str] = LIBRARIES,
    *,
    suite: bool = False,
    only: Sequence[str] = (),
    dependency: bool = True,
) -> None:
    """Copy the package, and its dependency, into a folder of another library; raise `CopyError` without a change."""
    command = ["python adoption/vendor.py", str(target), *(f"--library {name}" for name in libraries)]
    command += ["--suite"] * suite + ["--only", *only] * bool(only) + ["--no-dependency"] * (not dependency)
    made = f"commit {commit()}\ncommand {' '.join(command)}\n"
    copies = {NAME: files_of(libraries, suite=suite, only=only)}
    if dependency:
        copies["array_api_compat"] = files_of_dependency()
    for name in copies:
        check_replaceable(target / name)
    beside: dict[Path, Path] = {}
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, files in copies.items():
            beside[target / name] = new = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=target))
            for name_there, source in {**files, MARKER: f"version {version(files)}\n{made}"}.items():
                (new / name_there).parent.mkdir(parents=True, exist_ok=True)
                if isinstance(source, Path):
                    shutil.copyfile(source, new / name_there)
                else:
                    (new / name_there).write_text(source, encoding="utf-8")
            new.chmod(0o755)  # mkdtemp lets only its owner in
        (target / "__init__.py").touch()
        for place, new in beside.items():
            replace(place, new)
    except OSError as error:
        raise CopyError(f"{error.filename}: {error.strerror}") from error
    finally:
        for new in beside.values():
            shutil.rmtree(new, ignore_errors=True)


class CopyError(Exception):
    """A copy that cannot be made, with the reason in one line."""


def check_replaceable(place: Path) -> None:
    """Refuse to replace anything but an earlier copy, which has a marker."""
    if place.is_symlink() or (place.exists() and not (place / MARKER).is_file()):
        raise CopyError(
            f"{place}: expected nothing or a copy that this command made, with a file {MARKER}, got something else; "
            f"move it away, or name another folder"
        )


def replace(place: Path, new: Path) -> None:
    """Put a finished copy in the place of an earlier one, which comes back if that fails."""
    if not place.exists():
        new.rename(place)
        return
    old = new.with_name(f"{new.name}.old")
    place.rename(old)
    try:
        new.rename(place)
    except BaseException:
        old.rename(place)
        raise
    shutil.rmtree(old)


def version(files: Mapping[str, Path | str]) -> str:
    """Return the version of a package, given its files."""
    found = re.search(VERSION, text_of(files["__init__.py"]), flags=re.MULTILINE)
    return found[1] if found else "unknown"


def text_of(source: Path | str) -> str:
    """Return the text of a file of a copy."""
    return source if isinstance(source, str) else source.read_text(encoding="utf-8")


def commit() -> str:
    """Return the commit of this tree, and whether files differ from it."""
    try:
        run = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True)
        top, found = run(["git", "rev-parse", "--show-toplevel", "HEAD"]).stdout.split("\n")[:2]
        changed = run(["git", "status", "--porcelain", "--untracked-files=no"]).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    if Path(top).resolve() != ROOT.resolve():
        return "unknown"
    return f"{found}, with changes" if changed else found


def files_of_dependency() -> dict[str, Path | str]:
    """Return the files of the installed array_api_compat, with its licence: path in the copy -> file or text."""
    try:
        installed = importlib.metadata.distribution("array-api-compat")
    except importlib.metadata.PackageNotFoundError as error:
        raise CopyError(
            "array-api-compat is not installed; install it with python -m pip install array-api-compat, or pass "
            "--no-dependency"
        ) from error
    # Wheels have no licence text, and MIT's is that of our LICENSE but for the holder.
    licence = re.sub(r"^Copyright .*$", HOLDER, (ROOT / "LICENSE").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: dict[str, Path | str] = {"LICENSE": licence}
    for file in installed.files or ():
        tests = {"tests", "vendor_tests"} & {*file.parts}
        if file.parts[0] == "array_api_compat" and file.suffix in {".py", ".typed"} and not tests:
            found["/".join(file.parts[1:])] = Path(str(installed.locate_file(file)))
        elif file.name == "LICENSE":
            found["LICENSE"] = Path(str(installed.locate_file(file)))
    return found


def summary(target: Path, libraries: Sequence[str], *, partial: bool) -> str:
    """Describe a copy: files, lines and size of each folder; a partial one next to a whole one."""
    folders = [target / name for name in (NAME, "array_api_compat")]
    copies = [{path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")} for folder in folders]
    rows: list[tuple[str, Mapping[str, Path | str]]] = [
        (f"{folder.name} {version(copy)}", copy) for folder, copy in zip(folders, copies, strict=True) if copy
    ]
    rows += [(f"{NAME} with all losses", files_of(libraries))] * partial
    lines = [f"{'in ' + str(target):40} files  lines    KiB"]
    counts = []
    for name, files in rows:
        texts = [text_of(source) for path, source in files.items() if path.endswith(".py")]
        size = sum(len(text.encode()) for text in texts) / 1024
        counts.append(sum(text.count("\n") for text in texts))
        lines.append(f"{name:40} {len(texts):5} {counts[-1]:6} {size:6.0f}")
    if partial:
        lines.append(f"The copy has {counts[0] / counts[-1]:.0%} of the lines of {NAME}.")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("target", type=Path, help="folder of your library, such as yourlib/_vendor")
    parser.add_argument("--library", action="append", choices=LIBRARIES, help="array library; may be repeated")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--suite", action="store_true", help="copy the conformance suite and the command line, too")
    parts.add_argument("--only", action="extend", nargs="+", metavar="LOSS", help="copy what these losses import")
    parser.add_argument("--no-dependency", action="store_true", help="do not copy array_api_compat")
    options = parser.parse_args(arguments)
    libraries = tuple(options.library or LIBRARIES)
    only = tuple(dict.fromkeys(options.only or ()))
    try:
        vendor(options.target, libraries, suite=options.suite, only=only, dependency=not options.no_dependency)
    except CopyError as error:
        parser.exit(2, f"vendor.py: {error}\n")
    print(summary(options.target, libraries, partial=bool(only)))


if __name__ == "__main__":
    main(sys.argv[1:])
