"""Cases of losses split among ranks: the rows of each array on each rank."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from .cases import Case

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CLASSES", "Place", "cut_case", "is_shared", "place_of", "samples_of"]

Nested: TypeAlias = Any

REPLICATED = frozenset({"queue", "support", "prototypes", "prototypes_2", "concentrations", "concentrations_2"})
"""Arrays that are equal on all ranks, as are numbers, projections and weights of a similarity."""

PARAMETERS = frozenset({"projections", "bilinear", "factors"})

KEYS = frozenset({"keys", "key_labels"})
"""Extra columns, and their labels."""

CLASSES = frozenset({"weight", "bias", "class_weights"})
"""Arrays of a vocabulary: each rank has its own classes and their whole gradient."""


@dataclass(frozen=True, slots=True)
class Place:
    """Entries of an array on a rank, along one axis; None for the whole array."""

    axis: int = 0
    entries: tuple[int, ...] | None = None

    def taken(self, nested: Nested) -> Nested:
        """Part of the array on the rank."""
        if self.entries is None:
            return nested
        if self.axis:
            return [replace(self, axis=self.axis - 1).taken(part) for part in nested]
        return [nested[k] for k in self.entries]


def is_shared(case: Case) -> bool:
    """Whether ranks can share the batch of a case."""
    package = __name__.rpartition(".testing.")[0]
    topic, _, name = case.loss.rpartition(".")
    function = getattr(importlib.import_module(f"{package}.{topic}" if topic else package), name)
    if "across" not in inspect.signature(function).parameters or case.options.get("pairing") == "queue":
        return False
    if "negative_candidates" in case.arguments or "further" in case.name:  # further columns have no rank
        return False
    if case.loss in {"dclw", "hcl"} and isinstance(case.arguments.get("temperature"), list):
        return False
    # Extra columns of a diagonal pairing have no rank in one process.
    return case.options.get("pairing") != "diagonal" or len(case.arguments["y"]) == len(case.arguments["x"])


def samples_of(case: Case) -> int:
    """Number of samples in the batch of a case."""
    rows = len(next(iter(case.arguments.values())))
    return rows // 2 if case.options.get("pairing") == "two_views" else rows


def place_of(
    case: Case,
    name: str,
    nested: Nested,
    bounds: Sequence[tuple[int, int]],
    rank: int,
    *,
    without_columns: int | None = None,
) -> Place:
    """Position of a rank's part of an array, for ranks that have the samples between given bounds.

    `without_columns`: a rank that has no entries of arrays whose length is independent of the number of samples.
    """
    if name in REPLICATED | PARAMETERS or not isinstance(nested, list):
        return Place()
    if name in KEYS and "slots" in case.options:  # of a queue
        return Place()
    if name == "temperature" and len(nested) == 1:
        return Place()
    samples = samples_of(case)
    low, high = bounds[rank]
    if name == "targets" and isinstance(nested[0], list):
        return Place(1, tuple(range(low, high)))
    length = len(nested)
    if length % samples == 0 and not _is_apart(case, name, nested):
        return Place(0, tuple(low + k + view * samples for view in range(length // samples) for k in range(high - low)))
    having = [other for other in range(len(bounds)) if other != without_columns]
    ends = [sum(k <= other for k in having) * length // len(having) for other in range(len(bounds))]
    return Place(0, tuple(range(ends[rank - 1] if rank else 0, ends[rank])))


def _is_apart(case: Case, name: str, nested: Nested) -> bool:
    """Whether the number of rows of an array is independent of the number of samples."""
    if name in KEYS | CLASSES or (name == "text" and case.options.get("negative_only", False)):
        return True
    if name == "negative_keys":
        return not isinstance(nested[0][0], list)
    named = {"positives", "columns"} & set(case.constants)
    return bool(named) and name in {"positive_key", "y", "columns"} and len(nested) != samples_of(case)


def cut_case(
    case: Case, bounds: Sequence[tuple[int, int]], without_columns: int | None = None
) -> list[tuple[Case, Mapping[str, Place]]]:
    """The case of each rank, and the position of its arrays in those of the whole case."""
    found: list[tuple[Case, Mapping[str, Place]]] = []
    arrays = {**case.arguments, **case.constants}
    for rank in range(len(bounds)):
        places = {
            name: place_of(case, name, nested, bounds, rank, without_columns=without_columns)
            for name, nested in arrays.items()
        }
        parts = {name: places[name].taken(nested) for name, nested in arrays.items()}
        own = replace(
            case,
            arguments={name: parts[name] for name in case.arguments},
            constants={name: parts[name] for name in case.constants},
        )
        found.append((own, places))
    return found
