"""Independent oracles: the published sums, spelled out over lists of mpmath numbers.

Nothing here is arranged for accuracy or speed, and nothing is shared with the library: every loss is the quotient of
sums that its paper prints, in enough digits that the cancellations do no harm. Gradients are central differences in the
same digits, or, with respect to scores, the closed forms of the table of gradients.

A keyword that a loss takes has here the name, the default and the meaning that it has in the library.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from mpmath import mp, mpf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portable_nce.testing import Case

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


SIMILARITIES: Mapping[str, Callable[[Row, Row], Number]] = {
    "dot": dot,
    "cosine": cosine,
    "neg_sq_euclidean": neg_sq_euclidean,
    "neg_euclidean": neg_euclidean,
}


def score_matrix(x: Matrix, y: Matrix, similarity: str, scale: Number, bilinear: Matrix | None = None) -> Matrix:
    """Every row of x against every row of y: similarity times scale."""
    if bilinear is not None:
        x = [[mp.fsum(a * w for a, w in zip(row, column, strict=True)) for column in transpose(bilinear)] for row in x]
        similarity = "dot"
    function = SIMILARITIES[similarity]
    return [[function(a, b) * scale for b in y] for a in x]


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


# --- pairings: for every row, the columns that are positive and those that are negative -----------------------------

Pairs: TypeAlias = list[tuple[list[int], list[int]]]


def pairs_of(rows: int, columns: int, positives: Nested = None, mask: Nested = None) -> Pairs:
    """Positives given as None (the diagonal), as one column per row, or as truth values; mask True takes part."""
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
                [j for j in range(columns) if is_positive[j] and takes_part[j]],
                [j for j in range(columns) if not is_positive[j] and takes_part[j]],
            )
        )
    return pairs


def two_view_pairs(n: int, mask: Nested = None) -> Pairs:
    """Two views of n things, one after the other: the positive is the other view, oneself is left out."""
    mask = mask or [[True] * (2 * n) for _ in range(2 * n)]
    return [
        (
            [j for j in [(i + n) % (2 * n)] if mask[i][j]],
            [j for j in range(2 * n) if j not in {i, (i + n) % (2 * n)} and mask[i][j]],
        )
        for i in range(2 * n)
    ]


# --- one row of every loss ------------------------------------------------------------------------------------------


def info_nce_row(scores: Row, positives: list[int], negatives: list[int], multi_positive: str) -> Number:
    """Minus the log of the positive's share of the sum over positives and negatives."""
    total = mp.fsum(mp.exp(scores[j]) for j in positives + negatives)
    if multi_positive == "pooled":
        return -mp.log(mp.fsum(mp.exp(scores[j]) for j in positives) / total)
    return mp.fsum(-mp.log(mp.exp(scores[j]) / total) for j in positives) / len(positives)


def dcl_row(scores: Row, positives: list[int], negatives: list[int], multi_positive: str) -> Number:
    """The same, without the positive in the sum."""
    total = mp.fsum(mp.exp(scores[j]) for j in negatives)
    if multi_positive == "pooled":
        return -mp.log(mp.fsum(mp.exp(scores[j]) for j in positives) / total)
    return mp.fsum(-mp.log(mp.exp(scores[j]) / total) for j in positives) / len(positives)


def flat_nce_row(
    scores: Row, positives: list[int], negatives: list[int], multi_positive: str, form: str, *, include_positive: bool
) -> Number:
    """The sum of the exponentials of the contrasts over itself held fixed; its logarithm in the log form."""
    loss = (info_nce_row if include_positive else dcl_row)(scores, positives, negatives, multi_positive)
    return loss if form == "log" else mp.exp(loss) / mp.exp(_held(loss))


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
    weights = weights or [mpf(1)] * len(scores)
    counts = [bool(p) and (bool(q) or not needs_negative) for p, q in pairs]
    losses = [
        weight * row_loss(row, p, q) if count else mpf(0)
        for row, (p, q), weight, count in zip(scores, pairs, weights, counts, strict=True)
    ]
    if reduction == "none":
        return losses
    if reduction == "sum":
        return mp.fsum(losses)
    total = mp.fsum(weight for weight, count in zip(weights, counts, strict=True) if count)
    return mp.fsum(losses) / total if total else mpf(0)


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


def effective_sample_size(
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
    temperature: Number = 0.07,
    symmetric: bool = False,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    positives: Nested = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
    multi_positive: str = "each",
) -> Nested:
    """InfoNCE with negatives in the batch, shared, or per row; symmetric with positives on the diagonal only."""
    scale = 1 / mpf(temperature)
    options: dict[str, Any] = {"weights": weights, "reduction": reduction, "multi_positive": multi_positive}
    if negative_keys is None:
        scores = score_matrix(query, positive_key, similarity, scale, bilinear)
        forward = from_scores_info_nce(scores, positives=positives, mask=mask, **options)
        if not symmetric:
            return forward
        return _half_sum(
            forward, from_scores_info_nce(transpose(scores), mask=transpose(mask) if mask else None, **options)
        )
    scores = []
    for i, (q, own) in enumerate(zip(query, positive_key, strict=True)):
        others = negative_keys[i] if isinstance(negative_keys[0][0], list) else negative_keys
        scores += score_matrix([q], [own, *others], similarity, scale, bilinear)
    takes_part = [[True, *row] for row in mask] if mask else None
    return from_scores_info_nce(scores, positives=[0] * len(query), mask=takes_part, **options)


def _half_sum(a: Nested, b: Nested) -> Nested:
    """Mean of two losses."""
    return [(p + q) / 2 for p, q in zip(a, b, strict=True)] if isinstance(a, list) else (a + b) / 2


def _two_views(
    row_loss: Callable[[Row, list[int], list[int]], Number],
    view_a: Matrix,
    view_b: Matrix,
    *,
    needs_negative: bool = True,
    temperature: Number = 0.1,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """Reduce a loss of the 2N rows of two views."""
    n = len(view_a)
    scores = score_matrix(view_a + view_b, view_a + view_b, similarity, 1 / mpf(temperature), bilinear)
    if weights and len(weights) == n:
        weights = weights + weights
    return reduce_rows(scores, two_view_pairs(n, mask), weights, reduction, row_loss, needs_negative=needs_negative)


def nt_xent(view_a: Matrix, view_b: Matrix, **options: Any) -> Nested:
    """NT-Xent: 2N views, oneself left out, mean over the 2N."""
    return _two_views(
        lambda row, p, q: info_nce_row(row, p, q, "each"), view_a, view_b, needs_negative=False, **options
    )


def dcl(view_a: Matrix, view_b: Matrix, **options: Any) -> Nested:
    """DCL: NT-Xent without the positive in the denominator."""
    return _two_views(lambda row, p, q: dcl_row(row, p, q, "each"), view_a, view_b, **options)


def flat_nce(
    view_a: Matrix, view_b: Matrix, *, include_positive: bool = False, form: str = "log", **options: Any
) -> Nested:
    """FlatNCE with NT-Xent's pairs."""
    return _two_views(
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
    options: dict[str, Any] = {"weights": weights, "reduction": reduction}
    return _half_sum(
        from_scores_info_nce(scores, mask=mask, **options),
        from_scores_info_nce(transpose(scores), mask=transpose(mask) if mask else None, **options),
    )


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
    temperature: Number = 1.0,
    symmetric: bool = False,
    similarity: str = "cosine",
    bilinear: Matrix | None = None,
    mask: Nested = None,
    weights: Nested = None,
    reduction: str = "mean",
) -> Nested:
    """A named objective over a named pairing."""
    scores = score_matrix(x, x if y is None else y, similarity, 1 / mpf(temperature), bilinear)
    mask = mask or [[True] * len(scores[0]) for _ in scores]
    if pairing == "labels":
        positives = [[a == b for b in columns or labels] for a in labels]
    if pairing == "labels" and columns is None:
        mask = [[takes_part and i != j for j, takes_part in enumerate(row)] for i, row in enumerate(mask)]
    if pairing == "queue":
        mask = [
            [takes_part and (j == i or j >= len(mask)) for j, takes_part in enumerate(row)]
            for i, row in enumerate(mask)
        ]
    row_loss = {"info_nce": info_nce_row, "flat_nce": dcl_row}[objective]

    def reduced(matrix: Matrix, pairs: Pairs) -> Nested:
        return reduce_rows(
            matrix,
            pairs,
            weights,
            reduction,
            lambda row, p, q: row_loss(row, p, q, multi_positive),
            needs_negative=objective == "flat_nce",
        )

    if pairing == "two_views":
        return reduced(scores, two_view_pairs(len(x) // 2, mask))
    forward = reduced(scores, pairs_of(len(scores), len(scores[0]), positives, mask))
    if not symmetric:
        return forward
    turned = pairs_of(len(scores), len(scores[0]), transpose(positives) if positives else None, transpose(mask))
    return _half_sum(forward, reduced(transpose(scores), turned))


# --- bounds ---------------------------------------------------------------------------------------------------------


def bounds_info_nce(scores: Matrix) -> Number:
    """Log of the number of columns minus InfoNCE."""
    return mp.log(len(scores[0])) - from_scores_info_nce(scores)


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


ORACLES: Mapping[str, Callable[..., Nested]] = {
    "info_nce": info_nce,
    "flat_nce": flat_nce,
    "nt_xent": nt_xent,
    "dcl": dcl,
    "clip": clip,
    "contrast": contrast,
    "from_scores.info_nce": from_scores_info_nce,
    "from_scores.flat_nce": from_scores_flat_nce,
    "from_scores.dcl": from_scores_dcl,
    "bounds.info_nce": bounds_info_nce,
    "bounds.dual": bounds_dual,
    "bounds.dual_critic": bounds_dual_critic,
    "diagnostics.effective_sample_size": effective_sample_size,
}
"""The oracle of every loss, by its public name."""


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
    _held.values, _held.position = [], 0
    try:
        value = evaluate(loss, arguments, options)

        def gradient(name: str) -> Nested:
            def moved(nested: Nested) -> Number:
                _held.position = 0
                result = evaluate(loss, {**arguments, name: nested}, options)
                return mp.fsum(result) if isinstance(result, list) else result

            return differences(moved, exact(arguments[name]))

        with mp.workdps(DIGITS):
            gradients = {name: gradient(name) for name in arguments}
    finally:
        _held.values = None
    return value, gradients


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


def error(got: Nested, wanted: Nested) -> float:
    """Give the largest difference relative to the largest magnitude that is wanted; infinite if a NaN turns up."""
    pairs = list(zip(numbers_of(got), numbers_of(wanted), strict=True))
    with mp.workdps(DIGITS):
        differences_ = [abs(mpf(a) - b) for a, b in pairs]
        if any(mp.isnan(d) for d in differences_):
            return float("inf")
        worst, scale = max(differences_), max(abs(mpf(b)) for _, b in pairs)
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
