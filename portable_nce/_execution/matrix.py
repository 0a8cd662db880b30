"""Score matrices: operands, pairs, and the sweeps over them.

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
from typing import Any, NamedTuple

from .._core.autodiff import stop_gradient
from .._core.checks import is_readable, largest, least, readable_entries
from .._core.namespace import device_of, is_number, lift_to_tape, namespace_of
from .._core.notes import note
from .._core.numerics import continued, entries_at, in_range, largest_entry, largest_length, normalize, upcast, zeros
from .._core.pair_functions import PairFunction
from .._core.protocol import Array
from .._core.ranks import Shards
from .._core.registry import adapter_of, on_accelerator
from ..objectives.base import Objective
from ..pairings import AheadOfQueue, ByIndex, NoPositives, OnDiagonals, Pairing, SameId, SameLabel, takes_products
from ..similarities import Operands, Similarity
from .channels import Channel, channel_of
from .families import FamilySpec, SoftmaxSpec
from .fusing import is_fusible
from .inputs import Arrays, Inputs, number_of_varying
from .operands import SourceDtypes, operands_of
from .pair_terms import PairsSpec
from .products import absence
from .reweighted import ReweightedSpec
from .sets import NO_DIAGONALS, PairRule, RuleSets, SortedClasses, diagonals_of, present_at
from .specs import SweepSpec
from .statistics import Statistics
from .sweep import sweep
from .tiling import (
    MAX_UNSHIFTED_LOGIT,
    Sizes,
    Tiling,
    is_large,
    is_positive,
    label_blocks,
    masked,
    may_be_held,
    one_sided,
    pays_to_fuse,
    two_sided,
)
from .triplets import TripletSpec
from .two_sided import square_sweep


class Prepared(NamedTuple):
    """A sweep and its arrays; `by_row` may also contain floats, which hold for all rows.

    `reason`: why this sweep was chosen, for `explain`. `order`: permutation of the rows; `inverse`: its inverse.
    """

    function: Callable[..., Arrays]
    spec: SweepSpec
    inputs: Inputs
    reason: str
    order: Array | None = None
    inverse: Array | None = None

    @property
    def arrays(self) -> Arrays:
        """All arrays, with the numbers of rows in the order of the sweep."""
        inputs, order = self.inputs, self.order
        by_row, scale = as_arrays(inputs.by_row, inputs.rows[0]), inputs.scale
        if order is not None:
            xp = namespace_of(order)
            by_row, scale = (
                tuple(xp.take(x, order, axis=0) if x.shape[:1] == order.shape else x for x in group)
                for group in (by_row, scale)
            )
        return inputs._replace(by_row=by_row, scale=scale).flat


def as_arrays(numbers: tuple[Array | float, ...], like: Array) -> Arrays:
    """Floats as 0-d arrays of the dtype and device of `like`; arrays unchanged."""
    xp = namespace_of(like)

    def array(x: float) -> Array:
        x = x if abs(x) <= xp.finfo(like.dtype).max else math.copysign(math.inf, x)
        return xp.full((), x, dtype=like.dtype, device=device_of(like))

    return tuple(array(x) if isinstance(x, float) else x for x in numbers)


class Held(NamedTuple):
    """Note of a matrix whose scores are computed before its sweeps."""

    matrix: ScoreMatrix


class Passes(NamedTuple):
    """Note of a sweep, with the number of passes over the tiles for value and gradient."""

    number: int
    prepared: Prepared


class Shard(NamedTuple):
    """Position of a shard, some rows and all columns, in a larger matrix.

    `rows`, `columns`: their indices in the matrix of this `shape`, for rules. The first `n_own_columns` columns come
    from the same rank as the rows and contain the diagonals of positives.
    """

    rows: Array
    columns: Array
    shape: tuple[int, int]
    n_own_columns: int


class ScoreMatrix(NamedTuple):
    """Scores of rows against columns, with the pairs that are positive, negative or neither.

    With a `scale`, rows, columns and partners are embeddings; a one-pass sweep computes the operands itself.
    """

    similarity: Similarity
    rows: Operands
    columns: Operands
    pairing: Pairing
    mask: Array | None = None
    block_size: int | str | None = "auto"
    self_contrast: bool = False  # whether rows and columns are the same embeddings
    indices_checked: bool = False  # whether the pairing's indices are known to be in range
    bound: float = math.inf  # largest magnitude of the scores, if known; of given ones, of those that take part
    finite: bool = False  # whether all given scores are known to be finite
    partners: Operands = ()  # positives, if they are separate from the columns of a queue
    scale: Any = None  # factor of the rows, if rows and columns are embeddings
    half: Any = None  # 16-bit dtype of the embeddings, if they are multiplied as they are
    high: bool = False  # whether the library may compute float32 products faster, with fewer digits
    shard: Shard | None = None  # position in a larger matrix
    shards: Shards | None = None  # ranks that have the other rows of that matrix
    own_transpose: ScoreMatrix | None = None  # this rank's shard of the transposed matrix, if it is needed
    sharpness: Array | None = None  # factor of a row's negative scores, in value only

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and of columns."""
        first = self.rows[0]
        return first.shape[-2], self.columns[0].shape[-2] if self.columns else first.shape[-1]

    @property
    def n_own_columns(self) -> int | None:
        """Number of leading columns that can be positives; None for all."""
        if self.shard is not None:
            return self.shard.n_own_columns
        return self.shape[0] if self.pairing.extra_columns else None

    @property
    def channel(self) -> Channel:
        """The similarity as a static argument of sweeps."""
        return channel_of(self.similarity, self.rows, self.columns)

    @property
    def lacks_columns(self) -> bool:
        """Whether rows lie beyond the last column of a diagonal of positives: the transpose of a wide matrix."""
        diagonal = isinstance(self.pairing.positives, (OnDiagonals, SameId))
        return diagonal and self.n_own_columns is None and self.shape[0] > self.shape[1]

    def with_operands(self) -> ScoreMatrix:
        """Score matrix with operands instead of embeddings."""
        if self.scale is None:
            return self
        (x,), (y,) = self.rows, self.columns
        dtypes, partners = (x.dtype if self.half is None else self.half,), self.partners
        if self.similarity.unit:
            partners = tuple(map(normalize, partners))
        elif partners and self.bound == math.inf:
            factors, _ = in_range(namespace_of(x, y), x, y, *partners, scale=self.scale)
            if factors is not None:
                x, y, *others = (z * factor for z, factor in zip((x, y, *partners), factors, strict=True))
                partners = tuple(others)
        _, rows, columns, bound = operands_of(self.similarity, x, y, self.scale, SourceDtypes(dtypes, dtypes))
        bound = self.bound if partners else min(bound, self.bound)  # that of the operands leaves partners out
        return self._replace(rows=rows, columns=columns, partners=partners, scale=None, half=None, bound=bound)

    def transposed(self) -> ScoreMatrix:
        """The transpose, with the transposed pairing."""
        if self.sharpness is not None:
            turned = self._replace(sharpness=None).transposed()
            return turned._replace(sharpness=continued(self.sharpness, turned.shape[0]))
        if self.own_transpose is not None:
            return self.own_transpose
        if self.scale is not None:
            return self.with_operands().transposed()
        mask = None if self.mask is None else namespace_of(self.mask).matrix_transpose(self.mask)
        pairing = self.pairing.transposed()
        if len(self.columns) == 0:
            return self._replace(rows=(transpose_of(self.rows[0]),), pairing=pairing, mask=mask)
        similarity = self.similarity.transposed()
        return self._replace(similarity=similarity, rows=self.columns, columns=self.rows, pairing=pairing, mask=mask)

    def transposed_scores(self) -> ScoreMatrix:
        """The transposed scores of a square matrix, with the pairing not transposed."""
        return self.transposed()._replace(pairing=self.pairing, mask=self.mask)

    def is_one_block_of(self, prepared: Prepared) -> bool:
        """Whether a sweep over this matrix has a single block of rows."""
        block = prepared.spec.sizes.of(*self.shape).block
        return not isinstance(block, tuple) and is_positive(block - self.shape[0] + 1)

    def is_one_block(self) -> bool:
        """Whether every sweep has a single block of rows."""
        both = self.rows, self.columns
        # Block sizes depend on the operands of the columns, which for the transpose are those of the rows.
        far = on_accelerator(self.rows[0])
        by_rule = [self._sizes(masked, far=far, **self.channel.held(*x)) for x in (both, both[::-1])]
        sizes = [self._sizes(one_sided, far=far), *by_rule]
        blocks = [size.of(*self.shape).block for size in sizes]
        return all(not isinstance(block, tuple) and block >= self.shape[0] for block in blocks)

    def constant(self) -> ScoreMatrix:
        """Score matrix without gradients."""
        matrix = self.with_operands()
        rows, columns = (tuple(map(stop_gradient, x)) for x in (matrix.rows, matrix.columns))
        return matrix._replace(rows=rows, columns=columns)

    def dense(self) -> ScoreMatrix:
        """Score matrix with computed scores."""
        if len(self.columns) == 0:
            return self
        own_transpose = None if self.own_transpose is None else self.own_transpose.dense()
        dense = matrix_of_scores(self.scores(), self.pairing, self.mask).measured()
        return dense._replace(
            shard=self.shard, shards=self.shards, own_transpose=own_transpose, sharpness=self.sharpness
        )

    def dense_if_small(self) -> ScoreMatrix:
        """Matrix with computed scores if they may be held: for losses that would compute them several times.

        With labels, sweeps sort rows.
        """
        if self.shard is not None or self.shards is not None or self.own_transpose is not None:
            return self
        pairing, is_auto = self.pairing, isinstance(self.block_size, str)
        if self.partners or pairing.positives.has_labels or takes_products(pairing.rule) or not is_auto:
            return self
        modes = {"eager", "traced"}
        if len(self.columns) == 0 or self.half is not None or adapter_of(self.rows[0]).mode not in modes:
            return self
        if self.sharpness is not None or not may_be_held(*self.shape):
            return self
        if self.high or self.channel.in_halves:  # sweeps choose the products
            return self
        note(Held(self))
        return self.dense()

    def measured(self) -> ScoreMatrix:
        """Matrix of given scores with the largest magnitude of those that take part, if entries can be read.

        What a mask or -inf leaves out has no influence on the choice of a sweep, and so none on the last digits.
        """
        (scores,) = self.rows
        low, high = readable_entries(scores, least, largest)
        if low is None or high is None or not low <= high < math.inf:  # also for NaN
            return self
        finite, bound = low > -math.inf, max(-low, high)
        if not finite or (self.mask is not None and bound > MAX_UNSHIFTED_LOGIT):
            xp = namespace_of(stop_gradient(scores))
            among = xp.not_equal(stop_gradient(scores), -math.inf)
            among = among if self.mask is None else xp.logical_and(among, self.mask)
            bound = largest_entry(xp.where(among, stop_gradient(scores), 0.0)) or 0.0
            if self.mask is not None and bound <= MAX_UNSHIFTED_LOGIT:  # exponentials of the others may overflow
                scores = namespace_of(scores).where(self.mask, scores, 0.0)
        return self._replace(rows=(scores,), bound=bound, finite=finite)

    def scores(self) -> Array:
        """The score matrix."""
        matrix = self.with_operands()
        function = matrix.similarity.scores
        if isinstance(function, PairFunction):
            bound = adapter_of(matrix.rows[0]).custom_vjp(_function_scores, _pull_function_scores)
            (scores,) = bound(function, *matrix.rows, *matrix.columns)
        elif matrix.channel.by_rows and adapter_of(matrix.rows[0]).mode == "eager":
            # Both cotangents in the order of rows: libraries differ in the memory order of the second.
            bound = adapter_of(matrix.rows[0]).custom_vjp(_inner_products, _pull_inner_products)
            (scores,) = bound(matrix.channel, *matrix.rows, *matrix.columns)
        else:
            scores, _ = matrix.channel.scored(matrix.rows, matrix.columns)
        return upcast(namespace_of(scores), scores)

    # Choice of the sweep.

    def prepared(self, family: FamilySpec, by_row: Arrays, **options: Any) -> Prepared:
        """One-sided sweep over this matrix, by products if possible."""
        if self.sharpness is not None and isinstance(family, SoftmaxSpec):
            family, by_row = family._replace(sharpened=True), (self.sharpness, *by_row)
        result = self.by_places(family, by_row, options) or self.by_products(family, by_row, options)
        return self.by_rule(family, by_row, options) if result is None else result

    def by_places(
        self, family: FamilySpec, by_row: Arrays, options: dict[str, Any], *others: ScoreMatrix
    ) -> Prepared | None:
        """Sweep over given scores whose positives are at known places, one in each row; None for other matrices.

        Sums over pairs leave out scores of -inf, and count pairs: these need a mask, unless all scores are finite.
        """
        positives, indexed = self.pairing.positives, isinstance(self.pairing.positives, ByIndex)
        if any(len(one.columns) > 0 or one.shard is not None for one in (self, *others)):
            return None
        if isinstance(family, (ReweightedSpec, TripletSpec)):  # these take masks
            return None
        if not (self.pairing.is_diagonal or indexed) or self.lacks_columns or not is_positive(self.shape[1] - 1):
            return None
        inputs = Inputs(tuple([x for one in (self, *others) for x in one.rows]), by_row=by_row)
        if isinstance(positives, ByIndex):
            inputs = inputs._replace(**self._indexed(positives))
        if self.mask is not None:
            inputs = inputs._replace(mask=(self.mask,), present=(present_at(self.mask, inputs),))
        if isinstance(family, PairsSpec) and not (
            family.terms[1] is not None and len(inputs.present) == 0 and all(one.finite for one in (self, *others))
        ):
            return None
        diagonals = diagonals_of(positives, self.shape[0])
        return self._sweep_of(SweepSpec(family, diagonals, self._sizes(masked), **options), inputs, _KNOWN, *others)

    def by_products(self, family: FamilySpec, by_row: Arrays, options: dict[str, Any]) -> Prepared | None:
        """Sweep over inner products without masks; None if objective, similarity or pairing does not allow it."""
        if self._obstacle(family) is not None:
            return None
        positives, n_rows = self.pairing.positives, self.rows[0].shape[0]
        if isinstance(positives, (SameLabel, SameId)):
            by_classes = self._by_classes(positives, family, by_row, options)
            if by_classes is not None or isinstance(positives, SameLabel):
                return by_classes
        present, valid = self.pairing.flags(n_rows)
        inputs = Inputs(self.rows, self.columns, self.partners, by_row=by_row, present=present)
        if isinstance(positives, SameId):
            inputs = inputs._replace(row_labels=(positives.rows,), column_labels=(positives.columns,))
        elif isinstance(positives, ByIndex):
            inputs = inputs._replace(**self._indexed(positives))
        elif isinstance(positives, AheadOfQueue) and not self.partners:
            first, extra = self.columns[0][:n_rows, ...], tuple([x[n_rows:, ...] for x in self.columns])
            inputs = inputs._replace(partners=(first,), columns=extra)
        diagonals = NO_DIAGONALS if inputs.partners else diagonals_of(positives, n_rows, self.n_own_columns)
        if not is_positive(diagonals.negatives(inputs.shape[1])):
            return None
        inputs = inputs._replace(added=tuple([absence(x, inputs.columns[0]) for x in valid]))
        sizes = self._sizes(one_sided, far=on_accelerator(self.rows[0]))
        return self._sweep_of(SweepSpec(family, diagonals, sizes, **options), inputs, _KNOWN)

    def one_positive(self) -> dict[str, Arrays] | None:
        """Groups of `Inputs` for rows with one positive each, at a known column, and all other columns as negatives."""
        positives, n_rows = self.pairing.positives, self.shape[0]
        if self.mask is not None or self.shard is not None or self.shards is not None or self.lacks_columns:
            return None
        if isinstance(positives, ByIndex) and not self.pairing.has_flags:
            return self._indexed(positives)
        numbers = namespace_of(self.rows[0]).arange(n_rows, device=device_of(self.rows[0]))
        return {"targets": (numbers,)} if self.pairing.is_diagonal else None

    def _sizes(self, function: Callable[..., Tiling], **options: Any) -> Sizes:
        return Sizes(function, self.block_size, adapter_of(self.rows[0]).mode, tuple(options.items()))

    def _sweep_of(self, spec: SweepSpec, inputs: Inputs, reason: str, *others: ScoreMatrix) -> Prepared:
        """Sweep over the operands of this and other matrices, or over embeddings."""
        channels = tuple([one.channel for one in (self, *others)])
        fused = is_fusible(self.rows[0]) and pays_to_fuse(*self.shape)
        bound = max(one.bound for one in (self, *others))
        finite = all(one.finite for one in (self, *others))
        spec = spec._replace(channels=channels, bound=bound, unit=self.similarity.unit, given_finite=finite)
        spec = spec._replace(high=self.high, fused=fused)
        if self.scale is not None:
            spec, inputs = self._embedded(spec, inputs)
        else:
            inputs = inputs.split([channel.rows for channel in channels], [channel.columns for channel in channels])
        return Prepared(sweep, spec._replace(group_sizes=inputs.group_sizes), inputs, reason)

    def _embedded(self, spec: SweepSpec, inputs: Inputs) -> tuple[SweepSpec, Inputs]:
        """SweepSpec and inputs of a sweep over embeddings."""
        scale, rows = self.scale, inputs.rows[0]
        inputs = inputs._replace(columns=() if inputs.columns[0] is rows else inputs.columns)
        number = None
        if is_number(scale):
            if adapter_of(rows).mode == "eager":
                number = float(scale)
            else:  # as a number it would be static: a new compilation for each temperature
                scale = namespace_of(rows).full((), scale, dtype=rows.dtype, device=device_of(rows))
        inputs = inputs._replace(scale=() if number is not None else (scale,))
        if self.half is not None:
            of_columns = 1, 2 if self.similarity.unit else 1
            channels = tuple([one._replace(rows=(1, 2), columns=of_columns) for one in spec.channels])
            spec = spec._replace(channels=channels)
        return spec._replace(embedded=True, scale=number, half=self.half), inputs

    def _obstacle(self, family: FamilySpec) -> str | None:
        """Why a sweep over inner products without masks is impossible; None if it is possible."""
        pairing, positives = self.pairing, self.pairing.positives
        obstacles = {
            "the scores are given": len(self.columns) == 0,
            "a mask is given": self.mask is not None,
            "the pairing gives positives by a rule for each pair": not pairing.positives.known,
            "the similarity is no function of inner products": not self.similarity.by_products,
            "there are fewer columns than rows": self.lacks_columns,
            "squared distances may overflow": self.bound == math.inf and self._may_overflow(),
            "triples compare all scores of a row": isinstance(family, TripletSpec),
        }
        if isinstance(family, PairsSpec):
            obstacles |= {
                "negatives add nothing": family.terms[1] is None,
                "the number of negatives of a row is not known": len(pairing.columns) > 0,  # ids as well
                "a row has several positives in a sum over pairs": positives.views > 1 and not pairing.one_per_row,
                "the mean is over pairs": isinstance(positives, NoPositives) and family.divide_by != "rows",
                "a row may have no positive": isinstance(positives, ByIndex) and not self.indices_checked,
            }
        else:
            obstacles["no row has a positive"] = isinstance(positives, NoPositives)
        return next((reason for reason, holds in obstacles.items() if holds), None)

    def _may_overflow(self) -> bool:
        """Whether distances are known to be so large that scores may be -inf, which masks leave out."""
        function = self.similarity.scores
        if not (isinstance(function, PairFunction) and function.distance and is_readable(self.rows[0])):
            return False
        return math.inf in {largest_length(x) for x in (self.rows[0], self.columns[0])}

    def _indexed(self, positives: ByIndex) -> dict[str, Arrays]:
        """Groups of `Inputs` for positives by index."""
        xp, present, index = namespace_of(self.rows[0]), None, positives.index
        if not (self.indices_checked or (positives.within and self.shard is None)):
            present = xp.logical_and(index >= 0, index < self.shape[1])
        if self.shard is not None:  # its columns are in another order
            positions = xp.astype(xp.argsort(self.shard.columns), index.dtype)
            valid = index if present is None else xp.where(present, index, xp.zeros_like(index))
            index = xp.take(positions, valid, axis=0)
            index = index if present is None else xp.where(present, index, -xp.ones_like(index))
        return {"targets": (index,), "present": () if present is None else (present,)}

    def _by_classes(
        self, positives: SameLabel | SameId, family: FamilySpec, by_row: Arrays, options: dict[str, Any]
    ) -> Prepared | None:
        """Sweep over rows and columns sorted by label; None if labels cannot be read or classes are too large.

        Blocks and tiles end at class boundaries, so that all positives of block k are in tile k.
        """
        row_labels, column_labels = positives.rows, positives.columns
        n_rows, n_columns = self.shape
        adapter = adapter_of(row_labels)
        if adapter.mode != "eager" or not is_large(n_rows, n_columns) or self.block_size is None:
            return None
        own, ids = isinstance(positives, SameLabel) and positives.own, isinstance(positives, SameId)
        if (self.shard is not None and (own or ids)) or (ids and n_rows != n_columns):
            return None  # rows and columns are sorted differently: self pairs are not on the diagonal
        xp = namespace_of(row_labels)
        size, max_size = label_blocks(self.block_size)
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
        rows, columns = self.rows[0], self.columns[0]
        space = namespace_of(rows)
        sorted_rows = tuple([space.take(x, order, axis=0) for x in self.rows])
        sorted_columns = sorted_rows[0]
        if columns is not rows or column_order is not order:
            sorted_columns = space.take(columns, column_order, axis=0)
        inputs = Inputs(
            rows=sorted_rows,
            columns=(sorted_columns,),
            by_row=by_row,
            row_labels=(sorted_labels,),
            column_labels=(sorted_column_labels,),
        )
        spec = SweepSpec(family, SortedClasses(own, ids), Tiling(blocks, tiles), **options)
        prepared = self._sweep_of(spec, inputs, "labels are sorted: positives of a block are in one tile")
        return prepared._replace(order=order, inverse=xp.argsort(order, stable=True))

    def by_rule(self, family: FamilySpec, by_row: Arrays, options: dict[str, Any], *others: ScoreMatrix) -> Prepared:
        """Sweep with masks, for any similarity; pairs come from the pairing's rule and the mask."""
        sets, inputs = self.pair_rule(*others)
        sizes = self._sizes(masked, far=on_accelerator(self.rows[0]), **self.channel.held(self.rows, self.columns))
        reason = self._obstacle(family) or "no row has a negative"
        if self.pairing.positives.has_labels and self._obstacle(family) is None:
            reason = "labels are not sorted: the matrix is small, classes are large or values cannot be read"
        spec = SweepSpec(family, sets, sizes, **options)
        return self._sweep_of(spec, inputs._replace(by_row=by_row), reason, *others)

    def pair_rule(self, *others: ScoreMatrix) -> tuple[PairRule, Inputs]:
        """Rule that gives the pairs, and its inputs with the operands of this and other matrices."""
        matrices, (row_labels, column_labels, pairs) = [self, *others], self.pairing.arrays
        inputs = Inputs(
            rows=tuple(x for one in matrices for x in one.rows),
            columns=tuple(x for one in matrices for x in one.columns),
            row_labels=row_labels,
            column_labels=column_labels,
            pairs=pairs,
            mask=() if self.mask is None else (self.mask,),
            row_numbers=() if self.shard is None else (self.shard.rows,),
            column_numbers=() if self.shard is None else (self.shard.columns,),
        )
        shape = None if self.shard is None else self.shard.shape
        return PairRule(self.pairing.rule, self.pairing.one_per_row, shape), inputs

    def two_sided(self, family: SoftmaxSpec, by_row: Arrays, *, symmetric: bool, mean: bool) -> Prepared | None:
        """Two-sided sweep over this matrix, or None if rows and columns cannot share tiles."""
        n_rows, n_columns = self.shape
        if self.sharpness is not None or (self.bound == math.inf and self._may_overflow()):
            return None
        if symmetric:
            fits = is_symmetric(self.similarity, self.pairing, self.mask) and self.own_transpose is None
            n_own_columns = n_columns if self.shard is None else self.shard.n_own_columns
            fits = fits and n_rows == n_own_columns and is_positive(n_columns - 1)
        else:
            fits = self.pairing.positives.views > 1 and not self.pairing.has_flags
            fits = fits and self.mask is None and self.similarity.by_products
            fits = fits and self.self_contrast and self.similarity.symmetric
            fits = fits and adapter_of(self.rows[0]).mode == "eager"
            fits = fits and is_large(n_columns, n_columns)  # after the mode: symbolic lengths have no truth value
        if not fits:
            return None
        shared = self.shards is not None
        sizes = self._sizes(two_sided, far=on_accelerator(self.rows[0]), symmetric=not symmetric, shared=shared)
        diagonals = diagonals_of(self.pairing.positives, n_rows, self.n_own_columns)
        spec = SweepSpec(family, diagonals, sizes, mean=mean, shards=self.shards, self_contrast=not symmetric)
        reason = "the loss averages rows and columns" if symmetric else "the score of i with j is that of j with i"
        inputs = Inputs(self.rows, self.columns, by_row=by_row)
        return self._sweep_of(spec, inputs, reason)._replace(function=square_sweep)

    # Row losses and statistics.

    def row_losses(
        self, family: FamilySpec, parameters: Arrays = (), *, other: ScoreMatrix | None = None
    ) -> tuple[Array, Array]:
        """Row losses and their counts; with `other`, terms take the scores of a pair in both matrices."""
        matrix = self.with_operands()
        if other is None:
            return of_rows(matrix.prepared(family, parameters, values=True))
        other, options = other.with_operands(), {"values": True}
        prepared = matrix.by_places(family, parameters, options, other)
        prepared = prepared or matrix.by_rule(family, parameters, options, other)
        return of_rows(prepared._replace(reason="two score matrices are compared"))

    def statistics(self, *, same_scores: bool = False) -> Statistics:
        """Statistics of the rows, in two passes.

        `same_scores` uses a sweep by a rule. A caller that subtracts the statistics from scores of such a sweep needs
        it: a sweep by products rounds differently, and large scores would not cancel.
        """
        family = SoftmaxSpec(_NO_OBJECTIVE, statistics=True)
        matrix = self.with_operands()
        if same_scores and matrix.columns:
            prepared = matrix.by_rule(family, (), {"values": True})
            prepared = prepared._replace(reason="another sweep needs the same scores to the last digit")
        else:
            prepared = matrix.prepared(family, (), values=True)
        values, _ = in_two_passes(prepared)
        return Statistics.unstacked(values)

    def gather(self, *columns: Array) -> list[Array]:
        """Scores (N,) of each row with a column of each array (N,)."""
        if self.scale is not None:
            return self.with_operands().gather(*columns)
        if len(self.columns) == 0:
            given, places = self.rows[0], namespace_of(*columns).stack(columns, axis=1)
            (found,) = adapter_of(given).custom_vjp(_entries, _pull_entries)(None, given, places)
            return [found[:, k] for k in range(len(columns))]
        return [self._scores_with(each) for each in columns]

    def _scores_with(self, columns: Array) -> Array:
        xp = namespace_of(self.rows[0])
        taken = tuple(xp.take(x, columns, axis=0)[:, None, ...] for x in self.columns)
        scores = self.similarity.scores(tuple(x[:, None, ...] for x in self.rows), taken)
        return xp.reshape(upcast(xp, scores), (-1,))

    def sets(self) -> tuple[Array, Array]:
        """Boolean matrices of positives and negatives."""
        rule, inputs = self.pair_rule()
        members = RuleSets(rule, inputs).of(0, 0, inputs)
        members.refuse_weights()
        return members.positives, members.negatives


def _inner_products(channel: Channel, x: Array, y: Array) -> Arrays:
    return (channel.scored((x,), (y,))[0],)


def _pull_inner_products(channel: Channel, arrays: Arrays, outputs: Arrays, cotangents: Arrays) -> Arrays:
    del outputs
    (x, y), cotangents = lift_to_tape(arrays, cotangents)
    (to_x,), (to_y,) = channel.pull((x,), (y,), cotangents[0], None)
    return to_x, to_y


def _function_scores(function: PairFunction, *operands: Array) -> Arrays:
    """All scores of a function of products, whose near pairs a library cannot differentiate."""
    return (function(operands[:2], operands[2:]),)


def _pull_function_scores(function: PairFunction, arrays: Arrays, outputs: Arrays, cotangents: Arrays) -> Arrays:
    del outputs
    arrays, cotangents = lift_to_tape(arrays, cotangents)
    to_rows, to_columns = function.pull(arrays[:2], arrays[2:], cotangents[0])
    return (*to_rows, *to_columns)


def _entries(static: None, x: Array, columns: Array) -> Arrays:
    del static
    return (entries_at(x, columns),)


def _pull_entries(static: None, arrays: Arrays, outputs: Arrays, cotangents: Arrays) -> Arrays:
    """Cotangent of a matrix from that of its entries in some columns of each row."""
    del static, outputs
    ((x, columns), (cotangent,)) = arrays, cotangents
    nothing = zeros(namespace_of(cotangent), tuple(x.shape), cotangent)
    return (adapter_of(cotangent).add_columns(nothing, columns, cotangent),)


def transpose_of(scores: Array) -> Array:
    """The transpose as a matrix of its own; so is its cotangent: sums of both memory orders take many times as long."""
    adapter = adapter_of(scores)
    if adapter.mode == "traced":  # XLA chooses memory orders itself
        return namespace_of(scores).matrix_transpose(scores)
    return adapter.custom_vjp(_turn, _turn_back)(None, scores)[0]


def _turn(static: None, x: Array) -> Arrays:
    del static
    return (adapter_of(x).turned(x),)


def _turn_back(static: None, arrays: Arrays, outputs: Arrays, cotangents: Arrays) -> Arrays:
    del arrays, outputs
    return _turn(static, *cotangents)


def is_symmetric(similarity: Similarity, pairing: Pairing, mask: Array | None) -> bool:
    """Whether rows and columns of a symmetric loss can share tiles."""
    return pairing.is_diagonal and similarity.by_products and mask is None


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


_KNOWN = "the columns of the positives are known before the sweep"
_NO_OBJECTIVE = Objective(lambda row: row.log_odds, couples_rows=False, label="statistics")


def in_one_pass(prepared: Prepared) -> tuple[Array, Array]:
    """Sum of the row losses, or the losses of given scores, with their gradient, and the counts of the rows."""
    spec, arrays = prepared.spec, prepared.arrays
    note(Passes(1, prepared))
    value, number = adapter_of(arrays[0]).value_and_vjp(prepared.function)(spec, *arrays)
    return value, number


def of_rows(prepared: Prepared) -> tuple[Array, Array]:
    """Row losses and their counts; of given scores in one pass, since a row has the gradient of its loss alone."""
    spec, inputs, family = prepared.spec, prepared.inputs, prepared.spec.family
    if not all(one.given for one in spec.channels) or (isinstance(family, SoftmaxSpec) and family.statistics):
        return in_two_passes(prepared)
    n_rows = inputs.shape[0]
    by_row = as_arrays(inputs.by_row, inputs.rows[0])
    by_row = tuple([x if x.shape == (n_rows,) else namespace_of(x).broadcast_to(x, (n_rows,)) for x in by_row])
    return in_one_pass(prepared._replace(inputs=inputs._replace(by_row=by_row)))


def in_two_passes(prepared: Prepared) -> tuple[Array, Array]:
    """Row losses and their counts; a second pass computes the gradient."""
    adapter = adapter_of(prepared.inputs.rows[0])
    note(Passes(2, prepared))
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
    family, inputs = spec.family, Inputs.of(spec.group_sizes, arrays)
    if isinstance(family, SoftmaxSpec) and family.statistics:
        weights = Statistics.slopes_of(cotangents[0])
    else:
        weights, spec = (cotangents[0],), spec._replace(family=family._replace(weighted=True))
    weighted = inputs._replace(by_row=(*inputs.by_row, *weights))
    static, all_arrays = spec._replace(group_sizes=weighted.group_sizes), weighted.flat
    gradients = sweep(static, *all_arrays, need_grad=True)[2:]
    return tuple(gradients[: number_of_varying(spec.group_sizes)])


def matrix_of_scores(scores: Array, pairing: Pairing, mask: Array | None = None) -> ScoreMatrix:
    """Score matrix of computed scores."""
    return ScoreMatrix(_GIVEN, (scores,), (), pairing, mask)


def _prepare_scores(x: Array, y: Array, scale: Any) -> tuple[Operands, Operands]:
    raise NotImplementedError  # the scores exist already


def _given_scores(rows: Operands, columns: Operands) -> Array:
    del columns
    return rows[0]


def _given_pullback(rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
    del rows, columns
    return (cotangent,), ()


_GIVEN = Similarity(_prepare_scores, _given_scores, _given_pullback)
