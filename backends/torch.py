"""PyTorch: torch.func and autograd functions, under the verbs' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import (
    TransformType,
    get_dynamic_layer_stack_depth,
    get_interpreter_stack,
    get_unwrapped,
    is_functorch_wrapped_tensor,
    is_gradtrackingtensor,
)
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_unflatten

from .defaults import Defaults

Arrays = tuple[Any, ...]


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """A loss is computed in float32 under autocast too, as torch's own losses are."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


class _Copied(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Each result is a copy, which the engine may overwrite."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Arrays = (), kwargs: Any = None) -> Any:
        del types
        found = func(*args, **(kwargs or {}))
        is_new = isinstance(found, torch.Tensor) and func._schema.returns[0].alias_info is None  # noqa: SLF001
        return found.clone() if is_new else found


def _overwritable() -> AbstractContextManager[Any]:
    """Under the modes of selective checkpointing, which keep results, and refuse to go on once they change."""
    if torch.compiler.is_compiling() or not _len_torch_dispatch_stack():
        return nullcontext()
    keeping = any(type(mode).__module__ == "torch.utils.checkpoint" for mode in _get_current_dispatch_mode_stack())
    return _Copied() if keeping else nullcontext()  # type: ignore[no-untyped-call]


# The classes stand at module level, and take the functions as arguments, because torch.compile cannot follow the making
# of a class. It follows none that has a rule for forward mode or for vmap either: hence a plain one for it.


class _Opaque:
    """What torch's rules for vmap are not to take apart, as they do tuples."""

    __slots__ = ("inside",)

    def __init__(self, *inside: Any) -> None:
        self.inside = inside


def _floating(tensors: Sequence[Any]) -> list[int]:
    return [k for k, x in enumerate(tensors) if x.is_floating_point()]


def _filled(tensors: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> tuple[Any, ...]:
    """The tensors, with those at the places replaced."""
    replaced = dict(zip(places, values, strict=True))
    return tuple(replaced.get(k, x) for k, x in enumerate(tensors))


def _directional(function: Callable[..., Arrays], tensors: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
    """The derivative of a function of tensors in a direction, in which None and tensors without a place stand still."""
    places = _floating(tensors)
    tangents = [*tangents, *[None] * (len(tensors) - len(tangents))]
    directions = tuple(torch.zeros_like(tensors[k]) if tangents[k] is None else tangents[k] for k in places)
    # Contiguous: a tangent takes the strides of its tensor, and cannot if these are those of a broadcast.
    primals = tuple(tensors[k].contiguous() for k in places)

    def of_places(*values: Any) -> Arrays:
        return function(*_filled(tensors, places, values))

    found: Any
    try:
        found = torch.func.jvp(of_places, primals, directions)
    except RuntimeError as error:
        if "Nested forward mode" not in str(error):
            raise
    else:
        return tuple(found[1])
    # Within torch.autograd.forward_ad: the product with cotangents is linear in them, and its transpose is the answer.
    found = torch.func.vjp(of_places, *primals)
    outputs, pullback = found
    found = torch.func.vjp(pullback, tuple(torch.zeros_like(x) for x in outputs))
    return tuple(found[1](directions)[0])


class _ClosedForm(torch.autograd.Function):
    """`forward(static, *arrays)`, whose gradient is `backward(static, arrays, outputs, cotangents)`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(form: _Opaque, *arrays: Any) -> Arrays:
        forward, _, static = form.inside
        found: Arrays = forward(static, *arrays)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Arrays, output: Arrays) -> None:
        ctx.form, *arrays = inputs
        ctx.count = len(arrays)
        ctx.save_for_backward(*arrays, *output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Arrays:
        saved = ctx.saved_tensors  # read once: checkpointing computes them anew for each look, and allows one
        cuts = (ctx.count, len(saved))
        tensors = (*saved, *cotangents)
        _, backward, static = ctx.form.inside
        pass_back = _Opaque(backward, static, cuts)
        with _without_autocast(tensors[0].device.type):
            # A compiled backward pass is never recorded, nor can it hold a Function.
            if torch.compiler.is_dynamo_compiling() or not (_recorded(tensors) or _transformed(tensors)):
                found = _Adjoint.forward(pass_back, *tensors)
            else:
                found = _Adjoint.apply(pass_back, *tensors)  # type: ignore[no-untyped-call]
        return (None, *found, *(None for _ in range(ctx.count - len(found))))


class _ClosedFormForward(_ClosedForm):
    """The same with forward mode."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Arrays, output: Arrays) -> None:
        _ClosedForm.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[1:], *output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Arrays:
        arrays = ctx.saved_tensors[: ctx.count]
        with _without_autocast(arrays[0].device.type):
            return _directional(lambda *values: _ClosedForm.forward(ctx.form, *values), arrays, tangents[1:])


class _ClosedFormPlainly(torch.autograd.Function):
    """The same without torch's bookkeeping for the transforms, which takes its time."""

    @staticmethod
    def forward(ctx: Any, form: _Opaque, *arrays: Any) -> Arrays:
        output = _ClosedForm.forward(form, *arrays)
        _ClosedForm.setup_context(ctx, (form, *arrays), output)
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Arrays:
        return _ClosedForm.backward(ctx, *cotangents)


class _Adjoint(torch.autograd.Function):
    """A backward pass that keeps nothing for a derivative of second order, but computes itself again for it.

    torch.func records every backward pass; recorded, a streamed one would hold the whole score matrix after all.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(form: _Opaque, *tensors: Any) -> Arrays:
        backward, static, (first, second) = form.inside
        return tuple(backward(static, tensors[:first], tensors[first:second], tensors[second:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Arrays, output: Arrays) -> None:
        del output
        ctx.form, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Arrays:
        tensors = ctx.saved_tensors
        places = _floating(tensors)
        result: Any = torch.func.vjp(
            lambda *values: _Adjoint.forward(ctx.form, *_filled(tensors, places, values)),
            *(tensors[k] for k in places),
        )
        found = dict(zip(places, result[1](cotangents), strict=True))
        return (None, *(found.get(k) for k in range(len(tensors))))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Arrays:
        return _directional(lambda *values: _Adjoint.forward(ctx.form, *values), ctx.saved_tensors, tangents[1:])


class _WithGradient(torch.autograd.Function):
    """`function(static, *arrays, need_grad=True)`: a value, a constant, and the gradients of the value.

    The derivative of the gradients is the Hessian, which is symmetric: its products with cotangents are those with
    tangents, and are computed as such, in forward mode, block by block.
    """

    @staticmethod
    def forward(function: Callable[..., Arrays], static: Any, *arrays: Any) -> Arrays:
        return function(static, *arrays, need_grad=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: Arrays, output: Arrays) -> None:
        ctx.function, ctx.static, *arrays = inputs
        ctx.count = len(arrays)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*arrays, *output[2:])
        ctx.save_for_forward(*arrays, *output[2:])

    @staticmethod
    def products(ctx: Any, arrays: Arrays, directions: Sequence[Any]) -> Arrays:
        """The products of the Hessian with vectors, any of which may be None."""
        with _without_autocast(arrays[0].device.type):
            return _directional(
                lambda *values: ctx.function(ctx.static, *values, need_grad=True)[2:], arrays, directions
            )

    @staticmethod
    def backward(ctx: Any, first: Any, constant: Any, *second: Any) -> Arrays:  # pyright: ignore[reportIncompatibleMethodOverride]
        del constant
        saved = ctx.saved_tensors
        gradients = saved[ctx.count :]
        found: list[Any] = [None] * ctx.count
        if first is not None:
            found[: len(gradients)] = [g if g is None else first * g for g in gradients]
        if any(g is not None for g in second):
            products = _WithGradient.products(ctx, saved[: ctx.count], second)
            found[: len(products)] = [a if b is None else a + b for a, b in zip(products, found, strict=False)]
        return (None, None, *found)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Arrays:
        saved = ctx.saved_tensors
        gradients = saved[ctx.count :]
        own = tangents[2 : 2 + len(gradients)]
        slope: Any = sum((g * t).sum() for g, t in zip(gradients, own, strict=True) if t is not None)
        return (slope.reshape(1), None, *_WithGradient.products(ctx, saved[: ctx.count], own))

    @staticmethod
    def vmap(info: Any, in_dims: Arrays, *inputs: Any) -> tuple[Arrays, Arrays]:
        function, static, *arrays = inputs
        each = []
        for k in range(info.batch_size):
            own = (x if d is None else x.select(d, k) for x, d in zip(arrays, in_dims[2:], strict=True))
            each.append(_WithGradient.apply(function, static, *own))  # type: ignore[no-untyped-call]
        outputs = tuple(torch.stack(column) for column in zip(*each, strict=True))
        return outputs, (0,) * len(outputs)


class _Plainly(torch.autograd.Function):
    """The same in reverse mode alone, and without torch's bookkeeping for the transforms, which takes its time."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Arrays], static: Any, *arrays: Any) -> Arrays:
        output = function(static, *arrays, need_grad=tuple(x.requires_grad for x in arrays))
        _WithGradient.setup_context(ctx, (function, static, *arrays), output)
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Arrays:
        return _WithGradient.backward(ctx, *cotangents)


class _Compiled(torch.autograd.Function):
    """The same for torch.compile, which differentiates once and in reverse."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Arrays], static: Any, *arrays: Any) -> Arrays:
        value, constant, *gradients = function(static, *arrays, need_grad=True)
        ctx.count = len(arrays)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(constant)
        return value, constant

    @staticmethod
    def backward(ctx: Any, first: Any, constant: Any) -> Arrays:  # pyright: ignore[reportIncompatibleMethodOverride]
        del constant
        gradients = ctx.saved_tensors
        return (None, None, *(first * g for g in gradients), *(None for _ in range(ctx.count - len(gradients))))


class _Linear(torch.autograd.Function):
    """`linear(x)`, whose transpose is `linear.transposed()`."""

    @staticmethod
    def forward(linear: Any, x: Any) -> Any:
        return linear(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Arrays, output: Any) -> None:
        del output
        ctx.linear = inputs[0]

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Arrays:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, _mapped(ctx.linear.transposed(), cotangent)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _mapped(ctx.linear.derivative(), tangents[1])


class _LinearPlainly(torch.autograd.Function):
    """The same in reverse mode alone."""

    @staticmethod
    def forward(ctx: Any, linear: Any, x: Any) -> Any:
        ctx.linear = linear
        return linear(x)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Arrays:  # pyright: ignore[reportIncompatibleMethodOverride]
        linear = ctx.linear.transposed()
        # A compiled backward pass is never recorded, nor can it hold a Function.
        return None, linear(cotangent) if torch.compiler.is_dynamo_compiling() else _mapped(linear, cotangent)


def _mapped(linear: Any, x: Any) -> Any:
    """A linear map of a tensor, recorded if need be."""
    if not torch.compiler.is_dynamo_compiling() and _in_nested_forward_mode() and _transformed((x,)):
        # A collective sees the numbers alone. Within a derivative there is another way, which these words ask for.
        message = "Nested forward mode is not supported between ranks; use reverse mode for one of both"
        raise RuntimeError(message)
    way = _way((x,))
    if way is None:
        return linear(x)
    chosen: Any = _Linear if way == "transformed" else _LinearPlainly
    return chosen.apply(linear, x)


def _transformed(arrays: Arrays) -> bool:
    """Whether a transform of torch.func or forward mode sees these tensors."""
    if get_dynamic_layer_stack_depth() == 0 and forward_ad._current_level < 0:  # noqa: SLF001  (nothing is asked of any)
        return False
    return any(is_functorch_wrapped_tensor(x) or unpack_dual(x).tangent is not None for x in arrays)  # type: ignore[no-untyped-call]


def _recorded(arrays: Arrays) -> bool:
    """Whether what is done with these tensors is recorded for a backward pass."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in arrays)


def _in_nested_forward_mode() -> bool:
    """Whether one forward mode is inside another, of which torch.func shows a Function the inner tangents alone."""
    stack = get_interpreter_stack() or ()
    return sum(interpreter.key() == TransformType.Jvp for interpreter in stack) > 1


def _compiled_once() -> bool:
    """Whether torch.compile traces no transform but one gradient: what it can compile a Function for."""
    depth = get_dynamic_layer_stack_depth()
    return depth == 0 or (depth == 1 and retrieve_current_functorch_interpreter().key() == TransformType.Grad)


def _way(arrays: Arrays) -> str | None:
    """Which kind of Function serves: None where the function itself is differentiated, or nothing is."""
    if torch.compiler.is_dynamo_compiling():
        return "compiled" if _recorded(arrays) and _compiled_once() else None
    if _transformed(arrays):
        return None if _in_nested_forward_mode() else "transformed"
    return "recorded" if _recorded(arrays) else None


def _distinct(arrays: Arrays) -> list[Any]:
    """Tensors, none twice: torch.compile refuses that, as of embeddings that are contrasted with themselves."""
    return [x.view_as(x) if any(x is y for y in arrays[:k]) else x for k, x in enumerate(arrays)]


class TorchAdapter(Defaults):
    """The adapter for torch tensors."""

    name = "torch"
    version = torch.__version__
    half_precision = ("float16", "bfloat16")
    dtypes = ("float64", "float32", *half_precision)

    def __init__(self, namespace_of: Callable[[Any], Any]) -> None:
        super().__init__(namespace_of)
        # Where torch returns products of 16 bits in float32. With "cpu", they are emulated there, by products of 32.
        self.half_devices = {"cuda", "meta"} if hasattr(torch.ops.aten.mm, "dtype") else set[str]()
        # As for NumPy: a large piece of memory, freed, and the C library keeps those of tiles for the next ones.
        torch.empty(2**25 - 2**14, dtype=torch.uint8)

    @property
    def mode(self) -> str:
        if torch.compiler.is_compiling():
            return "whole" if torch.compiler.is_exporting() else "compiled"
        return "eager"

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

    def loss_dtype(self, x: Any, dtype: Any) -> Any:
        # As torch's own losses: under autocast a loss of 16 bits could not show what it changes by.
        device = x.device.type
        enabled = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        return torch.float32 if enabled else dtype

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

    def has_half_products(self, x: Any) -> bool:
        return x.device.type in self.half_devices

    def half_product(self, x: Any, y: Any) -> Any:
        if x.device.type == "cpu":
            return x.to(torch.float32) @ y.to(torch.float32)
        return torch.mm(x, y, out_dtype=torch.float32)

    def by_halves(
        self,
        of_halves: Callable[..., Any],
        plainly: Callable[..., Any],
        *arrays: Any,
        pulls: Mapping[int, Callable[..., Any]] | None = None,
    ) -> Any:
        del pulls  # the engine's closed forms call them
        return (plainly if _recorded(arrays) or _transformed(arrays) else of_halves)(*arrays)

    def exponential(self, x: Any) -> tuple[Callable[[Any], Any], bool]:
        # Powers of 2 in float32, which take half the time; in float64 they are not as exact. A compiler chooses itself.
        if torch.compiler.is_compiling():
            return torch.exp, False
        if _recorded((x,)) or _transformed((x,)):
            return (torch.exp2, True) if x.dtype == torch.float32 else (torch.exp, False)
        return (torch.exp2_, True) if x.dtype == torch.float32 else (torch.exp_, False)

    def sum_along(self, x: Any, axis: int) -> Any:
        return torch.sum(x, dim=axis)

    def custom_vjp(
        self, forward: Callable[..., Arrays], backward: Callable[..., Sequence[Any]], *, exact: bool = True
    ) -> Callable[..., Arrays]:
        del exact

        def bound(static: Any, *arrays: Any) -> Arrays:
            way = _way(arrays)
            chosen: Any = _ClosedFormPlainly
            if way == "compiled":
                chosen = _ClosedForm
            elif way == "transformed":
                chosen = _ClosedFormForward
            with _overwritable():
                if way is None:
                    return forward(static, *arrays)
                outputs: Arrays = chosen.apply(_Opaque(forward, backward, static), *_distinct(arrays))
            return outputs

        return bound

    def value_and_vjp(self, function: Callable[..., Arrays]) -> Callable[..., tuple[Any, Any]]:
        def bound(static: Any, *arrays: Any) -> tuple[Any, Any]:
            way = _way(arrays)
            chosen: Any = _Plainly
            if way == "compiled":
                chosen, arrays = _Compiled, tuple(_distinct(arrays))
            elif way == "transformed":
                chosen = _WithGradient
            with _overwritable():
                if way is None:
                    result: Arrays = function(static, *arrays, need_grad=False)
                else:
                    result = chosen.apply(function, static, *arrays)
            return result[0], result[1]

        return bound

    def needs_gradient(self, x: Any) -> bool:
        if torch.compiler.is_dynamo_compiling():
            return bool(torch.is_grad_enabled() and x.requires_grad)
        while True:  # torch.func wraps constants too: the tensor of each level says whether it is one
            if x.requires_grad and (torch.is_grad_enabled() or is_functorch_wrapped_tensor(x)):
                return True
            if forward_ad._current_level >= 0 and unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]  # noqa: SLF001
                return True
            if not is_functorch_wrapped_tensor(x):
                return False
            x = get_unwrapped(x)

    def linear_map(self, linear: Any, x: Any) -> Any:
        return _mapped(linear, x)

    def communicator(self, group: Any) -> Any:
        from .torch_ranks import communicator  # noqa: PLC0415  (not every torch has its distributed part)

        return communicator(group)

    def concrete_values(self, x: Any) -> Sequence[float] | None:
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return None
        while is_gradtrackingtensor(x):  # whatever a transform computes; that of a batch has no values of its own
            x = get_unwrapped(x)
        if _transformed((x,)):
            return None
        numbers: list[float] = x.tolist()
        return numbers

    def concrete_value(self, x: Any) -> float | None:
        # Unlike the other question, this one is answered for all threads at once; it errs to the safe side.
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return None
        try:
            return float(x.detach())
        except RuntimeError:  # one number for each element of a batch, under vmap
            return None

    def fill_diagonal(self, x: Any, row: int, column: int, count: int, value: Any) -> Any:
        several = isinstance(value, torch.Tensor)
        if torch.compiler.is_compiling():  # the compiler's own code for a diagonal warns of its deprecation
            i, j = (torch.arange(n, device=x.device) for n in x.shape)
            inside = (i >= row) & (i < row + count)
            filling = value[:, None] if several else value
            return torch.where(((i - row)[:, None] == j - column) & inside[:, None], filling, x)
        diagonal = (x[row : row + count] if row or count < x.shape[0] else x).diagonal(column)[:count]
        diagonal.copy_(value[row : row + count]) if several else diagonal.fill_(value)
        return x

    def scan(
        self, step: Callable[[Arrays, Arrays, int], tuple[Arrays, Arrays]], init: Arrays, xs: Arrays, block: Any
    ) -> tuple[Arrays, Arrays]:
        length = xs[0].shape[0]
        compiled = torch.compiler.is_compiling()
        if compiled and not isinstance(block, tuple):
            return step(init, xs, 0)
        if not isinstance(block, tuple):
            block = [(start, min(start + block, length)) for start in range(0, length, block)]
        if len(block) == 1:
            return step(init, xs, 0)
        carry, parts = init, []
        found: Arrays = ()
        for start, stop in block:
            carry, out = step(carry, tuple(x[start:stop] for x in xs), start)
            if compiled or _recorded(out) or _transformed(out):
                parts.append(out)
                continue
            if not start:
                # Filled as they come: kept in a list, the small outputs would pin the heap between the large tiles.
                found = tuple(x.new_empty((length, *x.shape[1:])) for x in out)
            for whole, x in zip(found, out, strict=True):
                whole[start:stop] = x
        return carry, tuple(torch.cat(column) for column in zip(*parts, strict=True)) if parts else found


def adapter(namespace_of: Callable[[Any], Any]) -> TorchAdapter:
    """The adapter for torch tensors."""
    return TorchAdapter(namespace_of)
