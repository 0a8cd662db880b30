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
from saturation import cross_entropy, worst_errors
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
# Sixteen pairs of unit vectors are moved along the gradient of FlatNCE, which does not stop when the pairs are told
# apart. At each step, the gradient of InfoNCE is computed from the same embeddings in float32: by a cross-entropy and
# by ``pnce.info_nce``, and in float64 for the truth.

TEMPERATURE = 0.03


def usual(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """InfoNCE as it is usually written."""
    return cross_entropy(normalize(x) @ normalize(y).T / TEMPERATURE)


def ours(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """InfoNCE through the log-odds."""
    return pnce.info_nce(x, y, temperature=TEMPERATURE)


x, y = (z.requires_grad_() for z in torch.randn(2, 16, 32))
optimizer = torch.optim.Adam([x, y], lr=0.03)
rows = []
for _ in range(250):
    losses = [torch.autograd.grad(loss(x, y), x)[0].norm().item() for loss in (usual, ours)]
    exact = torch.autograd.grad(ours(wide := x.double(), y.double()), wide)[0].norm().item()
    scores = normalize(x) @ normalize(y).T / TEMPERATURE
    others = scores.detach().masked_fill(torch.eye(16, dtype=torch.bool), -torch.inf).logsumexp(dim=1)
    rows.append((*losses, exact, (scores.detach().diagonal() - others).median().item()))
    optimizer.zero_grad()
    pnce.contrast(x, y, objective="flat_nce", temperature=TEMPERATURE).backward()
    optimizer.step()

by_usual, by_ours, truth, margin = (list(column) for column in zip(*rows, strict=True))
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
axes.semilogy(margin, truth, color="0.6", linewidth=5, label="float64")
axes.semilogy(margin, by_ours, color="#0072b2", label="float32, pnce")
axes.semilogy(margin, [max(value, 1e-16) for value in by_usual], "--", color="#d55e00", label="float32, cross_entropy")
axes.set(xlabel="median margin of the positives, nats", ylabel="norm of the gradient", ylim=(3e-17, None))
axes.annotate("exactly zero", (margin[-1], 1.5e-16), ha="right", color="#d55e00")
axes.legend(frameon=False, loc="lower left")
plt.show()

# %%
# In ordinary training, margins are seldom so large, and it may change nothing: :doc:`../log_k_curse` measures both.
