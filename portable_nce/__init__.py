"""Noise-contrastive losses and mutual-information bounds, on any array library.

The losses of embeddings are here, those of a score matrix in `from_scores`, bounds on mutual information in `bounds`.
Similarities, pairings and objectives can be combined freely by `contrast`; `value_and_grad` differentiates any
function of arrays, also where the library cannot.
"""

from __future__ import annotations

from . import bounds, diagnostics, from_scores, objectives, pairings, similarities
from ._autodiff import grad, stop_gradient, value_and_grad
from ._contrast import contrast
from ._losses import clip, dcl, flat_nce, info_nce, nt_xent
from ._protocol import Adapter
from ._registry import backends_available, register_backend

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "backends_available",
    "bounds",
    "clip",
    "contrast",
    "dcl",
    "diagnostics",
    "flat_nce",
    "from_scores",
    "grad",
    "info_nce",
    "nt_xent",
    "objectives",
    "pairings",
    "register_backend",
    "similarities",
    "stop_gradient",
    "value_and_grad",
]
