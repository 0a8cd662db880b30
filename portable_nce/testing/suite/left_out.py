"""Rows and columns that do not count in calls of the losses in `LOSSES`.

Which these are, the loss itself says: no finite number there changes anything.
"""

from __future__ import annotations

import inspect
import random
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from .._package import pnce
from ..cases import LOSSES, example, lengths
from ..variants import flatten
from .calls import value_and_gradients

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..variants import Nested, Variant

N = 4
"""Samples."""

WAYS = ("weight", "mask", "label")
"""Ways not to count: a weight of 0, a mask, a label that no column has."""

MASKS = {"nnclr queue, views": "VV", "info_nce own": "NM", "angle": "N", "cosent": "N", "from_scores.cosent": "N"}
"""Axes of masks of losses without laws, where they are not (N, N)."""

CHOOSING = {
    "gist_embed": ("guide_query", "guide_key"),
    "nnclr": ("view_a", "support"),
    "from_scores.dclw": ("pair_weights",),
}
"""Arrays that count although not every number changes the result: they choose pairs by comparisons; rows couple."""


@cache
def lists_of(name: str) -> Mapping[str, Nested]:
    """Arrays of a loss, as lists."""
    case = example(name, N)
    return {**case.arguments, **case.constants}


@cache
def leaving_out(name: str, way: str) -> Mapping[str, Nested] | None:
    """Weights, a mask or labels with which sample 1 does not count in a way; None if the loss has no such array.

    The mask leaves out row and column 1, and column 2 too, so that row 2 has no positive.
    """
    loss, arrays = LOSSES[name], lists_of(name)
    function = attrgetter("clip" if name == "matryoshka" else name.split(maxsplit=1)[0])(pnce)
    parameters, widened = inspect.signature(function).parameters, {"keys", "columns"} & {*loss.keywords}
    if way == "weight" and "weights" in parameters:
        return {"weights": [0.0 if i == 1 else 1.0 + i / 4 for i in range(N)]}
    if way == "label" and "labels" in arrays and widened:
        return {"labels": [99 if i == 1 else label for i, label in enumerate(arrays["labels"])]}
    if way != "mask" or "mask" not in parameters or widened or name == "moco queue":
        return None
    length = {**lengths(N, 1, 2), **lengths(N, 1, max(2, loss.views))}
    first, *second = (length[axis] for axis in MASKS.get(name, loss.mask))
    rows = [i != 1 for i in range(first)]
    return {"mask": [[row and j not in {1, 2} for j in range(*second)] for row in rows] if second else rows}


def results(variant: Variant, name: str, way: str, arrays: Mapping[str, Nested]) -> list[Nested]:
    """Value and gradients of a loss in which sample 1 does not count in a way."""
    case, further = example(name, N), leaving_out(name, way) or {}
    given = {key: variant.floats(arrays[key]) for key in case.arguments}
    given |= {key: variant.array(further.get(key, arrays[key])) for key in case.constants}
    made = {"weights": variant.floats, "mask": variant.array}
    value, gradients = value_and_gradients(
        name, given, **{key: made[key](x) for key, x in further.items() if key in made}
    )
    return [variant.to_list(x) for x in (value, *gradients.values())]


_FOUND: dict[tuple[str, str, str], list[tuple[str, int]]] = {}


def rows_left_out(variant: Variant, name: str, way: str) -> list[tuple[str, int]]:
    """Rows, by the name of their array, on which neither the value nor any gradient depends."""
    key = variant.name, name, way
    if key not in _FOUND:
        _FOUND[key] = _search(variant, name, way)
    return _FOUND[key]


def _search(variant: Variant, name: str, way: str) -> list[tuple[str, int]]:
    arrays, choosing = lists_of(name), CHOOSING.get(name.split(maxsplit=1)[0], ())
    wanted, found = results(variant, name, way, arrays), []
    for key in example(name, N).arguments:
        rows = arrays[key] if isinstance(arrays[key], list) and key not in choosing else []
        for row, numbers in enumerate(rows):
            others = (with_row(arrays, key, row, _changed(numbers, seed, key)) for seed in (1, 2))
            if all(is_near(variant, results(variant, name, way, other), wanted) for other in others):
                found.append((key, row))
    return found


def with_row(arrays: Mapping[str, Nested], name: str, row: int, numbers: Nested) -> Mapping[str, Nested]:
    """Arrays with one row replaced."""
    return {**arrays, name: [numbers if k == row else x for k, x in enumerate(arrays[name])]}


def filled_with(number: float, like: Nested) -> Any:
    """Nested lists like the given ones, of one number."""
    return [filled_with(number, x) for x in like] if isinstance(like, list) else number


def _changed(numbers: Nested, seed: int, key: str) -> Nested:
    """Other random numbers; weights of pairs are not negative."""
    if isinstance(numbers, list):
        return [_changed(x, seed + k, key) for k, x in enumerate(numbers)]
    number = random.Random(seed).gauss(0.0, 2.0)
    return abs(number) if key == "pair_weights" else number


def is_near(variant: Variant, found: Nested, wanted: Nested) -> bool:
    """Whether numbers are equal up to rounding in the widest dtype."""
    tolerance = 5000 * variant.eps()
    return all(abs(a - b) <= tolerance * abs(b) for a, b in zip(flatten(found), flatten(wanted), strict=True))
