"""RELIC's objective: InfoNCE plus the divergence of two views' distributions over the batch."""

from __future__ import annotations

from typing import Any, get_args

from .._core.checks import (
    check_bool,
    check_choice,
    check_scalar,
    explained,
)
from .._core.types import AnyArray, RelicDirection, StoppedSide
from .base import Labelled, Needs, Objective
from .softmax import info_nce

__all__ = ["Relic", "relic"]

DIRECTIONS: tuple[RelicDirection, ...] = get_args(RelicDirection)
SIDES: tuple[StoppedSide, ...] = get_args(StoppedSide)


class Relic(Labelled):
    """InfoNCE, unless `base` is None, plus the divergence between the distributions of row i and of column i."""

    label = "relic"
    alpha: Any
    direction: str
    constant: str | None
    symmetric: bool
    base: Objective | None
    include_positive: bool
    crossed, shifted = True, False

    @property
    def needs(self) -> Needs:
        """What a row must have to count."""
        return Needs(spread=True)

    @property
    def facts(self) -> Relic:
        """The objective of a sweep, which takes its array as a parameter, and of which no part is a constant."""
        return self._replace(alpha=None, constant=None)


@explained
def relic(
    *,
    alpha: float | AnyArray = 1.0,
    direction: RelicDirection = "a_to_b",
    stop_gradient: StoppedSide | None = None,
    symmetric: bool = False,
    include_positive: bool = True,
) -> Relic:
    r"""Return RELIC's objective: InfoNCE plus the divergence of the two views' distributions over the batch.

    .. math:: \ell_i = -\log p^a_{ii} + \alpha\, \mathrm{KL}(p^a_i \,\Vert\, p^b_i), \qquad
        p^a_{ij} = \mathrm{softmax}_j(g_{ij}), \quad p^b_{ij} = \mathrm{softmax}_j(g_{ji})

    Parameters
    ----------
    alpha : float or array of one entry, default: 1.0
        Weight α of the divergence.
    direction : {"a_to_b", "b_to_a"}, default: "a_to_b"
        ``"b_to_a"`` takes :math:`\mathrm{KL}(p^b_i \,\Vert\, p^a_i)`.
    stop_gradient : {None, "first", "second"}, default: None
        Distribution of the divergence that is treated as a constant.
    symmetric : bool, default: False
        Whether to average the losses of the scores and of their transpose.
    include_positive : bool, default: True
        Whether the divergence is over all columns, or over the negatives alone (CO2).

    Returns
    -------
    Relic
        The objective, for `contrast` with as many rows as columns. Entry (i, j) of a mask applies to both
        distributions.

    Raises
    ------
    ValueError
        If an option is not one of the listed values.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, y = np.asarray([[1.0, 0.0], [0.0, 1.0]]), np.asarray([[0.8, 0.6], [0.0, 1.0]])
    >>> round(float(pnce.contrast(x, y, objective=pnce.objectives.relic())), 6)
    0.483086
    """
    check_scalar("alpha", alpha)
    check_choice("direction", direction, DIRECTIONS)
    symmetric = check_bool("symmetric", symmetric)
    if stop_gradient is not None:
        check_choice("stop_gradient", stop_gradient, SIDES)
    include_positive = check_bool("include_positive", include_positive)
    return Relic(alpha, direction, stop_gradient, symmetric, info_nce(), include_positive)
