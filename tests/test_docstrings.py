"""Every public name is documented as numpydoc wants it, with the sections that a user of a loss looks for."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate

import portable_nce

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOMS = ("from_scores", "bounds", "density", "diagnostics", "similarities", "pairings", "objectives")

LOSSES = ("info_nce", "flat_nce", "nt_xent", "dcl", "clip", "from_scores.", "bounds.", "density.", "diagnostics.")
"""What comes from the literature, and says from where."""

NOT_ASKED = {
    "ES01": "a one-line summary and a formula may say it all",
    "GL01": "the summary begins on the line of the quotation marks, as PEP 257 shows it",
    "SA01": "a See Also section stands where there is something to see",
    "SS05": "it takes a plural for a verb in the third person",
    "YD01": "nothing public is a generator",
}
"""Findings of numpydoc that are no errors here, and why."""

NOT_ASKED_OF_CLASSES = {
    "EX01": "examples stand with the functions that take or return it",
    "GL02": "a docstring may be one line",
    "PR01": "fields are documented under Attributes",
}
"""Further ones, of classes."""


def public_names() -> Iterator[str]:
    """Walk the public functions, classes and modules, as dotted names below portable_nce."""
    yield from portable_nce.__all__
    for room in ROOMS:
        module = importlib.import_module(f"portable_nce.{room}")
        yield from (f"{room}.{name}" for name in module.__all__)


def named(name: str) -> Any:
    """Give the object of a dotted name below portable_nce."""
    found: Any = portable_nce
    for part in name.split("."):
        found = getattr(found, part)
    return found


NAMES = sorted(set(public_names()))
DOCUMENTED = [
    name
    for name in NAMES
    if inspect.ismodule(named(name)) or inspect.isroutine(named(name)) or inspect.isclass(named(name))
]
FUNCTIONS = [name for name in NAMES if inspect.isfunction(named(name))]


def test_the_walk_finds_the_public_names() -> None:
    assert {"info_nce", "value_and_grad", "from_scores.dcl", "bounds.dual", "pairings.labels"} <= set(FUNCTIONS)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_numpydoc_finds_no_fault(name: str) -> None:
    errors = dict(validate(f"portable_nce.{name}")["errors"])
    allowed = set(NOT_ASKED)
    if inspect.isclass(named(name)):
        allowed |= set(NOT_ASKED_OF_CLASSES)
    if inspect.ismodule(named(name)):
        allowed |= set(errors) - {"GL08"}  # it has a docstring; there is no parameter to document
    assert {code: message for code, message in errors.items() if code not in allowed} == {}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_sections_that_its_signature_asks_for(name: str) -> None:
    function = named(name)
    sections = NumpyDocString(inspect.getdoc(function) or "")
    signature = inspect.signature(function)
    expected = {"Summary", "Examples"}
    expected |= {"Parameters"} if signature.parameters else set()
    expected |= {"Returns"} if signature.return_annotation not in {None, "None"} else set()
    expected |= {"References"} if name.startswith(LOSSES) else set()
    assert {section for section in expected if not sections[section]} == set()


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name.startswith(LOSSES)])
def test_a_loss_says_what_it_refuses(name: str) -> None:
    assert NumpyDocString(inspect.getdoc(named(name)) or "")["Raises"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_example_can_be_run(name: str) -> None:
    examples = "\n".join(NumpyDocString(inspect.getdoc(named(name)) or "")["Examples"])
    assert ">>> " in examples
