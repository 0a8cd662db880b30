"""
SupCon on a circle
==================

The supervised contrastive loss pulls samples of a class together and pushes classes apart. With embeddings of two
numbers, the unit circle is all the room there is, and the ten digits share it out.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import portable_nce as pnce

torch.manual_seed(0)
pixels, classes = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16.0, dtype=torch.float32), torch.tensor(classes)
order = torch.randperm(len(images))
train, test = order[:1297], order[1297:]


def embedded(multi_positive: pnce.typing.MultiPositive) -> torch.Tensor:
    """Train an encoder with one convention for several positives, and give the embeddings of all digits."""
    torch.manual_seed(1)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    for _ in range(30):
        for batch in train[torch.randperm(len(train))].split(256):
            loss = pnce.supcon(encoder(images[batch]), labels[batch], temperature=0.1, multi_positive=multi_positive)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return nn.functional.normalize(encoder(images), dim=1)


# %%
# Three conventions for several positives (:doc:`../options`). Only digits that took no part in the training are drawn.

CONVENTIONS: tuple[pnce.typing.MultiPositive, ...] = ("each", "separate", "pooled")
figure, panels = plt.subplots(1, 3, figsize=(11, 3.9), layout="constrained")
for axes, convention in zip(panels, CONVENTIONS, strict=True):
    places = embedded(convention)
    radius = 1.0 + 0.02 * np.random.default_rng(0).standard_normal(len(test))[:, None]
    axes.scatter(*(places[test].numpy() * radius).T, c=classes[test], cmap="tab10", s=8)
    centres = torch.stack([places[train][labels[train] == digit].mean(dim=0) for digit in range(10)])
    right = (nn.functional.normalize(places[test] @ centres.T).argmax(dim=1) == labels[test]).float().mean()
    for digit, centre in enumerate(nn.functional.normalize(centres, dim=1).tolist()):
        axes.annotate(str(digit), (1.18 * centre[0], 1.18 * centre[1]), ha="center", va="center")
    axes.set(title=f"{convention}: nearest class {right:.0%}", aspect="equal", xticks=[], yticks=[])
    axes.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35))
plt.show()
