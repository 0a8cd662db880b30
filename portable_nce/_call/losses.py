"""The general loss `contrast`, and the paths from arguments to result that all losses share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

from .. import pairings
from .._core.checks import check_called, check_choice, row_weights, warn_of_number
from .._core.namespace import namespace_of
from .._core.numerics import upcast
from .._core.protocol import Array
from .._core.ranks import Ranks, end_exchange, propagates_errors
from .._core.reduction import REDUCTIONS, Reduction, finish
from .._core.registry import adapter_of
from .._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, ObjectiveName, PairingName, Precision, ReductionName
from .._execution.choice import statistics
from .._execution.evaluate import couples_rows, evaluate, is_row_by_row
from .._execution.live import all_count, scores_without_idle
from .._execution.matrix import ScoreMatrix, matrix_of_scores
from .._execution.operands import half_of, operands_of
from .._execution.tiling import averages_errors
from ..objectives import OBJECTIVES, AnyObjective, RowStatistics
from ..objectives import resolve as resolve_objective
from ..pairings import Pairing, diagonal, two_views
from ..similarities import AnySimilarity, takes_tokens
from ..similarities import resolve as resolve_similarity
from .entry import (
    agree_on_arguments,
    check_both_directions,
    check_hardness,
    check_objective,
    check_objective_across,
    check_prepared,
    check_similarity,
    checked,
    checked_options,
    repeat_for_views,
    scale_of,
    warn_of_arrays,
    warn_of_scale,
)
from .matrices import gather_extra_columns, score_bound, score_matrix, sharpness_of
from .records import ANY, Call, ColumnLayout, Embedding, LossOptions


@propagates_errors
@takes_tokens
def contrast(
    x: ArrayOf[ArrayT],
    /,
    y: AnyArray | None = None,
    *,
    objective: ObjectiveName | AnyObjective | Callable[[RowStatistics], Array],
    pairing: PairingName | Pairing = "diagonal",
    similarity: AnySimilarity = "cosine",
    temperature: float | AnyArray = 1.0,
    symmetric: bool = False,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    hardness: float = 0.0,
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return a contrastive loss made of a similarity, a pairing and an objective.

    .. math:: \frac{1}{\sum_i w_i} \sum_i w_i\, \ell\big(\{g_{ij}\}_{j \in P(i)}, \{g_{ij}\}_{j \in Q(i)}\big),
        \qquad g_{ij} = s(x_i, y_j) / \tau

    over the rows i that count; the similarity s makes the scores, the pairing the sets of positives P(i) and negatives
    Q(i), and the objective the loss of a row.

    Parameters
    ----------
    x : array, shape (N, D)
        Embeddings of the rows.
    y : array, shape (K, D), optional
        Embeddings of the columns; None contrasts `x` with itself.
    objective : {"info_nce", "flat_nce", "logistic"}, Objective, Pairwise or callable
        A name, an objective of `portable_nce.objectives`, or a function from `RowStatistics` to losses (N,).
    pairing : {"diagonal", "two_views"} or Pairing, default: "diagonal"
        A name, or a pairing of `portable_nce.pairings`.
    similarity : {"cosine", "dot", "neg_sq_euclidean", ...}, Similarity or callable, default: "cosine"
        A name, a similarity of `portable_nce.similarities`, or a function from (N, D), (K, D) to scores (N, K).
    temperature : float, or array of one entry or of shape (N,), default: 1.0
        Temperature τ > 0, shared or one per row; differentiable if an array.
    symmetric : bool, default: False
        Whether to average the loss of the rows and the loss of the columns that count. With N ≠ K, row losses are not
        returned, and only pairings of row i with column i take `weights` and temperatures of rows.
    mask : array of bool, shape (N, K), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the rows (with `symmetric`, of the columns too).
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that count (0 if none counts), weighted sum, or the weighted losses of the rows.
    hardness : float, default: 0.0
        Strength α ≥ 0 of the emphasis on hard negatives: the constant :math:`\alpha\, \mathrm{sg}(s_{ij})` is added to
        their scores :math:`g_{ij}`. For objectives of the softmax family.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `x`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    Examples
    --------
    PyTorch, with one positive per row and a learned temperature; then with positives by label, and FlatNCE:

    >>> import torch
    >>> import portable_nce as pnce
    >>> x = torch.randn(256, 128, requires_grad=True)
    >>> y = torch.randn(256, 128, requires_grad=True)
    >>> log_temperature = torch.nn.Parameter(torch.tensor(0.07).log())
    >>> pnce.contrast(x, y, objective="info_nce", temperature=log_temperature.exp()).backward()
    >>> x.grad.shape, log_temperature.grad.shape
    (torch.Size([256, 128]), torch.Size([]))
    >>> pairing = pnce.pairings.labels(torch.randint(10, (256,)))
    >>> loss = pnce.contrast(x, objective="flat_nce", pairing=pairing, temperature=0.1)

    NumPy, with another similarity:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> a, noise = rng.standard_normal((2, 256, 128)) / 8
    >>> pnce.contrast(a, a + noise, objective="info_nce", similarity="neg_sq_euclidean")
    array(1.99249...)
    """
    if isinstance(pairing, str):
        names = get_args(PairingName)
        if pairing in pairings.__all__ and pairing not in names:
            raise ValueError(f"pairing: expected one of {names}, got {pairing!r}; pass pairings.{pairing}(...)")
        check_choice("pairing", pairing, names)
        pairing = diagonal() if pairing == "diagonal" else two_views()
    elif not isinstance(pairing, Pairing):
        check_called("pairing", pairing, "pairings")
        raise TypeError(f"pairing: expected a name or a portable_nce.pairings.Pairing, got {type(pairing).__name__}")
    return contrast_embeddings(
        {"x": x} if y is None else {"x": x, "y": y},
        resolve_objective(objective),
        pairing,
        LossOptions(
            temperature, similarity, mask, weights, reduction, block_size, precision, across, symmetric, hardness
        ),
    )


def contrast_embeddings(
    embeddings: dict[str, Any],
    objective: AnyObjective | Callable[[dict[str, Any]], AnyObjective],
    pairing: Pairing,
    options: LossOptions,
    layout: ColumnLayout = ANY,
    *,
    dtype: Any = None,
    parameters: dict[str, Any] | None = None,
    factor: Callable[[dict[str, Any]], Any] | None = None,
) -> Array:
    """Loss of two named arrays of embeddings, or of one with itself.

    Upcast arrays are passed as `Embedding`. Three arrays are rows, their positives, and the extra columns of a queue.
    The objective and the `factor` of the loss may be functions of the temperature (or logit scale) and `parameters`,
    which are numbers or arrays of one entry. The result has the dtype of the arrays, or `dtype`.
    """
    warn_of_scale(options, next(iter(embeddings.values())))
    parameters = {options.scaled_by: options.temperature, **(parameters or {})}
    return _computed(Call(embeddings, options, parameters, objective, pairing, layout, dtype), factor)


def _computed(call: Call, factor: Callable[[dict[str, Any]], Any] | None) -> Array:
    fixed_objective, self_contrast = isinstance(call.objective, OBJECTIVES), len(call.embeddings) == 1
    given, first = call, next(iter(call.embeddings.values()))
    call, objective_of = call._replace(options=checked_options(call.options)), call.objective
    chosen = resolve_similarity(call.options.similarity)
    call = checked(call)
    x, options, across = call.x, call.options, call.options.across
    check_similarity(chosen, call)

    objective = objective_of if fixed_objective else objective_of(call.numbers)
    hardness = check_hardness(options.hardness, objective)
    # As long as other ranks would hear of a warning that is an error.
    warn_of_arrays(given.options, first)
    if "logit_bias" in given.numbers:
        # In a sum over pairs that are mostly negative, it is below 0.
        warn_of_number("logit_bias", given.numbers["logit_bias"], first, most=1.0)
    numbers, shards = call.numbers, None
    if across is not None:
        check_prepared(chosen, call, across)
        # Ranks that differ here would exchange different sums and hang; the pairing of a full queue has no flags.
        coupled = across.check and couples_rows(objective, x)
        shards = agree_on_arguments(across, call, {"pairing": call.pairing, "coupling of rows": coupled})
        if call.pairing.extra_columns:
            call, chosen = gather_extra_columns(shards, call, chosen)
            shards = shards._replace(columns=shards.rows)
        numbers = {name: shards.shared(value) for name, value in numbers.items()}
    numbers = repeat_for_views(numbers, x.shape[0])
    objective = objective_of if fixed_objective else objective_of(numbers)
    call = call._replace(numbers=numbers, objective=objective)
    check_objective(call, hardness)
    per_row = call.per_row_temperature
    if across is not None:
        check_objective_across(call, fixed_objective=fixed_objective)
    with adapter_of(x).full_precision(x):
        scale = numbers[options.scaled_by]
        scale = scale_of(call.xp, scale, x) if options.scaled_by == "temperature" else scale
        matrix = score_matrix(
            call,
            chosen,
            scale,
            shards=shards,
            bound=score_bound(scale, x, one_process=shards is None) if chosen.unit else math.inf,
            block_size=options.block_size,
            sharpness=sharpness_of(hardness, scale, x),
            high=options.precision == "high",
        )
        # With a temperature per row, the matrix is not symmetric.
        matrix = matrix._replace(self_contrast=self_contrast and not per_row, indices_checked=call.indices_checked)
        if chosen.pullback is None:
            matrix = matrix.dense(crossed=objective.crossed)
        multiplier = None if factor is None else factor(numbers)
        # Each rank differentiates its part of the sum, so that the factor comes before the exchange.
        factor_in_reduction = per_row or (shards is not None and options.reduction != "none")
        reduction = Reduction(options.reduction, options.weights, shards).in_units()
        if factor_in_reduction:
            reduction = reduction._replace(factors=multiplier) if per_row else reduction._replace(factor=multiplier)
        result = evaluate(objective, matrix, reduction, symmetric=options.symmetric)
    if multiplier is not None and not factor_in_reduction:
        result = result * multiplier
    end_exchange(across)
    return finish(call.xp, result, call.dtype, options.reduction)


def statistics_of_rows(x: Embedding, columns: Embedding, pairing: Pairing, options: LossOptions) -> RowStatistics:
    """Differentiable row statistics of the scores at temperature 1."""
    chosen = resolve_similarity(options.similarity)
    with adapter_of(x.array).full_precision(x.array):
        half = half_of(chosen, x.array, x.dtypes + columns.dtypes, options.precision)
        chosen, rows, others, bound = operands_of(chosen, x.array, columns.array, 1.0, half)
        common: dict[str, Any] = {"block_size": options.block_size, "bound": bound}
        return statistics(ScoreMatrix(chosen, rows, others, pairing, **common))


def contrast_scores(
    scores: Array, objective: AnyObjective, pairing: Pairing, reduction: Reduction, **options: Any
) -> Array:
    """Loss of a score matrix, in its dtype; the options are those of `loss_of_scores`."""
    xp = namespace_of(scores)
    loss = loss_of_scores(upcast(xp, scores), objective, pairing, reduction, **options)
    return finish(xp, loss, scores.dtype, reduction.kind)


def loss_of_scores(
    scores: Array,
    objective: AnyObjective,
    pairing: Pairing,
    reduction: Reduction,
    *,
    mask: Array | None,
    symmetric: bool = False,
    sharpness: Array | None = None,
) -> Array:
    """Loss of upcast scores, of shape (1,) or (N,); all arguments but the reduction have been checked."""
    check_choice("reduction", reduction.kind, REDUCTIONS)
    xp = namespace_of(scores)
    adapter_of(scores).check(scores)
    reduction = reduction._replace(weights=row_weights(xp, reduction.weights, scores.shape[0], scores)).in_units()
    if symmetric:
        given = {"weights": reduction.weights is not None}
        check_both_directions(tuple(scores.shape), pairing, objective, reduction.kind, given)
    crossed = objective.crossed
    matrix = matrix_of_scores(scores, pairing, mask)._replace(sharpness=sharpness).measured(crossed=crossed)
    if not all_count(matrix, reduction.weights, both_ways=symmetric or crossed):
        weights = reduction.weights if is_row_by_row(objective, scores) else None
        # A row whose only score is -inf has no positive, and does not count: it must stay.
        needs = objective.needs._replace(negative=False)
        matrix = scores_without_idle(matrix, needs, weights, symmetric=symmetric, crossed=crossed)
        matrix = matrix.measured(crossed=crossed)
    if not averages_errors(scores.shape[1]):
        matrix = matrix._replace(bound=math.inf)  # exponentials have a shift
    return evaluate(objective, matrix, reduction, symmetric=symmetric)
