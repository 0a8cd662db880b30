"""Adapter of JAX, with JAX's own transformations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer, eval_context
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from .defaults import Arrays, Defaults, Function, Pulls, Step, without

if hasattr(jax, "enable_x64"):  # since JAX 0.8
    _enable_x64: Any = jax.enable_x64
else:
    from jax import experimental

    _enable_x64 = experimental.enable_x64  # type: ignore[attr-defined]


def _on_device_of(gradient: Any, argument: Any) -> Any:
    """Gradient on the argument's device; JAX creates that of an unused argument on the default device."""
    here = getattr(argument, "sharding", None)
    if isinstance(gradient, Tracer) or isinstance(argument, Tracer) or gradient.sharding == here:
        return gradient
    return jax.device_put(gradient, here)


def _full_precision() -> AbstractContextManager[Any]:
    """Full-precision matrix products, also on GPU and TPU, unless the user has configured another precision.

    Derivative rules enter it again, since JAX may call them after the loss has returned.
    """
    chosen = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009  (defined at run time, unknown to mypy)
    return jax.default_matmul_precision("highest") if chosen is None else nullcontext()


def _outside_trace(arrays: Arrays) -> AbstractContextManager[Any]:
    """Leave the current derivative trace if no array belongs to it.

    JAX's cache of compiled calls is keyed by the trace: without jit, each gradient would add one of its 4096 entries.
    """
    return nullcontext() if any(isinstance(x, Tracer) for x in arrays) else eval_context()


def _varying(init: Arrays, xs: Arrays) -> Arrays:
    """Initial carry, marked as varying over the mesh axes that the blocks vary over."""
    typeof = getattr(jax, "typeof", None)  # exists since varying axes do
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
    """Opaque static argument: JAX flattens and rebuilds tuples, and its caches would hold each copy."""

    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside


_STATICS = 4096
"""Size of the cache of statics; bounded, so that functions created in each call are released."""


def _opened(function: Function) -> Function:
    """`function` applied to the content of a `_Static`."""

    def of_the_inside(static: _Static, *arguments: Any, **options: Any) -> Any:
        return function(static.inside, *arguments, **options)

    return of_the_inside


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _mapped(linear: Any, x: Any) -> Any:
    """Linear map between the devices of a mesh; JAX differentiates its collectives."""
    return linear(x)


@_mapped.defjvp
def _mapped_tangent(linear: Any, primals: Arrays, tangents: Arrays) -> Arrays:
    return _mapped(linear, *primals), linear.derivative()(*tangents)


# Products of 16 bits are primitives, not `jax.custom_jvp` functions: JAX hoists loop-invariant code out of a scan by
# partial evaluation, which would drop the custom rule.


class _Versions(NamedTuple):
    """Two versions of a function: a plain one, and one with products of another dtype.

    `maps`: by position of an array, the derivative along it and its transpose, with these products. `plain_on`: the
    platforms on which the plain one runs; on the others, the other one.
    """

    special: Function
    plainly: Function
    maps: Mapping[int, tuple[Function, Function]]
    plain_on: tuple[str, ...]


def _halves(*arrays: Any, functions: _Static) -> list[Any]:
    """The version for the platform; only one is lowered."""
    special, plainly, _, plain_on = functions.inside
    plain: dict[str, Any] = dict.fromkeys(plain_on, plainly)
    with _full_precision():
        result: list[Any] = jax.tree.leaves(jax.lax.platform_dependent(*arrays, **plain, default=special))
    return result


def _product_along(product: Function, k: int) -> Function:
    """Derivative of a product along array k: the product with the tangent in its place."""
    return lambda x, *arrays: product(*arrays[:k], x, *arrays[k + 1 :])


def _derivative(function: Function, primals: Arrays, tangents: Arrays) -> tuple[list[Any], list[Any]]:
    """Values of a function, and its tangents; other arrays than those with a tangent are constants."""
    live = [k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero)]

    def of_live(*own: Any) -> list[Any]:
        given = dict(zip(live, own, strict=True))
        return jax.tree.leaves(function(*(given.get(k, x) for k, x in enumerate(primals))))

    values, slopes = jax.jvp(of_live, [primals[k] for k in live], [tangents[k] for k in live])
    return values, slopes


def _halves_types(*types: Any, functions: _Static) -> list[Any]:
    return list(jax.make_jaxpr(functions.inside.plainly)(*types).out_avals)


def _halves_tangent(primals: Arrays, tangents: Arrays, *, functions: _Static) -> tuple[list[Any], list[Any]]:
    """Tangents of the plain function; those and transposes use special products where `maps` has them."""
    _, plainly, maps, _ = functions.inside
    values = _halves_p.bind(*primals, functions=functions)
    live = [k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero) and (k in maps or not maps)]
    if not live:
        return values, [jnp.zeros_like(x) for x in values]

    if not maps:
        with _full_precision():
            return values, _derivative(plainly, primals, tangents)[1]
    parts = []
    for k in live:
        (x,) = _varying((tangents[k],), primals)
        parts.append(_linear_p.bind(x, *primals, maps=_Static(maps[k])))
    return values, [sum(parts[1:], parts[0])]


def _halves_batch(arrays: Arrays, axes: Sequence[int | None], *, functions: _Static) -> tuple[list[Any], list[int]]:
    special, plainly, maps, plain_on = functions.inside

    def mapped(k: int) -> tuple[Function, Function]:
        forth = jax.vmap(maps[k][0], (axes[k], *axes))
        back = jax.vmap(maps[k][1], (0, *axes), 0 if axes[k] is None else axes[k])
        return forth, back if axes[k] is not None else lambda *arrays: jnp.sum(back(*arrays), axis=0)

    first, second = (jax.vmap(function, tuple(axes)) for function in (special, plainly))
    versions = _Versions(first, second, {k: mapped(k) for k in maps}, plain_on)
    values = _halves_p.bind(*arrays, functions=_Static(versions))
    return values, [0] * len(values)


def _widened(function: Function) -> Function:
    """`function` computed in float64, which JAX has without `jax_enable_x64` in this context alone."""

    def wide(*arrays: Any) -> Any:
        dtype = arrays[0].dtype
        with _enable_x64(), _full_precision():
            result = function(*[jax.lax.convert_element_type(x, jnp.float64) for x in arrays])
            return jax.tree.map(lambda x: jax.lax.convert_element_type(x, dtype), result)

    return wide


def _linear(x: Any, *constants: Any, maps: _Static) -> Any:
    with _full_precision():
        return maps.inside[0](x, *constants)


def _linear_type(*types: Any, maps: _Static) -> Any:
    return jax.make_jaxpr(maps.inside[0])(*types).out_avals[0]


def _linear_tangent(primals: Arrays, tangents: Arrays, *, maps: _Static) -> tuple[Any, Any]:
    """Tangent: the map applied to the first tangent, plus JAX's derivative by the other arrays."""
    (x, *constants), (first, *others) = primals, tangents
    value, parts = _linear_p.bind(x, *constants, maps=maps), []
    if not isinstance(first, ad.Zero):
        parts.append(_linear_p.bind(first, *constants, maps=maps))
    if not all(isinstance(t, ad.Zero) for t in others):
        parts += _derivative(partial(_linear, x, maps=maps), tuple(constants), tuple(others))[1]
    return value, sum(parts[1:], parts[0])


def _linear_transpose(cotangent: Any, x: Any, *constants: Any, maps: _Static) -> list[Any]:
    forth, back = maps.inside
    nothing = [None] * len(constants)
    if isinstance(cotangent, ad.Zero):
        return [ad.Zero(x.aval), *nothing]
    return [_linear_p.bind(cotangent, *constants, maps=_Static((back, forth))), *nothing]


def _linear_batch(arrays: Arrays, axes: Sequence[int | None], *, maps: _Static) -> tuple[Any, int]:
    """The function and its transpose, mapped over the constants; the first array and the result are batched."""
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    x, axis = arrays[0], axes[0]
    x = jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
    mapped = _Static(tuple(jax.vmap(function, (0, *axes[1:])) for function in maps.inside))
    return _linear_p.bind(x, *arrays[1:], maps=mapped), 0


# A sweep is a primitive as well. In the gradient of a jitted loss, JAX evaluates scans partially even if all inputs are
# known, and moves what does not depend on the block before the loop: tiles of constants, which each block would read.
# The program is traced where the sweep is called, since precision and dtypes may be others where it is lowered.


def _sweep(*arrays: Any, program: Any) -> list[Any]:
    result: list[Any] = jaxpr_as_fun(program)(*arrays)
    return result


def _sweep_types(*types: Any, program: Any) -> list[Any]:
    del types
    return list(program.out_avals)


def _sweep_tangent(primals: Arrays, tangents: Arrays, *, program: Any) -> tuple[list[Any], list[Any]]:
    return _derivative(jaxpr_as_fun(program), primals, tangents)


def _sweep_batch(
    size: int, name: Any, _: Any, arrays: Arrays, axes: Sequence[int | None], *, program: Any
) -> tuple[list[Any], list[int | None]]:
    """The program, mapped over an axis whose name its collectives may use."""
    if all(axis is None for axis in axes):
        return _sweep_p.bind(*arrays, program=program), [None] * len(program.out_avals)
    values = jax.vmap(jaxpr_as_fun(program), tuple(axes), axis_size=size, axis_name=name)(*arrays)
    return values, [0] * len(values)


def _primitive(
    name: str, function: Function, types: Function, tangent: Any, batch: Any, *, several: bool, named: bool = False
) -> Any:
    """Primitive with these rules; `named`: its rule for batches takes the size and the name of the axis."""
    primitive: Any = Primitive(f"portable_nce_{name}")
    primitive.multiple_results = several
    primitive.def_impl(function)
    primitive.def_abstract_eval(types)
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=several))
    ad.primitive_jvps[primitive] = tangent
    (batching.axis_primitive_batchers if named else batching.primitive_batchers)[primitive] = batch
    return primitive


_halves_p = _primitive("halves", _halves, _halves_types, _halves_tangent, _halves_batch, several=True)
_linear_p = _primitive("linear", _linear, _linear_type, _linear_tangent, _linear_batch, several=False)
"""Function that is linear in its first array, with a separate transpose.

`jax.custom_derivatives.linear_call` supports neither `jax.vmap` nor derivatives by the other arrays.
"""
ad.primitive_transposes[_linear_p] = _linear_transpose
_sweep_p = _primitive("sweep", _sweep, _sweep_types, _sweep_tangent, _sweep_batch, several=True, named=True)


# A function whose gradient is no derivative of it, such as a limit that lets only some cotangents pass. Its tangent is
# that of the function, by a primitive whose transpose is the gradient's rule: `jax.custom_vjp` refuses forward mode.


class _Rule(NamedTuple):
    """`push(*tangents, *arrays, *outputs)` for `n_arrays` arrays, and `pull(*cotangents, *arrays, *outputs)`.

    The pullback may be nonlinear in the cotangents. Where these are differentiated, so is it, as any function.
    """

    push: Function
    pull: Function
    n_arrays: int


def _pushed(*arrays: Any, rule: _Static) -> list[Any]:
    return list(rule.inside.push(*map(jnp.asarray, arrays)))


def _pushed_types(*types: Any, rule: _Static) -> list[Any]:
    return list(jax.make_jaxpr(partial(_pushed, rule=rule))(*types).out_avals)


def _pushed_tangent(primals: Arrays, tangents: Arrays, *, rule: _Static) -> tuple[list[Any], list[Any]]:
    """Tangents: the rule applied to the first tangents, plus JAX's derivative by the other arrays."""
    count, parts = rule.inside.n_arrays, list[Any]()
    values, constants = _pushed_p.bind(*primals, rule=rule), primals[count:]
    if not all(isinstance(t, ad.Zero) for t in tangents[:count]):
        first = map(ad.instantiate_zeros, tangents[:count])
        parts.append(_pushed_p.bind(*first, *constants, rule=rule))
    if not all(isinstance(t, ad.Zero) for t in tangents[count:]):
        of_constants = partial(_pushed, *primals[:count], rule=rule)
        parts.append(_derivative(of_constants, constants, tangents[count:])[1])
    return values, [sum(column[1:], column[0]) for column in zip(*parts, strict=True)]


def _pushed_transpose(cotangents: Sequence[Any], *arrays: Any, rule: _Static) -> list[Any]:
    count = rule.inside.n_arrays
    constants = [*map(jnp.asarray, arrays[count:])]  # Python numbers are literals here
    pulled = rule.inside.pull(*map(ad.instantiate_zeros, cotangents), *constants)
    return [*pulled, *[None] * len(constants)]


def _pushed_batch(
    arrays: Arrays, axes: Sequence[int | None], *, rule: _Static
) -> tuple[list[Any], Sequence[int | None]]:
    push, pull, count = rule.inside
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    first = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(arrays[:count], axes[:count], strict=True)
    ]
    others = tuple(axes[count:])

    def pulled(*given: Any) -> Any:
        return jax.vmap(pull, (*[0] * (len(given) - len(others)), *others))(*given)

    mapped = _Static(_Rule(jax.vmap(push, (*[0] * count, *others)), pulled, count))
    values = _pushed_p.bind(*first, *arrays[count:], rule=mapped)
    return values, [0] * len(values)


_pushed_p = _primitive("pushed", _pushed, _pushed_types, _pushed_tangent, _pushed_batch, several=True)
ad.primitive_transposes[_pushed_p] = _pushed_transpose


def _by_rule(forward: Callable[..., Arrays], backward: Callable[..., Sequence[Any]]) -> Function:
    """Function with this gradient in reverse mode, and its own derivative in forward mode."""

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def bound(static: Any, *arrays: Any) -> Arrays:
        return forward(static, *map(jnp.asarray, arrays))  # jax.grad of a Python number passes literals

    @lru_cache(_STATICS)
    def rule_of(static: Any, count: int) -> _Static:
        def push(*given: Any) -> Arrays:
            tangents, arrays = given[:count], given[count : 2 * count]
            slopes: Arrays = jax.jvp(partial(forward, static), arrays, tangents)[1]
            return slopes

        def pull(*given: Any) -> list[Any]:
            n_outputs = (len(given) - count) // 2
            cotangents, arrays, outputs = given[:n_outputs], given[n_outputs:-n_outputs], given[-n_outputs:]
            with _full_precision():
                result = [*backward(static, arrays, outputs, cotangents)]
            return [*result, *map(jnp.zeros_like, arrays[len(result) :])]

        return _Static(_Rule(push, pull, count))

    def tangent(static: Any, arrays: Arrays, tangents: Arrays) -> tuple[Arrays, Arrays]:
        arrays = tuple(map(jnp.asarray, arrays))  # jax.grad of a Python number passes literals here, not arrays
        outputs = bound(static, *arrays)
        return outputs, tuple(_pushed_p.bind(*tangents, *arrays, *outputs, rule=rule_of(static, len(arrays))))

    bound.defjvp(tangent)
    return bound


# XLA on CPUs fuses a step into each sum and gradient that reads it: a transpose, which takes 0.4 ms alone, 8 ms in each
# of them; and it ignores `jax.lax.optimization_barrier`. It fuses nothing into a branch that it cannot predict.


def _as_they_are(*arrays: Any) -> list[Any]:
    return list(arrays)


def _behind_a_branch(*arrays: Any) -> list[Any]:
    first = jnp.ravel(arrays[0])[:1].astype(jnp.float32)
    never = jnp.all((first < 0) & (first > 0))
    result: list[Any] = jax.lax.cond(never, lambda *x: [jnp.zeros_like(y) for y in x], _as_they_are, *arrays)
    return result


def _once_tangent(primals: Arrays, tangents: Arrays) -> tuple[list[Any], Sequence[Any]]:
    return _once_p.bind(*primals), tangents


def _once_batch(arrays: Arrays, axes: Sequence[int | None]) -> tuple[list[Any], Sequence[int | None]]:
    return _once_p.bind(*arrays), axes


_once_p = _primitive("once", _as_they_are, _as_they_are, _once_tangent, _once_batch, several=True)
mlir.register_lowering(_once_p, mlir.lower_fun(_behind_a_branch, multiple_results=True), platform="cpu")


@lru_cache(_STATICS)
def _entries_of_rows(n_columns: int) -> _Static:
    """The entries of rows in a column each, and the matrix of such entries: unlike a scatter, part of the next step."""

    def take(x: Any, columns: Any) -> Any:
        return jnp.take_along_axis(x, columns, axis=1)

    def put(entries: Any, columns: Any) -> Any:
        number = jax.lax.broadcasted_iota(columns.dtype, (columns.shape[0], n_columns), 1)
        return jnp.where(number == columns, entries, 0)

    return _Static((take, put))


@jax.custom_jvp
def _rounded(x: Any) -> Any:
    """The array itself, by a choice that no compiler leaves out: it removes barriers, and copies of bits."""
    return jnp.where(jnp.isnan(x), -x, x)  # a NaN of our own would raise under `jax_debug_nans` without jit


@_rounded.defjvp
def _rounded_tangent(primals: Arrays, tangents: Arrays) -> tuple[Any, Any]:
    return _rounded(*primals), tangents[0]


@jax.custom_jvp
def _sigmoid(x: Any) -> Any:
    return _sigmoid_of(x)[0]


@_sigmoid.defjvp
def _sigmoid_tangent(primals: Arrays, tangents: Arrays) -> tuple[Any, Any]:
    value, exponential = _sigmoid_of(*primals)
    return value, tangents[0] * (value * (value * exponential))


def _sigmoid_of(x: Any) -> tuple[Any, Any]:
    """The sigmoid, and a finite exponential e of -x: its derivative is ``s² e``, where JAX's ``s (1 - s)`` cancels."""
    facts: Any = jnp.finfo
    most = math.log(facts(x.dtype).max) - 1e-3  # a sigmoid below has no normal number
    exponential = jnp.exp(jnp.minimum(-x, most))
    return jnp.where(x < -most, 0.0, 1.0 / (1.0 + exponential)), exponential


def _turned(x: Any) -> Any:
    return _once_p.bind(x.T)[0]


_TURNED = _Static((_turned, _turned))


@dataclass(frozen=True)
class _MeshAxis:
    """One or several mesh axes within `jax.shard_map`; all devices have equal numbers of rows."""

    name: str | tuple[str, ...]
    library = "jax"

    @property
    def size(self) -> int:
        add_up: Any = jax.lax.psum
        try:
            return int(add_up(1, self.name))  # static under tracing
        except NameError as error:
            raise ValueError(f"across: expected a call inside of jax.shard_map over the axis {self.name!r}") from error

    @property
    def rank(self) -> Any:
        return jax.lax.axis_index(self.name)

    def all_gather(self, x: Any, counts: Sequence[int]) -> Any:
        return jax.lax.all_gather(x, self.name, tiled=True)

    def replicate(self, x: Any) -> Any:
        # A psum in place of a gather, since JAX considers only its result equal on all devices.
        whole = jnp.zeros((self.size * x.shape[0], *x.shape[1:]), dtype=x.dtype)
        return self.all_reduce(jax.lax.dynamic_update_slice_in_dim(whole, x, self.rank * x.shape[0], 0))

    def all_reduce(self, x: Any, *, largest: bool = False) -> Any:
        reduce: Any = jax.lax.pmax if largest else jax.lax.psum
        return reduce(x, self.name)


def _with_gradient(function: Callable[..., Arrays]) -> Any:
    """Compiled function whose forward pass also computes the gradient."""
    run = jax.jit(_opened(function), static_argnums=0, static_argnames="need_grad")

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def bound(static: Any, *arrays: Any) -> tuple[Any, Any]:
        value, constant = run(static, *arrays, need_grad=False)
        return value, constant

    def jvp(static: Any, arrays: Arrays, tangents: Arrays) -> tuple[Any, Any]:
        need_grad = tuple(not isinstance(t, SymbolicZero) for t in tangents)

        def swept(*arrays: Any) -> list[Any]:
            value, constant, *gradients = run(static, *arrays, need_grad=any(need_grad) and need_grad)
            return [value, constant, *(g for g, own in zip(gradients, need_grad, strict=False) if own)]

        with _full_precision():
            with _outside_trace(arrays):
                if any(isinstance(x, Tracer) for x in arrays):
                    value, constant, *gradients = _sweep_p.bind(*arrays, program=jax.make_jaxpr(swept)(*arrays))
                else:
                    value, constant, *gradients = swept(*arrays)
            needed = [t for t, own in zip(tangents, need_grad, strict=True) if own]
            if value.shape == (1,):
                products = [jnp.vdot(g, t) for g, t in zip(gradients, needed, strict=False)]
            else:  # of rows
                products = [
                    jnp.sum(g * t, axis=tuple(range(1, g.ndim))) for g, t in zip(gradients, needed, strict=False)
                ]
        slope = jnp.reshape(sum(products), value.shape) if products else jnp.zeros_like(value)
        constant = jax.lax.stop_gradient(constant)
        return (value, constant), (slope, jnp.zeros_like(constant))

    bound.defjvp(jvp, symbolic_zeros=True)
    return bound


class JaxAdapter(Defaults):
    """Adapter for JAX arrays and tracers."""

    name = "jax"
    mode = "traced"
    version = jax.__version__
    half_precision = ("float16", "bfloat16")

    def __init__(self, namespace_of: Callable[[Any], Any]) -> None:
        super().__init__(namespace_of)
        self._bound: dict[Function, Function] = {}  # compiled functions
        self._static = lru_cache(_STATICS)(_Static)

    def _cached(self, function: Function, compiled: Callable[[], Function]) -> Function:
        """Result of `compiled`, cached by function.

        Equal statics are replaced by the first one, so that JAX's caches do not grow with each call.
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
                f"the loss in jax.sharding.auto_axes(..., out_sharding=jax.P()), in jit within jax.set_mesh, or in "
                f"jax.shard_map with across="
            )

    def full_precision(self, x: Any, *, high: bool = False) -> AbstractContextManager[Any]:
        return jax.default_matmul_precision("high") if high else _full_precision()

    def value_and_grad(self, fn: Function, argnums: int | Sequence[int] = 0, *, has_aux: bool = False) -> Function:
        transformed = jax.value_and_grad(fn, argnums=argnums, has_aux=has_aux)

        def value_and_gradient(*arguments: Any, **options: Any) -> tuple[Any, Any]:
            value, gradient = transformed(*arguments, **options)
            chosen = arguments[argnums] if isinstance(argnums, int) else tuple(arguments[n] for n in argnums)
            return value, jax.tree.map(_on_device_of, gradient, chosen)

        return value_and_gradient

    def has_half_products(self, x: Any) -> bool:
        while isinstance(x, Tracer) and hasattr(x, "primal"):  # differentiated without jit
            x = x.primal
        return isinstance(x, Tracer) or any(device.platform != "cpu" for device in x.devices())

    def half_product(self, x: Any, y: Any) -> Any:
        return jnp.matmul(x, y, precision=jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32)

    def by_halves(self, of_halves: Function, plainly: Function, *arrays: Any, pulls: Pulls = None) -> Any:
        maps = {k: (_product_along(plainly, k), pull) for k, pull in (pulls or {}).items()}
        result = _halves_p.bind(*arrays, functions=_Static(_Versions(of_halves, plainly, maps, ("cpu",))))
        return result[0] if pulls else tuple(result)

    def is_widened(self, x: Any) -> bool:
        return bool(x.dtype == jnp.float32)

    def in_wide(self, function: Function, *arrays: Any, maps: Any = None) -> Any:
        if not self.is_widened(arrays[0]):
            return function(*arrays)
        both = {k: (_widened(forth), _widened(back)) for k, (forth, back) in (maps or {}).items()}
        result = _halves_p.bind(*arrays, functions=_Static(_Versions(_widened(function), function, both, ("tpu",))))
        return result[0] if maps else tuple(result)

    def custom_vjp(
        self, forward: Function, backward: Function, *, exact: bool = True, kept: int = 0
    ) -> Callable[..., Arrays]:
        if not exact:
            return self._cached(forward, lambda: _by_rule(_opened(without(kept, forward)), _opened(backward)))
        # JAX ignores `backward` and differentiates the checkpointed scan, in either mode, in the same memory.
        # Without jit an eager call would retrace its scans every time.
        return self._cached(forward, lambda: jax.jit(_opened(without(kept, forward)), static_argnums=0))

    def value_and_vjp(self, function: Callable[..., Arrays]) -> Callable[..., tuple[Any, Any]]:
        return self._cached(function, lambda: _with_gradient(function))

    def linear_map(self, linear: Any, x: Any) -> Any:
        return _mapped(linear, x)

    def communicator(self, group: Any) -> Any:
        names = group if isinstance(group, tuple) else (group,)
        return _MeshAxis(group) if names and all(isinstance(name, str) for name in names) else None

    def fill_diagonal(self, x: Any, row: int, column: int, count: int, value: Any) -> Any:
        # Not a scatter, which XLA cannot fuse with the next operations.
        i, j = (jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (0, 1))
        inside = (i >= row) & (i < row + count)
        return jnp.where(inside & (i - row == j - column), jnp.reshape(jnp.asarray(value, x.dtype), (-1, 1)), x)

    def softplus_and_sigmoid(
        self, x: Any, *, bounded: bool, need_value: bool = True, need_slope: bool = True
    ) -> tuple[Any, Any] | None:
        return None if need_value else (None, _sigmoid(x))  # both share an exponential

    def computed_once(self, *arrays: Any) -> Arrays:
        return tuple(_once_p.bind(*arrays))

    def rounded(self, x: Any) -> Any:
        return _rounded(x) if isinstance(x, Tracer) else x

    def turned(self, x: Any) -> Any:
        return _linear_p.bind(x, maps=_TURNED) if jnp.issubdtype(x.dtype, jnp.floating) else _turned(x)

    def entries_at(self, x: Any, columns: Any) -> Any:
        if columns.shape[1] != 1 or not jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.take_along_axis(x, columns, axis=1)
        return _linear_p.bind(x, columns, maps=_entries_of_rows(x.shape[1]))

    def add_rows(self, x: Any, numbers: Any, rows: Any) -> Any:
        return x.at[numbers].add(rows)

    def add_columns(self, x: Any, columns: Any, values: Any) -> Any:
        return x.at[jnp.arange(x.shape[0])[:, None], columns].add(values)

    def order_of_rows(self, x: Any) -> Any:
        if x.dtype != jnp.float32:
            return jnp.argsort(x, axis=1)
        # Numbers as integers in the same order, and the columns behind them: XLA sorts one array of integers in an
        # eighth of the time of floats with their places.
        with _enable_x64():
            bits = jax.lax.bitcast_convert_type(x + 0.0, jnp.int32)  # -0.0 + 0.0 is 0.0
            bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
            half = jnp.full_like(bits, 32).astype(jnp.int64)  # before JAX 0.8, a number here would become an int32
            keys = (bits.astype(jnp.int64) << half) | jax.lax.broadcasted_iota(jnp.int64, x.shape, 1)
            return jax.lax.sort(keys, dimension=1, is_stable=False).astype(jnp.int32)  # the lower half

    def branch(self, place: Any, functions: Sequence[Function], *arrays: Any) -> Any:
        def alike(function: Function) -> Function:
            def of_arrays(*arrays: Any) -> Any:
                leaves, kind = jax.tree.flatten(function(*arrays))
                return jax.tree.unflatten(kind, _varying(tuple(leaves), arrays))

            return of_arrays

        return jax.lax.switch(place, [*map(alike, functions)], *arrays)

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
        result = tuple(jnp.reshape(x, (-1, *x.shape[2:])) for x in stacked)
        if length % block:
            carry, rest = step(carry, tuple(x[count * block :] for x in xs), count * block)
            result = tuple(jnp.concatenate(pair) for pair in zip(result, rest, strict=True))
        return carry, result


adapter = JaxAdapter
