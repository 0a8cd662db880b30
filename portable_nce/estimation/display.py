"""Pictures by Matplotlib and progress bars by tqdm, if installed."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

__all__ = ["draw", "progress_bar"]


def progress_bar(total: int) -> Any:
    """Context of a progress bar of `total` trainings, none for 0; call `update` after each."""
    silent = nullcontext(SimpleNamespace(update=lambda: None))
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415  (optional)
    except ImportError:
        return silent
    return tqdm(total=total, desc="critics", leave=False, disable=None) if total else silent


def draw(result: Any, axes: Any = None) -> Any:
    """Axes with the learning curve, interval and ceiling of a `MutualInformation`."""
    if axes is None:
        from matplotlib.figure import Figure  # noqa: PLC0415  (optional)

        axes = Figure(figsize=(6.0, 4.0), layout="constrained").subplots()
    counts, values, errors = (list(column) for column in zip(*result.curve, strict=True))
    axes.errorbar(counts, values, yerr=[1.645 * e for e in errors], marker="o", capsize=3, label="bound (90 %)")
    axes.set_xscale("log", base=2)
    places, labels = counts, [str(count) for count in counts]
    if not math.isnan(result.estimate):
        ends = [[result.estimate - result.low], [result.high - result.estimate]]
        axes.errorbar([2 * counts[-1]], [result.estimate], yerr=ends, marker="s", capsize=3, label="estimate (90 %)")
        places, labels = [*counts, 2 * counts[-1]], [*labels, "more"]
    axes.minorticks_off()
    axes.set_xticks(places, labels)
    axes.axhline(result.lower, color="0.3", linestyle="--", label="lower (95 %)")
    axes.axhline(result.null, color="0.6", linestyle=":", label="null")
    if max(values) > 0.5 * result.ceiling:
        axes.axhline(result.ceiling, color="0.1", linewidth=0.8, label="ceiling")
    axes.set_xlabel("pairs")
    axes.set_ylabel("mutual information (nats)")
    axes.legend(frameon=False)
    return axes
