"""Transfer entropy: information of the past of one series about another, given the other's own past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core.checks import check_whole_number
from .._core.namespace import namespace_of
from .host import array_of
from .information import mutual_information
from .options import Samples, with_options_explained
from .relations import ConditionalInformation
from .result import MutualInformation
from .sample import LEAST_ROWS, entered

__all__ = ["transfer_entropy"]

REFUSED = {
    "given": "the past of the target is what is given",
    "order": "rows are times, in order and equally spaced",
    "groups": "a series has blocks; estimate each recording by itself",
}
"""Options of mutual_information that a series does not have, and why."""


@with_options_explained
def transfer_entropy(
    source: Samples, target: Samples, /, *, lag: int | Sequence[int] = 1, past: int = 1, rng: Any = None, **options: Any
) -> MutualInformation | ConditionalInformation:
    r"""Return the transfer entropy from one series to another, with a test.

    .. math:: T = I(x_{t - l_1}, \dots, x_{t - l_m};\; y_t \mid y_{t - 1}, \dots, y_{t - k})

    It is `mutual_information` with `given=` the past of the target and `order=`: how much the past of the source x
    tells of the next value of the target y, beyond the own past of y. Causes that both series have in common, and what
    y remembers beyond its k last values, count as transfer, too.

    Parameters
    ----------
    source, target : array or sequence, shape (N, Dx) and (N, Dy), or (N,)
        Two series at the same N times, in order and equally spaced. Integers, truth values and names are categories.
    lag : int or sequence of int, default: 1
        Lags l of the source, at least 1; of several, all are taken together.
    past : int, default: 1
        Number k of past values of the target that are given.
    rng : int, random.Random or numpy.random.Generator, optional
        Seed or generator, as in `mutual_information`.
    **options
        Other options of `mutual_information`, but `given`, `groups` and `order`.

    Returns
    -------
    MutualInformation or ConditionalInformation
        Record in nats. A target of numbers gives a `ConditionalInformation`: an estimate with a range, and `p`, of the
        test of independence given the past. A target of categories gives a `MutualInformation`, with a lower limit.

    Raises
    ------
    TypeError
        As `mutual_information`, or if `lag` or `past` is no integer, or an option is one that a series does not have.
    ValueError
        As `mutual_information`, or if the series differ in length, or a lag is below 1 or given twice.

    References
    ----------
    Schreiber (2000), "Measuring information transfer", Physical Review Letters 85, 461-464.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> cause, effect = np.random.default_rng(0).normal(size=(2, 301))
    >>> effect[1:] += cause[:-1]  # log(2) / 2 = 0.35 nats
    >>> found = pnce.estimation.transfer_entropy(cause, effect, rng=0, splits=1)
    >>> found.p < 0.01, found.low < 0.35 < found.high
    (True, True)
    """
    for name in REFUSED.keys() & options.keys():
        raise TypeError(f"{name}: expected none for a series, got one; {REFUSED[name]}")
    lags, past = _lags(lag), check_whole_number("past", past)
    x, y = array_of("source", source), array_of("target", target)
    count = int(y.shape[0])
    if int(x.shape[0]) != count:
        raise ValueError(f"target: expected {x.shape[0]} rows, as in source, got {count}")
    for name, series in (("source", x), ("target", y)):
        entered(name, series)
    first = max(*lags, past)
    if count - first < LEAST_ROWS:
        raise ValueError(f"lag: expected lags and a past that leave {LEAST_ROWS} of {count} rows, got {first}")
    found: MutualInformation | ConditionalInformation = mutual_information(
        _delayed(x, lags, first),
        _delayed(y, (0,), first),
        given=_delayed(y, range(1, past + 1), first),
        order=range(count - first),
        rng=rng,
        **options,
    )
    return found


def _lags(lag: Any) -> list[int]:
    """Lags of the source."""
    if not hasattr(lag, "__iter__") or getattr(lag, "shape", None) == () or isinstance(lag, (str, bytes)):
        return [check_whole_number("lag", lag)]
    lags = [check_whole_number("lag", each) for each in lag]
    if not lags or len({*lags}) < len(lags):
        raise ValueError(f"lag: expected one or more different lags, got {lags}")
    return lags


def _delayed(z: Any, delays: Sequence[int], first: int) -> Any:
    """Rows (N - first, ...) of a series that many times before the rows from `first` on, side by side."""
    count = int(z.shape[0])
    parts = [z[first - delay : count - delay, ...] for delay in delays]
    if len(parts) == 1:
        return parts[0]
    xp = namespace_of(z)
    return xp.concat([xp.reshape(part, (count - first, -1)) for part in parts], axis=1)
