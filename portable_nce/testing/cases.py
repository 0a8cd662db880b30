"""A table of loss calls with example inputs, as nested Python lists of numbers that float32 holds exactly.

It names no framework: whoever runs a case turns the lists into arrays of the framework under test, in the order of
``Case.arguments`` and then ``Case.constants``, and passes them to ``Case.function``:

>>> from portable_nce.testing import CASES
>>> case = next(case for case in CASES if case.name == "from_scores.info_nce")
>>> list(case.arguments), list(case.constants)
(['scores'], [])
>>> len(case.arguments["scores"])
3
"""

from __future__ import annotations

import inspect
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

Regime = Literal["normal", "saturated"]

NOT_REDUCED = frozenset({"bounds.dual_critic", "density.log_partition", "density.recover_log_prob"})
"""What gives an array of numbers, which a case sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of one loss, with its inputs.

    Attributes
    ----------
    name : str
        What the case is called in reports: the loss, then what is special about the call.
    loss : str
        The public name of the loss below ``portable_nce``, such as ``"from_scores.dcl"``.
    arguments : mapping of str to nested list
        The differentiable arrays, by name, in the order in which ``function`` takes them.
    constants : mapping of str to nested list
        The arrays that are not differentiated (indices, labels, truth values, weights), by name; ``function`` takes
        them after the arguments. Integers and truth values keep their kind, floats take the dtype under test.
    options : mapping of str to object
        The keyword options that are no arrays.
    regime : {"normal", "saturated"}
        Saturated: every positive leads its negatives so far that a cross-entropy's gradient would round to zero.
    """

    name: str
    loss: str
    arguments: Mapping[str, Nested]
    constants: Mapping[str, Nested] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    regime: Regime = "normal"

    @property
    def function(self) -> Callable[..., Any]:
        """The call itself: arrays in the order of ``arguments``, then ``constants``; gives a 0-d array."""
        names = (*self.arguments, *self.constants)
        return lambda *arrays: self.call(dict(zip(names, arrays, strict=True)))

    def call(self, arrays: Mapping[str, Any], **options: Any) -> Any:
        """Call the loss on arrays by name, with further options."""
        return self.bound(**options)(arrays)

    def bound(self, **options: Any) -> Callable[[Mapping[str, Any]], Any]:
        """Look the loss up, which no compiler needs to follow, and give a function of arrays by name."""
        function, positional = _function(self.loss)
        options = {**self.options, **options}
        return lambda arrays: _call(self.loss, function, positional, options, dict(arrays))


@cache
def _function(loss: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Look a loss up, with the names of what it takes by position alone."""
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
    further = dict(options)
    part = further.pop("field", None)
    slots = further.pop("slots", None)
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
        masks = {key: keywords.pop(key, None) for key in ("query_mask", "document_mask")}
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
    """Push rows, and their labels if there are some, to a new queue of so many slots."""
    return pnce.queue_push(pnce.queue_init(rows, slots, labels=labels), rows, labels=labels)


def _name_axes(keywords: dict[str, Any]) -> None:
    """Replace the names of contrast's objective and pairing by the things themselves, where only those will do."""
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
    """Random numbers of a seed, each rounded to float32."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def normal(self) -> float:
        """Draw from the standard normal distribution."""
        return _float32(self._random.gauss(0.0, 1.0))

    def vectors(self, rows: int, features: int) -> list[list[float]]:
        """Draw vectors."""
        return [[self.normal() for _ in range(features)] for _ in range(rows)]

    def near(self, vectors: list[list[float]], noise: float) -> list[list[float]]:
        """Draw vectors near given ones."""
        return [[_float32(x + noise * self.normal()) for x in vector] for vector in vectors]

    def weights(self, count: int) -> list[float]:
        """Draw positive weights, one of them 0."""
        weights = [_float32(self._random.uniform(0.25, 2.0)) for _ in range(count)]
        weights[count // 2] = 0.0
        return weights

    def mask(self, rows: int, columns: int) -> list[list[bool]]:
        """Draw truth values; every row keeps its diagonal and the column after."""
        return [
            [j in {i, (i + 1) % columns} or self._random.random() < 1 / 2 for j in range(columns)] for i in range(rows)
        ]

    def positives(self, rows: int, columns: int) -> list[list[bool]]:
        """Draw truth values: one to three positives a row, in no row every column."""
        chosen = [
            self._random.sample(range(columns), self._random.randint(1, min(3, columns - 1))) for _ in range(rows)
        ]
        return [[j in row for j in range(columns)] for row in chosen]

    def index(self, rows: int, columns: int) -> list[int]:
        """Draw a column for every row."""
        return [self._random.randrange(columns) for _ in range(rows)]


def _float32(x: float) -> float:
    """Round to the nearest float32."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def make_cases(rows: int = 3, features: int = 3, seed: int = 20268) -> tuple[Case, ...]:
    """Make the table of cases.

    Parameters
    ----------
    rows : int
        How many rows the first array of every case has.
    features : int
        How many components an embedding has.
    seed : int
        Where the random numbers start. By default one at which no gradient with respect to a temperature is the small
        difference of large terms, so that errors relative to the gradient say something about the arithmetic.

    Returns
    -------
    tuple of Case
        The cases; the names depend neither on the sizes nor on the seed.
    """
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
        *_negatives_only(rows, features),
        *_mined(rows, features),
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
"""Cases that are repeated with a temperature of each sample."""


def _with_temperatures(case: Case) -> Case:
    """Give each sample its temperature."""
    first = next(iter(case.arguments.values()))
    temperatures = [(0.5, 0.75, 0.375, 1.25)[k % 4] for k in range(len(first))]
    arguments = {**case.arguments, "temperature": temperatures}
    return replace(case, name=f"{case.name}, temperatures of rows", arguments=arguments)


def _variations(
    loss: str, arguments: Mapping[str, Nested], table: Mapping[str, Mapping[str, Nested]]
) -> Iterator[Case]:
    """Make one case of every row of a table: what is special about the call -> further inputs of every kind.

    Floats under the names of differentiable keywords join the arguments; other lists are constants, the rest options.
    """
    for special, further in table.items():
        regime: Regime = "saturated" if "saturated" in special else "normal"
        given = {**arguments, **{key: value for key, value in further.items() if key in arguments}}
        extra = {key: value for key, value in further.items() if key not in arguments}
        differentiable = {key: value for key, value in extra.items() if _is_differentiable(key, value)}
        constants = {
            key: value for key, value in extra.items() if isinstance(value, list) and key not in differentiable
        }
        yield Case(
            name=f"{loss} {special}".strip(),
            loss=loss,
            arguments={**given, **differentiable},
            constants=constants,
            options={key: value for key, value in extra.items() if key not in {**differentiable, **constants}},
            regime=regime,
        )


def _is_differentiable(key: str, value: Nested) -> bool:
    """Tell whether a further input is one that gradients flow to."""
    names = {"negative_keys", "bilinear", "temperature", "logit_scale", "logit_bias", "key"}
    names |= {"negative_candidates", "log_q", "negative_log_q", "keys", "scale"}
    return key in names and isinstance(value, (list, float))


def _similarities(draw: _Draw, features: int) -> dict[str, dict[str, Nested]]:
    """One row for every similarity, at a temperature that suits scores of order one."""
    named = ("dot", "cosine", "neg_sq_euclidean", "neg_euclidean")
    return {
        **{name: {"similarity": name, "temperature": 0.75} for name in named},
        "bilinear": {"bilinear": draw.vectors(features, features), "temperature": 0.75},
    }


def _streamed(table: Mapping[str, Mapping[str, Nested]], names: Iterable[str]) -> dict[str, dict[str, Nested]]:
    """Repeat rows of a table with the streamed execution, in tiles of two columns."""
    return {f"{name}, streamed".lstrip(", "): {**table[name], "block_size": 2} for name in names}


def _info_nce(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    query = draw.vectors(rows, features)
    shared = draw.vectors(rows - 1, features)
    own = [draw.vectors(rows + 1, features) for _ in range(rows)]
    weights = draw.weights(rows)
    table: dict[str, dict[str, Nested]] = {
        "": {},
        **_similarities(draw, features),
        "index into more keys": {
            "positive_key": draw.vectors(rows + 2, features),
            "positives": draw.index(rows, rows + 2),
            "temperature": 0.5,
        },
        "saturated": {
            "positive_key": draw.near(query, 2.0**-6),
            "similarity": "neg_sq_euclidean",
            "temperature": 0.0625,
        },
        "sum": {"reduction": "sum", "temperature": 0.5},
        "weights": {"weights": weights, "temperature": 0.5},
        "mask": {"mask": draw.mask(rows, rows), "temperature": 0.5},
        "index": {"positives": draw.index(rows, rows), "temperature": 0.5},
        "positives each": {"positives": draw.positives(rows, rows), "temperature": 0.5},
        "positives pooled": {"positives": draw.positives(rows, rows), "multi_positive": "pooled", "temperature": 0.5},
        "symmetric": {"symmetric": True, "temperature": 0.5},
        "symmetric, weights, mask": {
            "symmetric": True,
            "weights": weights,
            "mask": draw.mask(rows, rows),
            "temperature": 0.5,
        },
    }
    negatives = {"shared": shared, "own": own}
    masks = {"shared": [[i != j for j in range(rows - 1)] for i in range(rows)], "own": draw.mask(rows, rows + 1)}
    for kind, negative_keys in negatives.items():
        for name, options in _similarities(draw, features).items():
            table[f"{kind} negatives, {name}"] = {"negative_keys": negative_keys, **options}
        table[f"{kind} negatives, weights, mask"] = {
            "negative_keys": negative_keys,
            "weights": weights,
            "mask": masks[kind],
            "temperature": 0.5,
        }
    table |= _streamed(table, [name for name in table if "own" not in name])
    table |= _streamed(table, ["own negatives, cosine", "own negatives, weights, mask"])
    yield from _variations("info_nce", {"query": query, "positive_key": draw.vectors(rows, features)}, table)


def _two_views(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    view_a = draw.vectors(rows, features)
    table: dict[str, dict[str, Nested]] = {
        "": {},
        **_similarities(draw, features),
        "saturated": {"view_b": draw.near(view_a, 2.0**-6), "similarity": "neg_sq_euclidean", "temperature": 0.0625},
        "sum": {"reduction": "sum", "temperature": 0.5},
        "weights of pairs": {"weights": draw.weights(rows), "temperature": 0.5},
        "weights of rows, mask": {
            "weights": draw.weights(2 * rows),
            "mask": draw.mask(2 * rows, 2 * rows),
            "temperature": 0.5,
        },
    }
    flat: dict[str, dict[str, Nested]] = {
        "detach": {"form": "detach", "temperature": 0.5},
        "include_positive": {"include_positive": True, "temperature": 0.5},
        "include_positive, detach": {"include_positive": True, "form": "detach", "temperature": 0.5},
        "detach, weights": {"form": "detach", "weights": draw.weights(rows), "temperature": 0.5},
    }
    arguments = {"view_a": view_a, "view_b": draw.vectors(rows, features)}
    table |= _streamed(table, list(table))
    flat |= _streamed(flat, list(flat))
    yield from _variations("nt_xent", arguments, table)
    yield from _variations("dcl", arguments, table)
    yield from _variations("flat_nce", arguments, {**table, **flat})


def _clip(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    table: dict[str, dict[str, Nested]] = {
        "": {"logit_scale": 8.0},
        "above the largest scale": {"logit_scale": 128},  # of an array the gradient is not that of the value
        "no largest scale": {"logit_scale": 128.0, "max_logit_scale": None},
        "dot": {"logit_scale": 1.5, "similarity": "dot"},
        "sum": {"logit_scale": 8.0, "reduction": "sum"},
        "weights, mask": {"logit_scale": 8.0, "weights": draw.weights(rows), "mask": draw.mask(rows, rows)},
    }
    table |= _streamed(table, list(table))
    arguments = {"image": draw.vectors(rows, features), "text": draw.vectors(rows, features)}
    yield from _variations("clip", arguments, table)


def _contrast(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    x = draw.vectors(rows, features)
    labels = [i % 2 for i in range(rows)]
    columns = [i % 2 for i in range(rows + 2)]
    against: dict[str, dict[str, Nested]] = {
        "diagonal": {"pairing": "diagonal"},
        "queue": {"pairing": "queue"},
        "index": {"pairing": "index", "positives": draw.index(rows, rows + 2)},
        "labels": {"pairing": "labels", "labels": labels, "columns": columns},
        "labels pooled": {"pairing": "labels", "labels": labels, "columns": columns, "multi_positive": "pooled"},
        "explicit": {"pairing": "explicit", "positives": draw.positives(rows, rows + 2)},
    }
    square: dict[str, dict[str, Nested]] = {
        "labels, symmetric, mask": {
            "pairing": "labels",
            "labels": labels,
            "columns": labels,
            "symmetric": True,
            "mask": draw.mask(rows, rows),
        },
    }
    alone: dict[str, dict[str, Nested]] = {
        "labels among themselves": {"pairing": "labels", "labels": [i % 2 for i in range(2 * rows)]},
        "two views": {"pairing": "two_views"},
    }
    for arguments, table in (
        ({"x": x, "y": draw.vectors(rows + 2, features)}, against),
        ({"x": x, "y": draw.vectors(rows, features)}, square),
        ({"x": draw.vectors(2 * rows, features)}, alone),
    ):
        for objective in ("info_nce", "flat_nce", "info_nce_anchor"):
            own = {"n_columns": rows + 2, "nu": 0.75} if objective == "info_nce_anchor" else {}
            named = {
                f"{objective}, {name}": {
                    **options,
                    "objective": objective,
                    "temperature": 0.5,
                    **own,
                }
                for name, options in table.items()
                if not own or "multi_positive" not in options
            }
            yield from _variations("contrast", arguments, named | _streamed(named, list(named)))


def _tokens(rows: int, features: int) -> Iterator[Case]:
    draw = _Draw(20269)
    query, document = ([draw.vectors(tokens, features) for _ in range(n)] for tokens, n in ((2, rows), (3, rows + 1)))
    masks = {
        "query_mask": [[i != 1 or j == 0 for j in range(2)] for i in range(rows)],
        "document_mask": [[i != rows and j != i % 3 for j in range(3)] for i in range(rows + 1)],
    }
    usual: dict[str, Nested] = {"objective": "info_nce", "pairing": "diagonal", "temperature": 0.5}
    table: dict[str, dict[str, Nested]] = {
        "max_sim": {**usual, "similarity": "max_sim"},
        "max_sim, masks": {**usual, "similarity": "max_sim", **masks},
        "max_sim of products, masks, sum": {**usual, "similarity": "max_sim, dot", **masks, "reduction": "sum"},
    }
    yield from _variations("contrast", {"x": query, "y": document}, table | _streamed(table, list(table)))


def _from_scores(draw: _Draw, rows: int) -> Iterator[Case]:
    square = draw.vectors(rows, rows)
    saturated = [[_float32(s + 40.0 * (i == j)) for j, s in enumerate(row)] for i, row in enumerate(square)]
    wide = {"scores": draw.vectors(rows, rows + 2)}
    positives = draw.positives(rows, rows + 2)
    table: dict[str, dict[str, Nested]] = {
        "": {},
        "saturated": {"scores": saturated},
        "more columns than rows": wide,
        "sum": {"reduction": "sum"},
        "weights": {"weights": draw.weights(rows)},
        "mask": {**wide, "mask": draw.mask(rows, rows + 2)},
        "index": {**wide, "positives": draw.index(rows, rows + 2)},
        "positives each": {**wide, "positives": positives},
        "positives pooled": {**wide, "positives": positives, "multi_positive": "pooled"},
        "positives, weights, mask": {
            **wide,
            "positives": positives,
            "weights": draw.weights(rows),
            "mask": draw.mask(rows, rows + 2),
        },
    }
    flat: dict[str, dict[str, Nested]] = {
        "detach": {"form": "detach"},
        "include_positive": {"include_positive": True},
        "include_positive, detach": {"include_positive": True, "form": "detach"},
    }
    single = {key: options for key, options in table.items() if "each" not in key and "pooled" not in key}
    size: dict[str, dict[str, Nested]] = {**single, "normalized": {"normalized": True}}
    arguments = {"scores": square}
    yield from _variations("from_scores.info_nce", arguments, table)
    yield from _variations("from_scores.dcl", arguments, table)
    yield from _variations("from_scores.flat_nce", arguments, {**table, **flat})
    yield from _variations("diagnostics.effective_sample_size", arguments, size)


def _bounds(draw: _Draw, rows: int) -> Iterator[Case]:
    square = draw.vectors(rows, rows)
    saturated = [[_float32(s + 40.0 * (i == j)) for j, s in enumerate(row)] for i, row in enumerate(square)]
    table: dict[str, dict[str, Nested]] = {"": {}, "saturated": {"scores": saturated}}
    yield from _variations("bounds.info_nce", {"scores": square}, table)
    yield from _variations("bounds.dual", {"scores": square, "u": draw.vectors(1, rows)[0]}, {"": {}})
    critics: dict[str, dict[str, Nested]] = {**table, "include_positive": {"include_positive": True}}
    yield from _variations("bounds.dual_critic", {"scores": square}, critics)


def _separate(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    """Draw what the losses of old have learned: positives apart, further views, embeddings of unit length."""
    arguments = {"query": draw.vectors(rows, features), "positive_key": draw.vectors(rows + 1, features)}
    positives = draw.positives(rows, rows + 1)
    table: dict[str, dict[str, Nested]] = {
        "positives separate": {"positives": positives, "multi_positive": "separate", "temperature": 0.5},
        "positives separate, weights, mask": {
            "positives": positives,
            "multi_positive": "separate",
            "weights": draw.weights(rows),
            "mask": draw.mask(rows, rows + 1),
            "temperature": 0.25,
        },
    }
    yield from _variations("info_nce", arguments, table | _streamed(table, ["positives separate, weights, mask"]))
    units: dict[str, dict[str, Nested]] = {
        "unit dot": {"similarity": "normalized dot", "temperature": 0.5},
        "unit neg_euclidean": {"similarity": "normalized neg_euclidean", "temperature": 0.5},
        "unit neg_sq_euclidean": {"similarity": "normalized neg_sq_euclidean", "temperature": 0.5},
    }
    arguments = {"query": draw.vectors(rows, features), "positive_key": draw.vectors(rows, features)}
    yield from _variations("info_nce", arguments, units | _streamed(units, list(units)[-1:]))
    views = {name: draw.vectors(rows, features) for name in ("view_a", "view_b", "view_c")}
    table = {
        "three views": {},
        "three views, each, weights of views": {
            "multi_positive": "each",
            "weights": draw.weights(3 * rows),
            "temperature": 0.5,
        },
        "three views, pooled, weights of samples, mask": {
            "multi_positive": "pooled",
            "weights": draw.weights(rows),
            "mask": draw.mask(3 * rows, 3 * rows),
            "temperature": 0.5,
        },
        "three views, separate, mask": {"mask": draw.mask(3 * rows, 3 * rows), "temperature": 0.5},
    }
    yield from _variations("nt_xent", views, table | _streamed(table, list(table)[-2:]))
    labels = {"labels": [i % 2 for i in range(rows)], "columns": [i % 2 for i in range(rows + 2)]}
    arguments = {"x": draw.vectors(rows, features), "y": draw.vectors(rows + 2, features)}
    for objective in ("info_nce", "flat_nce"):
        table = {
            f"{objective}, labels separate": {
                **labels,
                "pairing": "labels",
                "objective": objective,
                "multi_positive": "separate",
                "temperature": 0.5,
            }
        }
        yield from _variations("contrast", arguments, table)


def _retrieval(rows: int, features: int) -> Iterator[Case]:
    draw = _Draw(20270)  # of its own: those of the cases after it stay what they are
    query, own = draw.vectors(rows, features), {"ids": [k // 2 for k in range(rows)]}
    log_q = {"log_q": [row[0] for row in draw.vectors(rows, 1)]}
    further = {"negative_candidates": draw.vectors(rows + 1, features)}
    all_of_it = {
        **further,
        **own,
        "negative_ids": [k % 3 for k in range(rows + 1)],
        **log_q,
        "negative_log_q": [row[0] for row in draw.vectors(rows + 1, 1)],
        "temperature": 0.5,
    }
    table: dict[str, dict[str, Nested]] = {
        "": {},
        "log_q": {**log_q, "temperature": 0.75},
        "cosine, ids": {**own, "similarity": "cosine", "temperature": 0.5},
        "log_q, ids": {**log_q, **own, "temperature": 0.5},
        "log_q, ids, distances": {**log_q, **own, "similarity": "neg_sq_euclidean", "temperature": 0.75},
        "saturated": {
            **log_q,
            **own,
            "candidate": draw.near(query, 2.0**-6),
            "similarity": "neg_sq_euclidean",
            "temperature": 0.125,
        },
        "mixed negatives": {**further, "temperature": 0.5},
        "all of it": all_of_it,
        "all of it, weights, mask, sum": {
            **all_of_it,
            "weights": draw.weights(rows),
            "mask": draw.mask(rows, 2 * rows + 1),
            "reduction": "sum",
        },
    }
    table |= _streamed(table, ["log_q, ids", "all of it", "all of it, weights, mask, sum"])
    yield from _variations("two_tower", {"query": query, "candidate": draw.vectors(rows, features)}, table)


def _judged(rows: int, features: int) -> Iterator[Case]:
    """Draw what weights of positives, second models and the hardness of negatives change."""
    draw = _Draw(20274)
    query, key = draw.vectors(rows, features), draw.vectors(rows, features)
    more = draw.vectors(rows + 2, features)
    targets = [[_float32(abs(x)) if k % 3 else 0.0 for k, x in enumerate(row)] for row in draw.vectors(rows, rows)]
    weights, mask = draw.weights(rows), draw.mask(rows, rows)
    table: dict[str, dict[str, Nested]] = {
        "soft targets": {"positives": targets, "temperature": 0.5},
        "soft targets, dot, weights, mask": {
            "positives": targets,
            "similarity": "dot",
            "weights": weights,
            "mask": mask,
            "temperature": 0.75,
        },
        "soft targets, separate": {"positives": targets, "multi_positive": "separate", "temperature": 0.5},
        "hardness": {"hardness": 5.0, "temperature": 0.5},
        "hardness, symmetric, weights, mask": {
            "hardness": 2.0,
            "symmetric": True,
            "weights": weights,
            "mask": mask,
            "temperature": 0.5,
        },
        "hardness, shared negatives, dot": {
            "hardness": 0.5,
            "negative_keys": more,
            "similarity": "dot",
            "temperature": 0.75,
        },
        "hardness, own negatives": {
            "hardness": 2.0,
            "negative_keys": [draw.vectors(2, features) for _ in range(rows)],
            "temperature": 0.5,
        },
        "hardness, distances": {"hardness": 0.5, "similarity": "neg_sq_euclidean", "temperature": 0.75},
    }
    streamed = [name for name in table if "own" not in name]
    yield from _variations("info_nce", {"query": query, "positive_key": key}, table | _streamed(table, streamed))
    square = {"scores": draw.vectors(rows, rows)}
    saturated = {"scores": [[40.0 * (i == j) for j in range(rows)] for i in range(rows)]}
    sharp = [[1.0 if i == j else 0.0 for j in range(rows)] for i in range(rows)]
    for loss in ("from_scores.info_nce", "from_scores.dcl"):
        table = {
            "soft targets": {"positives": targets, "weights": weights},
            "soft targets, saturated": {**saturated, "positives": sharp},
        }
        yield from _variations(loss, square, table)
    student = {"query": query, "key": key}
    of_teacher = {"teacher_query": draw.vectors(rows, 2), "teacher_key": draw.vectors(rows, 2)}
    table = {
        "": {**of_teacher, "temperature": 0.5},
        "symmetric, weights, mask": {
            **of_teacher,
            "teacher_temperature": 0.25,
            "symmetric": True,
            "weights": weights,
            "mask": mask,
            "temperature": 0.5,
        },
        "no temperature": {**of_teacher, "teacher_temperature": None, "similarity": "dot", "temperature": 0.75},
    }
    yield from _variations("distillation", student, table | _streamed(table, list(table)))
    table = {
        "": {"temperature": 0.5},
        "saturated": {"key": draw.near(query, 2.0**-6), "temperature": 2.0**-4},
        "three directions, weights, mask": {
            "directions": ("query_to_key", "key_to_query", "key_to_key"),
            "weights": weights,
            "mask": mask,
            "temperature": 0.5,
        },
        "one direction, distances, sum": {
            "directions": ("query_to_query",),
            "similarity": "neg_sq_euclidean",
            "reduction": "sum",
            "temperature": 0.75,
        },
    }
    yield from _variations("joint_info_nce", student, table | _streamed(table, list(table)[2:]))
    smooth: dict[str, Nested] = {"objective": "info_nce", "pairing": "smoothed", "smoothing": 0.125}
    table = {
        "smoothed": {**smooth, "temperature": 0.5},
        "smoothed, dot, symmetric, weights": {
            **smooth,
            "similarity": "dot",
            "symmetric": True,
            "weights": weights,
            "temperature": 0.75,
        },
        "smoothed, further columns": {**smooth, "y": more, "temperature": 0.5},
        "smoothed, mask": {**smooth, "mask": mask, "temperature": 0.5},
        "smoothed, flat_nce": {**smooth, "objective": "flat_nce", "mask": mask, "temperature": 0.5},
    }
    yield from _variations("contrast", {"x": query, "y": key}, table | _streamed(table, list(table)[:4]))
    own = _Draw(20286)  # so that all further numbers stay as they are
    pair = {"x": own.vectors(rows, features), "y": own.vectors(rows, features)}
    by_pair: dict[str, Nested] = {
        "objective": "info_nce",
        "pairing": "diagonal",
        "pair_weights": [
            [w if (i + k) % 3 != 1 else 0.0 for k, w in enumerate(own.weights(rows))] for i in range(rows)
        ],
    }
    some = [[i == k or (i + k) % 3 == 0 for k in range(rows)] for i in range(rows)]
    table = {
        "pair weights": {**by_pair, "temperature": 0.5},
        "pair weights, dot, symmetric, weights, mask": {
            **by_pair,
            "similarity": "dot",
            "symmetric": True,
            "weights": weights,
            "mask": mask,
            "temperature": 0.75,
        },
        "pair weights, several positives": {
            **by_pair,
            "pairing": "explicit",
            "positives": some,
            "multi_positive": "separate",
            "temperature": 0.5,
        },
        "pair weights, flat_nce": {**by_pair, "objective": "flat_nce", "temperature": 0.5},
    }
    yield from _variations("contrast", pair, table | _streamed(table, list(table)[:3]))
    sets = {"labels": [[k % 2 == c % 2 or k % 3 == c for c in range(3)] for k in range(rows)], "temperature": 0.5}
    table = {
        "several labels": sets,
        "several labels, separate, weights, mask": {
            **sets,
            "multi_positive": "separate",
            "weights": weights,
            "mask": mask,
        },
    }
    yield from _variations("supcon", {"embeddings": query}, table | _streamed(table, list(table)))
    views = {"view_a": query, "view_b": key}
    near = {"view_b": draw.near(query, 2.0**-6), "temperature": 2.0**-5}
    table = {
        "": {},
        "debiased": {"beta": 0.0, "temperature": 0.75},
        "neither": {"beta": 0.0, "tau_plus": 0.0, "temperature": 0.5},
        "beta, dot": {"beta": 0.5, "tau_plus": 0.0625, "similarity": "dot", "temperature": 0.75},
        "all are positives": {"tau_plus": 0.75, "temperature": 0.5},
        "saturated": {**near, "tau_plus": 0.0},
        "weights, mask": {
            "beta": 2.0,
            "tau_plus": 0.125,
            "weights": weights,
            "mask": draw.mask(2 * rows, 2 * rows),
            "temperature": 0.5,
        },
        "sum, distances": {"similarity": "neg_sq_euclidean", "reduction": "sum", "temperature": 2.0},
    }
    yield from _variations("hcl", views, table | _streamed(table, ["", "weights, mask", "sum, distances"]))
    state = {"log_u": [_float32(0.5 * x) for x in draw.weights(rows)]}
    table = {
        "": {**state, "temperature": 0.5},
        "weights, mask": {**state, "gamma": 0.5, "weights": weights, "mask": mask, "temperature": 0.5},
        "no memory, dot, sum": {
            **state,
            "gamma": 1.0,
            "similarity": "dot",
            "reduction": "sum",
            "temperature": 0.75,
        },
        "rho": {**state, "gamma": 0.25, "rho": 2.0, "temperature": 0.5},
        "saturated": {
            "log_u": [-30.0] * rows,
            "key": draw.near(query, 2.0**-6),
            "temperature": 2.0**-5,
        },
    }
    yield from _variations("sogclr", student, table | _streamed(table, ["weights, mask", "rho"]))
    of_guide = {"guide_query": of_teacher["teacher_query"], "guide_key": of_teacher["teacher_key"]}
    table = {
        "": {**of_guide, "temperature": 0.5},
        "symmetric, weights, mask": {
            **of_guide,
            "symmetric": True,
            "weights": weights,
            "mask": mask,
            "margin": 0.25,
            "temperature": 0.5,
        },
        "relative margin": {**of_guide, "margin": 0.125, "margin_strategy": "relative", "temperature": 0.5},
        "further keys": {
            "key": more,
            **of_guide,
            "guide_key": draw.vectors(rows + 2, 2),
            "similarity": "dot",
            "temperature": 0.75,
        },
    }
    yield from _variations("gist_embed", student, table | _streamed(table, list(table)))


def _keys(rows: int, features: int) -> Iterator[Case]:
    """Draw columns beside the batch: keys with labels, which take its place, and keys that are further negatives."""
    draw = _Draw(20271)  # of its own, as above
    count = rows + 2
    keys: dict[str, Nested] = {
        "labels": [i % 2 for i in range(rows)],
        "keys": draw.vectors(count, features),
        "key_labels": [j % 3 for j in range(count)],
    }
    alone = {**keys, "labels": [*keys["labels"][:-1], 7]}
    weighted = {"weights": draw.weights(rows), "mask": draw.mask(rows, count)}
    queue = {**keys, "slots": count - 1}
    short = {**keys, "slots": count + 2, "weights": weighted["weights"], "mask": draw.mask(rows, count + 2)}
    base = draw.near(_axes(rows, features), 0.125)
    near: dict[str, Nested] = {
        "labels": list(range(rows)),
        "keys": base,
        "key_labels": list(range(rows)),
        "embeddings": draw.near(base, 2.0**-6),
        "similarity": "neg_sq_euclidean",
    }
    arguments = {"embeddings": draw.vectors(rows, features)}
    table: dict[str, dict[str, Nested]] = {
        "keys": {**keys, "temperature": 0.5},
        "keys saturated": {**near, "temperature": 0.125},
        "keys, one label alone, weights, mask": {**alone, **weighted, "temperature": 0.5},
        "queue, sum": {**queue, "temperature": 0.5, "reduction": "sum"},
        "queue not full, weights, mask": {**short, "temperature": 0.5},
    }
    table |= _streamed(table, ["keys", "keys, one label alone, weights, mask", "queue, sum"])
    supervised: dict[str, dict[str, Nested]] = {
        "keys, separate": {**keys, "multi_positive": "separate", "temperature": 0.5},
        "keys, base_temperature": {**keys, "base_temperature": 0.125, "temperature": 0.5},
    }
    yield from _variations("supcon", arguments, {**table, **supervised})
    yield from _variations("nca", arguments, table)
    yield from _variations("soft_nearest_neighbor", arguments, {name: table[name] for name in list(table)[:1]})
    table = {
        "keys": {**keys, "margin": 3.0},
        "keys, one label alone, weights, mask": {**alone, **weighted, "margin": 3.0},
        "keys, nonzero": {**keys, "average": "nonzero", "margin": 0.5},
        "queue, sum": {**queue, "margin": 3.0, "reduction": "sum"},
        "queue not full, weights, mask": {**short, "margin": 3.0},
    }
    table |= _streamed(table, ["keys", "keys, one label alone, weights, mask", "queue, sum"])
    yield from _variations("contrastive", arguments, table | {"keys, balance": {**keys, "balance": True}})
    hard = {f"{name}, batch_hard": {**options, "mining": "batch_hard"} for name, options in table.items()}
    yield from _variations("triplet_from_labels", arguments, table | hard)
    views = {name: draw.vectors(rows, features) for name in ("view_a", "view_b")}
    negatives = {"keys": keys["keys"]}
    held = {**negatives, "slots": count + 2}
    table = {
        "keys": {**negatives, "temperature": 0.5},
        "keys, weights of rows, mask": {
            **negatives,
            "weights": draw.weights(2 * rows),
            "mask": draw.mask(2 * rows, 2 * rows + count),
            "temperature": 0.5,
        },
        "keys, neg_euclidean, sum": {
            **negatives,
            "similarity": "neg_euclidean",
            "temperature": 0.5,
            "reduction": "sum",
        },
        "keys saturated": {
            "view_a": base,
            "view_b": draw.near(base, 2.0**-6),
            "keys": draw.vectors(count, features),
            "similarity": "neg_sq_euclidean",
            "temperature": 0.0625,
        },
        "queue, weights of pairs": {**held, "weights": draw.weights(rows), "temperature": 0.5},
        "queue, mask": {**held, "mask": draw.mask(2 * rows, 2 * rows + count + 2), "temperature": 0.5},
    }
    table |= _streamed(table, ["keys", "keys, weights of rows, mask", "queue, mask"])
    for loss in ("nt_xent", "dcl", "flat_nce", "dclw"):
        yield from _variations(loss, views, table)
    further = {"view_c": draw.vectors(rows, features)}
    table = {
        "three views, keys": {**negatives, "temperature": 0.5},
        "three views, queue, each, mask": {
            **held,
            "multi_positive": "each",
            "mask": draw.mask(3 * rows, 3 * rows + count + 2),
            "temperature": 0.5,
        },
    }
    yield from _variations("nt_xent", {**views, **further}, table | _streamed(table, list(table)))


def _negatives_only(rows: int, features: int) -> Iterator[Case]:
    draw = _Draw(20272)  # of its own, as above
    only: dict[str, Nested] = {"logit_scale": 4.0, "logit_bias": -2.0, "negative_only": True}
    table: dict[str, dict[str, Nested]] = {
        "negative_only": only,
        "negative_only, neg_euclidean, sum": {**only, "similarity": "neg_euclidean", "reduction": "sum"},
        "negative_only, weights, mask": {
            **only,
            "weights": draw.weights(rows),
            "mask": draw.mask(rows, rows + 1),
        },
    }
    arguments = {"image": draw.vectors(rows, features), "text": draw.vectors(rows + 1, features)}
    yield from _variations("siglip", arguments, table | _streamed(table, list(table)))


def _mined(rows: int, features: int) -> Iterator[Case]:
    draw = _Draw(20273)  # of its own, as above
    arguments = {"embeddings": draw.vectors(2 * rows, features)}
    halves = {"labels": [i % 2 for i in range(2 * rows)]}
    alone = {"labels": [*halves["labels"][:-1], 2]}
    rules = ("all", "hard", "semi_hard", "easy")
    pairs = [(p, q) for p in rules for q in rules if (p, q) not in {("all", "all"), ("hard", "hard")}]
    mined: dict[str, dict[str, Nested]] = {
        f"{p} positives, {q} negatives": {"mining": (p, q)} for p, q in pairs if (p, q) != ("semi_hard", "semi_hard")
    }
    weighted: dict[str, Nested] = {
        **alone,
        "weights": draw.weights(2 * rows),
        "mask": draw.mask(2 * rows, 2 * rows),
        "temperature": 0.75,
    }
    table: dict[str, dict[str, Nested]] = {
        **{name: {**halves, **mining, "margin": 1.0} for name, mining in mined.items()},
        **{f"{name}, weights, mask": {**weighted, **mining, "margin": 1.0} for name, mining in mined.items()},
        "semi_hard": {**halves, "mining": "semi_hard", "margin": 0.5},
        "semi_hard, nonzero": {**halves, "mining": "semi_hard", "margin": 0.5, "average": "nonzero"},
        "semi_hard, soft, cosine": {**halves, "mining": "semi_hard", "form": "soft", "similarity": "cosine"},
        "semi_hard, sum": {**halves, "mining": "semi_hard", "margin": 1.0, "reduction": "sum"},
    }
    table |= _streamed(table, ["easy positives, hard negatives", "semi_hard"])
    yield from _variations("triplet_from_labels", arguments, table)
    table = {
        "positives, semi_hard": {"positives": draw.positives(rows, rows + 2), "mining": "semi_hard"},
        "semi_hard positives, easy negatives": {
            "positives": draw.positives(rows, rows + 2),
            "mask": draw.mask(rows, rows + 2),
            "mining": ("semi_hard", "easy"),
        },
    }
    yield from _variations("from_scores.triplet", {"scores": draw.vectors(rows, rows + 2)}, table)


def _graded(rows: int, features: int) -> Iterator[Case]:
    draw = _Draw(20307)  # at which no gradient by the scale is the small difference of large terms
    count = 2 * rows
    grades = {"grades": [(3 * k) % 4 for k in range(count)]}
    parts = {"weights": draw.weights(count), "mask": [k != 1 for k in range(count)]}
    scores = draw.vectors(count, 1)
    rising = sorted(row[0] for row in scores)
    table: dict[str, dict[str, Nested]] = {
        "": grades,
        "grades of no integers, scale": {"grades": [0.25 * (k % 3) - 0.25 for k in range(count)], "scale": 2.0},
        "no ties": {"grades": [(5 * k + 3) % count for k in range(count)], "scale": 0.5},
        "one grade": {"grades": [1] * count, "scale": 0.5},
        "weights": {**grades, "weights": parts["weights"], "scale": 2.0},
        "mask": {**grades, "mask": parts["mask"], "scale": 2.0},
        "weights, mask": {**grades, **parts, "scale": 0.5},
    }
    further: dict[str, dict[str, Nested]] = {
        "saturated": {"scores": rising, "grades": [k // 2 for k in range(count)], "scale": 64.0},
        "far in the wrong order": {"scores": rising, "grades": [-(k // 2) for k in range(count)], "scale": 64.0},
    }
    yield from _variations("from_scores.cosent", {"scores": [row[0] for row in scores]}, table | further)
    pairs = {"x": draw.vectors(count, features), "y": draw.vectors(count, features)}
    yield from _variations("angle", pairs, table)
    similarities: dict[str, dict[str, Nested]] = {
        "dot": {"similarity": "dot"},
        "neg_sq_euclidean": {"similarity": "neg_sq_euclidean"},
        "neg_euclidean": {"similarity": "neg_euclidean"},
        "bilinear": {"bilinear": draw.vectors(features, features)},
    }
    table |= {name: {**grades, **options, "scale": 0.75} for name, options in similarities.items()}
    yield from _variations("cosent", pairs, table)


def _queues(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    query = draw.vectors(rows, features)
    queue = {"queue": draw.vectors(rows + 2, features)}
    table: dict[str, dict[str, Nested]] = {
        "": queue,
        "dot": {**queue, "similarity": "dot", "temperature": 0.75},
        "saturated": {
            **queue,
            "key": draw.near(query, 2.0**-6),
            "similarity": "neg_sq_euclidean",
            "temperature": 0.0625,
        },
        "a full queue, sum": {**queue, "slots": rows, "temperature": 0.5, "reduction": "sum"},
        "a queue not full yet, weights, mask": {
            **queue,
            "slots": rows + 4,
            "weights": draw.weights(rows),
            "mask": [[i % 2 == j % 2 or j % 4 == 1 for j in range(rows + 4)] for i in range(rows)],
            "temperature": 0.5,
        },
    }
    table |= _streamed(table, list(table)[-1:])
    yield from _variations("moco", {"query": query, "key": draw.vectors(rows, features)}, table)
    queries = {name: draw.vectors(rows, features) for name in ("query_a", "query_b")}
    keys = {name: draw.vectors(rows, features) for name in ("key_a", "key_b")}
    table = {
        "": keys,
        "weights, mask": {**keys, "weights": draw.weights(rows), "mask": draw.mask(rows, rows), "temperature": 0.5},
        "saturated": {
            "similarity": "neg_sq_euclidean",
            "temperature": 0.125,
            "key_a": draw.near(queries["query_b"], 2.0**-6),
            "key_b": draw.near(queries["query_a"], 2.0**-6),
        },
    }
    yield from _variations("moco_v3", queries, table | _streamed(table, ["weights, mask"]))
    support = {"support": draw.vectors(rows + 3, features)}
    table = {
        "": support,
        "neg_euclidean": {**support, "similarity": "neg_euclidean", "temperature": 0.75},
        "symmetric": {**support, "symmetric": True, "temperature": 0.5},
        "symmetric, weights, mask, a queue not full yet": {
            **support,
            "slots": rows + 5,
            "symmetric": True,
            "weights": draw.weights(rows),
            "mask": draw.mask(rows, rows),
            "temperature": 0.5,
        },
    }
    table |= _streamed(table, ["symmetric, weights, mask, a queue not full yet"])
    table["among all views"] = {
        **support,
        "negatives": "views",
        "weights": table["symmetric, weights, mask, a queue not full yet"]["weights"],
        "temperature": 0.5,
    }
    yield from _variations(
        "nnclr", {"view_a": draw.vectors(rows, features), "view_b": draw.vectors(rows, features)}, table
    )


def _of_two_views(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    view_a = draw.vectors(rows, features)
    arguments = {"view_a": view_a, "view_b": draw.vectors(rows, features)}
    near = {"view_b": draw.near(view_a, 2.0**-6), "similarity": "neg_sq_euclidean", "temperature": 0.0625}
    table: dict[str, dict[str, Nested]] = {
        "": {},
        "sigma": {"sigma": 0.25, "temperature": 0.5},
        "detach_weights": {"detach_weights": True, "temperature": 0.5},
        "saturated": near,
        "sum": {"reduction": "sum", "temperature": 0.25},
        "weights of pairs": {"weights": draw.weights(rows), "temperature": 0.25},
        "weights of rows, mask, dot": {
            "weights": draw.weights(2 * rows),
            "mask": draw.mask(2 * rows, 2 * rows),
            "similarity": "dot",
            "sigma": 2.0,
            "temperature": 0.5,
        },
    }
    yield from _variations("dclw", arguments, table | _streamed(table, ["weights of rows, mask, dot"]))
    arguments = {"view_a": draw.vectors(rows, features), "view_b": draw.vectors(rows, features)}
    apart = draw.near(_axes(rows, features), 0.125)
    table = {
        "": {},
        "alpha": {"alpha": 0.25, "temperature": 0.5},
        "b_to_a, neg_sq_euclidean": {
            "direction": "b_to_a",
            "similarity": "neg_sq_euclidean",
            "temperature": 2.0,
            "reduction": "sum",
        },
        "stop_gradient first": {"stop_gradient": "first", "temperature": 0.5},
        "b_to_a, stop_gradient second, mask": {
            "direction": "b_to_a",
            "stop_gradient": "second",
            "mask": draw.mask(rows, rows),
            "temperature": 0.5,
        },
        "symmetric, stop_gradient second, weights, mask": {
            "symmetric": True,
            "stop_gradient": "second",
            "weights": draw.weights(rows),
            "mask": draw.mask(rows, rows),
            "temperature": 0.5,
        },
        "saturated": {
            "view_a": apart,
            "view_b": draw.near(apart, 0.125),
            "temperature": 0.0625,
        },
    }
    own = _Draw(20276)  # so that all further numbers stay as they are
    bank: dict[str, Nested] = {"keys": own.vectors(rows + 1, features), "temperature": 0.5}
    table |= {
        "keys": bank,
        "keys, symmetric, stop_gradient first, weights, mask": {
            **bank,
            "symmetric": True,
            "stop_gradient": "first",
            "weights": own.weights(rows),
            "mask": own.mask(rows, 2 * rows + 1),
        },
        "keys, neg_sq_euclidean, temperatures of rows": {
            **bank,
            "similarity": "neg_sq_euclidean",
            "temperature": [0.5 + 0.25 * k for k in range(rows)],
            "symmetric": True,
        },
        "keys, negatives alone, symmetric": {**bank, "symmetric": True, "include_positive": False, "alpha": 0.5},
        "keys, a queue that is not full, b_to_a, sum": {
            **bank,
            "slots": rows + 3,
            "direction": "b_to_a",
            "reduction": "sum",
        },
    }
    table |= _streamed(
        table,
        [
            "symmetric, stop_gradient second, weights, mask",
            "keys, symmetric, stop_gradient first, weights, mask",
            "keys, a queue that is not full, b_to_a, sum",
        ],
    )
    yield from _variations("relic", arguments, table)
    image = draw.vectors(rows, features)
    table = {
        "": {"logit_scale": 10.0, "logit_bias": -10.0},
        "dot, sum": {"logit_scale": 1.5, "logit_bias": -0.5, "similarity": "dot", "reduction": "sum"},
        "saturated": {
            "logit_scale": 32.0,
            "logit_bias": -16.0,
            "image": apart,
            "text": draw.near(apart, 0.0625),
        },
        "weights": {"logit_scale": 8.0, "logit_bias": -4.0, "weights": draw.weights(rows)},
        "weights, mask": {
            "logit_scale": 8.0,
            "logit_bias": -4.0,
            "weights": draw.weights(rows),
            "mask": draw.mask(rows, rows),
        },
    }
    table |= _streamed(table, ["weights, mask"])
    yield from _variations("siglip", {"image": image, "text": draw.vectors(rows, features)}, table)


def _predictions(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    query = draw.vectors(rows, features)
    table: dict[str, dict[str, Nested]] = {
        "": {},
        "l2": {"l2": 0.125, "temperature": 0.5},
        "saturated": {
            "key": draw.near(query, 2.0**-6),
            "similarity": "neg_sq_euclidean",
            "temperature": 0.25,
        },
        "l2, weights, mask": {
            "l2": 0.125,
            "weights": draw.weights(rows),
            "mask": draw.mask(rows, rows),
            "temperature": 0.5,
        },
    }
    table |= _streamed(table, ["l2, weights, mask"])
    yield from _variations("n_tuple", {"query": query, "key": draw.vectors(rows, features)}, table)
    arguments: dict[str, Nested] = {
        "context": draw.vectors(rows, features),
        "targets": [draw.vectors(rows, features + 1) for _ in range(2)],
        "projections": [draw.vectors(features + 1, features) for _ in range(2)],
    }
    predicted = [_products(arguments["context"], projection) for projection in arguments["projections"]]
    table = {
        "": {},
        "cosine": {"similarity": "cosine", "temperature": 0.5},
        "saturated": {
            "targets": [draw.near(step, 2.0**-6) for step in predicted],
            "similarity": "neg_sq_euclidean",
            "temperature": 2.0,
        },
        "weights, mask": {"weights": draw.weights(rows), "mask": draw.mask(rows, rows), "temperature": 1.0},
    }
    yield from _variations("cpc", arguments, table | _streamed(table, ["weights, mask"]))


def _axes(rows: int, features: int) -> list[list[float]]:
    """List the unit vectors of the axes, over and over."""
    return [[float(i % features == j) for j in range(features)] for i in range(rows)]


def _products(x: Sequence[Sequence[float]], y: Sequence[Sequence[float]]) -> list[list[float]]:
    """Multiply every row of one matrix by every row of another."""
    return [[_float32(sum(a * b for a, b in zip(p, q, strict=True))) for q in y] for p in x]


def _prototypes(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    embeddings = draw.vectors(rows, features)
    clusters: dict[str, Nested] = {
        "prototypes": draw.vectors(rows + 1, features),
        "assignments": draw.index(rows, rows + 1),
        "concentrations": [_float32(0.25 + weight) for weight in draw.weights(rows + 1)],
    }
    coarser: dict[str, Nested] = {
        "prototypes_2": draw.vectors(2, features),
        "assignments_2": [i % 2 for i in range(rows)],
        "concentrations_2": [0.5, 0.75],
    }
    weights = draw.weights(rows)
    mask = [
        [takes_part or j == own for j, takes_part in enumerate(row)]
        for row, own in zip(draw.mask(rows, rows + 1), clusters["assignments"], strict=True)
    ]
    key = {"key": draw.vectors(rows, features)}
    table: dict[str, dict[str, Nested]] = {
        "": clusters,
        "two clusterings, sum": {**clusters, **coarser, "reduction": "sum"},
        "weights, mask, dot": {**clusters, "weights": weights, "mask": mask, "similarity": "dot"},
        "saturated": {
            **clusters,
            "embeddings": draw.near([clusters["prototypes"][own] for own in clusters["assignments"]], 2.0**-6),
            "concentrations": [0.125 + 0.03125 * (j % 2) for j in range(rows + 1)],
            "similarity": "neg_sq_euclidean",
        },
        "keys": {**clusters, **key, "temperature": 0.5},
        "two clusterings, keys, queue, weights": {
            **clusters,
            **coarser,
            **key,
            "queue": draw.vectors(rows + 2, features),
            "weights": weights,
            "temperature": 0.5,
        },
    }
    table |= _streamed(table, ["weights, mask, dot", "two clusterings, keys, queue, weights"])
    yield from _variations("proto_nce", {"embeddings": embeddings}, table)


def _labelled(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    arguments = {"embeddings": draw.vectors(2 * rows, features)}
    halves = {"labels": [i % 2 for i in range(2 * rows)]}
    alone = {"labels": [*halves["labels"][:-1], 2]}
    pairs = {"labels": [i % rows for i in range(2 * rows)]}
    base = draw.near(_axes(rows, features), 0.125)
    table: dict[str, dict[str, Nested]] = {
        "": halves,
        "saturated": {
            **pairs,
            "embeddings": [*base, *draw.near(base, 2.0**-6)],
            "similarity": "neg_sq_euclidean",
            "temperature": 0.125,
        },
        "sum": {**halves, "reduction": "sum", "temperature": 0.5},
        "one label alone, weights, mask": {
            **alone,
            "weights": draw.weights(2 * rows),
            "mask": draw.mask(2 * rows, 2 * rows),
            "temperature": 0.25,
        },
    }
    supervised: dict[str, dict[str, Nested]] = {
        "base_temperature": {**halves, "base_temperature": 0.125, "temperature": 0.5},
        "pooled": {**halves, "multi_positive": "pooled", "temperature": 0.5},
        "separate": {**halves, "multi_positive": "separate", "temperature": 0.5},
    }
    table |= _streamed(table, ["one label alone, weights, mask"])
    supervised |= _streamed(supervised, ["separate"])
    yield from _variations("supcon", arguments, {**table, **supervised})
    yield from _variations("nca", arguments, table)
    yield from _variations("soft_nearest_neighbor", arguments, {"": halves})


def _distances(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    triplets = {name: draw.vectors(rows, features) for name in ("anchor", "positive", "negative")}
    table: dict[str, dict[str, Nested]] = {
        "": {},
        "soft": {"form": "soft", "temperature": 0.5},
        "nonzero": {"average": "nonzero", "margin": 0.5, "temperature": 2.0},
        "neg_sq_euclidean, sum": {"similarity": "neg_sq_euclidean", "margin": 1.5, "reduction": "sum"},
        "cosine, weights, mask": {
            "similarity": "cosine",
            "margin": 0.75,
            "weights": [0.5 + 0.25 * (i % 4) for i in range(rows)],
            "mask": [i != 1 for i in range(rows)],
        },
    }
    yield from _variations("triplet", triplets, table | _streamed(table, ["nonzero"]))
    halves = {"labels": [i % 2 for i in range(2 * rows)]}
    alone = {"labels": [*halves["labels"][:-1], 2]}
    weights, mask = draw.weights(2 * rows), draw.mask(2 * rows, 2 * rows)
    arguments = {"embeddings": draw.vectors(2 * rows, features)}
    hard = {"mining": "batch_hard"}
    table = {
        "": halves,
        "soft": {**halves, "form": "soft", "temperature": 0.5},
        "nonzero": {**halves, "average": "nonzero", "margin": 0.5, "temperature": 2.0},
        "sum, neg_sq_euclidean": {**halves, "similarity": "neg_sq_euclidean", "margin": 1.5, "reduction": "sum"},
        "one label alone, weights, mask": {**alone, "weights": weights, "mask": mask, "margin": 0.5},
        "batch_hard": {**halves, **hard},
        "batch_hard, nonzero": {**halves, **hard, "average": "nonzero", "margin": -0.75, "temperature": 2.0},
        "batch_hard, soft, one label alone, weights, mask": {
            **alone,
            **hard,
            "form": "soft",
            "weights": weights,
            "mask": mask,
            "temperature": 0.5,
        },
    }
    table |= _streamed(table, ["one label alone, weights, mask", "batch_hard, soft, one label alone, weights, mask"])
    yield from _variations("triplet_from_labels", arguments, table)
    powers = {"positive_power": 1, "negative_power": 1}
    table = {
        "": halves,
        "margins": {**halves, "margin": 3.0, "positive_margin": 1.0},
        "powers of one": {**halves, **powers, "margin": 3.0, "positive_margin": 1.0, "temperature": 2.0},
        "nonzero, powers apart": {
            **halves,
            "positive_power": 1,
            "average": "nonzero",
            "margin": 2.5,
            "positive_margin": 2.0,
        },
        "balance, sum": {**halves, "balance": True, "margin": 3.0, "reduction": "sum"},
        "balance": {**halves, "balance": True, "margin": 3.0, "temperature": 0.75},
        "balance, nonzero, one label alone, weights, mask": {
            **alone,
            "balance": True,
            "average": "nonzero",
            "margin": 3.0,
            "positive_margin": 1.0,
            "weights": weights,
            "mask": mask,
        },
        "unit neg_sq_euclidean": {**halves, "similarity": "normalized neg_sq_euclidean", "margin": 2.5},
        "one label alone, weights, mask": {**alone, "weights": weights, "mask": mask, "margin": 3.0},
    }
    table |= _streamed(table, ["balance, nonzero, one label alone, weights, mask"])
    yield from _variations("contrastive", arguments, table)


def _further_scores(draw: _Draw, rows: int) -> Iterator[Case]:
    square = draw.vectors(rows, rows)
    saturated = {"scores": [[_float32(s + 40.0 * (i == j)) for j, s in enumerate(row)] for i, row in enumerate(square)]}
    wide: dict[str, Nested] = {"scores": draw.vectors(rows, rows + 2)}
    positives = {**wide, "positives": draw.positives(rows, rows + 2)}
    weights, mask = draw.weights(rows), draw.mask(rows, rows)
    weighted: dict[str, Nested] = {"weights": weights, "mask": mask}
    separate: dict[str, Nested] = {"positives separate": {**positives, "multi_positive": "separate"}}
    flat: dict[str, Nested] = {
        "positives separate, include_positive": {**separate["positives separate"], "include_positive": True}
    }
    flat["positives separate, include_positive, detach"] = {**flat[next(iter(flat))], "form": "detach"}
    pooled: dict[str, dict[str, Nested]] = {
        "": positives,
        "saturated": saturated,
        "weights, mask": {**positives, "weights": weights, "mask": draw.mask(rows, rows + 2)},
    }
    dclw: dict[str, dict[str, Nested]] = {
        "": {},
        "index": {**wide, "positives": draw.index(rows, rows + 2), "temperature": 0.5},
        "detach_weights, weights, mask": {**weighted, "detach_weights": True, "sigma": 2.0},
    }
    clip: dict[str, dict[str, Nested]] = {"": {}, "saturated": saturated, "weights, mask": weighted}
    relic: dict[str, dict[str, Nested]] = {
        "": {},
        "stop_gradient first": {"stop_gradient": "first", "alpha": 0.5},
        "b_to_a, saturated": {**saturated, "direction": "b_to_a"},
        "b_to_a, symmetric, weights, mask": {**weighted, "direction": "b_to_a", "symmetric": True},
        "negatives alone, mask": {**weighted, "include_positive": False, "stop_gradient": "second"},
        "negatives alone, saturated": {**saturated, "include_positive": False},
    }
    logistic: dict[str, dict[str, Nested]] = {
        "": {},
        "saturated": {
            "scores": [
                [_float32(s + 40.0 * (i == j) - 20.0) for j, s in enumerate(row)] for i, row in enumerate(square)
            ]
        },
        "positives": positives,
        "weights, mask": weighted,
    }
    contrastive: dict[str, dict[str, Nested]] = {
        "": {},
        "positives, nonzero": {**positives, "average": "nonzero", "margin": 0.5, "positive_power": 1},
        "balance, weights, mask": {**weighted, "balance": True, "margin": 2.0},
    }
    triplet: dict[str, dict[str, Nested]] = {
        "": wide,
        "positives, nonzero": {**positives, "average": "nonzero", "margin": 0.5},
        "positives, batch_hard, soft": {**positives, "mining": "batch_hard", "form": "soft"},
        "weights, mask": {**weighted, "margin": 2.0},
    }
    arguments = {"scores": square}
    yield from _variations("from_scores.info_nce", arguments, separate)
    yield from _variations("from_scores.flat_nce", arguments, {**separate, **flat})
    yield from _variations(
        "from_scores.supcon",
        arguments,
        {"": positives, "positives pooled, weights": {**positives, "weights": weights, "multi_positive": "pooled"}},
    )
    yield from _variations("from_scores.nca", arguments, pooled)
    yield from _variations("from_scores.dclw", arguments, dclw)
    yield from _variations("from_scores.clip", arguments, clip)
    yield from _variations("from_scores.relic", arguments, relic)
    logistic["a row without positives, a row without pairs"] = {
        "positives": [[i == j == 0 for j in range(rows)] for i in range(rows)],
        "mask": [[i < rows - 1 for _ in range(rows)] for i in range(rows)],
    }
    yield from _variations("from_scores.logistic", arguments, logistic)
    yield from _variations("from_scores.contrastive", arguments, contrastive)
    yield from _variations("from_scores.triplet", arguments, triplet)


def _lower_bounds(draw: _Draw, rows: int) -> Iterator[Case]:
    square, wide = draw.vectors(rows, rows), {"scores": draw.vectors(rows, rows + 2)}
    saturated = {"scores": [[_float32(s + 40.0 * (i == j)) for j, s in enumerate(row)] for i, row in enumerate(square)]}
    own: dict[str, dict[str, Nested]] = {"": {}}
    more: dict[str, dict[str, Nested]] = {"more columns than rows": wide}
    baseline, critic = draw.vectors(1, rows)[0], draw.vectors(1, rows)[0]
    arguments = {"scores": square}
    with_baseline = {**arguments, "log_baseline": baseline}
    yield from _variations("bounds.flo", {**arguments, "u": critic}, more)
    yield from _variations(
        "bounds.info_nce_anchor",
        arguments,
        {**own, **more, "saturated": saturated, "nu": {"nu": 0.25}, "plug-in": {**wide, "nu": 8.0, "form": "plug_in"}},
    )
    yield from _variations("bounds.fdv", arguments, {**own, **more, "saturated": saturated})
    yield from _variations("bounds.dv", arguments, {**own, **more, "saturated": saturated})
    yield from _variations("bounds.mine", arguments, own)
    yield from _variations(
        "bounds.mine", {**arguments, "log_mean": -0.75}, {"second step, more columns than rows": {**wide, "rate": 0.25}}
    )
    yield from _variations("bounds.nwj", arguments, {**own, **more})
    yield from _variations("bounds.tuba", with_baseline, {**own, "one baseline": {**wide, "log_baseline": 0.5}})
    yield from _variations(
        "bounds.interpolated",
        with_baseline,
        {
            "": {"alpha": 0.5},
            "alpha 0": {"alpha": 0.0},
            "alpha 1": {"alpha": 1.0},
            "one baseline, more columns than rows": {**wide, "alpha": 0.125, "log_baseline": [0.5]},
        },
    )
    yield from _variations("bounds.js_mi", arguments, {**own, **more})
    densities = [_float32(-1.0 - s * s) for s in draw.vectors(1, rows)[0]]
    yield from _variations("bounds.barber_agakov", {"scores": densities, "entropy": 1.5}, own)
    yield from _variations("bounds.barber_agakov", {**wide, "entropy": 4.5}, {"matrix": {}})


def _other_bounds(draw: _Draw, rows: int) -> Iterator[Case]:
    square, wide = draw.vectors(rows, rows), {"scores": draw.vectors(rows, rows + 2)}
    saturated = {"scores": [[_float32(s + 40.0 * (i == j)) for j, s in enumerate(row)] for i, row in enumerate(square)]}
    arguments = {"scores": square}
    more: dict[str, dict[str, Nested]] = {"": {}, "more columns than rows": wide}
    yield from _variations("bounds.js", arguments, {**more, "saturated": saturated})
    yield from _variations(
        "bounds.smile", arguments, {"saturated": saturated, "clip": {**wide, "clip": 0.75}, "no clip": {"clip": None}}
    )
    yield from _variations("bounds.club", arguments, more)
    yield from _variations("bounds.leave_one_out", arguments, {"": {}, "saturated": saturated})
    densities = {
        name: [_float32(-1.0 - s * s) for s in draw.vectors(1, rows)[0]] for name in ("scores", "log_marginal")
    }
    yield from _variations("bounds.vub", densities, {"": {}})
    yield from _variations("bounds.vub", {**wide, "log_marginal": densities["log_marginal"]}, {"matrix": {}})


def _bounds_of_some(rows: int) -> Iterator[Case]:
    """Draw bounds of rows that see fewer columns, or have negatives of their own."""
    draw = _Draw(20275)
    mask = draw.mask(rows, rows + 2)
    mask[0] = [j == 0 for j in range(rows + 2)]  # without a negative
    mask[1] = [j != 1 for j in range(rows + 2)]  # without its positive
    masked: dict[str, Nested] = {"scores": draw.vectors(rows, rows + 2), "mask": mask}
    alone: dict[str, Nested] = {"scores": draw.vectors(rows, 3), "positives": [k % 2 for k in range(rows)]}
    both = {**masked, "positives": [k + 1 for k in range(rows)]}
    critic, baseline = draw.vectors(1, rows)[0], draw.vectors(1, rows)[0]
    further: dict[str, dict[str, Nested]] = {
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
        arguments: dict[str, Nested] = {
            key: options[key] for key in ("u", "log_mean", "log_baseline") if key in options
        }
        table = {"mask": {**masked, **options}, "own negatives": {**alone, **options}}
        if name in {"info_nce", "interpolated", "dv"}:
            table["positives, mask"] = {**both, **options}
        yield from _variations(f"bounds.{name}", {"scores": [], **arguments}, table)
    square: dict[str, Nested] = {"scores": draw.vectors(rows, rows), "mask": [row[:rows] for row in mask]}
    yield from _variations("bounds.leave_one_out", {"scores": []}, {"mask": square})
    yield from _variations("diagnostics.headroom", {"scores": []}, {"mask": masked, "own negatives": alone})


def _densities(draw: _Draw, rows: int) -> Iterator[Case]:
    samples = rows + 1
    scores: dict[str, Nested] = {
        "data_scores": draw.vectors(1, rows)[0],
        "noise_scores": draw.vectors(rows, samples),
    }
    densities: dict[str, Nested] = {
        "data_log_q": [_float32(-0.5 - s * s) for s in draw.vectors(1, rows)[0]],
        "noise_log_q": [[_float32(-0.5 - s * s) for s in row] for row in draw.vectors(rows, samples)],
    }
    weights, mask = draw.weights(rows), draw.mask(rows, samples)
    corrected = {**scores, **densities}
    alike = {"noise_log_q": densities["noise_log_q"][0]}
    ahead = {"data_scores": [_float32(40.0 + s) for s in scores["data_scores"]]}
    usual: dict[str, dict[str, Nested]] = {
        "": {},
        "one log_q for all contexts, saturated": {**alike, **ahead},
        "weights, mask": {"weights": weights, "mask": mask, "reduction": "sum"},
    }
    yield from _variations("density.local_nce", corrected, usual)
    bare: dict[str, dict[str, Nested]] = {"": {}, "weights, mask": {"weights": weights, "mask": mask}}
    yield from _variations("density.negative_sampling", scores, bare)
    yield from _variations("density.ranking_nce", scores, {"without log_q": {}})
    yield from _variations("density.ranking_nce", corrected, usual)
    alone = {"nu": 0.25, "mask": [[j > 0 and i > 0 for j, _ in enumerate(row)] for i, row in enumerate(mask)]}
    yield from _variations("density.info_nce_anchor", corrected, {**usual, "nu, a context without samples": alone})
    yield from _variations(
        "density.sampled_softmax",
        corrected,
        {**usual, "without positive": {**alike, "include_positive": False, "weights": weights, "mask": mask}},
    )
    noise: dict[str, Nested] = {"noise_scores": scores["noise_scores"], "noise_log_q": densities["noise_log_q"]}
    yield from _variations("density.log_partition", noise, {"": {}, "mask": {**alike, "mask": mask}})
    values = {"scores": draw.vectors(rows, samples)}
    found = {"targets": draw.index(rows, samples)}
    kept = [
        [takes_part or j == target for j, takes_part in enumerate(row)]
        for row, target in zip(draw.mask(rows, samples), found["targets"], strict=True)
    ]
    yield from _variations(
        "density.full_softmax", values, {"": found, "weights, mask": {**found, "weights": weights, "mask": kept}}
    )
    log_q = {"log_q": densities["noise_log_q"]}
    one = {"log_q": alike["noise_log_q"]}
    yield from _variations("density.recover_log_prob", {**values, **log_q}, {"": {}, "one log_q for all contexts": one})
    yield from _variations("density.self_normalization", values, {"exact, std": {"field": "std"}})
    yield from _variations(
        "density.self_normalization",
        {**values, **log_q},
        {
            "mean": {"field": "mean"},
            "std, mask": {**one, "field": "std", "mask": mask},
            "effective_sample_size, mask": {"field": "effective_sample_size", "mask": mask},
        },
    )


def _diagnostics(draw: _Draw, rows: int, features: int) -> Iterator[Case]:
    square = draw.vectors(rows, rows)
    saturated = {"scores": [[_float32(s + 40.0 * (i == j)) for j, s in enumerate(row)] for i, row in enumerate(square)]}
    yield from _variations("diagnostics.headroom", {"scores": square}, {"": {}, "saturated": saturated})
    pairs = {name: draw.vectors(rows, features) for name in ("x", "y")}
    yield from _variations(
        "diagnostics.alignment", pairs, {"": {}, "power, weights": {"power": 1.5, "weights": draw.weights(rows)}}
    )
    table: dict[str, dict[str, Nested]] = {"": {}, "t": {"t": 0.75}}
    yield from _variations("diagnostics.uniformity", {"x": pairs["x"]}, table | _streamed(table, ["t"]))


CASES: tuple[Case, ...] = make_cases()
"""The table at its usual size: three rows of three features."""


# How every loss is called


@dataclass(frozen=True, kw_only=True)
class Loss:
    """How a loss is called, and which laws it obeys.

    Attributes
    ----------
    arguments
        The names of the arrays by position.
    temperature, similarity
        The documented defaults.
    keywords
        The names of further arrays, which are given by keyword.
    parameters
        Arrays of one entry, with their values; learned with the embeddings.
    options
        What else is given.
    constant
        The names of the arrays without a gradient.
    shapes
        The axes of arrays that do not have those of `AXES`.
    views
        Rows of the result for each sample.
    mask
        The axes of a mask.
    divide_by
        What a mean divides by: the weights of the rows, these times the pairs or triples of each, or (None) else.
    alone
        Whether a sample alone, which has no negatives, is worth nothing.
    unpaired
        Whether rows without a positive are worth something.
    together
        Whether rows without a negative are worth something.
    laws
        Whether the attributes above hold; otherwise the entry says how a loss is called, and nothing else.
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
    "scores": "NN",
    **dict.fromkeys(("labels", "assignments", "positives", "columns", "grades", "log_q", "log_u"), "N"),
    "key_labels": "M",
    "bilinear": "DD",
}
"""The axes of arrays by name, others are ND: N samples, D features, M rows of a memory, C prototypes, T steps ahead, W
features of a target, S tokens, V rows of all views."""

INTEGERS = frozenset({"labels", "key_labels", "assignments", "positives", "columns", "grades"})
"""The arrays of integers."""


def lengths(rows: int, features: int, views: int = 1) -> Mapping[str, int]:
    """Give the lengths of the axes."""
    return {"N": rows, "D": features, "M": rows + 1, "C": 3, "T": 2, "W": 2, "S": 2, "V": views * rows}


def _of_views(*names: str, **options: Any) -> Loss:
    """Describe a loss of the views of a batch, each against all others."""
    given = {"temperature": 0.1, "similarity": "cosine", "views": len(names), "mask": "VV", "alone": True, **options}
    return Loss(arguments=names, **given)


def _of_labels(temperature: float, similarity: str, **options: Any) -> Loss:
    """Describe a loss of labelled embeddings."""
    return Loss(arguments=("embeddings", "labels"), temperature=temperature, similarity=similarity, **options)


def _of_scores(**options: Any) -> Loss:
    """Describe a loss of a score matrix."""
    merged: dict[str, Any] = {"parameters": {}, **options}
    return Loss(arguments=("scores",), **merged)


def _of_two(first: str, second: str, temperature: float | None, similarity: str = "cosine", **options: Any) -> Loss:
    """Describe a loss of two arrays of embeddings, row i of one with row i of the other."""
    return Loss(arguments=(first, second), temperature=temperature, similarity=similarity, **options)


def _of_prototypes(*keywords: str, constant: tuple[str, ...] = (), **options: Any) -> Loss:
    """Describe ProtoNCE."""
    return Loss(
        arguments=("embeddings", "prototypes", "assignments", "concentrations"),
        temperature=0.1,
        similarity="cosine",
        keywords=keywords,
        constant=frozenset({"prototypes", "concentrations", *constant}),
        mask="NC",
        **options,
    )


def _way(loss: Loss, **changes: Any) -> Loss:
    """Describe another way through the library, of which nothing else is said."""
    return replace(loss, laws=False, **changes)


_NEIGHBORS = Loss(
    arguments=("view_a", "view_b", "support"),
    temperature=0.1,
    similarity="cosine",
    constant=frozenset({"view_a", "support"}),
    alone=True,
)
_JUDGED = Loss(
    arguments=("query", "key", "teacher_query", "teacher_key"),
    temperature=0.07,
    similarity="cosine",
    constant=frozenset({"teacher_query", "teacher_key"}),
    alone=True,
)
_INFO_NCE = _of_two("query", "positive_key", 0.07, alone=True)
_NT_XENT = _of_views("view_a", "view_b")
_SUPCON = _of_labels(0.1, "cosine", options={"base_temperature": 0.25}, together=True)
_CONTRAST = _of_two("x", "y", 1.0, options={"objective": "info_nce"}, alone=True)
_MARGINS = {"margin": 4.0}
_TRIPLETS = _of_labels(1.0, "neg_euclidean", divide_by="triples", options=_MARGINS)
_CONTRASTIVE = _of_labels(1.0, "neg_euclidean", divide_by="pairs", options=_MARGINS, unpaired=True, together=True)
_MOCO = Loss(
    arguments=("query", "key", "queue"),
    temperature=0.07,
    similarity="cosine",
    constant=frozenset({"queue"}),
    mask="NM",
)
_SIGLIP = _of_two(
    "image", "text", None, parameters={"logit_scale": 8.0, "logit_bias": -4.0}, unpaired=True, together=True
)
_TOKENS = {"query": "NSD", "positive_key": "NSD", "image": "NSD", "text": "NSD"}
_GRADED = Loss(arguments=("x", "y", "grades"), parameters={"scale": 2.0}, laws=False)

LOSSES: Mapping[str, Loss] = {
    "clip": _of_two("image", "text", None, parameters={"logit_scale": 8.0}, alone=True),
    "contrast": _CONTRAST,
    "contrast logistic": _of_two("x", "y", 1.0, options={"objective": "logistic"}, unpaired=True, together=True),
    "contrast labels": _way(
        _CONTRAST, options={"objective": "flat_nce", "pairing": "labels"}, keywords=("labels", "columns")
    ),
    "contrastive": _CONTRASTIVE,
    "contrastive balance": replace(_CONTRASTIVE, divide_by=None, options={**_MARGINS, "balance": True}),
    "cpc": Loss(arguments=("context", "targets", "projections"), temperature=1.0, similarity="dot", alone=True),
    "dcl": _NT_XENT,
    "distillation": _JUDGED,
    "distillation symmetric": _way(_JUDGED, options={"symmetric": True}),
    "dclw": _NT_XENT,
    "flat_nce": _NT_XENT,
    "flat_nce detach": replace(_NT_XENT, options={"form": "detach"}),
    "flat_nce include_positive": _way(_NT_XENT, options={"include_positive": True}),
    "gist_embed": replace(
        _JUDGED,
        arguments=("query", "key", "guide_query", "guide_key"),
        temperature=0.01,
        constant=frozenset({"guide_query", "guide_key"}),
        options={"margin": -4.0},
    ),
    "hcl": replace(_NT_XENT, temperature=0.5),
    "info_nce": _INFO_NCE,
    "info_nce symmetric": replace(_INFO_NCE, options={"symmetric": True}),
    "info_nce shared": replace(_INFO_NCE, arguments=("query", "positive_key", "negative_keys"), mask="NM", alone=False),
    "info_nce own": _way(
        _INFO_NCE, arguments=("query", "positive_key", "negative_keys"), shapes={"negative_keys": "NMD"}
    ),
    "info_nce index": _way(_INFO_NCE, keywords=("positives",)),
    "info_nce hardness": replace(_INFO_NCE, options={"hardness": 2.0}),
    **{f"info_nce {name}": _way(_INFO_NCE, options={"similarity": name}) for name in pnce.similarities.NAMES},
    "info_nce bilinear": _way(_INFO_NCE, keywords=("bilinear",)),
    "info_nce max_sim": _way(_INFO_NCE, options={"similarity": "max_sim", "symmetric": True}, shapes=_TOKENS),
    "joint_info_nce": _of_two("query", "key", 0.01, alone=True),
    "moco": _MOCO,
    "moco queue": _way(_MOCO, options={"slots": 9}),
    "moco_v3": Loss(
        arguments=("query_a", "query_b", "key_a", "key_b"),
        temperature=0.2,
        similarity="cosine",
        constant=frozenset({"key_a", "key_b"}),
        alone=True,
    ),
    "n_tuple": _of_two("query", "key", 1.0, "dot", options={"l2": 0.25}),
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
    "relic": _of_two("view_a", "view_b", 0.1, alone=True),
    "relic symmetric": _of_two(
        "view_a", "view_b", 0.1, options={"symmetric": True, "stop_gradient": "second"}, alone=True
    ),
    "relic keys": _way(_of_two("view_a", "view_b", 0.1, options={"direction": "b_to_a"}), keywords=("keys",)),
    "siglip": _SIGLIP,
    "siglip negative_only": _way(_SIGLIP, options={"negative_only": True}),
    "siglip max_sim": _way(_SIGLIP, options={"similarity": "max_sim, dot"}, shapes=_TOKENS),
    "soft_nearest_neighbor": _of_labels(1.0, "neg_sq_euclidean"),
    "supcon": _SUPCON,
    "supcon separate": _of_labels(0.1, "cosine", options={"multi_positive": "separate"}),
    "supcon keys": _way(_SUPCON, keywords=("keys", "key_labels")),
    "supcon queue": _way(_SUPCON, keywords=("keys", "key_labels"), constant=frozenset({"keys"}), options={"slots": 9}),
    "two_tower": Loss(arguments=("query", "candidate"), temperature=1.0, similarity="dot", alone=True),
    "two_tower log_q": _way(_of_two("query", "candidate", 1.0, "dot"), keywords=("log_q",)),
    "triplet": Loss(
        arguments=("anchor", "positive", "negative"),
        temperature=1.0,
        similarity="neg_euclidean",
        options=_MARGINS,
        mask="N",
    ),
    "triplet_from_labels": _TRIPLETS,
    "triplet_from_labels batch_hard": _of_labels(
        1.0, "neg_euclidean", options={**_MARGINS, "mining": "batch_hard", "form": "soft"}
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
    "angle": replace(_GRADED, similarity="angle"),
    "cosent": replace(_GRADED, similarity="cosine"),
    "matryoshka": _way(_of_two("image", "text", None, parameters={"logit_scale": 8.0})),
    "sogclr": _way(
        Loss(arguments=("query", "key", "log_u"), temperature=0.1, similarity="cosine", options={"rho": 1.0}),
        constant=frozenset({"log_u"}),
    ),
}
"""Every public loss; and, after a blank, with an option that changes the way it takes through the library."""


def example(
    name: str,
    rows: int = 4,
    features: int = 3,
    *,
    fill: Callable[[tuple[int, ...], int], Nested] | None = None,
    labels: Sequence[int] | None = None,
) -> Case:
    """Make a call of a loss of the table; its differentiable arguments are all arrays of floats.

    Parameters
    ----------
    name : str
        A name of `LOSSES`.
    rows, features : int
        How many samples there are, and components of an embedding.
    fill : callable, optional
        Makes the numbers of an array of embeddings from its shape and its place among the arrays.
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
        else:
            floats[key] = (fill if fill is not None and len(shape) > 1 else sixteenths)(shape, place)
    floats |= loss.parameters
    return Case(name=name, loss=name.split(maxsplit=1)[0], arguments=floats, constants=integers, options=loss.options)


def sixteenths(shape: tuple[int, ...], seed: int) -> Nested:
    """Draw numbers that every dtype holds."""
    draw = random.Random(seed)

    def filled(axes: tuple[int, ...]) -> Nested:
        return [filled(axes[1:]) for _ in range(axes[0])] if axes else draw.randint(-24, 24) / 16

    return filled(shape)
