"""Copy the losses into another library, with the adapters of some array libraries.

``python adoption/vendor.py yourlib/_vendor --library torch`` writes yourlib/_vendor/portable_nce, with the licence, and
yourlib/_vendor/array_api_compat, the only dependency. Then::

    from yourlib._vendor import portable_nce as pnce

An earlier copy is replaced. `--library` may be repeated; without it, all adapters are copied. `--suite` adds the
conformance suite, mutual information and the command line. `--no-dependency` leaves out array_api_compat, which must
then be installed. Needs only the standard library, and array-api-compat installed for the copy.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "portable_nce"
LIBRARIES: Final = ("cupy", "generic", "jax", "mlx", "numpy", "torch")
"""Array libraries with an adapter; `generic` serves other ones that follow the array API."""

OPTIONAL: Final = ("__main__.py", "_cli", "estimation", "testing")
"""Parts of the package that no loss needs."""


def files_of(libraries: Sequence[str], *, suite: bool = False) -> dict[str, Path]:
    """Return the files of a copy: path below portable_nce/ -> file of this tree."""
    found = {"LICENSE": ROOT / "LICENSE"}
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
    """Copy the package, and its dependency, into a folder of another library."""
    shutil.rmtree(target / NAME, ignore_errors=True)
    for place, path in files_of(libraries, suite=suite).items():
        (target / NAME / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / NAME / place)
    (target / "__init__.py").touch()
    if dependency:
        copy_dependency(target)


def copy_dependency(target: Path) -> None:
    """Copy the installed array_api_compat with its licence."""
    installed = importlib.metadata.distribution("array-api-compat")
    shutil.rmtree(target / "array_api_compat", ignore_errors=True)
    for file in installed.files or ():
        if file.parts[0] == "array_api_compat" and file.suffix in {".py", ".typed"}:
            place = target / file
        elif file.name == "LICENSE":  # not in every wheel
            place = target / "array_api_compat" / "LICENSE"
        else:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(installed.locate_file(file)), place)


def summary(target: Path) -> str:
    """Describe a copy: files, lines and licence of each folder."""
    lines = [f"{'in ' + str(target):40} files  lines  licence"]
    for name in (NAME, "array_api_compat"):
        texts = [path.read_text(encoding="utf-8") for path in sorted((target / name).rglob("*.py"))]
        if not texts:
            continue
        version = re.search(r"^__version__ = ['\"](.*)['\"]", texts[0], flags=re.MULTILINE)
        found = "LICENSE" if (target / name / "LICENSE").exists() else "MIT; copy LICENSE from its repository"
        length = sum(text.count("\n") for text in texts)
        lines.append(f"{name + ' ' + (version[1] if version else ''):40} {len(texts):5} {length:6}  {found}")
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
    vendor(options.target, libraries, suite=options.suite, dependency=not options.no_dependency)
    print(summary(options.target))


if __name__ == "__main__":
    main(sys.argv[1:])
