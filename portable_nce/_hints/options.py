"""Remedies for options that a function does not have, but others have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

Functions = Sequence[Callable[..., Any]]
"""The functions of the package whose arguments are explained."""

_PACKAGE = __name__.rpartition("._hints.")[0]


def remedy_for(option: str, name: str, module: str | None, names: Collection[str], functions: Functions) -> str:
    """What to use in place of an option that the function `name`, with the arguments `names`, does not have.

    `module` is the module of the function. The remedy is empty for an option that none of the `functions` has.
    """
    from difflib import get_close_matches  # noqa: PLC0415  (only for messages)

    place = _place_of(name, module)
    if name == "matryoshka":
        return "pass it to the loss that matryoshka returns" if _takers(option, "", functions) else ""
    known = OF_ONE.get((f"{place}.{name}" if place else name, option))
    if known is not None:
        return known
    if {"scores", "data_scores", "noise_scores"} & {*names}:
        own = option in _BY_POSITIVES and "positives" not in names
        known = _OF_SCORES.get(option) or (_BY_POSITIVES.get(option) if not own else None)
        known = known or (_OF_GIVEN_SCORES.get(option) if place == "from_scores" else None)
    else:
        other = next((other for other in INSTEAD.get(option, ()) if other in names), None)
        both_ways = option == "symmetric" and _BOTH_WAYS & {*names}
        known = f"pass {other}=..." if other else _BOTH_IN if both_ways else None
        known = known or (OF_EMBEDDINGS.get(option) if place == "" else None) or ELSEWHERE.get(option)
    if known is not None:
        return known
    near = get_close_matches(option, names, 1, 0.9)
    if near:
        return f"did you mean {near[0]!r}?"
    for other_place in dict.fromkeys((place, "", "from_scores", "density", "bounds", "diagnostics")):
        takers = _takers(option, other_place, functions)
        if takers:
            path = "" if other_place == place else f"{other_place or 'portable_nce'}."
            some = [path + taker for taker in takers[: 3 if len(takers) > _MOST_TAKERS else None]]
            *first, last = [*some, "others"] if len(takers) > len(some) else some
            return f"{', '.join(first)} and {last} take it" if first else f"{last} takes it"
    return ""


def remedy_for_missing(name: str, given: tuple[Any, ...], functions: Functions) -> str:
    """What to call instead of the function `name` with too few arrays; empty if they do not tell what was meant."""
    first, last = (given[0], given[-1]) if given else (None, None)
    axes = len(_lengths_of(first))
    if name == "triplet" and _is_of_integers(last):
        return "for labels, use triplet_from_labels(embeddings, labels)"
    if len(given) != 1:
        return ""
    if name in _OF_VIEWS:
        several = isinstance(first, (list, tuple)) or axes == 3  # noqa: PLR2004  (views, rows, features)
        split = f"split an array of both views, as in {name}(both[:N], both[N:])" if axes else ""
        return f"unpack the views, as in {name}(*views)" if several else split
    if name == "supcon":
        return "for views without labels, use nt_xent(view_a, view_b)"
    of_scores = {"siglip": "logistic"}.get(name, name)
    square = axes == 2 and len(set(_lengths_of(first))) == 1  # noqa: PLR2004  (a matrix)
    return (
        f"for a matrix of scores, use from_scores.{of_scores}(scores)"
        if square and _is_of_scores(of_scores, functions)
        else ""
    )


_OF_VIEWS = {"nt_xent", "flat_nce", "dcl", "dclw", "hcl"}
"""Losses of views, which other libraries take in one array."""


def _lengths_of(x: Any) -> tuple[Any, ...]:
    shape = getattr(x, "shape", ())
    return tuple(shape) if isinstance(shape, tuple) else ()


def _is_of_integers(x: Any) -> bool:
    return "int" in str(getattr(x, "dtype", "")) and len(_lengths_of(x)) == 1


def _is_of_scores(name: str, functions: Functions) -> bool:
    named = ((function.__name__, function.__module__) for function in functions)
    return any(other == name and _place_of(other, module) == "from_scores" for other, module in named)


_MOST_TAKERS = 4
"""Number of functions up to which a message names all that take an option."""


def _place_of(name: str, module: str | None) -> str | None:
    """Public module of a function, "" for losses of embeddings; None if it is internal."""
    first, *rest = (module or "").removeprefix(f"{_PACKAGE}.").split(".")
    if first == "_losses" or name == "contrast":
        return "density" if rest == ["linear_softmax"] else ""
    return None if first.startswith("_") else first


def _takers(option: str, place: str | None, functions: Functions) -> list[str]:
    """Names of the functions of a public module that have an argument of this name; of embeddings, of the losses."""
    here = [function for function in functions if _place_of(function.__name__, function.__module__) == place]
    arguments = {function.__name__: inspect.signature(function).parameters for function in here}
    return sorted(name for name, own in arguments.items() if option in own and (place != "" or "weights" in own))


_EMBEDDED = "scores are given; losses of embeddings, such as portable_nce.info_nce, take it"
_NOTHING_TO_SUM = "leave it out: the loss is one logarithm over all pairs"
_NO_MATRIX = "leave it out: each pair has one score, and no matrix of them is formed"

_ONE_SCORE = "leave it out: each pair has one score"
_BOTH_IN = "leave it out: both directions are in the loss"
_SMOOTHED = "pass soft targets, positives=(1 - smoothing) * eye(N) + smoothing / N"
_SMOOTHINGS = ("smoothing", "label_smoothing")

OF_ONE = {
    ("siglip", "positives"): (
        "use contrast(..., objective=objectives.logistic(bias=...), pairing=pairings.explicit(...)), with "
        "temperature = 1 / logit_scale"
    ),
    ("clip", "positives"): "use info_nce(..., positives=..., symmetric=True), with temperature = 1 / logit_scale",
    ("density.linear_softmax", "labels"): "pass embeddings, weight, targets by position; targets are the labels",
    ("density.full_softmax", "labels"): "pass scores, targets by position; targets are the labels",
    ("angle", "similarity"): "use cosent(..., similarity=...)",
    **{(name, "reduction"): _NOTHING_TO_SUM for name in ("angle", "cosent", "from_scores.cosent")},
    **{(name, option): _NO_MATRIX for name in ("angle", "cosent") for option in ("block_size", "precision")},
    ("dcl", "include_positive"): "for denominators with the positive, use nt_xent",
    ("from_scores.dcl", "include_positive"): "for denominators with the positive, use from_scores.info_nce",
    ("from_scores.cosent", "positives"): "pass grades, by position: pairs of a higher grade should have higher scores",
    **{
        (f"from_scores.{name}", "positives"): "they are on the diagonal; use from_scores.info_nce(..., positives=...)"
        for name in ("clip", "relic")
    },
    (
        "from_scores.info_nce",
        "symmetric",
    ): "use from_scores.clip(scores), or the mean of the losses of scores and scores.T",
    ("from_scores.clip", "symmetric"): _BOTH_IN,
    ("from_scores.cosent", "pair_weights"): "pass weights=..., those of the pairs",
    **{
        (f"from_scores.{name}", "pair_weights"): "each term has two pairs; pass weights=... of the rows, or a mask"
        for name in ("triplet", "margin_mse")
    },
    ("from_scores.cosent", "symmetric"): _ONE_SCORE,
    ("from_scores.margin_mse", "symmetric"): (
        "take the mean of the losses of scores, teacher_scores and of scores.T, teacher_scores.T"
    ),
    **{(f"from_scores.{name}", option): _SMOOTHED for name in ("info_nce", "supcon") for option in _SMOOTHINGS},
    **{(name, "temp"): "pass logit_scale=..., its inverse" for name in ("clip", "siglip")},
    **{
        (f"bounds.{name}", "reduction"): "leave it out: the bound is one number"
        for name in ("barber_agakov", "dv", "mine", "smile")
    },
}
"""Remedies by function and option."""

INSTEAD = {
    "temp": ("temperature",),
    "negative_keys": ("keys", "negative_candidates", "queue"),
    "keys": ("negative_keys", "negative_candidates", "queue"),
    "queue": ("keys", "support"),
    "negative_candidates": ("negative_keys", "keys", "queue"),
}
"""Other names of the same array, by name."""

_BOTH_WAYS = {"view_a", "image", "query_a", "directions", "embeddings"}
"""Arguments of losses in which each row is a query and a key."""

OF_EMBEDDINGS = {
    "queue": "use moco(query, key, queue)",
    **dict.fromkeys(("pos_weight", "pair_weights"), "for weights of pairs, use contrast with pairings.weighted(...)"),
    **dict.fromkeys(
        _SMOOTHINGS,
        'use contrast(..., objective="info_nce", pairing=pairings.smoothed(...)), with the same temperature',
    ),
    "ids": "for items drawn twice, use two_tower(..., ids=...) or contrast with pairings.ids",
    "negative_ids": "for items drawn twice, use two_tower(..., negative_ids=...)",
    "log_q": "for sampling probabilities, use two_tower(..., log_q=...)",
    "negative_log_q": "for sampling probabilities, use two_tower(..., negative_log_q=...)",
    "positives": "use info_nce(..., positives=...), or contrast with pairings.index or pairings.explicit",
    "symmetric": "use info_nce(..., symmetric=True), or the mean of the losses of both directions",
    "include_positive": 'for denominators without the positive, use dcl, or contrast(..., objective="flat_nce")',
    "ignore_index": "to leave rows out, pass weights=..., with 0 for them",
}
ELSEWHERE = {
    "tau_plus": "for debiased negatives, use hcl(view_a, view_b, tau_plus=...)",
    "labels": "for positives by label, use supcon(embeddings, labels) or contrast with pairings.labels",
    **dict.fromkeys(
        ("local_loss", "gather_with_grad", "rank", "world_size", "use_horovod"),
        "for the batch of all ranks, pass across=portable_nce.across(...)",
    ),
    "normalize": "the default similarity, cosine, normalises; similarity='dot' does not",
    "negative_mode": "negative_keys of shape (M, D) are shared, of shape (N, M, D) separate",
    "distance": "pass similarity=..., for example 'neg_euclidean'",
    "dim": "rows are the first axis",
    "axis": "rows are the first axis",
}
_BY_POSITIVES = {
    "pairing": "pass positives=..., the column of each row's positive, a mask, or soft targets",
    "labels": "pass positives=..., for example labels[:, None] == labels[None, :]",
    "targets": "pass positives=..., the column of each row's positive",
    "target": "pass positives=..., the column of each row's positive",
}
_OF_SCORES = {
    "pos_weight": "for weights of pairs, pass pair_weights=...",
    "tau_plus": "for debiased negatives, use hcl(view_a, view_b, tau_plus=...)",
    "tau": "the limit of the log-ratios is clip=...",
    **dict.fromkeys(("block_size", "precision", "across", "hardness", "normalize"), _EMBEDDED),
    "dim": "rows are the first axis",
    "axis": "rows are the first axis",
}
_OF_GIVEN_SCORES = {
    "similarity": _EMBEDDED,
    "symmetric": "take the mean of the losses of scores and scores.T, with positives and mask transposed as well",
    "include_positive": "for denominators without the positive, use from_scores.dcl",
}
"""Remedies for options that other functions and libraries have, by name: for losses of embeddings, for anything but
scores, and for functions of scores: with positives, any, and losses."""
