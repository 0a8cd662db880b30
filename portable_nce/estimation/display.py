"""Pictures by Matplotlib and progress bars by tqdm, if installed."""

from __future__ import annotations

import math
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

__all__ = ["draw", "progress_bar"]

FIRST, SECONDS = 2.0, 30.0
"""Seconds until progress is shown, and between two lines about it where there is no terminal."""


class _Lines:
    """Progress as a line now and then."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.begin = total, 0, time.monotonic()
        self.next = self.begin + FIRST

    def update(self) -> None:
        self.done, now = self.done + 1, time.monotonic()
        if now > self.next:
            self.next = now + SECONDS
            sys.stderr.write(f"critics: {self.done} of {self.total}, {now - self.begin:.0f} s\n")
            sys.stderr.flush()


def progress_bar(total: int) -> Any:
    """Context of a progress bar of `total` trainings, none for 0; call `update` after each."""
    if not total:
        return nullcontext(SimpleNamespace(update=lambda: None))
    if not sys.stderr.isatty():
        return nullcontext(_Lines(total))
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415  (optional)
    except ImportError:
        return nullcontext(_Lines(total))
    return tqdm(total=total, desc="critics", leave=False, delay=FIRST)


def draw(result: Any, axes: Any = None) -> Any:
    """Axes with the learning curve, extrapolation, ceiling and flags of a `MutualInformation`."""
    if axes is None:
        from matplotlib.figure import Figure  # noqa: PLC0415  (optional)

        axes = Figure(figsize=(6.0, 4.0), layout="constrained").subplots()
    counts, values, errors = (list(column) for column in zip(*result.curve, strict=True))
    axes.errorbar(counts, values, yerr=[1.645 * e for e in errors], marker="o", capsize=3, label="bound (90 %)")
    axes.set_xscale("log", base=2)
    places, labels = counts, [str(count) for count in counts]
    if not math.isnan(result.estimate):
        more = 2 * counts[-1]
        ends = [[result.estimate - result.low], [result.high - result.estimate]]
        axes.plot([counts[-1], more], [values[-1], result.estimate], color="C1", linestyle=":")
        bars = axes.errorbar(
            [more], [result.estimate], yerr=ends, marker="s", markerfacecolor="white", color="C1", capsize=3,
            label="extrapolated, if the curve goes on",
        )  # fmt: skip
        for bar in bars[2]:
            bar.set_linestyle(":")
        places, labels = [*counts, more], [*labels, "more"]
    axes.minorticks_off()
    axes.set_xticks(places, labels)
    if not math.isnan(result.lower):
        axes.axhline(result.lower, color="0.3", linestyle="--", label="lower (95 %)")
    axes.axhline(result.null, color="0.6", linestyle=":", label="null")
    if max(values) > 0.5 * result.ceiling:
        axes.axhline(result.ceiling, color="0.1", linewidth=0.8, label="ceiling")
    if result.flags:
        axes.text(0.02, 0.98, "\n".join(result.flags), transform=axes.transAxes, va="top", color="#b00000")
    axes.set_xlabel("pairs")
    axes.set_ylabel(f"{result.settings.quantity()} (nats)")
    axes.legend(frameon=False)
    return axes
