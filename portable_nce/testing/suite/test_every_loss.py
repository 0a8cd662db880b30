"""Contracts shared by all public losses: signature, kind of the result, finite numbers on any input.

One table has the signature of each loss; a loss without a row fails the suite.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mpf

from .. import oracles
from .._package import pnce
from ..cases import LOSSES, Loss, example, lengths, sixteenths
from ..variants import assert_belongs, flatten
from .calls import FEW, arrays_of, assert_finite, assert_nothing, filled, options_of, scaled, value_and_gradients

if TYPE_CHECKING:
    from ..variants import Nested, Variant

N, D = 4, 3
"""Samples and features."""

NO_LOSSES = {
    *("Adapter", "Communicator", "Queue", "Ranks", "across", "backends_available", "concentrations", "fuse_steps"),
    *("grad", "prepare", "queue_init", "queue_push", "register_backend", "explain", "stop_gradient", "value_and_grad"),
    *(
        "bounds",
        "density",
        "diagnostics",
        "estimation",
        "from_scores",
        "objectives",
        "pairings",
        "similarities",
        "typing",
    ),
}
"""Public names that are not losses."""

NOT_SHARED = {
    ("clip", "temperature"): "its scale is the inverse, logit_scale",
    ("siglip", "temperature"): "its scale is the inverse, logit_scale",
    ("from_scores.clip", "positives"): "the positives are on the diagonal, of rows and of columns",
    ("from_scores.relic", "positives"): "the positives are on the diagonal, of the scores and of their transpose",
}
"""Shared keywords that a loss does not have, and why."""


BOUNDS = [f"bounds.{name}" for name in pnce.bounds.__all__]
"""They have no options of losses: a bound is fixed by its definition."""

EITHER_WAY = {
    ("bounds.barber_agakov", "entropy"),
    ("bounds.interpolated", "alpha"),
    ("bounds.interpolated", "log_baseline"),
    ("bounds.mine", "log_mean"),
    ("bounds.smile", "clip"),
    ("bounds.tuba", "log_baseline"),
}
"""Arguments of bounds after the scores, by position or by keyword."""

NAMES = [name for name, loss in LOSSES.items() if loss.laws]
PLAIN = [name for name in NAMES if " " not in name]
PUBLIC = [name for name in LOSSES if " " not in name and name != "matryoshka"]
OF_EMBEDDINGS = [name for name in NAMES if not name.startswith("from_scores.")]
SQUARE = [name for name in NAMES if (name.split(" ")[0], "positives") in NOT_SHARED]
BLOCKS = [None, 2]
DENSE_OR_STREAMED = [(name, block) for name in NAMES for block in BLOCKS if block is None or name in OF_EMBEDDINGS]
CALLS = [
    pytest.param(name, block, marks=[] if name in FEW else pytest.mark.exhaustive) for name, block in DENSE_OR_STREAMED
]
"""Every loss, dense and streamed; few if every operation is compiled."""


def function_of(name: str) -> Callable[..., Any]:
    """Look up a loss."""
    return attrgetter(name.split(maxsplit=1)[0])(pnce)  # type: ignore[no-any-return]


ROW = [0.5, -1.25, 0.75, 1.5]
FILLS: dict[str, Callable[[tuple[int, ...], int], Nested]] = {
    "usual": sixteenths,
    "zero": lambda shape, _: filled(0.0, *shape),
    "one zero row": lambda shape, seed: [filled(0.0, *shape[1:]), *sixteenths(shape, seed)[1:]],
    "identical rows": lambda shape, _: filled(ROW[: shape[-1]], *shape[:-1]),
    "zero, and identical rows": lambda shape, _: [filled(0.0, *shape[1:]), *filled(ROW[: shape[-1]], *shape[:-1])[1:]],
    "large": lambda shape, seed: scaled(1e4, sixteenths(shape, seed)),
    "small": lambda shape, seed: scaled(1e-4, sixteenths(shape, seed)),
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
    """Make all arrays of a loss: those of its signature, and its parameters."""
    case = example(name, samples, D, fill=FILLS[fill], labels=LABELS[labels][:samples])
    return arrays_of(variant, case, dtype)


def call(name: str, arrays: Mapping[str, Any], **options: Any) -> Any:
    """Call a loss on arrays by name."""
    return example(name).call(arrays, **options)


def mask_of(name: str) -> tuple[int, ...]:
    """Shape of a mask."""
    length = lengths(N, D, LOSSES[name].views)
    return tuple(length[axis] for axis in LOSSES[name].mask)


# --- the table and the signatures -------------------------------------------------------------------------------------


def test_every_loss_has_a_row() -> None:
    public = {*pnce.__all__, *(f"from_scores.{name}" for name in pnce.from_scores.__all__)}
    assert {name for name in LOSSES if " " not in name} == public - NO_LOSSES
    assert public >= NO_LOSSES


def documented_defaults(function: Callable[..., Any]) -> dict[str, str]:
    """Defaults in the docstring: their text, "None" if optional, "" if required."""
    text = (inspect.getdoc(function) or "").partition("Parameters\n")[2].partition("\nReturns\n")[0]
    found: dict[str, str] = {}
    for names, description in re.findall(r"^(\*?\w[\w, ]*) : (.*)$", text, flags=re.MULTILINE):
        _, said, default = description.partition("default: ")
        default = default if said else "None" * description.endswith("optional")
        found |= dict.fromkeys((name.strip() for name in names.split(",")), default.replace('"', "'"))
    return found


def test_arrays_are_positional_and_options_are_keywords() -> None:
    """Required arrays are positional-only; optional arrays may also be passed by keyword."""
    kind = inspect.Parameter
    for name in (*PUBLIC, *BOUNDS):
        parameters = inspect.signature(function_of(name)).parameters
        positional = {
            key: p for key, p in parameters.items() if p.kind in {kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD}
        }
        for key, parameter in positional.items():
            if (name, key) not in EITHER_WAY:
                only = parameter.kind is kind.POSITIONAL_ONLY
                assert parameter.default is (kind.empty if only else None), (name, key)
        variadic = [key for key, p in parameters.items() if p.kind is kind.VAR_POSITIONAL]
        assert variadic == (["further_views"] if name == "nt_xent" else []), name
        if name in LOSSES:
            wanted = LOSSES[name].arguments
            assert tuple(positional)[: len(wanted)] == wanted, name


def test_the_shared_keywords_have_their_defaults() -> None:
    for name in PLAIN:
        loss = LOSSES[name]
        shared: dict[str, Any] = {"mask": None, "weights": None, "reduction": "mean"}
        if name in OF_EMBEDDINGS:
            shared |= {"temperature": loss.temperature, "similarity": loss.similarity, "block_size": "auto"}
        else:
            shared |= {"positives": None}
        parameters = inspect.signature(function_of(name)).parameters
        for key, default in shared.items():
            if (name, key) in NOT_SHARED:
                assert key not in parameters, (name, key)
            else:
                assert parameters[key].default == default, (name, key)
                assert parameters[key].kind is inspect.Parameter.KEYWORD_ONLY, (name, key)


def test_no_exception_is_made_without_need() -> None:
    assert {name for name, _ in NOT_SHARED} <= set(PLAIN)
    assert all(LOSSES[name].temperature is None for name, key in NOT_SHARED if key == "temperature")


def test_the_docstring_says_the_defaults() -> None:
    for name in (*PUBLIC, *BOUNDS, "matryoshka", "concentrations", "queue_init", "queue_push"):
        parameters = inspect.signature(function_of(name)).parameters
        said = documented_defaults(function_of(name))
        wanted = {
            f"*{key}" if p.kind is p.VAR_POSITIONAL else key: "" if p.default is p.empty else repr(p.default)
            for key, p in parameters.items()
        }
        variadic = {key: said[key] for key in wanted if key.startswith("*")}
        assert list({**said}.items()) == list({**wanted, **variadic}.items()), name


# --- the kind of the result -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradients(variant: Variant, name: str) -> None:
    """Value and gradients are finite and of the kind of the input; only the gradient of a memory is exactly 0."""
    for dtype in variant.dtypes[:1] if variant.compiles else variant.dtypes:
        arrays = inputs_of(variant, name, dtype)
        value, gradients = value_and_gradients(name, arrays)
        assert_belongs(variant, value, arrays[LOSSES[name].arguments[0]], ())
        assert_finite(variant, value, gradients, dtype)
        for key, gradient in gradients.items():
            assert_belongs(variant, gradient, arrays[key], tuple(arrays[key].shape))
            still = all(number == 0 for number in flatten(variant.to_list(gradient)))
            assert still == (key in LOSSES[name].constant), (dtype, key)


def pairs_of(loss: Loss) -> int:
    """Number of rows, pairs or triples per sample in the divisor of a mean, if every row counts."""
    others = N - ("labels" in loss.arguments)  # a row is not paired with itself
    return {"rows": loss.views, "pairs": others, "triples": others - 1}[loss.divide_by or "rows"]


@pytest.mark.parametrize("dtype", [None, "float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("name", "block_size"), CALLS)
def test_reductions_agree(variant: Variant, name: str, block_size: int | None, dtype: str | None) -> None:
    """A masked row or one of weight 0 counts neither in the sum nor in the divisor of the mean."""
    loss, arrays = LOSSES[name], inputs_of(variant, name, dtype)
    ways: list[dict[str, Any]] = [{"weights": variant.floats([0.5, 0.0, 2.0, 1.0], dtype)}]
    if loss.mask != "NM" and not loss.keywords:  # not if the positive or another term is independent of the mask
        shape = mask_of(name)
        mask = variant.array([filled(i % N != 1, *shape[1:]) for i in range(shape[0])])
        ways.append({"weights": variant.floats([0.5, 4.0, 2.0, 1.0], dtype), "mask": mask})
    for options in ways:
        rows, total, mean = (
            call(name, arrays, reduction=reduction, **options, **options_of(name, block_size))
            for reduction in ("none", "sum", "mean")
        )
        for result, size in ((rows, (loss.views * N,)), (total, ()), (mean, ())):
            assert_belongs(variant, result, arrays[loss.arguments[0]], size)
        listed = [mpf(number) for number in variant.to_list(rows)]
        assert [i for i, number in enumerate(listed) if number == 0] == [1 + N * view for view in range(loss.views)]
        scale, tolerance = sum(abs(number) for number in listed), 8 * variant.eps(dtype)
        assert abs(mpf(variant.to_list(total)) - sum(listed)) <= tolerance * scale, [*options]
        if loss.divide_by is not None:
            norm = (0.5 + 2.0 + 1.0) * pairs_of(loss)
            assert abs(mpf(variant.to_list(mean)) - sum(listed) / norm) <= tolerance * scale / norm, [*options]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OF_EMBEDDINGS)
def test_the_execution_changes_nothing(variant: Variant, name: str) -> None:
    arrays = inputs_of(variant, name)
    value, gradients = value_and_gradients(name, arrays, block_size=None)
    streamed, slopes = value_and_gradients(name, arrays, block_size=2)
    for key, wanted in {"value": value, **gradients}.items():
        found, exact = variant.to_list({"value": streamed, **slopes}[key]), oracles.exact(variant.to_list(wanted))
        assert oracles.error(found, exact, smallest=1.0) <= 64 * variant.eps(), key


# --- awkward inputs ---------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "block_size"), CALLS)
def test_a_batch_of_one_sample(variant: Variant, name: str, block_size: int | None) -> None:
    """A batch of one is valid: losses that need a negative or a positive are 0, others are finite."""
    arrays, options = inputs_of(variant, name, samples=1), options_of(name, block_size)
    found = value_and_gradients(name, arrays, **options)
    assert_finite(variant, *found)
    one_pair = name not in {"from_scores.logistic", "from_scores.contrastive"} and {"scores", "labels"} & {*arrays}
    if LOSSES[name].alone or one_pair:
        assert_nothing(variant, *found)
    if "scores" in arrays and name not in SQUARE:
        arrays["scores"] = inputs_of(variant, name)["scores"][:1, :]
        assert_finite(variant, *value_and_gradients(name, arrays), "one row")


@pytest.mark.parametrize(("name", "block_size"), CALLS)
def test_a_batch_without_counted_rows_has_loss_0(variant: Variant, name: str, block_size: int | None) -> None:
    """If everything is masked, or all weights are 0, loss and gradients are exactly 0."""
    arrays, options = inputs_of(variant, name), options_of(name, block_size)
    lost: list[dict[str, Any]] = [{"weights": variant.floats([0.0] * N)}]
    if not LOSSES[name].keywords:
        lost.append({"mask": variant.array(filled(False, *mask_of(name)))})
    for further in lost:
        for reduction in ("mean", "sum"):
            value, gradients = value_and_gradients(name, {**arrays, **further}, reduction=reduction, **options)
            if reduction == "sum":
                gradients.pop("weights", None)  # their gradients are the row losses
            assert_nothing(variant, value, gradients, (reduction, [*further]))
        rows = call(name, {**arrays, **further}, reduction="none", **options)
        assert variant.to_list(rows) == [0.0] * (LOSSES[name].views * N)


OUT = {(0, 1), (1, 0), (2, 3), (3, 2)}
"""Masked pairs, symmetric, so that the transpose has the same."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("dirt", [math.inf, -math.inf, math.nan, 1e4])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_EMBEDDINGS])
def test_scores_that_take_no_part(variant: Variant, name: str, dirt: float, dtype: str | None) -> None:
    """Masked scores may hold anything; without a mask, -inf masks."""
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
    """The mask does not apply to the InfoNCE term of ProtoNCE."""
    arrays = inputs_of(variant, name)
    mask = variant.array(filled(False, *mask_of(name)))
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
    """Without a positive or without a negative the loss is 0, unless it is a sum over pairs."""
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
@pytest.mark.parametrize("similarity", [*pnce.similarities.NAMES, "normalized neg_euclidean"])
@pytest.mark.parametrize(("name", "block_size"), CALLS)
def test_lengths_and_distances(
    variant: Variant, name: str, block_size: int | None, similarity: str, dtype: str | None
) -> None:
    """Length 0, distance 0, long and short embeddings: everything is finite, also at the kinks of similarities."""
    fills: list[tuple[str, str | None, dict[str, Any]]] = [
        *((fill, dtype, {}) for fill in ("zero", "one zero row", "identical rows")),
        *((fill, "float32", {}) for fill in ("large", "small")),
    ]
    if name in OF_EMBEDDINGS:
        fills.append(("zero, and identical rows", None, {"similarity": similarity}))
    for fill, kind, options in fills:
        arrays = inputs_of(variant, name, kind, fill=fill)
        found = value_and_gradients(name, arrays, **options, **options_of(name, block_size))
        assert_finite(variant, *found, (fill, kind))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("name", ["moco", "nnclr", "nnclr symmetric", "proto_nce queue"])
def test_a_queue_that_was_never_written(variant: Variant, name: str, block_size: int | None, dtype: str | None) -> None:
    """An empty queue has no negatives and no neighbours: loss and gradients are 0."""
    arrays = inputs_of(variant, name, dtype)
    memory = "queue" if "queue" in arrays else "support"
    arrays[memory] = pnce.queue_init(arrays[memory], size=5)
    value, gradients = value_and_gradients(name, arrays, block_size=block_size)
    assert_finite(variant, value, gradients)
    if name == "proto_nce queue":
        alone = {key: array for key, array in arrays.items() if key not in {"key", "temperature", "queue"}}
        expected = mpf(variant.to_list(call("proto_nce", alone)))
        assert abs(mpf(variant.to_list(value)) - expected) <= 4 * variant.eps(dtype) * expected
        assert_nothing(variant, gradients["key"], {"temperature": gradients["temperature"]})
    else:
        assert_nothing(variant, value, gradients)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_labels_are_integers(variant: Variant) -> None:
    for name in PLAIN:
        for argument in {"labels", "assignments"} & {*LOSSES[name].arguments}:
            arrays = inputs_of(variant, name)
            arrays[argument] = variant.floats(variant.to_list(arrays[argument]))
            with pytest.raises(TypeError, match=rf"\A{argument}: expected an integer dtype, got .*float"):
                call(name, arrays)
