"""A folder for reference results that are expensive to compute: the oracles', and those of the core in fifty digits.

The environment variable ``PORTABLE_NCE_TEST_CACHE`` names the folder; without it nothing is read or written. A key is a
hash of the source code that computes a result, of the versions of the libraries that it runs on, and of the arguments:
a change of the source makes all its entries unreachable. An entry that cannot be read is computed again. Files are
written under a temporary name and then renamed, so that processes that run at the same time see complete entries only.

``python -m portable_nce.testing.cache`` computes the results of every case, on all processors, and removes the entries
of other sources.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mpmath import mp, mpf
from mpmath.libmp import finf, fnan, fninf, from_man_exp

from ._package import pnce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Nested: TypeAlias = Any
"""A number (float, integer, truth value or mpf), or a list or a mapping of nested numbers."""

VARIABLE: Final = "PORTABLE_NCE_TEST_CACHE"
"""The environment variable with the folder."""

KINDS: Final = ("oracles", "exact-core")
"""What is kept: the oracles' results, and those of the core on mparray."""

HERE: Final = Path(__file__).parent


def folder() -> Path | None:
    """Give the folder of the cache, or None if the environment names none."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None


# What a key is made of


def source_files(kind: str) -> dict[str, Path]:
    """Map the names of the source files that a kind of result depends on to their paths."""
    common = [HERE / "cache.py", HERE / "oracles.py"]
    if kind == "oracles":
        return {path.name: path for path in common}
    package = HERE.parent
    adapters = [Path(path) for path in import_module(f"{pnce.__name__}.backends").__path__]
    inside = {
        path.relative_to(package).as_posix(): path
        for path in package.rglob("*.py")
        if not {"suite", "_cli", "backends"} & set(path.relative_to(package).parts)
    }
    beside = {f"backends/{path.relative_to(top).as_posix()}": path for top in adapters for path in top.rglob("*.py")}
    return inside | beside


def hash_of_sources(files: Mapping[str, Path], libraries: Iterable[str]) -> str:
    """Hash the names and the contents of files, and the versions of libraries."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    for library in libraries:
        digest.update(f"{library} {_version(library)}\0".encode())
    return digest.hexdigest()[:20]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


@cache
def source_key(kind: str) -> str:
    """Hash what a kind of result depends on beside its arguments; once in a process."""
    libraries = ("mpmath",) if kind == "oracles" else ("mpmath", "mparray", "numpy", "array-api-compat")
    return hash_of_sources(source_files(kind), libraries)


def path_of(root: Path, kind: str, arguments: Nested) -> Path:
    """Give the file of an entry."""
    key = hashlib.sha256(json.dumps(encoded(arguments)).encode()).hexdigest()
    return root / kind / source_key(kind) / f"{key}.json"


# Entries


def stored(kind: str, arguments: Nested, compute: Callable[[], Nested]) -> Nested:
    """Give a result from the cache, or compute it and keep it there.

    Parameters
    ----------
    kind : str
        One of ``KINDS``.
    arguments : nested
        What the result depends on beside the source; strings and None are allowed.
    compute : callable
        It computes the result: nested numbers.

    Returns
    -------
    nested
        The result, with tuples as lists.
    """
    root = folder()
    if root is None:
        return compute()
    path = path_of(root, kind, arguments)
    try:
        return decoded(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):  # no such entry, or none that can be read
        pass
    result = compute()
    _write(path, json.dumps(encoded(result)))
    return result


def _write(path: Path, text: str) -> None:
    """Write a file in one step: a reader gets the old file or the new one. Without room the result is not kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except OSError:
        return


def encoded(nested: Nested) -> Any:
    """Turn nested numbers into JSON without rounding: an mpf becomes ``{"mpf": "mantissa*2**exponent"}``."""
    if isinstance(nested, mpf):
        if not mp.isfinite(nested):
            return {"mpf": "nan" if mp.isnan(nested) else "inf" if nested > 0 else "-inf"}
        sign, mantissa, exponent, _ = nested._mpf_
        return {"mpf": f"{'-' if sign else ''}{int(mantissa):x}p{int(exponent)}"}
    if isinstance(nested, Mapping):
        return {"map": [[key, encoded(value)] for key, value in nested.items()]}
    if isinstance(nested, Sequence) and not isinstance(nested, str):
        return [encoded(item) for item in nested]
    if isinstance(nested, float):
        return {"float": nested.hex()}
    if nested is None or isinstance(nested, (bool, int, str)):
        return nested
    message = f"expected numbers, got {type(nested).__name__}"
    raise TypeError(message)


_SPECIAL: Final[Mapping[str, Any]] = {"nan": fnan, "inf": finf, "-inf": fninf}


def decoded(data: Any) -> Nested:
    """Turn the JSON of `encoded` back into nested numbers."""
    if isinstance(data, list):
        return [decoded(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "map":
        return {key: decoded(value) for key, value in content}
    if kind == "float":
        return float.fromhex(content)
    if kind != "mpf":
        message = f"expected an mpf, a float or a mapping, got {kind!r}"
        raise ValueError(message)
    if content in _SPECIAL:
        return mp.make_mpf(_SPECIAL[content])
    mantissa, _, exponent = content.partition("p")
    return mp.make_mpf(from_man_exp(int(mantissa, 16), int(exponent)))


# All of them, by one command


def fill(name: str) -> None:
    """Compute the results of one case, unless they are there."""
    from . import oracles
    from .variants import case_named, exact_core

    oracles.case_value_and_gradients(case_named(name))
    exact_core(name)


def prune(root: Path) -> int:
    """Remove the entries of other sources; give the number of folders removed."""
    old = [path for kind in KINDS for path in (root / kind).glob("*") if path.name != source_key(kind)]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
    return len(old)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    from .cases import CASES

    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--processes", type=int, default=None, help="how many to use (default: one per processor)")
    options = parser.parse_args(arguments)
    root = folder()
    if root is None:
        parser.error(f"the environment variable {VARIABLE} names no folder")
    removed = prune(root)
    with ProcessPoolExecutor(options.processes) as pool:
        list(pool.map(fill, [case.name for case in CASES], chunksize=16))
    count = sum(1 for kind in KINDS for _ in (root / kind / source_key(kind)).glob("*.json"))
    print(f"{count} results in {root}; {removed} older sets removed")  # noqa: T201  (a command prints)
    return 0


if __name__ == "__main__":
    sys.exit(main())
