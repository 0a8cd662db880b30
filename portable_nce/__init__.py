"""Noise-contrastive losses and mutual-information bounds, on any array library.

Losses of embeddings are here, losses of a score matrix in `from_scores`, bounds on mutual information in `bounds`,
estimators of densities in `density`. `contrast` combines similarities, pairings and objectives; `value_and_grad`
differentiates any function of arrays, even if the library cannot.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import bounds, density, diagnostics, estimation, from_scores, objectives, pairings, similarities, typing
    from ._call import contrast
    from ._core.autodiff import grad, stop_gradient, value_and_grad
    from ._core.protocol import Adapter
    from ._core.ranks import Communicator, Ranks, across
    from ._core.registry import backends_available, register_backend
    from ._execution.explain import explain
    from ._execution.fusing import fuse_steps
    from ._losses.global_contrastive import sogclr
    from ._losses.graded import angle, cosent
    from ._losses.in_batch import clip, cpc, info_nce, n_tuple, relic, siglip
    from ._losses.joint import joint_info_nce
    from ._losses.judged import distillation, gist_embed
    from ._losses.labels import contrastive, nca, soft_nearest_neighbor, supcon, triplet, triplet_from_labels
    from ._losses.memory import moco, moco_v3, nnclr
    from ._losses.nested import matryoshka
    from ._losses.prototypes import concentrations, proto_nce
    from ._losses.queue import Queue, queue_init, queue_push
    from ._losses.retrieval import two_tower
    from ._losses.views import dcl, dclw, flat_nce, hcl, nt_xent
    from .similarities import prepare

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Communicator",
    "Queue",
    "Ranks",
    "across",
    "angle",
    "backends_available",
    "bounds",
    "clip",
    "concentrations",
    "contrast",
    "contrastive",
    "cosent",
    "cpc",
    "dcl",
    "dclw",
    "density",
    "diagnostics",
    "distillation",
    "estimation",
    "explain",
    "flat_nce",
    "from_scores",
    "fuse_steps",
    "gist_embed",
    "grad",
    "hcl",
    "info_nce",
    "joint_info_nce",
    "matryoshka",
    "moco",
    "moco_v3",
    "n_tuple",
    "nca",
    "nnclr",
    "nt_xent",
    "objectives",
    "pairings",
    "prepare",
    "proto_nce",
    "queue_init",
    "queue_push",
    "register_backend",
    "relic",
    "siglip",
    "similarities",
    "soft_nearest_neighbor",
    "sogclr",
    "stop_gradient",
    "supcon",
    "triplet",
    "triplet_from_labels",
    "two_tower",
    "typing",
    "value_and_grad",
]

__dir__ = __all__.copy  # what completion offers

_HOMES = {
    "_call": "contrast",
    "_core.autodiff": "grad stop_gradient value_and_grad",
    "_core.protocol": "Adapter",
    "_core.ranks": "Communicator Ranks across",
    "_core.registry": "backends_available register_backend",
    "_execution.explain": "explain",
    "_execution.fusing": "fuse_steps",
    "_losses.global_contrastive": "sogclr",
    "_losses.graded": "angle cosent",
    "_losses.in_batch": "clip cpc info_nce n_tuple relic siglip",
    "_losses.joint": "joint_info_nce",
    "_losses.judged": "distillation gist_embed",
    "_losses.labels": "contrastive nca soft_nearest_neighbor supcon triplet triplet_from_labels",
    "_losses.memory": "moco moco_v3 nnclr",
    "_losses.nested": "matryoshka",
    "_losses.prototypes": "concentrations proto_nce",
    "_losses.queue": "Queue queue_init queue_push",
    "_losses.retrieval": "two_tower",
    "_losses.views": "dcl dclw flat_nce hcl nt_xent",
    "similarities": "prepare",
}
"""Module of each public name that is not a module. A module is imported at the first use of one of its names."""


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on first use."""
        if name not in __all__:
            from ._hints.names import no_attribute  # noqa: PLC0415  (only for messages)

            raise no_attribute(__name__, name)
        home = next((home for home, names in _HOMES.items() if name in names.split()), None)
        module = import_module(f".{home or name}", __name__)
        value = globals()[name] = module if home is None else getattr(module, name)
        return value
