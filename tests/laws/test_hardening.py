"""Laws of every loss for random combinations of options, on awkward numbers.

A problem is a loss with its arrays and options. Masks, weights, labels, pairings, reductions and blocks are random; the
numbers are ordinary, tied, zero, all equal, huge, tiny or infinite.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce.testing import oracles
from portable_nce.testing.cases import AXES, LOSSES, Case

pytestmark = pytest.mark.filterwarnings(
    "ignore:(temperature. expected an array|logit_scale. expected the factor|margin. expected a number of at least 0)"
)  # any values are to be computed

Array: TypeAlias = Any
"""A NumPy array."""
Result: TypeAlias = Mapping[str, Array]
"""A loss and its gradients by array name, in double precision."""

BLOCKS = (1, 2, 3, 12, "auto", None)
EPS: Mapping[str, float] = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
NAMED = ("dot", "cosine", "neg_sq_euclidean", "neg_euclidean")
SCORE_STYLES = ("normal", "ties", "zeros", "far", "low", "minus infinity")
EMBEDDING_STYLES = ("normal", "grid", "zeros", "same")


# --------------------------------------------------------------------------------------------------------- the problems


@dataclass(frozen=True)
class Problem:
    """A loss with its arguments, as NumPy arrays in double precision.

    Attributes
    ----------
    name
        The public name of the loss below ``portable_nce``.
    arrays
        Arrays by parameter, in the order of the call.
    axes
        Letters of their axes; axes with the same letter are permuted together.
    variables
        The arrays that are differentiated.
    options
        Options that are not arrays.
    style
        Style of the numbers.
    """

    name: str
    arrays: Mapping[str, Array]
    axes: Mapping[str, str]
    variables: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    style: str = "normal"

    @property
    def embedded(self) -> dict[str, Array]:
        """The embeddings."""
        return {key: x for key, x in self.arrays.items() if self.axes[key].endswith("D")}

    @property
    def lengths(self) -> Array:
        """The lengths of all rows of embeddings."""
        return np.concatenate([np.linalg.norm(x, axis=-1).ravel() for x in self.embedded.values()])

    @property
    def scale(self) -> float:
        """Upper bound of the scores, at least 1."""
        if "scores" in self.arrays:
            finite = self.arrays["scores"][np.isfinite(self.arrays["scores"])]
            return 1.0 + float(np.abs(finite).max(initial=0.0))
        r, t = float(self.lengths.max()), self.temperature
        bounds = {"dot": r * r, "cosine": 1.0, "neg_sq_euclidean": 4.0 * r * r, "neg_euclidean": 2.0 * r}
        return 1.0 + bounds[self.options["similarity"]] / t * (r if self.name == "cpc" else 1.0)

    @property
    def temperature(self) -> float:
        """The temperature, or the inverse of the scale."""
        given = {**self.options, **self.arrays}
        return 1.0 / float(given["logit_scale"]) if "logit_scale" in given else float(given.get("temperature", 1.0))

    @property
    def slope(self) -> float:
        """Approximate upper bound of the derivatives of scores by embeddings."""
        if "scores" in self.arrays:
            return 1.0
        lengths, t = self.lengths, self.temperature
        r, shortest = float(lengths.max()), float(lengths[lengths > 0].min(initial=np.inf))
        bounds = {"dot": r, "cosine": 1.0 / shortest, "neg_sq_euclidean": 4.0 * r, "neg_euclidean": 1.0}
        return (bounds[self.options["similarity"]] * max(1.0, r if self.name == "cpc" else 1.0) + 1.0) / min(t, 1.0)

    @property
    def own(self) -> Mapping[str, Any]:
        """The options of the objective."""
        return self.options["objective"][1] if self.name == "contrast" else self.options

    @property
    def kinked(self) -> bool:
        """Whether a rounding error can change a neighbour or the side of a margin."""
        chosen = self.name == "nnclr" or self.own.get("mining") == "batch_hard"
        at_zero = self.own.get("positive_margin") == 0.0 and self.options.get("similarity") == "cosine"
        return self.style != "normal" and (chosen or at_zero)


def call(problem: Problem, arrays: Mapping[str, Any], **further: Any) -> Any:
    """Call the loss on arrays of any library."""
    options, named = {**problem.options, **further}, dict(arrays)
    if "valid" in named:
        rows = "support" if "support" in named else "queue"
        named[rows] = pnce.Queue(named[rows], named.pop("valid"))
    if problem.name == "contrast":
        objective, own = options["objective"]
        options["objective"] = getattr(pnce.objectives, objective)(**own)
    return Case(name=problem.name, loss=problem.name, arguments=named, options=options).call(named)


def cotangent(shape: tuple[int, ...]) -> Array:
    """Weights of the row losses in a sum, as numbers that 16 bits represent exactly."""
    return 1.5 + np.round(8.0 * np.cos(np.arange(math.prod(shape), dtype=np.float64)).reshape(shape)) / 8.0


def arrays_of(problem: Problem, library: str, dtype: str) -> dict[str, Any]:
    """Arrays of a problem in a library, floats in a dtype."""
    arrays = {key: torch.asarray(x).clone() for key, x in problem.arrays.items()}
    arrays = {key: x.to(getattr(torch, dtype)) if x.is_floating_point() else x for key, x in arrays.items()}
    return arrays if library == "torch" else {key: x.numpy() for key, x in arrays.items()}


def run(
    problem: Problem, library: str = "numpy", dtype: str = "float64", *, plainly: bool = True, **further: Any
) -> Result:
    """Losses, and the gradients of their sum times a cotangent.

    By the tape or by torch: by autograd if `plainly`, else by its functional transform.
    """
    arrays = arrays_of(problem, library, dtype)

    def total(*variables: Any) -> tuple[Any, Any]:
        loss = call(problem, {**arrays, **dict(zip(problem.variables, variables, strict=True))}, **further)
        convert: Callable[..., Any] = torch.asarray if library == "torch" else np.asarray
        return (loss * convert(cotangent(tuple(loss.shape)), dtype=loss.dtype)).sum(), loss

    chosen = [arrays[key] for key in problem.variables]
    found: Sequence[Any]
    if plainly and library == "torch":
        leaves = [x.clone().requires_grad_() for x in chosen]
        value, loss = total(*leaves)
        found = torch.autograd.grad(value, leaves, materialize_grads=True)
    else:
        (_, loss), found = pnce.value_and_grad(total, argnums=tuple(range(len(chosen))), has_aux=True)(*chosen)
    assert all(g.dtype == x.dtype and g.shape == x.shape for g, x in zip(found, chosen, strict=True))
    assert type(loss) is type(chosen[0])
    assert str(loss.dtype).removeprefix("torch.") == dtype
    numbers = [torch.asarray(x, requires_grad=False).double().numpy() for x in (loss, *found)]
    assert not any(np.isnan(x).any() for x in numbers), (numbers, problem)
    return dict(zip(("loss", *problem.variables), numbers, strict=True))


# ------------------------------------------------------------------------------------------------------- their numbers


def embeddings(numbers: np.random.Generator, shape: tuple[int, ...], style: str) -> Array:
    """Draw embeddings; zeros, ties and equal rows are exact in every library."""
    x = numbers.normal(size=shape)
    styles: Mapping[str, Callable[[], Array]] = {
        "grid": lambda: np.round(x) / 2.0,
        "zeros": lambda: x * (numbers.random((*shape[:-1], 1)) < 0.6),
        "same": lambda: np.broadcast_to(np.round(x[..., :1, :] * 4.0) / 4.0, shape).copy(),
    }
    return styles[style]() if style in styles else x


def scores_of(numbers: np.random.Generator, shape: tuple[int, ...], style: str) -> Array:
    """Draw scores."""
    x = numbers.normal(size=shape) * 2.0
    few, some = numbers.random(shape) < 0.15, numbers.random(shape) < 0.3
    styles = {
        "ties": np.round(x),
        "zeros": np.zeros(shape),
        "far": x + 1e4 * numbers.integers(-1, 2, size=shape),
        "low": x - 1e3,
        "minus infinity": np.where(some, -np.inf, x),
        "plus infinity": np.where(few, np.inf, x),
        "infinities": np.where(some, numbers.choice([-np.inf, np.inf], size=shape), x),
    }
    return styles.get(style, x)


def masked(numbers: np.random.Generator, shape: tuple[int, ...], style: str) -> Array:
    """Draw a mask."""
    mask = numbers.random(shape) < (0.4 if style == "few" else 0.6)
    mask |= style in {"rows", "columns"}
    if style == "rows":
        mask[numbers.random(shape[0]) < 0.4] = False
    if style == "columns":
        mask[..., numbers.random(shape[-1]) < 0.4] = False
    return mask & (style != "nothing")


def weighted(numbers: np.random.Generator, shape: tuple[int, ...], style: str) -> Array:
    """Draw weights."""
    weights = numbers.random(shape) + 0.25
    if style == "zeros":
        weights *= numbers.random(shape) < 0.5
    return weights * {"all zero": 0.0, "huge": 1e20}.get(style, 1.0)


def labelled(numbers: np.random.Generator, shape: tuple[int, ...], style: str) -> Array:
    """Draw labels."""
    place = np.arange(*shape)
    table = {"same": 0 * place, "distinct": place, "pairs": place // 2}
    return np.asarray(table.get(style, numbers.integers(-1, 2, size=shape)), dtype=np.int64)


CHOICES: Mapping[str, Sequence[Any]] = {
    "reduction": ("mean", "sum", "none"),
    "multi_positive": ("each", "pooled", "separate"),
    **dict.fromkeys(("symmetric", "include_positive", "detach_weights", "balance"), (False, True)),
    "average": ("all", "nonzero"),
    "mining": ("batch_all", "batch_hard"),
    "direction": ("a_to_b", "b_to_a"),
    "stop_gradient": (None, "first", "second"),
    **dict.fromkeys(("positive_power", "negative_power"), (1, 2)),
    "negatives": ("batch", "views"),
    # No margin equals a difference of grid numbers, where rounding would decide.
    "margin": (0.30517, 1.70321, -0.40519),
    "positive_margin": (0.0, 0.10713),
    "sigma": (0.5, 4.0),
    "alpha": (1.0, 0.25, 0.0),
    "l2": (0.0, 0.125),
    "max_logit_scale": (None, 100.0),
    "base_temperature": (None, 0.07),
}

NAMES = [name for name, loss in LOSSES.items() if loss.laws and " " not in name]
SCORED = [name for name in NAMES if "scores" in LOSSES[name].arguments]
"""Losses of a score matrix."""
EMBEDDED = [name for name in NAMES if name not in {*SCORED, "distillation", "gist_embed", "hcl", "joint_info_nce"}]
"""Losses of embeddings."""
ANY = [*EMBEDDED, *SCORED]
ALONE = {*SCORED, "triplet", "siglip", "proto_nce", "contrastive", "moco"}
"""Losses that accept one row."""
CONSTANTS = {"queue", "support", "prototypes", "prototypes_2", "concentrations", "concentrations_2", "key_a", "key_b"}
"""Arrays without a gradient."""

Draw: TypeAlias = Callable[[np.random.Generator, tuple[int, ...], str], Array]
DRAWN: Mapping[str, tuple[Draw, Sequence[Any]]] = {
    "scores": (scores_of, SCORE_STYLES),
    "mask": (masked, (None, None, None, "some", "some", "rows", "columns", "nothing")),
    "valid": (masked, ("some",)),
    "positives": (masked, ("few",)),
    "weights": (weighted, (None, None, "some", "zeros", "all zero", "huge")),
    **dict.fromkeys(("labels", "columns"), (labelled, ("few", "same", "distinct", "pairs"))),
    "concentrations": (lambda numbers, shape, _: numbers.random(shape) + 0.2, ("any",)),
    "log_q": (lambda numbers, shape, _: -numbers.random(shape), ("any",)),
}
"""Generators of other arrays, and their styles; None omits the array."""
FACTORS: Mapping[str, Sequence[float]] = {
    "temperature": (0.05, 0.5, 3.0),
    "logit_scale": (0.5, 10.0),
    "logit_bias": (-3.0, 0.5),
}


class Draft:
    """A problem under construction, with the lengths of its axes: those of `AXES`, and K = N + M columns."""

    def __init__(self, name: str, styles: Sequence[str], seed: int, rows: int) -> None:
        self.name, self.numbers = name, np.random.default_rng(seed)
        self.style = self.pick(styles)
        self.parameters = inspect.signature(attrgetter(name)(pnce)).parameters
        self.options = self.choices(self.parameters, name)
        self.arrays: dict[str, Array] = {}
        self.axes: dict[str, str] = {}
        n, (d, m, c) = max(rows, 1 if name in ALONE else 2), self.numbers.integers(1, (5, 6, 5)).tolist()
        self.sizes = {"N": n, "D": d, "M": m, "K": n + m, "C": c, "T": 2}

    def choices(self, parameters: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Draw the options with a few values."""
        table = {**CHOICES, "form": ("margin", "soft") if "triplet" in name else ("log", "detach")}
        return {key: self.pick(values) for key, values in table.items() if key in parameters}

    def pick(self, values: Sequence[Any]) -> Any:
        """Choose a value uniformly; Hypothesis prefers values that it has drawn before."""
        return values[int(self.numbers.integers(len(values)))]

    def add(self, key: str, axes: str = "ND", *, style: str | None = None, below: int | None = None) -> None:
        """Draw an array: integers below a limit, the kind of its name, or embeddings."""
        kind, shape = key.removesuffix("_2").removeprefix("negative_"), tuple(self.sizes[letter] for letter in axes)
        draw, styles = DRAWN.get(kind, (embeddings, (self.style,)))
        style = style or (self.style if kind == "scores" else self.pick(styles))
        limit = {"ids": 4, "assignments": self.sizes["C"]}.get(kind, below)
        if style is not None:
            x = draw(self.numbers, shape, style) if limit is None else self.numbers.integers(0, limit, size=shape)
            self.arrays[key], self.axes[key] = x, axes

    def positives(self, kind: str | None, axes: str) -> str:
        """Add positives: one per row, or any number."""
        if kind == "index":
            self.add("positives", axes[0], below=self.sizes[axes[1]])
        elif kind == "explicit":
            self.add("positives", axes)
        return axes

    def problem(self) -> Problem:
        """Draw everything."""
        for key in LOSSES[self.name].arguments:
            if key not in {"scores", "y"}:
                self.add(key, {"targets": "TND", "projections": "TDD"}.get(key, AXES.get(key, "ND")))
        if "similarity" in self.parameters:
            self.options["similarity"] = self.pick(NAMED)
        axes = FURTHER.get(self.name, Draft.plain)(self)
        self.add("mask", axes, style="some" if "mask_2" in self.arrays else None)
        self.add("weights", self.pick("NV") if axes == "VV" else "N")
        for key, values in FACTORS.items():
            if key in self.parameters:
                value = self.pick(values)
                if self.pick([False, True]):
                    self.arrays[key], self.axes[key] = np.asarray(value), ""
                else:
                    self.options[key] = value
        constants = CONSTANTS | self.pick([set(), {"weights"}])
        variables = [key for key, x in self.arrays.items() if x.dtype.kind == "f" and key not in constants]
        return Problem(self.name, self.arrays, self.axes, variables, self.options, self.style)

    # Arrays of some losses; each function returns the axes of a mask.

    def scored(self) -> str:
        """Draw scores."""
        paired = "positives" in self.parameters
        axes = "NK" if paired and self.pick([False, True]) else "NN"
        self.add("scores", axes)
        return self.positives(self.pick([None, "index", "explicit"]) if paired else None, axes)

    def keys(self) -> str:
        """Draw the columns of queries."""
        kind = self.pick([None, "index", "explicit", "MD", "NMD"])
        if kind not in {"MD", "NMD"}:
            return self.positives(kind, "NN")
        self.options["symmetric"] = False
        self.add("negative_keys", kind)
        return "NM"

    def memory(self) -> str:
        """Draw the written slots of a queue or a support."""
        if self.pick([False, True, True, True]):
            self.add("valid", "M")
        if self.options.get("negatives") != "views":
            return LOSSES[self.name].mask
        self.options["symmetric"] = False
        self.sizes["V"] = 2 * self.sizes["N"]
        return "VV"

    def candidates(self) -> str:
        """Draw ids and probabilities of candidates, and extra candidates."""
        further, *given = self.pick([False, True]), *(key for key in ("ids", "log_q") if self.pick([False, True]))
        for key in given:
            self.add(key, "N")
        if not further:
            return "NN"
        self.add("negative_candidates", "MD")
        for key in given:
            self.add(f"negative_{key}", "M")
        return "NK"

    def clusterings(self) -> str:
        """Draw a second clustering, keys and a queue."""
        if self.pick([False, True]):
            for key in ("prototypes", "assignments", "concentrations"):
                self.add(f"{key}_2", AXES[key])
            self.add("mask_2", "NC", style="some")
        if self.sizes["N"] > 1 and self.pick([False, True]):
            self.add("key")
            if self.pick([False, True]):
                self.add("queue", "MD")
        return "NC"

    def parts(self) -> str:
        """Draw the pairing and the objective of `contrast`."""
        pairing = self.pick(["diagonal", "queue", "two_views", "index", "labels", "explicit"])
        own = pairing == "two_views" or (pairing == "labels" and self.pick([False, True]))
        axes = "NN" if own else "NK"
        if pairing == "two_views":
            self.sizes["N"] = 2 * max(self.sizes["N"] // 2, 2)
            self.add("x")
        if not own or (pairing == "two_views" and self.pick([False, True])):
            self.add("y", f"{axes[1]}D")
        if pairing == "labels":
            self.add("labels", "N")
            if not own:
                self.add("columns", "K")
        self.positives(pairing, axes)
        names = ["info_nce", "info_nce_anchor", "flat_nce", "dclw", "logistic", "contrastive", "triplet"]
        objective = self.pick([*names, *(["relic"] if own else [])])
        options = self.choices(inspect.signature(getattr(pnce.objectives, objective)).parameters, objective)
        options |= {
            "dclw": {"temperature": 0.5},
            "info_nce_anchor": {"n_columns": self.sizes[axes[1]], "nu": 0.5},
            "logistic": {"divide_by": self.pick(["rows", "pairs", "active"])},
        }.get(objective, {})
        self.options |= {"pairing": pairing, "objective": (objective, options)}
        self.options["symmetric"] = own and objective != "relic" and self.options["symmetric"]
        return axes

    def plain(self) -> str:
        """Draw nothing, or another view."""
        if self.name == "nt_xent" and self.pick([False, True]):
            self.add("view_c")
        self.sizes["V"] = self.sizes["N"] * (LOSSES[self.name].views + ("view_c" in self.arrays))
        return LOSSES[self.name].mask


FURTHER: Mapping[str, Callable[[Draft], str]] = {
    **dict.fromkeys(SCORED, Draft.scored),
    **dict.fromkeys(("moco", "nnclr"), Draft.memory),
    "info_nce": Draft.keys,
    "two_tower": Draft.candidates,
    "proto_nce": Draft.clusterings,
    "contrast": Draft.parts,
}


def problems(name: str, count: int, *styles: str) -> Iterator[tuple[Problem, dict[str, Any]]]:
    """Problems of a loss, each with a block size; equal in every run."""
    usual = SCORE_STYLES if name in SCORED else EMBEDDING_STYLES
    numbers = np.random.default_rng([*name.encode(), count, 2])  # with this seed, sums with different shifts are merged
    for seed, rows, block in numbers.integers((0, 1, 0), (2**32, 10, len(BLOCKS)), size=(count, 3)).tolist():
        drawn = Draft(name, styles or usual, seed, rows).problem()
        yield drawn, {"block_size": BLOCKS[block]} if name in EMBEDDED else {}


# ------------------------------------------------------------------------------------------------------------- the laws


def expected_shape(problem: Problem) -> tuple[int, ...]:
    """Shape of a loss."""
    if problem.options["reduction"] != "none":
        return ()
    views = 2 if problem.options.get("negatives") == "views" else LOSSES[problem.name].views
    return (next(iter(problem.arrays.values())).shape[0] * (views + ("view_c" in problem.arrays)),)


def tolerances(problem: Problem, dtype: str) -> dict[str, float]:
    """Tolerances: a few roundings of numbers of the size of the scores."""
    own = problem.own
    weights = np.abs(problem.arrays.get("weights", np.ones(1)))
    most = max(x.shape[0] for x in problem.arrays.values() if x.ndim)
    size = problem.scale + abs(own.get("margin", 0.0))
    size *= size if 2 in {own.get("positive_power"), own.get("negative_power")} else 1.0
    size *= 1.0 + problem.scale / own["sigma"] if "sigma" in own else 1.0
    size /= min(0.07 / problem.temperature, 1.0) if own.get("base_temperature") else 1.0
    if problem.options["reduction"] != "mean":
        size *= max(1.0, float(weights.max()))
        size *= most ** (("margin" in own) + ("mining" in own))
        size *= most if problem.options["reduction"] == "sum" else 1.0
    natural = {
        "loss": 1.0,
        "logit_bias": 1.0,
        "logit_scale": problem.scale,
        "temperature": problem.scale / problem.temperature,
        "weights": problem.scale * most ** (1 + ("mining" in own)) / min(1.0, float(weights[weights > 0].sum()) or 1.0),
    }
    return {key: 16.0 * EPS[dtype] * size * natural.get(key, problem.slope) for key in ("loss", *problem.variables)}


def assert_same(problem: Problem, got: Result, wanted: Result, dtype: str = "float64", *, slopes: bool = True) -> None:
    """Compare two results of a problem."""
    bounds = tolerances(problem, dtype)
    for key in wanted if slopes else ("loss",):
        compare(key, problem, got[key], wanted[key], bounds[key], EPS[dtype])


def compare(  # noqa: PLR0917
    what: str, problem: Problem, got: Array, wanted: Array, bound: float, eps: float = EPS["float64"]
) -> None:
    """Compare numbers up to an absolute bound and a few relative roundings."""
    assert np.shape(got) == np.shape(wanted)
    finite = np.where(np.isinf(wanted), 0.0, wanted)
    same = (got == wanted) | (np.abs(got - finite) <= bound + 8.0 * eps * np.abs(finite))
    assert same.all(), f"{what}: {got} instead of {wanted}, within {bound:.1e}, of {problem}"


ANY_STYLE = [(name, style) for name in ANY for style in (SCORE_STYLES if name in SCORED else EMBEDDING_STYLES)]


@pytest.mark.parametrize(("name", "style"), ANY_STYLE)
def test_libraries_and_blocks(name: str, style: str) -> None:
    """Dense and in blocks, by the tape and by torch: equal values and gradients, of the right kind, without NaN."""
    for k, (problem, further) in enumerate(problems(name, 7, style)):
        undivided: dict[str, Any] = dict.fromkeys(further)
        dense = run(problem, **undivided)
        assert dense["loss"].shape == expected_shape(problem)
        for library in ("torch", "numpy") if further else ("torch",):
            result = run(problem, library, plainly=k % 2 > 0, **further)
            assert_same(problem, result, dense, slopes=not problem.kinked)


@pytest.mark.parametrize("name", ANY)
def test_single_precision(name: str) -> None:
    """float32 agrees up to rounding, and has its dtype."""
    for drawn, further in problems(name, 8, "normal"):
        problem = rounded(drawn, "float32")
        wanted = run(problem)
        for library in ("numpy", "torch"):
            assert_same(problem, run(problem, library, "float32", **further), wanted, "float32")


def rounded(problem: Problem, dtype: str) -> Problem:
    """The problem with numbers rounded to a dtype."""
    held = replace(problem, arrays=arrays_of(problem, "torch", dtype))
    return replace(problem, arrays=arrays_of(held, "numpy", "float64"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ANY)
def test_half_precision(name: str, dtype: str) -> None:
    """16-bit results are those of float32, rounded once."""
    for drawn, further in problems(name, 8):
        problem = rounded(drawn, dtype)
        if problem.arrays.get("weights", np.ones(1)).max() >= 100.0:
            continue
        bounds = tolerances(problem, "float32")
        for library in ("torch", "numpy") if dtype == "float16" else ("torch",):
            with np.errstate(over="ignore"):  # numbers beyond the range of 16 bits
                wanted, got = (run(problem, library, kind, **further) for kind in ("float32", dtype))
            for key, exact in wanted.items():
                # One rounding, and those of the arithmetic, whose order may differ.
                near = np.abs(got[key] - exact) <= 1.01 * EPS[dtype] * np.abs(exact) + 2.0**-24 + bounds[key]
                assert near[np.abs(exact) < 6e4].all(), (key, got, exact, problem)


@pytest.mark.parametrize("name", ["clip", "dcl", "flat_nce", "info_nce", "logistic", "nca", "relic", "supcon"])
def test_infinite_scores(name: str) -> None:
    """An infinite score gives a loss of 0 or infinity; neither row losses nor gradients are NaN."""
    for drawn, _ in problems(f"from_scores.{name}", 30, "plus infinity", "infinities"):
        problem = replace(drawn, options={**drawn.options, "reduction": "none"})
        if problem.arrays.get("weights", np.ones(1)).max() >= 100.0:
            continue
        with np.errstate(invalid="ignore"):  # sums of infinite losses of both signs
            run(problem)
            run(problem, "torch")


# ----------------------------------------------------------------------------------------------------------- the values


def in_words_of_the_oracles(problem: Problem) -> dict[str, Array] | None:
    """Arrays for the oracles: with a mask for scores of -inf and for unwritten slots."""
    arrays = dict(problem.arrays)
    if "scores" in arrays:
        live = arrays["scores"] != -np.inf
        live &= live.T if problem.name.endswith("relic") else True
        arrays["mask"] = arrays.get("mask", live) & live
        arrays["scores"] = np.where(live, arrays["scores"], 0.0)
    if (written := arrays.pop("valid", None)) is not None:
        memory = "support" if "support" in arrays else "queue"
        arrays[memory] = arrays[memory][written]
        if "mask" in arrays and problem.axes["mask"] == "NM":
            arrays["mask"] = arrays["mask"][:, written]
        if not written.any():
            return None
    return None if "mask_2" in arrays or problem.name == "contrast" else arrays


@pytest.mark.parametrize("name", [name for name in ANY if name != "contrast"])
def test_values(name: str) -> None:
    """Losses equal the published sums, with every option."""
    for problem, further in problems(name, 24):
        arrays = in_words_of_the_oracles(problem)
        if arrays is None:
            continue
        nested = {key: x.tolist() for key, x in arrays.items()}
        wanted = oracles.numbers_of(oracles.evaluate(name, nested, problem.options))
        got = np.asarray(call(problem, problem.arrays, **further))
        exact = np.asarray([float(x) for x in wanted]).reshape(got.shape)
        assert_same(problem, {"loss": got}, {"loss": exact})


# --------------------------------------------------------------------------------------------------- the order of rows


def permuted(problem: Problem, numbers: np.random.Generator) -> tuple[Problem, Mapping[str, Array]]:
    """Permute the rows of a problem and all that belongs to them; also return the order of each axis."""
    sizes: dict[str, int] = {}
    for key, x in problem.arrays.items():
        sizes |= zip(problem.axes[key], x.shape, strict=True)
    moved = "NC" if problem.kinked else "NMC"  # the first of equally near neighbours is used
    order, n = {letter: numbers.permutation(sizes[letter]) for letter in sizes if letter in moved}, sizes["N"]
    if problem.options.get("pairing") == "two_views":  # pairs stay together
        order["N"] = np.concatenate([half := numbers.permutation(n // 2), n // 2 + half])
    if "K" in sizes:  # columns with the same indices follow the rows
        further = order.get("M", np.arange(sizes["K"] - n))
        order["K"] = np.concatenate([order["N"], n + further])
    order["V"] = np.concatenate([k * n + order["N"] for k in range(3)])[: sizes.get("V", 3 * n)]
    arrays = {key: reordered(x, problem.axes[key], order) for key, x in problem.arrays.items()}
    for key, letter in {"positives": "K" if "K" in order else "N", "assignments": "C", "assignments_2": "C"}.items():
        if key in arrays and arrays[key].dtype.kind == "i":
            place = np.argsort(order[letter])
            inside = (arrays[key] >= 0) & (arrays[key] < place.size)
            arrays[key] = np.where(inside, place[np.where(inside, arrays[key], 0)], arrays[key])
    return replace(problem, arrays=arrays), order


def reordered(x: Array, axes: str, order: Mapping[str, Array]) -> Array:
    """An array with permuted axes."""
    for axis, letter in enumerate(axes):
        x = np.take(x, order[letter], axis=axis) if letter in order else x
    return x


@pytest.mark.parametrize("name", ANY)
def test_order_of_rows(name: str) -> None:
    """Permuting rows does not change the loss, and permutes gradients and row losses."""
    for seed, (drawn, further) in enumerate(problems(name, 12)):
        problem, (other, order) = drawn, permuted(drawn, np.random.default_rng(seed))
        if problem.options["reduction"] == "none":
            rows, turned = (np.asarray(call(one, one.arrays, **further)) for one in (problem, other))
            assert_same(problem, {"loss": turned}, {"loss": rows[order["V"][: rows.size]]})
            problem, other = (replace(one, options={**one.options, "reduction": "sum"}) for one in (problem, other))
        result, found = run(other, **further), run(problem, **further)
        wanted = {key: reordered(x, problem.axes.get(key, ""), order) for key, x in found.items()}
        assert_same(problem, result, wanted, slopes=not problem.kinked)


# --------------------------------------------------------------------------------------------- invariance of the scores


DEGREES: Mapping[str, float] = {"dot": 2.0, "neg_sq_euclidean": 2.0, "neg_euclidean": 1.0, "cosine": 0.0}
HOMOGENEOUS = [
    *("info_nce", "n_tuple", "nt_xent", "flat_nce", "dcl", "relic", "clip", "siglip", "supcon", "nca"),
    *("soft_nearest_neighbor", "contrastive", "triplet_from_labels", "triplet", "contrast"),
]


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_longer_embeddings_are_a_lower_temperature(name: str) -> None:
    """Euler's identity for functions of the scores links the gradients of embeddings and temperature."""
    for drawn, further in problems(name, 16):
        plain: dict[str, Any] = {"base_temperature": None, "max_logit_scale": None, "l2": 0.0}
        options = {**drawn.options, **{key: plain[key] for key in plain.keys() & drawn.options.keys()}}
        problem, cosine = replace(drawn, options=options), options["similarity"] == "cosine"
        factor, sign = ("logit_scale", 1.0) if "logit_scale" in problem.arrays else ("temperature", -1.0)
        if options.get("objective", " ")[0] == "dclw" or not (cosine or factor in problem.arrays):
            continue
        bounds = tolerances(problem, "float64")
        for library in ("numpy", "torch"):
            slopes = run(problem, library, **further)
            embedded = problem.embedded.items()
            along = {key: (x * slopes[key]).sum(axis=-1) for key, x in embedded if key in slopes}
            if cosine:
                for key, found in along.items():
                    bound = bounds[key] * max(1.0, float(np.abs(problem.arrays[key]).max()))
                    compare(f"{key}, lengthwise", problem, found, np.zeros_like(found), bound)
                continue
            wanted = sign * DEGREES[options["similarity"]] * problem.arrays[factor] * slopes[factor]
            bound = sum(problem.arrays[key].size * float(problem.lengths.max()) * bounds[key] for key in along)
            bound += bounds[factor] * float(problem.arrays[factor])
            compare("lengthwise", problem, sum(found.sum() for found in along.values()), wanted, bound)


@pytest.mark.parametrize("exponent", [-100, -1, 3, 100])
@pytest.mark.parametrize("name", [name for name in EMBEDDED if name not in {"n_tuple", "cpc"}])
def test_the_cosine_knows_no_length(name: str, exponent: int) -> None:
    """Scaling embeddings by a power of 2 leaves the loss exactly equal, and divides gradients by it."""
    factor = 2.0**exponent
    for drawn, further in problems(name, 8):
        problem = replace(drawn, options={**drawn.options, "similarity": "cosine"})
        arrays = {**problem.arrays, **{key: x * factor for key, x in problem.embedded.items()}}
        for library in ("numpy", "torch"):
            wanted, result = (run(one, library, **further) for one in (problem, replace(problem, arrays=arrays)))
            for key, exact in wanted.items():
                np.testing.assert_array_equal(result[key], exact / factor if key in problem.embedded else exact)


@pytest.mark.parametrize("loss", [pnce.info_nce, pnce.n_tuple])
def test_long_and_short_embeddings(loss: Callable[..., Any]) -> None:
    """Scores of order one from embeddings whose squares overflow or underflow float32: no warning."""
    x = np.asarray([[1.0, 0.5], [-0.5, 1.0]], dtype=np.float32)
    long, short = x * np.float32(2.0**100), x * np.float32(2.0**-100)
    wanted = loss(x, x, similarity="dot", temperature=1.0)
    np.testing.assert_array_equal(loss(long, short, similarity="dot", temperature=1.0), wanted)
