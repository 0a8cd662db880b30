"""
A recommender and the logQ correction
=====================================

Two tables of embeddings, of users and of items, are trained on observed pairs, with the other items of a batch
as negatives. A popular item is in more batches, so it is a negative more often, and its scores are held down.
:func:`~portable_nce.two_tower` corrects for it by the logarithm of the probability of each item to be drawn. The data
are drawn from probabilities that are known, so that the scores can be held against the truth.
"""

from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import portable_nce as pnce

SEED = 0
USERS, ITEMS, PAIRS, HEAD = 400, 500, 60_000, 100
rng = np.random.default_rng(SEED)

# %%
# Users, items, and what is observed
# ----------------------------------
#
# A user takes an item by taste, an inner product of random vectors, and by popularity, which falls as one over the
# rank. The 100 most popular of the 500 items are in three quarters of the pairs.

taste = 1.5 * rng.normal(size=(USERS, 8)) @ rng.normal(size=(8, ITEMS)) / np.sqrt(8)
truth = np.exp(taste) / rng.permutation(np.arange(1, ITEMS + 1))
truth /= truth.sum(axis=1, keepdims=True)


def observed(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw users uniformly, and of each an item."""
    user = rng.integers(USERS, size=n)
    below = truth.cumsum(axis=1)[user] < rng.random(n)[:, None]
    return user, np.minimum(below.sum(axis=1), ITEMS - 1)


users, items = observed(PAIRS)
new_users, new_items = observed(20_000)
counts = np.bincount(items, minlength=ITEMS)
log_q = np.log((counts + 1) / (PAIRS + ITEMS))
popular = np.argsort(np.argsort(-counts)) < HEAD  # by rank
assert 0.7 < popular[items].mean() < 0.8

# %%
# Training
# --------
#
# ``ids`` tells the loss which items of a batch are the same, so that the positive of a row is not its negative as well.
# Six epochs in batches of 256, by Adagrad.


def loss(tables: dict[str, jax.Array], user: jax.Array, item: jax.Array, offset: jax.Array | None) -> jax.Array:
    query = jnp.concatenate([tables["user"][user], jnp.ones((len(user), 1))], axis=1)  # with a 1 for the item's bias
    return pnce.two_tower(query, tables["item"][item], ids=item, log_q=None if offset is None else offset[item])


@jax.jit
def trained(batches: tuple[jax.Array, jax.Array], offset: jax.Array | None) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(SEED))
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

    return jax.lax.scan(step, (tables, jax.tree.map(jnp.zeros_like, tables)), batches)[0][0]


chosen = np.concatenate([rng.permutation(PAIRS)[: PAIRS // 256 * 256].reshape(-1, 256) for _ in range(6)])
batches = jnp.asarray(users[chosen]), jnp.asarray(items[chosen])


def scores(offset: np.ndarray | None) -> np.ndarray:
    """Train, and give every user's score of every item."""
    tables = trained(batches, None if offset is None else jnp.asarray(offset, dtype=jnp.float32))
    return np.asarray(tables["user"] @ tables["item"][:, :-1].T + tables["item"][:, -1])


found = {"without": scores(None), "with logQ": scores(log_q)}
found["log q added later"] = found["without"] + log_q

# %%
# Scores against the truth
# ------------------------
#
# Without the correction, the in-batch softmax learns the logarithm of p(item | user) / q(item): how much more this user
# takes an item than others do. With it, the softmax learns log p(item | user), up to a number for each user. Dots are
# items; scores and truth are averaged over users, each less its mean.

COLOURS = {"without": "#0072b2", "with logQ": "#d55e00", "log q added later": "#e69f00", "the truth": "0.4"}
exact = np.log(truth).mean(axis=0)
figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
for axes, name in zip(panels, ("without", "with logQ"), strict=False):
    mean = found[name].mean(axis=0)
    for group, marker, label in ((popular, "o", f"the {HEAD} most popular"), (~popular, ".", "others")):
        places = exact[group] - exact.mean(), mean[group] - mean.mean()
        axes.plot(*places, marker, color=COLOURS[name], markersize=4, alpha=0.6, label=label)
    axes.axline((0, 0), slope=1, color="0.4", linewidth=0.8)
    axes.set(title=name, xlabel="log p(item | user), mean over users", ylabel="score, mean over users", ylim=(-5, 5))
    axes.legend(frameon=False, loc="upper left")


def recall(score: np.ndarray) -> list[float]:
    """How often the item of a new pair is among the user's first ten: of all pairs, of popular items, of others."""
    hit = (score[new_users] > score[new_users, new_items][:, None]).sum(axis=1) < 10
    return [float(hit[pairs].mean()) for pairs in (hit >= 0, popular[new_items], ~popular[new_items])]


recalls = {name: recall(score) for name, score in {**found, "the truth": truth}.items()}
for k, (name, values) in enumerate(recalls.items()):
    panels[2].bar(np.arange(3) + 0.2 * (k - 1.5), values, width=0.19, label=name, color=COLOURS[name])
panels[2].set(xticks=range(3), xticklabels=["all pairs", "popular items", "others"], ylim=(0, 0.95))
panels[2].set(title="recall among the first ten")
panels[2].legend(frameon=False, fontsize=8, loc="upper right")
plt.show()

# %%
# The correction finds more of what users take next, nearly as much as the true probabilities find. It does so by
# recommending popular items; of the others it finds fewer, and so do the true probabilities. Without it, the
# recommendations are what is special for a user, and rarer items are found several times as often: the better list
# where those are wanted. To change from one to the other, log q can be added to the scores, or taken off.


def divergence(score: np.ndarray) -> float:
    """The Kullback-Leibler divergence from the truth of the softmax of each user's scores, mean, in nats."""
    log_p = score - np.log(np.exp(score).sum(axis=1, keepdims=True))
    return float((truth * (np.log(truth) - log_p)).sum(axis=1).mean())


kl = {name: divergence(score) for name, score in found.items()}
for name, (everything, head, others) in recalls.items():
    print(f"{name:18} recall {everything:.2f}, popular {head:.2f}, others {others:.3f}; KL {kl.get(name, 0.0):.2f}")

assert recalls["with logQ"][0] > recalls["without"][0] + 0.1
assert recalls["without"][2] > 3 * recalls["with logQ"][2]
assert recalls["the truth"][2] < recalls["without"][2]
assert abs(recalls["log q added later"][0] - recalls["with logQ"][0]) < 0.03
assert 3 * kl["with logQ"] < kl["without"]
