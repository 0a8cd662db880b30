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
from .numerics import softplus
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
    scores, given = adapter_of(scores).rounded(scores), () if positive is None else (positive,)
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


_SUMS = (
    (True, False, True, True, True),
    (True, True, False, False, False),
    (True, True, False, False, True),
    (True, True, False, True, True),
)
"""Which of the logarithms of a row enter the sums `_REST`, `_NEGATIVES`, `_AGAINST` and `_TOTAL`.

The logarithms are `_SHIFT` of the smaller terms, `_LARGEST`, `_OTHERS` that are as large, the positive, and `_WEIGHT`.
The sums are T without one of the largest, the negatives, those with the weight, and T.
"""

_REST, _NEGATIVES, _AGAINST, _TOTAL = range(4)
_SHIFT, _LARGEST, _OTHERS, _, _WEIGHT = range(5)


class _LeftRows(NamedTuple):
    """Largest logarithms (4, K) and rests of the four sums, and shares (4, 5, K) of the logarithms in them."""

    tops: Array
    totals: Array
    shares: Array

    def sum_of(self, number: int) -> ExpSum:
        """One of the sums."""
        return ExpSum(self.tops[number, :], self.totals[number, :])


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
    """Sums of the rows, and shares of an infinite sum as 0.

    The rounding of a difference of logarithms, times which its exponential would be wrong, is computed and made good.
    """
    ((positive, log_weight, shift, largest, count, sums),) = lift_to_tape((positive, log_weight, *parts[2:]))
    xp = namespace_of(positive)
    one, none = xp.ones_like(sums), xp.full_like(sums, -math.inf)
    others = xp.where(count > 1, largest, -math.inf)
    logarithms = xp.where(sums == 0, -math.inf, shift), largest, others, positive, log_weight
    factors = xp.stack((sums, count, count - 1.0, one, one))
    entered = [x if enters else none for sets in _SUMS for x, enters in zip(logarithms, sets, strict=True)]
    given = xp.reshape(xp.stack(entered), (len(_SUMS), len(logarithms), *sums.shape))
    tops = stop_gradient(xp.max(given, axis=1))
    top = tops[:, None, :]
    gone = xp.logical_or(xp.isinf(top), given == -math.inf)
    a, b = xp.where(gone, 0.0, given), xp.where(gone, 0.0, top)
    exponents = a - b
    taken = exponents - a
    rounding = (a - (exponents - taken)) - (b + taken)
    terms = xp.where(gone, 0.0, xp.exp(exponents) * (rounding + 1.0))
    totals = xp.sum(terms * factors[None, ...], axis=1)
    return _LeftRows(tops, totals, terms / xp.where(totals == 0, 1.0, totals)[:, None, :])


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
    xp = namespace_of(parts.terms, rows.totals)
    largest, rest, negatives = parts.largest, rows.sum_of(_REST), rows.sum_of(_NEGATIVES)
    shares = parts.terms * rows.shares[_TOTAL, _SHIFT, :][:, None]
    left = adapter_of(shares).sum_along(xp.log1p(-shares), 1) - parts.count * softplus(xp, largest - rest.log(xp))
    left = xp.where(largest == math.inf, 0.0, left / number)
    whole = softplus(xp, log_odds(xp, rows.sum_of(_AGAINST), positive))
    of_weight = softplus(xp, log_weight - positive)  # of one negative, left out of its only sum
    mean = xp.where(number == 1, of_weight, whole + left)
    rest_of_weight = of_weight - xp.where(xp.isinf(whole), 0.0, whole)
    results = (*negatives, mean, xp.where(number == 1, rest_of_weight, left))
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
    shares = rows.shares
    xp = namespace_of(terms, shares, to_sum, to_mean)
    to_mean = xp.where(xp.isinf(rows.tops[_TOTAL, :]), 0.0, to_mean / number)
    of_shift, of_largest = shares[_TOTAL, _SHIFT, :], shares[_TOTAL, _LARGEST, :]
    shared = terms * of_shift[:, None]
    odds = shared / (1.0 - shared)
    total, every = adapter_of(odds).sum_along(odds, 1), sums * of_shift
    # Odds of the largest may overflow, but not these products.
    of_odds = count * of_largest * shares[_REST, _SHIFT, :]
    factor = of_shift * ((number - 1.0) + total) + of_odds
    of_equal = of_largest * ((number - 1.0) + total + (count - 1.0) * shares[_REST, _OTHERS, :])
    of_weight = shares[_TOTAL, _WEIGHT, :] * (number + total) + count * of_largest * shares[_REST, _WEIGHT, :]
    negatives = ((number - 1.0) + total) * every + (every - total) + sums * of_odds + count * of_equal
    to_positive = -(to_mean * (negatives + of_weight))
    of_terms = to_sum * shares[_NEGATIVES, _SHIFT, :] + to_mean * factor
    to_largest = to_sum * shares[_NEGATIVES, _LARGEST, :] + to_mean * of_equal
    gradient = terms * (of_terms[:, None] - (to_mean * of_shift)[:, None] * odds)
    gradient = pairs.negatives(adapter_of(gradient).plus_product(gradient, at_largest, to_largest[:, None]))
    if kind.has_positives:
        return pairs.with_positives(gradient, cotangents[0] + to_positive), to_mean * of_weight
    return gradient, to_mean * of_weight, to_positive
