"""Plans that are kept: what a loss decided for a kind of call serves all calls of that kind.

A kind is all that a decision may depend on, but for the entries of arrays: libraries, shapes, dtypes, devices, options
and parts. What depends on entries (whether a temperature is positive, whether scores are small) is looked at in each
call. A plan is kept where one sweep in one pass is all that a call does, and each of its arrays is one that came in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from .._core.equality import Record
from .._core.namespace import device_of, is_number
from .._core.notes import listens
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..objectives.base import Objective, Pairwise
from ..objectives.hard import HardNegatives
from .inputs import Arrays, Inputs
from .layouts import Layout
from .matrix import Passes, Prepared
from .tiling import is_large

MOST = 512
PLANS: dict[Hashable, Plan] = {}
"""The plans by the kinds of calls, `MOST` of them at a time."""


class Plan(NamedTuple):
    """The sweep of a kind of call.

    Attributes
    ----------
    function, layout, reason
        As of `Prepared`.
    places : tuple of tuple of (int or float)
        Which of the arrays that came in is each array of the sweep, in the groups of `Inputs`, but for the scale; a
        float is a number for all rows.
    dtype
        That of the result.
    """

    function: Callable[..., Arrays]
    layout: Layout
    reason: str
    places: tuple[tuple[int | float, ...], ...]
    dtype: Any

    def prepared(self, sources: Sequence[Any], scale: Any, bound: float) -> Prepared:
        """The sweep over the arrays of a call, whose scores have a bound."""
        layout = self.layout
        groups = [tuple([x if isinstance(x, float) else sources[x] for x in group]) for group in self.places]
        inputs = Inputs(*groups)
        if layout.scale is None:
            inputs = inputs._replace(scale=(scale,))
        elif layout.scale != scale:
            layout = layout._replace(scale=scale)
        if layout.bound != bound:
            layout = layout._replace(bound=bound)
        return Prepared(self.function, layout, inputs, self.reason)


def keep(kind: Hashable, notes: Sequence[Any], sources: Sequence[Any], dtype: Any) -> None:
    """Keep what a call did, of which the notes tell, if others of its kind have all that it takes."""
    sweeps = [thing for thing in notes if isinstance(thing, Passes)]
    if len(sweeps) != 1 or sweeps[0].number != 1:
        return
    prepared = sweeps[0].prepared
    if not prepared.layout.embedded or prepared.order is not None:
        return
    places: Any = tuple([tuple([_place(x, sources) for x in group]) for group in prepared.inputs._replace(scale=())])
    if any(None in group for group in places):
        return
    if len(PLANS) >= MOST:
        PLANS.clear()
    PLANS[kind] = Plan(prepared.function, prepared.layout, prepared.reason, places, dtype)


def _place(x: Any, sources: Sequence[Any]) -> int | float | None:
    return x if isinstance(x, float) else next((k for k, source in enumerate(sources) if source is x), None)


def kind_of(call: Any) -> Hashable | None:
    """The kind of a call of `contrast_embeddings`; None if its plan cannot be kept.

    Plans are kept of libraries that compute at once, for sums over the rows of one process, of cosines without a mask.
    An objective that is made of parameters may depend on those that are numbers.
    """
    objective, pairing, options = call.objective, call.pairing, call.options
    structure, made = pairing.structure, isinstance(objective, (Objective, Pairwise, HardNegatives))
    alone = options.across is None and options.mask is None and call.layout.opposite is None
    plain = isinstance(options.similarity, str) and isinstance(options.reduction, str)  # an array compares itself
    plain = plain and options.similarity == "cosine" and options.reduction != "none"
    if not (alone and plain and is_number(options.hardness) and not options.hardness):
        return None
    try:
        arrays = [x[0] if isinstance(x, tuple) else x for x in call.embeddings.values()]
        if adapter_of(arrays[0]).mode != "eager" or listens():
            return None  # before all others: torch.compile cannot read the `__qualname__` of some objectives
        if not structure.known or structure.by_index or not (_is_ours(objective) if made else _is_lasting(objective)):
            return None  # whether an index is in range depends on its entries
        numbers = [(name, type(x), None if made else x) for name, x in call.parameters.items() if is_number(x)]
        others = [x for x in (options.weights, *call.parameters.values()) if x is not None and not is_number(x)]
        sortable = structure.has_labels and is_large(arrays[0].shape[0], arrays[-1].shape[0])
        if sortable or len({hasattr(x, "__recorded__") for x in (*arrays, *others)}) > 1:
            return None  # blocks of labels depend on the labels; plain arrays beside recorded ones have to be lifted
        groups = (arrays, pairing.rows, pairing.columns, pairing.pairs, others)
        every = [x for group in groups for x in group]
        level = max([getattr(x, "level", 0) for x in every])  # each derivative on the tape has another
        joined = tuple([x[1:] if isinstance(x, tuple) else None for x in call.embeddings.values()])
        plain_options = (options.reduction, options.block_size, options.precision, options.symmetric, options.scaled_by)
        static = (*plain_options, call.layout, joined, call.dtype)
        kind = (
            tuple([_array_kind(x, level) for x in every]),
            tuple([next(k for k, other in enumerate(every) if other is x) for x in every]),  # which are the same array
            tuple(map(len, groups)),
            options.weights is None,
            objective,
            *(pairing.rule, structure, pairing.further, pairing.exchangeable),
            *(pairing.one_per_row, pairing.one_per_column),
            tuple(numbers),
            tuple([(type(x), x) for x in static]),  # True is 1 and 1.0, but of another kind
        )
        hash(kind)
    except (AttributeError, LookupError, TypeError, RuntimeError):  # not an array: the checks have a message for it
        return None
    return kind


def _is_ours(objective: Objective | Pairwise | HardNegatives) -> bool:
    """Whether an objective has no function of the user: what that closes over may be learned, and change."""
    if isinstance(objective, Objective):
        return objective.slopes is not None
    return not isinstance(objective, Pairwise) or all(term is None or term.fused for term in objective.terms)


def _is_lasting(function: Any) -> bool:
    """Whether a function that makes an objective is no closure, which is made anew in each call."""
    return isinstance(function, Record) or "<locals>" not in getattr(function, "__qualname__", "<locals>")


def _array_kind(x: Array, level: int) -> tuple[Any, ...]:
    own = (type(x), tuple(x.shape), x.dtype, device_of(x), getattr(x, "layout", None))
    inside = getattr(x, "__recorded__", None)
    return own if inside is None else (*own, getattr(x, "level", level) - level, _array_kind(inside, level))
