"""Records that describe a call of a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core.namespace import is_array, is_number, namespace_of
from .._core.protocol import Array, Namespace
from .._core.ranks import Ranks
from .._core.types import BlockSize, Precision, ReductionName
from .._execution.evaluate import is_row_by_row
from .._execution.operands import SourceDtypes
from ..objectives import Objective, Pairwise
from ..objectives.hard import HardNegatives
from ..objectives.relic import Relic
from ..objectives.triplet import Triplet
from ..pairings import Pairing
from ..similarities import (
    AnySimilarity,
)


class LossOptions(NamedTuple):
    """Options that the losses share, in the order of their signatures.

    `scaled_by`: name of the argument stored as `temperature`. All names but "temperature" mean an inverse temperature.
    """

    temperature: Any
    similarity: AnySimilarity
    mask: Array | None
    weights: Array | None
    reduction: ReductionName
    block_size: BlockSize
    precision: Precision | None
    across: Ranks | None
    symmetric: bool = False
    hardness: float = 0.0
    scaled_by: str = "temperature"


class Embedding(NamedTuple):
    """Upcast embeddings, and the original dtypes of the arrays that they were joined from."""

    array: Array
    dtypes: tuple[Any, ...]

    def joined(self, *others: Embedding) -> Embedding:
        """Concatenation of the rows of these embeddings and others."""
        arrays, dtypes = zip(*(self, *others), strict=True)
        return Embedding(namespace_of(*arrays).concat([*arrays], axis=0), sum(dtypes, ()))


class ColumnLayout(NamedTuple):
    """How the columns of a loss relate to its rows, and to the columns of other ranks.

    Attributes
    ----------
    paired : bool
        Whether there must be as many columns as rows.
    replicated : bool
        Whether the columns, or the extra columns of a pairing that has some, are the same on all ranks.
    joined : int
        Number of arrays that the columns are joined from, each as long as the rows. Each is gathered separately.
    views : int
        Number of rows of each sample; they may share a temperature.
    opposite : tuple of Embedding, optional
        Rows and columns of RELIC's second distribution, if it does not use the transposed scores.
    agreed_on : dict, optional
        Values besides the arguments of the loss that must be equal on all ranks.
    remedy : str
        What to do about more columns than rows, for the message.
    later_weights : array, optional
        Row weights by which the caller multiplies the losses of the rows.
    """

    paired: bool = False
    replicated: bool = False
    joined: int = 1
    views: int = 1
    opposite: tuple[Embedding, Embedding] | None = None
    agreed_on: dict[str, Any] | None = None
    remedy: str = ""
    later_weights: Array | None = None


ANY = ColumnLayout()


PAIRED = ColumnLayout(paired=True)


class LossCall(NamedTuple):
    """Arguments of `contrast_embeddings`; the parameters include the temperature or logit scale."""

    embeddings: dict[str, Any]
    objective: Any
    pairing: Pairing
    options: LossOptions
    layout: ColumnLayout
    parameters: dict[str, Any]
    dtype: Any


OBJECTIVES = (Objective, Pairwise, HardNegatives, Relic, Triplet)


class Arguments(NamedTuple):
    """Arguments of a loss of embeddings, checked and upcast.

    `partners`: positives that are separate from the columns of a queue. `embeddings`: rows, partners and columns with
    their original dtypes. `dtype`: dtype of the result.
    """

    xp: Namespace
    names: tuple[str, str]
    x: Array
    partners: list[Array]
    y: Array
    embeddings: Sequence[Embedding]
    parameters: dict[str, Any]
    objective: Any
    pairing: Pairing
    pairs: PairChecks
    options: LossOptions
    layout: ColumnLayout
    dtype: Any

    @property
    def per_row_temperature(self) -> bool:
        """Whether the temperature is an array with one entry per row."""
        return is_per_row(self.parameters.get("temperature"))

    @property
    def rows_are_columns(self) -> bool:
        """Whether the rows are among the columns, also of the transposed matrix."""
        layout = self.layout
        return len(self.embeddings) == 1 or layout.views > 1 or layout.joined > 1 or layout.opposite is not None

    @property
    def weights(self) -> Array | None:
        """Weights by which the losses of the rows are multiplied, now or later."""
        return self.options.weights if self.layout.later_weights is None else self.layout.later_weights

    @property
    def leaving_out(self) -> Array | None:
        """Weights that leave rows out where they are 0; None if the losses of other rows depend on these rows, too."""
        return self.weights if self.weights is not None and is_row_by_row(self.objective, self.x) else None

    @property
    def need_transposed_scores(self) -> bool:
        """Whether the loss also needs the transposed scores."""
        return isinstance(self.objective, Relic) and self.layout.opposite is None

    @property
    def source_dtypes(self) -> SourceDtypes:
        """Dtypes in which rows and columns are exact."""
        columns: tuple[Any, ...] = sum((z.dtypes for z in self.embeddings[1:] or self.embeddings), ())
        return SourceDtypes(self.embeddings[0].dtypes, columns, self.options.precision)

    @property
    def sent_as(self) -> tuple[Any, Any]:
        """Dtypes in which rows and columns are sent: the original one if all joined arrays share it, else upcast."""
        rows, columns = self.embeddings[0].dtypes, self.embeddings[-1].dtypes
        if self.pairing.extra_columns and len(self.embeddings) > 1:
            columns = columns[:-1]
        rows, columns = (d[0] if len(set(d)) == 1 else self.x.dtype for d in (rows, columns))
        return rows, columns


def is_per_row(temperature: Any) -> bool:
    """Whether a checked temperature is an array with one entry per row."""
    return is_array(temperature) and not is_number(temperature) and len(temperature.shape) == 1


class PairChecks(NamedTuple):
    """Result of checking a pairing's arrays and a mask.

    `indices_checked`: indices are known to be in range. `n_columns`: number of columns of arrays of pairs without
    those that are the same on all ranks, 0 without arrays. `sharded`: other ranks have other columns.
    """

    indices_checked: bool = False
    n_columns: int = 0
    largest_index: int = 0
    sharded: bool = False
