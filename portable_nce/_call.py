"""The general entry: similarity, pairing, objective and execution, each chosen freely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
    check_shape,
    common_dtype,
    is_half,
    positive_scalar,
    row_weights,
    scalar,
    shape_of,
    temperature_of,
)
from ._core.namespace import device_of, enter, is_array, is_number, lift_to_tape, namespace_of
from ._core.numerics import largest_entry, reciprocal, rows_where, upcast, zeros
from ._core.protocol import Array, Namespace
from ._core.ranks import Notes, Ranks, Shards, agree, finished, told_to_others
from ._core.reduction import REDUCTIONS, Reduction
from ._core.registry import adapter_of
from ._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, ObjectiveName, PairingName, Precision, ReductionName
from ._execution.evaluate import couples_rows, evaluate, sums_both_sides
from ._execution.halves import Exact
from ._execution.halves import of_matrix as halves_of_matrix
from ._execution.matrix import ScoreMatrix, given
from ._execution.parts import matrix_of_part
from ._execution.tiling import MAX_UNSHIFTED_LOGIT, is_positive
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
    measured_operands,
    normalized_here,
    number_of_flags,
    numbers_of_columns,
    scaled_columns,
    takes_tokens,
    with_numbers,
)
from .similarities import resolve as resolve_similarity

__all__ = [
    "accumulated",
    "add",
    "check_hardness",
    "contrast",
    "contrast_embeddings",
    "contrast_scores",
    "finish",
    "has_own_column",
    "same_width",
    "scale_of",
    "shards_of_rows",
    "sharpness_of",
    "zero_idle_rows",
]

PAIRINGS: tuple[PairingName, ...] = get_args(PairingName)


@told_to_others
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
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
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
        check_choice("pairing", pairing, PAIRINGS)
        pairing = diagonal() if pairing == "diagonal" else two_views()
    elif not isinstance(pairing, Pairing):
        check_called("pairing", pairing, "pairings")
        message = f"pairing: expected a name or a portable_nce.pairings.Pairing, got {type(pairing).__name__}"
        raise TypeError(message)
    return contrast_embeddings(
        {"x": x} if y is None else {"x": x, "y": y},
        objective=resolve_objective(objective),
        pairing=pairing,
        similarity=similarity,
        temperature=temperature,
        symmetric=symmetric,
        mask=mask,
        weights=weights,
        reduction=reduction,
        hardness=hardness,
        block_size=block_size,
        precision=precision,
        across=across,
    )


_NONE: Any = object()  # where None is what the caller was given


def contrast_embeddings(
    embeddings: dict[str, Array],
    *,
    dtype: Any = None,
    objective: AnyObjective | Callable[[dict[str, Any]], AnyObjective],
    pairing: Pairing,
    similarity: AnySimilarity,
    temperature: Any = None,
    scale: Any = _NONE,
    further: dict[str, Any] | None = None,
    factor: Callable[[dict[str, Any]], Any] | None = None,
    symmetric: bool = False,
    mask: Array | None,
    weights: Array | None,
    reduction: ReductionName,
    hardness: float = 0.0,
    block_size: BlockSize,
    precision: Precision | None,
    across: Ranks | None,
    dtypes: tuple[Any, ...] = (),
    multiplied_in: Any = None,
    replicated: bool = False,
    agreed_on: dict[str, Any] | None = None,
    opposite: tuple[Array, Array] | None = None,
    joined: int = 1,
    views: int = 1,
) -> Array:
    """The loss of two named arrays of embeddings, or of one with itself: checked, computed and finished.

    Three are rows, their positives and the columns beyond, of the pairing of a queue. The objective may be a function
    of the temperature (or scale) and of the `further` numbers or arrays of one entry, by name; so is the `factor` of
    the loss. The result has the dtype of the embeddings, or `dtype`.

    `dtypes` are those of the embeddings before they were widened, if they were. Between ranks they travel in these;
    columns that are `replicated`, the same on all ranks, do not; where a pairing has further columns, that is said of
    these alone. What ranks must agree on beside the arguments of the loss is `agreed_on`.
    `multiplied_in` is a dtype of 16 bits, if rows of more bits are computed of embeddings that have no more.

    `opposite`: the rows and columns of RELIC's second distribution, in the dtype to compute in, where that is not of
    the transposed scores. `joined`: how many arrays, each with a row for each row, the columns are made of; of all
    ranks, each comes in turn. `views`: how many rows each sample has, which may share a temperature.
    """
    check_choice("reduction", reduction, REDUCTIONS)
    symmetric = check_bool("symmetric", symmetric)
    block_size = check_block_size(block_size)
    check_precision(precision)
    chosen = resolve_similarity(similarity)
    factor_name = "temperature" if scale is _NONE else "logit_scale"
    options = {factor_name: temperature if scale is _NONE else scale, **(further or {})}
    spread = across is not None and (pairing.further or not replicated)
    given = _checked(
        embeddings,
        options,
        pairing,
        mask,
        weights,
        dtypes=dtypes,
        across=across,
        spread=spread,
        replicated=replicated,
        views=views,
    )
    # Of embeddings that a loss has widened, and may have joined, it is not said which are rows.
    apart = not dtypes or multiplied_in is not None
    sides = (given.dtypes[:1], given.dtypes[1:]) if apart and len(given.dtypes) > 1 else (given.dtypes, given.dtypes)
    given = given._replace(exact_in=Exact(*sides, multiplied_in), sent_as=_sent_as(given, pairing, len(embeddings)))
    xp, x = given.xp, given.x
    _check_similarity(similarity, chosen, given, spread=spread, symmetric=symmetric, block_size=block_size)

    make: Any = (lambda _: objective) if isinstance(objective, _OBJECTIVES) else objective
    made = make(given.options)
    hardness = check_hardness(hardness, made)
    shards = None
    if across is not None:
        # Which sums are exchanged depends on whether rows are coupled.
        coupled = across.check and isinstance(made, Objective) and couples_rows(made, x, in_one_block=False)
        noted = {"pairing": pairing, "coupling of rows": coupled, **(agreed_on or {})}  # a full queue has no flags
        shards = _agreed(across, given, noted, further=pairing.further, replicated=replicated)
        if pairing.further:
            given, chosen, opposite = _with_further(shards, given, chosen, opposite, replicated=replicated)
            shards, replicated = replace(shards, columns=shards.rows), False
    given = _with_agreed_options(given, shards)
    options, by_rows = given.options, given.by_rows
    made = make(options)
    if across is not None:
        _check_objective_across(objective, made, by_rows=by_rows, symmetric=symmetric)
    with adapter_of(x).full_precision(x):
        factor_of_scores = scale_of(xp, options[factor_name], x) if scale is _NONE else options[factor_name]
        bounded = chosen.unit and not hardness and _is_small(factor_of_scores, x, alone=shards is None)
        matrix = _matrix(
            given,
            made,
            chosen,
            pairing,
            scale=factor_of_scores,
            replicated=replicated,
            symmetric=reduction if symmetric else None,
            shards=shards,
            bounded=bounded,
            block_size=block_size,
            precision=precision,
            sharpness=sharpness_of(hardness, factor_of_scores, x),
            opposite=opposite,
            joined=joined,
        )
        # With a temperature of each row, the scores of rows with themselves are not symmetric.
        alone = len(embeddings) == 1 and not by_rows
        matrix = replace(matrix, self_contrast=alone, indices_checked=given.pairs.checked)
        if chosen.pullback is None:
            matrix = matrix.dense()
        multiplier = None if factor is None else factor(options)
        # Before the ranks add up, as each differentiates its part.
        early = by_rows or (shards is not None and reduction != "none")
        parts = Reduction(reduction, given.weights, shards)
        if early:
            parts = parts._replace(factors=multiplier) if by_rows else parts._replace(factor=multiplier)
        result = evaluate(made, matrix, parts, symmetric=symmetric)
    if multiplier is not None and not early:
        result = result * multiplier
    finished(across)
    return finish(xp, result, given.dtype if dtype is None else dtype, reduction)


def _check_similarity(
    similarity: Any, chosen: Similarity, given: _Given, *, spread: bool, symmetric: bool, block_size: BlockSize
) -> None:
    """The similarity must fit the embeddings and the execution."""
    n_rows, n_columns = given.x.shape[0], given.y.shape[0]
    same_width(similarity, given.names[0], given.x, given.names[1], given.y)
    for name, numbers in numbers_of_columns(chosen) if spread else ():
        if given.keys:
            message = f"similarity: expected one without {name} of columns beside negative_keys of other ranks"
            raise ValueError(message)
        check_shape(name, numbers, (n_columns,))
    if symmetric and n_rows != n_columns:
        sizes = f"{given.names[0]} {n_rows} and {given.names[1]} {n_columns}"
        message = f"symmetric: expected as many rows as columns, got {sizes}"
        raise ValueError(message)
    if chosen.pullback is None and isinstance(block_size, int):
        message = (
            f"block_size: expected None or 'auto' with a similarity that is a plain function, got {block_size}; to "
            f"stream it, make it a portable_nce.similarities.Similarity with a pullback, or pass None"
        )
        raise ValueError(message)


def check_hardness(hardness: Any, objective: AnyObjective) -> float:
    """The hardness must be a number that is not negative, of an objective that compares log-sum-exps."""
    number: float = check_number("hardness", hardness)
    if number < 0:
        message = f"hardness: expected a number that is not negative, got {number}"
        raise ValueError(message)
    if number and not isinstance(objective, Objective):
        message = f"hardness: expected 0 with an objective that is not of the softmax family, got {number}"
        raise ValueError(message)
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


def _check_objective_across(objective: Any, made: AnyObjective, *, by_rows: bool, symmetric: bool) -> None:
    """What objectives cannot do between ranks."""
    if by_rows and not isinstance(objective, _OBJECTIVES):
        message = (
            "temperature: expected one number with across and this objective, got an array with one for each row; one "
            "number for all is a float or an array of shape ()"
        )
        raise ValueError(message)
    if symmetric and isinstance(made, Relic):
        message = "symmetric: expected False with across and this objective; write relic(symmetric=True)"
        raise ValueError(message)


_OBJECTIVES = (Objective, Pairwise, HardNegatives, Relic, Triplet)


class _Given(NamedTuple):
    """The arguments of a loss of embeddings, checked, and in the dtype to compute in.

    `keys` are the positives of a queue if they are apart from it; `dtype` is that of the result, and `dtypes` those
    that rows, keys and columns had; `sent_as` are those in which rows and columns are exact.
    """

    xp: Namespace
    names: tuple[str, str]
    x: Array
    keys: list[Array]
    y: Array
    options: dict[str, Any]
    mask: Array | None
    weights: Array | None
    pairs: _Pairs
    dtype: Any
    dtypes: tuple[Any, ...]
    exact_in: Exact = Exact((), ())
    sent_as: tuple[Any, Any] = (None, None)

    @property
    def by_rows(self) -> bool:
        """Whether each row has a temperature."""
        return is_by_rows(self.options.get("temperature"))


def _checked(
    embeddings: dict[str, Array],
    options: dict[str, Any],
    pairing: Pairing,
    mask: Array | None,
    weights: Array | None,
    *,
    dtypes: tuple[Any, ...],
    across: Ranks | None,
    spread: bool,
    replicated: bool,
    views: int,
) -> _Given:
    names = (next(iter(embeddings)), next(reversed(embeddings)))
    arrays = {name: value for name, value in options.items() if is_array(value) and not is_number(value)}
    xp, (*entered, mask, weights) = enter(**embeddings, **arrays, mask=mask, weights=weights)
    x, y = entered[0], entered[len(embeddings) - 1]
    keys = entered[1 : len(embeddings) - 1]
    options = {**options, **dict(zip(arrays, entered[len(embeddings) :], strict=True))}
    check_floating(xp, **dict(zip(embeddings, entered, strict=False)))
    for z in (x, y):
        adapter_of(z).check(z)
    n_rows, _ = shape_of(names[0], x, "(N, D)")
    n_columns, _ = shape_of(names[1], y, "(K, D)")
    shape = (n_rows, n_columns + n_rows * len(keys))
    here = n_rows if keys else n_columns - n_rows if replicated and pairing.further else 0
    pairs = _check_pairs(pairing, mask, names, x, shape, across=spread, here=here)
    dtype, dtypes = common_dtype(xp, x, *keys, y), dtypes or (x.dtype, *(z.dtype for z in (*keys, y)))
    x = upcast(xp, x)
    y = x if len(embeddings) == 1 else upcast(xp, y)  # once: a 16-bit gradient is rounded once
    keys = [upcast(xp, key) for key in keys]
    for name, value in options.items():
        if name == "temperature":
            options[name] = temperature_of(xp, value, n_rows, x, views=views, shared=across is not None)
        else:
            options[name] = (positive_scalar if name == "logit_scale" else scalar)(xp, name, value, x)
    weights = row_weights(xp, weights, n_rows, x)
    return _Given(xp, names, x, keys, y, options, mask, weights, pairs, dtype, dtypes)


def _with_agreed_options(given: _Given, shards: Shards | None) -> _Given:
    """The options as the ranks agreed on them, and the temperature of a sample for each of its views."""
    options, rows = given.options, given.x.shape[0]
    if shards is not None:
        options = {name: shards.shared(value) for name, value in options.items()}
    temperature: Any = options.get("temperature")
    if is_by_rows(temperature) and temperature.shape[0] < rows:
        copies = [temperature] * (rows // temperature.shape[0])
        options = {**options, "temperature": namespace_of(temperature).concat(copies, axis=0)}
    return given._replace(options=options)


def _sent_as(given: _Given, pairing: Pairing, arrays: int) -> tuple[Any, Any]:
    """The dtypes in which rows and columns travel: their own; of arrays that were joined, one that holds all."""
    dtypes = given.dtypes[:-1] if pairing.further else given.dtypes
    if (len(dtypes) == arrays and not pairing.further) or len(set(dtypes)) == 1:
        return dtypes[0], dtypes[-1]
    return given.x.dtype, given.x.dtype


def _with_further(
    shards: Shards,
    given: _Given,
    similarity: Similarity,
    opposite: tuple[Array, Array] | None,
    *,
    replicated: bool,
) -> tuple[_Given, Similarity, tuple[Array, Array] | None]:
    """The columns with those beyond the rows' own of all ranks, in their order."""
    if replicated:
        return given, similarity, opposite
    n_rows = given.x.shape[0]
    further = tuple(columns - rows for rows, columns in zip(shards.rows, shards.columns, strict=True))
    apart = replace(shards, columns=further)

    def of_all(x: Array, sent_as: Any = None) -> Array:
        return apart.gather(x[n_rows:, ...], sent_as=sent_as, of_columns=True, own_first=False)

    def joined(x: Array, beyond: Array) -> Array:
        return namespace_of(x, beyond).concat([x[:n_rows, ...], beyond], axis=0)

    keys = of_all(given.y, given.dtypes[-1])
    similarity = with_numbers(similarity, lambda numbers: joined(numbers, of_all(numbers)))
    if opposite is not None:
        opposite = (opposite[0], joined(opposite[1], keys))
    return given._replace(y=joined(given.y, keys)), similarity, opposite


def _agreed(across: Ranks, given: _Given, options: dict[str, Any], *, further: bool, replicated: bool) -> Shards:
    """How the rows and columns of a batch lie on the ranks."""
    n_rows, (n_columns, width) = given.x.shape[0], given.y.shape
    options = {"features": width, **options}
    if replicated:
        options[f"rows of {given.names[1]}"] = n_columns - n_rows if further else n_columns
        n_columns = n_rows if further else n_columns
    temperature, (_, whole, largest) = given.options.get("temperature"), given.pairs
    return agree(across, Notes(n_rows, n_columns, options, temperature, whole, largest), given.x)


def _matrix(
    given: _Given,
    objective: AnyObjective,
    similarity: Similarity,
    pairing: Pairing,
    *,
    scale: Any,
    replicated: bool,
    symmetric: str | None,
    opposite: tuple[Array, Array] | None,
    **options: Any,
) -> ScoreMatrix:
    """The matrix of the rows of this process, and of all columns; `symmetric`: how a loss of both sides is reduced.

    With a temperature of each row, that of row i is also that of column i, where this is compared with all rows.
    """

    def make(similarity: Similarity, scale: Any, given: _Given = given, *, turns: bool = False) -> ScoreMatrix:
        both = isinstance(objective, Relic) and opposite is None
        further = {"replicated": replicated, "symmetric": symmetric, "turns": turns, "both": both, **options}
        return _matrix_of(given, objective, similarity, pairing, scale=scale, **further)

    if opposite is not None:
        rows, columns = opposite
        return replace(make(similarity, scale), turned=make(similarity, scale, given._replace(x=rows, y=columns)))
    if not given.by_rows or (symmetric is None and not isinstance(objective, Relic)):
        return make(similarity, scale)
    of_columns = make(scaled_columns(similarity, scale[:, 0]), 1.0, turns=symmetric is not None)
    return replace(make(similarity, scale), turned=of_columns.transposed())


def _matrix_of(
    given: _Given,
    objective: AnyObjective,
    similarity: Similarity,
    pairing: Pairing,
    *,
    scale: Any,
    replicated: bool,
    symmetric: str | None,
    turns: bool,
    both: bool,
    joined: int,
    **options: Any,
) -> ScoreMatrix:
    """The matrix of the rows of this process; of ranks, with its transpose if it `turns` or a loss needs that."""
    shards, x, y, mask = options["shards"], given.x, given.y, given.mask
    sent, exact_in = given.sent_as, given.exact_in
    if shards is not None and given.keys and not replicated:
        given = given._replace(y=shards.gather(y, sent_as=sent[1], of_columns=True, own_first=False))
    if shards is None or given.keys or replicated:
        return _own_matrix(given, similarity, pairing, scale, both=both, exact_in=exact_in, **options)
    if mask is None and not any(map(is_half, sent)):
        similarity, x, y = normalized_here(similarity, x, y)
    if symmetric is not None:
        turns = turns or options["sharpness"] is not None
        turns = turns or not sums_both_sides(objective, similarity, pairing, mask, x, reduction=symmetric)
    return matrix_of_part(
        (x, y),
        similarity,
        pairing,
        mask,
        scale=scale,
        sent_as=sent,
        exact_in=exact_in,
        both=both,
        turns=turns,
        joined=joined,
        **options,
    )


def _own_matrix(
    given: _Given,
    similarity: Similarity,
    pairing: Pairing,
    scale: Any,
    *,
    both: bool,
    exact_in: Exact,
    precision: Precision | None,
    **options: Any,
) -> ScoreMatrix:
    """The matrix of rows and columns that are all here; `both` if its transpose is needed too."""
    xp, x, mask, alone = given.xp, given.x, given.mask, given.y is given.x
    keys, y = _apart_or_joined(xp, similarity, given.keys, given.y, mask)
    if not keys:  # apart, there is no mask, and what a queue holds in slots that are not valid is 0
        x, y = _without_idle(xp, x, y, pairing, mask, alone=alone, both=both)
    rows, columns, partners, squarable = _operands(similarity, x, keys, y, scale)
    if keys and not partners:
        y = xp.concat([*keys, y], axis=0)
    halves = halves_of_matrix(similarity, (x, y), (rows, columns), exact_in, precision, scale=scale)
    squarable = squarable or options["bounded"]
    return ScoreMatrix(
        similarity, rows, columns, pairing, mask, squarable=squarable, partners=partners, halves=halves, **options
    )


def _apart_or_joined(
    xp: Namespace, similarity: Similarity, keys: list[Array], y: Array, mask: Array | None
) -> tuple[list[Array], Array]:
    """The positives of a queue apart from what it holds, where both are operands of inner products, or joined."""
    if mask is None and similarity.inner_product and similarity.symmetric and is_positive(y.shape[0]):
        return keys, y
    return [], xp.concat([*keys, y], axis=0) if keys else y


def _operands(
    similarity: Similarity, x: Array, keys: list[Array], y: Array, scale: Any
) -> tuple[Operands, Operands, Operands, bool]:
    """The operands of rows and columns; of a queue also those of positives, apart where nothing can overflow.

    Apart, nothing is computed for a queue that is constant, nor is it copied. The last of what is returned says whether
    squares are known not to overflow.
    """
    rows, columns, squarable = measured_operands(similarity, x, y, scale)
    if not keys:
        return rows, columns, (), squarable
    _, partners, also = measured_operands(similarity, x, keys[0], scale)
    if similarity.unit or (squarable and also):
        return rows, columns, partners, squarable
    return _operands(similarity, x, [], namespace_of(*keys, y).concat([*keys, y], axis=0), scale)


def _without_idle(
    xp: Namespace, x: Array, y: Array, pairing: Pairing, mask: Array | None, *, alone: bool, both: bool
) -> tuple[Array, Array]:
    """The embeddings, 0 where a mask leaves no pair: what takes no part may hold anything, NaN too.

    With `both`, the score of a pair is looked at in both directions.
    """
    if mask is not None:
        rows, columns = (xp.any(mask, axis=axis) for axis in (1, 0))
        if alone or both:
            rows = columns = xp.logical_or(rows, columns)
        (x,) = rows_where(xp, rows, x)
        y = x if alone else rows_where(xp, columns, y)[0]
    if pairing.structure == "queue" and pairing.columns and not alone:
        (y,) = rows_where(xp, pairing.columns[0], y)
    return x, y


def _is_small(scale: Any, like: Array, *, alone: bool) -> bool:
    """Whether a scale is known to be small enough for the scores of unit rows to need no shift.

    Where steps are traced, a shift costs little, and log-odds are exact to one more digit with it. Of ranks, which may
    have different numbers in an array, it is known of a Python number alone.
    """
    if adapter_of(like).mode == "traced" or not (alone or is_number(scale)):
        return False
    number = abs(scale) if is_number(scale) else largest_entry(scale)
    return number is not None and number <= MAX_UNSHIFTED_LOGIT


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
    xp: Namespace,
    scores: Array,
    *,
    objective: AnyObjective,
    pairing: Pairing,
    mask: Array | None,
    weights: Array | None,
    reduction: ReductionName,
    symmetric: bool = False,
    shards: Shards | None = None,
    sharpness: Array | None = None,
) -> Array:
    """The loss of a score matrix whose arguments have been checked."""
    check_choice("reduction", reduction, REDUCTIONS)
    dtype = scores.dtype
    adapter_of(scores).check(scores)
    scores = upcast(xp, scores)
    weights = row_weights(xp, weights, scores.shape[0], scores)
    matrix = replace(given(scores, pairing, mask), sharpness=sharpness)
    result = evaluate(objective, matrix, Reduction(reduction, weights, shards), symmetric=symmetric)
    return finish(xp, result, dtype, reduction)


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


def accumulated(name: str, option: Any) -> Any:
    """A number as it is, and an array in the dtype to compute in: its 16-bit gradient is rounded once for all uses."""
    if is_number(option) or not is_array(option):
        return option
    xp, (option,) = enter(**{name: option})
    return upcast(xp, option)


def add(parts: Sequence[Array], dtype: Any, reduction: ReductionName, *, divide_by: int = 1) -> Array:
    """The sum of finished results, or their mean, in the dtype of the input."""
    xp, entered = enter(**{f"part {k}": part for k, part in enumerate(parts)})
    total, *others = (xp.reshape(part, (-1,)) for part in entered)  # the sum of two 0-d arrays would be a NumPy scalar
    for other in others:
        total = total + other
    return finish(xp, total / divide_by if divide_by > 1 else total, dtype, reduction)


def same_width(similarity: object, row_name: str, x: Array, column_name: str, y: Array) -> None:
    """The named similarities compare embeddings of the same width; others check for themselves."""
    if isinstance(similarity, str) and x.shape[-1] != y.shape[-1]:
        message = (
            f"{column_name}: expected {x.shape[-1]} features as in {row_name}, got shape {tuple(y.shape)}; project one "
            f"of them, or use similarity=bilinear(weight)"
        )
        raise ValueError(message)


class _Pairs(NamedTuple):
    """What is known of a pairing's arrays and a mask.

    Whether indices are in range; how many columns the arrays of pairs have, 0 without any; the largest index.
    """

    checked: bool = False
    whole: int = 0
    largest: int = 0


def _check_pairs(
    pairing: Pairing,
    mask: Array | None,
    names: tuple[str, str],
    x: Array,
    shape: tuple[int, int],
    *,
    across: bool,
    here: int,
) -> _Pairs:
    """Check that a pairing and a mask fit the matrix and its library.

    `across`: the columns, but for so many that are `here`, are those of one rank, where pairs are of all columns; how
    many these are the ranks must agree on.
    """
    _check_structure(pairing, names, shape, across=across and not here)
    n_rows, n_columns = shape
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
            enter(**{names[0]: x, f"pairing.{part}": array})
            check_shape(f"pairing.{part}", array, (*expected, *(() if part == "pairs" else array.shape[1:2])))
    if pairing.structure != "index":
        return _Pairs(whole=whole)
    (index,) = pairing.rows
    xp = namespace_of(index)
    if not across:
        return _Pairs(check_indices(xp, "positives", index, n_columns, f"the rows of {names[1]}"))
    largest = adapter_of(index).concrete_value(xp.max(index))
    return _Pairs(check_indices(xp, "positives", index, 2**31, "all columns"), whole, int(largest or 0))


def _check_structure(pairing: Pairing, names: tuple[str, str], shape: tuple[int, int], *, across: bool) -> None:
    """Check that a pairing fits a matrix of this shape, which with `across` is that of one rank."""
    (row_name, column_name), (n_rows, n_columns) = names, shape
    if pairing.structure == "views" and pairing.views == 2 and not pairing.further:  # noqa: PLR2004  (others are stacked here)
        half(n_rows, n_columns)
    if across and (pairing.structure == "queue" or (pairing.one_per_column and n_columns != n_rows)):
        message = (
            f"pairing: expected on each rank as many rows of {column_name} as of {row_name}, got {shape}; of further "
            f"negatives, use info_nce(..., negative_keys) or moco"
        )
        raise ValueError(message)
    if pairing.one_per_column and n_columns < n_rows:
        message = (
            f"{column_name}: expected at least as many rows as {row_name}, {n_rows}, got {n_columns}: row i is paired "
            f"with row i; name the pairs by positives or another pairing"
        )
        raise ValueError(message)
