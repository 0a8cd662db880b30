"""CLIP on a JAX mesh: in `shard_map` with a named axis, and with sharded arrays under `jit`.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/ranks_jax.py

Both give the gradients of one device; the script prints the errors.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding

import portable_nce as pnce


def loss(weights: Any, image: Any, text: Any, across: Any = None) -> Any:
    scale = jnp.exp(weights["log_scale"])
    return pnce.clip(image @ weights["image"], text @ weights["text"], logit_scale=scale, across=across)


def in_a_map(mesh: Any, weights: Any, image: Any, text: Any) -> Any:
    def local(weights: Any, image: Any, text: Any) -> Any:  # sees the rows of one device
        return loss(weights, image, text, across=pnce.across("data"))

    rows = jax.P("data")
    mapped = jax.shard_map(local, mesh=mesh, in_specs=(jax.P(), rows, rows), out_specs=jax.P())
    return jax.jit(jax.grad(mapped))(weights, image, text)


def with_sharded_arrays(mesh: Any, weights: Any, image: Any, text: Any) -> Any:
    rows = NamedSharding(mesh, jax.P("data"))
    image, text = jax.device_put(image, rows), jax.device_put(text, rows)
    return jax.jit(jax.grad(loss))(weights, image, text)  # the compiler inserts the collectives


def main() -> None:
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"image": (16, 8), "text": (12, 8)}
    weights = {name: jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=False)}
    weights["log_scale"] = jnp.log(jnp.asarray(10.0))
    image, text = (jax.random.normal(key, (4 * mesh.size, n)) for key, n in zip(keys[2:], (16, 12), strict=True))
    alone = jax.grad(loss)(weights, image, text)
    for way in (in_a_map, with_sharded_arrays):
        found = way(mesh, weights, image, text)
        error = max(float(jnp.max(jnp.abs(found[name] - alone[name]))) for name in alone)
        print(f"{way.__name__}: off by at most {error:.0e}")
        assert error < 1e-6


if __name__ == "__main__":
    main()
