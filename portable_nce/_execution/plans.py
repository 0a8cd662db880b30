"""Plans that are kept: what a loss decided for a kind of call serves all calls of that kind.

A kind is all that a decision may depend on, but for the entries of arrays: libraries, shapes, dtypes, devices, options
and parts. What depends on entries (whether a temperature is positive, whether scores are small) is looked at in each
call. A plan is kept where one sweep in one pass is all that a call does, and each of its arrays is one that came in.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from .._core.equality import Record, is_fixed
from .._core.namespace import device_of, is_number
from .._core.notes import listens
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..objectives.base import Objective, Pairwise
from ..objectives.hard import HardNegatives
from .layouts import Layout
from .matrix import Passes, as_arrays
from .replay import MOST, Replayed
from .tiling import is_large

PLANS: dict[Hashable, Plan] = {}
"""The plans by the kinds of calls, `MOST` of them at a time."""


class Plan(NamedTuple):
    """The sweep of a kind of call.

    Attributes
    ----------
    sweep : Replayed
        The function that does it.
    layout : Layout
        Its static arguments, but for a scale that is a number, and the bound of the scores.
    places : tuple of (int or float)
        Which of the sources of a call is each array of the sweep; a float is a number for all rows.
    dtype
        That of the result.
    """

    sweep: Replayed
    layout: Layout
    places: tuple[int | float, ...]
    dtype: Any

    def run(self, sources: Sequence[Any], scale: Any, bound: float) -> tuple[Array, Array]:
        """The sum of the losses of a call and how often each row counts; the scores have a bound."""
        arrays = [sources[k] if isinstance(k, int) else as_arrays((k,), sources[1])[0] for k in self.places]
        layout = self.layout._replace(bound=bound, scale=None if self.layout.scale is None else scale)
        return adapter_of(arrays[0]).value_and_vjp(self.sweep)(layout, *arrays)


def keep(kind: Hashable, notes: Sequence[Any], sources: Sequence[Any], dtype: Any) -> None:
    """Keep what a call did, of which the notes tell, if others of its kind have all that it takes."""
    sweeps = [thing for thing in notes if isinstance(thing, Passes)]
    if len(sweeps) != 1 or sweeps[0].number != 1:
        return
    prepared = sweeps[0].prepared
    if not prepared.layout.embedded or prepared.order is not None or not is_fixed(prepared.layout):
        return
    places = [_place(x, sources) for x in prepared.inputs.flat]
    if None in places:
        return
    if len(PLANS) >= MOST:
        PLANS.clear()
    PLANS[kind] = Plan(Replayed(prepared.function), prepared.layout, tuple(places), dtype)  # type: ignore[arg-type]


def _place(x: Any, sources: Sequence[Any]) -> int | float | None:
    return x if isinstance(x, float) else next((k for k, source in enumerate(sources) if source is x), None)


def kind_of(call: Any) -> Hashable | None:
    """The kind of a call of `contrast_embeddings`; None if its plan cannot be kept.

    Plans are kept of libraries that compute at once, for sums over the rows of one process, of inner products of
    embeddings or of unit rows, without a mask.
    An objective that is made of parameters may depend on those that are numbers.
    """
    options = call.options
    whole = options.across is None and options.mask is None and call.layout.opposite is None
    # By type first: an array compares itself.
    plain = type(options.similarity) is str and type(options.reduction) is str and type(options.hardness) is float
    if not (whole and plain and not options.hardness):
        return None
    if options.similarity not in {"cosine", "dot"} or options.reduction == "none":
        return None
    try:
        kind = _kind(call)
        hash(kind)
    except (AttributeError, LookupError, TypeError, RuntimeError):  # not an array: the checks have a message for it
        return None
    return kind


def _kind(call: Any) -> tuple[Any, ...] | None:
    objective, pairing, options = call.objective, call.pairing, call.options
    structure, made = pairing.structure, isinstance(objective, (Objective, Pairwise, HardNegatives))
    given: list[Any] = [*call.embeddings.values()]
    arrays = [x[0] if isinstance(x, tuple) else x for x in given]
    adapter = adapter_of(arrays[0])
    if adapter.mode != "eager" or listens():
        return None  # before all others: torch.compile cannot read the `__qualname__` of some objectives
    if not structure.known or structure.by_index or not (made or _is_lasting(objective)):
        return None  # whether an index is in range depends on its entries
    numbers: list[Any] = []
    others = [] if options.weights is None else [options.weights]
    for name, x in call.parameters.items():
        if is_number(x):
            numbers.append((name, type(x), None if made else x))
        elif x is not None:
            others.append(x)
    recorded = [hasattr(x, "__recorded__") for x in (*arrays, *others)]
    sortable = structure.has_labels and is_large(arrays[0].shape[0], arrays[-1].shape[0])
    if sortable or (any(recorded) and not all(recorded)):
        return None  # blocks of labels depend on the labels; plain arrays beside recorded ones have to be lifted
    every = [*arrays, *pairing.rows, *pairing.columns, *pairing.pairs, *others]
    level = max([getattr(x, "level", 0) for x in every])  # each derivative on the tape has another
    same = [id(x) for x in every]
    static = (
        options.similarity,
        options.reduction,
        *options[5:7],
        options.symmetric,
        options.scaled_by,
        call.layout,
        call.dtype,
    )
    return (
        adapter,
        *[_array_kind(x, level) for x in every],
        *map(same.index, same),  # which are the same array
        *(len(arrays), len(pairing.rows), len(pairing.columns), len(pairing.pairs), options.weights is None),
        objective,
        *(
            pairing.rule,
            structure,
            pairing.extra_columns,
            pairing.exchangeable,
            pairing.one_per_row,
            pairing.one_per_column,
        ),
        *numbers,
        *[x[1:] if isinstance(x, tuple) else None for x in given],
        *map(type, static),  # True is 1 and 1.0, but of another kind
        *static,
    )


def _is_lasting(function: Any) -> bool:
    """Whether a function that makes an objective is no closure, which is made anew in each call."""
    return isinstance(function, Record) or "<locals>" not in getattr(function, "__qualname__", "<locals>")


def _array_kind(x: Array, level: int) -> tuple[Any, ...]:
    own = (type(x), tuple(x.shape), x.dtype, device_of(x), getattr(x, "layout", None))
    inside = getattr(x, "__recorded__", None)
    return own if inside is None else (*own, getattr(x, "level", level) - level, _array_kind(inside, level))
