"""How a mutant gets into a process: as code of functions that are alive, or by import."""

from __future__ import annotations

import gc
import importlib.machinery
import sys
import types
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .mutants import Mutant, module_of

if TYPE_CHECKING:
    from collections.abc import Iterator

Key = tuple[str, int]


def key_of(code: types.CodeType) -> Key:
    """Give what tells a piece of code from all others, also those of the same name on the same line."""
    return f"{code.co_filename}:{code.co_qualname}", zlib.crc32(repr(list(code.co_positions())).encode())


def inside(code: types.CodeType) -> list[types.CodeType]:
    """List the functions and classes directly inside a piece of code."""
    return [part for part in code.co_consts if isinstance(part, types.CodeType)]


def own(code: types.CodeType) -> tuple[Any, ...]:
    """Give what a piece of code does, apart from where it stands and from what is inside it."""
    constants = [part.co_name if isinstance(part, types.CodeType) else repr(part) for part in code.co_consts]
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, code.co_exceptiontable, code.co_argcount, names, constants


def differing(old: types.CodeType, new: types.CodeType) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """List the pieces of code that a change has changed, from the outside to the inside."""
    pairs = [found for pair in zip(inside(old), inside(new), strict=False) for found in differing(*pair)]
    if pairs or own(old) != own(new):
        yield old, new
    yield from pairs


def alive() -> dict[Key, list[types.FunctionType]]:
    """Find the functions of the package, by their code."""
    found: dict[Key, list[types.FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType and "portable_nce" in thing.__code__.co_filename:
            found[key_of(thing.__code__)].append(thing)
    return found


def patch(mutant: Mutant, functions: dict[Key, list[types.FunctionType]], ran: set[Key]) -> bool:
    """Give the functions that are alive the mutant's code; tell whether that is enough."""
    path = str(sys.modules[module_of(mutant.file)].__file__)
    pairs = list(differing(*(compile(text, path, "exec", dont_inherit=True) for text in mutant.sources())))
    found = [(function, new) for old, new in pairs for function in functions.get(key_of(old), ())]
    if any(key_of(old) in ran and own(old) != own(new) for old, new in pairs):
        return False
    if not found or any(function.__code__.co_freevars != new.co_freevars for function, new in found):
        return False
    for function, new in found:
        function.__code__ = new
    return True


def import_instead(mutant: Mutant) -> None:
    """Let the next import of the mutant's module read the mutant's source."""
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> Any:
        if fullname != module_of(mutant.file):
            return original(self, fullname)
        return compile(mutant.sources()[1], self.get_filename(fullname), "exec", dont_inherit=True)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
