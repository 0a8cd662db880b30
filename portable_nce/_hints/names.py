"""Names of losses in other libraries, and errors for names that a public module does not have."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.util import find_spec
from opcode import opmap
from typing import Any

__all__ = ["OTHER_NAMES", "no_attribute"]

OTHER_NAMES = {
    "AnglELoss": "angle",
    "BatchAllTripletLoss": "triplet_from_labels",
    "BatchHardSoftMarginTripletLoss": "triplet_from_labels",
    "BatchHardTripletLoss": "triplet_from_labels",
    "BatchSemiHardTripletLoss": "triplet_from_labels",
    "binary_cross_entropy_with_logits": "from_scores.logistic density.negative_sampling",
    "CachedGISTEmbedLoss": "gist_embed",
    "CachedMultipleNegativesRankingLoss": "info_nce",
    "ClipLoss": "clip",
    "ContrastiveLoss": "contrastive from_scores.contrastive",
    "CoSENTLoss": "cosent",
    "cosine_embedding_loss": "from_scores.contrastive",
    "cross_entropy": "from_scores.info_nce contrast from_scores.clip density.full_softmax",
    "CrossBatchMemory": "supcon",
    "DCLLoss": "dcl",
    "DCLWLoss": "dclw",
    "DistillClipLoss": "distillation",
    "DistillKLDivLoss": "from_scores.info_nce",
    "GCLoss_v1": "sogclr",
    "GCLoss_v2": "sogclr",
    "GISTEmbedLoss": "gist_embed from_scores.info_nce",
    "hinge_embedding_loss": "from_scores.contrastive",
    "HypersphereLoss": "diagnostics.uniformity diagnostics.alignment",
    "InfoNCE": "info_nce",
    "linear_cross_entropy": "density.linear_softmax",
    "manual_simclr_loss_func": "nt_xent",
    "MatryoshkaLoss": "matryoshka",
    "moco_loss_func": "moco",
    "MultipleNegativesRankingLoss": "info_nce from_scores.info_nce joint_info_nce",
    "MultipleNegativesSymmetricRankingLoss": "info_nce",
    "MultiVectorMultipleNegativesRankingLoss": "info_nce",
    "NCALoss": "nca soft_nearest_neighbor",
    "nnclr_loss_func": "nnclr",
    "NNMemoryBankModule": "nnclr",
    "NPairsLoss": "n_tuple",
    "ntxent": "nt_xent supcon",
    "NTXentLoss": "nt_xent moco supcon",
    "ressl_loss_func": "distillation",
    "SelfSupervisedLoss": "nt_xent info_nce",
    "SigLipLoss": "siglip",
    "sigmoid_binary_cross_entropy": "from_scores.logistic",
    "simclr_loss_func": "nt_xent supcon",
    "softmax_cross_entropy_with_integer_labels": "from_scores.info_nce",
    "SupConLoss": "supcon",
    "triplet_margin_loss": "triplet",
    "triplet_margin_with_distance_loss": "triplet",
    "TripletLoss": "triplet",
    "TripletMarginLoss": "triplet_from_labels",
}
"""Functions here by the name in another library, as in docs/coming-from.md."""

_PUBLIC = (
    "",
    "from_scores",
    "bounds",
    "density",
    "diagnostics",
    "estimation",
    "objectives",
    "pairings",
    "similarities",
)
_PACKAGE = __name__.rpartition("._hints.")[0]


_TOPICS = {
    "modules": f"import {_PACKAGE}.modules.torch, or {_PACKAGE}.modules.jax",
    "testing": f"import {_PACKAGE}.testing",
    "losses": f"the losses are functions of {_PACKAGE}, such as {_PACKAGE}.info_nce",
    "mi": f"use {_PACKAGE}.estimation.mutual_information or {_PACKAGE}.bounds",
    "NCE": f"use {_PACKAGE}.density.local_nce, or {_PACKAGE}.info_nce for InfoNCE",
    "CircleLoss": f"use {_PACKAGE}.from_scores.dcl of both kinds of pairs, as in docs/names.md",
    "MultiSimilarityLoss": f"use {_PACKAGE}.from_scores.info_nce of both kinds of pairs, as in docs/names.md",
    "ProxyNCALoss": f"use {_PACKAGE}.info_nce with positives=labels, as in docs/names.md",
    "ArcFaceLoss": f"use {_PACKAGE}.contrast with a margin in the objective, as in docs/names.md",
}
"""Remedies for names of the package itself that are no name of a function."""


def no_attribute(module: str, name: str) -> AttributeError | ImportError:
    """Error for a name that a public module does not have.

    In ``from package import name``, Python's own ImportError would take the place of an AttributeError, and of its
    remedy: `importlib` asks whether the package has the name, and there an ImportError is not replaced.
    """
    found = [] if name.startswith("_") else _meant(module.removeprefix(_PACKAGE).removeprefix("."), name)
    found = [path for path in found if path.rpartition(".")[2] in _names_of(path.rpartition(".")[0])]  # copies have few
    message, remedy = f"module {module!r} has no attribute {name!r}", ""
    if module == _PACKAGE and name in _TOPICS:
        remedy = f"; {_TOPICS[name]}"
    elif found:
        *first, last = [f"{_PACKAGE}.{path}" for path in found]
        remedy = f"; use {', '.join(first)} or {last}" if first else f"; use {last}"
        if name[0].isupper() and ".modules." not in module:
            remedy += f", or a torch.nn.Module of {_PACKAGE}.modules.torch"
    if remedy and _is_import(sys._getframe(2)) and _no_module(module, name):  # noqa: SLF001  (the caller of __getattr__)
        return ImportError(f"cannot import name {name!r} from {module!r}{remedy}", name=module)
    return AttributeError(message + remedy, name=name, obj=sys.modules[module])


def _is_import(frame: Any) -> bool:
    """Whether a frame is about to import a name from a module: of a package by `importlib`, else by an instruction."""
    if frame.f_code.co_name == "_handle_fromlist":
        return True
    instruction = frame.f_code.co_code[frame.f_lasti] if frame.f_lasti >= 0 else -1
    return bool(instruction == opmap.get("IMPORT_FROM"))


def _no_module(module: str, name: str) -> bool:
    """Whether a package has no module of this name."""
    return not hasattr(sys.modules[module], "__path__") or find_spec(f"{module}.{name}") is None


def _meant(here: str, name: str) -> list[str]:
    """Functions that are probably meant, with their modules."""
    from difflib import get_close_matches  # noqa: PLC0415  (only for messages)

    if here not in _PUBLIC:  # a module of classes
        classes = {_squeezed(own): f"{here}.{own}" for own in _names_of(here)}
        return [classes[other] for other in get_close_matches(_squeezed(name), classes, 1, 0.7)]
    paths = [f"{place}.{own}".lstrip(".") for place in _PUBLIC for own in _names_of(place) if own[0].islower()]
    by_name: dict[str, list[str]] = {}
    for path in paths:
        by_name.setdefault(_squeezed(path.rpartition(".")[2]), []).append(path)
    wanted = _squeezed("logistic" if (here, name) == ("from_scores", "siglip") else name)
    same = by_name.get(wanted, [])
    mine = [path for path in same if path.rpartition(".")[0] == here]
    others = {_squeezed(other): ours.split() for other, ours in OTHER_NAMES.items()}
    if not here and name in OTHER_NAMES:
        return OTHER_NAMES[name].split()
    if mine or same or wanted in others:
        return mine or others.get(wanted) or same
    near = get_close_matches(wanted, [*by_name, *others], 1, 0.7)
    return [path for key in near for path in by_name.get(key) or others[key]]


def _names_of(place: str) -> list[str]:
    """Public names of a module; none if a copy in another library leaves it out, or it is being imported."""
    try:
        names: list[str] = import_module(f"{_PACKAGE}.{place}".rstrip(".")).__all__
    except (ImportError, AttributeError):
        return []
    return names


def _squeezed(name: str) -> str:
    """Name without case, punctuation and the word loss."""
    return re.sub(r"(loss)?(func(tion)?)?$", "", re.sub(r"[^a-z0-9]", "", name.lower()))
