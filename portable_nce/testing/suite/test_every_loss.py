"""What every public loss promises alike: its signature, the kind of its result, and finite numbers on any input.

One table says of each loss how to call it; a loss without a row fails the suite.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp, mpf

from .. import oracles
from .._package import pnce
from ..cases import LOSSES, Loss, example, lengths, sixteenths
from ..variants import assert_belongs, differentiate, flatten

if TYPE_CHECKING:
    from ..variants import Nested, Variant

N, D = 4, 3
"""Samples and features."""

NO_LOSSES = {
    *("Adapter", "Communicator", "Queue", "Ranks", "across", "backends_available", "concentrations", "grad"),
    *("queue_init", "queue_push", "register_backend", "stop_gradient", "value_and_grad"),
    *("bounds", "density", "diagnostics", "from_scores", "objectives", "pairings", "similarities", "typing"),
}
"""The public names that are no losses."""

NOT_SHARED = {
    ("clip", "temperature"): "its scale is the inverse, logit_scale",
    ("siglip", "temperature"): "its scale is the inverse, logit_scale",
    ("from_scores.clip", "positives"): "the positives are on the diagonal, of rows and of columns",
    ("from_scores.relic", "positives"): "the positives are on the diagonal, of the scores and of their transpose",
}
"""The keywords that all losses share but these, and why."""


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

NAMES = [name for name, loss in LOSSES.items() if loss.laws]
PLAIN = [name for name in NAMES if " " not in name]
PUBLIC = [name for name in LOSSES if " " not in name and name != "matryoshka"]
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


def filled(value: Nested, *shape: int) -> Nested:
    """Repeat a number, or a row of them."""
    for length in reversed(shape):
        value = [value] * length
    return value


ROW = [0.5, -1.25, 0.75, 1.5]
FILLS: dict[str, Callable[[tuple[int, ...], int], Nested]] = {
    "usual": sixteenths,
    "zero": lambda shape, _: filled(0.0, *shape),
    "one zero row": lambda shape, seed: [filled(0.0, *shape[1:]), *sixteenths(shape, seed)[1:]],
    "identical rows": lambda shape, _: filled(ROW[: shape[-1]], *shape[:-1]),
    "zero, and identical rows": lambda shape, _: [
        filled(0.0, *shape[1:]),
        *filled(ROW[: shape[-1]], shape[0] - 1, *shape[1:-1]),
    ],
    "large": lambda shape, seed: scaled(1e4, sixteenths(shape, seed)),
    "small": lambda shape, seed: scaled(1e-4, sixteenths(shape, seed)),
}
"""Ways to fill the arrays of embeddings."""


def scaled(factor: float, nested: Nested) -> Nested:
    """Multiply all numbers."""
    return [scaled(factor, x) for x in nested] if isinstance(nested, list) else factor * nested


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
    case = example(name, samples, D, fill=FILLS[fill], labels=LABELS[labels][:samples])
    floats = {key: variant.floats(nested, dtype) for key, nested in case.arguments.items()}
    return floats | {key: variant.array(nested) for key, nested in case.constants.items()}


def call(name: str, arrays: Mapping[str, Any], **options: Any) -> Any:
    """Call a loss on arrays by name."""
    return example(name).call(arrays, **options)


def mask_of(name: str) -> tuple[int, ...]:
    """Give the shape of a mask."""
    length = lengths(N, D, LOSSES[name].views)
    return tuple(length[axis] for axis in LOSSES[name].mask)


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
    assert {name for name in LOSSES if " " not in name} == public - NO_LOSSES
    assert public >= NO_LOSSES


def documented_defaults(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring says of the defaults: their text, "None" of what is optional, "" of what has to be given."""
    text = (inspect.getdoc(function) or "").partition("Parameters\n")[2].partition("\nReturns\n")[0]
    found: dict[str, str] = {}
    for names, description in re.findall(r"^(\*?\w[\w, ]*) : (.*)$", text, flags=re.MULTILINE):
        _, said, default = description.partition("default: ")
        default = default if said else "None" * description.endswith("optional")
        found |= dict.fromkeys((name.strip() for name in names.split(",")), default.replace('"', "'"))
    return found


@pytest.mark.parametrize("name", [*PUBLIC, *BOUNDS])
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


@pytest.mark.parametrize("name", [*PUBLIC, *BOUNDS, "matryoshka", "concentrations", "queue_init", "queue_push"])
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
        "pairs": N - 1 if of_labels else N,
        "triples": N - 2 if of_labels else N - 1,  # one positive each
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
    if "scores" in arrays and name not in SQUARE:
        arrays["scores"] = inputs_of(variant, name)["scores"][:1, :]
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
    mask = variant.array(filled(False, *mask_of(name)))  # noqa: FBT003  (what is repeated)
    options = {"mask": mask, "reduction": reduction, **block_option(name, block_size)}
    if reduction == "none":
        assert variant.to_list(call(name, arrays, **options)) == [0.0] * (loss.views * N)
    else:
        assert_nothing(variant, *value_and_gradients(name, arrays, **options))


ROW_MASKS = [
    one
    for one in CALLS
    if LOSSES[str(one.values[0])].mask != "NM"  # where the positive takes part, whatever the mask
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
    shape = mask_of(name)
    mask = [filled(i % N != 1, *shape[1:]) for i in range(shape[0])]
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
    mask = variant.array(filled(False, *mask_of(name)))  # noqa: FBT003  (what is repeated)
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
    empty = pnce.queue_init(rows, size=5)

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
