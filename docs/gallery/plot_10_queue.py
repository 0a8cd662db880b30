"""
MoCo: a queue for small batches
===============================

With four images in a batch, InfoNCE has three negatives. A :class:`~portable_nce.Queue` of earlier keys adds hundreds
(`arXiv:1911.05722 <https://arxiv.org/abs/1911.05722>`_). The keys come from a slow copy of the encoder.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import portable_nce as pnce

BATCH, WIDTH, EPOCHS, SEEDS = 4, 32, 6, 3
images = jnp.asarray(load_digits(return_X_y=True)[0] / 16.0, dtype=jnp.float32)


def view(key: jax.Array, x: jax.Array) -> jax.Array:
    """Set 15 % of the pixels to zero."""
    return jnp.where(jax.random.bernoulli(key, 0.85, x.shape), x, 0.0)


def encoded(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Return unit vectors from a network with one hidden layer."""
    z = jax.nn.relu(x @ weights["in"] + weights["bias"]) @ weights["out"]
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)


# %%
# Training
# --------
#
# A queue is a pytree, so the training is one ``scan`` under ``jit``, with ``vmap`` over seeds and momenta. Without a
# queue the loss is symmetric InfoNCE in the batch.


def retrieval(seed: jax.Array, momentum: jax.Array, slots: int) -> jax.Array:
    """Train, and return how often two views of one of 500 held-out digits are nearest to each other."""
    key, *keys = jax.random.split(jax.random.key(seed), 6)
    order = jax.random.permutation(keys[0], len(images))
    train, test = order[:1297], order[1297:]
    weights = {
        "in": jax.random.normal(keys[1], (64, 128)) / 8.0,
        "bias": jnp.zeros(128),
        "out": jax.random.normal(keys[2], (128, WIDTH)) / 11.0,
    }
    zeros = jax.tree.map(jnp.zeros_like, weights)
    queue = pnce.queue_init(jnp.zeros((1, WIDTH)), slots) if slots else None

    def step(state: Any, t: jax.Array) -> tuple[Any, None]:
        weights, slow, mean, square, queue = state
        chosen, first, second = jax.random.split(jax.random.fold_in(key, t), 3)
        batch = images[jax.random.choice(chosen, train, (BATCH,))]
        view_a, view_b = view(first, batch), view(second, batch)
        keys = encoded(slow, view_b)

        def loss(weights: dict[str, jax.Array]) -> jax.Array:
            queries = encoded(weights, view_a)
            if queue is None:
                return pnce.info_nce(queries, encoded(weights, view_b), temperature=0.1, symmetric=True)
            return pnce.moco(queries, keys, queue, temperature=0.1)

        gradient = jax.grad(loss)(weights)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)  # Adam
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, square, gradient)
        rate = 2e-3 * jnp.sqrt(1.0 - 0.999 ** (t + 1)) / (1.0 - 0.9 ** (t + 1))
        weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, mean, square)
        slow = jax.tree.map(lambda s, w: momentum * s + (1.0 - momentum) * w, slow, weights)
        return (weights, slow, mean, square, None if queue is None else pnce.queue_push(queue, keys)), None

    state = weights, weights, zeros, zeros, queue
    weights = jax.lax.scan(step, state, jnp.arange(EPOCHS * len(train) // BATCH))[0][0]
    query, other = (encoded(weights, view(k, images[test])) for k in keys[3:])
    return pnce.diagnostics.top_k_accuracy(query @ other.T)


def trained(momenta: list[float], slots: int) -> np.ndarray:
    """Return the retrieval in percent, for each momentum and each seed."""
    over_seeds = jax.vmap(partial(retrieval, slots=slots), (0, None))
    return 100.0 * np.asarray(jax.jit(jax.vmap(over_seeds, (None, 0)))(jnp.arange(SEEDS), jnp.asarray(momenta)))


# %%
# Momentum
# --------
#
# A queue of 512 keys, for several momenta of the slow encoder. If that encoder changes fast, keys differ by age
# more than by image, and the queue does harm. With a momentum of 0.99 it helps.

momenta = [0.0, 0.9, 0.97, 0.99]
queued, alone = trained(momenta, 512), trained([0.0], 0)[0]
figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
axes.plot(queued, "o", color="#d55e00", markersize=4, alpha=0.4)
axes.plot(queued.mean(axis=1), "s-", color="#d55e00", label="queue of 512 keys")
axes.axhline(alone.mean(), color="#0072b2", linestyle="--", label="no queue")
axes.set_xticks(range(len(momenta)), [str(momentum) for momentum in momenta])
axes.set(xlabel="momentum of the slow encoder", ylabel="top-1 retrieval, %", ylim=(0, None), title="batches of 4")
axes.legend(frameon=False, loc="lower right")
plt.show()

# %%
# Small dots are seeds. :doc:`../queues` explains how to save and load a queue.

print(f"no queue       {alone.mean():4.1f} %, from {alone.min():.1f} to {alone.max():.1f}")
for momentum, values in zip(momenta, queued, strict=True):
    print(f"momentum {momentum:<5} {values.mean():4.1f} %, from {values.min():.1f} to {values.max():.1f}")

assert queued[-1].mean() > alone.mean() + 2.0
assert queued[0].mean() < 0.5 * alone.mean()
