"""The adapter of JAX: its own transformations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer, eval_context
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .defaults import Arrays, Defaults, Function, Pulls, Step


def _beside(gradient: Any, argument: Any) -> Any:
    """The gradient on the argument's device: that of an unused argument is made on JAX's default device."""
    here = getattr(argument, "sharding", None)
    if isinstance(gradient, Tracer) or isinstance(argument, Tracer) or gradient.sharding == here:
        return gradient
    return jax.device_put(gradient, here)


def _full_precision() -> AbstractContextManager[Any]:
    """Products of all bits on a GPU or a TPU too, unless the user has chosen otherwise.

    A rule for a derivative enters it anew: JAX may call it after the loss has been left.
    """
    chosen = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009  (made at run time, unknown to mypy)
    return jax.default_matmul_precision("highest") if chosen is None else nullcontext()


def _outside(arrays: Arrays) -> AbstractContextManager[Any]:
    """Outside of the derivative that is being taken, where no array belongs to it.

    JAX tells the calls of a compiled function apart by the derivative that they are in: without jit, each gradient
    would leave an entry in its cache, which holds 4096.
    """
    return nullcontext() if any(isinstance(x, Tracer) for x in arrays) else eval_context()


def _varying(init: Arrays, xs: Arrays) -> Arrays:
    """A carry to begin with, of which JAX is told that it varies over the axes of a mesh that the blocks vary over."""
    typeof = getattr(jax, "typeof", None)  # as old as such axes
    if typeof is None:
        return init
    axes = [getattr(x, "manual_axis_type", getattr(x, "vma", None)) for x in map(typeof, (*init, *xs))]
    if all(own == axes[0] for own in axes):
        return init
    nowhere = jnp.zeros((), dtype=bool)
    first_entries = (jnp.where(nowhere, jnp.ravel(x)[0], 0) for x in xs)
    zero: Any = sum(jnp.asarray(x, dtype=float) for x in first_entries)
    return tuple(x + zero.astype(x.dtype) for x in init)


class _Static:
    """What JAX is not to take apart and put together again, as it does tuples: its caches would hold each of them."""

    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside


_STATICS = 4096
"""How many are told apart; functions that a user makes anew for each call are not held for ever."""


def _opened(function: Function) -> Function:
    """The function of what is inside of a static."""

    def of_the_inside(static: _Static, *arguments: Any, **options: Any) -> Any:
        return function(static.inside, *arguments, **options)

    return of_the_inside


def _by_rule(forward: Callable[..., Arrays], backward: Callable[..., Sequence[Any]]) -> Function:
    """A function whose gradient is not its own, by a rule for reverse mode alone."""

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def bound(static: Any, *arrays: Any) -> Arrays:
        return forward(static, *arrays)

    def forth(static: Any, *arrays: Any) -> tuple[Arrays, tuple[Arrays, Arrays]]:
        arrays = tuple(map(jnp.asarray, arrays))  # jax.grad of a Python number has JAX's literals here, not arrays
        outputs = forward(static, *arrays)
        return outputs, (arrays, outputs)

    def back(static: Any, held: tuple[Arrays, Arrays], cotangents: Arrays) -> Arrays:
        arrays, outputs = held
        with _full_precision():
            found = tuple(backward(static, arrays, outputs, cotangents))
        return (*found, *(jnp.zeros_like(x) for x in arrays[len(found) :]))

    bound.defvjp(forth, back)
    return bound


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _mapped(linear: Any, x: Any) -> Any:
    """A map between the devices of a mesh, whose collectives JAX differentiates itself."""
    return linear(x)


@_mapped.defjvp
def _mapped_tangent(linear: Any, primals: Arrays, tangents: Arrays) -> Arrays:
    return _mapped(linear, *primals), linear.derivative()(*tangents)


# Products of 16 bits are primitives, not functions with `jax.custom_jvp`: out of a scan, JAX moves what is the same in
# each step by a partial evaluation, which leaves only the values of such a function, and their derivative is another.


def _halves(*arrays: Any, functions: _Static) -> list[Any]:
    """The first of two functions, but the second on a processor: what is lowered for a platform has one of them."""
    of_halves, plainly, _ = functions.inside
    with _full_precision():
        found: list[Any] = jax.tree.leaves(jax.lax.platform_dependent(*arrays, cpu=plainly, default=of_halves))
    return found


def _halves_types(*types: Any, functions: _Static) -> list[Any]:
    return list(jax.make_jaxpr(functions.inside[1])(*types).out_avals)


def _halves_tangent(primals: Arrays, tangents: Arrays, *, functions: _Static) -> tuple[list[Any], list[Any]]:
    """The tangents are those of the second function; their transposes go by halves where the engine has a way to."""
    _, plainly, pulls = functions.inside
    values = _halves_p.bind(*primals, functions=functions)
    live = [k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero) and (k in pulls or not pulls)]
    if not live:
        return values, [jnp.zeros_like(x) for x in values]

    def with_those(places: Sequence[int], arrays: Arrays, *own: Any) -> Any:
        given = dict(zip(places, own, strict=True))
        return plainly(*(given.get(k, x) for k, x in enumerate(arrays)))

    if not pulls:
        own, of_own = (tuple(x[k] for k in live) for x in (primals, tangents))
        with _full_precision():
            return values, jax.tree.leaves(jax.jvp(partial(with_those, live, primals), own, of_own)[1])
    parts = []
    for k in live:
        (x,) = _varying((tangents[k],), primals)
        maps = _Static((lambda x, *arrays, k=k: with_those([k], arrays, x), pulls[k]))
        parts.append(_linear_p.bind(x, *primals, maps=maps))
    return values, [sum(parts[1:], parts[0])]


def _halves_batch(arrays: Arrays, axes: Sequence[int | None], *, functions: _Static) -> tuple[list[Any], list[int]]:
    of_halves, plainly, pulls = functions.inside

    def mapped(k: int) -> Function:
        pull = jax.vmap(pulls[k], (0, *axes), 0 if axes[k] is None else axes[k])
        return pull if axes[k] is not None else lambda *arrays: jnp.sum(pull(*arrays), axis=0)

    both = (jax.vmap(function, tuple(axes)) for function in (of_halves, plainly))
    values = _halves_p.bind(*arrays, functions=_Static((*both, {k: mapped(k) for k in pulls})))
    return values, [0] * len(values)


def _linear(x: Any, *constants: Any, maps: _Static) -> Any:
    with _full_precision():
        return maps.inside[0](x, *constants)


def _linear_type(*types: Any, maps: _Static) -> Any:
    return jax.make_jaxpr(maps.inside[0])(*types).out_avals[0]


def _linear_tangent(primals: Arrays, tangents: Arrays, *, maps: _Static) -> tuple[Any, Any]:
    """The tangent: the function of that of the first array; by the other arrays JAX differentiates it itself."""
    (x, *constants), (first, *others) = primals, tangents
    value, parts = _linear_p.bind(x, *constants, maps=maps), []
    if not isinstance(first, ad.Zero):
        parts.append(_linear_p.bind(first, *constants, maps=maps))
    if not all(isinstance(t, ad.Zero) for t in others):
        fill: Any = ad.instantiate_zeros
        parts.append(jax.jvp(partial(_linear, x, maps=maps), constants, list(map(fill, others)))[1])
    return value, sum(parts[1:], parts[0])


def _linear_transpose(cotangent: Any, x: Any, *constants: Any, maps: _Static) -> list[Any]:
    forth, back = maps.inside
    nothing = [None] * len(constants)
    if isinstance(cotangent, ad.Zero):
        return [ad.Zero(x.aval), *nothing]
    return [_linear_p.bind(cotangent, *constants, maps=_Static((back, forth))), *nothing]


def _linear_batch(arrays: Arrays, axes: Sequence[int | None], *, maps: _Static) -> tuple[Any, int]:
    """The function and its transpose, mapped over the constants; the first array and the result have an axis each."""
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    x, axis = arrays[0], axes[0]
    x = jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
    mapped = _Static(tuple(jax.vmap(function, (0, *axes[1:])) for function in maps.inside))
    return _linear_p.bind(x, *arrays[1:], maps=mapped), 0


def _primitive(name: str, function: Function, types: Function, tangent: Any, batch: Any, *, several: bool) -> Any:
    primitive: Any = Primitive(f"portable_nce_{name}")
    primitive.multiple_results = several
    primitive.def_impl(function)
    primitive.def_abstract_eval(types)
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=several))
    ad.primitive_jvps[primitive] = tangent
    batching.primitive_batchers[primitive] = batch
    return primitive


_halves_p = _primitive("halves", _halves, _halves_types, _halves_tangent, _halves_batch, several=True)
_linear_p = _primitive("linear", _linear, _linear_type, _linear_tangent, _linear_batch, several=False)
"""A function that is linear in the first of its arrays, with another function for its transpose.

What JAX has for it, `jax.custom_derivatives.linear_call`, is neither mapped by `jax.vmap` nor differentiated by the
other arrays.
"""
ad.primitive_transposes[_linear_p] = _linear_transpose


@dataclass(frozen=True)
class _MeshAxis:
    """An axis of a mesh, or several, within `jax.shard_map`: each of its devices has as many rows."""

    name: str | tuple[str, ...]
    library = "jax"

    @property
    def size(self) -> int:
        add_up: Any = jax.lax.psum
        try:
            return int(add_up(1, self.name))  # known when it is traced
        except NameError as error:
            raise ValueError(f"across: expected a call inside of jax.shard_map over the axis {self.name!r}") from error

    @property
    def rank(self) -> Any:
        return jax.lax.axis_index(self.name)

    def all_gather(self, x: Any, counts: Sequence[int]) -> Any:
        return jax.lax.all_gather(x, self.name, tiled=True)

    def replicate(self, x: Any) -> Any:
        # What is gathered varies over the axis to JAX; what is added up does not.
        whole = jnp.zeros((self.size * x.shape[0], *x.shape[1:]), dtype=x.dtype)
        return self.all_reduce(jax.lax.dynamic_update_slice_in_dim(whole, x, self.rank * x.shape[0], 0))

    def all_reduce(self, x: Any, *, largest: bool = False) -> Any:
        reduce: Any = jax.lax.pmax if largest else jax.lax.psum
        return reduce(x, self.name)


def _with_gradient(function: Callable[..., Arrays]) -> Any:
    """A function whose forward pass computes its gradient, compiled."""
    run = jax.jit(_opened(function), static_argnums=0, static_argnames="need_grad")

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def bound(static: Any, *arrays: Any) -> tuple[Any, Any]:
        value, constant = run(static, *arrays, need_grad=False)
        return value, constant

    def jvp(static: Any, arrays: Arrays, tangents: Arrays) -> tuple[Any, Any]:
        wanted = tuple(not isinstance(t, SymbolicZero) for t in tangents)
        with _full_precision():
            with _outside(arrays):
                value, constant, *gradients = run(static, *arrays, need_grad=any(wanted) and wanted)
            pairs = zip(gradients, tangents, wanted, strict=False)
            products = [jnp.vdot(g, t) for g, t, own in pairs if own and g is not None]
        slope = jnp.reshape(sum(products), value.shape) if products else jnp.zeros_like(value)
        constant = jax.lax.stop_gradient(constant)
        return (value, constant), (slope, jnp.zeros_like(constant))

    bound.defjvp(jvp, symbolic_zeros=True)
    return bound


class JaxAdapter(Defaults):
    """The adapter for JAX arrays and tracers."""

    name = "jax"
    mode = "traced"
    version = jax.__version__
    half_precision = ("float16", "bfloat16")

    def __init__(self, namespace_of: Callable[[Any], Any]) -> None:
        super().__init__(namespace_of)
        self._bound: dict[Function, Function] = {}  # what has been compiled, by function
        self._static = lru_cache(_STATICS)(_Static)

    def _kept(self, function: Function, compiled: Callable[[], Function]) -> Function:
        """The result of `compiled`, made once for each function.

        Of equal statics it is given the first, or JAX's caches would hold another in every call.
        """
        if function not in self._bound:
            bound = compiled()
            self._bound[function] = lambda static, *arrays: bound(self._static(static), *arrays)
        return self._bound[function]

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(str(device) for device in jax.devices())

    @property
    def dtypes(self) -> tuple[str, ...]:
        wide = ("float64",) if jnp.zeros((), dtype=float).dtype == jnp.float64 else ()
        return (*wide, "float32", *self.half_precision)

    def stop_gradient(self, x: Any) -> Any:
        return jax.lax.stop_gradient(x)

    def check(self, x: Any) -> None:
        mesh = getattr(getattr(getattr(jax, "typeof", lambda x: x)(x), "sharding", None), "mesh", None)
        if mesh is not None and any("Explicit" in str(kind) for kind in getattr(mesh, "axis_types", None) or ()):
            raise TypeError(
                f"expected an array whose mesh has automatic axes, got one sharded over explicit ones, {mesh}; call "
                f"the loss in jax.sharding.auto_axes(..., out_sharding=jax.P()), or in jax.shard_map with across="
            )

    def full_precision(self, x: Any) -> AbstractContextManager[Any]:
        return _full_precision()

    def value_and_grad(self, fn: Function, argnums: int | Sequence[int] = 0, *, has_aux: bool = False) -> Function:
        transformed = jax.value_and_grad(fn, argnums=argnums, has_aux=has_aux)

        def value_and_gradient(*arguments: Any, **options: Any) -> tuple[Any, Any]:
            value, gradient = transformed(*arguments, **options)
            chosen = arguments[argnums] if isinstance(argnums, int) else tuple(arguments[n] for n in argnums)
            return value, jax.tree.map(_beside, gradient, chosen)

        return value_and_gradient

    def has_half_products(self, x: Any) -> bool:
        while isinstance(x, Tracer) and hasattr(x, "primal"):  # differentiated without a compiler
            x = x.primal
        return isinstance(x, Tracer) or any(device.platform != "cpu" for device in x.devices())

    def half_product(self, x: Any, y: Any) -> Any:
        return jnp.matmul(x, y, precision=jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32)

    def by_halves(self, of_halves: Function, plainly: Function, *arrays: Any, pulls: Pulls = None) -> Any:
        found = _halves_p.bind(*arrays, functions=_Static((of_halves, plainly, pulls or {})))
        return found[0] if pulls else tuple(found)

    def custom_vjp(self, forward: Function, backward: Function, *, exact: bool = True) -> Callable[..., Arrays]:
        if not exact:
            return self._kept(forward, lambda: _by_rule(_opened(forward), _opened(backward)))
        # JAX ignores `backward` and differentiates the checkpointed scan, in either mode, in the same memory.
        # Without jit an eager call would retrace its scans every time.
        return self._kept(forward, lambda: jax.jit(_opened(forward), static_argnums=0))

    def value_and_vjp(self, function: Callable[..., Arrays]) -> Callable[..., tuple[Any, Any]]:
        return self._kept(function, lambda: _with_gradient(function))

    def linear_map(self, linear: Any, x: Any) -> Any:
        return _mapped(linear, x)

    def communicator(self, group: Any) -> Any:
        names = group if isinstance(group, tuple) else (group,)
        return _MeshAxis(group) if names and all(isinstance(name, str) for name in names) else None

    def fill_diagonal(self, x: Any, row: int, column: int, count: int, value: Any) -> Any:
        # Not a scatter, which a compiler could not fuse with what is done to the matrix next.
        i, j = (jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (0, 1))
        inside = (i >= row) & (i < row + count)
        return jnp.where(inside & (i - row == j - column), jnp.reshape(jnp.asarray(value, x.dtype), (-1, 1)), x)

    def compiled(self, function: Function) -> Function:
        return jax.jit(function)

    def scan(self, step: Step, init: Arrays, xs: Arrays, block: Any) -> tuple[Arrays, Arrays]:
        length = xs[0].shape[0]
        count = length // block
        if length <= block:
            return step(init, xs, 0)
        init = _varying(init, xs)

        @partial(jax.checkpoint, prevent_cse=False)
        def body(carry: Arrays, item: Arrays) -> tuple[Arrays, Arrays]:
            return step(carry, item[1:], item[0])

        blocks = tuple(jnp.reshape(x[: count * block], (count, block, *x.shape[1:])) for x in xs)
        carry, stacked = jax.lax.scan(body, init, (jnp.arange(count) * block, *blocks))
        found = tuple(jnp.reshape(x, (-1, *x.shape[2:])) for x in stacked)
        if length % block:
            carry, rest = step(carry, tuple(x[count * block :] for x in xs), count * block)
            found = tuple(jnp.concatenate(pair) for pair in zip(found, rest, strict=True))
        return carry, found


adapter = JaxAdapter
