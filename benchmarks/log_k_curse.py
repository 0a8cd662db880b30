"""The log-K curse on real digits: InfoNCE and FlatNCE in small batches, and the role of rounding.

Two encoders learn which left half of a handwritten digit belongs to which right half, in batches of K digits, by
InfoNCE as it is usually written (`cross_entropy(x @ y.T / t, labels)`), by this package's InfoNCE, and by FlatNCE (Chen
et al., 2021, arXiv:2107.01152), with the embeddings handed to the loss in float32 and in bfloat16. All see the same
pairs, in the same order, from the same weights. A second run memorises one batch at a low temperature, and compares
every gradient with the exact one.

`python benchmarks/log_k_curse.py` writes docs/log_k_curse.png and benchmarks/log_k_curse.md; `--quick` trains
for a few steps, prints the tables and writes nothing; `--choose` prints the grid that the hyper-parameters come from.
Needs torch, scikit-learn, matplotlib and mpmath.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import mpmath
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn import datasets
from torch.nn.functional import cross_entropy, normalize, silu

import portable_nce as pnce
from portable_nce import from_scores, objectives

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parents[1] / "docs"
TITLE = """\
# Measurements of the log-K curse

<!-- Written by benchmarks/log_k_curse.py. -->

## Setting

| | |
|---|---|
| data | scikit-learn's 1797 digits, cut into halves: 1280 for training, 400 held out, 117 for hyper-parameters |
| encoders | one perceptron per side, 32 – 128 – 32, SiLU |
| retrieval | how often the right half is the nearest of 400 to its left half; chance is 0.25 % |
| training | Adam, learning rate 0.001 √(K / 8), 30 epochs |
| seeds | eight, shared by all losses; mean ± standard deviation |
| bfloat16 | the embeddings; the model is float32 |
| `cross_entropy in float32` | product in bfloat16, the rest in float32 |
| `pnce FlatNCE` | `pnce.contrast` with `objectives.flat_nce()` |
| γ | share of the batch in SogCLR's moving averages |
| gradients, K = 8 | in the last quarter of the training |
| gradients, memorised | after 2000 steps on one batch of 16 digits |
| margin | positive score minus the log-sum-exp of its negatives, nats; median |
| error | relative, of the gradient by the embeddings (picture: by the scores) |
| zero | share of positives whose score gets a gradient of exactly 0 |

All losses are symmetric. Hyper-parameters are chosen for InfoNCE in float32 (`--choose`).

"""

DRAWN_ONLY = (32, 128)
"""Batch sizes in the picture only."""

TRAINING, HELD_OUT = 1280, 400
"""Numbers of the 1797 digits for training and held out for the tables; the others choose hyper-parameters."""
PIXELS, HIDDEN, EMBEDDING = 32, 128, 32
TEMPERATURE, LOW_TEMPERATURE = 0.1, 0.02
MEMORISED, MEMORISING_RATE = 16, 1e-3
"""Number of memorised digits, and the learning rate."""
LONGER = 16
"""Batch size of the longer trainings."""

Embeddings = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Plan:
    """Extent of the trainings.

    Attributes
    ----------
    sizes : tuple of int
        The batch sizes K.
    temperatures : tuple of float
        The best one for InfoNCE, and a low one.
    epochs : int
        Passes over the training digits, for all batch sizes.
    seeds : int
        Number of networks trained in parallel, each with separate weights and split of the digits.
    longer : tuple of int
        Epochs after which the longer trainings measure retrieval.
    memorising : int
        Steps on the memorised batch.
    probes : int
        Number of comparisons of a training's gradients with exact ones.
    workers : int
        Number of processes; the results do not depend on it.
    """

    sizes: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    temperatures: tuple[float, ...] = (TEMPERATURE, LOW_TEMPERATURE)
    epochs: int = 30
    seeds: int = 8
    longer: tuple[int, ...] = (30, 60, 120)
    memorising: int = 2000
    probes: int = 40
    workers: int = 2


QUICK = Plan(sizes=(64, 256), epochs=1, seeds=2, longer=(1,), memorising=80, probes=4, workers=1)


# The losses


def usual_of_scores(scores: torch.Tensor) -> torch.Tensor:
    """InfoNCE of the rows of scores, as usually written."""
    return cross_entropy(scores, torch.arange(scores.shape[0]))


def usual_of_raised_scores(scores: torch.Tensor) -> torch.Tensor:
    """`usual_of_scores` in float32, as in automatic mixed precision."""
    return usual_of_scores(scores.float())


def usual(x: torch.Tensor, y: torch.Tensor, temperature: float) -> torch.Tensor:
    """Symmetric InfoNCE, as usually written."""
    scores = x @ y.T / temperature
    return (usual_of_scores(scores) + usual_of_scores(scores.T)) / 2


def usual_raised(x: torch.Tensor, y: torch.Tensor, temperature: float) -> torch.Tensor:
    """`usual` with the product in 16 bits and the rest in float32."""
    scores = (x @ y.T).float() / temperature
    return (usual_of_scores(scores) + usual_of_scores(scores.T)) / 2


def info_nce(x: torch.Tensor, y: torch.Tensor, temperature: float) -> torch.Tensor:
    """Symmetric InfoNCE by this package."""
    loss: torch.Tensor = pnce.info_nce(x, y, temperature=temperature, similarity="dot", symmetric=True)
    return loss


def flat_nce(x: torch.Tensor, y: torch.Tensor, temperature: float) -> torch.Tensor:
    """Symmetric FlatNCE of the pairs of `info_nce`; `portable_nce.flat_nce` would add pairs within a view."""
    loss: torch.Tensor = pnce.contrast(
        x, y, objective=objectives.flat_nce(), temperature=temperature, similarity="dot", symmetric=True
    )
    return loss


@dataclass(frozen=True)
class Arm:
    """Loss in a precision.

    Attributes
    ----------
    name, style : str
        Name in the tables, and key of the colours.
    dtype : torch.dtype
        Dtype to which embeddings or scores are rounded before the loss.
    loss : callable
        Symmetric loss of two arrays of embeddings and a temperature.
    of_scores : callable
        Loss of the rows of scores.
    exact, exact_of_scores : callable
        The same functions in a form that is accurate in float64.
    """

    name: str
    style: str
    dtype: torch.dtype
    loss: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    of_scores: Callable[[torch.Tensor], torch.Tensor]
    exact: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] = info_nce
    exact_of_scores: Callable[[torch.Tensor], torch.Tensor] = from_scores.info_nce


SINGLE, HALF = torch.float32, torch.bfloat16
FLAT: dict[str, Any] = {"exact": flat_nce, "exact_of_scores": from_scores.flat_nce}
ARMS = (
    Arm("float32, cross_entropy", "usual", SINGLE, usual, usual_of_scores),
    Arm("float32, pnce InfoNCE", "pnce", SINGLE, info_nce, from_scores.info_nce),
    Arm("float32, pnce FlatNCE", "flat", SINGLE, flat_nce, from_scores.flat_nce, **FLAT),
    Arm("bfloat16, cross_entropy", "usual", HALF, usual, usual_of_scores),
    Arm("bfloat16, cross_entropy in float32", "raised", HALF, usual_raised, usual_of_raised_scores),
    Arm("bfloat16, pnce InfoNCE", "pnce", HALF, info_nce, from_scores.info_nce),
    Arm("bfloat16, pnce FlatNCE", "flat", HALF, flat_nce, from_scores.flat_nce, **FLAT),
)
GAMMAS = (0.9, 0.3)
"""Shares of the batch in SogCLR's moving averages."""
NUMBER = {arm.name: number for number, arm in enumerate(ARMS)}
INFO, GUIDE = NUMBER["float32, pnce InfoNCE"], NUMBER["float32, pnce FlatNCE"]
"""Arms that set the hyper-parameters, and the path to saturation on which all are measured."""


# Digits and encoders; the leading axis runs over seeds, trained in parallel


@dataclass(frozen=True)
class Digits:
    """Halves of digits and each seed's split: arrays of indices, shape (seeds, digits)."""

    left: torch.Tensor
    right: torch.Tensor
    training: torch.Tensor
    held_out: torch.Tensor
    validation: torch.Tensor


def generators(seeds: int, purpose: int) -> list[torch.Generator]:
    """Give a generator for each seed."""
    return [torch.Generator().manual_seed(1000 * purpose + seed) for seed in range(seeds)]


@cache
def digits(seeds: int) -> Digits:
    """Load scikit-learn's digits, each divided in a left and a right half of 8 × 4 pixels."""
    bunch: Any = datasets.load_digits()
    images = (torch.tensor(bunch.images, dtype=SINGLE) - 5.0) / 6.0  # roughly mean 0 and variance 1
    order = torch.stack([torch.randperm(len(images), generator=one) for one in generators(seeds, 0)])
    return Digits(
        left=images[:, :, :4].flatten(1),
        right=images[:, :, 4:].flatten(1),
        training=order[:, :TRAINING],
        held_out=order[:, TRAINING : TRAINING + HELD_OUT],
        validation=order[:, TRAINING + HELD_OUT :],
    )


class Encoders(torch.nn.Module):
    """Per side and seed, a perceptron with one hidden layer; unit embeddings."""

    def __init__(self, seeds: int) -> None:
        super().__init__()
        self.seeds = seeds
        sources = generators(seeds, 1)
        shapes = ((PIXELS, HIDDEN), (HIDDEN, EMBEDDING))
        weights = [
            torch.stack([torch.randn(shape, generator=one) / math.sqrt(shape[0]) for one in sources])
            for _ in range(2)
            for shape in shapes
        ]
        self.weights = torch.nn.ParameterList(weights)
        self.biases = torch.nn.ParameterList(torch.zeros(seeds, 1, weight.shape[2]) for weight in weights)

    def forward(self, numbers: torch.Tensor) -> Embeddings:
        """Return the embeddings of the halves of digits, by index."""
        data = digits(self.seeds)
        return self.side(0, data.left[numbers]), self.side(2, data.right[numbers])

    def side(self, first: int, pixels: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of one side, whose layers begin at the given number."""
        hidden = silu(torch.baddbmm(self.biases[first], pixels, self.weights[first]))
        return normalize(torch.baddbmm(self.biases[first + 1], hidden, self.weights[first + 1]), dim=-1)


def shuffled(size: int, epochs: int, seeds: int) -> Iterator[torch.Tensor]:
    """Give the indices of the digits in each batch, shape (seeds, K)."""
    sources, training = generators(seeds, 2), digits(seeds).training
    for _ in range(epochs):
        order = torch.stack([torch.randperm(TRAINING, generator=one) for one in sources])
        order = torch.gather(training, 1, order)
        yield from (order[:, start : start + size] for start in range(0, TRAINING, size))


# Gradients and their errors


@dataclass(frozen=True)
class Probe:
    """Accuracy of a gradient at a step, for each seed.

    Attributes
    ----------
    step : int
        Number of steps before.
    margin : list of float
        Median log-odds of the positives, in nats.
    error : list of float
        Relative error of the gradient by the embeddings, against the exact one for the same embeddings.
    row_error : list of float
        Median over rows of the relative error of the gradient by the scores, against the exact one for the same scores.
    zero : list of float
        Share of positives whose score has a gradient of exactly zero.
    """

    step: int
    margin: list[float]
    error: list[float]
    row_error: list[float]
    zero: list[float]


def gradient(loss: Callable[..., torch.Tensor], *arrays: torch.Tensor) -> torch.Tensor:
    """Flattened gradients of each seed's loss in float64; shape (seeds, entries)."""
    leaves = [array.detach().requires_grad_() for array in arrays]
    found = torch.autograd.grad(torch.vmap(loss)(*leaves).sum(), leaves)
    return torch.cat([one.double().flatten(1) for one in found], dim=1)


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Norm of the difference relative to the exact gradient, along the last axis."""
    error: torch.Tensor = torch.linalg.vector_norm(found - exact, dim=-1) / torch.linalg.vector_norm(exact, dim=-1)
    return error


def log_odds(scores: torch.Tensor) -> torch.Tensor:
    """Positive scores minus the log-sum-exp of the negatives."""
    positives = torch.eye(scores.shape[-1], dtype=torch.bool)
    return scores.diagonal(dim1=1, dim2=2) - scores.masked_fill(positives, -math.inf).logsumexp(dim=2)


def probe(arm: Arm, step: int, pair: Sequence[torch.Tensor], temperature: float) -> Probe:
    """Compare the gradients of a loss with the exact ones."""
    x, y = (z.detach().to(arm.dtype) for z in pair)
    scores = x @ y.mT / temperature
    found = gradient(lambda a, b: arm.loss(a, b, temperature), x, y)
    exact = gradient(lambda a, b: arm.exact(a, b, temperature), x.double(), y.double())
    by_scores, best = gradient(arm.of_scores, scores), gradient(arm.exact_of_scores, scores.double())
    rows, exact_rows = (one.reshape(scores.shape) for one in (by_scores, best))
    return Probe(
        step=step,
        margin=log_odds(scores.double()).median(dim=1).values.tolist(),
        error=relative_error(found, exact).tolist(),
        row_error=relative_error(rows, exact_rows).median(dim=1).values.tolist(),
        zero=(rows.diagonal(dim1=1, dim2=2) == 0.0).double().mean(dim=1).tolist(),
    )


def doubt(scores: torch.Tensor) -> float:
    """Worst relative error of the "exact" float64 gradients of one score matrix, against 50 digits."""
    worst = 0.0
    functions: list[Callable[..., Any]] = [from_scores.info_nce, from_scores.flat_nce]
    for function, flat in zip(functions, (False, True), strict=True):
        found = gradient(function, scores.double()[None])[0].reshape(scores.shape).tolist()
        with mpmath.workdps(50):
            for i, row in enumerate(scores.double().tolist()):
                odds = [mpmath.exp(mpmath.mpf(score) - row[i]) for score in row]
                off = mpmath.fsum(odds[:i] + odds[i + 1 :])
                total = len(row) * (off if flat else 1 + off)
                exact = [(-off if j == i else odd) / total for j, odd in enumerate(odds)]
                worst = max(worst, *(float(abs(a - b) / abs(b)) for a, b in zip(found[i], exact, strict=True)))
    return worst


# The trainings


@dataclass
class Course:
    """Record of a training.

    Attributes
    ----------
    probes : list of Probe
        Gradients of the loss during training.
    zero_steps : float
        Share of steps with an all-zero gradient by the embeddings.
    retrieval, validation : list of float
        Shares of held-out and validation digits whose right half is retrieved, by seed.
    """

    probes: list[Probe] = field(default_factory=list)
    zero_steps: float = 0.0
    retrieval: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)


def learning_rate(size: int) -> float:
    """Adam's learning rate, proportional to the root of the batch size."""
    return 1e-3 * math.sqrt(size / 8)


def follow(
    arm: Arm, encoders: Encoders, batches: Iterable[torch.Tensor], temperature: float, rate: float
) -> Iterator[tuple[Embeddings, torch.Tensor]]:
    """Train; before each step, give the embeddings and whether the gradient vanished, by seed."""
    optimiser = torch.optim.Adam(encoders.parameters(), lr=rate, fused=True)
    for numbers in batches:
        x, y = encoders(numbers)
        pair = x.to(arm.dtype), y.to(arm.dtype)
        for one in pair:
            one.retain_grad()
        optimiser.zero_grad()
        torch.autograd.backward(torch.vmap(lambda a, b: arm.loss(a, b, temperature))(*pair).sum())
        yield (x.detach(), y.detach()), vanished(*pair)
        optimiser.step()


def vanished(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Whether the gradient by the embeddings is all zero, by seed."""
    found = [one.grad for one in (x, y) if one.grad is not None]
    return ~torch.cat(found, dim=1).any(dim=2).any(dim=1)


def learn(number: int, temperature: float, size: int, plan: Plan, rate: float | None = None) -> Course:
    """Train on batches of all training digits, and measure on the digits held out."""
    torch.set_num_threads(1)
    arm, encoders, course = ARMS[number], Encoders(plan.seeds), Course()
    steps = plan.epochs * TRAINING // size
    probed = {step * steps // plan.probes for step in range(plan.probes)}
    batches = shuffled(size, plan.epochs, plan.seeds)
    course_of = follow(arm, encoders, batches, temperature, learning_rate(size) if rate is None else rate)
    for step, (pair, still) in enumerate(course_of):
        course.zero_steps += float(still.double().mean()) / steps
        if step in probed:
            course.probes.append(probe(arm, step, pair, temperature))
    judge(encoders, course)
    return course


def remember(gamma: float, temperature: float, size: int, plan: Plan) -> Course:
    """Train SogCLR, FlatNCE with a moving average of each digit's partition function, in both directions."""
    torch.set_num_threads(1)
    encoders, course = Encoders(plan.seeds), Course()
    optimiser = torch.optim.Adam(encoders.parameters(), lr=learning_rate(size), fused=True)
    memory = torch.full((plan.seeds, 2, len(digits(plan.seeds).left)), -math.inf)

    def both(x: torch.Tensor, y: torch.Tensor, log_u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        options: dict[str, Any] = {"gamma": gamma, "temperature": temperature, "similarity": "dot"}
        first, after = pnce.sogclr(x, y, log_u[0], **options)
        second, others = pnce.sogclr(y, x, log_u[1], **options)
        return (first + second) / 2, torch.stack([after, others])

    for numbers in shuffled(size, plan.epochs, plan.seeds):
        here = numbers[:, None, :].expand(-1, 2, -1)
        x, y = encoders(numbers)
        losses, found = torch.vmap(both)(x, y, torch.gather(memory, 2, here))
        memory.scatter_(2, here, found)
        optimiser.zero_grad()
        torch.autograd.backward(losses.sum())
        optimiser.step()
    judge(encoders, course)
    return course


def judge(encoders: Encoders, course: Course) -> None:
    """Measure retrieval."""
    data = digits(encoders.seeds)
    with torch.no_grad():
        course.validation = retrieved(*encoders(data.validation))
        course.retrieval = retrieved(*encoders(data.held_out))


def retrieved(x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """Share of left halves whose right half is the nearest of all."""
    right = (x @ y.mT).argmax(dim=2) == torch.arange(x.shape[1])
    shares: list[float] = right.double().mean(dim=1).tolist()
    return shares


def lengthen(number: int, temperature: float, plan: Plan) -> list[list[float]]:
    """Train for longer, and give the retrieval over time, by seed."""
    torch.set_num_threads(1)
    encoders, found = Encoders(plan.seeds), []
    measured = [epochs * TRAINING // LONGER for epochs in plan.longer]
    batches = shuffled(LONGER, plan.longer[-1] + 1, plan.seeds)
    for step, _ in enumerate(follow(ARMS[number], encoders, batches, temperature, learning_rate(LONGER))):
        if step in measured:
            with torch.no_grad():
                found.append(retrieved(*encoders(digits(plan.seeds).held_out)))
        if step == measured[-1]:
            break
    return found


@dataclass
class Saturation:
    """Record of memorising one batch.

    Attributes
    ----------
    own : Course
        Gradients of the loss on its own path.
    common : dict of list of Probe
        Gradients of all losses on the guide's path, by arm.
    doubt : float
        Worst relative error of the exact gradients on the guide's path.
    """

    own: Course = field(default_factory=Course)
    common: dict[str, list[Probe]] = field(default_factory=dict)
    doubt: float = 0.0


def memorise(number: int, plan: Plan) -> Saturation:
    """Train on one batch alone at a low temperature."""
    torch.set_num_threads(1)
    arm, encoders, found = ARMS[number], Encoders(plan.seeds), Saturation()
    batch = digits(plan.seeds).training[:, :MEMORISED]
    probed = moments(plan.memorising)
    course_of = follow(arm, encoders, [batch] * (plan.memorising + 1), LOW_TEMPERATURE, MEMORISING_RATE)
    for step, (pair, still) in enumerate(course_of):
        found.own.zero_steps += float(still.double().mean()) / (plan.memorising + 1)
        if step not in probed:
            continue
        found.own.probes.append(probe(arm, step, pair, LOW_TEMPERATURE))
        if number == GUIDE:
            for other in ARMS:
                found.common.setdefault(other.name, []).append(probe(other, step, pair, LOW_TEMPERATURE))
            found.doubt = max(found.doubt, doubt(pair[0][0] @ pair[1][0].T / LOW_TEMPERATURE))
    return found


def moments(last: int) -> set[int]:
    """Steps spaced evenly on a logarithmic axis, first and last included."""
    count = 80
    return {0, last} | {round(last ** (k / count)) for k in range(count)}


@dataclass(frozen=True)
class Results:
    """All trainings: by arm, temperature and batch size; by arm and temperature; by arm; and with a memory."""

    plan: Plan
    courses: dict[tuple[int, float, int], Course]
    longer: dict[tuple[int, float], list[list[float]]]
    saturations: dict[int, Saturation]
    remembered: dict[tuple[float, float, int], Course]


class Here:
    """Executor that runs in this process."""

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call the function."""
        done: Future[Any] = Future()
        done.set_result(function(*args))
        return done


def run(plan: Plan) -> Results:
    """Train all."""
    if plan.workers == 1:
        return submit(plan, Here())
    with ProcessPoolExecutor(plan.workers, multiprocessing.get_context("spawn")) as pool:
        return submit(plan, pool)


def submit(plan: Plan, pool: Here | ProcessPoolExecutor) -> Results:
    """Submit all trainings, long ones first, and collect the results."""
    everyone = range(len(ARMS))
    longer = {(arm, t): pool.submit(lengthen, arm, t, plan) for t in plan.temperatures for arm in (INFO, GUIDE)}
    keys = [(arm, t, size) for size in plan.sizes for t in plan.temperatures for arm in everyone]
    courses = {key: pool.submit(learn, *key, plan) for key in keys}
    saturations = {arm: pool.submit(memorise, arm, plan) for arm in everyone}
    memories = [(gamma, t, size) for size in plan.sizes for t in plan.temperatures for gamma in GAMMAS]
    remembered = {key: pool.submit(remember, *key, plan) for key in memories}
    return Results(
        plan=plan,
        courses={key: one.result() for key, one in courses.items()},
        longer={pair: one.result() for pair, one in longer.items()},
        saturations={arm: one.result() for arm, one in saturations.items()},
        remembered={key: one.result() for key, one in remembered.items()},
    )


# The tables


def spread(values: Sequence[float], *, scale: float = 100.0, signed: bool = False) -> str:
    """Mean ± standard deviation over the seeds."""
    middle = round(statistics.mean(values) * scale, 1) + 0.0  # no negative zero
    return f"{middle:{'+' if signed else ''}.1f} ± {statistics.stdev(values) * scale:.1f}"


def short(value: float) -> str:
    """Write a positive number in one or two digits."""
    if value == 0.0:
        return "0"
    return f"{value:.2g}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")  # noqa: PLR2004  (0.012, 1e-3)


def median(probes: Sequence[Probe], what: str) -> float:
    """The median over probes and seeds."""
    values: list[float] = [value for one in probes for value in getattr(one, what)]
    return statistics.median(values)


def mean(probes: Sequence[Probe], what: str) -> float:
    """The mean over probes and seeds."""
    values: list[float] = [value for one in probes for value in getattr(one, what)]
    return statistics.mean(values)


SHOWN = (
    "float32, cross_entropy",
    "float32, pnce InfoNCE",
    "float32, pnce FlatNCE",
    "bfloat16, cross_entropy",
    "bfloat16, pnce InfoNCE",
)
"""Losses in the retrieval table; the picture shows all."""


def retrieval_table(results: Results) -> str:
    """One row per temperature and loss, one column per batch size; and two losses compared by seed."""
    sizes = [size for size in results.plan.sizes if size not in DRAWN_ONLY]
    lines = ["| temperature | loss | " + " | ".join(f"K = {size}" for size in sizes) + " |"]
    lines.append("|---:|---|" + "---:|" * len(sizes))
    for temperature in results.plan.temperatures:
        rows = {name: [results.courses[NUMBER[name], temperature, size].retrieval for size in sizes] for name in SHOWN}
        for gamma in GAMMAS:
            shares = [results.remembered[gamma, temperature, size].retrieval for size in sizes]
            rows[f"float32, pnce SogCLR, γ = {gamma:g}"] = shares
        cells = {name: [spread(by_seed) for by_seed in shares] for name, shares in rows.items()}
        pairs = zip(rows["float32, pnce FlatNCE"], rows["float32, pnce InfoNCE"], strict=True)
        differences = ([a - b for a, b in zip(*pair, strict=True)] for pair in pairs)
        cells["float32, FlatNCE − InfoNCE by seed"] = [spread(one, signed=True) for one in differences]
        lines += [f"| {temperature:g} | {name} | " + " | ".join(row) + " |" for name, row in cells.items()]
    return "\n".join(lines)


def longer_table(results: Results) -> str:
    """Retrieval after more epochs."""
    lines = ["| temperature | loss | " + " | ".join(f"{epochs} epochs" for epochs in results.plan.longer) + " |"]
    lines.append("|---:|---|" + "---:|" * len(results.plan.longer))
    for (number, temperature), shares in results.longer.items():
        lines.append(f"| {temperature:g} | {ARMS[number].name} | " + " | ".join(map(spread, shares)) + " |")
    return "\n".join(lines)


def late(course: Course) -> list[Probe]:
    """The last quarter of the probes."""
    return course.probes[-max(1, len(course.probes) // 4) :]


def gradient_table(results: Results) -> str:
    """Margins and gradients at the low temperature: late in training with the smallest batches, and of one batch."""
    plan = results.plan
    parts = (f"K = {plan.sizes[0]}", "memorised")
    heads = [f"{what}, {part}" for part in parts for what in ("margin", "error", "zero")]
    lines = [f"| loss | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for number, arm in enumerate(ARMS):
        probes = late(results.courses[number, plan.temperatures[-1], plan.sizes[0]])
        end = results.saturations[number].own.probes[-1]
        cells = (
            f"{median(probes, 'margin'):.1f}",
            short(median(probes, "error")),
            f"{short(100 * mean(probes, 'zero'))} %",
            spread(end.margin, scale=1.0),
            short(statistics.median(end.error)),
            f"{100 * statistics.mean(end.zero):.0f} %",
        )
        lines.append(f"| {arm.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def folded(table: str) -> str:
    """Fold a table behind a summary line."""
    return f"<details>\n<summary>Show the table</summary>\n\n{table}\n\n</details>"


def tables(results: Results) -> str:
    """All tables, each under its heading."""
    checks = (
        untrained(results.plan),
        f"Steps with a gradient of zero in every entry: at most {stopped(results)} of a training.",
        f"Largest relative error of the exact gradients: {short(results.saturations[GUIDE].doubt)}.",
    )
    parts = (
        f"## Retrieval: top-1 among {HELD_OUT} digits held out, %",
        folded(retrieval_table(results)),
        f"## Retrieval after more epochs, K = {LONGER}, %",
        folded(longer_table(results)),
        f"## Gradients at temperature {LOW_TEMPERATURE:g}",
        folded(gradient_table(results)),
        " ".join(checks),
        versions(),
    )
    return "\n\n".join(parts) + "\n"


def untrained(plan: Plan) -> str:
    """Retrieval before the training."""
    course = Course()
    judge(Encoders(plan.seeds), course)
    return f"Untrained encoders retrieve {spread(course.retrieval)} %."


def stopped(results: Results) -> str:
    """Largest share of steps without a gradient."""
    all_courses = [*results.courses.values(), *(one.own for one in results.saturations.values())]
    return f"{100 * max(course.zero_steps for course in all_courses):.2g} %"


def versions() -> str:
    """Describe the environment."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "scikit-learn", "matplotlib", "mpmath"))
    return f"Python {platform.python_version()}, {libraries}, portable_nce {pnce.__version__}; CPU."


def choose(plan: Plan) -> str:
    """Grid over temperature and learning rate by validation retrieval; InfoNCE in float32."""
    lines = ["| K | temperature | learning rate | retrieval on validation digits, % |", "|---:|---:|---:|---:|"]
    with ProcessPoolExecutor(plan.workers, multiprocessing.get_context("spawn")) as pool:
        pending = {
            (size, temperature, rate): pool.submit(learn, INFO, temperature, size, plan, rate)
            for size in (8, 64, 256)
            for temperature in (0.05, 0.1, 0.2)
            for rate in (3e-4, 1e-3, 3e-3, 1e-2)
        }
        for (size, temperature, rate), one in pending.items():
            lines.append(f"| {size} | {temperature:g} | {rate:g} | {spread(one.result().validation)} |")
    return "\n".join(lines)


# The picture

COLOURS = {"usual": "#d55e00", "raised": "#cc79a7", "pnce": "#0072b2", "flat": "#009e73"}
MARKERS = {"usual": "s", "raised": "D", "pnce": "o", "flat": "^"}


def looks(arm: Arm) -> dict[str, Any]:
    """Colour and marker of a loss, dash of a precision."""
    half = arm.dtype == HALF
    return {
        "color": COLOURS[arm.style],
        "marker": MARKERS[arm.style],
        "linestyle": (0, (4, 2)) if half else "-",
        "markerfacecolor": "white" if half else COLOURS[arm.style],
        "markersize": 4.5,
        "linewidth": 1.4,
    }


def draw_retrieval(axes: Axes, results: Results, temperature: float) -> None:
    """Draw accuracy against batch size, arms side by side."""
    sizes = results.plan.sizes
    for number, arm in enumerate(ARMS):
        shares = [[100 * one for one in results.courses[number, temperature, size].retrieval] for size in sizes]
        at = [size * 2 ** (0.09 * (number - (len(ARMS) - 1) / 2)) for size in sizes]
        means, deviations = [statistics.mean(one) for one in shares], [statistics.stdev(one) for one in shares]
        style = {**looks(arm), "linewidth": 0.6}
        axes.errorbar(at, means, deviations, label=arm.name, elinewidth=1.1, capsize=1.5, **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="batch size K", ylabel="top-1 retrieval among 400, %", ylim=(10.0, 28.0))
    axes.set_title(f"Digits held out, temperature {temperature:g}: mean ± sd over seeds", fontsize=10)


def draw_margin(axes: Axes, results: Results) -> None:
    """Draw the margin that each loss reaches on the memorised batch."""
    for number, arm in enumerate(ARMS):
        probes = results.saturations[number].own.probes
        steps = [1 + one.step for one in probes]
        margins = [statistics.median(one.margin) for one in probes]
        axes.plot(steps, margins, markevery=(3 * number, 21), **looks(arm))
    axes.set_xscale("log")
    axes.set(xlabel="step", ylabel="median margin of the positives, nats")
    axes.set_title(f"{MEMORISED} digits memorised, temperature {LOW_TEMPERATURE:g}", fontsize=10)


def draw_error(axes: Axes, results: Results) -> None:
    """Draw the gradient errors against the margin, for equal scores."""
    guide = results.saturations[GUIDE]
    for number, (name, probes) in enumerate(guide.common.items()):
        pairs = sorted((statistics.median(p.margin), statistics.median(p.row_error)) for p in probes)
        margins, errors = zip(*(pair for pair in pairs if pair[0] >= 0.0), strict=True)
        axes.plot(margins, errors, markevery=(number, 7), **looks(ARMS[NUMBER[name]]))
    axes.set_yscale("log")
    axes.set(xlabel="median margin of the positives, nats", ylabel="relative error of the gradient, median row")
    axes.set_title("The same scores, on the way of FlatNCE (float32)", fontsize=10)


def draw(results: Results, output: Path) -> None:
    """Draw the four panels into a PNG file."""
    figure = Figure(figsize=(11.0, 8.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2).ravel()
    for axes, temperature in zip(panels, results.plan.temperatures, strict=False):
        draw_retrieval(axes, results, temperature)
    draw_margin(panels[2], results)
    draw_error(panels[3], results)
    panels[1].sharey(panels[0])
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color="0.92", linewidth=0.7)
        axes.set_axisbelow(True)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(output, dpi=92, pil_kwargs={"optimize": True}, metadata={"Software": None})


def write(results: Results) -> None:
    """Draw the picture, and write the tables."""
    draw(results, DOCS / "log_k_curse.png")
    Path(__file__).with_suffix(".md").write_text(f"{TITLE}{tables(results)}", encoding="utf-8")


def main() -> None:
    """Run all trainings, and print or write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps; prints the tables and writes nothing")
    parser.add_argument("--choose", action="store_true", help="print the grid of hyper-parameters and write nothing")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    options = parser.parse_args()
    if options.choose:
        print(choose(Plan(workers=options.workers)))
        return
    results = run(QUICK if options.quick else Plan(workers=options.workers))
    print(tables(results))
    if not options.quick:
        write(results)


if __name__ == "__main__":
    mpl.use("agg")
    main()
