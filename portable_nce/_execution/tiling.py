"""All sizes of blocks and tiles, and all thresholds, as functions of shapes, device and `block_size`.

The constants were measured: a tile of scores should stay in the cache between the product that computes it and the two
that use it, and be large enough to hide the overhead of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._core.protocol import Array
from .._core.registry import adapter_of, on_accelerator

MAX_UNSHIFTED_LOGIT = 30.0
"""Logits in [-30, 30] need no shift: sums of their exponentials lose no digits, even in float32."""

_ROWS = 512  # rows of a block of products
_COLUMNS = 2048  # minimum of a tile of products: blocks with many columns have few rows
_TILE_ENTRIES = 2**21  # of a tile of products, at most eight times as wide as high
_MASKED_ENTRIES = 2**20  # of a block of whole rows, with masks of its size
_TOKEN_ENTRIES = 2**22  # of a block of token products, with masks of its size
_BLOCK_ENTRIES = 2**22  # of a block of whole rows, without masks
_HELD_ENTRIES = 2**25  # of a block of products, if 256 rows would hold more
_KEPT_ENTRIES = 2**26  # exponentials or scores kept by a two-sided sweep
_TRIPLE_ENTRIES = 2**18  # triples compared at once: several arrays of them should stay in the cache
_FEW_COLUMNS = 32  # of scores that a caller gives: their exponentials always have a shift
_TAKEN = (2, 5)  # logarithms of numbers of positives for which graphs have a branch
_COMPARED, _SEARCHED = 32, 8  # positives of a row up to which negatives are compared with each, and not sorted
_BRANCHED = 64  # entries of a row up to which a pass over them costs less than a compiled branch
_FAR_ROWS = 8192  # rows of a block on an accelerator; with fewer than 2048, launches dominate the time
_FAR_ENTRIES = 2**27  # of a block there, of whole rows: 512 MiB in float32. Half of it, if several arrays are held
_ALIGNED = 128  # rows, of which a number that a block has is fast in products of 16 bits
_FAR_SHARE = 64  # of its memory, a block in float32 takes one part: 256 MiB of 16 GiB
_FUSED_PAIRS = 2**26  # of a matrix whose steps are compiled: measured, some thousand calls repay the compilation
_FUSED_MASKED_PAIRS = 2**24  # likewise with masks, which take most of an uncompiled call
_COMPILED_ENTRIES, _COMPILED_BLOCKS = 2**22, 16  # of a graph for any number of rows: held whole, or in blocks

_FEW_BITS, _MOST_BITS = 14, 31  # of numbers of columns that a compiler knows as symbols

Bounds = tuple[tuple[int, int], ...]


class Tiling(NamedTuple):
    """Rows of a block and columns of a tile, or the bounds of all; `keep`: a two-sided sweep keeps its tiles."""

    block: int | Bounds
    tile: int | Bounds
    keep: bool = False

    def of(self, n_rows: int, n_columns: int) -> Tiling:
        """Return the tiling itself, for any shape; `Sizes` choose one."""
        del n_rows, n_columns
        return self

    def tiles(self, n_columns: int) -> Sequence[tuple[int, int]]:
        return self.tile if isinstance(self.tile, tuple) else cut(0, n_columns, self.tile)


class Sizes(NamedTuple):
    """A function of this module and what it depends on besides the shape, which compilers may know only as symbols.

    `far`: entries of a block of whole rows on an accelerator, of which half are taken if several arrays of its size are
    held; None on the host.
    """

    function: Callable[..., Tiling]
    block_size: int | str | None = "auto"
    mode: str = "eager"
    far: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def of(self, n_rows: int, n_columns: int) -> Tiling:
        """Return the tiling of a matrix of this shape."""
        return self.function(self, n_rows, n_columns, **dict(self.options))

    @property
    def asked(self) -> int | None:
        """Number of rows that the user asks for."""
        return self.block_size if isinstance(self.block_size, int) else None

    def whole(self, n_rows: int, n_columns: int) -> int | Bounds | None:
        """All rows of a matrix that is held whole, by choice or since its shape is unknown; None for other blocks.

        A graph for any number of rows has a fixed number of blocks.
        """
        symbolic = not all(isinstance(n, int) for n in (n_rows, n_columns))
        if self.mode == "whole" or self.block_size is None or (symbolic and self.mode != "compiled"):
            return n_rows
        if self.mode != "compiled":
            return None
        most = _COMPILED_ENTRIES if self.far is None else self.far // 2
        if n_rows * n_columns <= most or n_rows < _COMPILED_BLOCKS:
            return n_rows
        size = n_rows // _COMPILED_BLOCKS
        starts = [k * size for k in range(_COMPILED_BLOCKS)]
        return tuple(zip(starts, [*starts[1:], n_rows], strict=True))


def sizes_of(function: Callable[..., Tiling], first: Array, block_size: int | str | None, **options: Any) -> Sizes:
    """How blocks and tiles are chosen for arrays like `first`."""
    adapter = adapter_of(first)
    far = far_entries(adapter.memory(first)) if on_accelerator(first) else None
    return Sizes(function, block_size, adapter.mode, far, tuple(options.items()))


def far_entries(memory: int | None) -> int:
    """Entries of a block of whole rows on an accelerator with so many bytes."""
    return _FAR_ENTRIES if memory is None else min(_FAR_ENTRIES, memory // (4 * _FAR_SHARE))


def cut(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """The bounds of pieces of a range."""
    if size == stop - start:
        return [(start, stop)]
    return [(a, min(a + size, stop)) for a in range(start, stop, size)]


def is_positive(number: int) -> bool:
    """Whether a number is greater than 0; True for a symbol that a compiler knows nothing about."""
    try:
        return bool(number > 0)
    except Exception:  # noqa: BLE001  (each compiler raises its own exception for an undecidable condition)
        return True


def pays_to_branch(n_columns: int) -> bool:
    """Whether a branch of a compiled function costs less than a pass over rows of so many entries."""
    return is_positive(n_columns - _BRANCHED)


def _far_rows(n_rows: int, n_columns: int, entries: int) -> int:
    """Rows of a block of whole rows on an accelerator; blocks have nearly equal sizes."""
    most = max(min(entries // max(n_columns, 1), _FAR_ROWS), _ROWS)
    return -(-n_rows // max(-(-n_rows // most), 1))


def one_sided(sizes: Sizes, n_rows: int, n_columns: int) -> Tiling:
    """Tiling of a one-sided sweep over products."""
    whole, asked, is_traced = sizes.whole(n_rows, n_columns), sizes.asked, sizes.mode == "traced"
    if whole is not None:
        return Tiling(whole, n_columns)
    if sizes.far is not None:
        return Tiling(min(asked or _far_rows(n_rows, n_columns, sizes.far), n_rows), n_columns)
    held = _BLOCK_ENTRIES // n_columns  # rows whose tiles stay in the cache until the block ends
    # XLA writes the columns' gradients of a block before it adds them: half as many blocks pay.
    most = _HELD_ENTRIES * (2 if is_traced else 1) // n_columns
    fewest = max(min(_ROWS // 2, most), _ROWS // 8)  # with fewer, column sums dominate the time
    block = asked or min(max(held, fewest), _ROWS)
    tile = n_columns if is_traced else max(_columns(block), 0 if asked else _COLUMNS)
    return Tiling(min(block, n_rows), min(tile, n_columns))


def _columns(block: int) -> int:
    return max(block, min(_TILE_ENTRIES // block, 8 * block))


def two_sided(sizes: Sizes, n_rows: int, n_columns: int, *, symmetric: bool, shared: bool = False) -> Tiling:
    """Tiling of a two-sided sweep over products; `symmetric` matrices compute only half of the tiles.

    Tiles are not kept if ranks have `shared` a batch, which users do to save memory.
    """
    whole, asked, far = sizes.whole(n_rows, n_columns), sizes.asked, sizes.far
    if whole is not None:
        return Tiling(whole, n_columns, keep=not (shared or isinstance(whole, tuple)))
    if sizes.mode == "traced":
        # A scan of several blocks would have to return the kept tiles.
        single = 2 * n_rows * n_columns <= (_BLOCK_ENTRIES if far is None else far // 2)
        rows = max(min(_ROWS, _BLOCK_ENTRIES // n_columns), _ROWS // 2)
        block = n_rows if single else rows if far is None else _far_rows(n_rows, n_columns, far // 2)
        keep = asked is None and block >= n_rows and not shared
        return Tiling(min(asked or block, n_rows), n_columns, keep)
    small = asked is None and n_rows * n_columns <= _KEPT_ENTRIES
    keep = small and not shared
    if far is not None and symmetric and not (asked or shared):
        # Sums of rows and of columns are held beside a strip: with a tenth less, 65 536 rows of 512 take 1.5 GiB.
        return Tiling(_strips(n_rows, far * 9 // 10), n_columns, keep)
    if far is not None and not symmetric:
        return Tiling(min(asked or _far_rows(n_rows, n_columns, far // 2), n_rows), n_columns, keep)
    size = asked or (_FAR_ROWS // 2 if far is not None else 2 * _ROWS if small or not symmetric else _ROWS)
    return Tiling(min(size, n_rows), min(size if small or symmetric else _columns(size), n_columns), keep)


def _strips(n: int, entries: int) -> int | Bounds:
    """Blocks of rows of a symmetric matrix that hold as many entries from the diagonal on each; one if it is small."""
    entries = min(entries, max(n * n // 4, (_FAR_ROWS // 2) ** 2))
    if n * n <= entries:
        return n
    bounds, start = [], 0
    while start < n:
        left = n - start
        size = left if left * left <= entries else max(entries // left // _ALIGNED * _ALIGNED, _ALIGNED)
        bounds.append((start, start + size))
        start += size
    return tuple(bounds)


def pays_to_fuse(n_rows: int, n_columns: int, *, masked: bool) -> bool:
    """Whether the steps of a sweep over a matrix of this shape take long enough to be compiled."""
    return n_rows * n_columns >= (_FUSED_MASKED_PAIRS if masked else _FUSED_PAIRS)


def is_large(n_rows: int, n_columns: int) -> bool:
    """Whether sorting by labels, or a two-sided sweep, pays for a matrix of this shape."""
    return n_rows * n_columns > _ROWS * _ROWS


def masked(
    sizes: Sizes, n_rows: int, n_columns: int, *, width: int = 1, tokens: bool = False, searched: bool = False
) -> Tiling:
    """Tiling of a sweep with masks, or of whole rows that are `searched`.

    `width`: numbers held per score: differences of features or products of tokens.
    """
    sizes = sizes if width == 1 else sizes._replace(far=None)
    whole = sizes.whole(n_rows, n_columns)
    if whole is not None:
        return Tiling(whole, n_columns)
    if sizes.far is not None:
        rows = _far_rows(n_rows, n_columns, sizes.far // 2)
    elif searched and width == 1:
        rows = max(_BLOCK_ENTRIES // n_columns, _ROWS // 8)  # products of fewer rows are slow
    else:
        rows = max(1, (_TOKEN_ENTRIES if tokens else _MASKED_ENTRIES) // (n_columns * width))
    return Tiling(min(sizes.asked or rows, n_rows), n_columns)


def triples(n_rows: int, n_columns: int, n_visited: int, *, mode: str) -> tuple[int | Bounds, int | Bounds | None]:
    """Rows of a block, and how many of the visited positives are compared with all negatives at once (None: all)."""
    whole = Sizes(masked, mode=mode).whole(n_visited, n_rows * n_columns)
    if whole is not None:
        return n_rows, whole
    entries = n_columns * n_visited
    if entries <= _BLOCK_ENTRIES:
        at_once = _BLOCK_ENTRIES if n_visited == 1 else _TRIPLE_ENTRIES
        return max(1, min(at_once // max(1, entries), n_rows)), None
    return n_rows, max(1, min(_BLOCK_ENTRIES // max(1, n_rows * n_columns), n_visited))


def averages_errors(n_columns: int) -> bool:
    """Whether rounding errors of exponentials of exact scores, without a shift, average out in sums of so many.

    With few, a shift by the largest score makes the largest term exact, and takes little time.
    """
    return is_positive(n_columns - _FEW_COLUMNS)


def pays_to_sort(n_visited: Any) -> bool:
    """Whether the triples of so many positives of a row take longer than to sort its negatives."""
    return not isinstance(n_visited, int) or n_visited > _COMPARED


def visited_together(n_columns: int, *, few: bool = False) -> list[int]:
    """Numbers of positives of a row that are taken out of its columns; a `few` where each is compiled."""
    most = max(n_columns // 4, 1).bit_length()
    return [2**k for k in range(most) if not few or k in _TAKEN]


def bits_of(n_columns: Any, *, mode: str) -> int:
    """Steps of a search by halves among so many columns.

    A compiler that knows their number as a symbol is asked for a range alone: it would make a graph for each number.
    """
    if isinstance(n_columns, int) and mode in {"eager", "traced"}:
        return n_columns.bit_length()
    return _FEW_BITS if mode == "compiled" and n_columns < 2**_FEW_BITS else _MOST_BITS


def rows_ranked(n_columns: int) -> int:
    """Rows of a block of a compiled program that sorts them, so that its many arrays stay in the cache."""
    return max(1, _TRIPLE_ENTRIES // n_columns)


def pays_to_rank(n_visited: Any) -> bool:
    """Whether a search for the next negative of so many positives takes longer than to sort the negatives."""
    return not isinstance(n_visited, int) or n_visited > _SEARCHED


def may_be_held(n_rows: int, n_columns: int) -> bool:
    """Whether a matrix may be held whole to save products, and to return the losses of its rows in one pass."""
    return is_positive(_BLOCK_ENTRIES + 1 - n_rows * n_columns)


def label_blocks(block_size: int | str | None) -> tuple[int, int]:
    """Rows of a block of whole classes, and the number of rows above which masks cost less."""
    block = block_size if isinstance(block_size, int) else _ROWS
    return block, 4 * block + 16
