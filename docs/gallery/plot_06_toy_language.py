"""
NCE of a small language
=======================

A model of the next word is learned from text and noise words, without a sum over the vocabulary. The scores of local
NCE are self-normalised log-probabilities. Ranking NCE leaves the partition function Z undetermined.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import log_softmax

from portable_nce import density

WORDS, RANK, TEXTS, NOISE, STEPS = 100, 4, 256, 10, 600

# %%
# The language
# ------------
#
# Each word depends on the previous word. All probabilities are known. The noise follows the word frequencies.

rng = np.random.default_rng(0)
tilt = rng.normal(size=(WORDS, RANK)) @ rng.normal(size=(RANK, WORDS)) / 1.3
table = torch.tensor(np.exp(tilt) / np.arange(1, WORDS + 1))
truth = table / table.sum(dim=1, keepdim=True)  # p(next word | word)
frequency = torch.linalg.matrix_power(truth, 100)[0]
log_q = frequency.log().float()


def course(name: str) -> np.ndarray:
    """Train a bilinear model by one loss. Return KL(p ‖ model) and the mean of log Z for each step."""
    torch.manual_seed(0)
    contexts, words = (0.1 * torch.randn(2, WORDS, RANK + 2)).unbind()
    parameters = [z.requires_grad_() for z in (contexts, words, torch.zeros(WORDS))]
    optimizer = torch.optim.Adam(parameters, lr=0.03)
    word, found = torch.multinomial(frequency, TEXTS, replacement=True), []
    for _ in range(STEPS):
        last, word = word, torch.multinomial(truth[word], 1)[:, 0]
        noise = torch.multinomial(frequency, TEXTS * NOISE, replacement=True).reshape(TEXTS, NOISE)
        scores = contexts @ words.T + parameters[2]  # of every word after every word
        sampled = scores[last, word], scores[last[:, None], noise], log_q[word], log_q[noise]
        if name == "full_softmax":
            loss = density.full_softmax(scores[last], word)
        else:
            loss = density.local_nce(*sampled) if name == "local_nce" else density.ranking_nce(*sampled)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            divergence = (truth * (truth.log() - log_softmax(scores, dim=1))).sum(dim=1).mean().item()
            found.append((divergence, density.self_normalization(scores).mean.item()))
    return np.asarray(found)


STYLES = {"ranking_nce": ("#d55e00", "-"), "full_softmax": ("black", ":"), "local_nce": ("#0072b2", "-")}
courses = {name: course(name) for name in STYLES}

# %%
# The partition function
# ----------------------
#
# The mean of log Z over contexts. It is 0 for a normalised model.

figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
axes.axhline(0.0, color="0.6", linewidth=1)
for name, (colour, dashes) in STYLES.items():
    axes.plot(courses[name][:, 1], dashes, color=colour, label=name)
axes.set(xlabel="step", ylabel="log Z, nats")
axes.legend(frameon=False, loc="center right")
plt.show()

# %%
# Distance from the truth
# -----------------------
#
# After division by Z, all three models are near the true probabilities. Local NCE learns more slowly.

figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
for name, (colour, dashes) in STYLES.items():
    axes.semilogy(courses[name][:, 0], dashes, color=colour, label=name)
    print(f"{name:14} KL {courses[name][-1, 0]:.3f}, log Z {courses[name][-50:, 1].mean():+.2f}")
axes.set(xlabel="step", ylabel="KL(p ‖ model), nats")
axes.legend(frameon=False)
plt.show()

assert abs(courses["local_nce"][-50:, 1].mean()) < 0.1
assert courses["ranking_nce"][-1, 1] > 1.0
assert max(values[-1, 0] for values in courses.values()) < 0.1
