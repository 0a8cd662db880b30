"""Score matrices: the operands of scores, and which pairs are positive, negative or neither."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.autodiff import stop_gradient
from .._core.checks import is_readable, largest, least, readable_entries
from .._core.namespace import device_of, lift_to_tape, namespace_of
from .._core.notes import note
from .._core.numerics import (
    as_scores,
    continued,
    entries_at,
    in_range,
    largest_entry,
    largest_length,
    normalize,
    upcast,
    zeros,
)
from .._core.pair_functions import PairFunction
from .._core.protocol import Array
from .._core.ranks import Shards
from .._core.registry import adapter_of
from ..pairings import Pairing, takes_products
from ..similarities import Operands, Similarity
from .channels import Channel, channel_of
from .inputs import Arrays, Inputs
from .operands import operands_of
from .sets import PairRule, RuleSets
from .tiling import MAX_UNSHIFTED_LOGIT, Sizes, Tiling, may_be_held, sizes_of


class Shard(NamedTuple):
    """Position of a shard, some rows and all columns, in a larger matrix.

    `rows`, `columns`: their indices in the matrix of this `shape`, for rules. The first `n_own_columns` columns come
    from the same rank as the rows and contain the diagonals of positives.
    """

    rows: Array
    columns: Array
    shape: tuple[int, int]
    n_own_columns: int


def may_overflow(similarity: Similarity, rows: Operands, columns: Operands, shards: Shards | None = None) -> bool:
    """Whether distances are known to be so large that scores may be -inf, which masks leave out; of any rank."""
    function = similarity.scores
    if not (isinstance(function, PairFunction) and function.distance and is_readable(rows[0])):
        return False
    longest = max(largest_length(x) for x in (rows[0], columns[0]))
    return (longest if shards is None else shards.largest_number(longest, rows[0])) == math.inf


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

    def sizes(self, function: Callable[..., Tiling], **options: Any) -> Sizes:
        """How a sweep over the matrix chooses its blocks and tiles."""
        return sizes_of(function, self.rows[0], self.block_size, **options)

    @property
    def channel(self) -> Channel:
        """The similarity as a static argument of sweeps."""
        return channel_of(self.similarity, self.rows, self.columns)

    @property
    def lacks_columns(self) -> bool:
        """Whether rows lie beyond the last column of a diagonal of positives: the transpose of a wide matrix."""
        positives, (n_rows, n_columns) = self.pairing.positives, self.shape
        return (positives.on_diagonals or positives.by_id) and self.n_own_columns is None and n_rows > n_columns

    def with_operands(self) -> ScoreMatrix:
        """Score matrix with operands instead of embeddings."""
        if self.scale is None:
            return self
        (x,), (y,) = self.rows, self.columns
        partners = self.partners
        if self.similarity.unit:
            partners = tuple(map(normalize, partners))
        elif partners and self.bound == math.inf:
            factors, _ = in_range(namespace_of(x, y), x, y, *partners, scale=self.scale)
            if factors is not None:
                x, y, *others = (z * factor for z, factor in zip((x, y, *partners), factors, strict=True))
                partners = tuple(others)
        _, rows, columns, bound = operands_of(self.similarity, x, y, self.scale, self.half)
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
        mask = None if self.mask is None else adapter_of(self.mask).turned(self.mask)
        pairing = self.pairing.transposed()
        if len(self.columns) == 0:
            return self._replace(rows=(transpose_of(self.rows[0]),), pairing=pairing, mask=mask)
        similarity = self.similarity.transposed()
        return self._replace(similarity=similarity, rows=self.columns, columns=self.rows, pairing=pairing, mask=mask)

    def transposed_scores(self) -> ScoreMatrix:
        """The transposed scores of a square matrix, with the pairing not transposed."""
        return self.transposed()._replace(pairing=self.pairing, mask=self.mask)

    def constant(self) -> ScoreMatrix:
        """Score matrix without gradients."""
        matrix = self.with_operands()
        rows, columns = (tuple(map(stop_gradient, x)) for x in (matrix.rows, matrix.columns))
        return matrix._replace(rows=rows, columns=columns)

    def dense(self, *, crossed: bool = False) -> ScoreMatrix:
        """Score matrix with computed scores; `crossed`: see `measured`."""
        if len(self.columns) == 0:
            return self
        own_transpose = None if self.own_transpose is None else self.own_transpose.dense(crossed=crossed)
        dense = matrix_of_scores(self.scores(), self.pairing, self.mask).measured(crossed=crossed)
        return dense._replace(
            shard=self.shard, shards=self.shards, own_transpose=own_transpose, sharpness=self.sharpness
        )

    def dense_if_small(self, *, crossed: bool = False) -> ScoreMatrix:
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
        note(computed=self)
        return self.dense(crossed=crossed)

    def measured(self, *, crossed: bool = False) -> ScoreMatrix:
        """Matrix of given scores with the largest magnitude of those that take part, if entries can be read.

        What a mask or -inf leaves out has no influence on the choice of a sweep, and so none on the last digits.
        `crossed`: the loss of row i also reads column i, where the pairs of row i take part.
        """
        (scores,), mask = self.rows, self.mask
        if crossed and mask is not None:  # of a shard, or with further columns, the pairs of row i are elsewhere
            square = mask.shape[0] == mask.shape[1]
            mask = namespace_of(mask).logical_or(mask, adapter_of(mask).turned(mask)) if square else None
        low, high = readable_entries(scores, least, largest)
        if low is None or high is None or not low <= high < math.inf:  # also for NaN
            return self
        finite, bound = low > -math.inf, max(-low, high)
        if not finite or (mask is not None and bound > MAX_UNSHIFTED_LOGIT):
            xp = namespace_of(stop_gradient(scores))
            among = xp.not_equal(stop_gradient(scores), -math.inf)
            among = among if mask is None else xp.logical_and(among, mask)
            bound = largest_entry(xp.where(among, stop_gradient(scores), 0.0)) or 0.0
            if mask is not None and bound <= MAX_UNSHIFTED_LOGIT:  # exponentials of the others may overflow
                scores = namespace_of(scores).where(mask, scores, 0.0)
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

    def one_positive(self) -> dict[str, Arrays] | None:
        """Groups of `Inputs` for rows with one positive each, at a known column, and all other columns as negatives."""
        positives, n_rows = self.pairing.positives, self.shape[0]
        if self.mask is not None or self.shard is not None or self.shards is not None or self.lacks_columns:
            return None
        if positives.index is not None and not self.pairing.has_flags:
            return self.indexed()
        numbers = namespace_of(self.rows[0]).arange(n_rows, device=device_of(self.rows[0]))
        return {"targets": (numbers,)} if self.pairing.is_diagonal else None

    def indexed(self) -> dict[str, Arrays]:
        """Groups of `Inputs` for positives by index; none for others."""
        positives = self.pairing.positives
        if positives.index is None:
            return {}
        xp, present, index = namespace_of(self.rows[0]), None, positives.index
        if not (self.indices_checked or (positives.within and self.shard is None)):
            present = xp.logical_and(index >= 0, index < self.shape[1])
        if self.shard is not None:  # its columns are in another order
            positions = xp.astype(xp.argsort(self.shard.columns), index.dtype)
            valid = index if present is None else xp.where(present, index, xp.zeros_like(index))
            index = xp.take(positions, valid, axis=0)
            index = index if present is None else xp.where(present, index, -xp.ones_like(index))
        return {"targets": (index,), "present": () if present is None else (present,)}

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

    def gather(self, *columns: Array) -> list[Array]:
        """Scores (N,) of each row with a column of each array (N,)."""
        if self.scale is not None:
            return self.with_operands().gather(*columns)
        if len(self.columns) == 0:
            given, places = self.rows[0], namespace_of(*columns).stack(columns, axis=1)
            (found,) = adapter_of(given).custom_vjp(_entries, _pull_entries)(None, given, places)
            found = adapter_of(found).rounded(found)  # what is gathered is compared
            return [found[:, k] for k in range(len(columns))]
        return [self._scores_with(each) for each in columns]

    def _scores_with(self, columns: Array) -> Array:
        xp = namespace_of(self.rows[0])
        taken = tuple(xp.take(x, columns, axis=0)[:, None, ...] for x in self.columns)
        scores = self.similarity.scores(tuple(x[:, None, ...] for x in self.rows), taken)
        return xp.reshape(as_scores(xp, scores), (-1,))

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
    return adapter_of(scores).custom_vjp(_turn, _turn_back)(None, scores)[0]


def _turn(static: None, x: Array) -> Arrays:
    del static
    return (adapter_of(x).turned(x),)


def _turn_back(static: None, arrays: Arrays, outputs: Arrays, cotangents: Arrays) -> Arrays:
    del arrays, outputs
    return _turn(static, *cotangents)


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
