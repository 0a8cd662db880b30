"""Ranks: processes that hold a batch together, and the linear maps between what each of them holds.

Rank r has its rows and computes their losses; a map brings it what belongs to the rows of the others, or adds up what
all have computed. The transpose of a map, which carries gradients back, is a map again.
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
from .checks import check_bool, explained
from .equality import EqualByContents
from .namespace import is_array, is_number, namespace_of
from .notes import note
from .numerics import itemsize
from .protocol import Array
from .registry import adapter_of, communicator_of
from .types import GradientsOfRanks, Parameters, Result


@runtime_checkable
class Communicator(Protocol):
    """What is asked of a group of processes, for arrays of one library.

    Every rank calls the same methods in the same order. Arrays have the leading axis of rows; `counts` says how many
    each rank has.

    See Also
    --------
    across : Takes such an object for the `across` argument of the losses.
    """

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def rank(self) -> int:
        """The number of this one, from 0."""

    def all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        """Return the rows of all ranks, in their order: ``counts[r]`` of rank r."""

    def reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        """Return this rank's rows of the sum over the ranks of `x`, which has the rows of all."""

    def all_reduce(self, x: Array, *, largest: bool = False) -> Array:
        """Return the sum over the ranks, entry by entry, or the largest."""

    def tell(self, numbers: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the integers that each rank gives, all as many."""


class Ranks:
    """The ranks that share a batch, made by `across`."""

    __slots__ = ("averaged", "check", "communicator")

    def __init__(self, communicator: Any, *, averaged: bool | None, check: bool) -> None:
        self.communicator = communicator
        self.averaged = averaged
        self.check = check

    def __repr__(self) -> str:
        gradients = "" if self.averaged is None else f", gradients {'averaged' if self.averaged else 'summed'}"
        return f"<ranks of {self.communicator!r}{gradients}{'' if self.check else ', not checked'}>"


def across(group: Any, /, *, gradients: GradientsOfRanks | None = None, check: bool = True) -> Ranks:
    """Return the ranks of a group, for the `across` argument of a loss.

    With it, a loss is that of one process with the ranks' batches put one after another: each rank passes its own rows,
    all get the same number, and rows are contrasted with the rows of all. Labels and weights belong to a rank's rows; a
    `mask`, and positives by number, name columns of the whole; of several views, the columns are all rows of the first,
    then all of the second, and the keys of all are the last. Queues, supports and prototypes are the same on all ranks.
    With reduction "none" the losses are those of the own rows.

    Parameters
    ----------
    group : ProcessGroup, DeviceMesh, str, tuple of str, or Communicator
        A process group or one-dimensional device mesh of ``torch.distributed``; the name of a mesh axis, or several,
        within ``jax.shard_map``; or an object with the methods of `portable_nce.Communicator`, as for MPI.
    gradients : {"averaged", "summed"}
        What is done with the ranks' gradients of a parameter: ``"averaged"``, as DDP and FSDP do, or ``"summed"``.
        Either way the result is the gradient of the loss. Under "averaged", each rank's gradient of the loss is
        therefore as many times larger as there are ranks, but that of a temperature, scale or bias is the whole on
        every rank. Needed but for an axis of JAX, which differentiates collectives itself.
    check : bool, default: True
        Whether the ranks compare notes before each loss: how many rows each has, so that batches may be uneven, and
        widths, dtypes and options, so that what does not fit is the same error on all, rather than a rank that waits.
        False takes all ranks to have as many rows, and saves a small exchange; under ``torch.compile`` it must be.

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
    >>> found = run_ranks(2, on_a_rank)
    >>> found == [float(pnce.info_nce(views, views))] * 2
    True
    """
    communicator = communicator_of(group)
    if communicator is None and not isinstance(group, Communicator):
        raise TypeError(
            f"group: expected a process group of torch.distributed (initialised), the name of an axis of a JAX mesh, "
            f"or an object with the methods of portable_nce.Communicator, got {group!r}"
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


class _Call(Ranks):
    """The ranks during one call of a loss, which knows whether they are exchanging arrays just now.

    `arguments` are those of the call, each with a text and a digest, to be compared.
    """

    __slots__ = ("arguments", "exchanging")

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks.communicator, averaged=ranks.averaged, check=ranks.check)
        self.arguments: dict[str, _Told] = {}
        self.exchanging = False


def propagates_errors(loss: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A loss that compares its arguments with those of the other ranks, and tells them if it refuses one."""
    called = signature(loss)

    @wraps(loss)
    def telling(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        given: Any = options.get("across")
        if given is not None and not isinstance(given, Ranks):
            raise TypeError(
                f"across: expected what portable_nce.across returns, got {type(given).__name__}; write "
                f'across=portable_nce.across(group, gradients="averaged")'
            )
        if given is not None and given.averaged is not None and given.communicator.size == 1:
            given = options["across"] = None  # one rank is one process
        if given is None or isinstance(given, _Call) or not given.check:
            return loss(*args, **options)
        options["across"] = call = _Call(given)
        try:
            bound = called.bind(*args, **options)
            bound.apply_defaults()
            arguments = {name: x for name, x in bound.arguments.items() if name not in _OF_EACH_RANK}
            gradients = "averaged" if given.averaged else "summed"
            call.arguments = _told({"loss": loss.__name__, "gradients": gradients, **arguments})
            return loss(*args, **options)
        except Exception:
            if not call.exchanging:
                with suppress(Exception):  # of a group that is gone; what was refused says more
                    call.communicator.tell([_REFUSED] * _TOLD_NUMBERS)
            raise

    return explained(telling)


_REFUSED = -1
_TOLD_NUMBERS = 6
"""Numbers that ranks tell one another before a loss."""
_OF_EACH_RANK = frozenset({"across", "block_size"})
"""Arguments that may differ between ranks."""


class Notes(NamedTuple):
    """What ranks compare before a loss, beside its arguments; each becomes one integer.

    Their `rows` and `columns` may differ, their `options` may not. Of the `temperature`, how many rows have one of
    their own is told, 0 if it is one for all. `whole` is how many columns a mask takes the whole to have, 0 without
    one, and `largest` the largest column number in the argument `named`. Where ranks do not check, rows and columns are
    taken to be the same on all, and options are not looked at.
    """

    rows: int
    columns: int
    options: dict[str, Any]
    temperature: Any = None
    whole: int = 0
    largest: int = 0
    named: str = "positives"

    def own_temperatures(self) -> int:
        """The length of an array of temperatures of rows, 0 if all rows share one."""
        shape = self.temperature.shape if is_array(self.temperature) and not is_number(self.temperature) else ()
        return shape[0] if shape else 0


def agree(ranks: Ranks, notes: Notes, like: Array) -> Shards:
    """How the rows of a batch lie on the ranks, once these have agreed on what they compute."""
    communicator = ranks.communicator
    library = getattr(communicator, "library", adapter_of(like).name)
    if adapter_of(like).name != library:
        raise TypeError(
            f"across: expected arrays of {library}, whose group this is, got those of {adapter_of(like).name}"
        )
    numbers = [notes.rows, notes.columns, notes.own_temperatures(), notes.whole, notes.largest]
    told = [numbers] * communicator.size
    if isinstance(ranks, _Call):
        if adapter_of(like).mode in {"whole", "compiled"}:
            raise ValueError(
                "across: expected check=False where a compiler traces the loss, for ranks with as many rows each"
            )
        # The arguments come first, and stay where a note has the name of one, as `pairing`.
        text = json.dumps({**ranks.arguments, **_told(notes.options), **ranks.arguments})
        told = [list(found) for found in communicator.tell([*numbers, _digest(text)])]
        ranks.exchanging = True  # from here on all ranks do the same, errors too
        refusing = [rank for rank, numbers in enumerate(told) if numbers[0] == _REFUSED]
        if refusing:
            raise ValueError(f"across: rank {refusing[0]} refused its arguments; its own error says why")
        if len({digest for *_, digest in told}) > 1:
            _refuse_difference(communicator, text)
    rows, columns, own, whole, largest, *_ = zip(*told, strict=True)
    _check_pairs(whole, largest, sum(columns), notes.named)
    # An array of one entry, on a rank with one row, is what the others have: one for each row, or one for all.
    by_rows = min(own) > 0
    if not by_rows and max(own) > 1:
        _check_same("temperature", [("one for each row" if number else "one for all", 0) for number in own])
    return Shards(communicator, tuple(rows), tuple(columns), averaged=bool(ranks.averaged), by_rows=by_rows)


_Told: TypeAlias = tuple[str, int]
"""What is told of an argument: a text to be read, and a digest of all that is compared."""


def _told(options: dict[str, Any]) -> dict[str, _Told]:
    described = {name: _described(value) for name, value in options.items()}
    return {name: (parts[0], _digest(repr(parts))) for name, parts in described.items()}


def _digest(text: str) -> int:
    return crc32(text.encode()) // 2


def _described(x: Any, depth: int = 6) -> tuple[Any, ...]:
    """What is the same of an object in every process: a text, and the same of each of its parts.

    Of arrays, the dtype, how many axes there are, and whether they need a gradient.
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
    """Tell the others the arguments in full, and name the first that differs."""
    own = list(text.encode())
    longest = max(length for (length,) in communicator.tell([len(own)]))
    told = communicator.tell(own + [0] * (longest - len(own)))
    tables = [json.loads(bytes(part).rstrip(b"\0")) for part in told]
    for name in dict.fromkeys(name for table in tables for name in table):
        _check_same(name, [tuple(table.get(name, ("nothing", 0))) for table in tables])


def end_exchange(ranks: Ranks | None) -> None:
    """No more arrays are exchanged; an argument may be refused again."""
    if isinstance(ranks, _Call):
        ranks.exchanging = False


def _check_same(name: str, told: Sequence[_Told]) -> None:
    """Ranks must have told the same."""
    ranks: dict[_Told, list[int]] = {}
    for rank, what in enumerate(told):
        ranks.setdefault(what, []).append(rank)
    found: list[str] = []
    for (text, _), having in ranks.items():
        another = "another " if any(part.startswith(f"{text} on") for part in found) else ""
        some = ", ".join(map(str, having[:4])) + (f" and {len(having) - 4} more" if having[4:] else "")
        found.append(f"{another}{text} on rank{'s' if having[1:] else ''} {some}")
    if len(found) > 1:
        raise ValueError(f"{name}: expected the same on all ranks, got {', '.join(found)}")


def _check_pairs(wholes: Sequence[int], largest: Sequence[int], columns: int, named: str) -> None:
    """A mask must have the columns of all ranks, and positives by number be among them."""
    wrong = [number for number in wholes if number not in (0, columns)]  # a set fixes the sizes of torch.compile
    if wrong:
        raise ValueError(f"mask: expected the columns of all ranks, {columns}, got {wrong[0]}")
    if max(largest) >= columns:
        raise ValueError(
            f"{named}: expected indices from 0 to {columns - 1}, of the columns of all ranks, got {max(largest)}"
        )


# -------------------------------------------------------------------------------------------------------------- maps


class Shards(NamedTuple):
    """How the rows of a batch, and its columns, lie on the ranks: how many each has; and if gradients are averaged.

    `by_rows`: whether each row has a temperature.
    """

    communicator: Any
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    averaged: bool
    by_rows: bool = False

    def gather(self, x: Array, *, sent_as: Any = None, of_columns: bool = False, own_first: bool = True) -> Array:
        """The rows of all ranks: from this one's on, and from the first again after the last, or in their order.

        `sent_as`: a dtype in which the numbers of `x` are exact.
        """
        counts = self.columns if of_columns else self.rows
        return _applied(_Map("gather", self, counts, sent_as=sent_as, own_first=own_first), x)

    def own_first(self, x: Array, *, of_columns: bool = False) -> Array:
        """An array of the rows of all ranks, which each has, from this rank's on."""
        return namespace_of(x).roll(x, -self.first_row(of_columns=of_columns), axis=0)

    def first_row(self, *, of_columns: bool = False) -> Any:
        """The number of this rank's first row, or column, among those of all."""
        return _first(self.communicator.rank, self.columns if of_columns else self.rows)

    def replicated(self, x: Array) -> Array:
        """The rows of all ranks in their order, as constants of which the library is told that all ranks have them."""
        replicate = getattr(self.communicator, "replicate", None)
        return self.gather(stop_gradient(x), own_first=False) if replicate is None else replicate(stop_gradient(x))

    def flags(self, x: Array, *, of_columns: bool = False) -> Array:
        """The rows of all ranks, from this one's on, of what belongs to a pairing: numbers, or truth values."""
        xp = namespace_of(x)
        if not xp.isdtype(x.dtype, "bool"):
            return self.gather(widened(x), of_columns=of_columns)
        return self.gather(xp.astype(x, xp.uint8), of_columns=of_columns) != 0

    def total(self, x: Array) -> Array:
        """The sum over the ranks of what makes up the result, which each rank differentiates by itself."""
        return _applied(_Map("total", self), x)

    def shared(self, x: Any) -> Any:
        """A number that all ranks have, whose gradient is the whole on each; temperatures of rows as they are."""
        if not is_array(x) or is_number(x) or (self.by_rows and x.shape):
            return x
        x = namespace_of(x).reshape(x, ())
        return _applied_to_number(_Map("shared", self), x) if self.averaged else x

    def sum_of_columns(self, x: Array) -> Array:
        """The sums over the ranks of numbers of all columns, which take part in the losses of all ranks."""
        return _applied(_Map("sum", self, self.columns), x)

    def kept_here(self, x: Array) -> Array:
        """An array that this rank alone has, whose gradient is the whole, though those of other arrays are averaged."""
        return _applied(_Map("own", self), x) if self.averaged else x

    def largest(self, x: Array, *, of_columns: bool = False) -> Array:
        """The largest over the ranks, or those of all columns, as constants."""
        return _applied(_Map("largest", self, self.columns, own_first=of_columns), stop_gradient(x))


class _Map(NamedTuple):
    """A linear map between the ranks' arrays.

    ``gather`` brings the rows of all ranks, and its transpose ``scatter`` adds up and distributes; ``sum``, of what all
    ranks go on to use, is its own transpose; ``largest`` is a constant. The result of a loss is a ``total``: each rank
    differentiates it by itself, so that the same cotangent comes back on all, and the transpose is the ``factor`` of
    the convention; of an array that one rank alone has, ``own``, only its ``share`` of that is wanted. A number that
        all ranks have is ``shared``: the ``mean`` of the cotangents is the whole, under the convention of averages.
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

    def derivative(self) -> _Map:
        """The map of tangents, which are exact in no smaller dtype."""
        return self._replace(sent_as=None)

    def transposed(self) -> _Map:
        """The map that carries cotangents back."""
        return self._replace(kind=_TRANSPOSED[self.kind], sent_as=None)

    def _gathered(self, x: Array) -> Array:
        xp, dtype = namespace_of(x), x.dtype
        if self.sent_as is not None and self.sent_as != dtype:
            x = xp.astype(x, self.sent_as)
        found = self.shards.communicator.all_gather(x, self.counts)
        return found if found.dtype == dtype else xp.astype(found, dtype)

    def _rolled(self, x: Array, sign: int) -> Array:
        """From the order of the ranks (-1), or back into it (1), where the rows begin with this one's own."""
        if not self.own_first:
            return x
        return namespace_of(x).roll(x, sign * _first(self.shards.communicator.rank, self.counts), axis=0)


def _first(rank: Any, counts: tuple[int, ...]) -> Any:
    """The place of a rank's first row among those of all; an array where its number is one."""
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
    """An array of a pairing; short integers, which not every group can send, as longer ones."""
    xp = namespace_of(x)
    if not xp.isdtype(x.dtype, "integral") or x.dtype in {xp.int32, xp.int64}:
        return x
    return xp.astype(x, xp.int64 if xp.iinfo(x.dtype).max > 2**31 - 1 else xp.int32)


class Traffic(NamedTuple):
    """A note of an exchange between ranks, and of how many bytes this one gives."""

    kind: str
    size: int


def _applied(linear: _Map, x: Array) -> Array:
    note(Traffic(linear.kind, math.prod(x.shape) * itemsize(x)))
    return adapter_of(x).linear_map(linear, x)


def _applied_to_number(linear: _Map, x: Array) -> Array:
    """The same of an array without axes, whose cotangent may be no array."""
    xp = namespace_of(x)
    return xp.reshape(_applied(linear, xp.reshape(x, (1,))), ())
