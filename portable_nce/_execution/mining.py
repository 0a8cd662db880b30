"""Mined triples: which of a row's positives meet which of its negatives.

The choice is a constant: gradients reach the scores that were chosen.
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
    """The differences ``s_n - s_p`` of mined triples, of shape (N, K) or (N, 1), and which of them are triples.

    The rules are those for positives and for negatives; not both are "semi_hard".
    """
    of_positives, of_negatives = mining
    if of_positives == "semi_hard":
        # With scores of the other sign, positives and negatives change places, and near means far.
        return mined_differences(-scores, negatives, positives, (of_negatives, of_positives))
    xp = namespace_of(scores)
    fixed = stop_gradient(scores)
    own, members = scores, positives
    if of_positives != "all":
        own = entries_at(scores, _extreme(xp, fixed, positives, largest=of_positives == "easy"))
        members = xp.any(positives, axis=1, keepdims=True)
    if of_negatives == "all":
        return scores - own, xp.logical_and(members, negatives)
    if of_negatives == "semi_hard":
        chosen = _farther(fixed, negatives, stop_gradient(own))
    else:
        chosen = _extreme(xp, fixed, negatives, largest=of_negatives == "hard")
    members = xp.logical_and(members, xp.any(negatives, axis=1, keepdims=True))
    return entries_at(scores, chosen) - own, members


def _extreme(xp: Namespace, scores: Array, members: Array, *, largest: bool) -> Array:
    """The column of each row's largest or smallest score among its members, of shape (N, 1)."""
    candidates = xp.where(members, scores if largest else -scores, -math.inf)
    return xp.argmax(candidates, axis=1)[:, None]


def _farther(scores: Array, members: Array, own: Array) -> Array:
    """For scores (N, M), the column of the largest score among a row's members that is less; else of the smallest."""
    xp, adapter = namespace_of(scores), adapter_of(scores)
    (n_rows, n_columns), otherwise = scores.shape, _extreme(xp, scores, members, largest=False)

    def step(carry: Arrays, block: Arrays, _: Array | int) -> tuple[Arrays, Arrays]:
        farther = xp.logical_and(members[None, :, :], scores[None, :, :] < block[0][:, :, None])
        candidates = xp.where(farther, scores[None, :, :], -math.inf)
        return carry, (xp.where(xp.any(farther, axis=2), xp.argmax(candidates, axis=2), otherwise[None, :, 0]),)

    turned = xp.matrix_transpose(own)
    if own.shape[1] == 1:
        _, (chosen,) = step((), (turned,), 0)
    else:
        _, (chosen,) = adapter.scan(step, (), (turned,), triples(n_rows, n_columns, mode=adapter.mode))
    return xp.matrix_transpose(chosen)
