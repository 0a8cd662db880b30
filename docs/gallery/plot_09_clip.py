"""
CLIP on digits and captions
===========================

Two encoders, one of images and one of captions, are trained by :func:`~portable_nce.clip` to tell which caption belongs
to which image, with a learned scale of the scores. Then captions serve as classifiers: digits are classified by the
word for them, and images are found by captions whose words never occurred together.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import normalize

from portable_nce.modules.torch import CLIP

torch.manual_seed(0)
pixels, classes = load_digits(return_X_y=True)
images = torch.tensor(pixels / 16.0, dtype=torch.float32)

# %%
# Captions
# --------
#
# A caption has the digit, and, each with a probability of one half, three words that are measured from the image: how
# much ink, how it leans, how wide it is; a third of all digits each.

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WORDS = (*DIGITS, "thin", "medium", "bold", "left", "upright", "right", "narrow", "average", "wide", "")
NONE = len(WORDS) - 1  # no word
MORE = range(10, NONE)

mass = images.reshape(-1, 8, 8) / images.sum(dim=1)[:, None, None]
y, x = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
dx, dy = (z - (mass * z).sum(dim=(1, 2))[:, None, None] for z in (x, y))
variance_x, variance_y, covariance = ((mass * z).sum(dim=(1, 2)) for z in (dx * dx, dy * dy, dx * dy))
measured = torch.stack([images.sum(dim=1), -covariance / variance_y, variance_x], dim=1)
thirds = sum((measured > edge).long() for edge in measured.quantile(torch.tensor([1 / 3, 2 / 3]), dim=0))
captions = torch.cat([torch.tensor(classes)[:, None], thirds + torch.tensor([10, 13, 16])], dim=1)


def has(digit: int, word: int) -> torch.Tensor:
    """Which images are of a digit, and have a word in their caption."""
    return (captions[:, 0] == digit) & (captions == word).any(dim=1)


# %%
# For each digit one word is never seen with it: the images to which both apply are kept for the test, with some others.

UNSEEN = ("bold", "left", "narrow", "right", "wide", "average", "thin", "thin", "bold", "upright")
together = [has(digit, WORDS.index(word)) for digit, word in enumerate(UNSEEN)]
unseen = torch.stack(together).any(dim=0)
order = torch.randperm(len(images))
train = order[500:][~unseen[order[500:]]]
test = torch.cat([order[:500], order[500:][unseen[order[500:]]]])

# %%
# Training
# --------
#
# The loss is a module, since it has a parameter: the logarithm of the scale, which is the inverse of a temperature and
# starts at 1 / 0.07. Captions of a batch that happen to be equal count as negatives of each other's images, as they do
# in CLIP.


class Captions(nn.Module):
    """A bag of words and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), 32, padding_idx=NONE)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed captions of four words or fewer."""
        return self.head(self.words(tokens).sum(dim=1))


image_encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32))
text_encoder = Captions()
loss = CLIP()
parameters = [p for module in (image_encoder, text_encoder, loss) for p in module.parameters()]
optimizer = torch.optim.Adam(parameters, lr=2e-3)


def prompt(*words: int) -> torch.Tensor:
    """The embedding of a caption, of unit length."""
    return normalize(text_encoder(torch.tensor([[*words, *[NONE] * (4 - len(words))]])), dim=1)[0]


def right() -> torch.Tensor:
    """Which images are nearest to the word for their digit."""
    with torch.no_grad():
        prompts = torch.stack([prompt(digit) for digit in range(10)])
        return (image_encoder(images) @ prompts.T).argmax(dim=1) == torch.tensor(classes)


losses, scales, zero_shot = [], [], []
for _ in range(40):
    for batch in train[torch.randperm(len(train))].split(128)[:-1]:
        said = captions[batch]
        said[:, 1:] = said[:, 1:].where(torch.rand(len(batch), 3) < 0.5, NONE)
        value = loss(image_encoder(images[batch] + 0.1 * torch.randn(len(batch), 64)), text_encoder(said))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
        scales.append(loss.logit_scale.item())
    found = right()
    zero_shot.append([found[part].float().mean().item() for part in (test[~unseen[test]], test[unseen[test]])])

figure, (left, middle, panel) = plt.subplots(1, 3, figsize=(11, 3.3), layout="constrained")
left.plot(losses, linewidth=1)
left.axhline(np.log(128), color="0.5", linestyle="--")
left.annotate("log 128: chance", (len(losses), np.log(128)), ha="right", va="top", color="0.4")
left.set(xlabel="step", ylabel="CLIP, nats", title="training")
middle.plot(scales)
middle.set(xlabel="step", title="learned scale")
panel.plot(zero_shot, label=["words seen together", "never seen together"])
panel.set(xlabel="epoch", ylabel="share right", ylim=(0, 1), title="zero-shot classification")
panel.legend(frameon=False, loc="lower right")
plt.show()

# %%
# Retrieval
# ---------
#
# The eight test images nearest to a caption of two words that were never seen together. A frame marks those to which
# not both apply.

with torch.no_grad():
    embedded = normalize(image_encoder(images[test]), dim=1)
    asked = [(digit, WORDS.index(word)) for digit, word in enumerate(UNSEEN)]
    nearest = [(embedded @ prompt(*words)).topk(8).indices for words in asked]
    hits = torch.stack([has(*words)[test][row] for words, row in zip(asked, nearest, strict=True)])
    by_chance = torch.stack([has(*words)[test] for words in asked]).float().mean().item()

figure, grid = plt.subplots(10, 9, figsize=(8, 8.6), layout="constrained", width_ratios=(2.2, *[1] * 8))
for line, (digit, word), row, hit in zip(grid, asked, nearest, hits.tolist(), strict=True):
    line[0].text(1, 0.5, f"“{WORDS[digit]}, {WORDS[word]}”", ha="right", va="center", fontsize=11)
    line[0].set_axis_off()
    for axes, k, good in zip(line[1:], test[row].tolist(), hit, strict=True):
        axes.imshow(images[k].reshape(8, 8).numpy(), cmap="gray_r", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(visible=not good, color="#d55e00", linewidth=3)
plt.show()

# %%
# Both words apply far more often than by chance. Among those in a frame it is mostly the digit that is right.

digits = torch.stack([captions[test[row], 0] == digit for (digit, _), row in zip(asked, nearest, strict=True)])
seen, never = zero_shot[-1]
both, digit_right = hits.float().mean().item(), digits.float().mean().item()
print(f"zero-shot classification: {seen:.1%}; of combinations never seen, {never:.1%}; chance 10%")
print(
    f"the first 8 of combinations never seen: both words {both:.0%} (chance {by_chance:.0%}), digit {digit_right:.0%}"
)

assert seen > 0.9
assert never > 0.7
assert both > 0.5
assert digit_right > 0.85
assert scales[-1] > scales[0]
