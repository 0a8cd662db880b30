r"""Sums over the pairs of each row of a score matrix: one pass for the value, one for the gradient.

With a function b of a score, a shift of each row, the negatives Q(i) and constant factors, 1 by default,

.. math:: s_i = \sum_{j \in Q(i)} w_{ij}\, b(g_{ij} - t_i), \qquad
    \partial s_i / \partial g_{ij} = w_{ij}\, b'(g_{ij} - t_i),

beside the score of the positive. What a loss makes of these two arrays (K,) the library differentiates itself. The
backward pass computes b' from the scores again; only exponentials, which are their own derivatives, are kept.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .autodiff import stop_gradient
from .logsumexp import ExpSum
from .namespace import device_of, namespace_of
from .numerics import clipped, entries_at, safe_quotient, sigmoid, softplus
from .protocol import Array, Namespace
from .registry import adapter_of


class PairSets(NamedTuple):
    """Positives and negatives of a score matrix (K, N).

    `diagonal`: the positives are on the diagonal, all other pairs are negatives, and there are no masks. Else `off`
    (K, N) are the negatives, None if all pairs are, and `own` (K, N) the positives, at most one in a row, None without.
    `factors` (K, N): constant factors of the terms of negatives, 0 for other pairs; None without.
    """

    diagonal: bool = False
    off: Array | None = None
    own: Array | None = None
    factors: Array | None = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays that there are."""
        return tuple(x for x in (self.off, self.own, self.factors) if x is not None)

    @property
    def kind(self) -> PairKind:
        """What there is, without the arrays."""
        return PairKind(self.diagonal, *[x is not None for x in (self.off, self.own, self.factors)])

    def positive(self, scores: Array) -> Array:
        """Score of each row's positive, 0 without one."""
        xp, rows = namespace_of(scores), scores.shape[0]
        if not self.diagonal:
            return xp.sum(xp.where(self.own, scores, 0.0), axis=1)
        return entries_at(scores, xp.arange(rows, device=device_of(scores))[:, None])[:, 0]

    def negatives(self, entries: Array, value: float = 0.0) -> Array:
        """Entries of the negatives, and a number elsewhere; the entries may be overwritten."""
        if self.diagonal:
            return adapter_of(entries).fill_diagonal(entries, 0, 0, entries.shape[0], value)
        return entries if self.off is None else namespace_of(entries, self.off).where(self.off, entries, value)

    def terms(self, entries: Array, *, cleared: bool = False) -> Array:
        """Terms of the negatives times their factors, 0 elsewhere; the entries may be overwritten.

        `cleared`: the entries are 0 elsewhere.
        """
        entries = entries if cleared else self.negatives(entries)
        return entries if self.factors is None else adapter_of(entries).times_in_place(entries, self.factors)

    def with_positives(self, entries: Array, values: Array) -> Array:
        """Entries, 0 outside of the negatives, with a value for each row's positive; the entries may be overwritten."""
        if self.diagonal:
            return adapter_of(entries).fill_diagonal(entries, 0, 0, entries.shape[0], values)
        return entries if self.own is None else adapter_of(entries).plus_product(entries, self.own, values[:, None])


class PairKind(NamedTuple):
    """Which parts of `PairSets` there are."""

    diagonal: bool
    has_off: bool
    has_own: bool
    has_factors: bool

    @property
    def has_positives(self) -> bool:
        """Whether rows have positives."""
        return self.diagonal or self.has_own

    def of(self, arrays: Sequence[Array]) -> PairSets:
        """The pairs with these arrays."""
        there_are, given = (self.has_off, self.has_own, self.has_factors), iter(arrays)
        return PairSets(self.diagonal, *[next(given) if one else None for one in there_are])


class PairTerm(NamedTuple):
    """A function of a score and its derivative; None: 1.

    `overwrites`: both may overwrite their argument. `exponential`: it is its own derivative, and may overflow.
    """

    value: Callable[[Namespace, Array], Array]
    slope: Callable[[Namespace, Array], Array] | None
    overwrites: bool = False
    exponential: bool = False


def _exp(xp: Namespace, t: Array) -> Array:
    del xp
    return adapter_of(t).exp_in_place(t, bounded=False)


def _copy(xp: Namespace, t: Array) -> Array:
    del xp
    return t + 0.0


def _square(xp: Namespace, t: Array) -> Array:
    del xp
    return adapter_of(t).times_in_place(t, t)


def _twice(xp: Namespace, t: Array) -> Array:
    del xp
    return adapter_of(t).times_in_place(t, 2.0)


def _sigmoid_slope(xp: Namespace, t: Array) -> Array:
    """``σ(t) σ(-t)``, which does not cancel on either side."""
    times = adapter_of(t).times_in_place
    small = sigmoid(xp, times(xp.abs(t), -1.0))
    return times(1.0 - small, small)


def _is_infinite(xp: Namespace, t: Array) -> Array:
    """Infinity where the softplus is infinite, else 0: all that is read of a value whose gradient alone is used.

    A library that differentiates the value itself gets the softplus.
    """
    if not adapter_of(t).is_plain((t,)):
        return softplus(xp, t)
    most = min(float(xp.finfo(t.dtype).max), sys.float_info.max)
    return clipped(xp, t, most, math.inf) - most


EXP = PairTerm(_exp, _exp, overwrites=True, exponential=True)
SQUARE = PairTerm(_square, _twice, overwrites=True)
SOFTPLUS = PairTerm(softplus, sigmoid)
SOFTPLUS_SLOPE = PairTerm(_is_infinite, sigmoid)
SIGMOID = PairTerm(sigmoid, _sigmoid_slope)
SCORE = PairTerm(_copy, None)


class _Spec(NamedTuple):
    """Static arguments: `constant`: a shift; `shifted`: an array of shifts; `relative`: to the positive of the row."""

    term: PairTerm
    kind: PairKind
    constant: float
    shifted: bool
    relative: bool


def pair_sums(
    term: PairTerm, scores: Array, pairs: PairSets, *, shift: Array | float | None = None, relative: bool = False
) -> tuple[Array, Array]:
    """Scores of the positives (K,), and sums of the term over the negatives of each row (K,).

    `shift`, a constant or an array (K,), is subtracted from the scores, and with `relative` the score of the positive,
    too. Without positives both results are the sums.
    """
    scores = adapter_of(scores).rounded(scores) if relative else scores
    constant = shift if isinstance(shift, float) else 0.0
    shifts = () if shift is None or isinstance(shift, float) else (shift,)
    spec = _Spec(term, pairs.kind, constant, len(shifts) > 0, relative)
    forward, kept = (_kept_sums, 1) if term.exponential else (_sums, 0)
    rule = adapter_of(scores).custom_vjp(forward, _pull_sums, kept=kept)
    outputs = rule(spec, scores, *shifts, *pairs.arrays)
    return outputs[0], outputs[-1]


def exp_sum(scores: Array, pairs: PairSets) -> tuple[Array, ExpSum]:
    """Scores of the positives, and the sum of exponentials of the negatives of each row."""
    adapter = adapter_of(scores)
    rule = adapter.custom_vjp(_row_softmax, _pull_row_softmax, kept=2)
    outputs = rule(pairs.kind, adapter.rounded(scores), *pairs.arrays)
    return outputs[0], ExpSum(stop_gradient(outputs[-2]), outputs[-1])


def log_shares(scores: Array) -> Array:
    """Scores minus the logarithm of the sum of exponentials of their row; of an infinite one, minus 0."""
    adapter = adapter_of(scores)
    return adapter.custom_vjp(_log_shares, _pull_log_shares, kept=2)(None, adapter.rounded(scores))[0]


def _arguments(spec: _Spec, pairs: PairSets, scores: Array, shifts: Sequence[Array], positive: Array | None) -> Array:
    """Arguments of the term; of one that overwrites them in a new array, with one number outside of the negatives."""
    shift = shifts[0] if shifts else None
    if spec.relative and positive is not None:
        shift = positive if shift is None else positive + shift
    if shift is not None:
        scores = scores - shift[:, None]
    elif spec.constant != 0.0 or spec.term.overwrites:
        scores = scores - spec.constant
    nothing = -math.inf if _vanishes(spec.term, scores) else 0.0
    return pairs.negatives(scores, nothing) if spec.term.overwrites or pairs.off is not None else scores


def _vanishes(term: PairTerm, scores: Array) -> bool:
    """Whether the term is 0 outside of the negatives: XLA would write a matrix for a mask behind an exponential."""
    return term.exponential and adapter_of(scores).mode == "traced"


def _kept_sums(spec: _Spec, scores: Array, *rest: Array) -> tuple[Array, ...]:
    """Sums, and the terms, which are their own derivatives."""
    xp, split = namespace_of(scores), int(spec.shifted)
    pairs = spec.kind.of(rest[split:])
    positive = pairs.positive(scores) if spec.kind.has_positives else None
    terms = spec.term.value(xp, _arguments(spec, pairs, scores, rest[:split], positive))
    terms = pairs.terms(terms, cleared=_vanishes(spec.term, scores))
    sums = adapter_of(terms).sum_along(terms, 1)
    return (sums, terms) if positive is None else (positive, sums, terms)


def _sums(spec: _Spec, scores: Array, *rest: Array) -> tuple[Array, ...]:
    return _kept_sums(spec, scores, *rest)[:-1]


def _pull_sums(
    spec: _Spec, arrays: Sequence[Array], outputs: Sequence[Array], cotangents: Sequence[Array]
) -> tuple[Array, ...]:
    (scores, *rest), split = arrays, int(spec.shifted)
    xp, pairs = namespace_of(*arrays, *outputs, *cotangents), spec.kind.of(rest[split:])
    positive = outputs[0] if spec.kind.has_positives else None
    place = int(positive is not None)
    of_sums, sums, kept = cotangents[place], outputs[place], outputs[place + 1 :]
    if kept:
        gradient = kept[0] * of_sums[:, None]
    elif spec.term.slope is None:
        gradient = pairs.terms(xp.zeros_like(scores[:1, :]) + of_sums[:, None])
    else:
        slopes = spec.term.slope(xp, _arguments(spec, pairs, scores, rest[:split], positive))
        gradient = pairs.terms(adapter_of(slopes).times_in_place(slopes, of_sums[:, None]))
    of_shift = -adapter_of(gradient).sum_along(gradient, 1) if spec.shifted or spec.relative else xp.zeros_like(sums)
    if positive is not None:
        gradient = pairs.with_positives(gradient, cotangents[0] + of_shift if spec.relative else cotangents[0])
    return (gradient, of_shift) if spec.shifted else (gradient,)


def _row_softmax(kind: PairKind, scores: Array, *masks: Array) -> tuple[Array, ...]:
    """Positives, largest negative and sum of exponentials of each row; the terms, and their factors."""
    xp, pairs = namespace_of(scores), kind.of(masks)
    entries = pairs.negatives(scores + 0.0 if kind.diagonal else scores, -math.inf)
    found = adapter_of(entries).softmax(entries)
    if found is None:
        top = stop_gradient(xp.max(entries, axis=1))
        infinite = xp.isinf(top)
        shift = xp.where(infinite, xp.zeros_like(top), top)
        below = clipped(xp, entries - shift[:, None], -math.inf, 0.0)  # infinity counts as 0
        terms = adapter_of(below).exp_in_place(below, bounded=False)
        total = adapter_of(terms).sum_along(terms, 1)
        total, factor = xp.where(infinite, xp.zeros_like(total), total), xp.ones_like(total)
    else:
        top, total, terms, factor = found
    results = (top, total, terms, factor)
    return (pairs.positive(scores), *results) if kind.has_positives else results


def _pull_row_softmax(
    kind: PairKind, arrays: Sequence[Array], outputs: Sequence[Array], cotangents: Sequence[Array]
) -> tuple[Array]:
    scores, *masks = arrays
    pairs, kept = kind.of(masks), outputs[2 + kind.has_positives :]
    terms, factor = kept or _row_softmax(kind, scores, *masks)[-2:]
    gradient = terms * (cotangents[-1] * factor)[:, None]
    return (pairs.with_positives(gradient, cotangents[0]) if kind.has_positives else gradient,)


def _log_shares(static: None, scores: Array) -> tuple[Array, ...]:
    """Logarithms of shares; the terms, and the factors that make shares of them."""
    del static
    xp, (top, total, terms, factor) = namespace_of(scores), _row_softmax(PairKind(*[False] * 4), scores)
    shares = scores - xp.where(xp.isinf(top), xp.zeros_like(top), top)[:, None]
    shares -= ExpSum(None, total).log_total(xp)[:, None]
    return shares, terms, safe_quotient(xp, factor, total)


def _pull_log_shares(
    static: None, arrays: Sequence[Array], outputs: Sequence[Array], cotangents: Sequence[Array]
) -> tuple[Array]:
    ((scores,), (cotangent, *_)) = arrays, cotangents
    terms, factor = outputs[1:] or _log_shares(static, scores)[1:]
    gradient = terms * -(adapter_of(cotangent).sum_along(cotangent, 1) * factor)[:, None]
    gradient += cotangent
    return (gradient,)
