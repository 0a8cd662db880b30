"""The general entry: similarity, pairing, objective and execution, each chosen freely."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, get_args

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
    is_half,
    positive_scalar,
    row_weights,
    scalar,
    shape_of,
    temperature_of,
)
from ._core.namespace import common_namespace, device_of, is_array, is_number, lift_to_tape, namespace_of, native
from ._core.notes import listening
from ._core.numerics import largest_entry, largest_score, reciprocal, rows_where, upcast, zeros
from ._core.protocol import Array, Namespace
from ._core.ranks import Notes, Ranks, Shards, agree, end_exchange, propagates_errors
from ._core.reduction import REDUCTIONS, Reduction
from ._core.registry import adapter_of
from ._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, ObjectiveName, PairingName, Precision, ReductionName
from ._execution.evaluate import couples_rows, evaluate, sums_both_sides
from ._execution.matrix import ScoreMatrix, given
from ._execution.operands import SourceDtypes, multiplies_halves, operands_of
from ._execution.plans import PLANS, Plan, keep, kind_of
from ._execution.sharded import RankBatch, sharded_matrix
from ._execution.tiling import is_positive
from .objectives import AnyObjective, Objective, Pairwise, RowStatistics
from .objectives import resolve as resolve_objective
from .objectives.hard import HardNegatives
from .objectives.relic import Relic
from .objectives.triplet import Triplet
from .pairings import Pairing, diagonal, half, two_views
from .similarities import (
    AnySimilarity,
    Operands,
    Similarity,
    is_cosine,
    is_dot,
    measured_operands,
    normalized_here,
    number_of_flags,
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
        Temperature τ > 0, or that of each row; differentiable as an array.
    symmetric : bool, default: False
        Whether to average the loss of the rows and the loss of the columns.
    mask : array of bool, shape (N, K), optional
        Pairs that take part; all by default.
    weights : array, shape (N,), optional
        Weights of the rows (with `symmetric`, of the columns too).
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the rows that count, weighted sum, or the weighted losses of the rows.
    hardness : float, default: 0.0
        The strength α ≥ 0 with which negatives count more the harder they are: :math:`\alpha\, \mathrm{sg}(s_{ij})`,
        a constant, is added to their scores :math:`g_{ij}`. For objectives of the softmax family.
    block_size : int, None or "auto", default: "auto"
        Rows at a time, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        How matrices are multiplied; see :doc:`/options`.
    across : Ranks, optional
        Ranks that have other rows of the same batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `x`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit.

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
        check_choice("pairing", pairing, get_args(PairingName))
        pairing = diagonal() if pairing == "diagonal" else two_views()
    elif not isinstance(pairing, Pairing):
        check_called("pairing", pairing, "pairings")
        raise TypeError(f"pairing: expected a name or a portable_nce.pairings.Pairing, got {type(pairing).__name__}")
    return contrast_embeddings(
        {"x": x} if y is None else {"x": x, "y": y},
        resolve_objective(objective),
        pairing,
        Options(temperature, similarity, mask, weights, reduction, block_size, precision, across, symmetric, hardness),
    )


class Options(NamedTuple):
    """Options that the losses share, in the order of their signatures.

    `scaled_by` is the name under which the temperature was given: a logit scale is its inverse.
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
    """Embeddings in the dtype to compute in, and the dtypes of the arrays that they were joined from.

    `multiplied_in`: 16-bit dtype of the operands, if the embeddings are a product of these.
    """

    array: Array
    dtypes: tuple[Any, ...]
    multiplied_in: Any = None

    def joined(self, *others: Embedding) -> Embedding:
        """These embeddings and the rows of others below them."""
        arrays, dtypes = zip(*(embedding[:2] for embedding in (self, *others)), strict=True)
        return Embedding(namespace_of(*arrays).concat([*arrays], axis=0), sum(dtypes, ()))


class Layout(NamedTuple):
    """How the columns of a loss relate to its rows, and to the columns of other ranks.

    Attributes
    ----------
    paired : bool
        Whether there must be as many columns as rows.
    replicated : bool
        Whether the columns are the same on all ranks. If the pairing has extra columns, whether these are.
    joined : int
        Number of arrays that the columns are joined from, each with a row for each row. Each is gathered by itself.
    views : int
        Number of rows of each sample, which may share a temperature.
    opposite : tuple of Embedding, optional
        Rows and columns of RELIC's second distribution, where that is not of the transposed scores.
    agreed_on : dict, optional
        What ranks must agree on besides the arguments of the loss.
    """

    paired: bool = False
    replicated: bool = False
    joined: int = 1
    views: int = 1
    opposite: tuple[Embedding, Embedding] | None = None
    agreed_on: dict[str, Any] | None = None


ANY = Layout()
PAIRED = Layout(paired=True)


def contrast_embeddings(
    embeddings: dict[str, Any],
    objective: AnyObjective | Callable[[dict[str, Any]], AnyObjective],
    pairing: Pairing,
    options: Options,
    layout: Layout = ANY,
    *,
    dtype: Any = None,
    parameters: dict[str, Any] | None = None,
    factor: Callable[[dict[str, Any]], Any] | None = None,
) -> Array:
    """The loss of two named arrays of embeddings, or of one with itself: checked, computed and finished.

    Arrays that have been upcast are given as `Embedding`.
    Three arrays are rows, their positives, and the extra columns of a queue. The objective may be a function of the
    temperature (or logit scale) and of `parameters`, which are numbers or arrays of one entry; so may be the `factor`
    of the loss. The result has the dtype of the arrays, or `dtype`.
    """
    parameters = {options.scaled_by: options.temperature, **(parameters or {})}
    call = Call(embeddings, objective, pairing, options, layout, parameters, dtype)
    kind = None if factor is not None else kind_of(call)
    plan = None if kind is None else PLANS.get(kind)
    return _planned(call, factor, kind) if plan is None else _run(plan, call)


class Call(NamedTuple):
    """The arguments of `contrast_embeddings`; the parameters with the temperature or logit scale."""

    embeddings: dict[str, Any]
    objective: Any
    pairing: Pairing
    options: Options
    layout: Layout
    parameters: dict[str, Any]
    dtype: Any


def _planned(call: Call, factor: Callable[[dict[str, Any]], Any] | None, kind: Hashable | None) -> Array:
    """The loss of a kind of call that has not been seen, or of which no plan is kept."""
    options = _checked_options(call.options)
    chosen = resolve_similarity(options.similarity)
    given = _checked(call, options)
    xp, x, options, across = given.xp, given.x, given.options, options.across
    _check_similarity(chosen, given)

    fixed = isinstance(call.objective, _OBJECTIVES)
    made = call.objective if fixed else call.objective(given.parameters)
    hardness = check_hardness(options.hardness, made)
    parameters, shards = given.parameters, None
    if across is not None:
        # Which sums are exchanged depends on whether rows are coupled.
        coupled = across.check and isinstance(made, Objective) and couples_rows(made, x, in_one_block=lambda: False)
        # Of pairings, that of a full queue has no flags.
        shards = _agreed(across, given, {"pairing": call.pairing, "coupling of rows": coupled})
        if call.pairing.extra_columns:
            given, chosen = _with_extra_columns(shards, given, chosen)
            shards = shards._replace(columns=shards.rows)
        parameters = {name: shards.shared(value) for name, value in parameters.items()}
    parameters = _with_copies(parameters, x.shape[0])
    made = call.objective if fixed else call.objective(parameters)
    given = given._replace(parameters=parameters, objective=made)
    by_rows = given.by_rows
    if across is not None:
        _check_objective_across(given, fixed=fixed)
    with adapter_of(x).full_precision(x):
        scale = _scale_in(xp, parameters, options, x)
        matrix = _matrix(
            given,
            chosen,
            scale,
            shards=shards,
            bound=_bound(scale, x, alone=shards is None) if chosen.unit else math.inf,
            block_size=options.block_size,
            sharpness=sharpness_of(hardness, scale, x),
        )
        # With a temperature of each row, the scores of rows with themselves are not symmetric.
        alone = len(call.embeddings) == 1 and not by_rows
        matrix = matrix._replace(self_contrast=alone, indices_checked=given.pairs.checked)
        if chosen.pullback is None:
            matrix = matrix.dense()
        multiplier = None if factor is None else factor(parameters)
        # Before the ranks add up, as each differentiates its part.
        early = by_rows or (shards is not None and options.reduction != "none")
        parts = Reduction(options.reduction, options.weights, shards)
        if early:
            parts = parts._replace(factors=multiplier) if by_rows else parts._replace(factor=multiplier)
        with nullcontext() if kind is None else listening() as notes:
            result = evaluate(made, matrix, parts, symmetric=options.symmetric)
    if multiplier is not None and not early:
        result = result * multiplier
    end_exchange(across)
    dtype = given.dtype if call.dtype is None else call.dtype
    if notes is not None:
        arrays = [x, *given.keys, *([given.y] if len(call.embeddings) > 1 else [])]
        keep(kind, notes, _sources(call.pairing, scale, arrays, options.weights, parameters), dtype)
    return finish(xp, result, dtype, options.reduction)


def _scale_in(xp: Namespace, parameters: dict[str, Any], options: Options, x: Array) -> Any:
    """The factor of the scores, of the parameters: a logit scale, or the inverse of a temperature."""
    given = parameters[options.scaled_by]
    return scale_of(xp, given, x) if options.scaled_by == "temperature" else given


def _sources(pairing: Pairing, scale: Any, arrays: list[Array], weights: Any, parameters: dict[str, Any]) -> list[Any]:
    """What the arrays of a sweep may be, in an order that is that of all calls of a kind; the second are the rows."""
    return [scale, *arrays, *pairing.rows, *pairing.columns, *pairing.pairs, weights, *parameters.values()]


def _run(plan: Plan, call: Call) -> Array:
    """The loss of arrays of a kind that has been seen: only their entries are looked at."""
    options = call.options
    given = [native(x.array if isinstance(x, Embedding) else x) for x in call.embeddings.values()]
    xp = namespace_of(*given)
    for z in given:
        adapter_of(z).check(z)
    arrays = [upcast(xp, z) for z in given]
    x = arrays[0]
    n_rows = x.shape[0]
    parameters = _with_copies(_checked_parameters(xp, call.parameters, options, call.layout, x), n_rows)
    weights = row_weights(xp, options.weights, n_rows, x)
    with adapter_of(x).full_precision(x):
        scale = _scale_in(xp, parameters, options, x)
        bound = _bound(scale, x, alone=True)
        if not plan.layout.unit:
            bound = largest_score(*arrays, factor=bound)
            if bound == math.inf:
                return _planned(call, None, None)
        sources = _sources(call.pairing, scale, arrays, weights, parameters)
        result, number = plan.run(sources, scale, bound)
        if not plan.layout.mean:
            result = Reduction(options.reduction, weights).of_sum(result, number)
    return finish(xp, result, plan.dtype, options.reduction)


def _check_similarity(chosen: Similarity, given: _Checked) -> None:
    """The similarity must fit the embeddings and the execution."""
    n_rows, n_columns, block_size = given.x.shape[0], given.y.shape[0], given.options.block_size
    same_width(given.options.similarity, given.names[0], given.x, given.names[1], given.y)
    for name, numbers in numbers_of_columns(chosen) if given.pairs.sharded else ():
        if given.keys:
            raise ValueError(f"similarity: expected one without {name} of columns beside negative_keys of other ranks")
        check_shape(name, numbers, (n_columns,))
    if given.options.symmetric and n_rows != n_columns:
        sizes = f"{given.names[0]} {n_rows} and {given.names[1]} {n_columns}"
        raise ValueError(f"symmetric: expected as many rows as columns, got {sizes}")
    if chosen.pullback is None and isinstance(block_size, int):
        raise ValueError(
            f"block_size: expected None or 'auto' with a similarity that is a plain function, got {block_size}; to "
            f"stream it, make it a portable_nce.similarities.Similarity with a pullback, or pass None"
        )


def check_hardness(hardness: Any, objective: AnyObjective) -> float:
    """The hardness must be a number that is not negative, of an objective that compares log-sum-exps."""
    number: float = check_number("hardness", hardness)
    if number < 0:
        raise ValueError(f"hardness: expected a number that is not negative, got {number}")
    if number and not isinstance(objective, Objective):
        raise ValueError(f"hardness: expected 0 with an objective that is not of the softmax family, got {number}")
    return number


def sharpness_of(hardness: float, scale: Any, like: Array) -> Array | None:
    """What the scores of each row's negatives are multiplied by: in value, ``g + α sg(s)`` is ``(1 + α / scale) g``."""
    if not hardness:
        return None
    zero = stop_gradient(zeros(namespace_of(like), like.shape[:1], like))
    if is_number(scale):
        return zero + (1.0 + hardness / scale)
    ((zero, scale),) = lift_to_tape((zero, stop_gradient(scale)))
    xp = namespace_of(zero)
    return zero + (1.0 + hardness / xp.reshape(scale, (-1,)))


def _check_objective_across(given: _Checked, *, fixed: bool) -> None:
    """What objectives cannot do between ranks; one is `fixed` that is not made of the parameters."""
    if given.by_rows and not fixed:
        raise ValueError(
            "temperature: expected one number with across and this objective, got an array with one for each row; one "
            "number for all is a float or an array of shape ()"
        )
    if given.options.symmetric and isinstance(given.objective, Relic):
        raise ValueError("symmetric: expected False with across and this objective; write relic(symmetric=True)")


_OBJECTIVES = (Objective, Pairwise, HardNegatives, Relic, Triplet)


class _Checked(NamedTuple):
    """The arguments of a loss of embeddings, checked, and in the dtype to compute in.

    `keys` are the positives of a queue if they are apart from it. `embeddings` are the rows, keys and columns that came
    in, and `dtype` is that of the result. The options hold the mask and the weights as they are used.
    """

    xp: Namespace
    names: tuple[str, str]
    x: Array
    keys: list[Array]
    y: Array
    embeddings: Sequence[Embedding]
    parameters: dict[str, Any]
    objective: Any
    pairing: Pairing
    pairs: _Pairs
    options: Options
    layout: Layout
    dtype: Any

    @property
    def by_rows(self) -> bool:
        """Whether each row has a temperature."""
        return is_by_rows(self.parameters.get("temperature"))

    @property
    def need_transposed_scores(self) -> bool:
        """Whether the loss needs the transposed scores too."""
        return isinstance(self.objective, Relic) and self.layout.opposite is None

    @property
    def source_dtypes(self) -> SourceDtypes:
        """The dtypes in which rows and columns are exact."""
        columns: tuple[Any, ...] = sum((z.dtypes for z in self.embeddings[1:] or self.embeddings), ())
        multiplied_in = next((z.multiplied_in for z in self.embeddings if z.multiplied_in is not None), None)
        return SourceDtypes(self.embeddings[0].dtypes, columns, multiplied_in, self.options.precision)

    @property
    def sent_as(self) -> tuple[Any, Any]:
        """The dtypes in which rows and columns travel: their own, or one that holds all of the arrays joined."""
        rows, columns = self.embeddings[0].dtypes, self.embeddings[-1].dtypes
        if self.pairing.extra_columns and len(self.embeddings) > 1:
            columns = columns[:-1]
        rows, columns = (d[0] if len(set(d)) == 1 else self.x.dtype for d in (rows, columns))
        return rows, columns


def _checked(call: Call, options: Options) -> _Checked:
    layout, names = call.layout, (next(iter(call.embeddings)), next(reversed(call.embeddings)))
    entered = _entered(call.embeddings, options, call.parameters)
    xp, options = entered.xp, entered.options
    # Rows that are the columns too are one array: a 16-bit gradient is rounded once.
    x, *keys, y = entered.arrays if len(call.embeddings) > 1 else entered.arrays * 2
    for z in (x, y):
        adapter_of(z).check(z)
    shape_of(names[0], x, "(N, D)")
    if layout.paired:
        check_rows(names[1], y, x)
    shape_of(names[1], y, "(K, D)")
    came, dtype = [*entered.embeddings.values()], entered.dtype
    given = _Checked(
        xp, names, x, keys, y, came, entered.others, call.objective, call.pairing, _Pairs(), options, layout, dtype
    )
    return given._replace(
        pairs=_check_pairs(given),
        parameters=_checked_parameters(xp, entered.others, options, layout, x),
        options=options._replace(weights=row_weights(xp, options.weights, x.shape[0], x)),
    )


def _checked_parameters(
    xp: Namespace, parameters: dict[str, Any], options: Options, layout: Layout, x: Array
) -> dict[str, Any]:
    """The parameters as Python's numbers, or arrays in the dtype to compute in."""
    found, shared = {}, options.across is not None
    for name, value in parameters.items():
        if name == "temperature":
            found[name] = temperature_of(xp, value, x.shape[0], x, views=layout.views, shared=shared)
        else:
            found[name] = (positive_scalar if name == "logit_scale" else scalar)(xp, name, value, x)
    return found


def _with_copies(parameters: dict[str, Any], rows: int) -> dict[str, Any]:
    """The parameters with the temperature of a sample for each of its views."""
    temperature: Any = parameters.get("temperature")
    if not is_by_rows(temperature) or temperature.shape[0] == rows:
        return parameters
    copies = [temperature] * (rows // temperature.shape[0])
    return {**parameters, "temperature": namespace_of(temperature).concat(copies, axis=0)}


def _with_extra_columns(shards: Shards, given: _Checked, similarity: Similarity) -> tuple[_Checked, Similarity]:
    """The columns with those beyond the rows' own of all ranks, in their order."""
    if given.layout.replicated:
        return given._replace(layout=given.layout._replace(replicated=False)), similarity
    n_rows, opposite = given.x.shape[0], given.layout.opposite
    extra = tuple(columns - rows for rows, columns in zip(shards.rows, shards.columns, strict=True))
    of_extra = shards._replace(columns=extra)

    def of_all(x: Array, sent_as: Any = None) -> Array:
        return of_extra.gather(x[n_rows:, ...], sent_as=sent_as, of_columns=True, own_first=False)

    def joined(x: Array, beyond: Array) -> Array:
        return namespace_of(x, beyond).concat([x[:n_rows, ...], beyond], axis=0)

    keys = of_all(given.y, given.embeddings[-1].dtypes[-1])
    similarity = with_numbers(similarity, lambda numbers: joined(numbers, of_all(numbers)))
    if opposite is not None:
        rows, columns = opposite
        layout = given.layout._replace(opposite=(rows, columns._replace(array=joined(columns.array, keys))))
        given = given._replace(layout=layout)
    return given._replace(y=joined(given.y, keys)), similarity


def _agreed(across: Ranks, given: _Checked, noted: dict[str, Any]) -> Shards:
    """How the rows and columns of a batch lie on the ranks."""
    n_rows, (n_columns, width), extra_columns = given.x.shape[0], given.y.shape, given.pairing.extra_columns
    noted = {"features": width, **noted, **(given.layout.agreed_on or {})}
    if given.layout.replicated:
        noted[f"rows of {given.names[1]}"] = n_columns - n_rows if extra_columns else n_columns
        n_columns = n_rows if extra_columns else n_columns
    temperature, pairs = given.parameters.get("temperature"), given.pairs
    return agree(across, Notes(n_rows, n_columns, noted, temperature, pairs.whole, pairs.largest), given.x)


def _matrix(given: _Checked, similarity: Similarity, scale: Any, **options: Any) -> ScoreMatrix:
    """The matrix of the rows of this process, and of all columns.

    With a temperature of each row, that of row i is also that of column i, where this is compared with all rows.
    """
    matrix, symmetric = _matrix_of(given, similarity, scale, **options), given.options.symmetric
    if given.layout.opposite is not None:
        rows, columns = given.layout.opposite
        own_transpose = given._replace(x=rows.array, y=columns.array, embeddings=(rows, columns))
        return matrix._replace(own_transpose=_matrix_of(own_transpose, similarity, scale, **options))
    if given.by_rows and (symmetric or given.need_transposed_scores):
        of_columns = scaled_columns(similarity, scale[:, 0])
        other = _matrix_of(given, of_columns, 1.0, need_transpose=symmetric, **options)
        return matrix._replace(own_transpose=other.transposed())
    return matrix


def _matrix_of(
    given: _Checked, similarity: Similarity, scale: Any, *, need_transpose: bool = False, **options: Any
) -> ScoreMatrix:
    """The score matrix of the rows of this process; across ranks, with its transpose where that is needed."""
    shards, replicated, x, y, mask = options["shards"], given.layout.replicated, given.x, given.y, given.options.mask
    if shards is None or given.keys or replicated:
        if shards is not None and not replicated:
            sent_as = given.embeddings[-1].dtypes[-1]
            given = given._replace(y=shards.gather(y, sent_as=sent_as, of_columns=True, own_first=False))
        return _own_matrix(given, similarity, scale, **options)
    pairing, sent_as = given.pairing, given.sent_as
    if mask is None and not any(map(is_half, sent_as)):
        similarity, x, y = normalized_here(similarity, x, y)
    if given.options.symmetric:
        reduction = given.options.reduction
        need_transpose = need_transpose or options["sharpness"] is not None
        need_transpose = need_transpose or not sums_both_sides(
            given.objective, similarity, pairing, mask, x, reduction=reduction
        )
    brought = RankBatch(x, y, sent_as, given.source_dtypes, mask, given.layout.joined)
    return sharded_matrix(
        brought,
        similarity,
        pairing,
        scale,
        need_transposed_scores=given.need_transposed_scores,
        need_transpose=need_transpose,
        **options,
    )


def _own_matrix(given: _Checked, similarity: Similarity, scale: Any, **options: Any) -> ScoreMatrix:
    """The matrix of rows and columns that are all here."""
    xp, pairing, mask, x, keys, y = given.xp, given.pairing, given.options.mask, given.x, given.keys, given.y
    if keys and not (mask is None and similarity.inner_product and similarity.symmetric and is_positive(y.shape[0])):
        keys, y = [], xp.concat([*keys, y], axis=0)  # apart, they are operands of inner products
    if not keys:  # apart, there is no mask, and what a queue holds in slots that are not valid is 0
        x, y = _without_idle(given, y)
    if (is_cosine(similarity) or is_dot(similarity)) and not multiplies_halves(similarity, given.source_dtypes, x):
        if is_dot(similarity):
            options["bound"] = largest_score(x, *keys, y, factor=_bound(scale, x, alone=True))
        if similarity.unit or options["bound"] < math.inf:
            return ScoreMatrix(similarity, (x,), (y,), pairing, mask, partners=tuple(keys), scale=scale, **options)
    partners: Operands = ()
    similarity, rows, columns, bound = operands_of(similarity, x, y, scale, given.source_dtypes)
    if keys:  # apart, nothing is computed for a queue that is constant, nor is it copied
        _, partners, of_keys = measured_operands(similarity, x, keys[0], scale)
        bound = max(bound, of_keys)
        if not (similarity.unit or bound < math.inf):  # a product with either might overflow
            partners, y = (), namespace_of(*keys, y).concat([*keys, y], axis=0)
            similarity, rows, columns, bound = operands_of(similarity, x, y, scale, given.source_dtypes)
    options["bound"] = min(options["bound"], bound)
    return ScoreMatrix(similarity, rows, columns, pairing, mask, partners=partners, **options)


def _without_idle(given: _Checked, y: Array) -> tuple[Array, Array]:
    """The embeddings of rows and columns, 0 where a mask leaves no pair: what takes no part may hold anything, NaN too.

    Where the transposed scores are needed, the score of a pair is looked at in both directions.
    """
    xp, x, mask, pairing, alone = given.xp, given.x, given.options.mask, given.pairing, y is given.x
    if mask is not None:
        rows, columns = (xp.any(mask, axis=axis) for axis in (1, 0))
        if alone or given.need_transposed_scores:
            rows = columns = xp.logical_or(rows, columns)
        (x,) = rows_where(xp, rows, x)
        y = x if alone else rows_where(xp, columns, y)[0]
    if pairing.structure.separate_queue and pairing.columns and not alone:
        (y,) = rows_where(xp, pairing.columns[0], y)
    return x, y


def _bound(scale: Any, like: Array, *, alone: bool) -> float:
    """The largest magnitude of the scores of unit rows, infinite where it is not at hand: small ones need no shift.

    Where steps are traced, a shift costs little, and log-odds are exact to one more digit with it. Of ranks, which may
    have different numbers in an array, it is known of a Python number alone.
    """
    if adapter_of(like).mode == "traced" or not (alone or is_number(scale)):
        return math.inf
    number = abs(scale) if is_number(scale) else largest_entry(scale)
    return math.inf if number is None else float(number)


def zero_idle_rows(xp: Namespace, members: Array, *embeddings: Array, similarity: Any = None) -> list[Array]:
    """Embeddings (N, D), 0 where a boolean array (N, M) marks nothing in their row.

    A row without a pair takes no part. Nor does a row without negatives, of the InfoNCE of one positive: its loss is 0,
    whatever the embeddings are, NaN too. Flags of valid tokens stay: a row without tokens does not count, and has no
    loss of 0.
    """
    live, found = xp.any(members, axis=1), []
    for x in embeddings:
        features = x.shape[1] - number_of_flags(similarity, x)
        (zeroed,) = rows_where(xp, live, x[:, :features])
        found.append(xp.concat([zeroed, x[:, features:]], axis=1) if features < x.shape[1] else zeroed)
    return found


def contrast_scores(
    scores: Array,
    objective: AnyObjective,
    pairing: Pairing,
    reduction: Reduction,
    *,
    mask: Array | None,
    symmetric: bool = False,
    sharpness: Array | None = None,
) -> Array:
    """The loss of a score matrix; all arguments but the reduction have been checked."""
    check_choice("reduction", reduction.kind, REDUCTIONS)
    xp, dtype = namespace_of(scores), scores.dtype
    adapter_of(scores).check(scores)
    scores = upcast(xp, scores)
    reduction = reduction._replace(weights=row_weights(xp, reduction.weights, scores.shape[0], scores))
    matrix = given(scores, pairing, mask)._replace(sharpness=sharpness)
    return finish(xp, evaluate(objective, matrix, reduction, symmetric=symmetric), dtype, reduction.kind)


class Entered(NamedTuple):
    """The arguments of a loss that computes with its embeddings: of one library and device, checked, and upcast.

    `others` are the other arrays and numbers by name; `dtype` is that of the result.
    """

    xp: Namespace
    embeddings: dict[str, Embedding]
    others: dict[str, Any]
    options: Options
    dtype: Any

    @property
    def arrays(self) -> list[Array]:
        """The embeddings, in the dtype to compute in."""
        return [embedding.array for embedding in self.embeddings.values()]

    def with_arrays(self, *arrays: Array) -> dict[str, Embedding]:
        """The embeddings by name, with other values."""
        named = zip(self.embeddings.items(), arrays, strict=True)
        return {name: embedding._replace(array=array) for (name, embedding), array in named}

    def reduced(self, values: Array, counted: Array, shards: Shards | None, number: Array | None = None) -> Array:
        """The weighted mean or sum of the losses of the rows that count, in the dtype of the result."""
        options = self.options
        result = Reduction(options.reduction, options.weights, shards).of_values(values, counted, number)
        end_exchange(options.across)
        return finish(self.xp, result, self.dtype, options.reduction)


def enter_embeddings(
    embeddings: dict[str, Array],
    options: Options,
    others: dict[str, Array] | None = None,
    *,
    axes: str | None = "(N, D)",
    numbers: dict[str, Any] | None = None,
) -> Entered:
    """Check the options and the named arrays, and upcast 16 bits: their gradients are then rounded once for all uses.

    The embeddings have as many rows as the first, and the shape that `axes` names; if it is None, neither these nor the
    temperature and the weights of the rows are checked. `numbers` may be arrays of one entry.
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


def _checked_options(options: Options) -> Options:
    """The options that say how a loss is computed, as they are used; those with arrays are checked with the arrays."""
    check_choice("reduction", options.reduction, REDUCTIONS)
    symmetric = check_bool("symmetric", options.symmetric)
    block_size = check_block_size(options.block_size)
    check_precision(options.precision)
    return options._replace(symmetric=symmetric, block_size=block_size)


def _entered(
    embeddings: dict[str, Any], options: Options, numbers: dict[str, Any], others: dict[str, Array] | None = None
) -> Entered:
    """The named arrays in one library and on one device, with the mask and the weights; the embeddings also upcast.

    Those that have been upcast are given as `Embedding`.
    """
    bare = {name: x.array if isinstance(x, Embedding) else x for name, x in embeddings.items()}
    arrays = {name: x for name, x in numbers.items() if is_array(x) and not is_number(x)} | (others or {})
    xp, (*found, mask, weights) = common_namespace(**bare, **arrays, mask=options.mask, weights=options.weights)
    bare = dict(zip(bare, found, strict=False))
    check_floating(xp, **bare)
    upcasted = {}
    for name, x in embeddings.items():
        embedding = x if isinstance(x, Embedding) else Embedding(x, (bare[name].dtype,))
        upcasted[name] = embedding._replace(array=upcast(xp, bare[name]))
    entered = numbers | dict(zip(arrays, found[len(bare) :], strict=True))
    options = options._replace(mask=mask, weights=weights)
    return Entered(xp, upcasted, entered, options, common_dtype(xp, *bare.values()))


def result_dtype(xp: Namespace, *embeddings: Embedding) -> Any:
    """The dtype that all arrays of embeddings had before they were upcast, or float32."""
    first, *others = (dtype for embedding in embeddings for dtype in embedding.dtypes)
    return first if all(dtype == first for dtype in others) else xp.float32


def pair_scores(similarity: AnySimilarity, x: Array, keys: Array, scale: Any = 1.0) -> Array:
    """The scores (N, M) of each row of `x` (N, D) with the keys (N, M, D), or (N, D) for one, of the same number."""
    chosen, xp = resolve_similarity(similarity), namespace_of(x, keys)
    keys = keys if len(keys.shape) > len(x.shape) else xp.expand_dims(keys, axis=1)
    if not is_number(scale) and len(scale.shape) > 0:  # one number for each row
        scale = namespace_of(scale).expand_dims(scale, axis=2)
    with adapter_of(x).full_precision(x):
        scores = chosen.scores(*operands(chosen, xp.expand_dims(x, axis=1), keys, scale))
    return namespace_of(scores).reshape(scores, (scores.shape[0], scores.shape[2]))


def row_statistics(x: Embedding, columns: Embedding, pairing: Pairing, options: Options) -> RowStatistics:
    """The statistics of the scores of rows with columns at temperature 1, differentiable."""
    chosen = resolve_similarity(options.similarity)
    with adapter_of(x.array).full_precision(x.array):
        source_dtypes = SourceDtypes(x.dtypes, columns.dtypes, precision=options.precision)
        chosen, rows, others, bound = operands_of(chosen, x.array, columns.array, 1.0, source_dtypes)
        common: dict[str, Any] = {"block_size": options.block_size, "bound": bound}
        return ScoreMatrix(chosen, rows, others, pairing, **common).statistics().row


def shards_of_rows(across: Ranks | None, x: Array, temperature: Any = None) -> Shards | None:
    """How the rows `x` lie on the ranks, where none needs another's."""
    if across is None:
        return None
    return agree(across, Notes(x.shape[0], x.shape[0], {"features": x.shape[-1]}, temperature), x)


def inverse(xp: Namespace, temperature: Any, like: Array) -> Array:
    """The factor that a temperature means, in the precision of `like`, which may be more than a Python float's."""
    if is_number(temperature):
        if like.dtype == xp.float32:
            return 1.0 / float(temperature)
        temperature = xp.full((), temperature, dtype=like.dtype, device=device_of(like))
    return reciprocal(temperature)


def is_by_rows(temperature: Any) -> bool:
    """Whether a temperature that has been checked is one for each row."""
    return is_array(temperature) and not is_number(temperature) and len(temperature.shape) == 1


def scale_of(xp: Namespace, temperature: Any, like: Array, shards: Shards | None = None) -> Any:
    """The factor of the scores of embeddings `like`: one number, which ranks share, or one for each of their rows."""
    if shards is not None:
        temperature = shards.shared(temperature)
    scale = inverse(xp, temperature, like)
    return xp.reshape(scale, (-1, *[1] * (len(like.shape) - 1))) if is_by_rows(temperature) else scale


def has_own_column(xp: Namespace, mask: Array, first: Any = 0) -> Array:
    """Which rows a mask (N, K) leaves their own column; that of row i is number ``first + i``."""
    n_rows, n_columns = mask.shape
    number, own = (xp.arange(n, device=device_of(mask)) for n in (n_columns, n_rows))
    return xp.any(xp.logical_and(mask, (own + first)[:, None] == number[None, :]), axis=1)


def finish(xp: Namespace, result: Array, dtype: Any, reduction: ReductionName) -> Array:
    """The result in the dtype of the input, and 0-d unless it is one value per row."""
    if hasattr(result, "__recorded__"):
        xp = namespace_of(result)  # on the tape by a parameter of a part, where the embeddings are not
    if is_half(dtype):
        dtype = adapter_of(result).loss_dtype(result, dtype)
    result = result if result.dtype == dtype else xp.astype(result, dtype)
    return result if reduction == "none" else xp.reshape(result, ())


def add(parts: Sequence[Array], dtype: Any, reduction: ReductionName, *, divide_by: int = 1) -> Array:
    """The sum of finished results, or their mean, in the dtype of the input."""
    xp, entered = common_namespace(**{f"part {k}": part for k, part in enumerate(parts)})
    total, *others = (xp.reshape(part, (-1,)) for part in entered)  # the sum of two 0-d arrays would be a NumPy scalar
    for other in others:
        total = total + other
    return finish(xp, total / divide_by if divide_by > 1 else total, dtype, reduction)


def same_width(similarity: object, row_name: str, x: Array, column_name: str, y: Array) -> None:
    """The named similarities compare embeddings of the same width; others check for themselves."""
    if isinstance(similarity, str) and x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"{column_name}: expected {x.shape[-1]} features as in {row_name}, got shape {tuple(y.shape)}; project one "
            f"of them, or use similarity=bilinear(weight)"
        )


class _Pairs(NamedTuple):
    """What is known of a pairing's arrays and a mask.

    Whether indices are in range; how many columns the arrays of pairs have, 0 without any; the largest index. Whether
    other ranks have other columns.
    """

    checked: bool = False
    whole: int = 0
    largest: int = 0
    sharded: bool = False


def _check_pairs(given: _Checked) -> _Pairs:
    """Check that a pairing and a mask fit the matrix and its library.

    Of ranks, the columns, but for so many that are `here`, are those of one, where pairs are of all columns; how many
    these are the ranks must agree on.
    """
    x, pairing, mask, replicated = given.x, given.pairing, given.options.mask, given.layout.replicated
    n_rows, n_columns = x.shape[0], given.y.shape[0]
    here = n_rows if given.keys else n_columns - n_rows if replicated and pairing.extra_columns else 0
    n_columns += n_rows * len(given.keys)
    across = given.options.across is not None and (pairing.extra_columns or not replicated)
    _check_structure(pairing, given.names, (n_rows, n_columns), across=across and not here)
    whole = 0
    if across:
        for pair in (*pairing.pairs, *(() if mask is None else (mask,))):
            whole = whole or shape_of("mask", pair, "(N, K)")[1] - here
    wanted = (n_rows, whole + here if across else n_columns)
    if mask is not None:
        check_mask(namespace_of(mask), "mask", mask, wanted)
    for part, arrays, expected in (
        ("rows", pairing.rows, (n_rows,)),
        ("columns", pairing.columns, (n_columns,)),
        ("pairs", pairing.pairs, wanted),
    ):
        for array in arrays:
            common_namespace(**{given.names[0]: x, f"pairing.{part}": array})
            check_shape(f"pairing.{part}", array, (*expected, *(() if part == "pairs" else array.shape[1:2])))
    if not pairing.structure.by_index:
        return _Pairs(whole=whole, sharded=across)
    (index,) = pairing.rows
    xp = namespace_of(index)
    if not across:
        return _Pairs(check_indices(xp, "positives", index, n_columns, f"the rows of {given.names[1]}"))
    largest = adapter_of(index).concrete_value(xp.max(index))
    checked = check_indices(xp, "positives", index, 2**31, "all columns")
    return _Pairs(checked, whole, int(largest or 0), sharded=True)


def _check_structure(pairing: Pairing, names: tuple[str, str], shape: tuple[int, int], *, across: bool) -> None:
    """Check that a pairing fits a matrix of this shape, which with `across` is that of one rank."""
    (row_name, column_name), (n_rows, n_columns) = names, shape
    if pairing.structure.views == 2 and not pairing.extra_columns:  # noqa: PLR2004  (others are stacked here)
        half(n_rows, n_columns)
    if across and (pairing.structure.separate_queue or (pairing.one_per_column and n_columns != n_rows)):
        raise ValueError(
            f"pairing: expected on each rank as many rows of {column_name} as of {row_name}, got {shape}; of further "
            f"negatives, use info_nce(..., negative_keys) or moco"
        )
    if pairing.one_per_column and n_columns < n_rows:
        raise ValueError(
            f"{column_name}: expected at least as many rows as {row_name}, {n_rows}, got {n_columns}: row i is paired "
            f"with row i; name the pairs by positives or another pairing"
        )
