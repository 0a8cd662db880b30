"""
MoCo: a queue for batches of four
=================================

With four images in a batch, InfoNCE has three negatives, and most are told apart soon. A :class:`~portable_nce.Queue`
of earlier keys gives hundreds, at no cost for the encoder (`arXiv:1911.05722 <https://arxiv.org/abs/1911.05722>`_). Its
keys were computed by an encoder of earlier steps, which therefore has to change slowly: it is a moving average of the
one that is trained. :doc:`../queues` says how such state is saved.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import portable_nce as pnce

SEED = 0
BATCH, WIDTH, EPOCHS, SEEDS = 4, 32, 6, 3
images = jnp.asarray(load_digits(return_X_y=True)[0] / 16.0, dtype=jnp.float32)


def view(key: jax.Array, x: jax.Array) -> jax.Array:
    """The images, each with some 15 % of its pixels left out."""
    return jnp.where(jax.random.bernoulli(key, 0.85, x.shape), x, 0.0)


def encoded(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Embeddings of unit length, of a network with one hidden layer."""
    z = jax.nn.relu(x @ weights["in"] + weights["bias"]) @ weights["out"]
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)


# %%
# Training
# --------
#
# The queue is a pytree like the weights: it is a part of what a step takes and gives, so the training is one ``scan``,
# under ``jit``, and under ``vmap`` for all seeds and momenta at once. Without a queue the loss is InfoNCE in the batch,
# in both directions, with one encoder for both views.


def retrieval(seed: jax.Array, momentum: jax.Array, slots: int) -> jax.Array:
    """Train, and give how often a view of a digit is nearest to the other view of it, among 500 held out."""
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


def trained(momenta: tuple[float, ...], slots: int) -> np.ndarray:
    """The retrieval in percent, for each momentum and each seed."""
    over_seeds = jax.vmap(partial(retrieval, slots=slots), (0, None))
    seeds = SEED + jnp.arange(SEEDS)
    return 100.0 * np.asarray(jax.jit(jax.vmap(over_seeds, (None, 0)))(seeds, jnp.asarray(momenta)))


MOMENTA, SIZES = (0.0, 0.9, 0.97, 0.99), (0, 16, 64, 512)
by_momentum = trained(MOMENTA, 512)
by_size = np.concatenate([*(trained((0.99,), size) for size in SIZES[:-1]), by_momentum[3:4]])

# %%
# What the queue needs
# --------------------

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for axes, values, ticks in ((left, by_size, SIZES), (right, by_momentum, MOMENTA)):
    axes.plot(values, "o", color="0.6", markersize=4)
    axes.plot(values.mean(axis=1), "s-", color="#d55e00", label="with the queue")
    axes.axhline(by_size[0].mean(), color="#0072b2", linestyle="--", label="without: the batch alone")
    axes.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
left.set(xlabel="slots of the queue; momentum 0.99", ylabel="top-1 retrieval, %", ylim=(0, None))
right.set(xlabel="momentum of the key encoder; 512 slots")
right.legend(frameon=False, loc="center right")
plt.show()

# %%
# Dots are seeds. Where the key encoder changes fast, keys can be told from each other by their age instead of by their
# image: without momentum, far fewer digits are retrieved than with no queue. Where it changes slowly, the queue gains
# several points, though the gradient comes from one of the two views alone.

without, queued, fast = by_size[0], by_size[-1], by_momentum[0]
for name, values in (("the batch alone", without), ("512 slots", queued), ("512 slots, no momentum", fast)):
    print(f"{name:24} {values.mean():4.1f} %, from {values.min():.1f} to {values.max():.1f}")

assert queued.mean() > without.mean() + 2.0
assert fast.mean() < 0.5 * without.mean()
