"""Errors for invalid arrays: argument, expected and actual value, remedy.

Every array of every function is replaced by invalid ones. Errors that do not depend on the library, such as values of
options, are tested once, by the project itself.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

import pytest

from .._package import pnce as package
from ..cases import CASES, LOSSES, Case, Nested, example, lengths
from ..variants import ForeignArray, Variant, flatten
from .calls import arrays_of, filled

pnce: Any = package  # wrong calls, which type checkers would reject

N, D = 4, 3
LENGTHS = lengths(N, D)


# --- every array of every function ------------------------------------------------------------------------------------

FURTHER = {**dict.fromkeys(("weights", "ids"), "N"), "keys": "MD"}
"""Axes of optional arrays that are not in the table."""

SCALARS = ("margin", "positive_margin", "sigma", "alpha", "l2", "logit_bias")
"""Numbers that may be arrays of one entry and are not in the table."""

NAMED = {"view_c": r"further_views\[0\]", "bilinear": "weight", "labels": r"labels|(pairing\.)?(rows|columns)"}
NAMED |= {"columns": r"(pairing\.)?columns", "noise_scores": "(noise|data)_scores"}
"""Names in errors that differ from those of the table."""

TOGETHER = {"foreign", "a row more", "a column more"}
"""Errors relative to other arrays: tried for all arrays but the first; a later one may be named."""

TAKEN: Mapping[str, set[str]] = {
    "a row more": {"negative_keys", "queue", "support", "keys"},
    "another kind": {"weights", "grades"},
    "truth values": {"weights", "grades", "mask"},
    "a column more": {"noise_scores"},
    "a list": {"prototypes"},  # of clusterings
    "one axis less": {"log_q", "data_log_q", "noise_log_q", "log_baseline"},  # one for all rows
}
"""Changes that these arrays allow."""

TAKEN_BY = {
    ("info_nce own", "negative_keys", "one axis less"),
    ("info_nce index", "positive_key", "a row more"),
    ("contrast", "y", "a row more"),
    *((name, "scores", "one axis more") for name in ("bounds.barber_agakov", "bounds.vub")),
    *((name, "scores", "one axis less") for name in ("bounds.barber_agakov", "bounds.vub")),
    ("bounds.barber_agakov", "scores", "a row more"),
    ("bounds.tuba one baseline", "scores", "a row more"),
    ("bounds.mine second step, more columns than rows", "scores", "a row more"),
    ("density.recover_log_prob one log_q for all contexts", "scores", "a row more"),
    ("density.linear_softmax without bias", "weight", "a row more"),
    ("density.self_normalization exact, std", "scores", "a row more"),
    *(
        (f"diagnostics.{name} {call}", key, change)
        for name in ("top_k_accuracy", "recall_at", "mean_reciprocal_rank")
        for call, key, change in (
            ("positives, weights, mask", "positives", "truth values"),
            ("key, dot, sum", "positives", "truth values"),
            ("key", "key", "a row more"),
        )
    ),
    # An objective raises for these.
    ("diagnostics.effective_sample_size positives, weights, mask", "positives", "truth values"),
    ("diagnostics.effective_sample_size positives, weights, mask", "positives", "another kind"),
    ("clip", "text", "a row more"),
    ("matryoshka", "text", "a row more"),
    ("matryoshka", "text", "foreign"),  # dtypes are compared first, and a library may warn
}
"""Changes that are allowed in one function, or one call of it."""


def examples() -> Mapping[str, list[Case]]:
    """Calls by function: one for each set of arrays and of their axes."""
    table = [example(name, N, D) for name, loss in LOSSES.items() if "slots" not in loss.options]
    table += [case for case in CASES if case.loss.startswith(("bounds.", "density.", "diagnostics."))]
    found: dict[str, dict[Any, Case]] = {}
    for case in table:
        arrays = {**case.arguments, **case.constants}
        sort = tuple((key, rank(x)) for key, x in arrays.items())
        found.setdefault(case.loss, {}).setdefault(sort, case)
    return {name: [*cases.values()] for name, cases in found.items()}


def rank(nested: Nested) -> int:
    """Number of axes."""
    return 1 + rank(nested[0]) if isinstance(nested, list) else 0


def with_further(case: Case) -> Iterator[tuple[dict[str, Nested], list[str]]]:
    """Arrays by name, and the ones to replace: those of a case, and each optional one."""
    given = {**case.arguments, **case.constants}
    yield given, [*given]
    if case.name not in LOSSES or case.loss == "matryoshka":
        return
    loss = LOSSES[case.name]
    free = inspect.signature(attrgetter(case.loss)(pnce)).parameters.keys() - given.keys()
    shapes = {key: tuple(LENGTHS[axis] for axis in axes) for key, axes in FURTHER.items()}
    added = {key: filled(1 if key == "ids" else 0.5, *shape) for key, shape in shapes.items()}
    added |= dict.fromkeys(SCALARS, 0.5)
    for key in sorted(free & added.keys()):
        further = {key: added[key]}
        if key == "keys" and "key_labels" in free:
            further["key_labels"] = filled(1, LENGTHS["M"])
        yield given | further, [*further]
    if loss.laws and "mask" in free:
        length = lengths(N, D, loss.views)
        mask = filled(True, *(length[axis] for axis in loss.mask))
        yield {**given, "mask": mask}, ["mask"]
    if case.loss.startswith("from_scores.") and "positives" in free:
        yield {**given, "positives": [*range(N)]}, ["positives"]


def each(nested: Nested, value: Any) -> Nested:
    """Apply a function to every number."""
    return [each(part, value) for part in nested] if isinstance(nested, list) else value


def wider(nested: Nested) -> Nested:
    """Repeat the last entry of the last axis."""
    return [*map(wider, nested)] if isinstance(nested[0], list) else [*nested, nested[-1]]


def made(variant: Variant, nested: Nested) -> Any:
    """Make an array."""
    return variant.floats(nested) if isinstance(flatten(nested)[0], float) else variant.array(nested)


Classes: TypeAlias = type[Exception] | tuple[type[Exception], ...]


def wrong(variant: Variant, key: str, x: Nested) -> Iterator[tuple[str, Classes, Any]]:
    """Invalid replacements of an array, and the classes of the errors."""
    other = 1 if isinstance(flatten(x)[0], float) else 0.5
    yield "a list", TypeError, x if isinstance(x, list) else "text"
    kind = (TypeError, ValueError) if key == "positives" else TypeError  # a matrix would be valid
    yield "another kind", kind, variant.array(each(x, other))
    yield "truth values", kind, variant.array(each(x, value=True))
    yield "foreign", TypeError, ForeignArray(x)
    yield "one axis more", ValueError if isinstance(x, list) else (TypeError, ValueError), made(variant, [x, x])
    if isinstance(x, list):
        yield "one axis less", ValueError, made(variant, x[0])
        yield "no rows", ValueError, made(variant, x)[:0, ...]
        yield "a row more", ValueError, made(variant, [*x, x[-1]])
        if isinstance(x[0], list):
            yield "a column more", ValueError, made(variant, wider(x))


def assert_refused(told: str, name: str, classes: Classes, call: Callable[[], Any]) -> None:
    """Assert that an error begins with the name of the argument, and has "expected" and "got"."""
    pattern = rf"(?s)\A({name})(\.valid)?: .*expected.*got"
    try:
        call()
    except classes as error:
        assert re.match(pattern, str(error)), f"{told}: {error!r}"  # noqa: PT017  (many calls)
    else:
        pytest.fail(f"{told}: taken")


def names_of(case: Case, given: Mapping[str, Nested], key: str, change: str) -> str:
    """Pattern of the arguments that an error may name; empty if the change is valid."""
    first, *others = given
    alone = key == first and change in TOGETHER and (key, change) != ("scores", "a row more")
    if alone or key in TAKEN.get(change, ()) or {(name, key, change) for name in (case.name, case.loss)} & TAKEN_BY:
        return ""
    behind = others[[first, *others].index(key) :] if change in TOGETHER - {"foreign"} else []
    return "|".join(NAMED.get(name, name) for name in (key, *behind))


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_wrong_arrays(variant: Variant, name: str) -> None:
    for case in EXAMPLES[name]:
        for given, exchanged in with_further(case):
            good = {key: made(variant, x) for key, x in given.items()}
            for key in exchanged:
                for change, error, bad in wrong(variant, key, given[key]):
                    names = names_of(case, given, key, change)
                    if names:
                        call = partial(case.call, {**good, key: bad})
                        assert_refused(f"{case.name}, {key}: {change}", names, error, call)


# --- arrays that do not fit together, and objects that are not arrays -------------------------------------------------


def embeddings(variant: Variant, rows: int = N, features: int = D, dtype: str | None = None) -> Any:
    """Make embeddings."""
    return variant.floats([[float((3 * i + j) % 5) for j in range(features)] for i in range(rows)], dtype)


def truths(variant: Variant, *shape: int) -> Any:
    """Make an array of True."""
    return variant.array(filled(True, *shape))


def classes(variant: Variant, rows: int = N) -> Any:
    """Make labels."""
    return variant.array([i // 2 for i in range(rows)])


MASKS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("info_nce shared", "nt_xent", "supcon keys", "moco", "proto_nce", "triplet", "cosent"), (N, N)),
    **dict.fromkeys(("nt_xent three views", "nt_xent keys", "relic keys"), (2 * N, 2 * N)),
    **dict.fromkeys(("siglip negative_only", "nnclr"), (N, N + 1)),
}
"""Masks that would fit another loss, or this loss without some arrays."""


def test_a_mask_of_others(variant: Variant) -> None:
    for name, shape in MASKS.items():
        case = example(name, N, D)
        call = partial(case.call, {**arrays_of(variant, case), "mask": truths(variant, *shape)})
        assert_refused(name, "mask", ValueError, call)


Rows: TypeAlias = Iterator[tuple[str, str, Classes, Callable[[], Any]]]
LABEL_LOSSES = ("supcon", "triplet_from_labels")
VIEW_LOSSES = ("nt_xent", "relic")


def with_memory(v: Variant, memory: Any) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Calls of all losses that take a queue."""
    x = embeddings(v)
    yield "moco", "queue", partial(pnce.moco, x, x, memory)
    yield "nnclr", "support", partial(pnce.nnclr, x, x, memory)
    yield "proto_nce", "queue", partial(pnce.proto_nce, x, *clustered(v), key=x, queue=memory)
    yield from ((name, "keys", partial(getattr(pnce, name), x, x, keys=memory)) for name in VIEW_LOSSES)
    yield from ((name, "keys", partial(getattr(pnce, name), x, classes(v), keys=memory)) for name in LABEL_LOSSES)


def queues(v: Variant) -> Rows:
    """Invalid queues, and queues that do not fit."""
    x, rows, labels = embeddings(v), embeddings(v, 5), classes(v, 5)
    bad: dict[str, tuple[Classes, Any]] = {
        "of another width": (ValueError, pnce.Queue(embeddings(v, 5, D + 1), truths(v, 5), labels)),
        "with fewer slots": (ValueError, pnce.Queue(rows, truths(v, 4), labels)),
        "with slots that are numbers": (TypeError, pnce.Queue(rows, v.array([1] * 5), labels)),
        "that is a tuple": (TypeError, (rows, truths(v, 5), labels)),
    }
    for what, (error, memory) in bad.items():
        yield from ((f"{name}, a queue {what}", key, error, call) for name, key, call in with_memory(v, memory))
    for name in LABEL_LOSSES:
        loss = partial(getattr(pnce, name), x, classes(v))
        unlabelled = pnce.queue_init(rows, size=5)
        yield f"{name}, keys without labels", "key_labels", ValueError, partial(loss, keys=rows)
        yield f"{name}, a queue without labels", "key_labels", ValueError, partial(loss, keys=unlabelled)
        yield f"{name}, labels without keys", "key_labels", ValueError, partial(loss, key_labels=classes(v, 5))
        for what, error, labels in (
            ("fewer labels", ValueError, classes(v, 3)),
            ("labels that are floats", TypeError, v.floats([1.0] * 5)),
        ):
            keys = pnce.Queue(rows, truths(v, 5), labels)
            yield f"{name}, a queue with {what}", "keys.labels", error, partial(loss, keys=keys)


def pushes(v: Variant) -> Rows:
    """Invalid queues, and rows and labels that do not fit a queue."""
    two = embeddings(v, 2)
    queue = pnce.queue_init(two, size=5)
    labelled = pnce.queue_init(two, size=5, labels=classes(v, 2))
    short = pnce.queue_init(two, size=3, labels=v.array([1, 2], "int8"))
    init: Any = partial(pnce.queue_init, size=3)
    push = pnce.queue_push
    rows = {
        "rows of other width": (ValueError, embeddings(v, 2, D + 1)),
        "a vector": (ValueError, v.floats([1.0] * D)),
        "integers": (TypeError, v.array([[1] * D])),
        "a list": (TypeError, [[1.0] * D]),
        "foreign rows": (TypeError, ForeignArray([[1.0] * D])),
    }
    yield from ((f"push {what}", "rows", error, partial(push, queue, bad)) for what, (error, bad) in rows.items())
    labels = {
        "none": (ValueError, None),
        "fewer": (ValueError, classes(v, 1)),
        "floats": (TypeError, v.floats([1.0] * 2)),
        "foreign": (TypeError, ForeignArray([1, 2])),
    }
    for what, (error, bad) in labels.items():
        yield f"push labels: {what}", "labels", error, partial(push, labelled, two, labels=bad)
    longer = partial(push, short, two, labels=v.array([1, 2], "int32"))
    yield "push labels of a longer dtype", "labels", (TypeError, ValueError), longer
    yield "push labels to a queue without", "labels", ValueError, partial(push, queue, two, labels=classes(v, 2))
    yield "push to an array", "queue", TypeError, partial(push, two, two)
    yield "push to a list", "queue", TypeError, partial(push, [], two)
    yield "an example that is a vector", "example", ValueError, partial(init, v.floats([1.0, 2.0]))
    yield "an example of integers", "example", TypeError, partial(init, v.array([[1, 2]]))
    yield "labels of another batch", "labels", ValueError, partial(init, two, labels=classes(v, 3))
    yield "labels that are floats", "labels", TypeError, partial(init, two, labels=v.floats([1.0] * 2))


def clustered(variant: Variant) -> tuple[Any, Any, Any]:
    """Make two prototypes, assignments and concentrations."""
    return embeddings(variant, 2), variant.array([0] * N), variant.floats([0.5] * 2)


def clusterings(v: Variant) -> Rows:
    """Clusterings of unequal numbers, and invalid arguments of `concentrations`."""
    x, (prototypes, assignments, concentrations) = embeddings(v), clustered(v)
    call, make = partial(pnce.proto_nce, x), pnce.concentrations
    two = [[y] * 2 for y in clustered(v)]
    rows: dict[str, tuple[str, Callable[[], Any]]] = {
        "fewer assignments than prototypes": ("assignments", partial(call, two[0], [assignments], two[2])),
        "one array of concentrations for two": ("concentrations", partial(call, two[0], two[1], concentrations)),
        "one mask for two": ("mask", partial(call, *two, mask=truths(v, N, 2))),
        "no clustering": ("prototypes", partial(call, [], [], [])),
        "a queue without keys": ("queue", partial(call, *clustered(v), queue=embeddings(v, 5))),
        "prototypes of other width": ("prototypes", partial(make, x, embeddings(v, 2, D + 1), assignments)),
        "assignments of other length": ("assignments", partial(make, embeddings(v, N + 1), prototypes, assignments)),
    }
    yield from ((what, name, ValueError, wrong_call) for what, (name, wrong_call) in rows.items())
    floats = v.floats([0.0] * N)
    yield "concentrations, assignments that are floats", "assignments", TypeError, partial(make, x, prototypes, floats)


def others(v: Variant) -> Rows:
    """Arrays that do not fit others of the call, or an option."""
    x, each = embeddings(v), v.array([1] * N)
    more, wide, log_q = embeddings(v, N + 1), embeddings(v, N, D + 1), v.floats([0.5] * N)
    scaled, shifted = pnce.similarities.scaled_columns, pnce.similarities.shifted_columns
    similar = partial(pnce.info_nce, x, x)
    targets, projections = v.floats(filled(0.5, 2, N, 2)), v.floats(filled(0.5, 2, D, 2))
    negatives_only = partial(pnce.siglip, logit_scale=1.0, logit_bias=0.0, negative_only=True)
    contrast, views, dcl = (
        partial(pnce.contrast, x, objective="info_nce"),
        partial(pnce.nt_xent, x),
        pnce.from_scores.dcl,
    )
    three_labels, fewer = pnce.pairings.labels(v.array([0, 1, 0])), v.floats([1.0] * (N - 1))
    shapes: dict[str, tuple[str, Callable[[], Any]]] = {
        "symmetric but not square": ("positive_key", partial(pnce.info_nce, x, more, symmetric=True)),
        "text of other width": ("text", partial(negatives_only, x, embeddings(v, 5, D + 1))),
        "projections the other way round": ("projections", partial(pnce.cpc, x, targets, projections)),
        "one column": ("scores", partial(pnce.bounds.dual_critic, embeddings(v, 1, 1))),
        "labels of other length": (r"pairing\.rows", partial(contrast, pairing=three_labels)),
        "positives that are a narrow matrix": (
            "positives",
            partial(dcl, embeddings(v, 3, 3), positives=truths(v, 3, 2)),
        ),
        "positives beside negatives": ("positives", partial(similar, embeddings(v, 5), positives=each)),
        "ids without those of the negatives": ("negative_ids", partial(pnce.two_tower, x, x, x, ids=each)),
        "log_q of no negatives": ("negative_log_q", partial(pnce.two_tower, x, x, log_q=log_q, negative_log_q=log_q)),
        "temperatures of fewer rows, streamed": ("temperature", partial(views, x, temperature=fewer, block_size=2)),
        "weights of neither samples nor views": ("weights", partial(views, x, x, weights=v.floats([1.0] * 2 * N))),
        "factors that are a matrix": ("factors", partial(scaled, "dot", x)),
        "offsets that are a matrix": ("offsets", partial(shifted, "dot", x)),
        "factors of other length": ("factors", partial(similar, similarity=scaled("dot", v.floats([1.0] * (N + 1))))),
        "a weight of other width": ("weight", partial(similar, similarity=pnce.similarities.bilinear(wide))),
    }
    yield from ((what, name, ValueError, call) for what, (name, call) in shapes.items())
    integers = v.array([1, 2])
    kinds: dict[str, tuple[str, Callable[[], Any]]] = {
        "integer factors": ("factors", partial(scaled, "dot", integers)),
        "integer offsets": ("offsets", partial(shifted, "dot", integers)),
        "labels that are floats": ("rows", partial(pnce.pairings.labels, log_q)),
        "None as key": ("positive_key", partial(pnce.info_nce, x, None)),
        "None as a further view": (r"further_views\[0\]", partial(views, x, None)),
        "None as a queue": ("queue", partial(pnce.moco, x, x, None)),
        "a number as scores": ("scores", partial(pnce.bounds.info_nce, 1.0)),
        "an array as a number": (
            "base_temperature",
            partial(pnce.supcon, x, classes(v), base_temperature=v.floats([1.0])),
        ),
    }
    yield from ((what, name, TypeError, call) for what, (name, call) in kinds.items())


@pytest.mark.parametrize("calls", [queues, pushes, clusterings, others])
def test_arguments_that_do_not_fit_are_refused(variant: Variant, calls: Callable[[Variant], Rows]) -> None:
    for what, name, error, call in calls(variant):
        assert_refused(what, name, error, call)


@pytest.mark.parametrize("dtype", ["float64"])
def test_mixed_precision(variant: Variant, dtype: str) -> None:
    """float32 and float64 raise an error: the caller must choose."""
    if "float32" not in (*variant.dtypes, *variant.further_dtypes):
        assert variant.dtypes == (dtype,)
        return
    with pytest.raises(TypeError, match=r"(?s)positive_key.*expected.*float64.*got.*float32"):
        pnce.info_nce(embeddings(variant), embeddings(variant, dtype="float32"))


@pytest.mark.two_devices
def test_arrays_on_two_devices_are_refused(variant: Variant) -> None:
    """Arrays on two devices raise an error; none is moved."""
    key = variant.array([[1.0] * D] * N, device=variant.other_device)
    weights = variant.array([1.0] * N, device=variant.other_device)
    with pytest.raises(ValueError, match=r"(?s)positive_key.*expected.*device.*got"):
        pnce.info_nce(embeddings(variant), key)
    with pytest.raises(ValueError, match=r"(?s)(weights.*expected.*device|expected.*device of weights).*got"):
        pnce.info_nce(embeddings(variant), embeddings(variant), weights=weights)
    with pytest.raises(ValueError, match=r"(?s)u.*expected.*device.*got"):
        pnce.bounds.dual(embeddings(variant, N, N), weights)


def test_options_are_keywords(variant: Variant) -> None:
    """Options by position and required arrays by keyword raise an error."""
    with pytest.raises(TypeError):
        pnce.info_nce(embeddings(variant), embeddings(variant), None, 0.5)
    with pytest.raises(TypeError):
        pnce.info_nce(query=embeddings(variant), positive_key=embeddings(variant))
