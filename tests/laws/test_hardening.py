"""Every loss with any combination of its options, on awkward numbers: laws that hold whatever the numbers are.

A problem is a loss with its arrays and options. What can be masked, weighted, labelled, paired, reduced and cut into
blocks is, at random; the numbers are ordinary, tied, zero, all the same, huge, tiny or infinite.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import portable_nce as pnce

Array: TypeAlias = Any
"""A NumPy array."""

BLOCKS = (1, 2, 3, 12, "auto", None)
EPS: Mapping[str, float] = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
NAMED = ("dot", "cosine", "neg_sq_euclidean", "neg_euclidean")


def fuzz(examples: int) -> settings:
    """Set how many examples a test has; they are the same in every run."""
    return settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )


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
        The letters of their axes: those of the same letter are permuted together.
    variables
        The arrays that are differentiated.
    options
        Whatever is no array.
    style
        What the numbers are like.
    """

    name: str
    arrays: Mapping[str, Array]
    axes: Mapping[str, str]
    variables: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    style: str = "normal"

    @property
    def dots(self) -> float:
        """The largest length of a row of an embedding."""
        lengths = [np.linalg.norm(x, axis=-1).max() for key, x in self.arrays.items() if self.axes[key].endswith("D")]
        return float(max(lengths, default=1.0))

    @property
    def scale(self) -> float:
        """A number that no score exceeds, and at least 1."""
        if "scores" in self.arrays:
            finite = self.arrays["scores"][np.isfinite(self.arrays["scores"])]
            return 1.0 + float(np.abs(finite).max(initial=0.0))
        r, t = self.dots, self.temperature
        bounds = {"dot": r * r, "cosine": 1.0, "neg_sq_euclidean": 4.0 * r * r, "neg_euclidean": 2.0 * r}
        return 1.0 + bounds[self.options["similarity"]] / t * (r if self.name == "cpc" else 1.0)

    def factor(self, key: str) -> float | None:
        """Give a number that is an array or an option."""
        value = self.arrays.get(key, self.options.get(key))
        return None if value is None else float(value)

    @property
    def temperature(self) -> float:
        """The temperature, or the inverse of the scale."""
        if (scale := self.factor("logit_scale")) is not None:
            return 1.0 / scale
        return self.factor("temperature") or 1.0

    @property
    def slope(self) -> float:
        """A number that no derivative of a score by an embedding exceeds by much."""
        if "scores" in self.arrays:
            return 1.0
        r, t = self.dots, self.temperature
        embeddings = [x for key, x in self.arrays.items() if self.axes[key].endswith("D")]
        lengths = np.concatenate([np.linalg.norm(x, axis=-1).ravel() for x in embeddings])
        shortest = float(lengths[lengths > 0].min(initial=np.inf)) if self.options["similarity"] == "cosine" else 1.0
        bounds = {"dot": r, "cosine": 1.0 / shortest, "neg_sq_euclidean": 4.0 * r, "neg_euclidean": 1.0}
        return (bounds[self.options["similarity"]] * max(1.0, r if self.name == "cpc" else 1.0) + 1.0) / min(t, 1.0)

    @property
    def kinked(self) -> bool:
        """Whether a rounding more or less can choose another neighbour, or the other side of a margin."""
        own = self.options["objective"][1] if self.name == "contrast" else self.options
        chosen = self.name == "nnclr" or own.get("mining") == "batch_hard"
        at_zero = own.get("positive_margin") == 0.0 and self.options.get("similarity") == "cosine"
        return self.style != "normal" and (chosen or at_zero)


@dataclass(frozen=True)
class Result:
    """A loss, what was differentiated, and its gradients, as NumPy arrays in double precision."""

    loss: Array
    value: float
    gradients: Mapping[str, Array]
    dtype: str


def call(problem: Problem, arrays: Mapping[str, Any], **further: Any) -> Any:
    """Call the loss of a problem on arrays of any library."""
    module, _, short = problem.name.rpartition(".")
    function = getattr(getattr(pnce, module) if module else pnce, short)
    options = {**problem.options, **further}
    given_ = dict(arrays)
    if "valid" in given_:
        rows = "support" if "support" in given_ else "queue"
        given_[rows] = pnce.Queue(given_[rows], given_.pop("valid"))
    for key in [key for key in given_ if f"{key}_2" in given_]:
        given_[key] = [given_[key], given_.pop(f"{key}_2")]
    if short == "contrast":
        options |= parts_of(options, given_)
    parameters = inspect.signature(function).parameters
    variadic = [given_.pop("further_views")] if "further_views" in given_ else []
    positional = [given_.pop(p.name) for p in parameters.values() if p.kind is p.POSITIONAL_ONLY and p.name in given_]
    return function(*positional, *variadic, **given_, **options)


def parts_of(options: dict[str, Any], given_: dict[str, Any]) -> dict[str, Any]:
    """Give the pairing and the objective of `contrast`, made of arrays and options."""
    pairing = options.pop("pairing")
    if pairing == "labels":
        columns = (given_.pop("columns"),) if "y" in given_ else ()
        made: Any = pnce.pairings.labels(given_.pop("labels"), *columns)
    elif pairing in {"index", "explicit"}:
        made = getattr(pnce.pairings, pairing)(given_.pop("positives"))
    else:
        made = getattr(pnce.pairings, pairing)()
    objective, own = options.pop("objective")
    return {"pairing": made, "objective": getattr(pnce.objectives, objective)(**own)}


def cotangent(shape: tuple[int, ...]) -> Array:
    """Give what the losses of rows are multiplied by before they are added up, in numbers that 16 bits hold."""
    return 1.5 + np.round(8.0 * np.cos(np.arange(math.prod(shape), dtype=np.float64)).reshape(shape)) / 8.0


def run_numpy(problem: Problem, dtype: str = "float64", **further: Any) -> Result:
    """Compute a loss and its gradients by the tape."""
    arrays = {key: x.astype(dtype) if x.dtype.kind == "f" else x for key, x in problem.arrays.items()}

    def total(*variables: Any) -> tuple[Any, Any]:
        loss = call(problem, {**arrays, **dict(zip(problem.variables, variables, strict=True))}, **further)
        pull = cotangent(tuple(loss.shape)).astype(dtype)
        return (loss * pull).sum(), loss

    chosen = [arrays[key] for key in problem.variables]
    (value, loss), found = pnce.value_and_grad(total, argnums=tuple(range(len(chosen))), has_aux=True)(*chosen)
    assert isinstance(loss, np.ndarray)
    gradients = {key: g.astype(np.float64) for key, g in zip(problem.variables, found, strict=True)}
    assert all(g.dtype == x.dtype and g.shape == x.shape for g, x in zip(found, chosen, strict=True))
    return Result(loss.astype(np.float64), float(value), gradients, str(loss.dtype))


def run_torch(problem: Problem, dtype: str = "float64", *, plainly: bool = True, **further: Any) -> Result:
    """Compute a loss and its gradients by torch's autograd, or by its functional transform."""
    kind = getattr(torch, dtype)
    arrays = {
        key: torch.asarray(x.copy()).to(kind) if x.dtype.kind == "f" else torch.asarray(x.copy())
        for key, x in problem.arrays.items()
    }

    def total(*variables: Any) -> tuple[Any, Any]:
        loss = call(problem, {**arrays, **dict(zip(problem.variables, variables, strict=True))}, **further)
        pull = torch.asarray(cotangent(tuple(loss.shape))).to(loss.dtype)
        return (loss * pull).sum(), loss

    chosen = [arrays[key] for key in problem.variables]
    found: Sequence[Any]
    if plainly:
        leaves = [x.clone().requires_grad_() for x in chosen]
        value, loss = total(*leaves)
        found = torch.autograd.grad(value, leaves, materialize_grads=True)
    else:
        (value, loss), found = pnce.value_and_grad(total, argnums=tuple(range(len(chosen))), has_aux=True)(*chosen)
    assert all(g.dtype == x.dtype and g.shape == x.shape for g, x in zip(found, chosen, strict=True))
    gradients = {key: g.double().numpy() for key, g in zip(problem.variables, found, strict=True)}
    loss = loss.detach()
    return Result(loss.double().numpy(), float(value.detach()), gradients, str(loss.dtype).removeprefix("torch."))


# ------------------------------------------------------------------------------------------------------- their numbers


def embeddings(numbers: np.random.Generator, shape: tuple[int, ...], style: str) -> Array:
    """Draw embeddings; what is zero, tied or the same is so in every library."""
    x = numbers.normal(size=shape)
    if style == "grid":
        return np.round(x) / 2.0
    if style == "zeros":
        return x * (numbers.random((*shape[:-1], 1)) < 0.6)
    if style == "same":
        return np.broadcast_to(np.round(x[..., :1, :] * 4.0) / 4.0, shape).copy()
    return x


def scores_of(numbers: np.random.Generator, shape: tuple[int, int], style: str) -> Array:
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
    mask = numbers.random(shape) < 0.6
    if style == "rows":
        mask |= True
        mask[numbers.random(shape[0]) < 0.4] = False
    if style == "columns":
        mask |= True
        mask[..., numbers.random(shape[-1]) < 0.4] = False
    return mask & (style != "nothing")


MASKS = (None, None, None, "some", "some", "rows", "columns", "nothing")
WEIGHTS = (None, None, "some", "zeros", "all zero", "huge")
LABELS = ("few", "same", "distinct", "pairs")
SCORE_STYLES = ("normal", "ties", "zeros", "far", "low", "minus infinity")
EMBEDDING_STYLES = ("normal", "grid", "zeros", "same")


def weighted(numbers: np.random.Generator, rows: int, style: str) -> Array:
    """Draw weights."""
    weights = numbers.random(rows) + 0.25
    if style == "zeros":
        weights *= numbers.random(rows) < 0.5
    return weights * {"all zero": 0.0, "huge": 1e20}.get(style, 1.0)


def labelled(numbers: np.random.Generator, rows: int, style: str) -> Array:
    """Draw labels."""
    table = {"same": np.zeros(rows), "distinct": np.arange(rows), "pairs": np.arange(rows) // 2}
    return np.asarray(table.get(style, numbers.integers(-1, 2, size=rows)), dtype=np.int64)


CHOICES: Mapping[str, Sequence[Any]] = {
    "reduction": ("mean", "sum", "none"),
    "multi_positive": ("each", "pooled", "separate"),
    "symmetric": (False, True),
    "include_positive": (False, True),
    "detach_weights": (False, True),
    "balance": (False, True),
    "average": ("all", "nonzero"),
    "mining": ("batch_all", "batch_hard"),
    "direction": ("a_to_b", "b_to_a"),
    "stop_gradient": (None, "first", "second"),
    "positive_power": (1, 2),
    "negative_power": (1, 2),
    "negatives": ("batch", "views"),
    # None of these margins lies at a difference of two numbers of a grid, where a rounding decides.
    "margin": (0.30517, 1.70321, -0.40519),
    "positive_margin": (0.0, 0.10713),
    "sigma": (0.5, 4.0),
    "alpha": (1.0, 0.25, 0.0),
    "l2": (0.0, 0.125),
    "max_logit_scale": (None, 100.0),
    "base_temperature": (None, 0.07),
}
FORMS: Mapping[str, Sequence[str]] = {"triplet": ("margin", "soft"), "flat_nce": ("log", "detach")}

EMBEDDED: Mapping[str, str] = {
    "info_nce": "query positive_key",
    "n_tuple": "query key",
    "two_tower": "query candidate",
    **dict.fromkeys(("nt_xent", "flat_nce", "dcl", "dclw", "relic", "nnclr"), "view_a view_b"),
    **dict.fromkeys(("clip", "siglip"), "image text"),
    "moco": "query key",
    "moco_v3": "query_a query_b key_a key_b",
    "cpc": "context",
    **dict.fromkeys(("supcon", "nca", "soft_nearest_neighbor", "contrastive", "triplet_from_labels"), "embeddings"),
    "proto_nce": "embeddings",
    "triplet": "anchor positive negative",
    "contrast": "x",
}
"""The losses of embeddings, with their arrays of shape (N, D)."""

SCORED = tuple(f"from_scores.{name}" for name in pnce.from_scores.__all__ if name != "cosent")
"""The losses of a score matrix."""
CONSTANTS = {"queue", "support", "prototypes", "prototypes_2", "concentrations", "concentrations_2", "key_a", "key_b"}
"""What has no gradient."""

FACTORS: Mapping[str, Sequence[float]] = {
    "temperature": (0.05, 0.5, 3.0),
    "logit_scale": (0.5, 10.0),
    "logit_bias": (-3.0, 0.5),
}


def views_of(name: str) -> int:
    """Give how many views a loss joins to rows and columns."""
    return 2 if name in {"nt_xent", "flat_nce", "dcl", "dclw"} else 1


class Draft:
    """A problem that is being drawn."""

    def __init__(self, seed: int, name: str, styles: Sequence[str]) -> None:
        self.name = name
        self.numbers = np.random.default_rng(seed)
        self.style = self.pick(styles)
        module, _, short = name.rpartition(".")
        self.parameters = inspect.signature(getattr(getattr(pnce, module) if module else pnce, short)).parameters
        self.options = self.choices(self.parameters, short)
        self.arrays: dict[str, Array] = {}
        self.axes: dict[str, str] = {}
        self.weighted = False

    def choices(self, parameters: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Draw the options that are one of a few."""
        options = {key: self.pick(values) for key, values in CHOICES.items() if key in parameters}
        if "form" in parameters:
            options["form"] = self.pick(FORMS["triplet" if "triplet" in name else "flat_nce"])
        return options

    def pick(self, values: Sequence[Any]) -> Any:
        """Take one of some values, each as often as any other: Hypothesis prefers what it has had."""
        return values[int(self.numbers.integers(len(values)))]

    def chance(self) -> bool:
        return bool(self.numbers.random() < 0.5)

    def add(self, key: str, axes: str, x: Array) -> None:
        self.arrays[key], self.axes[key] = x, axes

    def embed(self, key: str, axes: str, *shape: int) -> None:
        self.add(key, axes, embeddings(self.numbers, shape, self.style))

    def positives(self, kind: str | None, axes: str, rows: int, columns: int) -> None:
        """Add positives: one a row, or any number."""
        if kind == "index":
            self.add("positives", axes[0], self.numbers.integers(0, columns, size=rows))
        elif kind == "explicit":
            self.add("positives", axes, self.numbers.random((rows, columns)) < 0.4)

    def mask(self, axes: str, *shape: int) -> None:
        if (style := self.pick(MASKS)) is not None:
            self.add("mask", axes, masked(self.numbers, shape, style))

    def weights(self, axes: str, rows: int) -> None:
        """Add weights, which are differentiated or not."""
        if (style := self.pick(WEIGHTS)) is not None:
            self.add("weights", axes, weighted(self.numbers, rows, style))
            self.weighted = self.chance()

    def factors(self) -> None:
        """Add temperature, scale and bias, as arrays or as numbers."""
        for key, values in FACTORS.items():
            if key in self.parameters and self.chance():
                self.add(key, "", np.asarray(self.pick(values)))
            elif key in self.parameters:
                self.options[key] = self.pick(values)

    def problem(self) -> Problem:
        variables = [key for key, x in self.arrays.items() if x.dtype.kind == "f" and key not in CONSTANTS]
        variables = [key for key in variables if key != "weights" or self.weighted]
        return Problem(self.name, self.arrays, self.axes, variables, self.options, self.style)

    # What only some losses have; each gives the columns of the score matrix, and the letters of its axes.

    def keys(self, rows: int, features: int) -> tuple[int, str]:
        """Draw whom queries are contrasted with."""
        kind = self.pick([None, "index", "explicit", "shared", "own"])
        if kind not in {"shared", "own"}:
            self.positives(kind, "NN", rows, rows)
            return rows, "NN"
        self.options["symmetric"] = False
        further = int(self.numbers.integers(1, 6))
        self.embed(
            "negative_keys", "MD" if kind == "shared" else "NMD", *([rows] if kind == "own" else []), further, features
        )
        return further, "NM"

    def memory(self, rows: int, features: int) -> tuple[int, str]:
        """Draw a queue or a support, some of whose slots were never written."""
        slots = int(self.numbers.integers(1, 6))
        self.embed("queue" if self.name == "moco" else "support", "MD", slots, features)
        if self.chance():
            self.add("valid", "M", self.numbers.random(slots) < 0.7)
        if self.options.get("negatives") == "views":
            self.options["symmetric"] = False
            return 2 * rows, "VV"
        return (slots, "NM") if self.name == "moco" else (rows, "NN")

    def candidates(self, rows: int, features: int) -> tuple[int, str]:
        """Draw ids and probabilities of candidates, and further ones."""
        further = self.chance()
        columns = rows + (3 if further else 0)
        ids, log_q = self.numbers.integers(0, 4, size=columns), np.log(self.numbers.random(columns) + 0.1)
        own, shifted = self.chance(), self.chance()
        if own:
            self.add("ids", "N", ids[:rows])
        if shifted:
            self.add("log_q", "N", log_q[:rows])
        if not further:
            return rows, "NN"
        self.embed("negative_candidates", "MD", columns - rows, features)
        if own:
            self.add("negative_ids", "M", ids[rows:])
        if shifted:
            self.add("negative_log_q", "M", log_q[rows:])
        return columns, "NK"

    def steps(self, rows: int, features: int) -> tuple[int, str]:
        """Draw what contexts predict."""
        self.embed("targets", "SND", 2, rows, features)
        self.add("projections", "SDD", self.numbers.normal(size=(2, features, features)))
        return rows, "NN"

    def clusterings(self, rows: int, features: int) -> tuple[int, str]:
        """Draw one or two clusterings, keys and a queue."""
        number = int(self.numbers.integers(1, 5))
        suffixes = ("", "_2") if self.chance() else ("",)
        for suffix in suffixes:
            self.embed(f"prototypes{suffix}", "RD", number, features)
            self.add(f"assignments{suffix}", "N", self.numbers.integers(0, number, size=rows))
            self.add(f"concentrations{suffix}", "R", self.numbers.random(number) + 0.2)
            if len(suffixes) > 1:
                self.add(f"mask{suffix}", "NR", masked(self.numbers, (rows, number), "some"))
        if rows > 1 and self.chance():
            self.embed("key", "ND", rows, features)
            if self.chance():
                self.embed("queue", "MD", 3, features)
        return number, "NR"

    def labels(self, rows: int, features: int) -> tuple[int, str]:
        del features
        self.add("labels", "N", labelled(self.numbers, rows, self.pick(LABELS)))
        return rows, "NN"

    def parts(self, rows: int, features: int) -> tuple[int, str]:
        """Draw the pairing and the objective of `contrast`."""
        pairing = self.pick(["diagonal", "queue", "two_views", "index", "labels", "explicit"])
        own = pairing == "two_views" or (pairing == "labels" and self.chance())
        columns, axes = (rows, "NN") if own else (rows + 2, "NK")
        if pairing == "two_views":
            rows = columns = 2 * max(rows // 2, 2)
            self.embed("x", "ND", rows, features)
        if not own or (pairing == "two_views" and self.chance()):
            self.embed("y", f"{axes[1]}D", columns, features)
        if pairing == "labels":
            self.labels(rows, features)
            if not own:
                self.add("columns", "K", labelled(self.numbers, columns, self.pick(LABELS)))
        self.positives(pairing, axes, rows, columns)
        names = ["info_nce", "info_nce_anchor", "flat_nce", "dclw", "logistic", "contrastive", "triplet"]
        names += ["relic"] if own else []
        objective = self.pick(names)
        own_options = self.choices(inspect.signature(getattr(pnce.objectives, objective)).parameters, objective)
        own_options |= {"temperature": 0.5} if objective == "dclw" else {}
        own_options |= {"n_columns": columns, "nu": 0.5} if objective == "info_nce_anchor" else {}
        if objective == "logistic":
            own_options["divide_by"] = self.pick(["rows", "pairs", "active"])
        self.options |= {"pairing": pairing, "objective": (objective, own_options)}
        self.options["symmetric"] = own and objective != "relic" and self.options["symmetric"]
        return columns, axes

    def pair(self, rows: int, features: int) -> tuple[int, str]:
        """Draw no more, or a further view."""
        if self.name == "nt_xent" and self.chance():
            self.embed("further_views", "ND", rows, features)
        views = views_of(self.name) + ("further_views" in self.arrays)
        return views * rows, "NN" if views == 1 else "VV"


FURTHER: Mapping[str, Callable[[Draft, int, int], tuple[int, str]]] = {
    "info_nce": Draft.keys,
    **dict.fromkeys(("moco", "nnclr"), Draft.memory),
    "cpc": Draft.steps,
    "two_tower": Draft.candidates,
    "proto_nce": Draft.clusterings,
    **dict.fromkeys(("supcon", "nca", "soft_nearest_neighbor", "contrastive", "triplet_from_labels"), Draft.labels),
    "contrast": Draft.parts,
}
ALONE = {"triplet", "siglip", "proto_nce", "contrastive", "moco"}
"""The losses that one row is enough for."""


def of_scores(name: str, styles: Sequence[str], seed: int, rows: int) -> Problem:
    """Make a problem of scores."""
    draft = Draft(seed, name, styles)
    paired = "positives" in draft.parameters
    columns = rows + (int(draft.numbers.integers(0, 4)) if paired else 0)
    axes = "NK" if paired else "NN"
    draft.add("scores", axes, scores_of(draft.numbers, (rows, columns), draft.style))
    if paired:
        draft.positives(draft.pick([None, "index", "explicit"]), axes, rows, columns)
    draft.mask(axes, rows, columns)
    draft.weights("N", rows)
    draft.factors()
    return draft.problem()


def of_embeddings(name: str, styles: Sequence[str], seed: int, rows: int) -> Problem:
    """Make a problem of embeddings."""
    draft = Draft(seed, name, styles)
    draft.options["similarity"] = draft.pick(NAMED)
    rows, features = max(rows, 1 if name in ALONE else 2), int(draft.numbers.integers(1, 5))
    for key in EMBEDDED[name].split():
        draft.embed(key, "ND", rows, features)
    columns, axes = FURTHER.get(name, Draft.pair)(draft, rows, features)
    rows = draft.arrays[EMBEDDED[name].split()[0]].shape[0]
    height = columns if axes == "VV" else rows
    if name == "triplet":
        draft.mask("N", rows)
    elif "mask_2" in draft.arrays:
        draft.add("mask", "NR", masked(draft.numbers, (rows, columns), "some"))
    else:
        draft.mask(axes, height, columns)
    spread = axes == "VV" and draft.chance()
    draft.weights("V" if spread else "N", height if spread else rows)
    draft.factors()
    return draft.problem()


ANY = (*EMBEDDED, *SCORED)


def problems(name: str, *styles: str) -> st.SearchStrategy[Problem]:
    """Give the problems of a loss."""
    make, usual = (of_scores, SCORE_STYLES) if name in SCORED else (of_embeddings, EMBEDDING_STYLES)
    return st.builds(make, st.just(name), st.just(styles or usual), st.integers(0, 2**32), st.integers(1, 9))


# ------------------------------------------------------------------------------------------------------------- the laws


def expected_shape(problem: Problem) -> tuple[int, ...]:
    """Give the shape of a loss."""
    if problem.options["reduction"] != "none":
        return ()
    views = 2 if problem.options.get("negatives") == "views" else views_of(problem.name)
    return (next(iter(problem.arrays.values())).shape[0] * (views + ("further_views" in problem.arrays)),)


def assert_no_nan(problem: Problem, result: Result) -> None:
    assert not np.isnan(result.loss).any(), problem
    for key, gradient in result.gradients.items():
        assert not np.isnan(gradient).any(), (key, problem)


def tolerances(problem: Problem, dtype: str) -> dict[str, float]:
    """Give how much each number may be off: a few roundings of numbers of the size of the scores."""
    own = problem.options["objective"][1] if problem.name == "contrast" else problem.options
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
    compare("loss", problem, got.loss, wanted.loss, bounds["loss"], EPS[dtype])
    for key in wanted.gradients if slopes else ():
        compare(key, problem, got.gradients[key], wanted.gradients[key], bounds[key], EPS[dtype])


def compare(  # noqa: PLR0917
    what: str, problem: Problem, got: Array, wanted: Array, bound: float, eps: float = EPS["float64"]
) -> None:
    """Compare numbers, up to a bound and a few roundings of their own."""
    assert np.shape(got) == np.shape(wanted)
    finite = np.where(np.isinf(wanted), 0.0, wanted)
    same = (got == wanted) | (np.abs(got - finite) <= bound + 8.0 * eps * np.abs(finite))
    assert same.all(), f"{what}: {got} instead of {wanted}, within {bound:.1e}, of {problem}"


def streams(name: str) -> bool:
    """Tell whether a loss has blocks."""
    return name in EMBEDDED


ANY_STYLE = [
    *((name, style) for name in EMBEDDED for style in EMBEDDING_STYLES),
    *((name, style) for name in SCORED for style in SCORE_STYLES),
]


@pytest.mark.parametrize(("name", "style"), ANY_STYLE)
@fuzz(7)
@given(data=st.data(), block_size=st.sampled_from(BLOCKS), plainly=st.booleans())
def test_libraries_and_blocks(name: str, style: str, data: st.DataObject, block_size: Any, *, plainly: bool) -> None:
    """Dense and in blocks, by the tape and by torch: one number and one gradient, of the right kind, without NaN."""
    problem = data.draw(problems(name, style))
    further: dict[str, Any] = {"block_size": block_size} if streams(name) else {}
    whole: dict[str, Any] = dict.fromkeys(further)
    dense = run_numpy(problem, **whole)
    assert dense.loss.shape == expected_shape(problem)
    assert dense.dtype == "float64"
    results = [run_torch(problem, plainly=plainly, **further)]
    results += [run_numpy(problem, **further)] if streams(name) else []
    for result in (dense, *results):
        assert_no_nan(problem, result)
    for result in results:
        assert_same(problem, result, dense, slopes=not problem.kinked)


@pytest.mark.parametrize("name", ANY)
@fuzz(8)
@given(data=st.data(), block_size=st.sampled_from(BLOCKS))
def test_single_precision(name: str, data: st.DataObject, block_size: Any) -> None:
    """In single precision the same to its rounding, of its own dtype."""
    problem = rounded(data.draw(problems(name, "normal")), "float32")
    further: dict[str, Any] = {"block_size": block_size} if streams(name) else {}
    wanted = run_numpy(problem)
    for result in (run_numpy(problem, "float32", **further), run_torch(problem, "float32", **further)):
        assert result.dtype == "float32"
        assert_no_nan(problem, result)
        assert_same(problem, result, wanted, "float32")


def rounded(problem: Problem, dtype: str) -> Problem:
    """Give the problem with numbers that a dtype holds."""
    kind = getattr(torch, dtype)
    arrays = {
        key: torch.asarray(x).to(kind).double().numpy() if x.dtype.kind == "f" else x
        for key, x in problem.arrays.items()
    }
    return replace(problem, arrays=arrays)


@pytest.mark.parametrize("name", ANY)
@fuzz(8)
@given(data=st.data(), block_size=st.sampled_from(BLOCKS), dtype=st.sampled_from(["float16", "bfloat16"]))
def test_half_precision(name: str, data: st.DataObject, block_size: Any, dtype: str) -> None:
    """In 16 bits what single precision gives, rounded once."""
    problem = rounded(data.draw(problems(name)), dtype)
    assume(problem.arrays.get("weights", np.ones(1)).max() < 100.0)
    further: dict[str, Any] = {"block_size": block_size} if streams(name) else {}
    runs = [run_torch, *([run_numpy] if dtype == "float16" else [])]
    for run in runs:
        with np.errstate(over="ignore"):  # of what 16 bits cannot hold
            wanted, result = run(problem, "float32", **further), run(problem, dtype, **further)
        assert result.dtype == dtype
        for key, got in {"loss": result.loss, **result.gradients}.items():
            exact = wanted.loss if key == "loss" else wanted.gradients[key]
            small = np.abs(exact) < 6e4
            # One rounding, and those of the arithmetic, which may be in another order.
            bound = 1.01 * EPS[dtype] * np.abs(exact) + 2.0**-24 + tolerances(problem, "float32")[key]
            assert (np.abs(got - exact) <= bound)[small].all(), (key, got, exact, problem)


@pytest.mark.parametrize("name", ["clip", "dcl", "flat_nce", "info_nce", "logistic", "nca", "relic", "supcon"])
@fuzz(30)
@given(data=st.data())
def test_infinite_scores(name: str, data: st.DataObject) -> None:
    """An infinite score is a loss of infinity, or of nothing; neither the losses of rows nor gradients are NaN."""
    problem = data.draw(problems(f"from_scores.{name}", "plus infinity", "infinities"))
    assume(problem.arrays.get("weights", np.ones(1)).max() < 100.0)
    problem = replace(problem, options={**problem.options, "reduction": "none"})
    with np.errstate(invalid="ignore"):  # of one loss of infinity and another of minus infinity, which are added here
        results = (run_numpy(problem), run_torch(problem))
    for result in results:
        assert_no_nan(problem, result)


# ------------------------------------------------------------------------------------------------- order and repetition


def permuted(problem: Problem, numbers: np.random.Generator) -> tuple[Problem, Mapping[str, Array]]:
    """Exchange the rows of a problem, with whatever belongs to them; give the order of each letter too."""
    sizes = {
        letter: n for key, x in problem.arrays.items() for letter, n in zip(problem.axes[key], x.shape, strict=True)
    }
    # Of neighbours that are equally near, the first is taken.
    order = {
        letter: numbers.permutation(sizes[letter]) for letter in sizes if letter in ("NR" if problem.kinked else "NMR")
    }
    n = sizes["N"]
    if problem.options.get("pairing") == "two_views":  # pairs stay together
        order["N"] = np.concatenate([half := numbers.permutation(n // 2), n // 2 + half])
    if "K" in sizes:  # the columns of the same numbers go with the rows
        further = order.get("M", np.arange(sizes["K"] - n))
        order["K"] = np.concatenate([order["N"], n + further])
    order["V"] = np.concatenate([k * n + order["N"] for k in range(3)])[: sizes.get("V", 3 * n)]
    arrays = {key: reordered(x, problem.axes[key], order) for key, x in problem.arrays.items()}
    for key, letter in {"positives": "K" if "K" in order else "N", "assignments": "R", "assignments_2": "R"}.items():
        if key in arrays and arrays[key].dtype.kind == "i":
            place = np.argsort(order[letter])
            inside = (arrays[key] >= 0) & (arrays[key] < place.size)
            arrays[key] = np.where(inside, place[np.where(inside, arrays[key], 0)], arrays[key])
    return replace(problem, arrays=arrays), order


def reordered(x: Array, axes: str, order: Mapping[str, Array]) -> Array:
    """Give an array with its axes in another order."""
    for axis, letter in enumerate(axes):
        x = np.take(x, order[letter], axis=axis) if letter in order else x
    return x


@pytest.mark.parametrize("name", ANY)
@fuzz(12)
@given(data=st.data(), block_size=st.sampled_from(BLOCKS), seed=st.integers(0, 99))
def test_order_of_rows(name: str, data: st.DataObject, block_size: Any, seed: int) -> None:
    """In another order the loss is the same, and the gradient, and the losses of rows, are in that order."""
    problem = data.draw(problems(name))
    further: dict[str, Any] = {"block_size": block_size} if streams(name) else {}
    other, order = permuted(problem, np.random.default_rng(seed))
    bounds = tolerances(problem, "float64")
    if problem.options["reduction"] == "none":
        rows = np.asarray(call(problem, problem.arrays, **further))
        turned = np.asarray(call(other, other.arrays, **further))
        compare("losses", problem, turned, rows[order["V"][: rows.size]], bounds["loss"])
        problem = replace(problem, options={**problem.options, "reduction": "sum"})
        other = replace(other, options=problem.options)
    result, wanted = run_numpy(other, **further), run_numpy(problem, **further)
    gradients = {key: reordered(g, problem.axes[key], order) for key, g in wanted.gradients.items()}
    assert_same(problem, result, replace(wanted, gradients=gradients), slopes=not problem.kinked)


ROW_BY_ROW = [name for name in SCORED if not name.endswith(("clip", "relic", "dclw"))]


@pytest.mark.parametrize("name", ROW_BY_ROW)
@fuzz(20)
@given(data=st.data(), reduction=st.sampled_from(["mean", "sum"]))
def test_weights_repeat_rows(name: str, data: st.DataObject, reduction: str) -> None:
    """A row of weight 3 is a row that is there three times, and one of weight 0 is not there."""
    problem = data.draw(problems(name))
    rows, columns = problem.arrays["scores"].shape
    assume(problem.options.get("average") != "nonzero" or problem.style != "ties")
    times = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 4, size=rows)
    assume(times.sum() > 0)
    arrays = {key: x for key, x in problem.arrays.items() if key != "weights"}
    arrays.setdefault("positives", np.eye(rows, columns) > 0)
    axes = {**problem.axes, "positives": "NK"}
    repeated = {key: np.repeat(x, times, axis=0) for key, x in arrays.items()}
    options = {**problem.options, "reduction": reduction}
    once = Problem(name, {**arrays, "weights": times.astype(np.float64)}, axes, ["scores"], options, problem.style)
    many = Problem(name, repeated, axes, ["scores"], options, problem.style)
    wanted, result = run_numpy(once), run_numpy(many)
    compare("loss", once, result.loss, wanted.loss, rows * 4.0 * tolerances(once, "float64")["loss"])
    gathered = np.zeros((rows, columns))
    np.add.at(gathered, np.repeat(np.arange(rows), times), result.gradients["scores"])
    compare("scores", once, gathered, wanted.gradients["scores"], rows * 4.0 * tolerances(once, "float64")["scores"])


# ---------------------------------------------------------------------------------------------------- what is counted


def sets_of(problem: Problem) -> tuple[Array, Array]:
    """Give the positives and negatives of a problem of scores, as the documentation has them."""
    scores = problem.arrays["scores"]
    positives = problem.arrays.get("positives", np.eye(*scores.shape) > 0)
    if positives.ndim == 1:
        positives = positives[:, None] == np.arange(scores.shape[1])
    live = problem.arrays.get("mask", np.ones(scores.shape) > 0) & (scores != -np.inf)
    return positives & live, ~positives & live


def number_of(problem: Problem, positives: Array, negatives: Array) -> list[Array]:
    """Give how often each row counts in a mean; of a balanced mean for each half."""
    options, scores = problem.options, problem.arrays["scores"]
    some, others = positives.any(axis=1), negatives.any(axis=1)
    match problem.name.removeprefix("from_scores."):
        case "info_nce" | "supcon" | "nca" | "relic":
            return [some]
        case "flat_nce" | "dcl" | "dclw":
            return [some & others]
        case "logistic":
            return [some | others]
        case "contrastive":
            if options["average"] == "nonzero":
                positives = positives & (-scores > options["positive_margin"])
                negatives = negatives & (-scores < options["margin"])
            halves = [positives.sum(axis=1), negatives.sum(axis=1)]
            return halves if options["balance"] else [halves[0] + halves[1]]
    with np.errstate(invalid="ignore"):
        if options["mining"] == "batch_hard":
            far = np.where(positives, scores, np.inf).min(axis=1)
            near = np.where(negatives, scores, -np.inf).max(axis=1)
            triples, excess = (some & others)[:, None], (near - far + options["margin"])[:, None]
        else:
            triples = (positives[:, :, None] & negatives[:, None, :]).reshape(len(scores), -1)
            excess = (scores[:, None, :] - scores[:, :, None] + options["margin"]).reshape(len(scores), -1)
        if options["average"] == "nonzero":
            lost = np.exp(np.minimum(excess, 0.0)) > 0 if options["form"] == "soft" else excess > 0
            triples = triples & lost
    return [triples.sum(axis=1)]


@pytest.mark.parametrize("name", [name for name in SCORED if not name.endswith("clip")])
@fuzz(30)
@given(data=st.data())
def test_what_counts(name: str, data: st.DataObject) -> None:
    """A sum is that of the rows, a mean divides it by the weights of what counts, and other rows are worth 0."""
    problem = data.draw(problems(name, "normal", "ties", "far", "minus infinity"))
    rows, total, mean = (
        run_numpy(replace(problem, options={**problem.options, "reduction": reduction})).loss
        for reduction in ("none", "sum", "mean")
    )
    numbers = number_of(problem, *sets_of(problem))
    weights = problem.arrays.get("weights", np.ones(len(rows)))
    counted = sum(n.astype(np.float64) for n in numbers) > 0
    bounds = tolerances(replace(problem, options={**problem.options, "reduction": "sum"}), "float64")
    assert (rows[~counted] == 0).all() or problem.options.get("average") == "nonzero"
    compare("sum", problem, total, rows.sum(), bounds["loss"])
    if problem.options.get("balance"):
        return  # a row's loss does not tell its halves apart
    norm = float((weights * numbers[0]).sum())
    compare("mean", problem, mean, rows.sum() / norm if norm else np.asarray(0.0), bounds["loss"] / (norm or 1.0))


# ------------------------------------------------------------------------------------------------------- of the scores


DEGREES: Mapping[str, float] = {"dot": 2.0, "neg_sq_euclidean": 2.0, "neg_euclidean": 1.0, "cosine": 0.0}
HOMOGENEOUS = [
    *("info_nce", "n_tuple", "nt_xent", "flat_nce", "dcl", "relic", "clip", "siglip", "supcon", "nca"),
    *("soft_nearest_neighbor", "contrastive", "triplet_from_labels", "triplet", "contrast"),
]


@pytest.mark.parametrize("name", HOMOGENEOUS)
@fuzz(16)
@given(data=st.data(), block_size=st.sampled_from(BLOCKS))
def test_longer_embeddings_are_a_lower_temperature(name: str, data: st.DataObject, block_size: Any) -> None:
    """What Euler says of functions of the scores alone: the gradients of embeddings and temperature belong together."""
    problem = data.draw(problems(name))
    assume(problem.options.get("objective", "")[0:1] != ("dclw",))
    assume({"temperature", "logit_scale"} & {*problem.arrays} or problem.options["similarity"] == "cosine")
    options = {**problem.options, **{k: None for k in ("base_temperature", "max_logit_scale") if k in problem.options}}
    options |= {"l2": 0.0} if "l2" in options else {}
    problem = replace(problem, options=options)
    bounds = tolerances(problem, "float64")
    for result in (run_numpy(problem, block_size=block_size), run_torch(problem, block_size=block_size)):
        along = {
            key: (problem.arrays[key] * result.gradients[key]).sum(axis=-1)
            for key in problem.variables
            if problem.axes[key].endswith("D")
        }
        if options["similarity"] == "cosine":
            for key, product in along.items():
                bound = bounds[key] * max(1.0, float(np.abs(problem.arrays[key]).max()))
                compare(f"{key}, lengthwise", problem, product, np.zeros_like(product), bound)
            continue
        factor, sign = ("logit_scale", 1.0) if "logit_scale" in result.gradients else ("temperature", -1.0)
        wanted = sign * DEGREES[options["similarity"]] * problem.arrays[factor] * result.gradients[factor]
        bound = sum(problem.arrays[key].size * problem.dots * bounds[key] for key in along)
        bound += bounds[factor] * float(problem.arrays[factor])
        compare("lengthwise", problem, sum(product.sum() for product in along.values()), wanted, bound)


@pytest.mark.parametrize("name", [name for name in EMBEDDED if name not in {"n_tuple", "cpc"}])
@fuzz(8)
@given(data=st.data(), block_size=st.sampled_from(BLOCKS), exponent=st.sampled_from([-100, -1, 3, 100]))
def test_the_cosine_knows_no_length(name: str, data: st.DataObject, block_size: Any, exponent: int) -> None:
    """Embeddings longer by a power of two: exactly the same loss, and gradients shorter by it."""
    problem = data.draw(problems(name))
    problem = replace(problem, options={**problem.options, "similarity": "cosine"})
    factor = 2.0**exponent
    arrays = {key: x * factor if problem.axes[key].endswith("D") else x for key, x in problem.arrays.items()}
    longer = replace(problem, arrays=arrays)
    for run in (run_numpy, run_torch):
        wanted, result = run(problem, block_size=block_size), run(longer, block_size=block_size)
        np.testing.assert_array_equal(result.loss, wanted.loss)
        for key, gradient in wanted.gradients.items():
            scaled = gradient / factor if problem.axes[key].endswith("D") else gradient
            np.testing.assert_array_equal(result.gradients[key], scaled)


def score_matrix(problem: Problem, x: Array, y: Array) -> Array:
    """Give the scores of rows x against columns y, written down once more."""
    match problem.options["similarity"]:
        case "dot":
            scores = x @ y.T
        case "cosine":
            lengths = np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1))
            scores = np.where(lengths == 0, 0.0, x @ y.T) / np.where(lengths == 0, 1.0, lengths)
        case "neg_sq_euclidean":
            scores = -((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=2)
        case _:
            scores = -np.sqrt(((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=2))
    return scores / problem.temperature


Written = tuple[str, Array, Array, dict[str, Array]]
"""A loss of scores, the embeddings of rows and of columns, and the further arrays, with the pairs among them."""


def of_queries(problem: Problem) -> Written | None:
    """Write down the pairs of a loss of queries and keys."""
    arrays = problem.arrays
    x, y = (arrays[key] for key in EMBEDDED[problem.name].split())
    n = len(x)
    positives = arrays.get("positives", np.eye(n) > 0)
    positives = positives if positives.ndim == 2 else positives[:, None] == np.arange(n)
    further = {"mask": arrays["mask"]} if "mask" in arrays else {}
    negatives = arrays.get("negative_keys", arrays.get("queue"))
    if (problem.options.get("symmetric") and problem.name != "relic") or np.ndim(negatives) == 3:
        return None
    if negatives is not None:
        y, positives = np.concatenate([y, negatives]), np.eye(n, n + len(negatives)) > 0
        own = further.get("mask", np.ones((n, len(negatives))) > 0) & arrays.get("valid", np.ones(len(negatives)) > 0)
        further["mask"] = np.concatenate([positives[:, :n], own], axis=1)
    if problem.name not in {"clip", "relic"}:
        further["positives"] = positives
    return {"moco": "info_nce", "siglip": "logistic"}.get(problem.name, problem.name), x, y, further


def of_views(problem: Problem) -> Written:
    """Write down the pairs of a loss of views."""
    arrays = problem.arrays
    names = ("view_a", "view_b", *(["further_views"] if "further_views" in arrays else []))
    x = np.concatenate([arrays[name] for name in names])
    sample = np.arange(len(x)) % len(arrays["view_a"])
    others = ~(np.eye(len(x)) > 0)
    further = {"positives": sample[:, None] == sample, "mask": arrays.get("mask", others) & others}
    if "weights" in arrays:
        further["weights"] = np.resize(arrays["weights"], len(x))
    if problem.name == "dclw":
        further["temperature"] = np.asarray(problem.temperature)
    return problem.name.replace("nt_xent", "info_nce"), x, x, further


def of_labels(problem: Problem) -> Written | None:
    """Write down the pairs of a loss of labelled embeddings."""
    x, labels = problem.arrays["embeddings"], problem.arrays["labels"]
    others = ~(np.eye(len(x)) > 0)
    further = {"positives": labels[:, None] == labels, "mask": problem.arrays.get("mask", others) & others}
    if problem.options.get("base_temperature") is not None:
        return None
    short = {"soft_nearest_neighbor": "nca", "triplet_from_labels": "triplet"}
    return short.get(problem.name, problem.name), x, x, further


WRITTEN: Mapping[str, Callable[[Problem], Written | None]] = {
    **dict.fromkeys(("info_nce", "clip", "siglip", "relic", "moco"), of_queries),
    **dict.fromkeys(("nt_xent", "flat_nce", "dcl", "dclw"), of_views),
    **dict.fromkeys(("supcon", "nca", "soft_nearest_neighbor", "contrastive", "triplet_from_labels"), of_labels),
}


@pytest.mark.parametrize("name", WRITTEN)
@fuzz(30)
@given(data=st.data(), block_size=st.sampled_from(BLOCKS))
def test_a_loss_of_embeddings_is_one_of_their_scores(name: str, data: st.DataObject, block_size: Any) -> None:
    """With the scores and the pairs written down, and every option."""
    problem = data.draw(problems(name))
    written = WRITTEN[name](problem)
    if written is None:
        return
    short, x, y, further = written
    scores = score_matrix(problem, x, y) + (problem.factor("logit_bias") or 0.0)
    known = inspect.signature(getattr(pnce.from_scores, short)).parameters
    weights = {key: problem.arrays[key] for key in ("weights",) if key in problem.arrays}
    options = {key: value for key, value in problem.options.items() if key in known and key not in further}
    loss = Problem(f"from_scores.{short}", {"scores": scores, **weights, **further}, {}, [], options)
    wanted = np.asarray(call(loss, loss.arrays))
    got = np.asarray(call(problem, problem.arrays, block_size=block_size))
    compare("loss", problem, got, wanted, 4.0 * tolerances(problem, "float64")["loss"])


@pytest.mark.parametrize("loss", [pnce.info_nce, pnce.n_tuple])
def test_long_and_short_embeddings(loss: Callable[..., Any]) -> None:
    """Scores of order one, of embeddings whose squares single precision cannot hold: no warning of an overflow."""
    x = np.asarray([[1.0, 0.5], [-0.5, 1.0]], dtype=np.float32)
    long, short = x * np.float32(2.0**100), x * np.float32(2.0**-100)
    wanted = loss(x, x, similarity="dot", temperature=1.0)
    np.testing.assert_array_equal(loss(long, short, similarity="dot", temperature=1.0), wanted)


def test_the_hardest_positive_takes_part() -> None:
    """A score of minus infinity takes no part, whichever triples are mined."""
    scores = np.asarray([[-np.inf, 0.5, 0.25]])
    positives = np.asarray([[True, True, False]])
    losses = [pnce.from_scores.triplet(scores, positives=positives, mining=m) for m in ("batch_all", "batch_hard")]
    np.testing.assert_allclose(losses[1], losses[0])
