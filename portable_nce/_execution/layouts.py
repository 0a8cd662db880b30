"""What the sweeps are told beside arrays, and the reduction that they share.

Each sweep is a function for `Adapter.value_and_vjp`: it returns a sum of losses, how often each row counts, and the
gradients of the sum. With `values` in its layout it returns the losses of the rows instead, for those who need two
passes: the gradient of ``Σ c_i l_i`` is that of the same sweep with the cotangents c for weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .._core.numerics import rows_where, sum_to_scalar
from .._core.protocol import Array, Namespace
from .._core.ranks import Shards
from ..pairings import Rule, Structure
from ..similarities import Pullback, Scores
from .families import Plan
from .finished import divided
from .tiling import Bounds

__all__ = [
    "Arrays",
    "Form",
    "MaskedLayout",
    "ProductLayout",
    "Source",
    "Wanted",
    "halves_where",
    "is_wanted",
    "reduced",
]

Arrays = tuple[Array, ...]

Wanted = bool | tuple[bool, ...]
"""Whether gradients are wanted, or of which arrays."""


def is_wanted(wanted: Wanted, k: int) -> bool:
    """Whether the gradient of the array of that number is wanted."""
    return wanted if isinstance(wanted, bool) else wanted[k]


class Form(NamedTuple):
    """Of how many parts of 16 bits rows and columns are also given, and whether factors are of one order of magnitude.

    The arrays are a factor for each row and the parts; the same of columns.
    """

    row_parts: int = 0
    column_parts: int = 0
    even: bool = False

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of arrays of rows and of columns."""
        return (1 + self.row_parts, 1 + self.column_parts) if self.row_parts else (0, 0)


def halves_where(xp: Namespace, live: Array, halves: Arrays) -> Arrays:
    """The factors of rows, and their parts, with rows of 0 where an array of flags says that they do not count."""
    if not halves:
        return ()
    factor, *parts = halves
    flags = xp.reshape(live, (live.shape[0], *[1] * (len(factor.shape) - 1)))
    return xp.where(flags, factor, xp.ones_like(factor)), *rows_where(xp, live, *parts)


class Source(NamedTuple):
    """How a sweep makes its operands of embeddings: unit rows, and those of the rows times a scale.

    The embeddings are those of the rows, of the columns unless the rows are `alone`, and of `partners` if there are
    any. A scale of None is an array, and comes after them: of one entry, or with one for each row, (N, 1).
    """

    alone: bool
    partners: bool
    scale: float | None

    @property
    def embeddings(self) -> int:
        """How many arrays of embeddings there are."""
        return 1 + (not self.alone) + self.partners

    @property
    def arrays(self) -> int:
        """How many arrays there are."""
        return self.embeddings + (self.scale is None)


class ProductLayout(NamedTuple):
    """Everything about a sweep over inner products that is not an array.

    The arrays are what a `source` makes operands of, or these: rows (N, D) and columns (K, D), of an index or a queue
    also the partners (N, D), of which the columns of a queue hold none. Then come numbers for each row (parameters and
    weights), or one for all; and, without a gradient, the index (N,), which rows are present (N,), what is added to
    columns (K,), and the labels of rows and of columns.

    `structure` is the pairing's; of labels, rows and columns are sorted by them, and `blocks` and
    `tiles` cut both between classes, so that the positives of a block of rows are in the tile of the same number.
    `own`: rows and columns are the same. `unit`: no score can overflow. `bound`: the largest magnitude of scores, if it
    is known. `squarable`: no square of an operand overflows. `mean`: the sum is divided by the number of rows.
    `window`: of a part of the rows of a larger matrix, how many columns are their own, which come first; and `shards`:
    the ranks that have its other rows, for a sweep that adds up columns. `halves`: what there is of rows and columns in
    16 bits, at the end.
    """

    plan: Plan
    structure: Structure
    by_row: int = 0
    present: bool = False
    biased: bool = False
    own: bool = False
    unit: bool = False
    bound: float = math.inf
    squarable: bool = False
    mean: bool = False
    values: bool = False
    block_size: int | str | None = None
    blocks: Bounds = ()
    tiles: Bounds = ()
    window: int | None = None
    shards: Shards | None = None
    halves: Form = Form()
    source: Source | None = None

    @property
    def operand_count(self) -> int:
        """How many of the arrays are operands, or what they are made of."""
        if self.source is not None:
            return self.source.arrays
        return 2 + self.structure.given


class MaskedLayout(NamedTuple):
    """Everything about a sweep over scores of any kind, with a rule for its pairs, that is not an array.

    The arrays are what a `source` makes operands of, or the operands of rows and then of columns, of each similarity in
    turn. Then come numbers for each row, or one for all; and, without a gradient, the rule's arrays of rows, of columns
    and of pairs, and the mask. `given`: the operand of the rows is the score matrix itself. `whole`: the shape of the
    matrix of which this is a part; the numbers of its rows and of its columns come next. `halves`: what there is of the
    rows and columns of each similarity in 16 bits, at the end. `bound`: as of `ProductLayout`.
    """

    plan: Plan
    similarities: tuple[tuple[Scores, Pullback], ...]
    operands: tuple[tuple[int, int], ...]
    rule: Rule
    rule_arrays: tuple[int, int, int]
    masked: bool
    single: bool
    by_row: int = 0
    wide: bool = False
    given: bool = False
    mean: bool = False
    values: bool = False
    bound: float = math.inf
    block_size: int | str | None = None
    whole: tuple[int, int] | None = None
    halves: tuple[Form, ...] = ()
    source: Source | None = None

    @property
    def operand_count(self) -> int:
        """How many of the arrays are operands, or what they are made of."""
        if self.source is not None:
            return self.source.arrays
        return sum(rows + columns for rows, columns in self.operands)


def reduced(
    xp: Namespace,
    layout: ProductLayout | MaskedLayout,
    values: Array,
    number: Array,
    gradients: Sequence[Array | None],
    *,
    divisor: int = 1,
) -> Arrays:
    """The result of a sweep: the sum of the losses, or their mean over the rows that count, and its gradient.

    The gradients have been divided by the `divisor` already.
    """
    if layout.values:
        return values, number, *gradients
    total = divided(sum_to_scalar(xp, values), divisor)  # once: a loss divided by N is another rounding of each row
    if not layout.mean:
        return total, number, *gradients
    count = sum_to_scalar(xp, number)
    count = xp.where(count == 0, xp.ones_like(count), count)  # without rows, all that is divided is 0
    shares = (x if x is None else x / xp.reshape(count, (1,) * len(x.shape)) for x in gradients)
    return total / count, number, *shares
