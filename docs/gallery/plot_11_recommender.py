"""
A recommender and the logQ correction
=====================================

A two-tower model is trained with the other items of a batch as negatives. Popular items are negatives more often, so
their scores become too low. ``log_q`` of :func:`~portable_nce.two_tower` corrects that.
"""

from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import portable_nce as pnce

USERS, ITEMS, PAIRS = 400, 500, 60_000
rng = np.random.default_rng(0)

# %%
# Data
# ----
#
# Users choose items by taste and by popularity, which falls as one over the rank. All probabilities are known.

taste = 1.5 * rng.normal(size=(USERS, 8)) @ rng.normal(size=(8, ITEMS)) / np.sqrt(8)
truth = np.exp(taste) / rng.permutation(np.arange(1, ITEMS + 1))
truth /= truth.sum(axis=1, keepdims=True)


def observed(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw users uniformly, and an item for each."""
    user = rng.integers(USERS, size=n)
    below = truth.cumsum(axis=1)[user] < rng.random(n)[:, None]
    return user, np.minimum(below.sum(axis=1), ITEMS - 1)


users, items = observed(PAIRS)
log_q = np.log((np.bincount(items, minlength=ITEMS) + 1) / (PAIRS + ITEMS))

# %%
# Training
# --------
#
# Six epochs in batches of 256, with Adagrad. ``ids`` marks equal items of a batch, so that the positive of a row is not
# its negative as well.


def loss(tables: dict[str, jax.Array], user: jax.Array, item: jax.Array, offset: jax.Array | None) -> jax.Array:
    """Return the loss of a batch of pairs. The last column of the items is their bias."""
    query = jnp.concatenate([tables["user"][user], jnp.ones((len(user), 1))], axis=1)
    return pnce.two_tower(query, tables["item"][item], ids=item, log_q=None if offset is None else offset[item])


@jax.jit
def trained(batches: tuple[jax.Array, jax.Array], offset: jax.Array | None) -> jax.Array:
    """Train, and return the score of every item for every user."""
    keys = jax.random.split(jax.random.key(0))
    tables = {
        "user": 0.1 * jax.random.normal(keys[0], (USERS, 16)),
        "item": 0.1 * jax.random.normal(keys[1], (ITEMS, 17)),
    }

    def step(state: Any, batch: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        tables, squares = state
        gradient = jax.grad(loss)(tables, *batch, offset)
        squares = jax.tree.map(lambda s, g: s + g**2, squares, gradient)
        update = jax.tree.map(lambda g, s: 0.05 * g / jnp.sqrt(s + 1e-12), gradient, squares)
        return (jax.tree.map(jnp.subtract, tables, update), squares), None

    tables = jax.lax.scan(step, (tables, jax.tree.map(jnp.zeros_like, tables)), batches)[0][0]
    return tables["user"] @ tables["item"][:, :-1].T + tables["item"][:, -1]


chosen = np.concatenate([rng.permutation(PAIRS)[: PAIRS // 256 * 256].reshape(-1, 256) for _ in range(6)])
batches = jnp.asarray(users[chosen]), jnp.asarray(items[chosen])
scores = {
    "without log_q": np.asarray(trained(batches, None)),
    "with log_q": np.asarray(trained(batches, jnp.asarray(log_q, dtype=jnp.float32))),
}

# %%
# Scores and true probabilities
# -----------------------------
#
# Each dot is an item, averaged over users. Without the correction the model learns log p(item | user) − log q(item),
# with it log p(item | user), up to a constant for each user.

exact = np.log(truth).mean(axis=0)
figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
for (name, score), colour in zip(scores.items(), ("#0072b2", "#d55e00"), strict=True):
    mean = score.mean(axis=0)
    axes.plot(exact, mean - mean.mean() + exact.mean(), ".", color=colour, markersize=5, alpha=0.6, label=name)
axes.axline((-7, -7), slope=1, color="0.3", linewidth=1)
axes.set(xlabel="true log p(item | user), mean over users", ylabel="score, shifted")
axes.legend(frameon=False, loc="upper left")
plt.show()

# %%
# Recommendations
# ---------------
#
# Recall among the first ten items of a user, for 20,000 new pairs. The correction finds more pairs, because it ranks
# popular items higher. Without it, lists are more specific to the user, and have more of the 400 less popular items.
# Adding log q to the scores, or subtracting it, changes one model into the other.

new_users, new_items = observed(20_000)
rare = np.argsort(np.argsort(-log_q))[new_items] >= 100
recall = {}
for name, score in {**scores, "true probabilities": truth}.items():
    hit = (score[new_users] > score[new_users, new_items][:, None]).sum(axis=1) < 10
    recall[name] = hit.mean(), hit[rare].mean()
    print(f"{name:18} recall {recall[name][0]:.2f}, of less popular items {recall[name][1]:.3f}")

assert recall["with log_q"][0] > recall["without log_q"][0] + 0.1
assert recall["without log_q"][1] > 3 * recall["with log_q"][1]
