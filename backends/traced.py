"""Adapter of traced arrays: the library's kernels are recorded, and the tape differentiates.

A traced array stands for a plain array of a library, and records operations in the active trace of a program.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .defaults import VARIES, Array, Arrays, Function, Pulls, Step
from .tape import Node, TapeAdapter, TapeArray, TapeNamespace, backward, levels, strip, varies

SAME_BITS = frozenset(
    {
        *(
            "abs",
            "add",
            "divide",
            "exp",
            "expm1",
            "log",
            "log1p",
            "matmul",
            "maximum",
            "minimum",
            "multiply",
            "negative",
        ),
        *("positive", "pow", "reciprocal", "sqrt", "square", "subtract", "vecdot"),
    }
)
"""Elementwise functions whose derivatives PyTorch computes by the same operations as the tape."""


MOST_BLOCKS, MOST_ROWS = 16, 2**11
"""Largest numbers of blocks and of rows of a sweep of several blocks in a program.

Of more, the operations take nearly all of the time. A program also holds small arrays for longer than the call itself
does; between large blocks, they would keep freed memory from being used again.
"""


class Recorder(TapeAdapter):
    """Adapter of arrays that record operations, for the library of the adapter `inner`.

    `recording` has the functions that record.
    """

    def __init__(self, inner: Any, namespace_of: Function, kernels: Iterable[str], recording: Any) -> None:
        super().__init__(inner.name, namespace_of, version=inner.version, devices=())
        self._inner, self._recording = inner, recording
        self._is_on_tape = _is_recorded if isinstance(inner, TapeAdapter) else varies
        self.dtypes = inner.dtypes
        for name in kernels:
            setattr(self, name, self._kernel(name, getattr(super(), name)))
        self.add_at = self._add_at

    def _kernel(self, name: str, of_tape: Function) -> Function:
        """Kernel that is recorded; of arrays on the tape, in array-API functions."""

        def kernel(*args: Any, **options: Any) -> Any:
            if any(map(self._is_on_tape, args)):
                return of_tape(*args, **options)
            return self._recording.kernel(self._inner, name, [*map(strip, args)], options)

        return kernel

    def _add_at(self, xp: Any, g: Array, numbers: Array, size: int) -> Array:
        """Segment sum as the library of the arrays computes it."""
        own = getattr(self._inner, "add_at", None)
        if own is not None and own is TapeAdapter.add_at:
            result: Array = own(xp, g, numbers, size)
            return result
        if own is not None:
            return self._recording.call(functools.partial(_summed, own, self._inner), g, numbers, size)
        rows = xp.reshape(g, (g.shape[0], math.prod(g.shape[1:])))
        total = xp.zeros((size + 1, rows.shape[1]), dtype=g.dtype, device=g.device)
        return xp.reshape(self.add_rows(total, numbers, rows)[1:, :], (size, *g.shape[1:]))

    def call(
        self, function: Function, arrays: Sequence[Array], states: Sequence[int]
    ) -> tuple[Any, Function | None, int]:
        """Result of a function of traced arrays, an array or a tuple, and its pullback if any of them needs a gradient.

        States: 0 for plain arrays, 1 for constants of the tape, 2 for arrays that need a gradient. The number is that
        of the result of a tuple whose cotangent is pulled back.
        """
        if not any(states):
            return function(*arrays), None, 0
        space, level = self.namespace(arrays[0]), next(levels)
        given = [
            TapeArray(x, space, level, Node() if state == VARIES else None) if state else x
            for x, state in zip(arrays, states, strict=True)
        ]
        result = function(*given)
        parts = result if isinstance(result, tuple) else (result,)
        on_tape = [isinstance(x, TapeArray) and x.level == level for x in parts]
        if not any(on_tape) or any(isinstance(x, TapeArray) and x.level != level for x in parts):
            self._recording.refuse("a result that does not depend on the arguments")
        varying = [k for k, x in enumerate(parts) if on_tape[k] and x.node is not None]
        if len(varying) > 1:
            self._recording.refuse("several results that need a gradient")
        main = varying[0] if varying else 0

        def pull(cotangent: Array) -> list[Array | None]:
            leaves = [x for x, state in zip(given, states, strict=True) if state == VARIES]
            gradients = iter(backward(space, parts[main], leaves, cotangent) if varying else ())
            return [next(gradients, None) if state == VARIES else None for state in states]

        values = tuple([x.value if own else x for x, own in zip(parts, on_tape, strict=True)])
        return values if isinstance(result, tuple) else values[0], pull, main

    def namespace(self, array: Array) -> TapeNamespace:
        space = super().namespace(array)
        if not isinstance(self._inner, TapeAdapter):  # whose derivatives are to have the bits of the library's
            for name in TapeNamespace.elementwise - SAME_BITS:
                setattr(space, name, functools.partial(self._recording.refuse, "another derivative"))
        return space

    # What depends on the library, on the arrays behind the traced ones.

    @property
    def mode(self) -> str:  # type: ignore[override]
        return self._inner.mode  # type: ignore[no-any-return]

    @property
    def reads_values(self) -> bool:  # type: ignore[override]
        return self._inner.reads_values  # type: ignore[no-any-return]

    def is_plain(self, arrays: Arrays) -> bool:
        return not any(map(self._is_on_tape, arrays))

    def stop_gradient(self, x: Array) -> Array:
        return super().stop_gradient(x) if isinstance(self._inner, TapeAdapter) else strip(x)

    def check(self, x: Array) -> None:
        self._inner.check(strip(x).value)

    def full_precision(self, x: Array, *, high: bool = False) -> AbstractContextManager[Any]:
        return self._inner.full_precision(strip(x).value, high=high)  # type: ignore[no-any-return]

    def loss_dtype(self, x: Array, dtype: Any) -> Any:
        return self._inner.loss_dtype(strip(x).value, dtype)

    def has_half_products(self, x: Array) -> bool:
        return bool(self._inner.has_half_products(strip(x).value))

    def memory(self, x: Array) -> int | None:
        return self._inner.memory(strip(x).value)  # type: ignore[no-any-return]

    def is_widened(self, x: Array) -> bool:
        return bool(self._inner.is_widened(strip(x).value))

    def by_halves(self, of_halves: Function, plainly: Function, *arrays: Array, pulls: Pulls = None) -> Any:
        if any(map(self.needs_gradient, arrays)):
            return plainly(*arrays)
        chosen = self._inner.by_halves(lambda *_: of_halves, lambda *_: plainly, *[strip(x).value for x in arrays])
        return chosen(*arrays)

    def obstacle_to_fusing(self, x: Array) -> str | None:
        return self._inner.obstacle_to_fusing(strip(x).value)  # type: ignore[no-any-return]

    def concrete_value(self, x: Array) -> Any:
        return self._recording.entry(self._inner, strip(x))

    def concrete_values(self, x: Array) -> Any:
        self._recording.refuse("a branch on entries")

    def is_one(self, x: Array) -> bool:
        return False

    def places(self, x: Array) -> Any:
        self._recording.refuse("places that depend on entries")

    def put_entries(self, x: Array, places: tuple[Array, ...], values: Any) -> Any:
        self._recording.refuse("places that depend on entries")

    def fused(self, step: Function) -> Any:
        self._recording.refuse("compiled steps")

    def scan(self, step: Step, init: Arrays, xs: Arrays, block: Any) -> tuple[Arrays, Arrays]:
        length = xs[0].shape[0]
        number = -(-length // max(block, 1)) if isinstance(block, int) else len(block)
        if number > MOST_BLOCKS or (number > 1 and length > MOST_ROWS):
            self._recording.refuse("many blocks")
        return super().scan(step, init, xs, block)


def _is_recorded(x: Any) -> bool:
    """Whether an array is on the tape, as a variable or a constant: the tape's own libraries tell no difference."""
    return hasattr(x, "__recorded__")


def _summed(add_at: Function, adapter: Any, g: Array, numbers: Array, size: int) -> Array:
    result: Array = add_at(adapter.namespace(g).base_namespace, g, numbers, size)
    return result
