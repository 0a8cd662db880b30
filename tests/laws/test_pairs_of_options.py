"""Every pair of option values of each loss, on NumPy, against the published sums."""

from __future__ import annotations

import inspect
import random
from dataclasses import replace
from itertools import combinations, product
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.testing import oracles
from portable_nce.testing.cases import LOSSES, example
from portable_nce.testing.covering import covering

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portable_nce.testing.cases import Case

ROWS = 4
DIRECTIONS = get_args(pnce.typing.JointDirection)

NUMBERS: dict[str, tuple[Any, ...]] = {
    "similarity": pnce.similarities.NAMES,
    "block_size": (None, 2),
    "temperature": (0.5, [0.5, 0.75, 0.375, 1.25]),
    "weights": (None, [0.5, 0.0, 2.0, 1.25]),
    "mining": (*get_args(pnce.typing.MiningName), *product(get_args(pnce.typing.MiningRule), repeat=2)),
    "directions": (*((name,) for name in DIRECTIONS), DIRECTIONS),
    "alpha": (0.25, 1.0),
    "base_temperature": (None, 0.125),
    "beta": (0.0, 0.5, 1.0),
    "gamma": (0.25, 1.0),
    "hardness": (0.0, 2.0),
    "l2": (0.0, 0.125),
    "margin": (0.125, 1.5),
    "max_logit_scale": (None, 100.0),
    "negative_power": (1, 2),
    "positive_margin": (0.0, 0.25),
    "positive_power": (1, 2),
    "rho": (None, 2.0),
    "sigma": (0.25, 2.0),
    "tau_plus": (0.0, 0.125),
    "teacher_temperature": (None, 0.25),
}
"""Values of options that are not only booleans or names."""

NOT_TRIED = {"precision", "across"}
"""Options that do not change the result."""

WITHOUT_ORACLE = ("matryoshka", "max_sim", "contrast logistic")
"""Losses that the oracles do not compute, or not with all options."""


def values_of(option: inspect.Parameter, loss: str) -> tuple[Any, ...]:
    """Values of an option; for names, those of its type."""
    shape = LOSSES[loss]
    if option.name == "mask" and shape.laws:
        lengths = {"M": ROWS + 1, "C": 3, "V": shape.views * ROWS}
        axes = [lengths.get(axis, ROWS) for axis in shape.mask]
        return None, (np.random.default_rng(7).random(axes) < 0.75).tolist()
    if option.annotation == "bool":
        return False, True
    names = get_args(getattr(pnce.typing, option.annotation.partition(" |")[0], None))
    return NUMBERS.get(option.name) or (*names, *((None,) if option.default is None else ()))


def refused(options: Mapping[str, Any], loss: str) -> bool:
    """Whether the documentation of a loss excludes a combination."""
    views = options.get("negatives") == "views"
    both_ways = options.get("symmetric") and (views or "negative_keys" in LOSSES[loss].arguments)
    return bool(both_ways or (views and options.get("mask")) or options.get("mining") == ("semi_hard", "semi_hard"))


def calls(name: str) -> list[Case]:
    """Calls of a loss that together contain every pair of option values."""
    rng = random.Random(name)
    case = example(
        name, ROWS, fill=lambda shape, _: np.reshape([rng.gauss() for _ in range(prod(shape))], shape).tolist()
    )
    given = {*case.options, *case.constants, *case.arguments, *NOT_TRIED} - {"temperature"}
    given |= {"hardness", "pairing"} if case.loss == "contrast" else set()  # not supported by the oracle
    parameters = inspect.signature(attrgetter(case.loss)(pnce)).parameters.values()
    values = {p.name: values_of(p, name) for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in given}
    values = {option: found for option, found in values.items() if found}
    drawn = [{option: rng.choice(found) for option, found in values.items()} for _ in range(500)]
    drawn = [of for of in drawn if not refused({**case.options, **of}, name)]
    pairs = [{f"{a}, {b}": repr((of[a], of[b])) for a, b in combinations(of, 2)} for of in drawn]
    chosen = [drawn[k] for k in covering(pairs, name)]
    return [with_options(case, options) for options in chosen]


def with_options(case: Case, options: Mapping[str, Any]) -> Case:
    """Add options to a call, some of which are arrays."""
    arrays = {key: options[key] for key in ("mask", "weights") if options.get(key) is not None}
    temperature = {key: options[key] for key in ("temperature",) if key in options}
    others = {key: value for key, value in options.items() if key not in {"mask", "weights", "temperature"}}
    return replace(
        case,
        arguments={**case.arguments, **temperature},
        constants={**case.constants, **arrays},
        options={**case.options, **others},
    )


@pytest.mark.parametrize("name", [name for name in LOSSES if not name.endswith(WITHOUT_ORACLE)])
def test_pairs_of_options(name: str) -> None:
    """Compare value and directional derivative."""
    for case in calls(name):
        learned = [key for key in case.arguments if key not in LOSSES[name].constant]
        rng = np.random.default_rng(len(learned))
        way = {key: rng.normal(size=np.shape(case.arguments[key])) for key in learned}
        arrays = [np.asarray(x) for x in (*case.arguments.values(), *case.constants.values())]

        def total(*arrays: Any, case: Case = case) -> Any:
            value = case.function(*arrays)
            return value.__array_namespace__().sum(value)

        places = tuple(k for k, key in enumerate(case.arguments) if key in learned)
        value, gradients = pnce.value_and_grad(total, argnums=places)(*arrays)
        slope = sum(np.sum(gradient * way[key]) for key, gradient in zip(learned, gradients, strict=True))
        wanted, wanted_slope = oracles.value_and_slope(case, {key: x.tolist() for key, x in way.items()})
        wanted = sum(wanted) if isinstance(wanted, list) else wanted
        scale = sum(np.sum(np.abs(gradient * way[key])) for key, gradient in zip(learned, gradients, strict=True))
        assert float(value) == pytest.approx(float(wanted), rel=1e-12, abs=1e-13), case.options
        assert float(slope) == pytest.approx(float(wanted_slope), rel=1e-12, abs=1e-13 * float(scale)), case.options
