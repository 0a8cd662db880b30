"""Explanation of a call: its sweeps, with reasons and sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._core.checks import check_callable
from .._core.notes import listening
from .._core.numerics import itemsize
from .._core.ranks import Traffic
from ..pairings import Pairing
from .matrix import Passes
from .sets import PairRule
from .tiling import Bounds
from .two_sided import square_sweep


class Sweep(NamedTuple):
    """One sweep over a score matrix, in one or two passes, for value and gradients.

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
        Number of matrix products of N × K × D multiplications for the value and all gradients; scores of a similarity
        that is no inner product count as one product.
    memory : int
        Bytes of scores in memory at a time.
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

    def __repr__(self) -> str:
        """The sweep in five lines."""
        passes = "one pass" if self.passes == 1 else f"{self.passes} passes"
        width = f", embeddings of {self.width}" if self.width else ""
        return "\n".join(
            [
                f"{self.name}, {passes} for value and gradients",
                f"  reason    {self.reason}",
                f"  scores    {self.rows} x {self.columns}{width}",
                f"  tiles     {self.block} x {self.tile}, {self.memory / 2**20:.3g} MiB of scores at a time",
                f"  products  {self.products:g} of {self.rows} x {self.columns} x {self.width or 1}",
            ]
        )


class Explanation(NamedTuple):
    """Explanation of a call.

    Attributes
    ----------
    objectives, pairings : tuple of str
        The objectives that were evaluated, and the pairings of their score matrices.
    sweeps : tuple of Sweep
        The sweeps in their order; none if the loss holds its score matrix.
    traffic : tuple of (str, int)
        Exchanges between ranks for the value: kind, and number of bytes that this rank sent.
    """

    objectives: tuple[str, ...]
    pairings: tuple[str, ...]
    sweeps: tuple[Sweep, ...]
    traffic: tuple[tuple[str, int], ...] = ()

    def __repr__(self) -> str:
        """The call in a few lines."""
        parts = f"objective {' and '.join(self.objectives)}; pairing {' and '.join(self.pairings)}"
        lines = [parts] if self.objectives else ["no objective of a score matrix"]
        lines += [repr(sweep) for sweep in self.sweeps] or ["no sweep: all scores are held"]
        lines += [f"{kind} of {size} bytes" for kind, size in self.traffic]
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
        Named tuple with a readable `repr`. Its counts include all gradients, also where none is needed.

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
    >>> pnce.explain(pnce.info_nce, x, y, similarity="neg_euclidean").sweeps[0].reason
    'the similarity is no inner product'
    """
    check_callable("loss", loss)
    with listening() as notes:
        loss(*arrays, **options)
    pairings = [str(note) for note in notes if isinstance(note, Pairing)]
    objectives = [str(note) for note in notes if not isinstance(note, (Pairing, Passes, Traffic))]
    return Explanation(
        tuple(dict.fromkeys(_name(text) for text in objectives)),
        tuple(dict.fromkeys(_name(text) for text in pairings)),
        tuple(_sweep(note) for note in notes if isinstance(note, Passes)),
        tuple((note.kind, note.size) for note in notes if isinstance(note, Traffic)),
    )


def _name(text: str) -> str:
    """Name in a `repr` such as ``<Objective info_nce>``."""
    return text.removeprefix("<").removesuffix(">").partition(" ")[2] or text


def _largest(cut: int | Bounds) -> int:
    return max(high - low for low, high in cut) if isinstance(cut, tuple) else cut


def _sweep(passes: Passes) -> Sweep:
    prepared = passes.prepared
    layout, inputs = prepared.layout, prepared.inputs.with_constants()
    channel, rows = layout.channels[0], inputs.rows[0]
    columns = None if channel.given else (inputs.columns or inputs.rows)[0]
    n_columns = rows.shape[1] if columns is None else columns.shape[0]
    tiling = layout.sizes.of(rows.shape[0], n_columns)
    block, tile = _largest(tiling.block), _largest(tiling.tile)
    if prepared.function is square_sweep:
        share = 2 if layout.self_contrast else 1
        # Tiles that are not kept are computed again for the gradients.
        name, products = "two-sided sweep of inner products", (3.0 if tiling.keep else 4.0) / share
        entries = rows.shape[0] * n_columns // share if tiling.keep else block * tile
    else:
        by_rule = isinstance(layout.sets, PairRule)
        source = "scores" if channel.given else "inner products"
        name = "sweep with masks" if by_rule else f"one-sided sweep of {source}"
        products, entries = 0.0 if channel.given else 3.0 * len(layout.channels), block * n_columns
        if by_rule and columns is not None:
            entries *= channel.held(inputs.rows, inputs.columns or inputs.rows)["width"]
    width = 0 if columns is None else rows.shape[-1]
    if passes.number > 1 and columns is not None:
        products += len(layout.channels)
    entries *= itemsize(rows)
    return Sweep(name, prepared.reason, rows.shape[0], n_columns, width, block, tile, passes.number, products, entries)
