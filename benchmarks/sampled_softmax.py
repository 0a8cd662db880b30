"""Gradients of sampled losses over a vocabulary against exact cross-entropy: bias, noise and time.

Contexts and words come from a known model with Zipf's frequencies; the layer is halfway between zero and that model.
Each loss is differentiated by the layer's weights on the same batches, many times.

`python benchmarks/sampled_softmax.py run` measures, and writes docs/sampled-softmax.json; `page` writes the picture and
the end of docs/sampled-softmax.md from that record. Without either, both run. `--quick` takes few batches, prints the
table and writes nothing. Needs torch and matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import portable_nce as pnce

DOCS: Final = Path(__file__).parents[1] / "docs"
RECORD, PAGE, PICTURE = (DOCS / f"sampled-softmax.{suffix}" for suffix in ("json", "md", "png"))
MARK: Final = "<!-- What follows is written by benchmarks/sampled_softmax.py. -->\n"

WORDS, WIDTH, ROWS = 20_000, 64, 256
BATCHES, QUICK_BATCHES = 300, 8
SAMPLES, QUICK_SAMPLES = (16, 64, 256, 1024), (16, 64)
CALLS, QUICK_CALLS = 30, 2

EXACT: Final = "linear_softmax"
IN_BATCH: Final = "two_tower, log_q"


class Batch(NamedTuple):
    """Contexts, layer weights, following words, and log-frequencies of the vocabulary."""

    context: torch.Tensor
    weight: torch.Tensor
    word: torch.Tensor
    log_q: torch.Tensor

    def scores(self, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of the words, and of noise shared by all contexts."""
        return (self.context * self.weight[self.word]).sum(dim=1), self.context @ self.weight[noise].T


Loss = Callable[[Batch, torch.Tensor], torch.Tensor]


def exact(batch: Batch, noise: torch.Tensor) -> torch.Tensor:
    """Sum over the whole vocabulary."""
    del noise
    return pnce.density.linear_softmax(batch.context, batch.weight, batch.word)


def ranking(batch: Batch, noise: torch.Tensor) -> torch.Tensor:
    """Rank the word among samples; the gradient of `sampled_softmax` is the same."""
    return pnce.density.ranking_nce(*batch.scores(noise), batch.log_q[batch.word], batch.log_q[noise])


def ranking_uncorrected(batch: Batch, noise: torch.Tensor) -> torch.Tensor:
    """`ranking` without the frequencies."""
    return pnce.density.ranking_nce(*batch.scores(noise))


def sampled(batch: Batch, noise: torch.Tensor) -> torch.Tensor:
    """Estimate the partition function from the samples alone."""
    own, others = batch.scores(noise)
    return pnce.density.sampled_softmax(own, others, None, batch.log_q[noise], include_positive=False)


def in_batch(batch: Batch, noise: torch.Tensor) -> torch.Tensor:
    """Use the words of the other contexts as samples."""
    del noise
    word = batch.word
    return pnce.two_tower(batch.context, batch.weight[word], ids=word, log_q=batch.log_q[word])


def in_batch_uncorrected(batch: Batch, noise: torch.Tensor) -> torch.Tensor:
    """`in_batch` without the frequencies."""
    del noise
    return pnce.two_tower(batch.context, batch.weight[batch.word], ids=batch.word)


LOSSES: Final[Mapping[str, tuple[str, str, Loss]]] = {
    "ranking_nce, log_q": ("#0072b2", "o", ranking),
    "sampled_softmax, include_positive=False": ("#009e73", "s", sampled),
    "ranking_nce without log_q": ("#d55e00", "^", ranking_uncorrected),
    IN_BATCH: ("#cc79a7", "D", in_batch),
    "two_tower without log_q": ("#e69f00", "v", in_batch_uncorrected),
}
"""Colour, marker and loss, by name."""

OF_THE_BATCH: Final = {name for name in LOSSES if name.startswith("two_tower")}
"""Losses whose samples are the words of the batch."""


class World:
    """Known model of contexts and words, and a layer halfway to it."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        frequency = -torch.log(torch.arange(WORDS) + 10.0)
        self.truth = torch.randn(WORDS, WIDTH, generator=self.generator)
        self.truth[:, -1] = frequency  # the last entry of a context is 1
        self.weight = 0.5 * self.truth
        self.log_q = torch.zeros(WORDS)
        for _ in range(40):  # the frequencies, averaged over contexts
            self.log_q = self.log_q + torch.softmax(self._contexts() @ self.truth.T, dim=1).mean(dim=0) / 40
        self.log_q = self.log_q.log()

    def _contexts(self) -> torch.Tensor:
        x = 0.3 * torch.randn(ROWS, WIDTH, generator=self.generator)
        x[:, -1] = 1.0
        return x

    def batch(self) -> Batch:
        """Draw contexts, and a word for each."""
        x = self._contexts()
        word = torch.multinomial(torch.softmax(x @ self.truth.T, dim=1), 1, generator=self.generator)[:, 0]
        return Batch(x, self.weight, word, self.log_q)

    def noise(self, samples: int) -> torch.Tensor:
        """Draw words by their frequencies, with replacement."""
        return torch.multinomial(self.log_q.exp(), samples, replacement=True, generator=self.generator)


def gradient(loss: Loss, batch: Batch, noise: torch.Tensor) -> torch.Tensor:
    """Differentiate a loss by the layer's weights."""
    weight = batch.weight.detach().requires_grad_()
    return torch.autograd.grad(loss(batch._replace(weight=weight), noise), weight)[0]


class Moments:
    """Running means of arrays and of their squared norms."""

    def __init__(self) -> None:
        self.total: Any = 0.0
        self.squares, self.number = 0.0, 0

    def add(self, x: torch.Tensor) -> None:
        """Count one more."""
        self.total = self.total + x
        self.squares += float((x.double() ** 2).sum())
        self.number += 1

    def bias_and_noise(self) -> tuple[float, float]:
        """Norm of the mean, corrected for noise; and the root of the total variance."""
        n, of_mean = self.number, float(((self.total.double() / self.number) ** 2).sum())
        variance = max(self.squares / n - of_mean, 0.0) * n / (n - 1)
        return math.sqrt(max(of_mean - variance / n, 0.0)), math.sqrt(variance)


def measure(batches: int, samples: tuple[int, ...], calls: int) -> dict[str, Any]:
    """Compare gradients on the same batches, and measure times."""
    world = World()
    moments = {(name, k): Moments() for name in LOSSES for k in ((ROWS - 1,) if name in OF_THE_BATCH else samples)}
    of_exact = Moments()
    for _ in range(batches):
        batch = world.batch()
        noise = world.noise(1)
        wanted = gradient(exact, batch, noise)
        of_exact.add(wanted)
        for k in samples:
            noise = world.noise(k)
            for name, (_, _, loss) in LOSSES.items():
                if name not in OF_THE_BATCH:
                    moments[name, k].add(gradient(loss, batch, noise) - wanted)
        for name in OF_THE_BATCH:
            moments[name, ROWS - 1].add(gradient(LOSSES[name][2], batch, noise) - wanted)
    length, noise_of_batch = of_exact.bias_and_noise()
    found = [
        {"loss": name, "samples": k, "bias": bias / length, "noise": noise / length}
        for (name, k), moment in moments.items()
        for bias, noise in [moment.bias_and_noise()]
    ]
    return {
        "noise of batches": noise_of_batch / length,
        "losses": found,
        "milliseconds": times(world, samples, calls),
        "batches": batches,
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
    }


def times(world: World, samples: tuple[int, ...], calls: int) -> list[dict[str, Any]]:
    """Median time on one core of sampling, value, and gradients by contexts and weights."""
    batch = world.batch()
    found = []
    every = {EXACT: exact, **{name: loss for name, (_, _, loss) in LOSSES.items()}}
    for name, loss in every.items():
        for k in (0,) if name == EXACT or name in OF_THE_BATCH else samples:
            taken = []
            for _ in range(calls):
                x, weight = (z.detach().requires_grad_() for z in (batch.context, batch.weight))
                start = time.process_time()
                noise = world.noise(k) if k else batch.word
                torch.autograd.grad(loss(Batch(x, weight, batch.word, batch.log_q), noise), (x, weight))
                taken.append(time.process_time() - start)
            found.append({"loss": name, "samples": k or None, "median": 1000.0 * statistics.median(taken)})
    return found


def table(record: dict[str, Any]) -> str:
    """Write bias, noise and time of each loss."""
    lines = [
        "| loss | samples | bias | noise | ms |",
        "|---|---:|---:|---:|---:|",
    ]
    taken = {(row["loss"], row["samples"]): row["median"] for row in record["milliseconds"]}
    lines.append(f"| {EXACT} | {WORDS} | 0 | 0 | {taken[EXACT, None]:.1f} |")
    for row in record["losses"]:
        name = row["loss"]
        own = taken[name, None if name in OF_THE_BATCH else row["samples"]]
        lines.append(f"| {name} | {row['samples']} | {row['bias']:.3f} | {row['noise']:.2f} | {own:.1f} |")
    return "\n".join(lines)


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw bias and noise over the number of samples."""
    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for name, (colour, marker, _) in LOSSES.items():
        rows = [row for row in record["losses"] if row["loss"] == name]
        ks = [row["samples"] for row in rows]
        for axes, what in ((left, "bias"), (right, "noise")):
            values = [row[what] for row in rows]
            axes.plot(ks, values, color=colour, marker=marker, markersize=5, linewidth=1.4, label=name)
    right.axhline(record["noise of batches"], color="#999999", linewidth=1.0, linestyle="--")
    right.annotate(
        "exact gradient, between batches",
        (1.0, record["noise of batches"]),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        color="#666666",
    )
    left.set_yscale("symlog", linthresh=0.01)
    left.set(xscale="log", ylim=(0.0, 10.0), xlabel="samples", ylabel="bias / length of the gradient", title="Bias")
    right.set(
        xscale="log", ylim=(0.0, 10.0), xlabel="samples", ylabel="noise / length of the gradient", title="Noise added"
    )
    figure.legend(*left.get_legend_handles_labels(), fontsize=10, frameon=False, loc="outside lower center", ncols=2)
    samples = sorted({row["samples"] for row in record["losses"] if row["loss"] not in OF_THE_BATCH})
    for axes in (left, right):
        axes.set_xticks(samples, [str(k) for k in samples], minor=False)
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def document(record: dict[str, Any]) -> str:
    """Write the end of the page: setting and environment."""
    return f"""
{WORDS} words, {WIDTH} features, batches of {ROWS} contexts, {record["batches"]} batches, samples shared by a batch.
Python {record["python"]}, PyTorch {record["torch"]}. [All numbers](../benchmarks/sampled_softmax.md).
"""


def details(record: dict[str, Any]) -> str:
    """Write the table."""
    return f"""\
# Measurements of sampled losses

<!-- Written by benchmarks/sampled_softmax.py. -->

{table(record)}

Exact gradient between batches: noise {record["noise of batches"]:.2f}. Median time on one core of a CPU.
"""


def main() -> None:
    """Measure, and write or print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=("run", "page"), help="only this (default: both)")
    parser.add_argument("--quick", action="store_true", help="few batches; prints the table and writes nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        print(table(measure(QUICK_BATCHES, QUICK_SAMPLES, QUICK_CALLS)))
        return
    if options.part != "page":
        RECORD.write_text(json.dumps(measure(BATCHES, SAMPLES, CALLS), indent=1) + "\n", encoding="utf-8")
    if options.part != "run":
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        draw(record, PICTURE)
        prose = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
        PAGE.write_text(f"{prose}{MARK}{document(record)}", encoding="utf-8")
        Path(__file__).with_suffix(".md").write_text(details(record), encoding="utf-8")


if __name__ == "__main__":
    main()
