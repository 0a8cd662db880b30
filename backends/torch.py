"""PyTorch: torch.func and autograd functions, under the verbs' names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Arrays = tuple[Any, ...]


class TorchAdapter:
    """The adapter for torch tensors."""

    name = "torch"
    version = torch.__version__
    half_precision = ("float16", "bfloat16")
    dtypes = ("float64", "float32", *half_precision)

    @property
    def devices(self) -> tuple[str, ...]:
        found = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        if torch.backends.mps.is_available():
            found.append("mps")
        return tuple(found)

    def stop_gradient(self, x: Any) -> Any:
        return x.detach()

    def value_and_grad(
        self, fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
    ) -> Callable[..., Any]:
        chosen = argnums if isinstance(argnums, int) else tuple(argnums)
        transformed = torch.func.grad_and_value(fn, argnums=chosen, has_aux=has_aux)

        def value_and_gradient(*arguments: Any, **options: Any) -> tuple[Any, Any]:
            gradient, value = transformed(*arguments, **options)
            return value, gradient

        return value_and_gradient

    def custom_vjp(
        self, forward: Callable[..., Arrays], backward: Callable[..., Sequence[Any]]
    ) -> Callable[..., Arrays]:
        closed_form, adjoint = forward, backward

        class Bound(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(static: Any, *arrays: Any) -> Arrays:
                return closed_form(static, *arrays)

            @staticmethod
            def setup_context(ctx: Any, inputs: Arrays, output: Arrays) -> None:
                ctx.static, ctx.count = inputs[0], len(inputs) - 1
                ctx.save_for_backward(*inputs[1:], *output)

            @staticmethod
            def backward(ctx: Any, *cotangents: Any) -> Arrays:
                saved = ctx.saved_tensors
                found = adjoint(ctx.static, saved[: ctx.count], saved[ctx.count :], cotangents)
                return (None, *found, *(None for _ in range(ctx.count - len(found))))

        return Bound.apply

    def scan(
        self, step: Callable[[Arrays, Arrays], tuple[Arrays, Arrays]], init: Arrays, xs: Arrays
    ) -> tuple[Arrays, Arrays]:
        carry, emitted = init, []
        for k in range(xs[0].shape[0]):
            carry, out = step(carry, tuple(x[k] for x in xs))
            emitted.append(out)
        return carry, tuple(torch.stack(column) for column in zip(*emitted, strict=True))


def adapter(namespace_of: Callable[[Any], Any]) -> TorchAdapter:
    """The adapter for torch tensors."""
    del namespace_of
    return TorchAdapter()
