"""Independent oracles: the published sums, spelled out over lists of mpmath numbers.

Nothing is optimised for accuracy or speed, and nothing but names is shared with the library: every loss is the quotient
of sums in its paper, in enough digits to make cancellation harmless. Gradients are central differences in the same
digits, or, with respect to scores, closed forms.

Keywords have the names, defaults and meanings of the library.
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
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .cases import Case

Number: TypeAlias = Any
Nested: TypeAlias = Any
Row: TypeAlias = list[Any]
Matrix: TypeAlias = list[list[Any]]
Compare: TypeAlias = "Callable[[Row, Row], Number]"
Similarity: TypeAlias = "str | Compare"  # a name in SIMILARITIES, or a function
RowLoss: TypeAlias = "Callable[..., Number]"  # from the scores of a row, its positives and its negatives
Samples: TypeAlias = list[tuple[Any, Any]]  # score and log-density of each sample

DIGITS = 120
"""Decimal digits: a difference of two losses of 1e-35 at points 1e-27 apart keeps fifty of them."""

STEP = mpf(10) ** -27
"""Step of the central differences; their error is of the order of its square."""


def exact(nested: Nested) -> Nested:
    """Convert the floats of a nested list to mpf; keep integers and booleans."""
    if isinstance(nested, Sequence) and not isinstance(nested, str):
        return [exact(item) for item in nested]
    return mpf(nested) if isinstance(nested, float) else nested


def of_each(number: Nested, rows: int) -> Row:
    """One number per row, from one for all rows, one per row, or one per sample of which rows are views."""
    numbers = number if isinstance(number, list) else [number]
    return numbers * (rows // len(numbers))


def mean(numbers: Row) -> Number:
    """Arithmetic mean."""
    return mp.fsum(numbers) / len(numbers)


def _others(row: Row, i: int) -> Row:
    """A row without one of its entries."""
    return row[:i] + row[i + 1 :]


# --- similarities -----------------------------------------------------------------------------------------------------


def dot(x: Row, y: Row) -> Number:
    """Sum of products."""
    return mp.fsum(a * b for a, b in zip(x, y, strict=True))


def cosine(x: Row, y: Row) -> Number:
    """Dot product divided by both lengths; 0 for a vector of length 0."""
    lengths = mp.sqrt(dot(x, x) * dot(y, y))
    return dot(x, y) / lengths if lengths else mpf(0)


def neg_sq_euclidean(x: Row, y: Row) -> Number:
    """Negative squared distance."""
    return -mp.fsum((a - b) ** 2 for a, b in zip(x, y, strict=True))


def neg_euclidean(x: Row, y: Row) -> Number:
    """Negative distance."""
    return -mp.sqrt(-neg_sq_euclidean(x, y))


def cauchy(x: Row, y: Row) -> Number:
    """Log of the Cauchy density at the distance, without its constant."""
    return mp.log(1 / (1 - neg_sq_euclidean(x, y)))


def unit(x: Row) -> Row:
    """Scale a vector to length 1; a vector of length 0 stays."""
    length = mp.sqrt(dot(x, x))
    return [a / length for a in x] if length else x


def bilinear(matrix: Matrix) -> Compare:
    """Bilinear form of two vectors."""
    columns = transpose(matrix)
    return lambda x, y: dot([dot(x, column) for column in columns], y)


def max_sim(query: Row, document: Row, *, compare: Compare) -> Number:
    """ColBERT, of pairs (tokens, valid): sum over valid query tokens of the largest product with a valid other."""
    tokens, others = ([token for token, valid in zip(*side, strict=True) if valid] for side in (query, document))
    return mp.fsum(max(compare(a, b) for b in others) for a in tokens) if tokens and others else mpf("-inf")


def _scaled(factors: Row, matrix: Matrix) -> Matrix:
    """Multiply every row by its factor."""
    return [[factor * entry for entry in row] for factor, row in zip(factors, matrix, strict=True)]


def _of_units(similarity: Compare) -> Compare:
    """Similarity of the vectors scaled to length 1."""
    return lambda x, y: similarity(unit(x), unit(y))


def score_rows(x: Matrix, columns: list[Matrix], similarity: Similarity, scale: Nested = 1) -> Matrix:
    """Scores of each row of x against its own columns: similarity times scale."""
    function = SIMILARITIES[similarity] if isinstance(similarity, str) else similarity
    scores = [[function(a, b) for b in row] for a, row in zip(x, columns, strict=True)]
    return _scaled(of_each(scale, len(x)), scores)


_NAMED: Mapping[str, Compare] = {
    "dot": dot,
    "cosine": cosine,
    "neg_sq_euclidean": neg_sq_euclidean,
    "neg_euclidean": neg_euclidean,
    "cauchy": cauchy,
}

SIMILARITIES: Mapping[str, Compare] = {
    **_NAMED,
    **{f"normalized {name}": _of_units(similarity) for name, similarity in _NAMED.items()},
    "max_sim": partial(max_sim, compare=cosine),
    "max_sim, dot": partial(max_sim, compare=dot),
}
"""Similarities by their name in cases: "normalized dot" is similarities.normalized("dot")."""


def score_matrix(x: Matrix, y: Matrix, similarity: Similarity, scale: Nested = 1) -> Matrix:
    """Scores of every row of x against every row of y: similarity times scale."""
    return score_rows(x, [y] * len(x), similarity, scale)


def of_columns(x: Matrix, y: Matrix, similarity: Similarity, scale: Nested) -> Matrix:
    """Scores of the columns against the rows; the scale of row i is also that of column i."""
    return _scaled(of_each(scale, len(y)), transpose(score_matrix(x, y, similarity)))


def inverse(temperature: Nested) -> Nested:
    """Inverse of a temperature, or of the temperature of each sample."""
    return [1 / mpf(t) for t in temperature] if isinstance(temperature, list) else 1 / mpf(temperature)


def transpose(matrix: Nested) -> Nested:
    """Transpose a matrix; None stays None."""
    return matrix and [list(column) for column in zip(*matrix, strict=True)]


# --- stop-gradient ----------------------------------------------------------------------------------------------------


class _Held:
    """Values of sg(.): recorded at the base point, replayed in order while the arguments move."""

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


# --- pairings: positive and negative columns of each row --------------------------------------------------------------

Pairs: TypeAlias = list[tuple[list[int], list[int]]]


class _Weighted(list[int]):
    """Columns that are positive, with weights."""

    def __init__(self, weights: Mapping[int, Number]) -> None:
        super().__init__(weights)
        self.weights = [mpf(weight) for weight in weights.values()]


def _mean(positives: list[int], values: Sequence[Number]) -> Number:
    """Weighted mean of a value over positives."""
    weights = positives.weights if isinstance(positives, _Weighted) else [mpf(1)] * len(positives)
    return mp.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / mp.fsum(weights)


def _or_all(mask: Nested, matrix: Matrix) -> Matrix:
    """The mask, or an all-true one for None."""
    return mask or [[True] * len(row) for row in matrix]


def _without_oneself(mask: Nested, matrix: Matrix) -> Matrix:
    """The mask, without the diagonal."""
    return [[part and i != j for j, part in enumerate(row)] for i, row in enumerate(_or_all(mask, matrix))]


def pairs_of(scores: Matrix, positives: Nested = None, mask: Nested = None) -> Pairs:
    """Positive and negative columns from None (the diagonal), one column per row, booleans or weights, and a mask."""
    pairs: Pairs = []
    given = list(range(len(scores))) if positives is None else positives
    for own, takes_part in zip(given, _or_all(mask, scores), strict=True):
        columns = [j for j, part in enumerate(takes_part) if part]
        weights = own if isinstance(own, list) else [j == own for j in range(len(takes_part))]
        positive = _Weighted({j: weights[j] for j in columns if weights[j]})
        pairs.append((positive, [j for j in columns if not weights[j]]))
    return pairs


def label_pairs(labels: Row, keys: Nested = None, mask: Nested = None, further: int = 0) -> Pairs:
    """Columns with the label of a row are positive: keys, or the rows themselves followed by extra negatives."""
    columns = [*labels, *[None] * further] if keys is None else keys
    same = [[label == other for other in columns] for label in labels]
    return pairs_of(same, same, _without_oneself(mask, same) if keys is None else mask)


def view_pairs(n: int, mask: Nested = None, views: int = 2, further: int = 0) -> Pairs:
    """The other views of the same sample are positive; the row itself is excluded."""
    return label_pairs([i % n for i in range(views * n)], mask=mask, further=further)


# --- losses of a row --------------------------------------------------------------------------------------------------


def sum_exp(scores: Row, columns: list[int]) -> Number:
    """Sum of the exponentials of the scores in some columns."""
    return mp.fsum(mp.exp(scores[j]) for j in columns)


def _share(scores: Row, positives: list[int], total: Number, multi_positive: str) -> Number:
    """Negative log of the joint share of all positives, or mean over positives of the negative log of each share."""
    if multi_positive == "pooled":
        return -mp.log(sum_exp(scores, positives) / total)
    return _mean(positives, [-mp.log(mp.exp(scores[j]) / total) for j in positives])


def info_nce_row(scores: Row, positives: list[int], negatives: list[int], multi_positive: str = "each") -> Number:
    """Negative log of the positive's share of the sum over positives and negatives."""
    if multi_positive == "separate":
        return _mean(positives, [info_nce_row(scores, [j], negatives) for j in positives])
    return _share(scores, positives, sum_exp(scores, positives + negatives), multi_positive)


def dcl_row(scores: Row, positives: list[int], negatives: list[int], multi_positive: str = "each") -> Number:
    """InfoNCE without the positive in the sum; "separate" positives then equal "each"."""
    return _share(scores, positives, sum_exp(scores, negatives), multi_positive)


def anchored_row(scores: Row, positives: list[int], negatives: list[int], *, n_columns: int, nu: Number) -> Number:
    """Negative logs of two posteriors: of the positive's class, and of the anchor without the positive."""
    noise = sum_exp(scores, negatives)
    total = nu + noise + sum_exp(scores, positives)
    return mean([-mp.log(mp.exp(scores[j]) / total) for j in positives]) - nu * mp.log(nu / (nu + noise)) / n_columns


def reduce_rows(
    row_loss: RowLoss,
    scores: Matrix,
    pairs: Pairs,
    *others: Sequence[Any],
    needs_negative: bool = False,
    **options: Any,
) -> Nested:
    """Weight and reduce the losses of the rows that count, each a function of scores, pairs and extra arguments."""
    counts = [bool(p) and (bool(q) or not needs_negative) for p, q in pairs]
    rows = zip(counts, scores, pairs, *others, strict=True)
    losses = [row_loss(row, p, q, *more) if count else mpf(0) for count, row, (p, q), *more in rows]
    return reduce_losses(losses, counts, **options)


def reduce_losses(losses: Row, sizes: Sequence[Number], *, weights: Nested = None, reduction: str = "mean") -> Nested:
    """Weight and reduce row losses, 0 for rows that do not count; each has a number of terms."""
    weights = of_each(weights or mpf(1), len(losses))
    weighted = [weight * loss for weight, loss in zip(weights, losses, strict=True)]
    if reduction == "none":
        return weighted
    if reduction == "sum":
        return mp.fsum(weighted)
    total = mp.fsum(weight * mpf(size) for weight, size in zip(weights, sizes, strict=True))
    return mp.fsum(weighted) / total if total else mpf(0)


def add(*losses: Nested) -> Nested:
    """Add losses with the same rows and reduction."""
    return [mp.fsum(terms) for terms in zip(*losses, strict=True)] if isinstance(losses[0], list) else mp.fsum(losses)


def multiply(factor: Number, loss: Nested) -> Nested:
    """Multiply a loss, reduced or not, by a number."""
    return [factor * term for term in loss] if isinstance(loss, list) else factor * loss


def mean_of(*losses: Nested) -> Nested:
    """Mean of losses with the same rows and reduction."""
    return multiply(mpf(1) / len(losses), add(*losses))


def reduce_info_nce(scores: Matrix, pairs: Pairs, *, multi_positive: str = "each", **options: Any) -> Nested:
    """InfoNCE of every row."""
    return reduce_rows(partial(info_nce_row, multi_positive=multi_positive), scores, pairs, **options)


def reduce_dcl(scores: Matrix, pairs: Pairs, *, multi_positive: str = "each", **options: Any) -> Nested:
    """DCL of every row that has a negative."""
    row_loss = partial(dcl_row, multi_positive=multi_positive)
    return reduce_rows(row_loss, scores, pairs, needs_negative=True, **options)


def reduce_flat_nce(
    scores: Matrix,
    pairs: Pairs,
    *,
    include_positive: bool = False,
    form: str = "log",
    multi_positive: str = "each",
    **options: Any,
) -> Nested:
    """Sum of the exponentials of the contrasts, divided by its constant value; its logarithm in the log form."""

    def row_loss(row: Row, p: list[int], q: list[int]) -> Number:
        loss = (info_nce_row if include_positive else dcl_row)(row, p, q, multi_positive)
        return loss if form == "log" else mp.exp(loss) / mp.exp(_held(loss))

    return reduce_rows(row_loss, scores, pairs, needs_negative=True, **options)


# --- weighted positives, pairs, triplets, divergences -----------------------------------------------------------------


def reduce_dclw(
    scores: Matrix,
    pairs: Pairs,
    *,
    temperature: Nested = 1.0,
    sigma: Number = 0.5,
    detach_weights: bool = False,
    **options: Any,
) -> Nested:
    """DCL with the positive times 2 - e^(s/sigma) / mean(e^(s/sigma)) of the similarities s of positives."""
    each = of_each(temperature, len(scores))
    own = {i: mp.log(sum_exp(scores[i], p)) for i, (p, q) in enumerate(pairs) if p and q}
    powers = {i: mp.exp(mpf(each[i]) * score / mpf(sigma)) for i, score in own.items()}

    def row_loss(row: Row, _: list[int], q: list[int], i: int) -> Number:
        factor = 2 - powers[i] / mean([*powers.values()])
        factor = _held(factor) if detach_weights else factor
        return -mp.log(mp.exp(factor * own[i]) / sum_exp(row, q))

    return reduce_rows(row_loss, scores, pairs, range(len(scores)), needs_negative=True, **options)


def _degrees(positives: list[int]) -> Row:
    """Degree to which each of these pairs is positive."""
    return positives.weights if isinstance(positives, _Weighted) else [mpf(1)] * len(positives)


def logistic_row(scores: Row, positives: list[int], negatives: list[int], weights: Nested = None) -> Number:
    """Negative log-likelihood of the pairs' classes, or of the degrees of positives, with a weight of each pair."""
    each = of_each(weights or mpf(1), len(scores))
    log_p, log_q = (
        {j: each[j] * mp.log(1 / (1 + mp.exp(s * scores[j]))) for j in positives + negatives} for s in (-1, 1)
    )
    graded = [t * log_p[j] + (1 - t) * log_q[j] for j, t in zip(positives, _degrees(positives), strict=True)]
    return -mp.fsum(graded) - mp.fsum(log_q[j] for j in negatives)


def reduce_logistic(scores: Matrix, pairs: Pairs, *, pair_weights: Nested = None, **options: Any) -> Nested:
    """Negative log-likelihood of all pairs, each classified independently."""
    rows = zip(scores, pairs, of_each(pair_weights or [None], len(scores)), strict=True)
    losses = [logistic_row(row, p, q, weights) for row, (p, q), weights in rows]
    return reduce_losses(losses, [bool(p or q) for p, q in pairs], **options)


def hinge(x: Number) -> Number:
    """Positive part."""
    return max(x, mpf(0))


def reduce_terms(rows: Matrix, *, average: str = "all", **options: Any) -> Nested:
    """Sum the terms of every row, pairs of a weight and a number; a mean is over all terms, or over positive terms."""
    sizes = [mp.fsum(weight for weight, term in row if average == "all" or term > 0) for row in rows]
    return reduce_losses([mp.fsum(weight * term for weight, term in row) for row in rows], sizes, **options)


def reduce_contrastive(
    scores: Matrix,
    pairs: Pairs,
    *,
    margin: Number = 1.0,
    positive_margin: Number = 0.0,
    positive_power: int = 2,
    negative_power: int = 2,
    balance: bool = False,
    pair_weights: Nested = None,
    **options: Any,
) -> Nested:
    """Contrastive loss with a positive and a negative margin; the distance is the negative score."""
    near, far = [], []
    for row, (p, q), weights in zip(
        scores, pairs, pair_weights or [[mpf(1)] * len(row) for row in scores], strict=True
    ):
        degrees = dict(zip(p, _degrees(p), strict=True))
        near.append([(weights[j] * t, hinge(-row[j] - positive_margin) ** positive_power) for j, t in degrees.items()])
        rest = {j: weights[j] * (1 - degrees.get(j, 0)) for j in [*p, *q]}
        far.append([(weight, hinge(margin + row[j]) ** negative_power) for j, weight in rest.items()])
    if balance and options.get("reduction", "mean") == "mean":
        return reduce_terms(near, **options) + reduce_terms(far, **options)
    return reduce_terms([p + q for p, q in zip(near, far, strict=True)], **options)


def triplet_term(to_positive: Number, to_negative: Number, margin: Number, form: str) -> Number:
    """Hinge or softplus of positive distance minus negative distance plus margin."""
    behind = to_positive - to_negative + margin
    return mp.log(1 + mp.exp(behind)) if form == "soft" else hinge(behind)


def mined_triplets(to_positives: Row, to_negatives: Row, mining: str | tuple[str, str]) -> list[tuple[Number, Number]]:
    """Distances of an anchor's triplets: all positives with all negatives, or mined ones."""
    named = {"batch_all": ("all", "all"), "batch_hard": ("hard", "hard"), "semi_hard": ("all", "semi_hard")}
    of_positives, of_negatives = named[mining] if isinstance(mining, str) else mining
    if not to_positives or not to_negatives:
        return []
    positives = {"all": to_positives, "hard": [max(to_positives)], "easy": [min(to_positives)]}
    negatives = {"all": to_negatives, "hard": [min(to_negatives)], "easy": [max(to_negatives)]}
    if of_positives == "semi_hard":
        return [
            (max((a for a in to_positives if a < b), default=min(to_positives)), b) for b in negatives[of_negatives]
        ]
    if of_negatives == "semi_hard":
        return [
            (a, min((b for b in to_negatives if b > a), default=max(to_negatives))) for a in positives[of_positives]
        ]
    return [(a, b) for a in positives[of_positives] for b in negatives[of_negatives]]


def reduce_triplets(
    scores: Matrix,
    pairs: Pairs,
    *,
    margin: Number = 0.2,
    mining: str | tuple[str, str] = "batch_all",
    form: str = "margin",
    **options: Any,
) -> Nested:
    """Triplet loss of every row with its positives and negatives, all or mined."""
    rows = []
    for row, (p, q) in zip(scores, pairs, strict=True):
        triplets = mined_triplets([-row[j] for j in p], [-row[j] for j in q], mining)
        rows.append([(mpf(1), triplet_term(a, b, margin, form)) for a, b in triplets])
    return reduce_terms(rows, **options)


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
    **options: Any,
) -> Nested:
    """InfoNCE of the first view against the second, plus the divergence of their distributions."""

    def row_loss(row: Row, p: list[int], q: list[int], other: Row) -> Number:
        columns = [*p, *q] if include_positive else q
        p_a, p_b = (shares([scores[j] for j in columns]) for scores in (row, other))
        first, second = (p_a, p_b) if direction == "a_to_b" else (p_b, p_a)
        first = [_held(p) for p in first] if stop_gradient == "first" else first
        second = [_held(p) for p in second] if stop_gradient == "second" else second
        return info_nce_row(row, p, q) + alpha * divergence(first, second)

    pairs = pairs_of(forward, mask=mask)
    loss = reduce_rows(row_loss, forward, pairs, backward, **options)
    return mean_of(loss, reduce_rows(row_loss, backward, pairs, forward, **options)) if symmetric else loss


# --- losses of scores -------------------------------------------------------------------------------------------------


def _of_matrix(
    reduce: Callable[..., Nested],
    scores: Matrix,
    *,
    positives: Nested = None,
    mask: Nested = None,
    pair_weights: Nested = None,
    **options: Any,
) -> Nested:
    """Loss of a score matrix with the pairs from positives and a mask; weights of pairs are multiplicities."""
    positives, mask = _of_pair_weights(pair_weights, positives, mask)
    pairs = pairs_of(scores, positives, mask)
    return reduce(_with_logs(scores, pairs, pair_weights), pairs, **options)


def _of_pairs(
    reduce: Callable[..., Nested],
    scores: Matrix,
    *,
    positives: Nested = None,
    mask: Nested = None,
    pair_weights: Nested = None,
    **options: Any,
) -> Nested:
    """Sum over the pairs of a score matrix, with weights."""
    return reduce(scores, pairs_of(scores, positives, _kept(mask, pair_weights)), pair_weights=pair_weights, **options)


def from_scores_info_nce(scores: Matrix, **options: Any) -> Nested:
    """InfoNCE of a score matrix."""
    return _of_matrix(reduce_info_nce, scores, **options)


def from_scores_dcl(scores: Matrix, **options: Any) -> Nested:
    """DCL of a score matrix."""
    return _of_matrix(reduce_dcl, scores, **options)


def from_scores_flat_nce(scores: Matrix, **options: Any) -> Nested:
    """FlatNCE of a score matrix."""
    return _of_matrix(reduce_flat_nce, scores, **options)


def from_scores_nca(scores: Matrix, **options: Any) -> Nested:
    """NCA of a score matrix: joint share of all positives."""
    return from_scores_info_nce(scores, multi_positive="pooled", **options)


def from_scores_dclw(scores: Matrix, **options: Any) -> Nested:
    """DCLW of a score matrix."""
    return _of_matrix(reduce_dclw, scores, **options)


def from_scores_clip(scores: Matrix, *, mask: Nested = None, pair_weights: Nested = None, **options: Any) -> Nested:
    """Mean of InfoNCE along the rows, and along the columns that have a row."""
    rows = from_scores_info_nce(scores, mask=mask, pair_weights=pair_weights, **options)
    turned, *of_pairs = [transpose(x)[: len(scores)] if x else x for x in (scores, mask, pair_weights)]
    return mean_of(rows, from_scores_info_nce(turned, mask=of_pairs[0], pair_weights=of_pairs[1], **options))


def from_scores_relic(scores: Matrix, *, mask: Nested = None, pair_weights: Nested = None, **options: Any) -> Nested:
    """RELIC of a score matrix; its transpose gives the other direction."""
    mask = _kept(mask, pair_weights)
    pairs = pairs_of(scores, mask=mask)
    both = (_with_logs(x, pairs, pair_weights) for x in (scores, transpose(scores)))
    return reduce_relic(*both, mask=mask, **options)


def from_scores_logistic(scores: Matrix, **options: Any) -> Nested:
    """SigLIP's objective of a score matrix."""
    return _of_pairs(reduce_logistic, scores, **options)


def from_scores_contrastive(scores: Matrix, **options: Any) -> Nested:
    """Contrastive loss of a matrix of negative distances."""
    return _of_pairs(reduce_contrastive, scores, **options)


def from_scores_triplet(scores: Matrix, **options: Any) -> Nested:
    """Triplet loss of a matrix of negative distances."""
    return _of_matrix(reduce_triplets, scores, **options)


def diagnostics_effective_sample_size(
    scores: Matrix, *, positives: Nested = None, mask: Nested = None, normalized: bool = False, **options: Any
) -> Nested:
    """Inverse of the sum of squared softmax weights of the negatives, optionally divided by their number."""

    def row_size(row: Row, _: list[int], q: list[int]) -> Number:
        return 1 / mp.fsum(share**2 for share in shares([row[j] for j in q])) / (len(q) if normalized else 1)

    # A row counts if it has a negative, with or without a positive.
    pairs = [([i], q) for i, (_, q) in enumerate(pairs_of(scores, positives, mask))]
    return reduce_rows(row_size, scores, pairs, needs_negative=True, **options)


# --- losses of embeddings ---------------------------------------------------------------------------------------------


def info_nce(
    query: Nested,
    positive_key: Nested,
    negative_keys: Nested = None,
    *,
    temperature: Nested = 0.07,
    symmetric: bool = False,
    similarity: Similarity = "cosine",
    positives: Nested = None,
    mask: Nested = None,
    hardness: Number = 0,
    query_mask: Nested = None,
    document_mask: Nested = None,
    negative_mask: Nested = None,
    **options: Any,
) -> Nested:
    """InfoNCE with negatives in the batch, shared, or per row."""
    scale, of_tokens = inverse(temperature), isinstance(query[0][0], list)
    separate = negative_keys is not None and _axes(negative_keys) > _axes(query)
    if of_tokens:
        query, positive_key = _with_masks(query, query_mask), _with_masks(positive_key, document_mask)
    if of_tokens and separate and negative_keys is not None:
        masks = negative_mask or [None] * len(query)
        negative_keys = [_with_masks(own, valid) for own, valid in zip(negative_keys, masks, strict=True)]
    elif of_tokens and negative_keys is not None:
        negative_keys = _with_masks(negative_keys, negative_mask)
    if negative_keys is not None:
        further = negative_keys if separate else [negative_keys] * len(query)
        columns = [[own, *others] for own, others in zip(positive_key, further or [], strict=True)]
        positives, mask = [0] * len(query), mask and [[True, *row] for row in mask]
    else:
        columns = [positive_key] * len(query)
    scores = _hardened(score_rows(query, columns, similarity, scale), hardness, scale, positives)
    forward = from_scores_info_nce(scores, positives=positives, mask=mask, **options)
    if not symmetric:
        return forward
    if positives is not None and not isinstance(positives[0], list):
        positives = [[own == j for j in range(len(positive_key))] for own in positives]
    turned = _hardened(of_columns(query, positive_key, similarity, scale), hardness, scale, transpose(positives))
    backward = from_scores_info_nce(turned, positives=transpose(positives), mask=transpose(mask), **options)
    return mean_of(forward, backward)


def _hardened(scores: Matrix, hardness: Number, scale: Nested, positives: Nested = None) -> Matrix:
    """Scores, plus for negatives a constant multiple of the similarity."""
    if not hardness:
        return scores
    rows = zip(scores, pairs_of(scores, positives), of_each(scale, len(scores)), strict=True)
    return [
        [s + hardness * _held(s / factor) if j in negatives else s for j, s in enumerate(row)]
        for row, (_, negatives), factor in rows
    ]


def _bank(keys: Nested, slots: int | None, mask: Nested, own: int = 0) -> tuple[Matrix, Nested]:
    """Keys, or the slots of a queue with them, and their mask, appended to that of the batch columns."""
    rows = (keys or []) if slots is None else _constant(keys[-slots:])
    return rows, mask and [row[:own] + row[len(row) - len(rows) :] for row in mask]


def _views(
    reduce: Callable[..., Nested],
    *views: Matrix,
    temperature: Nested = 0.1,
    similarity: Similarity = "cosine",
    keys: Nested = None,
    slots: int | None = None,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """Loss of all rows of the views of N samples, with the keys of a bank as additional negatives."""
    n, stacked = len(views[0]), [row for view in views for row in view]
    bank, mask = _bank(keys, slots, mask, len(stacked))
    scores = score_matrix(stacked, stacked + bank, similarity, inverse(temperature))
    return reduce(scores, view_pairs(n, mask, len(views), len(bank)), **options)


def nt_xent(
    view_a: Matrix, view_b: Matrix, view_c: Nested = None, *, multi_positive: str = "separate", **options: Any
) -> Nested:
    """NT-Xent: mean over all views; the row itself is excluded, every other view is a separate positive."""
    views = [view_a, view_b] if view_c is None else [view_a, view_b, view_c]
    return _views(reduce_info_nce, *views, multi_positive=multi_positive, **options)


def dcl(view_a: Matrix, view_b: Matrix, **options: Any) -> Nested:
    """DCL: NT-Xent without the positive in the denominator."""
    return _views(reduce_dcl, view_a, view_b, **options)


def dclw(view_a: Matrix, view_b: Matrix, *, temperature: Nested = 0.1, **options: Any) -> Nested:
    """DCLW: DCL with weighted positives."""
    reduce = partial(reduce_dclw, temperature=temperature)
    return _views(reduce, view_a, view_b, temperature=temperature, **options)


def flat_nce(view_a: Matrix, view_b: Matrix, **options: Any) -> Nested:
    """FlatNCE with NT-Xent's pairs."""
    return _views(reduce_flat_nce, view_a, view_b, **options)


def clip(
    image: Matrix,
    text: Matrix,
    *,
    logit_scale: Number,
    max_logit_scale: Number = 100.0,
    similarity: Similarity = "cosine",
    **options: Any,
) -> Nested:
    """CLIP: mean of InfoNCE along the rows and along the columns."""
    scale = logit_scale if max_logit_scale is None else min(logit_scale, mpf(max_logit_scale))
    return from_scores_clip(score_matrix(image, text, similarity, scale), **options)


def siglip(
    image: Matrix,
    text: Matrix,
    *,
    logit_scale: Number,
    logit_bias: Number,
    negative_only: bool = False,
    similarity: Similarity = "cosine",
    **options: Any,
) -> Nested:
    """SigLIP: logistic loss of every pair, summed along the rows."""
    positives = [[False] * len(text) for _ in image] if negative_only else None
    logits = [[s + logit_bias for s in row] for row in score_matrix(image, text, similarity, logit_scale)]
    return from_scores_logistic(logits, positives=positives, **options)


def n_tuple(
    query: Matrix,
    key: Matrix,
    *,
    l2: Number = 0.0,
    temperature: Nested = 1.0,
    similarity: Similarity = "dot",
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """InfoNCE of unnormalised embeddings, plus their squared lengths."""
    scores = score_matrix(query, key, similarity, inverse(temperature))

    def row_loss(row: Row, p: list[int], q: list[int], x: Row, y: Row) -> Number:
        return info_nce_row(row, p, q) + l2 * (dot(x, x) + dot(y, y))

    return reduce_rows(row_loss, scores, pairs_of(scores, mask=mask), query, key, **options)


def cpc(
    context: Matrix,
    targets: Nested,
    projections: Nested,
    *,
    temperature: Nested = 1.0,
    similarity: Similarity = "dot",
    **options: Any,
) -> Nested:
    """CPC: mean over steps, each with a projection of the contexts."""
    steps = []
    for target, projection in zip(targets, projections, strict=True):
        predicted = [[dot(row, c) for row in projection] for c in context]
        scores = score_matrix(predicted, target, similarity, inverse(temperature))
        steps.append(from_scores_info_nce(scores, **options))
    return mean_of(*steps)


def moco(
    query: Matrix, key: Matrix, queue: Matrix, *, slots: int | None = None, mask: Nested = None, **options: Any
) -> Nested:
    """MoCo: negatives from the queue only, which are pushed at once and take its last slots."""
    rows, mask = _bank(_constant(queue), slots, mask)
    return info_nce(query, key, rows, mask=mask, **options)


def moco_v3(
    query_a: Matrix, query_b: Matrix, key_a: Matrix, key_b: Matrix, *, temperature: Nested = 0.2, **options: Any
) -> Nested:
    """MoCo v3: queries of each view against keys of the other, times twice the temperature."""
    loss = partial(_multiplied, info_nce, temperature=temperature, by=temperature, **options)
    return multiply(2, add(loss(query_a, _constant(key_b)), loss(query_b, _constant(key_a))))


def _multiplied(
    loss: Callable[..., Nested], *arrays: Nested, by: Nested, reduction: str = "mean", **options: Any
) -> Nested:
    """Multiply a loss by a number, or row losses by one number each; a mean does not divide by these."""
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
    similarity: Similarity = "cosine",
    **options: Any,
) -> Nested:
    """NNCLR: InfoNCE of the support row most similar to each row of the first view."""
    rows, _ = _bank(_constant(support), slots, None)
    compared = score_matrix(view_a, rows, similarity)
    nearest = [rows[max(range(len(rows)), key=scores.__getitem__)] for scores in compared]
    loss = nt_xent if negatives == "views" else partial(info_nce, symmetric=symmetric)
    return loss(nearest, view_b, temperature=temperature, similarity=similarity, **options)


def relic(
    view_a: Matrix,
    view_b: Matrix,
    *,
    keys: Nested = None,
    slots: int | None = None,
    temperature: Nested = 0.1,
    similarity: Similarity = "cosine",
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """RELIC: InfoNCE plus the divergence of the views' distributions over the batch and a bank."""
    scale = inverse(temperature)
    bank, mask = _bank(keys, slots, mask, len(view_a))
    forward = score_matrix(view_a, view_b + bank, similarity, scale)
    backward = score_matrix(view_b, view_a + bank, similarity, scale)
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
    similarity: Similarity = "cosine",
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """ProtoNCE: mean over clusterings of the cross-entropy of the assigned prototype, plus InfoNCE of the keys."""
    clusterings = [(prototypes, assignments, concentrations)]
    if prototypes_2 is not None:
        clusterings.append((prototypes_2, assignments_2, concentrations_2))
    terms = []
    for centres, own, widths in clusterings:
        similarities = score_matrix(embeddings, _constant(centres), similarity)
        held = [_held(width) for width in widths]
        scores = [[s / width for s, width in zip(row, held, strict=True)] for row in similarities]
        terms.append(from_scores_info_nce(scores, positives=own, mask=mask, **options))
    if key is None:
        return mean_of(*terms)
    of_keys = info_nce if queue is None else partial(moco, queue=queue, slots=slots)
    return add(mean_of(*terms), of_keys(embeddings, key, temperature=temperature, similarity=similarity, **options))


def concentrations(
    embeddings: Matrix,
    prototypes: Matrix,
    assignments: list[int],
    *,
    temperature: Nested = 0.1,
    smoothing: Number = 10.0,
    percentiles: tuple[Number, Number] = (10.0, 90.0),
) -> Row:
    """Concentrations of clusters: mean distance over log size, clipped at two percentiles, scaled to a given mean."""
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


# --- losses of labelled embeddings ------------------------------------------------------------------------------------


def _of_labels(
    reduce: Callable[..., Nested],
    embeddings: Matrix,
    labels: Row,
    *,
    keys: Nested = None,
    key_labels: Nested = None,
    slots: int | None = None,
    ignore_index: int | None = None,
    temperature: Nested = 1.0,
    similarity: Similarity = "cosine",
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """Loss of the batch against itself, against keys, or against the slots of a queue with them."""
    columns = embeddings
    if keys is not None:
        columns, mask = _bank(keys, slots, mask)
        key_labels = key_labels[-len(columns) :]
    scores = score_matrix(embeddings, columns, similarity, inverse(temperature))
    mask = [
        [part and ignore_index not in {own, other} for part, other in zip(row, key_labels or labels, strict=True)]
        for row, own in zip(_or_all(mask, scores), labels, strict=True)
    ]
    return reduce(scores, label_pairs(labels, key_labels, mask), **options)


def _jaccard(a: Row, b: Row) -> Number:
    """Jaccard index of two sets of labels."""
    either = sum(p or q for p, q in zip(a, b, strict=True))
    return mpf(sum(p and q for p, q in zip(a, b, strict=True))) / either if either else mpf(0)


def supcon(
    embeddings: Matrix,
    labels: Row,
    *,
    temperature: Nested = 0.1,
    base_temperature: Nested = None,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """SupCon: positives have the same label, or share labels and are weighted by the overlap."""
    loss = partial(_of_labels, reduce_info_nce, embeddings, labels, mask=mask)
    if isinstance(labels[0], list):
        shared = [[_jaccard(a, b) for b in labels] for a in labels]
        alone = _without_oneself(mask, shared)
        loss = partial(contrast, embeddings, objective="info_nce", positives=shared, mask=alone)
    if base_temperature is None:
        return loss(temperature=temperature, **options)
    factors = [mpf(t) / mpf(base_temperature) for t in of_each(temperature, len(embeddings))]
    by = factors if isinstance(temperature, list) else factors[0]
    return _multiplied(loss, by=by, temperature=temperature, **options)


def nca(
    embeddings: Matrix,
    labels: Row,
    *,
    temperature: Nested = 1.0,
    similarity: Similarity = "neg_sq_euclidean",
    **options: Any,
) -> Nested:
    """NCA: joint share of all columns with the same label."""
    return supcon(
        embeddings, labels, temperature=temperature, similarity=similarity, multi_positive="pooled", **options
    )


def contrastive(embeddings: Matrix, labels: Row, *, similarity: Similarity = "neg_euclidean", **options: Any) -> Nested:
    """Contrastive loss of all pairs."""
    return _of_labels(reduce_contrastive, embeddings, labels, similarity=similarity, **options)


def triplet_from_labels(
    embeddings: Matrix, labels: Row, *, similarity: Similarity = "neg_euclidean", **options: Any
) -> Nested:
    """Triplet loss of the triplets from labels."""
    return _of_labels(reduce_triplets, embeddings, labels, similarity=similarity, **options)


def triplet(
    anchor: Matrix,
    positive: Matrix,
    negative: Matrix,
    *,
    similarity: Similarity = "neg_euclidean",
    temperature: Nested = 1.0,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """Triplet loss of given triplets."""
    columns = [[near, far] for near, far in zip(positive, negative, strict=True)]
    scores = score_rows(anchor, columns, similarity, inverse(temperature))
    pairs: Pairs = [([0], [1]) if takes_part else ([], []) for takes_part in mask or [True] * len(anchor)]
    return reduce_triplets(scores, pairs, **options)


def _of_pair_weights(pair_weights: Nested, positives: Nested, mask: Nested) -> tuple[Nested, Nested]:
    """Positives with their weights, and the mask."""
    if not pair_weights:
        return positives, mask
    given = range(len(pair_weights)) if positives is None else positives
    of_rows = [own if isinstance(own, list) else [j == own for j in range(len(pair_weights[0]))] for own in given]
    weighted = [[w * p for w, p in zip(*rows, strict=True)] for rows in zip(pair_weights, of_rows, strict=True)]
    return weighted, _kept(mask, pair_weights)


def _kept(mask: Nested, pair_weights: Nested) -> Nested:
    """The mask, without the pairs of weight 0."""
    if not pair_weights:
        return mask
    rows = zip(_or_all(mask, pair_weights), pair_weights, strict=True)
    return [[part and w > 0 for part, w in zip(*row, strict=True)] for row in rows]


def _with_logs(scores: Matrix, pairs: Pairs, pair_weights: Nested) -> Matrix:
    """Scores, plus for negatives the logarithms of their weights."""
    if not pair_weights:
        return scores
    return [
        [s + mp.log(w) if j in negatives else s for j, (s, w) in enumerate(zip(row, own, strict=True))]
        for row, own, (_, negatives) in zip(scores, pair_weights, pairs, strict=True)
    ]


def _axes(nested: Nested) -> int:
    """Count the axes of a nested list."""
    return 1 + _axes(nested[0]) if isinstance(nested, list) else 0


def _with_masks(arrays: list[Matrix], mask: Nested) -> list[tuple[Matrix, Row]]:
    """Arrays of tokens with their masks."""
    return list(zip(arrays, _or_all(mask, arrays), strict=True))


def contrast(
    x: Nested,
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
    similarity: Similarity = "cosine",
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """`contrast` of a named objective and a named pairing."""
    y, scale = x if y is None else y, inverse(temperature)
    if isinstance(x[0][0], list):
        x, y = _with_masks(x, query_mask), _with_masks(y, document_mask)
    scores = score_matrix(x, y, similarity, scale)
    mask = _or_all(mask, scores)
    if pairing == "labels":
        positives = [[a == b for b in columns or labels] for a in labels]
        mask = _without_oneself(mask, scores) if columns is None else mask
    if pairing == "smoothed":
        share = mpf(smoothing) / len(scores[0])
        positives = [[share + (1 - mpf(smoothing)) * (i == j) for j in range(len(row))] for i, row in enumerate(scores)]
    if pairing == "queue":
        n = len(mask)
        mask = [[part and (j == i or j >= n) for j, part in enumerate(row)] for i, row in enumerate(mask)]
    row_losses: Mapping[str, RowLoss] = {
        "info_nce": partial(info_nce_row, multi_positive=multi_positive),
        "flat_nce": partial(dcl_row, multi_positive=multi_positive),
        "info_nce_anchor": partial(anchored_row, n_columns=n_columns, nu=nu),
    }
    options |= {"needs_negative": objective == "flat_nce"}
    positives, mask = _of_pair_weights(pair_weights, positives, mask)
    pairs = view_pairs(len(x) // 2, mask) if pairing == "two_views" else pairs_of(scores, positives, mask)
    forward = reduce_rows(row_losses[objective], _with_logs(scores, pairs, pair_weights), pairs, **options)
    if not symmetric or pairing == "two_views":
        return forward
    pairs = pairs_of(scores, transpose(positives), transpose(mask))
    backward = _with_logs(of_columns(x, y, similarity, scale), pairs, transpose(pair_weights))
    return mean_of(forward, reduce_rows(row_losses[objective], backward, pairs, **options))


# --- bounds -----------------------------------------------------------------------------------------------------------


def bounds_info_nce(scores: Matrix) -> Number:
    """Log of the number of columns minus InfoNCE."""
    return mp.log(len(scores[0])) - from_scores_info_nce(scores)


def bounds_info_nce_anchor(scores: Matrix, *, nu: Number = 1, form: str = "bound") -> Number:
    """Entropy of n + 1 classes minus their cross-entropy by Bayes' rule, over every set of n samples."""
    n, nu = mpf(len(scores[0]) - 1), mpf(nu)
    entropy = -n * mp.log(1 / (n + nu)) / (n + nu) - nu * mp.log(nu / (n + nu)) / (n + nu)
    losses = []
    for i, row in enumerate(scores):
        own, noise = mp.exp(row[i]), [mp.exp(s) for s in _others(row, i)]
        shown = [[own, *_others(noise, m)] for m in range(len(noise))]
        paired = mean([-mp.log(own / (nu + mp.fsum(those))) for those in shown])
        anchored = -mp.log(nu / (nu + mp.fsum(noise)))
        losses.append((n * paired + nu * anchored) / (n + nu))
    bound = (n + nu) * (entropy - mean(losses)) / n
    return bound if form == "bound" else _instead(mean(_diagonal(scores)), bound)


def bounds_dual(scores: Matrix, u: Row) -> Number:
    """Lemma 3.3 of the FlatNCE paper: mean of 1 - u - exp(-u) times the mean of the exponentials of the contrasts."""
    contrasts = [mean([mp.exp(s - row[i]) for s in _others(row, i)]) for i, row in enumerate(scores)]
    return mean([1 - own - mp.exp(-own) * contrast for own, contrast in zip(u, contrasts, strict=True)])


def bounds_dual_critic(scores: Matrix, *, include_positive: bool = False) -> Row:
    """The u that maximises the dual bound, with or without the positive in the sums."""
    columns = [row if include_positive else _others(row, i) for i, row in enumerate(scores)]
    return [mp.log(mean([mp.exp(s - row[i]) for s in columns[i]])) for i, row in enumerate(scores)]


def bounds_fdv(scores: Matrix) -> Number:
    """Value of the InfoNCE bound, gradient of the mean of the negative log-odds against the positive."""
    return _instead(bounds_info_nce(scores), -from_scores_flat_nce(scores))


def bounds_dv(scores: Matrix) -> Number:
    """Donsker-Varadhan: mean positive score minus log of the mean exponential of the others."""
    return mean(_diagonal(scores)) - mp.log(mean([mp.exp(s) for s in _off_diagonal(scores)]))


def bounds_mine(scores: Matrix, log_mean: Number = None, *, rate: Number = 0.01) -> Number:
    """Donsker-Varadhan with a moving average in the denominator of the gradient; the new average is not returned."""
    now = mean([mp.exp(s) for s in _off_diagonal(scores)])
    average = now if log_mean is None else (1 - rate) * mp.exp(log_mean) + rate * now
    return _instead(bounds_dv(scores), mean(_diagonal(scores)) - now / _held(average))


def bounds_nwj(scores: Matrix) -> Number:
    """Nguyen, Wainwright and Jordan: mean positive score minus the mean of exp(g - 1) of the others."""
    return mean(_diagonal(scores)) - mean([mp.exp(s - 1) for s in _off_diagonal(scores)])


def bounds_tuba(scores: Matrix, log_baseline: Nested) -> Number:
    """Equation 8 of Poole et al.: 1 + mean of log(e^g / a) of positives, minus the mean of e^g / a of the others."""
    a = _baseline(scores, log_baseline)
    own = [mp.log(mp.exp(row[i]) / a[i]) for i, row in enumerate(scores)]
    return 1 + mean(own) - mean([mp.exp(s) / a[i] for i, row in enumerate(scores) for s in _others(row, i)])


def bounds_interpolated(scores: Matrix, log_baseline: Nested, *, alpha: Number) -> Number:
    """Equation 13 of Poole et al.: baseline mixed with the leave-one-out mean of the row."""
    first, second = [], []
    for i, (row, a) in enumerate(zip(scores, _baseline(scores, log_baseline), strict=True)):
        ratios = [mp.exp(s) for s in row]
        mixed = [alpha * mean(_others(ratios, j)) + (1 - alpha) * a for j in range(len(row))]
        first += [mp.log(ratios[i] / m) for m in _others(mixed, i)]
        second += [r / mixed[i] for r in _others(ratios, i)]
    return 1 + mean(first) - mean(second)


def bounds_js(scores: Matrix) -> Number:
    """Jensen-Shannon: log-likelihood of a logistic classification of positives and others."""
    pairs = [mp.log(1 / (1 + mp.exp(-s))) for s in _diagonal(scores)]
    return mean(pairs) + mean([mp.log(1 / (1 + mp.exp(s))) for s in _off_diagonal(scores)])


def bounds_js_mi(scores: Matrix) -> Number:
    """Value of NWJ at the scores plus 1, gradient of Jensen-Shannon."""
    return _instead(bounds_nwj([[s + 1 for s in row] for row in scores]), bounds_js(scores))


def bounds_smile(scores: Matrix, *, clip: Nested = 5.0) -> Number:
    """Donsker-Varadhan with clipped scores of the others, gradient of Jensen-Shannon."""
    others = [s if clip is None else min(max(s, -clip), clip) for s in _off_diagonal(scores)]
    value = mean(_diagonal(scores)) - mp.log(mean([mp.exp(s) for s in others]))
    return _instead(value, bounds_js(scores))


def bounds_club(scores: Matrix) -> Number:
    """Mean log-density of positives minus that of the others."""
    return mean(_diagonal(scores)) - mean(_off_diagonal(scores))


def bounds_leave_one_out(scores: Matrix, *, mask: Nested = None) -> Number:
    """Log-density of each y given its x, minus the log of its mean density given the other x."""
    _, columns = rows_of(transpose(scores), None, mask and transpose(mask))
    return mean([mp.log(mp.exp(own) / mean([mp.exp(s) for s in others])) for own, *others in columns])


def bounds_barber_agakov(scores: Nested, entropy: Number) -> Number:
    """Entropy plus the mean log-density of the pairs, as a vector or as the diagonal."""
    return entropy + mean(_diagonal(scores) if isinstance(scores[0], list) else scores)


def bounds_vub(scores: Nested, log_marginal: Row) -> Number:
    """Mean log ratio of conditional and marginal density of the pairs."""
    pairs = _diagonal(scores) if isinstance(scores[0], list) else scores
    return mean([mp.log(mp.exp(p) / mp.exp(r)) for p, r in zip(pairs, log_marginal, strict=True)])


BY_ROWS = frozenset(
    ("info_nce", "info_nce_anchor", "dual", "fdv", "nwj", "tuba", "interpolated", "js", "js_mi", "club")
)
"""Bounds that are means over rows."""


def rows_of(scores: Matrix, positives: Nested, mask: Nested) -> tuple[list[int], list[Row]]:
    """Indices of the rows with a positive and a negative, and their scores, the positive first."""
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
    """Extend a bound to positives and a mask: of the rows that count, each with its own negatives."""
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
        # Repeating negatives makes all rows equally long without changing the mean of each.
        copies = len(rows) * math.lcm(*(len(row) - 1 for row in rows))
        repeated = [(row[0], row[1:] * (copies // (len(row) - 1))) for row in rows]
        whole = [[*some[:i], own, *some[i:]] for i, (own, some) in enumerate(repeated)]
        return bound(whole, *others, **options)

    return of_some


def _diagonal(scores: Matrix) -> Row:
    """Scores of the pairs."""
    return [row[i] for i, row in enumerate(scores)]


def _off_diagonal(scores: Matrix) -> Row:
    """Scores off the diagonal."""
    return [s for i, row in enumerate(scores) for s in _others(row, i)]


def _baseline(scores: Matrix, log_baseline: Nested) -> Row:
    """Baseline of every row, from one number or one per row."""
    return [mp.exp(b) for b in of_each(log_baseline, len(scores))]


def _instead(value: Number, surrogate: Number) -> Number:
    """Value of one function with the gradient of another."""
    return _held(value) + surrogate - _held(surrogate)


# --- densities --------------------------------------------------------------------------------------------------------


def density_local_nce(data_scores: Row, noise_scores: Matrix, **options: Any) -> Nested:
    """Negative log-likelihood of classifying data and noise, with P(data) = e^s / (e^s + k q)."""

    def loss(s: Number, own_q: Number, samples: Samples) -> Number:
        k = len(samples)
        own = -mp.log(mp.exp(s) / (mp.exp(s) + k * mp.exp(own_q)))
        return own - mp.fsum(mp.log(k * mp.exp(q) / (mp.exp(t) + k * mp.exp(q))) for t, q in samples)

    return _of_contexts(loss, data_scores, noise_scores, **options)


def density_negative_sampling(data_scores: Row, noise_scores: Matrix, **options: Any) -> Nested:
    """-log σ(s) of the data plus the sum of -log σ(-s) of the noise, with weights of the noise."""
    scores = [[s, *row] for s, row in zip(data_scores, noise_scores, strict=True)]
    for name, first in (("mask", True), ("pair_weights", mpf(1))):
        options[name] = [[first, *row] for row in options.get(name) or []]
    return from_scores_logistic(scores, positives=[0] * len(scores), **options)


def density_ranking_nce(data_scores: Row, noise_scores: Matrix, **options: Any) -> Nested:
    """Negative log of the data's share of the ratios e^s / q of data and noise."""

    def loss(s: Number, own_q: Number, samples: Samples) -> Number:
        own = mp.exp(s) / mp.exp(own_q)
        return -mp.log(own / (own + mp.fsum(_ratios(samples))))

    return _of_contexts(loss, data_scores, noise_scores, **options)


def density_info_nce_anchor(data_scores: Row, noise_scores: Matrix, *, nu: Number = 1, **options: Any) -> Nested:
    """Negative logs of posteriors: of the data among all samples but one, in turn, and of the anchor among all."""

    def loss(s: Number, own_q: Number, samples: Samples) -> Number:
        own, noise = mp.exp(s) / mp.exp(own_q), _ratios(samples)
        paired = mean([-mp.log(own / (own + nu + mp.fsum(_others(noise, m)))) for m in range(len(noise))])
        return paired - nu * mp.log(nu / (nu + mp.fsum(noise))) / len(noise)

    return _of_contexts(loss, data_scores, noise_scores, needs_noise=True, **options)


def density_nre_a(data_scores: Row, noise_scores: Matrix, **options: Any) -> Nested:
    """Mean of the cross-entropies of data and of samples."""

    def loss(s: Number, _: Number, samples: Samples) -> Number:
        noise = mean([-mp.log(1 / (1 + mp.exp(t))) for t, _ in samples])
        return (noise - mp.log(mp.exp(s) / (1 + mp.exp(s)))) / 2

    return _of_contexts(loss, data_scores, noise_scores, needs_noise=True, **options)


def density_nre_b(data_scores: Row, noise_scores: Matrix, **options: Any) -> Nested:
    """Negative log of the data's share of all exponentials."""
    return density_ranking_nce(data_scores, noise_scores, **options)


def density_nre_c(data_scores: Row, noise_scores: Matrix, *, gamma: float = 1.0, **options: Any) -> Nested:
    """Negative log posteriors of K + 1 classes, with the data in each of K places; no anchor if gamma is inf."""

    def loss(s: Number, _: Number, samples: Samples) -> Number:
        noise, k = _ratios(samples), len(samples)
        if mp.isinf(gamma):
            return mean([-mp.log(mp.exp(s) / (mp.exp(s) + mp.fsum(_others(noise, m)))) for m in range(k)])
        odds = mpf(gamma)
        places = [[mp.exp(s), *_others(noise, m)] for m in range(k)]
        joint = mean([-mp.log(odds * mp.exp(s) / (k + odds * mp.fsum(place))) for place in places])
        marginal = -mp.log(k / (k + odds * mp.fsum(noise)))
        return odds / (1 + odds) * joint + marginal / (1 + odds)

    return _of_contexts(loss, data_scores, noise_scores, needs_noise=True, **options)


def density_balance_penalty(data_scores: Row, noise_scores: Matrix, **options: Any) -> Nested:
    """Squared deviation from 1 of the mean sum of both probabilities."""

    def loss(s: Number, _: Number, samples: Samples) -> Number:
        return mp.exp(s) / (1 + mp.exp(s)) + mean([mp.exp(t) / (1 + mp.exp(t)) for t, _ in samples]) - 1

    return _of_contexts(loss, data_scores, noise_scores, needs_noise=True, **options) ** 2


def density_log_partition(noise_scores: Matrix, noise_log_q: Nested, *, mask: Nested = None) -> Row:
    """Log of the mean of the importance weights e^s / q."""
    return [mp.log(mean(_ratios(samples))) for samples in _samples(noise_scores, noise_log_q, mask)]


def density_sampled_softmax(
    data_scores: Row, noise_scores: Matrix, *, include_positive: bool = True, **options: Any
) -> Nested:
    """Negative log of e^s over the mean importance weight, with the data included or not."""

    def loss(s: Number, own_q: Number, samples: Samples) -> Number:
        return -mp.log(mp.exp(s) / mean(_ratios([*samples, (s, own_q)] if include_positive else samples)))

    return _of_contexts(loss, data_scores, noise_scores, **options)


def density_full_softmax(scores: Matrix, targets: list[int], **options: Any) -> Nested:
    """Negative log of the target's share of all exponentials."""
    return from_scores_info_nce(scores, positives=targets, **options)


def density_linear_softmax(
    embeddings: Matrix,
    weight: Matrix,
    targets: list[int],
    *,
    bias: Row | None = None,
    softcap: float | None = None,
    smoothing: float = 0.0,
    ignore_index: int | None = None,
    class_weights: Row | None = None,
    z_loss: float = 0.0,
    weights: Row | None = None,
    reduction: str = "mean",
) -> Nested:
    """Cross-entropy of smoothed targets with class weights, plus a multiple of the squared log Z."""
    classes = len(weight)
    bias, costs = bias or [mpf(0)] * classes, class_weights or [mpf(1)] * classes
    losses, shares = [], []
    for x, target, share in zip(embeddings, targets, weights or [mpf(1)] * len(targets), strict=True):
        if target == ignore_index:
            losses.append(mpf(0))
            continue
        logits = [dot(x, row) + b for row, b in zip(weight, bias, strict=True)]
        if softcap is not None:
            logits = [mpf(softcap) * mp.tanh(g / mpf(softcap)) for g in logits]
        total = mp.fsum(mp.exp(g) for g in logits)
        wanted = [mpf(smoothing) / classes + (1 - mpf(smoothing)) * (j == target) for j in range(classes)]
        entropy = mp.fsum(-c * p * mp.log(mp.exp(g) / total) for c, p, g in zip(costs, wanted, logits, strict=True))
        losses.append(share * (entropy + mpf(z_loss) * costs[target] * mp.log(total) ** 2))
        shares.append(share * costs[target])
    if reduction == "none":
        return losses
    return mp.fsum(losses) / (mp.fsum(shares) if reduction == "mean" else 1)


def density_recover_log_prob(scores: Matrix, log_q: Nested) -> Row:
    """Log of q e^g over its sum, with all contexts in one list."""
    rows = [[mp.exp(g) * mp.exp(q) for g, q in samples] for samples in _samples(scores, log_q)]
    return [mp.log(p / mp.fsum(row)) for row in rows for p in row]


def density_self_normalization(scores: Matrix, log_q: Nested = None, *, mask: Nested = None, field: str) -> Number:
    """Mean or standard deviation over contexts of log Z, or the mean effective number of samples."""
    rows = [_ratios(samples) for samples in _samples(scores, log_q, mask)]
    log_z = [mp.log(mp.fsum(row) / (1 if log_q is None else len(row))) for row in rows]
    if field == "mean":
        return mean(log_z)
    if field == "std":
        return mp.sqrt(mean([z * z for z in log_z]) - mean(log_z) ** 2)
    if log_q is None:
        return mean([mpf(len(row)) for row in rows])
    return mean([mp.fsum(row) ** 2 / mp.fsum(w * w for w in row) for row in rows])


def _of_contexts(
    loss: Callable[[Number, Number, Samples], Number],
    data_scores: Row,
    noise_scores: Matrix,
    data_log_q: Nested = None,
    noise_log_q: Nested = None,
    *,
    needs_noise: bool = False,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """Reduce the losses of contexts, each a function of the data's score and log-density and of noise samples."""
    samples = _samples(noise_scores, noise_log_q, mask)
    counts = [bool(own) or not needs_noise for own in samples]
    contexts = zip(counts, data_scores, data_log_q or [mpf(0)] * len(counts), samples, strict=True)
    return reduce_losses([loss(*of) if count else mpf(0) for count, *of in contexts], counts, **options)


def _samples(scores: Matrix, log_q: Nested, mask: Nested = None) -> list[Samples]:
    """Scores and log-densities of unmasked samples, by context."""
    if log_q is None:
        log_q = [mpf(0)] * len(scores[0])
    if not isinstance(log_q[0], list):
        log_q = [log_q] * len(scores)
    return [
        [(s, q) for s, q, takes_part in zip(*rows, strict=True) if takes_part]
        for rows in zip(scores, log_q, _or_all(mask, scores), strict=True)
    ]


def _ratios(samples: Samples) -> Row:
    """Ratios e^s / q of samples."""
    return [mp.exp(s) / mp.exp(q) for s, q in samples]


# --- diagnostics ------------------------------------------------------------------------------------------------------


def diagnostics_headroom(scores: Matrix, *, positives: Nested = None, mask: Nested = None) -> Number:
    """Distance of the InfoNCE bound to its ceiling, averaged over rows."""
    _, rows = rows_of(scores, positives, mask)
    return mean([mp.log(len(row)) - bounds_info_nce([row]) for row in rows])


def diagnostics_top_k_accuracy(scores: Matrix, key: Nested = None, *, k: int = 1, **options: Any) -> Nested:
    """1 for a row whose best positive has one of the k first ranks, else 0."""
    return _of_ranks(lambda row, p, q: mpf(min(_rank(row, j, q) for j in p) <= k), scores, key, **options)


def diagnostics_mean_reciprocal_rank(scores: Matrix, key: Nested = None, **options: Any) -> Nested:
    """Inverse of the rank of the best positive of a row."""
    return _of_ranks(lambda row, p, q: 1 / mpf(min(_rank(row, j, q) for j in p)), scores, key, **options)


def diagnostics_recall_at(scores: Matrix, key: Nested = None, *, k: int = 1, **options: Any) -> Nested:
    """Share of a row's positives that have one of the k first ranks among all its columns."""

    def row_recall(row: Row, p: list[int], q: list[int]) -> Number:
        return mean([mpf(_rank(row, j, [*(set(p) - {j}), *q]) <= k) for j in p])

    return _of_ranks(row_recall, scores, key, **options)


def _rank(row: Row, j: int, others: Iterable[int]) -> int:
    """Rank of a column among others; equal scores come first."""
    return 1 + sum(bool(row[other] >= row[j]) for other in others)


def _of_ranks(
    row_value: RowLoss,
    scores: Matrix,
    key: Nested,
    *,
    similarity: Similarity = "cosine",
    positives: Nested = None,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """Reduce a function of the rows of scores, or of the similarities of queries and keys."""
    if key is not None:
        scores = score_rows(scores, [key] * len(scores), similarity)
    return reduce_rows(row_value, scores, pairs_of(scores, positives, mask), **options)


def diagnostics_alignment(x: Matrix, y: Matrix, *, power: Number = 2.0, weights: Nested = None) -> Number:
    """Mean power of the distance of the pairs on the unit sphere."""
    apart = [-neg_sq_euclidean(unit(a), unit(b)) for a, b in zip(x, y, strict=True)]
    return reduce_losses([mp.sqrt(d) ** mpf(power) for d in apart], [1] * len(x), weights=weights)


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
    similarity: Similarity = "dot",
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """Softmax over in-batch and extra candidates, scores minus log q, without accidental hits."""
    columns = [*candidate, *(negative_candidates or [])]
    names = list(range(len(columns))) if ids is None else [*ids, *(negative_ids or [])]
    shift = [0] * len(columns) if log_q is None else [*log_q, *(negative_log_q or [])]
    scores = score_matrix(query, columns, similarity, inverse(temperature))
    scores = [[score - own for score, own in zip(row, shift, strict=True)] for row in scores]
    takes_part = [
        [part and (i == j or names[i] != names[j]) for j, part in enumerate(row)]
        for i, row in enumerate(_or_all(mask, scores))
    ]
    return from_scores_info_nce(scores, mask=takes_part, **options)


def hcl(
    view_a: Matrix,
    view_b: Matrix,
    *,
    temperature: Nested = 0.5,
    beta: Number = 1,
    tau_plus: Number = 0.1,
    similarity: Similarity = "cosine",
    **options: Any,
) -> Nested:
    """HCL: InfoNCE with negatives weighted by powers of their exponentials, and debiased."""
    beta, tau_plus = mpf(beta), mpf(tau_plus)

    def row_loss(row: Row, p: list[int], q: list[int], floor: Number) -> Number:
        if not q:
            return mpf(0)
        positive = sum_exp(row, p)
        importance = [mp.exp(beta * row[j]) for j in q]
        weighted = mp.fsum(w * mp.exp(row[j]) for w, j in zip(importance, q, strict=True))
        negatives = len(q) * weighted / mp.fsum(importance)
        negatives = (negatives - tau_plus * len(q) * positive) / (1 - tau_plus)
        if similarity == "cosine":
            negatives = max(negatives, len(q) * mp.exp(floor))
        return mp.log(1 + max(negatives, 0) / positive)

    def reduce(scores: Matrix, pairs: Pairs, **options: Any) -> Nested:
        floors = [-_held(scale) for scale in of_each(inverse(temperature), len(scores))]
        return reduce_rows(row_loss, scores, pairs, floors, **options)

    return _views(reduce, view_a, view_b, temperature=temperature, similarity=similarity, **options)


def sogclr(
    query: Matrix,
    key: Matrix,
    log_u: Row,
    *,
    gamma: Number = 0.9,
    temperature: Nested = 0.1,
    rho: Nested = None,
    similarity: Similarity = "cosine",
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """SogCLR: log of a moving average of the mean exponential contrast; the old average is constant."""
    scores = score_matrix(query, key, similarity, inverse(temperature))

    def row_loss(row: Row, p: list[int], q: list[int], memory: Number, own: Number) -> Number:
        now = mean([mp.exp(row[j] - row[p[0]]) for j in q])
        average = now if memory == -mp.inf else (1 - mpf(gamma)) * mp.exp(memory) + mpf(gamma) * now
        loss = _instead(mp.log(average), now / _held(average))
        return loss if rho is None else mpf(own) * (loss + mpf(rho))

    own = of_each(temperature, len(query))
    return reduce_rows(row_loss, scores, pairs_of(scores, mask=mask), log_u, own, needs_negative=True, **options)


def joint_info_nce(
    query: Matrix,
    key: Matrix,
    *,
    directions: Sequence[str] = ("query_to_key", "query_to_query", "key_to_query", "key_to_key"),
    temperature: Nested = 0.01,
    similarity: Similarity = "cosine",
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """Negative log of the positive's share of all comparisons of query i and key i."""
    sides = {"query": query, "key": key}
    scores = {
        f"{a}_to_{b}": score_matrix(x, y, similarity, inverse(temperature))
        for a, x in sides.items()
        for b, y in sides.items()
    }

    def row_loss(row: Row, p: list[int], q: list[int], *compared: Row) -> Number:
        positive = sum_exp(row, p)
        return -mp.log(positive / (positive + mp.fsum(sum_exp(scores, q) for scores in compared)))

    first, chosen = scores["query_to_key"], [scores[name] for name in directions]
    return reduce_rows(row_loss, first, pairs_of(first, mask=mask), *chosen, **options)


def _guided(
    chosen: Callable[[Matrix, Nested], dict[str, Nested]],
    query: Matrix,
    key: Matrix,
    of_query: Matrix,
    of_key: Matrix,
    *,
    symmetric: bool = False,
    mask: Nested = None,
    **options: Any,
) -> Nested:
    """InfoNCE with pairs chosen by the cosines of a teacher or guide."""
    forward = info_nce(query, key, **chosen(score_matrix(of_query, of_key, "cosine"), mask), **options)
    if not symmetric:
        return forward
    return mean_of(forward, _guided(chosen, key, query, of_key, of_query, mask=transpose(mask), **options))


def distillation(
    query: Matrix,
    key: Matrix,
    teacher_query: Matrix,
    teacher_key: Matrix,
    *,
    teacher_temperature: Nested = 0.07,
    **options: Any,
) -> Nested:
    """Cross-entropy with a teacher's softmax, or with its cosines mapped to [0, 1]."""

    def target(cosine: Number) -> Number:
        return (1 + cosine) / 2 if teacher_temperature is None else mp.exp(cosine / mpf(teacher_temperature))

    def chosen(cosines: Matrix, mask: Nested) -> dict[str, Nested]:
        return {"positives": [[target(c) for c in row] for row in cosines], "mask": mask}

    return _guided(chosen, query, key, teacher_query, teacher_key, **options)


def gist_embed(
    query: Matrix,
    key: Matrix,
    guide_query: Matrix,
    guide_key: Matrix,
    *,
    margin: Number = 0,
    margin_strategy: str = "absolute",
    temperature: Nested = 0.01,
    **options: Any,
) -> Nested:
    """InfoNCE without negatives that the guide scores above the positive, less a margin."""

    def chosen(cosines: Matrix, mask: Nested) -> dict[str, Nested]:
        own = _diagonal(cosines)
        limits = [c - mpf(margin) * (1 if margin_strategy == "absolute" else abs(c)) for c in own]
        live = _or_all(mask, cosines)
        allowed = [[i == j or c <= limits[i] for j, c in enumerate(row)] for i, row in enumerate(cosines)]
        return {"mask": [[a and b for a, b in zip(*rows, strict=True)] for rows in zip(allowed, live, strict=True)]}

    return _guided(chosen, query, key, guide_query, guide_key, temperature=temperature, **options)


def from_scores_margin_mse(
    scores: Matrix, teacher_scores: Matrix, *, positives: Nested = None, mask: Nested = None, **options: Any
) -> Nested:
    """Mean squared difference of two margins."""
    losses, counts = [], []
    for s, t, (own, others) in zip(scores, teacher_scores, pairs_of(scores, positives, mask), strict=True):
        counts.append(bool(own) and bool(others))
        margins = [((s[p] - s[j]), (t[p] - t[j])) for p in own for j in others]
        losses.append(mean([(a - b) ** 2 for a, b in margins]) if margins else mpf(0))
    return reduce_losses(losses, counts, **options)


def from_scores_cosent(
    scores: Row, grades: Row, *, scale: Number = 20.0, mask: Nested = None, weights: Nested = None
) -> Number:
    """Log of 1 plus the sum over pairs of rows whose first has the higher grade."""
    live = [k for k in range(len(scores)) if mask is None or mask[k]]
    weights = of_each(weights or mpf(1), len(scores))
    pairs = [(i, j) for i in live for j in live if grades[i] > grades[j]]
    return mp.log1p(mp.fsum(weights[i] * weights[j] * mp.exp(mpf(scale) * (scores[j] - scores[i])) for i, j in pairs))


def cosent(x: Matrix, y: Matrix, grades: Row, *, similarity: Similarity = "cosine", **options: Any) -> Number:
    """CoSENT of the similarities of pairs."""
    scores = score_rows(x, [[b] for b in y], similarity)
    return from_scores_cosent([score for (score,) in scores], grades, **options)


def angle_similarity(x: Row, y: Row) -> Number:
    """AnglE's similarity: absolute sum of the parts of normalised complex quotients, as in AnglE's code."""
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
"""Bounds without `positives` and `mask`, or with another meaning of them."""

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
"""Oracles by public name; each function is named after topic and loss."""


# --- evaluation -------------------------------------------------------------------------------------------------------


def evaluate(loss: str, arguments: Mapping[str, Nested], options: Mapping[str, Any]) -> Nested:
    """Value of a loss at nested lists given by name; execution options are ignored."""
    with mp.workdps(DIGITS):
        function = ORACLES[loss]
        known = inspect.signature(function).parameters
        named = {name: exact(value) for name, value in {**arguments, **options}.items() if name != "block_size"}
        if "bilinear" in named:
            named["similarity"] = bilinear(named.pop("bilinear"))
        positional = [named.pop(name) for name in list(known) if known[name].kind is POSITIONAL and name in named]
        return function(*positional, **named)


POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def value_and_gradients(
    loss: str, arguments: Mapping[str, Nested], options: Mapping[str, Any]
) -> tuple[Nested, dict[str, Nested]]:
    """Value and gradients by central differences; a vector value is summed for the gradient."""
    with _noted(), mp.workdps(DIGITS):
        value = evaluate(loss, arguments, options)

        def gradient(name: str) -> Nested:
            return differences(
                lambda nested: _moved(loss, {**arguments, name: nested}, options), exact(arguments[name])
            )

        return value, {name: gradient(name) for name in arguments}


def value_and_slope(case: Case, direction: Mapping[str, Nested]) -> tuple[Nested, Number]:
    """Value of a case and its derivative in a direction; a vector value is summed for the derivative."""
    options = {**case.constants, **case.options}
    with _noted(), mp.workdps(DIGITS):
        value = evaluate(case.loss, case.arguments, options)

        def along(step: Number) -> Number:
            moved = {name: _plus(exact(case.arguments[name]), exact(way), step) for name, way in direction.items()}
            return _moved(case.loss, {**case.arguments, **moved}, options)

        return value, differences(along, mpf(0))


def _plus(x: Nested, way: Nested, step: Number) -> Nested:
    """Nested numbers plus a multiple of a direction."""
    return [_plus(a, b, step) for a, b in zip(x, way, strict=True)] if isinstance(x, list) else x + step * way


@contextmanager
def _noted() -> Iterator[None]:
    """Record the values of sg(.) in the first evaluation, and replay them in later ones."""
    _held.values, _held.position = [], 0
    try:
        yield
    finally:
        _held.values = None


def _moved(loss: str, arguments: Mapping[str, Nested], options: Mapping[str, Any]) -> Number:
    """Sum of a loss at other arguments, with the values of sg(.) from the first evaluation."""
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
    """Value and gradients of a case, cached for cases that differ only in execution options."""
    options = {name: value for name, value in case.options.items() if name != "block_size"}
    key = (case.loss, repr(case.arguments), repr(case.constants), repr(options))
    if key not in _results:
        _results[key] = value_and_gradients(case.loss, case.arguments, {**case.constants, **options})
    return _results[key]


# --- measuring --------------------------------------------------------------------------------------------------------


def error(got: Nested, wanted: Nested, smallest: float = 0.0) -> float:
    """Largest difference relative to the largest expected magnitude; infinite if there is a NaN.

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
    """Largest relative error of the entries whose expected magnitude is at least `smallest`; infinite for NaN."""
    with mp.workdps(60):  # fifty of them may be asked for
        errors = [
            abs(a - b) / abs(b) for a, b in zip(numbers_of(got), numbers_of(wanted), strict=True) if abs(b) >= smallest
        ]
        return float("inf") if any(mp.isnan(e) for e in errors) else float(max(errors, default=mpf(0)))


def numbers_of(nested: Nested) -> list[Number]:
    """List the numbers of a nested list."""
    return [n for item in nested for n in numbers_of(item)] if isinstance(nested, (list, tuple)) else [nested]


# --- closed forms: the gradient column of the tables, for positives on the diagonal -----------------------------------


Key: TypeAlias = tuple[tuple[Any, ...], ...]


def _key(scores: Matrix) -> Key:
    """Make a matrix hashable: several losses of the same scores share the exponentials."""
    return tuple(map(tuple, scores))


@cache
def _contrasts(scores: Key) -> tuple[Matrix, Row]:
    """exp(g_ij - g_ii), and its row sums without the diagonal: the odds against the positive."""
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
