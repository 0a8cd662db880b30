"""A table of loss calls with example inputs, as nested Python lists of numbers that float32 represents exactly.

It names no framework. To run a case, convert the lists to arrays, in the order of ``Case.arguments`` and then
``Case.constants``, and pass them to ``Case.function``:

>>> from portable_nce.testing import CASES
>>> case = next(case for case in CASES if case.name == "from_scores.info_nce")
>>> list(case.arguments), list(case.constants)
(['scores'], [])
>>> len(case.arguments["scores"])
3
"""

from __future__ import annotations

import inspect
import math
import random
import struct
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .._core.namespace import namespace_of
from ._package import pnce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ["CASES", "LOSSES", "Case", "Loss", "Nested", "example", "make_cases"]

Nested: TypeAlias = Any
"""A number, or a list of nested numbers."""

Row: TypeAlias = dict[str, Nested]
"""Inputs of a case by name."""

Table: TypeAlias = dict[str, Row]
"""Suffix of the case's name -> its inputs."""

Regime = Literal["normal", "saturated"]

NOT_REDUCED = frozenset({"bounds.dual_critic", "density.log_partition", "density.recover_log_prob"})
"""Functions that return an array; a case sums it."""

WITHOUT_GRADIENT = frozenset(
    {f"diagnostics.{name}" for name in ("mean_reciprocal_rank", "recall_at", "top_k_accuracy")}
)
"""Functions whose result is a constant to automatic differentiation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of one loss, with its inputs.

    Attributes
    ----------
    name : str
        Name in reports: the loss, then the options of the call.
    loss : str
        The public name of the loss below ``portable_nce``, such as ``"from_scores.dcl"``.
    arguments : mapping of str to nested list
        The differentiable arrays, by name, in the order in which ``function`` takes them.
    constants : mapping of str to nested list
        The arrays that are not differentiated (indices, labels, masks, weights), by name; ``function`` takes them
        after the arguments. Integers and booleans keep their kind, floats take the dtype under test.
    options : mapping of str to object
        The keyword options that are not arrays.
    regime : {"normal", "saturated"}
        Saturated: every positive leads its negatives so far that the gradient of cross-entropy would round to zero.
    """

    name: str
    loss: str
    arguments: Mapping[str, Nested]
    constants: Mapping[str, Nested] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    regime: Regime = "normal"

    @property
    def function(self) -> Callable[..., Any]:
        """Call the loss on arrays in the order of ``arguments``, then ``constants``; returns a 0-d array."""
        names = (*self.arguments, *self.constants)
        return lambda *arrays: self.call(dict(zip(names, arrays, strict=True)))

    def call(self, arrays: Mapping[str, Any], **options: Any) -> Any:
        """Call the loss on arrays by name, with further options."""
        return self.bound(**options)(arrays)

    def bound(self, **options: Any) -> Callable[[Mapping[str, Any]], Any]:
        """Look up the loss outside of compiled code; return a function of arrays by name."""
        function, positional = _function(self.loss)
        options = {**self.options, **options}
        return lambda arrays: _call(self.loss, function, positional, options, dict(arrays))


@cache
def _function(loss: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Look up a loss and the names of its positional-only parameters."""
    topic, _, name = loss.rpartition(".")
    function = getattr(getattr(pnce, topic) if topic else pnce, name)
    parameters = inspect.signature(pnce.clip if loss == "matryoshka" else function).parameters
    positional = tuple(key for key, p in parameters.items() if p.kind is p.POSITIONAL_ONLY)
    return function(pnce.clip, (3, 2), weights=(1.0, 0.5)) if loss == "matryoshka" else function, positional


def _call(
    loss: str,
    function: Callable[..., Any],
    positional: tuple[str, ...],
    options: Mapping[str, Any],
    named: dict[str, Any],
) -> Any:
    """Call a loss on arrays by name."""
    part, slots = options.get("field"), options.get("slots")
    # PyTorch 2.4 compiles no removal from a dict before a graph break.
    further = {key: x for key, x in options.items() if key not in {"field", "slots"}}
    if slots is not None and "keys" in named:
        named["keys"] = _pushed(named["keys"], slots, named.pop("key_labels", None))
    elif slots is not None:
        rows = "support" if "support" in named else "queue"
        named[rows] = _pushed(named[rows], slots)
    for key in [key for key in named if f"{key}_2" in named]:
        named[key] = (named[key], named.pop(f"{key}_2"))
    views = [named.pop(key) for key in ("view_c",) if key in named]
    first = [named.pop(key) for key in positional if key in named]
    keywords = {**further, **named}
    similarity = keywords.get("similarity", "")
    if "bilinear" in keywords:
        keywords["similarity"] = pnce.similarities.bilinear(keywords.pop("bilinear"))
    elif isinstance(similarity, str) and similarity.startswith("normalized "):
        named_similarity: Any = similarity.removeprefix("normalized ")
        keywords["similarity"] = pnce.similarities.normalized(named_similarity)
    elif isinstance(similarity, str) and similarity.startswith("max_sim"):
        masks = {key: keywords.pop(key, None) for key in ("query_mask", "document_mask", "negative_mask")}
        keywords["similarity"] = pnce.similarities.max_sim(**masks, normalize=similarity == "max_sim")
    if loss == "contrast":
        _name_axes(keywords)
    result = function(*first, *views, **keywords)
    if loss in NOT_REDUCED:
        xp = namespace_of(result)
        result = xp.reshape(xp.sum(xp.reshape(result, (-1,)), axis=0, keepdims=True), ())
    if loss in {"bounds.mine", "sogclr"}:
        result, _ = result
    return result if part is None else getattr(result, part)


def _pushed(rows: Any, slots: int, labels: Any = None) -> Any:
    """Push rows, and optional labels, to a new queue of this size."""
    return pnce.queue_push(pnce.queue_init(rows, slots, labels=labels), rows, labels=labels)


def _name_axes(keywords: dict[str, Any]) -> None:
    """Replace the names of contrast's objective and pairing by objects if names are not accepted."""
    pairings, objectives = pnce.pairings, pnce.objectives
    labels, columns, positives = (keywords.pop(key, None) for key in ("labels", "columns", "positives"))
    match keywords.get("pairing"):
        case "labels":
            keywords["pairing"] = pairings.labels(labels, columns)
        case "index" | "explicit" as kind:
            keywords["pairing"] = getattr(pairings, kind)(positives)
        case "queue":
            keywords["pairing"] = pairings.queue()
        case "smoothed":
            keywords["pairing"] = pairings.smoothed(keywords.pop("smoothing"))
    pair_weights = keywords.pop("pair_weights", None)
    if pair_weights is not None:
        pairing = keywords.get("pairing") or pairings.diagonal()
        keywords["pairing"] = pairings.weighted(pairings.diagonal() if pairing == "diagonal" else pairing, pair_weights)
    own = {key: keywords.pop(key) for key in ("multi_positive", "n_columns", "nu") if key in keywords}
    if own:
        keywords["objective"] = getattr(objectives, keywords["objective"])(**own)


class _Draw:
    """Random numbers from a seed, rounded to float32."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def normal(self) -> float:
        """Draw from the standard normal distribution."""
        return _float32(self._random.gauss(0.0, 1.0))

    def vectors(self, rows: int, features: int) -> list[list[float]]:
        """Draw vectors."""
        return [self.vector(features) for _ in range(rows)]

    def vector(self, features: int) -> list[float]:
        """Draw one vector."""
        return [self.normal() for _ in range(features)]

    def arrays(self, rows: int, features: int, *names: str) -> Row:
        """Draw the same number of vectors for each name."""
        return {name: self.vectors(rows, features) for name in names}

    def log_densities(self, count: int, largest: float = 1.0) -> list[float]:
        """Draw log-densities that are no larger than the negative of a number."""
        return [_float32(-largest - s * s) for s in self.vector(count)]

    def near(self, vectors: list[list[float]], noise: float = 2.0**-6) -> list[list[float]]:
        """Draw vectors near given ones."""
        return [[_float32(x + noise * self.normal()) for x in vector] for vector in vectors]

    def weights(self, count: int) -> list[float]:
        """Draw positive weights, one of them 0."""
        weights = [_float32(self._random.uniform(0.25, 2.0)) for _ in range(count)]
        weights[count // 2] = 0.0
        return weights

    def mask(self, rows: int, columns: int) -> list[list[bool]]:
        """Draw a mask; every row keeps its diagonal and the next column."""
        return [
            [j in {i, (i + 1) % columns} or self._random.random() < 1 / 2 for j in range(columns)] for i in range(rows)
        ]

    def mask_with(self, kept: Sequence[int], columns: int) -> list[list[bool]]:
        """Draw a mask; every row keeps the given column."""
        rows = zip(self.mask(len(kept), columns), kept, strict=True)
        return [[takes_part or j == own for j, takes_part in enumerate(row)] for row, own in rows]

    def pair_weights(self, rows: int, columns: int) -> list[list[float]]:
        """Draw positive weights of pairs; in each row, one off the diagonal is 0."""
        return [
            [0.0 if j == (i + 1) % columns else w for j, w in enumerate(map(_float32, self._uniform(columns)))]
            for i in range(rows)
        ]

    def _uniform(self, count: int) -> list[float]:
        return [self._random.uniform(0.25, 2.0) for _ in range(count)]

    def weighted(self, rows: int, columns: int) -> Row:
        """Draw row weights and a mask."""
        return {"weights": self.weights(rows), "mask": self.mask(rows, columns)}

    def positives(self, rows: int, columns: int) -> list[list[bool]]:
        """Draw boolean positives: one to three per row, never all columns."""
        chosen = [
            self._random.sample(range(columns), self._random.randint(1, min(3, columns - 1))) for _ in range(rows)
        ]
        return [[j in row for j in range(columns)] for row in chosen]

    def index(self, rows: int, columns: int) -> list[int]:
        """Draw one column index per row."""
        return [self._random.randrange(columns) for _ in range(rows)]


def _float32(x: float) -> float:
    """Round to the nearest float32."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def make_cases(rows: int = 3, features: int = 3, seed: int = 20268) -> tuple[Case, ...]:
    """Make the table of cases.

    Parameters
    ----------
    rows : int
        Number of rows of the first array of every case, at least 2.
    features : int
        Number of components of an embedding, at least 1.
    seed : int
        Random seed. At the default, no gradient with respect to a temperature is a small difference of large terms,
        so that errors relative to the gradient measure the arithmetic.

    Returns
    -------
    tuple of Case
        The cases; their names depend neither on the sizes nor on the seed.

    Raises
    ------
    ValueError
        If there are too few rows or features.
    """
    for name, number, fewest in (("rows", rows, 2), ("features", features, 1)):
        if number < fewest:
            raise ValueError(f"{name}: expected at least {fewest}, got {number}")
    draw = _Draw(seed)
    cases = (
        *_info_nce(draw, rows, features),
        *_two_views(draw, rows, features),
        *_clip(draw, rows, features),
        *_contrast(draw, rows, features),
        *_tokens(rows, features),
        *_from_scores(draw, rows),
        *_bounds(draw, rows),
        *_separate(draw, rows, features),
        *_queues(draw, rows, features),
        *_retrieval(rows, features),
        *_judged(rows, features),
        *_graded(rows, features),
        *_of_two_views(draw, rows, features),
        *_predictions(draw, rows, features),
        *_prototypes(draw, rows, features),
        *_labelled(draw, rows, features),
        *_distances(draw, rows, features),
        *_further_scores(draw, rows),
        *_lower_bounds(draw, rows),
        *_other_bounds(draw, rows),
        *_bounds_of_some(rows),
        *_densities(draw, rows),
        *_diagnostics(draw, rows, features),
        *_keys(rows, features),
        *_ignored(rows, features),
        *_of_both_sides(rows, features),
        *_degrees(rows),
        *_negatives_only(rows, features),
        *_mined(rows, features),
        *_margins(rows),
        *_vocabularies(rows, features),
        *_tokens_of_negatives(rows, features),
        *_ranked(rows, features),
        *_weighted_pairs(rows),
    )
    return (*cases, *(_with_temperatures(case) for case in cases if case.name in _BY_ROWS))


_BY_ROWS = frozenset(
    {
        *("info_nce", "info_nce symmetric, weights, mask, streamed", "info_nce neg_sq_euclidean, streamed"),
        *("info_nce symmetric", "info_nce shared negatives, weights, mask", "info_nce own negatives, neg_euclidean"),
        *("two_tower all of it, streamed", "cpc", "n_tuple", "nt_xent dot, streamed", "nt_xent three views", "dcl"),
        *("flat_nce detach, weights", "dclw sigma", "moco a queue not full yet, weights, mask"),
        *("moco_v3 weights, mask", "nnclr among all views", "from_scores.dclw", "proto_nce keys"),
        *("nnclr symmetric, weights, mask, a queue not full yet", "supcon base_temperature", "nca", "contrastive"),
        *("relic symmetric, stop_gradient second, weights, mask, streamed", "triplet", "triplet_from_labels"),
        *("hcl", "sogclr rho", "distillation symmetric, weights, mask"),
        *("contrast flat_nce, explicit, streamed", "contrast info_nce, labels, symmetric, mask"),
    }
)
"""Cases that are repeated with a temperature per sample."""


def _with_temperatures(case: Case) -> Case:
    """Repeat cases with a temperature per sample."""
    first = next(iter(case.arguments.values()))
    temperatures = [(0.5, 0.75, 0.375, 1.25)[k % 4] for k in range(len(first))]
    arguments = {**case.arguments, "temperature": temperatures}
    return replace(case, name=f"{case.name}, temperatures of rows", arguments=arguments)


SAID: Table = {
    **{name: {"similarity": name} for name in ("dot", "cosine", "neg_sq_euclidean", "neg_euclidean", "cauchy")},
    "distances": {"similarity": "neg_sq_euclidean"},
    "sum": {"reduction": "sum"},
    "symmetric": {"symmetric": True},
    "b_to_a": {"direction": "b_to_a"},
    **{f"stop_gradient {view}": {"stop_gradient": view} for view in ("first", "second")},
    "detach_weights": {"detach_weights": True},
    "include_positive": {"include_positive": True},
    "negatives alone": {"include_positive": False},
    **{form: {"form": form} for form in ("detach", "soft")},
    **{f"positives {kind}": {"multi_positive": kind} for kind in ("pooled", "separate")},
    **{mining: {"mining": mining} for mining in ("batch_hard", "semi_hard")},
    "nonzero": {"average": "nonzero"},
    "balance": {"balance": True},
}
"""Options that a comma-separated part of a case's name implies."""


def _variations(loss: str, arguments: Row, table: Table, **usual: Nested) -> Iterator[Case]:
    """Make one case per row of a table: suffix of the name -> additional inputs of every kind.

    A row has the usual inputs and the options implied by its name (`SAID`), unless it overrides them. Floats for
    differentiable keywords become arguments, other lists constants, the rest options.
    """
    for special, row in table.items():
        said = {key: value for part in special.split(", ") for key, value in SAID.get(part, {}).items()}
        given, constants, options = dict(arguments), dict[str, Nested](), dict[str, Any]()
        for key, value in {**usual, **said, **row}.items():
            if key in given or _is_differentiable(key, value):
                given[key] = value
            elif isinstance(value, list):
                constants[key] = value
            else:
                options[key] = value
        name = f"{loss} {special}".strip()
        regime: Regime = "saturated" if "saturated" in special else "normal"
        yield Case(name=name, loss=loss, arguments=given, constants=constants, options=options, regime=regime)


def _is_differentiable(key: str, value: Nested) -> bool:
    """Whether an additional input is differentiable."""
    names = {"negative_keys", "bilinear", "temperature", "logit_scale", "logit_bias", "key"}
    names |= {"negative_candidates", "log_q", "negative_log_q", "keys", "scale"}
    return key in names and isinstance(value, (list, float))


def _similarities(draw: _Draw, features: int, **usual: float) -> Table:
    """Rows of a table, one per similarity."""
    named: Table = dict.fromkeys(("dot", "cosine", "neg_sq_euclidean", "neg_euclidean", "cauchy"), usual)
    return {**named, "bilinear": {"bilinear": draw.vectors(features, features), **usual}}


def _streamed(table: Table, names: Iterable[str]) -> Table:
    """Repeat rows of a table with streamed execution, in tiles of two columns."""
    return {f"{name}, streamed".lstrip(", "): {**table[name], "block_size": 2} for name in names}


def _info_nce(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    query, more = draw.vectors(rows, features), rows + 2
    negatives = {
        "shared": draw.vectors(rows - 1, features),
        "own": [draw.vectors(rows + 1, features) for _ in range(rows)],
    }
    at_half, weights = {"temperature": 0.5}, {"weights": draw.weights(rows)}
    table: Table = {
        "": {},
        **_similarities(draw, features, temperature=0.75),
        "index into more keys": {
            "positive_key": draw.vectors(more, features),
            "positives": draw.index(rows, more),
            **at_half,
        },
        "saturated": {"positive_key": draw.near(query), "similarity": "neg_sq_euclidean", "temperature": 0.0625},
        "sum": at_half,
        "weights": {**weights, **at_half},
        "mask": {"mask": draw.mask(rows, rows), **at_half},
        "index": {"positives": draw.index(rows, rows), **at_half},
        "positives each": {"positives": draw.positives(rows, rows), **at_half},
        "positives pooled": {"positives": draw.positives(rows, rows), **at_half},
        "symmetric": at_half,
        "symmetric, weights, mask": {**weights, "mask": draw.mask(rows, rows), **at_half},
    }
    masks = {"shared": [[i != j for j in range(rows - 1)] for i in range(rows)], "own": draw.mask(rows, rows + 1)}
    for kind, negative_keys in negatives.items():
        for name, options in _similarities(draw, features, temperature=0.75).items():
            table[f"{kind} negatives, {name}"] = {"negative_keys": negative_keys, **options}
        weighted = {"negative_keys": negative_keys, **weights, "mask": masks[kind], **at_half}
        table[f"{kind} negatives, weights, mask"] = weighted
    table |= _streamed(table, [name for name in table if "own" not in name])
    table |= _streamed(table, ["own negatives, cosine", "own negatives, weights, mask"])
    yield from _variations("info_nce", {"query": query, "positive_key": draw.vectors(rows, features)}, table)


def _two_views(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    view_a, at_half = draw.vectors(rows, features), {"temperature": 0.5}
    table: Table = {
        "": {},
        **_similarities(draw, features, temperature=0.75),
        "saturated": {"view_b": draw.near(view_a), "similarity": "neg_sq_euclidean", "temperature": 0.0625},
        "sum": at_half,
        "weights of pairs": {"weights": draw.weights(rows), **at_half},
        "weights of rows, mask": {**draw.weighted(2 * rows, 2 * rows), **at_half},
    }
    flat: Table = {
        "detach": at_half,
        "include_positive": at_half,
        "include_positive, detach": at_half,
        "detach, weights": {"weights": draw.weights(rows), **at_half},
    }
    arguments = {"view_a": view_a, "view_b": draw.vectors(rows, features)}
    table |= _streamed(table, list(table))
    yield from _variations("nt_xent", arguments, table)
    yield from _variations("dcl", arguments, table)
    yield from _variations("flat_nce", arguments, {**table, **flat, **_streamed(flat, list(flat))})


def _clip(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    table: Table = {
        "": {},
        "above the largest scale": {"logit_scale": 128},  # for an array, the gradient is not that of the value
        "no largest scale": {"logit_scale": 128.0, "max_logit_scale": None},
        "dot": {"logit_scale": 1.5},
        "sum": {},
        "weights, mask": draw.weighted(rows, rows),
    }
    table |= _streamed(table, list(table))
    yield from _variations("clip", draw.arrays(rows, features, "image", "text"), table, logit_scale=8.0)


def _contrast(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    x, more = draw.vectors(rows, features), rows + 2
    at_half, labels, columns = {"temperature": 0.5}, [i % 2 for i in range(rows)], [i % 2 for i in range(more)]
    against: Table = {
        "diagonal": {"pairing": "diagonal"},
        "queue": {"pairing": "queue"},
        "index": {"pairing": "index", "positives": draw.index(rows, more)},
        "labels": {"pairing": "labels", "labels": labels, "columns": columns},
        "labels pooled": {"pairing": "labels", "labels": labels, "columns": columns, "multi_positive": "pooled"},
        "explicit": {"pairing": "explicit", "positives": draw.positives(rows, more)},
    }
    same: Row = {"pairing": "labels", "labels": labels, "columns": labels, "mask": draw.mask(rows, rows)}
    alone: Table = {
        "labels among themselves": {"pairing": "labels", "labels": [i % 2 for i in range(2 * rows)]},
        "two views": {"pairing": "two_views"},
    }
    for arguments, table in (
        ({"x": x, "y": draw.vectors(more, features)}, against),
        ({"x": x, "y": draw.vectors(rows, features)}, {"labels, symmetric, mask": same}),
        ({"x": draw.vectors(2 * rows, features)}, alone),
    ):
        for objective in ("info_nce", "flat_nce", "info_nce_anchor"):
            own: Row = {"n_columns": more, "nu": 0.75} if objective == "info_nce_anchor" else {}
            kept = {name: row for name, row in table.items() if not own or "multi_positive" not in row}
            named = {f"{objective}, {name}": {**row, "objective": objective, **own} for name, row in kept.items()}
            named |= _streamed(named, list(named))
            yield from _variations("contrast", arguments, named, **at_half)


def _tokens(rows: int, features: int) -> Iterator[Case]:
    draw = _Draw(20269)
    query, document = ([draw.vectors(tokens, features) for _ in range(n)] for tokens, n in ((2, rows), (3, rows + 1)))
    masks = {
        "query_mask": [[i != 1 or j == 0 for j in range(2)] for i in range(rows)],
        "document_mask": [[i != rows and j != i % 3 for j in range(3)] for i in range(rows + 1)],
    }
    usual = {"objective": "info_nce", "pairing": "diagonal", "similarity": "max_sim", "temperature": 0.5}
    table: Table = {
        "max_sim": {},
        "max_sim, masks": masks,
        "max_sim of products, masks, sum": {"similarity": "max_sim, dot", **masks},
    }
    yield from _variations("contrast", {"x": query, "y": document}, table | _streamed(table, list(table)), **usual)


def _tokens_of_negatives(rows: int, features: int) -> Iterator[Case]:
    draw = _Draw(20283)
    query, key = ([draw.vectors(tokens, features) for _ in range(rows)] for tokens in (2, 3))
    shared, own = ([draw.vectors(3, features) for _ in range(n)] for n in (4, 2 * rows))
    # The last shared negative, and the second of the second query, have no valid token.
    valid = [*([j != k for j in range(3)] for k in range(3)), [False] * 3]
    of_each = [[[(i, k) != (1, 1) and j <= i + k for j in range(3)] for k in range(2)] for i in range(rows)]
    masks = {
        "query_mask": [[i != 1 or j == 0 for j in range(2)] for i in range(rows)],
        "document_mask": [[j != i % 3 for j in range(3)] for i in range(rows)],
    }
    by_row: Row = {"negative_keys": [own[2 * i : 2 * i + 2] for i in range(rows)], "negative_mask": of_each}
    table: Table = {
        "max_sim, shared negatives, masks": {"negative_keys": shared, "negative_mask": valid, **masks},
        "max_sim, own negatives, masks": {**by_row, **masks},
        "max_sim of products, own negatives, masks, sum": {"similarity": "max_sim, dot", **by_row, **masks},
        "max_sim, own negatives, weights, mask": {**by_row, **draw.weighted(rows, 2)},
    }
    usual = {"similarity": "max_sim", "temperature": 0.5}
    yield from _variations("info_nce", {"query": query, "positive_key": key}, table, **usual)


def _from_scores(draw: _Draw, rows: int) -> Iterator[Case]:
    square, more = draw.vectors(rows, rows), rows + 2
    wide, positives = {"scores": draw.vectors(rows, more)}, {"positives": draw.positives(rows, more)}
    table: Table = {
        "": {},
        "saturated": {"scores": _ahead(square)},
        "more columns than rows": wide,
        "sum": {},
        "weights": {"weights": draw.weights(rows)},
        "mask": {**wide, "mask": draw.mask(rows, more)},
        "index": {**wide, "positives": draw.index(rows, more)},
        "positives each": {**wide, **positives},
        "positives pooled": {**wide, **positives},
        "positives, weights, mask": {**wide, **positives, **draw.weighted(rows, more)},
    }
    flat: Table = {"detach": {}, "include_positive": {}, "include_positive, detach": {}}
    single = {key: options for key, options in table.items() if "each" not in key and "pooled" not in key}
    size: Table = {**single, "normalized": {"normalized": True}}
    yield from _variations("from_scores.info_nce", {"scores": square}, table)
    yield from _variations("from_scores.dcl", {"scores": square}, table)
    yield from _variations("from_scores.flat_nce", {"scores": square}, {**table, **flat})
    yield from _variations("diagnostics.effective_sample_size", {"scores": square}, size)


def _ahead(scores: list[list[float]], shift: float = 0.0) -> list[list[float]]:
    """Let the diagonal of a score matrix lead by 40."""
    return [[_float32(s + 40.0 * (i == j) - shift) for j, s in enumerate(row)] for i, row in enumerate(scores)]


def _bounds(draw: _Draw, rows: int) -> Iterator[Case]:
    square = draw.vectors(rows, rows)
    table: Table = {"": {}, "saturated": {"scores": _ahead(square)}}
    yield from _variations("bounds.info_nce", {"scores": square}, table)
    yield from _variations("bounds.dual", {"scores": square, "u": draw.vector(rows)}, {"": {}})
    yield from _variations("bounds.dual_critic", {"scores": square}, {**table, "include_positive": {}})


def _separate(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    """Cases of separate positives, more views and unit-length embeddings."""
    arguments = {"query": draw.vectors(rows, features), "positive_key": draw.vectors(rows + 1, features)}
    positives = {"positives": draw.positives(rows, rows + 1)}
    table: Table = {
        "positives separate": {**positives, "temperature": 0.5},
        "positives separate, weights, mask": {**positives, **draw.weighted(rows, rows + 1), "temperature": 0.25},
    }
    yield from _variations("info_nce", arguments, table | _streamed(table, ["positives separate, weights, mask"]))
    table = {
        f"unit {name}": {"similarity": f"normalized {name}"} for name in ("dot", "neg_euclidean", "neg_sq_euclidean")
    }
    table |= _streamed(table, ["unit neg_sq_euclidean"])
    yield from _variations("info_nce", draw.arrays(rows, features, "query", "positive_key"), table, temperature=0.5)
    views, at_half = draw.arrays(rows, features, "view_a", "view_b", "view_c"), {"temperature": 0.5}
    table = {
        "three views": {},
        "three views, each, weights of views": {"multi_positive": "each", "weights": draw.weights(3 * rows), **at_half},
        "three views, pooled, weights of samples, mask": {
            "multi_positive": "pooled",
            "weights": draw.weights(rows),
            "mask": draw.mask(3 * rows, 3 * rows),
            **at_half,
        },
        "three views, separate, mask": {"mask": draw.mask(3 * rows, 3 * rows), **at_half},
    }
    yield from _variations("nt_xent", views, table | _streamed(table, list(table)[-2:]))
    labels: Row = {"labels": [i % 2 for i in range(rows)], "columns": [i % 2 for i in range(rows + 2)]}
    labels |= {"pairing": "labels", "multi_positive": "separate", **at_half}
    arguments = {"x": draw.vectors(rows, features), "y": draw.vectors(rows + 2, features)}
    for objective in ("info_nce", "flat_nce"):
        table = {f"{objective}, labels separate": {"objective": objective}}
        yield from _variations("contrast", arguments, table, **labels)


def _retrieval(rows: int, features: int) -> Iterator[Case]:
    draw = _Draw(20270)  # own seed, so that later cases keep their numbers
    query, own = draw.vectors(rows, features), {"ids": [k // 2 for k in range(rows)]}
    log_q: Row = {"log_q": draw.vector(rows)}
    further: Row = {"negative_candidates": draw.vectors(rows + 1, features)}
    of_further: Row = {
        "negative_ids": [k % 3 for k in range(rows + 1)],
        **log_q,
        "negative_log_q": draw.vector(rows + 1),
    }
    all_of_it: Row = {**further, **own, **of_further, "temperature": 0.5}
    near = {"candidate": draw.near(query), "similarity": "neg_sq_euclidean", "temperature": 0.125}
    table: Table = {
        "": {},
        "log_q": {**log_q, "temperature": 0.75},
        "cosine, ids": {**own, "temperature": 0.5},
        "log_q, ids": {**log_q, **own, "temperature": 0.5},
        "log_q, ids, distances": {**log_q, **own, "temperature": 0.75},
        "saturated": {**log_q, **own, **near},
        "mixed negatives": {**further, "temperature": 0.5},
        "all of it": all_of_it,
        "all of it, weights, mask, sum": {**all_of_it, **draw.weighted(rows, 2 * rows + 1)},
    }
    table |= _streamed(table, ["log_q, ids", "all of it", "all of it, weights, mask, sum"])
    yield from _variations("two_tower", {"query": query, "candidate": draw.vectors(rows, features)}, table)


def _judged(rows: int, features: int) -> Iterator[Case]:
    """Cases of weighted positives, teachers, guides and hard negatives."""
    draw = _Draw(20274)
    query, key = draw.vectors(rows, features), draw.vectors(rows, features)
    more, at_half, warmer = draw.vectors(rows + 2, features), {"temperature": 0.5}, {"temperature": 0.75}
    targets = [[_float32(abs(x)) if k % 3 else 0.0 for k, x in enumerate(row)] for row in draw.vectors(rows, rows)]
    soft, weighted = {"positives": targets}, draw.weighted(rows, rows)
    weights = {"weights": weighted["weights"]}
    two = [draw.vectors(2, features) for _ in range(rows)]
    table: Table = {
        "soft targets": {**soft, **at_half},
        "soft targets, dot, weights, mask": {**soft, **weighted, **warmer},
        "soft targets, separate": {**soft, "multi_positive": "separate", **at_half},
        "hardness": {"hardness": 5.0, **at_half},
        "hardness, symmetric, weights, mask": {"hardness": 2.0, **weighted, **at_half},
        "hardness, shared negatives, dot": {"hardness": 0.5, "negative_keys": more, **warmer},
        "hardness, own negatives": {"hardness": 2.0, "negative_keys": two, **at_half},
        "hardness, distances": {"hardness": 0.5, **warmer},
    }
    streamed = [name for name in table if "own" not in name]
    yield from _variations("info_nce", {"query": query, "positive_key": key}, table | _streamed(table, streamed))
    square = {"scores": draw.vectors(rows, rows)}
    sharp = [[1.0 if i == j else 0.0 for j in range(rows)] for i in range(rows)]
    table = {
        "soft targets": {**soft, **weights},
        "soft targets, saturated": {"scores": _ahead([[0.0] * rows] * rows), "positives": sharp},
    }
    yield from _variations("from_scores.info_nce", square, table)
    yield from _variations("from_scores.dcl", square, table)
    student, teacher = {"query": query, "key": key}, draw.arrays(rows, 2, "teacher_query", "teacher_key")
    table = {
        "": {},
        "symmetric, weights, mask": {"teacher_temperature": 0.25, **weighted},
        "no temperature": {"teacher_temperature": None, "similarity": "dot", **warmer},
    }
    table |= _streamed(table, list(table))
    yield from _variations("distillation", student, table, **teacher, **at_half)
    table = {
        "": {},
        "saturated": {"key": draw.near(query), "temperature": 2.0**-4},
        "three directions, weights, mask": {"directions": ("query_to_key", "key_to_query", "key_to_key"), **weighted},
        "one direction, distances, sum": {"directions": ("query_to_query",), **warmer},
    }
    yield from _variations("joint_info_nce", student, table | _streamed(table, list(table)[2:]), **at_half)
    pair = {"x": query, "y": key}
    smooth = {"objective": "info_nce", "pairing": "smoothed", "smoothing": 0.125, **at_half}
    table = {
        "smoothed": {},
        "smoothed, dot, symmetric, weights": {**weights, **warmer},
        "smoothed, further columns": {"y": more},
        "smoothed, mask": {"mask": weighted["mask"]},
    }
    yield from _variations("contrast", pair, table | _streamed(table, list(table)[:4]), **smooth)
    own = _Draw(20286)  # own seed, so that later cases keep their numbers
    pair = own.arrays(rows, features, "x", "y")
    of_pairs = [[w if (i + k) % 3 != 1 else 0.0 for k, w in enumerate(own.weights(rows))] for i in range(rows)]
    by_pair = {"objective": "info_nce", "pairing": "diagonal", "pair_weights": of_pairs, **at_half}
    some = [[i == k or (i + k) % 3 == 0 for k in range(rows)] for i in range(rows)]
    table = {
        "pair weights": {},
        "pair weights, dot, symmetric, weights, mask": {**weighted, **warmer},
        "pair weights, several positives": {"pairing": "explicit", "positives": some, "multi_positive": "separate"},
        "pair weights, flat_nce": {"objective": "flat_nce"},
    }
    yield from _variations("contrast", pair, table | _streamed(table, list(table)[:3]), **by_pair)
    sets = {"labels": [[k % 2 == c % 2 or k % 3 == c for c in range(3)] for k in range(rows)], **at_half}
    apart = {"several labels, separate, weights, mask": {"multi_positive": "separate", **weighted}}
    table = {"several labels": {}, **apart}
    yield from _variations("supcon", {"embeddings": query}, table | _streamed(table, list(table)), **sets)
    table = {
        "": {},
        "debiased": {"beta": 0.0, **warmer},
        "neither": {"beta": 0.0, "tau_plus": 0.0, **at_half},
        "beta, dot": {"beta": 0.5, "tau_plus": 0.0625, **warmer},
        "all are positives": {"tau_plus": 0.75, **at_half},
        "saturated": {"view_b": draw.near(query), "temperature": 2.0**-5, "tau_plus": 0.0},
        "weights, mask": {"beta": 2.0, "tau_plus": 0.125, **weights, "mask": draw.mask(2 * rows, 2 * rows), **at_half},
        "sum, distances": {"temperature": 2.0},
    }
    table |= _streamed(table, ["", "weights, mask", "sum, distances"])
    yield from _variations("hcl", {"view_a": query, "view_b": key}, table)
    state = {"log_u": [_float32(0.5 * x) for x in draw.weights(rows)], **at_half}
    table = {
        "": {},
        "weights, mask": {"gamma": 0.5, **weighted},
        "no memory, dot, sum": {"gamma": 1.0, **warmer},
        "rho": {"gamma": 0.25, "rho": 2.0},
        "saturated": {"log_u": [-30.0] * rows, "key": draw.near(query), "temperature": 2.0**-5},
    }
    yield from _variations("sogclr", student, table | _streamed(table, ["weights, mask", "rho"]), **state)
    guide = {"guide_query": teacher["teacher_query"], "guide_key": teacher["teacher_key"], **at_half}
    table = {
        "": {},
        "symmetric, weights, mask": {**weighted, "margin": 0.25},
        "relative margin": {"margin": 0.125, "margin_strategy": "relative"},
        "further keys": {"key": more, "guide_key": draw.vectors(rows + 2, 2), "similarity": "dot", **warmer},
    }
    yield from _variations("gist_embed", student, table | _streamed(table, list(table)), **guide)


def _keys(rows: int, features: int) -> Iterator[Case]:
    """Cases of extra columns: labelled keys that replace the batch, and keys that are additional negatives."""
    draw, count = _Draw(20271), rows + 2  # own seed, as above
    labels, key_labels = [i % 2 for i in range(rows)], [j % 3 for j in range(count)]
    keys: Row = {"labels": labels, "keys": draw.vectors(count, features), "key_labels": key_labels}
    alone: Row = {"labels": [*labels[:-1], 7], **draw.weighted(rows, count)}
    short: Row = {"slots": count + 2, "weights": alone["weights"], "mask": draw.mask(rows, count + 2)}
    base = draw.near(_axes(rows, features), 0.125)
    near: Row = {"labels": list(range(rows)), "keys": base, "key_labels": list(range(rows))}
    near |= {"embeddings": draw.near(base), "similarity": "neg_sq_euclidean", "temperature": 0.125}
    arguments = {"embeddings": draw.vectors(rows, features)}
    names = ["keys", "keys, one label alone, weights, mask", "queue, sum"]
    table: Table = {
        "keys": {},
        "keys saturated": near,
        "keys, one label alone, weights, mask": alone,
        "queue, sum": {"slots": count - 1},
        "queue not full, weights, mask": short,
    }
    table |= _streamed(table, names)
    supervised: Table = {
        "keys, separate": {"multi_positive": "separate"},
        "keys, base_temperature": {"base_temperature": 0.125},
    }
    yield from _variations("supcon", arguments, {**table, **supervised}, **keys, temperature=0.5)
    yield from _variations("nca", arguments, table, **keys, temperature=0.5)
    yield from _variations("soft_nearest_neighbor", arguments, {"keys": {}}, **keys, temperature=0.5)
    table = {
        "keys": {},
        "keys, one label alone, weights, mask": alone,
        "keys, nonzero": {"margin": 0.5},
        "queue, sum": {"slots": count - 1},
        "queue not full, weights, mask": short,
    }
    table |= _streamed(table, names)
    yield from _variations("contrastive", arguments, table, **keys, margin=3.0)
    yield from _variations("contrastive", arguments, {"keys, balance": {}}, **keys)
    table |= {f"{name}, batch_hard": options for name, options in table.items()}
    yield from _variations("triplet_from_labels", arguments, table, **keys, margin=3.0)
    views, held = draw.arrays(rows, features, "view_a", "view_b"), {"slots": count + 2}
    negatives: Row = {"keys": keys["keys"], "temperature": 0.5}
    of_rows = draw.weighted(2 * rows, 2 * rows + count)
    near = {"view_a": base, "view_b": draw.near(base), "keys": draw.vectors(count, features)}
    table = {
        "keys": {},
        "keys, weights of rows, mask": of_rows,
        "keys, neg_euclidean, sum": {},
        "keys saturated": {**near, "similarity": "neg_sq_euclidean", "temperature": 0.0625},
        "queue, weights of pairs": {**held, "weights": draw.weights(rows)},
        "queue, mask": {**held, "mask": draw.mask(2 * rows, 2 * rows + count + 2)},
    }
    table |= _streamed(table, ["keys", "keys, weights of rows, mask", "queue, mask"])
    for loss in ("nt_xent", "dcl", "flat_nce", "dclw"):
        yield from _variations(loss, views, table, **negatives)
    views["view_c"] = draw.vectors(rows, features)
    each: Row = {**held, "multi_positive": "each", "mask": draw.mask(3 * rows, 3 * rows + count + 2)}
    table = {"three views, keys": {}, "three views, queue, each, mask": each}
    yield from _variations("nt_xent", views, table | _streamed(table, list(table)), **negatives)


def _ignored(rows: int, features: int) -> Iterator[Case]:
    """Cases of labelled embeddings with a label to ignore."""
    draw, samples, count = _Draw(20320), 2 * rows, rows + 3  # own seed, as above
    labels = [-1 if i % 5 == 1 else i % 2 for i in range(samples)]
    keys: Row = {"keys": draw.vectors(count, features), "key_labels": [-1 if j == 1 else j % 3 for j in range(count)]}
    weighted = draw.weighted(samples, samples)
    table: Table = {
        "ignore_index": {},
        "ignore_index, weights, mask": weighted,
        "ignore_index, keys": keys,
        "ignore_index, queue not full, sum": {**keys, "slots": count + 2},
        "ignore_index of no row": {"ignore_index": 7},
    }
    table |= _streamed(table, ["ignore_index, weights, mask", "ignore_index, keys"])
    arguments, usual = {"embeddings": draw.vectors(samples, features)}, {"labels": labels, "ignore_index": -1}
    for loss in ("supcon", "nca"):
        yield from _variations(loss, arguments, table, **usual, temperature=0.5)
    few = {name: row for name, row in table.items() if "weights" in name or "keys" in name}
    yield from _variations("soft_nearest_neighbor", arguments, {"ignore_index": {}}, **usual)
    yield from _variations("contrastive", arguments, few, **usual, margin=3.0)
    yield from _variations("triplet_from_labels", arguments, few, **usual, margin=3.0)
    hard = {f"{name}, batch_hard": row for name, row in few.items()}
    yield from _variations("triplet_from_labels", arguments, hard, **usual, margin=3.0)


def _of_both_sides(rows: int, features: int) -> Iterator[Case]:
    """Cases of symmetric losses with more columns than rows, or fewer."""
    draw, more = _Draw(20321), rows + 2  # own seed, as above
    captions, some = draw.vectors(more, features), draw.positives(rows, more)
    wide: Row = {"text": captions, "logit_scale": 8.0}
    table: Table = {
        "further texts": {},
        "further texts, weights, mask": draw.weighted(rows, more),
        "further texts, neg_sq_euclidean, sum": {"logit_scale": 1.5},
    }
    table |= _streamed(table, ["further texts", "further texts, weights, mask"])
    image = draw.vectors(rows, features)
    yield from _variations("clip", {"image": image}, table, **wide)
    weighted = draw.weighted(rows, more)
    table = {"further columns": {}, "further columns, weights, mask": weighted}
    yield from _variations("from_scores.clip", {"scores": draw.vectors(rows, more)}, table)
    table = {
        "symmetric, several keys of a query": {"positives": some},
        "symmetric, several keys of a query, mask, hardness": {"mask": draw.mask(rows, more), "hardness": 2.0},
        "symmetric, index into more keys, sum": {"positives": [2 * (k % 3) for k in range(rows)]},
    }
    table |= _streamed(table, list(table)[:2])
    keys: Row = {"positive_key": captions, "positives": some, "temperature": 0.5}
    yield from _variations("info_nce", {"query": image}, table, **keys)
    queries = {"query": captions, "positive_key": image}
    table = {"symmetric, several queries of a key": {"positives": [k % rows for k in range(more)]}}
    yield from _variations("info_nce", queries, table | _streamed(table, list(table)), temperature=0.5)


def _degrees(rows: int) -> Iterator[Case]:
    """Cases of sums over graded pairs."""
    draw, more = _Draw(20322), rows + 2  # own seed, as above
    scores, degrees = draw.vectors(rows, more), [[((3 * i + 5 * j) % 7) / 8 for j in range(more)] for i in range(rows)]
    degrees[0][1] = 1.0
    graded, weighted = {"positives": degrees}, draw.weighted(rows, more)
    table: Table = {"degrees": graded, "degrees, weights, mask": {**graded, **weighted}, "degrees, sum": graded}
    yield from _variations("from_scores.logistic", {"scores": scores}, table)
    table |= {
        "degrees, nonzero, weights, mask": {**graded, **weighted, "margin": 0.5, "negative_power": 1},
        "degrees, balance": {**graded, "positive_margin": 0.25},
        "degrees, balance, nonzero": {**graded, "margin": 0.5, "positive_power": 1},
    }
    yield from _variations("from_scores.contrastive", {"scores": scores}, table)


def _negatives_only(rows: int, features: int) -> Iterator[Case]:
    draw = _Draw(20272)  # own seed, as above
    table: Table = {
        "negative_only": {},
        "negative_only, neg_euclidean, sum": {},
        "negative_only, weights, mask": draw.weighted(rows, rows + 1),
    }
    table |= _streamed(table, list(table))
    arguments = {"image": draw.vectors(rows, features), "text": draw.vectors(rows + 1, features)}
    yield from _variations("siglip", arguments, table, logit_scale=8.0, logit_bias=-2.0, negative_only=True)


def _halves(count: int) -> tuple[Row, Row]:
    """Label alternate rows alike; and again, with the last row in a class of its own."""
    labels = [i % 2 for i in range(count)]
    return {"labels": labels}, {"labels": [*labels[:-1], 2]}


def _mined(rows: int, features: int) -> Iterator[Case]:
    draw, more = _Draw(20273), rows + 2  # own seed, as above
    arguments, (halves, alone) = {"embeddings": draw.vectors(2 * rows, features)}, _halves(2 * rows)
    rules = ("all", "hard", "semi_hard", "easy")
    pairs = [(p, q) for p in rules for q in rules if p != q or p == "easy"]
    mined: Table = {f"{p} positives, {q} negatives": {"mining": (p, q), "margin": 1.0} for p, q in pairs}
    weighted = {**alone, **draw.weighted(2 * rows, 2 * rows), "temperature": 0.75}
    table: Table = {
        **mined,
        **{f"{name}, weights, mask": {**weighted, **mining} for name, mining in mined.items()},
        "semi_hard": {"margin": 0.5},
        "semi_hard, nonzero": {"margin": 0.5},
        "semi_hard, soft, cosine": {},
        "semi_hard, sum": {"margin": 1.0},
    }
    table |= _streamed(table, ["easy positives, hard negatives", "semi_hard"])
    yield from _variations("triplet_from_labels", arguments, table, **halves)
    positives = {"positives": draw.positives(rows, more)}
    easy = {"positives": draw.positives(rows, more), "mask": draw.mask(rows, more), "mining": ("semi_hard", "easy")}
    table = {"positives, semi_hard": positives, "semi_hard positives, easy negatives": easy}
    yield from _variations("from_scores.triplet", {"scores": draw.vectors(rows, more)}, table)


def _margins(rows: int) -> Iterator[Case]:
    draw, more = _Draw(20310), rows + 2  # own seed, as above
    scores, teacher = draw.vectors(rows, more), {"teacher_scores": draw.vectors(rows, more)}
    positives = draw.index(rows, more)
    table: Table = {
        "": {},
        "index, weights, mask": {"positives": positives, **draw.weighted(rows, more)},
        "sum": {"positives": positives},
    }
    yield from _variations("from_scores.margin_mse", {"scores": scores}, table, **teacher)


def _graded(rows: int, features: int) -> Iterator[Case]:
    draw = _Draw(20307)  # no gradient by the scale is a small difference of large terms
    count = 2 * rows
    weights, mask = draw.weights(count), [k != 1 for k in range(count)]
    scores, usual = draw.vector(count), {"grades": [(3 * k) % 4 for k in range(count)]}
    table: Table = {
        "": {},
        "grades of no integers, scale": {"grades": [0.25 * (k % 3) - 0.25 for k in range(count)], "scale": 2.0},
        "no ties": {"grades": [(5 * k + 3) % count for k in range(count)], "scale": 0.5},
        "one grade": {"grades": [1] * count, "scale": 0.5},
        "weights": {"weights": weights, "scale": 2.0},
        "mask": {"mask": mask, "scale": 2.0},
        "weights, mask": {"weights": weights, "mask": mask, "scale": 0.5},
    }
    rising = {"scores": sorted(scores), "scale": 64.0}
    further: Table = {
        "saturated": {**rising, "grades": [k // 2 for k in range(count)]},
        "far in the wrong order": {**rising, "grades": [-(k // 2) for k in range(count)]},
    }
    yield from _variations("from_scores.cosent", {"scores": scores}, table | further, **usual)
    pairs = draw.arrays(count, features, "x", "y")
    yield from _variations("angle", pairs, table, **usual)
    similarities = _similarities(draw, features, scale=0.75)
    del similarities["cosine"]
    yield from _variations("cosent", pairs, table | similarities, **usual)


def _queues(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    query, queue = draw.vectors(rows, features), {"queue": draw.vectors(rows + 2, features)}
    near = {"key": draw.near(query), "similarity": "neg_sq_euclidean", "temperature": 0.0625}
    some = [[i % 2 == j % 2 or j % 4 == 1 for j in range(rows + 4)] for i in range(rows)]
    short = {"slots": rows + 4, "weights": draw.weights(rows), "mask": some, "temperature": 0.5}
    table: Table = {
        "": {},
        "dot": {"temperature": 0.75},
        "saturated": near,
        "a full queue, sum": {"slots": rows, "temperature": 0.5},
        "a queue not full yet, weights, mask": short,
    }
    table |= _streamed(table, list(table)[-1:])
    yield from _variations("moco", {"query": query, "key": draw.vectors(rows, features)}, table, **queue)
    queries, keys = draw.arrays(rows, features, "query_a", "query_b"), draw.arrays(rows, features, "key_a", "key_b")
    table = {
        "": keys,
        "weights, mask": {**keys, **draw.weighted(rows, rows), "temperature": 0.5},
        "saturated": {
            "similarity": "neg_sq_euclidean",
            "temperature": 0.125,
            "key_a": draw.near(queries["query_b"]),
            "key_b": draw.near(queries["query_a"]),
        },
    }
    yield from _variations("moco_v3", queries, table | _streamed(table, ["weights, mask"]))
    support, name = {"support": draw.vectors(rows + 3, features)}, "symmetric, weights, mask, a queue not full yet"
    weighted = draw.weighted(rows, rows)
    table = {
        "": {},
        "neg_euclidean": {"temperature": 0.75},
        "symmetric": {"temperature": 0.5},
        name: {"slots": rows + 5, **weighted, "temperature": 0.5},
    }
    among = {"negatives": "views", "weights": weighted["weights"], "temperature": 0.5}
    table |= _streamed(table, [name]) | {"among all views": among}
    yield from _variations("nnclr", draw.arrays(rows, features, "view_a", "view_b"), table, **support)


def _of_two_views(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    arguments, at_half = draw.arrays(rows, features, "view_a", "view_b"), {"temperature": 0.5}
    near = {"view_b": draw.near(arguments["view_a"]), "similarity": "neg_sq_euclidean", "temperature": 0.0625}
    table: Table = {
        "": {},
        "sigma": {"sigma": 0.25, **at_half},
        "detach_weights": at_half,
        "saturated": near,
        "sum": {"temperature": 0.25},
        "weights of pairs": {"weights": draw.weights(rows), "temperature": 0.25},
        "weights of rows, mask, dot": {**draw.weighted(2 * rows, 2 * rows), "sigma": 2.0, **at_half},
    }
    yield from _variations("dclw", arguments, table | _streamed(table, ["weights of rows, mask, dot"]))
    arguments = draw.arrays(rows, features, "view_a", "view_b")
    apart = draw.near(_axes(rows, features), 0.125)
    table = {
        "": {},
        "alpha": {"alpha": 0.25, **at_half},
        "b_to_a, neg_sq_euclidean": {"temperature": 2.0, "reduction": "sum"},
        "stop_gradient first": at_half,
        "b_to_a, stop_gradient second, mask": {"mask": draw.mask(rows, rows), **at_half},
        "symmetric, stop_gradient second, weights, mask": {**draw.weighted(rows, rows), **at_half},
        "saturated": {"view_a": apart, "view_b": draw.near(apart, 0.125), "temperature": 0.0625},
    }
    own = _Draw(20276)  # own seed, so that later cases keep their numbers
    bank: Row = {"keys": own.vectors(rows + 1, features), **at_half}
    by_row = {"temperature": [0.5 + 0.25 * k for k in range(rows)]}
    of_keys: Table = {
        "keys": {},
        "keys, symmetric, stop_gradient first, weights, mask": own.weighted(rows, 2 * rows + 1),
        "keys, neg_sq_euclidean, temperatures of rows": {**by_row, "symmetric": True},
        "keys, negatives alone, symmetric": {"alpha": 0.5},
        "keys, a queue that is not full, b_to_a, sum": {"slots": rows + 3},
    }
    table |= {name: {**bank, **row} for name, row in of_keys.items()}
    streamed = ["symmetric, stop_gradient second, weights, mask", "keys, symmetric, stop_gradient first, weights, mask"]
    table |= _streamed(table, [*streamed, "keys, a queue that is not full, b_to_a, sum"])
    yield from _variations("relic", arguments, table)
    image, eight = draw.vectors(rows, features), {"logit_scale": 8.0, "logit_bias": -4.0}
    near = {"image": apart, "text": draw.near(apart, 0.0625)}
    table = {
        "": {"logit_scale": 10.0, "logit_bias": -10.0},
        "dot, sum": {"logit_scale": 1.5, "logit_bias": -0.5},
        "saturated": {"logit_scale": 32.0, "logit_bias": -16.0, **near},
        "weights": {"weights": draw.weights(rows), **eight},
        "weights, mask": {**draw.weighted(rows, rows), **eight},
    }
    table |= _streamed(table, ["weights, mask"])
    yield from _variations("siglip", {"image": image, "text": draw.vectors(rows, features)}, table)


def _predictions(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    query, at_half = draw.vectors(rows, features), {"temperature": 0.5}
    table: Table = {
        "": {},
        "l2": {"l2": 0.125, **at_half},
        "saturated": {"key": draw.near(query), "similarity": "neg_sq_euclidean", "temperature": 0.25},
        "l2, weights, mask": {"l2": 0.125, **draw.weighted(rows, rows), **at_half},
    }
    table |= _streamed(table, ["l2, weights, mask"])
    yield from _variations("n_tuple", {"query": query, "key": draw.vectors(rows, features)}, table)
    arguments: Row = {
        "context": draw.vectors(rows, features),
        "targets": [draw.vectors(rows, features + 1) for _ in range(2)],
        "projections": [draw.vectors(features + 1, features) for _ in range(2)],
    }
    predicted = [_products(arguments["context"], projection) for projection in arguments["projections"]]
    near = {"targets": [draw.near(step) for step in predicted], "similarity": "neg_sq_euclidean", "temperature": 2.0}
    table = {
        "": {},
        "cosine": at_half,
        "saturated": near,
        "weights, mask": {**draw.weighted(rows, rows), "temperature": 1.0},
    }
    yield from _variations("cpc", arguments, table | _streamed(table, ["weights, mask"]))


def _axes(rows: int, features: int) -> list[list[float]]:
    """Unit vectors of the axes, repeated in turn."""
    return [[float(i % features == j) for j in range(features)] for i in range(rows)]


def _products(x: Sequence[Sequence[float]], y: Sequence[Sequence[float]]) -> list[list[float]]:
    """Multiply every row of one matrix by every row of another."""
    return [[_float32(sum(a * b for a, b in zip(p, q, strict=True))) for q in y] for p in x]


def _prototypes(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    embeddings, prototypes = draw.vectors(rows, features), draw.vectors(rows + 1, features)
    assignments = draw.index(rows, rows + 1)
    clusters = {
        "prototypes": prototypes,
        "assignments": assignments,
        "concentrations": [_float32(0.25 + weight) for weight in draw.weights(rows + 1)],
    }
    coarser = {
        "prototypes_2": draw.vectors(2, features),
        "assignments_2": [i % 2 for i in range(rows)],
        "concentrations_2": [0.5, 0.75],
    }
    weights, mask = {"weights": draw.weights(rows)}, draw.mask_with(assignments, rows + 1)
    key = {"key": draw.vectors(rows, features), "temperature": 0.5}
    near = {
        "embeddings": draw.near([prototypes[own] for own in assignments]),
        "concentrations": [0.125 + 0.03125 * (j % 2) for j in range(rows + 1)],
        "similarity": "neg_sq_euclidean",
    }
    table: Table = {
        "": {},
        "two clusterings, sum": coarser,
        "weights, mask, dot": {**weights, "mask": mask},
        "saturated": near,
        "keys": key,
        "two clusterings, keys, queue, weights": {
            **coarser,
            **key,
            "queue": draw.vectors(rows + 2, features),
            **weights,
        },
    }
    table |= _streamed(table, ["weights, mask, dot", "two clusterings, keys, queue, weights"])
    yield from _variations("proto_nce", {"embeddings": embeddings}, table, **clusters)


def _labelled(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    arguments, (halves, alone) = {"embeddings": draw.vectors(2 * rows, features)}, _halves(2 * rows)
    base = draw.near(_axes(rows, features), 0.125)
    near = {"embeddings": [*base, *draw.near(base)], "similarity": "neg_sq_euclidean", "temperature": 0.125}
    table: Table = {
        "": {},
        "saturated": {"labels": [i % rows for i in range(2 * rows)], **near},
        "sum": {"temperature": 0.5},
        "one label alone, weights, mask": {**alone, **draw.weighted(2 * rows, 2 * rows), "temperature": 0.25},
    }
    supervised: Table = {
        "base_temperature": {"base_temperature": 0.125, "temperature": 0.5},
        "pooled": {"multi_positive": "pooled", "temperature": 0.5},
        "separate": {"multi_positive": "separate", "temperature": 0.5},
    }
    table |= _streamed(table, ["one label alone, weights, mask"])
    supervised |= _streamed(supervised, ["separate"])
    yield from _variations("supcon", arguments, {**table, **supervised}, **halves)
    yield from _variations("nca", arguments, table, **halves)
    yield from _variations("soft_nearest_neighbor", arguments, {"": halves})


def _distances(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    some = {"weights": [0.5 + 0.25 * (i % 4) for i in range(rows)], "mask": [i != 1 for i in range(rows)]}
    table: Table = {
        "": {},
        "soft": {"temperature": 0.5},
        "nonzero": {"margin": 0.5, "temperature": 2.0},
        "neg_sq_euclidean, sum": {"margin": 1.5},
        "cosine, weights, mask": {"margin": 0.75, **some},
    }
    triplets = draw.arrays(rows, features, "anchor", "positive", "negative")
    yield from _variations("triplet", triplets, table | _streamed(table, ["nonzero"]))
    halves, alone = _halves(2 * rows)
    weighted = {**alone, **draw.weighted(2 * rows, 2 * rows)}
    arguments = {"embeddings": draw.vectors(2 * rows, features)}
    table = {
        "": {},
        "soft": {"temperature": 0.5},
        "nonzero": {"margin": 0.5, "temperature": 2.0},
        "sum, neg_sq_euclidean": {"margin": 1.5},
        "one label alone, weights, mask": {**weighted, "margin": 0.5},
        "batch_hard": {},
        "easy positives, nonzero": {"mining": ("easy", "hard"), "margin": 0.0, "temperature": 2.0},
        "batch_hard, soft, one label alone, weights, mask": {**weighted, "temperature": 0.5},
    }
    table |= _streamed(table, [name for name in table if "alone" in name])
    yield from _variations("triplet_from_labels", arguments, table, **halves)
    margins = {"margin": 3.0, "positive_margin": 1.0}
    table = {
        "": {},
        "margins": margins,
        "powers of one": {"positive_power": 1, "negative_power": 1, **margins, "temperature": 2.0},
        "nonzero, powers apart": {"positive_power": 1, "margin": 2.5, "positive_margin": 2.0},
        "balance, sum": {"margin": 3.0},
        "balance": {"margin": 3.0, "temperature": 0.75},
        "balance, nonzero, one label alone, weights, mask": {**weighted, **margins},
        "unit neg_sq_euclidean": {"similarity": "normalized neg_sq_euclidean", "margin": 2.5},
        "one label alone, weights, mask": {**weighted, "margin": 3.0},
    }
    table |= _streamed(table, ["balance, nonzero, one label alone, weights, mask"])
    yield from _variations("contrastive", arguments, table, **halves)


def _further_scores(draw: _Draw, rows: int) -> Iterator[Case]:
    square, more = draw.vectors(rows, rows), rows + 2
    wide, saturated = {"scores": draw.vectors(rows, more)}, {"scores": _ahead(square)}
    positives = {**wide, "positives": draw.positives(rows, more)}
    weighted = draw.weighted(rows, rows)
    weights, mask = {"weights": weighted["weights"]}, {"mask": draw.mask(rows, more)}
    index = {**wide, "positives": draw.index(rows, more), "temperature": 0.5}
    apart: Row = {
        "positives": [[i == j == 0 for j in range(rows)] for i in range(rows)],
        "mask": [[i < rows - 1 for _ in range(rows)] for i in range(rows)],
    }
    separate = "positives separate"
    tables: dict[str, Table] = {
        "info_nce": {separate: positives},
        "flat_nce": {
            separate: positives,
            f"{separate}, include_positive": positives,
            f"{separate}, include_positive, detach": positives,
        },
        "supcon": {"": positives, "positives pooled, weights": {**positives, **weights}},
        "nca": {"": positives, "saturated": saturated, "weights, mask": {**positives, **weights, **mask}},
        "dclw": {"": {}, "index": index, "detach_weights, weights, mask": {**weighted, "sigma": 2.0}},
        "clip": {"": {}, "saturated": saturated, "weights, mask": weighted},
        "relic": {
            "": {},
            "stop_gradient first": {"alpha": 0.5},
            "b_to_a, saturated": saturated,
            "b_to_a, symmetric, weights, mask": weighted,
            "negatives alone, mask": {**weighted, "stop_gradient": "second"},
            "negatives alone, saturated": saturated,
        },
        "logistic": {
            "": {},
            "saturated": {"scores": _ahead(square, 20.0)},
            "positives": positives,
            "weights, mask": weighted,
            "a row without positives, a row without pairs": apart,
        },
        "contrastive": {
            "": {},
            "positives, nonzero": {**positives, "margin": 0.5, "positive_power": 1},
            "balance, weights, mask": {**weighted, "margin": 2.0},
        },
        "triplet": {
            "": wide,
            "positives, nonzero": {**positives, "margin": 0.5},
            "positives, batch_hard, soft": positives,
            "weights, mask": {**weighted, "margin": 2.0},
        },
    }
    for loss, table in tables.items():
        yield from _variations(f"from_scores.{loss}", {"scores": square}, table)


def _weighted_pairs(rows: int) -> Iterator[Case]:
    """Cases of weights of the pairs of given scores."""
    draw, more = _Draw(20317), rows + 2
    square, of_square = {"scores": draw.vectors(rows, rows)}, {"pair_weights": draw.pair_weights(rows, rows)}
    wide: Row = {"scores": draw.vectors(rows, more), "pair_weights": draw.pair_weights(rows, more)}
    by_row = draw.weighted(rows, more)
    several = {**wide, "positives": draw.positives(rows, more)}
    soft = [[abs(t) if (i + j) % 3 else 0.0 for j, t in enumerate(draw.vector(more))] for i in range(rows)]
    table: Table = {"pair weights": wide, "pair weights, weights, mask": {**several, **by_row}}
    softmax: Table = {
        "pair weights, index": {**wide, "positives": draw.index(rows, more)},
        "pair weights, soft targets": {**wide, "positives": soft},
        "pair weights, positives separate": several,
        "pair weights, positives pooled, weights, mask": {**several, **by_row},
    }
    degrees = [[min(t, 1.0) for t in row] for row in soft]
    graded: Table = {"pair weights, degrees, weights, mask": {**wide, "positives": degrees, **by_row}}
    weighted = draw.weighted(rows, rows)
    tables: dict[str, Table] = {
        "info_nce": {**table, **softmax},
        "flat_nce": {**table, "pair weights, include_positive": several},
        "dcl": table,
        "supcon": {"pair weights": several},
        "nca": table,
        "dclw": table,
        "clip": {"pair weights": {}, "pair weights, further columns, weights, mask": {**wide, **by_row}},
        "relic": {"pair weights": {}, "pair weights, symmetric, b_to_a, weights, mask": weighted},
        "logistic": {**table, **graded},
        "contrastive": {
            **table,
            **graded,
            "pair weights, balance": {**several, "margin": 2.0},
            "pair weights, nonzero": {**several, "margin": 0.5},
        },
    }
    for loss, some in tables.items():
        yield from _variations(f"from_scores.{loss}", square, some, **of_square)
    noise: Row = {"data_scores": draw.vector(rows), "noise_scores": draw.vectors(rows, more)}
    samples = {"pair_weights": draw.pair_weights(rows, more)}
    table = {"pair weights": samples, "pair weights, weights, mask": {**samples, **by_row}}
    yield from _variations("density.negative_sampling", noise, table)


def _lower_bounds(draw: _Draw, rows: int) -> Iterator[Case]:
    square, wide = draw.vectors(rows, rows), {"scores": draw.vectors(rows, rows + 2)}
    own: Table = {"": {}}
    more: Table = {"more columns than rows": wide}
    saturated: Table = {"saturated": {"scores": _ahead(square)}}
    baseline, critic = draw.vector(rows), draw.vector(rows)
    arguments = {"scores": square}
    with_baseline = {**arguments, "log_baseline": baseline}
    anchors: Table = {"nu": {"nu": 0.25}, "plug-in": {**wide, "nu": 8.0, "form": "plug_in"}}
    yield from _variations("bounds.flo", {**arguments, "u": critic}, more)
    yield from _variations("bounds.info_nce_anchor", arguments, {**own, **more, **saturated, **anchors})
    yield from _variations("bounds.fdv", arguments, {**own, **more, **saturated})
    yield from _variations("bounds.dv", arguments, {**own, **more, **saturated})
    yield from _variations("bounds.mine", arguments, own)
    second: Table = {"second step, more columns than rows": {**wide, "rate": 0.25}}
    yield from _variations("bounds.mine", {**arguments, "log_mean": -0.75}, second)
    yield from _variations("bounds.nwj", arguments, {**own, **more})
    yield from _variations("bounds.tuba", with_baseline, {**own, "one baseline": {**wide, "log_baseline": 0.5}})
    alphas: Table = {
        "": {"alpha": 0.5},
        "alpha 0": {"alpha": 0.0},
        "alpha 1": {"alpha": 1.0},
        "one baseline, more columns than rows": {**wide, "alpha": 0.125, "log_baseline": [0.5]},
    }
    yield from _variations("bounds.interpolated", with_baseline, alphas)
    yield from _variations("bounds.js_mi", arguments, {**own, **more})
    yield from _variations("bounds.barber_agakov", {"scores": draw.log_densities(rows), "entropy": 1.5}, own)
    yield from _variations("bounds.barber_agakov", {**wide, "entropy": 4.5}, {"matrix": {}})


def _other_bounds(draw: _Draw, rows: int) -> Iterator[Case]:
    square, wide = draw.vectors(rows, rows), {"scores": draw.vectors(rows, rows + 2)}
    arguments, saturated = {"scores": square}, {"saturated": {"scores": _ahead(square)}}
    more: Table = {"": {}, "more columns than rows": wide}
    clips: Table = {"clip": {**wide, "clip": 0.75}, "no clip": {"clip": None}}
    yield from _variations("bounds.js", arguments, {**more, **saturated})
    yield from _variations("bounds.smile", arguments, {**saturated, **clips})
    yield from _variations("bounds.club", arguments, more)
    yield from _variations("bounds.leave_one_out", arguments, {"": {}, **saturated})
    densities = {name: draw.log_densities(rows) for name in ("scores", "log_marginal")}
    yield from _variations("bounds.vub", densities, {"": {}})
    yield from _variations("bounds.vub", {**densities, **wide}, {"matrix": {}})


def _bounds_of_some(rows: int) -> Iterator[Case]:
    """Cases of bounds with masks: rows with fewer columns, or with separate negatives."""
    draw, more = _Draw(20275), rows + 2
    mask = draw.mask(rows, more)
    mask[0] = [j == 0 for j in range(more)]  # without a negative
    mask[1] = [j != 1 for j in range(more)]  # without its positive
    masked: Row = {"scores": draw.vectors(rows, more), "mask": mask}
    alone: Row = {"scores": draw.vectors(rows, 3), "positives": [k % 2 for k in range(rows)]}
    both = {**masked, "positives": [k + 1 for k in range(rows)]}
    critic, baseline = draw.vector(rows), draw.vector(rows)
    further: Table = {
        "dual": {"u": critic},
        "flo": {"u": critic},
        "mine": {"log_mean": 0.25, "rate": 0.25},
        "tuba": {"log_baseline": baseline},
        "interpolated": {"log_baseline": baseline, "alpha": 0.375},
        "smile": {"clip": 0.75},
        "info_nce_anchor": {"nu": 0.5},
    }
    names = ("info_nce", "info_nce_anchor", "dual_critic", "dual", "flo", "fdv", "dv", "mine", "nwj", "tuba")
    for name in (*names, "interpolated", "js", "js_mi", "smile", "club"):
        options = further.get(name, {})
        given = {key: value for key, value in options.items() if key in {"u", "log_mean", "log_baseline"}}
        table = {"mask": masked, "own negatives": alone}
        if name in {"info_nce", "interpolated", "dv"}:
            table["positives, mask"] = both
        yield from _variations(f"bounds.{name}", {"scores": [], **given}, table, **options)
    square: Row = {"scores": draw.vectors(rows, rows), "mask": [row[:rows] for row in mask]}
    yield from _variations("bounds.leave_one_out", {"scores": []}, {"mask": square})
    yield from _variations("diagnostics.headroom", {"scores": []}, {"mask": masked, "own negatives": alone})


def _densities(draw: _Draw, rows: int) -> Iterator[Case]:
    samples = rows + 1
    scores: Row = {"data_scores": draw.vector(rows), "noise_scores": draw.vectors(rows, samples)}
    data, noise = draw.log_densities(rows, 0.5), [draw.log_densities(samples, 0.5) for _ in range(rows)]
    weights, mask = {"weights": draw.weights(rows)}, {"mask": draw.mask(rows, samples)}
    corrected = {**scores, "data_log_q": data, "noise_log_q": noise}
    alike = {"noise_log_q": noise[0]}
    ahead = {"data_scores": [_float32(40.0 + s) for s in scores["data_scores"]]}
    bare: Table = {"": {}, "weights, mask": {**weights, **mask}}
    usual: Table = {
        "": {},
        "one log_q for all contexts, saturated": {**alike, **ahead},
        "weights, mask": {**weights, **mask, "reduction": "sum"},
    }
    alone = {"nu": 0.25, "mask": [[j > 0 and i > 0 for j in range(samples)] for i in range(rows)]}
    without = {**alike, "include_positive": False, **weights, **mask}
    yield from _variations("density.local_nce", corrected, usual)
    yield from _variations("density.negative_sampling", scores, bare)
    yield from _variations("density.ranking_nce", scores, {"without log_q": {}})
    yield from _variations("density.ranking_nce", corrected, usual)
    yield from _variations("density.info_nce_anchor", corrected, {**usual, "nu, a context without samples": alone})
    yield from _variations("density.sampled_softmax", corrected, {**usual, "without positive": without})
    empty = {"mask": [[j > 0 and i > 0 for j in range(samples)] for i in range(rows)]}
    ratios: Table = {
        "": {},
        "saturated": ahead,
        "weights, mask": {**weights, **mask},
        "a context without samples": empty,
    }
    anchors: Table = {
        "gamma": {"gamma": 8.0},
        "gamma inf": {"gamma": math.inf},
        "saturated, gamma": {**ahead, "gamma": 0.5},
    }
    yield from _variations("density.nre_a", scores, ratios)
    yield from _variations("density.nre_b", scores, ratios)
    yield from _variations("density.nre_c", scores, {**ratios, **anchors})
    penalized: Table = {key: row for key, row in ratios.items() if key != "saturated"}
    yield from _variations("density.balance_penalty", scores, penalized)
    partition = {"noise_scores": scores["noise_scores"], "noise_log_q": noise}
    yield from _variations("density.log_partition", partition, {"": {}, "mask": {**alike, **mask}})
    values, targets = {"scores": draw.vectors(rows, samples)}, draw.index(rows, samples)
    kept = {**weights, "mask": draw.mask_with(targets, samples)}
    yield from _variations("density.full_softmax", values, {"": {}, "weights, mask": kept}, targets=targets)
    with_log_q, one = {**values, "log_q": noise}, {"log_q": noise[0]}
    yield from _variations("density.recover_log_prob", with_log_q, {"": {}, "one log_q for all contexts": one})
    yield from _variations("density.self_normalization", values, {"exact, std": {"field": "std"}})
    fields: Table = {
        "mean": {"field": "mean"},
        "std, mask": {**one, "field": "std", **mask},
        "effective_sample_size, mask": {"field": "effective_sample_size", **mask},
    }
    yield from _variations("density.self_normalization", with_log_q, fields)


def _vocabularies(rows: int, features: int) -> Iterator[Case]:
    draw, classes = _Draw(20269), rows + 2
    layer = {**draw.arrays(rows, features, "embeddings"), "weight": draw.vectors(classes, features)}
    biased = {**layer, "bias": draw.vector(classes)}
    targets, weights = draw.index(rows, classes), {"weights": draw.weights(rows)}
    costs = {"class_weights": [_float32(0.5 + weight) for weight in draw.weights(classes)]}
    ignored = {"targets": [*targets[:-1], -100], "ignore_index": -100}
    table: Table = {
        "bias": {},
        "softcap, z_loss": {"softcap": 1.5, "z_loss": 0.25},
        "smoothing": {"smoothing": 0.25},
        "softcap, smoothing": {"softcap": 1.5, "smoothing": 0.25},
        "z_loss, smoothing, sum": {"z_loss": 0.25, "smoothing": 0.25},
        "class_weights, weights": {**costs, **weights},
        "ignore_index, weights": {**ignored, **weights},
        "all of it": {**costs, **weights, **ignored, "smoothing": 0.25, "z_loss": 0.25, "softcap": 1.5},
    }
    table |= _streamed(table, ["bias", "softcap, z_loss", "all of it"])
    yield from _variations("density.linear_softmax", biased, table, targets=targets)
    signs = [1.0 if j < features else -1.0 for j in range(classes)]  # a target scores 20, other classes 0 or -20
    axes = draw.near([[sign * a for a in axis] for sign, axis in zip(signs, _axes(classes, features), strict=True)])
    near = [target % features for target in targets]
    own = [[_float32(20.0 * a) for a in axes[target]] for target in near]
    ahead = {"embeddings": own, "weight": axes, "targets": near}
    alone: Table = {"without bias": {}, "saturated": ahead}
    yield from _variations("density.linear_softmax", layer, alone, targets=targets)


def _diagnostics(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    square = draw.vectors(rows, rows)
    table: Table = {"": {}, "saturated": {"scores": _ahead(square)}}
    yield from _variations("diagnostics.headroom", {"scores": square}, table)
    pairs = draw.arrays(rows, features, "x", "y")
    table = {"": {}, "power, weights": {"power": 1.5, "weights": draw.weights(rows)}}
    yield from _variations("diagnostics.alignment", pairs, table)
    table = {"": {}, "t": {"t": 0.75}}
    yield from _variations("diagnostics.uniformity", {"x": pairs["x"]}, table | _streamed(table, ["t"]))


def _ranked(rows: int, features: int) -> Iterator[Case]:
    """Measures of where the positives of a row are among its scores, given or from embeddings."""
    draw, more = _Draw(20330), rows + 3  # own seed, as above
    square, wide = ({"scores": draw.vectors(rows, columns)} for columns in (rows, more))
    embeddings = {**draw.arrays(rows, features, "scores"), "key": draw.vectors(more, features)}
    several = {"positives": draw.positives(rows, more), **draw.weighted(rows, more)}
    for name in ("top_k_accuracy", "recall_at", "mean_reciprocal_rank"):
        k: Row = {} if name == "mean_reciprocal_rank" else {"k": 2}
        table: Table = {
            "": {},
            "index": {**wide, "positives": draw.index(rows, more), **k},
            "positives, weights, mask": {**wide, **several, **k},
            "key": {**embeddings, "positives": draw.index(rows, more), **k},
            "key, dot, sum": {**embeddings, "positives": several["positives"], **k},
        }
        yield from _variations(f"diagnostics.{name}", square, table | _streamed(table, ["key, dot, sum"]))


CASES: tuple[Case, ...] = make_cases()
"""The table at its usual size: three rows of three features."""


# Signatures of the losses


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Signature of a loss, and the laws that it obeys.

    Attributes
    ----------
    arguments
        Names of the positional arrays.
    temperature, similarity
        The documented defaults.
    keywords
        Names of keyword arrays.
    parameters
        Arrays of one entry, with their values; learned with the embeddings.
    options
        Other options.
    constant
        Names of arrays without a gradient.
    shapes
        Axes of arrays that differ from `AXES`.
    views
        Rows of the result per sample.
    mask
        The axes of a mask.
    divide_by
        Divisor of a mean: the row weights, these times the pairs or triples of each row, or None for another one.
    alone
        Whether the loss of a single sample, which has no negatives, is 0.
    unpaired
        Whether rows without a positive have a loss.
    together
        Whether rows without a negative have a loss.
    laws
        Whether the attributes above hold; otherwise the entry is only a signature.
    """

    arguments: tuple[str, ...]
    temperature: float | None = None
    similarity: str | None = None
    keywords: tuple[str, ...] = ()
    parameters: Mapping[str, float] = field(default_factory=lambda: {"temperature": 0.5})
    options: Mapping[str, Any] = field(default_factory=dict)
    constant: frozenset[str] = frozenset()
    shapes: Mapping[str, str] = field(default_factory=dict)
    views: int = 1
    mask: str = "NN"
    divide_by: str | None = "rows"
    alone: bool = False
    unpaired: bool = False
    together: bool = False
    laws: bool = True


AXES: Mapping[str, str] = {
    "targets": "TNW",
    "projections": "TWD",
    **dict.fromkeys(("queue", "support", "negative_keys", "keys"), "MD"),
    "prototypes": "CD",
    "concentrations": "C",
    **dict.fromkeys(("scores", "teacher_scores", "pair_weights"), "NN"),
    **dict.fromkeys(("labels", "assignments", "positives", "columns", "grades", "log_q", "log_u"), "N"),
    "key_labels": "M",
    "bilinear": "DD",
}
"""Axes of arrays by name, by default ND: N samples, D features, M rows of a memory, C prototypes, T steps ahead, W
features of a target, S tokens, V rows of all views."""

INTEGERS = frozenset({"labels", "key_labels", "assignments", "positives", "columns", "grades"})
"""Names of integer arrays."""


def lengths(rows: int, features: int, views: int = 1) -> Mapping[str, int]:
    """Lengths of the axes."""
    return {"N": rows, "D": features, "M": rows + 1, "C": 3, "T": 2, "W": 2, "S": 2, "V": views * rows}


def _of(*arguments: str, constant: Iterable[str] = (), **options: Any) -> Loss:
    """Describe a loss by the names of its arrays; the default similarity is cosine."""
    described: dict[str, Any] = {"similarity": "cosine", **options}
    return Loss(arguments=arguments, constant=frozenset(constant), **described)


def _of_views(*names: str, **options: Any) -> Loss:
    """Describe a loss of views, each contrasted with all others."""
    return _of(*names, temperature=0.1, views=len(names), mask="VV", alone=True, **options)


def _of_labels(temperature: float, similarity: str, **options: Any) -> Loss:
    """Describe a loss of labelled embeddings."""
    return _of("embeddings", "labels", temperature=temperature, similarity=similarity, **options)


def _of_scores(**options: Any) -> Loss:
    """Describe a loss of a score matrix."""
    merged: dict[str, Any] = {"similarity": None, "parameters": {}, **options}
    return _of("scores", **merged)


def _of_prototypes(*keywords: str, constant: tuple[str, ...] = (), **options: Any) -> Loss:
    """Describe ProtoNCE."""
    arrays, fixed = ("embeddings", "prototypes", "assignments", "concentrations"), ("prototypes", "concentrations")
    return _of(*arrays, constant=(*fixed, *constant), keywords=keywords, temperature=0.1, mask="NC", **options)


def _way(loss: Loss, **changes: Any) -> Loss:
    """Describe another code path: a signature without laws."""
    return replace(loss, laws=False, **changes)


_TEACHER, _GUIDE = ("teacher_query", "teacher_key"), ("guide_query", "guide_key")
_NEIGHBORS = _of("view_a", "view_b", "support", temperature=0.1, constant=("view_a", "support"), alone=True)
_JUDGED = _of("query", "key", *_TEACHER, temperature=0.07, constant=_TEACHER, alone=True)
_INFO_NCE = _of("query", "positive_key", temperature=0.07, alone=True)
_INFO_NCE_NEGATIVES = replace(_INFO_NCE, arguments=("query", "positive_key", "negative_keys"))
_NT_XENT = _of_views("view_a", "view_b")
_RELIC = _of("view_a", "view_b", temperature=0.1, alone=True)
_SUPCON = _of_labels(0.1, "cosine", options={"base_temperature": 0.25}, together=True)
_CONTRAST = _of("x", "y", temperature=1.0, options={"objective": "info_nce"}, alone=True)
_MARGINS = {"margin": 4.0}
_TRIPLETS = _of_labels(1.0, "neg_euclidean", divide_by="triples", options=_MARGINS)
_CONTRASTIVE = _of_labels(1.0, "neg_euclidean", divide_by="pairs", options=_MARGINS, unpaired=True, together=True)
_MOCO = _of("query", "key", "queue", temperature=0.07, constant=("queue",), mask="NM")
_CLIP = _of("image", "text", parameters={"logit_scale": 8.0}, alone=True)
_SIGLIP = _of("image", "text", parameters={"logit_scale": 8.0, "logit_bias": -4.0}, unpaired=True, together=True)
_TOKENS = {"query": "NSD", "positive_key": "NSD", "image": "NSD", "text": "NSD"}
_GRADED = Loss(arguments=("x", "y", "grades"), parameters={"scale": 2.0}, laws=False)

LOSSES: Mapping[str, Loss] = {
    "clip": _CLIP,
    "contrast": _CONTRAST,
    "contrast logistic": _of(
        "x", "y", temperature=1.0, options={"objective": "logistic"}, unpaired=True, together=True
    ),
    "contrast labels": _way(
        _CONTRAST, options={"objective": "flat_nce", "pairing": "labels"}, keywords=("labels", "columns")
    ),
    "contrastive": _CONTRASTIVE,
    "contrastive balance": replace(_CONTRASTIVE, divide_by=None, options={**_MARGINS, "balance": True}),
    "cpc": _of("context", "targets", "projections", temperature=1.0, similarity="dot", alone=True),
    "dcl": _NT_XENT,
    "distillation": _JUDGED,
    "distillation symmetric": _way(_JUDGED, options={"symmetric": True}),
    "dclw": _NT_XENT,
    "flat_nce": _NT_XENT,
    "flat_nce detach": replace(_NT_XENT, options={"form": "detach"}),
    "flat_nce include_positive": _way(_NT_XENT, options={"include_positive": True}),
    "gist_embed": _of("query", "key", *_GUIDE, temperature=0.01, constant=_GUIDE, options={"margin": -4.0}, alone=True),
    "hcl": replace(_NT_XENT, temperature=0.5),
    "info_nce": _INFO_NCE,
    "info_nce symmetric": replace(_INFO_NCE, options={"symmetric": True}),
    "info_nce shared": replace(_INFO_NCE_NEGATIVES, mask="NM", alone=False),
    "info_nce own": _way(_INFO_NCE_NEGATIVES, shapes={"negative_keys": "NMD"}),
    "info_nce index": _way(_INFO_NCE, keywords=("positives",)),
    "info_nce hardness": replace(_INFO_NCE, options={"hardness": 2.0}),
    **{f"info_nce {name}": _way(_INFO_NCE, options={"similarity": name}) for name in pnce.similarities.NAMES},
    "info_nce bilinear": _way(_INFO_NCE, keywords=("bilinear",)),
    "info_nce max_sim": _way(_INFO_NCE, options={"similarity": "max_sim", "symmetric": True}, shapes=_TOKENS),
    "joint_info_nce": _of("query", "key", temperature=0.01, alone=True),
    "moco": _MOCO,
    "moco queue": _way(_MOCO, options={"slots": 9}),
    "moco_v3": _of("query_a", "query_b", "key_a", "key_b", temperature=0.2, constant=("key_a", "key_b"), alone=True),
    "n_tuple": _of("query", "key", temperature=1.0, similarity="dot", options={"l2": 0.25}),
    "nca": _of_labels(1.0, "neg_sq_euclidean"),
    "nnclr": _NEIGHBORS,
    "nnclr symmetric": replace(_NEIGHBORS, options={"symmetric": True}),
    "nnclr queue, views": _way(_NEIGHBORS, options={"slots": 9, "negatives": "views"}),
    "nt_xent": _NT_XENT,
    "nt_xent three views": _of_views("view_a", "view_b", "view_c"),
    "nt_xent keys": _way(_NT_XENT, keywords=("keys",)),
    "nt_xent queue": _way(_NT_XENT, keywords=("keys",), constant=frozenset({"keys"}), options={"slots": 9}),
    "proto_nce": _of_prototypes(parameters={}),
    "proto_nce key": _of_prototypes("key", unpaired=True),
    "proto_nce queue": _of_prototypes("key", "queue", constant=("queue",), unpaired=True),
    "relic": _RELIC,
    "relic symmetric": replace(_RELIC, options={"symmetric": True, "stop_gradient": "second"}),
    "relic keys": _way(_RELIC, options={"direction": "b_to_a"}, keywords=("keys",), alone=False),
    "siglip": _SIGLIP,
    "siglip negative_only": _way(_SIGLIP, options={"negative_only": True}),
    "siglip max_sim": _way(_SIGLIP, options={"similarity": "max_sim, dot"}, shapes=_TOKENS),
    "soft_nearest_neighbor": _of_labels(1.0, "neg_sq_euclidean"),
    "supcon": _SUPCON,
    "supcon separate": _of_labels(0.1, "cosine", options={"multi_positive": "separate"}),
    "supcon keys": _way(_SUPCON, keywords=("keys", "key_labels")),
    "supcon queue": _way(_SUPCON, keywords=("keys", "key_labels"), constant=frozenset({"keys"}), options={"slots": 9}),
    "two_tower": _of("query", "candidate", temperature=1.0, similarity="dot", alone=True),
    "two_tower log_q": _way(_of("query", "candidate", temperature=1.0, similarity="dot"), keywords=("log_q",)),
    "triplet": _of(
        "anchor", "positive", "negative", temperature=1.0, similarity="neg_euclidean", options=_MARGINS, mask="N"
    ),
    "triplet_from_labels": _TRIPLETS,
    "triplet_from_labels batch_hard": replace(
        _TRIPLETS, divide_by="rows", options={**_MARGINS, "mining": "batch_hard", "form": "soft"}
    ),
    "triplet_from_labels semi_hard": _way(_TRIPLETS, options={**_MARGINS, "mining": "semi_hard"}),
    "from_scores.clip": _of_scores(),
    "from_scores.contrastive": _of_scores(divide_by="pairs", options=_MARGINS, unpaired=True, together=True),
    "from_scores.dcl": _of_scores(),
    "from_scores.dclw": _of_scores(temperature=1.0, parameters={"temperature": 0.5}),
    "from_scores.flat_nce": _of_scores(),
    "from_scores.info_nce": _of_scores(together=True),
    "from_scores.info_nce separate": _of_scores(options={"multi_positive": "separate"}),
    "from_scores.logistic": _of_scores(unpaired=True, together=True),
    "from_scores.nca": _of_scores(),
    "from_scores.relic": _of_scores(),
    "from_scores.relic symmetric": _of_scores(options={"symmetric": True, "direction": "b_to_a"}),
    "from_scores.supcon": _of_scores(together=True),
    "from_scores.triplet": _of_scores(divide_by="triples", options=_MARGINS),
    "from_scores.triplet batch_hard": _of_scores(options={**_MARGINS, "mining": "batch_hard"}),
    "from_scores.cosent": _way(_of_scores(), arguments=("scores", "grades"), shapes={"scores": "N"}),
    "from_scores.margin_mse": _way(
        _of_scores(), arguments=("scores", "teacher_scores"), constant=frozenset({"teacher_scores"})
    ),
    **{
        f"from_scores.{name} pair_weights": _way(
            _of_scores(), keywords=("pair_weights",), constant=frozenset({"pair_weights"}), options=options
        )
        for name, options in {
            **{
                key: {} for key in ("clip", "dcl", "dclw", "flat_nce", "info_nce", "logistic", "nca", "relic", "supcon")
            },
            "contrastive": _MARGINS,
        }.items()
    },
    "angle": replace(_GRADED, similarity="angle"),
    "cosent": replace(_GRADED, similarity="cosine"),
    "matryoshka": _way(_CLIP, alone=False),
    "sogclr": _way(_of("query", "key", "log_u", temperature=0.1, options={"rho": 1.0}, constant=("log_u",))),
}
"""Every public loss; after a blank, with an option that selects another code path."""


def example(
    name: str,
    rows: int = 4,
    features: int = 3,
    *,
    fill: Callable[[tuple[int, ...], int], Nested] | None = None,
    labels: Sequence[int] | None = None,
) -> Case:
    """Return a case of a loss of the table; its arguments are all of its float arrays.

    Parameters
    ----------
    name : str
        A name of `LOSSES`.
    rows, features : int
        Number of samples, and of components of an embedding.
    fill : callable, optional
        Makes an array of embeddings from its shape and its position among the arrays.
    labels : sequence of int, optional
        The classes, by default pairs of neighbours.
    """
    loss = LOSSES[name]
    length = lengths(rows, features, loss.views)
    floats: dict[str, Nested] = {}
    integers: dict[str, Nested] = {}
    for place, key in enumerate((*loss.arguments, *loss.keywords)):
        shape = tuple(length[axis] for axis in loss.shapes.get(key, AXES.get(key, "ND")))
        if key == "labels":
            integers[key] = [i // 2 for i in range(rows)] if labels is None else [*labels]
        elif key in INTEGERS:
            integers[key] = {
                "assignments": [i % length["C"] for i in range(rows)],
                "positives": [(i + 1) % rows for i in range(rows)],
            }.get(key, [i // 2 for i in range(shape[0])])
        elif key == "concentrations":
            floats[key] = [0.25, 0.5, 0.375]
        elif key == "pair_weights":
            floats[key] = [[(0.5, 1.0, 1.75)[(i + j) % 3] for j in range(shape[1])] for i in range(shape[0])]
        else:
            floats[key] = (fill if fill is not None and len(shape) > 1 else sixteenths)(shape, place)
    floats |= loss.parameters
    return Case(name=name, loss=name.split(maxsplit=1)[0], arguments=floats, constants=integers, options=loss.options)


def sixteenths(shape: tuple[int, ...], seed: int) -> Nested:
    """Draw multiples of 1/16, which every dtype represents exactly."""
    draw = random.Random(seed)

    def filled(axes: tuple[int, ...]) -> Nested:
        return [filled(axes[1:]) for _ in range(axes[0])] if axes else draw.randint(-24, 24) / 16

    return filled(shape)
