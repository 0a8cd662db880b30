"""Sweeps that run by programs: from the second call of a kind on, only the array operations of the first are left.

A program serves arrays of one kind, on which nothing is recorded or transformed, in a sweep that visits one block and
has no function of a user, which may close over what changes. The scale and the bound of the scores are numbers that
it takes; whatever else a sweep asks of entries, a program asks too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .._core.equality import is_fixed
from .._core.namespace import device_of
from .._core.programs import Program, traced
from .._core.protocol import Array
from .._core.registry import adapter_of
from .inputs import Arrays
from .layouts import Layout, NeedGradOf
from .tiling import Sizes

MOST, MOST_PROGRAMS = 512, 4
"""Of kinds that are kept, and of programs of one kind, whose entries answer questions differently."""


class Replayed:
    """A sweep over arrays of one kind, which runs by programs once it has any."""

    def __init__(self, function: Callable[..., Arrays]) -> None:
        self.function = function
        self.programs: dict[NeedGradOf, list[Program | None]] = {}

    def __call__(self, layout: Layout, *arrays: Array, need_grad: NeedGradOf) -> Arrays:
        """The results of the sweep."""
        if not adapter_of(arrays[0]).is_plain(arrays):
            return self.function(layout, *arrays, need_grad=need_grad)
        programs, numbers = self.programs.setdefault(need_grad, []), (layout.scale, layout.bound)
        for k, program in enumerate(programs):
            found = None if program is None else program(*numbers, *arrays)
            if found is not None:
                if k:
                    programs[:] = [program, *(other for other in programs if other is not program)]
                return found

        def sweep(scale: Any, bound: Any, *arrays: Array) -> Arrays:
            return self.function(layout._replace(scale=scale, bound=bound), *arrays, need_grad=need_grad)

        if len(programs) >= MOST_PROGRAMS or None in programs:
            return sweep(*numbers, *arrays)
        program, found = traced(sweep, numbers, arrays)
        programs.append(program)
        return found


SWEEPS: dict[Hashable, Replayed | None] = {}
"""The sweeps of kinds that have been seen twice; None of those that have been seen once."""


def replayed(function: Callable[..., Arrays], layout: Layout, arrays: Sequence[Array]) -> Callable[..., Arrays]:
    """The sweep for arrays of this kind, which may run by programs."""
    adapter = adapter_of(arrays[0])
    if adapter.mode != "eager" or not isinstance(layout.sizes, Sizes):  # other tilings depend on entries
        return function
    kinds = [(type(x), x.shape, x.dtype, device_of(x)) for x in arrays]
    static = layout._replace(scale=None if layout.scale is None else 1.0, bound=0.0)
    kind = (function, adapter, static, *kinds)
    try:
        found = SWEEPS.get(kind)
    except TypeError:  # a function of a user, or a symbol, that has no hash
        return function
    if found is not None:
        return found
    if kind in SWEEPS:
        found = SWEEPS[kind] = Replayed(function)
        return found
    if is_fixed(static):
        if len(SWEEPS) >= MOST:
            SWEEPS.clear()
        SWEEPS[kind] = None
    return function
