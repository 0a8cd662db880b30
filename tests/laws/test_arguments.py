"""Whatever a public function is called with, it gives what it promises, or an error that names the argument.

Every parameter of every public function has a kind, which makes a good value, knows bad ones, and can tell which is
which. A function that is new is found here by its name; the tests fail until all of its parameters have a kind.
"""

from __future__ import annotations

import inspect
import math
import numbers
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from itertools import combinations
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

import portable_nce as pnce
from portable_nce._core import registry as _registry
from portable_nce.testing import run_ranks

Verdict: TypeAlias = Literal["taken", "refused", "either", "foreign"]
"""What is to happen: it is taken, refused by name, either of the two, or refused beside arrays of another library."""


class Junk(NamedTuple):
    """A value to be tried, and what is to happen."""

    label: str
    value: Any
    verdict: Verdict
    found: bool = False  # at random: of an array, several things may be wrong


# ------------------------------------------------------------------------------------------------------------ the world

TYPES: Mapping[str, type] = {"numpy": np.ndarray, "torch": torch.Tensor}
ODD_DTYPES: Mapping[str, tuple[Any, ...]] = {
    "numpy": (
        *(bool, np.int8, np.uint8, np.int64, np.float16, np.float32, np.float64, np.longdouble, ">f8"),
        *(complex, object, str, "S3", "V8", "M8[s]", "m8[s]"),
    ),
    "torch": (
        *(torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
    ),
}


def sizes_of(rows: int = 4, columns: int = 6, features: int = 3, further: int = 5) -> Mapping[str, int]:
    """Give the lengths of the axes by their letters; V and U stand for two and three views."""
    return dict(zip("NKDMVURSEI", (rows, columns, features, further, 2 * rows, 3 * rows, 2, 2, 2, 1), strict=True))


@dataclass(frozen=True)
class World:
    """A library, a dtype, the lengths of axes by letter, and a seed."""

    library: str = "numpy"
    dtype: str = "float64"
    sizes: Mapping[str, int] = field(default_factory=sizes_of)
    seed: int = 0

    def array(self, x: np.ndarray) -> Any:
        """Make an array of this library."""
        if x.dtype.kind == "f":
            x = x.astype(self.dtype)
        return x if self.library == "numpy" else torch.asarray(x.copy())

    def shape(self, axes: str) -> tuple[int, ...]:
        return tuple(self.sizes[axis] for axis in axes)

    def owns(self, value: Any) -> bool:
        return isinstance(value, (TYPES[self.library], np.generic) if self.library == "numpy" else torch.Tensor)

    def changed(self, example: Any) -> Iterator[tuple[str, Any]]:
        """Change the dtype or the rank of an array, its library, its lengths, or nothing but how it lies in memory."""
        x = np.asarray(example)
        yield from (("one axis more", example[None]), ("a last axis more", example[..., None]))
        if x.ndim:
            less = {"one axis less": 0, "a last axis less": (..., 0), "a row less": slice(-1)}
            less |= {"a column less": (..., slice(-1)), "narrow": (..., slice(1))}
            none = {"empty": slice(0), "no columns": (..., slice(0))}
            yield from ((label, example[key]) for label, key in {**less, **none}.items())
            yield "a row more", self.array(np.concatenate([x, x[:1]]))
            yield "a column more", self.array(np.concatenate([x, x[..., :1]], axis=-1))
            yield "every second", self.array(np.repeat(x, 2, axis=0))[::2]
        yield from (("a list", x.tolist()), ("a tuple", tuple(x.tolist()) if x.ndim else (x.item(),)))
        for dtype in ODD_DTYPES[self.library]:
            yield f"of dtype {dtype}", example.astype(dtype) if self.library == "numpy" else example.to(dtype)
        yield "foreign", torch.asarray(x.copy()) if self.library == "numpy" else x
        if self.library == "numpy":
            frozen = np.asfortranarray(x)
            frozen.flags.writeable = False
            yield "read-only, in Fortran's order", frozen


def kind_of(x: Any) -> str:
    """Give the letter of an array's dtype: f, i, b, c, or another."""
    if isinstance(x, torch.Tensor):
        return "f" if x.dtype.is_floating_point else "c" if x.is_complex() else "b" if x.dtype == torch.bool else "i"
    return "i" if x.dtype.kind in "iu" else x.dtype.kind


class Duck:
    """Something that has a shape and a dtype, and is no array."""

    shape = (4, 3)
    dtype = "float64"


class TypedFloat(float):
    """A number with a dtype, as JAX's literals are."""

    dtype = np.dtype(np.float32)


ANYTHING: Sequence[Any] = (
    *(None, True, False, 0, 1, 2, 7, -1, 0.0, -0.0, 0.5, 1.5, -1.0, 1e-40, 1e40, 1e300, 5e-324, 10**400, -(10**400)),
    *(math.nan, math.inf, -math.inf, 1j, Decimal("0.5"), Fraction(1, 2), b"1", object(), lambda *_: None),
    *("", "0.1", "mean", "avg", "no", "info_nce", "cosine", "diagonal", "auto", np.str_("mean")),
    *((), (0.5,), [], [0.5], [0.5, 1.5], {}, {1}, range(3), iter([0.5])),
    *(np, np.ndarray, Duck(), pnce.Queue, pnce.Queue(None, None), pnce.pairings.Tile),
    *(
        TypedFloat(0.5),
        np.float64(0.5),
        np.float32(0.5),
        np.int64(2),
        np.asarray(0.5) > 0,
        np.asarray([]),
        np.asarray([0.5, 1.5]),
    ),
    *(np.asarray(1), np.ones(()) > 0, np.asarray("a"), np.asarray(None), np.asarray(1j), np.asarray(0.5)),
    *(torch.asarray(0.5), torch.asarray([0.5, 1.5]), torch.asarray(1)),
)
"""What is tried for every parameter."""


TRIED = [(repr(value)[:60], value) for value in ANYTHING]


def is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_extreme(value: float) -> bool:
    """Tell whether a number is so large or small that results may be beyond the range of a dtype."""
    return not (value == 0 or 1e-30 < abs(plain_number(value)) < 1e30)


def plain_number(value: Any) -> Any:
    """NumPy's scalars as Python's: compared with large numbers they overflow."""
    return value.item() if isinstance(value, np.generic) else value


# ------------------------------------------------------------------------------------------------------------ the kinds


class Kind:
    """What a parameter takes."""

    optional = False

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        """Make a good value."""
        raise NotImplementedError

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        """Tell what is to happen to a value."""
        raise NotImplementedError

    def beyond_limits(self) -> Iterator[np.ndarray]:
        """Give arrays of one number that is refused."""
        yield from ()

    def canonical(self, world: World, value: Any) -> Any:
        """Give another form of a value that is taken, with which the result is the same."""
        del world
        return value

    def further(self, world: World, example: Any) -> Iterator[tuple[str, Any]]:
        """Give values to try beside those that are tried everywhere."""
        del world, example
        yield from ()

    def junk(self, world: World, example: Any) -> Iterator[Junk]:
        """Give all values to try, with what is to happen."""
        for label, value in (*TRIED, *self.further(world, example)):
            yield Junk(label, value, self.judge(world, value, example))


class Array(Kind):
    """An array of some axes; `number` allows a number, `also` further ranks."""

    def __init__(
        self,
        axes: str,
        dtypes: str = "f",
        *,
        optional: bool | None = False,
        number: bool = False,
        also: Sequence[int] = (),
        least: float = -math.inf,
    ) -> None:
        self.axes, self.dtypes, self.number, self.also = axes, dtypes, number, also
        self.none: Verdict = "taken" if optional else "either" if optional is None else "refused"
        self.optional = optional is not False
        self.least = least  # of the numbers of an example

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        shape = world.shape(self.axes)
        if self.dtypes[0] == "f":
            return world.array(np.maximum(numbers.normal(size=shape), self.least))
        return world.array(numbers.random(shape) < 0.7 if self.dtypes == "b" else numbers.integers(0, 2, shape))

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        if value is None:
            return self.none
        if is_number(value) and (self.number or not world.owns(value)):
            value = plain_number(value)
            fits = self.number and abs(value) <= sys.float_info.max
            return "refused" if not fits else "either" if is_extreme(value) else "taken"
        if not isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
            return "refused"
        ranks = {len(self.axes), *self.also}
        fits = kind_of(value) in self.dtypes and len(value.shape) in ranks and math.prod(value.shape) > 0
        if not fits:
            return "refused"
        if not world.owns(value):
            return "foreign"
        alike = tuple(value.shape) == world.shape(self.axes) and (
            value.dtype == example.dtype or kind_of(value) != "f" or len(self.dtypes) > 1
        )
        return "taken" if alike and str(value.dtype) != ">f8" else "either"

    def canonical(self, world: World, value: Any) -> Any:
        if value is None or is_number(value):
            return value
        plain = in_numpy(value)
        if self.dtypes[0] == "f":
            return world.array(plain.astype(np.float64))
        return world.array(plain.astype(np.int64) if kind_of(value) == "i" else plain.copy())

    def further(self, world: World, example: Any) -> Iterator[tuple[str, Any]]:
        return world.changed(example)


class Positives(Array):
    """A column for each row by its number, any number of them by truth values or weights; None is the diagonal."""

    def __init__(self, axes: str) -> None:
        super().__init__(axes, "i" if len(axes) == 1 else "b", optional=True)

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        own = super().judge(world, value, example)
        if own != "refused" or value is None or not isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
            return own
        other = (len(value.shape), kind_of(value)) in {(1, "i"), (2, "b"), (2, "f")} and math.prod(value.shape) > 0
        return "refused" if not other else "either" if world.owns(value) else "foreign"


class Some(Kind):
    """Any array."""

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        return world.array(numbers.normal(size=world.shape("ND")))

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        del world, example
        return "either" if isinstance(value, (np.ndarray, np.generic, torch.Tensor)) else "refused"

    def further(self, world: World, example: Any) -> Iterator[tuple[str, Any]]:
        return world.changed(example)


class Number(Kind):
    """A number between limits; `array` allows an array of one entry too."""

    def __init__(
        self,
        good: float,
        above: float = -math.inf,
        most: float = math.inf,
        *,
        array: bool = False,
        optional: bool = False,
        loose: bool = False,
    ) -> None:
        self.good, self.above, self.most, self.array, self.optional = good, above, most, array, optional
        self.loose = loose  # takes what is too large for its limit

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        del world, numbers
        return self.good

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        del example
        if value is None:
            return "taken" if self.optional else "refused"
        if is_number(value):
            value = plain_number(value)
            fits = self.above < value <= self.most
            if not fits or not abs(value) <= sys.float_info.max:
                return "either" if self.loose and value > 0 else "refused"
            return "either" if is_extreme(value) else "taken"
        if not self.array or not isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
            return "refused"
        if math.prod(value.shape) != 1 or kind_of(value) != "f":
            return "refused"
        return self.of_array(float(value.reshape(()))) if world.owns(value) else "foreign"

    def of_array(self, number: float) -> Verdict:
        """Tell what is to happen to the number in an array."""
        if self.above == -math.inf or self.above < number < math.inf:
            return "taken"
        return "either" if math.isnan(number) or (self.loose and number > 0) else "refused"

    def beyond_limits(self) -> Iterator[np.ndarray]:
        for number in (-1.0, 0.0, math.inf):
            if self.of_array(number) == "refused":
                yield from (np.asarray(number), np.asarray([number]))

    def canonical(self, world: World, value: Any) -> Any:
        del world
        return None if value is None else value if is_number(value) else float(in_numpy(value).item())

    def further(self, world: World, example: Any) -> Iterator[tuple[str, Any]]:
        number = np.asarray(0.5 if example is None else example, dtype=np.float64)
        yield from ((str(x), x) for x in (1e-3, 1e3, 0.999999, -0.5, 3, self.above, self.most))
        yield from world.changed(world.array(number))
        yield from (("one entry", world.array(number[None])), ("matrix of one", world.array(number[None, None])))


class Temperature(Number):
    """A number, or one for each row."""

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        own = super().judge(world, value, example)
        if own != "refused" or not isinstance(value, (np.ndarray, torch.Tensor)):
            return own
        return "either" if len(value.shape) == 1 and len(value) > 1 and kind_of(value) == "f" else own


class Flag(Kind):
    """True or False."""

    def __init__(self, *, usual: bool = False, optional: bool = False) -> None:
        self.usual, self.optional = usual, optional

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        del world, numbers
        return self.usual

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        del world, example
        if value is None:
            return "taken" if self.optional else "refused"
        return "taken" if isinstance(value, (bool, np.bool)) else "refused"


class Choice(Kind):
    """One of some strings."""

    def __init__(self, *choices: str, optional: bool = False) -> None:
        self.choices, self.optional = choices, optional

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        del world, numbers
        return self.choices[0]

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        del world, example
        if value is None:
            return "taken" if self.optional else "refused"
        return "taken" if isinstance(value, str) and value in self.choices else "refused"

    def canonical(self, world: World, value: Any) -> Any:
        del world
        return None if value is None else str(value)

    def further(self, world: World, example: Any) -> Iterator[tuple[str, Any]]:
        del world
        yield from ((repr(choice), choice) for choice in (*self.choices, np.str_(example)))
        near = (example.upper(), f"{example} ", f" {example}", example[:-1], example.encode(), list(self.choices))
        yield from ((repr(choice), choice) for choice in near)


class Power(Kind):
    """1 or 2."""

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        del world, numbers
        return 2

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        del world, example
        return "taken" if is_number(value) and value in (1, 2) else "refused"

    def canonical(self, world: World, value: Any) -> Any:
        del world
        return int(value)

    def further(self, world: World, example: Any) -> Iterator[tuple[str, Any]]:
        del world, example
        yield from ((repr(x), x) for x in (1.0, 2.0, 3, 1.9999999999))


class Block(Kind):
    """Rows of a block: a positive integer, None or "auto", none of which changes a result."""

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        del world, numbers
        return "auto"

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        del world, example
        whole = is_whole(value) and value > 0
        return "taken" if value is None or whole or (isinstance(value, str) and value == "auto") else "refused"

    def canonical(self, world: World, value: Any) -> Any:
        del world, value
        return None

    def further(self, world: World, example: Any) -> Iterator[tuple[str, Any]]:
        del world, example
        yield from ((repr(x), x) for x in (3, 2.0, "AUTO", "auto ", "none", -3))


class Fixed(Kind):
    """One value, for which no other is tried."""

    def __init__(self, good: Any) -> None:
        self.good = good

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        del world, numbers
        return self.good

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        del world, value, example
        return "either"

    def junk(self, world: World, example: Any) -> Iterator[Junk]:
        del world, example
        yield from ()


class Whole(Kind):
    """A positive integer, or with `least` any."""

    def __init__(self, good: int, *, least: float = 1, most: float = math.inf) -> None:
        self.good, self.least, self.most = good, least, most

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        del world, numbers
        return self.good

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        del world, example
        return "taken" if is_whole(value) and value >= self.least else "refused"

    def junk(self, world: World, example: Any) -> Iterator[Junk]:
        return (junk for junk in super().junk(world, example) if not is_number(junk.value) or junk.value <= self.most)


class Columns(Whole):
    """A number of columns, for which a score matrix is taken too."""

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        return "either" if is_matrix(value) else super().judge(world, value, example)


class Listed(Kind):
    """A good value, others that are taken, others that are refused, and those of which either can happen."""

    def __init__(
        self,
        good: Callable[[World], Any],
        *,
        refused: Callable[[World], Mapping[str, Any]] = lambda _: {},
        taken: Callable[[World], Mapping[str, Any]] = lambda _: {},
        either: Callable[[World], Mapping[str, Any]] = lambda _: {},
        unless: Callable[[Any], bool] = lambda _: False,
        optional: bool = False,
    ) -> None:
        self.good, self.refused, self.taken, self.either, self.unless = good, refused, taken, either, unless
        self.optional = optional

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        del numbers
        return self.good(world)

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        """Tell of values that are tried everywhere, or found at random."""
        del world, example
        return ("taken" if self.optional else "refused") if value is None else "refused"

    def junk(self, world: World, example: Any) -> Iterator[Junk]:
        yield from (junk for junk in super().junk(world, example) if not self.unless(junk.value))
        for table, verdict in ((self.refused, "refused"), (self.taken, "taken"), (self.either, "either")):
            yield from (Junk(label, value, verdict) for label, value in table(world).items())  # type: ignore[arg-type]


class Sequenced(Kind):
    """A list of two things of a kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.optional = kind.optional

    def example(self, world: World, numbers: np.random.Generator) -> Any:
        return [self.kind.example(world, numbers) for _ in range(2)]

    def judge(self, world: World, value: Any, example: Any) -> Verdict:
        if value is None:
            return "taken" if self.optional else "refused"
        if isinstance(value, (list, tuple)) and len(value) == 2:
            first = self.kind.judge(world, value[0], example[0])
            return first if first != "taken" else self.kind.judge(world, value[1], example[1])
        return "refused"

    def canonical(self, world: World, value: Any) -> Any:
        return None if value is None else [self.kind.canonical(world, x) for x in value]

    def further(self, world: World, example: Any) -> Iterator[tuple[str, Any]]:
        del world
        first, second = example
        yield from (("one", [first]), ("three", [first, second, first]), ("a tuple", (first, second)))
        yield from (("with None", [first, None]), ("with text", [first, "x"]), ("a dict", {0: first, 1: second}))
        yield from (("nested", [[first], [second]]), ("an iterator", iter(example)), ("joined", first))


# -------------------------------------------------------------------------------------------- kinds of one thing each


def table(**values: Any) -> Callable[[World], Mapping[str, Any]]:
    """Give a table that is the same everywhere."""
    return lambda _: values


def product(x: Any, y: Any) -> Any:
    width = min(x.shape[-1], y.shape[-1])  # where they differ, that is told by the loss
    return x[..., :width] @ y[..., :width].swapaxes(-1, -2)


def bilinear_of(world: World) -> Any:
    d = world.sizes["D"]
    return pnce.similarities.bilinear(world.array(np.linspace(-1.0, 1.0, d * d).reshape(d, d)))


NAMES = ("dot", "cosine", "neg_sq_euclidean", "neg_euclidean")
BAD_CRITICS: Mapping[str, Callable[[Any, Any], Any]] = {
    "that gives nothing": lambda x, y: None,  # noqa: ARG005
    "that gives a list": lambda x, y: product(x, y).tolist(),
    "that gives a number": lambda x, y: 1.5,  # noqa: ARG005
    "that gives text": lambda x, y: "score",  # noqa: ARG005
    "that gives one score": lambda x, y: (x * x).sum(),  # noqa: ARG005
    "that gives a row": lambda x, y: x[..., 0],  # noqa: ARG005
    "that gives another shape": lambda x, y: product(x, y)[..., :-1, :, None],
    "that gives truth values": lambda x, y: product(x, y) > 0,
    "that gives integers": lambda x, y: product(x, y) > 0 if isinstance(x, torch.Tensor) else product(x, y).astype(int),
    "that gives complex numbers": lambda x, y: product(x, y) * 1j,
    "that gives the other library": lambda x, y: (
        product(x, y).numpy() if isinstance(x, torch.Tensor) else torch.asarray(np.array(product(x, y)))
    ),
    "that gives objects": lambda x, y: np.array(product(x, y), dtype=object),
}


def similarity(*, called: bool = True) -> Listed:
    """Make the kind of a similarity; what a function gives is not known before it is called."""
    return Listed(
        lambda _: "dot",
        refused=lambda _: {**{name.upper(): name.upper() for name in NAMES}, **(BAD_CRITICS if called else {})},
        taken=lambda _: {**{name: name for name in NAMES}, "critic": product},
        either=lambda world: {"bilinear": bilinear_of(world)},
        unless=lambda value: callable(value) or (isinstance(value, str) and value in NAMES),
    )


def rows_of(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give the function of row statistics that changes the log-odds."""
    return lambda row: function(row.log_odds)


def objective_refused(world: World) -> Mapping[str, Any]:
    terms = pnce.objectives.Term(lambda s, p: s * p, lambda s, p: (p, s))
    bad = {
        "that gives nothing": rows_of(lambda _: None),
        "that gives a list": rows_of(lambda u: u.tolist()),
        "that gives a number": rows_of(lambda _: 1.0),
        "that gives one loss": rows_of(lambda u: u.sum()),
        "that gives a matrix": rows_of(lambda u: u[:, None]),
        "that gives truth values": lambda row: row.has_positive,
        "that gives integers": rows_of(lambda u: (u > 0) * 1),
        "that gives complex numbers": rows_of(lambda u: u * 1j),
        "that gives the other library": rows_of(
            lambda u: u.numpy() if isinstance(u, torch.Tensor) else torch.asarray(u.copy())
        ),
    }
    parameters = {
        "two": world.array(np.asarray([0.5, 1.5])[: world.sizes["N"] - 1]),
        "text": "x",
        "foreign": np.asarray(0.5) if world.library == "torch" else torch.asarray(0.5),
    }
    given = {
        f"parameter {label}": pnce.objectives.Pairwise(None, terms, parameters=(parameter,))
        for label, parameter in parameters.items()
        if label != "two" or world.sizes["N"] > 2
    }
    return {**bad, **given}


OBJECTIVE = Listed(
    lambda _: "info_nce",
    refused=objective_refused,
    taken=lambda _: {"of odds": rows_of(lambda u: u * u), "logistic": "logistic", "own": pnce.objectives.flat_nce()},
    either=lambda _: {"that gives float32": rows_of(lambda u: u.astype("f4") if hasattr(u, "astype") else u.float())},
    unless=lambda value: callable(value) or (isinstance(value, str) and value == "info_nce"),
)


def pairing_refused(world: World) -> Mapping[str, Any]:
    n = world.sizes["N"]
    make: Any = pnce.pairings.Pairing
    labels = world.array(np.arange(n + 1))
    other = np.arange(n) if world.library == "torch" else torch.arange(n)
    few = {
        "labels of other length": pnce.pairings.labels(labels),
        "labels of the other library": pnce.pairings.labels(other),
        "labels that are a list": make(lambda tile: (tile.i == tile.j, tile.i != tile.j), rows=([0] * n,)),
        "labels None": make(lambda tile: (tile.i == tile.j, tile.i != tile.j), columns=(None,)),
        "matrix of other shape": pnce.pairings.explicit(world.array(np.ones((n, n + 1)) > 0)),
    }
    rules: Mapping[str, Callable[[Any], Any]] = {
        "nothing": lambda _: None,
        "one array": lambda tile: tile.i == tile.j,
        "three arrays": lambda tile: (tile.i == tile.j,) * 3,
        "numbers": lambda tile: ((tile.i == tile.j) * 1.0, (tile.i != tile.j) * 1.0),
        "truth values alone": lambda _: (True, False),
        "other shapes": lambda tile: ((tile.i == tile.j)[:1, :, None], tile.i != tile.j),
        "longer rows": lambda tile: (tile.i == tile.j, world.array(np.ones((n, n + 1)) > 0)),
        "lists": lambda tile: ((tile.i == tile.j).tolist(), (tile.i != tile.j).tolist()),
    }
    return {**few, **{f"rule that gives {label}": make(rule) for label, rule in rules.items()}, "class": make}


PAIRING = Listed(
    lambda _: "diagonal",
    refused=pairing_refused,
    taken=lambda world: {
        "made": pnce.pairings.diagonal(),
        "labels": pnce.pairings.labels(world.array(np.arange(world.sizes["N"]) // 2)),
        "columns alone": pnce.pairings.Pairing(lambda tile: (tile.j == 0, tile.j > 0)),
    },
    either=lambda _: {"two_views": "two_views"},
    unless=lambda value: isinstance(value, str) and value == "diagonal",
)


def queue_of(world: World) -> pnce.Queue:
    valid = np.ones(world.sizes["M"]) > 0
    valid[0] = False
    rows = np.cos(np.arange(world.sizes["M"] * world.sizes["D"], dtype=np.float64))
    return pnce.Queue(world.array(rows.reshape(world.shape("MD"))), world.array(valid))


def queue_refused(world: World) -> Mapping[str, Any]:
    rows, valid, _ = queue_of(world)
    other = queue_of(World("torch" if world.library == "numpy" else "numpy", world.dtype, world.sizes))
    of_rows = {"a list": rows.tolist(), "None": None, "text": "x", "a vector": rows[0], "integers": rows > 0}
    of_valid = {
        "a list": valid.tolist(),
        "None": None,
        "text": "x",
        "shorter": valid[:-1],
        "a matrix": valid[:, None],
        "integers": valid * 1,
        "one": valid[0],
        "foreign": other.valid,
    }
    return {
        **{f"rows {label}": pnce.Queue(bad, valid) for label, bad in of_rows.items()},
        **{f"valid {label}": pnce.Queue(rows, bad) for label, bad in of_valid.items()},
        "a tuple": (rows, valid),
        "foreign": other,
    }


def is_matrix(value: Any) -> bool:
    return isinstance(value, (np.ndarray, torch.Tensor)) and len(value.shape) == 2


def labelled_queue_of(world: World) -> pnce.Queue:
    return queue_of(world)._replace(labels=world.array(np.arange(world.sizes["M"]) % 2))


def labelled_queue_refused(world: World) -> Mapping[str, Any]:
    queue = labelled_queue_of(world)
    labels = queue.labels
    assert labels is not None
    bad = {"a list": labels.tolist(), "text": "x", "shorter": labels[:-1], "a matrix": labels[:, None]}
    bad |= {"None": None, "floats": labels * 1.5, "truth values": labels > 0, "foreign": other_library(world, labels)}
    return {
        **{f"labels {label}": queue._replace(labels=value) for label, value in bad.items()},
        "rows a list": queue._replace(rows=queue.rows.tolist()),
        "valid None": queue._replace(valid=None),
        "a tuple": tuple(queue),
    }


def other_library(world: World, x: Any) -> Any:
    return torch.asarray(np.asarray(x)) if world.library == "numpy" else np.asarray(x)


LABELLED_QUEUE = Listed(labelled_queue_of, refused=labelled_queue_refused, unless=is_matrix)
OPTIONAL_LABELLED_QUEUE = Listed(labelled_queue_of, refused=labelled_queue_refused, unless=is_matrix, optional=True)
DIRECTIONS = Listed(
    lambda _: ("query_to_key", "key_to_key"),
    refused=lambda _: {
        repr(x): x for x in ((), ("query",), ("query_to_key", "query_to_key"), (1,), "key", ("key_to_key", None))
    },
    taken=lambda _: {repr(x): x for x in (["key_to_key"], "query_to_query")},
    unless=lambda value: isinstance(value, (str, list)),
)
QUEUE = Listed(queue_of, refused=queue_refused, unless=is_matrix)
OPTIONAL_QUEUE = Listed(queue_of, refused=queue_refused, unless=is_matrix, optional=True)
PERCENTILES = Listed(
    lambda _: (10.0, 90.0),
    refused=lambda _: {
        str(x): x
        for x in (
            *((90.0, 10.0), (-1.0, 50.0), (10.0, 101.0), (math.nan, 90.0), (10.0, math.nan), (0, 10**400)),
            *((10.0,), (0.0, 50.0, 100.0), ("a", "b"), (False, True), (None, 90.0), {10.0: 90.0}),
        )
    },
    taken=lambda _: {str(x): x for x in ([10.0, 90.0], (50, 50), (0, 100))},
    unless=lambda value: isinstance(value, list),
)


def functional(good: Callable[..., Any], *, optional: bool = False) -> Listed:
    """Make the kind of a function."""
    return Listed(lambda _: good, unless=callable, optional=optional)


def good_rule(tile: Any) -> tuple[Any, Any]:
    return tile.i == tile.j, tile.i != tile.j


ARGNUMS = Listed(
    lambda _: 0,
    refused=lambda _: {
        repr(x): x for x in (7, (), [], (0, 0), (0, -2), 2, -3, (0, 5), (0.0,), ("0",), [None], (True,))
    },
    taken=lambda _: {repr(x): x for x in (1, -1, (0,), (0, 1), [1, 0], range(2))},
    unless=lambda value: isinstance(value, (int, range)) and not isinstance(value, bool),
)
MODULE = Listed(
    lambda _: "array_api_strict",
    refused=lambda _: {repr(x): x for x in ("a.b", ".a", "a b", "1a", "numpy.linalg", "a-b")},
    taken=lambda _: {repr(x): x for x in ("numpy", "torch", "__main__")},
    unless=lambda value: isinstance(value, str) and value.isidentifier(),
)


OWN_ADAPTER: Any = type(
    "OwnAdapter",
    (type(_registry.load_backend("numpy")),),
    {"__init__": lambda _: None, **dict.fromkeys(("name", "version", "devices", "dtypes"), "own")},
)
"""A class of adapters that has all verbs as a class."""

ADAPTER = Listed(
    lambda _: None,
    refused=lambda _: {"class": OWN_ADAPTER, "protocol": pnce.Adapter},
    taken=lambda _: {"own": OWN_ADAPTER()},
    optional=True,
)

GROUP = run_ranks(1, lambda group: group)[0]
"""A communicator of one rank."""

# ------------------------------------------------------------------------------------------------------- the parameters

EMBEDDINGS = Array("ND")
MATRIX_MASK = Array("NK", "b", optional=True)

KINDS: Mapping[str, Kind] = {
    # embeddings
    **dict.fromkeys(("query", "positive_key", "key", "query_a", "query_b", "key_a", "key_b"), EMBEDDINGS),
    **dict.fromkeys(("view_a", "view_b", "further_views", "image", "text", "context", "embeddings"), EMBEDDINGS),
    **dict.fromkeys(("anchor", "positive", "negative", "x", "y", "example"), EMBEDDINGS),
    "candidate": EMBEDDINGS,
    **dict.fromkeys(("teacher_query", "teacher_key", "guide_query", "guide_key"), Array("NE")),
    "log_u": Array("N"),
    "negative_keys": Array("MD", optional=None, also=(3,)),
    "targets": Array("SNE"),
    "projections": Array("SED"),
    "prototypes": Array("RD"),
    "concentrations": Array("R"),
    "assignments": Array("N", "i"),
    "labels": Array("N", "i"),
    "queue": QUEUE,
    "support": QUEUE,
    "keys": Array("MD", optional=None),
    "key_labels": Array("M", "i"),
    # scores
    "scores": Array("NK"),
    "positives": Positives("N"),
    "grades": Array("N", "fib"),
    "u": Array("N"),
    "log_mean": Number(-0.5, array=True, optional=True),
    "log_marginal": Array("N"),
    "data_scores": Array("N"),
    "noise_scores": Array("NK"),
    "data_log_q": Array("N", number=True),
    "noise_log_q": Array("NK", number=True, also=(1,)),
    "log_q": Array("NK", number=True, also=(1,)),
    "entropy": Number(1.5, array=True),
    "log_baseline": Number(0.5, array=True),
    # what all have
    "mask": Array("NN", "b", optional=True),
    "weights": Array("N", "fib", optional=True, least=0.0),
    "reduction": Choice("mean", "sum", "none"),
    "block_size": Block(),
    "precision": Choice("high", "highest", optional=True),
    "across": Listed(lambda _: None, unless=lambda value: isinstance(value, pnce.Ranks), optional=True),
    "temperature": Temperature(0.5, 0.0, array=True),
    "similarity": similarity(),
    # options
    **dict.fromkeys(("symmetric", "balance", "detach_weights", "include_positive", "normalized"), Flag()),
    "negative_only": Flag(),
    "teacher_temperature": Number(0.5, 0.0, optional=True),
    **dict.fromkeys(("strategy", "margin_strategy"), Choice("absolute", "relative")),
    **dict.fromkeys(("hardness", "beta"), Number(0.5, -5e-324)),
    "tau_plus": Number(0.25, -5e-324, 0.9999999),
    "floor": Listed(lambda _: -2.0, unless=lambda value: not isinstance(value, (str, list, tuple, dict))),
    "gamma": Number(0.5, 0.0, 1.0),
    "rho": Number(0.5, optional=True),
    "directions": DIRECTIONS,
    "has_aux": Listed(lambda _: False, either=lambda _: {"True": True}, unless=lambda value: isinstance(value, bool)),
    "multi_positive": Choice("each", "pooled", "separate"),
    "average": Choice("all", "nonzero"),
    "form": Choice("log", "detach"),
    "direction": Choice("a_to_b", "b_to_a"),
    "stop_gradient": Choice("first", "second", optional=True),
    "mining": Choice("batch_all", "batch_hard", "semi_hard"),
    "negatives": Choice("batch", "views"),
    "divide_by": Choice("rows", "pairs", "active"),
    **dict.fromkeys(("margin", "alpha"), Number(0.25, array=True)),
    "positive_margin": Number(0.25, array=True),
    "l2": Number(0.125, array=True),
    **dict.fromkeys(("positive_power", "negative_power"), Power()),
    "sigma": Number(1.5, 0.0, array=True),
    **dict.fromkeys(("smoothing", "power", "t"), Number(1.5, 0.0)),
    **dict.fromkeys(("clip", "base_temperature"), Number(1.5, 0.0, optional=True)),
    "couples_rows": Flag(optional=True),
    "rate": Number(0.25, 0.0, 1.0),
    "nu": Number(0.75, 0.0),
    "n_columns": Whole(4),
    **dict.fromkeys(("logit_scale", "scale"), Number(2.0, 0.0, array=True)),
    "max_logit_scale": Number(3.0, 0.0, optional=True),
    "logit_bias": Number(-0.5, array=True),
    "bias": Number(-0.5, array=True),
    "percentiles": PERCENTILES,
    "size": Whole(3, most=100),
    "k": Whole(2),
    # parts
    "objective": OBJECTIVE,
    "pairing": PAIRING,
    "weight": Array("DD"),
    "factors": Array("K"),
    "offsets": Array("K"),
    "rows": Array("N", "i"),
    "columns": Array("K", "i", optional=True),
    "valid": Array("K", "b", optional=True),
    # differentiation and backends
    "fn": functional(lambda x, y: (x * y).sum()),
    "argnums": ARGNUMS,
    "module": MODULE,
    "adapter": ADAPTER,
    # ranks
    "group": Listed(lambda _: GROUP, unless=lambda value: isinstance(value, (str, tuple, pnce.Communicator))),
    "gradients": Choice("averaged", "summed"),
    "check": Flag(),
    # the classes
    "rule": functional(good_rule),
    **dict.fromkeys(("one_per_row", "one_per_column", "needs_negative", "wide", "inner_product", "normalize"), Flag()),
    "prepare": functional(lambda x, y, scale: ((x * scale,), (y,))),
    "pullback": functional(lambda rows, columns, g: ((g @ columns[0],), (g.T @ rows[0],)), optional=True),
    "slopes": functional(lambda row: (row.log_odds, None, None, None), optional=True),
}
"""What a parameter of that name takes, unless its function says otherwise."""

Situation: TypeAlias = Mapping[str, Kind | None]
"""What the parameters of a function take if not what their names say; None leaves one out."""

MARGIN_FORM = {"form": Choice("margin", "soft")}
VIEWS = {"mask": Array("VV", "b", optional=True), "keys": None}
WIDE = {"mask": MATRIX_MASK}
SQUARE = {"scores": Array("NN")}
ROWS_OF_BASELINES = {"log_baseline": Array("N", number=True, also=(0, 2))}
ALPHA = {"alpha": Number(0.25, -5e-324, 1.0)}
TUPLE = Listed(lambda _: (), unless=lambda value: isinstance(value, tuple))
QUEUE_ROWS = Array("MD")
CLUSTERINGS: Situation = {
    "prototypes": Sequenced(Array("RD")),
    "assignments": Sequenced(Array("N", "i")),
    "concentrations": Sequenced(Array("R")),
    "mask": Sequenced(Array("NR", "b", optional=True)),
    "queue": Array("MD", optional=True),
}

OF_KEYS = {"mask": Array("NM", "b", optional=True)}
LABELLED: Sequence[Situation] = (
    {"keys": None, "key_labels": None},
    OF_KEYS,
    {"mask": None, "keys": OPTIONAL_LABELLED_QUEUE, "key_labels": None},
    {**OF_KEYS, "keys": QUEUE},
)

SITUATIONS: Mapping[str, Sequence[Situation]] = {
    "info_nce": (
        {"negative_keys": None},
        {"positives": None, "symmetric": None, "mask": Array("NM", "b", optional=True)},
        {
            "negative_keys": Array("NMD", optional=None, also=(2,)),
            "positives": None,
            "symmetric": None,
            "mask": Array("NM", "b", optional=True),
        },
    ),
    "nt_xent": (
        {**VIEWS, "further_views": None},
        {"mask": Array("UU", "b", optional=True), "keys": None},
        {"mask": None, "further_views": None, "keys": OPTIONAL_QUEUE},
        {"mask": None, "keys": Array("MD", optional=True)},
    ),
    **dict.fromkeys(("flat_nce", "dcl", "dclw"), (VIEWS, {"mask": None, "keys": Array("MD", optional=True)})),
    **dict.fromkeys(("supcon", "nca", "soft_nearest_neighbor", "contrastive"), LABELLED),
    "contrast": (
        {"y": None, "hardness": None},
        {"y": Array("ND", optional=True), "hardness": None},
        {"y": None, "objective": Fixed("info_nce")},
    ),
    "hcl": ({"mask": VIEWS["mask"]},),
    "relic": (
        {"keys": None, "mask": Array("NN", "b", optional=True)},
        {"mask": None, "keys": OPTIONAL_QUEUE},
        {"mask": None, "keys": Array("MD", optional=True)},
    ),
    "gist_embed": ({"margin": Number(0.25)},),
    "pairings.soft": ({"targets": Array("NK")},),
    "pairings.weighted": ({"pairing": Fixed(pnce.pairings.diagonal()), "weights": Array("NK")},),
    "pairings.smoothed": ({"smoothing": Number(0.25, -5e-324, 0.9999999)},),
    "pairings.overlap": ({"rows": Array("NE", "b"), "columns": Array("KE", "b", optional=True)},),
    "pairings.teacher": (
        {
            "rows": Array("NE"),
            "columns": Array("KE", optional=True),
            "temperature": Number(0.5, 0.0, optional=True),
        },
    ),
    "pairings.guided": ({"rows": Array("NE"), "columns": Array("KE"), "margin": Number(0.25)},),
    "siglip": (
        {"negative_only": None},
        {"negative_only": Fixed(good=True), "text": Array("KD"), "mask": Array("NK", "b", optional=True)},
    ),
    "clip": ({"logit_scale": Number(2.0, 0.0, array=True, loose=True)}, {"max_logit_scale": Fixed(None)}),
    "moco": tuple({"mask": Array("NM", "b", optional=True), "queue": kind} for kind in (QUEUE, QUEUE_ROWS)),
    "nnclr": (
        {"negatives": None},
        {"negatives": None, "support": QUEUE_ROWS},
        {
            "mask": VIEWS["mask"],
            "negatives": Listed(lambda _: "views", either=table(batch="batch")),
            "symmetric": None,
        },
    ),
    "proto_nce": (
        {"mask": Array("NR", "b", optional=True), "queue": OPTIONAL_QUEUE},
        CLUSTERINGS,
        {"key": None, "queue": None, "temperature": None, "mask": Array("NR", "b", optional=True)},
    ),
    "concentrations": ({"temperature": Number(0.5, 0.0)},),
    "queue_init": ({"labels": Array("N", "i", optional=True)},),
    "queue_push": (
        {"rows": Array("MD"), "labels": None},
        {"rows": Array("MD"), "queue": LABELLED_QUEUE, "labels": Array("M", "i")},
    ),
    "two_tower": (
        {
            **dict.fromkeys(("negative_candidates", "negative_ids", "negative_log_q")),
            "ids": Array("N", "i", optional=True),
            "log_q": Array("N", optional=True),
        },
        {
            "negative_candidates": Array("MD", optional=None),
            "ids": Array("N", "i", optional=None),
            "negative_ids": Array("M", "i"),
            "log_q": Array("N", optional=None),
            "negative_log_q": Array("M"),
            "mask": None,
        },
    ),
    **dict.fromkeys(("cosent", "angle"), ({"mask": Array("N", "b", optional=True)},)),
    "from_scores.cosent": ({"scores": Array("N"), "mask": Array("N", "b", optional=True)},),
    "triplet": ({**MARGIN_FORM, "mask": Array("N", "b", optional=True)},),
    "triplet_from_labels": tuple({**MARGIN_FORM, **situation} for situation in LABELLED),
    **dict.fromkeys(
        ("grad", "value_and_grad"),
        ({}, {"fn": Fixed(lambda x, y: ((x * y).sum(), "aux")), "has_aux": Fixed(good=True)}),
    ),
    "stop_gradient": ({"x": Some()},),
    "matryoshka": (
        {
            "loss": functional(pnce.info_nce),
            **{name: Fixed(good) for name, good in (("widths", (2, 3)), ("weights", (1.0, 0.5)), ("arrays", ()))},
        },
    ),
    **{
        f"from_scores.{name}": (WIDE, {**WIDE, "positives": Positives("NK")})
        for name in ("info_nce", "flat_nce", "dcl", "dclw", "supcon", "nca", "logistic", "contrastive")
    },
    "from_scores.triplet": ({**WIDE, **MARGIN_FORM},),
    "from_scores.clip": (SQUARE,),
    "from_scores.relic": (SQUARE,),
    "bounds.leave_one_out": (SQUARE,),
    **dict.fromkeys(
        (
            *(f"bounds.{name}" for name in ("info_nce", "dual_critic", "dual", "flo", "fdv", "dv", "mine", "nwj")),
            *(f"bounds.{name}" for name in ("js", "js_mi", "smile", "club")),
            "diagnostics.headroom",
        ),
        (WIDE,),
    ),
    "bounds.info_nce_anchor": ({**WIDE, "form": Choice("bound", "plug_in")},),
    "bounds.tuba": (WIDE, {**WIDE, **ROWS_OF_BASELINES}),
    "bounds.interpolated": ({**WIDE, **ALPHA}, {**WIDE, **ALPHA, **ROWS_OF_BASELINES}),
    "bounds.barber_agakov": ({"scores": Array("NK", also=(1,))}, {"scores": Array("N", also=(2,))}),
    "bounds.vub": ({"scores": Array("NK", also=(1,))}, {"scores": Array("N", also=(2,))}),
    "bounds.log_n_ceiling": (
        {
            "scores": Listed(
                lambda world: world.array(np.ones(world.shape("NK"))),
                unless=lambda x: is_matrix(x) or (is_whole(x) and x > 0),
            ),
            **WIDE,
        },
        {"scores": Columns(5), "positives": None, "mask": None},
    ),
    **{f"density.{name}": (WIDE,) for name in ("info_nce_anchor", "local_nce", "negative_sampling", "log_partition")},
    "density.ranking_nce": (
        {
            **WIDE,
            "data_log_q": Array("N", number=True, optional=None),
            "noise_log_q": Array("NK", number=True, also=(1,), optional=None),
        },
    ),
    "density.sampled_softmax": (
        {**WIDE, "include_positive": Flag(usual=True)},
        {**WIDE, "data_log_q": Array("N", number=True, optional=True), "include_positive": Fixed(good=False)},
    ),
    "density.full_softmax": ({**WIDE, "targets": Array("N", "i")},),
    "density.self_normalization": ({**WIDE, "log_q": Array("NK", optional=True, number=True, also=(1,))},),
    **{f"diagnostics.{name}": (WIDE,) for name in ("effective_sample_size", "top_k_accuracy")},
    **{f"similarities.{name}": ({"similarity": similarity(called=False)},) for name in ("normalized", "resolve")},
    "similarities.scaled_columns": ({"similarity": similarity(called=False)},),
    "similarities.shifted_columns": ({"similarity": similarity(called=False)},),
    "similarities.max_sim": (
        {"query_mask": Array("NM", "b", optional=True), "document_mask": Array("KM", "b", optional=True)},
    ),
    "similarities.Similarity": ({"scores": functional(product)},),
    "pairings.index": ({"positives": Array("N", "i")},),
    "pairings.explicit": ({"positives": Array("NK", "b")},),
    "pairings.Pairing": ({**dict.fromkeys(("rows", "columns", "pairs"), TUPLE)},),
    "objectives.triplet": (MARGIN_FORM,),
    "objectives.resolve": (
        {
            "objective": Listed(
                lambda _: "info_nce", unless=lambda x: callable(x) or (isinstance(x, str) and x == "info_nce")
            )
        },
    ),
    "objectives.Objective": ({"rows": functional(lambda row: row.log_odds), "label": None},),
    "objectives.Pairwise": (
        {
            "positive": functional(lambda s: s, optional=True),
            "negative": functional(lambda s: s, optional=True),
            "parameters": TUPLE,
            "label": None,
        },
    ),
}
"""The functions whose parameters are not all what their names say."""

RECORDS = {
    *(
        "Adapter",
        "Communicator",
        "Queue",
        "Ranks",
        "density.SelfNormalization",
        "objectives.RowStatistics",
        "objectives.Term",
    ),
    "pairings.Tile",
}
"""Named tuples, protocols, what `across` makes: they hold what they are given, and who takes them looks into them."""

ALIASES = {
    *("similarities.Operands", "similarities.Pullback", "similarities.Scores"),
    *(f"typing.{name}" for name in pnce.typing.__all__ if callable(getattr(pnce.typing, name))),
}
"""Types."""

CLUSTERED = {"prototypes", "assignments", "concentrations", "mask"}
"""Of these, one that is a sequence asks for all to be: the error names the one that is found to differ."""


PARTS: Mapping[str, Sequence[str]] = {"objective": ("parameters",), "similarity": ("weight",)}
"""What the errors of things name that were made apart, and do not fit."""


# -------------------------------------------------------------------------------------------------------- the functions


def public_modules() -> Iterator[tuple[str, ModuleType]]:
    yield "", pnce
    yield from ((name, x) for name in pnce.__all__ if inspect.ismodule(x := getattr(pnce, name)))


def public_names() -> Iterator[tuple[str, Any]]:
    for prefix, module in public_modules():
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing):
                yield f"{prefix}.{name}".lstrip("."), thing


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    name: thing
    for name, thing in public_names()
    if name not in RECORDS | ALIASES and name != "backends_available"  # which takes nothing
}


@cache
def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(FUNCTIONS[name]).parameters)


@dataclass(frozen=True)
class Call:
    """A good call of a function: what each parameter takes, and what it is given."""

    name: str
    world: World
    kinds: Mapping[str, Kind]
    given: Mapping[str, Any]

    def run(self, **changed: Any) -> Any:
        """Call the function, with some arguments exchanged."""
        arguments = {**self.given, **changed}
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for name, parameter in parameters_of(self.name).items():
            if name not in arguments:
                continue
            if parameter.kind is parameter.KEYWORD_ONLY:
                keywords[name] = arguments[name]
            else:
                positional.append(arguments[name])
        made = FUNCTIONS[self.name](*positional, **keywords)
        if self.name not in {"grad", "value_and_grad"}:
            return made
        x, y = (self.world.array(np.linspace(-1.0, 1.0, 3) * scale) for scale in (1.0, 0.5))
        return made(x, y)

    def without_options(self) -> Call:
        """Give the call with None for all that may be None, if that is a good one."""
        optional = [name for name, kind in self.kinds.items() if kind.judge(self.world, None, None) == "taken"]
        bare = replace(self, given={**self.given, **dict.fromkeys(optional)})
        try:
            bare.run()
        except (TypeError, ValueError):
            return self
        return bare

    def has_arrays_beside(self, names: Collection[str]) -> bool:
        """Tell whether there are other arrays beside some arguments."""
        others = (value for name, value in self.given.items() if name not in names)
        return any(isinstance(x, (np.ndarray, torch.Tensor, pnce.Queue, list)) for x in others)


def call_of(name: str, situation: Situation, world: World) -> Call:
    numbers = np.random.default_rng(world.seed)
    kinds = {p: situation[p] if p in situation else KINDS[p] for p in parameters_of(name)}
    chosen = {p: kind for p, kind in kinds.items() if kind is not None}
    return Call(name, world, chosen, {p: kind.example(world, numbers) for p, kind in chosen.items()})


def situations_of(name: str) -> Sequence[Situation]:
    return SITUATIONS.get(name, ({},))


# ----------------------------------------------------------------------------------------------------- what is promised


def leaves(result: Any) -> list[Any]:
    if not isinstance(result, (tuple, list)):
        return [result]
    return [leaf for part in result if part is not None for leaf in leaves(part)]


VALUES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("bounds.dual_critic", "density.log_partition"), ("N",)),
    "density.recover_log_prob": ("NK",),
    "concentrations": ("R",),
    "bounds.mine": ("", ""),
    "density.self_normalization": ("", "", ""),
    "queue_push": ("MD", "M"),
    "stop_gradient": ("ND",),
    **dict.fromkeys(("cosent", "angle", "from_scores.cosent"), ("",)),
    **dict.fromkeys(("diagnostics.alignment", "diagnostics.uniformity", "diagnostics.headroom"), ("",)),
    **{f"bounds.{name}": ("",) for name in pnce.bounds.__all__ if name not in {"dual_critic", "mine", "log_n_ceiling"}},
}
"""The axes of what a function without a `reduction` gives."""

OBJECTIVES = (
    *(pnce.objectives.Objective, pnce.objectives.Pairwise),
    *(type(make()) for make in (pnce.objectives.relic, pnce.objectives.triplet, pnce.objectives.hard_negatives)),
)

TYPES_OF_RESULTS: Mapping[str, type | tuple[type, ...]] = {
    "matryoshka": type(pnce.matryoshka(pnce.info_nce, (2,))),
    "across": pnce.Ranks,
    "queue_init": pnce.Queue,
    "register_backend": type(None),
    "bounds.log_n_ceiling": (float, np.ndarray, torch.Tensor),
    "grad": (np.ndarray, torch.Tensor, tuple),
    "value_and_grad": tuple,
    **{f"similarities.{name}": pnce.similarities.Similarity for name in pnce.similarities.__all__},
    **{f"pairings.{name}": pnce.pairings.Pairing for name in pnce.pairings.__all__},
    **{f"objectives.{name}": OBJECTIVES for name in pnce.objectives.__all__},
}
"""The types of what a function gives that makes something else than numbers."""


def check_result(call: Call, arguments: Mapping[str, Any], result: Any, *, sizes_kept: bool) -> None:
    """Check that a result is of the documented kind, and holds no NaN."""
    if call.name == "stop_gradient" and isinstance(result, np.generic):
        return
    if call.name in TYPES_OF_RESULTS:
        assert isinstance(result, TYPES_OF_RESULTS[call.name])
        return
    library = [type(leaf) for leaf in leaves(result)]
    assert all(issubclass(t, tuple(TYPES.values())) for t in library), library
    assert not any(
        bool(leaf.isnan().any() if isinstance(leaf, torch.Tensor) else np.isnan(leaf).any())
        for leaf in leaves(result)
        if kind_of(leaf) == "f"
    ), result
    if not sizes_kept:
        return
    assert all(call.world.owns(leaf) for leaf in leaves(result))
    shapes = [tuple(leaf.shape) for leaf in leaves(result)]
    if call.name in VALUES:
        of_labels = ("M",) if call.name == "queue_push" and "labels" in arguments else ()
        assert shapes == [call.world.shape(axes) for axes in (*VALUES[call.name], *of_labels)]
        return
    assert "reduction" in arguments, f"{call.name}: list what it gives in VALUES or TYPES_OF_RESULTS"
    rows = call.world.sizes["N"]
    if call.name == "sogclr":
        state, shapes, result = result[1], shapes[:1], result[0]
        assert tuple(state.shape) == (rows,)
    if call.name in {"nt_xent", "flat_nce", "dcl", "dclw", "hcl"}:
        rows *= 3 if "further_views" in arguments else 2
    elif call.name == "nnclr" and arguments.get("negatives") == "views":
        rows *= 2
    assert shapes == [(rows,) if arguments["reduction"] == "none" else ()]
    assert str(result.dtype).endswith(call.world.dtype)


def in_numpy(x: Any) -> np.ndarray:
    """Make an array of NumPy, which has no bfloat16."""
    return np.asarray(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x)


def numbers_of(result: Any) -> list[np.ndarray]:
    return [in_numpy(leaf).astype(np.float64) for leaf in leaves(result) if isinstance(leaf, (float, *TYPES.values()))]


def assert_same(call: Call, got: Any, wanted: Any) -> None:
    rtol = 1e-9 if call.world.dtype == "float64" else 2e-3
    for a, b in zip(numbers_of(got), numbers_of(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def is_named(call: Call, names: Sequence[str], message: str) -> bool:
    """Tell whether a message names one of some arguments, and says what was expected."""
    if call.name == "stop_gradient" and "no backend is registered" in message:
        return True
    says = re.match(r"[^:]+: .*expected ", message, re.DOTALL)
    return says is not None and re.search(rf"\b({'|'.join(names)})\b", message) is not None


def check(call: Call, junk: Mapping[str, Junk]) -> None:
    """Exchange some arguments, and see that what is to happen happens."""
    changed = {name: j.value for name, j in junk.items()}
    verdicts = {
        name: "either" if j.verdict == "foreign" and not call.has_arrays_beside(junk) else j.verdict
        for name, j in junk.items()
    }
    refused = not {"refused", "foreign"}.isdisjoint(verdicts.values())
    told = f"{call.name}, {', '.join(f'{name} {j.label}' for name, j in junk.items())}"
    # Some are exponents.
    extreme = any(is_number(value) and (is_extreme(value) or abs(value) > 80) for value in changed.values())
    result, error = None, None
    try:
        with np.errstate(over="ignore" if extreme else "warn"):
            result = call.run(**changed)
    except (TypeError, ValueError) as found:
        error = found
    if error is None:
        assert not refused, f"{told}: taken"
        taken = "either" not in verdicts.values()
        check_result(call, {**call.given, **changed}, result, sizes_kept=taken)
        if taken and "adapter" not in junk:
            canonical = {name: call.kinds[name].canonical(call.world, value) for name, value in changed.items()}
            with np.errstate(over="ignore" if extreme else "warn"):
                assert_same(call, result, call.run(**canonical))
        return
    assert refused or "either" in verdicts.values() or len(junk) > 1, f"{told}: refused by {error!r}"
    # Where only lengths do not fit, or a choice is another, the error may name the argument that does not fit to it.
    vague = any(j.found for j in junk.values()) or (call.name == "proto_nce" and CLUSTERED & {*junk})
    certain = refused and "either" not in verdicts.values() and not vague
    names = [*(junk if certain else call.kinds), *(part for name in junk for part in PARTS.get(name, ()))]
    assert is_named(call, names, str(error)), f"{told}: not named by {error!r}"


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the registry as it was."""
    for name in ("_registered", "_loaded", "_by_type"):
        monkeypatch.setattr(_registry, name, dict(getattr(_registry, name)))


# ------------------------------------------------------------------------------------------------------------ the tests


def test_every_public_name_is_known() -> None:
    """Every public callable is fuzzed, or is listed as something that checks nothing; and no list is out of date."""
    names = {name for name, _ in public_names()}
    assert RECORDS | ALIASES | {*SITUATIONS} | {*VALUES} <= names
    classes = {name for name in FUNCTIONS if isinstance(FUNCTIONS[name], type)}
    assert classes == {
        *("similarities.Similarity", "pairings.Pairing", "objectives.Objective", "objectives.Pairwise"),
    }
    for name in FUNCTIONS:
        for situation in situations_of(name):
            unknown = {*parameters_of(name)} - {*KINDS} - {*situation}
            assert not unknown, f"{name}: give a kind to {unknown}"
        left_out = set.intersection(*({p for p, kind in s.items() if kind is None} for s in situations_of(name)))
        assert left_out <= {"label"}, f"{name}: {left_out} are left out everywhere"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_argument(name: str) -> None:
    """Every value for every parameter, in otherwise good calls; of what the first call tried, others try a third."""
    for place, situation in enumerate(situations_of(name)):
        call = call_of(name, situation, World())
        check_result(call, call.given, call.run(), sizes_kept=True)
        for parameter, kind in call.kinds.items():
            step = 3 if place and parameter not in situation else 1
            for junk in [*kind.junk(call.world, call.given[parameter])][place % step :: step]:
                check(call, {parameter: junk})


def numbers_in(result: Any) -> list[np.ndarray]:
    """Give the floating-point arrays of a result, of which an objective has none."""
    return [
        np.asarray(leaf)
        for leaf in leaves(result)
        if isinstance(leaf, (np.ndarray, torch.Tensor)) and kind_of(leaf) == "f"
    ]


SIMILARITIES: Sequence[Mapping[str, Any]] = ({}, {"similarity": "cosine"})


@pytest.mark.parametrize("library", sorted(TYPES))
def test_the_value_of_an_array_of_one_entry(library: str) -> None:
    """As a temperature, margin or scale, NaN makes NaN; a number not above its limit is an error, in an array too."""
    world = World(library=library)
    for name in FUNCTIONS:
        for situation in situations_of(name):
            call = call_of(name, situation, world)
            for parameter in (p for p, kind in call.kinds.items() if isinstance(kind, Number) and kind.array):
                for options in SIMILARITIES[: 1 + ("similarity" in call.given)]:
                    told = f"{name}, {parameter}, {options}"
                    with np.errstate(all="ignore"):
                        results = [
                            call.run(**options, **{parameter: world.array(np.asarray(x))}) for x in (math.nan, 0.7, 0.9)
                        ]
                    for found, one, other in zip(*map(numbers_in, results), strict=True):
                        assert np.isnan(found).any() or np.array_equal(one, other), told
                    for number in call.kinds[parameter].beyond_limits():
                        with pytest.raises(ValueError, match=rf"{parameter}: expected a finite number greater"):
                            call.run(**options, **{parameter: world.array(number)})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_unknown_keyword(name: str) -> None:
    call = call_of(name, situations_of(name)[0], World())
    with pytest.raises(TypeError, match="colour"):
        FUNCTIONS[name](*call.given.values(), colour="red")


@pytest.mark.parametrize("bad", [1.0, "text", [], [[1.0]], {}, None, np.asarray([1]), np.asarray(["a"]), Duck()])
def test_what_is_differentiated(bad: Any) -> None:
    """The arguments of a differentiated function have the names of the caller; the error says who refuses them."""
    with pytest.raises(TypeError, match=r"value_and_grad: expected|no backend is registered"):
        pnce.grad(lambda x: x.sum())(bad)


@pytest.mark.parametrize("module", ["", ".", "a.b", "no_such_module", "__main__", "numpy"])
def test_listing_after_registering(module: str) -> None:
    """What is registered, or refused, never breaks the list of what is there."""
    try:
        pnce.register_backend(module)
    except ValueError:
        assert not module.isidentifier() or module == "no_such_module"
    assert "numpy" in pnce.backends_available()
    assert "no_such_module" not in pnce.backends_available()


def strange(numbers: np.random.Generator) -> np.ndarray:
    """Make an array of any shape and dtype."""
    shape = numbers.integers(0, 7, size=numbers.integers(0, 5))
    return (numbers.integers(1, 65, size=shape) / 16).astype(numbers.choice([*"?bHqefdDU"]))


@pytest.mark.parametrize("library", sorted(TYPES))
def test_two_arguments(library: str) -> None:
    """Each pair of parameters of each function, with values found at random, others left out, at any sizes."""
    numbers = np.random.default_rng(1)
    for name in FUNCTIONS:
        for situation in situations_of(name):
            rows = int(numbers.integers(2, 6))
            sizes = sizes_of(rows, *(int(numbers.integers(*ends)) for ends in ((rows, 8), (1, 5), (1, 7))))
            world = World(library, str(numbers.choice(["float64", "float32"])), sizes, int(numbers.integers(100)))
            whole = call_of(name, situation, world)
            bare = whole.without_options()
            tried = {p: [*kind.junk(world, whole.given[p])] for p, kind in whole.kinds.items()}
            for pair in combinations([p for p, junk in tried.items() if junk], 2):
                check((whole, bare)[numbers.integers(2)], {p: found(whole, p, tried[p], numbers) for p in pair})


def found(call: Call, parameter: str, tried: Sequence[Junk], numbers: np.random.Generator) -> Junk:
    """Choose what is tried: half of it is taken, some is no known value."""
    kind, chance = call.kinds[parameter], numbers.random()
    if chance < 0.1 and not isinstance(kind, Listed):
        value = strange(numbers)
        return Junk(repr(value), value, kind.judge(call.world, value, call.given[parameter]), found=True)
    if isinstance(kind, Number) and not kind.array and call.world.dtype == "float32":
        # What is no scale of the scores is not held to the range of their dtype.
        tried = [junk for junk in tried if not is_number(junk.value) or not is_extreme(junk.value)]
    fitting = [junk for junk in tried if junk.verdict in {"taken", "either"}] if chance < 0.6 else []
    fitting = fitting or [*tried]
    return fitting[numbers.integers(len(fitting))]


# ------------------------------------------------------------------------------------------------------ torch.compile

PASSED_ON = {
    *("angle", "contrast", "cpc", "dcl", "flat_nce", "joint_info_nce", "moco", "nca", "nnclr", "nt_xent", "proto_nce"),
    *("soft_nearest_neighbor", "two_tower"),
}
"""The losses whose one number is the temperature, or scale, which they pass on as other losses do."""


def numbers_of_calls() -> Iterator[Any]:
    """Give a call of each function that takes numbers of its own, these, and whether they are symbols at first."""
    for name in FUNCTIONS:
        if name in PASSED_ON or name.startswith(("objectives.", "from_scores.")):  # the numbers of losses, again
            continue
        call = call_of(name, situations_of(name)[0], World("torch", sizes=sizes_of(columns=4)))
        kinds = {
            p: kind for p, kind in call.kinds.items() if isinstance(kind, Number) or getattr(kind, "number", False)
        }
        numbers = {p: call.given[p] if isinstance(call.given[p], float) else 0.5 for p in kinds}
        if numbers:
            yield pytest.param(
                call, numbers, None if name in {"info_nce", "hcl", "siglip", "triplet"} else True, id=name
            )


def in_a_loss(made: Any) -> Any:
    """Compute a loss with a pairing; anything else is a result already."""
    x, y = (torch.linspace(-1.0, end, 12, dtype=torch.float64).reshape(4, 3) for end in (1.0, 0.5))
    return pnce.contrast(x, y, objective="info_nce", pairing=made) if isinstance(made, pnce.pairings.Pairing) else made


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(("call", "numbers", "dynamic"), [*numbers_of_calls()])
def test_torch_compile_of_numbers_that_change(call: Call, numbers: Mapping[str, float], dynamic: bool | None) -> None:  # noqa: FBT001
    """One graph for the first value and one for all others, or one for all if all numbers are symbols."""
    torch.compiler.reset()
    for leaf in leaves([*call.given.values()]):
        if isinstance(leaf, torch.Tensor):
            torch._dynamo.mark_static(leaf)  # noqa: SLF001  (their sizes are no symbols, which take their time)

    places = [p for p, x in parameters_of(call.name).items() if p in call.given and x.kind is not x.KEYWORD_ONLY]
    keywords = {*call.given} - {*places}
    function = FUNCTIONS[call.name]

    def loss(changed: Mapping[str, float]) -> Any:
        given = {**call.given, **changed}
        return in_a_loss(function(*[given[p] for p in places], **{p: given[p] for p in keywords}))

    schedule = [{p: x * (1 - k / 16) for p, x in numbers.items()} for k in range(1 if dynamic else 12)]
    graphs = CompileCounter()
    compiled = torch.compile(loss, fullgraph=True, backend=graphs, dynamic=dynamic)
    for changed in schedule:
        assert_same(call, compiled(changed), loss(changed))
    assert graphs.frame_count <= 2
