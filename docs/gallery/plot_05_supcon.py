"""
SupCon on a circle
==================

The supervised contrastive loss pulls samples of one class together and pushes classes apart. With two-dimensional
embeddings, the ten classes of digits spread over the unit circle.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import portable_nce as pnce

torch.manual_seed(1)
pixels, classes = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16.0, dtype=torch.float32), torch.tensor(classes)
order = torch.randperm(len(images))
train, test = order[:1297], order[1297:]

encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
for _ in range(30):
    for batch in train[torch.randperm(len(train))].split(256):
        loss = pnce.supcon(encoder(images[batch]), labels[batch], temperature=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %%
# The 500 held-out digits, moved a little off the circle so that dots do not hide each other. Numbers stand at the mean
# direction of each class in the training data.

with torch.no_grad():
    places = nn.functional.normalize(encoder(images), dim=1)
means = torch.stack([places[train][labels[train] == digit].mean(dim=0) for digit in range(10)])
centres = nn.functional.normalize(means, dim=1)

radius = 1.0 + 0.03 * np.random.default_rng(0).standard_normal((len(test), 1))
figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
x, y = (places[test].numpy() * radius).T
axes.scatter(x, y, c=classes[test], cmap="tab10", s=8)
for digit, place in enumerate((1.2 * centres).tolist()):
    axes.annotate(str(digit), place, ha="center", va="center")
axes.set(aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3))
axes.set_axis_off()
plt.show()

right = ((places[test] @ centres.T).argmax(dim=1) == labels[test]).float().mean().item()
print(f"held-out digits that are nearest to their own class: {right:.1%}")

assert right > 0.8

# %%
# A sample has many positives here. ``multi_positive`` chooses how they are combined: :doc:`../options`.
