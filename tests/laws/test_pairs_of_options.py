"""Every pair of option values of each loss, on NumPy, against the published sums."""

from __future__ import annotations

import inspect
import random
from dataclasses import replace
from itertools import combinations, product
from math import prod
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.testing import oracles
from portable_nce.testing.cases import LOSSES, example
from portable_nce.testing.covering import covering
from portable_nce.testing.oracles import error, exact
from portable_nce.testing.sharding import is_shared
from portable_nce.testing.suite.sharing import Without, errors_on_ranks, shared, summed
from portable_nce.testing.variants import EPS, case_arrays, differentiate, started

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
    "pair_weights": (
        None,
        [[1.5, 1.25, 0.0, 2.0], [0.5, 1.0, 1.25, 0.0], [0.0, 2.0, 0.75, 1.0], [1.0, 0.0, 0.5, 1.25]],
    ),
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
    coupled = loss in {"dclw", "hcl"} and options.get("ranks") and isinstance(options.get("temperature"), list)
    return bool(
        coupled or both_ways or (views and options.get("mask")) or options.get("mining") == ("semi_hard", "semi_hard")
    )


class Way(NamedTuple):
    """How a call is made: dtype, number of ranks and the rank without rows, or one process."""

    dtype: str = "float64"
    ranks: tuple[int, int | None] | None = None


WAYS: dict[str, tuple[Any, ...]] = {
    "dtype": ("float64", "float32", "float16", "bfloat16"),
    "ranks": (None, (2, None), (3, None), (3, 1)),
    "precision": (None, "highest", "high"),
}
"""Values of what does not change the result but for rounding."""


def calls(name: str, ways: Mapping[str, tuple[Any, ...]] = MappingProxyType({})) -> list[tuple[Case, Way]]:
    """Calls of a loss, in some ways, that together contain every pair of option values."""
    rng = random.Random(name)
    case = example(
        name, ROWS, fill=lambda shape, _: np.reshape([rng.gauss() for _ in range(prod(shape))], shape).tolist()
    )
    given = {*case.options, *case.constants, *case.arguments, *NOT_TRIED} - {"temperature"}
    given |= {"hardness", "pairing"} if case.loss == "contrast" else set()  # not supported by the oracle
    parameters = [*inspect.signature(attrgetter(case.loss)(pnce)).parameters.values()]
    values = {p.name: values_of(p, name) for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in given}
    taken = {p.name for p in parameters}
    if "across" not in taken or not is_shared(case):
        ways = {way: found for way, found in ways.items() if way != "ranks"}
    values |= {way: found for way, found in ways.items() if way != "precision" or way in taken}
    values = {option: found for option, found in values.items() if found}
    drawn = [{option: rng.choice(found) for option, found in values.items()} for _ in range(500)]
    drawn = [of for of in drawn if not refused({**case.options, **of}, name)]
    pairs = [{f"{a}, {b}": repr((of[a], of[b])) for a, b in combinations(of, 2)} for of in drawn]
    chosen = [drawn[k] for k in covering(pairs, name)]
    return [(with_options(case, options), Way(*map(options.get, Way._fields, Way()))) for options in chosen]


def with_options(case: Case, options: Mapping[str, Any]) -> Case:
    """Add options to a call, some of which are arrays."""
    arrays = {key: options[key] for key in ("mask", "pair_weights", "weights") if options.get(key) is not None}
    temperature = {key: options[key] for key in ("temperature",) if key in options}
    of_arrays = {"mask", "pair_weights", "weights", "temperature"}
    others = {key: value for key, value in options.items() if key not in {*of_arrays, *Way._fields}}
    return replace(
        case,
        arguments={**case.arguments, **temperature},
        constants={**case.constants, **arrays},
        options={**case.options, **others},
    )


@pytest.mark.parametrize("name", [name for name in LOSSES if not name.endswith(WITHOUT_ORACLE)])
def test_pairs_of_options(name: str) -> None:
    """Compare value and directional derivative."""
    for case, _ in calls(name):
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


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in LOSSES if name.split(maxsplit=1)[0] != "matryoshka"])
def test_pairs_of_options_in_other_dtypes_and_on_ranks(name: str) -> None:
    """Pairs of options, dtypes, ranks (one of them without rows) and precisions, against one process in float64."""
    narrow, wide = started("torch"), started("numpy")
    for given, way in calls(name, WAYS):
        rounded = map(narrow.to_list, case_arrays(narrow, given, way.dtype))
        held = dict(zip([*given.arguments, *given.constants], rounded, strict=True))
        case = replace(
            given,
            arguments={key: held[key] for key in given.arguments},
            constants={key: held[key] for key in given.constants},
        )
        smallest = 2.0**-14 if way.dtype == "float16" else 0.0  # below, numbers have fewer digits
        of_rows = case.options.get("reduction") == "none"
        function = summed(case.function) if of_rows else case.function
        value, slopes = differentiate(function, case_arrays(wide, case, "float64"), len(case.arguments))
        expected = [wide.to_list(x) for x in (value, *slopes)]
        if way.ranks is None:
            arrays = case_arrays(narrow, case, way.dtype)
            value, slopes = differentiate(function, arrays, len(case.arguments))
            found = map(narrow.to_list, (value, *slopes))
            names = ["value", *case.arguments]
            errors = {key: error(x, exact(y), smallest) for key, x, y in zip(names, found, expected, strict=True)}
        else:
            size, without = way.ranks
            results = shared(narrow, case, size, way.dtype, "summed", without=Without(rows=without))
            if of_rows:
                results = [replace(one, value=expected[0]) for one in results]
            errors = errors_on_ranks(results, case, expected, "summed", smallest)
        if of_rows:  # a sum of rounded losses
            errors.pop("value")
        for key, worst in errors.items():
            if way.ranks is not None and not isinstance(case.arguments.get(key, []), list):
                continue  # a sum of rounded numbers, which may cancel
            most = {"float64": 1e-12, "float32": 2e-5}.get(way.dtype, 0.51 * EPS.get(way.dtype, 0.0))
            assert worst <= most, (key, worst, way, case.options)
