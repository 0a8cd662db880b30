"""What the demonstration trains on, and what it records."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Vector = np.ndarray[Any, Any]

__all__ = ["Course", "Digits", "matches"]


@dataclass(frozen=True)
class Digits:
    """Standardised halves of digits, and their split.

    Attributes
    ----------
    left, right : array, shape (1797, 32)
        Pixels of the two halves.
    images : array, shape (1797, 8, 8)
        Brightness between 0 and 1.
    classes : array, shape (1797,)
        Digits; not used in training.
    training, validation, held_out : array of int
        Indices.
    """

    left: Vector
    right: Vector
    images: Vector
    classes: Vector
    training: Vector
    validation: Vector
    held_out: Vector


@dataclass
class Course:
    """Record of a training run.

    Attributes
    ----------
    losses, companions, bounds : list of float
        Before the first and after each iteration: training loss, InfoNCE (if shown), and the bound on the validation
        digits; in nats.
    best : int
        Iteration with the best bound, whose parameters are used.
    untrained, scores : array
        Scores of the held-out digits, left × right halves: before training, and with the best parameters.
    bound : float
        Bound on the held-out digits, in nats.
    seconds : float
        Training time.
    """

    losses: list[float] = field(default_factory=list)
    companions: list[float] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    best: int = 0
    untrained: Any = None
    scores: Any = None
    bound: float = math.nan
    seconds: float = 0.0


def matches(scores: Any, digits: Digits) -> tuple[Vector, Vector, Vector]:
    """Retrieved right halves of the held-out left halves, and masks of exact matches and of the same digit."""
    import numpy as np

    winners = scores.argmax(axis=1)
    classes = digits.classes[digits.held_out]
    return winners, winners == np.arange(len(winners)), classes[winners] == classes
