"""Checks of a call: shapes, options, pairing, objective, and that ranks agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core.checks import (
    check_indices,
    check_mask,
    check_number,
    check_rows,
    check_shape,
    row_weights,
    shape_of,
)
from .._core.namespace import common_namespace, namespace_of
from .._core.protocol import Array, Namespace
from .._core.ranks import RankReport, Ranks, Shards, agree
from .._core.registry import adapter_of
from .._core.types import ReductionName
from ..objectives import AnyObjective, Objective, Pairwise
from ..objectives.hard import HardNegatives
from ..objectives.relic import Relic
from ..pairings import AheadOfQueue, ByIndex, Pairing, half
from ..similarities import (
    Similarity,
    is_of_prepared,
    numbers_of_columns,
)
from .entry import checked_parameters, entered_from, same_width
from .records import Arguments, ColumnLayout, LossCall, LossOptions, PairChecks


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
    common = bool(args.partners) or (replicated and pairing.extra_columns)
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
        return PairChecks(check_indices(xp, "positives", index, n_columns, f"the rows of {args.names[1]}"))
    largest = adapter_of(index).concrete_value(xp.max(index)) if n_rows else -1
    checked = check_indices(xp, "positives", index, 2**31, "all columns")
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
