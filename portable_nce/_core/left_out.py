r"""Log-odds of each row with one negative left out in turn, averaged.

With :math:`r = e^g`, the positive p, a further weight :math:`\nu`, and n negatives,

.. math:: T = r_p + \nu + \sum_j r_j, \qquad A = \frac1n \sum_j \log \frac{T - r_j}{r_p}.

A negative with more than half of T is the largest of its row, and :math:`T - r_j` a sum of its own. So a largest
entry is never subtracted from a sum, and the others have their own shift. In the backward pass, odds
:math:`o_j = r_j / (T - r_j)` have their sum O:

.. math:: n\, \partial A / \partial g_j = (r_j / T) (n - 1 + O - o_j), \qquad
    n\, \partial A / \partial \log \nu = (\nu / T) (n + O),

and the derivative by the positive is minus their sum, in which nothing cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .autodiff import stop_gradient
from .logsumexp import ExpSum
from .namespace import lift_to_tape, namespace_of
from .numerics import clipped, softplus
from .pair_sums import PairKind, PairSets
from .protocol import Array, Namespace
from .registry import adapter_of


class LeftOut(NamedTuple):
    """Scores of the positives, sums of exponentials of the negatives, and means A of the log-odds, each (K,).

    `left`: the mean of ``log(1 - r / T)`` in A, a constant. The rest of it is ``log(T / r)`` of the positive.
    """

    positive: Array
    sums: ExpSum
    mean: Array
    left: Array


def left_out(
    scores: Array, pairs: PairSets, log_weight: Array, number: Array, positive: Array | None = None
) -> LeftOut:
    """Means of log-odds from the logarithms (K,) of the weights ν and the numbers (K,) of negatives.

    `positive` (K,): the scores of positives that are not in the matrix.
    """
    given = () if positive is None else (positive,)
    rule = adapter_of(scores).custom_vjp(_means, _pull_means, kept=6)
    outputs = rule(pairs.kind, scores, log_weight, *given, number, *pairs.arrays)
    sums = ExpSum(stop_gradient(outputs[-4]), outputs[-3])
    return LeftOut(outputs[0] if positive is None else positive, sums, outputs[-2], stop_gradient(outputs[-1]))


def log_odds(xp: Namespace, sums: ExpSum, logarithm: Array) -> Array:
    """Logarithm of sums over the exponential of another one; NaN, without a warning, if both are the same infinity."""
    assert sums.top is not None  # noqa: S101  (there is a shift)
    undefined = xp.logical_and(xp.isinf(logarithm), sums.top == logarithm)
    zero = xp.zeros_like(logarithm)
    difference = xp.where(undefined, zero, sums.top) - xp.where(undefined, zero, logarithm)
    return xp.where(undefined, math.nan, difference) + sums.log_total(xp)


def log_add(xp: Namespace, a: Array, b: Array) -> Array:
    """``log(exp(a) + exp(b))``; arguments may be -inf."""
    larger = a > b
    top, low = xp.where(larger, a, b), xp.where(larger, b, a)
    empty = top == -math.inf
    return top + xp.log1p(xp.exp(low - xp.where(empty, xp.zeros_like(top), top)))


class _LeftRows(NamedTuple):
    """Sums of the rows, and logarithms of their parts.

    `rest` is T without one of the largest, `against` T without the positive, `negatives` also without the weight.
    """

    positive: Array
    weight: Array
    shift: Array
    largest: Array
    rest: ExpSum
    negatives: ExpSum
    against: ExpSum
    total: ExpSum


class _LeftParts(NamedTuple):
    """Terms ``exp(g - shift)`` of the negatives, 0 at the largest, which `at_largest` marks.

    Of each row its shift, its largest entry and their number, and the sum of the terms.
    """

    terms: Array
    at_largest: Array
    shift: Array
    largest: Array
    count: Array
    sums: Array


def _parts_of(pairs: PairSets, scores: Array) -> _LeftParts:
    xp = namespace_of(scores)
    entries = pairs.negatives(scores + 0.0, -math.inf)
    largest = xp.max(entries, axis=1)
    at_largest = entries == largest[:, None]
    entries = xp.where(at_largest, -math.inf, entries)
    second = stop_gradient(xp.max(entries, axis=1))
    shift = xp.where(xp.isinf(second), xp.zeros_like(second), second)
    terms = adapter_of(entries).exp_in_place(entries - shift[:, None], bounded=False)
    count = adapter_of(terms).count_along(at_largest, 1, terms.dtype)
    return _LeftParts(terms, at_largest, shift, largest, count, adapter_of(terms).sum_along(terms, 1))


def _rows(positive: Array, log_weight: Array, parts: _LeftParts) -> _LeftRows:
    ((positive, log_weight, shift, largest, count, sums),) = lift_to_tape((positive, log_weight, *parts[2:]))
    xp = namespace_of(positive)
    smaller = xp.where(sums == 0, -math.inf, shift), sums
    others = xp.where(count > 1, largest, -math.inf), count - 1.0
    beside = (positive, xp.ones_like(sums)), (log_weight, xp.ones_like(sums))
    return _LeftRows(
        positive,
        log_weight,
        shift,
        largest,
        _sum_of(xp, smaller, others, *beside),
        _sum_of(xp, smaller, (largest, count)),
        _sum_of(xp, smaller, (largest, count), beside[1]),
        _sum_of(xp, smaller, (largest, count), *beside),
    )


def _sum_of(xp: Namespace, *parts: tuple[Array, Array]) -> ExpSum:
    """Sum of exponentials of logarithms times factors; the largest logarithm may be infinite, and its terms are 0."""
    top = parts[0][0]
    for logarithm, _ in parts[1:]:
        top = xp.maximum(top, logarithm)
    top = stop_gradient(top)
    infinite = xp.isinf(top)
    shift = xp.where(infinite, xp.zeros_like(top), top)
    total = xp.zeros_like(top)
    for logarithm, factor in parts:
        total = total + factor * xp.exp(xp.where(infinite, -math.inf, logarithm) - shift)
    return ExpSum(top, total)


def _share(xp: Namespace, part: Array, whole: ExpSum) -> Array:
    """``exp(part)`` as a share of the whole, 0 of an infinite whole; the shift of no terms may be larger.

    The rounding of the difference, times which the exponential would be wrong, is computed and made good.
    """
    assert whole.top is not None  # noqa: S101  (there is a shift)
    infinite = xp.logical_or(xp.isinf(whole.top), part == -math.inf)
    zero = xp.zeros_like(whole.top)
    a, b = (xp.where(infinite, zero, x) for x in (part, whole.top))
    exponent = a - b
    taken = exponent - a
    rest = (a - (exponent - taken)) - (b + taken)
    shares = xp.exp(clipped(xp, exponent, -math.inf, 0.0)) * (rest + 1.0)
    return xp.where(infinite, zero, shares) / xp.where(whole.total == 0, xp.ones_like(zero), whole.total)


def _opened(kind: PairKind, arrays: Sequence[Array]) -> tuple[PairSets, Array, Array, Array]:
    """PairSets, scores of the positives, logarithms of the weights, and numbers."""
    scores, log_weight, *rest = arrays
    masks = int(kind.has_off) + int(kind.has_own)
    pairs = kind.of(rest[len(rest) - masks :])
    if kind.has_positives:
        return pairs, pairs.positive(scores), log_weight, rest[0]
    return pairs, rest[0], log_weight, rest[1]


def _means(kind: PairKind, *arrays: Array) -> tuple[Array, ...]:
    pairs, positive, log_weight, number = _opened(kind, arrays)
    parts = _parts_of(pairs, arrays[0])
    rows = _rows(positive, log_weight, parts)
    xp = namespace_of(parts.terms, rows.positive)
    shares = parts.terms * _share(xp, rows.shift, rows.total)[:, None]
    left = adapter_of(shares).sum_along(xp.log1p(-shares), 1) - parts.count * softplus(
        xp, rows.largest - rows.rest.log(xp)
    )
    left = xp.where(rows.largest == math.inf, xp.zeros_like(left), left / number)
    whole = softplus(xp, log_odds(xp, rows.against, rows.positive))
    of_weight = softplus(xp, rows.weight - rows.positive)  # of one negative, left out of its only sum
    mean = xp.where(number == 1, of_weight, whole + left)
    rest = of_weight - xp.where(xp.isinf(whole), xp.zeros_like(whole), whole)
    results = (*rows.negatives, mean, xp.where(number == 1, rest, left))
    return (*((positive,) if kind.has_positives else ()), *results, *parts)


def _pull_means(
    kind: PairKind, arrays: Sequence[Array], outputs: Sequence[Array], cotangents: Sequence[Array]
) -> tuple[Array, ...]:
    pairs, positive, log_weight, number = _opened(kind, arrays)
    place = int(kind.has_positives)
    kept, to_mean = outputs[place + 4 :], cotangents[place + 2]
    to_sum = cotangents[place + 1] * outputs[place + 1]  # of the logarithm
    parts = _LeftParts(*kept) if kept else _parts_of(pairs, arrays[0])
    rows = _rows(positive, log_weight, parts)
    terms, at_largest, _, _, count, sums = parts
    xp = namespace_of(terms, rows.positive, to_sum, to_mean)
    to_mean = xp.where(xp.isinf(rows.total.top), xp.zeros_like(to_mean), to_mean / number)
    of_shift, of_largest = _share(xp, rows.shift, rows.total), _share(xp, rows.largest, rows.total)
    shares = terms * of_shift[:, None]
    odds = shares / (1.0 - shares)
    total, every = adapter_of(odds).sum_along(odds, 1), sums * of_shift
    # Odds of the largest may overflow, but not these products.
    of_odds = count * of_largest * _share(xp, rows.shift, rows.rest)
    factor = of_shift * ((number - 1.0) + total) + of_odds
    of_one = _share(xp, xp.where(count > 1, rows.largest, -math.inf), rows.rest)
    equal = (count - 1.0) * of_one
    of_equal = of_largest * ((number - 1.0) + total + equal)
    of_weight = _share(xp, rows.weight, rows.total) * (number + total)
    of_weight = of_weight + count * of_largest * _share(xp, rows.weight, rows.rest)
    negatives = ((number - 1.0) + total) * every + (every - total) + sums * of_odds + count * of_equal
    to_positive = -(to_mean * (negatives + of_weight))
    of_terms = to_sum * _share(xp, rows.shift, rows.negatives) + to_mean * factor
    to_largest = to_sum * _share(xp, rows.largest, rows.negatives) + to_mean * of_equal
    gradient = terms * (of_terms[:, None] - (to_mean * of_shift)[:, None] * odds)
    gradient = pairs.negatives(adapter_of(gradient).plus_product(gradient, at_largest, to_largest[:, None]))
    if kind.has_positives:
        return pairs.with_positives(gradient, cotangents[0] + to_positive), to_mean * of_weight
    return gradient, to_mean * of_weight, to_positive
