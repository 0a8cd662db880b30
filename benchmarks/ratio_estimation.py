"""Simulation-based inference with ratio-estimation losses: posteriors and their coverage.

The simulator squares its parameter and adds noise, so the exact posterior is known and has two modes. All losses train
the same network from the same weights, on the same simulations and prior parameters.

`python benchmarks/ratio_estimation.py` writes the picture docs/sbi.png and the end of docs/sbi.md; `--quick` trains for
a few steps, prints the table and writes nothing. Needs torch and matplotlib.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from portable_nce import density

DOCS = Path(__file__).parents[1] / "docs"
MARK = "<!-- What follows is written by benchmarks/ratio_estimation.py. -->\n"

LIMIT, NOISE = 2.0, 0.5
SIMULATIONS, SAMPLES, HELD_OUT = 64, 8, 4000
STEPS, QUICK_STEPS, BATCH, HIDDEN = 2000, 30, 64, 64
SEEDS = (0, 1, 2)
OBSERVED = 1.5
LEVELS = np.linspace(0.05, 0.95, 19)

Numbers = NDArray[np.float64]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LOSSES: Mapping[str, tuple[str, Loss]] = {
    "nre_a": ("#0072b2", density.nre_a),
    "nre_a + 100 balance_penalty": (
        "#56b4e9",
        lambda own, others: density.nre_a(own, others) + 100.0 * density.balance_penalty(own, others),
    ),
    "nre_b": ("#d55e00", density.nre_b),
    "nre_c, gamma = 1": ("#009e73", density.nre_c),
    "nre_c, gamma = 100": ("#cc79a7", lambda own, others: density.nre_c(own, others, gamma=100.0)),
}
"""Colour and loss, by name."""


class Data(NamedTuple):
    """Parameters and their simulations."""

    theta: torch.Tensor
    x: torch.Tensor


class Result(NamedTuple):
    """Measurements of one loss.

    Attributes
    ----------
    divergence : float
        Mean of KL(exact posterior ‖ estimate) over held-out simulations, in nats.
    log_evidence : float
        Mean over simulations of the log mean of e^s over the prior: 0 for a normalised ratio.
    calibration : float
        Largest distance between the distribution of the truth's rank in the posterior and the uniform one.
    coverage : ndarray
        Share of truths inside the smallest region of each level.
    posterior : ndarray
        Density on the grid at the observation of the picture.
    """

    divergence: float
    log_evidence: float
    calibration: float
    coverage: Numbers
    posterior: Numbers


def simulate(number: int, generator: torch.Generator) -> Data:
    """Draw parameters from the prior, uniform between the limits, and simulate."""
    theta = LIMIT * (2.0 * torch.rand(number, generator=generator) - 1.0)
    return Data(theta, theta**2 + NOISE * torch.randn(number, generator=generator))


def scores_of(critic: torch.nn.Module, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Compute s(θ, x)."""
    pairs = torch.broadcast_tensors(theta, x)  # type: ignore[no-untyped-call]
    scores: torch.Tensor = critic(torch.stack(pairs, dim=-1)).squeeze(-1)
    return scores


def train(loss: Loss, seed: int, steps: int) -> torch.nn.Module:
    """Train a critic on few simulations."""
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(2, HIDDEN), torch.nn.SiLU(), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.SiLU()]
    critic = torch.nn.Sequential(*layers, torch.nn.Linear(HIDDEN, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    theta, x = simulate(SIMULATIONS, generator)
    for _ in range(steps):
        chosen = torch.randint(SIMULATIONS, (BATCH,), generator=generator)
        others = LIMIT * (2.0 * torch.rand(BATCH, SAMPLES, generator=generator) - 1.0)
        optimizer.zero_grad()
        value = loss(scores_of(critic, theta[chosen], x[chosen]), scores_of(critic, others, x[chosen, None]))
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return critic


def grid() -> torch.Tensor:
    """Grid of parameters, the midpoints of equal intervals."""
    return LIMIT * (2.0 * (torch.arange(400) + 0.5) / 400 - 1.0)


@torch.no_grad()
def log_posteriors(scores: torch.Tensor) -> tuple[Numbers, Numbers]:
    """Normalise scores (N, 400) on the grid; give the log-posteriors of the cells, and the log mean of e^s."""
    scores = scores.double()
    log_sum = scores.logsumexp(1, keepdim=True)
    return (scores - log_sum).numpy(), (log_sum[:, 0] - math.log(scores.shape[1])).numpy()


def exact(x: torch.Tensor) -> Numbers:
    """Compute the exact log-posterior of the grid's cells."""
    return log_posteriors(-((x[:, None] - grid() ** 2) ** 2) / (2.0 * NOISE**2))[0]


def measure(critic: torch.nn.Module) -> Result:
    """Compare posteriors with the exact ones and with the true parameters."""
    theta, x = simulate(HELD_OUT, torch.Generator().manual_seed(1000))
    with torch.no_grad():
        log_p, log_z = log_posteriors(scores_of(critic, grid(), x[:, None]))
        observed, _ = log_posteriors(scores_of(critic, grid(), torch.full((1, 1), OBSERVED)))
    truth, p = exact(x), np.exp(log_p)
    own = np.clip(((theta.numpy() / LIMIT + 1.0) * 200.0).astype(int), 0, 399)
    each = np.arange(HELD_OUT)
    ranks = np.sort(np.cumsum(p, axis=1)[each, own] - 0.5 * p[each, own])
    region = np.where(log_p > log_p[each, own][:, None], p, 0.0).sum(axis=1) + 0.5 * p[each, own]
    return Result(
        float(np.mean((np.exp(truth) * (truth - log_p)).sum(axis=1))),
        float(np.mean(log_z)),
        float(np.max(np.abs(ranks - (each + 0.5) / HELD_OUT))),
        np.asarray([np.mean(region <= level) for level in LEVELS]),
        np.exp(observed[0]) * 400.0 / (2.0 * LIMIT),
    )


def run(steps: int, seeds: tuple[int, ...]) -> dict[str, list[Result]]:
    """Train with every loss and seed."""
    return {name: [measure(train(loss, seed, steps)) for seed in seeds] for name, (_, loss) in LOSSES.items()}


def at_level(result: Result, level: float) -> float:
    """Give the coverage at a level."""
    return float(result.coverage[int(np.argmin(np.abs(LEVELS - level)))])


def table(found: Mapping[str, list[Result]]) -> str:
    """Write the means over the seeds."""
    lines = [
        "| loss | KL, nats | log of mean ratio | rank | 90 % region |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, results in found.items():
        divergence, log_z, rank = np.mean([result[:3] for result in results], axis=0)
        share = 100.0 * np.mean([at_level(result, 0.9) for result in results])
        lines.append(f"| {name} | {divergence:.3f} | {log_z:+.2f} | {rank:.3f} | {share:.0f} % |")
    return "\n".join(lines)


def draw(found: Mapping[str, list[Result]], path: Path) -> None:
    """Draw posteriors of the first seed, and the mean coverage."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    theta = grid().numpy()
    known = np.exp(exact(torch.full((1,), OBSERVED))[0]) * 400.0 / (2.0 * LIMIT)
    left.fill_between(theta, known, color="#dddddd", label="exact")
    right.plot([0, 1], [0, 1], color="#999999", linewidth=1.0)
    for name, results in found.items():
        colour = LOSSES[name][0]
        left.plot(theta, results[0].posterior, color=colour, linewidth=1.4, label=name)
        right.plot(LEVELS, np.mean([result.coverage for result in results], axis=0), color=colour, linewidth=1.4)
    left.set(xlabel="parameter", ylabel="posterior density", title=f"Posterior at x = {OBSERVED:g}")
    right.set(xlabel="level of the region", ylabel="share that holds the truth", title="Coverage (above: conservative)")
    left.legend(fontsize=9, frameon=False, loc="upper center")
    left.set_ylim(top=1.7 * float(known.max()))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def ending(found: Mapping[str, list[Result]]) -> str:
    """Write the end of the page: the table and the environment."""
    libraries = f"PyTorch {torch.__version__.partition('+')[0]}, Matplotlib {mpl.__version__}"
    return f"""
{table(found)}

{SIMULATIONS} simulations, {STEPS} steps, {len(SEEDS)} seeds; {HELD_OUT} held out. KL: exact posterior ‖ estimate.
Mean ratio: of e^s over the prior, 1 if normalised. Rank: distance of the truth's ranks from uniform.
On a CPU: Python {platform.python_version()}, {libraries}.
"""


def main() -> None:
    """Train with all losses, and print or write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps; prints the table and writes nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = run(*((QUICK_STEPS, SEEDS[:1]) if options.quick else (STEPS, SEEDS)))
    print(table(found))
    if not options.quick:
        draw(found, DOCS / "sbi.png")
        page = DOCS / "sbi.md"
        prose = page.read_text(encoding="utf-8").partition(MARK)[0]
        page.write_text(f"{prose}{MARK}{ending(found)}", encoding="utf-8")


if __name__ == "__main__":
    main()
