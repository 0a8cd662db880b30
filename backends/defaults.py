"""Default adapter methods, in array-API functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Array = Any
Arrays = tuple[Any, ...]
Function = Callable[..., Any]
Pulls = Mapping[int, Function] | None
Step = Callable[[Arrays, Arrays, Any], tuple[Arrays, Arrays]]


def of_floating(fn: Function, arrays: Sequence[Array], is_floating: Function) -> tuple[dict[int, Array], Function]:
    """Floating-point arrays by position, and `fn` as a function of these alone."""
    floating = {k: x for k, x in enumerate(arrays) if is_floating(x)}

    def of_these(*values: Array) -> Any:
        given = dict(zip(floating, values, strict=True))
        return fn(*(given.get(k, x) for k, x in enumerate(arrays)))

    return floating, of_these


PLAIN, ON_TAPE, VARIES = range(3)
"""States of an observed array: plain, a constant of the tape, one that needs a gradient."""

_ONE_HOT = 2**22
"""Entries of a one-hot array."""


def without(kept: int, forward: Function) -> Function:
    """A function without its last `kept` results."""

    def shortened(static: Any, *arrays: Array) -> Arrays:
        outputs: Arrays = forward(static, *arrays)
        return outputs[: len(outputs) - kept]

    return shortened if kept else forward


class Defaults:
    """Methods that an adapter may leave out."""

    def __init__(self, namespace_of: Callable[[Array], Any]) -> None:
        self._namespace_of = namespace_of

    def namespace(self, array: Array) -> Any:
        """Namespace of an array."""
        return self._namespace_of(array)

    def _space(self, *arrays: Array) -> Any:
        """Namespace of a kernel: that of the first recorded array, or else the library's own, which is faster."""
        for x in arrays:
            if hasattr(x, "__recorded__"):
                return self.namespace(x)
        return self._namespace_of(arrays[0])

    # Values

    reads_values = False

    def is_plain(self, arrays: Arrays) -> bool:
        return False

    def observed(self, arrays: Arrays) -> tuple[Any, tuple[int, ...]] | None:
        return None

    def replayed(self, forward: Function, backward: Function, *, kept: int) -> Function:
        bound: Function = self.custom_vjp(forward, backward, kept=kept)  # type: ignore[attr-defined]
        return bound

    def repeated(
        self, function: Function, options: dict[str, Any], values: Sequence[Any]
    ) -> tuple[Function, dict[str, Any], Sequence[Any]]:
        return function, options, values

    def entering(self, arrays: Sequence[Array], states: Sequence[int]) -> list[Array]:
        # Not by `reshape`: its cotangents would be views, and PyTorch takes views of one array for gradients of
        # several. Not by `broadcast_to` if there is no axis: PyTorch would sum the cotangent, and -0.0 become 0.0 on
        # some processors.
        def result(x: Array) -> Array:
            return self._namespace_of(x).broadcast_to(x, tuple(x.shape)) if x.ndim else x * 1

        return [result(x) if state == VARIES else x for x, state in zip(arrays, states, strict=True)]

    def leaving(self, result: Array, arrays: Sequence[Array]) -> Array:
        return result

    def check(self, x: Array) -> None:
        """Accept any array."""

    def needs_gradient(self, x: Array) -> bool:
        return False

    def concrete_value(self, x: Array) -> float | None:
        return None

    def concrete_values(self, x: Array) -> Sequence[float] | None:
        return None

    # Kernels

    def full_precision(self, x: Array, *, high: bool = False) -> AbstractContextManager[Any]:
        return nullcontext()

    def loss_dtype(self, x: Array, dtype: Any) -> Any:
        return dtype

    def exp_in_place(self, x: Array, *, bounded: bool) -> Array:
        return self._space(x).exp(x)

    def exp_bounded(self, x: Array) -> Array:
        return self._space(x).exp(x)

    def extremes(self, x: Array) -> tuple[Array, Array]:
        xp = self._space(x)
        return xp.min(x), xp.max(x)

    def sum_along(self, x: Array, axis: int) -> Array:
        return self._space(x).sum(x, axis=axis)

    def count_along(self, x: Array, axis: int, dtype: Any) -> Array:
        xp = self._space(x)
        return xp.sum(xp.astype(x, dtype), axis=axis)

    def plus_product(self, x: Array, y: Array, z: Array) -> Array:
        xp = self._space(x, y, z)
        return x + (xp.where(y, z, 0.0) if y.dtype == xp.bool else y * z)

    def times_in_place(self, x: Array, y: Array) -> Array:
        return x * y

    def times_sum(self, x: Array, y: Array, z: Array) -> Array:
        return self.times_in_place(x, y + z)

    def where_in_place(self, condition: Array, x: Array, value: float) -> Array:
        return self._space(x, condition).where(condition, x, value)

    def computed_once(self, *arrays: Array) -> Arrays:
        return arrays

    def rounded(self, x: Array) -> Array:
        return x

    def turned(self, x: Array) -> Array:
        xp, (n_rows, n_columns) = self._space(x), x.shape
        return xp.reshape(xp.reshape(xp.matrix_transpose(x), (-1,)), (n_columns, n_rows))

    def row_dots(self, x: Array, y: Array) -> Array:
        product = x * y
        return self._space(product).sum(product, axis=-1)

    def fill_diagonal(self, x: Array, row: int, column: int, count: int, value: Any) -> Array:
        xp = self._space(x, value)
        device = getattr(x, "device", None)
        i, j = (xp.arange(n, device=device) for n in x.shape)
        away = xp.expand_dims(i - row, axis=1) - xp.expand_dims(j - column, axis=0)
        inside = xp.logical_and(i >= row, i < row + count)
        chosen = xp.logical_and(away == 0, xp.expand_dims(inside, axis=1))
        return xp.where(chosen, xp.expand_dims(value, axis=1) if hasattr(value, "shape") else value, x)

    def fill_columns(self, x: Array, columns: Array, value: Any, *, inside: bool = False) -> Array:
        del inside
        numbers = self._space(columns).arange(x.shape[1], dtype=columns.dtype, device=getattr(x, "device", None))
        chosen = columns[:, None] == numbers[None, :]
        given = value[:, None] if hasattr(value, "shape") else value
        return self._space(x, chosen, given).where(chosen, given, x)

    def entries_at(self, x: Array, columns: Array) -> Array:
        # Not by `torch.take_along_dim`, with which torch.compile makes dynamic sizes static.
        xp, (n_rows, n_columns) = self._space(x, columns), x.shape
        first = xp.arange(n_rows, dtype=columns.dtype, device=getattr(columns, "device", None))[:, None] * n_columns
        places = xp.reshape(columns + first, (-1,))
        return xp.reshape(xp.take(xp.reshape(x, (-1,)), places, axis=0), columns.shape)

    def add_rows(self, x: Array, numbers: Array, rows: Array) -> Array:
        xp = self._space(x, rows)
        count = xp.arange(x.shape[0], dtype=numbers.dtype, device=getattr(x, "device", None))
        chosen = xp.expand_dims(count, axis=1) == xp.expand_dims(numbers, axis=0)
        return x + xp.matmul(xp.astype(chosen, x.dtype), rows)

    def add_columns(self, x: Array, columns: Array, values: Array) -> Array:
        xp = self._space(x, values)
        n_rows, n_columns = x.shape
        numbers = xp.arange(n_columns, dtype=columns.dtype, device=getattr(x, "device", None))[None, :, None]
        columns, values = xp.expand_dims(columns, axis=1), xp.expand_dims(values, axis=2)
        rows, parts = max(1, _ONE_HOT // max(1, n_columns * values.shape[1])), []
        for start in range(0, n_rows, rows):
            strip = slice(start, min(start + rows, n_rows))
            chosen = xp.astype(numbers == columns[strip, ...], values.dtype)
            parts.append(xp.squeeze(xp.matmul(chosen, values[strip, ...]), axis=2))
        return x + (parts[0] if len(parts) == 1 else xp.concat(parts)) if parts else x

    def order_of_rows(self, x: Array) -> Array:
        return self._space(x).argsort(x, axis=1, stable=True)

    def highest_of_rows(self, x: Array, count: int) -> Array | None:
        return None

    def has_half_products(self, x: Array) -> bool:
        return False

    def half_product(self, x: Array, y: Array) -> Array:
        xp = self.namespace(x)
        return xp.matmul(xp.astype(x, xp.float32), xp.astype(y, xp.float32))

    def rounded_product(self, x: Array, y: Array, dtype: Any) -> Array:
        return self.namespace(x).astype(x * y, dtype)

    def clipped(self, x: Array, low: float, high: float) -> Array | None:
        return None

    def softplus_and_sigmoid(
        self, x: Array, *, bounded: bool, need_value: bool = True, need_slope: bool = True
    ) -> tuple[Array, Array] | None:
        return None

    def softmax(self, x: Array) -> tuple[Array, Array, Array, Array] | None:
        return None

    def unit_rows(self, x: Array) -> tuple[Array, Array] | None:
        return None

    def by_halves(self, of_halves: Function, plainly: Function, *arrays: Array, pulls: Pulls = None) -> Any:
        return plainly(*arrays)

    def memory(self, x: Array) -> int | None:
        return None

    def is_widened(self, x: Array) -> bool:
        xp = self._namespace_of(x)
        return bool(x.dtype == xp.float32) and "float64" in self.dtypes  # type: ignore[attr-defined]

    def in_wide(self, function: Function, *arrays: Array, maps: Any = None) -> Any:
        if not self.is_widened(arrays[0]):
            return function(*arrays)
        xp = self._space(*arrays)
        result, dtype = function(*[xp.astype(x, xp.float64) for x in arrays]), arrays[0].dtype
        if isinstance(result, tuple):
            return tuple([xp.astype(x, dtype) for x in result])
        return xp.astype(result, dtype)

    def places(self, x: Array) -> tuple[Array, ...]:
        found: tuple[Array, ...] = self._space(x).nonzero(x)
        return found

    def put_entries(self, x: Array, places: tuple[Array, ...], values: Any) -> Array:
        x[places] = values
        return x

    def scan(self, step: Step, init: Arrays, xs: Arrays, block: Any) -> tuple[Arrays, Arrays]:
        length = xs[0].shape[0]
        if not isinstance(block, Sequence):  # a number, while `torch.jit.trace` runs a tensor
            # Without rows, there is one block of none.
            block = [(start, min(start + block, length)) for start in range(0, length or 1, block or 1)]
        if len(block) == 1:
            return step(init, xs, 0)
        carry, emitted = init, []
        for start, stop in block:
            carry, out = step(carry, tuple([x[start:stop, ...] for x in xs]), start)
            emitted.append(out)
        if not emitted[0]:
            return carry, ()
        xp = self._space(*emitted[0])
        return carry, tuple([xp.concat(column) for column in zip(*emitted, strict=True)])

    def branch(self, place: Array, functions: Sequence[Function], *arrays: Array) -> Any:
        return None

    def obstacle_to_fusing(self, x: Array) -> str | None:
        return "this library compiles none"

    def fused(self, step: Function) -> Function:
        return step

    def compiled(self, function: Function) -> Function:
        return function

    # Processes

    def communicator(self, group: Any) -> Any:
        return None

    def linear_map(self, linear: Any, x: Array) -> Array:
        bound: Any = self.custom_vjp(_map_forth, _map_back, exact=False)  # type: ignore[attr-defined]
        return bound((self, linear), x)[0]


def _map_forth(static: Any, x: Array) -> Arrays:
    _, linear = static
    return (linear(x),)


def _map_back(static: Any, arrays: Arrays, outputs: Arrays, cotangents: Arrays) -> Arrays:
    adapter, linear = static
    return (adapter.linear_map(linear.transposed(), cotangents[0]),)


class _Defaults(Defaults):
    """Defaults with attributes for the listing."""

    version = "unknown"
    mode = "eager"
    devices = ()
    dtypes = ("float64", "float32")


class Completed:
    """Adapter completed by the defaults."""

    def __init__(self, adapter: Any, namespace_of: Callable[[Array], Any]) -> None:
        defaults: Any = _Defaults(namespace_of)
        defaults.custom_vjp = adapter.custom_vjp
        self._parts = adapter, defaults

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        own, default = self._parts
        return getattr(own if hasattr(own, name) else default, name)
