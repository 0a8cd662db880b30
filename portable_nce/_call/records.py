"""Records that describe a call of a loss: its options, embeddings and columns, and the call itself."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._core.namespace import is_array, is_number, namespace_of
from .._core.protocol import Array, Namespace
from .._core.ranks import Ranks, Shards, end_exchange
from .._core.reduction import Reduction, finish
from .._core.types import BlockSize, Precision, ReductionName
from .._execution.evaluate import is_row_by_row
from .._execution.live import counted_by, zeroed
from .._execution.operands import half_of
from ..similarities import AnySimilarity, Similarity


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

    @property
    def of_cosines(self) -> bool:
        """Whether the scores are cosines by name: a tensor as a similarity has no truth value."""
        return isinstance(self.similarity, str) and self.similarity == "cosine"


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


class Call(NamedTuple):
    """A call of a loss of embeddings, as far as it is known: `_call.entry` checks it and fills it in.

    Attributes
    ----------
    embeddings : dict
        Arrays by name; once they have entered, as `Embedding`. The first are the rows, the last the columns, and those
        between them the positives of the rows, separate from the columns of a queue.
    options : LossOptions
        Options, with upcast arrays.
    numbers : dict
        Further numbers and arrays by name: for `contrast_embeddings` the parameters of the objective, with the
        temperature or logit scale.
    objective : objective, or function of the numbers
        The objective.
    pairing : Pairing, optional
        The pairing.
    layout : ColumnLayout
        How columns relate to rows and ranks.
    dtype : dtype
        Dtype of the result; None takes that of the arrays.
    xp : namespace
        Library of all arrays.
    indices_checked : bool
        Whether indices of the pairing are known to be in range.
    """

    embeddings: dict[str, Any]
    options: LossOptions
    numbers: dict[str, Any]
    objective: Any = None
    pairing: Any = None
    layout: ColumnLayout = ANY
    dtype: Any = None
    xp: Namespace = None
    indices_checked: bool = False

    @property
    def names(self) -> tuple[str, str]:
        """Names of the rows and of the columns, for messages."""
        return next(iter(self.embeddings)), next(reversed(self.embeddings))

    @property
    def arrays(self) -> list[Array]:
        """Arrays of the embeddings."""
        return [embedding.array for embedding in self.embeddings.values()]

    @property
    def x(self) -> Array:
        """Rows."""
        return self.embeddings[self.names[0]].array

    @property
    def y(self) -> Array:
        """Columns: one array with the rows if they are the same, so that a 16-bit gradient is rounded once."""
        return self.embeddings[self.names[1]].array

    @property
    def partners(self) -> list[Array]:
        """Positives that are separate from the columns."""
        return self.arrays[1:-1]

    def with_arrays(self, *arrays: Array) -> Call:
        """The call with other arrays of the embeddings."""
        named = zip(self.embeddings.items(), arrays, strict=True)
        return self._replace(embeddings={name: each._replace(array=array) for (name, each), array in named})

    def with_columns(self, array: Array) -> Call:
        """The call with another array of the columns, which are not the rows."""
        return self.with_arrays(*self.arrays[:-1], array)

    def without_idle(self, *flags: Array | None) -> Call:
        """The call with zeros in the rows of embeddings that have a weight of 0, or that a flag leaves out."""
        live = counted_by(self.options.weights, *flags)
        return self.with_arrays(*[zeroed(x, live) for x in self.arrays])

    def reduced(self, values: Array, counted: Array, shards: Shards | None, number: Array | None = None) -> Array:
        """Reduced row losses, in the dtype of the result."""
        options = self.options
        result = Reduction(options.reduction, options.weights, shards).of_values(values, counted, number)
        end_exchange(options.across)
        return finish(self.xp, result, self.dtype, options.reduction)

    @property
    def gathers_columns(self) -> bool:
        """Whether other ranks have other columns."""
        return self.options.across is not None and (self.pairing.extra_columns or not self.layout.replicated)

    @property
    def shares_columns(self) -> bool:
        """Whether some columns are the same on all ranks, beside others."""
        return len(self.partners) > 0 or (self.layout.replicated and self.pairing.extra_columns)

    @property
    def n_common(self) -> int:
        """Number of the columns that ranks share."""
        n_rows, n_columns = self.x.shape[0], self.y.shape[0]
        return n_rows if self.partners else n_columns - n_rows if self.shares_columns else 0

    @property
    def per_row_temperature(self) -> bool:
        """Whether the temperature is an array with one entry per row."""
        return is_per_row(self.numbers.get("temperature"))

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
        return self.objective.crossed and self.layout.opposite is None

    def half(self, similarity: Similarity) -> Any:
        """The 16-bit dtype in which rows and columns are multiplied, or None."""
        rows, *others = self.embeddings.values()
        dtypes = [x for z in (rows, *(others or [rows])) for x in z.dtypes]
        return half_of(similarity, self.x, tuple(dtypes), self.options.precision)

    @property
    def sent_as(self) -> tuple[Any, Any]:
        """Dtypes in which rows and columns are sent: the original one if all joined arrays share it, else upcast."""
        rows, columns = (self.embeddings[name].dtypes for name in self.names)
        if self.pairing.extra_columns and len(self.embeddings) > 1:
            columns = columns[:-1]
        rows, columns = (d[0] if len(set(d)) == 1 else self.x.dtype for d in (rows, columns))
        return rows, columns


def is_per_row(temperature: Any) -> bool:
    """Whether a checked temperature is an array with one entry per row."""
    return is_array(temperature) and not is_number(temperature) and len(temperature.shape) == 1
