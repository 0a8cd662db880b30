"""Ranks that share a batch agree with one process in value, gradients and errors, without redundant collectives."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest

from ..._core.ranks import _check_same
from ..._execution import choice, two_sided
from .. import oracles
from .._package import pnce
from ..cases import CASES
from ..ranks import Rank, run_ranks
from ..sharding import Place, cut_case, is_shared, samples_of
from ..variants import EPS, case_arrays, case_named, differentiate, started
from .calls import scaled
from .sharing import (
    ALL_HAVE_SOME,
    Found,
    Without,
    add,
    bounds_of,
    cut,
    errors_on_ranks,
    shared,
    sharing,
    summed,
    total_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..cases import Case
    from ..variants import Nested, Variant

pytestmark = pytest.mark.ranks

ROWS = 5
GRADIENTS: Final[tuple[pnce.typing.GradientsOfRanks, ...]] = ("summed", "averaged")
TOLERANCE = {"float64": 2e-13, "float32": 4e-6}
OF_NUMBERS = {"float64": 2e-13, "float32": 2e-5}
"""Of gradients of one number, such as a temperature: sums that may cancel; in float32 1.3e-5 was seen."""
EXACT_TOLERANCE = 1e-40
SHARED = [case.name for case in CASES if is_shared(case)]


def near(found: Nested, wanted: Nested, limit: float) -> bool:
    """Whether numbers are near others, relative to the largest; NaN is near NaN."""
    if not isinstance(found, list) or not isinstance(wanted, list):
        found, wanted = [found], [wanted]
    largest = max((abs(x) for x in wanted if math.isfinite(x)), default=0.0)
    pairs = zip(found, wanted, strict=True)
    return all(a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= limit * largest for a, b in pairs)


def test_cuts_are_uneven_and_complete() -> None:
    assert bounds_of(5, 1) == [(0, 5)]
    assert bounds_of(5, 3) == [(0, 1), (1, 4), (4, 5)]
    assert bounds_of(10, 4) == [(0, 2), (2, 6), (6, 8), (8, 10)]
    assert bounds_of(3, 3) == [(0, 1), (1, 2), (2, 3)]
    assert bounds_of(5, 3, 1) == [(0, 4), (4, 4), (4, 5)]
    assert bounds_of(5, 2, 0) == [(0, 0), (0, 5)]


def compare(
    variant: Variant,
    case: Case,
    size: int,
    dtype: str,
    gradients: pnce.typing.GradientsOfRanks,
    *,
    check: bool = True,
    without: Without = ALL_HAVE_SOME,
) -> list[Found]:
    """Compare value and gradients on ranks with those of one process; return those on ranks."""
    value, slopes = differentiate(case.function, case_arrays(variant, case, dtype), len(case.arguments))
    expected = [variant.to_list(x) for x in (value, *slopes)]
    results = shared(variant, case, size, dtype, gradients, check=check, without=without)
    errors = errors_on_ranks(results, case, expected, gradients)
    for name, error in errors.items():
        is_number = not isinstance(case.arguments.get(name, []), list)
        limit = (OF_NUMBERS if is_number else TOLERANCE)[dtype]
        assert error <= (EXACT_TOLERANCE if variant.module == "mparray" else limit), errors
    return results


def assert_near(variant: Variant, found: Nested, wanted: Any) -> None:
    """Compare numbers of the widest dtype with an array or with numbers."""
    listed = variant.to_list(wanted) if hasattr(wanted, "shape") else wanted
    assert oracles.error(found, oracles.exact(listed)) <= TOLERANCE[variant.dtypes[0]]


@pytest.mark.parametrize("case_name", SHARED)
@pytest.mark.parametrize("dtype", ["float64"])
def test_ranks_agree_with_one_process(variant: Variant, case_name: str, dtype: str) -> None:
    """Every keyword of every loss, on two and on three ranks with uneven batches, in both conventions."""
    case = case_named(case_name, ROWS)
    compare(variant, case, 3, dtype, "averaged")
    compare(variant, case, 2, dtype, "summed")


@pytest.mark.parametrize("case_name", SHARED)
def test_a_rank_without_rows_or_columns_takes_part_with_nothing(variant: Variant, case_name: str) -> None:
    """Its value is that of the others, its gradients are empty, and it calls every collective."""
    case, dtype = case_named(case_name, ROWS), variant.dtypes[0]
    compare(variant, case, 3, dtype, "averaged", without=Without(rows=1))
    compare(variant, case, 2, dtype, "summed", without=Without(rows=0, columns=0))
    _, places = cut_case(case, bounds_of(samples_of(case), 3), 2)[2]
    if any(place.entries == () for place in places.values()):
        compare(variant, case, 3, dtype, "summed", without=Without(columns=2))


@pytest.mark.parametrize("case_name", SHARED)
def test_a_row_of_nan_or_far_away_on_one_rank(variant: Variant, case_name: str) -> None:
    """Other ranks do not have it, but take the same way: distances that may overflow are computed in another one."""
    given, dtype = case_named(case_name, ROWS), variant.dtypes[0]
    weights = given.constants.get("weights")
    if isinstance(weights, list):  # the row remains a negative of others, since no mask leaves it out
        constants = {**given.constants, "weights": [weights[0], 0.0, *weights[2:]]}
        given = replace(given, constants={key: x for key, x in constants.items() if key != "mask"})
    function, (name, (first, second, *others)) = getattr(pnce, given.loss, None), next(iter(given.arguments.items()))
    ways: list[dict[str, Any]] = [{}]
    if function is not None and "similarity" in signature(function).parameters and "similarity" not in given.options:
        ways += [{"similarity": "neg_sq_euclidean"}]
    for options, factor in product(ways, (math.nan, 3e9)):
        arguments = {**given.arguments, name: [first, scaled(factor, second), *others]}
        case = replace(given, arguments=arguments, options={**given.options, **options})
        value, *_ = differentiate(case.function, case_arrays(variant, case, dtype), len(case.arguments))
        wanted = variant.to_list(value)
        for found in shared(variant, case, 2, dtype):
            limit = 1e-9 if dtype == "float64" else 1e-4
            assert near(found.value, wanted, limit), (options, factor, found.value, wanted)


SIXTEEN_BITS = [
    (name, dtype)
    for name in SHARED
    for dtype in ("float16", "bfloat16")
    if dtype == "bfloat16" or case_named(name).regime == "normal"
]
"""Cases and 16-bit dtypes that represent their gradients; those of saturated rows are too small for float16."""


@pytest.mark.parametrize(("case_name", "dtype"), SIXTEEN_BITS)
def test_ranks_round_sixteen_bits_once(variant: Variant, case_name: str, dtype: str) -> None:
    """On two and three ranks, one without rows: once at the end, or twice where products are of 16 bits."""
    given = case_named(case_name, ROWS)
    rounded = map(variant.to_list, case_arrays(variant, given, dtype))
    held = dict(zip([*given.arguments, *given.constants], rounded, strict=True))
    constants = {key: held[key] for key in given.constants}
    case = replace(given, arguments={key: held[key] for key in given.arguments}, constants=constants)
    wide = started("numpy")
    function = summed(case.function) if case.options.get("reduction") == "none" else case.function
    value, slopes = differentiate(function, case_arrays(wide, case, "float64"), len(case.arguments))
    expected = [wide.to_list(x) for x in (value, *slopes)]
    on_ranks: tuple[tuple[int, pnce.typing.GradientsOfRanks, Without], ...] = (
        (2, "summed", ALL_HAVE_SOME),
        (3, "averaged", ALL_HAVE_SOME),
        (3, "averaged", Without(rows=1)),
        (2, "summed", Without(rows=0, columns=0)),
    )
    for size, gradients, without in on_ranks:
        found = shared(variant, case, size, dtype, gradients, without=without)
        errors = errors_on_ranks(found, case, expected, gradients)
        for name, error in errors.items():
            is_number = not isinstance(case.arguments.get(name, []), list)
            if is_number and gradients == "summed":  # a sum of rounded numbers, which may cancel
                continue
            units = 0.51 if name == "value" or not variant.half_products else 4.0 if is_number else 1.0
            assert error <= units * EPS[dtype], errors


@pytest.mark.parametrize("case_name", ["info_nce", "nt_xent", "siglip", "density.linear_softmax bias", "triplet"])
def test_ranks_without_any_row_all_refuse(variant: Variant, case_name: str) -> None:
    case = case_named(case_name, ROWS)

    def on_a_rank(group: Rank) -> Any:
        _, places = cut_case(case, [(0, 0), (0, 0)])[group.rank]
        whole = case_arrays(variant, case, variant.dtypes[0])
        arrays = [cut(x, place, x) for x, place in zip(whole, places.values(), strict=True)]
        return sharing(case, group, "summed")(*arrays)

    with pytest.raises(ValueError, match="across: expected at least one row on one of the ranks, got none on any"):
        run_ranks(2, on_a_rank)


WITH_TEMPERATURES = [
    *(name for name in SHARED if "temperatures of rows" in name and "shared negatives" not in name),
    *("joint_info_nce three directions, weights, mask", "gist_embed", "soft_nearest_neighbor", "two_tower cosine, ids"),
]


@pytest.mark.parametrize("case_name", WITH_TEMPERATURES)
def test_a_rank_with_one_row_has_its_temperature(variant: Variant, case_name: str) -> None:
    case = case_named(case_name, 2)
    samples = samples_of(case)
    case = replace(case, arguments={**case.arguments, "temperature": [0.5, 0.75, 0.375, 1.25][:samples]})
    compare(variant, case, samples, "float64", "averaged")
    compare(variant, case, samples, "float64", "summed", check="relic keys" in case_name)  # uneven numbers of keys


@pytest.mark.parametrize("case_name", ["hcl", "dclw", *WITH_TEMPERATURES])
def test_a_rank_with_one_row_takes_the_temperature_of_all(variant: Variant, case_name: str) -> None:
    """An array of one entry could be a temperature per row on the rank with one row."""
    case = case_named(case_name, ROWS)
    case = replace(case, arguments={**case.arguments, "temperature": [0.5]})
    compare(variant, case, 2, "float64", "averaged")
    compare(variant, case, 2, "float64", "summed")


@pytest.mark.parametrize("name", ["sogclr", "sogclr weights, mask"])
def test_each_rank_has_the_averages_of_its_samples(variant: Variant, name: str) -> None:
    case = case_named(name, ROWS)

    def averages(own: Case, **further: Any) -> Nested:
        named = dict(zip([*own.arguments, *own.constants], case_arrays(variant, own, "float64"), strict=True))
        given = [named.pop(key) for key in ("query", "key", "log_u")]
        return variant.to_list(pnce.sogclr(*given, **named, **own.options, **further)[1])

    parts = cut_case(case, bounds_of(ROWS, 3))
    found = run_ranks(3, lambda rank: averages(parts[rank.rank][0], across=pnce.across(rank, gradients="summed")))
    whole = [number for part in found for number in part]
    for number, wanted in zip(whole, averages(case), strict=True):
        assert number == wanted or abs(number - wanted) <= TOLERANCE["float64"] * abs(wanted)


SEEN_ONCE = ["nt_xent", "nt_xent sum", "nt_xent dot", "nt_xent weights of pairs, streamed", "dcl"]


@pytest.mark.internals
@pytest.mark.parametrize("name", SEEN_ONCE)
@pytest.mark.parametrize("temperature", [0.5, 2.0**-7])  # without a shift of the scores, and with one
def test_each_pair_of_own_scores_is_seen_by_one_rank(
    variant: Variant, name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep of large batches, in one block and in blocks of three rows, for odd and even numbers of ranks."""
    share = two_sided._share_of_pairs  # noqa: SLF001  (counts its calls)

    def counted(shards: Any, tiling: Any) -> Any:
        shards.communicator.marks.append("share of pairs")
        return share(shards, tiling)

    monkeypatch.setattr(choice, "is_large", lambda *shape: bool(shape))
    monkeypatch.setattr(two_sided, "_share_of_pairs", counted)
    for size in (2, 3, 4, 5):
        case, gradients = case_named(name, 2 * size), GRADIENTS[size % 2]
        for block_size, without in (("auto", ALL_HAVE_SOME), (3, ALL_HAVE_SOME), (3, Without(rows=size // 2))):
            arguments = {**case.arguments, "temperature": temperature}
            blocks = replace(case, arguments=arguments, options={**case.options, "block_size": block_size})
            for found in compare(variant, blocks, size, "float64", gradients, without=without):
                assert found.group.marks == ["share of pairs"]


ONE_SIDED = {"tell": 1, "all_gather": 1, "reduce_scatter": 1, "all_reduce": 1}
SENT: Mapping[str, dict[str, int]] = {
    "info_nce": ONE_SIDED,
    "info_nce shared negatives, cosine": ONE_SIDED,
    "siglip": ONE_SIDED,
    "clip": {**ONE_SIDED, "all_gather": 2, "all_reduce": 2},
    "nt_xent": ONE_SIDED,
    "supcon": {**ONE_SIDED, "all_gather": 2},
    "moco": {"tell": 1, "all_reduce": 1},
    "relic": {**ONE_SIDED, "all_gather": 2, "reduce_scatter": 2},
    "relic keys": {**ONE_SIDED, "all_gather": 3, "reduce_scatter": 3},
    "nt_xent keys": {**ONE_SIDED, "all_gather": 2, "reduce_scatter": 2},
    # Ranks compare arguments for the loss, and for each of its two matrices.
    "joint_info_nce": {**ONE_SIDED, "tell": 3, "all_gather": 2, "reduce_scatter": 2},
}
"""Number of collectives of a loss and its gradient: embeddings and their gradients, otherwise only scalars."""

COLUMNS = {
    "moco": 0,
    "info_nce shared negatives, cosine": 0,
    "nt_xent": 2,
    "nt_xent keys": 2,
    "relic": 2,
    "relic keys": 2,
    "joint_info_nce": 4,
}
"""Number of columns, besides keys, that are gathered per row of a rank, if not one."""


@pytest.mark.parametrize("name", SENT)
def test_no_more_is_sent_than_needed(variant: Variant, name: str) -> None:
    case = case_named(name, ROWS)
    arrays = {key: x for key, x in case.arguments.items() if isinstance(x, list)}
    numbers = {key: number for key, number in {"logit_scale": 2.0, "logit_bias": -1.0}.items() if key in case.arguments}
    case = replace(case, arguments=arrays, options={**case.options, **numbers})
    rows = next(iter(arrays.values()))
    columns = len(rows) * COLUMNS.get(name, 1) + len(arrays.get("keys", arrays.get("negative_keys", ())))
    for found in shared(variant, case, 2, variant.dtypes[0]):
        log = found.group.log
        kinds = [sent.kind for sent in log]
        assert {kind: kinds.count(kind) for kind in kinds} == SENT[name], log
        entries = sum(sent.entries for sent in log if sent.kind == "reduce_scatter")
        assert entries == columns * len(rows[0])


@pytest.mark.parametrize("name", ["info_nce", "joint_info_nce", "nt_xent keys", "relic keys"])
def test_half_precision_travels_in_its_own_dtype(variant: Variant, name: str) -> None:
    half = next((dtype for dtype in variant.dtypes if "16" in dtype), None)
    for found in shared(variant, case_named(name, ROWS), 2, half) if half else ():
        widths = {sent.kind: sent.bytes_each for sent in found.group.log}
        assert widths["all_gather"] == 2
        assert widths["reduce_scatter"] == 4  # gradients are summed in float32 before rounding


@pytest.mark.parametrize("name", ["cosent", "angle weights, mask"])
def test_graded_pairs_send_numbers_alone(variant: Variant, name: str) -> None:
    """Similarities, grades, gradients of the similarities, and a sum; no embeddings."""
    case, columns = case_named(name, ROWS), 3 if "weights" in name else 2
    samples = samples_of(case)
    for found, (low, high) in zip(shared(variant, case, 2, variant.dtypes[0]), bounds_of(samples, 2), strict=True):
        sent = [(x.kind, x.entries) for x in found.group.log if x.kind != "tell"]
        gathered = [("all_gather", columns * (high - low)), ("all_gather", high - low)]
        assert sent == [*gathered, ("all_reduce", 1), ("reduce_scatter", columns * samples)]


OF_ROWS = [
    *("info_nce", "joint_info_nce", "joint_info_nce three directions, weights, mask"),
    *("nt_xent keys, weights of rows, mask", "nt_xent three views, queue, each, mask", "dclw queue, mask"),
    *("relic keys", "relic keys, symmetric, stop_gradient first, weights, mask"),
    *("relic keys, a queue that is not full, b_to_a, sum", "proto_nce two clusterings, keys, queue, weights"),
]


@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("gradients", ["averaged", "summed"])
def test_losses_of_rows_are_those_of_one_process(
    variant: Variant, name: str, gradients: pnce.typing.GradientsOfRanks
) -> None:
    """Each rank has the losses of its own rows; the gradients of their sums add up in both conventions."""
    case = case_named(name, ROWS)
    case = replace(case, options={**case.options, "reduction": "none"})
    arrays = case_arrays(variant, case, variant.dtypes[0])
    wanted = variant.to_list(case.function(*arrays))
    slopes = differentiate(summed(case.function), arrays, len(case.arguments))[1]
    results, bounds = shared(variant, case, 3, variant.dtypes[0], gradients), bounds_of(ROWS, 3)
    values, views = scaled(0, wanted), range(len(wanted) // ROWS)
    for found, (low, high) in zip(results, bounds, strict=True):
        add(values, Place(0, tuple(k + view * ROWS for view in views for k in range(low, high))), found.value)
    assert_near(variant, values, wanted)
    for k, key in enumerate(case.arguments):
        if isinstance(case.arguments[key], list):
            assert_near(variant, total_of(results, key, k, variant.to_list(slopes[k])), slopes[k])


# --- differences between ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.0, 40.0, 1e4])
@pytest.mark.parametrize("name", ["clip", "info_nce", "siglip", "nt_xent"])
def test_values_on_one_rank_do_not_change_what_is_sent(variant: Variant, name: str, factor: float) -> None:
    """A zero row and scores that need a shift on one rank only: other collectives there would be an error."""
    case = case_named(name, ROWS)
    key, rows = next(iter(case.arguments.items()))
    arguments = {**case.arguments, key: [rows[0], [x * factor for x in rows[1]], *rows[2:]]}
    for block_size in (None, 2):
        options = {**case.options, "similarity": "dot", "block_size": block_size}
        compare(variant, replace(case, arguments=arguments, options=options), 3, variant.dtypes[0], "averaged")


def test_factors_of_columns_belong_to_the_rows_of_a_rank(variant: Variant) -> None:
    case, factors = case_named("info_nce", ROWS), [0.5, 2.0, 1.0, 1.5, 0.25]
    dtype, scaled_columns = variant.dtypes[0], pnce.similarities.scaled_columns
    whole = scaled_columns("cosine", variant.floats(factors))
    wanted = pnce.info_nce(*case_arrays(variant, case, dtype), similarity=whole)
    bounds = bounds_of(ROWS, 3)
    parts = cut_case(case, bounds)

    def on_a_rank(group: Rank) -> Nested:
        (own, _), (low, high) = parts[group.rank], bounds[group.rank]
        loss = partial(pnce.info_nce, *case_arrays(variant, own, dtype), across=pnce.across(group, gradients="summed"))
        with pytest.raises(ValueError, match=r"factors: expected shape|refused"):
            loss(similarity=whole)
        return variant.to_list(loss(similarity=scaled_columns("cosine", variant.floats(factors[low:high]))))

    for value in run_ranks(3, on_a_rank):
        assert_near(variant, value, wanted)


@pytest.mark.parametrize("name", ["nt_xent keys", "relic keys"])
def test_factors_of_columns_beside_keys_are_those_of_rows_and_of_keys(variant: Variant, name: str) -> None:
    case, bounds = case_named(name, ROWS), bounds_of(ROWS, 3)
    keys, views = len(case.arguments["keys"]), 2 if name.startswith("nt_xent") else 1
    of_rows, of_keys = [0.5, 2.0, 1.0, 1.5, 0.25], [1.25 - 0.125 * k for k in range(keys)]
    parts = cut_case(case, bounds)

    def value(own: Case, low: int, high: int, taken: Any, **further: Any) -> Nested:
        factors = variant.floats([*(of_rows[low:high] * views), *(of_keys[k] for k in taken)])
        similarity = pnce.similarities.scaled_columns("cosine", factors)
        arrays = {key: variant.floats(own.arguments[key]) for key in ("view_a", "view_b", "keys")}
        return variant.to_list(own.call(arrays, similarity=similarity, **further))

    def on_a_rank(group: Rank) -> Nested:
        own, places = parts[group.rank]
        return value(own, *bounds[group.rank], places["keys"].entries, across=pnce.across(group, gradients="summed"))

    for found in run_ranks(3, on_a_rank):
        assert_near(variant, found, value(case, 0, ROWS, range(keys)))


def refusals(variant: Variant, call: Callable[[int, pnce.Ranks], Any]) -> list[str]:
    """Errors on each of two ranks; a loss after them is checked to be correct."""
    case = case_named("info_nce", ROWS)
    parts = cut_case(case, bounds_of(ROWS, 2))
    wanted = variant.to_list(case.function(*case_arrays(variant, case, variant.dtypes[0])))

    def on_a_rank(group: Rank) -> tuple[str, Nested]:
        message = ""
        try:
            call(group.rank, pnce.across(group, gradients="summed"))
        except (TypeError, ValueError, UserWarning) as error:
            message = str(error)
        own, _ = parts[group.rank]
        arrays = case_arrays(variant, own, variant.dtypes[0])
        return message, variant.to_list(sharing(own, group, "summed")(*arrays))

    messages, values = zip(*run_ranks(2, on_a_rank), strict=True)
    for value in values:
        assert_near(variant, value, wanted)
    return [*messages]


def embeddings(variant: Variant, rows: int = 2, features: int = 3) -> Any:
    return variant.floats([[float(k + 1 == j) + 0.25 for j in range(features)] for k in range(rows)])


@pytest.mark.filterwarnings("error::UserWarning")
def test_an_argument_that_one_rank_refuses_is_told_to_the_others(variant: Variant) -> None:
    """Also one that a similarity or `matryoshka` refuses, and one that is warned of, if warnings are errors."""
    a, weight = embeddings(variant), variant.floats([[1.0] * 3] * 3)
    mask, weights = variant.array([[True] * 4] * 2), variant.floats([1.0, 1.0])
    similarity = pnce.similarities.bilinear(weight)
    calls: dict[str, Callable[[int, pnce.Ranks], Any]] = {
        "logit_scale: expected": lambda k, ranks: pnce.clip(a, a, logit_scale=(1.0, -1.0)[k], across=ranks),
        "weight: expected shape": lambda k, ranks: pnce.info_nce(
            a[:, : 3 - k], a, similarity=similarity, temperature=1.0, across=ranks
        ),
        "widths: expected at most": lambda k, ranks: pnce.matryoshka(pnce.clip, (3, 2 + 7 * k))(
            a, a, logit_scale=2.0, across=ranks
        ),
        "mask: expected shape": lambda k, ranks: pnce.nnclr(
            a, a, pushed(a, 2), mask=mask[0, :] if k else mask, across=ranks
        ),
        "weights: expected numbers of at least 0": lambda k, ranks: pnce.clip(
            a, a, logit_scale=2.0, weights=(1.0 - 2.0 * k) * weights, across=ranks
        ),
    }
    for words, call in calls.items():
        others, own = refusals(variant, call)
        if words.startswith("weights") and not (others or own):
            continue  # values cannot be read
        assert "rank 1 refused its arguments" in others, words
        assert own.startswith(words), (own, words)


def test_ranks_need_a_convention_for_gradients(variant: Variant) -> None:
    a = embeddings(variant)

    def on_a_rank(group: Rank) -> None:
        with pytest.raises(ValueError, match=r"^gradients: expected 'averaged' .* or 'summed' .*, got None$"):
            pnce.across(group)
        taken_for_ranks: Any = group
        with pytest.raises(TypeError, match=r"^across: expected what portable_nce\.across returns, got \w+Rank"):
            pnce.info_nce(a, a, across=taken_for_ranks)

    run_ranks(2, on_a_rank)


def test_no_group_is_named_as_what_it_is() -> None:
    for nothing in (None, 3, object()):
        with pytest.raises(TypeError, match=r"^group: expected a process group"):
            pnce.across(nothing, gradients="summed")


def test_one_rank_is_one_process(variant: Variant) -> None:
    case = case_named("clip", ROWS)
    arrays = case_arrays(variant, case, variant.dtypes[0])

    def on_a_rank(group: Rank) -> tuple[Nested, list[Any]]:
        return variant.to_list(sharing(case, group, "averaged")(*arrays)), group.log

    ((value, log),) = run_ranks(1, on_a_rank)
    assert value == variant.to_list(case.function(*arrays))
    assert log == []


@pytest.mark.parametrize("kind", [None, "int8", "int32"])
def test_queues_of_all_ranks_stay_equal(variant: Variant, kind: str | None) -> None:
    """They hold the rows and labels of all ranks, in rank order."""
    rows = [[float(k), 1.0] for k in range(ROWS)]

    def pushed_rows(low: int, high: int, **further: Any) -> pnce.Queue:
        own = variant.floats(rows[low:high])
        labels = None if kind is None else variant.array(list(range(low, high)), kind)
        return pnce.queue_push(pnce.queue_init(own, 7, labels=labels), own, labels=labels, **further)

    def on_a_rank(group: Rank) -> Any:
        queue = pushed_rows(*bounds_of(ROWS, 3)[group.rank], across=pnce.across(group, gradients="summed"))
        if queue.labels is not None:
            assert queue.labels.dtype == variant.dtype(str(kind))
        return [None if x is None else variant.to_list(x) for x in queue]

    wanted = pushed_rows(0, ROWS)
    numbers = None if kind is None else [0] * (7 - ROWS) + list(range(ROWS))
    assert run_ranks(3, on_a_rank) == [[variant.to_list(wanted.rows), variant.to_list(wanted.valid), numbers]] * 3


def test_a_rank_may_push_no_rows(variant: Variant) -> None:
    example = variant.floats([[float(k), 1.0] for k in range(ROWS)])

    def on_a_rank(group: Rank) -> Nested:
        own = example[: 2 * group.rank, ...]
        across = pnce.across(group, gradients="summed")
        return variant.to_list(pnce.queue_push(pnce.queue_init(example, 3), own, across=across).rows)

    assert run_ranks(2, on_a_rank) == [[[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]] * 2


def test_a_row_that_takes_part_as_a_column_alone_keeps_its_neighbour(variant: Variant) -> None:
    """Its pairs are masked as a row; only other ranks know whether it has a pair as a column."""
    rows = [[0.1 * (3 * k + j) + (j == k) for j in range(3)] for k in range(4)]
    a, b = variant.floats(rows), variant.floats(rows[::-1])
    support = variant.floats([[1.0, 0.0, 0.25], [0.0, 1.0, -0.5], [0.5, -0.25, 1.0]])
    mask = [[k != 0 for _ in range(8)] for k in range(8)]
    wanted = pnce.nnclr(a, b, support, negatives="views", mask=variant.array(mask))

    def on_a_rank(group: Rank) -> Nested:
        low, high = 2 * group.rank, 2 * group.rank + 2
        own = variant.array([mask[k] for k in (low, low + 1, low + 4, low + 5)])
        ranks = pnce.across(group, gradients="summed")
        return variant.to_list(
            pnce.nnclr(a[low:high, ...], b[low:high, ...], support, negatives="views", mask=own, across=ranks)
        )

    for value in run_ranks(2, on_a_rank):
        assert_near(variant, value, wanted)


def pushed(a: Any, slots: int, rows: int = 2) -> Any:
    return pnce.queue_push(pnce.queue_init(a, slots), a[:rows, ...])


def told(argument: str, *values: str) -> str:
    """Pattern of the error for an argument that differs."""
    return "{}: expected the same on all ranks, got {} on rank 0, {} on rank 1".format(argument, *values)


AN_ARRAY, A_MATRIX = "an array of .*", "an array of .* with 2 axes"


def differing(v: Variant, a: Any, k: int) -> dict[str, Callable[..., Any]]:
    """Losses of two rows whose arguments differ on the second rank, by the pattern of the error."""
    pair, labels, truths = v.floats([0.5, 1.0]), v.array([0, 1]), v.array([[True] * 4] * 2)
    steps = [v.floats([rows] * (1 + k)) for rows in ([[1.0, 0.0], [0.5, 1.0]], [[1.0, 0.0, 0.5]] * 2)]
    one_or_pair, negatives = v.floats([0.5, 1.0][: 1 + k]), v.floats([[[1.0, 0.0, 0.5]]] * 2)
    mask = v.array([[True] * (4 + k)] * 2)
    pairing: Any = pnce.pairings.labels(labels) if k else "diagonal"
    direction: Any = ("query_to_key", "key_to_query")[k]
    keys = {"keys": a, "key_labels": labels} if k else {}
    return {
        told("features", "3", "2"): partial(pnce.info_nce, a[:, : 3 - k], a[:, : 3 - k]),
        told("loss", "'nt_xent'", "'dcl'"): partial((pnce.nt_xent, pnce.dcl)[k], a, a),
        told("reduction", "'mean'", "'sum'"): partial(pnce.info_nce, a, a, reduction=("mean", "sum")[k]),
        told("temperature", "0.5", "1.5"): partial(pnce.info_nce, a, a, negatives, temperature=0.5 + k),
        told("temperature", "0.5", AN_ARRAY): partial(pnce.n_tuple, a, a, temperature=pair if k else 0.5),
        told("temperature", "one for all", "one for each row"): partial(pnce.nt_xent, a, a, temperature=one_or_pair),
        told("mask", "None", A_MATRIX): partial(pnce.relic, a, a, mask=truths if k else None),
        "mask: expected the columns of all ranks, 4, got 5": partial(pnce.info_nce, a, a, mask=mask),
        told("weights", "None", AN_ARRAY): partial(pnce.angle, a, a, labels, weights=pair if k else None),
        told("base_temperature", "0.5", "1.5"): partial(pnce.supcon, a, labels, base_temperature=0.5 + k),
        told("margin", "0.5", "1.5"): partial(pnce.triplet, a, a, a, margin=0.5 + k),
        told("l2", "0", "0.5"): partial(pnce.n_tuple, a, a, l2=0.5 * k),
        told("gamma", "0.5", "1"): partial(pnce.sogclr, a, a, pair, gamma=(0.5, 1.0)[k]),
        told("rows of queue", "2", "3"): partial(pnce.moco, a, a, pushed(a, 2 + k)),
        told("slots", "2", "3"): partial(pnce.queue_push, pushed(a, 2 + k), a),
        told("pairing", "'diagonal'", "Pairing"): partial(pnce.contrast, a, a, objective="info_nce", pairing=pairing),
        told("key", "None", A_MATRIX): partial(pnce.proto_nce, a, a, labels, pair, key=a if k else None),
        told("scale", "1", "2"): partial(pnce.cosent, a, a, labels, scale=1.0 + k),
        told("grades", AN_ARRAY, AN_ARRAY): partial(pnce.angle, a, a, pair if k else labels),
        told("keys", "None", A_MATRIX): partial(pnce.supcon, a, labels, **keys),
        told("keys", A_MATRIX, "Queue"): partial(pnce.dcl, a, a, keys=pushed(a, 2) if k else a),
        told("directions", "'query_to_key'", "'key_to_query'"): partial(
            pnce.joint_info_nce, a, a, directions=direction
        ),
        told("similarity", "'dot'", "'cosine'"): partial(
            pnce.clip, a, a, logit_scale=2.0, similarity=("dot", "cosine")[k]
        ),
        told("steps", "1", "2"): partial(pnce.cpc, a, *steps),
        told("widths", r"\(3, 2\)", r"\(3\)"): partial(
            pnce.matryoshka(pnce.clip, (3, 2)[: 2 - k]), a, a, logit_scale=2.0
        ),
        told("weights", r"\(1, 1\)", r"\(1, 2\)"): partial(
            pnce.matryoshka(pnce.clip, (3, 2), weights=(1.0, 1.0 + k)), a, a, logit_scale=2.0
        ),
        told("columns of labels", "4", "3"): partial(pnce.supcon, a, truths[:, : 4 - k]),
        "mask: expected the columns of all ranks, 4, got 0": partial(pnce.info_nce, a, a, mask=truths[:, : 4 - 4 * k]),
    }


def test_arguments_that_differ_are_the_same_error_on_all_ranks(variant: Variant) -> None:
    a = embeddings(variant)
    for words in differing(variant, a, 0):

        def call(rank: int, ranks: pnce.Ranks, words: str = words) -> Any:
            return differing(variant, a, rank)[words](across=ranks)

        first, second = refusals(variant, call)
        assert first == second
        assert re.fullmatch(words, first), (first, words)


def test_a_queue_that_is_full_on_one_rank_alone_is_told(variant: Variant) -> None:
    """If values can be read, that rank has no validity flags; otherwise all ranks have them."""
    a = embeddings(variant)
    found = refusals(variant, lambda rank, ranks: pnce.nt_xent(a, a, keys=pushed(a, 2, 2 - rank), across=ranks))
    assert found in ([told("pairing", "Pairing", "another Pairing")] * 2, [""] * 2)


@pytest.mark.parametrize("loss", [pnce.hcl, pnce.dclw])
def test_temperatures_of_one_row_per_rank_are_refused(variant: Variant, loss: Any) -> None:
    a, temperature = embeddings(variant, 1), variant.floats([0.5])
    first, second = refusals(variant, lambda _, ranks: loss(a, a, temperature=temperature, across=ranks))
    assert first == second
    assert first.startswith("temperature: expected one number with across and this objective")


@pytest.mark.parametrize("gradients", ["summed", "averaged"])
@pytest.mark.parametrize(("k", "excluded"), [(1, 0), (3, 2), (11, 1)])
def test_top_k_of_the_keys_of_all_ranks(variant: Variant, k: int, excluded: int, gradients: Any) -> None:
    """Uneven queries and keys, a rank with fewer than k keys, equal scores on one rank and on several.

    With NaN and with excluded keys, the result is that of one process.
    """
    query = [[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0], [2.0, -1.0], [0.0, 0.0]]
    key = [[float(j % 3), float(j * 2 % 5)] for j in range(11)]
    known = [[(3 * i + 5 * m) % 12 - 1 for m in range(excluded)] for i in range(5)]
    rows, columns = [(0, 1), (1, 4), (4, 5)], [(0, 6), (6, 8), (8, 11)]

    def arrays(own: tuple[int, int], keys: tuple[int, int]) -> tuple[tuple[Any, Any], dict[str, Any]]:
        without = {"exclude": variant.array(known[slice(*own)])} if excluded else {}
        return (variant.floats(query[slice(*own)]), variant.floats(key[slice(*keys)])), without

    def on_a_rank(group: Rank) -> list[Nested]:
        both, without = arrays(rows[group.rank], columns[group.rank])
        ranks = pnce.across(group, gradients=gradients)
        found = pnce.diagnostics.top_k(*both, k, similarity="dot", **without, across=ranks)
        assert [sent.kind for sent in group.log].count("all_gather") == 3  # queries, scores, indices; not keys
        return [variant.to_list(x) for x in found]

    both, without = arrays((0, 5), (0, 11))
    wanted = [variant.to_list(x) for x in pnce.diagnostics.top_k(*both, k, similarity="dot", **without)]
    found = run_ranks(3, on_a_rank)
    assert [[row for part in found for row in part[which]] for which in (0, 1)] == wanted


def test_top_k_that_does_not_fit_is_the_same_error_on_all_ranks(variant: Variant) -> None:
    a = embeddings(variant)
    known = variant.array([[0], [1]])
    calls: dict[str, Callable[[int], Any]] = {
        "k: expected at most the number of keys, 4, got 5": lambda _: {"k": 5},
        told("k", "1", "2"): lambda rank: {"k": 1 + rank},
        told("exclude", "None", "an array of [a-z0-9]+ with 2 axes"): lambda rank: {
            "k": 1,
            "exclude": known if rank else None,
        },
        told("similarity", "'dot'", "'cosine'"): lambda rank: {"k": 1, "similarity": ("dot", "cosine")[rank]},
    }
    for words, options in calls.items():

        def call(rank: int, ranks: pnce.Ranks, options: Any = options) -> Any:
            return pnce.diagnostics.top_k(a, a, across=ranks, **options(rank))

        first, second = refusals(variant, call)
        assert first == second
        assert re.fullmatch(words, first), (first, words)


def test_many_ranks_are_counted() -> None:
    _check_same("l2", [("1", 0)] * 9)
    with pytest.raises(ValueError, match=r"got 1 on ranks 0, 1, 3, 4 and 2 more, 2 on rank 2$"):
        _check_same("l2", [("1", 0), ("1", 0), ("2", 1), *[("1", 0)] * 4])
