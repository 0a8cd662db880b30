"""Adapter of MLX, with MLX's own transformations.

MLX is lazy: operations build a graph, and only needed parts are evaluated. So a one-pass loss can always build its
gradient in the forward pass; if unused, it is never evaluated. And the blocks of a scan need an explicit order: MLX
evaluates a graph breadth first, twenty nodes wide, and would hold many blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from .defaults import Array, Arrays, Defaults, Function, Step, of_floating, without
from .mlx_namespace import is_traced, not_differentiated, ruled

CHUNK = 64
"""Number of terms of an inner sum in `sum_along`."""


def _filled(cotangents: Sequence[Array | None], arrays: Sequence[Array]) -> list[Array]:
    """One cotangent per array in its dtype, as MLX requires; zeros in place of None."""
    given = [*cotangents, *[None] * (len(arrays) - len(cotangents))]
    return [mx.zeros_like(x) if g is None else g.astype(x.dtype) for g, x in zip(given, arrays, strict=True)]


def _is_floating(x: Array) -> bool:
    return bool(mx.issubdtype(x.dtype, mx.floating))


def _link(earlier: Sequence[Array]) -> Array:
    """Scalar that depends on all these arrays."""
    return mx.stop_gradient(mx.stack([mx.reshape(x, (-1,))[0].astype(mx.float32) for x in earlier])[0])


def _after(tile: Array, link: Array) -> Array:
    """Tile that cannot be evaluated before `link`.

    `mlx.core.depends` has no rules for `jvp` and `vmap`.
    """
    return mx.where(mx.array(True), tile, link.astype(tile.dtype))  # noqa: FBT003  (a condition)


def _entry(tree: Any, axes: Any, k: int) -> Any:
    """One entry of a batch of nested tuples; None is the axis of an unbatched array."""
    if isinstance(tree, (tuple, list)):
        return tuple(_entry(x, axis, k) for x, axis in zip(tree, axes, strict=True))
    return tree if axes is None else mx.take(tree, k, axis=axes)


def _batch_size(tree: Any, axes: Any) -> int:
    if isinstance(tree, (tuple, list)):
        return max(_batch_size(x, axis) for x, axis in zip(tree, axes, strict=True))
    return 0 if axes is None else int(tree.shape[axes])


def _vectorised(function: Callable[[Any], Arrays]) -> Callable[[Any, Any], tuple[Arrays, tuple[int, ...]]]:
    """`vmap` rule of a function with custom derivatives: entry by entry.

    Without it, MLX would vectorise the forward pass and ignore the other rules in gradients.
    """

    def one_by_one(primals: Any, axes: Any) -> tuple[Arrays, tuple[int, ...]]:
        each = [function(_entry(primals, axes, k)) for k in range(_batch_size(primals, axes))]
        stacked = tuple(mx.stack(list(column)) for column in zip(*each, strict=True))
        return stacked, (0,) * len(stacked)

    return one_by_one


class MlxAdapter(Defaults):
    """Adapter for MLX arrays."""

    name = "mlx"
    mode = "eager"
    version: str = vars(mx)["__version__"]  # unknown to its stubs

    def is_widened(self, x: Array) -> bool:
        return False  # GPUs have no float64

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices, the default first. In MLX, functions have a device, arrays have none."""
        names = [str(kind.name) for kind in (mx.gpu, mx.cpu) if mx.is_available(mx.Device(kind))]
        default = str(mx.default_device().type.name)
        return tuple(sorted(names, key=lambda name: name != default))

    @property
    def dtypes(self) -> tuple[str, ...]:
        wide = ("float64",) if mx.default_device().type == mx.cpu else ()
        return (*wide, "float32", "float16", "bfloat16")

    stop_gradient = staticmethod(mx.stop_gradient)

    def check(self, x: Array) -> None:
        if x.dtype == mx.float64 and mx.default_device().type != mx.cpu:
            raise TypeError(
                "expected an array of float32, float16 or bfloat16, got float64, which MLX computes with on the "
                "processor alone; convert it with astype, or call the loss within mlx.core.stream(mlx.core.cpu)"
            )

    def value_and_grad(self, fn: Function, argnums: int | Sequence[int] = 0, *, has_aux: bool = False) -> Function:
        # MLX differentiates the first result of a function, with or without `has_aux`.
        if isinstance(argnums, int):
            transformed: Function = mx.value_and_grad(fn, argnums=argnums)
            return transformed
        order = sorted(argnums)
        of_all: Any = mx.value_and_grad(fn, argnums=order)

        def in_turn(*arguments: Any, **options: Any) -> tuple[Any, Any]:
            value, gradients = of_all(*arguments, **options)
            # MLX returns gradients in the order of the arguments, and no tuple for a single one.
            by_number = {order[0]: gradients} if len(order) == 1 else dict(zip(order, gradients, strict=True))
            return value, tuple(by_number[number] for number in argnums)

        return in_turn

    def add_rows(self, x: Array, numbers: Array, rows: Array) -> Array:
        if 0 in rows.shape:
            return x  # "[scatter] Updates with shape (0,1) are too large"
        return x.at[mx.stop_gradient(numbers)].add(rows)

    def add_columns(self, x: Array, columns: Array, values: Array) -> Array:
        return x if 0 in values.shape else x.at[mx.arange(x.shape[0])[:, None], mx.stop_gradient(columns)].add(values)

    def custom_vjp(
        self, forward: Function, backward: Function, *, exact: bool = True, kept: int = 0
    ) -> Callable[..., Arrays]:
        forward = without(kept, forward)

        def bound(static: Any, *arrays: Array) -> Arrays:
            def forth(arrays: Arrays) -> Arrays:
                with not_differentiated():
                    return tuple(forward(static, *arrays))

            def back(primals: Arrays, cotangents: Arrays, outputs: Arrays) -> list[Array]:
                return _filled(backward(static, tuple(primals), tuple(outputs), tuple(cotangents)), primals)

            one_by_one = _vectorised(lambda arrays: bound(static, *arrays))
            return tuple(ruled(forth, vjp=back, vmap=one_by_one)(arrays))

        return bound

    def value_and_vjp(self, function: Callable[..., Arrays]) -> Callable[..., tuple[Array, Array]]:
        def run(static: Any, arrays: Arrays, need_grad: tuple[bool, ...]) -> Arrays:
            places: list[int] = []  # positions of arrays with a gradient

            def forth(arrays: Arrays) -> Arrays:
                with not_differentiated():
                    value, constant, *gradients = function(static, *arrays, need_grad=need_grad)
                places[:] = [k for k, g in enumerate(gradients) if g is not None]
                return value, mx.stop_gradient(constant), *(gradients[k] for k in places)

            def back(primals: Arrays, cotangents: Arrays, outputs: Arrays) -> list[Array]:
                primals, chosen = tuple(primals), tuple(places)
                result: list[Array | None] = [None] * len(primals)
                for k, g in zip(chosen, _gradients(function, static, chosen, primals, tuple(outputs[2:])), strict=True):
                    # The cotangent of the value (1,), or of the values (N,) of the rows of a gradient.
                    factor = cotangents[0] if g.ndim <= 1 else mx.reshape(cotangents[0], (-1,) + (1,) * (g.ndim - 1))
                    result[k] = mx.reshape(factor * g, g.shape)
                return _filled(result, primals)

            one_by_one = _vectorised(lambda arrays: run(static, arrays, need_grad))
            return tuple(ruled(forth, vjp=back, vmap=one_by_one)(arrays))

        def bound(static: Any, *arrays: Array) -> tuple[Array, Array]:
            need_grad = tuple(_is_floating(x) and is_traced(x) for x in arrays)
            if any(need_grad):
                value, constant, *_ = run(static, arrays, need_grad)
            else:
                value, constant = function(static, *arrays, need_grad=False)
            return value, constant

        return bound

    def needs_gradient(self, x: Array) -> bool:
        return is_traced(x)

    def linear_map(self, linear: Any, x: Array) -> Array:
        def back(primal: Array, cotangent: Array, output: Array) -> Array:
            return self.linear_map(linear.transposed(), cotangent)

        def push(primal: Array, tangent: Array) -> Array:
            return self.linear_map(linear.derivative(), tangent)

        return ruled(linear, vjp=back, jvp=push)(x)

    def sum_along(self, x: Array, axis: int) -> Array:
        """Sums of sums of 64 terms: for 4096 terms, a tenth of the error of MLX's sequential sum."""
        length = x.shape[axis]
        if length <= CHUNK * 2 or mx.default_device().type != mx.cpu:
            return mx.sum(x, axis=axis)
        head, rest = mx.split(x, [length // CHUNK * CHUNK], axis=axis)
        total = mx.sum(mx.sum(mx.unflatten(head, axis, (-1, CHUNK)), axis=axis + 1), axis=axis)
        return total + mx.sum(rest, axis=axis) if rest.size else total

    def scan(self, step: Step, init: Arrays, xs: Arrays, block: Any) -> tuple[Arrays, Arrays]:
        earlier: Arrays = ()

        def in_order(carry: Arrays, tiles: Arrays, start: int) -> tuple[Arrays, Arrays]:
            nonlocal earlier
            if earlier:
                link = _link(earlier)
                tiles = tuple(_after(x, link) for x in tiles)
            carry, out = step(carry, tiles, start)
            earlier = tuple(x for x in (*carry, *out) if x is not None and x.size)
            return carry, out

        return super().scan(in_order, init, xs, block)


def _gradients(function: Function, static: Any, places: tuple[int, ...], arrays: Arrays, gradients: Arrays) -> Arrays:
    """Computed gradients as functions of the arrays, with the second derivatives of `function`."""

    def chosen(*arrays: Array) -> list[Array]:
        result = function(static, *arrays, need_grad=tuple(k in places for k in range(len(arrays))))[2:]
        return [result[k] for k in places]

    def forth(arrays: Arrays, gradients: Arrays) -> Arrays:
        return gradients

    def back(primals: tuple[Arrays, Arrays], cotangents: Arrays, outputs: Arrays) -> list[Array]:
        arrays, gradients = primals
        floating, of_these = of_floating(chosen, arrays, _is_floating)
        _, products = mx.vjp(of_these, list(floating.values()), list(cotangents))
        result = dict(zip(floating, products, strict=True))
        return [*_filled([result.get(k) for k in range(len(arrays))], arrays), *map(mx.zeros_like, gradients)]

    def push(primals: tuple[Arrays, Arrays], tangents: tuple[Arrays, Arrays]) -> list[Array]:
        floating, of_these = of_floating(chosen, primals[0], _is_floating)
        directions = [mx.zeros_like(x) if tangents[0][k] is None else tangents[0][k] for k, x in floating.items()]
        _, result = mx.jvp(of_these, list(floating.values()), directions)
        return list(result)

    one_by_one = _vectorised(lambda both: _gradients(function, static, places, *both))
    return tuple(ruled(forth, vjp=back, jvp=push, vmap=one_by_one)(arrays, gradients))


adapter = MlxAdapter
