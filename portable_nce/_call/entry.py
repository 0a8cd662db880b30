"""Arrays and numbers enter: checked, of one library, upcast; pairing, similarity and objective fit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
from .._core.namespace import common_namespace, device_of, is_array, is_being_compiled, is_number, namespace_of
from .._core.numerics import reciprocal, upcast
from .._core.protocol import Array, Namespace
from .._core.ranks import RankReport, Ranks, Shards, agree, end_exchange
from .._core.reduction import REDUCTIONS, Reduction, finish
from .._core.registry import adapter_of
from .._core.types import ReductionName
from ..objectives import AnyObjective, Objective, Pairwise
from ..objectives.hard import HardNegatives
from ..objectives.relic import Relic
from ..pairings import AheadOfQueue, ByIndex, Pairing, half
from ..similarities import (
    AnySimilarity,
    Similarity,
    is_of_prepared,
    numbers_of_columns,
    operands,
)
from ..similarities import resolve as resolve_similarity
from .records import Arguments, ColumnLayout, Embedding, LossCall, LossOptions, PairChecks, is_per_row


def scale_in(xp: Namespace, parameters: dict[str, Any], options: LossOptions, x: Array) -> Any:
    """Factor of the scores: the logit scale, or the inverse temperature."""
    value = parameters[options.scaled_by]
    return scale_of(xp, value, x) if options.scaled_by == "temperature" else value


def checked_parameters(
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


def repeat_for_views(parameters: dict[str, Any], rows: int) -> dict[str, Any]:
    """Parameters, with per-sample temperatures repeated for each view."""
    temperature: Any = parameters.get("temperature")
    if not is_per_row(temperature) or temperature.shape[0] == rows:
        return parameters
    copies = [temperature] * (rows // temperature.shape[0])
    return {**parameters, "temperature": namespace_of(temperature).concat(copies, axis=0)}


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
    options = checked_options(options)
    first = next(iter(embeddings.values()))
    warn_of_scale(options, first)
    entered = entered_from(embeddings, options, {**(numbers or {}), options.scaled_by: options.temperature}, others)
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
    warn_of_arrays(options, first)
    return entered._replace(options=entered.options._replace(temperature=scale, weights=weights))


def warn_of_scale(options: LossOptions, x: Any) -> None:
    """Warn if the temperature or scale of cosines is a number that looks like its inverse or its logarithm.

    An `Embedding` has entered with these options before.
    """
    if not isinstance(x, Embedding) and isinstance(options.similarity, str) and options.similarity == "cosine":
        check_scale_of_cosines(options.scaled_by, options.temperature, x)


def warn_of_arrays(options: LossOptions, x: Any) -> None:
    """Warn of negative weights, and of a learned scale of cosines that looks like another number, if readable."""
    if isinstance(x, Embedding) or is_being_compiled(x):
        return
    if options.weights is not None:
        warn_of_negative("weights", options.weights)
    if isinstance(options.similarity, str) and options.similarity == "cosine":
        check_learned_scale_of_cosines(options.scaled_by, options.temperature)


def checked_options(options: LossOptions) -> LossOptions:
    """Options, with those checked that are not arrays."""
    check_choice("reduction", options.reduction, REDUCTIONS)
    symmetric = check_bool("symmetric", options.symmetric)
    block_size = check_block_size(options.block_size)
    check_precision(options.precision)
    return options._replace(symmetric=symmetric, block_size=block_size)


def entered_from(
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


def checked_entries(
    xp: Namespace, embeddings: Sequence[Array], parameters: dict[str, Any], options: LossOptions, layout: ColumnLayout
) -> tuple[dict[str, Any], Array | None]:
    """Parameters and row weights: what depends on entries or on the kind of an array is checked in each call."""
    for x in embeddings:
        adapter_of(x).check(x)
    x = embeddings[0]
    return checked_parameters(xp, parameters, options, layout, x), row_weights(xp, options.weights, x.shape[0], x)


def check_similarity(chosen: Similarity, args: Arguments) -> None:
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
        check_both_directions((n_rows, n_columns), args.pairing, args.objective, args.options.reduction, per_row)
    if chosen.pullback is None and isinstance(block_size, int):
        raise ValueError(
            f"block_size: expected None or 'auto' with a similarity that is a plain function, got {block_size}; to "
            f"stream it, make it a portable_nce.similarities.Similarity with a pullback, or pass None"
        )


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


def check_objective(args: Arguments, hardness: float) -> None:
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


def check_objective_across(args: Arguments, *, fixed_objective: bool) -> None:
    """Refuse options that the objective does not support across ranks."""
    if args.per_row_temperature and not fixed_objective:
        raise ValueError(
            "temperature: expected one number with across and this objective, got an array with one for each row; pass "
            "a float or an array of shape ()"
        )
    if args.options.symmetric and isinstance(args.objective, Relic):
        raise ValueError("symmetric: expected False with across and this objective; write relic(symmetric=True)")


def checked(call: LossCall, options: LossOptions) -> Arguments:
    layout, names = call.layout, (next(iter(call.embeddings)), next(reversed(call.embeddings)))
    entered = entered_from(call.embeddings, options, call.parameters)
    xp, options = entered.xp, entered.options
    # Rows that are also the columns stay one array, so that a 16-bit gradient is rounded once.
    x, *partners, y = entered.arrays if len(call.embeddings) > 1 else entered.arrays * 2
    shape_of(names[0], x, "(N, D)")
    if layout.paired:
        check_rows(names[1], y, x, layout.remedy)
    shape_of(names[1], y, "(K, D)")
    # Widths first: under torch.compile, a comparison of rows with features would make a graph of its own.
    if y.shape[1] != x.shape[1] and call.pairing.one_per_column and tuple(y.shape) == tuple(x.shape[::-1]):
        check_rows(names[1], y, x)  # transposed
    inputs, dtype, pairs = [*entered.embeddings.values()], entered.dtype, PairChecks()
    args = Arguments(
        xp, names, x, partners, y, inputs, entered.others, call.objective, call.pairing, pairs, options, layout, dtype
    )
    pairs = _check_pairing(args)
    parameters, weights = checked_entries(xp, (x, *partners, y), entered.others, options, layout)
    return args._replace(pairs=pairs, parameters=parameters, options=options._replace(weights=weights))


def agree_on_arguments(across: Ranks, args: Arguments, compared: dict[str, Any]) -> Shards:
    """Shards of the batch, once ranks have compared sizes and the named values."""
    n_rows, (n_columns, width), extra_columns = args.x.shape[0], args.y.shape, args.pairing.extra_columns
    compared = {"features": width, **compared, **(args.layout.agreed_on or {})}
    if args.layout.replicated:
        compared[f"rows of {args.names[1]}"] = n_columns - n_rows if extra_columns else n_columns
        n_columns = n_rows if extra_columns else n_columns
    temperature, pairs = args.parameters.get("temperature"), args.pairs
    report = RankReport(n_rows, n_columns, compared, temperature, pairs.n_columns, pairs.largest_index)
    return agree(across, report, args.x)


def _check_pairing(args: Arguments) -> PairChecks:
    """Check that a pairing and a mask fit the matrix and its library.

    Across ranks, arrays of pairs have the columns of all ranks, whose number is checked later, by `agree`. `n_common`
    columns are the same on all ranks.
    """
    x, pairing, mask, replicated = args.x, args.pairing, args.options.mask, args.layout.replicated
    n_rows, n_columns = x.shape[0], args.y.shape[0]
    common = len(args.partners) > 0 or (replicated and pairing.extra_columns)
    n_common = n_rows if args.partners else n_columns - n_rows if common else 0
    n_columns += n_rows * len(args.partners)
    across = args.options.across is not None and (pairing.extra_columns or not replicated)
    _check_fits(pairing, args.names, (n_rows, n_columns), across=across and not common)
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
        return PairChecks(n_columns=n_sharded, sharded=across)
    index = pairing.positives.index
    if pairing.positives.within:
        return PairChecks(indices_checked=True)
    xp = namespace_of(index)
    if not across:
        return PairChecks(check_indices("positives", index, n_columns, f"the rows of {args.names[1]}"))
    largest = adapter_of(index).concrete_value(xp.max(index)) if n_rows else -1
    checked = check_indices("positives", index, 2**31, "all columns")
    return PairChecks(checked, n_sharded, int(largest or 0), sharded=True)


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
