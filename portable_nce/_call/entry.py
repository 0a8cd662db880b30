"""Arrays and numbers enter: checked, of one library, upcast; pairing, similarity and objective fit them."""

from __future__ import annotations

from typing import Any

from .._core.autodiff import stop_gradient
from .._core.checks import (
    check_block_size,
    check_bool,
    check_choice,
    check_floating,
    check_indices,
    check_learned_scale_of_cosines,
    check_mask,
    check_number,
    check_precision,
    check_rows,
    check_scale_of_cosines,
    check_shape,
    common_dtype,
    positive_scalar,
    row_weights,
    scalar,
    shape_of,
    temperature_of,
    warn_of_negative,
)
from .._core.equality import is_fixed
from .._core.namespace import (
    common_namespace,
    device_of,
    is_array,
    is_being_compiled,
    is_number,
    lift_to_tape,
    namespace_of,
)
from .._core.numerics import as_scores, reciprocal, upcast
from .._core.pair_functions import PairFunction
from .._core.protocol import Array, Namespace
from .._core.ranks import RankReport, Ranks, Shards, agree
from .._core.reduction import REDUCTIONS
from .._core.registry import adapter_of
from .._core.types import ReductionName
from ..objectives import AnyObjective
from ..pairings import Pairing, half
from ..similarities import (
    AnySimilarity,
    Similarity,
    is_of_prepared,
    numbers_of_columns,
    operands,
)
from ..similarities import resolve as resolve_similarity
from .records import Call, Embedding, LossOptions, is_per_row


def repeat_for_views(numbers: dict[str, Any], rows: int) -> dict[str, Any]:
    """Numbers, with per-sample temperatures repeated for each view."""
    temperature: Any = numbers.get("temperature")
    if not is_per_row(temperature) or temperature.shape[0] == rows:
        return numbers
    copies = [temperature] * (rows // temperature.shape[0])
    return {**numbers, "temperature": namespace_of(temperature).concat(copies, axis=0)}


def enter_embeddings(
    embeddings: dict[str, Array],
    options: LossOptions,
    others: dict[str, Array] | None = None,
    *,
    axes: str | None = "(N, D)",
    numbers: dict[str, Any] | None = None,
    columns: dict[str, Array] | None = None,
) -> Call:
    """Check the options and the named arrays, and upcast 16-bit ones once, so that gradients are rounded once.

    Embeddings must have the shape that `axes` names and as many rows as the first. If `axes` is None, neither this nor
    the temperature and the row weights are checked. `numbers` may be arrays of one entry. `columns` are embeddings,
    too, which follow the others; the caller checks their shapes.
    """
    options = checked_options(options)
    first = next(iter(embeddings.values()))
    warn_of_scale(options, first)
    numbers = {**(numbers or {}), options.scaled_by: options.temperature}
    call = entered(Call(embeddings | (columns or {}), options, numbers), others)
    xp, arrays, weights = call.xp, call.arrays, call.options.weights
    scale = call.numbers.pop(options.scaled_by)
    if axes is None:
        scale = upcast(xp, scale) if is_array(scale) and not is_number(scale) else scale
        weights = None if weights is None else upcast(xp, weights)
    else:
        n_rows = shape_of(next(iter(embeddings)), arrays[0], axes)[0]
        for name, x in zip(embeddings, arrays, strict=False):
            adapter_of(x).check(x)
            shape_of(name, x, axes)
            check_rows(name, x, arrays[0])
        if options.scaled_by == "temperature":
            scale = temperature_of(xp, scale, n_rows, arrays[0], shared=options.across is not None)
        weights = row_weights(xp, weights, n_rows, arrays[0])
    warn_of_arrays(options, first)
    return call._replace(options=call.options._replace(temperature=scale, weights=weights))


def warn_of_scale(options: LossOptions, x: Any) -> None:
    """Warn if the temperature or scale of cosines is a number that looks like its inverse or its logarithm.

    An `Embedding` has entered with these options before.
    """
    if options.of_cosines and not isinstance(x, Embedding):
        check_scale_of_cosines(options.scaled_by, options.temperature, x)


def warn_of_arrays(options: LossOptions, x: Any) -> None:
    """Warn of negative weights, and of a learned scale of cosines that looks like another number, if readable."""
    if isinstance(x, Embedding) or is_being_compiled(x):
        return
    if options.weights is not None:
        warn_of_negative("weights", options.weights)
    if options.of_cosines:
        check_learned_scale_of_cosines(options.scaled_by, options.temperature)


def checked_options(options: LossOptions) -> LossOptions:
    """Options, with those checked that are not arrays."""
    check_choice("reduction", options.reduction, REDUCTIONS)
    symmetric = check_bool("symmetric", options.symmetric)
    block_size = check_block_size(options.block_size)
    check_precision(options.precision)
    return options._replace(symmetric=symmetric, block_size=block_size)


def entered(call: Call, others: dict[str, Array] | None = None) -> Call:
    """The call with all its arrays, mask, weights and `others` checked to be of one library; the embeddings upcast.

    Upcast arrays are passed as `Embedding`. The others join the numbers.
    """
    embeddings, options = call.embeddings, call.options
    bare = {name: x.array if isinstance(x, Embedding) else x for name, x in embeddings.items()}
    arrays = {name: x for name, x in call.numbers.items() if is_array(x) and not is_number(x)} | (others or {})
    xp, (*converted, mask, weights) = common_namespace(**bare, **arrays, mask=options.mask, weights=options.weights)
    bare = dict(zip(bare, converted, strict=False))
    check_floating(xp, **bare)
    upcasted = {}
    for name, x in embeddings.items():
        embedding = x if isinstance(x, Embedding) else Embedding(x, (bare[name].dtype,))
        upcasted[name] = embedding._replace(array=upcast(xp, bare[name]))
    numbers = call.numbers | dict(zip(arrays, converted[len(bare) :], strict=True))
    dtype = common_dtype(xp, *bare.values()) if call.dtype is None else call.dtype
    options = options._replace(mask=mask, weights=weights)
    return call._replace(xp=xp, embeddings=upcasted, numbers=numbers, options=options, dtype=dtype)


def result_dtype(xp: Namespace, *embeddings: Embedding) -> Any:
    """Dtype that all arrays of embeddings had before the upcast, or float32 if they differ."""
    first, *others = (dtype for embedding in embeddings for dtype in embedding.dtypes)
    return first if all(dtype == first for dtype in others) else xp.float32


def pair_scores(similarity: AnySimilarity, x: Array, keys: Array, scale: Any = 1.0) -> Array:
    """Scores (N, M) of row i of `x` (N, D) with ``keys[i]``; the keys are (N, M, D), or (N, D) for M = 1."""
    chosen, xp = resolve_similarity(similarity), namespace_of(x, keys)
    function, adapter = chosen.scores, adapter_of(x)
    if isinstance(function, PairFunction) and len(keys.shape) == len(x.shape) and adapter.mode == "eager":
        with adapter.full_precision(x):
            rows, columns = operands(chosen, x, keys, scale)
            return adapter.custom_vjp(_own_scores, _pull_own_scores)(function, *rows, *columns)[0][:, None]
    keys = keys if len(keys.shape) > len(x.shape) else xp.expand_dims(keys, axis=1)
    if not is_number(scale) and len(scale.shape) > 0:  # one entry per row
        scale = namespace_of(scale).expand_dims(scale, axis=2)
    with adapter_of(x).full_precision(x):
        scores = chosen.scores(*operands(chosen, xp.expand_dims(x, axis=1), keys, scale))
    xp = namespace_of(scores)
    return as_scores(xp, xp.reshape(scores, (scores.shape[0], scores.shape[2])))


def _own_scores(function: PairFunction, x: Array, scale: Array, y: Array) -> tuple[Array]:
    return (function.at_places((x, scale), y),)


def _pull_own_scores(
    function: PairFunction, arrays: tuple[Array, ...], outputs: tuple[Array, ...], cotangents: tuple[Array, ...]
) -> tuple[Array, ...]:
    del outputs
    arrays, cotangents = lift_to_tape(arrays, cotangents)
    to_rows, to_y = function.pulled_at_places(arrays[:2], arrays[2], cotangents[0])
    return (*to_rows, to_y)


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


def same_width(similarity: object, row_name: str, x: Array, column_name: str, y: Array) -> None:
    """Check that embeddings for a named similarity have the same width; other similarities check themselves."""
    if isinstance(similarity, str) and x.shape[-1] != y.shape[-1]:
        remedy = "project one of them, or use similarity=bilinear(weight)"
        remedy = f"pass {column_name}.T" if tuple(y.shape[:-1]) == (x.shape[-1],) else remedy
        raise ValueError(
            f"{column_name}: expected {x.shape[-1]} features as in {row_name}, got shape {tuple(y.shape)}; {remedy}"
        )


def check_similarity(chosen: Similarity, call: Call) -> None:
    """Check that the similarity fits the embeddings and the execution."""
    n_rows, n_columns, block_size = call.x.shape[0], call.y.shape[0], call.options.block_size
    same_width(call.options.similarity, call.names[0], call.x, call.names[1], call.y)
    if call.rows_are_columns and is_of_prepared(chosen):
        raise ValueError(
            f"similarity: expected one of embeddings that are not prepared, since {call.names[0]} are rows and columns "
            f"of this loss, got that of prepare; pass similarity='cosine', or what prepare got"
        )
    for name, numbers in numbers_of_columns(chosen) if call.gathers_columns else ():
        if call.partners:
            raise ValueError(f"similarity: expected no {name} of columns with negative_keys= and across=")
        check_shape(name, numbers, (n_columns,))
    if call.options.symmetric:
        per_row = {"temperature": call.per_row_temperature, "weights": call.options.weights is not None}
        check_both_directions((n_rows, n_columns), call.pairing, call.objective, call.options.reduction, per_row)
    if chosen.pullback is None and isinstance(block_size, int):
        raise ValueError(
            f"block_size: expected None or 'auto' with a similarity that is a plain function, got {block_size}; to "
            f"stream it, make it a portable_nce.similarities.Similarity with a pullback, or pass None"
        )


def check_prepared(chosen: Similarity, call: Call, across: Ranks) -> None:
    """Have the errors of a similarity with arrays before ranks exchange theirs, when other ranks would wait.

    Not of a user's preparation, which may count its calls, or exchange arrays itself.
    """
    prepare = chosen.prepare
    if across.check and is_fixed(prepare, arrays=True) and not is_fixed(prepare):
        prepare(stop_gradient(call.x), stop_gradient(call.y), 1.0)


def check_both_directions(
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
    for name in () if pairing.one_per_column and not objective.of_pairs else per_row:
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
    if number and not objective.of_statistics:
        raise ValueError(f"hardness: expected 0 with an objective that is not of the softmax family, got {number}")
    return number


def check_objective(call: Call, hardness: float) -> None:
    """Refuse a matrix that does not fit the objective, and objectives that are constant without negatives."""
    objective, pairing, n_rows, n_columns = call.objective, call.pairing, call.x.shape[0], call.y.shape[0]
    if call.need_transposed_scores and n_rows != n_columns:
        raise ValueError(
            f"objective: expected another than relic, which compares rows with columns, for {n_rows} rows and "
            f"{n_columns} columns, got relic; for further negatives, use portable_nce.relic(keys=...)"
        )
    if not pairing.without_negatives:
        return
    if hardness:
        raise ValueError(f"hardness: expected 0 with {pairing}, which has no negatives, got {hardness}")
    if objective.needs.negative and not objective.needs.spread:
        raise ValueError(
            f"objective: expected one of the positives alone with {pairing}, which has no negatives, got {objective}, "
            f"whose loss would be 0; use objectives.info_nce() with multi_positive='each'"
        )


def check_objective_across(call: Call, *, fixed_objective: bool) -> None:
    """Refuse options that the objective does not support across ranks."""
    if call.per_row_temperature and not fixed_objective:
        raise ValueError(
            "temperature: expected one number with across and this objective, got an array with one for each row; pass "
            "a float or an array of shape ()"
        )
    if call.options.symmetric and call.objective.crossed:
        raise ValueError("symmetric: expected False with across and this objective; write relic(symmetric=True)")


def checked(call: Call) -> Call:
    """The call with all arguments entered and checked, but for the similarity and the objective."""
    call = entered(call)
    xp, layout, options, names, x, y = call.xp, call.layout, call.options, call.names, call.x, call.y
    shape_of(names[0], x, "(N, D)")
    if layout.paired:
        check_rows(names[1], y, x, layout.remedy)
    shape_of(names[1], y, "(K, D)")
    # Widths first: under torch.compile, a comparison of rows with features would make a graph of its own.
    if y.shape[1] != x.shape[1] and call.pairing.one_per_column and tuple(y.shape) == tuple(x.shape[::-1]):
        check_rows(names[1], y, x)  # transposed
    call = call._replace(indices_checked=_check_pairing(call))
    for array in call.arrays:
        adapter_of(array).check(array)
    numbers, shared = {}, options.across is not None
    for name, value in call.numbers.items():
        if name == "temperature":
            numbers[name] = temperature_of(xp, value, x.shape[0], x, views=layout.views, shared=shared)
        else:
            numbers[name] = (positive_scalar if name == "logit_scale" else scalar)(xp, name, value, x)
    return call._replace(
        numbers=numbers, options=options._replace(weights=row_weights(xp, options.weights, x.shape[0], x))
    )


def agree_on_arguments(across: Ranks, call: Call, compared: dict[str, Any]) -> Shards:
    """Shards of the batch, once ranks have compared sizes and the named values."""
    n_rows, (n_columns, width), pairing = call.x.shape[0], call.y.shape, call.pairing
    compared = {"features": width, **compared}
    compared["columns of labels"] = next((x.shape[1] for x in pairing.rows if len(x.shape) > 1), None)
    compared |= call.layout.agreed_on or {}
    if call.layout.replicated:
        compared[f"rows of {call.names[1]}"] = n_columns - n_rows if pairing.extra_columns else n_columns
        n_columns = n_rows if pairing.extra_columns else n_columns
    largest = None
    if call.gathers_columns and pairing.positives.index is not None and not pairing.positives.within and n_rows:
        index = pairing.positives.index
        largest = adapter_of(index).concrete_value(namespace_of(index).max(index))
    temperature = call.numbers.get("temperature")
    report = RankReport(n_rows, n_columns, compared, temperature, _columns_of_pairs(call), int(largest or 0))
    return agree(across, report, call.x)


def _columns_of_pairs(call: Call) -> int | None:
    """Number of columns of all ranks by the arrays of pairs, if there are any, without those that ranks share."""
    pairs = [*call.pairing.pairs, *(() if call.options.mask is None else (call.options.mask,))]
    return max(shape_of("mask", pairs[0], "(N, K)")[1] - call.n_common, 0) if pairs and call.gathers_columns else None


def _check_pairing(call: Call) -> bool:
    """Check that a pairing and a mask fit the matrix and its library, and return whether indices are known to fit.

    Across ranks, arrays of pairs have the columns of all ranks, whose number is checked later, by `agree`.
    """
    x, pairing, mask, across = call.x, call.pairing, call.options.mask, call.gathers_columns
    n_rows, n_columns = x.shape[0], call.y.shape[0]
    n_columns += n_rows * len(call.partners)
    _check_fits(pairing, call.names, (n_rows, n_columns), across=across and not call.shares_columns)
    of_all = _columns_of_pairs(call)
    pair_shape = (n_rows, n_columns if of_all is None else of_all + call.n_common)
    if mask is not None:
        check_mask(namespace_of(mask), "mask", mask, pair_shape)
    for part, arrays, expected in (
        ("rows", pairing.rows, (n_rows,)),
        ("columns", pairing.columns, (n_columns,)),
        ("pairs", pairing.pairs, pair_shape),
    ):
        for array in arrays:
            common_namespace(**{call.names[0]: x, f"pairing.{part}": array})
            check_shape(f"pairing.{part}", array, (*expected, *(() if part == "pairs" else array.shape[1:2])))
    if pairing.positives.index is None:
        return False
    index = pairing.positives.index
    if pairing.positives.within:
        return True
    if across:
        return check_indices("positives", index, 2**31, "all columns")
    return check_indices("positives", index, n_columns, f"the rows of {call.names[1]}")


def _check_fits(pairing: Pairing, names: tuple[str, str], shape: tuple[int, int], *, across: bool) -> None:
    """Check that a pairing fits a matrix of this shape; with `across`, the shape is that of one rank's matrix."""
    (row_name, column_name), (n_rows, n_columns) = names, shape
    if pairing.positives.views == 2 and not pairing.extra_columns:  # noqa: PLR2004  (others are stacked here)
        half(n_rows, n_columns)
    if across and (pairing.positives.ahead_of_queue or (pairing.one_per_column and n_columns != n_rows)):
        raise ValueError(
            f"pairing: expected on each rank as many rows of {column_name} as of {row_name}, got {shape}; for extra "
            f"negatives, use info_nce(..., negative_keys) or moco"
        )
    if pairing.one_per_column and n_columns < n_rows:
        raise ValueError(
            f"{column_name}: expected at least as many rows as {row_name}, {n_rows}, got {n_columns}: row i is paired "
            f"with row i; name the pairs by positives or another pairing"
        )
