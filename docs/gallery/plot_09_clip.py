"""
CLIP on digits and captions
===========================

Two encoders, of images and of captions, are trained by CLIP to match each image with its caption. Then images are
retrieved by captions whose words never occurred together in training.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import normalize

from portable_nce.modules.torch import CLIP

torch.manual_seed(0)
pixels, classes = load_digits(return_X_y=True)
images, digits = torch.tensor(pixels / 16.0, dtype=torch.float32), torch.tensor(classes)

# %%
# Captions
# --------
#
# A caption names the digit and the amount of ink: thin, medium or bold, for a third of the images each. In training,
# the second word is dropped half of the time. For each digit, the images with one of the three words are held out.

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "thin", "medium", "bold", "")
NONE = WORDS.index("")

ink = images.sum(dim=1)
weight = 10 + torch.bucketize(ink, ink.quantile(torch.tensor([1 / 3, 2 / 3])))
captions = torch.stack([digits, weight], dim=1)
unseen = weight == 10 + digits % 3
order = torch.randperm(len(images))
train = order[500:][~unseen[order[500:]]]
test = torch.cat([order[:500], order[500:][unseen[order[500:]]]])

# %%
# Training
# --------
#
# The loss is a module because the scale of the scores is learned.


class Captions(nn.Module):
    """A bag of words and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), 32, padding_idx=NONE)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed captions of one or two words."""
        return self.head(self.words(tokens).sum(dim=1))


image_encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32))
text_encoder = Captions()
clip = CLIP()
optimizer = torch.optim.Adam([p for m in (image_encoder, text_encoder, clip) for p in m.parameters()], lr=2e-3)
for _ in range(40):
    for batch in train[torch.randperm(len(train))].split(128)[:-1]:
        tokens = captions[batch]
        tokens[torch.rand(len(batch)) < 0.5, 1] = NONE
        noisy = images[batch] + 0.1 * torch.randn(len(batch), 64)
        loss = clip(image_encoder(noisy), text_encoder(tokens))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %%
# Retrieval
# ---------
#
# The six test images nearest to each of five captions that did not occur in training. A frame marks a wrong image.

asked = torch.stack([torch.arange(10), 10 + torch.arange(10) % 3], dim=1)
names = torch.stack([torch.arange(10), torch.full((10,), NONE)], dim=1)
with torch.no_grad():
    embedded = normalize(image_encoder(images[test]), dim=1)
    nearest = test[(normalize(text_encoder(asked), dim=1) @ embedded.T).topk(6).indices]
    named = (embedded @ normalize(text_encoder(names), dim=1).T).argmax(dim=1) == digits[test]
hits = (captions[nearest] == asked[:, None]).all(dim=2)

figure, grid = plt.subplots(5, 7, figsize=(5, 3.5), layout="constrained", width_ratios=(3, *[1] * 6))
for k, line in enumerate(grid):
    line[0].text(1, 0.5, " ".join(WORDS[word] for word in asked[k]), ha="right", va="center", fontsize=11)
    line[0].set_axis_off()
    for axes, number, good in zip(line[1:], nearest[k].tolist(), hits[k].tolist(), strict=True):
        axes.imshow(images[number].reshape(8, 8).numpy(), cmap="gray_r", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(visible=not good, color="#d55e00", linewidth=3)
plt.show()

# %%
# The ten names of digits also classify images, without further training (zero-shot).

both = hits.float().mean().item()
chance = (captions[test] == asked[:, None]).all(dim=2).float().mean().item()
seen, never = (named[part].float().mean().item() for part in (~unseen[test], unseen[test]))
digit = (digits[nearest] == asked[:, :1]).float().mean().item()
print(f"both words are right in {both:.0%} of the images found (chance {chance:.0%}), the digit in {digit:.0%}")
print(f"zero-shot classification: {seen:.1%}, {never:.1%} if the words never occurred together, chance 10%")

assert both > 0.5
assert seen > 0.9
assert never > 0.7
