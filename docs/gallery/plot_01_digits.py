"""
Digits without labels
=====================

An encoder sees two distorted views of each handwritten digit, and NT-Xent teaches it which two belong together. No
label takes part. The training is that of :doc:`../first-torch`, shortened to its lines; here is what the features look
like.
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
    """Turn, scale, shift, add noise."""
    theta = torch.eye(2, 3) + 0.2 * torch.randn(len(x), 2, 3)
    grid = nn.functional.affine_grid(theta, list(x.shape), align_corners=False)
    moved = nn.functional.grid_sample(x, grid, align_corners=False)
    return moved + 0.1 * torch.randn_like(x)


# %%
# Two views
# ---------
#
# The first row shows digits, the others two views of each. The network learns to ignore what tells them apart.

shown = images[:10]
figure, grid = plt.subplots(3, 10, figsize=(8, 2.6), layout="constrained")
for row, batch in zip(grid, (shown, augmented(shown), augmented(shown)), strict=True):
    for axes, image in zip(row, batch, strict=True):
        axes.imshow(image[0].numpy(), cmap="gray_r", vmin=0, vmax=1)
        axes.set_axis_off()

# %%
# Training
# --------

encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
head = nn.Linear(128, 32)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=3e-3)
losses = []
for _ in range(30):
    for batch in torch.randperm(len(images)).split(256)[:7]:
        views = [head(encoder(augmented(images[batch]))) for _ in range(2)]
        loss = pnce.nt_xent(*views, temperature=0.15)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

# %%
# What was learned
# ----------------
#
# The same map (t-SNE) of the pixels and of the features. Colours are the classes, which the encoder has not seen.

with torch.no_grad():
    features = encoder(images).numpy()

chosen = np.random.default_rng(0).permutation(len(pixels))[:600]
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained", width_ratios=(1, 1.2, 1.2))
left.plot(losses, linewidth=1)
left.axhline(np.log(511), color="0.5", linestyle="--")
left.annotate("log 511: chance", (len(losses), np.log(511)), ha="right", va="top", color="0.4")
left.set(xlabel="step", ylabel="NT-Xent, nats", title="training")
for axes, what, title in ((middle, pixels, "pixels"), (right, features, "features")):
    places = TSNE(random_state=0, init="pca", max_iter=500).fit_transform(what[chosen])
    for digit in range(10):
        axes.plot(*places[classes[chosen] == digit].T, ".", markersize=4, label=str(digit))
    axes.set(title=title, xticks=[], yticks=[])
figure.legend(*right.get_legend_handles_labels(), loc="outside right center", frameon=False, markerscale=2)
plt.show()

# %%
# What the distortions change, the features ignore: the nearest neighbour of a distorted digit, among all other digits
# as they are, has its class more often by the features than by the pixels. Of digits that are not distorted the pixels
# find it a little more often (98.9 % against 98.6 %).


def same_class(x: np.ndarray, distorted: np.ndarray) -> float:
    """How often the nearest neighbour by cosine, itself left out, has the same class."""
    x, distorted = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, distorted))
    scores = distorted @ x.T - 2.0 * np.eye(len(x))
    return float(np.mean(classes[scores.argmax(axis=1)] == classes))


moved = augmented(images)
with torch.no_grad():
    by_features = same_class(features, encoder(moved).numpy())
by_pixels = same_class(pixels / 16.0, moved.flatten(1).numpy())
print(f"the class of the nearest neighbour is right: pixels {by_pixels:.1%}, features {by_features:.1%}")
