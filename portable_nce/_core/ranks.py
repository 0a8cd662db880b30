"""Ranks, processes that share a batch, and the linear maps between their arrays.

Each rank computes the losses of its own rows. A map gathers rows of other ranks, or sums over ranks; its transpose,
which maps cotangents back, is also a map.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from inspect import signature
from typing import Any, NamedTuple, Protocol, TypeAlias, get_args, runtime_checkable
from zlib import crc32

from .autodiff import stop_gradient
from .calls import programmed
from .checks import RANKS_MAY_BE_EMPTY, check_bool, largest, readable_entry
from .equality import EqualByContents
from .namespace import cast, device_of, is_array, is_compiling, is_number, namespace_of
from .notes import note
from .numerics import itemsize
from .protocol import Array
from .registry import adapter_of, communicator_of
from .types import GradientsOfRanks, Parameters, Result


@runtime_checkable
class Communicator(Protocol):
    """Interface of a group of processes, for arrays of one library.

    Every rank calls the same methods in the same order. The leading axis of arrays counts rows; `counts` has the
    number of rows of each rank, which may be 0.

    See Also
    --------
    across : Takes such an object for the `across` argument of the losses.
    """

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def rank(self) -> int:
        """Index of this rank, from 0."""
        ...

    def all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        """Return the rows of all ranks, in their order: ``counts[r]`` of rank r."""
        ...

    def reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        """Return this rank's rows of the sum over the ranks of `x`, which has the rows of all ranks."""
        ...

    def all_reduce(self, x: Array, *, largest: bool = False) -> Array:
        """Return the elementwise sum, or maximum, over the ranks."""
        ...

    def tell(self, numbers: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the integers of each rank; all ranks pass equally many."""
        ...


class Ranks:
    """Ranks that share a batch, made by `across`."""

    __slots__ = ("averaged", "check", "communicator")

    def __init__(self, communicator: Any, *, averaged: bool | None, check: bool) -> None:
        self.communicator = communicator
        self.averaged = averaged
        self.check = check

    def __repr__(self) -> str:
        if self.averaged is None:
            return f"<ranks along the axis {self.communicator.name!r} of JAX>"
        gradients = f"gradients {'averaged' if self.averaged else 'summed'}{'' if self.check else ', not checked'}"
        return f"<rank {self.communicator.rank} of {self.communicator.size}, {gradients}>"


def across(group: Any, /, *, gradients: GradientsOfRanks | None = None, check: bool = True) -> Ranks:
    """Return the ranks of a group, for the `across` argument of a loss.

    With it, you get the loss of the concatenated batch of all ranks: each rank passes its own rows, and all get the
    same number. Labels and weights are those of the rank's rows; a `mask` and index `positives` refer to the
    concatenated columns. With several views, the columns are all rows of the first view, then all of the second, then
    the keys of all ranks. Queues, supports and prototypes must be the same on all ranks. With reduction "none" each
    rank gets the losses of its own rows.

    Parameters
    ----------
    group : ProcessGroup, DeviceMesh, str, tuple of str, or Communicator
        A process group or one-dimensional device mesh of ``torch.distributed``; the name of a mesh axis, or several,
        within ``jax.shard_map``; or an object with the methods of `portable_nce.Communicator`, as for MPI.
    gradients : {"averaged", "summed"}, optional
        How the ranks' gradients of a parameter are combined: ``"averaged"``, as DDP and FSDP do, or ``"summed"``.
        Either way the result is the gradient of the loss. With "averaged", the gradient on each rank is therefore
        multiplied by the number of ranks; the gradient of a temperature, scale or bias is the full one on every rank.
        Required, except for an axis of JAX, which differentiates collectives itself.
    check : bool, default: True
        Whether the ranks compare sizes and options before each loss. Batches may then be uneven, ranks may have no
        rows, and an invalid or different argument raises the same error on all ranks instead of a deadlock. False
        assumes equally many rows on all ranks and saves a small exchange; it is required under ``torch.compile``.

    Returns
    -------
    Ranks
        The ranks.

    Raises
    ------
    TypeError
        If `group` is none of these.
    ValueError
        If `gradients` is missing, or given for an axis of JAX.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> from portable_nce.testing import run_ranks
    >>> views = np.asarray([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
    >>> def on_a_rank(group):
    ...     rows = views[2 * group.rank : 2 * group.rank + 2]
    ...     return float(pnce.info_nce(rows, rows, across=pnce.across(group, gradients="summed")))
    >>> run_ranks(2, on_a_rank) == [float(pnce.info_nce(views, views))] * 2
    True
    """
    communicator = communicator_of(group)
    if communicator is None and not isinstance(group, Communicator):
        before = "" if group is not None else "; torch.distributed has none before init_process_group(), so call that"
        raise TypeError(
            f"group: expected a process group of torch.distributed (initialised), the name of an axis of a JAX mesh, "
            f"or an object with the methods of portable_nce.Communicator, got {group!r}{before}"
        )
    native = communicator is not None and not hasattr(communicator, "tell")
    if native and gradients is not None:
        raise ValueError(
            f"gradients: expected None with an axis of JAX, which differentiates collectives itself, got {gradients!r}"
        )
    if not native and not (isinstance(gradients, str) and gradients in get_args(GradientsOfRanks)):
        raise ValueError(
            f"gradients: expected 'averaged' (DDP and FSDP average the gradients of the ranks) or 'summed' (you add "
            f"them up), got {gradients!r}"
        )
    averaged = None if native else gradients == "averaged"
    check = check_bool("check", check) and not native
    return Ranks(group if communicator is None else communicator, averaged=averaged, check=check)


# --------------------------------------------------------------------------------------------------------- agreement


class _Exchange(Ranks):
    """Ranks during one call of a loss.

    `arguments`: summaries of the arguments, which ranks compare. `exchanging`: whether arrays are being exchanged.
    """

    __slots__ = ("arguments", "exchanging")

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks.communicator, averaged=ranks.averaged, check=ranks.check)
        self.arguments: dict[str, _Summary] = {}
        self.exchanging = False


def propagates_errors(loss: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Loss that compares its arguments across ranks, and raises on all ranks if one rank refuses an argument."""
    called = signature(loss)

    @wraps(loss)
    def wrapper(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        ranks: Any = options.get("across")
        if ranks is not None and not isinstance(ranks, Ranks):
            raise TypeError(
                f"across: expected what portable_nce.across returns, got {type(ranks).__name__}; write "
                f'across=portable_nce.across(group, gradients="averaged")'
            )
        if ranks is not None and ranks.averaged is not None and ranks.communicator.size == 1:
            ranks = options["across"] = None
        if ranks is None or isinstance(ranks, _Exchange) or not ranks.check:
            return loss(*args, **options)
        options["across"] = call = _Exchange(ranks)
        try:
            bound = called.bind(*args, **options)
            bound.apply_defaults()
            arguments = {name: x for name, x in bound.arguments.items() if name not in _OF_EACH_RANK}
            gradients = "averaged" if ranks.averaged else "summed"
            call.arguments = _summaries({"loss": loss.__name__, "gradients": gradients, **arguments})
            token = RANKS_MAY_BE_EMPTY.set(True)
            try:
                return loss(*args, **options)
            finally:
                RANKS_MAY_BE_EMPTY.reset(token)
        except Exception:
            if not call.exchanging:
                _refuse(call)
            raise

    return programmed(wrapper)


def agreed_on(ranks: Any, options: dict[str, Any], check: Callable[..., Result], *arguments: Any) -> Result:
    """Result of a check of arguments before several losses; ranks compare the options, and refuse for all."""
    if not isinstance(ranks, Ranks) or not ranks.check or ranks.communicator.size == 1 or is_compiling():
        return check(*arguments)
    try:
        result = check(*arguments)
    except Exception:
        _refuse(ranks)
        raise
    _reports_of(ranks.communicator, [0] * (_N_NUMBERS - 1), json.dumps(_summaries(options)))
    return result


def _reports_of(communicator: Any, numbers: Sequence[int], text: str) -> list[list[int]]:
    """Numbers of all ranks, which raise the same error if one refuses its arguments or if the texts differ."""
    reports = [list(integers) for integers in communicator.tell([*numbers, _digest(text)])]
    refusing = [rank for rank, (first, *_) in enumerate(reports) if first == _REFUSED]
    if refusing:
        raise ValueError(f"across: rank {refusing[0]} refused its arguments; its own error says why")
    if len({digest for *_, digest in reports}) > 1:
        _refuse_difference(communicator, text)
    return reports


def _refuse(ranks: Ranks) -> None:
    """Tell the other ranks that this one refuses its arguments."""
    with suppress(Exception):  # a failure of the group would hide the error
        ranks.communicator.tell([_REFUSED] * _N_NUMBERS)


_REFUSED = _NO_MASK = -1
_N_NUMBERS = 6
"""Number of integers that each rank sends before a loss."""
_OF_EACH_RANK = frozenset({"across", "block_size"})
"""Arguments that may differ between ranks."""


class RankReport(NamedTuple):
    """Sizes and values that ranks compare before a loss, besides its arguments.

    `rows` and `columns` may differ between ranks; `options` must not. `mask_columns`: number of columns of a mask, if
    there is one. `largest`: largest column index in the argument `named`. Without checks, rows and columns are assumed
    to be equal on all ranks, and options are ignored.
    """

    rows: int
    columns: int
    options: dict[str, Any]
    temperature: Any = None
    mask_columns: int | None = None
    largest: int = 0
    named: str = "positives"

    def n_temperatures(self) -> int:
        """Number of per-row temperatures, 0 if all rows share one; 1 on a rank without rows."""
        shape = self.temperature.shape if is_array(self.temperature) and not is_number(self.temperature) else ()
        return max(1, shape[0]) if shape else 0


def agree(ranks: Ranks, report: RankReport, like: Array) -> Shards:
    """Shards of a batch, after the ranks have compared their reports and arguments."""
    communicator = ranks.communicator
    library = getattr(communicator, "library", adapter_of(like).name)
    if adapter_of(like).name != library:
        raise TypeError(
            f"across: expected arrays of {library}, the library of the group, got those of {adapter_of(like).name}"
        )
    mask_columns = _NO_MASK if report.mask_columns is None else report.mask_columns
    numbers = [report.rows, report.columns, report.n_temperatures(), mask_columns, report.largest]
    reports = [numbers] * communicator.size
    if isinstance(ranks, _Exchange):
        if adapter_of(like).mode in {"whole", "compiled"}:
            raise ValueError(
                "across: expected check=False where a compiler traces the loss, for ranks with as many rows each"
            )
        # Arguments come first, and win over options of the same name, such as `pairing`.
        text = json.dumps({**ranks.arguments, **_summaries(report.options), **ranks.arguments})
        ranks.exchanging = True  # from here on, all ranks raise the same errors
        reports = _reports_of(communicator, numbers, text)
    rows, columns, n_temperatures, of_masks, largest, *_ = zip(*reports, strict=True)
    for what, lengths in (("row", rows), ("column", columns)):
        if max(lengths) == 0:
            raise ValueError(
                f"across: expected at least one {what} on one of the ranks, got none on any; skip the step on all"
            )
    _check_pairs(of_masks, largest, sum(columns), report.named)
    # On a rank with one row, a temperature of one entry can be either; the other ranks decide.
    per_row = min(n_temperatures) > 0
    if not per_row and max(n_temperatures) > 1:
        _check_same("temperature", [("one for each row" if n else "one for all", 0) for n in n_temperatures])
    return Shards(communicator, tuple(rows), tuple(columns), averaged=bool(ranks.averaged), per_row_temperature=per_row)


_Summary: TypeAlias = tuple[str, int]
"""Summary of an argument: a readable text, and a digest of all that is compared."""


def _summaries(options: dict[str, Any]) -> dict[str, _Summary]:
    described = {name: _described(value) for name, value in options.items()}
    return {name: (parts[0], _digest(repr(parts))) for name, parts in described.items()}


def _digest(text: str) -> int:
    return crc32(text.encode()) // 2


def _described(x: Any, depth: int = 6) -> tuple[Any, ...]:
    """Description of an object that is equal in every process: a text, then the descriptions of its parts.

    Arrays are described by dtype, number of axes, and whether they need a gradient.
    """
    if x is None or isinstance(x, (str, int)):
        return (repr(x),)
    if type(x).__name__ in {"bool", "bool_"}:  # NumPy's
        return (repr(bool(x)),)
    if is_number(x):
        return (repr(float(x)).removesuffix(".0"),)
    if is_array(x):
        axes = f" with {len(x.shape)} axes" if len(x.shape) > 1 else ""
        gradient = " that needs a gradient" if adapter_of(x).needs_gradient(x) else ""
        return (f"an array of {str(x.dtype).rpartition('.')[2]}{axes}{gradient}",)
    inside: Any = ()
    if isinstance(x, dict):
        inside = x.items()
    elif isinstance(x, (tuple, list)):
        inside = x
    elif isinstance(x, EqualByContents):
        inside = x._contents()  # noqa: SLF001  (of the package itself)
    elif hasattr(x, "__closure__"):
        inside = [cell.cell_contents for cell in x.__closure__ or ()]
    parts = [_described(part, depth - 1) for part in inside] if depth else []
    if type(x) in {tuple, list}:
        return (f"({', '.join(part[0] for part in parts)})", *parts)
    return (getattr(x, "__qualname__", type(x).__name__), *parts)


def _refuse_difference(communicator: Any, text: str) -> None:
    """Exchange the arguments in full, and raise an error that names the first that differs."""
    own = list(text.encode())
    longest = max(length for (length,) in communicator.tell([len(own)]))
    texts = communicator.tell(own + [0] * (longest - len(own)))
    tables = [json.loads(bytes(part).rstrip(b"\0")) for part in texts]
    for name in dict.fromkeys(name for table in tables for name in table):
        _check_same(name, [tuple(table.get(name, ("nothing", 0))) for table in tables])


def end_exchange(ranks: Ranks | None) -> None:
    """Mark the end of array exchanges; a rank that now refuses an argument informs the others again."""
    if isinstance(ranks, _Exchange):
        ranks.exchanging = False


def _check_same(name: str, summaries: Sequence[_Summary]) -> None:
    """Check that the summaries of all ranks are equal."""
    ranks: dict[_Summary, list[int]] = {}
    for rank, summary in enumerate(summaries):
        ranks.setdefault(summary, []).append(rank)
    parts: list[str] = []
    for (text, _), having in ranks.items():
        another = "another " if any(part.startswith(f"{text} on") for part in parts) else ""
        some = ", ".join(map(str, having[:4])) + (f" and {len(having) - 4} more" if having[4:] else "")
        parts.append(f"{another}{text} on rank{'s' if having[1:] else ''} {some}")
    if len(parts) > 1:
        raise ValueError(f"{name}: expected the same on all ranks, got {', '.join(parts)}")


def _check_pairs(mask_columns: Sequence[int], largest: Sequence[int], columns: int, named: str) -> None:
    """Check masks and column indices against the number of columns of all ranks."""
    # A set would fix sizes in torch.compile.
    wrong = [number for number in mask_columns if number not in (_NO_MASK, columns)]
    if wrong:
        raise ValueError(f"mask: expected the columns of all ranks, {columns}, got {wrong[0]}")
    if max(largest) >= columns:
        raise ValueError(
            f"{named}: expected indices from 0 to {columns - 1}, of the columns of all ranks, got {max(largest)}"
        )


# -------------------------------------------------------------------------------------------------------------- maps


class Shards(NamedTuple):
    """Numbers of rows and columns of each rank, with the collective operations on their arrays.

    `averaged`: whether gradients of ranks are averaged. `per_row_temperature`: whether each row has a temperature.
    """

    communicator: Any
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    averaged: bool
    per_row_temperature: bool = False

    def gather(self, x: Array, *, sent_as: Any = None, of_columns: bool = False, own_first: bool = True) -> Array:
        """Rows of all ranks, in the order of the ranks, or cyclically from this rank's on (`own_first`).

        `sent_as`: a dtype in which `x` is exact.
        """
        counts = self.columns if of_columns else self.rows
        return _applied(_LinearMap("gather", self, counts, sent_as=sent_as, own_first=own_first), x)

    def transposed(self) -> Shards:
        """Shards with rows and columns exchanged."""
        return self._replace(rows=self.columns, columns=self.rows)

    def own_first(self, x: Array, *, of_columns: bool = False) -> Array:
        """Rotate a replicated array so that this rank's rows come first."""
        return namespace_of(x).roll(x, -self.first_row(of_columns=of_columns), axis=0)

    def first_row(self, *, of_columns: bool = False) -> Any:
        """Index of this rank's first row, or column, in the batch."""
        return _first_row(self.communicator.rank, self.columns if of_columns else self.rows)

    def replicated(self, x: Array) -> Array:
        """Rows of all ranks in their order, as constants that the library may treat as replicated."""
        replicate = getattr(self.communicator, "replicate", None)
        return self.gather(stop_gradient(x), own_first=False) if replicate is None else replicate(stop_gradient(x))

    def flags(self, x: Array, *, of_columns: bool = False) -> Array:
        """Gathered array of a pairing, integers or booleans, from this rank's rows on."""
        xp = namespace_of(x)
        if not xp.isdtype(x.dtype, "bool"):
            return self.gather(widened(x), of_columns=of_columns)
        return self.gather(xp.astype(x, xp.uint8), of_columns=of_columns) != 0

    def total(self, x: Array) -> Array:
        """Sum over the ranks for the result of a loss, which each rank differentiates."""
        return _applied(_LinearMap("total", self), x)

    def shared(self, x: Any) -> Any:
        """Parameter that all ranks have, with the full gradient on each; per-row temperatures unchanged."""
        if not is_array(x) or is_number(x) or (self.per_row_temperature and x.shape):
            return x
        x = namespace_of(x).reshape(x, ())
        return _applied_to_number(_LinearMap("shared", self), x) if self.averaged else x

    def sum_of_columns(self, x: Array) -> Array:
        """Sums over the ranks of numbers of all columns, for use in the losses of all ranks."""
        return _applied(_LinearMap("sum", self, self.columns), x)

    def kept_here(self, x: Array) -> Array:
        """Array that only this rank has; it gets the full gradient, also if other gradients are averaged."""
        return _applied(_LinearMap("own", self), x) if self.averaged else x

    def largest_number(self, number: float, like: Array) -> float:
        """Largest of a number over the ranks; entries of arrays like `like` can be read."""
        own = namespace_of(like).full((1,), number, dtype=like.dtype, device=device_of(like))
        return readable_entry(self.largest(own), largest) or 0.0

    def largest(self, x: Array, *, of_columns: bool = False) -> Array:
        """Maximum over the ranks, or over the ranks for each column, as a constant."""
        return _applied(_LinearMap("largest", self, self.columns, own_first=of_columns), stop_gradient(x))


class _LinearMap(NamedTuple):
    """A linear map between the ranks' arrays.

    ``gather`` collects the rows of all ranks; its transpose ``scatter`` sums and distributes. ``sum``, for values that
    all ranks use, is its own transpose. ``largest`` is a constant. The result of a loss is a ``total``: each rank
    differentiates it, the cotangent is the same on all, and the transpose multiplies by the ``factor`` of the gradient
    convention. An array of one rank is ``own``; its transpose ``share`` undoes that factor. A number that all ranks
    have is ``shared``; with averaged gradients, the ``mean`` of its cotangents is the full gradient.
    """

    kind: str
    shards: Shards
    counts: tuple[int, ...] = ()
    sent_as: Any = None
    own_first: bool = True

    def __call__(self, x: Array) -> Array:
        ranks = self.shards.communicator
        if self.kind == "gather":
            return self._rolled(self._gathered(x), -1)
        if self.kind == "scatter":
            return ranks.reduce_scatter(self._rolled(x, 1), self.counts)
        if self.kind in {"sum", "largest"}:
            return self._rolled(ranks.all_reduce(self._rolled(x, 1), largest=self.kind == "largest"), -1)
        if self.kind in {"total", "mean"}:
            total = ranks.all_reduce(x)
            return total if self.kind == "total" else total / ranks.size
        if self.kind == "share":
            return x / float(ranks.size)
        return x * float(ranks.size) if self.kind == "factor" and self.shards.averaged else x

    def derivative(self) -> _LinearMap:
        """Map of the tangents, which are not sent in a smaller dtype."""
        return self._replace(sent_as=None)

    def transposed(self) -> _LinearMap:
        """Map of the cotangents."""
        return self._replace(kind=_TRANSPOSED[self.kind], sent_as=None)

    def _gathered(self, x: Array) -> Array:
        dtype = x.dtype
        x = x if self.sent_as is None else cast(x, self.sent_as)
        gathered = self.shards.communicator.all_gather(x, self.counts)
        return cast(gathered, dtype)

    def _rolled(self, x: Array, sign: int) -> Array:
        """Rows rolled from the order of the ranks to own rows first (-1), or back (1)."""
        if not self.own_first:
            return x
        return namespace_of(x).roll(x, sign * _first_row(self.shards.communicator.rank, self.counts), axis=0)


def _first_row(rank: Any, counts: tuple[int, ...]) -> Any:
    """Index of a rank's first row in the batch; an array if the rank is one."""
    return rank * counts[0] if min(counts) == max(counts) else sum(counts[:rank])


_TRANSPOSED = {
    "gather": "scatter",
    "scatter": "gather",
    "total": "factor",
    "factor": "factor",
    "shared": "mean",
    "mean": "mean",
    "sum": "sum",
    "own": "share",
    "share": "own",
}


def widened(x: Array) -> Array:
    """Array with integers widened to 32 or 64 bits: not every group sends others, and PyTorch compares few of them.

    Large ones stay where the library's own integers have 32 bits, as on JAX.
    """
    xp = namespace_of(x)
    if not xp.isdtype(x.dtype, "integral") or x.dtype in {xp.int32, xp.int64}:
        return x
    if xp.iinfo(x.dtype).max < 2**31:
        return xp.astype(x, xp.int32)
    own = xp.arange(1, device=device_of(x)).dtype
    return xp.astype(x, own) if xp.iinfo(own).max > 2**31 else x


def _applied(linear: _LinearMap, x: Array) -> Array:
    note(traffic=(linear.kind, math.prod(x.shape) * itemsize(x)))
    return adapter_of(x).linear_map(linear, x)


def _applied_to_number(linear: _LinearMap, x: Array) -> Array:
    """Apply a map to a 0-d array, as shape (1,): NumPy turns 0-d cotangents into scalars."""
    xp = namespace_of(x)
    return xp.reshape(_applied(linear, xp.reshape(x, (1,))), ())
