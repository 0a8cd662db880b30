"""JAX: its own transformations, under the verbs' names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

Arrays = tuple[Any, ...]


def _beside(gradient: Any, argument: Any) -> Any:
    """The gradient on the argument's device: that of an unused argument is made on JAX's default device."""
    here = getattr(argument, "sharding", None)
    if isinstance(gradient, Tracer) or isinstance(argument, Tracer) or gradient.sharding == here:
        return gradient
    return jax.device_put(gradient, here)


class JaxAdapter:
    """The adapter for JAX arrays and tracers."""

    name = "jax"
    version = jax.__version__
    half_precision = ("float16", "bfloat16")

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(str(device) for device in jax.devices())

    @property
    def dtypes(self) -> tuple[str, ...]:
        wide = ("float64",) if jnp.zeros((), dtype=float).dtype == jnp.float64 else ()
        return (*wide, "float32", *self.half_precision)

    def stop_gradient(self, x: Any) -> Any:
        return jax.lax.stop_gradient(x)

    def full_precision(self, x: Any) -> AbstractContextManager[Any]:
        del x
        return nullcontext()

    def value_and_grad(
        self, fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
    ) -> Callable[..., Any]:
        transformed = jax.value_and_grad(fn, argnums=argnums, has_aux=has_aux)

        def value_and_gradient(*arguments: Any, **options: Any) -> tuple[Any, Any]:
            value, gradient = transformed(*arguments, **options)
            chosen = arguments[argnums] if isinstance(argnums, int) else tuple(arguments[n] for n in argnums)
            return value, jax.tree.map(_beside, gradient, chosen)

        return value_and_gradient

    def custom_vjp(
        self, forward: Callable[..., Arrays], backward: Callable[..., Sequence[Any]]
    ) -> Callable[..., Arrays]:
        # Compiled once per shape and static argument; without jit an eager call would retrace its scans every time.
        forward = jax.jit(forward, static_argnums=0)
        backward = jax.jit(backward, static_argnums=0)

        @partial(jax.custom_vjp, nondiff_argnums=(0,))
        def bound(static: Any, *arrays: Any) -> Arrays:
            outputs: Arrays = forward(static, *arrays)
            return outputs

        def fwd(static: Any, *arrays: Any) -> tuple[Arrays, tuple[Arrays, Arrays]]:
            outputs = forward(static, *arrays)
            return outputs, (arrays, outputs)

        def bwd(static: Any, residuals: tuple[Arrays, Arrays], cotangents: Arrays) -> Arrays:
            arrays, outputs = residuals
            found = backward(static, arrays, outputs, cotangents)
            return (*found, *(None for _ in range(len(arrays) - len(found))))

        bound.defvjp(fwd, bwd)
        result: Any = bound
        return result  # type: ignore[no-any-return]

    def scan(
        self, step: Callable[[Arrays, Arrays], tuple[Arrays, Arrays]], init: Arrays, xs: Arrays
    ) -> tuple[Arrays, Arrays]:
        return jax.lax.scan(step, init, xs)


def adapter(namespace_of: Callable[[Any], Any]) -> JaxAdapter:
    """The adapter for JAX arrays and tracers."""
    del namespace_of
    return JaxAdapter()
