"""What mypy, strict, and pyright say of calls right and wrong; both files are run as well."""

from __future__ import annotations

import inspect
import json
import re
import runpy
import subprocess
import sys
import typing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import portable_nce as pnce
from portable_nce._core import types
from portable_nce.pairings import Pairing

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
RIGHT, WRONG = (Path(__file__).parent / name for name in ("right.py", "wrong.py"))
ROOMS = ("bounds", "density", "diagnostics", "from_scores", "objectives", "pairings", "similarities")


class Remark(NamedTuple):
    """What a type checker says of a line: an error, or the type that was to be revealed."""

    file: str
    line: int
    is_error: bool
    text: str


def run(*command: str) -> str:
    # The arguments stand in this file.
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 1, done.stdout + done.stderr  # errors are found, and the checker has not failed
    return done.stdout


@cache
def mypy() -> list[Remark]:
    shown = run("mypy", "--no-pretty", "--no-error-summary", str(RIGHT), str(WRONG))
    found = re.findall(r"^(.+?):(\d+): (error|note): (.*)$", shown, flags=re.MULTILINE)
    return [
        Remark(Path(file).name, int(line), severity == "error", text)
        for file, line, severity, text in found
        if severity == "error" or text.startswith("Revealed type is")
    ]


@cache
def pyright() -> list[Remark]:
    settings = str(Path(__file__).with_name("pyrightconfig.json"))  # those of the project leave both files out
    shown = run("pyright", "--outputjson", "--pythonpath", sys.executable, "--project", settings)
    return [
        Remark(Path(x["file"]).name, x["range"]["start"]["line"] + 1, x["severity"] != "information", x["message"])
        for x in json.loads(shown)["generalDiagnostics"]
    ]


CHECKERS = pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])


def lines_with(path: Path, comment: str) -> dict[int, str]:
    """Give the lines that end with such a comment, and what it says."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    found = {number: re.search(rf"  # ({comment})$", line) for number, line in lines}
    return {number: match.group(1) for number, match in found.items() if match is not None}


@CHECKERS
def test_wrong_calls_are_found_where_they_stand(checker: Callable[[], list[Remark]]) -> None:
    typical, further = lines_with(WRONG, "wrong"), lines_with(WRONG, "also wrong")
    assert len(typical) == 10
    assert len(further) == len(runpy.run_path(str(WRONG))["FURTHER"])
    errors = {remark.line for remark in checker() if remark.is_error and remark.file == WRONG.name}
    assert sorted(errors) == sorted({*typical, *further})


@CHECKERS
def test_right_calls_are_accepted(checker: Callable[[], list[Remark]]) -> None:
    assert [remark for remark in checker() if remark.is_error and remark.file == RIGHT.name] == []


def short_name(text: str) -> str:
    """Give the last name of the type in a remark such as 'Revealed type is "torch._tensor.Tensor"'."""
    match = re.search(r'is "(?:\w+\.)*(\w+)[^"]*"$', text)
    assert match is not None, text
    return match.group(1)


@CHECKERS
def test_results_are_arrays_of_the_library(checker: Callable[[], list[Remark]]) -> None:
    wanted = lines_with(RIGHT, "Tensor|Array|ndarray|Any")
    revealed = {remark.line: remark.text for remark in checker() if not remark.is_error and remark.file == RIGHT.name}
    assert len(wanted) > 10
    names = {line: short_name(text) for line, text in revealed.items()}
    assert names == wanted


@pytest.mark.parametrize("call", runpy.run_path(str(RIGHT))["ALL"])
def test_right_calls_run(call: Callable[[], None]) -> None:
    call()


WRONG_CALLS = runpy.run_path(str(WRONG))


@pytest.mark.parametrize("call", [*WRONG_CALLS["TYPICAL"], *WRONG_CALLS["FURTHER"]])
def test_wrong_calls_are_refused_when_they_run(call: Callable[[], None]) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError)):
        call()


# Annotations at run time


def public_functions() -> dict[str, Any]:
    named = {name: getattr(pnce, name) for name in pnce.__all__}
    for room in ROOMS:
        module = getattr(pnce, room)
        named |= {f"{room}.{name}": getattr(module, name) for name in module.__all__}
    return {name: member for name, member in named.items() if inspect.isfunction(member)}


@pytest.mark.parametrize("function", public_functions().values(), ids=public_functions())
def test_annotations_can_be_resolved(function: Callable[..., Any]) -> None:
    hints = typing.get_type_hints(function)
    assert set(inspect.signature(function).parameters) <= set(hints)


@pytest.mark.parametrize("function", public_functions().values(), ids=public_functions())
def test_no_option_is_any_text(function: Callable[..., Any]) -> None:
    """Of arguments with choices: names of modules and of arguments are text."""
    free = {"module", "arrays"}
    hints = {name: hint for name, hint in typing.get_type_hints(function).items() if name not in {*free, "return"}}
    assert [name for name, hint in hints.items() if str in (hint, *typing.get_args(hint))] == []


def test_all_aliases_are_public() -> None:
    assert {"AnyArray", "ArrayOf", *types.__annotations__} <= set(pnce.typing.__all__)
    assert isinstance(pnce.pairings.diagonal(), Pairing)


def choices(alias: Any) -> set[str]:
    """Give the strings of an alias, of its members too."""
    found = [choices(x) if typing.get_args(x) else {x} for x in typing.get_args(alias)]
    return {x for group in found for x in group if isinstance(x, str)}


UNDESCRIBED = {
    "BlockSize": "an integer too",
    "JointDirection": "a sequence of them",
    "MiningName": "a part of Mining",
    "MiningRule": "likewise",
}
"""Aliases whose choices stand in no docstring in braces, and why."""


@pytest.mark.parametrize("name", [name for name in types.__annotations__ if choices(getattr(types, name))])
def test_choices_are_those_that_the_docstrings_name(name: str) -> None:
    """In ``{"mean", "sum"}`` of a parameter whose type has these choices."""
    annotation = "AnySimilarity" if name == "SimilarityName" else name
    wanted = choices(types.MiningName if name == "Mining" else getattr(types, name))
    described = 0
    for function in public_functions().values():
        for parameter, text in inspect.get_annotations(inspect.unwrap(function)).items():
            match = re.search(rf"^{parameter} : (\{{.*?\}})", inspect.getdoc(function) or "", flags=re.MULTILINE)
            if text.split(" | ")[0] == annotation and match is not None:
                described += 1
                named = set(re.findall(r'"(\w+)"', match.group(1)))
                assert named == wanted or ("..." in match.group(1) and named < wanted)
    assert (described == 0) == (name in UNDESCRIBED)
