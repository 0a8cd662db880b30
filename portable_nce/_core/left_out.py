r"""Means over the negatives of each row, each left out of the row's sum in turn.

With :math:`r = e^g`, a weight :math:`e^w` of the row, its positive p, if it has one, and n negatives,

.. math:: T = e^w + e^p + \sum_j r_j, \qquad \Lambda = \frac1n \sum_j \log(1 - r_j / T).

A negative with more than half of T is the largest of its row, and :math:`T - r_j` a sum of its own. So a largest
entry is never subtracted from a sum, and the others have their own shift. In the backward pass, odds
:math:`o_j = r_j / (T - r_j)` have their sum O:

.. math:: n\, \partial \Lambda / \partial g_j = (r_j / T) (O - o_j - 1), \qquad
    n\, \partial \Lambda / \partial w = (e^w / T)\, O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .autodiff import stop_gradient
from .namespace import namespace_of
from .numerics import clipped, softplus
from .pair_sums import Kind, Pairs
from .protocol import Array, Namespace
from .registry import adapter_of


class LeftOut(NamedTuple):
    """Scores of the positives, log-sum-exp of the negatives, and Λ, each (K,). Without positives there is none."""

    positive: Array
    log_sum: Array
    mean: Array


def left_out(scores: Array, pairs: Pairs, log_weight: Array, number: Array) -> LeftOut:
    """Mean of the left-out sums, from the logarithms (K,) of the weights and the numbers (K,) of negatives."""
    rule = adapter_of(scores).custom_vjp(_means, _pull_means, kept=6)
    outputs = rule(pairs.kind, scores, log_weight, number, *pairs.arrays)
    return LeftOut(outputs[0], *outputs[-2:])


def log_add(xp: Namespace, a: Array, b: Array) -> Array:
    """``log(exp(a) + exp(b))``; arguments may be -inf."""
    larger = a > b
    top, low = xp.where(larger, a, b), xp.where(larger, b, a)
    empty = top == -math.inf
    return top + xp.log1p(xp.exp(low - xp.where(empty, xp.zeros_like(top), top)))


class _Rows(NamedTuple):
    """Logarithms of the rows: `weight` is of e^w + e^p, `rest` of T without one of the largest, and `total` of T."""

    positive: Any
    weight: Array
    rest: Array
    log_sum: Array
    total: Array


class _Parts(NamedTuple):
    """Terms ``exp(g - shift)`` of the negatives, 0 at the largest, which `at_largest` marks.

    Of each row its shift, its largest entry and their number, and the logarithm of the sum of the terms times e^shift.
    """

    terms: Array
    at_largest: Array
    shift: Array
    largest: Array
    count: Array
    others: Array


def _parts_of(pairs: Pairs, scores: Array) -> _Parts:
    xp = namespace_of(scores)
    entries = pairs.negatives(scores + 0.0, -math.inf)
    largest = xp.max(entries, axis=1)
    at_largest = entries == largest[:, None]
    entries = xp.where(at_largest, -math.inf, entries)
    second = stop_gradient(xp.max(entries, axis=1))
    shift = xp.where(xp.isinf(second), xp.zeros_like(second), second)
    terms = adapter_of(entries).exp_in_place(entries - shift[:, None], bounded=False)
    count = adapter_of(terms).count_along(at_largest, 1, terms.dtype)
    sums = adapter_of(terms).sum_along(terms, 1)
    none = sums == 0
    others = xp.where(none, -math.inf, shift + xp.log(xp.where(none, xp.ones_like(sums), sums)))
    return _Parts(terms, at_largest, shift, largest, count, others)


def _rows(kind: Kind, pairs: Pairs, scores: Array, log_weight: Array, parts: _Parts) -> _Rows:
    xp = namespace_of(parts.terms, log_weight)
    largest, count, others = parts.largest, parts.count, parts.others
    positive = pairs.positive(scores) if kind.has_positives else None
    weight = log_weight if positive is None else log_add(xp, positive, log_weight)
    several = count > 1
    equal = xp.where(several, largest + xp.log(xp.where(several, count - 1.0, xp.ones_like(count))), -math.inf)
    rest = log_add(xp, log_add(xp, others, weight), equal)
    log_sum = log_add(xp, others, largest + xp.log(count))
    return _Rows(positive, weight, rest, log_sum, log_add(xp, log_sum, weight))


def _share(xp: Namespace, part: Array, whole: Array) -> Array:
    """``exp(part - whole)`` of a part of the whole, 0 for an infinite whole; the shift of no terms may be larger."""
    infinite = xp.isinf(whole)
    zero = xp.zeros_like(whole)
    exponent = xp.where(infinite, zero, part) - xp.where(infinite, zero, whole)
    return xp.where(infinite, zero, xp.exp(clipped(xp, exponent, -math.inf, 0.0)))


def _means(kind: Kind, scores: Array, log_weight: Array, number: Array, *masks: Array) -> tuple[Array, ...]:
    pairs = kind.of(masks)
    parts = _parts_of(pairs, scores)
    rows = _rows(kind, pairs, scores, log_weight, parts)
    xp = namespace_of(parts.terms, log_weight)
    shares = parts.terms * _share(xp, parts.shift, rows.total)[:, None]
    mean = adapter_of(shares).sum_along(xp.log1p(-shares), 1) - parts.count * softplus(xp, parts.largest - rows.rest)
    mean = xp.where(parts.largest == math.inf, xp.zeros_like(mean), mean / number)
    results = (rows.log_sum, mean) if rows.positive is None else (rows.positive, rows.log_sum, mean)
    return (*results, *parts)


def _pull_means(
    kind: Kind, arrays: Sequence[Array], outputs: Sequence[Array], cotangents: Sequence[Array]
) -> tuple[Array, ...]:
    scores, log_weight, number, *masks = arrays
    pairs, kept = kind.of(masks), outputs[2 + kind.has_positives :]
    to_sum, to_mean = cotangents[-2:]
    parts = _Parts(*kept) if kept else _parts_of(pairs, scores)
    rows = _rows(kind, pairs, scores, log_weight, parts)
    terms, at_largest, shift, largest, count, _ = parts
    xp = namespace_of(terms, log_weight, to_sum, to_mean)
    to_mean = xp.where(xp.isinf(rows.total), xp.zeros_like(to_mean), to_mean / number)
    of_shift, of_largest = _share(xp, shift, rows.total), _share(xp, largest, rows.total)
    shares = terms * of_shift[:, None]
    odds = shares / (1.0 - shares)
    total = adapter_of(odds).sum_along(odds, 1)
    # Odds of the largest may overflow, but not these products.
    beside = count * of_largest
    factor = to_sum * _share(xp, shift, rows.log_sum) + to_mean * (
        of_shift * (total - 1.0) + beside * _share(xp, shift, rows.rest)
    )
    several = count > 1
    equal = xp.where(several, largest - rows.rest, xp.zeros_like(total))
    equal = xp.where(several, (count - 1.0) * xp.exp(equal), xp.zeros_like(total))
    of_equal = to_sum * _share(xp, largest, rows.log_sum) + to_mean * of_largest * (total + equal - 1.0)
    gradient = terms * (factor[:, None] - (to_mean * of_shift)[:, None] * odds)
    gradient = pairs.negatives(adapter_of(gradient).plus_product(gradient, at_largest, of_equal[:, None]))
    to_weight = to_mean * (_share(xp, rows.weight, rows.total) * total + beside * _share(xp, rows.weight, rows.rest))
    if rows.positive is None:
        return gradient, to_weight
    to_positive = cotangents[0] + to_weight * _share(xp, rows.positive, rows.weight)
    return pairs.with_positives(gradient, to_positive), to_weight * _share(xp, log_weight, rows.weight)
