"""
Digits without labels
=====================

NT-Xent trains an encoder on two distorted views of each handwritten digit. No labels are used. The features still
separate the classes. :doc:`../first-torch` explains the training step by step.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE
from torch import nn

import portable_nce as pnce

torch.manual_seed(0)
pixels, classes = load_digits(return_X_y=True)
images = torch.tensor(pixels / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)


def augmented(x: torch.Tensor) -> torch.Tensor:
    """Rotate, scale and shift at random, and add noise."""
    theta = torch.eye(2, 3) + 0.2 * torch.randn(len(x), 2, 3)
    grid = nn.functional.affine_grid(theta, list(x.shape), align_corners=False)
    moved = nn.functional.grid_sample(x, grid, align_corners=False)
    return moved + 0.1 * torch.randn_like(x)


# %%
# Two views
# ---------
#
# Ten digits, and two views of each. The encoder learns to ignore the distortion.

figure, grid = plt.subplots(3, 10, figsize=(8, 2.6), layout="constrained")
for row, batch in zip(grid, (images[:10], augmented(images[:10]), augmented(images[:10])), strict=True):
    for axes, image in zip(row, batch, strict=True):
        axes.imshow(image[0].numpy(), cmap="gray_r", vmin=0, vmax=1)
        axes.set_axis_off()
plt.show()

# %%
# Training
# --------

encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
head = nn.Linear(128, 32)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=3e-3)
for _ in range(30):
    for batch in torch.randperm(len(images)).split(256)[:7]:
        first, second = (head(encoder(augmented(images[batch]))) for _ in range(2))
        loss = pnce.nt_xent(first, second, temperature=0.15)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %%
# Features
# --------
#
# A t-SNE map of the features of 600 digits. Colours are the classes, which the encoder has not seen.

with torch.no_grad():
    features = encoder(images).numpy()

chosen = np.random.default_rng(0).permutation(len(features))[:600]
places = TSNE(random_state=0, init="pca", max_iter=500).fit_transform(features[chosen])
figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
for digit in range(10):
    axes.plot(*places[classes[chosen] == digit].T, ".", markersize=5, label=str(digit))
axes.set(xticks=[], yticks=[])
figure.legend(loc="outside right center", frameon=False, markerscale=2)
plt.show()

# sphinx_gallery_thumbnail_number = 2

# %%
# The nearest neighbour of a distorted digit, among all other digits, has the same class more often by the features than
# by the pixels.


def same_class(queries: np.ndarray, keys: np.ndarray) -> float:
    """Return how often the nearest neighbour by cosine, other than the digit itself, has the same class."""
    queries, keys = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (queries, keys))
    scores = queries @ keys.T - 2.0 * np.eye(len(keys))
    return float(np.mean(classes[scores.argmax(axis=1)] == classes))


moved = augmented(images)
with torch.no_grad():
    by_features = same_class(encoder(moved).numpy(), features)
by_pixels = same_class(moved.flatten(1).numpy(), pixels)
print(f"nearest neighbour of the same class: pixels {by_pixels:.1%}, features {by_features:.1%}")

assert by_features > by_pixels + 0.05
