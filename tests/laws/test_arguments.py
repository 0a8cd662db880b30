"""Fuzzing of all public functions: the documented result, or an error that names the argument.

Every parameter of every public function has a kind, which makes a valid value, lists invalid ones, and classifies any
value. New functions are found by name; the tests fail until all of their parameters have a kind.
"""

from __future__ import annotations

import inspect
import math
import numbers
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import chain, combinations, product
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

import portable_nce as pnce
from portable_nce._core import registry as _registry
from portable_nce.testing import run_ranks
from portable_nce.testing.cases import AXES, INTEGERS, LOSSES

from calls import mostly_full

Verdict: TypeAlias = Literal["taken", "refused", "either", "foreign"]
"""Expected outcome: valid, an error that names it, either, or an error next to arrays of another library."""


class Junk(NamedTuple):
    """A value to try, and its expected outcome."""

    label: str
    value: Any
    verdict: Verdict
    found: bool = False  # random: an array may have several errors


objectives, pairings, similarities = pnce.objectives, pnce.pairings, pnce.similarities

# ---------------------------------------------------------------------------------------------------------- the inputs

# Values that are possible, but hardly meant.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(class_weights|k|logit_bias|logit_scale|margin|temperature|weights). expected:UserWarning"
)

TYPES: Mapping[str, type] = {"numpy": np.ndarray, "torch": torch.Tensor}
ARRAYS = (np.ndarray, np.generic, torch.Tensor)
ODD_DTYPES: Mapping[str, Sequence[Any]] = {
    "numpy": [np.dtype(code) for code in (*"?bBlefdgDOU", ">f8", "S3", "V8", "M8[s]", "m8[s]")],
    "torch": [
        *(torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
    ],
}


def sizes_of(rows: int = 4, columns: int = 6, features: int = 3, further: int = 5) -> Mapping[str, int]:
    """Lengths of the axes by their letters in the table of losses; U stands for three views."""
    return dict(zip("NKDMVUCTW", (rows, columns, features, further, 2 * rows, 3 * rows, 2, 2, 2), strict=True))


@dataclass(frozen=True)
class World:
    """A library, a dtype, the lengths of axes by letter, and a seed."""

    library: str = "numpy"
    dtype: str = "float64"
    sizes: Mapping[str, int] = field(default_factory=sizes_of)
    seed: int = 0

    def array(self, x: np.ndarray) -> Any:
        """An array of this library."""
        if x.dtype.kind == "f":
            x = x.astype(self.dtype)
        return x if self.library == "numpy" else torch.asarray(x.copy())

    def shape(self, axes: str) -> tuple[int, ...]:
        return tuple(self.sizes[axis] for axis in axes)

    def owns(self, value: Any) -> bool:
        return isinstance(value, (TYPES[self.library], np.generic) if self.library == "numpy" else torch.Tensor)

    def changed(self, example: Any) -> Iterator[tuple[str, Any]]:
        """An array with another dtype, rank, library, length or memory layout."""
        x = np.asarray(example)
        parts: dict[str, Any] = {"one axis more": None, "a last axis more": (..., None)}
        if x.ndim:
            parts |= {"one axis less": 0, "a last axis less": (..., 0), "a row less": slice(-1), "empty": slice(0)}
            parts |= {"a column less": (..., slice(-1)), "narrow": (..., slice(1)), "no columns": (..., slice(0))}
            yield "a row more", self.array(np.concatenate([x, x[:1]]))
            yield "a column more", self.array(np.concatenate([x, x[..., :1]], axis=-1))
            yield "every second", self.array(np.repeat(x, 2, axis=0))[::2]
        yield from ((label, example[key]) for label, key in parts.items())
        yield from (("a list", x.tolist()), ("a tuple", tuple(x.tolist()) if x.ndim else (x.item(),)))
        for dtype in ODD_DTYPES[self.library]:
            yield f"of dtype {dtype}", example.astype(dtype) if self.library == "numpy" else example.to(dtype)
        yield "foreign", other_library(example)
        if self.library == "numpy":
            frozen = np.asfortranarray(x)
            frozen.flags.writeable = False
            yield "read-only, in Fortran's order", frozen


def other_library(x: Any) -> Any:
    """The array in the other library."""
    return x.numpy() if isinstance(x, torch.Tensor) else torch.asarray(np.array(x))


def kind_of(x: Any) -> str:
    """Letter of an array's dtype: f, i, b, c, or another."""
    if isinstance(x, torch.Tensor):
        return "f" if x.dtype.is_floating_point else "c" if x.is_complex() else "b" if x.dtype == torch.bool else "i"
    return "i" if x.dtype.kind in "iu" else x.dtype.kind


DUCK = SimpleNamespace(shape=(4, 3), dtype="float64")
"""An object with shape and dtype that is not an array."""
TYPED = type("TypedFloat", (float,), {"dtype": np.dtype(np.float32)})(0.5)
"""A number with a dtype, like JAX's literals."""

ANYTHING: Sequence[Any] = (
    *(None, True, False, 0, 1, 2, 7, -1, 0.0, -0.0, 0.5, 1.5, -1.0, 1e-40, 1e40, 1e300, 5e-324, 10**400, -(10**400)),
    *(math.nan, math.inf, -math.inf, 1j, Decimal("0.5"), Fraction(1, 2), b"1", object(), lambda *_: None),
    *("", "0.1", "mean", "avg", "no", "info_nce", "cosine", "diagonal", "auto", np.str_("mean")),
    *((), (0.5,), [], [0.5], [0.5, 1.5], {}, {1}, range(3), iter([0.5])),
    *(np, np.ndarray, DUCK, pnce.Queue, pnce.Queue(None, None), pairings.Tile),
    *(TYPED, np.float64(0.5), np.float32(0.5), np.int64(2), np.asarray(0.5) > 0),
    *(np.asarray([]), np.asarray([0.5, 1.5]), np.asarray(1), np.ones(()) > 0, np.asarray("a"), np.asarray(None)),
    *(np.asarray(1j), np.asarray(0.5), torch.asarray(0.5), torch.asarray([0.5, 1.5]), torch.asarray(1)),
)
"""Values to try for every parameter."""


TRIED = [(repr(value)[:60], value) for value in ANYTHING]


def is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_positive_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) > 0


def is_one_of(names: Sequence[str], value: Any) -> bool:
    return isinstance(value, str) and value in names


def is_matrix(value: Any) -> bool:
    return isinstance(value, ARRAYS) and len(value.shape) == 2


def is_extreme(value: float) -> bool:
    """Whether a number is so large or small that results may leave the range of a dtype."""
    return not (value == 0 or 1e-30 < abs(plain_number(value)) < 1e30)


def plain_number(value: Any) -> Any:
    """Convert NumPy scalars, which overflow in comparisons with large numbers, to Python's."""
    return value.item() if isinstance(value, np.generic) else value


# ------------------------------------------------------------------------------------------------------------ the kinds


Table: TypeAlias = Sequence[Any] | Mapping[str, Any] | Callable[[World], Mapping[str, Any]]
"""Values or functions that make them, by name if their repr does not suit messages."""


@dataclass
class Kind:
    """Valid values of a parameter. `optional`: None is valid; if `optional` is None, it may be.

    Of the values that are tried everywhere, `skips` selects those to skip, and `takes` the valid ones. Then there are
    tables of values that are valid, that are errors, and that may be either. `plain` is the canonical form of a value.
    """

    _: KW_ONLY
    good: Any = None
    make: Callable[[World], Any] | None = None  # makes a valid value
    optional: bool | None = False
    skips: Callable[[Any], bool] = lambda _: False
    takes: Callable[[Any], bool] = lambda _: False
    plain: Callable[[Any], Any] = lambda value: value
    taken: Table = ()
    refused: Table = ()
    either: Table = ()

    def example(self, world: World, _numbers: np.random.Generator) -> Any:
        """A valid value."""
        return self.make(world) if self.make else self.good

    def judge(self, world: World, value: Any) -> Verdict:
        """Expected outcome of a value."""
        if value is None:
            return "taken" if self.optional else "either" if self.optional is None else "refused"
        return self.judge_given(world, value)

    def judge_given(self, _world: World, value: Any) -> Verdict:
        """Expected outcome of a value other than None."""
        return "taken" if self.takes(value) else "refused"

    def canonical(self, _world: World, value: Any) -> Any:
        """Another form of a valid value, with the same result."""
        return value if value is None else self.plain(value)

    def further(self, _world: World, _example: Any) -> Iterable[tuple[str, Any]]:
        """Values to try in addition to those that are tried everywhere."""
        return ()

    def junk(self, world: World, example: Any) -> Iterator[Junk]:
        """All values to try, with their expected outcomes."""
        for label, value in (*TRIED, *self.further(world, example)):
            if not self.skips(value):
                yield Junk(label, value, self.judge(world, value))
        tables: Mapping[Verdict, Table] = {"refused": self.refused, "taken": self.taken, "either": self.either}
        for verdict, table in tables.items():
            values = table(world) if callable(table) else table
            named = values if isinstance(values, Mapping) else {repr(value): value for value in values}
            yield from (Junk(label, value, verdict) for label, value in named.items())


@dataclass
class Array(Kind):
    """An array with given axes; `number` allows a number, also in an array without axes, `also` other ranks."""

    axes: str
    dtypes: str = "f"
    _: KW_ONLY
    number: bool = False
    also: Sequence[int] = ()
    least: float = -math.inf  # of the numbers in an example
    may_be_empty: bool = False

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        shape = world.shape(self.axes)
        if self.dtypes[0] == "f":
            return world.array(np.maximum(numbers.normal(size=shape), self.least))
        return world.array(numbers.random(shape) < 0.7 if self.dtypes == "b" else numbers.integers(0, 2, shape))

    def judge_given(self, world: World, value: Any) -> Verdict:
        if is_number(value) and (self.number or not world.owns(value)):
            value = plain_number(value)
            fits = self.number and abs(value) <= sys.float_info.max
            return "refused" if not fits else "either" if is_extreme(value) else "taken"
        if not isinstance(value, ARRAYS):
            return "refused"
        ranks = {len(self.axes), *self.also, *((0,) if self.number else ())}
        if kind_of(value) not in self.dtypes or len(value.shape) not in ranks:
            return "refused"
        if math.prod(value.shape) == 0:
            return "either" if self.may_be_empty and 0 not in value.shape[1:] else "refused"
        if not world.owns(value):
            return "foreign"
        usual = kind_of(value) != "f" or len(self.dtypes) > 1 or str(value.dtype).endswith(world.dtype)
        alike = usual and tuple(value.shape) in {world.shape(self.axes), () if self.number else None}
        return "taken" if alike and str(value.dtype) != ">f8" else "either"

    def canonical(self, world: World, value: Any) -> Any:
        if value is None or is_number(value):
            return value
        if self.number and value.shape == ():
            return float(value)
        dtype = np.float64 if self.dtypes[0] == "f" else {"i": np.int64}.get(kind_of(value))
        return world.array(np.array(in_numpy(value), dtype=dtype))

    def further(self, world: World, example: Any) -> Iterator[tuple[str, Any]]:
        return world.changed(example)


class Positives(Array):
    """One column index per row, or a boolean or weight matrix; None is the diagonal."""

    def judge_given(self, world: World, value: Any) -> Verdict:
        own = super().judge_given(world, value)
        if own != "refused" or not isinstance(value, ARRAYS):
            return own
        other = (len(value.shape), kind_of(value)) in {(1, "i"), (2, "b"), (2, "f")} and math.prod(value.shape) > 0
        return "refused" if not other else "either" if world.owns(value) else "foreign"


class PositiveArray(Array):
    """An array of positive finite numbers."""

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        return world.array(0.1 + np.abs(numbers.normal(size=world.shape(self.axes))))

    def judge_given(self, world: World, value: Any) -> Verdict:
        own = super().judge_given(world, value)
        if own not in {"taken", "either"} or not isinstance(value, ARRAYS) or math.prod(value.shape) == 0:
            return own
        low, high = (float(extreme(in_numpy(value))) for extreme in (np.min, np.max))
        return "either" if math.isnan(low) else "refused" if low <= 0 or high == math.inf else own


class AnyArray(Array):
    """Any array."""

    def judge_given(self, world: World, value: Any) -> Verdict:
        del world
        return "either" if isinstance(value, ARRAYS) else "refused"


@dataclass
class Number(Kind):
    """A number between limits; `array` allows an array of one entry, `rows` an array with a number per row."""

    good: float = 0.0
    above: float = -math.inf
    most: float = math.inf
    _: KW_ONLY
    array: bool = False
    rows: bool = False
    loose: bool = False  # accepts numbers above the limit

    def judge_given(self, world: World, value: Any) -> Verdict:
        if is_number(value):
            value = plain_number(value)
            if not self.above < value <= self.most or not abs(value) <= sys.float_info.max:
                return "either" if self.loose and value > 0 else "refused"
            return "either" if is_extreme(value) else "taken"
        if not self.array or not isinstance(value, ARRAYS) or kind_of(value) != "f":
            return "refused"
        shape = tuple(value.shape)
        if math.prod(shape) != 1:
            return "either" if self.rows and len(shape) == 1 and shape != (0,) else "refused"
        return self.judge_entry(float(value.reshape(()))) if world.owns(value) else "foreign"

    def judge_entry(self, number: float) -> Verdict:
        """Expected outcome of a number in an array."""
        if self.above == -math.inf or self.above < number < math.inf:
            return "taken"
        return "either" if math.isnan(number) or (self.loose and number > 0) else "refused"

    def canonical(self, _world: World, value: Any) -> Any:
        return value if value is None or is_number(value) else float(in_numpy(value).item())

    def further(self, world: World, example: Any) -> Iterator[tuple[str, Any]]:
        number = np.asarray(example, dtype=np.float64)
        yield from ((str(x), x) for x in (1e-3, 1e3, 0.999999, -0.5, 3, self.above, self.most))
        yield from world.changed(world.array(number))
        yield from (("one entry", world.array(number[None])), ("matrix of one", world.array(number[None, None])))


@dataclass
class Sequenced(Kind):
    """A list of two values of a kind."""

    kind: Kind

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        return [self.kind.example(world, numbers) for _ in range(2)]

    def judge_given(self, world: World, value: Any) -> Verdict:
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            return "refused"
        judged: list[Verdict] = [self.kind.judge(world, part) for part in value]
        return judged[0] if judged[0] != "taken" else judged[1]

    def canonical(self, world: World, value: Any) -> Any:
        return None if value is None else [self.kind.canonical(world, x) for x in value]

    def further(self, _world: World, example: Any) -> Iterator[tuple[str, Any]]:
        first, second = example
        yield from (("one", [first]), ("three", [first, second, first]), ("a tuple", (first, second)))
        yield from (("with None", [first, None]), ("with text", [first, "x"]), ("a dict", {0: first, 1: second}))
        yield from (("nested", [[first], [second]]), ("an iterator", iter(example)), ("joined", first))


# ------------------------------------------------------------------------------------------------------- single kinds

FLAG = Kind(good=False, takes=lambda value: isinstance(value, (bool, np.bool)))
WHOLE = Kind(good=2, takes=is_positive_integer)
POWER = Kind(
    good=2, takes=lambda x: is_number(x) and x in (1, 2), plain=int, taken=(1.0, 2.0), refused=(3, 1.9999999999)
)


def fixed(good: Any) -> Kind:
    """Kind of a fixed value, for which no other is tried."""
    return Kind(good=good, skips=lambda _: True)


def functional(good: Callable[..., Any], *, optional: bool = False) -> Kind:
    """Kind of a function."""
    return Kind(good=good, skips=callable, optional=optional)


def choice(*choices: str, optional: bool = False) -> Kind:
    """Kind of a choice of strings."""
    good = choices[0]
    taken, bad = (*choices, np.str_(good)), (good.upper(), f"{good} ", f" {good}", good[:-1], good.encode(), [*choices])
    takes = partial(is_one_of, choices)
    return Kind(good=good, takes=takes, plain=str, taken=taken, refused=bad, optional=optional)


def mask(axes: str) -> Array:
    """Kind of an optional mask."""
    return Array(axes, "b", optional=True)


def then(first: Callable[..., Any], second: Callable[[Any], Any]) -> Callable[..., Any]:
    """Composition of two functions."""
    return lambda *given: second(first(*given))


def inner_product(x: Any, y: Any) -> Any:
    width = min(x.shape[-1], y.shape[-1])  # different widths are an error of the loss
    return x[..., :width] @ y[..., :width].swapaxes(-1, -2)


def log_odds(row: Any) -> Any:
    return row.log_odds


def good_rule(tile: Any) -> tuple[Any, Any]:
    return tile.i == tile.j, tile.i != tile.j


def bilinear_of(world: World) -> Mapping[str, Any]:
    d = world.sizes["D"]
    return {"bilinear": similarities.bilinear(world.array(np.linspace(-1.0, 1.0, d * d).reshape(d, d)))}


WRONG_RESULTS: Mapping[str, Callable[[Any], Any]] = {
    "nothing": lambda _: None,
    "a list": lambda x: x.tolist(),
    "a number": lambda _: 1.5,
    "text": lambda _: "score",
    "one number": lambda x: x.sum(),
    "one axis less": lambda x: x[..., 0],
    "one axis more": lambda x: x[..., None],
    "another shape": lambda x: x[:-1, ..., None],
    "truth values": lambda x: x > 0,
    "integers": lambda x: (x > 0) * 1,
    "complex numbers": lambda x: x * 1j,
    "the other library": other_library,
    "objects": lambda x: np.asarray(x).astype(object),
}
"""Invalid results of similarities and of row losses, made from valid ones."""


def wrong(function: Callable[..., Any]) -> dict[str, Any]:
    """Variants of a function with invalid results."""
    return {f"that gives {what}": then(function, change) for what, change in WRONG_RESULTS.items()}


NAMES = similarities.NAMES
SIMILARITY = Kind(
    good="dot",
    refused=[*map(str.upper, NAMES)],
    taken=[*NAMES, inner_product],
    either=bilinear_of,
    skips=lambda value: callable(value) or is_one_of(NAMES, value),
)
"""A similarity that can be checked only by calling it."""
CALLED_SIMILARITY = replace(SIMILARITY, refused={name.upper(): name.upper() for name in NAMES} | wrong(inner_product))


def objective_refused(world: World) -> Mapping[str, Any]:
    terms = objectives.Term(lambda s, p: s * p, lambda s, p: (p, s))
    parameters = {"text": "x", "foreign": other_library(world.array(np.asarray(0.5)))}
    if world.sizes["N"] > 2:
        parameters["two"] = world.array(np.asarray([0.5, 1.5]))
    made = {f"parameter {what}": objectives.Pairwise(None, terms, parameters=(x,)) for what, x in parameters.items()}
    return wrong(log_odds) | made


OBJECTIVE_NAME = Kind(good="info_nce", skips=lambda value: callable(value) or is_one_of(["info_nce"], value))
OBJECTIVE = replace(
    OBJECTIVE_NAME,
    refused=objective_refused,
    taken={"of odds": then(log_odds, lambda u: u * u), "logistic": "logistic", "own": objectives.flat_nce()},
    either={"that gives float32": then(log_odds, lambda u: u.astype("f4") if hasattr(u, "astype") else u.float())},
)


def pairing_refused(world: World) -> Mapping[str, Any]:
    n = world.sizes["N"]
    make: Any = pairings.Pairing
    labels, wide = world.array(np.arange(n + 1)), world.array(np.ones((n, n + 1)) > 0)
    rules: Mapping[str, Callable[[Any], Any]] = {
        "nothing": lambda _: None,
        "one array": lambda pair: pair[0],
        "three arrays": lambda pair: (*pair, pair[0]),
        "numbers": lambda pair: (pair[0] * 1.0, pair[1] * 1.0),
        "truth values alone": lambda _: (True, False),
        "other shapes": lambda pair: (pair[0][:1, :, None], pair[1]),
        "longer rows": lambda pair: (pair[0], wide),
        "lists": lambda pair: (pair[0].tolist(), pair[1].tolist()),
    }
    return {
        "labels of other length": pairings.labels(labels),
        "labels of the other library": pairings.labels(other_library(labels[:-1])),
        "labels that are a list": make(good_rule, rows=([0] * n,)),
        "labels None": make(good_rule, columns=(None,)),
        "matrix of other shape": pairings.explicit(wide),
        "class": make,
        **{f"rule that gives {label}": make(then(good_rule, rule)) for label, rule in rules.items()},
    }


PAIRING = Kind(
    good="diagonal",
    refused=pairing_refused,
    taken=lambda world: {
        "made": pairings.diagonal(),
        "labels": pairings.labels(world.array(np.arange(world.sizes["N"]) // 2)),
        "columns alone": pairings.Pairing(lambda tile: (tile.j == 0, tile.j > 0)),
    },
    either=("two_views",),
    skips=lambda value: isinstance(value, str) and value == "diagonal",
)


def queue_of(world: World, *, labelled: bool = False) -> pnce.Queue:
    slots = np.arange(world.sizes["M"])
    rows = np.cos(np.arange(slots.size * world.sizes["D"])).reshape(world.shape("MD"))
    return pnce.Queue(world.array(rows), world.array(slots > 0), world.array(slots % 2) if labelled else None)


def queue_refused(world: World, *, labelled: bool = False) -> Mapping[str, Any]:
    queue: Any = queue_of(world, labelled=labelled)
    rows, valid, labels = queue
    foreign = queue._replace(rows=other_library(rows), valid=other_library(valid))
    bad: dict[str, tuple[Any, ...]] = {
        "rows": (None, "x", rows.tolist(), rows[0], rows > 0),
        "valid": (None, "x", valid.tolist(), valid[:-1], valid[:, None], valid * 1, valid[0], foreign.valid),
    }
    if labelled:
        of_labels = (labels.tolist(), labels[:-1], labels[:, None], labels * 1.5, labels > 0, other_library(labels))
        bad["labels"] = (None, "x", *of_labels)
    changed = {f"{part} {x!r}": queue._replace(**{part: x}) for part, values in bad.items() for x in values}
    return {**changed, "a tuple": tuple(queue), "foreign": foreign}


QUEUE = Kind(make=queue_of, refused=queue_refused, skips=is_matrix)
OPTIONAL_QUEUE = replace(QUEUE, optional=True)
LABELLED_QUEUE = replace(QUEUE, make=partial(queue_of, labelled=True), refused=partial(queue_refused, labelled=True))
OWN_ADAPTER: Any = type(
    "OwnAdapter",
    (type(_registry.load_backend("numpy")),),
    {"__init__": lambda _: None, **dict.fromkeys(("name", "version", "devices", "dtypes"), "own")},
)
"""A class of adapters whose methods can be called on the class."""
GROUP = run_ranks(1, lambda group: group)[0]
"""A communicator of one rank."""

# ------------------------------------------------------------------------------------------------------- the parameters

KINDS: Mapping[str, Kind] = {
    # arrays, by default as in the table of losses
    **{
        name: Array(AXES.get(name, "ND"), "i" if name in INTEGERS else "f")
        for loss in LOSSES.values()
        for name in (*loss.arguments, *loss.keywords)
    },
    **dict.fromkeys(("further_views", "example"), Array("ND")),
    **dict.fromkeys(("teacher_query", "teacher_key", "guide_query", "guide_key"), Array("NW")),
    **dict.fromkeys(("keys", "negative_candidates"), Array("MD", optional=None)),
    "negative_keys": Array("MD", optional=None, also=(3,)),
    **dict.fromkeys(("queue", "support"), QUEUE),
    **dict.fromkeys(("scores", "noise_scores", "teacher_scores"), Array("NK")),
    **dict.fromkeys(("u", "log_marginal", "data_scores"), Array("N")),
    **dict.fromkeys(("noise_log_q", "log_q"), Array("NK", number=True, also=(1,))),
    "data_log_q": Array("N", number=True),
    "negative_log_q": Array("M"),
    "ids": Array("N", "i", optional=True),
    "negative_ids": Array("M", "i"),
    "positives": Positives("N", "i", optional=True),
    "grades": Array("N", "fib"),
    "weights": Array("N", "fib", optional=True, least=0.0),
    "pair_weights": Array("NK", optional=True, least=0.0),
    "weight": Array("DD"),
    "concentrations": PositiveArray(AXES["concentrations"]),
    **dict.fromkeys(("factors", "offsets"), Array("K")),
    "rows": Array("N", "i"),
    "columns": Array("K", "i", optional=True),
    "valid": mask("K"),
    # options of all losses
    "reduction": choice("mean", "sum", "none"),
    "block_size": Kind(
        good="auto",
        takes=lambda value: is_positive_integer(value) or is_one_of(["auto"], value),
        plain=lambda _: None,  # changes no result
        taken=(3,),
        refused=(2.0, "AUTO", "auto ", "none", -3),
        optional=True,
    ),
    "precision": choice("high", "highest", optional=True),
    "across": Kind(skips=lambda value: isinstance(value, pnce.Ranks), optional=True),
    "temperature": Number(0.5, 0.0, array=True, rows=True),
    "similarity": CALLED_SIMILARITY,
    "objective": OBJECTIVE,
    "pairing": PAIRING,
    # numbers
    **dict.fromkeys(("margin", "positive_margin", "alpha", "l2", "entropy", "log_baseline"), Number(0.25, array=True)),
    **dict.fromkeys(("logit_bias", "bias"), Number(-0.5, array=True)),
    "log_mean": Number(-0.5, array=True, optional=True),
    **dict.fromkeys(("logit_scale", "scale", "sigma"), Number(2.0, 0.0, array=True)),
    **dict.fromkeys(("clip", "base_temperature", "teacher_temperature"), Number(1.5, 0.0, optional=True)),
    "max_logit_scale": Number(3.0, 0.0, optional=True),
    "rho": Number(0.5, optional=True),
    **dict.fromkeys(("hardness", "beta"), Number(0.5, -5e-324)),
    "tau_plus": Number(0.25, -5e-324, 0.9999999),
    **dict.fromkeys(("gamma", "rate"), Number(0.25, 0.0, 1.0)),
    **dict.fromkeys(("smoothing", "power", "t", "nu", "bandwidth"), Number(0.75, 0.0)),
    "floor": Kind(good=-2.0, skips=lambda value: not isinstance(value, (str, list, tuple, dict))),
    "percentiles": Kind(
        good=(10.0, 90.0),
        refused=(
            *((90.0, 10.0), (-1.0, 50.0), (10.0, 101.0), (math.nan, 90.0), (10.0, math.nan), (0, 10**400)),
            *((10.0,), (0.0, 50.0, 100.0), ("a", "b"), (False, True), (None, 90.0), {10.0: 90.0}),
        ),
        taken=([10.0, 90.0], (50, 50), (0, 100)),
        skips=lambda value: isinstance(value, list),
    ),
    **dict.fromkeys(("positive_power", "negative_power"), POWER),
    "n_columns": replace(WHOLE, good=4),
    "size": replace(WHOLE, good=3, skips=lambda value: is_number(value) and value > 100),
    "k": WHOLE,
    # flags and names
    **dict.fromkeys(("symmetric", "balance", "detach_weights", "include_positive", "normalized"), FLAG),
    **dict.fromkeys(("one_per_row", "one_per_column", "needs_negative", "wide", "inner_product"), FLAG),
    **dict.fromkeys(("normalize", "check", "negative_only"), FLAG),
    "couples_rows": replace(FLAG, optional=True),
    "return_statistics": replace(FLAG, either=(True,), skips=lambda value: isinstance(value, (bool, np.bool))),
    "has_aux": Kind(good=False, either=(True,), skips=lambda value: isinstance(value, bool)),
    **dict.fromkeys(("strategy", "margin_strategy"), choice("absolute", "relative")),
    "directions": Kind(
        good=("query_to_key", "key_to_key"),
        refused=((), ("query",), ("query_to_key", "query_to_key"), (1,), "key", ("key_to_key", None)),
        taken=(["key_to_key"], "query_to_query"),
        skips=lambda value: isinstance(value, (str, list)),
    ),
    "multi_positive": choice("each", "pooled", "separate"),
    "average": choice("all", "nonzero"),
    "form": choice("log", "detach"),
    "direction": choice("a_to_b", "b_to_a"),
    "stop_gradient": choice("first", "second", optional=True),
    "mining": choice("batch_all", "batch_hard", "semi_hard"),
    "negatives": choice("batch", "views"),
    "divide_by": choice("rows", "pairs", "active"),
    "gradients": choice("averaged", "summed"),
    "label": fixed(None),
    # differentiation, backends and ranks
    "fn": functional(lambda x, y: (x * y).sum()),
    "argnums": Kind(
        good=0,
        refused=(7, (), [], (0, 0), (0, -2), 2, -3, (0, 5), (0.0,), ("0",), [None], (True,)),
        taken=(1, -1, (0,), (0, 1), [1, 0], range(2)),
        skips=lambda value: isinstance(value, (int, range)) and not isinstance(value, bool),
    ),
    "module": Kind(
        good="array_api_strict",
        refused=("a.b", ".a", "a b", "1a", "numpy.linalg", "a-b"),
        taken=("numpy", "torch", "__main__"),
        skips=lambda value: isinstance(value, str) and value.isidentifier(),
    ),
    "adapter": Kind(refused=(OWN_ADAPTER, pnce.Adapter), taken=(OWN_ADAPTER(),), optional=True),
    "group": Kind(good=GROUP, skips=lambda value: isinstance(value, (str, tuple, pnce.Communicator))),
    # the classes
    "rule": functional(good_rule),
    "prepare": functional(lambda x, y, scale: ((x * scale,), (y,))),
    "pullback": functional(lambda rows, columns, g: ((g @ columns[0],), (g.T @ rows[0],)), optional=True),
    "ignore_index": Kind(
        good=-100, takes=lambda x: is_positive_integer(abs(x) + 1) if is_number(x) else False, optional=True
    ),
    "slopes": functional(lambda row: (row.log_odds, None, None, None), optional=True),
}
"""Kind of a parameter by its name, unless overridden for a function."""

Situation: TypeAlias = Mapping[str, Kind | None]
"""Kinds of a function's parameters that differ from those of their names; None omits a parameter."""

MARGIN_FORM = {"form": choice("margin", "soft")}
SQUARE = {"scores": Array("NN"), "mask": mask("NN"), "pair_weights": Array("NN", optional=True, least=0.0)}
ROWS_OF_BASELINES = {"log_baseline": Array("N", number=True, also=(0, 2))}
ALPHA = {"alpha": Number(0.25, -5e-324, 1.0)}
TUPLE = Kind(good=(), skips=lambda value: isinstance(value, tuple))
MEMORY, OPTIONAL_MEMORY = Array("MD"), Array("MD", optional=True)
SHARED_NEGATIVES: Situation = {"positives": None, "symmetric": None, "mask": mask("NM")}
OWN_NEGATIVES: Situation = {**SHARED_NEGATIVES, "negative_keys": Array("NMD", optional=None, also=(2,))}
TWO: Situation = {"further_views": None}
OF_VIEWS: Situation = {"mask": mask("VV"), "negatives": Kind(good="views", either=("batch",)), "symmetric": None}
OF_BATCH: Situation = {"negatives": None}
OF_ONE: Situation = {"y": None, "hardness": None}
PUSHED: Situation = {"rows": replace(MEMORY, may_be_empty=True), "labels": None}
COUNTED: Situation = {"scores": replace(WHOLE, good=5, skips=is_matrix), "positives": None, "mask": None}
SAMPLED: Situation = {"data_log_q": Array("N", number=True, optional=True), "include_positive": fixed(good=False)}
WITHOUT_KEYS: Situation = {"keys": None}
FURTHER: Situation = dict.fromkeys(("negative_candidates", "negative_ids", "negative_log_q"))
ONLY_CANDIDATES: Situation = {**FURTHER, "log_q": Array("N", optional=True)}
WITH_IDS: Situation = {"ids": Array("N", "i", optional=None), "log_q": Array("N", optional=None), "mask": None}
WITH_KEYS: Situation = {"mask": None, "keys": OPTIONAL_MEMORY}
WITH_QUEUE: Situation = {"mask": None, "keys": OPTIONAL_QUEUE}
WITH_AUX: Situation = {"fn": fixed(lambda x, y: ((x * y).sum(), "aux")), "has_aux": fixed(good=True)}
LABELLED: Sequence[Situation] = (
    {"keys": None, "key_labels": None},
    {"mask": mask("NM")},
    {"mask": None, "keys": replace(LABELLED_QUEUE, optional=True), "key_labels": None},
    {"mask": mask("NM"), "keys": QUEUE},
)
MATRIX_OR_PAIRS = ({"scores": Array("NK", also=(1,))}, {"scores": Array("N", also=(2,))})
LAYER: Situation = {
    "weight": Array("KD"),
    "targets": Array("N", "i"),
    "bias": Array("K", optional=True),
    "class_weights": Array("K", optional=True, least=0.0),
    "softcap": Number(1.5, 0.0, loose=True, optional=True),
    "smoothing": Number(0.25, -5e-324, 1.0),
    "z_loss": Number(0.25, -5e-324, loose=True),
}
OF_SCORES: Situation = {"key": None, "similarity": None}
OF_EMBEDDINGS: Situation = {
    "scores": Array("ND"),
    "key": Array("KD"),
    "similarity": replace(CALLED_SIMILARITY, optional=True),
    "mask": mask("NK"),
}
TEACHER = {"rows": Array("NW"), "columns": Array("KW", optional=True), "temperature": KINDS["teacher_temperature"]}
PAIRWISE = {**dict.fromkeys(("positive", "negative"), functional(abs, optional=True)), "parameters": TUPLE}
LABELS_OR_SETS = Array("N", "i", skips=lambda value: is_matrix(value) and kind_of(value) == "b")
CLUSTERINGS: Situation = {
    **{name: Sequenced(KINDS[name]) for name in ("prototypes", "assignments", "concentrations")},
    "mask": Sequenced(mask("NC"), optional=True),
    "queue": OPTIONAL_MEMORY,
}

SITUATIONS: Mapping[str, Sequence[Situation]] = {
    "info_nce": ({"negative_keys": None}, SHARED_NEGATIVES, OWN_NEGATIVES),
    "nt_xent": ({**WITHOUT_KEYS, **TWO}, {**WITHOUT_KEYS, "mask": mask("UU")}, {**WITH_QUEUE, **TWO}, WITH_KEYS),
    **dict.fromkeys(("flat_nce", "dcl", "dclw"), (WITHOUT_KEYS, WITH_KEYS)),
    **dict.fromkeys(("nca", "soft_nearest_neighbor", "contrastive"), LABELLED),
    "supcon": tuple({**situation, "labels": LABELS_OR_SETS} for situation in LABELLED),
    "contrast": (OF_ONE, {**OF_ONE, "y": Array("ND", optional=True)}, {"y": None, "objective": fixed("info_nce")}),
    "relic": (WITHOUT_KEYS, WITH_QUEUE, WITH_KEYS),
    "gist_embed": ({"margin": Number(0.25)},),
    "siglip": ({"negative_only": None}, {"negative_only": fixed(good=True), "text": Array("KD"), "mask": mask("NK")}),
    "clip": ({"logit_scale": Number(2.0, 0.0, array=True, loose=True)}, {"max_logit_scale": fixed(None)}),
    "moco": ({}, {"queue": MEMORY}),
    "nnclr": (OF_BATCH, {**OF_BATCH, "support": MEMORY}, OF_VIEWS),
    "proto_nce": ({"queue": OPTIONAL_QUEUE}, CLUSTERINGS, dict.fromkeys(("key", "queue", "temperature"))),
    "concentrations": ({"temperature": Number(0.5, 0.0)},),
    "queue_init": ({"labels": Array("N", "i", optional=True)},),
    "queue_push": (PUSHED, {**PUSHED, "queue": LABELLED_QUEUE, "labels": Array("M", "i")}),
    "two_tower": (ONLY_CANDIDATES, WITH_IDS),
    **dict.fromkeys(("cosent", "angle"), ({"mask": mask("N")},)),
    "from_scores.cosent": ({"scores": Array("N"), "mask": mask("N")},),
    **dict.fromkeys(("triplet", "from_scores.triplet", "objectives.triplet"), (MARGIN_FORM,)),
    "triplet_from_labels": tuple({**MARGIN_FORM, **situation} for situation in LABELLED),
    **dict.fromkeys(("grad", "value_and_grad"), ({}, WITH_AUX)),
    "stop_gradient": ({"x": AnyArray("ND")},),
    "matryoshka": (
        {"loss": functional(pnce.info_nce), "widths": fixed((2, 3)), "weights": fixed((1.0, 0.5)), "arrays": fixed(())},
    ),
    **{
        f"from_scores.{name}": ({}, {"positives": Positives("NK", "b", optional=True)})
        for name in ("info_nce", "flat_nce", "dcl", "dclw", "supcon", "nca", "logistic", "contrastive")
    },
    **dict.fromkeys(("from_scores.clip", "from_scores.relic", "bounds.leave_one_out"), (SQUARE,)),
    "bounds.info_nce_anchor": ({"form": choice("bound", "plug_in")},),
    "bounds.tuba": ({}, ROWS_OF_BASELINES),
    "bounds.interpolated": (ALPHA, {**ALPHA, **ROWS_OF_BASELINES}),
    **dict.fromkeys(("bounds.barber_agakov", "bounds.vub"), MATRIX_OR_PAIRS),
    "bounds.standard_error": (
        {
            "bound": functional(pnce.bounds.nwj),
            "scores": Array("NN"),
            "groups": replace(WHOLE, takes=lambda value: is_positive_integer(value) and value > 1),
        },
    ),
    "bounds.log_n_ceiling": ({"scores": Array("NK", skips=is_positive_integer)}, COUNTED),
    "density.ranking_nce": ({name: replace(KINDS[name], optional=None) for name in ("data_log_q", "noise_log_q")},),
    "density.nre_c": ({"gamma": Number(8.0, 0.0, loose=True)},),
    "diagnostics.top_k": (
        {
            "key": Array("KD"),
            "k": replace(WHOLE, takes=lambda value: is_positive_integer(value) and value <= 6),
            "exclude": Array("N", "i", optional=True, also=(2,)),
        },
    ),
    **{
        f"diagnostics.{name}": (OF_SCORES, OF_EMBEDDINGS)
        for name in ("mean_reciprocal_rank", "recall_at", "top_k_accuracy")
    },
    "density.sampled_softmax": ({"include_positive": replace(FLAG, good=True)}, SAMPLED),
    "density.full_softmax": ({"targets": Array("N", "i")},),
    "density.linear_softmax": (LAYER,),
    "density.self_normalization": ({"log_q": replace(KINDS["log_q"], optional=True)},),
    **{
        f"similarities.{name}": ({"similarity": SIMILARITY},)
        for name in ("normalized", "resolve", "scaled_columns", "shifted_columns")
    },
    "similarities.elementwise": (
        {
            "similarity": choice("dot", "cosine", "neg_sq_euclidean"),
            **dict.fromkeys(("value", "slope"), functional(abs)),
        },
    ),
    "prepare": ({"columns": Array("KD"), "similarity": choice("cosine", "dot")},),
    "similarities.max_sim": (
        {"query_mask": mask("NM"), "document_mask": mask("KM"), "negative_mask": replace(mask("KM"), also=(3,))},
    ),
    "similarities.Similarity": ({"scores": functional(inner_product)},),
    "pairings.index": ({"positives": Array("N", "i")},),
    "pairings.explicit": ({"positives": Array("NK", "b")},),
    "pairings.Pairing": (dict.fromkeys(("rows", "columns", "pairs"), TUPLE),),
    "pairings.soft": ({"targets": Array("NK")},),
    "pairings.weighted": ({"pairing": fixed(pairings.diagonal()), "weights": Array("NK", least=0.0)},),
    "pairings.smoothed": ({"smoothing": Number(0.25, -5e-324, 0.9999999)},),
    "pairings.overlap": ({"rows": Array("NW", "b"), "columns": mask("KW")},),
    "pairings.kernel": (
        {"rows": Array("NW"), "columns": Array("KW", optional=True)},
        {"rows": Array("N"), "columns": Array("K", optional=True)},
    ),
    "pairings.teacher": (TEACHER,),
    "pairings.guided": ({"rows": Array("NW"), "columns": Array("KW"), "margin": Number(0.25)},),
    "objectives.resolve": ({"objective": OBJECTIVE_NAME},),
    "objectives.Objective": ({"rows": functional(log_odds)},),
    "objectives.Pairwise": (PAIRWISE,),
}
"""Functions with such overrides."""

RECORDS = {
    *("Adapter", "Communicator", "Queue", "Ranks", "density.SelfNormalization", "objectives.RowStatistics"),
    *("density.SoftmaxStatistics", "diagnostics.TopK"),
    *("objectives.Term", "pairings.Tile"),
}
"""Named tuples, protocols and the result of `across`: their fields are checked where they are used."""

ALIASES = {
    *("similarities.Operands", "similarities.Pullback", "similarities.Scores"),
    *(f"typing.{name}" for name in pnce.typing.__all__ if callable(getattr(pnce.typing, name))),
}
"""Types."""

CLUSTERED = {"prototypes", "assignments", "concentrations", "mask"}
"""If one of these is a sequence, all must be: the error may name any that differs."""


PARTS: Mapping[str, Sequence[str]] = {
    "objective": ("parameters",),
    "similarity": ("weight",),
    "has_aux": ("value_and_grad",),
}
"""Arguments named in errors of separately made objects that do not fit, and the function that takes another."""


# -------------------------------------------------------------------------------------------------------- the functions


MODULES = {"": pnce, **{f"{name}.": x for name in pnce.__all__ if inspect.ismodule(x := getattr(pnce, name))}}
PUBLIC: Mapping[str, Callable[..., Any]] = {
    f"{prefix}{name}": thing
    for prefix, module in MODULES.items()
    for name in module.__all__
    if callable(thing := getattr(module, name))
}
FUNCTIONS: Mapping[str, Any] = {
    name: thing
    for name, thing in PUBLIC.items()
    if name not in RECORDS | ALIASES
    and name not in {"backends_available", "explain", "fuse_steps"}  # no arrays, or a loss's
    if not name.startswith("estimation.")  # slow: tests/estimation has their invalid arguments
}


@dataclass(frozen=True)
class Call:
    """A valid call of a function: kind and value of each parameter."""

    name: str
    world: World
    kinds: Mapping[str, Kind]
    given: Mapping[str, Any]
    keywords: Sequence[str]

    def run(self, **changed: Any) -> Any:
        """Call the function with some arguments replaced."""
        arguments = {**self.given, **changed}
        keywords = {p: arguments.pop(p) for p in self.keywords}
        made = FUNCTIONS[self.name](*arguments.values(), **keywords)
        if self.name not in {"grad", "value_and_grad"}:
            return made
        x, y = (self.world.array(np.linspace(-1.0, 1.0, 3) * scale) for scale in (1.0, 0.5))
        return made(x, y)

    def without_options(self) -> Call:
        """The call with None for all optional arguments, if it is valid."""
        optional = [name for name, kind in self.kinds.items() if kind.judge(self.world, None) == "taken"]
        bare = replace(self, given={**self.given, **dict.fromkeys(optional)})
        try:
            bare.run()
        except (TypeError, ValueError):
            return self
        return bare


def kinds_of(name: str) -> Mapping[str, Kind]:
    """Kinds of parameters by name; masks cover all scores, or have the axes in the table of losses."""
    axes = "NK" if "." in name else LOSSES[name].mask if name in LOSSES else "NN"
    return {**KINDS, "mask": mask(axes)}


def call_of(name: str, situation: Situation, world: World) -> Call:
    numbers = np.random.default_rng(world.seed)
    known, parameters = {**kinds_of(name), **situation}, inspect.signature(FUNCTIONS[name]).parameters
    kinds = {p: kind for p in parameters if (kind := known[p]) is not None}
    keywords = [p for p in kinds if parameters[p].kind is inspect.Parameter.KEYWORD_ONLY]
    return Call(name, world, kinds, {p: kind.example(world, numbers) for p, kind in kinds.items()}, keywords)


def situations_of(name: str) -> Sequence[Situation]:
    return SITUATIONS.get(name, ({},))


def calls_of(name: str, world: World) -> list[Call]:
    return [call_of(name, situation, world) for situation in situations_of(name)]


# ------------------------------------------------------------------------------------------------- documented results


def leaves(result: Any) -> list[Any]:
    if not isinstance(result, (tuple, list)):
        return [result]
    return [leaf for part in result if part is not None for leaf in leaves(part)]


VALUES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("bounds.dual_critic", "density.log_partition"), ("N",)),
    "density.recover_log_prob": ("NK",),
    "concentrations": ("C",),
    "bounds.mine": ("", ""),
    "density.self_normalization": ("", "", ""),
    "queue_push": ("MD", "M"),
    "stop_gradient": ("ND",),
}
"""Axes of the result of a function without `reduction`, if it is not a scalar."""

MADE = (objectives.relic(), objectives.triplet(), objectives.hard_negatives())
OBJECTIVES = (objectives.Objective, objectives.Pairwise, *map(type, MADE))

TYPES_OF_RESULTS: Mapping[str, type | tuple[type, ...]] = {
    "matryoshka": type(pnce.matryoshka(pnce.info_nce, (2,))),
    "across": pnce.Ranks,
    "prepare": tuple,
    "queue_init": pnce.Queue,
    "register_backend": type(None),
    "diagnostics.top_k": pnce.diagnostics.TopK,
    "bounds.log_n_ceiling": (float, np.ndarray, torch.Tensor),
    "grad": (np.ndarray, torch.Tensor, tuple),
    "value_and_grad": tuple,
    **{f"similarities.{name}": similarities.Similarity for name in similarities.__all__},
    **{f"pairings.{name}": pairings.Pairing for name in pairings.__all__},
    **{f"objectives.{name}": OBJECTIVES for name in objectives.__all__},
}
"""Types of results that are not numbers."""


def check_result(call: Call, arguments: Mapping[str, Any], result: Any, *, sizes_kept: bool) -> None:
    """Check that a result is of the documented kind and has no NaN."""
    if call.name == "stop_gradient" and isinstance(result, np.generic):
        return
    if call.name in TYPES_OF_RESULTS:
        assert isinstance(result, TYPES_OF_RESULTS[call.name])
        return
    given = leaves(result)
    assert all(isinstance(leaf, tuple(TYPES.values())) for leaf in given), given
    assert not any(np.isnan(in_numpy(leaf)).any() for leaf in given if kind_of(leaf) == "f"), result
    if not sizes_kept:
        return
    assert all(call.world.owns(leaf) for leaf in given)
    shapes = [tuple(leaf.shape) for leaf in given]
    if call.name in VALUES or "reduction" not in arguments:
        of_labels = ("M",) if call.name == "queue_push" and "labels" in arguments else ()
        assert shapes == [call.world.shape(axes) for axes in (*VALUES.get(call.name, ("",)), *of_labels)]
        return
    rows = call.world.sizes["N"]
    if call.name == "sogclr":
        state, shapes, result = result[1], shapes[:1], result[0]
        assert tuple(state.shape) == (rows,)
    views = 2 if arguments.get("negatives") == "views" else LOSSES[call.name].views if call.name in LOSSES else 1
    rows *= views + ("further_views" in arguments)
    assert shapes == [(rows,) if arguments["reduction"] == "none" else ()]
    assert str(result.dtype).endswith(call.world.dtype)


def in_numpy(x: Any) -> np.ndarray:
    """The array as NumPy's, which has no bfloat16."""
    return np.asarray(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x)


def numbers_of(result: Any) -> list[np.ndarray]:
    return [in_numpy(leaf).astype(np.float64) for leaf in leaves(result) if isinstance(leaf, (float, *TYPES.values()))]


def assert_same(call: Call, got: Any, wanted: Any) -> None:
    rtol = 1e-9 if call.world.dtype == "float64" else 2e-3
    for a, b in zip(numbers_of(got), numbers_of(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def is_named(call: Call, names: Sequence[str], message: str) -> bool:
    """Whether a message begins with an argument or a part of it, names one of some, and says what was expected."""
    if call.name == "stop_gradient" and "no backend is registered" in message:
        return True
    known = {*inspect.signature(FUNCTIONS[call.name]).parameters, call.name, *chain(*PARTS.values())}
    says = re.match(r"(\w+)[^\s:]*: .*expected ", message, re.DOTALL)
    named = re.search(rf"\b({'|'.join(names)})\b", message) is not None
    return says is not None and says[1] in known and named


def check(call: Call, junk: Mapping[str, Junk]) -> None:
    """Replace some arguments, and check the outcome."""
    changed = {name: j.value for name, j in junk.items()}
    others = [value for name, value in call.given.items() if name not in junk]
    alone = not any(isinstance(x, (*TYPES.values(), pnce.Queue, list)) for x in others)
    verdicts = {name: "either" if j.verdict == "foreign" and alone else j.verdict for name, j in junk.items()}
    parts = call.name.startswith(("objectives.", "pairings.", "similarities."))
    shapes = [getattr(j.value, "shape", ()) for j in junk.values()]
    if parts and any(isinstance(shape, tuple) and 0 in shape for shape in shapes):
        return  # a rank may have no rows: the loss decides, and its own arguments are checked below
    refused = not {"refused", "foreign"}.isdisjoint(verdicts.values())
    told = f"{call.name}, {', '.join(f'{name} {j.label}' for name, j in junk.items())}"
    # Some are exponents.
    extreme = any(is_number(value) and (is_extreme(value) or abs(value) > 80) for value in changed.values())
    with np.errstate(over="ignore" if extreme else "warn"):
        try:
            result = call.run(**changed)
        except (TypeError, ValueError) as error:
            got = str(error)
            assert refused or "either" in verdicts.values() or len(junk) > 1, f"{told}: refused by {got}"
            # If lengths do not fit, or a choice differs, the error may name the other argument.
            vague = any(j.found for j in junk.values()) or (call.name == "proto_nce" and CLUSTERED & {*junk})
            certain = refused and "either" not in verdicts.values() and not vague
            names = [*(junk if certain else call.kinds), *(part for name in junk for part in PARTS.get(name, ()))]
            assert is_named(call, names, got), f"{told}: not named by {got}"
            return
        assert not refused, f"{told}: taken"
        check_result(call, {**call.given, **changed}, result, sizes_kept="either" not in verdicts.values())
        if "either" not in verdicts.values() and "adapter" not in junk:
            canonical = {name: call.kinds[name].canonical(call.world, value) for name, value in changed.items()}
            assert_same(call, result, call.run(**canonical))


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the registry after the test, and read the entry points of the environment once."""
    points = _registry._entry_points()  # noqa: SLF001
    monkeypatch.setattr(_registry, "_entry_points", lambda: points)
    for name in ("_registered", "_loaded", "adapters"):
        monkeypatch.setattr(_registry, name, dict(getattr(_registry, name)))


# ------------------------------------------------------------------------------------------------------------ the tests


def test_every_public_name_is_known() -> None:
    """Every public callable is fuzzed, or listed as one that checks nothing; no list is out of date."""
    assert RECORDS | ALIASES | {*SITUATIONS} | {*VALUES} <= {*PUBLIC}
    classes = {name for name in FUNCTIONS if isinstance(FUNCTIONS[name], type)}
    assert classes == {"similarities.Similarity", "pairings.Pairing", "objectives.Objective", "objectives.Pairwise"}
    for name, function in FUNCTIONS.items():
        for situation in situations_of(name):
            unknown = {*inspect.signature(function).parameters} - {*kinds_of(name)} - {*situation}
            assert not unknown, f"{name}: give a kind to {unknown}"
        left_out = set.intersection(*({p for p, kind in s.items() if kind is None} for s in situations_of(name)))
        assert not left_out, f"{name}: {left_out} are left out everywhere"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_value_of_one_argument(name: str) -> None:
    """Every value for every parameter, and an unknown one, in valid calls; later calls try a third of the values."""
    for place, situation in enumerate(situations_of(name)):
        call = call_of(name, situation, World())
        check_result(call, call.given, call.run(), sizes_kept=True)
        with pytest.raises(TypeError, match="colour"):
            FUNCTIONS[name](*call.given.values(), colour="red")
        for parameter, kind in call.kinds.items():
            step = 3 if place and parameter not in situation else 1
            for junk in [*kind.junk(call.world, call.given[parameter])][place % step :: step]:
                check(call, {parameter: junk})


@pytest.mark.parametrize("library", sorted(TYPES))
def test_the_value_of_an_array_of_one_entry(library: str) -> None:
    """NaN as temperature, margin or scale gives NaN; a number beyond its limit is an error, also in an array."""
    for call in [call for name in FUNCTIONS for call in calls_of(name, World(library))]:
        similarities: list[dict[str, Any]] = [{}, {"similarity": "cosine"}] if "similarity" in call.given else [{}]
        for (parameter, kind), options in product(call.kinds.items(), similarities):
            if isinstance(kind, Number) and kind.array:
                check_entry(call, parameter, kind, options)


def check_entry(call: Call, parameter: str, kind: Number, options: Mapping[str, Any]) -> None:
    """Pass arrays of one entry."""

    def run(number: Any) -> Any:
        return call.run(**options, **{parameter: call.world.array(np.asarray(number))})

    with np.errstate(all="ignore"):
        results = [numbers_of(run(number)) for number in (math.nan, 0.7, 0.9)]
    for of_nan, one, other in zip(*results, strict=True):
        assert np.isnan(of_nan).any() or np.array_equal(one, other), f"{call.name}, {parameter}, {options}"
    refused = [number for number in (-1.0, 0.0, math.inf) if kind.judge_entry(number) == "refused"]
    for form in [*refused, *([number] for number in refused)]:
        with pytest.raises(ValueError, match=rf"{parameter}: expected a finite number greater"):
            run(form)
    if kind.above == 0.0:  # subnormal numbers, also of float32
        with pytest.raises(ValueError, match=rf"{parameter}: expected a number of at least"):
            run(5e-324 if call.world.dtype.endswith("64") else 1e-40)


@pytest.mark.parametrize("bad", [1.0, "text", [], [[1.0]], {}, None, np.asarray([1]), np.asarray(["a"]), DUCK])
def test_errors_of_value_and_grad_name_the_functions_arguments(bad: Any) -> None:
    """Errors of a differentiated function name its own arguments and the function."""
    with pytest.raises(TypeError, match=r"value_and_grad: expected|no backend is registered"):
        pnce.grad(lambda x: x.sum())(bad)


@pytest.mark.parametrize("module", ["", ".", "a.b", "no_such_module", "__main__", "numpy"])
def test_listing_after_registering(module: str) -> None:
    """Registering a backend, or failing to, never breaks `backends_available`."""
    try:
        pnce.register_backend(module)
    except ValueError:
        assert not module.isidentifier() or module == "no_such_module"
    assert "numpy" in pnce.backends_available()
    assert "no_such_module" not in pnce.backends_available()


def strange(numbers: np.random.Generator) -> np.ndarray:
    """An array of any shape and dtype."""
    shape = numbers.integers(0, 7, size=numbers.integers(0, 5))
    return (numbers.integers(1, 65, size=shape) / 16).astype(numbers.choice([*"?bHqefdDU"]))


@pytest.mark.parametrize("library", mostly_full(sorted(TYPES), ["torch"]))
def test_random_values_of_two_arguments(library: str) -> None:
    """Random values for each pair of parameters of each function, with others omitted, at random sizes."""
    numbers = np.random.default_rng(1)
    for name in sorted(FUNCTIONS, key=lambda name: name == "register_backend"):  # changes the registry for others
        for situation in situations_of(name):
            rows = int(numbers.integers(2, 6))
            sizes = sizes_of(rows, *numbers.integers((rows, 1, 1), (8, 5, 7)).tolist())
            world = World(library, str(numbers.choice(["float64", "float32"])), sizes, int(numbers.integers(100)))
            whole = call_of(name, situation, world)
            bare = whole.without_options()
            tried = {p: [*kind.junk(world, whole.given[p])] for p, kind in whole.kinds.items()}
            for pair in combinations([p for p, junk in tried.items() if junk], 2):
                check((whole, bare)[numbers.integers(2)], {p: found(whole, p, tried[p], numbers) for p in pair})


def found(call: Call, parameter: str, tried: Sequence[Junk], numbers: np.random.Generator) -> Junk:
    """Draw a value: half are valid, some are unknown values."""
    kind, chance = call.kinds[parameter], numbers.random()
    if chance < 0.1 and not kind.skips(value := strange(numbers)):
        return Junk(repr(value), value, kind.judge(call.world, value), found=True)
    if isinstance(kind, Number) and (not kind.array or parameter == "alpha") and call.world.dtype == "float32":
        # Only scales of the scores must stay within the range of their dtype.
        tried = [junk for junk in tried if not is_number(junk.value) or not is_extreme(junk.value)]
    fitting = [junk for junk in tried if junk.verdict in {"taken", "either"}] if chance < 0.6 else []
    return (fitting or tried)[int(numbers.integers(len(fitting or tried)))]


# ------------------------------------------------------------------------------------------------------ torch.compile

PASSED_ON = {
    *("angle", "contrast", "cpc", "dcl", "flat_nce", "joint_info_nce", "moco", "nca", "nnclr", "nt_xent", "proto_nce"),
    *("soft_nearest_neighbor", "two_tower"),
}
"""Losses whose only number is the temperature or scale, handled as in other losses."""


def numbers_of_calls() -> Iterator[Any]:
    """A call of each function with specific numbers, the numbers, and whether they start as symbols."""
    for name in FUNCTIONS:
        if name in PASSED_ON or name.startswith(("objectives.", "from_scores.")):  # numbers of losses, tested already
            continue
        call = call_of(name, situations_of(name)[0], World("torch", sizes=sizes_of(columns=4)))
        own = [p for p, kind in call.kinds.items() if isinstance(kind, Number) or getattr(kind, "number", False)]
        numbers = {p: call.given[p] if isinstance(call.given[p], float) else 0.5 for p in own}
        if numbers:
            short = {name, name.partition(".")[0]} & {"info_nce", "hcl"}
            marks: Any = () if short else pytest.mark.full
            dynamic = None if name in {"info_nce", "hcl", "siglip", "triplet"} else True
            yield pytest.param(call, numbers, dynamic, id=name, marks=marks)


def in_a_loss(made: Any) -> Any:
    """Loss with a pairing; other results are returned unchanged."""
    x, y = (torch.linspace(-1.0, end, 12, dtype=torch.float64).reshape(4, 3) for end in (1.0, 0.5))
    return pnce.contrast(x, y, objective="info_nce", pairing=made) if isinstance(made, pairings.Pairing) else made


@pytest.mark.parametrize(("call", "numbers", "dynamic"), [*numbers_of_calls()])
def test_torch_compile_of_numbers_that_change(call: Call, numbers: Mapping[str, float], dynamic: bool | None) -> None:  # noqa: FBT001
    """One graph for the first value and one for all others, or one for all if the numbers start as symbols."""
    torch.compiler.reset()
    for leaf in leaves([*call.given.values()]):
        if isinstance(leaf, torch.Tensor):
            torch._dynamo.mark_static(leaf)  # noqa: SLF001  (symbolic sizes would be slow)

    def loss(changed: Mapping[str, float]) -> Any:
        return in_a_loss(call.run(**changed))

    schedule = [{p: x * (1 - k / 16) for p, x in numbers.items()} for k in range(1 if dynamic else 12)]
    loss(schedule[0])  # the first call of a process may need one more graph
    graphs = CompileCounter()
    compiled = torch.compile(loss, fullgraph=True, backend=graphs, dynamic=dynamic)
    for changed in schedule:
        assert_same(call, compiled(changed), loss(changed))
    assert graphs.frame_count <= 2
