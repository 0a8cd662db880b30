"""Every public name has a numpydoc docstring; losses have the sections that users need."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any

from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate

import portable_nce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOMS = ("from_scores", "bounds", "density", "diagnostics", "estimation", "similarities", "pairings", "objectives")
ROOMS_OF_ONE_FRAMEWORK = ("modules.torch", "modules.jax")

LOSSES = ("info_nce", "flat_nce", "nt_xent", "dcl", "clip", "from_scores.", "bounds.", "density.", "diagnostics.")
"""Functions that must cite their source."""

NOT_ASKED = {
    "ES01": "a one-line summary and a formula may say it all",
    "GL01": "the summary begins on the line of the quotation marks, as PEP 257 shows it",
    "SA01": "a See Also section stands where there is something to see",
    "SS05": "it takes a plural for a verb in the third person",
    "YD01": "nothing public is a generator",
}
"""Checks of numpydoc that are not required, and why."""

NOT_ASKED_OF_CLASSES = {
    "EX01": "examples stand with the functions that take or return it",
    "GL02": "a docstring may be one line",
    "PR01": "fields are documented under Attributes",
}
"""More such checks, for classes."""


def public_names() -> Iterator[str]:
    """Public functions, classes and modules, as dotted names below portable_nce."""
    yield from portable_nce.__all__
    for room in (*ROOMS, *ROOMS_OF_ONE_FRAMEWORK):
        module = importlib.import_module(f"portable_nce.{room}")
        yield from (f"{room}.{name}" for name in module.__all__)


def named(name: str) -> Any:
    """Object of a dotted name below portable_nce."""
    found: Any = portable_nce
    for part in name.split("."):
        found = getattr(found, part)
    return found


NAMES = sorted(set(public_names()))
FUNCTIONS = [name for name in NAMES if inspect.isfunction(named(name))]


def offenders(names: Iterable[str], faults: Callable[[str], Any]) -> dict[str, Any]:
    """Problems by public name, for names with problems."""
    return {name: found for name in names if (found := faults(name))}


def sections(name: str) -> NumpyDocString:
    """Sections of the docstring of a public name."""
    return NumpyDocString(inspect.getdoc(named(name)) or "")


def test_the_walk_finds_the_public_names() -> None:
    assert {"info_nce", "value_and_grad", "from_scores.dcl", "bounds.dual", "pairings.labels"} <= set(FUNCTIONS)


def test_numpydoc_finds_no_fault() -> None:
    def faults(name: str) -> list[tuple[str, str]]:
        allowed = NOT_ASKED | (NOT_ASKED_OF_CLASSES if inspect.isclass(named(name)) else {})
        return [error for error in validate(f"portable_nce.{name}")["errors"] if error[0] not in allowed]

    documented = [name for name in NAMES if inspect.isroutine(named(name)) or inspect.isclass(named(name))]
    assert offenders(documented, faults) == {}


def test_a_module_has_a_docstring() -> None:
    modules = [name for name in NAMES if inspect.ismodule(named(name))]
    assert offenders(modules, lambda name: not inspect.getdoc(named(name))) == {}


def test_a_function_has_the_sections_that_its_signature_asks_for() -> None:
    def missing(name: str) -> set[str]:
        signature = inspect.signature(named(name))
        expected = {"Summary", "Examples"}
        expected |= {"Parameters"} if signature.parameters else set()
        expected |= {"Returns"} if signature.return_annotation not in {None, "None"} else set()
        expected |= {"References", "Raises"} if name.startswith(LOSSES) else set()
        found = sections(name)
        return {section for section in expected if not found[section]}

    assert offenders(FUNCTIONS, missing) == {}


def test_a_loss_links_to_the_page_of_the_options_that_all_share() -> None:
    def unlinked(name: str) -> bool:
        shared = {"similarity", "block_size", "precision"} & set(inspect.signature(named(name)).parameters)
        return bool(shared) and ":doc:`/options`" not in (inspect.getdoc(named(name)) or "")

    assert offenders([name for name in FUNCTIONS if "." not in name], unlinked) == {}


def test_an_example_can_be_run() -> None:
    assert offenders(FUNCTIONS, lambda name: ">>> " not in "\n".join(sections(name)["Examples"])) == {}


WRITTEN = {repr(1.0 / 0.07): "1 / 0.07"}
"""Defaults that are documented as the number that a paper has."""


def test_functions_have_the_defaults_that_they_document() -> None:
    def faults(name: str) -> list[str]:
        text, found = inspect.getdoc(named(name)) or "", []
        for parameter in inspect.signature(named(name)).parameters.values():
            if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
                continue
            said = re.search(rf"^ *[\w, ]*\b{parameter.name}\b[\w, ]* : (.*)$", text, re.MULTILINE)
            _, _, default = (said[1] if said else "").partition("default: ")
            expected = repr(parameter.default)
            if parameter.default is parameter.empty:
                fits = not default
            elif parameter.default is None:
                fits = said is not None and said[1].endswith(("optional", "default: None"))
            else:
                fits = default.replace('"', "'") in {expected, WRITTEN.get(expected)}
            found += [] if said and fits else [parameter.name]
        return found

    classes = [name for name in NAMES if inspect.isclass(named(name)) and sections(name)["Parameters"]]
    assert offenders([*FUNCTIONS, *classes], faults) == {}
