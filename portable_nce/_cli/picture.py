"""Pictures: whether they can be written, and that of the demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import bounds
from .course import matches
from .libraries import Refused

if TYPE_CHECKING:
    from .course import Course, Digits

__all__ = ["check_writable", "draw"]

SHOWN = 8
"""Number of held-out digits shown with their retrieved halves: the first ones, right or wrong."""


def check_writable(path: Path) -> None:
    """Refuse a picture that cannot be written, before the work."""
    target = path.resolve()  # of a link
    is_new = not target.exists()
    try:
        target.open("ab").close()
    except OSError as error:
        raise Refused(f"--output: expected a file that can be written, got {str(path)!r}: {error.strerror}") from error
    if is_new:
        target.unlink(missing_ok=True)


def draw(course: Course, digits: Digits, title: str, backend: str, output: Path) -> None:
    """Draw the learning curve, examples and the score matrices before and after into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 8.2), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"Left and right halves of handwritten digits, matched by {title} ({backend}, float64)")
    rows: Any = figure.subfigures(2, 1, height_ratios=(1.0, 1.6))
    above: Any = rows[0].subfigures(1, 2, width_ratios=(1.0, 1.15))
    _curve(above[0].subplots(), course, title)
    _examples(above[1], course, digits)
    _matrices(rows[1], course, digits)
    figure.savefig(output, dpi=85)


def _curve(axes: Any, course: Course, title: str) -> None:
    iterations = range(len(course.losses))
    axes.plot(iterations, course.losses, color="C0", label=f"training loss ({title})")
    if course.companions:
        axes.plot(iterations, course.companions, color="C0", linestyle=":", label="InfoNCE of the same batches")
    axes.plot(iterations, course.bounds, color="C1", label="bound on mutual information, validation digits")
    ceiling = bounds.log_n_ceiling(len(course.scores))
    axes.axhline(ceiling, color="0.4", linestyle="--", linewidth=1, label=f"ceiling log {len(course.scores)}, held out")
    axes.plot(
        course.best, course.bound, "o", color="C3", label=f"bound, held-out digits: {course.bound:.2f} nats", zorder=3
    )
    axes.axvline(course.best, color="0.8", linewidth=1, zorder=0)
    axes.set(xlabel="iteration of L-BFGS", ylabel="nats", xlim=(0, max(1, len(course.losses) - 1)))
    axes.set_ylim(min(0.0, *course.losses, *course.bounds), 1.4 * max(ceiling, *course.losses))
    axes.legend(loc="upper right", fontsize="small", frameon=False, ncols=1)
    axes.spines[["top", "right"]].set_visible(False)


def _examples(figure: Any, course: Course, digits: Digits) -> None:
    import numpy as np

    winners, own, same = matches(course.scores, digits)
    grid = figure.subplots(2, SHOWN)
    for i in range(SHOWN):
        truth, result = (digits.images[digits.held_out[k]] for k in (i, winners[i]))
        joined = np.concatenate([truth[:, :4], result[:, 4:]], axis=1)
        for axes, image in zip(grid[:, i], (truth, joined), strict=True):
            axes.imshow(image, cmap="gray_r", vmin=0.0, vmax=1.0)
            axes.axvline(3.5, color="C1", linewidth=0.8)
            axes.set(xticks=[], yticks=[])
        label = "own" if own[i] else "same digit" if same[i] else "another"
        grid[1, i].set_xlabel(label, fontsize="small", color="C2" if same[i] else "C3")
    grid[0, 0].set_ylabel("digit", fontsize="small")
    grid[1, 0].set_ylabel("found", fontsize="small")
    figure.suptitle(
        "The first held-out digits, and their left halves with the right halves found for them", fontsize="small"
    )


def _matrices(figure: Any, course: Course, digits: Digits) -> None:
    import numpy as np

    classes = digits.classes[digits.held_out]
    order = np.argsort(classes, kind="stable")
    edges = np.concatenate([[0], np.cumsum(np.bincount(classes))])
    centres = (edges[:-1] + edges[1:] - 1) / 2
    both = {"Untrained": course.untrained, "Trained": course.scores}
    limit = max(abs(scores).max() for scores in both.values())
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (name, scores) in zip(panels, both.items(), strict=True):
        shown = scores[np.ix_(order, order)]
        axes.imshow(shown, cmap="viridis", vmin=-limit, vmax=limit, interpolation="nearest")
        for edge in edges[1:-1]:
            axes.axhline(edge - 0.5, color="white", linewidth=0.5)
            axes.axvline(edge - 0.5, color="white", linewidth=0.5)
        axes.set_xticks(centres, range(len(centres)))
        axes.set_yticks(centres, range(len(centres)))
        axes.tick_params(length=0)
        axes.set_xlabel("right half of a digit, by class")
        _, own, same = matches(scores, digits)
        axes.set_title(f"{name}: same digit {same.mean():.0%}, top-1 retrieval {own.mean():.1%}", fontsize="medium")
    panels[0].set_ylabel("left half of a digit, by class")
    figure.suptitle(
        f"Scores of {len(classes)} held-out digits; top-1 retrieval by chance {1 / len(classes):.2%}",
        fontsize="medium",
    )
    figure.colorbar(panels[1].images[0], ax=panels, label="score: cosine / temperature (nats)", shrink=0.85)
