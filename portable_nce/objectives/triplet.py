"""Objectives of triples: a positive is to be nearer than a negative, by a margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._core.checks import check_choice, check_scalar
from .._core.equality import EqualByContents
from .._core.protocol import Array
from .pairwise import AVERAGES

__all__ = ["Triplet", "triplet"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Triplet(EqualByContents):
    """All triples of a row, or its hardest one."""

    margin: Any
    mining: str
    soft: bool
    average: str

    @property
    def label(self) -> str:
        """What it is called."""
        return f"triplet, {self.mining}"

    def __repr__(self) -> str:
        return f"<objective {self.label}>"

    def _contents(self) -> tuple[Any, ...]:
        return (self.margin, self.mining, self.soft, self.average)


def triplet(
    *, margin: float | Array = 0.2, mining: str = "batch_all", form: str = "margin", average: str = "all"
) -> Triplet:
    r"""Return the triplet objective: a positive is to be nearer than a negative, by a margin.

    .. math:: \ell_i = \sum_{p \in P(i)} \sum_{n \in Q(i)} \max(d_{ip} - d_{in} + m, 0), \qquad d_{ij} = -g_{ij}

    Parameters
    ----------
    margin : float or array of one entry, default: 0.2
        Margin m.
    mining : {"batch_all", "batch_hard"}, default: "batch_all"
        All triples of a row, or only that of its farthest positive and its nearest negative.
    form : {"margin", "soft"}, default: "margin"
        ``"soft"`` takes :math:`\log(1 + e^t)` in place of :math:`\max(t, 0)`.
    average : {"all", "nonzero"}, default: "all"
        Whether a mean is over all triples, or over those whose loss is not 0.

    Returns
    -------
    Triplet
        The objective, for `contrast` with a similarity that is minus a distance. Rows without a triple do not count.

    Raises
    ------
    ValueError
        If an option is none of the values named.

    References
    ----------
    Hermans, Beyer and Leibe (2017), "In Defense of the Triplet Loss for Person Re-Identification", arXiv:1703.07737.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, y = np.asarray([[0.0, 0.0], [1.0, 0.0]]), np.asarray([[0.5, 0.0], [1.0, 0.5]])
    >>> hinge = pnce.objectives.triplet(margin=0.75)
    >>> round(float(pnce.contrast(x, y, objective=hinge, similarity="neg_euclidean")), 6)
    0.440983
    """
    check_scalar("margin", margin)
    check_choice("mining", mining, ("batch_all", "batch_hard"))
    check_choice("form", form, ("margin", "soft"))
    check_choice("average", average, AVERAGES)
    return Triplet(margin=margin, mining=mining, soft=form == "soft", average=average)
