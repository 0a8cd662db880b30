"""Objectives: the loss of a row of scores.

Most are an `Objective`: a function from `RowStatistics` to the losses of the rows, shape (N,). A `Pairwise` sums one
function over the positives and another over the negatives. Both are independent of similarity, pairing and execution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, get_args

from .._core.checks import check_called, check_choice, refuses_other_names
from .._core.protocol import Array
from .._core.types import ObjectiveName
from .base import Objective, Pairwise, RowStatistics, Term
from .hard import HardNegatives, hard_negatives
from .pairwise import contrastive, logistic
from .relic import Relic, relic
from .softmax import dclw, flat_nce, info_nce, info_nce_anchor
from .triplet import Triplet, triplet

__all__ = [
    "Objective",
    "Pairwise",
    "RowStatistics",
    "Term",
    "contrastive",
    "dclw",
    "flat_nce",
    "hard_negatives",
    "info_nce",
    "info_nce_anchor",
    "logistic",
    "relic",
    "resolve",
    "triplet",
]

__dir__ = __all__.copy  # what completion offers

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = refuses_other_names(__name__)

AnyObjective: TypeAlias = Objective | Pairwise | HardNegatives | Relic | Triplet
OBJECTIVES = (Objective, Pairwise, HardNegatives, Relic, Triplet)

_NAMED: dict[str, AnyObjective] = {"info_nce": info_nce(), "flat_nce": flat_nce(), "logistic": logistic()}
NAMES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)


def resolve(objective: ObjectiveName | AnyObjective | Callable[[RowStatistics], Array]) -> AnyObjective:
    """Return the objective of an `objective` argument.

    Parameters
    ----------
    objective : str, objective or callable
        ``"info_nce"``, ``"flat_nce"``, ``"logistic"``, an objective, or a function from `RowStatistics` to the losses
        (N,).

    Returns
    -------
    Objective, Pairwise, HardNegatives, Relic or Triplet
        The objective.

    Raises
    ------
    TypeError
        If it is a factory that was not called, or not callable.
    ValueError
        If the name is unknown.

    Examples
    --------
    >>> import portable_nce as pnce
    >>> pnce.objectives.resolve("flat_nce") is pnce.objectives.flat_nce()
    True
    """
    if isinstance(objective, OBJECTIVES):
        return objective
    check_called("objective", objective, "objectives")
    if callable(objective) and not isinstance(objective, str):
        return Objective(objective)
    check_choice("objective", objective, NAMES)
    return _NAMED[str(objective)]
