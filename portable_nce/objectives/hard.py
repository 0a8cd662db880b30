"""Objective of hard negatives: InfoNCE with reweighted and debiased negatives."""

from __future__ import annotations

import math
from typing import Any

from .._core.checks import (
    check_number,
    check_scalar_or_rows,
    explained,
)
from .._core.namespace import is_number
from .._core.types import AnyArray
from .base import Labelled

__all__ = ["HardNegatives", "hard_negatives"]


class HardNegatives(Labelled):
    """InfoNCE with a reweighted and debiased sum of the negatives."""

    label = "hard_negatives"
    beta: float
    tau_plus: float
    floor: Any
    by_mask = True

    @property
    def facts(self) -> HardNegatives:
        """The objective without its array, which a sweep takes as a parameter."""
        return self._replace(floor=None)


@explained
def hard_negatives(
    *, beta: float = 1.0, tau_plus: float = 0.1, floor: float | AnyArray = float("-inf")
) -> HardNegatives:
    r"""Return the objective of hard negatives (HCL), for ``beta=0`` the debiased contrastive objective.

    .. math:: \ell_i = \log\Big(1 + \frac{N_i}{e^{g_i^+}}\Big), \qquad
        N_i = \max\Big(\frac{1}{1 - \tau^+} \Big(M_i\, \frac{\sum_{Q(i)} e^{(1 + \beta) g_{ij}}}{\sum_{Q(i)}
        e^{\beta g_{ij}}} - \tau^+ M_i\, e^{g_i^+}\Big),\; M_i\, e^{f}\Big)

    over the :math:`M_i` negatives of a row; :math:`g_i^+` is the score of its positive, or the log-sum-exp of several.

    Parameters
    ----------
    beta : float, default: 1.0
        Concentration β ≥ 0 on hard negatives.
    tau_plus : float, default: 0.1
        Prior τ⁺ of a positive, from 0 to less than 1.
    floor : float, or array of one entry or of shape (N,), default: -inf
        Smallest possible score f, a constant: ``-1 / τ`` for cosines.

    Returns
    -------
    HardNegatives
        The objective, for `contrast`.

    Raises
    ------
    ValueError
        If a number is out of range.

    References
    ----------
    Robinson, Chuang, Sra and Jegelka (2021), "Contrastive Learning with Hard Negative Samples", arXiv:2010.04592,
    equation 4; Chuang, Robinson, Lin, Torralba and Jegelka (2020), "Debiased Contrastive Learning", arXiv:2007.00224,
    equation 8.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> hard = pnce.objectives.hard_negatives(beta=1.0, tau_plus=0.1, floor=-2.0)
    >>> round(float(pnce.contrast(np.eye(3), np.eye(3), objective=hard, temperature=0.5)), 6)
    0.075592
    """
    beta, tau_plus = check_number("beta", beta), check_number("tau_plus", tau_plus)
    if beta < 0:
        raise ValueError(f"beta: expected a number that is not negative, got {beta}")
    if not 0 <= tau_plus < 1:
        raise ValueError(f"tau_plus: expected a number from 0 to less than 1, got {tau_plus}")
    if not is_number(floor) or floor != -math.inf:
        check_scalar_or_rows("floor", floor)
    return HardNegatives(beta, tau_plus, floor)
