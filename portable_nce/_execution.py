"""Executions: one score matrix, dense or streamed, and all that an objective may ask of it.

Both classes answer the same questions. Neither knows what the answers are for.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from ._autodiff import stop_gradient
from ._namespace import device_of, namespace_of
from ._numerics import accumulate, zeros
from ._pairs import PairSums, Term, dense_pair_sums, streamed_pair_sums
from ._protocol import Array, Namespace
from ._statistics import RowStatistics, RowSums, dense_sums, row_statistics
from ._streaming import streamed_sums
from ._tiles import Tiles, constant, scan_tiles, sweep_of
from .pairings import Pairing, split
from .similarities import Operands, Similarity

__all__ = ["Dense", "Execution", "Streamed", "dense_of", "execution_of", "whole_tile"]

# Entries of the largest array that the dense execution, or a tile of the streamed one, holds under block_size="auto".
_DENSE_LIMIT = 2**22
_TILE_LIMIT = 2**20

Terms = tuple[Term | None, Term | None]


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
    """A score matrix that is computed tile by tile, whenever something is asked of it."""

    __slots__ = ("_sums", "block", "mask", "operands", "pairing", "similarity")

    def __init__(
        self,
        similarity: Similarity,
        operands: tuple[Operands, Operands],
        pairing: Pairing,
        mask: Array | None,
        block: int,
    ) -> None:
        self.similarity = similarity
        self.operands = operands
        self.pairing = pairing
        self.mask = mask
        self.block = block
        self._sums: RowSums | None = None

    def sums(self) -> RowSums:
        if self._sums is None:
            self._sums = streamed_sums(self.similarity, self.operands, self.pairing, self.mask, self.block)
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
        return streamed_pair_sums(channels, self.pairing, self.mask, self.block, terms=terms, parameters=parameters)

    def extreme(self, *, of_positives: bool, largest: bool) -> tuple[Array, Array]:
        layout, source = sweep_of([(self.similarity, self.operands)], self.pairing, self.mask, self.block)
        source = constant(layout, source)
        xp = namespace_of(source.operands[0][0][0])

        def step(
            carry: tuple[Array, ...], tiles: Tiles, tile: tuple[Array, ...], positives: Array, negatives: Array
        ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
            best, where = _extreme(xp, tile[0], positives if of_positives else negatives, largest=largest)
            better = best > carry[0]
            where = xp.astype(xp.add(tiles.j[0:1], where), carry[1].dtype)
            return (xp.where(better, best, carry[0]), xp.where(better, where, carry[1])), ()

        nothing = zeros(xp, source.shape[:1], accumulate(xp, source.operands[0][0][0]))
        init = (nothing - math.inf, xp.argmax(xp.expand_dims(nothing, axis=1), axis=1))
        (best, where), _ = scan_tiles(layout, source, step, init)
        return where, best != -math.inf

    def pick(self, columns: Array) -> Array:
        rows, candidates = self.operands
        xp = namespace_of(rows[0])
        chosen = (xp.take(x, columns, axis=0) for x in candidates)
        pairs = (tuple(xp.expand_dims(x, axis=1) for x in operands) for operands in (rows, chosen))
        return xp.reshape(accumulate(xp, self.similarity.scores(*pairs)), (-1,))

    def zeros(self) -> Array:
        x = self.operands[0][0]
        xp = namespace_of(x)
        return zeros(xp, x.shape[:1], accumulate(xp, x))

    def dense(self) -> Dense:
        xp = namespace_of(self.operands[0][0])
        return dense_of(xp, accumulate(xp, self.similarity.scores(*self.operands)), self.pairing, self.mask)

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


def _extreme(xp: Namespace, scores: Array, members: Array, *, largest: bool) -> tuple[Array, Array]:
    """The largest (or, negated, smallest) score of each row among the members, -inf without any, and its column."""
    scores = stop_gradient(scores if largest else -scores)
    candidates = xp.where(members, scores, -math.inf)
    return xp.max(candidates, axis=1), xp.argmax(candidates, axis=1)


def execution_of(
    similarity: Similarity,
    operands: tuple[Operands, Operands],
    pairing: Pairing,
    mask: Array | None,
    block_size: int | str | None,
) -> Dense | Streamed:
    """The execution that `block_size` asks for."""
    block = _block(similarity, *operands, block_size)
    if block is not None:
        return Streamed(similarity, operands, pairing, mask, block)
    xp = namespace_of(operands[0][0])
    return dense_of(xp, accumulate(xp, similarity.scores(*operands)), pairing, mask)


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


def _block(similarity: Similarity, rows: Operands, columns: Operands, block_size: int | str | None) -> int | None:
    """Columns per tile, or None for the dense execution."""
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
    if isinstance(block_size, int):
        return block_size
    per_column: int = rows[0].shape[0] * (rows[0].shape[1] if similarity.wide else 1)
    if per_column * columns[0].shape[0] <= _DENSE_LIMIT:
        return None
    return max(1, _TILE_LIMIT // per_column)
