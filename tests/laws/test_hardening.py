"""Every loss with any combination of its options, on awkward numbers: laws that hold whatever the numbers are.

A problem is a loss with its arrays and options. What can be masked, weighted, labelled, paired, reduced and cut into
blocks is, at random; the numbers are ordinary, tied, zero, all the same, huge, tiny or infinite.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce.testing import oracles
from portable_nce.testing.cases import LOSSES, Case

Array: TypeAlias = Any
"""A NumPy array."""

BLOCKS = (1, 2, 3, 12, "auto", None)
EPS: Mapping[str, float] = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
NAMED = ("dot", "cosine", "neg_sq_euclidean", "neg_euclidean")


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
    """A loss and its gradients, as NumPy arrays in double precision."""

    loss: Array
    gradients: Mapping[str, Array]
    dtype: str


def call(problem: Problem, arrays: Mapping[str, Any], **further: Any) -> Any:
    """Call the loss of a problem on arrays of any library."""
    options, named = {**problem.options, **further}, dict(arrays)
    if "valid" in named:
        rows = "support" if "support" in named else "queue"
        named[rows] = pnce.Queue(named[rows], named.pop("valid"))
    if problem.name == "contrast":
        options |= parts_of(options, named)
    return Case(name=problem.name, loss=problem.name, arguments=named, options=options).call(named)


def parts_of(options: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """Give the pairing and the objective of `contrast`, made of arrays and options."""
    pairing = options.pop("pairing")
    if pairing == "labels":
        columns = (named.pop("columns"),) if "y" in named else ()
        made: Any = pnce.pairings.labels(named.pop("labels"), *columns)
    elif pairing in {"index", "explicit"}:
        made = getattr(pnce.pairings, pairing)(named.pop("positives"))
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
    loss, found = differentiated(problem, arrays, np.asarray, **further)
    assert isinstance(loss, np.ndarray)
    gradients = {key: g.astype(np.float64) for key, g in zip(problem.variables, found, strict=True)}
    return Result(loss.astype(np.float64), gradients, str(loss.dtype))


def run_torch(problem: Problem, dtype: str = "float64", *, plainly: bool = True, **further: Any) -> Result:
    """Compute a loss and its gradients by torch's autograd, or by its functional transform."""
    arrays = {key: torch.asarray(x.copy()) for key, x in problem.arrays.items()}
    arrays = {key: x.to(getattr(torch, dtype)) if x.is_floating_point() else x for key, x in arrays.items()}
    loss, found = differentiated(problem, arrays, torch.asarray, plainly=plainly, **further)
    gradients = {key: g.double().numpy() for key, g in zip(problem.variables, found, strict=True)}
    dtype_found = str(loss.dtype).removeprefix("torch.")
    return Result(loss.detach().double().numpy(), gradients, dtype_found)


def differentiated(
    problem: Problem, arrays: Mapping[str, Any], convert: Callable[..., Any], *, plainly: bool = False, **further: Any
) -> tuple[Any, Sequence[Any]]:
    """Give the losses, and the gradients of their sum times a cotangent."""

    def total(*variables: Any) -> tuple[Any, Any]:
        loss = call(problem, {**arrays, **dict(zip(problem.variables, variables, strict=True))}, **further)
        return (loss * convert(cotangent(tuple(loss.shape)), dtype=loss.dtype)).sum(), loss

    chosen = [arrays[key] for key in problem.variables]
    found: Sequence[Any]
    if plainly:
        leaves = [x.clone().requires_grad_() for x in chosen]
        value, loss = total(*leaves)
        found = torch.autograd.grad(value, leaves, materialize_grads=True)
    else:
        (_, loss), found = pnce.value_and_grad(total, argnums=tuple(range(len(chosen))), has_aux=True)(*chosen)
    assert all(g.dtype == x.dtype and g.shape == x.shape for g, x in zip(found, chosen, strict=True))
    return loss, found


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

DRAWN_APART = {
    *("y", "labels", "queue", "support", "targets", "projections", "prototypes", "assignments", "concentrations")
}
EMBEDDED: Mapping[str, Sequence[str]] = {
    name: [key for key in loss.arguments if key not in DRAWN_APART]
    for name, loss in LOSSES.items()
    if loss.laws
    and name not in {"distillation", "gist_embed", "hcl", "joint_info_nce"}
    and not name.startswith("from_scores.")
    and " " not in name
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
            self.embed("view_c", "ND", rows, features)
        views = views_of(self.name) + ("view_c" in self.arrays)
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
    for key in EMBEDDED[name]:
        draft.embed(key, "ND", rows, features)
    columns, axes = FURTHER.get(name, Draft.pair)(draft, rows, features)
    rows = draft.arrays[EMBEDDED[name][0]].shape[0]
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


def problems(name: str, count: int, *styles: str) -> Iterator[tuple[Problem, dict[str, Any]]]:
    """Make problems of a loss, each with the option of an execution; they are the same in every run."""
    make, usual = (of_scores, SCORE_STYLES) if name in SCORED else (of_embeddings, EMBEDDING_STYLES)
    numbers = np.random.default_rng([*name.encode(), count])
    for seed, rows, block in numbers.integers((0, 1, 0), (2**32, 10, len(BLOCKS)), size=(count, 3)).tolist():
        yield make(name, styles or usual, seed, rows), {"block_size": BLOCKS[block]} if name in EMBEDDED else {}


# ------------------------------------------------------------------------------------------------------------- the laws


def expected_shape(problem: Problem) -> tuple[int, ...]:
    """Give the shape of a loss."""
    if problem.options["reduction"] != "none":
        return ()
    views = 2 if problem.options.get("negatives") == "views" else views_of(problem.name)
    return (next(iter(problem.arrays.values())).shape[0] * (views + ("view_c" in problem.arrays)),)


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


ANY_STYLE = [
    *((name, style) for name in EMBEDDED for style in EMBEDDING_STYLES),
    *((name, style) for name in SCORED for style in SCORE_STYLES),
]


@pytest.mark.parametrize(("name", "style"), ANY_STYLE)
def test_libraries_and_blocks(name: str, style: str) -> None:
    """Dense and in blocks, by the tape and by torch: one number and one gradient, of the right kind, without NaN."""
    for k, (problem, further) in enumerate(problems(name, 7, style)):
        dense = run_numpy(problem, "float64", **dict.fromkeys(further))
        assert dense.loss.shape == expected_shape(problem)
        assert dense.dtype == "float64"
        assert_no_nan(problem, dense)
        results = [
            run_torch(problem, plainly=k % 2 > 0, **further),
            *([run_numpy(problem, **further)] if further else []),
        ]
        for result in results:
            assert_no_nan(problem, result)
            assert_same(problem, result, dense, slopes=not problem.kinked)


@pytest.mark.parametrize("name", ANY)
def test_single_precision(name: str) -> None:
    """In single precision the same to its rounding, of its own dtype."""
    for drawn, further in problems(name, 8, "normal"):
        problem = rounded(drawn, "float32")
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ANY)
def test_half_precision(name: str, dtype: str) -> None:
    """In 16 bits what single precision gives, rounded once."""
    for drawn, further in problems(name, 8):
        problem = rounded(drawn, dtype)
        if problem.arrays.get("weights", np.ones(1)).max() >= 100.0:
            continue
        for run in [run_torch, *([run_numpy] if dtype == "float16" else [])]:
            with np.errstate(over="ignore"):  # of what 16 bits cannot hold
                wanted, result = run(problem, "float32", **further), run(problem, dtype, **further)
            assert result.dtype == dtype
            for key, exact in {"loss": wanted.loss, **wanted.gradients}.items():
                got = result.loss if key == "loss" else result.gradients[key]
                small = np.abs(exact) < 6e4
                # One rounding, and those of the arithmetic, which may be in another order.
                bound = 1.01 * EPS[dtype] * np.abs(exact) + 2.0**-24 + tolerances(problem, "float32")[key]
                assert (np.abs(got - exact) <= bound)[small].all(), (key, got, exact, problem)


@pytest.mark.parametrize("name", ["clip", "dcl", "flat_nce", "info_nce", "logistic", "nca", "relic", "supcon"])
def test_infinite_scores(name: str) -> None:
    """An infinite score is a loss of infinity, or of nothing; neither the losses of rows nor gradients are NaN."""
    for drawn, _ in problems(f"from_scores.{name}", 30, "plus infinity", "infinities"):
        problem = replace(drawn, options={**drawn.options, "reduction": "none"})
        if problem.arrays.get("weights", np.ones(1)).max() >= 100.0:
            continue
        with np.errstate(invalid="ignore"):  # of one loss of infinity and another of minus infinity, which are added
            results = (run_numpy(problem), run_torch(problem))
        for result in results:
            assert_no_nan(problem, result)


# ----------------------------------------------------------------------------------------------------------- the values


def in_words_of_the_oracles(problem: Problem) -> dict[str, Array] | None:
    """Give the arrays as the oracles take them: a mask for scores of minus infinity, and for slots never written."""
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
    """What the published sums give, with every option."""
    for problem, further in problems(name, 24):
        arrays = in_words_of_the_oracles(problem)
        if arrays is None:
            continue
        nested = {key: x.tolist() for key, x in arrays.items()}
        wanted = oracles.numbers_of(oracles.evaluate(name, nested, problem.options))
        got = np.asarray(call(problem, problem.arrays, **further))
        exact = np.asarray([float(x) for x in wanted]).reshape(got.shape)
        compare("loss", problem, got, exact, tolerances(problem, "float64")["loss"])


# --------------------------------------------------------------------------------------------------- the order of rows


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
def test_order_of_rows(name: str) -> None:
    """In another order the loss is the same, and the gradient, and the losses of rows, are in that order."""
    for seed, (drawn, further) in enumerate(problems(name, 12)):
        problem, (other, order) = drawn, permuted(drawn, np.random.default_rng(seed))
        if problem.options["reduction"] == "none":
            rows, turned = (np.asarray(call(one, one.arrays, **further)) for one in (problem, other))
            bound = tolerances(problem, "float64")["loss"]
            compare("losses", problem, turned, rows[order["V"][: rows.size]], bound)
            problem, other = (replace(one, options={**one.options, "reduction": "sum"}) for one in (problem, other))
        result, wanted = run_numpy(other, **further), run_numpy(problem, **further)
        gradients = {key: reordered(g, problem.axes[key], order) for key, g in wanted.gradients.items()}
        assert_same(problem, result, replace(wanted, gradients=gradients), slopes=not problem.kinked)


# ------------------------------------------------------------------------------------------------------- of the scores


DEGREES: Mapping[str, float] = {"dot": 2.0, "neg_sq_euclidean": 2.0, "neg_euclidean": 1.0, "cosine": 0.0}
HOMOGENEOUS = [
    *("info_nce", "n_tuple", "nt_xent", "flat_nce", "dcl", "relic", "clip", "siglip", "supcon", "nca"),
    *("soft_nearest_neighbor", "contrastive", "triplet_from_labels", "triplet", "contrast"),
]


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_longer_embeddings_are_a_lower_temperature(name: str) -> None:
    """What Euler says of functions of the scores alone: the gradients of embeddings and temperature belong together."""
    for drawn, further in problems(name, 16):
        plain: dict[str, Any] = {"base_temperature": None, "max_logit_scale": None, "l2": 0.0}
        options = {**drawn.options, **{key: plain[key] for key in plain.keys() & drawn.options.keys()}}
        problem, cosine = replace(drawn, options=options), options["similarity"] == "cosine"
        factor, sign = ("logit_scale", 1.0) if "logit_scale" in problem.arrays else ("temperature", -1.0)
        if options.get("objective", " ")[0] == "dclw" or not (cosine or factor in problem.arrays):
            continue
        bounds = tolerances(problem, "float64")
        for result in (run_numpy(problem, **further), run_torch(problem, **further)):
            along = {
                key: (problem.arrays[key] * result.gradients[key]).sum(axis=-1)
                for key in problem.variables
                if problem.axes[key].endswith("D")
            }
            if cosine:
                for key, found in along.items():
                    bound = bounds[key] * max(1.0, float(np.abs(problem.arrays[key]).max()))
                    compare(f"{key}, lengthwise", problem, found, np.zeros_like(found), bound)
                continue
            wanted = sign * DEGREES[options["similarity"]] * problem.arrays[factor] * result.gradients[factor]
            bound = sum(problem.arrays[key].size * problem.dots * bounds[key] for key in along)
            bound += bounds[factor] * float(problem.arrays[factor])
            compare("lengthwise", problem, sum(found.sum() for found in along.values()), wanted, bound)


@pytest.mark.parametrize("exponent", [-100, -1, 3, 100])
@pytest.mark.parametrize("name", [name for name in EMBEDDED if name not in {"n_tuple", "cpc"}])
def test_the_cosine_knows_no_length(name: str, exponent: int) -> None:
    """Embeddings longer by a power of two: exactly the same loss, and gradients shorter by it."""
    factor = 2.0**exponent
    for drawn, further in problems(name, 8):
        problem = replace(drawn, options={**drawn.options, "similarity": "cosine"})
        embedded = {key for key in problem.arrays if problem.axes[key].endswith("D")}
        arrays = {key: x * factor if key in embedded else x for key, x in problem.arrays.items()}
        for run in (run_numpy, run_torch):
            wanted, result = run(problem, **further), run(replace(problem, arrays=arrays), **further)
            np.testing.assert_array_equal(result.loss, wanted.loss)
            for key, gradient in wanted.gradients.items():
                scaled = gradient / factor if key in embedded else gradient
                np.testing.assert_array_equal(result.gradients[key], scaled)


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
