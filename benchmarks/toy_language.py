"""Noise-contrastive estimation of a language with known probabilities, and self-normalisation.

The language is a Markov chain over 300 words: Zipf's law, tilted by the affinity of the next word x to the last word c.
The model is log-bilinear, s(x, c) = u(c) · v(x) + b(x), with vectors long enough to represent log p(x | c) exactly. The
noise is the unigram distribution. All estimators see the same text and noise and start from the same model.

`python benchmarks/toy_language.py` writes docs/toy_language.png and docs/toy_language.md; `--quick` trains for a few
steps, prints the table and writes nothing. Needs torch and matplotlib.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from portable_nce import density

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parents[1] / "docs"
WORDS, RANK, TILT = 300, 8, 1.5
LENGTH = 16
"""Length of the model's vectors: RANK, and one for log Z(c)."""

CHAINS = 512
"""Number of parallel texts; each gives one word and its context per step."""

STEPS, QUICK_STEPS = 3000, 30
SEEDS = (0, 1, 2)
SAMPLES = (5, 50)
LEARNING_RATE = 0.02

Numbers = NDArray[np.float64]
Bigrams = tuple[torch.Tensor, torch.Tensor]


# The language


class Language(NamedTuple):
    """Exact probabilities.

    Attributes
    ----------
    transition : Tensor, shape (WORDS, WORDS)
        p(x | c), one row a context c.
    unigram : Tensor, shape (WORDS,)
        Stationary distribution of the chain, also the noise.
    log_p, log_q : Tensor
        The logarithms of both.
    """

    transition: torch.Tensor
    unigram: torch.Tensor
    log_p: torch.Tensor
    log_q: torch.Tensor


def make_language() -> Language:
    """Draw the language, equal for all seeds of the text."""
    rng = np.random.default_rng(0)
    zipf = 1.0 / np.arange(1, WORDS + 1)
    suits = rng.normal(size=(WORDS, RANK)) @ rng.normal(size=(RANK, WORDS)) * TILT / math.sqrt(RANK)
    transition = zipf * np.exp(suits)
    transition /= transition.sum(axis=1, keepdims=True)
    unigram = zipf / zipf.sum()
    for _ in range(200):
        unigram = unigram @ transition
    both = torch.from_numpy(transition), torch.from_numpy(unigram / unigram.sum())
    return Language(*both, *(x.log() for x in both))


def draw_words(cumulative: torch.Tensor, generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    """Draw words from one cumulative distribution, or from one for each row."""
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return torch.searchsorted(cumulative, uniform).clamp_(max=WORDS - 1)


def read(language: Language, steps: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Read the chains: contexts and words, each of shape (steps, CHAINS)."""
    generator = torch.Generator().manual_seed(seed)
    cumulative = language.transition.cumsum(dim=1)
    text = [draw_words(language.unigram.cumsum(dim=0), generator, (CHAINS,))]
    for _ in range(steps):
        text.append(draw_words(cumulative[text[-1]], generator, (CHAINS, 1))[:, 0])
    return torch.stack(text[:-1]), torch.stack(text[1:])


# The estimators


class Sampled(NamedTuple):
    """Inputs of a sampled loss: scores and noise log-densities at the data and at the samples."""

    data: torch.Tensor
    noise: torch.Tensor
    data_log_q: torch.Tensor
    noise_log_q: torch.Tensor


@dataclass(frozen=True)
class Estimator:
    """Loss and its line style.

    Attributes
    ----------
    name : str
        Name in the table.
    loss : callable or None
        The loss of a batch; None for the exact softmax.
    colour, dashes : str
        Line style.
    without_q : bool
        Whether the loss omits the noise density, so that scores need `density.recover_log_prob`.
    """

    name: str
    loss: Callable[[Sampled], torch.Tensor] | None
    colour: str
    dashes: str = "-"
    without_q: bool = False


ESTIMATORS = (
    Estimator("local_nce", lambda s: density.local_nce(*s), "#0072b2"),
    Estimator("ranking_nce", lambda s: density.ranking_nce(*s), "#d55e00"),
    Estimator("sampled_softmax", lambda s: density.sampled_softmax(*s), "#f0e442", "--"),
    Estimator("ranking_nce without q", lambda s: density.ranking_nce(s.data, s.noise), "#009e73", without_q=True),
    Estimator("negative_sampling", lambda s: density.negative_sampling(s.data, s.noise), "#cc79a7", without_q=True),
    Estimator("full_softmax", None, "black", ":"),
)


class Course(NamedTuple):
    """Measurements at the checkpoints: divergences, mean and deviation of log Z; one row per training."""

    divergence: Numbers
    recovered: Numbers
    mean: Numbers
    std: Numbers


Found = dict[tuple[str, int], Course]


def checkpoints(steps: int) -> list[int]:
    """Steps at which the model is compared with the truth, log-spaced."""
    return sorted({round(x) for x in np.geomspace(1, steps, 40).tolist()})


def divergence(language: Language, log_model: torch.Tensor) -> float:
    """KL(p || model) in nats, averaged over contexts with equal weights."""
    return float((language.transition * (language.log_p - log_model)).sum(dim=1).mean())


class LogBilinear(torch.nn.Module):
    """A score for every pair: s(x, c) = u(c) · v(x) + b(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.contexts = torch.nn.Parameter(0.1 * torch.randn(WORDS, LENGTH))
        self.words = torch.nn.Parameter(0.1 * torch.randn(WORDS, LENGTH))
        self.biases = torch.nn.Parameter(torch.zeros(WORDS))

    def forward(self) -> torch.Tensor:
        """Return the scores of all words in all contexts, shape (WORDS, WORDS)."""
        return self.contexts @ self.words.T + self.biases


def train(language: Language, estimator: Estimator, samples: int, steps: int, seed: int) -> Course:
    """Train a model and compare it with the truth at the checkpoints."""
    torch.manual_seed(seed)
    model = LogBilinear()
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=steps)
    wanted, found = set(checkpoints(steps)), []
    noise = noise_of(language, samples, seed)
    log_q = language.log_q.to(torch.float32)
    for step, bigrams in enumerate(zip(*read(language, steps, seed), strict=True), start=1):
        loss = loss_of(estimator, model(), log_q, bigrams, next(noise))
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
        if step in wanted:
            with torch.no_grad():
                found.append(compare(language, model().double()))
    return Course(*np.asarray(found).T)


def noise_of(language: Language, samples: int, seed: int) -> Iterator[torch.Tensor]:
    """Yield the noise of each step, shape (CHAINS, samples)."""
    generator = torch.Generator().manual_seed(1000 + seed)
    cumulative = language.unigram.cumsum(dim=0)
    while True:
        yield draw_words(cumulative, generator, (CHAINS, samples))


def loss_of(
    estimator: Estimator, table: torch.Tensor, log_q: torch.Tensor, bigrams: Bigrams, noise: torch.Tensor
) -> torch.Tensor:
    """Give the loss of one step, from the scores of all words in all contexts."""
    contexts, words = bigrams
    if estimator.loss is None:
        exact: torch.Tensor = density.full_softmax(table[contexts], words)
        return exact
    rows = contexts * WORDS
    data_scores, noise_scores = torch.take(table, rows + words), torch.take(table, rows[:, None] + noise)
    return estimator.loss(Sampled(data_scores, noise_scores, log_q[words], log_q[noise]))


def compare(language: Language, table: torch.Tensor) -> tuple[float, float, float, float]:
    """Compare scores and recovered scores with the truth; measure log Z."""
    plain = divergence(language, torch.log_softmax(table, dim=1))
    recovered = divergence(language, density.recover_log_prob(table, language.log_q))
    log_z = density.self_normalization(table)
    return plain, recovered, float(log_z.mean), float(log_z.std)


def run(steps: int, seeds: Sequence[int]) -> Found:
    """Train every estimator with every number of samples and seed; the exact softmax has no samples."""
    language = make_language()
    found: Found = {}
    for estimator in ESTIMATORS:
        for samples in SAMPLES:
            if estimator.loss is None and samples != SAMPLES[0]:
                found[estimator.name, samples] = found[estimator.name, SAMPLES[0]]
                continue
            courses = [train(language, estimator, samples, steps, seed) for seed in seeds]
            found[estimator.name, samples] = Course(*(np.stack(parts) for parts in zip(*courses, strict=True)))
    return found


# The table


def spread(values: Numbers) -> str:
    """Write the mean over the seeds, and the lowest and the highest."""
    low, mean, high = (f"{x:.4f}" for x in (values.min(), values.mean(), values.max()))
    return f"{mean} ({low} to {high})"


def rows(found: Found) -> Iterator[tuple[str, str, str, str, str]]:
    """Give the cells of the table, row by row."""
    for samples in SAMPLES:
        for estimator in ESTIMATORS:
            course = found[estimator.name, samples]
            if estimator.loss is None:
                continue
            log_z = f"{course.mean[:, -1].mean() + 0.0:.3f}", f"{course.std[:, -1].mean():.3f}"
            yield estimator.name, str(samples), spread(course.divergence[:, -1]), *log_z
            if estimator.without_q:
                yield f"{estimator.name}, recovered", str(samples), spread(course.recovered[:, -1]), "0", "0"
    course = found["full_softmax", SAMPLES[0]]
    log_z = f"{course.mean[:, -1].mean() + 0.0:.3f}", f"{course.std[:, -1].mean():.3f}"
    yield "full_softmax", "all", spread(course.divergence[:, -1]), *log_z


def table(found: Found) -> str:
    """Results at the end of the training."""
    head = "| estimator | k | KL(p ‖ model), nats | mean of log Z | deviation of log Z |"
    return "\n".join([head, "|---|---:|---|---:|---:|", *("| " + " | ".join(cells) + " |" for cells in rows(found))])


# The documents


def draw_divergence(axes: Axes, found: Found, samples: int, steps: list[int]) -> None:
    """Draw the divergences over time, with the range over the seeds."""
    for estimator in ESTIMATORS:
        course = found[estimator.name, samples]
        curves = [(course.divergence, estimator.dashes, estimator.name)]
        if estimator.without_q:
            curves.append((course.recovered, "-.", f"{estimator.name}, recovered"))
        for values, dashes, label in curves:
            colour = estimator.colour
            axes.plot(steps, values.mean(axis=0), dashes, color=colour, linewidth=1.8, label=label)
            axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    axes.set(xscale="log", yscale="log", ylabel="KL(p ‖ model), nats", xlim=(1, steps[-1]))


def draw_log_z(axes: Axes, found: Found, samples: int, steps: list[int]) -> None:
    """Draw log Z over time, with the deviation over the contexts."""
    axes.axhline(0.0, color="0.5", linewidth=0.8)
    for estimator in ESTIMATORS:
        course = found[estimator.name, samples]
        mean, std = course.mean.mean(axis=0), course.std.mean(axis=0)
        axes.plot(steps, mean, estimator.dashes, color=estimator.colour, linewidth=1.8)
        axes.fill_between(steps, mean - std, mean + std, color=estimator.colour, alpha=0.15, linewidth=0)
    axes.set(xscale="log", ylabel="log Z, nats", xlim=(1, steps[-1]))


def draw(found: Found, steps: list[int], output: Path) -> None:
    """Draw divergence and log Z, one row per number of samples, into a PNG file."""
    figure = Figure(figsize=(10.0, 7.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(SAMPLES), 2, sharex=True, sharey="col")
    for (left, right), samples in zip(grid, SAMPLES, strict=True):
        draw_divergence(left, found, samples, steps)
        draw_log_z(right, found, samples, steps)
        left.set_title(f"distance from the truth, k = {samples}", fontsize=10)
        right.set_title(f"log Z, mean ± deviation over contexts, k = {samples}", fontsize=10)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("step")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9, handlelength=3)
    figure.savefig(output, dpi=110, pil_kwargs={"optimize": True})


DOCUMENT = """\
# NCE on a toy language

- **Only `local_nce` is self-normalised.** Its log Z starts at {start:.1f} and ends within {local:.3f} of 0; the
  deviation over contexts is {local_std_few:.3f} (k = {few}) and {local_std_many:.3f} (k = {many}).
- **`ranking_nce` finds the density but not log Z.** KL(p ‖ model) is {ranking_few:.4f} nats with k = {few} and
  {ranking_many:.4f} with k = {many}. The exact softmax has {exact:.4f}.
- **`sampled_softmax` with the positive included is `ranking_nce`.** The divergences differ by at most {twins:.1g} nats.
- **Scores trained without q need `density.recover_log_prob`.** They approach log p / q, whose softmax is
  {ratio:.2f} nats from p. Recovered, they are as near as the others.
- **`local_nce` and `negative_sampling` train more slowly.** Within 100 steps `local_nce` reaches log Z near 0 and the
  unigram distribution, {unigram_divergence:.2f} nats from p. It stays there longer with k = {many} than with k = {few}.

![Distance from the truth, and log Z, over time](toy_language.png)

`python benchmarks/toy_language.py` writes this page, its picture, and
[setting and table](../benchmarks/toy_language.md).

Limits: the model can be exact, the noise is near the data, the vocabulary is small, one learning rate.

{versions}
"""

DETAILS = """\
# Measurements of NCE on a toy language

<!-- Written by benchmarks/toy_language.py. -->

## Setting

| | |
|---|---|
| language | a Markov chain over {words} words: p(x \\| c) ∝ exp(tilt(x, c)) / x; the tilt is random, of rank {rank} |
| noise q | the unigram distribution |
| entropy | {unigram_entropy:.2f} nats unigram, {entropy:.2f} nats given the context |
| model | s(x, c) = u(c) · v(x) + b(x), vectors of {length} numbers |
| training | Adam, {steps} steps of {chains} bigrams, learning rate {rate} falling to 0 |
| seeds | three texts; all estimators share text, noise and first weights |
| KL(p ‖ model) | exact; all contexts count equally |
| log Z | `density.self_normalization`, mean and deviation over the contexts |
| recovered | `density.recover_log_prob` of the same scores |
| bands in the picture | seeds (left), contexts (right) |

## Results

Mean over the seeds (lowest to highest). Ranking losses and the softmax leave log Z arbitrary.

{table}
"""


def document(found: Found, template: str = DOCUMENT) -> str:
    """Write a page."""
    language = make_language()
    weights, log_p, log_q = language.unigram, language.log_p, language.log_q
    ratio = torch.log_softmax(log_p - log_q, dim=1)
    few, many = SAMPLES

    def end(name: str, samples: int, what: str = "divergence") -> float:
        return float(getattr(found[name, samples], what)[:, -1].mean())

    twins = [np.abs(found["ranking_nce", k].divergence - found["sampled_softmax", k].divergence).max() for k in SAMPLES]
    return template.format(
        words=WORDS,
        rank=RANK,
        length=LENGTH,
        steps=STEPS,
        chains=CHAINS,
        rate=LEARNING_RATE,
        few=few,
        many=many,
        table=table(found),
        unigram_entropy=float(-(weights * log_q).sum()),
        entropy=float(-(weights[:, None] * language.transition * log_p).sum()),
        unigram_divergence=divergence(language, log_q.expand(WORDS, WORDS)),
        start=math.log(WORDS),
        local=max(float(np.abs(found["local_nce", k].mean[:, -1]).max()) for k in SAMPLES),
        local_std_few=end("local_nce", few, "std"),
        local_std_many=end("local_nce", many, "std"),
        twins=max(twins),
        ratio=divergence(language, ratio),
        ranking_few=end("ranking_nce", few),
        ranking_many=end("ranking_nce", many),
        exact=end("full_softmax", few),
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
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps, seeds = (QUICK_STEPS, SEEDS[:1]) if options.quick else (STEPS, SEEDS)
    found = run(steps, seeds)
    print(table(found))
    if not options.quick:
        draw(found, checkpoints(steps), DOCS / "toy_language.png")
        (DOCS / "toy_language.md").write_text(document(found), encoding="utf-8")
        Path(__file__).with_suffix(".md").write_text(document(found, DETAILS), encoding="utf-8")


if __name__ == "__main__":
    main()
