"""All bounds on mutual information against the truth for correlated Gaussians.

The setting of Poole et al. (2019), arXiv:1905.06922, section 3 and figure 2, shortened: x and y are Gaussian vectors of
20 dimensions, each coordinate of y correlated with one of x, 64 fresh pairs a step, the mutual information stepping
from 2 to 10 nats. Critics are separable, g(x, y) = f(x) · h(y), two networks of two hidden layers of 256 units and 32
outputs, trained by Adam. Every estimator sees the same pairs and starts from the same weights.

`python benchmarks/gaussians.py` writes docs/gaussians.png and docs/gaussians.md; `--quick` trains for a few steps,
prints the table and writes nothing. Needs torch and matplotlib.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from portable_nce import bounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parents[1] / "docs"
LEVELS = (2.0, 4.0, 6.0, 8.0, 10.0)
DIMENSION, BATCH, HIDDEN, EMBEDDING = 20, 64, 256, 32
LEARNING_RATE, TEMPERATURE = 5e-4, 0.1
STEPS, QUICK_STEPS = 800, 4
SEEDS = (0, 1, 2)
SHARE = 4
"""The table uses the last 1 / SHARE of a level's steps."""

Numbers = NDArray[np.float64]
Bound = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LOWER, UPPER, NEITHER = "lower", "upper", "neither"
DASHES = (0, (4, 2))
COLOURS = {LOWER: "#0072b2", UPPER: "#d55e00", NEITHER: "#aa4499"}


# The estimators


def alternating(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """One round of the alternating optimisation of `bounds.dual` over u and g (lemma 3.3 of the FlatNCE paper).

    The step of u has a closed form and is a constant for the step of g. The result has FlatNCE's value, -mean(u), and
    gradient. It is not a bound, since u uses the evaluated negatives.
    """
    u = bounds.dual_critic(scores).detach()
    value: torch.Tensor = bounds.dual(scores, u)
    return value


def u_from(scores: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The step of u by separate negatives, for which `bounds.dual` of the scores is a lower bound.

    `other`: scores of the same rows against other samples of y. With the positive included, u is at least -log N, which
    limits the weight of a row.
    """
    positives = torch.eye(BATCH, dtype=torch.bool)
    u: torch.Tensor = bounds.dual_critic(torch.where(positives, scores, other), include_positive=True)
    return u.detach()


def unnormalised(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Mean positive score with InfoNCE's gradient, a log ratio up to a function of x."""
    bound, plain = bounds.info_nce(scores), scores.diagonal().mean()
    value: torch.Tensor = plain.detach() + bound - bound.detach()
    return value


class Mine:
    """`bounds.mine` with its moving average."""

    def __init__(self) -> None:
        self.log_mean: torch.Tensor | None = None

    def __call__(self, scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        """Return the estimate, and keep the average."""
        value: torch.Tensor
        value, self.log_mean = bounds.mine(scores, self.log_mean)
        return value


@dataclass(frozen=True)
class Estimator:
    """Estimator: its kind of bound on a finite batch, its computation, and what it learns besides the critic.

    Attributes
    ----------
    name : str
        Name in the tables.
    kind : str
        Lower bound, upper bound or neither, in expectation over the batches and for any critic.
    make : callable
        Gives the function of the scores and of the second network's numbers.
    critic : str
        "separable", "cosine": f(x) · h(y) / (τ |f(x)| |h(y)|), or what is known instead of trained: "conditional",
        log p(y | x), or "ratio", log p(y | x) / p(y).
    second : str
        Source of the second argument: none, a network of "x" or of "xy", or "earlier", `u_from` the previous batch.
    """

    name: str
    kind: str
    make: Callable[[], Bound]
    critic: str = "separable"
    second: str = ""

    @property
    def known(self) -> bool:
        """Whether there is nothing to train."""
        return self.critic in {"conditional", "ratio"}


def of_scores(bound: Callable[[torch.Tensor], Any]) -> Callable[[], Bound]:
    """Give the computation of an estimator from a bound of the scores alone."""
    return lambda: lambda scores, _: bound(scores)


def interpolated(alpha: float) -> Callable[[], Bound]:
    """Give the computation of the interpolated bound."""
    return lambda: lambda scores, baseline: bounds.interpolated(scores, alpha, baseline)


ESTIMATORS = (
    Estimator("info_nce", LOWER, of_scores(bounds.info_nce)),
    Estimator("info_nce, mean of scores", NEITHER, lambda: unnormalised),
    Estimator("anchor", LOWER, of_scores(bounds.info_nce_anchor)),
    Estimator("anchor, mean of scores", NEITHER, of_scores(lambda g: bounds.info_nce_anchor(g, form="plug_in"))),
    Estimator("fdv", LOWER, of_scores(bounds.fdv)),
    Estimator("fdv, cosine critic", LOWER, of_scores(bounds.fdv), critic="cosine"),
    Estimator("flo", LOWER, lambda: bounds.flo, second="xy"),
    Estimator("nwj", LOWER, of_scores(bounds.nwj)),
    Estimator("tuba", LOWER, lambda: bounds.tuba, second="x"),
    Estimator("interpolated, α = 0.01", LOWER, interpolated(0.01), second="x"),
    Estimator("interpolated, α = 0.5", LOWER, interpolated(0.5), second="x"),
    Estimator("js_mi", LOWER, of_scores(bounds.js_mi)),
    Estimator("dv", NEITHER, of_scores(bounds.dv)),
    Estimator("mine", NEITHER, Mine),
    Estimator("smile, clip 5", NEITHER, of_scores(bounds.smile)),
    Estimator("dual, alternating", NEITHER, lambda: alternating),
    Estimator("dual, other negatives for u", LOWER, lambda: bounds.dual, second="earlier"),
    Estimator("info_nce, best critic", LOWER, of_scores(bounds.info_nce), critic="ratio"),
    Estimator("nwj, best critic", LOWER, of_scores(lambda ratio: bounds.nwj(ratio + 1.0)), critic="ratio"),
    Estimator("leave_one_out, known density", UPPER, of_scores(bounds.leave_one_out), critic="conditional"),
    Estimator("club, known density", UPPER, of_scores(bounds.club), critic="conditional"),
)


# The experiment


def correlation(level: float) -> float:
    """The correlation of each pair of coordinates at a mutual information of so many nats."""
    return math.sqrt(-math.expm1(-2.0 * level / DIMENSION))


def pairs(steps: int, seed: int) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Give the pairs of every step, with the number of the level."""
    generator = torch.Generator().manual_seed(seed)
    for number, level in enumerate(LEVELS):
        rho = correlation(level)
        for _ in range(steps):
            x, noise = torch.randn(2, BATCH, DIMENSION, generator=generator)
            yield number, x, rho * x + math.sqrt(1.0 - rho * rho) * noise


def network(inputs: int, outputs: int) -> torch.nn.Sequential:
    """Two hidden layers."""
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, outputs),
    )


class Model(torch.nn.Module):
    """The networks of an estimator."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator
        self.of_x, self.of_y = network(DIMENSION, EMBEDDING), network(DIMENSION, EMBEDDING)
        self.further = network(DIMENSION * len(estimator.second), 1) if estimator.second in {"x", "xy"} else None
        self.earlier = torch.randn(BATCH, DIMENSION)

    def scores(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the score of each x against each y."""
        left: torch.Tensor = self.of_x(x)
        right: torch.Tensor = self.of_y(y)
        if self.estimator.critic == "cosine":
            left, right = (torch.nn.functional.normalize(z, dim=1) for z in (left, right))
            left = left / TEMPERATURE
        return left @ right.T

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores, and the second argument of the estimator."""
        scores = self.scores(x, y)
        if self.further is not None:
            seen = x if self.estimator.second == "x" else torch.cat([x, y], dim=1)
            return scores, self.further(seen)[:, 0]
        if self.estimator.second == "earlier":
            u = u_from(scores, self.scores(x, self.earlier))
            self.earlier = y
            return scores, u
        return scores, torch.zeros(BATCH)


def train(estimator: Estimator, steps: int, seed: int) -> Numbers:
    """Train, and give the estimate of each step, shape (levels, steps), from a batch that was not trained on before."""
    torch.manual_seed(seed)
    model = Model(estimator)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    bound = estimator.make()
    found = []
    for _, x, y in pairs(steps, seed):
        estimate = bound(*model(x, y))
        optimiser.zero_grad()
        torch.autograd.backward(-estimate)
        optimiser.step()
        found.append(estimate.item())
    return np.asarray(found).reshape(len(LEVELS), steps)


def log_density(x: torch.Tensor, mean: torch.Tensor, variance: float) -> torch.Tensor:
    """Log-density of a Gaussian with independent coordinates of one variance."""
    squares = ((x - mean) ** 2).sum(dim=-1)
    return -0.5 * (squares / variance + DIMENSION * math.log(2.0 * math.pi * variance))


def evaluate(estimator: Estimator, steps: int, seed: int) -> Numbers:
    """Give the estimates with known densities, shape (levels, steps). Nothing is trained."""
    bound, found = estimator.make(), []
    for number, x, y in pairs(steps, seed):
        rho = correlation(LEVELS[number])
        scores = log_density(y[None, :, :], rho * x[:, None, :], 1.0 - rho * rho)
        if estimator.critic == "ratio":
            scores = scores - log_density(y, torch.zeros_like(y), 1.0)[None, :]
        found.append(bound(scores.double(), torch.zeros(BATCH)).item())
    return np.asarray(found).reshape(len(LEVELS), steps)


def course(name: str, steps: int, seed: int) -> Numbers:
    """Give the estimates of the estimator of a name, shape (levels, steps), in one thread."""
    (estimator,) = (e for e in ESTIMATORS if e.name == name)
    torch.set_num_threads(1)
    return (evaluate if estimator.known else train)(estimator, steps, seed)


def run(steps: int, seeds: Sequence[int], jobs: int) -> dict[str, Numbers]:
    """Give the estimates of all, shape (seeds, levels, steps)."""
    names, numbers = zip(*((e.name, seed) for e in ESTIMATORS for seed in seeds), strict=True)
    if jobs == 1:
        courses = list(map(course, names, repeat(steps), numbers))
    else:
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            courses = list(pool.map(course, names, repeat(steps), numbers))
    return {e.name: np.stack(courses[i * len(seeds) :][: len(seeds)]) for i, e in enumerate(ESTIMATORS)}


# The table


def last(estimates: Numbers) -> Numbers:
    """The last part of each level."""
    steps = estimates.shape[-1]
    return estimates[..., steps - max(1, steps // SHARE) :]


def bias(estimates: Numbers) -> Numbers:
    """Mean minus truth by seed and level."""
    found: Numbers = last(estimates).mean(axis=-1) - np.asarray(LEVELS)
    return found


def squared_error(estimates: Numbers) -> Numbers:
    """Mean squared error, by seed and level: the squared bias plus the variance over the steps."""
    return np.asarray(((last(estimates) - np.asarray(LEVELS)[:, None]) ** 2).mean(axis=-1))


def written(value: float, *, signed: bool = False, decimals: int = 2) -> str:
    """Write a number in few characters."""
    sign = "+" if signed else ""
    if abs(value) >= 1e4:  # noqa: PLR2004  (too long for a cell)
        mantissa, exponent = f"{value:{sign}.0e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:{sign}.{decimals if abs(value) < 100.0 else 0}f}"  # noqa: PLR2004  (likewise)


def table(found: dict[str, Numbers]) -> str:
    """One row per estimator: bias at every other level, with deviation over seeds; squared error at the last."""
    levels = [f"{level:g} nats" for level in LEVELS[::2]]
    lines = [f"| estimator | bound | {' | '.join(levels)} | squared error |", "|---|---|" + "---:|" * (len(levels) + 1)]
    for estimator in ESTIMATORS:
        by_seed = bias(found[estimator.name])[:, ::2]
        means, deviations = by_seed.mean(axis=0).tolist(), by_seed.std(axis=0).tolist()
        cells = [f"{written(a, signed=True)} ± {written(b)}" for a, b in zip(means, deviations, strict=True)]
        cells.append(written(float(squared_error(found[estimator.name])[:, -1].mean()), decimals=3))
        lines.append(f"| {estimator.name} | {estimator.kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# The documents


def smooth(estimates: Numbers, half: int = 25) -> Numbers:
    """Running median of up to 51 steps within a level, robust to outliers."""
    padded = np.pad(estimates, ((0, 0), (half, half)), constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1, axis=1)
    return np.asarray(np.nanmedian(windows, axis=2))


LOWEST, HIGHEST = -0.5, 13.0


def panel(axes: Axes, estimator: Estimator, estimates: Numbers) -> None:
    """Draw one estimator over time, shape (levels, steps)."""
    n_levels, n_steps = estimates.shape
    steps = np.arange(n_levels * n_steps).reshape(n_levels, n_steps)
    colour = COLOURS[estimator.kind]
    raw = np.clip(estimates, LOWEST - 1.0, HIGHEST + 1.0)
    axes.plot(steps.ravel(), raw.ravel(), color=colour, alpha=0.22, linewidth=0.4, antialiased=False)
    axes.axhline(bounds.log_n_ceiling(BATCH), color="0.45", linestyle=DASHES, linewidth=0.9)
    axes.stairs(LEVELS, np.arange(n_levels + 1) * n_steps, baseline=None, color="black", linewidth=1.2, zorder=3)
    for at, strong in zip(steps, smooth(estimates), strict=True):
        axes.plot(at, strong, color=colour, linewidth=1.6, zorder=4)
    for at, end in zip(steps, last(estimates), strict=True):
        median = float(np.median(end))
        if not LOWEST < median < HIGHEST:
            side, edge = ("top", HIGHEST - 0.2) if median > HIGHEST else ("bottom", LOWEST + 0.2)
            style: dict[str, Any] = {"ha": "center", "va": side, "color": colour, "fontsize": 8, "zorder": 5}
            style["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
            axes.text(at.mean(), edge, written(median, decimals=0), **style)
    axes.set_title(estimator.name, fontsize=10, pad=4)
    axes.set(ylim=(LOWEST, HIGHEST), xlim=(0, n_levels * n_steps), yticks=range(0, 13, 2))
    axes.set_xticks(np.arange(n_levels + 1) * n_steps)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def draw(found: dict[str, Numbers], output: Path) -> None:
    """Draw a panel per estimator and the legend into a PNG file."""
    figure = Figure(figsize=(10.5, 13.0), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(6, 4, sharex=True, sharey=True).ravel()
    for axes, estimator in zip(grid, ESTIMATORS, strict=False):
        panel(axes, estimator, found[estimator.name][0])
    for axes, above in zip(grid[len(ESTIMATORS) :], grid[len(ESTIMATORS) - 4 :], strict=False):
        axes.set_axis_off()
        above.tick_params(labelbottom=True)
    figure.supxlabel("step", fontsize=10)
    figure.supylabel("mutual information, nats", fontsize=10)
    handles = [
        Line2D([], [], color="black", linewidth=1.2, label="true mutual information"),
        Line2D([], [], color="0.45", linestyle=DASHES, linewidth=0.9, label=f"log {BATCH}, InfoNCE's ceiling"),
        Line2D([], [], color=COLOURS[LOWER], linewidth=1.8, label="lower bound in expectation"),
        Line2D([], [], color=COLOURS[NEITHER], linewidth=1.8, label="neither lower nor upper"),
        Line2D([], [], color=COLOURS[UPPER], linewidth=1.8, label="upper bound in expectation"),
    ]
    title = "faint: each batch of 64 pairs\nstrong: running median of 51\nnumbers: medians beyond the axes"
    corner = grid[len(ESTIMATORS)]
    legend = corner.legend(handles=handles, loc="upper left", frameon=False, fontsize=10, title=title, alignment="left")
    legend.set_in_layout(False)
    figure.savefig(output, dpi=110, pil_kwargs={"optimize": True})


DOCUMENT = """\
# Estimators on Gaussians

- **`info_nce` never exceeds log {batch} = {ceiling:.2f} nats.** At 10 nats its bias is {info_bias:+.2f} with a learned
  critic and {best_bias:+.2f} with the best one.
- **`{winner}` has the least squared error of the learned lower bounds** at 10 nats: {winner_error} nats²;
  `info_nce` has {info_error}.
- **`smile` is nearest to the truth of all learned estimators** at 10 nats ({smile_bias:+.2f}). It is not a bound.
- **An anchor class normalises the scores.** At {levels} nats, the mean of its scores is off by
  {plug_bias}, without a ceiling. It is not a bound.
- **`fdv` needs a bounded critic.** At 10 nats its bias is {cosine_bias} with a cosine critic and {fdv_bias} with an
  unbounded one.

![Estimates over time, one panel an estimator](gaussians.png)

`python benchmarks/gaussians.py` writes this page, its picture, and [setting and table](../benchmarks/gaussians.md). The
setting is section 3 of [Poole et al. (2019)](https://arxiv.org/abs/1905.06922), shortened.

Limits: Gaussian data, separable critics, no training to convergence. Results of `nwj`, `tuba`, `mine`,
`flo` and `js_mi` depend on when collapses occur, which a rounding error can change.

{versions}
"""

DETAILS = """\
# Measurements of estimators on Gaussians

<!-- Written by benchmarks/gaussians.py. -->

## Setting

| | |
|---|---|
| data | Gaussian x and y in {dimension} dimensions; coordinate i of y is correlated with coordinate i of x |
| training | {steps} steps of {batch} fresh pairs a level (paper: five times as many); Adam at {rate} |
| critic | separable, g(x, y) = f(x) · h(y); f and h have two hidden layers of {hidden} units and {embedding} outputs |
| seeds | three, the same for all estimators; the picture shows the first |
| numbers | from the last {counted} steps of a level; estimated before training on the same pairs |
| learned by a network | log-baseline of `tuba`, `interpolated` (of x); u of `flo` (of x and y) |
| dual, alternating | u from `bounds.dual_critic`, constant in the step of g on `bounds.dual` |
| dual, other negatives for u | u from the y of the previous batch, with `include_positive=True` |
| anchor | `bounds.info_nce_anchor`; mean of scores: `form="plug_in"` |
| cosine critic | f and h of unit length, temperature {temperature}; scores within ±{largest:g} |
| best critic, known density | the true densities; nothing is learned |

## Bias: mean estimate minus truth, nats (± deviation over seeds)

Squared errors are at 10 nats, in nats². "Bound" holds in expectation over batches, for any critic.

{table}

## Other results

- `nwj`, `tuba` and `flo` are not limited by log {batch}, but collapse and recover repeatedly.
- `js_mi` is sometimes far too low: at 10 nats {js_median:+.2f} in the median, {js_bias} in the mean.
- `fdv` and "dual, alternating" have the same gradient. Near log {batch} the positive usually wins, and larger
  scores increase `-mean(u)` without limit, to a median of {flat_median}.
- `nwj` with the best critic is unbiased, but its median at 10 nats is {nwj_best_median:+.2f} from the truth: its mean
  depends on rare batches.
"""


def document(found: dict[str, Numbers], template: str = DOCUMENT) -> str:
    """Write a page."""

    def at_end(name: str, what: Callable[[Numbers], Numbers] = bias) -> float:
        return float(what(found[name])[:, -1].mean())

    def median(name: str) -> float:
        return float(np.median(last(found[name])[:, -1]))

    learned = [e.name for e in ESTIMATORS if e.kind == LOWER and not e.known]
    winner = min(learned, key=lambda name: at_end(name, squared_error))
    signed = {
        key: written(at_end(name), signed=True)
        for key, name in {
            "js_bias": "js_mi",
            "fdv_bias": "fdv",
            "cosine_bias": "fdv, cosine critic",
        }.items()
    }

    def at_levels(name: str) -> str:
        return ", ".join(written(value, signed=True) for value in bias(found[name]).mean(axis=0).tolist())

    return template.format(
        **signed,
        dimension=DIMENSION,
        steps=STEPS,
        batch=BATCH,
        hidden=HIDDEN,
        embedding=EMBEDDING,
        rate=LEARNING_RATE,
        temperature=TEMPERATURE,
        largest=1.0 / TEMPERATURE,
        counted=STEPS // SHARE,
        ceiling=bounds.log_n_ceiling(BATCH),
        best_bias=at_end("info_nce, best critic"),
        info_bias=at_end("info_nce"),
        info_error=written(at_end("info_nce", squared_error)),
        winner=winner,
        winner_error=written(at_end(winner, squared_error)),
        smile_bias=at_end("smile, clip 5"),
        levels=", ".join(f"{level:g}" for level in LEVELS),
        plug_bias=at_levels("anchor, mean of scores"),
        js_median=median("js_mi") - LEVELS[-1],
        flat_median=written(median("dual, alternating"), decimals=0),
        nwj_best_median=median("nwj, best critic") - LEVELS[-1],
        table=table(found),
        versions=versions(),
    )


def versions() -> str:
    """Describe the environment."""
    python, torch_version = platform.python_version(), torch.__version__.partition("+")[0]
    return (
        f"On a CPU, one thread: Python {python}, PyTorch {torch_version}, NumPy {np.__version__}, "
        f"Matplotlib {mpl.__version__}."
    )


def main() -> None:
    """Train all estimators, and print or write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps; prints the table and writes nothing")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each (default: 2)")
    options = parser.parse_args()
    if options.quick:
        print(table(run(QUICK_STEPS, SEEDS[:1], jobs=1)))
        return
    found = run(STEPS, SEEDS, options.jobs)
    print(table(found))
    draw(found, DOCS / "gaussians.png")
    (DOCS / "gaussians.md").write_text(document(found), encoding="utf-8")
    Path(__file__).with_suffix(".md").write_text(document(found, DETAILS), encoding="utf-8")


if __name__ == "__main__":
    main()
