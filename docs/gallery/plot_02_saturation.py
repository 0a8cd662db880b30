"""
Gradients of confident positives
================================

Cross-entropy loses the gradient of InfoNCE when a positive is far ahead of its negatives: it subtracts nearly equal
numbers, and the difference rounds to zero. The losses of this package use the log-odds instead, where nothing cancels.
"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import torch

import portable_nce as pnce

N = 8
noise = torch.rand(N, N, generator=torch.Generator().manual_seed(0))


def cross_entropy(scores: torch.Tensor) -> torch.Tensor:
    """Return InfoNCE as it is usually written."""
    return torch.nn.functional.cross_entropy(scores, torch.arange(N))


def gradient(loss: Callable[[torch.Tensor], torch.Tensor], scores: torch.Tensor) -> np.ndarray:
    """Return the gradient of a loss with respect to its scores."""
    scores = scores.clone().requires_grad_()
    return torch.autograd.grad(loss(scores), scores)[0].double().numpy()


def exact_gradient(scores: torch.Tensor) -> np.ndarray:
    """Return the gradient from the odds of the negatives, in float64. Nothing is subtracted."""
    values = scores.double().numpy()
    odds = np.exp(values - values.diagonal()[:, None])
    np.fill_diagonal(odds, 0.0)
    total = odds.sum(axis=1, keepdims=True)
    return (odds - np.diag(total[:, 0])) / (1.0 + total) / N


# %%
# In each of eight rows of scores, the positive is ahead of the negatives by a margin. Both losses get the same scores.
# The picture shows the worst relative error of an entry of the gradient. At an error of 1, no correct digit is left.

margins = range(0, 61, 4)
figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
for dtype, style in ((torch.bfloat16, "o:"), (torch.float32, "s-")):
    for loss, name, colour in (
        (cross_entropy, "cross_entropy", "#d55e00"),
        (pnce.from_scores.info_nce, "pnce", "#0072b2"),
    ):
        batches = [(noise + margin * torch.eye(N)).to(dtype) for margin in margins]
        errors = [np.abs(gradient(loss, scores) / exact_gradient(scores) - 1.0).max() for scores in batches]
        label = f"{name}, {str(dtype).removeprefix('torch.')}"
        axes.semilogy(margins, errors, style, color=colour, markersize=4, label=label)
        print(f"{label:24} worst error {max(errors):.1e}")
        assert (max(errors) < 0.01) == (name == "pnce")
axes.set(xlabel="margin of the positives, nats", ylabel="relative error of the gradient")
axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.42))
plt.show()

# %%
# Such margins occur in memorised batches, at low temperatures and with 16-bit scores. In ordinary training the
# difference may not matter: :doc:`../mixed-precision` and :doc:`../log_k_curse` have measurements.
