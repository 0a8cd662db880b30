"""
FlatNCE in small batches
========================

InfoNCE gives little gradient to a pair that is already retrieved in its batch. In a small batch, most pairs soon are.
FlatNCE (`arXiv:2107.01152 <https://arxiv.org/abs/2107.01152>`_) gives every pair the same weight.
"""

from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import normalize

import portable_nce as pnce

BATCH, TEMPERATURE, EPOCHS, SEEDS = 16, 0.03, 20, 3
pixels, _ = load_digits(return_X_y=True)
images = torch.tensor((pixels - 5.0) / 6.0, dtype=torch.float32).reshape(-1, 8, 8)
left, right = images[:, :, :4].flatten(1), images[:, :, 4:].flatten(1)

# %%
# Training
# --------
#
# Two encoders learn to match the left and right halves of digits. Both losses see the same batches and start
# from the same weights. Retrieval is the share of 400 held-out left halves whose matching right half is the nearest.


def encoder() -> nn.Module:
    """Return the encoder of one side."""
    return nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 32))


def retrieval(objective: Literal["info_nce", "flat_nce"], seed: int) -> list[float]:
    """Train, and return the retrieval after each epoch, in percent."""
    torch.manual_seed(seed)
    order = torch.randperm(len(images))
    train, test = order[:1280], order[1280:1680]
    f, g = encoder(), encoder()
    optimizer = torch.optim.Adam([*f.parameters(), *g.parameters()], lr=1.4e-3)
    found = []
    for _ in range(EPOCHS):
        for batch in train[torch.randperm(len(train))].split(BATCH):
            x, y = f(left[batch]), g(right[batch])
            loss = pnce.contrast(x, y, objective=objective, temperature=TEMPERATURE, symmetric=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            scores = normalize(f(left[test])) @ normalize(g(right[test])).T
        found.append(100.0 * pnce.diagnostics.top_k_accuracy(scores).item())
    return found


info = np.asarray([retrieval("info_nce", seed) for seed in range(SEEDS)])
flat = np.asarray([retrieval("flat_nce", seed) for seed in range(SEEDS)])

# %%
# Retrieval
# ---------
#
# Lines are means, bands the range over seeds.

epochs = np.arange(1, EPOCHS + 1)
figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
for values, name, colour in ((flat, "FlatNCE", "#d55e00"), (info, "InfoNCE", "#0072b2")):
    axes.plot(epochs, values.mean(axis=0), color=colour, label=name)
    axes.fill_between(epochs, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
axes.set(xlabel="epoch", ylabel="top-1 retrieval, %", xticks=range(0, EPOCHS + 1, 5), title="batches of 16")
axes.legend(frameon=False, loc="lower right")
plt.show()

# %%
# The gain is smaller at higher temperatures and in larger batches, and InfoNCE catches up in long trainings:
# :doc:`../log_k_curse`.

late = flat[:, -5:].mean(axis=1) - info[:, -5:].mean(axis=1)
print(f"FlatNCE minus InfoNCE, last 5 epochs: {late.mean():+.1f} points, from {late.min():+.1f} to {late.max():+.1f}")

assert late.min() > 0.0
