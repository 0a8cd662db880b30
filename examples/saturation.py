"""Errors of cross-entropy and `info_nce` once the positives lead by far.

The positives of N rows lead the negatives by a margin. Prints the worst relative errors of the loss and of gradient
entries that the dtype can represent, against 50 digits. Needs torch and mpmath.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import mpmath
import torch

import portable_nce as pnce

Loss = Callable[[torch.Tensor], torch.Tensor]
Exact = Any  # mpmath numbers, not annotated


def cross_entropy(scores: torch.Tensor) -> torch.Tensor:
    """InfoNCE as it is usually written."""
    return torch.nn.functional.cross_entropy(scores, torch.arange(scores.shape[0]))


def exact(scores: torch.Tensor) -> tuple[Exact, list[list[Exact]]]:
    """Value and gradient in 50 digits, from the definition."""
    rows = [[mpmath.mpf(g) for g in row] for row in scores.tolist()]
    n, value, gradient = len(rows), mpmath.mpf(0), []
    for i, row in enumerate(rows):
        odds = [mpmath.exp(g - row[i]) for g in row]
        off = mpmath.fsum(o for j, o in enumerate(odds) if j != i)
        value += mpmath.log1p(off) / n
        gradient.append([(-off if j == i else o) / (1 + off) / n for j, o in enumerate(odds)])
    return value, gradient


def worst_errors(loss: Loss, scores: torch.Tensor) -> tuple[float, float]:
    """Relative errors of the value, and of the worst representable gradient entry."""
    value, gradient = exact(scores)
    scores = scores.clone().requires_grad_()
    found = loss(scores)
    (derivative,) = torch.autograd.grad(found, scores)
    tiny = torch.finfo(scores.dtype).tiny
    entries = [
        abs(mpmath.mpf(ours) - theirs) / abs(theirs)
        for row, exact_row in zip(derivative.tolist(), gradient, strict=True)
        for ours, theirs in zip(row, exact_row, strict=True)
        if abs(theirs) >= tiny
    ]
    return float(abs(mpmath.mpf(found.item()) - value) / value), float(max(entries))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=8, help="rows and columns of the score matrix (default: 8)")
    options = parser.parse_args()
    print("| dtype | margin | value: cross_entropy | value: info_nce | gradient: cross_entropy | gradient: info_nce |")
    print("|---|---|---|---|---|---|")
    torch.manual_seed(0)
    noise = torch.rand(options.rows, options.rows, dtype=torch.float64)
    with mpmath.workdps(50):
        for dtype in (torch.float32, torch.bfloat16):
            for margin in (0, 5, 10, 20, 40, 80):
                scores = (noise + margin * torch.eye(options.rows, dtype=torch.float64)).to(dtype)
                usual, ours = worst_errors(cross_entropy, scores), worst_errors(pnce.from_scores.info_nce, scores)
                cells = (usual[0], ours[0], usual[1], ours[1])
                name = str(dtype).removeprefix("torch.")
                print(f"| {name} | {margin} | " + " | ".join(f"{cell:.1e}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
