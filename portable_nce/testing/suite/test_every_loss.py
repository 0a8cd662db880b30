"""What every public loss promises alike: its signature, the kind of its result, and finite numbers on any input.

One table says of each loss how to call it; a loss without a row fails the suite.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp, mpf

from .. import oracles
from .._package import pnce
from ..variants import assert_belongs, differentiate, flatten, generator

if TYPE_CHECKING:
    from ..variants import Nested, Variant

N, D, SLOTS, CLUSTERS, STEPS, WIDTH = 4, 3, 5, 3, 2, 2
"""Samples, features, rows of a memory, prototypes, steps ahead, and features of a target."""

PAIRS, TRIPLES = "pairs", "triples"

NO_LOSSES = {
    "Adapter": "a protocol",
    "Communicator": "a protocol",
    "Queue": "a memory",
    "Ranks": "an argument of losses",
    "across": "an argument of losses",
    "angle": "one logarithm for the batch, in test_graded",
    "backends_available": "of the registry",
    "bounds": "a module",
    "concentrations": "an argument of proto_nce",
    "cosent": "one logarithm for the batch, in test_graded",
    "density": "a module",
    "diagnostics": "a module",
    "from_scores": "a module, whose losses have rows of their own",
    "from_scores.cosent": "one logarithm for the batch, in test_graded",
    "grad": "of differentiation",
    "matryoshka": "a loss made of another, in test_nested",
    "objectives": "a module",
    "pairings": "a module",
    "queue_init": "a memory",
    "queue_push": "a memory",
    "register_backend": "of the registry",
    "similarities": "a module",
    "sogclr": "a loss that returns its state too, in test_state",
    "stop_gradient": "of differentiation",
    "typing": "a module",
    "value_and_grad": "of differentiation",
}
"""The public names that are no losses, and what they are."""

NOT_SHARED = {
    ("clip", "temperature"): "its scale is the inverse, logit_scale",
    ("siglip", "temperature"): "its scale is the inverse, logit_scale",
    ("from_scores.clip", "positives"): "the positives are on the diagonal, of rows and of columns",
    ("from_scores.relic", "positives"): "the positives are on the diagonal, of the scores and of their transpose",
}
"""The keywords that all losses share but these, and why."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """How to call a loss.

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
    views
        Rows of the result for each sample.
    mask
        The shape of a mask.
    divide_by
        What a mean divides by: the weights of the rows, these times the pairs or triples of each, or (None) else.
    alone
        Whether a sample alone, which has no negatives, is worth nothing.
    unpaired
        Whether rows without a positive are worth something.
    together
        Whether rows without a negative are worth something.
    """

    arguments: tuple[str, ...]
    temperature: float | None = None
    similarity: str | None = None
    keywords: tuple[str, ...] = ()
    parameters: Mapping[str, float] = field(default_factory=lambda: {"temperature": 0.5})
    options: Mapping[str, Any] = field(default_factory=dict)
    constant: frozenset[str] = frozenset()
    views: int = 1
    mask: tuple[int, ...] = (N, N)
    divide_by: str | None = "rows"
    alone: bool = False
    unpaired: bool = False
    together: bool = False


def of_views(*names: str, **options: Any) -> Loss:
    """Describe a loss of the views of a batch, each against all others."""
    views = len(names)
    return Loss(
        arguments=names,
        temperature=0.1,
        similarity="cosine",
        views=views,
        mask=(views * N, views * N),
        alone=True,
        **options,
    )


def of_labels(temperature: float, similarity: str, **options: Any) -> Loss:
    """Describe a loss of labelled embeddings."""
    return Loss(arguments=("embeddings", "labels"), temperature=temperature, similarity=similarity, **options)


def of_scores(**options: Any) -> Loss:
    """Describe a loss of a score matrix."""
    merged: dict[str, Any] = {"parameters": {}, **options}
    return Loss(arguments=("scores",), **merged)


def of_two(first: str, second: str, temperature: float | None, similarity: str = "cosine", **options: Any) -> Loss:
    """Describe a loss of two arrays of embeddings, row i of one with row i of the other."""
    return Loss(arguments=(first, second), temperature=temperature, similarity=similarity, **options)


def of_prototypes(*keywords: str, constant: tuple[str, ...] = (), **options: Any) -> Loss:
    """Describe ProtoNCE."""
    return Loss(
        arguments=("embeddings", "prototypes", "assignments", "concentrations"),
        temperature=0.1,
        similarity="cosine",
        keywords=keywords,
        constant=frozenset({"prototypes", "concentrations", *constant}),
        mask=(N, CLUSTERS),
        **options,
    )


NEIGHBORS = Loss(
    arguments=("view_a", "view_b", "support"),
    temperature=0.1,
    similarity="cosine",
    constant=frozenset({"view_a", "support"}),
    alone=True,
)
JUDGED = Loss(
    arguments=("query", "key", "teacher_query", "teacher_key"),
    temperature=0.07,
    similarity="cosine",
    constant=frozenset({"teacher_query", "teacher_key"}),
    alone=True,
)
MARGINS = {"margin": 4.0}
SCALE = {"logit_scale": 8.0}

LOSSES: dict[str, Loss] = {
    "clip": of_two("image", "text", None, parameters=SCALE, alone=True),
    "contrast": of_two("x", "y", 1.0, options={"objective": "info_nce"}, alone=True),
    "contrast logistic": of_two("x", "y", 1.0, options={"objective": "logistic"}, unpaired=True, together=True),
    "contrastive": of_labels(1.0, "neg_euclidean", divide_by=PAIRS, options=MARGINS, unpaired=True, together=True),
    "contrastive balance": of_labels(
        1.0, "neg_euclidean", divide_by=None, options={**MARGINS, "balance": True}, unpaired=True, together=True
    ),
    "cpc": Loss(
        arguments=("context", "targets", "projections"),
        temperature=1.0,
        similarity="dot",
        alone=True,
    ),
    "dcl": of_views("view_a", "view_b"),
    "distillation": JUDGED,
    "dclw": of_views("view_a", "view_b"),
    "flat_nce": of_views("view_a", "view_b"),
    "flat_nce detach": of_views("view_a", "view_b", options={"form": "detach"}),
    "gist_embed": replace(
        JUDGED,
        arguments=("query", "key", "guide_query", "guide_key"),
        temperature=0.01,
        constant=frozenset({"guide_query", "guide_key"}),
        options={"margin": -4.0},
    ),
    "hcl": replace(of_views("view_a", "view_b"), temperature=0.5),
    "info_nce": of_two("query", "positive_key", 0.07, alone=True),
    "info_nce symmetric": of_two("query", "positive_key", 0.07, options={"symmetric": True}, alone=True),
    "info_nce shared": Loss(
        arguments=("query", "positive_key", "negative_keys"),
        temperature=0.07,
        similarity="cosine",
        mask=(N, SLOTS),
    ),
    "info_nce hardness": of_two("query", "positive_key", 0.07, options={"hardness": 2.0}, alone=True),
    "joint_info_nce": of_two("query", "key", 0.01, alone=True),
    "moco": Loss(
        arguments=("query", "key", "queue"),
        temperature=0.07,
        similarity="cosine",
        constant=frozenset({"queue"}),
        mask=(N, SLOTS),
    ),
    "moco_v3": Loss(
        arguments=("query_a", "query_b", "key_a", "key_b"),
        temperature=0.2,
        similarity="cosine",
        constant=frozenset({"key_a", "key_b"}),
        alone=True,
    ),
    "n_tuple": of_two("query", "key", 1.0, "dot", options={"l2": 0.25}),
    "nca": of_labels(1.0, "neg_sq_euclidean"),
    "nnclr": NEIGHBORS,
    "nnclr symmetric": replace(NEIGHBORS, options={"symmetric": True}),
    "nt_xent": of_views("view_a", "view_b"),
    "nt_xent three views": of_views("view_a", "view_b", "view_c"),
    "proto_nce": of_prototypes(parameters={}),
    "proto_nce key": of_prototypes("key", unpaired=True),
    "proto_nce queue": of_prototypes("key", "queue", constant=("queue",), unpaired=True),
    "relic": of_two("view_a", "view_b", 0.1, alone=True),
    "relic symmetric": of_two(
        "view_a", "view_b", 0.1, options={"symmetric": True, "stop_gradient": "second"}, alone=True
    ),
    "siglip": of_two("image", "text", None, parameters={**SCALE, "logit_bias": -4.0}, unpaired=True, together=True),
    "soft_nearest_neighbor": of_labels(1.0, "neg_sq_euclidean"),
    "supcon": of_labels(0.1, "cosine", options={"base_temperature": 0.25}, together=True),
    "supcon separate": of_labels(0.1, "cosine", options={"multi_positive": "separate"}),
    "two_tower": Loss(arguments=("query", "candidate"), temperature=1.0, similarity="dot", alone=True),
    "triplet": Loss(
        arguments=("anchor", "positive", "negative"),
        temperature=1.0,
        similarity="neg_euclidean",
        options=MARGINS,
        mask=(N,),
    ),
    "triplet_from_labels": of_labels(1.0, "neg_euclidean", divide_by=TRIPLES, options=MARGINS),
    "triplet_from_labels batch_hard": of_labels(
        1.0, "neg_euclidean", options={**MARGINS, "mining": "batch_hard", "form": "soft"}
    ),
    "from_scores.clip": of_scores(),
    "from_scores.contrastive": of_scores(divide_by=PAIRS, options=MARGINS, unpaired=True, together=True),
    "from_scores.dcl": of_scores(),
    "from_scores.dclw": of_scores(temperature=1.0, parameters={"temperature": 0.5}),
    "from_scores.flat_nce": of_scores(),
    "from_scores.info_nce": of_scores(together=True),
    "from_scores.info_nce separate": of_scores(options={"multi_positive": "separate"}),
    "from_scores.logistic": of_scores(unpaired=True, together=True),
    "from_scores.nca": of_scores(),
    "from_scores.relic": of_scores(),
    "from_scores.relic symmetric": of_scores(options={"symmetric": True, "direction": "b_to_a"}),
    "from_scores.supcon": of_scores(together=True),
    "from_scores.triplet": of_scores(divide_by=TRIPLES, options=MARGINS),
    "from_scores.triplet batch_hard": of_scores(options={**MARGINS, "mining": "batch_hard"}),
}
"""Every public loss; and, after a blank, with an option that changes the way it takes through the library."""

BOUNDS = [f"bounds.{name}" for name in pnce.bounds.__all__]
"""They take no options of a loss: a bound is a number that its definition fixes."""

EITHER_WAY = {
    ("bounds.barber_agakov", "entropy"),
    ("bounds.interpolated", "alpha"),
    ("bounds.interpolated", "log_baseline"),
    ("bounds.mine", "log_mean"),
    ("bounds.smile", "clip"),
    ("bounds.tuba", "log_baseline"),
}
"""What belongs to the definition of a bound, behind its scores, and may be named."""

NAMES = list(LOSSES)
PLAIN = [name for name in NAMES if " " not in name]
OF_EMBEDDINGS = [name for name in NAMES if not name.startswith("from_scores.")]
SQUARE = [name for name in NAMES if (name.split(" ")[0], "positives") in NOT_SHARED]
BLOCKS = [None, 2]
CALLS = [
    pytest.param(name, block, id=f"{name}{', streamed' * (block is not None)}")
    for name in NAMES
    for block in BLOCKS
    if block is None or name in OF_EMBEDDINGS
]
"""Every loss, dense and streamed."""


def function_of(name: str) -> Callable[..., Any]:
    """Look a loss up."""
    found: Any = pnce
    for part in name.split(maxsplit=1)[0].split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def numbers(*shape: int, seed: int, scale: float = 1.0) -> Nested:
    """Draw numbers that every dtype holds."""
    draw = generator(seed)

    def fill(axes: tuple[int, ...]) -> Nested:
        return [fill(axes[1:]) for _ in range(axes[0])] if axes else scale * draw.randint(-24, 24) / 16

    return fill(shape)


def filled(value: Nested, *shape: int) -> Nested:
    """Repeat a number, or a row of them."""
    for length in reversed(shape):
        value = [value] * length
    return value


SHAPES: Mapping[str, tuple[int, ...]] = {
    "targets": (STEPS, N, WIDTH),
    "projections": (STEPS, WIDTH, D),
    "queue": (SLOTS, D),
    "support": (SLOTS, D),
    "negative_keys": (SLOTS, D),
    "prototypes": (CLUSTERS, D),
    "scores": (N, N),
}
"""Shapes of the arrays that are no (N, D)."""

FLOATS: dict[str, Callable[[tuple[int, ...], int], Nested]] = {
    "usual": lambda shape, seed: numbers(*shape, seed=seed),
    "zero": lambda shape, _: filled(0.0, *shape),
    "one zero row": lambda shape, seed: [filled(0.0, *shape[1:]), *numbers(*shape, seed=seed)[1:]],
    "identical rows": lambda shape, _: filled([0.5, -1.25, 0.75, 1.5][: shape[-1]], *shape[:-1]),
    "zero, and identical rows": lambda shape, _: [
        filled(0.0, *shape[1:]),
        *filled([0.5, -1.25, 0.75, 1.5][: shape[-1]], shape[0] - 1, *shape[1:-1]),
    ],
    "large": lambda shape, seed: numbers(*shape, seed=seed, scale=1e4),
    "small": lambda shape, seed: numbers(*shape, seed=seed, scale=1e-4),
}
"""Ways to fill the arrays of embeddings."""

LABELS = {"pairs": [0, 0, 1, 1], "equal": [7] * N, "distinct": [3, 1, 2, 0]}


def inputs_of(
    variant: Variant,
    name: str,
    dtype: str | None = None,
    *,
    fill: str = "usual",
    labels: str = "pairs",
    samples: int = N,
) -> dict[str, Any]:
    """Make every array of a loss: those of its signature, and its parameters."""
    loss = LOSSES[name]
    made: dict[str, Any] = {}
    for seed, argument in enumerate((*loss.arguments, *loss.keywords)):
        if argument == "labels":
            made[argument] = variant.array(LABELS[labels][:samples])
        elif argument == "assignments":
            made[argument] = variant.array([i % CLUSTERS for i in range(samples)])
        elif argument == "concentrations":
            made[argument] = variant.floats([0.25, 0.5, 0.375], dtype)
        else:
            # One sample less is one row less, where rows are samples; square scores keep their columns.
            shape = list(SHAPES.get(argument, (N, D)))
            if argument not in {"projections", "queue", "support", "negative_keys", "prototypes"}:
                shape[-2] = samples
            made[argument] = variant.floats(FLOATS[fill](tuple(shape), seed), dtype)
    return made | {key: variant.floats(value, dtype) for key, value in loss.parameters.items()}


def call(name: str, arrays: Mapping[str, Any], **options: Any) -> Any:
    """Call a loss on arrays by name."""
    loss = LOSSES[name]
    positional = [arrays[argument] for argument in loss.arguments]
    keywords = {key: array for key, array in arrays.items() if key not in loss.arguments}
    return function_of(name)(*positional, **{**loss.options, **keywords, **options})


def block_option(name: str, block_size: int | None) -> dict[str, Any]:
    """Give the option of the execution, where there is one."""
    return {"block_size": block_size} if name in OF_EMBEDDINGS else {}


def value_and_gradients(name: str, arrays: Mapping[str, Any], **options: Any) -> tuple[Any, dict[str, Any]]:
    """Give the loss, and its gradient with respect to every floating-point array, by name."""
    floats = [key for key in arrays if key not in {"labels", "assignments"}]

    def function(*given: Any) -> Any:
        return call(name, {**arrays, **dict(zip(floats, given, strict=True))}, **options)

    value, gradients = differentiate(function, [arrays[key] for key in floats])
    return value, dict(zip(floats, gradients, strict=True))


def assert_finite(variant: Variant, value: Any, gradients: Mapping[str, Any]) -> None:
    """Every number is finite."""
    for key, array in {"value": value, **gradients}.items():
        listed = flatten(variant.to_list(array))
        assert all(mp.isfinite(number) for number in listed), (key, listed)


def assert_nothing(variant: Variant, value: Any, gradients: Mapping[str, Any]) -> None:
    """The loss is exactly 0, and so is its gradient with respect to everything."""
    for key, array in {"value": value, **gradients}.items():
        listed = flatten(variant.to_list(array))
        assert all(number == 0 for number in listed), (key, listed)


# --- the table and the signatures -----------------------------------------------------------------------------------


def test_every_loss_has_a_row() -> None:
    public = {*pnce.__all__, *(f"from_scores.{name}" for name in pnce.from_scores.__all__)}
    assert set(PLAIN) == public - set(NO_LOSSES)
    assert set(NO_LOSSES) <= public


def documented_defaults(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring says of the defaults: their text, "None" of what is optional, "" of what has to be given."""
    text = (inspect.getdoc(function) or "").partition("Parameters\n")[2].partition("\nReturns\n")[0]
    found: dict[str, str] = {}
    for names, description in re.findall(r"^(\*?\w[\w, ]*) : (.*)$", text, flags=re.MULTILINE):
        _, said, default = description.partition("default: ")
        default = default if said else "None" * description.endswith("optional")
        found |= dict.fromkeys((name.strip() for name in names.split(",")), default.replace('"', "'"))
    return found


GRADED = ["angle", "cosent", "from_scores.cosent"]


@pytest.mark.parametrize("name", [*PLAIN, *BOUNDS, *GRADED])
def test_arrays_are_positional_and_options_are_keywords(name: str) -> None:
    """What is required is positional only; arrays behind it that may be left out can be named, too."""
    kind = inspect.Parameter
    parameters = inspect.signature(function_of(name)).parameters
    positional = {
        key: p for key, p in parameters.items() if p.kind in {kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD}
    }
    for key, parameter in positional.items():
        if (name, key) not in EITHER_WAY:
            only = parameter.kind is kind.POSITIONAL_ONLY
            assert parameter.default is (kind.empty if only else None), key
    assert [key for key, p in parameters.items() if p.kind is kind.VAR_POSITIONAL] == (
        ["further_views"] if name == "nt_xent" else []
    )
    if name in LOSSES:
        wanted = LOSSES[name].arguments
        assert tuple(positional)[: len(wanted)] == wanted


@pytest.mark.parametrize("name", PLAIN)
def test_the_shared_keywords_have_their_defaults(name: str) -> None:
    loss = LOSSES[name]
    shared: dict[str, Any] = {"mask": None, "weights": None, "reduction": "mean"}
    if name in OF_EMBEDDINGS:
        shared |= {"temperature": loss.temperature, "similarity": loss.similarity, "block_size": "auto"}
    else:
        shared |= {"positives": None}
    parameters = inspect.signature(function_of(name)).parameters
    for key, default in shared.items():
        if (name, key) in NOT_SHARED:
            assert key not in parameters
        else:
            assert parameters[key].default == default
            assert parameters[key].kind is inspect.Parameter.KEYWORD_ONLY


def test_no_exception_is_made_without_need() -> None:
    assert {name for name, _ in NOT_SHARED} <= set(PLAIN)
    assert all(LOSSES[name].temperature is None for name, key in NOT_SHARED if key == "temperature")


@pytest.mark.parametrize("name", [*PLAIN, *BOUNDS, *GRADED, "matryoshka", "concentrations", "queue_init", "queue_push"])
def test_the_docstring_says_the_defaults(name: str) -> None:
    parameters = inspect.signature(function_of(name)).parameters
    said = documented_defaults(function_of(name))
    assert list(said) == [f"*{key}" if p.kind is p.VAR_POSITIONAL else key for key, p in parameters.items()]
    for key, parameter in parameters.items():
        if parameter.kind is not parameter.VAR_POSITIONAL:
            wanted = "" if parameter.default is parameter.empty else repr(parameter.default)
            assert said[key] == wanted, key


# --- the kind of the result -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradients(variant: Variant, name: str) -> None:
    """All of the input's kind and finite; the gradient of a memory exactly 0, and of nothing else."""
    arrays = inputs_of(variant, name)
    value, gradients = value_and_gradients(name, arrays)
    first = arrays[LOSSES[name].arguments[0]]
    assert_belongs(variant, value, first, ())
    assert_finite(variant, value, gradients)
    for key, gradient in gradients.items():
        assert_belongs(variant, gradient, arrays[key], tuple(arrays[key].shape))
        still = all(number == 0 for number in flatten(variant.to_list(gradient)))
        assert still == (key in LOSSES[name].constant), key


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_other_dtypes(variant: Variant, name: str, dtype: str) -> None:
    arrays = inputs_of(variant, name, dtype)
    value, gradients = value_and_gradients(name, arrays)
    assert_belongs(variant, value, arrays[LOSSES[name].arguments[0]], ())
    assert_finite(variant, value, gradients)
    for key, gradient in gradients.items():
        assert_belongs(variant, gradient, arrays[key], tuple(arrays[key].shape))


def mean_weight(loss: Loss, weights: list[float]) -> float:
    """The number that a mean divides by, when every row counts."""
    of_labels = "labels" in loss.arguments
    each = {
        "rows": loss.views,
        PAIRS: N - 1 if of_labels else N,
        TRIPLES: N - 2 if of_labels else N - 1,  # one positive each
    }
    return sum(weights) * each[loss.divide_by or "rows"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize(("name", "block_size"), CALLS)
def test_reductions_agree(variant: Variant, name: str, block_size: int | None, dtype: str | None) -> None:
    loss = LOSSES[name]
    arrays = inputs_of(variant, name, dtype)
    weights = [0.5, 0.0, 2.0, 1.0]
    options = {"weights": variant.floats(weights, dtype), **block_option(name, block_size)}
    first = arrays[loss.arguments[0]]
    rows = call(name, arrays, reduction="none", **options)
    assert_belongs(variant, rows, first, (loss.views * N,))
    listed = [mpf(number) for number in variant.to_list(rows)]
    assert [i for i, number in enumerate(listed) if number == 0] == [1 + N * view for view in range(loss.views)]
    total, mean = (call(name, arrays, reduction=reduction, **options) for reduction in ("sum", "mean"))
    assert_belongs(variant, total, first, ())
    assert_belongs(variant, mean, first, ())
    scale = sum(abs(number) for number in listed)
    tolerance = 8 * variant.eps(dtype)
    assert abs(mpf(variant.to_list(total)) - sum(listed)) <= tolerance * scale
    if loss.divide_by is not None:
        norm = mean_weight(loss, weights)
        assert abs(mpf(variant.to_list(mean)) - sum(listed) / norm) <= tolerance * scale / norm


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OF_EMBEDDINGS)
def test_the_execution_changes_nothing(variant: Variant, name: str) -> None:
    arrays = inputs_of(variant, name)
    value, gradients = value_and_gradients(name, arrays, block_size=None)
    streamed, slopes = value_and_gradients(name, arrays, block_size=2)
    wanted = [oracles.exact(variant.to_list(x)) for x in (value, *gradients.values())]
    for got, want in zip([streamed, *slopes.values()], wanted, strict=True):
        scale = max([mpf(1), *(abs(number) for number in oracles.numbers_of(want))])
        differences = zip(
            oracles.numbers_of(oracles.exact(variant.to_list(got))), oracles.numbers_of(want), strict=True
        )
        assert all(abs(a - b) <= 64 * variant.eps() * scale for a, b in differences)


# --- awkward inputs -------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "block_size"), CALLS)
def test_one_sample(variant: Variant, name: str, block_size: int | None) -> None:
    """A batch of one is no error: what needs negatives is worth nothing, the rest is finite."""
    arrays = inputs_of(variant, name, samples=1)
    if name in SQUARE:
        arrays = {"scores": arrays["scores"][:, :1]}
    options = block_option(name, block_size)
    value, gradients = value_and_gradients(name, arrays, **options)
    if LOSSES[name].alone:
        assert_nothing(variant, value, gradients)
    else:
        assert_finite(variant, value, gradients)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in NAMES if {"scores", "labels"} & set(LOSSES[name].arguments)])
def test_one_pair(variant: Variant, name: str) -> None:
    """A score matrix of one entry, a label alone: what needs a negative, or a positive, is worth nothing."""
    arrays = inputs_of(variant, name, samples=1)
    if "scores" in arrays:
        arrays["scores"] = arrays["scores"][:, :1]
    value, gradients = value_and_gradients(name, arrays)
    if name in {"from_scores.logistic", "from_scores.contrastive"}:
        assert_finite(variant, value, gradients)
    else:
        assert_nothing(variant, value, gradients)


@pytest.mark.exhaustive
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("name", "block_size"), [one for one in CALLS if not LOSSES[str(one.values[0])].keywords])
def test_everything_masked(variant: Variant, name: str, block_size: int | None, reduction: str) -> None:
    """Loss exactly 0, gradients exactly 0."""
    loss = LOSSES[name]
    arrays = inputs_of(variant, name)
    mask = variant.array(filled(False, *loss.mask))  # noqa: FBT003  (what is repeated)
    options = {"mask": mask, "reduction": reduction, **block_option(name, block_size)}
    if reduction == "none":
        assert variant.to_list(call(name, arrays, **options)) == [0.0] * (loss.views * N)
    else:
        assert_nothing(variant, *value_and_gradients(name, arrays, **options))


ROW_MASKS = [
    one
    for one in CALLS
    if LOSSES[str(one.values[0])].mask != (N, SLOTS)  # where the positive takes part, whatever the mask
    and not LOSSES[str(one.values[0])].keywords
    and LOSSES[str(one.values[0])].divide_by is not None
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "block_size"), ROW_MASKS)
def test_a_row_that_is_masked_does_not_count(variant: Variant, name: str, block_size: int | None) -> None:
    """Neither in the sum nor in what a mean divides by."""
    loss = LOSSES[name]
    arrays = inputs_of(variant, name)
    weights = [0.5, 4.0, 2.0, 1.0]
    mask = [filled(i % N != 1, *loss.mask[1:]) for i in range(loss.mask[0])]
    options = {
        "mask": variant.array(mask),
        "weights": variant.floats(weights),
        **block_option(name, block_size),
    }
    listed, mean = (
        [mpf(number) for number in flatten(variant.to_list(call(name, arrays, reduction=reduction, **options)))]
        for reduction in ("none", "mean")
    )
    assert [i for i, number in enumerate(listed) if number == 0] == [1 + N * view for view in range(loss.views)]
    norm = mean_weight(loss, [0.5, 0.0, 2.0, 1.0])
    scale = sum(abs(number) for number in listed)
    assert abs(mean[0] - sum(listed) / norm) <= 8 * variant.eps() * scale / norm


OUT = {(0, 1), (1, 0), (2, 3), (3, 2)}
"""Pairs that take no part; in both directions, so that a transpose has them too."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("dirt", [math.inf, -math.inf, math.nan, 1e4])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_EMBEDDINGS])
def test_scores_that_take_no_part(variant: Variant, name: str, dirt: float, dtype: str | None) -> None:
    """Under a mask they may hold anything; without one, minus infinity is the mask."""
    mask = variant.array([[(i, j) not in OUT for j in range(N)] for i in range(N)])
    arrays = inputs_of(variant, name, dtype)
    clean = variant.to_list(arrays["scores"])
    dirty = [[dirt if (i, j) in OUT else score for j, score in enumerate(row)] for i, row in enumerate(clean)]
    wanted = value_and_gradients(name, arrays, mask=mask)
    assert_finite(variant, *wanted)
    arrays["scores"] = variant.floats(dirty, dtype)
    for options in ({"mask": mask}, {})[: 2 if dirt == -math.inf else 1]:
        value, gradients = value_and_gradients(name, arrays, **options)
        assert variant.to_list(value) == variant.to_list(wanted[0])
        for key, gradient in gradients.items():
            assert variant.to_list(gradient) == variant.to_list(wanted[1][key])


@pytest.mark.exhaustive
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("name", [name for name in NAMES if LOSSES[name].keywords])
def test_a_mask_of_prototypes_leaves_the_keys(variant: Variant, name: str, block_size: int | None) -> None:
    """The InfoNCE term of ProtoNCE, which the mask does not reach."""
    arrays = inputs_of(variant, name)
    mask = variant.array(filled(False, *LOSSES[name].mask))  # noqa: FBT003  (what is repeated)
    value, gradients = value_and_gradients(name, arrays, mask=mask, block_size=block_size)
    assert_finite(variant, value, gradients)
    if name == "proto_nce key":
        alone = pnce.info_nce(arrays["embeddings"], arrays["key"], temperature=arrays["temperature"])
    else:
        alone = pnce.moco(arrays["embeddings"], arrays["key"], arrays["queue"], temperature=arrays["temperature"])
    wanted = oracles.exact(variant.to_list(alone))
    assert oracles.error(variant.to_list(value), wanted) <= 4 * variant.eps()


@pytest.mark.exhaustive
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("labels", ["equal", "distinct"])
@pytest.mark.parametrize("name", [name for name in NAMES if "labels" in LOSSES[name].arguments])
def test_labels_all_alike_and_all_different(variant: Variant, name: str, labels: str, block_size: int | None) -> None:
    """Without a positive, or without a negative: nothing, unless the loss says what one kind of pair is worth."""
    found = value_and_gradients(name, inputs_of(variant, name, labels=labels), block_size=block_size)
    assert_finite(variant, *found)
    worth = LOSSES[name].together if labels == "equal" else LOSSES[name].unpaired
    if worth:
        assert float(found[0]) != 0
    else:
        assert_nothing(variant, *found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("positive", [False, True], ids=["none", "all"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in {*OF_EMBEDDINGS, *SQUARE}])
def test_no_and_only_positives(variant: Variant, name: str, positive: bool, dtype: str | None) -> None:  # noqa: FBT001  (a parameter of the test)
    positives = variant.array(filled(positive, N, N))
    found = value_and_gradients(name, inputs_of(variant, name, dtype), positives=positives)
    assert_finite(variant, *found)
    if LOSSES[name].together if positive else LOSSES[name].unpaired:
        assert float(found[0]) != 0
    else:
        assert_nothing(variant, *found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("fill", ["zero", "one zero row", "identical rows"])
@pytest.mark.parametrize(("name", "block_size"), CALLS)
def test_zero_vectors_and_identical_rows(
    variant: Variant, name: str, block_size: int | None, fill: str, dtype: str | None
) -> None:
    arrays = inputs_of(variant, name, dtype, fill=fill)
    assert_finite(variant, *value_and_gradients(name, arrays, **block_option(name, block_size)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("similarity", [*pnce.similarities.NAMES, "normalized"])
@pytest.mark.parametrize(("name", "block_size"), [one for one in CALLS if one.values[0] in OF_EMBEDDINGS])
def test_the_kinks_of_every_similarity(variant: Variant, name: str, block_size: int | None, similarity: str) -> None:
    """Length 0, and distance 0."""
    arrays = inputs_of(variant, name, fill="zero, and identical rows")
    chosen: Any = pnce.similarities.normalized("neg_euclidean") if similarity == "normalized" else similarity
    assert_finite(variant, *value_and_gradients(name, arrays, similarity=chosen, block_size=block_size))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32"])
@pytest.mark.parametrize("fill", ["large", "small"])
@pytest.mark.parametrize(("name", "block_size"), CALLS)
def test_long_and_short_vectors(variant: Variant, name: str, block_size: int | None, fill: str, dtype: str) -> None:
    arrays = inputs_of(variant, name, dtype, fill=fill)
    assert_finite(variant, *value_and_gradients(name, arrays, **block_option(name, block_size)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("name", ["moco", "nnclr", "nnclr symmetric", "proto_nce queue"])
def test_a_queue_that_was_never_written(variant: Variant, name: str, block_size: int | None, dtype: str | None) -> None:
    """No negatives, no neighbours: nothing to learn from."""
    arrays = inputs_of(variant, name, dtype)
    memory = "queue" if "queue" in arrays else "support"
    rows = arrays.pop(memory)
    empty = pnce.queue_init(rows, size=SLOTS)

    def function(*given: Any) -> Any:
        return call(name, {**arrays, **dict(zip(floats, given, strict=True)), memory: empty}, block_size=block_size)

    floats = [key for key in arrays if key != "assignments"]
    value, gradients = differentiate(function, [arrays[key] for key in floats])
    found = value, dict(zip(floats, gradients, strict=True))
    assert_finite(variant, *found)
    if name == "proto_nce queue":
        alone = {key: array for key, array in arrays.items() if key not in {"key", "temperature"}}
        expected = mpf(variant.to_list(call("proto_nce", alone)))
        assert abs(mpf(variant.to_list(value)) - expected) <= 4 * variant.eps(dtype) * expected
        assert_nothing(variant, gradients[floats.index("key")], {"temperature": gradients[floats.index("temperature")]})
    else:
        assert_nothing(variant, *found)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, key) for name in PLAIN for key in LOSSES[name].arguments if key in {"labels", "assignments"}],
)
def test_labels_are_integers(variant: Variant, name: str, argument: str) -> None:
    arrays = inputs_of(variant, name)
    arrays[argument] = variant.floats(variant.to_list(arrays[argument]))
    with pytest.raises(TypeError, match=rf"\A{argument}: expected an integer dtype, got .*float"):
        call(name, arrays)
