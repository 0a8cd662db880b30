"""
Mutual information of Gaussians
===============================

The mutual information of correlated Gaussians is known. Here it rises from 2 to 10 nats while critics are trained on
batches of 64 pairs. InfoNCE cannot exceed log 64 = 4.16 nats. Other estimators can.
"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import portable_nce as pnce

DIMENSION, BATCH, STEPS = 20, 64, 400
LEVELS = (2.0, 4.0, 6.0, 8.0, 10.0)
Bound = Callable[[torch.Tensor], torch.Tensor]


def pairs(information: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a batch of Gaussian pairs with a given mutual information in nats."""
    rho = np.sqrt(-np.expm1(-2.0 * information / DIMENSION))
    x, noise = torch.randn(2, BATCH, DIMENSION)
    return x, rho * x + np.sqrt(1.0 - rho**2) * noise


def network() -> nn.Module:
    """Return one side of a separable critic."""
    return nn.Sequential(nn.Linear(DIMENSION, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 32))


def estimates(bound: Bound) -> np.ndarray:
    """Train a critic by ascending a bound. Each estimate is made before its pairs are trained on."""
    torch.manual_seed(0)
    f, h = network(), network()
    optimizer = torch.optim.Adam([*f.parameters(), *h.parameters()], lr=5e-4)
    values = []
    for information in np.repeat(LEVELS, STEPS):
        x, y = pairs(information)
        value = bound(f(x) @ h(y).T)
        optimizer.zero_grad()
        (-value).backward()
        optimizer.step()
        values.append(value.item())
    return np.asarray(values).reshape(len(LEVELS), STEPS)


# %%
# ``info_nce`` and ``nwj`` are lower bounds in expectation. ``smile`` and the plug-in form of ``info_nce_anchor`` are
# neither lower nor upper bounds.

BOUNDS: dict[str, tuple[Bound, str]] = {
    "info_nce": (pnce.bounds.info_nce, "#0072b2"),
    "nwj": (pnce.bounds.nwj, "#d55e00"),
    "smile": (pnce.bounds.smile, "#009e73"),
    "anchor, plug-in": (lambda scores: pnce.bounds.info_nce_anchor(scores, form="plug_in"), "#cc79a7"),
}
found = {name: estimates(bound) for name, (bound, _) in BOUNDS.items()}

# %%
# Lines are medians of the last 25 batches.

figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
axes.stairs(LEVELS, np.arange(len(LEVELS) + 1) * STEPS, baseline=None, color="black", linewidth=1.5, label="truth")
axes.axhline(np.log(BATCH), color="0.5", linestyle="--", linewidth=1, label="log 64")
for name, values in found.items():
    windows = np.lib.stride_tricks.sliding_window_view(values.ravel(), 25)
    axes.plot(np.arange(24, values.size), np.median(windows, axis=1), color=BOUNDS[name][1], label=name)
axes.set(xlabel="step", ylabel="mutual information, nats", ylim=(0, 12))
axes.legend(frameon=False, loc="upper left")
plt.show()

# %%
# - ``info_nce`` stops at its ceiling.
# - ``nwj`` has no ceiling, but its variance grows with the information, and its training collapses.
# - ``smile`` and the anchor come closest to the truth.
#
# The table has the median of the last 100 steps of each level. :doc:`../gaussians` compares 21 estimators, and
# :doc:`../mutual-information` helps to choose one.

medians = {name: np.median(values[:, -100:], axis=1) for name, values in found.items()}
print(f"{'truth':16}", "  ".join(f"{level:5.2f}" for level in LEVELS))
for name, row in medians.items():
    print(f"{name:16}", "  ".join(f"{value:5.2f}" for value in row))

assert max(map(np.max, found["info_nce"])) <= np.log(BATCH) + 1e-5
assert min(medians["smile"][-1], medians["anchor, plug-in"][-1]) > medians["nwj"][-1] + 1.0
