"""Independent oracles: the published sums, spelled out over lists of mpmath numbers.

Nothing here is arranged for accuracy or speed, and nothing but names is shared with the library: every loss is the
quotient of sums that its paper prints, in enough digits that the cancellations do no harm. Gradients are central
differences in the same digits, or, with respect to scores, the closed forms of the table of gradients.

A keyword that a loss takes has here the name, the default and the meaning that it has in the library.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, TypeAlias

from mpmath import mp, mpf

from ._package import pnce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .cases import Case

Number: TypeAlias = Any
Nested: TypeAlias = Any
Row: TypeAlias = list[Any]
Matrix: TypeAlias = list[list[Any]]

DIGITS = 120
"""Decimal digits: the difference of two losses of 1e-35 at points 1e-27 apart leaves fifty of them."""

STEP = mpf(10) ** -27
"""The step of the central differences; what they leave out is of the order of its square."""


def exact(nested: Nested) -> Nested:
    """Turn the floats of a nested list into the same numbers as mpf; leave integers and truth values."""
    if isinstance(nested, Sequence) and not isinstance(nested, str):
        return [exact(item) for item in nested]
    return mpf(nested) if isinstance(nested, float) else nested


# --- similarities ---------------------------------------------------------------------------------------------------


def dot(x: Row, y: Row) -> Number:
    """Sum of products."""
    return mp.fsum(a * b for a, b in zip(x, y, strict=True))


def cosine(x: Row, y: Row) -> Number:
    """Dot product over both lengths; 0 for a vector of length 0."""
    lengths = mp.sqrt(dot(x, x) * dot(y, y))
    return dot(x, y) / lengths if lengths else mpf(0)


def neg_sq_euclidean(x: Row, y: Row) -> Number:
    """Minus the squared distance."""
    return -mp.fsum((a - b) ** 2 for a, b in zip(x, y, strict=True))


def neg_euclidean(x: Row, y: Row) -> Number:
    """Minus the distance."""
    return -mp.sqrt(-neg_sq_euclidean(x, y))


def unit(x: Row) -> Row:
    """Scale a vector to length 1; a vector of length 0 stays."""
    length = mp.sqrt(dot(x, x))
    return [a / length for a in x] if length else x


def _of_units(similarity: Callable[[Row, Row], Number]) -> Callable[[Row, Row], Number]:
    """Compare vectors after scaling both to length 1."""
    return lambda x, y: similarity(unit(x), unit(y))


_NAMED: Mapping[str, Callable[[Row, Row], Number]] = {
    "dot": dot,
    "cosine": cosine,
    "neg_sq_euclidean": neg_sq_euclidean,
    "neg_euclidean": neg_euclidean,
}

SIMILARITIES: Mapping[str, Callable[[Row, Row], Number]] = {
    **_NAMED,
    **{f"normalized {name}": _of_units(similarity) for name, similarity in _NAMED.items()},
}
"""By the name that cases give: "normalized dot" is what the library calls similarities.normalized("dot")."""


def score_matrix(x: Matrix, y: Matrix, similarity: str, scale: Nested, bilinear: Matrix | None = None) -> Matrix:
    """Every row of x against every row of y: similarity times scale."""
    if bilinear is not None:
        x = [[mp.fsum(a * w for a, w in zip(row, column, strict=True)) for column in transpose(bilinear)] for row in x]
        similarity = "dot"
    function = SIMILARITIES[similarity]
    scales = scale if isinstance(scale, list) else [scale] * len(x)
    return [[function(a, b) * own for b in y] for a, own in zip(x, scales, strict=True)]


def of_columns(x: Matrix, y: Matrix, similarity: str, scale: Nested, bilinear: Matrix | None = None) -> Matrix:
    """The scores of the columns against the rows; the scale of a row is also that of the column of its number."""
    scales = scale if isinstance(scale, list) else [scale] * len(y)
    unscaled = transpose(score_matrix(x, y, similarity, mpf(1), bilinear))
    return [[own * score for score in row] for own, row in zip(scales, unscaled, strict=True)]


def inverse(temperature: Nested, rows: int) -> Nested:
    """The inverse of a temperature, or of that of each sample for each row."""
    if isinstance(temperature, list):
        return [1 / mpf(t) for t in temperature] * (rows // len(temperature))
    return 1 / mpf(temperature)


def max_sim(query: Matrix, document: Matrix, valid: Row, usable: Row, *, normalize: bool) -> Number:
    """ColBERT: of each valid token of the query, the largest product with one of the document."""
    unit = SIMILARITIES["cosine" if normalize else "dot"]
    tokens = [token for token, takes_part in zip(query, valid, strict=True) if takes_part]
    others = [token for token, takes_part in zip(document, usable, strict=True) if takes_part]
    return mp.fsum(max(unit(a, b) for b in others) for a in tokens) if tokens and others else mpf("-inf")


def token_scores(
    x: Nested, y: Nested, scale: Number, query_mask: Nested, document_mask: Nested, *, normalize: bool
) -> Matrix:
    """Every array of tokens in x against every one in y."""
    query_mask = query_mask or [[True] * len(x[0])] * len(x)
    document_mask = document_mask or [[True] * len(y[0])] * len(y)
    return [
        [max_sim(a, b, v, u, normalize=normalize) * scale for b, u in zip(y, document_mask, strict=True)]
        for a, v in zip(x, query_mask, strict=True)
    ]


def transpose(matrix: Matrix) -> Matrix:
    """Swap rows and columns."""
    return [list(column) for column in zip(*matrix, strict=True)]


# --- stop-gradient --------------------------------------------------------------------------------------------------


class _Held:
    """What sg(.) holds fixed: noted at the base point, played back in order while the arguments are moved."""

    def __init__(self) -> None:
        self.values: list[Number] | None = None
        self.position = 0

    def __call__(self, value: Number) -> Number:
        if self.values is None:
            return value
        if self.position == len(self.values):
            self.values.append(value)
        self.position += 1
        return self.values[self.position - 1]


_held = _Held()


def _constant(matrix: Matrix) -> Matrix:
    """Hold every number of a matrix fixed."""
    return [[_held(x) for x in row] for row in matrix]


# --- pairings: for every row, the columns that are positive and those that are negative -----------------------------

Pairs: TypeAlias = list[tuple[list[int], list[int]]]


class _Weighted(list[int]):
    """Columns that are positive, with weights."""

    def __init__(self, weights: Mapping[int, Number]) -> None:
        super().__init__(weights)
        self.weights = [mpf(weight) for weight in weights.values()]


def _mean(positives: list[int], values: Sequence[Number]) -> Number:
    """The mean of a value of each positive, with the weights of these."""
    weights = positives.weights if isinstance(positives, _Weighted) else [mpf(1)] * len(positives)
    return mp.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / mp.fsum(weights)


def pairs_of(rows: int, columns: int, positives: Nested = None, mask: Nested = None) -> Pairs:
    """Positives given as None (the diagonal), one column per row, truth values or weights; mask True takes part."""
    pairs: Pairs = []
    for i in range(rows):
        if positives is None:
            is_positive = [j == i for j in range(columns)]
        elif isinstance(positives[i], list):
            is_positive = positives[i]
        else:
            is_positive = [j == positives[i] for j in range(columns)]
        takes_part = [True] * columns if mask is None else mask[i]
        pairs.append(
            (
                _Weighted({j: is_positive[j] for j in range(columns) if is_positive[j] and takes_part[j]}),
                [j for j in range(columns) if not is_positive[j] and takes_part[j]],
            )
        )
    return pairs


def view_pairs(n: int, mask: Nested = None, views: int = 2) -> Pairs:
    """Views of n things, one after the other: positive are the other views, oneself is left out."""
    return label_pairs([i % n for i in range(views * n)], mask)


def label_pairs(labels: list[int], mask: Nested = None) -> Pairs:
    """Things among themselves: positive are the others of the same label, oneself is left out."""
    size = len(labels)
    mask = mask or [[True] * size for _ in range(size)]
    return [
        (
            [j for j in range(size) if labels[j] == labels[i] and j != i and mask[i][j]],
            [j for j in range(size) if labels[j] != labels[i] and mask[i][j]],
        )
        for i in range(size)
    ]


# --- one row of every loss ------------------------------------------------------------------------------------------


def info_nce_row(scores: Row, positives: list[int], negatives: list[int], multi_positive: str) -> Number:
    """Minus the log of the positive's share of the sum over positives and negatives."""
    if multi_positive == "separate":
        return _mean(positives, [info_nce_row(scores, [j], negatives, "each") for j in positives])
    total = mp.fsum(mp.exp(scores[j]) for j in positives + negatives)
    if multi_positive == "pooled":
        return -mp.log(mp.fsum(mp.exp(scores[j]) for j in positives) / total)
    return _mean(positives, [-mp.log(mp.exp(scores[j]) / total) for j in positives])


def dcl_row(scores: Row, positives: list[int], negatives: list[int], multi_positive: str) -> Number:
    """The same, without the positive in the sum; positives apart are then no different from each in turn."""
    total = mp.fsum(mp.exp(scores[j]) for j in negatives)
    if multi_positive == "pooled":
        return -mp.log(mp.fsum(mp.exp(scores[j]) for j in positives) / total)
    return _mean(positives, [-mp.log(mp.exp(scores[j]) / total) for j in positives])


def anchored_row(
    scores: Row, positives: list[int], negatives: list[int], _: str, *, n_columns: int, nu: Number
) -> Number:
    """Minus the logs of two posteriors: that of the positive's class, and that of the anchor without the positive."""
    noise = mp.fsum(mp.exp(scores[j]) for j in negatives)
    total = nu + noise + mp.fsum(mp.exp(scores[j]) for j in positives)
    own = mp.fsum(-mp.log(mp.exp(scores[j]) / total) for j in positives) / len(positives)
    return own - nu * mp.log(nu / (nu + noise)) / n_columns


def flat_nce_row(
    scores: Row, positives: list[int], negatives: list[int], multi_positive: str, form: str, *, include_positive: bool
) -> Number:
    """The sum of the exponentials of the contrasts over itself held fixed; its logarithm in the log form."""
    loss = (info_nce_row if include_positive else dcl_row)(scores, positives, negatives, multi_positive)
    return loss if form == "log" else mp.exp(loss) / mp.exp(_held(loss))


def label_pairs_of(labels: list[int], columns: list[int], mask: Nested = None) -> Pairs:
    """Things and keys: positive are the keys of the same label, negative all others."""
    positives = [[label == other for other in columns] for label in labels]
    return pairs_of(len(labels), len(columns), positives, mask)


def with_further(pairs: Pairs, further: int, mask: Nested = None) -> Pairs:
    """The pairs of a square matrix, and further columns that are negatives of all rows."""
    size = len(pairs)
    return [
        (p, [*q, *(j for j in range(size, size + further) if mask is None or mask[i][j])])
        for i, (p, q) in enumerate(pairs)
    ]


def reduce_rows(
    scores: Matrix,
    pairs: Pairs,
    weights: Nested,
    reduction: str,
    row_loss: Callable[[Row, list[int], list[int]], Number],
    *,
    needs_negative: bool = False,
) -> Nested:
    """Weight and reduce the losses of the rows that count."""
    counts = [bool(p) and (bool(q) or not needs_negative) for p, q in pairs]
    losses = [
        row_loss(row, p, q) if count else mpf(0) for row, (p, q), count in zip(scores, pairs, counts, strict=True)
    ]
    return reduce_losses(losses, counts, weights, reduction)


def reduce_losses(losses: Row, sizes: Sequence[int], weights: Nested, reduction: str) -> Nested:
    """Weight and reduce the losses of rows, 0 where a row does not count; each is a sum of so many terms."""
    weights = weights or [mpf(1)] * len(losses)
    weighted = [weight * loss for weight, loss in zip(weights, losses, strict=True)]
    if reduction == "none":
        return weighted
    if reduction == "sum":
        return mp.fsum(weighted)
    total = mp.fsum(weight * int(size) for weight, size in zip(weights, sizes, strict=True))
    return mp.fsum(weighted) / total if total else mpf(0)


def add(*losses: Nested) -> Nested:
    """Add losses of the same rows, reduced in the same way."""
    return [mp.fsum(terms) for terms in zip(*losses, strict=True)] if isinstance(losses[0], list) else mp.fsum(losses)


def multiply(factor: Number, loss: Nested) -> Nested:
    """Multiply a loss, reduced or not."""
    return [factor * term for term in loss] if isinstance(loss, list) else factor * loss


# --- weighted positives, pairs, triplets, divergences ---------------------------------------------------------------


def reduce_dclw(
    scores: Matrix,
    pairs: Pairs,
    *,
    temperature: Nested,
    sigma: Number,
    detach_weights: bool,
    weights: Nested,
    reduction: str,
) -> Nested:
    """DCL with the positive times 2 minus the exponential of its similarity over sigma, relative to the mean of all."""
    counts = [bool(p) and bool(q) for p, q in pairs]
    own = [
        mp.log(mp.fsum(mp.exp(row[j]) for j in p)) if count else None
        for row, (p, _), count in zip(scores, pairs, counts, strict=True)
    ]
    each = temperature if isinstance(temperature, list) else [temperature]
    each = [mpf(t) for t in each] * (len(own) // len(each))
    powers = [None if s is None else mp.exp(t * s / mpf(sigma)) for s, t in zip(own, each, strict=True)]
    sizes = [power for power in powers if power is not None]
    losses = []
    for row, (_, q), s, power in zip(scores, pairs, own, powers, strict=True):
        if s is None:
            losses.append(mpf(0))
            continue
        assert power is not None  # noqa: S101  (as its score is)
        factor = 2 - power / (mp.fsum(sizes) / len(sizes))
        factor = _held(factor) if detach_weights else factor
        losses.append(-mp.log(mp.exp(factor * s) / mp.fsum(mp.exp(row[j]) for j in q)))
    return reduce_losses(losses, counts, weights, reduction)


def logistic_row(scores: Row, positives: list[int], negatives: list[int]) -> Number:
    """Minus the log of the probability that every pair is called what it is."""
    return -mp.fsum(mp.log(1 / (1 + mp.exp(-scores[j]))) for j in positives) - mp.fsum(
        mp.log(1 / (1 + mp.exp(scores[j]))) for j in negatives
    )


def hinge(x: Number) -> Number:
    """Positive part."""
    return max(x, mpf(0))


def reduce_contrastive(
    scores: Matrix,
    pairs: Pairs,
    *,
    margin: Number = 1.0,
    positive_margin: Number = 0.0,
    positive_power: int = 2,
    negative_power: int = 2,
    average: str = "all",
    balance: bool = False,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Pull positives within a distance, push negatives beyond another one; the distance is minus the score."""
    near, far = [], []
    for row, (p, q) in zip(scores, pairs, strict=True):
        near.append([hinge(-row[j] - positive_margin) ** positive_power for j in p])
        far.append([hinge(margin + row[j]) ** negative_power for j in q])

    def reduced(rows: Matrix) -> Nested:
        sizes = [sum(average == "all" or term > 0 for term in row) for row in rows]
        return reduce_losses([mp.fsum(row) for row in rows], sizes, weights, reduction)

    if balance and reduction == "mean":
        return reduced(near) + reduced(far)
    return reduced([p + q for p, q in zip(near, far, strict=True)])


def triplet_term(to_positive: Number, to_negative: Number, margin: Number, form: str) -> Number:
    """How far the positive is from being nearer than the negative by the margin, cut at 0 or smoothly."""
    behind = to_positive - to_negative + margin
    return mp.log(1 + mp.exp(behind)) if form == "soft" else hinge(behind)


def mined_triplets(to_positives: Row, to_negatives: Row, mining: str | tuple[str, str]) -> list[tuple[Number, Number]]:
    """The distances of an anchor's triplets: of all its positives with all its negatives, or of chosen ones."""
    named = {"batch_all": ("all", "all"), "batch_hard": ("hard", "hard"), "semi_hard": ("all", "semi_hard")}
    of_positives, of_negatives = named[mining] if isinstance(mining, str) else mining
    if not to_positives or not to_negatives:
        return []
    if of_positives == "semi_hard":
        chosen = {"all": to_negatives, "hard": [min(to_negatives)], "easy": [max(to_negatives)]}[of_negatives]
        return [(max((a for a in to_positives if a < b), default=min(to_positives)), b) for b in chosen]
    chosen = {"all": to_positives, "hard": [max(to_positives)], "easy": [min(to_positives)]}[of_positives]
    if of_negatives == "semi_hard":
        return [(a, min((b for b in to_negatives if b > a), default=max(to_negatives))) for a in chosen]
    others = {"all": to_negatives, "hard": [min(to_negatives)], "easy": [max(to_negatives)]}[of_negatives]
    return [(a, b) for a in chosen for b in others]


def reduce_triplets(
    scores: Matrix,
    pairs: Pairs,
    *,
    margin: Number = 0.2,
    mining: str | tuple[str, str] = "batch_all",
    form: str = "margin",
    average: str = "all",
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Triplets of every row with its positives and negatives, or with some of them."""
    rows = []
    for row, (p, q) in zip(scores, pairs, strict=True):
        triplets = mined_triplets([-row[j] for j in p], [-row[j] for j in q], mining)
        rows.append([triplet_term(a, b, margin, form) for a, b in triplets])
    sizes = [sum(average == "all" or term > 0 for term in row) for row in rows]
    return reduce_losses([mp.fsum(row) for row in rows], sizes, weights, reduction)


def divergence(first: Row, second: Row) -> Number:
    """Kullback-Leibler divergence of two distributions."""
    return mp.fsum(p * mp.log(p / q) for p, q in zip(first, second, strict=True))


def shares(row: Row) -> Row:
    """Softmax."""
    total = mp.fsum(mp.exp(s) for s in row)
    return [mp.exp(s) / total for s in row]


def reduce_relic(
    forward: Matrix,
    backward: Matrix,
    *,
    alpha: Number = 1.0,
    direction: str = "a_to_b",
    stop_gradient: str | None = None,
    symmetric: bool = False,
    include_positive: bool = True,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """InfoNCE of the first view against the second, and how far the second's distribution is from the first's."""
    mask = mask or [[True] * len(row) for row in forward]

    def one_order(own: Matrix, other: Matrix) -> Nested:
        losses = []
        for i, bits in enumerate(mask):
            columns = [j for j, takes_part in enumerate(bits) if takes_part]
            if i not in columns:
                losses.append(mpf(0))
                continue
            positive = shares([own[i][j] for j in columns])[columns.index(i)]
            columns = [j for j in columns if include_positive or j != i]
            p_a, p_b = shares([own[i][j] for j in columns]), shares([other[i][j] for j in columns])
            first, second = (p_a, p_b) if direction == "a_to_b" else (p_b, p_a)
            first = [_held(p) for p in first] if stop_gradient == "first" else first
            second = [_held(p) for p in second] if stop_gradient == "second" else second
            losses.append(-mp.log(positive) + alpha * divergence(first, second))
        return reduce_losses(losses, [bits[i] for i, bits in enumerate(mask)], weights, reduction)

    if not symmetric:
        return one_order(forward, backward)
    return _half_sum(one_order(forward, backward), one_order(backward, forward))


# --- losses of scores -----------------------------------------------------------------------------------------------


def from_scores_info_nce(
    scores: Matrix,
    *,
    positives: Nested = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
    multi_positive: str = "each",
) -> Nested:
    """InfoNCE of a score matrix."""
    return reduce_rows(
        scores,
        pairs_of(len(scores), len(scores[0]), positives, mask),
        weights,
        reduction,
        lambda row, p, q: info_nce_row(row, p, q, multi_positive),
    )


def from_scores_dcl(
    scores: Matrix,
    *,
    positives: Nested = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
    multi_positive: str = "each",
) -> Nested:
    """DCL of a score matrix."""
    return reduce_rows(
        scores,
        pairs_of(len(scores), len(scores[0]), positives, mask),
        weights,
        reduction,
        lambda row, p, q: dcl_row(row, p, q, multi_positive),
        needs_negative=True,
    )


def from_scores_flat_nce(
    scores: Matrix,
    *,
    include_positive: bool = False,
    form: str = "log",
    positives: Nested = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
    multi_positive: str = "each",
) -> Nested:
    """FlatNCE of a score matrix."""
    return reduce_rows(
        scores,
        pairs_of(len(scores), len(scores[0]), positives, mask),
        weights,
        reduction,
        lambda row, p, q: flat_nce_row(row, p, q, multi_positive, form, include_positive=include_positive),
        needs_negative=True,
    )


def from_scores_nca(
    scores: Matrix, *, positives: Nested = None, mask: Nested = None, weights: Nested = None, reduction: str = "mean"
) -> Nested:
    """NCA of a score matrix: the share of all positives together."""
    return from_scores_info_nce(
        scores, positives=positives, mask=mask, weights=weights, reduction=reduction, multi_positive="pooled"
    )


def from_scores_dclw(
    scores: Matrix,
    *,
    temperature: Nested = 1.0,
    sigma: Number = 0.5,
    detach_weights: bool = False,
    positives: Nested = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """DCLW of a score matrix."""
    return reduce_dclw(
        scores,
        pairs_of(len(scores), len(scores[0]), positives, mask),
        temperature=temperature,
        sigma=sigma,
        detach_weights=detach_weights,
        weights=weights,
        reduction=reduction,
    )


def from_scores_clip(scores: Matrix, *, mask: Nested = None, weights: Nested = None, reduction: str = "mean") -> Nested:
    """Mean of InfoNCE along the rows and along the columns of a square score matrix."""
    options: dict[str, Any] = {"weights": weights, "reduction": reduction}
    return _half_sum(
        from_scores_info_nce(scores, mask=mask, **options),
        from_scores_info_nce(transpose(scores), mask=transpose(mask) if mask else None, **options),
    )


def from_scores_relic(scores: Matrix, **options: Any) -> Nested:
    """RELIC of a score matrix, whose columns are the rows of the other order."""
    return reduce_relic(scores, transpose(scores), **options)


def from_scores_logistic(
    scores: Matrix, *, positives: Nested = None, mask: Nested = None, weights: Nested = None, reduction: str = "mean"
) -> Nested:
    """SigLIP's objective of a score matrix."""
    pairs = pairs_of(len(scores), len(scores[0]), positives, mask)
    losses = [logistic_row(row, p, q) for row, (p, q) in zip(scores, pairs, strict=True)]
    return reduce_losses(losses, [bool(p or q) for p, q in pairs], weights, reduction)  # every pair is a decision


def from_scores_contrastive(scores: Matrix, *, positives: Nested = None, mask: Nested = None, **options: Any) -> Nested:
    """Contrastive loss of a matrix of negative distances."""
    return reduce_contrastive(scores, pairs_of(len(scores), len(scores[0]), positives, mask), **options)


def from_scores_triplet(scores: Matrix, *, positives: Nested = None, mask: Nested = None, **options: Any) -> Nested:
    """Triplet loss of a matrix of negative distances."""
    return reduce_triplets(scores, pairs_of(len(scores), len(scores[0]), positives, mask), **options)


def diagnostics_effective_sample_size(
    scores: Matrix,
    *,
    positives: Nested = None,
    mask: Nested = None,
    weights: Nested = None,
    normalized: bool = False,
    reduction: str = "mean",
) -> Nested:
    """One over the sum of the squared softmax weights of the negatives, as such or per negative."""

    def row_size(row: Row, p: list[int], q: list[int]) -> Number:
        del p
        total = mp.fsum(mp.exp(row[j]) for j in q)
        return 1 / mp.fsum((mp.exp(row[j]) / total) ** 2 for j in q) / (len(q) if normalized else 1)

    # A row counts if it has a negative: the positives do not matter here.
    pairs = [([i], q) for i, (_, q) in enumerate(pairs_of(len(scores), len(scores[0]), positives, mask))]
    return reduce_rows(scores, pairs, weights, reduction, row_size, needs_negative=True)


# --- losses of embeddings -------------------------------------------------------------------------------------------


def info_nce(
    query: Matrix,
    positive_key: Matrix,
    negative_keys: Nested = None,
    *,
    temperature: Nested = 0.07,
    symmetric: bool = False,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    positives: Nested = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
    multi_positive: str = "each",
    hardness: Number = 0,
) -> Nested:
    """InfoNCE with negatives in the batch, shared, or per row."""
    scale = inverse(temperature, len(query))
    options: dict[str, Any] = {"weights": weights, "reduction": reduction, "multi_positive": multi_positive}
    if negative_keys is None:
        scores = score_matrix(query, positive_key, similarity, scale, bilinear)
        scores = _hardened(scores, hardness, scale, positives)
        forward = from_scores_info_nce(scores, positives=positives, mask=mask, **options)
        if not symmetric:
            return forward
        if positives is not None and not isinstance(positives[0], list):
            positives = [[own == j for j in range(len(positive_key))] for own in positives]
        own = None if positives is None else transpose(positives)
        turned = _hardened(of_columns(query, positive_key, similarity, scale, bilinear), hardness, scale, own)
        backward = from_scores_info_nce(turned, positives=own, mask=transpose(mask) if mask else None, **options)
        return _half_sum(forward, backward)
    scores = []
    for i, (q, own) in enumerate(zip(query, positive_key, strict=True)):
        others = negative_keys[i] if isinstance(negative_keys[0][0], list) else negative_keys
        scores += score_matrix(
            [q], [own, *others], similarity, scale[i] if isinstance(scale, list) else scale, bilinear
        )
    scores = _hardened(scores, hardness, scale, [0] * len(query))
    takes_part = [[True, *row] for row in mask] if mask else None
    return from_scores_info_nce(scores, positives=[0] * len(query), mask=takes_part, **options)


def _hardened(scores: Matrix, hardness: Number, scale: Nested, positives: Nested = None) -> Matrix:
    """Scores of negatives with a multiple of the similarity, held fixed, added."""
    if not hardness:
        return scores
    scales = scale if isinstance(scale, list) else [scale] * len(scores)
    pairs = pairs_of(len(scores), len(scores[0]), positives)
    return [
        [s + hardness * _held(s / factor) if j in negatives else s for j, s in enumerate(row)]
        for row, (_, negatives), factor in zip(scores, pairs, scales, strict=True)
    ]


def _half_sum(a: Nested, b: Nested) -> Nested:
    """Mean of two losses."""
    return [(p + q) / 2 for p, q in zip(a, b, strict=True)] if isinstance(a, list) else (a + b) / 2


def _views(
    row_loss: Callable[[Row, list[int], list[int]], Number],
    *views: Matrix,
    needs_negative: bool = True,
    temperature: Nested = 0.1,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    keys: Nested = None,
    slots: int | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Reduce a loss of all the rows of views of N things."""
    n, stacked = len(views[0]), [row for view in views for row in view]
    columns, pairs = _views_and_keys(stacked, n, keys, slots, mask)
    scores = score_matrix(stacked, columns, similarity, inverse(temperature, len(stacked)), bilinear)
    return reduce_rows(
        scores,
        pairs,
        _for_every_view(weights, n, len(views)),
        reduction,
        row_loss,
        needs_negative=needs_negative,
    )


def _views_and_keys(stacked: Matrix, n: int, keys: Nested, slots: int | None, mask: Nested) -> tuple[Matrix, Pairs]:
    """The columns and pairs of views, and of what a queue of so many slots keeps of keys that are pushed."""
    pairs = view_pairs(n, mask, len(stacked) // n)
    if keys is None:
        return stacked, pairs
    rows = keys if slots is None else _latest(keys, slots)
    takes_part = [row[: len(stacked)] + row[-len(rows) :] for row in mask] if mask else None
    return stacked + rows, with_further(pairs, len(rows), takes_part)


def _for_every_view(weights: Nested, n: int, views: int = 2) -> Nested:
    """Repeat the weights of things for every view of them; leave the weights of views."""
    return weights * views if weights and len(weights) == n else weights


def nt_xent(
    view_a: Matrix, view_b: Matrix, view_c: Nested = None, *, multi_positive: str = "separate", **options: Any
) -> Nested:
    """NT-Xent: all views, oneself left out, mean over them all; every other view is a positive of its own."""
    views = [view_a, view_b] if view_c is None else [view_a, view_b, view_c]
    return _views(lambda row, p, q: info_nce_row(row, p, q, multi_positive), *views, needs_negative=False, **options)


def dcl(view_a: Matrix, view_b: Matrix, **options: Any) -> Nested:
    """DCL: NT-Xent without the positive in the denominator."""
    return _views(lambda row, p, q: dcl_row(row, p, q, "each"), view_a, view_b, **options)


def dclw(
    view_a: Matrix,
    view_b: Matrix,
    *,
    temperature: Nested = 0.1,
    sigma: Number = 0.5,
    detach_weights: bool = False,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    keys: Nested = None,
    slots: int | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """DCLW: DCL with weighted positives."""
    columns, pairs = _views_and_keys(view_a + view_b, len(view_a), keys, slots, mask)
    return reduce_dclw(
        score_matrix(view_a + view_b, columns, similarity, inverse(temperature, len(view_a + view_b)), bilinear),
        pairs,
        temperature=temperature,
        sigma=sigma,
        detach_weights=detach_weights,
        weights=_for_every_view(weights, len(view_a)),
        reduction=reduction,
    )


def flat_nce(
    view_a: Matrix, view_b: Matrix, *, include_positive: bool = False, form: str = "log", **options: Any
) -> Nested:
    """FlatNCE with NT-Xent's pairs."""
    return _views(
        lambda row, p, q: flat_nce_row(row, p, q, "each", form, include_positive=include_positive),
        view_a,
        view_b,
        **options,
    )


def clip(
    image: Matrix,
    text: Matrix,
    *,
    logit_scale: Number,
    max_logit_scale: Number = 100.0,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """CLIP: mean of InfoNCE along the rows and along the columns."""
    scale = logit_scale if max_logit_scale is None else min(logit_scale, mpf(max_logit_scale))
    scores = score_matrix(image, text, similarity, scale, bilinear)
    return from_scores_clip(scores, mask=mask, weights=weights, reduction=reduction)


def siglip(
    image: Matrix,
    text: Matrix,
    *,
    logit_scale: Number,
    logit_bias: Number,
    negative_only: bool = False,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """SigLIP: every pair on its own, summed along the rows."""
    positives = [[False] * len(text) for _ in image] if negative_only else None
    logits = [[s + logit_bias for s in row] for row in score_matrix(image, text, similarity, logit_scale, bilinear)]
    return from_scores_logistic(logits, positives=positives, mask=mask, weights=weights, reduction=reduction)


def n_tuple(
    query: Matrix,
    key: Matrix,
    *,
    l2: Number = 0.0,
    temperature: Nested = 1.0,
    similarity: str = "dot",
    bilinear: Matrix | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """InfoNCE of embeddings of any length, and their squared lengths."""
    scores = score_matrix(query, key, similarity, inverse(temperature, len(query)), bilinear)
    pairs = pairs_of(len(query), len(key), mask=mask)
    losses = [
        info_nce_row(row, p, q, "each") + l2 * (dot(x, x) + dot(y, y)) if p else mpf(0)
        for row, (p, q), x, y in zip(scores, pairs, query, key, strict=True)
    ]
    return reduce_losses(losses, [len(p) for p, _ in pairs], weights, reduction)


def cpc(
    context: Matrix,
    targets: Nested,
    projections: Nested,
    *,
    temperature: Nested = 1.0,
    similarity: str = "dot",
    bilinear: Matrix | None = None,
    **options: Any,
) -> Nested:
    """CPC: a projection of the contexts for every step; mean of the steps."""
    steps = []
    for target, projection in zip(targets, projections, strict=True):
        predicted = [[dot(row, c) for row in projection] for c in context]
        scores = score_matrix(predicted, target, similarity, inverse(temperature, len(predicted)), bilinear)
        steps.append(from_scores_info_nce(scores, **options))
    return multiply(mpf(1) / len(steps), add(*steps))


def _latest(queue: Matrix, slots: int | None) -> Matrix:
    """Hold what a queue of so many slots keeps of all that was pushed; None for an array."""
    return _constant(queue if slots is None else queue[-slots:])


def moco(
    query: Matrix, key: Matrix, queue: Matrix, *, slots: int | None = None, mask: Nested = None, **options: Any
) -> Nested:
    """Negatives from the queue only, pushed in one go to a queue of so many slots, whose last ones they take."""
    rows = _latest(queue, slots)
    takes_part = [row[-len(rows) :] for row in mask] if mask else None
    return info_nce(query, key, rows, mask=takes_part, **options)


def moco_v3(
    query_a: Matrix, query_b: Matrix, key_a: Matrix, key_b: Matrix, *, temperature: Nested = 0.2, **options: Any
) -> Nested:
    """Queries of each view against keys of the other, times twice the temperature."""
    keys = {name: _constant(key) for name, key in (("b", key_b), ("a", key_a))}
    parts = (
        _multiplied(info_nce, query, key, temperature=temperature, by=temperature, **options)
        for query, key in ((query_a, keys["b"]), (query_b, keys["a"]))
    )
    return multiply(2, add(*parts))


def _multiplied(
    loss: Callable[..., Nested], *arrays: Nested, by: Nested, reduction: str = "mean", **options: Any
) -> Nested:
    """A loss times a number, or the loss of each row times its own; a mean does not divide by these."""
    if not isinstance(by, list):
        return multiply(mpf(by), loss(*arrays, reduction=reduction, **options))
    rows = [mpf(factor) * term for factor, term in zip(by, loss(*arrays, reduction="none", **options), strict=True)]
    if reduction == "none":
        return rows
    total, mean = (loss(*arrays, reduction=kind, **options) for kind in ("sum", "mean"))
    return mp.fsum(rows) if reduction == "sum" else mp.fsum(rows) * mean / total


def nnclr(
    view_a: Matrix,
    view_b: Matrix,
    support: Matrix,
    *,
    slots: int | None = None,
    negatives: str = "batch",
    symmetric: bool = False,
    temperature: Nested = 0.1,
    similarity: str = "cosine",
    **options: Any,
) -> Nested:
    """InfoNCE of the support row most similar to each row of the first view."""
    rows = _latest(support, slots)
    compare = SIMILARITIES[similarity]
    nearest = [rows[max(range(len(rows)), key=[compare(x, row) for row in rows].__getitem__)] for x in view_a]
    loss = nt_xent if negatives == "views" else partial(info_nce, symmetric=symmetric)
    return loss(nearest, view_b, temperature=temperature, similarity=similarity, **options)


def relic(
    view_a: Matrix,
    view_b: Matrix,
    *,
    keys: Nested = None,
    slots: int | None = None,
    temperature: Nested = 0.1,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """RELIC: InfoNCE, and the divergence of one view's distribution from the other's, of the views and a bank."""
    scale = inverse(temperature, len(view_a))
    bank = [] if keys is None else keys if slots is None else _latest(keys, slots)
    forward = score_matrix(view_a, view_b + bank, similarity, scale, bilinear)
    backward = score_matrix(view_b, view_a + bank, similarity, scale, bilinear)
    mask = [row[: len(view_a)] + row[len(row) - len(bank) :] for row in mask] if mask else None
    return reduce_relic(forward, backward, mask=mask, **options)


def proto_nce(
    embeddings: Matrix,
    prototypes: Matrix,
    assignments: list[int],
    concentrations: Row,
    *,
    prototypes_2: Nested = None,
    assignments_2: Nested = None,
    concentrations_2: Nested = None,
    key: Nested = None,
    queue: Nested = None,
    slots: int | None = None,
    temperature: Nested = 0.1,
    similarity: str = "cosine",
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """ProtoNCE: mean over one or two clusterings of the cross-entropy of the own prototype; InfoNCE of the keys."""
    clusterings = [(prototypes, assignments, concentrations)]
    if prototypes_2 is not None:
        clusterings.append((prototypes_2, assignments_2, concentrations_2))
    options: dict[str, Any] = {"weights": weights, "reduction": reduction}
    terms = []
    for centres, own, widths in clusterings:
        similarities = score_matrix(embeddings, _constant(centres), similarity, mpf(1))
        held = [_held(width) for width in widths]
        scores = [[s / width for s, width in zip(row, held, strict=True)] for row in similarities]
        terms.append(from_scores_info_nce(scores, positives=own, mask=mask, **options))
    loss = multiply(mpf(1) / len(terms), add(*terms))
    if key is None:
        return loss
    options |= {"temperature": temperature, "similarity": similarity}
    if queue is None:
        return add(loss, info_nce(embeddings, key, **options))
    return add(loss, moco(embeddings, key, queue, slots=slots, **options))


def concentrations(
    embeddings: Matrix,
    prototypes: Matrix,
    assignments: list[int],
    *,
    temperature: Nested = 0.1,
    smoothing: Number = 10.0,
    percentiles: tuple[Number, Number] = (10.0, 90.0),
) -> Row:
    """Widths of clusters: mean distance over log of the size, cut at two percentiles, scaled to a given mean."""
    with mp.workdps(DIGITS):
        embeddings, prototypes = exact(embeddings), exact(prototypes)
        members = [
            [v for v, own in zip(embeddings, assignments, strict=True) if own == r] for r in range(len(prototypes))
        ]
        raw = [
            -mp.fsum(neg_euclidean(v, centre) for v in own) / (len(own) * mp.log(len(own) + mpf(smoothing)))
            if len(own) > 1
            else None
            for own, centre in zip(members, prototypes, strict=True)
        ]
        largest = max(width for width in raw if width is not None)
        widths = [largest if width is None else width for width in raw]
        low, high = (percentile(widths, at) for at in percentiles)
        clipped = [min(max(width, low), high) for width in widths]
        return [width * mpf(temperature) / (mp.fsum(clipped) / len(clipped)) for width in clipped]


def percentile(numbers: Row, at: Number) -> Number:
    """Interpolate linearly between the two nearest of the sorted numbers."""
    position = mpf(at) / 100 * (len(numbers) - 1)
    below = int(mp.floor(position))
    ordered = sorted(numbers)
    return ordered[below] + (position - below) * (ordered[min(below + 1, len(numbers) - 1)] - ordered[below])


# --- losses of labelled embeddings ----------------------------------------------------------------------------------


def _columns_and_pairs(
    embeddings: Matrix,
    labels: list[int],
    mask: Nested,
    *,
    keys: Nested = None,
    key_labels: Nested = None,
    slots: int | None = None,
) -> tuple[Matrix, Pairs]:
    """The batch among itself, or keys, or what a queue of so many slots keeps of them."""
    if keys is None:
        return embeddings, label_pairs(labels, mask)
    if slots is None:
        return keys, label_pairs_of(labels, key_labels, mask)
    rows = _latest(keys, slots)
    takes_part = [row[-len(rows) :] for row in mask] if mask else None
    return rows, label_pairs_of(labels, key_labels[-len(rows) :], takes_part)


def _jaccard(a: Row, b: Row) -> Number:
    """How many labels two things share, of those that either has."""
    either = sum(p or q for p, q in zip(a, b, strict=True))
    return mpf(sum(p and q for p, q in zip(a, b, strict=True))) / either if either else mpf(0)


def supcon(
    embeddings: Matrix,
    labels: list[Any],
    *,
    keys: Nested = None,
    key_labels: Nested = None,
    slots: int | None = None,
    temperature: Nested = 0.1,
    base_temperature: Nested = None,
    multi_positive: str = "each",
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """SupCon: positive are the others of the same label, or the keys of it; or those that share labels, weighted."""
    if isinstance(labels[0], list):
        shares = [[_jaccard(a, b) for b in labels] for a in labels]
        size = range(len(labels))
        alone = [[i != j and (mask is None or mask[i][j]) for j in size] for i in size]
        return contrast(
            embeddings,
            objective="info_nce",
            positives=shares,
            multi_positive=multi_positive,
            temperature=temperature,
            similarity=similarity,
            bilinear=bilinear,
            mask=alone,
            weights=weights,
            reduction=reduction,
        )
    columns, pairs = _columns_and_pairs(embeddings, labels, mask, keys=keys, key_labels=key_labels, slots=slots)

    def loss(*, weights: Nested, reduction: str) -> Nested:
        return reduce_rows(
            score_matrix(embeddings, columns, similarity, inverse(temperature, len(embeddings)), bilinear),
            pairs,
            weights,
            reduction,
            lambda row, p, q: info_nce_row(row, p, q, multi_positive),
        )

    if base_temperature is None:
        return loss(weights=weights, reduction=reduction)
    each = temperature if isinstance(temperature, list) else [temperature]
    base = mpf(base_temperature)
    factors = [mpf(t) / base for t in each]
    by = factors if isinstance(temperature, list) else factors[0]
    return _multiplied(loss, by=by, weights=weights, reduction=reduction)


def nca(
    embeddings: Matrix,
    labels: list[int],
    *,
    temperature: Nested = 1.0,
    similarity: str = "neg_sq_euclidean",
    **options: Any,
) -> Nested:
    """NCA: the share of all that have the same label."""
    return supcon(
        embeddings, labels, temperature=temperature, similarity=similarity, multi_positive="pooled", **options
    )


def contrastive(
    embeddings: Matrix,
    labels: list[int],
    *,
    keys: Nested = None,
    key_labels: Nested = None,
    slots: int | None = None,
    similarity: str = "neg_euclidean",
    temperature: Nested = 1.0,
    bilinear: Matrix | None = None,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """Contrastive loss of all pairs."""
    columns, pairs = _columns_and_pairs(embeddings, labels, mask, keys=keys, key_labels=key_labels, slots=slots)
    return reduce_contrastive(
        score_matrix(embeddings, columns, similarity, inverse(temperature, len(embeddings)), bilinear), pairs, **options
    )


def triplet_from_labels(
    embeddings: Matrix,
    labels: list[int],
    *,
    keys: Nested = None,
    key_labels: Nested = None,
    slots: int | None = None,
    similarity: str = "neg_euclidean",
    temperature: Nested = 1.0,
    bilinear: Matrix | None = None,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """Triplet loss of triplets that the labels make."""
    columns, pairs = _columns_and_pairs(embeddings, labels, mask, keys=keys, key_labels=key_labels, slots=slots)
    return reduce_triplets(
        score_matrix(embeddings, columns, similarity, inverse(temperature, len(embeddings)), bilinear), pairs, **options
    )


def triplet(
    anchor: Matrix,
    positive: Matrix,
    negative: Matrix,
    *,
    margin: Number = 0.2,
    form: str = "margin",
    average: str = "all",
    similarity: str = "neg_euclidean",
    temperature: Nested = 1.0,
    bilinear: Matrix | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Triplet loss of given triplets."""
    mask = mask or [True] * len(anchor)
    losses = []
    scale = inverse(temperature, len(anchor))
    scales = scale if isinstance(scale, list) else [scale] * len(anchor)
    for takes_part, x, y, z, own_scale in zip(mask, anchor, positive, negative, scales, strict=True):
        ((own, other),) = score_matrix([x], [y, z], similarity, own_scale, bilinear)
        losses.append(triplet_term(-own, -other, margin, form) if takes_part else mpf(0))
    sizes = [int(takes_part and (average == "all" or loss > 0)) for takes_part, loss in zip(mask, losses, strict=True)]
    return reduce_losses(losses, sizes, weights, reduction)


def _of_pair_weights(pair_weights: Nested, positives: Nested, mask: Nested) -> tuple[Nested, Nested]:
    """The positives with their weights, and the pairs that take part."""
    if not pair_weights:
        return positives, mask
    positives = positives or [[i == j for j in range(len(row))] for i, row in enumerate(pair_weights)]
    weighted = [[w * p for w, p in zip(*rows, strict=True)] for rows in zip(pair_weights, positives, strict=True)]
    kept = [[part and w > 0 for part, w in zip(*rows, strict=True)] for rows in zip(mask, pair_weights, strict=True)]
    return weighted, kept


def _with_logs(scores: Matrix, pairs: Pairs, pair_weights: Nested) -> Matrix:
    """The scores, those of negatives with the logarithms of their weights."""
    if not pair_weights:
        return scores
    return [
        [s + mp.log(w) if j in negatives else s for j, (s, w) in enumerate(zip(row, own, strict=True))]
        for row, own, (_, negatives) in zip(scores, pair_weights, pairs, strict=True)
    ]


def contrast(
    x: Matrix,
    y: Nested = None,
    *,
    objective: str,
    pairing: str = "diagonal",
    labels: Nested = None,
    columns: Nested = None,
    positives: Nested = None,
    multi_positive: str = "each",
    smoothing: Number = 0,
    pair_weights: Nested = None,
    n_columns: int = 0,
    nu: Number = 1,
    query_mask: Nested = None,
    document_mask: Nested = None,
    temperature: Nested = 1.0,
    symmetric: bool = False,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """A named objective over a named pairing."""
    if similarity.startswith("max_sim"):
        normalize = similarity == "max_sim"
        scores = token_scores(x, y, inverse(temperature, len(x)), query_mask, document_mask, normalize=normalize)
    else:
        scores = score_matrix(x, x if y is None else y, similarity, inverse(temperature, len(x)), bilinear)
    mask = mask or [[True] * len(scores[0]) for _ in scores]
    if pairing == "labels":
        positives = [[a == b for b in columns or labels] for a in labels]
    if pairing == "labels" and columns is None:
        mask = [[takes_part and i != j for j, takes_part in enumerate(row)] for i, row in enumerate(mask)]
    if pairing == "smoothed":
        share = mpf(smoothing) / len(scores[0])
        positives = [[share + (1 - mpf(smoothing)) * (i == j) for j in range(len(row))] for i, row in enumerate(scores)]
    if pairing == "queue":
        mask = [
            [takes_part and (j == i or j >= len(mask)) for j, takes_part in enumerate(row)]
            for i, row in enumerate(mask)
        ]
    row_losses: Mapping[str, Callable[..., Number]] = {
        "info_nce": info_nce_row,
        "flat_nce": dcl_row,
        "info_nce_anchor": partial(anchored_row, n_columns=n_columns, nu=nu),
    }
    row_loss = row_losses[objective]
    positives, mask = _of_pair_weights(pair_weights, positives, mask)

    def reduced(matrix: Matrix, pairs: Pairs, pair_weights: Nested = pair_weights) -> Nested:
        matrix = _with_logs(matrix, pairs, pair_weights)
        return reduce_rows(
            matrix,
            pairs,
            weights,
            reduction,
            lambda row, p, q: row_loss(row, p, q, multi_positive),
            needs_negative=objective == "flat_nce",
        )

    if pairing == "two_views":
        return reduced(scores, view_pairs(len(x) // 2, mask))
    forward = reduced(scores, pairs_of(len(scores), len(scores[0]), positives, mask))
    if not symmetric:
        return forward
    turned = pairs_of(len(scores), len(scores[0]), transpose(positives) if positives else None, transpose(mask))
    backward = of_columns(x, x if y is None else y, similarity, inverse(temperature, len(x)), bilinear)
    return _half_sum(forward, reduced(backward, turned, pair_weights and transpose(pair_weights)))


# --- bounds ---------------------------------------------------------------------------------------------------------


def bounds_info_nce(scores: Matrix) -> Number:
    """Log of the number of columns minus InfoNCE."""
    return mp.log(len(scores[0])) - from_scores_info_nce(scores)


def bounds_info_nce_anchor(scores: Matrix, *, nu: Number = 1, form: str = "bound") -> Number:
    """The cross-entropy of n + 1 classes by Bayes' rule, of every set of n samples, and the entropy of the classes."""
    n, nu = mpf(len(scores[0]) - 1), mpf(nu)
    entropy = -n * mp.log(1 / (n + nu)) / (n + nu) - nu * mp.log(nu / (n + nu)) / (n + nu)
    losses = []
    for i, row in enumerate(scores):
        ratios = [mp.exp(s) for s in row]
        noise = [j for j in range(len(row)) if j != i]
        shown = [[i, *(j for j in noise if j != m)] for m in noise]
        paired = mean([-mp.log(ratios[i] / (nu + mp.fsum(ratios[j] for j in those))) for those in shown])
        anchored = -mp.log(nu / (nu + mp.fsum(ratios[j] for j in noise)))
        losses.append((n * paired + nu * anchored) / (n + nu))
    bound = (n + nu) * (entropy - mean(losses)) / n
    return bound if form == "bound" else _instead(mean(_diagonal(scores)), bound)


def bounds_dual(scores: Matrix, u: Row) -> Number:
    """Lemma 3.3 of the FlatNCE paper: mean of 1 - u - exp(-u) times the mean of the exponentials of the contrasts."""
    terms = [
        1 - u[i] - mp.exp(-u[i]) * mp.fsum(mp.exp(s - row[i]) for j, s in enumerate(row) if j != i) / (len(row) - 1)
        for i, row in enumerate(scores)
    ]
    return mp.fsum(terms) / len(terms)


def bounds_dual_critic(scores: Matrix, *, include_positive: bool = False) -> Row:
    """The u that maximises the dual bound, without or with the positive among the sums."""
    result = []
    for i, row in enumerate(scores):
        contrasts = [mp.exp(s - row[i]) for j, s in enumerate(row) if include_positive or j != i]
        result.append(mp.log(mp.fsum(contrasts) / len(contrasts)))
    return result


def bounds_fdv(scores: Matrix) -> Number:
    """Value of the InfoNCE bound, gradient of the mean of minus the log of the odds against the positive."""
    return _instead(bounds_info_nce(scores), -from_scores_flat_nce(scores))


def bounds_dv(scores: Matrix) -> Number:
    """Donsker-Varadhan: mean of the scores of pairs, minus log of the mean of the exponentials of the others."""
    return mean(_diagonal(scores)) - mp.log(mean([mp.exp(s) for s in _off_diagonal(scores)]))


def bounds_mine(scores: Matrix, log_mean: Number = None, *, rate: Number = 0.01) -> Number:
    """Donsker-Varadhan, with a moving average in the denominator of the gradient; without the new average."""
    now = mean([mp.exp(s) for s in _off_diagonal(scores)])
    average = now if log_mean is None else (1 - rate) * mp.exp(log_mean) + rate * now
    return _instead(bounds_dv(scores), mean(_diagonal(scores)) - now / _held(average))


def bounds_nwj(scores: Matrix) -> Number:
    """Nguyen, Wainwright and Jordan: mean of the scores of pairs, minus the mean of exp(g - 1) of the others."""
    return mean(_diagonal(scores)) - mean([mp.exp(s - 1) for s in _off_diagonal(scores)])


def bounds_tuba(scores: Matrix, log_baseline: Nested) -> Number:
    """Equation 8 of Poole et al.: 1 + mean of log(e^g / a) of pairs, minus the mean of e^g / a of the others."""
    a = _baseline(scores, log_baseline)
    own = [mp.log(mp.exp(row[i]) / a[i]) for i, row in enumerate(scores)]
    return 1 + mean(own) - mean([mp.exp(s) / a[i] for i, row in enumerate(scores) for j, s in enumerate(row) if j != i])


def bounds_interpolated(scores: Matrix, log_baseline: Nested, *, alpha: Number) -> Number:
    """Equation 13 of Poole et al.: the baseline mixed with the mean over the row without one of its entries."""
    a = _baseline(scores, log_baseline)
    first, second = [], []
    for i, row in enumerate(scores):
        mixed = [
            alpha * mean([mp.exp(s) for m, s in enumerate(row) if m != j]) + (1 - alpha) * a[i] for j in range(len(row))
        ]
        first += [mp.log(mp.exp(row[i]) / mixed[j]) for j in range(len(row)) if j != i]
        second += [mp.exp(s) / mixed[i] for j, s in enumerate(row) if j != i]
    return 1 + mean(first) - mean(second)


def bounds_js(scores: Matrix) -> Number:
    """The logarithms of the probabilities, a logistic function of the scores, that pairs and others are called so."""
    pairs = [mp.log(1 / (1 + mp.exp(-s))) for s in _diagonal(scores)]
    return mean(pairs) + mean([mp.log(1 / (1 + mp.exp(s))) for s in _off_diagonal(scores)])


def bounds_js_mi(scores: Matrix) -> Number:
    """Value of Nguyen, Wainwright and Jordan at the scores plus 1, gradient of Jensen and Shannon."""
    return _instead(bounds_nwj([[s + 1 for s in row] for row in scores]), bounds_js(scores))


def bounds_smile(scores: Matrix, *, clip: Nested = 5.0) -> Number:
    """Donsker-Varadhan with the scores of the others between two limits, gradient of Jensen and Shannon."""
    others = [s if clip is None else min(max(s, -clip), clip) for s in _off_diagonal(scores)]
    value = mean(_diagonal(scores)) - mp.log(mean([mp.exp(s) for s in others]))
    return _instead(value, bounds_js(scores))


def bounds_club(scores: Matrix) -> Number:
    """Mean log-density of the pairs minus that of the others."""
    return mean(_diagonal(scores)) - mean(_off_diagonal(scores))


def bounds_leave_one_out(scores: Matrix, *, mask: Nested = None) -> Number:
    """Log-density of each y given its x, over the mean of its densities given the other x."""
    _, columns = rows_of(transpose(scores), None, mask and transpose(mask))
    return mean([mp.log(mp.exp(own) / mean([mp.exp(s) for s in others])) for own, *others in columns])


def bounds_barber_agakov(scores: Nested, entropy: Number) -> Number:
    """Entropy plus the mean log-density of the pairs, given alone or on the diagonal."""
    return entropy + mean(_diagonal(scores) if isinstance(scores[0], list) else scores)


def bounds_vub(scores: Nested, log_marginal: Row) -> Number:
    """Mean log of the conditional over the marginal density of the pairs."""
    pairs = _diagonal(scores) if isinstance(scores[0], list) else scores
    return mean([mp.log(mp.exp(p) / mp.exp(r)) for p, r in zip(pairs, log_marginal, strict=True)])


BY_ROWS = frozenset(
    ("info_nce", "info_nce_anchor", "dual", "fdv", "nwj", "tuba", "interpolated", "js", "js_mi", "club")
)
"""The bounds that are the mean over the rows of the bounds of each."""


def rows_of(scores: Matrix, positives: Nested, mask: Nested) -> tuple[list[int], list[Row]]:
    """The rows that have a positive and a negative, and of each the scores of these, the positive first."""
    kept, rows = [], []
    for i, row in enumerate(scores):
        own = i if positives is None else int(positives[i])
        takes_part = [True] * len(row) if mask is None else mask[i]
        negatives = [s for j, s in enumerate(row) if takes_part[j] and j != own]
        if takes_part[own] and negatives:
            kept.append(i)
            rows.append([row[own], *negatives])
    return kept, rows


def maskable(bound: Callable[..., Nested]) -> Callable[..., Nested]:
    """A bound that takes positives and a mask too: of the rows that count, each with its own negatives."""
    name = bound.__name__.removeprefix("bounds_")

    @wraps(bound)
    def of_some(
        scores: Matrix, *others: Nested, positives: Nested = None, mask: Nested = None, **options: Any
    ) -> Nested:
        if positives is None and mask is None:
            return bound(scores, *others, **options)
        kept, rows = rows_of(scores, positives, mask)
        if name == "dual_critic":
            critics = {i: bound([row], **options)[0] for i, row in zip(kept, rows, strict=True)}
            return [critics.get(i, mpf(0)) for i in range(len(scores))]
        if name in BY_ROWS:
            return mean(
                [
                    bound([row], *([x[i]] if isinstance(x, list) else x for x in others), **options)
                    for i, row in zip(kept, rows, strict=True)
                ]
            )
        # The mean over the rows of the means over their negatives is that over copies, as many in each row.
        copies = len(rows) * math.lcm(*(len(row) - 1 for row in rows))
        repeated = [(row[0], row[1:] * (copies // (len(row) - 1))) for row in rows]
        whole = [[*some[:i], own, *some[i:]] for i, (own, some) in enumerate(repeated)]
        return bound(whole, *others, **options)

    return of_some


def mean(numbers: Row) -> Number:
    """Arithmetic mean."""
    return mp.fsum(numbers) / len(numbers)


def _diagonal(scores: Matrix) -> Row:
    """List the scores of the pairs."""
    return [row[i] for i, row in enumerate(scores)]


def _off_diagonal(scores: Matrix) -> Row:
    """List the scores of all that are no pairs."""
    return [s for i, row in enumerate(scores) for j, s in enumerate(row) if j != i]


def _baseline(scores: Matrix, log_baseline: Nested) -> Row:
    """The baseline of every row, given for each or once for all."""
    each = log_baseline if isinstance(log_baseline, list) else [log_baseline]
    return [mp.exp(b) for b in (each * len(scores) if len(each) == 1 else each)]


def _instead(value: Number, surrogate: Number) -> Number:
    """The value of one function with the gradient of another."""
    return _held(value) + surrogate - _held(surrogate)


# --- densities ------------------------------------------------------------------------------------------------------


def density_local_nce(
    data_scores: Row,
    noise_scores: Matrix,
    data_log_q: Row,
    noise_log_q: Nested,
    *,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Minus the logs of the probabilities, e^s / (e^s + k q), that data are data, and their rests for the noise."""
    losses = []
    for s, own_q, samples in zip(data_scores, data_log_q, _samples(noise_scores, noise_log_q, mask), strict=True):
        k = len(samples)
        loss = -mp.log(mp.exp(s) / (mp.exp(s) + k * mp.exp(own_q)))
        losses.append(loss - mp.fsum(mp.log(k * mp.exp(q) / (mp.exp(t) + k * mp.exp(q))) for t, q in samples))
    return reduce_losses(losses, [1] * len(losses), weights, reduction)


def density_negative_sampling(
    data_scores: Row, noise_scores: Matrix, *, mask: Nested = None, weights: Nested = None, reduction: str = "mean"
) -> Nested:
    """Minus log of the logistic function of the data's score, and of minus the noise's."""
    losses = [
        logistic_row([s, *(t for t, _ in samples)], [0], list(range(1, len(samples) + 1)))
        for s, samples in zip(data_scores, _samples(noise_scores, None, mask), strict=True)
    ]
    return reduce_losses(losses, [1] * len(losses), weights, reduction)


def density_ranking_nce(
    data_scores: Row,
    noise_scores: Matrix,
    data_log_q: Nested = None,
    noise_log_q: Nested = None,
    *,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Minus log of the data's share of the ratios e^s / q of data and noise."""
    data_log_q = data_log_q or [mpf(0)] * len(data_scores)
    losses = []
    for s, own_q, samples in zip(data_scores, data_log_q, _samples(noise_scores, noise_log_q, mask), strict=True):
        own = mp.exp(s) / mp.exp(own_q)
        losses.append(-mp.log(own / (own + mp.fsum(mp.exp(t) / mp.exp(q) for t, q in samples))))
    return reduce_losses(losses, [1] * len(losses), weights, reduction)


def density_info_nce_anchor(
    data_scores: Row,
    noise_scores: Matrix,
    data_log_q: Nested,
    noise_log_q: Nested,
    *,
    nu: Number = 1,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Minus logs of posteriors: of the data among all samples but one, in turn, and of the anchor among all samples."""
    losses, sizes = [], []
    for s, own_q, samples in zip(data_scores, data_log_q, _samples(noise_scores, noise_log_q, mask), strict=True):
        own, ratios = mp.exp(s) / mp.exp(own_q), [mp.exp(t) / mp.exp(q) for t, q in samples]
        sizes.append(len(ratios) > 0)
        if not ratios:
            losses.append(mpf(0))
            continue
        others = [mp.fsum(ratios[:m] + ratios[m + 1 :]) for m in range(len(ratios))]
        paired = mean([-mp.log(own / (own + nu + rest)) for rest in others])
        losses.append(paired - nu * mp.log(nu / (nu + mp.fsum(ratios))) / len(ratios))
    return reduce_losses(losses, sizes, weights, reduction)


def density_log_partition(noise_scores: Matrix, noise_log_q: Nested, *, mask: Nested = None) -> Row:
    """Log of the mean of the importance weights e^s / q."""
    return [
        mp.log(mean([mp.exp(t) / mp.exp(q) for t, q in samples]))
        for samples in _samples(noise_scores, noise_log_q, mask)
    ]


def density_sampled_softmax(
    data_scores: Row,
    noise_scores: Matrix,
    data_log_q: Nested,
    noise_log_q: Nested,
    *,
    include_positive: bool = True,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Minus log of e^s over the mean of the importance weights, of the data too unless they are left out."""
    losses = []
    for i, samples in enumerate(_samples(noise_scores, noise_log_q, mask)):
        drawn = [*samples, *([(data_scores[i], data_log_q[i])] if include_positive else [])]
        losses.append(-mp.log(mp.exp(data_scores[i]) / mean([mp.exp(t) / mp.exp(q) for t, q in drawn])))
    return reduce_losses(losses, [1] * len(losses), weights, reduction)


def density_full_softmax(scores: Matrix, targets: list[int], **options: Any) -> Nested:
    """Minus log of the target's share of all exponentials."""
    return from_scores_info_nce(scores, positives=targets, **options)


def density_recover_log_prob(scores: Matrix, log_q: Nested) -> Row:
    """Log of q e^g over its sum; of all contexts in one list."""
    rows = [[mp.exp(g) * mp.exp(q) for g, q in samples] for samples in _samples(scores, log_q)]
    return [mp.log(p / mp.fsum(row)) for row in rows for p in row]


def density_self_normalization(scores: Matrix, log_q: Nested = None, *, mask: Nested = None, field: str) -> Number:
    """Mean or standard deviation over contexts of log Z, or the mean number of samples that carry it."""
    rows = [[mp.exp(t) / mp.exp(q) for t, q in samples] for samples in _samples(scores, log_q, mask)]
    log_z = [mp.log(mp.fsum(row) / (1 if log_q is None else len(row))) for row in rows]
    if field == "mean":
        return mean(log_z)
    if field == "std":
        return mp.sqrt(mean([z * z for z in log_z]) - mean(log_z) ** 2)
    if log_q is None:
        return mean([mpf(len(row)) for row in rows])
    return mean([mp.fsum(row) ** 2 / mp.fsum(w * w for w in row) for row in rows])


def _samples(scores: Matrix, log_q: Nested, mask: Nested = None) -> list[list[tuple[Number, Number]]]:
    """Score and log-density of every sample that takes part, by context."""
    if log_q is None:
        log_q = [mpf(0)] * len(scores[0])
    if not isinstance(log_q[0], list):
        log_q = [log_q] * len(scores)
    mask = mask or [[True] * len(row) for row in scores]
    return [
        [(s, q) for s, q, takes_part in zip(*rows, strict=True) if takes_part]
        for rows in zip(scores, log_q, mask, strict=True)
    ]


# --- diagnostics ----------------------------------------------------------------------------------------------------


def diagnostics_headroom(scores: Matrix, *, positives: Nested = None, mask: Nested = None) -> Number:
    """The mean over the rows of what the bound could still show."""
    _, rows = rows_of(scores, positives, mask)
    return mean([mp.log(len(row)) - bounds_info_nce([row]) for row in rows])


def diagnostics_alignment(x: Matrix, y: Matrix, *, power: Number = 2.0, weights: Nested = None) -> Number:
    """Mean power of the distance of the pairs on the unit sphere."""
    apart = [-neg_sq_euclidean(unit(a), unit(b)) for a, b in zip(x, y, strict=True)]
    return reduce_losses([mp.sqrt(d) ** mpf(power) for d in apart], [1] * len(x), weights, "mean")


def diagnostics_uniformity(x: Matrix, *, t: Number = 2.0) -> Number:
    """Log of the mean over all others of the Gaussian kernel of the distance on the unit sphere."""
    kernel = [[mp.exp(mpf(t) * neg_sq_euclidean(unit(a), unit(b))) for b in x] for a in x]
    return mp.log(mean(_off_diagonal(kernel)))


def two_tower(
    query: Matrix,
    candidate: Matrix,
    negative_candidates: Nested = None,
    *,
    ids: Nested = None,
    negative_ids: Nested = None,
    log_q: Nested = None,
    negative_log_q: Nested = None,
    temperature: Nested = 1.0,
    similarity: str = "dot",
    bilinear: Matrix | None = None,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """Softmax over the candidates of a batch and some more, less log q, without those that are the positive again."""
    columns = [*candidate, *(negative_candidates or [])]
    names = list(range(len(columns))) if ids is None else [*ids, *(negative_ids or [])]
    shift = [0] * len(columns) if log_q is None else [*log_q, *(negative_log_q or [])]
    scores = [
        [score - own for score, own in zip(row, shift, strict=True)]
        for row in score_matrix(query, columns, similarity, inverse(temperature, len(query)), bilinear)
    ]
    takes_part = [
        [(i == j or names[i] != names[j]) and (mask is None or mask[i][j]) for j in range(len(columns))]
        for i in range(len(query))
    ]
    return from_scores_info_nce(scores, mask=takes_part, **options)


def hcl(
    view_a: Matrix,
    view_b: Matrix,
    *,
    temperature: Nested = 0.5,
    beta: Number = 1,
    tau_plus: Number = 0.1,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Contrastive loss with negatives that are weighted by powers of themselves, and debiased."""
    beta, tau_plus = mpf(beta), mpf(tau_plus)
    stacked = view_a + view_b
    inverses = inverse(temperature, len(stacked))
    scores = score_matrix(stacked, stacked, similarity, inverses, bilinear)
    floors = [-_held(x) for x in (inverses if isinstance(inverses, list) else [inverses] * len(stacked))]
    losses, counts = [], []
    for row, (p, q), floor in zip(scores, view_pairs(len(view_a), mask), floors, strict=True):
        counts.append(bool(p))
        if not p or not q:
            losses.append(mpf(0))
            continue
        positive = mp.fsum(mp.exp(row[j]) for j in p)
        importance = [mp.exp(beta * row[j]) for j in q]
        weighted = mp.fsum(w * mp.exp(row[j]) for w, j in zip(importance, q, strict=True))
        negatives = len(q) * weighted / mp.fsum(importance)
        negatives = (negatives - tau_plus * len(q) * positive) / (1 - tau_plus)
        if similarity == "cosine" and bilinear is None:
            negatives = max(negatives, len(q) * mp.exp(floor))
        losses.append(mp.log(1 + max(negatives, 0) / positive))
    return reduce_losses(losses, counts, _for_every_view(weights, len(view_a)), reduction)


def sogclr(
    query: Matrix,
    key: Matrix,
    log_u: Row,
    *,
    gamma: Number = 0.9,
    temperature: Nested = 0.1,
    rho: Nested = None,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Logarithm of a moving average of the mean of the contrasts' exponentials, which is a constant but for these."""
    scores = score_matrix(query, key, similarity, inverse(temperature, len(query)), bilinear)
    each = temperature if isinstance(temperature, list) else [temperature] * len(query)
    losses, counts = [], []
    pairs = pairs_of(len(query), len(key), None, mask)
    for row, (p, q), memory, own in zip(scores, pairs, log_u, each, strict=True):
        counts.append(bool(p) and bool(q))
        if not counts[-1]:
            losses.append(mpf(0))
            continue
        mean = mp.fsum(mp.exp(row[j] - row[p[0]]) for j in q) / len(q)
        average = mean if memory == -mp.inf else (1 - mpf(gamma)) * mp.exp(memory) + mpf(gamma) * mean
        loss = _instead(mp.log(average), mean / _held(average))
        losses.append(loss if rho is None else mpf(own) * (loss + mpf(rho)))
    return reduce_losses(losses, counts, weights, reduction)


def joint_info_nce(
    query: Matrix,
    key: Matrix,
    *,
    directions: Sequence[str] = ("query_to_key", "query_to_query", "key_to_query", "key_to_key"),
    temperature: Nested = 0.01,
    similarity: str = "cosine",
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Minus the log of the positive's share of all that query i, and key i, are compared with."""
    sides = {"query": query, "key": key}
    scores = {
        f"{a}_to_{b}": score_matrix(sides[a], sides[b], similarity, inverse(temperature, len(query)))
        for a in sides
        for b in sides
    }
    losses, counts = [], []
    for i in range(len(query)):
        counts.append(mask is None or bool(mask[i][i]))
        positive = mp.exp(scores["query_to_key"][i][i])
        others = [j for j in range(len(query)) if j != i and (mask is None or mask[i][j])]
        total = positive + mp.fsum(mp.exp(scores[name][i][j]) for name in directions for j in others)
        losses.append(-mp.log(positive / total) if counts[-1] else mpf(0))
    return reduce_losses(losses, counts, weights, reduction)


def distillation(
    query: Matrix,
    key: Matrix,
    teacher_query: Matrix,
    teacher_key: Matrix,
    *,
    teacher_temperature: Nested = 0.07,
    symmetric: bool = False,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """Cross-entropy with the shares of a teacher's exponentials, or its cosines brought between 0 and 1."""

    def one_side(x: Matrix, y: Matrix, of_x: Matrix, of_y: Matrix, mask: Nested) -> Nested:
        cosines = score_matrix(of_x, of_y, "cosine", mpf(1))
        if teacher_temperature is None:
            targets = [[(1 + c) / 2 for c in row] for row in cosines]
        else:
            targets = [[mp.exp(c / mpf(teacher_temperature)) for c in row] for row in cosines]
        return info_nce(x, y, positives=targets, mask=mask, **options)

    forward = one_side(query, key, teacher_query, teacher_key, mask)
    if not symmetric:
        return forward
    return _half_sum(forward, one_side(key, query, teacher_key, teacher_query, transpose(mask) if mask else None))


def gist_embed(
    query: Matrix,
    key: Matrix,
    guide_query: Matrix,
    guide_key: Matrix,
    *,
    margin: Number = 0,
    margin_strategy: str = "absolute",
    symmetric: bool = False,
    temperature: Nested = 0.01,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """InfoNCE without negatives that the guide scores above the positive, less a margin."""

    def one_side(x: Matrix, y: Matrix, of_x: Matrix, of_y: Matrix, mask: Nested) -> Nested:
        cosines = score_matrix(of_x, of_y, "cosine", mpf(1))
        limits = [cosines[i][i] for i in range(len(x))]
        limits = [c - mpf(margin) * (1 if margin_strategy == "absolute" else abs(c)) for c in limits]
        allowed = [[i == j or c <= limits[i] for j, c in enumerate(row)] for i, row in enumerate(cosines)]
        if mask:
            allowed = [[a and b for a, b in zip(*rows, strict=True)] for rows in zip(allowed, mask, strict=True)]
        return info_nce(x, y, mask=allowed, temperature=temperature, **options)

    forward = one_side(query, key, guide_query, guide_key, mask)
    if not symmetric:
        return forward
    return _half_sum(forward, one_side(key, query, guide_key, guide_query, transpose(mask) if mask else None))


def from_scores_cosent(
    scores: Row, grades: Row, *, scale: Number = 20.0, mask: Nested = None, weights: Nested = None
) -> Number:
    """The logarithm of 1 and the sum over all pairs of rows of which the first has the higher grade."""
    live = [k for k in range(len(scores)) if mask is None or mask[k]]
    weights = [mpf(1)] * len(scores) if weights is None else weights
    terms = [
        weights[i] * weights[j] * mp.exp(mpf(scale) * (scores[j] - scores[i]))
        for i in live
        for j in live
        if grades[i] > grades[j]
    ]
    return mp.log1p(mp.fsum(terms))


def cosent(
    x: Matrix, y: Matrix, grades: Row, *, similarity: str = "cosine", bilinear: Matrix | None = None, **options: Any
) -> Number:
    """CoSENT: the similarity of the embeddings of each pair."""
    scores = [score_matrix([a], [b], similarity, mpf(1), bilinear)[0][0] for a, b in zip(x, y, strict=True)]
    return from_scores_cosent(scores, grades, **options)


def angle_similarity(x: Row, y: Row) -> Number:
    """The parts of all quotients of complex components, each over the length of the divisor, as AnglE's code has it."""
    if len(x) % 2:
        x, y = [*x, mpf(0)], [*y, mpf(0)]
    half = len(x) // 2
    a, b, c, d = x[:half], x[half:], y[:half], y[half:]
    z = dot(c, c) + dot(d, d)
    ratio = mp.sqrt(dot(a, a) + dot(b, b)) / mp.sqrt(z)
    real = [(p * r + q * s) / z / ratio for p, q, r, s in zip(a, b, c, d, strict=True)]
    imaginary = [(q * r - p * s) / z / ratio for p, q, r, s in zip(a, b, c, d, strict=True)]
    return abs(mp.fsum(real + imaginary))


def angle(x: Matrix, y: Matrix, grades: Row, **options: Any) -> Number:
    """CoSENT of AnglE's similarities."""
    return from_scores_cosent([angle_similarity(a, b) for a, b in zip(x, y, strict=True)], grades, **options)


UNMASKED = {"leave_one_out", "barber_agakov", "vub"}
"""Bounds without positives and a mask, or with a meaning of their own."""

ORACLES: Mapping[str, Callable[..., Nested]] = {
    **{name: function for name, function in globals().items() if name in pnce.__all__},
    **{
        f"{topic}.{name}": maskable(function) if topic == "bounds" and name not in UNMASKED else function
        for topic in ("from_scores", "bounds", "density", "diagnostics")
        for name in getattr(pnce, topic).__all__
        if (function := globals().get(f"{topic}_{name}")) is not None
    },
    "soft_nearest_neighbor": nca,
    "from_scores.supcon": from_scores_info_nce,
    "bounds.flo": maskable(bounds_dual),
}
"""The oracle of every loss, by its public name: a function of that name, after its topic."""


# --- evaluation -----------------------------------------------------------------------------------------------------


def evaluate(loss: str, arguments: Mapping[str, Nested], options: Mapping[str, Any]) -> Nested:
    """Give the value of a loss at arguments given by name as nested lists; what only concerns execution is ignored."""
    with mp.workdps(DIGITS):
        function = ORACLES[loss]
        known = inspect.signature(function).parameters
        named = {name: exact(value) for name, value in {**arguments, **options}.items() if name != "block_size"}
        positional = [named.pop(name) for name in list(known) if known[name].kind is POSITIONAL and name in named]
        return function(*positional, **named)


POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def value_and_gradients(
    loss: str, arguments: Mapping[str, Nested], options: Mapping[str, Any]
) -> tuple[Nested, dict[str, Nested]]:
    """Give value and gradients (of the sum, where the value is a vector) by central differences."""
    with _noted(), mp.workdps(DIGITS):
        value = evaluate(loss, arguments, options)

        def gradient(name: str) -> Nested:
            return differences(
                lambda nested: _moved(loss, {**arguments, name: nested}, options), exact(arguments[name])
            )

        return value, {name: gradient(name) for name in arguments}


def value_and_slope(case: Case, direction: Mapping[str, Nested]) -> tuple[Nested, Number]:
    """Give the value of a case, and the slope (of the sum, where the value is a vector) in a direction of arguments."""
    options = {**case.constants, **case.options}
    with _noted(), mp.workdps(DIGITS):
        value = evaluate(case.loss, case.arguments, options)

        def along(step: Number) -> Number:
            moved = {name: _plus(exact(case.arguments[name]), exact(way), step) for name, way in direction.items()}
            return _moved(case.loss, {**case.arguments, **moved}, options)

        return value, differences(along, mpf(0))


def _plus(x: Nested, way: Nested, step: Number) -> Nested:
    """Move nested numbers by steps of a direction."""
    return [_plus(a, b, step) for a, b in zip(x, way, strict=True)] if isinstance(x, list) else x + step * way


@contextmanager
def _noted() -> Iterator[None]:
    """Note what sg(.) holds in the first evaluation, and play it back in those that come after."""
    _held.values, _held.position = [], 0
    try:
        yield
    finally:
        _held.values = None


def _moved(loss: str, arguments: Mapping[str, Nested], options: Mapping[str, Any]) -> Number:
    """Give the sum of a loss at other arguments, with what sg(.) holds as at the first."""
    _held.position = 0
    result = evaluate(loss, arguments, options)
    return mp.fsum(result) if isinstance(result, list) else result


def differences(function: Callable[[Nested], Number], at: Nested) -> Nested:
    """Differentiate with respect to every number of a nested list."""
    if not isinstance(at, list):
        return (function(at + STEP) - function(at - STEP)) / (2 * STEP)

    def one(i: int) -> Nested:
        return differences(lambda item: function([*at[:i], item, *at[i + 1 :]]), at[i])

    return [one(i) for i in range(len(at))]


_results: dict[tuple[str, ...], tuple[Nested, dict[str, Nested]]] = {}


def case_value_and_gradients(case: Case) -> tuple[Nested, dict[str, Nested]]:
    """Give value and gradients of a case; cases that differ in their execution only share them."""
    options = {name: value for name, value in case.options.items() if name != "block_size"}
    key = (case.loss, repr(case.arguments), repr(case.constants), repr(options))
    if key not in _results:
        _results[key] = value_and_gradients(case.loss, case.arguments, {**case.constants, **options})
    return _results[key]


# --- measuring ------------------------------------------------------------------------------------------------------


def error(got: Nested, wanted: Nested, smallest: float = 0.0) -> float:
    """Give the largest difference relative to the largest magnitude that is wanted; infinite if a NaN turns up.

    Below the smallest number of full precision, numbers are no closer together than there.
    """
    pairs = list(zip(numbers_of(got), numbers_of(wanted), strict=True))
    with mp.workdps(DIGITS):
        differences_ = [abs(mpf(a) - b) for a, b in pairs]
        if any(mp.isnan(d) for d in differences_):
            return float("inf")
        worst, scale = max(differences_), max(smallest, *(abs(mpf(b)) for _, b in pairs))
        return float(worst / scale) if scale else (0.0 if worst == 0 else float("inf"))


def entrywise_error(got: Nested, wanted: Nested, smallest: float) -> float:
    """Give the largest relative error of the entries whose wanted magnitude reaches the smallest; infinite for NaN."""
    with mp.workdps(60):  # fifty of them may be asked for
        errors = [
            abs(a - b) / abs(b) for a, b in zip(numbers_of(got), numbers_of(wanted), strict=True) if abs(b) >= smallest
        ]
        return float("inf") if any(mp.isnan(e) for e in errors) else float(max(errors, default=mpf(0)))


def numbers_of(nested: Nested) -> list[Number]:
    """List the numbers of a nested list."""
    return [n for item in nested for n in numbers_of(item)] if isinstance(nested, (list, tuple)) else [nested]


# --- closed forms: the gradient column of the tables, for positives on the diagonal ---------------------------------


Key: TypeAlias = tuple[tuple[Any, ...], ...]


def _key(scores: Matrix) -> Key:
    """Make a matrix hashable: several losses of the same scores share the exponentials."""
    return tuple(map(tuple, scores))


@cache
def _contrasts(scores: Key) -> tuple[Matrix, Row]:
    """Give exp(g_ij - g_ii), and of every row the sum without the diagonal: the odds against the positive."""
    with mp.workdps(DIGITS):
        matrix = [[mp.exp(s - row[i]) for s in row] for i, row in enumerate(exact(scores))]
        return matrix, [mp.fsum(c for j, c in enumerate(row) if j != i) for i, row in enumerate(matrix)]


@cache
def _flat_nce_score_gradient(scores: Key) -> Matrix:
    with mp.workdps(DIGITS):
        return [
            [(-1 if j == i else c / odds) / mpf(len(scores)) for j, c in enumerate(row)]
            for i, (row, odds) in enumerate(zip(*_contrasts(scores), strict=True))
        ]


@cache
def _info_nce_score_gradient(scores: Key) -> Matrix:
    with mp.workdps(DIGITS):
        return _scaled([odds / (1 + odds) for odds in _contrasts(scores)[1]], _flat_nce_score_gradient(scores))


def _scaled(factors: Row, matrix: Matrix) -> Matrix:
    """Multiply every row by its factor."""
    return [[factor * entry for entry in row] for factor, row in zip(factors, matrix, strict=True)]


def diagonal_info_nce(scores: Matrix) -> Number:
    """InfoNCE, mean over rows: sp(u)."""
    with mp.workdps(DIGITS):
        return mp.fsum(mp.log(1 + odds) for odds in _contrasts(_key(scores))[1]) / len(scores)


def diagonal_flat_nce(scores: Matrix) -> Number:
    """FlatNCE, mean over rows: u."""
    with mp.workdps(DIGITS):
        return mp.fsum(mp.log(odds) for odds in _contrasts(_key(scores))[1]) / len(scores)


def info_nce_score_gradient(scores: Matrix) -> Matrix:
    """InfoNCE, mean over rows: sigma(u) (W - 1_pos) / N."""
    return _info_nce_score_gradient(_key(scores))


def flat_nce_score_gradient(scores: Matrix) -> Matrix:
    """FlatNCE, mean over rows: (W - 1_pos) / N."""
    return _flat_nce_score_gradient(_key(scores))


def dual_score_gradient(scores: Matrix, u: Row) -> Matrix:
    """Dual bound: R (1_pos - W) / K with R = exp(neg - pos - u) / (N - 1)."""
    with mp.workdps(DIGITS):
        ratios = [
            odds * mp.exp(-critic) / (len(scores[0]) - 1)
            for odds, critic in zip(_contrasts(_key(scores))[1], exact(u), strict=True)
        ]
        return _scaled([-ratio for ratio in ratios], flat_nce_score_gradient(scores))
