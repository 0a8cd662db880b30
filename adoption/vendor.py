"""Copy the losses into another library, with the adapters of some array libraries.

``python adoption/vendor.py yourlib/_vendor --library torch`` writes yourlib/_vendor/portable_nce and
yourlib/_vendor/array_api_compat, the only dependency. Then::

    from yourlib._vendor import portable_nce as pnce

Each folder has its licence, and a file VENDORED with version, commit and command. A folder with that file is replaced
once the new copy is complete; anything else in its place is an error. `--library` may be repeated; without it, all
adapters are copied. `--suite` adds the conformance suite, mutual information and the command line. `--no-dependency`
leaves out array_api_compat, which must then be installed. Needs only the standard library, and array-api-compat
installed for the copy.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "portable_nce"
LIBRARIES: Final = ("cupy", "generic", "jax", "mlx", "numpy", "torch")
"""Array libraries with an adapter; `generic` serves other ones that follow the array API."""

OPTIONAL: Final = ("__main__.py", "_cli", "estimation", "testing")
"""Parts of the package that no loss needs."""


MARKER: Final = "VENDORED"
"""File that marks a copy."""

VERSION: Final = r"^__version__ = ['\"](.*)['\"]"
HOLDER: Final = "Copyright (c) 2022 Consortium for Python Data API Standards"
"""Copyright notice in LICENSE of array-api-compat's repository."""


def files_of(libraries: Sequence[str], *, suite: bool = False) -> dict[str, Path | str]:
    """Return the files of a copy: path below portable_nce/ -> file of this tree."""
    found: dict[str, Path | str] = {"LICENSE": ROOT / "LICENSE"}
    others = {f"{name}.py" for name in ("torch", "jax") if name not in libraries}
    for path in (ROOT / NAME).rglob("*"):
        place = path.relative_to(ROOT / NAME)
        kept = suite or place.parts[0] not in OPTIONAL
        if kept and path.suffix in {".py", ".typed"} and not (place.parts[0] == "modules" and path.name in others):
            found[place.as_posix()] = path
    names = {
        "__init__",
        *(path.stem for path in (ROOT / "backends").glob("*.py") if path.stem.startswith(tuple(libraries))),
    }
    while further := {name for name in names for name in imports(name)} - names:
        names |= further
    found["backends/py.typed"] = ROOT / "backends" / "py.typed"
    return found | {f"backends/{name}.py": ROOT / "backends" / f"{name}.py" for name in sorted(names)}


def imports(adapter: str) -> Iterator[str]:
    """List the files of backends/ that a file there imports."""
    tree = ast.parse((ROOT / "backends" / f"{adapter}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module] if node.module else [alias.name for alias in node.names]


def vendor(target: Path, libraries: Sequence[str] = LIBRARIES, *, suite: bool = False, dependency: bool = True) -> None:
    """Copy the package, and its dependency, into a folder of another library; raise `CopyError` without a change."""
    command = ["python adoption/vendor.py", str(target), *(f"--library {name}" for name in libraries)]
    command += ["--suite"] * suite + ["--no-dependency"] * (not dependency)
    made = f"commit {commit()}\ncommand {' '.join(command)}\n"
    copies = {NAME: files_of(libraries, suite=suite)}
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
    found = re.search(VERSION, Path(files["__init__.py"]).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return found[1] if found else "unknown"


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
        if file.parts[0] == "array_api_compat" and file.suffix in {".py", ".typed"}:
            found["/".join(file.parts[1:])] = Path(str(installed.locate_file(file)))
        elif file.name == "LICENSE":
            found["LICENSE"] = Path(str(installed.locate_file(file)))
    return found


def summary(target: Path) -> str:
    """Describe a copy: files and lines of each folder."""
    lines = [f"{'in ' + str(target):40} files  lines"]
    for name in (NAME, "array_api_compat"):
        texts = [path.read_text(encoding="utf-8") for path in sorted((target / name).rglob("*.py"))]
        if not texts:
            continue
        found = re.search(VERSION, texts[0], flags=re.MULTILINE)
        length = sum(text.count("\n") for text in texts)
        lines.append(f"{name + ' ' + (found[1] if found else ''):40} {len(texts):5} {length:6}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("target", type=Path, help="folder of your library, such as yourlib/_vendor")
    parser.add_argument("--library", action="append", choices=LIBRARIES, help="array library; may be repeated")
    parser.add_argument("--suite", action="store_true", help="copy the conformance suite and the command line, too")
    parser.add_argument("--no-dependency", action="store_true", help="do not copy array_api_compat")
    options = parser.parse_args(arguments)
    libraries = tuple(options.library or LIBRARIES)
    try:
        vendor(options.target, libraries, suite=options.suite, dependency=not options.no_dependency)
    except CopyError as error:
        parser.exit(2, f"vendor.py: {error}\n")
    print(summary(options.target))


if __name__ == "__main__":
    main(sys.argv[1:])
