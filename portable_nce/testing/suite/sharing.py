"""Cases of losses on ranks: their parts of the arrays, their results, and errors against one process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core.namespace import namespace_of
from .. import oracles
from .._package import pnce
from ..ranks import Rank, run_ranks
from ..sharding import CLASSES, Place, cut_case, samples_of
from ..variants import case_arrays, differentiate
from .calls import scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..cases import Case
    from ..variants import Nested, Variant

PARAMETERS = {"temperature", "logit_scale", "logit_bias", "scale"}


def bounds_of(samples: int, size: int, without_rows: int | None = None) -> list[tuple[int, int]]:
    """Bounds of an uneven split of samples among ranks: the second has the most; one rank may have none."""
    counts = [max(1, samples // (size + 1))] * size
    if without_rows is not None:
        counts[without_rows] = 0
    counts[(size > 1) - (without_rows == 1)] += samples - sum(counts)
    ends = [sum(counts[: rank + 1]) for rank in range(size)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def add(whole: list[Any], place: Place, part: Nested) -> None:
    """Add the part of a rank to the whole, in place."""
    if place.axis:
        for line, lines in zip(whole, part, strict=True):
            add(line, replace(place, axis=place.axis - 1), lines)
        return
    for k, x in zip(range(len(part)) if place.entries is None else place.entries, part, strict=True):
        if isinstance(x, list):
            add(whole[k], Place(), x)
        else:
            whole[k] += x


def sharing(
    case: Case, group: Rank, gradients: pnce.typing.GradientsOfRanks, *, check: bool = True
) -> Callable[..., Any]:
    """Function of the case of a rank."""
    options = {**case.options, "across": pnce.across(group, gradients=gradients, check=check)}
    return replace(case, options=options).function


class Without(NamedTuple):
    """Rank without rows, and rank without columns where these are separate; None if all have some."""

    rows: int | None = None
    columns: int | None = None


ALL_HAVE_SOME = Without()


def cut(whole: Any, place: Place, part: Any) -> Any:
    """Part of an array, or the array without entries along an axis."""
    return whole[(*[slice(None)] * place.axis, slice(0), ...)] if place.entries == () else part


@dataclass
class Found:
    """Result and collectives of a rank, and the position of its part of each array."""

    value: Nested
    gradients: list[Nested]
    group: Rank
    places: Mapping[str, Place]


def shared(
    variant: Variant,
    case: Case,
    size: int,
    dtype: str,
    gradients: pnce.typing.GradientsOfRanks = "summed",
    *,
    check: bool = True,
    without: Without = ALL_HAVE_SOME,
) -> list[Found]:
    """Results of each rank; row losses are summed for the gradient."""
    parts = cut_case(case, bounds_of(samples_of(case), size, without.rows), without.columns)

    def on_a_rank(group: Rank) -> Found:
        own, places = parts[group.rank]
        function, arrays = sharing(own, group, gradients, check=check), case_arrays(variant, own, dtype)
        if group.rank in without:  # nested lists without entries have no width
            whole = dict(zip(places, case_arrays(variant, case, dtype), strict=True))
            arrays = [cut(whole[key], places[key], x) for key, x in zip(places, arrays, strict=True)]
        if case.options.get("reduction") == "none":
            value, function = function(*arrays), summed(function)
            slopes = differentiate(function, arrays, len(case.arguments))[1]
        else:
            value, slopes = differentiate(function, arrays, len(case.arguments))
        return Found(variant.to_list(value), [variant.to_list(slope) for slope in slopes], group, places)

    return run_ranks(size, on_a_rank)


def summed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Sum of the row losses."""

    def of_rows(*arrays: Any) -> Any:
        values = function(*arrays)
        return namespace_of(values).sum(values)

    return of_rows


def total_of(results: list[Found], name: str, k: int, like: Nested) -> Nested:
    """Sum of the ranks' gradients with respect to an array."""
    total = [scaled(0, like)]
    for found in results:
        if isinstance(like, list):
            add(total[0], found.places[name], found.gradients[k])
        else:
            total[0] += found.gradients[k]
    return total[0]


def errors_on_ranks(
    results: list[Found],
    case: Case,
    expected: list[Nested],
    gradients: pnce.typing.GradientsOfRanks,
    smallest: float = 0.0,
) -> dict[str, float]:
    """Errors of the ranks' value and gradients, relative to those of one process; `smallest`: as in `oracles.error`."""
    value, *slopes = expected
    errors = {"value": max(oracles.error(found.value, oracles.exact(value), smallest) for found in results)}
    averaged = gradients == "averaged"
    for k, (name, wanted) in enumerate(zip(case.arguments, slopes, strict=True)):
        if averaged and not isinstance(wanted, list) and name in PARAMETERS:  # the whole on each
            errors[name] = max(oracles.error(found.gradients[k], oracles.exact(wanted), smallest) for found in results)
        else:
            wanted_sum = scaled(len(results), wanted) if averaged and name not in CLASSES else wanted
            errors[name] = oracles.error(total_of(results, name, k, wanted), oracles.exact(wanted_sum), smallest)
    return errors
