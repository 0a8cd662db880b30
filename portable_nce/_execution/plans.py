"""Cache of plans: the choices of a loss are kept for later calls of the same kind.

The kind of a call is everything on which choices depend, except the entries of arrays: libraries, shapes, dtypes,
devices, options, similarity, pairing and objective. Entries (is the temperature positive, are scores small) are checked
in each call. A plan is kept if a call consists of one sweep in one pass, and its arrays are all arguments of the call,
with zeros in rows that do not count.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from .._core.equality import Record, is_fixed
from .._core.namespace import device_key, is_number
from .._core.notes import listens
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..objectives.base import Objective, Pairwise
from ..objectives.hard import HardNegatives
from ..pairings import ByIndex, ByRule
from .fusing import is_fusible
from .matrix import Passes, as_arrays
from .replay import MOST, Replayed
from .specs import SweepSpec
from .tiling import is_large

PLANS: dict[Hashable, Plan] = {}
"""At most `MOST` plans, by the kind of call."""


class Plan(NamedTuple):
    """Sweep of a kind of call.

    Attributes
    ----------
    sweep : Replayed
        Function that computes it.
    spec : SweepSpec
        Static arguments, without the bound of the scores and a scale that is a number.
    places : tuple of (int or float)
        For each array of the sweep, its position in the sources of a call; or a float, which holds for all rows.
    dtype
        Dtype of the result.
    """

    sweep: Replayed
    spec: SweepSpec
    places: tuple[int | float, ...]
    dtype: Any

    def run(self, sources: Sequence[Any], rows: Array, scale: Any, bound: float) -> tuple[Array, Array]:
        """Sum of the row losses of a call, and the counts of the rows."""
        arrays = [sources[k] if isinstance(k, int) else as_arrays((k,), rows)[0] for k in self.places]
        spec = self.spec._replace(bound=bound, scale=None if self.spec.scale is None else scale)
        return adapter_of(arrays[0]).value_and_vjp(self.sweep)(spec, *arrays)


def keep(kind: Hashable, notes: Sequence[Any], sources: Sequence[Any], dtype: Any) -> None:
    """Keep the sweep that a call noted, if its arrays are all among the sources."""
    sweeps = [note for note in notes if isinstance(note, Passes)]
    if len(sweeps) != 1 or sweeps[0].number != 1:
        return
    prepared = sweeps[0].prepared
    if not prepared.spec.embedded or prepared.order is not None or not is_fixed(prepared.spec):
        return
    places = [_place(x, sources) for x in prepared.inputs.flat]
    if None in places:
        return
    if len(PLANS) >= MOST:
        PLANS.clear()
    PLANS[kind] = Plan(Replayed(prepared.function), prepared.spec, tuple(places), dtype)  # type: ignore[arg-type]


def _place(x: Any, sources: Sequence[Any]) -> int | float | None:
    return x if isinstance(x, float) else next((k for k, source in enumerate(sources) if source is x), None)


def kind_of(call: Any) -> Hashable | None:
    """Kind of a call of `contrast_embeddings`; None if its plan cannot be kept.

    Plans are kept for eager libraries and a single process, for reduced losses of cosines or inner products without a
    mask. If the objective is made from parameters, the kind includes those that are numbers.
    """
    options = call.options
    layout = call.layout
    whole = options.across is None and options.mask is None
    whole = whole and layout.opposite is None and layout.later_weights is None
    # By type first: an array compares itself.
    plain = type(options.similarity) is str and type(options.reduction) is str and type(options.hardness) is float
    if not (whole and plain and not options.hardness):
        return None
    if options.similarity not in {"cosine", "dot"} or options.reduction == "none":
        return None
    try:
        kind = _kind(call)
        if kind is not None:  # torch.compile before 2.13 cannot hash None
            hash(kind)
    except (AttributeError, LookupError, TypeError, RuntimeError):  # not an array: the checks raise a better error
        return None
    return kind


def _kind(call: Any) -> tuple[Any, ...] | None:
    objective, pairing, options = call.objective, call.pairing, call.options
    positives, is_objective = pairing.positives, isinstance(objective, (Objective, Pairwise, HardNegatives))
    embeddings: list[Any] = [*call.embeddings.values()]
    arrays = [x[0] if isinstance(x, tuple) else x for x in embeddings]
    adapter = adapter_of(arrays[0])
    if adapter.mode != "eager" or listens():
        return None  # first: torch.compile cannot read the `__qualname__` of some objectives
    if isinstance(positives, ByRule) or not (is_objective or _is_lasting(objective)):
        return None
    if isinstance(positives, ByIndex) and not positives.within:
        return None  # whether a row has a positive depends on its entry
    numbers: list[Any] = []
    others = [] if options.weights is None else [options.weights]
    for name, x in call.parameters.items():
        if is_number(x):
            numbers.append((name, type(x), None if is_objective else x))
        elif x is not None:
            others.append(x)
    recorded = [hasattr(x, "__recorded__") for x in (*arrays, *others)]
    sortable = pairing.positives.has_labels and is_large(arrays[0].shape[0], arrays[-1].shape[0])
    if sortable or (any(recorded) and not all(recorded)):
        return None  # blocks of sorted labels depend on entries; mixed plain and recorded arrays must be lifted
    rows, columns, pairs = pairing.arrays
    every = [*arrays, *rows, *columns, *pairs, *others]
    level = max([getattr(x, "level", 0) for x in every])  # kinds have relative levels: each tape has a new one
    same = [id(x) for x in every]
    static = (*options._replace(temperature=None, weights=None), call.layout, call.dtype)
    return (
        adapter,
        is_fusible(arrays[0]),
        *[_array_kind(x, level) for x in every],
        *map(same.index, same),  # which arrays are identical
        *(len(arrays), len(rows), len(columns), len(pairs), options.weights is None),
        objective,
        *pairing.fixed,
        *numbers,
        *[x[1:] if isinstance(x, tuple) else None for x in embeddings],
        *map(type, static),  # True == 1 == 1.0
        *static,
    )


def _is_lasting(function: Any) -> bool:
    """Whether a function that makes an objective is not a local one, which is new in each call."""
    return isinstance(function, Record) or "<locals>" not in getattr(function, "__qualname__", "<locals>")


def _array_kind(x: Array, level: int) -> tuple[Any, ...]:
    inside = getattr(x, "__recorded__", None)
    if inside is not None:
        return type(x), getattr(x, "level", level) - level, _array_kind(inside, level)
    return type(x), tuple(x.shape), x.dtype, device_key(x), getattr(x, "layout", None)
