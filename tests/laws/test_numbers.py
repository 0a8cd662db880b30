"""Options that are numbers and change from call to call: torch.compile makes at most two graphs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

import portable_nce as pnce
from portable_nce.backends.torch_compiler import WHOLE  # pyright: ignore[reportMissingImports]
from portable_nce.testing.cases import LOSSES, example

from calls import OF_SCORES, mostly_full

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

COMPARED = frozenset({"max_logit_scale"})
"""Numbers that are only compared with others: PyTorch makes a graph for each of their values."""

HALF = 0.5
"""Value of a number that is optional or 0 by default."""


def numbers_of(name: str) -> dict[str, float]:
    """Options of a function that its signature annotates as numbers, as the table or the signature gives them."""
    case = OF_SCORES[name] if name in OF_SCORES else example(name)
    given = {**case.arguments, **case.constants, **case.options}
    parameters = inspect.signature(attrgetter(case.loss)(pnce)).parameters
    if case.loss == "matryoshka":
        parameters = inspect.signature(pnce.clip).parameters
    found = {key: given.get(key, p.default) for key, p in parameters.items() if str(p.annotation).startswith("float")}
    return {key: _start(x) for key, x in found.items() if not isinstance(x, list) and key not in COMPARED}


def _start(x: Any) -> float:
    return float(x) if isinstance(x, (int, float)) and x else HALF


NUMBERS = {name: numbers_of(name) for name in (*(name for name in LOSSES if " " not in name), *OF_SCORES)}
"""Numbers of each function of `LOSSES`, bounds, density and diagnostics."""

NAMES = [name for name, numbers in NUMBERS.items() if numbers]


def chosen(name: str) -> list[tuple[str, ...]]:
    """Each option alone, each pair, and all: an option beside another may take another path."""
    numbers = sorted(NUMBERS[name])
    sets = [*combinations(numbers, 1), *combinations(numbers, 2), tuple(numbers)]
    return list(dict.fromkeys(sets))


CALLS = {f"{name}, {' '.join(options)}": (name, options) for name in NAMES for options in chosen(name)}
FEW = ["info_nce, hardness temperature", "density.linear_softmax, smoothing softcap z_loss"]


class Counted:
    """Backend that traces the joint graph, where PyTorch fixes numbers that it cannot keep, and counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return aot_eager(graph, inputs)


def call_of(name: str, options: tuple[str, ...]) -> Callable[[dict[str, float]], Any]:
    """Return a function as one of these numbers, with fixed tensors of which some need a gradient.

    Its other numbers have their defaults, if there are any.
    """
    case = OF_SCORES[name] if name in OF_SCORES else example(name, fill=_normal)
    constant = LOSSES[name].constant if name in LOSSES else frozenset[str]()
    tensors = {
        key: torch.asarray(x, requires_grad=key in case.arguments and key not in constant)  # float32, as in a training
        for key, x in {**case.arguments, **case.constants}.items()
        if key not in NUMBERS[name]
    }
    for x in tensors.values():
        torch._dynamo.mark_static(x)  # noqa: SLF001  (symbolic sizes would be slow)
    parameters = inspect.signature(pnce.clip if case.loss == "matryoshka" else attrgetter(case.loss)(pnce)).parameters
    required = {key for key in NUMBERS[name] if parameters[key].default is inspect.Parameter.empty}
    others = {key: NUMBERS[name][key] for key in required.difference(options)}
    bound = replace(case, options={key: x for key, x in case.options.items() if key not in NUMBERS[name]}).bound()
    return lambda numbers: bound({**tensors, **others, **numbers})


def _normal(shape: tuple[int, ...], place: int) -> Any:
    return np.random.default_rng((7, place)).normal(size=shape).tolist()


@pytest.mark.parametrize("call", mostly_full(CALLS, FEW))
def test_two_graphs_serve_all_values_of_all_numbers(call: str) -> None:
    """One graph for the first values and one for all others; releases that trace no losses call them as they are.

    PyTorch 2.11 keeps no quotient of two numbers: it makes a graph for each pair.
    """
    torch.compiler.reset()
    name, options = CALLS[call]
    function, backend = call_of(name, options), Counted()
    function({key: NUMBERS[name][key] for key in options})  # the first call of a process may need one more graph
    compiled = torch.compile(function, fullgraph=WHOLE, backend=backend)
    for k in range(6):
        numbers = {key: NUMBERS[name][key] * (1 - k / 16) for key in options}
        torch.testing.assert_close(compiled(numbers), function(numbers))
    keeps_pairs = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    assert backend.graphs <= 2 or (len(options) > 1 and not keeps_pairs)


def test_every_number_of_the_losses_is_found() -> None:
    assert NUMBERS["info_nce"] == {"temperature": 0.5, "hardness": HALF}
    assert NUMBERS["triplet_from_labels"].keys() == {"margin", "temperature"}
    assert NUMBERS["density.linear_softmax"].keys() == {"softcap", "smoothing", "z_loss"}
    assert len(NAMES) > 40
