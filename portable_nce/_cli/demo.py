"""``python -m portable_nce demo``: two encoders learn which halves of handwritten digits belong together.

The left and right half of a digit are two views. Two small networks, one per side, are trained so that embeddings of
halves of one digit are similar and those of different digits are not. Held-out digits measure the result: how often the
matching right half is retrieved, and the bound on the mutual information of the halves.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .. import bounds
from .._core.autodiff import value_and_grad
from .._core.namespace import namespace_of
from .._losses import in_batch, views
from .course import Course, Digits, matches
from .libraries import OpenLibrary, open_library, require
from .picture import check_writable, draw

if TYPE_CHECKING:
    import numpy as np

    Vector = np.ndarray[Any, Any]

__all__ = ["Course", "Digits", "demo", "load_digits", "matches", "train"]

DTYPE = "float64"
TEMPERATURE = 0.1
HIDDEN, EMBEDDING = 128, 32
DECAY = 0.003
"""Weight of the sum of squared weights in the objective."""
BATCHES = 4
"""Fixed batches: the score matrices are 300 × 300 instead of 1200 × 1200."""
PATIENCE = 15
"""Training stops after this many iterations without a better bound on the validation digits."""
HELD_OUT, VALIDATION = 400, 197
"""Number of the 1797 digits that are held out, and that choose when to stop; the others train."""

NEEDED = {
    "numpy": "NumPy",
    "scipy": "SciPy",
    "sklearn": "scikit-learn",
    "threadpoolctl": "threadpoolctl",
    "matplotlib": "Matplotlib",
    "tqdm": "tqdm",
}

Tree = Any
"""Nested tuples of arrays: layers of the left and right encoders, and further parameters."""

Loss = Callable[[Any, Any, Tree], Any]


def _info_nce(left: Any, right: Any, _: Tree) -> Any:
    return in_batch.info_nce(left, right, temperature=TEMPERATURE, symmetric=True)


def _nt_xent(left: Any, right: Any, _: Tree) -> Any:
    return views.nt_xent(left, right, temperature=TEMPERATURE)


def _flat_nce(left: Any, right: Any, _: Tree) -> Any:
    return views.flat_nce(left, right, temperature=TEMPERATURE)


def _dcl(left: Any, right: Any, _: Tree) -> Any:
    return views.dcl(left, right, temperature=TEMPERATURE)


def _clip(left: Any, right: Any, extra: Tree) -> Any:
    return in_batch.clip(left, right, logit_scale=namespace_of(extra[0]).exp(extra[0]))


LOSSES: dict[str, tuple[str, Loss]] = {
    "info_nce": ("InfoNCE", _info_nce),
    "nt_xent": ("NT-Xent", _nt_xent),
    "flat_nce": ("FlatNCE", _flat_nce),
    "dcl": ("DCL", _dcl),
    "clip": ("CLIP", _clip),
}
"""Title of a loss, and its function of two arrays of embeddings and further parameters."""

UNNORMALISED = {"flat_nce", "dcl"}
"""Losses whose value does not measure progress; InfoNCE with the same pairs is shown as well."""


def demo(backend: str, loss: str, output: Path, iterations: int, seed: int) -> int:
    """Train, then print and draw the results on held-out digits."""
    require(NEEDED, "demo")
    library = open_library(backend)
    check_writable(output)
    digits = load_digits()
    title = LOSSES[loss][0]
    print(f"Matching left with right halves of handwritten digits by {title}")
    print(f"backend {library.name} {library.adapter.version}, {DTYPE}; optimiser L-BFGS")
    print(f"{len(digits.training)} digits train in {BATCHES} batches, {len(digits.validation)} choose when to stop")
    print("takes about ten seconds on one core, and 200 MB of memory; other libraries than NumPy take more")
    course = train(library, loss, digits, iterations, seed)
    _report(course, loss, digits)
    draw(course, digits, title, library.name, output)
    print(f"\npicture: {output}")
    return 0


def load_digits() -> Digits:
    """Digits of scikit-learn, with a fixed random split."""
    import numpy as np
    from sklearn import datasets

    bunch: Any = datasets.load_digits()
    images = bunch.images / 16.0
    order = np.random.default_rng(0).permutation(len(images))
    held_out, validation, training = np.split(order, [HELD_OUT, HELD_OUT + VALIDATION])

    def standardised(half: Vector) -> Vector:
        pixels = half.reshape(len(half), -1)
        return np.asarray((pixels - pixels[training].mean(axis=0)) / pixels[training].std())

    left, right = standardised(images[:, :, :4]), standardised(images[:, :, 4:])
    return Digits(left, right, images, bunch.target, training, validation, held_out)


def train(library: OpenLibrary, loss: str, digits: Digits, iterations: int, seed: int) -> Course:
    """Minimise the loss on the training digits; keep the parameters that are best on the validation digits."""
    import numpy as np
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits
    from tqdm import tqdm

    generator = np.random.default_rng(seed)
    start = _initial(generator, digits.left.shape[1], loss)
    task = _Task(library, loss, digits, start, generator.permutation(digits.training))
    begin = np.concatenate([leaf.reshape(-1) for leaf in _leaves(start)])
    limits = {"maxiter": iterations, "maxfun": 20 * iterations}
    bar = tqdm(total=iterations, unit="it", file=sys.stderr, disable=None, leave=False)
    started = perf_counter()

    def after(vector: Vector) -> None:
        course = task.record(vector)
        bar.set_postfix(loss=f"{course.losses[-1]:.3f}", bound=f"{course.bounds[-1]:.3f}", refresh=False)
        bar.update()
        if len(course.bounds) - 1 >= course.best + PATIENCE:
            raise StopIteration

    # One thread, since the matrices are small and threads would mostly wait for each other.
    with bar, threadpool_limits(limits=1):
        task.objective(begin)
        task.record(begin)
        minimize(task.objective, begin, jac=True, method="L-BFGS-B", callback=after, options=limits)
    return task.finish(perf_counter() - started)


class _Task:
    """Objective, as a bridge between the optimiser's vectors and the library's arrays, and its history."""

    def __init__(self, library: OpenLibrary, loss: str, digits: Digits, start: Tree, training: Vector) -> None:
        self.library, self.digits, self.start = library, digits, start
        self.training, self.validation = self.pair(training), self.pair(digits.validation)
        value = LOSSES[loss][1]

        def penalised(parameters: Tree, left: Any, right: Any) -> tuple[Any, Any]:
            mean = _of_batches(value, parameters, left, right)
            return mean + DECAY * _squares(parameters), mean

        self.differentiated = library.adapter.compiled(value_and_grad(penalised, has_aux=True))
        self.companion = library.adapter.compiled(partial(_of_batches, _nt_xent)) if loss in UNNORMALISED else None
        self.scores = library.adapter.compiled(_scores)
        self.latest = math.nan
        self.course, self.chosen = Course(), start

    def pair(self, numbers: Vector) -> tuple[Any, Any]:
        """Halves of the digits."""
        left, right = (half[numbers] for half in (self.digits.left, self.digits.right))
        return self.library.asarray(left, DTYPE), self.library.asarray(right, DTYPE)

    def tree(self, vector: Vector) -> Tree:
        """Parameters of a vector."""
        parts = iter(_split(vector, self.start))
        return _rebuild(self.start, lambda _: self.library.asarray(next(parts), DTYPE))

    def objective(self, vector: Vector) -> tuple[float, Vector]:
        """Penalised loss and its gradient."""
        import numpy as np

        (value, mean), gradient = self.differentiated(self.tree(vector), *self.training)
        self.latest = float(mean)
        return float(value), np.concatenate([self.library.to_numpy(leaf).reshape(-1) for leaf in _leaves(gradient)])

    def record(self, vector: Vector) -> Course:
        """Record the last loss and the bound; keep the best parameters."""
        parameters, course = self.tree(vector), self.course
        course.losses.append(self.latest)
        if self.companion is not None:
            course.companions.append(float(self.companion(parameters, *self.training)))
        course.bounds.append(float(bounds.info_nce(self.scores(parameters, *self.validation))))
        if course.bounds[-1] >= max(course.bounds):
            course.best, self.chosen = len(course.bounds) - 1, parameters
        return course

    def finish(self, seconds: float) -> Course:
        """Evaluate the best parameters on the held-out digits."""
        held_out = self.pair(self.digits.held_out)
        start = _rebuild(self.start, lambda leaf: self.library.asarray(leaf, DTYPE))
        untrained, scores = (self.scores(parameters, *held_out) for parameters in (start, self.chosen))
        self.course.untrained, self.course.scores = self.library.to_numpy(untrained), self.library.to_numpy(scores)
        self.course.bound = float(bounds.info_nce(scores))
        self.course.seconds = seconds
        return self.course


# The encoders, in array-API code


def encode(parameters: Tree, left: Any, right: Any) -> tuple[Any, Any]:
    """Embeddings of both halves."""
    return _perceptron(parameters[0], left), _perceptron(parameters[1], right)


def _perceptron(layers: Tree, x: Any) -> Any:
    """Linear layers with x σ(x) between them, smooth for L-BFGS."""
    for k, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        if k < len(layers) - 1:
            x = 0.5 * x * (1.0 + namespace_of(x).tanh(0.5 * x))
    return x


def _scores(parameters: Tree, left: Any, right: Any) -> Any:
    """Cosines of all left and right halves, over the temperature."""
    left, right = encode(parameters, left, right)
    xp = namespace_of(left)
    left, right = (x / xp.sqrt(xp.sum(x * x, axis=1, keepdims=True)) for x in (left, right))
    scale = xp.exp(parameters[2][0]) if parameters[2] else 1.0 / TEMPERATURE
    return (left @ xp.matrix_transpose(right)) * scale


def _of_batches(value: Loss, parameters: Tree, left: Any, right: Any) -> Any:
    """Mean of a loss over the batches."""
    encoded, size = encode(parameters, left, right), left.shape[0] // BATCHES
    cuts = [slice(k * size, (k + 1) * size) for k in range(BATCHES)]
    return sum(value(encoded[0][cut, :], encoded[1][cut, :], parameters[2]) for cut in cuts) / BATCHES


def _squares(parameters: Tree) -> Any:
    """Sum of squared weights, without biases."""
    weights = [weight for layers in parameters[:2] for weight, _ in layers]
    return sum(namespace_of(weight).sum(weight * weight) for weight in weights)


# Parameters: a tree of arrays for the encoders, a vector for the optimiser


def _initial(generator: np.random.Generator, pixels: int, loss: str) -> Tree:
    import numpy as np

    def layers() -> Tree:
        sizes = (pixels, HIDDEN, EMBEDDING)
        return tuple(
            (generator.standard_normal((before, after)) / math.sqrt(before), np.zeros(after))
            for before, after in pairwise(sizes)
        )

    # CLIP also learns the logarithm of its scale, starting at the other losses' fixed scale.
    return layers(), layers(), (np.asarray(-math.log(TEMPERATURE)),) if loss == "clip" else ()


def _leaves(tree: Tree) -> list[Any]:
    return [leaf for item in tree for leaf in _leaves(item)] if isinstance(tree, tuple) else [tree]


def _rebuild(tree: Tree, function: Callable[[Any], Any]) -> Tree:
    return tuple(_rebuild(item, function) for item in tree) if isinstance(tree, tuple) else function(tree)


def _split(vector: Vector, like: Tree) -> list[Vector]:
    import numpy as np

    leaves = _leaves(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    return [part.reshape(leaf.shape) for part, leaf in zip(np.split(vector, ends[:-1]), leaves, strict=True)]


# The report


def _report(course: Course, loss: str, digits: Digits) -> None:
    import numpy as np

    count = len(course.scores)
    classes = digits.classes[digits.held_out]
    title = LOSSES[loss][0]
    print(f"{len(course.losses) - 1} iterations in {course.seconds:.1f} s; the parameters of iteration {course.best}")
    print(f"training loss ({title}): {course.losses[0]:.3f} -> {course.losses[course.best]:.3f}")
    if course.companions:
        print(f"  InfoNCE beside it: {course.companions[0]:.3f} -> {course.companions[course.best]:.3f} nats")
    print(f"\non {count} digits held out:")
    shares = [[part.mean() for part in matches(scores, digits)[1:]] for scores in (course.untrained, course.scores)]
    chance = float(np.sum((np.bincount(classes) / count) ** 2))
    ceiling = bounds.log_n_ceiling(count)
    chances = {"same digit": f"{chance:.1%}", "top-1 retrieval": f"{1 / count:.2%}"}
    for (name, by_chance), before, after in zip(chances.items(), *map(reversed, shares), strict=True):
        print(f"  {name:20}{after:6.1%}        untrained {before:.1%}, chance {by_chance}")
    print(f"  mutual information  {course.bound:6.3f} nats   InfoNCE bound; ceiling log {count} = {ceiling:.3f} nats")
