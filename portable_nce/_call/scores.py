"""Losses of given score matrices."""

from __future__ import annotations

from typing import Any

from .._core.checks import (
    check_choice,
    row_weights,
)
from .._core.namespace import namespace_of
from .._core.numerics import upcast
from .._core.protocol import Array
from .._core.reduction import REDUCTIONS, Reduction
from .._core.registry import adapter_of
from .._execution.evaluate import evaluate, is_row_by_row
from .._execution.live import all_count, needs_of, scores_without_idle
from .._execution.matrix import matrix_of_scores
from ..objectives import AnyObjective
from ..objectives.relic import Relic
from ..pairings import Pairing
from .checks import check_both_directions
from .results import finish


def contrast_scores(
    scores: Array, objective: AnyObjective, pairing: Pairing, reduction: Reduction, **options: Any
) -> Array:
    """Loss of a score matrix, in its dtype; the options are those of `loss_of_scores`."""
    xp = namespace_of(scores)
    loss = loss_of_scores(upcast(xp, scores), objective, pairing, reduction, **options)
    return finish(xp, loss, scores.dtype, reduction.kind)


def loss_of_scores(
    scores: Array,
    objective: AnyObjective,
    pairing: Pairing,
    reduction: Reduction,
    *,
    mask: Array | None,
    symmetric: bool = False,
    sharpness: Array | None = None,
) -> Array:
    """Loss of upcast scores, of shape (1,) or (N,); all arguments but the reduction have been checked."""
    check_choice("reduction", reduction.kind, REDUCTIONS)
    xp = namespace_of(scores)
    adapter_of(scores).check(scores)
    reduction = reduction._replace(weights=row_weights(xp, reduction.weights, scores.shape[0], scores)).in_units()
    if symmetric:
        given = {"weights": reduction.weights is not None}
        check_both_directions(tuple(scores.shape), pairing, objective, reduction.kind, given)
    matrix = matrix_of_scores(scores, pairing, mask)._replace(sharpness=sharpness)
    crossed = isinstance(objective, Relic)
    if not all_count(matrix, reduction.weights, both_ways=symmetric or crossed):
        weights = reduction.weights if is_row_by_row(objective, scores) else None
        # A row whose only score is -inf has no positive, and does not count: it must stay.
        needs = needs_of(objective)._replace(negative=False)
        matrix = scores_without_idle(matrix, needs, weights, symmetric=symmetric, crossed=crossed)
    return evaluate(objective, matrix, reduction, symmetric=symmetric)
