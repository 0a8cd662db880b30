"""Types of arguments, for functions that pass them on.

====================================================== ====================================================
name                                                   meaning
====================================================== ====================================================
`AnyArray`                                             array of any library, with a shape and a dtype
`ArrayOf`                                              such an array, of the library's array type:
                                                       ``def f(x: ArrayOf[T]) -> T``
`AnySimilarity`, `AnyObjective`                        types of `similarity` and `objective`
`BlockSize`                                            type of `block_size`
`ReductionName`, `SimilarityName`, `ObjectiveName`,    names of reductions, similarities, objectives,
`PairingName`, `Precision`                             pairings and precisions
`MultiPositive`, `FlatForm`, `TripletForm`,            strings of `multi_positive`, of `form` (three),
`AnchorForm`, `Averaging`, `DivideBy`                  of `average` and of `divide_by`
`RelicDirection`, `StoppedSide`, `JointDirection`,     of `direction`, `stop_gradient`, `directions`,
`MarginStrategy`, `NegativesOfViews`                   `margin_strategy` and `negatives`
`Mining`, `MiningName`, `MiningRule`                   of `mining`: both, a name, and a rule of a pair
`GradientsOfRanks`                                     of `gradients`, of ranks
====================================================== ====================================================

Type checkers reject a plain ``str`` variable as an option; annotate it:

>>> from typing import get_args
>>> import portable_nce as pnce
>>> def loss(x: pnce.typing.AnyArray, reduction: pnce.typing.ReductionName) -> object:
...     return pnce.nt_xent(x, x, reduction=reduction)
>>> get_args(pnce.typing.ReductionName)
('mean', 'sum', 'none')
"""

# ruff: noqa: F403, F405  (`__all__` lists the public names)
from __future__ import annotations

from ._core.types import *
from .objectives import AnyObjective
from .similarities import AnySimilarity

__all__ = [
    "AnchorForm",
    "AnyArray",
    "AnyObjective",
    "AnySimilarity",
    "ArrayOf",
    "Averaging",
    "BlockSize",
    "DivideBy",
    "FlatForm",
    "GradientsOfRanks",
    "JointDirection",
    "MarginStrategy",
    "Mining",
    "MiningName",
    "MiningRule",
    "MultiPositive",
    "NegativesOfViews",
    "ObjectiveName",
    "PairingName",
    "Precision",
    "ReductionName",
    "RelicDirection",
    "SimilarityName",
    "StoppedSide",
    "TripletForm",
]

__dir__ = __all__.copy  # what completion offers
