"""Triple sums: sums of an excess of ``s_n - s_p + m`` over all pairs of a positive p and a negative n of each row.

A row with P positives and Q negatives has P·Q triples, a batch O(N³). They are visited in one of two ways:

1. **By comparing** a few positives with all negatives at once. Any excess, also the softplus; O(K·P) for a row.
2. **By sorting**, for the positive part, if there are many positives: O(K log K) for a row. With the negatives in
   descending order ``s_0 ≥ s_1 ≥ …``, those before a place c have triples with positive p, and no others. With
   ``b_k`` the number of positives whose place is behind negative k, the sum of a row is

       Σ_p c_p (s_{c_p - 1} - s_p + m) + Σ_k (k + 1) b_{k + 1} (s_k - s_{k + 1})

   for each positive, the excess over the last negative before its place, c_p times; and the gaps between the negatives
   before. All terms are positive, so that nothing cancels, however many triples there are and however small their
   excess: float32 is enough, where running sums of scores would need float64. The place is found with the same
   ``(s_n - s_p) + m > 0`` by which a triple is compared.

Derivatives of the sum of a row are b_k by s_k, -c_p by s_p, and Σ c_p by m: numbers of triples with an excess.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from .._core.autodiff import stop_gradient
from .._core.checks import largest, readable_entry
from .._core.namespace import device_of, namespace_of
from .._core.numerics import LARGEST_WHOLE, entries_at, relu, sigmoid, softplus, softplus_and_sigmoid, zeros
from .._core.protocol import Array, Namespace
from .._core.registry import adapter_of
from .inputs import Arrays
from .tiling import bits_of, pays_to_sort, rows_ranked, triples, visited_together


class TripleSums(NamedTuple):
    """Sums over the triples of each row, (n,), and their slopes by the scores, (n, K), and by the margin, (n,).

    The numbers of triples, and of those whose loss is not 0, are constants. The slopes are None if not needed.
    """

    total: Array
    number: Array
    active: Array
    to_scores: Array | None = None
    to_margin: Array | None = None


class Visited(NamedTuple):
    """Positives or negatives of each row that are visited one by one: scores (n, P), and which of them there are.

    `places`: their columns, (n, P); None if all columns are visited.
    """

    scores: Array
    present: Array
    places: Array | None

    def put(self, x: Array, values: Array) -> Array:
        """A matrix (n, K), which may be overwritten, with values (n, P) added in the visited columns."""
        xp = namespace_of(x, values)
        values = xp.where(self.present, values, 0.0)
        return x + values if self.places is None else adapter_of(x).add_columns(x, self.places, values)


def excess(xp: Namespace, difference: Array, *, soft: bool) -> Array:
    """Loss of a triple: the positive part of the difference, or its softplus."""
    return softplus(xp, difference) if soft else relu(xp, difference)


def visit(
    function: Callable[..., TripleSums], scores: Array, members: Array, *arrays: Array, single: bool
) -> TripleSums:
    """``function(visited, scores, *arrays)`` of the members of each row; `single`: there is at most one.

    If their number is small, they are visited together. Where it cannot be read, an adapter may branch in each run.
    """
    space, n_columns = namespace_of(members), scores.shape[1]
    everything = Visited(scores, members, None)
    if single and adapter_of(scores).mode == "traced":
        return function(_few_in_turn(scores, members, 1), scores, *arrays)
    if single:
        places = space.argmax(space.astype(members, space.int8), axis=1)[:, None]
        return function(_visited_at(scores, places, space.any(members, axis=1, keepdims=True)), scores, *arrays)
    if not pays_to_sort(n_columns) or not isinstance(n_columns, int):
        return function(everything, scores, *arrays)
    ranks = space.cumulative_sum(space.astype(members, stop_gradient(scores).dtype), axis=1)
    most = readable_entry(ranks[:, -1], largest)
    if most is not None:
        number = next((size for size in visited_together(n_columns) if most <= size), None)
        return function(everything if number is None else _few(scores, ranks, number), scores, *arrays)
    if adapter_of(scores).mode != "traced":  # other compilers would make a graph for each number of columns
        return function(everything, scores, *arrays)

    def few(number: int) -> Callable[..., TripleSums]:
        def of_few(scores: Array, members: Array, *arrays: Array) -> TripleSums:
            return function(_few_in_turn(scores, members, number), scores, *arrays)

        return of_few

    def of_all(scores: Array, members: Array, *arrays: Array) -> TripleSums:
        def of_rows(carry: Arrays, block: Arrays, _: Array | int) -> tuple[Arrays, Arrays]:
            scores, members, *arrays = block
            sums = function(Visited(scores, members, None), scores, *arrays)
            return carry, tuple([x for x in sums if x is not None])

        return TripleSums(*adapter_of(scores).scan(of_rows, (), (scores, members, *arrays), rows_ranked(n_columns))[1])

    sizes = visited_together(n_columns, few=True)
    counts = adapter_of(scores).count_along(members, 1, ranks.dtype)
    place = sum(space.astype(space.max(counts) > size, space.int32) for size in sizes)
    found: TripleSums | None = adapter_of(scores).branch(place, [*map(few, sizes), of_all], scores, members, *arrays)
    return function(everything, scores, *arrays) if found is None else found


def _visited_at(scores: Array, places: Array, present: Array) -> Visited:
    places = namespace_of(places).where(present, places, namespace_of(places).zeros_like(places))
    return Visited(entries_at(scores, places), present, places)


def _few(scores: Array, ranks: Array, number: int) -> Visited:
    """The members of each row, at most a number; `ranks`: their running counts."""
    space = namespace_of(ranks)
    # The k-th member of a row is behind all columns where the number of members is less than k.
    rank = space.arange(1, number + 1, dtype=space.int32, device=device_of(ranks))
    rank = space.broadcast_to(space.astype(rank, ranks.dtype)[None, :], (scores.shape[0], number))
    return _visited_at(scores, number_before(ranks, rank, lambda reached, k: reached < k), rank <= ranks[:, -1:])


def _few_in_turn(scores: Array, members: Array, number: int) -> Visited:
    """The same, one after another: XLA's running sums take as long as thirty of these passes."""
    space, n_columns = namespace_of(members), scores.shape[1]
    # The least of numbers takes XLA a third of the time of that of integers, which float32 holds up to 2^24.
    dtype = space.float32 if isinstance(n_columns, int) and n_columns <= LARGEST_WHOLE else space.int32
    columns = space.arange(n_columns, dtype=dtype, device=device_of(members))[None, :]
    places = [columns[:, :1] - 1]
    for _ in range(number):
        behind = space.logical_and(members, columns > places[-1])
        places.append(space.min(space.where(behind, columns, n_columns), axis=1, keepdims=True))
    found = space.concat(places[1:], axis=1)
    return _visited_at(scores, space.astype(found, space.int32), found < n_columns)


def number_before(table: Array, thresholds: Array, is_before: Callable[[Array, Array], Array]) -> Array:
    """For each threshold (n, P), the number of entries of its row in a table (n, K) that are before it; constants.

    A search by halves: ``is_before(entries, thresholds)`` must hold for the first entries of a row, and for no others.
    """
    xp, n_columns = namespace_of(table, thresholds), table.shape[1]
    index = xp.arange(1).dtype
    place = xp.zeros(tuple(thresholds.shape), dtype=index, device=device_of(thresholds))
    step = 1 << (bits_of(n_columns, mode=adapter_of(table).mode) - 1)
    while step:
        probe = place + (step - 1)
        inside = probe < n_columns
        entries = entries_at(table, xp.where(inside, probe, xp.zeros_like(probe)))
        before = xp.logical_and(inside, is_before(entries, thresholds))
        place = xp.where(before, place + step, place)
        step //= 2
    return place


def triple_sums(
    positives: Visited, scores: Array, negatives: Array, margin: Array, *, soft: bool, need_grad: bool, finite: bool
) -> TripleSums:
    """Sums over all triples of each row; `margin` (n,). `finite`: no score is infinite or NaN."""
    xp = namespace_of(scores, positives.scores, margin)
    if soft or not pays_to_sort(positives.scores.shape[1]):
        compared = _compared(scores, positives, negatives, margin, soft=soft, need_grad=need_grad, finite=finite)
        total, active, to_negatives, to_positives = compared
    else:
        total, active, to_negatives, to_positives = _sorted(
            xp, scores, positives, negatives, margin, need_grad=need_grad, finite=finite
        )
    counts = [xp.sum(xp.astype(x, active.dtype), axis=1) for x in (positives.present, negatives)]
    number = counts[0] * counts[1]
    if not need_grad:
        return TripleSums(total, number, active)
    to_margin = xp.sum(to_positives, axis=1) if soft else active
    return TripleSums(total, number, active, positives.put(to_negatives, -to_positives), to_margin)


# -------------------------------------------------------------------------------------------------------- by comparing


def _compared(
    scores: Array, positives: Visited, negatives: Array, margin: Array, *, soft: bool, need_grad: bool, finite: bool
) -> tuple[Array, Array, Array, Array]:
    """Totals and numbers of nonzero losses of the rows; slopes by negatives (n, K) and by positives (n, P)."""
    xp, adapter = namespace_of(scores, positives.scores, margin), adapter_of(scores)
    candidates = xp.where(negatives, scores, -math.inf)
    given = xp.where(positives.present, positives.scores, math.inf)

    def of_block(candidates: Array, given: Array, present: Array, margin: Array) -> tuple[Array, ...]:
        differences = candidates[:, None, :] - given[:, :, None]
        differences += margin[:, None, None]
        if not finite:  # inf - inf
            differences = xp.where(present[:, :, None], differences, -math.inf)
        if soft:
            losses, slopes = softplus_and_sigmoid(xp, differences)
            active = xp.astype(losses != 0, losses.dtype)
        else:
            losses = adapter_of(differences).clipped(differences, 0.0, math.inf)
            losses = relu(xp, differences) if losses is None else losses
            active = slopes = xp.astype(losses > 0, losses.dtype)  # array-api-compat's `sign` waits for the device
        total, number = xp.sum(losses, axis=2), xp.sum(active, axis=2)
        if not need_grad:
            return total, number
        # A sum over one positive would read and write all.
        by_negatives = slopes[:, 0, :] if slopes.shape[1] == 1 else xp.sum(slopes, axis=1)
        return total, number, xp.sum(slopes, axis=2) if soft else number, by_negatives

    n_rows, n_columns = scores.shape
    rows, some = triples(n_rows, n_columns, positives.scores.shape[1], mode=adapter.mode)
    zero = (zeros(xp, (n_rows,), scores),) * 2
    if some is None:

        def of_rows(carry: Arrays, block: Arrays, _: Array | int) -> tuple[Arrays, Arrays]:
            total, number, *slopes = of_block(*block)
            return carry, (xp.sum(total, axis=1), xp.sum(number, axis=1), *slopes[::-1])

        _, result = adapter.scan(of_rows, (), (candidates, given, positives.present, margin), rows)
    else:

        def of_positives(carry: Arrays, block: Arrays, _: Array | int) -> tuple[Arrays, Arrays]:
            given, present = (xp.matrix_transpose(x) for x in block)
            total, number, *slopes = of_block(candidates, given, present, margin)
            sums = (xp.sum(total, axis=1), xp.sum(number, axis=1), *slopes[1:])
            emitted = (xp.matrix_transpose(slopes[0]),) if need_grad else ()
            return tuple(a + b for a, b in zip(carry, sums, strict=True)), emitted

        columns = tuple([xp.matrix_transpose(x) for x in (given, positives.present)])
        init = (*zero, zeros(xp, (n_rows, n_columns), scores)) if need_grad else zero
        carry, emitted = adapter.scan(of_positives, init, columns, some)
        result = (*carry, *[xp.matrix_transpose(x) for x in emitted])
    total, active, *slopes = result
    return (total, stop_gradient(active), *(slopes or (zero[0], zero[0])))


# ---------------------------------------------------------------------------------------------------------- by sorting


class Ranked(NamedTuple):
    """Scores of the members of each row in descending order, others after them as -inf; and their columns."""

    scores: Array
    columns: Array


def ranked(scores: Array, members: Array) -> Ranked:
    """The members of each row in descending order of their scores; equal ones in the order of their columns."""
    xp, fixed = namespace_of(scores), stop_gradient(scores)
    candidates = xp.where(members, scores, -math.inf)
    order = adapter_of(fixed).order_of_rows(-stop_gradient(candidates))
    return Ranked(entries_at(candidates, order), order)


def _sorted(
    xp: Namespace, scores: Array, positives: Visited, negatives: Array, margin: Array, *, need_grad: bool, finite: bool
) -> tuple[Array, Array, Array, Array]:
    """Results as of `_compared`, for the positive part."""
    of_negatives = ranked(scores, negatives)
    fixed_margin = stop_gradient(margin)[:, None]
    fixed = stop_gradient(of_negatives.scores), stop_gradient(positives.scores)
    before = number_before(*fixed, lambda s, p: (s - p) + fixed_margin > 0)
    before = xp.where(positives.present, before, xp.zeros_like(before))
    numbers = xp.astype(before, margin.dtype)
    filled = before > 0
    last = entries_at(of_negatives.scores, xp.where(filled, before - 1, xp.zeros_like(before)))
    difference = xp.where(filled, (last - positives.scores) + margin[:, None], 0.0)
    # Numbers of positives by place; those behind a negative are all but those up to it.
    n_rows, n_columns = scores.shape
    by_place = zeros(xp, (n_rows, n_columns + 1), numbers)
    ones = xp.astype(positives.present, numbers.dtype)
    by_place = adapter_of(by_place).add_columns(by_place, before, ones)
    behind = xp.sum(ones, axis=1)[:, None] - xp.cumulative_sum(by_place[:, :-1], axis=1)
    count = xp.arange(1, n_columns, dtype=numbers.dtype, device=device_of(scores))[None, :]
    factors = count * behind[:, 1:]
    crossed = factors > 0
    if not finite:  # inf - inf
        crossed = xp.logical_and(crossed, of_negatives.scores[:, :-1] != of_negatives.scores[:, 1:])
    nearer, farther = (xp.where(crossed, x, 0.0) for x in (of_negatives.scores[:, :-1], of_negatives.scores[:, 1:]))
    gaps = (nearer - farther) * factors
    total = xp.sum(numbers * difference, axis=1) + xp.sum(gaps, axis=1)
    to_negatives = total
    if need_grad:
        to_negatives = adapter_of(behind).add_columns(xp.zeros_like(behind), of_negatives.columns, behind)
    return total, xp.sum(numbers, axis=1), to_negatives, numbers


def sigmoid_or_step(xp: Namespace, difference: Array, *, soft: bool) -> Array:
    """Slope of the `excess`; of the positive part 0 at 0."""
    return sigmoid(xp, difference) if soft else xp.astype(difference > 0, difference.dtype)
