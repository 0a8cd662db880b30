"""Losses on a mesh of four host devices, in a separate process: JAX fixes the number of devices at start."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import portable_nce as pnce
from portable_nce.modules.jax import encode_in_chunks

SIZE, SAMPLES, FEATURES = 4, 12, 4

P: Any = PartitionSpec
pmean: Any = jax.lax.pmean

RNG = np.random.default_rng(0)
A, B, V = (RNG.normal(size=(SAMPLES, FEATURES)) for _ in range(3))
LABELS, WEIGHTS = np.arange(SAMPLES) * 5 % 4, RNG.uniform(0.25, 2.0, size=SAMPLES)
SLOTS = RNG.normal(size=(6, FEATURES))
TAU = np.asarray(0.7)


def coupled(row: Any) -> Any:
    """Return losses of rows that depend on the first row."""
    return row.log_odds * (row.log_odds - row.log_odds[0]) ** 2


def memory() -> pnce.Queue:
    """Make a partly filled queue."""
    return pnce.Queue(jnp.asarray(SLOTS), jnp.arange(len(SLOTS)) > 1)


def without_blocks(options: dict[str, Any]) -> dict[str, Any]:
    """Drop the option `block_size`."""
    return {name: value for name, value in options.items() if name != "block_size"}


LOSSES: dict[str, Any] = {
    "info_nce": lambda a, b, _, t, **k: pnce.info_nce(a, b, temperature=t, **k),
    "info_nce dot": lambda a, b, _, t, **k: pnce.info_nce(a, b, temperature=t, similarity="dot", **k),
    "info_nce symmetric, squared distances": lambda a, b, _, t, **k: pnce.info_nce(
        a, b, temperature=t, symmetric=True, similarity="neg_sq_euclidean", **k
    ),
    "info_nce negative_keys": lambda a, b, _, t, **k: pnce.info_nce(a, a * b, b, temperature=t, **k),
    "clip": lambda a, b, _, t, **k: pnce.clip(a, b, logit_scale=1 / t, **k),
    "siglip": lambda a, b, _, t, **k: pnce.siglip(a, b, logit_scale=1 / t, logit_bias=-t, **k),
    "nt_xent": lambda a, b, _, t, **k: pnce.nt_xent(a, b, temperature=t, **k),
    "dclw": lambda a, b, _, t, **k: pnce.dclw(a, b, temperature=t, **k),
    "nt_xent keys": lambda a, b, _, t, **k: pnce.nt_xent(a, b, keys=b / 2, temperature=t, **k),
    "relic queue": lambda a, b, _, t, **k: pnce.relic(a, b, keys=memory(), temperature=t, **k),
    "joint_info_nce": lambda a, b, _, t, **k: pnce.joint_info_nce(a, b, temperature=t, **k),
    "relic": lambda a, b, _, t, **k: pnce.relic(a, b, temperature=t, **k),
    "supcon": lambda a, _, labels, t, **k: pnce.supcon(a, labels, temperature=t, base_temperature=0.3, **k),
    "moco": lambda a, b, _, t, **k: pnce.moco(a, b, jnp.asarray(SLOTS), temperature=t, **k),
    "nnclr": lambda a, b, _, t, **k: pnce.nnclr(a, b, jnp.asarray(SLOTS), temperature=t, symmetric=True, **k),
    "triplet": lambda a, _, labels, t, **k: pnce.triplet_from_labels(a, labels, temperature=t, **k),
    "n_tuple": lambda a, b, _, t, **k: pnce.n_tuple(a, b, temperature=t, l2=t, **k),
    "cosent": lambda a, b, labels, t, **k: pnce.cosent(a, b, labels, scale=t, **without_blocks(k)),
    "linear_softmax": lambda a, b, labels, t, **k: pnce.density.linear_softmax(a / t, b, labels, **k),
    "coupled": lambda a, b, _, t, **k: pnce.contrast(a, b, objective=coupled, temperature=t, **k),
}


def at_half(name: str) -> Any:
    """Return a loss as a function of two embeddings, at temperature 0.5."""
    return lambda a, b, **options: LOSSES[name](a, b, None, 0.5, **options)


def distance(found: Any, wanted: Any) -> float:
    """Return the largest difference of value and gradients."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(float(jnp.max(jnp.abs(x - y))) for x, y in pairs)


def check_loss(name: str, mesh: Any, *, vma: bool, block_size: Any) -> float:
    """Compare value and gradients, differentiated outside and inside the map, with those of one device."""
    loss, ranks = LOSSES[name], pnce.across("data")
    wanted = jax.value_and_grad(
        lambda a, b, t: loss(a, b, jnp.asarray(LABELS), t, weights=jnp.asarray(WEIGHTS), block_size=block_size),
        (0, 1, 2),
    )(A, B, TAU)

    def local(a: Any, b: Any, labels: Any, weights: Any, t: Any) -> Any:
        return loss(a, b, labels, t, weights=weights, across=ranks, block_size=block_size)

    def inside(a: Any, b: Any, labels: Any, weights: Any, t: Any) -> Any:
        value, slopes = jax.value_and_grad(lambda a, b, t: local(a, b, labels, weights, t), (0, 1, 2))(a, b, t)
        if not vma:  # without checks JAX counts the loss once for each device
            slopes = (slopes[0] / SIZE, slopes[1] / SIZE, pmean(slopes[2], "data"))
        return value, slopes

    rows = P("data")
    where: dict[str, Any] = {"mesh": mesh, "in_specs": (rows, rows, rows, rows, P()), "check_vma": vma}
    mapped = jax.shard_map(local, out_specs=P(), **where)
    outside = jax.jit(jax.value_and_grad(lambda a, b, t: mapped(a, b, LABELS, WEIGHTS, t), (0, 1, 2)))(A, B, TAU)
    within = jax.jit(jax.shard_map(inside, out_specs=(P(), (rows, rows, P())), **where))(A, B, LABELS, WEIGHTS, TAU)
    return max(distance(outside, wanted), distance(within, wanted))


def over(mesh: Any, loss: Any) -> Any:
    """Map a loss of two arrays over the devices' rows."""
    ranks, rows = pnce.across("data"), P("data")
    return jax.shard_map(lambda a, b: loss(a, b, across=ranks), mesh=mesh, in_specs=(rows, rows), out_specs=P())


def check_second_order(mesh: Any) -> dict[str, float]:
    """Compare products of the Hessian with a vector."""
    found, b = {}, jnp.asarray(B)
    for name in ("info_nce", "clip", "siglip", "nt_xent"):
        slope, together = jax.grad(at_half(name)), jax.grad(over(mesh, at_half(name)))
        wanted = jax.jvp(lambda a, f=slope: f(a, b), (A,), (V,))[1]
        forward = jax.jit(lambda a, v, f=together: jax.jvp(lambda a: f(a, b), (a,), (v,))[1])(A, V)
        reverse = jax.jit(jax.grad(lambda a, f=together: (f(a, b) * V).sum()))(A)
        found[name] = max(distance(forward, wanted), distance(reverse, wanted))
    return found


def check_top_k(mesh: Any) -> dict[str, float]:
    """Compare the nearest keys among all devices, with ties, with those of one device."""
    query, key = jnp.round(2 * A), jnp.round(2 * B)
    known, rows, found = jnp.asarray(LABELS * 3), P("data"), {}
    options: dict[str, Any] = {"k": 5, "similarity": "dot"}
    for vma in (True, False):

        def local(x: Any, y: Any, known: Any) -> Any:
            return pnce.diagnostics.top_k(x, y, exclude=known, across=pnce.across("data"), **options)

        mapped = jax.shard_map(local, mesh=mesh, in_specs=(rows, rows, rows), out_specs=rows, check_vma=vma)
        wanted = pnce.diagnostics.top_k(query, key, exclude=known, **options)
        found["checked" if vma else "unchecked"] = distance(
            *map(jax.device_get, (jax.jit(mapped)(query, key, known), wanted))
        )
    return found


def check_statistics(mesh: Any) -> dict[str, float]:
    """Compare the statistics of each device's rows over all devices' classes, and their gradients."""
    rows, found, labels = P("data"), {}, jnp.asarray(LABELS)

    def statistics(a: Any, b: Any, labels: Any, **options: Any) -> Any:
        return pnce.density.linear_softmax(a, b, labels, return_statistics=True, **options)[1]

    def total(a: Any, b: Any, made: Any = statistics) -> Any:
        row = made(a, b, labels)
        return (row.log_sum_exp * WEIGHTS - jnp.tanh(row.target_score)).sum(), row

    for vma in (True, False):
        local = partial(statistics, across=pnce.across("data"))
        mapped = jax.shard_map(local, mesh=mesh, in_specs=(rows, rows, rows), out_specs=rows, check_vma=vma)
        slopes = jax.jit(jax.grad(partial(total, made=mapped), (0, 1), has_aux=True))
        found["checked" if vma else "unchecked"] = distance(
            slopes(A, B), jax.grad(total, (0, 1), has_aux=True)(*map(jnp.asarray, (A, B)))
        )
    return found


def check_half(mesh: Any) -> dict[str, Any]:
    """Compare bfloat16 with one device, and check the dtype that is sent."""
    a, b = (jnp.asarray(x, dtype=jnp.bfloat16) for x in (A, B))
    loss = partial(pnce.info_nce, temperature=0.1)
    wanted = jax.grad(loss, (0, 1))(a, b)
    slope = jax.jit(jax.grad(over(mesh, loss), (0, 1)))
    sent = [line for line in slope.lower(a, b).as_text().splitlines() if "all_gather" in line]
    of_half = all("xbf16>)" in line for line in sent) and sent != []
    return {"error": distance(slope(a, b), wanted), "in bfloat16": of_half}


def check_collectives(mesh: Any) -> dict[str, Any]:
    """Count the collectives of value and gradient in the compiled text."""
    kinds = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
    found = {}
    for name in ("info_nce", "clip", "nt_xent"):
        text = str(jax.jit(jax.value_and_grad(over(mesh, at_half(name)), (0, 1))).lower(A, B).compile().as_text())
        found[name] = {kind: text.count(f" {kind}(") + text.count(f" {kind}-start(") for kind in kinds}
    return found


def check_global(mesh: Any) -> dict[str, Any]:
    """Compare arrays that are sharded over the mesh under jit, without `across`; and explicit axes."""
    where = NamedSharding(mesh, P("data"))
    a, b = (jax.device_put(x, where) for x in (A, B))
    found: dict[str, Any] = {}
    for name in ("info_nce", "clip", "siglip", "nt_xent"):
        step = jax.value_and_grad(at_half(name), (0, 1))
        found[name] = distance(jax.jit(step)(a, b), step(A, B))
    explicit = jax.make_mesh((SIZE,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(explicit):
        sharded = jax.device_put(A, NamedSharding(explicit, P("data")))
        try:
            jax.jit(pnce.info_nce)(sharded, sharded)
        except TypeError as error:
            found["explicit"] = str(error)
        automatic = jax.sharding.auto_axes(pnce.info_nce, out_sharding=P())
        found["auto_axes"] = float(abs(jax.jit(automatic)(sharded, sharded) - pnce.info_nce(A, A)))
    return found


def check_chunks(mesh: Any) -> dict[str, float]:
    """Compare the gradients of an encoder that is called in chunks on each device with those of one device."""
    weights = RNG.normal(size=(FEATURES, FEATURES))

    def tower(weights: Any, x: Any) -> Any:
        return jnp.tanh(x @ weights)

    def alone(weights: Any, a: Any, b: Any) -> Any:
        return pnce.clip(tower(weights, a), tower(weights, b), logit_scale=3.0)

    def local(weights: Any, a: Any, b: Any) -> Any:
        a, b = (encode_in_chunks(partial(tower, weights), x, chunk_size=2) for x in (a, b))
        return pnce.clip(a, b, logit_scale=3.0, across=pnce.across("data"))

    rows, found = P("data"), {}
    for vma in (True, False):
        mapped = jax.shard_map(local, mesh=mesh, in_specs=(P(), rows, rows), out_specs=P(), check_vma=vma)
        slopes = jax.jit(jax.value_and_grad(mapped, (0, 1)))(weights, A, B)
        found["checked" if vma else "unchecked"] = distance(slopes, jax.value_and_grad(alone, (0, 1))(weights, A, B))
    return found


def main(report: str) -> None:
    """Run all checks, and write a report."""
    jax.config.update("jax_enable_x64", True)  # noqa: FBT003  (JAX's own)
    mesh = jax.make_mesh((SIZE,), ("data",), axis_types=(AxisType.Auto,))
    found = {
        "losses": {
            f"{name}, {block_size}, {'checked' if vma else 'unchecked'}": check_loss(
                name, mesh, vma=vma, block_size=block_size
            )
            for name, block_size, vma in product(LOSSES, ("auto", 2), (True, False))
        },
        "second order": check_second_order(mesh),
        "top k": check_top_k(mesh),
        "statistics": check_statistics(mesh),
        "chunks": check_chunks(mesh),
        "half": check_half(mesh),
        "collectives": check_collectives(mesh),
        "global": check_global(mesh),
    }
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
