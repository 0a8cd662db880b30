"""Triplet objective: a positive should be nearer than a negative by a margin."""

from __future__ import annotations

from typing import Any, get_args

from .._core.checks import (
    check_choice,
    check_scalar,
    explained,
    nearest,
    warn_of_number,
)
from .._core.types import AnyArray, Averaging, Mining, MiningName, MiningRule, TripletForm
from .base import Labelled
from .pairwise import AVERAGES

__all__ = ["Triplet", "triplet"]


class Triplet(Labelled):
    """All or mined triples of a row; `mining` holds the rules for positives and negatives."""

    margin: Any
    mining: tuple[str, str]
    soft: bool
    average: str
    of_triples = True

    @property
    def by_mask(self) -> bool:  # type: ignore[override]  # read-only
        """Whether a positive is compared with some negatives alone."""
        return self.mining != ("all", "all")

    @property
    def facts(self) -> Triplet:
        """The objective without its array, which a sweep takes as a parameter."""
        return self._replace(margin=None)

    @property
    def label(self) -> str:  # type: ignore[override]  # read-only
        """Name in `repr`."""
        names = [name for name, rules in _NAMED.items() if rules == self.mining]
        return f"triplet, {names[0] if names else f'{self.mining[0]} positives, {self.mining[1]} negatives'}"


@explained
def triplet(
    *,
    margin: float | AnyArray = 0.2,
    mining: Mining = "batch_all",
    form: TripletForm = "margin",
    average: Averaging = "all",
) -> Triplet:
    r"""Return the triplet objective: a positive should be nearer than a negative by a margin.

    .. math:: \ell_i = \sum_{p \in P(i)} \sum_{n \in Q(i)} \max(d_{ip} - d_{in} + m, 0), \qquad d_{ij} = -g_{ij}

    Parameters
    ----------
    margin : float or array of one entry, default: 0.2
        Margin m.
    mining : {"batch_all", "batch_hard", "semi_hard"} or pair of str, default: "batch_all"
        All triples of a row; the farthest positive with the nearest negative; or every positive with the nearest
        negative that is farther than it, else with the farthest negative (FaceNet's choice, as in TensorFlow Addons). A
        pair gives the rules for positives and negatives, as in ``("easy", "semi_hard")``. The rules are ``"all"``;
        ``"hard"``, the farthest positive or the nearest negative; ``"easy"``, the nearest positive or the farthest
        negative; and, on one side only, ``"semi_hard"``, the nearest negative that is farther than the positive (else
        the farthest), or the farthest positive that is nearer than the negative (else the nearest). With form "margin",
        a negative that is farther by the margin has no loss.
    form : {"margin", "soft"}, default: "margin"
        ``"soft"`` takes :math:`\log(1 + e^t)` in place of :math:`\max(t, 0)`.
    average : {"all", "nonzero"}, default: "all"
        Whether the mean is over all triples, or over those whose loss is not 0.

    Returns
    -------
    Triplet
        The objective, for `contrast` with a similarity that is minus a distance. Rows without a triple do not count.

    Raises
    ------
    ValueError
        If an option is not one of the listed values.

    References
    ----------
    Hermans, Beyer and Leibe (2017), "In Defense of the Triplet Loss for Person Re-Identification", arXiv:1703.07737.
    Schroff, Kalenichenko and Philbin (2015), "FaceNet: A Unified Embedding for Face Recognition and Clustering",
    arXiv:1503.03832, section 3.2: semi-hard negatives.

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
    warn_of_number("margin", margin, None, least=0.0)
    check_choice("form", form, FORMS)
    check_choice("average", average, AVERAGES)
    return Triplet(margin, _rules(mining), form == "soft", average)


_NAMED: dict[MiningName, tuple[MiningRule, MiningRule]] = {
    "batch_all": ("all", "all"),
    "batch_hard": ("hard", "hard"),
    "semi_hard": ("all", "semi_hard"),
}
_RULES: tuple[MiningRule, ...] = get_args(MiningRule)
FORMS: tuple[TripletForm, ...] = get_args(TripletForm)


def _rules(mining: Any) -> tuple[str, str]:
    """Rules for positives and negatives from a name or a pair."""
    if isinstance(mining, str) and mining in _NAMED:
        return _NAMED[mining]
    pair = isinstance(mining, tuple) and len(mining) == 2  # noqa: PLR2004  (a pair)
    if not pair or not all(isinstance(rule, str) and rule in _RULES for rule in mining):
        near = nearest(mining, _NAMED) if isinstance(mining, str) else ""
        names, rules = (", ".join(map(repr, choices)) for choices in (_NAMED, _RULES))
        raise ValueError(f"mining: expected one of {names}, or a tuple of two of {rules}, got {mining!r}{near}")
    if mining == ("semi_hard", "semi_hard"):
        raise ValueError(
            f"mining: expected 'semi_hard' on one side, relative to what the other side chooses, got {mining!r}"
        )
    return mining[0], mining[1]
