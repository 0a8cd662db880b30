"""Ranks that share a batch get what one process gets: value, gradients, errors, and no more collectives than needed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ..._core.namespace import namespace_of
from ..._core.ranks import _check_same
from ..._execution import matrix, two_sided
from .. import oracles
from .._package import pnce
from ..cases import CASES
from ..ranks import ThreadRank, run_ranks
from ..sharding import Place, cut_case, is_shared, samples_of
from ..variants import case_arrays, case_named, differentiate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..cases import Case
    from ..variants import Nested, Variant

pytestmark = pytest.mark.ranks

ROWS = 5
TOLERANCE = {"float64": 2e-13, "float32": 4e-6}
EXACT_TOLERANCE = 1e-40
SHARED = [case.name for case in CASES if is_shared(case)]


def bounds_of(samples: int, size: int) -> list[tuple[int, int]]:
    """Cut samples among ranks, unevenly: the second has the most."""
    counts = [max(1, samples // (size + 1))] * size
    counts[size > 1] += samples - sum(counts)
    ends = [sum(counts[: rank + 1]) for rank in range(size)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def test_cuts_are_uneven_and_complete() -> None:
    assert bounds_of(5, 1) == [(0, 5)]
    assert bounds_of(5, 2) == [(0, 1), (1, 5)]
    assert bounds_of(5, 3) == [(0, 1), (1, 4), (4, 5)]
    assert bounds_of(10, 4) == [(0, 2), (2, 6), (6, 8), (8, 10)]
    assert bounds_of(3, 3) == [(0, 1), (1, 2), (2, 3)]


def add(whole: list[Any], place: Place, part: Nested) -> None:
    """Add what a rank has to the whole, in place."""
    if place.axis:
        for line, lines in zip(whole, part, strict=True):
            add(line, replace(place, axis=place.axis - 1), lines)
        return
    for k, x in zip(range(len(part)) if place.entries is None else place.entries, part, strict=True):
        if isinstance(x, list):
            add(whole[k], Place(), x)
        else:
            whole[k] += x


def divided(nested: Nested, by: int) -> Nested:
    return [divided(x, by) for x in nested] if isinstance(nested, list) else nested / by


def zeros_like(nested: Nested) -> Nested:
    return [zeros_like(x) for x in nested] if isinstance(nested, list) else 0


def sharing(
    case: Case, group: ThreadRank, gradients: pnce.typing.GradientsOfRanks, *, check: bool = True
) -> Callable[..., Any]:
    """Give the function of a rank's case."""
    options = {**case.options, "across": pnce.across(group, gradients=gradients, check=check)}
    return replace(case, options=options).function


def compare(
    variant: Variant,
    case: Case,
    size: int,
    dtype: str,
    gradients: pnce.typing.GradientsOfRanks,
    *,
    check: bool = True,
) -> None:
    """Compare value and gradients on ranks with those of one process."""
    wanted_value, wanted = differentiate(case.function, case_arrays(variant, case, dtype), len(case.arguments))
    parts = cut_case(case, bounds_of(samples_of(case), size))

    def on_a_rank(group: ThreadRank) -> tuple[Nested, list[Nested]]:
        own, _ = parts[group.rank]
        found_value, found = differentiate(
            sharing(own, group, gradients, check=check), case_arrays(variant, own, dtype), len(case.arguments)
        )
        return variant.to_list(found_value), [variant.to_list(g) for g in found]

    results = run_ranks(size, on_a_rank)
    tolerance = EXACT_TOLERANCE if variant.module == "mparray" else TOLERANCE[dtype]
    errors: dict[str, Any] = {}
    for value, _ in results:
        errors["value"] = oracles.error(value, oracles.exact(variant.to_list(wanted_value)))
        assert errors["value"] <= tolerance, (value, wanted_value)
    averaged = gradients == "averaged"
    for k, name in enumerate(case.arguments):
        exact = variant.to_list(wanted[k])
        if not isinstance(exact, list) and averaged and name in {"temperature", "logit_scale", "logit_bias", "scale"}:
            for rank in range(size):  # the whole on each
                errors[f"{name}, rank {rank}"] = oracles.error(results[rank][1][k], oracles.exact(exact))
            continue
        total = [zeros_like(exact)]
        for (_, places), (_, found) in zip(parts, results, strict=True):
            if isinstance(exact, list):
                add(total[0], places[name], found[k])
            else:
                total[0] += found[k]
        errors[name] = oracles.error(divided(total[0], size if averaged else 1), oracles.exact(exact))
    assert max(errors.values()) <= tolerance, errors


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("dtype", ["float64"])
def test_ranks_agree_with_one_process(variant: Variant, name: str, dtype: str) -> None:
    """Every keyword of every loss, on two and on three ranks with uneven batches, in both conventions."""
    case = case_named(name, ROWS)
    compare(variant, case, 3, dtype, "averaged")
    compare(variant, case, 2, dtype, "summed")


WITH_TEMPERATURES = [
    *(name for name in SHARED if "temperatures of rows" in name and "shared negatives" not in name),
    *("joint_info_nce three directions, weights, mask", "gist_embed", "soft_nearest_neighbor", "two_tower cosine, ids"),
]


@pytest.mark.parametrize("name", WITH_TEMPERATURES)
def test_a_rank_with_one_row_has_its_temperature(variant: Variant, name: str) -> None:
    case = case_named(name, 2)
    samples = samples_of(case)
    case = replace(case, arguments={**case.arguments, "temperature": [0.5, 0.75, 0.375, 1.25][:samples]})
    compare(variant, case, samples, "float64", "averaged")
    compare(variant, case, samples, "float64", "summed", check="relic keys" in name)  # whose keys are uneven


@pytest.mark.parametrize("name", ["hcl", "dclw", *WITH_TEMPERATURES])
def test_a_rank_with_one_row_takes_the_temperature_of_all(variant: Variant, name: str) -> None:
    """An array of one entry has the shape of a temperature of its row; the other rank has more rows."""
    case = case_named(name, ROWS)
    case = replace(case, arguments={**case.arguments, "temperature": [0.5]})
    compare(variant, case, 2, "float64", "averaged")
    compare(variant, case, 2, "float64", "summed")


@pytest.mark.parametrize("name", ["sogclr", "sogclr weights, mask"])
def test_each_rank_has_the_averages_of_its_samples(variant: Variant, name: str) -> None:
    case = case_named(name, ROWS)
    names = (*case.arguments, *case.constants)

    def averages(own: Case, **further: Any) -> Nested:
        named = dict(zip(names, case_arrays(variant, own, "float64"), strict=True))
        given = [named.pop(key) for key in ("query", "key", "log_u")]
        return variant.to_list(pnce.sogclr(*given, **named, **own.options, **further)[1])

    parts = cut_case(case, bounds_of(ROWS, 3))
    found = run_ranks(3, lambda rank: averages(parts[rank.rank][0], across=pnce.across(rank, gradients="summed")))
    whole = [number for part in found for number in part]
    for number, wanted in zip(whole, averages(case), strict=True):
        assert number == wanted or abs(number - wanted) <= TOLERANCE["float64"] * abs(wanted)


SEEN_ONCE = ["nt_xent", "nt_xent sum", "nt_xent dot", "nt_xent weights of pairs, streamed", "dcl"]


@pytest.mark.parametrize("name", SEEN_ONCE)
@pytest.mark.parametrize("temperature", [0.5, 2.0**-7])  # without a shift of the scores, and with one
def test_each_pair_of_own_scores_is_seen_by_one_rank(
    variant: Variant, name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep of large batches, in one block and in blocks of three rows, on odd and even numbers of ranks."""
    share, taken = two_sided._share_of_pairs, list[int]()  # noqa: SLF001  (to see that it is asked)

    def counted(shards: Any, tiling: Any) -> Any:
        taken.append(shards.communicator.rank)
        return share(shards, tiling)

    monkeypatch.setattr(matrix, "is_large", lambda *shape: bool(shape))
    monkeypatch.setattr(two_sided, "_share_of_pairs", counted)
    for size in (2, 3, 4, 5):
        case = case_named(name, 2 * size)
        for block_size in ("auto", 3):
            blocks = replace(
                case,
                arguments={**case.arguments, "temperature": temperature},
                options={**case.options, "block_size": block_size},
            )
            compare(variant, blocks, size, "float64", "averaged" if size % 2 else "summed")
    assert len(taken) == 2 * (2 + 3 + 4 + 5)


UNITS: Mapping[str, dict[str, int]] = {
    "info_nce": {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 1},
    "siglip": {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 1},
    "clip": {"all_gather": 2, "reduce_scatter": 1, "all_reduce": 2},
    "nt_xent": {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 1},
    "supcon": {"all_gather": 2, "reduce_scatter": 1, "all_reduce": 1},
    "moco": {"all_reduce": 1},
    "relic": {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 1},
    "relic keys": {"all_gather": 3, "reduce_scatter": 3, "all_reduce": 1},
    "nt_xent keys": {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 1},
    "joint_info_nce": {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 1},
}
"""How many collectives a loss and its gradient take: beside embeddings and their gradients, numbers alone."""


@pytest.mark.parametrize("name", list(UNITS))
def test_no_more_is_sent_than_needed(variant: Variant, name: str) -> None:
    case = case_named(name, ROWS)
    case = replace(
        case,
        arguments={key: x for key, x in case.arguments.items() if isinstance(x, list)},
        options={**case.options, **({"logit_scale": 2.0} if "logit_scale" in case.arguments else {})},
    )
    if "logit_bias" in case_named(name, ROWS).arguments:
        case = replace(case, options={**case.options, "logit_bias": -1.0})
    parts = cut_case(case, bounds_of(samples_of(case), 2))

    def on_a_rank(group: ThreadRank) -> ThreadRank:
        own, _ = parts[group.rank]
        differentiate(sharing(own, group, "summed"), case_arrays(variant, own, variant.dtypes[0]), len(case.arguments))
        return group

    for group in run_ranks(2, on_a_rank):
        kinds = [sent.kind for sent in group.log]
        assert kinds.count("tell") == TOLD.get(name, 1)
        assert {kind: kinds.count(kind) for kind in kinds if kind != "tell"} == UNITS[name], group.log
        whole = len(next(iter(case.arguments.values())))
        entries = sum(sent.entries for sent in group.log if sent.kind == "reduce_scatter")
        width = len(next(iter(case.arguments.values()))[0])
        columns = whole * COLUMNS.get(name, 1) + len(case.arguments.get("keys", ()))
        assert entries == (columns * width if "reduce_scatter" in UNITS[name] else 0)


TOLD = {"joint_info_nce": 3}
"""How often ranks compare notes: for the loss, and for each of its two matrices."""

COLUMNS = {"nt_xent": 2, "nt_xent keys": 2, "relic": 2, "relic keys": 2, "joint_info_nce": 4}
"""How many columns, beside keys, are gathered for a row of each rank."""


@pytest.mark.parametrize("name", ["info_nce", "joint_info_nce", "nt_xent keys", "relic keys"])
def test_half_precision_travels_in_its_own_dtype(variant: Variant, name: str) -> None:
    half = next((dtype for dtype in variant.dtypes if "16" in dtype), None)
    if half is None:
        return
    case = case_named(name, ROWS)
    parts = cut_case(case, bounds_of(ROWS, 2))

    def on_a_rank(group: ThreadRank) -> ThreadRank:
        own, _ = parts[group.rank]
        differentiate(sharing(own, group, "summed"), case_arrays(variant, own, half), len(case.arguments))
        return group

    for group in run_ranks(2, on_a_rank):
        widths = {sent.kind: sent.bytes_each for sent in group.log if sent.kind in {"all_gather", "reduce_scatter"}}
        assert widths == {"all_gather": 2, "reduce_scatter": 4}  # gradients are added up before they are rounded


@pytest.mark.parametrize("name", ["cosent", "angle weights, mask"])
def test_graded_pairs_send_numbers_alone(variant: Variant, name: str) -> None:
    """The similarities of pairs with what is known of them, their grades, the gradients of the former, and a sum."""
    case = case_named(name, ROWS)
    parts = cut_case(case, bounds_of(samples_of(case), 2))

    def on_a_rank(group: ThreadRank) -> ThreadRank:
        own, _ = parts[group.rank]
        differentiate(sharing(own, group, "summed"), case_arrays(variant, own, variant.dtypes[0]), 2)
        return group

    columns = 3 if "weights" in name else 2
    for group in run_ranks(2, on_a_rank):
        own = len(parts[group.rank][0].arguments["x"])
        sent = [(x.kind, x.entries) for x in group.log if x.kind != "tell"]
        wanted = [("all_gather", columns * own), ("all_gather", own), ("all_reduce", 1)]
        assert sent == [*wanted, ("reduce_scatter", columns * samples_of(case))]


OF_ROWS = [
    *("info_nce", "joint_info_nce", "joint_info_nce three directions, weights, mask"),
    *("nt_xent keys, weights of rows, mask", "nt_xent three views, queue, each, mask", "dclw queue, mask"),
    *("relic keys", "relic keys, symmetric, stop_gradient first, weights, mask"),
]


@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("gradients", ["averaged", "summed"])
def test_losses_of_rows_are_those_of_one_process(
    variant: Variant, name: str, gradients: pnce.typing.GradientsOfRanks
) -> None:
    """Each rank has those of its own rows; the gradients of their sums add up, in either convention."""
    case = case_named(name, ROWS)
    case = replace(case, options={**case.options, "reduction": "none"})
    dtype, parts = variant.dtypes[0], cut_case(case, bounds_of(ROWS, 3))
    arrays = case_arrays(variant, case, dtype)
    wanted = variant.to_list(case.function(*arrays))
    slopes = differentiate(summed(case.function), arrays, len(case.arguments))[1]

    def on_a_rank(group: ThreadRank) -> tuple[Nested, list[Nested]]:
        own, _ = parts[group.rank]
        function, given = sharing(own, group, gradients), case_arrays(variant, own, dtype)
        values, found = function(*given), differentiate(summed(function), given, len(case.arguments))[1]
        return variant.to_list(values), [variant.to_list(g) for g in found]

    results = run_ranks(3, on_a_rank)
    values = [0] * len(wanted)
    for rank, (low, high) in enumerate(bounds_of(ROWS, 3)):
        own, views = results[rank][0], len(wanted) // ROWS
        add(values, Place(0, tuple(low + k + v * ROWS for v in range(views) for k in range(high - low))), own)
    assert oracles.error(values, oracles.exact(wanted)) <= TOLERANCE[dtype]
    for k, name_of_array in enumerate(case.arguments):
        exact = variant.to_list(slopes[k])
        if not isinstance(exact, list):
            continue
        total = zeros_like(exact)
        for (_, places), (_, found) in zip(parts, results, strict=True):
            add(total, places[name_of_array], found[k])
        assert oracles.error(total, oracles.exact(exact)) <= TOLERANCE[dtype]


def summed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add up the losses of rows."""

    def of_rows(*arrays: Any) -> Any:
        values = function(*arrays)
        return namespace_of(values).sum(values)

    return of_rows


# --- what one rank has alone ------------------------------------------------------------------------------------------


def with_entry(nested: Nested, row: int, factor: float) -> Nested:
    """Make a row larger by a factor."""
    return [[x * factor for x in line] if k == row else line for k, line in enumerate(nested)]


@pytest.mark.parametrize("factor", [0.0, 40.0, 1e4])
@pytest.mark.parametrize("name", ["clip", "info_nce", "siglip", "nt_xent"])
def test_values_on_one_rank_do_not_change_what_is_sent(variant: Variant, name: str, factor: float) -> None:
    """A zero row, and scores that need a shift there alone: ranks that sent otherwise would meet in an error."""
    case = case_named(name, ROWS)
    first = next(iter(case.arguments))
    arguments = {**case.arguments, first: with_entry(case.arguments[first], 1, factor)}
    options = {**case.options, "similarity": "dot"}
    case = replace(case, arguments=arguments, options=options)
    for block_size in (None, 2):
        compare(variant, replace(case, options={**options, "block_size": block_size}), 3, variant.dtypes[0], "averaged")


def test_factors_of_columns_belong_to_the_rows_of_a_rank(variant: Variant) -> None:
    case, factors = case_named("info_nce", ROWS), [0.5, 2.0, 1.0, 1.5, 0.25]
    dtype, scaled = variant.dtypes[0], pnce.similarities.scaled_columns
    whole = scaled("cosine", variant.floats(factors))
    wanted = pnce.info_nce(*case_arrays(variant, case, dtype), similarity=whole)
    bounds = bounds_of(ROWS, 3)
    parts = cut_case(case, bounds)

    def on_a_rank(group: ThreadRank) -> Nested:
        (own, _), (low, high) = parts[group.rank], bounds[group.rank]
        ranks, arrays = pnce.across(group, gradients="summed"), case_arrays(variant, own, dtype)
        with pytest.raises(ValueError, match=r"factors: expected shape|refused"):
            pnce.info_nce(*arrays, similarity=whole, across=ranks)
        mine = scaled("cosine", variant.floats(factors[low:high]))
        return variant.to_list(pnce.info_nce(*arrays, similarity=mine, across=ranks))

    for value in run_ranks(3, on_a_rank):
        assert oracles.error(value, oracles.exact(variant.to_list(wanted))) <= TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["nt_xent keys", "relic keys"])
def test_factors_of_columns_beside_keys_are_those_of_rows_and_of_keys(variant: Variant, name: str) -> None:
    case, dtype, bounds = case_named(name, ROWS), variant.dtypes[0], bounds_of(ROWS, 3)
    keys, views = len(case.arguments["keys"]), 2 if name.startswith("nt_xent") else 1
    of_rows, of_keys = [0.5, 2.0, 1.0, 1.5, 0.25], [1.25 - 0.125 * k for k in range(keys)]
    parts = cut_case(case, bounds)

    def value(own: Case, low: int, high: int, taken: Any, **further: Any) -> Nested:
        factors = variant.floats([*(of_rows[low:high] * views), *(of_keys[k] for k in taken)])
        a, b, bank = (variant.floats(own.arguments[key]) for key in ("view_a", "view_b", "keys"))
        similarity = pnce.similarities.scaled_columns("cosine", factors)
        loss: Any = getattr(pnce, case.loss)
        return variant.to_list(loss(a, b, keys=bank, similarity=similarity, **further))

    def on_a_rank(group: ThreadRank) -> Nested:
        own, places = parts[group.rank]
        return value(own, *bounds[group.rank], places["keys"].entries, across=pnce.across(group, gradients="summed"))

    wanted = value(case, 0, ROWS, range(keys))
    for found in run_ranks(3, on_a_rank):
        assert oracles.error(found, oracles.exact(wanted)) <= TOLERANCE[dtype]


def refusals(variant: Variant, calls: Callable[[ThreadRank], Callable[[], Any]]) -> list[str]:
    """Tell what each of two ranks is told, and check that a loss after it is right."""
    case = case_named("info_nce", ROWS)
    parts = cut_case(case, bounds_of(ROWS, 2))
    wanted = variant.to_list(case.function(*case_arrays(variant, case, variant.dtypes[0])))

    def on_a_rank(group: ThreadRank) -> tuple[str, Nested]:
        message = ""
        try:
            calls(group)()
        except (TypeError, ValueError) as error:
            message = str(error)
        own, _ = parts[group.rank]
        arrays = case_arrays(variant, own, variant.dtypes[0])
        return message, variant.to_list(sharing(own, group, "summed")(*arrays))

    found = run_ranks(2, on_a_rank)
    for _, value in found:
        assert oracles.error(value, oracles.exact(wanted)) <= TOLERANCE[variant.dtypes[0]]
    return [message for message, _ in found]


def embeddings(variant: Variant, rows: int = 2, features: int = 3) -> Any:
    return variant.floats([[float(k + 1 == j) + 0.25 for j in range(features)] for k in range(rows)])


def test_an_argument_that_one_rank_refuses_is_told_to_the_others(variant: Variant) -> None:
    a = embeddings(variant)

    def call(group: ThreadRank) -> Callable[[], Any]:
        scale, ranks = (1.0, -1.0)[group.rank], pnce.across(group, gradients="summed")
        return lambda: pnce.clip(a, a, logit_scale=scale, across=ranks)

    told, own = refusals(variant, call)
    assert "rank 1 refused its arguments" in told
    assert own.startswith("logit_scale: expected")


def test_without_a_convention_there_are_no_ranks(variant: Variant) -> None:
    a = embeddings(variant)

    def on_a_rank(group: ThreadRank) -> None:
        with pytest.raises(ValueError, match=r"^gradients: expected 'averaged' .* or 'summed' .*, got None$"):
            pnce.across(group)
        taken_for_ranks: Any = group
        with pytest.raises(TypeError, match=r"^across: expected what portable_nce\.across returns, got ThreadRank"):
            pnce.info_nce(a, a, across=taken_for_ranks)

    run_ranks(2, on_a_rank)


def test_no_group_is_named_as_what_it_is() -> None:
    for nothing in (None, 3, object()):
        with pytest.raises(TypeError, match=r"^group: expected a process group"):
            pnce.across(nothing, gradients="summed")


def test_one_rank_is_one_process(variant: Variant) -> None:
    case = case_named("clip", ROWS)
    arrays = case_arrays(variant, case, variant.dtypes[0])

    def on_a_rank(group: ThreadRank) -> tuple[Nested, list[Any]]:
        return variant.to_list(sharing(case, group, "averaged")(*arrays)), group.log

    ((value, log),) = run_ranks(1, on_a_rank)
    assert value == variant.to_list(case.function(*arrays))
    assert log == []


def test_queues_of_all_ranks_stay_equal(variant: Variant) -> None:
    """They hold the rows of all, in the order of the ranks."""
    rows = [[float(k), 1.0] for k in range(ROWS)]
    parts = bounds_of(ROWS, 3)
    wanted = pnce.queue_push(pnce.queue_init(variant.floats(rows), 7), variant.floats(rows))

    def on_a_rank(group: ThreadRank) -> Any:
        low, high = parts[group.rank]
        own = variant.floats(rows[low:high])
        queue = pnce.queue_push(pnce.queue_init(own, 7), own, across=pnce.across(group, gradients="summed"))
        return variant.to_list(queue.rows), variant.to_list(queue.valid)

    for found in run_ranks(3, on_a_rank):
        assert found == (variant.to_list(wanted.rows), variant.to_list(wanted.valid))


@pytest.mark.parametrize("kind", ["int8", "int32"])
def test_labels_of_queues_stay_equal(variant: Variant, kind: str) -> None:
    rows = [[float(k), 1.0] for k in range(ROWS)]
    parts = bounds_of(ROWS, 3)

    def on_a_rank(group: ThreadRank) -> Any:
        low, high = parts[group.rank]
        own, labels = variant.floats(rows[low:high]), variant.array(list(range(low, high)), kind)
        queue = pnce.queue_init(own, 7, labels=labels)
        queue = pnce.queue_push(queue, own, labels=labels, across=pnce.across(group, gradients="summed"))
        assert queue.labels is not None
        assert queue.labels.dtype == variant.dtype(kind)
        return variant.to_list(queue.labels)

    assert run_ranks(3, on_a_rank) == [[0] * (7 - ROWS) + list(range(ROWS))] * 3


def test_a_row_that_takes_part_as_a_column_alone_keeps_its_neighbour(variant: Variant) -> None:
    """A mask leaves it no pair as a row; whether it has one as a column, other ranks know."""
    dtype = variant.dtypes[0]
    rows = [[0.1 * (3 * k + j) + (j == k) for j in range(3)] for k in range(4)]
    a, b = variant.floats(rows), variant.floats(rows[::-1])
    support = variant.floats([[1.0, 0.0, 0.25], [0.0, 1.0, -0.5], [0.5, -0.25, 1.0]])
    mask = [[k != 0 for _ in range(8)] for k in range(8)]
    wanted = pnce.nnclr(a, b, support, negatives="views", mask=variant.array(mask))

    def on_a_rank(group: ThreadRank) -> Nested:
        low, high = 2 * group.rank, 2 * group.rank + 2
        own = variant.array([mask[k] for k in (low, low + 1, low + 4, low + 5)])
        ranks = pnce.across(group, gradients="summed")
        return variant.to_list(
            pnce.nnclr(a[low:high, ...], b[low:high, ...], support, negatives="views", mask=own, across=ranks)
        )

    for value in run_ranks(2, on_a_rank):
        assert oracles.error(value, oracles.exact(variant.to_list(wanted))) <= TOLERANCE[dtype]


def pushed(a: Any, slots: int, rows: int = 2) -> Any:
    return pnce.queue_push(pnce.queue_init(a, slots), a[:rows, ...])


DIFFERING: Mapping[str, Callable[[Variant, Any, Any, int], Any]] = {
    "features: {}, got 3 on rank 0, 2 on rank 1": lambda _, a, r, k: pnce.info_nce(
        a[:, : 3 - k], a[:, : 3 - k], across=r
    ),
    "loss: {}, got 'nt_xent' on rank 0, 'dcl' on rank 1": lambda _, a, r, k: (pnce.nt_xent, pnce.dcl)[k](
        a, a, across=r
    ),
    "reduction: {}, got 'mean' on rank 0, 'sum' on rank 1": lambda _, a, r, k: pnce.info_nce(
        a, a, reduction=("mean", "sum")[k], across=r
    ),
    "temperature: {}, got 0.5 on rank 0, 1.5 on rank 1": lambda v, a, r, k: pnce.info_nce(
        a, a, v.floats([[[1.0, 0.0, 0.5]]] * 2), temperature=0.5 + k, across=r
    ),
    "temperature: {}, got 0.5 on rank 0, an array of .* on rank 1": lambda v, a, r, k: pnce.n_tuple(
        a, a, temperature=v.floats([0.5, 1.0]) if k else 0.5, across=r
    ),
    "temperature: {}, got one for all on rank 0, one for each row on rank 1": lambda v, a, r, k: pnce.nt_xent(
        a, a, temperature=v.floats([0.5, 1.0][: 1 + k]), across=r
    ),
    "mask: {}, got None on rank 0, an array of .* with 2 axes on rank 1": lambda v, a, r, k: pnce.relic(
        a, a, mask=v.array([[True] * 4] * 2) if k else None, across=r
    ),
    "mask: expected the columns of all ranks, 4, got 5": lambda v, a, r, k: pnce.info_nce(
        a, a, mask=v.array([[True] * (4 + k)] * 2), across=r
    ),
    "weights: {}, got None on rank 0, an array of .* on rank 1": lambda v, a, r, k: pnce.angle(
        a, a, v.array([0, 1]), weights=v.floats([1.0, 2.0]) if k else None, across=r
    ),
    "base_temperature: {}, got 0.5 on rank 0, 1.5 on rank 1": lambda v, a, r, k: pnce.supcon(
        a, v.array([0, 1]), base_temperature=0.5 + k, across=r
    ),
    "margin: {}, got 0.5 on rank 0, 1.5 on rank 1": lambda _, a, r, k: pnce.triplet(a, a, a, margin=0.5 + k, across=r),
    "l2: {}, got 0 on rank 0, 0.5 on rank 1": lambda _, a, r, k: pnce.n_tuple(a, a, l2=0.5 * k, across=r),
    "gamma: {}, got 0.5 on rank 0, 1 on rank 1": lambda v, a, r, k: pnce.sogclr(
        a, a, v.floats([0.0, 1.0]), gamma=(0.5, 1.0)[k], across=r
    ),
    "rows of queue: {}, got 2 on rank 0, 3 on rank 1": lambda _, a, r, k: pnce.moco(a, a, pushed(a, 2 + k), across=r),
    "slots: {}, got 2 on rank 0, 3 on rank 1": lambda _, a, r, k: pnce.queue_push(pushed(a, 2 + k), a, across=r),
    "pairing: {}, got 'diagonal' on rank 0, Pairing on rank 1": lambda v, a, r, k: pnce.contrast(
        a, a, objective="info_nce", pairing=pnce.pairings.labels(v.array([0, 1])) if k else "diagonal", across=r
    ),
    "key: {}, got None on rank 0, an array of .* with 2 axes on rank 1": lambda v, a, r, k: pnce.proto_nce(
        a, a, v.array([0, 1]), v.floats([0.5, 0.5]), **({"key": a} if k else {}), across=r
    ),
    "scale: {}, got 1 on rank 0, 2 on rank 1": lambda v, a, r, k: pnce.cosent(
        a, a, v.array([0, 1]), scale=1.0 + k, across=r
    ),
    "grades: {}, got an array of .* on rank 0, an array of .* on rank 1": lambda v, a, r, k: pnce.angle(
        a, a, v.floats([0.0, 1.0]) if k else v.array([0, 1]), across=r
    ),
    "keys: {}, got None on rank 0, an array of .* with 2 axes on rank 1": lambda v, a, r, k: pnce.supcon(
        a, v.array([0, 1]), **({"keys": a, "key_labels": v.array([0, 1])} if k else {}), across=r
    ),
    "keys: {}, got an array of .* with 2 axes on rank 0, Queue on rank 1": lambda _, a, r, k: pnce.dcl(
        a, a, keys=pushed(a, 2) if k else a, across=r
    ),
    "directions: {}, got 'query_to_key' on rank 0, 'key_to_query' on rank 1": lambda _, a, r, k: pnce.joint_info_nce(
        a, a, directions=("query_to_key", "key_to_query")[k], across=r
    ),
    "similarity: {}, got 'dot' on rank 0, 'cosine' on rank 1": lambda _, a, r, k: pnce.clip(
        a, a, logit_scale=2.0, similarity=("dot", "cosine")[k], across=r
    ),
    "steps: {}, got 1 on rank 0, 2 on rank 1": lambda v, a, r, k: pnce.cpc(
        a, v.floats([[[1.0, 0.0], [0.5, 1.0]]] * (1 + k)), v.floats([[[1.0, 0.0, 0.5]] * 2] * (1 + k)), across=r
    ),
}
"""What ranks are told, as a pattern -> losses of two rows whose arguments differ on the second rank."""


@pytest.mark.parametrize("told", list(DIFFERING))
def test_what_differs_is_the_same_error_on_all_ranks(variant: Variant, told: str) -> None:
    a = embeddings(variant)

    def call(group: ThreadRank) -> Callable[[], Any]:
        ranks = pnce.across(group, gradients="summed")
        return lambda: DIFFERING[told](variant, a, ranks, group.rank)

    messages = refusals(variant, call)
    assert len(set(messages)) == 1
    assert re.fullmatch(told.format("expected the same on all ranks"), messages[0]), messages[0]


def test_a_queue_that_is_full_on_one_rank_alone_is_told(variant: Variant) -> None:
    """Where values are at hand, it has no flags there; where not, all ranks have flags."""
    a = embeddings(variant)

    def call(group: ThreadRank) -> Callable[[], Any]:
        keys, ranks = pushed(a, 2, 2 - group.rank), pnce.across(group, gradients="summed")
        return lambda: pnce.nt_xent(a, a, keys=keys, across=ranks)

    told = "pairing: expected the same on all ranks, got Pairing on rank 0, another Pairing on rank 1"
    assert refusals(variant, call) in ([told] * 2, [""] * 2)


@pytest.mark.parametrize("loss", [pnce.hcl, pnce.dclw])
def test_one_row_each_has_a_temperature_that_some_losses_refuse(variant: Variant, loss: Any) -> None:
    a, temperature = embeddings(variant, 1), variant.floats([0.5])

    def call(group: ThreadRank) -> Callable[[], Any]:
        return lambda: loss(a, a, temperature=temperature, across=pnce.across(group, gradients="summed"))

    first, second = refusals(variant, call)
    assert first == second
    assert first.startswith("temperature: expected one number with across and this objective")


def test_many_ranks_are_counted() -> None:
    _check_same("l2", [("1", 0)] * 9)
    with pytest.raises(ValueError, match=r"got 1 on ranks 0, 1, 3, 4 and 2 more, 2 on rank 2$"):
        _check_same("l2", [("1", 0), ("1", 0), ("2", 1), *[("1", 0)] * 4])
