"""PyTorch: torch.func and autograd functions, under the verbs' names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

Arrays = tuple[Any, ...]


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """A loss is computed in float32 under autocast too, as torch's own losses are."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


# The two classes stand at module level, and take the functions as arguments, because torch.compile cannot follow the
# making of a class.


class _ClosedForm(torch.autograd.Function):
    """`forward(static, *arrays)`, whose gradient is `backward(static, arrays, outputs, cotangents)`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(forward: Callable[..., Arrays], backward: Callable[..., Arrays], static: Any, *arrays: Any) -> Arrays:
        del backward
        return forward(static, *arrays)

    @staticmethod
    def setup_context(ctx: Any, inputs: Arrays, output: Arrays) -> None:
        _, ctx.adjoint, ctx.static, *arrays = inputs
        ctx.count = len(arrays)
        ctx.save_for_backward(*arrays, *output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Arrays:
        cuts = (ctx.count, len(ctx.saved_tensors))
        tensors = (*ctx.saved_tensors, *cotangents)
        with _without_autocast(tensors[0].device.type):
            if torch.compiler.is_compiling():  # a compiled backward pass is never recorded, nor can it hold a Function
                found = _Adjoint.forward(ctx.adjoint, ctx.static, cuts, *tensors)
            else:
                found = _Adjoint.apply(ctx.adjoint, ctx.static, cuts, *tensors)  # type: ignore[no-untyped-call]
        return (None, None, None, *found, *(None for _ in range(ctx.count - len(found))))


class _Adjoint(torch.autograd.Function):
    """A backward pass that keeps nothing for a derivative of second order, but computes itself again for it.

    torch.func records every backward pass; recorded, a streamed one would hold the whole score matrix after all.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(backward: Callable[..., Arrays], static: Any, cuts: tuple[int, int], *tensors: Any) -> Arrays:
        return tuple(backward(static, tensors[: cuts[0]], tensors[cuts[0] : cuts[1]], tensors[cuts[1] :]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Arrays, output: Arrays) -> None:
        del output
        ctx.backward_function, ctx.static, ctx.cuts, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Arrays:
        tensors = ctx.saved_tensors
        places = [k for k, tensor in enumerate(tensors) if tensor.is_floating_point()]

        def again(*floating: Any) -> Arrays:
            replaced = dict(zip(places, floating, strict=True))
            merged = (replaced.get(k, tensor) for k, tensor in enumerate(tensors))
            return _Adjoint.forward(ctx.backward_function, ctx.static, ctx.cuts, *merged)

        result: Any = torch.func.vjp(again, *(tensors[k] for k in places))
        found = dict(zip(places, result[1](cotangents), strict=True))
        return (None, None, None, *(found.get(k) for k in range(len(tensors))))


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

    def full_precision(self, x: Any) -> AbstractContextManager[Any]:
        return _without_autocast(x.device.type)

    def value_and_grad(
        self, fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
    ) -> Callable[..., Any]:
        chosen = argnums if isinstance(argnums, int) else tuple(argnums)
        if not has_aux:
            transformed = torch.func.grad_and_value(fn, argnums=chosen)

            def value_and_gradient(*arguments: Any, **options: Any) -> tuple[Any, Any]:
                result: Any = transformed(*arguments, **options)
                return result[1], result[0]

            return value_and_gradient

        def with_aux(*arguments: Any, **options: Any) -> tuple[Any, Any]:
            rest: list[Any] = []  # torch.func lets tensors through alone; whatever else aux holds goes round it

            def tensors_only(*arguments: Any, **options: Any) -> tuple[Any, list[Any]]:
                value, aux = fn(*arguments, **options)
                leaves, shape = tree_flatten(aux)
                tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                rest[:] = [[None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], shape]
                return value, tensors

            transformed = torch.func.grad_and_value(tensors_only, argnums=chosen, has_aux=True)
            result: Any = transformed(*arguments, **options)
            gradient, (value, tensors) = result
            leaves, shape = rest
            supply = iter(tensors)
            filled = [next(supply) if leaf is None else leaf for leaf in leaves]
            return (value, tree_unflatten(filled, shape)), gradient

        return with_aux

    def custom_vjp(
        self, forward: Callable[..., Arrays], backward: Callable[..., Sequence[Any]]
    ) -> Callable[..., Arrays]:
        def bound(static: Any, *arrays: Any) -> Arrays:
            # torch.compile refuses a tensor that is given twice, as embeddings are that are contrasted with themselves.
            distinct = (x.view_as(x) if any(x is y for y in arrays[:k]) else x for k, x in enumerate(arrays))
            outputs: Arrays = _ClosedForm.apply(forward, backward, static, *distinct)  # type: ignore[no-untyped-call]
            return outputs

        return bound

    def scan(
        self, step: Callable[[Arrays, Arrays], tuple[Arrays, Arrays]], init: Arrays, xs: Arrays
    ) -> tuple[Arrays, Arrays]:
        carry, length = init, xs[0].shape[0]
        stacked: Arrays = ()
        for k in range(length):
            carry, out = step(carry, tuple(x[k] for x in xs))
            if not k:
                # Filled as they come: kept in a list, the small outputs would pin the heap between the large tiles.
                stacked = tuple(x.new_empty((length, *x.shape)) for x in out)
            for whole, x in zip(stacked, out, strict=True):
                whole[k] = x
        return carry, stacked


def adapter(namespace_of: Callable[[Any], Any]) -> TorchAdapter:
    """The adapter for torch tensors."""
    del namespace_of
    return TorchAdapter()
