"""
Where the information is
========================

The bound of :func:`~portable_nce.estimation.mutual_information` is a mean over pairs. ``result.local`` has the term of
each pair: its pointwise mutual information, log p(y | x) / p(y), by critics that have not seen it.
"""

import matplotlib.pyplot as plt
import numpy as np

import portable_nce as pnce

rng = np.random.default_rng(0)

# %%
# Pairs
# -----
#
# Two thirds of the pairs are on a wave, the others are anywhere. Positive terms are pairs that the relation makes more
# likely than independence does; the exceptions cost.

x = rng.uniform(-3.0, 3.0, size=600)
is_exception = rng.uniform(size=600) < 1 / 3
y = np.where(is_exception, rng.uniform(-1.5, 1.5, size=600), np.sin(2.0 * x) + 0.1 * rng.normal(size=600))
found = pnce.estimation.mutual_information(x, y, rng=0, splits=1)
local = np.asarray(found.local)

figure, axes = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
most = np.quantile(np.abs(local), 0.98)
points = axes.scatter(x, y, c=local, s=12, cmap="RdBu", vmin=-most, vmax=most)
axes.set_xlabel("x")
axes.set_ylabel("y")
axes.set_title(f"mean {local.mean():.2f} nats: the bound")
figure.colorbar(points, label="local mutual information (nats)")
plt.show()
print(f"on the wave {local[~is_exception].mean():.2f} nats, elsewhere {local[is_exception].mean():.2f} nats")

# %%
# Times
# -----
#
# One series drives another half of the time. The local transfer entropy, averaged over 30 times, shows when.

cause, effect = rng.normal(size=(2, 901))
is_driven = np.arange(900) % 200 < 100
effect[1:] += np.where(is_driven, 1.5 * cause[:-1], 0.0)
transfer = pnce.estimation.transfer_entropy(cause, effect, rng=0, splits=1)
smooth = np.convolve(transfer.local, np.ones(30) / 30, mode="same")

figure, axes = plt.subplots(figsize=(6.0, 2.8), layout="constrained")
axes.fill_between(
    np.arange(900), 0, 1, where=is_driven, color="0.9", transform=axes.get_xaxis_transform(), label="driven"
)
axes.plot(smooth, label="mean of 30 times")
axes.axhline(0.0, color="0.6", linewidth=0.8)
axes.set_xlabel("time")
axes.set_ylabel("local transfer entropy (nats)")
axes.legend(frameon=False)
plt.show()
