"""Choice of the sweep over a score matrix, and its passes.

One pass
    Value and gradient in one sweep over blocks of rows.
Two-sided
    One sweep in which a tile serves rows and columns: symmetric losses, and matrices of rows with themselves.
Two passes
    A second sweep for the gradient: row losses are returned, or depend on one another.

A sweep uses *products* if scores are inner products and the pairing knows its positives, else *masks*.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from .._core.autodiff import stop_gradient
from .._core.namespace import device_of, is_number, namespace_of
from .._core.notes import note
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..objectives.base import RowStatistics
from ..objectives.triplet import Triplet
from ..pairings import Pairing
from ..similarities import Similarity
from .families import STATISTICS, FamilySpec, are_statistics
from .fusing import is_fusible
from .inputs import Arrays, Inputs, number_of_varying
from .matrix import ScoreMatrix, may_overflow
from .pair_terms import PairsSpec
from .products import absence
from .sets import NO_DIAGONALS, PairRule, Sets, SortedClasses, diagonals_of, present_at
from .specs import SweepSpec
from .sweep import sweep
from .tiling import Sizes, Tiling, is_large, is_positive, label_blocks, masked, one_sided, pays_to_fuse, two_sided
from .triplets import of_one_positive
from .two_sided import square_sweep


class Wanted(NamedTuple):
    """What a sweep computes of the rows of a matrix: an objective as data, with its arrays.

    `parameters` of the objective, and at most one array of `weights`; floats hold for all rows. `mean`: the sum is
    divided by the number of rows that count. `values`: the losses of the rows instead of their sum.
    """

    family: FamilySpec
    parameters: Arrays = ()
    weights: Arrays = ()
    mean: bool = False
    values: bool = False


class Prepared(NamedTuple):
    """A sweep and its arrays; parameters and weights may also be floats, which hold for all rows.

    `reason`: why this sweep was chosen, for `explain`. `order`: permutation of the rows; `inverse`: its inverse.
    `passes`: number of passes over the tiles for value and gradient.
    """

    function: Callable[..., Arrays]
    spec: SweepSpec
    inputs: Inputs
    reason: str
    order: Array | None = None
    inverse: Array | None = None
    passes: int = 1

    @property
    def arrays(self) -> Arrays:
        """All arrays, with the numbers of rows in the order of the sweep."""
        inputs, order = self.inputs, self.order
        inputs = inputs.with_numbers(lambda group: as_arrays(group, inputs.rows[0]))
        if order is None:
            return inputs.flat

        def sorted_(group: Arrays) -> Arrays:
            return tuple([namespace_of(x).take(x, order, axis=0) if x.shape[:1] == order.shape else x for x in group])

        return inputs.with_numbers(sorted_)._replace(scale=sorted_(inputs.scale)).flat


def as_arrays(numbers: tuple[Array | float, ...], like: Array) -> Arrays:
    """Floats as 0-d arrays of the dtype and device of `like`; arrays unchanged."""
    xp = namespace_of(like)

    def array(x: float) -> Array:
        x = x if abs(x) <= xp.finfo(like.dtype).max else math.copysign(math.inf, x)
        return xp.full((), x, dtype=like.dtype, device=device_of(like))

    return tuple(array(x) if isinstance(x, float) else x for x in numbers)


# ----------------------------------------------------------------------------------------------------- one-sided sweeps


def one_sided_over(matrix: ScoreMatrix, wanted: Wanted, *others: ScoreMatrix) -> Prepared:
    """One-sided sweep over a matrix: without masks if the columns of its positives are known, else with masks.

    With `others`, the losses of a row depend on its scores in each matrix.
    """
    found = by_places(matrix, wanted, *others)
    if others:
        return (found or by_rule(matrix, wanted, *others))._replace(reason="two score matrices are compared")
    return found or by_products(matrix, wanted) or by_rule(matrix, wanted)


def by_places(matrix: ScoreMatrix, wanted: Wanted, *others: ScoreMatrix) -> Prepared | None:
    """Sweep over whole scores whose positives are at known places, one in each row; None for other matrices.

    The scores are given, or those of several matrices. Sums over pairs count their pairs: these need a mask if some
    are left out, but by scores of -inf.
    """
    positives, family, matrices = matrix.pairing.positives, wanted.family, (matrix, *others)
    if any(one.shard is not None for one in matrices):
        return None
    if len(matrix.columns) > 0 and (not others or matrix.mask is not None):
        return None  # computed scores of pairs left out may be NaN
    if family.by_mask:
        return None  # these take masks
    known = matrix.pairing.is_diagonal or positives.index is not None
    if not known or matrix.lacks_columns or not is_positive(matrix.shape[1] - 1):
        return None
    inputs = Inputs(
        tuple([x for one in matrices for x in one.rows]),
        tuple([x for one in matrices for x in one.columns]),
        **matrix.indexed(),
    )
    if matrix.mask is not None:
        inputs = inputs._replace(mask=(matrix.mask,), present=(present_at(matrix.mask, inputs),))
    if isinstance(family, Triplet):
        family = of_one_positive(family, finite=matrix.finite)
        wanted = wanted._replace(family=family)
    if isinstance(family, PairsSpec) and (family.terms[1] is None or len(inputs.present) > 0):
        return None
    sets = diagonals_of(positives, matrix.shape[0])
    sizes = matrix.sizes(masked, **matrix.channel.held(matrix.rows, matrix.columns))
    return _prepared(matrix, wanted, sets, sizes, inputs, _KNOWN, *others)


def by_products(matrix: ScoreMatrix, wanted: Wanted) -> Prepared | None:
    """Sweep over products without masks; None if objective, similarity or pairing does not allow it."""
    if _obstacle(matrix, wanted.family) is not None:
        return None
    pairing, positives, n_rows = matrix.pairing, matrix.pairing.positives, matrix.rows[0].shape[0]
    if positives.has_labels:
        by_classes = _by_classes(matrix, wanted)
        if by_classes is not None or not positives.by_id:
            return by_classes
    present, valid = pairing.flags(n_rows)
    inputs = Inputs(matrix.rows, matrix.columns, matrix.partners, **{"present": present, **matrix.indexed()})
    if positives.by_id:
        inputs = inputs._replace(row_labels=positives.arrays[0], column_labels=positives.arrays[1])
    elif positives.ahead_of_queue and not matrix.partners:
        first, extra = matrix.columns[0][:n_rows, ...], tuple([x[n_rows:, ...] for x in matrix.columns])
        inputs = inputs._replace(partners=(first,), columns=extra)
    diagonals = NO_DIAGONALS if inputs.partners else diagonals_of(positives, n_rows, matrix.n_own_columns)
    if not is_positive(diagonals.negatives(inputs.shape[1])):
        return None
    inputs = inputs._replace(added=tuple([absence(x, inputs.columns[0]) for x in valid]))
    return _prepared(matrix, wanted, diagonals, matrix.sizes(one_sided), inputs, _KNOWN)


def by_rule(matrix: ScoreMatrix, wanted: Wanted, *others: ScoreMatrix) -> Prepared:
    """Sweep with masks, for any similarity; pairs come from the pairing's rule and the mask."""
    sets, inputs = matrix.pair_rule(*others)
    sizes = matrix.sizes(masked, **matrix.channel.held(matrix.rows, matrix.columns))
    reason = _obstacle(matrix, wanted.family) or "no row has a negative"
    if matrix.pairing.positives.has_labels and _obstacle(matrix, wanted.family) is None:
        reason = "labels are not sorted: the matrix is small, classes are large or values cannot be read"
    return _prepared(matrix, wanted, sets, sizes, inputs, reason, *others)


def _by_classes(matrix: ScoreMatrix, wanted: Wanted) -> Prepared | None:
    """Sweep over rows and columns sorted by label; None if labels cannot be read or classes are too large.

    Blocks and tiles end at class boundaries, so that all positives of block k are in tile k.
    """
    positives, (n_rows, n_columns) = matrix.pairing.positives, matrix.shape
    (row_labels,), (column_labels,), _ = positives.arrays
    adapter = adapter_of(row_labels)
    if adapter.mode != "eager" or not is_large(n_rows, n_columns) or matrix.block_size is None:
        return None
    own, ids = positives.own, positives.by_id
    if (matrix.shard is not None and (own or ids)) or (ids and n_rows != n_columns):
        return None  # rows and columns are sorted differently: self pairs are not on the diagonal
    xp = namespace_of(row_labels)
    size, max_size = label_blocks(matrix.block_size)
    order = xp.argsort(row_labels, stable=True)
    sorted_labels = xp.take(row_labels, order, axis=0)
    ends = xp.take(sorted_labels, xp.arange(size, n_rows, size, device=device_of(row_labels)), axis=0)
    starts = adapter.concrete_values(xp.searchsorted(sorted_labels, ends))
    if starts is None:
        return None
    firsts = sorted({0, *(int(start) for start in starts)})
    blocks = tuple(zip(firsts, [*firsts[1:], n_rows], strict=True))
    tiles, column_order, sorted_column_labels = blocks, order, sorted_labels
    if not (own or ids):
        column_order = xp.argsort(column_labels, stable=True)
        sorted_column_labels = xp.take(column_labels, column_order, axis=0)
        at = xp.take(sorted_labels, xp.asarray(firsts[1:], dtype=order.dtype, device=device_of(order)), axis=0)
        ends = adapter.concrete_values(xp.searchsorted(sorted_column_labels, at)) or ()
        blocks, tiles = _without_empty_tiles(firsts, [0, *map(int, ends)], n_rows, n_columns)
    if max(high - low for low, high in (*blocks, *tiles)) > max_size:
        return None
    rows, columns = matrix.rows[0], matrix.columns[0]
    space = namespace_of(rows)
    sorted_rows = tuple([space.take(x, order, axis=0) for x in matrix.rows])
    sorted_columns = sorted_rows[0]
    if columns is not rows or column_order is not order:
        sorted_columns = space.take(columns, column_order, axis=0)
    labels = {"row_labels": (sorted_labels,), "column_labels": (sorted_column_labels,)}
    inputs, reason = (
        Inputs(sorted_rows, (sorted_columns,), **labels),
        "labels are sorted: positives of a block are in one tile",
    )
    prepared = _prepared(matrix, wanted, SortedClasses(own, ids), Tiling(blocks, tiles), inputs, reason)
    return prepared._replace(order=order, inverse=xp.argsort(order, stable=True))


def _without_empty_tiles(
    firsts: list[int], lows: list[int], n_rows: int, n_columns: int
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Blocks and tiles that begin at these rows and columns; a block without columns joins the previous one."""
    kept = [(0, 0)]
    for first, low in zip(firsts[1:], lows[1:], strict=True):
        if kept[-1][1] < low < n_columns:
            kept.append((first, low))
    rows, columns = zip(*kept, strict=True)
    return tuple(pairwise((*rows, n_rows))), tuple(pairwise((*columns, n_columns)))


def _obstacle(matrix: ScoreMatrix, family: FamilySpec) -> str | None:
    """Why a sweep over products without masks is impossible; None if it is possible."""
    pairing, positives = matrix.pairing, matrix.pairing.positives
    obstacles = {
        "the scores are given": len(matrix.columns) == 0,
        "a mask is given": matrix.mask is not None,
        "the pairing gives positives by a rule for each pair": not pairing.positives.known,
        "the similarity is no function of inner products": not matrix.similarity.by_products,
        "there are fewer columns than rows": matrix.lacks_columns,
        "squared distances may overflow": _distances_may_overflow(matrix),
        "triples compare all scores of a row": family.of_triples,
    }
    if isinstance(family, PairsSpec):
        obstacles |= {
            "negatives add nothing": family.terms[1] is None,
            "the number of negatives of a row is not known": len(pairing.columns) > 0,  # ids as well
            "a row has several positives in a sum over pairs": positives.views > 1 and not pairing.one_per_row,
            "the mean is over pairs": not positives.exist and family.divide_by != "rows",
            "a row may have no positive": positives.index is not None and not matrix.indices_checked,
        }
    else:
        obstacles["no row has a positive"] = not positives.exist
    return next((reason for reason, holds in obstacles.items() if holds), None)


def _distances_may_overflow(matrix: ScoreMatrix) -> bool:
    return matrix.bound == math.inf and may_overflow(matrix.similarity, matrix.rows, matrix.columns)


# ----------------------------------------------------------------------------------------------------- two-sided sweeps


def by_both_sides(matrix: ScoreMatrix, wanted: Wanted, *, symmetric: bool) -> Prepared | None:
    """Two-sided sweep over a matrix, or None if rows and columns cannot share tiles."""
    n_rows, n_columns = matrix.shape
    # Ranks have chosen together, and hold the transpose if distances of any of them may overflow.
    if matrix.sharpness is not None or (matrix.shards is None and _distances_may_overflow(matrix)):
        return None
    if symmetric:
        fits = is_symmetric(matrix.similarity, matrix.pairing, matrix.mask) and matrix.own_transpose is None
        n_own_columns = n_columns if matrix.shard is None else matrix.shard.n_own_columns
        fits = fits and n_rows == n_own_columns and is_positive(n_columns - 1)
    else:
        fits = matrix.pairing.positives.views > 1 and not matrix.pairing.has_flags
        fits = fits and matrix.mask is None and matrix.similarity.by_products
        fits = fits and matrix.self_contrast and matrix.similarity.symmetric
        fits = fits and adapter_of(matrix.rows[0]).mode == "eager"
        fits = fits and is_large(n_columns, n_columns)  # after the mode: symbolic lengths have no truth value
    if not fits:
        return None
    sizes = matrix.sizes(two_sided, symmetric=not symmetric, shared=matrix.shards is not None)
    diagonals = diagonals_of(matrix.pairing.positives, n_rows, matrix.n_own_columns)
    reason = "the loss averages rows and columns" if symmetric else "the score of i with j is that of j with i"
    prepared = _prepared(matrix, wanted, diagonals, sizes, Inputs(matrix.rows, matrix.columns), reason)
    spec = prepared.spec._replace(shards=matrix.shards, self_contrast=not symmetric)
    return prepared._replace(function=square_sweep, spec=spec)


def is_symmetric(similarity: Similarity, pairing: Pairing, mask: Array | None) -> bool:
    """Whether rows and columns of a symmetric loss can share tiles."""
    return pairing.is_diagonal and similarity.by_products and mask is None


# ----------------------------------------------------------------------------------------------------------- all sweeps

_KNOWN = "the columns of the positives are known before the sweep"


def is_one_block(matrix: ScoreMatrix, *sizes: Sizes | Tiling) -> bool:
    """Whether sweeps of these sizes, by default all, have a single block of rows."""
    if not sizes:
        both = matrix.rows, matrix.columns
        # Block sizes depend on the operands of the columns, which for the transpose are those of the rows.
        by_rule = [matrix.sizes(masked, **matrix.channel.held(*x)) for x in (both, both[::-1])]
        sizes = (matrix.sizes(one_sided), *by_rule)
    blocks = [size.of(*matrix.shape).block for size in sizes]
    return all(not isinstance(block, tuple) and is_positive(block - matrix.shape[0] + 1) for block in blocks)


def _prepared(  # noqa: PLR0917  (all that is known of a sweep)
    matrix: ScoreMatrix,
    wanted: Wanted,
    sets: Sets,
    sizes: Sizes | Tiling,
    inputs: Inputs,
    reason: str,
    *others: ScoreMatrix,
) -> Prepared:
    """Sweep over the operands of this and other matrices, or over embeddings."""
    matrices, (family, parameters, weights, mean, values) = (matrix, *others), wanted
    channels = tuple([one.channel for one in matrices])
    inputs = inputs._replace(parameters=parameters, weights=weights)
    if matrix.sharpness is not None:
        inputs = inputs._replace(sharpness=(matrix.sharpness,))
    spec = SweepSpec(
        family,
        sets,
        sizes,
        channels,
        bound=max(one.bound for one in matrices),
        given_finite=all(one.finite for one in matrices),
        unit=matrix.similarity.unit,
        high=matrix.high,
        fused=is_fusible(matrix.rows[0]) and pays_to_fuse(*matrix.shape, masked=isinstance(sets, PairRule)),
        mean=mean,
        values=values,
    )
    if matrix.scale is not None:
        spec, inputs = _embedded(matrix, spec, inputs)
    else:
        inputs = inputs.split([channel.rows for channel in channels], [channel.columns for channel in channels])
    return Prepared(sweep, spec._replace(group_sizes=inputs.group_sizes), inputs, reason)


def _embedded(matrix: ScoreMatrix, spec: SweepSpec, inputs: Inputs) -> tuple[SweepSpec, Inputs]:
    """SweepSpec and inputs of a sweep over embeddings."""
    scale, rows = matrix.scale, inputs.rows[0]
    inputs = inputs._replace(columns=() if inputs.columns[0] is rows else inputs.columns)
    number = None
    if is_number(scale):
        if adapter_of(rows).mode == "eager":
            number = float(scale)
        else:  # as a number it would be static: a new compilation for each temperature
            scale = namespace_of(rows).full((), scale, dtype=rows.dtype, device=device_of(rows))
    inputs = inputs._replace(scale=() if number is not None else (scale,))
    if matrix.half is not None:
        of_columns = 1, 2 if matrix.similarity.unit else 1
        channels = tuple([one._replace(rows=(1, 2), columns=of_columns) for one in spec.channels])
        spec = spec._replace(channels=channels)
    return spec._replace(embedded=True, scale=number, half=matrix.half), inputs


# --------------------------------------------------------------------------------------------------------------- passes


def in_one_pass(prepared: Prepared) -> tuple[Array, Array]:
    """Sum of the row losses, or the losses of given scores, with their gradient, and the counts of the rows."""
    spec, arrays = prepared.spec, prepared.arrays
    note(computed=prepared)
    value, number = adapter_of(arrays[0]).value_and_vjp(prepared.function)(spec, *arrays)
    return value, number


def row_losses(
    matrix: ScoreMatrix, family: FamilySpec, parameters: Arrays = (), *others: ScoreMatrix
) -> tuple[Array, Array]:
    """Row losses and their counts; of given scores in one pass, since a row has the gradient of its loss alone."""
    matrix = matrix.with_operands()
    prepared = one_sided_over(matrix, Wanted(family, parameters, values=True), *others)
    if not all(one.given for one in prepared.spec.channels):
        return _in_two_passes(prepared)
    inputs, like, shape = prepared.inputs, matrix.rows[0], matrix.shape[:1]

    def of_each_row(group: Arrays) -> Arrays:
        arrays = as_arrays(group, like)
        return tuple([x if x.shape == shape else namespace_of(x).broadcast_to(x, shape) for x in arrays])

    return in_one_pass(prepared._replace(inputs=inputs.with_numbers(of_each_row)))


def statistics(matrix: ScoreMatrix) -> RowStatistics:
    """Statistics of the rows, in two passes."""
    prepared = one_sided_over(matrix.with_operands(), Wanted(STATISTICS, values=True))
    return RowStatistics.unstacked(_in_two_passes(prepared)[0])


def _in_two_passes(prepared: Prepared) -> tuple[Array, Array]:
    """Row losses and their counts; a second pass computes the gradient."""
    adapter = adapter_of(prepared.inputs.rows[0])
    note(computed=prepared._replace(passes=2))
    values, number = adapter.custom_vjp(_first_pass, _second_pass)(prepared.spec, *prepared.arrays)
    if prepared.inverse is not None:
        xp = namespace_of(values)
        values, number = (xp.take(x, prepared.inverse, axis=0) for x in (values, number))
    return values, stop_gradient(number)


def _first_pass(spec: SweepSpec, *arrays: Array) -> Arrays:
    return sweep(spec, *arrays, need_grad=False)


def _second_pass(spec: SweepSpec, arrays: Arrays, outputs: Arrays, cotangents: Arrays) -> Arrays:
    """Gradient of ``Σ c_i l_i`` by a one-pass sweep whose row weights are the cotangents c.

    For statistics, the cotangents of each statistic serve as the slopes of an objective.
    """
    del outputs
    inputs = Inputs.of(spec.group_sizes, arrays)
    if are_statistics(spec.family):
        each = RowStatistics._make([cotangents[0][:, k] for k in range(len(RowStatistics._fields))])
        weighted = inputs._replace(parameters=each.numbers)
    else:
        weighted = inputs._replace(weights=(cotangents[0],))
    gradients = sweep(spec._replace(group_sizes=weighted.group_sizes), *weighted.flat, need_grad=True)[2:]
    return tuple(gradients[: number_of_varying(spec.group_sizes)])
