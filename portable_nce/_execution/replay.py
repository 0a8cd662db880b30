"""Sweeps that run as programs: from the second call of a kind on, only the traced array operations are run.

A program applies to plain arrays (neither recorded nor transformed) of given shapes, and to sweeps of one block without
user functions, which may close over changing values. Its arguments are the arrays, the scale and the bound of the
scores. Its guards are the checks of entries that the sweep makes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .._core.equality import is_fixed
from .._core.namespace import device_key
from .._core.programs import Program, traced
from .._core.protocol import Array
from .._core.registry import adapter_of
from .inputs import Arrays
from .specs import NeedGradOf, SweepSpec
from .tiling import Sizes

MOST, MOST_PROGRAMS = 512, 4
"""Largest numbers of kinds, and of programs of one kind, which differ in the answers of their guards."""


class Replayed:
    """A sweep over arrays of one kind that runs as a program if one applies."""

    def __init__(self, function: Callable[..., Arrays]) -> None:
        self.function = function
        self.programs: dict[NeedGradOf, list[Program | None]] = {}

    def __call__(self, spec: SweepSpec, *arrays: Array, need_grad: NeedGradOf) -> Arrays:
        """Results of the sweep."""
        if spec.fused or not adapter_of(arrays[0]).is_plain(arrays):  # compiled steps take no traced arrays
            return self.function(spec, *arrays, need_grad=need_grad)
        programs, numbers = self.programs.setdefault(need_grad, []), (spec.scale, spec.bound)
        for k, program in enumerate(programs):
            result = None if program is None else program(*numbers, *arrays)
            if result is not None:
                if k:
                    programs[:] = [program, *(other for other in programs if other is not program)]
                return result

        def sweep(scale: Any, bound: Any, *arrays: Array) -> Arrays:
            return self.function(spec._replace(scale=scale, bound=bound), *arrays, need_grad=need_grad)

        if len(programs) >= MOST_PROGRAMS or None in programs:
            return sweep(*numbers, *arrays)
        program, result = traced(sweep, numbers, arrays)
        programs.append(program)
        return result


SWEEPS: dict[Hashable, Replayed | None] = {}
"""Sweeps of each kind that occurred twice; None for a kind that occurred once."""


def replayed(function: Callable[..., Arrays], spec: SweepSpec, arrays: Sequence[Array]) -> Callable[..., Arrays]:
    """Return the sweep itself, or from the second call of a kind on a wrapper that replays a program."""
    adapter = adapter_of(arrays[0])
    if adapter.mode != "eager" or not isinstance(spec.sizes, Sizes):  # other tilings depend on entries
        return function
    kinds = [(type(x), x.shape, x.dtype, device_key(x)) for x in arrays]
    static = spec._replace(scale=None if spec.scale is None else 1.0, bound=0.0)
    kind = (function, adapter, static, *kinds)
    try:
        kept = SWEEPS.get(kind)
    except TypeError:  # an unhashable user function or symbol
        return function
    if kept is not None:
        return kept
    if kind in SWEEPS:
        kept = SWEEPS[kind] = Replayed(function)
        return kept
    if is_fixed(static):
        if len(SWEEPS) >= MOST:
            SWEEPS.clear()
        SWEEPS[kind] = None
    return function
