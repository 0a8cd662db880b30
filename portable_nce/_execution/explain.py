"""Explanation of a call: its sweeps, with reasons and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .._core.checks import check_callable
from .._core.namespace import is_number, namespace_of
from .._core.notes import listening
from .._core.numerics import itemsize
from .._core.pair_functions import PairFunction
from .._core.protocol import Array
from .._core.registry import adapter_of
from ..pairings import takes_products
from .choice import Prepared
from .fusing import report_of_steps
from .inputs import Arrays, Inputs
from .matrix import ScoreMatrix
from .search import Searched, block_of
from .sets import PairRule, Sets
from .sources import flags_of
from .specs import NeedGrad
from .tiling import Bounds
from .two_sided import entries_visited, square_sweep


class SweepReport(NamedTuple):
    """One sweep over a score matrix, in one or two passes for value and gradients; or a search, without gradients.

    Attributes
    ----------
    name : str
        Kind of sweep.
    reason : str
        Why it was chosen.
    rows, columns, width : int
        Shape of the score matrix, and length of the embeddings; width 0 if scores were passed.
    block, tile : int
        Rows of the largest block, and columns of the largest tile.
    passes : int
        Number of passes over the tiles for the value and all gradients.
    products : float
        Number of matrix products of N × K × D multiplications for the value and the gradients, those of a teacher's or
        guide's embeddings included. Products of other shapes, such as projections, are not counted. Distances take
        none, but the differences of all features of each pair. Your own `Similarity` counts as one product for the
        scores and two for the pullback. 16-bit products count once, however many parts they have.
    memory : int
        Bytes of scores in memory at a time.
    steps : str
        On accelerators, whether the steps are compiled (`fuse_steps`), or why not.
    """

    name: str
    reason: str
    rows: int
    columns: int
    width: int
    block: int
    tile: int
    passes: int
    products: float
    memory: int
    steps: str = ""

    def __repr__(self) -> str:
        """The sweep in five or six lines."""
        passes = "one pass" if self.passes == 1 else f"{self.passes} passes"
        passes += " for value and gradients" if self.name != "search" else ""
        width = f", embeddings of {self.width}" if self.width else ""
        return "\n".join(
            [
                f"{self.name}, {passes}",
                f"  reason    {self.reason}",
                f"  scores    {self.rows} x {self.columns}{width}",
                f"  tiles     {self.block} x {self.tile}, {self.memory / 2**20:.3g} MiB of scores at a time",
                f"  products  {self._products()}",
                *([f"  steps     {self.steps}"] if self.steps else []),
            ]
        )

    def _products(self) -> str:
        if self.width > 0 and self.products == 0:
            return f"none; {self.width} differences of features for each score"
        return f"{self.products:.4g} of {self.rows} x {self.columns} x {self.width or 1}"


class Explanation(NamedTuple):
    """Explanation of a call.

    Attributes
    ----------
    objectives, pairings : tuple of str
        The objectives that were evaluated, and the pairings of their score matrices.
    sweeps : tuple of SweepReport
        The sweeps and searches in their order; none if the loss holds its score matrix.
    traffic : tuple of (str, int)
        Exchanges between ranks for the value: kind, and number of bytes that this rank sent.
    counted : int or None
        Number of row losses that count on this rank, over all score matrices and directions; None if entries cannot be
        read. If it is 0, so is the loss, whatever the embeddings are.
    """

    objectives: tuple[str, ...]
    pairings: tuple[str, ...]
    sweeps: tuple[SweepReport, ...]
    traffic: tuple[tuple[str, int], ...] = ()
    counted: int | None = None

    def __repr__(self) -> str:
        """The call in a few lines."""
        parts = f"objective {' and '.join(self.objectives)}; pairing {' and '.join(self.pairings)}"
        lines = [parts] if self.objectives else ["no objective of a score matrix"]
        lines += [repr(sweep) for sweep in self.sweeps] or ["no sweep: all scores are held"]
        lines += [f"{kind} of {size} bytes" for kind, size in self.traffic]
        if self.counted == 0:
            lines.append("no row counts, so the loss is 0: rows need a positive, a weight, and pairs that a mask keeps")
        return "\n".join(lines)


def explain(loss: Callable[..., Any], /, *arrays: Any, **options: Any) -> Explanation:
    """Compute a loss once, and return how: its sweeps over the score matrix, with reasons, sizes and memory.

    Parameters
    ----------
    loss : callable
        A loss of this package, or any function that calls some.
    *arrays
        Its arrays. The choice of sweeps depends on their library, shapes, dtypes and devices; for labels and learned
        scales also on entries, if these can be read without waiting for a device.
    **options
        Its options.

    Returns
    -------
    Explanation
        Named tuple with a readable `repr`. Its counts include the gradients that this call needs (PyTorch's
        `requires_grad`, or inside of `value_and_grad`), or all gradients if it needs none.

    Raises
    ------
    TypeError
        If `loss` is not callable; and whatever the loss raises.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x, y = np.random.default_rng(0).standard_normal((2, 4096, 128), dtype=np.float32)
    >>> pnce.explain(pnce.info_nce, x, y)
    objective info_nce, each; pairing diagonal
    one-sided sweep of inner products, one pass for value and gradients
      reason    the columns of the positives are known before the sweep
      scores    4096 x 4096, embeddings of 128
      tiles     512 x 4096, 8 MiB of scores at a time
      products  3 of 4096 x 4096 x 128
    >>> pnce.explain(pnce.info_nce, x, y, mask=np.ones((4096, 4096), dtype=np.bool_)).sweeps[0].reason
    'a mask is given'
    """
    check_callable("loss", loss)
    with listening() as notes:
        loss(*arrays, **options)
    objectives, pairings, computed, traffic, counted = (
        notes.get(kind, []) for kind in ("objective", "pairing", "computed", "traffic", "counted")
    )
    return Explanation(_names(objectives), _names(pairings), _reports(computed), tuple(traffic), _number_of(counted))


def _number_of(counted: Sequence[Array]) -> int | None:
    """Number of rows that count, read from any device; None within a transformation."""
    try:
        return sum(int(namespace_of(x).sum(x > 0)) for x in counted) if counted else None
    except (RuntimeError, TypeError, ValueError):  # entries of traced arrays and of arrays without data
        return None


def _names(things: Sequence[Any]) -> tuple[str, ...]:
    """Names in a `repr` such as ``<Objective info_nce>``, each once."""
    texts = [str(x) for x in things]
    return tuple(dict.fromkeys(text.removeprefix("<").removesuffix(">").partition(" ")[2] or text for text in texts))


def _most_of(cut: int | Bounds) -> int:
    return max(high - low for low, high in cut) if isinstance(cut, tuple) else cut


def _reports(computed: Sequence[Any]) -> tuple[SweepReport, ...]:
    """Reports of sweeps, searches and held matrices."""
    needed = [_REPORTS[type(one)][0](one) for one in computed]
    of_all = not any(map(any, needed))  # nothing is differentiated in this call: assume that everything can be
    flags = [(True,) * len(each) if of_all else each for each in needed]
    return tuple([_REPORTS[type(one)][1](one, each) for one, each in zip(computed, flags, strict=True)])


def _needed_of_sweep(prepared: Prepared) -> tuple[bool, ...]:
    """Whether each array needs a gradient in this call."""
    return tuple(map(adapter_of(prepared.arrays[0]).needs_gradient, prepared.arrays))


def _needed_of_held(matrix: ScoreMatrix) -> tuple[bool, ...]:
    """Whether the rows and the columns need a gradient in this call."""
    needs = adapter_of(matrix.rows[0]).needs_gradient
    of_scale = not is_number(matrix.scale) and matrix.scale is not None and needs(matrix.scale)
    return any(map(needs, matrix.rows)) or of_scale, any(map(needs, matrix.columns))


def _report_of_held(matrix: ScoreMatrix, need_grad: tuple[bool, ...]) -> SweepReport:
    """Report of a matrix whose scores are computed before its sweeps."""
    channel, rows, columns, shape = matrix.channel, matrix.rows[0], matrix.columns, matrix.shape
    of_score, of_pull = channel.relative(*shape, rows.shape[-1])
    made = channel.products[0] * (of_score + sum(need_grad) * of_pull)
    if any(need_grad) and isinstance(channel.scores, PairFunction):  # which computes the scores again, and both
        made = channel.products[0] * (2.0 * of_score + 2.0 * of_pull)
    made *= _tokens_of(channel.held(matrix.rows, columns), columns)
    reason = "the scores are held, since several sweeps or passes use them"
    memory = shape[0] * shape[1] * itemsize(rows)
    return SweepReport("score matrix", reason, *shape, rows.shape[-1], *shape, 1, float(made), memory)


def _report_of_sweep(prepared: Prepared, need_grad: tuple[bool, ...]) -> SweepReport:
    passes, spec, inputs = prepared.passes, prepared.spec, prepared.inputs.with_constants()
    channel, rows = spec.channels[0], inputs.rows[0]
    columns = None if channel.given else (inputs.columns or inputs.rows)[0]
    n_columns = rows.shape[1] if columns is None else columns.shape[0]
    tiling = spec.sizes.of(rows.shape[0], n_columns)
    block, tile = _most_of(tiling.block), _most_of(tiling.tile)
    width = 0 if columns is None else rows.shape[-1]
    need = NeedGrad.of(spec, flags_of(spec, any(need_grad) and need_grad))
    by_rule = spec.by_rule
    whole = by_rule or len(spec.channels) > 1
    if need.gradients and (passes > 1 or whole):
        need = NeedGrad(gradients=True, rows=True, columns=True, partners=True)
    of_score, of_pull = channel.relative(block, tile, width)
    gradients = (need.rows + need.columns) * of_pull
    if prepared.function is square_sweep:
        visited = entries_visited(spec, rows.shape[0], n_columns)
        # Tiles that are not kept are computed again for the gradients.
        again = need.gradients and not tiling.keep
        name, share = "two-sided sweep of inner products", sum(visited) / max(1, rows.shape[0] * n_columns)
        products = ((1 + again) * of_score + gradients) * share
        entries = sum(visited) if tiling.keep else max(visited, default=0)
    elif whole:
        held = channel.held(inputs.rows, inputs.columns or inputs.rows)
        name = "sweep with masks" if by_rule else "sweep of whole rows"
        products = _of_rule(spec.sets, inputs, passes, width)
        if columns is not None:
            of_scores, of_pullback = map(sum, zip(*(one.products for one in spec.channels), strict=True))
            made = passes * of_scores * of_score + need.gradients * of_pullback * of_pull
            products += made * _tokens_of(held, inputs.columns or inputs.rows)
        entries = block * n_columns * (1 if columns is None else held["width"])
    else:
        name = f"one-sided sweep of {'scores' if channel.given else 'inner products'}"
        # A column adds numbers to the scores of inner products.
        scored = of_score + (len(inputs.added) / width if width and channel.inner_product else 0.0)
        products, entries = passes * scored + gradients, block * n_columns
    memory, shape = int(entries) * itemsize(rows) * channel.numbers_held, (rows.shape[0], n_columns)
    steps = report_of_steps(spec, rows, shape, need_grad=need.gradients)
    return SweepReport(name, prepared.reason, *shape, width, block, tile, passes, float(products), memory, steps)


def _report_of_search(searched: Searched, _: tuple[bool, ...]) -> SweepReport:
    spec, inputs = searched
    rows, (n_rows, n_columns) = inputs.rows[0], inputs.shape
    width = rows.shape[-1] if inputs.columns else 0
    held = spec.channel.held(inputs.rows, inputs.columns) if inputs.columns else {"width": 1}
    products = spec.channel.products[0] * _tokens_of(held, inputs.columns) if inputs.columns else 0.0
    block = _most_of(block_of(spec, inputs))
    products *= spec.channel.relative(block, n_columns, width)[0]
    if spec.measure is not None:
        products += _of_rule(spec.rule, inputs, 1, width)
    memory = block * n_columns * held["width"] * itemsize(rows) * spec.channel.numbers_held
    reason = "the columns of some scores are searched for, without gradients"
    return SweepReport("search", reason, n_rows, n_columns, width, block, n_columns, 1, float(products), memory)


_REPORTS: dict[type, tuple[Callable[[Any], tuple[bool, ...]], Callable[[Any, tuple[bool, ...]], SweepReport]]] = {
    Prepared: (_needed_of_sweep, _report_of_sweep),
    ScoreMatrix: (_needed_of_held, _report_of_held),
    Searched: (lambda _: (), _report_of_search),
}
"""Of each thing that is computed: which gradients it needs, and its report."""


def _of_rule(sets: Sets, inputs: Inputs, passes: int, width: int) -> float:
    """Products of a rule's own embeddings, in units of the products of the scores."""
    if not isinstance(sets, PairRule) or not takes_products(sets.rule):
        return 0.0
    own = next(x.shape[-1] for x in inputs.row_labels if len(x.shape) > 1)
    return float(passes * own / (width or 1))


def _tokens_of(held: Mapping[str, Any], columns: Arrays) -> int:
    """Number of tokens of a column, with each of which a product takes all tokens of the rows; else 1."""
    return int(columns[1].shape[-1]) if held.get("tokens") else 1
