"""Mined triples: the pairs of a positive and a negative of each row that are compared.

The choice is constant to differentiation: gradients reach the chosen scores alone.
"""

from __future__ import annotations

import math

from .._core.autodiff import stop_gradient
from .._core.namespace import namespace_of
from .._core.numerics import entries_at
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from .inputs import Arrays
from .tiling import triples


def mined_differences(
    scores: Array, positives: Array, negatives: Array, mining: tuple[str, str]
) -> tuple[Array, Array]:
    """Differences ``s_n - s_p`` of mined triples, (N, K) or (N, 1), and the Boolean array that marks triples.

    `mining`: rules for positives and for negatives; at most one is "semi_hard".
    """
    of_positives, of_negatives = mining
    if of_positives == "semi_hard":
        # Negating scores swaps positives with negatives, and max with min.
        return mined_differences(-scores, negatives, positives, (of_negatives, of_positives))
    xp = namespace_of(scores)
    fixed = stop_gradient(scores)
    positive_scores, members = scores, positives
    if of_positives != "all":
        positive_scores = entries_at(scores, _extreme(xp, fixed, positives, largest=of_positives == "easy"))
        members = xp.any(positives, axis=1, keepdims=True)
    if of_negatives == "all":
        return scores - positive_scores, xp.logical_and(members, negatives)
    if of_negatives == "semi_hard":
        chosen = _farther(fixed, negatives, stop_gradient(positive_scores))
    else:
        chosen = _extreme(xp, fixed, negatives, largest=of_negatives == "hard")
    members = xp.logical_and(members, xp.any(negatives, axis=1, keepdims=True))
    return entries_at(scores, chosen) - positive_scores, members


def _extreme(xp: Namespace, scores: Array, members: Array, *, largest: bool) -> Array:
    """Column of the largest or smallest score among the members of each row, of shape (N, 1)."""
    candidates = xp.where(members, scores if largest else -scores, -math.inf)
    return xp.argmax(candidates, axis=1)[:, None]


def _farther(scores: Array, members: Array, positive_scores: Array) -> Array:
    """For each score of `positive_scores` (N, M), the column of the largest member below it, else the smallest."""
    xp, adapter = namespace_of(scores), adapter_of(scores)
    (n_rows, n_columns), otherwise = scores.shape, _extreme(xp, scores, members, largest=False)

    def step(carry: Arrays, block: Arrays, _: Array | int) -> tuple[Arrays, Arrays]:
        farther = xp.logical_and(members[None, :, :], scores[None, :, :] < block[0][:, :, None])
        candidates = xp.where(farther, scores[None, :, :], -math.inf)
        return carry, (xp.where(xp.any(farther, axis=2), xp.argmax(candidates, axis=2), otherwise[None, :, 0]),)

    transposed = xp.matrix_transpose(positive_scores)
    if positive_scores.shape[1] == 1:
        _, (chosen,) = step((), (transposed,), 0)
    else:
        _, (chosen,) = adapter.scan(step, (), (transposed,), triples(n_rows, n_columns, mode=adapter.mode))
    return xp.matrix_transpose(chosen)
