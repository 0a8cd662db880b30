"""The general loss `contrast`, and the path from arguments to result that all losses share."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, get_args

from . import pairings
from ._core.autodiff import stop_gradient
from ._core.checks import (
    check_block_size,
    check_bool,
    check_called,
    check_choice,
    check_floating,
    check_indices,
    check_mask,
    check_number,
    check_precision,
    check_rows,
    check_shape,
    common_dtype,
    is_at_hand,
    is_half,
    positive_scalar,
    row_weights,
    scalar,
    shape_of,
    temperature_of,
)
from ._core.namespace import common_namespace, device_of, is_array, is_number, lift_to_tape, namespace_of, native
from ._core.notes import listening
from ._core.numerics import continued, largest_entry, largest_score, reciprocal, upcast, zeros
from ._core.protocol import Array, Namespace
from ._core.ranks import RankReport, Ranks, Shards, agree, end_exchange, propagates_errors
from ._core.reduction import REDUCTIONS, Reduction
from ._core.registry import adapter_of
from ._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, ObjectiveName, PairingName, Precision, ReductionName
from ._execution.evaluate import couples_rows, evaluate, is_row_by_row, sums_both_sides
from ._execution.live import all_count, are_paired, needs_of, scores_without_idle, without_idle
from ._execution.matrix import ScoreMatrix, matrix_of_scores
from ._execution.operands import SourceDtypes, operands_of
from ._execution.plans import PLANS, Plan, keep, kind_of
from ._execution.sharded import RankBatch, sharded_matrix
from ._execution.tiling import is_positive
from .objectives import AnyObjective, Objective, Pairwise, RowStatistics
from .objectives import resolve as resolve_objective
from .objectives.hard import HardNegatives
from .objectives.relic import Relic
from .objectives.triplet import Triplet
from .pairings import AheadOfQueue, ByIndex, Pairing, diagonal, half, two_views
from .similarities import (
    AnySimilarity,
    Operands,
    Similarity,
    is_cosine,
    is_dot,
    is_of_prepared,
    measured_operands,
    normalized_here,
    numbers_of_columns,
    operands,
    scaled_columns,
    takes_tokens,
    with_numbers,
)
from .similarities import resolve as resolve_similarity


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
        Weighted mean over the rows that count, weighted sum, or the weighted losses of the rows.
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


class LossOptions(NamedTuple):
    """LossOptions that the losses share, in the order of their signatures.

    `scaled_by`: name of the argument stored as `temperature`. All names but "temperature" mean an inverse temperature.
    """

    temperature: Any
    similarity: AnySimilarity
    mask: Array | None
    weights: Array | None
    reduction: ReductionName
    block_size: BlockSize
    precision: Precision | None
    across: Ranks | None
    symmetric: bool = False
    hardness: float = 0.0
    scaled_by: str = "temperature"


class Embedding(NamedTuple):
    """Upcast embeddings, and the original dtypes of the arrays that they were joined from."""

    array: Array
    dtypes: tuple[Any, ...]

    def joined(self, *others: Embedding) -> Embedding:
        """Concatenation of the rows of these embeddings and others."""
        arrays, dtypes = zip(*(self, *others), strict=True)
        return Embedding(namespace_of(*arrays).concat([*arrays], axis=0), sum(dtypes, ()))


class ColumnLayout(NamedTuple):
    """How the columns of a loss relate to its rows, and to the columns of other ranks.

    Attributes
    ----------
    paired : bool
        Whether there must be as many columns as rows.
    replicated : bool
        Whether the columns, or the extra columns of a pairing that has some, are the same on all ranks.
    joined : int
        Number of arrays that the columns are joined from, each as long as the rows. Each is gathered separately.
    views : int
        Number of rows of each sample; they may share a temperature.
    opposite : tuple of Embedding, optional
        Rows and columns of RELIC's second distribution, if it does not use the transposed scores.
    agreed_on : dict, optional
        Values besides the arguments of the loss that must be equal on all ranks.
    remedy : str
        What to do about more columns than rows, for the message.
    later_weights : array, optional
        Row weights by which the caller multiplies the losses of the rows.
    """

    paired: bool = False
    replicated: bool = False
    joined: int = 1
    views: int = 1
    opposite: tuple[Embedding, Embedding] | None = None
    agreed_on: dict[str, Any] | None = None
    remedy: str = ""
    later_weights: Array | None = None


ANY = ColumnLayout()
PAIRED = ColumnLayout(paired=True)


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
    parameters = {options.scaled_by: options.temperature, **(parameters or {})}
    call = LossCall(embeddings, objective, pairing, options, layout, parameters, dtype)
    kind = None if factor is not None else kind_of(call)
    plan = None if kind is None else PLANS.get(kind)
    return _compute(call, factor, kind) if plan is None else _run_plan(plan, call)


class LossCall(NamedTuple):
    """Arguments of `contrast_embeddings`; the parameters include the temperature or logit scale."""

    embeddings: dict[str, Any]
    objective: Any
    pairing: Pairing
    options: LossOptions
    layout: ColumnLayout
    parameters: dict[str, Any]
    dtype: Any


def _compute(call: LossCall, factor: Callable[[dict[str, Any]], Any] | None, kind: Hashable | None) -> Array:
    """Loss of a call without a kept plan; keeps one if `kind` is given."""
    options = _checked_options(call.options)
    chosen = resolve_similarity(options.similarity)
    args = _check(call, options)
    xp, x, options, across = args.xp, args.x, args.options, options.across
    _check_similarity(chosen, args)

    fixed_objective = isinstance(call.objective, _OBJECTIVES)
    objective = call.objective if fixed_objective else call.objective(args.parameters)
    hardness = check_hardness(options.hardness, objective)
    parameters, shards = args.parameters, None
    if across is not None:
        # Ranks that differ here would exchange different sums and hang; the pairing of a full queue has no flags.
        coupled = across.check and isinstance(objective, Objective)
        coupled = coupled and couples_rows(objective, x, in_one_block=lambda: False)
        shards = _agree_on_arguments(across, args, {"pairing": call.pairing, "coupling of rows": coupled})
        if call.pairing.extra_columns:
            args, chosen = _gather_extra_columns(shards, args, chosen)
            shards = shards._replace(columns=shards.rows)
        parameters = {name: shards.shared(value) for name, value in parameters.items()}
    parameters = _repeat_for_views(parameters, x.shape[0])
    objective = call.objective if fixed_objective else call.objective(parameters)
    args = args._replace(parameters=parameters, objective=objective)
    _check_objective(args, hardness)
    per_row = args.per_row_temperature
    if across is not None:
        _check_objective_across(args, fixed_objective=fixed_objective)
    with adapter_of(x).full_precision(x):
        scale = _scale_in(xp, parameters, options, x)
        matrix = _matrix(
            args,
            chosen,
            scale,
            shards=shards,
            bound=_score_bound(scale, x, one_process=shards is None) if chosen.unit else math.inf,
            block_size=options.block_size,
            sharpness=sharpness_of(hardness, scale, x),
            high=options.precision == "high",
        )
        # With a temperature per row, the matrix is not symmetric.
        self_contrast = len(call.embeddings) == 1 and not per_row
        matrix = matrix._replace(self_contrast=self_contrast, indices_checked=args.pairs.indices_checked)
        if chosen.pullback is None:
            matrix = matrix.dense()
        multiplier = None if factor is None else factor(parameters)
        # Each rank differentiates its part of the sum, so that the factor comes before the exchange.
        factor_in_reduction = per_row or (shards is not None and options.reduction != "none")
        reduction = Reduction(options.reduction, options.weights, shards).in_units()
        if factor_in_reduction:
            reduction = reduction._replace(factors=multiplier) if per_row else reduction._replace(factor=multiplier)
        with nullcontext() if kind is None else listening() as notes:
            result = evaluate(objective, matrix, reduction, symmetric=options.symmetric)
    if multiplier is not None and not factor_in_reduction:
        result = result * multiplier
    end_exchange(across)
    dtype = args.dtype if call.dtype is None else call.dtype
    if notes is not None:
        arrays = [x, *args.partners, *([args.y] if len(call.embeddings) > 1 else [])]
        if not is_at_hand(x):  # elsewhere the next call decides by entries whether rows are replaced by zeros
            arrays = [*matrix.rows, *matrix.partners, *matrix.columns][: len(arrays)]
        keep(kind, notes, _sources(call.pairing, scale, arrays, reduction.weights, parameters), dtype)
    return finish(xp, result, dtype, options.reduction)


def _scale_in(xp: Namespace, parameters: dict[str, Any], options: LossOptions, x: Array) -> Any:
    """Factor of the scores: the logit scale, or the inverse temperature."""
    value = parameters[options.scaled_by]
    return scale_of(xp, value, x) if options.scaled_by == "temperature" else value


def _sources(pairing: Pairing, scale: Any, arrays: list[Array], weights: Any, parameters: dict[str, Any]) -> list[Any]:
    """Candidates for the arrays of a sweep, in an order fixed for the kind of call; the second is the rows."""
    rows, columns, pairs = pairing.arrays
    return [scale, *arrays, *rows, *columns, *pairs, weights, *parameters.values()]


def _run_plan(plan: Plan, call: LossCall) -> Array:
    """Loss by a kept plan; of the arguments, only entries of arrays are checked."""
    options = call.options
    embeddings = [native(x.array if isinstance(x, Embedding) else x) for x in call.embeddings.values()]
    xp = namespace_of(*embeddings)
    for z in embeddings:
        adapter_of(z).check(z)
    arrays = [upcast(xp, z) for z in embeddings]
    x = arrays[0]
    n_rows = x.shape[0]
    parameters = _repeat_for_views(_checked_parameters(xp, call.parameters, options, call.layout, x), n_rows)
    weights = row_weights(xp, options.weights, n_rows, x)
    with adapter_of(x).full_precision(x):
        scale = _scale_in(xp, parameters, options, x)
        matrix = ScoreMatrix(
            resolve_similarity(options.similarity), (x,), (arrays[-1],), call.pairing, partners=tuple(arrays[1:-1])
        )
        if not all_count(matrix, weights, both_ways=options.symmetric):
            if is_at_hand(x):
                return _compute(call, None, None)
            objective = call.objective if isinstance(call.objective, _OBJECTIVES) else call.objective(parameters)
            counting = weights if is_row_by_row(objective, x) else None
            matrix = _with_live_rows(matrix, objective, counting, symmetric=options.symmetric)
            arrays = [*matrix.rows, *matrix.partners, *matrix.columns][: len(arrays)]
        bound = _score_bound(scale, x, one_process=True)
        if not plan.layout.unit:
            bound = largest_score(*arrays, factor=bound)
            if bound == math.inf:
                return _compute(call, None, None)
        reduction = Reduction(options.reduction, weights).in_units()
        sources = _sources(call.pairing, scale, arrays, reduction.weights, parameters)
        result, number = plan.run(sources, scale, bound)
        if not plan.layout.mean:
            result = reduction.of_sum(result, number)
    return finish(xp, result, plan.dtype, options.reduction)


def _check_similarity(chosen: Similarity, args: _Arguments) -> None:
    """Check that the similarity fits the embeddings and the execution."""
    n_rows, n_columns, block_size = args.x.shape[0], args.y.shape[0], args.options.block_size
    same_width(args.options.similarity, args.names[0], args.x, args.names[1], args.y)
    if args.rows_are_columns and is_of_prepared(chosen):
        raise ValueError(
            f"similarity: expected one of embeddings that are not prepared, since {args.names[0]} are rows and columns "
            f"of this loss, got that of prepare; pass similarity='cosine', or what prepare got"
        )
    for name, numbers in numbers_of_columns(chosen) if args.pairs.sharded else ():
        if args.partners:
            raise ValueError(f"similarity: expected no {name} of columns with negative_keys= and across=")
        check_shape(name, numbers, (n_columns,))
    if args.options.symmetric:
        per_row = {"temperature": args.per_row_temperature, "weights": args.options.weights is not None}
        _check_both_directions((n_rows, n_columns), args.pairing, args.objective, args.options.reduction, per_row)
    if chosen.pullback is None and isinstance(block_size, int):
        raise ValueError(
            f"block_size: expected None or 'auto' with a similarity that is a plain function, got {block_size}; to "
            f"stream it, make it a portable_nce.similarities.Similarity with a pullback, or pass None"
        )


def _check_both_directions(
    shape: tuple[int, int], pairing: Pairing, objective: Any, reduction: ReductionName, per_row: dict[str, bool]
) -> None:
    """Check that rows and columns of different numbers can be averaged; `per_row`: whether arguments have N entries.

    Column i has the weight and the temperature of row i. Columns beyond the rows have none, so they must not count.
    """
    if shape[0] == shape[1]:
        return
    if reduction == "none":
        raise ValueError(
            f'reduction: expected "mean" or "sum" with symmetric=True and a score matrix of shape {shape}, got "none"; '
            f"rows and columns have different numbers of losses, so compute them in two calls"
        )
    for name in () if pairing.one_per_column and not isinstance(objective, Pairwise) else per_row:
        if per_row[name]:
            wanted = "one number" if name == "temperature" else "None"
            raise ValueError(
                f"{name}: expected {wanted} with symmetric=True and a score matrix of shape {shape}, got one entry for "
                f"each row; the columns have none"
            )


def check_hardness(hardness: Any, objective: AnyObjective) -> float:
    """Return the hardness, which must be non-negative, and 0 unless the objective is of the softmax family."""
    number: float = check_number("hardness", hardness)
    if number < 0:
        raise ValueError(f"hardness: expected a number that is not negative, got {number}")
    if number and not isinstance(objective, Objective):
        raise ValueError(f"hardness: expected 0 with an objective that is not of the softmax family, got {number}")
    return number


def _check_objective(args: _Arguments, hardness: float) -> None:
    """Refuse a matrix that does not fit the objective, and objectives that are constant without negatives."""
    objective, pairing, n_rows, n_columns = args.objective, args.pairing, args.x.shape[0], args.y.shape[0]
    if args.need_transposed_scores and n_rows != n_columns:
        raise ValueError(
            f"objective: expected another than relic, which compares rows with columns, for {n_rows} rows and "
            f"{n_columns} columns, got relic; for further negatives, use portable_nce.relic(keys=...)"
        )
    if not pairing.without_negatives:
        return
    if hardness:
        raise ValueError(f"hardness: expected 0 with {pairing}, which has no negatives, got {hardness}")
    zero = isinstance(objective, HardNegatives)
    if isinstance(objective, Objective):
        zero = objective.needs_negative or (objective.of_odds is not None and not objective.spreads)
    if zero:
        raise ValueError(
            f"objective: expected one of the positives alone with {pairing}, which has no negatives, got {objective}, "
            f"whose loss would be 0; use objectives.info_nce() with multi_positive='each'"
        )


def sharpness_of(hardness: float, scale: Any, like: Array) -> Array | None:
    """Factor (N,) of the negative scores ``g = scale · s``: in value, ``g + α sg(s)`` is ``(1 + α / scale) g``."""
    if not hardness:
        return None
    zero = stop_gradient(zeros(namespace_of(like), like.shape[:1], like))
    if is_number(scale):
        return zero + (1.0 + hardness / scale)
    ((zero, scale),) = lift_to_tape((zero, stop_gradient(scale)))
    xp = namespace_of(zero)
    return zero + (1.0 + hardness / xp.reshape(scale, (-1,)))


def _check_objective_across(args: _Arguments, *, fixed_objective: bool) -> None:
    """Refuse options that the objective does not support across ranks."""
    if args.per_row_temperature and not fixed_objective:
        raise ValueError(
            "temperature: expected one number with across and this objective, got an array with one for each row; pass "
            "a float or an array of shape ()"
        )
    if args.options.symmetric and isinstance(args.objective, Relic):
        raise ValueError("symmetric: expected False with across and this objective; write relic(symmetric=True)")


_OBJECTIVES = (Objective, Pairwise, HardNegatives, Relic, Triplet)


class _Arguments(NamedTuple):
    """Arguments of a loss of embeddings, checked and upcast.

    `partners`: positives that are separate from the columns of a queue. `embeddings`: rows, partners and columns with
    their original dtypes. `dtype`: dtype of the result.
    """

    xp: Namespace
    names: tuple[str, str]
    x: Array
    partners: list[Array]
    y: Array
    embeddings: Sequence[Embedding]
    parameters: dict[str, Any]
    objective: Any
    pairing: Pairing
    pairs: _PairChecks
    options: LossOptions
    layout: ColumnLayout
    dtype: Any

    @property
    def per_row_temperature(self) -> bool:
        """Whether the temperature is an array with one entry per row."""
        return is_per_row(self.parameters.get("temperature"))

    @property
    def rows_are_columns(self) -> bool:
        """Whether the rows are among the columns, also of the transposed matrix."""
        layout = self.layout
        return len(self.embeddings) == 1 or layout.views > 1 or layout.joined > 1 or layout.opposite is not None

    @property
    def weights(self) -> Array | None:
        """Weights by which the losses of the rows are multiplied, now or later."""
        return self.options.weights if self.layout.later_weights is None else self.layout.later_weights

    @property
    def leaving_out(self) -> Array | None:
        """Weights that leave rows out where they are 0; None if the losses of other rows depend on these rows, too."""
        return self.weights if self.weights is not None and is_row_by_row(self.objective, self.x) else None

    @property
    def need_transposed_scores(self) -> bool:
        """Whether the loss also needs the transposed scores."""
        return isinstance(self.objective, Relic) and self.layout.opposite is None

    @property
    def source_dtypes(self) -> SourceDtypes:
        """Dtypes in which rows and columns are exact."""
        columns: tuple[Any, ...] = sum((z.dtypes for z in self.embeddings[1:] or self.embeddings), ())
        return SourceDtypes(self.embeddings[0].dtypes, columns, self.options.precision)

    @property
    def sent_as(self) -> tuple[Any, Any]:
        """Dtypes in which rows and columns are sent: the original one if all joined arrays share it, else upcast."""
        rows, columns = self.embeddings[0].dtypes, self.embeddings[-1].dtypes
        if self.pairing.extra_columns and len(self.embeddings) > 1:
            columns = columns[:-1]
        rows, columns = (d[0] if len(set(d)) == 1 else self.x.dtype for d in (rows, columns))
        return rows, columns


def _check(call: LossCall, options: LossOptions) -> _Arguments:
    layout, names = call.layout, (next(iter(call.embeddings)), next(reversed(call.embeddings)))
    entered = _entered(call.embeddings, options, call.parameters)
    xp, options = entered.xp, entered.options
    # Rows that are also the columns stay one array, so that a 16-bit gradient is rounded once.
    x, *partners, y = entered.arrays if len(call.embeddings) > 1 else entered.arrays * 2
    for z in (x, y):
        adapter_of(z).check(z)
    shape_of(names[0], x, "(N, D)")
    if layout.paired:
        check_rows(names[1], y, x, layout.remedy)
    shape_of(names[1], y, "(K, D)")
    # Widths first: under torch.compile, a comparison of rows with features would make a graph of its own.
    if y.shape[1] != x.shape[1] and call.pairing.one_per_column and tuple(y.shape) == tuple(x.shape[::-1]):
        check_rows(names[1], y, x)  # transposed
    inputs, dtype, pairs = [*entered.embeddings.values()], entered.dtype, _PairChecks()
    args = _Arguments(
        xp, names, x, partners, y, inputs, entered.others, call.objective, call.pairing, pairs, options, layout, dtype
    )
    return args._replace(
        pairs=_check_pairing(args),
        parameters=_checked_parameters(xp, entered.others, options, layout, x),
        options=options._replace(weights=row_weights(xp, options.weights, x.shape[0], x)),
    )


def _checked_parameters(
    xp: Namespace, parameters: dict[str, Any], options: LossOptions, layout: ColumnLayout, x: Array
) -> dict[str, Any]:
    """Parameters as Python numbers, or as upcast arrays."""
    checked, shared = {}, options.across is not None
    for name, value in parameters.items():
        if name == "temperature":
            checked[name] = temperature_of(xp, value, x.shape[0], x, views=layout.views, shared=shared)
        else:
            checked[name] = (positive_scalar if name == "logit_scale" else scalar)(xp, name, value, x)
    return checked


def _repeat_for_views(parameters: dict[str, Any], rows: int) -> dict[str, Any]:
    """Parameters, with per-sample temperatures repeated for each view."""
    temperature: Any = parameters.get("temperature")
    if not is_per_row(temperature) or temperature.shape[0] == rows:
        return parameters
    copies = [temperature] * (rows // temperature.shape[0])
    return {**parameters, "temperature": namespace_of(temperature).concat(copies, axis=0)}


def _gather_extra_columns(shards: Shards, args: _Arguments, similarity: Similarity) -> tuple[_Arguments, Similarity]:
    """Arguments and similarity with the extra columns of all ranks, in the order of the ranks."""
    if args.layout.replicated:
        return args._replace(layout=args.layout._replace(replicated=False)), similarity
    n_rows, opposite = args.x.shape[0], args.layout.opposite
    extra = tuple(columns - rows for rows, columns in zip(shards.rows, shards.columns, strict=True))
    of_extra = shards._replace(columns=extra)

    def of_all(x: Array, sent_as: Any = None) -> Array:
        return of_extra.gather(x[n_rows:, ...], sent_as=sent_as, of_columns=True, own_first=False)

    def joined(x: Array, extra: Array) -> Array:
        return namespace_of(x, extra).concat([x[:n_rows, ...], extra], axis=0)

    keys = of_all(args.y, args.embeddings[-1].dtypes[-1])
    similarity = with_numbers(similarity, lambda numbers: joined(numbers, of_all(numbers)))
    if opposite is not None:
        rows, columns = opposite
        layout = args.layout._replace(opposite=(rows, columns._replace(array=joined(columns.array, keys))))
        args = args._replace(layout=layout)
    return args._replace(y=joined(args.y, keys)), similarity


def _agree_on_arguments(across: Ranks, args: _Arguments, compared: dict[str, Any]) -> Shards:
    """Shards of the batch, once ranks have compared sizes and the named values."""
    n_rows, (n_columns, width), extra_columns = args.x.shape[0], args.y.shape, args.pairing.extra_columns
    compared = {"features": width, **compared, **(args.layout.agreed_on or {})}
    if args.layout.replicated:
        compared[f"rows of {args.names[1]}"] = n_columns - n_rows if extra_columns else n_columns
        n_columns = n_rows if extra_columns else n_columns
    temperature, pairs = args.parameters.get("temperature"), args.pairs
    report = RankReport(n_rows, n_columns, compared, temperature, pairs.n_columns, pairs.largest_index)
    return agree(across, report, args.x)


def _matrix(args: _Arguments, similarity: Similarity, scale: Any, **options: Any) -> ScoreMatrix:
    """Score matrix of the rows of this process against all columns, with its transpose if that is not a plain one.

    With a temperature per row, column i has the temperature of row i in the transpose.
    """
    matrix, symmetric = _matrix_of(args, similarity, scale, **options), args.options.symmetric
    if args.layout.opposite is not None:
        rows, columns = args.layout.opposite
        own_transpose = args._replace(x=rows.array, y=columns.array, embeddings=(rows, columns))
        return matrix._replace(own_transpose=_matrix_of(own_transpose, similarity, scale, **options))
    if args.per_row_temperature and (symmetric or args.need_transposed_scores):
        of_columns = scaled_columns(similarity, continued(scale[:, 0], args.y.shape[0]))
        other = _matrix_of(args, of_columns, 1.0, need_transpose=symmetric, **options)
        return matrix._replace(own_transpose=other.transposed())
    return matrix


def _matrix_of(
    args: _Arguments, similarity: Similarity, scale: Any, *, need_transpose: bool = False, **options: Any
) -> ScoreMatrix:
    """Score matrix of the rows of this process; across ranks, with its shard of the transpose if needed."""
    shards, replicated, x, y, mask = options["shards"], args.layout.replicated, args.x, args.y, args.options.mask
    if shards is None or args.partners or replicated:
        if shards is not None and not replicated:
            sent_as = args.embeddings[-1].dtypes[-1]
            args = args._replace(y=shards.gather(y, sent_as=sent_as, of_columns=True, own_first=False))
        return _local_matrix(args, similarity, scale, **options)
    pairing, sent_as = args.pairing, args.sent_as
    if args.weights is None and are_paired(pairing, mask, both_ways=x is y) and not any(map(is_half, sent_as)):
        similarity, x, y = normalized_here(similarity, x, y)
    if args.options.symmetric:
        reduction = args.options.reduction
        need_transpose = need_transpose or options["sharpness"] is not None
        need_transpose = need_transpose or not sums_both_sides(
            args.objective, similarity, pairing, mask, x, reduction=reduction
        )
    batch = RankBatch(
        x, y, sent_as, args.source_dtypes, mask, args.layout.joined, needs_of(args.objective), args.leaving_out
    )
    return sharded_matrix(
        batch,
        similarity,
        pairing,
        scale,
        need_transposed_scores=args.need_transposed_scores,
        need_transpose=need_transpose,
        **options,
    )


def _local_matrix(args: _Arguments, similarity: Similarity, scale: Any, **options: Any) -> ScoreMatrix:
    """Score matrix of rows and columns that this process holds."""
    xp, pairing, mask, x, partners, y = args.xp, args.pairing, args.options.mask, args.x, args.partners, args.y
    if partners and not (
        mask is None and similarity.inner_product and similarity.symmetric and is_positive(y.shape[0])
    ):
        partners, y = [], xp.concat([*partners, y], axis=0)  # separate partners need inner products
    symmetric, crossed = args.options.symmetric, args.need_transposed_scores
    matrix = ScoreMatrix(similarity, (x,), (y,), pairing, mask, options["block_size"], partners=tuple(partners))
    if not all_count(matrix, args.weights, both_ways=symmetric or crossed):
        matrix = _with_live_rows(matrix, args.objective, args.leaving_out, symmetric=symmetric, crossed=crossed)
        (x,), partners, (y,), pairing = matrix.rows, [*matrix.partners], matrix.columns, matrix.pairing
        similarity = matrix.similarity
    if is_cosine(similarity) or is_dot(similarity):
        if is_dot(similarity):
            options["bound"] = largest_score(x, *partners, y, factor=_score_bound(scale, x, one_process=True))
        options |= {"scale": scale, "half": args.source_dtypes.half(similarity, x)}
        return ScoreMatrix(similarity, (x,), (y,), pairing, mask, partners=tuple(partners), **options)
    partner_operands: Operands = ()
    similarity, rows, columns, bound = operands_of(similarity, x, y, scale, args.source_dtypes)
    if partners:  # separate operands avoid a copy of the queue, and its gradient
        _, partner_operands, partner_bound = measured_operands(similarity, x, partners[0], scale)
        bound = max(bound, partner_bound)
        if not (similarity.unit or bound < math.inf):  # products with either might overflow
            partner_operands, y = (), namespace_of(*partners, y).concat([*partners, y], axis=0)
            similarity, rows, columns, bound = operands_of(similarity, x, y, scale, args.source_dtypes)
    options["bound"] = min(options["bound"], bound)
    return ScoreMatrix(similarity, rows, columns, pairing, mask, partners=partner_operands, **options)


def _with_live_rows(
    matrix: ScoreMatrix, objective: AnyObjective, weights: Array | None, *, symmetric: bool, crossed: bool = False
) -> ScoreMatrix:
    """Matrix of embeddings with zeros where a row or column does not count; `crossed`: transposed scores are used."""
    opposite = matrix.transposed() if symmetric else matrix.transposed_scores() if crossed else None
    return without_idle(matrix, needs_of(objective), weights, opposite)


def _score_bound(scale: Any, like: Array, *, one_process: bool) -> float:
    """Largest magnitude of the scores of unit rows, infinite if unknown; small scores need no shift in exponentials.

    Traced steps always shift: it is cheap there, and log-odds gain a digit. Across ranks only a Python number is known
    to be equal.
    """
    if adapter_of(like).mode == "traced" or not (one_process or is_number(scale)):
        return math.inf
    number = abs(scale) if is_number(scale) else largest_entry(scale)
    return math.inf if number is None else float(number)


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
        _check_both_directions(tuple(scores.shape), pairing, objective, reduction.kind, given)
    matrix = matrix_of_scores(scores, pairing, mask)._replace(sharpness=sharpness)
    crossed = isinstance(objective, Relic)
    if not all_count(matrix, reduction.weights, both_ways=symmetric or crossed):
        weights = reduction.weights if is_row_by_row(objective, scores) else None
        # A row whose only score is -inf has no positive, and does not count: it must stay.
        needs = needs_of(objective)._replace(negative=False)
        matrix = scores_without_idle(matrix, needs, weights, symmetric=symmetric, crossed=crossed)
    return evaluate(objective, matrix, reduction, symmetric=symmetric)


class Entered(NamedTuple):
    """Checked arguments of a loss that computes with its embeddings: of one library and device; embeddings upcast.

    `others`: other arrays and numbers by name. `dtype`: dtype of the result.
    """

    xp: Namespace
    embeddings: dict[str, Embedding]
    others: dict[str, Any]
    options: LossOptions
    dtype: Any

    @property
    def arrays(self) -> list[Array]:
        """Upcast arrays of the embeddings."""
        return [embedding.array for embedding in self.embeddings.values()]

    def with_arrays(self, *arrays: Array) -> dict[str, Embedding]:
        """Embeddings by name, with the arrays replaced."""
        named = zip(self.embeddings.items(), arrays, strict=True)
        return {name: embedding._replace(array=array) for (name, embedding), array in named}

    def reduced(self, values: Array, counted: Array, shards: Shards | None, number: Array | None = None) -> Array:
        """Reduced row losses, in the dtype of the result."""
        options = self.options
        result = Reduction(options.reduction, options.weights, shards).of_values(values, counted, number)
        end_exchange(options.across)
        return finish(self.xp, result, self.dtype, options.reduction)


def enter_embeddings(
    embeddings: dict[str, Array],
    options: LossOptions,
    others: dict[str, Array] | None = None,
    *,
    axes: str | None = "(N, D)",
    numbers: dict[str, Any] | None = None,
) -> Entered:
    """Check the options and the named arrays, and upcast 16-bit ones once, so that gradients are rounded once.

    Embeddings must have the shape that `axes` names and as many rows as the first. If `axes` is None, neither this nor
    the temperature and the row weights are checked. `numbers` may be arrays of one entry.
    """
    options = _checked_options(options)
    entered = _entered(embeddings, options, {**(numbers or {}), options.scaled_by: options.temperature}, others)
    xp, arrays, weights = entered.xp, entered.arrays, entered.options.weights
    scale = entered.others.pop(options.scaled_by)
    if axes is None:
        scale = upcast(xp, scale) if is_array(scale) and not is_number(scale) else scale
        weights = None if weights is None else upcast(xp, weights)
    else:
        n_rows = shape_of(next(iter(embeddings)), arrays[0], axes)[0]
        for name, x in zip(embeddings, arrays, strict=True):
            adapter_of(x).check(x)
            shape_of(name, x, axes)
            check_rows(name, x, arrays[0])
        if options.scaled_by == "temperature":
            scale = temperature_of(xp, scale, n_rows, arrays[0], shared=options.across is not None)
        weights = row_weights(xp, weights, n_rows, arrays[0])
    return entered._replace(options=entered.options._replace(temperature=scale, weights=weights))


def _checked_options(options: LossOptions) -> LossOptions:
    """LossOptions with those checked that are not arrays."""
    check_choice("reduction", options.reduction, REDUCTIONS)
    symmetric = check_bool("symmetric", options.symmetric)
    block_size = check_block_size(options.block_size)
    check_precision(options.precision)
    return options._replace(symmetric=symmetric, block_size=block_size)


def _entered(
    embeddings: dict[str, Any], options: LossOptions, numbers: dict[str, Any], others: dict[str, Array] | None = None
) -> Entered:
    """Check that all arrays, with mask and weights, are of one library and device; upcast the embeddings.

    Upcast arrays are passed as `Embedding`.
    """
    bare = {name: x.array if isinstance(x, Embedding) else x for name, x in embeddings.items()}
    arrays = {name: x for name, x in numbers.items() if is_array(x) and not is_number(x)} | (others or {})
    xp, (*converted, mask, weights) = common_namespace(**bare, **arrays, mask=options.mask, weights=options.weights)
    bare = dict(zip(bare, converted, strict=False))
    check_floating(xp, **bare)
    upcasted = {}
    for name, x in embeddings.items():
        embedding = x if isinstance(x, Embedding) else Embedding(x, (bare[name].dtype,))
        upcasted[name] = embedding._replace(array=upcast(xp, bare[name]))
    entered = numbers | dict(zip(arrays, converted[len(bare) :], strict=True))
    options = options._replace(mask=mask, weights=weights)
    return Entered(xp, upcasted, entered, options, common_dtype(xp, *bare.values()))


def result_dtype(xp: Namespace, *embeddings: Embedding) -> Any:
    """Dtype that all arrays of embeddings had before the upcast, or float32 if they differ."""
    first, *others = (dtype for embedding in embeddings for dtype in embedding.dtypes)
    return first if all(dtype == first for dtype in others) else xp.float32


def pair_scores(similarity: AnySimilarity, x: Array, keys: Array, scale: Any = 1.0) -> Array:
    """Scores (N, M) of row i of `x` (N, D) with ``keys[i]``; the keys are (N, M, D), or (N, D) for M = 1."""
    chosen, xp = resolve_similarity(similarity), namespace_of(x, keys)
    keys = keys if len(keys.shape) > len(x.shape) else xp.expand_dims(keys, axis=1)
    if not is_number(scale) and len(scale.shape) > 0:  # one entry per row
        scale = namespace_of(scale).expand_dims(scale, axis=2)
    with adapter_of(x).full_precision(x):
        scores = chosen.scores(*operands(chosen, xp.expand_dims(x, axis=1), keys, scale))
    return namespace_of(scores).reshape(scores, (scores.shape[0], scores.shape[2]))


def statistics_of_rows(x: Embedding, columns: Embedding, pairing: Pairing, options: LossOptions) -> RowStatistics:
    """Differentiable row statistics of the scores at temperature 1."""
    chosen = resolve_similarity(options.similarity)
    with adapter_of(x.array).full_precision(x.array):
        source_dtypes = SourceDtypes(x.dtypes, columns.dtypes, precision=options.precision)
        chosen, rows, others, bound = operands_of(chosen, x.array, columns.array, 1.0, source_dtypes)
        common: dict[str, Any] = {"block_size": options.block_size, "bound": bound}
        return ScoreMatrix(chosen, rows, others, pairing, **common).statistics().row


def shards_of_rows(across: Ranks | None, x: Array, temperature: Any = None) -> Shards | None:
    """Shards of the rows `x`, for losses that gather no rows; None without ranks."""
    if across is None:
        return None
    return agree(across, RankReport(x.shape[0], x.shape[0], {"features": x.shape[-1]}, temperature), x)


def inverse(xp: Namespace, temperature: Any, like: Array) -> Array:
    """``1 / temperature`` in the precision of `like`, which may exceed that of a Python float."""
    if is_number(temperature):
        if like.dtype == xp.float32:
            return 1.0 / float(temperature)
        temperature = xp.full((), temperature, dtype=like.dtype, device=device_of(like))
    return reciprocal(temperature)


def is_per_row(temperature: Any) -> bool:
    """Whether a checked temperature is an array with one entry per row."""
    return is_array(temperature) and not is_number(temperature) and len(temperature.shape) == 1


def scale_of(xp: Namespace, temperature: Any, like: Array, shards: Shards | None = None) -> Any:
    """Factor of the scores of embeddings `like`: one number, which ranks share, or an array (N, 1, ...)."""
    if shards is not None:
        temperature = shards.shared(temperature)
    scale = inverse(xp, temperature, like)
    return xp.reshape(scale, (-1, *[1] * (len(like.shape) - 1))) if is_per_row(temperature) else scale


def has_own_column(xp: Namespace, mask: Array, first: Any = 0) -> Array:
    """Boolean array (N,) of rows i whose column ``first + i`` a mask (N, K) keeps."""
    n_rows, n_columns = mask.shape
    column, row = (xp.arange(n, device=device_of(mask)) for n in (n_columns, n_rows))
    return xp.any(xp.logical_and(mask, (row + first)[:, None] == column[None, :]), axis=1)


def finish(xp: Namespace, result: Array, dtype: Any, reduction: ReductionName) -> Array:
    """Result in the dtype of the input, and 0-d unless it is one value per row."""
    if hasattr(result, "__recorded__"):
        xp = namespace_of(result)  # a parameter of a similarity or objective can be on the tape without the embeddings
    if is_half(dtype):
        dtype = adapter_of(result).loss_dtype(result, dtype)
    result = result if result.dtype == dtype else xp.astype(result, dtype)
    return result if reduction == "none" else xp.reshape(result, ())


def add(parts: Sequence[Array], dtype: Any, reduction: ReductionName, *, divide_by: int = 1) -> Array:
    """Sum of finished results divided by `divide_by`, in the dtype of the input."""
    xp, entered = common_namespace(**{f"part {k}": part for k, part in enumerate(parts)})
    total, *others = (xp.reshape(part, (-1,)) for part in entered)  # NumPy's sum of two 0-d arrays is a scalar
    for other in others:
        total = total + other
    return finish(xp, total / divide_by if divide_by > 1 else total, dtype, reduction)


def same_width(similarity: object, row_name: str, x: Array, column_name: str, y: Array) -> None:
    """Check that embeddings for a named similarity have the same width; other similarities check themselves."""
    if isinstance(similarity, str) and x.shape[-1] != y.shape[-1]:
        remedy = "project one of them, or use similarity=bilinear(weight)"
        remedy = f"pass {column_name}.T" if tuple(y.shape[:-1]) == (x.shape[-1],) else remedy
        raise ValueError(
            f"{column_name}: expected {x.shape[-1]} features as in {row_name}, got shape {tuple(y.shape)}; {remedy}"
        )


class _PairChecks(NamedTuple):
    """Result of checking a pairing's arrays and a mask.

    `indices_checked`: indices are known to be in range. `n_columns`: number of columns of arrays of pairs without
    those that are the same on all ranks, 0 without arrays. `sharded`: other ranks have other columns.
    """

    indices_checked: bool = False
    n_columns: int = 0
    largest_index: int = 0
    sharded: bool = False


def _check_pairing(args: _Arguments) -> _PairChecks:
    """Check that a pairing and a mask fit the matrix and its library.

    Across ranks, arrays of pairs have the columns of all ranks, whose number is checked later, by `agree`. `n_common`
    columns are the same on all ranks.
    """
    x, pairing, mask, replicated = args.x, args.pairing, args.options.mask, args.layout.replicated
    n_rows, n_columns = x.shape[0], args.y.shape[0]
    n_common = n_rows if args.partners else n_columns - n_rows if replicated and pairing.extra_columns else 0
    n_columns += n_rows * len(args.partners)
    across = args.options.across is not None and (pairing.extra_columns or not replicated)
    _check_fits(pairing, args.names, (n_rows, n_columns), across=across and not n_common)
    n_sharded = 0
    if across:
        for pair in (*pairing.pairs, *(() if mask is None else (mask,))):
            n_sharded = n_sharded or shape_of("mask", pair, "(N, K)")[1] - n_common
    pair_shape = (n_rows, n_sharded + n_common if across else n_columns)
    if mask is not None:
        check_mask(namespace_of(mask), "mask", mask, pair_shape)
    for part, arrays, expected in (
        ("rows", pairing.rows, (n_rows,)),
        ("columns", pairing.columns, (n_columns,)),
        ("pairs", pairing.pairs, pair_shape),
    ):
        for array in arrays:
            common_namespace(**{args.names[0]: x, f"pairing.{part}": array})
            check_shape(f"pairing.{part}", array, (*expected, *(() if part == "pairs" else array.shape[1:2])))
    if not isinstance(pairing.positives, ByIndex):
        return _PairChecks(n_columns=n_sharded, sharded=across)
    index = pairing.positives.index
    xp = namespace_of(index)
    if not across:
        return _PairChecks(check_indices(xp, "positives", index, n_columns, f"the rows of {args.names[1]}"))
    largest = adapter_of(index).concrete_value(xp.max(index))
    checked = check_indices(xp, "positives", index, 2**31, "all columns")
    return _PairChecks(checked, n_sharded, int(largest or 0), sharded=True)


def _check_fits(pairing: Pairing, names: tuple[str, str], shape: tuple[int, int], *, across: bool) -> None:
    """Check that a pairing fits a matrix of this shape; with `across`, the shape is that of one rank's matrix."""
    (row_name, column_name), (n_rows, n_columns) = names, shape
    if pairing.positives.views == 2 and not pairing.extra_columns:  # noqa: PLR2004  (others are stacked here)
        half(n_rows, n_columns)
    if across and (isinstance(pairing.positives, AheadOfQueue) or (pairing.one_per_column and n_columns != n_rows)):
        raise ValueError(
            f"pairing: expected on each rank as many rows of {column_name} as of {row_name}, got {shape}; for extra "
            f"negatives, use info_nce(..., negative_keys) or moco"
        )
    if pairing.one_per_column and n_columns < n_rows:
        raise ValueError(
            f"{column_name}: expected at least as many rows as {row_name}, {n_rows}, got {n_columns}: row i is paired "
            f"with row i; name the pairs by positives or another pairing"
        )
