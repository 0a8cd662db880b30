"""Gradient caching for JAX: gradients, random numbers, memory and transformations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.modules.jax import encode_in_chunks

pytestmark = pytest.mark.usefixtures("jax_x64")

WIDTH = 4
P: Any = jax.P


def parameters(width: int = 7, hidden: int = 16) -> dict[str, jax.Array]:
    draw = np.random.default_rng(3)
    shapes = {"first": (width, hidden), "second": (hidden, WIDTH)}
    return {name: jnp.asarray(draw.normal(size=shape) / shape[0] ** 0.5) for name, shape in shapes.items()}


def rows(count: int, width: int = 7, seed: int = 0) -> tuple[jax.Array, jax.Array]:
    x, y = np.random.default_rng(seed).normal(size=(2, count, width))
    return jnp.asarray(x), jnp.asarray(y)


def tower(weights: Any, x: Any, key: Any = None) -> Any:
    hidden = jnp.tanh(x @ weights["first"])
    if key is not None:
        hidden = jnp.where(jax.random.bernoulli(key, 0.7, hidden.shape), hidden / 0.7, 0.0)
    return hidden @ weights["second"]


def by_hand(encoder: Callable[..., Any], x: Any, *, chunk_size: int, key: Any = None) -> Any:
    """Call an encoder chunk by chunk, with split keys."""
    parts = [x[k : k + chunk_size] for k in range(0, len(x), chunk_size)]
    keys = [] if key is None else [jax.random.split(key, len(parts))]
    return jnp.concat([encoder(*part) for part in zip(parts, *keys, strict=True)])


def assert_close(found: Any, wanted: Any, tolerance: float = 1e-12) -> None:
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(wanted))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def step(encode: Callable[..., Any], chunk_size: int) -> Callable[..., Any]:
    """Give the loss of two towers with dropout and a learned scale."""

    def loss(weights: Any, scale: Any, x: Any, y: Any, key: Any) -> Any:
        first, second = jax.random.split(key)
        image = encode(lambda *part: tower(weights[0], *part), x, chunk_size=chunk_size, key=first)
        text = encode(lambda *part: tower(weights[1], *part), y, chunk_size=chunk_size, key=second)
        return pnce.clip(image, text, logit_scale=jnp.exp(scale))

    return loss


@pytest.mark.parametrize(("chunk_size", "jit"), [(1, True), (4, True), (4, False), (11, True), (100, True)])
def test_gradients_are_those_of_an_encoder_in_chunks(chunk_size: int, *, jit: bool) -> None:
    """With dropout and a partial last chunk, by parameters, scale and inputs."""
    weights, (x, y) = (parameters(), jax.tree.map(lambda w: w + 0.1, parameters())), rows(11)
    arguments = weights, jnp.asarray(1.5), x, y, jax.random.key(5)
    function = jax.value_and_grad(step(encode_in_chunks, chunk_size), argnums=(0, 1, 2, 3))
    wanted = jax.jit(jax.value_and_grad(step(by_hand, chunk_size), argnums=(0, 1, 2, 3)))(*arguments)
    assert_close((jax.jit(function) if jit else function)(*arguments), wanted)
    assert float(wanted[1][1]) != 0.0


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int32", "bool"])
def test_numbers_of_chunks_keep_their_digits(dtype: str) -> None:
    number = jnp.asarray(100.0 / 7.0).astype(dtype)
    found = encode_in_chunks(lambda x: (x, number), jnp.zeros((7001, 1)), chunk_size=3500)[1]
    assert found.dtype == (number.dtype if "float" in dtype else jnp.result_type(float))
    np.testing.assert_allclose(np.asarray(found, dtype=float), np.asarray(number, dtype=float), rtol=1e-7)


@pytest.mark.parametrize("raw", [False, True])
def test_chunks_have_their_own_random_numbers(*, raw: bool) -> None:
    key = jax.random.PRNGKey(1) if raw else jax.random.key(1)

    def noise(part: Any, key: Any) -> Any:
        return part + jax.random.normal(key, part.shape)

    found = encode_in_chunks(noise, jnp.zeros((7, 3)), chunk_size=3, key=key)
    assert_close(found, by_hand(noise, jnp.zeros((7, 3)), chunk_size=3, key=key))
    assert len(np.unique(np.asarray(found))) == found.size
    assert_close(found, encode_in_chunks(noise, jnp.zeros((7, 3)), chunk_size=3, key=key))


@pytest.mark.parametrize("count", [64, 72])
def test_an_encoder_holds_one_chunk(count: int) -> None:
    """Memory by the compiler's analysis, with chunks of 8 and 16 rows of 64 and 72."""
    weights, (x, y) = parameters(8, hidden=4096), rows(count, width=8)
    activations = count * 4096 * 8

    def needed(chunk_size: int | None) -> int:
        def loss(weights: Any, x: Any, y: Any) -> Any:
            def encode(part: Any) -> Any:
                # Deep enough to exceed the memory of one layer's gradient.
                hidden = part @ weights["first"]
                for _ in range(4):
                    hidden = jnp.sin(hidden) * jnp.cos(hidden)
                return hidden @ weights["second"]

            if chunk_size is None:
                return pnce.info_nce(encode(x), encode(y))
            return pnce.info_nce(*(encode_in_chunks(encode, z, chunk_size=chunk_size) for z in (x, y)))

        analysis: Any = jax.jit(jax.grad(loss)).lower(weights, x, y).compile().memory_analysis()
        return int(analysis.temp_size_in_bytes)

    whole = needed(None)
    assert whole > 4 * activations
    assert needed(8) < whole / 4
    assert needed(16) < whole / 2
    assert needed(count) <= whole  # one of two encoders is held at a time, with and without chunks


def test_transformations() -> None:
    """vmap, forward mode, and reverse mode over reverse mode."""
    weights, (x, y) = parameters(), rows(7)

    def loss(weights: Any, x: Any, encode: Any) -> Any:
        return pnce.info_nce(encode(lambda part: tower(weights, part), x, chunk_size=3), tower(weights, y))

    for transform, arguments in (
        (lambda function: jax.vmap(jax.grad(function)), (jnp.stack([x, y, x + y]),)),
        (lambda function: lambda x, y: jax.jvp(function, (x,), (y,)), (x, y)),
        (lambda function: jax.grad(lambda x, y: (jax.grad(function)(x) * y).sum()), (x, y)),
    ):
        found, wanted = (
            jax.jit(transform(partial(loss, weights, encode=encode)))(*arguments)
            for encode in (encode_in_chunks, by_hand)
        )
        assert_close(found, wanted)


def test_chunks_on_one_device_of_a_mesh() -> None:
    weights, (x, y) = parameters(), rows(7)
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
    ranks = pnce.across("data")

    def local(weights: Any, x: Any, y: Any, **options: Any) -> Any:
        image = encode_in_chunks(lambda part: tower(weights, part), x, chunk_size=3)
        return pnce.info_nce(image, tower(weights, y), **options)

    specs = P(), P("data"), P("data")
    mapped: Any = jax.shard_map(lambda *arrays: local(*arrays, across=ranks), mesh=mesh, in_specs=specs, out_specs=P())
    assert_close(jax.jit(jax.grad(mapped))(weights, x, y), jax.jit(jax.grad(local))(weights, x, y))


def test_arguments_and_outputs_of_any_structure() -> None:
    x, y = rows(7)
    weights = parameters()

    def model(pair: dict[str, Any], other: tuple[Any, ...]) -> dict[str, Any]:
        first, second = tower(weights, pair["x"]), tower(weights, other[0])
        return {"both": (first, [second]), "norm": jnp.sum(first**2, axis=1), "mean": jnp.mean(first)}

    assert_close(encode_in_chunks(model, {"x": x}, (y,), chunk_size=3), model({"x": x}, (y,)))
    half = encode_in_chunks(lambda part: part.astype(jnp.bfloat16), x, chunk_size=3)
    assert half.dtype == jnp.bfloat16
    assert encode_in_chunks(jnp.mean, x.astype(jnp.float32), chunk_size=3).dtype == jnp.float32


IN_TWOS: Any = partial(encode_in_chunks, chunk_size=2)
REFUSED: dict[str, Callable[[], Any]] = {
    "chunk_size: expected at least 1, got 0": lambda: encode_in_chunks(jnp.tanh, rows(3)[0], chunk_size=0),
    r"inputs: expected arrays with as many rows each, one at least, got \[\[3\], \[4\]\]": lambda: IN_TWOS(
        jnp.add, rows(3)[0], rows(4)[0]
    ),
    r"inputs: expected arrays .* got \[\[0\]\]": lambda: IN_TWOS(jnp.tanh, rows(3)[0][:0]),
    r"inputs: expected arrays .* got \[\]": lambda: IN_TWOS(jnp.tanh),
    r"inputs: expected arrays .* got \[\[\], \[3\]\]": lambda: IN_TWOS(jnp.add, rows(3)[0], 2.0),
    r"encoder: expected an output with the 2 rows of its chunk, or a number, got shape \(7,\)": lambda: IN_TWOS(
        lambda part: part[0], rows(4)[0]
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_encode_in_chunks_refuses_arguments_that_do_not_fit(message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{message}"):
        REFUSED[message]()


def test_a_size_is_an_integer() -> None:
    with pytest.raises(TypeError, match=r"^chunk_size: expected an integer, got float"):
        encode_in_chunks(jnp.tanh, rows(3)[0], chunk_size=2.0)  # type: ignore[arg-type]
