"""Executions: one score matrix, dense or streamed, and all that an objective may ask of it.

Both classes answer the same questions. Neither knows what the answers are for.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from ._core.autodiff import stop_gradient
from ._core.namespace import device_of, namespace_of
from ._core.numerics import upcast, zeros
from ._core.protocol import Array, Namespace
from ._core.registry import adapter_of
from ._fused import RowLoss, fused_pairs, fused_rows
from ._pairs import PairSums, Term, dense_pair_sums, streamed_pair_sums
from ._products import Frame, product_pairs, product_rows, product_sides
from ._rows import Block, constant, scan_rows, sweep_of, tile_of
from ._statistics import RowStatistics, RowSums, dense_sums, row_statistics
from ._streaming import streamed_sums
from .pairings import Pairing, Shifts, split
from .similarities import Operands, Similarity

__all__ = ["Dense", "Execution", "Streamed", "Sums", "dense_of", "execution_of", "streamed_of", "whole_tile"]

# Entries of the largest array that the dense execution, or a block of the streamed one, holds under block_size="auto".
_DENSE_LIMIT = 2**22
_TILE_LIMIT = 2**20
# For products: rows of a block and columns of a tile, by measurement; numbers in a block of whole rows, where they are
# not cut into tiles; and the exponentials that a two-sided loss may keep.
_ROWS, _TILE_COLUMNS = 512, 2048
_BLOCK_LIMIT = 2**22
_FAR_LIMIT, _FAR_ROWS = 2**26, 8192  # of a device that is not the processor; not measured yet
_KEPT_LIMIT = 2**26

Terms = tuple[Term | None, Term | None]
Sums = tuple[tuple[Array, Array | int], ...]


class Execution(Protocol):
    """What an objective may ask of a score matrix and its pairing."""

    def sums(self) -> RowSums:
        """Give the exponential sums of the rows."""
        ...

    def statistics(self) -> RowStatistics:
        """Give the row statistics."""
        ...

    def pair_sums(self, terms: Terms, parameters: tuple[Array, ...] = (), *, beside: Any = None) -> PairSums:
        """Give the sums of two terms over positives and negatives.

        With `beside`, an execution of the same kind and shape, they are terms of both scores of each pair.
        """
        ...

    def extreme(self, *, of_positives: bool, largest: bool) -> tuple[Array, Array]:
        """Give the column of each row's largest or smallest score, and whether there is one.

        The search is among the positives or among the negatives; both arrays are constants.
        """
        ...

    def pick(self, columns: Array) -> Array:
        """Give the score of each row against one column."""
        ...

    def zeros(self) -> Array:
        """Give zeros of shape (N,), in the dtype of the scores."""
        ...

    def dense(self) -> Dense:
        """Give the same, with the score matrix in memory."""
        ...

    def transposed(self) -> Execution:
        """Give the columns against the rows."""
        ...

    def mirrored(self) -> Execution:
        """Give the transposed scores of a square matrix, with positives and negatives where they were."""
        ...

    def constant(self) -> Execution:
        """Give the same without a gradient."""
        ...


class Dense:
    """A score matrix in memory, with the boolean matrices of its positives and negatives."""

    __slots__ = ("_sums", "negatives", "positives", "scores", "single")

    def __init__(self, scores: Array, positives: Array, negatives: Array, single: tuple[bool, bool]) -> None:
        self.scores = scores
        self.positives = positives
        self.negatives = negatives
        self.single = single  # at most one positive in a row, in a column
        self._sums: RowSums | None = None

    def sums(self) -> RowSums:
        if self._sums is None:
            self._sums = dense_sums(self.scores, self.positives, self.negatives, single=self.single[0])
        return self._sums

    def statistics(self) -> RowStatistics:
        return row_statistics(self.sums())

    def pair_sums(self, terms: Terms, parameters: tuple[Array, ...] = (), *, beside: Dense | None = None) -> PairSums:
        scores = (self.scores,) if beside is None else (self.scores, beside.scores)
        return dense_pair_sums(scores, self.positives, self.negatives, terms, parameters)

    def extreme(self, *, of_positives: bool, largest: bool) -> tuple[Array, Array]:
        xp = namespace_of(self.scores)
        best, where = _extreme(xp, self.scores, self.positives if of_positives else self.negatives, largest=largest)
        return where, best != -math.inf

    def pick(self, columns: Array) -> Array:
        xp = namespace_of(self.scores)
        numbers = xp.arange(self.scores.shape[1], dtype=columns.dtype, device=device_of(self.scores))
        chosen = xp.expand_dims(columns, axis=1) == xp.expand_dims(numbers, axis=0)
        return xp.sum(xp.where(chosen, self.scores, xp.zeros_like(self.scores)), axis=1)

    def zeros(self) -> Array:
        return zeros(namespace_of(self.scores), self.scores.shape[:1], self.scores)

    def dense(self) -> Dense:
        return self

    def transposed(self) -> Dense:
        xp = namespace_of(self.scores)
        scores, positives, negatives = (xp.matrix_transpose(x) for x in (self.scores, self.positives, self.negatives))
        return Dense(scores, positives, negatives, (self.single[1], self.single[0]))

    def mirrored(self) -> Dense:
        scores = namespace_of(self.scores).matrix_transpose(self.scores)
        return Dense(scores, self.positives, self.negatives, self.single)

    def constant(self) -> Dense:
        return Dense(stop_gradient(self.scores), self.positives, self.negatives, self.single)


class Streamed:
    """A score matrix that is computed some rows at a time, whenever something is asked of it."""

    __slots__ = ("_sums", "block", "mask", "operands", "own", "pairing", "similarity")

    def __init__(
        self,
        similarity: Similarity,
        operands: tuple[Operands, Operands],
        pairing: Pairing,
        mask: Array | None,
        block: int | None,
        *,
        own: bool = False,
    ) -> None:
        self.similarity = similarity
        self.operands = operands
        self.pairing = pairing
        self.mask = mask
        self.block = block  # rows at a time; None leaves it to what is computed
        self.own = own  # whether rows and columns are the same embeddings, and all of one another
        self._sums: RowSums | None = None

    def rows(self, most: int = _TILE_LIMIT) -> int:
        """Give the rows of a block, which is to hold `most` numbers, or as many as were asked for."""
        if self.block is not None:
            return self.block
        columns = self.operands[1][0]
        per_row: int = columns.shape[0] * (columns.shape[1] if self.similarity.wide else 1)
        return max(1, most // per_row)

    def fused_rows(self, loss: RowLoss, weights: Array | None, *, symmetric: bool) -> Sums:
        """Give the sums of the losses of the rows, and with `symmetric` of the columns, along with their gradients."""
        shifts = self._shifts()
        if shifts is not None:
            (rows,), (columns,) = self.operands
            if self.own or (symmetric and shifts == Shifts()):
                frame = self._square(shifts)
                if frame is not None:
                    sums = product_sides(loss, frame, rows, columns, weights, own=self.own, kept=self._kept())
                    return (sums,)
            found = (product_rows(loss, self._frame(shifts), rows, columns, weights),)
            if not symmetric:
                return found
            return (*found, product_rows(loss, self._frame(shifts), columns, rows, weights))
        return tuple(
            fused_rows(loss, one.similarity, one.operands, one.pairing, one.mask, weights=weights, block=one.rows())
            for one in ((self, self.transposed()) if symmetric else (self,))
        )

    def fused_pairs(
        self, terms: Terms, parameters: tuple[Array, ...], divide_by: str, weights: Array | None, *, symmetric: bool
    ) -> Sums:
        """Give the sums of the terms of all pairs along with their gradients."""
        shifts = self._shifts()
        repel = terms[1]
        if shifts is not None and not symmetric and repel is not None and repel.both is not None:
            (rows,), (columns,) = self.operands
            frame = self._frame(shifts)
            return (
                product_pairs(terms, frame, rows, columns, parameters=parameters, divide_by=divide_by, weights=weights),
            )
        return tuple(
            fused_pairs(
                terms,
                one.similarity,
                one.operands,
                one.pairing,
                one.mask,
                parameters=parameters,
                divide_by=divide_by,
                weights=weights,
                block=one.rows(),
            )
            for one in ((self, self.transposed()) if symmetric else (self,))
        )

    def _shifts(self) -> Shifts | None:
        """Give the pairing's shifts if this is a matrix of products, all of which take part."""
        if self.pairing.shifts is None or self.mask is not None or not self.similarity.product:
            return None
        rows, columns = (x.shape[0] for (x,) in self.operands)
        shifts = self.pairing.shifts(rows, columns)
        return shifts if columns - shifts.first - shifts.own > (not shifts.first) else None  # there are negatives

    def _frame(self, shifts: Shifts) -> Frame:
        """Give the blocks and tiles of a one-sided sweep."""
        (rows,), (columns,) = self.operands
        far = _is_far(rows)
        block = self.block or (max(min(_FAR_LIMIT // columns.shape[0], _FAR_ROWS), _ROWS) if far else _ROWS)
        tile = self._tile() if adapter_of(rows).unrolled and not far else columns.shape[0]
        return Frame(shifts, min(block, rows.shape[0]), min(tile, columns.shape[0]))

    def _tile(self) -> int:
        """Give the columns of a tile."""
        if self.block is None:
            return _TILE_COLUMNS
        return max(self.block, min(_TILE_COLUMNS, 8 * self.block))

    def _square(self, shifts: Shifts) -> Frame | None:
        """Give the blocks and tiles of a two-sided sweep, or None where it has no use."""
        (rows,), (columns,) = self.operands
        number: int = rows.shape[0]
        traced = not adapter_of(rows).unrolled
        if number != columns.shape[0] or (traced and self.own):
            return None
        if traced:
            return Frame(shifts, self.block or max(_ROWS // 2, _BLOCK_LIMIT // number // 2), number)
        if self.own:  # tiles on the diagonal are computed whole: small ones
            size = self.block or (_FAR_ROWS // 2 if _is_far(rows) else _ROWS)
            return Frame(shifts, size, 2 * size if size <= _ROWS else size)
        if self.block is not None:
            return Frame(shifts, self.block, self._tile())
        size = max(_FAR_ROWS // 2 if _is_far(rows) else 2 * _ROWS, min(_TILE_COLUMNS, number // 4))
        return Frame(shifts, size, max(size, _TILE_COLUMNS) if not self._kept() else size)

    def _kept(self) -> bool:
        """Tell whether a two-sided sweep may keep exponentials: half of them if rows and columns are the same."""
        number: int = self.operands[0][0].shape[0]
        return self.block is None and number * number <= _KEPT_LIMIT

    def sums(self) -> RowSums:
        if self._sums is None:
            self._sums = streamed_sums(self.similarity, self.operands, self.pairing, self.mask, self.rows())
        return self._sums

    def statistics(self) -> RowStatistics:
        return row_statistics(self.sums())

    def pair_sums(
        self, terms: Terms, parameters: tuple[Array, ...] = (), *, beside: Streamed | None = None
    ) -> PairSums:
        if any(term is not None and term.slopes is None for term in terms):
            message = "block_size: expected None with an objective whose terms have no slopes; add them, or pass None"
            raise ValueError(message)
        channels = [(one.similarity, one.operands) for one in (self, beside) if one is not None]
        return streamed_pair_sums(channels, self.pairing, self.mask, self.rows(), terms=terms, parameters=parameters)

    def extreme(self, *, of_positives: bool, largest: bool) -> tuple[Array, Array]:
        layout, source = sweep_of([(self.similarity, self.operands)], self.pairing, self.mask, self.rows())
        source = constant(layout, source)
        xp = namespace_of(source.operands[0][0][0])

        def step(carry: tuple[Array, ...], block: Block) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
            (scores,), positives, negatives = tile_of(xp, layout, source, block)
            return carry, _extreme(xp, scores, positives if of_positives else negatives, largest=largest)

        _, (best, where) = scan_rows(layout, source, step)
        return where, best != -math.inf

    def pick(self, columns: Array) -> Array:
        rows, candidates = self.operands
        xp = namespace_of(rows[0])
        chosen = (xp.take(x, columns, axis=0) for x in candidates)
        pairs = (tuple(xp.expand_dims(x, axis=1) for x in operands) for operands in (rows, chosen))
        return xp.reshape(upcast(xp, self.similarity.scores(*pairs)), (-1,))

    def zeros(self) -> Array:
        x = self.operands[0][0]
        xp = namespace_of(x)
        return zeros(xp, x.shape[:1], upcast(xp, x))

    def dense(self) -> Dense:
        xp = namespace_of(self.operands[0][0])
        return dense_of(xp, upcast(xp, self.similarity.scores(*self.operands)), self.pairing, self.mask)

    def transposed(self) -> Streamed:
        rows, columns = self.operands
        mask = None if self.mask is None else namespace_of(self.mask).matrix_transpose(self.mask)
        return Streamed(self.similarity.transposed(), (columns, rows), self.pairing.transposed(), mask, self.block)

    def mirrored(self) -> Streamed:
        rows, columns = self.operands
        return Streamed(self.similarity.transposed(), (columns, rows), self.pairing, self.mask, self.block)

    def constant(self) -> Streamed:
        rows, columns = (tuple(stop_gradient(x) for x in operands) for operands in self.operands)
        return Streamed(self.similarity, (rows, columns), self.pairing, self.mask, self.block)


def _is_far(x: Array) -> bool:
    """Whether an array is not on the processor, where a call costs more, and a cache is no measure."""
    device = device_of(x)
    return device is not None and "cpu" not in str(device).lower()


def _extreme(xp: Namespace, scores: Array, members: Array, *, largest: bool) -> tuple[Array, Array]:
    """The largest (or, negated, smallest) score of each row among the members, -inf without any, and its column."""
    scores = stop_gradient(scores)
    members = xp.logical_and(members, scores != -math.inf)  # which takes no part, also where the smallest is wanted
    candidates = xp.where(members, scores if largest else -scores, -math.inf)
    return xp.max(candidates, axis=1), xp.argmax(candidates, axis=1)


def streamed_of(
    similarity: Similarity,
    operands: tuple[Operands, Operands],
    pairing: Pairing,
    mask: Array | None,
    block_size: int | str | None,
    *,
    own: bool = False,
) -> Streamed | None:
    """The streamed execution, if `block_size` and the similarity allow it."""
    if block_size is None:
        return None
    if similarity.pullback is None:
        if block_size == "auto":
            return None
        message = (
            f"block_size: expected None or 'auto' with a similarity that is a plain function, got {block_size}; to "
            f"stream it, make it a portable_nce.similarities.Similarity with a pullback, or pass block_size=None"
        )
        raise ValueError(message)
    own = own and similarity.symmetric and mask is None
    return Streamed(similarity, operands, pairing, mask, block_size if isinstance(block_size, int) else None, own=own)


def execution_of(
    similarity: Similarity,
    operands: tuple[Operands, Operands],
    pairing: Pairing,
    mask: Array | None,
    block_size: int | str | None,
) -> Dense | Streamed:
    """The streamed execution where `block_size` asks for it or the matrix is large, and the dense one elsewhere."""
    streamed = streamed_of(similarity, operands, pairing, mask, block_size)
    if streamed is not None and (streamed.block is not None or streamed.rows(_DENSE_LIMIT) < operands[0][0].shape[0]):
        return streamed
    xp = namespace_of(operands[0][0])
    return dense_of(xp, upcast(xp, similarity.scores(*operands)), pairing, mask)


def dense_of(xp: Namespace, scores: Array, pairing: Pairing, mask: Array | None) -> Dense:
    """The dense execution of a score matrix."""
    positives, negatives = whole_tile(xp, pairing, scores, mask)
    return Dense(scores, positives, negatives, (pairing.one_per_row, pairing.one_per_column))


def whole_tile(xp: Namespace, pairing: Pairing, scores: Array, mask: Array | None) -> tuple[Array, Array]:
    """The positives and negatives of the whole matrix."""
    n_rows, n_columns = scores.shape
    return split(
        xp,
        pairing.rule,
        numbers=(xp.arange(n_rows, device=device_of(scores)), xp.arange(n_columns, device=device_of(scores))),
        shape=(n_rows, n_columns),
        labels=(pairing.rows, pairing.columns),
        pairs=pairing.pairs,
        mask=mask,
    )
