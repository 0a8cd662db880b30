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

import importlib
import random
import struct
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["CASES", "Case", "Nested", "make_cases"]

Nested: TypeAlias = Any
"""A number, or a list of nested numbers."""

Regime = Literal["normal", "saturated"]

_POSITIONAL = frozenset(
    {"query", "positive_key", "negative_keys", "view_a", "view_b", "image", "text", "scores", "u", "x", "y"}
)


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
        return partial(_call, self.loss, (*self.arguments, *self.constants), self.options)


def _call(loss: str, names: tuple[str, ...], options: Mapping[str, Any], *arrays: Any) -> Any:
    """Look the loss up and hand it the arrays by name."""
    package = __name__.partition(".")[0]
    topic, _, name = loss.rpartition(".")
    function = getattr(importlib.import_module(f"{package}.{topic}" if topic else package), name)
    named = dict(zip(names, arrays, strict=True))
    positional = [array for key, array in named.items() if key in _POSITIONAL]
    keywords = {**options, **{key: array for key, array in named.items() if key not in _POSITIONAL}}
    if "bilinear" in keywords:
        similarities = importlib.import_module(f"{package}.similarities")
        keywords["similarity"] = similarities.bilinear(keywords.pop("bilinear"))
    if loss == "contrast":
        _name_axes(package, keywords)
    result = function(*positional, **keywords)
    if loss == "bounds.dual_critic":
        xp = importlib.import_module(f"{package}._namespace").namespace_of(result)
        result = xp.reshape(xp.sum(result, axis=0, keepdims=True), ())
    return result


def _name_axes(package: str, keywords: dict[str, Any]) -> None:
    """Replace the names of contrast's objective and pairing by the things themselves, where only those will do."""
    pairings = importlib.import_module(f"{package}.pairings")
    objectives = importlib.import_module(f"{package}.objectives")
    labels, columns, positives = (keywords.pop(key, None) for key in ("labels", "columns", "positives"))
    match keywords["pairing"]:
        case "labels":
            keywords["pairing"] = pairings.labels(labels, columns)
        case "index" | "explicit" as kind:
            keywords["pairing"] = getattr(pairings, kind)(positives)
        case "queue":
            keywords["pairing"] = pairings.queue()
    if "multi_positive" in keywords:
        objective = getattr(objectives, keywords["objective"])
        keywords["objective"] = objective(multi_positive=keywords.pop("multi_positive"))


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
    return (
        *_info_nce(draw, rows, features),
        *_two_views(draw, rows, features),
        *_clip(draw, rows, features),
        *_contrast(draw, rows, features),
        *_from_scores(draw, rows),
        *_bounds(draw, rows),
    )


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
    return key in {"negative_keys", "bilinear", "temperature", "logit_scale"} and isinstance(value, (list, float))


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
        "above the largest scale": {"logit_scale": 128.0},
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
        for objective in ("info_nce", "flat_nce"):
            named = {
                f"{objective}, {name}": {
                    **options,
                    "objective": objective,
                    "temperature": 0.5,
                }
                for name, options in table.items()
            }
            yield from _variations("contrast", arguments, named | _streamed(named, list(named)))


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


CASES: tuple[Case, ...] = make_cases()
"""The table at its usual size: three rows of three features."""
