"""What may be reported: limits, extrapolation and flags."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from .result import WITHHOLDING, MutualInformation, Settings
from .statistics import (
    SLOWEST,
    Summary,
    averaged,
    extrapolated,
    influences,
    local_values,
    margin_of_exceptions,
    summary,
)
from .study import Found

__all__ = ["reported"]

RATES = (1.0, SLOWEST)
"""Remaining gap relative to the gain of the last doubling of N, if the gap falls as 1/N and as 1/√N."""
NOTHING = 1e-3
"""Largest null, in nats, that is no sign of dependent rows."""
ROUNDINGS = 64.0 * 2.0**-23
"""Rounding errors of float32 by which the bound of a constant critic may differ from 0."""


def reported(found: Found, given: Sequence[str], settings: Settings, labels: Sequence[Hashable]) -> MutualInformation:
    """Reportable numbers and flags; `labels` name the clusters."""
    whole, null = averaged([summary(folds) for folds in found.whole]), summary(found.null)
    half = averaged([summary(folds) for folds in found.half])
    curve = [whole, half, *([summary(found.quarter)] if found.quarter else [])]
    halved = found.whole[: len(found.half)]
    gain = max(0.0, averaged([summary(folds) for folds in halved]).value - half.value)

    def beyond(rate: float) -> Summary:
        errors = averaged([extrapolated(*two, rate) for two in zip(halved, found.half, strict=True)])
        return errors._replace(value=whole.value + rate * gain)

    likely, most = beyond(0.5 * sum(RATES)), beyond(RATES[1])
    ceiling = averaged([summary([fold._replace(bound=fold.ceiling) for fold in folds]) for folds in found.whole]).value
    flags = list(given)
    if null.value - null.margin > NOTHING:
        flags.append("null above zero")
    if whole.value > ceiling - 1.0:
        flags.append("at the ceiling")
    if whole.value < 2.0 * whole.error + NOTHING:
        if "repeated rows" not in flags:  # rows that were left out might have shown something
            flags.append("nothing found")
    elif most.value - whole.value > 0.1 + 0.5 * whole.value or _is_convex(curve):
        flags.append("still growing")
    if not found.converged:
        flags.append("not converged")
    unseen = margin_of_exceptions(found.whole, whole="equal rows" in settings.unit)
    lower = whole.value - max(whole.margin, unseen) - ROUNDINGS
    # A share of exceptions that the loss expects lowers the bound of a relation without any.
    mixed = -math.log1p(-settings.exceptions)
    estimate, low, high = likely.value, lower, most.value + most.margin + mixed + ROUNDINGS
    if WITHHOLDING & {*flags}:
        lower = math.nan
    if flags:
        estimate = low = high = math.nan
    counts = [settings.pairs // fraction for fraction in (1, 2, 4)]
    points = tuple((n, s.value, s.error) for n, s in zip(counts, curve, strict=False))
    each = tuple(zip(labels, influences(found.whole, len(labels)), strict=True))
    return MutualInformation(
        lower,
        estimate,
        low,
        high,
        whole.value,
        whole.error,
        ceiling,
        null.value,
        points[::-1],
        tuple(flags),
        settings,
        each,
        local_values(found.whole, settings.pairs),
    )


def _is_convex(curve: Sequence[Summary]) -> bool:
    """Whether the last doubling of the pairs gained more than the one before, and not by chance alone.

    Half of the pairs that show less than a quarter do so by chance.
    """
    if len(curve) < 3:  # noqa: PLR2004  (no quarter)
        return False
    whole, half, quarter = (point.value for point in curve)
    half = max(half, quarter)
    return (whole - half) - (half - quarter) > curve[0].error
