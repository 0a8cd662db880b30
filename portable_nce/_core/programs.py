"""Programs: the array operations of a function and of its pullback, replayed without the function's Python code.

A program is data. Instructions that nothing uses are dropped, what is computed twice is computed once, and small arrays
that depend on no argument are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .protocol import Array

Arrays = tuple[Array, ...]

_VIEWS = frozenset(
    [
        "_itself",
        "asarray",
        "astype",
        "attrgetter",
        "broadcast_arrays",
        "broadcast_to",
        "diagonal",
        "expand_dims",
        "flip",
        "getitem",
        "itemgetter",
        "matrix_transpose",
        "moveaxis",
        "permute",
        "permute_dims",
        "reshape",
        "squeeze",
        "swapaxes",
        "transpose",
        "unbind",
        "unstack",
        "view",
    ]
)
"""Functions whose result may share memory with their first argument."""


class GuardError(Exception):
    """A guard has another answer than in the trace."""


class Instruction(NamedTuple):
    """Call of a function, with the slots of its arguments and its result.

    An instruction without a result is a guard: its function raises an error if the program does not apply. `key`: equal
    for equal functions; `overwrites`: positions of arguments whose memory the function may use.
    """

    function: Callable[..., Any]
    arguments: tuple[int, ...]
    result: int | None
    key: Any
    overwrites: tuple[int, ...] = ()

    @property
    def is_view(self) -> bool:
        """Whether the result may share memory with the first argument."""
        return getattr(self.key[0], "__name__", type(self.key[0]).__name__) in _VIEWS or bool(self.overwrites)


class Recorded(NamedTuple):
    """A function, and its pullback if `cotangent` is not None, as they were recorded.

    Attributes
    ----------
    instructions : sequence of Instruction
        The first `end` compute the outputs, the others the cotangents of the inputs.
    values : list
        By slot, literals; None for inputs, which have the first slots, and for results.
    constants : mapping
        Values of slots that depend on no input.
    numbers, large : set of int
        Slots of numbers, and of arrays that are freed after their last use.
    inputs, end, outputs, main, cotangent, cotangents
        Number of inputs, and the slots of the outputs, of the cotangent of the main one, and of the cotangents of the
        inputs.
    """

    instructions: Sequence[Instruction]
    values: list[Any]
    constants: Mapping[int, Any]
    numbers: set[int]
    large: set[int]
    inputs: int
    end: int
    outputs: Sequence[int]
    main: int
    cotangent: int | None
    cotangents: Sequence[int | None]


class Program(NamedTuple):
    """Instructions of a function, and of its pullback.

    Attributes
    ----------
    forward : callable
        Takes the arrays; returns the results, the arrays kept for the pullback, and the numbers kept for it.
    backward : callable or None
        Takes the arrays, the results, what is kept, and the cotangent of the main result; returns the cotangents of the
        arrays, None for those without. None if no array needs one.
    n_kept : int
        Number of the arrays that are kept.
    main : int
        Place of the only result that has a gradient.
    """

    forward: Callable[..., tuple[Arrays, Arrays, tuple[Any, ...]]]
    backward: Callable[..., tuple[Array | None, ...]] | None
    n_kept: int
    main: int


def compiled(given: Recorded) -> Program | None:
    """Program of what was recorded; None if several results are one array, into which a caller may write."""
    instructions, values, same = _without_repetitions(given)
    outputs = [same.get(k, k) for k in given.outputs]
    if len({*outputs}) < len(outputs):
        return None
    results = [None if k is None else same.get(k, k) for k in given.cotangents]
    wanted, n_inputs, cotangent = {k for k in results if k is not None}, given.inputs, given.cotangent
    parts = _useful(instructions, given.end, {*outputs, *wanted})
    backward, made = {k for op in parts[1] for k in op.arguments} | wanted, {op.result for op in parts[0]}
    kept = sorted(k for k in backward & made if k not in given.numbers and k not in outputs)
    numbers = sorted(k for k in backward & made if k in given.numbers)
    held = {*outputs, *kept, *numbers, *wanted, *range(n_inputs)}
    forth, back = (_steps(part, given.large, held) for part in parts)

    def forward(*arrays: Array) -> tuple[Arrays, Arrays, tuple[Any, ...]]:
        slots = [*arrays, *values[n_inputs:]]
        _run(forth, slots)
        parts = [tuple([slots[k] for k in places]) for places in (outputs, kept, numbers)]
        return parts[0], parts[1], parts[2]

    def pullback(
        arrays: Sequence[Array], found: Arrays, held: Sequence[Array], facts: tuple[Any, ...], cotangent_given: Array
    ) -> tuple[Array | None, ...]:
        slots = [*arrays, *values[n_inputs:]]
        slots[cotangent or 0] = cotangent_given
        for places, contents in ((outputs, found), (kept, held), (numbers, facts)):
            for k, x in zip(places, contents, strict=True):
                slots[k] = x
        _run(back, slots)
        return tuple([None if k is None else slots[k] for k in results])

    return Program(forward, None if cotangent is None else pullback, len(kept), given.main)


def _written(instructions: Sequence[Instruction]) -> Callable[[Iterable[int]], bool]:
    """Function that says whether memory of any of some slots may be overwritten."""
    roots: dict[int, int] = {}  # slots that may share memory

    def root(slot: int) -> int:
        while slot in roots:
            slot = roots[slot]
        return slot

    for op in instructions:
        if op.result is not None and op.is_view:
            for k in (op.arguments[0], *[op.arguments[j] for j in op.overwrites]):
                if root(k) != root(op.result):
                    roots[root(k)] = root(op.result)
    written = {root(op.arguments[j]) for op in instructions for j in op.overwrites}
    return lambda slots: any(root(k) in written for k in slots)


def _without_repetitions(given: Recorded) -> tuple[list[Instruction | None], list[Any], dict[int, int]]:
    """Instructions, None for repeated ones and those of constants; the values of slots; and slots with equal values.

    An instruction is not dropped if memory of its arguments or its result may be overwritten.
    """
    values, is_written = [*given.values], _written(given.instructions)
    first: dict[Any, int | None] = {}
    same: dict[int, int] = {}
    kept: list[Instruction | None] = []
    for op in given.instructions:
        arguments = tuple([same.get(k, k) for k in op.arguments])
        kept.append(op._replace(arguments=arguments))
        if is_written(arguments if op.result is None else (*arguments, op.result)):
            continue
        key = op.key, arguments, op.result is None
        if op.result is not None and op.result in given.constants:
            values[op.result] = given.constants[op.result]
        elif key not in first:
            first[key] = op.result
            continue
        elif op.result is not None:
            same[op.result] = int(first[key] or 0)
        kept[-1] = None
    return kept, values, same


def _useful(
    instructions: Sequence[Instruction | None], end: int, results: set[int]
) -> tuple[list[Instruction], list[Instruction]]:
    """Instructions, in two parts, whose results are used; all guards are."""
    used: set[int] = {*results}
    parts: tuple[list[Instruction], list[Instruction]] = ([], [])
    for k, op in reversed([*enumerate(instructions)]):
        if op is not None and (op.result is None or op.result in used):
            used.update(op.arguments)
            parts[k >= end].insert(0, op)
    return parts


_Step = tuple[Callable[..., Any], int, int | None, Sequence[int], int]


def _steps(instructions: Iterable[Instruction], large: set[int], held: set[int]) -> list[_Step]:
    """Steps of a run: instructions, and releases of large arrays after their last use."""
    used = {*held}
    steps: list[_Step] = []
    for op in reversed([*instructions]):
        touched = large & {*op.arguments, -1 if op.result is None else op.result}
        steps += [(_released, slot, None, (), slot) for slot in sorted(touched - used)]
        used |= touched
        first, second, *rest = (*op.arguments, None) if len(op.arguments) == 1 else op.arguments
        steps.append((op.function, first, second, rest, first if op.result is None else op.result))
    steps.reverse()
    return steps


def _run(steps: list[_Step], values: list[Any]) -> None:
    for function, first, second, rest, result in steps:  # no function per step: calls dominate the run time
        if second is None:
            values[result] = function(values[first])
        elif rest:
            values[result] = function(values[first], values[second], *[values[k] for k in rest])
        else:
            values[result] = function(values[first], values[second])


def _released(_: Array) -> None:
    """None, which replaces an array after its last use."""
