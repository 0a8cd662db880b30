"""
When the positives have won
===========================

InfoNCE is usually computed as a cross-entropy, ``lse(scores) - positive``. When a positive leads by far, value and
gradient are differences of nearly equal numbers, and round to zero. Through the log-odds nothing cancels
(:doc:`../mathematics`). Here is by how much, first for given scores, then in a batch that is memorised.
"""

import matplotlib.pyplot as plt
import mpmath
import torch
from saturation import Loss, cross_entropy, worst_errors
from torch.nn.functional import normalize

import portable_nce as pnce

# %%
# Scores with a margin
# --------------------
#
# ``examples/saturation.py`` has scores of 8 rows whose positives stand a margin above the negatives, and compares every
# entry of the gradient with 50 digits. An error of 1 means that nothing of the number is left.

torch.manual_seed(0)
noise = torch.rand(8, 8, dtype=torch.float64)
margins = list(range(0, 61, 4))
figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for axes, dtype in zip(panels, (torch.float32, torch.bfloat16), strict=True):
    for loss, name, style in ((cross_entropy, "cross_entropy", "o--"), (pnce.from_scores.info_nce, "pnce", "s-")):
        with mpmath.workdps(50):
            errors = [worst_errors(loss, (noise + m * torch.eye(8, dtype=torch.float64)).to(dtype))[1] for m in margins]
        axes.semilogy(margins, errors, style, label=name, markersize=4)
    axes.set(title=str(dtype).removeprefix("torch."), xlabel="margin, nats")
panels[0].set_ylabel("worst relative error of the gradient")
panels[0].legend(frameon=False)
plt.show()

# %%
# A batch that is memorised
# -------------------------
#
# Sixteen pairs of unit vectors are moved along the gradient of FlatNCE, which goes on when all pairs are told apart. At
# each step, the gradient of InfoNCE at the scores of the positives is computed from the same float32 scores, by a
# cross-entropy and through the log-odds, and in float64 for the truth.

TEMPERATURE = 0.03


def at_positives(loss: Loss, scores: torch.Tensor) -> torch.Tensor:
    """The slope of each row's loss by the score of its positive, without its sign."""
    scores = scores.detach().requires_grad_()
    return torch.autograd.grad(loss(scores), scores)[0].diagonal().abs() * len(scores)


x, y = (z.requires_grad_() for z in torch.randn(2, 16, 32))
optimizer = torch.optim.Adam([x, y], lr=0.02)
reached, slopes, zeros = [], [], []
for _ in range(250):
    scores = (normalize(x) @ normalize(y).T / TEMPERATURE).detach()
    exact = at_positives(pnce.from_scores.info_nce, scores.double())
    usual, ours = (at_positives(loss, scores) for loss in (cross_entropy, pnce.from_scores.info_nce))
    reached.append(-exact.logit().median().item())
    slopes.append([slope.median().item() for slope in (exact, ours, usual)])
    zeros.append([(slope == 0.0).float().mean().item() for slope in (ours, usual)])
    optimizer.zero_grad()
    pnce.contrast(x, y, objective="flat_nce", temperature=TEMPERATURE).backward()
    optimizer.step()

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
by_exact, by_ours, by_usual = (list(column) for column in zip(*slopes, strict=True))
left.semilogy(reached, by_exact, color="0.75", linewidth=6, label="float64")
left.semilogy(reached, by_ours, color="#0072b2", label="float32, pnce")
left.semilogy(reached, [value or 1e-16 for value in by_usual], "--", color="#d55e00", label="float32, cross_entropy")
left.annotate("exactly zero", (reached[-1], 1.5e-16), ha="right", color="#d55e00")
left.set(xlabel="median margin of the positives, nats", ylabel="slope at the positive, median row", ylim=(3e-17, 2))
left.legend(frameon=False, loc="lower left")
for values, colour in zip(zip(*zeros, strict=True), ("#0072b2", "#d55e00"), strict=True):
    right.plot(reached, values, color=colour)
right.set(xlabel="median margin of the positives, nats", ylabel="share of rows whose slope is exactly zero")
plt.show()

# %%
# In ordinary training margins are seldom so large, and it may change nothing: :doc:`../log_k_curse` measures both.
