"""Adapter of PyTorch: torch.func and autograd functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]  (no stub)
from torch._C import _len_torch_dispatch_stack
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .defaults import PLAIN, VARIES, Arrays, Defaults, Function, Pulls, Step, of_floating, without
from .torch_namespace import exp, is_plain, is_traced, is_unobserved, recorded, repeated, transformed

_LARGE = 2**26
"""Entries of a matrix beside which no second one of its size is held."""


def _hooks_saved_tensors() -> bool | None:
    """Whether hooks take what is saved for backward passes: checkpointing, which counts it.

    PyTorch before 2.8 does not say: None.
    """
    private = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]  # noqa: SLF001
    top = getattr(private, "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(True) is not None  # noqa: FBT003  (also while tracing)


def _is_under_hooks_alone() -> bool:
    """Whether hooks take what is saved, as for checkpointing, outside of torch.func, which refuses them."""
    if torch.compiler.is_compiling() or not _hooks_saved_tensors():
        return False
    return bool(functorch.maybe_current_level() is None)


def _by_autograd(
    fn: Any, chosen: int | tuple[int, ...], arguments: Sequence[Any], options: dict[str, Any], *, has_aux: bool = False
) -> tuple[Any, Any]:
    """Result of a function, and the gradients of its value, by autograd itself."""
    keeps, given, own = torch.is_grad_enabled(), [*arguments], []
    with torch.enable_grad():
        for k in (chosen,) if isinstance(chosen, int) else chosen:
            found, shape = tree_flatten(arguments[k])
            leaves = [x.view_as(x) if keeps and x.requires_grad else x.detach().requires_grad_() for x in found]
            given[k] = tree_unflatten(leaves, shape)
            own.append((leaves, shape))
        result = fn(*given, **options)
        value = result[0] if has_aux else result
        flat = [x for leaves, _ in own for x in leaves]
        slopes = [torch.zeros_like(x) for x in flat]
        if value.requires_grad:
            slopes = [*torch.autograd.grad(value, flat, create_graph=keeps, materialize_grads=True, allow_unused=True)]
    if not keeps:
        result = tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, result)
    rest = iter(slopes)
    gradients = tuple([tree_unflatten([next(rest) for _ in leaves], shape) for leaves, shape in own])
    return result, gradients[0] if isinstance(chosen, int) else gradients


def _under_autocast(device: str) -> bool:
    if device == "meta":  # torch.compile cannot trace the exception
        return False
    try:
        return torch.is_autocast_enabled(device)
    except RuntimeError:  # a device without autocast
        return False


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """Context without autocast, so that losses use float32, as torch's own losses do."""
    return torch.autocast(device, enabled=False) if _under_autocast(device) else nullcontext()


@contextmanager
def _faster_products() -> Iterator[None]:
    """Context in which GPUs may compute float32 products in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _has_normal_exponentials(x: Any) -> bool:
    """Whether no exponential of a plain tensor is below the smallest normal number."""
    if x.dtype not in _SMALLEST or not x.numel() or not is_plain((x,)):
        return False
    return bool(torch.amin(x).item() > _SMALLEST[x.dtype][0])


@cache
def _has_fast_float64(index: int) -> bool:
    """Whether a GPU multiplies float64 at half the speed of float32 or more: those for data centres, and AMD's."""
    if getattr(torch.version, "hip", None):
        return True
    return torch.cuda.get_device_capability(index) in {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}


@cache
def multiplies_halves(device: str) -> bool:
    """Whether 16-bit matrices have float32 products; on ROCm they raise in PyTorch 2.8 and 2.9 (pytorch#162600)."""
    if not getattr(torch.version, "hip", None):
        return True
    x = torch.ones((16, 16), dtype=torch.bfloat16, device=device)
    try:
        torch.mm(x, x, out_dtype=torch.float32)
    except RuntimeError:
        return False
    return True


@cache
def _memory_of(index: int) -> int:
    """Bytes of memory of a GPU."""
    return int(torch.cuda.get_device_properties(index).total_memory)


def _asked(question: Callable[..., Any], *constants: Any) -> Any:
    """Answer of a function about this machine, which a compiler does not trace."""
    if torch.compiler.is_compiling():
        from .torch_compiler import untraced  # noqa: PLC0415  (loads the compiler)

        return untraced(question, *constants)
    return question(*constants)


def _ordered_integers(x: Any) -> Any:
    """Integers in the order of float32 numbers, with 32 zero bits behind."""
    bits = (x + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0
    bits = bits.bitwise_xor_((bits >> 31).bitwise_and_(0x7FFFFFFF))
    return bits.to(torch.int64).bitwise_left_shift_(32)


def _first_of_equal(x: Any, count: int) -> Any:
    """Columns of the `count` largest float32 numbers of each row, equal ones in order of columns; NaN is infinity."""
    last = x.shape[1] - 1
    keys = _ordered_integers(x.masked_fill(torch.isnan(x), math.inf))
    keys |= torch.arange(last, -1, -1)
    return (torch.topk(keys, count, dim=1)[0].bitwise_and_(0xFFFFFFFF)).neg_().add_(last)


def _is_observed(tensors: Arrays) -> bool:
    """Whether a compiler, a tracer, autograd or a transform must see standard operations on these tensors."""
    if torch.compiler.is_compiling() or is_traced():
        return True
    return recorded(tensors) or transformed(tensors)


def _is_differentiated(tensors: Arrays) -> bool:
    """Whether autograd or a transform differentiates operations on these tensors."""
    if recorded(tensors):
        return True
    if torch.compiler.is_compiling():
        from .torch_compiler import outside_of_transforms  # noqa: PLC0415  (loads the compiler)

        if outside_of_transforms():
            return False
    return transformed(tensors)


class _Copied(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that copies results, so that the engine may overwrite them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Arrays = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_new = isinstance(result, torch.Tensor) and func._schema.returns[0].alias_info is None  # noqa: SLF001
        return result.clone() if is_new else result


def _overwritable() -> AbstractContextManager[Any]:
    """Context in which results may be overwritten: selective checkpointing keeps results and raises if they change."""
    if torch.compiler.is_compiling() or not _len_torch_dispatch_stack():
        return nullcontext()
    keeping = any(type(mode).__module__ == "torch.utils.checkpoint" for mode in _get_current_dispatch_mode_stack())
    return _Copied() if keeping else nullcontext()  # type: ignore[no-untyped-call]


def _directional(function: Callable[..., Arrays], tensors: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
    """Directional derivative of a function; missing tangents and None are zero."""
    floating, of_these = of_floating(function, tensors, torch.is_floating_point)
    given = dict(enumerate(tangents))
    directions = tuple(torch.zeros_like(x) if given.get(k) is None else given[k] for k, x in floating.items())
    # Contiguous, since a tangent takes its tensor's strides, which fails for broadcast tensors.
    primals = tuple(x.contiguous() for x in floating.values())
    result: Any
    with _without_autocast(primals[0].device.type):
        try:
            result = torch.func.jvp(of_these, primals, directions)
        except RuntimeError as error:
            if "Nested forward mode" not in str(error):
                raise
        else:
            return tuple(result[1])
        # Within torch.autograd.forward_ad: transpose the pullback, which is linear in the cotangents.
        result = torch.func.vjp(of_these, *primals)
        outputs, pullback = result
        result = torch.func.vjp(pullback, tuple(torch.zeros_like(x) for x in outputs))
        return tuple(result[1](directions)[0])


def _times(gradient: Any, cotangent: Any) -> Any:
    """Gradient times the cotangent of the value (1,), or of the values (N,) of its rows, in its own shape."""
    if not gradient.dim():
        return (cotangent * gradient).reshape(())
    return gradient * (cotangent if gradient.dim() == 1 else cotangent.reshape(-1, *(1,) * (gradient.dim() - 1)))


# Differentiation rules: callables of tensors with the tensors to save (`keep`), a pullback (`pull`) and a pushforward
# (`push`). Objects, since torch's vmap would flatten tuples.


class _ClosedForm:
    """`forward(static, *arrays)` with the gradient `backward(static, arrays, outputs, cotangents)`.

    `kept`: how many last outputs are kept for the backward pass alone. A function with a rule for vmap returns them,
    too, so that each is batched; `is_returned`: this is one.
    """

    def __init__(
        self,
        forward: Callable[..., Arrays],
        backward: Function,
        static: Any,
        count: int,
        kept: int = 0,
        *,
        is_returned: bool = False,
    ) -> None:
        self.function, self.backward, self.static, self.count, self.kept = forward, backward, static, count, kept
        self.n_outputs = -kept if kept and not is_returned else None

    def __call__(self, *arrays: Any) -> Arrays:
        return self.function(self.static, *arrays)

    def keep(self, ctx: Any, arrays: Arrays, outputs: Arrays) -> Arrays:
        if self.kept and self.n_outputs is None:
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*outputs[-self.kept :])
        return (*arrays, *outputs)

    def pull(self, saved: Arrays, cotangents: Arrays) -> Arrays:
        if self.kept and self.n_outputs is None:
            outputs = saved[self.count : -self.kept]
            cotangents = tuple(
                torch.zeros_like(out) if g is None else g for g, out in zip(cotangents, outputs, strict=False)
            )
        adjoint, tensors = _Adjoint(self, len(saved), self.kept), (*saved, *cotangents)
        with _without_autocast(tensors[0].device.type):
            # A compiled backward pass is never recorded, and cannot contain an autograd function.
            if torch.compiler.is_dynamo_compiling() or not (recorded(tensors) or transformed(tensors)):
                result = adjoint(*tensors)
            else:
                result = _Transformed.apply(adjoint, *tensors)  # type: ignore[no-untyped-call]
        return (*result, *(None for _ in range(self.count - len(result))))

    def push(self, saved: Arrays, tangents: Arrays) -> Arrays:
        function = without(self.kept, self.function)
        result = _directional(lambda *x: function(self.static, *x), saved[: self.count], tangents)
        return (*result, *(None for _ in range(self.kept)))


class _Adjoint:
    """Backward pass of a closed form, recomputed for second derivatives.

    torch.func records every backward pass; recording a streamed one would hold the whole score matrix.
    """

    n_outputs = None

    def __init__(self, form: _ClosedForm, cotangents: int, kept: int = 0) -> None:
        self.form, self.cotangents, self.kept = form, cotangents, kept

    def _shortened(self, values: Arrays) -> tuple[_Adjoint, Arrays]:
        """The pass that computes again what was kept, and its arguments."""
        end = self.cotangents - self.kept
        return _Adjoint(self.form, end), (*values[:end], *values[self.cotangents :])

    def __call__(self, *tensors: Any) -> Arrays:
        form, n = self.form, self.form.count
        arrays, outputs, cotangents = tensors[:n], tensors[n : self.cotangents], tensors[self.cotangents :]
        return tuple(form.backward(form.static, arrays, outputs, cotangents))

    def keep(self, ctx: Any, tensors: Arrays, outputs: Arrays) -> Arrays:
        return tensors

    def pull(self, saved: Arrays, cotangents: Arrays) -> Arrays:
        adjoint, arguments = self._shortened(saved)
        floating, of_these = of_floating(adjoint, arguments, torch.is_floating_point)
        result: Any = torch.func.vjp(of_these, *floating.values())
        cotangent_of = dict(zip(floating, result[1](cotangents), strict=True))
        gradients = tuple(cotangent_of.get(k) for k in range(len(arguments)))
        end = adjoint.cotangents
        return (*gradients[:end], *(None for _ in range(self.kept)), *gradients[end:])

    def push(self, saved: Arrays, tangents: Arrays) -> Arrays:
        adjoint, arguments = self._shortened(saved)
        return _directional(adjoint, arguments, self._shortened(tangents)[1])


class _Value:
    """`function(static, *arrays, need_grad=...)`: a value, a constant, and the gradients of the value, or of values.

    The Hessian is symmetric, so its products with cotangents are computed as products with tangents, in forward mode,
    block by block.
    """

    n_outputs: int | None = None

    def __init__(self, function: Callable[..., Arrays], static: Any, count: int, need_grad: Any) -> None:
        self.function, self.static, self.count, self.need_grad = function, static, count, need_grad
        self.number = 1  # of values

    def __call__(self, *arrays: Any) -> Arrays:
        return self.function(self.static, *arrays, need_grad=self.need_grad)

    def keep(self, ctx: Any, arrays: Arrays, outputs: Arrays) -> Arrays:
        self.number = outputs[0].shape[-1]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(outputs[1])
        return (*arrays, *outputs[2:])

    def products(self, arrays: Arrays, directions: Sequence[Any]) -> Arrays:
        """Hessian-vector products; a vector may be None."""
        return _directional(lambda *x: self.function(self.static, *x, need_grad=True)[2:], arrays, directions)

    def pull(self, saved: Arrays, cotangents: Arrays) -> Arrays:
        first, _, *second = cotangents
        arrays, gradients = saved[: self.count], saved[self.count :]
        result: list[Any] = [None] * self.count
        if first is not None:
            result[: len(gradients)] = [g if g is None else _times(g, first) for g in gradients]
        if any(g is not None for g in second):
            products = self.products(arrays, second)
            result[: len(products)] = [a if b is None else a + b for a, b in zip(products, result, strict=False)]
        return tuple(result)

    def push(self, saved: Arrays, tangents: Arrays) -> Arrays:
        arrays, gradients = saved[: self.count], saved[self.count :]
        directions = tangents[: len(gradients)]
        products = [g * t for g, t in zip(gradients, directions, strict=True) if t is not None]
        if self.number == 1:
            total: Any = sum(x.sum() for x in products)
            slope = total.reshape(1)
        else:
            slope = sum(x.reshape(self.number, -1).sum(-1) for x in products)
        return (slope, None, *self.products(arrays, directions))


class _ValueOnce(_Value):
    """`_Value` for torch.compile, which differentiates once: gradients are saved, not returned."""

    n_outputs = 2

    def keep(self, ctx: Any, arrays: Arrays, outputs: Arrays) -> Arrays:
        ctx.mark_non_differentiable(outputs[1])
        return outputs[2:]

    def pull(self, saved: Arrays, cotangents: Arrays) -> Arrays:
        return (*(_times(g, cotangents[0]) for g in saved), *(None for _ in range(self.count - len(saved))))


class _LinearMap:
    """`linear(x)` with the transpose `linear.transposed()`."""

    n_outputs = None

    def __init__(self, linear: Any) -> None:
        self.linear = linear

    def __call__(self, x: Any) -> Arrays:
        return (self.linear(x),)

    def keep(self, ctx: Any, arrays: Arrays, outputs: Arrays) -> Arrays:
        return ()

    def pull(self, saved: Arrays, cotangents: Arrays) -> Arrays:
        linear, cotangent = self.linear.transposed(), cotangents[0]
        # A compiled backward pass is never recorded, and cannot contain an autograd function.
        return (linear(cotangent) if torch.compiler.is_dynamo_compiling() else _mapped(linear, cotangent),)

    def push(self, saved: Arrays, tangents: Arrays) -> Arrays:
        return (_mapped(self.linear.derivative(), tangents[0]),)


def _entry_by_entry(function: Callable[[Arrays, Arrays], Arrays], saved: Arrays, vectors: Arrays) -> Arrays:
    """Pullback or pushforward of vectors; of batches, entry by entry.

    `torch.autograd` makes batches by its older vmap (`is_grads_batched`, `vectorize`), which lacks rules for many
    operations, and hides whether a tensor is recorded.
    """
    if torch.compiler.is_dynamo_compiling() or not any(map(_is_batch, vectors)):
        return function(saved, vectors)
    level = torch._C._vmapmode_increment_nesting() - 1  # noqa: SLF001
    torch._C._vmapmode_decrement_nesting()  # noqa: SLF001
    # Tensors that are no batches get a batch axis of length 1.
    batches = [x if x is None else torch._remove_batch_dim(x, level, 1, 0) for x in (*saved, *vectors)]  # noqa: SLF001
    results = []
    for k in range(max(len(x) for x in batches if x is not None)):
        entry = [x if x is None else x[k % len(x)] for x in batches]
        results.append(function(tuple(entry[: len(saved)]), tuple(entry[len(saved) :])))
    return tuple(
        None if column[0] is None else torch._add_batch_dim(torch.stack(column), 0, level)  # noqa: SLF001
        for column in zip(*results, strict=True)
    )


def _is_batch(x: Any) -> bool:
    return x is not None and bool(functorch.is_legacy_batchedtensor(x))


# Autograd functions, with the rule as an argument, since torch.compile cannot trace the creation of a class.


def _is_copied(x: Any) -> bool:
    """Whether a backward pass has a copy of an argument.

    Autograd saves no tensor of inference mode, such as a teacher's result. Constants of one axis, such as a memory of
    averages, are often written into before the backward pass.
    """
    return bool(x.is_inference() or (x.ndim <= 1 and not x.requires_grad))


def _lasting(x: Any) -> Any:
    """An argument that autograd saves for a backward pass."""
    return x.clone() if _is_copied(x) else x


class _Recorded(torch.autograd.Function):
    """Reverse mode. Skips functorch's setup_context, about 40 µs a call.

    torch.compile supports this class, but none with a rule for forward mode or vmap.
    """

    @staticmethod
    def forward(ctx: Any, rule: Any, *arrays: Any) -> Arrays:
        outputs: Arrays = rule(*arrays)
        ctx.rule = rule
        ctx.save_for_backward(*rule.keep(ctx, arrays, outputs))
        return outputs if rule.n_outputs is None else outputs[: rule.n_outputs]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Arrays:
        # Read saved tensors once: checkpointing recomputes them on access, and allows one access.
        return (None, *_entry_by_entry(ctx.rule.pull, ctx.saved_tensors, cotangents))


class _Replayed(torch.autograd.Function):
    """A closed form of tensors that nothing else observes, in fewer Python calls."""

    @staticmethod
    def forward(ctx: Any, form: _ClosedForm, *arrays: Any) -> Arrays:
        arrays = tuple(map(_lasting, arrays))  # what is kept may be a view of one
        outputs: Arrays = form.function(form.static, *arrays)
        ctx.form = form
        ctx.save_for_backward(*arrays, *outputs)
        # Callers may write into results (`loss /= steps`): these are neither saved nor views.
        return tuple([x.clone() for x in outputs[: form.n_outputs]])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Arrays:
        form, saved = ctx.form, ctx.saved_tensors
        if not is_plain(cotangents) or torch.is_grad_enabled() or _under_autocast(cotangents[0].device.type):
            return (None, *_entry_by_entry(form.pull, saved, cotangents))
        found = form.backward(form.static, saved[: form.count], saved[form.count :], cotangents)
        return (None, *found, *[None] * (form.count - len(found)))


class _Held(torch.autograd.Function):
    """A result whose backward pass holds other tensors, and raises if one was written into since, as PyTorch's do."""

    @staticmethod
    def forward(ctx: Any, result: Any, *arrays: Any) -> Any:
        ctx.save_for_backward(*arrays)
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Arrays:
        return (*cotangents, *[None for _ in ctx.saved_tensors])


class _Transformed(torch.autograd.Function):
    """Reverse mode, forward mode and vmap for the transforms of torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rule: Any, *arrays: Any) -> Arrays:
        # Forward mode takes no views for results.
        return tuple([x if x is None or not x._is_view() else x.clone() for x in rule(*arrays)])  # noqa: SLF001

    @staticmethod
    def setup_context(ctx: Any, inputs: Arrays, output: Arrays) -> None:
        ctx.rule, *arrays = inputs
        kept = ctx.rule.keep(ctx, tuple(arrays), output)
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    backward = staticmethod(_Recorded.backward)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Arrays:
        return _entry_by_entry(ctx.rule.push, ctx.saved_tensors, tangents[1:])


class _EntryByEntry(_Transformed):
    """`_Transformed` with vmap as a loop, so that one entry of a batch is streamed at a time."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: Arrays, *args: Any) -> tuple[Arrays, Arrays]:
        (rule, *arrays), each = args, []
        for k in range(info.batch_size):
            entry = (x if d is None else x.select(d, k) for x, d in zip(arrays, in_dims[1:], strict=True))
            each.append(_EntryByEntry.apply(rule, *entry))  # type: ignore[no-untyped-call]
        outputs = tuple(torch.stack(column) for column in zip(*each, strict=True))
        return outputs, (0,) * len(outputs)


def _applied(rule: Any, way: str | None, arrays: Arrays, transformed: Any = _Transformed) -> Arrays:
    """Outputs of a rule by a `_way`; None calls it directly, to be differentiated by torch or not at all."""
    with _overwritable():
        if way is None:
            outputs: Arrays = rule(*arrays)
        elif way == "transformed":
            outputs = transformed.apply(rule, *arrays)
        else:
            outputs = _Recorded.apply(rule, *(_distinct(arrays) if way == "compiled" else arrays))  # type: ignore[no-untyped-call]
        return outputs


def _mapped(linear: Any, x: Any) -> Any:
    """Linear map of a tensor between processes."""
    if not torch.compiler.is_dynamo_compiling() and _in_nested_forward_mode() and transformed((x,)):
        # Collectives see only the values. `_directional` catches this message and falls back to a double vjp.
        raise RuntimeError("Nested forward mode is not supported between ranks; use reverse mode for one of both")
    return _applied(_LinearMap(linear), _way((x,)), (x,), _EntryByEntry)[0]


def _in_nested_forward_mode() -> bool:
    """Whether forward modes are nested; torch.func then shows an autograd function only the inner tangents."""
    stack = functorch.get_interpreter_stack() or ()
    return sum(interpreter.key() == functorch.TransformType.Jvp for interpreter in stack) > 1


def _way(arrays: Arrays) -> str | None:
    """Kind of autograd function to use; None if torch differentiates the function itself or nothing does."""
    if torch.compiler.is_dynamo_compiling():
        from .torch_compiler import within_one_gradient  # noqa: PLC0415  (loads the compiler)

        return "compiled" if recorded(arrays) and within_one_gradient() else None
    if transformed(arrays):
        return None if _in_nested_forward_mode() else "transformed"
    return "recorded" if recorded(arrays) else None


def _distinct(arrays: Arrays) -> list[Any]:
    """Tensors with repeated ones replaced by views, since torch.compile rejects repeated arguments."""
    return [x.view_as(x) if any(x is y for y in arrays[:k]) else x for k, x in enumerate(arrays)]


_SMALLEST = {
    dtype: (math.log(1.01 * torch.finfo(dtype).tiny), 1.02 * torch.finfo(dtype).tiny)
    for dtype in (torch.float32, torch.float64)
}
"""Smallest exponent whose exponential is not subnormal, and a number slightly above that exponential."""


# Kernels of tensors that nothing observes.


def _softplus_and_sigmoid(
    x: Any, *, bounded: bool, need_value: bool = True, need_slope: bool = True
) -> tuple[Any, Any]:
    value = None
    if need_value and (bounded or x.device.type != "cpu" or _has_normal_exponentials(x)):
        value = torch.nn.functional.softplus(x, threshold=40.0)
    elif need_value:  # softplus on a CPU takes 200 times as long where exponentials are subnormal
        value = torch.log1p(exp(x.abs().neg_())).add_(x.clamp(min=0.0))
    return value, torch.sigmoid(x) if need_slope else None


def _exp_in_place(x: Any, *, bounded: bool) -> Any:
    if bounded or x.device.type != "cpu" or x.dtype not in _SMALLEST:
        return torch.exp_(x)
    least, smallest = _SMALLEST[x.dtype]
    return torch.threshold_(x.clamp_(min=least).exp_(), smallest, 0.0)


def _count_along(x: Any, axis: int, dtype: Any) -> Any:
    if x.is_cpu:
        return x.view(torch.uint8).to(dtype).sum(axis)
    # A sum of booleans would convert them to numbers of the size of the result.
    return torch.sum(x.to(torch.bfloat16), dim=axis, dtype=torch.float32).to(dtype)


def _plus_product(x: Any, y: Any, z: Any) -> Any:
    if x.is_cpu and y.dtype == torch.bool:
        y = y.view(torch.uint8).to(x.dtype)
    return torch.addcmul(x, y, z, out=x)


def _fill_diagonal(x: Any, row: int, column: int, count: int, value: Any) -> Any:
    diagonal = (x if count == x.shape[0] else x[row : row + count]).diagonal(column)
    if isinstance(value, torch.Tensor):
        diagonal.copy_(value if count == value.shape[0] else value[row : row + count])
    else:
        diagonal.fill_(value)
    return x


def _entries_at(x: Any, columns: Any) -> Any:
    return x.gather(1, columns.long())


def _fill_columns(x: Any, columns: Any, value: Any, *, inside: bool = False) -> Any:
    given, places = value[:, None] if isinstance(value, torch.Tensor) else value, columns[:, None].long()
    if inside:
        return x.scatter_(1, places, given)
    known = (places >= 0) & (places < x.shape[1])
    places = torch.where(known, places, 0)
    return x.scatter_(1, places, torch.where(known, given, x.gather(1, places)))


_UNOBSERVED: dict[str, Function] = {
    "count_along": _count_along,
    "entries_at": _entries_at,
    "exp_in_place": _exp_in_place,
    "extremes": torch.aminmax,
    "fill_columns": _fill_columns,
    "fill_diagonal": _fill_diagonal,
    "plus_product": _plus_product,
    "softplus_and_sigmoid": _softplus_and_sigmoid,
    "sum_along": torch.sum,
    "times_in_place": torch.Tensor.mul_,
}


class TorchAdapter(Defaults):
    """Adapter for torch tensors."""

    name = "torch"
    version = torch.__version__
    half_precision = ("float16", "bfloat16")
    dtypes = ("float64", "float32", *half_precision)
    reads_values = True

    def __init__(self, namespace_of: Callable[[Any], Any]) -> None:
        super().__init__(namespace_of)
        # Devices with 16-bit products that return float32. Adding "cpu" emulates them by 32-bit products.
        self.half_devices = {"cuda", "meta"} if hasattr(torch.ops.aten.mm, "dtype") else set[str]()
        # Devices on which each operation of a step goes through memory. Adding "cpu" compiles steps there.
        self.fused_devices = {"cuda"}
        # Devices, besides some GPUs, with fast float64. `meta` stands for such a GPU.
        self.wide_devices = {"cpu", "meta"}
        # As for NumPy (`keep_memory`): freeing a large block makes the C library reuse the memory of tiles.
        torch.empty(2**25 - 2**14, dtype=torch.uint8)

    @property
    def mode(self) -> str:
        if torch.compiler.is_compiling():
            from .torch_compiler import is_exporting  # noqa: PLC0415  (loads the compiler)

            return "whole" if is_exporting() else "compiled"
        return "eager"

    @property
    def devices(self) -> tuple[str, ...]:
        result = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        if torch.backends.mps.is_available():
            result.append("mps")
        return tuple(result)

    def stop_gradient(self, x: Any) -> Any:
        return x.detach()

    def full_precision(self, x: Any, *, high: bool = False) -> AbstractContextManager[Any]:
        if high and x.device.type != "cpu" and not torch.compiler.is_compiling():
            return _faster_products()
        return _without_autocast(x.device.type)

    def loss_dtype(self, x: Any, dtype: Any) -> Any:
        # As for torch's own losses: a 16-bit loss would be too coarse to show progress.
        return torch.float32 if _under_autocast(x.device.type) else dtype

    def value_and_grad(self, fn: Function, argnums: int | Sequence[int] = 0, *, has_aux: bool = False) -> Function:
        chosen = argnums if isinstance(argnums, int) else tuple(argnums)
        if not has_aux:
            transformed = torch.func.grad_and_value(fn, argnums=chosen)

            def value_and_gradient(*arguments: Any, **options: Any) -> tuple[Any, Any]:
                if _is_under_hooks_alone():
                    return _by_autograd(fn, chosen, arguments, options)
                result: Any = transformed(*arguments, **options)
                return result[1], result[0]

            return value_and_gradient

        def with_aux(*arguments: Any, **options: Any) -> tuple[Any, Any]:
            if _is_under_hooks_alone():
                return _by_autograd(fn, chosen, arguments, options, has_aux=True)
            # torch.func returns only tensors, so other leaves of aux bypass it.
            leaves: list[Any] = []
            shapes: list[Any] = []

            def tensors_only(*arguments: Any, **options: Any) -> tuple[Any, dict[int, Any]]:
                value, aux = fn(*arguments, **options)
                leaves[:], shape = tree_flatten(aux)
                shapes.append(shape)
                return value, {k: leaf for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}

            transformed = torch.func.grad_and_value(tensors_only, argnums=chosen, has_aux=True)
            result: Any = transformed(*arguments, **options)
            gradient, (value, tensors) = result
            filled = [tensors.get(k, leaf) for k, leaf in enumerate(leaves)]
            return (value, tree_unflatten(filled, shapes[0])), gradient

        return with_aux

    def has_half_products(self, x: Any) -> bool:
        kind = x.device.type
        return kind in self.half_devices and (kind != "cuda" or bool(_asked(multiplies_halves, kind)))

    def memory(self, x: Any) -> int | None:
        return _asked(_memory_of, x.device.index or 0) if x.device.type == "cuda" else None

    def half_product(self, x: Any, y: Any) -> Any:
        if x.device.type == "cpu":
            return x.to(torch.float32) @ y.to(torch.float32)
        return torch.mm(x, y, out_dtype=torch.float32)

    def rounded_product(self, x: Any, y: Any, dtype: Any) -> Any:
        if _is_observed((x, y)):
            return super().rounded_product(x, y, dtype)
        return torch.mul(x, y, out=x.new_empty(x.shape, dtype=dtype))  # one kernel, without a float32 product

    def rounded(self, x: Any) -> Any:
        # Of compilers for CPUs, inductor asks for no contraction.
        contracts = torch.compiler.is_compiling() and x.device.type != "cpu"
        return torch.where(torch.isnan(x), math.nan, x) if contracts else x

    def clipped(self, x: Any, low: float, high: float) -> Any:
        # The derivative of `clamp` at its limits is 1 before torch 2.15, then 0.
        return None if _is_observed((x,)) else torch.clamp(x, low, high)

    def softplus_and_sigmoid(
        self, x: Any, *, bounded: bool, need_value: bool = True, need_slope: bool = True
    ) -> tuple[Any, Any] | None:
        if _is_observed((x,)):
            return None
        return _softplus_and_sigmoid(x, bounded=bounded, need_value=need_value, need_slope=need_slope)

    def softmax(self, x: Any) -> tuple[Any, Any, Any, Any] | None:
        if x.device.type != "cpu" or 0 in x.shape or not is_plain((x,)):
            return None
        largest = torch.amax(x, dim=1)
        if not torch.isfinite(largest).all().item():
            return None
        shares = torch.softmax(x, dim=1)
        total = torch.amax(shares, dim=1).reciprocal_()
        return largest, total, shares, total.clone()

    def unit_rows(self, x: Any) -> tuple[Any, Any] | None:
        # No float64 on mps; squares of float64 may be out of its range, those of other dtypes are not.
        if x.device.type == "mps" or x.dtype == torch.float64 or _is_observed((x,)):
            return None
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64)
        length.masked_fill_(length == 0, math.inf)
        return torch.div(x, length, out=x.new_empty(x.shape)), length.to(x.dtype)

    def by_halves(self, of_halves: Function, plainly: Function, *arrays: Any, pulls: Pulls = None) -> Any:
        # The engine's closed forms call `pulls` themselves.
        return (plainly if _is_differentiated(arrays) else of_halves)(*arrays)

    def is_widened(self, x: Any) -> bool:
        if x.dtype != torch.float32:
            return False
        if x.device.type != "cuda":
            return x.device.type in self.wide_devices
        return bool(_asked(_has_fast_float64, x.device.index or 0))

    def exp_in_place(self, x: Any, *, bounded: bool) -> Any:
        return torch.exp(x) if _is_observed((x,)) else _exp_in_place(x, bounded=bounded)

    def exp_bounded(self, x: Any) -> Any:
        return torch.exp(x)

    def extremes(self, x: Any) -> tuple[Any, Any]:
        if _is_observed((x,)):
            return super().extremes(x)
        low, high = torch.aminmax(x)
        return low, high

    def sum_along(self, x: Any, axis: int) -> Any:
        return torch.sum(x, dim=axis)

    def count_along(self, x: Any, axis: int, dtype: Any) -> Any:
        return super().count_along(x, axis, dtype) if _is_observed((x,)) else _count_along(x, axis, dtype)

    def plus_product(self, x: Any, y: Any, z: Any) -> Any:
        return super().plus_product(x, y, z) if _is_observed((x, y, z)) else _plus_product(x, y, z)

    def times_in_place(self, x: Any, y: Any) -> Any:
        return x * y if _is_observed((x, y) if isinstance(y, torch.Tensor) else (x,)) else x.mul_(y)

    def times_sum(self, x: Any, y: Any, z: Any) -> Any:
        if _is_observed((x, y, z)):
            return super().times_sum(x, y, z)
        count = 2 if x.numel() > _LARGE else 1  # the sums of a large matrix take half its memory
        for part, own in zip(x.chunk(count), y.chunk(count), strict=True):
            part.mul_(own + z)
        return x

    def where_in_place(self, condition: Any, x: Any, value: float) -> Any:
        if x.device.type == "cpu" or _is_observed((x,)):
            return super().where_in_place(condition, x, value)
        return torch.where(condition, x, torch.scalar_tensor(value, dtype=x.dtype, device=x.device), out=x)

    def row_dots(self, x: Any, y: Any) -> Any:
        return (x * y).sum(-1)  # `linalg.vecdot` would use 16 bits under autocast

    def custom_vjp(
        self, forward: Function, backward: Function, *, exact: bool = True, kept: int = 0
    ) -> Callable[..., Arrays]:
        shortened = without(kept, forward)

        def bound(static: Any, *arrays: Any) -> Arrays:
            way = _way(arrays)
            if not kept or way in {None, "compiled"}:  # a compiler chooses itself what to keep
                return _applied(_ClosedForm(shortened, backward, static, len(arrays)), way, arrays)
            is_returned = way == "transformed"
            rule = _ClosedForm(forward, backward, static, len(arrays), kept, is_returned=is_returned)
            outputs = _applied(rule, way, arrays)
            return outputs[:-kept] if is_returned else outputs

        return bound

    def replayed(self, forward: Function, backward: Function, *, kept: int) -> Callable[..., Arrays]:
        def bound(static: Any, *arrays: Any) -> Arrays:
            form = _ClosedForm(forward, backward, static, len(arrays), kept)
            outputs: Arrays = _Replayed.apply(form, *arrays)  # type: ignore[no-untyped-call]
            return outputs

        return bound

    def repeated(
        self, function: Function, options: dict[str, Any], values: Sequence[Any]
    ) -> tuple[Function, dict[str, Any], Sequence[Any]]:
        if getattr(function, "__self__", None) is self and isinstance(values[0], torch.Tensor):
            function = _UNOBSERVED.get(function.__name__, function)
        return repeated(function, options, values)

    def value_and_vjp(self, function: Callable[..., Arrays]) -> Callable[..., tuple[Any, Any]]:
        def bound(static: Any, *arrays: Any) -> tuple[Any, Any]:
            way = _way(arrays)
            kind: type[_Value] = _ValueOnce if way == "compiled" else _Value
            need_grad: Any = way is not None
            if way == "recorded":
                need_grad = tuple(x.requires_grad for x in arrays)
            rule = kind(function, static, len(arrays), need_grad)
            result = _applied(rule, way, arrays, _EntryByEntry)
            return result[0], result[1]

        return bound

    def observed(self, arrays: Arrays) -> tuple[Any, tuple[int, ...]] | None:
        if torch.compiler.is_compiling() or forward_ad._current_level >= 0:  # noqa: SLF001  (cotangents may have tangents)
            return None
        if _hooks_saved_tensors() is not False or not is_unobserved(arrays):
            return None
        keeps = torch.is_grad_enabled()
        kinds = [(x.shape, x.dtype, x.device, x.layout) for x in arrays]
        # What is made in inference mode is never saved for a backward pass: a program made there stays there.
        settings = _under_autocast(arrays[0].device.type), torch.get_default_dtype(), torch.is_inference_mode_enabled()
        return (*kinds, *settings), tuple([VARIES if keeps and x.requires_grad else PLAIN for x in arrays])

    def entering(self, arrays: Sequence[Any], states: Sequence[int]) -> list[Any]:
        return super().entering([*map(_lasting, arrays)], states)

    def leaving(self, result: Any, arrays: Sequence[Any]) -> Any:
        held = [x.detach() for x in arrays if not _is_copied(x)]  # compiled autograd adds None to gradients
        return _Held.apply(result, *held) if result.requires_grad else result  # type: ignore[no-untyped-call]

    def is_plain(self, arrays: Arrays) -> bool:
        return is_plain(arrays)

    def needs_gradient(self, x: Any) -> bool:
        if torch.compiler.is_dynamo_compiling():
            return bool(torch.is_grad_enabled() and x.requires_grad)
        while True:  # torch.func also wraps constants: check the tensor of each level
            if x.requires_grad and (torch.is_grad_enabled() or functorch.is_functorch_wrapped_tensor(x)):
                return True
            if forward_ad._current_level >= 0 and unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]  # noqa: SLF001
                return True
            if not functorch.is_functorch_wrapped_tensor(x):
                return False
            x = functorch.get_unwrapped(x)

    def linear_map(self, linear: Any, x: Any) -> Any:
        return _mapped(linear, x)

    def communicator(self, group: Any) -> Any:
        from .torch_ranks import communicator  # noqa: PLC0415  (some torch builds lack torch.distributed)

        return communicator(group)

    def concrete_values(self, x: Any) -> Sequence[float] | None:
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return None
        while functorch.is_gradtrackingtensor(x):  # gradient transforms keep values; vmap does not
            x = functorch.get_unwrapped(x)
        if transformed((x,)):
            return None
        numbers: list[float] = x.tolist()
        return numbers

    def concrete_value(self, x: Any) -> float | None:
        # `is_compiling` is global to all threads, unlike `is_dynamo_compiling`, and errs on the safe side.
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return None
        try:
            return float(x.item())
        except (RuntimeError, TypeError):  # batched by vmap, or symbolic
            return None

    def fill_diagonal(self, x: Any, row: int, column: int, count: int, value: Any) -> Any:
        if torch.compiler.is_compiling() or is_traced():  # the compiler's code for a diagonal gives a warning
            return super().fill_diagonal(x, row, column, count, value)
        if isinstance(value, torch.Tensor) and transformed((value,)):  # a batch cannot be copied into one matrix
            return super().fill_diagonal(x, row, column, count, value)
        if _is_observed((x,)):  # a derivative may need the overwritten values
            x = x.clone()
        return _fill_diagonal(x, row, column, count, value)

    def fill_columns(self, x: Any, columns: Any, value: Any, *, inside: bool = False) -> Any:
        arrays = (x, columns, value) if isinstance(value, torch.Tensor) else (x, columns)
        if _is_observed(arrays):
            return super().fill_columns(x, columns, value, inside=inside)
        return _fill_columns(x, columns, value, inside=inside)

    def entries_at(self, x: Any, columns: Any) -> Any:
        return super().entries_at(x, columns) if _is_observed((x, columns)) else _entries_at(x, columns)

    def add_rows(self, x: Any, numbers: Any, rows: Any) -> Any:
        arrays = (x, numbers, rows)
        if _is_observed(arrays):
            return x.index_add(0, numbers, rows)
        return x.index_add_(0, numbers, rows)

    def add_columns(self, x: Any, columns: Any, values: Any) -> Any:
        if _is_observed((x, columns, values)):
            return x.scatter_add(1, columns, values)
        return x.scatter_add_(1, columns, values)

    def order_of_rows(self, x: Any) -> Any:
        if x.device.type != "cpu" or x.dtype != torch.float32 or _is_observed((x,)):
            return torch.argsort(x, dim=1, stable=True)
        keys = _ordered_integers(x)  # and the columns behind them: half the time of a stable sort of floats
        keys |= torch.arange(x.shape[1])
        return torch.sort(keys, dim=1)[0].bitwise_and_(0xFFFFFFFF)

    def highest_of_rows(self, x: Any, count: int) -> Any:
        if x.device.type != "cpu" or x.dtype != torch.float32 or not is_plain((x,)):
            return None
        values, places = torch.topk(x, min(count + 1, x.shape[1]), dim=1)
        places = places[:, :count]
        # Rows with equal ones, of which `topk` has no order, or with NaN.
        again = torch.all(values[:, 1:] < values[:, :-1], dim=1).logical_not_().nonzero()[:, 0]
        if len(again):
            places[again] = _first_of_equal(x[again], count)
        return places

    def obstacle_to_fusing(self, x: Any) -> str | None:
        if x.device.type not in self.fused_devices:
            return "PyTorch compiles them on CUDA devices"
        if torch.compiler.is_compiling():
            return "the whole call is compiled"
        from .torch_fused import obstacle_to_compiling  # noqa: PLC0415  (loads the compiler)

        return obstacle_to_compiling(x.device.type)

    def fused(self, step: Function) -> Function:
        from .torch_fused import compiled_step  # noqa: PLC0415  (loads the compiler)

        return compiled_step(step)

    def scan(self, step: Step, init: Arrays, xs: Arrays, block: Any) -> tuple[Arrays, Arrays]:
        if torch.compiler.is_compiling() and not isinstance(block, tuple):
            return step(init, xs, 0)
        length = xs[0].shape[0]
        result: Arrays = ()

        def filling(carry: Arrays, tiles: Arrays, start: int) -> tuple[Arrays, Arrays]:
            """Step that writes its outputs into whole arrays, unless they are recorded or from a single block.

            A list of small outputs would fragment the heap of a processor between the large tiles. On a GPU, whose
            memory is cached by size, a copy of each would be a launch.
            """
            nonlocal result
            carry, out = step(carry, tiles, start)
            stop = start + tiles[0].shape[0]
            if stop - start == length or xs[0].device.type != "cpu" or _is_observed(out):
                return carry, out
            if not start:
                result = tuple(x.new_empty((length, *x.shape[1:])) for x in out)
            for whole, x in zip(result, out, strict=True):
                whole[start:stop] = x
            return carry, ()

        carry, parts = super().scan(filling, init, xs, block)
        return carry, parts or result


adapter = TorchAdapter
